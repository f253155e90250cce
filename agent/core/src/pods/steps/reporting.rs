//! The record of a pod on disk, and the reports about it to the API server.
//!
//! Always holds: at most one write and one request of a pod are under way; a status is sent only if it
//! differs from the server's, and not before the results in it are on disk; if the server may have a status
//! of this node that the node has not seen, the next status takes effect only on the version that it was
//! composed for; the record is removed before the node deletes the pod's object, so that no pod comes back
//! after its object is gone. Leaves to others: the content of a status (`status`) and of a record (`record`).

use crate::answer::{Answer, Now};
use crate::node::rival;
use crate::pods::event::{ContainerState, DesiredFile, Exit, PodAction, TERMINATION_MESSAGE_BYTES};
use crate::pods::failing::Failed;
use crate::pods::in_api::{Base, InApi, Sent};
use crate::pods::keys::{ContainerKey, PodUid};
use crate::pods::life::{
    ContainerLife, Context, Hindrance, Life, Origin, Run, SandboxState, Verdict, shown_id, unseen_exit,
};
use crate::pods::record::Record;
use crate::pods::resizing;
use crate::pods::resources::qos_class;
use crate::pods::spec::{Container, MIRROR_ANNOTATION, Pod};
use crate::pods::status::{self, ContainerView, Shown, Situation, Terminated};
use serde_json::{Value, json};
use std::rc::Rc;
use std::time::Duration;

impl Life {
    /// Whether the pod has, or should have, a record: the file of a static pod is its record, except for its
    /// results, failure and deadline.
    fn has_record_of_its_own(&self) -> bool {
        match self.origin {
            Origin::Api { .. } => true,
            Origin::Static { .. } => {
                !self.results.is_empty()
                    || self.ending.failed.is_some()
                    || self.ending.active.is_some()
                    || self.has_record()
            }
            Origin::Found { .. } => false,
        }
    }

    /// Whether its record is up to date.
    pub(crate) fn is_recorded(&self) -> bool {
        if !self.has_record_of_its_own() {
            return true;
        }
        let saved = &self.saved;
        !saved.is_stale && saved.wanted.is_some() && saved.durable == saved.wanted && !saved.is_unknown
    }

    /// Whether containers may be started, because the pod would be found again after a power cut. A later
    /// change that cannot be written stops no container.
    pub(crate) fn may_start(&self) -> bool {
        let was_recorded = self.is_static() || self.saved.durable.is_some();
        self.is_recorded() || (was_recorded && self.saved.retry.failures() > 0)
    }

    /// Whether the disk failed to write its record, so that the write is tried again.
    pub(crate) fn is_record_refused(&self) -> bool {
        self.saved.retry.failures() > 0
    }

    /// Writes the record if it is out of date.
    pub(crate) fn save(&mut self, ctx: &mut Context<'_>) {
        let Some(pod) = self.pod.clone().filter(|_| self.has_record_of_its_own()) else { return };
        let node_uid = self.node_uid().to_owned();
        let was_recorded = self.saved.durable.is_some() || self.saved.is_unknown;
        if (!was_recorded && !self.needs_record()) || pod.is_slim() {
            return;
        }
        let is_done = self.ending.asked.is_some() && self.is_swept();
        if is_done {
            self.saved.wanted = None;
        } else if self.saved.is_stale || self.saved.wanted.is_none() {
            self.saved.wanted = Some(self.record(&node_uid, &pod).meaning());
        }
        self.saved.is_stale = false;
        let saved = &mut self.saved;
        if saved.writing.is_some() || (saved.durable == saved.wanted && !saved.is_unknown) {
            return;
        }
        if !saved.retry.is_due(ctx.now.mono) {
            let due = saved.retry.due();
            self.wake_at(due);
            return;
        }
        saved.writing = Some(saved.wanted);
        let content = (!is_done).then(|| self.record(&node_uid, &pod).content());
        ctx.actions.push(PodAction::SaveDesired { file: DesiredFile::Pod(self.uid.clone()), content });
    }

    /// Whether a power cut must not make the node forget it; that is unnecessary for a pod that was not
    /// judged, one that ends and was never recorded, and one that is idle.
    fn needs_record(&self) -> bool {
        self.admission.verdict != Verdict::Pending && self.ending.asked.is_none() && !self.is_idle()
    }

    /// Whether it was rejected, or had finished before it came here, and the runtime has no part of it. The
    /// API server knows the same.
    pub(crate) fn is_idle(&self) -> bool {
        let is_rejected = matches!(self.admission.verdict, Verdict::Rejected(_));
        (is_rejected || self.ending.is_finished_elsewhere) && !self.has_begun()
    }

