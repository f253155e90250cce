//! The kinds that workloads need, over real TLS: pods and their deletion, daemon sets, secrets, service
//! accounts, certificate requests; garbage collection, backups, and rules that hold for every kind (field
//! validation, dry run).

use std::time::{Duration, Instant};

use crate::server::{Client, Hub, Reply, scratch};
use crate::{JSON, MAPS, NODES, PODS, SETS};
use serde_json::{Value, json};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// Longest wait for a controller of the hub; a busy machine needs seconds.
const PATIENCE: Duration = Duration::from_secs(60);

fn pod(name: &str, node: &str) -> Value {
    // with another scheduler, because the hub writes into pods that wait for its own
    let mut pod = json!({"metadata": {"name": name},
        "spec": {"schedulerName": "another", "containers": [{"name": "c", "image": "i:1"}]}});
    if !node.is_empty() {
        pod["spec"]["nodeName"] = node.into();
    }
    pod
}

fn set(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}}})
}

/// Repeats a request for an object until its answer satisfies `expect`.
#[track_caller]
pub(crate) fn wait_until(client: &mut Client, path: &str, expect: impl Fn(&Reply) -> bool) {
    let until = Instant::now() + PATIENCE;
    loop {
        let reply = client.get(path);
        if expect(&reply) {
            return;
        }
        assert!(Instant::now() < until, "{path} still answers {} {}", reply.code, reply.json());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[track_caller]
pub(crate) fn wait_for(client: &mut Client, path: &str, code: u16) {
    wait_until(client, path, |reply| reply.code == code);
}

fn is_terminating(reply: &Reply) -> bool {
    reply.json()["metadata"]["deletionTimestamp"].is_string()
}

fn options(value: Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// Numbers of any size in the body and the query, again and again: a pod is deleted at the latest with a
/// grace period of 0.
#[test]
fn deletion_takes_numbers_of_any_size() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let numbers = [i64::MIN, -1, 0, 1, i64::from(i32::MAX), i64::MAX];
    for (index, own) in numbers.into_iter().enumerate() {
        for (other, asked) in numbers.into_iter().enumerate() {
            let name = format!("p{index}-{other}");
            let spec = json!({"nodeName": "n", "terminationGracePeriodSeconds": own,
                "containers": [{"name": "c", "image": "i:1"}]});
            client.post(PODS, &json!({"metadata": {"name": name}, "spec": spec})).expect(201);
            let path = format!("{PODS}/{name}");
            let body =
                json!({"gracePeriodSeconds": asked, "preconditions": {"resourceVersion": asked.to_string()}});
            let refused = client.send("DELETE", &path, &[JSON], body.to_string().as_bytes());
            assert_eq!(refused.code, 409, "{name}: {refused:?}");
            let body = json!({"gracePeriodSeconds": asked}).to_string();
            client.send("DELETE", &path, &[JSON], body.as_bytes()).expect(200);
            for query in [format!("?gracePeriodSeconds={asked}"), String::new()] {
                let code = client.delete(&format!("{path}{query}")).code;
                assert!(code == 200 || code == 404, "{name}{query}: {code}");
            }
            client.delete(&format!("{path}?gracePeriodSeconds=0"));
            assert_eq!(client.get(&path).code, 404, "{name}");
        }
    }
    for beyond in ["9223372036854775808", "-9223372036854775809", "1e30", "x"] {
        let path = format!("{PODS}?gracePeriodSeconds={beyond}");
        assert_eq!(client.delete(&path).code, 400, "{beyond}");
        let body = format!("{{\"gracePeriodSeconds\": {}}}", if beyond == "x" { "\"x\"" } else { beyond });
        assert_eq!(client.send("DELETE", PODS, &[JSON], body.as_bytes()).code, 400, "{beyond}");
    }
    for query in
        ["limit=9223372036854775807", "timeoutSeconds=9223372036854775807", "limit=0", "timeoutSeconds=0"]
    {
        assert_eq!(client.get(&format!("{PODS}?{query}")).code, 200, "{query}");
    }
}

#[test]
fn levels_of_pod_security_forbid_and_warn() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let label = |mode: &str| format!("pod-security.kubernetes.io/{mode}");
    let space = |name: &str, labels: Value| json!({"metadata": {"name": name, "labels": labels}});
    let namespaces = "/api/v1/namespaces";
    client.post(namespaces, &space("bad", json!({label("enforce"): "strict"}))).refused(
        422,
        "Namespace \"bad\" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"strict\": must be one of privileged, baseline, restricted",
    );
    let labels =
        json!({label("enforce"): "baseline", label("warn"): "restricted", label("audit"): "restricted"});
    client.post(namespaces, &space("tenant", labels)).expect(201);
    let pods = format!("{namespaces}/tenant/pods");
    let account = format!("{namespaces}/tenant/serviceaccounts/default");
    assert!(
        kedge_rig::scratch::poll(PATIENCE, || (client.get(&account).code == 200).then_some(())).is_some()
    );
    let mut asking = pod("p", "");
    asking["spec"]["hostPID"] = true.into();
    client.post(&pods, &asking).refused(
        403,
        "pods \"p\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostPID=true)",
    );
    let plain = client.post(&pods, &pod("p", ""));
    let warnings = plain.header("warning").join("\n");
    assert!(
        warnings.contains(
            "would violate PodSecurity \\\"restricted:latest\\\": allowPrivilegeEscalation != false"
        ),
        "{warnings}"
    );
    plain.expect(201);
    let path = format!("{pods}/p");
    let image = json!({"spec": {"containers": [{"name": "c", "image": "i:2"}]}});
    assert_eq!(client.patch("strategic-merge", &path, &image).header("warning").len(), 1);
    let note = json!({"metadata": {"annotations": {"a": "b"}}});
    assert_eq!(client.patch("merge", &path, &note).header("warning").len(), 0, "nothing that counts");
    let set = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
        "metadata": {"labels": {"a": "b"}}, "spec": {"hostPID": true, "containers": [{"name": "c", "image": "i"}]}}}});
    let made = client.post("/apis/apps/v1/namespaces/tenant/daemonsets", &set);
    assert!(made.header("warning")[0].contains("host namespaces (hostPID=true)"));
    made.expect(201);
    let raised = json!({"metadata": {"labels": {label("enforce"): "restricted"}}});
    let raised = client.patch("merge", &format!("{namespaces}/tenant"), &raised);
    let expect = [
        "299 - \"existing pods in namespace \\\"tenant\\\" violate the new PodSecurity enforce level \\\"restricted:latest\\\"\"",
        "299 - \"p: allowPrivilegeEscalation != false, unrestricted capabilities, runAsNonRoot != true, seccompProfile\"",
    ];
    assert_eq!(raised.header("warning"), expect);
}

