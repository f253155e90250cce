//! The authorizer of roles and bindings.
//!
//! Always holds: a node is never judged by it, so no binding widens the rights of a stolen device. Neither is
//! a caller without a credential, whatever is bound to its group. Both rules are narrower than upstream. Left
//! to others: the meaning of a rule, and finding the bindings of a caller (`state::Rights`).

use serde_json::Value;

use super::attributes::{Attributes, ClusterView};
use super::authorizer::{Authorizer, Opinion};
use super::identity::Identity;

/// Upstream's group of callers without a credential.
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// See the module.
pub(super) struct Roles;

impl Authorizer for Roles {
    fn judge(&self, identity: &Identity, request: &Attributes, view: &dyn ClusterView) -> Opinion {
        let mut opinion = Opinion::NoOpinion(String::new());
        if !applies_to(identity) {
            return opinion;
        }
        view.rights(&mut |rights| {
            if rights.grant(&identity.user, &identity.groups, request).is_some() {
                opinion = Opinion::Allow;
                return;
            }
            let missing = rights.unresolved(&identity.user, &identity.groups, request.namespace);
            opinion = Opinion::NoOpinion(match missing.as_slice() {
                [] => String::new(),
                [one] => format!("RBAC: {one}"),
                many => format!("RBAC: [{}]", many.join(", ")),
            });
        });
        opinion
    }
}

fn applies_to(identity: &Identity) -> bool {
    identity.node().is_none() && !identity.groups.iter().any(|group| group == UNAUTHENTICATED)
}

/// The binding that allows a request, in upstream's words; empty if none is needed or none does.
pub fn reason(identity: &Identity, request: &Attributes, view: &dyn ClusterView) -> String {
    let mut found = String::new();
    if applies_to(identity) && !identity.is_admin() {
        view.rights(&mut |rights| {
            if let Some(grant) = rights.grant(&identity.user, &identity.groups, request) {
                found = format!("RBAC: allowed by {grant}");
            }
        });
    }
    found
}

