//! The decision on a request, by a list of authorizers in order.
//!
//! Always holds: an authorizer is a function of identity, request and stored objects. The first that allows a
//! request decides. A request that none allows is refused with the reasons of all.

use kedge_api::AUTHENTICATED_GROUP;
use serde_json::{Value, json};

use super::attributes::{Attributes, ClusterView};
use super::bootstrapper::Bootstrapper;
use super::identity::Identity;
use super::node::Node;
use super::roles::Roles;

/// The opinion of one authorizer on a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Opinion {
    Allow,
    /// This authorizer does not allow it, but another may; with the reason in upstream's words, or empty.
    NoOpinion(String),
}

/// Decides on requests of some identities.
pub(super) trait Authorizer: Sync {
    fn judge(&self, identity: &Identity, request: &Attributes, view: &dyn ClusterView) -> Opinion;
}

/// All authorizers. The cheapest come first; their order does not change a decision, since each of them can
/// only allow.
static AUTHORIZERS: [&dyn Authorizer; 5] = [&Node, &Administrators, &AnyUser, &Bootstrapper, &Roles];

/// Decides on the request of an authenticated caller; a refusal has the reasons of all authorizers.
pub(super) fn decide(
    identity: &Identity,
    request: &Attributes,
    view: &dyn ClusterView,
) -> Result<(), String> {
    let mut reasons = Vec::new();
    for authorizer in AUTHORIZERS {
        match authorizer.judge(identity, request, view) {
            Opinion::Allow => return Ok(()),
            Opinion::NoOpinion(reason) if reason.is_empty() => {}
            Opinion::NoOpinion(reason) => reasons.push(reason),
        }
    }
    Err(reasons.join("\n"))
}

/// The group `system:masters` may do everything.
struct Administrators;

impl Authorizer for Administrators {
    fn judge(&self, identity: &Identity, _: &Attributes, _: &dyn ClusterView) -> Opinion {
        if identity.is_admin() { Opinion::Allow } else { Opinion::NoOpinion(String::new()) }
    }
}

/// Every authenticated caller: discovery, OpenAPI, and reviews of the caller's own access, as upstream's
/// `system:discovery` and `system:basic-user`. Not by these roles alone: a node, which no role is for, needs
/// it, too. The keys of tokens are for service accounts, by their role.
struct AnyUser;

/// Reviews of the caller's own access, by group.
const OWN_REVIEWS: [(&str, &[&str]); 2] = [
    ("authentication.k8s.io", &["selfsubjectreviews"]),
    ("authorization.k8s.io", &["selfsubjectaccessreviews", "selfsubjectrulesreviews"]),
];
/// Roots of the paths that every authenticated caller may read.
const DISCOVERY: [&str; 3] = ["/api", "/apis", "/openapi"];
/// Paths that every caller may read, with or without a credential: upstream's `system:public-info-viewer`.
/// Single checks (`/readyz/NAME`) are for `system:monitoring`.
const PUBLIC: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

impl Authorizer for AnyUser {
    fn judge(&self, identity: &Identity, request: &Attributes, _: &dyn ClusterView) -> Opinion {
        // a review may be about a user that is not authenticated
        let is_authenticated = identity.groups.iter().any(|group| group == AUTHENTICATED_GROUP);
        let allowed = is_authenticated
            && if request.resource.is_empty() {
                is_read(request.verb) && DISCOVERY.into_iter().any(|root| is_below(request.path, root))
            } else {
                request.verb == "create"
                    && request.subresource.is_empty()
                    && OWN_REVIEWS.iter().any(|(group, resources)| {
                        *group == request.group && resources.contains(&request.resource)
                    })
            };
        if allowed { Opinion::Allow } else { Opinion::NoOpinion(String::new()) }
    }
}

/// The ConfigMap by which a machine that joins finds the hub's authority: its namespace and name.
pub(crate) const CLUSTER_INFO: (&str, &str) = ("kube-public", "cluster-info");

/// Open to callers without a credential: health and version for load balancers and monitoring, and what a
/// machine reads before it joins.
pub(super) fn is_public(request: &Attributes) -> bool {
    is_public_path(request) || is_cluster_info(request)
}

fn is_cluster_info(request: &Attributes) -> bool {
    let Attributes { verb, group, resource, subresource, namespace, name, .. } = *request;
    verb == "get"
        && (group, resource, subresource) == ("", "configmaps", "")
        && (namespace, name) == CLUSTER_INFO
}

fn is_public_path(request: &Attributes) -> bool {
    request.resource.is_empty() && is_read(request.verb) && PUBLIC.contains(&request.path)
}

fn is_below(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// HEAD is GET without the answer's body. Upstream's roles have no HEAD.
fn is_read(verb: &str) -> bool {
    matches!(verb, "get" | "head")
}

/// The permissions of a caller in a namespace, as the status of a SelfSubjectRulesReview. A node's
/// permissions depend on the stored objects, so its list is marked incomplete, as upstream's is.
pub fn rules(identity: &Identity, namespace: &str, view: &dyn ClusterView) -> Value {
    if identity.is_admin() {
        return json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": false,
        });
    }
    let reviews = OWN_REVIEWS
        .map(|(group, resources)| json!({"verbs": ["create"], "apiGroups": [group], "resources": resources}));
    let mut resources = Vec::from(reviews);
    if identity.bootstrap_token().is_some() {
        let requests = ["certificatesigningrequests"];
        resources.insert(
            0,
            json!({"verbs": ["create"], "apiGroups": ["certificates.k8s.io"], "resources": requests}),
        );
    }
    let mut paths = vec![json!({"verbs": ["get"], "nonResourceURLs": readable_paths()})];
    for (is_for_paths, rule) in super::roles::rules(identity, namespace, view) {
        let list = if is_for_paths { &mut paths } else { &mut resources };
        if !list.contains(&rule) {
            list.push(rule);
        }
    }
    let mut status = json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false});
    if identity.node().is_some() {
        status["incomplete"] = true.into();
        status["evaluationError"] = "node authorizer does not support user rule resolution".into();
    }
    status
}

fn readable_paths() -> Vec<String> {
    let mut paths: Vec<String> = DISCOVERY
        .into_iter()
        .flat_map(|root| [root.to_owned(), format!("{root}/*")])
        .chain(PUBLIC.map(str::to_owned))
        .collect();
    paths.sort_unstable();
    paths
}
