//! `kedge kubelet-port`: the process that serves all connections to the port.
//!
//! Always holds: a connection carries one request; a connection that is not authorized within
//! [`STRANGER_LIMIT`] ends; at most [`MOST_SERVED`] requests are served at once. It accepts while the agent
//! that started it lives and for [`IDLE`] after the last connection; then the agent accepts again, and the
//! present connections are served to their end. Left to others: the content (`kubelet_api`).

use crate::identity::files;
use crate::kubelet_api::node::Node;
use crate::net::credentials::ApiOptions;
use crate::options::PortOptions;
use crate::output::CommandError;
use std::cell::{Cell, RefCell};
use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kedge_core::kubelet::ServerSettings;
use kedge_core::pods::ApiServer;
use kedge_platform::Clocks as _;
use kedge_platform::linux::{LinuxClocks, Roots};
use kedge_platform::workloads;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::bootstrap::Bootstrap;
use super::callers::{User, bearer};
use super::identity::{Identity, Source};
use super::reviews::Reviews;
use super::rights;
use super::strangers::{self, Peer, Strangers, Wrong};
use crate::kubelet_api::{self, Exchange, HEAD_LIMIT, Request};
use crate::net::client::Api;
use crate::net::proxy::ProxyEnvironment;
use crate::net::transport::WallClock;

/// Requests that are served at once: each is a thread and some 100 KiB.
const MOST_SERVED: usize = 64;
/// Connections in all: served ones, strangers, and those that are being closed.
const MOST_CONNECTIONS: usize = MOST_SERVED + 2 * strangers::MOST;
/// Time for a TLS handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Time until a request is authorized: handshake, head, two answers of the API server.
const STRANGER_LIMIT: Duration = Duration::from_secs(30);
/// How long an unauthenticated caller waits for the refusal.
const REFUSAL_PAUSE: Duration = Duration::from_secs(1);
/// How long the process stays without a connection: as long as a token is cached, and longer than collectors
/// of metrics pause.
const IDLE: Duration = Duration::from_secs(120);
/// Pause after a failed accept (no more file descriptors, mostly), so that it does not become a hot loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// A peer that vanished is noticed after three minutes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Stack of a thread that reads files, waits for a program, or queries the API server.
const STACK_BYTES: usize = 256 * 1024;

struct Shared {
    identity: Identity,
    reviews: Reviews,
    settings: ServerSettings,
    clock: WallClock,
    /// Renews a certificate that the cluster signs, if that is configured.
    bootstrap: Option<Arc<Bootstrap>>,
    /// When its next check is due; notified after each check.
    next_look: Cell<Option<Instant>>,
    has_looked: Notify,
    node: Arc<Node>,
    strangers: RefCell<Strangers>,
    wrong: RefCell<Wrong>,
    served: Cell<usize>,
    /// The API server does not answer, and that was logged.
    is_silent: Cell<bool>,
}

/// Serves the port.
///
/// # Errors
/// The port cannot be served.
pub fn run(options: PortOptions) -> Result<(), CommandError> {
    let (listener, starter) =
        workloads::handed_over().map_err(|error| failed("take over the port", error))?;
    workloads::stand_apart(options.agent.runtime.settings(&options.agent.places).as_ref());
    crate::logging::start().map_err(|error| failed("start the log", error))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_stack_size(STACK_BYTES)
        .build()
        .map_err(|error| failed("start the runtime", error))?;
    let shared = Rc::new(shared(options)?);
    let served = LocalSet::new().block_on(&runtime, serve(listener.into(), starter.into(), shared));
    // a thread that waits for a disk ends with the process
    runtime.shutdown_background();
    crate::logging::flush();
    served.map_err(|error| failed("accept connections", error))
}

fn failed(tried: &str, error: impl std::fmt::Display) -> CommandError {
    CommandError::new(format_args!("kubelet-port: {tried}: {error}"))
}

/// The settings as a word for the process, before them the server that it asks about callers.
pub(super) fn at(server: &ApiServer, settings: &OsStr) -> OsString {
    let mut word = OsString::from(server.url());
    word.push(" ");
    word.push(settings);
    word
}

/// The server, if the word names one, and the settings.
fn apart(word: &str) -> (Option<ApiServer>, &str) {
    match word.split_once(' ') {
        Some((url, settings)) if url.starts_with("https://") => (ApiServer::of_url(url), settings),
        _ => (None, word),
    }
}

