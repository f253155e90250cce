//! Which config runs, and why it is not the one that should: one state at a time (RULES.md, "Start").
//!
//! Always holds: only an assigned config can be on trial; a fallback knows the config that it replaces.
//! `start` finds the first state, and `running` changes it with each transition that does not end the run.

use crate::config::records::{Complaints, Verdict};
use std::mem;

/// Which config runs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Standing {
    /// The local one, as it should.
    Local,
    /// The assigned one, whose payload is not last-known-good yet.
    InTrial(Trial),
    /// The assigned one, whose payload is last-known-good.
    KnownGood,
    /// Another one.
    Fallback(Fallback),
}

/// A config that must prove itself.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Trial {
    /// A renewal was accepted when the trial was over.
    is_promotable: bool,
    /// The node's faults under this config beyond its baseline, as last reported.
    reported: Complaints,
}

/// A config that runs in place of another.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fallback {
    pub(crate) runs: Substitute,
    /// Why the config that should run does not; `None` when it can, after a restart.
    pub(crate) obstacle: Option<Obstacle>,
    /// The fallbacks that were tried before, each with its UID and why it does not run.
    pub(crate) passed_over: Vec<(Rank, String, Obstacle)>,
    /// UID of one of them that has no verdict any more.
    pub(crate) freed: Option<String>,
}

/// The configs that can replace another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Substitute {
    LastKnownGood,
    /// The last-known-good before it.
    Previous,
    /// The previous assignment: the new one could be recorded in `current`, but its start could not.
    Superseded,
    Local,
}

/// Why a config that should run does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// It has a verdict. `recorded` is false if that could not be written.
    Marked { verdict: Verdict, recorded: bool },
    /// Its content is unavailable.
    Missing(String),
    /// The assigned config is unknown.
    AssignmentUnknown(String),
    /// Earlier verdicts are unreadable, so it may be a bad config.
    VerdictsUnknown(String),
    /// Its start could not be recorded, and an unrecorded trial is not made.
    NotRecorded(String),
    /// The source was invalid when it was last read.
    SourceInvalid(String),
    /// It wants another system than the one that runs, or one that is on probation (rule s).
    WaitsForSystem { version: String },
    /// It wants a system that failed here (rule g).
    BadSystem { version: String, reason: String, is_final: bool },
}

impl Obstacle {
    /// Whether it is about the system that the config wants.
    pub(crate) fn is_of_system(&self) -> bool {
        matches!(self, Self::WaitsForSystem { .. } | Self::BadSystem { .. })
    }

    /// Whether this standing ends when the disk accepts the refused write.
    fn waits_for_disk(&self) -> bool {
        matches!(self, Self::Marked { recorded: false, .. } | Self::NotRecorded(_))
    }
}

/// The place of a config in the order in which they are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rank {
    Assigned,
    LastKnownGood,
    /// The last-known-good before it.
    Previous,
}

impl Rank {
    /// The condition's word for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Assigned => "current",
            Self::LastKnownGood => "last-known-good",
            Self::Previous => "the last-known-good before it",
        }
    }
}

impl Standing {
    /// A config of this rank runs; `is_good` if its payload is last-known-good.
    pub(crate) fn of(
        rank: Rank,
        is_good: bool,
        obstacle: Option<Obstacle>,
        passed_over: Vec<(Rank, String, Obstacle)>,
    ) -> Self {
        let runs = match rank {
            Rank::Assigned if is_good => return Self::KnownGood,
            Rank::Assigned => return Self::InTrial(Trial::default()),
            Rank::LastKnownGood => Substitute::LastKnownGood,
            Rank::Previous => Substitute::Previous,
        };
        Self::Fallback(Fallback { runs, obstacle, passed_over, freed: None })
    }

    /// The local config runs in place of another, or beside an invalid source.
    pub(crate) fn local_for(obstacle: Option<Obstacle>, passed_over: Vec<(Rank, String, Obstacle)>) -> Self {
        match obstacle {
            None if passed_over.is_empty() => Self::Local,
            _ => Self::Fallback(Fallback { runs: Substitute::Local, obstacle, passed_over, freed: None }),
        }
    }

