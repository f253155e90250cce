//! Connections: from a name to a verified TLS stream that ureq can use.
//!
//! Owns name lookup, dialling, the proxy tunnel, TLS and the sockets' timeouts. Always holds: every wait has
//! a deadline, another thread can end it ([`Cancel`]), and no byte of a request is written before the
//! server's certificate is verified against the kubeconfig's own roots on the caller's clock. Names are
//! looked up anew for each connection, and only for a new connection. One TLS configuration serves all
//! streams of one server, so that after an interruption every stream can resume its session.
//!
//! ureq's own connectors are not used. It resolves the name before it looks for a kept connection, so each
//! renewal would cost a DNS query; its proxy would wrap TLS in a second pair of buffers; and it offers no
//! clock. Left to others: requests and what errors mean (`client`), when to dial again (the caller).

use crate::locks::locked;
use crate::net::proxy::HostPort;
use crate::net::tls;
use kedge_core::sorted::SortedMap;
use std::error;
use std::fmt;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use kedge_platform::linux::give_back_stack;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WantsClientCert};
use rustls::pki_types::{ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, ClientConnection, ConfigBuilder, RootCertStore, WantsVerifier};
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::time::Duration as UreqDuration;
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport};

use super::kubeconfig::{Kubeconfig, ServerAddress};
use super::links::{Link, Links};
use super::proxy::ProxyAddress;

/// Bytes of the buffers between TLS and HTTP, each way, while bytes are in transit. ureq's default is
/// 128 KiB each, kept, 1 MB for four streams; one TLS record is at most 16 KiB.
pub(crate) const BUFFER_BYTES: usize = 16 * 1024;

/// Most addresses of one name that are tried. A name with more is a load balancer; the next dial asks again.
const MAX_ADDRESSES: usize = 8;

/// Least time one address gets while others come after it: a mobile link's round trip.
const MIN_DIAL: Duration = Duration::from_millis(250);

/// How often a wait for a lookup checks for cancellation; nothing else can wake it for that.
const LOOKUP_POLL: Duration = Duration::from_millis(20);

/// Stack of the thread that looks a name up: glibc loads its name service modules on it.
const LOOKUP_STACK_BYTES: usize = 256 * 1024;

/// Capacity kept between requests for bytes that are not encrypted yet: a heartbeat with its head.
const MAX_HELD_KEPT_BYTES: usize = 1024;

/// Quiet time before the kernel asks whether the peer is still there. Longer than the minute between a
/// server's bookmarks, so a live watch never pays for it; shorter than the few minutes after which NAT
/// forgets us.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(75);

/// Time between the kernel's further probes; after nine without an answer (Linux's default) the connection is
/// dead.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// How long a request on a kept connection may go unacknowledged. The peer's kernel acknowledges, so a slow
/// server does not count; longer than three transmissions over a link of 600 ms, and short enough to try
/// another connection within a renewal's time.
const UNACKNOWLEDGED: Duration = Duration::from_secs(5);

/// At least this much before a request's deadline: the kernel checks only when it would transmit again, up to
/// half a second later.
const UNACKNOWLEDGED_BEFORE: Duration = Duration::from_secs(1);

/// Most bytes of a proxy's answer to CONNECT. Error pages come after the head, which has a few hundred bytes.
const MAX_PROXY_HEAD_BYTES: usize = 8 * 1024;

/// Session tickets kept, over all server names: rustls keeps 8 per name, and one kubeconfig has one name.
const SESSIONS: usize = 16;

/// The wall clock for the validity of certificates: time since 1970.
///
/// A board without a battery boots in 1970, and then no certificate is valid yet. So the caller gives the
/// clock, and may give the latest of several sources (the system's, the time of the build, the last time
/// known to a file).
pub type WallClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The system's wall clock, as it is.
#[must_use]
pub fn system_clock() -> WallClock {
    Arc::new(|| Duration::from_secs(UnixTime::now().as_secs()))
}

/// The clock in the form that rustls takes.
pub(crate) struct CertificateClock(pub(crate) WallClock);

impl fmt::Debug for CertificateClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertificateClock")
    }
}

impl TimeProvider for CertificateClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch((self.0)()))
    }
}

/// Everything needed to reach one server, shared by all streams to it: its address, how to verify it, our
/// identity.
pub(crate) struct Route {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) server_name: ServerName<'static>,
    proxy: Option<ProxyAddress>,
    pub(crate) tls: Arc<ClientConfig>,
}

impl Route {
    /// The way to a kubeconfig's server. `proxy` comes from the environment; the kubeconfig's own takes
    /// precedence.
    ///
    /// # Errors
    /// If rustls refuses the roots, the certificate or the key.
    pub(crate) fn new(
        kubeconfig: &Kubeconfig,
        proxy: Option<ProxyAddress>,
        clock: WallClock,
    ) -> Result<Self, rustls::Error> {
        Ok(Self {
            host: kubeconfig.server.host.clone(),
            port: kubeconfig.server.port,
            server_name: kubeconfig.server_name.clone(),
            proxy: kubeconfig.proxy.clone().or(proxy),
            tls: Arc::new(tls_config(kubeconfig, clock)?),
        })
    }

