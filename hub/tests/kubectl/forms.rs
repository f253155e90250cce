//! The output formats, generators and comparisons of kubectl: watches, subresources, pruning, kustomize,
//! taints, certificates, and questions about the server.
//!
//! Every kind in the hub's table is created, listed, described, explained and restored with every kubectl, so
//! a new kind that kubectl cannot handle fails here.

use crate::programs::{
    Kubectl, MAPS as MAPS_PATH, contains, json, registered, table, until, with_every_kubectl,
};
use crate::server::Hub;
use kedge_hub_core::kinds::{KINDS, Kind};
use serde_json::{Value, json};

const MAPS: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: p1, labels: {site: quarry}}\ndata: {a: \"1\"}\n---\n\
                    apiVersion: v1\nkind: ConfigMap\nmetadata: {name: p2, labels: {site: quarry}}\ndata: {a: \"2\"}\n";

/// A request for a client certificate of this name and organization, as a value of `spec.request`, and its
/// key (PEM).
fn certificate_request(name: &str, organization: &str) -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut parameters = rcgen::CertificateParams::default();
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
    parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
    (base64(&parameters.serialize_request(&key).unwrap().pem().unwrap()), key.serialize_pem())
}

fn base64(text: &str) -> String {
    kedge_hub_core::kinds::schema::base64_encode(text.as_bytes())
}

fn signing_request(name: &str, signer: &str, request: &str) -> Value {
    let usages = ["client auth", "digital signature"];
    json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"request": request, "signerName": signer, "usages": usages}})
}

#[test]
fn objects_print_in_every_output_format() {
    with_every_kubectl(|_, kubectl| {
        kubectl.file("maps.yaml", MAPS);
        kubectl.ok("apply -f maps.yaml");
        kubectl.ok("create secret generic s --from-literal=a=b");
        kubectl.file("names.jsonpath", "{.items[*].metadata.name}");
        kubectl.file("names.template", "{{range .items}}<{{.metadata.name}}>{{end}}");
        kubectl.file("columns", "NAME DATA\nmetadata.name data.a\n");
        let cases = [
            ("-o name", "configmap/p1\nconfigmap/p2\n"),
            ("-o jsonpath={.items[*].data.a}", "1 2"),
            ("-o jsonpath='{range .items[*]}{.metadata.name}={.data.a};{end}'", "p1=1;p2=2;"),
            ("-o jsonpath={.items[?(@.data.a==\"2\")].metadata.name}", "p2"),
            ("-o jsonpath-file=names.jsonpath", "p1 p2"),
            ("-o jsonpath-as-json={.items[0].data.a}", "[\n    \"1\"\n]\n"),
            ("-o go-template='{{len .items}}'", "2"),
            ("-o go-template-file=names.template", "<p1><p2>"),
            ("--no-headers -o custom-columns=N:.metadata.name --sort-by=.data.a", "p1\np2\n"),
            ("--sort-by={.metadata.name} -o name", "configmap/p1\nconfigmap/p2\n"),
            ("--chunk-size=1 -o name", "configmap/p1\nconfigmap/p2\n"),
            ("--field-selector metadata.name=p2 -o name", "configmap/p2\n"),
        ];
        for (form, expect) in cases {
            if kubectl.version == "1.20" && form.contains("as-json") {
                continue;
            }
            assert_eq!(
                kubectl.ok(&format!("get cm -l site=quarry {form}")),
                expect,
                "{} {form}",
                kubectl.version
            );
        }
        let rows = |line: &str| table(&kubectl.ok(line));
        let columns = rows("get cm -l site=quarry -o custom-columns=N:.metadata.name,A:.data.a");
        assert_eq!(columns, [["N", "A"], ["p1", "1"], ["p2", "2"]]);
        let columns = rows("get cm -l site=quarry -o custom-columns-file=columns");
        assert_eq!(columns, [["NAME", "DATA"], ["p1", "1"], ["p2", "2"]]);
        let list = json(&kubectl.ok("get -f maps.yaml -o json"));
        assert_eq!((&list["kind"], list["items"].as_array().map(Vec::len)), (&json!("List"), Some(2)));
        contains(
            &kubectl.ok("get -f maps.yaml -o yaml"),
            &["- apiVersion: v1\n", "kind: List\n", "    a: \"2\"\n"],
        );
        assert_eq!(rows("get cm -o wide")[0], ["NAME", "DATA", "AGE"]);
        let labels = rows("get cm p1 --show-labels");
        assert_eq!((labels[0][3].as_str(), labels[1][3].as_str()), ("LABELS", "site=quarry"));
        let columns = rows("get cm p1 -L site,none");
        assert_eq!(columns[0][3..], ["SITE", "NONE"]);
        assert_eq!(columns[1][3], "quarry");
        contains(&kubectl.ok("get cm -l site=quarry --show-kind --no-headers"), &["configmap/p1   1"]);
        contains(
            &kubectl.ok("get cm -A -l site=quarry"),
            &["NAMESPACE   NAME   DATA   AGE", "default     p1     1"],
        );
        assert_eq!(
            kubectl.ok("get cm,secret -o name"),
            "configmap/kube-root-ca.crt\nconfigmap/p1\nconfigmap/p2\nsecret/s\n"
        );
        contains(&kubectl.ok("get cm/p1 secret/s"), &["configmap/p1   1", "secret/s", "Opaque"]);
        assert_eq!(kubectl.run("get cm nothing --ignore-not-found").err, "");
        contains(&kubectl.ok("get all"), &["service/kubernetes", "ClusterIP"]);
        contains(&kubectl.fails("get cm nothing p1"), &["configmaps \"nothing\" not found"]);
        if kubectl.version != "1.20" {
            contains(&kubectl.ok("get cm p1 -o yaml --show-managed-fields"), &["managedFields:", "f:site"]);
        }
    });
}

