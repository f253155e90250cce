//! Removes and measures whole trees of files of others: files that containers wrote, or that came with
//! images.
//!
//! Always holds: however deep or wide a tree is, removing it takes two descriptors, a bounded list of names
//! and no depth of stack, because a directory's subdirectories are moved up before it is removed. No link is
//! followed, and no directory on which something is mounted within the tree is entered or even examined,
//! because that may hang for ever. To continue an interrupted removal, call it again. Files marked immutable
//! or append-only are removed as well, so a container cannot keep its files that way.
//!
//! Leaves to others: the decision to remove.

use std::collections::{HashSet, VecDeque};
use std::ffi::{CStr, CString};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::dir::{Dir, OwningIter, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::linux::kept;

/// Most names that are listed at once.
const BATCH: usize = 1024;
/// Prefix of the name of a tree that waits for its removal; a number follows.
const GONE: &str = ".gone-";
/// Most leftover trees of an earlier run that are removed: a hundred times the number that a node should
/// have.
const LEFT: usize = 10_000;

/// Removes a tree or a file; it may be missing.
///
/// # Errors
/// Something is left: the first cause. Everything else is removed.
pub fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => empty(path).and_then(|()| unmarked(path, || fs::remove_dir(path))),
        Ok(_) => unmarked(path, || fs::remove_file(path)),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// If the file's or its directory's marks forbid the act, removes them and repeats it.
fn unmarked(path: &Path, act: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let is_unmarked = || {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return false };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let Ok(name) = CString::new(name.as_encoded_bytes()) else { return false };
        Dir::open(parent, flags(), Mode::empty()).is_ok_and(|parent| kept::unmark_in(parent.as_fd(), &name))
    };
    match act() {
        Err(error) if error.raw_os_error() == Some(Errno::EPERM as i32) && is_unmarked() => act(),
        done => done,
    }
}

/// The same within a tree, where the directory may be marked, too.
fn freed(directory: &Dir, name: &CStr, act: impl Fn() -> nix::Result<()>) -> nix::Result<()> {
    match act() {
        // both, because either may forbid it
        Err(Errno::EPERM) if kept::unmark(directory.as_fd()) | kept::unmark_in(directory.as_fd(), name) => {
            act()
        }
        done => done,
    }
}

