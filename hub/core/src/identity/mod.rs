//! Authentication and authorization: identities from client certificates, and one decision per request.
//!
//! Holds: nothing here does IO or keeps state, so a decision is a function of the request and of the stored objects.
//! There are three classes of callers: administrators (the group `system:masters`) may do everything; a node may use its
//! own objects (`node`); anyone else may read health and version, and, if authenticated, discovery.
//! `authorize` decides on a request before anything is read; `admit` decides on an object as it would be stored. Both use
//! upstream's texts, because people search for them. Not built yet: roles (RBAC objects are not served), revocation of a
//! credential before it expires, and authorizing an open watch again (the server ends every watch after some time).

mod attributes;
pub mod certificate_request;
mod node;

pub use attributes::{Attributes, ClusterView};

use serde_json::{Value, json};
use x509_parser::prelude::{FromDer, X509Certificate};

use attributes::requested_name;
use kedge_api::{ADMIN_GROUP, AUTHENTICATED_GROUP, NODE_GROUP, NODE_USER_PREFIX};

/// More organizations than any certificate of ours has; further ones are ignored.
const MAX_GROUPS: usize = 32;

/// A caller with a certificate of our own CA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate's common name, for example `system:node:edge-1`.
    pub user: String,
    /// The certificate's organizations, and `system:authenticated`.
    pub groups: Vec<String>,
}

impl Identity {
    /// Reads the identity from a certificate that TLS has already verified. `None` if it names no user or more than
    /// one: such a caller counts as anonymous.
    pub fn from_client_certificate(der: &[u8]) -> Option<Identity> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let mut names = subject.iter_common_name();
        let user = names.next()?.as_str().ok()?.to_owned();
        if user.is_empty() || names.next().is_some() {
            return None;
        }
        let mut groups = Vec::new();
        for organization in subject.iter_organization().take(MAX_GROUPS) {
            groups.push(organization.as_str().ok()?.to_owned());
        }
        groups.push(AUTHENTICATED_GROUP.to_owned());
        Some(Identity { user, groups })
    }

    /// Whether this caller is an administrator.
    pub fn is_admin(&self) -> bool {
        self.in_group(ADMIN_GROUP)
    }

    /// The name of the node, if this caller is one: by user name and group, both needed, as upstream.
    pub fn node(&self) -> Option<&str> {
        let name = self.user.strip_prefix(NODE_USER_PREFIX).filter(|name| !name.is_empty())?;
        self.in_group(NODE_GROUP).then_some(name)
    }

    fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}

/// A refusal, ready for a Status object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// 401 for an anonymous caller, else 403.
    pub status: u16,
    /// Status.message, as upstream words it.
    pub message: String,
    /// The reason alone, for access reviews; empty if the answer is just no.
    pub reason: String,
}

/// Decides a request before anything is read or written. `identity` is `None` for a caller without a certificate.
pub fn authorize(
    identity: Option<&Identity>,
    attributes: &Attributes,
    view: &dyn ClusterView,
) -> Result<(), Denied> {
    if attributes.resource.is_empty() && is_public_path(attributes) {
        return Ok(());
    }
    let Some(identity) = identity else {
        return Err(Denied { status: 401, message: "Unauthorized".to_owned(), reason: String::new() });
    };
    if identity.is_admin() || anyone_authenticated_may(attributes) {
        return Ok(());
    }
    match identity.node() {
        Some(node) if !attributes.resource.is_empty() => node::authorize(node, attributes, view)
            .map_err(|reason| forbidden_request(identity, attributes, &reason)),
        _ => Err(forbidden_request(identity, attributes, "")),
    }
}

/// Decides whether `old` may become `new`, after `authorize` has allowed the request.
pub fn admit(
    identity: &Identity,
    attributes: &Attributes,
    old: Option<&Value>,
    new: &Value,
    view: &dyn ClusterView,
) -> Result<(), Denied> {
    let Some(node) = identity.node().filter(|_| !identity.is_admin()) else {
        return Ok(());
    };
    node::admit(node, attributes, old, new, view).map_err(|reason| {
        let name = match attributes.name {
            "" => new["metadata"]["name"].as_str().unwrap_or_default(),
            name => name,
        };
        let message = forbidden(attributes.group, attributes.resource, name, &reason);
        Denied { status: 403, message, reason }
    })
}