/// Objects that are created, at least a second apart, until a watch prints one: more than any machine needs
/// to start the watch.
const COMMANDS: usize = 100;

#[test]
fn watches_print_changes_in_every_output_format() {
    with_every_kubectl(|hub, kubectl| {
        hub.admin().post(MAPS_PATH, &json!({"metadata": {"name": "before"}})).expect(201);
        let only = kubectl.start("get cm --watch-only --no-headers -o custom-columns=N:.metadata.name");
        let events = kubectl.start(
            "get cm --watch --output-watch-events -o jsonpath='{.type} {.object.metadata.name}{\"\\n\"}'",
        );
        assert_eq!(
            (events.line(), events.line()),
            ("ADDED before".to_owned(), "ADDED kube-root-ca.crt".to_owned())
        );
        // a watch of changes only prints nothing when it starts, so objects are created until it prints one
        let mut first = String::new();
        for number in 0..COMMANDS {
            hub.admin()
                .post(MAPS_PATH, &json!({"metadata": {"name": format!("later-{number}")}}))
                .expect(201);
            if let Some(line) = only.line_within(1) {
                first = line;
                break;
            }
        }
        assert!(first.starts_with("later-"), "no change was printed: {first:?}");
        assert_eq!(events.line(), "ADDED later-0");
        let labels = json!({"metadata": {"labels": {"x": "y"}}});
        hub.admin().patch("merge", &format!("{MAPS_PATH}/later-0"), &labels).expect(200);
        hub.admin().delete(&format!("{MAPS_PATH}/later-0")).expect(200);
        let told: Vec<String> = std::iter::repeat_with(|| events.line())
            .filter(|line| line.ends_with(" later-0"))
            .take(2)
            .collect();
        assert_eq!(told, ["MODIFIED later-0", "DELETED later-0"]);
        let whole = kubectl.start("get cm before --watch -o json");
        assert_eq!(whole.line(), "{");
    });
}

const RIGHTS: &str = "rbac.authorization.k8s.io/v1";

