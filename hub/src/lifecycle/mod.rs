//! Node liveness: `monitor` decides, this performs.
//!
//! Holds: a node's silence is only the node's if the hub itself was able to hear. So a stall of this process (stopped,
//! starved, suspended) gives every node a full grace period anew, and before many nodes are declared lost at once the
//! hub makes a request to itself over TLS: if that fails, the fault is here and nobody is blamed.
//! A node's taints say the same as its conditions (`taints`), at the price of one write for each turn that it takes.

mod monitor;
mod probe;
mod taints;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kedge_api::{CLUSTER_EVENT_NAMESPACE, NODE_LEASE_NAMESPACE};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::Hub;
use crate::requests::now_text;
use kedge_hub_core::kinds::{EVENT, LEASE, NODE};

use monitor::{Action, LeaseSight, Monitor, NodeSight, World};

pub use monitor::MINIMUM_GRACE;
pub use probe::Probe;

/// Time between two looks: upstream's --node-monitor-period.
const PERIOD: Duration = Duration::from_secs(5);
/// How often the hub checks that its own time is not standing still.
const PULSE: Duration = Duration::from_secs(1);
/// A pulse that comes later than this means that the hub was stalled, and could not hear either.
const STALL: Duration = Duration::from_secs(5);
/// Status writes under way at once: enough for the store to commit them in groups, few enough to leave it to others.
const WRITES_AT_ONCE: usize = 64;
/// Lost nodes that get a log line of their own in one pass; the rest is a number.
const TOLD_BY_NAME: usize = 10;

/// Watches over all nodes until the future is dropped. `grace`: silence after which a node is lost, at least
/// `MINIMUM_GRACE`. A bug that ends the watch is logged, and the watch begins anew with a full grace period.
pub async fn run(hub: Arc<Hub>, grace: Duration, probe: Probe) {
    let probe = Arc::new(probe);
    loop {
        let mut tasks = JoinSet::new();
        let stalled = Arc::new(AtomicU64::new(0));
        tasks.spawn(pulse(Arc::clone(&stalled)));
        tasks.spawn(Performer::new(Arc::clone(&hub), grace, Arc::clone(&probe), stalled).run());
        // neither ends by itself
        if let Some(Err(error)) = tasks.join_next().await {
            log::error!("the node monitor failed and is started again: {error}");
        }
        drop(tasks);
        tokio::time::sleep(PERIOD).await;
    }
}