/// Open to callers without a certificate, for load balancers and monitoring.
fn is_public_path(attributes: &Attributes) -> bool {
    let path = attributes.path.trim_end_matches('/');
    let health = ["/healthz", "/livez", "/readyz"]
        .iter()
        .any(|own| path.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
    is_read(attributes.verb) && (health || path == "/version")
}

/// Discovery, OpenAPI and reviews of one's own access, as upstream's `system:discovery` and `system:basic-user`.
fn anyone_authenticated_may(attributes: &Attributes) -> bool {
    if attributes.resource.is_empty() {
        let below = |root: &str| {
            attributes.path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        return is_read(attributes.verb) && ["/api", "/apis", "/openapi"].into_iter().any(below);
    }
    attributes.verb == "create"
        && attributes.subresource.is_empty()
        && matches!(
            (attributes.group, attributes.resource),
            ("authorization.k8s.io", "selfsubjectaccessreviews" | "selfsubjectrulesreviews")
                | ("authentication.k8s.io", "selfsubjectreviews")
        )
}

/// The permissions of a caller, as the status of a SelfSubjectRulesReview. A node's depend on the stored objects, so its list is
/// marked incomplete, as upstream's is.
pub fn rules(identity: &Identity) -> Value {
    if identity.is_admin() {
        return json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": false,
        });
    }
    let question = |group: &str, resources: &[&str]| json!({"verbs": ["create"], "apiGroups": [group], "resources": resources});
    let paths = [
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
        "/healthz",
        "/healthz/*",
        "/livez",
        "/livez/*",
        "/openapi",
        "/openapi/*",
        "/readyz",
        "/readyz/*",
        "/version",
        "/version/",
    ];
    let mut status = json!({
        "resourceRules": [
            question("authentication.k8s.io", &["selfsubjectreviews"]),
            question("authorization.k8s.io", &["selfsubjectaccessreviews", "selfsubjectrulesreviews"]),
        ],
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": paths}],
        "incomplete": false,
    });
    if identity.node().is_some() {
        status["incomplete"] = true.into();
        status["evaluationError"] = "node authorizer does not support user rule resolution".into();
    }
    status
}

fn is_read(verb: &str) -> bool {
    matches!(verb, "get" | "head")
}

/// The error of a refused request, in upstream's words.
fn forbidden_request(identity: &Identity, attributes: &Attributes, reason: &str) -> Denied {
    let Attributes { verb, group, resource, subresource, namespace, path, .. } = attributes;
    let user = &identity.user;
    let mut text = if resource.is_empty() {
        format!("User \"{user}\" cannot {verb} path \"{path}\"")
    } else {
        let slash = if subresource.is_empty() { "" } else { "/" };
        let scope = match *namespace {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace \"{namespace}\""),
        };
        format!(
            "User \"{user}\" cannot {verb} resource \"{resource}{slash}{subresource}\" in API group \"{group}\" {scope}"
        )
    };
    if !reason.is_empty() {
        text.push_str(": ");
        text.push_str(reason);
    }
    let message = forbidden(group, resource, requested_name(attributes), &text);
    Denied { status: 403, message, reason: reason.to_owned() }
}

