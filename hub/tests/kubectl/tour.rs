//! Everyday use of kubectl against a real hub over TLS.
//!
//! Each test checks kubectl's output, not only its exit status. Permissions of nodes are tested in `nodes`.

use std::fs;

use crate::programs::{Kubectl, MAPS, NODES, Running, contains, json, table, with_every_kubectl};
use crate::server::Hub;
use serde_json::{Value, json};

const NODE: &str = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "edge-1", "labels": {
    "kubernetes.io/hostname": "edge-1", "node-role.kubernetes.io/edge": "", "site": "quarry"}}}"#;
const STATUS: &str = r#"{"status": {
    "addresses": [{"type": "InternalIP", "address": "10.1.2.3"}, {"type": "Hostname", "address": "edge-1"}],
    "capacity": {"cpu": "4", "memory": "1Gi", "pods": "110"}, "allocatable": {"cpu": "4", "memory": "1Gi", "pods": "110"},
    "conditions": [
        {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"},
        {"type": "ConfigOK", "status": "True", "reason": "all checks passed", "message": "using current (default)"}],
    "nodeInfo": {"machineID": "m", "systemUUID": "s", "bootID": "b", "kernelVersion": "6.1.0", "osImage": "Debian 12",
        "containerRuntimeVersion": "crun://1.8", "kubeletVersion": "v0.1.0", "kubeProxyVersion": "",
        "operatingSystem": "linux", "architecture": "arm64"}}}"#;

/// Makes a Node with a status, as an agent would: registered and reported with the node's own credentials.
fn register(hub: &Hub, kubectl: &Kubectl) {
    let mut node = kubectl.as_node(hub, "edge-1").client(hub);
    let mut object = json(NODE);
    // only the administrator may set a role
    let role = object["metadata"]["labels"].as_object_mut().unwrap().remove("node-role.kubernetes.io/edge");
    node.post(NODES, &object).expect(201);
    node.patch("merge", &format!("{NODES}/edge-1/status"), &json(STATUS)).expect(200);
    let role = json!({"metadata": {"labels": {"node-role.kubernetes.io/edge": role}}});
    hub.admin().patch("merge", &format!("{NODES}/edge-1"), &role).expect(200);
}

#[test]
fn second_command_asks_once() {
    with_every_kubectl(|hub, kubectl| {
        register(hub, kubectl);
        kubectl.ok("get nodes");
        let log = kubectl.run("get nodes -v=6").err;
        // kubectl 1.20 and later ones log a request in different words
        let requests: Vec<&str> = log.lines().filter(|line| line.contains(&hub.url)).collect();
        let requests: Vec<&&str> = requests.iter().filter(|line| line.contains("GET")).collect();
        assert_eq!(requests.len(), 1, "discovery is asked for again: {log}");
    });
}

#[test]
fn nodes_print_in_every_output_format() {
    with_every_kubectl(|hub, kubectl| {
        assert_eq!(kubectl.run("get nodes").err, "No resources found\n");
        register(hub, kubectl);
        let rows = table(&kubectl.ok("get nodes"));
        assert_eq!(rows[0], ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]);
        assert_eq!([&rows[1][..3], &rows[1][4..]].concat(), ["edge-1", "Ready", "edge", "v0.1.0"]);
        let wide = kubectl.ok("get no -o wide");
        let head = ["INTERNAL-IP", "EXTERNAL-IP", "OS-IMAGE", "KERNEL-VERSION", "CONTAINER-RUNTIME"];
        contains(&wide, &head);
        contains(&wide, &["10.1.2.3", "<none>", "Debian 12", "6.1.0", "crun://1.8"]);
        assert_eq!(kubectl.ok("get nodes -o name"), "node/edge-1\n");
        assert_eq!(
            kubectl.ok(
                "get nodes --no-headers -o custom-columns=N:.metadata.name,A:.status.nodeInfo.architecture"
            ),
            "edge-1   arm64\n"
        );
        let ready = r#"get node edge-1 -o jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
        assert_eq!(kubectl.ok(ready), "True");
        let object = json(&kubectl.ok("get node edge-1 -o json"));
        assert_eq!((&object["apiVersion"], &object["kind"]), (&json!("v1"), &json!("Node")));
        assert!(object["metadata"]["uid"].as_str().is_some_and(|uid| uid.len() == 36), "{object}");
        let list = json(&kubectl.ok("get nodes -o json"));
        assert_eq!((&list["kind"], &list["items"][0]["kind"]), (&json!("List"), &json!("Node")));
        contains(
            &kubectl.ok("get node edge-1 -o yaml"),
            &["apiVersion: v1\n", "kind: Node\n", "  name: edge-1\n"],
        );
        contains(&kubectl.ok("get nodes --show-labels"), &["LABELS", "site=quarry"]);
        contains(&kubectl.ok("get nodes -L site"), &["SITE", "quarry"]);
        contains(&kubectl.ok("get nodes --sort-by=.metadata.name"), &["edge-1"]);
    });
}

