//! The spec of a rollout, read once for each look.
//!
//! Always holds: validation has seen the spec; a value that another server let pass makes a rollout more
//! careful, never bolder.

use std::time::Duration;

use serde_json::Value;

use super::super::rolling::budget::time;
use crate::kinds::config_rollout::{BATCHES, version_numbers};
use crate::kinds::daemon_set::selects;
use crate::kinds::rules::{entries, list};
use crate::value::text;

/// Annotation of a rollout: another value resumes a stopped rollout.
pub(super) const RESUME: &str = "fleet.kedge.dev/resume";
const STAYS: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_secs(2 * 60 * 60);

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    /// The labels that select; `None`: all nodes.
    pub(super) selector: Option<Value>,
    pub(super) batches: Vec<Batch>,
    pub(super) max_unavailable: Value,
    pub(super) max_failures: Value,
    /// The label of groups, and the limit of each.
    pub(super) group: Option<(String, Value)>,
    pub(super) deadline: Duration,
    /// How long a node must be well before anything counts on it.
    pub(super) stays: Duration,
    pub(super) rolls_back: bool,
    pub(super) is_paused: bool,
    /// `Some(None)`: it cannot be read, and every node is too old.
    pub(super) least_version: Option<Option<[u32; 6]>>,
    pub(super) history: usize,
    pub(super) source: String,
    pub(super) key: String,
    pub(super) resume: String,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Batch {
    /// `None`: any selected node.
    pub(super) selector: Option<Value>,
    pub(super) limit: Option<Value>,
    /// `None`: it cannot be read, and the batch never ends.
    pub(super) soak: Option<Duration>,
}

impl Settings {
    pub(super) fn read(rollout: &Value) -> Settings {
        let spec = &rollout["spec"];
        let strategy = &spec["strategy"];
        let amount = |value: &Value, default: &str| match value {
            Value::Null => default.into(),
            found => found.clone(),
        };
        let batch = |batch: &Value| Batch {
            selector: Some(&batch["selector"]).filter(|one| !is_empty(one)).cloned(),
            // one that selects nothing and has no limit would be everybody
            limit: batch.get("limit").cloned().or_else(|| is_empty(&batch["selector"]).then(|| 1.into())),
            soak: match text(batch, &["soak"]) {
                "" => Some(Duration::ZERO),
                found => time(found),
            },
        };
        let group = text(strategy, &["perGroup", "label"]);
        let group = (!group.is_empty())
            .then(|| (group.to_owned(), amount(&strategy["perGroup"]["maxUnavailable"], "1%")));
        let version = text(spec, &["minKubeletVersion"]);
        let key = text(spec, &["source", "kubeletConfigKey"]);
        Settings {
            selector: Some(spec["selector"].clone()).filter(|_| spec["allNodes"] != true),
            batches: list(strategy, "batches").iter().map(batch).collect(),
            max_unavailable: amount(&strategy["maxUnavailable"], "2%"),
            max_failures: amount(&strategy["maxFailures"], "1%"),
            group,
            deadline: time(text(strategy, &["progressDeadline"])).unwrap_or(DEADLINE),
            stays: time(text(strategy, &["completeAfter"])).unwrap_or(STAYS),
            rolls_back: strategy["rollbackOnFailure"] == true,
            is_paused: spec["paused"] == true,
            least_version: (!version.is_empty()).then(|| version_numbers(version)),
            history: spec["revisionHistoryLimit"].as_u64().map_or(10, |limit| limit.min(1000) as usize),
            source: text(spec, &["source", "name"]).to_owned(),
            key: if key.is_empty() { "kubelet" } else { key }.to_owned(),
            resume: text(rollout, &["metadata", "annotations", RESUME]).to_owned(),
        }
    }

    /// Whether the rollout selects a node with these labels. An empty selector selects none.
    pub(super) fn selects(&self, labels: &Value) -> bool {
        self.selector.as_ref().is_none_or(|selector| !is_empty(selector) && selects(selector, labels))
    }

    /// One bit for each batch, of those that are valid, whose selector a node with these labels matches.
    pub(super) fn batches_of(&self, labels: &Value) -> u32 {
        let matches =
            |batch: &Batch| batch.selector.as_ref().is_none_or(|selector| selects(selector, labels));
        let found = self.batches.iter().take(BATCHES).enumerate().filter(|(_, batch)| matches(batch));
        found.fold(0, |all, (index, _)| all | 1 << index)
    }

    pub(super) fn group_of(&self, labels: &Value) -> Box<str> {
        self.group.as_ref().map_or("", |(label, _)| text(labels, &[label])).into()
    }

    /// Whether both settings make the same rows of the same nodes.
    pub(super) fn selects_like(&self, other: &Settings) -> bool {
        let group = |of: &Settings| of.group.as_ref().map(|(label, _)| label.clone());
        let batches = |of: &Settings| of.batches.iter().map(|one| one.selector.clone()).collect::<Vec<_>>();
        self.selector == other.selector && group(self) == group(other) && batches(self) == batches(other)
    }
}

fn is_empty(selector: &Value) -> bool {
    entries(selector, "matchLabels").next().is_none() && list(selector, "matchExpressions").is_empty()
}
