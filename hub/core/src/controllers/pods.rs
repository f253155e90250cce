//! Pods that no node looks after: those of a node that is gone are removed, those of a node that is not ready are reported not ready,
//! and ended ones are removed when there are too many.
//!
//! Inputs: Node. Outputs: Pod. The rules are upstream's (pod garbage collector, node lifecycle controller). Always holds: a pod is only
//! removed by force after its Node was missing for [`QUARANTINE`], so that a Node that is made anew keeps its pods; a step costs
//! the pods that it changes, and one look-up for each node that has pods. Left to others: the readiness of nodes (`nodes`); a node that
//! is back reports its pods itself.

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
use crate::value::{at, condition, text};

static INPUTS: &[&Kind] = &[&NODE];
static OUTPUTS: &[&Kind] = &[&POD];

/// Upstream's wait before the pods of a missing Node are removed.
pub const QUARANTINE: Duration = Duration::from_secs(40);
/// Most ended pods. Upstream keeps 12,500, which would be 60 MB here.
const ENDED: usize = 1_000;
/// A taint by which an administrator says that a node that is not ready does not run: its terminating pods are removed.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Most nodes looked at in one step.
const PER_STEP: usize = 256;

/// See the module.
#[derive(Debug, Default)]
pub struct Pods {
    /// Nodes to look at.
    queue: BTreeSet<String>,
    /// The revision of each Node with pods when it was last looked at.
    seen: BTreeMap<String, u64>,
    /// Since when Nodes with pods are missing.
    missing: BTreeMap<String, Duration>,
    /// A sweep is due.
    swept: bool,
    log: Vec<Line>,
}

