//! Damaged state: every file and directory of a node's configuration, damaged as a failing disk, an operator
//! or another program does, with the real agent started on it.
//!
//! Always holds, whatever was damaged: the agent starts within a sane time, renews its Lease, runs a
//! configuration, logs what it set aside, keeps its verdicts on configs, settles, and stops on request.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod api;
mod board;
mod damage;
mod disks;
mod foreign;
mod leftovers;
mod recorded;

use board::{Board, SANE_START, State, active};
use damage::{Damage, apply};
use serde_json::Value;

/// The state in which an agent settles, with an API server that still assigns the config in trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// The assigned config runs, and all is well.
    Assigned,
    /// The assigned config runs as on a board that never saw it: all knowledge of earlier configs is lost.
    AssignedAnew,
    /// Last-known-good runs, and the condition says why.
    LastKnownGood,
    /// The local config runs, and the condition says why.
    Local,
    /// Some config runs: the damage does not determine which.
    Any,
}

impl Rest {
    fn is(self, status: &Value) -> bool {
        let ok = &status["config"]["condition"]["status"];
        match self {
            Self::Assigned | Self::AssignedAnew => active(status) == State::used().tried && ok == "True",
            Self::LastKnownGood => active(status) == State::used().good && ok == "Unknown",
            Self::Local => active(status).is_empty() && ok == "Unknown",
            Self::Any => ok.is_string(),
        }
    }
}

/// Damages one file or directory, starts, checks, stops, and starts once more.
fn check(board: &mut Board, target: &str, damage: Damage, rest: Rest, said: &str) {
    board.renew();
    let path = if target.is_empty() { board.root().to_owned() } else { board.root().join(target) };
    apply(damage, &path);
    check_spoilt(board, &format!("{target}, {damage:?}"), rest, said);
}

/// Starts on the present state, checks, stops, and starts once more.
fn check_spoilt(board: &mut Board, what: &str, rest: Rest, said: &str) {
    let (_, took) = board.run_until(&format!("{what}: {rest:?}"), |status| rest.is(status));
    assert!(took < SANE_START, "{what}: the first renewal took {took:?}");
    let log = board.log();
    if !said.is_empty() {
        assert!(log.contains(said), "{what}: {said:?} is not in the log:\n{log}");
    }
    assert!(!log.contains("panicked"), "{what}: {log}");
    board.stop();
    board.run_until(&format!("{what}: {rest:?} at the next start"), |status| rest.is(status));
    if rest == Rest::Assigned {
        let status = board.status().unwrap();
        assert_eq!(
            status["config"]["bad"][0]["uid"],
            State::used().bad.as_str(),
            "{what}: the verdict is lost"
        );
    }
    board.stop();
}

/// Damage that leaves nothing of a record usable.
const UNREADABLE: [Damage; 12] = [
    Damage::CutTo(1),
    Damage::CutToHalf,
    Damage::Zeroed,
    Damage::Noise,
    Damage::Grown,
    Damage::Directory,
    Damage::FullDirectory,
    Damage::DanglingLink,
    Damage::LinkToPasswd,
    Damage::LinkToZero,
    Damage::Fifo,
    Damage::Socket,
];

/// Damage that may leave a readable record with another content.
const DOUBTFUL: [Damage; 8] = [
    Damage::CutTo(0),
    Damage::CutAllBut(1),
    Damage::CutAllBut(2),
    Damage::Flipped(0),
    Damage::Flipped(20),
    Damage::Flipped(50),
    Damage::Flipped(80),
    Damage::Missing,
];

fn check_record(target: &str, rest: Rest, said: &str) {
    let mut board = Board::used();
    for damage in UNREADABLE {
        check(&mut board, target, damage, rest, said);
    }
    for damage in DOUBTFUL {
        check(&mut board, target, damage, Rest::Any, "");
    }
}

#[test]
fn unreadable_current_is_quarantined_and_downloaded() {
    check_record("config/current", Rest::Assigned, "current is unreadable");
}