    /// The way to another API server, which is verified like this one, by its own host.
    pub(super) fn to_peer(&self, server: &ServerAddress, proxy: Option<ProxyAddress>) -> Option<Self> {
        Some(Self {
            host: server.host.clone(),
            port: server.port,
            server_name: ServerName::try_from(server.host.clone()).ok()?,
            proxy,
            tls: Arc::clone(&self.tls),
        })
    }

    /// The way to a server other than the API server: verified against these roots, without showing it our
    /// certificate.
    ///
    /// # Errors
    /// The host's name cannot stand in a certificate.
    pub(crate) fn to_stranger(
        (host, port): (&str, u16),
        roots: Arc<RootCertStore>,
        proxy: Option<ProxyAddress>,
        clock: WallClock,
    ) -> Result<Self, rustls::Error> {
        Self::without_certificate((host, port), proxy, stranger(clock)?.with_root_certificates(roots))
    }

    /// The way to a server whose certificate this verifier judges, without showing it ours.
    ///
    /// # Errors
    /// The host's name cannot stand in a certificate.
    pub(crate) fn judged_by(
        verifier: Arc<dyn ServerCertVerifier>,
        address: (&str, u16),
        proxy: Option<ProxyAddress>,
        clock: WallClock,
    ) -> Result<Self, rustls::Error> {
        let builder = stranger(clock)?.dangerous().with_custom_certificate_verifier(verifier);
        Self::without_certificate(address, proxy, builder)
    }

    fn without_certificate(
        (host, port): (&str, u16),
        proxy: Option<ProxyAddress>,
        builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    ) -> Result<Self, rustls::Error> {
        let server_name = ServerName::try_from(host.to_owned())
            .map_err(|_| rustls::Error::General(format!("{host} is no name of a server")))?;
        let tls = Arc::new(builder.with_no_client_auth());
        Ok(Self { host: host.to_owned(), port, server_name, proxy, tls })
    }
}

fn stranger(clock: WallClock) -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, rustls::Error> {
    let provider = Arc::new(tls::provider());
    ClientConfig::builder_with_details(provider, Arc::new(CertificateClock(clock)))
        .with_safe_default_protocol_versions()
}

pub(crate) fn tls_config(kubeconfig: &Kubeconfig, clock: WallClock) -> Result<ClientConfig, rustls::Error> {
    let mut roots = RootCertStore::empty();
    for root in &kubeconfig.roots {
        roots.add(root.clone())?;
    }
    let provider = Arc::new(tls::provider());
    let builder = ClientConfig::builder_with_details(provider, Arc::new(CertificateClock(clock)))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match &kubeconfig.client_certificate {
        Some(identity) => builder.with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())?,
        None => builder.with_no_client_auth(),
    };
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    Ok(config)
}

/// Ends the waits of a stream, from another thread, once and for all.
///
/// After [`Cancel::cancel`] a blocked call returns within some 20 ms and every later one at once. A clone is
/// the same switch.
#[derive(Clone, Default)]
pub struct Cancel(Arc<CancelState>);

#[derive(Default)]
struct CancelState {
    cancelled: AtomicBool,
    sockets: Mutex<Vec<Weak<Socket>>>,
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cancel({})", self.is_cancelled())
    }
}

impl Cancel {
    /// A switch that is not set yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends every call under this switch, now and later. Does not wait for them.
    pub fn cancel(&self) {
        let mut sockets = locked(&self.0.sockets);
        self.0.cancelled.store(true, Ordering::SeqCst);
        for socket in sockets.drain(..).filter_map(|socket| socket.upgrade()) {
            // an error means that the socket is closed already
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Whether [`Cancel::cancel`] was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::SeqCst)
    }

    /// Makes `cancel` end waits on this socket. False if `cancel` was called already.
    fn watch_over(&self, socket: &Arc<Socket>) -> bool {
        let mut sockets = locked(&self.0.sockets);
        if self.is_cancelled() {
            return false;
        }
        sockets.retain(|socket| socket.strong_count() > 0);
        sockets.push(Arc::downgrade(socket));
        true
    }
}

