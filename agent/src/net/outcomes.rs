//! The last outcome of each request to the API server, for `kedge status`.
//!
//! Owns one entry for each kind of request of each stream. Always holds: it is about the server of the
//! present kubeconfig only, and of bounded size, whatever names a server puts into paths. Leaves to others:
//! the reaction to a failure.

use crate::locks::locked;
use crate::net::error::NetError;
use kedge_core::sorted::SortedMap;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Instant;

/// Most kinds of requests remembered: an agent has eight, and two more for each ConfigMap that it was
/// assigned.
const ENTRIES: usize = 32;

/// Most different warnings of one server that are logged: some servers, or proxies before them, put the time
/// into theirs.
const WARNINGS: usize = 32;

/// Whether a warning is to be logged.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Warned {
    /// Not to be logged: it was logged before, or too many were.
    Before,
    New,
    /// It is new, and the last one that is logged.
    Last,
}

/// Stream, method, path without its query, and part of the object; a watch is another kind than the list of
/// the same path.
pub(crate) type Key = (&'static str, String);

/// See the module.
#[derive(Debug, Default)]
pub struct Outcomes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    server: String,
    last_answer: Option<Instant>,
    /// The warnings that were logged, up to the limit.
    warnings: BTreeSet<String>,
    kinds: SortedMap<Key, Kind>,
}

#[derive(Debug)]
struct Kind {
    /// When the latest event of it happened.
    at: Instant,
    /// Consecutive failures.
    failures: u64,
    problem: Option<String>,
    /// Since when its watch is open.
    open: Option<Instant>,
}

/// An open watch; dropped when it ends.
#[derive(Debug)]
pub(crate) struct OpenWatch {
    outcomes: std::sync::Arc<Outcomes>,
    key: Key,
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        if let Some(kind) = locked(&self.outcomes.0).kinds.get_mut(&self.key) {
            kind.open = None;
            kind.at = Instant::now();
        }
    }
}

impl Outcomes {
    /// Records the outcome of a request of this stream to this server.
    pub(crate) fn note<T>(&self, server: &str, key: Key, outcome: &Result<T, NetError>) {
        if matches!(outcome, Err(NetError::Cancelled)) {
            return;
        }
        let mut state = locked(&self.0);
        state.of(server);
        let now = Instant::now();
        if !matches!(outcome, Err(error) if error.status().is_none()) {
            state.last_answer = Some(now);
        }
        let kind = state.kind(key, now);
        match outcome {
            Ok(_) => (kind.failures, kind.problem) = (0, None),
            Err(error) => {
                kind.failures += 1;
                kind.problem = Some(error.to_string());
            }
        }
    }

    /// Records that the server has begun to answer a watch.
    pub(crate) fn opened(self: &std::sync::Arc<Self>, server: &str, key: Key) -> OpenWatch {
        self.note::<()>(server, key.clone(), &Ok(()));
        let mut state = locked(&self.0);
        let now = Instant::now();
        state.kind(key.clone(), now).open = Some(now);
        OpenWatch { outcomes: self.clone(), key }
    }

    /// Records a warning that the server sent with an answer. A warning with each renewal must not wear out
    /// the flash that has the log.
    pub(crate) fn warned(&self, warning: &str) -> Warned {
        let mut state = locked(&self.0);
        let warnings = &mut state.warnings;
        if warnings.len() >= WARNINGS || !warnings.insert(warning.to_owned()) {
            return Warned::Before;
        }
        if warnings.len() == WARNINGS { Warned::Last } else { Warned::New }
    }

    /// Records that bytes arrived on an open watch.
    pub(crate) fn heard(&self) {
        locked(&self.0).last_answer = Some(Instant::now());
    }

    /// The part of `kedge status --output json` about requests: ages in seconds, as of now.
    #[must_use]
    pub fn report(&self) -> Value {
        let state = locked(&self.0);
        let age = |at: &Instant| at.elapsed().as_secs();
        let mut watches = Vec::new();
        let mut problems = Vec::new();
        for ((stream, request), kind) in &state.kinds {
            if let Some(path) = request.strip_prefix(WATCH) {
                let open = kind.open.as_ref().map(age);
                watches.push(json!({"stream": stream, "path": path, "openSeconds": open}));
            }
            if let Some(problem) = &kind.problem {
                problems.push(json!({
                    "stream": stream,
                    "request": request,
                    "problem": problem,
                    "failures": kind.failures,
                    "secondsAgo": age(&kind.at),
                }));
            }
        }
        json!({
            "secondsSinceAnswer": state.last_answer.as_ref().map(age),
            "watches": watches,
            "problems": problems,
        })
    }

    /// Drops the outcomes of a stream that now follows another object.
    pub fn forget(&self, stream: &str) {
        locked(&self.0).kinds.retain(|(of, _), _| *of != stream);
    }
}

