//! Decides which approved requests for client certificates are signed, and removes old requests.
//!
//! Inputs: CertificateSigningRequest. Outputs: CertificateSigningRequest, and certificates to sign. Two
//! signers, upstream's: `kubernetes.io/kube-apiserver-client` and
//! `kubernetes.io/kube-apiserver-client-kubelet`; requests to others are stored for other signers. Always
//! holds: only an approved request is signed; an approved request that cannot be signed fails with a reason
//! and is not tried again. No certificate is signed for a revoked node or user, nor by request of one.
//! Answered requests are removed by their number, and by their age while the clock is trusted. Left to
//! others: the authority's key (`pki`), approving (`approving`, and people: `identity`).

use std::collections::BTreeSet;
use std::time::Duration;

use kedge_api::{CLIENT_SIGNER, NODE_SIGNER, NODE_USER_PREFIX};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::controller::{Action, Controller, Decision, Done, Edit, Level, Line, Now, Signing, Task, World};
use crate::api_error::ApiError;
use crate::identity::ISSUE_NUMBER;
use crate::identity::certificate_request::Request;
use crate::identity::denied::{DENY_LIST_NAME, DENY_LIST_NAMESPACE, DenyList};
use crate::kinds::{CERTIFICATE_REQUEST, CONFIG_MAP, Kind, schema};
use crate::object::{Event, Object};
use crate::requests::DeleteOptions;
use crate::value::{at, seconds, text};

static INPUTS: &[&Kind] = &[&CERTIFICATE_REQUEST];
static OUTPUTS: &[&Kind] = &[&CERTIFICATE_REQUEST];

/// Longest and default life of a certificate, unless the operator sets another one for nodes: upstream's
/// --cluster-signing-duration.
pub const LONGEST: time::Duration = time::Duration::days(365);
/// Shortest life, as upstream.
const SHORTEST: time::Duration = time::Duration::minutes(10);
/// Time that an answered request is kept, so that the requester can fetch the certificate; upstream's.
const KEPT_WHEN_DECIDED: time::Duration = time::Duration::hours(1);
/// Time that an undecided request is kept, as upstream.
const KEPT_WHEN_PENDING: time::Duration = time::Duration::hours(24);

/// Answered requests of a node that are kept: half of its quota (`requests::allowance`), so that it can make
/// new ones whatever any clock shows. For those of bootstrap tokens see `bootstrap_tokens`.
const KEPT_OF_NODE: usize = 8;

/// See the module.
#[derive(Debug)]
pub struct Certificates {
    /// Longest and default life of a node's certificate.
    node_life: time::Duration,
    /// Names of requests to check.
    queue: BTreeSet<String>,
    log: Vec<Line>,
}

impl Certificates {
    /// `node_life`: longest and default life of a node's certificate.
    pub fn new(node_life: time::Duration) -> Certificates {
        Certificates { node_life, queue: BTreeSet::new(), log: Vec::new() }
    }
}

/// The certificate request that an action is about.
#[derive(Debug, Clone)]
pub struct Asked {
    name: String,
    uid: String,
    user: String,
}

/// The purpose of an action.
#[derive(Debug)]
pub enum Purpose {
    Sign(Asked),
    /// With the reason, if it cannot be signed.
    Answer(Asked, Option<String>),
    Remove(String),
}

impl Controller for Certificates {
    type Purpose = Purpose;
    const NAME: &'static str = "certificates";
    const SWEEP: Option<Duration> = Some(Duration::from_secs(60));

