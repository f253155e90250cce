//! Announces to each node which certificate authorities to trust, while one replaces another.
//!
//! Inputs: Node. Outputs: Node, the annotation `kedge.dev/trust` with the digest of the trusted set. A node
//! that finds another digest there than that of its own set reads the set from `kube-public/cluster-info`,
//! and reports the digest in `kedge.dev/authorities`. Always holds: a hub that never had a second authority
//! writes nothing. No turn writes more than [`PER_TURN`] Nodes, so that a fleet does not read the set all at
//! once.

use std::collections::BTreeSet;
use std::time::Duration;

use kedge_api::TRUST_ANNOTATION;
use serde_json::Value;

use super::controller::{Action, Controller, Decision, Done, Edit, Level, Line, Now, Task, World};
use crate::api_error::ApiError;
use crate::kinds::{Kind, NODE, text};
use crate::object::Event;

static KINDS: &[&Kind] = &[&NODE];
/// Nodes that are written in one turn.
const PER_TURN: usize = 50;
/// Time between two turns.
const TURN: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct Trust {
    /// The digest to announce; `None` while there was only one authority.
    digest: Option<String>,
    /// Nodes to check.
    queue: BTreeSet<String>,
    next_turn: Duration,
    log: Vec<Line>,
}

impl Trust {
    /// `digest`: of the trusted set; `None` on a hub that never had a second authority.
    pub fn new(digest: Option<String>) -> Trust {
        Trust { digest, queue: BTreeSet::new(), next_turn: Duration::ZERO, log: Vec::new() }
    }
}

fn announced(node: &Value) -> &str {
    text(node, &["metadata", "annotations", TRUST_ANNOTATION])
}

impl Controller for Trust {
    /// The node.
    type Purpose = String;
    const NAME: &'static str = "trust";
    const SWEEP: Option<Duration> = Some(Duration::from_secs(300));

    fn inputs() -> &'static [&'static Kind] {
        KINDS
    }

    fn outputs() -> &'static [&'static Kind] {
        KINDS
    }

    fn concerns(_: &'static Kind, event: &Event) -> bool {
        // created, or its annotations were changed
        event.old.as_ref().is_none_or(|old| announced(&old.value()) != announced(&event.object().value()))
    }

    fn observe(&mut self, _: &'static Kind, event: &Event) {
        self.queue.insert(event.object().name.to_string());
    }

    fn sweep(&mut self, world: &dyn World) {
        self.queue.extend(world.list(&NODE, "").iter().map(|node| node.name.to_string()));
    }

    fn reconcile(&mut self, world: &dyn World, now: Now) -> Decision<String> {
        let Some(digest) = &self.digest else {
            self.queue.clear();
            return Decision::default();
        };
        if now.running < self.next_turn {
            return Decision { next: Some(self.next_turn), ..Decision::default() };
        }
        let mut tasks = Vec::new();
        while tasks.len() < PER_TURN
            && let Some(name) = self.queue.pop_first()
        {
            let behind = world.get(&NODE, "", &name).is_some_and(|node| announced(&node.value()) != digest);
            if !behind {
                continue;
            }
            let digest = digest.clone();
            let edit: Edit = Box::new(move |node, _| {
                node["metadata"]["annotations"][TRUST_ANNOTATION] = digest.clone().into();
                true
            });
            let action = Action::Update {
                kind: &NODE,
                namespace: String::new(),
                name: name.clone(),
                edit,
                requires: Vec::new(),
            };
            tasks.push(Task { purpose: name, action });
        }
        if !tasks.is_empty() {
            self.next_turn = now.running.saturating_add(TURN);
        }
        let next = (!self.queue.is_empty()).then_some(self.next_turn);
        Decision { tasks, next, ..Decision::default() }
    }

    fn performed(&mut self, node: String, outcome: Result<Done, ApiError>, _: Now) -> Vec<Task<String>> {
        match outcome {
            Err(error) if !matches!(error.code, 404 | 409) => {
                let line =
                    format!("cannot tell node {node} which authorities to trust: {error}; trying again");
                self.log.push((Level::Warning, line));
            }
            _ => {}
        }
        Vec::new()
    }

    fn take_log(&mut self, _: Now) -> Vec<Line> {
        std::mem::take(&mut self.log)
    }
}
