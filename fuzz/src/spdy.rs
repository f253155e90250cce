//! Clients that speak SPDY: any bytes give the same frames, or the same refusal, however they are split.
//!
//! `Z` is replaced by the text of headers, begun as every client begins it, because a mutation would never
//! find that.

use crate::Target;
use kedge::sessions::spdy_heard;

pub(crate) const TARGET: Target =
    Target { name: "spdy", run, seeds, words: WORDS, longest_bytes: 2048, mutations: 2000 };

const WORDS: &[&str] = &[
    "Z",
    "\0\0\0\u{1}",
    "\0\0\0\u{2}",
    "\0\u{4}\0",
    "\0\0\0\u{5}",
    "streamtype",
    "error",
    "data",
    "port",
    "requestid",
    "\u{1}\0\0",
    "\0\0\0",
];

/// SYN_STREAM of stream 1, with room for the length.
const OPEN: &[u8] = b"\x80\x03\0\x01\0\0\0";

fn seeds() -> Vec<Vec<u8>> {
    let open = |length: u8, text: &[u8]| [OPEN, &[length, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0], text].concat();
    let port = b"\0\x10\0\xef\xff\0\0\0\x01\0\0\0\x04port\0\0\0\0\0\0\0\xff\xff";
    vec![
        open(42, &[b"Z", port.as_slice()].concat()),
        [open(42, &[b"Z", port.as_slice()].concat()), open(36, port)].concat(),
        b"\0\0\0\x01\x01\0\0\x03abc\0\0\0\x03\0\0\0\x01d".to_vec(),
        b"\x80\x03\0\x06\0\0\0\x04\0\0\0\x05".to_vec(),
        b"\x80\x03\0\x03\0\0\0\x08\0\0\0\x01\0\0\0\x05\x80\x03\0\x07\0\0\0\x08\0\0\0\0\0\0\0\0".to_vec(),
        b"\x80\x03\0\x04\0\0\0\x0c\0\0\0\x01\0\0\0\x07\0\x01\0\0".to_vec(),
        b"\x80\x03\0\x08\0\0\0\x04\0\0\0\x01".to_vec(),
        b"\x80\x02\0\x01\0\xff\xff\xff".to_vec(),
        b"\0\0\0\0\0\0\0\0".to_vec(),
    ]
}

fn run(data: &[u8]) {
    let begun: &[u8] = &[0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2];
    let sent = data.iter().flat_map(|byte| if *byte == b'Z' { begun } else { core::slice::from_ref(byte) });
    let sent: Vec<u8> = sent.copied().collect();
    let whole = spdy_heard(&sent, usize::MAX);
    for piece in [1, 2, 9, 100] {
        assert_eq!(spdy_heard(&sent, piece), whole, "in pieces of {piece}");
    }
    // a frame gives at most 16 KiB of headers, which may take four times as many bytes in a line
    assert!(whole.0.iter().all(|line| line.len() < 128 * 1024), "a frame of any size");
}