/// Why a connection failed.
#[derive(Debug)]
pub(crate) enum DialError {
    /// The name has no address, or the lookup took too long.
    Lookup { host: String, why: String },
    /// No address accepted the connection; `tried` has the outcome of each one.
    Connect { host: String, tried: String },
    /// The proxy did not open the tunnel.
    Proxy { proxy: String, why: String },
    /// The peer answered, and TLS failed.
    Tls { peer: String, error: rustls::Error },
    /// The connection broke or fell silent during the handshake.
    Handshake { peer: String, error: io::Error },
    /// [`Cancel`] was used.
    Cancelled,
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lookup { host, why } => write!(f, "look up {host}: {why}"),
            Self::Connect { host, tried } => write!(f, "connect to {host}: {tried}"),
            Self::Proxy { proxy, why } => write!(f, "open a tunnel through the proxy {proxy}: {why}"),
            Self::Tls { peer, error } => write!(f, "TLS with {peer}: {}", tls_words(error)),
            Self::Handshake { peer, error } => write!(f, "TLS with {peer}: {}", plain(error)),
            Self::Cancelled => f.write_str("cancelled"),
        }
    }
}

impl error::Error for DialError {}

impl From<DialError> for ureq::Error {
    fn from(error: DialError) -> Self {
        Self::Other(Box::new(error))
    }
}

/// rustls's error in words. The reasons that it has from webpki are wrapped, and the release program's
/// derived Debug, by which rustls shows them, leaves out the wrapped part.
pub(crate) fn tls_words(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(rustls::CertificateError::Other(reason)) => {
            format!("invalid peer certificate: {reason}")
        }
        other => other.to_string(),
    }
}

/// An I/O error without the system's number, in lower case.
pub(crate) fn plain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "refused".to_owned(),
        io::ErrorKind::ConnectionReset => "reset by the other side".to_owned(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe | io::ErrorKind::NotConnected => {
            "connection lost".to_owned()
        }
        io::ErrorKind::UnexpectedEof => "closed by the other side".to_owned(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "no answer in time".to_owned(),
        io::ErrorKind::HostUnreachable => "host unreachable".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network unreachable".to_owned(),
        _ => error.to_string().to_lowercase(),
    }
}

/// The result of one name's lookup.
type Found = Result<Vec<SocketAddr>, String>;

/// How a name becomes addresses: the system's resolver, or a test's.
pub type LookupFn = Arc<dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync>;

/// Looks names up, each on a thread of its own, because the system's resolver cannot be given a deadline.
///
/// A name whose lookup hangs has one thread, however many callers look it up: later ones wait for the same
/// answer.
pub(crate) struct Lookup {
    resolve: LookupFn,
    running: Mutex<SortedMap<(String, u16), Arc<Pending>>>,
}

#[derive(Default)]
struct Pending {
    found: Mutex<Option<Found>>,
    ready: Condvar,
}

impl Lookup {
    pub(crate) fn system() -> Self {
        Self::with(Arc::new(|host, port| Ok((host, port).to_socket_addrs()?.collect())))
    }

    pub(crate) fn with(resolve: LookupFn) -> Self {
        Self { resolve, running: Mutex::new(SortedMap::new()) }
    }

    /// The addresses of a host, at most [`MAX_ADDRESSES`].
    fn addresses(
        self: &Arc<Self>,
        host: &str,
        port: u16,
        deadline: Instant,
        cancel: &Cancel,
    ) -> Result<Vec<SocketAddr>, DialError> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let failed = |why: String| DialError::Lookup { host: host.to_owned(), why };
        let pending = self.pending(host, port).map_err(|error| failed(plain(&error)))?;
        let mut found = locked(&pending.found);
        loop {
            if let Some(found) = found.as_ref() {
                return found.clone().map_err(failed);
            }
            if cancel.is_cancelled() {
                return Err(DialError::Cancelled);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failed("no answer in time".to_owned()));
            }
            let waited = pending.ready.wait_timeout(found, left.min(LOOKUP_POLL));
            found = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The lookup of this name that is under way, or a new one.
    fn pending(self: &Arc<Self>, host: &str, port: u16) -> io::Result<Arc<Pending>> {
        let key = (host.to_owned(), port);
        let mut running = locked(&self.running);
        if let Some(pending) = running.get(&key) {
            return Ok(Arc::clone(pending));
        }
        let pending = Arc::new(Pending::default());
        let (lookup, answer) = (Arc::clone(self), Arc::clone(&pending));
        let thread = std::thread::Builder::new().name("lookup".to_owned()).stack_size(LOOKUP_STACK_BYTES);
        let at = key.clone();
        thread.spawn(move || {
            let found = lookup.ask(&at.0, at.1);
            locked(&lookup.running).remove(&at);
            *locked(&answer.found) = Some(found);
            answer.ready.notify_all();
        })?;
        running.insert(key, Arc::clone(&pending));
        Ok(pending)
    }

    fn ask(&self, host: &str, port: u16) -> Found {
        let mut addresses = (self.resolve)(host, port).map_err(|error| plain(&error))?;
        addresses.truncate(MAX_ADDRESSES);
        if addresses.is_empty() { Err("it has no address".to_owned()) } else { Ok(addresses) }
    }
}

