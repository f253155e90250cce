//! A disk of durable files below `--dynamic-config-dir`: what a process sees of it, and what of that is not durable yet.
//!
//! A write is the platform's: a temporary file is made, filled and synced, renamed into place, and its directory synced; and
//! a process syncs each directory before it first reads there. Always holds: what is reported or read is durable; whoever
//! stops a write on the way leaves names and contents that a power cut may keep, lose or tear, each for itself. Can be told to
//! refuse writes, or to be a disk that syncs nothing.

use kedge_core::config::records::{Read, StateFile};
use std::collections::{BTreeMap, BTreeSet};

/// What the next writes meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteFault {
    /// They succeed.
    None,
    /// The one after this many others fails; the next ones succeed.
    Once(usize),
    /// All fail, until told otherwise.
    All,
    /// There is no room for a checkpoint; the reserve serves the records.
    Checkpoints,
    /// The file system is mounted read-only, as after an error of its own.
    ReadOnly,
}

/// How far a write came before it was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The temporary file has some of its content.
    Partly,
    /// It has all of it, and that is durable.
    Synced,
    /// It has its name; the directory is not synced.
    Renamed,
}

impl Stage {
    pub const ALL: [Self; 3] = [Self::Partly, Self::Synced, Self::Renamed];
}

/// A new name that is not durable yet.
#[derive(Debug, Clone)]
struct Unsynced {
    path: String,
    before: Option<Vec<u8>>,
}

/// What a power cut did to what was not durable.
#[derive(Debug, Clone, Default)]
pub struct Lost {
    /// New names that it took back.
    pub names: Vec<String>,
    /// New names that survived although nobody ever said so.
    pub kept: u32,
    /// Contents that it tore.
    pub torn: u32,
}

/// Files by path.
#[derive(Debug, Clone)]
pub struct Disk {
    pub files: BTreeMap<String, Vec<u8>>,
    pub fault: WriteFault,
    /// Paths that cannot be read.
    pub unreadable: BTreeSet<String>,
    /// Temporary files of writes that were stopped.
    pub leftovers: Vec<Vec<u8>>,
    /// A sync makes durable. A disk, or a program, for which that is not so can be tried.
    pub syncs_files: bool,
    pub syncs_directories: bool,
    /// What a process reads is durable. A program for which that is not so can be tried.
    pub settles_directories: bool,
    /// Names that are not durable, in the order they were made.
    unsynced: Vec<Unsynced>,
    /// Directories that the process has read in: what it found there is durable.
    settled: BTreeSet<String>,
    /// Paths whose content is not durable.
    dirty: BTreeSet<String>,
    /// Names of the records written, in order, since somebody looked.
    written: Vec<&'static str>,
    /// Writes that changed nothing, since somebody looked.
    pub needless: Vec<String>,
}

impl Default for Disk {
    fn default() -> Self {
        Self::new()
    }
}

impl Disk {
    pub fn new() -> Self {
        Self {
            files: BTreeMap::new(),
            fault: WriteFault::None,
            unreadable: BTreeSet::new(),
            leftovers: Vec::new(),
            syncs_files: true,
            syncs_directories: true,
            settles_directories: true,
            unsynced: Vec::new(),
            settled: BTreeSet::new(),
            dirty: BTreeSet::new(),
            written: Vec::new(),
            needless: Vec::new(),
        }
    }

    pub fn read(&self, path: &str) -> Read {
        if self.unreadable.contains(path) {
            return Read::Unreadable("input/output error".into());
        }
        match self.files.get(path) {
            Some(bytes) => Read::Content(bytes.clone()),
            None if self.files.keys().any(|other| other.starts_with(&format!("{path}.corrupt-"))) => {
                Read::SetAside
            }
            None => Read::Absent,
        }
    }

    /// A whole durable write.
    pub fn write(&mut self, file: &StateFile, path: &str, bytes: &[u8]) -> Result<(), String> {
        self.refusal(file)?;
        if self.files.get(path).is_some_and(|there| there == bytes) {
            self.needless.push(path.to_owned());
        }
        self.rename_into_place(path, bytes);
        self.sync_directory(directory_of(path));
        self.written.push(name(file));
        Ok(())
    }

    fn sync_directory(&mut self, directory: &str) {
        if self.syncs_directories {
            self.unsynced.retain(|name| directory_of(&name.path) != directory);
        }
    }

    /// A process is about to read this.
    pub fn settle(&mut self, path: &str) {
        let directory = directory_of(path);
        if self.settled.insert(directory.to_owned()) && self.settles_directories {
            self.sync_directory(directory);
        }
    }

