//! Nodes after a restore: a backup may know less of them than they do themselves.
//!
//! A restored store may assign a configuration that its node left long ago. Always holds: no node is moved to
//! an older configuration unless a person decides so. A marked node may not read the ConfigMap that its Node
//! names, and so keeps its present configuration. This holds until it has reported its assignment, and while
//! the store does not know that assignment. In the first case its report decides. In the second a person
//! does, by `kedge-hub node accept`. Versions are compared, never times. Pure. Left to others: marking the
//! Nodes at the first start, and performing the edits (`node_acts` of the hub).

use serde_json::{Value, json};

use crate::value::{at, text};

/// Annotation of a Node whose assignment waits; its value is the restore's id. Nodes may not write it.
pub const RESTORED: &str = "kedge.dev/restored";
/// Condition of a Node that reports an assignment which the store does not know.
pub const CONFLICT: &str = "AssignmentConflict";

/// UID of the ConfigMap in `status.config.assigned` of a marked Node until the node reports its own.
const UNREPORTED: &str = "00000000-0000-0000-0000-000000000000";

/// The verdict about the assignment of a restored Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// It has not reported since the restore.
    Unknown,
    /// The store knows the reported assignment, or the node reports none.
    Agrees,
    /// The store does not know the reported assignment; the reason.
    Conflict(String),
}

/// Marks a Node of a restored store; true if that changed it. A Node without a configuration source has
/// nothing to decide.
pub fn mark(node: &mut Value, id: u64) -> bool {
    let is_done = node["metadata"]["annotations"][RESTORED] == *id.to_string();
    if is_done || source(node).is_none() {
        return false;
    }
    node["metadata"]["annotations"][RESTORED] = id.to_string().into();
    // the present report is from before the backup. A node that has not seen its Node so far may write any
    // other field, as its last patch left it. Once it has, it replaces a source that it does not know
    let mut assigned = node["spec"]["configSource"]["configMap"].clone();
    assigned["uid"] = UNREPORTED.into();
    assigned["resourceVersion"] = "1".into();
    if !node["status"]["config"].is_object() {
        node["status"]["config"] = json!({});
    }
    node["status"]["config"]["assigned"] = json!({"configMap": assigned});
    true
}

/// Whether a Node waits for its report or for a person.
pub fn is_marked(node: &Value) -> bool {
    at(node, &["metadata", "annotations", RESTORED]).is_some()
}

/// Whether a person has to decide.
pub fn awaits_decision(node: &Value) -> bool {
    is_marked(node) && condition(node).is_some_and(|found| found["status"] == "True")
}

/// Why a node may not read a ConfigMap now, if so: its Node names it as configuration, and waits.
pub fn reading_complaint(node: &Value, namespace: &str, name: &str) -> Option<&'static str> {
    let source = source(node).filter(|_| is_marked(node))?;
    let is_source = text(source, &["namespace"]) == namespace && text(source, &["name"]) == name;
    is_source.then_some(
        "the hub was restored from a backup, and the assignment waits for the node's report, or for `kedge-hub node accept`",
    )
}

/// The ConfigMap that a Node says it is assigned: namespace and name.
pub fn reported(node: &Value) -> Option<(&str, &str)> {
    let assigned = at(node, &["status", "config", "assigned", "configMap"])?;
    Some((text(assigned, &["namespace"]), text(assigned, &["name"])))
}

/// Judges a marked Node. `config_map`: the one that it reports, if the store has it.
pub fn judge(node: &Value, config_map: Option<&Value>) -> Finding {
    let Some(assigned) = at(node, &["status", "config", "assigned", "configMap"]) else {
        return Finding::Agrees;
    };
    if text(assigned, &["uid"]) == UNREPORTED {
        return Finding::Unknown;
    }
    let (uid, version) = (text(assigned, &["uid"]), text(assigned, &["resourceVersion"]));
    let place = format!("{}/{}", text(assigned, &["namespace"]), text(assigned, &["name"]));
    let conflict = |why: &str| {
        Finding::Conflict(format!(
            "the node is assigned ConfigMap {place} (uid {uid}, resourceVersion {version}), and {why}: it keeps what it runs; \
             `kedge-hub node accept` gives it the assignment of the restored store"
        ))
    };
    let Some(found) = config_map else { return conflict("the restored store has no such ConfigMap") };
    if text(found, &["metadata", "uid"]) != uid {
        return conflict("the restored store has another one of that name");
    }
    match (version.parse::<u64>(), text(found, &["metadata", "resourceVersion"]).parse::<u64>()) {
        (Ok(reported), Ok(stored)) if reported <= stored => Finding::Agrees,
        _ => conflict("the restored store has an older version of it"),
    }
}