    /// Drops data that only a pod with work on this node needs, because there may be many other pods; returns
    /// whether there was any.
    pub(crate) fn slim(&mut self) -> bool {
        if !self.is_idle() || self.is_static() || self.has_record() {
            return false;
        }
        let Some(pod) = self.pod.as_mut().filter(|pod| !pod.is_slim()) else { return false };
        Rc::make_mut(pod).slim();
        true
    }

    fn record(&self, node_uid: &str, pod: &Pod) -> Record {
        let rejected = match &self.admission.verdict {
            Verdict::Rejected(rejection) => Some(rejection.clone()),
            _ => None,
        };
        let ended = self.ending.asked.as_ref().map(|end| end.grace.as_secs());
        let mut record = Record::new(node_uid, pod, ended, rejected, self.results.clone());
        record.failed.clone_from(&self.ending.failed);
        record.active_since = self.ending.active.as_ref().map(|active| active.since);
        record
    }

    /// A write of the record has ended.
    pub(crate) fn desired_saved(
        &mut self,
        now: Now,
        done: &Result<(), String>,
        actions: &mut Vec<PodAction>,
    ) {
        self.is_dirty = true;
        let Some(written) = self.saved.writing.take() else {
            // this was the removal of a record from before this life
            self.saved.is_unknown |= done.is_err();
            return;
        };
        match done {
            Ok(()) => {
                self.saved.durable = written;
                self.saved.is_unknown = false;
                self.saved.retry.succeeded();
            }
            Err(why) => {
                self.saved.is_unknown = true;
                self.saved.retry.failed(now.mono);
                let message = format!("error syncing pod: its record cannot be written: {why}");
                match self.has_begun() || self.is_over() {
                    true => self.announce(true, "FailedSync", message, actions),
                    false => self.hindered(now, "FailedSync", message, actions),
                }
            }
        }
    }

    /// Whether the server has a final status, and this node has nothing to add.
    fn is_told_by_others(&self) -> bool {
        let Some(api) = &self.api else { return self.ending.is_finished_elsewhere && self.has_no_run() };
        let is_failure_told = || {
            let told = |failed: &Failed| api.status["reason"] == *failed.reason;
            api.status["phase"] == "Failed" && self.ending.failed.as_ref().is_some_and(told)
        };
        // another client may have ended it in the API without knowing how its containers ended
        let lists = ["initContainerStatuses", "containerStatuses"];
        let mut told = lists.iter().flat_map(|list| api.status[*list].as_array()).flatten();
        (self.ending.is_finished_elsewhere || is_failure_told())
            && told.all(|container| container["state"]["running"].is_null())
            && self.has_no_run()
    }

    fn has_no_run(&self) -> bool {
        self.containers.values().all(|container| container.run.is_none())
    }

    /// Whether the server has the final status, or no server is left to report it to. The end of a static pod
    /// waits for no server: its file already shows the end, and its successor must also start while the
    /// server is unreachable.
    pub(crate) fn is_end_reported(&self) -> bool {
        if self.is_static() {
            return true;
        }
        match &self.api {
            Some(_) if self.is_told_by_others() => true,
            Some(api) if !api.is_deleted => api.sent.is_none() && self.is_reported_now(api),
            _ => true,
        }
    }

    fn is_reported_now(&self, api: &InApi) -> bool {
        let Some(pod) = &self.pod else { return true };
        let Some(situation) = self.situation(pod, &[]) else { return true };
        // only the fields that show the pod's end, without times and addresses
        let now = kedge_api::Timestamp::default();
        let new = status::compose(&situation, &api.status, now);
        let says_it = |status: &Value| {
            ["phase", "containerStatuses", "initContainerStatuses"]
                .iter()
                .all(|key| new.get(key) == status.get(key))
        };
        let is_refused = api
            .refused
            .as_ref()
            .is_some_and(|refused| refused.get("containerStatuses") == new.get("containerStatuses"));
        // changes that the server made to an accepted status do not matter here
        is_refused || says_it(&api.status) || api.accepted.as_ref().is_some_and(says_it)
    }