    /// Another process begins.
    pub fn forget_settled(&mut self) {
        self.settled.clear();
    }

    fn refusal(&mut self, file: &StateFile) -> Result<(), String> {
        let full = Err("no space left on device".to_owned());
        match self.fault {
            WriteFault::All => return full,
            WriteFault::Checkpoints if matches!(file, StateFile::Checkpoint(_)) => return full,
            WriteFault::ReadOnly => return Err("read-only file system".into()),
            WriteFault::Once(0) => {
                self.fault = WriteFault::None;
                return Err("input/output error".into());
            }
            WriteFault::Once(after) => self.fault = WriteFault::Once(after - 1),
            WriteFault::None | WriteFault::Checkpoints => {}
        }
        Ok(())
    }

    /// A durable write that is stopped at a stage, by whatever ends the process.
    pub fn write_until(&mut self, stage: Stage, file: &StateFile, path: &str, bytes: &[u8]) {
        if self.refusal(file).is_err() {
            return;
        }
        match stage {
            Stage::Partly => self.leftovers.push(bytes[..bytes.len() / 2].to_vec()),
            Stage::Synced => self.leftovers.push(bytes.to_vec()),
            Stage::Renamed => self.rename_into_place(path, bytes),
        }
    }

    fn rename_into_place(&mut self, path: &str, bytes: &[u8]) {
        self.unsynced.push(Unsynced { path: path.to_owned(), before: self.files.get(path).cloned() });
        self.unreadable.remove(path);
        self.files.insert(path.to_owned(), bytes.to_vec());
        if !self.syncs_files {
            self.dirty.insert(path.to_owned());
        }
    }

    /// The power goes: of what is not durable some is lost, some torn, some kept. `below` draws a number below another.
    pub fn lose_power(&mut self, below: &mut dyn FnMut(u64) -> u64) -> Lost {
        let mut lost = Lost::default();
        // youngest first: an older name under a younger one comes back only with both lost
        for Unsynced { path, before } in std::mem::take(&mut self.unsynced).into_iter().rev() {
            if below(2) == 0 {
                lost.kept += 1;
                continue;
            }
            self.leftovers.extend(self.files.remove(&path));
            if let Some(before) = before {
                self.files.insert(path.clone(), before);
            }
            lost.names.push(path);
        }
        for path in std::mem::take(&mut self.dirty) {
            if let Some(content) = self.files.get_mut(&path).filter(|_| below(2) == 0) {
                tear(content, below);
                lost.torn += 1;
            }
        }
        for leftover in &mut self.leftovers {
            if below(2) == 0 {
                tear(leftover, below);
                lost.torn += 1;
            }
        }
        lost
    }

    /// Places a file without anybody noticing.
    pub fn put(&mut self, path: &str, bytes: &[u8]) {
        self.unsynced.retain(|name| name.path != path);
        self.unreadable.remove(path);
        self.files.insert(path.to_owned(), bytes.to_vec());
    }

    /// Removes a file without anybody noticing.
    pub fn remove(&mut self, path: &str) {
        self.unsynced.retain(|name| name.path != path);
        self.files.remove(path);
    }

    pub fn set_aside(&mut self, path: &str) -> Result<(), String> {
        match self.fault {
            WriteFault::All => return Err("no space left on device".into()),
            WriteFault::ReadOnly => return Err("read-only file system".into()),
            _ => {}
        }
        self.unsynced.retain(|name| name.path != path);
        self.unreadable.remove(path);
        let Some(bytes) = self.files.remove(path) else { return Ok(()) };
        let free = (1..).map(|n| format!("{path}.corrupt-{n}")).find(|to| !self.files.contains_key(to));
        self.files.insert(free.expect("numbers do not end"), bytes);
        Ok(())
    }

    /// The records written since the last look, in order.
    pub fn take_written(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.written)
    }
}

fn directory_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// Cuts it short, or puts zeros where its end was.
fn tear(content: &mut Vec<u8>, below: &mut dyn FnMut(u64) -> u64) {
    let length = usize::try_from(below(content.len() as u64 + 1)).expect("at most a length");
    if below(2) == 0 {
        content.truncate(length);
    } else {
        content[length..].fill(0);
    }
}

/// The name of a record in ARCHITECTURE.md's tables.
pub fn name(file: &StateFile) -> &'static str {
    match file {
        StateFile::Current => "current",
        StateFile::LastKnownGood => "last-known-good",
        StateFile::BadConfigs => "bad-configs",
        StateFile::Startups => "startups",
        StateFile::Checkpoint(_) => "checkpoint",
    }
}
