//! Tokens of service accounts: their claims, and whether a claim is still true.
//!
//! Owns: upstream's claims, in JSON web tokens signed with ES256. Always holds: a token is accepted only if
//! the hub's own key signed it for one of the requested audiences, and for as long as its service account and
//! the object it is bound to exist with the UIDs that it names. These are 150 lines over ring, which is
//! linked anyway: the crates for JWT bring every algorithm and their own choice of cryptography. Left to
//! others: signing (`pki`), requests for tokens and reviews (the server).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::attributes::ClusterView;
use super::identity::{ISSUE_NUMBER, Identity};
use crate::decode;
use crate::value::{at, text};
use kedge_api::AUTHENTICATED_GROUP;

/// Names the issuer in tokens; also the audience of the API itself. It does not depend on the hub's address,
/// which may change.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// Default life of a token.
pub const DEFAULT_SECS: i64 = 60 * 60;
/// Shortest life that a request may ask for, as upstream.
pub const SHORTEST_SECS: i64 = 10 * 60;
/// Longest life that a request may ask for, as upstream.
pub const LONGEST_SECS: i64 = 1 << 32;
/// Longest life of a token that a node requests; a longer request is shortened, as by upstream's
/// --service-account-max-token-expiration. So a token that a thief took from a device expires by itself.
/// Kubelets request the next one after a day at the latest.
const LONGEST_SECS_FOR_NODES: i64 = 24 * 60 * 60;
/// Longest token that is parsed: claims have about a kilobyte.
const MAX_BYTES: usize = 8 * 1024;
/// An object that is being deleted still counts for this time, as upstream: its pod may be shutting down in
/// order.
const LEEWAY: time::Duration = time::Duration::minutes(1);
/// The sorts of objects that a token may be bound to, their claim and their resource.
pub const BOUND: [(&str, &str, &str); 3] =
    [("Pod", "pod", "pods"), ("Secret", "secret", "secrets"), ("Node", "node", "nodes")];

/// The hub's public key.
#[derive(Debug, Clone)]
pub struct Verifier {
    /// The point, uncompressed: 65 bytes.
    point: Vec<u8>,
    /// Upstream's id of the key.
    pub id: String,
}

impl Verifier {
    /// `point`: uncompressed, as ring has it; `spki`: the DER of its SubjectPublicKeyInfo.
    pub fn new(point: &[u8], spki: &[u8]) -> Verifier {
        let digest = ring::digest::digest(&ring::digest::SHA256, spki);
        Verifier { point: point.to_vec(), id: URL_SAFE_NO_PAD.encode(digest) }
    }