/// Takes the place of the resolver that ureq demands, and resolves nothing: ureq calls it before every
/// request, also when a kept connection will serve. [`Dialler`] looks the name up when it really dials.
#[derive(Debug)]
pub(crate) struct NoResolver;

impl Resolver for NoResolver {
    fn resolve(
        &self,
        _uri: &ureq::http::Uri,
        _config: &ureq::config::Config,
        _timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        Ok(self.empty())
    }
}

/// Makes connections for one stream.
pub(crate) struct Dialler {
    pub(crate) route: Arc<Route>,
    pub(crate) lookup: Arc<Lookup>,
    pub(crate) cancel: Cancel,
    /// Connections dialled so far: shows whether a request that failed had gone out on a kept one.
    pub(crate) dialled: Arc<AtomicU64>,
    /// The address of the last connection; `None` after it was taken.
    pub(crate) connected: Arc<Mutex<Option<SocketAddr>>>,
    pub(crate) links: Arc<Links>,
    pub(crate) user_agent: Arc<str>,
    /// The line by which a hub tells two machines with one credential apart.
    pub(crate) boot_line: Arc<str>,
}

impl fmt::Debug for Dialler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dialler({})", HostPort(&self.route.host, self.route.port))
    }
}

/// Used as the deadline where ureq gives none; every request of `client` has one.
const NO_DEADLINE: Duration = Duration::from_secs(60 * 60);

fn deadline_after(timeout: UreqDuration) -> Instant {
    let after = match timeout {
        UreqDuration::Exact(after) => after.min(NO_DEADLINE),
        UreqDuration::NotHappening => NO_DEADLINE,
    };
    Instant::now() + after
}

impl Connector<()> for Dialler {
    type Out = TlsTransport;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _chained: Option<()>,
    ) -> Result<Option<TlsTransport>, ureq::Error> {
        self.dialled.fetch_add(1, Ordering::Relaxed);
        let (wire, session, peer) = self.open_tls(deadline_after(details.timeout.after))?;
        let link = self.links.made(Arc::clone(&wire.socket));
        let buffers = PassingBuffers::default();
        let (may_have_plain, held) = (true, Vec::new());
        Ok(Some(TlsTransport {
            wire,
            link,
            session,
            boot_line: Some(Arc::clone(&self.boot_line)),
            buffers,
            may_have_plain,
            held,
            is_kept: false,
            is_timed: false,
            peer,
        }))
    }
}

impl Dialler {
    /// A connection on which TLS with the server may begin. The socket blocks, and has no time limit any
    /// more.
    pub(crate) fn open(&self, deadline: Instant) -> Result<std::net::TcpStream, DialError> {
        let (wire, _, peer) = self.open_wire(deadline, false)?;
        let socket = wire.socket.try_clone().and_then(|socket| {
            socket.set_read_timeout(None)?;
            socket.set_write_timeout(None)?;
            Ok(socket)
        });
        socket.map(Into::into).map_err(|error| DialError::Handshake { peer, error })
    }

    /// The same with TLS.
    fn open_tls(&self, deadline: Instant) -> Result<(Wire, ClientConnection, String), DialError> {
        let (mut wire, session, peer) = self.open_wire(deadline, true)?;
        let session = match session {
            Some(session) => session,
            None => self.shake_hands(&mut wire, &peer)?,
        };
        Ok((wire, session, peer))
    }

    /// A connection and the name of its other end for messages; with TLS, if requested and no proxy is in
    /// between.
    fn open_wire(
        &self,
        deadline: Instant,
        with_tls: bool,
    ) -> Result<(Wire, Option<ClientConnection>, String), DialError> {
        let (host, port) = (&self.route.host, self.route.port);
        let Some(proxy) = &self.route.proxy else {
            return self.dial(host, port, deadline, with_tls);
        };
        let (mut wire, _, _) = self.dial(&proxy.host, proxy.port, deadline, false)?;
        self.open_tunnel(&mut wire, proxy)?;
        Ok((wire, None, format!("{} (through the proxy {proxy:?})", HostPort(host, port))))
    }

