//! Authentication and authorization: the identity of a request, and the decisions on it.
//!
//! Always holds: this module does no IO and keeps no state, so a decision is a function of the request, the
//! time and the stored objects. `identity` reads the identity that a credential proves, `impersonation` the
//! one that a caller asks for instead, if it may. `authorize` decides on a request before anything is read,
//! by a list of authorizers. `admit` decides on an object as it would be stored: the limits of a node
//! (`node_restriction`), and changes that need a right besides that of the request (`escalation`,
//! `privileges`). Both use upstream's texts, because people search for them. `denied` is the list of revoked
//! credentials, `credential` the newest one of each node.

mod attributes;
mod authorizer;
pub mod bootstrap_token;
mod bootstrapper;
pub mod certificate_request;
pub mod credential;
pub mod default_roles;
pub mod denied;
pub mod duplicates;
mod escalation;
#[cfg(test)]
mod fixture;
#[allow(clippy::module_inception, reason = "it is what the folder is named after")]
mod identity;
mod impersonation;
#[cfg(test)]
mod matrix;
mod node;
mod node_restriction;
mod privileges;
#[cfg(test)]
mod recorded;
mod references;
mod refusal;
mod returning;
mod roles;
pub mod token;

pub use attributes::{Attributes, ClusterView};
pub(crate) use authorizer::CLUSTER_INFO;
pub use authorizer::rules;
pub use identity::{
    CREDENTIAL_ID, EXPIRED_SINCE, ISSUE_NUMBER, Identity, PUBLIC_KEY, Standing, certificate_id,
};
pub use impersonation::effective;
pub(crate) use references::{of_node as references_of_node, of_pod as references_of_pod};
pub use refusal::Denied;
use refusal::{forbidden_object, forbidden_request};
pub use roles::reason;

use serde_json::Value;

/// Decides a request before anything is read or written. `identity` is `None` for a caller without a
/// certificate.
pub fn authorize(
    identity: Option<&Identity>,
    attributes: &Attributes,
    view: &dyn ClusterView,
) -> Result<(), Denied> {
    if authorizer::is_public(attributes) {
        return Ok(());
    }
    let identity = identity.ok_or_else(Denied::unauthorized)?;
    if let Standing::Expired(since) = identity.standing {
        return returning::authorize(identity, since, attributes, view);
    }
    authorizer::decide(identity, attributes, view)
        .map_err(|reason| forbidden_request(identity, attributes, &reason))
}

/// Decides whether `old` may become `new`, after `authorize` has allowed the request.
pub fn admit(
    identity: &Identity,
    attributes: &Attributes,
    old: Option<&Value>,
    new: &Value,
    view: &dyn ClusterView,
) -> Result<(), Denied> {
    if let Standing::Expired(since) = identity.standing {
        returning::admit(identity, since, new)?;
    }
    if identity.is_admin() {
        return Ok(());
    }
    let judged = match (identity.node(), identity.bootstrap_token()) {
        (Some(node), _) => node_restriction::admit(node, attributes, old, new, view),
        (None, Some(id)) => bootstrapper::admit(id, new, view),
        (None, None) => Ok(()),
    };
    judged.map_err(|reason| forbidden_object(attributes, new, reason))?;
    if identity.node().is_some() {
        return Ok(());
    }
    privileges::admit(identity, attributes, old, new, view)?;
    escalation::admit(identity, attributes, old, new, view)
}

/// Decides on the whole object that a request describes (`wanted`), including parts that this request may not
/// change.
pub fn admit_requested(
    identity: &Identity,
    attributes: &Attributes,
    old: &Value,
    wanted: &Value,
) -> Result<(), Denied> {
    let Some(node) = identity.node().filter(|_| !identity.is_admin()) else {
        return Ok(());
    };
    node_restriction::admit_requested(node, attributes, old, wanted)
        .map_err(|reason| forbidden_object(attributes, wanted, reason))
}

