//! The hub as kubectl 1.20, 1.32 and 1.36 see it, and its command line. Each test has its own hub, and a
//! kubectl with a home and a cache of its own, so any number of tests may run at once.

#![allow(clippy::disallowed_methods, reason = "tests read what they and the hub wrote")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

mod a_silent_node;
mod apply;
mod command_line;
mod config_rollouts;
mod fleet;
mod forms;
mod nodes;
mod programs;
mod prometheus;
mod rights;
mod rollout_scenarios;
#[path = "../server/mod.rs"]
mod server;
mod shapes;
mod tour;
mod usage;
mod users;
mod workloads;