/// Subdirectories are moved to the top, so no path down is longer than two levels.
fn empty(path: &Path) -> io::Result<()> {
    let mut top = Dir::open(path, flags(), Mode::empty())?;
    let mut tree = Tree { device: fstat(top.as_fd())?.st_dev, next: 0 };
    loop {
        let names = batch(&mut top)?;
        if names.is_empty() {
            return Ok(());
        }
        let (mut failed, mut has_moved) = (None, false);
        for (name, kind) in names {
            match tree.remove_entry(&top, &name, kind) {
                Ok(()) => has_moved = true,
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        if let Some(error) = failed.filter(|_| !has_moved) {
            return Err(error.into());
        }
    }
}

struct Tree {
    device: nix::libc::dev_t,
    /// The next number for the names of directories that are moved up.
    next: u64,
}

impl Tree {
    fn remove_entry(&mut self, top: &Dir, name: &CStr, kind: Option<Type>) -> nix::Result<()> {
        if kind != Some(Type::Directory) {
            match freed(top, name, || unlinkat(top, name, UnlinkatFlags::NoRemoveDir)) {
                Err(Errno::EISDIR) => {}
                Err(Errno::ENOENT) => return Ok(()),
                done => return done,
            }
        }
        self.flatten(top, name)?;
        freed(top, name, || unlinkat(top, name, UnlinkatFlags::RemoveDir))
    }

    /// Empties a directory of the top one: its files are removed, its subdirectories are moved beside it.
    fn flatten(&mut self, top: &Dir, name: &CStr) -> nix::Result<()> {
        // a mounted file system must keep its content, also where no mount is listed, as with a subvolume
        let mut directory = Dir::from_fd(open_unmounted(top, name)?)?;
        if fstat(directory.as_fd())?.st_dev != self.device {
            return Err(Errno::EXDEV);
        }
        loop {
            let names = batch(&mut directory)?;
            if names.is_empty() {
                return Ok(());
            }
            for (name, kind) in names {
                if kind != Some(Type::Directory) {
                    let unlink = || unlinkat(&directory, name.as_c_str(), UnlinkatFlags::NoRemoveDir);
                    match freed(&directory, &name, unlink) {
                        Err(Errno::EISDIR) => {}
                        Err(Errno::ENOENT) => continue,
                        done => {
                            done?;
                            continue;
                        }
                    }
                }
                self.move_up(&directory, &name, top)?;
            }
        }
    }

    /// Moves it to an unused name; an empty directory of that name is replaced, which equals its removal.
    fn move_up(&mut self, from: &Dir, name: &CStr, top: &Dir) -> nix::Result<()> {
        loop {
            self.next += 1;
            let gone = format!("{GONE}{}", self.next);
            match freed(from, name, || renameat(from, name, top, gone.as_str())) {
                // the target may be marked as well
                Err(Errno::EPERM) if kept::unmark(top.as_fd()) => {}
                Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR) => {}
                done => return done,
            }
        }
    }
}

/// Opens a directory, unless something is mounted there (`EXDEV`).
fn open_unmounted(directory: impl AsFd, name: &CStr) -> nix::Result<OwnedFd> {
    let how = OpenHow::new().flags(flags()).resolve(ResolveFlag::RESOLVE_NO_XDEV);
    openat2(directory, name, how)
}

fn flags() -> OFlag {
    OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC
}

/// The first names of a directory, read from its beginning: those that were listed before have been removed.
fn batch(directory: &mut Dir) -> nix::Result<Vec<(CString, Option<Type>)>> {
    let mut names = Vec::new();
    for entry in directory.iter() {
        let entry = entry?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        names.push((entry.file_name().to_owned(), entry.file_type()));
        if names.len() == BATCH {
            break;
        }
    }
    Ok(names)
}

/// The disk usage of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Allocated blocks count, so holes in a file do not.
    pub bytes: u64,
    pub inodes: u64,
}

/// Depth to which directories are measured, each level with two descriptors: deeper ones are not counted.
const DEEPEST: usize = 128;
/// Most files with several names that are remembered, so that each counts once; beyond that each name counts.
const SHARED_FILES: usize = 65_536;
/// After this many entries a walk rests for as long as they took: so it takes half a processor at most.
const REST_AFTER: u32 = 256;
const LONGEST_REST: Duration = Duration::from_millis(100);

/// Measures a tree, only on its own file system and through no link; files that are removed meanwhile are
/// skipped. It ends after `most` entries: then the tree is at least as large as the result.
///
/// # Errors
/// It is not a directory, or cannot be read.
pub fn measure(path: &Path, most: u64) -> io::Result<Size> {
    let top = opened(nix::fcntl::open(path, flags(), Mode::empty())?)?;
    let found = fstat(&top.0)?;
    let mut size = Size::default();
    size.add(&found);
    let mut shared = HashSet::new();
    let mut open = vec![top];
    let (mut since_rest, mut began) = (0, Instant::now());
    while let Some((directory, entries)) = open.last_mut() {
        let Some(Ok(entry)) = entries.next() else {
            open.pop();
            continue;
        };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let below = (entry.file_type() == Some(Type::Directory)).then(|| open_unmounted(&*directory, name));
        let found_there = match &below {
            // on another file system
            Some(Err(Errno::EXDEV)) => continue,
            Some(Ok(below)) => fstat(below),
            // removed meanwhile, or of a type that the listing does not report
            Some(Err(_)) | None => fstatat(&*directory, name, AtFlags::AT_SYMLINK_NOFOLLOW),
        };
        let Ok(at) = found_there else { continue };
        let is_directory = at.st_mode & nix::libc::S_IFMT == nix::libc::S_IFDIR;
        let is_shared = !is_directory && at.st_nlink > 1 && shared.len() < SHARED_FILES;
        if at.st_dev != found.st_dev || (is_shared && !shared.insert(at.st_ino)) {
            continue;
        }
        size.add(&at);
        if size.inodes >= most {
            break;
        }
        let below = below.or_else(|| is_directory.then(|| open_unmounted(&*directory, name)));
        if let Some(Ok(below)) = below.filter(|_| open.len() < DEEPEST)
            // another directory may have its name by now
            && fstat(&below).is_ok_and(|below| below.st_dev == found.st_dev)
            && let Ok(below) = opened(below)
        {
            open.push(below);
        }
        since_rest += 1;
        if since_rest == REST_AFTER {
            std::thread::sleep(began.elapsed().min(LONGEST_REST));
            (since_rest, began) = (0, Instant::now());
        }
    }
    Ok(size)
}

