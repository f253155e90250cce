//! Server-side apply over real TLS: field managers, conflicts, removal of fields, and how other writes change
//! managers.
//!
//! Each test has its own hub. kubectl's side is tested in `hub/tests/kubectl/apply.rs`.

use crate::server::{Client, Hub, Reply};
use crate::{LEASES, MAPS, NODES};
use serde_json::{Value, json};

const APPLY: (&str, &str) = ("content-type", "application/apply-patch+yaml");

/// Applies as a manager; more parameters may follow its name.
fn apply(client: &mut Client, path: &str, manager: &str, body: &Value) -> Reply {
    client.send("PATCH", &format!("{path}?fieldManager={manager}"), &[APPLY], body.to_string().as_bytes())
}

fn map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data})
}

/// kubectl takes over the fields of client-side apply, except those that another manager has changed since.
#[test]
fn csa_upgrade_conflicts_on_fields_changed_by_others() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let path = format!("{MAPS}/m");
    let remembered = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "1", "b": "2"}});
    let mut map_of_csa = remembered.clone();
    map_of_csa["metadata"]["annotations"] =
        json!({"kubectl.kubernetes.io/last-applied-configuration": remembered.to_string()});
    client.post(&format!("{MAPS}?fieldManager=kubectl-client-side-apply"), &map_of_csa).expect(201);
    apply(&mut client, &path, "other&force=true", &map(json!({"b": "3"}))).expect(200);
    let wanted = map(json!({"a": "4", "b": "2"}));
    // `a` is as client-side apply left it, so kubectl may take it; `b` is not
    apply(&mut client, &path, "kubectl", &wanted)
        .refused(409, "Apply failed with 1 conflict: conflict with \"other\": .data.b");
    assert_eq!(client.get(&path).expect(200)["data"], json!({"a": "1", "b": "3"}));
    let taken = apply(&mut client, &path, "kubectl", &map(json!({"a": "4"}))).expect(200);
    assert_eq!(taken["data"], json!({"a": "4", "b": "3"}));
    let forced = apply(&mut client, &path, "kubectl&force=true", &wanted).expect(200);
    assert_eq!(forced["data"], json!({"a": "4", "b": "2"}));
}

/// `manager operation[ subresource]: fields` of every entry, sorted (they are stored by time, which may or
/// may not tick).
fn managers(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let line = |entry: &Value| {
        assert_eq!(entry["fieldsType"], "FieldsV1");
        assert_eq!(entry["time"].as_str().map(str::len), Some(20), "{entry}");
        let subresource = entry["subresource"].as_str().map(|name| format!(" {name}")).unwrap_or_default();
        let text = |name: &str| entry[name].as_str().unwrap().to_owned();
        format!("{} {}{subresource}: {}", text("manager"), text("operation"), entry["fieldsV1"])
    };
    let mut lines: Vec<String> = entries.iter().map(line).collect();
    lines.sort();
    lines
}

