//! `kedge-hub rollout`, as an operator runs it beside a hub.

use serde_json::{Value, json};

use super::server::Hub;
use super::{JSON, NODES, PODS, SETS};

#[test]
fn rollout_shows_each_node_and_ends_with_the_update() {
    let hub = Hub::new();
    let mut admin = hub.admin();
    let none = hub.command(&["rollout", "agent"]);
    assert_eq!(none.code, Some(1));
    assert!(none.err.contains("404 daemonsets.apps \"agent\" not found"), "{}", none.err);
    admin.post(NODES, &json!({"metadata": {"name": "edge-1"}})).expect(201);
    let set = json!({"metadata": {"name": "agent", "annotations": {"kedge.dev/complete-after": "3s"}}, "spec": {"selector": {"matchLabels": {"app": "agent"}},
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
    assert!(watched.out.contains("is soaking; 1 of 1 nodes updated, 1 available\n"), "{}", watched.out);
    assert!(
        watched.out.contains("is complete; 1 of 1 nodes updated, 1 available\nNODE     REVISION   STATE"),
        "{}",
        watched.out
    );
    assert!(watched.out.ends_with("edge-1   1          runs    -\n"), "{}", watched.out);
    // an update that crashes: stopped, as the command and the set report
    let change = json!({"metadata": {"annotations": {"kedge.dev/max-failures": "0"}},
        "spec": {"template": {"spec": {"containers": [{"name": "main", "image": "i:2"}]}}}});
    admin.patch("merge", &format!("{SETS}/agent"), &change).expect(200);
    let mut pods = admin.another().watch(&format!("{PODS}?watch=true"));
    let ending = std::iter::from_fn(|| pods.next())
        .any(|event| event["object"]["metadata"]["deletionTimestamp"].is_string());
    assert!(ending);
    let now = json!({"gracePeriodSeconds": 0}).to_string();
    admin.send("DELETE", &format!("{PODS}/{pod}"), &[JSON], now.as_bytes());
    let made = std::iter::from_fn(|| pods.next())
        .find(|event| event["type"] == "ADDED" && event["object"]["spec"]["containers"][0]["image"] == "i:2")
        .unwrap();
    let made = made["object"]["metadata"]["name"].as_str().unwrap();
    let crashes = json!({"status": {"phase": "Running", "containerStatuses": [{"name": "main", "ready": false, "restartCount": 1,
        "image": "i:2", "imageID": "x", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}}]}});
    admin.patch("merge", &format!("{PODS}/{made}/status"), &crashes).expect(200);
    let watched = hub.command(&["rollout", "agent", "--watch"]);
    assert_eq!(watched.code, Some(1), "{}", watched.out);
    assert!(watched.err.contains("1 node failed, more than 0: edge-1 (crash loop)"), "{}", watched.err);
    let line = "edge-1   2          failed   container main: CrashLoopBackOff: back-off 10s";
    assert!(watched.out.contains(line), "{}", watched.out);
    let found = admin.get(&format!("{SETS}/agent")).expect(200);
    let condition = &found["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!("RolloutStopped"), &json!("True")),
        "{found}"
    );
    assert_eq!(hub.node("edge-1").get("/kedge/rollouts/default/agent").code, 403, "for administrators");
}
