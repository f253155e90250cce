//! Decides which nodes are lost. Pure: a function of the stored objects and the time, which returns actions.
//!
//! Holds: a node is alive while its Lease *or* its status changes, timed on the hub's monotonic clock from
//! the moment the hub saw the change. No timestamp of a node is ever compared: a node whose clock jumps by
//! decades, or is in 1970, is as alive as any other. A change of anything else in a Node (a label, its spec)
//! may be by others and is not a sign of life, and neither is a status that the hub itself wrote. A node that
//! is first seen, also right after the hub started, gets a full grace period.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use serde_json::{Value, json};

use super::taints::{NoExecute, Taints};
use super::zones::{Census, FEW, MOST_PERCENT, Place, Zones};
use crate::value::{condition, span};

/// Shortest silence after which a node is lost, whatever the flag says: upstream's default since 1.32, longer
/// than a dead connection takes to be detected.
pub const MINIMUM_GRACE: Duration = Duration::from_secs(50);
/// A node is not lost before its Lease has run out and one more renewal could have come.
const LEASE_MARGIN: Duration = Duration::from_secs(10);
/// A node that never posted a status is booting: upstream's --node-startup-grace-period.
const STARTUP_GRACE: Duration = Duration::from_secs(60);
/// Marks of one pass. Thousands lost at once are marked over several passes, so that the store stays free for
/// the heartbeats of the others.
pub(super) const MAX_MARKS_PER_PASS: usize = 500;
/// A node that renews its Lease and leaves Ready at Unknown for this long is worth a warning: longer than the
/// largest interval between status reports.
const STATUS_OVERDUE: Duration = Duration::from_secs(10 * 60);

/// The conditions the hub sets when a node is lost, as upstream. Never `NetworkUnavailable`, never
/// `ConfigOK`: the node's last report of those stays valid while it is silent.
const CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
const REASON_STOPPED: &str = "NodeStatusUnknown";
const MESSAGE_STOPPED: &str = "Kubelet stopped posting node status.";
const REASON_NEVER: &str = "NodeStatusNeverUpdated";
const MESSAGE_NEVER: &str = "Kubelet never posted node status.";

/// The part of the store that liveness depends on, as it is now, by node name.
#[derive(Debug, Default)]
pub(super) struct World {
    /// Every Node.
    pub(super) nodes: BTreeMap<String, NodeSight>,
    /// Every Lease of the namespace `kube-node-lease`.
    pub(super) leases: BTreeMap<String, LeaseSight>,
}

/// The parts of a Node that liveness depends on. Small, because the hub keeps one for each of thousands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeSight {
    /// The resourceVersion this was read at.
    pub(super) version: u64,
    /// Distinguishes a Node from one recreated under its name.
    pub(super) uid: String,
    /// Fingerprint of the status.
    pub(super) status: u64,
    /// `status` of the condition Ready.
    pub(super) ready: Ready,
    /// All conditions that the hub would set are Unknown already.
    pub(super) marked: bool,
    /// The hub's taints that it has.
    pub(super) carried: Taints,
    /// The hub's taints that it should have, by its conditions and spec.
    pub(super) due: Taints,
    pub(super) place: Place,
}

/// The condition Ready, as far as liveness depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ready {
    /// The node never posted a status.
    Absent,
    /// Ready.
    True,
    /// False or Unknown.
    Otherwise,
}

/// The parts of a Lease that liveness depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeaseSight {
    /// The resourceVersion: its change is the sign of life, the content is ignored.
    pub(super) version: u64,
    /// `spec.leaseDurationSeconds`, 0 if absent or absurd.
    pub(super) duration_secs: u64,
}

