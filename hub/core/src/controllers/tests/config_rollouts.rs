//! Rollouts of configurations, rule by rule: nodes with agents of a few lines, which follow the text of their
//! configuration.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};

use kedge_rig::rollout_scenarios::{self, Stage};
use serde_json::{Value, json};

use super::Hub;
use super::design_document::OneByOne;
use crate::controllers::config_rollouts::{Assignment, ConfigRollouts, view};
use crate::controllers::daemon_sets::{DaemonSets, Defaults};
use crate::controllers::{Controller as _, World};
use crate::kinds::{CONFIG_MAP, CONFIG_ROLLOUT, DAEMON_SET, EVENT, Kind, NAMESPACE, NODE, POD};
use crate::requests::Propagation;

const FLEET: &str = "kedge-fleet";
/// Seconds between two steps.
const STEP: u64 = 10;

/// A hub with nodes `n00`, `n01`, ..., of which the first two are canaries, and a rollout of `settings`.
pub(super) struct Shops {
    pub(super) hub: Hub,
    pub(super) controller: ConfigRollouts,
    pub(super) second: u64,
    /// Most nodes that were out at a time.
    most_out: usize,
    /// Nodes without contact.
    pub(super) silent: BTreeSet<String>,
}

/// The configuration that a Node is assigned, as the name of its ConfigMap.
pub(super) fn assigned(node: &Value) -> &str {
    node["spec"]["configSource"]["configMap"]["name"].as_str().unwrap_or_default()
}

pub(super) fn promoted(node: &Value) -> &str {
    node["status"]["config"]["lastKnownGood"]["configMap"]["name"].as_str().unwrap_or_default()
}

/// A source as a node reports it.
pub(super) fn seen(source: &Value) -> Value {
    let mut source = source.clone();
    source["configMap"]["uid"] = "u".into();
    source["configMap"]["resourceVersion"] = "1".into();
    source
}

pub(super) fn set(node: &mut Value, sort: &str, status: &str, reason: &str) {
    let conditions = node["status"]["conditions"].as_array_mut().unwrap();
    conditions.retain(|condition| condition["type"] != *sort);
    conditions.push(json!({"type": sort, "status": status, "reason": reason}));
}

/// The report of an agent about its configuration: it refuses a `bad` one, promotes a `good` one, one that is
/// `tight` with memory pressure, and one that `hangs` never.
pub(super) fn report(node: &mut Value, text: &str) {
    let source = seen(&node["spec"]["configSource"]);
    node["status"]["config"]["assigned"] = source.clone();
    match text.split('-').next().unwrap_or_default() {
        "bad" => set(node, "ConfigOK", "False", "failed to parse"),
        "hangs" => set(node, "ConfigOK", "Unknown", "on trial"),
        fate => {
            node["status"]["config"]["lastKnownGood"] = source;
            set(node, "ConfigOK", "True", "all checks passed");
            set(node, "MemoryPressure", if fate == "tight" { "True" } else { "False" }, "");
        }
    }
}

pub(super) fn rollout(strategy: Value) -> Value {
    json!({"metadata": {"name": "shops"}, "spec": {
        "selector": {"matchLabels": {"fleet.kedge.dev/group": "shops"}}, "source": {"name": "settings"}, "strategy": strategy}})
}

impl Shops {
    fn new(count: usize, strategy: Value) -> Shops {
        let mut hub = Hub::with_namespace();
        for name in [FLEET, "default"] {
            hub.create(&NAMESPACE, json!({"metadata": {"name": name}}));
        }
        let (controller, silent) = (ConfigRollouts::default(), BTreeSet::new());
        let mut shops = Shops { hub, controller, second: 0, most_out: 0, silent };
        for index in 0..count {
            shops.add_node(&format!("n{index:02}"), index < 2);
        }
        shops.hub.create(&CONFIG_ROLLOUT, rollout(strategy));
        shops
    }

    fn add_node(&mut self, name: &str, is_canary: bool) {
        let ring = if is_canary { "canary" } else { "wide" };
        let labels = json!({"fleet.kedge.dev/group": "shops", "fleet.kedge.dev/ring": ring});
        self.hub.create(&NODE, json!({"metadata": {"name": name, "labels": labels}}));
        self.hub.edit(&NODE, "", name, |node| {
            node["status"] = json!({"conditions": [], "nodeInfo": {"kubeletVersion": "v1.36.0+kedge-0.3.0"}});
            set(node, "Ready", "True", "");
        });
    }

    /// Writes the source.
    fn push(&mut self, text: &str) {
        if self.hub.value(&CONFIG_MAP, FLEET, "settings").is_null() {
            let metadata = json!({"namespace": FLEET, "name": "settings"});
            self.hub.create(&CONFIG_MAP, json!({"metadata": metadata, "data": {"kubelet": text}}));
        } else {
            self.hub.edit(&CONFIG_MAP, FLEET, "settings", |map| map["data"]["kubelet"] = text.into());
        }
    }

    fn nodes(&self) -> Vec<Value> {
        World::list(&self.hub.index, &NODE, "").iter().map(|node| node.value()).collect()
    }

    fn node(&self, name: &str) -> Value {
        self.hub.value(&NODE, "", name)
    }

    /// The text of the configuration that a node is assigned.
    fn text_of(&self, node: &Value) -> String {
        let map = self.hub.value(&CONFIG_MAP, FLEET, assigned(node));
        map["data"]["kubelet"].as_str().unwrap_or_default().to_owned()
    }

    /// The nodes that are assigned this text.
    fn with(&self, text: &str) -> usize {
        self.nodes().iter().filter(|node| self.text_of(node) == text).count()
    }

    /// The controller, then each agent.
    fn step(&mut self) {
        self.second += STEP;
        self.hub.run_at(&mut self.controller, self.second);
        let out = self.nodes().into_iter().filter(|node| assigned(node) != promoted(node)).count();
        self.most_out = self.most_out.max(out);
        self.agents();
    }

    fn agents(&mut self) {
        for node in self.nodes() {
            let name = node["metadata"]["name"].as_str().unwrap();
            if self.silent.contains(name) || assigned(&node).is_empty() {
                continue;
            }
            if node["status"]["config"]["assigned"] != seen(&node["spec"]["configSource"]) {
                let text = self.text_of(&node);
                if text.starts_with("cuts") {
                    self.silence(name);
                } else {
                    self.hub.edit(&NODE, "", name, |node| report(node, &text));
                }
            }
        }
    }

