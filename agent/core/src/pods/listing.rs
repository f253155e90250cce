//! The lists of pods that the API server gives: for which Node the last one was read, and when another is
//! needed.
//!
//! Leaves to others: when a list is believed (`actor`), and what its pods do (`Pods`).

use crate::answer::{Answer, Now};
use crate::pods::backoff::Retry;
use crate::pods::event::{PodAction, PodEvent};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// Events of the API server from before the desired set on disk was read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Early {
    pub(crate) node_uid: Option<String>,
    /// By UID.
    pub(crate) pods: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Listing {
    /// The UID of the Node that the last list was read for.
    pub(crate) node_uid: Option<String>,
    pub(crate) early: Early,
    /// When the pods are listed again because the answer to a pod without a record was lost.
    wake: Option<Duration>,
    retry: Retry,
    /// It was reported that pods are left out of the last list.
    pub(crate) has_told_of_parts: bool,
}

impl Listing {
    /// Takes the answer to a request about a pod without a record here: if it was lost, only another list
    /// shows again which pods have no answer yet.
    pub(crate) fn turned_away(&mut self, now: Now, answer: &Answer) {
        match answer {
            Answer::Accepted(_) => self.retry.succeeded(),
            Answer::Refused { status: 404 | 409, .. } => {}
            Answer::Refused { .. } | Answer::Failed(_) => self.later(now),
        }
    }

    /// Another list is needed.
    pub(crate) fn later(&mut self, now: Now) {
        if self.wake.is_none() {
            self.retry.failed(now.mono);
            self.wake = Some(self.retry.due());
        }
    }

    /// Lists the pods again if it is time.
    pub(crate) fn list_again(&mut self, now: Now, actions: &mut Vec<PodAction>) {
        if self.wake.take_if(|at| *at <= now.mono).is_some() {
            actions.push(PodAction::ListPods);
        }
    }

    /// When that is.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.wake
    }
}

impl Early {
    /// Notes an event until then.
    pub(crate) fn note(&mut self, news: PodEvent) {
        let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        match news {
            PodEvent::PodsListed { node_uid, pods } => {
                self.node_uid = Some(node_uid);
                self.pods = pods.into_iter().map(|object| (uid(&object), object)).collect();
            }
            PodEvent::PodSeen(object) => {
                self.pods.insert(uid(&object), object);
            }
            PodEvent::PodGone(object) => {
                self.pods.remove(&uid(&object));
            }
            _ => {}
        }
    }
}
