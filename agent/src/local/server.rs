//! Listening on the local endpoint.
//!
//! Owns the socket's life (a stale one is replaced, a living one is never taken away) and one task per
//! connection. Always holds: at most [`MAX_CONNECTIONS`] are served at once and the next one waits
//! unaccepted; each carries one request and ends within the sum of the three limits below. Answers come from
//! the channel's other end.

use crate::http1;
use std::error;
use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net as std_unix;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::{Call, Origin, Request, Response, Verb};

/// Most connections served at once: a scraper, a probe and a few people.
pub const MAX_CONNECTIONS: usize = 8;

/// Most bytes of a request's head; ours have about 100.
pub const MAX_HEAD_BYTES: usize = 8 * 1024;

/// Most bytes of a request's body; no call of ours has one yet.
pub const MAX_BODY_BYTES: usize = 64 * 1024;

/// How long a request may take to arrive.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// How long the agent may take to answer. The main loop answers in milliseconds, or hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// How long the answer may take to leave.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// Pause after a failed accept (no more file descriptors, mostly), so that it does not become a hot loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Why the endpoint cannot be opened. The agent runs without it.
#[derive(Debug)]
pub enum ListenError {
    /// Another agent answers on the socket.
    InUse { path: PathBuf },
    /// The path exists and is not a socket; it is left alone.
    NotASocket { path: PathBuf },
    /// TCP is for loopback only.
    NotLoopback {
        /// The configured address.
        address: SocketAddr,
    },
    /// A step failed.
    Failed { tried: String, source: io::Error },
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { path } => write!(f, "socket {}: another agent answers on it", path.display()),
            Self::NotASocket { path } => {
                write!(f, "socket {}: the path exists and is not a socket", path.display())
            }
            Self::NotLoopback { address } => {
                write!(f, "local endpoint on {address}: expected a loopback address such as 127.0.0.1")
            }
            Self::Failed { tried, .. } => f.write_str(tried),
        }
    }
}

impl error::Error for ListenError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Failed { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// An open endpoint.
pub struct Listener(Kind);

enum Kind {
    /// With our own user, which may connect besides root.
    Unix {
        listener: UnixListener,
        own_uid: u32,
    },
    Tcp(TcpListener),
}

impl Listener {
    /// Listens on a unix socket of mode 0600, in place of a stale one. The parent directory is made if it is
    /// missing. Call it within a tokio runtime.
    ///
    /// The socket is made beside its place and renamed into it, so it never has the wrong mode there.
    ///
    /// # Errors
    /// If another agent listens there, or a step of the file system fails.
    pub fn unix(path: &Path) -> Result<Self, ListenError> {
        if is_answered(path)? {
            return Err(ListenError::InUse { path: path.to_owned() });
        }
        Self::unix_in_place(path)
    }

    /// The same in place of any socket there: a process that was killed and cannot end yet still seems to
    /// listen.
    ///
    /// # Errors
    /// If a step of the file system fails.
    pub fn unix_in_place(path: &Path) -> Result<Self, ListenError> {
        let failed = |what: &str, at: &Path, source| ListenError::Failed {
            tried: format!("{what} {}", at.display()),
            source,
        };
        is_socket(path)?;
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|source| failed("make directory", parent, source))?;
        }
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove the leftover", &beside, error));
            }
            _ => {}
        }
        let listener =
            std_unix::UnixListener::bind(&beside).map_err(|source| failed("make socket", &beside, source))?;
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o600))
            .map_err(|source| failed("set the mode of socket", &beside, source))?;
        // a new file belongs to its user: a portable way to find our own user
        let own_uid = fs::metadata(&beside)
            .map_err(|source| failed("read the metadata of socket", &beside, source))?
            .uid();
        listener.set_nonblocking(true).map_err(|source| failed("set up socket", &beside, source))?;
        let listener =
            UnixListener::from_std(listener).map_err(|source| failed("set up socket", &beside, source))?;
        fs::rename(&beside, path).map_err(|source| failed("put the socket in place at", path, source))?;
        Ok(Self(Kind::Unix { listener, own_uid }))
    }

    /// Listens on TCP, on a loopback address. Call it within a tokio runtime.
    ///
    /// # Errors
    /// If the address is not a loopback address, or not free.
    pub fn tcp(address: SocketAddr) -> Result<Self, ListenError> {
        if !address.ip().is_loopback() {
            return Err(ListenError::NotLoopback { address });
        }
        let failed = |source| ListenError::Failed { tried: format!("listen on {address}"), source };
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self(Kind::Tcp(TcpListener::from_std(listener).map_err(failed)?)))
    }

    /// The TCP address, with the port that was chosen; none for a unix socket.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Kind::Unix { .. } => None,
            Kind::Tcp(listener) => listener.local_addr().ok(),
        }
    }
}

/// Whether there is a socket at `path`; any other file there is an error.
fn is_socket(path: &Path) -> Result<bool, ListenError> {
    match fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => Err(ListenError::NotASocket { path: path.to_owned() }),
        there => Ok(there.is_ok()),
    }
}

