//! The Node object that a node creates for itself, and the labels it keeps on it.
//!
//! Always holds: labels of others stay whatever they are. Leaves to others: when to create it or to put labels back (`agent`).

use crate::event::HostFacts;
use crate::kubelet::{self, Config};
use crate::options::Options;
use kedge_api as api;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The Node as it is created: with the labels and taints it begins with.
pub(crate) fn registration(options: &Options, config: &Config, facts: Option<&HostFacts>) -> Value {
    let mut spec = serde_json::Map::new();
    if !config.provider_id.is_empty() {
        spec.insert("providerID".into(), json!(config.provider_id));
    }
    if !config.register_with_taints.is_empty() {
        let taint = |taint: &kubelet::Taint| api::Taint {
            key: taint.key.clone(),
            value: taint.value.clone(),
            effect: taint.effect.clone(),
        };
        let taints: Vec<api::Taint> = config.register_with_taints.iter().map(taint).collect();
        spec.insert("taints".into(), json!(taints));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": options.node_name, "labels": labels(options, facts)},
        "spec": spec,
    })
}

pub(crate) fn labels(options: &Options, facts: Option<&HostFacts>) -> BTreeMap<String, String> {
    let architecture = facts.map(|facts| facts.architecture.clone()).unwrap_or_default();
    let mut labels = BTreeMap::from([
        ("kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("kubernetes.io/arch".to_owned(), architecture),
    ]);
    // a name may be longer than the value of a label: every server would refuse such a Node
    if api::names::label_value_complaint(&options.node_name).is_none() {
        labels.insert("kubernetes.io/hostname".to_owned(), options.node_name.clone());
    }
    labels.extend(options.node_labels.clone());
    labels
}

/// Upstream's rule: the labels a node agent owns are put back, others stay whatever they are.
pub(crate) fn missing_labels(
    node: &api::Node,
    options: &Options,
    facts: Option<&HostFacts>,
) -> BTreeMap<String, String> {
    if facts.is_none() {
        return BTreeMap::new();
    }
    labels(options, facts)
        .into_iter()
        .filter(|(name, value)| node.metadata.labels.get(name) != Some(value))
        .collect()
}
