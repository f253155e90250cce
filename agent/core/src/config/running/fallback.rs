//! While a fallback runs: whether the config that should run can be tried again, and when.
//!
//! Always holds: a config with a verdict waits, and is tried once its wait is over; configs are tried in the
//! order of a start (`chain`). Leaves to others: the verdicts' own rules (`judge`) and the list (`verdicts`).

use crate::answer::Now;
use crate::config::digest::Identity;
use crate::config::disk::AssignedNow;
use crate::config::judge;
use crate::config::records::{BadConfigs, BadKind, ConfigRecord, Known, RanAs, Verdict};
use crate::config::running::Configuration;
use crate::config::standing::{Obstacle, Rank};
use crate::config::transition::Transition;

/// A config that is set aside, and tried again after a wait.
pub(super) struct Waiting {
    uid: String,
    is: Identity,
    verdict: Verdict,
    /// How long the running config must run well before that.
    pub(super) wait_ms: u64,
}

impl Configuration {
    /// While a fallback runs: whether the obstacle to the assigned config is gone.
    pub(super) fn retry_assigned(&self, now: Now) -> Option<Transition> {
        if self.standing.is_assigned() {
            return None;
        }
        if let Some(over) = self.wait_over(now) {
            return Some(over);
        }
        if let Some(uid) = self.standing.fallback().and_then(|fallback| fallback.freed.as_ref()) {
            let why = format!("the config with UID {uid} can be fallen back to again, restarting");
            return Some(Transition::TryAssigned { why, startups: self.handed_over(now) });
        }
        if !matches!(self.disk.assigned(), AssignedNow::Config(..)) {
            return None;
        }
        match (self.standing.obstacle(), &self.contents.assigned) {
            (Some(Obstacle::Marked { recorded: false, .. }), _) => {
                let emptied = self.without_counts(self.condemned().into_iter());
                self.unrecorded_verdict().map(|bad| Transition::RecordVerdict { bad, emptied })
            }
            (None | Some(Obstacle::NotRecorded(_)), Some(_)) => {
                let why = "the assigned config can be tried now, restarting".into();
                Some(Transition::TryAssigned { why, startups: self.handed_over(now) })
            }
            _ => None,
        }
    }

    /// The list with the verdict on the assigned config that could not be written yet.
    pub(super) fn unrecorded_verdict(&self) -> Option<BadConfigs> {
        let verdict = self.standing.unrecorded()?;
        let AssignedNow::Config(config, _) = self.disk.assigned() else { return None };
        let mut bad = match &self.disk.bad_configs {
            Known::Is(bad) => bad.clone(),
            Known::Absent => BadConfigs::default(),
            Known::Unknown { .. } => return None,
        };
        bad.mark(&config.uid, self.contents.assigned.as_ref()?, verdict.clone(), &self.disk.in_use());
        Some(bad)
    }

    /// The assigned config, if its verdict could not be written yet, and its counts led to that: they are
    /// dropped when it is.
    pub(super) fn condemned(&self) -> Option<Identity> {
        let is_of_deeds = self.standing.unrecorded().is_some_and(|verdict| !verdict.kind.is_of_text());
        self.contents.assigned.filter(|_| is_of_deeds)
    }

    /// The configs that a start would try, in this order, as far as their content is available.
    pub(super) fn chain(&self) -> Vec<(Rank, ConfigRecord, Identity)> {
        let assigned = match self.disk.assigned() {
            AssignedNow::Config(config, _) => Some(config),
            _ => None,
        };
        let chain = [
            (Rank::Assigned, assigned, self.contents.assigned),
            (Rank::LastKnownGood, self.disk.fallback().cloned(), self.contents.last_known_good),
            (Rank::Previous, self.disk.previous().cloned(), self.contents.previous),
        ];
        chain.into_iter().filter_map(|(rank, config, is)| Some((rank, config?, is?))).collect()
    }

    /// Those of them that come before the running one.
    fn before_in_use(&self) -> Vec<(Rank, ConfigRecord, Identity)> {
        self.chain().into_iter().filter(|(rank, ..)| self.standing.is_behind(*rank)).collect()
    }

