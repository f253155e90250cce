//! Keeps the ConfigMap `kube-public/cluster-info`, by which a machine that joins finds the hub's authority.
//! Removes expired bootstrap tokens, and answered requests of a token that has many.
//!
//! Inputs: Secrets of bootstrap tokens, that ConfigMap, CertificateSigningRequests. Outputs: the same. As
//! upstream's bootstrap-signer and token-cleaner, and kubeadm. Always holds: `kubeconfig` names this hub and
//! its authority, and has a signature by each token that signs, and by no other. Other clients' further keys
//! stay. No token is removed while the clock is in doubt, nor one with an unreadable expiration. Left to
//! others: the permission to read it (`identity`), the text (`pki`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use time::OffsetDateTime;

use super::controller::{Action, Controller, Decision, Done, Edit, Level, Line, Now, RETRY, Task, World};
use crate::api_error::ApiError;
use crate::identity::CLUSTER_INFO;
use crate::identity::bootstrap_token::{self, BootstrapToken, NAMESPACE, TYPE, secret_name};
use crate::kinds::{CERTIFICATE_REQUEST, CONFIG_MAP, Kind, SECRET};
use crate::object::{Event, Object};
use crate::requests::DeleteOptions;
use crate::state::Require;
use crate::value::{at, condition, text};

static INPUTS: &[&Kind] = &[&SECRET, &CONFIG_MAP, &CERTIFICATE_REQUEST];
static OUTPUTS: &[&Kind] = &[&SECRET, &CONFIG_MAP, &CERTIFICATE_REQUEST];

const KUBECONFIG: &str = "kubeconfig";
/// The key of a token's signature is this prefix and the token's id.
const SIGNATURE_PREFIX: &str = "jws-kubeconfig-";
/// Most signatures in the ConfigMap, 150 bytes each: every machine that joins reads all of them.
const MOST_SIGNATURES: usize = 256;

/// Most answered requests of one token that are kept: the rest of its quota is for machines that still wait.
/// Limited by number, not by age: a fleet joins faster than requests become old. A machine that had not
/// fetched its certificate repeats its request, which takes no use of the token.
const MOST_ANSWERED: usize = 128;

/// See the module.
#[derive(Debug)]
pub struct BootstrapTokens {
    kubeconfig: String,
    /// By the name of the Secret.
    known: BTreeMap<String, Known>,
    /// Users of tokens whose requests are to be counted.
    users: BTreeSet<String>,
    /// The last refusal, which is logged once.
    refused: Option<String>,
    log: Vec<Line>,
}

/// A token, as far as it matters here.
#[derive(Debug)]
struct Known {
    id: String,
    revision: u64,
    expiration: Option<OffsetDateTime>,
    signature: Option<String>,
}

/// The purpose of an action.
#[derive(Debug)]
pub enum Purpose {
    Write,
    /// Removes the token with this id.
    Remove(String),
    /// Removes the request of this name.
    Forget(String),
}

impl BootstrapTokens {
    /// `kubeconfig`: its text for `cluster-info`.
    pub fn new(kubeconfig: String) -> BootstrapTokens {
        BootstrapTokens {
            kubeconfig,
            known: BTreeMap::new(),
            users: BTreeSet::new(),
            refused: None,
            log: Vec::new(),
        }
    }

    fn learn(&mut self, secret: &Object) {
        let value = secret.value();
        if text(&value, &["type"]) != TYPE {
            return;
        }
        match BootstrapToken::from_secret(&value) {
            Some(token) => {
                let known = Known {
                    revision: secret.revision,
                    expiration: token.expiration,
                    signature: token.signs.then(|| token.sign(&self.kubeconfig)),
                    id: token.id,
                };
                self.known.insert(secret.name.to_string(), known);
            }
            None => drop(self.known.remove(&*secret.name)),
        }
    }

    /// The signatures that belong into the ConfigMap at this time.
    fn signatures(&self, now: OffsetDateTime) -> BTreeMap<String, String> {
        let lasting = self.known.values().filter(|token| token.expiration.is_none_or(|end| end > now));
        lasting
            .filter_map(|token| Some((format!("{SIGNATURE_PREFIX}{}", token.id), token.signature.clone()?)))
            .take(MOST_SIGNATURES)
            .collect()
    }

