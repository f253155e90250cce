//! What updates of disk images do to a board: the files of its EFI partition, the partition of a slot, and the firmware's one start.
//!
//! Always holds: each call is one thing that a power cut may fall into; what `sync` and `settle` have answered survives it. A digest
//! is that of the disk, not of memory. `linux::slots` is the real board, `fake::FakeSlots` behaves the same on the fake disk.
//!
//! Leaves to others: what is written, in which order, and whether it may be.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

/// Where the boot loader's list lies on the EFI partition.
pub const LIST: &str = "loader/entries";
/// How much is hashed at a time.
const CHUNK: usize = 64 * 1024;

/// What may make an EFI partition writable again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cure {
    /// Linux has made it read-only after an error.
    Remount,
    /// Unmount, check, mount.
    Repair,
}

/// A board with slots. Paths are below the EFI partition.
pub trait Slots {
    /// A file or a partition that is being written, from its beginning.
    type Target;

    /// The boot loader's list: our entries' texts by file name. A text that cannot be read is empty.
    ///
    /// # Errors
    /// There is no list, or it cannot be read.
    fn entries(&self) -> io::Result<BTreeMap<String, String>>;

    /// An empty file in place of one with that name; its folders are made.
    ///
    /// # Errors
    /// The partition cannot be written.
    fn create(&self, path: &Path) -> io::Result<Self::Target>;

    /// The partition of a slot, which is a block device.
    ///
    /// # Errors
    /// The device cannot be opened, or is not a partition.
    fn partition(&self, device: &Path) -> io::Result<Self::Target>;

    /// May take less than is given.
    ///
    /// # Errors
    /// No room, or the disk fails.
    fn write(&self, target: &mut Self::Target, bytes: &[u8]) -> io::Result<usize>;

    /// The content is on the disk.
    ///
    /// # Errors
    /// It may not be.
    fn sync(&self, target: &Self::Target) -> io::Result<()>;

    /// The SHA-256 of so many bytes from the beginning, as the disk gives them: after `sync`.
    ///
    /// # Errors
    /// They cannot be read.
    fn digest(&self, target: &mut Self::Target, bytes: u64) -> io::Result<String>;

    /// Renames, replacing a file.
    ///
    /// # Errors
    /// The partition cannot be written.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// It is not there, or the partition cannot be written.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// All of the EFI partition is on the disk as it is seen here.
    ///
    /// # Errors
    /// It may not be.
    fn settle(&self) -> io::Result<()>;

    /// Tries to make the EFI partition writable.
    ///
    /// # Errors
    /// That did not work.
    fn cure(&self, cure: Cure) -> io::Result<()>;

    /// Whether the firmware asks the boot loader for a certain entry at the next start, whatever the list says.
    fn has_one_start(&self) -> bool;

    /// Sets or (with an empty pattern) removes that.
    ///
    /// # Errors
    /// The firmware takes no variable.
    fn set_one_start(&self, pattern: &str) -> io::Result<()>;
}

/// The SHA-256 of the first bytes, in small hexadecimal digits; of what there is, if that is less.
pub(crate) fn digest_of(content: impl Read, bytes: u64) -> io::Result<String> {
    let (mut content, mut hash) = (content.take(bytes), Sha256::new());
    let mut chunk = vec![0; CHUNK];
    loop {
        match content.read(&mut chunk) {
            Ok(0) => break,
            Ok(taken) => hash.update(&chunk[..taken]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hash.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}
