//! Which nodes a pod may run on: node selector, required node affinity, taints; and the tolerations of daemon
//! pods.
//!
//! The rules are upstream's (its scheduler's and its daemon controller's). Always holds: pure functions of a
//! pod spec and a node; selectors and terms that cannot be parsed match nothing. Leaves to others: resources
//! (`scheduler`); nodes that the hub does not hear from (`daemon_sets`).

use std::time::Duration;

use kedge_api::{MAINTENANCE_ANNOTATION, MaintenanceWindows};
use serde_json::{Value, json};
use time::{OffsetDateTime, UtcOffset};

use crate::object::Object;
use crate::value::{condition, text};

/// The tolerations that upstream adds to every daemon pod: key and effect.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
/// Taints that report the state of a node. For daemon pods they keep no pod away, whatever their effect: an
/// update still counts a node that is lost meanwhile. Upstream tolerates only the effect `NoExecute`, and
/// forgets such a node.
const OF_STATE: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
/// A further toleration for daemon pods that use the node's own network.
const NETWORK_UNAVAILABLE: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// The fields of a Node that placing uses.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) name: String,
    labels: Value,
    /// The taints that keep pods away.
    taints: Vec<Value>,
    /// The hub has not heard from it for long: its Ready condition is Unknown.
    pub(super) is_lost: bool,
    /// Its agent is Kedge's, and can pull images ahead.
    pub(super) pulls_ahead: bool,
    /// A ConfigRollout assigned it a configuration that it neither promoted nor refused yet. No update stops
    /// a serving pod there meanwhile, so that one node is out for one reason.
    is_on_trial: bool,
    /// When an update may stop a serving pod there.
    maintenance: Maintenance,
    /// Namespace and name of the DaemonSet for which the hub cordoned it; empty: none.
    pub(super) drained_for: String,
}

/// On a Node: `NAMESPACE/NAME` of the DaemonSet for whose update the hub cordoned it. What the hub did not cordon
/// it does not uncordon.
pub(super) const DRAINED_FOR: &str = "kedge.dev/drained-for";

#[derive(Debug, Clone, PartialEq)]
enum Maintenance {
    AtAnyTime,
    Within(MaintenanceWindows),
    /// The windows cannot be parsed.
    Unreadable,
}

/// Whether an update may stop a serving pod, and how long that answer stays the same (`None`: for ever).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Maintained {
    pub(super) is_open: bool,
    pub(super) stays: Option<Duration>,
}

/// The part of an agent's version that shows it is Kedge's.
const BUILD: &str = "+kedge-";

impl Node {
    pub(super) fn read(object: &Object) -> Node {
        let value = object.value();
        let taints = value["spec"]["taints"].as_array().into_iter().flatten();
        Node {
            name: object.name.to_string(),
            labels: value["metadata"]["labels"].clone(),
            taints: taints.filter(|taint| taint["effect"] != "PreferNoSchedule").cloned().collect(),
            is_lost: condition(&value["status"], "Ready").is_some_and(|ready| ready["status"] == "Unknown"),
            pulls_ahead: text(&value, &["status", "nodeInfo", "kubeletVersion"]).contains(BUILD),
            is_on_trial: is_on_trial(&value),
            drained_for: text(&value, &["metadata", "annotations", DRAINED_FOR]).to_owned(),
            maintenance: match text(&value, &["metadata", "annotations", MAINTENANCE_ANNOTATION]) {
                "" => Maintenance::AtAnyTime,
                found => {
                    MaintenanceWindows::parse(found).map_or(Maintenance::Unreadable, Maintenance::Within)
                }
            },
        }
    }

    /// Whether an update may stop a serving pod.
    pub(super) fn maintained(&self, wall: OffsetDateTime) -> Maintained {
        if self.is_on_trial {
            return Maintained { is_open: false, stays: None };
        }
        self.windows(wall)
    }

