//! A client of the API server: exec and attach over a WebSocket, by `v5.channel.k8s.io`, `v4.channel.k8s.io`
//! and the first, `channel.k8s.io`.
//!
//! Each message belongs to a channel, its first byte: 0 input, 1 and 2 outputs, 3 how it ended (a Status), 4
//! the terminal's size; in v5 255 closes the channel in the next byte, and in the first protocol channel 3
//! has a failure as text, and stays silent about a success. Always holds: a message has at most
//! [`MESSAGE_BYTES`], and so have the bytes that wait for a client that does not read; a client that breaks
//! the protocol counts as gone. Leaves to others: frames (tungstenite), the connection to the client, which
//! program it talks to.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use base64::Engine as _;
use kedge_platform::streams::{Awaited, wait};
use kedge_platform::workloads::WindowSize;
use serde::Deserialize;
use serde_json::{Value, json};
use tungstenite::error::{CapacityError, Error};
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tungstenite::{Message, WebSocket};

use super::relay::{CHUNK_BYTES, Client, End, Lost, Output, Said};

/// The protocols, the best first.
const PROTOCOLS: [&str; 3] = ["v5.channel.k8s.io", "v4.channel.k8s.io", "channel.k8s.io"];
/// A server adds this to the client's key (RFC 6455).
const KEY_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Longest message that is accepted: kubectl sends 32 KiB at once, other clients whole files.
const MESSAGE_BYTES: usize = 1024 * 1024;
/// Bytes read and written at once.
const BUFFER_BYTES: usize = 16 * 1024;
/// How long a client may take to read the program's end, and to hang up.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// The best protocol of those that a client offers, separated by commas.
pub(crate) fn protocol(offered: &str) -> Option<&'static str> {
    let offered: Vec<&str> = offered.split(',').map(str::trim).collect();
    PROTOCOLS.into_iter().find(|known| offered.contains(known))
}

/// The protocols, for an error.
pub(crate) fn protocols() -> String {
    PROTOCOLS.join(", ")
}

/// The proof for a client that its key was read.
pub(crate) fn accept(key: &str) -> String {
    let text = format!("{key}{KEY_SUFFIX}");
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
    base64::engine::general_purpose::STANDARD.encode(digest)
}

/// The size of a terminal, from JSON; `None` if no terminal can have it. A client whose own terminal has no
/// size sends 0, as on a serial line, which is ignored as by the kubelet: a program that sees 0 takes it for
/// an error.
pub(crate) fn size(json: &[u8]) -> Option<WindowSize> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Size {
        width: u16,
        height: u16,
    }
    let size: Size =
        kedge_api::read::from_slice(json).ok().filter(|size: &Size| size.width > 0 && size.height > 0)?;
    Some(WindowSize { rows: size.height, columns: size.width })
}

/// The meaning of a message; `None` if it has none here.
///
/// # Errors
/// It breaks the protocol.
pub(crate) fn said(mut message: Vec<u8>, can_close: bool) -> Result<Option<Said>, Lost> {
    Ok(match message.as_slice() {
        // an empty input is ignored: it is not an end
        [STDIN] | [] => None,
        [STDIN, ..] => {
            message.remove(0);
            Some(Said::Input(message))
        }
        [RESIZE, size @ ..] => {
            // as upstream: an unreadable size changes nothing
            self::size(size).map(Said::Resize)
        }
        [CLOSE, channel @ ..] if can_close => match channel {
            [STDIN] => Some(Said::EndOfInput),
            [STDOUT | STDERR | STATUS | RESIZE] => None,
            _ => return Err(Lost),
        },
        // a channel that only we write, or an unknown one
        _ => return Err(Lost),
    })
}

/// The Status of an end; `task` names the failed task.
pub(crate) fn status(end: &Result<End, String>, task: &str) -> Value {
    match end {
        Ok(End::Code(0)) => json!({"metadata": {}, "status": "Success"}),
        Ok(End::Code(code)) => json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
        Ok(End::Gone) => failure(task, "the client is gone"),
        Err(why) => failure(task, why),
    }
}

/// The text for the channel of the end, if there is one.
fn last_words(status: &Value, says_status: bool) -> Option<String> {
    if says_status {
        return Some(status.to_string());
    }
    status["message"].as_str().map(str::to_owned)
}

fn failure(task: &str, why: &str) -> Value {
    let message = format!("error {task} container: {why}");
    json!({
        "metadata": {},
        "status": "Failure",
        "message": format!("Internal error occurred: {message}"),
        "reason": "InternalError",
        "details": {"causes": [{"message": message}]},
        "code": 500,
    })
}