/// One object of every kind.
fn one_of_each(hub: &Hub, kubectl: &Kubectl) -> Vec<Value> {
    registered(hub, kubectl, "edge-1");
    let template =
        json!({"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let role = |kind: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "one"});
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "one"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"a": "1"}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "one"}, "stringData": {"a": "1"}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "one"}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "one"}, "spec": {"ports": [{"port": 80}], "selector": {"app": "x"}}}),
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "one", "namespace": "default"}, "reason": "R", "message": "m",
            "type": "Normal", "involvedObject": {"kind": "ConfigMap", "name": "one", "namespace": "default"},
            "firstTimestamp": "2026-11-21T01:00:00Z", "lastTimestamp": "2026-11-21T01:00:00Z", "count": 1}),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "one"}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": template["spec"]}),
        json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "one"},
            "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template}}),
        json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": "one"}, "revision": 1, "data": {"a": 1}}),
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "one"}, "spec": {"holderIdentity": "me"}}),
        signing_request("one", "example.com/people", &certificate_request("jane", "people").0),
        json!({"apiVersion": RIGHTS, "kind": "ClusterRoleBinding", "metadata": {"name": "one"}, "roleRef": role("ClusterRole")}),
        json!({"apiVersion": RIGHTS, "kind": "ClusterRole", "metadata": {"name": "one"}, "rules": rules}),
        json!({"apiVersion": RIGHTS, "kind": "RoleBinding", "metadata": {"name": "one"}, "roleRef": role("Role")}),
        json!({"apiVersion": RIGHTS, "kind": "Role", "metadata": {"name": "one"}, "rules": rules}),
        json!({"apiVersion": "fleet.kedge.dev/v1", "kind": "ConfigRollout", "metadata": {"name": "one"},
            "spec": {"selector": {"matchLabels": {"fleet.kedge.dev/group": "none"}}, "source": {"name": "none"}}}),
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "one"}, "value": 7}),
        json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "one"}, "spec": {"minAvailable": 1}}),
        json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "one"}, "handler": "x"}),
    ];
    let files: String = objects.iter().map(|object| format!("{object}\n")).collect();
    assert_eq!(kubectl.ok_with("create -f -", &files).lines().count(), objects.len());
    // its controller writes the status once
    kubectl.until("get cro one -o jsonpath={.status.phase}", |outcome| !outcome.out.is_empty());
    kubectl.until("get pdb one -o jsonpath={.status.conditions}", |outcome| !outcome.out.is_empty());
    objects
}

#[test]
fn every_kind_is_listed_described_explained_and_restored() {
    with_every_kubectl(|hub, kubectl| {
        let objects = one_of_each(hub, kubectl);
        // `events` leads to the core group's
        let kinds: Vec<&Kind> =
            KINDS.iter().copied().filter(|kind| kind.served && kind.allows("create")).collect();
        assert_eq!(objects.len(), kinds.len(), "the list above has one object of every kind");
        let all: Vec<String> = kinds.iter().map(|kind| format!("{}/one", kind.resource_name())).collect();
        let all = all.join(" ");
        let tables = kubectl.ok(&format!("get {all} -o wide"));
        let titles: Vec<Vec<String>> =
            table(&tables).into_iter().filter(|row| row.iter().any(|cell| cell == "NAME")).collect();
        let expect: Vec<Vec<String>> = kinds
            .iter()
            .map(|kind| kind.columns.iter().map(|column| column.name.to_uppercase()).collect())
            .collect();
        assert_eq!(titles, expect, "{tables}");
        // it asks for policy/v1beta1, which upstream's servers have no more either
        let old = kubectl.version == "1.20";
        let told = if old { all.replace("poddisruptionbudgets.policy/one", "") } else { all.clone() };
        let described =
            kubectl.ok(&format!("describe {}", told.split_whitespace().collect::<Vec<_>>().join(" ")));
        assert_eq!(
            described.lines().filter(|line| line.starts_with("Name: ")).count(),
            kinds.len() - usize::from(old),
            "{described}"
        );
        let text = kubectl.ok(&format!("get {all} -o yaml"));
        let replaced = kubectl.ok_with("replace -f -", &text);
        assert_eq!(replaced.matches("/one replaced").count(), kinds.len(), "{replaced}");
        for kind in &kinds {
            contains(&kubectl.ok(&format!("explain {}", kind.plural)), &[kind.kind, "metadata"]);
        }
        let short: Vec<String> =
            kinds.iter().flat_map(|kind| kind.short_names).map(|short| format!("{short}/one")).collect();
        assert_eq!(kubectl.ok(&format!("get {} -o name", short.join(" "))).lines().count(), short.len());
        let files: String = objects.iter().map(|object| format!("{object}\n")).collect();
        let applied = kubectl.ok_with("apply -f -", &files);
        assert_eq!(applied.lines().count(), kinds.len(), "{applied}");
        kubectl.ok_with("apply --server-side --force-conflicts -f -", &files);
        let deleted = kubectl.ok_with("delete -f -", &files);
        assert_eq!(deleted.lines().count(), kinds.len(), "{deleted}");
    });
}