    /// Sends the status if it differs from the server's.
    pub(crate) fn report(&mut self, ctx: &mut Context<'_>) {
        let Some(pod) = self.pod.clone() else { return };
        let Some(api) = self.api.as_ref().filter(|api| !api.is_deleted && api.sent.is_none()) else { return };
        // a result must not be reported before it would survive a power cut
        let has_result = !self.results.is_empty() && !self.is_recorded();
        let is_settled = self.ending.asked.is_some() || (!has_result && self.is_failure_settled());
        // after the final status the deletion reports the rest
        let is_removed = matches!(self.sandbox.state, SandboxState::Removing { .. }) || self.is_swept();
        let is_told = self.ending.asked.is_some() && is_removed;
        let is_judged = self.admission.verdict != Verdict::Pending || self.ending.asked.is_some();
        if !is_settled || !is_judged || is_told || self.is_told_by_others() {
            return;
        }
        let addresses = ctx.node.map(|node| node.addresses.as_slice()).unwrap_or_default();
        let Some(situation) = self.situation(&pod, addresses) else { return };
        let new = status::compose(&situation, &api.status, ctx.now.wall);
        let Some(api) = &mut self.api else { return };
        api.given = status::times_of(&new);
        let Some(mut patch) = status::patch(&api.reference, &api.status, &new) else {
            api.conflicts = 0;
            return;
        };
        let is_repeated = api.accepted.as_ref() == Some(&new);
        let due = api.retry.0.due().max(if is_repeated { api.repeats.0.due() } else { Duration::ZERO });
        if ctx.now.mono < due {
            self.wake_at(due);
            return;
        }
        if api.base == Base::Old {
            api.base = Base::OldAndListed;
            api.retry.0.failed(ctx.now.mono);
            let due = api.retry.0.due();
            self.wake_at(due);
            if !ctx.actions.contains(&PodAction::ListPods) {
                ctx.actions.push(PodAction::ListPods);
            }
            return;
        }
        let is_told = status::has_condition(&api.status, resizing::CONDITION);
        let is_news = !is_told && status::has_condition(&new, resizing::CONDITION);
        let version = api.version.filter(|_| api.is_unsure);
        if let Some(version) = version {
            patch["metadata"]["resourceVersion"] = json!(version.to_string());
        }
        api.sent = Some(Sent { status: new, version });
        ctx.actions.push(PodAction::PatchPodStatus { pod: api.reference.clone(), patch });
        if is_news {
            let message = format!("Pod resize {}: {}", resizing::REASON, resizing::WHY);
            self.announce(true, resizing::EVENT, message, ctx.actions);
        }
    }

    /// Takes the server's answer to a status.
    pub(crate) fn status_answered(&mut self, now: Now, answer: &Answer) {
        self.is_dirty = true;
        let Some(api) = &mut self.api else { return };
        let Some(Sent { status: sent, version }) = api.sent.take() else { return };
        match answer {
            Answer::Accepted(object) => {
                api.refused = None;
                match object {
                    Some(object) if object.get("status").is_some() => _ = api.seen(object),
                    _ => api.status = status::merged(&api.status, &sent),
                }
                (api.is_unsure, api.base, api.conflicts) = (false, Base::Usable, 0);
                api.retry.0.succeeded();
                match api.accepted.as_ref() == Some(&sent) {
                    true => api.repeats.0.failed(now.mono),
                    false => api.repeats.0.succeeded(),
                }
                api.accepted = Some(sent);
                let known = api.status.clone();
                self.finished_by_others(&known);
            }
            Answer::Refused { status: 404, .. } => api.is_deleted = true,
            // the node may get the permission later, or reach a server that accepts the status; a pod that
            // ends does not wait for this
            refusal if refusal.is_final() => {
                api.refused = Some(sent);
                api.retry.0.failed(now.mono);
            }
            answer if answer.is_about_a_duplicate() => {
                api.refused = Some(sent);
                api.retry.0.wait(now.mono, rival::PAUSE);
            }
            // the server has another version of the pod, or another pod of that name: in both cases the watch
            // shows it
            Answer::Refused { status: 409, .. } => {
                if api.conflicts == 0 {
                    // it answers again
                    api.retry.0.succeeded();
                }
                api.conflicts = api.conflicts.saturating_add(1);
                api.retry.0.failed(now.mono);
                match version {
                    Some(_) if api.version == version => api.base = Base::Old,
                    Some(_) => api.hurry(),
                    None => {}
                }
            }
            Answer::Refused { .. } | Answer::Failed(_) => {
                // the server may have accepted the status although the answer was lost
                api.is_unsure = true;
                api.retry.0.failed(now.mono);
            }
        }
    }

