//! The output and the errors of all commands.

use std::fmt;
use std::io::Write;

/// Why a command failed: the step that was tried, on which object, and the finding.
#[derive(Debug)]
pub struct CommandError(String);

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CommandError {}

impl CommandError {
    pub(crate) fn new(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// Prints; ignores a reader that has gone away.
pub fn print(text: impl fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
