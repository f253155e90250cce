//! Requests against a real TLS server on loopback: the bytes that are sent, the error of every outcome, and
//! the next step.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod net_server;

use kedge::net::credentials::ApiOptions;
use kedge::net::error::NetError;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use kedge::net::client::{Api, MERGE_PATCH, Request, Response, is_contact};
use kedge::net::kubeconfig::ReadFile;
use kedge::net::proxy::ProxyEnvironment;
use kedge::net::transport::{WallClock, system_clock};
use kedge_core::pods::ApiServer;
use kedge_platform::linux::read_named_file;
use net_server::*;

fn get(path: &str) -> Request {
    Request::get(path, PLENTY)
}

fn shown(outcome: &Result<Response, NetError>) -> String {
    match outcome {
        Ok(response) => format!("{} {}", response.status, String::from_utf8_lossy(&response.body)),
        Err(error) => error.to_string(),
    }
}

/// A file on a disk that hangs for as long as the test wants.
struct SlowFile {
    name: &'static str,
    /// Whether it is held, and how many wait for it.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl SlowFile {
    fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self { name, state: Mutex::default(), changed: Condvar::new() })
    }

    fn reader(self: &Arc<Self>) -> Arc<ReadFile> {
        let slow = Arc::clone(self);
        Arc::new(move |path, limit| {
            if path.ends_with(slow.name) {
                slow.pass();
            }
            read_named_file(path, limit)
        })
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        while state.0 {
            state = self.changed.wait(state).unwrap();
        }
        state.1 -= 1;
    }

    fn hold(&self) {
        self.state.lock().unwrap().0 = true;
    }

    fn free(&self) {
        self.state.lock().unwrap().0 = false;
        self.changed.notify_all();
    }

    fn wait_for_reader(&self) {
        let nobody = |state: &mut (bool, usize)| state.1 == 0;
        let (_state, waited) =
            self.changed.wait_timeout_while(self.state.lock().unwrap(), PLENTY, nobody).unwrap();
        assert!(!waited.timed_out(), "{} is never read", self.name);
    }
}

#[track_caller]
fn assert_shown(outcome: &Result<Response, NetError>, expect: &str) {
    let found = shown(outcome);
    assert!(found.contains(expect), "expected {expect:?}, found {found:?}");
}

