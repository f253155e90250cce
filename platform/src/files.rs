//! Small files that survive power cuts: the protocol of a durable write, and the repair of a data directory
//! whatever it contains.
//!
//! Always holds: after a power cut at any moment a file has its old content or its new content, never a
//! mixture; after `Ok` it has the new one; a later power cut does not undo content that was read. No
//! operation follows a symbolic link below the root, blocks on a FIFO, or opens a device. Every walk is
//! bounded. A file in the way is renamed, never deleted; our own leftovers are removed.
//!
//! The protocol: temporary file in the same directory, write, fsync, read back, rename, fsync of the
//! directory. It is one function over [`Operations`], so tests cut the fake disk's power within the very code
//! that runs on a real one.
//!
//! Leaves to others: the meaning of files, digests, and the order of writers (one process owns a root).

use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Names of temporary files begin with this. Callers may not use such names.
pub const TEMPORARY_PREFIX: &str = ".kedge-new-";
/// The reserve file, in the root.
pub const RESERVE_NAME: &str = ".kedge-reserve";
/// A good size for the reserve: a few records of some KiB each, and the directory and inode blocks they cost.
pub const RESERVE_BYTES: usize = 64 * 1024;
/// Contents up to this size may use the reserve up: a list of a hundred verdicts is as large, and must be
/// writable too.
pub const RESERVE_SERVES_BYTES: usize = RESERVE_BYTES;
/// Largest file that is copied where hard links are not possible: no record is nearly as large.
const COPIED_BYTES: usize = 1024 * 1024;
/// Most unreadable files of one name that are kept aside: enough to see a pattern, too few to fill a disk.
pub const SET_ASIDE_KEPT: u32 = 5;
/// Most entries removed by one [`Files::remove`] of a directory; a second call continues where the first
/// stopped.
pub const REMOVE_LIMIT: usize = 10_000;
/// Deepest nesting that is walked: ours is three deep, and a loop of bind mounts must end.
const DEPTH_LIMIT: usize = 16;
/// Most directories remembered as durable or settled; beyond it all are forgotten and synced again on next
/// use.
const DURABLE_DIRECTORIES_LIMIT: usize = 64;
/// Most repetitions of one interrupted call: a signal storm must not become an endless loop.
const INTERRUPTION_LIMIT: u32 = 1000;
/// Most taken temporary names that are skipped.
const TEMPORARY_NAME_TRIES: u32 = 1000;
/// Names listed at a time while a directory is removed: bounds memory.
const REMOVE_CHUNK: usize = 256;
/// Most failures that a [`SweepReport`] describes; further ones are only counted.
const SWEEP_ERRORS_KEPT: usize = 8;

/// The type of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link; never followed.
    Symlink,
    /// A named pipe; never opened.
    Fifo,
    /// A socket.
    Socket,
    /// A block or character device; never opened.
    Device,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::File => "file",
            Kind::Directory => "directory",
            Kind::Symlink => "symbolic link",
            Kind::Fifo => "named pipe",
            Kind::Socket => "socket",
            Kind::Device => "device",
        })
    }
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The bare name, in whatever bytes the disk holds.
    pub name: OsString,
    /// Its type.
    pub kind: Kind,
}

/// The names in a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Sorted by name (bytes); when truncated, an arbitrary part of the directory.
    pub entries: Vec<Entry>,
    /// There are more than the limit asked for.
    pub truncated: bool,
}

/// The reason why something could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// Nothing has that name.
    NotFound {
        /// The path below the root.
        path: PathBuf,
    },
    /// The name has another type than requested (a FIFO, a link, a directory in place of a file).
    NotAFile {
        /// The path below the root.
        path: PathBuf,
        /// The type found.
        kind: Kind,
    },
    /// The file is bigger than the caller accepts.
    TooLarge {
        /// The path below the root.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: usize,
    },
    /// The path leaves the root or names one of this module's own files.
    BadPath {
        /// The path as given.
        path: PathBuf,
    },
    /// The disk or the kernel failed.
    Io {
        /// The operation.
        operation: &'static str,
        /// The path below the root.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::NotFound { path } => write!(f, "{} does not exist", shown(path)),
            ReadError::NotAFile { path, kind } => {
                let expected = if *kind == Kind::File { "directory" } else { "file" };
                write!(f, "{} is a {kind}, expected a {expected}", shown(path))
            }
            ReadError::TooLarge { path, size, limit } => {
                write!(f, "{} has {size} bytes, expected at most {limit}", shown(path))
            }
            ReadError::BadPath { path } => write!(f, "{path:?} is not a path below the data directory"),
            ReadError::Io { operation, path, .. } => write!(f, "cannot {operation} {}", shown(path)),
        }
    }
}