#[test]
fn apply_creates_changes_and_removes_fields() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let path = format!("{MAPS}/m");
    let made = apply(&mut client, &path, "one", &map(json!({"a": "1", "b": "2"}))).expect(201);
    assert_eq!(managers(&made), [r#"one Apply: {"f:data":{"f:a":{},"f:b":{}}}"#]);
    let again = apply(&mut client, &path, "one", &map(json!({"a": "1", "b": "2"}))).expect(200);
    assert_eq!(again, made, "a repeated apply changes nothing, not even a time");
    let changed = apply(&mut client, &path, "one", &map(json!({"a": "3"}))).expect(200);
    assert_eq!(changed["data"], json!({"a": "3"}));
    assert_eq!(managers(&changed), [r#"one Apply: {"f:data":{"f:a":{}}}"#]);
    // a second manager shares the fields it sets to the same value, and owns those that only it sets
    let shared = apply(&mut client, &path, "two", &map(json!({"a": "3", "c": "4"}))).expect(200);
    assert_eq!(shared["data"], json!({"a": "3", "c": "4"}));
    let empty = apply(&mut client, &path, "one", &map(json!({}))).expect(200);
    assert_eq!(empty["data"], json!({"a": "3", "c": "4"}), "two still owns a");
    assert_eq!(managers(&empty)[0], r#"one Apply: {"f:data":{}}"#, "an empty map is applied as well");
    let mut no_data = map(Value::Null);
    no_data.as_object_mut().unwrap().remove("data");
    let one_leaves = apply(&mut client, &path, "one", &no_data).expect(200);
    assert_eq!(one_leaves["data"], json!({"a": "3", "c": "4"}), "two still owns a");
    assert_eq!(managers(&one_leaves), [r#"two Apply: {"f:data":{"f:a":{},"f:c":{}}}"#]);
    let nothing = apply(&mut client, &path, "two", &no_data).expect(200);
    assert_eq!((&nothing["data"], managers(&nothing)), (&Value::Null, Vec::new()));
}

#[test]
fn conflict_lists_fields_and_managers_and_force_takes_them() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let path = format!("{MAPS}/m");
    apply(&mut client, &path, "one", &map(json!({"a": "1", "b": "2"}))).expect(201);
    let refused = apply(&mut client, &path, "two", &map(json!({"a": "x"}))).expect(409);
    assert_eq!(
        (&refused["reason"], &refused["message"]),
        (&json!("Conflict"), &json!("Apply failed with 1 conflict: conflict with \"one\": .data.a"))
    );
    assert_eq!(
        refused["details"]["causes"],
        json!([{"reason": "FieldManagerConflict", "message": "conflict with \"one\"", "field": ".data.a"}])
    );
    client.patch("merge", &format!("{path}?fieldManager=hand"), &json!({"data": {"c": "3"}})).expect(200);
    let refused = apply(&mut client, &path, "two", &map(json!({"a": "x", "b": "y", "c": "z"}))).expect(409);
    assert_eq!(
        refused["message"],
        "Apply failed with 3 conflicts: conflicts with \"one\":\n- .data.a\n- .data.b\nconflicts with \"hand\" using v1:\n- .data.c"
    );
    assert_eq!(client.get(&path).expect(200)["data"], json!({"a": "1", "b": "2", "c": "3"}));
    let forced = apply(&mut client, &path, "two&force=true", &map(json!({"a": "x", "c": "3"}))).expect(200);
    assert_eq!(forced["data"], json!({"a": "x", "b": "2", "c": "3"}));
    assert_eq!(
        managers(&forced),
        [
            r#"hand Update: {"f:data":{"f:c":{}}}"#,
            r#"one Apply: {"f:data":{"f:b":{}}}"#,
            r#"two Apply: {"f:data":{"f:a":{},"f:c":{}}}"#
        ]
    );
}

#[test]
fn every_write_records_its_field_manager() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let path = format!("{MAPS}/m");
    let agent = ("user-agent", "tool/1.2 (linux)");
    let json = ("content-type", "application/json");
    let body = map(json!({"a": "1", "b": "2"})).to_string();
    let made = client.send("POST", MAPS, &[json, agent], body.as_bytes()).expect(201);
    assert_eq!(managers(&made), [r#"tool Update: {"f:data":{".":{},"f:a":{},"f:b":{}}}"#]);
    let labels = json!({"metadata": {"labels": {"l": "1"}}});
    let labelled = client.patch("merge", &format!("{path}?fieldManager=label"), &labels).expect(200);
    assert_eq!(managers(&labelled)[0], r#"label Update: {"f:metadata":{"f:labels":{".":{},"f:l":{}}}}"#);
    let mut changed = labelled;
    changed["data"] = json!({"a": "x"});
    changed["metadata"].as_object_mut().unwrap().remove("managedFields");
    let put = client.put(&format!("{path}?fieldManager=put"), &changed).expect(200);
    assert_eq!(
        managers(&put),
        [
            r#"label Update: {"f:metadata":{"f:labels":{".":{},"f:l":{}}}}"#,
            r#"put Update: {"f:data":{"f:a":{}}}"#,
            r#"tool Update: {"f:data":{}}"#
        ],
        "a removed field has no manager, a changed one belongs to the writer"
    );
    // clients may clear managedFields by sending []
    let emptied = json!([{"op": "replace", "path": "/metadata/managedFields", "value": []}]);
    let reset = client.patch("json", &path, &emptied).expect(200);
    assert_eq!(managers(&reset), Vec::<String>::new());
    assert_eq!(reset["data"], json!({"a": "x"}));
    let reset = client.patch("merge", &path, &json!({"metadata": {"managedFields": [{}]}})).expect(200);
    assert_eq!(managers(&reset), Vec::<String>::new());
    // invalid entries are ignored
    apply(&mut client, &path, "one", &map(json!({"a": "x"}))).expect(200);
    let nonsense =
        json!({"metadata": {"managedFields": [{"manager": "x", "operation": "Own", "fieldsV1": {"x": 1}}]}});
    let kept = client.patch("merge", &path, &nonsense).expect(200);
    let before = r#"before-first-apply Update: {"f:data":{".":{},"f:a":{}},"f:metadata":{"f:labels":{".":{},"f:l":{}}}}"#;
    assert_eq!(managers(&kept), [before, r#"one Apply: {"f:data":{"f:a":{}}}"#]);
    let given = json!([{"op": "replace", "path": "/metadata/managedFields/0/manager", "value": "heir"}]);
    let heir = client.patch("json", &path, &given).expect(200);
    assert_eq!(managers(&heir), [before, r#"heir Apply: {"f:data":{"f:a":{}}}"#]);
}

#[test]
fn fields_set_by_admission_have_no_manager() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let mut fields = |path: &str, object: &Value| {
        let made = client.post(&format!("{path}?fieldManager=maker"), object).expect(201);
        made["metadata"]["managedFields"][0]["fieldsV1"].clone()
    };
    let labelled = json!({"metadata": {"name": "n", "labels": {"a": "1"}}});
    let labels = json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}});
    assert_eq!(fields(NODES, &labelled), labels, "the taint of a new node");
    let mut tainted = labelled.clone();
    tainted["metadata"]["name"] = "o".into();
    tainted["spec"] = json!({"taints": [{"key": "k", "effect": "NoSchedule"}]});
    assert_eq!(fields(NODES, &tainted)["f:spec"], json!({"f:taints": {}}), "taints of its own");
    let space = fields("/api/v1/namespaces", &json!({"metadata": {"name": "s"}}));
    let name = json!({".": {}, "f:kubernetes.io/metadata.name": {}});
    assert_eq!(
        space,
        json!({"f:metadata": {"f:labels": name}}),
        "the label is a default and the creator's, the finalizer is not"
    );
    let pod = json!({"metadata": {"name": "p"}, "spec": {"serviceAccountName": "default", "containers": [{"name": "c", "image": "i"}]}});
    let spec = fields("/api/v1/namespaces/default/pods", &pod)["f:spec"].clone();
    let names: Vec<&str> = spec.as_object().unwrap().keys().map(String::as_str).collect();
    let own = [
        "f:containers",
        "f:dnsPolicy",
        "f:enableServiceLinks",
        "f:restartPolicy",
        "f:schedulerName",
        "f:securityContext",
        "f:serviceAccountName",
        "f:terminationGracePeriodSeconds",
    ];
    assert_eq!(names, own);
}

#[test]
fn more_than_ten_managers_are_merged_into_one() {
    let hub = Hub::new();
    let mut client = hub.admin();
    client.post(&format!("{MAPS}?fieldManager=first"), &map(json!({"k": "v"}))).expect(201);
    let mut last = Value::Null;
    for number in 0..15 {
        let path = format!("{MAPS}/m?fieldManager=m{number:02}");
        let data = format!("k{number:02}");
        last = client.patch("merge", &path, &json!({"data": {data: "v"}})).expect(200);
    }
    let lines = managers(&last);
    assert_eq!(lines.len(), 10, "{lines:#?}");
    let ancient = lines.iter().find(|line| line.starts_with("ancient-changes Update:")).unwrap();
    assert!(ancient.contains("\"f:k\"") && ancient.contains("f:k00"), "{ancient}");
    let data = last["data"].as_object().unwrap();
    assert_eq!(data.len(), 16);
    assert!(
        data.keys().all(|key| lines.iter().any(|line| line.contains(&format!("\"f:{key}\"")))),
        "{lines:#?}"
    );
}

#[test]
fn apply_to_status_subresource_owns_status_fields() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let path = format!("{NODES}/n");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"l": "1"}},
        "spec": {"unschedulable": true, "taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {"phase": "ignored", "conditions": [{"type": "Ready", "status": "True"}]}});
    apply(&mut client, &format!("{path}/status"), "s", &node).expect(404);
    let made = apply(&mut client, &path, "one", &node).expect(201);
    assert_eq!(
        managers(&made),
        [
            r#"one Apply: {"f:metadata":{"f:labels":{"f:l":{}}},"f:spec":{"f:taints":{},"f:unschedulable":{}}}"#
        ]
    );
    let mut status = node.clone();
    status["metadata"]["labels"] = Value::Null;
    let reported = apply(&mut client, &format!("{path}/status"), "one", &status).expect(200);
    assert_eq!(reported["status"]["conditions"], node["status"]["conditions"]);
    assert_eq!(
        managers(&reported)[0],
        r#"one Apply status: {"f:metadata":{"f:labels":{}},"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{},"f:status":{},"f:type":{}}},"f:phase":{}}}"#
    );
    status["status"]["conditions"][0]["status"] = "False".into();
    let refused = apply(&mut client, &format!("{path}/status"), "two", &status).expect(409);
    assert_eq!(
        refused["message"],
        "Apply failed with 1 conflict: conflict with \"one\" with subresource \"status\": .status.conditions[type=\"Ready\"].status"
    );
    // a list owned as a whole is one field
    let taints = json!({"apiVersion": "v1", "kind": "Node", "spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]}});
    let refused = apply(&mut client, &path, "two", &taints).expect(409);
    assert_eq!(refused["details"]["causes"][0]["field"], ".spec.taints");
}

#[test]
fn apply_body_is_validated_before_anything_is_stored() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let path = format!("{MAPS}/m");
    let yaml = "# by hand\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\n  labels: {site: quarry}\ndata:\n  text: |\n    one\n    two\n";
    let mut send = |parameters: &str, body: &str| {
        client.send("PATCH", &format!("{path}?{parameters}"), &[APPLY], body.as_bytes())
    };
    let dry = send("fieldManager=x&dryRun=All", yaml).expect(201);
    assert_eq!(dry["data"]["text"], "one\ntwo\n");
    let made = send("fieldManager=x", yaml).expect(201);
    assert_eq!(
        (&made["metadata"]["name"], &made["metadata"]["labels"]["site"]),
        (&json!("m"), &json!("quarry"))
    );
    send("fieldManager=x", "a: [").expect(400);
    send("fieldManager=x", "a: 1\na: 2\n").expect(400);
    send("", yaml).refused(
        422,
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
    );
    send(&format!("fieldManager={}", "x".repeat(129)), yaml).expect(422);
    let type_of = |version: &str, kind: &str| json!({"apiVersion": version, "kind": kind}).to_string();
    for (version, kind, named) in [
        ("", "ConfigMap", "/, Kind=ConfigMap"),
        ("v1", "", "/v1, Kind="),
        ("v1", "Secret", "/v1, Kind=Secret"),
        ("apps/v1", "ConfigMap", "apps/v1, Kind=ConfigMap"),
        ("a/b/c", "ConfigMap", "/, Kind="),
    ] {
        send("fieldManager=x", &type_of(version, kind))
            .refused(400, &format!("invalid object type: {named}"));
    }
    send("fieldManager=x", r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}}"#)
        .expect(400);
    let claims =
        r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"managedFields": [{"manager": "x"}]}}"#;
    send("fieldManager=x", claims).refused(400, "metadata.managedFields must be nil");
    let unknown = r#"{"apiVersion": "v1", "kind": "ConfigMap", "spec": {}, "data": {"a": "1"}}"#;
    for validation in ["Strict", "Warn", "Ignore"] {
        send(&format!("fieldManager=x&fieldValidation={validation}"), unknown).refused(
            400,
            "failed to create typed patch object (default/m; /v1, Kind=ConfigMap): .spec: field not declared in schema",
        );
    }
    let double = r#"{"apiVersion": "v1", "kind": "ConfigMap", "data": {"text": "1", "text": "1"}}"#;
    send("fieldManager=x&fieldValidation=Strict", double).refused(
        400,
        "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  key \"text\" already set in map",
    );
    assert_eq!(
        send("fieldManager=x", double).header("warning"),
        ["299 - \"key \\\"text\\\" already set in map\""]
    );
    assert_eq!(send("fieldManager=x&fieldValidation=Ignore", double).header("warning"), [""; 0]);
    let stale = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"resourceVersion": "1"}, "data": {"a": "2"}}"#;
    send("fieldManager=x", stale).expect(409);
    let twice =
        json!({"apiVersion": "v1", "kind": "Node", "status": {"conditions": [{"type": "R"}, {"type": "R"}]}});
    client.post(NODES, &json!({"metadata": {"name": "n"}})).expect(201);
    let refused = apply(&mut client, &format!("{NODES}/n/status"), "x", &twice).expect(400);
    assert!(refused["message"].as_str().unwrap().contains("duplicate entries"), "{refused}");
    let forced = client.patch("merge", &format!("{path}?force=true"), &json!({}));
    assert_eq!(forced.code, 422);
    apply(&mut client, "/api/v1/namespaces/nosuch/configmaps/m", "x", &map(json!({}))).expect(404);
}

#[test]
fn apply_to_a_missing_object_needs_name_and_no_uid() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let path = format!("{MAPS}/m");
    let nameless = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"}});
    apply(&mut client, &path, "one", &nameless)
        .refused(400, "the name of the object (m based on URL) was undeterminable: name must be provided");
    let mut other = map(json!({"a": "1"}));
    other["metadata"]["uid"] = "u".into();
    apply(&mut client, &path, "one", &other).refused(
        409,
        "Operation cannot be fulfilled on configmaps \"m\": uid mismatch: the provided object specified uid u, and no existing object was found",
    );
    // with a resourceVersion: creates the object if the name is free, else the version is out of date
    let mut since = map(json!({"a": "1"}));
    since["metadata"]["resourceVersion"] = "1".into();
    let made = apply(&mut client, &path, "one", &since).expect(201);
    assert_eq!(made["data"], json!({"a": "1"}));
    apply(&mut client, &path, "one", &since).refused(
        409,
        "Operation cannot be fulfilled on configmaps \"m\": the object has been modified; please apply your changes to the latest version and try again",
    );
    let changed = apply(
        &mut client,
        &path,
        "one",
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "2"}}),
    );
    assert_eq!(
        changed.expect(200)["data"],
        json!({"a": "2"}),
        "the name of an existing object may be omitted"
    );
}

