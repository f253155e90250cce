//! The local endpoint: HTTP/1.1 on a unix socket, for the command line and for tools on the node.
//!
//! Owns the socket file, the choice of users that may connect, and the limits of their requests. Always
//! holds: a caller that is slow, large or gone costs a bounded amount of memory and time and delays no other
//! part of the agent; only root and the agent's own user get in. The server knows no path: every request goes
//! as a [`Call`] through a channel to the main loop (which owns the requested state). `server` listens,
//! `answers` knows the paths, `client` is the command line's side.
//!
//! On TCP, which is optional and for loopback only, callers cannot be identified: requests there are marked
//! [`Origin::Loopback`], may only read, and must name a loopback host (so no web page can reach them through
//! a browser).

pub mod answers;
pub mod client;
pub mod server;

pub use server::{Listener, serve};

use tokio::sync::oneshot;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Root or our own user, on the unix socket.
    Socket {
        /// The peer's user.
        uid: u32,
    },
    /// Anybody on this machine, on TCP.
    Loopback,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Read.
    Get,
    /// Change something; on the unix socket only.
    Post,
}

/// A request, whole and decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub verb: Verb,
    /// The path, decoded, without the query, such as `/config/forgive`.
    pub path: String,
    /// The query's pairs in order, decoded.
    pub query: Vec<(String, String)>,
    /// The body; empty for [`Verb::Get`].
    pub body: Vec<u8>,
    pub origin: Origin,
}

impl Request {
    /// The first value of a parameter.
    #[must_use]
    pub fn param(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    /// Media type of the body.
    pub content_type: &'static str,
    pub body: Vec<u8>,
}

impl Response {
    /// Plain text; a line end is added if it lacks one.
    #[must_use]
    pub fn text(status: u16, text: impl Into<String>) -> Self {
        let mut text = text.into();
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Self { status, content_type: "text/plain; charset=utf-8", body: text.into_bytes() }
    }

    #[must_use]
    pub fn json(status: u16, value: &serde_json::Value) -> Self {
        Self { status, content_type: "application/json", body: value.to_string().into_bytes() }
    }

    /// Metrics in Prometheus' text form.
    #[must_use]
    pub fn metrics(text: String) -> Self {
        Self { status: 200, content_type: "text/plain; version=0.0.4", body: text.into_bytes() }
    }

    /// The path does not exist.
    #[must_use]
    pub fn not_found(path: &str) -> Self {
        Self::text(404, format!("no such path: {path}"))
    }
}

/// A request that waits for its answer. If it is dropped, the answer is 503.
#[derive(Debug)]
pub struct Call {
    pub request: Request,
    reply: oneshot::Sender<Response>,
}

impl Call {
    /// Answers. A caller that is gone does not matter.
    pub fn answer(self, response: Response) {
        let _ = self.reply.send(response);
    }
}
