//! What a disk image does with its state partition before systemd starts: check, repair, make, enlarge and mount it, and show what it
//! holds.
//!
//! Always holds: each call is one thing that a power cut may fall into; none waits for a disk without a limit but a mount.
//! `linux::state` is the real board, `fake::FakeState` behaves the same in memory.
//!
//! Leaves to others: what is done, in which order (`kedge_core::state_partition`).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::files::{DurableFiles, Operations};

/// What a check of the file system has answered: e2fsck's exit code and output; or that it was ended, by the time limit or by the kernel.
pub type Check = Option<(i32, String)>;

/// A board with a state partition.
pub trait StateBoard {
    /// Where the device's own files are.
    type Disk: Operations;

    /// The partition, if the disk that holds the root has one.
    fn device(&self) -> Option<PathBuf>;

    /// A line for the kernel's log.
    fn say(&self, text: &str);

    /// Waits.
    fn pause(&self, time: Duration);

    /// Whether it has a superblock.
    fn has_file_system(&self) -> bool;

    /// Checks all of it, and corrects small errors.
    fn correct(&self) -> Check;

    /// Checks all of it, and repairs what can be repaired; from a copy of the superblock, by its block and their size.
    fn repair(&self, copy: Option<(u32, u32)>) -> Check;

    /// Mounts it on `/var`.
    ///
    /// # Errors
    /// The kernel refuses, or the disk fails.
    fn mount(&self, is_writable: bool) -> io::Result<()>;

    /// Its size.
    ///
    /// # Errors
    /// The kernel does not say.
    fn bytes(&self) -> io::Result<u64>;

    /// Bytes of the disk behind it.
    ///
    /// # Errors
    /// The kernel does not say.
    fn bytes_behind(&self) -> io::Result<u64>;

    /// Reads, from the disk itself.
    ///
    /// # Errors
    /// It cannot be read, or ends before.
    fn read(&self, at: u64, bytes: u64) -> io::Result<()>;

    /// Enlarges it to the end of the disk.
    ///
    /// # Errors
    /// It keeps its size.
    fn grow(&self) -> io::Result<()>;

    /// Makes an empty file system on it.
    ///
    /// # Errors
    /// There may be none now.
    fn make(&self) -> io::Result<()>;

    /// Mounts memory on `/var`.
    ///
    /// # Errors
    /// The kernel refuses.
    fn use_memory(&self) -> io::Result<()>;

    /// Makes the directories that are expected below `/var`.
    ///
    /// # Errors
    /// One could not be made; the others were tried.
    fn make_directories(&self) -> io::Result<()>;

    /// Shows the device's own files in their place; memory, if there are none.
    ///
    /// # Errors
    /// Not even memory can be mounted.
    fn show_own_files(&self) -> io::Result<()>;

    /// What lies below `/var/etc`.
    fn own(&self) -> Arc<DurableFiles<Self::Disk>>;

    /// A new UUID.
    ///
    /// # Errors
    /// The kernel has none.
    fn uuid(&self) -> io::Result<String>;

    /// Shows the machine id in its place, readable for all.
    ///
    /// # Errors
    /// The kernel refuses.
    fn show_machine_id(&self) -> io::Result<()>;
}