#[test]
fn heartbeats_record_no_manager() {
    let hub = Hub::new();
    let (mut admin, mut node) = (hub.admin(), hub.node("n"));
    let made = node.post(NODES, &json!({"metadata": {"name": "n"}})).expect(201);
    assert_eq!(managers(&made), Vec::<String>::new());
    let path = format!("{NODES}/n");
    let ready = |status: &str| json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
    node.patch("strategic-merge", &format!("{path}/status"), &ready("True")).expect(200);
    // an administrator's change has a manager, until the node's next report replaces it
    let set = admin
        .patch("strategic-merge", &format!("{path}/status?fieldManager=hand"), &ready("False"))
        .expect(200);
    assert!(managers(&set)[0].starts_with("hand Update status:"), "{set}");
    let back = node.patch("strategic-merge", &format!("{path}/status"), &ready("True")).expect(200);
    assert_eq!(managers(&back), Vec::<String>::new());

    let lease = format!("{LEASES}/n");
    let renewal = |second: u32| json!({"metadata": {"name": "n"}, "spec": {"renewTime": format!("2026-01-01T00:00:{second:02}.000000Z")}});
    node.put(&lease, &renewal(1)).expect(201);
    let renewed = node.patch("merge", &lease, &renewal(2)).expect(200);
    assert_eq!(managers(&renewed), Vec::<String>::new());
    // a Lease outside of the nodes' namespace (leader election) has one manager with a constant time
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    admin.post(path, &renewal(1)).expect(201);
    let first = admin.patch("merge", &format!("{path}/n?fieldManager=elect"), &renewal(2)).expect(200);
    let second = admin.patch("merge", &format!("{path}/n?fieldManager=elect"), &renewal(3)).expect(200);
    assert_eq!(second["metadata"]["managedFields"], first["metadata"]["managedFields"]);
    assert_ne!(second["spec"], first["spec"]);
}