/// Writes a finding into its Node; true if that changed it.
pub fn settle(node: &mut Value, finding: &Finding, now: &str) -> bool {
    match finding {
        Finding::Unknown => false,
        Finding::Agrees => accept(node),
        Finding::Conflict(why) => {
            if condition(node).is_some_and(|found| found["status"] == "True" && found["message"] == **why) {
                return false;
            }
            remove_condition(node);
            if !node["status"]["conditions"].is_array() {
                node["status"]["conditions"] = json!([]);
            }
            if let Some(conditions) = node["status"]["conditions"].as_array_mut() {
                conditions.push(
                    json!({"type": CONFLICT, "status": "True", "reason": "AwaitingDecision", "message": why,
                    "lastHeartbeatTime": now, "lastTransitionTime": now}),
                );
            }
            true
        }
    }
}

/// Lets a node have the assignment of the store; true if it waited.
pub fn accept(node: &mut Value) -> bool {
    let annotations = node["metadata"]["annotations"].as_object_mut();
    let waited = annotations.is_some_and(|annotations| annotations.remove(RESTORED).is_some());
    if waited {
        remove_condition(node);
    }
    waited
}

fn source(node: &Value) -> Option<&Value> {
    at(node, &["spec", "configSource", "configMap"]).filter(|source| source.is_object())
}

fn condition(node: &Value) -> Option<&Value> {
    let conditions = at(node, &["status", "conditions"])?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == CONFLICT)
}

fn remove_condition(node: &mut Value) {
    if let Some(conditions) = node["status"]["conditions"].as_array_mut() {
        conditions.retain(|condition| condition["type"] != CONFLICT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(assigned: Value) -> Value {
        let mut node = json!({"metadata": {"name": "a"}, "spec": {"configSource": {"configMap": {
            "namespace": "fleet", "name": "config", "kubeletConfigKey": "kubelet"}}},
            "status": {"config": {"assigned": {"configMap": {"uid": "of the backup"}}}, "conditions": [{"type": "Ready"}]}});
        assert!(mark(&mut node, 7) && !mark(&mut node, 7));
        // neither what the backup says nor a patch that leaves the assignment alone is a report
        for error in ["", "failed to sync"] {
            node["status"]["config"]["error"] = error.into();
            assert_eq!(judge(&node, None), Finding::Unknown);
        }
        if !assigned.is_null() {
            node["status"]["config"] = assigned;
        }
        node
    }

    fn report(uid: &str, version: u64) -> Value {
        json!({"assigned": {"configMap": {"namespace": "fleet", "name": "config", "uid": uid,
            "resourceVersion": version.to_string(), "kubeletConfigKey": "kubelet"}}})
    }

    #[test]
    fn assignment_is_not_lowered_without_a_person() {
        let stored = json!({"metadata": {"uid": "u", "resourceVersion": "90"}});
        for (assigned, stored, expect) in [
            (Value::Null, Some(&stored), "waits"),
            (report("u", 90), Some(&stored), ""),
            (report("u", 9), Some(&stored), ""),
            (json!({"error": "x"}), Some(&stored), ""),
            // it runs its local configuration
            (json!({}), Some(&stored), ""),
            // another order as text
            (report("u", 100), Some(&stored), "has an older version of it"),
            (report("v", 9), Some(&stored), "another one of that name"),
            (report("u", 9), None, "has no such ConfigMap"),
        ] {
            let mut node = node(assigned.clone());
            let finding = judge(&node, stored);
            let changed = settle(&mut node, &finding, "now");
            assert!(!settle(&mut node, &finding, "later"), "a finding is written once");
            let (held, decided) =
                (reading_complaint(&node, "fleet", "config").is_some(), awaits_decision(&node));
            match expect {
                "" => assert_eq!((held, changed, decided), (false, true, false), "{assigned}"),
                "waits" => assert_eq!((held, changed, decided), (true, false, false), "{assigned}"),
                why => {
                    assert_eq!((held, changed, decided), (true, true, true), "{assigned}");
                    assert!(condition(&node).unwrap()["message"].as_str().unwrap().contains(why), "{node}");
                    assert!(accept(&mut node) && !accept(&mut node) && !awaits_decision(&node));
                    assert_eq!(reading_complaint(&node, "fleet", "config"), None);
                    assert_eq!(node["status"]["conditions"], json!([{"type": "Ready"}]));
                }
            }
        }
    }

    #[test]
    fn only_the_assigned_config_map_waits() {
        let node = node(Value::Null);
        for (namespace, name, expect) in
            [("fleet", "config", true), ("fleet", "other", false), ("default", "config", false)]
        {
            assert_eq!(reading_complaint(&node, namespace, name).is_some(), expect, "{namespace}/{name}");
        }
        for mut other in [json!({"metadata": {}}), json!({"spec": {"configSource": null}})] {
            assert!(!mark(&mut other, 7) && !is_marked(&other), "it has nothing to decide");
        }
    }
}