    fn silence(&mut self, name: &str) {
        self.silent.insert(name.to_owned());
        self.hub.edit(&NODE, "", name, |node| set(node, "Ready", "Unknown", "NodeStatusUnknown"));
    }

    fn hear(&mut self, name: &str) {
        self.silent.remove(name);
        self.hub.edit(&NODE, "", name, |node| set(node, "Ready", "True", ""));
    }

    fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| self.step());
    }

    fn status(&self) -> Value {
        self.hub.value(&CONFIG_ROLLOUT, "", "shops")["status"].clone()
    }

    fn phase(&self) -> String {
        self.status()["phase"].as_str().unwrap_or_default().to_owned()
    }

    fn message(&self, sort: &str) -> String {
        let status = self.status();
        let found = crate::value::condition(&status, sort).cloned().unwrap_or_default();
        found["message"].as_str().unwrap_or_default().to_owned()
    }

    fn edit(&mut self, edit: impl FnMut(&mut Value)) {
        self.hub.edit(&CONFIG_ROLLOUT, "", "shops", edit);
    }

    fn annotate(&mut self, key: &str, value: &str) {
        self.edit(|rollout| rollout["metadata"]["annotations"][key] = value.into());
    }

    /// `3/20 updated, 1 failed`.
    fn counts(&self) -> String {
        let nodes = &self.status()["nodes"];
        let shown = |field: &str| nodes[field].as_u64().unwrap_or(0);
        format!("{}/{} updated, {} failed", shown("updated"), shown("selected"), shown("failed"))
    }

    /// Restarts the hub: the controller forgets everything.
    fn restart(&mut self) {
        self.controller = ConfigRollouts::default();
    }

    fn reasons(&self) -> Vec<String> {
        let events = World::list(&self.hub.index, &EVENT, "");
        let text = |value: &Value| value["reason"].as_str().unwrap_or_default().to_owned();
        events.iter().map(|event| text(&event.value())).collect()
    }

    fn count(&self, reason: &str) -> usize {
        self.reasons().iter().filter(|found| *found == reason).count()
    }

    fn maps(&self) -> usize {
        World::list(&self.hub.index, &CONFIG_MAP, FLEET).len()
    }
}

fn canary(soak: &str) -> Value {
    json!({"selector": {"matchLabels": {"fleet.kedge.dev/ring": "canary"}}, "soak": soak})
}

/// Everything, by a first revision.
fn settled(count: usize, strategy: Value) -> Shops {
    let mut shops = Shops::new(count, strategy);
    shops.push("good-1");
    for _ in 0..200 {
        shops.step();
        if shops.phase() == "Complete" {
            shops.most_out = 0;
            return shops;
        }
    }
    panic!("not complete: {}", shops.status());
}

