use serde_json::json;

use super::super::fixture::Objects;
use super::super::{admit as admit_all, authorize};
use super::*;
use crate::kinds::{CLUSTER_ROLE_BINDING, Kind, ROLE_BINDING};

fn rule(verbs: &[&str], groups: &[&str], resources: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": groups, "resources": resources})
}

/// The right to write roles and bindings, and further rights of a user.
fn manager(more: &[Value]) -> Value {
    let mut rules = vec![rule(&["create", "update", "patch", "delete"], &[rbac::GROUP], &["*"])];
    rules.extend_from_slice(more);
    rules.into()
}

fn pods() -> Value {
    rule(&["get", "list"], &[""], &["pods"])
}

fn view() -> Objects {
    let named = |verb: &str, resource: &str, name: &str| {
        let mut rule = rule(&[verb], &[rbac::GROUP], &[resource]);
        rule["resourceNames"] = json!([name]);
        rule
    };
    let all = json!([rule(&["*"], &["*"], &["*"]), {"verbs": ["*"], "nonResourceURLs": ["*"]}]);
    let impersonates = rule(&["impersonate"], &[""], &["users"]);
    Objects::default()
        .allow("nobody", "", "manages", manager(&[]))
        .allow("reader", "", "manages-pods", manager(&[pods()]))
        .allow("local", "shop", "manages-here", manager(&[pods()]))
        .allow("named", "", "manages-named", {
            let mut one = pods();
            one["resourceNames"] = json!(["x"]);
            manager(&[one])
        })
        .allow(
            "metrics",
            "",
            "manages-metrics",
            manager(&[json!({"verbs": ["get"], "nonResourceURLs": ["/metrics"]})]),
        )
        .allow(
            "escalator",
            "",
            "manages-escalates",
            manager(&[rule(&["escalate"], &[rbac::GROUP], &["roles"])]),
        )
        .allow("binder", "", "manages-binds", manager(&[named("bind", "clusterroles", "wide")]))
        .allow("local-binder", "shop", "binds-here", manager(&[rule(&["bind"], &[rbac::GROUP], &["*"])]))
        .allow("imp", "", "manages-impersonates", manager(&[impersonates]))
        .allow("owner", "", "everything", all)
        .with_right(&CLUSTER_ROLE, "/wide", json!({"rules": [rule(&["*"], &["*"], &["*"])]}))
        .with_right(&CLUSTER_ROLE, "/pods", json!({"rules": [pods()]}))
        .with_right(&CLUSTER_ROLE, "/nothing", json!({"rules": []}))
        .with_right(&ROLE, "shop/pods", json!({"rules": [pods()]}))
        .with_right(&ROLE, "shop/secrets", json!({"rules": [rule(&["get"], &[""], &["secrets"])]}))
}

fn role(rules: &[Value]) -> Value {
    json!({"metadata": {"name": "n"}, "rules": rules})
}

fn binding(kind: &str, name: &str) -> Value {
    json!({"metadata": {"name": "n"}, "roleRef": {"apiGroup": rbac::GROUP, "kind": kind, "name": name},
        "subjects": [{"kind": "User", "apiGroup": rbac::GROUP, "name": "jane"}]})
}

fn judge(user: &str, verb: &str, kind: &Kind, old: Option<&Value>, new: &Value) -> Result<(), Denied> {
    let identity = Identity::new(user, &["people", "system:authenticated"]);
    let namespace = if kind.namespaced { "shop" } else { "" };
    let name = if verb == "create" { "" } else { "n" };
    let request = Attributes {
        verb,
        group: kind.group,
        resource: kind.plural,
        namespace,
        name,
        ..Attributes::default()
    };
    authorize(Some(&identity), &request, &view())?;
    admit_all(&identity, &request, old, new, &view())
}

