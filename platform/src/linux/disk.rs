//! The real disk: one system call per operation, all relative to open directories.
//!
//! Always holds: below the root no link is followed; nothing that blocks or has side effects is opened;
//! descriptors are closed on exec. The root itself may be a link (people move data directories), is opened
//! anew for each call, and may be missing.
//!
//! Leaves to others: the order of calls, retries, and the consequences of failures: `files`.

use std::ffi::{OsStr, OsString};
use std::fs::{File, FileType};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Component, Path, PathBuf};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{
    AtFlags, FallocateFlags, OFlag, OpenHow, PosixFadviseAdvice, ResolveFlag, fallocate, open, openat,
    openat2, posix_fadvise, renameat,
};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use crate::files::{Entry, Kind, Listing, Operations, ReadOutcome};

/// Flags of all calls that open something here.
const CAREFUL: OFlag =
    OFlag::O_CLOEXEC.union(OFlag::O_NOFOLLOW).union(OFlag::O_NONBLOCK).union(OFlag::O_NOCTTY);

/// Gives a file this size and all its room on the disk, without writing its content.
///
/// # Errors
/// No room; `Unsupported` where the file system cannot do it: then write the content.
pub fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    let bytes = bytes.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok(fallocate(file, FallocateFlags::empty(), 0, bytes)?)
}

/// The disk below one directory.
#[derive(Clone, Debug)]
pub struct LinuxDisk {
    root: PathBuf,
}

impl LinuxDisk {
    /// Operations below `root`, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn open_root(&self) -> io::Result<OwnedFd> {
        let flags = OFlag::O_CLOEXEC | OFlag::O_DIRECTORY | OFlag::O_RDONLY;
        Ok(open(&self.root, flags, Mode::empty())?)
    }

    fn open_directory(&self, path: &Path) -> io::Result<OwnedFd> {
        let mut directory = self.open_root()?;
        for component in path.components() {
            directory = step_into(&directory, component)?;
        }
        Ok(directory)
    }

    /// The open directory that holds `path`, and its name there.
    fn locate<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let name = path.file_name().ok_or(Errno::EINVAL)?;
        Ok((self.open_directory(path.parent().unwrap_or(Path::new("")))?, name))
    }
}

fn step_into(directory: &OwnedFd, component: Component<'_>) -> io::Result<OwnedFd> {
    let Component::Normal(name) = component else {
        return Err(Errno::EINVAL.into());
    };
    match openat(directory, name, CAREFUL | OFlag::O_DIRECTORY | OFlag::O_RDONLY, Mode::empty()) {
        Ok(next) => Ok(next),
        // A link in place of a directory: treated like any other obstacle.
        Err(Errno::ELOOP) => Err(Errno::ENOTDIR.into()),
        Err(error) => Err(error.into()),
    }
}

fn kind_of(stat: &FileStat) -> Kind {
    match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => Kind::File,
        SFlag::S_IFDIR => Kind::Directory,
        SFlag::S_IFLNK => Kind::Symlink,
        SFlag::S_IFIFO => Kind::Fifo,
        SFlag::S_IFSOCK => Kind::Socket,
        _ => Kind::Device,
    }
}

pub(super) fn kind_of_type(kind: FileType) -> Kind {
    match kind {
        kind if kind.is_file() => Kind::File,
        kind if kind.is_dir() => Kind::Directory,
        kind if kind.is_symlink() => Kind::Symlink,
        kind if kind.is_fifo() => Kind::Fifo,
        kind if kind.is_socket() => Kind::Socket,
        _ => Kind::Device,
    }
}

fn kind_at(directory: &OwnedFd, name: &OsStr) -> io::Result<Kind> {
    Ok(kind_of(&fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)?))
}

/// Makes the directory that `path` names and its missing parents, each name durable. Links are followed,
/// because this is the root.
pub(super) fn make_with_parents(path: &Path) -> io::Result<()> {
    if !path.is_dir() {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty() && *parent != path);
        parent.map_or(Ok(()), make_with_parents)?;
        match std::fs::DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    // Also when it existed: the process that made it may have been killed before the sync. `..` is the real
    // parent, even if the path is a link.
    sync_directory(&File::open(path.join(".."))?)
}

fn sync_directory(directory: &File) -> io::Result<()> {
    match directory.sync_all() {
        // fsync(2): this file system does not support it for directories (9p, some FUSE). Refusing every
        // write would make the node worse without making its disk better.
        Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => Ok(()),
        other => other,
    }
}

impl Operations for LinuxDisk {
    type Handle = File;

    fn make_root(&self) -> io::Result<()> {
        make_with_parents(&self.root)
    }

    fn kind(&self, path: &Path) -> io::Result<Kind> {
        let (directory, name) = self.locate(path)?;
        kind_at(&directory, name)
    }

