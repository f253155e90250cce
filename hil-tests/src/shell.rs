//! The rescue shell on the machine's virtio console: commands in, output and exit code out.
//!
//! Always holds: a command is sent only after the shell has answered a greeting since the machine was started
//! or was last noticed to reboot, so it runs once; every wait has a limit. The shell is the image's own unit,
//! started by a credential.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{HilError, is_retryable};
use crate::stage::patience;

/// How often the greeting is repeated until the shell answers.
const GREET_EVERY: Duration = Duration::from_millis(500);
/// Longest time for a shell that has answered to read a command.
const READS_WITHIN: Duration = Duration::from_secs(60);
/// Most bytes of one command's output.
const OUTPUT_BYTES: usize = 4 << 20;

/// A shell in the guest.
pub(crate) struct Shell {
    stream: UnixStream,
    is_greeted: bool,
    count: u64,
}

impl Shell {
    /// Connects to the console; the guest may not have started yet.
    pub(crate) fn connect(path: &Path) -> Result<Shell, HilError> {
        let stream = UnixStream::connect(path).map_err(HilError::io("connect to", path))?;
        Ok(Shell { stream, is_greeted: false, count: 0 })
    }

    /// The machine restarts: the next command waits for the new shell.
    pub(crate) fn forget(&mut self) {
        self.is_greeted = false;
    }

    /// Runs a command; returns its exit code and output. The limit begins when the shell has answered a
    /// greeting. Effects of the command on its shell (variables, options, `exit`) end with it.
    pub(crate) fn run(&mut self, command: &str, limit: Duration) -> Result<(i32, String), HilError> {
        self.greet_within(patience())?;
        let end = Instant::now() + limit;
        self.count += 1;
        let (begin, finish) = (format!("@begin-{}", self.count), format!("@end-{}", self.count));
        self.send(&format!(
            "echo {}; ( {command}\n) </dev/null 2>&1; code=$?; echo; echo {} $code\n",
            unlike_its_echo(&begin),
            unlike_its_echo(&finish)
        ))?;
        let text = self.read_until(&format!("{finish} "), end, command)?;
        let output =
            text.rsplit_once(&format!("{begin}\r\n")).or_else(|| text.rsplit_once(&format!("{begin}\n")));
        let (output, code) = output
            .and_then(|(_, rest)| rest.rsplit_once(&format!("{finish} ")))
            .ok_or_else(|| HilError::Machine(format!("the shell's answer to {command:?} is {text:?}")))?;
        let code = code.trim().parse().map_err(|_| HilError::Machine(format!("exit code {code:?}")))?;
        Ok((code, output.trim().to_owned()))
    }

    /// Sends a command that ends the machine or this shell.
    pub(crate) fn send_last(&mut self, command: &str) -> Result<(), HilError> {
        self.greet_within(patience())?;
        self.is_greeted = false;
        self.send(&format!("{command}\n"))
    }

    /// Waits until the shell of this boot answers, if it has not yet.
    pub(crate) fn greet_within(&mut self, limit: Duration) -> Result<(), HilError> {
        if self.is_greeted {
            return Ok(());
        }
        let end = Instant::now() + limit;
        loop {
            self.count += 1;
            let word = format!("@here-{}", self.count);
            let greeting = format!("\nPS1=; PS2=; echo {} 0\n", unlike_its_echo(&word));
            // if a guest reads nothing for minutes, the console's buffer is full
            match self.send_within(&greeting, GREET_EVERY) {
                Err(error) if !is_retryable(error.kind()) => return Err(failed(error)),
                _ => {}
            }
            let wait = (Instant::now() + GREET_EVERY).min(end);
            match self.read_until(&format!("{word} "), wait, "greeting") {
                Ok(_) => break,
                Err(HilError::Never { .. }) if Instant::now() < end => {}
                Err(error) => return Err(error),
            }
        }
        self.is_greeted = true;
        Ok(())
    }

    fn send(&mut self, text: &str) -> Result<(), HilError> {
        self.send_within(text, READS_WITHIN).map_err(failed)
    }

    fn send_within(&mut self, text: &str, limit: Duration) -> io::Result<()> {
        self.stream.set_write_timeout(Some(limit))?;
        self.stream.write_all(text.as_bytes())
    }

    /// Reads up to the line end after the last `mark`.
    fn read_until(&mut self, mark: &str, end: Instant, awaited: &str) -> Result<String, HilError> {
        let mut bytes = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&bytes);
            if text.rsplit_once(mark).is_some_and(|(_, rest)| rest.ends_with('\n')) {
                return Ok(text.into_owned());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || bytes.len() > OUTPUT_BYTES {
                let found = text.chars().rev().take(400).collect::<Vec<_>>().into_iter().rev().collect();
                return Err(HilError::Never { awaited: format!("the shell's answer to {awaited:?}"), found });
            }
            self.stream.set_read_timeout(Some(left)).map_err(failed)?;
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(HilError::Machine("QEMU has ended".into())),
                Ok(length) => bytes.extend_from_slice(&chunk[..length]),
                Err(error) if is_retryable(error.kind()) => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

fn failed(error: io::Error) -> HilError {
    HilError::Machine(format!("console: {error}"))
}

/// Writes a mark in a form that the shell joins to the mark itself: so the echo of a console whose shell has
/// not started yet does not look like an answer.
fn unlike_its_echo(mark: &str) -> String {
    mark.replacen('@', "@\"\"", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell on a console, with or without echo.
    fn shell(echoes: bool) -> Shell {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let end = || std::os::fd::OwnedFd::from(theirs.try_clone().unwrap());
        let mut command = std::process::Command::new("sh");
        command.args(echoes.then_some("-v")).stdin(end()).stdout(end()).stderr(end());
        // it ends with our end of the console
        let mut child = command.spawn().unwrap();
        std::thread::spawn(move || child.wait());
        Shell { stream: ours, is_greeted: false, count: 0 }
    }

    fn check(echoes: bool) {
        let mut shell = shell(echoes);
        let limit = Duration::from_secs(60);
        assert_eq!(shell.run("echo one; echo two; false", limit).unwrap(), (1, "one\ntwo".to_owned()));
        assert_eq!(shell.run("echo three", limit).unwrap(), (0, "three".to_owned()));
        assert_eq!(shell.run("set -e; echo four; false; echo five", limit).unwrap(), (1, "four".to_owned()));
        assert_eq!(shell.run("false; exit 3", limit).unwrap(), (3, String::new()));
        assert_eq!(shell.run("false; echo six", limit).unwrap(), (0, "six".to_owned()));
    }

    #[test]
    fn guest_that_reads_nothing_is_given_up() {
        let (mut ours, _theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        while ours.write(b"greeting").is_ok() {}
        ours.set_nonblocking(false).unwrap();
        let mut shell = Shell { stream: ours, is_greeted: false, count: 0 };
        let never = shell.greet_within(Duration::from_secs(1));
        assert!(matches!(never, Err(HilError::Never { .. })), "{never:?}");
    }

    #[test]
    fn command_returns_output_and_exit_code() {
        check(false);
    }

    #[test]
    fn console_echo_is_not_an_answer() {
        check(true);
    }
}
