//! Pods and the NoExecute taints of their nodes, on the state alone.

use std::time::Duration;

use serde_json::{Value, json};

use super::Hub;
use crate::controllers::taint_eviction::TaintEviction;
use crate::controllers::{Controller, Now, pods};
use crate::kinds::{EVENT, NODE, POD};
use kedge_api::UNREACHABLE_TAINT;
use kedge_rig::Random;

const LOST: &str = UNREACHABLE_TAINT;

fn on(name: &str, node: &str, tolerations: Value) -> Value {
    json!({"metadata": {"namespace": "n", "name": name},
        "spec": {"nodeName": node, "tolerations": tolerations, "containers": [{"name": "c", "image": "i"}]}})
}

fn for_ever(key: &str) -> Value {
    json!({"key": key, "operator": "Exists", "effect": "NoExecute"})
}

impl Hub {
    fn taint(&mut self, node: &str, keys: &[&str]) {
        let taints: Vec<Value> = keys.iter().map(|key| json!({"key": key, "effect": "NoExecute"})).collect();
        self.edit(&NODE, "", node, |node| node["spec"]["taints"] = taints.clone().into());
    }

    /// The terminating pods.
    fn ending(&self) -> Vec<String> {
        let mut names = self.names(&POD);
        names.retain(|name| {
            let pod = self.value(&POD, "n", name.trim_start_matches("n/"));
            pod["metadata"].get("deletionTimestamp").is_some()
        });
        names
    }

    fn said(&self) -> Vec<String> {
        let names = self.names(&EVENT);
        let events = names.iter().map(|name| self.value(&EVENT, "n", name.trim_start_matches("n/")));
        let mut said: Vec<String> = events
            .map(|event| format!("{} {}", event["reason"], event["message"]).replace('"', ""))
            .collect();
        said.sort();
        said
    }
}

