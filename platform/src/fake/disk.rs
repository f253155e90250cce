//! A disk with two states: the one that programs see (live), and the one after a power cut (durable).
//!
//! Always holds: only `sync` makes content durable, and only `sync_directory` of their directory makes
//! names durable. At a cut, changes that were not durable are kept, lost, or (content) torn at sector
//! borders, and names change in any order or not at all, as [`Loss`] says; a rename is whole, lost, or
//! visible under both names. That is deliberately weaker than any real file system.
//!
//! Space: a file takes whole blocks, and gives them back only when its last name, live and durable, is gone.
//!
//! Leaves to others: the order of operations, which tests examine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;

use super::random::Random;
use crate::files::{Entry, Kind, Listing, Operations, ReadOutcome};

/// The medium's sector: the grain at which unsynced content tears.
pub const SECTOR_BYTES: usize = 512;
/// The grain at which a file takes space.
const BLOCK_BYTES: usize = 4096;
/// Operations remembered in the trace.
const TRACE_LIMIT: usize = 10_000;
/// The root directory's number.
const ROOT: u64 = 0;

/// The effect of a power cut on changes that were not yet durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// They are lost.
    Everything,
    /// They were written just in time.
    Nothing,
    /// Names arrived, content did not: files are empty. The classic of renames without fsync.
    Content,
    /// Names and sizes arrived, content did not: files are full of zeros.
    ContentZeroed,
    /// Content arrived, names did not.
    Names,
    /// Chance decides for each sector and each name.
    Chance(u64),
}

impl Loss {
    /// Every kind of loss, and `seeds` different ones by chance.
    pub fn all(seeds: u64) -> impl Iterator<Item = Loss> {
        let fixed = [Loss::Everything, Loss::Nothing, Loss::Content, Loss::ContentZeroed, Loss::Names];
        fixed.into_iter().chain((0..seeds).map(Loss::Chance))
    }
}

/// The effect of one power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Renames that were lost.
    pub renames_lost: u32,
    /// Renames that survived although no sync was requested, or none had finished.
    pub renames_kept: u32,
    /// Files whose content is not what programs last saw.
    pub files_torn: u32,
}

/// The types of operation that change a disk, or try to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// A new file.
    Create,
    /// Content is appended.
    Write,
    /// Content is made durable.
    Sync,
    /// A name is moved.
    Rename,
    /// A file gets a second name.
    Link,
    /// Names are made durable.
    SyncDirectory,
    /// Everything is made durable.
    SyncAll,
    /// A name is removed.
    Unlink,
    /// A directory is made.
    MakeDirectory,
    /// A directory is removed.
    RemoveDirectory,
}

/// A disk in memory. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct FakeDisk {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    nodes: BTreeMap<u64, Node>,
    next_node: u64,
    // Changes of names that are not durable, oldest first.
    changes: Vec<NameChange>,
    performed: u64,
    trace: VecDeque<(Operation, PathBuf)>,
    off: bool,
    cut_after: Option<u64>,
    cut_at: Option<Operation>,
    // Files whose content cannot be read from the medium any more.
    unreadable: BTreeSet<u64>,
    is_fat: bool,
    // Files of a FAT with new names that are not durable: under these they are empty or whole.
    moved: BTreeSet<u64>,
    faults: Faults,
}

#[derive(Debug, Default)]
struct Faults {
    // The operation with this number fails, once.
    at: Option<(u64, Errno)>,
    // Operations of this type always fail.
    of: BTreeMap<Operation, Errno>,
    read: Option<Errno>,
    space_bytes: Option<usize>,
    read_only: bool,
    ignore_sync: bool,
    ignore_sync_directory: bool,
    interrupt: bool,
    interrupted: bool,
    write_at_most: Option<usize>,
    flip_next: bool,
}

#[derive(Clone, Debug)]
enum Node {
    File { live: Vec<u8>, durable: Vec<u8> },
    Directory { live: BTreeMap<OsString, u64>, durable: BTreeMap<OsString, u64> },
    Other(Kind),
}