#[test]
fn describe_node_shows_lease_pods_and_events() {
    with_every_kubectl(|hub, kubectl| {
        register(hub, kubectl);
        let lease = json!({"metadata": {"name": "edge-1"},
            "spec": {"holderIdentity": "edge-1", "leaseDurationSeconds": 40, "renewTime": "2026-11-21T01:00:00.000000Z"}});
        hub.admin()
            .post("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", &lease)
            .expect(201);
        let node = hub.stored("/api/v1/nodes/edge-1");
        let uid = node["metadata"]["uid"].as_str().unwrap();
        for (name, uid, reason) in [("a", uid, "Starting"), ("b", "edge-1", "KubeletConfigChanged")] {
            let event = json!({
                "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
                "involvedObject": {"kind": "Node", "name": "edge-1", "uid": uid, "apiVersion": "v1"},
                "reason": reason, "message": format!("about {reason}"), "type": "Normal", "count": 1,
                "source": {"component": "kedge"}, "firstTimestamp": "2026-11-21T01:00:00Z", "lastTimestamp": "2026-11-21T01:00:00Z",
            });
            hub.admin().post("/api/v1/namespaces/default/events", &event).expect(201);
        }
        let text = kubectl.ok("describe node edge-1");
        contains(&text, &["Name:               edge-1", "Roles:              edge", "site=quarry"]);
        contains(
            &text,
            &[
                "Lease:",
                "HolderIdentity:  edge-1",
                "AcquireTime:     <unset>",
                "RenewTime:       Sat, 21 Nov 2026",
            ],
        );
        contains(&text, &["ConfigOK", "using current (default)", "KubeletReady", "InternalIP:  10.1.2.3"]);
        contains(&text, &["Architecture:", "arm64", "Non-terminated Pods:", "(0 in total)"]);
        contains(&text, &["KubeletConfigChanged", "about KubeletConfigChanged"]);
        if kubectl.version != "1.20" {
            // 1.20 looks only for events whose uid is the node's name
            contains(&text, &["Starting", "about Starting"]);
        }
        contains(&kubectl.ok("get leases -n kube-node-lease"), &["NAME", "HOLDER", "AGE", "edge-1   edge-1"]);
        assert_eq!(
            kubectl.run("get pods -A --field-selector spec.nodeName=edge-1").err,
            "No resources found\n"
        );
    });
}

