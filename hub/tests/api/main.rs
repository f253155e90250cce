//! The API over real TLS, as clients see it. Each test has its own hub: a process on a free port, in a directory of its own.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

mod abuse;
mod apply;
mod kinds;
mod objects;
#[path = "../server/mod.rs"]
mod server;
