//! A node with one connection and no watch: from the answers to its renewals it learns of each change that
//! concerns it, and of no other.

use serde_json::{Value, json};

use super::server::{Client, Hub, Watch};
use super::{JSON, LEASES, MAPS, NODES, PODS};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
/// The media type of a merge patch.
const MERGE: (&str, &str) = ("content-type", "application/merge-patch+json");
const MINIMAL: (&str, &str) = ("prefer", "return=minimal");
/// The media type of a renewal that only contains its time.
const ALONE: (&str, &str) = ("content-type", "text/vnd.kedge.renewal");

/// A connection of a node, on which it renews.
struct Node {
    name: &'static str,
    connection: Client,
    renewals: u32,
}

impl Node {
    fn join(hub: &Hub, name: &'static str) -> Node {
        let mut connection = hub.node(name);
        connection.post(NODES, &json!({"metadata": {"name": name}})).expect(201);
        let lease = json!({"metadata": {"name": name, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": "2026-11-21T00:00:00.000000Z"}});
        connection.post(LEASES, &lease).expect(201);
        Node { name, connection, renewals: 0 }
    }

    fn lease(&self) -> String {
        format!("{LEASES}/{}", self.name)
    }

    /// Renews as an agent does; returns the revision in the answer.
    #[track_caller]
    fn renew(&mut self) -> u64 {
        self.renewals += 1;
        let renewal = format!("{{\"spec\":{{\"renewTime\":\"2026-11-21T00:00:00.{:06}Z\"}}}}", self.renewals);
        let answer = self.connection.send("PATCH", &self.lease(), &[MERGE, MINIMAL], renewal.as_bytes());
        assert_eq!((answer.code, answer.body.len()), (204, 0));
        let named = answer.header("kedge-desired");
        assert_eq!(named.len(), 1, "{}", answer.head());
        named[0].parse().unwrap()
    }

    /// Expects the next renewal to return exactly the revision of this object.
    #[track_caller]
    fn learns_of(&mut self, object: &Value) {
        assert_eq!(self.renew(), revision(object), "{object}");
    }

    /// Sends a request on its connection after the renewal.
    #[track_caller]
    fn get(&mut self, path: &str) -> Value {
        let answer = self.connection.try_on_the_same("GET", path).unwrap();
        answer.expect(200)
    }

    /// The pods bound to it, not older than the revision of the last renewal.
    #[track_caller]
    fn pods(&mut self, at: u64) -> Vec<String> {
        let list = self.get(&format!(
            "/api/v1/pods?fieldSelector=spec.nodeName%3D{}&resourceVersion={at}&resourceVersionMatch=NotOlderThan",
            self.name
        ));
        assert!(revision(&list) >= at);
        let names =
            list["items"].as_array().unwrap().iter().map(|pod| pod["metadata"]["name"].as_str().unwrap());
        names.map(str::to_owned).collect()
    }
}

/// A node with a config, and the version from which it watches its Node and its ConfigMap.
fn with_config(hub: &Hub, admin: &mut Client) -> (Node, u64) {
    let node = Node::join(hub, "one");
    admin.post(MAPS, &json!({"metadata": {"name": "config"}, "data": {"kubelet": "1"}})).expect(201);
    let source =
        json!({"configMap": {"namespace": "default", "name": "config", "kubeletConfigKey": "kubelet"}});
    let assigned = admin.patch("merge", &format!("{NODES}/one"), &json!({"spec": {"configSource": source}}));
    let version = revision(&assigned.expect(200));
    (node, version)
}

/// The watches of an agent: its Node, its ConfigMap.
fn watches(node: &Node, from: [u64; 2]) -> [Watch; 2] {
    let watch = |collection: &str, name: &str, from: u64| {
        let query = format!("watch=true&allowWatchBookmarks=true&fieldSelector=metadata.name%3D{name}");
        node.connection.watch(&format!("{collection}?{query}&resourceVersion={from}"))
    };
    [watch(NODES, node.name, from[0]), watch(MAPS, "config", from[1])]
}

/// The version of the next bookmark.
#[track_caller]
fn bookmark(watch: &mut Watch) -> u64 {
    let event = watch.next().expect("the watch goes on");
    assert_eq!(event["type"], "BOOKMARK", "{event}");
    revision(&event["object"])
}

fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

#[test]
fn node_with_one_connection_learns_of_each_change() {
    let mut hub = Hub::new();
    let mut admin = hub.admin();
    let (mut node, mut other) = (Node::join(&hub, "one"), Node::join(&hub, "two"));
    let (own, lease) = (format!("{NODES}/one"), node.lease());

    // changes that do not concern it, and its own reports; renewals have revisions of their own
    let settled = node.renew();
    other
        .connection
        .patch("merge", &format!("{NODES}/two/status"), &json!({"status": {"phase": "x"}}))
        .expect(200);
    node.connection.patch("merge", &format!("{own}/status"), &json!({"status": {"phase": "x"}})).expect(200);
    let config = json!({"metadata": {"name": "config"}, "data": {"kubelet": "1"}});
    admin.post(MAPS, &config).expect(201);
    for _ in 0..10 {
        other.renew();
        assert_eq!(node.renew(), settled);
    }

    // an old config is assigned, and edited
    let source =
        json!({"configMap": {"namespace": "default", "name": "config", "kubeletConfigKey": "kubelet"}});
    let assigned = admin.patch("merge", &own, &json!({"spec": {"configSource": source}})).expect(200);
    node.learns_of(&assigned);
    assert_eq!(node.get(&own)["spec"]["configSource"]["configMap"]["name"], "config");
    let edited =
        admin.patch("merge", &format!("{MAPS}/config"), &json!({"data": {"kubelet": "2"}})).expect(200);
    node.learns_of(&edited);
    assert_eq!(node.get(&format!("{MAPS}/config"))["data"]["kubelet"], "2");

    // a pod is bound that refers to a Secret; the Secret is made, edited, deleted
    let pod = json!({"metadata": {"name": "pod"}, "spec": {
        "containers": [{"name": "c", "image": "i"}], "volumes": [{"name": "v", "secret": {"secretName": "key"}}]}});
    admin.post(PODS, &pod).expect(201);
    node.learns_of(&edited);
    admin
        .post(&format!("{PODS}/pod/binding"), &json!({"target": {"kind": "Node", "name": "one"}}))
        .expect(201);
    let bound = admin.get(&format!("{PODS}/pod")).expect(200);
    node.learns_of(&bound);
    assert_eq!(node.pods(revision(&bound)), ["pod"]);
    let made = admin.post(SECRETS, &json!({"metadata": {"name": "key"}, "data": {"k": "MQ=="}})).expect(201);
    node.learns_of(&made);
    admin.post(SECRETS, &json!({"metadata": {"name": "unrelated"}})).expect(201);
    let edited = admin.patch("merge", &format!("{SECRETS}/key"), &json!({"data": {"k": "Mg=="}})).expect(200);
    node.learns_of(&edited);
    assert_eq!(node.get(&format!("{SECRETS}/key"))["data"]["k"], "Mg==");
    node.connection
        .patch("merge", &format!("{PODS}/pod/status"), &json!({"status": {"phase": "Running"}}))
        .expect(200);
    node.learns_of(&edited);
    admin.delete(&format!("{SECRETS}/key")).expect(200);
    let deleted = node.renew();
    assert!(deleted > revision(&edited));
    assert_eq!(node.connection.try_on_the_same("GET", &format!("{SECRETS}/key")).unwrap().code, 404);

    // the pod is deleted: the node learns of the request, but not of the end that it reports itself
    let marked = admin.delete(&format!("{PODS}/pod")).expect(200);
    node.learns_of(&marked);
    assert_eq!(node.pods(revision(&marked)), ["pod"]);
    let end = json!({"gracePeriodSeconds": 0}).to_string();
    let ended = node.connection.send("DELETE", &format!("{PODS}/pod"), &[JSON], end.as_bytes());
    ended.expect(200);
    node.learns_of(&marked);
    assert!(node.pods(revision(&marked)).is_empty());

    // the config is withdrawn, and then no longer followed
    let cleared = admin.patch("merge", &own, &json!({"spec": {"configSource": null}})).expect(200);
    node.learns_of(&cleared);
    admin.delete(&format!("{MAPS}/config")).expect(200);
    node.learns_of(&cleared);

    // other forms of a renewal: answers of the general way contain the revision, too, but full answers do not
    let longer = json!({"spec": {"leaseDurationSeconds": 50}}).to_string();
    let minimal = node.connection.send("PATCH", &lease, &[MERGE, MINIMAL], longer.as_bytes());
    assert_eq!(minimal.header("kedge-desired"), [revision(&cleared).to_string()]);
    // answers to all other forms offer the shortest, in both ways
    assert_eq!(minimal.header("accept-patch"), [ALONE.1]);
    let named = revision(&cleared);
    let time = |micros: u32| format!("2026-11-21T00:00:01.{micros:06}Z");
    let plain = json!({"spec": {"renewTime": time(0)}}).to_string();
    let plain = node.connection.send("PATCH", &lease, &[MERGE, MINIMAL], plain.as_bytes());
    assert_eq!(
        plain.head(),
        format!("HTTP/1.1 204 \r\nkedge-desired: {named}\r\naccept-patch: {}\r\n\r\n", ALONE.1)
    );
    let alone = node.connection.send("PATCH", &lease, &[ALONE], time(1).as_bytes());
    assert_eq!(alone.head(), format!("HTTP/1.1 204 \r\nkedge-desired: {named}\r\n\r\n"));
    let slowly = node.connection.send("PATCH", &lease, &[ALONE, ("x-more", "1")], time(2).as_bytes());
    assert_eq!(slowly.code, 204);
    assert_eq!(slowly.header("kedge-desired"), [named.to_string()]);
    assert_eq!(node.get(&lease)["spec"]["renewTime"], time(2));
    let wrong = node.connection.send("PATCH", &lease, &[ALONE], b"now");
    wrong.refused(
        400,
        "a renewal of type text/vnd.kedge.renewal is a time such as 2006-01-02T15:04:05.000000Z, found \"now\"",
    );
    assert_eq!(node.connection.send("PATCH", &own, &[ALONE], time(3).as_bytes()).code, 415);
    let full = node.connection.send("PATCH", &lease, &[MERGE], longer.as_bytes());
    assert!(full.code == 200 && full.header("kedge-desired").is_empty());
    let foreign = admin.send("PATCH", &lease, &[MERGE, MINIMAL], longer.as_bytes());
    assert!(foreign.code == 204 && foreign.header("kedge-desired").is_empty(), "{}", foreign.head());

    // its Node is deleted; after a restart the hub returns no lower revision
    admin.delete(&own).expect(200);
    let gone = node.renew();
    assert!(gone > revision(&cleared));
    hub.restart("KILL");
    let mut node = Node { connection: hub.node("one"), ..node };
    let after = node.renew();
    assert!(after >= gone);
    assert_eq!(node.renew(), after);
}

/// A node that learns of a change lists collections whose watches do not reach it.
#[test]
fn watches_come_to_each_change_that_a_renewal_names() {
    let hub = Hub::new();
    let mut admin = hub.admin();
    let (mut node, version) = with_config(&hub, &mut admin);
    let [mut own, mut map] = watches(&node, [version; 2]);
    assert_eq!(node.renew(), version);
    // a change of an object that neither watches
    let pod = json!({"metadata": {"name": "pod"},
        "spec": {"nodeName": "one", "containers": [{"name": "c", "image": "i"}]}});
    let bound = admin.post(PODS, &pod).expect(201);
    node.learns_of(&bound);
    for watch in [&mut own, &mut map] {
        assert!(bookmark(watch) >= revision(&bound));
    }
    // a change of an object that one of them watches: that one needs no bookmark, and the next event of each
    // is for the next change
    let edited =
        admin.patch("merge", &format!("{MAPS}/config"), &json!({"data": {"kubelet": "2"}})).expect(200);
    node.learns_of(&edited);
    assert_eq!(map.event(), "MODIFIED config");
    assert!(bookmark(&mut own) >= revision(&edited));
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let labelled = admin.patch("merge", &format!("{NODES}/one"), &labels).expect(200);
    node.learns_of(&labelled);
    assert_eq!(own.event(), "MODIFIED one");
    assert!(bookmark(&mut map) >= revision(&labelled));
    // a watch that was interrupted before a change resumes after it
    drop((own, map));
    admin.delete(&format!("{PODS}/pod?gracePeriodSeconds=0")).expect(200);
    let gone = node.renew();
    assert!(gone > revision(&labelled));
    for mut watch in watches(&node, [revision(&labelled); 2]) {
        assert!(bookmark(&mut watch) >= gone);
    }
}

/// The hub's memory of old versions is shared by all who change objects of a kind.
#[test]
fn changes_of_others_cost_a_node_no_list() {
    let hub = Hub::new();
    let mut admin = hub.admin();
    let (mut node, _) = with_config(&hub, &mut admin);
    let version = node.renew();
    // more than 16 MiB of them
    for number in 0..20 {
        let large =
            json!({"metadata": {"name": format!("large-{number}")}, "data": {"a": "x".repeat(1_000_000)}});
        admin.post(MAPS, &large).expect(201);
    }
    let all = admin.watch(&format!("{MAPS}?watch=true&resourceVersion={version}")).next().unwrap();
    assert_eq!((&all["type"], &all["object"]["code"]), (&json!("ERROR"), &json!(410)));
    let [_own, mut map] = watches(&node, [version; 2]);
    let edited =
        admin.patch("merge", &format!("{MAPS}/config"), &json!({"data": {"kubelet": "2"}})).expect(200);
    assert_eq!(map.event(), "MODIFIED config");
    node.learns_of(&edited);
}

/// Otherwise ten thousand nodes would list their Node and their ConfigMap at once.
#[test]
fn node_lists_nothing_after_a_stop_of_the_hub() {
    let mut hub = Hub::new();
    let mut admin = hub.admin();
    let (node, version) = with_config(&hub, &mut admin);
    let mut standing = watches(&node, [version; 2]);
    // the watches do not show this change, and it does not concern the node
    admin.post(MAPS, &json!({"metadata": {"name": "unrelated"}})).expect(201);
    hub.restart("TERM");
    let last = standing.each_mut().map(bookmark);
    assert!(standing.iter_mut().all(|watch| watch.next().is_none()));
    let mut node = Node { connection: hub.node("one"), ..node };
    let [mut own, mut map] = watches(&node, last);
    let named = node.renew();
    assert!(last.iter().all(|last| *last >= named), "{last:?}, named {named}");
    let edited =
        hub.admin().patch("merge", &format!("{MAPS}/config"), &json!({"data": {"kubelet": "2"}})).expect(200);
    assert_eq!(map.event(), "MODIFIED config");
    node.learns_of(&edited);
    assert!(bookmark(&mut own) >= revision(&edited));
    // after a kill there is no last version: the watches are refused, and a single list reaches all known
    // changes
    hub.restart("KILL");
    let mut node = Node { connection: hub.node("one"), ..node };
    for mut watch in watches(&node, [revision(&edited); 2]) {
        let refused = watch.next().unwrap();
        assert_eq!((&refused["type"], &refused["object"]["code"]), (&json!("ERROR"), &json!(410)));
    }
    let listed = node.connection.get(&format!("{NODES}?fieldSelector=metadata.name%3Done")).expect(200);
    assert!(revision(&listed) >= node.renew());
}
