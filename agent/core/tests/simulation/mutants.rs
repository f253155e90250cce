//! Worlds that break one promise of the rules on the agent's behalf: each must be noticed, or the invariants are blind.

/// One broken promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// The start is reported recorded before use, and is not.
    StartNotRecorded,
    /// An unanswered request counts as contact.
    ContactWithoutAnswer,
    /// A power cut sets the running time back to zero.
    CutResetsRunning,
    /// A power cut counts as a crash.
    CutCountsAsCrash,
    /// After a roll back the record of what is assigned says what is active.
    CurrentIsWhatIsActive,
    /// A crash counts for nothing.
    CrashNotCounted,
    /// The trial's clock runs faster than time.
    TrialTooShort,
    /// Verdicts are forgotten over a restart.
    VerdictsForgotten,
    /// A verdict is reported written, and is not.
    VerdictNotWritten,
    /// What is assigned is reported written, and is not.
    AssignmentNotWritten,
    /// The counts of one config are read as those of whichever is judged.
    CountsWithoutOwner,
}

impl Mutant {
    pub(crate) const ALL: [Self; 11] = [
        Self::StartNotRecorded,
        Self::ContactWithoutAnswer,
        Self::CutResetsRunning,
        Self::CutCountsAsCrash,
        Self::CurrentIsWhatIsActive,
        Self::CrashNotCounted,
        Self::TrialTooShort,
        Self::VerdictsForgotten,
        Self::VerdictNotWritten,
        Self::AssignmentNotWritten,
        Self::CountsWithoutOwner,
    ];
}
