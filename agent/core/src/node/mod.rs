//! The Node object, its Lease and its Events: a node's reports about itself. Three actors: `object`,
//! `heartbeat`, `events`.
//!
//! Always holds: no actor waits for another one, nor for the configuration. Leaves to others: when requests
//! are sent and repeated (`outbox`).

pub(crate) mod calls;
pub(crate) mod decommission;
pub(crate) mod events;
pub(crate) mod facts;
pub(crate) mod heartbeat;
pub(crate) mod lease;
pub(crate) mod object;
pub(crate) mod pressing;
pub(crate) mod pressure;
pub(crate) mod registration;
pub(crate) mod rival;
pub(crate) mod status;