#[test]
fn config_maps_are_created_from_files_and_literals() {
    with_every_kubectl(|hub, kubectl| {
        kubectl.file(
            "kubelet.yaml",
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 20\n",
        );
        let made = kubectl.ok("create configmap edge-settings --from-file=kubelet=kubelet.yaml");
        assert_eq!(made, "configmap/edge-settings created\n");
        let object = hub.map("edge-settings");
        contains(object["data"]["kubelet"].as_str().unwrap(), &["kind: KubeletConfiguration\nmaxPods: 20\n"]);
        kubectl.ok("create cm words --from-literal=a=1 --from-literal=b=2");
        kubectl.file("bytes", [0xff, 0x00, 0xfe]);
        kubectl.ok("create configmap binary --from-file=bytes");
        let binary = hub.map("binary");
        assert_eq!(binary["binaryData"], json!({"bytes": "/wD+"}));
        assert_eq!(binary["data"], Value::Null);
        let rows = table(&kubectl.ok("get configmaps"));
        assert_eq!(rows[0], ["NAME", "DATA", "AGE"]);
        let shown: Vec<&[String]> = rows[1..].iter().map(|row| &row[..2]).collect();
        assert_eq!(
            shown,
            [["binary", "1"], ["edge-settings", "1"], ["kube-root-ca.crt", "1"], ["words", "2"]]
        );
        let error = kubectl.fails("create configmap words --from-literal=a=1");
        contains(&error, &["configmaps \"words\" already exists"]);
        let described = kubectl.ok("describe configmap words");
        contains(&described, &["Name:         words", "Namespace:    default", "Data", "a:\n----\n1\n"]);
        contains(&kubectl.ok("get cm -A"), &["NAMESPACE", "default           words"]);
        assert_eq!(kubectl.ok("get cm --field-selector metadata.name=words -o name"), "configmap/words\n");
        assert_eq!(
            kubectl.ok("get cm --field-selector metadata.name!=words -o name"),
            "configmap/binary\nconfigmap/edge-settings\nconfigmap/kube-root-ca.crt\n"
        );
        assert_eq!(
            kubectl.ok("delete configmap words"),
            "configmap \"words\" deleted\n".replace("deleted\n", deleted(kubectl))
        );
        contains(
            &kubectl.fails("get configmap words"),
            &["Error from server (NotFound): configmaps \"words\" not found"],
        );
        kubectl.ok("create cm in-another --from-literal=a=1 -n kube-public");
        assert_eq!(
            kubectl.ok("get cm -n kube-public -o name"),
            "configmap/cluster-info\nconfigmap/in-another\nconfigmap/kube-root-ca.crt\n"
        );
        contains(
            &kubectl.fails("create cm x --from-literal=a=1 -n nowhere"),
            &["namespaces \"nowhere\" not found"],
        );
    });
}

/// kubectl prints the namespace of deleted objects since 1.33.
fn deleted(kubectl: &Kubectl) -> &'static str {
    if kubectl.version != "1.36" { "deleted\n" } else { "deleted from default namespace\n" }
}

const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\n  labels:\n    site: quarry\ndata:\n  a: \"1\"\n  b: \"2\"\n";

#[test]
fn files_are_created_applied_replaced_and_deleted() {
    with_every_kubectl(|hub, kubectl| {
        kubectl.file("m.yaml", MAP);
        assert_eq!(kubectl.ok("apply -f m.yaml"), "configmap/m created\n");
        assert_eq!(kubectl.ok("apply -f m.yaml"), "configmap/m unchanged\n");
        let version = hub.map("m")["metadata"]["resourceVersion"].clone();
        kubectl.file("m.yaml", MAP.replace("  b: \"2\"\n", "  c: \"3\"\n"));
        assert_eq!(kubectl.ok("apply -f m.yaml"), "configmap/m configured\n");
        let object = hub.map("m");
        assert_eq!(
            object["data"],
            json!({"a": "1", "c": "3"}),
            "keys that are no longer applied are removed"
        );
        assert_ne!(object["metadata"]["resourceVersion"], version);
        assert_eq!(kubectl.ok("diff -f m.yaml"), "", "nothing differs");
        kubectl.file("other.yaml", MAP.replace("name: m", "name: other"));
        assert_eq!(kubectl.ok("create -f other.yaml"), "configmap/other created\n");
        contains(
            &kubectl.fails("create -f other.yaml"),
            &["(AlreadyExists)", "configmaps \"other\" already exists"],
        );
        kubectl.file("other.yaml", MAP.replace("name: m", "name: other").replace("\"2\"", "\"two\""));
        assert_eq!(kubectl.ok("replace -f other.yaml"), "configmap/other replaced\n");
        assert_eq!(hub.map("other")["data"]["b"], "two");
        assert_eq!(kubectl.ok("get cm -l site=quarry -o name"), "configmap/m\nconfigmap/other\n");
        assert_eq!(
            kubectl.ok("get cm -l 'site in (quarry,mill),!x' -o name"),
            "configmap/m\nconfigmap/other\n"
        );
        assert_eq!(kubectl.run("get cm -l site=mill").err, "No resources found in default namespace.\n");
        assert_eq!(kubectl.ok("get cm -l site!=quarry -o name"), "configmap/kube-root-ca.crt\n");
        kubectl.ok("delete -f m.yaml");
        contains(&kubectl.fails("delete -f m.yaml"), &["(NotFound)", "configmaps \"m\" not found"]);
        assert_eq!(kubectl.ok("delete cm -l site=quarry -o name"), "configmap/other\n");
        contains(&kubectl.fails("replace -f other.yaml"), &["(NotFound)", "configmaps \"other\" not found"]);
        kubectl.ok("apply -f other.yaml");
        contains(&kubectl.ok("delete cm --all"), &["configmap \"other\" deleted"]);
    });
}

