//! Authorization of nodes: a node may report itself, and read the ConfigMap assigned to it and the objects
//! its pods use.
//!
//! Always holds: a node can access its own objects, and of others only those that its Node or its pods refer
//! to (`references`). The rules are upstream's Node authorizer, narrower where we serve fewer kinds: a
//! ConfigMap is readable if `spec.configSource` names it, in either form. Left to others: the fields that a
//! node may write (`node_restriction`).

use super::attributes::{Attributes, ClusterView};
use super::authorizer::{Authorizer, Opinion};
use super::identity::Identity;
use crate::kinds::{by_resource, pod};
use crate::object::Reference;
use crate::restored;
use kedge_api::{NODE_LEASE_NAMESPACE, NODE_USER_PREFIX};

/// Upstream's Node authorizer: it has an opinion only on requests of nodes.
pub(super) struct Node;

impl Authorizer for Node {
    fn judge(&self, identity: &Identity, request: &Attributes, view: &dyn ClusterView) -> Opinion {
        match identity.node() {
            Some(node) if !request.resource.is_empty() => match authorize(node, request, view) {
                Ok(()) => Opinion::Allow,
                Err(reason) => Opinion::NoOpinion(reason),
            },
            _ => Opinion::NoOpinion(String::new()),
        }
    }
}

/// Whether `node` may make this request; the error is the reason in upstream's words, empty where it gives
/// none.
fn authorize(node: &str, request: &Attributes, view: &dyn ClusterView) -> Result<(), String> {
    match (request.group, request.resource, request.subresource) {
        ("", "nodes", "") => authorize_node(node, request),
        ("", "nodes", "status") => authorize_status(node, request),
        ("coordination.k8s.io", "leases", "") => authorize_lease(node, request),
        ("", "configmaps" | "secrets", "") => authorize_referenced(node, request, view),
        ("", "serviceaccounts", _) => authorize_service_account(node, request, view),
        // as upstream: a kubelet asks on behalf of its callers
        ("authentication.k8s.io", "tokenreviews", "")
        | ("authorization.k8s.io", "subjectaccessreviews" | "localsubjectaccessreviews", "")
            if request.verb == "create" =>
        {
            Ok(())
        }
        // as upstream: a kubelet turns them into environment variables
        ("", "services", "") if matches!(request.verb, "get" | "list" | "watch") => Ok(()),
        ("", "pods", "") => authorize_pod(node, request, view),
        ("", "pods", "status") => match request.verb {
            "update" | "patch" => own_pod(node, request, view),
            _ => Err(String::new()),
        },
        ("", "pods", "eviction") if request.verb == "create" => own_pod(node, request, view),
        ("", "events", "") if matches!(request.verb, "create" | "update" | "patch") => Ok(()),
        ("certificates.k8s.io", "certificatesigningrequests", "") => {
            authorize_signing_request(node, request, view)
        }
        _ => Err(String::new()),
    }
}

/// A node may request certificates and read its own requests. Upstream lets it read all of them.
fn authorize_signing_request(node: &str, request: &Attributes, view: &dyn ClusterView) -> Result<(), String> {
    let own = || {
        view.object(request.resource, "", request.requested_name()).is_some_and(|found| {
            found["spec"]["username"].as_str().and_then(|user| user.strip_prefix(NODE_USER_PREFIX))
                == Some(node)
        })
    };
    match request.verb {
        "create" => Ok(()),
        "get" | "list" | "watch" if own() => Ok(()),
        "get" | "list" | "watch" => Err(unrelated(node)),
        _ => Err(String::new()),
    }
}

fn authorize_node(node: &str, request: &Attributes) -> Result<(), String> {
    match (request.verb, request.requested_name()) {
        ("get" | "list" | "watch" | "update" | "patch", name) if name == node => Ok(()),
        // the name is not in the URL: `admit` reads it from the object
        ("create", "") => Ok(()),
        ("get" | "list" | "watch", "") => {
            Err(format!("node '{node}' cannot read all nodes, only its own Node object"))
        }
        ("get" | "list" | "watch", name) => {
            Err(format!("node '{node}' cannot read '{name}', only its own Node object"))
        }
        ("update" | "patch", name) => {
            Err(format!("node '{node}' cannot modify '{name}', only its own Node object"))
        }
        _ => Err(String::new()),
    }
}

