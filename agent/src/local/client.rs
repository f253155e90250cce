//! Queries to the agent on this node: the command line's side of the local endpoint.
//!
//! Owns one exchange at a time, blocking. Always holds: it ends within [`LIMIT`], and an answer is read up to
//! [`MAX_ANSWER_BYTES`]. It distinguishes an agent that does not run from one that does not answer, because
//! the person at the keyboard acts differently. Leaves the meaning of an answer to its caller.

use crate::http1;
use std::error;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long an exchange may take: a little more than the agent gives itself.
pub const LIMIT: Duration = Duration::from_secs(15);

/// Most bytes of an answer: the metrics and pods of a full node have a few hundred KiB.
pub const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// The agent's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

/// Why there was no valid answer.
#[derive(Debug)]
pub enum AskError {
    /// Nothing listens on the socket.
    NotRunning { socket: PathBuf, source: io::Error },
    /// This user may not use the socket.
    Denied { socket: PathBuf, source: io::Error },
    /// The agent accepted the request, and the answer did not arrive, or not whole.
    NoAnswer { socket: PathBuf, source: io::Error },
    /// The answer is not HTTP, or too large.
    Garbled { socket: PathBuf, why: String },
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRunning { socket, .. } => {
                write!(f, "no agent runs here: nothing listens on {}", socket.display())
            }
            Self::Denied { socket, .. } => {
                write!(f, "the agent on {} answers only root and its own user", socket.display())
            }
            Self::NoAnswer { socket, .. } => write!(f, "the agent on {} did not answer", socket.display()),
            Self::Garbled { socket, why } => write!(f, "the agent on {}: {why}", socket.display()),
        }
    }
}

impl error::Error for AskError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::NotRunning { source, .. } | Self::Denied { source, .. } | Self::NoAnswer { source, .. } => {
                Some(source)
            }
            Self::Garbled { .. } => None,
        }
    }
}

/// Reads something from the agent: `/configz`.
///
/// # Errors
/// If no answer arrived. A refusal is an [`Answer`] with its status.
pub fn get(socket: &Path, path_and_query: &str) -> Result<Answer, AskError> {
    ask(socket, "GET", path_and_query)
}

/// Requests a change from the agent: `/config/forgive?uid=...`. Values must be percent-encoded.
///
/// # Errors
/// Those of [`get`].
pub fn post(socket: &Path, path_and_query: &str) -> Result<Answer, AskError> {
    ask(socket, "POST", path_and_query)
}

fn ask(socket: &Path, method: &str, path_and_query: &str) -> Result<Answer, AskError> {
    let deadline = Instant::now() + LIMIT;
    let at = || socket.to_owned();
    let mut stream = UnixStream::connect(socket).map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => AskError::Denied { socket: at(), source },
        _ => AskError::NotRunning { socket: at(), source },
    })?;
    let no_answer = |source| AskError::NoAnswer { socket: at(), source };
    stream.set_write_timeout(Some(LIMIT)).map_err(no_answer)?;
    let head = format!("{method} {path_and_query} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    // an agent that refuses before it has read the whole request has still answered
    let written = stream.write_all(head.as_bytes());
    let mut bytes = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(no_answer(io::ErrorKind::TimedOut.into()));
        }
        stream.set_read_timeout(Some(left)).map_err(no_answer)?;
        let mut piece = [0; 8192];
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(amount) => bytes.extend_from_slice(&piece[..amount]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(no_answer(written.err().unwrap_or(error))),
        }
        if bytes.len() > MAX_ANSWER_BYTES {
            let why = format!("its answer has more than {MAX_ANSWER_BYTES} bytes");
            return Err(AskError::Garbled { socket: at(), why });
        }
    }
    parse(bytes).map_err(|fault| match fault {
        Fault::Short => no_answer(written.err().unwrap_or(io::ErrorKind::UnexpectedEof.into())),
        Fault::Garbled(why) => AskError::Garbled { socket: at(), why },
    })
}

enum Fault {
    Short,
    Garbled(String),
}

/// Reads a whole answer, which the server ends by closing; its `Content-Length` shows whether it is whole.
fn parse(mut bytes: Vec<u8>) -> Result<Answer, Fault> {
    let (status, head) = match http1::response(&bytes, 32) {
        Ok(Some(whole)) => whole,
        Ok(None) => return Err(Fault::Short),
        Err(error) => return Err(Fault::Garbled(format!("its answer is not HTTP: {error}"))),
    };
    let length = head.text("content-length").and_then(|length| length.parse::<usize>().ok());
    let body = bytes.split_off(head.bytes);
    match length {
        Some(length) if body.len() < length => Err(Fault::Short),
        Some(_) => Ok(Answer { status, body }),
        None => Err(Fault::Garbled("its answer has no Content-Length".to_owned())),
    }
}
