//! When images are removed, and what a removal did: what `collect` is told and what it reports.

use crate::images::room::Disk;
use std::time::Duration;

/// When images go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// `imageMinimumGCAge`.
    pub minimum_age: Duration,
    /// `imageMaximumGCAge`; `None`: age alone removes nothing.
    pub maximum_age: Option<Duration>,
    /// `imageGCHighThresholdPercent`; 100 switches collection by space off.
    pub high_percent: u8,
    /// `imageGCLowThresholdPercent`.
    pub low_percent: u8,
}

impl Thresholds {
    /// All that no pod needs, however young: the disk is short, and pods would have to end for what these take.
    pub const ALL_UNUSED: Self = Self {
        minimum_age: Duration::ZERO,
        maximum_age: Some(Duration::ZERO),
        high_percent: 100,
        low_percent: 100,
    };
}

/// What a collection did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collected {
    /// Before it.
    pub disk: Disk,
    /// What should be freed, and what was.
    pub wanted_bytes: u64,
    pub freed_bytes: u64,
    /// Names of the images that were removed.
    pub images: Vec<String>,
    /// What could not be removed, and why.
    pub problems: Vec<String>,
}