#[derive(Clone, Debug)]
enum NameChange {
    Add { directory: u64, name: OsString, node: u64 },
    Remove { directory: u64, name: OsString },
    Move { from: (u64, OsString), to: (u64, OsString), node: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Survival {
    Lost,
    Kept,
    // A rename that is visible under both names.
    Half,
}

impl Default for FakeDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeDisk {
    /// An empty disk, power on, healthy.
    pub fn new() -> Self {
        let root = Node::Directory { live: BTreeMap::new(), durable: BTreeMap::new() };
        let inner = Inner {
            nodes: BTreeMap::from([(ROOT, root)]),
            next_node: ROOT + 1,
            changes: Vec::new(),
            performed: 0,
            trace: VecDeque::new(),
            off: false,
            cut_after: None,
            cut_at: None,
            unreadable: BTreeSet::new(),
            is_fat: false,
            moved: BTreeSet::new(),
            faults: Faults::default(),
        };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Another disk with the same content, healthy and powered; pending changes are not durable there either.
    pub fn fork(&self) -> Self {
        let inner = self.inner();
        let copy = Self::new();
        {
            let mut other = copy.inner();
            other.nodes = inner.nodes.clone();
            other.next_node = inner.next_node;
            other.changes = inner.changes.clone();
            other.unreadable = inner.unreadable.clone();
            other.is_fat = inner.is_fat;
            other.moved = inner.moved.clone();
        }
        copy
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the disk renames files as FAT does, whose directories contain the start and length of each
    /// file: a rename makes a new entry and removes the old one, in any order, and the new file is empty or
    /// whole until everything is synced.
    pub fn make_fat(&self) {
        self.inner().is_fat = true;
    }

    // --- power

    /// Cuts the power during the operation after `operations` more.
    pub fn cut_power_after(&self, operations: u64) {
        let mut inner = self.inner();
        inner.cut_after = Some(inner.performed + operations);
    }

    /// Cuts the power during the next operation of this type.
    pub fn cut_power_at(&self, operation: Operation) {
        self.inner().cut_at = Some(operation);
    }

    /// Cuts the power now.
    pub fn cut_power(&self) {
        self.inner().off = true;
    }

    /// Ends only the program, at the cut or before it; the machine keeps its power, and nothing is lost.
    pub fn end_program(&self) {
        let mut inner = self.inner();
        inner.off = false;
        inner.cut_after = None;
        inner.cut_at = None;
    }

    /// True if the power is off: everything fails until `reboot`.
    pub fn is_off(&self) -> bool {
        self.inner().off
    }

    /// Restarts the machine with the surviving state; returns what was lost. Also ends a run without a cut,
    /// as a cut at rest. Faults stay.
    pub fn reboot(&self, loss: Loss) -> Losses {
        let mut inner = self.inner();
        inner.off = false;
        inner.cut_after = None;
        inner.cut_at = None;
        inner.settle(loss)
    }

    /// Makes all content and all names durable, as a sync of a whole file system and a flush of its disk do.
    ///
    /// # Errors
    /// A fault, or a power cut: then nothing was made durable.
    pub fn sync_all(&self) -> io::Result<()> {
        let mut inner = self.inner();
        let (content, names) = (!inner.faults.ignore_sync, !inner.faults.ignore_sync_directory);
        let read_only = std::mem::take(&mut inner.faults.read_only);
        // as for a directory
        let begun = inner.begin(Operation::SyncAll, Path::new(""));
        inner.faults.read_only = read_only;
        if !begun? {
            return errno(Errno::EIO);
        }
        for node in inner.nodes.values_mut().filter(|_| content) {
            if let Node::File { live, durable } = node {
                durable.clone_from(live);
            }
        }
        if names {
            let changes = std::mem::take(&mut inner.changes);
            changes.into_iter().for_each(|change| inner.apply(change, Survival::Kept));
        }
        Ok(())
    }

    // --- faults

    /// Lets the operation after `operations` more fail with `errno`, once; it has no effect.
    pub fn fail_after(&self, operations: u64, errno: i32) {
        let mut inner = self.inner();
        inner.faults.at = Some((inner.performed + operations, Errno::from_raw(errno)));
    }

    /// Lets every operation of this type fail with `errno`; it has no effect.
    pub fn fail_every(&self, operation: Operation, errno: i32) {
        self.inner().faults.of.insert(operation, Errno::from_raw(errno));
    }

    /// Lets every read of a file's content fail with `errno`.
    pub fn fail_reads(&self, errno: i32) {
        self.inner().faults.read = Some(Errno::from_raw(errno));
    }

    /// Makes the content of this file unreadable, until another file takes its name or
    /// [`FakeDisk::mend_reads`].
    pub fn fail_reads_of(&self, path: impl AsRef<Path>) {
        let mut inner = self.inner();
        if let Ok(number) = inner.find(path.as_ref()) {
            inner.unreadable.insert(number);
        }
    }

    /// Makes every file readable again.
    pub fn mend_reads(&self) {
        let mut inner = self.inner();
        inner.unreadable.clear();
        inner.faults.read = None;
    }

    /// Limits the space of the disk to this many bytes.
    pub fn set_space_bytes(&self, bytes: Option<usize>) {
        self.inner().faults.space_bytes = bytes;
    }

    /// Bytes taken, in whole blocks.
    pub fn used_bytes(&self) -> usize {
        self.inner().used_bytes()
    }

    /// Remounts read-only, or back.
    pub fn set_read_only(&self, read_only: bool) {
        self.inner().faults.read_only = read_only;
    }

    /// Lets `sync` return Ok without any effect, like a drive that lies, or a protocol without it.
    pub fn ignore_sync(&self, ignore: bool) {
        self.inner().faults.ignore_sync = ignore;
    }

    /// Lets `sync_directory` return Ok without any effect.
    pub fn ignore_sync_directory(&self, ignore: bool) {
        self.inner().faults.ignore_sync_directory = ignore;
    }

    /// Lets a signal interrupt every operation once before it works, and limits each write to `write_at_most`
    /// bytes.
    pub fn interrupt(&self, interrupt: bool, write_at_most: Option<usize>) {
        let mut inner = self.inner();
        inner.faults.interrupt = interrupt;
        inner.faults.write_at_most = write_at_most;
    }

    /// Flips one bit in the next content that is written.
    pub fn flip_a_bit_next(&self) {
        self.inner().faults.flip_next = true;
    }

    /// All faults end; the power stays as it is.
    pub fn heal(&self) {
        self.inner().faults = Faults::default();
    }

    // --- inspection and set-up, outside the protocol

    /// The number of changing operations so far; a settled program must not increase it.
    pub fn operations(&self) -> u64 {
        self.inner().performed
    }

    /// The operations tried since the last call (the last 10,000), one line each.
    pub fn take_trace(&self) -> Vec<String> {
        let trace = std::mem::take(&mut self.inner().trace);
        trace.iter().map(|(operation, what)| format!("{operation:?} {}", what.display())).collect()
    }

    /// The content of a file as programs see it.
    pub fn content(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let inner = self.inner();
        match inner.nodes.get(&inner.find(path.as_ref()).ok()?)? {
            Node::File { live, .. } => Some(live.clone()),
            _ => None,
        }
    }

    /// True if programs see a file with exactly this content.
    pub fn holds(&self, path: impl AsRef<Path>, content: &[u8]) -> bool {
        let inner = self.inner();
        let node = inner.find(path.as_ref()).ok().and_then(|number| inner.nodes.get(&number));
        matches!(node, Some(Node::File { live, .. }) if live == content)
    }

    /// Every path except directories, sorted.
    pub fn paths(&self) -> Vec<PathBuf> {
        let inner = self.inner();
        let mut found = Vec::new();
        inner.gather(ROOT, Path::new(""), &mut found);
        found.sort();
        found
    }

    /// Puts a file there, durably, replacing whatever has that path; parents are created.
    pub fn put(&self, path: impl AsRef<Path>, content: &[u8]) {
        let node = Node::File { live: content.to_vec(), durable: content.to_vec() };
        self.inner().place(path.as_ref(), node);
    }

    /// Opens an existing file for appending.
    ///
    /// # Errors
    /// It does not exist.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<u64> {
        self.inner().find(path.as_ref())
    }

    /// Removes a name, durably, if it exists.
    pub fn remove(&self, path: impl AsRef<Path>) {
        let mut inner = self.inner();
        let Ok((directory, name)) = inner.locate(path.as_ref()) else { return };
        inner.forget_changes(directory, name);
        inner.names(directory).remove(name);
        if let Some(names) = inner.durable_names(directory) {
            names.remove(name);
        }
    }

    /// Puts something other than a file there, durably.
    pub fn put_kind(&self, path: impl AsRef<Path>, kind: Kind) {
        let node = match kind {
            Kind::File => Node::File { live: Vec::new(), durable: Vec::new() },
            Kind::Directory => Node::Directory { live: BTreeMap::new(), durable: BTreeMap::new() },
            other => Node::Other(other),
        };
        self.inner().place(path.as_ref(), node);
    }

    /// Changes a file's bytes without an operation; `false` if the file does not exist.
    pub fn damage(&self, path: impl AsRef<Path>, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut inner = self.inner();
        let Ok(number) = inner.find(path.as_ref()) else { return false };
        match inner.nodes.get_mut(&number) {
            Some(Node::File { live, durable }) => {
                change(live);
                durable.clone_from(live);
                true
            }
            _ => false,
        }
    }
}

fn errno<T>(error: Errno) -> io::Result<T> {
    Err(io::Error::from(error))
}

impl Inner {
    /// Counts an operation and applies faults and power cuts. `Ok(true)`: perform it; `Ok(false)`: begin it,
    /// then fail, because the power is cut in the middle.
    fn begin(&mut self, operation: Operation, what: &Path) -> io::Result<bool> {
        if self.off {
            return errno(Errno::EIO);
        }
        if self.faults.interrupt {
            self.faults.interrupted = !self.faults.interrupted;
            if self.faults.interrupted {
                return errno(Errno::EINTR);
            }
        }
        if self.trace.len() >= TRACE_LIMIT {
            self.trace.pop_front();
        }
        self.trace.push_back((operation, what.to_path_buf()));
        let number = self.performed;
        self.performed += 1;
        if self.cut_after.is_some_and(|after| number >= after) || self.cut_at == Some(operation) {
            self.off = true;
            return Ok(false);
        }
        if let Some((_, error)) = self.faults.at.take_if(|(at, _)| *at == number) {
            return errno(error);
        }
        if let Some(error) = self.faults.of.get(&operation) {
            return errno(*error);
        }
        if self.faults.read_only {
            return errno(Errno::EROFS);
        }
        Ok(true)
    }

    fn find(&self, path: &Path) -> io::Result<u64> {
        let mut number = ROOT;
        for component in path.components() {
            let Component::Normal(name) = component else { return errno(Errno::EINVAL) };
            let Some(Node::Directory { live, .. }) = self.nodes.get(&number) else {
                return errno(Errno::ENOTDIR);
            };
            match live.get(name) {
                Some(next) => number = *next,
                None => return errno(Errno::ENOENT),
            }
        }
        Ok(number)
    }

    /// The directory that holds `path`, and its name there.
    fn locate<'a>(&self, path: &'a Path) -> io::Result<(u64, &'a OsStr)> {
        let Some(name) = path.file_name() else { return errno(Errno::EINVAL) };
        let directory = self.find(path.parent().unwrap_or(Path::new("")))?;
        match self.nodes.get(&directory) {
            Some(Node::Directory { .. }) => Ok((directory, name)),
            _ => errno(Errno::ENOTDIR),
        }
    }

    fn names(&mut self, directory: u64) -> &mut BTreeMap<OsString, u64> {
        match self.nodes.get_mut(&directory) {
            Some(Node::Directory { live, .. }) => live,
            _ => unreachable!("located directories are directories"),
        }
    }

    fn durable_names(&mut self, directory: u64) -> Option<&mut BTreeMap<OsString, u64>> {
        match self.nodes.get_mut(&directory) {
            Some(Node::Directory { durable, .. }) => Some(durable),
            _ => None,
        }
    }

    fn add(&mut self, directory: u64, name: &OsStr, node: Node) -> u64 {
        let number = self.next_node;
        self.next_node += 1;
        self.nodes.insert(number, node);
        self.names(directory).insert(name.to_os_string(), number);
        self.changes.push(NameChange::Add { directory, name: name.to_os_string(), node: number });
        number
    }

    /// Makes one change of names durable.
    fn apply(&mut self, change: NameChange, survival: Survival) {
        match change {
            NameChange::Add { directory, name, node } => {
                if let Some(names) = self.durable_names(directory) {
                    names.insert(name, node);
                }
            }
            NameChange::Remove { directory, name } => {
                if let Some(names) = self.durable_names(directory) {
                    names.remove(&name);
                }
            }
            NameChange::Move { from, to, node } => {
                if let Some(names) = self.durable_names(to.0) {
                    names.insert(to.1, node);
                }
                if survival == Survival::Kept
                    && let Some(names) = self.durable_names(from.0)
                {
                    names.remove(&from.1);
                }
            }
        }
    }

    fn sync_names(&mut self, directory: u64) {
        let touches = |change: &NameChange| match change {
            NameChange::Add { directory: at, .. } | NameChange::Remove { directory: at, .. } => {
                *at == directory
            }
            NameChange::Move { from, to, .. } => from.0 == directory || to.0 == directory,
        };
        let (durable, pending) = std::mem::take(&mut self.changes).into_iter().partition(touches);
        self.changes = pending;
        let durable: Vec<NameChange> = durable;
        durable.into_iter().for_each(|change| self.apply(change, Survival::Kept));
    }

    /// A power cut: decides what survives, and makes live and durable the same.
    fn settle(&mut self, loss: Loss) -> Losses {
        let mut losses = Losses::default();
        let mut random = Random::new(if let Loss::Chance(seed) = loss { seed } else { 0 });
        for change in std::mem::take(&mut self.changes) {
            let survival = match loss {
                Loss::Everything | Loss::Names => Survival::Lost,
                Loss::Nothing | Loss::Content | Loss::ContentZeroed => Survival::Kept,
                Loss::Chance(_) => match random.below(8) {
                    0..=2 => Survival::Lost,
                    3 => Survival::Half,
                    _ => Survival::Kept,
                },
            };
            if matches!(change, NameChange::Move { .. }) {
                losses.renames_lost += u32::from(survival == Survival::Lost);
                losses.renames_kept += u32::from(survival != Survival::Lost);
            }
            if survival != Survival::Lost {
                self.apply(change, survival);
            }
        }
        // FAT: a file that was synced before its rename is empty or whole afterwards, never torn
        let moved = std::mem::take(&mut self.moved);
        for (number, node) in &mut self.nodes {
            match node {
                Node::File { live, durable } => {
                    if live != durable {
                        let loss = match loss {
                            Loss::Chance(_) if moved.contains(number) && random.below(2) == 0 => {
                                Loss::Content
                            }
                            Loss::Chance(_) if moved.contains(number) => Loss::Nothing,
                            Loss::ContentZeroed if moved.contains(number) => Loss::Content,
                            other => other,
                        };
                        let survived = survived(live, durable, loss, &mut random);
                        losses.files_torn += u32::from(survived != *live);
                        live.clone_from(&survived);
                        *durable = survived;
                    }
                }
                Node::Directory { live, durable } => live.clone_from(durable),
                Node::Other(_) => {}
            }
        }
        self.collect();
        losses
    }

    fn reachable(&self) -> BTreeSet<u64> {
        let mut found = BTreeSet::from([ROOT]);
        let mut left = vec![ROOT];
        while let Some(number) = left.pop() {
            if let Some(Node::Directory { live, durable }) = self.nodes.get(&number) {
                left.extend(
                    live.values().chain(durable.values()).copied().filter(|next| found.insert(*next)),
                );
            }
        }
        found
    }

    fn collect(&mut self) {
        let reachable = self.reachable();
        self.nodes.retain(|number, _| reachable.contains(number));
        self.unreadable.retain(|number| reachable.contains(number));
    }

    fn used_bytes(&self) -> usize {
        let reachable = self.reachable();
        let size = |number: &u64| match self.nodes.get(number) {
            Some(Node::File { live, durable }) => {
                live.len().max(durable.len()).div_ceil(BLOCK_BYTES) * BLOCK_BYTES
            }
            Some(Node::Directory { .. }) if *number != ROOT => BLOCK_BYTES,
            _ => 0,
        };
        reachable.iter().map(size).sum()
    }

    /// How many of `bytes` more fit at the end of a file of `length`.
    fn room(&self, length: usize, bytes: usize) -> usize {
        let Some(space) = self.faults.space_bytes else { return bytes };
        let blocks_left = space.saturating_sub(self.used_bytes()) / BLOCK_BYTES;
        let rest_of_block = length.div_ceil(BLOCK_BYTES) * BLOCK_BYTES - length;
        bytes.min(rest_of_block + blocks_left * BLOCK_BYTES)
    }

    fn gather(&self, directory: u64, path: &Path, found: &mut Vec<PathBuf>) {
        let Some(Node::Directory { live, .. }) = self.nodes.get(&directory) else { return };
        for (name, number) in live {
            let path = path.join(name);
            match self.nodes.get(number) {
                Some(Node::Directory { .. }) => self.gather(*number, &path, found),
                _ => found.push(path),
            }
        }
    }

    fn place(&mut self, path: &Path, node: Node) {
        let mut directory = ROOT;
        let parent = path.parent().unwrap_or(Path::new(""));
        for component in parent.components() {
            let name = component.as_os_str();
            let there = self.names(directory).get(name).copied();
            directory = match there.filter(|number| self.kind_of(*number) == Kind::Directory) {
                Some(number) => number,
                None => {
                    let node = Node::Directory { live: BTreeMap::new(), durable: BTreeMap::new() };
                    self.place_in(directory, name, node)
                }
            };
        }
        let name = path.file_name().expect("a test names what it places");
        self.place_in(directory, name, node);
    }

    fn place_in(&mut self, directory: u64, name: &OsStr, node: Node) -> u64 {
        let number = self.next_node;
        self.next_node += 1;
        self.nodes.insert(number, node);
        self.forget_changes(directory, name);
        self.names(directory).insert(name.to_os_string(), number);
        if let Some(names) = self.durable_names(directory) {
            names.insert(name.to_os_string(), number);
        }
        number
    }

    /// Makes an outside change final: drops pending changes of this name.
    fn forget_changes(&mut self, directory: u64, name: &OsStr) {
        self.changes.retain(|change| match change {
            NameChange::Add { directory: at, name: to, .. }
            | NameChange::Remove { directory: at, name: to } => (*at, to.as_os_str()) != (directory, name),
            NameChange::Move { to, .. } => (to.0, to.1.as_os_str()) != (directory, name),
        });
    }

    fn kind_of(&self, number: u64) -> Kind {
        match self.nodes.get(&number) {
            Some(Node::Directory { .. }) => Kind::Directory,
            Some(Node::Other(kind)) => *kind,
            _ => Kind::File,
        }
    }
}

/// The surviving content of a file.
fn survived(live: &[u8], durable: &[u8], loss: Loss, random: &mut Random) -> Vec<u8> {
    match loss {
        Loss::Nothing | Loss::Names => live.to_vec(),
        Loss::Everything | Loss::Content => durable.to_vec(),
        Loss::ContentZeroed => {
            let mut content = durable.to_vec();
            content.resize(live.len(), 0);
            content
        }
        Loss::Chance(_) => torn(live, durable, random),
    }
}

fn torn(live: &[u8], durable: &[u8], random: &mut Random) -> Vec<u8> {
    let sectors = live.len().div_ceil(SECTOR_BYTES) as u64;
    let length = match random.below(4) {
        0 => durable.len(),
        1 => live.len(),
        // even a record shorter than a sector can be torn
        2 => random.index(live.len() + 1),
        _ => (random.below(sectors + 1) as usize * SECTOR_BYTES).min(live.len()),
    };
    let at = |content: &[u8], index: usize| content.get(index).copied().unwrap_or(0);
    let mut content = Vec::with_capacity(length);
    for start in (0..length).step_by(SECTOR_BYTES) {
        let choice = random.below(4);
        content.extend((start..length.min(start + SECTOR_BYTES)).map(|index| match choice {
            0 => at(durable, index),
            1 => 0,
            _ => at(live, index),
        }));
    }
    content
}

impl Operations for FakeDisk {
    type Handle = u64;

    fn make_root(&self) -> io::Result<()> {
        if self.is_off() { errno(Errno::EIO) } else { Ok(()) }
    }

    fn kind(&self, path: &Path) -> io::Result<Kind> {
        let inner = self.inner();
        if inner.off {
            return errno(Errno::EIO);
        }
        inner.find(path).map(|number| inner.kind_of(number))
    }

    fn read(&self, path: &Path, limit: usize) -> io::Result<ReadOutcome> {
        let inner = self.inner();
        if inner.off {
            return errno(Errno::EIO);
        }
        let number = inner.find(path)?;
        match inner.nodes.get(&number) {
            Some(Node::File { live, .. }) if live.len() > limit => {
                Ok(ReadOutcome::TooLarge(live.len() as u64))
            }
            Some(Node::File { .. }) if inner.unreadable.contains(&number) => errno(Errno::EIO),
            Some(Node::File { live, .. }) => match inner.faults.read {
                Some(error) => errno(error),
                None => Ok(ReadOutcome::Content(live.clone())),
            },
            Some(Node::Directory { .. }) => Ok(ReadOutcome::NotAFile(Kind::Directory)),
            Some(Node::Other(kind)) => Ok(ReadOutcome::NotAFile(*kind)),
            None => errno(Errno::ENOENT),
        }
    }

    // not supported: programs write files anew, and this is not used for files that they append to
    fn last_write(&self, path: &Path) -> io::Result<String> {
        let inner = self.inner();
        if inner.off {
            return errno(Errno::EIO);
        }
        inner.find(path).map(|number| number.to_string())
    }

    fn list(&self, directory: &Path, limit: usize) -> io::Result<Listing> {
        let inner = self.inner();
        if inner.off {
            return errno(Errno::EIO);
        }
        let Some(Node::Directory { live, .. }) = inner.nodes.get(&inner.find(directory)?) else {
            return errno(Errno::ENOTDIR);
        };
        let entries = live.iter().take(limit);
        let entries =
            entries.map(|(name, number)| Entry { name: name.clone(), kind: inner.kind_of(*number) });
        Ok(Listing { entries: entries.collect(), truncated: live.len() > limit })
    }

    fn create(&self, path: &Path) -> io::Result<u64> {
        let mut inner = self.inner();
        let whole = inner.begin(Operation::Create, path)?;
        let (directory, name) = inner.locate(path)?;
        if inner.names(directory).contains_key(name) {
            return errno(Errno::EEXIST);
        }
        let number = inner.add(directory, name, Node::File { live: Vec::new(), durable: Vec::new() });
        if whole { Ok(number) } else { errno(Errno::EIO) }
    }

    fn write(&self, handle: &mut u64, bytes: &[u8]) -> io::Result<usize> {
        let mut inner = self.inner();
        let whole = inner.begin(Operation::Write, Path::new(""))?;
        let length = match inner.nodes.get(handle) {
            Some(Node::File { live, .. }) => live.len(),
            _ => return errno(Errno::EBADF),
        };
        let wanted = bytes.len().min(inner.faults.write_at_most.unwrap_or(usize::MAX));
        let taken = inner.room(length, wanted);
        if taken == 0 && wanted > 0 {
            return errno(Errno::ENOSPC);
        }
        let flip = std::mem::take(&mut inner.faults.flip_next);
        if let Some(Node::File { live, .. }) = inner.nodes.get_mut(handle) {
            live.extend_from_slice(&bytes[..taken]);
            if flip && let Some(last) = live.last_mut() {
                *last ^= 0x10;
            }
        }
        if whole { Ok(taken) } else { errno(Errno::EIO) }
    }

    fn sync(&self, handle: &u64) -> io::Result<()> {
        let mut inner = self.inner();
        let ignored = inner.faults.ignore_sync;
        if !inner.begin(Operation::Sync, Path::new(""))? {
            return errno(Errno::EIO);
        }
        if let Some(Node::File { live, durable }) = inner.nodes.get_mut(handle)
            && !ignored
        {
            durable.clone_from(live);
        }
        Ok(())
    }

    fn read_back(&self, handle: &mut u64, limit: usize) -> io::Result<Vec<u8>> {
        let inner = self.inner();
        if inner.off {
            return errno(Errno::EIO);
        }
        match (inner.nodes.get(handle), inner.faults.read) {
            (_, Some(error)) => errno(error),
            (Some(Node::File { live, .. }), None) => Ok(live.iter().copied().take(limit).collect()),
            _ => errno(Errno::EBADF),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        let whole = inner.begin(Operation::Rename, from)?;
        let (from_directory, from_name) = inner.locate(from)?;
        let (to_directory, to_name) = inner.locate(to)?;
        let node = inner.find(from)?;
        if from != to && to.starts_with(from) {
            return errno(Errno::EINVAL);
        }
        if from != to && from.starts_with(to) {
            return errno(Errno::ENOTEMPTY);
        }
        match inner.find(to).map(|there| (there, inner.kind_of(there))) {
            Ok((there, _)) if there == node => return Ok(()),
            Ok((_, Kind::Directory)) if inner.kind_of(node) != Kind::Directory => {
                return errno(Errno::EISDIR);
            }
            Ok((_, kind)) if kind != Kind::Directory && inner.kind_of(node) == Kind::Directory => {
                return errno(Errno::ENOTDIR);
            }
            Ok((there, Kind::Directory)) => {
                if matches!(inner.nodes.get(&there), Some(Node::Directory { live, .. }) if !live.is_empty()) {
                    return errno(Errno::ENOTEMPTY);
                }
            }
            _ => {}
        }
        inner.names(from_directory).remove(from_name);
        if inner.is_fat
            && let Some(Node::File { live, durable }) = inner.nodes.get(&node)
        {
            // FAT: the directory holds the file's start and length, so under its new name nothing is durable
            // yet
            let is_synced = live == durable;
            let moved = Node::File { live: live.clone(), durable: Vec::new() };
            let moved = inner.add(to_directory, to_name, moved);
            if is_synced {
                inner.moved.insert(moved);
            }
            let name = from_name.to_os_string();
            inner.changes.push(NameChange::Remove { directory: from_directory, name });
            return if whole { Ok(()) } else { errno(Errno::EIO) };
        }
        inner.names(to_directory).insert(to_name.to_os_string(), node);
        inner.changes.push(NameChange::Move {
            from: (from_directory, from_name.to_os_string()),
            to: (to_directory, to_name.to_os_string()),
            node,
        });
        if whole { Ok(()) } else { errno(Errno::EIO) }
    }

    fn link(&self, file: &Path, to: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        let whole = inner.begin(Operation::Link, file)?;
        let (directory, name) = inner.locate(to)?;
        let node = inner.find(file)?;
        if inner.kind_of(node) == Kind::Directory {
            return errno(Errno::EPERM);
        }
        if inner.names(directory).contains_key(name) {
            return errno(Errno::EEXIST);
        }
        inner.names(directory).insert(name.to_os_string(), node);
        inner.changes.push(NameChange::Add { directory, name: name.to_os_string(), node });
        if whole { Ok(()) } else { errno(Errno::EIO) }
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        let ignored = inner.faults.ignore_sync_directory;
        let read_only = std::mem::take(&mut inner.faults.read_only);
        // A read-only file system has nothing to sync and returns this error.
        let begun = inner.begin(Operation::SyncDirectory, directory);
        inner.faults.read_only = read_only;
        if !begun? {
            return errno(Errno::EIO);
        }
        let number = inner.find(directory)?;
        if inner.kind_of(number) != Kind::Directory {
            return errno(Errno::ENOTDIR);
        }
        if !ignored {
            inner.sync_names(number);
        }
        Ok(())
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        let whole = inner.begin(Operation::Unlink, path)?;
        let (directory, name) = inner.locate(path)?;
        let number = inner.find(path)?;
        if inner.kind_of(number) == Kind::Directory {
            return errno(Errno::EISDIR);
        }
        inner.names(directory).remove(name);
        inner.changes.push(NameChange::Remove { directory, name: name.to_os_string() });
        if whole { Ok(()) } else { errno(Errno::EIO) }
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        let whole = inner.begin(Operation::MakeDirectory, path)?;
        let (directory, name) = inner.locate(path)?;
        if inner.names(directory).contains_key(name) {
            return errno(Errno::EEXIST);
        }
        if inner.room(0, 1) == 0 {
            return errno(Errno::ENOSPC);
        }
        inner.add(directory, name, Node::Directory { live: BTreeMap::new(), durable: BTreeMap::new() });
        if whole { Ok(()) } else { errno(Errno::EIO) }
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        let whole = inner.begin(Operation::RemoveDirectory, path)?;
        let (directory, name) = inner.locate(path)?;
        match inner.nodes.get(&inner.find(path)?) {
            Some(Node::Directory { live, .. }) if live.is_empty() => {}
            Some(Node::Directory { .. }) => return errno(Errno::ENOTEMPTY),
            _ => return errno(Errno::ENOTDIR),
        }
        inner.names(directory).remove(name);
        inner.changes.push(NameChange::Remove { directory, name: name.to_os_string() });
        if whole { Ok(()) } else { errno(Errno::EIO) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::files;
    use super::*;
    use crate::files::{Files, ReadError};

    const PATH: &str = "v1/record";

    /// A disk where the old content is durable, and the new one was renamed into place by a program that
    /// ended before it synced the name.
    fn disk_with_a_rename_under_way() -> FakeDisk {
        let disk = FakeDisk::new();
        disk.put(PATH, b"old");
        disk.cut_power_at(Operation::Rename);
        files(&disk).write_durably(Path::new(PATH), b"new").expect_err("it ends in the rename");
        disk.end_program();
        disk
    }

    #[test]
    fn ended_program_loses_nothing_until_a_power_cut() {
        let disk = disk_with_a_rename_under_way();
        assert!(disk.holds(PATH, b"new"));
        let losses = disk.reboot(Loss::Everything);
        assert_eq!(losses, Losses { renames_lost: 1, ..Losses::default() });
        assert!(disk.holds(PATH, b"old"));
    }

    #[test]
    fn arranged_files_survive_every_power_cut() {
        for loss in Loss::all(20) {
            let disk = disk_with_a_rename_under_way();
            disk.put(PATH, b"arranged");
            disk.reboot(loss);
            assert!(disk.holds(PATH, b"arranged"), "{loss:?}");
            let disk = disk_with_a_rename_under_way();
            disk.remove(PATH);
            disk.reboot(loss);
            assert_eq!(disk.content(PATH), None, "{loss:?}");
        }
    }

    #[test]
    fn rename_on_fat_may_lose_both_names_until_synced() {
        let left = |loss| {
            let disk = FakeDisk::new();
            disk.make_fat();
            disk.put("old", b"content");
            disk.rename(Path::new("old"), Path::new("new")).unwrap();
            assert!(disk.holds("new", b"content") && disk.content("old").is_none());
            let synced = disk.fork();
            synced.sync_all().unwrap();
            synced.reboot(loss);
            assert!(synced.holds("new", b"content") && synced.content("old").is_none(), "{loss:?}");
            disk.reboot(loss);
            (
                disk.content("old").map(|content| content.len()),
                disk.content("new").map(|content| content.len()),
            )
        };
        let found: BTreeSet<_> = Loss::all(100).map(left).collect();
        for expected in [(Some(7), None), (None, Some(7)), (None, Some(0)), (None, None), (Some(7), Some(7))]
        {
            assert!(found.contains(&expected), "{expected:?}: {found:?}");
        }
    }

    #[test]
    fn unreadable_file_is_readable_once_replaced() {
        let disk = FakeDisk::new();
        disk.put(PATH, b"old");
        disk.fail_reads_of(PATH);
        let read = || files(&disk).read(Path::new(PATH), 100);
        assert!(matches!(read(), Err(ReadError::Io { .. })));
        files(&disk).write_durably(Path::new(PATH), b"new").expect("writes work");
        assert_eq!(read().expect("another file has its name"), b"new");
    }

    #[test]
    fn short_record_is_torn_at_any_byte() {
        let lengths = (0..1000).map(|seed| torn(&[7; 20], &[], &mut Random::new(seed)).len());
        let lengths: BTreeSet<usize> = lengths.collect();
        assert_eq!(lengths, (0..=20).collect());
    }
}