    /// A connection to the first address that serves: it accepts one and, if requested, begins TLS on it. An
    /// address that accepts and stays silent, such as a load balancer whose server is gone, must not keep the
    /// next from being tried.
    fn dial(
        &self,
        host: &str,
        port: u16,
        deadline: Instant,
        with_tls: bool,
    ) -> Result<(Wire, Option<ClientConnection>, String), DialError> {
        let mut addresses = self.lookup.addresses(host, port, deadline, &self.cancel)?;
        self.links.order(&mut addresses);
        let mut tried = String::new();
        for (index, address) in addresses.iter().enumerate() {
            let now = Instant::now();
            let left = deadline.saturating_duration_since(now);
            // all of the remaining time for the last address, half of it for any other
            let share = if index + 1 == addresses.len() { left } else { left / 2 };
            let share = share.max(MIN_DIAL.min(left));
            let peer = format!("{} ({address})", HostPort(host, port));
            let outcome = self.dial_address(*address, share).map_err(|error| plain(&error)).map(|socket| {
                let mut wire = Wire { socket, deadline: now + share };
                let session = with_tls.then(|| self.shake_hands(&mut wire, &peer)).transpose();
                (Wire { deadline, ..wire }, session)
            });
            if self.cancel.is_cancelled() {
                return Err(DialError::Cancelled);
            }
            let why = match outcome {
                Ok((wire, Ok(session))) => {
                    *locked(&self.connected) = Some(*address);
                    return Ok((wire, session, peer));
                }
                Ok((_, Err(DialError::Handshake { error, .. }))) if addresses.len() > 1 => {
                    format!("{} in the TLS handshake", plain(&error))
                }
                Ok((_, Err(error))) => return Err(error),
                Err(why) => why,
            };
            self.links.avoid(*address);
            let separator = if tried.is_empty() { "" } else { ", " };
            tried.push_str(&format!("{separator}{address} {why}"));
        }
        Err(DialError::Connect { host: HostPort(host, port).to_string(), tried })
    }

    fn dial_address(&self, address: SocketAddr, timeout: Duration) -> io::Result<Arc<Socket>> {
        if timeout.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let socket = Arc::new(Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?);
        if !self.cancel.watch_over(&socket) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        socket.connect_timeout(&SockAddr::from(address), timeout)?;
        socket.set_tcp_nodelay(true)?;
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
        socket.set_tcp_keepalive(&keepalive)?;
        Ok(socket)
    }

    /// Asks the proxy for a tunnel to the server (CONNECT, RFC 9110 section 9.3.6).
    fn open_tunnel(&self, wire: &mut Wire, proxy: &ProxyAddress) -> Result<(), DialError> {
        let failed = |why: String| match self.cancel.is_cancelled() {
            true => DialError::Cancelled,
            false => DialError::Proxy { proxy: format!("{proxy:?}"), why },
        };
        let target = HostPort(&self.route.host, self.route.port);
        let mut head =
            format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nUser-Agent: {}\r\n", self.user_agent);
        if let Some(authorization) = &proxy.authorization {
            head.push_str(&format!("Proxy-Authorization: {authorization}\r\n"));
        }
        head.push_str("\r\n");
        wire.write_all(head.as_bytes()).map_err(|error| failed(plain(&error)))?;
        match read_proxy_head(wire).map_err(failed)? {
            200..=299 => Ok(()),
            status => Err(failed(format!("it answered {status}, expected 200"))),
        }
    }

    fn shake_hands(&self, wire: &mut Wire, peer: &str) -> Result<ClientConnection, DialError> {
        let tls_failed = |error| DialError::Tls { peer: peer.to_owned(), error };
        let mut session = ClientConnection::new(Arc::clone(&self.route.tls), self.route.server_name.clone())
            .map_err(tls_failed)?;
        // the caller wants no more than about one request's worth of plain text buffered here
        session.set_buffer_limit(Some(2 * BUFFER_BYTES));
        while session.is_handshaking() {
            if let Err(error) = session.complete_io(wire) {
                if self.cancel.is_cancelled() {
                    return Err(DialError::Cancelled);
                }
                let tls_error = tls_error_in(&error).or_else(|| last_words(&mut session, wire));
                return Err(match tls_error {
                    Some(error) => DialError::Tls { peer: peer.to_owned(), error },
                    None => DialError::Handshake { peer: peer.to_owned(), error },
                });
            }
        }
        // no later call on this thread needs as much stack while the connection lives
        give_back_stack();
        Ok(session)
    }
}

/// Reads the head of the proxy's answer, byte by byte so that no byte of the tunnel is swallowed, and returns
/// its status.
fn read_proxy_head(wire: &mut Wire) -> Result<u16, String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == MAX_PROXY_HEAD_BYTES {
            return Err(format!("its answer has more than {MAX_PROXY_HEAD_BYTES} bytes"));
        }
        let mut byte = [0];
        match wire.read(&mut byte) {
            Ok(0) => return Err("closed by the other side".to_owned()),
            Ok(_) => head.push(byte[0]),
            Err(error) => return Err(plain(&error)),
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    response.parse(&head).map_err(|error| format!("its answer is not HTTP: {error}"))?;
    response.code.ok_or_else(|| "its answer has no status".to_owned())
}

/// The TLS error inside an I/O error, as rustls wraps them.
pub(crate) fn tls_error_in(error: &io::Error) -> Option<rustls::Error> {
    error.get_ref()?.downcast_ref::<rustls::Error>().cloned()
}

