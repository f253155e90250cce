//! events.k8s.io/v1 and the Service `default/kubernetes`, as Go clients use them: the first API of
//! client-go's recorders, and the first object that a client in a cluster looks for.

use crate::server::Hub;
use crate::{JSON, NODES};
use serde_json::{Value, json};

const CORE: &str = "/api/v1/namespaces/default/events";
const NEW: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

fn event(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"test": "yes"}}, "eventTime": "2026-01-01T00:00:00.000000Z", "action": "A", "reason": "R",
        "note": "a note", "type": "Normal", "reportingController": "example.com/c", "reportingInstance": "c-1",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}})
}

#[test]
fn event_is_one_object_under_two_types() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let made = client.post(NEW, &event("e")).expect(201);
    assert_eq!((&made["apiVersion"], &made["note"]), (&json!("events.k8s.io/v1"), &json!("a note")));
    let core = client.get(&format!("{CORE}/e")).expect(200);
    assert_eq!((&core["apiVersion"], &core["message"]), (&json!("v1"), &json!("a note")));
    assert_eq!(core["metadata"]["uid"], made["metadata"]["uid"]);
    assert_eq!(client.get(&format!("{NEW}/e")).expect(200), made);

    // the forms of an answer
    let selected = format!(
        "{NEW}?fieldSelector=reportingController%3Dexample.com/c,regarding.name%3Dp&labelSelector=test"
    );
    let list = client.get(&selected).expect(200);
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("EventList"), &json!("events.k8s.io/v1")));
    assert_eq!(list["items"], json!([made]));
    client.get(&format!("{NEW}?fieldSelector=source%3Dx")).expect(400);
    let cells = |table: &Value| table["rows"][0]["cells"].as_array().unwrap().clone();
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let (here, there) =
        (client.send("GET", NEW, &table, b"").json(), client.send("GET", CORE, &table, b"").json());
    assert_eq!(cells(&here)[1..], cells(&there)[1..]);
    assert_eq!(here["rows"][0]["cells"][3], "pod/p");

    // a recorder counts by a patch of the series; the note stays
    let path = format!("{NEW}/e");
    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}});
    let counted = client.patch("strategic-merge", &path, &series).expect(200);
    assert_eq!((&counted["series"]["count"], &counted["note"]), (&json!(2), &json!("a note")));
    client.patch("merge", &path, &json!({"note": "another"})).refused(
        422,
        "Event.events.k8s.io \"e\" is invalid: message: Invalid value: \"another\": field is immutable",
    );
    let mut whole = counted.clone();
    whole["series"]["count"] = 3.into();
    assert_eq!(client.put(&path, &whole).expect(200)["series"]["count"], 3);
    whole["note"] = "another".into();
    client.put(&path, &whole).expect(422);
    client.delete(&path).expect(200);
    client.get(&format!("{CORE}/e")).expect(404);
}

#[test]
fn event_through_the_new_type_obeys_its_rules() {
    let hub = Hub::new();
    let mut client = hub.admin();
    for (field, value) in [("eventTime", json!("")), ("type", json!("Odd")), ("deprecatedCount", json!(1))] {
        let mut bad = event("bad");
        bad[field] = value;
        client.post(NEW, &bad).expect(422);
    }
    let unknown = json!({"message": "a name of the core type"});
    client
        .send("POST", &format!("{NEW}?fieldValidation=Strict"), &[JSON], unknown.to_string().as_bytes())
        .expect(400);
    client.post(NEW, &event("a")).expect(201);
    client.post(NEW, &event("b")).expect(201);
    let deleted = client.delete(&format!("{NEW}?labelSelector=test%3Dyes")).expect(200);
    assert_eq!(deleted["kind"], "EventList");
    assert_eq!(client.get(CORE).expect(200)["items"], json!([]));
}

