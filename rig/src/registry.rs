//! A registry on loopback that misbehaves on demand: an image registry's HTTP API, in plain HTTP or over TLS,
//! with faults.
//!
//! Always holds: it serves exactly the stored bytes, and remembers every request, so that a test can see the
//! traffic; a fault affects the requests for which it was made, in order. Threads end with their connections.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A fault of one answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks after so many bytes of the body.
    CutAfter(usize),
    /// The body ends after so many bytes, and so does its stated length.
    Truncated(usize),
    /// More bytes than the blob has.
    Oversized(usize),
    /// As many bytes, but different ones.
    OtherBytes,
    /// Status 200 with the whole content, whatever range was requested.
    IgnoredRange,
    /// Status 206 with a range that begins elsewhere.
    OtherRange,
    /// This status and nothing else.
    Status(u16),
    /// A redirect to this base URL; the path is kept.
    RedirectTo(String),
    /// The head of an answer, and then nothing until the other side closes.
    Stall,
    /// From this request on the earlier tokens have expired; `/token` issues this one.
    NewToken(String),
}

/// The credentials that are needed for reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Access {
    #[default]
    Anyone,
    /// `user:password` with each request.
    Basic(String),
    /// A token that the path `/token` issues to this `user:password`, or to anybody if it is empty.
    Bearer { user: String, token: String },
}

/// A received request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub path: String,
    pub range: Option<String>,
    pub authorization: Option<String>,
}

#[derive(Default)]
struct State {
    /// See [`FakeRegistry::go_out`].
    is_out: bool,
    /// Path, content type, bytes.
    served: BTreeMap<String, (String, Vec<u8>)>,
    /// A part of the affected paths, and the fault; each is used once.
    faults: Vec<(String, Fault)>,
    access: Access,
    seen: Vec<Seen>,
}

/// The registry; it ends with the process.
#[derive(Clone)]
pub struct FakeRegistry {
    address: SocketAddr,
    /// Absent for plain HTTP.
    tls: Option<Arc<ServerConfig>>,
    state: Arc<Mutex<State>>,
}

trait Connection: Read + Write {}
impl<T: Read + Write> Connection for T {}

/// Reads are buffered; answers are written to the inner connection.
type Caller = BufReader<Box<dyn Connection>>;

impl FakeRegistry {
    /// An empty registry.
    ///
    /// # Errors
    /// No port of loopback is free.
    pub fn start() -> io::Result<Self> {
        Self::listen(None)
    }

    /// The same over TLS, with the certificate and the key that
    /// [`crate::real_registry::RealRegistry::certify`] left in this directory.
    ///
    /// # Errors
    /// No port of loopback is free, or the certificate is missing.
    pub fn start_tls(directory: &Path) -> io::Result<Self> {
        let chain = CertificateDer::from_pem_file(directory.join("leaf.pem")).map_err(io::Error::other)?;
        let key = PrivateKeyDer::from_pem_file(directory.join("leaf.key")).map_err(io::Error::other)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(vec![chain], key));
        Self::listen(Some(Arc::new(config.map_err(io::Error::other)?)))
    }

    fn listen(tls: Option<Arc<ServerConfig>>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let registry = Self { address: listener.local_addr()?, tls, state: Arc::default() };
        let serving = registry.clone();
        thread::Builder::new().name("registry".to_owned()).spawn(move || {
            for connection in listener.incoming().flatten() {
                if serving.state().is_out {
                    return;
                }
                let serving = serving.clone();
                // the test handles errors of a broken connection
                thread::spawn(move || serving.serve(connection));
            }
        })?;
        Ok(registry)
    }

    /// `127.0.0.1:port`, as in an image's name.
    #[must_use]
    pub fn name(&self) -> String {
        self.address.to_string()
    }

    /// Stops listening, and ends open connections at their next request.
    ///
    /// # Errors
    /// It was out already.
    pub fn go_out(&self) -> io::Result<()> {
        self.state().is_out = true;
        // wakes the listener, which waits for a connection
        TcpStream::connect(self.address).map(drop)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves bytes at `/v2/` and this path.
    pub fn put(&self, path: &str, content_type: &str, bytes: &[u8]) {
        self.state().served.insert(format!("/v2/{path}"), (content_type.to_owned(), bytes.to_vec()));
    }

    /// Serves bytes at this path, outside of the registry's API.
    pub fn put_file(&self, path: &str, bytes: &[u8]) {
        self.state().served.insert(path.to_owned(), ("application/octet-stream".to_owned(), bytes.to_vec()));
    }

    /// Makes the next answer to a path that contains `part` fail.
    pub fn fail(&self, part: &str, fault: Fault) {
        self.state().faults.push((part.to_owned(), fault));
    }

    /// Sets the credentials that are needed from now on.
    pub fn set_access(&self, access: Access) {
        self.state().access = access;
    }

    /// The requests since the last call.
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state().seen)
    }

    fn serve(&self, connection: TcpStream) -> io::Result<()> {
        let socket = connection.try_clone()?;
        let connection: Box<dyn Connection> = match &self.tls {
            None => Box::new(connection),
            Some(config) => {
                let tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
                Box::new(StreamOwned::new(tls, connection))
            }
        };
        let mut caller = BufReader::new(connection);
        loop {
            let seen = match read_request(&mut caller) {
                // not text: the client begins with TLS, which a real one answers like this
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return head(caller.get_mut(), 400, "", 0);
                }
                read => read?,
            };
            let Some(seen) = seen else { return Ok(()) };
            self.state().seen.push(seen.clone());
            if self.state().is_out {
                return socket.shutdown(std::net::Shutdown::Both);
            }
            if !self.answer(&seen, caller.get_mut())? {
                return socket.shutdown(std::net::Shutdown::Both);
            }
        }
    }

    /// Returns true if the connection stays open.
    fn answer(&self, seen: &Seen, writer: &mut dyn Connection) -> io::Result<bool> {
        let path = seen.path.split('?').next().unwrap_or_default();
        let (fault, access, served) = {
            let mut state = self.state();
            let at = state.faults.iter().position(|(part, _)| path.contains(part.as_str()));
            let fault = at.map(|at| state.faults.remove(at).1);
            if let (Some(Fault::NewToken(new)), Access::Bearer { token, .. }) = (&fault, &mut state.access) {
                token.clone_from(new);
            }
            (fault, state.access.clone(), state.served.get(path).cloned())
        };
        match &fault {
            Some(Fault::Status(status)) => return head(writer, *status, "", 0).map(|()| true),
            Some(Fault::RedirectTo(base)) => {
                let location = format!("Location: {base}{}\r\n", seen.path);
                return head(writer, 307, &location, 0).map(|()| true);
            }
            _ => {}
        }
        if path == "/token" {
            return self.token(seen, &access, writer).map(|()| true);
        }
        if let Some(challenge) = refused(&access, seen, &self.name()) {
            return head(writer, 401, &challenge, 0).map(|()| true);
        }
        let Some((content_type, bytes)) = served else {
            let body = br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#;
            head(writer, 404, "Content-Type: application/json\r\n", body.len())?;
            return writer.write_all(body).map(|()| true);
        };
        send(writer, seen, fault, &content_type, &bytes)
    }

    fn token(&self, seen: &Seen, access: &Access, writer: &mut dyn Connection) -> io::Result<()> {
        let Access::Bearer { user, token } = access else { return head(writer, 404, "", 0) };
        if !user.is_empty() && seen.authorization.as_deref() != Some(&basic(user)) {
            return head(writer, 401, "WWW-Authenticate: Basic\r\n", 0);
        }
        let body = format!(r#"{{"token":"{token}","expires_in":60}}"#);
        head(writer, 200, "Content-Type: application/json\r\n", body.len())?;
        writer.write_all(body.as_bytes())
    }
}