#[test]
fn concurrent_applies_keep_all_fields() {
    const CLIENTS: usize = 6;
    let hub = Hub::new();
    let client = hub.admin();
    let path = format!("{MAPS}/m");
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (mut client, path) = (client.another(), &path);
            scope.spawn(move || {
                for count in 0..5 {
                    let data = json!({format!("k{number}"): count.to_string()});
                    let reply = apply(&mut client, path, &format!("m{number}"), &map(data));
                    assert!(matches!(reply.code, 200 | 201), "{reply:?}");
                }
            });
        }
    });
    let mut client = hub.admin();
    let stored = client.get(&path).expect(200);
    let expect: serde_json::Map<String, Value> =
        (0..CLIENTS).map(|number| (format!("k{number}"), "4".into())).collect();
    assert_eq!(stored["data"], Value::Object(expect));
    assert_eq!(managers(&stored).len(), CLIENTS);
}

#[test]
fn first_apply_attributes_unmanaged_fields() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let mut node = hub.node("n");
    let labels =
        json!({"metadata": {"name": "n", "labels": {"site": "quarry"}}, "status": {"phase": "Running"}});
    node.post("/api/v1/nodes", &labels).expect(201);
    let path = "/api/v1/nodes/n";
    let wanted = |site: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"site": site}}, "spec": {"unschedulable": true}});
    let refused = apply(&mut client, path, "team", &wanted("mill")).expect(409);
    assert_eq!(
        refused["message"],
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .metadata.labels.site"
    );
    // an equal value is shared; status fields are not attributed
    let shared = apply(&mut client, path, "team", &wanted("quarry")).expect(200);
    let entries = shared["metadata"]["managedFields"].as_array().unwrap();
    let of = |name: &str| entries.iter().find(|entry| entry["manager"] == name).unwrap()["fieldsV1"].clone();
    let site = json!({"f:labels": {"f:site": {}}});
    assert_eq!(of("team"), json!({"f:metadata": site, "f:spec": {"f:unschedulable": {}}}));
    assert!(of("before-first-apply")["f:metadata"]["f:labels"]["f:site"].is_object(), "{shared}");
    assert!(of("before-first-apply").get("f:status").is_none(), "{shared}");
    let taken = apply(&mut client, path, "team&force=true", &wanted("mill")).expect(200);
    assert_eq!(taken["metadata"]["labels"]["site"], "mill");
    // after managedFields was cleared, fields are attributed again at the next apply
    let map_path = "/api/v1/namespaces/default/configmaps/m";
    client.post("/api/v1/namespaces/default/configmaps", &map(json!({"a": "1"}))).expect(201);
    client.patch("merge", map_path, &json!({"metadata": {"managedFields": [{}]}})).expect(200);
    let reply = apply(&mut client, map_path, "team", &map(json!({"a": "2"})));
    assert_eq!(reply.expect(409)["details"]["causes"][0]["field"], ".data.a");
}
