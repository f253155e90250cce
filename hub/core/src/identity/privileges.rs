//! Changes that need a right besides that of the request, in any object.
//!
//! Always holds: a right to patch nodes does not include configuring, forgiving, grouping or wiping them
//! (verbs `assign` and `wipe` on `nodes/config`). Neither does one to write ConfigRollouts, or the ConfigMaps
//! that they roll out; but a right to patch a rollout suffices to pause it. So a stolen device with the token
//! of a program that patches nodes gives no control of other devices. A right to approve certificate requests
//! is limited to the signers that a rule names (`approve` and `sign` on `signers`, as upstream). A right to
//! edit the ConfigMaps of `kube-system` does not let stolen devices in again, unless a rule names the deny
//! list. A PUT that creates needs the right to create. Left to others: nodes (`node_restriction`), roles and
//! bindings (`escalation`).

use serde_json::Value;

use super::attributes::{Attributes, ClusterView};
use super::denied::{DENY_LIST_NAME, is_deny_list};
use super::identity::Identity;
use super::{Denied, authorizer, forbidden_object, forbidden_request};
use crate::kinds::config_rollout;
use crate::kinds::rules::entries;
use crate::value::{at, text};

/// Prefixes of annotations of a Node by which somebody commands it.
const COMMANDS: [&str; 2] = ["kedge.dev/", "fleet.kedge.dev/"];
/// Prefix of labels of a Node by which it gets its configuration.
const FLEET: &str = "fleet.kedge.dev/";
/// A word in the name or value of an annotation that makes a node forget everything.
const WIPE: &str = "wipe";

/// Decides whether a caller that is neither an administrator nor a node may make this change.
pub(super) fn admit(
    identity: &Identity,
    request: &Attributes,
    old: Option<&Value>,
    new: &Value,
    view: &dyn ClusterView,
) -> Result<(), Denied> {
    if old.is_none() && request.verb == "update" {
        let create = Attributes { verb: "create", name: "", ..*request };
        require(identity, &create, view)?;
    }
    match (request.group, request.resource) {
        ("", "nodes") if matches!(request.verb, "create" | "update" | "patch") => {
            admit_node(identity, old, new, view)
        }
        ("", "configmaps") if is_deny_list(request.namespace, text(new, &["metadata", "name"])) => {
            admit_deny_list(identity, request, new, view)
        }
        ("", "configmaps") if request.namespace == config_rollout::NAMESPACE => {
            let what = format!("the ConfigMaps of {}", config_rollout::NAMESPACE);
            require_assign(identity, "", &["assign"], &what, view)
        }
        (config_rollout::GROUP, "configrollouts") => admit_rollout(identity, old, new, view),
        ("certificates.k8s.io", "certificatesigningrequests") => {
            admit_certificate(identity, request, old, new, view)
        }
        _ => Ok(()),
    }
}

fn require(identity: &Identity, request: &Attributes, view: &dyn ClusterView) -> Result<(), Denied> {
    authorizer::decide(identity, request, view)
        .map_err(|reason| forbidden_request(identity, request, &reason))
}

fn admit_node(
    identity: &Identity,
    old: Option<&Value>,
    new: &Value,
    view: &dyn ClusterView,
) -> Result<(), Denied> {
    let Some(command) = command(old.unwrap_or(&Value::Null), new) else { return Ok(()) };
    let name = text(new, &["metadata", "name"]);
    let verbs = if command.wipes { &["assign", "wipe"][..] } else { &["assign"] };
    require_assign(identity, name, verbs, &command.what, view)
}

/// Requires these verbs on the configuration of a node, or of all nodes if the name is empty.
fn require_assign(
    identity: &Identity,
    name: &str,
    verbs: &[&str],
    what: &str,
    view: &dyn ClusterView,
) -> Result<(), Denied> {
    for verb in verbs {
        let assign =
            Attributes { verb, resource: "nodes", subresource: "config", name, ..Attributes::default() };
        let why = format!("a change of {what} needs this right besides that of the request");
        authorizer::decide(identity, &assign, view)
            .map_err(|_| forbidden_request(identity, &assign, &why))?;
    }
    Ok(())
}

