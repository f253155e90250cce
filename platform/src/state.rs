//! The operations of a disk image on its state partition before systemd starts: check, repair, make, enlarge
//! and mount it, and show its files.
//!
//! Always holds: each call is one step between power cuts; except a mount, none waits for a disk without a
//! limit. `linux::state` is the real board, `fake::FakeState` behaves the same in memory.
//!
//! Leaves to others: the choice of steps and their order (`kedge_core::state_partition`).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::files::{DurableFiles, Operations};

/// The result of a check of the file system: e2fsck's exit code and output; `None` if the time limit or the
/// kernel ended it.
pub type Check = Option<(i32, String)>;

/// A board with a state partition.
pub trait StateBoard {
    /// Stores the device's own files.
    type Disk: Operations;

    /// The partition, if the disk of the root has one.
    fn device(&self) -> Option<PathBuf>;

    /// Writes a line to the kernel's log.
    fn say(&self, text: &str);

    /// Waits.
    fn pause(&self, time: Duration);

    /// True if it has a superblock.
    fn has_file_system(&self) -> bool;

    /// Checks the whole file system, and corrects small errors.
    fn correct(&self) -> Check;

    /// Checks the whole file system, and repairs it as far as possible; from a copy of the superblock, given
    /// by its block and the block size.
    fn repair(&self, copy: Option<(u32, u32)>) -> Check;

    /// Mounts it on `/var`.
    ///
    /// # Errors
    /// The kernel refuses, or the disk fails.
    fn mount(&self, is_writable: bool) -> io::Result<()>;

    /// The size of the file system's partition.
    ///
    /// # Errors
    /// The kernel does not report it.
    fn bytes(&self) -> io::Result<u64>;

    /// Free bytes of the disk after the partition.
    ///
    /// # Errors
    /// The kernel does not report it.
    fn bytes_behind(&self) -> io::Result<u64>;

    /// Reads bytes from the disk itself.
    ///
    /// # Errors
    /// They cannot be read, or the partition is shorter.
    fn read(&self, at: u64, bytes: u64) -> io::Result<()>;

    /// Enlarges it to the end of the disk.
    ///
    /// # Errors
    /// It keeps its size.
    fn grow(&self) -> io::Result<()>;

    /// Makes an empty file system on it.
    ///
    /// # Errors
    /// It may have no file system now.
    fn make(&self) -> io::Result<()>;

    /// Mounts a file system in memory on `/var`.
    ///
    /// # Errors
    /// The kernel refuses.
    fn use_memory(&self) -> io::Result<()>;

    /// Makes the directories that are expected below `/var`.
    ///
    /// # Errors
    /// One could not be made; the others were attempted.
    fn make_directories(&self) -> io::Result<()>;

    /// Shows the device's own files in their usual places; if there are none, files in memory.
    ///
    /// # Errors
    /// Not even memory can be mounted.
    fn show_own_files(&self) -> io::Result<()>;

    /// The files below `/var/etc`.
    fn own(&self) -> Arc<DurableFiles<Self::Disk>>;

    /// A new UUID.
    ///
    /// # Errors
    /// The kernel gives none.
    fn uuid(&self) -> io::Result<String>;

    /// Shows the machine id in its usual place, readable for all.
    ///
    /// # Errors
    /// The kernel refuses.
    fn show_machine_id(&self) -> io::Result<()>;
}
