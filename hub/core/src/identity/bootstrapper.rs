//! Permissions of callers with a bootstrap token: one request for a node's certificate, and its answer.
//!
//! Always holds: such a caller creates requests to the signer of node certificates, for names that its token
//! covers, and reads the requests that it made. It may also do what every authenticated caller may. The
//! holder of a used token repeats the requests that used it, and makes no others. Upstream allows this by the
//! role `system:node-bootstrapper`, for any name. Left to others: approval (`controllers`), the token itself
//! (`bootstrap_token`).

use kedge_api::{NODE_SIGNER, NODE_USER_PREFIX};
use serde_json::Value;

use super::attributes::{Attributes, ClusterView};
use super::authorizer::{Authorizer, Opinion};
use super::bootstrap_token::{BootstrapToken, NAMESPACE, secret_name};
use super::certificate_request::Request;
use super::identity::Identity;
use crate::kinds::schema;
use crate::value::{at, text};

/// See the module.
pub(super) struct Bootstrapper;

impl Authorizer for Bootstrapper {
    fn judge(&self, identity: &Identity, request: &Attributes, view: &dyn ClusterView) -> Opinion {
        let is_request = request.group == "certificates.k8s.io"
            && request.resource == "certificatesigningrequests"
            && request.subresource.is_empty();
        let Some(id) = identity.bootstrap_token().filter(|_| is_request) else {
            return Opinion::NoOpinion(String::new());
        };
        let is_own = || {
            let found = view.object(request.resource, "", request.requested_name());
            found.is_some_and(|found| text(&found, &["spec", "username"]) == identity.user)
        };
        match request.verb {
            "create" => Opinion::Allow,
            "get" | "list" | "watch" if is_own() => Opinion::Allow,
            "get" | "list" | "watch" => Opinion::NoOpinion(format!(
                "no relationship found between bootstrap token '{id}' and this object"
            )),
            _ => Opinion::NoOpinion(String::new()),
        }
    }
}

