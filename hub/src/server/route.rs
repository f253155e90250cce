//! Parses request paths. Pure, so that a test needs one line for any path that a client may send.

use kedge_hub_core::kinds::{self, Kind};

use super::fleet::place::Place;

/// Longest path; names are at most 253 bytes each.
const MAX_PATH_BYTES: usize = 2048;

/// The target of a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// A collection or an object of a served kind.
    Target(Target),
    /// `POST` of a Binding to a namespace.
    Bindings(String),
    /// `POST` of a SelfSubjectAccessReview.
    AccessReview,
    /// `POST` of a SelfSubjectRulesReview.
    RulesReview,
    /// `POST` of a SelfSubjectReview.
    SelfReview,
    /// `POST` of a SubjectAccessReview.
    SubjectReview,
    /// `POST` of a LocalSubjectAccessReview to a namespace.
    LocalSubjectReview(String),
    /// `POST` of a TokenReview.
    TokenReview,
    /// `/`.
    Index,
    /// `/api`.
    CoreVersions,
    /// `/apis`.
    Groups,
    /// `/apis/GROUP`.
    Group(String),
    /// `/api/v1`, `/apis/GROUP/VERSION`.
    Resources(String, String),
    /// `/openapi/v3`.
    OpenApiIndex,
    /// `/openapi/v3/...`: group and version.
    OpenApi(String, String),
    /// `/openapi/v2`.
    OpenApiV2,
    /// `/version`.
    Version,
    /// `/healthz`, `/livez`, `/readyz` and below.
    Health(String),
    /// `/metrics`.
    Metrics,
    /// `/.well-known/openid-configuration`: the issuer of tokens.
    OpenIdConfiguration,
    /// `/openid/v1/jwks`: its keys.
    OpenIdKeys,
    /// `/fleet` and below: a page for people.
    Fleet(Place),
    /// `/kedge/nodes`: the nodes and their credentials.
    Nodes,
    /// `/kedge/authorities`: the certificate authorities, and which nodes trust them.
    Authorities,
    /// `/kedge/denials`: the deny list.
    Denials,
    /// `/kedge/denials/KEY/lift`: ends one denial.
    DenialLift { key: String },
    /// `/kedge/nodes/NAME/revoke`, `readmit`, `accept`, `rotate` and `decommission`.
    NodeAccess { node: String, verb: AccessVerb },
    /// `/api/v1/nodes/NAME/proxy/...`: a request to the node's own API.
    NodeProxy { node: String, path: Vec<String> },
    /// `/api/v1/namespaces/NAMESPACE/pods/NAME/proxy/...`: a request to a program in a pod. `below` is not
    /// decoded.
    PodProxy { namespace: String, name: String, below: Option<String> },
    /// `/apis/metrics.k8s.io/v1beta1/...`: the resource usage of nodes and pods.
    Usage(Asked),
    /// `/apis/kedge.dev/v1/nodes/NAME/calls/ID`: a node takes a call.
    Call { node: String, id: String },
    /// `/kedge/rollouts/NAMESPACE/NAME`: the progress of a DaemonSet's update.
    Rollout { namespace: String, name: String },
    /// `/kedge/rollouts/NAME`: that of a ConfigRollout.
    ConfigRollout { name: String },
    /// A path of Kubernetes that the hub does not serve, with the reason.
    Unserved(String),
    /// No path of the hub or of Kubernetes.
    Unknown,
}

/// The change that an administrator makes to a node's access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessVerb {
    Revoke,
    Readmit,
    Accept,
    Rotate,
    Decommission,
}

impl AccessVerb {
    pub(super) fn name(self) -> &'static str {
        match self {
            AccessVerb::Revoke => "revoke",
            AccessVerb::Readmit => "readmit",
            AccessVerb::Accept => "accept",
            AccessVerb::Rotate => "rotate",
            AccessVerb::Decommission => "decommission",
        }
    }
}

/// A collection (no name) or an object.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) kind: &'static Kind,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) subresource: String,
}

impl PartialEq for Target {
    fn eq(&self, other: &Target) -> bool {
        let place =
            |target: &Target| (target.namespace.clone(), target.name.clone(), target.subresource.clone());
        self.kind.resource_name() == other.kind.resource_name() && place(self) == place(other)
    }
}

