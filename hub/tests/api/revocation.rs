//! Revoking a node, from the view of its owner, the node itself, and a thief of its credentials.

use kedge_hub_core::kinds::schema::base64_encode;
use kedge_rig::Random;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

use super::server::{Client, Hub, Outcome, scratch};
use super::{LEASES, MAPS, NODES};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

#[track_caller]
fn ok(outcome: &Outcome) -> &str {
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    &outcome.out
}

/// The entry of a node in `node list`.
fn listed(hub: &Hub, name: &str) -> Value {
    let outcome = hub.command(&["node", "list", "--output", "json"]);
    let list: Value = serde_json::from_str(ok(&outcome)).unwrap();
    let nodes = list["nodes"].as_array().unwrap();
    nodes.iter().find(|node| node["name"] == name).cloned().unwrap_or_default()
}

/// Runs a command that needs no hub.
fn command(arguments: &[&str]) -> Outcome {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kedge-hub"));
    command.args(arguments);
    super::server::run(command, "")
}

fn register(node: &mut Client, name: &str) {
    node.post(NODES, &json!({"metadata": {"name": name}})).expect(201);
}

#[test]
fn revoked_node_is_refused_everywhere_at_once() {
    let hub = Hub::new();
    let (mut admin, mut node, mut other) = (hub.admin(), hub.node("edge-1"), hub.node("edge-2"));
    let mut unused = hub.node("edge-1");
    register(&mut node, "edge-1");
    register(&mut other, "edge-2");
    let own = format!("{NODES}?watch=true&fieldSelector=metadata.name%3Dedge-1");
    let mut watch = node.another().watch(&own);
    assert_eq!(watch.event(), "ADDED edge-1");
    let mut idle = node.another();
    idle.get(&format!("{NODES}/edge-1")).expect(200);

    let said = hub.command(&["node", "revoke", "edge-1", "--reason", "stolen from the lift"]);
    assert_eq!(ok(&said), "admin revoked the credentials of node edge-1: stolen from the lift\n");
    // open connections end (after last events perhaps), and new requests are refused
    while watch.next().is_some() {}
    let standing = idle.try_on_the_same("GET", "/api");
    assert!(standing.is_err() || standing.is_ok_and(|reply| reply.code == 401));
    assert_eq!(node.another().get(&format!("{NODES}/edge-1")).code, 401);
    assert_eq!(node.another().post(NODES, &json!({"metadata": {"name": "edge-1"}})).code, 401);
    assert_eq!(node.another().get("/readyz").code, 401, "a credential that is not valid proves nothing");
    assert_eq!(unused.get("/api").code, 401, "also ones that were not used before");
    assert_eq!(hub.command(&["node-kubeconfig", "edge-1"]).code, Some(1), "nor are any made");
    other.get(&format!("{NODES}/edge-2")).expect(200);
    // the hub signs no certificate of that name
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, "system:node:edge-1");
    let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    let asked = json!({"metadata": {"name": "r"}, "spec": {"request": base64_encode(pem.as_bytes()),
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["client auth", "digital signature"]}});
    admin.post(REQUESTS, &asked).expect(201);
    let approval = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "x"}]}});
    admin.patch("merge", &format!("{REQUESTS}/r/approval"), &approval).expect(200);
    let mut answers =
        admin.another().watch(&format!("{REQUESTS}?watch=true&fieldSelector=metadata.name%3Dr"));
    let answered = std::iter::from_fn(|| answers.next())
        .map(|event| event["object"]["status"].clone())
        .find(|status| status["conditions"].as_array().is_some_and(|list| list.len() == 2));
    let status = answered.expect("it fails");
    assert_eq!(status["conditions"][1]["type"], "Failed", "{status}");
    assert_eq!(status.get("certificate"), None);
    // the Node stays, and shows the reason
    let object = admin.get(&format!("{NODES}/edge-1")).expect(200);
    let why = object["metadata"]["annotations"]["kedge.dev/revoked"].as_str().unwrap();
    assert!(why.ends_with("admin revoked the credentials of node edge-1: stolen from the lift"), "{why}");
    let events = admin.get("/api/v1/namespaces/default/events").expect(200);
    let events = events["items"].as_array().unwrap();
    assert!(
        events
            .iter()
            .any(|event| event["reason"] == "NodeRevoked" && event["involvedObject"]["name"] == "edge-1")
    );
    let shown = listed(&hub, "edge-1");
    assert_eq!(
        (&shown["state"], &shown["access"]["reason"]),
        (&json!("Revoked"), &json!("stolen from the lift"))
    );
    assert_ne!(listed(&hub, "edge-2")["state"], "Revoked");
    assert!(hub.log().contains("refused a request of \"system:node:edge-1\""), "{}", hub.log());
}

