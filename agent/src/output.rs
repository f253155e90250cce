//! What every command shares: how it prints, and how it says why it failed.

use std::fmt;
use std::io::Write;

/// Why a command failed: what was tried, on what, and what was found.
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

/// Prints; a reader that went away is ignored.
pub fn print(text: impl fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
