//! The roles and bindings that every hub has: upstream's that mean something here, and Kedge's own.
//!
//! Always holds: each carries upstream's label and annotation, so that a start adds missing rules and subjects
//! unless the annotation is `false` ([`complete`]). Nothing that somebody added is taken away. What differs
//! from upstream: `edit` and `admin` do not write DaemonSets, which run on every node and are an
//! administrator's. Left to others: writing them (`controllers::cluster_roles`).

use serde_json::{Value, json};

use crate::kinds::rbac::GROUP;
use crate::kinds::rules::{entries, list};
use crate::state::{Rule, not_covered};
use crate::value::text;

/// Annotation of a default role or binding; `false` keeps a start from completing it.
pub const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];
const ALL: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const AUTHENTICATED: &str = kedge_api::AUTHENTICATED_GROUP;

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

fn named(group: &str, resource: &str, names: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "resourceNames": names, "verbs": verbs})
}

fn paths(urls: &[&str]) -> Value {
    json!({"nonResourceURLs": urls, "verbs": ["get"]})
}

fn role(name: &str, rules: Vec<Value>) -> Value {
    json!({"metadata": meta(name), "rules": rules})
}

fn meta(name: &str) -> Value {
    json!({"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {AUTOUPDATE: "true"}})
}

/// A role with the label by which others take its rules.
fn part_of(mut role: Value, whole: &str) -> Value {
    role["metadata"]["labels"][format!("{GROUP}/aggregate-to-{whole}")] = "true".into();
    role
}

/// A role that takes the rules of all roles with its label.
fn whole(name: &str) -> Value {
    let label = format!("{GROUP}/aggregate-to-{name}");
    json!({"metadata": meta(name), "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]}})
}

/// All default ClusterRoles, aggregated ones with their rules, in the order of their names.
pub fn cluster_roles() -> Vec<Value> {
    let mut roles = plain_roles();
    // each takes the rules of the one before
    let wholes = ["view", "edit", "admin"];
    roles.extend([part_of(whole("view"), "edit"), part_of(whole("edit"), "admin"), whole("admin")]);
    roles.sort_by(|a, b| text(a, &["metadata", "name"]).cmp(text(b, &["metadata", "name"])));
    for name in wholes {
        let Some(at) = roles.iter().position(|role| role["metadata"]["name"] == name) else { continue };
        if let Some(rules) = aggregated(&roles[at], &roles) {
            roles[at]["rules"] = rules;
        }
    }
    roles
}

fn plain_roles() -> Vec<Value> {
    let certificates = "certificates.k8s.io";
    let of_requests = |what: &str| {
        let resource = format!("certificatesigningrequests/{what}");
        role(
            &format!("system:{certificates}:certificatesigningrequests:{what}"),
            vec![rule(&[certificates], &[&resource], &["create"])],
        )
    };
    let approver = |name: &str, signer: &str| {
        role(
            &format!("system:{certificates}:{name}-approver"),
            vec![named(certificates, "signers", &[signer], &["approve"])],
        )
    };
    vec![
        role(
            "cluster-admin",
            vec![rule(&["*"], &["*"], &["*"]), json!({"nonResourceURLs": ["*"], "verbs": ["*"]})],
        ),
        role(
            "system:discovery",
            vec![paths(&[
                "/api",
                "/api/*",
                "/apis",
                "/apis/*",
                "/healthz",
                "/livez",
                "/openapi",
                "/openapi/*",
                "/readyz",
                "/version",
                "/version/",
            ])],
        ),
        role(
            "system:public-info-viewer",
            vec![paths(&["/healthz", "/livez", "/readyz", "/version", "/version/"])],
        ),
        role(
            "system:service-account-issuer-discovery",
            vec![paths(&[
                "/.well-known/openid-configuration",
                "/.well-known/openid-configuration/",
                "/openid/v1/jwks",
                "/openid/v1/jwks/",
            ])],
        ),
        role(
            "system:basic-user",
            vec![
                rule(
                    &["authorization.k8s.io"],
                    &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
                    &["create"],
                ),
                rule(&["authentication.k8s.io"], &["selfsubjectreviews"], &["create"]),
            ],
        ),
        role(
            "system:auth-delegator",
            vec![
                rule(&["authentication.k8s.io"], &["tokenreviews"], &["create"]),
                rule(&["authorization.k8s.io"], &["subjectaccessreviews"], &["create"]),
            ],
        ),
        role(
            "system:monitoring",
            vec![paths(&[
                "/healthz",
                "/healthz/*",
                "/livez",
                "/livez/*",
                "/metrics",
                "/metrics/slis",
                "/readyz",
                "/readyz/*",
            ])],
        ),
        role(
            "system:node-bootstrapper",
            vec![rule(&[certificates], &["certificatesigningrequests"], &["create", "get", "list", "watch"])],
        ),
        role(
            "system:node-problem-detector",
            vec![
                rule(&[""], &["nodes"], &["get"]),
                rule(&[""], &["nodes/status"], &["patch"]),
                rule(&["", "events.k8s.io"], &["events"], &["create", "patch", "update"]),
            ],
        ),
        of_requests("nodeclient"),
        of_requests("selfnodeclient"),
        approver("kube-apiserver-client", kedge_api::CLIENT_SIGNER),
        approver("kube-apiserver-client-kubelet", kedge_api::NODE_SIGNER),
        role(
            "system:kubelet-api-admin",
            vec![
                rule(&[""], &["nodes"], READ),
                rule(&[""], &["nodes"], &["proxy"]),
                rule(
                    &[""],
                    &[
                        "nodes/log",
                        "nodes/metrics",
                        "nodes/proxy",
                        "nodes/stats",
                        "nodes/configz",
                        "nodes/healthz",
                        "nodes/pods",
                    ],
                    &["*"],
                ),
            ],
        ),
        part_of(role("system:aggregate-to-view", view_rules()), "view"),
        part_of(role("system:aggregate-to-edit", edit_rules()), "edit"),
        part_of(
            role(
                "system:aggregate-to-admin",
                vec![
                    rule(&["authorization.k8s.io"], &["localsubjectaccessreviews"], &["create"]),
                    rule(&[GROUP], &["rolebindings", "roles"], ALL),
                ],
            ),
            "admin",
        ),
        role("kedge:fleet-view", fleet_view_rules()),
        role("kedge:operator", operator_rules()),
        role(
            "kedge:assign",
            vec![
                rule(&[""], &["nodes"], &["get", "list", "watch", "patch", "update"]),
                rule(&[""], &["nodes/config"], &["assign"]),
                rule(&["fleet.kedge.dev"], &["configrollouts"], ALL),
            ],
        ),
    ]
}

fn view_rules() -> Vec<Value> {
    vec![
        rule(
            &[""],
            &[
                "configmaps",
                "endpoints",
                "persistentvolumeclaims",
                "persistentvolumeclaims/status",
                "pods",
                "replicationcontrollers",
                "replicationcontrollers/scale",
                "serviceaccounts",
                "services",
                "services/status",
            ],
            READ,
        ),
        rule(
            &[""],
            &[
                "bindings",
                "limitranges",
                "namespaces/status",
                "pods/log",
                "pods/status",
                "replicationcontrollers/status",
                "resourcequotas",
                "resourcequotas/status",
            ],
            READ,
        ),
        rule(&[""], &["namespaces"], READ),
        rule(&["", "events.k8s.io"], &["events"], READ),
        rule(&["discovery.k8s.io"], &["endpointslices"], READ),
        rule(
            &["apps"],
            &[
                "controllerrevisions",
                "daemonsets",
                "daemonsets/status",
                "deployments",
                "deployments/scale",
                "deployments/status",
                "replicasets",
                "replicasets/scale",
                "replicasets/status",
                "statefulsets",
                "statefulsets/scale",
                "statefulsets/status",
            ],
            READ,
        ),
        rule(&["autoscaling"], &["horizontalpodautoscalers", "horizontalpodautoscalers/status"], READ),
        rule(&["batch"], &["cronjobs", "cronjobs/status", "jobs", "jobs/status"], READ),
        rule(&["policy"], &["poddisruptionbudgets", "poddisruptionbudgets/status"], READ),
        rule(&["networking.k8s.io"], &["ingresses", "ingresses/status", "networkpolicies"], READ),
        // upstream's metrics server adds this role
        rule(&["metrics.k8s.io"], &["pods"], READ),
    ]
}

/// Kinds that the hub does not serve are upstream's, too: a holder of the role grants rights to them as
/// upstream, so the roles of a chart can be created.
fn edit_rules() -> Vec<Value> {
    vec![
        rule(
            &[""],
            &["pods/attach", "pods/exec", "pods/portforward", "pods/proxy", "secrets", "services/proxy"],
            READ,
        ),
        rule(&[""], &["serviceaccounts"], &["impersonate"]),
        rule(&[""], &["pods", "pods/attach", "pods/exec", "pods/portforward", "pods/proxy"], WRITE),
        rule(&[""], &["pods/eviction"], &["create"]),
        rule(
            &[""],
            &[
                "configmaps",
                "persistentvolumeclaims",
                "replicationcontrollers",
                "replicationcontrollers/scale",
                "secrets",
                "serviceaccounts",
                "services",
                "services/proxy",
            ],
            WRITE,
        ),
        rule(&[""], &["serviceaccounts/token"], &["create"]),
        rule(&["", "events.k8s.io"], &["events"], WRITE),
        rule(
            &["apps"],
            &[
                "deployments",
                "deployments/rollback",
                "deployments/scale",
                "replicasets",
                "replicasets/scale",
                "statefulsets",
                "statefulsets/scale",
            ],
            WRITE,
        ),
        rule(&["autoscaling"], &["horizontalpodautoscalers"], WRITE),
        rule(&["batch"], &["cronjobs", "jobs"], WRITE),
        rule(&["policy"], &["poddisruptionbudgets"], WRITE),
        rule(&["networking.k8s.io"], &["ingresses", "networkpolicies"], WRITE),
        rule(&["coordination.k8s.io"], &["leases"], ALL),
    ]
}

/// Shows which pods run where, and their state: neither Secrets nor ConfigMaps, which have passwords in
/// practice.
fn fleet_view_rules() -> Vec<Value> {
    vec![
        rule(&[""], &["namespaces", "nodes", "pods", "events"], READ),
        rule(&["events.k8s.io"], &["events"], READ),
        rule(&["apps"], &["controllerrevisions", "daemonsets"], READ),
        rule(&["coordination.k8s.io"], &["leases"], READ),
        rule(&["fleet.kedge.dev"], &["configrollouts"], READ),
        rule(&["metrics.k8s.io"], &["nodes", "pods"], READ),
        paths(&["/fleet", "/fleet/*", "/kedge/nodes", "/kedge/rollouts/*"]),
    ]
}

/// Rolls out and reads logs. No exec, which is root on a node, and no approval of certificates, which is the
/// identity of any node.
fn operator_rules() -> Vec<Value> {
    let mut rules = fleet_view_rules();
    rules.extend([
        rule(&[""], &["pods/log"], &["get"]),
        rule(&["apps"], &["daemonsets"], &["patch", "update"]),
        rule(&["fleet.kedge.dev"], &["configrollouts"], &["patch", "update"]),
    ]);
    rules
}

/// All default ClusterRoleBindings.
pub fn cluster_role_bindings() -> Vec<Value> {
    let bind = |role: &str, groups: &[&str]| {
        let subjects: Vec<Value> =
            groups.iter().map(|group| json!({"kind": "Group", "apiGroup": GROUP, "name": group})).collect();
        json!({"metadata": meta(role), "subjects": subjects,
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role}})
    };
    vec![
        bind("cluster-admin", &[kedge_api::ADMIN_GROUP]),
        bind("system:basic-user", &[AUTHENTICATED]),
        bind("system:discovery", &[AUTHENTICATED]),
        bind("system:monitoring", &["system:monitoring"]),
        bind("system:public-info-viewer", &[AUTHENTICATED, "system:unauthenticated"]),
        bind("system:service-account-issuer-discovery", &["system:serviceaccounts"]),
    ]
}

/// Adds what a stored role or binding lacks of its default; returns whether it lacked anything. One that is
/// kept from updates, or whose binding names another role, stays as it is.
pub fn complete(stored: &mut Value, wanted: &Value) -> bool {
    if text(stored, &["metadata", "annotations", AUTOUPDATE]) == "false"
        || stored["roleRef"] != wanted["roleRef"]
    {
        return false;
    }
    let before = stored.clone();
    for map in ["labels", "annotations"] {
        for (key, value) in entries(&wanted["metadata"], map) {
            if text(stored, &["metadata", map, key]).is_empty() {
                stored["metadata"][map][key] = value.clone();
            }
        }
    }
    for subject in list(wanted, "subjects") {
        if !list(stored, "subjects").contains(subject) {
            push(stored, "subjects", subject.clone());
        }
    }
    match wanted.get("aggregationRule") {
        Some(rule) => {
            for selector in list(rule, "clusterRoleSelectors") {
                if !list(&stored["aggregationRule"], "clusterRoleSelectors").contains(selector) {
                    push(&mut stored["aggregationRule"], "clusterRoleSelectors", selector.clone());
                }
            }
        }
        None => {
            for rule in not_covered(&Rule::read_all(stored), &Rule::read_all(wanted)) {
                push(stored, "rules", rule.to_value());
            }
        }
    }
    *stored != before
}

fn push(of: &mut Value, field: &str, item: Value) {
    match of[field].as_array_mut() {
        Some(items) => items.push(item),
        None => of[field] = json!([item]),
    }
}

/// Whether a label selector selects an object with these labels.
fn selects(selector: &Value, labels: &Value) -> bool {
    let has = |key: &str| labels.get(key).and_then(Value::as_str);
    let equal = entries(selector, "matchLabels").all(|(key, value)| has(key) == value.as_str());
    equal
        && list(selector, "matchExpressions").iter().all(|rule| {
            let found = has(text(rule, &["key"]));
            let is_one =
                || found.is_some_and(|found| list(rule, "values").iter().any(|value| value == found));
            match text(rule, &["operator"]) {
                "In" => is_one(),
                "NotIn" => !is_one(),
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

/// The rules of an aggregated role, from all ClusterRoles in the order of their names; `None` for another
/// role.
pub fn aggregated(role: &Value, all: &[Value]) -> Option<Value> {
    let aggregation = role.get("aggregationRule").filter(|rule| !rule.is_null())?;
    let mut rules: Vec<Value> = Vec::new();
    for selector in list(aggregation, "clusterRoleSelectors") {
        let name = |role: &Value| text(role, &["metadata", "name"]).to_owned();
        let others = all.iter().filter(|other| name(other) != name(role));
        for other in others.filter(|other| selects(selector, &other["metadata"]["labels"])) {
            for rule in list(other, "rules") {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    Some(rules.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{CLUSTER_ROLE, CLUSTER_ROLE_BINDING, served};
    use crate::requests::{Fresh, new_object};

    const FRESH: Fresh = Fresh { now: time::macros::datetime!(2026-11-30 12:00:00 UTC), random: [7; 21] };

    fn find<'a>(roles: &'a [Value], name: &str) -> &'a Value {
        roles.iter().find(|role| text(role, &["metadata", "name"]) == name).unwrap()
    }

    #[test]
    fn defaults_are_valid_and_already_aggregated() {
        let roles = cluster_roles();
        for value in &roles {
            let made = new_object(&CLUSTER_ROLE, value.clone(), &FRESH).unwrap();
            assert_eq!(made["rules"], value["rules"]);
            if let Some(rules) = aggregated(value, &roles) {
                assert_eq!(rules, value["rules"], "{}", value["metadata"]["name"]);
            }
            assert!(!list(value, "rules").is_empty(), "{value}");
            assert_eq!(value["metadata"]["labels"]["kubernetes.io/bootstrapping"], "rbac-defaults");
        }
        for value in cluster_role_bindings() {
            let made = new_object(&CLUSTER_ROLE_BINDING, value.clone(), &FRESH).unwrap();
            assert_eq!(made["subjects"], value["subjects"]);
            find(&roles, text(&value, &["roleRef", "name"]));
        }
    }

    /// Seed 001: they run on every node, and are an administrator's.
    #[test]
    fn only_administrators_write_daemon_sets_and_nodes() {
        for name in ["view", "edit", "admin", "kedge:fleet-view"] {
            let roles = cluster_roles();
            for rule in Rule::read_all(find(&roles, name)) {
                for (group, resource) in [("apps", "daemonsets"), ("", "nodes")] {
                    for verb in WRITE {
                        let asked =
                            crate::identity::Attributes { verb, group, resource, ..Default::default() };
                        assert!(!rule.allows(&asked), "{name} {asked:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn default_role_gets_what_it_lacks() {
        let roles = cluster_roles();
        let check = |name: &str, change: &dyn Fn(&mut Value), expect: bool| {
            let wanted = find(&roles, name);
            let mut stored = wanted.clone();
            change(&mut stored);
            let own = stored.clone();
            assert_eq!(complete(&mut stored, wanted), expect, "{name} {stored}");
            assert!(
                not_covered(&Rule::read_all(&stored), &Rule::read_all(&own)).is_empty(),
                "nothing is taken"
            );
            assert!(!expect || not_covered(&Rule::read_all(&stored), &Rule::read_all(wanted)).is_empty());
        };
        check("system:monitoring", &|_| {}, false);
        check("system:monitoring", &|role| role["rules"] = Value::Null, true);
        check("system:monitoring", &|role| role["metadata"]["labels"] = Value::Null, true);
        check("system:basic-user", &|role| role["rules"] = json!([role["rules"][0]]), true);
        check("system:basic-user", &|role| push(role, "rules", rule(&[""], &["pods"], READ)), false);
        let kept = |role: &mut Value| {
            role["rules"] = Value::Null;
            role["metadata"]["annotations"][AUTOUPDATE] = "false".into();
        };
        check("system:monitoring", &kept, false);
        let binding = &cluster_role_bindings()[0];
        let mut stored = binding.clone();
        stored["subjects"] = Value::Null;
        assert!(complete(&mut stored, binding));
        assert_eq!(stored, *binding);
        stored["subjects"] = Value::Null;
        stored["roleRef"]["name"] = "view".into();
        assert!(!complete(&mut stored, binding), "it names another role");
    }

    #[test]
    fn aggregated_role_has_the_rules_of_all_with_its_label() {
        let make = |name: &str, label: &str, verb: &str| {
            json!({"metadata": {"name": name, "labels": {"part": label}},
                "rules": [rule(&[""], &["pods"], &["get"]), rule(&[""], &["pods"], &[verb])]})
        };
        let all = [make("a", "1", "list"), make("b", "2", "watch"), make("c", "3", "patch")];
        let check = |selector: Value, expect: &[&str]| {
            let role =
                json!({"metadata": {"name": "whole"}, "aggregationRule": {"clusterRoleSelectors": selector}});
            let rules = aggregated(&role, &all).unwrap();
            let rules = rules.as_array().unwrap();
            let verbs: Vec<&str> = rules.iter().map(|rule| rule["verbs"][0].as_str().unwrap()).collect();
            assert_eq!(verbs, expect);
        };
        check(json!([{"matchLabels": {"part": "1"}}]), &["get", "list"]);
        check(
            json!([{"matchLabels": {"part": "2"}}, {"matchLabels": {"part": "1"}}]),
            &["get", "watch", "list"],
        );
        let rule = |operator: &str| json!([{"matchExpressions": [{"key": "part", "operator": operator, "values": ["1", "3"]}]}]);
        check(rule("In"), &["get", "list", "patch"]);
        check(rule("NotIn"), &["get", "watch"]);
        check(rule("Exists"), &["get", "list", "watch", "patch"]);
        check(rule("DoesNotExist"), &[]);
        check(json!([{}]), &["get", "list", "watch", "patch"]);
        assert_eq!(aggregated(&all[0], &all), None);
    }

    /// A rule for a kind that the hub serves names it as the hub does.
    #[test]
    fn rules_of_kedges_own_roles_name_served_kinds() {
        for role in
            cluster_roles().iter().filter(|role| text(role, &["metadata", "name"]).starts_with("kedge:"))
        {
            for rule in list(role, "rules") {
                for resource in list(rule, "resources") {
                    let plural = resource.as_str().unwrap().split('/').next().unwrap();
                    let group = rule["apiGroups"][0].as_str().unwrap();
                    let known = served().any(|kind| kind.plural == plural && kind.group == group);
                    assert!(
                        known || matches!(group, "fleet.kedge.dev" | "metrics.k8s.io"),
                        "{group} {plural}"
                    );
                }
            }
        }
    }
}
