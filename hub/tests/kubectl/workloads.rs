//! DaemonSets and pods with kubectl: rollouts, drains, cascading deletion, waits, and commands that need the
//! node itself.
//!
//! The DaemonSet controller is the hub's; no agent runs here: each test makes the writes of one. kubectl's
//! output is checked, by version where it differs.

use crate::programs::{Kubectl, MAPS, contains, registered, table, until, with_every_kubectl};
use crate::server::{Client, Hub};
use serde_json::{Value, json};

const SET: &str = r#"apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, labels: {app: agent}}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      containers:
      - {name: main, image: "registry.example.com/agent:1"}
"#;
const SETS: &str = "/apis/apps/v1/namespaces/default/daemonsets";
const REVISIONS: &str = "/apis/apps/v1/namespaces/default/controllerrevisions";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn set(hub: &Hub) -> Value {
    hub.stored(&format!("{SETS}/agent"))
}

fn image(hub: &Hub) -> Value {
    set(hub)["spec"]["template"]["spec"]["containers"][0]["image"].clone()
}

/// The pods of the set, as stored.
fn pods_of_the_set(hub: &Hub) -> Vec<Value> {
    let pods = hub.admin().get(&format!("{PODS}?labelSelector=app%3Dagent")).expect(200)["items"].take();
    pods.as_array().unwrap().clone()
}

/// The name of its only pod, once that is made.
fn pod_of_the_set(hub: &Hub) -> String {
    until(|| pods_of_the_set(hub).len() == 1);
    pods_of_the_set(hub)[0]["metadata"]["name"].as_str().unwrap().to_owned()
}

/// Acts once as agents do: reports pods as ready, and confirms the ends of others.
fn agents_act(hub: &Hub) {
    let mut admin = hub.admin();
    for pod in pods_of_the_set(hub) {
        let path = format!("{PODS}/{}", pod["metadata"]["name"].as_str().unwrap());
        // deleted or changed meanwhile: the next call handles it
        if pod["metadata"]["deletionTimestamp"].is_string() {
            let now = json!({"gracePeriodSeconds": 0}).to_string();
            admin.send("DELETE", &path, &[("content-type", "application/json")], now.as_bytes());
        } else {
            let ready =
                json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
            admin.patch("merge", &format!("{path}/status"), &ready);
        }
    }
}

/// Waits until the set has two available pods of its present template.
fn rolled_out(hub: &Hub) {
    until(|| {
        agents_act(hub);
        let set = set(hub);
        let (status, generation) = (&set["status"], &set["metadata"]["generation"]);
        status["observedGeneration"] == *generation
            && status["updatedNumberScheduled"] == 2
            && status["numberAvailable"] == 2
    });
}

fn observed(hub: &Hub) {
    until(|| {
        let set = set(hub);
        set["status"]["observedGeneration"] == set["metadata"]["generation"]
            && set["status"]["desiredNumberScheduled"] == 2
    });
}