/// A socket whose reads and writes end at a deadline.
struct Wire {
    socket: Arc<Socket>,
    deadline: Instant,
}

impl Wire {
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// Repeats an operation that a signal or an early timeout ended, until the deadline.
    fn until_deadline(
        &self,
        set_timeout: impl Fn(&Socket, Option<Duration>) -> io::Result<()>,
        mut operation: impl FnMut(&Socket) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            // the kernel counts in ticks: less than one would mean "for ever"
            set_timeout(&self.socket, Some(self.left()?.max(Duration::from_millis(5))))?;
            match operation(&self.socket) {
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                outcome => return outcome,
            }
        }
    }

    /// Whether the kept connection is quiet and open. Anything else (an end, an alert, unexpected bytes)
    /// means that it must not carry another request.
    fn is_quiet(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        if self.socket.set_nonblocking(true).is_err() {
            return false;
        }
        let peeked = self.socket.peek(&mut byte);
        let is_restored = self.socket.set_nonblocking(false).is_ok();
        is_restored && matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl Read for Wire {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.until_deadline(|socket, left| socket.set_read_timeout(left), |mut socket| socket.read(bytes))
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.until_deadline(|socket, left| socket.set_write_timeout(left), |mut socket| socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The alert that a peer sent before it closed, when sending failed. A server checks our certificate while we
/// are still sending, so without this its reason would often be lost behind a broken pipe.
fn last_words(session: &mut ClientConnection, wire: &mut Wire) -> Option<rustls::Error> {
    session.read_tls(wire).ok()?;
    session.process_new_packets().err()
}

/// ureq's buffers, of [`BUFFER_BYTES`], which exist only while bytes are in transit: a stream that waits, as
/// all do nearly always, has none.
#[derive(Debug, Default)]
struct PassingBuffers {
    output: Vec<u8>,
    input: Vec<u8>,
    /// How far the input is filled, and how much of that was consumed.
    filled: usize,
    consumed: usize,
    /// Whether the last look at the input consumed some of it.
    has_progress: bool,
}

impl PassingBuffers {
    /// ureq's output has been taken over.
    fn output_sent(&mut self) {
        self.output = Vec::new();
    }

    fn release_empty_input(&mut self) {
        if self.consumed == self.filled {
            (self.input, self.filled, self.consumed) = (Vec::new(), 0, 0);
        }
    }
}

fn make_room(buffer: &mut Vec<u8>) {
    if buffer.is_empty() {
        // zeroed by the allocator, which need not touch fresh memory for that
        *buffer = vec![0; BUFFER_BYTES];
    }
}

impl Buffers for PassingBuffers {
    fn output(&mut self) -> &mut [u8] {
        make_room(&mut self.output);
        &mut self.output
    }

    fn input(&self) -> &[u8] {
        &self.input[self.consumed..self.filled]
    }

    fn input_append_buf(&mut self) -> &mut [u8] {
        self.input.copy_within(self.consumed..self.filled, 0);
        (self.filled, self.consumed) = (self.filled - self.consumed, 0);
        make_room(&mut self.input);
        &mut self.input[self.filled..]
    }

    fn input_appended(&mut self, amount: usize) {
        self.filled += amount;
    }

    fn input_consume(&mut self, amount: usize) {
        self.has_progress = amount > 0;
        self.consumed += amount;
        self.release_empty_input();
    }

    fn tmp_and_output(&mut self) -> (&mut [u8], &mut [u8]) {
        self.output();
        self.input_append_buf();
        (&mut self.input[self.filled..], &mut self.output)
    }

    fn can_use_input(&self) -> bool {
        !self.input().is_empty() && self.has_progress
    }
}

/// A TLS connection as ureq uses it.
///
/// Bytes that ureq transmits are held until it waits for the answer, so that a request's head and body leave
/// in one TLS record and one segment: 22 bytes of record and 52 of TCP/IP less for each renewal.
pub(crate) struct TlsTransport {
    wire: Wire,
    link: Arc<Link>,
    session: ClientConnection,
    /// The line for the head of the first request; `None` once that was sent.
    boot_line: Option<Arc<str>>,
    buffers: PassingBuffers,
    /// Whether the session may have plain text, or an end, to read.
    may_have_plain: bool,
    /// Plain text that ureq transmitted and that is not encrypted yet.
    held: Vec<u8>,
    /// Whether an answer arrived on it.
    is_kept: bool,
    /// Whether [`UNACKNOWLEDGED`] is in force. Not while it waits for the next request: the same limit would
    /// end it for one lost keepalive.
    is_timed: bool,
    peer: String,
}

impl fmt::Debug for TlsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsTransport({})", self.peer)
    }
}

impl TlsTransport {
    /// An error of this connection in ureq's terms.
    fn failed(&self, error: io::Error, timeout: NextTimeout) -> ureq::Error {
        if let Some(error) = tls_error_in(&error) {
            return DialError::Tls { peer: self.peer.clone(), error }.into();
        }
        match error.kind() {
            // the kernel's own time limit is an end of the connection
            io::ErrorKind::TimedOut if error.raw_os_error().is_none() => ureq::Error::Timeout(timeout.reason),
            _ => ureq::Error::Io(error),
        }
    }

    /// Encrypts the held bytes and sends them.
    fn flush(&mut self) -> io::Result<()> {
        let mut held = std::mem::take(&mut self.held);
        if self.is_kept && !held.is_empty() && !self.is_timed {
            self.time_acknowledgements(true)?;
        }
        let mut rest = held.as_slice();
        while !rest.is_empty() {
            let taken = self.session.writer().write(rest)?;
            rest = &rest[taken..];
            self.send()?;
        }
        // this much capacity is kept for the next heartbeat, not that for a status of megabytes
        held.clear();
        held.shrink_to(MAX_HELD_KEPT_BYTES);
        self.held = held;
        self.buffers.output_sent();
        self.send()
    }

    /// Sets the limit for acknowledgements, shorter than the request's own deadline: a request that ends by
    /// its deadline proves nothing about the connection.
    fn time_acknowledgements(&mut self, is_timed: bool) -> io::Result<()> {
        self.is_timed = is_timed;
        let left = || self.wire.left().unwrap_or_default().saturating_sub(UNACKNOWLEDGED_BEFORE);
        let limit = is_timed.then(|| UNACKNOWLEDGED.min(left()).max(UNACKNOWLEDGED_BEFORE));
        self.wire.socket.set_tcp_user_timeout(limit)
    }

    /// Sends the encrypted bytes.
    fn send(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            if self.session.write_tls(&mut self.wire)? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Waits for plain text and puts it into ureq's buffer; 0 is the peer's orderly end.
    fn receive(&mut self) -> io::Result<usize> {
        if let Err(error) = self.flush() {
            return Err(match last_words(&mut self.session, &mut self.wire) {
                Some(tls_error) => io::Error::new(io::ErrorKind::InvalidData, tls_error),
                None => error,
            });
        }
        loop {
            if self.may_have_plain {
                match self.session.reader().read(self.buffers.input_append_buf()) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.may_have_plain = false;
                        self.buffers.release_empty_input();
                    }
                    outcome => return outcome,
                }
            }
            // the reader above tells an orderly end of the stream from a cut
            let amount = self.session.read_tls(&mut self.wire)?;
            if amount > 0 {
                self.link.heard();
                if self.is_timed {
                    self.time_acknowledgements(false)?;
                }
            }
            self.may_have_plain |= amount == 0;
            self.process()?;
            self.send()?;
        }
    }

    fn process(&mut self) -> io::Result<()> {
        match self.session.process_new_packets() {
            Ok(state) => {
                self.may_have_plain |= state.plaintext_bytes_to_read() > 0 || state.peer_has_closed();
                Ok(())
            }
            Err(error) => {
                // send the alert that explains why, if the peer still listens
                let _ = self.send();
                Err(io::Error::new(io::ErrorKind::InvalidData, error))
            }
        }
    }
}

