//! Images, from a registry that misbehaves and from layouts that lie, with the real program: a pulled and
//! unpacked image is whole, a failed one leaves nothing, and the host is never touched.
//!
//! Unpacking needs root. Without it this is printed and these tests do nothing; under CI=true they fail.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod archive;
mod cuts;
mod hostile;
mod orders;
mod pull;
mod real_registry;
mod setup;
mod signatures;
mod strangers;