impl Error for ReadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ReadError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The reason why something could not be written. In each case the old content is intact, or the new one is
/// in place but perhaps not yet durable; the same call may be tried again.
#[derive(Debug)]
pub enum WriteError {
    /// No space, no inodes or over quota, and the reserve is used up or would not help.
    NoSpace {
        /// The operation.
        operation: &'static str,
        /// The path below the root.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file system is mounted read-only (often the kernel's answer to a failing disk).
    ReadOnly {
        /// The operation.
        operation: &'static str,
        /// The path below the root.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The path leaves the root or names one of this module's own files.
    BadPath {
        /// The path as given.
        path: PathBuf,
    },
    /// The disk confirmed the write, but returned another content. The old content is intact.
    Differs {
        /// The path below the root.
        path: PathBuf,
        /// Bytes written.
        expected_bytes: usize,
        /// First byte that differs (or is missing).
        at_byte: usize,
    },
    /// A directory has more entries, or is nested deeper, than one call removes; the entries removed so far
    /// stay removed.
    TooMany {
        /// The path below the root.
        path: PathBuf,
    },
    /// The disk or the kernel failed.
    Io {
        /// The operation.
        operation: &'static str,
        /// The path below the root.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl WriteError {
    fn from_io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::NoSpace { operation, path, source }
            }
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { operation, path, source },
            _ => Self::Io { operation, path, source },
        }
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::NoSpace { operation, path, .. } => {
                write!(f, "cannot {operation} {}, the disk is full", shown(path))
            }
            WriteError::ReadOnly { operation, path, .. } => {
                write!(f, "cannot {operation} {}, the disk is read-only", shown(path))
            }
            WriteError::BadPath { path } => write!(f, "{path:?} is not a path below the data directory"),
            WriteError::Differs { path, expected_bytes, at_byte } => write!(
                f,
                "wrote {expected_bytes} bytes for {}, read back something else from byte {at_byte} on",
                shown(path)
            ),
            WriteError::TooMany { path } => {
                write!(f, "cannot remove all of {} at once, some is left", shown(path))
            }
            WriteError::Io { operation, path, .. } => write!(f, "cannot {operation} {}", shown(path)),
        }
    }
}

impl Error for WriteError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            WriteError::NoSpace { source, .. }
            | WriteError::ReadOnly { source, .. }
            | WriteError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// A path for messages; the root itself is an empty path.
fn shown(path: &Path) -> std::path::Display<'_> {
    let named = if path == Path::new("") { Path::new("the data directory") } else { path };
    named.display()
}

/// The result of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Entries visited.
    pub examined: usize,
    /// Entries removed.
    pub removed: usize,
    /// More entries are left than one call may visit; call again later.
    pub truncated: bool,
    /// The first few failures, as text; the sweep continued after each.
    pub errors: Vec<String>,
    /// How many failures there were.
    pub error_count: usize,
}

impl SweepReport {
    fn failed(&mut self, error: impl fmt::Display) {
        self.error_count += 1;
        if self.errors.len() < SWEEP_ERRORS_KEPT {
            self.errors.push(error.to_string());
        }
    }
}

/// The files below one directory. Paths are relative to it; absolute ones, `..` and this module's own names
/// are refused. Calls may block as long as the disk does: call from a thread that may.
pub trait Files: Send + Sync {
    /// The whole content of a regular file of at most `limit` bytes.
    fn read(&self, path: &Path, limit: usize) -> Result<Vec<u8>, ReadError>;

    /// Puts `content` in place so that it survives a power cut, mode 0600, missing directories (0700)
    /// included. A directory found in place of the file, or a file in place of a directory, is set aside. The
    /// write is never skipped because the content looks the same: after an earlier failed sync memory and
    /// disk may differ.
    ///
    /// When the disk is full and `content` is at most [`RESERVE_SERVES_BYTES`], the reserve is given up and
    /// the write repeated once.
    fn write_durably(&self, path: &Path, content: &[u8]) -> Result<(), WriteError>;

    /// As [`Files::write_durably`], but keeps the reserve: for content that can be fetched again, which must
    /// not take the room of a verdict.
    fn write_beside_reserve(&self, path: &Path, content: &[u8]) -> Result<(), WriteError>;

    /// Removes a file, a link, or a directory with its content (at most [`REMOVE_LIMIT`] entries), durably. A
    /// path that does not exist counts as removed.
    fn remove(&self, path: &Path) -> Result<(), WriteError>;

    /// Renames whatever has this name to `<name>.corrupt-<n>`, durably, and returns the new path. At most
    /// [`SET_ASIDE_KEPT`] are kept per name, the oldest is removed first.
    fn set_aside(&self, path: &Path) -> Result<PathBuf, WriteError>;

    /// The same, but a file also keeps its name until a write replaces it, so it always exists.
    /// Where the file system has no hard links the file is copied; if it cannot be read for that, it is
    /// renamed.
    fn keep_aside(&self, path: &Path) -> Result<PathBuf, WriteError>;