fn basic(user: &str) -> String {
    use base64::Engine;
    format!("Basic {}", base64::prelude::BASE64_STANDARD.encode(user))
}

/// The challenge for a request without the needed credentials.
fn refused(access: &Access, seen: &Seen, name: &str) -> Option<String> {
    let (needed, challenge) = match access {
        Access::Anyone => return None,
        Access::Basic(user) => (basic(user), "WWW-Authenticate: Basic realm=\"r\"\r\n".to_owned()),
        Access::Bearer { token, .. } => (
            format!("Bearer {token}"),
            format!("WWW-Authenticate: Bearer realm=\"http://{name}/token\",service=\"{name}\"\r\n"),
        ),
    };
    (seen.authorization.as_ref() != Some(&needed)).then_some(challenge)
}

fn send(
    writer: &mut dyn Connection,
    seen: &Seen,
    fault: Option<Fault>,
    content_type: &str,
    bytes: &[u8],
) -> io::Result<bool> {
    let asked = seen.range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let asked = asked.filter(|_| fault != Some(Fault::IgnoredRange));
    let from = asked.and_then(|(from, _)| from.parse().ok());
    let end = asked.and_then(|(_, to)| to.parse::<usize>().ok()?.checked_add(1));
    let end = end.unwrap_or(bytes.len()).min(bytes.len());
    if from.is_some_and(|from: usize| from >= bytes.len()) {
        return head(writer, 416, "", 0).map(|()| true);
    }
    let mut body = bytes[from.unwrap_or(0)..end].to_vec();
    // `Fault::OtherRange`: the header states another range than the one sent
    let named_from =
        from.map(|from| if fault == Some(Fault::OtherRange) { from.saturating_sub(1) } else { from });
    match fault {
        Some(Fault::Truncated(length)) => body.truncate(length),
        Some(Fault::Oversized(more)) => body.extend(vec![0; more]),
        Some(Fault::OtherBytes) => body.iter_mut().for_each(|byte| *byte = !*byte),
        _ => {}
    }
    let range = match named_from {
        Some(from) => format!("Content-Range: bytes {from}-{}/{}\r\n", end - 1, bytes.len()),
        None => String::new(),
    };
    let status = if from.is_some() { 206 } else { 200 };
    head(writer, status, &format!("Content-Type: {content_type}\r\n{range}"), body.len())?;
    match fault {
        Some(Fault::CutAfter(length)) => {
            writer.write_all(&body[..length.min(body.len())])?;
            Ok(false)
        }
        Some(Fault::Stall) => {
            let mut byte = [0];
            while writer.read(&mut byte)? > 0 {}
            Ok(false)
        }
        _ => writer.write_all(&body).map(|()| true),
    }
}

fn head(writer: &mut dyn Connection, status: u16, headers: &str, length: usize) -> io::Result<()> {
    write!(writer, "HTTP/1.1 {status} Said\r\n{headers}Content-Length: {length}\r\n\r\n")
}

fn read_request(reader: &mut Caller) -> io::Result<Option<Seen>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut seen = Seen { path, range: None, authorization: None };
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { return Ok(Some(seen)) };
        match name.to_ascii_lowercase().as_str() {
            "range" => seen.range = Some(value.to_owned()),
            "authorization" => seen.authorization = Some(value.to_owned()),
            _ => {}
        }
    }
}
