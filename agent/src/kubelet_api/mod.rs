//! The kubelet's HTTP API, over any stream: the requests of `kubectl logs`, `exec`, `attach`, `port-forward`
//! and `get --raw .../proxy/...` to a node.
//!
//! Owns one exchange: a bounded head is read, a route answers it, the stream ends. Always holds: a caller
//! that is slow, large or gone costs a bounded amount of memory; an answer that breaks off is never taken for
//! a whole one. It knows no sockets: the code that accepts or dials a connection passes it in, and has
//! authorized the caller: every caller here may do everything. Left to others: framing (`http`), queries to
//! the running agent (`local::client`), the way to the hub (`calls`), a port that clients dial (`server`).
//!
//! To add a route: its arm in [`route`], and an `async fn` in a file of its own that takes the [`Exchange`]
//! and ends it in one of three ways: [`Exchange::answer`] (a complete body), [`Exchange::stream`] (a growing
//! body), [`Exchange::take_over`] (a 101, and the raw stream with all bytes that the caller has sent since
//! its head). Blocking work (files, the agent's socket) runs in `tokio::task::spawn_blocking`. Texts of
//! errors are shown by kubectl: use the kubelet's words where it has some.

mod exec;
mod http;
mod logs;
pub mod node;
mod node_logs;
mod peer;
mod pod_port;
mod pods;
mod port_forward;
pub mod server;
mod stats;
#[cfg(test)]
mod tests;

use crate::kubelet_api::node::{Node, Stream};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::local::client;
use exec::Verb;
pub use http::{Exchange, Grown, MAX_HEAD_BYTES, Request, receive, rewound};
pub use peer::Peer;

/// How long a head may take to arrive: it is on its way when the stream is passed in.
const HEAD_LIMIT: Duration = Duration::from_secs(10);

/// Serves the one request that arrives on a stream. It returns when the answer is sent, or the code that took
/// the stream over is done.
///
/// # Errors
/// The stream broke, or its caller left, before the answer was sent.
pub async fn serve(stream: Box<dyn Stream>, node: Arc<Node>) -> io::Result<()> {
    serve_seen(stream, None, node).await
}

/// The same for a connection whose client can be seen leaving: its program ends then, even if that does not
/// read its input.
///
/// # Errors
/// Those of [`serve`].
pub async fn serve_seen(stream: Box<dyn Stream>, peer: Option<Peer>, node: Arc<Node>) -> io::Result<()> {
    match timeout(HEAD_LIMIT, http::receive(stream)).await {
        Ok(received) => match received? {
            Some((request, mut exchange)) => {
                exchange.peer = peer;
                route(&request, exchange, node).await
            }
            None => Ok(()),
        },
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no request came")),
    }
}

async fn route(request: &Request, exchange: Exchange, node: Arc<Node>) -> io::Result<()> {
    let path: Vec<&str> = request.path.iter().map(String::as_str).collect();
    match (request.method.as_str(), path.as_slice()) {
        ("GET", [name @ ("healthz" | "configz" | "metrics")]) => {
            ask_agent(exchange, node, format!("/{name}")).await
        }
        ("GET", ["containerLogs", namespace, pod, container]) => {
            logs::serve(request, exchange, node, [namespace, pod, container]).await
        }
        ("GET", ["pods"]) => pods::serve(exchange, node).await,
        ("GET", ["stats", "summary"]) => stats::summary(request, exchange, node).await,
        ("GET", ["metrics", "resource"]) => stats::resource(exchange, node).await,
        ("GET", ["logs", below @ ..]) => node_logs::serve(request, exchange, node, below).await,
        ("GET" | "POST", ["exec", namespace, pod, container]) => {
            exec::serve(Verb::Exec, request, exchange, node, (namespace, pod, None, container)).await
        }
        ("GET" | "POST", ["exec", namespace, pod, uid, container]) => {
            exec::serve(Verb::Exec, request, exchange, node, (namespace, pod, Some(uid), container)).await
        }
        ("GET" | "POST", ["attach", namespace, pod, container]) => {
            exec::serve(Verb::Attach, request, exchange, node, (namespace, pod, None, container)).await
        }
        ("GET" | "POST", ["attach", namespace, pod, uid, container]) => {
            exec::serve(Verb::Attach, request, exchange, node, (namespace, pod, Some(uid), container)).await
        }
        ("GET" | "POST", ["portForward", namespace, pod]) => {
            port_forward::serve(request, exchange, node, (namespace, pod, None)).await
        }
        ("GET" | "POST", ["portForward", namespace, pod, uid]) => {
            port_forward::serve(request, exchange, node, (namespace, pod, Some(uid))).await
        }
        ("GET", ["podPort", uid, address, port]) => {
            pod_port::serve(request, exchange, node, [uid, address, port]).await
        }
        ("GET", _) => exchange.refuse(404, &format!("no such path: /{}", path.join("/"))).await,
        (method, _) => exchange.refuse(405, &format!("{method} is not served here")).await,
    }
}

/// Passes on the running agent's answer.
async fn ask_agent(exchange: Exchange, node: Arc<Node>, path: String) -> io::Result<()> {
    let asked = tokio::task::spawn_blocking(move || client::get(&node.agent.places.socket(), &path)).await?;
    match asked {
        Ok(answer) => {
            let is_json = answer.body.first() == Some(&b'{');
            let media = if is_json { "application/json" } else { "text/plain; charset=utf-8" };
            exchange.answer(answer.status, media, &answer.body).await
        }
        Err(error) => exchange.refuse(503, &error.to_string()).await,
    }
}
