//! A hub for tests: a real process, real TLS, a free port, a data directory of its own.
//!
//! Always holds: a hub ends with the value that represents it, and no command runs for ever. After a failed
//! test the hub's log is shown.

#![allow(clippy::disallowed_methods, reason = "tests read what they and the hub wrote")]
#![allow(dead_code, reason = "each test binary uses its own part of it")]

mod client;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

#[allow(unused_imports, reason = "each test binary uses its own part of it")]
pub(crate) use client::{Client, Reply, Watch};
use kedge_rig::scratch::Scratch;

/// Longest time of any command in a test, even on a busy machine.
pub(crate) const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// A running hub; killed when dropped.
pub(crate) struct Hub {
    child: Child,
    pub(crate) url: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) flags: Vec<String>,
    /// The directory of data and log, if no test owns the directory.
    scratch: Option<Scratch>,
}

/// The output of a command, and its exit status.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// An empty directory, removed when dropped.
pub(crate) fn scratch() -> Scratch {
    Scratch::new("hub-test").unwrap()
}

impl Hub {
    /// A hub with a directory of its own.
    pub(crate) fn new() -> Hub {
        Hub::with(&[])
    }

    /// A hub with a directory of its own, and more flags.
    pub(crate) fn with(flags: &[&str]) -> Hub {
        Hub::in_scratch(scratch(), flags)
    }

    fn in_scratch(scratch: Scratch, flags: &[&str]) -> Hub {
        let data_dir = scratch.path().join("hub");
        let mut command = serve(&data_dir, flags);
        command.stderr(fs::File::options().append(true).create(true).open(log_in(&scratch)).unwrap());
        let mut hub = Hub::spawn(command, &data_dir);
        hub.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        hub.scratch = Some(scratch);
        hub
    }

    /// A hub on a directory of the test's.
    pub(crate) fn start(data_dir: &Path) -> Hub {
        Hub::spawn(serve(data_dir, &[]), data_dir)
    }

    /// A program whose first output is the same as the hub's.
    pub(crate) fn spawn(mut command: Command, data_dir: &Path) -> Hub {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = lines_of(child.stdout.take().unwrap());
        let mut url = String::new();
        loop {
            let Ok(line) = lines.recv_timeout(COMMAND_LIMIT) else {
                let _ = child.kill();
                let _ = child.wait();
                panic!("the hub did not start in {}", data_dir.display());
            };
            if let Some(found) = line.strip_prefix("listening: ") {
                url = found.to_owned();
            }
            if line.starts_with("kubeconfig: ") {
                break;
            }
        }
        Hub { child, url, data_dir: data_dir.to_owned(), flags: Vec::new(), scratch: None }
    }

    /// Ends the hub with a signal (`TERM`, `KILL`); returns its exit status, and the time that it took.
    pub(crate) fn stop(&mut self, signal: &str) -> (Option<i32>, Duration) {
        let asked = Instant::now();
        if let Some(status) = self.child.try_wait().unwrap() {
            return (status.code(), Duration::ZERO);
        }
        self.signal(signal);
        let status = wait(&mut self.child);
        (status, asked.elapsed())
    }

    /// Sends a signal (`STOP`, `CONT`).
    pub(crate) fn signal(&self, signal: &str) {
        Command::new("kill").arg(format!("-{signal}")).arg(self.child.id().to_string()).status().unwrap();
    }

    /// Waits until the hub has ended by itself; returns its exit status.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        wait(&mut self.child)
    }

    /// Ends the hub with a signal and starts it again on the same directory (on another port).
    pub(crate) fn restart(&mut self, signal: &str) {
        self.stop(signal);
        *self = match self.scratch.take() {
            Some(scratch) => {
                let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
                Hub::in_scratch(scratch, &flags)
            }
            None => Hub::start(&self.data_dir),
        };
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(mut self) {
        self.stop("KILL");
    }

    /// Ends it as an operator would.
    pub(crate) fn terminate(mut self) {
        assert_eq!(self.stop("TERM").0, Some(0));
    }

    /// The log of a hub with a directory of its own.
    pub(crate) fn log(&self) -> String {
        let scratch = self.scratch.as_ref().expect("the hub has a directory of its own");
        fs::read_to_string(log_in(scratch)).unwrap()
    }

    /// Runs another command of the hub's program on this hub's directory.
    pub(crate) fn command(&self, words: &[&str]) -> Outcome {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kedge-hub"));
        command.args(words).arg("--data-dir").arg(&self.data_dir);
        run(command, "")
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() && self.scratch.is_some() {
            eprintln!("--- the hub's log\n{}", self.log());
        }
    }
}

fn serve(data_dir: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kedge-hub"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data_dir).args(flags);
    command
}

fn log_in(scratch: &Scratch) -> PathBuf {
    scratch.path().join("log")
}

/// Runs a command to its end with this standard input.
pub(crate) fn run(mut command: Command, input: &str) -> Outcome {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (out, err) = (read_all(child.stdout.take().unwrap()), read_all(child.stderr.take().unwrap()));
    // a command may end without reading its input
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let code = wait(&mut child);
    Outcome { code, out: out.join().unwrap(), err: err.join().unwrap() }
}

pub(crate) fn wait(child: &mut Child) -> Option<i32> {
    let end = Instant::now() + COMMAND_LIMIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() > end {
            let _ = child.kill();
            panic!("a command was still running after {COMMAND_LIMIT:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn read_all(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut text = Vec::new();
        let _ = from.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// The output of a process, line by line; a thread reads it, so that the process never waits for a reader.
pub(crate) fn lines_of(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}
