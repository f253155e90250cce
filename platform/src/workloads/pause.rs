//! `kedge pause`: the first process of a PID namespace that a pod's containers share. It takes their orphans out of the process
//! table, and is nothing else.
//!
//! What always holds: it has no privileges, no descriptors, and file systems with nothing in them but one empty directory, because the
//! containers see it in `/proc`: what could look into it, or trace it, could otherwise look through it at the machine. It ends the pipe
//! that it was started with when all of this is so, and not before.
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

/// As upstream's pause image: nobody's, and no user of any image.
const USER: u32 = 65535;

/// Runs until it is asked to end. Called in a process of its own; `root` is an empty directory.
///
/// # Errors
/// It could not give up what it must not have.
pub fn pause(root: &Path) -> io::Result<()> {
    // one byte when the agent has recorded it; an agent that was killed before would never find it again
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

/// Of all mounts one is left: a root that is this directory. A changed root alone would leave the others in reach of whoever traces us.
fn leave_the_machine(root: &Path) -> io::Result<()> {
    let none = None::<&str>;
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some(root), root, none, MsFlags::MS_BIND, none)?;
    mount(none, root, none, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | flags, none)?;
    chdir(root)?;
    // the old root lies on the new one, and is taken off it
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    chdir("/")?;
    match std::fs::read_dir("/")?.next() {
        Some(_) => Err(io::Error::from_raw_os_error(EINVAL)),
        None => Ok(()),
    }
}