    /// The names in a directory (`""` is the root), without our own temporary files and the reserve.
    fn list(&self, directory: &Path, limit: usize) -> Result<Listing, ReadError>;

    /// Removes temporary leftovers everywhere below the root, and every other path for which `keep` returns
    /// false (it is called for a directory before its content); a directory is removed with its content. It
    /// visits at most `limit` entries, collects failures and continues. Deliberately not durable: leftovers
    /// that return after a power cut are swept again, and a start should not wait for a disk. Call it before
    /// other threads write.
    fn sweep(&self, keep: &dyn Fn(&Path) -> bool, limit: usize) -> SweepReport;

    /// Removes temporary leftovers directly in the root, and nothing else: for a directory whose
    /// subdirectories belong to others. Otherwise it is like `sweep`.
    fn sweep_root(&self, limit: usize) -> SweepReport;

    /// Makes sure that a reserve of at least `bytes` exists. Writes nothing when it does. Call it at the
    /// start, and again whenever there is time: a write may have used the reserve up.
    fn ensure_reserve(&self, bytes: usize) -> Result<(), WriteError>;

    /// Frees the reserve's space; returns whether there was any.
    fn free_reserve(&self) -> Result<bool, WriteError>;
}

/// A file that was in the place of a directory, and was renamed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Displaced {
    /// The directory's path, below the same root as `now`.
    pub path: PathBuf,
    /// Its type.
    pub kind: Kind,
    /// Its name now.
    pub now: PathBuf,
}

impl fmt::Display for Displaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, kind, now } = self;
        write!(f, "{} was a {kind}, expected a directory; renamed to {}", path.display(), now.display())
    }
}

/// Sets aside whatever is in place of a directory, if it is anything else; also a link, wherever it leads. A
/// path that cannot be examined is left alone.
///
/// # Errors
/// It could not be renamed.
pub fn clear_for_directory(files: &dyn Files, path: &Path) -> Result<Option<Displaced>, WriteError> {
    let Err(ReadError::NotAFile { kind, .. }) = files.list(path, 0) else { return Ok(None) };
    let now = files.set_aside(path)?;
    Ok(Some(Displaced { path: path.to_path_buf(), kind, now }))
}

/// The way in which a file is set aside.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Aside {
    Moved,
    /// The file also keeps its name.
    Linked,
}

/// True if a file system refused a hard link because it supports none (`EPERM` on vfat), or none to a
/// directory.
fn has_no_links(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
}

/// The operations of a disk, one system call each: a power cut happens between two of them. Paths are below
/// the root, already checked; `""` is the root itself. Errors are the kernel's.
pub trait Operations: Send + Sync {
    /// An open new file.
    type Handle;

    /// Makes the root directory with its parents, durably, unless it exists.
    fn make_root(&self) -> io::Result<()>;
    /// The type of a name; links are not followed.
    fn kind(&self, path: &Path) -> io::Result<Kind>;
    /// The size and content of a regular file; only the size when it is above `limit`.
    fn read(&self, path: &Path, limit: usize) -> io::Result<ReadOutcome>;
    /// A word that changes with each write of the file, but not with damage on the medium; it is constant for
    /// as long as the file is unchanged.
    fn last_write(&self, path: &Path) -> io::Result<String>;
    /// Up to `limit` names, in the disk's own order.
    fn list(&self, directory: &Path, limit: usize) -> io::Result<Listing>;
    /// A new file, mode 0600; an error when the name is taken.
    fn create(&self, path: &Path) -> io::Result<Self::Handle>;
    /// Appends; may take less than is given.
    fn write(&self, handle: &mut Self::Handle, bytes: &[u8]) -> io::Result<usize>;
    /// Makes the content durable.
    fn sync(&self, handle: &Self::Handle) -> io::Result<()>;
    /// Up to `limit` bytes from the beginning of the file, from the medium rather than from memory where
    /// possible.
    fn read_back(&self, handle: &mut Self::Handle, limit: usize) -> io::Result<Vec<u8>>;
    /// Renames, replacing a file.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives a file a second name; an error when that is taken.
    fn link(&self, file: &Path, to: &Path) -> io::Result<()>;
    /// Makes a directory's names durable.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
    /// Removes anything but a directory.
    fn unlink(&self, path: &Path) -> io::Result<()>;
    /// Makes a directory, mode 0700.
    fn make_directory(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_directory(&self, path: &Path) -> io::Result<()>;
}

/// The result of [`Operations::read`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The whole content.
    Content(Vec<u8>),
    /// Above the limit; its size in bytes.
    TooLarge(u64),
    /// Not a regular file.
    NotAFile(Kind),
}

/// [`Files`] over any disk: the protocol.
#[derive(Debug)]
pub struct DurableFiles<D> {
    disk: D,
    // Distinguishes the temporary names of two processes.
    tag: u32,
    // One writer at a time: a sweep must not remove the temporary file of a write in progress.
    state: Mutex<State>,
    settled: Mutex<Settled>,
}

