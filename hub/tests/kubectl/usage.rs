//! `kubectl top`, with a node that answers once: the hub caches its answer.

use std::thread;

use serde_json::json;

use crate::programs::{NODES, contains, with_every_kubectl};
use crate::server::{Client, Hub};

const UPGRADE: [(&str, &str); 2] = [("connection", "Upgrade"), ("upgrade", "kedge-session")];

/// A node with a running pod of two containers.
fn node(hub: &Hub) -> Client {
    let mut node = hub.node("edge-1");
    node.post(NODES, &json!({"metadata": {"name": "edge-1"}})).expect(201);
    let room = json!({"cpu": "4", "memory": "4Gi"});
    let status = json!({"status": {"allocatable": room, "capacity": room}});
    node.patch("merge", &format!("{NODES}/edge-1/status"), &status).expect(200);
    let spec = json!({"holderIdentity": "edge-1", "leaseDurationSeconds": 40, "renewTime": "2026-11-23T00:00:00.000000Z"});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    node.post(leases, &json!({"metadata": {"name": "edge-1"}, "spec": spec})).expect(201);
    let pods = "/api/v1/namespaces/default/pods";
    let containers = ["app", "side"].map(|name| json!({"name": name, "image": "i"}));
    let pod = json!({"metadata": {"name": "web", "labels": {"app": "web"}}, "spec": {"nodeName": "edge-1", "containers": containers}});
    let mut admin = hub.admin();
    admin.post(pods, &pod).expect(201);
    admin.patch("merge", &format!("{pods}/web/status"), &json!({"status": {"phase": "Running"}})).expect(200);
    node
}

/// Waits for a call, and answers it.
fn answer(node: &Client, mut watch: crate::server::Watch) {
    let usage =
        |cores: u64, mebibytes: u64| json!({"usageNanoCores": cores, "workingSetBytes": mebibytes << 20});
    let one = |name: &str, usage: serde_json::Value| json!({"name": name, "cpu": usage, "memory": usage});
    let containers = [one("app", usage(25_000_000, 30)), one("side", usage(5_000_000, 10))];
    let pods = json!([{"podRef": {"namespace": "default", "name": "web"}, "containers": containers}]);
    let body = json!({"node": one("", usage(250_000_000, 1024)), "pods": pods}).to_string();
    let id = loop {
        let event = watch.next().unwrap();
        if let Some(id) = event["object"]["metadata"]["annotations"]["kedge.dev/calls"].as_str() {
            break id.to_owned();
        }
    };
    let mut session = node.another();
    let path = format!("/apis/kedge.dev/v1/nodes/edge-1/calls/{id}");
    assert_eq!(session.send("POST", &path, &UPGRADE, b"").code, 101);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    session.write_raw((head + &body).as_bytes()).unwrap();
    session.read_to_end();
}

#[test]
fn top_shows_nodes_and_pods() {
    with_every_kubectl(|hub, kubectl| {
        let node = node(hub);
        let own = format!("{NODES}?watch=true&allowWatchBookmarks=true&fieldSelector=metadata.name%3Dedge-1");
        let watch = node.another().watch(&own);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        thread::scope(|scope| {
            scope.spawn(|| answer(&node, watch));
            let nodes = kubectl.ok("top nodes");
            assert_eq!(words(nodes.lines().last().unwrap()), "edge-1 250m 6% 1024Mi 25%");
        });
        contains(&words(&kubectl.ok("top pods")), &["web 30m 40Mi"]);
        let containers = words(&kubectl.ok("top pods -l app=web --containers --all-namespaces"));
        contains(&containers, &["default web app 25m 30Mi", "default web side 5m 10Mi"]);
        contains(&words(&kubectl.ok("top pod web")), &["web 30m 40Mi"]);
        contains(&words(&kubectl.ok("get nodes.metrics.k8s.io")), &["edge-1 250000000n 1048576Ki 1s"]);
        contains(&kubectl.ok("api-resources --api-group=metrics.k8s.io"), &["NodeMetrics", "PodMetrics"]);
    });
}
