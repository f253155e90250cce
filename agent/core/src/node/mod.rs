//! The Node object and its Lease: what a node reports of itself.
//!
//! Always holds: neither waits for the other, nor for the configuration. Leaves to others: when requests are sent and
//! repeated (`agent`, `outbox`).

pub(crate) mod lease;
pub(crate) mod registration;
pub(crate) mod status;