#[derive(Debug, Default)]
struct Settled {
    // Directories whose names were made durable before the first answer about them, and in which no change
    // has failed since.
    directories: BTreeSet<PathBuf>,
    // Directories that could not be made durable, which was logged. An aborted file system is tried every few
    // seconds, as long as the node runs.
    told: BTreeSet<PathBuf>,
}

#[derive(Debug, Default)]
struct State {
    // Directories whose own names this process has made durable. That a directory exists is not enough: the
    // process that made it may have been killed before the sync.
    durable_directories: BTreeSet<PathBuf>,
    temporaries: u32,
}

impl<D: Operations> DurableFiles<D> {
    /// The files below the root of `disk`.
    pub fn new(disk: D) -> Self {
        Self::tagged(disk, std::process::id())
    }

    /// As `new`; temporary names carry `tag` instead of the process id, so that a test sees the same names
    /// every time.
    pub fn tagged(disk: D, tag: u32) -> Self {
        Self { disk, tag, state: Mutex::default(), settled: Mutex::default() }
    }

    /// The disk below.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state only lists what was synced; a panic elsewhere cannot make it wrong.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the names in `path`'s directories durable, once in this process. A process that was killed
    /// between a rename or a removal and its sync leaves a change that is visible now but lost at a power
    /// cut: so it is synced before the first answer about it. If the sync fails, the path is read all the
    /// same.
    fn settle(&self, path: &Path) {
        let mut settled = self.settled();
        for directory in path.ancestors().skip(1) {
            if settled.directories.contains(directory) {
                continue;
            }
            match uninterrupted(|| self.disk.sync_directory(directory)) {
                Ok(()) => {
                    settled.told.remove(directory);
                    if settled.directories.len() >= DURABLE_DIRECTORIES_LIMIT {
                        settled.directories.clear();
                    }
                    settled.directories.insert(directory.to_path_buf());
                }
                Err(error) if is_absent(&error) => {}
                Err(error) => {
                    if settled.told.len() < DURABLE_DIRECTORIES_LIMIT
                        && settled.told.insert(directory.to_path_buf())
                    {
                        log::warn!("cannot make durable the names in {directory:?}: {error}");
                    }
                }
            }
        }
    }

    fn settled(&self) -> MutexGuard<'_, Settled> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A failed change may be visible all the same, and may not be durable: everything is synced again before
    /// the next answer.
    fn doubt<T>(&self, outcome: Result<T, WriteError>) -> Result<T, WriteError> {
        outcome.inspect_err(|_| self.settled().directories.clear())
    }

    fn write(&self, state: &mut State, path: &Path, content: &[u8]) -> Result<(), WriteError> {
        let outcome = match self.write_once(state, path, content) {
            // A directory that this process had made durable was removed: create it again.
            Err(WriteError::Io { source, .. })
                if is_absent(&source) && !state.durable_directories.is_empty() =>
            {
                state.durable_directories.clear();
                self.write_once(state, path, content)
            }
            outcome => outcome,
        };
        self.doubt(outcome)
    }

    fn write_once(&self, state: &mut State, path: &Path, content: &[u8]) -> Result<(), WriteError> {
        let directory = parent(path);
        self.make_durable(state, directory)?;
        let temporary = self.write_temporary(state, directory, path, content)?;
        self.install(state, &temporary, path).inspect_err(|_| self.discard(&temporary))?;
        self.attempt("make durable the name of", path, || self.disk.sync_directory(directory))
    }

    /// Makes `directory` and its parents exist, and each of their names durable.
    fn make_durable(&self, state: &mut State, directory: &Path) -> Result<(), WriteError> {
        if state.durable_directories.contains(directory) {
            return Ok(());
        }
        self.attempt("create", Path::new(""), || self.disk.make_root())?;
        let mut ancestors: Vec<_> = directory.ancestors().filter(|path| *path != Path::new("")).collect();
        ancestors.reverse();
        for ancestor in ancestors {
            self.make_directory(state, ancestor)?;
            self.attempt("make durable the name of", ancestor, || {
                self.disk.sync_directory(parent(ancestor))
            })?;
        }
        if state.durable_directories.len() >= DURABLE_DIRECTORIES_LIMIT {
            state.durable_directories.clear();
        }
        state.durable_directories.insert(directory.to_path_buf());
        Ok(())
    }

