//! The hub refuses the same requests as a Kubernetes 1.36 API server, with its code, its reason and its text.
//! One row per rule; the rules themselves have more cases beside their code.

use crate::server::{Client, Hub};
use crate::{JSON, LEASES, NODES, PODS, SETS};
use serde_json::{Value, json};

/// Sets the value at a JSON pointer.
fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    let parent = object.pointer_mut(parent).unwrap();
    match field.parse::<usize>() {
        Ok(index) => parent[index] = value,
        Err(_) => parent[field] = value,
    }
    object
}

fn pod() -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}})
}

/// Posts a pod with one wrong field; the answer must name the field and the reason.
#[track_caller]
fn refuses(client: &mut Client, pointer: &str, value: Value, code: u16, message: &str) {
    let reply = client.post(PODS, &with(pod(), pointer, value));
    let status = reply.json();
    assert_eq!(reply.code, code, "{pointer}: {status}");
    let text = status["message"].as_str().unwrap();
    assert!(text.contains(message), "{pointer}: {text}\nexpected {message}");
    if code == 422 {
        let field = message.split(':').next().unwrap();
        let named = |cause: &Value| cause["field"] == field;
        assert!(status["details"]["causes"].as_array().unwrap().iter().any(named), "{status}");
    }
}

#[test]
fn bad_pods_are_refused_with_upstreams_words() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let of = |path: &str| format!("/spec/containers/0/{path}");
    let client = &mut client;
    refuses(
        client,
        &of("resources"),
        json!({"limits": {"foo": "1"}}),
        422,
        "spec.containers[0].resources.limits[foo]: Invalid value: \"foo\": must be a standard resource type or fully qualified",
    );
    refuses(
        client,
        &of("resources"),
        json!({"limits": {"example.com/gpu": "1.5"}}),
        422,
        "spec.containers[0].resources.limits[example.com/gpu]: Invalid value: \"1500m\": must be an integer",
    );
    // two numbers that are equal in floating point
    refuses(
        client,
        &of("resources"),
        json!({"limits": {"memory": "9007199254740992"}, "requests": {"memory": "9007199254740993"}}),
        422,
        "spec.containers[0].resources.requests: Invalid value: \"9007199254740993\": must be less than or equal to memory limit",
    );
    refuses(
        client,
        &of("securityContext"),
        json!({"privileged": true, "allowPrivilegeEscalation": false}),
        422,
        "spec.containers[0].securityContext: Invalid value",
    );
    refuses(
        client,
        "/spec/securityContext",
        json!({"runAsUser": -1}),
        422,
        "spec.securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
    );
    for name in ["foo-", "bar.."] {
        refuses(
            client,
            "/spec/securityContext",
            json!({"sysctls": [{"name": name, "value": "1"}, {"name": "kernel.shmmax", "value": "1"}]}),
            422,
            &format!("spec.securityContext.sysctls[0].name: Invalid value: {name:?}: must have at most 253"),
        );
    }
    refuses(
        client,
        "/spec/volumes",
        json!([{"name": "v", "hostPath": {"path": "/x", "type": "Nope"}}]),
        422,
        "spec.volumes[0].hostPath.type: Unsupported value: \"Nope\"",
    );
    refuses(
        client,
        &of("readinessProbe"),
        json!({"tcpSocket": {"port": 0}}),
        422,
        "spec.containers[0].readinessProbe.tcpSocket.port: Invalid value: 0: must be between 1 and 65535, inclusive",
    );
    refuses(
        client,
        "/spec/priority",
        json!(5),
        403,
        "pods \"p\" is forbidden: the integer value of priority (5) must not be provided in pod spec",
    );
    refuses(client, "/spec/priorityClassName", json!("x"), 403, "no PriorityClass with name x was found");
    refuses(client, "/spec/runtimeClassName", json!("x"), 403, "pod rejected: RuntimeClass \"x\" not found");
    // nothing of all this was stored
    assert_eq!(client.get(PODS).expect(200)["items"], json!([]));
}

#[test]
fn bad_statuses_leave_what_was_reported() {
    let hub = Hub::new();
    let mut client = hub.admin();
    client.post(PODS, &pod()).expect(201);
    let status = format!("{PODS}/p/status");
    let good = json!({"status": {"podIP": "10.0.0.1", "phase": "Running"}});
    client.patch("merge", &status, &good).expect(200);
    // one address wins over the list where they differ
    let listed = client.patch("merge", &status, &json!({"status": {"podIPs": [{"ip": "nope"}]}})).expect(200);
    assert_eq!(listed["status"]["podIPs"], json!([{"ip": "10.0.0.1"}]));
    for (field, value) in [("podIP", json!("nope")), ("qosClass", json!("Guaranteed"))] {
        client.patch("merge", &status, &json!({"status": {field: value}})).expect(422);
    }
    let kept = client.get(&format!("{PODS}/p")).expect(200);
    assert_eq!(
        (&kept["status"]["podIP"], &kept["status"]["qosClass"]),
        (&json!("10.0.0.1"), &json!("BestEffort"))
    );

    let node = |status: Value| json!({"metadata": {"name": "n"}, "status": status});
    client
        .post(NODES, &node(json!({"capacity": {"cpu": "-1"}, "allocatable": {"cpu": "1"}})))
        .refused(422, "Node \"n\" is invalid: status.capacity.cpu: Invalid value: \"-1\": must be greater than or equal to 0");
    // the server writes amounts in their shortest form
    let made =
        client.post(NODES, &node(json!({"capacity": {"cpu": "4000m", "memory": "1024Mi"}}))).expect(201);
    assert_eq!(made["status"]["capacity"], json!({"cpu": "4", "memory": "1Gi"}));
    let twice =
        json!([{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "InternalIP", "address": "10.0.0.1"}]);
    client.patch("merge", &format!("{NODES}/n/status"), &json!({"status": {"addresses": twice}})).expect(422);
    let networks = |networks: &[&str]| json!({"spec": {"podCIDRs": networks}});
    let path = format!("{NODES}/n");
    client.patch("merge", &path, &networks(&["10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24"])).expect(422);
}