fn forbidden(group: &str, resource: &str, name: &str, text: &str) -> String {
    let dot = if group.is_empty() { "" } else { "." };
    match (resource, name) {
        ("", _) => format!("forbidden: {text}"),
        (_, "") => format!("{resource}{dot}{group} is forbidden: {text}"),
        _ => format!("{resource}{dot}{group} \"{name}\" is forbidden: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Empty;

    impl ClusterView for Empty {
        fn pods_on(&self, _: &str, _: &str) -> Vec<Arc<Value>> {
            Vec::new()
        }

        fn object(&self, _: &str, _: &str, _: &str) -> Option<Arc<Value>> {
            None
        }
    }

    fn identity(user: &str, groups: &[&str]) -> Identity {
        Identity { user: user.to_owned(), groups: groups.iter().map(|group| (*group).to_owned()).collect() }
    }

    fn path<'a>(verb: &'a str, path: &'a str) -> Attributes<'a> {
        Attributes { verb, path, ..Attributes::default() }
    }

    #[test]
    fn anonymous_callers_get_only_health_and_version() {
        let check = |attributes: Attributes, expect: bool| {
            let result = authorize(None, &attributes, &Empty);
            assert_eq!(result.is_ok(), expect, "{attributes:?}");
            if let Err(denied) = result {
                assert_eq!((denied.status, denied.message.as_str()), (401, "Unauthorized"));
            }
        };
        check(path("get", "/healthz"), true);
        check(path("get", "/livez"), true);
        check(path("get", "/readyz/ping"), true);
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
    fn administrator_may_do_everything() {
        let admin = identity("admin", &["system:masters"]);
        let all = Attributes { verb: "deletecollection", resource: "nodes", ..Attributes::default() };
        assert_eq!(authorize(Some(&admin), &all, &Empty), Ok(()));
        assert_eq!(authorize(Some(&admin), &path("get", "/metrics"), &Empty), Ok(()));
        let node = serde_json::json!({"metadata": {"name": "x"}, "spec": {"configSource": {}}});
        assert_eq!(admit(&admin, &all, None, &node, &Empty), Ok(()));
    }

    #[test]
    fn other_users_get_discovery_and_upstreams_errors() {
        let stranger = identity("jane", &["system:authenticated"]);
        let check = |attributes: Attributes, expect: &str| {
            let found = authorize(Some(&stranger), &attributes, &Empty);
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
    }

    #[test]
    fn listed_permissions_are_authorized() {
        let stranger = identity("jane", &["system:authenticated"]);
        let listed = rules(&stranger);
        assert_eq!(listed["incomplete"], false);
        for url in listed["nonResourceRules"][0]["nonResourceURLs"].as_array().unwrap() {
            let url = url.as_str().unwrap().replace('*', "x");
            assert_eq!(authorize(Some(&stranger), &path("get", &url), &Empty), Ok(()), "{url}");
        }
        for rule in listed["resourceRules"].as_array().unwrap() {
            for resource in rule["resources"].as_array().unwrap() {
                let attributes = Attributes {
                    verb: rule["verbs"][0].as_str().unwrap(),
                    group: rule["apiGroups"][0].as_str().unwrap(),
                    resource: resource.as_str().unwrap(),
                    ..Attributes::default()
                };
                assert_eq!(authorize(Some(&stranger), &attributes, &Empty), Ok(()), "{resource}");
            }
        }
        assert_eq!(rules(&identity("system:node:a", &["system:nodes"]))["incomplete"], true);
        assert_eq!(rules(&identity("a", &["system:masters"]))["resourceRules"][0]["verbs"], json!(["*"]));
    }

    #[test]
    fn node_needs_its_user_name_and_its_group() {
        let check = |user: &str, groups: &[&str], expect: Option<&str>| {
            assert_eq!(identity(user, groups).node(), expect, "{user} {groups:?}");
        };
        check("system:node:a", &["system:nodes"], Some("a"));
        check("system:node:a", &["other"], None);
        check("system:node:", &["system:nodes"], None);
        check("node:a", &["system:nodes"], None);
    }

    #[test]
    fn identity_comes_from_common_name_and_organizations() {
        use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
        let certificate = |entries: &[(DnType, &str)]| {
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            for (sort, text) in entries {
                params.distinguished_name.push(sort.clone(), *text);
            }
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
        };
        let node =
            certificate(&[(DnType::OrganizationName, "system:nodes"), (DnType::CommonName, "system:node:a")]);
        let expect = identity("system:node:a", &["system:nodes", "system:authenticated"]);
        assert_eq!(Identity::from_client_certificate(&node), Some(expect));
        let nameless = certificate(&[(DnType::OrganizationName, "system:masters")]);
        assert_eq!(Identity::from_client_certificate(&nameless), None);
        assert_eq!(Identity::from_client_certificate(&certificate(&[(DnType::CommonName, "")])), None);
        assert_eq!(Identity::from_client_certificate(b"nonsense"), None);
    }
}
