//! The durable copy of all objects. Memory answers every read; only this copy survives a restart.
//!
//! [`Store`] is small on purpose: load everything once, then commit batches, each all or nothing. There is
//! one caller, the writer thread ([`writer`]), so an implementation needs no locks. Another engine (etcd)
//! fits behind the same trait. Revisions are assigned by the writer: the store only keeps two marks for each
//! space, the *reserved* one (no revision above it was ever handed out) and, after a clean close, the exact
//! one.

pub mod backup;
pub mod disk;
pub mod health;
pub mod last_backup;
pub(crate) mod look;
pub mod marker;
mod reserve;
mod rows;
pub mod series;
pub mod sqlite;
mod trailer;
pub mod writer;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

pub use kedge_hub_core::state::{Change, Marks, Record, Sort, Spaces};

/// The layout that this code reads and writes.
pub const SCHEMA_VERSION: i64 = 4;

/// A durable copy.
pub trait Store: Send {
    /// The marks and every object, once after open.
    fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<Spaces<Marks>, StoreError>;
    /// Makes the changes, and the new reserved marks if there are any, durable: all of them or none. New
    /// marks replace the clean ones.
    fn commit(&mut self, changes: &[Change<'_>], reserved: Option<Spaces<u64>>) -> Result<(), StoreError>;
    /// Records a clean close at these revisions.
    fn close(&mut self, revisions: Spaces<u64>) -> Result<(), StoreError>;

    /// Commits changes that only free room: it may use the reserve.
    fn commit_from_reserve(
        &mut self,
        changes: &[Change<'_>],
        reserved: Option<Spaces<u64>>,
    ) -> Result<(), StoreError> {
        self.commit(changes, reserved)
    }
    /// Work after each commit, for which no acknowledgement waits.
    fn tidy(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
    /// Called after a failure: checks that changes can be made durable again. Proves it by a flush; restores
    /// the reserve that [`Store::commit_from_reserve`] used.
    fn probe(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
    /// Called after a failed commit: checks that small changes can be made durable now.
    fn trial(&mut self) -> Result<(), StoreError> {
        self.probe()
    }
    /// The reason why the store has accepted no changes from the start.
    fn unwritable(&self) -> Option<&StoreError> {
        None
    }
}

/// The engine refused.
#[derive(Debug, Clone)]
pub struct StoreError {
    pub sort: Sort,
    /// True if the batch may be durable all the same. Otherwise no part of it is.
    pub uncertain: bool,
    /// The operation, its file, and the engine's error.
    pub message: String,
}

impl StoreError {
    /// An error after which no part of a batch is durable.
    pub fn certain(sort: Sort, message: impl Into<String>) -> StoreError {
        StoreError { sort, uncertain: false, message: message.into() }
    }

    /// The error of a file beside the store; `None` if the disk is not at fault.
    pub(crate) fn of_file(tried: &str, path: &Path, error: &io::Error) -> Option<StoreError> {
        let message = format!("cannot {tried} {}: {error}", path.display());
        sort_of(error).map(|sort| StoreError::certain(sort, message))
    }
}

/// `EIO`, for which the standard library has no kind.
const EIO: i32 = 5;

/// The disk fault that the operating system reports; `None` for other errors, such as permissions.
pub(crate) fn sort_of(error: &io::Error) -> Option<Sort> {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some(Sort::Full),
        io::ErrorKind::ReadOnlyFilesystem => Some(Sort::ReadOnly),
        _ if error.raw_os_error() == Some(EIO) => Some(Sort::Io),
        _ => None,
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {}

/// The reason why a data directory could not be opened. Each text tells the operator what to do.
#[derive(Debug)]
pub enum OpenError {
    /// The directory or its lock file cannot be created.
    Directory(PathBuf, std::io::Error),
    /// A file in it cannot be used, or something else has its path.
    File(PathBuf, std::io::Error),
    /// The directory had a store, and the present one is a different one. `what` describes the present one
    /// and the marker; `denied` is the number of denials.
    Lost { path: PathBuf, what: String, denied: usize },
    /// The file cannot be restored.
    NoBackup(PathBuf, String),
    /// Another process holds the directory's lock.
    Locked(PathBuf),
    /// The file is damaged or was not written by a hub.
    Damaged(PathBuf, String),
    /// Written by a newer hub.
    TooNew(PathBuf, i64),
    /// The engine failed.
    Engine(StoreError),
}

impl OpenError {
    /// The fault if the disk cannot be written: the hub starts all the same, because everything else may
    /// work. `None` if it is another error.
    pub(crate) fn disk_fault(&self) -> Option<StoreError> {
        match self {
            OpenError::Engine(error) => match error.sort {
                Sort::Full | Sort::FullAtStart | Sort::ReadOnly | Sort::Io | Sort::Flush => {
                    Some(error.clone())
                }
                Sort::Damaged | Sort::Busy | Sort::Other => None,
            },
            OpenError::Directory(path, error) => StoreError::of_file("write", path, error),
            OpenError::File(..)
            | OpenError::Lost { .. }
            | OpenError::NoBackup(..)
            | OpenError::Locked(_)
            | OpenError::Damaged(..)
            | OpenError::TooNew(..) => None,
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Directory(path, error) => {
                write!(out, "cannot use data directory {}: {error}", path.display())
            }
            OpenError::File(path, error) => write!(out, "cannot use {}: {error}", path.display()),
            OpenError::Lost { path, what, denied } => write!(
                out,
                "store {} {what}; not going on without it, because nodes would meet resourceVersions twice and {denied} \
                 revoked credentials would count again: restore a backup, or a copy of a store, with `kedge-hub restore FILE`, or \
                 begin anew with `kedge-hub restore --empty`: both raise the versions and keep who is denied",
                path.display()
            ),
            OpenError::NoBackup(path, what) => {
                write!(out, "cannot restore {}: {what}; nothing was changed", path.display())
            }
            OpenError::Locked(path) => {
                write!(
                    out,
                    "another process holds {}: one hub per data directory; stop it (systemctl stop kedge-hub) or give another \
                     --data-dir",
                    path.display()
                )
            }
            OpenError::Damaged(path, what) => write!(
                out,
                "store {} is damaged: {what}; keep a copy, then restore a backup with `kedge-hub restore FILE`, or save \
                 what is left with `sqlite3 {} .recover` into a new file of that name",
                path.display(),
                path.display()
            ),
            OpenError::TooNew(path, version) => write!(
                out,
                "store {} has schema version {version}, this hub knows {}: use the newer hub that wrote it, or restore a backup \
                 that an older one made",
                path.display(),
                SCHEMA_VERSION
            ),
            OpenError::Engine(error) => error.fmt(out),
        }
    }
}

impl std::error::Error for OpenError {}