#[test]
fn request_with_client_certificate_is_answered() {
    let authority = Authority::new("ca");
    let server = Server::start(&authority, |_| {
        let headers = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nWarning: 299 - \"old field\"\r\n";
        Reply::AnswerWith(200, headers, r#"{"kind":"Node"}"#.to_owned())
    });
    let bench = Bench::new(&authority, server.address);
    let outcome = bench.client.request(&get("/api/v1/nodes/edge-1"));
    assert!(is_contact(&outcome));
    let response = outcome.unwrap();
    assert_eq!(response.date_unix_secs, Some(784_111_777));
    assert_eq!(response.warnings, ["old field"]);
    assert_eq!(response.json::<serde_json::Value>().unwrap()["kind"], "Node");
    let error = response.json::<u32>().unwrap_err().to_string();
    assert!(error.contains("/api/v1/nodes/edge-1: the answer is not the JSON that is expected"), "{error}");
}

#[test]
fn only_needed_headers_are_sent() {
    let authority = Authority::new("ca");
    let server = Server::start(&authority, |_| Reply::ok("{}"));
    let bench = Bench::new(&authority, server.address);
    bench.client.request(&get("/x")).unwrap();
    let patch = Request::patch("/y", MERGE_PATCH, b"{\"a\":1}".to_vec(), PLENTY).with_smallest_answer();
    bench.client.request(&patch).unwrap();
    let heard = server.counts.heard();
    let user_agent = concat!("user-agent: kedge/", env!("CARGO_PKG_VERSION"));
    // the first request of a connection tells two machines with one credential apart
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().replace('-', "");
    let boot = format!("kedge-boot: {}", &boot[..16]);
    let host = format!("host: {}", server.address);
    assert_eq!(sorted(&heard[0].headers), [host.as_str(), boot.as_str(), user_agent]);
    let expected = format!(
        "host: {}\r\naccept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1\r\n\
         content-type: application/merge-patch+json\r\nprefer: return=minimal\r\ncontent-length: 7\r\n{user_agent}",
        server.address
    );
    assert_eq!(sorted(&heard[1].headers), sorted(&expected));
    assert_eq!((heard[1].method.as_str(), heard[1].body.as_str()), ("PATCH", "{\"a\":1}"));
}

fn sorted(headers: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = headers.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn lease_renewal_is_small() {
    let authority = Authority::new("ca");
    let server = Server::start(&authority, |_| Reply::Raw(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()));
    let bench = Bench::new(&authority, server.address);
    let body = br#"{"spec":{"renewTime":"2026-11-21T02:00:00.000000Z"}}"#.to_vec();
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/edge-1";
    let mut renewal = Request::patch(path, MERGE_PATCH, body, PLENTY);
    renewal.prefer_minimal = true;
    bench.client.request(&renewal).unwrap();
    let before = server.counts.bytes();
    bench.client.request(&renewal).unwrap();
    let after = server.counts.bytes();
    let (up, down) = (after.0 - before.0, after.1 - before.1);
    println!("one renewal on a kept connection, TLS records: {up} bytes up, {down} bytes down");
    // 22 bytes of TLS 1.3 record around one head and body: a second record would show here
    let heard = server.counts.heard().pop().unwrap();
    let plain = format!("PATCH {path} HTTP/1.1\r\n{}\r\n\r\n{}", heard.headers, heard.body);
    assert_eq!(up, plain.len() as u64 + 22);
    assert!(up < 350, "{up} bytes");
}

#[test]
fn requests_of_a_stream_share_connection_and_lookup() {
    let authority = Authority::new("ca");
    let server = Server::start(&authority, |heard| Reply::ok(&heard.path));
    let folder = Bench::with(
        &authority,
        &authority,
        &format!("https://hub.test:{}", server.address.port()),
        "",
        system_clock(),
    )
    .folder;
    let lookups = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&lookups);
    let api = Api::open_with_lookup(
        ApiOptions {
            own: None,
            kubeconfig: folder.join("kubeconfig"),
            clock: system_clock(),
            proxies: ProxyEnvironment::default(),
        },
        Arc::new(move |host, port| {
            assert_eq!(host, "hub.test");
            counted.fetch_add(1, Ordering::SeqCst);
            // no server listens on the first one
            Ok(vec![([127, 0, 0, 2], port).into(), ([127, 0, 0, 1], port).into()])
        }),
    )
    .unwrap();
    let client = api.stream("test");
    for path in ["/1", "/2", "/3"] {
        assert_shown(&client.request(&get(path)), &format!("200 {path}"));
    }
    assert_eq!((server.counts.connections(), client.dialled(), lookups.load(Ordering::SeqCst)), (1, 1, 1));
}

/// A load balancer whose server is gone: it accepts, and then resets the connection or sends nothing.
#[test]
fn second_address_serves_where_the_first_only_accepts() {
    let authority = Authority::new("ca");
    for is_silent in [false, true] {
        let server = Server::start(&authority, |heard| Reply::ok(&heard.path));
        let (first, second) = (TcpListener::bind("127.0.0.1:0").unwrap(), server.address);
        let bad = first.local_addr().unwrap();
        let accepted = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&accepted);
        thread::spawn(move || {
            let mut kept = Vec::new();
            for stream in first.incoming() {
                counted.fetch_add(1, Ordering::SeqCst);
                kept.extend(stream.ok().filter(|_| is_silent));
            }
        });
        let folder = Bench::with(&authority, &authority, "https://hub.test", "", system_clock()).folder;
        let options = ApiOptions {
            own: None,
            kubeconfig: folder.join("kubeconfig"),
            clock: system_clock(),
            proxies: ProxyEnvironment::default(),
        };
        let api = Api::open_with_lookup(options, Arc::new(move |_, _| Ok(vec![bad, second]))).unwrap();
        for stream in ["renew", "transfer", "watch-node"] {
            let request = Request::get("/x", Duration::from_secs(4));
            assert_shown(&api.stream(stream).request(&request), "200 /x");
        }
        assert_eq!(accepted.load(Ordering::SeqCst), 1, "it is remembered");
    }
}

#[test]
fn streams_resume_tls_sessions_of_each_other() {
    let authority = Authority::new("ca");
    let server = Server::start(&authority, |_| Reply::ok("{}"));
    let bench = Bench::new(&authority, server.address);
    bench.client.request(&get("/1")).unwrap();
    assert_eq!(server.counts.handshakes(), (1, 0));
    let full = server.counts.bytes();
    for name in ["watch-node", "watch-pods"] {
        bench.client.for_stream(name).request(&get("/2")).unwrap();
    }
    assert_eq!(server.counts.handshakes(), (1, 2));
    let all = server.counts.bytes();
    let resumed = ((all.0 - full.0) / 2, (all.1 - full.1) / 2);
    println!("first request with its handshake: {full:?} bytes up and down; the same resumed: {resumed:?}");
    assert!(resumed.0 + resumed.1 < full.0 + full.1);
}

#[test]
fn unverifiable_server_certificates_are_refused() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let year_1970: WallClock = Arc::new(|| Duration::from_secs(1000));
    let year_1970_but_built_later: WallClock = Arc::new(|| Duration::from_secs(1_790_000_000));
    let check = |identity: &Identity, clock: &WallClock, expect: &str| {
        let options =
            ServerOptions { listen: "127.0.0.1:0", identity, clients: None, versions: rustls::ALL_VERSIONS };
        let server = Server::start_with(&options, |_| Reply::ok("fine"));
        let url = format!("https://{}", server.address);
        let bench = Bench::with(&ours, &ours, &url, "", Arc::clone(clock));
        let outcome = bench.client.request(&get("/x"));
        assert_shown(&outcome, expect);
        let is_fine = outcome.is_ok();
        assert_eq!(matches!(outcome, Err(NetError::Untrusted { .. })), !is_fine, "{}", shown(&outcome));
        assert_eq!(is_contact(&outcome), is_fine);
        assert_eq!(
            server.counts.heard().len(),
            usize::from(is_fine),
            "nothing is sent before the server is verified"
        );
    };
    let names = &["127.0.0.1"];
    let now = system_clock();
    check(&ours.identity(names, NOW), &now, "200 fine");
    check(&other.identity(names, NOW), &now, "UnknownIssuer");
    check(&ours.identity(&["hub.test"], NOW), &now, "127.0.0.1");
    check(&ours.identity(names, (2000, 2010)), &now, "certificate expired");
    check(&ours.identity(names, NOW), &year_1970, "this node's clock may be wrong");
    check(&ours.identity(names, NOW), &year_1970_but_built_later, "200 fine");
}

