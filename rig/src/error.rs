//! The errors of the rig: a fault of this machine, of kubectl, or a wait that timed out.
//!
//! Always holds: each error contains the operation and its object, and the result. Nothing here is retried
//! automatically.

use std::fmt;
use std::io;
use std::path::Path;

/// The reason why a program or a test of the rig cannot continue.
#[derive(Debug)]
pub enum RigError {
    /// A program that must be built or fetched first is missing.
    Missing {
        /// The program.
        program: String,
        /// The path at which it was expected.
        looked: String,
        /// The command that makes it.
        remedy: String,
    },
    /// Something on the machine refused.
    Io {
        /// The operation and its path.
        tried: String,
        /// The system's error.
        source: io::Error,
    },
    /// A program ended with a failure.
    Failed {
        /// Its command line.
        command: String,
        /// Its exit status.
        status: String,
        /// Its standard error (or output, if that was empty).
        said: String,
    },
    /// A program's output cannot be understood.
    BadAnswer {
        /// Its command line.
        command: String,
        /// The fault of its output.
        problem: String,
    },
    /// A wait timed out.
    TimedOut {
        /// The awaited event, and the time limit.
        awaited: String,
        /// The last state.
        found: String,
    },
    /// A signal ended the program.
    Interrupted,
}

impl RigError {
    /// For `map_err` on file operations.
    pub fn io(tried: &str, path: &Path) -> impl FnOnce(io::Error) -> RigError {
        let tried = format!("{tried} {}", path.display());
        move |source| RigError::Io { tried, source }
    }
}

impl fmt::Display for RigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RigError::Missing { program, looked, remedy } => {
                write!(out, "{program} is not there (looked for {looked}); run {remedy}")
            }
            RigError::Io { tried, source } => write!(out, "{tried}: {source}"),
            RigError::Failed { command, status, said } => {
                write!(out, "{command}: {status}: {}", said.trim_end())
            }
            RigError::BadAnswer { command, problem } => {
                write!(out, "{command}: answer not understood: {problem}")
            }
            RigError::TimedOut { awaited, found } => {
                write!(out, "timed out waiting for {awaited}; found {found}")
            }
            RigError::Interrupted => write!(out, "asked to stop"),
        }
    }
}

impl std::error::Error for RigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RigError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
