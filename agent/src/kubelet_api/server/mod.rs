//! The kubelet's API on a port of its own (`port` of the configuration, mostly 10250), for API servers that
//! dial their nodes.
//!
//! The agent owns the listening socket, and nothing else. When somebody connects, it hands the socket to a
//! process of its own, `kedge kubelet-port`, which serves all connections and ends when there has been no
//! connection for a while. So a port that is off costs nothing, an unused one costs a descriptor, the API
//! server's answers about callers can be cached while callers connect, and sessions outlive the agent that
//! offered the port. Always holds: nothing is served to an unauthenticated caller, and nothing that the API
//! server has not allowed; whatever strangers do costs a bounded amount of memory, and a bounded rate of
//! requests to the API server. Left to others: the content (`kubelet_api`), the port's settings
//! (`kedge_core::kubelet`).
//!
//! `process` accepts, `identity` is the TLS side of this node, `callers` and `rights` determine the user and
//! the right that a request needs, `reviews` queries the API server about both, `bootstrap` requests a
//! certificate from it, `strangers` limits callers that are not authenticated yet.

mod bootstrap;
mod callers;
mod identity;
mod process;
mod reviews;
mod rights;
mod strangers;

use std::ffi::OsString;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use kedge_core::WithPods;
use kedge_core::kubelet::ServerSettings;
use kedge_platform::workloads;
use tokio::io::AsyncReadExt as _;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep, sleep_until};

pub use process::run;

use crate::beside::beside;
use crate::net::servers::Servers;

/// The pauses between tries to listen, or to start a process that ends at once: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A process that lived as long did its work.
const LONG_ENOUGH: Duration = Duration::from_secs(10);

/// Longest message of a process that ends well: in how many seconds to check its certificate.
const WORD_BYTES: u64 = 20;
/// When the certificate is checked first: a new node's Node exists by then, and a check that finds none is
/// not repeated soon.
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// When to check it if the process sent no message.
const UNSAID: Duration = Duration::from_secs(300);

/// Offers the port until this process ends. `session` are the words that start a session. Call it within the
/// agent's runtime. `servers`: the process asks the one in use about its callers.
pub(crate) fn offer(settings: &ServerSettings, session: Option<&[OsString]>, servers: Servers) {
    let address = settings.address;
    let Some(words) = session.and_then(|session| words(settings, session)) else {
        let why = match WithPods::built() {
            Some(_) => "without an API server nobody can say what a caller may do",
            None => crate::flags::NO_PODS,
        };
        log::warn!("port {address} stays closed: {why}");
        return;
    };
    drop(tokio::spawn(keep(address, words, servers, settings.requests_certificate)));
}

/// The words that start the process of the port.
fn words(settings: &ServerSettings, session: &[OsString]) -> Option<Vec<OsString>> {
    let settings = serde_json::to_string(settings).ok()?;
    let mut words: Vec<OsString> = vec!["kubelet-port".into(), settings.into()];
    words.extend_from_slice(session.get(1..)?);
    Some(words)
}

async fn keep(address: SocketAddr, words: Vec<OsString>, servers: Servers, requests_certificate: bool) {
    let mut listener = listen(address).await;
    let mut pause = FIRST_PAUSE;
    // when to start the process to check its certificate, though nobody connects
    let mut look = requests_certificate.then(|| Instant::now() + FIRST_LOOK);
    loop {
        let begun = match wait_for_caller(listener, look).await {
            Ok(waited) => {
                listener = waited;
                Instant::now()
            }
            Err(error) => {
                log::warn!("port {address}: wait for connections: {error}; opening it again");
                sleep(LONGEST_PAUSE).await;
                listener = listen(address).await;
                continue;
            }
        };
        let again = if servers.are_known() { UNSAID } else { FIRST_LOOK };
        if !servers.are_known() && look.is_some_and(|at| at <= begun) {
            // nobody can be asked before the node has joined, and it may join at any time
            look = Some(begun + again);
            continue;
        }
        let mut is_done = false;
        let mut words = words.clone();
        if let (Some(server), Some(settings)) = (servers.used(), words.get_mut(1)) {
            *settings = process::at(&server, settings);
        }
        match start(&words, &listener).await {
            // until then the process accepts, not the agent
            Ok(process) => {
                let mut said = Vec::new();
                let _ = process.take(WORD_BYTES).read_to_end(&mut said).await;
                let secs = core::str::from_utf8(&said).ok().and_then(|said| said.parse().ok());
                is_done = secs.is_some();
                look = look.map(|_| Instant::now() + secs.map_or(again, Duration::from_secs));
            }
            Err(error) => {
                log::warn!("port {address}: start the process that serves it: {error}");
                look = look.map(|_| Instant::now() + again);
            }
        }
        if is_done || begun.elapsed() >= LONG_ENOUGH {
            pause = FIRST_PAUSE;
        } else {
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Listens, as soon as possible: the address may not be there yet, and an agent before this one may have left
/// a process that is about to close it.
async fn listen(address: SocketAddr) -> TcpListener {
    let (mut pause, mut logged) = (FIRST_PAUSE, String::new());
    loop {
        let listened = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        match listened {
            Ok(listener) => {
                log::info!("the kubelet's API is offered on {address}");
                return listener;
            }
            // an agent that was started anew waits a second or two for the one before
            Err(error) if pause > FIRST_PAUSE && error.to_string() != logged => {
                logged = error.to_string();
                log::warn!("listen on {address}: {logged}; trying again");
            }
            Err(_) => {}
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Waits until somebody connects, or a check is due. The agent does not watch the socket any longer then: the
/// process does, and a flood must not wake the agent.
async fn wait_for_caller(listener: TcpListener, look: Option<Instant>) -> io::Result<TcpListener> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe, for types that name another descriptor later: this one cannot"
    )]
    let watched = AsyncFd::with_interest(listener, tokio::io::Interest::READABLE)?;
    let due = async {
        match look {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ready = watched.readable() => drop(ready?),
        () = due => {}
    }
    Ok(watched.into_inner())
}

/// Starts the process; its end of the stream closes when it stops accepting.
async fn start(words: &[OsString], listener: &TcpListener) -> io::Result<tokio::net::UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    let (words, listener) = (words.to_vec(), listener.try_clone()?);
    // starting a program from a disk that hangs blocks
    beside(move || workloads::start_port(&words, listener.into(), theirs.into())).await??;
    ours.set_nonblocking(true)?;
    tokio::net::UnixStream::from_std(ours)
}