#[test]
fn tls_server_name_overrides_the_address() {
    let authority = Authority::new("ca");
    let server = Server::start(&authority, |_| Reply::ok("fine"));
    let url = format!("https://{}", server.address);
    let check = |name: &str, expect: &str| {
        let cluster = format!(", tls-server-name: {name}");
        let bench = Bench::with(&authority, &authority, &url, &cluster, system_clock());
        assert_shown(&bench.client.request(&get("/x")), expect);
    };
    check("hub.test", "200 fine");
    check("other.test", "not valid for name");
}

#[test]
fn refused_client_certificate_is_reported() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    for versions in [&[&rustls::version::TLS13], &[&rustls::version::TLS12]] {
        let identity = ours.identity(&["127.0.0.1"], NOW);
        let options =
            ServerOptions { listen: "127.0.0.1:0", identity: &identity, clients: Some(&other), versions };
        let server = Server::start_with(&options, |_| Reply::ok("fine"));
        let bench = Bench::new(&ours, server.address);
        let outcome = bench.client.request(&get("/x"));
        assert_shown(&outcome, "the server does not accept our client certificate");
        assert!(matches!(outcome, Err(NetError::Unreachable { .. })));
        assert!(!is_contact(&outcome));
    }
}

#[test]
fn ipv6_and_tls_1_2_work() {
    let authority = Authority::new("ca");
    let identity = authority.identity(&["::1"], NOW);
    let options = ServerOptions {
        listen: "[::1]:0",
        identity: &identity,
        clients: Some(&authority),
        versions: &[&rustls::version::TLS12],
    };
    let server = Server::start_with(&options, |_| Reply::ok("fine"));
    let bench = Bench::new(&authority, server.address);
    assert_shown(&bench.client.request(&get("/x")), "200 fine");
    assert_eq!(server.counts.heard()[0].header("host"), Some(format!("[::1]:{}", server.address.port())));
}

#[test]
fn unreachable_server_is_named() {
    let authority = Authority::new("ca");
    let vacated = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let bench = Bench::new(&authority, vacated);
    let outcome = bench.client.request(&get("/x"));
    assert_shown(&outcome, &format!("GET https://{vacated}/x: connect to {vacated}: {vacated} refused"));
    assert!(matches!(outcome, Err(NetError::Unreachable { .. })));
    let url = "https://no-such-host.invalid";
    let bench = Bench::with(&authority, &authority, url, "", system_clock());
    assert_shown(&bench.client.request(&get("/x")), "look up no-such-host.invalid: ");
}

#[test]
fn half_dead_server_is_given_up_at_the_deadline() {
    let authority = Authority::new("ca");
    let deadline = Duration::from_millis(400);
    let check = |bench: &Bench, expect: &str| {
        let begun = Instant::now();
        let outcome = bench.client.request(&Request::get("/x", deadline));
        let took = begun.elapsed();
        assert!(took >= deadline && took < PLENTY / 2, "{took:?}");
        assert_shown(&outcome, expect);
        assert!(matches!(outcome, Err(NetError::Unreachable { .. })));
        assert!(!is_contact(&outcome));
    };
    // accepts (the kernel does) and never sends a byte of TLS
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    check(&Bench::new(&authority, listener.local_addr().unwrap()), "no answer in time");
    // takes the request and never answers; the next request does not use that connection
    let server = Server::start(&authority, |heard| match heard.path.as_str() {
        "/x" => Reply::Silence,
        path => Reply::ok(path),
    });
    let bench = Bench::new(&authority, server.address);
    assert_shown(&bench.client.request(&get("/before")), "200 /before");
    check(&bench, "no answer in time");
    assert_shown(&bench.client.request(&get("/after")), "200 /after");
    assert_eq!(server.counts.connections(), 2);
    // a name that does not resolve
    let (_keep, gone) = mpsc::channel::<()>();
    let gone = Mutex::new(gone);
    let options = ApiOptions {
        own: None,
        kubeconfig: KubeconfigText {
            server: "https://hub.test".into(),
            roots: &authority,
            cluster: String::new(),
            user: CERTIFICATE_USER.into(),
        }
        .write(&bench.folder),
        clock: system_clock(),
        proxies: ProxyEnvironment::default(),
    };
    let lookup = Arc::new(move |_: &str, _: u16| {
        let _ = gone.lock().unwrap().recv();
        Ok(Vec::new())
    });
    let api = Api::open_with_lookup(options, lookup).unwrap();
    let client = api.stream("test");
    check(
        &Bench { folder: Scratch::new("net").unwrap(), api, client },
        "look up hub.test: no answer in time",
    );
}

