//! State that is not the agent's own: owned by somebody else, or closed to everybody. Needs root, to become
//! somebody else.

use crate::board::{Board, State};
use crate::{Rest, check_spoilt};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// The permissions that keep an agent run by the user `nobody` out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lock {
    /// It is root's, and for root alone.
    Roots,
    /// It is the agent's own, with mode 000.
    NoMode,
}

impl Lock {
    fn close(self, path: &Path) {
        let mode = match self {
            Self::Roots if path.is_dir() => 0o700,
            Self::Roots => 0o600,
            Self::NoMode => 0,
        };
        if self == Self::Roots {
            chown(path, Some(0), Some(0)).unwrap();
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// Reports a skipped test past the test runner, which shows output of failing tests only. With `CI=true` it
/// fails.
pub(crate) fn skip(test: &str, why: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{test}: cannot be shown here: {why}");
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {why}");
}

pub(crate) fn is_root(test: &str) -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !root {
        skip(test, "needs root");
    }
    root
}

fn check_closed(targets: &[(&str, Rest, &str)]) {
    let mut board = Board::used();
    for (target, rest, said) in targets {
        for lock in [Lock::Roots, Lock::NoMode] {
            board.renew();
            board.run_as_nobody();
            let path = if target.is_empty() { board.root().to_owned() } else { board.root().join(target) };
            lock.close(&path);
            check_spoilt(&mut board, &format!("{target}, {lock:?}"), *rest, said);
        }
    }
}

#[test]
fn forbidden_record_is_like_an_unreadable_one() {
    if !is_root("records closed to the agent") {
        return;
    }
    let checkpoint = State::used().checkpoint(&State::used().tried);
    check_closed(&[
        ("config/current", Rest::Assigned, "current is unreadable"),
        ("config/last-known-good", Rest::Assigned, "last-known-good is unreadable"),
        ("config/0.1.0/startups.json", Rest::Assigned, "startups.json is unreadable"),
        ("config/0.1.0/bad-configs.json", Rest::LastKnownGood, "bad-configs.json is unreadable"),
        (&checkpoint, Rest::Assigned, "its checkpoint cannot be read"),
        ("config/.kedge-reserve", Rest::Assigned, ""),
        ("last-exit.json", Rest::Assigned, "last-exit.json"),
        ("evidence-seen.json", Rest::Assigned, "evidence-seen.json"),
    ]);
}

#[test]
fn forbidden_directory_is_reported_and_renewals_go_on() {
    if !is_root("directories closed to the agent") {
        return;
    }
    check_closed(&[
        ("config/0.1.0", Rest::LastKnownGood, "bad-configs.json is unreadable"),
        ("config/checkpoints", Rest::Local, "its checkpoint cannot be read"),
        (
            &format!("config/checkpoints/{}", State::used().tried),
            Rest::LastKnownGood,
            "its checkpoint cannot be read",
        ),
        ("config", Rest::Local, "current is unreadable"),
        ("", Rest::Local, "current is unreadable"),
    ]);
}

#[test]
fn immutable_record_is_reported_and_renewals_go_on() {
    if !is_root("an immutable record") {
        return;
    }
    let immutable = |sign: &str, path: &Path| {
        Command::new("chattr")
            .arg(sign)
            .arg(path)
            .stderr(std::process::Stdio::null())
            .status()
            .is_ok_and(|done| done.success())
    };
    let mut board = Board::used();
    board.renew();
    let path = board.root().join("config/current");
    fs::write(&path, "{").unwrap();
    if !immutable("+i", &path) {
        skip("an immutable record", "this file system knows no such thing");
        return;
    }
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        check_spoilt(&mut board, "an immutable current", Rest::LastKnownGood, "could not be set aside");
    }));
    assert!(immutable("-i", &path));
    outcome.unwrap();
}
