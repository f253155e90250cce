//! Mounts while a layer is unpacked: the layers below it, and above them the directory for the new layer's
//! files.
//!
//! Always holds: they are made in a mount namespace of the calling thread alone, so they end with it in any
//! case; no program on them can be run, no device opened, no set-user-ID bit used. With overlayfs the kernel
//! itself records removals (whiteouts, opaque directories). Paths are relative: the options of a mount fit in
//! one page. Leaves to others: the mounts of containers.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// Bytes of a layer's name.
pub(super) const NAME_BYTES: usize = 24;

/// Options that keep the content of the upper directory independent of later mounts: whole files, plain
/// directories. A kernel without one of these features refuses the option, and the feature is off anyway.
const PLAIN_OVERLAY: &str = ",index=off,metacopy=off,redirect_dir=off";

const NOTHING_RUNS: MsFlags = MsFlags::MS_NODEV.union(MsFlags::MS_NOSUID).union(MsFlags::MS_NOEXEC);

/// Gives the calling thread a mount namespace and a working directory of its own, and works in `directory`.
///
/// # Errors
/// The kernel refuses: the process is not root's, or there are no namespaces.
pub(super) fn set_thread_apart(directory: &Path) -> io::Result<()> {
    unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?;
    nix::unistd::chdir(directory)?;
    Ok(())
}

/// Mounts only `upper` at `target`.
pub(super) fn bind(upper: &str, target: &str) -> io::Result<()> {
    mount(Some(upper), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | NOTHING_RUNS;
    mount(None::<&str>, target, None::<&str>, flags, None::<&str>)?;
    Ok(())
}

/// Mounts `upper` over `below` (the base first) at `target`.
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

/// The names of this directory's layers that any overlay in this machine's mount namespaces uses, as far as
/// those can be read. Another agent on the machine may have layers of the same names in a directory of its
/// own.
///
/// # Errors
/// Not even this process's own mounts can be read.
pub fn mounted_layers(directory: &Path) -> io::Result<BTreeSet<String>> {
    let own = identity(directory);
    // a directory that cannot be examined may be this one
    let is_elsewhere =
        |other: &Path| matches!((own, identity(other)), (Some(own), Some(other)) if own != other);
    let mut names = layers_in(&fs::read_to_string("/proc/self/mountinfo")?, &is_elsewhere);
    // the agent may run in a mount namespace of its own, while containers are mounted in the first one
    if let Ok(first) = fs::read_to_string("/proc/1/mountinfo") {
        names.extend(layers_in(&first, &is_elsewhere));
    }
    Ok(names)
}

/// Device and inode: one directory may have several paths.
fn identity(directory: &Path) -> Option<(u64, u64)> {
    let seen = fs::metadata(directory).ok()?;
    Some((seen.dev(), seen.ino()))
}

/// The topmost layer comes first, by its whole path; the names of those below are relative to its directory.
fn layers_in(mountinfo: &str, is_elsewhere: &dyn Fn(&Path) -> bool) -> BTreeSet<String> {
    let overlays = mountinfo.lines().filter(|line| line.contains(" - overlay "));
    let mut names = BTreeSet::new();
    for line in overlays {
        let is_name = |word: &&str| {
            word.len() == NAME_BYTES && word.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let found: Vec<&str> = line.split([' ', ',', ':', '/', '=']).filter(is_name).collect();
        let top = line.split_once("lowerdir=").map_or("", |(_, lowers)| lowers);
        let top = Path::new(top.split([':', ',', ' ']).next().unwrap_or_default());
        let directory = top.parent().filter(|_| top.is_absolute() && !found.is_empty());
        if !directory.is_some_and(is_elsewhere) {
            names.extend(found.into_iter().map(str::to_owned));
        }
    }
    names
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
        let found: Vec<String> = layers_in(&text, &|_| false).into_iter().collect();
        assert_eq!(found, [one, two]);
        assert!(layers_in(text.lines().next().unwrap(), &|_| false).is_empty());
    }

    #[test]
    fn layers_of_another_agent_are_not_this_ones() {
        let (own, other) = ("0123456789abcdef01234567", "fedcba9876543210fedcba98");
        let line = |top: &str, below: &str| {
            format!(
                "9 2 0:5 / /run/x rw - overlay overlay rw,lowerdir={top}:{below},upperdir=/u,workdir=/w\n"
            )
        };
        let of = |text: &str| -> Vec<String> {
            layers_in(text, &|directory| directory == Path::new("/b/layers")).into_iter().collect()
        };
        assert_eq!(of(&line(&format!("/b/layers/{other}"), own)), [""; 0]);
        assert_eq!(of(&line(&format!("/a/layers/{own}"), other)), [own, other]);
        // by an earlier release, which did not write whose it is
        assert_eq!(of(&line(own, other)), [own, other]);
    }
}
