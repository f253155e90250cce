//! The attributes of a file that keep even root from removing it: `chattr +i` and `+a`.
//!
//! Always holds: only regular files and directories are opened for them, and no link is followed. Files on a
//! file system without such attributes have none. Leaves to others: the choice of files that may lose them.
#![allow(unsafe_code, reason = "the ioctls for marks of files have no safe wrapper in nix")]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd as _};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::libc::{self, c_int};
use nix::sys::stat::{Mode, fstatat};

/// `FS_IMMUTABLE_FL` and `FS_APPEND_FL`, which the kernel's headers define and libc does not.
const MARKS: c_int = 0x10 | 0x20;

/// Removes them from an open file or directory; returns true if it had one, and has none now.
pub(crate) fn unmark(file: impl AsFd) -> bool {
    let fd = file.as_fd().as_raw_fd();
    let mut flags: c_int = 0;
    // SAFETY: the kernel writes an int to `flags`, which is one, whatever size the request's name suggests.
    let known = unsafe { libc::ioctl(fd, libc::FS_IOC_GETFLAGS as _, &raw mut flags) };
    if Errno::result(known).is_err() || flags & MARKS == 0 {
        return false;
    }
    flags &= !MARKS;
    // SAFETY: the kernel reads an int from `flags`, which lives as long as the call.
    let done = unsafe { libc::ioctl(fd, libc::FS_IOC_SETFLAGS as _, &raw const flags) };
    Errno::result(done).is_ok()
}

/// The same for the file of this name in a directory.
pub(crate) fn unmark_in(directory: impl AsFd, name: &CStr) -> bool {
    let Ok(found) = fstatat(&directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) else { return false };
    if ![libc::S_IFREG, libc::S_IFDIR].contains(&(found.st_mode & libc::S_IFMT)) {
        return false;
    }
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    openat(&directory, name, flags, Mode::empty()).is_ok_and(unmark)
}
