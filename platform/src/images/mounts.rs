//! Mounts while a layer is unpacked: the layers below it, and above them the directory that takes what it adds.
//!
//! Always holds: they are made in a mount namespace of the calling thread alone, so that they end with it, whatever ends it;
//! no program on them can be run, no device opened, no set-user-ID bit obeyed. With overlayfs the kernel itself writes what a
//! removal means (whiteouts, opaque directories). Paths are relative: the options of a mount fit in one page.
//! Leaves to others: the mounts of containers.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// Bytes of a layer's name.
pub(super) const NAME_BYTES: usize = 24;

/// Options that keep what the upper directory holds independent of later mounts: whole files, plain directories. A kernel
/// without one of these refuses it, and then it is off anyway.
const PLAIN_OVERLAY: &str = ",index=off,metacopy=off,redirect_dir=off";

const NOTHING_RUNS: MsFlags = MsFlags::MS_NODEV.union(MsFlags::MS_NOSUID).union(MsFlags::MS_NOEXEC);

/// Gives the calling thread a mount namespace and a working directory of its own, and works in `directory`.
///
/// # Errors
/// The kernel refuses: not root, or no namespaces.
pub(super) fn set_thread_apart(directory: &Path) -> io::Result<()> {
    unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?;
    nix::unistd::chdir(directory)?;
    Ok(())
}

/// Shows `upper` alone at `target`.
pub(super) fn bind(upper: &str, target: &str) -> io::Result<()> {
    mount(Some(upper), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | NOTHING_RUNS;
    mount(None::<&str>, target, None::<&str>, flags, None::<&str>)?;
    Ok(())
}

/// Shows `upper` over `below` (the base first) at `target`.
pub(super) fn overlay(below: &[&str], upper: &str, work: &str, target: &str) -> io::Result<()> {
    let lower: Vec<&str> = below.iter().rev().copied().collect();
    let options = format!("lowerdir={},upperdir={upper},workdir={work}", lower.join(":"));
    let plain = format!("{options}{PLAIN_OVERLAY}");
    let attempt =
        |options: &str| mount(Some("overlay"), target, Some("overlay"), NOTHING_RUNS, Some(options));
    match attempt(&plain) {
        Err(nix::Error::EINVAL) => Ok(attempt(&options)?),
        outcome => Ok(outcome?),
    }
}

/// Ends a mount of this thread.
pub(super) fn unmount(target: &str) -> io::Result<()> {
    Ok(umount2(target, MntFlags::empty())?)
}

/// The names of layers that any overlay of this machine's mount namespaces uses, as far as they can be read.
///
/// # Errors
/// Not even this process's own mounts can be read.
pub fn mounted_layers() -> io::Result<BTreeSet<String>> {
    let mut names = layers_in(&fs::read_to_string("/proc/self/mountinfo")?);
    // the agent may run in a namespace of its own, and containers be mounted in the first one
    if let Ok(first) = fs::read_to_string("/proc/1/mountinfo") {
        names.extend(layers_in(&first));
    }
    Ok(names)
}

fn layers_in(mountinfo: &str) -> BTreeSet<String> {
    let overlays = mountinfo.lines().filter(|line| line.contains(" - overlay "));
    let lowers = overlays.flat_map(|line| line.split([' ', ',', ':', '/', '=']));
    let is_name = |word: &&str| {
        word.len() == NAME_BYTES && word.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    lowers.filter(is_name).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_overlays_are_found() {
        let one = "0123456789abcdef01234567";
        let two = "fedcba9876543210fedcba98";
        let text = format!(
            "22 1 8:1 / / rw - ext4 /dev/{one} rw\n\
             99 22 0:50 / /run/x rw,relatime shared:9 - overlay overlay rw,lowerdir={one}:/var/lib/kedge/images/layers/{two},upperdir=u,workdir=w\n"
        );
        let found: Vec<String> = layers_in(&text).into_iter().collect();
        assert_eq!(found, [one, two]);
        assert!(layers_in(text.lines().next().unwrap()).is_empty());
    }
}
