//! A node that has one connection and no watch: by the answers to its renewals it learns of each change that concerns it, and of no
//! other.

use serde_json::{Value, json};

use super::server::{Client, Hub};
use super::{JSON, LEASES, MAPS, NODES, PODS};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
/// The media type of a merge patch.
const MERGE: (&str, &str) = ("content-type", "application/merge-patch+json");
const MINIMAL: (&str, &str) = ("prefer", "return=minimal");

/// The one connection of a node.
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

    /// Renews as an agent does; the revision that the answer names.
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

    /// Expects the next renewal to name exactly the revision of this object.
    #[track_caller]
    fn learns_of(&mut self, object: &Value) {
        assert_eq!(self.renew(), revision(object), "{object}");
    }

    /// A request after the renewal, on its connection.
    #[track_caller]
    fn get(&mut self, path: &str) -> Value {
        let answer = self.connection.try_on_the_same("GET", path).unwrap();
        answer.expect(200)
    }

    /// The pods bound to it, not older than what the last renewal named.
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

fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

#[test]
fn node_with_one_connection_learns_of_each_change() {
    let mut hub = Hub::new();
    let mut admin = hub.admin();
    let (mut node, mut other) = (Node::join(&hub, "one"), Node::join(&hub, "two"));
    let (own, lease) = (format!("{NODES}/one"), node.lease());

    // what does not concern it, and what it reports itself; renewals count apart
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

    // a config is assigned, an old one, and edited
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

    // the pod is deleted: the node hears of the wish, and not of the end that it reports itself
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

    // other forms of a renewal: the general way names it, too; a full answer does not
    let longer = json!({"spec": {"leaseDurationSeconds": 50}}).to_string();
    let minimal = node.connection.send("PATCH", &lease, &[MERGE, MINIMAL], longer.as_bytes());
    assert_eq!(minimal.header("kedge-desired"), [revision(&cleared).to_string()]);
    let full = node.connection.send("PATCH", &lease, &[MERGE], longer.as_bytes());
    assert!(full.code == 200 && full.header("kedge-desired").is_empty());
    let foreign = admin.send("PATCH", &lease, &[MERGE, MINIMAL], longer.as_bytes());
    assert!(foreign.code == 204 && foreign.header("kedge-desired").is_empty(), "{}", foreign.head());

    // its Node is deleted; a hub that starts again names no less
    admin.delete(&own).expect(200);
    let gone = node.renew();
    assert!(gone > revision(&cleared));
    hub.restart("KILL");
    let mut node = Node { connection: hub.node("one"), ..node };
    let after = node.renew();
    assert!(after >= gone);
    assert_eq!(node.renew(), after);
}