#[test]
fn rollout_status_history_and_undo_work() {
    with_every_kubectl(|hub, kubectl| {
        kubectl.file("ds.yaml", SET);
        for node in ["edge-1", "edge-2"] {
            registered(hub, kubectl, node);
        }
        kubectl.ok("apply -f ds.yaml");
        let done = "daemon set \"agent\" successfully rolled out";
        observed(hub);
        let begun = kubectl.ok("rollout status ds/agent --watch=false");
        assert_eq!(
            begun,
            "Waiting for daemon set \"agent\" rollout to finish: 0 of 2 updated pods are available...\n"
        );
        rolled_out(hub);
        assert_eq!(kubectl.ok("rollout status ds/agent").lines().last(), Some(done));
        kubectl.ok("annotate ds/agent kubernetes.io/change-cause=second");
        assert_eq!(
            kubectl.ok("set image ds/agent main=registry.example.com/agent:2"),
            "daemonset.apps/agent image updated\n"
        );
        observed(hub);
        until(|| pods_of_the_set(hub).iter().any(|pod| pod["metadata"]["deletionTimestamp"].is_string()));
        let mut followed = kubectl.start("rollout status ds/agent");
        let none_yet =
            "Waiting for daemon set \"agent\" rollout to finish: 0 out of 2 new pods have been updated...";
        assert_eq!(followed.line(), none_yet);
        rolled_out(hub);
        let mut line = followed.line();
        // kubectl repeats its line with each change of the set's status
        while line == none_yet {
            line = followed.line();
        }
        while line != done {
            contains(&line, &["Waiting for daemon set \"agent\" rollout to finish: 1 o"]);
            line = followed.line();
        }
        assert_eq!(followed.wait(), Some(0));

        let history = || -> Vec<Vec<String>> {
            let text = kubectl.ok("rollout history ds/agent");
            table(&text).into_iter().skip(1).filter(|row| !row.is_empty()).collect()
        };
        assert_eq!(history(), [["REVISION", "CHANGE-CAUSE"], ["1", "<none>"], ["2", "second"]]);
        let first = kubectl.ok("rollout history ds/agent --revision=1");
        contains(&first, &["daemonset.apps/agent with revision #1", "registry.example.com/agent:1"]);
        let missing = kubectl.fails("rollout history ds/agent --revision=9");
        contains(&missing, &["error: unable to find the specified revision"]);

        let shown = kubectl.ok("rollout undo ds/agent --dry-run=server");
        assert_eq!(shown, "daemonset.apps/agent rolled back (server dry run)\n");
        assert_eq!(image(hub), "registry.example.com/agent:2", "a dry run stores nothing");
        assert_eq!(kubectl.ok("rollout undo ds/agent"), "daemonset.apps/agent rolled back\n");
        assert_eq!(image(hub), "registry.example.com/agent:1");
        rolled_out(hub);
        assert_eq!(
            history()[1..],
            [["2", "second"], ["3", "<none>"]],
            "an old revision comes back as the newest"
        );
        contains(
            &kubectl.fails("rollout undo ds/agent --to-revision=1"),
            &["error: unable to find specified revision 1 in history"],
        );
        // older ones compare with the output of their Go types, and send a patch without changes
        let skipped = if kubectl.version == "1.36" { "skipped rollback" } else { "rolled back" };
        contains(&kubectl.ok("rollout undo ds/agent --to-revision=3"), &[skipped]);
        kubectl.ok("rollout undo ds/agent --to-revision=2");
        assert_eq!(image(hub), "registry.example.com/agent:2");

        assert_eq!(kubectl.ok("rollout restart ds/agent"), "daemonset.apps/agent restarted\n");
        assert_eq!(set(hub)["metadata"]["generation"], 5, "each command was one change");
        contains(&kubectl.fails("rollout pause ds/agent"), &["pausing is not supported"]);
        rolled_out(hub);
        let mut rows = table(&kubectl.ok("get controllerrevisions"));
        assert_eq!(rows.remove(0), ["NAME", "CONTROLLER", "REVISION", "AGE"]);
        rows.sort_by_key(|row| row[2].clone());
        let numbers: Vec<&str> = rows.iter().map(|row| row[2].as_str()).collect();
        assert_eq!(numbers, ["3", "4", "5"], "each template once");
        assert_eq!(rows[0][1], "daemonset.apps/agent");
        let described = kubectl.ok("describe ds agent");
        contains(&described, &["Selector:       app=agent", "Desired Number of Nodes Scheduled: 2"]);
        contains(&described, &["Image:", "registry.example.com/agent:2", "restartedAt"]);
    });
}

fn pod(name: &str, more: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "bare"}},
        "spec": {"nodeName": "edge-1", "containers": [{"name": "main", "image": "registry.example.com/agent:1"}]}});
    for (section, fields) in more.as_object().unwrap() {
        for (field, value) in fields.as_object().unwrap() {
            pod[section][field] = value.clone();
        }
    }
    pod
}

/// Deletes terminating pods, as the kubelet does when their containers have ended.
fn confirm(node: &mut Client, pods: &[&str]) {
    for pod in pods {
        let path = format!("{PODS}/{pod}");
        until(|| node.get(&path).expect(200)["metadata"]["deletionTimestamp"].is_string());
        let now = json!({"gracePeriodSeconds": 0}).to_string();
        node.send("DELETE", &path, &[("content-type", "application/json")], now.as_bytes()).expect(200);
    }
}