/// The groups of the service accounts of a namespace.
fn service_account_groups(namespace: &str) -> Vec<String> {
    vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::fixture::Objects;
    use super::*;
    use crate::kinds::NODE;
    use crate::selector::Selection;

    fn path<'a>(verb: &'a str, path: &'a str) -> Attributes<'a> {
        Attributes { verb, path, ..Attributes::default() }
    }

    #[test]
    fn anonymous_callers_get_only_health_and_version() {
        let check = |attributes: Attributes, expect: bool| {
            let result = authorize(None, &attributes, &Objects::default());
            assert_eq!(result.is_ok(), expect, "{attributes:?}");
            if let Err(denied) = result {
                assert_eq!((denied.status, denied.message.as_str()), (401, "Unauthorized"));
            }
        };
        check(path("get", "/healthz"), true);
        check(path("get", "/livez"), true);
        check(path("head", "/readyz"), true);
        check(path("get", "/readyz/ping"), false);
        check(path("get", "/readyz/"), false);
        check(path("get", "/version"), true);
        check(path("get", "/version/"), true);
        check(path("post", "/version"), false);
        check(path("get", "/healthzx"), false);
        check(path("get", "/metrics"), false);
        check(path("get", "/api"), false);
        check(path("get", "/openapi/v3"), false);
        check(path("get", "/"), false);
        check(
            Attributes { verb: "get", resource: "nodes", path: "/version", ..Attributes::default() },
            false,
        );
    }

    #[test]
    fn anonymous_callers_read_cluster_info_alone() {
        let own = Attributes {
            verb: "get",
            resource: "configmaps",
            namespace: "kube-public",
            name: "cluster-info",
            ..Attributes::default()
        };
        let node = Identity::new("system:node:a", &["system:nodes", "system:authenticated"]);
        assert_eq!(authorize(None, &own, &Objects::default()), Ok(()));
        assert_eq!(authorize(Some(&node), &own, &Objects::default()), Ok(()));
        for other in [
            Attributes { verb: "list", ..own },
            Attributes { verb: "watch", ..own },
            Attributes { verb: "update", ..own },
            Attributes { verb: "patch", ..own },
            Attributes { verb: "delete", ..own },
            Attributes { name: "", ..own },
            Attributes { name: "other", ..own },
            Attributes { namespace: "kube-system", ..own },
            Attributes { namespace: "", ..own },
            Attributes { resource: "secrets", ..own },
            Attributes { group: "x", ..own },
            Attributes { subresource: "status", ..own },
        ] {
            let refused = authorize(None, &other, &Objects::default()).unwrap_err();
            assert_eq!(refused.status, 401, "{other:?}");
        }
    }

    #[test]
    fn administrator_may_do_everything() {
        for user in ["admin", "system:node:a"] {
            administrator_may_do_all(&Identity::new(user, &["system:masters", "system:nodes"]));
        }
    }

    fn administrator_may_do_all(admin: &Identity) {
        let all = Attributes { verb: "deletecollection", resource: "nodes", ..Attributes::default() };
        assert_eq!(authorize(Some(admin), &all, &Objects::default()), Ok(()));
        assert_eq!(authorize(Some(admin), &path("get", "/metrics"), &Objects::default()), Ok(()));
        let node = serde_json::json!({"metadata": {"name": "x"}, "spec": {"configSource": {}}});
        assert_eq!(admit(admin, &all, None, &node, &Objects::default()), Ok(()));
        let status = Attributes { subresource: "status", ..all };
        let tainted = json!({"spec": {"taints": [{"key": "x"}]}});
        assert_eq!(admit_requested(admin, &status, &node, &tainted), Ok(()));
    }

    #[test]
    fn other_users_get_discovery_and_upstreams_errors() {
        let stranger = Identity::new("jane", &["system:authenticated"]);
        let check = |attributes: Attributes, expect: &str| {
            let found = authorize(Some(&stranger), &attributes, &Objects::default());
            let text = found.as_ref().map_or_else(|denied| denied.message.as_str(), |()| "");
            assert_eq!(text, expect);
            assert!(found.is_ok() || found.is_err_and(|denied| denied.status == 403));
        };
        let attributes = Attributes::default();
        check(path("get", "/api"), "");
        check(path("get", "/apis/apps/v1"), "");
        check(path("get", "/openapi/v3/api/v1"), "");
        check(path("get", "/metrics"), "forbidden: User \"jane\" cannot get path \"/metrics\"");
        check(path("get", "/apisx"), "forbidden: User \"jane\" cannot get path \"/apisx\"");
        check(
            Attributes { verb: "list", resource: "nodes", ..attributes },
            "nodes is forbidden: User \"jane\" cannot list resource \"nodes\" in API group \"\" at the cluster scope",
        );
        check(
            Attributes { verb: "get", resource: "configmaps", namespace: "default", name: "x", ..attributes },
            "configmaps \"x\" is forbidden: User \"jane\" cannot get resource \"configmaps\" in API group \"\" \
             in the namespace \"default\"",
        );
        check(
            Attributes { verb: "patch", resource: "nodes", subresource: "status", name: "n", ..attributes },
            "nodes \"n\" is forbidden: User \"jane\" cannot patch resource \"nodes/status\" in API group \"\" \
             at the cluster scope",
        );
        let group = "coordination.k8s.io";
        check(
            Attributes { verb: "list", group, resource: "leases", ..attributes },
            "leases.coordination.k8s.io is forbidden: User \"jane\" cannot list resource \"leases\" in API group \
             \"coordination.k8s.io\" at the cluster scope",
        );
        let group = "authorization.k8s.io";
        check(Attributes { verb: "create", group, resource: "selfsubjectaccessreviews", ..attributes }, "");
        for (verb, group, resource, subresource) in [
            ("get", group, "selfsubjectaccessreviews", ""),
            ("create", group, "selfsubjectaccessreviews", "status"),
            ("create", group, "subjectaccessreviews", ""),
            ("create", "", "selfsubjectaccessreviews", ""),
            ("create", "", "pods", ""),
        ] {
            let asked = Attributes { verb, group, resource, subresource, ..attributes };
            assert!(authorize(Some(&stranger), &asked, &Objects::default()).is_err(), "{asked:?}");
        }
        // a field selector can name the object for a list, but for no other request on a collection
        let selection = Selection::parse(&NODE, "", "", "metadata.name=n").unwrap();
        for (verb, named) in [("list", " \"n\""), ("watch", " \"n\""), ("deletecollection", "")] {
            let text = format!(
                "nodes{named} is forbidden: User \"jane\" cannot {verb} resource \"nodes\" in API group \"\" at the cluster scope"
            );
            check(Attributes { verb, resource: "nodes", selection: Some(&selection), ..attributes }, &text);
        }
    }

    /// A review may name any user and groups, also some that no credential proves.
    #[test]
    fn only_authenticated_users_review_themselves() {
        let group = "authorization.k8s.io";
        let review = Attributes {
            verb: "create",
            group,
            resource: "selfsubjectaccessreviews",
            ..Attributes::default()
        };
        let check = |user: &str, groups: &[&str], expect: bool| {
            for asked in [review, path("get", "/api"), path("get", "/openapi/v3")] {
                let found = authorize(Some(&Identity::new(user, groups)), &asked, &Objects::default());
                assert_eq!(found.is_ok(), expect, "{user} {groups:?} {asked:?}");
            }
            let public =
                authorize(Some(&Identity::new(user, groups)), &path("get", "/version"), &Objects::default());
            assert_eq!(public, Ok(()), "{user}");
        };
        check("jane", &["system:authenticated"], true);
        check("jane", &["people"], false);
        check("jane", &[], false);
        check("system:anonymous", &["system:unauthenticated"], false);
        check("system:node:a", &["system:nodes"], false);
        check("admin", &["system:masters"], true);
    }

    /// The history of a set decides its rollouts, so they may not write that either.
    #[test]
    fn clients_without_rights_write_no_daemon_set() {
        for (user, group) in [("jane", "people"), ("system:node:a", "system:nodes")] {
            let client = Identity::new(user, &[group, "system:authenticated"]);
            for resource in ["daemonsets", "controllerrevisions"] {
                for (verb, subresource) in [
                    ("create", ""),
                    ("update", ""),
                    ("patch", ""),
                    ("delete", ""),
                    ("deletecollection", ""),
                    ("update", "status"),
                    ("patch", "status"),
                ] {
                    let (group, namespace) = ("apps", "default");
                    let asked =
                        Attributes { verb, group, resource, subresource, namespace, ..Attributes::default() };
                    let refused = authorize(Some(&client), &asked, &Objects::default()).unwrap_err();
                    assert_eq!(refused.status, 403, "{asked:?}");
                }
            }
        }
    }

    #[test]
    fn node_is_refused_with_the_authorizers_reason() {
        let node = Identity::new("system:node:a", &["system:nodes"]);
        let get = |resource, name| Attributes { verb: "get", resource, name, ..Attributes::default() };
        assert_eq!(authorize(Some(&node), &get("nodes", "a"), &Objects::default()), Ok(()));
        let of_default = Attributes { namespace: "default", ..get("configmaps", "x") };
        let refused = authorize(Some(&node), &of_default, &Objects::default()).unwrap_err();
        assert_eq!(refused.reason, "no relationship found between node 'a' and this object");
        assert!(refused.message.ends_with(&format!(": {}", refused.reason)), "{}", refused.message);
    }

    #[test]
    fn node_restriction_judges_nodes_alone() {
        let [node, jane] = [("system:node:a", "system:nodes"), ("jane", "people")]
            .map(|(user, group)| Identity::new(user, &[group]));
        let update = Attributes { verb: "update", resource: "nodes", name: "a", ..Attributes::default() };
        let create = Attributes { verb: "create", name: "", ..update };
        let request =
            Attributes { group: "certificates.k8s.io", resource: "certificatesigningrequests", ..create };
        let old = json!({"metadata": {"name": "a"}});
        let assigns = json!([{"verbs": ["assign"], "apiGroups": [""], "resources": ["nodes/config"]}]);
        let view = Objects::default().allow("jane", "", "assigns", assigns);
        let check = |asked: &Attributes, old: Option<&Value>, new: Value, expect: &str| {
            let refused = admit(&node, asked, old, &new, &view).unwrap_err();
            assert_eq!((refused.status, refused.message.as_str()), (403, expect));
            assert_eq!(admit(&jane, asked, old, &new, &view), Ok(()));
        };
        let source = json!({"metadata": {"name": "a"}, "spec": {"configSource": {}}});
        let why = "nodes \"a\" is forbidden: node \"a\" is not allowed to update configSource";
        check(&update, Some(&old), source, why);
        let why = "nodes \"b\" is forbidden: node \"a\" is not allowed to modify node \"b\"";
        check(&create, None, json!({"metadata": {"name": "b"}}), why);
        let asked = json!({"metadata": {"name": "r"}, "spec": {"signerName": kedge_api::NODE_SIGNER}});
        let why = "certificatesigningrequests.certificates.k8s.io \"r\" is forbidden: unable to parse csr: ";
        let refused = admit(&node, &request, None, &asked, &Objects::default()).unwrap_err();
        assert!(refused.message.starts_with(why), "{}", refused.message);
        let (status, tainted) =
            (Attributes { subresource: "status", ..update }, json!({"spec": {"taints": [{"key": "x"}]}}));
        assert!(admit_requested(&node, &status, &old, &tainted).is_err());
        assert_eq!(admit_requested(&jane, &status, &old, &tainted), Ok(()));
    }

    #[test]
    fn listed_permissions_are_authorized() {
        let stranger = Identity::new("jane", &["system:authenticated"]);
        let listed = rules(&stranger, "default", &Objects::default());
        assert_eq!(listed["incomplete"], false);
        let urls = listed["nonResourceRules"][0]["nonResourceURLs"].as_array().unwrap();
        assert!(urls.contains(&json!("/api/*")) && urls.contains(&json!("/readyz")), "{urls:?}");
        for url in listed["nonResourceRules"][0]["nonResourceURLs"].as_array().unwrap() {
            let url = url.as_str().unwrap().replace('*', "x");
            assert_eq!(authorize(Some(&stranger), &path("get", &url), &Objects::default()), Ok(()), "{url}");
        }
        for rule in listed["resourceRules"].as_array().unwrap() {
            for resource in rule["resources"].as_array().unwrap() {
                let attributes = Attributes {
                    verb: rule["verbs"][0].as_str().unwrap(),
                    group: rule["apiGroups"][0].as_str().unwrap(),
                    resource: resource.as_str().unwrap(),
                    ..Attributes::default()
                };
                assert_eq!(
                    authorize(Some(&stranger), &attributes, &Objects::default()),
                    Ok(()),
                    "{resource}"
                );
            }
        }
        let of =
            |user: &str, group: &str| rules(&Identity::new(user, &[group]), "default", &Objects::default());
        assert_eq!(of("system:node:a", "system:nodes")["incomplete"], true);
        assert_eq!(of("a", "system:masters")["resourceRules"][0]["verbs"], json!(["*"]));
    }
}
