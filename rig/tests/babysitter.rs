//! The babysitter with real processes: which messages count, when it kills, the recorded ends, and that no
//! process outlives it.
//!
//! The process is this test program again, which performs the steps of `KEDGE_STEPS`. Waits end at a
//! condition, never after a guessed time.

#![allow(clippy::unwrap_used, reason = "a panic is how a test says what failed")]

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, exit};
use std::thread::sleep;
use std::time::Duration;

use kedge_rig::Scratch;
use kedge_rig::babysitter::{Babysitter, Phase, ServiceResult, Signal, Unit};
use kedge_rig::scratch::{poll, wait_until};

const LIMIT: Duration = Duration::from_secs(30);

/// Not a test: the service that the others run. `child=X` sends X from a child process, a number sleeps so
/// many milliseconds, `pings` never ends, and other words with a `=` are sent to the babysitter.
#[test]
fn service() {
    let Ok(steps) = std::env::var("KEDGE_STEPS") else { return };
    let notify = |text: &str| {
        let socket = std::env::var_os("NOTIFY_SOCKET").unwrap();
        UnixDatagram::unbound().unwrap().send_to(text.as_bytes(), socket).unwrap();
    };
    for step in steps.split_whitespace() {
        match step.split_once('=') {
            Some(("exit", code)) => exit(code.parse().unwrap()),
            Some(("child", text)) => {
                let mut child = Command::new(std::env::current_exe().unwrap());
                child.args(["service", "--exact"]).env("KEDGE_STEPS", text.replace(':', "="));
                assert!(child.status().unwrap().success());
            }
            Some(_) => notify(step),
            None if step == "abort" => std::process::abort(),
            None if step == "watched" => {
                let own = std::env::var("WATCHDOG_PID").unwrap() == std::process::id().to_string();
                assert!(own && std::env::var("WATCHDOG_USEC").unwrap() == "2000000");
            }
            None if step == "pings" => loop {
                notify("WATCHDOG=1");
                sleep(Duration::from_millis(20));
            },
            None => sleep(Duration::from_millis(step.parse().unwrap())),
        }
    }
    exit(0)
}

fn unit(scratch: &Scratch, steps: &str) -> Unit {
    // signals that a shell ignores are also ignored by the program that replaces it
    let launch = if steps.contains("deaf") { "trap '' TERM; exec \"$@\"" } else { "exec \"$@\"" };
    let program = std::env::current_exe().unwrap();
    let mut command: Vec<_> = ["/bin/sh", "-c", launch, "sh"].map(Into::into).into();
    command.push(program.into());
    command.extend(["service", "--exact"].map(Into::into));
    let mut unit = Unit::new("service", command);
    unit.environment.push(("KEDGE_STEPS".into(), steps.replace("deaf ", "").into()));
    let record = format!("echo $SERVICE_RESULT $EXIT_CODE $EXIT_STATUS >>{}", ends_file(scratch).display());
    unit.record_command = Some(["/bin/sh", "-c", &record].map(Into::into).into());
    unit.run_dir = Some(scratch.join("run"));
    unit.log = Some(scratch.join("log"));
    unit.limits.restart_after = Duration::from_millis(10);
    unit.limits.watchdog = Some(Duration::from_secs(2));
    unit.limits.start = Duration::from_secs(4);
    unit.limits.stop = Duration::from_millis(800);
    unit.limits.abort = Duration::from_millis(800);
    unit
}