#[test]
fn drain_needs_flags_for_daemon_sets_and_bare_pods() {
    with_every_kubectl(|hub, kubectl| {
        let mut node = registered(hub, kubectl, "edge-1").client(hub);
        kubectl.ok_with("create -f -", SET);
        let of_the_set = pod_of_the_set(hub);
        let volume = json!({"spec": {"volumes": [{"name": "scratch", "emptyDir": {}}]}});
        for pod in [pod("bare", json!({})), pod("scratch", volume)] {
            hub.admin().post(PODS, &pod).expect(201);
        }

        let refused = kubectl.fails("drain edge-1");
        contains(&refused, &["cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore)"]);
        let named = format!("default/{of_the_set}");
        contains(&refused, &["default/bare", "(use --force to override)", &named]);
        contains(
            &refused,
            &["cannot delete Pods with local storage (use --delete-emptydir-data to override)"],
        );
        contains(&kubectl.ok("get nodes"), &["SchedulingDisabled"]);
        let forced = "drain edge-1 --ignore-daemonsets --force --delete-emptydir-data";
        if kubectl.version != "1.20" {
            // 1.20 waits for pods that its dry run does not evict
            contains(&kubectl.ok(&format!("{forced} --dry-run=server")), &["drained (server dry run)"]);
        }
        assert!(!kubectl.ok("get pods").contains("Terminating"), "nothing was evicted so far");

        let mut draining = kubectl.start(forced);
        confirm(&mut node, &["bare", "scratch"]);
        let mut lines = Vec::new();
        while lines.last().map(String::as_str) != Some(drained(kubectl)) {
            lines.push(draining.line());
        }
        assert_eq!(draining.wait(), Some(0), "{lines:?}");
        let names = table(&kubectl.ok("get pods --no-headers"));
        assert_eq!(names.iter().map(|row| row[0].as_str()).collect::<Vec<_>>(), [of_the_set.as_str()]);
        let log = std::fs::read_to_string(hub.data_dir.join("audit.log")).unwrap();
        let evictions =
            log.lines().filter(|line| line.contains("\"eviction\"") && line.contains("201")).count();
        assert!(evictions >= 2, "drain evicts and does not delete:\n{log}");
        assert_eq!(kubectl.ok("uncordon edge-1"), "node/edge-1 uncordoned\n");
    });
}

#[test]
fn drain_and_update_do_not_wait_for_each_other() {
    with_every_kubectl(|hub, kubectl| {
        let mut node = registered(hub, kubectl, "edge-1").client(hub);
        registered(hub, kubectl, "edge-2");
        kubectl.ok_with("create -f -", SET);
        rolled_out(hub);
        hub.admin().post(PODS, &pod("bare", json!({}))).expect(201);
        let is_ending = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_string();
        kubectl.ok("set image ds/agent main=registry.example.com/agent:2");
        until(|| pods_of_the_set(hub).iter().any(is_ending));
        let mut draining = kubectl.start("drain edge-1 --ignore-daemonsets --force");
        until(|| is_ending(&hub.stored(&format!("{PODS}/bare"))));
        // the update passes over both nodes, although one is cordoned and its drain waits
        rolled_out(hub);
        let images = |hub: &Hub| -> Vec<Value> {
            pods_of_the_set(hub).iter().map(|pod| pod["spec"]["containers"][0]["image"].clone()).collect()
        };
        assert_eq!(images(hub), ["registry.example.com/agent:2", "registry.example.com/agent:2"]);
        let pods = pods_of_the_set(hub);
        confirm(&mut node, &["bare"]);
        let mut lines = Vec::new();
        while lines.last().map(String::as_str) != Some(drained(kubectl)) {
            lines.push(draining.line());
        }
        assert_eq!(draining.wait(), Some(0), "{lines:?}");
        let uids = |pods: &[Value]| -> Vec<Value> {
            pods.iter().map(|pod| pod["metadata"]["uid"].clone()).collect()
        };
        assert_eq!(uids(&pods), uids(&pods_of_the_set(hub)), "a drain ends no daemon pod");
        contains(&kubectl.ok("rollout status ds/agent"), &["successfully rolled out"]);
        contains(&kubectl.ok("get node edge-1"), &["SchedulingDisabled"]);
        kubectl.ok("uncordon edge-1");
    });
}

