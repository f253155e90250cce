//! What the API server has of a pod, and what of a pod is on disk: the parts of a life that `steps::reporting` keeps up to date.

use crate::config::digest::Digest;
use crate::pods::backoff::Retry;
use crate::pods::keys::PodRef;
use crate::pods::shares;
use crate::pods::spec::without_nulls;
use crate::pods::status;
use serde_json::Value;

/// The pod's object in the API, or its mirror.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InApi {
    pub(crate) reference: PodRef,
    /// The resourceVersion last seen, where it is a number.
    pub(crate) version: Option<u64>,
    /// The status that the server has.
    pub(crate) status: Value,
    /// A status that was sent and not answered.
    pub(crate) sent: Option<Sent>,
    /// The server may have a status of this node that `status` lacks: the answer to one was lost, an earlier agent may have sent one,
    /// or the watch is behind.
    pub(crate) is_unsure: bool,
    pub(crate) base: Base,
    /// Refusals in a row because the server has another version.
    pub(crate) conflicts: u32,
    /// Times of the status that was composed last, taken or not.
    pub(crate) given: Value,
    /// The server will not take this status.
    pub(crate) refused: Option<Value>,
    /// The status that it took last: one that comes back changed is not sent over and over.
    pub(crate) accepted: Option<Value>,
    /// The back-off of that one.
    pub(crate) repeats: RetryState,
    /// The server waits for the node's DELETE.
    pub(crate) awaits_delete: bool,
    pub(crate) is_deleting: bool,
    /// The server has no such pod any more.
    pub(crate) is_deleted: bool,
    pub(crate) retry: RetryState,
}

/// Whether the server can take a status that was composed for the version last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Base {
    #[default]
    Usable,
    /// It refused one, for it has a later version: the watch is to show that.
    Old,
    /// The watch has not, and the pods are listed.
    OldAndListed,
}

/// A status on its way.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sent {
    pub(crate) status: Value,
    /// The only version that the server may change by it; None: any.
    pub(crate) version: Option<u64>,
}

/// Conflicts in a row after which the next try waits its time, although the new version was seen: somebody changes the pod again and
/// again.
pub(crate) const QUICK_TRIES: u32 = 3;

/// The back-off of requests; compared never.
#[derive(Debug, Clone, Default)]
pub(crate) struct RetryState(pub(crate) Retry);

impl PartialEq for RetryState {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl InApi {
    pub(crate) fn new(reference: PodRef, object: &Value) -> Self {
        Self {
            reference,
            version: version_of(object),
            status: without_nulls(&object["status"]),
            sent: None,
            is_unsure: true,
            base: Base::Usable,
            conflicts: 0,
            given: Value::Null,
            refused: None,
            accepted: None,
            repeats: RetryState::default(),
            awaits_delete: false,
            is_deleting: false,
            is_deleted: false,
            retry: RetryState::default(),
        }
    }

    /// Takes a later state of the object; the same or an earlier one says nothing new. Returns whether it is one.
    pub(crate) fn seen(&mut self, object: &Value) -> bool {
        let version = version_of(object);
        if version.is_some() && version <= self.version {
            return false;
        }
        self.version = version;
        // of what does not fit nothing is known but its version
        if !shares::is_part(object) {
            self.status = without_nulls(&object["status"]);
            // it may be from before a status that was taken since
            let taken = self.accepted.as_ref();
            self.is_unsure |= taken.is_some_and(|taken| !status::has_times(&self.status, taken));
        }
        if std::mem::take(&mut self.base) != Base::Usable {
            self.hurry();
        }
        true
    }

    /// What the last try was refused for is known now.
    pub(crate) fn hurry(&mut self) {
        if self.conflicts <= QUICK_TRIES {
            self.retry.0.succeeded();
        }
    }
}

pub(crate) fn version_of(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

/// What lies on disk of a pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct Saved {
    /// What the pod's record means that is durable; None: there is none.
    pub(crate) durable: Option<Digest>,
    /// A write failed: what lies there is unknown.
    pub(crate) is_unknown: bool,
    /// Being written; None in it: being removed.
    pub(crate) writing: Option<Option<Digest>>,
    /// What should lie there; kept up by `is_stale`.
    pub(crate) wanted: Option<Digest>,
    pub(crate) is_stale: bool,
    pub(crate) retry: Retry,
}
