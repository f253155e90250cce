//! HTTP/1.1 for one exchange: a head of bounded size, and an answer that is whole, grows, or gives the stream
//! away.
//!
//! Always holds: bytes after the head belong to the route, none is lost or read twice; a growing body ends
//! with its last chunk only when the route says that it is whole, so that the caller can tell a whole body
//! from one that broke off.

use crate::http1;
use crate::kubelet_api::node::Stream;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::Peer;

/// Most bytes of a head. The arguments of a command are in its query: upstream's API server takes 1 MiB for a
/// head, kubectl's own commands stay far below this.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Most headers: kubectl's arrive through the hub, a dozen.
const MAX_HEADERS: usize = 64;

/// A request without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    /// The decoded segments of its path.
    pub path: Vec<String>,
    /// The query's pairs in order, decoded.
    pub query: Vec<(String, String)>,
    /// Names in lower case. Values that are not UTF-8 are left out.
    pub headers: Vec<(String, String)>,
}

impl Request {
    /// The first value of a parameter.
    #[must_use]
    pub fn param(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// All values of a parameter, in order.
    pub fn params<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.query.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// A boolean parameter, as the kubelet reads it: `1`, `true`, or its name alone.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.param(name).is_some_and(|value| !matches!(value, "0" | "f" | "F" | "false" | "False" | "FALSE"))
    }

    /// A header, by its name in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A stream whose first bytes were read already.
struct Rewound {
    early: Vec<u8>,
    stream: Box<dyn Stream>,
}

/// The stream, with these bytes, which were read from it already, in front.
#[must_use]
pub fn rewound(early: Vec<u8>, stream: Box<dyn Stream>) -> Box<dyn Stream> {
    Box::new(Rewound { early, stream })
}

impl AsyncRead for Rewound {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let amount = self.early.len().min(buffer.remaining());
        buffer.put_slice(&self.early[..amount]);
        self.early.drain(..amount);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A request that waits for its answer. If it is dropped, the stream ends, and its caller sees that there was
/// no answer.
pub struct Exchange {
    stream: Rewound,
    /// Shows whether the caller has left; moved to the code that takes the stream over.
    pub(super) peer: Option<Peer>,
    /// The caller wants to upgrade.
    upgrades: bool,
}

impl Exchange {
    /// Answers with a complete body.
    ///
    /// # Errors
    /// The stream broke.
    pub async fn answer(mut self, status: u16, content_type: &str, body: &[u8]) -> io::Result<()> {
        let head = format!(
            "HTTP/1.1 {status} {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            reason(status),
            body.len()
        );
        self.stream.write_all(head.as_bytes()).await?;
        self.stream.write_all(body).await?;
        self.stream.shutdown().await
    }

    /// Answers with an error, as plain text.
    ///
    /// # Errors
    /// The stream broke.
    pub async fn refuse(self, status: u16, text: &str) -> io::Result<()> {
        let text = if self.upgrades { no_mapping(text) } else { text.to_owned() };
        self.answer(status, "text/plain; charset=utf-8", text.as_bytes()).await
    }

    /// Begins an answer with a growing body.
    ///
    /// # Errors
    /// The stream broke.
    pub async fn stream(mut self, content_type: &str) -> io::Result<Grown> {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        );
        self.stream.write_all(head.as_bytes()).await?;
        self.stream.flush().await?;
        Ok(Grown { stream: self.stream })
    }

    /// Answers 101 with these headers (`Upgrade` among them), and hands over the stream.
    ///
    /// # Errors
    /// The stream broke.
    pub async fn take_over(mut self, headers: &[(&str, &str)]) -> io::Result<Box<dyn Stream>> {
        let mut head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n".to_owned();
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.stream.write_all(head.as_bytes()).await?;
        self.stream.flush().await?;
        Ok(Box::new(self.stream))
    }
}

/// The body of an answer, as it grows.
pub struct Grown {
    stream: Rewound,
}

impl Grown {
    /// Sends some more; waits for a caller that does not read.
    ///
    /// # Errors
    /// The stream broke.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        // an empty chunk would be the last
        if bytes.is_empty() {
            return Ok(());
        }
        // as one: each write becomes a TLS record of its own
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend_from_slice(bytes);
        chunk.extend_from_slice(b"\r\n");
        self.stream.write_all(&chunk).await?;
        self.stream.flush().await
    }

    /// Returns when the caller has left. Bytes that it sends meanwhile are ignored.
    pub async fn gone(&mut self) {
        let mut space = [0; 256];
        while matches!(self.stream.read(&mut space).await, Ok(1..)) {}
    }

    /// The body is whole.
    ///
    /// # Errors
    /// The stream broke.
    pub async fn end(mut self) -> io::Result<()> {
        self.stream.write_all(b"0\r\n\r\n").await?;
        self.stream.shutdown().await
    }
}

/// Reads a head; `None` if the caller left without a request, or its request was refused.
///
/// # Errors
/// The stream broke.
pub async fn receive(mut stream: Box<dyn Stream>) -> io::Result<Option<(Request, Exchange)>> {
    let mut bytes = Vec::new();
    loop {
        let refusal = match parse(&bytes) {
            Ok(Some((request, length))) => {
                let early = bytes.split_off(length);
                let upgrades = request.header("upgrade").is_some();
                let exchange = Exchange { stream: Rewound { early, stream }, peer: None, upgrades };
                return Ok(Some((request, exchange)));
            }
            Ok(None) if bytes.len() < MAX_HEAD_BYTES => None,
            Ok(None) => Some((431, format!("the head of the request has more than {MAX_HEAD_BYTES} bytes"))),
            Err(why) => Some((400, format!("not an HTTP request: {why}"))),
        };
        if let Some((status, why)) = refusal {
            let stream = Rewound { early: Vec::new(), stream };
            let exchange = Exchange { stream, peer: None, upgrades: true };
            exchange.refuse(status, &why).await?;
            return Ok(None);
        }
        let mut piece = [0; 2048];
        match stream.read(&mut piece).await? {
            0 => return Ok(None),
            amount => bytes.extend_from_slice(&piece[..amount]),
        }
    }
}

/// The request, and the bytes of its head; `None`: it is not whole.
fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, String> {
    let (method, target, head) = match http1::request(bytes, MAX_HEADERS) {
        Ok(Some(whole)) => whole,
        Ok(None) => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let badly_encoded = || format!("{target} is not encoded as it must be");
    let segments = path.trim_matches('/').split('/');
    let path = segments.map(|segment| http1::decoded(segment, false)).collect::<Option<_>>();
    let length = head.bytes;
    let request = Request {
        method,
        path: path.ok_or_else(badly_encoded)?,
        query: http1::query(query).ok_or_else(badly_encoded)?,
        headers: head.into_texts().collect(),
    };
    Ok(Some((request, length)))
}

/// A text that YAML does not read as a mapping. A client of Kubernetes whose upgrade is refused reads the
/// text as a `Status` in YAML, if it can be one: its user would see nothing of "no such path: /x".
fn no_mapping(text: &str) -> String {
    text.replace(": ", " - ").replace(":\n", "\n").trim_end_matches(':').to_owned()
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "",
    }
}
