//! Labels and annotations that several parts of the controller read or write.

/// The label by which a pod names the generation of its template; like upstream's, it decides together with
/// the hash of the revision.
pub(super) const GENERATION: &str = "pod-template-generation";
/// While this annotation is set, an update replaces no pod; only `false` and an empty value do not count,
/// because anybody who writes another value wants to pause the set.
pub(super) const PAUSED: &str = "kedge.dev/paused";
/// The label by which pods name their revision, and revisions themselves.
pub(super) const HASH: &str = "controller-revision-hash";
/// `false`: pods are stopped before the new images are there; absent: by the hub's default.
pub(super) const PRE_PULL: &str = "kedge.dev/pre-pull";
/// Whether a node is drained before an update stops the set's pod there.
pub(super) const DRAIN: &str = "kedge.dev/drain-before-update";
/// On a revision: the state of its rollout, a `recorded::Record`.
pub(super) const RECORD: &str = "kedge.dev/rollout";
/// On a revision: its number when its rollout was last seen complete.
pub(super) const COMPLETE: &str = "kedge.dev/complete";
