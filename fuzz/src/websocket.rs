//! Clients of a program in a container, over a WebSocket: any frames, or any messages of channels in good
//! frames.
//!
//! The first byte chooses the protocol and whether the rest is sent unchanged; otherwise each section of it
//! is a message.

use crate::Target;
use crate::input::SEPARATOR;
use kedge::sessions::websocket_heard;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

pub(crate) const TARGET: Target =
    Target { name: "websocket", run, seeds, words: WORDS, longest_bytes: 4096, mutations: 2000 };

const WORDS: &[&str] = &[
    "\0",
    "\u{1}",
    "\u{3}",
    "\u{4}{\"Width\":80,\"Height\":24}",
    "\"Width\":65536",
    "\u{1e}",
    "\u{1e}\0input",
    "v5.channel.k8s.io",
    "null",
];

fn seeds() -> Vec<Vec<u8>> {
    let close = frame(0x88, b"\x03\xe8");
    let raw = |frames: &[Vec<u8>]| [b"r".to_vec(), frames.concat()].concat();
    vec![
        b"5\0ls\n\x1e\x04{\"Width\":80,\"Height\":24}\x1e\xff\0".to_vec(),
        b"4\0ls\n\x1e\x04{}\x1e\0".to_vec(),
        b"5\x01out".to_vec(),
        b"5\xff\x07".to_vec(),
        b"4\xff\0".to_vec(),
        raw(&[frame(0x02, b"\0in"), frame(0x89, b"ping"), frame(0x80, b"put"), close.clone()]),
        raw(&[frame(0x81, b"\0text"), frame(0x82, &[0; 200]), close]),
        // a length of eight bytes, and no mask
        raw(&[vec![0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], vec![0x82, 1, 0]]),
    ]
}

/// A frame as a client sends it, with a mask of zeros.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap_or(u16::MAX);
    let [high, low] = length.to_be_bytes();
    let head = if length < 126 { vec![kind, 0x80 | low] } else { vec![kind, 0x80 | 126, high, low] };
    [&head[..], &[0; 4], payload].concat()
}

fn run(data: &[u8]) {
    let (first, rest) = data.split_first().unwrap_or((&0, &[]));
    let sent = match first {
        b'r' | b'R' => rest.to_vec(),
        _ => rest.split(|byte| *byte == SEPARATOR).flat_map(|message| frame(0x82, message)).collect(),
    };
    let protocol = if matches!(first, b'4' | b'R') { "v4.channel.k8s.io" } else { "v5.channel.k8s.io" };
    let (program, mut client) = UnixStream::pair().expect("a pair of sockets");
    client.write_all(&sent).expect("the kernel has room for it");
    client.shutdown(Shutdown::Write).expect("it is connected");
    let input = websocket_heard(program, protocol).expect("it is connected");
    assert!(input <= sent.len(), "{input} bytes of {}", sent.len());
}
