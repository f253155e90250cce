//! The options of a deletion.

#[derive(Debug, Default, Clone)]
pub struct DeleteOptions {
    /// Only the object of this UID.
    pub uid: Option<String>,
    /// Only at this version.
    pub resource_version: Option<String>,
    /// The propagation to the objects it owns.
    pub propagation: Propagation,
    /// The grace period of a pod in seconds; absent for the pod's own.
    pub grace_secs: Option<i64>,
}

/// The propagation of a deletion to owned objects.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// By the object's own finalizers; without any, in the background.
    #[default]
    Unset,
    /// They are deleted later.
    Background,
    /// They are deleted first.
    Foreground,
    /// They are kept, without their owner.
    Orphan,
}