fn authorize_status(node: &str, request: &Attributes) -> Result<(), String> {
    match (request.verb, request.name) {
        ("update" | "patch", name) if name == node => Ok(()),
        ("update" | "patch", name) => {
            Err(format!("node '{node}' cannot modify '{name}', only its own Node object"))
        }
        _ => Err(String::new()),
    }
}

fn authorize_lease(node: &str, request: &Attributes) -> Result<(), String> {
    if !matches!(request.verb, "get" | "create" | "update" | "patch" | "delete") {
        return Err("can only get, create, update, patch, or delete a node lease".to_owned());
    }
    if request.namespace != NODE_LEASE_NAMESPACE {
        return Err(format!("can only access leases in the {NODE_LEASE_NAMESPACE:?} system namespace"));
    }
    // for a creation the name is not in the URL: `admit` reads it from the object
    match (request.verb, request.name) {
        ("create", "") => Ok(()),
        (_, name) if name == node => Ok(()),
        _ => Err("can only access node lease with the same name as the requesting node".to_owned()),
    }
}

/// A ConfigMap or Secret is readable if the Node's spec or a pod bound to the node refers to it. A mirror pod
/// gives no access, because the node itself made it; it may not refer to anything either.
fn authorize_referenced(node: &str, request: &Attributes, view: &dyn ClusterView) -> Result<(), String> {
    if !matches!(request.verb, "get" | "list" | "watch") {
        return Err("can only read resources of this type".to_owned());
    }
    check_named(request)?;
    if request.resource == "configmaps"
        && let Some(own) = view.object("nodes", "", node)
        && let Some(why) = restored::reading_complaint(&own, request.namespace, request.requested_name())
    {
        return Err(why.to_owned());
    }
    authorize_if_referenced(node, request, view)
}

fn authorize_if_referenced(node: &str, request: &Attributes, view: &dyn ClusterView) -> Result<(), String> {
    let object = by_resource(request.resource)
        .map(|kind| Reference::new(kind, request.namespace, request.requested_name()));
    match object {
        Some(object) if view.node_refers_to(node, &object) => Ok(()),
        _ => Err(unrelated(node)),
    }
}

const ONE_ACCOUNT: &str = "can only create tokens for individual service accounts";

/// The accounts of the pods that are bound to it, and their tokens.
fn authorize_service_account(node: &str, request: &Attributes, view: &dyn ClusterView) -> Result<(), String> {
    match (request.verb, request.subresource) {
        ("get", "") => check_named(request)?,
        ("create", _) if request.name.is_empty() => return Err(ONE_ACCOUNT.to_owned()),
        ("create", "token") => {}
        ("create", _) => return Err("can only create token subresource of serviceaccount".to_owned()),
        _ => return Err(ONE_ACCOUNT.to_owned()),
    }
    authorize_if_referenced(node, request, view)
}

/// Objects that pods use are read one by one: in a namespace, with a name.
fn check_named(request: &Attributes) -> Result<(), String> {
    match (request.namespace, request.requested_name()) {
        ("", _) => Err("can only read namespaced object of this type".to_owned()),
        (_, "") => Err("No Object name found".to_owned()),
        _ => Ok(()),
    }
}

fn own_pod(node: &str, request: &Attributes, view: &dyn ClusterView) -> Result<(), String> {
    match view.object("pods", request.namespace, request.name) {
        Some(pod) if pod["spec"]["nodeName"].as_str() == Some(node) => Ok(()),
        // as upstream: the node must be able to learn that its pod is gone
        None => Ok(()),
        Some(_) => Err(format!("node {node:?} can only act on pods with spec.nodeName set to itself")),
    }
}

fn authorize_pod(node: &str, request: &Attributes, view: &dyn ClusterView) -> Result<(), String> {
    match request.verb {
        "list" | "watch" if request.required(pod::NODE_NAME_FIELD) == Some(node) => Ok(()),
        "list" | "watch" if request.requested_name().is_empty() => {
            Err("can only list/watch pods with spec.nodeName field selector".to_owned())
        }
        "get" | "list" | "watch" => {
            let bound = view
                .object("pods", request.namespace, request.requested_name())
                .is_some_and(|pod| pod["spec"]["nodeName"].as_str() == Some(node));
            if bound { Ok(()) } else { Err(unrelated(node)) }
        }
        // a mirror pod: `admit` decides on it
        "create" => Ok(()),
        // the node confirms that a pod has ended
        "delete" => own_pod(node, request, view),
        _ => Err(String::new()),
    }
}