impl Transport for TlsTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let timeout = timeout.for_write();
        self.wire.deadline = deadline_after(timeout.after);
        let output = &self.buffers.output()[..amount];
        // ureq keeps connections apart by nothing that the connector could see, so the line is put in here
        let end = output.windows(2).position(|two| two == b"\r\n").filter(|_| self.boot_line.is_some());
        let (line, rest) = output.split_at(end.map_or(0, |end| end + 2));
        self.held.extend_from_slice(line);
        if end.is_some() {
            self.held.extend_from_slice(self.boot_line.take().unwrap_or_default().as_bytes());
        }
        self.held.extend_from_slice(rest);
        if self.held.len() < BUFFER_BYTES {
            return Ok(());
        }
        self.flush().map_err(|error| self.failed(error, timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let timeout = timeout.for_read();
        self.wire.deadline = deadline_after(timeout.after);
        match self.receive() {
            Ok(amount) => {
                self.buffers.input_appended(amount);
                self.is_kept = true;
                Ok(amount > 0)
            }
            Err(error) => Err(self.failed(error, timeout)),
        }
    }

    fn is_open(&mut self) -> bool {
        self.held.is_empty() && !self.session.wants_write() && self.wire.is_quiet()
    }

    fn is_tls(&self) -> bool {
        true
    }
}

impl Drop for TlsTransport {
    fn drop(&mut self) {
        // an orderly end, if the socket accepts it without waiting
        self.session.send_close_notify();
        self.wire.deadline = Instant::now() + Duration::from_millis(5);
        let _ = self.send();
    }
}

