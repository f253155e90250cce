//! `kedge-hub rollout`, as an operator runs it beside a hub.

use serde_json::{Value, json};

use super::server::Hub;
use super::{NODES, PODS, SETS};

#[test]
fn rollout_shows_each_node_and_ends_with_the_update() {
    let hub = Hub::new();
    let mut admin = hub.admin();
    let none = hub.command(&["rollout", "agent"]);
    assert_eq!(none.code, Some(1));
    assert!(none.err.contains("404 daemonsets.apps \"agent\" not found"), "{}", none.err);
    admin.post(NODES, &json!({"metadata": {"name": "edge-1"}})).expect(201);
    let set = json!({"metadata": {"name": "agent"}, "spec": {"selector": {"matchLabels": {"app": "agent"}},
        "template": {"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": [{"name": "main", "image": "i:1"}]}}}});
    admin.post(SETS, &set).expect(201);
    let pod = admin.another().watch(&format!("{PODS}?watch=true")).event();
    let pod = pod.strip_prefix("ADDED ").unwrap();
    let shown = hub.command(&["rollout", "agent", "--output", "json"]);
    let shown: Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!(shown["nodes"][0]["state"], "starts", "{shown}");
    let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    admin.patch("merge", &format!("{PODS}/{pod}/status"), &ready).expect(200);
    let watched = hub.command(&["rollout", "agent", "--watch"]);
    assert_eq!(watched.code, Some(0), "{}", watched.err);
    assert!(
        watched.out.contains("is complete; 1 of 1 nodes updated, 1 available\nNODE     REVISION   STATE"),
        "{}",
        watched.out
    );
    assert!(watched.out.ends_with("edge-1   1          runs    -\n"), "{}", watched.out);
    assert_eq!(hub.node("edge-1").get("/kedge/rollouts/default/agent").code, 403, "for administrators");
}
