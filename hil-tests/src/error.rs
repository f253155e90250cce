//! The reason why a story cannot continue: QEMU, this machine or kedge-rig failed, or the story waited in
//! vain or found a fault.
//!
//! Always holds: each error contains the operation or the awaited state, its object, and the result.

use std::fmt;
use std::io;
use std::path::Path;

use kedge_rig::error::RigError;

/// The errors that end a story.
#[derive(Debug)]
pub(crate) enum HilError {
    /// The hub, kubectl, or a file of kedge-rig.
    Kit(RigError),
    /// An operation on this machine failed.
    Io {
        /// The operation and its path.
        tried: String,
        /// The error.
        source: io::Error,
    },
    /// A file or an answer is invalid.
    Garbled(String),
    /// QEMU ended, or does not answer.
    Machine(String),
    /// A command in the guest failed.
    Guest {
        /// The command.
        command: String,
        /// Its exit code and output.
        output: String,
    },
    /// A wait reached its limit.
    Never {
        /// The awaited state, and for how long.
        awaited: String,
        /// The state found instead.
        found: String,
    },
    /// A value differs from the expected one.
    Wrong(String),
}

impl HilError {
    /// For `map_err` on file operations.
    pub(crate) fn io(tried: &str, path: &Path) -> impl FnOnce(io::Error) -> HilError {
        let tried = format!("{tried} {}", path.display());
        move |source| HilError::Io { tried, source }
    }
}

/// True if a failed read is to be repeated, provided that there is time left. A read with a time limit is
/// interrupted by signals even if their handlers request restarts.
pub(crate) fn is_retryable(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

impl fmt::Display for HilError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HilError::Kit(error) => error.fmt(f),
            HilError::Io { tried, source } => write!(f, "{tried}: {source}"),
            HilError::Garbled(text) | HilError::Machine(text) | HilError::Wrong(text) => f.write_str(text),
            HilError::Guest { command, output } => write!(f, "in the guest: {command}: {output}"),
            HilError::Never { awaited, found } => write!(f, "never came: {awaited}; found: {found}"),
        }
    }
}

impl std::error::Error for HilError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            HilError::Kit(error) => Some(error),
            HilError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<RigError> for HilError {
    fn from(error: RigError) -> Self {
        HilError::Kit(error)
    }
}
