//! What can go wrong in the rig: something on this machine, kubectl, or a wait that ended without what was awaited.
//!
//! Always holds: each error says what was tried on what, and what was found instead. Nothing here is tried again by itself.

use std::fmt;
use std::io;
use std::path::Path;

/// Why a program or a test of the rig cannot go on.
#[derive(Debug)]
pub enum RigError {
    /// A program that must be built or fetched first is not there.
    Missing {
        /// The program.
        program: String,
        /// Where it was looked for.
        looked: String,
        /// The command that puts it there.
        remedy: String,
    },
    /// Something on the machine refused.
    Io {
        /// What was tried, on which path.
        tried: String,
        /// The answer.
        source: io::Error,
    },
    /// A program ended with a failure.
    Failed {
        /// Its command line.
        command: String,
        /// Its exit status.
        status: String,
        /// What it wrote to standard error (or output, if that was empty).
        said: String,
    },
    /// A program's output cannot be understood.
    BadAnswer {
        /// Its command line.
        command: String,
        /// What is wrong with its answer.
        problem: String,
    },
    /// A wait ended without what was awaited.
    TimedOut {
        /// What was awaited, and for how long.
        awaited: String,
        /// What there was instead.
        found: String,
    },
    /// It was asked to stop by a signal.
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