#[test]
fn edit_of_the_source_reaches_nobody_at_once() {
    let mut shops =
        Shops::new(20, json!({"maxUnavailable": 3, "batches": [canary("60s"), {"limit": "25%"}]}));
    shops.push("good-1");
    let mut reached = Vec::new();
    for _ in 0..60 {
        shops.step();
        reached.push(shops.with("good-1"));
    }
    assert_eq!((reached[0], &reached[1..7], reached[59]), (2, &[2; 6][..], 20), "{reached:?}");
    assert!(reached.windows(2).all(|pair| pair[1] <= pair[0] + 3), "{reached:?}");
    assert_eq!(
        (shops.phase(), shops.counts(), shops.most_out),
        ("Complete".into(), "20/20 updated, 0 failed".into(), 3)
    );
    let kind: &Kind = &CONFIG_ROLLOUT;
    let cells =
        (kind.cells)(&shops.hub.value(&CONFIG_ROLLOUT, "", "shops"), time::OffsetDateTime::UNIX_EPOCH);
    let cells: Vec<String> = cells.iter().take(7).map(ToString::to_string).collect();
    assert_eq!(cells.join(" "), r#""shops" "Complete" "3/3" 20 20 0 0"#);
    let node = shops.node("n07");
    let map = shops.hub.value(&CONFIG_MAP, FLEET, assigned(&node));
    assert_eq!((&map["immutable"], map["data"].clone()), (&json!(true), json!({"kubelet": "good-1"})));
    assert_eq!(
        node["metadata"]["annotations"]["fleet.kedge.dev/rollout"],
        format!("shops@{}", assigned(&node))
    );
    // nothing is written without a change
    let before = shops.hub.index.revision();
    shops.steps(5);
    assert_eq!(shops.hub.index.revision(), before);
    assert!(shops.reasons().len() < 15, "{:?}", shops.reasons());
}

/// Each way in which a revision harms its nodes: a canary has it, the rest not.
#[test]
fn harmful_revision_stops_at_its_first_batch() {
    for (text, why, steps) in [
        ("bad-2", "failed to parse", 2),
        ("tight-2", "memory pressure", 8),
        ("hangs-2", "not promoted in time", 20),
        ("cuts-2", "node lost", 2),
    ] {
        let mut shops =
            settled(20, json!({"maxUnavailable": 4, "progressDeadline": "2m", "batches": [canary("5m")]}));
        shops.push(text);
        shops.steps(steps + 1);
        assert_eq!((shops.phase(), shops.with(text)), ("Stopped".into(), 2), "{text}: {}", shops.status());
        let message = shops.message("Stopped");
        assert!(message.contains(&format!("n00 ({why})")), "{message}");
        assert_eq!(shops.count("Stopped"), 1);
        // it stays stopped when the nodes are well again and the hub forgets everything
        shops.restart();
        for name in ["n00", "n01"] {
            shops.hear(name);
            shops.hub.edit(&NODE, "", name, |node| report(node, "good"));
        }
        shops.steps(60);
        assert_eq!((shops.phase(), shops.with(text)), ("Stopped".into(), 2), "{text}");
    }
}

#[test]
fn first_failure_of_few_nodes_stops_without_batches() {
    let mut shops = settled(20, json!({"maxUnavailable": 3}));
    shops.push("bad-2");
    shops.steps(10);
    assert_eq!((shops.phase(), shops.with("bad-2")), ("Stopped".into(), 3));
    // a share of many is a number: two may fail
    let mut shops = settled(20, json!({"maxUnavailable": 5, "maxFailures": 2}));
    for name in ["n03", "n04"] {
        shops.silence(name);
    }
    shops.push("good-2");
    shops.hub.edit(&NODE, "", "n05", |node| set(node, "SystemOK", "False", ""));
    shops.steps(40);
    assert_eq!(shops.phase(), "Complete", "{}", shops.status());
}

/// Failures that use up the whole budget stop the rollout, even if `maxFailures` tolerates more.
#[test]
fn failures_that_fill_the_budget_stop() {
    let mut shops = settled(20, json!({"maxUnavailable": 2, "maxFailures": "50%"}));
    shops.push("bad-2");
    shops.steps(5);
    assert_eq!((shops.phase(), shops.with("bad-2")), ("Stopped".into(), 2));
    let mut shops = settled(20, json!({"maxUnavailable": 2, "maxFailures": 5}));
    shops.push("bad-2");
    shops.steps(5);
    let expect = "; maxFailures permits 5, but maxUnavailable no more than 2 on trial or failed at a time; ";
    assert!(shops.message("Stopped").contains(expect), "{}", shops.message("Stopped"));
}

#[test]
fn node_under_pressure_before_does_not_fail() {
    let mut shops = settled(4, json!({"maxUnavailable": 4}));
    shops.hub.edit(&NODE, "", "n01", |node| set(node, "DiskPressure", "True", ""));
    shops.hub.edit(&NODE, "", "n02", |node| set(node, "SystemOK", "False", ""));
    shops.push("good-2");
    shops.steps(12);
    assert_eq!((shops.phase(), shops.counts()), ("Complete".into(), "4/4 updated, 0 failed".into()));
    // a trouble of a moment does not count
    shops.push("good-3");
    shops.steps(1);
    shops.hub.edit(&NODE, "", "n03", |node| set(node, "Ready", "False", ""));
    shops.steps(4);
    shops.hub.edit(&NODE, "", "n03", |node| set(node, "Ready", "True", ""));
    shops.steps(10);
    assert_eq!(shops.phase(), "Complete", "{}", shops.status());
}

#[test]
fn stopped_rollout_goes_on_when_asked() {
    let stopped = || {
        let mut shops = settled(10, json!({"maxUnavailable": 2}));
        shops.push("bad-2");
        shops.steps(5);
        assert_eq!(shops.phase(), "Stopped");
        shops
    };
    // by the annotation: as many more may fail as before
    let mut shops = stopped();
    shops.annotate("fleet.kedge.dev/resume", "1");
    shops.edit(|rollout| rollout["spec"]["strategy"]["maxUnavailable"] = 9.into());
    shops.steps(5);
    assert_eq!((shops.phase(), shops.with("bad-2")), ("Stopped".into(), 9), "{}", shops.status());
    // by another content
    let mut shops = stopped();
    shops.push("good-3");
    shops.steps(30);
    assert_eq!((shops.phase(), shops.with("good-3")), ("Complete".into(), 10));
    assert!(shops.most_out <= 2, "{}", shops.most_out);
}

#[test]
fn paused_rollout_assigns_nothing() {
    let mut shops = settled(6, json!({"maxUnavailable": 1}));
    shops.push("good-2");
    shops.steps(2);
    shops.edit(|rollout| rollout["spec"]["paused"] = true.into());
    let reached = shops.with("good-2");
    shops.steps(10);
    assert_eq!((shops.phase(), shops.with("good-2")), ("Paused".into(), reached));
    // a pause between the decision and the write
    shops.edit(|rollout| rollout["spec"]["paused"] = false.into());
    shops.second += STEP;
    shops.controller.sweep(&shops.hub.index);
    let now = shops.hub.now(shops.second);
    let tasks = shops.controller.reconcile(&shops.hub.index, now).tasks;
    assert!(tasks.iter().any(|task| format!("{:?}", task.action).contains("update nodes")), "{tasks:?}");
    shops.edit(|rollout| rollout["spec"]["paused"] = true.into());
    for task in tasks {
        shops.hub.act(&mut shops.controller, task, now);
    }
    assert_eq!(shops.with("good-2"), reached, "a pause counts at once");
    shops.edit(|rollout| rollout["spec"]["paused"] = false.into());
    shops.steps(40);
    assert_eq!(shops.phase(), "Complete", "{}", shops.status());
}

#[test]
fn node_assigned_by_hand_is_left_alone() {
    let hand = json!({"configMap": {"namespace": "n", "name": "mine", "kubeletConfigKey": "kubelet"}});
    let mut shops = Shops::new(4, json!({"maxUnavailable": 4}));
    shops.hub.edit(&NODE, "", "n01", |node| node["spec"]["configSource"] = hand.clone());
    shops.push("good-1");
    shops.steps(12);
    let is_by_hand = |shops: &Shops, name: &str| shops.node(name)["spec"]["configSource"] == hand;
    assert_eq!((shops.phase(), shops.counts()), ("Complete".into(), "3/4 updated, 0 failed".into()));
    assert_eq!((is_by_hand(&shops, "n01"), &shops.status()["nodes"]["conflicting"]), (true, &json!(1)));
    // a hand that keeps the annotation, and one between the decision and the write
    shops.hub.edit(&NODE, "", "n02", |node| node["spec"]["configSource"] = hand.clone());
    shops.push("good-2");
    shops.second += STEP;
    shops.controller.sweep(&shops.hub.index);
    for _ in 0..3 {
        let now = shops.hub.now(shops.second);
        let tasks = shops.controller.reconcile(&shops.hub.index, now).tasks;
        shops.hub.edit(&NODE, "", "n03", |node| node["spec"]["configSource"] = hand.clone());
        for task in tasks {
            shops.hub.act(&mut shops.controller, task, now);
        }
    }
    shops.steps(5);
    for name in ["n01", "n02", "n03"] {
        assert!(is_by_hand(&shops, name), "{name}");
    }
    assert_eq!((shops.with("good-2"), &shops.status()["nodes"]["conflicting"]), (1, &json!(3)));
}

#[test]
fn undo_is_a_new_revision_with_old_content() {
    let mut shops = settled(6, json!({"maxUnavailable": 2, "batches": [canary("10m")]}));
    let numbers = |shops: &Shops| {
        let status = shops.status();
        let all = status["revisions"].as_array().unwrap().iter();
        all.map(|one| one["number"].as_i64().unwrap()).collect::<Vec<_>>()
    };
    shops.push("good-2");
    shops.steps(5);
    assert_eq!((shops.with("good-2"), numbers(&shops)), (2, vec![1, 2]));
    shops.annotate("fleet.kedge.dev/undo-to", "0");
    let shown = |shops: &Shops| view(&shops.hub.index, "shops", time::OffsetDateTime::UNIX_EPOCH).unwrap();
    assert_eq!((&shown(&shops)["state"], &shown(&shops)["revision"]), (&json!("under way"), &json!("")));
    // nodes that have it, and the phase
    let mut phases = Vec::new();
    for _ in 0..5 {
        shops.step();
        phases.push((shops.status()["nodes"]["updated"].as_i64().unwrap(), shops.phase()));
    }
    assert!(phases.iter().all(|(updated, phase)| (*updated == 6) == (phase == "Complete")), "{phases:?}");
    assert_eq!(shown(&shops)["state"], "complete");
    // it was complete before: it needs no batches
    assert_eq!((shops.with("good-1"), shops.phase(), numbers(&shops)), (6, "Complete".into(), vec![2, 3]));
    let rollout = shops.hub.value(&CONFIG_ROLLOUT, "", "shops");
    assert_eq!(rollout["metadata"]["annotations"].get("fleet.kedge.dev/undo-to"), None);
    assert_eq!(shops.hub.value(&CONFIG_MAP, FLEET, "settings")["data"]["kubelet"], "good-1");
    shops.annotate("fleet.kedge.dev/undo-to", "77");
    shops.steps(2);
    assert_eq!((shops.count("UndoImpossible"), shops.count("Undone")), (1, 1));
    shops.annotate("fleet.kedge.dev/undo-to", "2");
    shops.steps(3);
    assert_eq!((shops.with("good-2"), numbers(&shops)), (2, vec![3, 4]));
}

/// A node that fails under an undo is shown; it keeps the undo neither from its end nor from saying what it waits for.
#[test]
fn undo_of_a_small_fleet_ends_although_a_node_fails() {
    let undone_at = |reached: usize| {
        let mut shops = settled(3, json!({"maxUnavailable": 1}));
        shops.push("good-2");
        shops.steps(40);
        assert_eq!((shops.with("good-2"), shops.phase()), (3, "Complete".into()));
        shops.annotate("fleet.kedge.dev/undo-to", "0");
        while shops.with("good-1") < reached {
            shops.step();
        }
        let name = format!("n{:02}", reached - 1);
        shops.hub.edit(&NODE, "", &name, |node| set(node, "SystemOK", "False", ""));
        shops.steps(20);
        shops
    };
    let shops = undone_at(3);
    assert_eq!((shops.phase(), shops.counts()), ("Complete".into(), "2/3 updated, 1 failed".into()));
    // two nodes wait for the budget that the first one uses up
    let mut shops = undone_at(1);
    assert_eq!((shops.phase(), shops.with("good-1")), ("Progressing".into(), 1));
    let message = shops.message("Progressing");
    assert!(message.contains("those that failed (1) are well or have the annotation"), "{message}");
    shops.hub.edit(&NODE, "", "n00", |node| {
        node["metadata"]["annotations"]["fleet.kedge.dev/set-aside"] = "by hand".into();
    });
    shops.steps(20);
    assert_eq!((shops.phase(), shops.counts()), ("Complete".into(), "2/3 updated, 0 failed".into()));
}

/// Somebody repairs the source while an undo, or a rollback, is decided.
#[test]
fn undo_writes_over_no_repair() {
    let mut shops = settled(4, json!({"maxUnavailable": 2, "rollbackOnFailure": true}));
    shops.push("good-2");
    shops.steps(1);
    shops.annotate("fleet.kedge.dev/undo-to", "0");
    shops.second += STEP;
    shops.controller.sweep(&shops.hub.index);
    let now = shops.hub.now(shops.second);
    let tasks = shops.controller.reconcile(&shops.hub.index, now).tasks;
    assert!(tasks.iter().any(|task| format!("{:?}", task.action).contains("update configmaps")), "{tasks:?}");
    shops.push("good-3");
    for task in tasks {
        shops.hub.act(&mut shops.controller, task, now);
    }
    assert_eq!(shops.hub.value(&CONFIG_MAP, FLEET, "settings")["data"]["kubelet"], "good-3");
}

/// It says so once, and goes on.
#[test]
fn immutable_source_is_not_undone() {
    let mut shops = settled(4, json!({"maxUnavailable": 4, "rollbackOnFailure": true}));
    let replace = |shops: &mut Shops, text: &str| {
        shops.hub.delete(&CONFIG_MAP, FLEET, "settings", Propagation::Unset);
        let metadata = json!({"namespace": FLEET, "name": "settings"});
        shops
            .hub
            .create(&CONFIG_MAP, json!({"metadata": metadata, "data": {"kubelet": text}, "immutable": true}));
    };
    replace(&mut shops, "good-2");
    shops.steps(1);
    shops.annotate("fleet.kedge.dev/undo-to", "0");
    shops.steps(12);
    assert_eq!(
        (shops.with("good-2"), shops.phase(), shops.count("UndoImpossible")),
        (4, "Complete".into(), 1)
    );
    replace(&mut shops, "bad-3");
    shops.steps(12);
    assert_eq!((shops.phase(), shops.count("RollbackImpossible")), ("Stopped".into(), 1));
}

#[test]
fn stopped_rollout_is_rolled_back_once() {
    let mut shops = settled(8, json!({"maxUnavailable": 2, "rollbackOnFailure": true}));
    shops.push("bad-2");
    shops.steps(10);
    assert_eq!((shops.with("good-1"), shops.phase()), (8, "Complete".into()), "{}", shops.status());
    assert_eq!(shops.count("RolledBack"), 1);
    // a tool writes it again: it is stopped from the start, and not written over
    shops.push("bad-2");
    shops.steps(10);
    assert_eq!((shops.with("bad-2"), shops.phase(), shops.count("RolledBack")), (0, "Stopped".into(), 1));
    assert_eq!(shops.hub.value(&CONFIG_MAP, FLEET, "settings")["data"]["kubelet"], "bad-2");
    shops.annotate("fleet.kedge.dev/resume", "1");
    shops.steps(6);
    assert_eq!((shops.with("good-1"), shops.count("RolledBack")), (8, 2), "it failed, and was rolled back");
}

#[test]
fn new_and_returning_nodes_get_the_complete_revision() {
    let mut shops = settled(10, json!({"maxUnavailable": 2, "batches": [canary("0s")]}));
    shops.edit(|rollout| rollout["spec"]["strategy"]["batches"] = json!([canary("1h")]));
    shops.silence("n08");
    shops.push("good-2");
    shops.steps(20);
    assert_eq!((shops.phase(), shops.with("good-2")), ("Soaking".into(), 2));
    shops.add_node("n10", false);
    shops.add_node("n11", false);
    shops.steps(3);
    assert_eq!(
        (shops.text_of(&shops.node("n10")), shops.text_of(&shops.node("n11"))),
        ("good-1".into(), "good-1".into())
    );
    for _ in 0..400 {
        shops.step();
    }
    assert_eq!((shops.phase(), shops.counts()), ("Complete".into(), "11/12 updated, 0 failed".into()));
    // away while two revisions came
    shops.push("bad-3");
    shops.steps(5);
    assert_eq!(shops.phase(), "Stopped");
    shops.hear("n08");
    shops.steps(3);
    let back = shops.node("n08");
    assert_eq!((shops.text_of(&back), promoted(&back) == assigned(&back)), ("good-2".into(), true));
}

/// Also where the stopped revision had no batches left, so that it would have been their turn.
#[test]
fn new_nodes_of_a_stopped_rollout_get_the_complete_revision() {
    let mut shops = settled(3, json!({"maxUnavailable": 1}));
    shops.push("bad-2");
    shops.steps(3);
    assert_eq!((shops.phase(), shops.with("bad-2")), ("Stopped".into(), 1));
    shops.add_node("n77", false);
    shops.restart();
    shops.steps(3);
    assert_eq!((shops.phase(), shops.text_of(&shops.node("n77"))), ("Stopped".into(), "good-1".into()));
    assert_eq!(shops.with("bad-2"), 1);
}

#[test]
fn nodes_that_are_left_out_do_not_hold_it_up() {
    let mut shops = settled(6, json!({"maxUnavailable": 6}));
    shops.hub.edit(&NODE, "", "n02", |node| {
        node["metadata"]["annotations"]["fleet.kedge.dev/set-aside"] = "broken".into()
    });
    shops.hub.edit(&NODE, "", "n03", |node| {
        node["status"]["nodeInfo"]["kubeletVersion"] = "v1.36.0+kedge-0.2.9".into()
    });
    shops.silence("n04");
    shops.edit(|rollout| rollout["spec"]["minKubeletVersion"] = "v1.36.0+kedge-0.3.0".into());
    shops.push("good-2");
    shops.steps(12);
    assert_eq!(shops.phase(), "Complete", "{}", shops.status());
    let nodes = shops.status()["nodes"].clone();
    assert_eq!(
        (&nodes["setAside"], &nodes["tooOld"], &nodes["away"], &nodes["updated"]),
        (&json!(1), &json!(1), &json!(1), &json!(3))
    );
    // a failed node that a person sets aside counts nowhere
    shops.push("good-3");
    shops.step();
    shops.hub.edit(&NODE, "", "n05", |node| set(node, "ConfigOK", "False", "it lies"));
    shops.steps(3);
    assert_eq!(shops.phase(), "Stopped");
    shops.hub.edit(&NODE, "", "n05", |node| {
        node["metadata"]["annotations"]["fleet.kedge.dev/set-aside"] = "liar".into()
    });
    shops.annotate("fleet.kedge.dev/resume", "1");
    shops.steps(12);
    assert_eq!(shops.phase(), "Complete", "{}", shops.status());
}

#[test]
fn window_of_a_node_is_waited_for() {
    let mut shops = settled(3, json!({"maxUnavailable": 3}));
    let windows = |node: &mut Value| {
        node["metadata"]["annotations"][kedge_api::MAINTENANCE_ANNOTATION] = "02:00-04:00".into();
    };
    shops.hub.edit(&NODE, "", "n01", windows);
    shops.push("good-2");
    shops.steps(4);
    assert_eq!((shops.with("good-2"), shops.phase()), (2, "Progressing".into()));
    let shown = view(&shops.hub.index, "shops", shops.hub.wall).unwrap();
    let row = &shown["nodes"][1];
    assert_eq!(
        (&row["state"], &row["why"], &row["revision"]),
        (&json!("waits"), &json!("waits for its maintenance window"), &json!(1))
    );
    shops.hub.wall += time::Duration::hours(15);
    shops.steps(12);
    assert_eq!(shops.phase(), "Complete", "{}", shops.status());
}

/// A configuration that names another system: its nodes fetch it, reboot, and promote both together.
#[test]
fn wave_waits_for_the_systems_of_its_nodes() {
    let fetching = |strategy: Value| {
        let mut shops = settled(6, strategy);
        shops.push("hangs-2");
        shops.steps(2);
        for name in ["n00", "n01"] {
            shops.hub.edit(&NODE, "", name, |node| set(node, "SystemOK", "Unknown", "Fetching"));
        }
        shops.steps(30);
        assert_eq!((shops.phase(), shops.with("hangs-2")), ("Progressing".into(), 2));
        ["n00", "n01"].into_iter().for_each(|name| shops.silence(name));
        shops
    };
    let strategy = || json!({"maxUnavailable": 2, "batches": [canary("0s")]});
    // both reboot for fourteen minutes
    let mut shops = fetching(strategy());
    shops.steps(84);
    assert_eq!((shops.phase(), shops.with("hangs-2")), ("Progressing".into(), 2), "{}", shops.status());
    for name in ["n00", "n01"] {
        shops.hear(name);
        shops.hub.edit(&NODE, "", name, |node| {
            report(node, "good");
            set(node, "SystemOK", "True", "Wanted");
        });
    }
    shops.steps(10);
    assert_eq!((shops.with("hangs-2"), shops.most_out), (4, 2), "the next nodes have their turn");
    // their system is refused after all
    shops.hub.edit(&NODE, "", "n02", |node| set(node, "SystemOK", "False", "BadSystem"));
    shops.steps(10);
    assert_eq!((shops.phase(), shops.with("hangs-2")), ("Stopped".into(), 4));
    assert!(shops.message("Stopped").contains("n02 (its system)"), "{}", shops.message("Stopped"));
    // one that is away for longer is lost
    let mut shops = fetching(strategy());
    shops.steps(100);
    assert_eq!((shops.phase(), shops.with("hangs-2")), ("Stopped".into(), 2));
    assert!(shops.message("Stopped").contains("n00 (node lost)"), "{}", shops.message("Stopped"));
}

#[test]
fn drained_node_is_not_taken() {
    let mut shops = settled(3, json!({"maxUnavailable": 3}));
    shops.hub.edit(&NODE, "", "n01", |node| {
        node["metadata"]["annotations"]["kedge.dev/drained-for"] = "n/agent".into();
    });
    shops.push("good-2");
    shops.steps(20);
    assert_eq!(shops.with("good-2"), 2);
    shops.hub.edit(&NODE, "", "n01", |node| {
        node["metadata"]["annotations"].as_object_mut().unwrap().remove("kedge.dev/drained-for");
    });
    shops.steps(20);
    assert_eq!((shops.with("good-2"), shops.phase()), (3, "Complete".into()));
}

#[test]
fn source_that_is_gone_changes_nothing() {
    let mut shops = settled(4, json!({"maxUnavailable": 4}));
    shops.hub.delete(&CONFIG_MAP, FLEET, "settings", Propagation::Unset);
    shops.steps(3);
    assert_eq!((shops.with("good-1"), shops.phase()), (4, "Complete".into()));
    assert!(
        shops.message("Progressing").contains("kedge-fleet/settings does not exist"),
        "{}",
        shops.status()
    );
    // a node that is new still gets the complete revision
    shops.add_node("n09", false);
    shops.steps(3);
    assert_eq!(shops.with("good-1"), 5);
    let mut shops = Shops::new(2, json!({}));
    shops.steps(2);
    assert!(shops.message("Progressing").contains("does not exist"), "{}", shops.status());
    shops.push("");
    shops.steps(2);
    assert_eq!((shops.maps(), shops.message("Progressing").contains("no text under the key")), (1, true));
}

#[test]
fn revisions_beyond_the_limit_go_unless_a_node_has_them() {
    let mut shops = settled(6, json!({"maxUnavailable": 6}));
    shops.edit(|rollout| rollout["spec"]["revisionHistoryLimit"] = 2.into());
    // too short for a complete rollout
    shops.push("good-2");
    shops.steps(2);
    shops.silence("n05");
    for number in 3..12 {
        shops.push(&format!("good-{number}"));
        shops.steps(4);
    }
    // the source, the newest revision, the complete one, and that of the node that is away
    assert_eq!((shops.maps(), shops.with("good-2"), shops.with("good-11")), (4, 1, 5));
    // a storm of edits, each looked at
    for number in 0..50 {
        shops.push(&format!("good-storm-{number}"));
        shops.hub.run_at(&mut shops.controller, shops.second);
    }
    shops.steps(10);
    assert!(shops.maps() < 8, "{}", shops.maps());
    assert_eq!((shops.phase(), shops.with("good-storm-49")), ("Complete".into(), 5));
}

#[test]
fn two_rollouts_do_not_share_a_node() {
    let mut shops = settled(4, json!({"maxUnavailable": 4}));
    let mut other = rollout(json!({"maxUnavailable": 4}));
    other["metadata"]["name"] = "others".into();
    other["spec"]["selector"] = json!({"matchLabels": {"fleet.kedge.dev/ring": "wide"}});
    other["spec"]["source"]["name"] = "other".into();
    shops.hub.create(
        &CONFIG_MAP,
        json!({"metadata": {"namespace": FLEET, "name": "other"}, "data": {"kubelet": "good-other"}}),
    );
    shops.hub.create(&CONFIG_ROLLOUT, other);
    shops.restart();
    shops.steps(4);
    assert_eq!((shops.with("good-1"), shops.with("good-other")), (4, 0));
    // moved to the other one by its label
    shops
        .hub
        .edit(&NODE, "", "n03", |node| node["metadata"]["labels"]["fleet.kedge.dev/group"] = "none".into());
    shops.steps(4);
    assert_eq!((shops.with("good-1"), shops.with("good-other")), (3, 1));
    // a rollout that is gone leaves its nodes as they are, for others to take
    shops.hub.delete(&CONFIG_ROLLOUT, "", "shops", Propagation::Unset);
    shops.steps(4);
    assert_eq!((shops.with("good-1"), shops.with("good-other")), (2, 2));
}

/// A DaemonSet on all nodes, its pods ready.
fn with_daemons(shops: &mut Shops, daemons: &mut DaemonSets) {
    let mut set = super::daemon_sets::set("i:1");
    set["spec"]["updateStrategy"] = json!({"rollingUpdate": {"maxUnavailable": 4}});
    shops.hub.create(&DAEMON_SET, set);
    shops.hub.run_at(daemons, shops.second);
    for pod in shops.hub.pods() {
        shops.hub.report(pod["metadata"]["name"].as_str().unwrap(), "Running", true);
    }
}

#[test]
fn pods_that_served_before_must_serve_again() {
    let mut shops = settled(4, json!({"maxUnavailable": 4}));
    let mut daemons = DaemonSets::new(Defaults { pre_pull: false });
    with_daemons(&mut shops, &mut daemons);
    shops.push("good-2");
    shops.steps(2);
    let pods = shops.hub.pods();
    let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == "n02").unwrap();
    shops.hub.report(pod["metadata"]["name"].as_str().unwrap(), "Running", false);
    shops.steps(59);
    assert_eq!(shops.phase(), "Progressing", "{}", shops.status());
    shops.steps(4);
    assert_eq!(shops.phase(), "Stopped");
    assert!(
        shops.message("Stopped").contains("n02 (pods that served do not)"),
        "{}",
        shops.message("Stopped")
    );
}