impl NodeSight {
    /// Reads a Node stored at `version`.
    pub(super) fn of(node: &Value, version: u64) -> NodeSight {
        let status = &node["status"];
        let ready = match condition(status, "Ready") {
            None => Ready::Absent,
            Some(ready) if ready["status"] == "True" => Ready::True,
            Some(_) => Ready::Otherwise,
        };
        let unknown = |sort| condition(status, sort).is_some_and(|found| found["status"] == "Unknown");
        NodeSight {
            version,
            uid: node["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            status: fingerprint(status),
            ready,
            marked: CONDITIONS.into_iter().all(unknown),
            carried: Taints::carried_by(node),
            due: Taints::due_to(node),
            place: Place::of(node),
        }
    }
}

impl LeaseSight {
    /// Reads a Lease stored at `version`.
    pub(super) fn of(lease: &Value, version: u64) -> LeaseSight {
        let named = lease["spec"]["leaseDurationSeconds"].as_u64().unwrap_or(0);
        let named = i64::try_from(named).unwrap_or(i64::MAX);
        LeaseSight { version, duration_secs: span(named).as_secs() }
    }
}

/// An action to perform.
#[derive(Debug, PartialEq)]
pub(super) enum Action {
    /// Set the conditions of a silent node (`mark`) and its taints, if the stored Node still has this uid and
    /// fingerprint, then call `Monitor::wrote`. Repeated every pass until the store has it.
    MarkUnknown { node: String, uid: String, seen: u64, was_ready: bool, no_execute: NoExecute },
    /// Set the taints that a node should have by its conditions and spec (`taints::set`). Repeated like a
    /// mark.
    Taint { node: String, uid: String, no_execute: NoExecute },
    /// Record an event about a node.
    Event { node: String, uid: String, reason: &'static str, message: String },
    /// A lost node reported again.
    Back { node: String },
    /// A node renews its Lease, but does not update Ready.
    StatusOverdue { node: String },
}

/// One pass's decision.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Decision {
    /// In order.
    pub(super) actions: Vec<Action>,
    /// So many nodes would be lost at once that the fault is more likely the hub's own. Unless the hub can
    /// reach itself, no mark of this pass is made.
    pub(super) needs_proof: bool,
}

/// The state of every node that the hub keeps from pass to pass.
#[derive(Debug)]
pub(super) struct Monitor {
    grace: Duration,
    nodes: BTreeMap<String, Watched>,
    zones: Zones,
    first_pass: bool,
}

#[derive(Debug)]
struct Watched {
    uid: String,
    /// Fingerprint of the status last seen.
    status: u64,
    /// Fingerprint of the status that the hub itself stored, which is not a sign of life.
    ours: Option<u64>,
    /// Version of the Lease last seen.
    lease: Option<u64>,
    /// When the hub last saw a change, on its monotonic clock.
    last_change: Duration,
    lost: bool,
    /// Start of renewals without a new status; cleared when reported.
    overdue_since: Option<Duration>,
}

impl Monitor {
    /// `grace`: the flag; a shorter one than `MINIMUM_GRACE` counts as that.
    pub(super) fn new(grace: Duration) -> Monitor {
        Monitor {
            grace: grace.max(MINIMUM_GRACE),
            nodes: BTreeMap::new(),
            zones: Zones::default(),
            first_pass: true,
        }
    }

    /// The hub itself was stalled: silence so far does not count.
    pub(super) fn forgive(&mut self, now: Duration) {
        for watched in self.nodes.values_mut() {
            watched.last_change = now;
        }
    }

    /// The disk accepted no writes: for nodes that report by their status only, the silence so far does not
    /// count. A node with a Lease renews it without the disk.
    pub(super) fn forgive_without_lease(&mut self, now: Duration, world: &World) {
        for (name, watched) in &mut self.nodes {
            if !world.leases.contains_key(name) {
                watched.last_change = now;
            }
        }
    }

    /// The hub stored this status (its fingerprint) for the node: not a sign of life.
    pub(super) fn wrote(&mut self, node: &str, status: u64) {
        if let Some(watched) = self.nodes.get_mut(node) {
            watched.ours = Some(status);
        }
    }

    /// One pass: reads the store and decides. `now` is monotonic, since an arbitrary start.
    pub(super) fn reconcile(&mut self, now: Duration, world: &World) -> Decision {
        let mut decision = Decision::default();
        self.drop_removed(world, &mut decision.actions);
        let (mut marks, mut taints) = (Vec::new(), Vec::new());
        let mut living = 0;
        let mut zones: BTreeMap<&str, Census> = BTreeMap::new();
        for (name, node) in &world.nodes {
            let lease = world.leases.get(name);
            if !self.nodes.contains_key(name) {
                if !self.first_pass {
                    let message = format!("Node {name} event: Registered Node {name} in Controller");
                    decision.actions.push(event(name, &node.uid, "RegisteredNode", message));
                }
                self.nodes.insert(name.clone(), Watched::first_seen(now, node, lease));
            }
            let Some(watched) = self.nodes.get_mut(name) else { continue };
            watched.listen(now, name, node, lease, &mut decision.actions);
            let grace = grace_of(self.grace, node, lease);
            let silent = now.saturating_sub(watched.last_change) > grace;
            // lost until it reports: a stall of the hub proves nothing about the node
            watched.lost |= silent;
            living += usize::from(!silent);
            let is_new = silent && !node.marked;
            let zone = zones.entry(&node.place.zone).or_default();
            if node.place.counts && node.ready == Ready::True && !is_new {
                zone.ready += 1;
            } else if node.place.counts {
                zone.not_ready += 1;
            }
            if is_new {
                marks.push((name, node));
                continue;
            }
            if node.due != node.carried || node.carried.evict() {
                taints.push((name, node));
            }
        }
        let newly = marks.len();
        decision.needs_proof = newly > FEW && newly * 100 > (living + newly) * MOST_PERCENT;
        if self.zones.count(zones) {
            // as upstream: the fault between the hub and all nodes may not end for all of them at once
            self.forgive(now);
            self.zones.hold_until(now + self.grace);
            decision.needs_proof = false;
            marks.clear();
        }
        marks.truncate(MAX_MARKS_PER_PASS);
        // nodes that have been lost for longer come first
        let taints = taints.into_iter().filter_map(|(name, node)| {
            let no_execute = self.no_execute(now, node, node.due.evict());
            let changes = node.due.wanted(node.carried, no_execute) != node.carried;
            changes.then(|| Action::Taint { node: name.clone(), uid: node.uid.clone(), no_execute })
        });
        let taints: Vec<Action> = taints.take(MAX_MARKS_PER_PASS).collect();
        decision.actions.extend(marks.into_iter().map(|(name, node)| Action::MarkUnknown {
            node: name.clone(),
            uid: node.uid.clone(),
            seen: node.status,
            was_ready: node.ready == Ready::True,
            no_execute: self.no_execute(now, node, true),
        }));
        decision.actions.extend(taints);
        self.first_pass = false;
        decision
    }

