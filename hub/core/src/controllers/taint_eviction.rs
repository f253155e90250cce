//! Ends the pods that do not tolerate a NoExecute taint of their node, or no longer do.
//!
//! Inputs: Node, Pod. Outputs: Pod, Event. The rules, the condition and the Events are those of upstream's
//! taint eviction controller. Always holds: the seconds of a toleration count on the hub's own clock, from
//! when the hub saw taint and pod together, not counting stalls of the hub and its disk, and from zero after
//! a restart; a pod is only ended if its Node is still as found, so the pods of a node that is back in time
//! stay; mirror pods, which their node would create again, are left alone. Left to others: the taints of lost
//! nodes and their rate (`nodes`); the node confirms the end of its pods, so the terminating pod of a silent
//! node stays until then.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use super::controller::{Action, Controller, Decision, Done, Edit, Level, Line, Now, Task, World};
use super::placing;
use super::record::{self, About, What};
use crate::api_error::ApiError;
use crate::kinds::pod::{self, NODE_NAME_FIELD};
use crate::kinds::{EVENT, Kind, NODE, POD};
use crate::object::{Event, Object};
use crate::requests::DeleteOptions;
use crate::selector::Selection;
use crate::state::Require;
use crate::value::{rfc3339, set_condition, span};

static INPUTS: &[&Kind] = &[&NODE, &POD];
static OUTPUTS: &[&Kind] = &[&POD, &EVENT];

const COMPONENT: &str = "taint-eviction-controller";
const NO_EXECUTE: &str = "NoExecute";
/// After a longer stall the hub may not have heard that the node is back.
const STALL: Duration = Duration::from_secs(5);
/// Pause after the store refused to end a pod.
const HOLD: Duration = Duration::from_secs(5);
/// Most nodes looked at in one step, and most pods ended in one.
const PER_STEP: usize = 256;

/// See the module.
#[derive(Debug, Default)]
pub struct TaintEviction {
    /// Nodes to check.
    queue: BTreeSet<String>,
    /// The pods with a running toleration time, by UID, of each node with a NoExecute taint.
    tainted: BTreeMap<String, BTreeMap<String, Doomed>>,
    log: Vec<Line>,
}

/// A pod that does not tolerate the taints of its node for ever.
#[derive(Debug, Clone)]
struct Doomed {
    pod: Subject,
    since: Duration,
    bears: Duration,
    /// No new try before this time, after a refusal.
    not_before: Duration,
    /// Its deletion has been requested.
    is_asked: bool,
}

impl Doomed {
    fn due(&self) -> Duration {
        self.not_before.max(self.since + self.bears)
    }
}

/// A pod, as Events and actions name it.
#[derive(Debug, Clone)]
pub struct Subject {
    node: String,
    namespace: String,
    name: String,
    uid: String,
}

/// The purpose of an action.
#[derive(Debug)]
pub enum Purpose {
    /// Show in a pod's condition why it ends; then delete it, if the requirements still hold.
    Say(Subject, Vec<Require>),
    Delete(Subject),
    Event,
}

impl Controller for TaintEviction {
    type Purpose = Purpose;
    const NAME: &'static str = "taint_eviction";
    const SWEEP: Option<Duration> = Some(Duration::from_secs(60));
    const AT_ONCE: usize = 64;
    const MINDS_STALLS: bool = true;