#[test]
fn diff_shows_what_an_update_would_change() {
    with_every_kubectl(|hub, kubectl| {
        kubectl.file("ds.yaml", SET);
        kubectl.ok("apply -f ds.yaml");
        // the controller's first status would occur between the two objects that kubectl compares
        until(|| set(hub)["status"]["observedGeneration"] == 1);
        assert_eq!(kubectl.ok("diff -f ds.yaml"), "");
        kubectl.file("ds.yaml", SET.replace("agent:1", "agent:2"));
        let differs = kubectl.run("diff -f ds.yaml");
        assert_eq!(differs.code, Some(1), "{}", differs.err);
        let changes: Vec<String> = differs
            .out
            .lines()
            .filter(|line| {
                line.starts_with(['-', '+']) && !line.starts_with("---") && !line.starts_with("+++")
            })
            .map(|line| line.replace(' ', ""))
            // the time in a field manager's entry differs if a second passes between the two
            .filter(|line| !line[1..].starts_with("time:"))
            .collect();
        let expected = [
            "-deprecated.daemonset.template.generation:\"1\"",
            "+deprecated.daemonset.template.generation:\"2\"",
            "-generation:1",
            "+generation:2",
            "--image:registry.example.com/agent:1",
            "+-image:registry.example.com/agent:2",
        ];
        assert_eq!(changes, expected, "{}", differs.out);
        assert_eq!(image(hub), "registry.example.com/agent:1", "a diff stores nothing");
        kubectl.ok("apply -f ds.yaml");
        assert_eq!(image(hub), "registry.example.com/agent:2");
    });
}

fn drained(kubectl: &Kubectl) -> &'static str {
    if kubectl.version == "1.20" { "node/edge-1 evicted" } else { "node/edge-1 drained" }
}

#[test]
fn cascade_option_decides_over_a_daemon_sets_pods() {
    with_every_kubectl(|hub, kubectl| {
        let mut node = registered(hub, kubectl, "edge-1").client(hub);
        // the names of its pod and its revision
        let make = || {
            kubectl.ok_with("create -f -", SET);
            let pod = pod_of_the_set(hub);
            let revisions = hub.admin().get(REVISIONS).expect(200);
            assert_eq!(revisions["items"].as_array().unwrap().len(), 1, "{revisions}");
            (pod, revisions["items"][0]["metadata"]["name"].as_str().unwrap().to_owned())
        };
        let gone = |path: &str| until(|| hub.admin().get(path).code == 404);
        let (pod, revision) = make();
        assert_eq!(hub.stored(&format!("{PODS}/{pod}"))["metadata"]["ownerReferences"][0]["name"], "agent");
        kubectl.ok("delete ds agent --cascade=orphan");
        let owners = format!(
            "get pod/{pod} controllerrevision/{revision} -o jsonpath={{.items[*].metadata.ownerReferences}}"
        );
        assert_eq!(kubectl.ok(&owners), "", "the orphans stay, without an owner");
        kubectl.ok(&format!("delete pod {pod} --grace-period=0 --force"));
        kubectl.ok("delete controllerrevision --all");

        let (pod, revision) = make();
        // the pod stays until its node reports its end, and the DaemonSet waits for it
        kubectl.ok("delete ds agent --cascade=foreground --wait=false");
        assert_eq!(set(hub)["metadata"]["finalizers"], json!(["foregroundDeletion"]));
        gone(&format!("{REVISIONS}/{revision}"));
        kubectl.ok("get ds agent");
        confirm(&mut node, &[&pod]);
        gone(&format!("{SETS}/agent"));

        let (pod, revision) = make();
        kubectl.ok("delete ds agent --cascade=background");
        contains(&kubectl.fails("get ds agent"), &["(NotFound)"]);
        gone(&format!("{REVISIONS}/{revision}"));
        confirm(&mut node, &[&pod]);
        assert_eq!(kubectl.run("get pods").err, "No resources found in default namespace.\n");
    });
}

