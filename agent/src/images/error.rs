//! Why an image is not there, by what happens next.

use std::error::Error;
use std::fmt;

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Its name is no reference: `InvalidImageName`. Nothing helps but another name.
    Name,
    /// It is not here and may not be fetched: `ErrImageNeverPull`.
    Never,
    /// The registry did not answer, or asks to wait: try again, later.
    Unreachable,
    /// The same, after it sent much of what was lacking: the next try has less to fetch.
    BrokeOff,
    /// The registry does not give it to us, or has none of that name.
    Denied,
    /// No key that the configuration names has signed it: `SignatureValidationFailed`. A signature may come later.
    Unsigned,
    /// What the registry sent is not what it should be. Another try may help where a proxy garbled it.
    Bad,
    /// There is no room on the disk, or the disk failed.
    Disk,
    /// Asked to stop.
    Cancelled,
}

/// Why an image is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullError {
    pub sort: Sort,
    /// What was tried on which object, expected and found.
    pub text: String,
    /// Every server was asked what the image is, and none answered.
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
