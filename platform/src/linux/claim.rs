//! A process's claim on a directory: two programs on the same records would undo each other's changes.
//!
//! Always holds: a claim ends with its process, however that ends; nothing is written, so it works on a full
//! or read-only disk. A live holder is respected, even where the kernel's list does not show for certain
//! which lock is on our directory. A holder that is ending but waits in the kernel for its disk need not be
//! respected: it will only complete the call in progress, but it may hold the lock for hours.
//!
//! Leaves to others: the acts that are allowed without the claim. Without it nothing may be changed.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::sys::stat::{major, minor};

use super::{Roots, disk};

/// Longest list of locks that is read, in bytes: a line has about 60, a board holds a few.
const LOCKS_BYTES: usize = 256 * 1024;

/// Bit of SIGKILL in the masks of `/proc/PID/status`.
const SIGKILL_BIT: u64 = 1 << 8;

/// Claims a directory for this process alone, until the returned file is dropped; makes it if it is missing.
/// `None` if another process has it.
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
    /// It is ours while this value exists.
    Held(File),
    /// Another live process has it.
    Taken,
    /// A process that is ending has it until the kernel lets that process end.
    Awaited(Awaited),
}

/// A claim that becomes free when the ending process has ended.
#[derive(Debug)]
pub struct Awaited {
    file: File,
    /// The ending process.
    pub holder: u32,
}

impl Claim {
    /// Claims a directory, as [`claim`] does, and examines its holder; `roots` has the path of `/proc`.
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
        // the holder may have ended between the two checks
        Ok(if lock(&file)? { Self::Held(file) } else { Self::Taken })
    }
}

/// A process that holds a directory's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// 0 if it is in another PID namespace.
    pub pid: u32,
    /// True if the kernel's list shows the directory's device. For a subvolume of btrfs it does not: then any
    /// lock on an inode of this number, on whatever device, may be the one.
    pub is_certain: bool,
}

/// The processes that hold a directory, from the kernel's list: this takes no lock, so it does not exclude a
/// program that starts meanwhile.
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
    /// True once the directory is ours, because the process has ended.
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

/// Opens only a directory, because opening a device can have effects.
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

/// The processes that hold a lock on this inode, from the lines of `/proc/locks`: `1: FLOCK  ADVISORY  WRITE
/// 1234 fd:01:5678 0 EOF`. Locks on other devices count only if there are none on this one.
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

/// True if the process only waits for the kernel to let it end: its main thread has ended, or has a pending
/// SIGKILL.
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
        // as on btrfs, where files have another device number than their locks
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
        // a process in another PID namespace cannot be examined
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
