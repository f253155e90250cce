//! The babysitter with real processes: what it hears, when it kills, what it records, and that nothing outlives it.
//!
//! The process is `kedge-puppet`, which does what its arguments say. Waits end at a condition, never after a guessed time.

#![allow(clippy::unwrap_used, reason = "a panic is how a test says what failed")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use kedge_rig::babysitter::{Babysitter, Unit};
use kedge_rig::scratch::Scratch;
use kedge_rig::service::Phase;
use nix::sys::signal::Signal;

const LIMIT: Duration = Duration::from_secs(30);

fn puppet(scratch: &Scratch, steps: &str) -> Unit {
    let program = env!("CARGO_BIN_EXE_kedge-puppet");
    let mut command = vec![program.into()];
    command.extend(steps.split_whitespace().map(Into::into));
    let mut unit = Unit::new("puppet", command);
    unit.record_command = Some(vec![program.into(), format!("env={}", ends_file(scratch).display()).into()]);
    unit.run_dir = Some(scratch.path().join("run"));
    unit.log = Some(scratch.path().join("log"));
    unit.limits.restart_after = Duration::from_millis(10);
    unit.limits.watchdog = Some(Duration::from_secs(2));
    unit.limits.start = Duration::from_secs(4);
    unit.limits.stop = Duration::from_millis(800);
    unit.limits.abort = Duration::from_millis(800);
    unit
}

