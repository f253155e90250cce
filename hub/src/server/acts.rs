//! The class of each request, by its route and method: the one table by which the audit log sorts requests.
//!
//! Always holds: a new route does not compile before it has a row in this table. The class follows from the
//! request's effect and not from its verb: a command in a pod is a GET over WebSocket and a POST over SPDY.
//! Left to others: the lines, and which reports of nodes have none (`audited`); permissions
//! (`kedge_hub_core::identity`).

use http::Method;
use kedge_hub_core::kinds::SECRET;

use super::route::{Route, Target};

/// The classes of requests that the audit log tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// Reads something that needs no audit line, or asks about rights.
    Look,
    /// Reads something that needs an audit line: Secrets, and information that only nodes and programs in
    /// pods have.
    Read,
    /// Changes some state of the hub, or tries to.
    Change,
    /// Runs in a pod: its line is on the disk before the node learns of it.
    Command,
    /// A node serves a call; the line of the call's client covers it, so only a refused attempt has a line of
    /// its own.
    Service,
}

impl Act {
    pub(super) fn of(route: &Route, method: &Method) -> Act {
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        match route {
            Route::Target(target) => of_target(target, is_read),
            Route::Bindings(_) | Route::NodeAccess { .. } | Route::DenialLift { .. } => Act::Change,
            Route::NodeProxy { .. } | Route::PodProxy { .. } if is_read => Act::Read,
            Route::NodeProxy { .. } | Route::PodProxy { .. } => Act::Command,
            Route::Usage(_) => Act::Read,
            Route::Call { .. } => Act::Service,
            // questions about rights, whatever their verb
            Route::AccessReview
            | Route::RulesReview
            | Route::SelfReview
            | Route::SubjectReview
            | Route::LocalSubjectReview(_)
            | Route::TokenReview => Act::Look,
            // these are only read: no other method is served
            Route::Index
            | Route::CoreVersions
            | Route::Groups
            | Route::Group(_)
            | Route::Resources(..)
            | Route::OpenApiIndex
            | Route::OpenApi(..)
            | Route::OpenApiV2
            | Route::Version
            | Route::Health(_)
            | Route::Metrics
            | Route::OpenIdConfiguration
            | Route::OpenIdKeys
            | Route::Fleet(_)
            | Route::Nodes
            | Route::Authorities
            | Route::Denials
            | Route::Rollout { .. }
            | Route::ConfigRollout { .. }
            | Route::Unserved(_)
            | Route::Unknown => Act::Look,
        }
    }

    /// True if its line goes to the log of reads.
    pub(super) fn is_read(self) -> bool {
        matches!(self, Act::Look | Act::Read)
    }
}

fn of_target(target: &Target, is_read: bool) -> Act {
    match &*target.subresource {
        "attach" | "exec" | "portforward" => Act::Command,
        "proxy" if !is_read => Act::Command,
        "log" | "proxy" if is_read => Act::Read,
        _ if !is_read => Act::Change,
        _ if target.kind.kind == SECRET.kind => Act::Read,
        _ => Act::Look,
    }
}

#[cfg(test)]
mod tests {
    use super::super::route;
    use super::*;

