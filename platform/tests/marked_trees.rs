//! Trees with files that are marked immutable or append-only, so that a plain removal fails.

#![allow(clippy::unwrap_used, reason = "a panic is how a test says what failed")]

use kedge_platform::trees::{Removal, remove};
use kedge_rig::Scratch;
use kedge_rig::scratch::wait_until;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Marks a file, or a whole tree; false if this file system has no such marks, or this is not root.
fn mark(flags: &[&str], path: &Path) -> bool {
    Command::new("chattr").args(flags).arg(path).output().is_ok_and(|output| output.status.success())
}

fn make(tree: &Path, outside: &Path) {
    for directory in ["a/b/c", "d", "e/f"] {
        fs::create_dir_all(tree.join(directory)).unwrap();
    }
    for file in ["top", "a/one", "a/b/c/two", "e/f/three"] {
        fs::write(tree.join(file), "x").unwrap();
    }
    fs::hard_link(tree.join("top"), tree.join("a/b/top")).unwrap();
    for at in ["link", "a/b/link"] {
        symlink(outside, tree.join(at)).unwrap();
    }
}

#[test]
fn marked_files_are_removed_and_link_targets_stay_marked() {
    let scratch = Scratch::new("marked").unwrap();
    let outside = scratch.write("outside", "x");
    if !mark(&["+i"], &outside) {
        assert!(std::env::var_os("CI").is_none(), "chattr does not work here");
        kedge_rig::power_cut::print_past_test_runner("SKIPPED: chattr does not work here");
        return;
    }
    let trees = scratch.join("trees");
    fs::create_dir(&trees).unwrap();
    let mut removal = Removal::open(&trees);
    for (name, flags) in [("immutable", ["-R", "+i"]), ("append", ["-R", "+a"]), ("both", ["-R", "+ai"])] {
        let tree = trees.join(name);
        make(&tree, &outside);
        // it reports an error for links, which cannot have marks
        mark(&flags, &tree);
        assert!(fs::remove_dir_all(&tree).is_err(), "it is hard to remove");
        // the tree is as the previous round left it: parts may be gone
        if name == "append" {
            removal.take(&tree).unwrap()
        } else {
            remove(&tree).unwrap()
        }
        assert!(!tree.exists(), "{name}");
    }
    let is_empty = || fs::read_dir(&trees).unwrap().count() == 0;
    wait_until("nothing left", Duration::from_secs(60), is_empty);
    let file = trees.join("file");
    fs::write(&file, "x").unwrap();
    assert!(mark(&["+i"], &file));
    remove(&file).unwrap();
    assert!(is_empty());
    assert!(fs::write(&outside, "y").is_err(), "what is outside keeps its mark");
    assert!(mark(&["-i"], &outside));
}
