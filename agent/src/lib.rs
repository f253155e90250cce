//! The agent's parts, as a library so that tests can drive them.
//!
//! `net` speaks to the API server, `local` to people and tools on the node itself.

pub mod local;
pub mod net;
