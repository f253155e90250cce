//! The tests: runs on several file systems, and agents that skip what makes a write durable.

use kedge_rig::logged_disk::{BTRFS, EXT4, EXT4_WRITEBACK, FileSystem, STATE_PARTITION};
use kedge_rig::nosync_preload::{self, Skips};
use kedge_rig::power_cut::{is_full, is_possible, print_past_test_runner};
use kedge_rig::{Scratch, programs};

use crate::run::{Length, Run, cut};

#[test]
fn no_cut_of_ext4_loses_what_was_acknowledged() {
    explore(&STATE_PARTITION, if is_full() { 3 } else { 1 }, Length::Whole);
}

/// Under a package on somebody else's device nobody repairs the file system before the mount.
#[test]
fn no_cut_of_unrepaired_ext4_loses_what_was_acknowledged() {
    if !is_full() {
        return print_past_test_runner("SKIPPED: ext4 without repair is cut with KEDGE_CRASH_FULL=1 only");
    }
    explore(&EXT4, 3, Length::Whole);
}

#[test]
fn no_cut_of_writeback_ext4_loses_what_was_acknowledged() {
    let length = if is_full() { Length::Whole } else { Length::Short };
    explore(&EXT4_WRITEBACK, if is_full() { 3 } else { 1 }, length);
}

#[test]
fn no_cut_of_btrfs_loses_what_was_acknowledged() {
    let length = if is_full() { Length::Whole } else { Length::Short };
    explore(&BTRFS, if is_full() { 2 } else { 1 }, length);
}

#[track_caller]
fn explore(file_system: &FileSystem, subsets: usize, length: Length) {
    if !is_possible(file_system) {
        return;
    }
    let program = &programs::agent_with_faults().unwrap();
    let boots = if is_full() { 2 } else { 1 };
    let run = Run { file_system, length, program, checked: program, subsets, boots, enough: None };
    let (report, log) = cut(&format!("crash-{}", file_system.name.replace([' ', '='], "-")), &run);
    print_past_test_runner(&format!("{}: {report}", file_system.name));
    println!("the agent's log:\n{log}");
    report.assert_none_wrong(report.flushes / 2);
}

#[test]
fn agent_without_file_sync_is_caught() {
    // ext4 saves programs that do not sync from themselves, unless an option forbids it
    let unsaved = FileSystem { options: "data=writeback,noauto_da_alloc", ..EXT4_WRITEBACK };
    check_caught(Skips::Files, &unsaved);
}

#[test]
fn agent_without_directory_sync_is_caught() {
    check_caught(Skips::Directories, &STATE_PARTITION);
}

/// Runs an agent that skips the sync of these, and expects violations.
#[track_caller]
fn check_caught(skips: Skips, file_system: &FileSystem) {
    if !is_possible(file_system) {
        return;
    }
    let files = Scratch::new("nosync").unwrap();
    let checked = &programs::agent_with_faults().unwrap();
    let program = &nosync_preload::program(files.path(), checked, skips).unwrap();
    let enough = if is_full() { None } else { Some(3) };
    let run = Run { file_system, length: Length::Short, program, checked, subsets: 1, boots: 1, enough };
    let (report, _) = cut(&format!("crash-without-{}", skips.name()), &run);
    print_past_test_runner(&format!("without sync of {}: {report}", skips.name()));
    assert!(report.violations > 0, "an agent that does not sync its {} goes unnoticed", skips.name());
}
