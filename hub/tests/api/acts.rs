//! The hub's messages and records about acts: audit lines of Leases and of refused attempts, substitutes for
//! paths that are not served, warnings about fields without effect, and pitfalls of revocation.

use std::time::Duration;

use kedge_rig::scratch::wait_until;
use serde_json::{Value, json};

use super::identity::signing_request;
use super::server::{Hub, Reply};
use super::{JSON, LEASES, MAPS, NODES, PODS, SETS};

/// The lines of a log about these resources, as `VERB NAME CODE`.
fn lines(hub: &Hub, file: &str, resource: &str) -> Vec<String> {
    let log = std::fs::read_to_string(hub.data_dir.join(file)).unwrap();
    let lines = log.lines().flat_map(serde_json::from_str::<Value>);
    let own = lines.filter(|line| line["objectRef"]["resource"] == resource);
    own.map(|line| {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = word(&line["objectRef"]["name"]);
        format!("{} {name} {}", word(&line["verb"]), line["responseStatus"]["code"])
    })
    .collect()
}

#[test]
fn write_of_a_lease_is_left_out_only_for_its_holder() {
    let mut hub = Hub::new();
    let (mut admin, mut node) = (hub.admin(), hub.node("edge"));
    node.post(NODES, &json!({"metadata": {"name": "edge"}})).expect(201);
    node.post(LEASES, &json!({"metadata": {"name": "edge"}, "spec": {"holderIdentity": "edge"}})).expect(201);
    let renewal =
        |second: usize| json!({"spec": {"renewTime": format!("2026-01-01T00:00:0{second}.000000Z")}});
    let own = |number: usize| format!("{LEASES}/edge?fieldManager=m{number}");
    for second in 0..3 {
        node.patch("merge", &own(0), &renewal(second)).expect(200);
    }
    // in a node's name: its node seems alive
    admin.patch("merge", &own(1), &renewal(4)).expect(200);
    admin.patch("merge", &own(2), &json!({"spec": {"holderIdentity": "other"}})).expect(200);
    admin.patch("merge", &own(3), &json!({"metadata": {"finalizers": ["a/b"]}})).expect(200);
    admin.patch("merge", &own(4), &json!({"metadata": {"labels": {"a": "b"}, "finalizers": []}})).expect(200);
    // a leader election
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let leader = format!("{leases}/leader");
    let spec = json!({"holderIdentity": "here_1", "leaseDurationSeconds": 15});
    admin.post(leases, &json!({"metadata": {"name": "leader"}, "spec": spec})).expect(201);
    for second in 0..4 {
        admin.patch("merge", &leader, &renewal(second)).expect(200);
    }
    // from elsewhere, in the leader's name
    admin.from(7).patch("merge", &leader, &renewal(5)).expect(200);
    admin
        .patch("merge", &format!("{leader}?dryRun=All"), &json!({"spec": {"holderIdentity": "x"}}))
        .expect(200);
    admin.patch("merge", &leader, &renewal(6)).expect(200);
    admin.patch("merge", &leader, &json!({"spec": {"leaseDurationSeconds": 3600}})).expect(200);
    hub.stop("TERM");
    let expect = [
        "patch edge 200",
        "patch edge 200",
        "patch edge 200",
        "patch edge 200",
        "create leader 201",
        // from elsewhere, the dry run, and another duration
        "patch leader 200",
        "patch leader 200",
        "patch leader 200",
    ];
    assert_eq!(lines(&hub, "audit.log", "leases"), expect);
    assert_eq!(lines(&hub, "audit-others.log", "leases"), Vec::<String>::new());
}