    fn make_directory(&self, state: &mut State, path: &Path) -> Result<(), WriteError> {
        match self.disk.kind(path) {
            Ok(Kind::Directory) => return Ok(()),
            Ok(kind) => {
                let now = self.move_aside(state, path, Aside::Moved)?;
                log::warn!("{}", Displaced { path: path.to_path_buf(), kind, now });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(WriteError::from_io("look at", path, error)),
        }
        self.attempt("create directory", path, || self.disk.make_directory(path))
    }

    fn write_temporary(
        &self,
        state: &mut State,
        directory: &Path,
        path: &Path,
        content: &[u8],
    ) -> Result<PathBuf, WriteError> {
        let (temporary, mut handle) = self.create_temporary(state, directory, path)?;
        self.fill(&mut handle, path, content).inspect_err(|_| self.discard(&temporary))?;
        Ok(temporary)
    }

    fn create_temporary(
        &self,
        state: &mut State,
        directory: &Path,
        path: &Path,
    ) -> Result<(PathBuf, D::Handle), WriteError> {
        let mut tries = 0;
        loop {
            state.temporaries = state.temporaries.wrapping_add(1);
            let number = state.temporaries;
            let temporary = directory.join(format!("{TEMPORARY_PREFIX}{}-{number}", self.tag));
            match uninterrupted(|| self.disk.create(&temporary)) {
                Ok(handle) => return Ok((temporary, handle)),
                // A leftover: skip its number, because it must not be removed in the middle of a write.
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists && tries < TEMPORARY_NAME_TRIES =>
                {
                    tries += 1;
                }
                Err(error) => return Err(WriteError::from_io("create a temporary file for", path, error)),
            }
        }
    }

    fn fill(&self, handle: &mut D::Handle, path: &Path, content: &[u8]) -> Result<(), WriteError> {
        let mut rest = content;
        while !rest.is_empty() {
            let taken = self.attempt("write", path, || self.disk.write(handle, rest))?;
            if taken == 0 || taken > rest.len() {
                let source = io::Error::from(io::ErrorKind::WriteZero);
                return Err(WriteError::from_io("write", path, source));
            }
            rest = &rest[taken..];
        }
        // A failed sync is never repeated on the same file: Linux forgets the lost pages and answers Ok the
        // second time. The next attempt writes a new file.
        self.attempt("make durable", path, || self.disk.sync(handle))?;
        // Before the rename, so that a lying disk costs a retry and not the old content. Measured on ext4
        // over a loop device: 0.04 ms of a write's 1.7 ms.
        let found = self.attempt("read back", path, || self.disk.read_back(handle, content.len() + 1))?;
        match first_difference(content, &found) {
            None => Ok(()),
            Some(at_byte) => {
                Err(WriteError::Differs { path: path.to_path_buf(), expected_bytes: content.len(), at_byte })
            }
        }
    }

    /// The rename. A directory in the way cannot be replaced by a file, so it is set aside first.
    fn install(&self, state: &mut State, temporary: &Path, path: &Path) -> Result<(), WriteError> {
        let error = match uninterrupted(|| self.disk.rename(temporary, path)) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if !matches!(self.disk.kind(path), Ok(Kind::Directory)) {
            return Err(WriteError::from_io("rename into place", path, error));
        }
        let aside = self.move_aside(state, path, Aside::Moved)?;
        log::warn!("{} was a directory, expected a file; renamed to {}", path.display(), aside.display());
        self.attempt("rename into place", path, || self.disk.rename(temporary, path))
    }

    /// Removes a temporary file after a failure; if that fails too, the next sweep finds it.
    fn discard(&self, temporary: &Path) {
        if let Err(error) = uninterrupted(|| self.disk.unlink(temporary)) {
            log::debug!("cannot remove {}: {error}", temporary.display());
        }
    }

    /// Gives `path` the free name of a ring of `SET_ASIDE_KEPT + 1`. One name of the ring is always free, and
    /// the name after it is the oldest: this gives an order without clocks, counters or listing.
    fn move_aside(&self, state: &mut State, path: &Path, how: Aside) -> Result<PathBuf, WriteError> {
        const RING: u32 = SET_ASIDE_KEPT + 1;
        let slot = |number: u32| aside_name(path, number % RING + 1);
        let taken = |number: u32| match self.disk.kind(&slot(number)) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(WriteError::from_io("look at", &slot(number), error)),
        };
        let mut free = None;
        for number in 0..RING {
            if !taken(number)? && (free.is_none() || taken(number + RING - 1)?) {
                free = Some(number);
                if number > 0 {
                    break;
                }
            }
        }
        state.durable_directories.clear();
        // All are taken: the power was cut between the rename and the removal below, or someone made the
        // names by hand.
        let number = match free {
            Some(number) => number,
            None => {
                self.remove_any(&slot(0))?;
                0
            }
        };
        let aside = slot(number);
        let stays = match how {
            Aside::Moved => false,
            Aside::Linked => match uninterrupted(|| self.disk.link(path, &aside)) {
                Ok(()) => true,
                Err(error) if has_no_links(&error) => self.copy(state, path, &aside)?,
                Err(error) => return Err(WriteError::from_io("set aside", path, error)),
            },
        };
        if !stays {
            self.attempt("set aside", path, || self.disk.rename(path, &aside))?;
        }
        if let Err(error) = self.remove_any(&slot(number + 1)) {
            log::warn!("cannot remove the oldest file that was set aside: {error}");
        }
        self.attempt("make durable the new name of", path, || self.disk.sync_directory(parent(path)))?;
        Ok(aside)
    }

