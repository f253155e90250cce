//! A folder of this process for targets that need files, in memory where the machine has such a place.
//!
//! Always holds: it is empty when it is made and gone when the process ends in good order; a folder left by a process that
//! was killed is never used again, for its name holds a process id and the time.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The folder; gone with this value.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let path = base.join(format!("kedge-fuzz-{name}-{}-{nanos:x}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a fuzz target needs a folder for its files");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // what stays behind is a small folder in memory
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