    fn inputs() -> &'static [&'static Kind] {
        INPUTS
    }

    fn outputs() -> &'static [&'static Kind] {
        OUTPUTS
    }

    fn observe(&mut self, _: &'static Kind, event: &Event) {
        if let Some(object) = &event.new {
            self.queue.insert(object.name.to_string());
        }
    }

    fn sweep(&mut self, world: &dyn World) {
        self.queue.extend(world.list(&CERTIFICATE_REQUEST, "").iter().map(|found| found.name.to_string()));
    }

    fn reconcile(&mut self, world: &dyn World, now: Now) -> Decision<Purpose> {
        let names = std::mem::take(&mut self.queue);
        let found = names.iter().filter_map(|name| world.get(&CERTIFICATE_REQUEST, "", name));
        let denied = world.get(&CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME);
        let denied = denied.map(|found| DenyList::read(&found.value())).unwrap_or_default();
        let ages = now.ages.then_some(now.wall);
        let found: Vec<_> = found.collect();
        let mut tasks: Vec<_> =
            found.iter().filter_map(|object| decide(object, &denied, self.node_life, ages)).collect();
        let holders: BTreeSet<&str> = found.iter().filter_map(|object| object.holder.as_deref()).collect();
        tasks.extend(holders.into_iter().flat_map(|holder| surplus(world, holder)).map(|name| remove(&name)));
        Decision { tasks, ..Decision::default() }
    }

    fn performed(&mut self, purpose: Purpose, outcome: Result<Done, ApiError>, _: Now) -> Vec<Task<Purpose>> {
        match (purpose, outcome) {
            (Purpose::Sign(asked), Ok(Done::Signed(signed))) => return vec![answer(asked, signed)],
            (Purpose::Answer(asked, failure), Ok(_)) => {
                let Asked { name, user, .. } = asked;
                self.log.push(match failure {
                    None => {
                        (Level::Info, format!("signed the certificate that {user} asked for: request {name}"))
                    }
                    Some(why) => (
                        Level::Warning,
                        format!("request {name} of {user} is approved and cannot be signed: {why}"),
                    ),
                });
            }
            (_, Err(error)) if error.code == 404 => {}
            (Purpose::Sign(asked) | Purpose::Answer(asked, _), Err(error)) => {
                let line = format!("cannot answer request {}, trying again: {error}", asked.name);
                self.log.push((Level::Warning, line));
            }
            (Purpose::Remove(name), Err(error)) => {
                self.log
                    .push((Level::Warning, format!("cannot remove the certificate request {name}: {error}")));
            }
            _ => {}
        }
        Vec::new()
    }

    fn take_log(&mut self, _: Now) -> Vec<Line> {
        std::mem::take(&mut self.log)
    }
}

/// The action on a request. `now`: requests that are too old at that time are removed; `None` removes none.
fn decide(
    object: &Object,
    denied: &DenyList,
    node_life: time::Duration,
    now: Option<OffsetDateTime>,
) -> Option<Task<Purpose>> {
    let request = object.value();
    if is_due(&request) {
        let asked = Asked {
            name: object.name.to_string(),
            uid: object.uid.to_string(),
            user: text(&request, &["spec", "username"]).to_owned(),
        };
        return Some(match signing(&request, denied, node_life) {
            Ok(signing) => Task { purpose: Purpose::Sign(asked), action: Action::Sign(signing) },
            Err(why) => answer(asked, Err(why)),
        });
    }
    if object.terminating || !now.is_some_and(|now| is_over(&request, now)) {
        return None;
    }
    Some(remove(&object.name))
}

fn remove(name: &str) -> Task<Purpose> {
    let action = Action::Delete {
        kind: &CERTIFICATE_REQUEST,
        namespace: String::new(),
        name: name.to_owned(),
        options: DeleteOptions::default(),
        requires: Vec::new(),
    };
    Task { purpose: Purpose::Remove(name.to_owned()), action }
}

/// The oldest answered requests of a node beyond those that are kept, by their revisions. Those of people are
/// limited by their age alone.
fn surplus(world: &dyn World, holder: &str) -> Vec<String> {
    if !holder.starts_with(NODE_USER_PREFIX) {
        return Vec::new();
    }
    let all = world.charged(holder, &CERTIFICATE_REQUEST);
    if all.len() <= KEPT_OF_NODE {
        return Vec::new();
    }
    let is_answered = |request: &Value| {
        !text(request, &["status", "certificate"]).is_empty()
            || condition(request, "Denied").is_some()
            || condition(request, "Failed").is_some()
    };
    let mut answered: Vec<_> =
        all.iter().filter(|object| !object.terminating && is_answered(&object.value())).collect();
    answered.sort_unstable_by_key(|object| std::cmp::Reverse(object.revision));
    answered.into_iter().skip(KEPT_OF_NODE).map(|object| object.name.to_string()).collect()
}

