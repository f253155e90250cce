//! Node liveness and taints: `monitor` decides, this turns its decisions into actions.
//!
//! Inputs: Node, and Lease of the namespace `kube-node-lease`; both are read every [`PERIOD`], because renewals are too many to
//! observe one by one. Outputs: Node, Event.
//! Always holds: a node's silence counts only while the hub itself was able to receive. So a stall of this process (stopped, starved,
//! suspended) gives every node a full grace period again, and many nodes are declared lost at once only if the hub can reach itself.
//! A node's taints follow its conditions (`taints`), with one write for each change.

mod monitor;
mod taints;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use kedge_api::{CLUSTER_EVENT_NAMESPACE, NODE_LEASE_NAMESPACE};
use serde_json::{Value, json};

use super::controller::{self, Controller, Decision, Done, Edit, Guarded, Level, Line, Now, Task};
use crate::api_error::ApiError;
use crate::kinds::{EVENT, Kind, LEASE, NODE};
use crate::object::{Event, Object};
use crate::value::rfc3339;
use monitor::{Action, LeaseSight, Monitor, NodeSight, World};

pub use monitor::MINIMUM_GRACE;

static OUTPUTS: &[&Kind] = &[&NODE, &EVENT];

/// Time between two passes: upstream's --node-monitor-period.
pub const PERIOD: Duration = Duration::from_secs(5);
/// A longer stall means that the hub could not receive.
const STALL: Duration = Duration::from_secs(5);
/// Longest part of a node's name in the name of an event about it, which has 253 characters at most.
const NODE_IN_EVENT_BYTES: usize = 200;
/// Lost nodes with a log line of their own in one pass; the others are only counted.
const NAMED_IN_LOG: usize = 10;

/// See the module.
#[derive(Debug)]
pub struct Nodes {
    monitor: Monitor,
    sights: World,
    /// Nodes marked since the last log lines.
    lost: Vec<String>,
    log: Vec<Line>,
}

/// The purpose of an action.
#[derive(Debug)]
pub enum Purpose {
    /// Mark this node as lost; with whether it was ready before.
    Mark { node: String, uid: String, was_ready: bool },
    /// Set the taints of this node.
    Taint(String),
    /// Record an event with this reason and name about this node.
    Event { node: String, reason: &'static str, name: String },
    /// Count a repeated event.
    Repeat { node: String, reason: &'static str },
}

impl Nodes {
    /// `grace`: silence after which a node is lost, at least [`MINIMUM_GRACE`].
    pub fn new(grace: Duration) -> Nodes {
        Nodes { monitor: Monitor::new(grace), sights: World::default(), lost: Vec::new(), log: Vec::new() }
    }

    /// Updates the view of the store; only changed objects are parsed.
    fn look(&mut self, world: &dyn controller::World) {
        let nodes = world.list(&NODE, "");
        let old = std::mem::take(&mut self.sights.nodes);
        self.sights.nodes = refreshed(old, &nodes, NodeSight::of, |sight| sight.version);
        let leases = world.list(&LEASE, NODE_LEASE_NAMESPACE);
        let old = std::mem::take(&mut self.sights.leases);
        self.sights.leases = refreshed(old, &leases, LeaseSight::of, |sight| sight.version);
    }

    fn warn(&mut self, line: String) {
        self.log.push((Level::Warning, line));
    }
}

impl Controller for Nodes {
    type Purpose = Purpose;
    const NAME: &'static str = "nodes";
    /// Enough for the store to commit status writes in groups, few enough to leave capacity to others.
    const AT_ONCE: usize = 64;
    const MINDS_STALLS: bool = true;

    fn inputs() -> &'static [&'static Kind] {
        &[]
    }

    fn outputs() -> &'static [&'static Kind] {
        OUTPUTS
    }

