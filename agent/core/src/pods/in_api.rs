//! The API server's view of a pod, and the pod's record on disk: two parts of a life, which
//! `steps::reporting` keeps up to date.

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
    /// The resourceVersion last seen, if it is a number.
    pub(crate) version: Option<u64>,
    /// The status that the server has.
    pub(crate) status: Value,
    /// A status that was sent and has no answer yet.
    pub(crate) sent: Option<Sent>,
    /// The server may have a status of this node that `status` lacks: the answer to a status was lost, an
    /// earlier agent may have sent one, or the watch is behind.
    pub(crate) is_unsure: bool,
    pub(crate) base: Base,
    /// Refusals in a row because the server has another version.
    pub(crate) conflicts: u32,
    /// Times in the status that was composed last, whether accepted or not.
    pub(crate) given: Value,
    /// The status that the server refused.
    pub(crate) refused: Option<Value>,
    /// The status that the server accepted last: if the server shows it changed, it is not sent over and
    /// over.
    pub(crate) accepted: Option<Value>,
    /// The back-off for sending that one again.
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
    /// The server refused a status because it has a later version, which the watch should show.
    Old,
    /// The watch has not shown it, so the pods are listed.
    OldAndListed,
}

/// A status on its way.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sent {
    pub(crate) status: Value,
    /// The only version that the server may change by it; `None` for any.
    pub(crate) version: Option<u64>,
}

/// After more conflicts in a row than this the next try waits its time although the new version was seen:
/// another client changes the pod again and again.
pub(crate) const QUICK_TRIES: u32 = 3;

/// The back-off of requests; all values compare as equal.
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

    /// Takes a state of the object, unless it is the same or an earlier one. Returns whether it is later.
    pub(crate) fn seen(&mut self, object: &Value) -> bool {
        let version = version_of(object);
        if version.is_some() && version <= self.version {
            return false;
        }
        self.version = version;
        // of an object that exceeds its share only the version is known
        if !shares::is_part(object) {
            self.status = without_nulls(&object["status"]);
            // it may be older than a status that was accepted since
            let taken = self.accepted.as_ref();
            self.is_unsure |= taken.is_some_and(|taken| !status::has_times(&self.status, taken));
        }
        if std::mem::take(&mut self.base) != Base::Usable {
            self.hurry();
        }
        true
    }

    /// The cause of the last refusal is known now, so the next try need not wait.
    pub(crate) fn hurry(&mut self) {
        if self.conflicts <= QUICK_TRIES {
            self.retry.0.succeeded();
        }
    }
}

pub(crate) fn version_of(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

/// The record of a pod on disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Saved {
    /// The digest of the record that is durable; `None` if there is none.
    pub(crate) durable: Option<Digest>,
    /// A write failed, so the content on disk is unknown.
    pub(crate) is_unknown: bool,
    /// The digest being written; an inner `None` if the record is being removed.
    pub(crate) writing: Option<Option<Digest>>,
    /// The digest of the record that should be on disk; updated when `is_stale`.
    pub(crate) wanted: Option<Digest>,
    pub(crate) is_stale: bool,
    pub(crate) retry: Retry,
}