#[test]
fn objects_are_edited_patched_labelled_and_annotated() {
    with_every_kubectl(|hub, kubectl| {
        kubectl.ok_with("create -f -", MAP);
        let outcome = kubectl.with_editor("sed -i s/quarry/mill/", "edit configmap m");
        assert_eq!(
            (outcome.code, outcome.out.as_str()),
            (Some(0), "configmap/m edited\n"),
            "{}",
            outcome.err
        );
        assert_eq!(hub.map("m")["metadata"]["labels"]["site"], "mill");
        contains(&kubectl.with_editor("true", "edit configmap m").err, &["Edit cancelled, no changes made"]);
        let patched = "configmap/m patched\n";
        assert_eq!(kubectl.ok(r#"patch cm m -p '{"data":{"a":"strategic","b":null}}'"#), patched);
        assert_eq!(kubectl.ok(r#"patch cm m --type=merge -p '{"data":{"c":"merge"}}'"#), patched);
        let operations = r#"[{"op":"test","path":"/data/c","value":"merge"},{"op":"add","path":"/data/d","value":"json"}]"#;
        assert_eq!(kubectl.ok(&format!("patch cm m --type=json -p '{operations}'")), patched);
        assert_eq!(
            kubectl.ok(&format!("patch cm m --type=merge -p '{}'", r#"{"data":{"c":"merge"}}"#)),
            "configmap/m patched (no change)\n"
        );
        assert_eq!(hub.map("m")["data"], json!({"a": "strategic", "c": "merge", "d": "json"}));
        let failed =
            kubectl.fails(r#"patch cm m --type=json -p '[{"op":"test","path":"/data/c","value":"x"}]'"#);
        contains(&failed, &["The request is invalid"]);
        assert_eq!(kubectl.ok("label cm m tier=one"), "configmap/m labeled\n");
        contains(
            &kubectl.fails("label cm m tier=two"),
            &["'tier' already has a value (one), and --overwrite is false"],
        );
        assert_eq!(kubectl.ok("label cm m tier=two --overwrite"), "configmap/m labeled\n");
        kubectl.ok("label cm m site-");
        assert_eq!(kubectl.ok("annotate cm m note='of one word'"), "configmap/m annotated\n");
        let metadata = hub.map("m")["metadata"].clone();
        assert_eq!(metadata["labels"], json!({"tier": "two"}));
        assert_eq!(metadata["annotations"]["note"], "of one word");
    });
}

#[test]
fn patch_assigns_a_config_to_a_node() {
    with_every_kubectl(|hub, kubectl| {
        register(hub, kubectl);
        let settings = json!({"metadata": {"name": "edge-settings"}, "data": {"kubelet": "x"}});
        let uid = hub.admin().post(MAPS, &settings).expect(201)["metadata"]["uid"].clone();
        let reference = json!({"namespace": "default", "name": "edge-settings", "uid": uid});
        let patch =
            |source: Value| format!("patch node edge-1 -p '{}'", json!({"spec": {"configSource": source}}));
        let stored = || hub.stored("/api/v1/nodes/edge-1")["spec"]["configSource"].clone();

        assert_eq!(kubectl.ok(&patch(json!({"configMapRef": reference}))), "node/edge-1 patched\n");
        assert_eq!(stored(), json!({"configMapRef": reference}), "the pinned form is stored as written");
        let following =
            json!({"namespace": "default", "name": "edge-settings", "kubeletConfigKey": "kubelet"});
        kubectl.ok(&patch(json!({"configMapRef": null, "configMap": following})));
        assert_eq!(stored(), json!({"configMap": following}));
        let outcome = kubectl.run(&patch(json!({"configMapRef": reference})));
        contains(&outcome.err, &["Warning: "]);
        assert_eq!(
            stored(),
            json!({"configMap": following, "configMapRef": reference}),
            "judging it is the node's"
        );
        kubectl.ok(&patch(Value::Null));
        assert_eq!(stored(), Value::Null);

        let error = kubectl.fails(&patch(json!({"configMap": {"name": "edge-settings"}})));
        contains(
            &error,
            &["The Node \"edge-1\" is invalid", "spec.configSource.configMap.namespace: Required value"],
        );
        contains(&error, &["spec.configSource.configMap.kubeletConfigKey: Required value"]);
        assert_eq!(stored(), Value::Null, "a refused assignment changes nothing");
    });
}

/// Changes, a second apart, until a watch prints one: more than any machine needs to start it.
const CHANGES: usize = 200;

#[test]
fn watch_prints_changes() {
    with_every_kubectl(|hub, kubectl| {
        let mut admin = hub.admin();
        let mut change = |change: Value| admin.patch("merge", &format!("{MAPS}/m"), &change).expect(200);
        hub.admin().post(MAPS, &json!({"metadata": {"name": "m"}, "data": {"a": "1"}})).expect(201);
        let watch = kubectl.start(
            "get cm --field-selector metadata.name!=kube-root-ca.crt --watch --no-headers -o custom-columns=N:.metadata.name,A:.data.a",
        );
        assert_eq!(watch.line(), "m     1");
        change(json!({"data": {"a": "2"}}));
        assert_eq!(watch.line(), "m     2");
        hub.admin().post(MAPS, &json!({"metadata": {"name": "later"}, "data": {"a": "3"}})).expect(201);
        assert_eq!(watch.line(), "later   3");
        let table = kubectl.start("get cm -l site=quarry -w -o name");
        change(json!({"metadata": {"labels": {"site": "quarry"}}}));
        assert_eq!(table.line(), "configmap/m", "the object now matches the selector");
        kubectl.ok("delete cm later");
        if kubectl.version != "1.20" {
            kubectl.ok("wait --for=delete cm/later --timeout=50s");
        }
        let tables = kubectl.start("get cm m --watch");
        assert!(tables.line().starts_with("NAME"));
        assert!(tables.line().starts_with("m "));
        // kubectl reads one object, opens its watch later and leaves out the first event of that: a change
        // may be lost in between
        let mut changes = 0;
        let mut first_line_of = |watch: &Running| loop {
            changes += 1;
            assert!(changes < CHANGES, "no change was printed");
            change(json!({"data": {"b": changes.to_string()}}));
            if let Some(line) = watch.line_within(1) {
                break line;
            }
        };
        contains(&first_line_of(&tables), &["m      2"]);
        let events = kubectl.start("get cm m --watch --output-watch-events --no-headers");
        contains(&events.line(), &["ADDED", "m "]);
        contains(&first_line_of(&events), &["MODIFIED", "m "]);
        hub.admin().delete(&format!("{MAPS}/m")).expect(200);
        let last = std::iter::repeat_with(|| events.line()).find(|line| !line.starts_with("MODIFIED"));
        contains(&last.unwrap(), &["DELETED", "m "]);
    });
}

#[test]
fn errors_read_like_upstreams() {
    with_every_kubectl(|hub, kubectl| {
        kubectl.file("m.yaml", MAP);
        kubectl.ok("create -f m.yaml");
        let check = |line: &str, parts: &[&str]| contains(&kubectl.fails(line), parts);
        check("get node nothing", &["Error from server (NotFound): nodes \"nothing\" not found"]);
        check("get gizmos", &["error: the server doesn't have a resource type \"gizmos\""]);
        check("get --raw /nothing", &["(NotFound)", "the server could not find the requested resource"]);
        check("get nodes --field-selector spec.color=red", &["field label not supported: spec.color"]);
        check(
            "create cm UPPER --from-literal=a=1",
            &["ConfigMap \"UPPER\" is invalid", "a lowercase RFC 1123 subdomain"],
        );
        check("label cm m a/b/c=x", &["a/b/c"]);
        check("get cm -l a=b=c", &["found '=', expected: ',' or 'end of string'"]);
        check("get cm -l 'a in b'", &["unable to parse requirement: found 'b' expected: '('"]);
        check(
            r#"patch cm m -p '{"metadata":{"name":"n"}}'"#,
            &["(BadRequest): the name of the object (n) does not match the name on the URL (m)"],
        );
        kubectl.file("large", "x".repeat(1024 * 1024 + 1));
        check(
            "create cm large --from-file=large",
            &["ConfigMap \"large\" is invalid: []: Too long: may not be more than 1048576 bytes"],
        );

        let stale = hub.map("m");
        let newer = json!({"metadata": {"labels": {"newer": "yes"}}});
        let mut immutable = hub.admin().patch("merge", &format!("{MAPS}/m"), &newer).expect(200);
        let conflict = kubectl.fails_with("replace -f -", &stale.to_string());
        contains(&conflict, &["(Conflict)", "Operation cannot be fulfilled on configmaps \"m\""]);
        contains(
            &conflict,
            &["the object has been modified; please apply your changes to the latest version and try again"],
        );

        immutable["immutable"] = json!(true);
        kubectl.ok_with("replace -f -", &immutable.to_string());
        check(
            r#"patch cm m -p '{"data":{"a":"2"}}'"#,
            &["is invalid", "field is immutable when `immutable` is set"],
        );
        check("patch cm m -p '[1'", &["error"]);
        let broken =
            "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"x\"},\"dota\":{}}";
        // 1.20 validates the file itself, by the schema the hub serves; later versions leave that to the hub
        contains(&kubectl.fails_with("create -f -", broken), &["unknown field \"dota\""]);
        let outcome = kubectl.run_with("create --validate=false -f -", broken);
        assert_eq!(outcome.out, "configmap/x created\n", "{}", outcome.err);
        assert_eq!(hub.map("x")["dota"], Value::Null, "what the hub does not know it drops");
    });
}

#[test]
fn discovery_version_and_health_are_served() {
    with_every_kubectl(|_, kubectl| {
        let resources = kubectl.ok("api-resources");
        contains(
            &resources,
            &[
                "SHORTNAMES",
                "configmaps",
                "cm",
                "nodes",
                "no ",
                "namespaces",
                "ns ",
                "events",
                "leases",
                "pods",
            ],
        );
        let writable = kubectl.ok("api-resources --verbs=create,delete -o name");
        contains(&writable, &["configmaps\n", "leases.coordination.k8s.io\n"]);
        contains(&kubectl.ok("api-versions"), &["coordination.k8s.io/v1\n", "v1\n"]);
        let version = json(&kubectl.ok("version -o json"));
        contains(version["serverVersion"]["gitVersion"].as_str().unwrap(), &["v1.", "+kedge"]);
        for path in ["/healthz", "/livez", "/readyz"] {
            assert_eq!(kubectl.ok(&format!("get --raw {path}")), "ok");
        }
        contains(&kubectl.ok("get --raw /readyz?verbose"), &["[+]ping ok"]);
        contains(&kubectl.ok("get --raw /metrics"), &["# TYPE "]);
        assert_eq!(json(&kubectl.ok("get --raw /api/v1/namespaces/default"))["kind"], "Namespace");
        let names = kubectl.ok("get ns -o name");
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            contains(&names, &[&format!("namespace/{name}\n")]);
        }
        contains(&kubectl.ok("get namespaces"), &["NAME", "STATUS", "AGE", "Active"]);
        contains(&kubectl.run("get pods").err, &["No resources found in default namespace."]);
    });
}

#[test]
fn namespaces_are_created_and_events_listed() {
    with_every_kubectl(|hub, kubectl| {
        assert_eq!(kubectl.ok("create namespace plant"), "namespace/plant created\n");
        let labels = &hub.stored("/api/v1/namespaces/plant")["metadata"]["labels"];
        assert_eq!(*labels, json!({"kubernetes.io/metadata.name": "plant"}));
        contains(&kubectl.run("get events").err, &["No resources found in default namespace."]);
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "edge-1.", "namespace": "default"},
            "involvedObject": {"kind": "Node", "name": "edge-1", "apiVersion": "v1"}, "reason": "Rolled", "message": "back to uid 5b1e",
            "type": "Warning", "count": 3, "source": {"component": "kedge", "host": "edge-1"},
            "firstTimestamp": "2026-11-21T01:00:00Z", "lastTimestamp": "2026-11-21T01:00:00Z",
        });
        contains(&kubectl.ok_with("create -f -", &event.to_string()), &["event/edge-1.", " created"]);
        let rows = table(&kubectl.ok("get events"));
        assert_eq!(rows[0], ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]);
        assert_eq!(rows[1][1..], ["Warning", "Rolled", "node/edge-1", "back to uid 5b1e"]);
        let selected =
            kubectl.ok("get events -A --field-selector involvedObject.name=edge-1,type=Warning -o name");
        contains(&selected, &["event/edge-1."]);
        let none = kubectl.run("get events --field-selector reason=Other");
        contains(&none.err, &["No resources found in default namespace."]);
        if kubectl.version != "1.20" {
            contains(&kubectl.ok("events --for node/edge-1 -A"), &["Rolled", "back to uid 5b1e"]);
        }
    });
}

#[test]
fn nodes_are_cordoned_tainted_and_drained() {
    with_every_kubectl(|hub, kubectl| {
        register(hub, kubectl);
        assert_eq!(kubectl.ok("cordon edge-1"), "node/edge-1 cordoned\n");
        contains(&kubectl.ok("get nodes"), &["Ready,SchedulingDisabled"]);
        assert_eq!(kubectl.ok("get nodes --field-selector spec.unschedulable=true -o name"), "node/edge-1\n");
        assert_eq!(kubectl.ok("uncordon edge-1"), "node/edge-1 uncordoned\n");
        assert_eq!(kubectl.ok("taint node edge-1 dirty=yes:NoSchedule"), "node/edge-1 tainted\n");
        contains(&kubectl.ok("describe node edge-1"), &["Taints:             dirty=yes:NoSchedule"]);
        assert_eq!(kubectl.ok("taint node edge-1 dirty-"), "node/edge-1 untainted\n");
        let drained = kubectl.ok("drain edge-1 --ignore-daemonsets");
        contains(&drained, &["node/edge-1 cordoned\n"]);
        assert_eq!(hub.stored("/api/v1/nodes/edge-1")["spec"]["unschedulable"], true);
        assert_eq!(kubectl.ok("delete node edge-1"), "node \"edge-1\" deleted\n");
    });
}

#[test]
fn dry_run_stores_nothing_and_replace_force_recreates() {
    with_every_kubectl(|hub, kubectl| {
        let shown = kubectl.ok("create cm m --from-literal=a=1 --dry-run=server -o name");
        assert_eq!(shown, "configmap/m\n");
        assert_eq!(hub.admin().get(&format!("{MAPS}/m")).code, 404);
        kubectl.file("m.yaml", MAP);
        assert_eq!(kubectl.ok("apply -f m.yaml --dry-run=server"), "configmap/m created (server dry run)\n");
        kubectl.ok("apply -f m.yaml");
        let before = hub.map("m")["metadata"].clone();
        contains(&kubectl.ok("label cm m x=y --dry-run=server"), &["configmap/m labeled"]);
        kubectl.ok("delete cm m --dry-run=server");
        assert_eq!(hub.map("m")["metadata"], before);
        contains(&kubectl.ok("replace --force -f m.yaml"), &["configmap/m replaced\n"]);
        let after = hub.map("m")["metadata"].clone();
        assert_ne!((&after["uid"], &after["resourceVersion"]), (&before["uid"], &before["resourceVersion"]));
    });
}

#[test]
fn deleting_a_namespace_empties_it_but_system_ones_stay() {
    with_every_kubectl(|_, kubectl| {
        kubectl.ok("create ns plant");
        kubectl.ok("create cm m --from-literal=a=1 -n plant");
        assert_eq!(kubectl.ok("delete ns plant"), "namespace \"plant\" deleted\n");
        contains(&kubectl.fails("get ns plant"), &["namespaces \"plant\" not found"]);
        kubectl.ok("create ns plant");
        let old = kubectl.run("get cm -n plant --field-selector metadata.name=m");
        assert_eq!(old.err, "No resources found in plant namespace.\n");
        for name in ["default", "kube-system", "kube-public"] {
            contains(&kubectl.fails(&format!("delete ns {name}")), &["this namespace may not be deleted"]);
        }
    });
}

#[test]
fn can_i_and_explain_answer() {
    with_every_kubectl(|hub, kubectl| {
        let node = kubectl.as_node(hub, "edge-1");
        let may = |who: &Kubectl, what: &str| who.run(&format!("auth can-i {what} -q")).code == Some(0);
        assert!(may(kubectl, "delete nodes"));
        assert!(may(kubectl, "create configmaps -n kube-system"));
        assert!(may(&node, "get node/edge-1"));
        assert!(!may(&node, "get node/edge-2"));
        assert!(!may(&node, "delete node/edge-1"));
        assert!(!may(&node, "create configmaps"));
        if kubectl.version != "1.20" {
            contains(&kubectl.ok("auth whoami"), &["Username", "admin", "system:masters"]);
            contains(&node.ok("auth whoami"), &["system:node:edge-1", "system:nodes"]);
        }
        contains(&kubectl.ok("explain configmap.data"), &["ConfigMap", "map[string]string"]);
        contains(&kubectl.ok("explain node.spec"), &["configSource", "unschedulable"]);
    });
}

#[test]
fn restart_keeps_every_object() {
    let mut hub = Hub::new();
    let Some(kubectl) = hub.find_kubectl("1.36") else { return };
    kubectl.ok("create cm m --from-literal=a=1");
    let object = kubectl.ok("get cm m -o json");
    let version =
        |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    let mut before = version(&json(&object));
    for signal in ["TERM", "KILL"] {
        let certificate = fs::read(hub.data_dir.join("ca.crt")).unwrap();
        hub.restart(signal);
        assert_eq!(fs::read(hub.data_dir.join("ca.crt")).unwrap(), certificate, "the authority is kept");
        assert_eq!(kubectl.ok("get cm m -o json"), object, "after {signal}");
        kubectl.ok(&format!("create cm {} --from-literal=a=1", signal.to_lowercase()));
        let after = version(&hub.map(&signal.to_lowercase()));
        assert!(after > before, "revisions never go back: {before}, {after}");
        before = after;
    }
}
