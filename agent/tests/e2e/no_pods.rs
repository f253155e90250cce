//! A node that runs no pods (`--crun ""`): those that are bound to it all the same fail, and can be deleted.

use crate::setup::{NODE, Setup, plain};
use kedge_rig::scratch::wait_until;
use serde_json::{Value, json};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);

fn spec() -> Value {
    json!({"automountServiceAccountToken": false, "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "web:1"}]})
}

fn bound(name: &str) -> String {
    let mut spec = spec();
    spec["nodeName"] = NODE.into();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).to_string()
}

#[test]
fn pods_bound_to_a_node_that_runs_none_fail_and_go() {
    let setup = Setup::new("no-pods", plain());
    let kubectl = || setup.cluster.kubectl();
    let apply = |object: &str| kubectl().feed(&["apply", "-f", "-"], object).unwrap();
    let failed = |words: &[&str]| {
        let all = [&["get", "pods", "-o", "jsonpath={.items[*].status.reason}"], words].concat();
        kubectl().run(&all).is_ok_and(|reasons| reasons == "NoContainerRuntime")
    };
    apply(&bound("one"));
    let labels = json!({"app": "all"});
    apply(
        &json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "all"}, "spec": {
            "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec()}}})
        .to_string(),
    );
    wait_until("a pod of its own that failed", LIMIT, || failed(&["--field-selector=metadata.name=one"]));
    wait_until("one of a set that failed", LIMIT, || failed(&["-l", "app=all"]));
    kubectl().run(&["delete", "pod", "one", "--timeout=60s"]).unwrap();
    kubectl().run(&["delete", "daemonset", "all", "--cascade=foreground", "--timeout=60s"]).unwrap();

    // deleted before the node has seen it
    apply(&bound("two"));
    kubectl().run(&["delete", "pod", "two", "--timeout=60s"]).unwrap();

    // an agent with a runtime has begun this one, and its containers may run
    apply(&bound("begun"));
    let begun = json!({"status": {"phase": "Running", "startTime": "2027-01-15T08:00:00Z", "reason": null}});
    kubectl().run(&["patch", "pod", "begun", "--subresource=status", "-p", &begun.to_string()]).unwrap();
    kubectl().run(&["delete", "pod", "begun", "--wait=false"]).unwrap();
    apply(&bound("last"));
    wait_until("the next look", LIMIT, || failed(&["--field-selector=metadata.name=last"]));
    let phase = kubectl().run(&["get", "pod", "begun", "-o", "jsonpath={.status.phase}"]).unwrap();
    assert_eq!(phase, "Running");
    let log = setup.agent().log_text();
    assert!(!log.contains("WARN"), "{log}");
}