#[test]
fn events_and_leases_need_their_times_and_authors() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let events = "/api/v1/namespaces/default/events";
    let event = json!({"metadata": {"name": "e"}, "eventTime": "2026-01-01T00:00:00.000000Z",
        "involvedObject": {"kind": "Node", "name": "n"}});
    let refused = client.post(events, &event).expect(422);
    for field in ["reportingComponent", "reportingInstance", "action", "reason"] {
        let text = refused["message"].as_str().unwrap();
        assert!(text.contains(&format!("{field}: Required value")), "{field}: {text}");
    }
    let newer = json!({"metadata": {"name": "e"}, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal",
        "regarding": {"kind": "Node", "name": "n"}});
    let refused = client.post("/apis/events.k8s.io/v1/namespaces/default/events", &newer).expect(422);
    let text = refused["message"].as_str().unwrap();
    assert!(text.contains("reportingController: Required value"), "{text}");
    assert!(!text.contains("reportingComponent"), "{text}");
    let lease = |time: &str| json!({"metadata": {"name": "l"}, "spec": {"renewTime": time}});
    client.post(LEASES, &lease("2026-01-01T00:00:00Z")).expect(400);
    let made = client.post(LEASES, &lease("2026-01-01T01:00:00.000000+01:00")).expect(201);
    assert_eq!(made["spec"]["renewTime"], "2026-01-01T00:00:00.000000Z");
}

/// Through the whole server, with upstream's words; the rules themselves are tested beside them.
#[test]
fn rules_and_warnings_of_pods_reach_their_authors() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |name: &str, spec: Value, annotations: Value| {
        let mut pod = json!({"metadata": {"name": name, "annotations": annotations},
            "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
        pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        pod
    };
    let gates = json!({"nodeName": "n", "schedulingGates": [{"name": "x.dev/y"}]});
    for (spec, annotations, code, words) in [
        (
            json!({"overhead": {"cpu": "1"}}),
            json!({}),
            403,
            "Pod Overhead set without corresponding RuntimeClass",
        ),
        (gates, json!({}), 422, "spec.nodeName: Forbidden: cannot be set until all schedulingGates"),
        (json!({}), json!({"kubernetes.io/config.mirror": "x"}), 422, "must set spec.nodeName if mirror pod"),
    ] {
        let refused = client.post(pods, &pod("p", spec, annotations)).expect(code);
        let text = refused["message"].as_str().unwrap();
        assert!(text.contains(words), "{text}");
    }
    let aliases = json!({"hostAliases": [{"ip": "1.1.1.1"}, {"ip": "1.1.1.1"}]});
    let made = client.post(pods, &pod("a.b", aliases, json!({})));
    let warnings = made.header("warning").join("\n");
    for words in ["used in the Pod's hostname", "regex used for validation is '[a-z0-9]", "duplicate ip"] {
        assert!(warnings.contains(words), "{words}: {warnings}");
    }
    made.expect(201);
    // of what was there nobody is told again
    let labeled = client.patch("merge", &format!("{pods}/a.b"), &json!({"metadata": {"labels": {"l": "v"}}}));
    assert_eq!(labeled.header("warning"), [""; 0]);
    let long = "n".repeat(250);
    let refused = client.post(pods, &pod(&long, json!({"restartPolicy": "x"}), json!({}))).expect(422);
    let text = refused["message"].as_str().unwrap();
    assert!(text.starts_with(&format!("Pod {long:?} is invalid: ")), "{text}");
}

#[test]
fn template_keeps_requests_that_its_author_left_out() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let limits = json!({"limits": {"memory": "64Mi"}});
    let container = json!({"name": "c", "image": "i:1", "resources": limits});
    let set = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}}});
    let made = client.post(SETS, &set).expect(201);
    assert_eq!(made["spec"]["template"]["spec"]["containers"][0]["resources"], limits);
    let made = client.post(PODS, &with(pod(), "/spec/containers/0/resources", limits)).expect(201);
    assert_eq!(made["spec"]["containers"][0]["resources"]["requests"], json!({"memory": "64Mi"}));
}

/// `replace` of a member that does not exist sets it, as upstream does: scripts cordon nodes that way.
#[test]
fn json_patch_replaces_what_is_not_there() {
    let hub = Hub::new();
    let mut client = hub.admin();
    client.post(NODES, &json!({"metadata": {"name": "n"}})).expect(201);
    let path = format!("{NODES}/n");
    let patch =
        |pointer: &str| json!([{"op": "replace", "path": pointer, "value": true}]).to_string().into_bytes();
    let content = [("content-type", "application/json-patch+json")];
    let cordoned = client.send("PATCH", &path, &content, &patch("/spec/unschedulable")).expect(200);
    assert_eq!(cordoned["spec"]["unschedulable"], true);
    // only the last step may be missing
    client.send("PATCH", &path, &content, &patch("/spec/nosuch/x")).expect(422);
    let remove = json!([{"op": "remove", "path": "/spec/podCIDR"}]).to_string();
    client.send("PATCH", &path, &content, remove.as_bytes()).expect(422);
    client.send("POST", NODES, &[JSON], b"{}").expect(422);
}