    fn observe(&mut self, _: &'static Kind, _: &Event) {}

    fn sweep(&mut self, _: &dyn controller::World) {}

    /// One pass.
    fn reconcile(&mut self, world: &dyn controller::World, now: Now) -> Decision<Purpose> {
        self.look(world);
        if now.stalled > STALL {
            self.warn(format!(
                "the hub stood still for {:.1?}: every node gets a full grace period again",
                now.stalled
            ));
            self.monitor.forgive(now.running);
        }
        let decision = self.monitor.reconcile(now.running, &self.sights);
        let (mut tasks, mut marks) = (Vec::new(), Vec::new());
        for action in decision.actions {
            match action {
                Action::MarkUnknown { node, uid, seen, was_ready, disrupted } => {
                    marks.push(mark(node, uid, seen, was_ready, disrupted));
                }
                Action::Taint { node, uid, disrupted } => tasks.push(taint(node, uid, disrupted)),
                Action::Event { node, uid, reason, message } => {
                    tasks.push(record(&node, &uid, reason, &message, now));
                }
                Action::Back { node } => self.log.push((Level::Info, format!("node {node} is heard again"))),
                Action::StatusOverdue { node } => self.warn(format!(
                    "node {node} renews its Lease but has not posted a status since it was lost: its Ready stays Unknown"
                )),
            }
        }
        let mut guarded = None;
        if decision.needs_proof {
            guarded = Some(Guarded { blamed: format!("{} nodes are silent", marks.len()), tasks: marks });
        } else {
            tasks.append(&mut marks);
        }
        Decision { tasks, guarded, more: false, next: Some(now.running + PERIOD) }
    }

    fn performed(
        &mut self,
        purpose: Purpose,
        outcome: Result<Done, ApiError>,
        now: Now,
    ) -> Vec<Task<Purpose>> {
        match (purpose, outcome) {
            (Purpose::Mark { node, uid, was_ready }, Ok(Done::Stored(stored, true))) => {
                let sight = NodeSight::of(&stored.value(), stored.revision);
                self.monitor.wrote(&node, sight.status);
                let message = format!("Node {node} status is now: NodeNotReady");
                let event = was_ready.then(|| record(&node, &uid, "NodeNotReady", &message, now));
                self.lost.push(node);
                return event.into_iter().collect();
            }
            (Purpose::Mark { .. } | Purpose::Taint(_), Err(error)) if error.code == 404 => {}
            (Purpose::Mark { node, .. }, Err(error)) => {
                self.warn(format!("cannot mark node {node} as lost, trying again: {error}"));
            }
            (Purpose::Taint(node), Err(error)) => {
                self.warn(format!("cannot set the taints of node {node}, trying again: {error}"));
            }
            (Purpose::Event { node, reason, name }, Err(error)) if error.code == 409 => {
                return vec![repeat(node, reason, name)];
            }
            (Purpose::Event { node, reason, .. } | Purpose::Repeat { node, reason }, Err(error)) => {
                self.warn(format!("cannot record the event {reason} of node {node}: {error}"));
            }
            _ => {}
        }
        Vec::new()
    }

    fn take_log(&mut self, _: Now) -> Vec<Line> {
        let lost = std::mem::take(&mut self.lost);
        for node in lost.iter().take(NAMED_IN_LOG) {
            self.warn(format!(
                "node {node} is lost: neither its Lease nor its status changed for its grace period"
            ));
        }
        if lost.len() > NAMED_IN_LOG {
            self.warn(format!("and {} more nodes are lost", lost.len() - NAMED_IN_LOG));
        }
        std::mem::take(&mut self.log)
    }
}

/// The sights of all present objects: reused where the version is unchanged, else read again.
fn refreshed<T>(
    mut old: BTreeMap<String, T>,
    present: &[Arc<Object>],
    look: impl Fn(&Value, u64) -> T,
    version_of: impl Fn(&T) -> u64,
) -> BTreeMap<String, T> {
    let sight = |object: &Arc<Object>| {
        let kept = old.remove(&*object.name).filter(|sight| version_of(sight) == object.revision);
        (object.name.to_string(), kept.unwrap_or_else(|| look(&object.value(), object.revision)))
    };
    present.iter().map(sight).collect()
}

/// Marks one node as lost, unless its status changed in the meantime.
fn mark(node: String, uid: String, seen: u64, was_ready: bool, disrupted: bool) -> Task<Purpose> {
    let (name, meant) = (node.clone(), uid.clone());
    let edit: Edit = Box::new(move |object, now| {
        let is_meant = object["metadata"]["uid"] == *meant && monitor::fingerprint(&object["status"]) == seen;
        if is_meant {
            monitor::mark(object, now);
            taints::set(object, now, disrupted);
        }
        is_meant
    });
    Task { purpose: Purpose::Mark { node, uid, was_ready }, action: update(name, edit) }
}

/// Sets the taints that a node should have by its conditions and spec.
fn taint(node: String, uid: String, disrupted: bool) -> Task<Purpose> {
    let edit: Edit = Box::new(move |object, now| {
        let is_meant = object["metadata"]["uid"] == *uid;
        if is_meant {
            taints::set(object, now, disrupted);
        }
        is_meant
    });
    Task { purpose: Purpose::Taint(node.clone()), action: update(node, edit) }
}

fn update(name: String, edit: Edit) -> controller::Action {
    controller::Action::Update { kind: &NODE, namespace: String::new(), name, edit }
}

/// Records an event as upstream's node controller does. The same event has the same name, so that one that repeats is counted instead:
/// a node that comes and goes for a day costs one event, not thousands.
fn record(node: &str, uid: &str, reason: &'static str, message: &str, now: Now) -> Task<Purpose> {
    let time = rfc3339(now.wall);
    let mut hasher = DefaultHasher::new();
    (uid, reason, message).hash(&mut hasher);
    let of = node[..node.floor_char_boundary(NODE_IN_EVENT_BYTES)].trim_end_matches(['.', '-']);
    let name = format!("{of}.{:016x}", hasher.finish());
    let value = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": CLUSTER_EVENT_NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid},
        "reason": reason,
        "message": message,
        "type": "Normal",
        "source": {"component": "node-controller"},
        "reportingComponent": "node-controller",
        "reportingInstance": "",
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    });
    let purpose = Purpose::Event { node: node.to_owned(), reason, name };
    Task { purpose, action: controller::Action::Create { kind: &EVENT, value } }
}

