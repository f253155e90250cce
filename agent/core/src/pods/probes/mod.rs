//! Probes: when each runs, what its results come to, and what follows for a container's health.
//!
//! Always holds: of each probe one run is under way; results of another run of the container are dropped; a verdict changes only
//! after as many equal results in a row as its threshold says; liveness and readiness wait for the startup probe; what could not
//! be run, or made room for others, counts neither way; a new agent believes what the last one knew until the next verdict. Leaves
//! to others: when there is a place for a run (`places`), running it (`ProbeOrder`), stopping a container that failed (`starting`).

mod order;
pub(crate) mod spec;

pub use order::{Check, Health, HttpCheck, ProbeKey, ProbeKind, ProbeOrder, ProbeOutcome};

use crate::answer::Now;
use crate::pods::event::{ContainerState, NodeFacts, PodAction};
use crate::pods::life::{ContainerLife, Doing, Life};
use crate::pods::places::RunKey;
use crate::pods::spec::{Container, LONGEST_GRACE_SECS, Pod, RestartPolicy};
use spec::Probe;
use std::time::Duration;

/// Events about failing probes of one pod in a row, and how long until there may be one more: fewer than upstream's 25, for each
/// costs bytes of the node's line.
const MOST_NEWS: u32 = 10;
const NEWS_EVERY: Duration = Duration::from_secs(300);

/// One probe of the run that is followed.
#[derive(Debug, Clone, Default)]
struct Track {
    /// When it runs next; None: it is under way, or it rests.
    due: Option<Duration>,
    /// When the run that is under way was ordered.
    ordered: Option<Duration>,
    /// The last result, and how often in a row.
    last: Option<(bool, u32)>,
    verdict: Option<bool>,
    /// What was last announced of it, and when.
    told: Option<(String, Duration)>,
}

/// The probes of one container.
#[derive(Debug, Clone, Default)]
pub(crate) struct Probes {
    /// The run that is followed.
    attempt: Option<u32>,
    /// When that run was first seen running.
    since: Option<Duration>,
    /// An earlier agent started it.
    is_adopted: bool,
    /// In the order of `ProbeKind::ALL`.
    tracks: [Track; 3],
    /// What a later agent will find.
    noted: Health,
    /// What an earlier agent knew of a run.
    found: Option<(u32, Health)>,
}

/// How the run is that probes are about.
#[derive(Debug, Clone, Copy)]
struct RunNow {
    attempt: u32,
    is_running: bool,
    is_stopping: bool,
}

impl Probes {
    fn track(&self, kind: ProbeKind) -> &Track {
        &self.tracks[kind as usize]
    }

    fn track_mut(&mut self, kind: ProbeKind) -> &mut Track {
        &mut self.tracks[kind as usize]
    }

    /// A start of the agent found this run running.
    pub(crate) fn adopt(&mut self, attempt: u32, health: Health) {
        if self.attempt != Some(attempt) {
            self.found = Some((attempt, health));
        }
    }

    /// Begins with another run, or goes on with the one that is followed.
    fn follow(&mut self, attempt: u32) {
        if self.attempt == Some(attempt) {
            return;
        }
        let found = self.found.take().filter(|(found, _)| *found == attempt).map(|(_, health)| health);
        let noted = found.unwrap_or_default();
        *self = Self { attempt: Some(attempt), is_adopted: found.is_some(), noted, ..Self::default() };
        self.track_mut(ProbeKind::Startup).verdict = noted.is_started.then_some(true);
        self.track_mut(ProbeKind::Readiness).verdict = found.map(|health| health.is_ready);
    }

    /// Its startup probe has passed, or it has none.
    fn has_started(&self, spec: &Container) -> bool {
        spec.startup_probe.is_none() || self.track(ProbeKind::Startup).verdict == Some(true)
    }

    fn is_ready(&self, spec: &Container) -> bool {
        let passed = self.track(ProbeKind::Readiness).verdict == Some(true);
        self.has_started(spec) && (spec.readiness_probe.is_none() || passed)
    }

    /// The probe by which the run has failed.
    fn failed(&self) -> Option<ProbeKind> {
        let kinds = [ProbeKind::Liveness, ProbeKind::Startup].into_iter();
        kinds.clone().find(|kind| self.track(*kind).verdict == Some(false))
    }

    fn is_wanted(&self, spec: &Container, kind: ProbeKind, is_stopping: bool) -> bool {
        let has_started = self.has_started(spec);
        match kind {
            // as upstream: readiness goes on to the end
            ProbeKind::Readiness => has_started,
            ProbeKind::Liveness => has_started && !is_stopping && self.failed().is_none(),
            ProbeKind::Startup => !has_started && !is_stopping && self.failed().is_none(),
        }
    }

