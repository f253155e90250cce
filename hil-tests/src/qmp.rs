//! QEMU's machine protocol: commands, answers, and the events between them.
//!
//! Always holds: every wait has a limit; events that arrive while an answer is awaited are kept, in order.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::error::{HilError, is_retryable};

/// Longest wait for one answer; saving a machine's memory to a busy disk takes seconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);
/// Most bytes of one message, and most events kept: a machine in a reset loop must not fill our memory.
const MESSAGE_BYTES: usize = 1 << 20;
const EVENTS_KEPT: usize = 1000;

/// A connection to one machine's monitor.
pub(crate) struct Qmp {
    stream: UnixStream,
    buffer: Vec<u8>,
    events: VecDeque<Value>,
}

impl Qmp {
    /// Connects, and leaves the negotiation mode.
    pub(crate) fn connect(path: &Path) -> Result<Qmp, HilError> {
        let stream = UnixStream::connect(path).map_err(HilError::io("connect to", path))?;
        let mut qmp = Qmp { stream, buffer: Vec::new(), events: VecDeque::new() };
        qmp.message(Instant::now() + ANSWER_LIMIT)?;
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Runs a command; returns its result.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, HilError> {
        let line = json!({"execute": command, "arguments": arguments}).to_string() + "\n";
        self.stream
            .write_all(line.as_bytes())
            .map_err(|error| HilError::Machine(format!("QMP {command}: {error}")))?;
        let end = Instant::now() + ANSWER_LIMIT;
        loop {
            let Some(message) = self.message(end)? else {
                return Err(HilError::Machine(format!("QMP {command}: no answer in {ANSWER_LIMIT:?}")));
            };
            if let Some(error) = message.get("error") {
                return Err(HilError::Machine(format!("QMP {command}: {error}")));
            }
            if let Some(value) = message.get("return") {
                return Ok(value.clone());
            }
            self.keep(message);
        }
    }

    /// Waits for an event of this name, or finds one that has already arrived; drops all earlier events.
    pub(crate) fn wait_event(&mut self, name: &str, limit: Duration) -> Result<bool, HilError> {
        let end = Instant::now() + limit;
        loop {
            while let Some(event) = self.events.pop_front() {
                if event["event"] == name {
                    return Ok(true);
                }
            }
            match self.message(end)? {
                Some(message) => self.keep(message),
                None => return Ok(false),
            }
        }
    }

    /// Drops the events that have arrived so far.
    pub(crate) fn forget_events(&mut self) {
        self.events.clear();
    }

    fn keep(&mut self, message: Value) {
        if self.events.len() == EVENTS_KEPT {
            self.events.pop_front();
        }
        self.events.push_back(message);
    }

    fn message(&mut self, end: Instant) -> Result<Option<Value>, HilError> {
        loop {
            if let Some(line_end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=line_end).collect();
                return serde_json::from_slice(&line)
                    .map(Some)
                    .map_err(|error| HilError::Machine(format!("QMP sent invalid JSON: {error}")));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let failed = |error| HilError::Machine(format!("QMP: {error}"));
            self.stream.set_read_timeout(Some(left)).map_err(failed)?;
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(HilError::Machine("QEMU has ended".into())),
                Ok(length) => self.buffer.extend_from_slice(&chunk[..length]),
                Err(error) if is_retryable(error.kind()) => {}
                Err(error) => return Err(failed(error)),
            }
            if self.buffer.len() > MESSAGE_BYTES {
                return Err(HilError::Machine(format!("QMP sent a message of over {MESSAGE_BYTES} bytes")));
            }
        }
    }
}
