//! A person at the device: standard input and outputs of this process, and its terminal.
//!
//! Always holds: input is read only when it can be used, and a write never blocks, because only as many bytes
//! are written as surely fit; so signals are handled at any time. The terminal is as before afterwards.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::AsFd;

use kedge_platform::streams::{Awaited, RawTerminal, Signals, Told, is_ready};
use kedge_platform::workloads::{WindowSize, window_size};

use super::relay::{Client, Lost, Output, Said, is_later};

/// Bytes that a writable pipe accepts without blocking.
const SURE_BYTES: usize = 4096;
/// Bytes read at once.
const INPUT_BYTES: usize = 16 * 1024;

/// This process's own streams.
pub(super) struct Local {
    signals: Signals,
    /// `None` if it is not wanted, or has ended.
    stdin: Option<File>,
    stdout: File,
    stderr: File,
    /// The terminal is raw while this lives.
    _terminal: Option<RawTerminal>,
    /// Output that was not written yet.
    waiting: Vec<u8>,
    to: Output,
    ended_by: Option<i32>,
}

/// A stream without the standard library's buffer.
fn plain(stream: impl AsFd) -> Result<File, String> {
    let own = stream.as_fd().try_clone_to_owned();
    own.map(File::from).map_err(|error| format!("use the standard streams: {error}"))
}

impl Local {
    pub(super) fn new(reads: bool, tty: bool, signals: Signals) -> Result<Self, String> {
        let terminal = match tty && reads && io::stdin().is_terminal() {
            true => Some(RawTerminal::begin().map_err(|error| format!("make the terminal raw: {error}"))?),
            false => None,
        };
        if tty && reads && terminal.is_none() {
            eprintln!("Unable to use a TTY - input is not a terminal or the right kind of file");
        }
        Ok(Self {
            signals,
            stdin: if reads { Some(plain(io::stdin())?) } else { None },
            stdout: plain(io::stdout())?,
            stderr: plain(io::stderr())?,
            _terminal: terminal,
            waiting: Vec::new(),
            to: Output::Stdout,
            ended_by: None,
        })
    }

    pub(super) fn size(&self) -> Option<WindowSize> {
        self.stdin.as_ref().and_then(window_size).or_else(|| window_size(&self.stdout))
    }

    /// The signal that ended it.
    pub(super) fn ended_by(&self) -> Option<i32> {
        self.ended_by
    }

    fn output(&self) -> &File {
        match self.to {
            Output::Stdout => &self.stdout,
            Output::Stderr => &self.stderr,
        }
    }

    /// Writes as much as surely fits.
    fn flush(&mut self) -> Result<(), Lost> {
        while !self.waiting.is_empty() && is_ready(Awaited::write(self.output())) {
            let part = &self.waiting[..self.waiting.len().min(SURE_BYTES)];
            match self.output().write(part) {
                Ok(count) => drop(self.waiting.drain(..count)),
                Err(error) if is_later(&error) => return Ok(()),
                Err(_) => return Err(Lost),
            }
        }
        Ok(())
    }
}

impl Client for Local {
    fn said(&mut self, takes_input: bool) -> Option<Said> {
        match self.signals.next() {
            Some(Told::End(signal)) => {
                self.ended_by = Some(signal);
                return Some(Said::Gone);
            }
            Some(Told::Resized) => {
                if let Some(size) = self.size() {
                    return Some(Said::Resize(size));
                }
            }
            None => {}
        }
        let stdin = self.stdin.as_mut().filter(|stdin| takes_input && is_ready(Awaited::read(*stdin)))?;
        let mut bytes = vec![0; INPUT_BYTES];
        match stdin.read(&mut bytes) {
            Ok(count @ 1..) => {
                bytes.truncate(count);
                Some(Said::Input(bytes))
            }
            Err(error) if is_later(&error) => None,
            Ok(0) | Err(_) => {
                self.stdin = None;
                Some(Said::EndOfInput)
            }
        }
    }

    fn has_room(&mut self) -> Result<bool, Lost> {
        self.flush()?;
        Ok(self.waiting.is_empty())
    }

    fn deliver(&mut self, from: Output, bytes: &[u8]) -> Result<(), Lost> {
        self.to = from;
        self.waiting.extend_from_slice(bytes);
        self.flush()
    }

    fn awaited(&self, takes_input: bool) -> Vec<Awaited<'_>> {
        let mut awaited = vec![Awaited::read(&self.signals)];
        awaited.extend(self.stdin.as_ref().filter(|_| takes_input).map(Awaited::read));
        if !self.waiting.is_empty() {
            awaited.push(Awaited::write(self.output()));
        }
        awaited
    }
}