fn repeat(node: String, reason: &'static str, name: String) -> Task<Purpose> {
    let edit: Edit = Box::new(move |event, now| {
        event["count"] = event["count"].as_i64().unwrap_or(1).saturating_add(1).into();
        event["lastTimestamp"] = now.into();
        true
    });
    let namespace = CLUSTER_EVENT_NAMESPACE.to_owned();
    let action = controller::Action::Update { kind: &EVENT, namespace, name, edit };
    Task { purpose: Purpose::Repeat { node, reason }, action }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(status: &Value) -> Value {
        json!({"metadata": {"name": "n", "uid": "u"}, "status": status})
    }

    #[test]
    fn node_that_reported_in_the_meantime_is_not_marked() {
        let silent = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let check = |uid: &str, found: Value, expect: bool| {
            let task = mark("n".to_owned(), uid.to_owned(), monitor::fingerprint(&silent), true, false);
            let controller::Action::Update { mut edit, .. } = task.action else {
                panic!("expected an update")
            };
            let mut value = node(&found);
            assert_eq!(edit(&mut value, "now"), expect);
            let ready = if expect { "Unknown" } else { "True" };
            assert_eq!(value["status"]["conditions"][0]["status"], ready);
        };
        check("u", silent.clone(), true);
        check("another uid", silent.clone(), false);
        check("u", json!({"conditions": [{"type": "Ready", "status": "True", "reason": "new"}]}), false);
    }

    #[test]
    fn mark_that_did_not_apply_leaves_no_event() {
        let check = |outcome: Result<Done, ApiError>, expect: usize| {
            let mut nodes = Nodes::new(MINIMUM_GRACE);
            let now = Now {
                running: Duration::ZERO,
                wall: time::OffsetDateTime::UNIX_EPOCH,
                stalled: Duration::ZERO,
            };
            let purpose = Purpose::Mark { node: "n".to_owned(), uid: "u".to_owned(), was_ready: true };
            assert_eq!(nodes.performed(purpose, outcome, now).len(), expect, "events");
            assert_eq!(nodes.take_log(now).len(), expect, "log lines");
        };
        let stored = || Arc::new(Object::new(&NODE, &node(&json!({})), 1).unwrap());
        check(Ok(Done::Stored(stored(), true)), 1);
        check(Ok(Done::Stored(stored(), false)), 0);
        check(Err(ApiError::not_found(&NODE, "n")), 0);
    }

    #[test]
    fn only_changed_objects_are_read_again() {
        let object = |name: &str, revision| {
            Arc::new(Object::new(&NODE, &json!({"metadata": {"name": name}}), revision).unwrap())
        };
        let old = BTreeMap::from([("kept".to_owned(), 1), ("changed".to_owned(), 1), ("gone".to_owned(), 1)]);
        let looked = std::cell::RefCell::new(Vec::new());
        let look = |value: &Value, revision| {
            looked.borrow_mut().push(value["metadata"]["name"].as_str().unwrap().to_owned());
            revision
        };
        let present = [object("kept", 1), object("changed", 2), object("new", 3)];
        let now = refreshed(old, &present, look, |sight| *sight);
        let expect =
            [("changed", 2), ("kept", 1), ("new", 3)].map(|(name, version)| (name.to_owned(), version));
        assert_eq!(now, BTreeMap::from(expect));
        assert_eq!(looked.into_inner(), ["changed", "new"]);
    }

    /// The same event about the same node is one object, with a count.
    #[test]
    fn repeated_event_is_counted() {
        let now =
            Now { running: Duration::ZERO, wall: time::OffsetDateTime::UNIX_EPOCH, stalled: Duration::ZERO };
        let name_of = |uid: &str, reason| match record("n", uid, reason, "m", now).action {
            controller::Action::Create { value, .. } => {
                value["metadata"]["name"].as_str().unwrap().to_owned()
            }
            _ => panic!("expected a creation"),
        };
        assert_eq!(name_of("u", "NodeNotReady"), name_of("u", "NodeNotReady"));
        assert_ne!(name_of("u", "NodeNotReady"), name_of("v", "NodeNotReady"));
        assert_ne!(name_of("u", "NodeNotReady"), name_of("u", "RemovingNode"));
        let mut nodes = Nodes::new(MINIMUM_GRACE);
        let purpose = record("n", "u", "NodeNotReady", "m", now).purpose;
        let taken = ApiError::already_exists(&EVENT, "n.1", false);
        let follow = nodes.performed(purpose, Err(taken), now);
        let [Task { action: controller::Action::Update { .. }, .. }] = follow.as_slice() else {
            panic!("expected an update: {follow:?}")
        };
        let Some(Task { action: controller::Action::Update { mut edit, .. }, .. }) =
            follow.into_iter().next()
        else {
            unreachable!("it was matched above")
        };
        let mut event = json!({"count": 1, "firstTimestamp": "a", "lastTimestamp": "a"});
        assert!(edit(&mut event, "b"));
        assert_eq!(event, json!({"count": 2, "firstTimestamp": "a", "lastTimestamp": "b"}));
    }
}