#[test]
fn changes_by_one_type_are_seen_by_watches_of_the_other() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let from = client.get(CORE).expect(200)["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    client.post(NEW, &event("e")).expect(201);
    client.patch("merge", &format!("{CORE}/e"), &json!({"count": 2})).expect(200);
    client.delete(&format!("{NEW}/e")).expect(200);
    let seen = |client: &mut crate::server::Client, path: &str, field: &str| {
        // ended by the hub, so that it is a complete answer
        let reply = client.get(&format!("{path}?watch=true&resourceVersion={from}&timeoutSeconds=1"));
        let lines = reply.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let events = lines.map(|line| serde_json::from_slice::<Value>(line).unwrap());
        events
            .map(|event| format!("{} {}", event["type"].as_str().unwrap(), event["object"][field]))
            .collect::<Vec<_>>()
    };
    let expect = ["ADDED \"a note\"", "MODIFIED \"a note\"", "DELETED \"a note\""];
    assert_eq!(seen(&mut client, CORE, "message"), expect);
    assert_eq!(seen(&mut client, NEW, "note"), expect);
}

#[test]
fn kubernetes_service_leads_to_the_hub_and_is_read_only() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let path = "/api/v1/namespaces/default/services";
    let service = client.get(&format!("{path}/kubernetes")).expect(200);
    let port = service["spec"]["ports"][0]["port"].as_u64().unwrap();
    let address = format!("{}:{port}", service["spec"]["clusterIP"].as_str().unwrap());
    assert_eq!(format!("https://{address}"), hub.url);
    assert_eq!(client.get("/api/v1/services").expect(200)["items"].as_array().map(Vec::len), Some(1));
    let why = "services \"kubernetes\" is forbidden: the hub makes this Service at each start, it cannot be changed or deleted";
    let own = format!("{path}/kubernetes");
    client.put(&own, &service).refused(403, why);
    client.patch("merge", &own, &json!({"spec": {"selector": {"a": "b"}}})).refused(403, why);
    client.patch("merge", &format!("{own}/status"), &json!({"status": {"conditions": []}})).refused(403, why);
    client.delete(&own).refused(403, why);
    assert_eq!(client.get(&own).expect(200), service);
    let listed = client.get("/api/v1").expect(200);
    let listed =
        listed["resources"].as_array().unwrap().iter().find(|kind| kind["name"] == "services").unwrap();
    assert_eq!(listed["verbs"], json!(kedge_hub_core::kinds::ALL_VERBS));
}

/// They are stored, changed, watched and deleted, and every answer to a write says that nothing gives them an
/// address.
#[test]
fn services_are_objects_without_an_address() {
    let mut hub = Hub::new();
    let mut client = hub.admin();
    let path = "/api/v1/namespaces/default/services";
    let warning = "299 - \"nothing gives this Service an address: reach a pod by a hostPort of its node, or by kubectl port-forward\"";
    let made = client.post(
        path,
        &json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]}}),
    );
    assert_eq!(made.header("warning"), [warning]);
    let made = made.expect(201);
    assert_eq!((&made["spec"]["clusterIP"], &made["status"]), (&json!("None"), &json!({"loadBalancer": {}})));
    let web = format!("{path}/web");
    let changed = client.patch("merge", &web, &json!({"spec": {"type": "NodePort"}}));
    assert_eq!(changed.header("warning"), [warning]);
    assert_eq!(changed.expect(200)["spec"]["clusterIP"], "None");
    client.patch("merge", &web, &json!({"spec": {"clusterIP": "10.0.0.7"}})).expect(422);
    // the status is upstream's controllers' and stays apart
    let balanced = json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.9"}]}}});
    client.patch("merge", &format!("{web}/status"), &balanced).expect(200);
    assert_eq!(
        client.patch("merge", &web, &json!({"status": null})).expect(200)["status"],
        balanced["status"]
    );
    client.patch("merge", &format!("{web}/status"), &json!({"status": "x"})).expect(422);
    client.get(&format!("{web}/proxy")).expect(404);
    client.get("/api/v1/namespaces/default/endpoints/web").expect(404);
    // the second start has it, and the hub's own beside it
    drop(client);
    hub.restart("TERM");
    let mut client = hub.admin();
    assert_eq!(client.get("/api/v1/services").expect(200)["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(client.delete(&web).expect(200)["metadata"]["name"], "web");
    client.delete(&web).expect(404);
}

#[test]
fn pods_have_the_priority_of_their_class() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let path = "/apis/scheduling.k8s.io/v1/priorityclasses";
    assert_eq!(client.get(path).expect(200)["items"].as_array().map(Vec::len), Some(2), "upstream's own");
    let system = "this is a system priority class and cannot be deleted";
    let refused = client.delete(&format!("{path}/system-node-critical")).expect(403);
    assert!(refused["message"].as_str().unwrap().ends_with(system), "{refused}");
    client
        .post(path, &json!({"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"}))
        .expect(201);
    client.patch("merge", &format!("{path}/high"), &json!({"value": 1001})).expect(422);
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |name: &str, class: &str| {
        let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
        if !class.is_empty() {
            spec["priorityClassName"] = class.into();
        }
        json!({"metadata": {"name": name}, "spec": spec})
    };
    let made = client.post(pods, &pod("a", "high")).expect(201);
    assert_eq!(
        (&made["spec"]["priority"], &made["spec"]["preemptionPolicy"]),
        (&json!(1000), &json!("Never"))
    );
    client
        .post(pods, &pod("b", "low"))
        .refused(403, "pods \"b\" is forbidden: no PriorityClass with name low was found");
    client.post(path, &json!({"metadata": {"name": "usual"}, "value": 5, "globalDefault": true})).expect(201);
    let second = json!({"metadata": {"name": "second"}, "value": 6, "globalDefault": true});
    client.post(path, &second).expect(403);
    client.patch("merge", &format!("{path}/high"), &json!({"globalDefault": true})).expect(403);
    let made = client.post(pods, &pod("c", "")).expect(201);
    assert_eq!((&made["spec"]["priority"], &made["spec"]["priorityClassName"]), (&json!(5), &json!("usual")));
    // a pod keeps the priority that it was made with
    client.delete(&format!("{path}/high")).expect(200);
    assert_eq!(client.get(&format!("{pods}/a")).expect(200)["spec"]["priority"], 1000);
}