/// The rules of a caller in a namespace, and whether each is about paths.
pub(super) fn rules(identity: &Identity, namespace: &str, view: &dyn ClusterView) -> Vec<(bool, Value)> {
    let mut found = Vec::new();
    if applies_to(identity) {
        view.rights(&mut |rights| {
            let rules = rights.rules(&identity.user, &identity.groups, namespace);
            found = rules.map(|rule| (rule.is_for_paths(), rule.to_value())).collect();
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::Objects;
    use super::super::{authorize, rules as listed};
    use super::*;
    use crate::kinds::CLUSTER_ROLE_BINDING;

    fn reads(resource: &str) -> Value {
        json!([{"verbs": ["get"], "apiGroups": [""], "resources": [resource]}])
    }

    fn get<'a>(resource: &'a str, namespace: &'a str) -> Attributes<'a> {
        Attributes { verb: "get", resource, namespace, name: "x", ..Attributes::default() }
    }

    #[test]
    fn binding_allows_its_user_in_its_namespace() {
        let view = Objects::default().allow("jane", "shop", "reads", reads("pods"));
        let check = |user: &str, request: &Attributes, expect: bool| {
            let identity = Identity::new(user, &["system:authenticated"]);
            assert_eq!(authorize(Some(&identity), request, &view).is_ok(), expect, "{user} {request:?}");
        };
        check("jane", &get("pods", "shop"), true);
        check("jane", &get("pods", "other"), false);
        check("jane", &get("pods", ""), false);
        check("jane", &get("secrets", "shop"), false);
        check("joe", &get("pods", "shop"), false);
    }

    /// Whatever is bound to its user, to its group or to everybody.
    #[test]
    fn node_is_never_judged_by_bindings() {
        let subjects = json!([{"kind": "Group", "name": "system:nodes"},
            {"kind": "Group", "name": "system:authenticated"}, {"kind": "User", "name": "system:node:a"}]);
        let binding = json!({"roleRef": {"kind": "ClusterRole", "name": "all"}, "subjects": subjects});
        let all = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
            {"verbs": ["*"], "nonResourceURLs": ["*"]}]);
        let view = Objects::default().allow("x", "", "all", all).with_right(
            &CLUSTER_ROLE_BINDING,
            "/everybody",
            binding,
        );
        let node = Identity::new("system:node:a", &["system:nodes", "system:authenticated"]);
        let jane = Identity::new("jane", &["system:authenticated"]);
        let metrics = Attributes { verb: "get", path: "/metrics", ..Attributes::default() };
        for request in [get("secrets", "kube-system"), metrics] {
            assert!(authorize(Some(&jane), &request, &view).is_ok());
            assert!(authorize(Some(&node), &request, &view).is_err());
            assert_eq!(reason(&node, &request, &view), "");
        }
        assert_eq!(listed(&node, "shop", &view)["resourceRules"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn caller_without_a_credential_has_no_roles() {
        let group = json!([{"kind": "Group", "name": "system:unauthenticated"}]);
        let binding = json!({"roleRef": {"kind": "ClusterRole", "name": "reads"}, "subjects": group});
        let view = Objects::default().allow("x", "", "reads", reads("pods")).with_right(
            &CLUSTER_ROLE_BINDING,
            "/nobody",
            binding,
        );
        let nobody = Identity::new("system:anonymous", &["system:unauthenticated"]);
        assert!(authorize(Some(&nobody), &get("pods", ""), &view).is_err());
        assert_eq!(authorize(None, &get("pods", ""), &view).unwrap_err().status, 401);
    }

    #[test]
    fn refusal_names_the_role_that_is_missing() {
        let user = json!([{"kind": "User", "name": "jane"}]);
        let binding =
            |name: &str| json!({"roleRef": {"kind": "ClusterRole", "name": name}, "subjects": user});
        let view = Objects::default().with_right(&CLUSTER_ROLE_BINDING, "/one", binding("gone"));
        let jane = Identity::new("jane", &[]);
        let why = |view: &Objects| authorize(Some(&jane), &get("pods", ""), view).unwrap_err().reason;
        assert_eq!(why(&view), "RBAC: clusterrole.rbac.authorization.k8s.io \"gone\" not found");
        let view = view.with_right(&CLUSTER_ROLE_BINDING, "/two", binding("lost"));
        let both = "RBAC: [clusterrole.rbac.authorization.k8s.io \"gone\" not found, clusterrole.rbac.authorization.k8s.io \"lost\" not found]";
        assert_eq!(why(&view), both);
    }

    #[test]
    fn reason_names_binding_role_and_subject() {
        let view = Objects::default().allow("jane", "shop", "reads", reads("pods")).allow(
            "joe",
            "",
            "reads",
            reads("pods"),
        );
        let why = |user: &str| reason(&Identity::new(user, &[]), &get("pods", "shop"), &view);
        let jane =
            "RBAC: allowed by RoleBinding \"jane-reads/shop\" of ClusterRole \"reads\" to User \"jane\"";
        assert_eq!(why("jane"), jane);
        let joe =
            "RBAC: allowed by ClusterRoleBinding \"joe-reads\" of ClusterRole \"reads\" to User \"joe\"";
        assert_eq!(why("joe"), joe);
        assert_eq!(why("jim"), "");
    }

    #[test]
    fn listed_rules_are_those_of_the_namespace() {
        let metrics = json!([{"verbs": ["get"], "nonResourceURLs": ["/metrics"]}]);
        let view = Objects::default().allow("jane", "shop", "reads", reads("pods")).allow(
            "jane",
            "",
            "metrics",
            metrics.clone(),
        );
        let jane = Identity::new("jane", &[]);
        let count =
            |namespace: &str, list: &str| listed(&jane, namespace, &view)[list].as_array().unwrap().len();
        assert_eq!((count("shop", "resourceRules"), count("other", "resourceRules")), (3, 2));
        assert_eq!((count("shop", "nonResourceRules"), count("other", "nonResourceRules")), (2, 2));
        assert_eq!(listed(&jane, "shop", &view)["resourceRules"][2], reads("pods")[0]);
        assert_eq!(listed(&jane, "shop", &view)["nonResourceRules"][1], metrics[0]);
    }
}
