//! A directory for one story or one test, and waiting for something outside this process.
//!
//! Always holds: the directory is new, readable by its owner only, and removed when dropped, unless it is kept on purpose so
//! that somebody can look at it.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A directory of our own below the system's temporary directory.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    keep: bool,
}

impl Scratch {
    /// Makes `kedge-<purpose>-<pid>-<n>`.
    pub fn new(purpose: &str) -> io::Result<Scratch> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("kedge-{purpose}-{}-{count}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Scratch { path, keep: false }),
                // left by an earlier process with our id: not ours to use
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves it on disk when dropped.
    pub fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let keep = self.keep || std::thread::panicking() || std::env::var_os("KEDGE_KEEP_SCRATCH").is_some();
        if keep {
            eprintln!("kept for a look: {}", self.path.display());
        } else if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("remove {}: {error}", self.path.display());
        }
    }
}

/// How often [`poll`] looks.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Looks again and again until `probe` finds something or the limit has passed. For what cannot be waited for otherwise:
/// files and processes of others.
pub fn poll<T>(limit: Duration, probe: impl Fn() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = probe() {
            return Some(found);
        }
        if start.elapsed() > limit {
            return None;
        }
        std::thread::sleep(POLL_EVERY);
    }
}
