//! A process's claim on a directory: two programs on the same records would undo each other's changes.
//!
//! What always holds: a claim ends with its process, however that ends; nothing is written, so it works on a full or read-only
//! disk. A holder that lives is respected, also where the kernel's list does not tell for certain which lock is ours. One that
//! is ending and waits in the kernel for its disk cannot be: it will do nothing more than the one call it is in, but it may hold
//! the lock for hours.
//!
//! Leaves to others: what may be done without the claim. Nothing may be changed.

use std::fs::{self, File, OpenOptions, TryLockError};
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
    /// A process that is ending has it until the kernel lets it.
    Awaited(Awaited),
}

/// A claim that becomes free when a process that is ending has ended.
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
        let found = holders(directory, roots).unwrap_or_default();
        if let Some(first) = found.first()
            && found.iter().all(|holder| is_ending(holder.pid, roots))
        {
            return Ok(Self::Awaited(Awaited { file, holder: first.pid }));
        }
        // it may have ended between the two looks
        Ok(if lock(&file)? { Self::Held(file) } else { Self::Taken })
    }
}

/// A process that holds a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// 0: it is in another PID namespace.
    pub pid: u32,
    /// The kernel's list names the directory's device. It does not for a subvolume of btrfs: then every lock on an inode of this
    /// number, on whatever device, may be the one.
    pub is_certain: bool,
}

/// Who holds a directory, by the kernel's list: no lock is taken, so no program that starts meanwhile is kept out.
///
/// # Errors
/// The directory, or the list, cannot be read.
pub fn holders(directory: &Path, roots: &Roots) -> io::Result<Vec<Holder>> {
    let found = fs::metadata(directory)?;
    let path = roots.proc.join("locks");
    let locks = File::open(&path)
        .and_then(|file| disk::read_up_to(file, LOCKS_BYTES))
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
    Ok(holders_in(&String::from_utf8_lossy(&locks), found.dev(), found.ino()))
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
    open_directory(directory)
}

/// Nothing else is opened: opening a device can have effects.
pub(super) fn open_directory(path: &Path) -> io::Result<File> {
    let flags = (OFlag::O_DIRECTORY | OFlag::O_NONBLOCK).bits();
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

pub(super) fn lock(file: &File) -> io::Result<bool> {
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

/// The processes that hold a lock on this inode, from the lines of `/proc/locks`: `1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF`.
/// Those on other devices only if there is none on this one.
fn holders_in(locks: &str, device: u64, inode: u64) -> Vec<Holder> {
    let place = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    let any_device = format!(":{inode}");
    let of_line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [_, "FLOCK", _, _, pid, at, ..] if at.ends_with(&any_device) => {
                Some(Holder { pid: pid.parse().unwrap_or(0), is_certain: *at == place })
            }
            _ => None,
        }
    };
    let mut found: Vec<Holder> = locks.lines().filter_map(of_line).collect();
    if found.iter().any(|holder| holder.is_certain) {
        found.retain(|holder| holder.is_certain);
    }
    found
}

/// Whether the process only waits for the kernel to let it end: its main thread has ended, or has SIGKILL before it.
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
3: FLOCK  ADVISORY  WRITE 93 fe:02:42 0 EOF
4: FLOCK  ADVISORY  WRITE 0 fe:00:43 0 EOF
";

    #[test]
    fn holders_are_found_by_inode_and_device_if_possible() {
        let check = |minor: u64, inode: u64, expect: &[(u32, bool)]| {
            let found = holders_in(LOCKS, nix::sys::stat::makedev(0xfe, minor), inode);
            let found: Vec<_> = found.iter().map(|holder| (holder.pid, holder.is_certain)).collect();
            assert_eq!(found, expect, "fe:{minor:02}:{inode}");
        };
        check(0, 42, &[(92, true)]);
        // as on btrfs, whose files have another device than its locks
        check(1, 42, &[(92, false), (93, false)]);
        check(0, 43, &[(0, true)]);
        check(0, 2, &[]);
        assert_eq!(holders_in("nonsense\n", 0, 42), []);
    }

    #[test]
    fn one_holder_that_lives_is_respected_beside_one_that_ends() {
        let scratch = std::env::temp_dir().join(format!("kedge-holders-{}", std::process::id()));
        let (roots, directory) = (Roots::under(&scratch), scratch.join("state"));
        let held = claim(&directory).unwrap().expect("nobody else knows this directory");
        let inode = held.metadata().unwrap().ino();
        let write = |path: &str, text: String| {
            let path = roots.proc.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let lock = |pid: u32| format!("1: FLOCK  ADVISORY  WRITE {pid} 00:00:{inode} 0 EOF\n");
        write("8/status", "State:\tZ (zombie)\n".into());
        write("9/status", "State:\tS (sleeping)\n".into());
        let check = |pids: &[u32], expect: Option<u32>| {
            write("locks", pids.iter().copied().map(lock).collect());
            let awaited = match Claim::take(&directory, &roots).unwrap() {
                Claim::Awaited(awaited) => Some(awaited.holder),
                Claim::Taken => None,
                Claim::Held(_) => panic!("it is held here"),
            };
            assert_eq!(awaited, expect, "{pids:?}");
        };
        check(&[8], Some(8));
        check(&[8, 9], None);
        check(&[9, 8], None);
        // one of another PID namespace, of which nothing is known
        check(&[8, 0], None);
        check(&[], None);
        std::fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn own_lock_is_listed_by_the_kernel() {
        let directory = std::env::temp_dir().join(format!("kedge-claim-{}", std::process::id()));
        let held = claim(&directory).unwrap().expect("nobody else knows this directory");
        let found = held.metadata().unwrap();
        let listed = holders(&directory, &Roots::default()).unwrap();
        assert!(listed.iter().any(|holder| holder.pid == std::process::id()), "{listed:?}, {found:?}");
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