/// Thirty refused attempts, and beside them the permitted acts of the same users.
#[test]
fn nobody_grants_what_they_do_not_hold() {
    let secrets = || rule(&["get"], &[""], &["secrets"]);
    let wide = || rule(&["*"], &["*"], &["*"]);
    let (of_role, of_cluster) = (&ROLE, &CLUSTER_ROLE);
    let (bind, bind_all) = (&ROLE_BINDING, &CLUSTER_ROLE_BINDING);
    let urls = |url: &str| json!({"verbs": ["get"], "nonResourceURLs": [url]});
    let aggregated = || {
        let mut role = role(&[]);
        role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]});
        role
    };
    let labelled = || {
        let mut role = role(&[secrets()]);
        role["metadata"]["labels"] = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
        role
    };
    let named = |name: &str| {
        let mut rule = pods();
        rule["resourceNames"] = json!([name]);
        rule
    };
    let refused: Vec<(&str, &str, &Kind, Option<Value>, Value)> = vec![
        // roles with rights that their writer lacks
        ("nobody", "create", of_role, None, role(&[pods()])),
        ("nobody", "create", of_cluster, None, role(&[pods()])),
        ("reader", "create", of_role, None, role(&[secrets()])),
        ("reader", "create", of_role, None, role(&[pods(), secrets()])),
        ("reader", "create", of_role, None, role(&[rule(&["*"], &[""], &["pods"])])),
        ("reader", "create", of_role, None, role(&[rule(&["get"], &["*"], &["pods"])])),
        ("reader", "create", of_role, None, role(&[rule(&["get"], &[""], &["*"])])),
        ("reader", "create", of_role, None, role(&[rule(&["get"], &[""], &["pods/exec"])])),
        ("reader", "create", of_role, None, role(&[rule(&["get"], &[""], &["*/log"])])),
        ("reader", "create", of_cluster, None, role(&[wide()])),
        ("reader", "update", of_role, Some(role(&[pods()])), role(&[pods(), secrets()])),
        ("reader", "patch", of_cluster, Some(role(&[pods()])), role(&[secrets()])),
        // not even a harmless change of a role with more rights, which could bring them to another label
        ("reader", "patch", of_cluster, Some(role(&[secrets()])), labelled()),
        ("named", "create", of_role, None, role(&[pods()])),
        ("named", "create", of_role, None, role(&[named("y")])),
        ("metrics", "create", of_cluster, None, role(&[urls("*")])),
        ("metrics", "create", of_cluster, None, role(&[urls("/metrics/*")])),
        // a right in one namespace is none in the cluster
        ("local", "create", of_cluster, None, role(&[pods()])),
        // the right to escalate roles is none to escalate ClusterRoles
        ("escalator", "create", of_cluster, None, role(&[secrets()])),
        // aggregation
        ("reader", "create", of_cluster, None, aggregated()),
        ("reader", "update", of_cluster, Some(aggregated()), role(&[])),
        ("reader", "patch", of_cluster, Some(role(&[])), aggregated()),
        // bindings
        ("nobody", "create", bind, None, binding("ClusterRole", "pods")),
        ("reader", "create", bind, None, binding("ClusterRole", "wide")),
        ("reader", "create", bind_all, None, binding("ClusterRole", "wide")),
        ("reader", "create", bind, None, binding("Role", "secrets")),
        // new subjects of a binding get what the role has
        ("reader", "patch", bind_all, Some(binding("ClusterRole", "wide")), {
            let mut more = binding("ClusterRole", "wide");
            more["subjects"][0]["name"] = "reader".into();
            more
        }),
        ("reader", "create", bind, None, binding("ClusterRole", "missing")),
        ("local", "create", bind_all, None, binding("ClusterRole", "pods")),
        ("binder", "create", bind_all, None, binding("ClusterRole", "everything")),
        ("local-binder", "create", bind_all, None, binding("ClusterRole", "pods")),
        // a caller that may impersonate users does not hold their rights
        ("imp", "create", bind_all, None, binding("ClusterRole", "wide")),
    ];
    assert!(refused.len() >= 30);
    for (user, verb, kind, old, new) in refused {
        let found = judge(user, verb, kind, old.as_ref(), &new);
        assert!(found.is_err(), "{user} may {verb} {} {new}", kind.plural);
        // an administrator may
        let admin = Identity::new("admin", &["system:masters"]);
        let request = Attributes { verb, group: kind.group, resource: kind.plural, ..Attributes::default() };
        assert_eq!(admit_all(&admin, &request, old.as_ref(), &new, &view()), Ok(()));
        if kind.kind.ends_with("Role") || new["roleRef"]["name"] != "missing" {
            assert_eq!(judge("owner", verb, kind, old.as_ref(), &new), Ok(()), "{new}");
        }
    }
    let allowed: Vec<(&str, &str, &Kind, Option<Value>, Value)> = vec![
        ("nobody", "create", of_role, None, role(&[])),
        ("reader", "create", of_role, None, role(&[pods()])),
        ("reader", "create", of_cluster, None, role(&[rule(&["list"], &[""], &["pods"])])),
        ("reader", "update", of_role, Some(role(&[secrets()])), role(&[pods()])),
        ("local", "create", of_role, None, role(&[pods()])),
        ("named", "create", of_role, None, role(&[named("x")])),
        ("metrics", "create", of_cluster, None, role(&[urls("/metrics")])),
        ("escalator", "create", of_role, None, role(&[wide()])),
        ("reader", "create", bind, None, binding("ClusterRole", "pods")),
        ("reader", "create", bind_all, None, binding("ClusterRole", "pods")),
        ("reader", "create", bind, None, binding("Role", "pods")),
        ("nobody", "create", bind_all, None, binding("ClusterRole", "nothing")),
        ("local", "create", bind, None, binding("ClusterRole", "pods")),
        ("binder", "create", bind_all, None, binding("ClusterRole", "wide")),
        ("binder", "create", bind, None, binding("ClusterRole", "wide")),
        ("local-binder", "create", bind, None, binding("ClusterRole", "missing")),
    ];
    for (user, verb, kind, old, new) in allowed {
        assert_eq!(
            judge(user, verb, kind, old.as_ref(), &new),
            Ok(()),
            "{user} {verb} {} {new}",
            kind.plural
        );
    }
}

