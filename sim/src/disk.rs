//! A node's disk: the platform's protocol of durable writes over the platform's fake disk.
//!
//! Owns the translation of core's steps into operations on files, and the faults that those meet. Always
//! holds: a write that is reported done is durable as `kedge_platform::DurableFiles` defines it; a write can
//! be stopped within any of its operations. Leaves the effect of a power cut to the fake disk.

use kedge_core::config::records::{CHECKPOINT_BYTES, Read, StateFile};
use kedge_platform::fake::{self, FakeDisk, Loss, Losses, Operation};
use kedge_platform::files::{RESERVE_NAME, SET_ASIDE_KEPT};
use kedge_platform::{DurableFiles, Files, ReadError, WriteError};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
/// Most entries that a sweep reads: more than a test makes.
const SWEEP_ENTRIES: usize = 10_000;

/// The faults of the next writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteFault {
    /// They succeed.
    None,
    /// After this many successful writes one fails; the next ones succeed again.
    Once(usize),
    /// All fail, until this is changed.
    All,
    /// Checkpoints do not fit any more; the reserve makes room for the records.
    Checkpoints,
    /// The file system is mounted read-only, as after an I/O error.
    ReadOnly,
}

/// The operations of a write in which it can be stopped.
pub const WITHIN_A_WRITE: [Operation; 4] =
    [Operation::Write, Operation::Sync, Operation::Rename, Operation::SyncDirectory];

pub struct Disk {
    fake: FakeDisk,
    /// In this run of the agent, files were changed behind its back, or writes were stopped.
    touched: bool,
    /// The protocol of writes, with the current process's knowledge of the disk.
    files: Arc<DurableFiles<FakeDisk>>,
    pub fault: WriteFault,
    /// A sync makes files durable. `false` tests a disk, or a program, for which that is not so.
    pub syncs_files: bool,
    pub syncs_directories: bool,
    /// Files that a process has read are durable. `false` tests a program for which that is not so.
    pub settles_directories: bool,
    /// A sweep removes everything that it should. `false` tests an agent that does not.
    pub sweeps: bool,
    /// Names of the written records, in order, since the last call.
    written: Vec<&'static str>,
    /// Writes without a change, since the last call.
    pub needless: Vec<String>,
}

impl Default for Disk {
    fn default() -> Self {
        Self::new()
    }
}

impl Disk {
    pub fn new() -> Self {
        let fake = FakeDisk::new();
        Self {
            files: fake::files(&fake),
            fake,
            touched: false,
            fault: WriteFault::None,
            syncs_files: true,
            syncs_directories: true,
            settles_directories: true,
            sweeps: true,
            written: Vec::new(),
            needless: Vec::new(),
        }
    }

    /// Another healthy disk with the same files. The current process has to open it again.
    pub(crate) fn fork(&self) -> Self {
        let fake = self.fake.fork();
        Self { files: fake::files(&fake), fake, touched: self.touched, ..Self::new() }
    }

    // ------------------------------------------------------------------------------------------ the agent's
    // operations

    pub fn read(&self, path: &str) -> Read {
        self.fake.ignore_sync_directory(!self.settles_directories || !self.syncs_directories);
        match self.files.read(Path::new(path), CHECKPOINT_BYTES) {
            Ok(bytes) => Read::Content(bytes),
            Err(ReadError::NotFound { .. }) if self.was_set_aside(path) => Read::SetAside,
            Err(ReadError::NotFound { .. }) => Read::Absent,
            Err(ReadError::Io { .. }) => Read::Unreadable("input/output error".into()),
            Err(error) => Read::Unreadable(error.to_string()),
        }
    }

    fn was_set_aside(&self, path: &str) -> bool {
        let remains = (1..=SET_ASIDE_KEPT + 1).map(|number| format!("{path}.corrupt-{number}"));
        remains
            .into_iter()
            .any(|path| !matches!(self.files.read(Path::new(&path), 0), Err(ReadError::NotFound { .. })))
    }

    /// A whole durable write.
    pub fn write(&mut self, file: &StateFile, path: &str, bytes: &[u8]) -> Result<(), String> {
        let is_needless = self.fake.holds(path, bytes);
        self.meet_fault(file);
        let done = if file.can_be_had_again() {
            self.files.write_beside_reserve(Path::new(path), bytes)
        } else {
            self.files.write_durably(Path::new(path), bytes)
        };
        done.map_err(cause)?;
        self.written.push(name(file));
        if is_needless {
            self.needless.push(path.to_owned());
        }
        Ok(())
    }

    /// A whole durable write of a file that is not core's.
    pub(crate) fn write_other(&mut self, path: &str, bytes: &[u8]) -> Result<(), String> {
        self.meet_fault(&StateFile::SystemWanted);
        self.files.write_durably(Path::new(path), bytes).map_err(cause)
    }

    /// A durable write that is stopped within the first operation of this kind, because the process ends.
    pub fn write_until(&mut self, operation: Operation, file: &StateFile, path: &str, bytes: &[u8]) {
        self.touched = true;
        self.meet_fault(file);
        self.fake.cut_power_at(operation);
        // the process is gone, so nobody reads the error that its caller may return
        let _ = self.files.write_durably(Path::new(path), bytes);
        self.fake.end_program();
    }