#[test]
fn generators_create_the_object_they_print() {
    with_every_kubectl(|hub, kubectl| {
        kubectl.file("settings.env", "A=1\nB=two\n");
        kubectl.file("config.json", "{\"auths\": {}}");
        let generated = [
            ("namespace plant", "namespace/plant"),
            ("configmap literal --from-literal=a=1 --from-literal=b=2", "configmap/literal"),
            ("configmap env --from-env-file=settings.env", "configmap/env"),
            ("configmap file --from-file=renamed=settings.env", "configmap/file"),
            ("secret generic plain --from-literal=a=1", "secret/plain"),
            ("secret generic typed --type=example.com/t --from-file=settings.env", "secret/typed"),
            (
                "secret docker-registry pull --docker-server=r --docker-username=u --docker-password=p",
                "secret/pull",
            ),
            ("serviceaccount robot", "serviceaccount/robot"),
        ];
        for (line, made) in generated {
            assert_eq!(kubectl.ok(&format!("create {line}")), format!("{made} created\n"));
            // the printed object equals the created one
            let printed = kubectl.ok(&format!("create {line} --dry-run=client -o yaml"));
            assert_eq!(kubectl.ok_with("apply -f -", &printed), format!("{made} configured\n"));
        }
        let pull = hub.stored("/api/v1/namespaces/default/secrets/pull");
        assert_eq!(pull["type"], "kubernetes.io/dockerconfigjson");
        assert_eq!(hub.map("env")["data"]["B"], "two");
        assert_eq!(kubectl.ok("run once --image=i --restart=Never"), "pod/once created\n");
        for (made, expect) in [
            ("deployment x --image=y", "deployments.apps is not served: use a DaemonSet"),
            ("job x --image=y", "jobs.batch is not served: "),
            ("quota x --hard=pods=1", "resourcequotas is not served: "),
        ] {
            contains(&kubectl.fails(&format!("create {made}")), &[expect]);
        }
        assert_eq!(kubectl.ok("delete service web --ignore-not-found"), "");
        if kubectl.version != "1.20" {
            // header, claims and signature
            assert_eq!(kubectl.ok("create token robot").split('.').count(), 3);
            contains(&kubectl.fails("create token nobody"), &["serviceaccounts \"nobody\" not found"]);
        }
    });
}

#[test]
fn status_subresource_is_read_patched_replaced_and_edited() {
    with_every_kubectl(|hub, kubectl| {
        if kubectl.version == "1.20" {
            return;
        }
        registered(hub, kubectl, "edge-1");
        let both = r#"{"status":{"phase":"Running"},"spec":{"unschedulable":true}}"#;
        let phase = || {
            let node = hub.stored("/api/v1/nodes/edge-1");
            assert_eq!(node["spec"]["unschedulable"], Value::Null, "the status subresource changed the spec");
            node["status"]["phase"].clone()
        };
        kubectl.ok(&format!("patch node edge-1 --subresource=status --type=merge -p '{both}'"));
        assert_eq!(phase(), "Running");
        kubectl.ok(r#"patch node edge-1 --subresource=status -p '{"status":{"phase":"Pending"}}'"#);
        let operation = r#"[{"op":"replace","path":"/status/phase","value":"Terminated"}]"#;
        kubectl.ok(&format!("patch node edge-1 --subresource=status --type=json -p '{operation}'"));
        assert_eq!(phase(), "Terminated");
        let object = kubectl.ok("get node edge-1 --subresource=status -o yaml");
        kubectl.ok_with("replace --subresource=status -f -", &object.replace("Terminated", "Running"));
        assert_eq!(phase(), "Running");
        let outcome =
            kubectl.with_editor("sed -i s/Running/Pending/", "edit node edge-1 --subresource=status");
        assert_eq!(
            (outcome.code, outcome.out.as_str()),
            (Some(0), "node/edge-1 edited\n"),
            "{}",
            outcome.err
        );
        assert_eq!(phase(), "Pending");
        if kubectl.version == "1.36" {
            let applied = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "edge-1"}, "status": {"phase": "Running"}}"#;
            kubectl.ok_with("apply --server-side --force-conflicts --subresource=status -f -", applied);
            assert_eq!(phase(), "Running");
        }
    });
}

