//! The API over real TLS: verbs, patches, watches, lists, refusals, as clients see them.
//!
//! Each test has its own hub. These tests check details that the kubectl tests cannot see: versions, order,
//! exact error messages, and the forms of an answer that our own agents request.

use crate::server::{Client, Hub, scratch};
use crate::{JSON, LEASES, MAPS, NODES};
use serde_json::{Value, json};

fn map(name: &str, data: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"k": data}})
}

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
}

fn version(value: &Value) -> String {
    value["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[test]
fn object_is_created_replaced_and_deleted() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let made = client.post(MAPS, &map("a", "1")).expect(201);
    assert_eq!(
        (made["kind"].as_str(), made["metadata"]["namespace"].as_str()),
        (Some("ConfigMap"), Some("default"))
    );
    client.post(MAPS, &map("a", "1")).refused(409, "configmaps \"a\" already exists");
    let path = format!("{MAPS}/a");
    assert_eq!(client.get(&path).expect(200), made);
    let mut changed = made.clone();
    changed["data"]["k"] = "2".into();
    let second = client.put(&path, &changed).expect(200);
    assert_ne!(version(&second), version(&made));
    client.put(&path, &changed).refused(
        409,
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again",
    );
    // no version: unconditional; no change: no new version
    assert_eq!(version(&client.put(&path, &map("a", "2")).expect(200)), version(&second));
    client
        .put(&path, &map("b", "2"))
        .refused(400, "the name of the object (b) does not match the name on the URL (a)");
    client
        .put(&format!("{MAPS}/nosuch"), &map("nosuch", "2"))
        .refused(404, "configmaps \"nosuch\" not found");
    let gone = client.delete(&path).expect(200);
    assert_eq!((gone["kind"].as_str(), gone["status"].as_str()), (Some("Status"), Some("Success")));
    assert_eq!(gone["details"], json!({"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}));
    client.get(&path).refused(404, "configmaps \"a\" not found");
    client.delete(&path).refused(404, "configmaps \"a\" not found");
    let generated = client.post(MAPS, &json!({"metadata": {"generateName": "x-"}})).expect(201);
    assert_eq!(generated["metadata"]["name"].as_str().map(str::len), Some(7));
}

#[test]
fn invalid_requests_get_upstreams_refusals() {
    let hub = Hub::new();
    let mut client = hub.admin();
    client.get("/apis/apps/v1/gadgets").refused(404, "the server could not find the requested resource");
    client
        .post("/api/v1/configmaps", &map("a", "1"))
        .refused(405, "the server does not allow this method on the requested resource");
    client
        .post("/api/v1/namespaces/nosuch/configmaps", &map("a", "1"))
        .refused(404, "namespaces \"nosuch\" not found");
    client.post(NODES, &json!({"kind": "ConfigMap"})).expect(400);
    client.post(&format!("{NODES}?fieldValidation=Strict"), &json!({"metadata": {"name": "n"}, "spec": {"foo": 1}})).refused(
        400,
        "Node in version \"v1\" cannot be handled as a Node: strict decoding error: unknown field \"spec.foo\"",
    );
    let warned = client.post(NODES, &json!({"metadata": {"name": "n"}, "spec": {"foo": 1}}));
    assert_eq!(warned.header("warning"), ["299 - \"unknown field \\\"spec.foo\\\"\""]);
    assert!(warned.expect(201)["spec"].get("foo").is_none());
    client.send("POST", MAPS, &[("content-type", "application/yaml")], b"a: b").expect(415);
    client.send("PATCH", &format!("{NODES}/n"), &[("content-type", "application/yaml")], b"{}").expect(415);
    client.send("POST", MAPS, &[JSON], b"{").expect(400);
    client.send("GET", NODES, &[("accept", "application/yaml")], b"").expect(406);
    client.post(MAPS, &map("Bad_Name", "1")).expect(422);
    client.post(MAPS, &map("big", &"x".repeat(1024 * 1024 + 1))).expect(422);
    let huge = vec![b' '; 3 * 1024 * 1024 + 1];
    assert_eq!(hub.admin().send("POST", MAPS, &[JSON], &huge).code, 413);
    client
        .get(&format!("{NODES}?fieldSelector=spec.foo%3D1"))
        .refused(400, "field label not supported: spec.foo");
    client.get(&format!("{NODES}?resourceVersion=999999999")).expect(504);
    let mut anonymous = hub.anonymous();
    for path in [NODES, "/api", "/metrics"] {
        anonymous.get(path).refused(401, "Unauthorized");
    }
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(anonymous.get(path).body, b"ok", "{path}");
    }
    anonymous.get("/version").expect(200);
}

#[test]
fn body_naming_another_object_is_refused() {
    let hub = Hub::new();
    let mut client = hub.admin();
    client.post(MAPS, &map("a", "1")).expect(201);
    let path = format!("{MAPS}/a");
    let renamed = "the name of the object (b) does not match the name on the URL (a)";
    let nameless = "the name of the object (a based on URL) was undeterminable: name must be provided";
    let moved = "the namespace of the provided object does not match the namespace sent on the request (\"x\", \"default\")";
    for form in ["merge", "strategic-merge"] {
        let mut patch = |meta: Value| client.patch(form, &path, &json!({"metadata": meta}));
        patch(json!({"name": "b"})).refused(400, renamed);
        patch(json!({"name": null})).refused(400, nameless);
        patch(json!({"namespace": "x"})).refused(400, moved);
        patch(json!({"namespace": null})).expect(200);
    }
    let rename = json!([{"op": "replace", "path": "/metadata/name", "value": "b"}]);
    client.patch("json", &path, &rename).refused(400, renamed);
    client.put(&path, &json!({"data": {"k": "2"}})).refused(400, nameless);
    client.put(&path, &json!({"metadata": {"name": "a", "namespace": "x"}})).refused(400, moved);
    assert_eq!(client.get(&path).expect(200)["data"], json!({"k": "1"}));
}

#[test]
fn contradictory_delete_options_delete_nothing() {
    let hub = Hub::new();
    let mut client = hub.admin();
    client.post(MAPS, &map("a", "1")).expect(201);
    let path = format!("{MAPS}/a");
    let mut refused = |query: &str, body: &Value, code: u16, message: &str| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        client.send("DELETE", &format!("{path}{query}"), &[JSON], body.as_bytes()).refused(code, message);
    };
    let other = json!({"kind": "Eviction", "apiVersion": "policy/v1"});
    refused("", &other, 400, "the body is a Eviction, expected a DeleteOptions");
    let both = "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Invalid value: \"Orphan\": orphanDependents and deletionPropagation cannot be both set";
    refused("", &json!({"orphanDependents": true, "propagationPolicy": "Orphan"}), 422, both);
    refused("?orphanDependents=true&propagationPolicy=Orphan", &Value::Null, 422, both);
    let unknown = "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"Foo\": supported values: \"Background\", \"Foreground\", \"Orphan\"";
    refused("?propagationPolicy=Foo", &Value::Null, 422, unknown);
    // a negative grace period means one second for a pod, and zero for other kinds
    client.send("DELETE", &format!("{path}?gracePeriodSeconds=-1"), &[], b"").expect(200);
    client.get(&path).expect(404);
}

#[test]
fn unset_spec_and_status_are_empty_objects() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let mut made = node("n");
    made["status"] = ready;
    assert_eq!(client.post(NODES, &made).expect(201)["spec"], json!({}));
    let cordon = json!([{"op": "add", "path": "/spec/unschedulable", "value": true}]);
    let cordoned = client.patch("json", &format!("{NODES}/n"), &cordon).expect(200);
    assert_eq!(cordoned["spec"]["unschedulable"], true);
    let lease = client.post(LEASES, &json!({"metadata": {"name": "l"}})).expect(201);
    assert_eq!((&lease["spec"], lease["metadata"].get("managedFields")), (&json!({}), None));
    let labels = json!({"app": "d"});
    let set = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": labels}, "template": {
        "metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let set = client.post("/apis/apps/v1/namespaces/default/daemonsets", &set).expect(201);
    assert_eq!(
        (&set["status"]["numberReady"], &set["status"]["desiredNumberScheduled"]),
        (&json!(0), &json!(0))
    );
}

#[test]
fn answers_are_indented_on_request_and_for_curl() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let mut is_indented = |path: &str, agent: &str| {
        let reply = client.send("GET", path, &[("user-agent", agent)], b"");
        serde_json::from_slice::<Value>(&reply.body).unwrap();
        reply.body.iter().filter(|byte| **byte == b'\n').count() > 1
    };
    assert!(!is_indented("/api/v1/namespaces", "kubectl/v1.36.0"));
    assert!(is_indented("/api/v1/namespaces?pretty=true", "kubectl/v1.36.0"));
    assert!(is_indented("/api/v1/namespaces/default", "curl/8.0"));
    assert!(is_indented("/nosuch", "curl/8.0"), "errors are indented, too");
    assert!(!is_indented("/api/v1/namespaces?pretty=false", "curl/8.0"));
    let paths = client.get("/").expect(200)["paths"].clone();
    let paths: Vec<&str> = paths.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for path in &paths {
        assert_eq!(client.get(path).code, 200, "{path}");
    }
    assert!(paths.contains(&"/apis/apps/v1") && paths.contains(&"/metrics"), "{paths:?}");
}