fn unrelated(node: &str) -> String {
    format!("no relationship found between node '{node}' and this object")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::fixture::Objects;
    use super::*;
    use crate::kinds;
    use crate::selector::Selection;

    /// `verb resource[.group][/subresource] [namespace/]name [selector]`, `-` for no name, as node `a`.
    fn ask(view: &Objects, request: &str) -> Result<(), String> {
        let words: Vec<&str> = request.split(' ').collect();
        let (kind, subresource) = words[1].split_once('/').unwrap_or((words[1], ""));
        let (resource, group) = kind.split_once('.').unwrap_or((kind, ""));
        let (namespace, name) = words[2].split_once('/').unwrap_or(("", words[2]));
        let name = if name == "-" { "" } else { name };
        let fields = words.get(3).copied().unwrap_or_default();
        let selection = kinds::by_resource(words[1].split('/').next().unwrap_or_default())
            .and_then(|kind| Selection::parse(kind, namespace, "", fields).ok());
        let attributes = Attributes {
            verb: words[0],
            group,
            resource,
            subresource,
            namespace,
            name,
            selection: selection.as_ref(),
            path: "",
        };
        authorize("a", &attributes, view)
    }

    #[track_caller]
    fn check(view: &Objects, request: &str, expect: Result<(), &str>) {
        assert_eq!(ask(view, request), expect.map_err(str::to_owned), "{request}");
    }

    #[test]
    fn node_requests_certificates_and_reads_its_own_requests() {
        let asked_by = |user: &str| json!({"spec": {"username": user}});
        let requests = "certificatesigningrequests";
        let view = Objects::default()
            .with(requests, "", "own", asked_by("system:node:a"))
            .with(requests, "", "other", asked_by("system:node:b"))
            .with(requests, "", "admins", asked_by("a"));
        let of = "certificatesigningrequests.certificates.k8s.io";
        for allowed in
            ["create X -", "get X own", "list X - metadata.name=own", "watch X - metadata.name=own"]
        {
            check(&view, &allowed.replace('X', of), Ok(()));
        }
        let unrelated = "no relationship found between node 'a' and this object";
        for refused in
            ["get X other", "get X admins", "get X nothing", "list X -", "watch X - metadata.name=other"]
        {
            check(&view, &refused.replace('X', of), Err(unrelated));
        }
        for refused in [
            "update X own",
            "patch X own",
            "delete X own",
            "deletecollection X -",
            "update X/approval own",
            "update X/status own",
        ] {
            check(&view, &refused.replace('X', of), Err(""));
        }
    }

    #[test]
    fn node_reads_and_reports_only_itself() {
        let view = Objects::default();
        for allowed in [
            "get nodes a",
            "list nodes - metadata.name=a",
            "watch nodes - metadata.name=a",
            "watch nodes a",
            "create nodes -",
            "update nodes a",
            "patch nodes a",
            "update nodes/status a",
            "patch nodes/status a",
        ] {
            check(&view, allowed, Ok(()));
        }
        check(&view, "get nodes b", Err("node 'a' cannot read 'b', only its own Node object"));
        check(&view, "list nodes -", Err("node 'a' cannot read all nodes, only its own Node object"));
        check(&view, "watch nodes -", Err("node 'a' cannot read all nodes, only its own Node object"));
        check(
            &view,
            "list nodes - metadata.name!=a",
            Err("node 'a' cannot read all nodes, only its own Node object"),
        );
        check(
            &view,
            "list nodes - metadata.name=b",
            Err("node 'a' cannot read 'b', only its own Node object"),
        );
        check(&view, "update nodes b", Err("node 'a' cannot modify 'b', only its own Node object"));
        check(&view, "patch nodes/status b", Err("node 'a' cannot modify 'b', only its own Node object"));
        for refused in [
            "delete nodes a",
            "deletecollection nodes -",
            "delete nodes/status a",
            "get nodes/proxy a",
            "create nodes/status a",
        ] {
            check(&view, refused, Err(""));
        }
    }

    #[test]
    fn a_node_has_one_lease() {
        let view = Objects::default();
        let lease = "leases.coordination.k8s.io";
        for verb in ["get", "update", "patch", "delete"] {
            check(&view, &format!("{verb} {lease} kube-node-lease/a"), Ok(()));
            let other = Err("can only access node lease with the same name as the requesting node");
            check(&view, &format!("{verb} {lease} kube-node-lease/b"), other);
            let elsewhere = Err("can only access leases in the \"kube-node-lease\" system namespace");
            check(&view, &format!("{verb} {lease} default/a"), elsewhere);
        }
        check(&view, &format!("create {lease} kube-node-lease/-"), Ok(()));
        let reads = Err("can only get, create, update, patch, or delete a node lease");
        check(&view, &format!("list {lease} kube-node-lease/-"), reads);
        check(&view, &format!("watch {lease} kube-node-lease/- metadata.name=a"), reads);
        check(&view, &format!("deletecollection {lease} kube-node-lease/-"), reads);
        check(&view, "get leases kube-node-lease/a", Err(""));
    }

    #[test]
    fn node_reads_only_the_config_map_its_spec_names() {
        let node = |source: Value| {
            Objects::default().with("nodes", "", "a", json!({"spec": {"configSource": source}}))
        };
        let named = json!({"namespace": "default", "name": "x", "uid": "1", "kubeletConfigKey": "kubelet"});
        for form in ["configMapRef", "configMap"] {
            let view = node(json!({form: named}));
            check(&view, "get configmaps default/x", Ok(()));
            check(&view, "list configmaps default/- metadata.name=x", Ok(()));
            check(&view, "watch configmaps default/- metadata.name=x", Ok(()));
            let unrelated = Err("no relationship found between node 'a' and this object");
            check(&view, "get configmaps default/y", unrelated);
            check(&view, "get configmaps other/x", unrelated);
            let namespaced = Err("can only read namespaced object of this type");
            check(&view, "list configmaps - metadata.name=x", namespaced);
            check(&view, "list configmaps default/- metadata.name=y", unrelated);
            check(&view, "list configmaps default/-", Err("No Object name found"));
            check(&view, "watch configmaps default/- metadata.name!=x", Err("No Object name found"));
            for verb in ["create", "update", "patch", "delete", "deletecollection"] {
                check(
                    &view,
                    &format!("{verb} configmaps default/x"),
                    Err("can only read resources of this type"),
                );
            }
        }
        let unrelated = Err("no relationship found between node 'a' and this object");
        check(&Objects::default(), "get configmaps default/x", unrelated);
        check(&node(Value::Null), "get configmaps default/x", unrelated);
        check(&node(json!({})), "get configmaps default/x", unrelated);
        check(
            &node(json!({"configMap": named, "configMapRef": named})),
            "get configmaps default/x",
            unrelated,
        );
        check(&node(json!({"configMap": null, "configMapRef": named})), "get configmaps default/x", Ok(()));
        let other = Objects::default().with(
            "nodes",
            "",
            "b",
            json!({"spec": {"configSource": {"configMap": named}}}),
        );
        check(&other, "get configmaps default/x", unrelated);
    }

    #[test]
    fn node_reads_the_pods_bound_to_it() {
        let pod = |node: &str| json!({"spec": {"nodeName": node}});
        let view = Objects::default().with("pods", "default", "mine", pod("a")).with(
            "pods",
            "default",
            "its",
            pod("b"),
        );
        check(&view, "list pods - spec.nodeName=a", Ok(()));
        check(&view, "watch pods - spec.nodeName=a,status.phase!=Failed", Ok(()));
        check(&view, "get pods default/mine", Ok(()));
        check(&view, "list pods default/- metadata.name=mine", Ok(()));
        let selector = Err("can only list/watch pods with spec.nodeName field selector");
        check(&view, "list pods -", selector);
        check(&view, "watch pods - spec.nodeName=b", selector);
        check(&view, "get pods default/its", Err("no relationship found between node 'a' and this object"));
        for own in [
            "create pods default/-",
            "delete pods default/mine",
            "patch pods/status default/mine",
            "create pods/eviction default/mine",
        ] {
            check(&view, own, Ok(()));
        }
        let others = Err("node \"a\" can only act on pods with spec.nodeName set to itself");
        for other in
            ["delete pods default/its", "update pods/status default/its", "create pods/eviction default/its"]
        {
            check(&view, other, others);
        }
        for refused in [
            "update pods default/mine",
            "deletecollection pods default/-",
            "create pods/binding default/mine",
            "get pods/eviction default/mine",
        ] {
            check(&view, refused, Err(""));
        }
    }

    #[test]
    fn node_reads_only_objects_its_pods_refer_to() {
        let spec = json!({"nodeName": "a", "serviceAccountName": "runs",
            "imagePullSecrets": [{"name": "pull"}],
            "volumes": [{"name": "v", "secret": {"secretName": "mounted"}},
                {"name": "p", "projected": {"sources": [{"configMap": {"name": "projected"}}, {"secret": {"name": "projected"}}]}}],
            "initContainers": [{"envFrom": [{"configMapRef": {"name": "from"}}]}],
            "containers": [{"name": "secret", "env": [{"name": "x", "valueFrom": {"secretKeyRef": {"name": "key", "key": "other"}}}]}]});
        let mirror = json!({"metadata": {"annotations": {pod::MIRROR_ANNOTATION: "x"}},
            "spec": {"nodeName": "a", "serviceAccountName": "mirrors", "volumes": [{"name": "v", "secret": {"secretName": "mirrored"}}]}});
        let view = Objects::default().with("pods", "default", "mine", json!({"spec": spec}));
        let view = view.with("pods", "default", "mirror", mirror).with(
            "pods",
            "default",
            "its",
            json!({"spec": {"nodeName": "b", "volumes": [{"name": "v", "secret": {"secretName": "its"}}]}}),
        );
        for allowed in [
            "secrets default/pull",
            "secrets default/mounted",
            "secrets default/projected",
            "secrets default/key",
            "configmaps default/projected",
            "configmaps default/from",
            "serviceaccounts default/runs",
        ] {
            check(&view, &format!("get {allowed}"), Ok(()));
        }
        check(&view, "create serviceaccounts/token default/runs", Ok(()));
        let one = Err("can only create tokens for individual service accounts");
        for refused in [
            "get serviceaccounts/token default/runs",
            "list serviceaccounts default/-",
            "create serviceaccounts/token default/-",
            "update serviceaccounts default/runs",
        ] {
            check(&view, refused, one);
        }
        check(
            &view,
            "create serviceaccounts/x default/runs",
            Err("can only create token subresource of serviceaccount"),
        );
        // objects that a pod refers to have a namespace
        let namespaced = Err("can only read namespaced object of this type");
        for refused in [
            "get serviceaccounts runs",
            "list secrets - metadata.name=key",
            "watch configmaps -",
            "get secrets key",
        ] {
            check(&view, refused, namespaced);
        }
        check(
            &view,
            "create serviceaccounts/token runs",
            Err("no relationship found between node 'a' and this object"),
        );
        check(&view, "create tokenreviews.authentication.k8s.io -", Ok(()));
        check(&view, "create subjectaccessreviews.authorization.k8s.io -", Ok(()));
        check(&view, "create localsubjectaccessreviews.authorization.k8s.io default/-", Ok(()));
        check(&view, "list tokenreviews.authentication.k8s.io -", Err(""));
        check(&view, "watch secrets default/- metadata.name=key", Ok(()));
        let unrelated = Err("no relationship found between node 'a' and this object");
        for refused in [
            "secrets default/its",
            "secrets default/mirrored",
            "secrets other/key",
            "secrets default/v",
            "secrets default/other",
            "secrets default/from",
            "configmaps default/key",
            "serviceaccounts default/other",
            "serviceaccounts other/runs",
            "serviceaccounts default/mirrors",
        ] {
            check(&view, &format!("get {refused}"), unrelated);
        }
        check(&view, "create serviceaccounts/token default/other", unrelated);
        check(&view, "create serviceaccounts/token default/mirrors", unrelated);
        check(&view, "list secrets default/-", Err("No Object name found"));
        check(&view, "update secrets default/key", Err("can only read resources of this type"));
    }

    #[test]
    fn node_writes_events_and_cannot_read_them() {
        let view = Objects::default();
        for verb in ["get", "list", "watch"] {
            check(&view, &format!("{verb} services default/kubernetes"), Ok(()));
            check(&view, &format!("{verb} services/status default/kubernetes"), Err(""));
        }
        check(&view, "list services -", Ok(()));
        check(&view, "update services default/kubernetes", Err(""));
        for verb in ["create", "update", "patch"] {
            check(&view, &format!("{verb} events default/x"), Ok(()));
        }
        for verb in ["get", "list", "watch", "delete", "deletecollection"] {
            check(&view, &format!("{verb} events default/x"), Err(""));
        }
        for other in
            ["list namespaces -", "create configmapsx default/x", "create certificatesigningrequests -"]
        {
            check(&view, other, Err(""));
        }
    }
}
