//! Signs approved requests for client certificates with the hub's own authority, and removes requests that are over.
//!
//! Two signers, upstream's: `kubernetes.io/kube-apiserver-client` and `kubernetes.io/kube-apiserver-client-kubelet`; requests to
//! others are stored and left to whoever signs for those. Holds: nothing is signed that nobody approved; what is approved and cannot be
//! signed fails with a reason and is not tried again; who approves is `auth`'s. Approval is always a person's: there is no approval by
//! itself of a node's renewal, and a certificate cannot be taken back, so its life is a year at most.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::Hub;
use crate::pki::Pki;
use crate::requests::now_text;
use kedge_api::{CLIENT_SIGNER, NODE_SIGNER};
use kedge_hub_core::identity::certificate_request::Request;
use kedge_hub_core::kinds::{CERTIFICATE_REQUEST, at, schema, text};
use kedge_hub_core::object::Object;

/// Longest life of a certificate, and what one gets that asks for nothing: upstream's --cluster-signing-duration.
const LONGEST: time::Duration = time::Duration::days(365);
/// Shortest life, as upstream.
const SHORTEST: time::Duration = time::Duration::minutes(10);
/// A request that was answered is kept so long for whoever asked to fetch it; upstream's.
const KEPT_WHEN_DECIDED: time::Duration = time::Duration::hours(1);
/// One that nobody decided on, as upstream.
const KEPT_WHEN_PENDING: time::Duration = time::Duration::hours(24);
/// Everything is looked at this often, besides what changes.
const SWEEP: Duration = Duration::from_secs(60);
/// Wait before the subscription is made again.
const RESUBSCRIBE: Duration = Duration::from_millis(200);

/// Runs until dropped.
pub async fn run(hub: Arc<Hub>, pki: Arc<Pki>) {
    loop {
        let mut requests = hub.subscribe(&CERTIFICATE_REQUEST);
        for object in hub.list(&CERTIFICATE_REQUEST, "") {
            answer(&hub, &pki, &object).await;
            expire(&hub, &object).await;
        }
        let sweep = tokio::time::sleep(SWEEP);
        tokio::pin!(sweep);
        loop {
            tokio::select! {
                change = requests.next() => match change {
                    Some(event) => if let Some(object) = &event.new {
                        answer(&hub, &pki, object).await;
                    },
                    None => break,
                },
                () = &mut sweep => break,
            }
        }
        tokio::time::sleep(RESUBSCRIBE).await;
    }
}

fn condition<'a>(request: &'a Value, sort: &str) -> Option<&'a Value> {
    let conditions = at(request, &["status", "conditions"])?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == sort && condition["status"] == "True")
}

/// Whether it is time to sign: approved, not failed, not answered yet, and for one of our signers.
fn is_due(request: &Value) -> bool {
    matches!(text(request, &["spec", "signerName"]), CLIENT_SIGNER | NODE_SIGNER)
        && condition(request, "Approved").is_some()
        && condition(request, "Denied").is_none()
        && condition(request, "Failed").is_none()
        && text(request, &["status", "certificate"]).is_empty()
}

/// How long the certificate will live.
fn life(request: &Value) -> time::Duration {
    let asked = at(request, &["spec", "expirationSeconds"]).and_then(Value::as_i64);
    asked.map_or(LONGEST, |secs| time::Duration::seconds(secs).clamp(SHORTEST, LONGEST))
}

/// The certificate (PEM), or why there is none.
fn sign(pki: &Pki, request: &Value, now: OffsetDateTime) -> Result<String, String> {
    let bytes = schema::base64_decode(text(request, &["spec", "request"])).unwrap_or_default();
    let asked = Request::from_pem(&bytes)?;
    let usages: Vec<&str> = at(request, &["spec", "usages"])
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    asked.check(text(request, &["spec", "signerName"]), &usages)?;
    let enciphers = usages.contains(&"key encipherment");
    pki.sign_client(&asked, enciphers, now, life(request)).map_err(|error| error.to_string())
}

async fn answer(hub: &Hub, pki: &Pki, object: &Object) {
    let request = object.value();
    if !is_due(&request) {
        return;
    }
    let (name, user) = (&object.name, text(&request, &["spec", "username"]));
    let outcome = sign(pki, &request, OffsetDateTime::now_utc());
    let uid = &*object.uid;
    let stored = hub.update(&CERTIFICATE_REQUEST, "", name, |found: &mut Value| {
        if found["metadata"]["uid"] == uid && is_due(found) {
            write_answer(found, &outcome, &now_text());
        }
    });
    match (stored.await, &outcome) {
        (Ok(_), Ok(_)) => log::info!("signed the certificate that {user} asked for: request {name}"),
        (Ok(_), Err(why)) => log::warn!("request {name} of {user} is approved and cannot be signed: {why}"),
        (Err(error), _) if error.code == 404 => {}
        (Err(error), _) => log::warn!("cannot answer request {name}, trying again: {error}"),
    }
}

fn write_answer(request: &mut Value, outcome: &Result<String, String>, now: &str) {
    match outcome {
        Ok(pem) => request["status"]["certificate"] = schema::base64_encode(pem.as_bytes()).into(),
        Err(why) => {
            let failed = json!({"type": "Failed", "status": "True", "reason": "SignerValidationFailure", "message": why,
                "lastUpdateTime": now, "lastTransitionTime": now});
            if let Some(conditions) = request["status"]["conditions"].as_array_mut() {
                conditions.push(failed);
            }
        }
    }
}