    /// Whether the windows are open, by the hub's clock.
    pub(super) fn windows(&self, wall: OffsetDateTime) -> Maintained {
        match &self.maintenance {
            Maintenance::AtAnyTime => Maintained { is_open: true, stays: None },
            Maintenance::Unreadable => Maintained { is_open: false, stays: None },
            Maintenance::Within(windows) => {
                let wall = wall.to_offset(UtcOffset::UTC);
                let day = u32::from(wall.weekday().number_days_from_monday());
                let second = u32::from(wall.minute()) * 60 + u32::from(wall.second());
                let found = windows.at((day * 24 + u32::from(wall.hour())) * 3600 + second);
                Maintained { is_open: found.is_open, stays: Some(Duration::from_secs(found.stays.into())) }
            }
        }
    }

    /// The reason that an update gives when it waits for this node.
    pub(super) fn maintenance(&self) -> String {
        if self.is_on_trial {
            return "its configuration is on trial".to_owned();
        }
        self.windows_shown()
    }

    /// The reason that a rollout gives when it waits for the node's windows.
    pub(super) fn windows_shown(&self) -> String {
        match &self.maintenance {
            Maintenance::Unreadable => format!("its annotation {MAINTENANCE_ANNOTATION} cannot be read"),
            _ => "waits for its maintenance window".to_owned(),
        }
    }
}

/// Whether a rollout's assignment is neither promoted nor refused.
fn is_on_trial(node: &Value) -> bool {
    let assigned = &node["spec"]["configSource"]["configMap"];
    let promoted = &node["status"]["config"]["lastKnownGood"]["configMap"];
    !text(node, &["metadata", "annotations", kedge_api::ROLLOUT_ANNOTATION]).is_empty()
        && assigned.is_object()
        && ["namespace", "name"].iter().any(|field| assigned[*field] != promoted[*field])
        && condition(&node["status"], kedge_api::CONFIG_OK).is_none_or(|found| found["status"] != "False")
}

impl Node {
    pub(super) fn labels(&self) -> &Value {
        &self.labels
    }

    pub(super) fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).and_then(Value::as_str)
    }
}

/// Whether a node gets a pod, and whether it keeps one that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) runs: bool,
    pub(super) keeps: bool,
}

/// Judges a node by the pod spec of a template that has all its tolerations ([`tolerate`]).
pub(super) fn place(spec: &Value, node: &Node) -> Placed {
    let named = text(spec, &["nodeName"]);
    if !(named.is_empty() || named == node.name) || !selects(spec, node) {
        return Placed { runs: false, keeps: false };
    }
    let is_of_state = |taint: &&Value| OF_STATE.contains(&text(taint, &["key"]));
    let unbearable: Vec<&Value> = untolerated(spec, node).filter(|taint| !is_of_state(taint)).collect();
    Placed {
        runs: unbearable.is_empty(),
        keeps: unbearable.iter().all(|taint| taint["effect"] != "NoExecute"),
    }
}

/// The taints that keep a pod from a node which would run it without them, for people; `None`: there are
/// none, or more keeps it away.
pub(super) fn kept_away(spec: &Value, node: &Node) -> Option<String> {
    let named = text(spec, &["nodeName"]);
    if !(named.is_empty() || named == node.name) || !selects(spec, node) {
        return None;
    }
    let taints = untolerated(spec, node).filter(|taint| !OF_STATE.contains(&text(taint, &["key"])));
    let shown: Vec<String> = taints
        .map(|taint| {
            let [key, value, effect] = ["key", "value", "effect"].map(|field| text(taint, &[field]));
            let value = if value.is_empty() { String::new() } else { format!("={value}") };
            format!("taint {key}{value}:{effect}")
        })
        .collect();
    (!shown.is_empty()).then(|| format!("{}, which the pods do not tolerate", shown.join(", ")))
}

/// The taints of a node that keep a pod away, or end it.
pub(super) fn untolerated<'a>(spec: &'a Value, node: &'a Node) -> impl Iterator<Item = &'a Value> {
    node.taints.iter().filter(|taint| !is_tolerated(spec, taint))
}

