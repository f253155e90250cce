//! Pods without a working node: pods of a deleted node are removed, those of an unready node are reported not
//! ready, and ended ones are removed when there are too many.
//!
//! Inputs: Node. Outputs: Pod. The rules are upstream's (pod garbage collector, node lifecycle controller).
//! Always holds: a pod is only removed by force after its Node was missing for [`QUARANTINE`], not counting
//! stalls of the hub and its disk, and only while the Node is missing, so a Node that is created anew keeps
//! its pods; the cost of a step is the pods that it changes, and one look-up for each node that has pods.
//! Left to others: the readiness of nodes (`nodes`); a node that is back reports its pods itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::controller::{Action, Controller, Decision, Done, Edit, Level, Line, Now, Task, World};
use crate::api_error::ApiError;
use crate::kinds::pod::{NODE_NAME_FIELD, PHASE_FIELD};
use crate::kinds::{Kind, NODE, POD};
use crate::object::{Event, Object};
use crate::requests::DeleteOptions;
use crate::selector::Selection;
use crate::state::Require;
use crate::value::{at, condition, set_condition, text};

static INPUTS: &[&Kind] = &[&NODE];
static OUTPUTS: &[&Kind] = &[&POD];

/// Upstream's wait before the pods of a missing Node are removed.
pub const QUARANTINE: Duration = Duration::from_secs(40);
/// Most ended pods, mirror pods aside, which have the quota of their node. Upstream keeps 12,500, which would
/// be 60 MB here.
const ENDED: usize = 1_000;
/// A taint by which an administrator declares that an unready node does not run at all: its terminating pods
/// are removed.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// After a longer stall of the hub, in which nobody could create a Node, its duration does not count as
/// absence.
const STALL: Duration = Duration::from_secs(5);
/// Most nodes looked at in one step.
const PER_STEP: usize = 256;

/// See the module.
#[derive(Debug, Default)]
pub struct Pods {
    /// Nodes to check.
    queue: BTreeSet<String>,
    /// Each Node with pods, as last checked.
    seen: BTreeMap<String, Seen>,
    /// Missing nodes that have pods.
    missing: BTreeMap<String, Missing>,
    /// A sweep is due.
    swept: bool,
    log: Vec<Line>,
}

#[derive(Debug)]
struct Seen {
    revision: u64,
    /// When it became unready, by its condition; `None` if it is ready.
    lost: Option<Box<str>>,
}

#[derive(Debug)]
struct Missing {
    since: Duration,
    logged: bool,
}

/// The purpose of an action.
#[derive(Debug)]
pub enum Purpose {
    /// Mark a pod as failed; then delete it, if the requirements still hold.
    Fail(Vec<Require>),
    Delete,
    NotReady,
}

impl Controller for Pods {
    type Purpose = Purpose;
    const NAME: &'static str = "pods";
    /// Upstream's period.
    const SWEEP: Option<Duration> = Some(Duration::from_secs(20));
    /// One commit's worth.
    const AT_ONCE: usize = 256;
    const MINDS_STALLS: bool = true;

    fn inputs() -> &'static [&'static Kind] {
        INPUTS
    }

    fn outputs() -> &'static [&'static Kind] {
        OUTPUTS
    }

    fn observe(&mut self, _: &'static Kind, event: &Event) {
        self.queue.insert(event.object().name.to_string());
    }

    fn sweep(&mut self, world: &dyn World) {
        let nodes = world.values(&POD, NODE_NAME_FIELD);
        self.seen.retain(|node, _| nodes.binary_search(node).is_ok());
        self.missing.retain(|node, _| nodes.binary_search(node).is_ok());
        self.queue.extend(nodes.into_iter().filter(|node| !node.is_empty()));
        self.swept = true;
    }

    fn reconcile(&mut self, world: &dyn World, now: Now) -> Decision<Purpose> {
        let stalled = now.stalled.max(now.disk_stalled);
        for missing in self.missing.values_mut().filter(|_| stalled > STALL) {
            missing.since = (missing.since + stalled).min(now.running);
        }
        let mut tasks = Vec::new();
        if std::mem::take(&mut self.swept) {
            let surplus = surplus(ended(world), ENDED);
            tasks.extend(surplus.iter().map(|pod| force_delete(pod, Vec::new())));
            tasks.extend(left_terminating(world));
        }
        for _ in 0..PER_STEP {
            let Some(node) = self.queue.pop_first() else { break };
            tasks.extend(self.reconcile_one(world, &node, now));
        }
        // the next sweep checks missing nodes again
        Decision { tasks, guarded: None, more: !self.queue.is_empty(), next: None }
    }

    fn performed(&mut self, purpose: Purpose, outcome: Result<Done, ApiError>, _: Now) -> Vec<Task<Purpose>> {
        match (purpose, outcome) {
            (Purpose::Fail(requires), Ok(Done::Stored(pod, true))) => {
                return vec![force_delete(&pod, requires)];
            }
            (_, Ok(_)) => {}
            (_, Err(error)) if matches!(error.code, 404 | 409) => {}
            (_, Err(error)) => {
                self.log
                    .push((Level::Warning, format!("cannot update or remove a pod: {error}; trying again")));
                // the next sweep checks them again
                self.seen.clear();
            }
        }
        Vec::new()
    }

    fn take_log(&mut self, _: Now) -> Vec<Line> {
        std::mem::take(&mut self.log)
    }
}