#[test]
fn last_administrator_by_name_is_missed() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let binding = json!({"metadata": {"name": "jane"}, "subjects": [{"kind": "User", "name": "jane"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    client.post(path, &binding).expect(201);
    let emptied = client.patch("merge", &format!("{path}/jane"), &json!({"subjects": null}));
    assert_eq!(emptied.header("warning").len(), 1);
    client.patch("merge", &format!("{path}/jane"), &json!({"subjects": binding["subjects"]})).expect(200);
    let deleted = client.delete(&format!("{path}/jane"));
    let warned = deleted.header("warning").join(" ");
    assert!(warned.contains("system:masters"), "{warned}");
    assert_eq!(deleted.code, 200);
}

#[test]
fn go_clients_find_what_they_expect_of_a_server() {
    let hub = Hub::new();
    let mut client = hub.admin();
    assert_eq!(client.get("/version").expect(200)["minor"], "36");
    // any negative limit means no limit
    client.get(&format!("{NODES}?limit=-1")).expect(200);
    let refused = client.get(&format!("{NODES}?resourceVersionMatch=Exact")).expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "resourceVersionMatch");
    assert_eq!(refused["details"]["kind"], "ListOptions");
    // every answer has an id, the client's own if it sent one
    let named = client.send("GET", NODES, &[("audit-id", "mine")], b"");
    assert_eq!(named.header("audit-id"), ["mine"]);
    let (one, other) = (client.get(NODES), client.get("/api/v1/nodes/nosuch"));
    assert_eq!((one.header("audit-id").len(), other.header("audit-id").len()), (1, 1));
    assert_ne!(one.header("audit-id"), other.header("audit-id"));
    assert_eq!(client.get("/readyz?exclude=store").code, 200);
    let excluded = client.get("/readyz?verbose&exclude=store&exclude=ping");
    let text = String::from_utf8(excluded.body.clone()).unwrap();
    assert!(!text.contains("[+]store ok") && text.contains("[+]store excluded: ok"), "{text}");
    let unknown = client.get("/livez?verbose&exclude=nosuch");
    assert!(String::from_utf8(unknown.body).unwrap().contains("no matches for \"nosuch\""));
}