    /// The change to the NoExecute taint of a node; `is_due`: the node should have one.
    fn no_execute(&mut self, now: Duration, node: &NodeSight, is_due: bool) -> NoExecute {
        if self.zones.all_lost {
            NoExecute::TakeOff
        } else if is_due && !node.carried.evict() && self.zones.grants(&node.place.zone, now) {
            NoExecute::Grant
        } else {
            NoExecute::Keep
        }
    }

    /// Forgets nodes that are gone, and those re-created under the same name.
    fn drop_removed(&mut self, world: &World, actions: &mut Vec<Action>) {
        self.nodes.retain(|name, watched| {
            let kept = world.nodes.get(name).is_some_and(|node| node.uid == watched.uid);
            if !kept {
                let message = format!("Node {name} event: Removing Node {name} from Controller");
                actions.push(event(name, &watched.uid, "RemovingNode", message));
            }
            kept
        });
    }
}

fn grace_of(flag: Duration, node: &NodeSight, lease: Option<&LeaseSight>) -> Duration {
    let lease =
        Duration::from_secs(lease.map_or(0, |lease| lease.duration_secs)).saturating_add(LEASE_MARGIN);
    let startup = if node.ready == Ready::Absent { STARTUP_GRACE } else { Duration::ZERO };
    flag.max(lease).max(startup)
}

impl Watched {
    fn first_seen(now: Duration, node: &NodeSight, lease: Option<&LeaseSight>) -> Watched {
        Watched {
            uid: node.uid.clone(),
            status: node.status,
            ours: None,
            lease: lease.map(|lease| lease.version),
            last_change: now,
            lost: false,
            overdue_since: None,
        }
    }

    /// Records whether the node reported since the last pass.
    fn listen(
        &mut self,
        now: Duration,
        name: &str,
        node: &NodeSight,
        lease: Option<&LeaseSight>,
        actions: &mut Vec<Action>,
    ) {
        let lease = lease.map(|lease| lease.version);
        let renewed = lease.is_some() && lease != self.lease;
        let posted = node.status != self.status && Some(node.status) != self.ours;
        self.lease = lease;
        self.status = node.status;
        if renewed || posted {
            self.last_change = now;
            if std::mem::take(&mut self.lost) {
                actions.push(Action::Back { node: name.to_owned() });
                self.overdue_since = Some(now);
            }
        }
        if posted || self.lost {
            self.overdue_since = None;
        }
        if self.overdue_since.is_some_and(|since| now.saturating_sub(since) > STATUS_OVERDUE) {
            self.overdue_since = None;
            actions.push(Action::StatusOverdue { node: name.to_owned() });
        }
    }
}

/// A hash of a status; only compared within one process.
pub(super) fn fingerprint(status: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    status.to_string().hash(&mut hasher);
    hasher.finish()
}

/// Sets upstream's conditions for a silent node in its status. `wall` (RFC 3339) is for people to read. A
/// condition that is already Unknown stays as it is, so a second mark changes nothing.
pub(super) fn mark(node: &mut Value, wall: &str) {
    let created = node["metadata"]["creationTimestamp"].clone();
    let status = &mut node["status"];
    if !status.is_object() {
        *status = json!({});
    }
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(conditions) = status["conditions"].as_array_mut() else { return };
    for sort in CONDITIONS {
        match conditions.iter_mut().find(|condition| condition["type"] == sort) {
            Some(condition) if condition["status"] == "Unknown" => continue,
            Some(condition) => {
                condition["status"] = json!("Unknown");
                condition["reason"] = json!(REASON_STOPPED);
                condition["message"] = json!(MESSAGE_STOPPED);
                condition["lastTransitionTime"] = json!(wall);
            }
            None => conditions.push(json!({
                "type": sort,
                "status": "Unknown",
                "reason": REASON_NEVER,
                "message": MESSAGE_NEVER,
                "lastHeartbeatTime": created,
                "lastTransitionTime": wall,
            })),
        }
    }
}

fn event(node: &str, uid: &str, reason: &'static str, message: String) -> Action {
    Action::Event { node: node.to_owned(), uid: uid.to_owned(), reason, message }
}

#[cfg(test)]
mod tests {
    use super::super::taints;
    use super::super::zones::Mutant;
    use super::*;

    /// A store with a clock, and the monitor under test. Time is in whole seconds.
    struct Scenario {
        monitor: Monitor,
        second: u64,
        version: u64,
        nodes: BTreeMap<String, Value>,
        leases: BTreeMap<String, Value>,
    }

    impl Scenario {
        fn new() -> Scenario {
            let monitor = Monitor::new(MINIMUM_GRACE);
            Scenario { monitor, second: 0, version: 0, nodes: BTreeMap::new(), leases: BTreeMap::new() }
        }

        /// A hub with these nodes in its store, Ready, with a Lease of 40 s, that has just started.
        fn with(nodes: &[&str]) -> Scenario {
            let mut scenario = Scenario::new();
            for node in nodes {
                scenario.register(node);
                scenario.post(node, "True", "2026-01-01T00:00:00Z");
                scenario.renew(node, "2026-01-01T00:00:00Z");
            }
            scenario.pass();
            scenario
        }

