//! The messages between agent and shim, in files of the container's bundle: `order.json` and `notes.json` by
//! the agent; `shim.json`, `state.json` and `exit.json` by the shim.
//!
//! Always holds: a record is complete or absent. Each has a version: agent and shim may be of different
//! releases, because a shim lives as long as its container. An added field has a default and does not change
//! the version; the version changes when an old reader would misunderstand.
//!
//! Leaves to others: the times of writing (`shim`, `linux`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::libc;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cgroups::Cgroups;
use super::process::ProcessName;
use super::{ContainerId, Notes, WorkloadError};
use crate::files::{DurableFiles, Files, ReadError};
use crate::linux::{self, LinuxDisk};

pub(super) const ORDER: &str = "order.json";
pub(super) const SHIM: &str = "shim.json";
pub(super) const STATE: &str = "state.json";
pub(super) const EXIT: &str = "exit.json";
pub(super) const NOTES: &str = "notes.json";

/// The reason for a lost container whose shim left no record of its end.
pub(super) const SHIM_IS_GONE: &str = "its shim was killed, and nobody would know its end";
/// The version that this release writes and reads.
pub(super) const VERSION: u32 = 1;
/// Longest record that is read: a pod's order contains its small files, hosts and resolv.conf of 256 KiB each
/// at most, and its network, 100 KiB.
const RECORD_BYTES: usize = 1024 * 1024;
/// Longest part of crun's error text that is kept: it is shown in a pod's status.
pub(super) const ERROR_BYTES: usize = 1024;

/// The log of a container's output and its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogOrder {
    /// The current file; older ones have `.1`, `.2`, ... after this name.
    pub path: PathBuf,
    /// A file is rotated before it becomes longer (`containerLogMaxSize`).
    pub max_bytes: u64,
    /// Number of files, including the current one (`containerLogMaxFiles`).
    pub max_files: u32,
}

/// The input and terminal of a container's first process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Console {
    /// It has an input, which stays open while no client is attached.
    pub stdin: bool,
    /// Without a terminal: its input ends with that of the first attached client.
    pub stdin_once: bool,
    /// Its streams are one terminal, as also stated in `config.json`.
    pub tty: bool,
}

/// The shim's order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Order {
    pub(super) version: u32,
    pub(super) id: ContainerId,
    pub(super) crun: CrunOrder,
    pub(super) cgroups: Cgroups,
    /// The container's control group.
    pub(super) group: String,
    /// The control group of the shims.
    pub(super) shims_group: String,
    pub(super) log: LogOrder,
    #[serde(default)]
    pub(super) console: Console,
    #[serde(default)]
    pub(super) notes: Notes,
}

/// The way to call crun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CrunOrder {
    pub(super) program: PathBuf,
    pub(super) root: PathBuf,
    pub(super) limit_ms: u64,
}

/// Written while the shim lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShimRecord {
    pub(super) version: u32,
    pub(super) shim: ProcessName,
}

/// Written when the container began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StateRecord {
    pub(super) version: u32,
    /// The container's first process.
    pub(super) process: ProcessName,
    /// Microseconds since 1970.
    pub(super) started_at: i64,
}

/// Notes of the agent about a container, added after it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NotesRecord {
    pub(super) version: u32,
    pub(super) notes: Notes,
}

/// The end of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerExit {
    pub(super) version: u32,
    /// The exit code; 128 plus the signal if a signal ended it.
    pub exit_code: i32,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The kernel killed it for lack of memory in its control group.
    #[serde(default)]
    pub oom_killed: bool,
    /// Microseconds since 1970; `None` if it never began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<i64>,
    /// Microseconds since 1970.
    pub finished_at: i64,
    /// The reason why it never began. Then it may be started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Its shim died first: code and signal are not its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
    /// The reason why it is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Lines of output that could not be written to the log.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_lines: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl ContainerExit {
    /// An end at this moment.
    pub(super) fn now(exit_code: i32, started_at: Option<i64>) -> Self {
        Self { version: VERSION, exit_code, started_at, finished_at: now_micros(), ..Self::default() }
    }

    /// The end of a container whose own result cannot be known.
    pub(super) fn lost(why: &str, started_at: Option<i64>) -> Self {
        let why = Some(shortened(why)).filter(|why| !why.is_empty());
        Self { lost: true, why, ..Self::now(128 + libc::SIGKILL, started_at) }
    }

    /// The end of a container that never began.
    pub(super) fn never_began(why: &str) -> Self {
        Self { error: Some(shortened(why)), ..Self::now(128, None) }
    }
}

