//! The real board: Linux.
//!
//! What always holds: no `unsafe`; every place read from is under one of [`Roots`], so tests run on a made-up machine;
//! everything read has a limit and nothing read can panic.
//!
//! Leaves to others: nothing is decided here.

mod clocks;
mod disk;
mod evidence;
mod host;
mod supervisor;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::exit::RecordedExit;
use crate::files::{DurableFiles, Files};

pub use clocks::LinuxClocks;
pub use disk::LinuxDisk;
pub use evidence::LinuxTraces;
pub use host::{LinuxHost, process_facts};
pub use supervisor::NotifySocket;

/// Files below `root` on the real disk. Touches nothing until asked; the root is made by the first write.
pub fn files(root: impl Into<PathBuf>) -> Arc<DurableFiles<LinuxDisk>> {
    Arc::new(DurableFiles::new(LinuxDisk::new(root)))
}

/// The previous exit as recorded in `files` and remembered by the machine.
pub fn previous_exit(files: Arc<dyn Files>, roots: Roots) -> RecordedExit<LinuxTraces> {
    RecordedExit::new(files, LinuxTraces::new(roots))
}

/// Where the machine describes itself.
#[derive(Clone, Debug)]
pub struct Roots {
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys`.
    pub sys: PathBuf,
    /// `/etc`.
    pub etc: PathBuf,
    /// `/usr/lib`.
    pub usr_lib: PathBuf,
    /// `/var/lib`.
    pub var_lib: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self::under("/")
    }
}

impl Roots {
    /// The usual places below `root`; a made-up machine for tests.
    pub fn under(root: impl AsRef<Path>) -> Self {
        let at = |place| root.as_ref().join(place);
        Self {
            proc: at("proc"),
            sys: at("sys"),
            etc: at("etc"),
            usr_lib: at("usr/lib"),
            var_lib: at("var/lib"),
        }
    }
}

/// Longest text taken from `/proc`, `/sys` or `/etc`, in bytes: os-release and meminfo are under 4 KiB.
const FACT_LIMIT: u64 = 16 * 1024;

/// The beginning of a small text, without white space around it.
fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FACT_LIMIT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim_matches(|c: char| c.is_whitespace() || c == '\0').to_string())
}