    const METHODS: [Method; 7] = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
    ];

    /// One letter for each method's act: look, read, change, command (x), service.
    fn row(path: &str) -> String {
        let route = route::parse(path);
        let letter = |method: &Method| match Act::of(&route, method) {
            Act::Look => 'l',
            Act::Read => 'r',
            Act::Change => 'c',
            Act::Command => 'x',
            Act::Service => 's',
        };
        METHODS.iter().map(letter).collect()
    }

    #[test]
    fn every_route_and_method_has_its_act() {
        let pods = "/api/v1/namespaces/n/pods";
        let table: &[(&str, &[&str])] = &[
            // ordinary objects, their subresources, and acts on them
            (
                "llccccc",
                &[
                    "/api/v1/nodes",
                    "/api/v1/nodes/a",
                    "/api/v1/nodes/a/status",
                    "/api/v1/namespaces/n/finalize",
                    "/api/v1/namespaces/n/configmaps/c",
                    "/api/v1/namespaces/n/pods/p",
                    "/api/v1/namespaces/n/pods/p/eviction",
                    "/api/v1/namespaces/n/pods/p/binding",
                    "/api/v1/namespaces/n/serviceaccounts/a/token",
                    "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a",
                    "/apis/certificates.k8s.io/v1/certificatesigningrequests/c/approval",
                    "/apis/apps/v1/namespaces/n/daemonsets/d",
                ],
            ),
            (
                "rrccccc",
                &["/api/v1/secrets", "/api/v1/namespaces/n/secrets", "/api/v1/namespaces/n/secrets/s"],
            ),
            // in a pod, by either transport
            (
                "xxxxxxx",
                &[&format!("{pods}/p/exec"), &format!("{pods}/p/attach"), &format!("{pods}/p/portforward")],
            ),
            (
                "rrxxxxx",
                &[
                    &format!("{pods}/p/proxy"),
                    &format!("{pods}/https:p:1/proxy/a/../exec"),
                    "/api/v1/nodes/a/proxy",
                    "/api/v1/nodes/a/proxy/exec/n/p/c",
                ],
            ),
            ("rrccccc", &[&format!("{pods}/p/log")]),
            (
                "rrrrrrr",
                &[
                    "/apis/metrics.k8s.io/v1beta1/nodes",
                    "/apis/metrics.k8s.io/v1beta1/nodes/a",
                    "/apis/metrics.k8s.io/v1beta1/pods",
                    "/apis/metrics.k8s.io/v1beta1/namespaces/n/pods/p",
                ],
            ),
            (
                "ccccccc",
                &["/kedge/nodes/a/revoke", "/kedge/nodes/a/readmit", "/api/v1/namespaces/n/bindings"],
            ),
            ("sssssss", &["/apis/kedge.dev/v1/nodes/a/calls/1"]),
            (
                "lllllll",
                &[
                    "/",
                    "/api",
                    "/api/v1",
                    "/apis",
                    "/apis/apps",
                    "/apis/apps/v1",
                    "/openapi/v2",
                    "/openapi/v3",
                    "/openapi/v3/api/v1",
                    "/version",
                    "/healthz",
                    "/readyz/ping",
                    "/metrics",
                    "/.well-known/openid-configuration",
                    "/openid/v1/jwks",
                    "/fleet",
                    "/fleet/nodes/a",
                    "/kedge/nodes",
                    "/kedge/authorities",
                    "/kedge/rollouts/n/d",
                    "/kedge/rollouts/shops",
                    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                    "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
                    "/apis/authorization.k8s.io/v1/subjectaccessreviews",
                    "/apis/authorization.k8s.io/v1/namespaces/n/localsubjectaccessreviews",
                    "/apis/authentication.k8s.io/v1/selfsubjectreviews",
                    "/apis/authentication.k8s.io/v1/tokenreviews",
                    "/apis/apps/v1/deployments",
                    "/nothing",
                ],
            ),
        ];
        for (expect, paths) in table {
            for path in *paths {
                assert_eq!(row(path), *expect, "{path}");
            }
        }
    }

    /// The subresources of every served kind, so that a new one is classified on purpose.
    #[test]
    fn every_subresource_has_its_act() {
        for kind in kedge_hub_core::kinds::KINDS {
            for part in kind.subresources().iter().map(|part| part.name) {
                let target = Target {
                    kind,
                    namespace: "n".to_owned(),
                    name: "x".to_owned(),
                    subresource: part.to_owned(),
                };
                let acts = [true, false].map(|is_read| of_target(&target, is_read));
                let expect = match part {
                    "attach" | "exec" | "portforward" => [Act::Command, Act::Command],
                    "proxy" => [Act::Read, Act::Command],
                    "log" => [Act::Read, Act::Change],
                    "approval" | "binding" | "eviction" | "finalize" | "token" => [Act::Look, Act::Change],
                    other => panic!("{}/{other} is new: which act is it?", kind.plural),
                };
                assert_eq!(acts, expect, "{}/{part}", kind.plural);
            }
        }
    }
}
