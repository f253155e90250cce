//! The agent on each node, as a library so that tests can drive its parts.
//!
//! `run` is the main loop around core; `perform` performs core's decisions. `net` speaks to the API server,
//! `local` to people and tools on the node itself. `cli` is every command that is not the agent, except
//! `doctor`, `join`, `logs`, `slot`, `state` and `provision`. `options` and `output` are shared by all
//! commands. `workloads` performs orders about containers; `kubelet_api` answers kubectl's requests to a
//! node.

pub mod any_server;
mod beside;
pub mod calls;
pub mod cli;
mod decommission;
pub mod doctor;
mod errors;
mod faults;
pub mod flags;
mod forecast;
mod help;
mod http1;
mod identity;
pub mod images;
pub mod join;
pub mod kubelet_api;
pub mod local;
mod local_config;
mod locks;
mod logging;
pub mod logs;
pub mod net;
mod node_name;
pub mod options;
pub mod output;
mod perform;
pub mod provision;
mod queue;
mod refused;
pub mod run;
pub mod service;
pub mod sessions;
pub mod slot;
pub mod state;
mod status;
pub mod system;
pub mod workloads;

/// The release, and the commit where the build names it.
pub const VERSION: &str = kedge_platform::program_version!();
