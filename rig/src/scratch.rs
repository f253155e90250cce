//! A directory for one test or one run of a program, and waiting for something outside this process.
//!
//! Always holds: the directory is new, readable by its owner only, and removed when dropped; it is kept after
//! a panic, on request, and where `KEDGE_KEEP_SCRATCH` is set.

use std::io;
use std::ops::Deref;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A directory of our own. It dereferences to its path.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    keep: bool,
}

impl Scratch {
    /// Makes `kedge-<purpose>-<pid>-<n>` below the system's temporary directory.
    pub fn new(purpose: &str) -> io::Result<Scratch> {
        Scratch::below(&std::env::temp_dir(), purpose)
    }

    /// The same in memory where the machine has such a directory: for many files, and for disks whose flushes
    /// should cost nothing.
    pub fn in_memory(purpose: &str) -> io::Result<Scratch> {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Scratch::below(memory, purpose) } else { Scratch::new(purpose) }
    }

    fn below(parent: &Path, purpose: &str) -> io::Result<Scratch> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("kedge-{purpose}-{}-{count}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Scratch { path, keep: false }),
                // left by an earlier process with our id: not ours to use
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file below it, making missing directories; an existing file is replaced as a whole.
    ///
    /// # Panics
    /// It cannot be written: a test cannot continue without its files.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path.join(name);
        let temporary = path.with_added_extension("tmp");
        let written = std::fs::create_dir_all(path.parent().unwrap_or(&self.path))
            .and_then(|()| std::fs::write(&temporary, content))
            .and_then(|()| std::fs::rename(&temporary, &path));
        written.unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
        path
    }

    /// Keeps it on disk when dropped.
    pub fn keep(&mut self) {
        self.keep = true;
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let keep = self.keep || std::thread::panicking() || std::env::var_os("KEDGE_KEEP_SCRATCH").is_some();
        if keep {
            eprintln!("kept: {}", self.path.display());
        } else if let Err(error) = std::fs::remove_dir_all(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            eprintln!("remove {}: {error}", self.path.display());
        }
    }
}

/// How often [`poll`] calls its probe.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Calls `probe` until it returns something or the limit has passed. For events that cannot be awaited
/// otherwise: files and processes of others.
pub fn poll<T>(limit: Duration, probe: impl FnMut() -> Option<T>) -> Option<T> {
    poll_every(POLL_EVERY, limit, probe)
}

/// The same at another interval.
pub(crate) fn poll_every<T>(
    interval: Duration,
    limit: Duration,
    mut probe: impl FnMut() -> Option<T>,
) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = probe() {
            return Some(found);
        }
        if start.elapsed() > limit {
            return None;
        }
        std::thread::sleep(interval);
    }
}

/// [`poll`] for a condition that must become true.
///
/// # Panics
/// It did not become true within the limit.
#[track_caller]
pub fn wait_until(awaited: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let found = poll(limit, || is_so().then_some(()));
    assert!(found.is_some(), "waited {} s in vain for {awaited}", limit.as_secs());
}