#[test]
fn each_patch_format_changes_only_the_fields_it_names() {
    let hub = Hub::new();
    let mut client = hub.admin();
    client.post(NODES, &node("n")).expect(201);
    let path = format!("{NODES}/n");
    let source = json!({"configMapRef": {"namespace": "default", "name": "c", "uid": "u"}});
    let patched =
        client.patch("strategic-merge", &path, &json!({"spec": {"configSource": source}})).expect(200);
    assert_eq!(patched["spec"]["configSource"], source);
    client.patch("merge", &path, &json!({"metadata": {"labels": {"a": "1"}}})).expect(200);
    let operations = json!([{"op": "add", "path": "/metadata/labels/b", "value": "2"}, {"op": "remove", "path": "/metadata/labels/a"}]);
    let patched = client.patch("json", &path, &operations).expect(200);
    assert_eq!(patched["metadata"]["labels"], json!({"b": "2"}));
    // status changes only through the status subresource, conditions are merged by type
    let ready = |status: &str| json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
    client.patch("strategic-merge", &format!("{path}/status"), &ready("True")).expect(200);
    let other = json!({"status": {"conditions": [{"type": "ConfigOK", "status": "True"}]}, "spec": {"unschedulable": true}});
    let patched = client.patch("strategic-merge", &format!("{path}/status"), &other).expect(200);
    assert_eq!(patched["status"]["conditions"].as_array().map(Vec::len), Some(2));
    assert!(patched["spec"].get("unschedulable").is_none());
    let before = version(&patched);
    assert_eq!(version(&client.patch("strategic-merge", &path, &ready("False")).expect(200)), before);
    // a patch with an old version conflicts, one without a version is applied to the stored object
    let stale = json!({"metadata": {"resourceVersion": "1", "labels": {"c": "3"}}});
    assert_eq!(client.patch("merge", &path, &stale).code, 409);
    let test = json!([{"op": "test", "path": "/metadata/labels/b", "value": "x"}]);
    assert_eq!(client.patch("json", &path, &test).code, 422);
    assert_eq!(client.patch("merge", &path, &json!({"kind": "ConfigMap"})).code, 400);
    assert_eq!(client.patch("merge", &path, &json!({"spec": {"unschedulable": "x"}})).code, 422);
    assert_eq!(client.patch("merge", &format!("{NODES}/nosuch"), &json!({})).code, 404);
    let strict = format!("{path}?fieldValidation=Strict");
    assert_eq!(client.patch("merge", &strict, &json!({"spec": {"foo": 1}})).code, 422);
    // dry run answers and stores nothing
    let dry = client
        .patch("merge", &format!("{path}?dryRun=All"), &json!({"spec": {"unschedulable": true}}))
        .expect(200);
    assert_eq!(dry["spec"]["unschedulable"], true);
    let stored = client.get(&path).expect(200);
    assert!(stored["spec"].get("unschedulable").is_none());
    assert_eq!(version(&stored), before);
    client.post(&format!("{MAPS}?dryRun=All"), &map("dry", "1")).expect(201);
    client.get(&format!("{MAPS}/dry")).expect(404);
}

