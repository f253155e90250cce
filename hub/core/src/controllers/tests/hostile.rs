//! Harmful but valid DaemonSets, and clients that write fields which only the controller should: nothing
//! grows without bound, other sets keep their pods, and the promises to nodes hold.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Hub;
use super::daemon_sets::{budget, is_live, rolled_out, set};
use crate::controllers::daemon_sets::DaemonSets;
use crate::kinds::{CONTROLLER_REVISION, DAEMON_SET, EVENT, NODE, POD};
use crate::requests::Propagation;

impl Hub {
    fn live_uids(&self) -> BTreeSet<String> {
        let live = self.pods().into_iter().filter(is_live);
        live.map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_owned()).collect()
    }

    /// Lets controller and agents act in turns; returns the largest number of nodes that had no serving pod.
    fn most_out(&mut self, controller: &mut DaemonSets, seconds: std::ops::Range<u64>) -> usize {
        let nodes = self.names(&NODE).len();
        let mut most = 0;
        for second in seconds {
            self.run_at(controller, second);
            let serving =
                self.pods().iter().filter(|pod| is_live(pod) && super::daemon_sets::is_ready(pod)).count();
            most = most.max(nodes.saturating_sub(serving));
            self.agents_act();
        }
        most
    }
}

/// Percentages and numbers of all sorts: the set's own budget bounds the update, and an update always
/// proceeds.
#[test]
fn any_budget_bounds_the_update_and_ends_it() {
    let budgets = [
        (json!("100%"), json!(0), 4),
        (json!(1_000_000), json!(0), 4),
        (json!("1%"), json!(0), 1),
        (json!("51%"), json!(0), 3),
        (json!(0), json!("100%"), 0),
        (json!(0), json!(1_000_000), 0),
        (json!("0%"), json!("1%"), 0),
    ];
    for (unavailable, surge, expect) in budgets {
        let rolling = json!({"maxUnavailable": unavailable, "maxSurge": surge});
        let strategy = json!({"type": "RollingUpdate", "rollingUpdate": rolling});
        let (mut hub, mut controller) = rolled_out(4, |set| set["spec"]["updateStrategy"] = strategy.clone());
        hub.change_image("i:2");
        let most = hub.most_out(&mut controller, 0..40);
        assert_eq!((most, hub.with_image("i:2")), (expect, 4), "{strategy}");
    }
}

#[test]
fn longest_ready_time_waits_at_the_budget() {
    let (mut hub, mut controller) = rolled_out(4, budget(1));
    hub.edit(&DAEMON_SET, "n", "d", |set| set["spec"]["minReadySeconds"] = i32::MAX.into());
    hub.change_image("i:2");
    assert!(hub.most_out(&mut controller, 0..40) <= 1);
    assert_eq!((hub.with_image("i:1"), hub.with_image("i:2")), (3, 1));
}

/// Both select the pods of both: each keeps its own, and an orphan gets one owner.
#[test]
fn sets_that_select_the_same_pods_leave_each_other_alone() {
    let (mut hub, mut controller) = rolled_out(3, |_| {});
    let before = hub.live_uids();
    let mut second = set("i:1");
    second["metadata"]["name"] = "e".into();
    hub.create(&DAEMON_SET, second);
    for second in 0..20 {
        hub.run_at(&mut controller, second);
        hub.agents_act();
    }
    let all = hub.live_uids();
    assert!(all.len() == 6 && all.is_superset(&before), "{all:?}");
    // either may adopt a pod that the other released, and no pod is made and ended in turns
    hub.delete(&DAEMON_SET, "n", "e", Propagation::Orphan);
    hub.run_at(&mut super::garbage::Garbage::default(), 20);
    for second in 20..60 {
        hub.run_at(&mut controller, second);
        hub.agents_act();
    }
    assert_eq!(hub.live_uids(), before, "of two on a node the older one stays");
    let revision = hub.index.revision();
    hub.run_at(&mut controller, 60);
    assert_eq!(hub.index.revision(), revision);
}

