//! The permissions of a node, with its credentials over real TLS.
//!
//! Every refusal is checked by its text, because the texts are upstream's and people search for them. They
//! are the hub's, and the same for every kubectl, so only the newest is used.

use crate::programs::{contains, json, registered, with_newest_kubectl};
use crate::server::Hub;
use serde_json::{Value, json};

#[track_caller]
pub(crate) fn forbidden(error: &str, resource: &str, reason: &str) {
    contains(error, &["Error from server (Forbidden): ", resource, " is forbidden: ", reason]);
}

#[test]
fn node_reads_only_its_own_node() {
    with_newest_kubectl(|hub, kubectl| {
        let node = registered(hub, kubectl, "edge-1");
        registered(hub, kubectl, "edge-2");
        assert_eq!(node.ok("get node edge-1 -o name"), "node/edge-1\n");
        assert_eq!(node.ok("get nodes --field-selector metadata.name=edge-1 -o name"), "node/edge-1\n");
        assert_eq!(
            node.fails("get node edge-2"),
            "Error from server (Forbidden): nodes \"edge-2\" is forbidden: User \"system:node:edge-1\" cannot get \
             resource \"nodes\" in API group \"\" at the cluster scope: node 'edge-1' cannot read 'edge-2', only its \
             own Node object\n"
        );
        forbidden(
            &node.fails("get nodes"),
            "nodes",
            "node 'edge-1' cannot read all nodes, only its own Node object",
        );
        forbidden(&node.fails("delete node edge-1"), "nodes \"edge-1\"", "cannot delete resource \"nodes\"");
        forbidden(&node.fails("delete node edge-2"), "nodes \"edge-2\"", "cannot delete resource \"nodes\"");
        forbidden(&node.fails("get ns"), "namespaces", "cannot list resource \"namespaces\"");
        forbidden(&node.fails("get events -A"), "events", "cannot list resource \"events\"");
        forbidden(&node.fails("get cm -A"), "configmaps", "can only read namespaced object of this type");
        forbidden(
            &node.fails("get pods -A"),
            "pods",
            "can only list/watch pods with spec.nodeName field selector",
        );
        node.ok("get pods -A --field-selector spec.nodeName=edge-1");
        contains(
            &node.fails("get --raw /metrics"),
            &["(Forbidden)", "User \"system:node:edge-1\" cannot get path \"/metrics\""],
        );
    });
}

#[test]
fn node_reads_a_config_map_only_while_assigned() {
    with_newest_kubectl(|hub, kubectl| {
        let node = registered(hub, kubectl, "edge-1");
        let other = registered(hub, kubectl, "edge-2");
        kubectl.ok("create configmap x --from-literal=kubelet=maxPods");
        kubectl.ok("create configmap y --from-literal=kubelet=maxPods");
        let refused = "Error from server (Forbidden): configmaps \"x\" is forbidden: User \"system:node:edge-1\" cannot \
                       get resource \"configmaps\" in API group \"\" in the namespace \"default\": no relationship \
                       found between node 'edge-1' and this object\n";
        assert_eq!(node.fails("get cm x"), refused);
        let assign = |source: Value| {
            kubectl.ok(&format!(
                "patch node edge-1 --type=merge -p '{}'",
                json!({"spec": {"configSource": source}})
            ));
        };
        let uid = kubectl.ok("get cm x -o jsonpath={.metadata.uid}");
        let pinned = json!({"namespace": "default", "name": "x", "uid": uid});
        let following = json!({"namespace": "default", "name": "x", "kubeletConfigKey": "kubelet"});
        for source in [
            json!({"configMapRef": pinned, "configMap": null}),
            json!({"configMap": following, "configMapRef": null}),
        ] {
            assign(source);
            assert_eq!(node.ok("get cm x -o jsonpath={.data.kubelet}"), "maxPods");
            assert_eq!(node.ok("get cm --field-selector metadata.name=x -o name"), "configmap/x\n");
            let watch = node.start("get cm --field-selector metadata.name=x -o name --watch");
            assert_eq!(watch.line(), "configmap/x");
            forbidden(
                &node.fails("get cm y"),
                "configmaps \"y\"",
                "no relationship found between node 'edge-1'",
            );
            forbidden(&node.fails("get cm"), "configmaps", "No Object name found");
            forbidden(
                &other.fails("get cm x"),
                "configmaps \"x\"",
                "no relationship found between node 'edge-2'",
            );
        }
        forbidden(&node.fails("label cm x a=b"), "configmaps \"x\"", "can only read resources of this type");
        forbidden(&node.fails("delete cm x"), "configmaps \"x\"", "can only read resources of this type");
        assign(Value::Null);
        assert_eq!(node.fails("get cm x"), refused);
    });
}