    /// Deletes the pod's object, once no part of the pod is left.
    pub(crate) fn delete(&mut self, ctx: &mut Context<'_>) {
        let may = self.ending.asked.is_some() && self.is_swept() && !self.has_record();
        let Some(api) = self.api.as_mut().filter(|api| may && api.awaits_delete) else { return };
        if api.is_deleted || api.is_deleting || api.sent.is_some() {
            return;
        }
        if !api.retry.0.is_due(ctx.now.mono) {
            let due = api.retry.0.due();
            self.wake_at(due);
            return;
        }
        api.is_deleting = true;
        ctx.actions.push(PodAction::DeletePod(api.reference.clone()));
    }

    pub(crate) fn delete_answered(&mut self, now: Now, answer: &Answer) {
        self.is_dirty = true;
        let Some(api) = &mut self.api else { return };
        api.is_deleting = false;
        match answer {
            Answer::Accepted(_) | Answer::Refused { status: 404 | 409, .. } => api.is_deleted = true,
            Answer::Refused { .. } | Answer::Failed(_) => api.retry.0.failed(now.mono),
        }
    }

    fn has_record(&self) -> bool {
        self.saved.durable.is_some() || self.saved.is_unknown || self.saved.writing.is_some()
    }

    /// Whether no part of it is left in the runtime, on disk or in the API.
    pub(crate) fn is_over_and_gone(&self) -> bool {
        // late events must find this life until the watch shows that the object is gone
        let is_in_api = matches!(self.origin, Origin::Api { .. }) && self.api.is_some();
        self.ending.asked.is_some() && self.is_swept() && !self.has_record() && !is_in_api
    }

    /// Takes its object, or its mirror, in a later state than the known one.
    pub(crate) fn seen_in_api(&mut self, object: &Value) {
        let Some(api) = self.api.as_mut().filter(|api| api.reference.uid == object["metadata"]["uid"]) else {
            return;
        };
        if !api.seen(object) {
            return;
        }
        match api.accepted {
            // a report of an earlier agent may arrive after this agent started
            None => self.learn(&object["status"]),
            Some(_) => self.finished_by_others(&object["status"]),
        }
    }

    /// Takes from the API's status the facts that this process did not see: restarts, and how earlier runs
    /// ended.
    pub(crate) fn learn(&mut self, status: &Value) {
        for list in ["initContainerStatuses", "containerStatuses"] {
            for told in status[list].as_array().into_iter().flatten() {
                let Some(name) = told["name"].as_str() else { continue };
                let is_own = self
                    .pod
                    .as_ref()
                    .is_some_and(|pod| pod.spec.all_containers().any(|spec| spec.name == name));
                if !is_own {
                    continue;
                }
                let uid = self.uid.clone();
                self.containers.entry(name.to_owned()).or_default().learn(&uid, name, told);
            }
        }
        self.finished_by_others(status);
    }

    /// The API server has a final phase that this node did not report: another client ended the pod there (an
    /// eviction, a garbage collector), or it ended before this process knew it. As upstream, the pod then
    /// ends here too.
    pub(crate) fn finished_by_others(&mut self, status: &Value) {
        let is_terminal = matches!(status["phase"].as_str(), Some("Failed" | "Succeeded"));
        let Some(pod) = self.pod.clone().filter(|_| is_terminal && !self.is_static() && !self.is_over())
        else {
            return;
        };
        self.ending.is_finished_elsewhere = true;
        // a finished container never runs again, also after a start without the API server
        let told = |spec: &Container| {
            let mut statuses = status["containerStatuses"].as_array()?.iter();
            let told = statuses.find(|told| told["name"] == spec.name)?;
            let end = Terminated::read(&told["state"]["terminated"])?;
            Some(Exit {
                code: end.exit_code,
                signal: end.signal,
                oom_killed: false,
                started: end.started,
                finished: end.finished,
                message: kedge_api::head_of(&end.message, TERMINATION_MESSAGE_BYTES).to_owned(),
            })
        };
        for spec in &pod.spec.containers {
            let known = self.results.entry(spec.name.clone());
            known.or_insert_with(|| told(spec).unwrap_or_else(unseen_exit));
        }
        self.saved.is_stale = true;
    }

