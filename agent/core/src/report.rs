//! The report of an agent to people and tools on its node: the shape of `kedge status --output json`.
//!
//! Always holds: all fields are of the same moment. Leaves to others: everything outside of the configuration
//! (`agent`).

use crate::answer::Now;
use crate::config::condition::{config_ok, config_status};
use crate::config::running::Configuration;
use crate::config::standing::Obstacle;
use crate::contact::ContactReport;
use kedge_api as api;
use serde::Serialize;
use std::time::Duration;

/// `kedge status --output json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Name of the Node.
    pub node: String,
    /// Version of the agent.
    pub version: String,
    pub config: ConfigReport,
    pub lease: LeaseReport,
    /// Since when the disk of the state does not answer; `None` while it does.
    #[serde(skip)]
    pub disk_stalled_seconds: Option<u64>,
    /// The file system below `--root-dir`, as last looked at.
    #[serde(skip)]
    pub storage: Option<StorageReport>,
    pub contact: ContactReport,
    /// The Node's condition Ready, as this agent reports it.
    pub ready: ConditionReport,
    /// The node's own credential; null on a node without an API server.
    pub identity: Option<IdentityReport>,
    /// Status patches accepted since the start.
    pub status_posts: u64,
    /// The Node exists.
    pub registered: bool,
    /// Whether the API server is our hub; null while unknown.
    pub server_is_hub: Option<bool>,
    /// How far the decommissioning of this node has come; null without one.
    pub decommission: Option<String>,
    /// `SystemOK`; absent on a machine whose system was never wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<ConditionReport>,
    /// Another machine that reports as this node; null without one.
    pub another_machine: Option<AnotherMachine>,
}

/// A machine with the name and the credential of this node.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AnotherMachine {
    /// Its `/etc/machine-id`; null if the server alone knows of it.
    #[serde(rename = "machineID")]
    pub machine_id: Option<String>,
    /// Seconds since it was last noticed.
    pub seconds_since: u64,
    /// The server takes statuses from the other machine only.
    pub is_refused: bool,
}

/// The configuration's part of a report.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigReport {
    /// local, trial, known-good or fallback.
    pub state: &'static str,
    /// The rest of the trial.
    pub trial_remaining_seconds: Option<u64>,
    /// The rest of the running time for which pods are held, if they are.
    pub pods_held_seconds: Option<u64>,
    /// Running time since the last counted startup.
    pub ran_seconds: u64,
    /// Counted startups.
    pub startups: usize,
    /// More startups than this make it bad.
    pub crash_loop_threshold: u8,
    /// Power cuts since the last save of progress.
    pub cuts: u32,
    /// It had contact with an API server.
    pub contact: bool,
    pub condition: ConditionReport,
    /// `status.config`.
    pub status: api::NodeConfigStatus,
    /// Configs that are not tried again.
    pub bad: Vec<BadReport>,
    /// The transition under way.
    pub transition: Option<&'static str>,
    /// Why the assigned config does not run.
    pub obstacle: Option<&'static str>,
}

impl ConfigReport {
    pub(crate) fn of(configuration: &Configuration, now: Now) -> Self {
        let view = configuration.view();
        let condition = config_ok(&view);
        let trial_left = configuration.trial_left(now);
        let counts = &view.in_use.counts;
        let bad = view.disk.bad_configs.known().into_iter().flat_map(|bad| bad.entries());
        Self {
            state: view.standing.name(),
            trial_remaining_seconds: trial_left.map(whole_seconds),
            pods_held_seconds: configuration.hold_left(now).map(whole_seconds),
            ran_seconds: configuration.ran_ms(now) / 1000,
            startups: counts.startups.len(),
            crash_loop_threshold: view.in_use.terms.threshold,
            cuts: counts.cuts,
            contact: counts.contact,
            condition: ConditionReport {
                status: condition.status,
                reason: condition.reason,
                message: condition.message,
            },
            status: config_status(&view),
            bad: bad
                .map(|(uid, time, reason)| BadReport { uid: uid.to_owned(), time, reason: reason.to_owned() })
                .collect(),
            transition: configuration.under_way(),
            obstacle: view.standing.obstacle().map(obstacle_name),
        }
    }
}

/// A rest of less than a second counts as a second.
fn whole_seconds(rest: Duration) -> u64 {
    rest.as_secs_f64().ceil() as u64
}

fn obstacle_name(obstacle: &Obstacle) -> &'static str {
    match obstacle {
        Obstacle::Marked { .. } => "marked",
        Obstacle::Missing(_) => "missing",
        Obstacle::AssignmentUnknown(_) => "assignment-unknown",
        Obstacle::VerdictsUnknown(_) => "verdicts-unknown",
        Obstacle::NotRecorded(_) => "not-recorded",
        Obstacle::SourceInvalid(_) => "source-invalid",
        Obstacle::WaitsForSystem { .. } => "waits-for-system",
        Obstacle::BadSystem { .. } => "bad-system",
    }
}

/// The condition's part of a report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConditionReport {
    /// True, False or Unknown.
    pub status: &'static str,
    pub reason: String,
    pub message: String,
}

/// One entry of `bad-configs.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BadReport {
    /// UID of the ConfigMap.
    pub uid: String,
    /// When it was marked.
    pub time: api::Timestamp,
    pub reason: String,
}

/// The disk's part of a report.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageReport {
    pub bytes: u64,
    pub available_bytes: u64,
    pub available_inodes: u64,
}

/// The credential's part of a report.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityReport {
    /// none, requesting, waiting, denied, valid or expired.
    pub state: &'static str,
    /// Serial number of the certificate in use.
    pub serial: Option<String>,
    /// Its number at our hub.
    pub number: Option<u64>,
    pub not_after: Option<String>,
    /// When it is renewed at the earliest.
    pub renews_after: Option<String>,
    /// The CertificateSigningRequest under way.
    pub request: Option<String>,
    /// The cause of a wait or of a standstill.
    pub message: Option<String>,
}

/// The Lease's part of a report.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseReport {
    /// Renewals accepted since the start.
    pub renewals: u64,
    /// Seconds since the last; null before the first.
    pub seconds_since_renewal: Option<u64>,
}
