//! Runs the probes of a pod's containers and acts on their verdicts (`probes`).

use crate::answer::Now;
use crate::pods::event::{ContainerState, NodeFacts, PodAction};
use crate::pods::life::{ContainerLife, Doing, Life};
use crate::pods::orders::RunKey;
use crate::pods::probes::order::{Health, ProbeKey, ProbeOrder, ProbeOutcome};
use crate::pods::probes::{NEWS_EVERY, RunNow};
use crate::pods::spec::{Container, LONGEST_GRACE_SECS, Pod, RestartPolicy};
use std::time::Duration;

impl ContainerLife {
    /// The run that may be probed.
    fn run_now(&self, is_ending: bool) -> Option<RunNow> {
        let run = self.run.as_ref().filter(|run| run.is_live())?;
        let is_stopped = matches!(self.command, Some(Doing::Stop { .. } | Doing::PreStop { .. }));
        let is_running = matches!(run.state, ContainerState::Running { .. });
        Some(RunNow {
            attempt: run.attempt,
            is_running: is_running && self.is_past_its_hook(),
            is_stopping: is_ending || is_stopped,
        })
    }

    /// Whether it has started and is ready, as a status shows it.
    pub(crate) fn health(&self, spec: &Container) -> Health {
        let is_followed = self.run.as_ref().is_some_and(|run| {
            self.is_past_its_hook()
                && run.is_live()
                && run.started.is_some()
                && (!spec.has_probes() || self.probes.attempt == Some(run.attempt))
        });
        Health {
            is_started: is_followed && self.probes.has_started(spec),
            is_ready: is_followed && self.probes.is_ready(spec),
        }
    }
}

impl Life {
    /// Runs the probes that are due, and notes when the next ones are. `may_run` is false while pods are
    /// held.
    pub(crate) fn see_to_probes(
        &mut self,
        now: Now,
        node: Option<&NodeFacts>,
        may_run: bool,
        actions: &mut Vec<PodAction>,
    ) {
        self.probing.wake = None;
        let Some(pod) = self.pod.clone() else { return };
        let is_ending = self.ending.asked.is_some();
        for spec in pod.spec.all_containers().filter(|spec| spec.has_probes()) {
            let uid = self.uid.clone();
            let Some(container) = self.containers.get_mut(&spec.name) else { continue };
            let Some(run) = container.run_now(is_ending) else { continue };
            container.probes.follow(run.attempt);
            let due = if may_run { container.probes.due(spec, uid.as_str(), now.mono, run) } else { vec![] };
            let next = container.probes.next().filter(|_| may_run);
            self.probing.wake = self.probing.wake.into_iter().chain(next).min();
            let health = container.health(spec);
            let is_news = std::mem::replace(&mut container.probes.noted, health) != health;
            let key = self.key(&spec.name, run.attempt);
            for kind in due {
                let key = ProbeKey { container: key.clone(), kind };
                self.order_probe(now, &pod, spec, key, node, actions);
            }
            if is_news {
                actions.push(PodAction::NoteHealth { container: key, health });
            }
        }
    }

    fn order_probe(
        &mut self,
        now: Now,
        pod: &Pod,
        spec: &Container,
        key: ProbeKey,
        node: Option<&NodeFacts>,
        actions: &mut Vec<PodAction>,
    ) {
        let Some(probe) = spec.probe(key.kind) else { return };
        match probe.check(spec, &self.address(pod, node)) {
            Ok(check) => {
                let timeout = probe.timeout();
                actions.push(PodAction::RunProbe(Box::new(ProbeOrder { key, check, timeout })));
            }
            Err(why) => self.probed(now, &key, &ProbeOutcome::Errored(why), actions),
        }
    }

