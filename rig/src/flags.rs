//! Values of command lines, as the rig's programs read them.
//!
//! Always holds: the error for a value that cannot be read contains its option and the expected form. Leaves
//! to others: the options of each program.

use lexopt::{Parser, ValueExt as _};

/// The text that follows an option.
pub fn text(parser: &mut Parser) -> Result<String, String> {
    parser.value().and_then(|value| value.string()).map_err(|error| error.to_string())
}

/// The whole number that follows an option.
pub fn number(option: &str, parser: &mut Parser) -> Result<u64, String> {
    parsed(option, &text(parser)?)
}

/// A whole number, from an option or the environment.
pub fn parsed(name: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{name} is {text:?}, expected a whole number"))
}
