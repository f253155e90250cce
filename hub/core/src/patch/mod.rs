//! The patch formats that clients send: JSON patch, JSON merge patch, strategic merge patch.
//!
//! All three are pure functions on values; none panics on any input, and none can grow a document without bound. The
//! result is validated afterwards, by the schema and the kind's rules. Server-side apply is in `apply`.

pub mod body;
pub mod json;
pub mod merge;
pub mod strategic;

/// A patch that cannot be read or does not fit the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatchError {
    /// The patch itself is malformed (400).
    Malformed(String),
    /// It does not apply to this object (422).
    DoesNotApply(String),
}
