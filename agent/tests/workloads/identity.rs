//! A pod asks the API server as its service account: with the address, the authority and the token that it finds in its container, as
//! client-go does.

use crate::network::SHIPPED;
use crate::pods::{NODE, Setup, layout_with};
use crate::setup::isolated_network;
use serde_json::json;
use std::fs;

/// Where clients look.
const PLACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

fn manifest(host_network: bool) -> String {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let script = format!(
        "echo \"host=$KUBERNETES_SERVICE_HOST\"; [ -z \"$KUBERNETES_SERVICE_HOST\" ] || curl -sS --cacert {PLACE}/ca.crt \
         -H \"Authorization: Bearer $(cat {PLACE}/token)\" -H 'Content-Type: application/json' -d '{review}' \
         https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/apis/authentication.k8s.io/v1/selfsubjectreviews; \
         exec sleep 86321"
    );
    // what an API server adds to each pod
    let sources = json!([{"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
        "nodeName": NODE, "hostNetwork": host_network, "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false, "serviceAccountName": "default",
        "volumes": [{"name": "api", "projected": {"sources": sources}}],
        "containers": [{"name": "main", "image": "tools:1", "command": ["/bin/sh", "-c", script],
            "volumeMounts": [{"name": "api", "mountPath": PLACE, "readOnly": true}],
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}]}})
    .to_string()
}

#[test]
fn pod_asks_the_api_as_its_service_account() {
    isolated_network("identity::pod_asks_the_api_as_its_service_account", || {
        let mut setup = Setup::with_runtime();
        let layout = layout_with(&setup.cluster.scratch().join("tools"), &["/usr/bin/curl"]);
        let imported = ["images", "import", layout.to_str().unwrap(), "--name", "tools:1"];
        let (code, _, why) = setup.cluster.agent(NODE).kedge(&imported).unwrap();
        assert_eq!(code, 0, "{why}");
        let kubectl = setup.cluster.kubectl();
        kubectl.feed(&["apply", "-f", "-"], &manifest(true)).unwrap();
        setup.shows("an answer of the API server", || setup.log(0).contains("SelfSubjectReview"));
        let log = setup.log(0);
        assert!(log.contains("host=127.0.0.1\n"), "{log}");
        assert!(log.contains("\"system:serviceaccount:default:default\""), "{log}");
        assert!(log.contains("authentication.kubernetes.io/pod-name"), "bound to the pod: {log}");
        kubectl.run(&["delete", "pod", "web", "--timeout=60s"]).unwrap();

        // this hub listens on loopback: a pod with a network of its own is told, and runs
        fs::create_dir_all("/etc/cni/net.d").unwrap();
        let list = SHIPPED.replace("/run/kedge/addresses", "/etc/cni/addresses");
        fs::write("/etc/cni/net.d/99-kedge.conflist", list).unwrap();
        kubectl.feed(&["apply", "-f", "-"], &manifest(false)).unwrap();
        setup.shows("the pod on its own network", || setup.runs_with(0));
        assert!(setup.log(0).ends_with("host=\n"), "{}", setup.log(0));
        setup.shows("an Event that says why", || {
            let events = kubectl.run(&["get", "events", "-o", "wide"]).unwrap_or_default();
            events.contains("APIServerOnLoopback") && events.contains("at 127.0.0.1:")
        });
        kubectl.run(&["delete", "pod", "web", "--timeout=60s"]).unwrap();
    });
}