#[test]
fn node_may_change_its_status_but_not_its_spec() {
    with_newest_kubectl(|hub, kubectl| {
        let node = registered(hub, kubectl, "edge-1");
        registered(hub, kubectl, "edge-2");
        let refused = |patch: Value, reason: &str| {
            let error = node.fails(&format!("patch node edge-1 --type=merge -p '{patch}'"));
            forbidden(&error, "nodes \"edge-1\"", &format!("node \"edge-1\" is not allowed to {reason}"));
        };
        let source =
            json!({"configMap": {"namespace": "default", "name": "x", "kubeletConfigKey": "kubelet"}});
        refused(json!({"spec": {"configSource": source}}), "update configSource");
        refused(json!({"spec": {"configSource": {}}}), "update configSource");
        refused(json!({"spec": {"unschedulable": true}}), "set spec.unschedulable");
        refused(json!({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}}), "modify taints");
        let annotation = json!({"metadata": {"annotations": {"kedge.dev/config-source": "{}"}}});
        refused(annotation, "modify annotations: kedge.dev/config-source");
        refused(
            json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
            "modify labels: node-role.kubernetes.io/control-plane",
        );
        assert_eq!(node.ok("label node edge-1 tier=one"), "node/edge-1 labeled\n");

        let mut own = json(&node.ok("get node edge-1 -o json"));
        own["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        own["spec"]["unschedulable"] = json!(true);
        own["metadata"]["annotations"] = json!({"kedge.dev/config-source": "{}"});
        node.file("status.json", own.to_string());
        let error = node.fails("replace --raw /api/v1/nodes/edge-1/status -f status.json");
        contains(&error, &["is not allowed to modify annotation"]);
        own["metadata"].as_object_mut().unwrap().remove("annotations");
        node.file("status.json", own.to_string());
        let stored = json(&node.ok("replace --raw /api/v1/nodes/edge-1/status -f status.json"));
        assert_eq!(stored["status"]["conditions"][0]["status"], "True");
        assert_eq!(stored["spec"]["unschedulable"], Value::Null, "a status update does not change the spec");
        let mut other = json(&kubectl.ok("get node edge-2 -o json"));
        other["status"] = json!({"conditions": []});
        node.file("status.json", other.to_string());
        let error = node.fails("replace --raw /api/v1/nodes/edge-2/status -f status.json");
        contains(&error, &["(Forbidden)", "node 'edge-1' cannot modify 'edge-2', only its own Node object"]);

        let stranger = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "edge-3"}});
        let error = node.fails_with("create -f -", &stranger.to_string());
        contains(&error, &["(Forbidden)", "node \"edge-1\" is not allowed to modify node \"edge-3\""]);
        let third = kubectl.as_node(hub, "edge-3");
        let greedy = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "edge-3"}, "spec": {"configSource": source}});
        let error = third.fails_with("create -f -", &greedy.to_string());
        contains(
            &error,
            &["(Forbidden)", "node \"edge-3\" is not allowed to create its Node with a configSource"],
        );
        assert_eq!(kubectl.ok("get nodes -o name"), "node/edge-1\nnode/edge-2\n");
    });
}