        fn next_version(&mut self) -> Value {
            self.version += 1;
            json!(self.version.to_string())
        }

        fn register(&mut self, node: &str) {
            let version = self.next_version();
            let metadata = json!({
                "name": node, "uid": format!("{node}-{version}"), "resourceVersion": version,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            });
            self.nodes.insert(node.to_owned(), json!({"metadata": metadata}));
        }

        fn post(&mut self, node: &str, ready: &str, heartbeat: &str) {
            let version = self.next_version();
            let object = self.nodes.get_mut(node).unwrap();
            object["metadata"]["resourceVersion"] = version;
            let condition = |sort: &str, status: &str| json!({"type": sort, "status": status, "lastHeartbeatTime": heartbeat});
            object["status"] = json!({"conditions": [
                condition("Ready", ready), condition("MemoryPressure", "False"), condition("ConfigOK", "True"),
            ]});
        }

        fn renew(&mut self, node: &str, time: &str) {
            let version = self.next_version();
            let spec = json!({"renewTime": time, "leaseDurationSeconds": 40});
            self.leases.insert(
                node.to_owned(),
                json!({"metadata": {"name": node, "resourceVersion": version}, "spec": spec}),
            );
        }

        fn label(&mut self, node: &str) {
            let version = self.next_version();
            let object = self.nodes.get_mut(node).unwrap();
            object["metadata"]["resourceVersion"] = version.clone();
            object["metadata"]["labels"] = json!({"x": version});
        }

        fn now(&self) -> Duration {
            Duration::from_secs(self.second)
        }

        fn pass(&mut self) -> Decision {
            let version =
                |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
            let world = World {
                nodes: self
                    .nodes
                    .iter()
                    .map(|(name, node)| (name.clone(), NodeSight::of(node, version(node))))
                    .collect(),
                leases: self
                    .leases
                    .iter()
                    .map(|(name, lease)| (name.clone(), LeaseSight::of(lease, version(lease))))
                    .collect(),
            };
            self.monitor.reconcile(self.now(), &world)
        }

        /// Advances the time, runs one pass, and stores its decision as the performer would.
        fn after(&mut self, seconds: u64) -> Decision {
            self.second += seconds;
            let decision = self.pass();
            for action in &decision.actions {
                let version = self.next_version();
                let wall = format!("second {}", self.second);
                match action {
                    Action::MarkUnknown { node, no_execute, .. } => {
                        let object = self.nodes.get_mut(node).unwrap();
                        mark(object, &wall);
                        taints::set(object, &wall, *no_execute);
                        object["metadata"]["resourceVersion"] = version;
                        self.monitor.wrote(node, fingerprint(&object["status"]));
                    }
                    Action::Taint { node, no_execute, .. } => {
                        let object = self.nodes.get_mut(node).unwrap();
                        taints::set(object, &wall, *no_execute);
                        object["metadata"]["resourceVersion"] = version;
                    }
                    _ => {}
                }
            }
            decision
        }

        /// `key:effect` of a node's taints, without the common prefix of the keys.
        fn taints(&self, node: &str) -> Vec<String> {
            let taints = self.nodes[node]["spec"]["taints"].as_array().cloned().unwrap_or_default();
            let text = |taint: &Value, field: &str| taint[field].as_str().unwrap().to_owned();
            taints
                .iter()
                .map(|taint| format!("{}:{}", text(taint, "key"), text(taint, "effect")))
                .map(|taint| taint.replace("node.kubernetes.io/", ""))
                .collect()
        }

        /// The number of writes of a decision.
        fn writes(decision: &Decision) -> usize {
            let writes =
                |action: &&Action| matches!(action, Action::MarkUnknown { .. } | Action::Taint { .. });
            decision.actions.iter().filter(writes).count()
        }

        /// The nodes a decision marks.
        fn lost(decision: &Decision) -> Vec<&str> {
            let mut nodes: Vec<&str> = decision
                .actions
                .iter()
                .filter_map(|action| match action {
                    Action::MarkUnknown { node, .. } => Some(node.as_str()),
                    _ => None,
                })
                .collect();
            nodes.sort_unstable();
            nodes
        }

        fn condition(&self, node: &str, sort: &str) -> Value {
            condition(&self.nodes[node]["status"], sort).cloned().unwrap_or(Value::Null)
        }
    }

    fn quiet() -> Decision {
        Decision::default()
    }

    #[test]
    fn silent_node_is_marked_once_with_upstreams_texts() {
        let mut scenario = Scenario::with(&["a"]);
        assert_eq!(scenario.after(50), quiet(), "the grace period itself is still fine");
        let decision = scenario.after(1);
        assert_eq!(Scenario::lost(&decision), ["a"]);
        assert!(matches!(&decision.actions[0], Action::MarkUnknown { was_ready: true, .. }));
        assert_eq!(
            scenario.condition("a", "Ready"),
            json!({
                "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "second 51",
            })
        );
        assert_eq!(
            scenario.condition("a", "DiskPressure"),
            json!({
                "type": "DiskPressure", "status": "Unknown", "reason": "NodeStatusNeverUpdated",
                "message": "Kubelet never posted node status.",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "second 51",
            })
        );
        assert_eq!(
            scenario.condition("a", "ConfigOK")["status"],
            "True",
            "the node's condition of its config is kept"
        );
        assert_eq!(
            scenario.after(5),
            quiet(),
            "the hub's own mark is no sign of life, and is not made twice"
        );
        assert_eq!(scenario.after(500), quiet());
    }