/// Begins a request; returns the rest of it. The hub has then judged the head, because it asks for the body.
fn begin(client: &mut Client, method: &str, path: &str, fields: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string().into_bytes();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: h\r\n{fields}content-length: {length}\r\nexpect: 100-continue\r\n\r\n"
    );
    client.write_raw(head.as_bytes()).unwrap();
    assert_eq!(client.read_reply().unwrap().code, 100, "{method} {path}");
    client.write_raw(&body[..length / 2]).unwrap();
    body[length / 2..].to_vec()
}

#[test]
fn request_begun_before_its_revocation_changes_nothing() {
    let mut hub = Hub::new();
    let (mut admin, mut node, mut lost) = (hub.admin(), hub.node("edge-1"), hub.admin());
    let kubeconfig = hub.command(&["node-kubeconfig", "edge-1"]).out;
    register(&mut node, "edge-1");
    let (lease, object) = (format!("{LEASES}/edge-1"), format!("{NODES}/edge-1"));
    node.post(LEASES, &json!({"metadata": {"name": "edge-1"}})).expect(201);
    let id = lost.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &json!({})).expect(201);
    let id = id["status"]["userInfo"]["extra"]["authentication.kubernetes.io/credential-id"][0].clone();
    let key = id.as_str().unwrap().replace("X509SHA256=", "certificate.");
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    admin.post(accounts, &json!({"metadata": {"name": "a"}})).expect(201);
    let granted = admin.post(&format!("{accounts}/a/token"), &json!({"spec": {}})).expect(201);
    let token = granted["status"]["token"].as_str().unwrap();
    let json = "content-type: application/json\r\n";
    let merge = "content-type: application/merge-patch+json\r\n";
    let bearer = format!("{json}authorization: Bearer {token}\r\n");
    let renewal = json!({"spec": {"renewTime": "2030-01-01T00:00:00.000000Z"}});
    let report = json!({"metadata": {"annotations": {"kedge.dev/slot": "b"}}});
    let map = json!({"metadata": {"name": "late"}, "data": {"a": "x".repeat(9000)}});
    let same = json!({"sameCredentials": true});
    let (empty, asked) = (json!({}), json!({"spec": {}}));
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let (readmit, tokens) = ("/kedge/nodes/edge-1/readmit", format!("{accounts}/default/token"));
    let mut begun = Vec::new();
    for (mut client, method, path, fields, body) in [
        // a renewal is handled in a way of its own
        (node.another(), "PATCH", lease.as_str(), merge, &renewal),
        (node.another(), "PATCH", object.as_str(), merge, &report),
        (node.another(), "POST", reviews, json, &empty),
        (hub.anonymous(), "POST", reviews, bearer.as_str(), &empty),
        (lost.another(), "POST", super::MAPS, json, &map),
        // it would undo the revocation
        (lost.another(), "POST", readmit, json, &same),
        (lost.another(), "POST", tokens.as_str(), json, &asked),
    ] {
        let rest = begin(&mut client, method, path, fields, body);
        begun.push((client, rest, format!("{method} {path}")));
    }
    admin.delete(&format!("{accounts}/a")).expect(200);
    let denied = json!({"metadata": {"name": "kedge-denied"}, "data": {"node.edge-1": "", key: ""}});
    admin.post("/api/v1/namespaces/kube-system/configmaps", &denied).expect(201);
    for (mut client, rest, what) in begun {
        client.write_raw(&rest).unwrap();
        assert_eq!(client.read_reply().unwrap().code, 401, "{what}");
    }
    assert_eq!(admin.another().get("/api").code, 401, "the administrator is denied");
    // with another certificate
    std::fs::remove_file(hub.data_dir.join("pki/admin.pem")).unwrap();
    hub.restart("TERM");
    let mut admin = hub.admin();
    assert_eq!(admin.get(&lease).expect(200)["spec"].get("renewTime"), None);
    assert_eq!(admin.get(&object).expect(200)["metadata"]["annotations"].get("kedge.dev/slot"), None);
    assert_eq!(admin.get(&format!("{}/late", super::MAPS)).code, 404);
    assert_eq!(Client::new(&kubeconfig, &hub.url).get("/api").code, 401, "still revoked");
    // a request refused before any handler is counted, by the name in its credential
    hub.stop("TERM");
    let log = std::fs::read_to_string(hub.data_dir.join("audit-refused.log")).unwrap();
    let mut lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert!(lines.any(|line| line["user"]["username"] == "admin" && line["verb"] == "count"), "{log}");
}