    fn read(&self, path: &Path, limit: usize) -> io::Result<ReadOutcome> {
        let (directory, name) = self.locate(path)?;
        // Examined before it is opened: opening a device can have effects (a watchdog starts to run).
        match kind_at(&directory, name)? {
            Kind::File => {}
            other => return Ok(ReadOutcome::NotAFile(other)),
        }
        let file = File::from(openat(&directory, name, CAREFUL | OFlag::O_RDONLY, Mode::empty())?);
        let stat = fstat(&file)?;
        if kind_of(&stat) != Kind::File {
            return Ok(ReadOutcome::NotAFile(kind_of(&stat)));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if size > limit as u64 {
            return Ok(ReadOutcome::TooLarge(size));
        }
        let content = read_up_to(file, limit.saturating_add(1))?;
        if content.len() > limit {
            return Ok(ReadOutcome::TooLarge(content.len() as u64));
        }
        Ok(ReadOutcome::Content(content))
    }

    fn last_write(&self, path: &Path) -> io::Result<String> {
        let (directory, name) = self.locate(path)?;
        let stat = fstatat(&directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        Ok(format!("{} {}.{:09}", stat.st_ino, stat.st_ctime, stat.st_ctime_nsec))
    }

    fn list(&self, directory: &Path, limit: usize) -> io::Result<Listing> {
        let fd = self.open_directory(directory)?;
        let kinds_from = fd.try_clone()?;
        let mut listing = Listing::default();
        for entry in Dir::from_fd(fd)?.iter() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if listing.entries.len() >= limit {
                listing.truncated = true;
                break;
            }
            let name = OsString::from_vec(name.to_vec());
            let kind = match entry.file_type() {
                Some(Type::File) => Kind::File,
                Some(Type::Directory) => Kind::Directory,
                Some(Type::Symlink) => Kind::Symlink,
                Some(Type::Fifo) => Kind::Fifo,
                Some(Type::Socket) => Kind::Socket,
                Some(Type::CharacterDevice | Type::BlockDevice) => Kind::Device,
                // Some file systems do not report the type.
                None => match kind_at(&kinds_from, &name) {
                    Ok(kind) => kind,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                },
            };
            listing.entries.push(Entry { name, kind });
        }
        Ok(listing)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        let (directory, name) = self.locate(path)?;
        let flags = CAREFUL | OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL;
        Ok(File::from(openat(&directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?))
    }

    fn write(&self, handle: &mut File, bytes: &[u8]) -> io::Result<usize> {
        handle.write(bytes)
    }

    fn sync(&self, handle: &File) -> io::Result<()> {
        handle.sync_all()
    }

    fn read_back(&self, handle: &mut File, limit: usize) -> io::Result<Vec<u8>> {
        // The pages are clean after the sync, so the kernel drops them and the read goes to the medium. If a
        // kernel or file system keeps them, the comparison is weaker, but not wrong.
        let _ = posix_fadvise(&*handle, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        handle.seek(SeekFrom::Start(0))?;
        read_up_to(handle, limit)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_directory, from_name) = self.locate(from)?;
        let (to_directory, to_name) = self.locate(to)?;
        Ok(renameat(&from_directory, from_name, &to_directory, to_name)?)
    }

    fn link(&self, file: &Path, to: &Path) -> io::Result<()> {
        let (from_directory, from_name) = self.locate(file)?;
        let (to_directory, to_name) = self.locate(to)?;
        Ok(linkat(&from_directory, from_name, &to_directory, to_name, AtFlags::empty())?)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        sync_directory(&File::from(self.open_directory(directory)?))
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        let (directory, name) = self.locate(path)?;
        Ok(unlinkat(&directory, name, UnlinkatFlags::NoRemoveDir)?)
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        let (directory, name) = self.locate(path)?;
        Ok(mkdirat(&directory, name, Mode::S_IRWXU)?)
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let (directory, name) = self.locate(path)?;
        Ok(unlinkat(&directory, name, UnlinkatFlags::RemoveDir)?)
    }
}

pub(crate) fn read_up_to(file: impl Read, limit: usize) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(limit as u64).read_to_end(&mut content)?;
    Ok(content)
}

/// Most attempts to find a path that leads up and down again: the kernel refuses such a path while anything
/// on the machine is renamed or mounted, because it cannot tell whether the path leads out, and a container
/// may rename all the time. One attempt in a few is undisturbed.
const PATH_TRIES: usize = 128;

/// The file at a path below a directory, found but not opened; no link leads further than `resolve` allows.
pub(crate) fn find_below(root: &File, path: &Path, resolve: ResolveFlag) -> nix::Result<File> {
    let find = || {
        let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(resolve);
        openat2(root, path, how).map(File::from)
    };
    let mut found = find();
    for _ in 1..PATH_TRIES {
        if !matches!(found, Err(Errno::EAGAIN)) {
            break;
        }
        found = find();
    }
    found
}

/// A regular file below a directory that a stranger filled, found but not opened: a device node may have its
/// name, and opening one of the machine's devices has effects (`/dev/watchdog` starts to count). `None` if it
/// is not a file.
pub(crate) fn find_file(root: &File, path: &Path, resolve: ResolveFlag) -> io::Result<Option<File>> {
    let found = find_below(root, path, resolve)?;
    Ok(found.metadata()?.is_file().then_some(found))
}

/// Opens a found file for reading.
pub(crate) fn reopen(found: &File) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn path_up_and_down_is_found_while_something_is_renamed() {
        let place = std::env::temp_dir().join(format!("kedge-renames-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(place.join("a/b")).unwrap();
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (from, to) = (place.join("c"), place.join("d"));
                std::fs::create_dir(&from).unwrap();
                while !ends.load(Ordering::Relaxed) {
                    std::fs::rename(&from, &to).unwrap();
                    std::fs::rename(&to, &from).unwrap();
                }
            });
            let root = File::open(&place).unwrap();
            let path = "a/b/../../".repeat(8) + "a";
            let find = || find_below(&root, Path::new(&path), ResolveFlag::RESOLVE_BENEATH);
            let failed: Vec<_> = (0..5000).filter_map(|_| find().err()).collect();
            ends.store(true, Ordering::Relaxed);
            assert!(failed.is_empty(), "{} of 5000: {:?}", failed.len(), failed[0]);
        });
        std::fs::remove_dir_all(&place).unwrap();
    }
}
