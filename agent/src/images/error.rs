//! Why an image is missing, sorted by what happens next.

use std::error::Error;
use std::fmt;

/// The kind of a failure, which decides what happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Its name is not a valid reference: `InvalidImageName`. Only another name helps.
    Name,
    /// It is not on the node and must not be fetched: `ErrImageNeverPull`.
    Never,
    /// The registry did not answer, or asks for a pause: try again later.
    Unreachable,
    /// The same, after it sent much of the missing data: the next try has less to fetch.
    BrokeOff,
    /// The registry refuses us, or does not have an image of that name.
    Denied,
    /// No key that the configuration names has signed it: `SignatureValidationFailed`. A signature may come
    /// later.
    Unsigned,
    /// The registry sent something other than promised. Another try may help where a proxy garbled it.
    Bad,
    /// The disk is full or failed.
    Disk,
    /// The pull was cancelled.
    Cancelled,
}

/// Why an image is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullError {
    pub sort: Sort,
    /// The step that was tried on which object, expected and found.
    pub text: String,
    /// No server answered the request for the image's manifest.
    pub is_outage: bool,
}

impl PullError {
    pub(crate) fn new(sort: Sort, text: impl fmt::Display) -> Self {
        Self { sort, text: text.to_string(), is_outage: false }
    }

    /// Another source would fail in the same way.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self.sort, Sort::Disk | Sort::Cancelled)
    }

    /// A failure of this node's own disk, with its causes.
    pub(crate) fn disk(error: &dyn Error) -> Self {
        Self::new(Sort::Disk, crate::errors::chain(error))
    }
}

impl fmt::Display for PullError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for PullError {}