#[test]
fn readmitted_node_needs_new_credentials() {
    let hub = Hub::new();
    let mut old = hub.node("edge-1");
    register(&mut old, "edge-1");
    ok(&hub.command(&["node", "revoke", "edge-1"]));
    ok(&hub.command(&["node", "readmit", "edge-1"]));
    assert_eq!(old.another().get(&format!("{NODES}/edge-1")).code, 401, "the thief's");
    let mut new = hub.node("edge-1");
    let object = new.get(&format!("{NODES}/edge-1")).expect(200);
    assert_eq!(object["metadata"]["annotations"].get("kedge.dev/revoked"), None);
    // it is noted beside the answer
    while listed(&hub, "edge-1")["certificateExpires"].as_str().is_none_or(|date| !date.starts_with("20")) {
        std::thread::yield_now();
    }
    // revoked by mistake: no thief has its credentials
    ok(&hub.command(&["node", "revoke", "edge-1"]));
    ok(&hub.command(&["node", "readmit", "edge-1", "--same-credentials"]));
    old.another().get(&format!("{NODES}/edge-1")).expect(200);
    let unknown = hub.command(&["node", "readmit", "edge-2"]);
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.err.contains("404 node \"edge-2\" is not revoked"), "{}", unknown.err);
}

#[test]
fn revocation_survives_restart_backup_and_restore() {
    let data = scratch();
    let first = data.path().join("first");
    let hub = Hub::start(&first);
    let kubeconfig = hub.command(&["node-kubeconfig", "edge-1"]).out;
    ok(&hub.command(&["node", "revoke", "edge-1"]));
    let code = |hub: &Hub| Client::new(&kubeconfig, &hub.url).get("/api").code;
    hub.kill();
    let hub = Hub::start(&first);
    assert_eq!(code(&hub), 401, "after a crash");
    let file = data.path().join("backup");
    ok(&hub.command(&["backup", file.to_str().unwrap()]));
    hub.terminate();
    let second = data.path().join("second");
    let hub = Hub::start(&first);
    ok(&hub.command(&["node", "readmit", "edge-1", "--same-credentials"]));
    assert_eq!(code(&hub), 200, "the test sees a node that is not revoked");
    hub.terminate();
    std::fs::create_dir(&second).unwrap();
    let program = std::process::Command::new(env!("CARGO_BIN_EXE_kedge-hub"))
        .args(["restore", file.to_str().unwrap(), "--data-dir", second.to_str().unwrap()])
        .status();
    assert!(program.unwrap().success());
    let hub = Hub::start(&second);
    assert_eq!(code(&hub), 401, "after a restore");
    assert_eq!(listed(&hub, "edge-1")["state"], "Revoked");
}

