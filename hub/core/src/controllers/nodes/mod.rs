//! Node liveness and taints: `monitor` decides, and this module turns its decisions into actions.
//!
//! Inputs: Node, and Lease of the namespace `kube-node-lease`, without renewals: there are too many to
//! observe one by one, so each pass (every [`PERIOD`]) reads the list of Leases renewed since the last one.
//! Outputs: Node, Event. Always holds: a node's silence counts only while the hub itself was able to receive.
//! So a stall of this process (stopped, starved, suspended) gives every node a full grace period again. A
//! stall of its disk gives one to nodes without a Lease, and no node is marked while it lasts; renewals do
//! not wait for the disk. A node whose Lease was renewed before its mark is written is not marked; and many
//! nodes are declared lost at once only if the hub can reach itself. A node's taints follow its conditions
//! (`taints`), with one write for each change; NoExecute ones as fast as its zone allows (`zones`).

mod monitor;
mod taints;
mod zones;

use std::collections::{BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::controller::{self, Controller, Decision, Done, Edit, Guarded, Level, Line, Now, Task};
use super::record::{About, What, event};
use crate::api_error::ApiError;
use crate::kinds::{EVENT, Kind, LEASE, NODE};
use crate::object::{Event, Object};
use crate::state::Require;
use crate::value::text;
use kedge_api::{CLUSTER_EVENT_NAMESPACE, NODE_LEASE_NAMESPACE};
use monitor::{Action, LeaseSight, Monitor, NodeSight, World};
use taints::NoExecute;

pub use monitor::MINIMUM_GRACE;

static INPUTS: &[&Kind] = &[&NODE, &LEASE];
static OUTPUTS: &[&Kind] = &[&NODE, &EVENT];

/// Time between two passes: upstream's --node-monitor-period.
pub const PERIOD: Duration = Duration::from_secs(5);
/// A longer stall means that the hub could not receive.
const STALL: Duration = Duration::from_secs(5);
/// Most objects read again in one step after a sweep, so that other tasks have their turn in between.
const READ_AT_ONCE: usize = 256;
/// Pause after the store refused a mark or a taint; doubled with each further refusal.
const HOLD: Duration = Duration::from_secs(5);
const LONGEST_HOLD: Duration = Duration::from_secs(5 * 60);
/// Lost nodes with a log line of their own in one pass; the others are only counted.
const NAMED_IN_LOG: usize = 10;

/// See the module.
#[derive(Debug)]
pub struct Nodes {
    monitor: Monitor,
    sights: World,
    /// Names of Nodes and Leases to read again.
    unread: VecDeque<(&'static Kind, String)>,
    next_pass: Duration,
    /// The hub's disk does not respond; logged once.
    stands_still: bool,
    refused: Refused,
    /// Nodes marked since the last log lines.
    lost: Vec<String>,
    log: Vec<Line>,
}

/// Writes that the store refused. While the store refuses some, no others are tried, so that they do not pile
/// up.
#[derive(Debug, Default)]
struct Refused {
    until: Duration,
    pause: Duration,
    /// Since the last log line, with the last error.
    count: usize,
    last: Option<ApiError>,
}

impl Refused {
    fn refused(&mut self, error: ApiError, now: Duration) {
        if self.until <= now {
            self.pause = (self.pause * 2).clamp(HOLD, LONGEST_HOLD);
            self.until = now + self.pause;
        }
        self.count += 1;
        self.last = Some(error);
    }

    fn take_line(&mut self) -> Option<String> {
        let error = self.last.take()?;
        let (count, pause) = (std::mem::take(&mut self.count), self.pause.as_secs());
        Some(format!("cannot mark or taint {count} nodes, trying again in {pause} s: {error}"))
    }
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
        Nodes {
            monitor: Monitor::new(grace),
            sights: World::default(),
            unread: VecDeque::new(),
            next_pass: Duration::ZERO,
            stands_still: false,
            refused: Refused::default(),
            lost: Vec::new(),
            log: Vec::new(),
        }
    }

    /// Takes in the present version of an object; `None` for a deleted one.
    fn see(&mut self, kind: &Kind, name: &str, object: Option<&Object>) {
        let Some(object) = object else {
            match kind.is_renewed() {
                true => drop(self.sights.leases.remove(name)),
                false => drop(self.sights.nodes.remove(name)),
            }
            return;
        };
        let (name, version) = (name.to_owned(), object.revision);
        if kind.is_renewed() {
            if self.sights.leases.get(&name).is_none_or(|sight| sight.version < version) {
                self.sights.leases.insert(name, LeaseSight::of(&object.value(), version));
            }
        } else if self.sights.nodes.get(&name).is_none_or(|sight| sight.version != version) {
            self.sights.nodes.insert(name, NodeSight::of(&object.value(), version));
        }
    }

    /// Reads some of the objects that a sweep found. Returns whether all are read.
    fn read(&mut self, world: &dyn controller::World) -> bool {
        for _ in 0..READ_AT_ONCE {
            let Some((kind, name)) = self.unread.pop_front() else { break };
            let object = world.get(kind, namespace_of(kind), &name);
            self.see(kind, &name, object.as_deref());
        }
        self.unread.is_empty()
    }

    /// Takes in the renewals since the last pass. Returns the revision up to which they are known.
    fn hear(&mut self, world: &dyn controller::World) -> u64 {
        let heard = world.heard();
        for lease in heard.objects.iter().filter(|lease| *lease.namespace == *NODE_LEASE_NAMESPACE) {
            match self.sights.leases.get_mut(&*lease.name) {
                Some(sight) => sight.version = sight.version.max(lease.revision),
                // it may be deleted, and the event of that seen already
                None => {
                    let now = world.get(&LEASE, NODE_LEASE_NAMESPACE, &lease.name);
                    self.see(&LEASE, &lease.name, now.as_deref());
                }
            }
        }
        heard.revision
    }

    /// Restarts all grace periods if the hub could not receive: the silence so far does not count.
    fn forgive(&mut self, now: Now) {
        let stands_still = now.stalled > STALL;
        if stands_still {
            self.monitor.forgive(now.running);
        }
        if stands_still && !self.stands_still {
            self.warn(format!(
                "the hub stood still for {:.1?}: every node gets a full grace period again",
                now.stalled
            ));
        }
        self.stands_still = stands_still;
        if now.disk_stalled > STALL {
            self.monitor.forgive_without_lease(now.running, &self.sights);
        }
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
        INPUTS
    }

    fn concerns(kind: &'static Kind, event: &Event) -> bool {
        *event.object().namespace == *namespace_of(kind)
    }

    fn outputs() -> &'static [&'static Kind] {
        OUTPUTS
    }

    fn observe(&mut self, kind: &'static Kind, event: &Event) {
        self.see(kind, &event.object().name, event.new.as_deref());
    }

    fn sweep(&mut self, world: &dyn controller::World) {
        // renewals until now are already in the lists
        world.heard();
        self.unread.clear();
        for kind in INPUTS {
            let present = world.list(kind, namespace_of(kind));
            let names: BTreeSet<&str> = present.iter().map(|object| &*object.name).collect();
            match kind.is_renewed() {
                true => self.sights.leases.retain(|name, _| names.contains(&**name)),
                false => self.sights.nodes.retain(|name, _| names.contains(&**name)),
            }
            self.unread.extend(present.iter().map(|object| (*kind, object.name.to_string())));
        }
        self.next_pass = Duration::ZERO;
    }

    /// One pass, if it is due.
    fn reconcile(&mut self, world: &dyn controller::World, now: Now) -> Decision<Purpose> {
        self.forgive(now);
        if !self.read(world) {
            return Decision { more: true, ..Decision::default() };
        }
        if now.running < self.next_pass {
            return Decision { next: Some(self.next_pass), ..Decision::default() };
        }
        self.next_pass = now.running + PERIOD;
        let known = self.hear(world);
        // marks are held back while the disk does not respond; once it responds they are written, even if it
        // stalls again and again
        let holds = now.running < self.refused.until || now.disk_stalls;
        let decision = self.monitor.reconcile(now.running, &self.sights);
        let (mut tasks, mut marks) = (Vec::new(), Vec::new());
        for action in decision.actions {
            match action {
                Action::MarkUnknown { .. } | Action::Taint { .. } if holds => {}
                Action::MarkUnknown { node, uid, seen, was_ready, no_execute } => {
                    let lease = world.get(&LEASE, NODE_LEASE_NAMESPACE, &node).map(|lease| lease.revision);
                    // a Lease that was renewed since is heard in the next pass
                    if lease.is_none_or(|lease| lease <= known) {
                        marks.push(mark(Meant { node, uid, seen, lease }, was_ready, no_execute));
                    }
                }
                Action::Taint { node, uid, no_execute } => tasks.push(taint(node, uid, no_execute)),
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
        Decision { tasks, guarded, more: false, next: Some(self.next_pass) }
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
                self.refused.pause = Duration::ZERO;
                return event.into_iter().collect();
            }
            (Purpose::Mark { .. } | Purpose::Taint(_), Err(error)) if error.code == 404 => {}
            (Purpose::Mark { .. } | Purpose::Taint(_), Err(error)) => {
                self.refused.refused(error, now.running);
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
        let refused = self.refused.take_line();
        refused.into_iter().for_each(|line| self.warn(line));
        std::mem::take(&mut self.log)
    }
}

/// Where the objects of an input are.
fn namespace_of(kind: &Kind) -> &'static str {
    if kind.is_renewed() { NODE_LEASE_NAMESPACE } else { "" }
}

/// The node that a decision is about, as it was then.
struct Meant {
    node: String,
    uid: String,
    /// Fingerprint of its status.
    seen: u64,
    /// The version of its Lease, if there is one.
    lease: Option<u64>,
}

/// Marks one node as lost, unless its status or its Lease changed in the meantime.
fn mark(meant: Meant, was_ready: bool, no_execute: NoExecute) -> Task<Purpose> {
    let Meant { node, uid, seen, lease } = meant;
    let (name, expected) = (node.clone(), uid.clone());
    let edit: Edit = Box::new(move |object, now| {
        let is_meant =
            object["metadata"]["uid"] == *expected && monitor::fingerprint(&object["status"]) == seen;
        if is_meant {
            monitor::mark(object, now);
            taints::set(object, now, no_execute);
        }
        is_meant
    });
    let silent = Require::Unchanged {
        kind: &LEASE,
        namespace: NODE_LEASE_NAMESPACE.to_owned(),
        name: name.clone(),
        revision: lease,
    };
    Task { purpose: Purpose::Mark { node, uid, was_ready }, action: update(name, edit, vec![silent]) }
}

/// Sets the taints that a node should have by its conditions and spec.
fn taint(node: String, uid: String, no_execute: NoExecute) -> Task<Purpose> {
    let edit: Edit = Box::new(move |object, now| {
        let is_meant = object["metadata"]["uid"] == *uid;
        if is_meant {
            taints::set(object, now, no_execute);
        }
        is_meant
    });
    Task { purpose: Purpose::Taint(node.clone()), action: update(node, edit, Vec::new()) }
}

fn update(name: String, edit: Edit, requires: Vec<Require>) -> controller::Action {
    controller::Action::Update { kind: &NODE, namespace: String::new(), name, edit, requires }
}

/// Records an event as upstream's node controller does. The same event has the same name, so that a repeated
/// one is counted instead: a node that is lost and back again for a day leaves one event, not thousands.
fn record(node: &str, uid: &str, reason: &'static str, message: &str, now: Now) -> Task<Purpose> {
    let mut hasher = DefaultHasher::new();
    (uid, reason, message).hash(&mut hasher);
    let about = About { kind: &NODE, namespace: "", name: node, uid, revision: None };
    let what = What { sort: "Normal", reason, message };
    let mark = format!("{:016x}", hasher.finish());
    let value = event(&about, &what, "node-controller", CLUSTER_EVENT_NAMESPACE, &mark, now);
    let name = text(&value, &["metadata", "name"]).to_owned();
    let purpose = Purpose::Event { node: node.to_owned(), reason, name };
    Task { purpose, action: controller::Action::create(&EVENT, value) }
}

fn repeat(node: String, reason: &'static str, name: String) -> Task<Purpose> {
    let edit: Edit = Box::new(move |event, now| {
        event["count"] = event["count"].as_i64().unwrap_or(1).saturating_add(1).into();
        event["lastTimestamp"] = now.into();
        true
    });
    let namespace = CLUSTER_EVENT_NAMESPACE.to_owned();
    let action = controller::Action::Update { kind: &EVENT, namespace, name, edit, requires: Vec::new() };
    Task { purpose: Purpose::Repeat { node, reason }, action }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn node(status: &Value) -> Value {
        json!({"metadata": {"name": "n", "uid": "u"}, "status": status})
    }

    fn at(second: u64) -> Now {
        let running = Duration::from_secs(second);
        let wall = time::OffsetDateTime::UNIX_EPOCH;
        let (stalled, disk_stalled) = (Duration::ZERO, Duration::ZERO);
        Now { running, wall, ages: true, right: true, stalled, disk_stalled, disk_stalls: false }
    }

    #[test]
    fn node_that_reported_in_the_meantime_is_not_marked() {
        let silent = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let check = |uid: &str, found: Value, expect: bool| {
            let seen = monitor::fingerprint(&silent);
            let meant = Meant { node: "n".to_owned(), uid: uid.to_owned(), seen, lease: Some(7) };
            let task = mark(meant, true, NoExecute::Grant);
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
            let now = at(0);
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
    fn refused_writes_pause_and_are_logged_once() {
        let mut nodes = Nodes::new(MINIMUM_GRACE);
        let mut check = |second, expect: u64| {
            for _ in 0..500 {
                nodes.performed(
                    Purpose::Taint("n".to_owned()),
                    Err(ApiError::unavailable("full")),
                    at(second),
                );
            }
            assert_eq!(nodes.refused.until, Duration::from_secs(expect));
            assert_eq!(nodes.take_log(at(second)).len(), 1);
        };
        check(0, 5);
        check(3, 5);
        check(5, 15);
        check(15, 35);
        check(1000, 1040);
        check(2000, 2080);
    }

    /// The same event about the same node is one object, with a count.
    #[test]
    fn repeated_event_is_counted() {
        let now = at(0);
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
