//! Trees that a program made hard to remove. One test only, because it limits the descriptors of its whole
//! process.

#![allow(clippy::unwrap_used, reason = "a panic is how a test says what failed")]

use kedge_platform::trees::{Removal, remove};
use kedge_rig::Scratch;
use kedge_rig::scratch::wait_until;
use nix::fcntl::OFlag;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::Mode;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// Descriptors of the process during the removal: those in use, and a few more.
const DESCRIPTORS: u64 = 24;
/// Far more than there are descriptors, and deeper than a path of 4096 bytes.
const DEPTH: usize = 6000;

/// Directories within directories, each with a file and names that are in the way.
fn deep(place: &Path) {
    let mut at: OwnedFd = File::open(place).unwrap().into();
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    for level in 0..DEPTH {
        if level % 100 == 0 {
            for name in [format!(".gone-{level}"), "file".into()] {
                let flags = OFlag::O_CREAT | OFlag::O_CLOEXEC;
                drop(nix::fcntl::openat(&at, name.as_str(), flags, Mode::S_IRWXU).unwrap());
            }
            nix::sys::stat::mkdirat(&at, format!(".gone-{}", level + 1).as_str(), Mode::S_IRWXU).unwrap();
        }
        nix::sys::stat::mkdirat(&at, "d", Mode::S_IRWXU).unwrap();
        at = nix::fcntl::openat(&at, "d", flags, Mode::empty()).unwrap();
    }
}

#[test]
fn deep_and_wide_trees_take_few_descriptors() {
    // in memory, because a busy disk takes minutes for so many directories
    let scratch = Scratch::in_memory("trees").unwrap();
    let kept = scratch.write("kept", "x");
    let make = |name: &str| {
        let tree = scratch.join(name);
        fs::create_dir(&tree).unwrap();
        deep(&tree);
        for number in 0..3000 {
            File::create(tree.join(format!("wide{number}"))).unwrap();
        }
        std::os::unix::fs::symlink(&kept, tree.join("link")).unwrap();
        std::os::unix::fs::symlink(&*scratch, tree.join("d/link")).unwrap();
        tree
    };
    let (one, two) = (make("one"), make("two"));
    fs::create_dir(scratch.join("disk")).unwrap();
    fs::create_dir_all(scratch.join("disk/.gone-7/left")).unwrap();
    fs::create_dir_all(scratch.join("disk/.gone-1/left")).unwrap();
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS, most).unwrap();

    remove(&one).unwrap();
    assert!(!one.exists() && kept.exists());
    remove(&one).unwrap();
    remove(&kept).unwrap();
    assert!(!kept.exists());

    let mut removal = Removal::open(&scratch.join("disk"));
    removal.take(&two).unwrap();
    assert!(!two.exists());
    removal.take(&two).unwrap();
    let is_empty = || fs::read_dir(scratch.join("disk")).unwrap().next().is_none();
    wait_until("an empty directory", Duration::from_secs(60), is_empty);
}