impl Eq for Target {}

/// Reads a path.
pub(super) fn parse(path: &str) -> Route {
    if path.len() > MAX_PATH_BYTES {
        return Route::Unknown;
    }
    if let Some(route) = pod_proxy(path) {
        return route;
    }
    let trimmed = path.trim_matches('/');
    if trimmed.is_empty() {
        return Route::Index;
    }
    let Some(segments) = trimmed.split('/').map(percent_decode).collect::<Option<Vec<String>>>() else {
        return Route::Unknown;
    };
    // a segment with a decoded slash, or an empty one, cannot be a name
    if segments.iter().any(|segment| segment.is_empty() || segment.contains('/') || segment.contains('\0')) {
        return Route::Unknown;
    }
    let words: Vec<&str> = segments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["api"] => Route::CoreVersions,
        ["apis"] => Route::Groups,
        ["api", version] => resources("", version),
        ["apis", group] => group_of(group),
        ["apis", group, version] => resources(group, version),
        ["api", "v1", "nodes", node, "proxy", path @ ..] => {
            let path = path.iter().map(|segment| (*segment).to_owned()).collect();
            Route::NodeProxy { node: (*node).to_owned(), path }
        }
        ["apis", "kedge.dev", "v1", "nodes", node, "calls", id] => {
            Route::Call { node: (*node).to_owned(), id: (*id).to_owned() }
        }
        ["apis", group, version, rest @ ..] if (*group, *version) == METRICS => usage(rest),
        ["api", version, rest @ ..] => target("", version, rest),
        ["apis", group, version, rest @ ..] => target(group, version, rest),
        ["openapi", "v2"] => Route::OpenApiV2,
        ["openapi", "v3"] => Route::OpenApiIndex,
        ["openapi", "v3", "api", version] => Route::OpenApi(String::new(), (*version).to_owned()),
        ["openapi", "v3", "apis", group, version] => {
            Route::OpenApi((*group).to_owned(), (*version).to_owned())
        }
        ["version"] => Route::Version,
        [health @ ("healthz" | "livez" | "readyz")] => Route::Health((*health).to_owned()),
        [health @ ("healthz" | "livez" | "readyz"), check] => Route::Health(format!("{health}/{check}")),
        ["metrics"] => Route::Metrics,
        [".well-known", "openid-configuration"] => Route::OpenIdConfiguration,
        ["openid", "v1", "jwks"] => Route::OpenIdKeys,
        ["fleet", page @ ..] => Place::parse(page).map_or(Route::Unknown, Route::Fleet),
        ["kedge", "nodes"] => Route::Nodes,
        ["kedge", "authorities"] => Route::Authorities,
        ["kedge", "rollouts", name] => Route::ConfigRollout { name: (*name).to_owned() },
        ["kedge", "rollouts", namespace, name] => {
            Route::Rollout { namespace: (*namespace).to_owned(), name: (*name).to_owned() }
        }
        ["kedge", "denials"] => Route::Denials,
        ["kedge", "denials", key, "lift"] => Route::DenialLift { key: (*key).to_owned() },
        ["kedge", "nodes", node, "revoke"] => node_access(node, AccessVerb::Revoke),
        ["kedge", "nodes", node, "readmit"] => node_access(node, AccessVerb::Readmit),
        ["kedge", "nodes", node, "accept"] => node_access(node, AccessVerb::Accept),
        ["kedge", "nodes", node, "rotate"] => node_access(node, AccessVerb::Rotate),
        ["kedge", "nodes", node, "decommission"] => node_access(node, AccessVerb::Decommission),
        _ => Route::Unknown,
    }
}

/// The path after `proxy` is for the program to interpret, including empty segments and encoded slashes.
fn pod_proxy(path: &str) -> Option<Route> {
    let mut segments = path.strip_prefix("/api/v1/namespaces/")?.splitn(5, '/');
    let (namespace, plural, name) = (segments.next()?, segments.next()?, segments.next()?);
    if plural != "pods" || segments.next()? != "proxy" {
        return None;
    }
    let below = segments.next().map(|below| format!("/{below}"));
    let name_of = |text: &str| {
        let is_name = |text: &String| !text.is_empty() && !text.contains(['/', '\0']);
        percent_decode(text).filter(is_name)
    };
    Some(match (name_of(namespace), name_of(name)) {
        (Some(namespace), Some(name)) => Route::PodProxy { namespace, name, below },
        _ => Route::Unknown,
    })
}