/// Measures how late a timer of this process fires; leaves the largest lateness (in milliseconds) to be taken.
async fn pulse(stalled: Arc<AtomicU64>) {
    loop {
        let before = Instant::now();
        tokio::time::sleep(PULSE).await;
        let late = before.elapsed().saturating_sub(PULSE).as_millis();
        stalled.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

struct Performer {
    hub: Arc<Hub>,
    monitor: Monitor,
    world: World,
    probe: Arc<Probe>,
    stalled: Arc<AtomicU64>,
    start: Instant,
}

impl Performer {
    fn new(hub: Arc<Hub>, grace: Duration, probe: Arc<Probe>, stalled: Arc<AtomicU64>) -> Performer {
        let monitor = Monitor::new(grace);
        Performer { hub, monitor, world: World::default(), probe, stalled, start: Instant::now() }
    }

    async fn run(mut self) {
        let mut late = Duration::ZERO;
        loop {
            let stalled = Duration::from_millis(self.stalled.swap(0, Ordering::Relaxed));
            self.pass(self.start.elapsed(), stalled.max(late)).await;
            // after a standstill both timers fire at once, and this one may come before the pulse's
            let before = Instant::now();
            tokio::time::sleep(PERIOD).await;
            late = before.elapsed().saturating_sub(PERIOD);
        }
    }

    /// One look and what follows from it. `stalled`: the longest standstill since the last pass.
    async fn pass(&mut self, now: Duration, stalled: Duration) {
        self.look();
        if stalled > STALL {
            log::warn!("the hub stood still for {stalled:.1?}: every node gets a full grace period again");
            self.monitor.forgive(now);
        }
        let mut decision = self.monitor.reconcile(now, &self.world);
        if decision.needs_proof
            && let Err(why) = self.probe.check().await
        {
            let is_mark = |action: &Action| matches!(action, Action::MarkUnknown { .. });
            let held_back = decision.actions.iter().filter(|action| is_mark(action)).count();
            log::error!(
                "{held_back} nodes are silent, but the hub cannot reach itself either: {why}; not marking them"
            );
            decision.actions.retain(|action| !is_mark(action));
        }
        self.perform(decision.actions).await;
    }

    /// Brings the picture of the world up to date; only what changed is parsed.
    fn look(&mut self) {
        let nodes = self.hub.list(&NODE, "");
        self.world.nodes = refreshed(
            std::mem::take(&mut self.world.nodes),
            nodes.iter().map(|object| {
                let object = Arc::clone(object);
                (object.name.to_string(), object.revision, move || {
                    NodeSight::of(&object.value(), object.revision)
                })
            }),
            |sight| sight.version,
        );
        let leases = self.hub.list(&LEASE, NODE_LEASE_NAMESPACE);
        self.world.leases = refreshed(
            std::mem::take(&mut self.world.leases),
            leases.iter().map(|object| {
                let object = Arc::clone(object);
                (object.name.to_string(), object.revision, move || {
                    LeaseSight::of(&object.value(), object.revision)
                })
            }),
            |sight| sight.version,
        );
    }

    async fn perform(&mut self, actions: Vec<Action>) {
        let mut writes = Vec::new();
        for action in actions {
            match action {
                Action::MarkUnknown { .. } | Action::Taint { .. } | Action::Event { .. } => {
                    writes.push(action)
                }
                Action::Back { node } => log::info!("node {node} is heard again"),
                Action::StatusOverdue { node } => log::warn!(
                    "node {node} renews its Lease but has not posted a status since it was lost: its Ready stays Unknown"
                ),
            }
        }
        let mut lost = Vec::new();
        while !writes.is_empty() {
            let rest = writes.split_off(writes.len().min(WRITES_AT_ONCE));
            let mut group: JoinSet<_> =
                writes.into_iter().map(|action| write(Arc::clone(&self.hub), action)).collect();
            while let Some(written) = group.join_next().await {
                if let Ok(Some((node, status))) = written {
                    self.monitor.wrote(&node, status);
                    lost.push(node);
                }
            }
            writes = rest;
        }
        tell(&lost);
    }
}

/// One action that writes. For a mark that was made: the node and the fingerprint of what was stored.
async fn write(hub: Arc<Hub>, action: Action) -> Option<(String, u64)> {
    match action {
        Action::MarkUnknown { node, uid, seen, was_ready, disrupted } => {
            mark(hub, node, uid, seen, was_ready, disrupted).await
        }
        Action::Taint { node, uid, disrupted } => {
            taint(&hub, &node, &uid, disrupted).await;
            None
        }
        Action::Event { node, uid, reason, message } => {
            record(&hub, &node, &uid, reason, message).await;
            None
        }
        Action::Back { .. } | Action::StatusOverdue { .. } => None,
    }
}

/// The sights of all that is present now: kept where the version still stands, taken anew elsewhere.
fn refreshed<T, F: FnOnce() -> T>(
    mut old: BTreeMap<String, T>,
    present: impl Iterator<Item = (String, u64, F)>,
    version_of: impl Fn(&T) -> u64,
) -> BTreeMap<String, T> {
    present
        .map(|(name, version, look)| {
            let kept = old.remove(&name).filter(|sight| version_of(sight) == version);
            (name, kept.unwrap_or_else(look))
        })
        .collect()
}

/// Marks one node, unless it was heard in the meantime. Returns the node and the fingerprint of what was stored.
async fn mark(
    hub: Arc<Hub>,
    node: String,
    uid: String,
    seen: u64,
    was_ready: bool,
    disrupted: bool,
) -> Option<(String, u64)> {
    let wall = now_text();
    let mut marked = false;
    let stored = hub
        .update(&NODE, "", &node, |object: &mut Value| {
            // called again if somebody else writes in between
            marked = object["metadata"]["uid"].as_str() == Some(&uid)
                && monitor::fingerprint(&object["status"]) == seen;
            if marked {
                monitor::mark(object, &wall);
                taints::set(object, &wall, disrupted);
            }
        })
        .await;
    let stored = match stored {
        Ok(stored) if marked => NodeSight::of(&stored.value(), stored.revision),
        Ok(_) => return None,
        Err(error) if error.code == 404 => return None,
        Err(error) => {
            log::warn!("cannot mark node {node} as lost, trying again: {}", error.message);
            return None;
        }
    };
    if was_ready {
        let message = format!("Node {node} status is now: NodeNotReady");
        record(&hub, &node, &uid, "NodeNotReady", message).await;
    }
    Some((node, stored.status))
}

/// Brings a node's taints to what it is now; a node that is gone has none.
async fn taint(hub: &Hub, node: &str, uid: &str, disrupted: bool) {
    let wall = now_text();
    let stored = hub.update(&NODE, "", node, |object: &mut Value| {
        if object["metadata"]["uid"].as_str() == Some(uid) {
            taints::set(object, &wall, disrupted);
        }
    });
    match stored.await {
        Err(error) if error.code != 404 => {
            log::warn!("cannot set the taints of node {node}, trying again: {}", error.message);
        }
        _ => {}
    }
}

/// Records an event as upstream's node controller does. An event that cannot be written is only logged.
async fn record(hub: &Hub, node: &str, uid: &str, reason: &str, message: String) {
    let now = now_text();
    let event = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": format!("{node}."), "namespace": CLUSTER_EVENT_NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid},
        "reason": reason,
        "message": message,
        "type": "Normal",
        "source": {"component": "node-controller"},
        "reportingComponent": "node-controller",
        "reportingInstance": "",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    });
    if let Err(error) = hub.create(&EVENT, event).await {
        log::warn!("cannot record the event {reason} of node {node}: {}", error.message);
    }
}

