use super::*;
use crate::flags::{self, Command};
use std::ffi::OsString;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn node() -> Arc<Node> {
    let words = ["kedge", "agent", "--kubeconfig", "/nowhere", "--run-dir", "/nowhere"];
    match flags::parse(words.map(OsString::from)) {
        Ok(Command::Agent(agent)) => Arc::new(Node { agent: *agent }),
        other => panic!("{other:?}"),
    }
}

/// The whole answer to a request.
async fn asked(request: &str) -> String {
    let (mut caller, stream) = tokio::io::duplex(1024);
    let exchange = async {
        caller.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        caller.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let (_, answer) = tokio::join!(serve(Box::new(stream), node()), exchange);
    answer
}

#[track_caller]
fn check(answer: &str, begin: &str, end: &str) {
    assert!(answer.starts_with(begin) && answer.ends_with(end), "{answer}");
}

#[tokio::test]
async fn unknown_path_and_method_are_refused() {
    check(&asked("GET /x/%41 HTTP/1.1\r\n\r\n").await, "HTTP/1.1 404 ", "no such path: /x/A");
    check(&asked("PUT /healthz HTTP/1.1\r\n\r\n").await, "HTTP/1.1 405 ", "PUT is not served here");
}

#[tokio::test]
async fn port_of_a_pod_is_refused_off_its_network() {
    let upgrade = "HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: kedge-pod-port\r\n\r\n";
    let port = async |of: &str| asked(&format!("GET /podPort/{of} {upgrade}")).await;
    check(&asked("GET /podPort/u/10.0.0.2/80 HTTP/1.1\r\n\r\n").await, "HTTP/1.1 400 ", "kedge-pod-port");
    check(&port("u/127.0.0.1/80").await, "HTTP/1.1 400 ", "address not allowed: 127.0.0.1");
    check(&port("u/%3A%3A1/80").await, "HTTP/1.1 400 ", "address not allowed: ::1");
    check(&port("u/169.254.169.254/80").await, "HTTP/1.1 400 ", "address not allowed: 169.254.169.254");
    for wrong in ["u/10.0.0.2/0", "u/10.0.0.2/65536", "u/name/80"] {
        check(&port(wrong).await, "HTTP/1.1 400 ", "is no address with a port");
    }
    // a pod that is not here, also by a name that leads elsewhere
    for absent in ["u/10.0.0.2/80", "..%2F..%2Fetc/10.0.0.2/80"] {
        check(&port(absent).await, "HTTP/1.1 503 ", "");
    }
}

/// Where kubectl would read it as one, its user would see no reason.
#[tokio::test]
async fn refused_upgrade_has_a_text_that_is_no_yaml_mapping() {
    let upgrade = "HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
    for path in
        ["/x", "/exec/n/p/c?command=true", "/exec/n/p/c", "/portForward/n/p", "/exec/n/p/c?command=a%3A+b"]
    {
        let answer = asked(&format!("GET {path} {upgrade}")).await;
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 4") && text.len() > 9, "{answer}");
        assert!(!text.contains(": ") && !text.contains(":\n") && !text.ends_with(':'), "{path}: {text}");
    }
}

#[tokio::test]
async fn head_that_is_no_http_or_too_large_is_refused() {
    check(&asked("GET /%4 HTTP/1.1\r\n\r\n").await, "HTTP/1.1 400 ", "must be");
    check(&asked("nonsense\r\n\r\n").await, "HTTP/1.1 400 ", "");
    let large = format!("GET / HTTP/1.1\r\na: {}", "x".repeat(70_000));
    let (mut caller, stream) = tokio::io::duplex(1024);
    let mut answer = [0; 12];
    let sending = async {
        let _ = caller.write_all(large.as_bytes()).await;
    };
    let serving = serve(Box::new(stream), node());
    tokio::pin!(serving, sending);
    tokio::select! {
        done = &mut serving => done.unwrap(),
        () = sending => unreachable!("more is read than may be"),
    }
    caller.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 431");
}

#[tokio::test]
async fn agent_that_does_not_run_is_named() {
    let answer = asked("GET /configz HTTP/1.1\r\n\r\n").await;
    check(&answer, "HTTP/1.1 503 ", "");
    assert!(answer.contains("no agent runs here"), "{answer}");
}

#[tokio::test]
async fn stream_taken_over_begins_after_the_head() {
    let (mut caller, stream) = tokio::io::duplex(1024);
    caller.write_all(b"GET /exec/a?command=b+c&command=d HTTP/1.1\r\nUpgrade: x\r\n\r\nearly").await.unwrap();
    let (request, exchange) = http::receive(Box::new(stream)).await.unwrap().unwrap();
    assert_eq!(request.params("command").collect::<Vec<_>>(), ["b c", "d"]);
    assert_eq!(request.header("upgrade"), Some("x"));
    let mut stream = exchange.take_over(&[("Upgrade", "x")]).await.unwrap();
    caller.write_all(b" late").await.unwrap();
    let mut sent = [0; 10];
    stream.read_exact(&mut sent).await.unwrap();
    assert_eq!(&sent, b"early late");
    stream.write_all(b"raw").await.unwrap();
    drop(stream);
    let mut answer = String::new();
    caller.read_to_string(&mut answer).await.unwrap();
    check(&answer, "HTTP/1.1 101 ", "Upgrade: x\r\n\r\nraw");
}

#[tokio::test]
async fn body_that_breaks_off_has_no_last_chunk() {
    for is_whole in [true, false] {
        let (mut caller, stream) = tokio::io::duplex(1024);
        caller.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let (_, exchange) = http::receive(Box::new(stream)).await.unwrap().unwrap();
        let mut body = exchange.stream("text/plain").await.unwrap();
        body.write(b"").await.unwrap();
        body.write(b"one\n").await.unwrap();
        if is_whole {
            body.end().await.unwrap();
        } else {
            drop(body);
        }
        let mut answer = String::new();
        caller.read_to_string(&mut answer).await.unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        assert_eq!(body, if is_whole { "4\r\none\n\r\n0\r\n\r\n" } else { "4\r\none\n\r\n" });
    }
}
