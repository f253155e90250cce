//! A connection to a pod, with or without TLS, on the runtime of the main thread.
//!
//! Always holds: no certificate is verified, as in upstream's probes: they only check whether something
//! answers, and send nothing secret. Leaves timeouts to the caller.

use crate::any_server::AnyServer;
use crate::beside::beside;
use crate::net::tls;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// Lookups at once: a lookup continues when nobody waits for it any longer, for as long as the name servers
/// take.
const LOOKUPS: usize = 16;
static LOOKUP: Semaphore = Semaphore::const_new(LOOKUPS);

/// Addresses of a name that are tried.
const ADDRESSES: usize = 8;

/// A connection.
pub(super) struct Stream<S = TcpStream> {
    socket: S,
    tls: Option<Box<ClientConnection>>,
}

/// `host:port`, as a URL has it.
pub(super) fn shown(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// An error in Go's form: lower case, without the number.
pub(super) fn worded(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

/// Where to dial.
async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let place = LOOKUP.try_acquire().map_err(|_| {
        io::Error::other(format!("{LOOKUPS} names are being looked up, and none is answered"))
    })?;
    let host = host.to_owned();
    let found = beside(move || {
        let _place = place;
        (host.as_str(), port).to_socket_addrs().map(|found| found.take(ADDRESSES).collect())
    });
    found.await?
}

impl Stream {
    /// The error has upstream's text.
    pub(super) async fn connect(host: &str, port: u16) -> Result<Self, String> {
        let socket = async { TcpStream::connect(&addresses(host, port).await?[..]).await }.await;
        let socket =
            socket.map_err(|error| format!("dial tcp {}: connect: {}", shown(host, port), worded(&error)))?;
        let _ = socket.set_nodelay(true);
        Ok(Self::over(socket))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream<S> {
    /// Uses an existing connection.
    pub(super) fn over(socket: S) -> Self {
        Self { socket, tls: None }
    }

    /// Uses TLS from here on.
    pub(super) fn with_tls(mut self, host: &str, config: Arc<ClientConfig>) -> Result<Self, String> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        let tls = ClientConnection::new(config, name).map_err(|error| error.to_string())?;
        self.tls = Some(Box::new(tls));
        Ok(self)
    }

    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return self.socket.write_all(bytes).await };
        tls.writer().write_all(bytes)?;
        self.flush().await
    }

    /// Sends TLS's pending output.
    async fn flush(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            let mut bytes = Vec::new();
            tls.write_tls(&mut bytes)?;
            self.socket.write_all(&bytes).await?;
        }
        Ok(())
    }

    /// 0 if the other side has closed its output.
    pub(super) async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.tls.is_none() {
            return self.socket.read(buffer).await;
        }
        loop {
            self.flush().await?;
            let Some(tls) = &mut self.tls else { return Ok(0) };
            match tls.reader().read(buffer) {
                // a side that closes without TLS's notice has closed all the same
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            let mut records = [0; 4096];
            let length = self.socket.read(&mut records).await?;
            // an empty slice tells TLS that the other side has closed
            let mut received = &records[..length];
            loop {
                tls.read_tls(&mut received)?;
                tls.process_new_packets().map_err(io::Error::other)?;
                if received.is_empty() {
                    break;
                }
            }
        }
    }
}

/// TLS that accepts any certificate.
pub(super) fn unverified_tls() -> Result<Arc<ClientConfig>, rustls::Error> {
    let provider = Arc::new(tls::provider());
    let builder =
        ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let verifier = Arc::new(AnyServer(provider));
    Ok(Arc::new(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()))
}

/// How much of an output or a body is kept: upstream's limit.
pub(crate) const OUTPUT_BYTES: usize = 10 * 1024;