    /// The configs that would run before the one in use, and are tried again after a wait.
    pub(super) fn waiting(&self) -> Vec<Waiting> {
        let has_verdicts = self.disk.bad_configs.known().is_some_and(|bad| !bad.is_empty());
        if !has_verdicts || matches!(self.disk.assigned(), AssignedNow::Local) {
            return Vec::new();
        }
        let is_invalid = self.disk.invalid_source().is_some();
        let waits = |(rank, config, is): (Rank, ConfigRecord, Identity)| {
            let verdict = self.verdict_against(&config.uid, &is)?;
            let wait_ms = judge::wait_ms(&verdict, self.in_use.terms)?;
            (rank != Rank::Assigned || !is_invalid).then_some(Waiting {
                uid: config.uid,
                is,
                verdict,
                wait_ms,
            })
        };
        self.before_in_use().into_iter().filter_map(waits).collect()
    }

    /// How long the running config must run well at most before a waiting config is tried again, or before
    /// pods are released.
    pub(super) fn longest_wait_ms(&self) -> u64 {
        let waits = self.waiting().into_iter().map(|waiting| waiting.wait_ms);
        waits.chain(self.hold_ms()).max().unwrap_or_default()
    }

    fn wait_over(&self, now: Now) -> Option<Transition> {
        let is_over = |waiting: &Waiting| {
            let may_end = match waiting.verdict.kind {
                BadKind::Contact => self.in_use.counts.contact,
                // the running config must run well with its pods
                BadKind::Proven => !self.startups.hold,
                _ => true,
            };
            may_end && self.ran_ms(now) >= waiting.wait_ms
        };
        let waiting = self.counts_running().then(|| self.waiting())?;
        let Waiting { uid, is, verdict, .. } = waiting.into_iter().find(is_over)?;
        let (why, patience_ms) = match verdict.kind {
            // the terms of the waiting config are known again when it is parsed; until then those of the
            // running one
            BadKind::Contact => (
                "the network works again, restarting to try the assigned config once more".to_owned(),
                judge::patience_after_ms(self.in_use.terms, self.in_use.counts.worst_silence_ms),
            ),
            _ => (format!("restarting to try the config with UID {uid} once more"), verdict.patience_ms),
        };
        let mut bad = self.disk.bad_configs.known()?.clone();
        bad.mark(&uid, &is, Verdict { retry: true, patience_ms, ..verdict }, &self.disk.in_use());
        let mut closed = self.handed_over(now);
        closed.forgive(RanAs::Payload(is.payload));
        let emptied = self.without_counts([is].into_iter());
        Some(Transition::WaitOver { why, emptied, bad, closed })
    }

    /// Judges the assigned config again after verdicts or content may have changed.
    pub(super) fn rejudge(&mut self) {
        if self.standing.is_assigned() {
            return;
        }
        self.rejudge_fallbacks();
        let AssignedNow::Config(config, _) = self.disk.assigned() else { return };
        let marked = match &self.contents.assigned {
            Some(is) => self.verdict_against(&config.uid, is),
            // an entry without contents also bans a content that was not downloaded yet
            None => self.disk.verdict(&config.uid, None, false).filter(|verdict| !verdict.retry),
        };
        let is_doubted = self.is_doubted();
        match marked {
            Some(verdict) => self.standing.marked(verdict),
            None => {
                self.standing.cleared(|obstacle| match obstacle {
                    Obstacle::Marked { recorded, .. } => *recorded,
                    Obstacle::VerdictsUnknown(_) => !is_doubted,
                    _ => false,
                });
            }
        }
    }

    /// Whether the assigned config may have been in a list that could not be read.
    pub(super) fn is_doubted(&self) -> bool {
        let is_lost = self.disk.bad_configs.unknown().is_some();
        is_lost || self.contents.assigned.is_some_and(|is| self.disk.is_doubted(&is))
    }

    /// A fallback without a verdict any more can replace one that ranks below it.
    fn rejudge_fallbacks(&mut self) {
        for (rank, config, is) in self.before_in_use() {
            if self.verdict_against(&config.uid, &is).is_none() {
                self.standing.free(rank, &config.uid);
            }
        }
    }

    pub(super) fn waits_for_disk(&self) -> bool {
        self.standing.waits_for_disk() || self.requested.problem.is_some()
    }
}