/// The history is created again, a stop is derived again from the pods, and no pod is restarted because of
/// it.
#[test]
fn deleted_history_restarts_no_pod() {
    let (mut hub, mut controller) = rolled_out(3, |_| {});
    hub.change_image("i:2");
    hub.most_out(&mut controller, 0..20);
    let before = hub.live_uids();
    for name in hub.names(&CONTROLLER_REVISION) {
        hub.delete(&CONTROLLER_REVISION, "n", &name[2..], Propagation::Unset);
    }
    hub.most_out(&mut controller, 20..40);
    assert_eq!(
        (hub.live_uids(), hub.with_image("i:2"), hub.names(&CONTROLLER_REVISION).len()),
        (before, 3, 1)
    );
}

/// Numbers near the overflow, and records that cannot be parsed.
#[test]
fn history_that_somebody_wrote_stops_no_update() {
    let (mut hub, mut controller) = rolled_out(3, |_| {});
    let name = hub.names(&CONTROLLER_REVISION)[0][2..].to_owned();
    hub.edit(&CONTROLLER_REVISION, "n", &name, |revision| {
        revision["revision"] = i64::MAX.into();
        revision["metadata"]["annotations"] = json!({"kedge.dev/rollout": "[{", "kedge.dev/complete": "-1"});
    });
    for (image, seconds) in [("i:2", 0..20), ("i:1", 20..40), ("i:3", 40..60)] {
        hub.change_image(image);
        assert!(hub.most_out(&mut controller, seconds) <= 1, "{image}");
        assert_eq!((hub.with_image(image), hub.viewed().0.as_str()), (3, "complete"), "{image}");
    }
    let numbers = hub
        .names(&CONTROLLER_REVISION)
        .into_iter()
        .map(|name| hub.value(&CONTROLLER_REVISION, "n", &name[2..])["revision"].as_i64().unwrap());
    let numbers: BTreeSet<i64> = numbers.collect();
    assert_eq!(numbers, BTreeSet::from([1, 2, 3]), "an undo can tell them apart");
    let revision = hub.index.revision();
    hub.run_at(&mut controller, 60);
    assert_eq!(hub.index.revision(), revision, "nothing is written again and again");
}

/// Changed labels: of those by which a pod is found, selected, and known as up to date.
#[test]
fn labels_that_somebody_changes_cost_one_pod_each() {
    let (mut hub, mut controller) = rolled_out(3, budget(1));
    let name = |hub: &Hub| hub.pods()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    for (key, value) in [
        ("app", json!("other")),
        ("controller-revision-hash", json!("made-up")),
        ("pod-template-generation", json!("99999999999999999999")),
        ("controller-revision-hash", Value::Null),
    ] {
        let changed = name(&hub);
        hub.edit(&POD, "n", &changed, |pod| {
            pod["metadata"]["labels"][key] = value.clone();
            if value.is_null() {
                pod["metadata"]["labels"].as_object_mut().unwrap().remove(key);
            }
        });
        assert!(hub.most_out(&mut controller, 0..30) <= 1, "{key}");
        let of_the_set = hub.pods().iter().filter(|pod| pod["metadata"]["labels"]["app"] == "d").count();
        assert_eq!(of_the_set, 3, "{key}");
        if key == "app" {
            hub.delete(&POD, "n", &changed, Propagation::Unset);
            hub.confirm(&changed);
        }
    }
}

