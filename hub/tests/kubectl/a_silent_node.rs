//! The detection of a silent node, and how it is shown.
//!
//! Takes a minute, the shortest silence after which a real hub declares a node lost, but idles; the file's
//! name begins with `a` so that libtest starts it early.

use crate::nodes::forbidden;
use crate::programs::{contains, json, registered};
use crate::server::Hub;
use serde_json::{Value, json};

#[test]
fn silent_node_becomes_unknown_until_it_reports_again() {
    let mut hub = Hub::new();
    let Some(kubectl) = hub.find_kubectl("1.36") else { return };
    let node = registered(&hub, &kubectl, "edge-1");
    let report = |time: &str| {
        let condition = json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "m", "lastHeartbeatTime": time});
        let config =
            json!({"type": "ConfigOK", "status": "True", "reason": "all checks passed", "message": "m"});
        let mut object = json(&node.ok("get node edge-1 -o json"));
        object["status"]["conditions"] = json!([condition, config]);
        node.file("status.json", object.to_string());
        node.ok("replace --raw /api/v1/nodes/edge-1/status -f status.json");
    };
    report("2026-11-21T01:00:00Z");
    hub.restart("KILL");
    kubectl.ok("wait --for=condition=Ready=true node/edge-1 --timeout=10s");
    kubectl.ok("wait --for=condition=Ready=unknown node/edge-1 --timeout=100s");
    let object = json(&kubectl.ok("get node edge-1 -o json"));
    let condition = |sort: &str| {
        let conditions = object["status"]["conditions"].as_array().unwrap();
        conditions.iter().find(|condition| condition["type"] == sort).cloned().unwrap_or(Value::Null)
    };
    assert_eq!(condition("Ready")["reason"], "NodeStatusUnknown");
    assert_eq!(condition("Ready")["message"], "Kubelet stopped posting node status.");
    assert_eq!(condition("PIDPressure")["reason"], "NodeStatusNeverUpdated");
    assert_eq!(condition("ConfigOK")["status"], "True");
    contains(&kubectl.ok("get nodes"), &["edge-1   NotReady"]);
    let events = kubectl.ok("get events --field-selector reason=NodeNotReady");
    contains(&events, &["node/edge-1", "Node edge-1 status is now: NodeNotReady"]);
    contains(&hub.log(), &["node edge-1 is lost"]);
    let taint = &object["spec"]["taints"][0];
    assert_eq!(
        (&taint["key"], &taint["effect"]),
        (&json!("node.kubernetes.io/unreachable"), &json!("NoSchedule"))
    );
    assert!(taint["timeAdded"].is_string(), "{taint}");
    assert_eq!(
        object["spec"]["taints"][1],
        Value::Null,
        "it is the only node: it is not told to empty itself"
    );
    let back = kubectl.as_node(&hub, "edge-1");
    // a node may not remove its own taints
    for patch in [
        r#"{"spec":{"taints":null}}"#,
        r#"{"spec":{"taints":[]}}"#,
        r#"{"spec":{"taints":[{"key":"node.kubernetes.io/unreachable","effect":"PreferNoSchedule"}]}}"#,
    ] {
        let error = back.fails(&format!("patch node edge-1 --type=merge -p '{patch}'"));
        forbidden(&error, "nodes \"edge-1\"", "node \"edge-1\" is not allowed to modify taints");
    }
    // the node's clock is in 1970; liveness does not depend on it
    let mut object = json(&back.ok("get node edge-1 -o json"));
    object["status"]["conditions"] = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "m", "lastHeartbeatTime": "1970-01-01T00:00:10Z"}]);
    back.file("status.json", object.to_string());
    back.ok("replace --raw /api/v1/nodes/edge-1/status -f status.json");
    contains(&kubectl.ok("get nodes"), &["edge-1   Ready"]);
    kubectl.ok("cordon edge-1");
    let taints = "get node edge-1 -o jsonpath={.spec.taints[*].key}";
    kubectl.until(taints, |outcome| outcome.out == "node.kubernetes.io/unschedulable");
}