#[test]
fn every_refused_try_to_be_somebody_else_has_a_line() {
    let hub = Hub::new();
    let node = hub.node("edge");
    let acting = [JSON, ("impersonate-user", "admin"), ("impersonate-group", "system:masters")];
    for (method, path) in [
        ("POST", "/kedge/nodes/a/revoke"),
        ("POST", "/kedge/nodes/a/readmit"),
        ("GET", "/apis/metrics.k8s.io/v1beta1/nodes/a"),
        ("POST", "/apis/kedge.dev/v1/nodes/a/calls/1"),
        ("GET", "/metrics"),
        ("GET", "/kedge/nodes"),
        ("GET", MAPS),
    ] {
        assert_eq!(node.another().send(method, path, &acting, b"{}").code, 403, "{path}");
    }
    // a refusal that is not about impersonation
    assert_eq!(node.another().post("/apis/kedge.dev/v1/nodes/b/calls/1", &json!({})).code, 403);
    let own = || lines(&hub, "audit-refused.log", "nodes");
    let expect = ["revoke a 403", "readmit a 403", "get a 403", "create a 403", "create b 403"];
    wait_until("the lines", Duration::from_secs(60), || own() == expect);
    let log = std::fs::read_to_string(hub.data_dir.join("audit-refused.log")).unwrap();
    for path in ["/metrics", "/kedge/nodes", MAPS] {
        let line = log.lines().find(|line| line.contains(&format!("\"requestURI\":\"{path}\"")));
        let line: Value = serde_json::from_str(line.unwrap_or_else(|| panic!("{path}: {log}"))).unwrap();
        assert_eq!(line["impersonatedUser"]["username"], "admin", "{line}");
    }
    // two users
    let twice = [("impersonate-user", "bob"), ("impersonate-user", "admin")];
    hub.admin()
        .send("GET", MAPS, &twice, b"")
        .refused(400, "header impersonate-user: expected at most one, found 2");
}

#[test]
fn what_is_not_served_names_its_substitute() {
    let hub = Hub::new();
    let mut admin = hub.admin();
    for (path, expect) in [
        ("/apis/apps/v1/namespaces/default/deployments", "deployments.apps is not served: use a DaemonSet"),
        ("/apis/batch/v1/namespaces/default/jobs", "jobs.batch is not served: "),
        ("/api/v1/namespaces/default/resourcequotas", "resourcequotas is not served: "),
    ] {
        let status = admin.post(path, &json!({})).expect(404);
        assert!(status["message"].as_str().unwrap().starts_with(expect), "{status}");
        // kubectl shows the message of a 404 without details
        assert_eq!((&status["reason"], &status["details"]), (&json!("NotFound"), &json!({})));
    }
    let scale = admin.get(&format!("{SETS}/d/scale")).expect(404);
    assert!(scale["message"].as_str().unwrap().starts_with("daemonsets/scale is not served"), "{scale}");
    let services = "/api/v1/namespaces/default/services";
    admin.delete(&format!("{services}/web")).refused(404, "services \"web\" not found");
    admin.delete(&format!("{services}/kubernetes")).expect(403);
    assert_eq!(hub.node("edge").delete(&format!("{services}/web")).code, 403);
}

#[test]
fn signing_request_for_an_invalid_node_name_is_refused() {
    let hub = Hub::new();
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    for (number, node) in ["", "../b", "B"].into_iter().enumerate() {
        let user = format!("system:node:{node}");
        let request =
            signing_request(&format!("r{number}"), &user, "system:nodes", "kube-apiserver-client-kubelet");
        let status = hub.admin().post(requests, &request).expect(403);
        assert!(status["message"].as_str().unwrap().contains("no Node has such a name"), "{status}");
    }
    let request = signing_request("good", "system:node:b", "system:nodes", "kube-apiserver-client-kubelet");
    hub.admin().post(requests, &request).expect(201);
}

