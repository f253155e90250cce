//! The transitions that a running agent makes, one at a time (RULES.md, "Durable writes").
//!
//! Leaves to others: when one is due, its writes, and what follows from its end (`running`).

use crate::config::digest::Identity;
use crate::config::records::{BadConfigs, ConfigRecord, Current, LastKnownGood, Startups, Verdict};
use crate::config::system::Systems;
use crate::writes::Outcome;

/// A transition under way.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) kind: Transition,
    pub(crate) outcomes: Vec<Outcome>,
}

/// All counts without those that led to verdicts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Emptied {
    pub(crate) startups: Startups,
    /// Whether there were any.
    pub(crate) is_due: bool,
}

/// The transitions that a running agent makes (RULES.md, "Durable writes").
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Transition {
    /// Adopts a config with this verdict while the config runs that a start would choose.
    AdoptBad {
        checkpoint: Option<Vec<u8>>,
        current: Current,
        is: Identity,
        verdict: Verdict,
    },
    Adopt {
        checkpoint: Option<Vec<u8>>,
        current: Current,
        is: Identity,
        startups: Startups,
    },
    NoteSource {
        current: Current,
    },
    Unassign {
        current: Current,
        why: String,
    },
    TrialProgress {
        startups: Startups,
        bad: Option<BadConfigs>,
    },
    Promote {
        startups: Startups,
        config: ConfigRecord,
        previous: Option<ConfigRecord>,
        bad: Option<BadConfigs>,
    },
    /// The running system is that of last-known-good from now on.
    PromoteSystem {
        good: LastKnownGood,
        /// With the same config.
        is_same: bool,
    },
    /// Records the progress of an update of the system, after the way back, if that is not noted yet.
    NoteSystems {
        systems: Systems,
        good: Option<LastKnownGood>,
    },
    SilentTrial {
        startups: Startups,
    },
    WaitOver {
        why: String,
        emptied: Emptied,
        bad: BadConfigs,
        closed: Startups,
    },
    TryAssigned {
        why: String,
        startups: Startups,
    },
    RecordVerdict {
        bad: BadConfigs,
        emptied: Emptied,
    },
    /// Records the Node's request to forgive, or that it was withdrawn, without another effect.
    NoteAsked {
        bad: BadConfigs,
    },
    Forgive {
        uid: String,
        bad: BadConfigs,
        emptied: Emptied,
    },
    CleanExit {
        why: String,
        closed: Option<Startups>,
        /// With the counts without those that led to the verdict.
        verdict: Option<(BadConfigs, Option<Startups>)>,
    },
}

/// Names of the transitions, for the log and for counting those that a simulation reached.
impl Transition {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Adopt { .. } | Self::AdoptBad { .. } => "adopt",
            Self::NoteSource { .. } => "note-source",
            Self::Unassign { .. } => "unassign",
            Self::TrialProgress { .. } => "trial-progress",
            Self::Promote { .. } => "promote",
            Self::PromoteSystem { .. } => "promote-system",
            Self::NoteSystems { .. } => "note-systems",
            Self::SilentTrial { .. } => "silent-trial",
            Self::WaitOver { .. } => "wait-over",
            Self::TryAssigned { .. } => "try-assigned",
            Self::RecordVerdict { .. } => "record-verdict",
            Self::NoteAsked { .. } => "note-asked",
            Self::Forgive { .. } => "forgive",
            Self::CleanExit { .. } => "clean-exit",
        }
    }

    /// Whether the run ends after it.
    pub(crate) fn exits(&self) -> bool {
        matches!(
            self,
            Self::Adopt { .. }
                | Self::Unassign { .. }
                | Self::SilentTrial { .. }
                | Self::WaitOver { .. }
                | Self::TryAssigned { .. }
                | Self::CleanExit { .. }
        )
    }
}
