//! Races and life cycles against a real hub: namespaces under creators, the quota of a node as others notice
//! it, pods and their nodes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::kinds::{wait_for, wait_until};
use crate::server::{Client, Hub};
use crate::{MAPS, NAMESPACES, NODES, PODS};

const EVENTS: &str = "/api/v1/namespaces/default/events";

fn items(client: &mut Client, path: &str) -> Vec<Value> {
    client.get(path).expect(200)["items"].as_array().unwrap().clone()
}

/// Four writers keep creating while the namespace is deleted: it is removed, each of them is refused, and no
/// object is left in it.
#[test]
fn namespace_deletion_wins_over_its_creators() {
    let hub = Hub::new();
    let mut client = hub.admin();
    for round in 0..4 {
        let namespace = format!("{NAMESPACES}/n{round}");
        let maps = format!("{namespace}/configmaps");
        client.post(NAMESPACES, &json!({"metadata": {"name": format!("n{round}")}})).expect(201);
        let (made, asked) = (AtomicUsize::new(0), AtomicBool::new(false));
        let clients: Vec<Client> = (0..4).map(|_| hub.admin()).collect();
        thread::scope(|scope| {
            for mut writer in clients {
                let (maps, made, asked) = (&maps, &made, &asked);
                scope.spawn(move || {
                    loop {
                        let map = json!({"metadata": {"generateName": "x-"}});
                        let reply = writer.post(maps, &map);
                        match reply.code {
                            201 => made.fetch_add(1, Ordering::Relaxed),
                            403 | 404 => break assert!(asked.load(Ordering::Relaxed)),
                            code => panic!("a creation was answered {code}"),
                        };
                    }
                });
            }
            while made.load(Ordering::Relaxed) < 20 {
                thread::yield_now();
            }
            asked.store(true, Ordering::Relaxed);
            client.delete(&namespace).expect(200);
        });
        wait_for(&mut client, &namespace, 404);
        let left = items(&mut client, "/api/v1/configmaps");
        let left = left.iter().filter(|map| map["metadata"]["namespace"] == format!("n{round}")).count();
        assert_eq!(left, 0);
    }
}

#[test]
fn finalizers_of_a_namespace_change_by_finalize_only() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let mut made = client.post(NAMESPACES, &json!({"metadata": {"name": "n"}})).expect(201);
    let (path, finalize) = (format!("{NAMESPACES}/n"), format!("{NAMESPACES}/n/finalize"));
    made["spec"]["finalizers"] = json!(["kubernetes", "example.com/x"]);
    let main = client.put(&path, &made).expect(200);
    assert_eq!(main["spec"]["finalizers"], json!(["kubernetes"]));
    made["spec"]["finalizers"] = json!(["plain"]);
    assert_eq!(client.put(&finalize, &made).code, 422);
    made["spec"]["finalizers"] = json!(["kubernetes", "example.com/x"]);
    client.put(&finalize, &made).expect(200);
    client.delete(&path).expect(200);
    // the hub removes its own finalizer; the other one holds the namespace
    wait_until(&mut client, &path, |reply| reply.json()["spec"]["finalizers"] == json!(["example.com/x"]));
    let mut held = client.get(&path).expect(200);
    held["spec"]["finalizers"] = json!([]);
    client.put(&finalize, &held).expect(200);
    wait_for(&mut client, &path, 404);
    assert_eq!(client.get(&finalize).code, 405);
}

