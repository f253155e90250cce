//! The evidence of how the previous run of the agent ended.
//!
//! Three sources of evidence: the record that `ExecStopPost` leaves (systemd's result, and the marks that the
//! agent made in its volatile run directory), the hardware watchdog's boot status, and the kernel's panic
//! records. The record is written to the run directory first, which no stuck disk delays, and then to the
//! disk, where it survives a reboot.
//!
//! Always holds: evidence is used once; `consume` makes that durable, and writes only when there is
//! new evidence. An invalid record is reported and set aside, and never stops a start.
//!
//! Leaves to others: conclusions. Core decides whether an ending is counted against a config.

use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::files::{Files, ReadError, WriteError};
use crate::replace;

/// Path of the exit record, below the data directory.
pub const EXIT_RECORD: &str = "last-exit.json";
/// The list of consumed evidence.
pub const EVIDENCE_SEEN: &str = "evidence-seen.json";
/// The format of both files. A higher one is from a newer agent: it is ignored and left alone.
const FORMAT: u32 = 1;
/// Longest file of ours that is read here, in bytes: a record is under 1 KiB, the list of seen evidence under
/// 8.
const RECORD_LIMIT: usize = 32 * 1024;
/// Longest text taken from the environment or a mark, in bytes.
const TEXT_LIMIT: usize = 128;
/// Most stalled loops remembered.
const STALLED_LIMIT: usize = 16;
/// Most panic records remembered as seen. One panic leaves a dozen parts.
pub const PANIC_RECORDS_LIMIT: usize = 256;

/// How one run ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitRecord {
    /// The boot in which the run ended.
    pub boot_id: String,
    /// The number of the run in that boot, counted from 1; 0: unknown.
    #[serde(default)]
    pub run: u64,
    /// systemd's `$SERVICE_RESULT`, or `unknown`.
    pub result: String,
    /// `$EXIT_CODE`: `exited`, `killed` or `dumped`; empty when unknown.
    #[serde(default)]
    pub exit_code: String,
    /// `$EXIT_STATUS`: a number or a signal's name without SIG; empty when unknown.
    #[serde(default)]
    pub exit_status: String,
    /// The run had sent READY=1.
    #[serde(default)]
    pub was_ready: bool,
    /// The run had begun to stop, by its own choice or on request.
    #[serde(default)]
    pub stop_asked: bool,
    /// The loops that were stalled when the watchdog ping was withheld.
    #[serde(default)]
    pub stalled: Vec<String>,
}

/// The plain meaning of a record's `result`, after systemd.exec(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Exit code 0, or a signal that counts as a clean stop.
    Success,
    /// Exit code other than 0.
    ExitCode,
    /// Killed by a signal.
    Signal,
    /// Killed by a signal, memory dumped.
    CoreDump,
    /// The supervisor missed its ping.
    Watchdog,
    /// The kernel ran out of memory.
    OutOfMemory,
    /// It was not ready in time.
    StartTimeout,
    /// It was ordered to stop and took too long. Also without a mark of the order: a service that was
    /// ready has no other time limit.
    StopTimeout,
    /// Started too often.
    StartLimit,
    /// The supervisor could not even start it: resources, protocol, condition.
    NotStarted,
    /// Not recorded, or a result that this version does not know.
    Unknown,
}

impl ExitRecord {
    /// The plain meaning of `result`.
    pub fn ending(&self) -> Ending {
        match self.result.as_str() {
            "success" => Ending::Success,
            "exit-code" => Ending::ExitCode,
            "signal" => Ending::Signal,
            "core-dump" => Ending::CoreDump,
            "watchdog" => Ending::Watchdog,
            "oom-kill" => Ending::OutOfMemory,
            "timeout" if self.was_ready || self.stop_asked => Ending::StopTimeout,
            "timeout" => Ending::StartTimeout,
            "start-limit-hit" | "start-limit" => Ending::StartLimit,
            "resources" | "protocol" | "exec-condition" => Ending::NotStarted,
            _ => Ending::Unknown,
        }
    }
}

