//! `metrics.k8s.io`: nodes are queried when a client asks, and those that cannot answer are listed in
//! warnings.

use serde_json::{Value, json};

use super::calls::{asks, called, own_watch, taken, with_pod};
use super::server::{Client, Hub};
use super::{LEASES, NODES, PODS};

const METRICS: &str = "/apis/metrics.k8s.io/v1beta1";

/// A node that has renewed once, and that has no watch.
fn renewed(hub: &Hub, name: &str) -> Client {
    let mut node = hub.node(name);
    node.post(NODES, &json!({"metadata": {"name": name, "labels": {"fleet": "b"}}})).expect(201);
    let spec = json!({"holderIdentity": name, "leaseDurationSeconds": 4, "renewTime": "2026-11-23T00:00:00.000000Z"});
    node.post(LEASES, &json!({"metadata": {"name": name}, "spec": spec})).expect(201);
    node
}

/// Takes the node's next call, and answers it.
fn answer(node: &Client, watch: &mut super::server::Watch, summary: &Value) -> String {
    let mut session = taken(node, &called(watch));
    let body = summary.to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    session.write_raw((head + &body).as_bytes()).unwrap();
    session.read_to_end()
}

fn summary() -> Value {
    let usage = |cores: u64, bytes: u64| json!({"usageNanoCores": cores, "workingSetBytes": bytes});
    let one = |name: &str, usage: Value| json!({"name": name, "cpu": usage, "memory": usage});
    let pod = |name: &str, containers: Value| json!({"podRef": {"name": name, "namespace": "default"}, "containers": containers});
    json!({"node": one("", usage(250_000_000, 1 << 30)),
        "pods": [pod("p", json!([one("a", usage(1_500_000, 3 << 20))])), pod("foreign", json!([one("a", usage(1, 1))]))]})
}

#[test]
fn nodes_are_asked_once_and_those_without_usage_are_named() {
    let hub = Hub::new();
    let node = with_pod(&hub);
    let mut admin = hub.admin();
    let running = json!({"status": {"phase": "Running"}});
    admin.patch("merge", &format!("{PODS}/p/status"), &running).expect(200);
    admin.patch("merge", &format!("{PODS}/p"), &json!({"metadata": {"labels": {"app": "web"}}})).expect(200);
    // a pod of this name belongs to another node
    let spec = json!({"nodeName": "edge-2", "containers": [{"name": "a", "image": "i"}]});
    admin.post(PODS, &json!({"metadata": {"name": "foreign"}, "spec": spec})).expect(201);
    admin.patch("merge", &format!("{PODS}/foreign/status"), &running).expect(200);
    renewed(&hub, "edge-2");
    admin.post(NODES, &json!({"metadata": {"name": "edge-3"}})).expect(201);
    let mut watch = own_watch(&node);

    let asked = asks(&admin, &format!("{METRICS}/nodes"));
    let request = answer(&node, &mut watch, &summary());
    assert!(request.starts_with("GET /stats/summary?only_cpu_and_memory=true HTTP/1.1\r\n"), "{request}");
    let reply = asked.join().unwrap();
    let warnings = reply.header("warning").join("\n");
    let expect = "299 - \"no usage of 1 node (the hub does not hear from it): edge-3\"\n\
                  299 - \"no usage of 1 node (without watches it hears of a call with its next renewal only): edge-2\"";
    assert_eq!(warnings, expect);
    let list = reply.expect(200);
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&json!("NodeMetricsList"), &json!("metrics.k8s.io/v1beta1"))
    );
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    let found = &list["items"][0];
    assert_eq!((&found["metadata"]["name"], &found["window"]), (&json!("edge-1"), &json!("1s")));
    assert_eq!(found["usage"], json!({"cpu": "250000000n", "memory": "1048576Ki"}));

    // known figures are not requested again: no node would answer here
    let mut get = |path: &str| admin.get(&format!("{METRICS}{path}"));
    let one = get("/nodes/edge-1").expect(200);
    assert_eq!((&one["kind"], &one["usage"]), (&json!("NodeMetrics"), &found["usage"]));
    let pods = get("/namespaces/default/pods?labelSelector=app%3Dweb").expect(200);
    let containers = json!([{"name": "a", "usage": {"cpu": "1500000n", "memory": "3072Ki"}}]);
    let found = &pods["items"][0];
    assert_eq!((&pods["kind"], &found["containers"]), (&json!("PodMetricsList"), &containers));
    assert_eq!(found["metadata"]["labels"], json!({"app": "web"}));
    let reply = get("/pods");
    assert!(reply.header("warning").join("").ends_with(": edge-2\""), "{}", reply.head());
    assert_eq!(reply.expect(200)["items"].as_array().map(Vec::len), Some(1), "its own pods alone");
    assert_eq!(get("/namespaces/default/pods/p").expect(200)["containers"], containers);
    assert_eq!(get("/nodes?labelSelector=fleet%3Db").expect(200)["items"], json!([]));
    assert_eq!(get("/nodes?fieldSelector=metadata.name%3Dedge-1").header("warning").len(), 0);
    let why = "no usage of nodes \"edge-2\": without watches it hears of a call with its next renewal only";
    get("/nodes/edge-2").refused(503, why);
    get("/nodes/edge-9").refused(404, "nodes.metrics.k8s.io \"edge-9\" not found");
    get("/namespaces/default/pods/q").refused(404, "pods.metrics.k8s.io \"default/q\" not found");
    assert_eq!(get("/nodes?watch=true").code, 405);
    assert_eq!(admin.delete(&format!("{METRICS}/nodes/edge-1")).code, 405);
    assert_eq!(node.another().get(&format!("{METRICS}/nodes/edge-1")).code, 403);
    assert_eq!(hub.anonymous().get(&format!("{METRICS}/nodes")).code, 401);
}