#[test]
fn no_execute_taint_ends_the_pods_that_do_not_tolerate_it() {
    let hub = Hub::new();
    let (mut admin, mut node) = (hub.admin(), hub.node("edge-1"));
    node.post(NODES, &json!({"metadata": {"name": "edge-1"}})).expect(201);
    let mut patient = pod("patient", "edge-1");
    patient["spec"]["tolerations"] = json!([{"key": "out", "operator": "Exists"}]);
    admin.post(PODS, &patient).expect(201);
    admin.post(PODS, &pod("other", "edge-1")).expect(201);
    let taint = json!({"spec": {"taints": [{"key": "out", "effect": "NoExecute"}]}});
    admin.patch("merge", &format!("{NODES}/edge-1"), &taint).expect(200);
    wait_until(&mut admin, &format!("{PODS}/other"), is_terminating);
    let why = admin.get(&format!("{PODS}/other")).expect(200)["status"]["conditions"][0].clone();
    assert_eq!(
        (&why["type"], &why["reason"]),
        (&json!("DisruptionTarget"), &json!("DeletionByTaintManager"))
    );
    assert!(!is_terminating(&admin.get(&format!("{PODS}/patient"))));
    let events = "/api/v1/namespaces/default/events?fieldSelector=reason%3DTaintManagerEviction";
    wait_until(&mut admin, events, |reply| {
        reply.json()["items"][0]["message"] == "Marking for deletion Pod default/other"
    });
}

#[test]
fn deleted_pod_ends_at_its_nodes_word_or_at_once_if_unbound() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let made = client.post(PODS, &pod("free", "")).expect(201);
    assert_eq!(made["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
    assert_eq!(made["metadata"]["generation"], 1);
    // as upstream, the answer for a pod that is deleted at once is the pod, not a Status
    assert_eq!(client.delete(&format!("{PODS}/free")).expect(200)["kind"], "Pod");
    client.get(&format!("{PODS}/free")).expect(404);

    client.post(PODS, &pod("p", "")).expect(201);
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    client.post(&format!("{PODS}/p/binding"), &binding).expect(201);
    client
        .post(&format!("{PODS}/p/binding"), &binding)
        .refused(409, "Operation cannot be fulfilled on pods \"p\": pod p is already assigned to node \"n\"");
    let path = format!("{PODS}/p");
    assert_eq!(client.get(&path).expect(200)["spec"]["nodeName"], "n");
    let marked = client.delete(&path).expect(200);
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    let shorter =
        client.send("DELETE", &path, &[JSON], &options(json!({"gracePeriodSeconds": 5}))).expect(200);
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    let longer =
        client.send("DELETE", &path, &[JSON], &options(json!({"gracePeriodSeconds": 50}))).expect(200);
    assert_eq!(longer["metadata"]["deletionGracePeriodSeconds"], 5);
    let wrong = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "other"}});
    client.send("DELETE", &path, &[JSON], &options(wrong)).expect(409);
    client.get(&path).expect(200);
    client.send("DELETE", &path, &[JSON], &options(json!({"gracePeriodSeconds": 0}))).expect(200);
    client.get(&path).expect(404);

    // the older path for bindings: the body names the pod
    client.post(PODS, &pod("q", "")).expect(201);
    let bindings = "/api/v1/namespaces/default/bindings";
    let binding = |name: &str| json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": "n"}});
    client.post(&format!("{bindings}?dryRun=All"), &binding("q")).expect(201);
    assert_eq!(client.get(&format!("{PODS}/q")).expect(200)["spec"]["nodeName"], Value::Null);
    client.post(bindings, &binding("q")).expect(201);
    assert_eq!(client.get(&format!("{PODS}/q")).expect(200)["spec"]["nodeName"], "n");
    client.post(bindings, &binding("q")).expect(409);
    client.post(bindings, &binding("nothing")).refused(404, "pods \"nothing\" not found");
    client.post(bindings, &binding("")).expect(400);
    assert_eq!(client.get(bindings).code, 405);
    assert_eq!(hub.node("n").post(bindings, &binding("q")).code, 403);

    client.post(PODS, &pod("evicted", "n")).expect(201);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted"}, "deleteOptions": {"gracePeriodSeconds": 7}});
    client.post(&format!("{PODS}/evicted/eviction"), &eviction).expect(201);
    assert_eq!(
        client.get(&format!("{PODS}/evicted")).expect(200)["metadata"]["deletionGracePeriodSeconds"],
        7
    );
}

