//! `kedge pause`: the first process of a PID namespace that a pod's containers share. It takes their orphans out of the process
//! table, and is nothing else.
//!
//! What always holds: it has no privileges, no files, and a root directory without anything in it, because the containers see it
//! in `/proc`: what could look into it could otherwise look through it at the machine.
//!
//! Leaves to others: its namespace and its end (`sandbox`).

use std::io::{self, Read as _};
use std::path::Path;

use nix::libc::EINVAL;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Gid, Uid, chdir, chroot, setgid, setgroups, setuid};

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
    chroot(root)?;
    chdir("/")?;
    if std::fs::read_dir("/")?.next().is_some() {
        return Err(io::Error::from_raw_os_error(EINVAL));
    }
    setgroups(&[])?;
    setgid(Gid::from_raw(USER))?;
    setuid(Uid::from_raw(USER))?;
    nix::sys::prctl::set_no_new_privs()?;
    nix::sys::prctl::set_dumpable(false)?;
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
