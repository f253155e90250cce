//! Points of the design document of DaemonSet updates that no other test shows; docs/guides/rollouts.md names
//! the test of each point.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Hub;
use super::daemon_sets::{budget, is_ready, is_terminating, rolled_out, set};
use crate::controllers::daemon_sets::DaemonSets;
use crate::controllers::{Action, Controller as _, Edit, World};
use crate::kinds::{DAEMON_SET, Kind, NODE, POD};
use crate::object::Object;
use crate::requests::{Objects, Propagation};
use crate::selector::Selection;

impl Hub {
    fn label(&mut self, node: &str, value: &str) {
        self.edit(&NODE, "", node, |node| node["metadata"]["labels"] = json!({"role": value}));
    }

    fn take_turns(&mut self, controller: &mut DaemonSets) {
        for _ in 0..8 {
            self.run(controller);
            self.agents_act();
        }
    }
}

fn on(nodes: &[(&str, &str)]) -> BTreeMap<String, Vec<String>> {
    nodes.iter().map(|(node, image)| ((*node).to_owned(), vec![(*image).to_owned()])).collect()
}

#[test]
fn update_touches_only_nodes_with_the_label() {
    let (mut hub, mut controller) = (Hub::with_nodes(3), DaemonSets::default());
    hub.label("node-0", "clock");
    hub.label("node-1", "clock");
    let mut value = set("i:1");
    value["spec"]["template"]["spec"]["nodeSelector"] = json!({"role": "clock"});
    hub.create(&DAEMON_SET, value);
    hub.take_turns(&mut controller);
    assert_eq!(hub.running(), on(&[("node-0", "i:1"), ("node-1", "i:1")]));
    hub.change_image("i:2");
    hub.take_turns(&mut controller);
    assert_eq!(hub.running(), on(&[("node-0", "i:2"), ("node-1", "i:2")]));
    hub.label("node-2", "clock");
    hub.label("node-0", "other");
    hub.take_turns(&mut controller);
    assert_eq!(hub.running(), on(&[("node-1", "i:2"), ("node-2", "i:2")]));
}

#[test]
fn pod_that_does_not_fit_runs_once_there_is_room() {
    const ROOM_FROM: u64 = 60;
    let (mut hub, mut controller) = rolled_out(3, budget(1));
    hub.change_image("i:2");
    for second in 0..200 {
        hub.run_at(&mut controller, second);
        for pod in hub.pods() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (name, node) = (text(&pod["metadata"]["name"]), text(&pod["spec"]["nodeName"]));
            let is_new = pod["spec"]["containers"][0]["image"] == "i:2";
            let has_failed = pod["status"]["phase"] == "Failed";
            match (is_terminating(&pod), node == "node-1" && is_new && second < ROOM_FROM) {
                (true, _) => hub.confirm(&name),
                (false, true) if !has_failed => hub.report(&name, "Failed", false),
                (false, false) if !has_failed && !is_ready(&pod) => hub.report(&name, "Running", true),
                _ => {}
            }
        }
        if second + 1 == ROOM_FROM {
            assert_eq!(hub.with_image("i:2"), 1, "it waits at its budget: {:?}", hub.running());
        }
    }
    assert_eq!(hub.with_image("i:2"), 3, "{:?}", hub.running());
}

#[test]
fn nodes_that_come_and_go_get_one_pod_at_most() {
    let (mut hub, mut controller) = rolled_out(3, |_| {});
    hub.delete(&NODE, "", "node-1", Propagation::Unset);
    hub.create(&NODE, json!({"metadata": {"name": "node-9"}}));
    hub.mark("node-9", "True");
    hub.run(&mut controller);
    hub.create(&NODE, json!({"metadata": {"name": "node-1"}}));
    hub.mark("node-1", "True");
    for image in ["i:2", "i:3"] {
        hub.change_image(image);
        for _ in 0..12 {
            hub.run(&mut controller);
            let crowded = hub.running().into_iter().find(|(_, images)| images.len() > 1);
            assert_eq!(crowded, None);
            hub.agents_act();
        }
        let expect = ["node-0", "node-1", "node-2", "node-9"].map(|node| (node, image));
        assert_eq!(hub.running(), on(&expect));
    }
}

/// A world that counts the objects read: the cost of a look must not depend on how many exist.
pub(super) struct OneByOne<'a> {
    pub(super) hub: &'a Hub,
    pub(super) reads: Cell<usize>,
}

