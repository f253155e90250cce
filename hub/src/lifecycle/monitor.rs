//! Decides which nodes are lost. Pure: it is given what the store holds and what time it is, and answers with what
//! is to be done.
//!
//! Holds: a node is alive while its Lease *or* its status changes, timed on the hub's monotonic clock from the moment
//! the hub saw the change. No timestamp a node wrote is ever compared with anything: a node whose clock jumps by
//! decades, or stands in 1970, is as alive as any other. A change of anything else about a Node (a label, its spec) is
//! somebody else's doing and no sign of life, and neither is what the hub itself wrote into the status.
//! A node first seen, also right after the hub started, has a full grace period before it.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

/// Shortest silence after which a node is lost, whatever the flag says: upstream's default since 1.32, longer than
/// any connection takes to be found dead.
pub const MINIMUM_GRACE: Duration = Duration::from_secs(50);
/// A node is not lost before its Lease has run out and one more renewal could have come.
const LEASE_MARGIN: Duration = Duration::from_secs(10);
/// A node that never posted a status is booting: upstream's --node-startup-grace-period.
const STARTUP_GRACE: Duration = Duration::from_secs(60);
/// Marks of one pass. Thousands lost at once are marked over several passes, so that the store stays free for the
/// heartbeats of the others.
pub(super) const MAX_MARKS_PER_PASS: usize = 500;
/// A pass that would declare more than this share of the living nodes lost, and more than `MANY_AT_LEAST`, must first
/// prove that the hub can be reached (upstream's --unhealthy-zone-threshold and its minimum).
const MANY_PERCENT: usize = 55;
const MANY_AT_LEAST: usize = 2;
/// A node that renews its Lease and leaves Ready at Unknown for this long is worth a warning: longer than the largest
/// interval between status reports.
const STATUS_OVERDUE: Duration = Duration::from_secs(10 * 60);

/// The conditions the hub sets when a node is lost, as upstream. Never `NetworkUnavailable`, never `ConfigOK`: what the
/// node said about those stays true while it is silent.
const CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
const REASON_STOPPED: &str = "NodeStatusUnknown";
const MESSAGE_STOPPED: &str = "Kubelet stopped posting node status.";
const REASON_NEVER: &str = "NodeStatusNeverUpdated";
const MESSAGE_NEVER: &str = "Kubelet never posted node status.";

/// The part of the store that liveness depends on, as it is now.
#[derive(Debug, Default)]
pub(super) struct World {
    /// Every Node.
    pub(super) nodes: Vec<Arc<Value>>,
    /// Every Lease of the namespace `kube-node-lease`.
    pub(super) leases: Vec<Arc<Value>>,
}

/// The present, on both clocks.
#[derive(Debug, Clone)]
pub(super) struct Now {
    /// Since an arbitrary start; decides.
    pub(super) monotonic: Duration,
    /// RFC 3339; written into conditions for people to read, never read back.
    pub(super) wall: String,
}

/// What is to be done.
#[derive(Debug, PartialEq)]
pub(super) enum Action {
    /// Replace the node's status, provided uid and fingerprint of the stored one are still these. Repeated every pass
    /// until the store shows it.
    MarkUnknown { node: String, uid: String, seen: u64, status: Value, was_ready: bool },
    /// Record an event about a node.
    Event { node: String, uid: String, reason: &'static str, message: String },
    /// A lost node was heard again.
    Back { node: String },
    /// A node renews its Lease, but Ready stays as the hub left it.
    StatusOverdue { node: String },
}

/// One pass's decision.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Decision {
    /// In order.
    pub(super) actions: Vec<Action>,
    /// So many nodes would be lost at once that the fault is more likely the hub's own. If the hub cannot prove
    /// otherwise, no mark of this pass is made.
    pub(super) needs_proof: bool,
}

/// What the hub remembers about every node, from pass to pass.
#[derive(Debug)]
pub(super) struct Monitor {
    grace: Duration,
    nodes: HashMap<String, Watched>,
    first_pass: bool,
}

#[derive(Debug)]
struct Watched {
    uid: String,
    /// The Node's resourceVersion: while it stands, the status need not be looked at.
    version: String,
    /// Fingerprint of the status last seen.
    status: u64,
    /// Fingerprint of the status we asked to be stored: its appearance is no sign of life.
    ours: Option<u64>,
    lease: Option<String>,
    heard: Duration,
    lost: bool,
    /// Since when the node is heard again without a new status; taken when told.
    overdue_since: Option<Duration>,
}

