//! `kedge pause`: the first process of a PID namespace that a pod's containers share. It removes their
//! orphans from the process table, and does nothing else.
//!
//! Always holds: it has no privileges, no descriptors, and file systems that contain only one empty
//! directory, because the containers see it in `/proc`: a container that can examine or trace it must not get
//! at the machine through it. It closes the pipe with which it was started when all of this is in effect, and
//! not before.
//!
//! Leaves to others: its other namespaces, which are the pod's, and its end (`sandbox`).

use std::io::{self, Read as _};
use std::path::Path;

use nix::libc::EINVAL;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Gid, Uid, chdir, pivot_root, setgid, setgroups, setuid};

use super::process;

/// As upstream's pause image: a user without rights, which no image uses.
const USER: u32 = 65535;

/// Runs until it is ordered to end. Call it in a process of its own; `root` must be an empty directory.
///
/// # Errors
/// It could not give up its privileges or file systems.
pub fn pause(root: &Path) -> io::Result<()> {
    // one byte when the agent has recorded this process; an agent that was killed before could never find it
    // again
    io::stdin().read_exact(&mut [0])?;
    leave_the_machine(root)?;
    setgroups(&[])?;
    setgid(Gid::from_raw(USER))?;
    setuid(Uid::from_raw(USER))?;
    nix::sys::prctl::set_no_new_privs()?;
    nix::sys::prctl::set_dumpable(false)?;
    process::close_all_descriptors();
    let mut awaited = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT] {
        awaited.add(signal);
    }
    awaited.thread_block()?;
    loop {
        while process::next_ended_child().is_some() {}
        if matches!(awaited.wait(), Ok(Signal::SIGTERM | Signal::SIGINT)) {
            return Ok(());
        }
    }
}

/// Keeps only one of all mounts: a root that is this directory. Changing the root alone would leave the
/// others within reach of a process that traces this one.
fn leave_the_machine(root: &Path) -> io::Result<()> {
    let none = None::<&str>;
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some(root), root, none, MsFlags::MS_BIND, none)?;
    mount(none, root, none, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | flags, none)?;
    chdir(root)?;
    // the old root is mounted over the new one, and is removed
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    chdir("/")?;
    match std::fs::read_dir("/")?.next() {
        Some(_) => Err(io::Error::from_raw_os_error(EINVAL)),
        None => Ok(()),
    }
}
