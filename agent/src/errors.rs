//! The text of errors: each names what was tried and leaves its cause to `source()`; the whole chain is
//! printed once, on one line, where the error is handled.

use std::error::Error;

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