/// Many drains at once end no more pods than the budget allows.
#[test]
fn evictions_keep_a_disruption_budget() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({"metadata": {"name": "keep"}, "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "a"}}}});
    client.post(budgets, &budget).expect(201);
    let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    let names = ["p0", "p1", "p2", "p3", "p4"];
    for name in names {
        let mut pod = pod(name, "n");
        pod["metadata"]["labels"] = json!({"app": "a"});
        client.post(PODS, &pod).expect(201);
        client.patch("strategic-merge", &format!("{PODS}/{name}/status"), &ready).expect(200);
    }
    let keep = format!("{budgets}/keep");
    let status = |client: &mut Client| client.get(&keep).expect(200)["status"].clone();
    while status(&mut client)["disruptionsAllowed"] != 3 {
        std::thread::yield_now();
    }
    let shown = status(&mut client);
    assert_eq!((&shown["currentHealthy"], &shown["desiredHealthy"]), (&json!(5), &json!(2)));
    assert_eq!(shown["conditions"][0]["reason"], "SufficientPods");
    let evict = |client: &mut Client, name: &str, query: &str| {
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
        client.post(&format!("{PODS}/{name}/eviction{query}"), &eviction)
    };
    evict(&mut client, "p0", "?dryRun=All").expect(201);
    let codes: Vec<u16> = std::thread::scope(|scope| {
        let hub = &hub;
        let all = names.map(|name| scope.spawn(move || evict(&mut hub.admin(), name, "").code));
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let evicted = codes.iter().filter(|code| **code == 201).count();
    assert_eq!((evicted, codes.iter().filter(|code| **code == 429).count()), (3, 2), "{codes:?}");
    let left = names[codes.iter().position(|code| *code == 429).unwrap()];
    let refused = evict(&mut client, left, "").expect(429);
    assert_eq!(refused["message"], "Cannot evict pod as it would violate the pod's disruption budget.");
    let why = &refused["details"]["causes"][0]["message"];
    assert_eq!(why, "The disruption budget keep needs 2 healthy pods and has 2 currently");
    while status(&mut client)["disruptionsAllowed"] != 0 {
        std::thread::yield_now();
    }
    // a pod that serves no more protects nothing, unless it is needed
    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    client.patch("strategic-merge", &format!("{PODS}/{left}/status"), &unready).expect(200);
    evict(&mut client, left, "").expect(429);
    let always = json!({"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}});
    client.patch("merge", &keep, &always).expect(200);
    evict(&mut client, left, "").expect(201);
    // a second budget for the same pods: upstream cannot judge it either
    let last = names.into_iter().zip(&codes).find(|(name, code)| **code == 429 && *name != left).unwrap().0;
    client.post(budgets, &json!({"metadata": {"name": "more"}, "spec": {"selector": {}}})).expect(201);
    let refused = evict(&mut client, last, "").expect(500);
    assert!(refused["message"].as_str().unwrap().contains("more than one PodDisruptionBudget"), "{refused}");
    client.delete(&format!("{budgets}/more")).expect(200);
    client.delete(&keep).expect(200);
    evict(&mut client, last, "").expect(201);
}

/// A class is an object; a pod of it gets what it says.
#[test]
fn pod_of_a_runtime_class_gets_its_overhead() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let classes = "/apis/node.k8s.io/v1/runtimeclasses";
    let mut asked = pod("p", "");
    asked["spec"]["runtimeClassName"] = "vm".into();
    let refused = client.post(PODS, &asked).expect(403);
    assert!(
        refused["message"].as_str().unwrap().ends_with("pod rejected: RuntimeClass \"vm\" not found"),
        "{refused}"
    );
    let class = json!({"metadata": {"name": "vm"}, "handler": "kata", "overhead": {"podFixed": {"memory": "120Mi"}}, "scheduling": {"nodeSelector": {"vm": "yes"}}});
    client.post(classes, &class).expect(201);
    let made = client.post(PODS, &asked).expect(201);
    assert_eq!(
        (&made["spec"]["overhead"]["memory"], &made["spec"]["nodeSelector"]["vm"]),
        (&json!("120Mi"), &json!("yes"))
    );
    client.patch("merge", &format!("{classes}/vm"), &json!({"handler": "other"})).expect(422);
    client.delete(&format!("{classes}/vm")).expect(200);
}

#[test]
fn pod_spec_is_immutable_and_status_a_subresource() {
    let hub = Hub::new();
    let mut client = hub.admin();
    client.post(PODS, &pod("p", "n")).expect(201);
    let path = format!("{PODS}/p");
    let image = json!({"spec": {"containers": [{"name": "c", "image": "i:2"}]}});
    assert_eq!(client.patch("strategic-merge", &path, &image).expect(200)["metadata"]["generation"], 2);
    client.patch("merge", &path, &json!({"spec": {"hostNetwork": true}})).expect(422);
    client.patch("merge", &path, &json!({"spec": {"nodeName": "m"}})).expect(422);
    let status = json!({"status": {"phase": "Running", "podIP": "10.0.0.1"}});
    let kept = client.patch("merge", &path, &status).expect(200);
    assert_eq!(kept["status"]["phase"], "Pending");
    let reported = client.patch("merge", &format!("{path}/status"), &status).expect(200);
    assert_eq!(reported["status"]["phase"], "Running");
    let selected =
        client.get(&format!("{PODS}?fieldSelector=spec.nodeName%3Dn,status.phase%3DRunning")).expect(200);
    assert_eq!(selected["items"].as_array().map(Vec::len), Some(1));
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = client.send("GET", PODS, &table, b"").expect(200);
    assert_eq!(
        table["rows"][0]["cells"].as_array().unwrap()[..4],
        ["p", "0/1", "Running", "0"].map(Value::from)
    );
}

#[test]
fn resize_and_debugging_in_place_are_refused_with_a_reason() {
    let hub = Hub::new();
    let mut client = hub.admin();
    client.post(PODS, &pod("p", "n")).expect(201);
    let path = format!("{PODS}/p");
    let before = client.get(&path).expect(200);
    let resized =
        json!({"spec": {"containers": [{"name": "c", "resources": {"limits": {"memory": "1Gi"}}}]}});
    let no_resize = "pods/resize is not served: a pod is not resized in place, delete it and create it with the other resources";
    client.patch("strategic-merge", &format!("{path}/resize"), &resized).refused(404, no_resize);
    client.get(&format!("{path}/resize")).refused(404, no_resize);
    // nor through the pod itself
    client.patch("strategic-merge", &path, &resized).expect(422);
    let debugged = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "i:1"}]}});
    let no_debugging = "pods/ephemeralcontainers is not served: use kubectl exec, or debug a copy of the pod (kubectl debug --copy-to)";
    client
        .patch("strategic-merge", &format!("{path}/ephemeralcontainers"), &debugged)
        .refused(404, no_debugging);
    assert_eq!(client.get(&path).expect(200)["spec"], before["spec"]);
}

