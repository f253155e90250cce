//! Nodes that are drained before an update stops the pod of a DaemonSet there, and nodes that its pods do not fit.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::Hub;
use super::daemon_sets::{budget, is_live, is_ready, is_terminating, rolled_out};
use crate::controllers::Controller as _;
use crate::controllers::daemon_sets::DaemonSets;
use crate::kinds::{DAEMON_SET, NODE, POD};
use crate::requests::Propagation;
use crate::value::condition;

const DRAIN: &str = "kedge.dev/drain-before-update";

/// Three nodes, one at a time, each with a pod `w-N` of a controller.
fn drained(change: impl FnOnce(&mut Hub)) -> (Hub, DaemonSets) {
    let (mut hub, controller) = rolled_out(3, |set| {
        budget(1)(set);
        set["metadata"]["annotations"][DRAIN] = "true".into();
    });
    for index in 0..3 {
        hub.workload(index, "w", true);
    }
    change(&mut hub);
    hub.agents_act();
    hub.change_image("i:2");
    (hub, controller)
}

impl Hub {
    fn workload(&mut self, index: usize, name: &str, has_controller: bool) {
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "w", "uid": "u-w", "controller": true});
        let owners = if has_controller { json!([owner]) } else { json!([]) };
        let name = format!("{name}-{index}");
        self.create(
            &POD,
            json!({"metadata": {"namespace": "n", "name": name, "ownerReferences": owners},
            "spec": {"nodeName": format!("node-{index}"), "containers": [{"name": "c", "image": "w"}]}}),
        );
    }

    fn cordoned(&self) -> Vec<String> {
        let nodes = (0..3).map(|index| format!("node-{index}"));
        nodes.filter(|name| self.value(&NODE, "", name)["spec"]["unschedulable"] == true).collect()
    }

    fn workloads(&self) -> Vec<String> {
        let pods = self.pods().into_iter().filter(|pod| pod["spec"]["containers"][0]["image"] == "w");
        pods.filter(is_live).map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    /// The daemon pod of a node serves.
    fn serves(&self, node: &str) -> bool {
        let is_daemon = |pod: &Value| pod["metadata"]["labels"]["app"] == "d";
        self.pods().iter().any(|pod| {
            is_daemon(pod) && pod["spec"]["nodeName"] == *node && is_ready(pod) && !is_terminating(pod)
        })
    }

    /// No workload is on a node while its daemon pod does not serve.
    #[track_caller]
    fn check_drained(&self) {
        for index in 0..3 {
            let node = format!("node-{index}");
            if !self.serves(&node) {
                let left: Vec<String> = self.workloads();
                assert!(!left.contains(&format!("w-{index}")), "{node}: {left:?}");
                assert!(self.cordoned().contains(&node), "{node} takes new pods");
            }
        }
    }
}

#[test]
fn node_is_cordoned_and_emptied_before_its_pod_is_stopped() {
    let (mut hub, mut controller) = drained(|hub| {
        // one that a person cordoned stays so
        hub.edit(&NODE, "", "node-2", |node| node["spec"]["unschedulable"] = true.into());
    });
    let mut most = 0;
    for second in 100..200 {
        hub.run_at(&mut controller, second);
        hub.check_drained();
        most = most.max(hub.cordoned().iter().filter(|node| *node != "node-2").count());
        hub.agents_act();
    }
    assert_eq!((hub.with_image("i:2"), most), (3, 1), "{:?}", hub.running());
    assert_eq!((hub.cordoned(), hub.workloads()), (vec!["node-2".to_owned()], Vec::<String>::new()));
    for index in 0..3 {
        let annotations = &hub.value(&NODE, "", &format!("node-{index}"))["metadata"]["annotations"];
        assert!(annotations["kedge.dev/drained-for"].is_null(), "{annotations}");
    }
}

/// It would be gone for good.
#[test]
fn pod_without_a_controller_is_waited_for() {
    let (mut hub, mut controller) = drained(|hub| hub.workload(0, "alone", false));
    for second in 100..120 {
        hub.run_at(&mut controller, second);
        hub.agents_act();
    }
    assert_eq!((hub.with_image("i:2"), hub.cordoned()), (0, vec!["node-0".to_owned()]));
    assert!(hub.workloads().contains(&"alone-0".to_owned()));
    assert_eq!(hub.reasons().iter().filter(|reason| *reason == "DrainWaits").count(), 1);
    let waits = hub.viewed().2;
    assert!(waits.iter().any(|row| row.contains("its node is drained first")), "{waits:?}");
    hub.annotate(DRAIN, "force");
    for second in 120..180 {
        hub.run_at(&mut controller, second);
        hub.check_drained();
        hub.agents_act();
    }
    assert_eq!((hub.with_image("i:2"), hub.cordoned().len()), (3, 0));
    assert!(!hub.workloads().contains(&"alone-0".to_owned()));
}

