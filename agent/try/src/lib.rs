//! What the try-out and the end-to-end tests are made of: a babysitter for processes, and later a hub, agents and kubectl.
//!
//! Always holds: every process started here dies with the process that started it, every wait has a limit, and everything
//! is kept below one scratch directory. Nothing here is part of the agent or the hub.

pub mod babysitter;
pub mod scratch;
pub mod service;
pub mod signals;