/// The client, behind a stream that never blocks.
pub(crate) struct Remote {
    socket: WebSocket<UnixStream>,
    can_close: bool,
    /// Whether the end is reported as a Status, not as text.
    says_status: bool,
    /// Bytes for the socket may still wait in its buffer.
    is_waiting: bool,
}

impl Remote {
    /// After the 101. The client may wait for output on `first` to know that the connection is open.
    pub(crate) fn new(stream: UnixStream, protocol: &str, first: Output) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let config = WebSocketConfig::default()
            .read_buffer_size(BUFFER_BYTES)
            .write_buffer_size(BUFFER_BYTES)
            .max_write_buffer_size(MESSAGE_BYTES)
            .max_message_size(Some(MESSAGE_BYTES))
            .max_frame_size(Some(MESSAGE_BYTES));
        let socket = WebSocket::from_raw_socket(stream, Role::Server, Some(config));
        let (can_close, says_status) = (protocol == PROTOCOLS[0], protocol != PROTOCOLS[2]);
        let mut remote = Self { socket, can_close, says_status, is_waiting: false };
        let _ = remote.deliver(first, &[]);
        Ok(remote)
    }

    fn send(&mut self, channel: u8, bytes: &[u8]) -> Result<(), Lost> {
        let mut message = Vec::with_capacity(bytes.len() + 1);
        message.push(channel);
        message.extend_from_slice(bytes);
        self.is_waiting = true;
        match self.socket.write(Message::binary(message)) {
            // bytes that do not fit now are in its buffer
            Err(error) if !is_later(&error) => Err(Lost),
            _ => self.flush(),
        }
    }

    fn flush(&mut self) -> Result<(), Lost> {
        match self.socket.flush() {
            Ok(()) => {
                self.is_waiting = false;
                Ok(())
            }
            Err(error) if is_later(&error) => {
                self.is_waiting = true;
                Ok(())
            }
            Err(_) => Err(Lost),
        }
    }

    /// Reports to the client how its task ended, and waits, a bounded time, until it has hung up.
    pub(crate) fn finish(mut self, end: &Result<End, String>, task: &str) {
        if !matches!(end, Ok(End::Gone)) {
            if let Some(last) = last_words(&status(end, task), self.says_status) {
                let _ = self.send(STATUS, last.as_bytes());
            }
            let _ = self.socket.close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }));
            self.is_waiting = true;
        }
        let until = Instant::now() + LAST_PATIENCE;
        let mut is_shut = false;
        while Instant::now() < until {
            if self.is_waiting && self.flush().is_err() {
                self.is_waiting = false;
            }
            if !self.is_waiting && !is_shut {
                is_shut = true;
                let _ = self.socket.get_ref().shutdown(Shutdown::Write);
            }
            // further messages are dropped; reading them keeps the kernel from resetting the connection
            // before the client has read the end
            match self.socket.read() {
                Ok(_) => continue,
                Err(error) if is_later(&error) => {}
                Err(_) if self.is_waiting => {}
                Err(_) => return,
            }
            let left = until.saturating_duration_since(Instant::now());
            let stream = self.socket.get_ref();
            let mut awaited = vec![Awaited::read(stream)];
            if self.is_waiting {
                awaited.push(Awaited::write(stream));
            }
            if wait(&mut awaited, Some(left)).is_err() {
                return;
            }
        }
    }
}

/// Reads all messages that a client has sent after the 101, until it is gone, and returns the bytes of input:
/// for a fuzzer, which runs no program.
///
/// # Errors
/// The stream cannot be used.
pub fn heard(stream: UnixStream, protocol: &str) -> io::Result<usize> {
    let mut remote = Remote::new(stream, protocol, Output::Stdout)?;
    let mut bytes = 0;
    while let Some(said) = remote.said(true) {
        match said {
            Said::Input(input) => bytes += input.len(),
            Said::Gone => break,
            Said::EndOfInput | Said::Resize(_) => {}
        }
    }
    Ok(bytes)
}

fn is_later(error: &Error) -> bool {
    matches!(error, Error::Io(error) if super::relay::is_later(error))
}

