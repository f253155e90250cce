//! A service whose behaviour is its arguments: what the babysitter's tests start.
//!
//! `kedge-puppet STEP...` performs the steps in order and then exits with code 0. Steps: `ready`, `stopping`, `ping`,
//! `status=TEXT`, `extend=MILLISECONDS`, `usec` (fails unless WATCHDOG_USEC and WATCHDOG_PID are meant for it),
//! `sleep=MILLISECONDS`, `pings=COUNT` (one every 20 ms), `forever` (pings until it is killed), `exit=CODE`, `abort`,
//! `deaf` (ignores SIGTERM), `once=FILE` (ends with code 0 if FILE exists, else creates it and goes on),
//! `env=FILE` (appends the variables of an ended run to FILE), `child-ready` (a child process says READY=1).

use std::io::Write;
use std::os::unix::net::UnixDatagram;
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
        "ready" => notify("READY=1"),
        "stopping" => notify("STOPPING=1"),
        "ping" => notify("WATCHDOG=1"),
        "status" => notify(&format!("STATUS={value}")),
        "extend" => notify(&format!("EXTEND_TIMEOUT_USEC={}", millis().as_micros())),
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
    notify("WATCHDOG=1");
    std::thread::sleep(Duration::from_millis(20));
}

fn notify(text: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let sent = UnixDatagram::unbound().and_then(|socket| socket.send_to(text.as_bytes(), path));
    if let Err(error) = sent {
        eprintln!("notify {text}: {error}");
    }
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
