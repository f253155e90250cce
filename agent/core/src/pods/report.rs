//! The pods as `kedge pods` and the local endpoint show them.

use crate::pods::event::ContainerState;
use crate::pods::keys::PodUid;
use crate::pods::life::{ContainerLife, Life, Origin, Verdict};
use crate::pods::spec::Container;
use kedge_api::Timestamp;
use serde::Serialize;

/// Longest complaint about an unreadable pod: it may quote the pod.
pub(crate) const COMPLAINT_CHARS: usize = 1000;

/// A pod for `kedge pods`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodReport {
    pub namespace: String,
    pub name: String,
    pub uid: PodUid,
    /// `api`, `static`, or `runtime` if only the runtime knows it.
    pub origin: &'static str,
    /// Bound to another Node than the current one.
    pub is_orphaned: bool,
    pub is_ending: bool,
    /// Why it may not run here, or no longer.
    pub rejected: Option<String>,
    /// Ready containers, of `counted`; init containers count in neither number, except sidecars: as kubectl
    /// shows it.
    pub ready: usize,
    pub counted: usize,
    /// Why it does not start although it should.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<WaitReport>,
    pub containers: Vec<ContainerReport>,
}

/// Why a pod does not start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitReport {
    /// The reason of the Event about it.
    pub reason: &'static str,
    pub message: String,
    /// Since when this has been the reason.
    pub since: Timestamp,
}

/// A container for `kedge pods`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerReport {
    pub name: String,
    /// As the pod has it; empty if only the runtime knows the pod.
    pub image: String,
    /// `Running`, `Created`, `Exited`, `Lost`, `Unknown`, `Waiting`.
    pub state: &'static str,
    pub restarts: u32,
    /// Why it waits.
    pub reason: Option<String>,
    /// A longer text for the reason, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Life {
    /// How many containers are ready, and of how many; both are 0 if only the runtime knows the pod.
    fn readiness(&self) -> (usize, usize) {
        let Some(pod) = &self.pod else { return (0, self.containers.len()) };
        let sidecars = pod.spec.init_containers.iter().filter(|spec| spec.is_sidecar());
        let counted: Vec<_> = sidecars.chain(&pod.spec.containers).collect();
        let is_ready = |spec: &&&Container| {
            self.containers.get(&spec.name).is_some_and(|container| container.health(spec).is_ready)
        };
        (counted.iter().filter(is_ready).count(), counted.len())
    }

    pub(crate) fn for_people(&self, is_orphaned: bool) -> PodReport {
        let rejected = match &self.admission.verdict {
            Verdict::Rejected(rejection) => Some(format!("{}: {}", rejection.reason, rejection.message)),
            _ => self.ending.failed.as_ref().map(|failed| format!("{}: {}", failed.reason, failed.message)),
        };
        let container = |(name, container): (&String, &ContainerLife)| ContainerReport {
            name: name.clone(),
            image: self.image_of(name),
            state: match container.run.as_ref().map(|run| &run.state) {
                Some(ContainerState::Running { .. }) => "Running",
                Some(ContainerState::Created) => "Created",
                Some(ContainerState::Exited(_)) => "Exited",
                Some(ContainerState::Lost(_)) => "Lost",
                Some(ContainerState::Unknown(_)) => "Unknown",
                None => "Waiting",
            },
            // never fewer than an earlier agent reported
            restarts: container.run.as_ref().map_or(0, |run| run.attempt).max(container.floor),
            reason: container.waiting.as_ref().map(|(reason, _)| (*reason).to_owned()),
            message: container
                .waiting
                .as_ref()
                .map(|(_, message)| kedge_api::excerpt_of(message, COMPLAINT_CHARS))
                .filter(|message| !message.is_empty()),
        };
        let (ready, counted) = self.readiness();
        PodReport {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            origin: match self.origin {
                Origin::Api { .. } => "api",
                Origin::Static { .. } => "static",
                Origin::Found { .. } => "runtime",
            },
            is_orphaned,
            is_ending: self.ending.asked.is_some(),
            rejected,
            ready,
            counted,
            waits: self.shown_hindrance().map(|it| WaitReport {
                reason: it.reason,
                message: it.message.clone(),
                since: it.since,
            }),
            containers: self.containers.iter().map(container).collect(),
        }
    }
}