#[test]
fn pods_that_were_written_without_a_change_of_service_hold_nothing_up() {
    let mut shops = settled(4, json!({"maxUnavailable": 4}));
    let mut daemons = DaemonSets::new(Defaults { pre_pull: false });
    with_daemons(&mut shops, &mut daemons);
    shops.push("good-2");
    shops.steps(12);
    assert_eq!(shops.with("good-2"), 4);
    shops.hub.changes = Some(Vec::new());
    // an agent that restarted reports its pods anew
    for pod in shops.hub.pods() {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        shops.hub.edit(&POD, "n", &name, |pod| pod["status"]["hostIP"] = "192.0.2.7".into());
    }
    shops.push("good-3");
    shops.steps(12);
    assert_eq!(shops.with("good-3"), 4, "{}", shops.status());
}

#[test]
fn one_node_is_out_for_one_reason() {
    let mut shops = settled(4, json!({"maxUnavailable": 1}));
    let mut daemons = DaemonSets::new(Defaults { pre_pull: false });
    with_daemons(&mut shops, &mut daemons);
    // a pod of n00 is replaced just now: the rollout begins with another node
    let pods = shops.hub.pods();
    let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == "n00").unwrap();
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    shops.hub.report(&name, "Running", false);
    shops.push("hangs-2");
    shops.steps(3);
    assert_eq!((shops.with("hangs-2"), shops.text_of(&shops.node("n01"))), (1, "hangs-2".into()));
    shops.hub.report(&name, "Running", true);
    // n01 is on trial: an update of the set takes the other three
    shops.hub.edit(&DAEMON_SET, "n", "d", |set| {
        set["spec"]["template"]["spec"]["containers"][0]["image"] = "i:2".into()
    });
    shops.hub.run_at(&mut daemons, shops.second);
    let ending: BTreeSet<String> = shops
        .hub
        .pods()
        .iter()
        .filter(|pod| pod["metadata"].get("deletionTimestamp").is_some())
        .map(|pod| pod["spec"]["nodeName"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ending, ["n00", "n02", "n03"].map(str::to_owned).into());
    // an update that takes a pod between the rollout's decision and its write comes first
    let mut shops = settled(2, json!({"maxUnavailable": 2}));
    let mut daemons = DaemonSets::new(Defaults { pre_pull: false });
    with_daemons(&mut shops, &mut daemons);
    shops.push("good-2");
    shops.hub.run_at(&mut shops.controller, shops.second);
    assert_eq!(shops.with("good-2"), 2);
    shops.agents();
    shops.push("good-3");
    shops.second += STEP;
    shops.controller.sweep(&shops.hub.index);
    for _ in 0..3 {
        let now = shops.hub.now(shops.second);
        let tasks = shops.controller.reconcile(&shops.hub.index, now).tasks;
        let pods = shops.hub.pods();
        let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == "n00").unwrap();
        shops.hub.report(pod["metadata"]["name"].as_str().unwrap(), "Running", false);
        for task in tasks {
            shops.hub.act(&mut shops.controller, task, now);
        }
    }
    assert_eq!(shops.text_of(&shops.node("n00")), "good-2");
}