    /// Returns true if there was a whole file that could be read.
    fn copy(&self, state: &mut State, path: &Path, to: &Path) -> Result<bool, WriteError> {
        match uninterrupted(|| self.disk.read(path, COPIED_BYTES)) {
            Ok(ReadOutcome::Content(content)) => self.write(state, to, &content).map(|()| true),
            _ => Ok(false),
        }
    }

    fn remove_once(&self, path: &Path) -> Result<(), WriteError> {
        self.remove_any(path)?;
        // Also when nothing was there: an earlier removal may have been interrupted before its sync.
        for directory in path.ancestors().skip(1) {
            match uninterrupted(|| self.disk.sync_directory(directory)) {
                Ok(()) => return Ok(()),
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(WriteError::from_io("make durable the removal of", path, error)),
            }
        }
        Ok(())
    }

    /// Removes whatever has this path, without making that durable.
    fn remove_any(&self, path: &Path) -> Result<(), WriteError> {
        let mut budget = REMOVE_LIMIT;
        self.remove_within(path, &mut budget)
    }

    /// As `remove_any`, at most `budget` entries below `path`; counts it down.
    fn remove_within(&self, path: &Path, budget: &mut usize) -> Result<(), WriteError> {
        match self.disk.kind(path) {
            Ok(Kind::Directory) => self.remove_tree(path, budget, DEPTH_LIMIT),
            Ok(_) => self.attempt("remove", path, || self.disk.unlink(path)),
            Err(error) if is_absent(&error) => Ok(()),
            Err(error) => Err(WriteError::from_io("look at", path, error)),
        }
    }

    fn remove_tree(&self, directory: &Path, budget: &mut usize, depth: usize) -> Result<(), WriteError> {
        let too_many = || WriteError::TooMany { path: directory.to_path_buf() };
        let deeper = depth.checked_sub(1).ok_or_else(too_many)?;
        loop {
            let listing = self.attempt("list", directory, || self.disk.list(directory, REMOVE_CHUNK))?;
            for entry in &listing.entries {
                *budget = budget.checked_sub(1).ok_or_else(too_many)?;
                let path = directory.join(&entry.name);
                match entry.kind {
                    Kind::Directory => self.remove_tree(&path, budget, deeper)?,
                    _ => self.attempt("remove", &path, || self.disk.unlink(&path))?,
                }
            }
            if !listing.truncated {
                break;
            }
        }
        self.attempt("remove", directory, || self.disk.remove_directory(directory))
    }

    fn sweep_directory(
        &self,
        directory: &Path,
        keep: &dyn Fn(&Path) -> bool,
        limit: usize,
        report: &mut SweepReport,
    ) -> Vec<PathBuf> {
        let mut kept_directories = Vec::new();
        let room = limit.saturating_sub(report.examined);
        let listing = match uninterrupted(|| self.disk.list(directory, room)) {
            Ok(listing) => listing,
            Err(error) if is_absent(&error) => return kept_directories,
            Err(error) => {
                report.failed(format_args!("cannot list {:?}: {error}", directory));
                return kept_directories;
            }
        };
        report.truncated |= listing.truncated;
        for entry in listing.entries {
            if report.examined >= limit {
                report.truncated = true;
                break;
            }
            report.examined += 1;
            let path = directory.join(&entry.name);
            // a write makes only temporary files, so a directory of such a name is not ours
            let ours = is_temporary(&path) && entry.kind != Kind::Directory;
            if !ours && (is_own(&path) || keep(&path)) {
                if entry.kind == Kind::Directory {
                    kept_directories.push(path);
                }
                continue;
            }
            let before = limit.saturating_sub(report.examined);
            let mut budget = before;
            let outcome = self.remove_within(&path, &mut budget);
            report.examined += before - budget;
            match outcome {
                Ok(()) => report.removed += 1 + before - budget,
                Err(WriteError::TooMany { .. }) => report.truncated = true,
                Err(error) => report.failed(format_args!("{error}{}", Cause(&error))),
            }
        }
        kept_directories
    }

    fn drop_reserve(&self) -> Result<bool, WriteError> {
        let reserve = Path::new(RESERVE_NAME);
        match self.disk.kind(reserve) {
            Err(error) if is_absent(&error) => return Ok(false),
            Err(error) => return Err(WriteError::from_io("look at", reserve, error)),
            Ok(_) => self.remove_any(reserve)?,
        }
        // Not for durability: a journalling file system reuses freed blocks only once the removal is on disk.
        self.attempt("free", reserve, || self.disk.sync_directory(Path::new("")))?;
        Ok(true)
    }

