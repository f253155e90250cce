//! HTTP over TLS: connections, their limits, and the path of a request through route, authorization and
//! handler.
//!
//! HTTP/1.1 only: every client falls back to it, and an idle connection stays small (`link`). Always holds:
//! no connection is served without TLS; a request ends in exactly one answer, and every refusal is a `Status`
//! object; a panic in one request answers 500 and affects no other request. Everything that clients can make
//! grow has a named limit, and a share for each caller (`limits`).

mod accept;
mod acts;
#[cfg(test)]
mod allocations;
mod audited;
mod authentication;
mod authorities;
mod caller;
mod calls;
mod connection;
mod context;
mod credentials;
mod delete_options;
mod detached_watch;
mod discovery;
mod ending;
mod finish;
mod fleet;
mod guesses;
mod handlers;
mod handshakes;
mod head;
mod health;
mod knocks;
mod large;
mod leases;
mod limits;
mod link;
mod location;
mod machines;
mod node_access;
mod node_streams;
mod openapi;
mod own_watches;
mod pieces;
mod pod_proxy;
mod renewals;
mod request;
mod request_body;
mod respond;
mod reviews;
mod route;
mod shared;
mod steps;
mod stream;
mod subresources;
mod tokens;
mod trail;
mod usage;
mod usages;
mod view;
mod watch;
mod writer;

use crate::server::caller::Caller;
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch as signal;
use tokio::time::timeout;

use crate::Hub;
use crate::capacity::{Capacity, Machine};
use kedge_hub_core::identity::Identity;

pub use calls::read_answer;
use connection::serve_requests;
pub use large::STACK_BYTES;
use limits::Resource;
use link::Link;
use shared::Server;

/// Time for requests in flight after a stop was requested.
const DRAIN: Duration = Duration::from_secs(10);
/// Time after that for the last bytes of watches. Both together, and the last writes, fit in the time that
/// systemd allows for a stop.
const LAST_BYTES: Duration = Duration::from_secs(5);
/// Time between two checks for remaining connections.
const LOOK: Duration = Duration::from_millis(20);

/// The reason why serving ended without a stop request.
#[derive(Debug)]
pub enum ServeError {
    /// The store's thread has ended: nothing can be written any more, and only a restart helps. The reason,
    /// if it ended on purpose.
    StoreEnded(Option<String>),
}

impl fmt::Display for ServeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::StoreEnded(Some(why)) => write!(
                out,
                "{why}; what the disk holds is only known after a restart: start the hub again (systemd does by itself)"
            ),
            ServeError::StoreEnded(None) => out
                .write_str("the store has stopped unexpectedly; see the log above, then start the hub again"),
        }
    }
}

impl std::error::Error for ServeError {}

/// Serves until `shutdown` resolves, then stops accepting, lets requests in flight finish, writes all state
/// that is only in memory, closes the store, and ends all watches. In this order, so that a watch ends with a
/// bookmark of the last revision: the next start continues there, and the client need not list again. Does
/// not start controllers: see [`crate::controllers::start`].
///
/// # Errors
/// Only when the store's thread has ended by itself.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    hub: Arc<Hub>,
    capacity: Capacity,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let server = Arc::new(Server::new(hub.clone(), capacity));
    let (stop, stopped) = signal::channel(false);
    let accepting = accept::accept(listener, tls, server.clone(), stopped);
    let outcome = tokio::select! {
        () = accepting => Ok(()),
        () = server.credentials.follow() => Ok(()),
        () = shutdown => Ok(()),
        () = hub.writer().ended() => Err(ServeError::StoreEnded(hub.writer().health().end())),
    };
    log::info!("stopping: {} connections", server.counters.connections.load(Ordering::Relaxed));
    // the listener is closed together with the accepting future
    let _ = stop.send(true);
    drain(&server, DRAIN, || server.limits.level(Resource::Watches).0).await;
    let of_closing = Arc::clone(&hub);
    let mut closing = tokio::task::spawn_blocking(move || of_closing.writer().close());
    // a stalled disk must not keep watches open
    let closed = timeout(DRAIN, &mut closing).await;
    hub.memory().close();
    drain(&server, LAST_BYTES, || 0).await;
    let closed = match closed {
        Ok(closed) => closed,
        Err(_) => closing.await,
    };
    if closed.is_err() {
        log::error!("closing the store failed");
    }
    if tokio::task::spawn_blocking(move || hub.close()).await.is_err() {
        log::error!("closing the audit log failed");
    }
    outcome
}

/// Waits for a limited time until no more than this many connections are left.
async fn drain(server: &Server, time: Duration, left: impl Fn() -> usize) {
    let connections = || server.counters.connections.load(Ordering::Acquire);
    let drained = async {
        while connections() > left() {
            tokio::time::sleep(LOOK).await;
        }
    };
    if timeout(time, drained).await.is_err() {
        log::warn!("{} connections did not finish", connections().saturating_sub(left()));
    }
}

/// Serves one caller over any stream of this process, as a connection is served after TLS, but without
/// sockets and certificates. Ends when the caller leaves. For fuzzing.
///
/// # Errors
/// The stream broke, or did not carry HTTP.
pub async fn serve_one<S>(
    hub: Arc<Hub>,
    identity: Option<Identity>,
    stream: S,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let server = Arc::new(Server::new(hub, Capacity::of(&Machine::read())));
    let (_stop, stopped) = signal::channel(false);
    let caller = Caller::new(&server, identity, IpAddr::V4(Ipv4Addr::LOCALHOST));
    serve_requests(Link::new(stream), &server, caller, stopped).await
}
