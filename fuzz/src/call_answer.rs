//! A node's answer to a request of the hub, on a connection that the node dialled: a complete body, or an
//! error that a client may see.
//!
//! The first byte chooses whether the request asks for an upgrade.

use crate::Target;
use kedge_hub::server::read_answer;
use tokio::io::AsyncWriteExt;
use tokio::runtime::Runtime;

pub(crate) const TARGET: Target =
    Target { name: "call_answer", run, seeds, words: WORDS, longest_bytes: 4096, mutations: 2000 };

/// More than any input and the request: neither side waits.
const PIPE_BYTES: usize = 1 << 20;
/// Longest text of a refusal: 10 KiB of the node's text, with up to three bytes for each, and the hub's own
/// words.
const ERROR_BYTES: usize = 3 * 10 * 1024 + 1024;

const WORDS: &[&str] = &[
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.1 101 \r\n",
    "HTTP/1.1 404 \r\n",
    "HTTP/1.1 999 \r\n",
    "Content-Length: ",
    "Content-Type: text/plain\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Upgrade: websocket\r\n",
    "Sec-WebSocket-Accept: ",
    "\r\n\r\n",
    "\r\n0\r\n\r\n",
    "ffffffffffffffff\r\n",
    "18446744073709551615",
    "5\r\nhello\r\n",
    ";",
];

fn seeds() -> Vec<Vec<u8>> {
    [
        "gHTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello",
        "gHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;x=y\r\n!\r\n0\r\n\r\n",
        "gHTTP/1.1 200 OK\r\n\r\nno length",
        "gHTTP/1.1 404 \r\nContent-Length: 9\r\n\r\ncut off",
        "gHTTP/1.1 500 \r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
        "uHTTP/1.1 101 \r\nUpgrade: websocket\r\nSec-WebSocket-Accept: a\r\n\r\n\u{82}",
        "uHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "gHTTP/1.1 302 \r\nLocation: /y\r\n\r\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

thread_local! {
    static RUNTIME: Runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
}

fn run(data: &[u8]) {
    let (first, answer) = data.split_first().unwrap_or((&0, &[]));
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let (hub, mut node) = tokio::io::duplex(PIPE_BYTES);
            node.write_all(answer).await.expect("there is room");
            node.shutdown().await.expect("the pipe is there");
            match read_answer(hub, *first == b'u').await {
                Ok(body) => assert!(body.len() < answer.len(), "{} of {} bytes", body.len(), answer.len()),
                Err(error) => {
                    assert!((400..=999).contains(&error.code), "{}", error.code);
                    let length = error.message.len();
                    assert!((1..=ERROR_BYTES).contains(&length), "a text of {length} bytes");
                }
            }
        });
    });
}