#[test]
fn labels_that_nodes_set_are_reported() {
    let mut shops = Shops::new(1, json!({}));
    shops.push("good-1");
    shops.step();
    assert_eq!(shops.message("SelfSetLabels"), "");
    shops.edit(|rollout| rollout["spec"]["selector"]["matchLabels"]["site"] = "hq".into());
    shops.step();
    assert!(shops.message("SelfSetLabels").contains("site"), "{}", shops.status());
    assert_eq!(shops.status()["nodes"]["selected"], 0);
}

#[test]
fn elsewhere_the_assignment_is_an_annotation() {
    let mut shops = Shops::new(2, json!({"maxUnavailable": 2}));
    shops.controller = ConfigRollouts::new(Assignment::Annotation);
    shops.push("good-1");
    shops.second += STEP;
    shops.hub.run_at(&mut shops.controller, shops.second);
    let annotation = |shops: &Shops, key: &str| {
        let node = shops.node("n00");
        node["metadata"]["annotations"][key].as_str().unwrap_or_default().to_owned()
    };
    let source = annotation(&shops, "kedge.dev/config-source");
    assert!(source.contains("\"namespace\":\"kedge-fleet\""), "{source}");
    assert!(shops.node("n00")["spec"].get("configSource").is_none());
    for name in ["n00", "n01"] {
        let status = format!("{{\"assigned\":{source},\"lastKnownGood\":{source}}}");
        shops.hub.edit(&NODE, "", name, |node| {
            node["metadata"]["annotations"]["kedge.dev/config-status"] = status.as_str().into();
            set(node, "ConfigOK", "True", "");
        });
    }
    for _ in 0..8 {
        shops.second += STEP;
        shops.hub.run_at(&mut shops.controller, shops.second);
    }
    assert_eq!(
        (shops.phase(), shops.counts()),
        ("Complete".into(), "2/2 updated, 0 failed".into()),
        "{}",
        shops.status()
    );
}

