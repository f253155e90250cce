//! Disks that take no more: full, out of inodes, read-only, shut down by the kernel. Needs root, to mount
//! small ones.

use crate::board::{Board, State, active};
use crate::foreign::{is_root, skip};
use crate::{Rest, check_spoilt};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small disk in memory, mounted as long as this lives.
pub(crate) struct Mount(PathBuf);

impl Mount {
    /// `None`, with a message, where mounting is not permitted.
    pub(crate) fn new(path: &Path, options: &str) -> Option<Self> {
        Self::of(path, &["-t", "tmpfs", "-o", options, "kedge-test"])
    }

    fn of(path: &Path, arguments: &[&str]) -> Option<Self> {
        let done =
            Command::new("mount").args(arguments).arg(path).status().is_ok_and(|status| status.success());
        if !done {
            skip("a small disk", "mount is not allowed here");
        }
        done.then(|| Self(path.to_owned()))
    }

    /// A real file system in a file, which the kernel can shut down.
    fn ext4(path: &Path) -> Option<Self> {
        let image = path.with_extension("ext4");
        fs::File::create(&image).unwrap().set_len(16 * 1024 * 1024).unwrap();
        let made =
            Command::new("mkfs.ext4").arg("-q").arg(&image).status().is_ok_and(|status| status.success());
        if !made {
            skip("a disk that the kernel gives up", "there is no mkfs.ext4");
            return None;
        }
        Self::of(path, &["-t", "ext4", "-o", "loop", image.to_str().unwrap()])
    }

    /// The kernel's reaction to an error in the metadata: the file system is read-only, and no sync succeeds.
    fn abort(&self) {
        let done = Command::new("mount").args(["-o", "remount,abort"]).arg(&self.0).status().unwrap();
        assert!(done.success());
    }

    /// Writers wait from now on, or no longer.
    fn freeze(&self, how: &str) -> bool {
        Command::new("fsfreeze").arg(how).arg(&self.0).status().is_ok_and(|status| status.success())
    }

    fn make_read_only(&self) {
        let done = Command::new("mount").args(["-o", "remount,ro"]).arg(&self.0).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // a process that waits for the disk cannot be killed
        let _ = Command::new("fsfreeze").arg("-u").arg(&self.0).stderr(std::process::Stdio::null()).status();
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Writes bytes until the disk is full.
fn fill(root: &Path) {
    let mut file = fs::File::create(root.join("filler")).unwrap();
    while file.write_all(&[7; 4096]).is_ok() {}
}

/// Creates files until the disk has no inode left.
fn use_up_inodes(root: &Path) {
    (0..).take_while(|number| fs::File::create(root.join(format!("filler-{number}"))).is_ok()).for_each(drop);
}

/// A board whose state is on a disk of its own.
fn on_a_disk(options: &str) -> Option<(Board, Mount)> {
    let board = Board::used();
    let mount = Mount::new(board.root(), options)?;
    State::used().write(board.root());
    Some((board, mount))
}

fn remove_reserve(board: &Board) {
    fs::remove_file(board.root().join("config/.kedge-reserve")).unwrap();
}

#[test]
fn full_disk_continues_a_trial_only_with_a_reserve() {
    if !is_root("full disks") {
        return;
    }
    for (what, options, use_up) in [
        ("no blocks", "size=512k", fill as fn(&Path)),
        ("no inodes", "size=4m,nr_inodes=40", use_up_inodes as fn(&Path)),
    ] {
        let Some((mut board, _mount)) = on_a_disk(options) else { return };
        use_up(board.root());
        check_spoilt(&mut board, what, Rest::Assigned, "used the reserve");
        let Some((mut board, _mount)) = on_a_disk(options) else { return };
        remove_reserve(&board);
        use_up(board.root());
        check_spoilt(
            &mut board,
            &format!("{what}, no reserve"),
            Rest::LastKnownGood,
            "its start could not be recorded",
        );
        let Some((mut board, _mount)) = on_a_disk(options) else { return };
        fs::remove_dir_all(board.root().join("config")).unwrap();
        use_up(board.root());
        check_spoilt(
            &mut board,
            &format!("{what}, first boot"),
            Rest::Local,
            "could not record the assignment",
        );
    }
}

#[test]
fn read_only_disk_runs_last_known_good() {
    if !is_root("read-only disks") {
        return;
    }
    let Some((mut board, mount)) = on_a_disk("size=4m") else { return };
    mount.make_read_only();
    check_spoilt(&mut board, "read-only", Rest::LastKnownGood, "read-only");
    let Some((mut board, mount)) = on_a_disk("size=4m") else { return };
    fs::write(board.root().join("config/current"), "{").unwrap();
    fs::write(board.root().join("last-exit.json"), "{").unwrap();
    mount.make_read_only();
    check_spoilt(&mut board, "read-only and unreadable", Rest::LastKnownGood, "could not be set aside");
    let Some((mut board, mount)) = on_a_disk("size=4m") else { return };
    fs::write(board.root().join("config/0.1.0/bad-configs.json"), "{").unwrap();
    mount.make_read_only();
    check_spoilt(&mut board, "read-only, verdicts unreadable", Rest::LastKnownGood, "could not be set aside");
}

#[test]
fn aborted_file_system_keeps_renewing() {
    if !is_root("a disk that the kernel gives up") {
        return;
    }
    let mut board = Board::used();
    let Some(mount) = Mount::ext4(board.root()) else { return };
    State::used().write(board.root());
    board.run_until("all is well", |status| Rest::Assigned.is(status));
    mount.abort();
    let before = board.api.renewals();
    board.api.assign("mended");
    board.run_until("what cannot be recorded is told", |status| {
        status["config"]["condition"]["status"] == "Unknown"
    });
    let api = board.api.clone();
    board.run_until("the heartbeat goes on", |_| api.renewals() > before);
    let log = board.log();
    assert!(!log.contains("panicked"), "{log}");
    assert!(log.contains("could not record the assignment on disk"), "{log}");
    board.stop();
}

#[test]
fn frozen_disk_keeps_renewing() {
    if !is_root("a disk that stands still") {
        return;
    }
    let mut board = Board::used();
    let Some(mount) = Mount::ext4(board.root()) else { return };
    State::used().write(board.root());
    board.run_until("all is well", |status| Rest::Assigned.is(status));
    if !mount.freeze("-f") {
        return skip("a disk that stands still", "fsfreeze is not allowed here");
    }
    let (api, before) = (board.api.clone(), board.api.renewals());
    // the write of its checkpoint waits for the disk
    board.api.assign("mended");
    board.run_until("the heartbeat goes on", |status| {
        api.renewals() > before && active(status) == State::used().tried
    });
    assert!(mount.freeze("-u"));
    board.run_until("the disk moves again", |status| active(status) == State::used().mended);
    let log = board.log();
    assert!(!log.contains("panicked"), "{log}");
    board.stop();
}