/// Whether a process listens on the socket at `path`.
fn is_answered(path: &Path) -> Result<bool, ListenError> {
    if !is_socket(path)? {
        return Ok(false);
    }
    match std_unix::UnixStream::connect(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
        Err(source) => Err(ListenError::Failed {
            tried: format!("connect to {}, to see whether an agent listens there", path.display()),
            source,
        }),
    }
}

/// Serves an endpoint for ever, handing every request to `calls`. Drop or abort it to stop.
pub async fn serve(listener: Listener, calls: mpsc::Sender<Call>) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        match accept(&listener).await {
            Ok((stream, origin)) => {
                let calls = calls.clone();
                tokio::spawn(async move {
                    serve_connection(stream, origin, &calls).await;
                    drop(permit);
                });
            }
            Err(error) => {
                log::warn!("local endpoint: accept: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// The next connection and its user; `Err` is a user without access.
async fn accept(listener: &Listener) -> io::Result<(Box<dyn Connection>, Result<Origin, u32>)> {
    match &listener.0 {
        Kind::Unix { listener, own_uid } => {
            let (stream, _) = listener.accept().await?;
            let uid = stream.peer_cred()?.uid();
            Ok((Box::new(stream), admitted(uid, *own_uid)))
        }
        Kind::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            Ok((Box::new(stream), Ok(Origin::Loopback)))
        }
    }
}

/// Root may do anything here anyway, and the agent's own user may query it. The socket's mode admits the same
/// users; this check also holds if the mode was loosened.
fn admitted(uid: u32, own_uid: u32) -> Result<Origin, u32> {
    if uid == 0 || uid == own_uid { Ok(Origin::Socket { uid }) } else { Err(uid) }
}

async fn serve_connection(
    mut stream: Box<dyn Connection>,
    origin: Result<Origin, u32>,
    calls: &mpsc::Sender<Call>,
) {
    let response = match origin {
        Ok(origin) => match timeout(READ_LIMIT, read_request(&mut stream, origin)).await {
            Ok(Ok(Some(request))) => answer(request, calls).await,
            Ok(Ok(None)) => return,
            Ok(Err(refusal)) => refusal,
            Err(_) => Response::text(408, "the request took too long to arrive"),
        },
        Err(uid) => {
            Response::text(403, format!("user {uid} may not ask: only root and the agent's own user"))
        }
    };
    // a caller that does not read its answer loses it
    let _ = timeout(WRITE_LIMIT, write_response(&mut stream, &response)).await;
}

async fn answer(request: Request, calls: &mpsc::Sender<Call>) -> Response {
    let (reply, answered) = oneshot::channel();
    let asked = async {
        calls.send(Call { request, reply }).await.ok()?;
        answered.await.ok()
    };
    match timeout(ANSWER_LIMIT, asked).await {
        Ok(Some(response)) => response,
        Ok(None) => Response::text(503, "the agent is stopping"),
        Err(_) => Response::text(504, "the agent did not answer in time"),
    }
}

/// Reads one request. `None` if the caller left without a request; `Err` is the answer to a refused one.
async fn read_request(stream: &mut Box<dyn Connection>, origin: Origin) -> Result<Option<Request>, Response> {
    let mut bytes = Vec::new();
    let (mut request, head_bytes, body_bytes) = loop {
        if let Some(head) = parse_head(&bytes, origin)? {
            break head;
        }
        if bytes.len() >= MAX_HEAD_BYTES {
            return Err(Response::text(431, format!("the head has more than {MAX_HEAD_BYTES} bytes")));
        }
        let mut piece = [0; 1024];
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return Ok(None),
            Ok(amount) => bytes.extend_from_slice(&piece[..amount]),
        }
    };
    let mut body = bytes.split_off(head_bytes);
    while body.len() < body_bytes {
        let mut piece = [0; 1024];
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return Ok(None),
            Ok(amount) => body.extend_from_slice(&piece[..amount]),
        }
    }
    body.truncate(body_bytes);
    // HTTP lets a GET carry a body without a meaning: it is read, so that it is not taken for the next
    // request
    if request.verb == Verb::Post {
        request.body = body;
    }
    Ok(Some(request))
}

/// The request without its body, the bytes of its head, and those of its body; none while the head is not
/// whole.
fn parse_head(bytes: &[u8], origin: Origin) -> Result<Option<(Request, usize, usize)>, Response> {
    let bad = |why: &str| Response::text(400, format!("not an HTTP request: {why}"));
    let (method, target, head) = match http1::request(bytes, 32) {
        Ok(Some(whole)) => whole,
        Ok(None) => return Ok(None),
        Err(error) => return Err(bad(&error.to_string())),
    };
    let verb = match method.as_str() {
        "GET" => Verb::Get,
        "POST" => Verb::Post,
        _ => return Err(Response::text(405, "only GET and POST are known here")),
    };
    // TCP does not show which user connects, and a web page may send a browser here
    if origin == Origin::Loopback {
        if verb != Verb::Get {
            return Err(Response::text(403, "changes are for the unix socket"));
        }
        if !head.text("host").is_some_and(is_loopback_host) {
            return Err(Response::text(403, "the Host header names no loopback address"));
        }
    }
    if head.text("transfer-encoding").is_some() {
        return Err(Response::text(411, "a body needs a Content-Length"));
    }
    let body_bytes = match head.text("content-length").map(str::parse::<usize>) {
        None => 0,
        Some(Ok(length)) if length <= MAX_BODY_BYTES => length,
        Some(Ok(_)) => {
            return Err(Response::text(413, format!("the body has more than {MAX_BODY_BYTES} bytes")));
        }
        Some(Err(_)) => return Err(bad("Content-Length is not a number")),
    };
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let path = http1::decoded(path, false).ok_or_else(|| bad("the path is not encoded as it must be"))?;
    let query = http1::query(query).ok_or_else(|| bad("the query is not encoded as it must be"))?;
    Ok(Some((Request { verb, path, query, body: Vec::new(), origin }, head.bytes, body_bytes)))
}

