//! The patch formats that clients send: JSON patch, JSON merge patch, strategic merge patch.
//!
//! All three are pure functions on values; none panics on any input, and none can grow a document without
//! bound. The result is validated afterwards, by the schema and the kind's rules. Server-side apply is in
//! `apply`.

pub mod body;
pub mod json;
pub mod merge;
pub mod strategic;

use std::io;

use serde_json::Value;

/// A patch that cannot be read or does not fit the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatchError {
    /// The patch itself is malformed (400).
    Malformed(String),
    /// It does not apply to this object (422).
    DoesNotApply(String),
}

/// The length of a value as text.
fn text_bytes(value: &Value) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, value).map_or(usize::MAX, |()| count.0)
}
