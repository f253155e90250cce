//! Admission of what nodes write, after upstream's NodeRestriction: no desired state, not even its own.

use serde_json::Value;

use super::attributes::{Attributes, ClusterView};
use crate::identity::certificate_request::Request;
use crate::kinds::schema;
use kedge_api::{
    CLUSTER_EVENT_NAMESPACE, CONFIG_SOURCE_ANNOTATION, NODE_LEASE_NAMESPACE, NODE_SIGNER, NODE_USER_PREFIX,
    SERVING_SIGNER,
};

/// `spec` fields a kubelet may set when it registers itself; none may be changed later.
const SPEC_AT_CREATION: [&str; 2] = ["taints", "providerID"];

/// Labels in Kubernetes' own name space that a node may set on itself (upstream's kubelet labels).
const OWN_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
/// Prefixes of further such labels.
const OWN_LABEL_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// The prefix of labels that nodes may not set.
const RESTRICTED_LABEL_DOMAIN: &str = "node-restriction.kubernetes.io";

/// Whether `node` may turn `old` (nothing, at creation) into `new`.
pub(super) fn admit(
    node: &str,
    request: &Attributes,
    old: Option<&Value>,
    new: &Value,
    view: &dyn ClusterView,
) -> Result<(), String> {
    match (request.group, request.resource) {
        ("", "nodes") => admit_node(node, old, new),
        ("", "pods") => admit_pod(node, request, old, new),
        ("coordination.k8s.io", "leases") => admit_lease(node, new),
        ("certificates.k8s.io", "certificatesigningrequests") => admit_signing_request(node, new),
        ("", "events") => {
            old.map_or(Ok(()), |old| admit_event(node, old, view)).and_then(|()| admit_event(node, new, view))
        }
        _ => Ok(()),
    }
}

fn admit_node(node: &str, old: Option<&Value>, new: &Value) -> Result<(), String> {
    let refuse = |what: &str| Err(format!("node {node:?} is not allowed to {what}"));
    let name = new["metadata"]["name"].as_str().unwrap_or_default();
    if name != node {
        return refuse(&format!("modify node {name:?}"));
    }
    let nothing = Value::Null;
    let before = old.unwrap_or(&nothing);
    let changed = |path: [&str; 2]| {
        let (old, new) = (&before[path[0]][path[1]], &new[path[0]][path[1]]);
        !(is_absent(old) && is_absent(new)) && old != new
    };
    // an empty source is an invalid source: only null means absent
    if before["spec"]["configSource"] != new["spec"]["configSource"] {
        return refuse(match old {
            None => "create its Node with a configSource",
            Some(_) => "update configSource",
        });
    }
    for field in field_names(&before["spec"], &new["spec"]) {
        let allowed = old.is_none() && SPEC_AT_CREATION.contains(&field);
        if !allowed && changed(["spec", field]) {
            return refuse(
                if field == "taints" { "modify taints".to_owned() } else { format!("set spec.{field}") }
                    .as_str(),
            );
        }
    }
    for field in ["ownerReferences", "finalizers"] {
        if changed(["metadata", field]) {
            return refuse(&format!("modify {field}"));
        }
    }
    let annotation = |object: &Value| object["metadata"]["annotations"][CONFIG_SOURCE_ANNOTATION].clone();
    if annotation(before) != annotation(new) {
        return refuse(&format!("modify annotation {CONFIG_SOURCE_ANNOTATION:?}"));
    }
    let labels = forbidden_labels(&before["metadata"]["labels"], &new["metadata"]["labels"]);
    match (labels.as_slice(), old) {
        ([], _) => Ok(()),
        (labels, None) => refuse(&format!("set the following labels: {}", labels.join(", "))),
        (labels, Some(_)) => refuse(&format!("modify labels: {}", labels.join(", "))),
    }
}

/// Missing, null and empty are equal.
fn is_absent(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Number(_) => false,
    }
}

