//! The durable copy of all objects. Memory answers every read; this is what survives.
//!
//! [`Store`] is small on purpose: load everything once, then commit batches, each all or nothing. There is one caller, the
//! writer thread ([`writer`]), so an implementation needs no locks. Another engine (etcd) fits behind the same trait.
//! Revisions are the writer's business: the store only keeps two marks, the *reserved* one (no revision above it was ever
//! handed out) and, after a clean close, the exact one.

pub mod backup;
mod rows;
pub mod sqlite;
pub mod writer;

use std::fmt;
use std::path::PathBuf;

pub use kedge_hub_core::state::{Change, Marks, Record};

/// The layout that this code reads and writes.
pub const SCHEMA_VERSION: i64 = 2;

/// A durable copy.
pub trait Store: Send {
    /// The marks and every object, once after open.
    fn load(&mut self, each: &mut dyn FnMut(Record)) -> Result<Marks, StoreError>;
    /// Makes the changes, and the new reserved mark if there is one, durable: all of them or none. Forgets the clean mark.
    fn commit(&mut self, changes: &[Change<'_>], reserved: Option<u64>) -> Result<(), StoreError>;
    /// Records a clean close at this revision.
    fn close(&mut self, revision: u64) -> Result<(), StoreError>;
}

/// The engine refused; nothing of the batch is durable.
#[derive(Debug)]
pub struct StoreError {
    /// The operation, its file, and the engine's error.
    pub message: String,
}

impl fmt::Display for StoreError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {}

/// Why a data directory could not be opened. Each text says what to do.
#[derive(Debug)]
pub enum OpenError {
    /// The directory or its lock file cannot be made.
    Directory(PathBuf, std::io::Error),
    /// Another process has it.
    Locked(PathBuf),
    /// The file is damaged or not a store of ours.
    Damaged(PathBuf, String),
    /// Written by a newer hub.
    TooNew(PathBuf, i64),
    /// The engine failed.
    Engine(StoreError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Directory(path, error) => {
                write!(out, "cannot use data directory {}: {error}", path.display())
            }
            OpenError::Locked(path) => {
                write!(out, "another process holds {}: one hub per data directory", path.display())
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