#[test]
fn prune_deletes_removed_objects_and_diff_shows_changes() {
    with_every_kubectl(|hub, kubectl| {
        kubectl.file("maps.yaml", MAPS);
        kubectl.ok("apply -f maps.yaml");
        kubectl.file("maps.yaml", MAPS.split("---").next().unwrap());
        let list = if kubectl.version == "1.20" { "--prune-whitelist" } else { "--prune-allowlist" };
        let pruned =
            kubectl.ok(&format!("apply --prune -l site=quarry {list}=core/v1/ConfigMap -f maps.yaml"));
        assert_eq!(pruned, "configmap/p1 unchanged\nconfigmap/p2 pruned\n");
        contains(&kubectl.ok("apply view-last-applied cm/p1"), &["a: \"1\""]);

        kubectl.file("maps.yaml", MAPS.replace("a: \"1\"", "a: one"));
        let differs = kubectl.run("diff -f maps.yaml");
        assert_eq!(differs.code, Some(1), "{}", differs.err);
        contains(&differs.out, &["-  a: \"1\"", "+  a: one", "+  name: p2"]);
        assert_eq!(hub.admin().get(&format!("{MAPS_PATH}/p2")).code, 404, "a diff creates nothing");

        let generator = "configMapGenerator:\n- name: g\n  literals: [a=1]\ncommonAnnotations: {by: kustomize}\nresources: [maps.yaml]\n";
        kubectl.file("kustomization.yaml", generator);
        contains(&kubectl.ok("apply -k ."), &["configmap/g-", " created", "configmap/p1 configured"]);
        assert_eq!(kubectl.ok("diff -k ."), "");
        assert_eq!(
            kubectl.ok("get -k . -o jsonpath={.items[*].metadata.annotations.by}").split(' ').count(),
            3
        );
        contains(&kubectl.ok("delete -k ."), &["configmap \"g-"]);
    });
}