#[test]
fn paused_or_deleted_set_lets_its_node_go() {
    let waiting = || {
        let (mut hub, mut controller) = drained(|hub| hub.workload(0, "alone", false));
        hub.run_at(&mut controller, 100);
        assert_eq!(hub.cordoned(), ["node-0"]);
        (hub, controller)
    };
    let (mut hub, mut controller) = waiting();
    hub.annotate("kedge.dev/paused", "true");
    hub.run_at(&mut controller, 101);
    assert_eq!((hub.cordoned().len(), hub.serves("node-0")), (0, true));
    let (mut hub, mut controller) = waiting();
    hub.delete(&DAEMON_SET, "n", "d", Propagation::Orphan);
    hub.run(&mut super::garbage::Garbage::default());
    hub.run_at(&mut controller, 101);
    assert_eq!(hub.cordoned().len(), 0);
    // a hub that was away meanwhile
    let (mut hub, _) = waiting();
    hub.edit(&DAEMON_SET, "n", "d", |set| {
        set["spec"]["template"]["spec"]["nodeSelector"] = json!({"none": "such"});
    });
    let mut controller = DaemonSets::default();
    for second in 101..104 {
        hub.run_at(&mut controller, second);
        hub.agents_act();
    }
    assert_eq!(hub.cordoned().len(), 0);
}

/// The controller forgets everything after each number of writes.
#[test]
fn killed_hub_goes_on_draining() {
    for writes in 1..4 {
        let (mut hub, mut controller) = drained(|_| {});
        for second in 100..220 {
            let now = hub.now(second);
            controller.sweep(&hub.index);
            let mut tasks = VecDeque::from(controller.reconcile(&hub.index, now).tasks);
            for _ in 0..writes {
                if let Some(task) = tasks.pop_front() {
                    tasks.extend(hub.act(&mut controller, task, now));
                }
            }
            hub.check_drained();
            controller = DaemonSets::default();
            hub.agents_act();
        }
        assert_eq!((hub.with_image("i:2"), hub.cordoned().len()), (3, 0), "after {writes} writes");
    }
}

#[test]
fn node_that_the_pod_does_not_fit_is_named() {
    let (mut hub, mut controller) = rolled_out(3, budget(1));
    hub.change_image("i:2");
    let shown = |hub: &Hub| {
        let status = hub.value(&DAEMON_SET, "n", "d")["status"].clone();
        let found = condition(&status, "PodsDoNotFit").cloned().unwrap_or_default();
        format!(
            "{} {}",
            found["status"].as_str().unwrap_or("-"),
            found["message"].as_str().unwrap_or_default()
        )
    };
    for second in 0..200 {
        hub.run_at(&mut controller, second);
        for pod in hub.pods() {
            let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
            let is_new = pod["spec"]["containers"][0]["image"] == "i:2";
            if is_terminating(&pod) {
                hub.confirm(&name);
            } else if is_new && pod["spec"]["nodeName"] == "node-1" && second < 60 {
                hub.edit(&POD, "n", &name, |pod| {
                    pod["status"] = json!({"phase": "Failed", "reason": "OutOfmemory", "qosClass": "BestEffort",
                        "message": "Node didn't have enough resource: memory, requested: 9, used: 1, capacity: 2"});
                });
            } else if !is_ready(&pod) {
                hub.report(&name, "Running", true);
            }
        }
        if (40..60).contains(&second) {
            let expect = "True its pods do not fit these nodes: node-1 (OutOfmemory: Node didn't have enough";
            assert!(shown(&hub).starts_with(expect), "second {second}: {}", shown(&hub));
        }
    }
    assert_eq!((hub.with_image("i:2"), shown(&hub).as_str()), (3, "False "));
    assert_eq!(hub.reasons().iter().filter(|reason| *reason == "DoesNotFit").count(), 1);
}
