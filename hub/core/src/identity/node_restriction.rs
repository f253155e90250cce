//! Admission of writes by nodes, after upstream's NodeRestriction.
//!
//! Always holds: a node cannot change desired state, not even its own: no `spec`, no label or annotation that
//! controls it, no other node's objects, no finalizer and no owner that could keep another object from being
//! deleted. So the holder of a stolen device can lie about that device, and nothing more. Narrower than
//! upstream where we serve fewer kinds: a node writes events only about itself and its pods, and only those
//! annotations in which agents report.

use serde_json::Value;

use super::attributes::{Attributes, ClusterView};
use super::references::referred_resource;
use super::token::ISSUER;
use crate::identity::certificate_request::Request;
use crate::kinds::event::reporting_node;
use crate::kinds::pod::{MIRROR_ANNOTATION, is_mirror};
use crate::kinds::schema;
use kedge_api::labels::may_node_set;
use kedge_api::{
    AUTHORITIES_ANNOTATION, CLUSTER_EVENT_NAMESPACE, CONFIG_STATUS_ANNOTATION, MAINTENANCE_ANNOTATION,
    NODE_LEASE_NAMESPACE, NODE_SIGNER, NODE_USER_PREFIX, SERVER_ANNOTATION, SERVING_SIGNER, SLOT,
    SYSTEM_ANNOTATION,
};

/// `spec` fields a kubelet may set when it registers itself; none may be changed later.
const SPEC_AT_CREATION: [&str; 2] = ["taints", "providerID"];

/// Annotations in which an agent reports; a node may write no others, since an administrator's tools keep
/// their own state in them.
const OWN_ANNOTATIONS: [&str; 6] = [
    AUTHORITIES_ANNOTATION,
    CONFIG_STATUS_ANNOTATION,
    MAINTENANCE_ANNOTATION,
    SERVER_ANNOTATION,
    SLOT,
    SYSTEM_ANNOTATION,
];
/// Suffix of the domains of annotations that belong to nodes.
const OWN_ANNOTATION_DOMAIN: &str = ".node.kedge.dev";

/// Whether `node` may change `old` (`None` at creation) to `new`.
pub(super) fn admit(
    node: &str,
    request: &Attributes,
    old: Option<&Value>,
    new: &Value,
    view: &dyn ClusterView,
) -> Result<(), String> {
    admit_owners(node, old, new, view)?;
    match (request.group, request.resource) {
        ("", "nodes") => admit_node(node, old, new),
        ("", "pods") => admit_pod(node, request, old, new),
        ("", "serviceaccounts") => admit_token_request(node, request.namespace, new, view),
        ("coordination.k8s.io", "leases") => admit_lease(node, new),
        ("certificates.k8s.io", "certificatesigningrequests") => admit_signing_request(node, new),
        ("", "events") => {
            old.map_or(Ok(()), |old| admit_event(node, old, view)).and_then(|()| admit_event(node, new, view))
        }
        _ => Ok(()),
    }
}

/// Judges the parts of a node's request that the subresource does not store: like upstream, before they are
/// dropped.
pub(super) fn admit_requested(
    node: &str,
    request: &Attributes,
    old: &Value,
    wanted: &Value,
) -> Result<(), String> {
    let differs = |old: &Value, new: &Value| !(is_absent(old) && is_absent(new)) && old != new;
    let taints = |object: &Value| object["spec"]["taints"].clone();
    match (request.resource, request.subresource) {
        ("nodes", "status") if differs(&taints(old), &taints(wanted)) => {
            Err(format!("node {node:?} is not allowed to modify taints"))
        }
        _ => Ok(()),
    }
}

/// Fields that can block the deletion of an object or of its owner: a node sets no finalizers, and as owner
/// only its own Node. The deletion of an owner must not wait for an object that a node writes.
fn admit_owners(node: &str, old: Option<&Value>, new: &Value, view: &dyn ClusterView) -> Result<(), String> {
    let changed = |field: &str| {
        let before = old.map_or(&Value::Null, |old| &old["metadata"][field]);
        let after = &new["metadata"][field];
        !(is_absent(before) && is_absent(after)) && before != after
    };
    if changed("finalizers") {
        return Err(format!("node {node:?} is not allowed to modify finalizers"));
    }
    if !changed("ownerReferences") {
        return Ok(());
    }
    let owners = new["metadata"]["ownerReferences"].as_array().map_or(&[][..], Vec::as_slice);
    owners.iter().try_for_each(|owner| admit_owner(node, owner, view))
}