/// A directory, opened both for lookups and for listing.
fn opened(directory: OwnedFd) -> io::Result<(OwnedFd, OwningIter)> {
    let entries = Dir::from_fd(directory.try_clone()?)?.into_iter();
    Ok((directory, entries))
}

impl Size {
    fn add(&mut self, found: &FileStat) {
        // `st_blocks` counts 512 bytes each, whatever the file system's block size
        let bytes = u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(512);
        self.bytes = self.bytes.saturating_add(bytes);
        self.inodes += 1;
    }
}

/// Removes trees one after another in a thread of its own: the caller does not wait for the disk. The thread
/// ends with the last tree, so its stack costs nothing between removals.
#[derive(Debug)]
pub struct Removal {
    directory: PathBuf,
    queue: Arc<Mutex<Queue>>,
    next: u64,
}

#[derive(Debug, Default)]
struct Queue {
    trees: VecDeque<PathBuf>,
    /// True while a thread removes them.
    has_thread: bool,
}

impl Removal {
    /// For trees on the file system of this directory, to which they are moved until they are removed; others
    /// are removed at once. Also removes leftovers of an earlier run there.
    pub fn open(directory: &Path) -> Self {
        let removal = Self { directory: directory.to_path_buf(), queue: Arc::default(), next: 0 };
        for entry in fs::read_dir(directory).into_iter().flatten().flatten().take(LEFT) {
            if entry.file_name().as_encoded_bytes().starts_with(GONE.as_bytes())
                && let Err(error) = removal.enqueue(entry.path())
            {
                log::warn!("remove leftover {}: {error}", entry.path().display());
            }
        }
        removal
    }

    /// Removes a tree: when this returns, its name is free. It may be missing.
    ///
    /// # Errors
    /// It cannot be renamed, because something is mounted there.
    pub fn take(&mut self, path: &Path) -> io::Result<()> {
        loop {
            self.next += 1;
            let gone = self.directory.join(format!("{GONE}{}", self.next));
            match unmarked(path, || fs::rename(path, &gone)) {
                Ok(()) => return self.enqueue(gone),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                // on another file system, or a directory of an overlay's lower layer
                Err(error) if error.raw_os_error() == Some(Errno::EXDEV as i32) => return remove(path),
                // the name is taken by an earlier run's tree, or another one's
                Err(error)
                    if [Errno::EEXIST, Errno::ENOTEMPTY, Errno::ENOTDIR]
                        .iter()
                        .any(|taken| error.raw_os_error() == Some(*taken as i32)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn enqueue(&self, gone: PathBuf) -> io::Result<()> {
        let mut queue = locked(&self.queue);
        if !queue.has_thread {
            let trees = Arc::clone(&self.queue);
            let thread = std::thread::Builder::new().name("removal".into());
            if thread.spawn(move || remove_all(&trees)).is_err() {
                drop(queue);
                return remove(&gone);
            }
            queue.has_thread = true;
        }
        queue.trees.push_back(gone);
        Ok(())
    }
}

fn locked(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends when no tree is left; the next one gets another thread.
fn remove_all(queue: &Mutex<Queue>) {
    loop {
        let mut waiting = locked(queue);
        let Some(tree) = waiting.trees.pop_front() else {
            waiting.has_thread = false;
            return;
        };
        drop(waiting);
        if let Err(error) = remove(&tree) {
            // the next start removes it
            log::warn!("remove {}: {error}", tree.display());
        }
    }
}
