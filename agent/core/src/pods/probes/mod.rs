//! Probes: when each runs, what its results come to, and what follows for a container's health.
//!
//! Always holds: of each probe one run is under way; results of another run of the container are dropped; a verdict changes only
//! after as many equal results in a row as its threshold says; liveness and readiness wait for the startup probe; what could not
//! be run, or made room for others, counts neither way; a new agent believes what the last one knew until the next verdict. Leaves
//! to others: when there is a place for a run (`places`), running it (`ProbeOrder`), stopping a container that failed (`starting`).

pub(crate) mod order;
pub(crate) mod spec;

pub use order::{Check, Health, HttpCheck, ProbeKey, ProbeKind, ProbeOrder, ProbeOutcome};

use crate::pods::spec::{Container, Probe};
use std::time::Duration;

/// Events about failing probes of one pod in a row, and how long until there may be one more: fewer than upstream's 25, for each
/// costs bytes of the node's line.
const MOST_NEWS: u32 = 10;
pub(crate) const NEWS_EVERY: Duration = Duration::from_secs(300);

/// One probe of the run that is followed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Track {
    /// When it runs next; None: it is under way, or it rests.
    due: Option<Duration>,
    /// When the run that is under way was ordered.
    pub(crate) ordered: Option<Duration>,
    /// The last result, and how often in a row.
    last: Option<(bool, u32)>,
    verdict: Option<bool>,
    /// What was last announced of it, and when.
    pub(crate) told: Option<(String, Duration)>,
}

/// The probes of one container.
#[derive(Debug, Clone, Default)]
pub(crate) struct Probes {
    /// The run that is followed.
    pub(crate) attempt: Option<u32>,
    /// When that run was first seen running.
    since: Option<Duration>,
    /// An earlier agent started it.
    is_adopted: bool,
    /// In the order of `ProbeKind::ALL`.
    tracks: [Track; 3],
    /// What a later agent will find.
    pub(crate) noted: Health,
    /// What an earlier agent knew of a run.
    found: Option<(u32, Health)>,
}

/// How the run is that probes are about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunNow {
    pub(crate) attempt: u32,
    pub(crate) is_running: bool,
    pub(crate) is_stopping: bool,
}

impl Probes {
    pub(crate) fn track(&self, kind: ProbeKind) -> &Track {
        &self.tracks[kind as usize]
    }

    pub(crate) fn track_mut(&mut self, kind: ProbeKind) -> &mut Track {
        &mut self.tracks[kind as usize]
    }

    /// A start of the agent found this run running.
    pub(crate) fn adopt(&mut self, attempt: u32, health: Health) {
        if self.attempt != Some(attempt) {
            self.found = Some((attempt, health));
        }
    }

    /// Begins with another run, or goes on with the one that is followed.
    pub(crate) fn follow(&mut self, attempt: u32) {
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
    pub(crate) fn has_started(&self, spec: &Container) -> bool {
        spec.startup_probe.is_none() || self.track(ProbeKind::Startup).verdict == Some(true)
    }

    pub(crate) fn is_ready(&self, spec: &Container) -> bool {
        let passed = self.track(ProbeKind::Readiness).verdict == Some(true);
        self.has_started(spec) && (spec.readiness_probe.is_none() || passed)
    }

    /// The probe by which the run has failed.
    pub(crate) fn failed(&self) -> Option<ProbeKind> {
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
    pub(crate) fn due(&mut self, spec: &Container, uid: &str, now: Duration, run: RunNow) -> Vec<ProbeKind> {
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

    pub(crate) fn next(&self) -> Option<Duration> {
        self.tracks.iter().filter_map(|track| track.due).min()
    }

    /// Takes a result; true: the verdict has changed.
    pub(crate) fn answered(
        &mut self,
        kind: ProbeKind,
        probe: &Probe,
        now: Duration,
        outcome: &ProbeOutcome,
    ) -> bool {
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
    pub(crate) fn take(&mut self, now: Duration) -> bool {
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

#[cfg(test)]
pub(crate) mod tests;