    /// The input of a status; `None` while there is no status to report.
    fn situation<'a>(&'a self, pod: &'a Pod, host_addresses: &'a [String]) -> Option<Situation<'a>> {
        let is_rejected = matches!(self.admission.verdict, Verdict::Rejected(_));
        let is_down = self.is_down();
        let failed = match (&self.admission.verdict, &self.ending.failed) {
            (Verdict::Rejected(rejection), _) => {
                Some((rejection.reason.clone(), format!("Pod was rejected: {}", rejection.message)))
            }
            // as upstream: not before its containers have ended
            (_, Some(failed)) if is_down => Some((failed.reason.clone(), failed.message.clone())),
            _ => None,
        };
        let disruption = self.ending.failed.as_ref().filter(|failed| failed.is_disruption);
        let views = |specs: &'a [Container]| specs.iter().map(|spec| self.view(pod, spec)).collect();
        let has_containers = !is_rejected;
        Some(Situation {
            spec: &pod.spec,
            generation: pod.generation,
            init: if has_containers { views(&pod.spec.init_containers) } else { vec![] },
            main: if has_containers { views(&pod.spec.containers) } else { vec![] },
            is_prepared: self.sandbox.state == SandboxState::Ready,
            hindrance: self.shown_hindrance().map(|it| (it.reason, it.message.as_str())),
            is_over: is_down,
            is_finished: self.is_finished() && (self.ending.failed.is_none() || is_down),
            is_static: self.is_static(),
            failed,
            disruption: disruption.map(|failed| failed.message.as_str()),
            addresses: &self.sandbox.network.addresses,
            host_addresses,
            qos: qos_class(&pod.spec).word(),
            ahead: self.ahead.judged(),
            awaits_resize: self.admission.awaits_resize && !self.is_over(),
            given: self.api.as_ref().map_or(&Value::Null, |api| &api.given),
        })
    }

    /// Why the pod does not start although it should.
    pub(crate) fn shown_hindrance(&self) -> Option<&Hindrance> {
        self.waits.hindrance.as_ref().filter(|_| self.sandbox.state != SandboxState::Ready && !self.is_over())
    }

    fn view(&self, pod: &Pod, spec: &Container) -> ContainerView {
        let unknown = ContainerLife::default();
        let container = self.containers.get(&spec.name).unwrap_or(&unknown);
        let id = |run: &Run| shown_id(&self.key(&spec.name, run.attempt));
        let run = container.run.as_ref();
        let (state, last) = self.shown(pod, spec, container);
        let attempt = run.map_or(container.next_attempt.saturating_sub(1), |run| run.attempt);
        let image = run.map(|run| run.image_name.clone()).filter(|name| !name.is_empty());
        ContainerView {
            name: spec.name.clone(),
            image: image.unwrap_or_else(|| spec.image.clone()),
            image_id: run.map(|run| run.image_reference.clone()).unwrap_or_default(),
            container_id: run.map(id).unwrap_or_default(),
            restart_count: attempt.max(container.floor),
            health: container.health(spec),
            state,
            last,
        }
    }

    /// The state shown, and the one before.
    fn shown(&self, pod: &Pod, spec: &Container, container: &ContainerLife) -> (Shown, Option<Terminated>) {
        let id = |attempt| shown_id(&self.key(&spec.name, attempt));
        let last = container.last.clone();
        let waiting = || {
            let default =
                if pod.spec.init_containers.is_empty() { "ContainerCreating" } else { "PodInitializing" };
            let of_pod = || self.shown_hindrance().map(|it| format!("{}: {}", it.reason, it.message));
            let waiting = container.waiting.clone();
            let (reason, message) = waiting.unwrap_or_else(|| (default, of_pod().unwrap_or_default()));
            Shown::Waiting { reason: reason.into(), message }
        };
        let Some(run) = &container.run else {
            return match self.results.get(&spec.name) {
                Some(exit) if *exit == unseen_exit() => {
                    (Shown::Terminated(last.unwrap_or_else(|| Terminated::unseen(String::new()))), None)
                }
                Some(exit) => (Shown::Terminated(Terminated::by(exit, String::new())), last),
                None if self.is_init_of_the_past(pod, spec) => (Shown::Terminated(completed_unseen()), last),
                None if self.is_down() && !self.never_began(pod, spec) => (
                    Shown::Terminated(last.clone().unwrap_or_else(|| Terminated::unseen(String::new()))),
                    None,
                ),
                None => (waiting(), last),
            };
        };
        match (&run.state, run.started) {
            // its start failed under an agent that was killed after it had noted the result; the runtime has
            // no exit of it
            (ContainerState::Created, _) if self.results.contains_key(&spec.name) => {
                (Shown::Terminated(Terminated::by(&self.results[&spec.name], id(run.attempt))), last)
            }
            (ContainerState::Running { started, .. }, _) => (Shown::Running { started: *started }, last),
            (ContainerState::Unknown(_), Some(started)) => (Shown::Running { started }, last),
            (ContainerState::Created, _) if self.is_down() => {
                (Shown::Terminated(last.clone().unwrap_or_else(|| Terminated::unseen(String::new()))), None)
            }
            (ContainerState::Created | ContainerState::Unknown(_), _) => (waiting(), last),
            (ContainerState::Exited(_) | ContainerState::Lost(_), _) => {
                let end =
                    run.terminated(id(run.attempt)).unwrap_or_else(|| Terminated::unseen(id(run.attempt)));
                // it will run again, so as upstream the status shows why it waits
                let waits = container.waiting.is_some() && !self.is_over();
                if waits { (waiting(), Some(end)) } else { (Shown::Terminated(end), last) }
            }
        }
    }

    /// Upstream's rule for a pod that is over: whether there is no sign that this container ever started. If
    /// the container may have started and left no trace, it counts as failed.
    fn never_began(&self, pod: &Pod, spec: &Container) -> bool {
        let has_trace = |container: &Container| {
            let life = self.containers.get(&container.name);
            life.is_some_and(|life| life.run.is_some() || life.last.is_some())
                || self.results.contains_key(&container.name)
        };
        let init = &pod.spec.init_containers;
        if let Some(place) = init.iter().position(|container| container.name == spec.name) {
            // the first one started whenever the pod did
            return place > init.iter().rposition(has_trace).unwrap_or(0);
        }
        let Some(last) = init.last() else { return false };
        let has_completed = self.results.get(&last.name).is_some_and(|exit| exit.code == 0);
        let is_initialized = has_completed || (last.is_sidecar() && has_trace(last));
        !is_initialized && !pod.spec.containers.iter().any(has_trace)
    }

    /// Whether this init container must have completed, because main containers have run.
    fn is_init_of_the_past(&self, pod: &Pod, spec: &Container) -> bool {
        let is_init = pod.spec.init_containers.iter().any(|init| init.name == spec.name);
        let has_run = |main: &Container| {
            self.containers.get(&main.name).is_some_and(|container| container.run.is_some())
        };
        is_init && !spec.is_sidecar() && pod.spec.containers.iter().any(has_run)
    }
}

