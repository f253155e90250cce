//! Server-side apply with kubectl: conflicts and force, migration from client-side apply and back, diffs,
//! field managers.
//!
//! Each test checks kubectl's output and the stored object. The rules themselves are tested in
//! `hub/tests/api/apply.rs`.

use crate::programs::{contains, with_every_kubectl};
use crate::server::Hub;
use serde_json::{Value, json};

const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\n  labels:\n    site: quarry\ndata:\n  a: \"1\"\n  b: \"2\"\n";

/// `manager operation` of every entry, sorted.
fn managers(hub: &Hub, name: &str) -> Vec<String> {
    let object = hub.map(name);
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let line = |entry: &Value| {
        format!("{} {}", entry["manager"].as_str().unwrap(), entry["operation"].as_str().unwrap())
    };
    let mut lines: Vec<String> = entries.iter().map(line).collect();
    lines.sort();
    lines
}

fn data(hub: &Hub, name: &str) -> Value {
    hub.map(name)["data"].clone()
}

#[test]
fn server_side_apply_is_idempotent_and_removes_old_keys() {
    with_every_kubectl(|hub, kubectl| {
        kubectl.file("m.yaml", MAP);
        assert_eq!(kubectl.ok("apply --server-side -f m.yaml"), "configmap/m serverside-applied\n");
        assert_eq!(managers(hub, "m"), ["kubectl Apply"]);
        let before = hub.map("m");
        kubectl.ok("apply --server-side -f m.yaml");
        assert_eq!(hub.map("m"), before, "nothing changed");
        kubectl.file("m.yaml", MAP.replace("  b: \"2\"\n", "  c: \"3\"\n"));
        let differs = kubectl.run("diff --server-side -f m.yaml");
        assert_eq!(differs.code, Some(1), "{}", differs.err);
        contains(&differs.out, &["-  b: \"2\"", "+  c: \"3\""]);
        assert_eq!(data(hub, "m"), json!({"a": "1", "b": "2"}), "a diff stores nothing");
        let dry = kubectl.ok("apply --server-side --dry-run=server -f m.yaml");
        contains(&dry, &["configmap/m serverside-applied (server dry run)"]);
        kubectl.ok("apply --server-side -f m.yaml");
        assert_eq!(
            data(hub, "m"),
            json!({"a": "1", "c": "3"}),
            "keys that are no longer applied are removed"
        );
        assert_eq!(kubectl.ok("diff --server-side -f m.yaml"), "");
    });
}

#[test]
fn conflicts_are_printed_and_can_be_forced() {
    with_every_kubectl(|hub, kubectl| {
        kubectl.file("m.yaml", MAP);
        kubectl.ok("apply --server-side --field-manager=team -f m.yaml");
        kubectl.file("m.yaml", MAP.replace("\"1\"", "\"one\""));
        let refused = kubectl.fails("apply --server-side -f m.yaml");
        contains(&refused, &["Apply failed with 1 conflict: conflict with \"team\": .data.a"]);
        contains(&refused, &["--force-conflicts"]);
        assert_eq!(data(hub, "m"), json!({"a": "1", "b": "2"}));
        kubectl.ok("apply --server-side --force-conflicts -f m.yaml");
        assert_eq!(data(hub, "m"), json!({"a": "one", "b": "2"}));
        assert_eq!(managers(hub, "m"), ["kubectl Apply", "team Apply"]);
        // the first manager conflicts on the field that was taken from it
        kubectl.file("m.yaml", MAP);
        contains(
            &kubectl.fails("apply --server-side --field-manager=team -f m.yaml"),
            &["conflict with \"kubectl\": .data.a"],
        );
        kubectl.ok("label cm m tier=gold");
        assert_eq!(hub.map("m")["metadata"]["labels"], json!({"site": "quarry", "tier": "gold"}));
        contains(&managers(hub, "m").join("\n"), &["kubectl-label Update"]);
    });
}

#[test]
fn client_side_apply_migrates_to_server_side_and_back() {
    with_every_kubectl(|hub, kubectl| {
        kubectl.file("m.yaml", MAP);
        kubectl.ok("apply -f m.yaml");
        assert_eq!(managers(hub, "m"), ["kubectl-client-side-apply Update"]);
        kubectl.file("m.yaml", MAP.replace("\"1\"", "\"one\"").replace("  b: \"2\"\n", ""));
        // fields of kubectl's own client-side apply do not conflict
        kubectl.ok("apply --server-side -f m.yaml");
        assert_eq!(data(hub, "m")["a"], "one");
        kubectl.ok("apply --server-side -f m.yaml");
        contains(&managers(hub, "m").join("\n"), &["kubectl Apply"]);
        if kubectl.version != "1.20" {
            // later versions migrate the old entry, so that keys that are no longer applied are removed
            assert_eq!(data(hub, "m"), json!({"a": "one"}));
            assert!(!managers(hub, "m").iter().any(|line| line == "kubectl-client-side-apply Update"));
        }
        // and back: client-side apply removes the keys that were applied last
        kubectl.file("m.yaml", MAP.replace("  a: \"1\"\n", "").replace("\"2\"", "\"two\""));
        kubectl.ok("apply -f m.yaml");
        assert_eq!(data(hub, "m"), json!({"b": "two"}));
    });
}

