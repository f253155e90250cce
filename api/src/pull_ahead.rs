//! The agreement of hub and node about images that are pulled before an update stops a pod.

use serde::{Deserialize, Serialize};

/// On a pod: the images of its successor, a [`PullAhead`] as JSON. The hub writes it, the node pulls them.
pub const PULL_AHEAD_ANNOTATION: &str = "kedge.dev/pull-ahead";
/// The node's answer, a condition of the same pod. True: all of the images are there; false: its reason is
/// [`PULLING`], or the reason why a pull fails. Its message begins with the revision of the request and a
/// colon: an answer to an earlier request does not count.
pub const IMAGES_PULLED: &str = "kedge.dev/ImagesPulled";
/// The reason of a false answer while nothing has failed.
pub const PULLING: &str = "Pulling";
/// Most images of one request: as many as one pod may have containers.
pub const MOST_PULLED_AHEAD: usize = 64;

/// A request to pull images ahead.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PullAhead {
    /// Distinguishes this request from others for the same set.
    pub revision: String,
    pub images: Vec<ImageAhead>,
}

/// An image to pull ahead.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ImageAhead {
    /// The name of the image as the pod will have it.
    pub image: String,
    /// Its `imagePullPolicy`.
    pub policy: String,
}
