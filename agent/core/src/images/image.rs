//! A complete image on this node, as containers get it.

use crate::images::ImageConfig;
use std::time::Duration;

/// A complete image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Image {
    /// The digest of its configuration, by which the runtime mounts it.
    pub id: String,
    /// `name@sha256:...`, as `imageID` shows it.
    pub reference: String,
    pub config: ImageConfig,
    /// Size of its layers at the registry, whether they were fetched now or present before.
    pub size_bytes: u64,
    /// How long its fetching took, and its bytes, if it was fetched for this request.
    pub pulled: Option<(Duration, u64)>,
}