#[test]
fn permissions_resources_and_fields_are_listed_in_full() {
    with_every_kubectl(|hub, kubectl| {
        let node = kubectl.as_node(hub, "edge-1");
        let all = table(&kubectl.ok("auth can-i --list"));
        assert_eq!(all[0], ["Resources", "Non-Resource URLs", "Resource Names", "Verbs"]);
        assert_eq!(all[1], ["*.*", "[]", "[]", "[*]"]);
        assert_eq!(all[2], ["[*]", "[]", "[*]"]);
        let own = node.run("auth can-i --list");
        contains(&own.out, &["selfsubjectreviews.authentication.k8s.io", "/readyz"]);
        contains(
            &own.err,
            &["the list may be incomplete", "node authorizer does not support user rule resolution"],
        );
        // a refusal has a reason for nodes, and none for callers without any rights
        let why = "no - can only list/watch pods with spec.nodeName field selector\n";
        assert_eq!(node.run("auth can-i list pods").out, why);
        assert_eq!(kubectl.run("auth can-i list pods --as bob").out, "no\n");
        let versions = kubectl.ok("api-versions");
        contains(&versions, &["apps/v1\n", "certificates.k8s.io/v1\n", "policy/v1\n", "node.k8s.io/v1\n"]);
        let wide = kubectl.ok("api-resources -o wide --namespaced=true");
        contains(&wide, &["daemonsets", "controllerrevisions"]);
        assert!(!wide.contains("nodes"), "{wide}");
        assert_eq!(
            kubectl.ok("api-resources --api-group=coordination.k8s.io -o name"),
            "leases.coordination.k8s.io\n"
        );
        let deep = kubectl.ok("explain ds.spec.updateStrategy --recursive");
        contains(&deep, &["rollingUpdate", "maxUnavailable", "type"]);
        contains(&kubectl.ok("explain pod.spec.containers.resources.limits"), &["limits"]);
        contains(&kubectl.fails("explain pod.spec.nothing"), &["field \"nothing\" does not exist"]);
        // kinds that are posted and never listed
        contains(&kubectl.ok("explain bindings"), &["Binding", "target"]);
        contains(&kubectl.ok("explain selfsubjectaccessreviews.spec"), &["resourceAttributes"]);
        if kubectl.version != "1.20" {
            contains(&deep, &["maxUnavailable\t<IntOrString>"]);
            contains(
                &kubectl.ok("explain pod.spec.containers.resources"),
                &["limits\t<map[string]Quantity>"],
            );
            contains(
                &kubectl.ok("explain pod --output=plaintext-openapiv2"),
                &["KIND:     Pod", "spec\t<Object>"],
            );
        }
        let posted = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "raw"}});
        kubectl.file("raw.json", posted.to_string());
        kubectl.ok("create --raw /api/v1/namespaces/default/configmaps -f raw.json");
        contains(
            &kubectl.ok("get --raw '/api/v1/namespaces/default/configmaps?limit=1'"),
            &["\"ConfigMapList\""],
        );
        contains(&kubectl.ok("get --raw /?pretty=1"), &["    \"/apis/apps/v1\",\n"]);
        kubectl.ok("delete --raw /api/v1/namespaces/default/configmaps/raw");
        contains(&kubectl.ok("cluster-info"), &["is running at"]);
        contains(&kubectl.ok("version"), &["+kedge"]);
    });
}

#[test]
fn taints_are_set_changed_and_removed() {
    with_every_kubectl(|hub, kubectl| {
        registered(hub, kubectl, "edge-1");
        let taints = || {
            let node = hub.stored("/api/v1/nodes/edge-1");
            let text = |taint: &Value, field: &str| taint[field].as_str().unwrap_or("").to_owned();
            let taint =
                |taint| format!("{}={}:{}", text(taint, "key"), text(taint, "value"), text(taint, "effect"));
            let mut found: Vec<String> =
                node["spec"]["taints"].as_array().into_iter().flatten().map(taint).collect();
            found.sort();
            found.retain(|taint| !taint.starts_with("node.kubernetes.io/"));
            found.join(" ")
        };
        kubectl.ok("taint node edge-1 a=1:NoSchedule a=1:NoExecute b:PreferNoSchedule");
        assert_eq!(taints(), "a=1:NoExecute a=1:NoSchedule b=:PreferNoSchedule");
        contains(&kubectl.fails("taint node edge-1 a=2:NoSchedule"), &["already has a taint"]);
        kubectl.ok("taint node edge-1 a=2:NoSchedule --overwrite");
        kubectl.ok("taint node edge-1 a:NoExecute- b-");
        assert_eq!(taints(), "a=2:NoSchedule");
        contains(&kubectl.fails("taint node edge-1 c=d:Nothing"), &["invalid taint effect: Nothing"]);
        contains(&kubectl.fails("taint node edge-1 c-"), &["taint \"c\" not found"]);
    });
}

const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
const NODE_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const CERTIFICATE: &str = "-o jsonpath={.status.certificate}";

fn request_at(name: &str) -> String {
    format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}")
}

