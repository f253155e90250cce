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
    /// Each, and the invariant that notices it.
    pub(crate) const ALL: [(Self, &str); 39] = [
        (Self::StartNotRecorded, "invariant_a_trial_is_recorded_before_it_begins"),
        (Self::ContactWithoutAnswer, "invariant_last_known_good_survived_a_trial"),
        (Self::CutResetsRunning, "invariant_a_cut_never_resets_running_time"),
        (Self::CutCountsAsCrash, "invariant_power_cuts_condemn_no_good_config"),
        (Self::CurrentIsWhatIsActive, "invariant_everything_comes_to_rest"),
        (Self::CrashNotCounted, "invariant_a_crash_loop_ends"),
        (Self::TrialTooShort, "invariant_running_time_is_real"),
        (Self::ClockCrawls, "invariant_a_trial_ends"),
        (Self::VerdictsForgotten, "invariant_a_bad_config_is_not_tried_again"),
        (Self::VerdictNotWritten, "invariant_a_bad_config_is_not_tried_again"),
        (Self::AssignmentNotWritten, "invariant_everything_comes_to_rest"),
        (Self::CheckpointNotWritten, "invariant_everything_comes_to_rest"),
        (Self::CheckpointSwept, "invariant_records_name_checkpoints"),
        (Self::ProgressNotWritten, "invariant_the_agent_knows_its_disk"),
        (Self::PromotionNotWritten, "invariant_a_good_config_wins"),
        (Self::CountsWithoutOwner, "invariant_running_time_is_real"),
        (Self::NamesNotSynced, "invariant_a_cut_takes_nothing_back"),
        (Self::ContentsNotSynced, "invariant_no_record_is_torn"),
        (Self::StepForgotten, "invariant_some_config_always_runs"),
        (Self::AnotherConfigRuns, "invariant_what_runs_is_what_is_said"),
        (Self::EverythingInvalid, "invariant_what_runs_is_valid"),
        (Self::AlwaysTrue, "invariant_true_means_that_current_runs"),
        (Self::RecordsGrow, "invariant_records_are_bounded"),
        (Self::RenewalsDropped, "invariant_the_heartbeat_resumes"),
        (Self::StatusDropped, "invariant_the_last_word_arrived"),
        (Self::ManyOutages, "invariant_one_outage_condemns_nothing"),
        (Self::CrashesForever, "invariant_everything_comes_to_rest"),
        (Self::StatusClaims, "invariant_status_never_claims_what_is_not_on_disk"),
        (Self::CheckpointVanishes, "invariant_what_runs_is_on_disk"),
        (Self::RunsNotCounted, "invariant_an_end_counts_once"),
        (Self::NamesNotSettled, "invariant_a_cut_takes_nothing_back"),
        (Self::AnothersNode, "invariant_only_its_own_node_is_obeyed"),
        (Self::NeverForgiven, "invariant_a_forgiven_config_is_tried"),
        (Self::NothingSwept, "invariant_the_disk_does_not_fill"),
        (Self::AnswersLost, "invariant_a_node_at_rest_asks_rarely"),
        (Self::EditsAreContent, "invariant_metadata_edits_write_nothing"),
        (Self::WatchesLive, "invariant_a_node_at_rest_asks_rarely"),
        (Self::SavesFail, "invariant_flash_is_spared"),
        (Self::StallSilences, "invariant_a_stalled_disk_silences_nothing"),
    ];
}