fn admit_owner(node: &str, owner: &Value, view: &dyn ClusterView) -> Result<(), String> {
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
        return Err(format!("node {node:?} can only set an owner reference to itself"));
    }
    if owner["blockOwnerDeletion"] == true {
        return Err(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let own = view.object("nodes", "", node).ok_or_else(|| format!("node {node:?} not found"))?;
    let (found, expected) = (&owner["uid"], &own["metadata"]["uid"]);
    if found != expected {
        let text = |uid: &Value| uid.as_str().unwrap_or_default().to_owned();
        return Err(format!("node {node} UID mismatch: expected {} got {}", text(expected), text(found)));
    }
    Ok(())
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
    // an empty source counts as an invalid source: only null means absent
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
    if changed(["metadata", "ownerReferences"]) {
        return refuse("modify ownerReferences");
    }
    let annotations =
        forbidden(&before["metadata"]["annotations"], &new["metadata"]["annotations"], may_annotate);
    if !annotations.is_empty() {
        return refuse(&format!("modify annotations: {}", annotations.join(", ")));
    }
    let labels = forbidden(&before["metadata"]["labels"], &new["metadata"]["labels"], may_node_set);
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

/// The keys with different values that a node may not change, sorted.
fn forbidden<'a>(old: &'a Value, new: &'a Value, may: fn(&str) -> bool) -> Vec<&'a str> {
    field_names(old, new).into_iter().filter(|key| old.get(key) != new.get(key) && !may(key)).collect()
}

fn may_annotate(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    OWN_ANNOTATIONS.contains(&key) || domain.ends_with(OWN_ANNOTATION_DOMAIN)
}

/// NodeRestriction's rules of pods: a node may create mirror pods of its own manifests, report its pods'
/// status, and delete its pods. None of these may give it access to further objects.
fn admit_pod(node: &str, request: &Attributes, old: Option<&Value>, new: &Value) -> Result<(), String> {
    let pod = old.unwrap_or(new);
    if new["spec"]["nodeName"].as_str() != Some(node) || pod["spec"]["nodeName"].as_str() != Some(node) {
        return Err(format!("node {node:?} can only act on pods with spec.nodeName set to itself"));
    }
    if request.verb == "create" && request.subresource.is_empty() {
        return admit_mirror_pod(node, new);
    }
    let Some(old) = old.filter(|_| request.subresource == "status") else { return Ok(()) };
    let changed = |part: &str, field: &str| {
        let (before, after) = (&old[part][field], &new[part][field]);
        !(is_absent(before) && is_absent(after)) && before != after
    };
    if let Some(field) =
        ["labels", "annotations", "ownerReferences"].into_iter().find(|field| changed("metadata", field))
    {
        return Err(format!("node {node:?} cannot update {field} through pod status"));
    }
    // claims give access to devices; the first text is upstream's, letter by letter
    if changed("status", "resourceClaimStatuses") {
        return Err(format!("node {node:?} cannot update resource claim statues"));
    }
    if changed("status", "extendedResourceClaimStatus") {
        return Err(format!("node {node:?} cannot update extended resource claim status"));
    }
    Ok(())
}

/// A mirror pod refers to no objects: otherwise a node could create a pod that gives it access to any object
/// that it can name.
fn admit_mirror_pod(node: &str, pod: &Value) -> Result<(), String> {
    if !is_mirror(pod) {
        return Err(format!(
            "pod does not have {MIRROR_ANNOTATION:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    // its own Node, if one is given: `admit_owners` has compared it
    let owners = pod["metadata"]["ownerReferences"].as_array().map_or(&[][..], Vec::as_slice);
    let [owner] = owners else {
        return Err(format!(
            "node {node:?} can only create pods with a single owner reference set to itself"
        ));
    };
    if owner["controller"] != true {
        return Err(format!(
            "node {node:?} can only create pods with a controller owner reference set to itself"
        ));
    }
    match referred_resource(&pod["spec"]) {
        None => Ok(()),
        Some("serviceaccounts") => {
            Err(format!("node {node:?} can not create pods that reference a service account"))
        }
        Some(resource) => Err(format!("node {node:?} can not create pods that reference {resource}")),
    }
}

/// A node may request tokens only for a pod that is bound to it.
fn admit_token_request(
    node: &str,
    namespace: &str,
    request: &Value,
    view: &dyn ClusterView,
) -> Result<(), String> {
    let bound = &request["spec"]["boundObjectRef"];
    let name = bound["name"].as_str().unwrap_or_default();
    if bound["apiVersion"] != "v1" || bound["kind"] != "Pod" || name.is_empty() {
        return Err("node requested token not bound to a pod".to_owned());
    }
    let uid = bound["uid"].as_str().unwrap_or_default();
    if uid.is_empty() {
        return Err("node requested token with a pod binding without a uid".to_owned());
    }
    let pod = view.object("pods", namespace, name).ok_or_else(|| format!("pod {name:?} not found"))?;
    if pod["metadata"]["uid"] != uid {
        return Err(format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        ));
    }
    if pod["spec"]["nodeName"] != node {
        return Err("node requested token bound to a pod scheduled on a different node".to_owned());
    }
    admit_audiences(node, &request["spec"], &pod)
}

/// At most one audience, and one that a volume of the pod names. The API's own audience has two spellings:
/// none, and the issuer's name.
fn admit_audiences(node: &str, spec: &Value, pod: &Value) -> Result<(), String> {
    let audience = match array(&spec["audiences"]) {
        [] => "",
        [one] => one.as_str().unwrap_or_default(),
        _ => return Err("node may only request 0 or 1 audiences".to_owned()),
    };
    let plain =
        |audience: &Value| audience.as_str().filter(|name| *name != ISSUER).unwrap_or_default().to_owned();
    let asked = plain(&audience.into());
    let volumes = array(&pod["spec"]["volumes"]).iter();
    let sources = volumes.flat_map(|volume| array(&volume["projected"]["sources"]));
    let mut tokens = sources.map(|source| &source["serviceAccountToken"]).filter(|token| token.is_object());
    match tokens.any(|token| plain(&token["audience"]) == asked) {
        true => Ok(()),
        false => Err(format!(
            "audience {audience:?} not found in pod spec volume, {NODE_USER_PREFIX}{node} is not authorized to request tokens for this audience"
        )),
    }
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
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

/// An event must be about the node itself, or about a pod bound to it; an event about a pod is in the pod's
/// namespace, so that only callers who may see the pod see it, and names the node as its reporter. The uid is
/// ignored: kubelets send the node's name there.
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
    if own_pod && event["metadata"]["namespace"].as_str() == Some(&namespace) {
        // events are charged to the node that reports them
        return match reporting_node(event) {
            reporter if reporter == node => Ok(()),
            reporter => Err(format!(
                "node {node:?} is not allowed to report events as {reporter:?}, expected source.host or reportingInstance {node:?}"
            )),
        };
    }
    Err(format!(
        "node {node:?} is not allowed to write events about other objects, expected involvedObject Node {node:?} in \
         namespace {CLUSTER_EVENT_NAMESPACE:?}, or a Pod bound to it in the event's own namespace"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::Objects;
    use super::*;

    #[test]
    fn node_creates_only_mirror_pods_and_reports_its_own() {
        let view = Objects::default().with("nodes", "", "a", json!({"metadata": {"uid": "1"}}));
        let judge = |verb: &str, subresource: &str, old: Option<Value>, new: Value| {
            let attributes = Attributes { verb, subresource, resource: "pods", ..Attributes::default() };
            admit("a", &attributes, old.as_ref(), &new, &view)
        };
        let mirror = |change: fn(&mut Value)| {
            let mut pod = json!({"metadata": {"name": "m", "annotations": {MIRROR_ANNOTATION: "x"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "1", "controller": true}]},
                "spec": {"nodeName": "a", "volumes": [{"name": "secret", "hostPath": {"path": "/"}}]}});
            change(&mut pod);
            pod
        };
        let check = |change: fn(&mut Value), expect: &str| {
            let found = judge("create", "", None, mirror(change)).err().unwrap_or_default();
            assert_eq!(found.replace("node \"a\"", "node"), expect, "{}", mirror(change));
        };
        check(|_| {}, "");
        check(
            |pod| pod["spec"]["nodeName"] = "b".into(),
            "node can only act on pods with spec.nodeName set to itself",
        );
        check(
            |pod| pod["metadata"]["annotations"] = Value::Null,
            "pod does not have \"kubernetes.io/config.mirror\" annotation, node can only create mirror pods",
        );
        let own = "node can only set an owner reference to itself";
        check(|pod| pod["metadata"]["ownerReferences"][0]["name"] = "b".into(), own);
        check(|pod| pod["metadata"]["ownerReferences"][0]["kind"] = "Pod".into(), own);
        check(|pod| pod["metadata"]["ownerReferences"][0]["apiVersion"] = "v2".into(), own);
        check(
            |pod| pod["metadata"]["ownerReferences"][0]["uid"] = "2".into(),
            "node a UID mismatch: expected 1 got 2",
        );
        check(
            |pod| pod["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = true.into(),
            "node must not set blockOwnerDeletion on an owner reference",
        );
        check(
            |pod| pod["metadata"]["ownerReferences"][0]["controller"] = false.into(),
            "node can only create pods with a controller owner reference set to itself",
        );
        let single = "node can only create pods with a single owner reference set to itself";
        check(|pod| pod["metadata"]["ownerReferences"] = json!([]), single);
        let twice = mirror(|pod| {
            let owner = pod["metadata"]["ownerReferences"][0].clone();
            pod["metadata"]["ownerReferences"] = json!([owner, owner]);
        });
        assert_eq!(judge("create", "", None, twice).unwrap_err().replace("node \"a\"", "node"), single);
        check(
            |pod| pod["metadata"]["finalizers"] = json!(["example.com/never"]),
            "node is not allowed to modify finalizers",
        );
        check(
            |pod| pod["spec"]["serviceAccountName"] = "default".into(),
            "node can not create pods that reference a service account",
        );
        let secrets = "node can not create pods that reference secrets";
        check(|pod| pod["spec"]["volumes"] = json!([{"secret": {"secretName": "s"}}]), secrets);
        check(
            |pod| pod["spec"]["volumes"] = json!([{"projected": {"sources": [{"secret": {"name": "s"}}]}}]),
            secrets,
        );
        check(
            |pod| pod["spec"]["containers"] = json!([{"envFrom": [{"configMapRef": {"name": "s"}}]}]),
            "node can not create pods that reference configmaps",
        );
        let old = mirror(|_| {});
        let mut reported = old.clone();
        reported["status"]["phase"] = "Running".into();
        assert_eq!(judge("patch", "status", Some(old.clone()), reported.clone()), Ok(()));
        for field in ["labels", "annotations"] {
            let mut relabelled = reported.clone();
            relabelled["metadata"][field]["a"] = "b".into();
            let refused = format!("node \"a\" cannot update {field} through pod status");
            assert_eq!(judge("patch", "status", Some(old.clone()), relabelled), Err(refused));
        }
        for (field, text) in [
            ("resourceClaimStatuses", "resource claim statues"),
            ("extendedResourceClaimStatus", "extended resource claim status"),
        ] {
            let mut claimed = reported.clone();
            claimed["status"][field] = json!([{"name": "gpu"}]);
            let refused = format!("node \"a\" cannot update {text}");
            assert_eq!(judge("patch", "status", Some(old.clone()), claimed.clone()), Err(refused.clone()));
            assert_eq!(judge("patch", "status", Some(claimed), reported.clone()), Err(refused));
        }
        let mut disowned = reported.clone();
        disowned["metadata"]["ownerReferences"] = json!([]);
        let refused = "node \"a\" cannot update ownerReferences through pod status";
        assert_eq!(judge("patch", "status", Some(old.clone()), disowned), Err(refused.to_owned()));
        let mut stolen = old.clone();
        stolen["spec"]["nodeName"] = "b".into();
        assert!(judge("delete", "", Some(stolen.clone()), stolen).is_err());
        assert_eq!(judge("delete", "", Some(old.clone()), old.clone()), Ok(()));
        let mut moved = old.clone();
        moved["spec"]["nodeName"] = "b".into();
        assert!(judge("patch", "status", Some(moved), old.clone()).is_err(), "from another node");
        let plain = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "a"}});
        assert_eq!(judge("create", "eviction", Some(plain.clone()), plain), Ok(()), "it is no mirror pod");
    }

    fn judge(resource: &str, group: &str, old: Option<Value>, new: Value) -> Result<(), String> {
        let attributes = Attributes { resource, group, ..Attributes::default() };
        let view = Objects::default()
            .with("pods", "default", "mine", json!({"spec": {"nodeName": "a"}}))
            .with("pods", "default", "its", json!({"spec": {"nodeName": "b"}}))
            .with("nodes", "", "a", json!({"metadata": {"uid": "1"}}));
        admit("a", &attributes, old.as_ref(), &new, &view)
    }

    /// Checks the answer to node `a` changing its own Node: `expect` is the end of the error, empty if the
    /// change is allowed. `old` is null for a registration.
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
        let owned = json!({"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "1"}]}});
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
        check_node(old.clone(), changed("/spec/configSource", Value::Null), "update configSource");
        check_node(old.clone(), changed("/spec/configSource", json!({})), "update configSource");
        check_node(old.clone(), changed("/spec/taints", json!([])), "modify taints");
        check_node(old.clone(), changed("/spec/unschedulable", json!(false)), "set spec.unschedulable");
        check_node(old.clone(), changed("/spec/providerID", json!("x")), "set spec.providerID");
        check_node(old.clone(), changed("/spec", Value::Null), "update configSource");
        check_node(
            old.clone(),
            changed("/metadata/annotations", Value::Null),
            "modify annotations: kedge.dev/config-source",
        );
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
    fn node_requests_tokens_for_its_pods_only() {
        let mounts =
            json!([{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]);
        let pod =
            |node: &str| json!({"metadata": {"uid": "1"}, "spec": {"nodeName": node, "volumes": mounts}});
        let view = Objects::default().with("pods", "default", "mine", pod("a")).with(
            "pods",
            "default",
            "its",
            pod("b"),
        );
        let attributes = Attributes {
            resource: "serviceaccounts",
            subresource: "token",
            namespace: "default",
            ..Attributes::default()
        };
        let check = |bound: Value, expect: &str| {
            let asked = json!({"spec": {"boundObjectRef": bound}});
            let found = admit("a", &attributes, None, &asked, &view).err().unwrap_or_default();
            assert!(
                if expect.is_empty() { found.is_empty() } else { found.contains(expect) },
                "{bound}: {found}"
            );
        };
        let of = |name: &str, uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
        check(of("mine", "1"), "");
        check(of("mine", "2"), "does not match the UID in record");
        check(of("mine", ""), "without a uid");
        check(of("its", "1"), "scheduled on a different node");
        check(of("gone", "1"), "not found");
        check(
            json!({"apiVersion": "v1", "kind": "Secret", "name": "mine", "uid": "1"}),
            "not bound to a pod",
        );
        check(Value::Null, "not bound to a pod");
        let asks = |named: Value, spec: Value, expect: &str| {
            let volumes = json!([{"name": "e", "emptyDir": {}}, {"name": "t", "projected": {"sources": [
                {"configMap": {"name": "c"}}, {"serviceAccountToken": {"path": "t", "audience": named}}]}}]);
            let pod = json!({"metadata": {"uid": "1"}, "spec": {"nodeName": "a", "volumes": volumes}});
            let view = Objects::default().with("pods", "default", "mine", pod);
            let mut asked = json!({"spec": spec});
            asked["spec"]["boundObjectRef"] = of("mine", "1");
            let found = admit("a", &attributes, None, &asked, &view).err().unwrap_or_default();
            let who = ", system:node:a is not authorized to request tokens for this audience";
            assert_eq!(found.replace(who, ""), expect, "{asked}");
        };
        for named in [json!(null), json!(""), json!(ISSUER)] {
            for audiences in [json!(null), json!([]), json!([""]), json!([ISSUER])] {
                asks(named.clone(), json!({"audiences": audiences}), "");
            }
            asks(named, json!({"audiences": ["vault"]}), "audience \"vault\" not found in pod spec volume");
        }
        asks(json!("vault"), json!({"audiences": ["vault"]}), "");
        for other in ["bank", "", ISSUER] {
            asks(
                json!("vault"),
                json!({"audiences": [other]}),
                &format!("audience {other:?} not found in pod spec volume"),
            );
        }
        asks(json!("vault"), json!({}), "audience \"\" not found in pod spec volume");
        let two = json!({"audiences": ["vault", "vault"]});
        asks(json!("vault"), two, "node may only request 0 or 1 audiences");
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
    fn annotations_are_the_nodes_only_where_agents_report() {
        let check = |key: &str, allowed: bool| {
            let annotated = |value: &str| json!({"metadata": {"name": "a", "annotations": {key: value}}});
            let plain = json!({"metadata": {"name": "a"}});
            let expect = if allowed { String::new() } else { format!("modify annotations: {key}") };
            check_node(Value::Null, annotated("x"), &expect);
            check_node(plain.clone(), annotated("x"), &expect);
            check_node(annotated("x"), annotated("y"), &expect);
            check_node(annotated("x"), plain, &expect);
            check_node(annotated("x"), annotated("x"), "");
        };
        check("kedge.dev/config-status", true);
        check("kedge.dev/system", true);
        check("kedge.dev/slot", true);
        check("kedge.dev/authorities", true);
        check("kedge.dev/trust", false);
        check("kedge.dev/server", true);
        check("disk.node.kedge.dev/wear", true);
        check("node.kedge.dev/x", false);
        check("xnode.kedge.dev/x", false);
        check("kedge.dev/config-source", false);
        check("kedge.dev/forgive", false);
        check("kedge.dev/hold-promotion", false);
        check("kubectl.kubernetes.io/last-applied-configuration", false);
        check("admin/x", false);
        check("x", false);
    }

    #[test]
    fn objects_of_nodes_keep_no_others_alive() {
        let view = Objects::default().with("nodes", "", "a", json!({"metadata": {"uid": "1"}}));
        let lease = |meta: Value| {
            let mut lease = json!({"metadata": {"namespace": "kube-node-lease", "name": "a"}});
            lease["metadata"].as_object_mut().unwrap().extend(meta.as_object().unwrap().clone());
            lease
        };
        let attributes =
            Attributes { resource: "leases", group: "coordination.k8s.io", ..Attributes::default() };
        let judge =
            |old: Option<Value>, meta: Value| admit("a", &attributes, old.as_ref(), &lease(meta), &view);
        let owner =
            |name: &str, uid: &str| json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid});
        assert_eq!(judge(None, json!({"ownerReferences": [owner("a", "1")]})), Ok(()));
        assert!(judge(None, json!({"ownerReferences": [owner("b", "1")]})).is_err());
        assert!(judge(None, json!({"ownerReferences": [owner("a", "2")]})).is_err());
        assert!(judge(None, json!({"finalizers": ["x/y"]})).is_err());
        // an owner reference from before the Node was created anew may stay until it is corrected
        let stale = json!({"ownerReferences": [owner("a", "0")]});
        assert_eq!(judge(Some(lease(stale.clone())), stale.clone()), Ok(()));
        assert_eq!(judge(Some(lease(stale)), json!({"ownerReferences": [owner("a", "1")]})), Ok(()));
        let held = json!({"finalizers": ["x/y"]});
        assert!(judge(Some(lease(held)), json!({})).is_err(), "another's finalizer is not removed");
    }

    #[test]
    fn status_request_with_other_taints_is_refused() {
        let old = json!({"spec": {"taints": [{"key": "x"}]}});
        let judge = |subresource: &str, wanted: Value| {
            let attributes = Attributes { resource: "nodes", subresource, ..Attributes::default() };
            admit_requested("a", &attributes, &old, &wanted).is_ok()
        };
        assert!(judge("status", old.clone()));
        assert!(!judge("status", json!({"spec": {"taints": []}})));
        assert!(!judge("status", json!({})));
        assert!(judge("", json!({})), "decided on the stored form");
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
        let of_pod = |reporter: Value| {
            let mut event = event("default", "Pod", "mine");
            event["involvedObject"]["namespace"] = json!("default");
            event["source"] = reporter;
            event
        };
        check(None, of_pod(json!({"host": "a"})), true);
        let mut elsewhere = of_pod(json!({"host": "a"}));
        elsewhere["metadata"]["namespace"] = "kube-system".into();
        check(None, elsewhere, false);
        for (kind, name) in [("Pod", "its"), ("Pod", "missing"), ("ConfigMap", "mine")] {
            let mut other = of_pod(json!({"host": "a"}));
            (other["involvedObject"]["kind"], other["involvedObject"]["name"]) = (kind.into(), name.into());
            check(None, other, false);
        }
        check(None, of_pod(json!({"host": "b"})), false);
        check(None, of_pod(json!({})), false);
        check(Some(of_pod(json!({"host": "a"}))), of_pod(json!({"host": "b"})), false);
    }
}
