//! A disk of durable files below `--dynamic-config-dir`.
//!
//! Always holds: a write is whole or not at all, and durable when it is reported (what lies between is the matter of the
//! platform's own tests). Can be told to refuse writes, or to report one as failed that was made.

use kedge_core::records::{Read, StateFile};
use std::collections::{BTreeMap, BTreeSet};

/// What the next writes meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteFault {
    /// They succeed.
    None,
    /// The one after this many others fails; the next ones succeed.
    Once(usize),
    /// All fail, until told otherwise.
    All,
}

/// Files by path.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    pub(crate) fault: WriteFault,
    /// Paths that cannot be read.
    pub(crate) unreadable: BTreeSet<String>,
    /// Names of the records written, in order, since somebody looked.
    written: Vec<&'static str>,
    /// Writes that changed nothing, since somebody looked.
    pub(crate) needless: Vec<String>,
}

impl Disk {
    pub(crate) fn new() -> Self {
        Self {
            files: BTreeMap::new(),
            fault: WriteFault::None,
            unreadable: BTreeSet::new(),
            written: Vec::new(),
            needless: Vec::new(),
        }
    }

    pub(crate) fn read(&self, path: &str) -> Read {
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

    pub(crate) fn write(&mut self, file: &StateFile, path: &str, bytes: &[u8]) -> Result<(), String> {
        match self.fault {
            WriteFault::All => return Err("no space left on device".into()),
            WriteFault::Once(0) => {
                self.fault = WriteFault::None;
                return Err("input/output error".into());
            }
            WriteFault::Once(after) => self.fault = WriteFault::Once(after - 1),
            WriteFault::None => {}
        }
        if self.files.get(path).is_some_and(|there| there == bytes) {
            self.needless.push(path.to_owned());
        }
        self.put(path, bytes);
        self.written.push(name(file));
        Ok(())
    }

    /// Places a file without anybody noticing.
    pub(crate) fn put(&mut self, path: &str, bytes: &[u8]) {
        self.unreadable.remove(path);
        self.files.insert(path.to_owned(), bytes.to_vec());
    }

    pub(crate) fn set_aside(&mut self, path: &str) -> Result<(), String> {
        if self.fault == WriteFault::All {
            return Err("no space left on device".into());
        }
        self.unreadable.remove(path);
        let Some(bytes) = self.files.remove(path) else { return Ok(()) };
        let free = (1..).map(|n| format!("{path}.corrupt-{n}")).find(|to| !self.files.contains_key(to));
        self.files.insert(free.expect("numbers do not end"), bytes);
        Ok(())
    }

    /// The records written since the last look, in order.
    pub(crate) fn take_written(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.written)
    }
}

/// The name of a record in the tables of the architecture.
pub(crate) fn name(file: &StateFile) -> &'static str {
    match file {
        StateFile::Current => "current",
        StateFile::LastKnownGood => "last-known-good",
        StateFile::BadConfigs => "bad-configs",
        StateFile::Startups => "startups",
        StateFile::Checkpoint(_) => "checkpoint",
    }
}
