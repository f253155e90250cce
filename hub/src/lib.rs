//! The hub: a small, durable Kubernetes API server for a fleet of edge devices.
//!
//! The semantics of the API, authorization and the decisions of controllers are in `kedge_hub_core`, which
//! does no IO. This crate performs:
//!
//! | module | owns |
//! |---|---|
//! | `hub` | the handle of a running hub: reading, subscribing, one write |
//! | `store`, `memory` | the durable copy behind the writer's thread; all reads and watches from memory, behind a lock |
//! | `requests` | create, update, patch, apply, delete: decide, write, and retry after a concurrent write (`locks`, `fresh`) |
//! | `controllers`, `probe` | the runner of all controllers; the hub's request to itself |
//! | `audit`, `denials` | the audit log; explaining denials that end |
//! | `node_acts` | what a Node asks of the hub: a decision after a restore, the end of a decommissioned node |
//! | `credential_table` | the newest credential of each node |
//! | `clock` | the newest time that the hub trusted, over restarts |
//! | `guard` | which loops make progress; systemd's watchdog |
//! | `server` | HTTP over TLS, discovery, OpenAPI, tables |
//! | `pki` | the certificate authority, serving and client certificates |
//! | `node_command`, `token_command`, `denied_command`, `rollout_command` | `kedge-hub node`, `token`, `denied` and `rollout`: ask the running hub (`asking`) |
//! | `elsewhere` | `kedge-hub controllers`: controllers beside another API server |
//! | `user_command`, `kubeconfig_command` | `kedge-hub user`, `kubeconfig` and `node-kubeconfig`: credentials |
//! | `flags`, `help`, `addresses`, `logging` | the command line and its pages of help, the names and URLs of the hub, the log |
//! | `bucket`, `files`, `own` | rates, for `server` and `audit`; small durable files; reading JSON that the hub wrote |
//!
//! The hub never dials a node, and no node's clock is ever compared with ours.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read what they wrote themselves"))]

pub mod addresses;
mod asking;
mod audit;
mod bucket;
pub mod ca_command;
pub mod capacity;
pub mod clock;
pub mod controllers;
mod credential_table;
pub mod denials;
pub mod denied_command;
pub mod elsewhere;
mod files;
pub mod flags;
mod fresh;
pub mod guard;
pub mod help;
mod hub;
pub mod kubeconfig_command;
mod locks;
pub mod logging;
pub mod memory;
pub mod node_acts;
pub mod node_command;
mod own;
pub mod pki;
pub mod probe;
pub mod requests;
pub mod rollout_command;
pub mod server;
pub mod store;
pub mod token_command;
pub mod user_command;

/// `server::allocations` reads its counts.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

pub use hub::{Authorities, Hub, Subscription};
pub use store::OpenError;

/// The release, and the commit where the build names it.
pub const VERSION: &str = kedge_platform::program_version!();
