//! ConfigRollouts by kubectl, as the page of rollouts has them: columns, describe, explain, pause, undo, and
//! `kedge-hub rollout cro/NAME`. The test plays the nodes.

use crate::programs::{Kubectl, PATIENT, contains, json, table, with_newest_patient_hub, with_patient_hubs};
use crate::server::{Client, Hub};
use serde_json::{Value, json};

const MANIFEST: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: kedge-fleet}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: shop-settings, namespace: kedge-fleet}
data: {kubelet: "good 1"}
---
apiVersion: fleet.kedge.dev/v1
kind: ConfigRollout
metadata: {name: shops}
spec:
  selector: {matchLabels: {fleet.kedge.dev/group: shops}}
  source: {name: shop-settings}
  strategy:
    maxUnavailable: 1
    completeAfter: 1s
"#;

fn node(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"fleet.kedge.dev/group": "shops"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

/// Does what the node's agent does: promotes a `good` configuration, and refuses any other.
fn act(admin: &mut Client, name: &str) {
    let found = admin.get(&format!("/api/v1/nodes/{name}")).expect(200);
    let source = &found["spec"]["configSource"];
    if source.is_null() || found["status"]["config"]["assigned"] == with_version(source) {
        return;
    }
    let map = source["configMap"]["name"].as_str().unwrap();
    let map = admin.get(&format!("/api/v1/namespaces/kedge-fleet/configmaps/{map}")).expect(200);
    let is_good = map["data"]["kubelet"].as_str().unwrap().starts_with("good");
    let ready = json!({"type": "Ready", "status": "True"});
    let (status, reason) = if is_good { ("True", "all checks passed") } else { ("False", "failed to parse") };
    let ok = json!({"type": "ConfigOK", "status": status, "reason": reason});
    let mut config = json!({"assigned": with_version(source)});
    if is_good {
        config["lastKnownGood"] = with_version(source);
    }
    let change = json!({"status": {"conditions": [ready, ok], "config": config}});
    admin.patch("merge", &format!("/api/v1/nodes/{name}/status"), &change).expect(200);
}

/// A source as a node reports it.
fn with_version(source: &Value) -> Value {
    let mut source = source.clone();
    source["configMap"]["uid"] = "u".into();
    source["configMap"]["resourceVersion"] = "1".into();
    source
}

fn nodes_act_until(hub: &Hub, kubectl: &Kubectl, phase: &str) {
    let admin = std::cell::RefCell::new(kubectl.client(hub));
    kubectl.until("get cro shops -o jsonpath={.status.phase}", |outcome| {
        ["edge-1", "edge-2"].iter().for_each(|name| act(&mut admin.borrow_mut(), name));
        outcome.out == phase
    });
}

fn with_rollout(hub: &Hub, kubectl: &Kubectl) {
    for name in ["edge-1", "edge-2"] {
        hub.admin().post("/api/v1/nodes", &node(name)).expect(201);
    }
    kubectl.ok_with("apply -f -", MANIFEST);
    nodes_act_until(hub, kubectl, "Complete");
}

#[test]
fn rollout_is_applied_shown_and_explained() {
    with_patient_hubs(|hub, kubectl| {
        with_rollout(hub, kubectl);
        let shown = table(&kubectl.ok("get cro"));
        assert_eq!(shown[0], ["NAME", "PHASE", "BATCH", "SELECTED", "UPDATED", "FAILED", "AWAY", "AGE"]);
        assert_eq!(shown[1][..7], ["shops", "Complete", "1/1", "2", "2", "0", "0"]);
        contains(&kubectl.ok("get configrollouts.fleet.kedge.dev -o wide"), &["REVISION", "shops-"]);
        contains(
            &kubectl.ok("describe cro shops"),
            &[
                "Kind:         ConfigRollout",
                "Max Unavailable:",
                "Phase:",
                "Update Revision:  shops-",
                "Events:",
            ],
        );
        contains(&kubectl.ok("explain cro.spec.strategy.batches"), &["limit", "selector", "soak"]);
        contains(
            &kubectl.ok("api-resources --api-group=fleet.kedge.dev"),
            &["configrollouts", "cro", "false"],
        );
        let events = kubectl.ok("get events --field-selector involvedObject.kind=ConfigRollout");
        contains(&events, &["Complete", "Assigned"]);
        let wrong = MANIFEST.replace("matchLabels: {fleet.kedge.dev/group: shops}", "");
        contains(
            &kubectl.fails_with("apply --validate=false -f -", &wrong),
            &["is invalid", "spec.selector"],
        );
        let wrong = MANIFEST.replace("maxUnavailable: 1", "maxUnavailable: 0");
        contains(
            &kubectl.fails_with("apply --validate=false -f -", &wrong),
            &["spec.strategy.maxUnavailable: Invalid value: 0: must be a whole number of at least 1"],
        );
        let own =
            MANIFEST.replace("fleet.kedge.dev/group: shops", "site: hq").replace("name: shops", "name: own");
        let warned = kubectl.run_with("apply -f -", &own);
        if kubectl.version != "1.20" {
            assert!(warned.err.contains("label \"site\" may be set by a node itself"), "{}", warned.err);
        }
    });
}

#[test]
fn rollout_is_paused_stopped_and_undone() {
    with_newest_patient_hub(|hub, kubectl| {
        with_rollout(hub, kubectl);
        let patch = |paused: bool| {
            kubectl.ok(&format!(r#"patch cro shops --type merge -p '{{"spec":{{"paused":{paused}}}}}'"#));
        };
        let push = |text: &str| {
            let data = json!({"data": {"kubelet": text}});
            kubectl.ok(&format!("patch configmap shop-settings -n kedge-fleet --type merge -p '{data}'"));
        };
        patch(true);
        push("bad 2");
        nodes_act_until(hub, kubectl, "Paused");
        patch(false);
        nodes_act_until(hub, kubectl, "Stopped");
        let message =
            kubectl.ok(r#"get cro shops -o jsonpath='{.status.conditions[?(@.type=="Stopped")].message}'"#);
        contains(&message, &["1 node failed, more than 0: edge-1 (failed to parse)"]);
        let watched = hub.command(&["rollout", "cro/shops", "--watch"]);
        assert_eq!(watched.code, Some(1), "{}", watched.out);
        contains(
            &watched.out,
            &["cro/shops: revision shops-", "is stopped; 0 of 2 nodes updated", "1 failed"],
        );
        contains(
            &watched.out,
            &[
                "edge-1   2          failed   failed to parse",
                "edge-2   1          waits    the rollout is stopped",
            ],
        );
        // the one before, as a new revision
        kubectl.ok("annotate cro shops fleet.kedge.dev/undo-to=0");
        nodes_act_until(hub, kubectl, "Complete");
        // complete again once all nodes have it
        assert_eq!(
            hub.stored("/apis/fleet.kedge.dev/v1/configrollouts/shops")["status"]["nodes"]["updated"],
            2
        );
        assert_eq!(
            hub.stored("/api/v1/namespaces/kedge-fleet/configmaps/shop-settings")["data"]["kubelet"],
            "good 1"
        );
        let watched = hub.command(&["rollout", "cro/shops", "--watch", "--output", "json"]);
        assert_eq!(watched.code, Some(0), "{}", watched.err);
        let shown: Value = json(&watched.out);
        assert_eq!((&shown["updated"], &shown["nodes"][0]["revision"]), (&json!(2), &json!(3)), "{shown}");
        let none = hub.command(&["rollout", "cro/none"]);
        contains(&none.err, &["404 configrollouts.fleet.kedge.dev \"none\" not found"]);
        // deleted: nodes keep what they have
        kubectl.ok("delete cro shops");
        let left = kubectl.ok("get cm -n kedge-fleet -l fleet.kedge.dev/rollout=shops -o name");
        assert_eq!(left.lines().count(), 2, "{left}");
    });
}

/// A node may not choose its configuration by its labels, nor write anything of the group.
#[test]
fn nodes_do_not_choose_their_configuration() {
    with_newest_patient_hub(|hub, kubectl| {
        with_rollout(hub, kubectl);
        let own = kubectl.as_node(hub, "edge-2");
        let refused = own.fails("label node edge-2 fleet.kedge.dev/ring=canary");
        contains(&refused, &["is not allowed to modify labels: fleet.kedge.dev/ring"]);
        let refused = own.fails("annotate node edge-2 fleet.kedge.dev/set-aside=x");
        contains(&refused, &["modify annotations: fleet.kedge.dev/set-aside"]);
        contains(&own.fails("get cro"), &["forbidden"]);
        contains(
            &own.fails("patch cro shops --type merge -p '{\"spec\":{\"paused\":true}}'"),
            &["forbidden"],
        );
    });
}

/// `kedge-hub controllers` as a process; killed when dropped.
struct Elsewhere(std::process::Child);

impl Elsewhere {
    fn start(hub: &Hub) -> Elsewhere {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kedge-hub"));
        command
            .args(["controllers", "--only", "config-rollouts", "--kubeconfig"])
            .arg(hub.data_dir.join("admin.kubeconfig"));
        command.stdin(std::process::Stdio::null());
        Elsewhere(command.spawn().unwrap())
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The same controller beside an API server, here a hub that leaves rollouts to it; a second process
/// continues when the first is gone.
#[test]
fn rollout_goes_on_from_another_process() {
    let hub = Hub::with(&[&["--config-rollouts", "off"], &PATIENT[..]].concat());
    let Some(kubectl) = hub.find_kubectl("1.36") else { return };
    let first = Elsewhere::start(&hub);
    with_rollout(&hub, &kubectl);
    let data = json!({"data": {"kubelet": "bad 2"}});
    kubectl.ok(&format!("patch configmap shop-settings -n kedge-fleet --type merge -p '{data}'"));
    nodes_act_until(&hub, &kubectl, "Stopped");
    let lease = hub.stored("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kedge-controllers");
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
    assert!(holder.ends_with(&format!("_{}", first.0.id())), "{lease}");
    drop(first);
    let _second = Elsewhere::start(&hub);
    kubectl.ok("annotate cro shops fleet.kedge.dev/undo-to=0");
    nodes_act_until(&hub, &kubectl, "Complete");
}
