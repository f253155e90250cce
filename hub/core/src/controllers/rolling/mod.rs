//! The parts that both sorts of rollouts share: those of a DaemonSet's pods (`daemon_sets`) and those of
//! configurations (`config_rollouts`).
//!
//! `budget` counts how many nodes may be out at a time and how many may fail. `stop` decides when a rollout
//! stops and resumes, `recorded` is the durable state of that, and `telling` limits the Events. Always holds:
//! all of it is pure, and both sorts use this implementation alone. Leaves to others: which nodes are out,
//! which have failed, and the actions.

pub(super) mod budget;
pub(super) mod recorded;
pub(super) mod stop;
pub(super) mod telling;