    /// Takes the result of a probe.
    pub(crate) fn probed(
        &mut self,
        now: Now,
        key: &ProbeKey,
        outcome: &ProbeOutcome,
        actions: &mut Vec<PodAction>,
    ) {
        let Some(pod) = self.pod.clone() else { return };
        let mut specs = pod.spec.all_containers();
        let name = &key.container.container;
        let Some(spec) = specs.find(|spec| spec.name == *name) else { return };
        let (Some(probe), Some(container)) = (spec.probe(key.kind), self.containers.get_mut(name)) else {
            return;
        };
        let probes = &mut container.probes;
        if probes.attempt != Some(key.container.attempt) || probes.track(key.kind).ordered.is_none() {
            return;
        }
        self.is_dirty |= probes.answered(key.kind, probe, now.mono, outcome);
        // a liveness probe that was under way when the pod started to end no longer counts
        let next = probes.next();
        self.probing.wake = self.probing.wake.into_iter().chain(next).min();
        self.tell_of_probe(now, key, outcome, actions);
    }

    fn tell_of_probe(
        &mut self,
        now: Now,
        key: &ProbeKey,
        outcome: &ProbeOutcome,
        actions: &mut Vec<PodAction>,
    ) {
        let word = key.kind.word();
        let (reason, text) = match outcome {
            ProbeOutcome::Passed => ("", String::new()),
            ProbeOutcome::Warned(why) => ("ProbeWarning", format!("{word} probe warning: {why}")),
            ProbeOutcome::Failed(why) => ("Unhealthy", format!("{word} probe failed: {why}")),
            ProbeOutcome::Errored(why) => {
                ("Unhealthy", format!("{word} probe errored and resulted in unknown state: {why}"))
            }
        };
        let name = &key.container.container;
        let Some(container) = self.containers.get_mut(name) else { return };
        let told = &mut container.probes.track_mut(key.kind).told;
        if reason.is_empty() {
            *told = None;
            return;
        }
        let is_old =
            |(before, at): &(String, Duration)| *before == text && now.mono.saturating_sub(*at) < NEWS_EVERY;
        if told.as_ref().is_some_and(is_old) || !self.probing.news.may_tell(now.mono) {
            return;
        }
        *told = Some((text.clone(), now.mono));
        self.announce_of(name, true, reason, text, actions);
    }

    /// Whether the end of this run of a probe or a hook is still needed.
    pub(crate) fn awaits(&self, run: &RunKey) -> bool {
        let key = run.container();
        let Some(container) = self.containers.get(&key.container) else { return false };
        let is_live = container.run.as_ref().is_some_and(|run| run.attempt == key.attempt && run.is_live());
        is_live
            && match run {
                RunKey::Probe(key) => {
                    container.probes.attempt == Some(key.container.attempt)
                        && container.probes.track(key.kind).ordered.is_some()
                }
                RunKey::Hook(key, kind) => container.awaits_hook(key.attempt, *kind),
            }
    }

    /// A run was stopped for others and waits for its next turn; it counts neither as passed nor as failed.
    pub(crate) fn made_room(&mut self, now: Now, run: &RunKey, actions: &mut Vec<PodAction>) {
        if !self.awaits(run) {
            return;
        }
        match run {
            RunKey::Probe(key) => {
                let why = "it was stopped to make room for those of other pods, and is run again";
                self.tell_of_probe(now, key, &ProbeOutcome::Errored(why.into()), actions);
            }
            RunKey::Hook(key, kind) => self.hook_made_room(key, *kind, actions),
        }
    }

    /// Why a running container must be stopped because of a probe or a hook: the grace period, and upstream's
    /// text.
    pub(crate) fn failed_check(&self, pod: &Pod, spec: &Container) -> Option<(Duration, String)> {
        let container = self.containers.get(&spec.name)?;
        if container.has_failed_hook() {
            return Some((self.own_grace(), "FailedPostStartHook".into()));
        }
        let run = container.run.as_ref().filter(|run| run.is_live())?;
        let kind = container.probes.failed().filter(|_| container.probes.attempt == Some(run.attempt))?;
        let probe = spec.probe(kind)?;
        let is_restarted = spec.is_sidecar() || pod.spec.restart_policy != RestartPolicy::Never;
        let after = if is_restarted { ", will be restarted" } else { "" };
        let message = format!("Container {} failed {} probe{after}", spec.name, kind.word().to_lowercase());
        let grace = probe
            .termination_grace_period_seconds
            .map(|secs| Duration::from_secs(secs.min(LONGEST_GRACE_SECS)));
        Some((grace.unwrap_or_else(|| self.own_grace()), message))
    }
}