/// Upstream's text for an init container whose completion was not seen.
fn completed_unseen() -> Terminated {
    let message = "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally";
    Terminated {
        exit_code: 0,
        reason: "Completed".into(),
        message: message.into(),
        ..Terminated::unseen(String::new())
    }
}

impl ContainerLife {
    /// Takes its last reported state.
    fn learn(&mut self, uid: &PodUid, name: &str, told: &Value) {
        let count = u32::try_from(told["restartCount"].as_u64().unwrap_or(0)).unwrap_or(u32::MAX);
        let id = told["containerID"].as_str().unwrap_or_default();
        let key = |attempt: u32| ContainerKey { pod: uid.clone(), container: name.to_owned(), attempt };
        let is_known = |attempt: u32| id == shown_id(&key(attempt));
        let state = &told["state"];
        let had_run = state["running"].is_object() || state["terminated"].is_object();
        let is_same = self.run.as_ref().is_some_and(|run| is_known(run.attempt));
        let before = Terminated::read(&told["lastState"]["terminated"]);
        let end = Terminated::read(&state["terminated"]);
        // an earlier agent saw this run's end, and announced it
        let mut ends = end.iter().chain(&before);
        self.untold.take_if(|(attempt, _)| {
            ends.any(|end| end.is_unseen() && end.container_id == shown_id(&key(*attempt)))
        });
        if is_same || !had_run {
            self.floor = self.floor.max(count);
            self.last = self.last.take().or(before);
        } else {
            self.floor = self.floor.max(count.saturating_add(u32::from(self.run.is_some())));
            self.last = self.last.take().or(end).or_else(|| Some(Terminated::unseen(id.to_owned())));
        }
        let has_run = self.run.is_some() || had_run || self.last.is_some();
        let next = if has_run { self.floor.saturating_add(1) } else { self.floor };
        self.next_attempt = self.next_attempt.max(next);
    }
}

/// The object that represents a static pod in the API.
pub(crate) fn mirror_of(pod: &Pod, hash: &str, node_name: &str, node_uid: &str) -> Value {
    let mut annotations = pod.annotations.clone();
    annotations.insert(MIRROR_ANNOTATION.into(), hash.to_owned());
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": pod.name, "namespace": pod.namespace, "labels": pod.labels, "annotations": annotations,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid, "controller": true}],
        },
        "spec": pod.raw_spec,
    })
}

