//! A service whose behaviour is its arguments: what the babysitter's tests start.
//!
//! `kedge-puppet STEP...` performs the steps in order and then exits with code 0. Steps: `ready`, `stopping`, `ping`,
//! `status=TEXT`, `extend=MILLISECONDS`, `usec` (fails unless WATCHDOG_USEC and WATCHDOG_PID are meant for it),
//! `sleep=MILLISECONDS`, `pings=COUNT` (one every 20 ms), `forever` (pings until it is killed), `exit=CODE`, `abort`,
//! `deaf` (ignores SIGTERM), `once=FILE` (ends with code 0 if FILE exists, else creates it and goes on),
//! `env=FILE` (appends the variables of an ended run to FILE), `child-ready` (a child process says READY=1).

use kedge_platform::Supervisor as _;
use kedge_platform::linux::NotifySocket;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    for step in std::env::args().skip(1) {
        let (name, value) = step.split_once('=').unwrap_or((&step, ""));
        if let Some(code) = perform(name, value) {
            return code;
        }
    }
    ExitCode::SUCCESS
}

fn perform(name: &str, value: &str) -> Option<ExitCode> {
    let millis = || Duration::from_millis(value.parse().unwrap_or(0));
    match name {
        "ready" => supervisor().ready(),
        "stopping" => supervisor().stopping(),
        "ping" => supervisor().watchdog_ping(),
        "status" => supervisor().status(value),
        "extend" => supervisor().extend_timeout(millis()),
        "usec" => return (!watchdog_is_ours()).then_some(ExitCode::from(64)),
        "sleep" => std::thread::sleep(millis()),
        "pings" => (0..value.parse().unwrap_or(0)).for_each(|_| ping_and_rest()),
        "forever" => loop {
            ping_and_rest();
        },
        "exit" => return Some(ExitCode::from(value.parse::<u8>().unwrap_or(65))),
        "abort" => std::process::abort(),
        "deaf" => ignore_sigterm(),
        "once" => {
            if std::fs::exists(value).unwrap_or(true) {
                return Some(ExitCode::SUCCESS);
            }
            drop(std::fs::File::create(value));
        }
        "env" => return append_environment(value),
        "child-ready" => return child_says_ready(),
        other => {
            eprintln!("unknown step {other}");
            return Some(ExitCode::from(66));
        }
    }
    None
}

fn ping_and_rest() {
    supervisor().watchdog_ping();
    std::thread::sleep(Duration::from_millis(20));
}

fn supervisor() -> NotifySocket {
    NotifySocket::from_environment()
}

fn watchdog_is_ours() -> bool {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
    number("WATCHDOG_USEC").is_some_and(|usec| usec > 0)
        && number("WATCHDOG_PID") == Some(std::process::id().into())
}

fn ignore_sigterm() {
    use nix::sys::signal::{SigSet, Signal};
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    if let Err(error) = set.thread_block() {
        eprintln!("block SIGTERM: {error}");
    }
}

fn append_environment(path: &str) -> Option<ExitCode> {
    let value = |name: &str| std::env::var(name).unwrap_or_else(|_| "-".into());
    let line = format!("{} {} {}\n", value("SERVICE_RESULT"), value("EXIT_CODE"), value("EXIT_STATUS"));
    let written = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    written.is_err().then_some(ExitCode::from(67))
}

fn child_says_ready() -> Option<ExitCode> {
    let program = std::env::current_exe().ok()?;
    let status = std::process::Command::new(program).arg("ready").status();
    (!status.is_ok_and(|status| status.success())).then_some(ExitCode::from(68))
}
