//! Accepting connections, and their TLS handshakes.
//!
//! Always holds: a connection is accepted at once and costs one of the places for unfinished handshakes
//! (`handshakes`) until its caller is known; only then does it count as a connection of that caller
//! (`limits`). Left to others: requests (`connection`).

use crate::server::caller::{Caller, ConnectionError};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use kedge_hub_core::identity::Identity;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::Acceptor;
use time::OffsetDateTime;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch as signal;
use tokio::time::{timeout, timeout_at};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::connection::serve_requests;
use super::handshakes::{Exchange, Handshake, Network};
use super::link::{Link, TLS_BYTES, UNSENT_BYTES};
use super::shared::Server;
use super::stream::{Eye, Stalling};
use crate::guard::Turns;
use crate::pki;

/// Time until a client must have sent its first byte. Clients send it at once, so this is the delay of the
/// network.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(5);
/// Deadline of a TLS handshake that has begun: two kilobytes each way, with a client certificate, over the
/// slowest of links. It may be long, because under pressure the oldest handshakes are ended.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// Wait after a failed accept (no file descriptors), so that the loop does not spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How often an accept loop without connections reports progress.
const PULSE: Duration = Duration::from_secs(5);

/// The error of a handshake that was ended to make room for others.
const MADE_ROOM: &str = "there were too many connections";

/// A connection after its handshake. Boxed, because it is moved between tasks, and each would otherwise
/// reserve room for it.
type Tls = Box<TlsStream<Stalling>>;