/// The purpose of an action.
#[derive(Debug)]
pub enum Purpose {
    /// Mark a pod as failed; then delete it.
    Fail {
        namespace: String,
        name: String,
        uid: String,
    },
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
        let mut tasks = Vec::new();
        if std::mem::take(&mut self.swept) {
            tasks.extend(surplus_of_ended(world).iter().map(|pod| force_delete(pod)));
            tasks.extend(unscheduled(world).iter().map(|pod| fail(pod, None)));
        }
        for _ in 0..PER_STEP {
            let Some(node) = self.queue.pop_first() else { break };
            tasks.extend(self.look(world, &node, now));
        }
        // the next sweep looks again at the nodes that are missing
        Decision { tasks, guarded: None, more: !self.queue.is_empty(), next: None }
    }

    fn performed(&mut self, purpose: Purpose, outcome: Result<Done, ApiError>, _: Now) -> Vec<Task<Purpose>> {
        match (purpose, outcome) {
            (Purpose::Fail { namespace, name, uid }, Ok(Done::Stored(_, true))) => {
                return vec![force_delete_named(namespace, name, uid)];
            }
            (_, Ok(_)) => {}
            (_, Err(error)) if matches!(error.code, 404 | 409) => {}
            (_, Err(error)) => {
                self.log
                    .push((Level::Warning, format!("cannot update or remove a pod: {error}; trying again")));
                // the next sweep looks again
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
    fn look(&mut self, world: &dyn World, name: &str, now: Now) -> Vec<Task<Purpose>> {
        let Some(node) = world.get(&NODE, "", name) else { return self.look_for(world, name, now) };
        self.missing.remove(name);
        if self.seen.get(name) == Some(&node.revision) {
            return Vec::new();
        }
        let pods = on_node(world, name);
        if pods.is_empty() {
            return Vec::new();
        }
        self.seen.insert(name.to_owned(), node.revision);
        let node = node.value();
        let ready = condition(&node["status"], "Ready");
        // a node that never reported is not known to be not ready
        if ready.is_none_or(|ready| ready["status"] == "True") {
            return Vec::new();
        }
        let taints = at(&node, &["spec", "taints"]).and_then(Value::as_array);
        let out_of_service = taints.into_iter().flatten().any(|taint| taint["key"] == OUT_OF_SERVICE);
        pods.iter()
            .filter_map(|pod| match pod.terminating && out_of_service {
                true => Some(fail(pod, None)),
                false => not_ready(pod),
            })
            .collect()
    }

    /// Removes the pods of a Node that is missing for long enough.
    fn look_for(&mut self, world: &dyn World, name: &str, now: Now) -> Vec<Task<Purpose>> {
        self.seen.remove(name);
        let pods = on_node(world, name);
        if pods.is_empty() {
            self.missing.remove(name);
            return Vec::new();
        }
        let since = *self.missing.entry(name.to_owned()).or_insert(now.running);
        if now.running < since + QUARANTINE {
            return Vec::new();
        }
        self.log.push((Level::Info, format!("node {name} is gone, and with it its {} pods", pods.len())));
        let why = json!({"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "PodGC: node no longer exists"});
        pods.iter().map(|pod| fail(pod, Some(why.clone()))).collect()
    }
}

fn on_node(world: &dyn World, node: &str) -> Vec<Arc<Object>> {
    world.select(&POD, &Selection::by_field(&POD, "", NODE_NAME_FIELD, node))
}

/// Terminating pods that no node runs: nobody else would confirm their end.
fn unscheduled(world: &dyn World) -> Vec<Arc<Object>> {
    let terminating = world.terminating().into_iter().filter(|(kind, _)| kind.kind == POD.kind);
    let pods = terminating.map(|(_, pod)| pod);
    pods.filter(|pod| pod.field(NODE_NAME_FIELD).is_empty() && !has_ended(pod.field(PHASE_FIELD))).collect()
}

/// The oldest ended pods above the limit.
fn surplus_of_ended(world: &dyn World) -> Vec<Arc<Object>> {
    let mut ended: Vec<_> = ["Succeeded", "Failed"]
        .into_iter()
        .flat_map(|phase| world.select(&POD, &Selection::by_field(&POD, "", PHASE_FIELD, phase)))
        .collect();
    ended.sort_by_key(|pod| std::cmp::Reverse(pod.revision));
    ended.split_off(ended.len().min(ENDED))
}

fn has_ended(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// Marks a pod as failed: it may be shown as running for ever otherwise, for as long as a finalizer holds it.
fn fail(pod: &Object, why: Option<Value>) -> Task<Purpose> {
    let (namespace, name, uid) = (pod.namespace.to_string(), pod.name.to_string(), pod.uid.to_string());
    let purpose = Purpose::Fail { namespace, name, uid };
    update(pod, purpose, move |value, now| {
        if has_ended(text(value, &["status", "phase"])) {
            return;
        }
        value["status"]["phase"] = "Failed".into();
        if let Some(mut why) = why.clone() {
            why["lastTransitionTime"] = now.into();
            set_condition(value, why);
        }
    })
}

/// Reports a pod as not ready, if it was reported ready.
fn not_ready(pod: &Object) -> Option<Task<Purpose>> {
    let is_ready =
        |value: &Value| condition(&value["status"], "Ready").is_some_and(|ready| ready["status"] == "True");
    is_ready(&pod.value()).then(|| {
        update(pod, Purpose::NotReady, move |value, now| {
            if let Some(mut ready) = condition(&value["status"], "Ready").cloned().filter(|_| is_ready(value))
            {
                ready["status"] = "False".into();
                ready["lastTransitionTime"] = now.into();
                set_condition(value, ready);
            }
        })
    })
}

fn set_condition(pod: &mut Value, new: Value) {
    if !pod["status"]["conditions"].is_array() {
        pod["status"]["conditions"] = json!([]);
    }
    let Some(conditions) = pod["status"]["conditions"].as_array_mut() else { return };
    match conditions.iter_mut().find(|known| known["type"] == new["type"]) {
        Some(known) => *known = new,
        None => conditions.push(new),
    }
}

fn update(
    pod: &Object,
    purpose: Purpose,
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
    Task { purpose, action: Action::Update { kind: &POD, namespace, name, edit, requires: Vec::new() } }
}

fn force_delete(pod: &Object) -> Task<Purpose> {
    force_delete_named(pod.namespace.to_string(), pod.name.to_string(), pod.uid.to_string())
}

fn force_delete_named(namespace: String, name: String, uid: String) -> Task<Purpose> {
    let options = DeleteOptions { uid: Some(uid), grace_secs: Some(0), ..DeleteOptions::default() };
    Task { purpose: Purpose::Delete, action: Action::Delete { kind: &POD, namespace, name, options } }
}
