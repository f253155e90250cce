//! The kernel's figures of a process: memory, threads, descriptors, processor time.
//!
//! Always holds: numbers are the kernel's own, in the units given; a process that is gone is an error, not a
//! zero.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::RigError;

/// The kernel's unit of processor time for programs: `USER_HZ`, 100 on every Linux architecture we build for.
const TICKS_PER_SEC: f64 = 100.0;

/// Slightly longer than the interval at which an agent gives back its code.
const AGENT_TURN: Duration = Duration::from_secs(35);

/// One process.
pub struct Process {
    dir: PathBuf,
}

/// Memory in KiB.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Its share of all mapped pages.
    pub pss: f64,
    /// All mapped pages that are present.
    pub rss: f64,
    /// Present pages that no other process has.
    pub private: f64,
    /// The written part of `private`: a leak adds to this, whatever other processes share.
    pub dirty: f64,
}

impl Process {
    /// The process of this id.
    pub fn new(pid: i32) -> Process {
        Process { dir: Path::new("/proc").join(pid.to_string()) }
    }

    fn read(&self, name: &str) -> Result<String, RigError> {
        let path = self.dir.join(name);
        fs::read_to_string(&path).map_err(RigError::io("read", &path))
    }

    fn garbled(&self, name: &str, problem: &str) -> RigError {
        RigError::BadAnswer {
            command: format!("read {}/{name}", self.dir.display()),
            problem: problem.to_owned(),
        }
    }

    /// Reads `smaps_rollup`.
    pub fn memory(&self) -> Result<Memory, RigError> {
        let text = self.read("smaps_rollup")?;
        let field = |name: &str| {
            text.lines()
                .find_map(|line| {
                    line.strip_prefix(name)?.strip_prefix(':')?.trim().strip_suffix(" kB")?.parse().ok()
                })
                .ok_or_else(|| self.garbled("smaps_rollup", &format!("no {name}")))
        };
        let dirty: f64 = field("Private_Dirty")?;
        Ok(Memory { pss: field("Pss")?, rss: field("Rss")?, private: field("Private_Clean")? + dirty, dirty })
    }

    /// The maximum over [`AGENT_TURN`]: a single reading may be just after the agent gave back its code, or
    /// just before.
    pub fn most_memory(&self) -> Result<Memory, RigError> {
        let end = Instant::now() + AGENT_TURN;
        let mut most = self.memory()?;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(500));
            let memory = self.memory()?;
            if memory.pss > most.pss {
                most = memory;
            }
        }
        Ok(most)
    }

    /// The number of entries in a directory of the process: `task`, `fd`.
    pub fn count(&self, name: &str) -> Result<usize, RigError> {
        let path = self.dir.join(name);
        Ok(fs::read_dir(&path).map_err(RigError::io("read", &path))?.count())
    }

    /// Processor time so far, in user and system mode, in seconds; includes threads that ended.
    pub fn cpu_secs(&self) -> Result<f64, RigError> {
        self.ticks(2)
    }

    /// The same, including that of all child processes that have ended.
    pub fn cpu_secs_with_children(&self) -> Result<f64, RigError> {
        self.ticks(4)
    }

    /// The sum of the first `count` of: user, system, children's user, children's system.
    fn ticks(&self, count: usize) -> Result<f64, RigError> {
        let text = self.read("stat")?;
        let after_name = text.rsplit(')').next().unwrap_or_default();
        let fields = after_name.split_whitespace().skip(11).take(count);
        let ticks: Vec<f64> = fields.filter_map(|field| field.parse().ok()).collect();
        if ticks.len() < count {
            return Err(self.garbled("stat", "no times in it"));
        }
        Ok(ticks.iter().sum::<f64>() / TICKS_PER_SEC)
    }

    /// How often its present threads gave up a processor because they had to wait.
    pub fn waits(&self) -> Result<u64, RigError> {
        let path = self.dir.join("task");
        let mut waits = 0;
        for task in fs::read_dir(&path).map_err(RigError::io("read", &path))?.flatten() {
            let text = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            waits += text
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse::<u64>().ok())
                .unwrap_or(0);
        }
        Ok(waits)
    }
}

/// Bytes of all files in a directory, without its subdirectories.
pub fn bytes_in(dir: &Path) -> Result<u64, RigError> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir).map_err(RigError::io("read", dir))?.flatten() {
        if let Ok(metadata) = entry.metadata() {
            bytes += if metadata.is_file() { metadata.len() } else { 0 };
        }
    }
    Ok(bytes)
}

/// Number and bytes of the files below a directory, including subdirectories. Files that are removed
/// meanwhile are not counted.
#[must_use]
pub fn files_below(dir: &Path) -> (usize, u64) {
    let (mut files, mut bytes) = (0, 0);
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => {
                let (more, their_bytes) = files_below(&entry.path());
                files += more;
                bytes += their_bytes;
            }
            Ok(metadata) => {
                files += 1;
                bytes += metadata.len();
            }
            Err(_) => {}
        }
    }
    (files, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_can_be_measured() {
        let process = Process::new(std::process::id().try_into().unwrap());
        let memory = process.memory().unwrap();
        assert!(
            memory.rss >= memory.pss && memory.pss >= memory.private && memory.private >= memory.dirty,
            "{memory:?}"
        );
        assert!(process.count("task").unwrap() >= 1);
        let own = process.cpu_secs().unwrap();
        assert!(own >= 0.0 && process.cpu_secs_with_children().unwrap() >= own);
        assert!(Process::new(i32::MAX).memory().is_err());
    }

    #[test]
    fn files_are_counted_at_any_depth() {
        let scratch = crate::scratch::Scratch::new("files").unwrap();
        fs::create_dir_all(scratch.path().join("a/b")).unwrap();
        for (path, bytes) in [("x", 10), ("a/y", 20), ("a/b/z", 0)] {
            fs::write(scratch.path().join(path), vec![7; bytes]).unwrap();
        }
        assert_eq!(files_below(scratch.path()), (3, 30));
        assert_eq!(files_below(&scratch.path().join("none")), (0, 0));
    }
}