#[test]
fn concurrent_patches_without_version_all_succeed() {
    const CLIENTS: usize = 8;
    const PATCHES: usize = 12;
    let hub = Hub::new();
    let mut client = hub.admin();
    client.post(MAPS, &map("shared", "1")).expect(201);
    let path = format!("{MAPS}/shared");
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (mut client, path) = (client.another(), &path);
            scope.spawn(move || {
                for count in 0..PATCHES {
                    let key = format!("k{number}-{count}");
                    let reply = match number % 3 {
                        0 => client.patch("merge", path, &json!({"data": {key: "x"}})),
                        1 => client.patch("strategic-merge", path, &json!({"data": {key: "x"}})),
                        _ => {
                            let operation =
                                json!([{"op": "add", "path": format!("/data/{key}"), "value": "x"}]);
                            client.patch("json", path, &operation)
                        }
                    };
                    reply.expect(200);
                }
            });
        }
    });
    let stored = client.get(&path).expect(200);
    assert_eq!(stored["data"].as_object().map(serde_json::Map::len), Some(CLIENTS * PATCHES + 1));
}

#[test]
fn config_source_is_stored_warned_about_or_refused() {
    let hub = Hub::new();
    let mut client = hub.admin();
    client.post(NODES, &node("n")).expect(201);
    let path = format!("{NODES}/n");
    let reply = client.patch("merge", &path, &json!({"spec": {"configSource": {}}}));
    assert_eq!(reply.header("warning").len(), 1);
    assert_eq!(reply.expect(200)["spec"]["configSource"], json!({}));
    let other = client.patch("merge", &path, &json!({"metadata": {"labels": {"a": "b"}}}));
    assert!(other.header("warning").is_empty());
    let bad = json!({"spec": {"configSource": {"configMap": {"namespace": "default", "name": "c"}}}});
    client.patch("merge", &path, &bad).refused(
        422,
        "Node \"n\" is invalid: spec.configSource.configMap.kubeletConfigKey: Required value: kubeletConfigKey must be set",
    );
    assert_eq!(client.get(&path).expect(200)["spec"]["configSource"], json!({}));
    let cleared = client.patch("merge", &path, &json!({"spec": {"configSource": null}})).expect(200);
    assert!(cleared["spec"].get("configSource").is_none());
}

