//! The attempts of a thief with the credential of one node: each attack alone, and after each a check that
//! objects of others are unchanged, and that another node can still renew.
//!
//! Attacks on the hub's time and memory are in `tests/attacks.rs`, those by mirror pods and certificate
//! requests in `identity`.

use serde_json::{Value, json};

use super::server::{Client, Hub};
use super::{LEASES, MAPS, NODES, PODS};

const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const BODY: &str = "application/json";
const EVENTS: &str = "/api/v1/namespaces/default/events";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
/// A text in objects that the thief must not read.
const SECRET: &str = "crown-jewel";

/// Two nodes, `a` and `b`, each with a Lease, a config, an event and a pod. The credential of `a` is stolen.
struct Stage {
    _hub: Hub,
    admin: Client,
    thief: Client,
    other: Client,
    renewals: u32,
}

impl Stage {
    fn new() -> Stage {
        let hub = Hub::new();
        let (mut admin, mut thief, mut other) = (hub.admin(), hub.node("a"), hub.node("b"));
        for (name, node) in [("a", &mut thief), ("b", &mut other)] {
            node.post(NODES, &json!({"metadata": {"name": name}})).expect(201);
            node.post(LEASES, &json!({"metadata": {"name": name}, "spec": {"holderIdentity": name}}))
                .expect(201);
            node.post(EVENTS, &event(name, name)).expect(201);
            admin.post(MAPS, &json!({"metadata": {"name": name}, "data": {"k": SECRET}})).expect(201);
            let source =
                json!({"configMap": {"namespace": "default", "name": name, "kubeletConfigKey": "k"}});
            let labels = json!({"node-role.kubernetes.io/edge": ""});
            let assigned = json!({"metadata": {"labels": labels}, "spec": {"configSource": source}});
            admin.patch("merge", &format!("{NODES}/{name}"), &assigned).expect(200);
            let spec = json!({"nodeName": name, "containers": [{"name": "c", "image": "i"}]});
            admin.post(PODS, &json!({"metadata": {"name": name}, "spec": spec})).expect(201);
        }
        let secret = json!({"metadata": {"name": "crown"}, "stringData": {"a": SECRET}});
        admin.post(SECRETS, &secret).expect(201);
        Stage { _hub: hub, admin, thief, other, renewals: 0 }
    }

    /// All objects that the thief must not be able to change.
    fn others(&mut self) -> Value {
        let mut own = self.admin.get(&format!("{NODES}/a")).expect(200);
        let meta = own["metadata"].as_object_mut().unwrap();
        for field in ["resourceVersion", "managedFields"] {
            meta.remove(field);
        }
        let mut all = vec![own["metadata"].take(), own["spec"].take()];
        // only b itself changes its Lease and its events
        for path in [format!("{NODES}/b"), format!("{EVENTS}/b"), format!("{MAPS}/a"), format!("{MAPS}/b")] {
            all.push(self.admin.get(&path).expect(200));
        }
        for collection in [NODES, LEASES, PODS, REQUESTS, "/api/v1/namespaces/kube-system/pods"] {
            let list = self.admin.get(collection).expect(200);
            let names = list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].clone());
            all.push(names.collect());
        }
        all.into()
    }

    /// Lets another node renew.
    #[track_caller]
    fn other_is_heard(&mut self) {
        self.renewals += 1;
        let time = format!("2026-11-22T17:00:00.{:06}Z", self.renewals);
        let lease = format!("{LEASES}/b");
        let renewed = self.other.patch("merge", &lease, &json!({"spec": {"renewTime": time}})).expect(200);
        assert_eq!(
            (&renewed["spec"]["renewTime"], &renewed["spec"]["holderIdentity"]),
            (&json!(time), &json!("b"))
        );
    }
}

fn event(about: &str, name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "reason": "R", "type": "Normal", "message": "m",
        "involvedObject": {"kind": "Node", "name": about, "uid": about}, "source": {"component": "kedge", "host": about}})
}