    fn attempt<T>(
        &self,
        operation: &'static str,
        path: &Path,
        action: impl FnMut() -> io::Result<T>,
    ) -> Result<T, WriteError> {
        uninterrupted(action).map_err(|source| WriteError::from_io(operation, path, source))
    }
}

impl<D: Operations> Files for DurableFiles<D> {
    fn read(&self, path: &Path, limit: usize) -> Result<Vec<u8>, ReadError> {
        let path = checked(path).map_err(|path| ReadError::BadPath { path })?;
        self.settle(path);
        match uninterrupted(|| self.disk.read(path, limit)) {
            Ok(ReadOutcome::Content(content)) => Ok(content),
            Ok(ReadOutcome::TooLarge(size)) => {
                Err(ReadError::TooLarge { path: path.to_path_buf(), size, limit })
            }
            Ok(ReadOutcome::NotAFile(kind)) => Err(ReadError::NotAFile { path: path.to_path_buf(), kind }),
            Err(error) if is_absent(&error) => Err(ReadError::NotFound { path: path.to_path_buf() }),
            Err(source) => Err(ReadError::Io { operation: "read", path: path.to_path_buf(), source }),
        }
    }

    fn write_durably(&self, path: &Path, content: &[u8]) -> Result<(), WriteError> {
        let path = checked(path).map_err(|path| WriteError::BadPath { path })?;
        let mut state = self.state();
        let error = match self.write(&mut state, path, content) {
            Err(error @ WriteError::NoSpace { .. }) if content.len() <= RESERVE_SERVES_BYTES => error,
            other => return other,
        };
        match self.drop_reserve() {
            Ok(true) => {
                log::warn!("disk full, used the reserve to write {}", path.display());
                self.write(&mut state, path, content)
            }
            Ok(false) => Err(error),
            Err(reserve_error) => {
                log::warn!("disk full, and the reserve cannot be freed: {reserve_error}");
                Err(error)
            }
        }
    }

    fn write_beside_reserve(&self, path: &Path, content: &[u8]) -> Result<(), WriteError> {
        let path = checked(path).map_err(|path| WriteError::BadPath { path })?;
        self.write(&mut self.state(), path, content)
    }

    fn remove(&self, path: &Path) -> Result<(), WriteError> {
        let path = checked(path).map_err(|path| WriteError::BadPath { path })?;
        let mut state = self.state();
        state.durable_directories.clear();
        self.doubt(self.remove_once(path))
    }

    fn set_aside(&self, path: &Path) -> Result<PathBuf, WriteError> {
        let path = checked(path).map_err(|path| WriteError::BadPath { path })?;
        self.doubt(self.move_aside(&mut self.state(), path, Aside::Moved))
    }

    fn keep_aside(&self, path: &Path) -> Result<PathBuf, WriteError> {
        let path = checked(path).map_err(|path| WriteError::BadPath { path })?;
        self.doubt(self.move_aside(&mut self.state(), path, Aside::Linked))
    }

    fn list(&self, directory: &Path, limit: usize) -> Result<Listing, ReadError> {
        let directory = match directory {
            root if root == Path::new("") => root,
            other => checked(other).map_err(|path| ReadError::BadPath { path })?,
        };
        let mut listing = match uninterrupted(|| self.disk.list(directory, limit)) {
            Ok(listing) => listing,
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                let kind = self.disk.kind(directory).unwrap_or(Kind::File);
                return Err(ReadError::NotAFile { path: directory.to_path_buf(), kind });
            }
            Err(error) if is_absent(&error) => {
                return Err(ReadError::NotFound { path: directory.to_path_buf() });
            }
            Err(source) => {
                return Err(ReadError::Io { operation: "list", path: directory.to_path_buf(), source });
            }
        };
        listing.entries.retain(|entry| !is_own(&directory.join(&entry.name)));
        listing.entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listing)
    }

    fn sweep(&self, keep: &dyn Fn(&Path) -> bool, limit: usize) -> SweepReport {
        let mut state = self.state();
        state.durable_directories.clear();
        let mut report = SweepReport::default();
        let mut directories = vec![PathBuf::new()];
        while let Some(directory) = directories.pop() {
            if report.examined >= limit || directory.components().count() > DEPTH_LIMIT {
                report.truncated = true;
                break;
            }
            directories.extend(self.sweep_directory(&directory, keep, limit, &mut report));
        }
        report
    }

    fn sweep_root(&self, limit: usize) -> SweepReport {
        let _one_writer = self.state();
        let mut report = SweepReport::default();
        self.sweep_directory(Path::new(""), &|_| true, limit, &mut report);
        report
    }

    fn ensure_reserve(&self, bytes: usize) -> Result<(), WriteError> {
        let reserve = Path::new(RESERVE_NAME);
        match self.disk.read(reserve, 0) {
            Ok(ReadOutcome::TooLarge(size)) if size >= bytes as u64 => return Ok(()),
            Ok(ReadOutcome::Content(_)) if bytes == 0 => return Ok(()),
            _ => {}
        }
        self.write(&mut self.state(), reserve, &incompressible(bytes))
    }

    fn free_reserve(&self) -> Result<bool, WriteError> {
        let _one_writer = self.state();
        self.drop_reserve()
    }
}

