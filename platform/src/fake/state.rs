//! A board with a state partition in memory: the condition of its file system, and the effects of the tools
//! for it.
//!
//! Always holds: the content of the partition is a fake disk of its own, lost when a file system is
//! made; an act during a power cut was not begun, half done, or done and not reported, as [`Torn`] says.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;

use super::disk::{FakeDisk, Loss};
use crate::files::DurableFiles;
use crate::state::{Check, StateBoard};

/// The place of the first copy of the superblock after mkfs, with blocks of 1024 bytes.
const COPY: (u32, u32) = (8193, 1024);
const COPY_PLACE: u64 = 8192 * 1024;

/// The state of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Medium {
    /// The first superblock is there.
    pub has_superblock: bool,
    /// The copies of the superblock are intact.
    pub has_copies: bool,
    /// 0: none; 1: corrected at each start; 2: repairable; 3: beyond repair, and cannot be mounted.
    pub damage: u8,
    /// It can be mounted for reading in spite of its damage.
    pub reads_when_damaged: bool,
    /// The place that cannot be read, and how many reads of it fail.
    pub unreadable: Option<(u64, u32)>,
    /// The disk cannot be written.
    pub is_read_only: bool,
    /// Checks exceed their time limit.
    pub is_slow: bool,
    /// Size of the partition.
    pub bytes: u64,
    /// Free bytes of the disk behind the partition.
    pub bytes_behind: u64,
}

impl Medium {
    /// A file system without errors.
    pub const WHOLE: Self = Self {
        has_superblock: true,
        has_copies: true,
        damage: 0,
        reads_when_damaged: false,
        unreadable: None,
        is_read_only: false,
        is_slow: false,
        bytes: 318 << 20,
        bytes_behind: 0,
    };
    /// As flashed, on a larger disk.
    pub const NEW: Self =
        Self { has_superblock: false, has_copies: false, bytes_behind: 4 << 30, ..Self::WHOLE };
}

/// The effect of a power cut on the act in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Torn {
    /// It was not begun.
    Nothing,
    /// It was interrupted, with the worst possible result.
    Half,
    /// It was done, but not reported.
    Whole,
}

/// The file system that is mounted on `/var`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Var {
    /// None.
    Empty,
    /// The partition.
    Disk,
    /// The partition, read-only.
    DiskToRead,
    /// A file system in memory.
    Memory,
}

/// A board with a state partition. Clones are the same board.
#[derive(Debug, Clone)]
pub struct FakeState(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    medium: Medium,
    content: FakeDisk,
    memory: FakeDisk,
    var: Var,
    acts: u64,
    cut: Option<(u64, Torn)>,
    is_off: bool,
    trace: Vec<String>,
    uuids: u32,
    machine_id: Option<String>,
}

impl Inner {
    /// Decides how much effect a writing act has, and whether it is reported.
    fn begin(&mut self) -> (Torn, bool) {
        let number = self.acts;
        self.acts += 1;
        match self.cut {
            _ if self.is_off => (Torn::Nothing, false),
            Some((after, torn)) if number >= after => {
                self.is_off = true;
                self.content.cut_power();
                (torn, false)
            }
            _ => (Torn::Whole, true),
        }
    }

    fn is_unreadable(&self, at: u64) -> bool {
        self.is_off || self.medium.unreadable.is_some_and(|(place, times)| place == at && times > 0)
    }

    fn has_superblock(&self) -> bool {
        self.medium.has_superblock && !self.is_unreadable(0)
    }

    fn tell(&mut self, act: &str) {
        self.trace.push(act.to_owned());
    }

    /// The result of a check that can repair this much damage.
    fn check(&mut self, repairs: u8) -> Check {
        if self.medium.is_slow && !self.is_off {
            return None;
        }
        let failed = Some((8, "uncorrected".to_owned()));
        if !self.has_superblock() || self.medium.damage > repairs {
            return failed;
        }
        if self.medium.damage == 0 {
            return Some((0, String::new()));
        }
        if self.medium.is_read_only {
            return failed;
        }
        let (effect, is_reported) = self.begin();
        if effect == Torn::Whole {
            self.medium.damage = 0;
        }
        if is_reported { Some((1, "corrected".to_owned())) } else { failed }
    }

    fn take_copy(&mut self, copy: (u32, u32)) -> Check {
        if self.medium.is_slow && !self.is_off {
            return None;
        }
        let failed = Some((8, "no superblock".to_owned()));
        let is_there = copy == COPY && self.medium.has_copies && self.medium.damage < 3;
        if !is_there || self.is_unreadable(0) || self.is_unreadable(COPY_PLACE) || self.medium.is_read_only {
            return failed;
        }
        let (effect, is_reported) = self.begin();
        match effect {
            Torn::Nothing => {}
            Torn::Half => (self.medium.has_superblock, self.medium.damage) = (true, 2),
            Torn::Whole => (self.medium.has_superblock, self.medium.damage) = (true, 0),
        }
        if is_reported { Some((1, "repaired".to_owned())) } else { failed }
    }
}

fn io<T>(is_well: bool, value: T) -> io::Result<T> {
    if is_well { Ok(value) } else { Err(Errno::EIO.into()) }
}

