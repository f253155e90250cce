//! Callers on the node: any bytes on the unix socket get a whole answer or none, and valid requests reach
//! core as events.

use crate::Target;
use kedge::local::answers;
use kedge::local::server::{MAX_BODY_BYTES, MAX_HEAD_BYTES};
use kedge::local::{Call, Listener, Verb, serve};
use kedge_api::Timestamp;
use kedge_core::config::records::{Read, StateFile};
use kedge_core::kubelet::LocalLayers;
use kedge_core::{Action, Core, Event, Now, Options, Outcome, PreviousRun, Step};
use kedge_rig::Scratch;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

pub(crate) const TARGET: Target =
    Target { name: "local_endpoint", run, seeds, words: WORDS, longest_bytes: 12 * 1024, mutations: 1500 };

const WORDS: &[&str] = &[
    "GET ",
    "POST ",
    "DELETE ",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    "\r\n\r\n",
    "Host: localhost\r\n",
    "Content-Length: ",
    "Transfer-Encoding: chunked\r\n",
    "/healthz",
    "/configz",
    "/config",
    "/config/text",
    "/config/forgive?uid=",
    "/config/reset",
    "/status",
    "/metrics",
    "%2F",
    "%00",
    "%",
    "&",
    "=",
    "+",
    "u-1",
    "18446744073709551615",
    "65536",
    "http://h/",
];

fn seeds() -> Vec<Vec<u8>> {
    [
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /configz HTTP/1.1\r\n\r\n",
        "GET /config HTTP/1.1\r\n\r\n",
        "GET /config/text HTTP/1.1\r\n\r\n",
        "GET /status HTTP/1.1\r\n\r\n",
        "GET /metrics HTTP/1.0\r\n\r\n",
        "POST /config/forgive?uid=u-1 HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        "POST /config/forgive?uid=%2e&x=a+b HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
        "POST /config/reset HTTP/1.1\r\n\r\n",
        "GET /%zz HTTP/1.1\r\n\r\n",
        "GET http://localhost/healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// An agent's endpoint, and an agent behind it that has a verdict to forgive.
struct Endpoint {
    runtime: Runtime,
    socket: PathBuf,
    calls: mpsc::Receiver<Call>,
    node: Core,
    // dropping it removes the folder with the socket
    _folder: Scratch,
}

thread_local! {
    static ENDPOINT: std::cell::RefCell<Endpoint> = std::cell::RefCell::new(Endpoint::new());
}

fn now() -> Now {
    Now { mono: Duration::from_secs(60), wall: Timestamp::default() }
}

impl Endpoint {
    fn new() -> Self {
        let folder = crate::scratch("endpoint");
        let socket = folder.path().join("kedge.sock");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (sender, calls) = mpsc::channel(1);
        let listener = {
            let _within = runtime.enter();
            Listener::unix(&socket).expect("the folder is ours")
        };
        runtime.spawn(serve(listener, sender));
        Self { runtime, socket, calls, node: node(), _folder: folder }
    }
}

/// A node on its local config, with one bad config.
fn node() -> Core {
    let options = Options {
        node_name: "edge-1".into(),
        version: "0.1.0".into(),
        local: LocalLayers::default(),
        dynamic_config: true,
        node_labels: BTreeMap::new(),
        slot: None,
        slots: None,
        decommission: None,
        boot_id: "boot".into(),
        previous_run: PreviousRun::default(),
        seed: 1,
    };
    let mut node = Core::new(options, now()).expect("the defaults are valid");
    let mut actions = Vec::new();
    node.handle(now(), Event::Start, &mut actions);
    while node.report(now()).is_none() {
        let step = actions.drain(..).find_map(|action| match action {
            Action::Step(step) => Some(step),
            _ => None,
        });
        let outcome = match step.expect("it starts or asks for a step") {
            Step::Read(StateFile::BadConfigs) => Outcome::Read(Read::Content(
                br#"{"u-1":{"time":"2026-11-21T01:00:00Z","reason":"by hand"}}"#.to_vec(),
            )),
            Step::Read(_) => Outcome::Read(Read::Absent),
            Step::Write(..) | Step::SetAside(_) => Outcome::Done(Ok(())),
        };
        node.handle(now(), Event::StepDone(outcome), &mut actions);
    }
    node
}

fn run(data: &[u8]) {
    ENDPOINT.with_borrow_mut(|endpoint| {
        let Endpoint { runtime, socket, calls, node, .. } = endpoint;
        let answer = runtime.block_on(async {
            let mut stream = UnixStream::connect(&socket).await.expect("the endpoint listens");
            let asked = async {
                let (mut reading, mut writing) = stream.split();
                // the endpoint may answer and close before it has read everything
                let send = async {
                    let _ = writing.write_all(data).await;
                    let _ = writing.shutdown().await;
                };
                let mut answer = Vec::new();
                let receive = reading.read_to_end(&mut answer);
                let _ = tokio::join!(send, receive);
                answer
            };
            tokio::pin!(asked);
            loop {
                tokio::select! {
                    answer = &mut asked => break answer,
                    Some(call) = calls.recv() => reply(call, node),
                }
            }
        });
        check_answer(data, &answer);
    });
}

fn reply(call: Call, node: &Core) {
    let request = &call.request;
    assert!(request.body.len() <= MAX_BODY_BYTES, "a body of {} bytes", request.body.len());
    assert!(request.verb == Verb::Post || request.body.is_empty(), "a GET with a body: {request:?}");
    assert!(request.path.len() <= MAX_HEAD_BYTES + 1024, "a path of {} bytes", request.path.len());
    let (response, event) = answers::answer(request, node, now(), &answers::Surroundings::default());
    match event {
        None => {}
        Some(Event::Forgive(uid)) => {
            assert_eq!(
                (request.verb, uid.as_str()),
                (Verb::Post, "u-1"),
                "only a known bad config can be forgiven"
            );
        }
        Some(Event::Reset) => {
            assert_eq!((request.verb, request.path.as_str()), (Verb::Post, "/config/reset"))
        }
        Some(other) => panic!("{request:?} leads to {other:?}"),
    }
    call.answer(response);
}

/// A whole HTTP answer, or no answer to an incomplete request.
fn check_answer(asked: &[u8], answer: &[u8]) {
    if answer.is_empty() {
        return;
    }
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let (head, body) =
        answer.split_at(end.unwrap_or_else(|| panic!("no head: {}", answer.escape_ascii())) + 4);
    let head = std::str::from_utf8(head).expect("a head is ASCII");
    let status = head
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3))
        .and_then(|code| code.parse::<u16>().ok());
    let status = status.unwrap_or_else(|| panic!("no status: {head}"));
    assert!((200..600).contains(&status) && status != 503 && status != 504, "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse::<usize>().ok());
    // over TCP a refusal could be lost to a reset if the body was not read; on a unix socket it cannot
    assert_eq!(length, Some(body.len()), "{head}");
    // empty lines before a request are skipped, as HTTP allows
    let asked = asked.trim_ascii_start();
    assert!(status != 200 || asked.starts_with(b"GET ") || asked.starts_with(b"POST "), "{head}");
}