pub(super) fn is_tolerated(spec: &Value, taint: &Value) -> bool {
    let mut tolerations = spec["tolerations"].as_array().into_iter().flatten();
    tolerations.any(|toleration| tolerates(toleration, taint))
}

/// Adds the tolerations of daemon pods to a pod spec.
pub(super) fn tolerate(spec: &mut Value) {
    let of_network = (spec["hostNetwork"] == true).then_some(NETWORK_UNAVAILABLE);
    if !spec["tolerations"].is_array() {
        spec["tolerations"] = json!([]);
    }
    let Some(list) = spec["tolerations"].as_array_mut() else { return };
    for (key, effect) in TOLERATED.into_iter().chain(of_network) {
        let added = json!({"key": key, "operator": "Exists", "effect": effect});
        // like upstream, replace a toleration that differs in its seconds only
        let same = |one: &Value| {
            one["key"] == key
                && one["effect"] == effect
                && one["operator"] == "Exists"
                && one.get("value").is_none()
        };
        match list.iter_mut().find(|one| same(one)) {
            Some(known) => *known = added,
            None => list.push(added),
        }
    }
}

/// Pins a pod to a node, as upstream does: its required node affinity becomes one term with the node's name.
pub(super) fn pin(spec: &mut Value, node: &str) {
    let term = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]});
    for part in ["affinity", "nodeAffinity"] {
        if spec.get("affinity").is_none_or(|affinity| !affinity.is_object()) {
            spec["affinity"] = json!({});
        }
        if part == "nodeAffinity" && !spec["affinity"][part].is_object() {
            spec["affinity"][part] = json!({});
        }
    }
    spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!({"nodeSelectorTerms": [term]});
    spec["nodeName"] = node.into();
}

pub(super) fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let (key, effect) = (text(toleration, &["key"]), text(toleration, &["effect"]));
    let is_exists = text(toleration, &["operator"]) == "Exists";
    (effect.is_empty() || effect == text(taint, &["effect"]))
        && (key == text(taint, &["key"]) || key.is_empty() && is_exists)
        && (is_exists || text(toleration, &["value"]) == text(taint, &["value"]))
}

/// Whether its node selector and required node affinity match the node.
pub(super) fn selects(spec: &Value, node: &Node) -> bool {
    let mut wanted = spec["nodeSelector"].as_object().into_iter().flatten();
    if !wanted.all(|(key, value)| node.labels.get(key) == Some(value)) {
        return false;
    }
    let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    match required["nodeSelectorTerms"].as_array() {
        None => true,
        Some(terms) => terms.iter().any(|term| is_matched(term, node)),
    }
}

/// A term without requirements matches nothing.
fn is_matched(term: &Value, node: &Node) -> bool {
    let list = |field: &str| term[field].as_array().map_or(&[][..], Vec::as_slice);
    let (labels, fields) = (list("matchExpressions"), list("matchFields"));
    let label = |rule: &Value| holds(rule, node.label(text(rule, &["key"])));
    let field = |rule: &Value| text(rule, &["key"]) == "metadata.name" && holds(rule, Some(&node.name));
    !(labels.is_empty() && fields.is_empty()) && labels.iter().all(label) && fields.iter().all(field)
}