/// Accepts connections, and serves each in a task of its own.
pub(super) async fn accept(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    server: Arc<Server>,
    stopped: signal::Receiver<bool>,
) {
    let mut failing = false;
    let turns = Turns::new(server.hub.loops().watch("accept"));
    loop {
        turns.idle_for(PULSE);
        let Ok(accepted) = timeout(PULSE, listener.accept()).await else { continue };
        match accepted {
            Ok((socket, peer)) => {
                failing = false;
                let own = socket.local_addr().map(|own| own.ip()).ok();
                let network = Network::of(peer.ip(), own);
                let Some(handshake) = server.handshakes.begin(network, Instant::now()) else {
                    server.counters.dropped_handshakes.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                let (tls, server, stopped) = (tls.clone(), server.clone(), stopped.clone());
                let counted = Counted::new(&server);
                tokio::spawn(async move {
                    let tell = move |error| log::debug!("connection from {peer}: {error}");
                    let (link, caller) = match connected(socket, peer.ip(), handshake, tls, &server).await {
                        Ok(connected) => connected,
                        Err(error) => return tell(error),
                    };
                    // a task of its own, so that the handshake's memory is freed
                    tokio::spawn(async move {
                        let _counted = counted;
                        serve_requests(link, &server, caller, stopped).await.unwrap_or_else(tell);
                    });
                });
            }
            Err(error) => {
                // logged once, not ten times a second
                if !std::mem::replace(&mut failing, true) {
                    log::warn!("cannot accept connections: {error}");
                }
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// A connection, counted until it is dropped.
struct Counted(Arc<Server>);

impl Counted {
    fn new(server: &Arc<Server>) -> Counted {
        server.counters.connections.fetch_add(1, Ordering::AcqRel);
        Counted(Arc::clone(server))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.counters.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A connection after its handshake, and its client.
async fn connected(
    socket: TcpStream,
    from: IpAddr,
    handshake: Handshake,
    tls: Arc<ServerConfig>,
    server: &Server,
) -> Result<(Link<Tls>, Caller), ConnectionError> {
    // answers are small and complete: do not delay them to fill packets
    socket.set_nodelay(true)?;
    // a kernel without this option has limits of its own
    let _ = socket2::SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT_BYTES);
    let network = handshake.network();
    let link = handshaken(socket, from, handshake, tls, server).await?;
    let certificate = link.stream().get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let identity = certificate.and_then(|der| identity_of(der, server));
    if let Some(node) = server.credentials.valid(identity.as_ref()).and_then(Identity::node) {
        server.handshakes.trust(node, network);
    }
    let patience = link.stream().get_ref().0.patience();
    let mut caller = Caller::new(server, identity, from);
    caller.patience = patience;
    Ok((link, caller))
}

/// The identity of a client's certificate. A certificate by a retired authority counts as expired since the
/// retirement: a node may ask for the next one with it, and for nothing else.
fn identity_of(der: &CertificateDer<'_>, server: &Server) -> Option<Identity> {
    let mut identity = Identity::from_client_certificate(der)?;
    if let Some(ended) = server.hub.ended(pki::issuer_name(der).as_deref()) {
        let past = OffsetDateTime::now_utc().unix_timestamp() - 1;
        let ended = ended.min(past);
        identity.not_after = Some(identity.not_after.map_or(ended, |end| end.min(ended)));
    }
    Some(identity)
}

/// Performs the handshake, unless it must make room for others. The expensive step is the key exchange: a
/// network is charged for it once the client's hello is complete, so connections that end earlier cost their
/// network nothing.
async fn handshaken(
    socket: TcpStream,
    from: IpAddr,
    mut handshake: Handshake,
    tls: Arc<ServerConfig>,
    server: &Server,
) -> Result<Link<Tls>, ConnectionError> {
    let begins = timeout(FIRST_BYTE_TIMEOUT, socket.readable());
    unless_ended(&mut handshake, begins).await?.map_err(|_| "silent")??;
    if !handshake.heard() {
        return Err(MADE_ROOM.into());
    }
    let until = tokio::time::Instant::now() + HANDSHAKE_TIMEOUT;
    let tell = |error: &io::Error| refused(error, from, server);
    let hello = LazyConfigAcceptor::new(Acceptor::default(), Stalling::new(socket));
    let hello = unless_ended(&mut handshake, in_time(until, hello)).await?.inspect_err(tell)?;
    match handshake.exchange(Instant::now()) {
        Exchange::Paid => {}
        Exchange::Ended => return Err(MADE_ROOM.into()),
        Exchange::Refused => {
            tell_of_paced(from, server);
            return Err("its network begins too many".into());
        }
    }
    let finished = in_time(until, hello.into_stream(tls));
    let mut stream = unless_ended(&mut handshake, finished).await?.inspect_err(tell)?;
    stream.get_mut().1.set_buffer_limit(Some(TLS_BYTES));
    Ok(Link::seen_by(Box::new(stream), |stream| Eye::of(stream.get_ref().0)))
}

/// Runs a part of a handshake until its deadline.
async fn in_time<T>(until: tokio::time::Instant, part: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake took too long");
    timeout_at(until, part).await.unwrap_or_else(|_| Err(late()))
}

/// Runs a part of a handshake, unless it has to make room first.
async fn unless_ended<T>(
    handshake: &mut Handshake,
    part: impl Future<Output = T>,
) -> Result<T, ConnectionError> {
    tokio::select! {
        // in this order: a handshake that must make room does no more work
        biased;
        () = handshake.ended() => Err(MADE_ROOM.into()),
        done = part => Ok(done),
    }
}

/// Counts a handshake that failed, and logs it.
fn refused(error: &io::Error, from: IpAddr, server: &Server) {
    server.counters.refused_handshakes.fetch_add(1, Ordering::Relaxed);
    tell_of_refused(error, from, server);
}

/// Counts a handshake of a network that begins too many, and logs it, so that an operator can see why a
/// site's nodes must wait.
fn tell_of_paced(from: IpAddr, server: &Server) {
    server.counters.paced_handshakes.fetch_add(1, Ordering::Relaxed);
    let lines = &server.counters.paced_handshake_lines;
    match lines.lock().unwrap_or_else(PoisonError::into_inner).one_more(Instant::now()) {
        Some(0) => log::warn!("the network of {from} begins too many TLS handshakes: ended one"),
        Some(before) => {
            log::warn!(
                "the network of {from} begins too many TLS handshakes: ended one; {before} more of this or other networks since the last line"
            );
        }
        None => {}
    }
}

/// Logs a failed handshake, so that an operator can see why a node cannot join. Only errors of TLS itself: a
/// probe of the open port is not logged.
fn tell_of_refused(error: &io::Error, from: IpAddr, server: &Server) {
    if error.kind() != io::ErrorKind::InvalidData {
        return;
    }
    let lines = &server.counters.handshake_lines;
    let before = lines.lock().unwrap_or_else(PoisonError::into_inner).one_more(Instant::now());
    match before {
        Some(0) => log::warn!("TLS handshake with {from} failed: {error}"),
        Some(before) => {
            log::warn!("TLS handshake with {from} failed: {error}; {before} more since the last line")
        }
        None => {}
    }
}
