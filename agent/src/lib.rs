//! The agent on each node, as a library so that tests can drive its parts.
//!
//! `run` is the main loop around core; `perform` performs what core decides; `net` speaks to the API server,
//! `local` to people and tools on the node itself; `cli` is every command that is not the agent, but `doctor`, `logs`, `slot`, `state`
//! and `provision`; `workloads` performs what is ordered of containers; `kubelet_api` answers what kubectl asks of a node.

mod beside;
pub mod calls;
pub mod cli;
pub mod doctor;
mod errors;
mod faults;
pub mod flags;
mod forecast;
mod help;
pub mod images;
pub mod kubelet_api;
pub mod local;
mod local_config;
mod logging;
pub mod logs;
pub mod net;
mod node_name;
mod perform;
pub mod provision;
mod refused;
pub mod run;
pub mod service;
pub mod sessions;
pub mod slot;
pub mod state;
mod status;
pub mod workloads;