impl Objects for OneByOne<'_> {
    fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.reads.set(self.reads.get() + 1);
        self.hub.index.get(kind, namespace, name)
    }

    fn pods_of(&self, _: &str) -> Vec<Arc<Object>> {
        panic!("all pods of an account")
    }
}

impl World for OneByOne<'_> {
    fn list(&self, kind: &'static Kind, _: &str) -> Vec<Arc<Object>> {
        panic!("all {}", kind.plural)
    }

    fn select(&self, kind: &'static Kind, _: &Selection) -> Vec<Arc<Object>> {
        panic!("selected {}", kind.plural)
    }

    fn dependents(&self, _: &str) -> Vec<(&'static Kind, Arc<Object>)> {
        panic!("all dependents")
    }

    fn charged(&self, _: &str, kind: &'static Kind) -> Vec<Arc<Object>> {
        panic!("all charged {}", kind.plural)
    }

    fn lost_owners(&self) -> Vec<String> {
        panic!("all owners")
    }

    fn terminating(&self) -> Vec<(&'static Kind, Arc<Object>)> {
        panic!("all that end")
    }

    fn in_namespace(&self, _: &str) -> Vec<(&'static Kind, Arc<Object>)> {
        panic!("all of a namespace")
    }

    fn namespaces_in_use(&self) -> BTreeSet<String> {
        panic!("all namespaces")
    }

    fn values(&self, _: &'static Kind, _: usize) -> Vec<String> {
        panic!("all values")
    }
}

/// Objects read and nodes judged after each change of a pod or a node, in a set at rest and in an update.
fn costs(nodes: usize) -> Vec<(usize, usize)> {
    let (mut hub, mut controller) = rolled_out(nodes, budget(1));
    controller.is_measured = true;
    hub.changes = Some(Vec::new());
    let mut costs = Vec::new();
    let mut look = |hub: &mut Hub| {
        hub.tell(&mut controller);
        let (now, before) = (hub.now(1), controller.judged);
        let world = OneByOne { hub, reads: Cell::new(0) };
        let tasks = controller.reconcile(&world, now).tasks;
        costs.push((world.reads.get(), controller.judged - before));
        tasks.into_iter().for_each(|task| drop(hub.act(&mut controller, task, now)));
    };
    let pod_on = |hub: &Hub, node: &str| {
        let pod = hub.pods().into_iter().find(|pod| pod["spec"]["nodeName"] == node).unwrap();
        pod["metadata"]["name"].as_str().unwrap().to_owned()
    };
    let pod = pod_on(&hub, "node-1");
    for ready in [false, true] {
        hub.report(&pod, "Running", ready);
        look(&mut hub);
    }
    hub.mark("node-2", "Unknown");
    look(&mut hub);
    hub.mark("node-2", "True");
    look(&mut hub);
    hub.create(&POD, json!({"metadata": {"namespace": "n", "name": "other"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}));
    look(&mut hub);
    // all nodes once because of the new template, and then those that have their turn
    hub.change_image("i:2");
    (0..3).for_each(|_| look(&mut hub));
    for _ in 0..3 {
        hub.agents_act();
        look(&mut hub);
        look(&mut hub);
    }
    costs
}

#[test]
fn change_costs_the_same_however_many_nodes_there_are() {
    let few = costs(5);
    assert_eq!(few, costs(60));
    assert!(few.iter().all(|(reads, judged)| *reads <= 6 && *judged <= 3), "{few:?}");
}

/// The state that every pod of a set enters in turns.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Turns {
    /// Crashes, and is started again: ready, or not.
    Crashes,
    /// Is never ready.
    Hangs,
    /// Its node is lost.
    IsLost,
    /// Ended by itself, and waits to be replaced.
    Fails,
}

impl Hub {
    fn crash(&mut self, pod: &str, is_up: bool) {
        let state = match is_up {
            true => json!({"running": {}}),
            false => json!({"waiting": {"reason": "CrashLoopBackOff"}}),
        };
        let container =
            json!({"state": state, "restartCount": 4, "lastState": {"terminated": {"exitCode": 1}}});
        self.report(pod, "Running", is_up);
        self.edit(&POD, "n", pod, |pod| pod["status"]["containerStatuses"] = json!([container]));
    }
}