#[test]
fn stolen_node_changes_nothing_of_others() {
    let mut stage = Stage::new();
    let before = stage.others();
    let own = format!("{NODES}/a");
    let status = format!("{own}/status");
    let (lease, pod) = (format!("{LEASES}/b"), format!("{PODS}/a"));
    let source = |name: Value| json!({"spec": {"configSource": name}});
    let meta = |field: &str, value: Value| json!({"metadata": {field: value}});
    let taints = |value: Value| json!({"spec": {"taints": value}});
    let renewal = json!({"spec": {"renewTime": "2030-01-01T00:00:00.000000Z", "holderIdentity": "a"}});
    let whole_lease = json!({"metadata": {"name": "b"}, "spec": {"holderIdentity": "a"}});
    let applied = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let role = json!({"node-role.kubernetes.io/control-plane": ""});
    let theirs = json!({"configMap": {"namespace": "default", "name": "b", "kubeletConfigKey": "k"}});
    let containers = json!({"nodeName": "a", "containers": [{"name": "c", "image": "evil"}]});
    let force = "?fieldManager=x&force=true";
    let attacks: Vec<(&str, &str, String, &str, Value)> = vec![
        ("another config", "PATCH", own.clone(), MERGE, source(theirs.clone())),
        ("no config", "PATCH", own.clone(), MERGE, source(Value::Null)),
        ("no spec", "PUT", own.clone(), BODY, json!({"metadata": {"name": "a"}})),
        (
            "config by apply",
            "PATCH",
            format!("{own}{force}"),
            APPLY,
            applied("Node", "a", source(theirs.clone())["spec"].clone()),
        ),
        ("no taint", "PATCH", own.clone(), JSON_PATCH, json!([{"op": "remove", "path": "/spec/taints/0"}])),
        ("taints replaced", "PATCH", own.clone(), STRATEGIC, taints(json!([{"$patch": "replace"}]))),
        ("no taints", "PATCH", own.clone(), MERGE, taints(Value::Null)),
        ("taints by status", "PATCH", status.clone(), MERGE, taints(json!([]))),
        ("role", "PATCH", own.clone(), MERGE, meta("labels", role.clone())),
        ("role by status", "PATCH", status.clone(), MERGE, meta("labels", role)),
        ("no labels", "PATCH", own.clone(), MERGE, meta("labels", Value::Null)),
        (
            "config by annotation",
            "PATCH",
            own.clone(),
            MERGE,
            meta("annotations", json!({"kedge.dev/config-source": "{}"})),
        ),
        ("finalizer", "PATCH", own.clone(), MERGE, meta("finalizers", json!(["x.dev/y"]))),
        (
            "owner",
            "PATCH",
            own.clone(),
            MERGE,
            meta("ownerReferences", json!([{"apiVersion": "v1", "kind": "Node", "name": "b", "uid": "u"}])),
        ),
        ("another uid", "PATCH", own.clone(), MERGE, meta("uid", json!("u"))),
        ("another name", "PATCH", own.clone(), MERGE, meta("name", json!("c"))),
        ("its own end", "DELETE", own.clone(), BODY, Value::Null),
        ("all nodes' end", "DELETE", NODES.to_owned(), BODY, Value::Null),
        ("another node", "PATCH", format!("{NODES}/b"), MERGE, json!({"status": {"phase": "x"}})),
        (
            "another node's status",
            "PATCH",
            format!("{NODES}/b/status"),
            MERGE,
            json!({"status": {"phase": "x"}}),
        ),
        ("a new node", "POST", NODES.to_owned(), BODY, json!({"metadata": {"name": "c"}})),
        ("a node of any name", "POST", NODES.to_owned(), BODY, json!({"metadata": {"generateName": "b"}})),
        ("another lease", "PATCH", lease.clone(), MERGE, renewal.clone()),
        ("another lease, whole", "PUT", lease, BODY, whole_lease.clone()),
        ("another lease, escaped", "PATCH", format!("{LEASES}/%62"), MERGE, renewal.clone()),
        ("another lease, by a path", "PATCH", format!("{LEASES}/a%2f..%2fb"), MERGE, renewal.clone()),
        ("another lease, by dots", "PATCH", format!("{LEASES}/a/../b"), MERGE, renewal),
        (
            "a lease elsewhere",
            "POST",
            LEASES.replace("kube-node-lease", "default"),
            BODY,
            json!({"metadata": {"name": "a"}}),
        ),
        ("another lease's end", "DELETE", format!("{LEASES}/b"), BODY, Value::Null),
        ("event about another", "POST", EVENTS.to_owned(), BODY, event("b", "e")),
        (
            "event about another, later",
            "PATCH",
            format!("{EVENTS}/a"),
            MERGE,
            json!({"involvedObject": {"name": "b", "uid": "b"}}),
        ),
        ("another's event", "PATCH", format!("{EVENTS}/b"), MERGE, json!({"message": "x"})),
        ("a pod's spec", "PATCH", pod.clone(), MERGE, json!({"spec": {"activeDeadlineSeconds": 1}})),
        ("a pod, whole", "PUT", pod, BODY, applied("Pod", "a", containers.clone())),
        (
            "a pod by apply",
            "PATCH",
            format!("{PODS}/new{force}"),
            APPLY,
            applied("Pod", "new", containers.clone()),
        ),
        (
            "a pod that is no mirror",
            "POST",
            PODS.to_owned(),
            BODY,
            json!({"metadata": {"name": "new"}, "spec": containers}),
        ),
        ("another's pod", "DELETE", format!("{PODS}/b"), BODY, Value::Null),
        (
            "a binding",
            "POST",
            format!("{PODS}/b/binding"),
            BODY,
            json!({"target": {"kind": "Node", "name": "a"}}),
        ),
        ("its config", "PATCH", format!("{MAPS}/a"), MERGE, json!({"data": {"k": "x"}})),
        ("its config's end", "DELETE", format!("{MAPS}/a"), BODY, Value::Null),
        (
            "an approval",
            "PATCH",
            format!("{REQUESTS}/r/approval"),
            MERGE,
            json!({"status": {"conditions": []}}),
        ),
        ("a revocation", "POST", "/kedge/nodes/b/revoke".to_owned(), BODY, json!({})),
    ];
    for (what, method, path, content_type, body) in attacks {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let reply = stage.thief.send(method, &path, &[("content-type", content_type)], body.as_bytes());
        assert!(
            matches!(reply.code, 400 | 403 | 404 | 409 | 422),
            "{what}: {} {}",
            reply.code,
            String::from_utf8_lossy(&reply.body)
        );
        assert_eq!(stage.others(), before, "{what}");
        stage.other_is_heard();
    }
    // fields that its status may not contain are ignored
    let sly = json!({"spec": {"configSource": theirs, "unschedulable": true}, "status": {"phase": "x"}});
    let status = stage.thief.patch("merge", &status, &sly);
    assert!(matches!(status.code, 200 | 403), "{}", status.code);
    assert_eq!(stage.others(), before);
}