#[cfg(test)]
mod tests {
    use crate::pods::ContainerState;
    use crate::pods::event::{Command, DesiredFile, Failure, FailureReason, PodAction, PodEvent};
    use crate::pods::fixture::{Node, Patches};
    use crate::pods::keys::PodUid;
    use serde_json::{Value, json};

    #[test]
    fn reason_why_a_pod_waits_is_kept_and_shown() {
        let mut node = Node::new();
        node.fails_volumes = Some("volume \"sys\": /sys/class/drm: no such directory".into());
        node.bind("p", json!({"initContainers": [{"name": "i", "image": "x:1"}]}));
        node.wait(600);
        let why = "volume \"sys\": /sys/class/drm: no such directory";
        let condition = node.condition("p", "PodReadyToStartContainers");
        assert_eq!((&condition["reason"], &condition["message"]), (&json!("FailedMount"), &json!(why)));
        let waiting = &node.status("p")["containerStatuses"][0]["state"]["waiting"];
        assert_eq!(waiting["reason"], "PodInitializing");
        assert_eq!(waiting["message"], format!("FailedMount: {why}"));
        let waits = node.pods.report()[0].waits.clone().expect("it waits");
        assert_eq!((waits.reason, waits.message.as_str()), ("FailedMount", why));
        let lines = node.seen.iter().filter(|it| matches!(it, PodAction::Log(_, line) if line.contains(why)));
        assert_eq!(lines.count(), 1, "logged once");
        let urgent = |it: &&PodAction| matches!(it, PodAction::RecordEvent(news) if news.is_urgent);
        assert_eq!(node.seen.iter().filter(urgent).count(), 1);
        // a repeated failure makes no new Event, and a pod that ends makes none
        node.fails_volumes = None;
        node.wait(300);
        assert!(node.runs("p") && node.pods.report()[0].waits.is_none());
        assert!(node.condition("p", "PodReadyToStartContainers")["message"].is_null());
    }

    #[test]
    fn result_is_reported_once_it_is_durable() {
        let mut node = Node::new();
        node.bind("p", json!({"restartPolicy": "Never"}));
        node.disk_hangs = true;
        node.ends("p", "a", 0);
        node.wait(100);
        assert_eq!(node.status("p")["phase"], "Running", "a power cut would have it run again");
        let file = DesiredFile::Pod(PodUid::new("p").unwrap());
        node.tell(PodEvent::DesiredSaved { file, done: Ok(()) });
        assert_eq!(node.status("p")["phase"], "Succeeded");
    }

    #[test]
    fn failed_step_of_a_running_pod_is_no_hindrance() {
        let mut node = Node::new();
        node.bind("p", json!({}));
        let uid = PodUid::new("p").unwrap();
        let failure = Failure { reason: FailureReason::Volume, message: "why".into() };
        node.tell(PodEvent::Failed { command: Command::UpdateVolumes(uid), failure });
        assert!(node.pods.report()[0].waits.is_none());
    }

    /// The state of each container, init containers first.
    fn states(node: &Node, pod: &str) -> Vec<(String, String)> {
        let list = |name: &str| node.status(pod)[name].as_array().cloned().unwrap_or_default();
        let all = list("initContainerStatuses").into_iter().chain(list("containerStatuses"));
        all.map(|status: Value| {
            let (state, detail) = status["state"].as_object().unwrap().iter().next().unwrap();
            (state.clone(), detail["reason"].as_str().unwrap_or_default().to_owned())
        })
        .collect()
    }

    #[test]
    fn container_behind_a_failed_init_one_still_waits() {
        let mut node = Node::new();
        let init = |name: &str| json!({"name": name, "image": "x:1"});
        node.bind("p", json!({"restartPolicy": "Never", "initContainers": [init("i"), init("j")]}));
        node.ends("p", "i", 1);
        node.wait(2);
        assert_eq!(node.status("p")["phase"], "Failed");
        let is = |state: &str, reason: &str| (state.to_owned(), reason.to_owned());
        let waits = is("waiting", "PodInitializing");
        assert_eq!(states(&node, "p"), [is("terminated", "Error"), waits.clone(), waits]);
    }

    #[test]
    fn container_that_may_have_run_is_shown_as_failed() {
        let mut node = Node::new();
        node.bind(
            "p",
            json!({"restartPolicy": "Never", "initContainers": [{"name": "i", "image": "x:1"}],
            "containers": [{"name": "a", "image": "x:1"}, {"name": "b", "image": "x:1"}]}),
        );
        node.ends("p", "i", 0);
        node.ends("p", "a", 1);
        node.ends("p", "b", 0);
        node.wait(2);
        let is = |reason: &str| ("terminated".to_owned(), reason.to_owned());
        assert_eq!(states(&node, "p"), [is("Completed"), is("Error"), is("Completed")]);
    }