fn holds(rule: &Value, found: Option<&str>) -> bool {
    let values = || rule["values"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = |is_so: fn(&i64, &i64) -> bool| {
        let wanted = values().next().and_then(number);
        found.and_then(number).zip(wanted).is_some_and(|(found, wanted)| is_so(&found, &wanted))
    };
    match text(rule, &["operator"]) {
        "In" => found.is_some_and(|found| values().any(|value| value == found)),
        "NotIn" => found.is_none_or(|found| values().all(|value| value != found)),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => compared(i64::gt),
        "Lt" => compared(i64::lt),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::NODE;

    fn node(value: Value) -> Node {
        let mut whole = json!({"metadata": {"name": "a", "labels": {"arch": "arm64", "size": "3"}}});
        whole["spec"] = value;
        Node::read(&Object::new(&NODE, &whole, 1).unwrap())
    }

    fn check(spec: &Value, node: &Node, runs: bool, keeps: bool) {
        assert_eq!(place(spec, node), Placed { runs, keeps }, "{spec}");
    }

    #[test]
    fn names_and_labels_choose_nodes() {
        let plain = node(json!({}));
        check(&json!({}), &plain, true, true);
        check(&json!({"nodeName": "b"}), &plain, false, false);
        check(&json!({"nodeSelector": {"arch": "arm64"}}), &plain, true, true);
        check(&json!({"nodeSelector": {"arch": "amd64"}}), &plain, false, false);
        let affinity = |terms: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
        let labels = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (term, runs) in [
            (labels("arch", "In", json!(["x", "arm64"])), true),
            (labels("arch", "NotIn", json!(["arm64"])), false),
            (labels("other", "NotIn", json!(["arm64"])), true),
            (labels("other", "Exists", json!([])), false),
            (labels("other", "DoesNotExist", json!([])), true),
            (labels("size", "Gt", json!(["2"])), true),
            (labels("size", "Lt", json!(["3"])), false),
            (labels("arch", "Gt", json!(["2"])), false),
            (labels("arch", "Near", json!(["arm64"])), false),
            (json!({}), false),
            (json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}), true),
            (json!({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["a"]}]}), false),
        ] {
            check(&affinity(json!([term.clone()])), &plain, runs, runs);
            // one term of several is enough
            check(&affinity(json!([{}, term])), &plain, runs, runs);
        }
    }

    #[test]
    fn taints_keep_pods_away_unless_tolerated() {
        let tainted = |effect: &str| node(json!({"taints": [{"key": "k", "value": "v", "effect": effect}]}));
        check(&json!({}), &tainted("NoSchedule"), false, true);
        check(&json!({}), &tainted("NoExecute"), false, false);
        check(&json!({}), &tainted("PreferNoSchedule"), true, true);
        for (toleration, tolerated) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "k", "operator": "Exists"}), true),
            (json!({"key": "k", "value": "v"}), true),
            (json!({"key": "k", "value": "w"}), false),
            (json!({"key": "k", "value": "v", "effect": "NoSchedule"}), false),
            (json!({"key": "other", "operator": "Exists"}), false),
        ] {
            check(&json!({"tolerations": [toleration]}), &tainted("NoExecute"), tolerated, tolerated);
        }
    }

    #[test]
    fn daemon_pods_stay_on_nodes_that_are_lost_or_cordoned() {
        let mut spec = json!({"tolerations": [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9}]});
        tolerate(&mut spec);
        assert_eq!(spec["tolerations"].as_array().unwrap().len(), 6, "{spec}");
        assert!(!spec.to_string().contains("tolerationSeconds"), "{spec}");
        for (key, effect) in
            OF_STATE.iter().flat_map(|key| ["NoSchedule", "NoExecute"].map(|effect| (key, effect)))
        {
            check(&spec, &node(json!({"taints": [{"key": key, "effect": effect}]})), true, true);
        }
        check(
            &spec,
            &node(json!({"taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]})),
            true,
            true,
        );
        let network = node(json!({"taints": [{"key": NETWORK_UNAVAILABLE.0, "effect": "NoSchedule"}]}));
        check(&spec, &network, false, true);
        spec["hostNetwork"] = true.into();
        tolerate(&mut spec);
        check(&spec, &network, true, true);
    }

    #[test]
    fn pinned_pod_names_its_node_alone() {
        let mut spec = json!({"affinity": {"podAffinity": {}, "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}, {}]}}}});
        pin(&mut spec, "a");
        check(&spec, &node(json!({})), true, true);
        assert_eq!(spec["affinity"]["podAffinity"], json!({}));
        let mut bare = json!({"affinity": null});
        pin(&mut bare, "b");
        check(&bare, &node(json!({})), false, false);
    }
}