    /// When a probe runs first. Adopted runs are spread over a period, so that a start of the agent is no burst. So is liveness
    /// without a delay of its own, as by upstream's ticks: what has just been started has no port open yet.
    fn first(&self, spec: &Container, kind: ProbeKind, probe: &Probe, uid: &str) -> Duration {
        let is_early =
            kind == ProbeKind::Liveness && probe.initial_delay().is_zero() && spec.startup_probe.is_none();
        let is_spread = self.is_adopted || is_early;
        let spread = if is_spread { spread(probe.period(), uid, &spec.name, kind) } else { Duration::ZERO };
        self.since.unwrap_or_default().saturating_add(probe.initial_delay().max(spread))
    }

    /// The probes to be run now.
    fn due(&mut self, spec: &Container, uid: &str, now: Duration, run: RunNow) -> Vec<ProbeKind> {
        if !run.is_running {
            self.tracks.iter_mut().for_each(|track| track.due = None);
            return vec![];
        }
        self.since.get_or_insert(now);
        let mut due = vec![];
        for kind in ProbeKind::ALL {
            let Some(probe) = spec.probe(kind) else { continue };
            if !self.is_wanted(spec, kind, run.is_stopping) {
                self.track_mut(kind).due = None;
                continue;
            }
            let first = self.first(spec, kind, probe, uid).max(now);
            let track = self.track_mut(kind);
            if track.ordered.is_none() && *track.due.get_or_insert(first) <= now {
                track.due = None;
                track.ordered = Some(now);
                due.push(kind);
            }
        }
        due
    }

    fn next(&self) -> Option<Duration> {
        self.tracks.iter().filter_map(|track| track.due).min()
    }

    /// Takes a result; true: the verdict has changed.
    fn answered(&mut self, kind: ProbeKind, probe: &Probe, now: Duration, outcome: &ProbeOutcome) -> bool {
        let track = self.track_mut(kind);
        let Some(ordered) = track.ordered.take() else { return false };
        track.due = Some(ordered.saturating_add(probe.period()).max(now));
        let passed = match outcome {
            ProbeOutcome::Passed | ProbeOutcome::Warned(_) => true,
            ProbeOutcome::Failed(_) => false,
            ProbeOutcome::Errored(_) => return false,
        };
        let in_a_row = match track.last {
            Some((last, count)) if last == passed => count.saturating_add(1),
            _ => 1,
        };
        track.last = Some((passed, in_a_row));
        if in_a_row < probe.threshold(passed) || track.verdict == Some(passed) {
            return false;
        }
        track.verdict = Some(passed);
        true
    }
}

/// A part of a period, by the name of the probe: the same at each start.
fn spread(period: Duration, uid: &str, container: &str, kind: ProbeKind) -> Duration {
    let bytes = uid.bytes().chain(container.bytes()).chain(kind.word().bytes());
    // FNV-1a
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let part = u32::try_from((hash >> 32) % 1024).unwrap_or(0);
    period.checked_div(1024).unwrap_or_default().saturating_mul(part)
}

/// How many Events about probes a pod may still have.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProbeNews {
    spent: u32,
    /// Since when they are counted.
    since: Duration,
}

impl ProbeNews {
    fn take(&mut self, now: Duration) -> bool {
        while self.spent > 0 && now.saturating_sub(self.since) >= NEWS_EVERY {
            self.spent = self.spent.saturating_sub(1);
            self.since = self.since.saturating_add(NEWS_EVERY);
        }
        if self.spent == 0 {
            self.since = now;
        }
        let may = self.spent < MOST_NEWS;
        self.spent = self.spent.saturating_add(u32::from(may));
        may
    }
}

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

    /// Whether it has started, and is ready, as a status shows it.
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
    /// Runs the probes that are due, and notes when the next ones are. `may_run`: pods are not held.
    pub(crate) fn see_to_probes(
        &mut self,
        now: Now,
        node: Option<&NodeFacts>,
        may_run: bool,
        actions: &mut Vec<PodAction>,
    ) {
        self.probe_wake = None;
        let Some(pod) = self.pod.clone() else { return };
        let is_ending = self.end.is_some();
        for spec in pod.spec.all_containers().filter(|spec| spec.has_probes()) {
            let uid = self.uid.clone();
            let Some(container) = self.containers.get_mut(&spec.name) else { continue };
            let Some(run) = container.run_now(is_ending) else { continue };
            container.probes.follow(run.attempt);
            let due = if may_run { container.probes.due(spec, uid.as_str(), now.mono, run) } else { vec![] };
            let next = container.probes.next().filter(|_| may_run);
            self.probe_wake = self.probe_wake.into_iter().chain(next).min();
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

    /// A probe has been run.
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
        // a liveness probe that was under way when the pod began to end says nothing any more
        let next = probes.next();
        self.probe_wake = self.probe_wake.into_iter().chain(next).min();
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
        if told.as_ref().is_some_and(is_old) || !self.probe_news.take(now.mono) {
            return;
        }
        *told = Some((text.clone(), now.mono));
        self.announce_of(name, true, reason, text, actions);
    }

    /// Whether the end of a run of a probe or a hook is waited for.
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

    /// A run was stopped for others, and waits for its next turn: it counts neither way.
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

    /// Why a container that runs must be stopped, by a probe or a hook: its grace, and upstream's words.
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

#[cfg(test)]
pub(crate) mod tests;
