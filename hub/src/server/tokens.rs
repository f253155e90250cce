//! Tokens of service accounts over HTTP: issuing them, verifying them, and the documents of their issuer.
//!
//! Always holds: the signature of a token is verified once per request, and its claims are checked again by
//! each decision. Left to others: the claims of a token and their validity
//! (`kedge_hub_core::identity::token`), the end of its watches (`authentication`), the key (`pki`).

use crate::server::credentials::claims;
use http::Response;
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::authentication;
use super::context::{RequestContext, attributes};
use super::respond::{self, Body};
use super::route::Target;
use crate::fresh::fresh;
use crate::hub::Hub;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::field_error::FieldError;
use kedge_hub_core::identity::token::{
    self, BOUND, DEFAULT_SECS, Grant, ISSUER, LONGEST_SECS, SHORTEST_SECS,
};
use kedge_hub_core::identity::{ClusterView as _, Identity};
use kedge_hub_core::value::{at, rfc3339, text};

/// `POST .../serviceaccounts/NAME/token`.
pub(super) fn issue(
    context: &RequestContext<'_>,
    target: &Target,
    mut request: Value,
) -> Result<Response<Body>, ApiError> {
    let hub = &*context.server.hub;
    let tokens = hub.tokens().ok_or_else(ApiError::path_not_found)?;
    let asking = attributes("create", target, None);
    let identity = context.identity.as_ref().ok_or_else(ApiError::unauthorized)?;
    // before the account is looked up, so that a refusal does not show whether it exists
    context.admit(&asking, None, &request)?;
    let account = hub
        .object("serviceaccounts", &target.namespace, &target.name)
        .ok_or_else(|| ApiError::not_found(target.kind, &target.name))?;
    let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(DEFAULT_SECS);
    let mut errors = Vec::new();
    if seconds < SHORTEST_SECS {
        let why = "may not specify a duration less than 10 minutes";
        errors.push(FieldError::invalid("spec.expirationSeconds", seconds, why));
    } else if seconds > LONGEST_SECS {
        let why = "may not specify a duration larger than 2^32 seconds";
        errors.push(FieldError::invalid("spec.expirationSeconds", seconds, why));
    }
    if !errors.is_empty() {
        return Err(ApiError::invalid(target.kind, &target.name, &errors));
    }
    let audiences: Vec<String> = match request["spec"]["audiences"].as_array() {
        Some(list) if !list.is_empty() => list.iter().filter_map(Value::as_str).map(named).collect(),
        _ => vec![ISSUER.to_owned()],
    };
    let bound = bound(hub, target, &request["spec"])?;
    let (seconds, warning) = token::granted_secs(identity, seconds);
    let now = OffsetDateTime::now_utc();
    let id = kedge_hub_core::requests::uid(&fresh()?.random);
    let grant = Grant {
        namespace: &target.namespace,
        account: (&target.name, text(&account, &["metadata", "uid"])),
        audiences: &audiences,
        bound: &bound,
        id: &id,
        issue: hub.issue_numbers().highest().saturating_add(1),
    };
    let signed = tokens
        .sign(&grant.claims(now.unix_timestamp(), seconds))
        .ok_or_else(|| ApiError::internal("the system gives no random numbers"))?;
    let expires = rfc3339(now + time::Duration::seconds(seconds));
    context.trail.issues(&id, &audiences, &expires);
    request["kind"] = "TokenRequest".into();
    request["apiVersion"] = "authentication.k8s.io/v1".into();
    request["metadata"] =
        json!({"name": target.name, "namespace": target.namespace, "creationTimestamp": rfc3339(now)});
    request["spec"]["audiences"] = json!(audiences);
    request["spec"]["expirationSeconds"] = seconds.into();
    request["status"] = json!({"token": signed, "expirationTimestamp": expires});
    let mut response = respond::json(201, &request);
    respond::warn(&mut response, warning.as_slice());
    Ok(response)
}

/// An empty audience means the API itself, as in a pod's volume.
fn named(audience: &str) -> String {
    if audience.is_empty() { ISSUER } else { audience }.to_owned()
}

/// The objects that a token is bound to: the requested object, and the node of a pod.
fn bound(hub: &Hub, target: &Target, spec: &Value) -> Result<Vec<(&'static str, String, String)>, ApiError> {
    let Some(asked) = at(spec, &["boundObjectRef"]).filter(|asked| !asked.is_null()) else {
        return Ok(Vec::new());
    };
    let (kind, name, uid) = (text(asked, &["kind"]), text(asked, &["name"]), text(asked, &["uid"]));
    let known = BOUND.iter().find(|(known, ..)| *known == kind && text(asked, &["apiVersion"]) == "v1");
    let Some((_, claim, resource)) = known else {
        let why =
            format!("cannot bind token to object of type {}, Kind={kind}", text(asked, &["apiVersion"]));
        return Err(ApiError::bad_request(why));
    };
    let namespace = if *resource == "nodes" { "" } else { &target.namespace };
    let of = kedge_hub_core::kinds::by_resource(resource).ok_or_else(ApiError::path_not_found)?;
    let found = hub.object(resource, namespace, name).ok_or_else(|| ApiError::not_found(of, name))?;
    let own = text(&found, &["metadata", "uid"]);
    if !uid.is_empty() && uid != own {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(ApiError::conflict_because(of, name, &why));
    }
    let mut bound = vec![(*claim, name.to_owned(), own.to_owned())];
    // as upstream: a pod's token is for the pod's own account, and also names the pod's node
    if *claim == "pod" {
        let account = text(&found, &["spec", "serviceAccountName"]);
        if account != target.name {
            let why = format!(
                "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                target.name
            );
            return Err(ApiError::bad_request(why));
        }
        let node = text(&found, &["spec", "nodeName"]);
        if !node.is_empty() {
            let object = hub.object("nodes", "", node);
            let uid = object.map(|object| text(&object, &["metadata", "uid"]).to_owned()).unwrap_or_default();
            bound.push(("node", node.to_owned(), uid));
        }
    }
    Ok(bound)
}

