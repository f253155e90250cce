//! The agent's way to its API server: credentials, connections, requests, watches.
//!
//! Owns every byte that crosses the network on the agent's behalf. Always holds: no credential is sent before
//! the server's certificate is verified, nothing waits without a limit, and every answer is bounded in size.
//! It blocks: each stream lives on its own thread. It decides nothing: when to renew, the content of reports
//! and the back-off are the caller's business.

pub mod client;
pub mod credentials;
pub(crate) mod date;
pub mod error;
pub(crate) mod known_server;
pub mod kubeconfig;
pub(crate) mod links;
pub mod outcomes;
pub mod proxy;
pub(crate) mod servers;
pub mod tls;
pub mod transport;
pub(crate) mod unknown_server;
pub mod watch;