#[test]
fn unreadable_last_known_good_keeps_assigned_running() {
    check_record("config/last-known-good", Rest::Assigned, "last-known-good is unreadable");
}

#[test]
fn unreadable_startups_begin_anew() {
    check_record("config/0.1.0/startups.json", Rest::Assigned, "startups.json is unreadable");
}

#[test]
fn unreadable_bad_configs_run_last_known_good() {
    check_record("config/0.1.0/bad-configs.json", Rest::LastKnownGood, "bad-configs.json is unreadable");
}

#[test]
fn damaged_assigned_checkpoint_is_downloaded() {
    let checkpoint = State::used().checkpoint(&State::used().tried);
    check_record(&checkpoint, Rest::Assigned, "its checkpoint ");
}

#[test]
fn damaged_last_known_good_checkpoint_is_reported() {
    let checkpoint = State::used().checkpoint(&State::used().good);
    check_record(&checkpoint, Rest::Assigned, "its checkpoint ");
}

#[test]
fn unreadable_evidence_is_quarantined() {
    check_record("last-exit.json", Rest::Assigned, "last-exit.json");
    check_record("evidence-seen.json", Rest::Assigned, "evidence-seen.json");
}

#[test]
fn damaged_reserve_is_made_anew() {
    let mut board = Board::used();
    for damage in UNREADABLE.into_iter().chain(DOUBTFUL) {
        check(&mut board, "config/.kedge-reserve", damage, Rest::Assigned, "");
        let reserve = board.root().join("config/.kedge-reserve");
        let bytes =
            reserve.symlink_metadata().map_or(0, |found| if found.is_file() { found.len() } else { 0 });
        assert!(bytes >= 64 * 1024, "{damage:?}: the reserve has {bytes} bytes");
    }
}

/// Damage to a directory.
const DISPLACED: [Damage; 7] = [
    Damage::File,
    Damage::DanglingLink,
    Damage::LinkToPasswd,
    Damage::LinkToZero,
    Damage::LinkToItself,
    Damage::Fifo,
    Damage::Socket,
];

fn check_directory(target: &str, rest: Rest, said: &str) {
    let mut board = Board::used();
    for damage in DISPLACED {
        check(&mut board, target, damage, rest, said);
    }
}

#[test]
fn replaced_checkpoints_directory_is_quarantined() {
    check_directory("config/checkpoints", Rest::Assigned, "checkpoints was a ");
    let tried = &State::used().tried;
    check_directory(
        &format!("config/checkpoints/{tried}"),
        Rest::Assigned,
        &format!("checkpoints/{tried} was a "),
    );
    let mut board = Board::used();
    check(&mut board, "config/checkpoints", Damage::Missing, Rest::Assigned, "its checkpoint is missing");
}

#[test]
fn replaced_version_directory_is_quarantined() {
    check_directory("config/0.1.0", Rest::LastKnownGood, "bad-configs.json is unreadable");
}

#[test]
fn replaced_state_directory_is_set_aside() {
    check_directory("config", Rest::AssignedAnew, "config was a ");
    check_directory("", Rest::AssignedAnew, "root was a ");
}

#[test]
fn missing_state_is_a_first_boot_and_a_link_is_followed() {
    let mut board = Board::used();
    for damage in [Damage::Missing, Damage::Directory] {
        board.renew();
        apply(damage, &board.root().join("config"));
        let what = format!("config, {damage:?}");
        board.run_until(&what, |status| Rest::Assigned.is(status));
        assert!(!board.log().contains("set aside"), "{what}: {}", board.log());
        board.stop();
    }
    board.renew();
    let (config, elsewhere) = (board.root().join("config"), board.root().join("elsewhere"));
    std::fs::rename(&config, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &config).unwrap();
    check_spoilt(&mut board, "config behind a link", Rest::Assigned, "");
    assert!(config.is_symlink());
}