#[test]
fn wait_ends_at_condition_value_or_deletion() {
    with_every_kubectl(|hub, kubectl| {
        let mut node = registered(hub, kubectl, "edge-1").client(hub);
        let late = kubectl.fails("wait --for=condition=Ready node/edge-1 --timeout=1s");
        contains(&late, &["timed out waiting for the condition on nodes/edge-1"]);
        let mut waiting = kubectl.start("wait --for=condition=Ready node/edge-1 --timeout=100s");
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        node.patch("merge", "/api/v1/nodes/edge-1/status", &ready).expect(200);
        assert_eq!(waiting.line(), "node/edge-1 condition met");
        assert_eq!(waiting.wait(), Some(0));
        kubectl.ok("wait --for=condition=Ready nodes --all --timeout=100s");

        hub.admin().post(PODS, &pod("p", json!({}))).expect(201);
        // 1.20 fails if the pod is gone before it looks: with it only `delete --wait` is tested
        let mut ending =
            (kubectl.version != "1.20").then(|| kubectl.start("wait --for=delete pod/p --timeout=100s"));
        let mut deleting = kubectl.start("delete pod p");
        confirm(&mut node, &["p"]);
        assert_eq!(deleting.wait(), Some(0));
        if let Some(ending) = &mut ending {
            assert_eq!(ending.wait(), Some(0));
        }
        if kubectl.version == "1.20" {
            return;
        }
        hub.admin().post(MAPS, &json!({"metadata": {"name": "m"}, "data": {"a": "1"}})).expect(201);
        let mut value = kubectl.start("wait --for=jsonpath={.data.a}=2 cm/m --timeout=100s");
        hub.admin().patch("merge", &format!("{MAPS}/m"), &json!({"data": {"a": "2"}})).expect(200);
        assert_eq!(value.line(), "configmap/m condition met");
        assert_eq!(value.wait(), Some(0));
        let mut made = kubectl.start("wait --for=create cm/later --timeout=100s");
        hub.admin().post(MAPS, &json!({"metadata": {"name": "later"}})).expect(201);
        assert_eq!(made.line(), "configmap/later condition met");
        assert_eq!(made.wait(), Some(0));
    });
}

#[test]
fn logs_exec_and_port_forward_report_an_unreachable_node() {
    with_every_kubectl(|hub, kubectl| {
        registered(hub, kubectl, "edge-1");
        let two = json!({"spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]}});
        let unbound = json!({"spec": {"nodeName": null}});
        for pod in [pod("p", json!({})), pod("two", two), pod("unbound", unbound)] {
            hub.admin().post(PODS, &pod).expect(201);
        }
        kubectl.ok_with("create -f -", SET);
        let check = |line: &str, part: &str| contains(&kubectl.fails(line), &[part]);
        let out_of_reach =
            "error dialing backend: node \"edge-1\" cannot be asked: it has never renewed its Lease";
        check("logs p", out_of_reach);
        check("logs p -c nothing", "container nothing is not valid for pod p");
        check("logs nothing", "pods \"nothing\" not found");
        check("exec p -- ls", out_of_reach);
        check("exec nothing -- ls", "pods \"nothing\" not found");
        check("exec unbound -- ls", "pod unbound does not have a host assigned");
        check(
            "get --raw /api/v1/namespaces/default/pods/two/log",
            "must be specified for pod two, choose one of: [a b]",
        );
        check("attach p", out_of_reach);
        assert_eq!(kubectl.ok("logs unbound"), "", "nothing has run");
        check("port-forward p 0:80", "pod is not running. Current status=Pending");
        check("top nodes", "metrics not available yet");
        check(
            "scale ds/agent --replicas=2",
            "daemonsets/scale is not served: a DaemonSet has one pod on each node",
        );
        if kubectl.version == "1.36" {
            check("patch pod p --subresource=resize -p {\"spec\":{}}", "a pod is not resized in place");
            check("debug p --image=i", "use kubectl exec, or debug a copy of the pod");
        }
    });
}