#[test]
fn csa_upgrade_reports_fields_changed_by_others() {
    with_every_kubectl(|hub, kubectl| {
        kubectl.file("m.yaml", MAP);
        kubectl.file("theirs.yaml", MAP.replace("\"2\"", "\"two\""));
        kubectl.ok("apply -f m.yaml");
        kubectl.ok("apply --server-side -f m.yaml");
        kubectl.ok("apply --server-side --field-manager=others --force-conflicts -f theirs.yaml");
        let refused = kubectl.fails("apply --server-side -f m.yaml");
        contains(&refused, &["Apply failed with 1 conflict: conflict with \"others\": .data.b"]);
        assert_eq!(data(hub, "m")["b"], "two");
    });
}

#[test]
fn managed_fields_print_only_on_request() {
    with_every_kubectl(|hub, kubectl| {
        kubectl.file("m.yaml", MAP);
        kubectl.ok("apply --server-side -f m.yaml");
        if kubectl.version != "1.20" {
            assert!(!kubectl.ok("get cm m -o yaml").contains("managedFields"));
            let shown = kubectl.ok("get cm m -o yaml --show-managed-fields");
            contains(
                &shown,
                &["managedFields:", "f:data:", "f:a: {}", "manager: kubectl", "operation: Apply"],
            );
        }
        // kubectl edit works without managed fields in its text
        let outcome = kubectl.with_editor("sed -i s/quarry/mill/", "edit configmap m");
        assert_eq!(
            (outcome.code, outcome.out.as_str()),
            (Some(0), "configmap/m edited\n"),
            "{}",
            outcome.err
        );
        contains(&managers(hub, "m").join("\n"), &["kubectl Apply", "kubectl-edit Update"]);
    });
}

const SET: &str = r#"apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, labels: {app: agent}}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      containers:
      - {name: main, image: "registry.example.com/agent:1", env: [{name: MODE, value: a}], ports: [{containerPort: 80}]}
"#;

#[test]
fn daemon_set_is_applied_restarted_and_kustomized() {
    with_every_kubectl(|hub, kubectl| {
        kubectl.file("ds.yaml", SET);
        assert_eq!(kubectl.ok("apply --server-side -f ds.yaml"), "daemonset.apps/agent serverside-applied\n");
        kubectl.file("other.yaml", SET.replace("agent:1", "agent:2"));
        contains(
            &kubectl.fails("apply --server-side --field-manager=x -f other.yaml"),
            &["conflict with \"kubectl\": .spec.template.spec.containers[name=\"main\"].image"],
        );
        assert_eq!(kubectl.ok("rollout restart ds/agent"), "daemonset.apps/agent restarted\n");
        contains(&kubectl.ok("set image ds/agent main=registry.example.com/agent:3"), &["image updated"]);
        // the next apply conflicts on the image set by hand; the annotation set by hand stays
        contains(&kubectl.fails("apply --server-side -f ds.yaml"), &["kubectl-set", ".image"]);
        kubectl.ok("apply --server-side --force-conflicts -f ds.yaml");
        let set = hub.stored("/apis/apps/v1/namespaces/default/daemonsets/agent");
        let template = &set["spec"]["template"];
        assert_eq!(template["spec"]["containers"][0]["image"], "registry.example.com/agent:1");
        assert!(
            template["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"].is_string(),
            "{set}"
        );
        assert_eq!(set["metadata"]["generation"], 4, "created, restarted, set, applied");
        contains(&kubectl.run("rollout history ds/agent").out, &["daemonset.apps/agent"]);
        kubectl.file("kustomization.yaml", "namePrefix: k-\nresources: [ds.yaml]\n");
        assert_eq!(kubectl.ok("apply -k ."), "daemonset.apps/k-agent created\n");
        if kubectl.version != "1.20" {
            let met = kubectl.ok("wait --for=jsonpath={.metadata.name}=agent ds/agent --timeout=60s");
            assert_eq!(met, "daemonset.apps/agent condition met\n");
        }
        contains(&kubectl.ok("get ds"), &["DESIRED", "NODE SELECTOR", "k-agent"]);
        contains(&kubectl.ok("explain ds.spec.template"), &["DaemonSet", "template"]);
        contains(&kubectl.ok("delete ds --all"), &["daemonset.apps \"agent\" deleted"]);
    });
}
