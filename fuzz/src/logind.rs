//! The system's message bus, and logind behind it: whatever they send becomes an answer or an error, never an
//! endless wait.
//!
//! The first byte chooses whether the rest follows a good greeting with answers to the first two calls.

use crate::Target;
use kedge_platform::linux::logind::Logind;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

pub(crate) const TARGET: Target =
    Target { name: "logind", run, seeds, words: WORDS, longest_bytes: 2048, mutations: 2000 };

const GREETING: &[u8] = b"OK 0123456789abcdef\r\nAGREE_UNIX_FD\r\n";
const WORDS: &[&str] = &[
    "OK \r\n",
    "AGREE_UNIX_FD\r\n",
    "REJECTED EXTERNAL\r\n",
    "org.freedesktop.login1.Manager",
    "PrepareForShutdown",
    "\u{5}\u{1}u\0\u{3}\0\0\0",
    "\u{8}\u{1}g\0\u{1}t\0",
    "\u{1}t\0",
    "l\u{4}\0\u{1}",
    "\0\0\0\0",
];

/// Codes of fields, and the kinds of messages.
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const SENDER: u8 = 7;
const SIGNATURE: u8 = 8;
const RETURN: u8 = 2;
const ERROR: u8 = 3;
const SIGNAL: u8 = 4;

/// A message with fields of texts: code, type (`s` or `g`) and text.
fn message(kind: u8, reply_to: u32, fields: &[(u8, u8, &str)], body: &[u8]) -> Vec<u8> {
    let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    let mut array = Vec::new();
    if reply_to > 0 {
        array.extend([REPLY_SERIAL, 1, b'u', 0]);
        array.extend(reply_to.to_le_bytes());
    }
    for (code, kind, text) in fields {
        array.resize(array.len().next_multiple_of(8), 0);
        array.extend([*code, 1, *kind, 0]);
        let length = number(text.len());
        array.extend(if *kind == b'g' { &length[..1] } else { &length });
        array.extend(text.bytes());
        array.push(0);
    }
    let mut bytes = vec![b'l', kind, 0, 1];
    bytes.extend(number(body.len()));
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(number(array.len()));
    array.resize(array.len().next_multiple_of(8), 0);
    [bytes, array, body.to_vec()].concat()
}

fn seeds() -> Vec<Vec<u8>> {
    let delay = [&b"\x01t\0"[..], &[0; 5], &5_000_000_u64.to_le_bytes()].concat();
    let delay = message(RETURN, 3, &[(SIGNATURE, b'g', "v")], &delay);
    let inhibit = message(RETURN, 4, &[(SIGNATURE, b'g', "h")], &[0; 4]);
    let manager = (INTERFACE, b's', "org.freedesktop.login1.Manager");
    let sender = (SENDER, b's', ":1.5");
    let begins = [manager, (MEMBER, b's', "PrepareForShutdown"), sender, (SIGNATURE, b'g', "b")];
    let begins = message(SIGNAL, 0, &begins, &[1, 0, 0, 0]);
    let owner = message(RETURN, 5, &[(SIGNATURE, b'g', "s")], b"\x04\0\0\0:1.5\0");
    let name = (ERROR_NAME, b's', "org.freedesktop.DBus.Error.AccessDenied");
    let refused = message(ERROR, 3, &[name, (SIGNATURE, b'g', "s")], b"\x02\0\0\0no\0");
    let after = |parts: &[&[u8]]| [b"+", parts.concat().as_slice()].concat();
    let all = [&begins[..], &delay, &inhibit, &owner, &begins];
    vec![
        after(&all),
        after(&[&refused, &begins]),
        after(&[&delay[..delay.len() - 3]]),
        [b"-", GREETING, &message(RETURN, 1, &[], &[]), &message(RETURN, 2, &[], &[]), &delay].concat(),
        b"-REJECTED EXTERNAL\r\n".to_vec(),
        after(&[b"B\x02\0\x01"]),
        // a message that claims to be longer than its bytes
        after(&[b"l\x02\0\x01\xff\xff\xff\xff\x01\0\0\0\xff\xff\xff\xff"]),
    ]
}

fn run(data: &[u8]) {
    let (first, rest) = data.split_first().unwrap_or((&0, &[]));
    let begin = [GREETING, &message(RETURN, 1, &[], &[]), &message(RETURN, 2, &[], &[])].concat();
    let sent = if *first == b'+' { [&begin, rest].concat() } else { rest.to_vec() };
    let (agent, mut bus) = UnixStream::pair().expect("a pair of sockets");
    bus.write_all(&sent).expect("the kernel has room for it");
    bus.shutdown(Shutdown::Write).expect("it is connected");
    let mut logind = match Logind::over(agent) {
        Ok(logind) => logind,
        Err(error) => return has_a_text(&error),
    };
    if let Err(error) = logind.longest_delay() {
        has_a_text(&error);
    }
    // no descriptor was sent
    has_a_text(&logind.delay("kedge", "fuzz").expect_err("a delay without a descriptor"));
    let mut heard = 0;
    while logind.wait().is_ok() {
        heard += 1;
    }
    // a signal has more than 100 bytes, apart from the names that nobody needs
    assert!(heard <= sent.len() / 32, "{heard} signals in {} bytes", sent.len());
}

fn has_a_text(error: &std::io::Error) {
    let length = error.to_string().len();
    assert!((1..=200_000).contains(&length), "a text of {length} bytes");
}