#[test]
fn lease_rules_hold_and_leases_go_with_their_node() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let made = client.post(NODES, &node("n")).expect(201);
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": made["metadata"]["uid"]});
    let lease =
        json!({"metadata": {"name": "n", "ownerReferences": [owner]}, "spec": {"holderIdentity": "n"}});
    let path = format!("{LEASES}/n");
    client.put(&path, &lease).expect(201);
    client.put(&path, &lease).refused(
        422,
        "Lease.coordination.k8s.io \"n\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update",
    );
    let renewal = json!({"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}});
    client.patch("merge", &path, &renewal).expect(200);
    assert_eq!(client.patch("merge", &path, &json!({"spec": {"leaseDurationSeconds": 0}})).code, 422);
    let mut watch = client.watch(&format!("{LEASES}?watch=true&fieldSelector=metadata.name%3Dn"));
    assert_eq!(watch.event(), "ADDED n");
    client.delete(&format!("{NODES}/n")).expect(200);
    assert_eq!(watch.event(), "DELETED n");
    // a lease whose owner never existed is deleted, too
    let orphan = json!({"metadata": {"name": "o", "ownerReferences": [owner]}});
    let made = client.post(LEASES, &orphan).expect(201);
    let since = version(&made);
    let query = format!("watch=true&fieldSelector=metadata.name%3Do&resourceVersion={since}");
    assert_eq!(client.watch(&format!("{LEASES}?{query}")).event(), "DELETED o");
}

#[test]
fn agents_get_minimal_answers() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let minimal = [JSON, ("prefer", "return=minimal")];
    let made = client.send("POST", NODES, &minimal, node("n").to_string().as_bytes());
    assert_eq!((made.code, made.body.len()), (201, 0));
    let merge = [("content-type", "application/merge-patch+json"), ("prefer", "return=minimal")];
    let patched =
        client.send("PATCH", &format!("{NODES}/n"), &merge, br#"{"metadata":{"labels":{"a":"b"}}}"#);
    assert_eq!(patched.head(), "HTTP/1.1 204 No Content\r\n\r\n");
    let partial = [("accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")];
    let found = client.send("GET", &format!("{NODES}/n"), &partial, b"").expect(200);
    assert_eq!(
        (&found["kind"], &found["metadata"]["labels"]["a"]),
        (&json!("PartialObjectMetadata"), &json!("b"))
    );
    assert!(found.get("spec").is_none());
}

#[test]
fn watch_sends_each_change_once_and_in_order() {
    let hub = Hub::new();
    let mut client = hub.admin();
    client.post(MAPS, &map("a", "1")).expect(201);
    let listed = version(&client.get(MAPS).expect(200));
    let mut all = client.watch(&format!("{MAPS}?watch=true&resourceVersion={listed}"));
    let mut gold =
        client.watch(&format!("{MAPS}?watch=true&resourceVersion={listed}&labelSelector=tier%3Dgold"));
    let label = |tier: &str| json!({"metadata": {"labels": {"tier": tier}}});
    client.post(MAPS, &map("b", "1")).expect(201);
    client.patch("merge", &format!("{MAPS}/a"), &label("gold")).expect(200);
    client.patch("merge", &format!("{MAPS}/a"), &json!({"data": {"k": "2"}})).expect(200);
    client.patch("merge", &format!("{MAPS}/a"), &label("iron")).expect(200);
    client.delete(&format!("{MAPS}/a")).expect(200);
    for expect in ["ADDED b", "MODIFIED a", "MODIFIED a", "MODIFIED a", "DELETED a"] {
        assert_eq!(all.event(), expect);
    }
    for expect in ["ADDED a", "MODIFIED a", "DELETED a"] {
        assert_eq!(gold.event(), expect);
    }
    // a watch from an old version replays the same events
    let mut replay =
        client.watch(&format!("{MAPS}?watch=true&resourceVersion={listed}&labelSelector=tier%3Dgold"));
    let mut last = 0;
    for expect in ["ADDED", "MODIFIED", "DELETED"] {
        let event = replay.next().unwrap();
        assert_eq!(event["type"], expect);
        let now = version(&event["object"]).parse::<u64>().unwrap();
        assert!(now > last);
        last = now;
    }
    client.get(&format!("{MAPS}?watch=true&resourceVersion=1000000")).expect(504);
}

#[test]
fn streamed_list_and_ending_watch_send_a_bookmark() {
    let hub = Hub::new();
    let mut client = hub.admin();
    for name in ["b", "a"] {
        client.post(MAPS, &map(name, "1")).expect(201);
    }
    let query = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1";
    let mut watch = client.watch(&format!("{MAPS}?{query}"));
    let present = [watch.event(), watch.event(), watch.event()];
    assert_eq!(present, ["ADDED a", "ADDED b", "ADDED kube-root-ca.crt"]);
    let bookmark = watch.next().unwrap();
    assert_eq!((&bookmark["type"], &bookmark["object"]["kind"]), (&json!("BOOKMARK"), &json!("ConfigMap")));
    assert_eq!(bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    client.post(NODES, &node("elsewhere")).expect(201);
    let last = watch.next().unwrap();
    assert_eq!(last["type"], "BOOKMARK");
    let number = |event: &Value| version(&event["object"]).parse::<u64>().unwrap();
    assert!(number(&last) > number(&bookmark));
    assert!(watch.next().is_none());
    client.get(&format!("{MAPS}?watch=true&sendInitialEvents=true")).expect(422);
}

#[test]
fn list_pages_show_one_revision() {
    let hub = Hub::new();
    let mut client = hub.admin();
    for name in ["a", "b", "c", "d"] {
        client.post(MAPS, &map(name, "1")).expect(201);
    }
    let first = client.get(&format!("{MAPS}?limit=2")).expect(200);
    assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["a", "b"], &json!(3)));
    client.delete(&format!("{MAPS}/c")).expect(200);
    client.post(MAPS, &map("e", "1")).expect(201);
    let token = first["metadata"]["continue"].as_str().unwrap().replace('=', "%3D").replace('+', "%2B");
    let second = client.get(&format!("{MAPS}?limit=2&continue={token}")).expect(200);
    assert_eq!((names(&second), version(&second)), (vec!["c", "d"], version(&first)));
    assert_eq!(second["metadata"]["remainingItemCount"], 1);
    let rest = client.get(&format!("{MAPS}?limit=3&continue={token}")).expect(200);
    assert_eq!(names(&rest), ["c", "d", "kube-root-ca.crt"]);
    assert!(rest["metadata"].get("continue").is_none());
    let exact = format!("{MAPS}?resourceVersion={}&resourceVersionMatch=Exact", version(&first));
    assert_eq!(names(&client.get(&exact).expect(200)), ["a", "b", "c", "d", "kube-root-ca.crt"]);
    assert_eq!(names(&client.get(MAPS).expect(200)), ["a", "b", "d", "e", "kube-root-ca.crt"]);
    client.get("/api/v1/configmaps?continue=bm9uc2Vuc2U").expect(400);
    client.get(&format!("{MAPS}?resourceVersionMatch=Exact")).expect(422);
}