fn tell(lost: &[String]) {
    for node in lost.iter().take(TOLD_BY_NAME) {
        log::warn!("node {node} is lost: neither its Lease nor its status changed for its grace period");
    }
    if lost.len() > TOLD_BY_NAME {
        log::warn!("and {} more nodes are lost", lost.len() - TOLD_BY_NAME);
    }
}

#[cfg(test)]
mod tests {

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use crate::pki::Pki;

    use super::*;

    /// A hub with its store on a real disk, and a performer whose clock the test holds.
    struct Stage {
        // removed after the hub is closed
        _data_dir: kedge_rig::Scratch,
        hub: Arc<Hub>,
        performer: Performer,
        listener: Option<TcpListener>,
        pki: Pki,
    }

    impl Drop for Stage {
        fn drop(&mut self) {
            self.hub.close();
        }
    }

    impl Stage {
        async fn new(name: &str) -> Stage {
            let data_dir = kedge_rig::Scratch::new(&format!("hub-lifecycle-{name}")).unwrap();
            let hub = Hub::open(&data_dir).unwrap();
            let pki =
                Pki::open(&data_dir, &["localhost".to_owned()], time::OffsetDateTime::now_utc()).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let probe = Probe::new(listener.local_addr().unwrap(), pki.client_config().unwrap());
            let stalled = Arc::new(AtomicU64::new(0));
            let performer = Performer::new(Arc::clone(&hub), MINIMUM_GRACE, Arc::new(probe), stalled);
            Stage { _data_dir: data_dir, hub, performer, listener: Some(listener), pki }
        }

        async fn with(name: &str, nodes: usize) -> Stage {
            let mut stage = Stage::new(name).await;
            for number in 0..nodes {
                let ready = json!({"type": "Ready", "status": "True"});
                let node =
                    json!({"metadata": {"name": format!("n{number}")}, "status": {"conditions": [ready]}});
                stage.hub.create(&NODE, node).await.unwrap();
                let ready = |object: &mut Value| object["status"] = json!({"conditions": [ready]});
                stage.hub.update(&NODE, "", &format!("n{number}"), ready).await.unwrap();
            }
            stage.at(0).await;
            stage
        }

        async fn at(&mut self, second: u64) {
            self.performer.pass(Duration::from_secs(second), Duration::ZERO).await;
        }

