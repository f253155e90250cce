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
pub(crate) fn with_version(source: &Value) -> Value {
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

/// A stop outlasts hubs that are killed, and a restore of a backup from then, although an undo came after it.
/// A new node, which gets the complete revision, shows each time that the controller is at work.
#[test]
fn stop_outlasts_kills_and_a_restore() {
    let mut hub = Hub::with(&PATIENT);
    let Some(kubectl) = hub.find_kubectl("1.36") else { return };
    with_rollout(&hub, &kubectl);
    let data = json!({"data": {"kubelet": "bad 2"}});
    kubectl.ok(&format!("patch configmap shop-settings -n kedge-fleet --type merge -p '{data}'"));
    nodes_act_until(&hub, &kubectl, "Stopped");
    let mut added = 0;
    let mut check = |hub: &Hub, when: &str| {
        let mut admin = hub.admin();
        added += 1;
        let name = format!("new-{added}");
        admin.post("/api/v1/nodes", &node(&name)).expect(201);
        crate::programs::until(|| {
            !admin.get(&format!("/api/v1/nodes/{name}")).expect(200)["spec"]["configSource"].is_null()
        });
        let text_of = |admin: &mut Client, name: &str| {
            let node = admin.get(&format!("/api/v1/nodes/{name}")).expect(200);
            let map = node["spec"]["configSource"]["configMap"]["name"].as_str().unwrap().to_owned();
            let map = admin.get(&format!("/api/v1/namespaces/kedge-fleet/configmaps/{map}")).expect(200);
            map["data"]["kubelet"].as_str().unwrap().to_owned()
        };
        assert_eq!(text_of(&mut admin, &name), "good 1", "{when}");
        act(&mut admin, &name);
        assert_eq!(text_of(&mut admin, "edge-2"), "good 1", "{when}");
        let phase =
            admin.get("/apis/fleet.kedge.dev/v1/configrollouts/shops").expect(200)["status"]["phase"].clone();
        assert_eq!(phase, "Stopped", "{when}");
    };
    for round in 0..2 {
        hub.restart("KILL");
        check(&hub, &format!("after kill {round}"));
    }
    let backup = hub.data_dir.join("../backup-of-the-stop");
    let made = hub.command(&["backup", backup.to_str().unwrap()]);
    assert_eq!(made.code, Some(0), "{}", made.err);
    hub.find_kubectl("1.36").unwrap().ok("annotate cro shops fleet.kedge.dev/undo-to=0");
    {
        let mut admin = hub.admin();
        crate::programs::until(|| {
            ["edge-1", "edge-2", "new-1", "new-2"].iter().for_each(|name| act(&mut admin, name));
            admin.get("/apis/fleet.kedge.dev/v1/configrollouts/shops").expect(200)["status"]["phase"]
                == "Complete"
        });
    }
    hub.stop("TERM");
    let restored = hub.command(&["restore", backup.to_str().unwrap()]);
    assert_eq!(restored.code, Some(0), "{}", restored.err);
    hub.restart("TERM");
    check(&hub, "after a restore");
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