impl Client for Remote {
    fn said(&mut self, takes_input: bool) -> Option<Said> {
        if !takes_input {
            return None;
        }
        loop {
            let message = match self.socket.read() {
                Ok(Message::Binary(bytes)) => Vec::from(bytes),
                Ok(Message::Text(text)) => text.as_str().as_bytes().to_vec(),
                Ok(Message::Close(_)) => return Some(Said::Gone),
                Ok(_) => continue,
                Err(error) if is_later(&error) => return None,
                Err(Error::Capacity(CapacityError::MessageTooLong { .. })) => {
                    let reason = "message too long".into();
                    let _ = self.socket.close(Some(CloseFrame { code: CloseCode::Size, reason }));
                    let _ = self.flush();
                    return Some(Said::Gone);
                }
                Err(_) => return Some(Said::Gone),
            };
            match said(message, self.can_close) {
                Ok(None) => {}
                Ok(Some(said)) => return Some(said),
                Err(Lost) => return Some(Said::Gone),
            }
        }
    }

    fn has_room(&mut self) -> Result<bool, Lost> {
        if self.is_waiting {
            self.flush()?;
        }
        Ok(!self.is_waiting)
    }

    fn deliver(&mut self, from: Output, bytes: &[u8]) -> Result<(), Lost> {
        debug_assert!(bytes.len() <= CHUNK_BYTES, "more than fits beside what waits");
        let channel = match from {
            Output::Stdout => STDOUT,
            Output::Stderr => STDERR,
        };
        self.send(channel, bytes)
    }

    fn probe(&mut self) -> Result<(), Lost> {
        self.is_waiting = true;
        match self.socket.write(Message::Ping(Vec::new().into())) {
            Err(error) if !is_later(&error) => Err(Lost),
            _ => self.flush(),
        }
    }

    fn awaited(&self, takes_input: bool) -> Vec<Awaited<'_>> {
        let stream = self.socket.get_ref();
        let mut awaited = vec![if takes_input { Awaited::read(stream) } else { Awaited::end(stream) }];
        if self.is_waiting {
            awaited.push(Awaited::write(stream));
        }
        awaited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(message: &[u8], can_close: bool, expect: Option<Option<Said>>) {
        assert_eq!(said(message.to_vec(), can_close).ok(), expect, "{message:?}");
    }

    #[test]
    fn messages_are_read_by_their_channel() {
        check(b"\0abc", true, Some(Some(Said::Input(b"abc".to_vec()))));
        check(b"\0", true, Some(None));
        check(b"", true, Some(None));
        let size = WindowSize { rows: 24, columns: 80 };
        check(b"\x04{\"Width\":80,\"Height\":24}", false, Some(Some(Said::Resize(size))));
        for none in [&br#"{"Width":-1}"#[..], br#"{"Width":80,"Height":0}"#, br#"{"Width":0,"Height":24}"#] {
            check(&[b"\x04", none].concat(), false, Some(None));
        }
        check(b"\xff\0", true, Some(Some(Said::EndOfInput)));
        check(b"\xff\x01", true, Some(None));
    }

    #[test]
    fn message_of_no_channel_is_the_end() {
        check(b"\x01x", true, None);
        check(b"\x05", true, None);
        check(b"\xff", true, None);
        check(b"\xff\0\0", true, None);
        // v4 has no message that closes a channel
        check(b"\xff\0", false, None);
    }

    #[test]
    fn best_offered_protocol_is_chosen() {
        assert_eq!(protocol("v4.channel.k8s.io, v5.channel.k8s.io"), Some("v5.channel.k8s.io"));
        assert_eq!(protocol("channel.k8s.io,v4.channel.k8s.io"), Some("v4.channel.k8s.io"));
        assert_eq!(protocol("channel.k8s.io"), Some("channel.k8s.io"));
        assert_eq!(protocol("base64.channel.k8s.io"), None);
    }

    #[test]
    fn key_is_answered_as_the_rfc_says() {
        // the example of RFC 6455, section 1.3
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn exit_code_stands_where_kubectl_looks() {
        assert_eq!(status(&Ok(End::Code(0)), "")["status"], "Success");
        let failed = status(&Ok(End::Code(7)), "");
        assert_eq!(failed["reason"], "NonZeroExitCode");
        assert_eq!(failed["details"]["causes"][0], json!({"reason": "ExitCode", "message": "7"}));
        assert_eq!(status(&Err("no".into()), "attaching to")["reason"], "InternalError");
    }

    #[test]
    fn first_protocol_tells_failures_alone_and_as_text() {
        let last = |code| last_words(&status(&Ok(End::Code(code)), ""), false);
        assert_eq!(last(0), None);
        assert_eq!(last(7).as_deref(), Some("command terminated with non-zero exit code: exit status 7"));
        assert!(
            last_words(&status(&Ok(End::Code(0)), ""), true).is_some_and(|text| text.contains("Success"))
        );
    }
}
