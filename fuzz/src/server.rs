//! API servers and proxies that answer anything, over real sockets and real TLS, to the real client.
//!
//! The first byte chooses the agent's request (a GET or PATCH, a list, a watch, through a proxy), the second
//! how the rest of the input is sent: raw, or as the body of a well-formed answer, so that mutations also
//! reach the code behind HTTP. Different from `agent/tests/net_server`, where a test's script answers each
//! request after reading it: this one sends the input's bytes to any request.

use crate::Target;
use crate::input::{Input, SEPARATOR};
use kedge::net::client::{Api, Request, STRATEGIC_MERGE_PATCH};
use kedge::net::credentials::ApiOptions;
use kedge::net::error::NetError;
use kedge::net::proxy::ProxyEnvironment;
use kedge::net::transport::system_clock;
use kedge::net::watch::{MAX_LISTED, WatchEnd, WatchEvent, WatchFrom, WatchLimits, list, watch};
use kedge_api::{ConfigMap, Node};
use kedge_rig::Scratch;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;
use std::collections::VecDeque;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

pub(crate) const TARGET: Target =
    Target { name: "server", run, seeds, words: WORDS, longest_bytes: 4096, mutations: 100 };

/// A request's deadline: far longer than loopback needs, so that only a client that waits in vain reaches it.
const DEADLINE: Duration = Duration::from_secs(3);

/// Longest text of an error: a bounded message, and the request.
const ERROR_BYTES: usize = 4096;

/// Most events taken from one watch.
const EVENTS: usize = 64;

const WORDS: &[&str] = &[
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.1 410 Gone\r\n",
    "HTTP/1.1 401 Unauthorized\r\n",
    "HTTP/1.1 429 Too Many Requests\r\n",
    "HTTP/1.1 302 Found\r\nLocation: https://h/\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.0 200 OK\r\n",
    "\r\n\r\n",
    "Content-Length: ",
    "Transfer-Encoding: chunked\r\n",
    "Connection: close\r\n",
    "Retry-After: ",
    "Warning: 299 - \"x\"\r\n",
    "Date: Sat, 21 Nov 2026 01:35:58 GMT\r\n",
    "Content-Encoding: gzip\r\n",
    "5\r\nhello\r\n",
    "0\r\n\r\n",
    "ffffffffffffffff\r\n",
    "{\"type\":\"ADDED\",\"object\":",
    "{\"type\":\"BOOKMARK\",\"object\":",
    "{\"type\":\"ERROR\",\"object\":",
    "{\"type\":\"DELETED\",\"object\":",
    "{\"metadata\":{\"resourceVersion\":\"7\"}}}\n",
    "\"items\":[",
    "\"continue\":\"",
    "\"code\":410",
    "\"kind\":\"Status\"",
    "\"details\":{\"retryAfterSeconds\":",
    "\u{1e}",
    "null",
];

fn seeds() -> Vec<Vec<u8>> {
    let node = r#"{"metadata":{"name":"edge-1","uid":"u","resourceVersion":"7"},"spec":{"configSource":{"configMapRef":{"namespace":"n","name":"m","uid":"u"}}}}"#;
    let seed = |how: &[u8], text: &str| [how, text.as_bytes()].concat();
    vec![
        seed(b"rb", node),
        seed(b"pb", "{}"),
        seed(b"rc", node),
        seed(b"rr", "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\nRetry-After: 3\r\n\r\n{}"),
        seed(
            b"rs",
            r#"{"kind":"Status","reason":"TooManyRequests","message":"slow down","details":{"retryAfterSeconds":5},"code":429}"#,
        ),
        seed(
            b"rr",
            "HTTP/1.1 200 OK\r\nWarning: 299 - \"old\"\r\nDate: Sat, 21 Nov 2026 01:35:58 GMT\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        ),
        seed(b"lb", &format!("{{\"metadata\":{{\"resourceVersion\":\"9\"}},\"items\":[{node}]}}")),
        seed(
            b"lb",
            &format!(
                "{{\"metadata\":{{\"resourceVersion\":\"9\",\"continue\":\"t\"}},\"items\":null}}\u{1e}{{\"metadata\":{{\"resourceVersion\":\"9\"}},\"items\":[{node}]}}"
            ),
        ),
        seed(
            b"wc",
            &format!(
                "{{\"type\":\"ADDED\",\"object\":{node}}}\n{{\"type\":\"BOOKMARK\",\"object\":{{\"metadata\":{{\"resourceVersion\":\"12\"}}}}}}\n\u{1e}{{\"type\":\"DELETED\",\"object\":{node}}}\n"
            ),
        ),
        seed(
            b"wc",
            "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,\"reason\":\"Expired\"}}\n",
        ),
        seed(b"ic", &format!("{{\"type\":\"ADDED\",\"object\":{node}}}\n{{\"type\":\"MODIFIED\",\"obj")),
        seed(b"wr", "HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n"),
        seed(b"xr", "HTTP/1.1 200 Connection established\r\n\r\n"),
        seed(b"xr", "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"),
        seed(b"xr", "HTTP/1.0 200 OK\r\n\r\n\x16\x03\x03\x00\x02\x02\x28"),
    ]
}

/// A certificate authority.
pub(crate) struct Authority {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate for 127.0.0.1 and its key.
pub(crate) struct Identity {
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().expect("the machine has random numbers");
        let mut params = CertificateParams::new(Vec::new()).expect("no names are good names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate without oddities");
        Self { pem: certificate.pem(), issuer: Issuer::new(params, key) }
    }

    pub(crate) fn identity(&self) -> Identity {
        let key = KeyPair::generate().expect("the machine has random numbers");
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address is a good name");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate without oddities");
        Identity { certificate_pem: certificate.pem(), key_pem: key.serialize_pem(), certificate, key }
    }
}