impl fmt::Display for ExitRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = if self.exit_status.is_empty() { "unknown" } else { &self.exit_status };
        match self.ending() {
            Ending::Success => write!(f, "ended cleanly")?,
            Ending::ExitCode => write!(f, "exit code {status}")?,
            Ending::Signal => write!(f, "killed by signal {status}")?,
            Ending::CoreDump => write!(f, "killed by signal {status}, core dumped")?,
            Ending::Watchdog => write!(f, "killed by the watchdog")?,
            Ending::OutOfMemory => write!(f, "killed for lack of memory")?,
            Ending::StartTimeout => write!(f, "not ready in time")?,
            Ending::StopTimeout => write!(f, "asked to stop, killed at its time limit")?,
            Ending::StartLimit => write!(f, "started too often")?,
            Ending::NotStarted => write!(f, "could not be started ({})", self.result)?,
            Ending::Unknown => write!(f, "ended with result {:?}", self.result)?,
        }
        if !self.stalled.is_empty() {
            write!(f, ", stalled: {}", self.stalled.join(", "))?;
        }
        Ok(())
    }
}

/// Evidence of how the previous run ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The record of `ExecStopPost` (or the babysitter); compare its `boot_id`.
    pub exit_record: Option<ExitRecord>,
    /// This boot began with a reset by the hardware watchdog, and that was not consumed yet.
    pub hardware_watchdog_reset: bool,
    /// A kernel panic was recorded that was not consumed yet.
    pub kernel_panic: bool,
    /// Problems with the evidence, for the log and for reports; bounded.
    pub problems: Vec<String>,
}

/// How the previous run ended.
pub trait PreviousExit: Send + Sync {
    /// All evidence not yet consumed. Changes nothing.
    fn read(&self) -> Evidence;

    /// Marks the existing evidence as consumed, durably. Call it at every start, right *after* the conclusion
    /// from the evidence is on disk: a power cut in between lets the hardware's evidence be used twice, while
    /// the other order would lose a crash; the exit record names its run, so it cannot be used twice.
    fn consume(&self) -> Result<(), WriteError>;
}

/// The machine's own traces of its last reset.
pub trait ResetTraces: Send + Sync {
    /// The kernel's name for this boot.
    fn boot_id(&self) -> String;
    /// True if this boot began with a reset by a hardware watchdog.
    fn watchdog_reset(&self) -> bool;
    /// A fingerprint of each panic record, newest first, at most [`PANIC_RECORDS_LIMIT`]. The fingerprint is
    /// of the content, because a record moves from the firmware's store to the disk during boot and so
    /// changes its path and time.
    fn panic_records(&self) -> Vec<String>;
}

