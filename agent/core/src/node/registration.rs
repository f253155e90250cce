//! The Node object that a node creates for itself, and the labels it keeps on it.
//!
//! Always holds: labels of others stay, whatever they are. Leaves to others: when to create it or to put
//! labels back (`agent`).

use crate::kubelet::{self, Config};
use crate::node::facts::{HardwareWatchdog, HostFacts};
use crate::options::Options;
use kedge_api as api;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The longest value of a label.
const LABEL_LETTERS: usize = 63;

/// The Node as it is created: with its first labels and taints.
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
    // a name may be longer than a label's value: every server would refuse such a Node
    if api::names::label_value_complaint(&options.node_name).is_none() {
        labels.insert("kubernetes.io/hostname".to_owned(), options.node_name.clone());
    }
    labels.extend(facts.and_then(|facts| watchdog_label(&facts.watchdog)));
    labels.extend(options.slot.iter().map(|slot| (api::SLOT.to_owned(), slot.clone())));
    labels.extend(options.node_labels.clone());
    labels
}

/// A driver's name for its device may have spaces: `i6300ESB timer`.
fn watchdog_label(watchdog: &HardwareWatchdog) -> Option<(String, String)> {
    let value = match watchdog {
        HardwareWatchdog::NotAsked => return None,
        HardwareWatchdog::Absent => "none".to_owned(),
        HardwareWatchdog::Idle(name) | HardwareWatchdog::Active(name) => {
            let is_fit = |letter: &char| letter.is_ascii_alphanumeric() || "-._".contains(*letter);
            let fit: String = name
                .chars()
                .map(|letter| if is_fit(&letter) { letter } else { '_' })
                .take(LABEL_LETTERS)
                .collect();
            let ends = |letter: char| !letter.is_ascii_alphanumeric();
            match fit.trim_matches(ends) {
                "" => "unnamed".to_owned(),
                value => value.to_owned(),
            }
        }
    };
    Some((api::WATCHDOG_LABEL.to_owned(), value))
}

/// Upstream's rule: the labels that a node agent owns are put back, others stay whatever they are.
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

/// The annotations that a node owns and that differ on the Node, with their right values; null if it should
/// not have one.
pub(crate) fn wrong_annotations(
    node: &api::Node,
    options: &Options,
    config: &Config,
    facts: Option<&HostFacts>,
    system: Option<String>,
) -> serde_json::Map<String, Value> {
    let windows = Some(config.maintenance_windows.join(", ")).filter(|windows| !windows.is_empty());
    let wrong = |wanted: &[(&str, Option<String>)]| -> serde_json::Map<String, Value> {
        let wrong =
            wanted.iter().filter(|(name, value)| node.metadata.annotations.get(*name) != value.as_ref());
        wrong.map(|(name, value)| ((*name).to_owned(), json!(value))).collect()
    };
    let first = wrong(&[(api::MAINTENANCE_ANNOTATION, windows), (api::SLOT, options.slot.clone())]);
    let server = match config.servers.is_empty() {
        true => None,
        // nothing is known about it before the first look
        false => match facts.and_then(|facts| facts.api_server.as_ref()) {
            Some(server) => Some(server.url()),
            None => return first,
        },
    };
    // alone: a hub from before it refuses the whole patch
    if first.is_empty() && node.metadata.annotations.contains_key(api::TRUST_ANNOTATION) {
        let authorities = facts.and_then(|facts| facts.authorities.clone());
        let wrong = wrong(&[(api::AUTHORITIES_ANNOTATION, authorities)]);
        if !wrong.is_empty() {
            return wrong;
        }
    }
    let first = if first.is_empty() { wrong(&[(api::SERVER_ANNOTATION, server)]) } else { first };
    // alone and last, for the same reason
    if first.is_empty() { wrong(&[(api::SYSTEM_ANNOTATION, system)]) } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_becomes_a_label_that_servers_accept() {
        let check = |name: &str, expect: &str| {
            let (key, value) = watchdog_label(&HardwareWatchdog::Active(name.into())).expect("asked");
            assert_eq!((key.as_str(), value.as_str()), ("kedge.dev/watchdog", expect));
            assert_eq!(api::names::label_value_complaint(&value), None);
        };
        check("iTCO_wdt", "iTCO_wdt");
        check("i6300ESB timer", "i6300ESB_timer");
        check(" (SP5100/TCO) timer \u{e4}", "SP5100_TCO__timer");
        check("", "unnamed");
        check("\u{e4}", "unnamed");
        check(&format!("{}-x", "a".repeat(62)), &"a".repeat(62));
        let none = watchdog_label(&HardwareWatchdog::Absent);
        assert_eq!(none, Some(("kedge.dev/watchdog".into(), "none".into())));
        assert_eq!(watchdog_label(&HardwareWatchdog::NotAsked), None);
    }
}
