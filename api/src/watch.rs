//! One line of a watch.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `metav1.WatchEvent`: what happened, and the object after it (a `Status` for ERROR).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WatchEvent {
    /// What happened.
    #[serde(rename = "type")]
    pub event_type: WatchEventType,
    /// The object.
    pub object: Value,
}

/// The five kinds of line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum WatchEventType {
    /// Now there, or now within the selector.
    Added,
    /// Changed.
    Modified,
    /// Gone, or no longer within the selector.
    Deleted,
    /// Nothing happened up to this resourceVersion.
    Bookmark,
    /// The watch ends; the object says why.
    Error,
}
