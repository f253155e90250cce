//! Ends a pod by the node's decision, also at its deadline (`failing`).

use crate::answer::Level;
use crate::pods::event::PodAction;
use crate::pods::failing::{Active, DEADLINE_EXCEEDED, DEADLINE_MESSAGE, Failed};
use crate::pods::life::{Context, Life, Verdict};
use kedge_api::Timestamp;
use std::time::Duration;

impl Life {
    /// Notes that the pod has failed, so that the node ends it.
    pub(crate) fn fail(&mut self, failed: Failed) {
        if self.ending.failed.is_none() && !self.is_over() {
            self.ending.failed = Some(failed);
            self.saved.is_stale = true;
            self.is_dirty = true;
        }
    }

    /// Fails a pod whose `activeDeadlineSeconds` are over.
    pub(crate) fn see_to_deadline(&mut self, ctx: &mut Context<'_>) {
        let Some(pod) =
            self.pod.clone().filter(|_| self.admission.verdict == Verdict::Admitted && !self.is_over())
        else {
            return;
        };
        let Some(secs) = pod.spec.active_deadline_seconds else { return };
        let active = match self.ending.active.clone() {
            Some(active) => active,
            None => {
                let told = self.api.as_ref().and_then(|api| api.status["startTime"].as_str());
                let told = told.and_then(|text| Timestamp::parse(text).ok());
                let active = Active::since(told.unwrap_or(ctx.now.wall), pod.created, ctx.now);
                self.ending.active = Some(active.clone());
                self.saved.is_stale = true;
                active
            }
        };
        let due = active.reaches(Duration::from_secs(secs));
        if ctx.now.mono < due {
            self.wake_at(due);
            return;
        }
        let text = format!("pod {}/{} ends: {DEADLINE_MESSAGE}, {secs} s", self.namespace, self.name);
        ctx.actions.push(PodAction::Log(Level::Info, text));
        self.announce(false, DEADLINE_EXCEEDED, DEADLINE_MESSAGE.into(), ctx.actions);
        self.fail(Failed {
            reason: DEADLINE_EXCEEDED.into(),
            message: DEADLINE_MESSAGE.into(),
            is_disruption: false,
            grace_secs: pod.spec.grace_secs(),
            since: ctx.now.mono,
        });
    }

    /// Whether the failure is on disk, or the disk accepts no record: a full disk must not keep the pod that
    /// fills it.
    pub(crate) fn is_failure_settled(&self) -> bool {
        self.ending.failed.is_none() || self.is_recorded() || self.is_record_refused()
    }
}