#[test]
fn node_may_write_only_its_own_lease_and_events() {
    with_newest_kubectl(|hub, kubectl| {
        let node = registered(hub, kubectl, "edge-1");
        let lease = |namespace: &str, name: &str| {
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name, "namespace": namespace},
                "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": "2026-11-21T01:00:00.000000Z"}})
            .to_string()
        };
        node.ok_with("create -f -", &lease("kube-node-lease", "edge-1"));
        let renewal = r#"patch lease edge-1 -n kube-node-lease --type=merge -p '{"spec":{"renewTime":"1970-01-01T00:00:10.000000Z"}}'"#;
        contains(&node.ok(renewal), &["lease.coordination.k8s.io/edge-1 patched"]);
        assert_eq!(
            kubectl.ok("get lease edge-1 -n kube-node-lease -o jsonpath={.spec.renewTime}"),
            "1970-01-01T00:00:10.000000Z"
        );
        let error = node.fails_with("create -f -", &lease("kube-node-lease", "edge-2"));
        contains(
            &error,
            &["(Forbidden)", "can only access node lease with the same name as the requesting node"],
        );
        let error = node.fails_with("create -f -", &lease("default", "edge-1"));
        contains(
            &error,
            &["(Forbidden)", "can only access leases in the \"kube-node-lease\" system namespace"],
        );
        let error = node.fails("get lease -n kube-node-lease");
        contains(&error, &["(Forbidden)", "can only get, create, update, patch, or delete a node lease"]);

        let event = |about: &str| {
            json!({"apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "e.", "namespace": "default"},
                "involvedObject": {"kind": "Node", "name": about, "uid": about}, "reason": "Starting", "message": "m",
                "type": "Normal", "count": 1, "source": {"component": "kedge"},
                "firstTimestamp": "2026-11-21T01:00:00Z", "lastTimestamp": "2026-11-21T01:00:00Z"})
            .to_string()
        };
        node.ok_with("create -f -", &event("edge-1"));
        let error = node.fails_with("create -f -", &event("edge-2"));
        contains(
            &error,
            &["(Forbidden)", "node \"edge-1\" is not allowed to write events about other objects"],
        );
        assert_eq!(kubectl.ok("get events --field-selector reason=Starting -o name").lines().count(), 1);

        let gone = if kubectl.version != "1.36" { "" } else { " from kube-node-lease namespace" };
        let deleted = format!("lease.coordination.k8s.io \"edge-1\" deleted{gone}\n");
        assert_eq!(node.ok("delete lease edge-1 -n kube-node-lease"), deleted);
    });
}

#[test]
fn lease_is_deleted_with_its_node() {
    with_newest_kubectl(|hub, kubectl| {
        let node = registered(hub, kubectl, "edge-1");
        let uid = node.ok("get node edge-1 -o jsonpath={.metadata.uid}");
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "edge-1", "uid": uid});
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "edge-1", "namespace": "kube-node-lease", "ownerReferences": [owner]},
            "spec": {"holderIdentity": "edge-1", "leaseDurationSeconds": 40, "renewTime": "2026-11-21T01:00:00.000000Z"}});
        node.ok_with("create -f -", &lease.to_string());
        kubectl.ok("delete node edge-1");
        let gone = kubectl.until("get lease edge-1 -n kube-node-lease", |outcome| outcome.code != Some(0));
        contains(&gone.err, &["(NotFound)", "leases.coordination.k8s.io \"edge-1\" not found"]);
    });
}

#[test]
fn foreign_credentials_are_refused_everywhere() {
    with_newest_kubectl(|hub, kubectl| {
        let admin = std::fs::read_to_string(hub.data_dir.join("admin.kubeconfig")).unwrap();
        let lines = |keep: &dyn Fn(&str) -> bool| {
            admin.lines().filter(|line| keep(line)).collect::<Vec<_>>().join("\n")
        };
        let without = lines(&|line| !line.contains("client-"));
        // a token keeps kubectl from prompting for a password; one that the hub did not issue is refused
        // everywhere
        let forger =
            kubectl.with_kubeconfig("forger", &without.replace("  user:\n", "  user:\n    token: nothing\n"));
        contains(&forger.fails("get nodes"), &["You must be logged in to the server"]);
        for path in ["/api", "/metrics", "/healthz"] {
            contains(&forger.fails(&format!("get --raw {path}")), &["Unauthorized"]);
        }

        // a certificate of another hub fails the handshake
        let other = Hub::new();
        let theirs = std::fs::read_to_string(other.data_dir.join("admin.kubeconfig")).unwrap();
        let field =
            |text: &str, name: &str| text.lines().find(|line| line.contains(name)).unwrap().to_owned();
        let mut mixed = admin.clone();
        for name in ["client-certificate-data", "client-key-data"] {
            mixed = mixed.replace(&field(&admin, name), &field(&theirs, name));
        }
        contains(
            &kubectl.with_kubeconfig("stranger", &mixed).fails("get nodes"),
            &["unknown certificate authority"],
        );
        let wrong_ca = admin.replace(
            &field(&admin, "certificate-authority-data"),
            &field(&theirs, "certificate-authority-data"),
        );
        let error = kubectl.with_kubeconfig("wrong-ca", &wrong_ca).fails("get nodes");
        contains(&error, &["certificate signed by unknown authority"]);
    });
}
