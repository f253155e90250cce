//! What ends a story: a machine that does not do what machines do, the kit, or something that never came or was wrong.
//!
//! Always holds: each error says what was tried or awaited, on what, and what was found instead.

use std::fmt;
use std::io;
use std::path::Path;

use kedge_rig::error::KitError;

/// Why a story cannot go on.
#[derive(Debug)]
pub(crate) enum HilError {
    /// The hub, kubectl, or a file of the kit's.
    Kit(KitError),
    /// Something on this machine refused.
    Io {
        /// What was tried, on which path.
        tried: String,
        /// The answer.
        source: io::Error,
    },
    /// A file or an answer is not what it must be.
    Garbled(String),
    /// QEMU ended, or does not answer.
    Machine(String),
    /// A command in the guest failed.
    Guest {
        /// The command.
        command: String,
        /// Its exit code and output.
        said: String,
    },
    /// A wait ended without what was awaited.
    Never {
        /// What was awaited, and for how long.
        awaited: String,
        /// What there was instead.
        found: String,
    },
    /// The story found something else than it must.
    Wrong(String),
}

impl HilError {
    /// For `map_err` on file operations.
    pub(crate) fn io(tried: &str, path: &Path) -> impl FnOnce(io::Error) -> HilError {
        let tried = format!("{tried} {}", path.display());
        move |source| HilError::Io { tried, source }
    }
}

/// Whether a read that failed is to be made again, if there is time left. One with a time limit is interrupted whatever a handler of
/// signals says.
pub(crate) fn is_no_end(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

impl fmt::Display for HilError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HilError::Kit(error) => error.fmt(f),
            HilError::Io { tried, source } => write!(f, "{tried}: {source}"),
            HilError::Garbled(text) | HilError::Machine(text) | HilError::Wrong(text) => f.write_str(text),
            HilError::Guest { command, said } => write!(f, "in the guest: {command}: {said}"),
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

impl From<KitError> for HilError {
    fn from(error: KitError) -> Self {
        HilError::Kit(error)
    }
}