impl Pods {
    /// The actions for the pods of one node.
    fn reconcile_one(&mut self, world: &dyn World, name: &str, now: Now) -> Vec<Task<Purpose>> {
        let Some(node) = world.get(&NODE, "", name) else { return self.look_for(world, name, now) };
        self.missing.remove(name);
        if self.seen.get(name).is_some_and(|seen| seen.revision == node.revision) {
            return Vec::new();
        }
        let pods = on_node(world, name);
        if pods.is_empty() {
            return Vec::new();
        }
        let value = node.value();
        let lost = (!is_ready(&value)).then(|| lost_at(&value));
        let seen = Seen { revision: node.revision, lost: lost.clone() };
        let before = self.seen.insert(name.to_owned(), seen).and_then(|seen| seen.lost);
        let out_of_service = is_out_of_service(&value);
        let doomed = pods.iter().filter(|pod| pod.terminating && out_of_service);
        let mut tasks: Vec<_> = doomed.map(|pod| fail(pod, None, unchanged(name, Some(&node)))).collect();
        // once per loss, also if the node was ready only between two checks
        let is_new = before.is_none() || (before != lost && !reports(&value));
        if lost.is_some() && is_new {
            let others = pods.iter().filter(|pod| !(pod.terminating && out_of_service));
            tasks.extend(others.filter_map(|pod| not_ready(pod)));
        }
        tasks
    }