fn ends_file(scratch: &Scratch) -> std::path::PathBuf {
    scratch.join("ends")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Runs the steps once and compares the arguments of the recording command.
#[track_caller]
fn check(steps: &str, expect: &str) {
    let scratch = Scratch::new("babysitter").unwrap();
    let babysitter = Babysitter::start(unit(&scratch, steps)).unwrap();
    let ends = babysitter.wait_ends(1, LIMIT).unwrap();
    let first = read(&ends_file(&scratch)).lines().next().unwrap_or_default().to_owned();
    assert_eq!(first, expect, "{steps}: {} {}", ends[0], read(&scratch.join("log")));
    assert!(ends[0].is_recorded);
}

#[test]
fn ends_are_recorded_in_the_words_of_systemd() {
    check("READY=1 exit=0", "success exited 0");
    check("READY=1 exit=7", "exit-code exited 7");
    check("exit=0", "protocol exited 0");
    check("STOPPING=1 exit=0", "success exited 0");
    check("READY=1 WATCHDOG=1 60000", "watchdog killed ABRT");
    check("deaf 60000", "timeout killed KILL");
    check("60000", "timeout killed TERM");
    check("watched READY=1 exit=3", "exit-code exited 3");
    check("2000 EXTEND_TIMEOUT_USEC=6000000 3000 READY=1 exit=4", "exit-code exited 4");
}

#[test]
fn messages_of_child_processes_are_ignored() {
    check("child=READY:1 exit=0", "protocol exited 0");
}

#[test]
fn abort_is_recorded_with_its_signal() {
    let scratch = Scratch::new("babysitter").unwrap();
    let babysitter = Babysitter::start(unit(&scratch, "READY=1 abort")).unwrap();
    babysitter.wait_ends(1, LIMIT).unwrap();
    let ends = read(&ends_file(&scratch));
    let first = ends.lines().next().unwrap_or_default();
    // the kernel may or may not write a core file
    assert!(["signal killed ABRT", "core-dump dumped ABRT"].contains(&first), "{first}");
}

#[test]
fn killed_service_is_restarted_and_stopped_one_is_not() {
    let scratch = Scratch::new("babysitter").unwrap();
    let babysitter = Babysitter::start(unit(&scratch, "STATUS=well READY=1 pings")).unwrap();
    let state = babysitter.wait_until("40 pings", LIMIT, |state| state.pings >= 40).unwrap();
    assert_eq!((state.runs, state.status.as_str()), (1, "well"));
    babysitter.signal(Signal::SIGKILL);
    babysitter.wait_until("the second run", LIMIT, |state| state.runs == 2 && state.is_ready()).unwrap();
    babysitter.stop_and_wait(LIMIT).unwrap();
    assert_eq!(read(&ends_file(&scratch)), "signal killed KILL\nsuccess killed TERM\n");
    babysitter.start_again();
    assert_eq!(babysitter.wait_ready(LIMIT).unwrap().runs, 3);
}

#[test]
fn replacement_in_place_is_an_end_and_a_run() {
    let scratch = Scratch::new("babysitter").unwrap();
    let steps = "READY=1 RELOADING=1 200 READY=1 pings";
    let babysitter = Babysitter::start(unit(&scratch, steps)).unwrap();
    let pid = babysitter.wait_until("a process", LIMIT, |state| state.pid.is_some()).unwrap().pid;
    let again =
        babysitter.wait_until("the second run", LIMIT, |state| state.runs == 2 && state.is_ready()).unwrap();
    assert_eq!(again.pid, pid);
    assert!(again.ends.len() == 1 && again.ends[0].is_replaced, "{:?}", again.ends);
    // if it is never ready again, only the watchdog's limit applies
    let scratch = Scratch::new("babysitter").unwrap();
    let babysitter = Babysitter::start(unit(&scratch, "READY=1 RELOADING=1 60000")).unwrap();
    let ends = babysitter.wait_ends(2, LIMIT).unwrap();
    assert_eq!(ends[1].result, ServiceResult::Watchdog);
}

#[test]
fn suspended_process_is_killed_by_the_watchdog() {
    let scratch = Scratch::new("babysitter").unwrap();
    let babysitter = Babysitter::start(unit(&scratch, "READY=1 pings")).unwrap();
    babysitter.wait_ready(LIMIT).unwrap();
    babysitter.signal(Signal::SIGSTOP);
    babysitter.wait_ends(1, LIMIT).unwrap();
    // a suspended process does not handle SIGABRT: only SIGKILL ends it
    assert_eq!(read(&ends_file(&scratch)).lines().next(), Some("watchdog killed KILL"));
}

#[test]
fn recorder_that_hangs_is_killed() {
    let scratch = Scratch::new("babysitter").unwrap();
    let mut unit = unit(&scratch, "READY=1 exit=0");
    unit.record_command = Some(["sleep", "60"].map(Into::into).into());
    let babysitter = Babysitter::start(unit).unwrap();
    let ends = babysitter.wait_ends(2, LIMIT).unwrap();
    assert!(!ends[0].is_recorded);
}

/// A program that the shell does not find, and one that cannot even be passed to it.
#[test]
fn missing_program_counts_as_an_end() {
    for (program, status) in [("/nonexistent/kedge", "127"), ("/bin/true\0", "203")] {
        let scratch = Scratch::new("babysitter").unwrap();
        let mut unit = unit(&scratch, "");
        unit.command = vec![program.into()];
        unit.restart = false;
        let babysitter = Babysitter::start(unit).unwrap();
        let ends = babysitter.wait_ends(1, LIMIT).unwrap();
        assert!(ends[0].is_recorded);
        assert_eq!(read(&ends_file(&scratch)), format!("exit-code exited {status}\n"));
        let state = babysitter.state();
        assert_eq!((state.phase, state.pid, state.runs), (Phase::Stopped, None, 1));
    }
}

#[test]
fn process_is_gone_while_its_end_is_recorded() {
    let scratch = Scratch::new("babysitter").unwrap();
    let mut unit = unit(&scratch, "READY=1 exit=0");
    unit.record_command = Some(["sleep", "60"].map(Into::into).into());
    let babysitter = Babysitter::start(unit).unwrap();
    let state = babysitter.wait_until("the record", LIMIT, |state| state.phase == Phase::Recording).unwrap();
    assert_eq!((state.pid, state.ends.len()), (None, 0));
}

#[test]
fn dropped_babysitter_leaves_no_process() {
    let scratch = Scratch::new("babysitter").unwrap();
    let babysitter = Babysitter::start(unit(&scratch, "deaf READY=1 pings")).unwrap();
    let state = babysitter.wait_ready(LIMIT).unwrap();
    assert_eq!(state.phase, Phase::Running);
    drop(babysitter);
    assert!(!Path::new(&format!("/proc/{}", state.pid.unwrap())).exists());
}

/// The babysitter as a program, which is killed or stopped; then its service must be gone.
#[track_caller]
fn check_program(signal: Signal) {
    let scratch = Scratch::new("babysitter").unwrap();
    let pid_file = scratch.join("pid");
    let script = format!("echo $$ >{}; exec sleep 60", pid_file.display());
    let mut babysitter = Command::new(env!("CARGO_BIN_EXE_kedge-babysitter"))
        .args(["--no-record", "--watchdog", "0", "--", "/bin/sh", "-c", &script])
        .spawn()
        .unwrap();
    let pid: u32 = poll(LIMIT, || read(&pid_file).trim().parse().ok()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(babysitter.id().cast_signed()), signal).unwrap();
    assert_eq!(babysitter.wait().unwrap().success(), signal == Signal::SIGTERM);
    let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat"));
    wait_until("the service's end", LIMIT, || stat().map_or(true, |stat| stat.contains(") Z ")));
}

#[test]
fn killed_program_leaves_no_process() {
    check_program(Signal::SIGKILL);
}

#[test]
fn program_stops_its_service_on_sigterm() {
    check_program(Signal::SIGTERM);
}