    /// The key as a JSON web key set.
    pub fn key_set(&self) -> Value {
        let (x, y) = (self.point.get(1..33).unwrap_or_default(), self.point.get(33..).unwrap_or_default());
        json!({"keys": [{"use": "sig", "kty": "EC", "kid": self.id, "crv": "P-256", "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y)}]})
    }

    /// The text to sign for these claims.
    pub fn unsigned(&self, claims: &Value) -> String {
        let header = json!({"alg": "ES256", "kid": self.id});
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}", encode(&header), encode(claims))
    }

    /// The claims of a token, if our key signed it.
    pub fn claims(&self, token: &str) -> Option<Value> {
        if token.len() > MAX_BYTES {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let read = |part: &str| decode::value(&URL_SAFE_NO_PAD.decode(part).ok()?);
        let header = read(header)?;
        // checked before the signature, so that tokens from other issuers cost no arithmetic
        if header["alg"] != "ES256" || header["kid"] != *self.id {
            return None;
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &self.point);
        key.verify(signed.as_bytes(), &signature).ok()?;
        read(claims)
    }
}

/// The signed token.
pub fn signed(unsigned: &str, signature: &[u8]) -> String {
    format!("{unsigned}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// A token to issue.
#[derive(Debug)]
pub struct Grant<'a> {
    pub namespace: &'a str,
    /// Name and UID of the service account.
    pub account: (&'a str, &'a str),
    pub audiences: &'a [String],
    /// Claim, name and UID of the objects it is bound to; for a pod also its node.
    pub bound: &'a [(&'static str, String, String)],
    /// UUID of the token.
    pub id: &'a str,
    /// A number above all issue numbers handed out: the token counts as issued after them.
    pub issue: u64,
}

impl Grant<'_> {
    /// Upstream's claims.
    pub fn claims(&self, now: i64, seconds: i64) -> Value {
        let mut private = json!({"namespace": self.namespace,
            "serviceaccount": {"name": self.account.0, "uid": self.account.1}});
        for (claim, name, uid) in self.bound {
            private[claim] =
                if uid.is_empty() { json!({"name": name}) } else { json!({"name": name, "uid": uid}) };
        }
        json!({"aud": self.audiences, "exp": now + seconds, "iat": now, "nbf": now, "iss": ISSUER, "jti": self.id,
            "kubernetes.io": private, ISSUE_NUMBER: self.issue,
            "sub": format!("system:serviceaccount:{}:{}", self.namespace, self.account.0)})
    }
}

/// The life of a token for which this caller asked `asked` seconds; and a warning if it gets less.
pub fn granted_secs(caller: &Identity, asked: i64) -> (i64, Option<String>) {
    let longest = LONGEST_SECS_FOR_NODES;
    if caller.node().is_none() || caller.is_admin() || asked <= longest {
        return (asked, None);
    }
    (longest, Some(format!("requested expiration of {asked} seconds shortened to {longest} seconds")))
}

/// The identity that a token proves, and the audiences that it is valid for.
///
/// # Errors
/// The error is upstream's reason, for a review.
pub fn authenticate(
    claims: &Value,
    audiences: &[String],
    now: OffsetDateTime,
    view: &dyn ClusterView,
) -> Result<(Identity, Vec<String>), String> {
    if claims["iss"] != ISSUER {
        return Err("invalid issuer".to_owned());
    }
    let named = claims["aud"].as_array().map_or(&[][..], Vec::as_slice);
    let good: Vec<String> =
        audiences.iter().filter(|one| named.iter().any(|own| own == *one)).cloned().collect();
    if good.is_empty() {
        return Err(format!(
            "token audiences {} is invalid for the target audiences {audiences:?}",
            claims["aud"]
        ));
    }
    let expires = claims["exp"].as_i64().unwrap_or(0);
    if now.unix_timestamp() >= expires {
        return Err("service account token has expired".to_owned());
    }
    if claims["nbf"].as_i64().is_none_or(|begins| now.unix_timestamp() < begins) {
        return Err("service account token is not valid yet".to_owned());
    }
    let private = &claims["kubernetes.io"];
    let namespace = text(private, &["namespace"]);
    let account = &private["serviceaccount"];
    holds(view, "serviceaccounts", namespace, account, now)?;
    for (_, claim, resource) in BOUND {
        // the node of a pod's token may have been replaced; a token bound to a node is not bound to a pod
        let inferred = claim == "node" && at(private, &["pod"]).is_some();
        if let Some(object) = at(private, &[claim]).filter(|_| !inferred) {
            holds(view, resource, if resource == "nodes" { "" } else { namespace }, object, now)?;
        }
    }
    Ok((identity(claims, expires), good))
}

/// Whether an object exists with this UID, or was deleted only just now.
fn holds(
    view: &dyn ClusterView,
    resource: &str,
    namespace: &str,
    claimed: &Value,
    now: OffsetDateTime,
) -> Result<(), String> {
    let invalid = || Err("service account token has been invalidated".to_owned());
    let name = text(claimed, &["name"]);
    let Some(found) = view.object(resource, namespace, name) else { return invalid() };
    if found["metadata"]["uid"] != claimed["uid"] {
        return invalid();
    }
    let deleted = text(&found, &["metadata", "deletionTimestamp"]);
    let deleted = OffsetDateTime::parse(deleted, &time::format_description::well_known::Rfc3339);
    match deleted {
        Ok(time) if time + LEEWAY < now => invalid(),
        _ => Ok(()),
    }
}

fn identity(claims: &Value, expires: i64) -> Identity {
    let private = &claims["kubernetes.io"];
    let namespace = text(private, &["namespace"]);
    let mut facts = std::collections::BTreeMap::new();
    for claim in ["node", "pod"] {
        for part in ["name", "uid"] {
            let value = text(private, &[claim, part]);
            if !value.is_empty() {
                facts.insert(format!("authentication.kubernetes.io/{claim}-{part}"), vec![value.to_owned()]);
            }
        }
    }
    let mut groups = super::service_account_groups(namespace);
    groups.push(AUTHENTICATED_GROUP.to_owned());
    Identity {
        user: text(claims, &["sub"]).to_owned(),
        groups,
        uid: text(private, &["serviceaccount", "uid"]).to_owned(),
        facts,
        not_after: Some(expires),
        issue: claims[ISSUE_NUMBER].as_u64().unwrap_or(0),
        issued: claims["iat"].as_i64().map(|secs| secs.saturating_mul(1_000_000)),
        credential: format!("JTI={}", text(claims, &["jti"])).into(),
        ..Identity::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Objects;
    use super::*;

    fn view() -> Objects {
        let object = |uid: &str| json!({"metadata": {"uid": uid}});
        Objects::default()
            .with("serviceaccounts", "default", "runs", object("sa"))
            .with("pods", "default", "p", object("pod"))
            .with("secrets", "default", "s", object("secret"))
            .with("nodes", "", "n", object("node"))
    }

    fn claims(bound: &[(&'static str, &str, &str)]) -> Value {
        let bound: Vec<_> =
            bound.iter().map(|(claim, name, uid)| (*claim, (*name).to_owned(), (*uid).to_owned())).collect();
        let audiences = [ISSUER.to_owned(), "x".to_owned()];
        Grant {
            namespace: "default",
            account: ("runs", "sa"),
            audiences: &audiences,
            bound: &bound,
            id: "1",
            issue: 7,
        }
        .claims(1000, 600)
    }

    #[test]
    fn node_gets_a_token_of_a_day_at_most() {
        let (node, admin) = (
            Identity::new("system:node:a", &["system:nodes"]),
            Identity::new("system:node:a", &["system:nodes", "system:masters"]),
        );
        let shortened = "requested expiration of 86401 seconds shortened to 86400 seconds".to_owned();
        assert_eq!(granted_secs(&node, 86_400), (86_400, None));
        assert_eq!(granted_secs(&node, 86_401), (86_400, Some(shortened)));
        assert_eq!(granted_secs(&admin, 86_401), (86_401, None));
        assert_eq!(granted_secs(&Identity::new("jane", &[]), LONGEST_SECS), (LONGEST_SECS, None));
    }

    #[track_caller]
    fn check(claims: &Value, seconds: i64, view: &Objects, expect: &str) {
        let now = OffsetDateTime::from_unix_timestamp(seconds).unwrap();
        let found = authenticate(claims, &[ISSUER.to_owned()], now, view);
        assert_eq!(found.err().unwrap_or_default(), expect);
    }

    #[test]
    fn token_holds_while_it_lives() {
        let claims = claims(&[]);
        check(&claims, 1000, &view(), "");
        check(&claims, 1599, &view(), "");
        check(&claims, 1600, &view(), "service account token has expired");
        check(&claims, 999, &view(), "service account token is not valid yet");
        let mut foreign = claims.clone();
        foreign["iss"] = "https://elsewhere".into();
        check(&foreign, 1000, &view(), "invalid issuer");
        let mut other = claims;
        other["aud"] = json!(["y"]);
        let now = OffsetDateTime::from_unix_timestamp(1000).unwrap();
        let refused = authenticate(&other, &["x".to_owned()], now, &view()).unwrap_err();
        assert_eq!(refused, "token audiences [\"y\"] is invalid for the target audiences [\"x\"]");
    }

    #[test]
    fn token_holds_while_what_it_is_bound_to_exists() {
        let gone = "service account token has been invalidated";
        check(&claims(&[]), 1000, &Objects::default(), gone);
        for (claim, name) in [("pod", "p"), ("secret", "s"), ("node", "n")] {
            check(&claims(&[(claim, name, claim)]), 1000, &view(), "");
            check(&claims(&[(claim, name, "other")]), 1000, &view(), gone);
            check(&claims(&[(claim, "missing", claim)]), 1000, &view(), gone);
        }
        // a pod's token only mentions its node
        check(&claims(&[("pod", "p", "pod"), ("node", "missing", "x")]), 1000, &view(), "");
        let dying = json!({"metadata": {"uid": "pod", "deletionTimestamp": "1970-01-01T00:16:40Z"}});
        let view = view().with("pods", "default", "p", dying);
        check(&claims(&[("pod", "p", "pod")]), 1060, &view, "");
        check(&claims(&[("pod", "p", "pod")]), 1061, &view, gone);
    }

    #[test]
    fn identity_is_upstreams() {
        let now = OffsetDateTime::from_unix_timestamp(1000).unwrap();
        let claims = claims(&[("pod", "p", "pod"), ("node", "n", "node")]);
        let (found, good) = authenticate(&claims, &["x".to_owned(), "z".to_owned()], now, &view()).unwrap();
        assert_eq!(good, ["x"]);
        assert_eq!((found.user.as_str(), found.uid.as_str()), ("system:serviceaccount:default:runs", "sa"));
        assert_eq!(
            found.groups,
            ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]
        );
        assert_eq!(found.not_after, Some(1600));
        let extra = found.extra();
        assert_eq!(extra["authentication.kubernetes.io/pod-name"], ["p"]);
        assert_eq!(extra["authentication.kubernetes.io/node-uid"], ["node"]);
        assert_eq!(extra["authentication.kubernetes.io/credential-id"], ["JTI=1"]);
    }

    #[test]
    fn only_our_own_signature_is_believed() {
        use ring::rand::SystemRandom;
        use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
        let make = || {
            let random = SystemRandom::new();
            let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
            let key =
                EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.as_ref(), &random).unwrap();
            let verifier = Verifier::new(key.public_key().as_ref(), key.public_key().as_ref());
            (key, verifier)
        };
        let ((key, verifier), (other, stranger)) = (make(), make());
        let claims = claims(&[]);
        let sign = |key: &EcdsaKeyPair, verifier: &Verifier| {
            let text = verifier.unsigned(&claims);
            signed(&text, key.sign(&SystemRandom::new(), text.as_bytes()).unwrap().as_ref())
        };
        let token = sign(&key, &verifier);
        assert_eq!(verifier.claims(&token), Some(claims.clone()));
        assert_eq!(verifier.claims(&sign(&other, &stranger)), None);
        assert_eq!(verifier.claims(&sign(&other, &verifier)), None, "our id, another's signature");
        let parts: Vec<&str> = token.split('.').collect();
        for header in [json!({"alg": "none", "kid": verifier.id}), json!({"alg": "ES256", "kid": "other"})] {
            let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), parts[1]);
            let signature = key.sign(&SystemRandom::new(), text.as_bytes()).unwrap();
            assert_eq!(verifier.claims(&signed(&text, signature.as_ref())), None, "{header}");
        }
        let changed = URL_SAFE_NO_PAD.encode(claims.to_string().replace("runs", "root"));
        let none = URL_SAFE_NO_PAD.encode(json!({"alg": "none", "kid": verifier.id}).to_string());
        for forged in [
            format!("{}.{changed}.{}", parts[0], parts[2]),
            format!("{none}.{}.{}", parts[1], parts[2]),
            format!("{none}.{}.", parts[1]),
            format!("{}.{}", parts[0], parts[1]),
            token[..token.len() - 2].to_owned(),
            String::new(),
            "a.b.c".to_owned(),
            "x".repeat(MAX_BYTES + 1),
        ] {
            assert_eq!(verifier.claims(&forged), None, "{forged}");
        }
        let keys = verifier.key_set();
        assert_eq!(keys["keys"][0]["x"].as_str().map(str::len), Some(43));
    }
}
