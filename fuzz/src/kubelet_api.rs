//! Callers of the kubelet's API: any bytes give a request, a refusal or nothing, and the bytes after the head
//! are not changed.

use crate::Target;
use kedge::kubelet_api::{MAX_HEAD_BYTES, receive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

pub(crate) const TARGET: Target =
    Target { name: "kubelet_api", run, seeds, words: WORDS, longest_bytes: 4096, mutations: 2000 };

/// More than any input and its answer: neither side waits.
const PIPE_BYTES: usize = 1 << 20;

const WORDS: &[&str] = &[
    "GET ",
    "POST ",
    " HTTP/1.1\r\n",
    "\r\n\r\n",
    "Host: node\r\n",
    "Connection: Upgrade\r\n",
    "Upgrade: websocket\r\n",
    "Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n",
    "/containerLogs/",
    "/exec/",
    "/pods",
    "?tailLines=",
    "&follow=true",
    "&command=",
    "%2F",
    "%00",
    "%",
    "&",
    "=",
    "+",
    "http://h/",
];

fn seeds() -> Vec<Vec<u8>> {
    [
        "GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n",
        "GET /containerLogs/default/web/main?tailLines=10&timestamps=true HTTP/1.1\r\n\r\n",
        "POST /exec/default/web/main?command=sh&command=-c&command=a+b%20c&input=1 HTTP/1.1\r\nUpgrade: websocket\r\n\r\n\u{82}",
        "GET /exec/default/web/uid/main?command HTTP/1.1\r\n\r\n",
        "GET http://node/pods HTTP/1.0\r\nA: b\r\n c: d\r\n\r\n",
        "GET /%zz?%=% HTTP/1.1\r\n\r\n",
        "\r\n\r\nGET / HTTP/1.1\n\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

thread_local! {
    static RUNTIME: Runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
}

fn run(data: &[u8]) {
    RUNTIME.with(|runtime| runtime.block_on(ask(data)));
}

async fn ask(data: &[u8]) {
    let (mut caller, node) = tokio::io::duplex(PIPE_BYTES);
    caller.write_all(data).await.expect("there is room");
    caller.shutdown().await.expect("the pipe is there");
    let received = receive(Box::new(node)).await.expect("the pipe does not break");
    let Some((request, exchange)) = received else {
        let mut answer = Vec::new();
        caller.read_to_end(&mut answer).await.expect("the pipe does not break");
        let is_refusal = answer.starts_with(b"HTTP/1.1 400 ") || answer.starts_with(b"HTTP/1.1 431 ");
        assert!(answer.is_empty() || is_refusal, "{:?}", String::from_utf8_lossy(&answer));
        return;
    };
    assert!(!request.method.is_empty() && !request.path.is_empty(), "{request:?}");
    for (name, _) in &request.headers {
        assert!(request.header(name).is_some(), "{name:?} is found again");
    }
    for (name, _) in &request.query {
        assert!(request.params(name).next() == request.param(name), "{name:?}");
    }
    let mut stream = exchange.take_over(&[("Upgrade", "websocket")]).await.expect("there is room");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.expect("the pipe does not break");
    assert!(data.ends_with(&rest), "what follows the head is as it was sent");
    assert!(data.len() - rest.len() <= MAX_HEAD_BYTES + 2048, "a head of {} bytes", data.len() - rest.len());
}
