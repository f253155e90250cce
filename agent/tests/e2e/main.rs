//! The agent as it is delivered: real processes, a real hub, TLS, real kubectl, real disks.
//!
//! Each test has a hub and nodes of its own and sees them through the API, as an operator does; each also
//! checks the node's next step. Needs what `.ci/build` builds and `hub/tests/kubectl/fetch` fetches. Claims
//! that need a power cut or a board's reset are tested in agent/core and platform.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is how a test says what failed")]

mod assignment;
mod authority;
mod calls;
mod config_rollouts;
mod crash;
mod identity;
mod join;
mod local;
mod lossy_line;
mod name;
mod no_pods;
mod outage;
mod replace;
mod setup;
mod starter;
mod stuck_disk;
mod watches;