/// 50 a second, and a look parses only the nodes that changed.
#[test]
fn look_reads_only_what_changed() {
    let mut hub = Hub::with_namespace();
    for name in [FLEET, "default"] {
        hub.create(&NAMESPACE, json!({"metadata": {"name": name}}));
    }
    hub.changes = Some(Vec::new());
    let mut shops =
        Shops { hub, controller: ConfigRollouts::default(), second: 0, most_out: 0, silent: BTreeSet::new() };
    for index in 0..400 {
        shops.add_node(&format!("n{index:03}"), false);
    }
    shops.push("good-1");
    shops.hub.create(&CONFIG_ROLLOUT, rollout(json!({"maxUnavailable": "100%"})));
    shops.controller.sweep(&shops.hub.index);
    shops.second = 10;
    shops.hub.run_at(&mut shops.controller, shops.second);
    assert_eq!(shops.with("good-1"), 50);
    let parsed = shops.controller.parsed;
    shops.second += 1;
    shops.hub.run_at(&mut shops.controller, shops.second);
    assert_eq!(shops.with("good-1"), 100);
    assert!(shops.controller.parsed <= parsed + 110, "{} after {parsed}", shops.controller.parsed);
    // a report of one node
    let parsed = shops.controller.parsed;
    shops.hub.edit(&NODE, "", "n399", |node| set(node, "MemoryPressure", "True", ""));
    shops.second += 1;
    shops.hub.run_at(&mut shops.controller, shops.second);
    // and 50 that were assigned a configuration meanwhile
    assert!(shops.controller.parsed <= parsed + 1 + 110, "{} after {parsed}", shops.controller.parsed);
    assert!(World::list(&shops.hub.index, &POD, "").is_empty());
}