/// Whether the caller with this token may create the certificate request `new`; the error is the reason.
pub(super) fn admit(id: &str, new: &Value, view: &dyn ClusterView) -> Result<(), String> {
    for field in ["finalizers", "ownerReferences"] {
        if at(new, &["metadata", field]).is_some() {
            return Err(format!("bootstrap token {id:?} is not allowed to set {field}"));
        }
    }
    let signer = text(new, &["spec", "signerName"]);
    if signer != NODE_SIGNER {
        return Err(format!(
            "bootstrap token {id:?} may request certificates of the signer {NODE_SIGNER} alone"
        ));
    }
    let asked = schema::base64_decode(text(new, &["spec", "request"])).unwrap_or_default();
    let asked = Request::from_pem(&asked).map_err(|error| format!("unable to parse csr: {error}"))?;
    let usages = at(new, &["spec", "usages"]).and_then(Value::as_array).into_iter().flatten();
    let usages: Vec<&str> = usages.filter_map(Value::as_str).collect();
    // the signer would refuse it later, after a person had approved it
    asked.check(NODE_SIGNER, &usages)?;
    let node = asked.common_name.strip_prefix(NODE_USER_PREFIX).unwrap_or_default();
    let token = view.object("secrets", NAMESPACE, &secret_name(id));
    let token = token.and_then(|secret| BootstrapToken::from_secret(&secret));
    let token = token.ok_or_else(|| format!("bootstrap token {id:?} not found"))?;
    if !token.covers(node) {
        return Err(format!(
            "bootstrap token {id:?} is for node {:?}, not for {node:?}",
            token.names.to_string()
        ));
    }
    if token.is_spent() && !token.has_admitted(node, &asked.public_key) {
        return Err(format!(
            "bootstrap token {id:?} was used by another request; ask the hub's administrator for a new one"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::bootstrap_token::{Names, RANDOM_BYTES, spend};
    use super::super::certificate_request::tests::pem;
    use super::super::fixture::Objects;
    use super::super::{authorize, rules};
    use super::*;
    use crate::kinds::CERTIFICATE_REQUEST;
    use crate::selector::Selection;

    const REQUESTS: &str = "certificatesigningrequests";

    fn token(names: &str, uses: Option<u32>) -> BootstrapToken {
        let mut made = BootstrapToken::new(&[0; RANDOM_BYTES], Names::parse(names).unwrap()).unwrap();
        made.uses = uses;
        made
    }

    fn stored(secret: Value) -> Objects {
        Objects::default().with("secrets", NAMESPACE, "bootstrap-token-000000", secret)
    }

    fn request(pem: &str) -> Value {
        json!({"spec": {"signerName": NODE_SIGNER, "request": schema::base64_encode(pem.as_bytes()),
            "usages": ["client auth", "digital signature"]}})
    }

    fn of_node(name: &str) -> Value {
        request(&pem(&format!("system:node:{name}"), &["system:nodes"], &[]))
    }

    #[test]
    fn caller_requests_and_reads_its_answer_alone() {
        let asked_by = |user: &str| json!({"spec": {"username": user}});
        let view = Objects::default()
            .with(REQUESTS, "", "own", asked_by("system:bootstrap:000000"))
            .with(REQUESTS, "", "other", asked_by("system:bootstrap:000001"))
            .with("secrets", NAMESPACE, "bootstrap-token-000000", json!({}));
        let caller = token("*", None).identity();
        let group = "certificates.k8s.io";
        let on = |verb, name, subresource| Attributes {
            verb,
            group,
            resource: REQUESTS,
            name,
            subresource,
            ..Attributes::default()
        };
        let ask = |asked: Attributes| authorize(Some(&caller), &asked, &view).is_ok();
        let named = |name: &str| {
            Selection::parse(&CERTIFICATE_REQUEST, "", "", &format!("metadata.name={name}")).unwrap()
        };
        let (own, other) = (named("own"), named("other"));
        for allowed in [
            on("create", "", ""),
            on("get", "own", ""),
            Attributes { selection: Some(&own), ..on("list", "", "") },
            Attributes { selection: Some(&own), ..on("watch", "", "") },
            Attributes { verb: "get", path: "/api", ..Attributes::default() },
            Attributes {
                verb: "create",
                group: "authentication.k8s.io",
                resource: "selfsubjectreviews",
                ..Attributes::default()
            },
        ] {
            assert!(ask(allowed), "{allowed:?}");
        }
        for refused in [
            on("get", "other", ""),
            on("get", "missing", ""),
            on("list", "", ""),
            on("watch", "", ""),
            Attributes { selection: Some(&other), ..on("watch", "", "") },
            on("update", "own", ""),
            on("patch", "own", ""),
            on("delete", "own", ""),
            on("deletecollection", "", ""),
            on("update", "own", "approval"),
            on("update", "own", "status"),
            Attributes { verb: "get", path: "/metrics", ..Attributes::default() },
            Attributes { verb: "get", path: "/kedge/nodes", ..Attributes::default() },
        ] {
            assert!(!ask(refused), "{refused:?}");
        }
        for verb in ["get", "list", "watch", "create", "update", "patch", "delete"] {
            for resource in ["secrets", "configmaps", "nodes", "pods", "serviceaccounts", "events", "leases"]
            {
                let name = if resource == "secrets" { "bootstrap-token-000000" } else { "n" };
                let asked =
                    Attributes { verb, resource, name, namespace: NAMESPACE, ..Attributes::default() };
                assert!(!ask(asked), "{asked:?}");
            }
        }
        assert_eq!(
            rules(&caller, "default", &Objects::default())["resourceRules"][0]["resources"],
            json!([REQUESTS])
        );
    }

    #[test]
    fn request_is_for_a_name_of_the_token() {
        let view = stored(token("edge-*", None).to_secret());
        let check = |new: &Value, expect: Result<(), &str>| {
            assert_eq!(admit("000000", new, &view), expect.map_err(str::to_owned));
        };
        check(&of_node("edge-1"), Ok(()));
        check(&of_node("hub"), Err(r#"bootstrap token "000000" is for node "edge-*", not for "hub""#));
        for (pem, why) in [
            (pem("system:node:edge-1", &["system:masters"], &[]), "subject organization is not system:nodes"),
            (pem("edge-1", &["system:nodes"], &[]), "subject common name does not begin with system:node:"),
            (pem("system:node:edge-1", &["system:nodes"], &["a"]), "DNS subjectAltNames are not allowed"),
        ] {
            check(&request(&pem), Err(why));
        }
        let mut other = of_node("edge-1");
        other["spec"]["signerName"] = "kubernetes.io/kube-apiserver-client".into();
        check(
            &other,
            Err(
                r#"bootstrap token "000000" may request certificates of the signer kubernetes.io/kube-apiserver-client-kubelet alone"#,
            ),
        );
        let mut kept = of_node("edge-1");
        kept["metadata"]["finalizers"] = json!(["a/b"]);
        check(&kept, Err(r#"bootstrap token "000000" is not allowed to set finalizers"#));
        let mut garbled = of_node("edge-1");
        garbled["spec"]["request"] = "eA==".into();
        assert!(admit("000000", &garbled, &view).unwrap_err().starts_with("unable to parse csr: "));
        assert_eq!(
            admit("000001", &of_node("edge-1"), &view),
            Err(r#"bootstrap token "000001" not found"#.to_owned())
        );
    }

    #[test]
    fn used_token_repeats_its_request_alone() {
        let mut secret = token("edge-1", Some(1)).to_secret();
        let (first, other) = (of_node("edge-1"), of_node("edge-1"));
        let key = |request: &Value| {
            Request::from_pem(&schema::base64_decode(text(request, &["spec", "request"])).unwrap())
                .unwrap()
                .public_key
        };
        assert_eq!(admit("000000", &other, &stored(secret.clone())), Ok(()));
        assert!(spend(&mut secret, "edge-1", &key(&first)));
        let view = stored(secret);
        assert_eq!(admit("000000", &first, &view), Ok(()));
        assert_eq!(
            admit("000000", &other, &view),
            Err(r#"bootstrap token "000000" was used by another request; ask the hub's administrator for a new one"#
                .to_owned())
        );
    }

    #[test]
    fn user_and_group_are_both_needed() {
        let create = Attributes {
            verb: "create",
            group: "certificates.k8s.io",
            resource: REQUESTS,
            ..Attributes::default()
        };
        for (user, group, expect) in [
            ("system:bootstrap:abcdef", "system:bootstrappers", true),
            ("system:bootstrap:abcdef", "system:authenticated", false),
            ("system:bootstrap:x", "system:bootstrappers", false),
            ("jane", "system:bootstrappers", false),
        ] {
            let caller = Identity::new(user, &[group]);
            assert_eq!(
                authorize(Some(&caller), &create, &Objects::default()).is_ok(),
                expect,
                "{user} {group}"
            );
        }
    }
}