/// Stack for a thread that sends requests or watches. Measured in a debug build: a handshake fits in 128 KiB,
/// JSON as deep as serde_json reads it (128 levels) needs 192 KiB. Only touched pages become resident: a few.
pub const STACK_BYTES: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    const SOON: Duration = Duration::from_secs(10);

    /// As `invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))` it would lose its end in a
    /// release.
    #[test]
    fn wrapped_reason_of_a_certificate_is_named() {
        let reason = rustls::OtherError(Arc::new(io::Error::other("CaUsedAsEndEntity")));
        let error = rustls::Error::InvalidCertificate(rustls::CertificateError::Other(reason));
        assert_eq!(tls_words(&error), "invalid peer certificate: CaUsedAsEndEntity");
    }

    #[test]
    fn pending_lookup_is_shared_and_a_finished_one_is_repeated() {
        let (answer, answers) = mpsc::channel::<io::Result<Vec<SocketAddr>>>();
        let (answers, asked) = (Mutex::new(answers), Arc::new(AtomicU64::new(0)));
        let counted = Arc::clone(&asked);
        let lookup = Arc::new(Lookup::with(Arc::new(move |_, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            locked(&answers).recv().unwrap()
        })));
        let ask = |wait: Duration| lookup.addresses("hub.test", 443, Instant::now() + wait, &Cancel::new());
        let too_late = ask(Duration::from_millis(30)).unwrap_err();
        assert_eq!(too_late.to_string(), "look up hub.test: no answer in time");
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let lookup = Arc::clone(&lookup);
                thread::spawn(move || {
                    lookup.addresses("hub.test", 443, Instant::now() + SOON, &Cancel::new())
                })
            })
            .collect();
        // each of the three holds the pending lookup beside the map and the lookup's own thread
        let is_shared = || {
            let running = locked(&lookup.running);
            Arc::strong_count(&running[&("hub.test".to_owned(), 443)]) == 5
        };
        while !is_shared() {
            thread::yield_now();
        }
        answer.send(Err(io::ErrorKind::NotFound.into())).unwrap();
        for thread in waiting {
            assert_eq!(thread.join().unwrap().unwrap_err().to_string(), "look up hub.test: entity not found");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        answer.send(Ok(vec![([10, 0, 0, 1], 443).into(); 20])).unwrap();
        assert_eq!(ask(SOON).unwrap().len(), MAX_ADDRESSES);
        answer.send(Ok(Vec::new())).unwrap();
        assert_eq!(ask(SOON).unwrap_err().to_string(), "look up hub.test: it has no address");
        assert_eq!(asked.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn buffers_exist_only_while_something_passes() {
        let kept = |buffers: &PassingBuffers| (buffers.input.capacity(), buffers.output.capacity());
        let mut buffers = PassingBuffers::default();
        buffers.output()[..3].copy_from_slice(b"GET");
        assert_eq!(&buffers.output()[..3], b"GET", "what was written stays until it is sent");
        buffers.output_sent();
        buffers.input_append_buf()[..4].copy_from_slice(b"abcd");
        buffers.input_appended(4);
        assert!(!buffers.can_use_input(), "nothing was consumed of it yet");
        buffers.input_consume(3);
        assert_eq!((buffers.input(), buffers.can_use_input()), (&b"d"[..], true));
        assert_eq!(
            buffers.input_append_buf().len(),
            BUFFER_BYTES - 1,
            "the room of what was consumed is free"
        );
        buffers.input_append_buf()[0] = b'e';
        buffers.input_appended(1);
        assert_eq!(buffers.input(), b"de");
        buffers.input_consume(2);
        assert_eq!((buffers.input(), kept(&buffers)), (&b""[..], (0, 0)));
        let (scratch, output) = buffers.tmp_and_output();
        assert_eq!((scratch.len(), output.len()), (BUFFER_BYTES, BUFFER_BYTES));
        buffers.output_sent();
        buffers.release_empty_input();
        assert_eq!(kept(&buffers), (0, 0));
    }

    #[test]
    fn address_needs_no_lookup() {
        let lookup = Arc::new(Lookup::with(Arc::new(|_, _| panic!("asked for an address"))));
        let found = lookup.addresses("fd00::5", 6443, Instant::now() + SOON, &Cancel::new()).unwrap();
        assert_eq!(found, ["[fd00::5]:6443".parse::<SocketAddr>().unwrap()]);
    }

    #[test]
    fn cancelled_connection_opens_no_new_socket() {
        let cancel = Cancel::new();
        let socket = || Arc::new(Socket::new(Domain::IPV4, Type::STREAM, None).unwrap());
        for _ in 0..100 {
            assert!(cancel.watch_over(&socket()));
        }
        assert_eq!(locked(&cancel.0.sockets).len(), 1, "sockets that are gone are forgotten");
        cancel.clone().cancel();
        assert!(cancel.is_cancelled());
        assert!(!cancel.watch_over(&socket()));
    }
}