#[test]
fn daemon_set_counts_generations_and_keeps_its_selector() {
    let hub = Hub::new();
    let mut client = hub.admin();
    client.post(SETS, &set("d")).expect(201);
    let path = format!("{SETS}/d");
    wait_until(&mut client, &path, is_observed);
    let made = client.get(&path).expect(200);
    assert_eq!(made["spec"]["updateStrategy"]["type"], "RollingUpdate");
    let same = client
        .patch(
            "strategic-merge",
            &path,
            &json!({"spec": {"template": {"spec": {"restartPolicy": "Always"}}}}),
        )
        .expect(200);
    assert_eq!(same["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i:2"}]}}}});
    let changed = client.patch("strategic-merge", &path, &image).expect(200);
    assert_eq!(changed["metadata"]["generation"], 2);
    assert_eq!(changed["metadata"]["annotations"]["deprecated.daemonset.template.generation"], "2");
    let status = json!({"status": {"observedGeneration": 2, "desiredNumberScheduled": 1, "currentNumberScheduled": 1, "numberMisscheduled": 0, "numberReady": 1}});
    let reported = client.patch("merge", &format!("{path}/status"), &status).expect(200);
    assert_eq!(
        (&reported["status"]["numberReady"], &reported["metadata"]["generation"]),
        (&json!(1), &json!(2))
    );
    let selector = json!({"spec": {"selector": {"matchLabels": {"app": "e"}}, "template": {"metadata": {"labels": {"app": "e"}}}}});
    let refused = client.patch("strategic-merge", &path, &selector);
    assert!(String::from_utf8_lossy(&refused.body).contains("field is immutable"));
    refused.expect(422);
    let scaled = client.patch("merge", &format!("{path}/scale"), &json!({})).expect(404);
    assert!(scaled["message"].as_str().unwrap().starts_with("daemonsets/scale is not served: "), "{scaled}");
}