    #[test]
    fn node_that_only_renews_stays_ready() {
        let mut scenario = Scenario::with(&["a"]);
        for turn in 0..30 {
            scenario.renew("a", &format!("turn {turn}"));
            assert_eq!(scenario.after(10), quiet());
        }
    }

    #[test]
    fn node_that_only_posts_status_stays_ready() {
        let mut scenario = Scenario::with(&["a"]);
        scenario.leases.clear();
        for turn in 0..30 {
            scenario.post("a", "True", &format!("turn {turn}"));
            assert_eq!(scenario.after(45), quiet());
        }
    }

    #[test]
    fn node_clock_jump_of_twenty_years_changes_nothing() {
        let mut scenario = Scenario::with(&["a"]);
        for time in
            ["2046-01-01T00:00:00Z", "2006-01-01T00:00:00Z", "1970-01-01T00:00:01Z", "2026-01-01T00:00:00Z"]
        {
            scenario.renew("a", time);
            assert_eq!(scenario.after(40), quiet(), "{time}");
            scenario.post("a", "True", time);
            assert_eq!(scenario.after(40), quiet(), "{time}");
        }
    }

    #[test]
    fn lost_node_recovers_by_its_own_status() {
        let mut scenario = Scenario::with(&["a"]);
        assert_eq!(Scenario::lost(&scenario.after(60)), ["a"]);
        scenario.after(5);
        scenario.post("a", "True", "later");
        assert_eq!(scenario.after(5).actions[0], Action::Back { node: "a".to_owned() });
        assert_eq!(scenario.after(5), quiet());
        assert_eq!(scenario.condition("a", "Ready")["status"], "True");
        assert_eq!(Scenario::lost(&scenario.after(60)), ["a"], "and can be lost again");
    }

    #[test]
    fn status_that_races_with_the_mark_counts() {
        let mut scenario = Scenario::with(&["a"]);
        scenario.second += 60;
        assert_eq!(Scenario::lost(&scenario.pass()), ["a"]);
        // the performer finds another fingerprint and writes nothing
        scenario.post("a", "True", "just in time");
        assert_eq!(scenario.after(5).actions, [Action::Back { node: "a".to_owned() }]);
        assert_eq!(scenario.after(5), quiet());
    }

    #[test]
    fn mark_keeps_unknown_conditions_and_adds_missing_ones() {
        let mut node = json!({"metadata": {"creationTimestamp": "then"}});
        mark(&mut node, "now");
        let once = node.clone();
        assert_eq!(once["status"]["conditions"].as_array().unwrap().len(), 4);
        mark(&mut node, "later");
        assert_eq!(node, once);
        assert!(NodeSight::of(&node, 1).marked);
    }

    #[test]
    fn failed_mark_is_retried() {
        let mut scenario = Scenario::with(&["a"]);
        scenario.second += 60;
        assert_eq!(Scenario::lost(&scenario.pass()), ["a"]);
        scenario.second += 5;
        assert_eq!(Scenario::lost(&scenario.pass()), ["a"]);
    }

    #[test]
    fn renewal_alone_counts_but_leaves_ready_unknown() {
        let mut scenario = Scenario::with(&["a"]);
        scenario.after(60);
        scenario.renew("a", "later");
        assert_eq!(scenario.after(5).actions, [Action::Back { node: "a".to_owned() }]);
        assert_eq!(scenario.condition("a", "Ready")["status"], "Unknown", "only the node may say Ready");
        let mut actions = Vec::new();
        for turn in 0..120 {
            scenario.renew("a", &format!("turn {turn}"));
            actions.extend(scenario.after(10).actions);
        }
        assert_eq!(actions, [Action::StatusOverdue { node: "a".to_owned() }], "reported once");
    }

    #[test]
    fn status_in_time_is_not_overdue() {
        let mut scenario = Scenario::with(&["a"]);
        scenario.after(60);
        scenario.renew("a", "later");
        scenario.after(5);
        scenario.post("a", "True", "later");
        scenario.after(0);
        for turn in 0..120 {
            scenario.renew("a", &format!("turn {turn}"));
            assert_eq!(scenario.after(10), quiet());
        }
    }

    #[test]
    fn label_change_is_not_a_sign_of_life() {
        let mut scenario = Scenario::with(&["a"]);
        scenario.after(30);
        scenario.label("a");
        scenario.after(15);
        scenario.label("a");
        assert_eq!(Scenario::lost(&scenario.after(10)), ["a"]);
        scenario.label("a");
        assert_eq!(scenario.after(5), quiet(), "nor after the mark");
    }

    #[test]
    fn hub_restart_gives_a_full_grace_period() {
        let mut scenario = Scenario::with(&["a", "b"]);
        scenario.after(45);
        scenario.monitor = Monitor::new(MINIMUM_GRACE);
        assert_eq!(scenario.after(30), quiet());
        assert_eq!(scenario.after(50), quiet());
        assert_eq!(Scenario::lost(&scenario.after(1)), ["a", "b"]);
        scenario.monitor = Monitor::new(MINIMUM_GRACE);
        assert_eq!(scenario.after(500), quiet());
        assert_eq!(scenario.after(500), quiet(), "already marked before the restart");
    }

