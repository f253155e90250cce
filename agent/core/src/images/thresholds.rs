//! The thresholds for removing images, and the result of a removal: the input and the output of `collect`.

use crate::images::room::Disk;
use std::time::Duration;

/// When images are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// `imageMinimumGCAge`.
    pub minimum_age: Duration,
    /// `imageMaximumGCAge`; `None` if age alone removes nothing.
    pub maximum_age: Option<Duration>,
    /// `imageGCHighThresholdPercent`; 100 switches collection by space off.
    pub high_percent: u8,
    /// `imageGCLowThresholdPercent`.
    pub low_percent: u8,
}

impl Thresholds {
    /// All images that no pod needs, however young: the disk is short, and pods would have to end for their
    /// space.
    pub const ALL_UNUSED: Self = Self {
        minimum_age: Duration::ZERO,
        maximum_age: Some(Duration::ZERO),
        high_percent: 100,
        low_percent: 100,
    };
}

/// The result of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collected {
    /// The disk before it.
    pub disk: Disk,
    /// Bytes that should be freed, and those that were.
    pub wanted_bytes: u64,
    pub freed_bytes: u64,
    /// Names of the images that were removed.
    pub images: Vec<String>,
    /// The failed removals, and why.
    pub problems: Vec<String>,
}
