//! A run that is stopped by a signal.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use kedge_rig::scratch::{Scratch, poll, wait_until};

#[test]
fn run_that_is_told_to_stop_leaves_nothing() {
    let scratch = Scratch::new("stopped").unwrap();
    let at = |name: &str| scratch.path().join(name);
    for folder in ["images/x86_64-uefi", "taken", "temporary"] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    // another run makes the first boot, so this one waits
    scratch.write("taken/first-boot", "");
    let mut run = Command::new(env!("CARGO_BIN_EXE_kedge-hil"))
        .arg("--images")
        .arg(at("images"))
        .arg("--taken")
        .arg(at("taken"))
        .env("TMPDIR", at("temporary"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let left = || fs::read_dir(at("temporary")).unwrap().count();
    wait_until("its directory", Duration::from_secs(60), || left() == 1);
    assert!(Command::new("kill").arg(run.id().to_string()).status().unwrap().success());
    let ended = poll(Duration::from_secs(60), || run.try_wait().unwrap());
    let _ = run.kill();
    assert_eq!(ended.expect("it ends when it is told to").code(), Some(1));
    assert_eq!(left(), 0);
}