#[test]
fn refusal_is_in_upstreams_words() {
    let message = |user: &str, kind: &Kind, new: &Value| judge(user, "create", kind, None, new).unwrap_err();
    let wanted = role(&[rule(&["get", "list"], &["", "apps"], &["secrets"])]);
    assert_eq!(
        message("reader", &ROLE, &wanted).message,
        "roles.rbac.authorization.k8s.io \"n\" is forbidden: user \"reader\" (groups=[\"people\" \"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}\n\
         {APIGroups:[\"apps\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}"
    );
    let refused = message("reader", &ROLE_BINDING, &binding("ClusterRole", "missing"));
    assert_eq!(
        (refused.status, &*refused.message),
        (404, "rolebindings.rbac.authorization.k8s.io \"missing\" not found")
    );
    let mut whole = role(&[]);
    whole["aggregationRule"] = json!({"clusterRoleSelectors": [{}]});
    assert_eq!(
        message("reader", &CLUSTER_ROLE, &whole).message,
        "clusterroles.rbac.authorization.k8s.io \"n\" is forbidden: must have cluster-admin privileges to use the aggregationRule"
    );
}

/// A collector of garbage needs no rights of the role.
#[test]
fn owner_and_finalizer_may_be_removed_by_others() {
    let mut old = role(&[rule(&["get"], &[""], &["secrets"])]);
    old["metadata"]["finalizers"] = json!(["example.com/x"]);
    old["metadata"]["ownerReferences"] = json!([{"name": "o"}]);
    let mut new = old.clone();
    new["metadata"]["finalizers"] = json!([]);
    assert_eq!(judge("reader", "patch", &ROLE, Some(&old), &new), Ok(()));
    new["metadata"]["labels"] = json!({"a": "b"});
    assert!(judge("reader", "patch", &ROLE, Some(&old), &new).is_err());
}

#[test]
fn impersonated_identity_grants_by_its_own_rights() {
    let imp = Identity::new("imp", &["system:authenticated"]);
    let headers = [("impersonate-user", &b"reader"[..])];
    let reader = super::super::effective(Some(&imp), headers.into_iter(), &view()).unwrap().unwrap();
    let request = Attributes {
        verb: "create",
        group: ROLE.group,
        resource: "roles",
        namespace: "shop",
        ..Attributes::default()
    };
    assert_eq!(admit_all(&reader, &request, None, &role(&[pods()]), &view()), Ok(()));
    let secrets = role(&[rule(&["get"], &[""], &["secrets"])]);
    assert!(admit_all(&reader, &request, None, &secrets, &view()).is_err());
    let masters = [("impersonate-user", &b"reader"[..]), ("impersonate-group", b"system:masters")];
    assert!(super::super::effective(Some(&imp), masters.into_iter(), &view()).is_err());
}