    #[test]
    fn stalled_hub_marks_no_node() {
        let mut scenario = Scenario::with(&["a"]);
        scenario.second += 600;
        let now = scenario.now();
        scenario.monitor.forgive(now);
        assert_eq!(scenario.after(0), quiet());
        assert_eq!(scenario.after(50), quiet());
        assert_eq!(Scenario::lost(&scenario.after(1)), ["a"]);
    }

    #[test]
    fn stall_of_the_hub_keeps_lost_nodes_lost() {
        let mut scenario = Scenario::with(&["a"]);
        scenario.after(60);
        let now = scenario.now();
        scenario.monitor.forgive(now);
        assert_eq!(scenario.after(5), quiet());
        scenario.renew("a", "later");
        assert_eq!(scenario.after(5).actions, [Action::Back { node: "a".to_owned() }]);
    }

    #[test]
    fn grace_period_follows_the_lease_and_the_flag() {
        let check = |flag: u64, duration: Value, expect: u64| {
            let mut scenario = Scenario::with(&["a"]);
            scenario.leases.get_mut("a").unwrap()["spec"]["leaseDurationSeconds"] = duration.clone();
            scenario.monitor = Monitor::new(Duration::from_secs(flag));
            scenario.pass();
            assert_eq!(Scenario::lost(&scenario.after(expect)), [""; 0], "{flag} {duration}");
            assert_eq!(Scenario::lost(&scenario.after(1)), ["a"], "{flag} {duration}");
        };
        check(50, json!(40), 50);
        check(5, json!(40), 50);
        check(50, json!(41), 51);
        check(50, json!(300), 310);
        check(120, json!(40), 120);
        check(120, json!(300), 310);
        check(50, json!(-1), 50);
        check(50, json!("x"), 50);
        check(50, Value::Null, 50);
    }

    #[test]
    fn huge_lease_duration_does_not_overflow() {
        let mut scenario = Scenario::with(&["a"]);
        scenario.leases.get_mut("a").unwrap()["spec"]["leaseDurationSeconds"] = json!(u64::MAX);
        assert_eq!(scenario.after(1_000_000), quiet());
    }

    #[test]
    fn node_that_never_posted_gets_the_startup_grace() {
        let mut scenario = Scenario::with(&[]);
        scenario.register("a");
        let message = "Node a event: Registered Node a in Controller".to_owned();
        let uid = scenario.nodes["a"]["metadata"]["uid"].as_str().unwrap().to_owned();
        assert_eq!(scenario.after(0).actions, [event("a", &uid, "RegisteredNode", message)]);
        assert_eq!(scenario.after(60), quiet());
        let decision = scenario.after(1);
        assert!(matches!(&decision.actions[..], [Action::MarkUnknown { was_ready: false, .. }]));
        for sort in CONDITIONS {
            assert_eq!(scenario.condition("a", sort)["reason"], "NodeStatusNeverUpdated");
        }
    }

    #[test]
    fn recreated_node_is_another_node() {
        let mut scenario = Scenario::with(&["a"]);
        scenario.after(45);
        scenario.register("a");
        let reasons = |decision: Decision| -> Vec<&'static str> {
            decision
                .actions
                .iter()
                .map(|action| match action {
                    Action::Event { reason, .. } => *reason,
                    other => panic!("{other:?}"),
                })
                .collect()
        };
        assert_eq!(reasons(scenario.after(5)), ["RemovingNode", "RegisteredNode"]);
        assert_eq!(scenario.after(45), quiet());
        scenario.nodes.clear();
        assert_eq!(reasons(scenario.after(5)), ["RemovingNode"]);
        assert_eq!(scenario.after(500), quiet());
    }

    #[test]
    fn deleted_lease_is_not_a_sign_of_life_but_a_new_one_is() {
        let mut scenario = Scenario::with(&["a"]);
        scenario.after(30);
        scenario.leases.clear();
        assert_eq!(scenario.after(15), quiet());
        scenario.renew("a", "anew");
        assert_eq!(scenario.after(5), quiet());
        assert_eq!(scenario.after(50), quiet());
    }

    #[test]
    fn taints_follow_conditions_with_one_write_per_change() {
        let mut scenario = Scenario::with(&["a", "b", "c"]);
        let calm = |scenario: &mut Scenario| {
            for node in ["b", "c"] {
                scenario.renew(node, &scenario.second.to_string());
            }
        };
        calm(&mut scenario);
        scenario.second += 30;
        calm(&mut scenario);
        let lost = scenario.after(25);
        assert_eq!(
            (Scenario::lost(&lost), Scenario::writes(&lost)),
            (vec!["a"], 1),
            "conditions and taints at once"
        );
        assert_eq!(scenario.taints("a"), ["unreachable:NoSchedule", "unreachable:NoExecute"]);
        let turn = |scenario: &mut Scenario, ready: &str, expect: &[&str]| {
            scenario.post("a", ready, "t");
            calm(scenario);
            assert_eq!(Scenario::writes(&scenario.after(5)), 1, "{ready}");
            assert_eq!(scenario.taints("a"), expect);
            assert_eq!(Scenario::writes(&scenario.after(5)), 0, "{ready}");
        };
        turn(&mut scenario, "False", &["not-ready:NoSchedule", "not-ready:NoExecute"]);
        turn(&mut scenario, "True", &[]);
        scenario.nodes.get_mut("a").unwrap()["spec"]["unschedulable"] = true.into();
        assert_eq!(Scenario::writes(&scenario.after(5)), 1);
        assert_eq!(scenario.taints("a"), ["unschedulable:NoSchedule"]);
        scenario.nodes.get_mut("a").unwrap()["spec"]["unschedulable"] = Value::Null;
        assert_eq!((Scenario::writes(&scenario.after(5)), scenario.taints("a")), (1, Vec::new()));
    }