/// The status of a TokenReview.
pub(super) fn review(context: &RequestContext<'_>, spec: &Value) -> Value {
    let hub = &*context.server.hub;
    let audiences: Vec<String> = match spec["audiences"].as_array() {
        Some(list) if !list.is_empty() => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => vec![ISSUER.to_owned()],
    };
    // a bootstrap token is for the API itself
    if audiences.iter().any(|audience| audience == ISSUER)
        && let Some(judged) =
            authentication::of_reviewed(context.server, context.trail.from(), text(spec, &["token"]))
    {
        return reviewed(judged.map(|identity| (identity, vec![ISSUER.to_owned()])));
    }
    let claims = claims(hub, text(spec, &["token"])).ok_or_else(|| "invalid bearer token".to_owned());
    let judged =
        claims.and_then(|claims| token::authenticate(&claims, &audiences, OffsetDateTime::now_utc(), hub));
    let judged =
        judged.and_then(|(identity, good)| match context.server.credentials.denied().refusal(&identity) {
            Some(why) => Err(why),
            None => Ok((identity, good)),
        });
    reviewed(judged)
}

fn reviewed(judged: Result<(Identity, Vec<String>), String>) -> Value {
    match judged {
        Ok((identity, good)) => {
            json!({"authenticated": true, "user": super::reviews::user_info(&identity), "audiences": good})
        }
        Err(why) => json!({"error": format!("[invalid bearer token, {why}]")}),
    }
}

/// `/.well-known/openid-configuration`.
pub(super) fn configuration(context: &RequestContext<'_>) -> Result<Response<Body>, ApiError> {
    let tokens = context.server.hub.tokens().ok_or_else(ApiError::path_not_found)?;
    let document = json!({"issuer": ISSUER, "jwks_uri": format!("{}/openid/v1/jwks", tokens.url),
        "response_types_supported": ["id_token"], "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"]});
    Ok(respond::json(200, &document))
}

/// `/openid/v1/jwks`.
pub(super) fn keys(context: &RequestContext<'_>) -> Result<Response<Body>, ApiError> {
    let tokens = context.server.hub.tokens().ok_or_else(ApiError::path_not_found)?;
    Ok(respond::bytes(200, "application/jwk-set+json", tokens.verifier.key_set().to_string()))
}

#[cfg(test)]
mod tests {
    use crate::server::authentication::Presented;
    use crate::server::caller::Caller;
    use crate::server::trail::Trail;
    use kedge_hub_core::identity::Identity;
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Arc;

    use kedge_hub_core::kinds::{CONFIG_MAP, SERVICE_ACCOUNT};

    use super::super::request::Parameters;
    use super::super::shared::Server;
    use super::*;
    use crate::capacity::{Capacity, Machine};
    use crate::pki::Pki;

    /// The request waits between its body and its token; a credential that is revoked meanwhile must get no
    /// token.
    #[tokio::test]
    async fn token_is_issued_by_the_credential_of_the_moment() {
        const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let data_dir = kedge_rig::Scratch::new("hub-tokens").unwrap();
        let hub = Hub::open(&data_dir).unwrap();
        let pki = Pki::open(&data_dir, &["localhost".to_owned()], OffsetDateTime::now_utc()).unwrap();
        hub.use_tokens(pki.tokens("https://localhost").unwrap());
        let account = json!({"metadata": {"namespace": "default", "name": "a"}});
        hub.create(&SERVICE_ACCOUNT, account).await.unwrap();
        let machine = Machine { memory_bytes: 1 << 30, descriptors: 65_536, processors: 2 };
        let server = Arc::new(Server::new(Arc::clone(&hub), Capacity::of(&machine)));
        let digest = "0a".repeat(32);
        let credential = format!("X509SHA256={digest}").into();
        let boss = Identity { credential, ..Identity::new("boss", &["system:masters"]) };
        let caller = Caller::new(&server, Some(boss.clone()), HERE);
        let (parts, ()) = http::Request::new(()).into_parts();
        let context = RequestContext {
            server: &server,
            caller: Arc::clone(&caller.identity),
            presented: Arc::new(Presented::new(Arc::clone(&server), caller.clone(), &parts)),
            slot: &caller.slot,
            trail: &Trail::new(HERE),
            identity: Some(boss),
            parts: &parts,
            parameters: Parameters::default(),
            act: super::super::acts::Act::Change,
        };
        let (namespace, name) = ("default".to_owned(), "a".to_owned());
        let target = Target { kind: &SERVICE_ACCOUNT, namespace, name, subresource: "token".to_owned() };
        let issue = || issue(&context, &target, json!({"spec": {}})).map(|answer| answer.status().as_u16());
        assert_eq!(issue().map_err(|error| error.code), Ok(201));
        let denied = json!({"data": {format!("certificate.{}", digest.to_uppercase()): ""},
            "metadata": {"name": "kedge-denied", "namespace": "kube-system"}});
        hub.create(&CONFIG_MAP, denied).await.unwrap();
        assert_eq!(issue().map_err(|error| error.code), Err(401));
        hub.close();
    }
}
