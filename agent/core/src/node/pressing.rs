//! A crossed threshold of node pressure: `node::pressure` finds it and `pods::eviction` acts on it.

use crate::kubelet::Signal;
use std::time::Duration;

/// A threshold of node pressure that evicts pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pressing {
    pub signal: Signal,
    /// Less than this is available.
    pub least: u64,
    pub available: u64,
    /// Longest grace period of evicted pods; `None` if they end at once.
    pub longest_grace: Option<Duration>,
}