#[test]
fn revoking_is_for_administrators_and_leaves_a_trail() {
    let mut hub = Hub::new();
    let (mut admin, mut node) = (hub.admin(), hub.node("edge-1"));
    register(&mut node, "edge-1");
    for path in ["/kedge/nodes/edge-2/revoke", "/kedge/nodes/edge-1/readmit"] {
        assert_eq!(node.post(path, &json!({})).code, 403, "{path}");
        assert_eq!(hub.anonymous().post(path, &json!({})).code, 401, "{path}");
        assert_eq!(admin.get(path).code, 405, "{path}");
    }
    assert_eq!(node.get("/kedge/nodes").code, 403);
    assert_eq!(node.get("/api/v1/namespaces/kube-system/configmaps/kedge-denied").code, 403);
    assert_eq!(admin.post("/kedge/nodes/Edge/revoke", &json!({})).code, 400);
    // a renewal counts as contact
    node.put(&format!("{LEASES}/edge-1"), &json!({"metadata": {"name": "edge-1"}})).expect(201);
    assert!(listed(&hub, "edge-1")["lastContact"].is_string());
    ok(&hub.command(&["node", "revoke", "edge-1"]));
    hub.stop("TERM");
    let log = std::fs::read_to_string(hub.data_dir.join("audit.log")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let has = |user: &str, verb: &str, subresource: Option<&str>| {
        lines.iter().any(|line| {
            line["user"]["username"] == user
                && line["verb"] == verb
                && line["objectRef"]["name"] == "edge-1"
                && line["objectRef"]["subresource"].as_str() == subresource
        })
    };
    assert!(has("admin", "revoke", None), "{log}");
    assert!(has("kedge-hub:local", "issue", None), "{log}");
    let silent = hub.command(&["node", "list"]);
    assert_eq!(silent.code, Some(1));
    assert!(silent.err.contains("no hub answers at https://"), "{}", silent.err);
}

#[test]
fn certificates_and_users_are_denied_by_the_list() {
    let hub = Hub::new();
    let (mut admin, mut node) = (hub.admin(), hub.node("edge-1"));
    let review = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let id = node.post(review, &json!({})).expect(201);
    let id = id["status"]["userInfo"]["extra"]["authentication.kubernetes.io/credential-id"][0].clone();
    let id = id.as_str().unwrap().strip_prefix("X509SHA256=").unwrap().to_owned();
    let maps = "/api/v1/namespaces/kube-system/configmaps";
    let denied = |data: Value| json!({"metadata": {"name": "kedge-denied"}, "data": data});
    admin.post(maps, &denied(json!({format!("certificate.{id}"): "lost"}))).expect(201);
    assert_eq!(node.another().get("/api").code, 401);
    assert_eq!(hub.node("edge-1").get("/api").code, 200, "another certificate of the node");
    // an administrator is not locked out by name
    let names = json!({"user.admin": "", "user.system_3anode_3aedge-1": ""});
    let list = format!("{maps}/kedge-denied");
    admin.patch("merge", &list, &json!({"data": names})).expect(200);
    assert_eq!(hub.admin().get("/api").code, 200);
    assert_eq!(hub.node("edge-1").get("/api").code, 401);
    let listed = hub.command(&["denied", "list"]);
    let stolen = hub.node("edge-1");
    for entry in [&format!("certificate.{id}"), "user.admin", "user.system_3anode_3aedge-1"] {
        assert!(ok(&listed).contains(entry), "{}", listed.out);
        ok(&hub.command(&["denied", "lift", entry]));
        assert_eq!(hub.command(&["denied", "lift", entry]).code, Some(1), "only once");
    }
    // a user returns with new credentials alone
    assert_eq!((node.another().get("/api").code, stolen.another().get("/api").code), (401, 401));
    assert_eq!(hub.node("edge-1").get("/api").code, 200);
    assert_eq!(hub.admin().get("/api").code, 200);
    assert_eq!(admin.delete(&list).code, 403, "it denies the earlier credentials");
}

/// The events about a node with this reason.
fn events(admin: &mut Client, node: &str, reason: &str) -> Vec<String> {
    let all = admin.get("/api/v1/namespaces/default/events").expect(200);
    let all = all["items"].as_array().unwrap().iter();
    let found = all.filter(|event| event["reason"] == reason && event["involvedObject"]["name"] == node);
    found.map(|event| event["message"].as_str().unwrap().to_owned()).collect()
}

/// Waits until a node has an event of this reason.
fn event(admin: &mut Client, node: &str, reason: &str) -> String {
    loop {
        if let Some(event) = events(admin, node, reason).pop() {
            return event;
        }
        std::thread::yield_now();
    }
}

#[test]
fn deny_list_is_not_swept_away() {
    let mut hub = Hub::new();
    let mut admin = hub.admin();
    let names = ["edge-1", "edge-2", "edge-3"];
    let mut nodes = names.map(|name| hub.node(name));
    for (name, node) in names.iter().zip(&mut nodes) {
        register(node, name);
        ok(&hub.command(&["node", "revoke", name]));
    }
    let maps = "/api/v1/namespaces/kube-system/configmaps";
    let list = format!("{maps}/kedge-denied");
    let mut refused = |method: &str, path: &str, body: Value, expect: &str| {
        let reply = match method {
            "DELETE" => admin.delete(path),
            "PUT" => admin.put(path, &body),
            kind => admin.patch(kind, path, &body),
        };
        let answer = reply.json();
        assert_eq!(
            answer["code"],
            if expect.contains("denies nothing") { 422 } else { 403 },
            "{method} {path}: {answer}"
        );
        assert!(answer["message"].as_str().unwrap().contains(expect), "{method} {path}: {answer}");
    };
    let meta = json!({"name": "kedge-denied"});
    refused("DELETE", &list, json!({}), "kedge-hub node readmit");
    refused("DELETE", maps, json!({}), "node \"edge-1\", node \"edge-2\", node \"edge-3\"");
    // as `kubectl replace` of a manifest from elsewhere
    refused("PUT", &list, json!({"metadata": meta}), "node \"edge-1\", node \"edge-2\"");
    refused("PUT", &list, json!({"metadata": meta, "data": {"node.edge-1": ""}}), "node \"edge-2\"");
    refused("merge", &list, json!({"data": null}), "kedge-hub denied lift");
    refused("json", &list, json!([{"op": "remove", "path": "/data"}]), "kedge-hub denied lift");
    refused("json", &list, json!([{"op": "replace", "path": "/data", "value": {}}]), "kedge-hub denied lift");
    // not even one, and not by a readmission from elsewhere
    refused("merge", &list, json!({"data": {"node.edge-1": null}}), "node \"edge-1\"");
    let readmitted = json!({"readmitted": "2026-11-22T10:00:00Z", "after": 0}).to_string();
    refused("merge", &list, json!({"data": {"node.edge-1": readmitted}}), "node \"edge-1\"");
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1"}]);
    let reply = hub.admin().patch("merge", &list, &json!({"metadata": {"ownerReferences": owner}}));
    assert_eq!(reply.code, 422, "{reply:?}");
    // keys that an administrator may believe to be valid
    for key in ["edge-4", "Node.edge-4", "node.Edge-4", "certificate.0a"] {
        refused("merge", &list, json!({"data": {key: ""}}), "denies nothing");
    }
    for (name, node) in names.iter().zip(&nodes) {
        assert_eq!(node.another().get("/api").code, 401, "{name}");
    }
    // a lift lets nobody in who had credentials before, and is shown
    let mut admin = hub.admin();
    for name in ["edge-1", "edge-2"] {
        ok(&hub.command(&["denied", "lift", &format!("node.{name}")]));
        let again = hub.command(&["denied", "lift", &format!("node.{name}")]);
        assert!(again.code == Some(1) && again.err.contains("--same-credentials"), "{again:?}");
    }
    for (name, node) in names.iter().zip(&nodes) {
        assert_eq!(node.another().get("/api").code, 401, "{name}");
    }
    for name in ["edge-1", "edge-2"] {
        assert_eq!(hub.node(name).get("/api").code, 200, "{name} has new credentials");
        let why = event(&mut admin, name, "DenialLifted");
        assert!(why.contains("is denied less"), "{why}");
        let node = admin.get(&format!("{NODES}/{name}")).expect(200);
        assert_eq!(node["metadata"]["annotations"].get("kedge.dev/revoked"), None);
    }
    assert_eq!(events(&mut admin, "edge-3", "DenialLifted"), Vec::<String>::new());
    assert!(hub.log().contains("node \"edge-1\" is denied less"));
    // a person's explicit word
    ok(&hub.command(&["node", "readmit", "edge-1", "--same-credentials"]));
    assert_eq!(nodes[0].another().get("/api").code, 200);
    assert_eq!(nodes[1].another().get("/api").code, 401);
    while !events(&mut admin, "edge-1", "DenialLifted").iter().any(|why| why.contains("is no longer denied"))
    {
        std::thread::yield_now();
    }
    hub.stop("TERM");
    let log = std::fs::read_to_string(hub.data_dir.join("audit.log")).unwrap();
    assert_eq!(log.matches("\"verb\":\"lift\"").count(), 3, "{log}");
}

#[test]
fn lost_store_readmits_nobody_and_reuses_no_version() {
    let data = scratch();
    let place = data.path().join("hub");
    let hub = Hub::start(&place);
    let kubeconfig = hub.command(&["node-kubeconfig", "thief"]).out;
    ok(&hub.command(&["node", "revoke", "thief", "--reason", "stolen"]));
    let version = |hub: &Hub| -> u64 {
        let list = hub.admin().get("/api/v1/configmaps").expect(200);
        list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    };
    let before = version(&hub);
    hub.kill();
    for lost in [false, true] {
        for beside in ["state.db-wal", "state.db-shm"] {
            drop(std::fs::remove_file(place.join(beside)));
        }
        if lost {
            std::fs::remove_file(place.join("state.db")).unwrap();
        } else {
            std::fs::write(place.join("state.db"), "").unwrap();
        }
        let outcome = command(&["serve", "--listen", "127.0.0.1:0", "--data-dir", place.to_str().unwrap()]);
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        assert!(
            outcome.err.contains("restore FILE") && outcome.err.contains("restore --empty"),
            "{}",
            outcome.err
        );
    }
    let begun = command(&["restore", "--empty", "--data-dir", place.to_str().unwrap()]);
    assert!(ok(&begun).contains("still denied: node \"thief\""), "{}", begun.out);
    let hub = Hub::start(&place);
    assert_eq!(Client::new(&kubeconfig, &hub.url).get("/api").code, 401);
    assert_eq!(listed(&hub, "thief")["access"]["reason"], "stolen");
    assert!(version(&hub) > before + 1_000_000_000, "a version is given out twice");
}

fn copy_all(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_all(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// The marker in `pki/` is as old as the store: only nodes know of what was there since.
#[test]
fn whole_older_directory_is_met_by_what_nodes_report() {
    let data = scratch();
    let (place, older) = (data.path().join("hub"), data.path().join("older"));
    let version =
        |value: &Value| value["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    let hub = Hub::start(&place);
    let mut node = hub.node("edge-1");
    node.post(NODES, &json!({"metadata": {"name": "edge-1"}})).expect(201);
    hub.terminate();
    copy_all(&place, &older);
    // each start after a kill begins above what was reserved
    for _ in 0..3 {
        Hub::start(&place).kill();
    }
    let hub = Hub::start(&place);
    let made = hub.admin().post(MAPS, &json!({"metadata": {"name": "config"}})).expect(201);
    let known = version(&made);
    hub.kill();
    std::fs::rename(&place, data.path().join("lost")).unwrap();
    let hub = Hub::start(&older);
    let mut node = hub.node("edge-1");
    let map = json!({"namespace": "default", "name": "config", "kubeletConfigKey": "kubelet", "uid": "u",
        "resourceVersion": made["metadata"]["resourceVersion"]});
    let before = hub.admin().post(MAPS, &json!({"metadata": {"generateName": "m-"}})).expect(201);
    assert!(version(&before) < known, "the older directory must be far behind for this test");
    let status = json!({"status": {"config": {"assigned": {"configMap": map}}}});
    let reported = node.patch("merge", &format!("{NODES}/edge-1/status"), &status).expect(200);
    assert!(version(&reported) > known, "{reported}");
    let next = hub.admin().post(MAPS, &json!({"metadata": {"generateName": "m-"}})).expect(201);
    assert!(version(&next) > known, "a version is given out twice");
}

#[test]
fn restore_of_an_older_backup_readmits_nobody() {
    let data = scratch();
    let (place, file) = (data.path().join("hub"), data.path().join("backup"));
    let hub = Hub::start(&place);
    let made = hub.command(&["backup", file.to_str().unwrap()]);
    assert!(ok(&made).contains(" objects, sha256 "), "{}", made.out);
    let kubeconfig = hub.command(&["node-kubeconfig", "thief"]).out;
    ok(&hub.command(&["node", "revoke", "thief"]));
    hub.terminate();
    let restored = command(&["restore", file.to_str().unwrap(), "--data-dir", place.to_str().unwrap()]);
    assert!(ok(&restored).contains("still denied: node \"thief\""), "{}", restored.out);
    let hub = Hub::start(&place);
    assert_eq!(Client::new(&kubeconfig, &hub.url).get("/api").code, 401);
    hub.terminate();
    // without its store and its marker the audit log knows
    std::fs::remove_file(place.join("pki/store-marker")).unwrap();
    std::fs::remove_file(place.join("state.db")).unwrap();
    let arguments = ["restore", file.to_str().unwrap(), "--data-dir", place.to_str().unwrap()];
    let restored = command(&arguments);
    assert!(ok(&restored).contains("still denied: node \"thief\""), "{}", restored.out);
    let forgot = command(&[&arguments[..], &["--forget-revocations"]].concat());
    assert!(!ok(&forgot).contains("denied"), "{}", forgot.out);
    let hub = Hub::start(&place);
    assert_eq!(Client::new(&kubeconfig, &hub.url).get("/api").code, 200, "as was asked");
}

/// A hub whose clock is behind gives new credentials an earlier time than the stolen ones have.
#[test]
fn readmission_counts_numbers_and_no_clock() {
    let hub = Hub::new();
    let mut thief = hub.node("edge-1");
    register(&mut thief, "edge-1");
    ok(&hub.command(&["node", "revoke", "edge-1"]));
    let mut between = hub.node("edge-2");
    ok(&hub.command(&["node", "readmit", "edge-1"]));
    let list = hub.admin().get("/api/v1/namespaces/kube-system/configmaps/kedge-denied").expect(200);
    let entry: Value = serde_json::from_str(list["data"]["node.edge-1"].as_str().unwrap()).unwrap();
    let number = |client: &mut Client| -> u64 {
        let review = client.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &json!({})).expect(201);
        let extra = &review["status"]["userInfo"]["extra"]["kedge.dev/issue-number"][0];
        extra.as_str().unwrap().parse().unwrap()
    };
    let after = entry["after"].as_u64().unwrap();
    assert!(number(&mut between) < after && after < number(&mut hub.node("edge-1")), "{entry}");
    assert_eq!(thief.another().get("/api").code, 401);
}

/// A readmission ends with the revocation that follows it, whichever of both a backup has.
#[test]
fn restore_keeps_the_last_act_on_a_node() {
    let data = scratch();
    let (place, file) = (data.path().join("hub"), data.path().join("backup"));
    let hub = Hub::start(&place);
    let kubeconfig = hub.command(&["node-kubeconfig", "a"]).out;
    for name in ["a", "b"] {
        ok(&hub.command(&["node", "revoke", name, "--force"]));
    }
    ok(&hub.command(&["node", "readmit", "a"]));
    let second = hub.command(&["node-kubeconfig", "a"]).out;
    ok(&hub.command(&["backup", file.to_str().unwrap()]));
    ok(&hub.command(&["node", "revoke", "a"]));
    ok(&hub.command(&["node", "readmit", "b"]));
    hub.terminate();
    let restored = command(&["restore", file.to_str().unwrap(), "--data-dir", place.to_str().unwrap()]);
    assert!(ok(&restored).contains("still denied: node \"a\""), "{}", restored.out);
    let hub = Hub::start(&place);
    for old in [&kubeconfig, &second] {
        assert_eq!(Client::new(old, &hub.url).get("/api").code, 401);
    }
    assert_eq!(hub.node("b").get("/api").code, 200, "readmitted since");
}

/// A credential that was given out in a history.
struct Given {
    node: usize,
    kubeconfig: String,
    /// It was valid when its node was revoked.
    is_revoked: bool,
}

/// Revocations, readmissions, new credentials, backups, restores of any older backup, and kills, at random:
/// no credential that a revocation has met is ever valid again.
#[test]
fn no_history_revives_a_revoked_credential() {
    const NODES_OF_ALL: [&str; 3] = ["a", "b", "c"];
    for seed in [1, 2] {
        let mut random = Random::new(seed);
        let data = scratch();
        let place = data.path().join("hub");
        let mut hub = Hub::start(&place);
        let mut given: Vec<Given> = Vec::new();
        let (mut backups, mut history) = (Vec::new(), Vec::new());
        for act in 0..30 {
            let node = usize::try_from(random.below(3)).unwrap();
            let name = NODES_OF_ALL[node];
            match random.below(12) {
                0..=3 => {
                    let made = hub.command(&["node-kubeconfig", name]);
                    // none is made for a node that is revoked
                    if made.code == Some(0) {
                        given.push(Given { node, kubeconfig: made.out, is_revoked: false });
                    }
                    history.push(format!("new {name}"));
                }
                4..=5 => {
                    ok(&hub.command(&["node", "revoke", name, "--force"]));
                    given.iter_mut().filter(|one| one.node == node).for_each(|one| one.is_revoked = true);
                    history.push(format!("revoke {name}"));
                }
                6..=7 => {
                    // one that is not revoked cannot be
                    hub.command(&["node", "readmit", name]);
                    history.push(format!("readmit {name}"));
                }
                8..=9 => {
                    let file = data.path().join(format!("backup-{act}"));
                    ok(&hub.command(&["backup", file.to_str().unwrap()]));
                    history.push(format!("backup {}", backups.len()));
                    backups.push(file);
                }
                10 if !backups.is_empty() => {
                    let at = usize::try_from(random.below(backups.len() as u64)).unwrap();
                    hub.terminate();
                    let words =
                        ["restore", backups[at].to_str().unwrap(), "--data-dir", place.to_str().unwrap()];
                    ok(&command(&words));
                    hub = Hub::start(&place);
                    history.push(format!("restore {at}"));
                }
                _ => {
                    hub.kill();
                    hub = Hub::start(&place);
                    history.push("kill".to_owned());
                }
            }
            for one in given.iter().filter(|one| one.is_revoked) {
                let code = Client::new(&one.kubeconfig, &hub.url).get("/api").code;
                assert_eq!(code, 401, "seed {seed}, {}: {history:?}", NODES_OF_ALL[one.node]);
            }
        }
        // the histories are worth something
        let has = |act: &str| history.iter().any(|done| done.starts_with(act));
        assert!(["revoke", "readmit", "restore", "kill"].iter().all(|act| has(act)), "{history:?}");
        assert!(given.iter().filter(|one| one.is_revoked).count() >= 2, "{history:?}");
        // and a readmitted node has access
        for name in NODES_OF_ALL {
            hub.command(&["node", "readmit", name]);
            let anew = hub.command(&["node-kubeconfig", name]);
            assert_eq!(Client::new(ok(&anew), &hub.url).get("/api").code, 200, "{name}: {history:?}");
        }
    }
}

/// Waits until `look` gives something.
pub(crate) fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = look() {
            return found;
        }
        std::thread::yield_now();
    }
}

#[test]
fn restore_lowers_no_assignment_without_a_person() {
    let data = scratch();
    let (place, file) = (data.path().join("hub"), data.path().join("backup"));
    let hub = Hub::start(&place);
    let mut admin = hub.admin();
    let maps = "/api/v1/namespaces/default/configmaps";
    let name = ["edge-1", "edge-2"];
    let kubeconfigs = name.map(|name| hub.command(&["node-kubeconfig", name]).out);
    let report = |node: &mut Client, name: &str, map: &Value| {
        let meta = &map["metadata"];
        let source = json!({"namespace": "default", "name": meta["name"], "kubeletConfigKey": "kubelet",
            "uid": meta["uid"], "resourceVersion": meta["resourceVersion"]});
        let status = json!({"status": {"config": {"assigned": {"configMap": source}}}});
        node.patch("merge", &format!("{NODES}/{name}/status"), &status).expect(200);
    };
    let first =
        admin.post(maps, &json!({"metadata": {"name": "config"}, "data": {"kubelet": "a"}})).expect(201);
    for (name, kubeconfig) in name.iter().zip(&kubeconfigs) {
        let mut node = Client::new(kubeconfig, &hub.url);
        register(&mut node, name);
        let source =
            json!({"configMap": {"namespace": "default", "name": "config", "kubeletConfigKey": "kubelet"}});
        let assigned = json!({"spec": {"configSource": source}});
        admin.patch("merge", &format!("{NODES}/{name}"), &assigned).expect(200);
        report(&mut node, name, &first);
    }
    ok(&hub.command(&["backup", file.to_str().unwrap()]));
    let config = format!("{maps}/config");
    let second = admin.patch("merge", &config, &json!({"data": {"kubelet": "b"}})).expect(200);
    report(&mut Client::new(&kubeconfigs[0], &hub.url), "edge-1", &second);
    hub.terminate();
    ok(&command(&["restore", file.to_str().unwrap(), "--data-dir", place.to_str().unwrap()]));
    let hub = Hub::start(&place);
    let mut nodes = [0, 1].map(|at| Client::new(&kubeconfigs[at], &hub.url));
    for node in &mut nodes {
        let refused = node.get(&config);
        assert_eq!(refused.code, 403);
        assert!(refused.json()["message"].as_str().unwrap().contains("the hub was restored"), "{refused:?}");
    }
    // by what it knew of its Node before the restore
    let failed = json!({"status": {"config": {"error": "failed to sync"}}});
    nodes[0].patch("merge", &format!("{NODES}/edge-1/status"), &failed).expect(200);
    report(&mut nodes[1], "edge-2", &first);
    // the one that has what the store has goes on by itself
    until(|| Some(()).filter(|()| nodes[1].get(&config).code == 200));
    assert_eq!(nodes[0].get(&config).code, 403, "it has not told what it is assigned");
    report(&mut nodes[0], "edge-1", &second);
    until(|| Some(()).filter(|()| listed(&hub, "edge-1")["state"] == "AwaitingDecision"));
    assert_eq!(nodes[0].get(&config).code, 403);
    let taken = json!({"metadata": {"annotations": {"kedge.dev/restored": null}}});
    assert_eq!(nodes[0].patch("merge", &format!("{NODES}/edge-1"), &taken).code, 403, "a person decides");
    assert!(ok(&hub.command(&["node", "accept", "--all"])).contains("edge-1"));
    nodes[0].get(&config).expect(200);
    assert_ne!(listed(&hub, "edge-1")["state"], "AwaitingDecision");
    let again = hub.command(&["node", "accept", "edge-1"]);
    assert!(again.err.contains("it does not wait for a decision"), "{}", again.err);
}

#[test]
fn decommissioned_node_is_denied_and_deleted() {
    let hub = Hub::new();
    let mut node = hub.node("edge-1");
    register(&mut node, "edge-1");
    let path = format!("{NODES}/edge-1");
    let done = json!({"status": {"conditions": [{"type": "Decommissioned", "status": "True"}]}});
    node.patch("strategic-merge", &format!("{path}/status"), &done).expect(200);
    for key in ["decommission", "rotate", "restored"] {
        let own = json!({"metadata": {"annotations": {format!("kedge.dev/{key}"): "1"}}});
        assert_eq!(node.patch("merge", &path, &own).code, 403, "{key}");
    }
    ok(&hub.command(&["node", "rotate", "edge-1"]));
    let object = node.get(&path).expect(200);
    assert!(
        object["metadata"]["annotations"]["kedge.dev/rotate"].as_str().unwrap().parse::<u64>().unwrap() > 0
    );
    // it said so before anybody asked; now it counts
    ok(&hub.command(&["node", "decommission", "edge-1", "--wipe"]));
    until(|| Some(()).filter(|()| hub.admin().get(&path).code == 404));
    assert_eq!(node.another().get("/api").code, 401);
    let listed = hub.command(&["denied", "list"]);
    assert!(ok(&listed).contains("decommissioned"), "{}", listed.out);
    // the name is free for another device
    let mut new = hub.node("edge-1");
    register(&mut new, "edge-1");
    assert_eq!(node.another().get("/api").code, 401);
}
