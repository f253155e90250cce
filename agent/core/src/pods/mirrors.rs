//! The mirror pods in the API: the API server's objects of static pods.

use crate::pods::backoff;
use crate::pods::keys::PodRef;
use kedge_api::STATIC_PATH_ANNOTATION;
use serde_json::Value;
use std::time::Duration;

/// A mirror pod in the API.
#[derive(Debug, Clone)]
pub(crate) struct Mirror {
    pub(crate) hash: String,
    pub(crate) object: Value,
    /// The server has shown this state, and the pod has not taken it yet; the pod then knows that its next
    /// status is newer.
    pub(crate) is_news: bool,
    pub(crate) is_deleting: bool,
}

impl Mirror {
    pub(crate) fn uid(&self) -> &Value {
        &self.object["metadata"]["uid"]
    }

    /// The path of its pod's file; `None` if the agent that made the mirror did not record it.
    pub(crate) fn path(&self) -> Option<&str> {
        self.object["metadata"]["annotations"][STATIC_PATH_ANNOTATION].as_str()
    }

    /// Whether another client is deleting it: this node's own deletions leave no grace period.
    pub(crate) fn is_leaving(&self) -> bool {
        self.object["metadata"]["deletionTimestamp"].is_string()
    }

    /// Whether another client is the cause when it disappears.
    pub(crate) fn goes_by_others(&self) -> bool {
        self.is_leaving() || !self.is_deleting
    }
}

/// When a mirror that another client deleted is made again: at once, then after growing pauses, because a
/// controller may delete each new one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Remaking {
    pub(crate) pauses: backoff::Restarts,
    /// When the last one was found missing, until another is made.
    pub(crate) gone: Option<Duration>,
}

pub(crate) fn name_of(object: &Value) -> (String, String) {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

pub(crate) fn reference_of(object: &Value) -> PodRef {
    let (namespace, name) = name_of(object);
    PodRef { namespace, name, uid: object["metadata"]["uid"].as_str().unwrap_or_default().to_owned() }
}