/// [`PreviousExit`] from a data directory, perhaps a run directory, and the machine's traces.
pub struct RecordedExit<T> {
    files: Arc<dyn Files>,
    run: Option<RunDirectory>,
    traces: T,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Seen {
    version: u32,
    // The boot whose watchdog reset was consumed.
    watchdog_boot_id: String,
    // Fingerprints of panic records, newest first.
    panics: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Versioned<R> {
    version: u32,
    record: R,
}

/// Only the format, of a file that may be from a newer agent.
#[derive(Deserialize)]
struct OnlyVersion {
    version: u32,
}

enum Loaded<R> {
    Absent,
    Known(R),
    /// From a newer agent, or not readable just now: left alone.
    Unknown(String),
    /// The record was not written by us; it is set aside when consumed.
    Corrupt(String),
}

impl<T: ResetTraces> RecordedExit<T> {
    /// Evidence kept in `files`, which is opened on the same directory as [`record_exit`]'s.
    pub fn new(files: Arc<dyn Files>, traces: T) -> Self {
        Self { files, run: None, traces }
    }

    /// Evidence that is also kept in the run directory, which has the record of this boot's latest end.
    #[must_use]
    pub fn beside(self, run: RunDirectory) -> Self {
        Self { run: Some(run), ..self }
    }

    /// The machine's own traces.
    pub fn traces(&self) -> &T {
        &self.traces
    }

    fn load<R: for<'de> Deserialize<'de>>(&self, name: &str) -> Loaded<R> {
        let bytes = match self.files.read(Path::new(name), RECORD_LIMIT) {
            Ok(bytes) => bytes,
            Err(ReadError::NotFound { .. }) => return Loaded::Absent,
            Err(error @ (ReadError::NotAFile { .. } | ReadError::TooLarge { .. })) => {
                return Loaded::Corrupt(error.to_string());
            }
            Err(error) => return Loaded::Unknown(error.to_string()),
        };
        match serde_json::from_slice::<OnlyVersion>(&bytes) {
            Ok(OnlyVersion { version }) if version > FORMAT => {
                return Loaded::Unknown(format!("{name} has format {version}, expected at most {FORMAT}"));
            }
            Ok(_) => {}
            Err(error) => return Loaded::Corrupt(no_record(name, &error)),
        }
        match serde_json::from_slice(&bytes) {
            Ok(record) => Loaded::Known(record),
            Err(error) => Loaded::Corrupt(no_record(name, &error)),
        }
    }

    /// The list of consumed evidence; empty if it cannot be read. Old evidence may then be used once more,
    /// which is the safe side: it is only read if the previous run did not end cleanly.
    fn seen(&self) -> (Seen, Option<String>) {
        match self.load(EVIDENCE_SEEN) {
            Loaded::Absent => (Seen::default(), None),
            Loaded::Known(seen) => (seen, None),
            Loaded::Unknown(problem) | Loaded::Corrupt(problem) => (Seen::default(), Some(problem)),
        }
    }

    /// The run directory's record, which is newer than the disk's if it exists: it is written first, and
    /// consumed with the other. A record of another boot is ignored, because the directory should be empty
    /// after a reboot.
    fn volatile_record(&self) -> Option<ExitRecord> {
        self.run.as_ref()?.recorded().filter(|record| record.boot_id == self.traces.boot_id())
    }

    fn consume_record(&self) -> Result<(), WriteError> {
        match self.load::<Versioned<ExitRecord>>(EXIT_RECORD) {
            Loaded::Absent | Loaded::Unknown(_) => Ok(()),
            Loaded::Known(_) => self.files.remove(Path::new(EXIT_RECORD)),
            Loaded::Corrupt(problem) => self.put_aside(EXIT_RECORD, &problem),
        }
    }

    fn put_aside(&self, name: &str, problem: &str) -> Result<(), WriteError> {
        let aside = self.files.set_aside(Path::new(name))?;
        log::warn!("{problem}; renamed to {}", aside.display());
        Ok(())
    }

    fn consume_traces(&self) -> Result<(), WriteError> {
        let old = match self.load::<Seen>(EVIDENCE_SEEN) {
            Loaded::Known(seen) => seen,
            Loaded::Absent => Seen { version: FORMAT, ..Seen::default() },
            // Not ours to overwrite.
            Loaded::Unknown(_) => return Ok(()),
            Loaded::Corrupt(problem) => {
                self.put_aside(EVIDENCE_SEEN, &problem)?;
                Seen { version: FORMAT, ..Seen::default() }
            }
        };
        let new = old.clone().with(&self.traces);
        if new == old {
            return Ok(());
        }
        let content = serde_json::to_vec(&new).expect("plain strings always serialize");
        self.files.write_durably(Path::new(EVIDENCE_SEEN), &content)
    }
}

impl Seen {
    fn with(mut self, traces: &impl ResetTraces) -> Self {
        if traces.watchdog_reset() {
            self.watchdog_boot_id = traces.boot_id();
        }
        let mut new: Vec<_> =
            traces.panic_records().into_iter().filter(|record| !self.panics.contains(record)).collect();
        if !new.is_empty() {
            new.append(&mut self.panics);
            new.truncate(2 * PANIC_RECORDS_LIMIT);
            self.panics = new;
        }
        self
    }
}

impl<T: ResetTraces> PreviousExit for RecordedExit<T> {
    fn read(&self) -> Evidence {
        let (seen, seen_problem) = self.seen();
        let (durable, record_problem) = match self.load::<Versioned<ExitRecord>>(EXIT_RECORD) {
            Loaded::Absent => (None, None),
            Loaded::Known(versioned) => (Some(versioned.record), None),
            Loaded::Unknown(problem) | Loaded::Corrupt(problem) => (None, Some(problem)),
        };
        Evidence {
            exit_record: self.volatile_record().or(durable),
            hardware_watchdog_reset: self.traces.watchdog_reset()
                && seen.watchdog_boot_id != self.traces.boot_id(),
            kernel_panic: self.traces.panic_records().iter().any(|record| !seen.panics.contains(record)),
            problems: record_problem.into_iter().chain(seen_problem).collect(),
        }
    }

    fn consume(&self) -> Result<(), WriteError> {
        if let Some(run) = &self.run {
            run.clear(EXIT_RECORD);
        }
        // Both are tried; the first failure is returned.
        let record = self.consume_record();
        self.consume_traces().and(record)
    }
}

/// The fingerprint of a panic record's content.
pub fn fingerprint(content: &[u8]) -> String {
    // 64 bits distinguish a few hundred records, and keep the list of the seen small.
    Sha256::digest(content).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The volatile directory (a tmpfs such as `/run/kedge`) in which the running agent leaves marks for the
/// program that records its end. Marks are plain files; nothing here is durable, on purpose. Failures are
/// logged and ignored.
#[derive(Clone, Debug)]
pub struct RunDirectory {
    path: PathBuf,
}

impl RunDirectory {
    const READY: &str = "ready";
    const STOPPING: &str = "stopping";
    const STALLED: &str = "stalled";
    const RUN: &str = "run";
    const REPLACED: &str = "replaced";

    /// Marks in `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The directory of the marks.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins a new run: creates the directory, removes the marks of the last run, and counts this one.
    pub fn begin(&self) {
        if let Err(error) = fs::create_dir_all(&self.path) {
            log::warn!("cannot create {}: {error}", self.path.display());
        }
        let run = self.next_run();
        // its number, too: if there is no room for the next number, a missing one is better than another
        // run's
        self.clear_marks();
        self.clear(Self::RUN);
        self.mark(Self::RUN, &run.to_string());
    }

    /// Removes the marks of the last run: a program that ends before it begins a run is not taken for it.
    pub fn clear_marks(&self) {
        for mark in [Self::READY, Self::STOPPING, Self::STALLED] {
            self.clear(mark);
        }
    }

    /// The number of the next run of the agent in this boot, counted from 1.
    pub fn next_run(&self) -> u64 {
        self.run().saturating_add(1)
    }

    /// The number of the latest run in this boot; 0 if unknown.
    fn run(&self) -> u64 {
        self.read(Self::RUN, TEXT_LIMIT).parse().unwrap_or_default()
    }

    /// The run is ready.
    pub fn mark_ready(&self) {
        self.mark(Self::READY, "");
    }

    /// The run stops, by choice or on request.
    pub fn mark_stopping(&self) {
        self.mark(Self::STOPPING, "");
    }

    /// Records that these loops are stalled and the ping is withheld; with an empty list, that they run
    /// again.
    pub fn mark_stalled(&self, loops: &[&str]) {
        if loops.is_empty() { self.clear(Self::STALLED) } else { self.mark(Self::STALLED, &loops.join("\n")) }
    }

    /// Counts a replacement of the program by itself, after a run that lasted `ran`. False if there were too
    /// many lately, or this one could not be counted: then the service manager has to pace the next start.
    pub fn may_replace(&self, now: Duration, ran: Duration) -> bool {
        let earlier: Vec<Duration> = self
            .read(Self::REPLACED, TEXT_LIMIT)
            .lines()
            .filter_map(|line| line.parse().ok().map(Duration::from_millis))
            .collect();
        if !replace::is_allowed(&earlier, now, ran) {
            return false;
        }
        // only the latest ones can prevent a replacement
        let mut kept: Vec<_> = replace::recent(&earlier, now).chain([now]).collect();
        kept.drain(..kept.len().saturating_sub(replace::AT_MOST));
        let text: String = kept.iter().map(|time| format!("{}\n", time.as_millis())).collect();
        self.write_new(Self::REPLACED, text.as_bytes()).is_ok()
    }

    /// Records that this run ends by its own choice, by an exit with code 0 or by replacing itself: where no
    /// program records the end of a run (a container's restart policy), this is the only record. Under
    /// systemd, `record-exit` replaces the record of an exit. An older record that no start has consumed yet
    /// stays, because it still proves something.
    pub fn record_clean_end(&self, boot_id: &str) {
        if self.recorded().is_some() {
            return;
        }
        let record = ExitRecord {
            boot_id: short(boot_id),
            run: self.run(),
            result: "success".into(),
            exit_code: "exited".into(),
            exit_status: "0".into(),
            was_ready: self.is_marked(Self::READY),
            stop_asked: true,
            stalled: self.stalled(),
        };
        if let Err(error) = self.keep(&record) {
            log::warn!("cannot record the end of this run in {}: {error}", self.path.display());
        }
    }

    /// Records how this boot's latest run ended; see [`record_exit`] for the arguments.
    ///
    /// # Errors
    /// The run directory refuses; the record is returned all the same.
    pub fn record_exit(
        &self,
        boot_id: &str,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> (ExitRecord, io::Result<()>) {
        let variable = |name| environment(name).map(|value| short(&value)).unwrap_or_default();
        let result = Some(variable("SERVICE_RESULT")).filter(|result| !result.is_empty());
        let record = ExitRecord {
            boot_id: short(boot_id),
            run: self.run(),
            result: result.unwrap_or_else(|| "unknown".to_string()),
            exit_code: variable("EXIT_CODE"),
            exit_status: variable("EXIT_STATUS"),
            was_ready: self.is_marked(Self::READY),
            stop_asked: self.is_marked(Self::STOPPING),
            stalled: self.stalled(),
        };
        let kept = self.keep(&record);
        (record, kept)
    }

    /// The record in this directory; an unreadable one counts as missing.
    pub fn recorded(&self) -> Option<ExitRecord> {
        let text = self.read(EXIT_RECORD, RECORD_LIMIT);
        let versioned: Versioned<ExitRecord> = serde_json::from_slice(text.as_bytes()).ok()?;
        (versioned.version <= FORMAT).then_some(versioned.record)
    }

    fn keep(&self, record: &ExitRecord) -> io::Result<()> {
        fs::create_dir_all(&self.path)?;
        self.write_new(EXIT_RECORD, &content_of(record))
    }

    /// Replaces a whole file: a process that is killed meanwhile leaves the old one.
    fn write_new(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let beside = self.path.join(format!("{name}.new"));
        self.open_empty(&beside).and_then(|mut file| file.write_all(content))?;
        fs::rename(&beside, self.path.join(name))
    }

    fn open_empty(&self, path: &Path) -> io::Result<fs::File> {
        fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
            .open(path)
    }

    fn mark(&self, name: &str, content: &str) {
        let path = self.path.join(name);
        let written = self.open_empty(&path).and_then(|mut file| file.write_all(content.as_bytes()));
        if let Err(error) = written {
            log::warn!("cannot mark {}: {error}", path.display());
        }
    }

    fn clear(&self, name: &str) {
        let path = self.path.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                log::warn!("cannot remove {}: {error}", path.display());
            }
            _ => {}
        }
    }

    fn is_marked(&self, name: &str) -> bool {
        self.path.join(name).symlink_metadata().is_ok()
    }

    /// The content of a mark; an unreadable one counts as missing.
    fn read(&self, name: &str, limit: usize) -> String {
        let mut text = Vec::new();
        let file = fs::OpenOptions::new()
            .read(true)
            .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
            .open(self.path.join(name));
        if let Ok(file) = file {
            let _ = file.take(limit as u64).read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    fn stalled(&self) -> Vec<String> {
        self.read(Self::STALLED, STALLED_LIMIT * TEXT_LIMIT)
            .lines()
            .filter(|line| !line.is_empty())
            .take(STALLED_LIMIT)
            .map(short)
            .collect()
    }
}

/// Records how a run ended, durably: called by `ExecStopPost`, and by the babysitter after each end.
/// `environment` returns the value of a variable ($SERVICE_RESULT, $EXIT_CODE, $EXIT_STATUS). Replaces an
/// earlier record; an equal one is not rewritten.
pub fn record_exit(
    files: &dyn Files,
    run: &RunDirectory,
    boot_id: &str,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<ExitRecord, WriteError> {
    let (record, kept) = run.record_exit(boot_id, environment);
    if let Err(error) = kept {
        log::warn!("cannot record the end in {}: {error}", run.path().display());
    }
    write_exit_record(files, &record)?;
    Ok(record)
}

/// Writes the record durably, in place of an earlier one; an equal one is not rewritten.
pub fn write_exit_record(files: &dyn Files, record: &ExitRecord) -> Result<(), WriteError> {
    let content = content_of(record);
    // an agent that refuses to start ends in the same way every few seconds, perhaps for weeks: spare the
    // flash
    if files.read(Path::new(EXIT_RECORD), RECORD_LIMIT).is_ok_and(|there| there == content) {
        return Ok(());
    }
    files.write_durably(Path::new(EXIT_RECORD), &content)
}

fn content_of(record: &ExitRecord) -> Vec<u8> {
    let versioned = Versioned { version: FORMAT, record };
    serde_json::to_vec(&versioned).expect("plain strings always serialize")
}

/// The reason why a file is not a record. It is shortened, because the error repeats the text it found, which
/// may be the whole file.
fn no_record(name: &str, error: &serde_json::Error) -> String {
    format!("{name} is not a record: {}", short(&error.to_string()))
}

/// At most `TEXT_LIMIT` bytes of a text from outside, without control characters.
fn short(text: &str) -> String {
    let mut kept = String::new();
    for character in text.chars().filter(|character| !character.is_control()) {
        if kept.len() + character.len_utf8() > TEXT_LIMIT {
            break;
        }
        kept.push(character);
    }
    kept
}
