//! Worlds that break one promise of the rules on the agent's behalf, and the invariant that must notice each: one that no
//! world can break proves nothing.

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
    /// After a roll back the record `current` names the active config, not the assigned one.
    CurrentIsWhatIsActive,
    /// A crash counts for nothing.
    CrashNotCounted,
    /// The trial's clock runs faster than time.
    TrialTooShort,
    /// The trial's clock hardly moves.
    ClockCrawls,
    /// Verdicts are forgotten over a restart.
    VerdictsForgotten,
    /// A verdict is reported written, and is not.
    VerdictNotWritten,
    /// An assignment is reported written, and is not.
    AssignmentNotWritten,
    /// A checkpoint is reported written, and is not.
    CheckpointNotWritten,
    /// The counts that a running agent saves are reported written, and are not.
    ProgressNotWritten,
    /// A new last-known-good is reported written, and is not.
    PromotionNotWritten,
    /// The counts of one config are read as those of whichever is judged.
    CountsWithoutOwner,
    /// The disk syncs no directory: a cut takes back what was acknowledged.
    NamesNotSynced,
    /// The disk syncs no file before it is renamed: a cut tears what has its name already.
    ContentsNotSynced,
    /// A step of a start is never performed.
    StepForgotten,
    /// Another config runs than the one reported.
    AnotherConfigRuns,
    /// Every config is judged invalid, the valid ones, too.
    EverythingInvalid,
    /// The condition says True, whatever runs.
    AlwaysTrue,
    /// Records grow without bounds.
    RecordsGrow,
    /// Renewals are answered, and come to nothing.
    RenewalsDropped,
    /// Status patches are answered, and come to nothing.
    StatusDropped,
    /// The network fails again and again where one outage was promised.
    ManyOutages,
    /// The agent crashes again and again, for ever, without a cause.
    CrashesForever,
    /// Counts of before come back after a config was forgiven.
    NeverForgiven,
    /// The status names another version than the record.
    StatusClaims,
    /// The checkpoint of a config that begins to run is missing.
    CheckpointVanishes,
    /// The checkpoint of a new last-known-good was swept away.
    CheckpointSwept,
    /// The record of an end does not say of which run it is.
    RunsNotCounted,
    /// A start does not make its reads durable first: a cut takes back files it acted on.
    NamesNotSettled,
    /// Another node's Node comes under this node's name.
    AnothersNode,
    /// What no record names stays on the disk.
    NothingSwept,
    /// Every answer is lost, although renewals arrive.
    AnswersLost,
    /// An edit of an object's metadata changes its payload, too.
    EditsAreContent,
    /// Watches that end at once are reported as if they had lived long.
    WatchesLive,
    /// A save is durable, and reported as failed.
    SavesFail,
    /// While the disk stalls no renewal is answered.
    StallSilences,
}

impl Mutant {
    /// Each, the invariant that notices it, and a seed at which it did: that run is tried first, because a few mutants are
    /// noticed in one of a hundred runs, and other invariants in the others. A seed that no longer does only costs time.
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
