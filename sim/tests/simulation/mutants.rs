//! Worlds that break one promise of the rules in the agent's place, and the invariant that must notice each:
//! an invariant that no world can break proves nothing.

/// One broken promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// The start is reported as recorded before use, but is not.
    StartNotRecorded,
    /// An unanswered request counts as contact.
    ContactWithoutAnswer,
    /// A power cut sets the running time back to zero.
    CutResetsRunning,
    /// A power cut counts as a crash.
    CutCountsAsCrash,
    /// After a roll back the record `current` names the active config, not the assigned one.
    CurrentIsWhatIsActive,
    /// A crash does not count.
    CrashNotCounted,
    /// The trial's clock runs faster than time.
    TrialTooShort,
    /// The trial's clock hardly moves.
    ClockCrawls,
    /// Verdicts are forgotten over a restart.
    VerdictsForgotten,
    /// A verdict is reported as written, but is not.
    VerdictNotWritten,
    /// An assignment is reported as written, but is not.
    AssignmentNotWritten,
    /// A checkpoint is reported as written, but is not.
    CheckpointNotWritten,
    /// The counts that a running agent saves are reported as written, but are not.
    ProgressNotWritten,
    /// A new last-known-good is reported as written, but is not.
    PromotionNotWritten,
    /// The counts of one config are used for whichever config is judged.
    CountsWithoutOwner,
    /// The disk syncs no directory: after a cut acknowledged files are gone.
    NamesNotSynced,
    /// The disk syncs no file before it is renamed: after a cut a file with its final name may be torn.
    ContentsNotSynced,
    /// A step of a start is never performed.
    StepForgotten,
    /// Another config than the reported one runs.
    AnotherConfigRuns,
    /// Every config is judged invalid, even the valid ones.
    EverythingInvalid,
    /// The condition is always True, whichever config runs.
    AlwaysTrue,
    /// Records grow without bounds.
    RecordsGrow,
    /// Renewals are answered, but have no effect.
    RenewalsDropped,
    /// Status patches are answered, but have no effect.
    StatusDropped,
    /// The network fails again and again where one outage was promised.
    ManyOutages,
    /// The agent crashes again and again, without end and without a cause.
    CrashesForever,
    /// Earlier counts come back after a config was forgiven.
    NeverForgiven,
    /// The status names another version than the record.
    StatusClaims,
    /// The checkpoint of a config that begins to run is missing.
    CheckpointVanishes,
    /// The checkpoint of a new last-known-good was swept away.
    CheckpointSwept,
    /// The record of an end does not name its run.
    RunsNotCounted,
    /// A start does not make the files durable that it read: after a cut they may be gone.
    NamesNotSettled,
    /// Another node's Node appears under this node's name.
    AnothersNode,
    /// Files that no record names stay on the disk.
    NothingSwept,
    /// Every answer is lost, although renewals arrive.
    AnswersLost,
    /// An edit of an object's metadata changes its payload, too.
    EditsAreContent,
    /// Watches that end at once are reported as long-lived.
    WatchesLive,
    /// A save is durable, but reported as failed.
    SavesFail,
    /// While the disk does not respond, no renewal is answered.
    StallSilences,
}

impl Mutant {
    /// Each mutant, the invariant that notices it, and a seed at which it did: that run is tried first,
    /// because a few mutants are noticed in only one of a hundred runs, and the others by other invariants. A
    /// seed that no longer works only costs time.
    pub(crate) const ALL: [(Self, &str, u64); 39] = [
        (Self::StartNotRecorded, "invariant_a_trial_is_recorded_before_it_begins", 0),
        (Self::ContactWithoutAnswer, "invariant_last_known_good_survived_a_trial", 1),
        (Self::CutResetsRunning, "invariant_a_cut_never_resets_running_time", 31),
        (Self::CutCountsAsCrash, "invariant_power_cuts_condemn_no_good_config", 227),
        (Self::CurrentIsWhatIsActive, "invariant_everything_comes_to_rest", 64),
        (Self::CrashNotCounted, "invariant_a_crash_loop_ends", 8),
        (Self::TrialTooShort, "invariant_running_time_is_real", 31),
        (Self::ClockCrawls, "invariant_a_trial_ends", 93),
        (Self::VerdictsForgotten, "invariant_a_bad_config_is_not_tried_again", 94),
        (Self::VerdictNotWritten, "invariant_a_bad_config_is_not_tried_again", 94),
        (Self::AssignmentNotWritten, "invariant_everything_comes_to_rest", 0),
        (Self::CheckpointNotWritten, "invariant_everything_comes_to_rest", 0),
        (Self::CheckpointSwept, "invariant_records_name_checkpoints", 1),
        (Self::ProgressNotWritten, "invariant_the_agent_knows_its_disk", 0),
        (Self::PromotionNotWritten, "invariant_a_good_config_wins", 1),
        (Self::CountsWithoutOwner, "invariant_running_time_is_real", 0),
        (Self::NamesNotSynced, "invariant_a_cut_takes_nothing_back", 1),
        (Self::ContentsNotSynced, "invariant_no_record_is_torn", 6),
        (Self::StepForgotten, "invariant_some_config_always_runs", 1),
        (Self::AnotherConfigRuns, "invariant_what_runs_is_what_is_said", 0),
        (Self::EverythingInvalid, "invariant_what_runs_is_valid", 0),
        (Self::AlwaysTrue, "invariant_true_means_that_current_runs", 0),
        (Self::RecordsGrow, "invariant_records_are_bounded", 0),
        (Self::RenewalsDropped, "invariant_the_heartbeat_resumes", 0),
        (Self::StatusDropped, "invariant_the_last_word_arrived", 10),
        (Self::ManyOutages, "invariant_one_outage_condemns_nothing", 29),
        (Self::CrashesForever, "invariant_everything_comes_to_rest", 0),
        (Self::StatusClaims, "invariant_status_never_claims_what_is_not_on_disk", 2),
        (Self::CheckpointVanishes, "invariant_what_runs_is_on_disk", 0),
        (Self::RunsNotCounted, "invariant_an_end_counts_once", 81),
        (Self::NamesNotSettled, "invariant_a_cut_takes_nothing_back", 17),
        (Self::AnothersNode, "invariant_only_its_own_node_is_obeyed", 5),
        (Self::NeverForgiven, "invariant_a_forgiven_config_is_tried", 172),
        (Self::NothingSwept, "invariant_the_disk_does_not_fill", 2),
        (Self::AnswersLost, "invariant_a_node_at_rest_asks_rarely", 0),
        (Self::EditsAreContent, "invariant_metadata_edits_write_nothing", 1),
        (Self::WatchesLive, "invariant_a_node_at_rest_asks_rarely", 0),
        (Self::SavesFail, "invariant_flash_is_spared", 0),
        (Self::StallSilences, "invariant_a_stalled_disk_silences_nothing", 4),
    ];
}