/// A rollout assigns configurations to nodes. Its status remembers why it stopped. Pausing it needs no
/// further right.
fn admit_rollout(
    identity: &Identity,
    old: Option<&Value>,
    new: &Value,
    view: &dyn ClusterView,
) -> Result<(), Denied> {
    let old = old.unwrap_or(&Value::Null);
    let pauses = || {
        let mut paused = old["spec"].clone();
        paused["paused"] = true.into();
        old["spec"].is_object() && paused == new["spec"]
    };
    let what = if old["spec"] != new["spec"] && !pauses() {
        "spec".to_owned()
    } else if old["status"] != new["status"] {
        "status".to_owned()
    } else {
        let mut keys = changed(&old["metadata"], &new["metadata"], "annotations");
        let Some(key) = keys.find(|key| key.starts_with(FLEET)) else { return Ok(()) };
        format!("metadata.annotations[{key}]")
    };
    require_assign(identity, "", &["assign"], &what, view)
}

fn admit_deny_list(
    identity: &Identity,
    request: &Attributes,
    new: &Value,
    view: &dyn ClusterView,
) -> Result<(), Denied> {
    let named = Attributes { name: DENY_LIST_NAME, ..*request };
    let mut is_named = false;
    view.rights(&mut |rights| {
        let mut rules = rights.rules(&identity.user, &identity.groups, request.namespace);
        is_named = rules.any(|rule| rule.allows(&named) && rule.names(&named));
    });
    if is_named {
        return Ok(());
    }
    let why = "only a rule with its name in resourceNames, or one for all resources, allows to change it";
    Err(forbidden_object(request, new, why.to_owned()))
}

/// A change of a Node by which somebody commands it.
struct Command {
    /// The first field that changes.
    what: String,
    wipes: bool,
}

fn command(old: &Value, new: &Value) -> Option<Command> {
    let mut what = None;
    let mut wipes = false;
    let source = |node: &Value| at(node, &["spec", "configSource"]).filter(|found| !found.is_null()).cloned();
    if source(old) != source(new) {
        what = Some("spec.configSource".to_owned());
    }
    // rollouts believe it: only the node itself tells it, here or in the annotation
    let told = |node: &Value| at(node, &["status", "config"]).filter(|found| !found.is_null()).cloned();
    if told(old) != told(new) {
        what.get_or_insert_with(|| "status.config".to_owned());
    }
    for (map, prefixes) in [("annotations", &COMMANDS[..]), ("labels", &[FLEET])] {
        for key in changed(&old["metadata"], &new["metadata"], map) {
            if !prefixes.iter().any(|prefix| key.starts_with(prefix)) {
                continue;
            }
            let value = text(new, &["metadata", map, key]);
            wipes |= key.contains(WIPE) || value.contains(WIPE);
            what.get_or_insert_with(|| format!("metadata.{map}[{key}]"));
        }
    }
    what.map(|what| Command { what, wipes })
}

/// The keys of a map whose values differ.
fn changed<'a>(old: &'a Value, new: &'a Value, map: &'a str) -> impl Iterator<Item = &'a str> {
    let differs = move |key: &str| old[map].get(key) != new[map].get(key);
    let gone = entries(old, map).filter(move |(key, _)| new[map].get(*key).is_none());
    entries(new, map).chain(gone).map(|(key, _)| key).filter(move |key| differs(key))
}