    /// The reported status of a pod: whether it is ready and since when, and how often its container was
    /// restarted.
    fn reported(node: &Node) -> (Value, String, u64) {
        let ready = node.condition("p", "Ready");
        let restarts = node.status("p")["containerStatuses"][0]["restartCount"].as_u64();
        let since = ready["lastTransitionTime"].as_str().unwrap_or_default().to_owned();
        (ready["status"].clone(), since, restarts.unwrap_or_default())
    }

    /// The test server checks in each of these tests that no time changes.
    #[test]
    fn times_stay_when_an_answer_is_lost() {
        for are_shown in [true, false] {
            for is_restarted in [false, true] {
                let mut node = Node::new();
                node.patches = Patches::Unheard { are_shown };
                node.bind("p", json!({}));
                let began = node.status("p")["startTime"].clone();
                assert!(began.is_string(), "it was taken");
                node.secs += 3;
                if is_restarted {
                    node.start();
                }
                node.wait(3);
                node.patches = Patches::Answered;
                node.wait(60);
                let (is_ready, since, _) = reported(&node);
                assert_eq!((&node.status("p")["startTime"], is_ready), (&began, json!("True")));
                // a status was sent meanwhile which says that the pod is not ready; the pod is ready again
                // before the server receives it
                node.patches = Patches::Unheard { are_shown };
                node.ends("p", "a", 1);
                node.wait(3);
                let (is_ready, fell, _) = reported(&node);
                assert_eq!((is_ready, fell > since), (json!("False"), true));
                node.patches = Patches::Answered;
                node.wait(60);
                let (is_ready, rose, restarts) = reported(&node);
                assert_eq!((is_ready, rose >= fell, restarts), (json!("True"), true, 1));
            }
        }
    }

    #[test]
    fn time_that_was_given_out_is_sent_until_it_is_taken() {
        let mut node = Node::new();
        node.patches = Patches::Lost;
        node.bind("p", json!({}));
        let began = node.epoch + i64::try_from(node.secs).unwrap();
        node.wait(60);
        assert!(node.status("p")["startTime"].is_null());
        node.patches = Patches::Answered;
        node.wait(60);
        let began = json!(kedge_api::Timestamp::from_micros(began * 1_000_000));
        assert_eq!(
            (&node.status("p")["startTime"], &node.condition("p", "Ready")["status"]),
            (&began, &json!("True"))
        );
        assert_eq!(node.condition("p", "PodScheduled")["lastTransitionTime"], began);
    }

    /// An agent is killed while its status is on its way, and the next agent reads the pods before it
    /// arrives.
    #[test]
    fn times_stay_when_a_status_of_an_earlier_agent_is_late() {
        let mut node = Node::new();
        node.patches = Patches::Late;
        node.bind("p", json!({}));
        let sent = node.secs;
        node.secs += 5;
        node.patches = Patches::Answered;
        node.start();
        node.wait(60);
        let began =
            kedge_api::Timestamp::from_micros((node.epoch + i64::try_from(sent).unwrap()) * 1_000_000);
        assert_eq!(node.status("p")["startTime"], json!(began));
        assert_eq!(reported(&node).0, "True");
    }

    /// An earlier agent did not know the container's state; the runtime reports it at the start, before the
    /// API server is reached.
    #[test]
    fn loss_is_announced_once_however_many_agents_find_it() {
        let mut node = Node::new();
        node.bind("p", json!({"restartPolicy": "Never"}));
        node.bind("q", json!({}));
        node.wait(2);
        for state in node.runs.values_mut() {
            *state = ContainerState::Lost("order.json: version 2, expected 1".into());
        }
        let said = |node: &Node| {
            let is_it =
                |text: &&String| text.starts_with("Killing Container was ended: order.json: version 2");
            node.news().iter().filter(is_it).count()
        };
        let lost = node.runs.clone();
        for _ in 0..3 {
            // each is killed before it has removed them
            node.runs.extend(lost.clone());
            node.start();
            node.wait(2);
            assert_eq!(said(&node), 2, "{:?}", node.news());
        }
        assert_eq!(states(&node, "p"), [("terminated".into(), "ContainerStatusUnknown".into())]);
        let message = &node.status("p")["containerStatuses"][0]["state"]["terminated"]["message"];
        assert_eq!(message, "The container was ended: order.json: version 2, expected 1");
        assert!(node.runs("q") && !node.runs("p"));
    }
}
