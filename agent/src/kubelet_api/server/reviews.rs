//! The API server's answers about callers: TokenReview and SubjectAccessReview, with this node's own
//! credentials.
//!
//! Always holds: an answer is cached no longer than the configuration says, and as long as this process
//! lives; at most [`MOST_ENTRIES`] of each kind are cached, by the digest of the question, so no token is
//! stored; without an answer nothing is allowed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kedge_core::kubelet::ServerSettings;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::callers::User;
use super::rights::Wanted;
use crate::net::client::{Api, Client, Request};

const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const RIGHTS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// How long the API server may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// Requests to it at once: each is a thread and a connection.
const AT_ONCE: usize = 4;
/// Most cached answers: a node has few callers.
const MOST_ENTRIES: usize = 512;
/// Longest answer: a user with all groups.
const ANSWER_BYTES: usize = 256 * 1024;

pub(super) struct Reviews {
    client: Client,
    node: String,
    settings: ServerSettings,
    running: Semaphore,
    tokens: RefCell<Cache<User>>,
    rights: RefCell<Cache<bool>>,
}

impl Reviews {
    pub(super) fn new(api: &Arc<Api>, node: String, settings: ServerSettings) -> Self {
        Self {
            client: api.stream("reviews"),
            node,
            settings,
            running: Semaphore::new(AT_ONCE),
            tokens: RefCell::default(),
            rights: RefCell::default(),
        }
    }

    /// The user of a token, if that answer is cached.
    pub(super) fn known(&self, token: &str) -> Option<User> {
        self.tokens.borrow().get(&digest(token), Instant::now()).cloned()
    }

    /// The user of a token; `None` if the API server does not know it.
    ///
    /// # Errors
    /// The API server did not answer.
    pub(super) async fn user(&self, token: &str) -> Result<Option<User>, String> {
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
        });
        let user = User::of_review(&self.ask(TOKENS, &body).await?);
        if let Some(user) = &user {
            let now = Instant::now();
            self.tokens.borrow_mut().put(digest(token), user.clone(), now, self.settings.token_ttl);
        }
        Ok(user)
    }

    /// Whether a user may perform a request.
    ///
    /// # Errors
    /// The API server did not answer.
    pub(super) async fn allows(&self, user: &User, wanted: &Wanted) -> Result<bool, String> {
        for subresource in wanted.subresources {
            if self.allows_one(user, wanted.verb, subresource).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn allows_one(&self, user: &User, verb: &str, subresource: &str) -> Result<bool, String> {
        let User { name, uid, groups, extra } = user;
        let attributes = json!({
            "verb": verb, "version": "v1", "resource": "nodes", "subresource": subresource, "name": self.node,
        });
        let body = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": name, "uid": uid, "groups": groups, "extra": extra, "resourceAttributes": attributes},
        });
        let key = digest(&body.to_string());
        if let Some(known) = self.rights.borrow().get(&key, Instant::now()) {
            return Ok(*known);
        }
        let status = &self.ask(RIGHTS, &body).await?["status"];
        let is_allowed = status["allowed"] == true && status["denied"] != true;
        let ttl = if is_allowed { self.settings.allowed_ttl } else { self.settings.refused_ttl };
        self.rights.borrow_mut().put(key, is_allowed, Instant::now(), ttl);
        Ok(is_allowed)
    }

    async fn ask(&self, path: &'static str, body: &Value) -> Result<Value, String> {
        let mut request = Request::post(path, body.to_string().into_bytes(), DEADLINE);
        // a review stores nothing
        request.is_repeatable = true;
        request.response_limit_bytes = ANSWER_BYTES;
        let _running = self.running.acquire().await.map_err(|error| error.to_string())?;
        let client = self.client.clone();
        let asked = tokio::task::spawn_blocking(move || client.request(&request)?.json()).await;
        asked.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}

type Digest = [u8; 32];

fn digest(text: &str) -> Digest {
    let mut digest = [0; 32];
    digest.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()).as_ref());
    digest
}

/// Answers, each with its expiry.
struct Cache<V>(HashMap<Digest, (V, Instant)>);

impl<V> Default for Cache<V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<V> Cache<V> {
    fn get(&self, key: &Digest, now: Instant) -> Option<&V> {
        self.0.get(key).filter(|(_, end)| now < *end).map(|(value, _)| value)
    }

    fn put(&mut self, key: Digest, value: V, now: Instant, ttl: Duration) {
        if self.0.len() >= MOST_ENTRIES {
            self.0.retain(|_, (_, end)| now < *end);
        }
        if self.0.len() >= MOST_ENTRIES
            && let Some(soonest) = self.0.iter().min_by_key(|(_, (_, end))| *end).map(|(key, _)| *key)
        {
            self.0.remove(&soonest);
        }
        self.0.insert(key, (value, now + ttl));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_kept_for_its_time_and_in_bounds() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let ttl = Duration::from_secs(30);
        cache.put(digest("first"), 1, now, ttl);
        assert_eq!(cache.get(&digest("first"), now + ttl / 2), Some(&1));
        assert_eq!(cache.get(&digest("first"), now + ttl), None);
        for number in 0..2000 {
            cache.put(digest(&number.to_string()), number, now, ttl * 2);
        }
        assert_eq!(cache.0.len(), MOST_ENTRIES);
        assert_eq!(cache.get(&digest("first"), now), None);
        assert_eq!(cache.get(&digest("1999"), now), Some(&1999));
    }
}