fn mirror(name: &str, uid: &Value) -> Value {
    json!({
        "metadata": {"name": name, "annotations": {"kubernetes.io/config.mirror": "x"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": uid, "controller": true}]},
        "spec": {"nodeName": "a", "containers": [{"name": "c", "image": "i"}]},
    })
}

fn event(node: &str, name: &str, message: &str) -> Value {
    json!({"metadata": {"name": name}, "message": message, "reason": "R", "type": "Normal",
        "involvedObject": {"kind": "Node", "name": node, "uid": node}, "source": {"component": "kedge", "host": node}})
}

/// The storage of one node is limited, also after a restart, and costs another node nothing.
#[test]
fn node_fills_its_own_quota_only() {
    let mut hub = Hub::new();
    let mut admin = hub.admin();
    let node = |name: &str| json!({"metadata": {"name": name}});
    let uid = admin.post(NODES, &node("a")).expect(201)["metadata"]["uid"].clone();
    admin.post(NODES, &node("b")).expect(201);
    let mut quiet = hub.node("b");
    quiet.post(EVENTS, &event("b", "of-b", "quiet")).expect(201);
    let mut loud = hub.node("a");
    for number in 0..64 {
        loud.post(PODS, &mirror(&format!("m{number}"), &uid)).expect(201);
    }
    let refused = "pods \"one-more\" is forbidden: exceeded quota: system:node:a, requested: pods=1, used: pods=64, limited: pods=64";
    loud.post(PODS, &mirror("one-more", &uid)).refused(403, refused);
    let large = json!({"status": {"message": "x".repeat(70_000)}});
    assert_eq!(loud.patch("merge", &format!("{PODS}/m0/status"), &large).code, 413);
    let large = json!({"status": {"nodeInfo": {"osImage": "x".repeat(70_000)}}});
    assert_eq!(loud.patch("strategic-merge", &format!("{NODES}/a/status"), &large).code, 413);
    assert_eq!(loud.post(EVENTS, &event("a", "long", &"x".repeat(1025))).code, 413);
    let unmark = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": null}}});
    assert_eq!(loud.patch("merge", &format!("{PODS}/m0/status"), &unmark).code, 422, "its charge stays");
    for number in 0..400 {
        let code = loud.post(EVENTS, &event("a", &format!("a{number}"), &"x".repeat(1000))).code;
        assert!(matches!(code, 201 | 403 | 429), "{code}");
    }
    let of_a = format!("{EVENTS}?fieldSelector=involvedObject.name%3Da");
    wait_until(&mut admin, &of_a, |reply| reply.json()["items"].as_array().unwrap().len() <= 128);
    assert_eq!(
        items(&mut admin, &format!("{EVENTS}?fieldSelector=reason%3DR,involvedObject.name%3Db")).len(),
        1
    );
    quiet.post(EVENTS, &event("b", "another-of-b", "quiet")).expect(201);
    // counted from the stored objects
    hub.restart("KILL");
    let mut loud = hub.node("a");
    loud.post(PODS, &mirror("one-more", &uid)).refused(403, refused);
    hub.admin().delete(&format!("{PODS}/m0?gracePeriodSeconds=0")).expect(200);
    loud.post(PODS, &mirror("one-more", &uid)).expect(201);
}

#[test]
fn mirror_pod_of_a_node_that_is_gone_is_refused() {
    let hub = Hub::new();
    let mut admin = hub.admin();
    let node = json!({"metadata": {"name": "a"}});
    let old = admin.post(NODES, &node).expect(201)["metadata"]["uid"].clone();
    admin.delete(&format!("{NODES}/a")).expect(200);
    admin.post(NODES, &node).expect(201);
    assert_eq!(hub.node("a").post(PODS, &mirror("m", &old)).code, 403);
}

#[test]
fn collection_is_deleted_whole_and_answered_with_its_objects() {
    let hub = Hub::new();
    let mut client = hub.admin();
    for number in 0..300 {
        let mut map = json!({"metadata": {"name": format!("c{number:03}"), "labels": {"l": "x"}}});
        if number == 7 {
            map["metadata"]["finalizers"] = json!(["example.com/x"]);
        }
        client.post(MAPS, &map).expect(201);
    }
    let commits = |client: &mut Client| {
        let metrics = String::from_utf8(client.get("/metrics").body).unwrap();
        let line = metrics
            .lines()
            .find(|line| line.starts_with("kedge_hub_store_commits_total"))
            .unwrap()
            .to_owned();
        line.split(' ').next_back().unwrap().parse::<f64>().unwrap()
    };
    let before = commits(&mut client);
    let deleted = client.delete(&format!("{MAPS}?labelSelector=l%3Dx")).expect(200);
    assert_eq!(
        (deleted["kind"].clone(), deleted["items"].as_array().unwrap().len()),
        (json!("ConfigMapList"), 300)
    );
    assert!(commits(&mut client) - before < 100.0, "deletions share commits");
    let left = items(&mut client, &format!("{MAPS}?labelSelector=l"));
    assert_eq!((left.len(), left[0]["metadata"]["name"].clone()), (1, json!("c007")));
}

#[test]
fn root_certificate_is_kept_in_every_namespace() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let ca = std::fs::read_to_string(hub.data_dir.join("ca.crt")).unwrap();
    client.post(NAMESPACES, &json!({"metadata": {"name": "team"}})).expect(201);
    for namespace in ["default", "kube-system", "team"] {
        let path = format!("{NAMESPACES}/{namespace}/configmaps/kube-root-ca.crt");
        let is_whole =
            |reply: &crate::server::Reply| reply.code == 200 && reply.json()["data"] == json!({"ca.crt": ca});
        wait_until(&mut client, &path, is_whole);
        client.patch("merge", &path, &json!({"data": {"ca.crt": "another", "more": "x"}})).expect(200);
        wait_until(&mut client, &path, is_whole);
        client.delete(&path).expect(200);
        wait_until(&mut client, &path, is_whole);
    }
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

#[test]
fn pod_gets_its_node_by_creation_or_binding_only() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let path = format!("{PODS}/p");
    let mut unbound = pod("p");
    // not the hub's own scheduler, which would report meanwhile that there is no node
    unbound["spec"]["schedulerName"] = json!("another");
    let made = client.post(PODS, &unbound).expect(201);
    let move_it = json!({"spec": {"nodeName": "a"}});
    for form in ["merge", "strategic-merge"] {
        let refused = client.patch(form, &path, &move_it);
        assert_eq!(refused.code, 422);
        let message = refused.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("pod updates may not change fields other than"), "{message}");
    }
    let mut moved = made.clone();
    moved["spec"]["nodeName"] = json!("a");
    assert_eq!(client.put(&path, &moved).code, 422);
    let binding = json!({"metadata": {"name": "p", "annotations": {"by": "us"}}, "target": {"name": "a"}});
    let mut other = binding.clone();
    other["metadata"]["uid"] = json!("other");
    assert_eq!(client.post(&format!("{path}/binding"), &other).code, 409);
    client.post(&format!("{path}/binding"), &binding).expect(201);
    let bound = client.get(&path).expect(200);
    assert_eq!(
        (&bound["spec"]["nodeName"], &bound["metadata"]["annotations"]["by"]),
        (&json!("a"), &json!("us"))
    );
    assert_eq!(bound["metadata"]["generation"], 1, "a binding is no change of the spec");
    let scheduled = &bound["status"]["conditions"][0];
    assert_eq!((&scheduled["type"], &scheduled["status"]), (&json!("PodScheduled"), &json!("True")));
    client
        .post(&format!("{path}/binding"), &binding)
        .refused(409, "Operation cannot be fulfilled on pods \"p\": pod p is already assigned to node \"a\"");
    let mut placed = pod("placed");
    placed["spec"]["nodeName"] = json!("a");
    client.post(PODS, &placed).expect(201);
}