    impl Scenario {
        fn evicts(&self, node: &str) -> bool {
            self.taints(node).iter().any(|taint| taint.ends_with("NoExecute"))
        }

        /// Moves a node to another zone.
        fn move_to(&mut self, node: &str, zone: &str) {
            self.label(node);
            self.nodes.get_mut(node).unwrap()["metadata"]["labels"]["topology.kubernetes.io/zone"] =
                zone.into();
        }

        /// Each of these nodes reports that it is ready.
        fn report(&mut self, nodes: &[&str]) {
            for node in nodes {
                let second = self.second.to_string();
                self.renew(node, &second);
                self.post(node, "True", &second);
            }
        }
    }

    /// Finding F24: NoExecute taints that were set earlier are removed once no zone has a ready node.
    #[test]
    fn no_node_is_evicted_while_all_zones_are_lost() {
        let mut scenario = Scenario::with(&["a", "b", "c"]);
        scenario.report(&["a", "b"]);
        scenario.second += 30;
        scenario.report(&["a", "b"]);
        scenario.after(25);
        assert_eq!(scenario.taints("c"), ["unreachable:NoSchedule", "unreachable:NoExecute"]);
        scenario.after(60);
        for node in ["a", "b", "c"] {
            assert_eq!(scenario.taints(node), ["unreachable:NoSchedule"], "{node}");
        }
        assert_eq!(scenario.after(5), quiet());
        // contact is back: all nodes get a grace period, then the one that is still lost gets its taint again
        scenario.report(&["a", "b"]);
        scenario.after(5);
        assert_eq!((scenario.taints("a"), scenario.evicts("c")), (Vec::new(), false));
        let held = (0..20).take_while(|_| {
            scenario.report(&["a", "b"]);
            scenario.after(5);
            !scenario.evicts("c")
        });
        assert_eq!(held.count(), 11, "50 s of grace and one period");
    }

    /// Finding F24: in a dead zone among healthy ones, here 3 of 5 nodes, nodes are evicted one by one.
    #[test]
    fn dead_zone_among_healthy_ones_is_evicted_at_the_rate() {
        let mut scenario = Scenario::with(&["a1", "a2", "b1", "b2", "b3"]);
        for (node, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b"), ("b3", "b")] {
            scenario.move_to(node, zone);
        }
        let mut evicting = Vec::new();
        for _ in 0..20 {
            scenario.report(&["a1", "a2"]);
            scenario.after(5);
            evicting.push(["b1", "b2", "b3"].into_iter().filter(|node| scenario.evicts(node)).count());
        }
        assert_eq!(evicting[..10], [0; 10]);
        assert_eq!(evicting[10..17], [1, 1, 2, 2, 3, 3, 3]);
        // if zones did not count, these would be most nodes of one small zone, and none would be evicted
        for node in ["a1", "a2", "b1", "b2", "b3"] {
            scenario.move_to(node, "");
            scenario.report(&[node]);
        }
        for _ in 0..40 {
            scenario.report(&["a1", "a2"]);
            scenario.after(5);
            assert!(!["b1", "b2", "b3"].into_iter().any(|node| scenario.evicts(node)));
        }
    }