/// The causes of an error, each after a colon.
struct Cause<'a>(&'a dyn Error);

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

fn uninterrupted<T>(mut action: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut interruptions = 0;
    loop {
        match action() {
            Err(error)
                if error.kind() == io::ErrorKind::Interrupted && interruptions < INTERRUPTION_LIMIT =>
            {
                interruptions += 1;
            }
            other => return other,
        }
    }
}

/// The name cannot exist: a parent is missing, or is not a directory.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// `path`, if it stays below the root and is not one of our own names; else a copy for the error.
fn checked(path: &Path) -> Result<&Path, PathBuf> {
    let normal = path.components().all(|component| matches!(component, Component::Normal(_)));
    let ours = path.components().any(|component| is_own(Path::new(component.as_os_str())));
    let no_nul = !path.as_os_str().as_encoded_bytes().contains(&0);
    // `components` drops a trailing slash and `.`: such a path does not name what it seems to.
    let exact = path.components().collect::<PathBuf>().as_os_str() == path.as_os_str();
    if normal && exact && no_nul && !ours && !path.as_os_str().is_empty() {
        Ok(path)
    } else {
        Err(path.to_path_buf())
    }
}

fn is_temporary(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(TEMPORARY_PREFIX.as_bytes()))
}

fn is_own(path: &Path) -> bool {
    is_temporary(path) || path == Path::new(RESERVE_NAME)
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

pub(crate) fn aside_name(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(format!(".corrupt-{number}"));
    PathBuf::from(name)
}

fn first_difference(expected: &[u8], found: &[u8]) -> Option<usize> {
    let differing = expected.iter().zip(found).position(|(a, b)| a != b);
    differing.or_else(|| (expected.len() != found.len()).then(|| expected.len().min(found.len())))
}

/// Bytes that no file system can store in less space: a compressing one would otherwise reserve nothing.
fn incompressible(bytes: usize) -> Vec<u8> {
    // xorshift64 (Marsaglia 2003); any fixed nonzero seed will do.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_outside_the_root_or_reserved_are_refused() {
        let temporary = format!("a/{TEMPORARY_PREFIX}1-1");
        for bad in [
            "",
            "/etc/passwd",
            "..",
            "a/../b",
            "a/..",
            ".",
            "a/./b",
            "a/",
            "a//b",
            "a\0b",
            &temporary,
            RESERVE_NAME,
        ] {
            assert!(checked(Path::new(bad)).is_err(), "{bad:?}");
        }
        for good in ["a", "a/b/c", ".hidden", "a b", "..a", "a/.kedge-reserve.corrupt-1"] {
            assert!(checked(Path::new(good)).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn first_difference_is_found_at_every_length() {
        let check = |a: &[u8], b: &[u8], expect| assert_eq!(first_difference(a, b), expect, "{a:?} {b:?}");
        check(b"", b"", None);
        check(b"ab", b"ab", None);
        check(b"ab", b"a", Some(1));
        check(b"ab", b"abc", Some(2));
        check(b"ab", b"xb", Some(0));
    }

    #[test]
    fn the_reserve_does_not_compress() {
        let bytes = incompressible(4096);
        let mut counts = [0usize; 256];
        bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        assert!(counts.iter().all(|count| (1..64).contains(count)));
    }

    #[test]
    fn errors_name_operation_path_and_finding() {
        let path = PathBuf::from("checkpoints/7f3c");
        let full = WriteError::from_io("write", &path, io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(full.to_string(), "cannot write checkpoints/7f3c, the disk is full");
        assert!(full.source().is_some());
        let read_only =
            WriteError::from_io("create", &path, io::Error::from(io::ErrorKind::ReadOnlyFilesystem));
        assert!(matches!(read_only, WriteError::ReadOnly { .. }), "{read_only}");
        let large = ReadError::TooLarge { path: path.clone(), size: 9, limit: 8 };
        assert_eq!(large.to_string(), "checkpoints/7f3c has 9 bytes, expected at most 8");
        let kind = ReadError::NotAFile { path, kind: Kind::Fifo };
        assert_eq!(kind.to_string(), "checkpoints/7f3c is a named pipe, expected a file");
        let root =
            WriteError::from_io("create", Path::new(""), io::Error::from(io::ErrorKind::ReadOnlyFilesystem));
        assert_eq!(root.to_string(), "cannot create the data directory, the disk is read-only");
    }
}
