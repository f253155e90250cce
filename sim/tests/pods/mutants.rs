//! Worlds that break one promise, and the invariant that must notice each.

use kedge_sim::containers::Lie;

/// One broken promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// The runtime, the images or the desired set are not what they say.
    Lie(Lie),
    /// The server says that it deleted a pod, and did not.
    DeletionIsLost,
    /// The server says that it has a pod's status, and has not.
    StatusIsLost,
    /// Restarts are counted that never were.
    RestartsAreMore,
    /// The server changes a pod's status whichever version of it was meant.
    VersionIsIgnored,
    /// A reset of the board takes the proof of the configuration with it.
    ProofIsLost,
}

impl Mutant {
    /// Each, and the invariant that notices it.
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
