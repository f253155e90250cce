//! The operations of updates of disk images on a board: files of its EFI partition, the partition of a slot,
//! and the firmware's one-time boot entry.
//!
//! Always holds: each call is one step between power cuts; the results of a successful `sync` or `settle`
//! survive one. A digest is computed from the disk, not from memory. `linux::slots` is the real board,
//! `fake::FakeSlots` behaves the same on the fake disk.
//!
//! Leaves to others: the content, the order of steps, and whether they are allowed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

/// The path of the boot loader's list on the EFI partition.
pub const LIST: &str = "loader/entries";
/// Bytes that are hashed at a time.
const CHUNK: usize = 64 * 1024;

/// The ways to make an EFI partition writable again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cure {
    /// Linux has made it read-only after an error, so mount it writable again.
    Remount,
    /// Unmount, check, and mount.
    Repair,
}

/// A board with slots. Paths are below the EFI partition.
pub trait Slots {
    /// A file or a partition that is being written, from its beginning.
    type Target;

    /// The boot loader's list: our entries' texts by file name. An unreadable text is empty.
    ///
    /// # Errors
    /// The list does not exist, or cannot be read.
    fn entries(&self) -> io::Result<BTreeMap<String, String>>;

    /// Creates an empty file, replacing one of that name; its folders are made.
    ///
    /// # Errors
    /// The partition cannot be written.
    fn create(&self, path: &Path) -> io::Result<Self::Target>;

    /// The partition of a slot, which is a block device.
    ///
    /// # Errors
    /// The device cannot be opened, or is not a partition.
    fn partition(&self, device: &Path) -> io::Result<Self::Target>;

    /// Writes some of the bytes; returns how many.
    ///
    /// # Errors
    /// No room, or the disk fails.
    fn write(&self, target: &mut Self::Target, bytes: &[u8]) -> io::Result<usize>;

    /// Makes the content durable.
    ///
    /// # Errors
    /// It may not be durable.
    fn sync(&self, target: &Self::Target) -> io::Result<()>;

    /// The SHA-256 of this many bytes from the beginning, as read from the disk: call it after `sync`.
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
    /// It does not exist, or the partition cannot be written.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the whole EFI partition durable as it is seen here.
    ///
    /// # Errors
    /// It may not be durable.
    fn settle(&self) -> io::Result<()>;

    /// Tries to make the EFI partition writable.
    ///
    /// # Errors
    /// That did not work.
    fn cure(&self, cure: Cure) -> io::Result<()>;

    /// True if the firmware makes the boot loader start a certain entry next time, whatever the list
    /// contains.
    fn has_one_start(&self) -> bool;

    /// Sets or (with an empty pattern) removes that entry.
    ///
    /// # Errors
    /// The firmware accepts no variable.
    fn set_one_start(&self, pattern: &str) -> io::Result<()>;
}

/// The SHA-256 of the first bytes, in lower case hexadecimal digits; of all bytes if there are fewer.
///
/// # Errors
/// The content cannot be read.
pub fn digest_of(content: impl Read, bytes: u64) -> io::Result<String> {
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