    /// The report's word for it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::InTrial(_) => "trial",
            Self::KnownGood => "known-good",
            Self::Fallback(_) => "fallback",
        }
    }

    pub(crate) fn is_assigned(&self) -> bool {
        matches!(self, Self::InTrial(_) | Self::KnownGood)
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::Local | Self::Fallback(Fallback { runs: Substitute::Local, .. }))
    }

    pub(crate) fn is_trial(&self) -> bool {
        matches!(self, Self::InTrial(_))
    }

    /// Whether a config of this rank would run before the running one.
    pub(crate) fn is_behind(&self, rank: Rank) -> bool {
        match self {
            Self::InTrial(_) | Self::KnownGood => false,
            Self::Local => true,
            Self::Fallback(fallback) => match fallback.runs {
                Substitute::LastKnownGood | Substitute::Superseded => rank == Rank::Assigned,
                Substitute::Previous => rank != Rank::Previous,
                Substitute::Local => true,
            },
        }
    }

    pub(crate) fn fallback(&self) -> Option<&Fallback> {
        match self {
            Self::Fallback(fallback) => Some(fallback),
            _ => None,
        }
    }

    fn fallback_mut(&mut self) -> Option<&mut Fallback> {
        match self {
            Self::Fallback(fallback) => Some(fallback),
            _ => None,
        }
    }

    /// Why the config that should run does not.
    pub(crate) fn obstacle(&self) -> Option<&Obstacle> {
        self.fallback()?.obstacle.as_ref()
    }

    pub(crate) fn passed_over(&self) -> &[(Rank, String, Obstacle)] {
        self.fallback().map(|fallback| fallback.passed_over.as_slice()).unwrap_or_default()
    }

    /// The verdict on the config that should run, if no disk accepted it yet.
    pub(crate) fn unrecorded(&self) -> Option<&Verdict> {
        match self.obstacle() {
            Some(Obstacle::Marked { verdict, recorded: false }) => Some(verdict),
            _ => None,
        }
    }

    /// Whether it changes when the disk accepts the refused write, or with the restart that follows.
    pub(crate) fn waits_for_disk(&self) -> bool {
        self.fallback().is_some_and(|fallback| {
            fallback.freed.is_some() || fallback.obstacle.as_ref().is_some_and(Obstacle::waits_for_disk)
        })
    }

    /// Whether a renewal was accepted when the trial was over.
    pub(crate) fn is_promotable(&self) -> bool {
        matches!(self, Self::InTrial(Trial { is_promotable: true, .. }))
    }

    /// A renewal was accepted when the trial was over.
    pub(crate) fn heard_after_trial(&mut self) {
        if let Self::InTrial(trial) = self {
            trial.is_promotable = true;
        }
    }

    /// The trial restarts, because the node has these faults beyond its baseline. Returns whether one of them
    /// was not reported yet.
    pub(crate) fn trial_begins_anew(&mut self, worse: Complaints) -> bool {
        let Self::InTrial(trial) = self else { return false };
        trial.is_promotable = false;
        let is_news = !worse.beyond(trial.reported).is_empty();
        trial.reported = trial.reported.and(worse);
        is_news
    }

    /// Another config should run from now on, and this obstacle prevents it. `runs` is the relation of the
    /// config that ran as assigned to the new one.
    pub(crate) fn obstructed(&mut self, obstacle: Obstacle, runs: Substitute) {
        match self {
            Self::Fallback(fallback) => fallback.obstacle = Some(obstacle),
            _ => {
                let runs = if self.is_assigned() { runs } else { Substitute::Local };
                let obstacle = Some(obstacle);
                *self = Self::Fallback(Fallback { runs, obstacle, passed_over: Vec::new(), freed: None });
            }
        }
    }

    /// The fallbacks that were passed over belonged to another config.
    pub(crate) fn forget_passed_over(&mut self) {
        if let Some(fallback) = self.fallback_mut() {
            fallback.passed_over.clear();
        }
    }

    /// The config that should run has a verdict.
    pub(crate) fn marked(&mut self, verdict: Verdict) {
        if let Some(fallback) = self.fallback_mut() {
            fallback.obstacle = Some(Obstacle::Marked { verdict, recorded: true });
        }
    }

    /// The obstacle is another one now, if it is about the system.
    pub(crate) fn system_judged(&mut self, obstacle: Option<Obstacle>) {
        if let Some(fallback) = self.fallback_mut()
            && fallback.obstacle.as_ref().is_some_and(Obstacle::is_of_system)
        {
            fallback.obstacle = obstacle;
        }
    }

    /// The verdict on the config that should run is on disk.
    pub(crate) fn verdict_recorded(&mut self) {
        if let Some(Obstacle::Marked { recorded, .. }) =
            self.fallback_mut().and_then(|fallback| fallback.obstacle.as_mut())
        {
            *recorded = true;
        }
    }

    /// Removes the obstacle if it is one of these. Returns whether it was.
    pub(crate) fn cleared(&mut self, which: impl FnOnce(&Obstacle) -> bool) -> bool {
        let Some(fallback) = self.fallback_mut() else { return false };
        let is_gone = fallback.obstacle.as_ref().is_some_and(which);
        if is_gone {
            fallback.obstacle = None;
        }
        is_gone
    }

    /// A fallback that was passed over for a verdict has none any more, and would run before the running one.
    pub(crate) fn free(&mut self, rank: Rank, uid: &str) {
        let Some(fallback) = self.fallback_mut() else { return };
        let was_marked = |(other, _, obstacle): &(Rank, String, Obstacle)| {
            *other == rank && matches!(obstacle, Obstacle::Marked { recorded: true, .. })
        };
        let before = mem::take(&mut fallback.passed_over);
        let (freed, left): (Vec<_>, Vec<_>) = before.into_iter().partition(was_marked);
        fallback.passed_over = left;
        if !freed.is_empty() {
            fallback.freed = Some(uid.to_owned());
        }
    }
}
