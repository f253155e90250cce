//! The parts of `make try`, the benchmark and the end-to-end tests: a babysitter for processes, a hub,
//! agents, kubectl, and a view of the API.
//!
//! Always holds: every process started here dies with the process that started it, every wait has a limit,
//! and everything is kept below one scratch directory. Nothing here is part of the agent or the hub.

pub mod agent;
pub mod archive;
pub mod babysitter;
pub mod bad_disk;
pub mod client;
pub mod cluster;
pub mod console;
pub mod dead_disk;
pub mod demo;
pub mod error;
pub mod flags;
pub mod hub;
pub mod image_push;
pub mod kubectl;
pub mod link;
pub mod logged_disk;
pub mod lossy_line;
pub mod nat;
pub mod nosync_preload;
pub mod power_cut;
mod preload;
pub mod process;
pub mod programs;
pub mod real_registry;
pub mod registry;
pub mod rollout_scenarios;
pub mod scratch;
pub mod signals;
pub mod small_machine;
pub mod table;
pub mod view;

pub use kedge_platform::fake::Random;
pub use scratch::Scratch;
