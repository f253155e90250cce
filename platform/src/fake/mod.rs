//! A board in memory: behaves like the real one; tests cut its power and inject faults.
//!
//! Always holds: the same calls with the same seeds give the same results; the real machine is not
//! touched. A restarted program creates its `files`, clocks and previous exit anew, as a real one does; the
//! disk, the host and the machine's traces remain.
//!
//! Leaves to others: scenarios, which the tests and the simulator define.

mod board;
mod clocks;
mod disk;
mod random;
mod slots;
mod state;

use std::sync::Arc;

use crate::exit::RecordedExit;
use crate::files::{DurableFiles, Files};

pub use board::{FakeHost, FakeSupervisor, FakeTraces, Notice};
pub use clocks::FakeClocks;
pub use disk::{FakeDisk, Loss, Losses, Operation, SECTOR_BYTES};
pub use random::Random;
pub use slots::{FakeSlots, FakeTarget};
pub use state::{FakeState, Medium, Torn, Var};

/// The real protocol over a fake disk, for one run of a program.
pub fn files(disk: &FakeDisk) -> Arc<DurableFiles<FakeDisk>> {
    Arc::new(DurableFiles::tagged(disk.clone(), 0))
}

/// The previous exit as recorded in `files` and remembered by the machine.
pub fn previous_exit(files: Arc<dyn Files>, traces: &FakeTraces) -> RecordedExit<FakeTraces> {
    RecordedExit::new(files, traces.clone())
}