/// Stands in place of the method in the key of a watch.
const WATCH: &str = "WATCH ";

/// The kind of a request.
pub(crate) fn key(stream: &'static str, method: &str, path_and_query: &str) -> Key {
    let path = path_and_query.split('?').next().unwrap_or_default();
    (stream, format!("{method} {path}"))
}

/// The kind of a watch.
pub(crate) fn watch_key(stream: &'static str, path_and_query: &str) -> Key {
    key(stream, WATCH.trim_end(), path_and_query)
}

impl State {
    /// Forgets the outcomes of any other server.
    fn of(&mut self, server: &str) {
        if self.server != server {
            *self = Self { server: server.to_owned(), ..Self::default() };
        }
    }

    fn kind(&mut self, key: Key, now: Instant) -> &mut Kind {
        if self.kinds.len() >= ENTRIES && !self.kinds.contains_key(&key) {
            let oldest = self.kinds.iter().min_by_key(|(_, kind)| kind.at).map(|(key, _)| key.clone());
            oldest.map(|key| self.kinds.remove(&key));
        }
        let kind = self.kinds.entry(key).or_insert(Kind { at: now, failures: 0, problem: None, open: None });
        kind.at = now;
        kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const SERVER: &str = "https://hub:6443";

    fn refused() -> Result<(), NetError> {
        Err(NetError::Refused {
            request: "PATCH x".into(),
            status: 403,
            reason: "Forbidden".into(),
            message: "no".into(),
            retry_after: None,
        })
    }

    fn silent() -> Result<(), NetError> {
        Err(NetError::Unreachable { request: "GET x".into(), why: "refused".into() })
    }

    #[test]
    fn problem_stays_until_its_own_request_succeeds() {
        let outcomes = Outcomes::default();
        let node = || key("transfer", "PATCH", "/api/v1/nodes/e");
        outcomes.note(SERVER, node(), &silent());
        assert_eq!(outcomes.report()["secondsSinceAnswer"], Value::Null);
        outcomes.note(SERVER, node(), &refused());
        outcomes.note(SERVER, key("transfer", "PATCH", "/api/v1/nodes/e/status"), &Ok(()));
        let report = outcomes.report();
        assert_eq!(report["secondsSinceAnswer"], 0, "a refusal is an answer");
        assert_eq!(report["problems"].as_array().unwrap().len(), 1);
        assert_eq!(report["problems"][0]["problem"], "PATCH x: refused (403 Forbidden): no");
        assert_eq!(report["problems"][0]["failures"], 2);
        outcomes.note(SERVER, node(), &Ok(()));
        assert_eq!(outcomes.report()["problems"], json!([]));
    }

    #[test]
    fn watch_is_open_until_it_is_dropped() {
        let outcomes = Arc::new(Outcomes::default());
        let path = "/api/v1/nodes?watch=true";
        let open = outcomes.opened(SERVER, watch_key("watch-node", path));
        let watch =
            |open: Value| json!([{"stream": "watch-node", "path": "/api/v1/nodes", "openSeconds": open}]);
        assert_eq!(outcomes.report()["watches"], watch(0.into()));
        drop(open);
        assert_eq!(outcomes.report()["watches"], watch(Value::Null));
        outcomes.forget("watch-node");
        assert_eq!(outcomes.report()["watches"], json!([]));
    }

    #[test]
    fn warning_is_logged_once_and_not_for_ever() {
        let outcomes = Outcomes::default();
        outcomes.note(SERVER, key("renew", "PATCH", "/l"), &Ok(()));
        assert_eq!([(); 3].map(|()| outcomes.warned("old")), [Warned::New, Warned::Before, Warned::Before]);
        let rest: Vec<Warned> = (0..1000).map(|number| outcomes.warned(&format!("at {number}"))).collect();
        let last = rest.iter().position(|warned| *warned == Warned::Last);
        assert_eq!(last, Some(WARNINGS - 2));
        assert!(rest[WARNINGS - 1..].iter().all(|warned| *warned == Warned::Before));
        outcomes.note("https://other:6443", key("renew", "PATCH", "/l"), &Ok(()));
        assert_eq!(outcomes.warned("old"), Warned::New);
    }

    #[test]
    fn another_server_begins_anew_and_size_is_bounded() {
        let outcomes = Outcomes::default();
        for number in 0..1000 {
            outcomes.note(SERVER, key("watch-configmap", "GET", &format!("/{number}")), &refused());
        }
        assert_eq!(outcomes.report()["problems"].as_array().unwrap().len(), ENTRIES);
        outcomes.note("https://other:6443", key("renew", "PATCH", "/l"), &silent());
        let report = outcomes.report();
        assert_eq!(report["problems"].as_array().unwrap().len(), 1);
        assert_eq!(report["secondsSinceAnswer"], Value::Null);
    }
}
