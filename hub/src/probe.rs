//! The hub's request to itself: proof that nodes could have reached it.
//!
//! Always holds: it takes the path of a node's request (a new connection, TLS, an HTTP request, an answer),
//! so a stuck listener or a stuck runtime makes it fail. The probe has an identity of its own, which no limit
//! refuses: other callers cannot make it fail, however much they use. Success proves nothing about the
//! network outside this machine: a hub that is cut off from its nodes declares them lost, as it should.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The hub answers itself within milliseconds; a hub that takes longer than this does not serve its nodes
/// either.
const LIMIT: Duration = Duration::from_secs(5);
/// A name that all of the hub's serving certificates have.
const NAME: &str = "localhost";
const REQUEST: &[u8] = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
/// Only the status line is read.
const ANSWER: &[u8] = b"HTTP/1.1 200 ";

/// Reaches the hub over TLS, as a node would.
pub struct Probe {
    address: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
}

impl Probe {
    /// `listening`: the address the hub listens on, which may be unspecified (0.0.0.0); `tls`: trusts the
    /// hub's CA, and shows the probe's certificate.
    pub fn new(listening: SocketAddr, tls: Arc<rustls::ClientConfig>) -> Probe {
        let mut address = listening;
        match listening.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        Probe { address, tls }
    }

    /// Makes the request; the error names the URL and the result.
    pub(crate) async fn check(&self) -> Result<(), String> {
        let failed = |why: &dyn std::fmt::Display| format!("GET https://{}/livez: {why}", self.address);
        match tokio::time::timeout(LIMIT, self.ask()).await {
            Ok(Ok(answer)) if answer == ANSWER => Ok(()),
            Ok(Ok(answer)) => Err(failed(&format!("found {:?}", String::from_utf8_lossy(&answer)))),
            Ok(Err(error)) => Err(failed(&error)),
            Err(_) => Err(failed(&format!("no answer in {LIMIT:?}"))),
        }
    }

    async fn ask(&self) -> io::Result<Vec<u8>> {
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let mut stream = TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await?;
        stream.write_all(REQUEST).await?;
        let mut answer = vec![0; ANSWER.len()];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    }
}