/// Every field name that either object has.
fn field_names<'a>(old: &'a Value, new: &'a Value) -> Vec<&'a str> {
    let mut names: Vec<&str> = [old, new]
        .into_iter()
        .filter_map(Value::as_object)
        .flat_map(|object| object.keys().map(String::as_str))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The labels that differ and that a node may not touch, sorted.
fn forbidden_labels<'a>(old: &'a Value, new: &'a Value) -> Vec<&'a str> {
    let label = |labels: &Value, key: &str| labels.get(key).cloned();
    field_names(old, new)
        .into_iter()
        .filter(|key| label(old, key) != label(new, key) && !may_set_label(key))
        .collect()
}

fn may_set_label(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let within = |parent: &str| {
        domain == parent || domain.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'))
    };
    if within(RESTRICTED_LABEL_DOMAIN) {
        return false;
    }
    let reserved = within("kubernetes.io") || within("k8s.io");
    !reserved || OWN_LABELS.contains(&key) || OWN_LABEL_DOMAINS.into_iter().any(within)
}

/// The annotation of a mirror pod, which represents one of the node's own manifests.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// NodeRestriction's rules of pods: a node may create mirror pods of its own manifests, report its pods' status, and delete
/// its pods. None of that may give it access to further objects.
fn admit_pod(node: &str, request: &Attributes, old: Option<&Value>, new: &Value) -> Result<(), String> {
    let pod = old.unwrap_or(new);
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    if new["spec"]["nodeName"].as_str() != Some(node) || pod["spec"]["nodeName"].as_str() != Some(node) {
        return Err(format!("node {node:?} can only act on pods with spec.nodeName set to itself"));
    }
    if request.verb == "create" && request.subresource.is_empty() {
        return admit_mirror_pod(node, name, new);
    }
    let meta = |object: &Value, field: &str| object["metadata"].get(field).cloned();
    let changed = |field: &str| old.is_some_and(|old| meta(old, field) != meta(new, field));
    if request.subresource == "status" && ["labels", "ownerReferences", "finalizers"].into_iter().any(changed)
    {
        return Err(format!("node {node:?} cannot update labels, owners or finalizers through pod status"));
    }
    Ok(())
}

fn admit_mirror_pod(node: &str, name: &str, pod: &Value) -> Result<(), String> {
    let refuse = |why: &str| Err(format!("pod {name:?} {why}, node {node:?} can only create mirror pods"));
    if pod["metadata"]["annotations"].get(MIRROR_ANNOTATION).is_none() {
        return Err(format!(
            "pod does not have {MIRROR_ANNOTATION:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    let owners = pod["metadata"]["ownerReferences"].as_array().map_or(&[][..], Vec::as_slice);
    match owners {
        [owner] if owner["kind"] == "Node" && owner["name"] == node && owner["controller"] == true => {}
        _ => return refuse("must have one owner, its own Node, as the controller"),
    }
    let account = pod["spec"]["serviceAccountName"].as_str().unwrap_or_default();
    // `default` is the hub's default
    if !matches!(account, "" | "default") {
        return refuse("can not reference a service account");
    }
    let refers = |spec: &Value| {
        [
            "secretName",
            "configMap",
            "configMapRef",
            "configMapKeyRef",
            "secretRef",
            "secretKeyRef",
            "persistentVolumeClaim",
            "imagePullSecrets",
        ]
        .iter()
        .any(|field| has_field(spec, field))
    };
    if refers(&pod["spec"]) {
        return refuse("can not reference secrets, configmaps or persistentvolumeclaims");
    }
    Ok(())
}

fn has_field(value: &Value, field: &str) -> bool {
    match value {
        Value::Object(fields) => fields.iter().any(|(name, value)| name == field || has_field(value, field)),
        Value::Array(items) => items.iter().any(|item| has_field(item, field)),
        _ => false,
    }
}

fn admit_lease(node: &str, new: &Value) -> Result<(), String> {
    let metadata = &new["metadata"];
    if metadata["namespace"].as_str() != Some(NODE_LEASE_NAMESPACE) {
        return Err(format!("can only access leases in the {NODE_LEASE_NAMESPACE:?} system namespace"));
    }
    if metadata["name"].as_str() != Some(node) {
        return Err("can only access node lease with the same name as the requesting node".to_owned());
    }
    Ok(())
}

/// In requests to the signers of node certificates a node must name itself.
fn admit_signing_request(node: &str, new: &Value) -> Result<(), String> {
    let signer = new["spec"]["signerName"].as_str().unwrap_or_default();
    if !matches!(signer, NODE_SIGNER | SERVING_SIGNER) {
        return Ok(());
    }
    let user = format!("{NODE_USER_PREFIX}{node}");
    let body = schema::base64_decode(new["spec"]["request"].as_str().unwrap_or_default()).unwrap_or_default();
    match Request::from_pem(&body) {
        Ok(asked) if asked.common_name == user => Ok(()),
        Ok(_) => Err(format!("can only create a node CSR with CN={user}")),
        Err(why) => Err(format!("unable to parse csr: {why}")),
    }
}

/// An event must be about the node itself or a pod bound to it. Its uid is ignored: kubelets send the node's name there.
fn admit_event(node: &str, event: &Value, view: &dyn ClusterView) -> Result<(), String> {
    let about = &event["involvedObject"];
    let own = about["kind"].as_str() == Some("Node") && about["name"].as_str() == Some(node);
    if own && event["metadata"]["namespace"].as_str() == Some(CLUSTER_EVENT_NAMESPACE) {
        return Ok(());
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text(&about["namespace"]), text(&about["name"]));
    let own_pod = about["kind"].as_str() == Some("Pod")
        && view
            .object("pods", &namespace, &name)
            .is_some_and(|pod| pod["spec"]["nodeName"].as_str() == Some(node));
    if own_pod {
        return Ok(());
    }
    Err(format!(
        "node {node:?} is not allowed to write events about other objects, expected involvedObject Node {node:?} in \
         namespace {CLUSTER_EVENT_NAMESPACE:?}, or a Pod bound to it"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::Objects;
    use super::*;

    #[test]
    fn node_creates_only_mirror_pods_and_reports_its_own() {
        let judge = |verb: &str, subresource: &str, old: Option<Value>, new: Value| {
            let attributes = Attributes { verb, subresource, resource: "pods", ..Attributes::default() };
            admit("a", &attributes, old.as_ref(), &new, &Objects::default())
        };
        let mirror = |change: fn(&mut Value)| {
            let mut pod = json!({"metadata": {"name": "m", "annotations": {MIRROR_ANNOTATION: "x"},
                "ownerReferences": [{"kind": "Node", "name": "a", "controller": true}]},
                "spec": {"nodeName": "a", "serviceAccountName": "default", "volumes": [{"name": "secret", "hostPath": {"path": "/"}}]}});
            change(&mut pod);
            pod
        };
        let check = |change: fn(&mut Value), allowed: bool| {
            assert_eq!(judge("create", "", None, mirror(change)).is_ok(), allowed, "{}", mirror(change));
        };
        check(|_| {}, true);
        check(|pod| pod["spec"]["nodeName"] = "b".into(), false);
        check(|pod| pod["metadata"]["annotations"] = Value::Null, false);
        check(|pod| pod["metadata"]["ownerReferences"][0]["name"] = "b".into(), false);
        check(|pod| pod["spec"]["serviceAccountName"] = "admin".into(), false);
        check(|pod| pod["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": "s"}}]), false);
        check(
            |pod| pod["spec"]["containers"] = json!([{"envFrom": [{"configMapRef": {"name": "s"}}]}]),
            false,
        );
        let old = mirror(|_| {});
        let mut reported = old.clone();
        reported["status"]["phase"] = "Running".into();
        assert_eq!(judge("patch", "status", Some(old.clone()), reported.clone()), Ok(()));
        reported["metadata"]["labels"]["a"] = "b".into();
        assert!(judge("patch", "status", Some(old.clone()), reported).is_err());
        let mut stolen = old.clone();
        stolen["spec"]["nodeName"] = "b".into();
        assert!(judge("delete", "", Some(stolen.clone()), stolen).is_err());
        assert_eq!(judge("delete", "", Some(old.clone()), old), Ok(()));
    }

    fn judge(resource: &str, group: &str, old: Option<Value>, new: Value) -> Result<(), String> {
        let attributes = Attributes { resource, group, ..Attributes::default() };
        let view = Objects::default().with("pods", "default", "mine", json!({"spec": {"nodeName": "a"}}));
        admit("a", &attributes, old.as_ref(), &new, &view)
    }

    /// The error of a change of node `a`'s own Node, empty if allowed; `old` is null for a registration.
    #[track_caller]
    fn check_node(old: Value, mut new: Value, expect: &str) {
        new["metadata"]["name"] = json!("a");
        let shown = format!("{old} -> {new}");
        let found = judge("nodes", "", Some(old).filter(|old| !old.is_null()), new);
        let expect =
            if expect.is_empty() { Ok(()) } else { Err(format!("node \"a\" is not allowed to {expect}")) };
        assert_eq!(found, expect, "{shown}");
    }

    #[test]
    fn node_registers_with_taints_but_without_config_source() {
        let none = Value::Null;
        check_node(none.clone(), json!({}), "");
        check_node(none.clone(), json!({"spec": {}}), "");
        check_node(none.clone(), json!({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}}), "");
        check_node(none.clone(), json!({"spec": {"providerID": "x"}}), "");
        check_node(none.clone(), json!({"spec": {"unschedulable": false}}), "");
        check_node(none.clone(), json!({"spec": {"unschedulable": true}}), "set spec.unschedulable");
        check_node(none.clone(), json!({"spec": {"podCIDR": "10.0.0.0/24"}}), "set spec.podCIDR");
        check_node(none.clone(), json!({"spec": {"podCIDRs": ["10.0.0.0/24"]}}), "set spec.podCIDRs");
        let source = json!({"spec": {"configSource": {"configMap": {"name": "x"}}}});
        check_node(none.clone(), source, "create its Node with a configSource");
        check_node(
            none.clone(),
            json!({"spec": {"configSource": {}}}),
            "create its Node with a configSource",
        );
        check_node(none.clone(), json!({"spec": {"configSource": null}}), "");
        let annotated = json!({"metadata": {"annotations": {"kedge.dev/config-source": "{}"}}});
        check_node(none.clone(), annotated, "modify annotation \"kedge.dev/config-source\"");
        check_node(none.clone(), json!({"metadata": {"annotations": {"example.com/x": "y"}}}), "");
        let owned = json!({"metadata": {"ownerReferences": [{"uid": "1"}]}});
        check_node(none.clone(), owned, "modify ownerReferences");
        let stuck = json!({"metadata": {"finalizers": ["example.com/never"]}});
        check_node(none, stuck, "modify finalizers");
        let other = judge("nodes", "", None, json!({"metadata": {"name": "b"}}));
        assert_eq!(other, Err("node \"a\" is not allowed to modify node \"b\"".to_owned()));
    }

    #[test]
    fn node_may_change_its_status_but_not_its_spec() {
        let old = json!({
            "metadata": {"name": "a", "annotations": {"kedge.dev/config-source": "{}"}},
            "spec": {"configSource": {"configMap": {"name": "x"}}, "taints": [{"key": "x"}], "unschedulable": true},
        });
        let changed = |path: &str, value: Value| {
            let mut new = old.clone();
            let (parent, field) = path.rsplit_once('/').unwrap();
            new.pointer_mut(parent).unwrap()[field] = value;
            new
        };
        check_node(old.clone(), old.clone(), "");
        check_node(old.clone(), changed("/status", json!({"conditions": [{"type": "Ready"}]})), "");
        check_node(old.clone(), changed("/metadata/annotations/x", json!("y")), "");
        check_node(old.clone(), changed("/spec/configSource", Value::Null), "update configSource");
        check_node(old.clone(), changed("/spec/configSource", json!({})), "update configSource");
        check_node(old.clone(), changed("/spec/taints", json!([])), "modify taints");
        check_node(old.clone(), changed("/spec/unschedulable", json!(false)), "set spec.unschedulable");
        check_node(old.clone(), changed("/spec/providerID", json!("x")), "set spec.providerID");
        check_node(old.clone(), changed("/spec", Value::Null), "update configSource");
        let annotation = "modify annotation \"kedge.dev/config-source\"";
        check_node(old.clone(), changed("/metadata/annotations", Value::Null), annotation);
        let mut other = old.clone();
        other["metadata"]["annotations"]["kedge.dev/config-source"] = json!("{\"x\":1}");
        check_node(old.clone(), other, annotation);
        let without = json!({"metadata": {"name": "a"}});
        check_node(without.clone(), json!({"spec": {"configSource": {}}}), "update configSource");
        check_node(without, json!({"spec": {"unschedulable": null}}), "");
    }

    #[test]
    fn node_requests_certificates_for_itself() {
        let asks = |signer: &str, name: &str| {
            let pem = crate::identity::certificate_request::tests::pem(name, &["system:nodes"], &[]);
            let request =
                json!({"spec": {"signerName": signer, "request": schema::base64_encode(pem.as_bytes())}});
            admit_signing_request("a", &request)
        };
        assert_eq!(asks(NODE_SIGNER, "system:node:a"), Ok(()));
        assert_eq!(asks("example.com/x", "anything"), Ok(()));
        for signer in [NODE_SIGNER, SERVING_SIGNER] {
            let refused = asks(signer, "system:node:b");
            assert_eq!(refused, Err("can only create a node CSR with CN=system:node:a".to_owned()));
        }
    }

    #[test]
    fn labels_follow_node_restriction() {
        let check = |label: &str, allowed: bool| {
            let labelled = |value: &str| json!({"metadata": {"name": "a", "labels": {label: value}}});
            let plain = json!({"metadata": {"name": "a"}});
            let (set, modify) = match allowed {
                true => (String::new(), String::new()),
                false => (format!("set the following labels: {label}"), format!("modify labels: {label}")),
            };
            check_node(Value::Null, labelled("x"), &set);
            check_node(plain.clone(), labelled("x"), &modify);
            check_node(labelled("x"), labelled("y"), &modify);
            check_node(labelled("x"), plain, &modify);
            check_node(labelled("x"), labelled("x"), "");
        };
        check("kubernetes.io/hostname", true);
        check("kubernetes.io/arch", true);
        check("topology.kubernetes.io/zone", true);
        check("node.kubernetes.io/anything", true);
        check("x.kubelet.kubernetes.io/anything", true);
        check("plant", true);
        check("example.com/plant", true);
        check("notkubernetes.io/x", true);
        check("node-role.kubernetes.io/control-plane", false);
        check("node-restriction.kubernetes.io/x", false);
        check("x.node-restriction.kubernetes.io/x", false);
        check("kubernetes.io/role", false);
        check("k8s.io/x", false);
        check("x.k8s.io/x", false);
        let several = json!({"metadata": {"labels": {"k8s.io/b": "1", "k8s.io/a": "1", "ok": "1"}}});
        check_node(Value::Null, several, "set the following labels: k8s.io/a, k8s.io/b");
    }

    #[test]
    fn lease_must_have_the_nodes_own_name() {
        let check = |namespace: &str, name: &str, expect: bool| {
            let lease = json!({"metadata": {"namespace": namespace, "name": name}});
            assert_eq!(
                judge("leases", "coordination.k8s.io", None, lease).is_ok(),
                expect,
                "{namespace}/{name}"
            );
        };
        check("kube-node-lease", "a", true);
        check("kube-node-lease", "b", false);
        check("default", "a", false);
    }

    #[test]
    fn events_must_be_about_the_node_itself() {
        let event = |namespace: &str, kind: &str, name: &str| {
            json!({
                "metadata": {"namespace": namespace, "name": "x"},
                "involvedObject": {"kind": kind, "name": name, "uid": "a"},
            })
        };
        let own = event("default", "Node", "a");
        let check = |old: Option<Value>, new: Value, expect: bool| {
            assert_eq!(judge("events", "", old, new).is_ok(), expect);
        };
        check(None, own.clone(), true);
        check(Some(own.clone()), own.clone(), true);
        check(None, event("default", "Node", "b"), false);
        check(None, event("default", "Pod", "a"), false);
        check(None, event("kube-system", "Node", "a"), false);
        check(Some(event("default", "Node", "b")), own.clone(), false);
        check(Some(own), event("default", "Node", "b"), false);
        check(None, json!({"metadata": {"namespace": "default"}}), false);
    }
}
