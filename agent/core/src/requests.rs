//! Requests that are repeated until they are answered well: one of each kind at a time.
//!
//! Always holds: after a failure the next try waits, longer after each, at most `LONGEST_WAIT` unless the server asks for more;
//! a body that the server refused for good is not sent again before `REFUSAL_PAUSE`; an answer from another server is not counted.
//! Leaves to others: the content of requests, and the Lease (`node::lease`).

use crate::event::{Answer, LONGEST_PATIENCE, Now, RequestKind};
use crate::pace::{Backoff, Jitter};
use serde_json::Value;
use std::time::Duration;

/// Longest wait between tries of a request, whatever fails: a link that comes back is used within this time.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Within this time after the network is back, what waited for it is tried: a fleet behind one link does not ask in one moment.
pub(crate) const HURRY: Duration = Duration::from_secs(3);

/// How long a body that the server refused for good is not sent again: somebody may change the rights meanwhile.
pub(crate) const REFUSAL_PAUSE: Duration = LONGEST_PATIENCE;

/// A body that the server refused for good.
#[derive(Debug, Clone)]
struct Refusal {
    body: Value,
    until: Duration,
}

/// One request that is repeated until it is answered well.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestSlot {
    in_flight: bool,
    /// The request in flight went to another server: its answer is not counted.
    is_stale: bool,
    not_before: Duration,
    backoff: Backoff,
    /// The last try got no answer, and its pause waits for nothing else.
    waits_for_network: bool,
    /// What was sent last, for requests that are compared with a refusal.
    body: Option<Value>,
    refusal: Option<Refusal>,
    /// The final refusal that was logged since the last success, by status and reason: messages carry times and numbers.
    logged: Option<(u16, String)>,
}

impl RequestSlot {
    pub(crate) fn free(&self, now: Now) -> bool {
        !self.in_flight && now.mono >= self.not_before
    }

    /// The same for this body, which the server may have refused.
    pub(crate) fn free_for(&self, now: Now, body: &Value) -> bool {
        let is_refused =
            self.refusal.as_ref().is_some_and(|refusal| refusal.body == *body && now.mono < refusal.until);
        self.free(now) && !is_refused
    }

    /// When a refused body may be sent again.
    pub(crate) fn refused_until(&self) -> Option<Duration> {
        self.refusal.as_ref().filter(|_| !self.in_flight).map(|refusal| refusal.until)
    }

    /// When it is free again, unless it is in flight.
    pub(crate) fn free_at(&self) -> Option<Duration> {
        (!self.in_flight).then_some(self.not_before)
    }

    /// When a request that failed is repeated.
    pub(crate) fn retry_at(&self) -> Option<Duration> {
        self.free_at().filter(|_| self.backoff.failures() > 0)
    }

    pub(crate) fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    /// Is not free before `at`.
    pub(crate) fn pause_until(&mut self, at: Duration) {
        self.not_before = self.not_before.max(at);
    }

    pub(crate) fn sent(&mut self) {
        self.in_flight = true;
        self.body = None;
    }

    /// The same with a body that is not repeated if the server refuses it for good.
    pub(crate) fn sent_once(&mut self, body: &Value) {
        self.sent();
        self.body = Some(body.clone());
    }

    /// As new, but for the request that is on its way and will be answered yet.
    pub(crate) fn server_changed(&mut self) {
        *self = Self { in_flight: self.in_flight, is_stale: self.in_flight, ..Self::default() };
    }

    /// Whether this answer is to a request that was sent to another server; if so, the slot is free again.
    pub(crate) fn is_answered_by_another_server(&mut self) -> bool {
        let is_stale = std::mem::take(&mut self.is_stale);
        if is_stale {
            self.in_flight = false;
        }
        is_stale
    }

    pub(crate) fn succeeded(&mut self) {
        self.in_flight = false;
        self.waits_for_network = false;
        (self.refusal, self.logged) = (None, None);
        self.backoff.succeeded();
    }

    /// The network is back: a request that waits for it is sent within [`HURRY`].
    pub(crate) fn hurry(&mut self, now: Now, jitter: &mut Jitter) {
        if self.waits_for_network {
            self.not_before = self.not_before.min(now.mono + jitter.within(HURRY));
        }
    }

    /// Returns whether it is worth a log line: the first failure after a success, or a final refusal of another sort than the one
    /// that was logged.
    pub(crate) fn failed(&mut self, now: Now, answer: &Answer, jitter: &mut Jitter) -> bool {
        self.in_flight = false;
        self.waits_for_network = matches!(answer, Answer::Failed(_));
        let wait = self.backoff.failed(LONGEST_WAIT, jitter).max(answer.retry_after());
        self.not_before = now.mono + wait;
        if !answer.is_final() {
            return self.backoff.failures() == 1;
        }
        let until = now.mono + jitter.stretch(REFUSAL_PAUSE, 0.25);
        self.refusal = self.body.take().map(|body| Refusal { body, until });
        let sort = answer.refusal();
        let is_news = self.logged != sort;
        self.logged = sort;
        is_news
    }
}

/// For the log.
pub(crate) fn describe(kind: RequestKind, node: &str) -> String {
    match kind {
        RequestKind::Version => "GET /version".into(),
        RequestKind::Register => format!("creating Node {node}"),
        RequestKind::PatchStatus => format!("patching the status of Node {node}"),
        RequestKind::PatchLabels => format!("patching the labels of Node {node}"),
        RequestKind::PatchNode => format!("patching the annotations of Node {node}"),
        RequestKind::PostEvent => format!("posting an event about Node {node}"),
    }
}
