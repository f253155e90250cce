//! How errors are told: each says what was tried and leaves its cause to `source()`; whoever tells it tells the whole chain,
//! once, on one line.

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
