//! Probes against servers of this process.

use super::*;
use kedge_core::pods::HttpCheck;
use std::future::Future;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// A test that has not ended by then has failed.
const LIMIT: Duration = Duration::from_secs(60);
/// The timeout of a probe that should time out.
const SHORT: Duration = Duration::from_millis(100);

fn on_runtime<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// A server that sends this answer on each connection, after it has read something; returns its port. `{}` in
/// the answer is that port.
async fn server(answer: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let _ = socket.read(&mut request).await;
            let _ = socket.write_all(answer.replace("{}", &port.to_string()).as_bytes()).await;
            // an answer that is incomplete keeps its connection open
            if !answer.contains("\r\n\r\n") {
                held.push(socket);
            }
        }
    });
    port
}

fn check(port: u16, path: &str) -> HttpCheck {
    HttpCheck { is_https: false, host: "127.0.0.1".into(), port, path: path.into(), headers: vec![] }
}

async fn probe(check: HttpCheck, limit: Duration) -> ProbeOutcome {
    let tls = || stream::unverified_tls().map_err(|error| error.to_string());
    http::probe(&check, Instant::now() + limit, &tls).await
}

#[test]
fn answers_are_judged_as_upstream_does() {
    on_runtime(async {
        let failed = |why: &str| ProbeOutcome::Failed(why.to_owned());
        for (answer, expect) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", ProbeOutcome::Passed),
            ("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.0 204 No Content\r\n\r\n", ProbeOutcome::Passed),
            ("HTTP/1.1 500 Broken\r\n\r\nsecret", failed("HTTP probe failed with statuscode: 500")),
            (
                "HTTP/1.1 302 Found\r\nLocation: http://example.org/\r\n\r\naway",
                ProbeOutcome::Warned("Probe terminated redirects, Response body: away".into()),
            ),
            (
                "HTTP/1.1 302 Found\r\nLocation: /again\r\n\r\n",
                failed("Get \"http://127.0.0.1:{}/again\": stopped after 10 redirects"),
            ),
            (
                "no HTTP\r\n\r\n",
                failed("Get \"http://127.0.0.1:{}/\": malformed HTTP response: invalid HTTP version"),
            ),
        ] {
            let port = server(answer).await;
            let found = probe(check(port, "/"), LIMIT).await;
            let expect = match expect {
                ProbeOutcome::Failed(why) => ProbeOutcome::Failed(why.replace("{}", &port.to_string())),
                other => other,
            };
            assert_eq!(found, expect, "{answer:?}");
        }
    });
}

#[test]
fn server_that_hangs_fails_the_probe_at_its_timeout() {
    on_runtime(async {
        let port = server("HTTP/1.1 200 OK\r\n").await;
        let expect = format!(
            "Get \"http://127.0.0.1:{port}/\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        );
        assert_eq!(probe(check(port, "/"), SHORT).await, ProbeOutcome::Failed(expect));
    });
}

#[test]
fn port_without_a_server_fails_the_probe() {
    on_runtime(async {
        // the port is taken, and nobody listens on it
        let taken = tokio::net::TcpSocket::new_v4().unwrap();
        taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = taken.local_addr().unwrap().port();
        let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
        assert_eq!(Stream::connect("127.0.0.1", port).await.err(), Some(refused.clone()));
        let expect = format!("Get \"http://127.0.0.1:{port}/\": {refused}");
        assert_eq!(probe(check(port, "/"), LIMIT).await, ProbeOutcome::Failed(expect));
    });
}

#[test]
fn certificate_of_nobody_is_taken() {
    let made = rcgen::generate_simple_self_signed(["nobody".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let (mut socket, _) = listener.accept().unwrap();
        let mut server = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream = rustls::Stream::new(&mut server, &mut socket);
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
    });
    let outcome = on_runtime(probe(HttpCheck { is_https: true, ..check(port, "/") }, LIMIT));
    assert_eq!(outcome, ProbeOutcome::Passed);
}

/// A gRPC server's frames after the request: SETTINGS, PING, HEADERS, a message with this status, HEADERS at
/// the end.
fn frames(status: u8) -> Vec<u8> {
    let frame = |kind, flags, stream, payload: &[u8]| {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
    };
    let message = [0, 0, 0, 0, 2, 8, status];
    [
        frame(4, 0, 0, &[]),
        frame(6, 0, 0, &[7; 8]),
        frame(1, 4, 1, &[0x88]),
        frame(0, 0, 1, &message),
        frame(1, 5, 1, &[]),
    ]
    .concat()
}

#[test]
fn grpc_health_is_what_the_message_says() {
    on_runtime(async {
        for (status, expect) in [
            (1, ProbeOutcome::Passed),
            (2, ProbeOutcome::Failed("service unhealthy (responded with \"NOT_SERVING\")".into())),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = tokio::spawn(async move {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4096];
                let length = socket.read(&mut request).await.unwrap();
                for byte in frames(status) {
                    socket.write_all(&[byte]).await.unwrap();
                }
                let mut rest = Vec::new();
                socket.read_to_end(&mut rest).await.unwrap();
                request.truncate(length);
                [request, rest].concat()
            });
            assert_eq!(grpc::check("127.0.0.1", port, "db").await, expect);
            let received = server.await.unwrap();
            let has = |bytes: &[u8]| received.windows(bytes.len()).any(|window| window == bytes);
            assert!(has(b"/grpc.health.v1.Health/Check") && has(&[0x0a, 2, b'd', b'b']));
            assert!(has(&[0, 0, 0, 4, 1, 0, 0, 0, 0]) && has(&[7; 8]), "SETTINGS and PING are acknowledged");
        }
        let port = server("HTTP/1.1 400 Bad Request\r\n\r\n").await;
        let outcome = grpc::check("127.0.0.1", port, "").await;
        assert!(
            matches!(&outcome, ProbeOutcome::Failed(why) if why.contains("does not speak HTTP/2")),
            "{outcome:?}"
        );
    });
}

#[test]
fn programs_are_judged_by_their_end() {
    let command = ["cat", "/tmp/health"].map(String::from);
    let of = |done| of_exec(&command, Duration::from_secs(1), done);
    let ended = |code, output: &str| Ok(ExecEnd::Ended { code, output: output.into() });
    assert_eq!(of(ended(0, "x")), Some(ProbeOutcome::Passed));
    assert_eq!(of(ended(1, "no file\n")), Some(ProbeOutcome::Failed("no file\n".into())));
    let timed_out = "command \"cat /tmp/health\" timed out after 1s";
    assert_eq!(of(Ok(ExecEnd::TimedOut)), Some(ProbeOutcome::Failed(timed_out.into())));
    assert_eq!(of(Err("no crun".into())), Some(ProbeOutcome::Errored("no crun".into())));
    assert_eq!(of(Ok(ExecEnd::Stopped)), None);
}
