//! Manifests in the shapes of public ones, as kubectl applies and deletes them: the kinds and fields that 23
//! programs for edge nodes have, in our own words. Some of these programs also make their API requests here.

use serde_json::{Value, json};

use crate::programs::{contains, registered, with_newest_kubectl};
use crate::rights::program;

const RIGHTS: &str = "rbac.authorization.k8s.io/v1";

/// A manifest, and parts of the refusals of features that this hub lacks; empty: it applies whole.
struct Shape {
    name: &'static str,
    objects: Vec<Value>,
    refused: &'static [&'static str],
}

fn of(api: &str, kind: &str, name: &str, rest: Value) -> Value {
    let mut object =
        json!({"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "default"}});
    object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    object
}

/// A DaemonSet whose only container has these fields, and whose pods have those.
fn set(name: &str, container: Value, pod: Value) -> Value {
    let mut one = json!({"name": name, "image": format!("registry.example/{name}:1.0")});
    one.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    let mut spec = json!({"containers": [one], "tolerations": [{"operator": "Exists"}]});
    spec.as_object_mut().unwrap().extend(pod.as_object().unwrap().clone());
    let labels = json!({"app.kubernetes.io/name": name});
    of(
        "apps/v1",
        "DaemonSet",
        name,
        json!({"spec": {"selector": {"matchLabels": labels}, "updateStrategy": {"rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {"metadata": {"labels": labels}, "spec": spec}}}),
    )
}

fn service(name: &str, spec: Value) -> Value {
    let mut whole = json!({"selector": {"app.kubernetes.io/name": name}});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    of("v1", "Service", name, json!({"spec": whole}))
}

fn account(name: &str) -> Value {
    of("v1", "ServiceAccount", name, json!({}))
}

fn config(name: &str) -> Value {
    of("v1", "ConfigMap", name, json!({"data": {"settings": "level = info\n"}}))
}

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

/// An account with a ClusterRole of these rules.
fn rights(name: &str, rules: &[Value]) -> Vec<Value> {
    let mut role = of(RIGHTS, "ClusterRole", name, json!({"rules": rules}));
    let mut binding = of(
        RIGHTS,
        "ClusterRoleBinding",
        name,
        json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}]}),
    );
    for object in [&mut role, &mut binding] {
        object["metadata"].as_object_mut().unwrap().remove("namespace");
    }
    vec![account(name), role, binding]
}

fn host(name: &str, path: &str) -> Value {
    json!({"name": name, "hostPath": {"path": path}})
}

fn mount(name: &str, path: &str) -> Value {
    json!({"name": name, "mountPath": path, "readOnly": true})
}

const READ: &[&str] = &["get", "list", "watch"];

#[allow(clippy::too_many_lines, reason = "it is one list")]
fn shapes() -> Vec<Shape> {
    let mut all = Vec::new();
    let mut add = |name: &'static str, refused: &'static [&'static str], parts: Vec<Vec<Value>>| {
        all.push(Shape { name, objects: parts.concat(), refused });
    };
    let read_pods = || rule(&[""], &["pods", "namespaces", "nodes"], READ);
    add(
        "node exporter",
        &[],
        vec![vec![
            account("exporter"),
            service(
                "exporter",
                json!({"ports": [{"name": "metrics", "port": 9100, "targetPort": "metrics"}]}),
            ),
            set(
                "exporter",
                json!({"args": ["--path.rootfs=/host"], "ports": [{"name": "metrics", "containerPort": 9100}],
            "volumeMounts": [{"name": "root", "mountPath": "/host", "mountPropagation": "HostToContainer", "readOnly": true}]}),
                json!({"hostNetwork": true, "hostPID": true, "volumes": [host("root", "/")], "serviceAccountName": "exporter"}),
            ),
        ]],
    );
    let logs = || json!({"volumeMounts": [mount("logs", "/var/log")]});
    let log_pod = |name: &str| json!({"volumes": [host("logs", "/var/log")], "serviceAccountName": name});
    add(
        "log shipper with a Service",
        &[],
        vec![
            rights("shipper", &[read_pods()]),
            vec![
                config("shipper"),
                service(
                    "shipper",
                    json!({"type": "ClusterIP", "ports": [{"name": "http", "port": 2020, "targetPort": "http", "protocol": "TCP"}]}),
                ),
                set("shipper", logs(), log_pod("shipper")),
            ],
        ],
    );
    add(
        "log agent",
        &[],
        vec![
            rights("agent", &[read_pods()]),
            vec![
                config("agent"),
                service("agent", json!({"clusterIP": "None", "ports": [{"name": "api", "port": 8686}]})),
                set("agent", logs(), log_pod("agent")),
            ],
        ],
    );
    add(
        "metrics agent",
        &[],
        vec![
            rights(
                "telemetry",
                &[rule(&[""], &["nodes/stats", "nodes/metrics", "nodes/proxy"], &["get"]), read_pods()],
            ),
            vec![
                config("telemetry"),
                set(
                    "telemetry",
                    json!({"env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]}),
                    json!({"serviceAccountName": "telemetry"}),
                ),
            ],
        ],
    );
    add(
        "node problem detector",
        &[],
        vec![
            vec![account("detector"), {
                let mut binding = of(
                    RIGHTS,
                    "ClusterRoleBinding",
                    "detector",
                    json!({
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-problem-detector"},
                "subjects": [{"kind": "ServiceAccount", "name": "detector", "namespace": "default"}]}),
                );
                binding["metadata"].as_object_mut().unwrap().remove("namespace");
                binding
            }],
            vec![set(
                "detector",
                json!({"securityContext": {"privileged": true}, "volumeMounts": [mount("kmsg", "/dev/kmsg")]}),
                json!({"volumes": [host("kmsg", "/dev/kmsg")], "serviceAccountName": "detector"}),
            )],
        ],
    );
    add(
        "reboot daemon",
        &[],
        vec![
            rights(
                "rebooter",
                &[
                    rule(&[""], &["nodes"], &["get", "patch"]),
                    rule(&[""], &["pods"], &["list", "delete", "get"]),
                    rule(&["apps"], &["daemonsets"], &["get"]),
                    rule(&[""], &["pods/eviction"], &["create"]),
                ],
            ),
            vec![
                of(
                    RIGHTS,
                    "Role",
                    "rebooter",
                    json!({"rules": [{"apiGroups": ["apps"], "resources": ["daemonsets"],
                "resourceNames": ["rebooter"], "verbs": ["update"]}]}),
                ),
                of(
                    RIGHTS,
                    "RoleBinding",
                    "rebooter",
                    json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "rebooter"},
                "subjects": [{"kind": "ServiceAccount", "name": "rebooter", "namespace": "default"}]}),
                ),
                set(
                    "rebooter",
                    json!({"securityContext": {"privileged": true}, "command": ["/usr/bin/rebooter", "--period=1h"]}),
                    json!({"hostPID": true, "serviceAccountName": "rebooter"}),
                ),
            ],
        ],
    );
    add(
        "container metrics",
        &[],
        vec![vec![
            account("advisor"),
            set(
                "advisor",
                json!({
        "ports": [{"name": "http", "containerPort": 8080, "hostPort": 8080}], "resources": {"requests": {"memory": "100Mi"}},
        "volumeMounts": [mount("sys", "/sys"), mount("root", "/rootfs")]}),
                json!({"automountServiceAccountToken": false, "serviceAccountName": "advisor", "volumes": [host("sys", "/sys"), host("root", "/")]}),
            ),
        ]],
    );
    let mut runtime = of("node.k8s.io/v1", "RuntimeClass", "graphics", json!({"handler": "graphics"}));
    runtime["metadata"].as_object_mut().unwrap().remove("namespace");
    add(
        "graphics plugin and a pod that uses it",
        &[],
        vec![vec![
            runtime,
            set(
                "graphics",
                json!({"securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}),
                json!({"priorityClassName": "system-node-critical", "volumes": [host("plugins", "/var/lib/kubelet/device-plugins")]}),
            ),
            of(
                "v1",
                "Pod",
                "user",
                json!({"spec": {"runtimeClassName": "graphics", "containers": [{"name": "u", "image": "i",
            "resources": {"limits": {"example.com/gpu": "1"}}}]}}),
            ),
        ]],
    );
    add(
        "processor graphics plugin",
        &[],
        vec![vec![set(
            "igpu",
            json!({"args": ["-shared-dev-num=2"]}),
            json!({
        "initContainers": [{"name": "prepare", "image": "i", "securityContext": {"runAsUser": 0}}],
        "nodeSelector": {"kubernetes.io/arch": "amd64"}, "volumes": [host("dri", "/sys/class/drm")]}),
        )]],
    );
    add(
        "device manager",
        &[],
        vec![vec![
            config("devices"),
            set(
                "devices",
                json!({"volumeMounts": [mount("settings", "/settings")]}),
                json!({"hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet", "volumes": [{"name": "settings", "configMap": {"name": "devices"}}]}),
            ),
        ]],
    );
    add(
        "telemetry collector",
        &[],
        vec![
            rights(
                "collector",
                &[
                    read_pods(),
                    rule(&["apps"], &["replicasets", "daemonsets"], READ),
                    rule(&["extensions"], &["replicasets"], READ),
                ],
            ),
            vec![
                config("collector"),
                set(
                    "collector",
                    json!({
        "livenessProbe": {"httpGet": {"path": "/", "port": 13133}}, "ports": [{"containerPort": 4317, "hostPort": 4317}],
        "env": [{"name": "GOMEMLIMIT", "value": "400MiB"}]}),
                    json!({"serviceAccountName": "collector"}),
                ),
            ],
        ],
    );
    add(
        "name server on each node",
        &[],
        vec![vec![
            account("names"),
            service(
                "names-upstream",
                json!({"ports": [{"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
            {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53}]}),
            ),
            service(
                "names",
                json!({"clusterIP": "None", "ports": [{"name": "metrics", "port": 9253, "targetPort": 9253}]}),
            ),
            config("names"),
            set(
                "names",
                json!({"args": ["-localip", "169.254.20.10"]}),
                json!({"hostNetwork": true, "dnsPolicy": "Default"}),
            ),
        ]],
    );
    add(
        "broker with a claim",
        &[
            "no matches for kind \"Deployment\"",
            "no matches for kind \"PersistentVolumeClaim\"",
            "no matches for kind \"Ingress\"",
        ],
        vec![vec![
            of("apps/v1", "Deployment", "broker", json!({"spec": {}})),
            of("v1", "PersistentVolumeClaim", "broker", json!({"spec": {}})),
            of("networking.k8s.io/v1", "Ingress", "broker", json!({"spec": {}})),
            config("broker"),
            service("broker", json!({"ports": [{"name": "mqtt", "port": 1883}]})),
        ]],
    );
    add(
        "broker on one node",
        &[],
        vec![vec![
            config("mqtt"),
            service("mqtt", json!({"type": "NodePort", "ports": [{"port": 1883, "nodePort": 31883}]})),
            set(
                "mqtt",
                json!({"ports": [{"containerPort": 1883, "hostPort": 1883}],
            "volumeMounts": [{"name": "settings", "mountPath": "/etc/mqtt.conf", "subPath": "settings"}]}),
                json!({"securityContext": {"fsGroup": 1883}, "nodeSelector": {"site": "quarry"}, "volumes": [{"name": "settings", "configMap": {"name": "mqtt"}}]}),
            ),
        ]],
    );
    add(
        "home automation",
        &[],
        vec![vec![
            of("v1", "Secret", "home", json!({"data": {"password": "cA=="}})),
            service("home", json!({"type": "LoadBalancer", "ports": [{"port": 8123}]})),
            set(
                "home",
                json!({"env": [{"name": "P", "valueFrom": {"secretKeyRef": {"name": "home", "key": "password"}}}]}),
                json!({"volumes": [{"name": "stick", "hostPath": {"path": "/dev/ttyUSB0", "type": "CharDevice"}}],
                "initContainers": [{"name": "own", "image": "i", "command": ["chown", "-R", "1000", "/data"]}]}),
            ),
        ]],
    );
    add(
        "clock and tunnel",
        &[],
        vec![vec![
            set(
                "clock",
                json!({"securityContext": {"capabilities": {"add": ["SYS_TIME"]}}}),
                json!({"hostNetwork": true}),
            ),
            set(
                "tunnel",
                json!({"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}),
                json!({"hostNetwork": true}),
            ),
        ]],
    );
    let driver = || {
        let mut driver = of("storage.k8s.io/v1", "CSIDriver", "files.example", json!({"spec": {}}));
        driver["metadata"].as_object_mut().unwrap().remove("namespace");
        driver
    };
    add(
        "file storage driver",
        &["no matches for kind \"CSIDriver\""],
        vec![
            rights(
                "files",
                &[
                    rule(&[""], &["secrets"], &["get"]),
                    rule(&["storage.k8s.io"], &["volumeattachments"], READ),
                ],
            ),
            vec![
                driver(),
                set(
                    "files",
                    json!({"securityContext": {"privileged": true}}),
                    json!({"hostNetwork": true, "serviceAccountName": "files"}),
                ),
            ],
        ],
    );
    add(
        "certificate driver",
        &["no matches for kind \"CSIDriver\""],
        vec![
            rights(
                "certificates",
                &[rule(&["example.com"], &["certificaterequests"], &["create", "get", "watch"])],
            ),
            vec![driver(), set("certificates", json!({}), json!({"serviceAccountName": "certificates"}))],
        ],
    );
    add(
        "monitoring suite",
        &[],
        vec![
            rights(
                "suite",
                &[
                    read_pods(),
                    rule(&[""], &["endpoints", "services", "events"], READ),
                    json!({"nonResourceURLs": ["/metrics", "/healthz"], "verbs": ["get"]}),
                ],
            ),
            vec![
                of(
                    "policy/v1",
                    "PodDisruptionBudget",
                    "suite",
                    json!({"spec": {"maxUnavailable": 1,
                    "selector": {"matchLabels": {"app.kubernetes.io/name": "suite"}}}}),
                ),
                of("v1", "Secret", "suite", json!({"data": {"key": "aw=="}})),
                service(
                    "suite",
                    json!({"internalTrafficPolicy": "Local", "ports": [{"name": "statsd", "port": 8125, "protocol": "UDP"}, {"name": "trace", "port": 8126}]}),
                ),
                set(
                    "suite",
                    json!({"envFrom": [{"secretRef": {"name": "suite"}}]}),
                    json!({"serviceAccountName": "suite"}),
                ),
            ],
        ],
    );
    let mut definition =
        of("apiextensions.k8s.io/v1", "CustomResourceDefinition", "things.example.com", json!({"spec": {}}));
    definition["metadata"].as_object_mut().unwrap().remove("namespace");
    add(
        "discovery of leaf devices",
        &["no matches for kind \"CustomResourceDefinition\""],
        vec![
            rights("discovery", &[rule(&["example.com"], &["things"], &["*"]), read_pods()]),
            vec![definition, set("discovery", json!({}), json!({"serviceAccountName": "discovery"}))],
        ],
    );
    add(
        "pod network",
        &[],
        vec![
            vec![of("v1", "Namespace", "network", json!({}))],
            rights(
                "network",
                &[
                    rule(&[""], &["pods"], &["get"]),
                    rule(&[""], &["nodes"], READ),
                    rule(&[""], &["nodes/status"], &["patch"]),
                ],
            ),
            vec![
                config("network"),
                set(
                    "network",
                    json!({"securityContext": {"privileged": false, "capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}}}),
                    json!({"hostNetwork": true, "priorityClassName": "system-node-critical", "serviceAccountName": "network"}),
                ),
            ],
        ],
    );
    add(
        "network policies",
        &[],
        vec![vec![
            config("policies"),
            set(
                "policies",
                json!({"securityContext": {"privileged": true}}),
                json!({
        "initContainers": [{"name": "mount", "image": "i", "securityContext": {"privileged": true},
            "volumeMounts": [{"name": "bpf", "mountPath": "/sys/fs/bpf", "mountPropagation": "Bidirectional"}]}],
        "volumes": [host("bpf", "/sys/fs/bpf")]}),
            ),
        ]],
    );
    let mut class = of(
        "scheduling.k8s.io/v1",
        "PriorityClass",
        "log-high",
        json!({"value": 1_000_000, "description": "logs first"}),
    );
    class["metadata"].as_object_mut().unwrap().remove("namespace");
    add(
        "log shipper with a priority",
        &[],
        vec![
            rights("tail", &[read_pods(), rule(&[""], &["services", "endpoints"], READ)]),
            vec![
                class,
                of("v1", "Secret", "tail", json!({"data": {"tail.yaml": "e30="}})),
                set(
                    "tail",
                    logs(),
                    json!({"priorityClassName": "log-high", "volumes": [host("logs", "/var/log")], "serviceAccountName": "tail"}),
                ),
            ],
        ],
    );
    all
}

/// Nineteen apply whole; of the others everything but the refused objects. All are deleted again.
#[test]
fn public_shapes_apply_and_are_deleted() {
    with_newest_kubectl(|_, kubectl| {
        let all = shapes();
        assert_eq!((all.len(), all.iter().filter(|shape| shape.refused.is_empty()).count()), (23, 19));
        for Shape { name, objects, refused } in &all {
            let text: String = objects.iter().map(|object| format!("{object}\n")).collect();
            // kubectl's check of the schema would come before the hub's refusal
            let outcome = kubectl.run_with("apply --validate=false -f -", &text);
            let made = outcome.out.lines().filter(|line| line.ends_with(" created")).count();
            assert_eq!(made, objects.len() - refused.len(), "{name}: {outcome:?}");
            assert_eq!(outcome.code, Some(if refused.is_empty() { 0 } else { 1 }), "{name}: {outcome:?}");
            contains(&outcome.err, refused);
            let has = |kind: &str| objects.iter().any(|object| object["kind"] == kind);
            assert_eq!(
                outcome.err.contains("nothing gives this Service an address"),
                has("Service"),
                "{name}: {outcome:?}"
            );
            assert_eq!(
                outcome.err.contains("each node has one runtime"),
                has("RuntimeClass"),
                "{name}: {outcome:?}"
            );
            assert_eq!(
                outcome.err.contains("nothing here has replicas"),
                has("PodDisruptionBudget"),
                "{name}: {outcome:?}"
            );
            // and again, without a change
            if refused.is_empty() {
                let again = kubectl.ok_with("apply -f -", &text);
                assert_eq!(
                    // a budget's selector is replaced whole, so kubectl says so at each apply, upstream too
                    again
                        .lines()
                        .filter(|line| {
                            line.ends_with(" unchanged") || line.starts_with("poddisruptionbudget.policy/")
                        })
                        .count(),
                    objects.len(),
                    "{name}: {again}"
                );
            }
            let known: String = objects
                .iter()
                .filter(|object| !refused.iter().any(|why| why.contains(object["kind"].as_str().unwrap())))
                .filter(|object| object["kind"] != "Pod")
                .map(|object| format!("{object}\n"))
                .collect();
            let deleted = kubectl.ok_with("delete --wait=false -f -", &known);
            assert_eq!(deleted.lines().count(), known.lines().count(), "{name}: {deleted}");
        }
    });
}

/// The manifests of the guide apply as they are, and give the rights that it says.
#[test]
fn manifests_of_the_guide_apply() {
    with_newest_kubectl(|hub, kubectl| {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guides/rights.md");
        let page = std::fs::read_to_string(page).unwrap();
        let manifests: Vec<&str> =
            page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
        assert_eq!(manifests.len(), 3);
        for manifest in manifests {
            let outcome = kubectl.run_with("apply -f -", manifest);
            assert_eq!((outcome.code, &*outcome.err), (Some(0), ""), "{manifest}{}", outcome.out);
        }
        registered(hub, kubectl, "edge-1");
        let prometheus = program(hub, kubectl, "prometheus");
        contains(&prometheus.ok("get --raw /metrics"), &["kedge_hub_store_writable"]);
        prometheus.ok("get nodes");
        // no agent answers for this node, but the right is there
        let asked = prometheus.fails("get --raw /api/v1/nodes/edge-1/proxy/metrics");
        assert!(!asked.contains("orbidden"), "{asked}");
        contains(&prometheus.fails("get --raw /api/v1/nodes/edge-1/proxy/pods"), &["orbidden"]);
        contains(&prometheus.fails("get secrets"), &["cannot list resource \"secrets\""]);
        let pipeline = kubectl.ok("auth can-i patch daemonsets --as system:serviceaccount:rollout:pipeline");
        assert_eq!(pipeline, "yes\n");
        let created = kubectl.run("auth can-i create daemonsets --as system:serviceaccount:rollout:pipeline");
        assert_eq!(created.out, "no\n");
    });
}

/// A reboot daemon takes its lock and drains, a log shipper follows the pods of its node, a problem detector
/// reports a condition. Each has the rights of its service account alone.
#[test]
fn programs_do_their_work_with_their_rights() {
    with_newest_kubectl(|hub, kubectl| {
        registered(hub, kubectl, "edge-1");
        let all = shapes();
        for name in ["reboot daemon", "log shipper with a Service", "node problem detector"] {
            let shape = all.iter().find(|shape| shape.name == name).unwrap();
            let text: String = shape.objects.iter().map(|object| format!("{object}\n")).collect();
            kubectl.ok_with("apply -f -", &text);
        }
        kubectl.ok_with(
            "create -f -",
            &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "clerk"},
            "spec": {"nodeName": "edge-1", "containers": [{"name": "c", "image": "i"}]}})
            .to_string(),
        );

        let rebooter = program(hub, kubectl, "rebooter");
        let set = rebooter.ok("get daemonset rebooter -o json");
        let mut set: Value = serde_json::from_str(&set).unwrap();
        set["metadata"]["annotations"]["example.com/reboot-lock"] = r#"{"nodeID":"edge-1"}"#.into();
        rebooter.ok_with("replace -f -", &set.to_string());
        // the lock of another node loses
        set["metadata"]["annotations"]["example.com/reboot-lock"] = r#"{"nodeID":"edge-2"}"#.into();
        contains(&rebooter.fails_with("replace -f -", &set.to_string()), &["the object has been modified"]);
        rebooter.ok("cordon edge-1");
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "clerk", "namespace": "default"}});
        rebooter.ok_with(
            "create --raw /api/v1/namespaces/default/pods/clerk/eviction -f -",
            &eviction.to_string(),
        );
        rebooter.ok("uncordon edge-1");
        contains(&rebooter.fails("get daemonsets"), &["cannot list resource \"daemonsets\""]);
        contains(
            &rebooter.fails("annotate daemonset shipper a=b"),
            &["cannot patch resource \"daemonsets\""],
        );
        contains(&rebooter.fails("delete node edge-1"), &["cannot delete resource \"nodes\""]);

        let shipper = program(hub, kubectl, "shipper");
        let watch = shipper.start("get pods -A --field-selector spec.nodeName=edge-1 -o name --watch");
        kubectl.ok_with(
            "create -f -",
            &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "later"},
            "spec": {"nodeName": "edge-1", "containers": [{"name": "c", "image": "i"}]}})
            .to_string(),
        );
        while watch.line() != "pod/later" {}
        shipper.ok("get namespaces");
        contains(&shipper.fails("get configmaps"), &["cannot list resource \"configmaps\""]);

        let detector = program(hub, kubectl, "detector");
        let condition = json!({"status": {"conditions": [{"type": "KernelDeadlock", "status": "True", "reason": "DockerHung", "message": "m"}]}});
        // it patches without a look before, which kubectl does not
        let patch = |value: &Value| {
            let as_detector = ("impersonate-user", "system:serviceaccount:default:detector");
            let media = ("content-type", "application/strategic-merge-patch+json");
            let path = "/api/v1/nodes/edge-1/status";
            hub.admin().send("PATCH", path, &[media, as_detector], value.to_string().as_bytes())
        };
        patch(&condition).expect(200);
        let node = hub.stored("/api/v1/nodes/edge-1");
        let conditions = node["status"]["conditions"].as_array().unwrap();
        assert!(
            conditions.iter().any(|one| one["type"] == "KernelDeadlock" && one["status"] == "True"),
            "{node}"
        );
        let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "edge-1.hung", "namespace": "default"}, "type": "Warning",
            "reason": "TaskHung", "message": "m", "involvedObject": {"kind": "Node", "name": "edge-1"}});
        detector.ok_with("create -f -", &event.to_string());
        // kubectl says so and ends with 0
        contains(&detector.run("cordon edge-1").err, &["cannot patch resource \"nodes\""]);
        let commanded = json!({"metadata": {"annotations": {"kedge.dev/forgive": "x"}}});
        let refused = patch(&commanded).expect(403);
        contains(&refused.to_string(), &["cannot assign resource"]);
    });
}