/// Objects read and nodes parsed by each look: after a report of one node, its loss and its return, after an
/// edit, and after the nodes of the first turn were assigned.
fn costs(count: usize) -> Vec<(usize, usize)> {
    let mut hub = Hub::with_namespace();
    for name in [FLEET, "default"] {
        hub.create(&NAMESPACE, json!({"metadata": {"name": name}}));
    }
    hub.changes = Some(Vec::new());
    let (controller, silent) = (ConfigRollouts::default(), BTreeSet::new());
    let mut shops = Shops { hub, controller, second: 0, most_out: 0, silent };
    (0..count).for_each(|index| shops.add_node(&format!("n{index:04}"), false));
    shops.push("good-1");
    shops.hub.create(&CONFIG_ROLLOUT, rollout(json!({"maxUnavailable": "100%", "completeAfter": "0s"})));
    shops.controller.sweep(&shops.hub.index);
    while shops.phase() != "Complete" {
        shops.step();
        assert!(shops.second < 10_000, "{}", shops.status());
    }
    shops.steps(3);
    let mut costs = Vec::new();
    let mut look = |shops: &mut Shops| {
        shops.second += STEP;
        shops.hub.tell(&mut shops.controller);
        let (now, parsed) = (shops.hub.now(shops.second), shops.controller.parsed);
        let world = OneByOne { hub: &shops.hub, reads: Cell::new(0) };
        let tasks = shops.controller.reconcile(&world, now).tasks;
        costs.push((world.reads.get(), shops.controller.parsed - parsed));
        let mut tasks = VecDeque::from(tasks);
        while let Some(task) = tasks.pop_front() {
            tasks.extend(shops.hub.act(&mut shops.controller, task, now));
        }
    };
    shops.hub.edit(&NODE, "", "n0099", |node| set(node, "MemoryPressure", "True", ""));
    look(&mut shops);
    shops.silence("n0098");
    look(&mut shops);
    shops.hear("n0098");
    look(&mut shops);
    shops.push("good-2");
    (0..5).for_each(|_| look(&mut shops));
    assert_eq!(shops.with("good-2"), 150, "three turns");
    costs
}