    /// The action that the ConfigMap needs, if any.
    fn write(&self, world: &dyn World, now: OffsetDateTime) -> Option<Action> {
        let (namespace, name) = CLUSTER_INFO;
        let (kubeconfig, signatures) = (self.kubeconfig.clone(), self.signatures(now));
        let Some(found) = world.get(&CONFIG_MAP, namespace, name).map(|found| found.value()) else {
            let mut value = json!({"metadata": {"name": name, "namespace": namespace}});
            complete(&mut value, &kubeconfig, &signatures);
            return Some(Action::create(&CONFIG_MAP, value));
        };
        let mut whole = found.clone();
        complete(&mut whole, &kubeconfig, &signatures);
        if whole == found {
            return None;
        }
        let edit: Edit = Box::new(move |value, _| {
            complete(value, &kubeconfig, &signatures);
            true
        });
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Some(Action::Update { kind: &CONFIG_MAP, namespace, name, edit, requires: Vec::new() })
    }
}

/// The ConfigMap as it must be written, `None` if it is right: for a start, before anybody reads it.
pub fn due(world: &dyn World, kubeconfig: &str, now: OffsetDateTime) -> Option<Value> {
    let mut tokens = BootstrapTokens::new(kubeconfig.to_owned());
    tokens.sweep(world);
    let (namespace, name) = CLUSTER_INFO;
    let found = world.get(&CONFIG_MAP, namespace, name).map(|found| found.value());
    let mut value =
        found.clone().unwrap_or_else(|| json!({"metadata": {"name": name, "namespace": namespace}}));
    complete(&mut value, kubeconfig, &tokens.signatures(now));
    (found.as_ref() != Some(&value)).then_some(value)
}

fn complete(value: &mut Value, kubeconfig: &str, signatures: &BTreeMap<String, String>) {
    for map in ["data", "binaryData"] {
        if let Some(entries) = value[map].as_object_mut() {
            entries.retain(|key, _| key != KUBECONFIG && !key.starts_with(SIGNATURE_PREFIX));
        }
        if at(value, &[map]).is_some_and(|entries| entries.is_null() || entries == &json!({}))
            && let Some(fields) = value.as_object_mut()
        {
            fields.remove(map);
        }
    }
    value["data"][KUBECONFIG] = kubeconfig.into();
    for (key, signature) in signatures {
        value["data"][key] = signature.as_str().into();
    }
}

fn is_token(object: &Object) -> bool {
    &*object.namespace == NAMESPACE && object.name.starts_with(&secret_name(""))
}

/// The user of the bootstrap token that made a request, if one did.
fn token_user(request: &Object) -> Option<&str> {
    request.holder.as_deref().filter(|user| bootstrap_token::of_user(user).is_some())
}

/// The removal of a token's oldest answered requests, beyond those that are kept.
fn surplus(world: &dyn World, user: &str) -> Vec<Task<Purpose>> {
    let mut requests = world.charged(user, &CERTIFICATE_REQUEST);
    if requests.len() <= MOST_ANSWERED {
        return Vec::new();
    }
    requests.retain(|request| !request.terminating && is_answered(&request.value()));
    // the answer is the last change
    requests.sort_unstable_by_key(|request| request.revision);
    let surplus = requests.len().saturating_sub(MOST_ANSWERED);
    let remove = |request: Arc<Object>| {
        let (kind, namespace, name) = (&CERTIFICATE_REQUEST, String::new(), request.name.to_string());
        let options = DeleteOptions { uid: Some(request.uid.to_string()), ..DeleteOptions::default() };
        let purpose = Purpose::Forget(name.clone());
        Task { purpose, action: Action::Delete { kind, namespace, name, options, requires: Vec::new() } }
    };
    requests.into_iter().take(surplus).map(remove).collect()
}

fn is_answered(request: &Value) -> bool {
    let over = ["Denied", "Failed"].iter().any(|sort| condition(&request["status"], sort).is_some());
    over || !text(request, &["status", "certificate"]).is_empty()
}

impl Controller for BootstrapTokens {
    type Purpose = Purpose;
    const NAME: &'static str = "bootstrap_tokens";
    const SWEEP: Option<Duration> = Some(Duration::from_secs(60));

