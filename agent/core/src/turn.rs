//! One turn of core, as its actors see it: the time, the constant settings, and the destinations of their
//! orders.
//!
//! Always holds: an actor changes only itself, and the rest of the world only by its orders here; requests go
//! through the outbox, whichever actor wants them. Leaves to others: the order of the actors within a turn
//! (`agent`).

use crate::answer::{Answer, Level, Now};
use crate::event::{Action, LeaseRequest, Request, RequestKey};
use crate::options::Options;
use crate::outbox::{Outbox, Sendable, json_bytes};
use crate::pace::Jitter;
use serde_json::Value;

/// The requests that leave through the outbox.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Order {
    Request(Request),
    Renew(LeaseRequest),
}

impl Sendable for Order {
    fn bytes(&self) -> usize {
        match self {
            Self::Request(request) => request.body().map_or(0, json_bytes),
            Self::Renew(LeaseRequest::Renew(time)) => time.len(),
            Self::Renew(LeaseRequest::Patch(body) | LeaseRequest::Create(body)) => json_bytes(body),
        }
    }

    /// A status that differs only in its times has the same content.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Request(Request::PatchStatus(ours)), Self::Request(Request::PatchStatus(theirs))) => {
                without_times(ours) == without_times(theirs)
            }
            _ => self == other,
        }
    }
}

/// A status patch without the times of its conditions.
fn without_times(patch: &Value) -> Value {
    let mut patch = patch.clone();
    let conditions = patch.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        condition.retain(|name, _| !["lastHeartbeatTime", "lastTransitionTime"].contains(&name.as_str()));
    }
    patch
}

/// One turn.
pub(crate) struct Turn<'a> {
    pub(crate) now: Now,
    pub(crate) options: &'a Options,
    pub(crate) jitter: &'a mut Jitter,
    pub(crate) outbox: &'a mut Outbox<RequestKey, Order>,
    pub(crate) actions: &'a mut Vec<Action>,
}

impl Turn<'_> {
    pub(crate) fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub(crate) fn log(&mut self, level: Level, line: impl Into<String>) {
        self.act(Action::Log(level, line.into()));
    }

    pub(crate) fn log_all(&mut self, lines: impl IntoIterator<Item = (Level, String)>) {
        for (level, line) in lines {
            self.log(level, line);
        }
    }

    /// Puts the request of this key that is wanted now into the outbox, if it may be sent, in place of the
    /// earlier one.
    pub(crate) fn offer(&mut self, key: RequestKey, wanted: impl FnOnce(Now) -> Option<Request>) {
        if !self.outbox.is_free(self.now, &key) {
            return;
        }
        match wanted(self.now) {
            // without room it is offered again at the next event: an answer, which makes room, is one
            Some(request) => _ = self.outbox.put(self.now, key, Order::Request(request)),
            None => self.outbox.withdraw(&key),
        }
    }
}

pub(crate) fn is_not_found(answer: &Answer) -> bool {
    matches!(answer, Answer::Refused { status: 404, .. })
}