#[test]
fn each_request_for_usage_is_in_the_audit_log() {
    let mut hub = Hub::new();
    hub.admin().get(&format!("{METRICS}/nodes?limit=5")).expect(200);
    hub.admin().get(&format!("{METRICS}/namespaces/default/pods/p")).expect(404);
    hub.node("edge-1").get(&format!("{METRICS}/nodes")).expect(403);
    hub.stop("TERM");
    let shown = |file: &str| -> Vec<Value> {
        let text = std::fs::read_to_string(hub.data_dir.join(file)).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let of_usage = lines.filter(|line| line["objectRef"]["apiGroup"] == "metrics.k8s.io");
        let short = |line: Value| {
            let object = &line["objectRef"];
            json!([line["verb"], object["resource"], object["name"], line["responseStatus"]["code"]])
        };
        of_usage.map(short).collect()
    };
    let reads = [json!(["list", "nodes", null, 200]), json!(["get", "pods", "p", 404])];
    assert_eq!(shown("audit-reads.log"), reads);
    assert_eq!(shown("audit-refused.log"), [json!(["list", "nodes", null, 403])]);
}

#[test]
fn slow_node_holds_up_nobody_and_its_late_answer_counts() {
    let hub = Hub::new();
    let node = with_pod(&hub);
    let mut watch = own_watch(&node);
    let asked = asks(&hub.admin(), &format!("{METRICS}/nodes"));
    let mut session = taken(&node, &called(&mut watch));
    let reply = asked.join().unwrap();
    assert!(reply.header("warning").join("").contains("(no answer in time): edge-1"), "{}", reply.head());
    assert_eq!(reply.expect(200)["items"], json!([]));
    let body = summary().to_string();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    session.write_raw((head + &body).as_bytes()).unwrap();
    session.read_to_end();
    // part of the same call
    let list = hub.admin().get(&format!("{METRICS}/nodes")).expect(200);
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
}

#[test]
fn answer_of_a_node_that_makes_no_sense_is_reported() {
    let hub = Hub::new();
    let node = with_pod(&hub);
    let mut watch = own_watch(&node);
    let asked = asks(&hub.admin(), &format!("{METRICS}/nodes/edge-1"));
    answer(&node, &mut watch, &json!({"node": {}}));
    asked.join().unwrap().refused(503, "no usage of nodes \"edge-1\": its answer has no usage of the node");
    let large = "x".repeat(600 * 1024);
    let asked =
        asks(&hub.admin(), &format!("{NODES}/edge-1/proxy/logs/a%20b/c.log?query=x&pretty=1&tailLines=3"));
    let request = answer(&node, &mut watch, &json!(large));
    assert!(request.starts_with("GET /logs/a%20b/c.log?query=x&tailLines=3 HTTP/1.1\r\n"), "{request}");
    assert_eq!(asked.join().unwrap().body.len(), large.len() + 2);
}
