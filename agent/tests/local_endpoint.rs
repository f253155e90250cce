//! The local endpoint as the command line meets it: real sockets, a real runtime, and callers that misbehave.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::cell::RefCell;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use kedge::local::answers::{self, Surroundings};
use kedge::local::client::{AskError, get, post};
use kedge::local::server::{MAX_CONNECTIONS, MAX_HEAD_BYTES};
use kedge::local::{Call, Listener, Origin, Request, Response, Verb, serve};
use kedge_api::Timestamp;
use kedge_core::config::records::{self, StateFile};
use kedge_core::pods::{Inventory, PodEvent};
use kedge_core::{Action, Core, Event, Now, Options, Outcome, Step};
use kedge_rig::Scratch;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

/// Locked by tests that start a child, and by tests that rely on a closed socket being closed: between fork
/// and exec a child still has all of our descriptors open.
static NO_CHILDREN: Mutex<()> = Mutex::new(());

struct Folder(Scratch);

impl Folder {
    fn new() -> Self {
        Self(Scratch::new("local").unwrap())
    }

    fn socket(&self) -> PathBuf {
        self.0.join("run/kedge.sock")
    }
}

/// An agent of which only the endpoint exists.
struct Agent {
    tcp: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Agent {
    fn start(socket: &Path, answer: fn(Call)) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let socket = socket.to_owned();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let (calls, mut waiting) = mpsc::channel(4);
                let tcp = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
                let address = tcp.tcp_address().unwrap();
                tokio::spawn(serve(Listener::unix(&socket).unwrap(), calls.clone()));
                tokio::spawn(serve(tcp, calls));
                ready.send(address).unwrap();
                tokio::spawn(async move {
                    while let Some(call) = waiting.recv().await {
                        answer(call);
                    }
                });
                let _ = stopped.await;
            });
        });
        Self { tcp: is_ready.recv().unwrap(), stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

fn echo(call: Call) {
    let request = &call.request;
    let response = match (request.verb, request.path.as_str()) {
        (Verb::Get, "/healthz") => Response::text(200, "ok"),
        (Verb::Get, "/configz") => Response::json(200, &serde_json::json!({"kind": "KubeletConfiguration"})),
        (Verb::Get, "/metrics") => Response::metrics("# HELP x y\n".repeat(50_000)),
        (Verb::Get, "/who") => Response::text(200, format!("{:?}", request.origin)),
        (Verb::Post, "/config/forgive") => {
            Response::text(200, request.param("uid").unwrap_or("nobody").to_owned())
        }
        (_, "/crash") => return,
        (_, path) => Response::not_found(path),
    };
    call.answer(response);
}

fn text(body: &[u8]) -> &str {
    core::str::from_utf8(body).unwrap()
}

#[test]
fn command_line_is_answered() {
    let folder = Folder::new();
    let _agent = Agent::start(&folder.socket(), echo);
    let check = |path: &str, status: u16, expect: &str| {
        let answer = get(&folder.socket(), path).unwrap();
        assert_eq!((answer.status, text(&answer.body)), (status, expect), "{path}");
    };
    check("/healthz", 200, "ok\n");
    check("/configz", 200, "{\"kind\":\"KubeletConfiguration\"}");
    check("/metrics", 200, &"# HELP x y\n".repeat(50_000));
    check("/nothing", 404, "no such path: /nothing\n");
    check("/crash", 503, "the agent is stopping\n");
    let answer = post(&folder.socket(), "/config/forgive?uid=7f%2Dc").unwrap();
    assert_eq!(text(&answer.body), "7f-c\n");
    let own_uid =
        fs::metadata(folder.socket()).map(|seen| std::os::unix::fs::MetadataExt::uid(&seen)).unwrap();
    check("/who", 200, &format!("{:?}\n", Origin::Socket { uid: own_uid }));
}

#[test]
fn socket_is_private_and_replaces_a_stale_one() {
    let _no_children = NO_CHILDREN.lock();
    let folder = Folder::new();
    fs::create_dir_all(folder.socket().parent().unwrap()).unwrap();
    drop(UnixListener::bind(folder.socket()).unwrap());
    assert!(matches!(get(&folder.socket(), "/healthz"), Err(AskError::NotRunning { .. })));
    let agent = Agent::start(&folder.socket(), echo);
    assert_eq!(fs::metadata(folder.socket()).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(get(&folder.socket(), "/healthz").unwrap().status, 200);
    drop(agent);
    let error = get(&folder.socket(), "/healthz").unwrap_err();
    let expected = format!("no agent runs here: nothing listens on {}", folder.socket().display());
    assert_eq!(error.to_string(), expected);
    let _agent = Agent::start(&folder.socket(), echo);
    assert_eq!(get(&folder.socket(), "/healthz").unwrap().status, 200);
    let names: Vec<_> = fs::read_dir(folder.socket().parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["kedge.sock"]);
}

#[test]
fn other_file_in_place_of_the_socket_is_kept() {
    let folder = Folder::new();
    let agent = Agent::start(&folder.socket(), echo);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let check = |path: &Path, expect: &str| {
        let outcome = runtime.block_on(async { Listener::unix(path).map(|_| ()) });
        let found = outcome.unwrap_err().to_string();
        assert!(found.contains(expect), "{found}");
    };
    check(&folder.socket(), "another agent answers on it");
    assert_eq!(get(&folder.socket(), "/healthz").unwrap().status, 200);
    drop(agent);
    let file = folder.0.join("precious");
    fs::write(&file, "data").unwrap();
    check(&file, "the path exists and is not a socket");
    assert_eq!(fs::read(&file).unwrap(), b"data");
    check(&folder.0.join("x".repeat(120)), "make socket");
    let outcome = runtime.block_on(async { Listener::tcp(([0, 0, 0, 0], 0).into()).map(|_| ()) });
    assert_eq!(
        outcome.unwrap_err().to_string(),
        "local endpoint on 0.0.0.0:0: expected a loopback address such as 127.0.0.1"
    );
}

#[test]
fn tcp_answers_readers_on_loopback() {
    let folder = Folder::new();
    let agent = Agent::start(&folder.socket(), echo);
    let check = |request: &str, expect: &str| {
        let mut stream = TcpStream::connect(agent.tcp).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(expect), "{request}: {answer}");
        answer
    };
    let who = check("GET /who HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "HTTP/1.1 200 OK\r\n");
    assert!(who.ends_with("\r\n\r\nLoopback\n"), "{who}");
    check("GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n", "HTTP/1.1 403 Forbidden\r\n");
    check("POST /config/reset HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 403 Forbidden\r\n");
}

#[test]
fn slow_callers_do_not_block_another_listener() {
    let folder = Folder::new();
    let agent = Agent::start(&folder.socket(), echo);
    // as many callers as are served at once; each leaves its request unfinished
    let dawdlers: Vec<_> = (0..MAX_CONNECTIONS)
        .map(|_| {
            let mut stream = UnixStream::connect(folder.socket()).unwrap();
            stream.write_all(b"GET /healthz HTTP/1.1\r\n").unwrap();
            stream
        })
        .collect();
    let mut stream = TcpStream::connect(agent.tcp).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("ok\n"));
    // and once they are gone the socket serves again
    drop(dawdlers);
    assert_eq!(get(&folder.socket(), "/healthz").unwrap().status, 200);
    let mut flood = UnixStream::connect(folder.socket()).unwrap();
    let head = format!("GET / HTTP/1.1\r\nX: {}", "y".repeat(MAX_HEAD_BYTES));
    flood.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = flood.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[test]
fn malformed_answer_differs_from_no_answer() {
    let folder = Folder::new();
    let socket = folder.0.join("other.sock");
    let check = |answer: &'static [u8], expect: &str| {
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let answering = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut heard = Vec::new();
            while !heard.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                heard.push(byte[0]);
            }
            stream.write_all(answer).unwrap();
        });
        let found = get(&socket, "/x").unwrap_err().to_string();
        assert!(found.contains(expect), "{found}");
        answering.join().unwrap();
    };
    check(b"", "did not answer");
    check(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhalf", "did not answer");
    check(b"HTTP/1.1 200 OK\r\n\r\nall of it?", "its answer has no Content-Length");
    check(b"hello\r\n\r\n", "its answer is not HTTP");
}

