//! A small HTTPS client for tests and measurements of a hub: one kept-alive connection, blocking, no retries.
//!
//! Always holds: the hub's certificate is verified. Bytes are sent exactly as the caller gives them, so a
//! test can send requests that a proper client would not. It can only read the forms of answers that the hub
//! uses: HTTP/1.1 with a length or in chunks.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use base64::Engine as _;
use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

/// Longest wait for one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Largest answer that is read.
const ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// Buffer and segments of a connection over a narrow link.
const NARROW_BYTES: usize = 8 * 1024;
const NARROW_SEGMENT: u32 = 1200;

/// A client's credentials and the hub's address.
#[derive(Clone)]
pub struct Identity {
    address: SocketAddr,
    /// The source address of its connections; `None`: the system chooses.
    source: Option<Ipv4Addr>,
    /// True if its connections accept little data at a time.
    is_narrow: bool,
    config: Arc<ClientConfig>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Status line and headers, unchanged.
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// All values of a header.
    pub fn header<'a>(&'a self, name: &'a str) -> Vec<&'a str> {
        values(&self.head, name).collect()
    }
}

fn values<'a>(head: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let headers = head.lines().filter_map(|line| line.split_once(": "));
    headers.filter(move |(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

impl Identity {
    /// Reads the text of a kubeconfig that the hub wrote.
    pub fn read(kubeconfig: &str) -> io::Result<Identity> {
        let field = |name: &str| {
            kubeconfig
                .lines()
                .find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": "))
                .ok_or_else(|| invalid(format!("the kubeconfig has no {name}")))
        };
        let pem = |name: &str| {
            let bytes = base64::engine::general_purpose::STANDARD.decode(field(name)?);
            bytes.map_err(|error| invalid(format!("{name}: {error}")))
        };
        let bad = |error: rustls::pki_types::pem::Error| invalid(error.to_string());
        let chain = CertificateDer::pem_slice_iter(&pem("client-certificate-data")?)
            .collect::<Result<Vec<_>, _>>()
            .map_err(bad)?;
        let key = PrivateKeyDer::from_pem_slice(&pem("client-key-data")?).map_err(bad)?;
        let config = trusting(&pem("certificate-authority-data")?)?
            .with_client_auth_cert(chain, key)
            .map_err(io::Error::other)?;
        let address = address_of(field("server")?.trim_matches('"'))?;
        Ok(Identity { address, source: None, is_narrow: false, config: Arc::new(config) })
    }

    /// The same identity, for a hub that has moved to another address.
    pub fn at(self, url: &str) -> io::Result<Identity> {
        Ok(Identity { address: address_of(url)?, ..self })
    }

    /// The same identity, connecting from this address: nodes of a fleet do not share one.
    pub fn from_address(self, source: Ipv4Addr) -> Identity {
        Identity { source: Some(source), ..self }
    }

    /// The same identity, with connections that accept as little data at a time as over a slow link: unread
    /// bytes then wait in the hub, and not in this machine's buffers, which hold megabytes on the loopback
    /// interface.
    pub fn over_narrow_link(self) -> Identity {
        Identity { source: self.source.or(Some(Ipv4Addr::LOCALHOST)), is_narrow: true, ..self }
    }

    /// An identity that trusts the authority and has no certificate.
    pub fn anonymous(authority: &[u8], url: &str) -> io::Result<Identity> {
        let config = Arc::new(trusting(authority)?.with_no_client_auth());
        Ok(Identity { address: address_of(url)?, source: None, is_narrow: false, config })
    }

    /// Where the hub listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Opens a connection without a handshake.
    pub fn dial(&self) -> io::Result<TcpStream> {
        match (self.source, self.address) {
            (Some(source), SocketAddr::V4(address)) => connected_from(source, address, self.is_narrow),
            _ => TcpStream::connect(self.address),
        }
    }

    /// Opens a connection; the handshake follows with the first request.
    pub fn connect(&self) -> io::Result<Connection> {
        let socket = self.dial()?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(ANSWER_LIMIT))?;
        let name = ServerName::from(self.address.ip());
        let session = ClientConnection::new(self.config.clone(), name).map_err(io::Error::other)?;
        Ok(Connection { host: self.address, stream: BufReader::new(StreamOwned::new(session, socket)) })
    }

    /// Watches a collection on a thread of its own; sends each event with the time of its arrival. Ends with
    /// the connection.
    pub fn watch(&self, path: &str) -> io::Result<Receiver<(Instant, Value)>> {
        let mut events = match self.events(&format!("{path}?watch=true"))? {
            Ok(events) => events,
            Err(status) => return Err(invalid(format!("watch {path}: answered {status}"))),
        };
        events.connection.stream.get_ref().sock.set_read_timeout(None)?;
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            while let Ok(Some(event)) = events.next() {
                if sender.send((events.arrived, event)).is_err() {
                    return;
                }
            }
        });
        Ok(receiver)
    }

    /// Opens a watch on a connection of its own, or returns the status that refused it.
    pub fn events(&self, path: &str) -> io::Result<Result<Events, u16>> {
        let mut connection = self.connect()?;
        connection.send("GET", path, "", b"")?;
        let (status, head) = connection.head()?;
        if status != 200 {
            return Ok(Err(status));
        }
        // a watch that ends at once may be answered with a length
        let length = values(&head, "content-length").next().and_then(|length| length.parse::<usize>().ok());
        let mut pending = vec![0; length.unwrap_or(0).min(ANSWER_BYTES)];
        connection.stream.read_exact(&mut pending)?;
        Ok(Ok(Events { connection, pending, whole: length.is_some(), arrived: Instant::now() }))
    }
}