/// The first [`ERROR_BYTES`] of a text, without surrounding white space. The text quotes images and pods, and
/// is shown on terminals: control characters become blanks.
pub(super) fn shortened(text: &str) -> String {
    let text = text.trim();
    let mut end = text.len().min(ERROR_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].replace(char::is_control, " ")
}

/// The wall clock in microseconds since 1970; before that, 0.
pub(super) fn now_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// An error and its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |cause| cause.source())
        .fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The records of one bundle.
pub(super) struct Records(Arc<DurableFiles<LinuxDisk>>, PathBuf);

impl Records {
    pub(super) fn of(bundle: &Path) -> Self {
        Self(linux::files(bundle), bundle.to_path_buf())
    }

    /// A record; `None` if it does not exist.
    ///
    /// # Errors
    /// `Failed`: it cannot be read now. `Refused`: it can never be read, or another version wrote it.
    pub(super) fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, WorkloadError> {
        let shown = self.1.join(name);
        let bytes = match self.0.read(Path::new(name), RECORD_BYTES) {
            Ok(bytes) => bytes,
            Err(ReadError::NotFound { .. }) => return Ok(None),
            Err(error @ ReadError::Io { .. }) => {
                let source = std::io::Error::other(chain(&error));
                return Err(WorkloadError::failed(format_args!("read {}", shown.display()), source));
            }
            Err(error) => return Err(WorkloadError::refused(format_args!("{}: {error}", shown.display()))),
        };
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let refused = |error| WorkloadError::refused(format_args!("{}: {error}", shown.display()));
        let versioned: Versioned = serde_json::from_slice(&bytes).map_err(refused)?;
        if versioned.version != VERSION {
            return Err(WorkloadError::refused(format_args!(
                "{}: version {}, expected {VERSION}",
                shown.display(),
                versioned.version
            )));
        }
        serde_json::from_slice(&bytes).map(Some).map_err(refused)
    }

    /// # Errors
    /// It could not be written; the old record is still there.
    pub(super) fn write(&self, name: &str, record: &impl Serialize) -> Result<(), WorkloadError> {
        let bytes = serde_json::to_vec(record).expect("records have text keys");
        self.0.write_durably(Path::new(name), &bytes).map_err(|error| {
            WorkloadError::failed(
                format_args!("write {}", self.1.join(name).display()),
                std::io::Error::other(chain(&error)),
            )
        })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.1.join(name).exists()
    }

    /// # Errors
    /// It still exists.
    pub(super) fn remove(&self, name: &str) -> Result<(), WorkloadError> {
        self.0.remove(Path::new(name)).map_err(|error| {
            WorkloadError::failed(
                format_args!("remove {}", self.1.join(name).display()),
                std::io::Error::other(chain(&error)),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_of_another_version_is_refused_by_name() {
        let scratch = std::env::temp_dir().join(format!("kedge-records-{}", std::process::id()));
        let records = Records::of(&scratch);
        let exit = ContainerExit { oom_killed: true, signal: Some(9), ..ContainerExit::now(137, Some(1)) };
        records.write(EXIT, &exit).unwrap();
        assert_eq!(records.read::<ContainerExit>(EXIT).unwrap(), Some(exit.clone()));
        assert_eq!(records.read::<StateRecord>(STATE).unwrap(), None);
        records.write(EXIT, &ContainerExit { version: 2, ..exit }).unwrap();
        let error = records.read::<ContainerExit>(EXIT).unwrap_err().to_string();
        assert!(error.contains("exit.json: version 2, expected 1"), "{error}");
        std::fs::write(scratch.join(EXIT), "{").unwrap();
        assert!(records.read::<ContainerExit>(EXIT).is_err());
        let _ = std::fs::remove_dir_all(scratch);
    }

    #[test]
    fn record_with_a_newer_field_is_read() {
        let exit: ContainerExit =
            serde_json::from_str(r#"{"version":1,"exitCode":3,"finishedAt":5,"newer":{"a":1}}"#).unwrap();
        assert_eq!((exit.exit_code, exit.finished_at, exit.lost), (3, 5, false));
    }

    #[test]
    fn long_error_is_cut_between_characters() {
        let long = "é".repeat(ERROR_BYTES);
        assert_eq!(shortened(&long).len(), ERROR_BYTES);
        assert_eq!(shortened(&format!(" a{long}")).len(), ERROR_BYTES - 1);
        assert_eq!(shortened("exec `a\n\u{1b}[2J`\n"), "exec `a  [2J`");
    }
}