#[test]
fn revocation_of_a_name_that_nobody_has_needs_force() {
    let hub = Hub::new();
    let unknown = hub.command(&["node", "revoke", "edge-l"]);
    assert_eq!((unknown.code, unknown.out.as_str()), (Some(1), ""));
    assert!(
        unknown.err.contains("no node \"edge-l\" is known") && unknown.err.contains("--force"),
        "{}",
        unknown.err
    );
    assert_eq!(hub.admin().get("/api/v1/namespaces/kube-system/configmaps/kedge-denied").code, 404);
    let forced = hub.command(&["node", "revoke", "edge-l", "--force"]);
    assert_eq!(
        (forced.code, forced.out.as_str()),
        (Some(0), "admin revoked the credentials of node edge-l\n")
    );
    // through the API the caller decides
    hub.admin().post("/kedge/nodes/edge-7/revoke", &json!({})).expect(200);
    hub.admin().post("/kedge/nodes/edge-8/revoke", &json!({"force": false})).expect(404);
    // it has an entry now
    assert_eq!(hub.command(&["node", "revoke", "edge-l", "--reason", "typo"]).code, Some(0));
    // a node that never connected, but has credentials
    assert_eq!(hub.command(&["node-kubeconfig", "edge-9"]).code, Some(0));
    let issued = hub.command(&["node", "revoke", "edge-9", "--reason", "stolen"]);
    assert_eq!(issued.code, Some(0), "{}", issued.err);
    // credentials that could never work
    let useless = hub.command(&["node-kubeconfig", "edge-9"]);
    assert_eq!((useless.code, useless.out.as_str()), (Some(1), ""));
    for part in ["node edge-9 was revoked", "by admin (stolen)", "kedge-hub node readmit edge-9"] {
        assert!(useless.err.contains(part), "{part}: {}", useless.err);
    }
    assert_eq!(hub.command(&["node", "readmit", "edge-9"]).code, Some(0));
    assert_eq!(hub.command(&["node-kubeconfig", "edge-9"]).code, Some(0));
}

#[test]
fn what_does_nothing_is_warned_about() {
    let hub = Hub::new();
    let (mut admin, mut node) = (hub.admin(), hub.node("edge"));
    let warned = |reply: &Reply, expect: &[&str]| {
        let found = reply.header("warning");
        assert_eq!(found.len(), expect.len(), "{found:?}");
        for (found, expect) in found.iter().zip(expect) {
            assert!(found.starts_with("299 - \"") && found.contains(expect), "{found}");
        }
    };
    node.post(NODES, &json!({"metadata": {"name": "edge"}})).expect(201);
    let annotate = |key: &str| json!({"metadata": {"annotations": {key: "1"}}});
    let edge = format!("{NODES}/edge");
    warned(
        &admin.patch("merge", &edge, &annotate("kedge.dev/config-source")),
        &["set spec.configSource of the Node"],
    );
    warned(
        &admin.patch("merge", &edge, &annotate("kedge.dev/config-sorce")),
        &["nothing reads an annotation of this name"],
    );
    warned(&admin.patch("merge", &edge, &annotate("kedge.dev/forgive")), &[]);
    // a node's own reports cause no warning
    warned(&node.patch("merge", &edge, &annotate("kedge.dev/slot")), &[]);
    let ports = json!([{"containerPort": 80, "hostPort": 8080}]);
    let template = json!({"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "r.example/i", "ports": ports}]}});
    let set = json!({"metadata": {"name": "d", "annotations": {"kedge.dev/canary_selector": "canary=true"}},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}});
    let expect = ["kedge.dev/canary-selector is one", "waits for hostPort 8080", "imagePullPolicy: Always"];
    warned(&admin.post(SETS, &set), &expect);
    // by apply, and only for the changed fields
    let apply = [("content-type", "application/apply-patch+yaml")];
    let mut applied = set.clone();
    applied["apiVersion"] = "apps/v1".into();
    applied["kind"] = "DaemonSet".into();
    applied["metadata"]["annotations"]["kedge.dev/max-failures"] = "many".into();
    let reply = admin.send(
        "PATCH",
        &format!("{SETS}/d?fieldManager=m&force=true"),
        &apply,
        applied.to_string().as_bytes(),
    );
    assert_eq!(reply.code, 200);
    warned(&reply, &["annotation kedge.dev/max-failures is \\\"many\\\""]);
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
    warned(&admin.post(PODS, &pod), &[]);
}