/// Groups without stored objects: those of reviews.
pub(super) const VIRTUAL_GROUPS: [(&str, &str); 2] =
    [("authentication.k8s.io", "v1"), ("authorization.k8s.io", "v1")];

/// The group of resource usage, which the hub requests from nodes.
pub(super) const METRICS: (&str, &str) = ("metrics.k8s.io", "v1beta1");

fn is_served(group: &str, version: &str) -> bool {
    let known = (group, version);
    kinds::group_versions().contains(&known) || VIRTUAL_GROUPS.contains(&known) || known == METRICS
}

fn group_of(group: &str) -> Route {
    let mut groups = kinds::group_versions().into_iter().chain(VIRTUAL_GROUPS).chain([METRICS]);
    let served = groups.any(|(known, _)| known == group);
    if served && !group.is_empty() { Route::Group(group.to_owned()) } else { Route::Unknown }
}

fn resources(group: &str, version: &str) -> Route {
    match is_served(group, version) {
        true => Route::Resources(group.to_owned(), version.to_owned()),
        false => Route::Unknown,
    }
}

fn target(group: &str, version: &str, rest: &[&str]) -> Route {
    match (group, version, rest) {
        ("authorization.k8s.io", "v1", ["selfsubjectaccessreviews"]) => return Route::AccessReview,
        ("authorization.k8s.io", "v1", ["selfsubjectrulesreviews"]) => return Route::RulesReview,
        ("authentication.k8s.io", "v1", ["selfsubjectreviews"]) => return Route::SelfReview,
        ("authentication.k8s.io", "v1", ["tokenreviews"]) => return Route::TokenReview,
        ("authorization.k8s.io", "v1", ["subjectaccessreviews"]) => return Route::SubjectReview,
        ("authorization.k8s.io", "v1", ["namespaces", namespace, "localsubjectaccessreviews"]) => {
            return Route::LocalSubjectReview((*namespace).to_owned());
        }
        _ => {}
    }
    let found = |namespace: &str, plural: &str, rest: &[&str]| {
        let (name, subresource) = match rest {
            [] => ("", ""),
            [name] => (*name, ""),
            [name, subresource] => (*name, *subresource),
            _ => return Route::Unknown,
        };
        match kinds::find(group, version, plural) {
            Some(kind) if namespace.is_empty() || kind.namespaced => Route::Target(Target {
                kind,
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                subresource: subresource.to_owned(),
            }),
            Some(_) => Route::Unknown,
            None => kinds::absent(group, plural).map_or(Route::Unknown, Route::Unserved),
        }
    };
    match rest {
        // namespaces themselves, and their subresources
        ["namespaces"] => found("", "namespaces", &[]),
        ["namespaces", name] => found("", "namespaces", &[name]),
        ["namespaces", name, subresource @ ("status" | "finalize")] => {
            found("", "namespaces", &[name, subresource])
        }
        ["namespaces", namespace, "bindings"] if group.is_empty() => Route::Bindings((*namespace).to_owned()),
        ["namespaces", namespace, plural, rest @ ..] => found(namespace, plural, rest),
        [plural, rest @ ..] => match found("", plural, rest) {
            // an object of a namespaced kind is only found in its namespace
            Route::Target(target) if target.kind.namespaced && !target.name.is_empty() => Route::Unknown,
            route => route,
        },
        [] => Route::Unknown,
    }
}

fn usage(rest: &[&str]) -> Route {
    let (resource, namespace, name) = match rest {
        ["nodes"] => ("nodes", "", ""),
        ["nodes", name] => ("nodes", "", *name),
        ["pods"] => ("pods", "", ""),
        ["namespaces", namespace, "pods"] => ("pods", *namespace, ""),
        ["namespaces", namespace, "pods", name] => ("pods", *namespace, *name),
        _ => return Route::Unknown,
    };
    Route::Usage(Asked { resource, namespace: namespace.to_owned(), name: name.to_owned() })
}

fn node_access(node: &str, verb: AccessVerb) -> Route {
    Route::NodeAccess { node: node.to_owned(), verb }
}