/// Nodes judged after each of several changes in a set with all pods in this state, where no update can fail
/// because of it: the first revision, or one that was complete before.
fn judged_in_trouble(nodes: usize, was_complete: bool, turns: Turns) -> Vec<usize> {
    let (mut hub, mut controller) = match was_complete {
        true => rolled_out(nodes, |_| {}),
        false => {
            let (mut hub, mut controller) = (Hub::with_nodes(nodes), DaemonSets::default());
            hub.create(&DAEMON_SET, set("i:1"));
            hub.run(&mut controller);
            (hub, controller)
        }
    };
    hub.changes = Some(Vec::new());
    let names: Vec<String> =
        hub.pods().iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect();
    for (index, name) in names.iter().enumerate() {
        match turns {
            Turns::Crashes => hub.crash(name, index % 2 == 0),
            Turns::Hangs => hub.report(name, "Running", false),
            Turns::Fails => hub.report(name, "Failed", false),
            Turns::IsLost => {
                hub.report(name, "Running", false);
                hub.mark(&format!("node-{index}"), "Unknown");
            }
        }
    }
    // after the progress deadline; the failed pods were made again, and fail again
    let mut second = 1000;
    hub.run_at(&mut controller, second);
    if turns == Turns::Fails {
        hub.run_at(&mut controller, second);
        let pods = hub.pods();
        pods.iter().for_each(|pod| hub.report(pod["metadata"]["name"].as_str().unwrap(), "Failed", false));
    }
    hub.run_at(&mut controller, second);
    hub.run_at(&mut controller, second);
    let of_node_1 = |hub: &Hub| {
        let pod = hub.pods().into_iter().find(|pod| pod["spec"]["nodeName"] == "node-1").unwrap();
        pod["metadata"]["name"].as_str().unwrap().to_owned()
    };
    let mut judged = Vec::new();
    for turn in 0..4 {
        second += u64::from(turns != Turns::Fails);
        let name = of_node_1(&hub);
        match turns {
            Turns::Crashes => hub.crash(&name, turn % 2 == 0),
            _ => hub.edit(&POD, "n", &name, |pod| {
                pod["metadata"]["annotations"] = json!({"turn": turn.to_string()});
            }),
        }
        let before = controller.judged;
        hub.run_at(&mut controller, second);
        judged.push(controller.judged - before);
    }
    assert_eq!(hub.pods().len(), nodes);
    judged
}

#[test]
fn trouble_everywhere_costs_a_change_no_more() {
    for was_complete in [false, true] {
        for turns in [Turns::Crashes, Turns::Hangs, Turns::IsLost, Turns::Fails] {
            let few = judged_in_trouble(5, was_complete, turns);
            assert_eq!(few, judged_in_trouble(60, was_complete, turns), "{turns:?}, {was_complete}");
            assert!(few.iter().all(|judged| *judged <= 3), "{turns:?}, {was_complete}: {few:?}");
        }
    }
}

/// The controller's time for one changed pod, among so many others: `cargo test --release -p kedge-hub-core
/// cost_of -- --ignored --nocapture`.
#[test]
#[ignore = "prints figures, and judges nothing"]
#[allow(clippy::disallowed_methods, reason = "it measures")]
fn cost_of_one_changed_pod() {
    const CHANGES: u32 = 20;
    for nodes in [100, 1000, 10_000] {
        let (mut hub, mut controller) = rolled_out(nodes, |_| {});
        controller.is_measured = true;
        let names: Vec<String> = hub.names(&POD);
        let mut took = Duration::ZERO;
        for name in names.iter().cycle().step_by(7).take(CHANGES as usize) {
            let mut mark = hub.random.to_string();
            mark.push_str(name);
            let edit: Edit = Box::new(move |pod, _| {
                pod["metadata"]["annotations"] = json!({"mark": mark});
                true
            });
            let (namespace, name) = ("n".to_owned(), name.trim_start_matches("n/").to_owned());
            let changed = Action::Update { kind: &POD, namespace, name, edit, requires: Vec::new() };
            for (kind, event) in hub.perform(changed).unwrap() {
                controller.observe(kind, &event);
            }
            let now = hub.now(1);
            let begin = Instant::now();
            let decision = controller.reconcile(&hub.index, now);
            took += begin.elapsed();
            assert!(decision.tasks.is_empty(), "nothing to do");
        }
        eprintln!("{nodes} nodes: {} us for each changed pod", (took / CHANGES).as_micros());
    }
}