fn connected_from(source: Ipv4Addr, address: SocketAddrV4, is_narrow: bool) -> io::Result<TcpStream> {
    use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn, sockopt};
    let socket = socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    if is_narrow {
        socket::setsockopt(&socket, sockopt::RcvBuf, &NARROW_BYTES)?;
        // this also determines the initial buffer of the other side's kernel
        socket::setsockopt(&socket, sockopt::TcpMaxSeg, &NARROW_SEGMENT)?;
    }
    socket::bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(source, 0)))?;
    socket::connect(socket.as_raw_fd(), &SockaddrIn::from(address))?;
    Ok(TcpStream::from(socket))
}

/// A configuration that trusts this authority (PEM) and no other.
fn trusting(authority: &[u8]) -> io::Result<rustls::ConfigBuilder<ClientConfig, WantsClientCert>> {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(authority) {
        roots.add(root.map_err(|error| invalid(error.to_string()))?).map_err(io::Error::other)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(builder.map_err(io::Error::other)?.with_root_certificates(roots))
}

fn address_of(url: &str) -> io::Result<SocketAddr> {
    let address = url.strip_prefix("https://").and_then(|rest| rest.parse().ok());
    address.ok_or_else(|| invalid(format!("the server is {url}, expected https://ADDRESS:PORT")))
}

/// The events of an open watch.
pub struct Events {
    connection: Connection,
    pending: Vec<u8>,
    /// True if nothing follows the pending bytes.
    whole: bool,
    /// The arrival time of the newest event.
    arrived: Instant,
}

impl Events {
    /// Waits for the next event; `None` when the watch has ended.
    #[expect(clippy::should_implement_trait, reason = "an iterator would have to hide errors in its items")]
    pub fn next(&mut self) -> io::Result<Option<Value>> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            if self.whole {
                return Ok(None);
            }
            match self.connection.chunk()? {
                Some(piece) => self.pending.extend_from_slice(&piece),
                None => return Ok(None),
            }
            self.arrived = Instant::now();
        }
    }
}

/// One kept-alive connection.
pub struct Connection {
    host: SocketAddr,
    stream: BufReader<StreamOwned<ClientConnection, TcpStream>>,
}

impl Connection {
    /// Sends a request and reads the whole answer. `headers` are whole lines, each with its line end.
    pub fn request(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> io::Result<Answer> {
        self.send(method, path, headers, body)?;
        self.answer()
    }

    /// Keeps the connection open, but frees the state of its session, so that only the hub's memory for it is
    /// measured.
    pub fn into_socket(self) -> TcpStream {
        self.stream.into_inner().into_parts().1
    }

    /// Reads the next answer.
    pub fn answer(&mut self) -> io::Result<Answer> {
        let (status, head) = self.head()?;
        let mut body = Vec::new();
        if values(&head, "transfer-encoding").next().is_some() {
            while let Some(piece) = self.chunk()? {
                body.extend_from_slice(&piece);
                if body.len() > ANSWER_BYTES {
                    return Err(invalid(format!("the answer is larger than {ANSWER_BYTES}")));
                }
            }
        } else {
            let length = values(&head, "content-length").next().and_then(|length| length.parse().ok());
            body.resize(length.unwrap_or(0).min(ANSWER_BYTES), 0);
            self.stream.read_exact(&mut body)?;
        }
        Ok(Answer { status, head, body })
    }

    /// Sends bytes unchanged.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let stream = self.stream.get_mut();
        stream.write_all(bytes)?;
        stream.flush()
    }

    /// Reads up to and including these bytes.
    pub fn read_until(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while !bytes.ends_with(end) {
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            bytes.extend_from_slice(&byte);
            if bytes.len() > ANSWER_BYTES {
                return Err(invalid(format!("the answer is larger than {ANSWER_BYTES}")));
            }
        }
        Ok(bytes)
    }

    /// Reads to the connection's end, with or without TLS's own end.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _ = self.stream.read_to_end(&mut bytes);
        bytes
    }

    /// As [`request`](Self::request) with a JSON body; an error unless the status is 2xx.
    pub fn accepted(&mut self, method: &str, path: &str, headers: &str, body: &Value) -> io::Result<Value> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let answer = self.request(method, path, headers, &body)?;
        if !(200..300).contains(&answer.status) {
            let said = String::from_utf8_lossy(&answer.body).into_owned();
            return Err(invalid(format!("{method} {path}: answered {}: {said}", answer.status)));
        }
        if answer.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&answer.body).map_err(|error| invalid(format!("{method} {path}: {error}")))
    }

    fn send(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> io::Result<()> {
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n{headers}", self.host).into_bytes();
        if !body.is_empty() {
            write!(text, "content-length: {}\r\n", body.len())?;
        }
        text.extend_from_slice(b"\r\n");
        text.extend_from_slice(body);
        self.write(&text)
    }

    /// The status, and the whole head as it came.
    fn head(&mut self) -> io::Result<(u16, String)> {
        let mut head = String::new();
        loop {
            let before = head.len();
            if self.stream.read_line(&mut head)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if head[before..].trim_end().is_empty() {
                break;
            }
        }
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Ok((status.ok_or_else(|| invalid(format!("the answer begins with {head:?}")))?, head))
    }

    fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let length = usize::from_str_radix(line.trim_end(), 16)
            .ok()
            .filter(|length| *length <= ANSWER_BYTES)
            .ok_or_else(|| invalid(format!("a chunk begins with {line:?}")))?;
        let mut piece = vec![0; length + 2];
        self.stream.read_exact(&mut piece)?;
        piece.truncate(length);
        Ok((length > 0).then_some(piece))
    }
}