#[test]
fn stolen_node_reads_nothing_of_others() {
    let mut stage = Stage::new();
    let first = stage.admin.get(&format!("{MAPS}?limit=1")).expect(200);
    let next = first["metadata"]["continue"].as_str().unwrap().replace('=', "%3D");
    let of = |name: &str| format!("fieldSelector=metadata.name%3D{name}");
    for path in [
        format!("{MAPS}/b"),
        MAPS.to_owned(),
        format!("{MAPS}?watch=true"),
        format!("{MAPS}?{}", of("b")),
        format!("{MAPS}?{}&{}", of("b"), of("a")),
        format!("{MAPS}?{}%2Cmetadata.name%3Da", of("b")),
        format!("{MAPS}?labelSelector=x&{}", of("b")),
        format!("/api/v1/configmaps?{}", of("a")),
        format!("{NODES}/b"),
        NODES.to_owned(),
        format!("{NODES}/b?watch=true"),
        format!("{NODES}?watch=true&{}", of("b")),
        format!("{NODES}?continue={next}"),
        format!("{SECRETS}/crown"),
        SECRETS.to_owned(),
        format!("{LEASES}/b"),
        LEASES.to_owned(),
        format!("{REQUESTS}?limit=1"),
        format!("{PODS}/b"),
        PODS.to_owned(),
        format!("{PODS}?fieldSelector=spec.nodeName%3Db"),
        format!("{PODS}?fieldSelector=spec.nodeName!%3Da"),
        "/metrics".to_owned(),
        "/kedge/nodes".to_owned(),
    ] {
        let reply = stage.thief.get(&path);
        assert!(matches!(reply.code, 400 | 403 | 404), "{path}: {}", reply.code);
        assert!(!String::from_utf8_lossy(&reply.body).contains(SECRET), "{path}");
    }
    // of two selectors the first counts; a token of another list does not lead to objects of others
    for path in [
        format!("{MAPS}?{}&{}", of("a"), of("b")),
        format!("{MAPS}?{}&continue={next}", of("a")),
        format!("{MAPS}?{}%2Cmetadata.name%3Db", of("a")),
    ] {
        let reply = stage.thief.get(&path);
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        assert!(!text.contains("\"name\":\"b\""), "{path}: {text}");
    }
    // impersonation by headers
    for headers in [
        [("impersonate-user", "admin"), ("impersonate-group", "system:masters")],
        [("x-remote-user", "admin"), ("x-remote-group", "system:masters")],
        [("authorization", "Bearer x"), ("x-forwarded-user", "admin")],
        [("x-http-method-override", "DELETE"), ("x-method-override", "DELETE")],
    ] {
        let reply = stage.thief.send("GET", &format!("{NODES}/b"), &headers, b"");
        assert!(matches!(reply.code, 401 | 403), "{headers:?}: {}", reply.code);
    }
    stage.other_is_heard();
}

/// Paths that a proxy or a careless router would take for another one.
#[test]
fn strangers_reach_no_path_by_its_disguise() {
    let hub = Hub::new();
    let mut stranger = hub.anonymous();
    for path in [
        "/healthz/../metrics",
        "/healthz/..%2fmetrics",
        "/%68ealthz/../api",
        "//api",
        "/./api",
        "/api//v1/nodes",
        "/healthz;/../api",
        "/livez%00/../api",
        "https://h/metrics",
        "/metrics?x=/healthz",
        "/openid/v1/jwks/../../../metrics",
    ] {
        let reply = stranger.send("GET", path, &[], b"");
        assert!(matches!(reply.code, 400 | 401 | 403 | 404), "{path}: {}", reply.code);
        assert_eq!(reply.json()["kind"], "Status", "{path}");
    }
    for method in ["CONNECT", "TRACE", "OPTIONS", "PRI", "get"] {
        let code = stranger.another().try_send(method, "/api", &[], b"").map_or(0, |reply| reply.code);
        assert!(!matches!(code, 100..400), "{method}: {code}");
    }
    let upgrade = [("connection", "upgrade"), ("upgrade", "h2c")];
    assert_eq!(stranger.another().send("GET", "/healthz", &upgrade, b"").code, 200, "no other protocol");
    let mut preface = stranger.another();
    preface.write_raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    assert!(preface.read_to_end().starts_with("HTTP/1.1 4"));
    hub.admin().get("/healthz");
}
