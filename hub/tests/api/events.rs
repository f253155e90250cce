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
    client.post(path, &json!({"metadata": {"name": "mine"}})).expect(405);
    for method in ["PUT", "PATCH", "DELETE"] {
        assert_eq!(client.send(method, &format!("{path}/kubernetes"), &[JSON], b"{}").code, 405, "{method}");
    }
    let listed = client.get("/api/v1").expect(200);
    let listed =
        listed["resources"].as_array().unwrap().iter().find(|kind| kind["name"] == "services").unwrap();
    assert_eq!(listed["verbs"], json!(["get", "list", "watch"]));
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