#[test]
fn delete_honours_finalizers_preconditions_and_selectors() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let path = format!("{MAPS}/held");
    let held = json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}});
    client.post(MAPS, &held).expect(201);
    let other = json!({"preconditions": {"uid": "other"}}).to_string();
    assert_eq!(client.send("DELETE", &path, &[JSON], other.as_bytes()).code, 409);
    let marked = client.delete(&path).expect(200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    client.post(MAPS, &held).refused(409, "object is being deleted: configmaps \"held\" already exists");
    let more = json!({"metadata": {"finalizers": ["example.com/hold", "example.com/new"]}});
    assert_eq!(client.patch("merge", &path, &more).code, 422);
    client.patch("merge", &path, &json!({"metadata": {"finalizers": null}})).expect(200);
    client.get(&path).expect(404);
    for name in ["a", "b"] {
        client.post(MAPS, &json!({"metadata": {"name": name, "labels": {"l": name}}})).expect(201);
    }
    client.delete(&format!("{MAPS}?labelSelector=l%3Da")).expect(200);
    assert_eq!(names(&client.get(MAPS).expect(200)), ["b", "kube-root-ca.crt"]);
    client
        .delete("/api/v1/namespaces/default")
        .refused(403, "namespaces \"default\" is forbidden: this namespace may not be deleted");
}