#[test]
fn pod_without_its_account_is_refused() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let mut stranger = pod("p");
    stranger["spec"]["serviceAccountName"] = json!("nosuch");
    client.post(PODS, &stranger).refused(
        403,
        "pods \"p\" is forbidden: error looking up service account default/nosuch: serviceaccount \"nosuch\" not found",
    );
    // the request waits for the default account of a new namespace
    client.post(NAMESPACES, &json!({"metadata": {"name": "new"}})).expect(201);
    client.post(&format!("{NAMESPACES}/new/pods"), &pod("p")).expect(201);
}

#[test]
fn fields_that_say_the_same_agree() {
    let hub = Hub::new();
    let mut client = hub.admin();
    let path = format!("{PODS}/p");
    client.post(PODS, &pod("p")).expect(201);
    let mut addresses = |status: Value| {
        let status = client.patch("merge", &format!("{path}/status"), &json!({"status": status})).expect(200);
        (status["status"]["podIP"].clone(), status["status"]["podIPs"].clone())
    };
    let both = |ip: &str| (json!(ip), json!([{"ip": ip}]));
    assert_eq!(addresses(json!({"podIP": "10.0.0.1"})), both("10.0.0.1"));
    assert_eq!(addresses(json!({"podIP": "10.0.0.2"})), both("10.0.0.2"));
    assert_eq!(addresses(json!({"podIP": null, "podIPs": [{"ip": "10.0.0.3"}]})), both("10.0.0.3"));
    let node = json!({"metadata": {"name": "a"}, "spec": {"podCIDR": "10.1.0.0/24"}, "status": {"capacity": {"cpu": "2"}}});
    let node = client.post(NODES, &node).expect(201);
    assert_eq!(node["spec"]["podCIDRs"], json!(["10.1.0.0/24"]));
    assert_eq!(node["status"]["allocatable"], json!({"cpu": "2"}));
    let patch = json!({"spec": {"tolerations": [{"key": "x", "operator": "Exists"}]}});
    let tolerations = client.patch("merge", &path, &patch).expect(200)["spec"]["tolerations"].clone();
    let keys: Vec<&Value> = tolerations.as_array().unwrap().iter().map(|one| &one["key"]).collect();
    assert_eq!(keys, ["x", "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]);
}
