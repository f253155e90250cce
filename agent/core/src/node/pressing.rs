//! A threshold of node pressure that is crossed: what `node::pressure` finds and `pods::eviction` acts on.

use crate::kubelet::Signal;
use std::time::Duration;

/// A threshold of node pressure that pods end for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pressing {
    pub signal: Signal,
    /// Less than this is available.
    pub least: u64,
    pub available: u64,
    /// What pods are given at most; None: they end at once.
    pub longest_grace: Option<Duration>,
}