impl Monitor {
    /// `grace`: the flag; a shorter one than `MINIMUM_GRACE` counts as that.
    pub(super) fn new(grace: Duration) -> Monitor {
        Monitor { grace: grace.max(MINIMUM_GRACE), nodes: HashMap::new(), first_pass: true }
    }

    /// The hub itself could not hear for a while: nobody's silence so far counts.
    pub(super) fn forgive(&mut self, now: &Now) {
        for watched in self.nodes.values_mut() {
            watched.heard = now.monotonic;
        }
    }

    /// Looks at the world and decides.
    pub(super) fn reconcile(&mut self, now: &Now, world: &World) -> Decision {
        let leases: HashMap<&str, &Value> =
            world.leases.iter().map(|lease| (text(lease, "name"), lease.as_ref())).collect();
        let mut decision = Decision::default();
        self.drop_removed(world, &mut decision.actions);
        let mut marks = Vec::new();
        let mut living = 0;
        for node in &world.nodes {
            let lease = leases.get(text(node, "name")).copied();
            self.listen(now, node, lease, &mut decision.actions);
            let silence = self.silence(now, node);
            if silence <= self.grace_of(node, lease) {
                living += 1;
            } else if let Some(mark) = self.lose(now, node) {
                marks.push(mark);
            }
        }
        let newly = marks.len();
        decision.needs_proof = newly > MANY_AT_LEAST && newly * 100 > (living + newly) * MANY_PERCENT;
        marks.truncate(MAX_MARKS_PER_PASS);
        decision.actions.extend(marks);
        self.first_pass = false;
        decision
    }

    /// Forgets nodes that are gone, and those re-created under the same name.
    fn drop_removed(&mut self, world: &World, actions: &mut Vec<Action>) {
        let present: HashSet<(&str, &str)> =
            world.nodes.iter().map(|node| (text(node, "name"), text(node, "uid"))).collect();
        self.nodes.retain(|name, watched| {
            let kept = present.contains(&(name.as_str(), watched.uid.as_str()));
            if !kept {
                let message = format!("Node {name} event: Removing Node {name} from Controller");
                actions.push(event(name, &watched.uid, "RemovingNode", message));
            }
            kept
        });
    }

    /// Notes whether the node was heard since the last pass.
    fn listen(&mut self, now: &Now, node: &Value, lease: Option<&Value>, actions: &mut Vec<Action>) {
        let (name, uid, version) = (text(node, "name"), text(node, "uid"), text(node, "resourceVersion"));
        let lease = lease.map(|lease| text(lease, "resourceVersion"));
        let Some(watched) = self.nodes.get_mut(name) else {
            if !self.first_pass {
                let message = format!("Node {name} event: Registered Node {name} in Controller");
                actions.push(event(name, uid, "RegisteredNode", message));
            }
            self.nodes.insert(
                name.to_owned(),
                Watched {
                    uid: uid.to_owned(),
                    version: version.to_owned(),
                    status: fingerprint(&node["status"]),
                    ours: None,
                    lease: lease.map(str::to_owned),
                    heard: now.monotonic,
                    lost: false,
                    overdue_since: None,
                },
            );
            return;
        };
        let renewed = lease.is_some() && lease != watched.lease.as_deref();
        if lease != watched.lease.as_deref() {
            watched.lease = lease.map(str::to_owned);
        }
        let posted = version != watched.version && watched.posted(version, &node["status"]);
        if renewed || posted {
            watched.heard = now.monotonic;
            if std::mem::take(&mut watched.lost) {
                actions.push(Action::Back { node: name.to_owned() });
                watched.overdue_since = Some(now.monotonic);
            }
        }
        if posted || watched.lost {
            watched.overdue_since = None;
        }
        if watched.overdue_since.is_some_and(|since| now.monotonic - since > STATUS_OVERDUE) {
            watched.overdue_since = None;
            actions.push(Action::StatusOverdue { node: name.to_owned() });
        }
    }

    fn silence(&self, now: &Now, node: &Value) -> Duration {
        let heard = self.nodes.get(text(node, "name")).map_or(now.monotonic, |watched| watched.heard);
        now.monotonic.saturating_sub(heard)
    }

