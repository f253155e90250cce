//! Identities as clients see them: what a credential proves, and for how long.

use serde_json::{Value, json};

use super::server::Hub;
use super::{JSON, MAPS, NODES};

const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

#[test]
fn caller_sees_its_own_identity() {
    let hub = Hub::new();
    let mut node = hub.node("edge-1");
    let user = &node.post(WHO_AM_I, &json!({})).expect(201)["status"]["userInfo"];
    assert_eq!(user["username"], "system:node:edge-1");
    assert_eq!(user["groups"], json!(["system:nodes", "system:authenticated"]));
    let id = user["extra"]["authentication.kubernetes.io/credential-id"][0].as_str().unwrap();
    assert!(id.starts_with("X509SHA256="), "{id}");
}

#[test]
fn administrator_impersonates_all_parts_of_a_user() {
    let hub = Hub::new();
    let mut admin = hub.admin();
    let headers = [
        JSON,
        ("impersonate-user", "jane"),
        ("impersonate-group", "people"),
        ("impersonate-uid", "7"),
        ("impersonate-extra-example.com%2Fscopes", "a"),
    ];
    let review = admin.send("POST", WHO_AM_I, &headers, b"{}").expect(201);
    let expect = json!({"username": "jane", "groups": ["people", "system:authenticated"], "uid": "7",
        "extra": {"example.com/scopes": ["a"]}});
    assert_eq!(review["status"]["userInfo"], expect);
    assert_eq!(admin.send("GET", MAPS, &headers, b"").code, 403);
    let refused = admin.send("GET", MAPS, &[("impersonate-uid", "7")], b"").expect(400);
    assert_eq!(refused["message"], "requested impersonation without impersonating a user name");
}

/// A mirror pod of node `edge-1`, whose Node has this uid.
fn mirror(uid: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = json!({
        "metadata": {"name": "m", "annotations": {"kubernetes.io/config.mirror": "x"}, "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "edge-1", "uid": uid, "controller": true}]},
        "spec": {"nodeName": "edge-1", "containers": [{"name": "c", "image": "i"}]}});
    change(&mut pod);
    pod
}

#[test]
fn mirror_pod_opens_no_secret_and_holds_nobody_up() {
    let hub = Hub::new();
    let (mut admin, mut node) = (hub.admin(), hub.node("edge-1"));
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    let pods = "/api/v1/namespaces/kube-system/pods";
    admin.post(secrets, &json!({"metadata": {"name": "crown"}, "stringData": {"a": "b"}})).expect(201);
    let made = node.post(NODES, &json!({"metadata": {"name": "edge-1"}})).expect(201);
    let other = admin.post(NODES, &json!({"metadata": {"name": "edge-2"}})).expect(201);
    let uid = made["metadata"]["uid"].as_str().unwrap();
    for volume in [
        json!({"projected": {"sources": [{"secret": {"name": "crown"}}]}}),
        json!({"secret": {"secretName": "crown"}}),
        json!({"csi": {"driver": "x", "nodePublishSecretRef": {"name": "crown"}}}),
        json!({"azureFile": {"secretName": "crown", "shareName": "s"}}),
    ] {
        let mut volume = volume;
        volume["name"] = "v".into();
        let refused =
            node.post(pods, &mirror(uid, |pod| pod["spec"]["volumes"] = json!([volume]))).expect(403);
        let message = refused["message"].as_str().unwrap();
        assert!(message.ends_with("node \"edge-1\" can not create pods that reference secrets"), "{message}");
        assert_eq!(node.get(&format!("{secrets}/crown")).code, 403);
    }
    let token = json!([{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]);
    assert_eq!(node.post(pods, &mirror(uid, |pod| pod["spec"]["volumes"] = token)).code, 403);
    let stuck = mirror(uid, |pod| pod["metadata"]["finalizers"] = json!(["example.com/never"]));
    assert_eq!(node.post(pods, &stuck).code, 403);
    let foreign = other["metadata"]["uid"].as_str().unwrap();
    let blames = mirror(foreign, |_| {});
    assert_eq!(node.post(pods, &blames).code, 403);
    // an honest one has no account, and its node deletes it
    let own = node.post(pods, &mirror(uid, |_| {})).expect(201);
    assert_eq!(own["spec"].get("serviceAccountName"), None);
    assert_eq!(node.get("/api/v1/namespaces/kube-system/serviceaccounts/default").code, 403);
    // the deletion of the other Node waits for nothing of this one
    admin.delete(&format!("{NODES}/edge-2?propagationPolicy=Foreground")).expect(200);
    let gone = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(25));
        admin.get(&format!("{NODES}/edge-2")).code == 404
    });
    assert!(gone, "edge-2 is still there");
}

#[test]
fn node_annotates_only_its_own_reports() {
    let hub = Hub::new();
    let (mut admin, mut node) = (hub.admin(), hub.node("edge-1"));
    node.post(NODES, &json!({"metadata": {"name": "edge-1"}})).expect(201);
    let path = format!("{NODES}/edge-1");
    let annotate = |key: &str| json!({"metadata": {"annotations": {key: "x"}}});
    let applied = "kubectl.kubernetes.io/last-applied-configuration";
    admin.patch("merge", &path, &annotate(applied)).expect(200);
    for place in [path.clone(), format!("{path}/status")] {
        node.patch("merge", &place, &annotate("kedge.dev/config-status")).expect(200);
        node.patch("merge", &place, &annotate("disk.node.kedge.dev/wear")).expect(200);
        for refused in ["admin/x", "kedge.dev/config-source"] {
            assert_eq!(node.patch("merge", &place, &annotate(refused)).code, 403, "{place} {refused}");
        }
        let removed = json!({"metadata": {"annotations": {applied: null}}});
        assert_eq!(node.patch("merge", &place, &removed).code, 403, "{place}");
    }
    let taints =
        json!({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}, "status": {"phase": "Running"}});
    let refused = node.patch("merge", &format!("{path}/status"), &taints).expect(403);
    let expect = "nodes \"edge-1\" is forbidden: node \"edge-1\" is not allowed to modify taints";
    assert_eq!(refused["message"], expect);
}
