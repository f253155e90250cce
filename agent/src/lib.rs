//! The agent on each node, as a library so that tests can drive its parts.
//!
//! `agent` is the main loop around core; `loops` and `disk` perform what core decides; `net` speaks to the API server,
//! `local` to people and tools on the node itself; `cli` is every command that is not the agent.

pub mod agent;
pub mod answers;
pub mod cli;
mod disk;
mod errors;
mod faults;
pub mod flags;
pub mod local;
mod local_config;
mod logging;
mod loops;
pub mod net;
