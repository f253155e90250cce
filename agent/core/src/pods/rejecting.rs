//! Pods that are bound to a node which runs none (`--crun ""`): they are rejected, and their deletion is
//! confirmed, or they would wait for ever.
//!
//! Owns when such a node looks for pods: on kedge-hub whenever an answer to a renewal names a change that
//! concerns the node, elsewhere every ten minutes. A watch would cost a connection for what rarely comes.
//! Always holds: a pod that an agent has begun is left alone, because its containers may run: this agent knows
//! of none. Leaves to others: the list, and the order of the requests (the performer).

use crate::answer::Now;
use crate::event::{Request, RequestKey};
use crate::outbox::{Outbox, Terms};
use crate::pods::event::PodAsk;
use crate::pods::keys::PodRef;
use crate::pods::spec::MIRROR_ANNOTATION;
use crate::turn::{Order, Turn};
use serde_json::{Value, json};
use std::time::Duration;

/// Between two looks without news.
const LOOK: Duration = Duration::from_secs(600);

const KEY: RequestKey = RequestKey::RejectPods;

const WHY: &str = "this node runs no pods: its agent has no container runtime";

/// When a node that runs no pods looks for some.
#[derive(Debug, Clone)]
pub(crate) struct Rejecting {
    /// The latest change that the server has named.
    named: Option<u64>,
    /// The one named when the last look began.
    looked: Option<u64>,
    next: Duration,
    /// A look was due, and was not answered yet.
    is_due: bool,
}

impl Rejecting {
    pub(crate) fn new(turn: &mut Turn) -> Self {
        // a server that gives this node no right to its pods is not asked all the time
        turn.outbox.set_terms(KEY, Terms { holds_refused: true, ..Terms::default() });
        Self { named: None, looked: None, next: turn.now.mono.saturating_add(LOOK), is_due: false }
    }

    pub(crate) fn server_changed(&mut self, now: Now) {
        (self.named, self.looked, self.is_due) = (None, None, false);
        self.next = now.mono.saturating_add(LOOK);
    }

    /// The server named this change.
    pub(crate) fn named(&mut self, latest: u64) {
        self.named = Some(latest);
    }

    /// Offers a look that is due.
    pub(crate) fn offer(&mut self, is_there: bool, turn: &mut Turn) {
        turn.offer(KEY, |now| {
            if is_there && (self.looked != self.named || now.mono >= self.next) {
                (self.is_due, self.looked, self.next) = (true, self.named, now.mono.saturating_add(LOOK));
            }
            self.is_due.then_some(Request::RejectPods)
        });
    }

    /// A look came to its end.
    pub(crate) fn has_looked(&mut self) {
        self.is_due = false;
    }

    pub(crate) fn next_deadline(
        &self,
        now: Now,
        is_there: bool,
        outbox: &Outbox<RequestKey, Order>,
    ) -> Option<Duration> {
        (is_there && !self.is_due && outbox.is_free(now, &KEY)).then_some(self.next)
    }
}

/// The requests about a pod that is bound to this node, which runs none. None for a pod that an agent may have
/// begun.
pub fn rejection(pod: &Value, node: &str) -> Vec<PodAsk> {
    let text = |path: &str| pod.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let reference = PodRef {
        namespace: text("/metadata/namespace").to_owned(),
        name: text("/metadata/name").to_owned(),
        uid: text("/metadata/uid").to_owned(),
    };
    let is_named =
        ![&reference.namespace, &reference.name, &reference.uid].iter().any(|part| part.is_empty());
    let is_mirror = pod["metadata"]["annotations"].get(MIRROR_ANNOTATION).is_some();
    if !is_named || is_mirror || text("/spec/nodeName") != node {
        return Vec::new();
    }
    let is_begun = !text("/status/startTime").is_empty();
    let is_rejected = match text("/status/phase") {
        "" | "Pending" if !is_begun => true,
        // by an agent that ended before it confirmed the deletion
        "Failed" if text("/status/reason") == kedge_api::NO_CONTAINER_RUNTIME => false,
        _ => return Vec::new(),
    };
    let status = json!({"phase": "Failed", "reason": kedge_api::NO_CONTAINER_RUNTIME, "message": WHY});
    let body = json!({"metadata": {"uid": reference.uid}, "status": status});
    let reject = is_rejected.then(|| PodAsk::PatchStatus { pod: reference.clone(), body });
    let is_deleted = !text("/metadata/deletionTimestamp").is_empty();
    reject.into_iter().chain(is_deleted.then_some(PodAsk::Delete(reference))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The requests about a pod with these parts, by their first letter.
    #[track_caller]
    fn check(metadata: Value, status: &Value, expect: &str) {
        let mut pod = json!({"metadata": {"namespace": "default", "name": "p", "uid": "u"},
            "spec": {"nodeName": "edge-1"}, "status": status});
        if let (Some(all), Value::Object(more)) = (pod["metadata"].as_object_mut(), metadata) {
            all.extend(more);
        }
        let letter = |ask: &PodAsk| match ask {
            PodAsk::PatchStatus { body, .. } => {
                assert_eq!(
                    (&body["metadata"]["uid"], &body["status"]["phase"]),
                    (&json!("u"), &json!("Failed"))
                );
                'r'
            }
            PodAsk::Delete(_) => 'd',
            _ => '?',
        };
        assert_eq!(rejection(&pod, "edge-1").iter().map(letter).collect::<String>(), expect, "{pod}");
    }

    #[test]
    fn pod_that_no_agent_has_begun_fails_and_its_deletion_is_confirmed() {
        let deleted = || json!({"deletionTimestamp": "2027-01-15T08:00:00Z"});
        check(json!({}), &json!({"phase": "Pending"}), "r");
        check(json!({}), &json!({}), "r");
        check(deleted(), &json!({"phase": "Pending"}), "rd");
        let rejected = json!({"phase": "Failed", "reason": "NoContainerRuntime"});
        check(json!({}), &rejected, "");
        check(deleted(), &rejected, "d");
    }

    #[test]
    fn pod_whose_containers_may_run_is_left_alone() {
        let deleted = || json!({"deletionTimestamp": "2027-01-15T08:00:00Z"});
        let begun = json!({"phase": "Pending", "startTime": "2027-01-15T07:00:00Z"});
        check(json!({}), &begun, "");
        check(deleted(), &begun, "");
        for phase in ["Running", "Unknown", "Succeeded", "Failed"] {
            check(deleted(), &json!({"phase": phase}), "");
        }
        check(json!({"annotations": {"kubernetes.io/config.mirror": "h"}}), &json!({"phase": "Pending"}), "");
        check(json!({"uid": 7}), &json!({"phase": "Pending"}), "");
        assert_eq!(rejection(&json!("no object"), ""), []);
        let elsewhere = json!({"metadata": {"namespace": "default", "name": "p", "uid": "u"}, "spec": {"nodeName": "edge-2"}});
        assert_eq!(rejection(&elsewhere, "edge-1"), []);
    }
}