/// Percent-decodes a segment; `None` if malformed or not UTF-8.
pub(super) fn percent_decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    String::from_utf8(kedge_api::percent_decoded(text)?).ok()
}

/// The requested objects: `nodes` or `pods`, all or one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) resource: &'static str,
    pub(super) namespace: String,
    /// Empty for a list.
    pub(super) name: String,
}

impl Asked {
    pub(super) fn verb(&self) -> &'static str {
        if self.name.is_empty() { "list" } else { "get" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, expect: &str) {
        let shown = match parse(path) {
            Route::Target(target) => {
                format!("{}|{}|{}|{}", target.kind.plural, target.namespace, target.name, target.subresource)
            }
            other => format!("{other:?}"),
        };
        assert_eq!(shown, expect, "{path}");
    }

    #[test]
    fn paths_are_parsed_like_upstreams() {
        check("/api/v1/nodes", "nodes|||");
        check("/api/v1/nodes/", "nodes|||");
        check("/api/v1/nodes/edge-1", "nodes||edge-1|");
        check("/api/v1/nodes/edge-1/status", "nodes||edge-1|status");
        check("/api/v1/namespaces", "namespaces|||");
        check("/api/v1/namespaces/a", "namespaces||a|");
        check("/api/v1/namespaces/a/status", "namespaces||a|status");
        check("/api/v1/namespaces/a/configmaps", "configmaps|a||");
        check("/api/v1/namespaces/a/configmaps/c", "configmaps|a|c|");
        check("/api/v1/namespaces/a%62/configmaps/%63", "configmaps|ab|c|");
        check("/api/v1/configmaps", "configmaps|||");
        check(
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n",
            "leases|kube-node-lease|n|",
        );
        check("/api/v1/namespaces/a/bindings", "Bindings(\"a\")");
        check("/api/v1/bindings", "Unknown");
        check("/fleet", "Fleet(Overview)");
        check("/fleet/", "Fleet(Overview)");
        check("/fleet/nodes", "Fleet(Nodes)");
        check("/fleet/nodes/a", "Fleet(Node(\"a\"))");
        check("/fleet/rollouts/n/a", "Fleet(Rollout { namespace: \"n\", name: \"a\" })");
        check("/fleet/rollouts/a", "Fleet(ConfigRollout(\"a\"))");
        check("/fleet/nodes/a/b", "Unknown");
        check("/fleet/x", "Unknown");
        check(
            "/api/v1/nodes/a/proxy/stats/summary",
            "NodeProxy { node: \"a\", path: [\"stats\", \"summary\"] }",
        );
        check("/api/v1/nodes/a/proxy", "NodeProxy { node: \"a\", path: [] }");
        check("/api/v1/nodes/a/proxy/%2e%2e/x", "NodeProxy { node: \"a\", path: [\"..\", \"x\"] }");
        let proxy = |name: &str, below: &str| {
            format!("PodProxy {{ namespace: \"n\", name: {name:?}, below: {below} }}")
        };
        let pods = "/api/v1/namespaces/n/pods";
        check(&format!("{pods}/p/proxy"), &proxy("p", "None"));
        check(&format!("{pods}/https%3Ap:1/proxy/"), &proxy("https:p:1", "Some(\"/\")"));
        check(&format!("{pods}/p/proxy//a%2fb/../c/"), &proxy("p", "Some(\"//a%2fb/../c/\")"));
        check(&format!("{pods}/p%2fq/proxy/"), "Unknown");
        check(&format!("{pods}//proxy/"), "Unknown");
        check("/apis/kedge.dev/v1/nodes/a/calls/1", "Call { node: \"a\", id: \"1\" }");
        let usage = |resource: &str, namespace: &str, name: &str| {
            format!("Usage(Asked {{ resource: {resource:?}, namespace: {namespace:?}, name: {name:?} }})")
        };
        let metrics = "/apis/metrics.k8s.io/v1beta1";
        check(metrics, "Resources(\"metrics.k8s.io\", \"v1beta1\")");
        check("/apis/metrics.k8s.io", "Group(\"metrics.k8s.io\")");
        check(&format!("{metrics}/nodes"), &usage("nodes", "", ""));
        check(&format!("{metrics}/nodes/a"), &usage("nodes", "", "a"));
        check(&format!("{metrics}/pods"), &usage("pods", "", ""));
        check(&format!("{metrics}/namespaces/n/pods"), &usage("pods", "n", ""));
        check(&format!("{metrics}/namespaces/n/pods/p"), &usage("pods", "n", "p"));
        check("/kedge/nodes", "Nodes");
        check("/kedge/authorities", "Authorities");
        check("/kedge/nodes/a/revoke", "NodeAccess { node: \"a\", verb: Revoke }");
        check("/kedge/nodes/a/readmit", "NodeAccess { node: \"a\", verb: Readmit }");
        check("/kedge/nodes/a/accept", "NodeAccess { node: \"a\", verb: Accept }");
        check("/kedge/nodes/a/rotate", "NodeAccess { node: \"a\", verb: Rotate }");
        check("/kedge/nodes/a/decommission", "NodeAccess { node: \"a\", verb: Decommission }");
        check("/kedge/nodes/a", "Unknown");
        check("/kedge/denials", "Denials");
        check("/kedge/denials/user.a/lift", "DenialLift { key: \"user.a\" }");
        check("/kedge/denials/user.a", "Unknown");
        check("/kedge/rollouts/n/d", "Rollout { namespace: \"n\", name: \"d\" }");
        check("/kedge/rollouts/shops", "ConfigRollout { name: \"shops\" }");
        check("/kedge/rollouts", "Unknown");
        check("/", "Index");
        check("", "Index");
        check("/api", "CoreVersions");
        check("/apis", "Groups");
        check("/api/v1", "Resources(\"\", \"v1\")");
        check("/apis/coordination.k8s.io", "Group(\"coordination.k8s.io\")");
        check("/apis/coordination.k8s.io/v1", "Resources(\"coordination.k8s.io\", \"v1\")");
        check("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "AccessReview");
        check("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", "RulesReview");
        check(
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:basic-user",
            "clusterroles||system:basic-user|",
        );
        check("/apis/policy/v1", "Resources(\"policy\", \"v1\")");
        check("/readyz", "Health(\"readyz\")");
        check("/livez/ping", "Health(\"livez/ping\")");
        check("/openapi/v3/apis/coordination.k8s.io/v1", "OpenApi(\"coordination.k8s.io\", \"v1\")");
    }

    #[test]
    fn absent_kinds_are_known_in_every_version() {
        for (path, expect) in [
            ("/apis/apps/v1/deployments", "deployments.apps"),
            ("/apis/apps/v1/namespaces/n/deployments", "deployments.apps"),
            ("/apis/apps/v1beta1/namespaces/n/deployments/d/scale", "deployments.apps"),
            ("/apis/batch/v1/namespaces/n/jobs", "jobs.batch"),
            ("/api/v1/namespaces/n/resourcequotas", "resourcequotas"),
        ] {
            let Route::Unserved(why) = parse(path) else { panic!("{path}") };
            assert!(why.starts_with(&format!("{expect} is not served: ")), "{path}: {why}");
        }
    }

    #[test]
    fn unserved_paths_are_unknown() {
        for path in [
            "/api/v2",
            "/apis/apps/v1/gadgets",
            "/apis/deployments",
            "/api/v1/configmaps/c",
            "/api/v1/namespaces/a/nodes",
            "/api/v1/namespaces/a/configmaps/c/status/x",
            "/api/v1/nodes/..%2f..",
            "/api/v1/nodes/%zz",
            "/api/v1/nodes/%",
            "/api/v1//nodes",
            "/api/v1/nodes/%ff",
            "/api/v1/nodes/a%00b",
            "/apis/kedge.dev/v1/nodes/a/calls",
            "/apis/kedge.dev/v1",
            "/apis/metrics.k8s.io/v1/nodes",
            "/apis/metrics.k8s.io/v1beta1/pods/p",
            "/apis/metrics.k8s.io/v1beta1/nodes/n/status",
            "/metrics/x",
            "/apis/",
        ] {
            let expect = if path == "/apis/" { "Groups" } else { "Unknown" };
            check(path, expect);
        }
        check(&format!("/api/v1/nodes/{}", "a".repeat(3000)), "Unknown");
    }
}
