//! Worlds that break one promise, and the invariant that must notice each.

use kedge_sim::containers::Lie;

/// One broken promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// The runtime, the images or the desired set give false reports.
    Lie(Lie),
    /// The server reports a pod as deleted, but keeps it.
    DeletionIsLost,
    /// The server accepts a pod's status, but does not store it.
    StatusIsLost,
    /// More restarts are counted than there were.
    RestartsAreMore,
    /// The server changes a pod's status whichever version the request names.
    VersionIsIgnored,
    /// A reset of the board removes the proof of the configuration.
    ProofIsLost,
}

impl Mutant {
    /// Each mutant, and the invariant that notices it.
    pub(crate) const ALL: [(Self, &str); 15] = [
        (Self::Lie(Lie::EndsWithTheAgent), "invariant_no_end_of_the_agent_ends_a_container"),
        (Self::Lie(Lie::StopIsIgnored), "invariant_no_pod_runs_twice"),
        (Self::Lie(Lie::EndIsUnseen), "invariant_what_is_reported_as_running_runs"),
        (Self::Lie(Lie::LayerIsNotSynced), "invariant_an_image_not_wholly_synced_is_not_run"),
        (Self::Lie(Lie::HalfIsWhole), "invariant_a_half_prepared_pod_is_not_run"),
        (Self::Lie(Lie::RecordIsNotWritten), "invariant_what_was_asked_last_goes_on"),
        (Self::Lie(Lie::NeedIsNotNoted), "invariant_collection_takes_nothing_in_use"),
        (Self::Lie(Lie::RecordStays), "invariant_nothing_grows"),
        (Self::Lie(Lie::CutIsWhole), "invariant_an_image_not_wholly_synced_is_not_run"),
        (Self::Lie(Lie::KillIsForgotten), "invariant_a_deleted_pod_ends_and_is_gone"),
        (Self::DeletionIsLost, "invariant_a_deleted_pod_ends_and_is_gone"),
        (Self::StatusIsLost, "invariant_what_is_asked_for_runs_and_is_reported"),
        (Self::RestartsAreMore, "invariant_status_never_goes_back"),
        (Self::VersionIsIgnored, "invariant_no_time_of_a_status_moves"),
        (Self::ProofIsLost, "invariant_a_workload_condemns_no_proven_config"),
    ];
}
