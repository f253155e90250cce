//! Power cuts at every moment of a node's run, shown on the real agent, a real hub and a real file system.
//!
//! The agent runs on a disk whose every write is logged: it starts for the first time, adopts, saves
//! progress, promotes, follows an edit, rolls back, is forgiven, meets an invalid source, is unassigned. Then
//! the disk is rebuilt as a cut at each flush could have left it, and the agent is started on each, without a
//! hub. Always holds: it runs the old or the new configuration, reports which, reports only what is on disk,
//! and has lost nothing that `/status` or the API had shown before. The checker is checked: an agent whose
//! fsyncs do nothing must be caught.
//!
//! `KEDGE_CRASH_FULL=1` checks more states of more file systems; `KEDGE_CRASH_SEED` chooses other random
//! parts. Needs what `.ci/build` builds, kubectl, and what `kedge_rig::logged_disk` needs; under CI=true it
//! fails without.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is how a test says what failed")]

mod history;
mod restart;
mod run;
mod tests;