/// Pods that name the set as their controller, though the set did not make them.
#[test]
fn forged_pods_displace_none_of_the_set() {
    let (mut hub, mut controller) = rolled_out(2, |_| {});
    let before = hub.live_uids();
    let of = hub.pods()[0].clone();
    for (name, node) in [("a", Some("node-0")), ("b", None), ("c", Some("nowhere"))] {
        let mut forged = json!({"metadata": {"namespace": "n", "name": name, "labels": of["metadata"]["labels"],
            "ownerReferences": of["metadata"]["ownerReferences"]}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
        if let Some(node) = node {
            forged["spec"]["nodeName"] = node.into();
        }
        hub.create(&POD, forged);
    }
    hub.most_out(&mut controller, 0..30);
    assert!(hub.live_uids().is_superset(&before), "the oldest stays");
    hub.change_image("i:2");
    assert!(hub.most_out(&mut controller, 30..60) <= 1);
    let own = hub
        .pods()
        .into_iter()
        .filter(|pod| pod["spec"]["nodeName"].as_str().is_some_and(|node| node != "nowhere"));
    assert!(own.map(|pod| pod["spec"]["containers"][0]["image"].clone()).eq(["i:2", "i:2"]));
}

/// Each look at them is bounded, and so are the Events about them.
#[test]
fn pods_that_fail_for_ever_are_made_ever_more_slowly() {
    const NODES: usize = 40;
    let (mut hub, mut controller) = rolled_out(NODES, |_| {});
    let mut made = hub.live_uids();
    for second in (100..4000).step_by(5) {
        for pod in hub.pods() {
            let name = pod["metadata"]["name"].as_str().unwrap();
            match is_live(&pod) {
                true => hub.report(name, "Failed", false),
                false if super::daemon_sets::is_terminating(&pod) => hub.confirm(name),
                false => {}
            }
        }
        hub.run_at(&mut controller, second);
        made.extend(hub.live_uids());
    }
    // after 1, 2, 4, ... 512 s, in sum 1,023, and each 900 s afterwards: with the first one 15 in 3,900 s
    assert!((12 * NODES..=15 * NODES).contains(&made.len()), "{} pods of {NODES} nodes", made.len());
    let told = hub.names(&EVENT).len();
    assert!(told < 15 * 20, "{told} Events");
}

/// Values without a meaning, one after the other: each is reported once, and the update keeps to its budget.
#[test]
fn absurd_annotations_keep_the_budget() {
    let (mut hub, mut controller) = rolled_out(4, budget(1));
    let keys = [
        "max-failures",
        "progress-deadline",
        "pre-pull",
        "rollback-on-failure",
        "canary-soak",
        "complete-after",
        "resume",
        "set-aside",
    ];
    let long = "9".repeat(5000);
    let values = ["-1", "1e400", "%", "101%", "\u{0}", "💥", "null", "[]", "18446744073709551616", &*long];
    let mut second = 0;
    for (number, value) in values.into_iter().enumerate() {
        for key in keys {
            let key = format!("kedge.dev/{key}");
            hub.edit(&DAEMON_SET, "n", "d", |set| set["metadata"]["annotations"][&key] = value.into());
        }
        hub.change_image(&format!("i:{}", number + 2));
        assert!(hub.most_out(&mut controller, second..second + 20) <= 1, "{value:.20}");
        assert_eq!(hub.with_image(&format!("i:{}", number + 2)), 4, "{value:.20}");
        second += 20;
    }
    let longest = hub
        .names(&EVENT)
        .iter()
        .map(|name| hub.value(&EVENT, "n", &name[2..])["message"].as_str().unwrap().len())
        .max();
    assert!(longest.is_some_and(|bytes| bytes < 500), "{longest:?}");
}

/// Upstream's conformance test of ControllerRevisions makes a second one of the same template, and deletes
/// it.
#[test]
fn double_of_a_revision_stays_for_its_maker() {
    let (mut hub, mut controller) = rolled_out(1, |_| {});
    let name = hub.names(&CONTROLLER_REVISION)[0][2..].to_owned();
    let mut double = hub.value(&CONTROLLER_REVISION, "n", &name);
    double["metadata"] = json!({
        "name": "double", "namespace": "n", "labels": double["metadata"]["labels"],
        "ownerReferences": double["metadata"]["ownerReferences"]});
    double["revision"] = 0.into();
    hub.create(&CONTROLLER_REVISION, double);
    hub.run_at(&mut controller, 100);
    assert_eq!(hub.names(&CONTROLLER_REVISION).len(), 2, "who made it finds it");
    hub.run_at(&mut controller, 103);
    assert_eq!(hub.names(&CONTROLLER_REVISION), [format!("n/{name}")]);
}