#[test]
fn secret_accepts_string_data_and_keeps_its_type() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let secrets = "/api/v1/namespaces/default/secrets";
    let made =
        client.post(secrets, &json!({"metadata": {"name": "s"}, "stringData": {"a": "x"}})).expect(201);
    assert_eq!(
        (&made["type"], &made["data"], made.get("stringData")),
        (&json!("Opaque"), &json!({"a": "eA=="}), None)
    );
    client.patch("merge", &format!("{secrets}/s"), &json!({"type": "kubernetes.io/tls"})).expect(422);
    client.post(secrets, &json!({"metadata": {"name": "t"}, "type": "kubernetes.io/tls"})).expect(422);
    let found = client.get(&format!("{secrets}?fieldSelector=type%3DOpaque")).expect(200);
    assert_eq!(found["items"].as_array().map(Vec::len), Some(1));
}

#[test]
fn default_account_is_recreated_until_its_namespace_goes() {
    let hub = Hub::new();
    let mut client = hub.admin();
    wait_for(&mut client, "/api/v1/namespaces/default/serviceaccounts/default", 200);
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).expect(201);
    let account = "/api/v1/namespaces/n/serviceaccounts/default";
    wait_for(&mut client, account, 200);
    let first = client.get(account).expect(200)["metadata"]["uid"].clone();
    client.delete(account).expect(200);
    wait_until(&mut client, account, |reply| {
        reply.json()["metadata"]["uid"].as_str().is_some_and(|uid| first != uid)
    });
    client.post("/api/v1/namespaces/n/pods", &pod("p", "")).expect(201);
    client.post("/apis/apps/v1/namespaces/n/daemonsets", &set("d")).expect(201);
    client.delete("/api/v1/namespaces/n").expect(200);
    wait_for(&mut client, "/api/v1/namespaces/n", 404);
}

