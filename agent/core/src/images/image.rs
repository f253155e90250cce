//! An image that is complete on this node, as containers are given it.

use crate::images::ImageConfig;
use std::time::Duration;

/// An image that is wholly there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Image {
    /// The digest of its configuration: what the runtime mounts by.
    pub id: String,
    /// `name@sha256:...`, as `imageID` shows it.
    pub reference: String,
    pub config: ImageConfig,
    /// Of its layers as a registry has them, whether they were fetched now or were here.
    pub size_bytes: u64,
    /// It was fetched for this: how long that took, and the bytes that came.
    pub pulled: Option<(Duration, u64)>,
}
