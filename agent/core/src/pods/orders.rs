//! The order to run a hook, and the key that identifies a run of a probe or a hook until it ends.

use crate::pods::keys::ContainerKey;
use crate::pods::probes::{Check, ProbeKey};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The two hooks of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HookKind {
    PostStart,
    PreStop,
}

impl HookKind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::PostStart => "postStart",
            Self::PreStop => "preStop",
        }
    }
}

/// A hook to be run once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookOrder {
    pub container: ContainerKey,
    pub kind: HookKind,
    pub act: HookAct,
    /// Counted from now; a hook that takes longer has failed.
    pub timeout: Duration,
}

/// The action of a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookAct {
    /// A program succeeds with code 0, a request with any answer.
    Run(Check),
    Sleep(Duration),
}

/// The progress of a run's hooks, as far as the next agent has to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HookNote {
    /// postStart is due or under way, or has failed, in which case the container has to be stopped.
    PostStart,
    /// postStart has succeeded.
    Started,
    /// preStop is under way.
    PreStop,
    /// preStop has ended; the run has to end before this time of the machine's monotonic clock.
    PreStopped { until: Duration },
}

/// A run of a probe or a hook.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RunKey {
    Probe(ProbeKey),
    Hook(ContainerKey, HookKind),
}

impl RunKey {
    /// The container of the run.
    #[must_use]
    pub fn container(&self) -> &ContainerKey {
        match self {
            Self::Probe(ProbeKey { container, .. }) | Self::Hook(container, _) => container,
        }
    }
}