fn condition<'a>(request: &'a Value, condition_type: &str) -> Option<&'a Value> {
    let conditions = at(request, &["status", "conditions"])?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == condition_type && condition["status"] == "True")
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
fn life(request: &Value, node_life: time::Duration) -> time::Duration {
    let longest = if text(request, &["spec", "signerName"]) == NODE_SIGNER { node_life } else { LONGEST };
    let asked = at(request, &["spec", "expirationSeconds"]).and_then(Value::as_i64);
    asked.map_or(longest, |secs| seconds(secs).clamp(SHORTEST, longest))
}

/// The certificate to sign, or the reason of the failure.
fn signing(request: &Value, denied: &DenyList, node_life: time::Duration) -> Result<Signing, String> {
    let bytes = schema::base64_decode(text(request, &["spec", "request"])).unwrap_or_default();
    let asked = Request::from_pem(&bytes)?;
    let usages: Vec<&str> = at(request, &["spec", "usages"])
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    asked.check(text(request, &["spec", "signerName"]), &usages)?;
    let requested = text(request, &["metadata", "creationTimestamp"]);
    let issue = at(request, &["spec", "extra", ISSUE_NUMBER]).and_then(|number| number[0].as_str());
    let issue = issue.and_then(|number| number.parse().ok()).unwrap_or(0);
    let requester = text(request, &["spec", "username"]);
    let refusal = denied.signing_refusal(&asked.common_name);
    if let Some(why) = refusal.or_else(|| denied.requester_refusal(requester, issue, requested)) {
        return Err(why);
    }
    let enciphers = usages.contains(&"key encipherment");
    Ok(Signing { request: asked, enciphers, life: life(request, node_life) })
}