/// Finding F5: the pods of a lost node are not shown as ready, and end after their tolerations.
#[test]
fn pods_of_a_lost_node_are_not_ready_and_end() {
    let mut hub = Hub::fleet(&[("a", "1")]);
    hub.create(&POD, on("p", "a", json!([])));
    hub.create(&POD, on("daemon", "a", json!([for_ever(LOST)])));
    hub.edit(&POD, "n", "p", |pod| {
        pod["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    });
    let (mut readiness, mut eviction) = (pods::Pods::default(), TaintEviction::default());
    hub.run(&mut readiness);
    hub.edit(&NODE, "", "a", |node| {
        node["status"]["conditions"] = json!([{"type": "Ready", "status": "Unknown"}]);
    });
    hub.taint("a", &[LOST]);
    hub.run(&mut readiness);
    assert_eq!(hub.value(&POD, "n", "p")["status"]["conditions"][0]["status"], "False");
    hub.run_at(&mut eviction, 100);
    hub.run_at(&mut eviction, 399);
    assert_eq!(hub.ending(), Vec::<String>::new());
    hub.run_at(&mut eviction, 400);
    assert_eq!(hub.ending(), ["n/p"], "it stays until its node confirms the end");
    assert_eq!(hub.said(), ["TaintManagerEviction Marking for deletion Pod n/p"]);
    let pod = hub.value(&POD, "n", "p");
    let why = crate::value::condition(&pod["status"], "DisruptionTarget").unwrap();
    assert_eq!((&why["status"], &why["reason"]), (&json!("True"), &json!("DeletionByTaintManager")));
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 30);
    hub.run_at(&mut eviction, 9_999);
    assert_eq!((hub.ending().len(), hub.said().len()), (1, 1), "once");
}

#[test]
fn pod_is_kept_when_its_node_is_back_in_time() {
    let mut hub = Hub::fleet(&[("a", "1")]);
    hub.create(&POD, on("p", "a", json!([])));
    let mut eviction = TaintEviction::default();
    hub.taint("a", &[LOST]);
    hub.run_at(&mut eviction, 100);
    hub.taint("a", &[]);
    hub.run_at(&mut eviction, 399);
    assert_eq!(hub.said(), ["TaintManagerEviction Cancelling deletion of Pod n/p"]);
    hub.run_at(&mut eviction, 500);
    // the time starts again from zero
    hub.taint("a", &[LOST]);
    hub.run_at(&mut eviction, 600);
    hub.run_at(&mut eviction, 899);
    assert_eq!(hub.ending(), Vec::<String>::new());
    // the node is back at the last moment, after the decision
    let now = hub.now(900);
    let mut tasks = eviction.reconcile(&hub.index, now).tasks;
    hub.taint("a", &[]);
    while let Some(task) = tasks.pop() {
        tasks.extend(hub.act(&mut eviction, task, now));
    }
    hub.run_at(&mut eviction, 901);
    assert_eq!(hub.ending(), Vec::<String>::new());
}

#[test]
fn taint_of_an_administrator_ends_pods_at_once() {
    let mut hub = Hub::fleet(&[("a", "1"), ("b", "1")]);
    for (name, node, tolerations) in [
        ("at-once", "a", json!([])),
        (
            "later",
            "a",
            json!([{"key": "mine", "operator": "Exists", "tolerationSeconds": 7, "effect": "NoExecute"}]),
        ),
        ("never", "a", json!([for_ever("mine")])),
        ("elsewhere", "b", json!([])),
    ] {
        hub.create(&POD, on(name, node, tolerations));
    }
    let mut mirror = on("mirror", "a", json!([]));
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    hub.create(&POD, mirror);
    hub.taint("a", &["mine"]);
    let mut eviction = TaintEviction::default();
    hub.run_at(&mut eviction, 0);
    assert_eq!(hub.ending(), ["n/at-once"]);
    // a pod that is bound to a node which already has the taint
    hub.create(&POD, on("new", "a", json!([])));
    hub.run_at(&mut eviction, 6);
    assert_eq!(hub.ending(), ["n/at-once", "n/new"]);
    hub.run_at(&mut eviction, 7);
    assert_eq!(hub.ending(), ["n/at-once", "n/later", "n/new"]);
}

#[test]
fn stall_of_the_hub_does_not_shorten_a_toleration() {
    let mut hub = Hub::fleet(&[("a", "1")]);
    hub.create(&POD, on("p", "a", json!([])));
    hub.taint("a", &[LOST]);
    let mut eviction = TaintEviction::default();
    hub.run_at(&mut eviction, 0);
    let stalled = Now { stalled: Duration::from_secs(200), ..hub.now(310) };
    assert!(eviction.reconcile(&hub.index, stalled).tasks.is_empty());
    hub.run_at(&mut eviction, 499);
    assert_eq!(hub.ending(), Vec::<String>::new());
    hub.run_at(&mut eviction, 500);
    assert_eq!(hub.ending(), ["n/p"]);
}

#[test]
fn refused_end_is_tried_again_after_a_pause() {
    let mut hub = Hub::fleet(&[("a", "1")]);
    hub.create(&POD, on("p", "a", json!([])));
    hub.taint("a", &["mine"]);
    let mut eviction = TaintEviction::default();
    eviction.sweep(&hub.index);
    let at = |hub: &mut Hub, second| hub.now(second);
    let (first, soon, later) = (at(&mut hub, 0), at(&mut hub, 4), at(&mut hub, 5));
    let task = eviction.reconcile(&hub.index, first).tasks.pop().unwrap();
    let full = crate::api_error::ApiError::unavailable("full");
    assert!(eviction.performed(task.purpose, Err(full), first).is_empty());
    assert_eq!(eviction.take_log(first).len(), 1);
    assert!(eviction.reconcile(&hub.index, soon).tasks.is_empty());
    assert_eq!(eviction.reconcile(&hub.index, later).tasks.len(), 1);
}

/// Nodes get and lose taints at random: no pod ends before its node had the taint for the whole of its
/// toleration, and each ends then.
#[test]
fn no_pod_ends_before_its_time() {
    let mut ended = 0;
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let mut hub = Hub::fleet(&[("n0", "1"), ("n1", "1"), ("n2", "1")]);
        let mut eviction = TaintEviction::default();
        let mut tainted = [None::<u64>; 3];
        let mut pods: Vec<(String, usize, u64, u64)> = Vec::new();
        for second in (0..2_000).step_by(10) {
            let node = random.index(3);
            match random.index(8) {
                0 | 1 => {
                    let is_new = tainted[node].is_none();
                    tainted[node] = is_new.then_some(second);
                    hub.taint(&format!("n{node}"), if is_new { &[LOST] } else { &[] });
                }
                2 => {
                    let (name, bears) = (format!("p{second}"), [0, 40, 300][random.index(3)]);
                    let toleration = json!([{"key": LOST, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": bears}]);
                    hub.create(&POD, on(&name, &format!("n{node}"), toleration));
                    pods.push((name, node, bears, second));
                }
                _ => {}
            }
            hub.run_at(&mut eviction, second);
            let ending = hub.ending();
            pods.retain(|(name, node, bears, made)| {
                let due = tainted[*node].map(|since| since.max(*made) + bears);
                let ends = ending.contains(&format!("n/{name}"));
                assert_eq!(ends, due.is_some_and(|due| due <= second), "seed {seed} second {second} {name}");
                ended += usize::from(ends);
                !ends
            });
        }
    }
    assert!(ended > 30, "it shows nothing: {ended}");
}