/// Whether a `Host` header names this machine's loopback; anything else is a browser led here by a foreign
/// DNS name.
fn is_loopback_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

async fn write_response(stream: &mut Box<dyn Connection>, response: &Response) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        response.status,
        reason(response.status),
        response.content_type,
        response.body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&response.body).await?;
    stream.shutdown().await
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        500.. => "Internal Server Error",
        _ => "Other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKET: Origin = Origin::Socket { uid: 0 };

    fn check(origin: Origin, head: &str, expect: &str) {
        let found = match parse_head(head.as_bytes(), origin) {
            Ok(Some((request, _, body_bytes))) => {
                format!("{:?} {} {:?} {body_bytes}", request.verb, request.path, request.query)
            }
            Ok(None) => "more".to_owned(),
            Err(response) => {
                format!("{} {}", response.status, String::from_utf8_lossy(&response.body).trim_end())
            }
        };
        assert_eq!(found, expect, "{head}");
    }

    #[test]
    fn request_head_is_parsed_or_refused() {
        check(SOCKET, "GET /healthz HTTP/1.1\r\n\r\n", "Get /healthz [] 0");
        check(SOCKET, "GET /healthz HTTP/1.1\r\nHost", "more");
        check(
            SOCKET,
            "POST /config/forgive?uid=a%2Fb+c&x HTTP/1.1\r\nContent-Length: 3\r\n\r\n",
            "Post /config/forgive [(\"uid\", \"a/b c\"), (\"x\", \"\")] 3",
        );
        check(SOCKET, "GET /a+b%20c HTTP/1.0\r\n\r\n", "Get /a+b c [] 0");
        check(
            SOCKET,
            "GET /%zz HTTP/1.1\r\n\r\n",
            "400 not an HTTP request: the path is not encoded as it must be",
        );
        check(
            SOCKET,
            "GET /?a=%f HTTP/1.1\r\n\r\n",
            "400 not an HTTP request: the query is not encoded as it must be",
        );
        check(
            SOCKET,
            "GET /%+1 HTTP/1.1\r\n\r\n",
            "400 not an HTTP request: the path is not encoded as it must be",
        );
        check(
            SOCKET,
            "GET /%ff HTTP/1.1\r\n\r\n",
            "400 not an HTTP request: the path is not encoded as it must be",
        );
        check(SOCKET, "DELETE / HTTP/1.1\r\n\r\n", "405 only GET and POST are known here");
        check(SOCKET, "\u{1}\u{2}\u{3}\r\n\r\n", "400 not an HTTP request: invalid token");
        let large = "POST / HTTP/1.1\r\nContent-Length: 65537\r\n\r\n";
        check(SOCKET, large, "413 the body has more than 65536 bytes");
        check(
            SOCKET,
            "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            "400 not an HTTP request: Content-Length is not a number",
        );
        check(
            SOCKET,
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "411 a body needs a Content-Length",
        );
    }

    #[test]
    fn only_root_and_own_user_are_admitted() {
        let check = |uid, own_uid, expect| assert_eq!(admitted(uid, own_uid), expect);
        check(0, 990, Ok(Origin::Socket { uid: 0 }));
        check(990, 990, Ok(Origin::Socket { uid: 990 }));
        check(1000, 990, Err(1000));
        check(1000, 0, Err(1000));
    }

    #[test]
    fn tcp_allows_reads_with_a_loopback_host_only() {
        let refused = "403 the Host header names no loopback address";
        let get = |host: &str| format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n");
        check(Origin::Loopback, &get("127.0.0.1:10248"), "Get /healthz [] 0");
        check(Origin::Loopback, &get("localhost"), "Get /healthz [] 0");
        check(Origin::Loopback, &get("[::1]:10248"), "Get /healthz [] 0");
        check(Origin::Loopback, &get("evil.example:10248"), refused);
        check(Origin::Loopback, &get("10.0.0.1"), refused);
        check(Origin::Loopback, "GET /healthz HTTP/1.1\r\n\r\n", refused);
        let post = "POST /config/reset HTTP/1.1\r\nHost: localhost\r\n\r\n";
        check(Origin::Loopback, post, "403 changes are for the unix socket");
    }
}
