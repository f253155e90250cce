//! Probes: when each runs, the verdict from its results, and the effect on a container's health.
//!
//! Always holds: of each probe at most one run is under way; results for another run of the container are
//! dropped; a verdict changes only after as many equal results in a row as its threshold requires; liveness
//! and readiness wait for the startup probe; a probe that could not be run, or made room for others, counts
//! neither as passed nor as failed; a new agent uses the last one's health until the next verdict. Leaves to
//! others: when a run gets a place (`places`), running it (`ProbeOrder`), stopping a container that failed
//! (`starting`).

pub(crate) mod order;
pub(crate) mod spec;

pub use order::{Check, Health, HttpCheck, ProbeKey, ProbeKind, ProbeOrder, ProbeOutcome};

use crate::pods::spec::{Container, Probe};
use std::time::Duration;

/// Most Events about failing probes of one pod in a row, and how long until one more is allowed: fewer than
/// upstream's 25, because each costs bytes on the node's link.
const MOST_NEWS: u32 = 10;
pub(crate) const NEWS_EVERY: Duration = Duration::from_secs(300);

/// One probe of the followed run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Track {
    /// When it runs next; `None` while it is under way or pauses.
    due: Option<Duration>,
    /// When the run that is under way was ordered.
    pub(crate) ordered: Option<Duration>,
    /// The last result, and how often it came in a row.
    last: Option<(bool, u32)>,
    verdict: Option<bool>,
    /// The last announced text, and when it was announced.
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
    /// The health that a later agent will find.
    pub(crate) noted: Health,
    /// The health of a run as an earlier agent noted it.
    found: Option<(u32, Health)>,
}

/// The state of the run that is probed.
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

    /// A new agent found this run running.
    pub(crate) fn adopt(&mut self, attempt: u32, health: Health) {
        if self.attempt != Some(attempt) {
            self.found = Some((attempt, health));
        }
    }

    /// Starts to follow another run, or continues with the same.
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

    /// Whether its startup probe has passed or does not exist.
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
            // as upstream: readiness is probed until the end
            ProbeKind::Readiness => has_started,
            ProbeKind::Liveness => has_started && !is_stopping && self.failed().is_none(),
            ProbeKind::Startup => !has_started && !is_stopping && self.failed().is_none(),
        }
    }

    /// When a probe runs first. Probes of adopted runs are spread over a period, so that a start of the agent
    /// does not cause a burst. So are liveness probes without a delay, as with upstream's ticks: a container
    /// that was just started has no port open yet.
    fn first(&self, spec: &Container, kind: ProbeKind, probe: &Probe, uid: &str) -> Duration {
        let is_early =
            kind == ProbeKind::Liveness && probe.initial_delay().is_zero() && spec.startup_probe.is_none();
        let is_spread = self.is_adopted || is_early;
        let spread = if is_spread { spread(probe.period(), uid, &spec.name, kind) } else { Duration::ZERO };
        self.since.unwrap_or_default().saturating_add(probe.initial_delay().max(spread))
    }

    /// The probes that have to run now.
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

    /// Takes a result; returns whether the verdict changed.
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

/// Limits how many Events about probes a pod may still have.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProbeNews {
    spent: u32,
    /// Since when they are counted.
    since: Duration,
}

impl ProbeNews {
    /// Whether one more may be recorded now; if so, it counts.
    pub(crate) fn may_tell(&mut self, now: Duration) -> bool {
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
