//! What can go wrong in a story: something on this machine, kubectl, or a wait that ended without what was awaited.
//!
//! Always holds: each error says what was tried on what, and what was found instead. Nothing here is tried again by itself.

use std::fmt;
use std::io;
use std::path::Path;

/// Why a story or a test cannot go on.
#[derive(Debug)]
pub enum KitError {
    /// A program that must be built or fetched first is not there.
    NotThere {
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
    /// A program said something that cannot be understood.
    Garbled {
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

impl KitError {
    /// For `map_err` on file operations.
    pub fn io(tried: &str, path: &Path) -> impl FnOnce(io::Error) -> KitError {
        let tried = format!("{tried} {}", path.display());
        move |source| KitError::Io { tried, source }
    }
}

impl fmt::Display for KitError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KitError::NotThere { program, looked, remedy } => {
                write!(out, "{program} is not there (looked for {looked}); run {remedy}")
            }
            KitError::Io { tried, source } => write!(out, "{tried}: {source}"),
            KitError::Failed { command, status, said } => {
                write!(out, "{command}: {status}: {}", said.trim_end())
            }
            KitError::Garbled { command, problem } => {
                write!(out, "{command}: answer not understood: {problem}")
            }
            KitError::TimedOut { awaited, found } => {
                write!(out, "waited in vain for {awaited}; found {found}")
            }
            KitError::Interrupted => write!(out, "asked to stop"),
        }
    }
}

impl std::error::Error for KitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            KitError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