fn admit_certificate(
    identity: &Identity,
    request: &Attributes,
    old: Option<&Value>,
    new: &Value,
    view: &dyn ClusterView,
) -> Result<(), Denied> {
    let verb = match (request.verb, request.subresource) {
        ("update" | "patch", "approval") => "approve",
        ("update" | "patch", "status") if old.is_none_or(|old| old["status"] != new["status"]) => "sign",
        _ => return Ok(()),
    };
    let signer = text(new, &["spec", "signerName"]);
    let domain = signer.split_once('/').map_or(signer, |(domain, _)| domain);
    let whole = format!("{domain}/*");
    let may = |name: &str| {
        let (group, resource) = ("certificates.k8s.io", "signers");
        let asked = Attributes { verb, group, resource, name, ..Attributes::default() };
        authorizer::decide(identity, &asked, view).is_ok()
    };
    if may(signer) || may(&whole) {
        return Ok(());
    }
    let why = format!("user not permitted to {verb} requests with signerName {signer:?}");
    Err(forbidden_object(request, new, why))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::Objects;
    use super::*;

    fn view() -> Objects {
        let rule = |verbs: &[&str], group: &str, resource: &str, names: &[&str]| json!({"verbs": verbs, "apiGroups": [group], "resources": [resource], "resourceNames": names});
        let signers = |verb: &str, name: &str| rule(&[verb], "certificates.k8s.io", "signers", &[name]);
        Objects::default()
            .allow("kured", "", "patches", json!([rule(&["patch", "update"], "", "nodes", &[])]))
            .allow("pusher", "", "assigns", json!([rule(&["assign"], "", "nodes/config", &[])]))
            .allow("own", "", "assigns-one", json!([rule(&["assign"], "", "nodes/config", &["edge-1"])]))
            .allow("wiper", "", "wipes", json!([rule(&["assign", "wipe"], "", "nodes/config", &[])]))
            .allow("approver", "", "approves", json!([signers("approve", "example.com/*")]))
            .allow("exact", "", "approves-one", json!([signers("approve", "example.com/a")]))
            .allow("signer", "", "signs", json!([signers("sign", "example.com/a")]))
            .allow("writer", "", "writes", json!([rule(&["update"], "", "configmaps", &[])]))
            .allow("creator", "", "creates", json!([rule(&["update", "create"], "", "configmaps", &[])]))
    }

    fn judge(user: &str, request: &Attributes, old: Option<&Value>, new: &Value) -> String {
        let identity = Identity::new(user, &["system:authenticated"]);
        let judged = admit(&identity, request, old, new, &view());
        judged.map_or_else(|denied| denied.message, |()| String::new())
    }

    #[test]
    fn rollouts_need_the_right_to_assign() {
        let old = json!({"metadata": {"name": "shops", "annotations": {"fleet.kedge.dev/undo-to": "1"}},
            "spec": {"source": {"name": "a"}}, "status": {"phase": "Stopped"}});
        let check = |change: &dyn Fn(&mut Value), what: &str| {
            let request = Attributes {
                verb: "patch",
                group: config_rollout::GROUP,
                resource: "configrollouts",
                name: "shops",
                ..Attributes::default()
            };
            let mut new = old.clone();
            change(&mut new);
            let expect = match what {
                "" => String::new(),
                what => format!("a change of {what} needs this right besides that of the request"),
            };
            let found = judge("kured", &request, Some(&old), &new);
            assert!(found.ends_with(&expect) && found.is_empty() == what.is_empty(), "{found}: {new}");
            // a right to one node alone is not enough
            assert_eq!(judge("own", &request, Some(&old), &new).is_empty(), what.is_empty());
            assert_eq!(judge("pusher", &request, Some(&old), &new), "");
        };
        check(&|new| new["spec"]["source"]["name"] = "b".into(), "spec");
        check(&|new| new["spec"]["paused"] = true.into(), "");
        check(&|new| new["spec"] = json!({"paused": true}), "spec");
        check(&|new| new["status"]["phase"] = "Progressing".into(), "status");
        let undo = "metadata.annotations[fleet.kedge.dev/undo-to]";
        check(&|new| new["metadata"]["annotations"] = json!({}), undo);
        check(&|new| new["metadata"]["labels"] = json!({"team": "a"}), "");
        let made = json!({"metadata": {"name": "shops"}, "spec": {"paused": true}});
        let create = Attributes {
            verb: "create",
            group: config_rollout::GROUP,
            resource: "configrollouts",
            ..Attributes::default()
        };
        assert!(judge("kured", &create, None, &made).contains("cannot assign"), "created paused");
        let paused =
            json!({"metadata": {"name": "shops"}, "spec": {"source": {"name": "a"}, "paused": true}});
        let update = Attributes { verb: "update", ..create };
        assert!(judge("kured", &update, Some(&paused), &old).contains("cannot assign"), "goes on");
    }

    #[test]
    fn sources_of_rollouts_need_the_right_to_assign() {
        let map =
            |namespace: &str| json!({"metadata": {"namespace": namespace, "name": "settings"}, "data": {}});
        for (user, namespace, may) in
            [("writer", "kedge-fleet", false), ("writer", "default", true), ("pusher", "kedge-fleet", true)]
        {
            let request = Attributes {
                verb: "update",
                resource: "configmaps",
                namespace,
                name: "settings",
                ..Attributes::default()
            };
            let found = judge(user, &request, Some(&map(namespace)), &map(namespace));
            assert_eq!(found.is_empty(), may, "{user} {namespace}: {found}");
        }
    }

    #[test]
    fn who_patches_nodes_does_not_command_them() {
        let node = |meta: Value, spec: Value| {
            let mut node = json!({"metadata": meta, "spec": spec});
            node["metadata"]["name"] = "edge-1".into();
            node
        };
        let old = node(
            json!({"annotations": {"kedge.dev/forgive": "1", "kured": "x"}, "labels": {"fleet.kedge.dev/ring": "a"}}),
            json!({"configSource": {"configMap": {"name": "c"}}}),
        );
        let check = |user: &str, change: &dyn Fn(&mut Value), expect: &str| {
            for subresource in ["", "status"] {
                let request = Attributes {
                    verb: "patch",
                    resource: "nodes",
                    subresource,
                    name: "edge-1",
                    ..Attributes::default()
                };
                let mut new = old.clone();
                change(&mut new);
                let found = judge(user, &request, Some(&old), &new);
                let expect = match expect {
                    "" => String::new(),
                    expect => {
                        let (verb, what) = expect.split_once(' ').unwrap();
                        format!(
                            "nodes \"edge-1\" is forbidden: User \"{user}\" cannot {verb} resource \"nodes/config\" in API group \"\" at the cluster scope: a change of {what} needs this right besides that of the request"
                        )
                    }
                };
                assert_eq!(found, expect, "{user}: {new}");
            }
        };
        let annotate = |key: &'static str, value: Value| {
            move |node: &mut Value| node["metadata"]["annotations"][key] = value.clone()
        };
        for (change, what) in [
            (
                &(|node: &mut Value| node["spec"]["configSource"]["configMap"]["name"] = "d".into())
                    as &dyn Fn(&mut Value),
                "spec.configSource",
            ),
            (&|node: &mut Value| node["spec"] = json!({}), "spec.configSource"),
            (&annotate("kedge.dev/forgive", json!("2")), "metadata.annotations[kedge.dev/forgive]"),
            (&annotate("kedge.dev/release-pods", json!("x")), "metadata.annotations[kedge.dev/release-pods]"),
            (
                &annotate("fleet.kedge.dev/set-aside", json!("x")),
                "metadata.annotations[fleet.kedge.dev/set-aside]",
            ),
            (
                &|node: &mut Value| node["metadata"]["annotations"] = json!({}),
                "metadata.annotations[kedge.dev/forgive]",
            ),
            (
                &|node: &mut Value| {
                    node["status"]["config"]["lastKnownGood"] = json!({"configMap": {"name": "d"}})
                },
                "status.config",
            ),
            (
                &annotate("kedge.dev/config-status", json!("{}")),
                "metadata.annotations[kedge.dev/config-status]",
            ),
            (
                &|node: &mut Value| node["metadata"]["labels"] = Value::Null,
                "metadata.labels[fleet.kedge.dev/ring]",
            ),
            (
                &|node: &mut Value| node["metadata"]["labels"]["fleet.kedge.dev/site"] = "b".into(),
                "metadata.labels[fleet.kedge.dev/site]",
            ),
        ] {
            check("kured", change, &format!("assign {what}"));
            check("pusher", change, "");
            check("own", change, "");
        }
        for harmless in [
            &annotate("kured", json!("y")) as &dyn Fn(&mut Value),
            &annotate("weave.works/kured-node-lock", json!("{}")),
            &|node: &mut Value| node["spec"]["unschedulable"] = true.into(),
            &|node: &mut Value| {
                node["status"] = json!({"conditions": [{"type": "KernelDeadlock", "status": "False"}]})
            },
            &|node: &mut Value| node["metadata"]["labels"]["topology.kubernetes.io/zone"] = "z".into(),
        ] {
            check("kured", harmless, "");
        }
        let wipe = annotate("kedge.dev/decommission", json!("uid,wipe"));
        check("pusher", &wipe, "wipe metadata.annotations[kedge.dev/decommission]");
        check("wiper", &wipe, "");
        check("kured", &wipe, "assign metadata.annotations[kedge.dev/decommission]");
        let create = Attributes { verb: "create", resource: "nodes", ..Attributes::default() };
        assert_eq!(judge("pusher", &create, None, &old), "");
        assert!(!judge("kured", &create, None, &old).is_empty());
        let mut other = old.clone();
        other["metadata"]["name"] = "edge-2".into();
        assert!(!judge("own", &create, None, &other).is_empty(), "by name");
    }

    #[test]
    fn approval_needs_the_right_to_its_signer() {
        let csr = |signer: &str, status: Value| json!({"metadata": {"name": "r"}, "spec": {"signerName": signer}, "status": status});
        let check = |user: &str, subresource: &str, signer: &str, expect: &str| {
            let (group, resource) = ("certificates.k8s.io", "certificatesigningrequests");
            let request = Attributes {
                verb: "update",
                group,
                resource,
                subresource,
                name: "r",
                ..Attributes::default()
            };
            let new = csr(signer, json!({"certificate": "x"}));
            let found = judge(user, &request, Some(&csr(signer, json!({}))), &new);
            let expect = match expect {
                "" => String::new(),
                verb => format!(
                    "certificatesigningrequests.certificates.k8s.io \"r\" is forbidden: user not permitted to {verb} requests with signerName {signer:?}"
                ),
            };
            assert_eq!(found, expect, "{user}");
        };
        check("approver", "approval", "example.com/a", "");
        check("approver", "approval", "example.com/b", "");
        check("approver", "approval", "other.com/a", "approve");
        check("exact", "approval", "example.com/a", "");
        check("exact", "approval", "example.com/b", "approve");
        check("exact", "approval", kedge_api::NODE_SIGNER, "approve");
        check("signer", "approval", "example.com/a", "approve");
        check("signer", "status", "example.com/a", "");
        check("approver", "status", "example.com/a", "sign");
        check("kured", "", "example.com/a", "");
    }

    #[test]
    fn deny_list_is_changed_by_who_may_change_it_by_name() {
        let rule = |resource: &str, names: &[&str]| {
            json!([{"verbs": ["create", "update", "patch", "delete"], "apiGroups": [""], "resources": [resource],
                "resourceNames": names}])
        };
        let view = Objects::default()
            .allow("editor", "kube-system", "edits", rule("configmaps", &[]))
            .allow("guard", "kube-system", "guards", rule("configmaps", &[DENY_LIST_NAME]))
            .allow("other", "kube-system", "another", rule("configmaps", &["x"]))
            .allow("root", "", "everything", rule("*", &[]));
        let check = |user: &str, verb: &str, namespace: &str, name: &str, expect: bool| {
            let identity = Identity::new(user, &[]);
            let named = if verb == "create" { "" } else { name };
            let asked =
                Attributes { verb, resource: "configmaps", namespace, name: named, ..Attributes::default() };
            let map = json!({"metadata": {"namespace": namespace, "name": name}});
            let found = admit(&identity, &asked, Some(&map), &map, &view);
            assert_eq!(found.is_ok(), expect, "{user} {verb} {namespace}/{name}: {found:?}");
        };
        for verb in ["create", "update", "patch", "delete"] {
            check("editor", verb, "kube-system", DENY_LIST_NAME, false);
            check("other", verb, "kube-system", DENY_LIST_NAME, false);
            check("guard", verb, "kube-system", DENY_LIST_NAME, true);
            check("root", verb, "kube-system", DENY_LIST_NAME, true);
            check("editor", verb, "kube-system", "mine", true);
            check("editor", verb, "shop", DENY_LIST_NAME, true);
        }
    }

    #[test]
    fn put_that_creates_needs_the_right_to_create() {
        let put = Attributes {
            verb: "update",
            resource: "configmaps",
            namespace: "n",
            name: "m",
            ..Attributes::default()
        };
        let map = json!({"metadata": {"name": "m"}});
        assert_eq!(judge("creator", &put, None, &map), "");
        assert_eq!(judge("writer", &put, Some(&map), &map), "");
        let refused = "configmaps is forbidden: User \"writer\" cannot create resource \"configmaps\" in API group \"\" in the namespace \"n\"";
        assert_eq!(judge("writer", &put, None, &map), refused);
    }
}