fn ends_file(scratch: &Scratch) -> PathBuf {
    scratch.path().join("ends")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Runs the steps once and compares what the recording command was given.
#[track_caller]
fn check(steps: &str, expect: &str) {
    let scratch = Scratch::new("babysitter").unwrap();
    let babysitter = Babysitter::start(puppet(&scratch, steps)).unwrap();
    let ends = babysitter.wait_ends(1, LIMIT).unwrap();
    let first = read(&ends_file(&scratch)).lines().next().unwrap_or_default().to_owned();
    assert_eq!(first, expect, "{} {}", ends[0], read(&scratch.path().join("log")));
    assert_eq!(ends[0].recorder_exit_code, Some(0));
}

#[test]
fn the_recording_command_is_told_how_the_run_ended() {
    check("ready exit=0", "success exited 0");
    check("ready exit=7", "exit-code exited 7");
    check("exit=0", "protocol exited 0");
    check("stopping exit=0", "success exited 0");
    check("ready ping sleep=60000", "watchdog killed ABRT");
    check("deaf sleep=60000", "timeout killed KILL");
    check("sleep=60000", "timeout killed TERM");
}

#[test]
fn an_abort_is_recorded_with_its_signal_whether_or_not_the_kernel_dumps_core() {
    let scratch = Scratch::new("babysitter").unwrap();
    let babysitter = Babysitter::start(puppet(&scratch, "ready abort")).unwrap();
    babysitter.wait_ends(1, LIMIT).unwrap();
    let ends = read(&ends_file(&scratch));
    let first = ends.lines().next().unwrap_or_default();
    assert!(["signal killed ABRT", "core-dump dumped ABRT"].contains(&first), "{first}");
}

#[test]
fn the_watchdog_variables_name_the_process_itself() {
    check("usec ready exit=3", "exit-code exited 3");
}

#[test]
fn a_start_may_ask_for_more_time() {
    check("sleep=2000 extend=6000 sleep=3000 ready exit=4", "exit-code exited 4");
}

#[test]
fn only_the_main_process_is_believed() {
    check("child-ready exit=0", "protocol exited 0");
}

#[test]
fn a_service_that_pings_lives_and_is_restarted_when_it_is_killed() {
    let scratch = Scratch::new("babysitter").unwrap();
    let babysitter = Babysitter::start(puppet(&scratch, "status=well ready forever")).unwrap();
    let state = babysitter.wait_until("40 pings", LIMIT, |state| state.pings >= 40).unwrap();
    assert_eq!((state.runs, state.readies, state.status.as_str()), (1, 1, "well"));
    babysitter.signal(Signal::SIGKILL);
    babysitter.wait_until("the second run", LIMIT, |state| state.runs == 2 && state.is_ready()).unwrap();
    babysitter.stop_and_wait(LIMIT).unwrap();
    assert_eq!(read(&ends_file(&scratch)), "signal killed KILL\nsuccess killed TERM\n");
    babysitter.start_again();
    let state = babysitter.wait_ready(LIMIT).unwrap();
    assert_eq!(state.runs, 3);
}

#[test]
fn a_process_that_is_stopped_by_a_signal_is_killed_by_the_watchdog() {
    let scratch = Scratch::new("babysitter").unwrap();
    let babysitter = Babysitter::start(puppet(&scratch, "ready forever")).unwrap();
    babysitter.wait_ready(LIMIT).unwrap();
    babysitter.signal(Signal::SIGSTOP);
    babysitter.wait_ends(1, LIMIT).unwrap();
    // a stopped process does not get SIGABRT: only SIGKILL ends it
    assert_eq!(read(&ends_file(&scratch)).lines().next(), Some("watchdog killed KILL"));
}

#[test]
fn a_program_that_does_not_exist_is_an_end_like_any_other() {
    let scratch = Scratch::new("babysitter").unwrap();
    let mut unit = puppet(&scratch, "");
    unit.command = vec!["/nonexistent/kedge".into()];
    let babysitter = Babysitter::start(unit).unwrap();
    let ends = babysitter.wait_ends(2, LIMIT).unwrap();
    assert_eq!(ends[0].end.exit.code(), "exited");
    assert_ne!(ends[0].end.exit.status(), "0");
}

#[test]
fn nothing_outlives_a_babysitter_that_is_dropped() {
    let scratch = Scratch::new("babysitter").unwrap();
    let babysitter = Babysitter::start(puppet(&scratch, "deaf ready forever")).unwrap();
    let pid = babysitter.wait_ready(LIMIT).unwrap().pid.unwrap();
    assert_eq!(babysitter.state().phase, Phase::Running);
    drop(babysitter);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

/// Kills the program form with SIGKILL and looks for its child.
#[test]
fn nothing_outlives_a_babysitter_that_is_killed() {
    let scratch = Scratch::new("babysitter").unwrap();
    let pid_file = scratch.path().join("pid");
    let script = format!("echo $$ > {}; exec sleep 60", pid_file.display());
    let mut babysitter = std::process::Command::new(env!("CARGO_BIN_EXE_kedge-babysitter"))
        .args([
            "--run-dir",
            scratch.path().join("run").to_str().unwrap(),
            "--no-record",
            "--",
            "/bin/sh",
            "-c",
            &script,
        ])
        .spawn()
        .unwrap();
    let pid: u32 = poll("the child's process id", || read(&pid_file).trim().parse().ok());
    babysitter.kill().unwrap();
    babysitter.wait().unwrap();
    let is_gone =
        || std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "));
    poll("the child's end", || is_gone().then_some(()));
}

#[test]
fn the_program_form_stops_its_service_when_it_is_asked_to_stop() {
    let scratch = Scratch::new("babysitter").unwrap();
    let ready = scratch.path().join("ready");
    let mut babysitter = std::process::Command::new(env!("CARGO_BIN_EXE_kedge-babysitter"))
        .args(["--no-record", "--", env!("CARGO_BIN_EXE_kedge-puppet"), "ready"])
        .arg(format!("once={}", ready.display()))
        .arg("forever")
        .spawn()
        .unwrap();
    poll("the service", || ready.exists().then_some(()));
    let pid = nix::unistd::Pid::from_raw(babysitter.id().cast_signed());
    nix::sys::signal::kill(pid, Signal::SIGTERM).unwrap();
    assert!(babysitter.wait().unwrap().success());
}

#[track_caller]
fn poll<T>(awaited: &str, probe: impl Fn() -> Option<T>) -> T {
    kedge_rig::scratch::poll(LIMIT, probe).unwrap_or_else(|| panic!("waited in vain for {awaited}"))
}