    fn inputs() -> &'static [&'static Kind] {
        INPUTS
    }

    fn outputs() -> &'static [&'static Kind] {
        OUTPUTS
    }

    /// Nodes that have, or had, such a taint; pods with a node.
    fn concerns(kind: &'static Kind, event: &Event) -> bool {
        let mut versions = event.old.iter().chain(&event.new);
        match kind.kind == NODE.kind {
            true => versions.any(|node| may_have_taints(node)),
            false => versions.any(|pod| !pod.field(NODE_NAME_FIELD).is_empty()),
        }
    }

    fn observe(&mut self, kind: &'static Kind, event: &Event) {
        let object = event.object();
        if kind.kind == NODE.kind {
            self.queue.insert(object.name.to_string());
        } else if let Some((node, _)) = self.tainted.get_key_value(object.field(NODE_NAME_FIELD)) {
            self.queue.insert(node.clone());
        }
    }

    fn sweep(&mut self, world: &dyn World) {
        self.queue.extend(self.tainted.keys().cloned());
        let nodes = world.list(&NODE, "");
        let may_have = nodes.iter().filter(|node| may_have_taints(node));
        self.queue.extend(may_have.map(|node| node.name.to_string()));
    }

    fn reconcile(&mut self, world: &dyn World, now: Now) -> Decision<Purpose> {
        let stalled = now.stalled.max(now.disk_stalled);
        if stalled > STALL {
            for doomed in self.tainted.values_mut().flat_map(BTreeMap::values_mut) {
                // the time of a pod that was created during the stall begins now
                doomed.since = (doomed.since + stalled).min(now.running);
            }
        }
        let mut tasks = Vec::new();
        for _ in 0..PER_STEP {
            let Some(node) = self.queue.pop_first() else { break };
            tasks.extend(self.reconcile_one(world, &node, now));
        }
        if !self.queue.is_empty() {
            return Decision { tasks, more: true, ..Decision::default() };
        }
        let mut due = self.take_due(now);
        let more = due.len() > PER_STEP;
        for late in due.split_off(due.len().min(PER_STEP)) {
            self.again(&late, now.running);
        }
        let mut nodes = BTreeMap::new();
        for pod in due {
            let revision = *nodes
                .entry(pod.node.clone())
                .or_insert_with_key(|node| world.get(&NODE, "", node).map(|node| node.revision));
            match revision {
                Some(revision) => tasks.push(say(pod, revision)),
                None => drop(self.queue.insert(pod.node)),
            }
        }
        let waiting = self.tainted.values().flat_map(BTreeMap::values).filter(|doomed| !doomed.is_asked);
        let next = waiting.map(Doomed::due).min();
        Decision { tasks, guarded: None, more: more || !self.queue.is_empty(), next }
    }

    fn performed(
        &mut self,
        purpose: Purpose,
        outcome: Result<Done, ApiError>,
        now: Now,
    ) -> Vec<Task<Purpose>> {
        match (purpose, outcome) {
            (Purpose::Say(pod, requires), Ok(Done::Stored(_, true))) => vec![delete(pod, requires)],
            (Purpose::Say(pod, _) | Purpose::Delete(pod), Err(error)) if error.code == 404 => {
                self.forget(&pod);
                Vec::new()
            }
            (Purpose::Delete(pod), Ok(_)) => {
                self.forget(&pod);
                let message = format!("Marking for deletion Pod {}/{}", pod.namespace, pod.name);
                vec![event(&pod, &message, now)]
            }
            (Purpose::Say(pod, _), Ok(_)) => {
                // the node changed meanwhile
                self.again(&pod, now.running);
                Vec::new()
            }
            (Purpose::Say(pod, _) | Purpose::Delete(pod), Err(error)) => {
                self.again(&pod, now.running + if error.code == 409 { Duration::ZERO } else { HOLD });
                if error.code != 409 {
                    let Subject { namespace, name, node, .. } = &pod;
                    let line = format!(
                        "cannot end pod {namespace}/{name}, which does not tolerate the taints of node {node}: {error}; trying again in {} s",
                        HOLD.as_secs()
                    );
                    self.log.push((Level::Warning, line));
                }
                Vec::new()
            }
            (Purpose::Event, _) => Vec::new(),
        }
    }

    fn take_log(&mut self, _: Now) -> Vec<Line> {
        std::mem::take(&mut self.log)
    }
}

impl TaintEviction {
    /// Decides about the pods of one node. Returns the Events about those that stay after all.
    fn reconcile_one(&mut self, world: &dyn World, name: &str, now: Now) -> Vec<Task<Purpose>> {
        let before = self.tainted.remove(name).unwrap_or_default();
        // another controller removes the pods of a deleted Node
        let Some(node) = world.get(&NODE, "", name) else { return Vec::new() };
        let taints = no_execute(&node.value());
        let pods = match taints.is_empty() && before.is_empty() {
            true => Vec::new(),
            false => world.select(&POD, &Selection::by_field(&POD, "", NODE_NAME_FIELD, name)),
        };
        let (mut doomed, mut tasks) = (BTreeMap::new(), Vec::new());
        for object in pods.iter().filter(|pod| !pod.terminating) {
            let value = object.value();
            if pod::is_mirror(&value) {
                continue;
            }
            let known = before.get(&*object.uid);
            let pod = Subject {
                node: name.to_owned(),
                namespace: object.namespace.to_string(),
                name: object.name.to_string(),
                uid: object.uid.to_string(),
            };
            match bears(&value["spec"], &taints) {
                Some(bears) => {
                    let new = || Doomed {
                        pod,
                        since: now.running,
                        bears,
                        not_before: Duration::ZERO,
                        is_asked: false,
                    };
                    let known = known.map_or_else(new, |known| Doomed { bears, ..known.clone() });
                    doomed.insert(known.pod.uid.clone(), known);
                }
                None if known.is_some() => {
                    let message = format!("Cancelling deletion of Pod {}/{}", pod.namespace, pod.name);
                    tasks.push(event(&pod, &message, now));
                }
                None => {}
            }
        }
        if !taints.is_empty() {
            self.tainted.insert(name.to_owned(), doomed);
        }
        tasks
    }

    /// The pods with an expired time; their deletion counts as requested from now on.
    fn take_due(&mut self, now: Now) -> Vec<Subject> {
        let all = self.tainted.values_mut().flat_map(BTreeMap::values_mut);
        let due = all.filter(|doomed| !doomed.is_asked && doomed.due() <= now.running);
        due.map(|doomed| {
            doomed.is_asked = true;
            doomed.pod.clone()
        })
        .collect()
    }