/// Since when a request only lies there, and for how long it may. By the hub's clock: it sets lastTransitionTime itself.
fn is_over(request: &Value, now: OffsetDateTime) -> bool {
    let stamp = |time: &str| schema::parse_time(time);
    let created = stamp(text(request, &["metadata", "creationTimestamp"]));
    let decided = ["Denied", "Failed", "Approved"].iter().find_map(|sort| condition(request, sort));
    let (since, kept) = match decided {
        // approved and waiting for somebody else's signer is waiting still
        Some(decision)
            if decision["type"] != "Approved" || !text(request, &["status", "certificate"]).is_empty() =>
        {
            (stamp(text(decision, &["lastTransitionTime"])).max(created), KEPT_WHEN_DECIDED)
        }
        _ => (created, KEPT_WHEN_PENDING),
    };
    since.is_some_and(|since| now - since > kept)
}

async fn expire(hub: &Hub, object: &Object) {
    if object.terminating || !is_over(&object.value(), OffsetDateTime::now_utc()) {
        return;
    }
    match hub.delete(&CERTIFICATE_REQUEST, "", &object.name).await {
        Ok(()) => {}
        Err(error) if error.code == 404 => {}
        Err(error) => log::warn!("cannot remove the certificate request {}: {error}", object.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: OffsetDateTime = time::macros::datetime!(2026-11-21 12:00:00 UTC);

    fn request(signer: &str, conditions: &[&str], certificate: &str) -> Value {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|sort| json!({"type": sort, "status": "True", "lastTransitionTime": "2026-11-21T11:30:00Z"}))
            .collect();
        json!({"metadata": {"creationTimestamp": "2026-11-20T13:00:00Z"}, "spec": {"signerName": signer},
            "status": {"conditions": conditions, "certificate": certificate}})
    }

    #[test]
    fn only_what_is_approved_and_ours_is_signed_once() {
        let check = |signer: &str, conditions: &[&str], certificate: &str, expect: bool| {
            assert_eq!(is_due(&request(signer, conditions, certificate)), expect, "{signer} {conditions:?}");
        };
        check(CLIENT_SIGNER, &["Approved"], "", true);
        check(NODE_SIGNER, &["Approved"], "", true);
        check(CLIENT_SIGNER, &[], "", false);
        check(CLIENT_SIGNER, &["Denied"], "", false);
        check(CLIENT_SIGNER, &["Approved", "Failed"], "", false);
        check(CLIENT_SIGNER, &["Approved"], "eA==", false);
        check("kubernetes.io/kubelet-serving", &["Approved"], "", false);
        check("example.com/x", &["Approved"], "", false);
    }

    #[test]
    fn requests_go_when_they_are_over() {
        let check = |conditions: &[&str], certificate: &str, hours: i64, expect: bool| {
            let now = NOW + time::Duration::hours(hours);
            assert_eq!(
                is_over(&request(CLIENT_SIGNER, conditions, certificate), now),
                expect,
                "{conditions:?} {hours}"
            );
        };
        check(&[], "", 0, false);
        check(&[], "", 2, true);
        check(&["Approved"], "eA==", 0, false);
        check(&["Approved"], "eA==", 1, true);
        check(&["Denied"], "", 0, false);
        check(&["Denied"], "", 1, true);
        check(&["Approved", "Failed"], "", 1, true);
        // nobody signed it yet: it waits like a pending one
        check(&["Approved"], "", 0, false);
        check(&["Approved"], "", 2, true);
    }

    #[test]
    fn lives_are_between_ten_minutes_and_a_year() {
        let check = |asked: Value, expect: time::Duration| {
            assert_eq!(life(&json!({"spec": {"expirationSeconds": asked}})), expect, "{asked}");
        };
        check(Value::Null, LONGEST);
        check(json!(3600), time::Duration::hours(1));
        check(json!(1), SHORTEST);
        check(json!(i64::MAX), LONGEST);
    }

    #[test]
    fn a_certificate_says_what_was_asked_and_nothing_more() {
        use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
        let directory = kedge_rig::Scratch::new("hub-signer").unwrap();
        let pki = Pki::open(&directory, &["localhost".to_owned()], NOW).unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, "system:node:a");
        let key = KeyPair::generate().unwrap();
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        let mut asked = request(NODE_SIGNER, &["Approved"], "");
        asked["spec"]["request"] = schema::base64_encode(pem.as_bytes()).into();
        asked["spec"]["usages"] = json!(["client auth", "digital signature"]);
        let issued = sign(&pki, &asked, NOW).unwrap();
        let (_, parsed) = x509_parser::pem::parse_x509_pem(issued.as_bytes()).unwrap();
        let identity = kedge_hub_core::identity::Identity::from_client_certificate(&parsed.contents).unwrap();
        assert_eq!((identity.node(), identity.is_admin()), (Some("a"), false));
        let certificate = parsed.parse_x509().unwrap();
        assert_eq!(certificate.validity().not_after.to_datetime(), NOW + LONGEST);
        assert!(!certificate.is_ca());
        let usage = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.client_auth && !usage.server_auth && !usage.any);
        asked["spec"]["usages"] = json!(["server auth"]);
        let why = sign(&pki, &asked, NOW);
        write_answer(&mut asked, &why, "now");
        assert_eq!(condition(&asked, "Failed").unwrap()["reason"], "SignerValidationFailure");
        assert!(!is_due(&asked));
    }
}