#[test]
fn propagation_policy_orders_the_deletion_of_dependents() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let owned = |client: &mut Client, name: &str| {
        let owner = client.post(SETS, &set(name)).expect(201);
        let uid = owner["metadata"]["uid"].clone();
        let reference = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "uid": uid, "controller": true, "blockOwnerDeletion": true});
        let map = json!({"metadata": {"name": name, "ownerReferences": [reference], "finalizers": ["example.com/hold"]}});
        client.post(MAPS, &map).expect(201);
    };
    let path = |name: &str| format!("{SETS}/{name}");
    let map = |name: &str| format!("{MAPS}/{name}");
    let delete = |client: &mut Client, name: &str, policy: &str| {
        client
            .send("DELETE", &path(name), &[JSON], &options(json!({"propagationPolicy": policy})))
            .expect(200)
    };
    let release = json!({"metadata": {"finalizers": null}});

    owned(&mut client, "later");
    delete(&mut client, "later", "Background");
    client.get(&path("later")).expect(404);
    wait_until(&mut client, &map("later"), is_terminating);
    client.patch("merge", &map("later"), &release).expect(200);
    client.get(&map("later")).expect(404);

    owned(&mut client, "first");
    let held = delete(&mut client, "first", "Foreground");
    assert_eq!(held["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    wait_until(&mut client, &map("first"), is_terminating);
    client.get(&path("first")).expect(200);
    client.patch("merge", &map("first"), &release).expect(200);
    wait_for(&mut client, &path("first"), 404);

    owned(&mut client, "alone");
    delete(&mut client, "alone", "Orphan");
    wait_for(&mut client, &path("alone"), 404);
    let orphan = client.get(&map("alone")).expect(200);
    assert!(orphan["metadata"]["deletionTimestamp"].is_null(), "{orphan}");
    assert!(orphan["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty), "{orphan}");
}

#[test]
fn certificate_request_parts_change_by_their_subresources_only() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
    let body = kedge_hub_core::kinds::schema::base64_encode(pem.as_bytes());
    let asked = json!({"metadata": {"name": "r"}, "spec": {"request": body, "signerName": "example.com/people",
        "usages": ["client auth"], "username": "somebody-else"}});
    let made = client.post(REQUESTS, &asked).expect(201);
    assert_ne!(made["spec"]["username"], "somebody-else");
    let path = format!("{REQUESTS}/r");
    let mut wanted = made.clone();
    wanted["spec"]["usages"] = json!(["server auth"]);
    wanted["status"] = json!({"certificate": "eA==", "conditions": [{"type": "Approved", "status": "True", "reason": "Test"}]});
    let kept = client.put(&path, &wanted).expect(200);
    assert_eq!((&kept["spec"], kept["status"].get("conditions")), (&made["spec"], None));
    let approved = client.put(&format!("{path}/approval"), &wanted).expect(200);
    assert_eq!(approved["status"]["conditions"][0]["type"], "Approved");
    assert_eq!((approved["status"].get("certificate"), &approved["spec"]), (None, &made["spec"]));
    let answer = json!({"status": {"certificate": "eA==", "conditions": []}});
    let answered = client.patch("merge", &format!("{path}/status"), &answer).expect(200);
    assert_eq!(answered["status"]["certificate"], "eA==");
    assert_eq!(answered["status"]["conditions"][0]["type"], "Approved");
    client.patch("merge", &format!("{path}/status"), &json!({"status": {"certificate": "eQ=="}})).expect(422);
}

#[test]
fn controller_revision_data_is_immutable() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let revisions = "/apis/apps/v1/namespaces/default/controllerrevisions";
    client
        .post(
            revisions,
            &json!({"metadata": {"name": "r"}, "revision": 1, "data": {"spec": {"a": [1, null]}}}),
        )
        .expect(201);
    let path = format!("{revisions}/r");
    assert_eq!(
        client.patch("merge", &path, &json!({"revision": 2})).expect(200)["data"],
        json!({"spec": {"a": [1, null]}})
    );
    client.patch("merge", &path, &json!({"data": {"spec": {"a": 2}}})).expect(422);
    client.post(revisions, &json!({"metadata": {"name": "x"}, "revision": 1})).expect(422);
}

#[test]
fn backup_of_a_running_hub_restores_everything() {
    let (data, copy) = (scratch(), scratch());
    let hub = Hub::start(data.path());
    let mut admin = hub.admin();
    admin.post(MAPS, &json!({"metadata": {"name": "kept"}})).expect(201);
    let file = data.path().join("backup");
    let program = |words: &[&str], data: &std::path::Path| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kedge-hub"));
        command.args(words).arg(&file).arg("--data-dir").arg(data).output().unwrap()
    };
    let made = program(&["backup"], data.path());
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let later = admin.post(MAPS, &json!({"metadata": {"name": "later"}})).expect(201);
    let running = program(&["restore"], data.path());
    assert!(String::from_utf8_lossy(&running.stderr).contains("one hub per data directory"));
    hub.terminate();
    for place in [data.path(), copy.path()] {
        let done = program(&["restore"], place);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let hub = Hub::start(place);
        let mut client = hub.admin();
        client.get(&format!("{MAPS}/kept")).expect(200);
        client.get(&format!("{MAPS}/later")).expect(404);
        // the authority is the same, so credentials of nodes stay valid
        hub.node("edge").get("/api/v1/nodes/edge").expect(404);
        if place == data.path() {
            let number = |value: &Value| {
                value["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap()
            };
            let list = client.get(MAPS).expect(200);
            assert!(number(&list) > number(&later), "a version was used twice");
            let old = format!("{MAPS}?watch=true&resourceVersion={}", number(&later));
            assert_eq!(client.get(&old).expect(200)["object"]["code"], 410);
        }
    }
}

fn signing_request() -> String {
    use base64::Engine;
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
    base64::engine::general_purpose::STANDARD.encode(pem)
}

/// An object of every kind, called `name`, and the path of its collection.
fn samples(name: &str) -> Vec<(&'static str, Value)> {
    let named = |more: Value| {
        let mut object = more;
        object["metadata"]["name"] = name.into();
        object
    };
    vec![
        ("/api/v1/namespaces", named(json!({"apiVersion": "v1", "kind": "Namespace"}))),
        ("/api/v1/nodes", named(json!({"apiVersion": "v1", "kind": "Node"}))),
        (MAPS, named(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"}}))),
        ("/api/v1/namespaces/default/secrets", named(json!({"apiVersion": "v1", "kind": "Secret"}))),
        (
            "/api/v1/namespaces/default/serviceaccounts",
            named(json!({"apiVersion": "v1", "kind": "ServiceAccount"})),
        ),
        (
            "/api/v1/namespaces/default/events",
            named(json!({"apiVersion": "v1", "kind": "Event",
            "metadata": {"namespace": "default"}, "involvedObject": {"kind": "ConfigMap", "namespace": "default"}})),
        ),
        (PODS, {
            let mut object = pod(name, "");
            object["apiVersion"] = "v1".into();
            object["kind"] = "Pod".into();
            object
        }),
        (SETS, {
            let mut object = set(name);
            object["apiVersion"] = "apps/v1".into();
            object["kind"] = "DaemonSet".into();
            object
        }),
        (
            "/apis/apps/v1/namespaces/default/controllerrevisions",
            named(
                json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1, "data": {"a": 1}}),
            ),
        ),
        (
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            named(
                json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": "me"}}),
            ),
        ),
        (
            REQUESTS,
            named(json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "spec": {"request": signing_request(), "signerName": "example.com/x", "usages": ["client auth"]}})),
        ),
    ]
}