    /// Tries again at this time, after another check of its node.
    fn again(&mut self, pod: &Subject, at: Duration) {
        if let Some(doomed) = self.tainted.get_mut(&pod.node).and_then(|pods| pods.get_mut(&pod.uid)) {
            (doomed.is_asked, doomed.not_before) = (false, at);
        }
        self.queue.insert(pod.node.clone());
    }

    fn forget(&mut self, pod: &Subject) {
        self.tainted.get_mut(&pod.node).map(|pods| pods.remove(&pod.uid));
    }
}

/// Whether a Node may have a NoExecute taint, by a search of its text: most have none, and need not be
/// parsed.
fn may_have_taints(node: &Object) -> bool {
    std::str::from_utf8(&node.json).is_ok_and(|text| text.contains(NO_EXECUTE))
}

fn no_execute(node: &Value) -> Vec<Value> {
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    taints.filter(|taint| taint["effect"] == NO_EXECUTE).cloned().collect()
}

/// For how long a pod tolerates these taints; `None`: for ever. Of several tolerations of a taint the first
/// counts, as upstream.
fn bears(spec: &Value, taints: &[Value]) -> Option<Duration> {
    let tolerations = spec["tolerations"].as_array().map_or(&[][..], Vec::as_slice);
    let mut shortest = None;
    for taint in taints {
        let Some(used) = tolerations.iter().find(|one| placing::tolerates(one, taint)) else {
            return Some(Duration::ZERO);
        };
        if let Some(seconds) = used["tolerationSeconds"].as_i64() {
            let time = span(seconds);
            shortest = Some(shortest.map_or(time, |known: Duration| known.min(time)));
        }
    }
    shortest
}

/// Shows why the pod ends, if its Node is still as found.
fn say(pod: Subject, node_revision: u64) -> Task<Purpose> {
    let node = Require::Unchanged {
        kind: &NODE,
        namespace: String::new(),
        name: pod.node.clone(),
        revision: Some(node_revision),
    };
    let uid = pod.uid.clone();
    let edit: Edit = Box::new(move |value, now| {
        if value["metadata"]["uid"] != *uid {
            return false;
        }
        let why = json!({"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint"});
        set_condition(&mut value["status"], why, now);
        true
    });
    let (namespace, name, requires) = (pod.namespace.clone(), pod.name.clone(), vec![node]);
    let action = Action::Update { kind: &POD, namespace, name, edit, requires: requires.clone() };
    Task { purpose: Purpose::Say(pod, requires), action }
}

/// Deletes the pod with its own grace period.
fn delete(pod: Subject, requires: Vec<Require>) -> Task<Purpose> {
    let options = DeleteOptions { uid: Some(pod.uid.clone()), ..DeleteOptions::default() };
    let (namespace, name) = (pod.namespace.clone(), pod.name.clone());
    let action = Action::Delete { kind: &POD, namespace, name, options, requires };
    Task { purpose: Purpose::Delete(pod), action }
}

fn event(pod: &Subject, message: &str, now: Now) -> Task<Purpose> {
    let Subject { namespace, name, uid, .. } = pod;
    let mark = super::daemon_sets::short(&format!("{uid}{message}{}", rfc3339(now.wall)));
    let about = About { kind: &POD, namespace, name, uid, revision: None };
    let what = What { sort: "Normal", reason: "TaintManagerEviction", message };
    let value = record::event(&about, &what, COMPONENT, namespace, &mark, now);
    Task { purpose: Purpose::Event, action: Action::create(&EVENT, value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortest_of_the_used_tolerations_counts() {
        let check = |tolerations: Value, expect: Option<u64>| {
            let taints =
                [json!({"key": "a", "effect": NO_EXECUTE}), json!({"key": "b", "effect": NO_EXECUTE})];
            let spec = json!({"tolerations": tolerations});
            assert_eq!(bears(&spec, &taints), expect.map(Duration::from_secs), "{spec}");
        };
        let one = |key: &str, seconds: Option<i64>| {
            let mut one = json!({"key": key, "operator": "Exists", "effect": NO_EXECUTE});
            if let Some(seconds) = seconds {
                one["tolerationSeconds"] = seconds.into();
            }
            one
        };
        check(json!([]), Some(0));
        check(json!([one("a", None)]), Some(0));
        check(json!([one("a", None), one("b", None)]), None);
        check(json!([one("a", Some(9)), one("b", None)]), Some(9));
        check(json!([one("a", Some(9)), one("b", Some(4))]), Some(4));
        check(json!([one("a", Some(-1)), one("b", Some(4))]), Some(0));
        // bounded to what the process can add to its own times
        check(json!([one("a", Some(i64::MAX)), one("b", None)]), Some(i32::MAX as u64));
        check(json!([one("a", Some(i64::MIN)), one("b", None)]), Some(0));
        // the first toleration of a taint
        check(json!([one("a", Some(9)), one("a", None), one("b", None)]), Some(9));
        check(json!([{"operator": "Exists"}, one("a", Some(9))]), None);
    }
}