fn shared(options: PortOptions) -> Result<Shared, CommandError> {
    let PortOptions { agent, settings } = options;
    let (server, settings) = apart(&settings);
    let settings: ServerSettings = kedge_api::read::from_slice(settings.as_bytes())
        .map_err(|error| failed("read the settings", error))?;
    let clocks = LinuxClocks::new(&Roots::default());
    // the same clock as the agent's for certificates
    let clock: WallClock = Arc::new(move || {
        let wall = clocks.wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        wall.max(kedge_api::EARLIEST_NOW)
    });
    let kubeconfig = agent.kubeconfig.clone().unwrap_or_default();
    let own = Some(files::folder(&agent.places.root_dir));
    let api = ApiOptions { kubeconfig, own, clock: clock.clone(), proxies: ProxyEnvironment::of_process() };
    let api = Api::open_with_servers(api, server.as_slice())
        .map_err(|error| failed("read the kubeconfig", crate::errors::chain(&error)))?;
    let node_name = agent.node_name.clone().unwrap_or_default();
    let source = Source {
        settings: settings.clone(),
        node_name: node_name.clone(),
        root_dir: agent.places.root_dir.clone(),
        clock: clock.clone(),
    };
    let bootstrap = settings.requests_certificate.then(|| {
        let files = kedge_platform::linux::files(&agent.places.root_dir);
        Arc::new(Bootstrap::new(&api, node_name.clone(), files))
    });
    Ok(Shared {
        identity: Identity::open(source).map_err(|error| failed("begin", error))?,
        reviews: Reviews::new(&api, node_name, settings.clone()),
        settings,
        clock,
        bootstrap,
        next_look: Cell::new(None),
        has_looked: Notify::new(),
        node: Arc::new(Node { agent }),
        strangers: RefCell::default(),
        wrong: RefCell::default(),
        served: Cell::new(0),
        is_silent: Cell::new(false),
    })
}

async fn serve(
    listener: std::net::TcpListener,
    starter: UnixStream,
    shared: Rc<Shared>,
) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    starter.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let mut starter = tokio::net::UnixStream::from_std(starter)?;
    let mut connections = JoinSet::new();
    let mut idle_since = Instant::now();
    let mut word = [0; 1];
    let mut has_accepted = false;
    if let Some(bootstrap) = shared.bootstrap.clone() {
        drop(tokio::task::spawn_local(keep_certificate(bootstrap, shared.clone())));
    }
    loop {
        let is_idle = connections.is_empty();
        tokio::select! {
            // the agent never writes: this is its end
            _ = starter.read(&mut word) => break,
            Some(_) = connections.join_next(), if !is_idle => idle_since = Instant::now(),
            accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => match accepted {
                Ok((socket, from)) => {
                    has_accepted = true;
                    connections.spawn_local(connection(socket, from.ip(), shared.clone()));
                }
                Err(error) => {
                    log::warn!("port {}: accept: {error}", shared.settings.address);
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            // started only to check the certificate
            () = shared.has_looked.notified(), if is_idle && !has_accepted => break,
            () = tokio::time::sleep_until(idle_since + IDLE), if is_idle => break,
        }
    }
    // in this order: the agent listens anew as soon as the stream ends
    drop(listener);
    let next =
        shared.next_look.get().map_or(0, |at| at.saturating_duration_since(Instant::now()).as_secs().max(1));
    let _ = starter.write_all(next.to_string().as_bytes()).await;
    drop(starter);
    while connections.join_next().await.is_some() {}
    Ok(())
}

async fn keep_certificate(bootstrap: Arc<Bootstrap>, shared: Rc<Shared>) {
    loop {
        let (bootstrap, now) = (bootstrap.clone(), (shared.clock)().as_secs());
        let Ok(next) = tokio::task::spawn_blocking(move || bootstrap.look(now)).await else { return };
        shared.next_look.set(Some(Instant::now() + next));
        shared.has_looked.notify_one();
        sleep(next).await;
    }
}

async fn connection(socket: TcpStream, from: IpAddr, shared: Rc<Shared>) {
    let peer = Peer::of(from);
    let (number, must_leave) = shared.strangers.borrow_mut().enter(peer);
    let admitted = tokio::select! {
        admitted = timeout(STRANGER_LIMIT, admitted(socket, peer, &shared)) => admitted.ok().flatten(),
        _ = must_leave => None,
    };
    shared.strangers.borrow_mut().leave(number);
    let Some((request, exchange)) = admitted else { return };
    let served = shared.served.get();
    if served >= MOST_SERVED {
        let why = format!("this node serves {MOST_SERVED} requests already, and no more at once");
        let _ = timeout(HEAD_LIMIT, exchange.refuse(429, &why)).await;
        return;
    }
    shared.served.set(served + 1);
    let outcome = kubelet_api::route(&request, exchange, shared.node.clone()).await;
    shared.served.set(shared.served.get() - 1);
    if let Err(error) = outcome {
        log::debug!(
            "port {}: {} /{}: {error}",
            shared.settings.address,
            request.method,
            request.path.join("/")
        );
    }
}

/// The request of an authorized caller; all others get an error.
async fn admitted(socket: TcpStream, peer: Peer, shared: &Shared) -> Option<(Request, Exchange)> {
    let _ = socket.set_nodelay(true);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
    let _ = SockRef::from(&socket).set_tcp_keepalive(&keepalive);
    // a caller that leaves ends its program
    let seen = kubelet_api::Peer::of(&socket).ok();
    let acceptor = TlsAcceptor::from(shared.identity.current().await);
    let stream = match timeout(HANDSHAKE_LIMIT, acceptor.accept(socket)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            log::debug!("port {}: TLS: {error}", shared.settings.address);
            return None;
        }
        Err(_) => return None,
    };
    let chain = stream.get_ref().1.peer_certificates();
    let user = chain.and_then(|chain| User::of_certificate(chain.first()?));
    let (request, mut exchange) =
        timeout(HEAD_LIMIT, kubelet_api::receive(Box::new(stream))).await.ok()?.ok()??;
    match judged(&request, user, peer, shared).await {
        Ok(()) => {
            exchange.peer = seen;
            Some((request, exchange))
        }
        Err((status, why)) => {
            if status == 401 {
                sleep(REFUSAL_PAUSE).await;
            }
            let _ = exchange.refuse(status, &why).await;
            None
        }
    }
}

