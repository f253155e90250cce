//! A small HTTPS client for load and for watching: one kept-alive connection, blocking, no retries.
//!
//! Always holds: the hub's certificate is verified, and every connection has its own client certificate, as real nodes do. It
//! speaks only what the hub is known to answer: HTTP/1.1 with a length or in chunks. Not for anything but measuring.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use base64::Engine as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

/// Longest wait for one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Largest answer that is read.
const ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// Who we are and where the hub is.
#[derive(Clone)]
pub(crate) struct Identity {
    address: SocketAddr,
    config: Arc<ClientConfig>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// HTTP status.
    pub(crate) status: u16,
    /// The body.
    pub(crate) body: Vec<u8>,
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

impl Identity {
    /// From the text of a kubeconfig as the hub writes it.
    pub(crate) fn read(kubeconfig: &str) -> io::Result<Identity> {
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
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(&pem("certificate-authority-data")?) {
            roots.add(root.map_err(bad)?).map_err(io::Error::other)?;
        }
        let chain = CertificateDer::pem_slice_iter(&pem("client-certificate-data")?)
            .collect::<Result<Vec<_>, _>>()
            .map_err(bad)?;
        let key = PrivateKeyDer::from_pem_slice(&pem("client-key-data")?).map_err(bad)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(io::Error::other)?;
        let server = field("server")?.trim_matches('"');
        let address = server
            .strip_prefix("https://")
            .and_then(|rest| rest.parse().ok())
            .ok_or_else(|| invalid(format!("server is {server}, expected https://ADDRESS:PORT")))?;
        Ok(Identity { address, config: Arc::new(config) })
    }

    /// Where the hub listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Opens a connection; the handshake comes with the first request.
    pub(crate) fn connect(&self) -> io::Result<Connection> {
        let socket = TcpStream::connect(self.address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(ANSWER_LIMIT))?;
        let name = ServerName::from(self.address.ip());
        let session = ClientConnection::new(self.config.clone(), name).map_err(io::Error::other)?;
        Ok(Connection { host: self.address, stream: BufReader::new(StreamOwned::new(session, socket)) })
    }

    /// Watches a collection on a thread of its own; gives every event with the moment it came. Ends with the connection.
    pub(crate) fn watch(&self, path: &str) -> io::Result<Receiver<(Instant, Value)>> {
        let mut connection = self.connect()?;
        connection.send("GET", &format!("{path}?watch=true"), "", b"")?;
        let head = connection.head()?;
        if head.status != 200 {
            return Err(invalid(format!("watch {path}: answered {}", head.status)));
        }
        connection.stream.get_ref().sock.set_read_timeout(None)?;
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut text = Vec::new();
            while let Ok(Some(piece)) = connection.chunk() {
                let at = Instant::now();
                text.extend_from_slice(&piece);
                while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = text.drain(..=end).collect();
                    let Ok(event) = serde_json::from_slice(&line) else { return };
                    if sender.send((at, event)).is_err() {
                        return;
                    }
                }
            }
        });
        Ok(receiver)
    }
}

/// One kept-alive connection.
pub(crate) struct Connection {
    host: SocketAddr,
    stream: BufReader<StreamOwned<ClientConnection, TcpStream>>,
}

struct Head {
    status: u16,
    length: Option<usize>,
    is_chunked: bool,
}

impl Connection {
    /// Sends a request and reads the whole answer. `headers` are whole lines, each with its line end.
    pub(crate) fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> io::Result<Answer> {
        self.send(method, path, headers, body)?;
        let head = self.head()?;
        let mut whole = Vec::new();
        if head.is_chunked {
            while let Some(piece) = self.chunk()? {
                whole.extend_from_slice(&piece);
                if whole.len() > ANSWER_BYTES {
                    return Err(invalid(format!(
                        "{method} {path}: the answer is larger than {ANSWER_BYTES}"
                    )));
                }
            }
        } else {
            whole.resize(head.length.unwrap_or(0).min(ANSWER_BYTES), 0);
            self.stream.read_exact(&mut whole)?;
        }
        Ok(Answer { status: head.status, body: whole })
    }

    /// The same; an error unless the status is 2xx.
    pub(crate) fn accepted(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &Value,
    ) -> io::Result<Value> {
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
        let stream = self.stream.get_mut();
        stream.write_all(&text)?;
        stream.flush()
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }

    fn head(&mut self) -> io::Result<Head> {
        let first = self.line()?;
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| invalid(format!("the answer begins with {first:?}")))?;
        let mut head = Head { status, length: None, is_chunked: false };
        loop {
            let line = self.line()?.to_ascii_lowercase();
            match line.split_once(": ") {
                Some(("content-length", length)) => head.length = length.parse().ok(),
                Some(("transfer-encoding", "chunked")) => head.is_chunked = true,
                None if line.is_empty() => return Ok(head),
                _ => {}
            }
        }
    }

    fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = self.line()?;
        let length = usize::from_str_radix(&line, 16)
            .ok()
            .filter(|length| *length <= ANSWER_BYTES)
            .ok_or_else(|| invalid(format!("a chunk begins with {line:?}")))?;
        let mut piece = vec![0; length + 2];
        self.stream.read_exact(&mut piece)?;
        piece.truncate(length);
        Ok((length > 0).then_some(piece))
    }
}