    fn grace_of(&self, node: &Value, lease: Option<&Value>) -> Duration {
        let duration = lease.and_then(|lease| lease["spec"]["leaseDurationSeconds"].as_u64()).unwrap_or(0);
        let never_posted = condition(&node["status"], "Ready").is_none();
        let startup = if never_posted { STARTUP_GRACE } else { Duration::ZERO };
        self.grace.max(Duration::from_secs(duration).saturating_add(LEASE_MARGIN)).max(startup)
    }

    /// The node is silent for too long: what must be written, if anything is left to write.
    fn lose(&mut self, now: &Now, node: &Value) -> Option<Action> {
        let (name, uid) = (text(node, "name"), text(node, "uid"));
        let watched = self.nodes.get_mut(name)?;
        watched.lost = true;
        let status = marked(node, &now.wall)?;
        watched.ours = Some(fingerprint(&status));
        Some(Action::MarkUnknown {
            node: name.to_owned(),
            uid: uid.to_owned(),
            seen: fingerprint(&node["status"]),
            was_ready: condition(&node["status"], "Ready").is_some_and(|ready| ready["status"] == "True"),
            status,
        })
    }
}

impl Watched {
    /// Whether a new resourceVersion of the Node brought a status that the node must have posted.
    fn posted(&mut self, version: &str, status: &Value) -> bool {
        self.version = version.to_owned();
        let found = fingerprint(status);
        let posted = found != self.status && Some(found) != self.ours;
        self.status = found;
        if posted {
            self.ours = None;
        }
        posted
    }
}

/// Tells one status from another; only ever compared within one process.
pub(super) fn fingerprint(status: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    status.to_string().hash(&mut hasher);
    hasher.finish()
}

/// The node's status with upstream's conditions for a silent node; `None` if they stand there already.
fn marked(node: &Value, wall: &str) -> Option<Value> {
    let mut status = node["status"].clone();
    if !status.is_object() {
        status = json!({});
    }
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let conditions = status["conditions"].as_array_mut()?;
    let mut changed = false;
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
                "lastHeartbeatTime": node["metadata"]["creationTimestamp"],
                "lastTransitionTime": wall,
            })),
        }
        changed = true;
    }
    changed.then_some(status)
}

fn condition<'a>(status: &'a Value, sort: &str) -> Option<&'a Value> {
    status["conditions"].as_array()?.iter().find(|condition| condition["type"] == sort)
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