    /// Removes the pods of a Node that has been missing for long enough.
    fn look_for(&mut self, world: &dyn World, name: &str, now: Now) -> Vec<Task<Purpose>> {
        self.seen.remove(name);
        let pods = on_node(world, name);
        if pods.is_empty() {
            self.missing.remove(name);
            return Vec::new();
        }
        let new = || Missing { since: now.running, logged: false };
        let missing = self.missing.entry(name.to_owned()).or_insert_with(new);
        if now.running < missing.since + QUARANTINE {
            return Vec::new();
        }
        // finalizers may hold its pods for many sweeps
        if !std::mem::replace(&mut missing.logged, true) {
            let line = format!("node {name} is gone: removing its {} pods", pods.len());
            self.log.push((Level::Info, line));
        }
        let why = json!({"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "PodGC: node no longer exists"});
        pods.iter().map(|pod| fail(pod, Some(why.clone()), unchanged(name, None))).collect()
    }
}

fn on_node(world: &dyn World, node: &str) -> Vec<Arc<Object>> {
    world.select(&POD, &Selection::by_field(&POD, "", NODE_NAME_FIELD, node))
}

/// A node that never reported does not count as unready.
fn is_ready(node: &Value) -> bool {
    condition(&node["status"], "Ready").is_none_or(|ready| ready["status"] == "True")
}

/// Since when it has been unready.
fn lost_at(node: &Value) -> Box<str> {
    condition(&node["status"], "Ready").map_or("", |ready| text(ready, &["lastTransitionTime"])).into()
}

/// Whether the node itself reports its readiness: then it reports its pods, too.
fn reports(node: &Value) -> bool {
    condition(&node["status"], "Ready").is_some_and(|ready| ready["status"] != "Unknown")
}

/// Whether an administrator declares that it does not run, and the node itself does not report otherwise.
fn is_out_of_service(node: &Value) -> bool {
    let taints = at(node, &["spec", "taints"]).and_then(Value::as_array);
    !is_ready(node) && taints.into_iter().flatten().any(|taint| taint["key"] == OUT_OF_SERVICE)
}

/// Requires that the Node is still as found, or still missing.
fn unchanged(node: &str, found: Option<&Object>) -> Vec<Require> {
    let (namespace, name, revision) = (String::new(), node.to_owned(), found.map(|node| node.revision));
    vec![Require::Unchanged { kind: &NODE, namespace, name, revision }]
}

/// Removes terminating pods that have nobody to confirm their end: those without a node, and those of a node
/// that is out of service.
fn left_terminating(world: &dyn World) -> Vec<Task<Purpose>> {
    let mut by_node: BTreeMap<String, Vec<Arc<Object>>> = BTreeMap::new();
    for (_, pod) in world.terminating().into_iter().filter(|(kind, _)| kind.kind == POD.kind) {
        by_node.entry(pod.field(NODE_NAME_FIELD).to_owned()).or_default().push(pod);
    }
    let unscheduled = by_node.remove("").unwrap_or_default();
    let unscheduled = unscheduled.iter().filter(|pod| !has_ended(pod.field(PHASE_FIELD)));
    let mut tasks: Vec<_> = unscheduled.map(|pod| fail(pod, None, Vec::new())).collect();
    for (name, pods) in by_node {
        if let Some(node) = world.get(&NODE, "", &name).filter(|node| is_out_of_service(&node.value())) {
            tasks.extend(pods.iter().map(|pod| fail(pod, None, unchanged(&name, Some(&node)))));
        }
    }
    tasks
}

fn ended(world: &dyn World) -> Vec<Arc<Object>> {
    let of_phase = |phase| world.select(&POD, &Selection::by_field(&POD, "", PHASE_FIELD, phase));
    ["Succeeded", "Failed"].into_iter().flat_map(of_phase).collect()
}

/// The oldest ended pods above the limit. Mirror pods do not count: otherwise a node could push out the pods
/// of others with them.
fn surplus(mut ended: Vec<Arc<Object>>, most: usize) -> Vec<Arc<Object>> {
    ended.retain(|pod| pod.holder.is_none());
    ended.sort_by_key(|pod| std::cmp::Reverse(pod.revision));
    ended.split_off(ended.len().min(most))
}

fn has_ended(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// Marks a pod as failed: otherwise it would be shown as running for as long as a finalizer holds it.
fn fail(pod: &Object, why: Option<Value>, requires: Vec<Require>) -> Task<Purpose> {
    let purpose = Purpose::Fail(requires.clone());
    update(pod, purpose, requires, move |value, now| {
        if has_ended(text(value, &["status", "phase"])) {
            return;
        }
        value["status"]["phase"] = "Failed".into();
        if let Some(why) = why.clone() {
            set_condition(&mut value["status"], why, now);
        }
    })
}

/// Reports a pod as not ready, if it was reported ready.
fn not_ready(pod: &Object) -> Option<Task<Purpose>> {
    let is_ready =
        |pod: &Value| condition(&pod["status"], "Ready").is_some_and(|ready| ready["status"] == "True");
    is_ready(&pod.value()).then(|| {
        update(pod, Purpose::NotReady, Vec::new(), move |value, now| {
            if let Some(mut ready) = condition(&value["status"], "Ready").cloned().filter(|_| is_ready(value))
            {
                ready["status"] = "False".into();
                set_condition(&mut value["status"], ready, now);
            }
        })
    })
}

fn update(
    pod: &Object,
    purpose: Purpose,
    requires: Vec<Require>,
    mut change: impl FnMut(&mut Value, &str) + Send + 'static,
) -> Task<Purpose> {
    let uid = pod.uid.to_string();
    let edit: Edit = Box::new(move |value, now| {
        let is_meant = value["metadata"]["uid"] == *uid;
        if is_meant {
            change(value, now);
        }
        is_meant
    });
    let (namespace, name) = (pod.namespace.to_string(), pod.name.to_string());
    Task { purpose, action: Action::Update { kind: &POD, namespace, name, edit, requires } }
}

/// Removes a pod if it is still as found.
fn force_delete(pod: &Object, requires: Vec<Require>) -> Task<Purpose> {
    let options = DeleteOptions {
        uid: Some(pod.uid.to_string()),
        resource_version: Some(pod.revision.to_string()),
        grace_secs: Some(0),
        ..DeleteOptions::default()
    };
    let (namespace, name) = (pod.namespace.to_string(), pod.name.to_string());
    Task {
        purpose: Purpose::Delete,
        action: Action::Delete { kind: &POD, namespace, name, options, requires },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many pods that nodes made about themselves have ended.
    #[test]
    fn mirror_pods_push_out_no_ended_pod() {
        let pod = |revision: u64, mirror: bool| {
            let mut value = json!({"metadata": {"namespace": "d", "name": format!("p{revision}")}, "spec": {"nodeName": "a"}});
            if mirror {
                value["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
            }
            Arc::new(Object::new(&POD, &value, revision).unwrap())
        };
        let mut ended: Vec<_> = (1..=4).map(|revision| pod(revision, false)).collect();
        ended.extend((5..100).map(|revision| pod(revision, true)));
        let names: Vec<_> = surplus(ended, 3).iter().map(|pod| pod.name.to_string()).collect();
        assert_eq!(names, ["p1"]);
    }
}