    /// Zones are cut off and come back at random, nodes one by one as well. Returns the number of taints
    /// granted, of those in zones with mostly unready nodes, and of looks with all zones lost; or the broken
    /// promise.
    fn partitions(mutant: Option<Mutant>) -> Result<(usize, usize, usize), String> {
        let (mut granted, mut partial, mut all_lost) = (0, 0, 0);
        for seed in 0..4 {
            let mut random = kedge_rig::Random::new(seed);
            let mut nodes: Vec<(String, usize)> = Vec::new();
            for (zone, size) in [3, 8, 56].into_iter().enumerate() {
                nodes.extend((0..size).map(|number| (format!("z{zone}-{number}"), zone)));
            }
            let names: Vec<&str> = nodes.iter().map(|(name, _)| &**name).collect();
            let mut scenario = Scenario::with(&names);
            scenario.monitor.zones.mutant = mutant;
            for (name, zone) in &nodes {
                scenario.move_to(name, &format!("zone-{zone}"));
            }
            let mut cut: std::collections::BTreeSet<&str> = std::collections::BTreeSet::new();
            let mut last = [None::<u64>; 3];
            for _ in 0..250 {
                match random.index(20) {
                    0 => {
                        let zone = random.index(3);
                        let share = 1 + random.index(10);
                        let of_zone = nodes.iter().filter(|(_, of)| *of == zone);
                        cut.extend(of_zone.filter(|_| random.index(10) < share).map(|(name, _)| &**name));
                    }
                    1 => {
                        let zone = random.index(3);
                        cut.retain(|name| !name.starts_with(&format!("z{zone}-")) || random.index(10) == 0);
                    }
                    2 if random.index(3) == 0 => cut.extend(&names),
                    3 if random.index(2) == 0 => cut.clear(),
                    _ => {}
                }
                for (name, _) in nodes.iter().filter(|(name, _)| !cut.contains(&**name)) {
                    let second = scenario.second.to_string();
                    scenario.renew(name, &second);
                    if scenario.condition(name, "Ready")["status"] != "True" {
                        scenario.post(name, "True", &second);
                    }
                }
                let before: Vec<bool> = names.iter().map(|name| scenario.evicts(name)).collect();
                scenario.after(5);
                let is_ready = |name: &str| scenario.condition(name, "Ready")["status"] == "True";
                let nobody = !names.iter().any(|name| is_ready(name));
                all_lost += usize::from(nobody);
                for (zone, last) in last.iter_mut().enumerate() {
                    let members = || nodes.iter().zip(&before).filter(|((_, of), _)| *of == zone);
                    let (all, ready) =
                        (members().count(), members().filter(|((name, _), _)| is_ready(name)).count());
                    let new =
                        members().filter(|((name, _), before)| scenario.evicts(name) && !**before).count();
                    // upstream's thresholds, written out again so that the test does not share a mistake with
                    // the code
                    let most = ready > 0 && all - ready > 2 && (all - ready) * 100 >= all * 55;
                    let least = if most { 100 } else { 10 };
                    let at = scenario.second;
                    let broken = |what: &str| {
                        Err(format!(
                            "{what}: seed {seed} second {at}, {ready} of {all} ready, {new} new taints"
                        ))
                    };
                    if members().any(|((name, _), _)| scenario.evicts(name) && (nobody || is_ready(name))) {
                        return broken("invariant_a_ready_node_or_a_lost_world_is_not_evicted");
                    }
                    if new > 0 && most && all <= 50 {
                        return broken("invariant_a_small_zone_mostly_lost_is_not_evicted");
                    }
                    if new > 1 || new == 1 && last.is_some_and(|last| at - last < least) {
                        return broken(if most {
                            "invariant_a_large_zone_mostly_lost_is_evicted_slowly"
                        } else {
                            "invariant_a_zone_is_evicted_at_its_rate"
                        });
                    }
                    if new == 1 {
                        *last = Some(at);
                        granted += 1;
                        partial += usize::from(most);
                    }
                }
            }
        }
        Ok((granted, partial, all_lost))
    }

    #[test]
    fn eviction_rates_hold_in_partitions() {
        let (granted, partial, all_lost) = partitions(None).unwrap();
        assert!(
            granted > 50 && partial > 3 && all_lost > 10,
            "it shows nothing: {granted} {partial} {all_lost}"
        );
    }

    #[test]
    fn each_broken_rate_is_noticed() {
        for (mutant, invariant) in [
            (Mutant::Forgetful, "invariant_a_zone_is_evicted_at_its_rate"),
            (Mutant::NoSecondRate, "invariant_a_large_zone_mostly_lost_is_evicted_slowly"),
            (Mutant::SmallIsLarge, "invariant_a_small_zone_mostly_lost_is_not_evicted"),
            (Mutant::LossIgnored, "invariant_a_ready_node_or_a_lost_world_is_not_evicted"),
        ] {
            let broken = partitions(Some(mutant)).unwrap_err();
            assert!(broken.starts_with(invariant), "{mutant:?}: {broken}");
        }
    }

    /// A number of nodes, and their names.
    fn crowd(nodes: usize) -> (Vec<String>, Scenario) {
        let names: Vec<String> = (0..nodes).map(|number| format!("n{number}")).collect();
        let scenario = Scenario::with(&names.iter().map(String::as_str).collect::<Vec<_>>());
        (names, scenario)
    }

    #[test]
    fn many_lost_nodes_need_a_probe_and_a_few_do_not() {
        let check = |nodes: usize, silent: usize, expect: bool| {
            let (names, mut scenario) = crowd(nodes);
            scenario.after(30);
            for name in &names[silent..] {
                scenario.renew(name, "later");
            }
            let decision = scenario.after(25);
            assert_eq!(Scenario::lost(&decision).len(), silent);
            assert_eq!(decision.needs_proof, expect, "{silent} of {nodes}");
        };
        check(1, 1, false);
        check(2, 2, false);
        check(3, 3, true);
        check(10, 5, false);
        check(10, 6, true);
        check(100, 55, false);
        check(100, 56, true);
    }

    #[test]
    fn marks_of_one_pass_are_bounded_and_continue_in_the_next() {
        let (_, mut scenario) = crowd(MAX_MARKS_PER_PASS + 20);
        assert_eq!(Scenario::lost(&scenario.after(60)).len(), MAX_MARKS_PER_PASS);
        assert_eq!(Scenario::lost(&scenario.after(5)).len(), 20);
        assert_eq!(scenario.after(5), quiet());
    }
}
