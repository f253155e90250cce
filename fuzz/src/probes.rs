//! Servers that probes ask: any answer to a GET request or a health call gives an outcome with a bounded
//! text, after reading a bounded part of it.
//!
//! The first byte chooses the request (`h`, `g`); in upper case the rest is sent 64 times.

use crate::Target;
use kedge::workloads::{grpc_answered, http_answered};
use kedge_core::pods::ProbeOutcome;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

pub(crate) const TARGET: Target =
    Target { name: "probes", run, seeds, words: WORDS, longest_bytes: 4096, mutations: 2000 };

/// More than any input and the answers to it: neither side waits.
const PIPE_BYTES: usize = 1 << 20;
const REPEATS: usize = 64;
/// Five heads of 64 KiB, 10 KiB of a body, and one read beyond each of them.
const MOST_READ_BYTES: usize = 5 * (64 + 4) * 1024 + (10 + 4) * 1024;
/// The kept part of a body, with up to three bytes for each byte, and the words around it.
const MOST_TEXT_BYTES: usize = 3 * 10 * 1024 + 256;

const WORDS: &[&str] = &[
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.0 302 Found\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "\r\n\r\n",
    "Location: ",
    "http://10.0.0.9:80/",
    "https://[::1]:5/",
    "//",
    "Content-Length: 18446744073709551615\r\n",
    "Transfer-Encoding: chunked\r\n",
    "0\r\n\r\n",
    "\0\0\0\u{4}\0\0\0\0\0",
    "\0\0\u{7}\0\u{1}\0\0\0\u{1}\0\0\0\0\u{2}\u{8}\u{1}",
    "\0\0\0\u{1}\u{5}\0\0\0\u{1}",
];

fn seeds() -> Vec<Vec<u8>> {
    let http = |text: &str| [b"h", text.as_bytes()].concat();
    let grpc = |frames: &[Vec<u8>]| [b"g".to_vec(), frames.concat()].concat();
    let settings = frame(4, 0, 0, &[]);
    let data = |message: &[u8]| frame(0, 0, 1, message);
    let end = frame(1, 5, 1, b"\x88");
    vec![
        http("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        http("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.0 204 No Content\r\n\r\n"),
        http(
            "HTTP/1.1 302 Found\r\nLocation: ../x?y#z\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        ),
        http("HTTP/1.1 307 T\r\nlocation: https://u@10.0.0.9:443/\u{e9} \r\n\r\n"),
        http("HTTP/1.1 500 Broken\r\nContent-Length: 99\r\n\r\nshort"),
        http("SSH-2.0-x\r\n"),
        b"HHTTP/1.1 100 Continue\r\n\r\n".to_vec(),
        [&b"HHTTP/1.1 200 OK\r\nX: "[..], &[b'x'; 2000]].concat(),
        grpc(&[settings.clone(), end.clone()]),
        grpc(&[settings.clone(), frame(1, 4, 1, b"\x88"), data(&[0, 0, 0, 0, 2, 8, 1]), end.clone()]),
        grpc(&[data(&[0, 0, 0, 0, 2, 8, 2]), frame(0, 1, 1, &[])]),
        grpc(&[data(&[0, 0, 0, 0]), data(&[4, 0x12, 0, 8, 3]), end.clone()]),
        grpc(&[frame(0, 9, 1, &[1, 0, 0, 0, 0, 0, 0])]),
        grpc(&[frame(6, 0, 0, &[1; 8]), frame(7, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 2])]),
        grpc(&[frame(3, 0, 1, &[0, 0, 0, 8])]),
        grpc(&[vec![0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]]),
        [&b"G"[..], &data(&[0; 200])].concat(),
    ]
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(payload.len()).unwrap_or(u16::MAX).to_be_bytes();
    [&[0, high, low, kind, flags, 0, 0, 0, stream][..], payload].concat()
}

thread_local! {
    static RUNTIME: Runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
}

fn run(data: &[u8]) {
    RUNTIME.with(|runtime| runtime.block_on(probed(data)));
}

async fn probed(data: &[u8]) {
    let (first, rest) = data.split_first().unwrap_or((&b'h', &[]));
    let sent = if first.is_ascii_uppercase() { rest.repeat(REPEATS) } else { rest.to_vec() };
    let (mut node, mut server) = tokio::io::duplex(PIPE_BYTES);
    server.write_all(&sent).await.expect("there is room");
    server.shutdown().await.expect("the pipe is there");
    let is_http = !matches!(first, b'g' | b'G');
    let (outcome, next) =
        if is_http { http_answered(&mut node).await } else { (grpc_answered(&mut node).await, None) };
    let mut left = Vec::new();
    node.read_to_end(&mut left).await.expect("the pipe does not break");
    let read = sent.len() - left.len();
    assert!(!is_http || read <= MOST_READ_BYTES, "{read} bytes were read");
    match outcome {
        // an HTTP status, or a frame with a message
        ProbeOutcome::Passed if is_http => assert!(sent.windows(2).any(|pair| pair == b" 2"), "{sent:?}"),
        ProbeOutcome::Passed => assert!(read > 9 && sent.contains(&1), "{sent:?}"),
        ProbeOutcome::Warned(why) | ProbeOutcome::Failed(why) => {
            assert!((1..=MOST_TEXT_BYTES).contains(&why.len()), "a text of {} bytes", why.len());
        }
        ProbeOutcome::Errored(why) => panic!("an answer says something about the container: {why}"),
    }
    if let Some(path) = next {
        let is_sendable = path.starts_with('/') && path.bytes().all(|byte| (b'!'..=b'~').contains(&byte));
        assert!(is_sendable && !path.contains('#'), "{path:?}");
    }
}