/// The exit code, standard output and standard error of a command of the program beside the agent on this
/// socket.
fn kedge(folder: &Folder, arguments: &[&str]) -> (Option<i32>, String, String) {
    let _no_children = NO_CHILDREN.lock();
    let ended = std::process::Command::new(env!("CARGO_BIN_EXE_kedge"))
        .args(arguments)
        .arg("--run-dir")
        .arg(folder.0.join("run"))
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (ended.status.code(), text(ended.stdout), text(ended.stderr))
}

/// The same of `kedge config show` beside an agent that answers `answer`.
fn config_show(answer: Option<fn(Call)>, form: &str) -> (Option<i32>, String, String) {
    let folder = Folder::new();
    let _agent = answer.map(|answer| Agent::start(&folder.socket(), answer));
    kedge(&folder, &["config", "show", "--output", form])
}

#[test]
fn config_show_names_the_source() {
    let check = |answer: Option<fn(Call)>, from: &str, problem: &str| {
        let (code, out, complaint) = config_show(answer, "json");
        let shown: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, shown["from"].as_str()), (Some(0), Some(from)), "{out}{complaint}");
        assert_eq!(complaint.is_empty(), problem.is_empty(), "{complaint}");
        assert!(complaint.contains(problem), "{complaint}");
        assert!(shown["agentProblem"].as_str().unwrap_or_default().contains(problem), "{out}");
    };
    check(Some(|call| call.answer(Response::text(200, r#"{"config":{"maxPods":7}}"#))), "agent", "");
    check(None, "files", "");
    check(Some(|call| call.answer(Response::text(503, "starting"))), "files", "answered: starting");
    check(Some(|call| call.answer(Response::text(200, "ok"))), "files", "answered: not JSON");
    check(Some(|call| call.answer(Response::text(200, "[]"))), "files", "answered: not a JSON object");
    let (_, out, _) = config_show(None, "text");
    assert!(out.starts_with("# from the files: no agent runs here\n"), "{out}");
}

/// UIDs that the agent below has verdicts on: one more than can wait to be forgiven.
const BANNED: usize = 9;

fn now() -> Now {
    Now { mono: Duration::from_secs(20), wall: Timestamp::default() }
}

/// A core, the deciding half of an agent, on a disk that hangs from its first write on.
fn node_whose_disk_stands_still() -> Core {
    node_that_began(|_| {})
}

fn node_that_began(make: impl FnOnce(&mut Core)) -> Core {
    let options = Options {
        node_name: "edge-1".into(),
        version: "0.1.0".into(),
        local: Default::default(),
        dynamic_config: true,
        node_labels: Default::default(),
        slot: None,
        slots: None,
        decommission: None,
        boot_id: "this-boot".into(),
        previous_run: Default::default(),
        seed: 1,
    };
    let mut node = Core::new(options, now()).unwrap();
    make(&mut node);
    let mut event = Event::Start;
    loop {
        let mut actions = Vec::new();
        node.handle(now(), event, &mut actions);
        let step = actions.into_iter().find_map(|action| match action {
            Action::Step(step) => Some(step),
            _ => None,
        });
        event = match step {
            Some(Step::Read(StateFile::BadConfigs)) => {
                let entry = |number| {
                    (format!("uid-{number}"), json!({"time": "2026-01-01T00:00:00Z", "reason": "tried"}))
                };
                let list: Value = (1..=BANNED).map(entry).collect();
                Event::StepDone(Outcome::Read(records::Read::Content(list.to_string().into_bytes())))
            }
            Some(Step::Read(_)) => Event::StepDone(Outcome::Read(records::Read::Absent)),
            // a start is counted, also where nothing is assigned
            Some(Step::Write(StateFile::Startups, _)) => Event::StepDone(Outcome::Done(Ok(()))),
            Some(other) => panic!("a start without an assignment has nothing to {other:?}"),
            None => return node,
        };
    }
}

thread_local! {
    static STANDING_STILL: RefCell<Core> = RefCell::new(node_whose_disk_stands_still());
}

fn as_the_agent_answers(call: Call) {
    STANDING_STILL.with_borrow_mut(|node| {
        let (response, event) = answers::answer(&call.request, node, now(), &Surroundings::default());
        call.answer(response);
        if let Some(event) = event {
            node.handle(now(), event, &mut Vec::new());
        }
    });
}

#[test]
fn pods_are_not_complete_before_disk_and_runtime_told() {
    let mut node = node_that_began(Core::serve_pods);
    let request = Request {
        verb: Verb::Get,
        path: "/pods".into(),
        query: Vec::new(),
        body: Vec::new(),
        origin: Origin::Socket { uid: 0 },
    };
    let is_complete = |node: &Core| {
        let (response, _) = answers::answer(&request, node, now(), &Surroundings::default());
        serde_json::from_slice::<Value>(&response.body).unwrap()["isComplete"].clone()
    };
    assert_eq!(is_complete(&node), false);
    node.handle(now(), Event::Pods(Box::new(PodEvent::DesiredRead(Ok(vec![])))), &mut Vec::new());
    assert_eq!(is_complete(&node), false);
    node.handle(now(), Event::Pods(Box::new(PodEvent::Inventory(Inventory::default()))), &mut Vec::new());
    assert_eq!(is_complete(&node), true);
}

#[test]
fn refused_forgive_fails_with_the_reason() {
    let folder = Folder::new();
    let _agent = Agent::start(&folder.socket(), as_the_agent_answers);
    let forgive = |uid: &str| kedge(&folder, &["config", "forgive", uid]);
    let check_taken = |uid: &str| {
        let text = format!(
            "forgetting the verdicts on UID {uid}; if it is assigned, the agent restarts to try it\n"
        );
        assert_eq!(forgive(uid), (Some(0), text, String::new()));
    };
    for number in 1..BANNED {
        check_taken(&format!("uid-{number}"));
    }
    let text =
        "forgetting the verdicts on UID uid-9: not done, too many others wait for the disk; ask again later";
    assert_eq!(forgive("uid-9"), (Some(1), String::new(), format!("kedge: {text}\n")));
    let answer = post(&folder.socket(), "/config/forgive?uid=uid-9").unwrap();
    assert_eq!((answer.status, String::from_utf8(answer.body).unwrap()), (503, format!("{text}\n")));
    // a request that is waiting already is taken again, though the queue is full
    check_taken("uid-1");
    let (code, _, complaint) = forgive("nobody");
    assert_eq!(code, Some(1));
    assert!(complaint.starts_with("kedge: there is no verdict on UID nobody; known: uid-1, "), "{complaint}");
}

fn as_an_agent_that_stops_answers(call: Call) {
    STANDING_STILL.with_borrow_mut(|node| {
        node.handle(now(), Event::Stop("asked to stop".to_owned()), &mut Vec::new());
        let (response, event) = answers::answer(&call.request, node, now(), &Surroundings::default());
        assert!(event.is_none(), "{event:?} would come to nothing");
        call.answer(response);
    });
}

#[test]
fn reset_while_exiting_fails_with_the_reason() {
    let folder = Folder::new();
    // before the stop, the disk has a write to do: otherwise the agent would be gone at once
    let _agent = Agent::start(&folder.socket(), |call| {
        if call.request.path == "/config/forgive" {
            as_the_agent_answers(call);
        } else {
            as_an_agent_that_stops_answers(call);
        }
    });
    assert_eq!(kedge(&folder, &["config", "forgive", "uid-1"]).0, Some(0));
    let text =
        "kedge: going back to the local config: not done, the agent is about to restart; ask again then\n";
    assert_eq!(kedge(&folder, &["config", "reset"]), (Some(1), String::new(), text.to_owned()));
}

/// The records are changed as an agent would do it: the start-ups that led to the verdict are forgotten with
/// it, and the Node that assigned stays known.
#[test]
fn forgive_and_reset_without_an_agent() {
    let folder = Folder::new();
    let root = folder.0.join("root");
    let state = root.join("config");
    let version = state.join(env!("CARGO_PKG_VERSION"));
    let [bad, startups] = ["bad-configs.json", "startups.json"].map(|name| version.join(name));
    fs::create_dir_all(&version).unwrap();
    let [forgiven, other] = &["a", "b"].map(|digit| digit.repeat(64));
    let stamp = "2026-11-21T01:00:00Z";
    let verdict = |payload: &str| {
        let verdict = json!({"time": stamp, "reason": "r", "kind": "crashLoop", "payload": payload});
        json!({"time": stamp, "reason": "r", "contents": {payload: verdict}})
    };
    let counts = |startups: Value| {
        json!({"ran_ms": 0, "heard": false, "startups": startups, "cuts": 0, "open": null, "threshold": 0,
            "trial_ms": 60_000})
    };
    let write = |path: &Path, json: Value| fs::write(path, json.to_string()).unwrap();
    write(&bad, json!({"u-1": verdict(forgiven), "u-2": verdict(other)}));
    let mut records = json!({"local": counts(json!([]))});
    for payload in [forgiven, other] {
        records[payload] = counts(json!([stamp]));
    }
    write(&startups, json!({"last": "local", "records": records}));
    write(&state.join("current"), json!({"apiVersion": "kedge.dev/v1", "local": true, "nodeUID": "node-1"}));

    let read = |path: &Path| serde_json::from_slice::<Value>(&fs::read(path).unwrap()).unwrap();
    let run = |arguments: &[&str]| {
        let (code, _, complaint) =
            kedge(&folder, &[arguments, &["--root-dir", root.to_str().unwrap()]].concat());
        assert_eq!((code, complaint), (Some(0), String::new()));
    };
    run(&["config", "forgive", "u-1"]);
    assert!(read(&bad).get("u-1").is_none() && read(&bad).get("u-2").is_some());
    let left = |payload: &str| read(&startups)["records"][payload]["startups"].as_array().unwrap().len();
    assert_eq!([forgiven, other].map(|payload| left(payload)), [0, 1]);
    run(&["config", "reset"]);
    let current = read(&state.join("current"));
    assert_eq!((&current["reset"], &current["nodeUID"]), (&json!(true), &json!("node-1")));
}
