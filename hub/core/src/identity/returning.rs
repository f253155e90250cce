//! Authorization of a node whose certificate has expired: it may ask for the next one.
//!
//! Always holds: such a node may create a request to the signer of node certificates for its own name, read
//! the requests that it made, and ask who it is. Any other request is 401 with a reason, because the
//! certificate proves nothing else any more. Left to others: whether the request needs a person
//! (`controllers::approving`), and a denied node, which has no identity at all (`denied`).

use kedge_api::NODE_SIGNER;
use serde_json::Value;
use time::OffsetDateTime;

use super::Denied;
use super::attributes::{Attributes, ClusterView};
use super::identity::Identity;
use crate::value::{rfc3339, text};

/// Decides on the request of a node whose certificate expired at `since` (Unix time).
pub(super) fn authorize(
    identity: &Identity,
    since: i64,
    request: &Attributes,
    view: &dyn ClusterView,
) -> Result<(), Denied> {
    let asked_before = || {
        view.object(request.resource, "", request.name)
            .is_some_and(|found| text(&found, &["spec", "username"]) == identity.user)
    };
    let allowed = match (request.verb, request.group, request.resource, request.subresource) {
        ("create", "authentication.k8s.io", "selfsubjectreviews", "") => true,
        ("create", "certificates.k8s.io", "certificatesigningrequests", "") => true,
        ("get", "certificates.k8s.io", "certificatesigningrequests", "") => asked_before(),
        _ => false,
    };
    if allowed { Ok(()) } else { Err(refusal(identity, since)) }
}

/// Decides on a certificate request of such a node, as it would be stored.
pub(super) fn admit(identity: &Identity, since: i64, new: &Value) -> Result<(), Denied> {
    match text(new, &["spec", "signerName"]) {
        NODE_SIGNER => Ok(()),
        _ => Err(refusal(identity, since)),
    }
}

fn refusal(identity: &Identity, since: i64) -> Denied {
    let node = identity.node().unwrap_or_default();
    let since = OffsetDateTime::from_unix_timestamp(since).map(rfc3339).unwrap_or_default();
    let reason = format!(
        "the certificate of node {node:?} has been expired since {since}: it may only ask for the next one"
    );
    Denied { status: 401, message: reason.clone(), reason }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::Objects;
    use super::super::{Standing, admit, authorize};
    use super::*;

    fn node() -> Identity {
        let node = Identity::new("system:node:a", &["system:nodes", "system:authenticated"]);
        Identity { standing: Standing::Expired(1_800_000_000), key: "0a".into(), ..node }
    }

    #[test]
    fn expired_node_may_only_ask_for_its_next_certificate() {
        let requests = "certificatesigningrequests";
        let asked_by = |user: &str| json!({"spec": {"username": user}});
        let view = Objects::default()
            .with(requests, "", "own", asked_by("system:node:a"))
            .with(requests, "", "other", asked_by("system:node:b"))
            .with("nodes", "", "a", json!({}));
        let check = |words: &str, expect: bool| {
            let words: Vec<&str> = words.split(' ').collect();
            let (resource, subresource) = words[2].split_once('/').unwrap_or((words[2], ""));
            let asked = Attributes {
                verb: words[0],
                group: words[1],
                resource,
                subresource,
                name: words[3],
                ..Attributes::default()
            };
            let found = authorize(Some(&node()), &asked, &view);
            assert_eq!(found.is_ok(), expect, "{words:?}");
            if let Err(denied) = found {
                assert_eq!(denied.status, 401);
                let text = "the certificate of node \"a\" has been expired since 2027-01-15T08:00:00Z";
                assert!(denied.message.starts_with(text), "{}", denied.message);
            }
        };
        let certificates = "certificates.k8s.io";
        check(&format!("create {certificates} {requests} "), true);
        check(&format!("get {certificates} {requests} own"), true);
        check("create authentication.k8s.io selfsubjectreviews ", true);
        for refused in [
            &*format!("get {certificates} {requests} other"),
            &*format!("get {certificates} {requests} none"),
            &*format!("list {certificates} {requests} "),
            &*format!("watch {certificates} {requests} own"),
            &*format!("delete {certificates} {requests} own"),
            &*format!("update {certificates} {requests}/approval own"),
            "create authorization.k8s.io selfsubjectaccessreviews ",
            "create authentication.k8s.io tokenreviews ",
            "get  nodes a",
            "create  nodes ",
            "patch  nodes/status a",
            "update coordination.k8s.io leases a",
            "create  events ",
            "list  pods ",
        ] {
            check(refused, false);
        }
        let path = |path| Attributes { verb: "get", path, ..Attributes::default() };
        assert!(authorize(Some(&node()), &path("/api"), &view).is_err(), "not even discovery");
        assert!(authorize(Some(&node()), &path("/version"), &view).is_ok());
        // the same node before that
        let live = Identity { standing: Standing::Live, ..node() };
        assert!(authorize(Some(&live), &path("/api"), &view).is_ok());
    }

    #[test]
    fn expired_node_asks_the_signer_of_nodes_for_its_own_name() {
        let group = "certificates.k8s.io";
        let asked = Attributes {
            verb: "create",
            group,
            resource: "certificatesigningrequests",
            ..Attributes::default()
        };
        let check = |signer: &str, name: &str, expect: Option<u16>| {
            let pem = crate::identity::certificate_request::tests::pem(name, &["system:nodes"], &[]);
            let request = crate::kinds::schema::base64_encode(pem.as_bytes());
            let new = json!({"spec": {"signerName": signer, "request": request}});
            let found = admit(&node(), &asked, None, &new, &Objects::default());
            assert_eq!(found.err().map(|denied| denied.status), expect, "{signer} {name}");
        };
        check(NODE_SIGNER, "system:node:a", None);
        check(NODE_SIGNER, "system:node:b", Some(403));
        check("kubernetes.io/kubelet-serving", "system:node:a", Some(401));
        check("kubernetes.io/kube-apiserver-client", "system:node:a", Some(401));
    }
}