fn is_observed(set: &Reply) -> bool {
    let set = set.json();
    let status = &set["status"];
    status["observedGeneration"] == set["metadata"]["generation"]
        && status["desiredNumberScheduled"] == status["currentNumberScheduled"]
}

#[test]
fn field_validation_holds_for_every_write() {
    let hub = Hub::new();
    let mut client = hub.admin();
    // a duplicate field cannot be expressed as a `Value`
    let twice = |object: &Value| {
        let double = r#""metadata":{"labels":{"l":"1","l":"1"},"#;
        object.to_string().replacen(r#""metadata":{"#, double, 1)
    };
    for (collection, object) in samples("one") {
        let kind = object["kind"].as_str().unwrap().to_owned();
        let mut stored = client.post(collection, &object).expect(201);
        let path = format!("{collection}/one");
        if kind == "DaemonSet" {
            // its controller writes the status until each node has a pod
            wait_until(&mut client, &path, is_observed);
            stored = client.get(&path).expect(200);
        }
        let mut other = object.clone();
        other["metadata"]["name"] = "two".into();
        stored["metadata"].as_object_mut().unwrap().remove("labels");
        for sent in [&mut stored, &mut other] {
            sent["dota"] = json!({});
        }
        let (put, post) = (twice(&stored), twice(&other));
        let merge = r#"{"dota": {}, "metadata": {"labels": {"l": "1", "l": "1"}}}"#;
        let json = r#"[{"op": "add", "path": "/dota", "value": {"a": 1, "a": 2}}]"#;
        let unknown = "unknown field \"dota\"";
        let double = "duplicate field \"metadata.labels.l\"";
        let writes: [(&str, &str, &str, &str, [&str; 2]); 5] = [
            ("POST", collection, "application/json", &post, [unknown, double]),
            ("PUT", &path, "application/json", &put, [unknown, double]),
            ("PATCH", &path, "application/merge-patch+json", merge, [double, unknown]),
            ("PATCH", &path, "application/strategic-merge-patch+json", merge, [double, unknown]),
            (
                "PATCH",
                &path,
                "application/json-patch+json",
                json,
                ["json patch duplicate field \"[0].value.a\"", unknown],
            ),
        ];
        for (method, path, media, body, complaints) in writes {
            let mut send = |validation: &str| {
                let path = format!("{path}?dryRun=All&fieldValidation={validation}");
                client.send(method, &path, &[("content-type", media)], body.as_bytes())
            };
            let strict = send("Strict");
            let code = if method == "PATCH" { 422 } else { 400 };
            let message = strict.expect(code)["message"].as_str().unwrap().to_owned();
            let expect = format!("strict decoding error: {}", complaints.join(", "));
            assert!(message.ends_with(&expect), "{kind} {method} {media}: {message}");
            let begin = match method {
                "PATCH" => " \"\" is invalid: patch: Invalid value: ".to_owned(),
                _ => {
                    let version = object["apiVersion"].as_str().unwrap().rsplit('/').next().unwrap();
                    format!("{kind} in version {version:?} cannot be handled as a {kind}: ")
                }
            };
            assert!(message.starts_with(&begin), "{kind} {method} {media}: {message}");
            for validation in ["Warn", ""] {
                let reply = send(validation);
                assert!(reply.code < 300, "{kind} {method} {media}: {}", reply.code);
                let expect = complaints.map(|complaint| format!("299 - {complaint:?}"));
                assert_eq!(reply.header("warning"), expect, "{kind} {method} {media}");
            }
            let ignored = send("Ignore");
            assert!(ignored.code < 300 && ignored.header("warning").is_empty(), "{kind} {method} {media}");
            assert_eq!(ignored.json()["dota"], Value::Null, "unknown fields are dropped");
        }
    }
    client.post(&format!("{MAPS}?fieldValidation=Maybe"), &json!({})).refused(
        422,
        "CreateOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"Maybe\": supported values: \"Ignore\", \"Strict\", \"Warn\"",
    );
    client.patch("merge", &format!("{MAPS}/one?dryRun=None"), &json!({})).refused(
        422,
        "PatchOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: \"None\": supported values: \"All\"",
    );
    // the same rule holds for objects that are posted but not stored
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "one"}, "dota": 1});
    let path = format!("{PODS}/one/eviction?dryRun=All");
    client.post(&format!("{path}&fieldValidation=Strict"), &eviction).refused(
        400,
        "Eviction in version \"v1\" cannot be handled as a Eviction: strict decoding error: unknown field \"dota\"",
    );
    assert_eq!(client.post(&path, &eviction).header("warning"), ["299 - \"unknown field \\\"dota\\\"\""]);
    let whoami = json!({"spec": {}});
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    client.post(&format!("{path}?fieldValidation=Strict"), &whoami).expect(400);
    client.post(&format!("{path}?fieldValidation=Ignore"), &whoami).expect(201);
}

