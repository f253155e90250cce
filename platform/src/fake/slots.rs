//! A board with slots in memory: EFI partition and roots on one fake disk, so that a power cut takes both.
//!
//! Always holds: the EFI partition is the root directory of the disk, as a FAT, and a slot's partition
//! is the file with the path of its device. Opening a partition destroys its content, because on a real disk
//! the first write may already do so.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;

use super::disk::FakeDisk;
use crate::files::{Kind, Operations, ReadOutcome};
use crate::slots::{Cure, LIST, Slots, digest_of};

/// Largest file; more than tests write.
const LIMIT: usize = 1 << 20;

/// A board with slots. Clones are the same board.
#[derive(Debug, Clone)]
pub struct FakeSlots {
    /// The board's disk.
    pub disk: FakeDisk,
    firmware: Arc<Mutex<Firmware>>,
}

#[derive(Debug, Default)]
struct Firmware {
    one_start: Option<String>,
    is_full: bool,
    sets: usize,
    cured_by: Option<Cure>,
}

/// An open file or partition.
#[derive(Debug)]
pub struct FakeTarget(u64);

impl FakeSlots {
    /// A board with this disk, and a working firmware.
    pub fn new(disk: &FakeDisk) -> Self {
        disk.make_fat();
        Self { disk: disk.clone(), firmware: Arc::default() }
    }

    fn firmware(&self) -> MutexGuard<'_, Firmware> {
        self.firmware.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the EFI partition read-only until this cure (`None`: for ever).
    pub fn make_read_only(&self, cured_by: Option<Cure>) {
        self.disk.set_read_only(true);
        self.firmware().cured_by = cured_by;
    }

    /// The firmware accepts no more variables.
    pub fn fill_firmware(&self) {
        self.firmware().is_full = true;
    }

    /// The entry that the firmware will make the boot loader start once, and the number of times that it was
    /// written.
    pub fn one_start(&self) -> (Option<String>, usize) {
        let firmware = self.firmware();
        (firmware.one_start.clone(), firmware.sets)
    }

    /// The path on the disk that represents a partition.
    pub fn device(device: &Path) -> PathBuf {
        device.strip_prefix("/").unwrap_or(device).to_owned()
    }

    fn make_directories(&self, path: &Path) -> io::Result<()> {
        let mut above: Vec<_> = path.ancestors().skip(1).filter(|path| *path != Path::new("")).collect();
        above.reverse();
        for directory in above {
            match self.disk.kind(directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.disk.make_directory(directory)?;
                }
                other => drop(other?),
            }
        }
        Ok(())
    }
}

impl Slots for FakeSlots {
    type Target = FakeTarget;

    fn entries(&self) -> io::Result<BTreeMap<String, String>> {
        let listing = self.disk.list(Path::new(LIST), LIMIT)?;
        let files = listing.entries.into_iter().filter(|entry| entry.kind == Kind::File);
        let read = |name: String| {
            let text = match self.disk.read(&Path::new(LIST).join(&name), LIMIT) {
                Ok(ReadOutcome::Content(content)) => String::from_utf8(content).unwrap_or_default(),
                _ => String::new(),
            };
            (name, text)
        };
        Ok(files.filter_map(|entry| entry.name.into_string().ok()).map(read).collect())
    }

    fn create(&self, path: &Path) -> io::Result<FakeTarget> {
        self.make_directories(path)?;
        match self.disk.unlink(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.disk.create(path).map(FakeTarget)
    }

    fn partition(&self, device: &Path) -> io::Result<FakeTarget> {
        let path = Self::device(device);
        if self.disk.kind(&path)? != Kind::File {
            return Err(Errno::ENOTBLK.into());
        }
        self.disk.put(&path, b"");
        self.disk.open(&path).map(FakeTarget)
    }

    fn write(&self, target: &mut FakeTarget, bytes: &[u8]) -> io::Result<usize> {
        self.disk.write(&mut target.0, bytes)
    }

    fn sync(&self, target: &FakeTarget) -> io::Result<()> {
        self.disk.sync(&target.0)
    }

    fn digest(&self, target: &mut FakeTarget, bytes: u64) -> io::Result<String> {
        let content = self.disk.read_back(&mut target.0, LIMIT)?;
        digest_of(&content[..], bytes)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.unlink(path)
    }

    fn settle(&self) -> io::Result<()> {
        self.disk.sync_all()
    }

    fn cure(&self, cure: Cure) -> io::Result<()> {
        if self.disk.is_off() || self.firmware().cured_by != Some(cure) {
            return Err(Errno::EIO.into());
        }
        self.disk.set_read_only(false);
        Ok(())
    }

    fn has_one_start(&self) -> bool {
        self.firmware().one_start.is_some()
    }

    fn set_one_start(&self, pattern: &str) -> io::Result<()> {
        let mut firmware = self.firmware();
        if firmware.is_full || self.disk.is_off() {
            return Err(Errno::ENOSPC.into());
        }
        firmware.sets += 1;
        firmware.one_start = Some(pattern.to_owned()).filter(|pattern| !pattern.is_empty());
        Ok(())
    }
}
