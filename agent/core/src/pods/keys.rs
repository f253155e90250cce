//! The names of pods, containers and objects, by which all other parts of `pods` refer to them.

use crate::config::source::is_file_name;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The UID of a pod; safe as a file name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct PodUid(String);

impl PodUid {
    /// `None` unless the text matches `[A-Za-z0-9-]{1,64}`.
    #[must_use]
    pub fn new(uid: &str) -> Option<Self> {
        is_file_name(uid).then(|| Self(uid.to_owned()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One run of one container of one pod. No two runs have the same key until `RemovePod` has removed the pod
/// with its logs, also across starts of the agent and, where logs are kept, of the machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerKey {
    pub pod: PodUid,
    /// A DNS label: safe as a file name.
    pub container: String,
    /// From 0: the number of restarts before it.
    pub attempt: u32,
}

impl ContainerKey {
    /// The container's ID as Kubernetes shows it, without the prefix `kedge://`.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}.{}.{}", self.pod, self.container, self.attempt)
    }
}

impl fmt::Display for ContainerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id())
    }
}

/// A ConfigMap or a Secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectName {
    pub kind: ObjectKind,
    pub namespace: String,
    pub name: String,
}

/// The kinds that a pod may refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ObjectKind {
    ConfigMap,
    Secret,
}

/// A pod in the API.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}