    fn inputs() -> &'static [&'static Kind] {
        INPUTS
    }

    fn outputs() -> &'static [&'static Kind] {
        OUTPUTS
    }

    fn concerns(kind: &'static Kind, event: &Event) -> bool {
        let object = event.object();
        match kind.kind {
            kind if kind == SECRET.kind => is_token(object),
            kind if kind == CONFIG_MAP.kind => (&*object.namespace, &*object.name) == CLUSTER_INFO,
            _ => token_user(object).is_some(),
        }
    }

    fn observe(&mut self, kind: &'static Kind, event: &Event) {
        match &event.new {
            Some(secret) if kind.kind == SECRET.kind => self.learn(secret),
            None if kind.kind == SECRET.kind => drop(self.known.remove(&*event.object().name)),
            new => self.users.extend(new.as_ref().and_then(|request| token_user(request)).map(str::to_owned)),
        }
    }

    fn sweep(&mut self, world: &dyn World) {
        self.known.clear();
        for secret in world.list(&SECRET, NAMESPACE).iter().filter(|secret| is_token(secret)) {
            self.learn(secret);
        }
        let requests = world.list(&CERTIFICATE_REQUEST, "");
        self.users.extend(requests.iter().filter_map(|request| token_user(request)).map(str::to_owned));
    }

    fn reconcile(&mut self, world: &dyn World, now: Now) -> Decision<Purpose> {
        let mut tasks = Vec::new();
        let is_over = |token: &&Known| token.expiration.is_some_and(|end| end <= now.wall);
        for token in self.known.values().filter(is_over).filter(|_| now.ages) {
            let name = secret_name(&token.id);
            // somebody may give it more time
            let requires = vec![Require::Unchanged {
                kind: &SECRET,
                namespace: NAMESPACE.to_owned(),
                name: name.clone(),
                revision: Some(token.revision),
            }];
            let namespace = NAMESPACE.to_owned();
            let options = DeleteOptions::default();
            let action = Action::Delete { kind: &SECRET, namespace, name, options, requires };
            tasks.push(Task { purpose: Purpose::Remove(token.id.clone()), action });
        }
        for user in std::mem::take(&mut self.users) {
            tasks.extend(surplus(world, &user));
        }
        if let Some(action) = self.write(world, now.wall) {
            tasks.push(Task { purpose: Purpose::Write, action });
        }
        let ends = self.known.values().filter_map(|token| token.expiration);
        let next = ends.filter(|end| *end > now.wall).min();
        let next = next.map(|end| Duration::try_from(end - now.wall).unwrap_or_default().max(RETRY));
        Decision { tasks, next: next.map(|wait| now.running.saturating_add(wait)), ..Decision::default() }
    }

    fn performed(&mut self, purpose: Purpose, outcome: Result<Done, ApiError>, _: Now) -> Vec<Task<Purpose>> {
        match (purpose, outcome) {
            (Purpose::Write, Ok(_)) => self.refused = None,
            (Purpose::Remove(id), Ok(_)) => {
                self.known.remove(&secret_name(&id));
                self.log.push((Level::Info, format!("removed the bootstrap token {id}: it has expired")));
            }
            (Purpose::Forget(_), Ok(_)) => {}
            // another client was faster, which is an event or is found by the sweep
            (_, Err(error)) if matches!(error.code, 404 | 409) => {}
            (_, Err(error)) if self.refused.as_ref() == Some(&error.message) => {}
            (purpose, Err(error)) => {
                let what = match purpose {
                    Purpose::Write => "write kube-public/cluster-info".to_owned(),
                    Purpose::Remove(id) => format!("remove the bootstrap token {id}"),
                    Purpose::Forget(name) => format!("remove the certificate request {name}"),
                };
                self.log.push((Level::Warning, format!("cannot {what}: {error}; trying again")));
                self.refused = Some(error.message);
            }
        }
        Vec::new()
    }

    fn take_log(&mut self, _: Now) -> Vec<Line> {
        std::mem::take(&mut self.log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_tokens_do_not_make_it_large() {
        let mut controller = BootstrapTokens::new("text".to_owned());
        for number in 0..1000 {
            let id = format!("{number:06}");
            let known = Known { id, revision: 1, expiration: None, signature: Some("x".to_owned()) };
            controller.known.insert(format!("{number:06}"), known);
        }
        assert_eq!(controller.signatures(OffsetDateTime::UNIX_EPOCH).len(), MOST_SIGNATURES);
    }

    #[test]
    fn entry_is_in_one_map_alone() {
        let mut whole = json!({"data": {"a": "b"}, "binaryData": {"kubeconfig": "eA=="}});
        complete(&mut whole, "text", &BTreeMap::new());
        assert_eq!(whole, json!({"data": {"a": "b", "kubeconfig": "text"}}));
    }
}