#[test]
fn dry_run_of_any_write_stores_nothing() {
    let hub = Hub::new();
    let mut client = hub.admin();
    for (collection, object) in samples("one") {
        client.post(&format!("{collection}?fieldValidation=Ignore"), &object).expect(201);
    }
    client.post(PODS, &pod("bound", "n")).expect(201);
    // wait for the hub's own writes: the account of the namespace
    wait_for(&mut client, "/api/v1/namespaces/one/serviceaccounts/default", 200);
    let everything = |client: &mut Client| -> Vec<Value> {
        let mut lists: Vec<Value> = samples("one")
            .iter()
            .flat_map(|(collection, _)| {
                client.get(collection).expect(200)["items"].as_array().unwrap().clone()
            })
            .collect();
        lists.retain(|object| object["source"]["component"] != "node-controller");
        lists
    };
    wait_until(&mut client, &format!("{SETS}/one"), is_observed);
    let before = everything(&mut client);
    let dry = |path: &str| format!("{path}?dryRun=All&fieldValidation=Ignore");
    for ((collection, object), (_, other)) in samples("one").into_iter().zip(samples("two")) {
        let path = format!("{collection}/one");
        let label = json!({"metadata": {"labels": {"x": "y"}}});
        let mut changed = client.get(&path).expect(200);
        changed["metadata"]["labels"] = json!({"x": "y"});
        client.post(&dry(collection), &other).expect(201);
        let generated = json!({"apiVersion": other["apiVersion"], "kind": other["kind"], "spec": other["spec"],
            "data": other["data"], "revision": other["revision"], "involvedObject": other["involvedObject"],
            "metadata": {"generateName": "g-", "namespace": other["metadata"]["namespace"]}});
        client.post(&dry(collection), &generated).expect(201);
        let shown = client.put(&dry(&path), &changed).expect(200);
        assert_eq!(shown["metadata"]["labels"]["x"], "y", "{path}: the answer shows the result");
        for of in ["merge", "strategic-merge"] {
            client.patch(of, &dry(&path), &label).expect(200);
        }
        let add = json!([{"op": "add", "path": "/metadata/labels", "value": {"x": "y"}}]);
        client.patch("json", &dry(&path), &add).expect(200);
        for name in ["one", "two"] {
            let applied = json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {"name": name, "labels": {"x": "y"}},
                "spec": object["spec"], "data": object["data"], "involvedObject": object["involvedObject"], "revision": object["revision"]});
            let applied = without_nulls(applied);
            let path = format!("{}&fieldManager=x&force=true", dry(&format!("{collection}/{name}")));
            let media = [("content-type", "application/apply-patch+yaml")];
            let reply = client.send("PATCH", &path, &media, applied.to_string().as_bytes());
            assert!(reply.code < 300, "{path}: {}", String::from_utf8_lossy(&reply.body));
        }
        for policy in ["Background", "Foreground", "Orphan"] {
            client.delete(&format!("{path}?dryRun=All&propagationPolicy={policy}")).expect(200);
            client
                .send(
                    "DELETE",
                    &path,
                    &[JSON],
                    &options(json!({"dryRun": ["All"], "propagationPolicy": policy})),
                )
                .expect(200);
        }
        if client.get(&format!("{path}/status")).code == 200 {
            let status = json!({"status": {"phase": "Terminating", "numberReady": 1}, "metadata": {"labels": {"x": "y"}}});
            client.patch("merge", &dry(&format!("{path}/status")), &status).expect(200);
        }
        if collection != "/api/v1/namespaces" {
            client.delete(&format!("{collection}?dryRun=All")).expect(200);
            client.send("DELETE", collection, &[JSON], &options(json!({"dryRun": ["All"]}))).expect(200);
        }
    }
    let binding = json!({"metadata": {"name": "one"}, "target": {"kind": "Node", "name": "one"}});
    client.post(&dry(&format!("{PODS}/one/binding")), &binding).expect(201);
    let in_the_body = json!({"metadata": {"name": "bound"}, "deleteOptions": {"dryRun": ["All"]}});
    client.post(&format!("{PODS}/bound/eviction"), &in_the_body).expect(201);
    client.post(&dry(&format!("{PODS}/bound/eviction")), &json!({"metadata": {"name": "bound"}})).expect(201);
    let approval = json!({"status": {"conditions": [{"type": "Approved", "status": "True"}]}});
    client.patch("merge", &dry(&format!("{REQUESTS}/one/approval")), &approval).expect(200);
    assert_eq!(everything(&mut client), before);
}

fn without_nulls(mut object: Value) -> Value {
    object.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    object
}
