//! What an agent says of itself to people and tools on its node: the shape of `kedge status --output json`.
//!
//! Always holds: every field is what core knows at one moment. Leaves to others: composing it (`agent`).

use kedge_api as api;
use serde::Serialize;

/// What an agent says of itself: `kedge status --output json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Name of the Node.
    pub node: String,
    /// Version of the agent.
    pub version: String,
    /// The configuration.
    pub config: ConfigReport,
    /// The Lease.
    pub lease: LeaseReport,
    /// Status patches accepted since the start.
    pub status_posts: u64,
    /// The Node exists.
    pub registered: bool,
    /// Whether the API server is our hub; null while unknown.
    pub server_is_hub: Option<bool>,
}

/// The configuration's part of a report.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigReport {
    /// local, trial, known-good or fallback.
    pub state: &'static str,
    /// What is left of the trial.
    pub trial_remaining_seconds: Option<u64>,
    /// Running time since the last counted startup.
    pub ran_seconds: u64,
    /// Counted startups.
    pub startups: usize,
    /// Power cuts since the last save of progress.
    pub cuts: u32,
    /// It had contact with an API server.
    pub contact: bool,
    /// The condition ConfigOK.
    pub condition: ConditionReport,
    /// `status.config`.
    pub status: api::NodeConfigStatus,
    /// What is not tried again.
    pub bad: Vec<BadReport>,
    /// The transition under way.
    pub transition: Option<&'static str>,
    /// What keeps the assigned config from running.
    pub obstacle: Option<&'static str>,
}

/// The condition's part of a report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConditionReport {
    /// True, False or Unknown.
    pub status: &'static str,
    /// The cause.
    pub reason: String,
    /// The effect.
    pub message: String,
}

/// One entry of `bad-configs.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BadReport {
    /// UID of the ConfigMap.
    pub uid: String,
    /// When it was marked.
    pub time: api::Timestamp,
    /// Why.
    pub reason: String,
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