/// The answers to the next connections; further connections are closed at once.
type Answers = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// A server and a proxy on loopback, and clients of both.
struct Stage {
    answers: Answers,
    direct: Arc<Api>,
    proxied: Arc<Api>,
    // holds the kubeconfigs, which the client checks again for every request
    _folder: Scratch,
}

thread_local! {
    static STAGE: Stage = Stage::new();
}

impl Stage {
    fn new() -> Self {
        let authority = Authority::new();
        let identity = authority.identity();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(identity.key.serialize_der()));
        let tls = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has them")
            .with_no_client_auth()
            .with_single_cert(vec![identity.certificate.der().clone()], key)
            .expect("the key belongs to the certificate");
        let tls = Arc::new(tls);
        let answers = Answers::default();
        let server = listen(&answers, move |socket, answer| serve(socket, &tls, answer));
        let proxy = listen(&answers, serve_plain);
        let folder = crate::scratch("server");
        fs::write(folder.path().join("ca.crt"), &authority.pem).expect("the scratch folder is ours");
        let api = |name: &str, more: &str| {
            let path = folder.path().join(name);
            let text = format!(
                "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nclusters:\n- name: k\n  cluster: {{server: 'https://{server}', certificate-authority: ca.crt{more}}}\nusers: [{{name: u, user: {{token: a-token}}}}]\n"
            );
            fs::write(&path, text).expect("the scratch folder is ours");
            let options = ApiOptions {
                kubeconfig: path,
                own: None,
                clock: system_clock(),
                proxies: ProxyEnvironment::default(),
            };
            Api::open(options).expect("the kubeconfig is ours")
        };
        let direct = api("direct", "");
        let proxied = api("proxied", &format!(", proxy-url: 'http://{proxy}'"));
        Self { answers, direct, proxied, _folder: folder }
    }
}

/// Accepts on a separate thread; each connection has one too, because the client may keep one open while it
/// dials the next.
fn listen(answers: &Answers, serve: impl Fn(TcpStream, Vec<u8>) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound");
    let (answers, serve) = (Arc::clone(answers), Arc::new(serve));
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let answer = answers.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            if let Some(answer) = answer {
                let _ = socket.set_nodelay(true);
                let _ = socket.set_read_timeout(Some(DEADLINE));
                let serve = Arc::clone(&serve);
                thread::spawn(move || serve(socket, answer));
            }
        }
    });
    address
}

fn serve(socket: TcpStream, tls: &Arc<ServerConfig>, answer: Vec<u8>) {
    let Ok(session) = ServerConnection::new(Arc::clone(tls)) else { return };
    let mut stream = StreamOwned::new(session, socket);
    // the client may leave early
    let _ = read_request(&mut stream);
    let _ = stream.write_all(&answer);
    stream.conn.send_close_notify();
    let _ = stream.flush();
    let _ = stream.sock.shutdown(Shutdown::Write);
    let _ = stream.sock.read(&mut [0; 64]);
}

fn serve_plain(mut socket: TcpStream, answer: Vec<u8>) {
    let _ = read_request(&mut socket);
    let _ = socket.write_all(&answer);
    let _ = socket.shutdown(Shutdown::Write);
    while socket.read(&mut [0; 1024]).is_ok_and(|amount| amount > 0) {}
}

/// Reads a request to its end: closing before that would reset the connection, and the answer might be lost.
fn read_request(stream: &mut impl Read) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 1024];
        let amount = stream.read(&mut piece)?;
        bytes.extend_from_slice(&piece[..amount]);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            if amount == 0 {
                return Ok(());
            }
            continue;
        };
        let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        if bytes.len() >= end + 4 + length.unwrap_or(0) || amount == 0 {
            return Ok(());
        }
    }
}

fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (request, form) = (input.byte(), input.byte());
    let answers = input.remainder().splitn(3, |byte| *byte == SEPARATOR).map(|body| answer_of(form, body));
    STAGE.with(|stage| {
        *stage.answers.lock().unwrap_or_else(PoisonError::into_inner) = answers.collect();
        match request {
            b'l' => ask_for_a_list(&stage.direct),
            b'w' => ask_for_a_watch(&stage.direct, WatchFrom::Version("5".into())),
            b'i' => ask_for_a_watch(&stage.direct, WatchFrom::Initial),
            b'x' => ask(&stage.proxied, &Request::get("/version", DEADLINE)),
            b'p' => {
                let body = b"{\"status\":{}}".to_vec();
                let path = "/api/v1/nodes/edge-1/status";
                let request =
                    Request::patch(path, STRATEGIC_MERGE_PATCH, body, DEADLINE).with_smallest_answer();
                ask(&stage.direct, &request);
            }
            _ => ask(&stage.direct, &Request::get("/api/v1/nodes/edge-1", DEADLINE)),
        }
    });
}

fn answer_of(form: u8, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = match form {
        b'b' => {
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n")
        }
        b's' => format!("HTTP/1.1 422 Unprocessable Entity\r\nContent-Length: {length}\r\n\r\n"),
        b'c' => {
            let end = b"\r\n0\r\n\r\n";
            let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{length:x}\r\n");
            // a chunk without bytes ends the body
            let end = if length == 0 { &b"\r\n"[..] } else { &end[..] };
            return [head.as_bytes(), body, end].concat();
        }
        _ => String::new(),
    };
    [head.as_bytes(), body].concat()
}

fn ask(api: &Arc<Api>, request: &Request) {
    match api.stream("fuzz").request(request) {
        Err(error) => check_error(&error),
        Ok(response) => {
            assert!((200..300).contains(&response.status), "{}", response.status);
            assert!(response.body.len() <= request.response_limit_bytes);
            assert!(response.warnings.len() <= 8 && response.warnings.iter().all(|text| text.len() <= 600));
            if let Err(error) = response.json::<Node>() {
                check_error(&error);
            }
            if let Err(error) = response.json::<ConfigMap>() {
                check_error(&error);
            }
        }
    }
}

fn ask_for_a_list(api: &Arc<Api>) {
    match list(
        &api.stream("fuzz"),
        ("/api/v1/nodes", "Node"),
        "fieldSelector=metadata.name%3Dedge-1",
        DEADLINE,
    ) {
        Err(error) => check_error(&error),
        Ok(listed) => {
            assert!(!listed.resource_version.is_empty() && listed.items.len() <= MAX_LISTED);
            listed.items.into_iter().for_each(read);
        }
    }
}

fn ask_for_a_watch(api: &Arc<Api>, from: WatchFrom) {
    let limits = WatchLimits { open: DEADLINE, idle: DEADLINE, line_bytes: 64 * 1024, receiving: DEADLINE };
    let mut events = 0;
    let end = watch(&api.stream("fuzz"), "/api/v1/nodes", "", from, limits, |event| {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
                read(object)
            }
            WatchEvent::Bookmark(version) => assert!(!version.is_empty()),
            WatchEvent::Opened { .. } | WatchEvent::Receiving => {}
            WatchEvent::Called(ids) => assert!(!ids.is_empty()),
        }
        events += 1;
        if events < EVENTS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    match end {
        WatchEnd::Failed { error, resume } => {
            check_error(&error);
            assert_ne!(resume.as_deref(), Some(""), "an empty version to resume from");
        }
        WatchEnd::Stopped { .. } => assert_eq!(events, EVENTS),
        WatchEnd::Ended { resume } => {
            assert_ne!(resume.as_deref(), Some(""), "an empty version to resume from");
        }
        WatchEnd::Expired => {}
        WatchEnd::Cancelled => panic!("nobody cancelled it"),
    }
}

/// Reads an object of a watch as the agent does.
fn read(object: Value) {
    let _ = serde_json::from_value::<Node>(object);
}

/// An error is one line of text, whatever the server sent, and never a timeout: the server answers at once.
fn check_error(error: &NetError) {
    let text = error.to_string();
    assert!(!text.is_empty() && text.len() <= ERROR_BYTES, "{} bytes: {text}", text.len());
    assert!(!text.chars().any(char::is_control), "a control character in {text:?}");
    assert!(
        !text.contains("no answer in time") && !text.contains("silent for too long"),
        "the client waited: {text}"
    );
    assert_ne!(*error, NetError::Cancelled);
}
