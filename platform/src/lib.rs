//! The abilities of a board, as small traits: durable files, clocks, the supervisor's watchdog, the evidence
//! of how the previous run ended, facts about the host, slots and state partition of a disk image, and
//! containers (`workloads`). `linux` is the real board, `fake` (feature `fake`) behaves the same in memory
//! and fails on request.
//!
//! Always holds: every root (`/proc`, `/sys`, the data directory) is a parameter; no input from the machine
//! can cause a panic or grow without a limit; a write that returned `Ok` survives a power cut.
//!
//! Leaves to others: every decision. This crate knows nothing of configs, Nodes or the network API.

pub mod clocks;
pub mod exit;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod files;
pub mod host;
#[cfg(feature = "images")]
pub mod images;
pub mod linux;
pub mod replace;
pub mod slots;
pub mod state;
pub mod streams;
pub mod supervisor;
pub mod trees;
pub mod watchdog;
pub mod workloads;

pub use clocks::Clocks;
pub use exit::{Evidence, ExitRecord, PreviousExit, RunDirectory, record_exit};
pub use files::{Displaced, DurableFiles, Entry, Files, Kind, Listing, ReadError, SweepReport, WriteError};
pub use host::{Address, Capacity, HostFacts, HostIdentity, ProcessFacts, Usage, WatchdogDevice};
pub use supervisor::Supervisor;
pub use watchdog::{Health, Progress, StalledLoop, Watchdog};

/// What the program that uses this calls itself: its release and, where the build says so (`KEDGE_VERSION`,
/// by `cross/build`), the commit it was built from: `0.1.0+1a2b3c4d5e`. A macro: another commit builds anew
/// only the crate that uses it.
#[macro_export]
macro_rules! program_version {
    () => {
        match option_env!("KEDGE_VERSION") {
            Some(version) => version,
            None => env!("CARGO_PKG_VERSION"),
        }
    };
}