        /// Answers every connection as a healthy hub (or another) would.
        fn answer(&mut self, status: &'static str) {
            let listener = self.listener.take().unwrap();
            let acceptor = TlsAcceptor::from(self.pki.server_config().unwrap());
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let mut stream = acceptor.accept(stream).await.unwrap();
                    let mut request = [0; 1024];
                    let _ = stream.read(&mut request).await;
                    let _ = stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).await;
                }
            });
        }

        fn ready(&self, node: &str) -> Value {
            let node = self.hub.get(&NODE, "", node).unwrap().value();
            let conditions = node["status"]["conditions"].as_array().unwrap();
            conditions.iter().find(|condition| condition["type"] == "Ready").unwrap()["status"].clone()
        }

        fn ready_count(&self) -> usize {
            let nodes = self.hub.list(&NODE, "");
            nodes.iter().filter(|node| self.ready(&node.name) == "True").count()
        }

        fn events(&self, reason: &str) -> Vec<Value> {
            let events = self.hub.list(&EVENT, CLUSTER_EVENT_NAMESPACE);
            events.iter().map(|event| event.value()).filter(|event| event["reason"] == reason).collect()
        }
    }

    #[tokio::test]
    async fn a_lost_node_and_a_cordoned_one_carry_taints_in_the_store() {
        let mut stage = Stage::with("taints", 3).await;
        let heard = |stage: &Stage, node: &'static str, second: u64| {
            let condition = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": format!("2026-01-01T00:00:{second}Z")});
            let hub = Arc::clone(&stage.hub);
            async move {
                let status = |object: &mut Value| object["status"] = json!({"conditions": [condition]});
                hub.update(&NODE, "", node, status).await.unwrap();
            }
        };
        for node in ["n1", "n2"] {
            heard(&stage, node, 40).await;
        }
        stage.at(40).await;
        let before = stage.hub.get(&NODE, "", "n0").unwrap().revision;
        stage.at(60).await;
        let lost = stage.hub.get(&NODE, "", "n0").unwrap();
        let taints = lost.value()["spec"]["taints"].clone();
        let keys: Vec<&Value> = taints.as_array().unwrap().iter().map(|taint| &taint["effect"]).collect();
        assert_eq!(keys, ["NoSchedule", "NoExecute"]);
        assert!(taints[0]["timeAdded"].as_str().is_some_and(|time| time.len() == 20), "{taints}");
        assert!(lost.revision > before);
        stage.at(65).await;
        assert_eq!(
            stage.hub.get(&NODE, "", "n0").unwrap().revision,
            lost.revision,
            "one write for all of it"
        );
        heard(&stage, "n0", 41).await;
        let cordon = |object: &mut Value| object["spec"]["unschedulable"] = true.into();
        stage.hub.update(&NODE, "", "n1", cordon).await.unwrap();
        stage.at(70).await;
        let spec = |node: &str| stage.hub.get(&NODE, "", node).unwrap().value()["spec"].clone();
        assert_eq!(spec("n0")["taints"], Value::Null);
        assert_eq!(spec("n1")["taints"][0]["key"], "node.kubernetes.io/unschedulable");
        assert_eq!(spec("n2")["taints"], Value::Null);
    }

    #[tokio::test]
    async fn a_silent_node_is_marked_in_the_store_with_one_event() {
        let mut stage = Stage::with("marked", 1).await;
        stage.at(50).await;
        assert_eq!(stage.ready("n0"), "True");
        stage.at(51).await;
        assert_eq!(stage.ready("n0"), "Unknown");
        let revision = stage.hub.get(&NODE, "", "n0").unwrap().revision;
        stage.at(56).await;
        stage.at(500).await;
        assert_eq!(stage.hub.get(&NODE, "", "n0").unwrap().revision, revision, "written once");
        let events = stage.events("NodeNotReady");
        assert_eq!(events.len(), 1);
        assert_eq!(events[0]["involvedObject"]["name"], "n0");
        assert_eq!(events[0]["message"], "Node n0 status is now: NodeNotReady");
        let back = |object: &mut Value| {
            object["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]})
        };
        stage.hub.update(&NODE, "", "n0", back).await.unwrap();
        stage.at(505).await;
        assert_eq!(stage.ready("n0"), "True");
    }

    #[tokio::test]
    async fn a_renewed_lease_in_the_store_keeps_a_node_ready() {
        let mut stage = Stage::with("renewed", 1).await;
        let lease = json!({
            "metadata": {"name": "n0", "namespace": NODE_LEASE_NAMESPACE},
            "spec": {"holderIdentity": "n0", "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"},
        });
        stage.hub.create(&LEASE, lease).await.unwrap();
        for turn in 1..20 {
            let renew = |lease: &mut Value| {
                lease["spec"]["renewTime"] = json!(format!("19{:02}-01-01T00:00:00.000000Z", 99 - turn));
            };
            stage.hub.update(&LEASE, NODE_LEASE_NAMESPACE, "n0", renew).await.unwrap();
            stage.at(turn * 40).await;
            assert_eq!(stage.ready("n0"), "True", "turn {turn}");
        }
        stage.at(19 * 40 + 51).await;
        assert_eq!(stage.ready("n0"), "Unknown");
    }

    #[tokio::test]
    async fn many_nodes_are_lost_only_if_the_hub_can_reach_itself() {
        let mut stage = Stage::with("proof", 5).await;
        // nobody accepts: the request to itself is not answered, as when the server is stuck
        stage.listener = None;
        stage.at(60).await;
        assert_eq!(stage.ready_count(), 5, "the fault is the hub's");
        assert!(stage.events("NodeNotReady").is_empty());

        let mut stage = Stage::with("proof-wrong-answer", 5).await;
        stage.answer("500 Internal Server Error");
        stage.at(60).await;
        assert_eq!(stage.ready_count(), 5);

        let mut stage = Stage::with("proof-given", 5).await;
        stage.answer("200 OK");
        stage.at(60).await;
        assert_eq!(stage.ready_count(), 0);
        assert_eq!(stage.events("NodeNotReady").len(), 5);
    }

    #[tokio::test]
    async fn a_stalled_hub_gives_a_full_grace_period_again() {
        let mut stage = Stage::with("stalled", 1).await;
        stage.performer.pass(Duration::from_secs(600), Duration::from_secs(590)).await;
        stage.at(650).await;
        assert_eq!(stage.ready("n0"), "True");
        stage.at(651).await;
        assert_eq!(stage.ready("n0"), "Unknown");
    }

    #[tokio::test]
    async fn a_node_that_was_heard_in_the_meantime_is_not_marked() {
        let stage = Stage::with("meantime", 1).await;
        let node = stage.hub.get(&NODE, "", "n0").unwrap();
        let seen = monitor::fingerprint(&json!({"conditions": []}));
        let marked =
            mark(Arc::clone(&stage.hub), "n0".to_owned(), node.uid.to_string(), seen, true, false).await;
        assert_eq!(marked, None);
        let seen = monitor::fingerprint(&node.value()["status"]);
        let other =
            mark(Arc::clone(&stage.hub), "n0".to_owned(), "another uid".to_owned(), seen, true, false).await;
        assert_eq!(other, None);
        assert_eq!(stage.ready("n0"), "True");
        let gone =
            mark(Arc::clone(&stage.hub), "n1".to_owned(), node.uid.to_string(), seen, true, false).await;
        assert_eq!(gone, None);
        assert!(stage.events("NodeNotReady").is_empty());
    }

    #[test]
    fn sights_are_taken_anew_only_where_the_version_changed() {
        let old = BTreeMap::from([("kept".to_owned(), 1), ("changed".to_owned(), 1), ("gone".to_owned(), 1)]);
        let looked = std::cell::RefCell::new(Vec::new());
        let present = [("kept", 1), ("changed", 2), ("new", 3)].into_iter().map(|(name, version)| {
            let looked = &looked;
            (name.to_owned(), version, move || {
                looked.borrow_mut().push(name);
                version
            })
        });
        let now = refreshed(old, present, |sight| *sight);
        let expect =
            [("changed", 2), ("kept", 1), ("new", 3)].map(|(name, version)| (name.to_owned(), version));
        assert_eq!(now, BTreeMap::from(expect));
        assert_eq!(looked.into_inner(), ["changed", "new"]);
    }
}
