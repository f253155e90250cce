//! The parts of a rollout that do not depend on what is rolled out: pods of a DaemonSet (`daemon_sets`) or
//! configurations (`config_rollouts`).
//!
//! `budget` counts how many nodes may be out at a time and how many may fail, `stop` decides when a rollout
//! stops and goes on, `recorded` is the durable state of that, and `telling` limits the Events. Always holds:
//! all of it is pure, and there is no second implementation of any of it. Leaves to others: which nodes are
//! out, which have failed, and the actions.

pub(super) mod budget;
pub(super) mod recorded;
pub(super) mod stop;
pub(super) mod telling;