fn answer(asked: Asked, outcome: Result<String, String>) -> Task<Purpose> {
    let (name, uid, failure) = (asked.name.clone(), asked.uid.clone(), outcome.clone().err());
    let edit: Edit = Box::new(move |found, now| {
        let is_meant = found["metadata"]["uid"] == *uid && is_due(found);
        if is_meant {
            write_answer(found, &outcome, now);
        }
        is_meant
    });
    let action = Action::Update {
        kind: &CERTIFICATE_REQUEST,
        namespace: String::new(),
        name,
        edit,
        requires: Vec::new(),
    };
    Task { purpose: Purpose::Answer(asked, failure), action }
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

/// Whether a request is old enough to be removed. By the hub's clock, which sets lastTransitionTime.
fn is_over(request: &Value, now: OffsetDateTime) -> bool {
    let stamp = |time: &str| schema::parse_time(time);
    let created = stamp(text(request, &["metadata", "creationTimestamp"]));
    let decided = ["Denied", "Failed", "Approved"].iter().find_map(|decision| condition(request, decision));
    let (since, kept) = match decided {
        // approved requests of other signers count as undecided
        Some(decision)
            if decision["type"] != "Approved" || !text(request, &["status", "certificate"]).is_empty() =>
        {
            (stamp(text(decision, &["lastTransitionTime"])).max(created), KEPT_WHEN_DECIDED)
        }
        _ => (created, KEPT_WHEN_PENDING),
    };
    since.is_some_and(|since| now - since > kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: OffsetDateTime = time::macros::datetime!(2026-11-21 12:00:00 UTC);

    fn request(signer: &str, conditions: &[&str], certificate: &str) -> Value {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|condition_type| json!({"type": condition_type, "status": "True", "lastTransitionTime": "2026-11-21T11:30:00Z"}))
            .collect();
        json!({"metadata": {"creationTimestamp": "2026-11-20T13:00:00Z"}, "spec": {"signerName": signer},
            "status": {"conditions": conditions, "certificate": certificate}})
    }

    #[test]
    fn approved_requests_of_our_signers_are_due_once() {
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
    fn requests_are_removed_when_over() {
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
        // not signed yet: it is kept like a pending one
        check(&["Approved"], "", 0, false);
        check(&["Approved"], "", 2, true);
    }

    #[test]
    fn life_is_ten_minutes_to_the_longest_one() {
        let check = |asked: Value, expect: time::Duration| {
            for (signer, longest) in [(CLIENT_SIGNER, LONGEST), (NODE_SIGNER, 10 * LONGEST)] {
                let request = json!({"spec": {"signerName": signer, "expirationSeconds": asked}});
                let expect = if expect == LONGEST { longest } else { expect };
                assert_eq!(life(&request, 10 * LONGEST), expect, "{signer} {asked}");
            }
            let of_node = json!({"spec": {"signerName": NODE_SIGNER, "expirationSeconds": asked}});
            let day = time::Duration::DAY;
            assert_eq!(life(&of_node, day), expect.min(day), "{asked}");
        };
        check(Value::Null, LONGEST);
        check(json!(3600), time::Duration::hours(1));
        check(json!(1), SHORTEST);
        check(json!(i64::MAX), LONGEST);
    }

    /// Whatever the clock shows: nothing is old.
    #[test]
    fn answered_requests_beyond_those_kept_are_removed() {
        let world = |user: &str, answered: usize, pending: usize| {
            let spaces = crate::state::Spaces::both(crate::state::Marks::default());
            let record = |number: usize| {
                let certificate = if number < answered { "eA==" } else { "" };
                let mut value = request(NODE_SIGNER, &["Approved"], certificate);
                value["metadata"]["name"] = format!("r{number:03}").into();
                value["spec"]["username"] = user.into();
                crate::state::Record {
                    resource: CERTIFICATE_REQUEST.resource_name(),
                    namespace: String::new(),
                    name: format!("r{number:03}"),
                    revision: number as u64 + 1,
                    json: value.to_string().into_bytes(),
                }
            };
            crate::state::restore::<NoSink>(spaces, (0..answered + pending).map(record).collect())
                .unwrap()
                .index
        };
        let check = |user: &str, answered: usize, pending: usize, expect: usize| {
            let mut found = surplus(&world(user, answered, pending), user);
            found.sort();
            let oldest: Vec<String> = (0..expect).map(|number| format!("r{number:03}")).collect();
            assert_eq!(found, oldest, "{user} {answered} {pending}");
        };
        check("system:node:a", 8, 8, 0);
        check("system:node:a", 10, 6, 2);
        check("admin", 300, 0, 0);
    }

    struct NoSink;

    impl crate::state::Sink for NoSink {
        fn queue(&self, _: &std::sync::Arc<Event>, _: crate::state::Seen) -> bool {
            true
        }
    }

    #[test]
    fn invalid_request_fails_once_with_a_reason() {
        let mut asked = request(NODE_SIGNER, &["Approved"], "");
        asked["spec"]["request"] = schema::base64_encode(b"no request").into();
        let why = signing(&asked, &DenyList::default(), LONGEST).map(drop).unwrap_err();
        write_answer(&mut asked, &Err(why), "now");
        assert_eq!(condition(&asked, "Failed").unwrap()["reason"], "SignerValidationFailure");
        assert!(!is_due(&asked));
    }

    #[test]
    fn signing_checks_usages() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:a");
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        let mut asked = request(NODE_SIGNER, &["Approved"], "");
        asked["spec"]["request"] = schema::base64_encode(pem.as_bytes()).into();
        asked["spec"]["usages"] = json!(["client auth", "digital signature"]);
        let signing_of = |asked: &Value| {
            signing(asked, &DenyList::default(), LONGEST).map(|signing| (signing.enciphers, signing.life))
        };
        assert_eq!(signing_of(&asked), Ok((false, LONGEST)));
        for key in ["node.a", "user.jane"] {
            asked["spec"]["username"] = "jane".into();
            let denied = DenyList::read(&json!({"data": {key: ""}}));
            assert!(signing(&asked, &denied, LONGEST).is_err(), "{key}");
        }
        let readmitted = json!({"readmitted": "2026-11-22T10:00:00Z", "after": 7}).to_string();
        let readmitted = DenyList::read(&json!({"data": {"node.a": readmitted}}));
        assert!(signing(&asked, &readmitted, LONGEST).is_ok(), "a person may ask for it");
        asked["spec"]["username"] = "system:node:a".into();
        for (number, signed) in [(Value::Null, false), (json!(["7"]), false), (json!(["8"]), true)] {
            asked["spec"]["extra"] = json!({ISSUE_NUMBER: number});
            assert_eq!(signing(&asked, &readmitted, LONGEST).is_ok(), signed, "{number}");
        }
        asked["spec"]["usages"] = json!(["server auth"]);
        assert!(signing_of(&asked).is_err());
    }
}