impl FakeState {
    /// A board with this partition.
    pub fn new(medium: Medium) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            medium,
            content: FakeDisk::new(),
            memory: FakeDisk::new(),
            var: Var::Empty,
            acts: 0,
            cut: None,
            is_off: false,
            trace: Vec::new(),
            uuids: 0,
            machine_id: None,
        })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The files on the partition below `/var/etc`.
    pub fn content(&self) -> FakeDisk {
        self.inner().content.clone()
    }

    /// Cuts the power during the writing act after this many more.
    pub fn cut_power_after(&self, acts: u64, torn: Torn) {
        let mut inner = self.inner();
        inner.cut = Some((inner.acts + acts, torn));
    }

    /// True if the power is off: everything fails until `reboot`.
    pub fn is_off(&self) -> bool {
        self.inner().is_off
    }

    /// Boots again: nothing is mounted. The partition stays as it is; the caller decides beforehand what its
    /// files lose.
    pub fn reboot(&self) {
        let mut inner = self.inner();
        (inner.is_off, inner.cut, inner.var, inner.machine_id) = (false, None, Var::Empty, None);
        inner.memory = FakeDisk::new();
        inner.content.set_read_only(false);
        inner.content.reboot(Loss::Nothing);
        inner.trace.clear();
    }

    /// The file system on `/var`.
    pub fn var(&self) -> Var {
        self.inner().var
    }

    /// The machine id that the system sees.
    pub fn machine_id(&self) -> Option<String> {
        self.inner().machine_id.clone()
    }

    /// The calls since the boot in short form, without messages.
    pub fn trace(&self) -> String {
        self.inner().trace.join(" ")
    }
}

impl StateBoard for FakeState {
    type Disk = FakeDisk;

    fn device(&self) -> Option<PathBuf> {
        Some("/dev/vda4".into())
    }

    fn say(&self, _: &str) {}

    fn pause(&self, _: Duration) {
        self.inner().tell("pause");
    }

    fn has_file_system(&self) -> bool {
        let mut inner = self.inner();
        inner.tell("look");
        inner.has_superblock()
    }

    fn correct(&self) -> Check {
        let mut inner = self.inner();
        inner.tell("correct");
        inner.check(1)
    }

    fn repair(&self, copy: Option<(u32, u32)>) -> Check {
        let mut inner = self.inner();
        let Some(copy) = copy else {
            inner.tell("repair");
            return inner.check(2);
        };
        inner.tell("copy");
        inner.take_copy(copy)
    }

    fn mount(&self, is_writable: bool) -> io::Result<()> {
        let mut inner = self.inner();
        inner.tell(if is_writable { "mount" } else { "mount-to-read" });
        let Medium { damage, reads_when_damaged, is_read_only, .. } = inner.medium;
        let can = match is_writable {
            true => damage < 3 && !is_read_only,
            false => damage < 3 || reads_when_damaged,
        };
        let can = can && inner.has_superblock();
        if can {
            inner.var = if is_writable { Var::Disk } else { Var::DiskToRead };
            inner.content.set_read_only(!is_writable);
        }
        io(can, ())
    }

    fn bytes(&self) -> io::Result<u64> {
        let inner = self.inner();
        io(!inner.is_off, inner.medium.bytes)
    }

    fn bytes_behind(&self) -> io::Result<u64> {
        let inner = self.inner();
        io(!inner.is_off, inner.medium.bytes_behind)
    }

    fn read(&self, at: u64, bytes: u64) -> io::Result<()> {
        let mut inner = self.inner();
        inner.tell("read");
        let is_well = !inner.is_unreadable(at) && at + bytes <= inner.medium.bytes;
        if let Some((place, times @ 1..)) = &mut inner.medium.unreadable
            && *place == at
        {
            *times -= 1;
        }
        io(is_well, ())
    }

    fn grow(&self) -> io::Result<()> {
        let mut inner = self.inner();
        inner.tell("grow");
        let (effect, is_reported) = inner.begin();
        // until the first copy of the partition table is complete, the other one is used
        if effect == Torn::Whole {
            inner.medium.bytes += inner.medium.bytes_behind;
            inner.medium.bytes_behind = 0;
        }
        io(is_reported, ())
    }

    fn make(&self) -> io::Result<()> {
        let mut inner = self.inner();
        inner.tell("make");
        if inner.medium.is_read_only {
            return io(false, ());
        }
        let (effect, is_reported) = inner.begin();
        let (has_superblock, has_copies, damage) = match effect {
            Torn::Nothing => return io(false, ()),
            // a superblock without the tables that it refers to
            Torn::Half => (true, false, 3),
            Torn::Whole => (true, true, 0),
        };
        inner.medium = Medium { has_superblock, has_copies, damage, ..inner.medium };
        inner.content = FakeDisk::new();
        io(is_reported, ())
    }

    fn use_memory(&self) -> io::Result<()> {
        let mut inner = self.inner();
        inner.tell("memory");
        inner.var = Var::Memory;
        Ok(())
    }

    fn make_directories(&self) -> io::Result<()> {
        io(self.inner().var != Var::Empty, ())
    }

    fn show_own_files(&self) -> io::Result<()> {
        Ok(())
    }

    fn own(&self) -> Arc<DurableFiles<FakeDisk>> {
        let inner = self.inner();
        super::files(match inner.var {
            Var::Disk | Var::DiskToRead => &inner.content,
            Var::Empty | Var::Memory => &inner.memory,
        })
    }

    fn uuid(&self) -> io::Result<String> {
        let mut inner = self.inner();
        inner.uuids += 1;
        Ok(format!("00112233-4455-6677-8899-{:012x}", inner.uuids))
    }

    fn show_machine_id(&self) -> io::Result<()> {
        let content = self.own().disk().content("machine-id").ok_or(Errno::ENOENT)?;
        self.inner().machine_id = String::from_utf8(content).ok();
        Ok(())
    }
}