#[test]
fn deleted_namespace_takes_its_objects_with_it() {
    let hub = Hub::new();
    let mut client = hub.admin();
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "team"}})).expect(201);
    let maps = "/api/v1/namespaces/team/configmaps";
    client.post(maps, &map("a", "1")).expect(201);
    client.post(maps, &json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}})).expect(201);
    let mut watch = client.watch("/api/v1/namespaces?watch=true&fieldSelector=metadata.name%3Dteam");
    assert_eq!(watch.event(), "ADDED team");
    let marked = client.delete("/api/v1/namespaces/team").expect(200);
    assert_eq!(marked["status"]["phase"], "Terminating");
    assert_eq!(client.post(maps, &map("late", "1")).code, 403);
    let released = json!({"metadata": {"finalizers": null}});
    // the namespace's deletion may mark this object at the same time; the patch is then retried on the new
    // version
    client.patch("merge", &format!("{maps}/held"), &released).expect(200);
    let mut event = watch.event();
    while event == "MODIFIED team" {
        event = watch.event();
    }
    assert_eq!(event, "DELETED team");
    assert_eq!(names(&client.get(maps).expect(200)), Vec::<&str>::new());
}

#[test]
fn owner_deletion_orphans_or_waits_for_dependents() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let owned = |client: &mut Client, owner: &str, name: &str| {
        let owner = client.post(MAPS, &map(owner, "1")).expect(201);
        let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true});
        client.post(MAPS, &json!({"metadata": {"name": name, "ownerReferences": [reference]}})).expect(201);
    };
    let finish = |client: &mut Client, owner: &str, policy: &str| {
        let mut watch = client.watch(&format!("{MAPS}?watch=true&fieldSelector=metadata.name%3D{owner}"));
        client.delete(&format!("{MAPS}/{owner}?propagationPolicy={policy}")).expect(200);
        while watch.event() != format!("DELETED {owner}") {}
    };
    owned(&mut client, "o1", "d1");
    finish(&mut client, "o1", "Orphan");
    assert!(client.get(&format!("{MAPS}/d1")).expect(200)["metadata"].get("ownerReferences").is_none());
    owned(&mut client, "o2", "d2");
    finish(&mut client, "o2", "Foreground");
    client.get(&format!("{MAPS}/d2")).expect(404);
    // without blockOwnerDeletion the dependent is deleted after the owner
    let owner = client.post(MAPS, &map("o3", "1")).expect(201);
    let held = json!({"metadata": {"name": "d3", "finalizers": ["example.com/hold"], "ownerReferences": [{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "o3", "uid": owner["metadata"]["uid"]}]}});
    client.post(MAPS, &held).expect(201);
    finish(&mut client, "o3", "Foreground");
    let mut watch = client.watch(&format!("{MAPS}?watch=true&fieldSelector=metadata.name%3Dd3"));
    while watch.next().is_some_and(|event| event["object"]["metadata"]["deletionTimestamp"].is_null()) {}
    // a dependent with dependents of its own waits for those first
    owned(&mut client, "o4", "d4");
    let middle = client.get(&format!("{MAPS}/d4")).expect(200);
    let mut last = held.clone();
    last["metadata"]["name"] = "e4".into();
    last["metadata"]["ownerReferences"][0]["name"] = "d4".into();
    last["metadata"]["ownerReferences"][0]["uid"] = middle["metadata"]["uid"].clone();
    last["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = true.into();
    client.post(MAPS, &last).expect(201);
    let mut gone = client.watch(&format!("{MAPS}?watch=true&fieldSelector=metadata.name%3Do4"));
    let mut ends = client.watch(&format!("{MAPS}?watch=true&fieldSelector=metadata.name%3De4"));
    client.delete(&format!("{MAPS}/o4?propagationPolicy=Foreground")).expect(200);
    while ends.next().is_some_and(|event| event["object"]["metadata"]["deletionTimestamp"].is_null()) {}
    client.get(&format!("{MAPS}/o4")).expect(200);
    let middle = client.get(&format!("{MAPS}/d4")).expect(200);
    assert_eq!(middle["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    client.patch("merge", &format!("{MAPS}/e4"), &json!({"metadata": {"finalizers": null}})).expect(200);
    while gone.event() != "DELETED o4" {}
    assert_eq!(client.delete(&format!("{MAPS}/d1?propagationPolicy=Nonsense")).code, 422);
}

#[test]
fn tables_have_upstreams_columns() {
    let hub = Hub::new();
    let mut client = hub.admin();
    client.post(NODES, &node("n")).expect(201);
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")];
    let table = client.send("GET", NODES, &accept, b"").expect(200);
    let titles: Vec<&str> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| column["name"].as_str().unwrap())
        .collect();
    assert_eq!(&titles[..5], ["Name", "Status", "Roles", "Age", "Version"]);
    assert_eq!(table["rows"][0]["cells"][0], "n");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let table = client.send("GET", &format!("{NODES}?includeObject=Object"), &accept, b"").expect(200);
    assert_eq!(table["rows"][0]["object"]["kind"], "Node");
}

#[test]
fn node_credential_reaches_only_its_own_objects() {
    let hub = Hub::new();
    let (mut admin, mut agent) = (hub.admin(), hub.node("edge-1"));
    agent.post(NODES, &node("edge-1")).expect(201);
    assert_eq!(agent.post(NODES, &node("edge-2")).code, 403);
    admin.post(MAPS, &map("mine", "1")).expect(201);
    let path = format!("{MAPS}/mine");
    assert_eq!(agent.get(&path).code, 403);
    let source = json!({"spec": {"configSource": {"configMap": {"namespace": "default", "name": "mine", "kubeletConfigKey": "k"}}}});
    assert_eq!(agent.patch("merge", &format!("{NODES}/edge-1"), &source).code, 403);
    admin.patch("merge", &format!("{NODES}/edge-1"), &source).expect(200);
    agent.get(&path).expect(200);
    let mut watch = agent.watch(&format!("{NODES}?watch=true&fieldSelector=metadata.name%3Dedge-1"));
    assert_eq!(watch.event(), "ADDED edge-1");
    assert_eq!(agent.get(&format!("{NODES}?watch=true")).code, 403);
    agent.put(&format!("{LEASES}/edge-1"), &json!({"metadata": {"name": "edge-1"}})).expect(201);
    assert_eq!(agent.send("GET", &path, &[("impersonate-user", "admin")], b"").code, 403);
    let as_agent = [("impersonate-user", "system:node:edge-1"), ("impersonate-group", "system:nodes")];
    assert_eq!(admin.send("DELETE", &format!("{NODES}/edge-1"), &as_agent, b"").code, 403);
}

#[test]
fn restart_ends_watches_and_keeps_the_revision() {
    let data = scratch();
    let hub = Hub::start(data.path());
    let mut client = hub.admin();
    let made = client.post(MAPS, &map("a", "1")).expect(201);
    let mut watch = client.watch(&format!("{MAPS}?watch=true&resourceVersion={}", version(&made)));
    hub.terminate();
    assert!(watch.next().is_none());
    let hub = Hub::start(data.path());
    let mut client = hub.admin();
    // a watch may resume from the version of a clean stop, but not from an older one
    let mut watch = client.watch(&format!("{MAPS}?watch=true&resourceVersion={}", version(&made)));
    client.post(MAPS, &map("b", "1")).expect(201);
    assert_eq!(watch.event(), "ADDED b");
    let older = version(&made).parse::<u64>().unwrap() - 1;
    let mut refused = client.watch(&format!("{MAPS}?watch=true&resourceVersion={older}"));
    let event = refused.next().unwrap();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(event["object"]["reason"], "Expired");
    assert!(refused.next().is_none());
}

#[test]
fn large_body_is_drained_so_the_refusal_arrives() {
    let hub = Hub::new();
    let mut node = hub.node("n");
    // larger than the socket buffers: a hub that answers and closes at once would reset the connection
    let large = map("m", &"x".repeat(200 * 1024)).to_string();
    for _ in 0..5 {
        let refused = node.send("PUT", &format!("{MAPS}/m"), &[JSON], large.as_bytes()).expect(403);
        assert_eq!(refused["reason"], "Forbidden");
    }
    // the same connection still serves an allowed request
    node.post(NODES, &json!({"metadata": {"name": "n"}})).expect(201);
    // the same for every kind of error, and for anonymous callers
    let (mut admin, mut nobody) = (hub.admin(), hub.anonymous());
    for (method, path, code) in [
        ("POST", "/api/v1/gizmos", 404),
        ("POST", &*format!("{MAPS}/m/nothing"), 404),
        ("PUT", MAPS, 405),
        ("PUT", "/api/v1/namespaces/default/bindings", 405),
        ("POST", "/version", 405),
        ("POST", &*format!("{MAPS}?dryRun=Some"), 422),
        ("POST", &*format!("{MAPS}?watch=%zz"), 400),
    ] {
        assert_eq!(admin.send(method, path, &[JSON], large.as_bytes()).code, code, "{method} {path}");
        let refused = nobody.send(method, path, &[JSON], large.as_bytes());
        assert!((400..500).contains(&refused.code), "{method} {path}: {}", refused.code);
    }
    assert_eq!(nobody.send("POST", MAPS, &[JSON], large.as_bytes()).code, 401);
    admin.get(NODES).expect(200);
    nobody.get("/readyz");
}
