//! The configuration of a node over time: assigned, recorded, judged, started, on trial, reported.
//!
//! `source` is the Node's request, `records` and `disk` the durable state, `judge` the rules, `start` the
//! decision at start, `running` the one transition that comes next, `condition` the report, `actor` the part
//! that core routes to. Always holds: some configuration runs; a verdict, an assignment and a count are
//! durable before anything relies on them. Leaves the text of a configuration to `kubelet`.

pub(crate) mod actor;
pub(crate) mod condition;
pub(crate) mod digest;
pub(crate) mod disk;
pub(crate) mod judge;
pub mod records;
pub(crate) mod requested;
pub(crate) mod running;
pub mod source;
pub(crate) mod standing;
pub(crate) mod start;
pub(crate) mod system;
pub(crate) mod transition;
