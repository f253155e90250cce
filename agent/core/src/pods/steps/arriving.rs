//! What the API server and the runtime show of a pod: its object, bound or mirrored, and the runs that exist.

use crate::answer::Now;
use crate::pods::admission::Rejection;
use crate::pods::event::ContainerState;
use crate::pods::in_api::InApi;
use crate::pods::keys::ContainerKey;
use crate::pods::life::{Doing, Life, Origin, SandboxState, Verdict};
use crate::pods::mirrors::reference_of;
use crate::pods::resizing;
use crate::pods::spec::Pod;
use crate::sorted::SortedSet;
use serde_json::Value;
use std::rc::Rc;
use std::time::Duration;

impl Life {
    /// The API server has bound it to this node: takes its object, new or changed.
    pub(crate) fn bound(
        &mut self,
        now: Now,
        origin: Origin,
        mut pod: Pod,
        object: &Value,
        problem: Option<String>,
    ) {
        self.is_dirty = true;
        if self.origin != origin {
            self.origin = origin;
            self.saved.is_stale = true;
        }
        self.namespace.clone_from(&pod.namespace);
        self.name.clone_from(&pod.name);
        let admitted =
            self.pod.as_ref().filter(|known| self.admission.verdict == Verdict::Admitted && !known.is_slim());
        self.admission.awaits_resize = admitted.is_some_and(|known| resizing::keep_admitted(&mut pod, known));
        let is_new_spec = self.pod.as_ref().is_none_or(|known| known.raw_spec != pod.raw_spec);
        self.saved.is_stale |= is_new_spec;
        let is_known = |known: &Rc<Pod>| known.labels == pod.labels && known.annotations == pod.annotations;
        self.files.is_stale |= is_new_spec || self.api.is_none() || !self.pod.as_ref().is_some_and(is_known);
        let reference = pod.reference();
        let deletion = pod.deletion;
        self.pod = Some(Rc::new(pod));
        match &mut self.api {
            // the server's states from before the deletion arrive late
            Some(api) if !api.is_deleted || deletion.is_some() => self.seen_in_api(object),
            _ => {
                self.api = Some(InApi::new(reference, object));
                self.learn(&object["status"]);
            }
        }
        if let Some(why) = problem.filter(|_| self.admission.verdict == Verdict::Pending) {
            let reason = "UnexpectedAdmissionError".to_owned();
            self.admission.verdict = Verdict::Rejected(Rejection { reason, message: why });
        }
        self.ends_if_deleted(now, deletion);
    }

    fn ends_if_deleted(&mut self, now: Now, deletion: Option<u64>) {
        let Some(secs) = deletion else { return };
        if let Some(api) = &mut self.api {
            api.awaits_delete = true;
        }
        self.end(now, Duration::from_secs(secs));
    }

    /// Takes only three facts of the object: that it exists, whether it is being deleted, and whether it has
    /// ended.
    pub(crate) fn seen_in_part(&mut self, now: Now, pod: &Pod, object: &Value) {
        self.is_dirty = true;
        let is_later = match &mut self.api {
            Some(api) if api.is_deleted && pod.deletion.is_none() => false,
            Some(api) => api.seen(object),
            api @ None => {
                *api = Some(InApi::new(pod.reference(), object));
                true
            }
        };
        if is_later {
            self.finished_by_others(&object["status"]);
        }
        self.ends_if_deleted(now, pod.deletion);
    }

    /// The pod's object is gone: the pod ends, and its status is reported to no server.
    pub(crate) fn gone_from_api(&mut self, now: Now) {
        self.api = None;
        let grace = self.own_grace();
        self.end(now, grace);
    }

    /// Takes its mirror in the API. If it is not news, it may be older than the status that the server
    /// accepted last.
    pub(crate) fn mirrored(&mut self, object: &Value, is_news: bool) {
        match &mut self.api {
            Some(api) if api.reference.uid == object["metadata"]["uid"] => {
                if is_news {
                    self.seen_in_api(object);
                }
            }
            _ => {
                self.api = Some(InApi::new(reference_of(object), object));
                self.learn(&object["status"]);
            }
        }
    }

    /// The runtime has reported everything it has: other runs no longer exist.
    pub(crate) fn forget_unseen(&mut self, now: Now, seen: &SortedSet<&ContainerKey>, is_prepared: bool) {
        if !is_prepared && matches!(self.sandbox.state, SandboxState::Ready | SandboxState::Half) {
            self.sandbox.state = SandboxState::Absent;
        }
        let uid = self.uid.clone();
        for (name, container) in &mut self.containers {
            let is_seen = |attempt: u32| {
                seen.contains(&ContainerKey { pod: uid.clone(), container: name.clone(), attempt })
            };
            container.older.retain(|attempt, _| is_seen(*attempt));
            let is_ordered = |attempt: u32| container.command == Some(Doing::Create(attempt));
            if let Some(run) =
                container.run.as_mut().filter(|run| !is_seen(run.attempt) && !is_ordered(run.attempt))
            {
                if !run.has_ended() {
                    run.state = ContainerState::Lost(String::new());
                    run.ended = Some(now.mono);
                    container.command = None;
                }
                run.is_removed = true;
            }
        }
    }
}