#[test]
fn trickling_answer_is_given_up_at_the_deadline() {
    let authority = Authority::new("ca");
    let check = |head: &'static str, expect: &str| {
        let server = Server::start(&authority, move |_| Reply::Trickle(head.as_bytes().to_vec()));
        let bench = Bench::new(&authority, server.address);
        let begun = Instant::now();
        let outcome = bench.client.request(&Request::get("/x", Duration::from_millis(500)));
        assert!(begun.elapsed() < PLENTY / 2, "{head}: {:?}", begun.elapsed());
        assert_shown(&outcome, expect);
    };
    check("HTTP/1.1 200 OK\r\nX: ", "no answer in time");
    check("HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n", "the answer broke off: no answer in time");
    check("HTTP/1.1 503 X\r\nContent-Length: 60000\r\n\r\n", "refused (503)");
    check("HTTP/1.0 200 OK\r\n\r\n", "the answer broke off: no answer in time");
    check(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n",
        "the answer broke off: no answer in time",
    );
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

#[test]
fn unusual_answers_are_read_as_they_are() {
    let authority = Authority::new("ca");
    let check_owned = |text: String, expect: &str| {
        let server = Server::start(&authority, move |_| Reply::Close(text.clone().into_bytes()));
        let bench = Bench::new(&authority, server.address);
        assert_shown(&bench.client.request(&get("/x")), expect);
    };
    let check = |text: &str, expect: &str| check_owned(text.to_owned(), expect);
    // no length: the end of the connection is the end of the answer
    check("HTTP/1.0 200 OK\r\n\r\nold", "200 old");
    check("HTTP/1.1 200 OK\r\n\r\nold", "200 old");
    // a redirect is not followed: our credentials would go elsewhere
    check(
        "HTTP/1.1 302 Found\r\nLocation: https://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        "refused (302)",
    );
    check("HTTP/1.1 307 X\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n", "refused (307)");
    // an encoding that the request did not offer is not decoded
    check("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nzip", "200 zip");
    check("HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "200 ok");
    check("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "200 ok");
    check("HTTP/1.1 101 Switching Protocols\r\n\r\n", "refused (101)");
    check("HTTP/1.1 204 No Content\r\n\r\n", "204 ");
    // chunks with the extensions that a proxy may add
    check_owned(format!("{CHUNKED}2;a=b\r\nok\r\n0\r\nX-Trailer: y\r\nX-Other: z\r\n\r\n"), "200 ok");
    check_owned(format!("{CHUNKED}00002\r\nok\r\n0\r\n\r\n"), "200 ok");
    // and with those that it may not
    check_owned(format!("{CHUNKED}fffffffffffffffffff\r\nok\r\n0\r\n\r\n"), "broke off");
    check_owned(format!("{CHUNKED}-2\r\nok\r\n0\r\n\r\n"), "broke off");
    check_owned(format!("{CHUNKED}{}\r\nok", "0".repeat(100_000)), "broke off");
    check_owned(format!("{CHUNKED}2\r\nok\r\n0\r\nX: {}", "y".repeat(100_000)), "broke off");
}

#[test]
fn truncated_answer_is_garbled_and_counts_as_contact() {
    let authority = Authority::new("ca");
    let check = |reply: fn() -> Reply, expect: &str, is_it_contact: bool| {
        let server = Server::start(&authority, move |_| reply());
        let bench = Bench::new(&authority, server.address);
        let mut request = get("/x");
        request.response_limit_bytes = 100;
        let outcome = bench.client.request(&request);
        assert_shown(&outcome, expect);
        // after this error the caller can ask for less
        let is_too_large = matches!(outcome, Err(NetError::TooLarge { limit: 100, .. }));
        assert_eq!(is_too_large, expect.contains("more than 100 bytes"), "{outcome:?}");
        assert!(is_too_large || matches!(outcome, Err(NetError::Garbled { .. })), "{outcome:?}");
        assert_eq!(is_contact(&outcome), is_it_contact, "{}", shown(&outcome));
    };
    let head = || b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"half".to_vec();
    check(
        move || Reply::Cut(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"half".to_vec()),
        "broke off",
        true,
    );
    check(
        move || Reply::Close(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"half".to_vec()),
        "broke off",
        true,
    );
    check(
        || Reply::Cut(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".to_vec()),
        "broke off",
        true,
    );
    check(|| Reply::ok(&"x".repeat(101)), "the answer has more than 100 bytes", true);
    check(|| Reply::Raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n".to_vec()), "not HTTP", false);
    check(
        || Reply::Raw(format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(20_000)).into_bytes()),
        "not HTTP",
        false,
    );
    // the same with a deadline instead of an end
    let server = Server::start(&authority, move |_| Reply::Raw(head()));
    let bench = Bench::new(&authority, server.address);
    let outcome = bench.client.request(&Request::get("/x", Duration::from_secs(1)));
    assert_shown(&outcome, "the answer broke off: no answer in time");
    assert!(is_contact(&outcome));
}

#[test]
fn dead_kept_connection_retries_idempotent_requests() {
    let authority = Authority::new("ca");
    let check = |request: Request, expect: &str, expected_requests: usize| {
        let seen = AtomicU64::new(0);
        // the second request on the first connection gets no answer
        let server = Server::start(&authority, move |heard| match seen.fetch_add(1, Ordering::SeqCst) {
            1 => Reply::Cut(Vec::new()),
            _ => Reply::ok(&heard.path),
        });
        let bench = Bench::new(&authority, server.address);
        bench.client.request(&get("/first")).unwrap();
        assert_shown(&bench.client.request(&request), expect);
        assert_eq!(server.counts.heard().len(), expected_requests);
        assert_shown(&bench.client.request(&get("/next")), "200 /next");
        assert_eq!(
            server.counts.handshakes(),
            (1, 1),
            "the new connection resumed the session of the dead one"
        );
    };
    check(get("/get"), "200 /get", 3);
    check(Request::patch("/patch", MERGE_PATCH, b"{}".to_vec(), PLENTY), "200 /patch", 3);
    check(Request::post("/post", b"{}".to_vec(), PLENTY), "closed by the other side", 2);
}

#[test]
fn broken_fresh_connection_is_not_retried() {
    let authority = Authority::new("ca");
    let server = Server::start(&authority, |_| Reply::Cut(Vec::new()));
    let bench = Bench::new(&authority, server.address);
    assert_shown(&bench.client.request(&get("/x")), "closed by the other side");
    assert_eq!(server.counts.connections(), 1);
}

#[test]
fn closed_kept_connection_is_not_used() {
    let authority = Authority::new("ca");
    let server = Server::start(&authority, |heard| {
        let body = &heard.path;
        Reply::Close(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes())
    });
    let bench = Bench::new(&authority, server.address);
    for path in ["/1", "/2"] {
        let outcome = bench.client.request(&Request::post(path, b"{}".to_vec(), PLENTY));
        assert_shown(&outcome, &format!("200 {path}"));
        // waits until the close that the server sent has arrived
        while server.counts.connections() == 0 {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.counts.heard().len(), 2);
}

#[test]
fn refusals_are_classified_by_status() {
    let authority = Authority::new("ca");
    let server = Server::start(&authority, |heard| match heard.path.as_str() {
        "/401" => Reply::status(401, "Unauthorized", "Unauthorized"),
        "/404" => Reply::status(404, "NotFound", "nodes x not found"),
        "/409" => Reply::status(409, "Conflict", "try again"),
        "/429" => Reply::AnswerWith(429, "Retry-After: 7\r\n", "{}".to_owned()),
        "/302" => Reply::AnswerWith(302, "Location: https://elsewhere.test/\r\n", String::new()),
        _ => Reply::Answer(503, "<html>over quota</html>".to_owned()),
    });
    let bench = Bench::new(&authority, server.address);
    let check = |path: &str, expect: &str, wait: Option<u64>, is_it_contact: bool| {
        let outcome = bench.client.request(&get(path));
        assert_shown(&outcome, expect);
        assert_eq!(is_contact(&outcome), is_it_contact, "{path}");
        match outcome.unwrap_err() {
            NetError::Refused { retry_after, .. } => assert_eq!(retry_after, wait.map(Duration::from_secs)),
            NetError::Unauthorized { .. } => assert_eq!(path, "/401"),
            other => panic!("{other}"),
        }
    };
    check("/401", "the server does not accept our credentials (401): Unauthorized", None, false);
    check("/404", "refused (404 NotFound): nodes x not found", None, true);
    check("/409", "refused (409 Conflict): try again", None, true);
    check("/429", "refused (429)", Some(7), true);
    check("/302", "refused (302)", None, true);
    check("/503", "refused (503): <html>over quota</html>", None, true);
    assert_eq!(server.counts.connections(), 1, "a refusal does not cost the connection");
}

#[test]
fn rotated_token_is_used_at_once() {
    let authority = Authority::new("ca");
    let identity = authority.identity(&["127.0.0.1"], NOW);
    let options = ServerOptions {
        listen: "127.0.0.1:0",
        identity: &identity,
        clients: None,
        versions: rustls::ALL_VERSIONS,
    };
    let server =
        Server::start_with(&options, |heard| Reply::ok(&heard.header("authorization").unwrap_or_default()));
    let folder = Scratch::new("net").unwrap();
    let kubeconfig = KubeconfigText {
        server: format!("https://{}", server.address),
        roots: &authority,
        cluster: String::new(),
        user: "tokenFile: token".to_owned(),
    }
    .write(&folder);
    let options =
        ApiOptions { kubeconfig, own: None, clock: system_clock(), proxies: ProxyEnvironment::default() };
    let bench = Bench::open(folder, options);
    let outcome = bench.client.request(&get("/x"));
    assert!(matches!(outcome, Err(NetError::Unsendable { .. })));
    assert_shown(&outcome, "/token does not exist");
    bench.folder.write("token", "first\n");
    assert_shown(&bench.client.request(&get("/x")), "200 Bearer first");
    bench.folder.write("token", "second\n");
    assert_shown(&bench.client.request(&get("/x")), "200 Bearer second");
    std::fs::remove_file(bench.folder.join("token")).unwrap();
    assert_shown(&bench.client.request(&get("/x")), "200 Bearer second");
    bench.folder.write("token", "two words");
    assert_shown(&bench.client.request(&get("/x")), "200 Bearer second");
    assert_eq!(server.counts.connections(), 1);
}

#[test]
fn blocking_token_file_delays_no_request() {
    let authority = Authority::new("ca");
    let identity = authority.identity(&["127.0.0.1"], NOW);
    let options = ServerOptions {
        identity: &identity,
        listen: "127.0.0.1:0",
        clients: None,
        versions: rustls::ALL_VERSIONS,
    };
    let server =
        Server::start_with(&options, |heard| Reply::ok(&heard.header("authorization").unwrap_or_default()));
    let folder = Scratch::new("net").unwrap();
    folder.write("token", "first");
    let kubeconfig = KubeconfigText {
        server: format!("https://{}", server.address),
        roots: &authority,
        cluster: String::new(),
        user: "tokenFile: token".to_owned(),
    }
    .write(&folder);
    let options =
        ApiOptions { kubeconfig, own: None, clock: system_clock(), proxies: ProxyEnvironment::default() };
    let slow = SlowFile::new("token");
    let api = Api::open_with_files(options, slow.reader()).unwrap();
    let bench = Bench { folder, client: api.stream("test"), api };
    assert_shown(&bench.client.request(&get("/x")), "200 Bearer first");
    slow.hold();
    bench.folder.write("token", "second");
    for _ in 0..20 {
        assert_shown(&bench.client.request(&get("/x")), "200 Bearer first");
    }
    slow.wait_for_reader();
    // and once the disk answers, the file's new content is used
    bench.folder.write("token", "third");
    slow.free();
    let end = Instant::now() + PLENTY;
    while shown(&bench.client.request(&get("/x"))) != "200 Bearer third" {
        assert!(Instant::now() < end, "the new token is never used");
    }
}

#[test]
fn changed_kubeconfig_is_used_unless_invalid() {
    let (authority, other) = (Authority::new("ca"), Authority::new("other"));
    let first = Server::start(&authority, |_| Reply::ok("first"));
    let second = Server::start(&other, |_| Reply::ok("second"));
    let bench = Bench::new(&authority, first.address);
    assert_shown(&bench.client.request(&get("/x")), "200 first");
    bench.folder.write("kubeconfig", "current-context: [");
    assert_shown(&bench.client.request(&get("/x")), "200 first");
    // one file after another, as people do it; each state in between is judged by itself
    let identity = other.identity(&["edge-1"], NOW);
    bench.folder.write("node.pem", &identity.certificate_pem);
    assert_shown(&bench.client.request(&get("/x")), "200 first");
    bench.folder.write("node.key", &identity.key_pem);
    KubeconfigText {
        server: format!("https://{}", second.address),
        roots: &other,
        cluster: String::new(),
        user: CERTIFICATE_USER.into(),
    }
    .write(&bench.folder);
    assert_shown(&bench.client.request(&get("/x")), "200 second");
    assert_eq!(bench.api.url(), format!("https://{}", second.address));
}

#[test]
fn routine_request_looks_at_the_files_after_a_failure() {
    let authority = Authority::new("ca");
    let is_down = Arc::new(AtomicBool::new(false));
    let down = is_down.clone();
    let first = Server::start(&authority, move |_| match down.load(Ordering::Relaxed) {
        true => Reply::status(503, "ServiceUnavailable", "gone"),
        false => Reply::ok("first"),
    });
    let second = Server::start(&authority, |_| Reply::ok("second"));
    let bench = Bench::new(&authority, first.address);
    let routine = Request { is_routine: true, ..get("/x") };
    assert_shown(&bench.client.request(&routine), "200 first");
    KubeconfigText {
        server: format!("https://{}", second.address),
        roots: &authority,
        cluster: String::new(),
        user: CERTIFICATE_USER.into(),
    }
    .write(&bench.folder);
    assert_shown(&bench.client.request(&routine), "200 first");
    is_down.store(true, Ordering::Relaxed);
    assert!(bench.client.request(&routine).is_err());
    assert_shown(&bench.client.request(&routine), "200 second");
}

/// A request composed for one server must reach no other, also if the kubeconfig changes in between.
#[test]
fn request_for_one_server_is_not_sent_to_another() {
    let authority = Authority::new("ca");
    let first = Server::start(&authority, |_| Reply::ok("first"));
    let second = Server::start(&authority, |_| Reply::ok("second"));
    let bench = Bench::new(&authority, first.address);
    let for_first = bench.client.for_server(0);
    assert_shown(&for_first.request(&get("/x")), "200 first");
    KubeconfigText {
        server: format!("https://{}", second.address),
        roots: &authority,
        cluster: String::new(),
        user: CERTIFICATE_USER.into(),
    }
    .write(&bench.folder);
    for _ in 0..2 {
        let why = "not sent: the kubeconfig names another API server now";
        assert_shown(&for_first.request(&get("/x")), why);
    }
    assert_eq!((first.counts.heard().len(), second.counts.heard().len()), (1, 0));
    assert_eq!(bench.api.server(), 1);
    assert_shown(&bench.client.for_server(1).request(&get("/x")), "200 second");
}

/// The first is away, the second has none of the authority's certificates, the kubeconfig's own is last.
#[test]
fn server_that_does_not_answer_is_left_for_the_next() {
    let (authority, stranger) = (Authority::new("ca"), Authority::new("stranger"));
    let own = Server::start(&authority, |_| Reply::ok("{}"));
    let wrong = Server::start(&stranger, |_| Reply::ok("{}"));
    let bench = Bench::new(&authority, own.address);
    let server = |port| ApiServer { host: "127.0.0.1".into(), port };
    // nothing listens on the port of a listener that is gone
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let options = ApiOptions {
        own: None,
        kubeconfig: bench.folder.join("kubeconfig"),
        clock: system_clock(),
        proxies: ProxyEnvironment::default(),
    };
    let api = Api::open_with_servers(options, &[server(gone), server(wrong.address.port())]).unwrap();
    let client = api.stream("test");
    assert_eq!(api.url(), format!("https://127.0.0.1:{gone}"));
    assert!(client.request(&get("/x")).is_err());
    while api.server() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(api.url(), format!("https://{}", own.address));
    assert_shown(&client.request(&get("/x")), "200 {}");
    assert!(wrong.counts.heard().is_empty(), "nothing is sent before the certificate is verified");
    // a request that was composed for the first server is not sent to another
    assert!(client.for_server(0).request(&get("/x")).is_err());
}

/// Authorities change in steps: the next one joins, then the former one goes.
#[test]
fn other_authorities_for_one_address_are_no_other_server() {
    let (former, next) = (Authority::new("former"), Authority::new("next"));
    let server = Server::start(&former, |_| Reply::ok("ok"));
    let bench = Bench::new(&former, server.address);
    let for_first = bench.client.for_server(0);
    assert_shown(&for_first.request(&get("/x")), "200 ok");
    let generation = bench.api.refresh();
    KubeconfigText {
        server: format!("https://{}", server.address),
        roots: &next,
        cluster: String::new(),
        user: CERTIFICATE_USER.into(),
    }
    .write(&bench.folder);
    assert!(for_first.request(&get("/x")).is_err(), "the server has no certificate of the next one yet");
    assert_ne!(bench.api.refresh(), generation, "streams begin anew");
    assert_eq!(bench.api.server(), 0);
}

#[test]
fn kubeconfig_is_used_once_its_files_exist() {
    let (authority, other) = (Authority::new("ca"), Authority::new("other"));
    let first = Server::start(&authority, |_| Reply::ok("first"));
    let second = Server::start(&other, |_| Reply::ok("second"));
    let bench = Bench::new(&authority, first.address);
    assert_shown(&bench.client.request(&get("/x")), "200 first");
    let identity = other.identity(&["edge-1"], NOW);
    let text = KubeconfigText {
        server: format!("https://{}", second.address),
        roots: &other,
        cluster: String::new(),
        user: "client-certificate: renewed.pem, client-key: renewed.key".into(),
    };
    text.write(&bench.folder);
    assert_shown(&bench.client.request(&get("/x")), "200 first");
    bench.folder.write("renewed.pem", &identity.certificate_pem);
    assert_shown(&bench.client.request(&get("/x")), "200 first");
    // the missing key file was not among the files known before, so their time stamps do not show that it is
    // there now
    bench.folder.write("renewed.key", &identity.key_pem);
    assert_shown(&bench.client.request(&get("/x")), "200 second");
}

#[test]
fn kubeconfig_changed_while_read_is_read_again() {
    let authority = Authority::new("ca");
    let first = Server::start(&authority, |_| Reply::ok("first"));
    let second = Server::start(&authority, |_| Reply::ok("second"));
    let Bench { folder, .. } = Bench::new(&authority, first.address);
    let kubeconfig = |server: &Server| KubeconfigText {
        server: format!("https://{}", server.address),
        roots: &authority,
        cluster: String::new(),
        user: CERTIFICATE_USER.into(),
    };
    // reading it takes long, after the kubeconfig has been read
    let slow = SlowFile::new("node.key");
    slow.hold();
    let options = ApiOptions {
        own: None,
        kubeconfig: folder.join("kubeconfig"),
        clock: system_clock(),
        proxies: ProxyEnvironment::default(),
    };
    let reader = slow.reader();
    let opening = thread::spawn(move || Api::open_with_files(options, reader).unwrap());
    slow.wait_for_reader();
    kubeconfig(&second).write(&folder);
    slow.free();
    let api = opening.join().unwrap();
    assert_eq!(api.url(), format!("https://{}", first.address));
    assert_shown(&api.stream("test").request(&get("/x")), "200 second");
}

#[test]
fn base_path_precedes_every_path() {
    let authority = Authority::new("ca");
    let server = Server::start(&authority, |heard| Reply::ok(&heard.path));
    let url = format!("https://{}/k8s/clusters/c-1/", server.address);
    let bench = Bench::with(&authority, &authority, &url, "", system_clock());
    assert_shown(&bench.client.request(&get("/api/v1?x=1")), "200 /k8s/clusters/c-1/api/v1?x=1");
    let outcome = bench.client.request(&get("api"));
    assert!(matches!(outcome, Err(NetError::Unsendable { .. })));
    let outcome = bench.client.request(&get("/with blank"));
    assert!(matches!(outcome, Err(NetError::Unsendable { .. })), "{outcome:?}");
}

#[test]
fn proxy_tunnels_tls() {
    let authority = Authority::new("ca");
    let server = Server::start(&authority, |_| Reply::ok("through"));
    let proxy = Proxy::start(server.address, None);
    let url = "https://hub.test:6443";
    // the kubeconfig's own proxy, with a user
    let cluster = format!(", proxy-url: 'http://me:pass@{}'", proxy.address);
    let bench = Bench::with(&authority, &authority, url, &cluster, system_clock());
    assert_shown(&bench.client.request(&get("/x")), "200 through");
    assert_shown(&bench.client.request(&get("/y")), "200 through");
    let heads = proxy.heard.lock().unwrap().clone();
    let user_agent = concat!("User-Agent: kedge/", env!("CARGO_PKG_VERSION"));
    let expected = format!(
        "CONNECT hub.test:6443 HTTP/1.1\r\nHost: hub.test:6443\r\n{user_agent}\r\nProxy-Authorization: Basic bWU6cGFzcw==\r\n\r\n"
    );
    assert_eq!(heads, [expected]);
    // the environment's
    let folder = Bench::with(&authority, &authority, url, "", system_clock()).folder;
    let open = |no_proxy: Option<&str>| {
        let proxies = ProxyEnvironment {
            https_proxy: Some(format!("http://{}", proxy.address)),
            no_proxy: no_proxy.map(str::to_owned),
        };
        let kubeconfig = folder.join("kubeconfig");
        let lookup = Arc::new(|_: &str, _: u16| Err(std::io::ErrorKind::NotFound.into()));
        Api::open_with_lookup(ApiOptions { kubeconfig, own: None, clock: system_clock(), proxies }, lookup)
            .unwrap()
    };
    assert_shown(&open(None).stream("test").request(&get("/x")), "200 through");
    assert_shown(&open(Some("hub.test")).stream("test").request(&get("/x")), "look up hub.test: ");
}

#[test]
fn refusing_proxy_is_named() {
    let authority = Authority::new("ca");
    let server = Server::start(&authority, |_| Reply::ok("through"));
    let check = |refusal: &'static str, expect: &str| {
        let proxy = Proxy::start(server.address, Some(refusal));
        let cluster = format!(", proxy-url: 'http://{}'", proxy.address);
        let bench = Bench::with(&authority, &authority, "https://hub.test", &cluster, system_clock());
        let outcome = bench.client.request(&get("/x"));
        assert!(matches!(outcome, Err(NetError::Unreachable { .. })));
        assert_shown(&outcome, &format!("open a tunnel through the proxy {}: {expect}", proxy.address));
    };
    check("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "it answered 407, expected 200");
    check("nonsense\r\n\r\n", "its answer is not HTTP");
    check("HTTP/1.1 200", "closed by the other side");
}

#[test]
fn cancelled_request_ends_wherever_it_waits() {
    let authority = Authority::new("ca");
    let check = |bench: &Bench, reached: &dyn Fn() -> bool| {
        let (client, cancel) = (bench.client.clone(), bench.client.cancel_handle());
        let waiting = thread::spawn(move || (client.request(&get("/x")), Instant::now()));
        while !reached() {
            thread::yield_now();
        }
        let cancelled = Instant::now();
        cancel.cancel();
        let (outcome, ended) = waiting.join().unwrap();
        assert_eq!(outcome.map(|response| response.status), Err(NetError::Cancelled));
        let took = ended.saturating_duration_since(cancelled);
        assert!(took < PLENTY / 2, "{took:?}");
        let again = bench.client.request(&get("/x"));
        assert_eq!(again.map(|response| response.status), Err(NetError::Cancelled));
    };
    // waiting for the answer
    let server = Server::start(&authority, |_| Reply::Silence);
    check(&Bench::new(&authority, server.address), &|| !server.counts.heard().is_empty());
    // waiting for the server's part of the handshake
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let accepted = Arc::new(AtomicU64::new(0));
    let address = listener.local_addr().unwrap();
    let counted = Arc::clone(&accepted);
    thread::spawn(move || {
        let kept = listener.accept().unwrap();
        counted.store(1, Ordering::SeqCst);
        thread::park();
        drop(kept);
    });
    check(&Bench::new(&authority, address), &|| accepted.load(Ordering::SeqCst) == 1);
    // waiting for a name
    let folder = Bench::with(&authority, &authority, "https://hub.test", "", system_clock()).folder;
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&asked);
    let options = ApiOptions {
        own: None,
        kubeconfig: folder.join("kubeconfig"),
        clock: system_clock(),
        proxies: ProxyEnvironment::default(),
    };
    let lookup = Arc::new(move |_: &str, _: u16| {
        counted.store(1, Ordering::SeqCst);
        thread::park();
        Ok(Vec::new())
    });
    let api = Api::open_with_lookup(options, lookup).unwrap();
    let client = api.stream("test");
    check(&Bench { folder, api, client }, &|| asked.load(Ordering::SeqCst) == 1);
}