/// The administrator's kubeconfig with another certificate and key.
fn kubeconfig(hub: &Hub, certificate: &str, key: &str) -> String {
    let admin = std::fs::read_to_string(hub.data_dir.join("admin.kubeconfig")).unwrap();
    let line = |line: &str| {
        let (name, _) = line.split_once(':').unwrap_or((line, ""));
        match name.trim() {
            "client-certificate-data" => format!("{name}: {certificate}"),
            "client-key-data" => format!("{name}: {}", base64(key)),
            _ => line.to_owned(),
        }
    };
    admin.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn certificates_are_requested_approved_denied_and_used() {
    with_every_kubectl(|hub, kubectl| {
        let (request, key) = certificate_request("jane", "people");
        kubectl.ok_with("create -f -", &signing_request("jane", CLIENT_SIGNER, &request).to_string());
        contains(&kubectl.ok("get csr jane"), &["Pending", CLIENT_SIGNER, "admin"]);
        let approved = kubectl.ok("certificate approve jane");
        assert_eq!(approved, "certificatesigningrequest.certificates.k8s.io/jane approved\n");
        until(|| hub.stored(&request_at("jane"))["status"]["certificate"].is_string());
        contains(&kubectl.ok("get csr jane"), &["Approved,Issued"]);
        let jane = kubectl.with_kubeconfig(
            "jane",
            &kubeconfig(hub, &kubectl.ok(&format!("get csr jane {CERTIFICATE}")), &key),
        );
        contains(&jane.fails("get nodes"), &["(Forbidden)", "User \"jane\" cannot list resource \"nodes\""]);
        contains(&jane.ok("api-versions"), &["apps/v1"]);

        // a node requests its next certificate itself, and can read the result
        let node = kubectl.as_node(hub, "edge-1");
        let (request, key) = certificate_request("system:node:edge-1", "system:nodes");
        node.ok_with("create -f -", &signing_request("edge-1", NODE_SIGNER, &request).to_string());
        contains(&node.fails("certificate approve jane"), &["(Forbidden)"]);
        contains(
            &node.fails("get csr jane"),
            &["(Forbidden)", "no relationship found between node 'edge-1'"],
        );
        contains(&node.fails("get csr"), &["(Forbidden)"]);
        contains(&node.fails("delete csr edge-1"), &["(Forbidden)"]);
        // approved by the hub: its certificate is valid
        until(|| hub.stored(&request_at("edge-1"))["status"]["certificate"].is_string());
        let issued = node.ok(&format!("get csr edge-1 {CERTIFICATE}"));
        let renewed = kubectl.with_kubeconfig("renewed", &kubeconfig(hub, &issued, &key));
        renewed.ok_with(
            "create -f -",
            r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "edge-1"}}"#,
        );
        contains(&renewed.fails("get node edge-2"), &["only its own Node object"]);
        let (other, _) = certificate_request("system:node:edge-2", "system:nodes");
        contains(
            &node.fails_with("create -f -", &signing_request("edge-2", NODE_SIGNER, &other).to_string()),
            &["(Forbidden)", "can only create a node CSR with CN=system:node:edge-1"],
        );

        // denied requests and invalid subjects are not signed
        kubectl.ok_with("create -f -", &signing_request("denied", NODE_SIGNER, &other).to_string());
        contains(&kubectl.ok("certificate deny denied"), &["denied\n"]);
        contains(&kubectl.ok("get csr denied"), &["Denied"]);
        contains(&kubectl.fails("certificate approve denied"), &["denied"]);
        let (masters, _) = certificate_request("jane", "system:masters");
        for line in ["create -f -", "apply --server-side -f -"] {
            contains(
                &kubectl.fails_with(line, &signing_request("masters", CLIENT_SIGNER, &masters).to_string()),
                &["signer with system:masters group is not allowed"],
            );
        }
        kubectl.ok_with(
            "create -f -",
            &signing_request("odd", NODE_SIGNER, &certificate_request("jane", "people").0).to_string(),
        );
        kubectl.ok("certificate approve odd");
        until(|| {
            hub.stored(&request_at("odd"))["status"]["conditions"].as_array().is_some_and(|all| all.len() > 1)
        });
        contains(&kubectl.ok("get csr odd"), &["Approved,Failed"]);
        contains(
            &kubectl.ok("get csr odd -o yaml"),
            &["SignerValidationFailure", "subject organization is not system:nodes"],
        );
    });
}