/// Whether a request is authorized; if not, the reason, in the kubelet's words where it has some.
async fn judged(
    request: &Request,
    user: Option<User>,
    peer: Peer,
    shared: &Shared,
) -> Result<(), (u16, String)> {
    let user = match user {
        Some(user) => user,
        None => user_of_token(request, peer, shared).await?,
    };
    let wanted = rights::wanted(request)
        .ok_or_else(|| (405, format!("{} is not served here", kedge_api::excerpt(&request.method))))?;
    let is_allowed = heard(shared, shared.reviews.allows(&user, &wanted).await);
    let (name, verb, subresources) = (&user.name, wanted.verb, wanted.subresources.join(" "));
    let asked = format!("user={name}, verb={verb}, resource=nodes, subresource(s)=[{subresources}]");
    match is_allowed {
        Ok(true) if rights::is_debugging(request) && !shared.settings.has_debugging => {
            Err((405, "Debug endpoints are disabled.".to_owned()))
        }
        Ok(true) => Ok(()),
        Ok(false) => Err((403, format!("Forbidden ({asked})"))),
        Err(()) => Err((500, format!("Authorization error ({asked})"))),
    }
}

async fn user_of_token(request: &Request, peer: Peer, shared: &Shared) -> Result<User, (u16, String)> {
    let unauthorized = || (401, "Unauthorized".to_owned());
    let token = bearer(request).filter(|_| shared.settings.takes_tokens).ok_or_else(unauthorized)?;
    if let Some(user) = shared.reviews.known(token) {
        return Ok(user);
    }
    let wrong = &shared.wrong;
    if !wrong.borrow_mut().may_ask(peer, std::time::Instant::now()) {
        return Err((429, "too many wrong tokens: try again in a minute".to_owned()));
    }
    match heard(shared, shared.reviews.user(token).await) {
        Ok(Some(user)) => Ok(user),
        Ok(None) => {
            wrong.borrow_mut().note(peer);
            Err(unauthorized())
        }
        Err(()) => Err(unauthorized()),
    }
}

/// Logs once that the API server does not answer: the reason is not for strangers.
fn heard<T>(shared: &Shared, answer: Result<T, String>) -> Result<T, ()> {
    let was_silent = shared.is_silent.replace(answer.is_err());
    answer.map_err(|why| {
        if !was_silent {
            log::warn!(
                "port {}: a caller is refused, for the API server does not judge: {why}",
                shared.settings.address
            );
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_in_use_reaches_the_process() {
        let server = ApiServer::of_url("https://hub.example:7443").unwrap();
        let settings = r#"{"address": "https://x y"}"#;
        let word = at(&server, OsStr::new(settings)).into_string().unwrap();
        assert_eq!(apart(&word), (Some(server), settings));
        assert_eq!(apart(settings), (None, settings));
    }
}