    /// `stays`: the file also keeps its name.
    pub fn set_aside(&mut self, path: &str, stays: bool) -> Result<(), String> {
        match self.fault {
            WriteFault::All => self.fake.fail_after(0, ENOSPC),
            WriteFault::ReadOnly => self.fake.fail_after(0, EROFS),
            _ => {}
        }
        let path = Path::new(path);
        let done = if stays { self.files.keep_aside(path) } else { self.files.set_aside(path) };
        done.map(drop).map_err(cause)
    }

    /// Removes leftovers of writes, and files that `keep` does not keep.
    pub fn sweep(&mut self, keep: &dyn Fn(&Path) -> bool) {
        if self.sweeps {
            self.files.sweep(keep, SWEEP_ENTRIES);
        }
    }

    /// Prepares the fake disk for one write: its first operation fails if the write is to be refused.
    fn meet_fault(&mut self, file: &StateFile) {
        self.fake.ignore_sync(!self.syncs_files);
        self.fake.ignore_sync_directory(!self.syncs_directories);
        let is_checkpoint = matches!(file, StateFile::Checkpoint(_));
        match self.fault {
            WriteFault::All => self.fake.fail_after(0, ENOSPC),
            WriteFault::Checkpoints if is_checkpoint => self.fake.fail_after(0, ENOSPC),
            WriteFault::ReadOnly => self.fake.fail_after(0, EROFS),
            WriteFault::Once(0) => {
                self.fault = WriteFault::None;
                self.fake.fail_after(0, EIO);
            }
            WriteFault::Once(after) => self.fault = WriteFault::Once(after - 1),
            WriteFault::None | WriteFault::Checkpoints => {}
        }
    }

    // ------------------------------------------------------------------------------------------ power and
    // damage

    /// Another process begins: it knows nothing of the disk.
    pub fn new_process(&mut self) {
        self.touched = false;
        self.files = fake::files(&self.fake);
    }

    /// The power fails and comes back.
    pub fn lose_power(&mut self, loss: Loss) -> Losses {
        self.fake.reboot(loss)
    }

    /// Places a file behind the agent's back.
    pub fn put(&mut self, path: &str, bytes: &[u8]) {
        self.touched = true;
        self.fake.put(path, bytes);
    }

    /// Removes a file behind the agent's back.
    pub fn remove(&mut self, path: &str) {
        self.touched = true;
        self.fake.remove(path);
    }

    /// Removes behind the agent's back every file with an unwanted path.
    pub fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        self.touched = true;
        for path in self.paths().iter().filter(|path| !wanted(path)) {
            self.fake.remove(path);
        }
    }

    /// The content of this file can no longer be read.
    pub fn make_unreadable(&mut self, path: &str) {
        self.touched = true;
        self.fake.fail_reads_of(path);
    }

    pub fn mend_reads(&mut self) {
        self.fake.mend_reads();
    }

    // ------------------------------------------------------------------------------------------ looking

    pub(crate) fn is_touched(&self) -> bool {
        self.touched
    }

    pub fn content(&self, path: &str) -> Option<Vec<u8>> {
        self.fake.content(path)
    }

    /// Whether the file has this content; for `None`, whether the file is missing.
    pub fn is(&self, path: &str, content: Option<&[u8]>) -> bool {
        match content {
            Some(content) => self.fake.holds(path, content),
            None => self.fake.content(path).is_none(),
        }
    }

    /// Every file except the protocol's own ones, sorted.
    pub fn paths(&self) -> Vec<String> {
        let paths = self.fake.paths().into_iter().filter_map(|path| path.into_os_string().into_string().ok());
        paths
            .filter(|path| !path.contains(RESERVE_NAME) && !path.contains("/.") && !path.starts_with('.'))
            .collect()
    }

    /// Every file with its content.
    pub fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let contents = self.paths().into_iter().map(|path| {
            let content = self.content(&path).unwrap_or_default();
            (path, content)
        });
        contents.collect()
    }

    /// The records written since the last look, in order.
    pub fn take_written(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.written)
    }
}

/// The reason of a refusal, in the words that the rows expect, without paths.
fn cause(error: WriteError) -> String {
    match error {
        WriteError::NoSpace { .. } => "no space left on device".into(),
        WriteError::ReadOnly { .. } => "read-only file system".into(),
        WriteError::Io { .. } => "input/output error".into(),
        other => other.to_string(),
    }
}

/// The name of a record in RULES.md's tables.
pub fn name(file: &StateFile) -> &'static str {
    match file {
        StateFile::Current => "current",
        StateFile::LastKnownGood => "last-known-good",
        StateFile::BadConfigs => "bad-configs",
        StateFile::Startups => "startups",
        StateFile::Checkpoint(_) => "checkpoint",
        StateFile::SystemWanted => "system/wanted",
        StateFile::SystemBad => "system/bad",
    }
}
