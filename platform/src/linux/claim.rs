//! A process's claim on a directory: two programs on the same records would undo each other's changes.
//!
//! What always holds: a claim ends with its process, however that ends; nothing is written, so it works on a full or read-only
//! disk. A holder that lives is respected. One that was killed and waits in the kernel for its disk cannot be: it will do
//! nothing more than the one call it is in, but it may hold the lock for hours.
//!
//! Leaves to others: what may be done without the claim. Nothing may be changed.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::sys::stat::{major, minor};

use super::{Roots, disk};

/// Longest list of locks read, in bytes: a line has about 60, a board holds a few.
const LOCKS_BYTES: usize = 256 * 1024;

/// Bit of SIGKILL in the masks of `/proc/PID/status`.
const SIGKILL_BIT: u64 = 1 << 8;

/// Takes a directory for this process alone, until the returned file is dropped; makes it if it is missing. None:
/// another process has it.
///
/// # Errors
/// The directory cannot be made or opened.
pub fn claim(directory: &Path) -> io::Result<Option<File>> {
    let file = open(directory)?;
    Ok(lock(&file)?.then_some(file))
}

/// The answer to [`Claim::take`].
#[derive(Debug)]
pub enum Claim {
    /// It is ours while this lives.
    Held(File),
    /// A process that lives has it.
    Taken,
    /// A process that was killed has it until the kernel lets it end.
    Awaited(Awaited),
}

/// A claim that becomes free when a process that was killed has ended.
#[derive(Debug)]
pub struct Awaited {
    file: File,
    /// The process that is ending.
    pub holder: u32,
}

impl Claim {
    /// Takes a directory, as [`claim`] does, and looks at who has it; `roots` is where `/proc` is.
    ///
    /// # Errors
    /// The directory cannot be made or opened.
    pub fn take(directory: &Path, roots: &Roots) -> io::Result<Self> {
        let file = open(directory)?;
        if lock(&file)? {
            return Ok(Self::Held(file));
        }
        let metadata = file.metadata()?;
        let locks = read_text(&roots.proc.join("locks"), LOCKS_BYTES);
        let holder = holder(&locks, metadata.dev(), metadata.ino()).filter(|pid| is_ending(*pid, roots));
        if let Some(holder) = holder {
            return Ok(Self::Awaited(Awaited { file, holder }));
        }
        // it may have ended between the two looks
        Ok(if lock(&file)? { Self::Held(file) } else { Self::Taken })
    }
}

impl Awaited {
    /// Whether it is ours now: the process has ended.
    pub fn is_ours(&self) -> bool {
        lock(&self.file).unwrap_or(false)
    }
}

fn open(directory: &Path) -> io::Result<File> {
    if !directory.is_dir() {
        disk::make_with_parents(directory)?;
    }
    let flags = (OFlag::O_DIRECTORY | OFlag::O_NONBLOCK).bits();
    OpenOptions::new().read(true).custom_flags(flags).open(directory)
}

fn lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn read_text(path: &Path, limit: usize) -> String {
    let bytes = File::open(path).and_then(|file| disk::read_up_to(file, limit)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The process that holds a lock on this inode, from the lines of `/proc/locks`:
/// `1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF`. None if it is in another PID namespace.
fn holder(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let place = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [_, "FLOCK", _, _, pid, at, ..] if *at == place => pid.parse().ok().filter(|pid| *pid > 0),
            _ => None,
        }
    })
}

/// Whether the process was killed and only waits for the kernel: its main thread has ended, or has SIGKILL before it.
fn is_ending(pid: u32, roots: &Roots) -> bool {
    let status = read_text(&roots.proc.join(pid.to_string()).join("status"), LOCKS_BYTES);
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let ended = field("State:").is_some_and(|state| state.starts_with(['Z', 'X']));
    let killed = ["SigPnd:", "ShdPnd:"]
        .into_iter()
        .filter_map(field)
        .any(|mask| u64::from_str_radix(mask, 16).is_ok_and(|mask| mask & SIGKILL_BIT != 0));
    ended || killed
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: &str = "\
1: POSIX  ADVISORY  WRITE 77 fe:00:42 0 EOF
2: FLOCK  ADVISORY  WRITE 90 fe:00:4242 0 EOF
2: -> FLOCK  ADVISORY  WRITE 91 fe:00:42 0 EOF
3: FLOCK  ADVISORY  WRITE 92 fe:00:42 0 EOF
4: FLOCK  ADVISORY  WRITE 0 fe:00:43 0 EOF
";

    #[test]
    fn holder_is_found_by_device_and_inode() {
        let device = nix::sys::stat::makedev(0xfe, 0);
        assert_eq!(holder(LOCKS, device, 42), Some(92));
        assert_eq!(holder(LOCKS, device, 43), None, "in another PID namespace");
        assert_eq!(holder(LOCKS, nix::sys::stat::makedev(0xfe, 1), 42), None);
        assert_eq!(holder("", device, 42), None);
    }

    #[test]
    fn own_lock_is_listed_by_the_kernel() {
        let directory = std::env::temp_dir().join(format!("kedge-claim-{}", std::process::id()));
        let held = claim(&directory).unwrap().expect("nobody else knows this directory");
        let found = held.metadata().unwrap();
        let locks = read_text(Path::new("/proc/locks"), LOCKS_BYTES);
        assert_eq!(holder(&locks, found.dev(), found.ino()), Some(std::process::id()), "{locks}");
        assert!(matches!(Claim::take(&directory, &Roots::default()), Ok(Claim::Taken)), "its holder lives");
        std::fs::remove_dir(&directory).unwrap();
    }

    #[test]
    fn killed_process_is_ending_and_living_one_is_not() {
        let roots = Roots::under(std::env::temp_dir().join(format!("kedge-ending-{}", std::process::id())));
        let check = |status: &str, expect: bool| {
            let directory = roots.proc.join("9");
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("status"), status).unwrap();
            assert_eq!(is_ending(9, &roots), expect, "{status}");
        };
        check("Name:\tkedge\nState:\tZ (zombie)\n", true);
        check("State:\tD (disk sleep)\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n", true);
        check("State:\tD (disk sleep)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n", true);
        check("State:\tD (disk sleep)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004020\n", false);
        check("State:\tS (sleeping)\n", false);
        check("", false);
        assert!(!is_ending(10, &roots), "one that is gone holds nothing");
        std::fs::remove_dir_all(roots.proc.parent().unwrap()).unwrap();
    }
}