fn event(node: &str, uid: &str, reason: &'static str, message: String) -> Action {
    Action::Event { node: node.to_owned(), uid: uid.to_owned(), reason, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store with a clock, and the monitor under test. Time is in whole seconds.
    struct Story {
        monitor: Monitor,
        second: u64,
        version: u64,
        nodes: HashMap<String, Value>,
        leases: HashMap<String, Value>,
    }

    impl Story {
        fn new() -> Story {
            let monitor = Monitor::new(MINIMUM_GRACE);
            Story { monitor, second: 0, version: 0, nodes: HashMap::new(), leases: HashMap::new() }
        }

        /// A hub with these nodes in its store, Ready, with a Lease of 40 s, that has just started.
        fn with(nodes: &[&str]) -> Story {
            let mut story = Story::new();
            for node in nodes {
                story.register(node);
                story.post(node, "True", "2026-01-01T00:00:00Z");
                story.renew(node, "2026-01-01T00:00:00Z");
            }
            story.pass();
            story
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

        fn now(&self) -> Now {
            Now { monotonic: Duration::from_secs(self.second), wall: format!("second {}", self.second) }
        }

        fn pass(&mut self) -> Decision {
            let world = World {
                nodes: self.nodes.values().cloned().map(Arc::new).collect(),
                leases: self.leases.values().cloned().map(Arc::new).collect(),
            };
            let now = self.now();
            self.monitor.reconcile(&now, &world)
        }

        /// Time passes, the monitor looks, and what it decides is stored as the performer would.
        fn after(&mut self, seconds: u64) -> Decision {
            self.second += seconds;
            let decision = self.pass();
            for action in &decision.actions {
                if let Action::MarkUnknown { node, status, .. } = action {
                    let version = self.next_version();
                    let object = self.nodes.get_mut(node).unwrap();
                    object["status"] = status.clone();
                    object["metadata"]["resourceVersion"] = version;
                }
            }
            decision
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
    fn a_silent_node_is_marked_once_with_upstreams_words() {
        let mut story = Story::with(&["a"]);
        assert_eq!(story.after(50), quiet(), "the grace period itself is still fine");
        let decision = story.after(1);
        assert_eq!(Story::lost(&decision), ["a"]);
        assert!(matches!(&decision.actions[0], Action::MarkUnknown { was_ready: true, .. }));
        assert_eq!(
            story.condition("a", "Ready"),
            json!({
                "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "second 51",
            })
        );
        assert_eq!(
            story.condition("a", "DiskPressure"),
            json!({
                "type": "DiskPressure", "status": "Unknown", "reason": "NodeStatusNeverUpdated",
                "message": "Kubelet never posted node status.",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "second 51",
            })
        );
        assert_eq!(
            story.condition("a", "ConfigOK")["status"],
            "True",
            "what the node said of its config stands"
        );
        assert_eq!(story.after(5), quiet(), "the hub's own mark is no sign of life, and is not made twice");
        assert_eq!(story.after(500), quiet());
    }

    #[test]
    fn a_node_that_only_renews_stays_ready() {
        let mut story = Story::with(&["a"]);
        for turn in 0..30 {
            story.renew("a", &format!("turn {turn}"));
            assert_eq!(story.after(10), quiet());
        }
    }

    #[test]
    fn a_node_that_only_posts_status_stays_ready() {
        let mut story = Story::with(&["a"]);
        story.leases.clear();
        for turn in 0..30 {
            story.post("a", "True", &format!("turn {turn}"));
            assert_eq!(story.after(45), quiet());
        }
    }

    #[test]
    fn a_node_clock_that_jumps_by_twenty_years_either_way_changes_nothing() {
        let mut story = Story::with(&["a"]);
        for time in
            ["2046-01-01T00:00:00Z", "2006-01-01T00:00:00Z", "1970-01-01T00:00:01Z", "2026-01-01T00:00:00Z"]
        {
            story.renew("a", time);
            assert_eq!(story.after(40), quiet(), "{time}");
            story.post("a", "True", time);
            assert_eq!(story.after(40), quiet(), "{time}");
        }
    }

    #[test]
    fn a_lost_node_recovers_by_its_own_status() {
        let mut story = Story::with(&["a"]);
        assert_eq!(Story::lost(&story.after(60)), ["a"]);
        story.after(5);
        story.post("a", "True", "later");
        assert_eq!(story.after(5).actions, [Action::Back { node: "a".to_owned() }]);
        assert_eq!(story.condition("a", "Ready")["status"], "True");
        assert_eq!(Story::lost(&story.after(60)), ["a"], "and can be lost again");
    }

    #[test]
    fn a_status_that_arrives_together_with_the_mark_is_heard() {
        let mut story = Story::with(&["a"]);
        story.second += 60;
        assert_eq!(Story::lost(&story.pass()), ["a"]);
        // the performer finds another fingerprint and writes nothing
        story.post("a", "True", "just in time");
        assert_eq!(story.after(5).actions, [Action::Back { node: "a".to_owned() }]);
        assert_eq!(story.after(5), quiet());
    }

    #[test]
    fn a_mark_that_could_not_be_stored_is_tried_again() {
        let mut story = Story::with(&["a"]);
        story.second += 60;
        assert_eq!(Story::lost(&story.pass()), ["a"]);
        story.second += 5;
        assert_eq!(Story::lost(&story.pass()), ["a"]);
    }

    #[test]
    fn a_lease_alone_brings_a_node_back_without_the_hub_speaking_for_it() {
        let mut story = Story::with(&["a"]);
        story.after(60);
        story.renew("a", "later");
        assert_eq!(story.after(5).actions, [Action::Back { node: "a".to_owned() }]);
        assert_eq!(story.condition("a", "Ready")["status"], "Unknown", "only the node may say Ready");
        let mut told = Vec::new();
        for turn in 0..120 {
            story.renew("a", &format!("turn {turn}"));
            told.extend(story.after(10).actions);
        }
        assert_eq!(told, [Action::StatusOverdue { node: "a".to_owned() }], "said once");
    }

    #[test]
    fn a_status_in_time_is_not_overdue() {
        let mut story = Story::with(&["a"]);
        story.after(60);
        story.renew("a", "later");
        story.after(5);
        story.post("a", "True", "later");
        for turn in 0..120 {
            story.renew("a", &format!("turn {turn}"));
            assert_eq!(story.after(10), quiet());
        }
    }

    #[test]
    fn a_label_is_no_sign_of_life() {
        let mut story = Story::with(&["a"]);
        story.after(30);
        story.label("a");
        story.after(15);
        story.label("a");
        assert_eq!(Story::lost(&story.after(10)), ["a"]);
        story.label("a");
        assert_eq!(story.after(5), quiet(), "nor after the mark");
    }

    #[test]
    fn a_hub_restart_gives_a_full_grace_period() {
        let mut story = Story::with(&["a", "b"]);
        story.after(45);
        story.monitor = Monitor::new(MINIMUM_GRACE);
        assert_eq!(story.after(30), quiet());
        assert_eq!(story.after(50), quiet());
        assert_eq!(Story::lost(&story.after(1)), ["a", "b"]);
        story.monitor = Monitor::new(MINIMUM_GRACE);
        assert_eq!(story.after(500), quiet());
        assert_eq!(story.after(500), quiet(), "already marked before the restart");
    }

    #[test]
    fn a_stalled_hub_blames_nobody() {
        let mut story = Story::with(&["a"]);
        story.second += 600;
        let now = story.now();
        story.monitor.forgive(&now);
        assert_eq!(story.after(0), quiet());
        assert_eq!(story.after(50), quiet());
        assert_eq!(Story::lost(&story.after(1)), ["a"]);
    }

    #[test]
    fn the_grace_period_follows_the_lease_and_the_flag() {
        let check = |flag: u64, duration: Value, expect: u64| {
            let mut story = Story::with(&["a"]);
            story.leases.get_mut("a").unwrap()["spec"]["leaseDurationSeconds"] = duration.clone();
            story.monitor = Monitor::new(Duration::from_secs(flag));
            story.pass();
            assert_eq!(Story::lost(&story.after(expect)), [""; 0], "{flag} {duration}");
            assert_eq!(Story::lost(&story.after(1)), ["a"], "{flag} {duration}");
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
    fn an_absurd_lease_duration_does_not_overflow() {
        let mut story = Story::with(&["a"]);
        story.leases.get_mut("a").unwrap()["spec"]["leaseDurationSeconds"] = json!(u64::MAX);
        assert_eq!(story.after(1_000_000), quiet());
    }

    #[test]
    fn a_node_that_never_posted_has_the_startup_grace() {
        let mut story = Story::with(&[]);
        story.register("a");
        let message = "Node a event: Registered Node a in Controller".to_owned();
        let uid = text(&story.nodes["a"], "uid").to_owned();
        assert_eq!(story.after(0).actions, [event("a", &uid, "RegisteredNode", message)]);
        assert_eq!(story.after(60), quiet());
        let decision = story.after(1);
        assert!(matches!(&decision.actions[..], [Action::MarkUnknown { was_ready: false, .. }]));
        for sort in CONDITIONS {
            assert_eq!(story.condition("a", sort)["reason"], "NodeStatusNeverUpdated");
        }
    }

    #[test]
    fn a_node_created_anew_under_its_name_is_another_node() {
        let mut story = Story::with(&["a"]);
        story.after(45);
        story.register("a");
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
        assert_eq!(reasons(story.after(5)), ["RemovingNode", "RegisteredNode"]);
        assert_eq!(story.after(45), quiet());
        story.nodes.clear();
        assert_eq!(reasons(story.after(5)), ["RemovingNode"]);
        assert_eq!(story.after(500), quiet());
    }

    #[test]
    fn a_lease_deleted_is_no_sign_of_life_and_a_new_one_is() {
        let mut story = Story::with(&["a"]);
        story.after(30);
        story.leases.clear();
        assert_eq!(story.after(15), quiet());
        story.renew("a", "anew");
        assert_eq!(story.after(5), quiet());
        assert_eq!(story.after(50), quiet());
    }

    #[test]
    fn many_at_once_need_a_proof_and_a_few_do_not() {
        let check = |nodes: usize, silent: usize, expect: bool| {
            let names: Vec<String> = (0..nodes).map(|number| format!("n{number}")).collect();
            let mut story = Story::with(&names.iter().map(String::as_str).collect::<Vec<_>>());
            story.after(30);
            for name in &names[silent..] {
                story.renew(name, "later");
            }
            let decision = story.after(25);
            assert_eq!(Story::lost(&decision).len(), silent);
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
    fn marks_of_one_pass_are_bounded_and_the_rest_follow() {
        let names: Vec<String> = (0..MAX_MARKS_PER_PASS + 20).map(|number| format!("n{number}")).collect();
        let mut story = Story::with(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(Story::lost(&story.after(60)).len(), MAX_MARKS_PER_PASS);
        assert_eq!(Story::lost(&story.after(5)).len(), 20);
        assert_eq!(story.after(5), quiet());
    }
}