/// A look costs what changed, however many nodes there are.
#[test]
fn look_reads_as_much_in_a_larger_fleet() {
    let small = costs(160);
    assert!(small.iter().all(|(reads, parsed)| *reads <= 60 && *parsed <= 50), "{small:?}");
    assert_eq!(small[..3].iter().map(|(_, parsed)| *parsed).collect::<Vec<_>>(), [1, 1, 1], "{small:?}");
    assert_eq!(costs(480), small);
}

/// A canary that reports what it did not do hurts itself alone: the other canary still stops the revision.
#[test]
fn node_that_lies_about_a_promotion_hurts_itself_alone() {
    let mut shops = settled(8, json!({"maxUnavailable": 4, "batches": [canary("60s")]}));
    shops.push("bad-2");
    shops.second += STEP;
    shops.hub.run_at(&mut shops.controller, shops.second);
    shops.hub.edit(&NODE, "", "n00", |node| report(node, "good"));
    shops.steps(30);
    assert_eq!((shops.phase(), shops.with("bad-2")), ("Stopped".into(), 2));
    assert!(
        shops.message("Stopped").contains("1 node failed, more than 0: n01"),
        "{}",
        shops.message("Stopped")
    );
}

/// The safe side: a rollout stops. A person sets the node aside, and it counts nowhere.
#[test]
fn node_that_lies_about_a_failure_is_set_aside() {
    let mut shops = settled(8, json!({"maxUnavailable": 4, "batches": [canary("0s")]}));
    shops.push("good-2");
    shops.second += STEP;
    shops.hub.run_at(&mut shops.controller, shops.second);
    shops.hub.edit(&NODE, "", "n00", |node| report(node, "bad"));
    shops.steps(5);
    assert_eq!((shops.phase(), shops.with("good-2")), ("Stopped".into(), 2));
    shops.hub.edit(&NODE, "", "n00", |node| {
        node["metadata"]["annotations"]["fleet.kedge.dev/set-aside"] = "lies".into();
    });
    shops.steps(5);
    assert_eq!(shops.phase(), "Stopped", "it stays stopped until a person says so");
    shops.annotate("fleet.kedge.dev/resume", "1");
    shops.steps(60);
    assert_eq!((shops.phase(), shops.counts()), ("Complete".into(), "7/8 updated, 0 failed".into()));
}

/// Each edit that is seen becomes a revision, and the store keeps few of them; of edits between two looks only
/// the last is seen.
#[test]
fn many_edits_make_few_revisions() {
    let mut shops = settled(4, json!({"maxUnavailable": 1, "batches": [canary("20m")]}));
    for number in 0..1000 {
        shops.push(&format!("good-x{number}"));
        if number % 10 == 9 {
            shops.step();
        }
    }
    shops.steps(5);
    let reached: BTreeSet<String> = shops.nodes().iter().map(|node| shops.text_of(node)).collect();
    // the source, ten of the history, and what nodes have or may fall back to
    assert!(shops.maps() <= 1 + 11 + 2 * 4, "{} ConfigMaps", shops.maps());
    assert!(shops.status()["revisions"].as_array().unwrap().len() <= 11 + 2 * 4);
    assert!(
        reached.contains("good-1") && shops.with("good-1") >= 2,
        "the others wait for the canaries: {reached:?}"
    );
    assert!(shops.reasons().len() < 400, "{}", shops.reasons().len());
}

/// The controller alone, as a stage of the scenarios that also run on a hub and beside another API server.
struct Alone(Option<Shops>);

impl Alone {
    fn shops(&mut self) -> &mut Shops {
        self.0.get_or_insert_with(|| {
            let mut shops = Shops::new(0, json!({}));
            shops.hub.delete(&CONFIG_ROLLOUT, "", "shops", Propagation::Unset);
            shops
        })
    }
}

impl Stage for Alone {
    fn add_nodes(&mut self, count: usize) {
        (0..count).for_each(|index| self.shops().add_node(&format!("n{index}"), index == 0));
    }

    fn create(&mut self, strategy: Value) {
        self.shops().hub.create(&CONFIG_ROLLOUT, rollout(strategy));
    }

    fn push(&mut self, text: &str) {
        self.shops().push(text);
    }

    fn annotate(&mut self, key: &str, value: &str) {
        self.shops().annotate(key, value);
    }

    fn pause(&mut self, is_paused: bool) {
        self.shops().edit(|rollout| rollout["spec"]["paused"] = is_paused.into());
    }

    fn assign_by_hand(&mut self, node: &str) {
        let source = json!({"configMap": {"namespace": "n", "name": "mine", "kubeletConfigKey": "kubelet"}});
        self.shops().hub.edit(&NODE, "", node, |node| node["spec"]["configSource"] = source.clone());
    }

    fn restart(&mut self) {
        self.shops().restart();
    }

    fn step(&mut self) {
        self.shops().step();
    }

    fn status(&mut self) -> Value {
        self.shops().status()
    }

    fn texts(&mut self) -> Vec<String> {
        let shops = self.shops();
        shops.nodes().iter().map(|node| shops.text_of(node)).collect()
    }

    fn patience(&self) -> usize {
        200
    }
}

#[test]
fn scenarios_hold_for_the_controller_alone() {
    rollout_scenarios::all().for_each(|scenario| scenario.run(&mut Alone(None)));
}
