//! The running program, and its replacement by itself in place: exec with the same arguments, environment and
//! process id.
//!
//! Always holds: only the very file that runs is started, never another version that was installed
//! meanwhile; a signal that asks for a stop between two images is not lost, because it stays pending and
//! blocked until the next image has its handlers; every descriptor except the standard three is closed on
//! exec.
//!
//! Leaves to others: the decision to replace it, and its rate limit (`replace`).

use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::{SigSet, Signal};

/// The link to the running program, whatever file its path names now.
const OWN_IMAGE: &str = "/proc/self/exe";

/// Signals that ask the agent for something, and signals that people send by hand because other programs
/// react to them: unhandled they would kill the agent, and a kill counts against the configuration. They are
/// blocked in all threads except the main one, so that only that one receives them, and there while the
/// program replaces itself.
const STOP_SIGNALS: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2];

fn stop_signals() -> SigSet {
    STOP_SIGNALS.into_iter().collect()
}

/// From now on, signals that ask for a stop stay pending, in this thread and those that it will start.
/// Handlers run in threads where they are not blocked: call it before the first thread is started.
pub fn block_stop_signals() {
    stop_signals().thread_block().map_err(io::Error::from).expect("a set of valid signals can be blocked");
}

/// The signals to stop are delivered to this thread again, including pending ones. Call it once their
/// handlers are installed.
pub fn unblock_stop_signals() {
    stop_signals()
        .thread_unblock()
        .map_err(io::Error::from)
        .expect("a set of valid signals can be unblocked");
}

/// The reason why the program cannot replace itself.
#[derive(Debug)]
pub enum ProgramError {
    /// The running program cannot be determined.
    Unknown(io::Error),
    /// The file at this path is not the running program: it was upgraded.
    Changed(PathBuf),
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(error) => write!(f, "cannot find the running program: {error}"),
            Self::Changed(path) => write!(f, "the program at {} is not the one that runs", path.display()),
        }
    }
}

impl std::error::Error for ProgramError {}

/// The program that runs, with its arguments.
#[derive(Debug)]
pub struct Program {
    path: CString,
    arguments: Vec<CString>,
}

impl Program {
    /// The running program, if the file at its path is still the same.
    ///
    /// # Errors
    /// It is not, or `/proc` does not show it.
    pub fn running() -> Result<Self, ProgramError> {
        let path = std::env::current_exe().map_err(ProgramError::Unknown)?;
        let own = Path::new(OWN_IMAGE).metadata().map_err(ProgramError::Unknown)?;
        check_same(&own, &path)?;
        let arguments: Vec<_> = std::env::args_os().collect();
        // a service manager starts this path again, and a link in it may lead to another version by now
        if let Some(named) = arguments.first().map(Path::new).filter(|named| named.is_absolute()) {
            check_same(&own, named)?;
        }
        let text = |bytes: Vec<u8>| CString::new(bytes).map_err(|error| ProgramError::Unknown(error.into()));
        Ok(Self {
            // by its path, not by the link, so that the process keeps its name
            path: text(path.as_os_str().as_bytes().to_vec())?,
            arguments: arguments
                .into_iter()
                .map(|argument| text(argument.into_vec()))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Replaces this process. All other threads end, and descriptors marked close-on-exec are closed; a
    /// thread in an uninterruptible wait delays it until the wait ends, and no other code of the process runs
    /// meanwhile. Returns only if it failed.
    pub fn replace(&self) -> io::Error {
        match nix::unistd::execv(&self.path, &self.arguments) {
            Ok(never) => match never {},
            Err(error) => error.into(),
        }
    }
}

/// Replaces this process by another program, with these words after its path, and one variable more. Returns
/// only if that failed; a file without a program's format is not run as a shell script.
pub fn become_program(path: &Path, words: &[OsString], variable: (&str, &str)) -> io::Error {
    let assigned = |name: &OsStr, value: &OsStr| [name.as_bytes(), b"=", value.as_bytes()].concat();
    let (name, value) = variable;
    let own = std::env::vars_os().filter(|(other, _)| other != name);
    let environment = own.map(|(name, value)| assigned(&name, &value));
    let environment = environment.chain([assigned(name.as_ref(), value.as_ref())]);
    let words = words.iter().map(|word| word.as_bytes().to_vec());
    let texts = |all: &mut dyn Iterator<Item = Vec<u8>>| all.map(CString::new).collect::<Result<Vec<_>, _>>();
    let path = path.as_os_str().as_bytes().to_vec();
    let words = texts(&mut std::iter::once(path).chain(words));
    let (Ok(words), Ok(environment)) = (words, texts(&mut environment.into_iter())) else {
        return io::ErrorKind::InvalidInput.into();
    };
    // the path is its own first word, by which it recognizes itself when it replaces itself
    let Some(path) = words.first() else { return io::ErrorKind::InvalidInput.into() };
    match nix::unistd::execve(path, &words, &environment) {
        Ok(never) => match never {},
        Err(error) => error.into(),
    }
}

fn check_same(own: &Metadata, path: &Path) -> Result<(), ProgramError> {
    let same = path.metadata().is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino()));
    if same { Ok(()) } else { Err(ProgramError::Changed(path.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_program_is_found_with_its_arguments() {
        let program = Program::running().unwrap();
        assert_eq!(program.arguments.len(), std::env::args_os().count());
        let path = std::env::current_exe().unwrap();
        assert_eq!(program.path.as_bytes(), path.as_os_str().as_bytes());
    }

    #[test]
    fn other_file_at_the_path_is_an_upgrade() {
        let own = Path::new(OWN_IMAGE).metadata().unwrap();
        assert!(check_same(&own, Path::new(OWN_IMAGE)).is_ok());
        for other in ["/proc/version", "/nonexistent/kedge"] {
            let changed = check_same(&own, Path::new(other));
            assert!(matches!(changed, Err(ProgramError::Changed(path)) if path == Path::new(other)));
        }
    }

    #[test]
    fn failed_replacement_returns_the_cause() {
        let path = CString::new("/nonexistent/kedge").unwrap();
        let program = Program { path: path.clone(), arguments: vec![path] };
        assert_eq!(program.replace().kind(), io::ErrorKind::NotFound);
    }
}
