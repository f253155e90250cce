//! DaemonSets on the state alone: these tests play the nodes and their agents, as the API shows them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Hub, garbage};
use crate::controllers::Action;
use crate::controllers::daemon_sets::{DaemonSets, Defaults};
use crate::kinds::{CONTROLLER_REVISION, DAEMON_SET, EVENT, NAMESPACE, NODE, POD};
use crate::requests::{DeleteOptions, Propagation};
use kedge_rig::Random;

/// Most nodes without a serving pod that the random walk may cause by chance.
const BUDGET: usize = 2;

pub(super) fn set(image: &str) -> Value {
    let annotations = json!({"kedge.dev/complete-after": "0s"});
    json!({"metadata": {"namespace": "n", "name": "d", "annotations": annotations}, "spec": {
        "selector": {"matchLabels": {"app": "d"}},
        "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "c", "image": image}]}}}})
}

impl Hub {
    pub(super) fn with_nodes(count: usize) -> Hub {
        let mut hub = Hub::with_namespace();
        for index in 0..count {
            hub.create(&NODE, json!({"metadata": {"name": format!("node-{index}")}}));
            hub.mark(&format!("node-{index}"), "True");
        }
        hub
    }

    /// The node's Ready condition.
    pub(super) fn mark(&mut self, node: &str, ready: &str) {
        let status = json!({"conditions": [{"type": "Ready", "status": ready}]});
        self.edit(&NODE, "", node, |node| node["status"] = status.clone());
    }

    pub(super) fn pods(&self) -> Vec<Value> {
        self.names(&POD).iter().map(|name| self.value(&POD, "n", name.strip_prefix("n/").unwrap())).collect()
    }

    /// The pods that are neither terminating nor ended, by node, with their images.
    pub(super) fn running(&self) -> BTreeMap<String, Vec<String>> {
        let mut running: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pod in self.pods().iter().filter(|pod| is_live(pod)) {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let image = text(&pod["spec"]["containers"][0]["image"]);
            running.entry(text(&pod["spec"]["nodeName"])).or_default().push(image);
        }
        running
    }

    /// Reports a pod's status as its agent would.
    pub(super) fn report(&mut self, pod: &str, phase: &str, ready: bool) {
        self.random += 1;
        let status = json!({"phase": phase, "qosClass": "BestEffort", "conditions": [{"type": "Ready",
            "status": if ready { "True" } else { "False" }, "lastTransitionTime": format!("2026-01-01T00:{:02}:{:02}Z", self.random / 60 % 60, self.random % 60)}]});
        self.edit(&POD, "n", pod, |pod| pod["status"] = status.clone());
    }

    /// The agent confirms the end of a terminating pod.
    pub(super) fn confirm(&mut self, pod: &str) {
        let options = DeleteOptions { grace_secs: Some(0), ..DeleteOptions::default() };
        let (namespace, name) = ("n".to_owned(), pod.to_owned());
        self.perform(Action::Delete { kind: &POD, namespace, name, options, requires: Vec::new() }).unwrap();
    }

    /// All agents start new pods and end terminating ones.
    pub(super) fn agents_act(&mut self) {
        for pod in self.pods() {
            let name = pod["metadata"]["name"].as_str().unwrap();
            match is_terminating(&pod) {
                true => self.confirm(name),
                false if !is_ready(&pod) => self.report(name, "Running", true),
                false => {}
            }
        }
    }

    pub(super) fn change_image(&mut self, image: &str) {
        self.edit(&DAEMON_SET, "n", "d", |set| {
            set["spec"]["template"]["spec"]["containers"][0]["image"] = image.into()
        });
    }

    fn status(&self, field: &str) -> i64 {
        self.value(&DAEMON_SET, "n", "d")["status"][field].as_i64().unwrap_or(0)
    }

    fn revisions(&self) -> Vec<i64> {
        let names = self.names(&CONTROLLER_REVISION);
        let number =
            |name: &String| self.value(&CONTROLLER_REVISION, "n", &name[2..])["revision"].as_i64().unwrap();
        names.iter().map(number).collect()
    }

    pub(super) fn reasons(&self) -> Vec<String> {
        let names = self.names(&EVENT);
        let reason =
            |name: &String| self.value(&EVENT, "n", &name[2..])["reason"].as_str().unwrap().to_owned();
        names.iter().map(reason).collect()
    }
}

pub(super) fn is_terminating(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_string()
}

pub(super) fn is_ready(pod: &Value) -> bool {
    pod["status"]["conditions"][0]["status"] == "True"
}

pub(super) fn is_live(pod: &Value) -> bool {
    !is_terminating(pod) && !matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"))
}

/// A fleet on which `i:1` is rolled out.
pub(super) fn rolled_out(nodes: usize, change: impl FnOnce(&mut Value)) -> (Hub, DaemonSets) {
    let (mut hub, mut controller) = (Hub::with_nodes(nodes), DaemonSets::default());
    let mut value = set("i:1");
    change(&mut value);
    hub.create(&DAEMON_SET, value);
    for _ in 0..2 {
        hub.run(&mut controller);
        hub.agents_act();
    }
    hub.run(&mut controller);
    let lines = crate::controllers::Controller::take_log(&mut controller, hub.now(0));
    assert_eq!(
        hub.status("numberAvailable"),
        i64::try_from(nodes).unwrap(),
        "{lines:?} {:?}",
        hub.names(&POD)
    );
    (hub, controller)
}

/// Pod Security forbids them: one Event reports it, however many nodes and tries there are.
#[test]
fn pods_that_are_forbidden_are_told_once() {
    let (mut hub, mut controller) = (Hub::with_nodes(3), DaemonSets::default());
    hub.edit(&NAMESPACE, "", "n", |namespace| {
        namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "baseline".into();
    });
    let mut value = set("i:1");
    value["spec"]["template"]["spec"]["hostPID"] = true.into();
    hub.create(&DAEMON_SET, value);
    for second in [0, 100, 200] {
        hub.run_at(&mut controller, second);
    }
    let events = hub.names(&EVENT).into_iter().map(|name| hub.value(&EVENT, "n", &name[2..]));
    let told: Vec<Value> = events.filter(|event| event["reason"] == "FailedCreate").collect();
    let [event] = &told[..] else { panic!("one Event: {told:?}") };
    assert_eq!(hub.pods().len(), 0);
    assert_eq!(hub.reasons(), ["FailedCreate"], "no pod was made");
    let message = event["message"].as_str().unwrap();
    assert!(
        message.contains("violates PodSecurity \"baseline:latest\": host namespaces (hostPID=true)"),
        "{message}"
    );
    // once they are allowed again, they are made
    hub.edit(&NAMESPACE, "", "n", |namespace| {
        namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "privileged".into();
    });
    hub.run_at(&mut controller, 300);
    assert_eq!(hub.pods().len(), 3);
}

/// Only the pod has the volume of the token, not the template, nor its revision.
#[test]
fn automounted_token_changes_no_revision() {
    let (mut hub, mut controller) = rolled_out(2, |_| {});
    let before = hub.names(&CONTROLLER_REVISION);
    for pod in hub.pods() {
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        assert!(volumes[0]["name"].as_str().unwrap().starts_with("kube-api-access-"), "{pod}");
    }
    let revision = hub.value(&CONTROLLER_REVISION, "n", &before[0][2..]);
    assert!(!revision.to_string().contains("kube-api-access"), "{revision}");
    let pods = hub.names(&POD);
    for _ in 0..3 {
        hub.run(&mut controller);
        hub.agents_act();
    }
    assert_eq!((hub.names(&CONTROLLER_REVISION), hub.names(&POD)), (before, pods));
    assert!(hub.pods().iter().all(is_live));
}

#[test]
fn every_node_gets_a_pod_as_upstream_makes_it() {
    let (hub, _) = rolled_out(2, |_| {});
    let pods = hub.pods();
    assert_eq!(hub.running().len(), 2);
    let (pod, owner) = (&pods[0], &pods[0]["metadata"]["ownerReferences"][0]);
    assert_eq!(
        (&owner["kind"], &owner["controller"], &owner["blockOwnerDeletion"]),
        (&json!("DaemonSet"), &json!(true), &json!(true))
    );
    let revision = &hub.names(&CONTROLLER_REVISION)[0];
    let hash = pod["metadata"]["labels"]["controller-revision-hash"].as_str().unwrap();
    assert_eq!(revision, &format!("n/d-{hash}"));
    assert_eq!(pod["metadata"]["labels"]["pod-template-generation"], "1");
    let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
    assert_eq!(tolerations.len(), 6, "{tolerations:?}");
    for (field, expect) in [
        ("desiredNumberScheduled", 2),
        ("updatedNumberScheduled", 2),
        ("numberReady", 2),
        ("observedGeneration", 1),
    ] {
        assert_eq!(hub.status(field), expect, "{field}");
    }
    assert_eq!(hub.reasons(), ["SuccessfulCreate"]);
}

#[test]
fn settled_set_is_not_written_again() {
    let (mut hub, mut controller) = rolled_out(3, |_| {});
    let revision = hub.index.revision();
    hub.run(&mut controller);
    hub.run(&mut DaemonSets::default());
    assert_eq!(hub.index.revision(), revision);
}

#[test]
fn update_and_undo_keep_two_of_three_pods_ready() {
    let (mut hub, mut controller) = rolled_out(3, |_| {});
    for (image, numbers) in [("i:2", vec![1, 2]), ("i:1", vec![2, 3])] {
        hub.change_image(image);
        for round in 0..7 {
            hub.run(&mut controller);
            let serving = hub.pods().iter().filter(|pod| is_live(pod) && is_ready(pod)).count();
            assert!(serving >= 2, "{image}, round {round}: {:?}", hub.running());
            hub.agents_act();
        }
        hub.run(&mut controller);
        assert!(hub.running().values().all(|images| *images == [image]), "{:?}", hub.running());
        assert_eq!((hub.status("updatedNumberScheduled"), hub.status("numberUnavailable")), (3, 0));
        let mut found = hub.revisions();
        found.sort_unstable();
        assert_eq!(found, numbers, "an older template is numbered anew, not remembered twice");
    }
}

#[test]
fn broken_update_stops_at_its_budget_and_another_goes_on() {
    let (mut hub, mut controller) = rolled_out(3, |_| {});
    hub.change_image("bad");
    for _ in 0..5 {
        hub.run(&mut controller);
        for pod in hub.pods() {
            let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
            if is_terminating(&pod) {
                hub.confirm(&name);
            }
        }
    }
    let images: Vec<_> = hub.running().into_values().flatten().collect();
    assert_eq!(images.iter().filter(|image| *image == "bad").count(), 1, "{images:?}");
    assert_eq!(hub.status("numberUnavailable"), 1);
    // rollover: pods that do not serve are replaced first
    hub.change_image("i:3");
    for _ in 0..8 {
        hub.run(&mut controller);
        hub.agents_act();
    }
    hub.run(&mut controller);
    assert!(hub.running().values().all(|images| *images == ["i:3"]), "{:?}", hub.running());
}

#[test]
fn minimum_ready_time_counts_on_the_hubs_clock() {
    let (mut hub, mut controller) = (Hub::with_nodes(2), DaemonSets::default());
    let mut value = set("i:1");
    value["spec"]["minReadySeconds"] = 30.into();
    hub.create(&DAEMON_SET, value);
    hub.run_at(&mut controller, 0);
    hub.agents_act();
    hub.run_at(&mut controller, 10);
    hub.run_at(&mut controller, 39);
    assert_eq!((hub.status("numberReady"), hub.status("numberAvailable")), (2, 0));
    controller.sweep_and_expect(&hub, 39, 40);
    hub.run_at(&mut controller, 40);
    assert_eq!(hub.status("numberAvailable"), 2);
    // unready for a moment: the time starts again, though the controller did not look meanwhile
    let pod = hub.pods()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    hub.report(&pod, "Running", false);
    hub.report(&pod, "Running", true);
    hub.run_at(&mut controller, 50);
    assert_eq!(hub.status("numberAvailable"), 1);
    // a restarted hub has not seen any pod ready yet
    hub.run_at(&mut DaemonSets::default(), 60);
    assert_eq!(hub.status("numberAvailable"), 0);
}

impl DaemonSets {
    /// Expects the next look at this second.
    fn sweep_and_expect(&mut self, hub: &Hub, second: u64, expect: u64) {
        use crate::controllers::Controller as _;
        self.sweep(&hub.index);
        let now = super::Now {
            running: std::time::Duration::from_secs(second),
            wall: time::macros::datetime!(2026-11-21 12:00:00 UTC),
            ages: true,
            right: true,
            stalled: std::time::Duration::ZERO,
            disk_stalled: std::time::Duration::ZERO,
            disk_stalls: false,
        };
        let decision = self.reconcile(&hub.index, now);
        assert_eq!(decision.next, Some(std::time::Duration::from_secs(expect)));
    }
}

#[test]
fn on_delete_waits_for_a_deletion() {
    let (mut hub, mut controller) =
        rolled_out(2, |set| set["spec"]["updateStrategy"] = json!({"type": "OnDelete"}));
    hub.change_image("i:2");
    hub.run(&mut controller);
    assert!(hub.running().values().all(|images| *images == ["i:1"]));
    let pod = hub.pods()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    hub.delete(&POD, "n", &pod, Propagation::Unset);
    hub.run(&mut controller);
    assert_eq!(hub.running().len(), 1, "its node has not confirmed the end");
    hub.agents_act();
    hub.run(&mut controller);
    let images: Vec<_> = hub.running().into_values().flatten().collect();
    assert_eq!(images.iter().filter(|image| *image == "i:2").count(), 1, "{images:?}");
}

#[test]
fn paused_set_makes_pods_but_replaces_none() {
    let (mut hub, mut controller) = rolled_out(2, |_| {});
    let pause = |hub: &mut Hub, value: &'static str| {
        hub.edit(&DAEMON_SET, "n", "d", |set| {
            set["metadata"]["annotations"]["kedge.dev/paused"] = value.into()
        });
    };
    pause(&mut hub, "true");
    hub.change_image("i:2");
    hub.create(&NODE, json!({"metadata": {"name": "late"}}));
    for _ in 0..3 {
        hub.run(&mut controller);
        hub.agents_act();
    }
    let running = hub.running();
    assert_eq!((&running["late"][0], &running["node-0"][0]), (&"i:2".to_owned(), &"i:1".to_owned()));
    pause(&mut hub, "false");
    for _ in 0..6 {
        hub.run(&mut controller);
        hub.agents_act();
    }
    assert!(hub.running().values().all(|images| *images == ["i:2"]));
}

/// Somebody who wrote any value there wanted to hold the update.
#[test]
fn bad_value_of_the_pause_pauses() {
    let (mut hub, mut controller) = rolled_out(2, |_| {});
    hub.annotate("kedge.dev/paused", "yes");
    hub.change_image("i:2");
    for _ in 0..3 {
        hub.run(&mut controller);
        hub.agents_act();
    }
    assert!(hub.running().values().all(|images| *images == ["i:1"]));
    assert_eq!(hub.viewed().0, "paused");
    assert!(hub.reasons().iter().any(|reason| reason == "InvalidAnnotation"));
}

#[test]
fn name_that_is_taken_counts_a_collision() {
    let mut hub = Hub::with_nodes(1);
    let (mut controller, mut probe) = (DaemonSets::default(), Hub::with_nodes(1));
    probe.create(&DAEMON_SET, set("i:1"));
    probe.run(&mut DaemonSets::default());
    let name = probe.names(&CONTROLLER_REVISION)[0][2..].to_owned();
    hub.create(
        &CONTROLLER_REVISION,
        json!({"metadata": {"namespace": "n", "name": name}, "data": {"spec": {}}, "revision": 1}),
    );
    hub.create(&DAEMON_SET, set("i:1"));
    hub.run(&mut controller);
    assert_eq!(
        (hub.status("collisionCount"), hub.names(&CONTROLLER_REVISION).len(), hub.running().len()),
        (1, 2, 1)
    );
}

#[test]
fn orphans_are_adopted_and_strangers_released() {
    let (mut hub, mut controller) = rolled_out(2, |_| {});
    hub.delete(&DAEMON_SET, "n", "d", Propagation::Orphan);
    hub.run(&mut garbage::Garbage::default());
    let before = hub.running();
    assert!(
        hub.pods().iter().all(|pod| pod["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty))
    );
    let revision = hub.index.revision();
    hub.create(&DAEMON_SET, set("i:1"));
    for _ in 0..3 {
        hub.run(&mut controller);
    }
    assert_eq!((hub.running(), hub.names(&CONTROLLER_REVISION).len()), (before, 1), "nothing was restarted");
    assert!(hub.index.revision() > revision);
    // a pod that somebody relabels is released, and another one replaces it
    let pod = hub.pods()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    hub.edit(&POD, "n", &pod, |pod| pod["metadata"]["labels"]["app"] = "debugged".into());
    hub.run(&mut controller);
    let released = hub.value(&POD, "n", &pod);
    assert!(released["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty), "{released}");
    hub.run_at(&mut controller, 10);
    assert_eq!(hub.running().values().map(Vec::len).sum::<usize>(), 3, "{:?}", hub.running());
    hub.run_at(&mut controller, 20);
    assert_eq!(hub.pods().len(), 3);
}

#[test]
fn deleted_set_takes_its_pods_along() {
    let (mut hub, mut controller) = rolled_out(2, |_| {});
    hub.delete(&DAEMON_SET, "n", "d", Propagation::Foreground);
    hub.run(&mut controller);
    hub.run(&mut garbage::Garbage::default());
    assert_eq!(hub.running().len(), 0);
    hub.agents_act();
    hub.run(&mut garbage::Garbage::default());
    hub.run(&mut controller);
    assert_eq!(
        (hub.names(&POD).len(), hub.names(&CONTROLLER_REVISION).len(), hub.names(&DAEMON_SET).len()),
        (0, 0, 0)
    );
}

#[test]
fn pod_that_fails_is_made_again_after_growing_pauses() {
    let (mut hub, mut controller) = rolled_out(1, |_| {});
    let (mut made, mut known) = (Vec::new(), String::new());
    for second in 100..140 {
        if let Some(pod) = hub.pods().first().filter(|pod| is_live(pod)) {
            let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
            hub.report(&name, "Failed", false);
        }
        hub.run_at(&mut controller, second);
        let uid = hub.pods()[0]["metadata"]["uid"].as_str().unwrap().to_owned();
        if std::mem::replace(&mut known, uid.clone()) != uid {
            made.push(second);
        }
    }
    let pauses: Vec<u64> = made.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.len() >= 3 && pauses.windows(2).all(|pair| pair[1] > pair[0]), "{made:?}");
    assert!(hub.reasons().iter().any(|reason| reason == "FailedDaemonPod"));
}

impl Hub {
    fn names_on(&self, node: &str) -> Vec<String> {
        let of_node = self.pods().into_iter().filter(|pod| pod["spec"]["nodeName"] == *node);
        of_node.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }
}

/// Upstream's conformance test "should retry creating failed daemon pods": it writes that a pod failed, waits
/// until another one runs, and then until the name of that pod is gone.
#[test]
fn failed_pod_is_replaced_under_another_name() {
    let (mut hub, mut controller) = rolled_out(2, |_| {});
    let mut names = Vec::new();
    for second in [100, 200, 300, 400] {
        let failed = hub.names_on("node-0").remove(0);
        hub.report(&failed, "Failed", false);
        hub.run_at(&mut controller, second);
        hub.agents_act();
        hub.run_at(&mut controller, second + 1);
        assert_eq!((hub.names_on("node-0").len(), hub.status("numberAvailable")), (1, 2));
        assert!(!hub.names_on("node-0").contains(&failed), "{failed}");
        names.push(failed);
    }
    assert_eq!((&names[0], &names[1]), (&names[2], &names[3]), "a node has two names");
}

/// A restarted hub does not know which pod failed.
#[test]
fn steps_that_choose_different_names_make_one_pod() {
    use crate::controllers::Controller as _;
    let (mut hub, mut controller) = rolled_out(1, |_| {});
    let failed = hub.names_on("node-0").remove(0);
    hub.report(&failed, "Failed", false);
    // the Event, and the deletion
    hub.some_tasks(&mut controller, 100, 2);
    assert_eq!(hub.names_on("node-0"), [""; 0], "a pod that has ended is gone at once");
    let now = hub.now(101);
    let mut others = [controller, DaemonSets::default()];
    let mut tasks = Vec::new();
    for (which, other) in others.iter_mut().enumerate() {
        other.sweep(&hub.index);
        let made = other.reconcile(&hub.index, now).tasks;
        tasks.extend(made.into_iter().map(|task| (which, task)));
    }
    let mut chosen = Vec::new();
    for (which, task) in tasks {
        if let Action::Create { kind, value, .. } = &task.action
            && kind.kind == POD.kind
        {
            chosen.push(value["metadata"]["name"].as_str().unwrap().to_owned());
        }
        hub.act(&mut others[which], task, now);
    }
    assert!(chosen.len() == 2 && chosen[0] != chosen[1], "{chosen:?}");
    assert_eq!(hub.names_on("node-0"), chosen[..1]);
}

#[test]
fn pauses_of_nodes_that_are_gone_are_forgotten() {
    let (mut hub, mut controller) = rolled_out(3, |_| {});
    for pod in hub.pods() {
        hub.report(pod["metadata"]["name"].as_str().unwrap(), "Failed", false);
    }
    hub.run_at(&mut controller, 100);
    assert_eq!(controller.remembered().0, 3);
    for node in ["node-0", "node-1"] {
        hub.delete(&NODE, "", node, Propagation::Unset);
    }
    hub.run_at(&mut controller, 101);
    assert_eq!(controller.remembered().0, 1);
}

#[test]
fn ever_changing_annotation_uses_bounded_memory() {
    let (mut hub, mut controller) = rolled_out(1, |_| {});
    hub.run_at(&mut controller, 99);
    for number in 0..200 {
        hub.annotate("kedge.dev/max-failures", &format!("wrong-{number}"));
        hub.run_at(&mut controller, 100 + number);
    }
    assert!((1..=64).contains(&controller.remembered().1), "{:?}", controller.remembered());
    let told = hub.reasons().iter().filter(|reason| *reason == "InvalidAnnotation").count();
    assert_eq!(told, 200, "each is told");
}

#[test]
fn node_that_is_away_is_set_aside_and_updated_on_return() {
    let (mut hub, mut controller) = rolled_out(3, |_| {});
    hub.mark("node-1", "Unknown");
    let lost = hub.pods().iter().find(|pod| pod["spec"]["nodeName"] == "node-1").unwrap()["metadata"]["name"]
        .clone();
    hub.report(lost.as_str().unwrap(), "Running", false);
    hub.change_image("i:2");
    for _ in 0..6 {
        hub.run(&mut controller);
        for pod in hub.pods().iter().filter(|pod| pod["spec"]["nodeName"] != "node-1") {
            let name = pod["metadata"]["name"].as_str().unwrap();
            if is_terminating(pod) { hub.confirm(name) } else { hub.report(name, "Running", true) }
        }
    }
    hub.run(&mut controller);
    let annotation = |hub: &Hub| {
        hub.value(&DAEMON_SET, "n", "d")["metadata"]["annotations"]["kedge.dev/set-aside"].clone()
    };
    assert_eq!(
        (hub.status("desiredNumberScheduled"), hub.status("updatedNumberScheduled"), annotation(&hub)),
        (2, 2, json!("1"))
    );
    assert_eq!(hub.running()["node-1"], ["i:1"], "nobody can say that it has ended");
    hub.mark("node-1", "True");
    for _ in 0..4 {
        hub.run(&mut controller);
        hub.agents_act();
    }
    hub.run(&mut controller);
    assert_eq!((hub.running()["node-1"].clone(), annotation(&hub)), (vec!["i:2".to_owned()], Value::Null));
}

/// The behaviour of an image's container on a node.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Runs,
    Crashes,
    /// Crashes between two looks, and is running again at the moment.
    RunsBetweenCrashes,
    /// Crashed at its start, and has run since.
    RanAfterCrashes,
    /// An init container failed until its dependency was there.
    Waited,
    NoImage,
    /// Runs, and never becomes ready.
    Hangs,
}

impl Hub {
    /// All agents start new pods and end terminating ones; node and image decide the fate of each pod.
    fn agents_meet(&mut self, fate: impl Fn(&str, &str) -> Fate) {
        for pod in self.pods() {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let name = text(&pod["metadata"]["name"]);
            if is_terminating(&pod) {
                self.confirm(&name);
                continue;
            }
            let image = text(&pod["spec"]["containers"][0]["image"]);
            let fate = fate(&text(&pod["spec"]["nodeName"]), &image);
            let container = match fate {
                Fate::Runs => {
                    if !is_ready(&pod) {
                        self.report(&name, "Running", true);
                    }
                    continue;
                }
                Fate::Crashes => json!({"state": {"waiting": {"reason": "CrashLoopBackOff"}}}),
                Fate::RunsBetweenCrashes | Fate::RanAfterCrashes => {
                    json!({"state": {"running": {}}, "restartCount": 3, "lastState": {"terminated": {"exitCode": 1}}})
                }
                Fate::Waited => {
                    json!({"state": {"terminated": {"exitCode": 0}}, "restartCount": 3, "lastState": {"terminated": {"exitCode": 1}}})
                }
                Fate::NoImage => json!({"state": {"waiting": {"reason": "ImagePullBackOff"}}}),
                Fate::Hangs => json!({"state": {"running": {}}}),
            };
            let is_up = container["restartCount"] == 3;
            let list = if fate == Fate::Waited { "initContainerStatuses" } else { "containerStatuses" };
            if pod["status"][list][0] != container || fate == Fate::RunsBetweenCrashes {
                self.report(&name, "Running", is_up);
                self.edit(&POD, "n", &name, |pod| pod["status"][list] = json!([container]));
            }
        }
    }

    /// Lets the controller and the agents act in turns.
    fn turns(
        &mut self,
        controller: &mut DaemonSets,
        seconds: impl IntoIterator<Item = u64>,
        fate: impl Fn(&str, &str) -> Fate,
    ) {
        for second in seconds {
            self.run_at(controller, second);
            self.agents_meet(&fate);
        }
    }

    /// Performs the first task of a controller that has just been started.
    fn one_task(&mut self, controller: &mut DaemonSets) {
        self.some_tasks(controller, 0, 1);
    }

    /// Performs `count` tasks of one step, which may have more.
    fn some_tasks(&mut self, controller: &mut DaemonSets, second: u64, count: usize) {
        use crate::controllers::Controller as _;
        let now = self.now(second);
        controller.sweep(&self.index);
        for task in controller.reconcile(&self.index, now).tasks.into_iter().take(count) {
            self.act(controller, task, now);
        }
    }

    pub(super) fn annotate(&mut self, key: &'static str, value: &str) {
        let value = value.to_owned();
        self.edit(&DAEMON_SET, "n", "d", |set| set["metadata"]["annotations"][key] = value.as_str().into());
    }

    /// How many nodes run this image.
    pub(super) fn with_image(&self, image: &str) -> usize {
        self.running().values().filter(|images| *images == &[image]).count()
    }

    /// Status and message of the condition.
    pub(super) fn stopped(&self) -> (String, String) {
        let set = self.value(&DAEMON_SET, "n", "d");
        let found = crate::value::condition(&set["status"], "RolloutStopped").cloned().unwrap_or_default();
        let of = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
        (of("status"), of("message"))
    }
}

fn bad(image: &str) -> bool {
    image.starts_with("bad")
}

/// Bad images have this fate on every node, all others run.
fn all(fate: Fate) -> impl Fn(&str, &str) -> Fate {
    move |_, image| if bad(image) { fate } else { Fate::Runs }
}

pub(super) fn budget(count: usize) -> impl FnOnce(&mut Value) {
    move |set| set["spec"]["updateStrategy"] = json!({"rollingUpdate": {"maxUnavailable": count}})
}

#[test]
fn failures_beyond_the_bound_stop_an_update() {
    for (fate, pause) in
        [(Fate::Crashes, 1), (Fate::RunsBetweenCrashes, 1), (Fate::NoImage, 30), (Fate::Hangs, 200)]
    {
        let (mut hub, mut controller) = rolled_out(10, budget(2));
        hub.annotate("kedge.dev/max-failures", "1");
        hub.change_image("bad");
        hub.turns(&mut controller, (0..7).map(|turn| turn * pause), all(fate));
        assert_eq!((hub.with_image("bad"), hub.with_image("i:1")), (2, 8), "{fate:?}");
        let (state, message) = hub.stopped();
        assert_eq!(state, "True", "{fate:?}");
        assert!(message.contains("2 nodes failed, more than 1: node-0 ("), "{message}");
        assert!(hub.reasons().contains(&"RolloutStopped".to_owned()), "{fate:?}");
        // it stays stopped, even though its pods run now
        hub.turns(&mut controller, 2000..2010, all(Fate::Runs));
        assert_eq!((hub.with_image("bad"), hub.stopped().0), (2, "True".into()), "{fate:?}");
        hub.turns(&mut DaemonSets::default(), 2010..2020, all(Fate::Runs));
        assert_eq!((hub.with_image("bad"), hub.stopped().0), (2, "True".into()), "{fate:?}, another hub");
    }
}

/// Ready again and again, but never for `minReadySeconds`.
#[test]
fn pod_that_is_never_available_fails_in_time() {
    let (mut hub, mut controller) = rolled_out(3, |set| set["spec"]["minReadySeconds"] = 0.into());
    hub.edit(&DAEMON_SET, "n", "d", |set| set["spec"]["minReadySeconds"] = 30.into());
    hub.annotate("kedge.dev/max-failures", "0");
    hub.run_at(&mut controller, 100);
    hub.change_image("bad");
    for second in (100..900).step_by(10) {
        hub.run_at(&mut controller, second);
        for pod in hub.pods() {
            let name = pod["metadata"]["name"].as_str().unwrap();
            let is_new = pod["spec"]["containers"][0]["image"] == "bad";
            match is_terminating(&pod) {
                true => hub.confirm(name),
                false if is_new => hub.report(name, "Running", second % 20 == 0),
                false => {}
            }
        }
        if second < 690 {
            assert_eq!(hub.stopped().0, "", "second {second}");
        }
    }
    let (state, message) = hub.stopped();
    assert!(state == "True" && message.contains("(not ready in time)"), "{message}");
    assert_eq!((hub.with_image("bad"), hub.with_image("i:1")), (1, 2));
}

#[test]
fn crashes_that_are_over_hold_up_no_update() {
    let (mut hub, mut controller) = rolled_out(3, |_| {});
    hub.annotate("kedge.dev/max-failures", "off");
    hub.change_image("bad");
    let fate = all(Fate::RanAfterCrashes);
    hub.turns(&mut controller, (0..600).step_by(20), &fate);
    assert_eq!(hub.with_image("bad"), 1, "it may crash again");
    hub.turns(&mut controller, [650, 651, 652], &fate);
    assert_eq!(hub.with_image("bad"), 2);
    hub.turns(&mut controller, [1300, 1301, 1302, 2000, 2001], &fate);
    assert_eq!((hub.with_image("bad"), hub.viewed().0.as_str()), (3, "complete"));
    // the dependency of an init container arrived in the end
    hub.change_image("bad:2");
    hub.turns(&mut controller, 2100..2120, all(Fate::Waited));
    assert_eq!((hub.with_image("bad:2"), hub.viewed().0.as_str()), (3, "complete"));
}

#[test]
fn pods_of_a_lost_node_are_left_alone() {
    let surge = json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    let (mut hub, mut controller) = rolled_out(2, |set| set["spec"]["updateStrategy"] = surge);
    hub.change_image("i:2");
    hub.run_at(&mut controller, 1);
    let beside = hub.pods().into_iter().find(|pod| pod["spec"]["containers"][0]["image"] == "i:2").unwrap();
    let (name, node) = (&beside["metadata"]["name"], beside["spec"]["nodeName"].as_str().unwrap());
    hub.report(name.as_str().unwrap(), "Running", true);
    // lost before the controller has seen that the new pod is ready
    hub.mark(node, "Unknown");
    hub.run_at(&mut controller, 2);
    assert_eq!(hub.running()[node].len(), 2, "{:?}", hub.running());
    hub.mark(node, "True");
    hub.turns(&mut controller, 3..12, |_, _| Fate::Runs);
    assert_eq!(hub.with_image("i:2"), 2);
}

#[test]
fn many_failed_pods_are_told_in_few_events() {
    const NODES: usize = 300;
    let (mut hub, mut controller) = rolled_out(NODES, |_| {});
    for pod in hub.pods() {
        hub.report(pod["metadata"]["name"].as_str().unwrap(), "Failed", false);
    }
    {
        use crate::controllers::Controller as _;
        let now = hub.now(100);
        let mut other = DaemonSets::default();
        other.sweep(&hub.index);
        let tasks = other.reconcile(&hub.index, now).tasks;
        let is_end = |action: &Action| matches!(action, Action::Delete { kind, .. } if kind.kind == POD.kind);
        let ended = tasks.iter().filter(|task| is_end(&task.action)).count();
        assert!((1..NODES).contains(&ended), "one step is bounded: {ended} of {NODES}");
    }
    hub.run_at(&mut controller, 100);
    hub.run_at(&mut controller, 101);
    assert_eq!(hub.running().len(), NODES, "each was made again");
    let told = hub.reasons().iter().filter(|reason| *reason == "FailedDaemonPod").count();
    assert!((6..=18).contains(&told), "{told}");
}

#[test]
fn stopped_update_goes_on_by_annotation_template_or_undo() {
    let stopped = || {
        let (mut hub, mut controller) = rolled_out(4, |_| {});
        hub.annotate("kedge.dev/max-failures", "0");
        hub.change_image("bad");
        hub.turns(&mut controller, 0..5, all(Fate::Crashes));
        assert_eq!(hub.stopped().0, "True");
        (hub, controller)
    };
    let check = |change: fn(&mut Hub), image: &str| {
        let (mut hub, mut controller) = stopped();
        change(&mut hub);
        hub.turns(&mut controller, 10..30, |_, _| Fate::Runs);
        hub.run_at(&mut controller, 30);
        assert_eq!((hub.with_image(image), hub.stopped().0), (4, "False".into()), "{image}");
        assert_eq!(hub.status("numberAvailable"), 4);
    };
    check(|hub| hub.annotate("kedge.dev/resume", "now"), "bad");
    check(|hub| hub.annotate("kedge.dev/max-failures", "off"), "bad");
    check(|hub| hub.change_image("i:2"), "i:2");
    check(|hub| hub.change_image("i:1"), "i:1");
    // a resumed update stops again after as many further failures
    let (mut hub, mut controller) = stopped();
    hub.annotate("kedge.dev/resume", "1");
    hub.turns(&mut controller, 10..20, |node, _| if node == "node-1" { Fate::Crashes } else { Fate::Runs });
    assert_eq!((hub.with_image("bad"), hub.stopped().0), (2, "False".into()));
    hub.turns(&mut controller, 20..30, all(Fate::Crashes));
    assert_eq!((hub.with_image("bad"), hub.stopped().0), (2, "True".into()));
}

#[test]
fn node_lost_under_the_new_revision_counts_as_failed() {
    let (mut hub, mut controller) = rolled_out(5, budget(2));
    hub.annotate("kedge.dev/max-failures", "1");
    hub.mark("node-4", "Unknown");
    hub.change_image("bad");
    hub.run(&mut controller);
    // the update cuts these nodes off
    for node in ["node-0", "node-1"] {
        hub.agents_act();
        hub.run(&mut controller);
        hub.mark(node, "Unknown");
    }
    hub.turns(&mut controller, 1..5, all(Fate::Runs));
    let (state, message) = hub.stopped();
    assert_eq!(state, "True", "{:?}", hub.running());
    assert!(message.contains("node-0 (node lost), node-1 (node lost)"), "{message}");
    assert_eq!((hub.status("desiredNumberScheduled"), hub.with_image("i:1")), (5, 3), "with the lost ones");
}

#[test]
fn stopped_update_gives_other_nodes_the_proven_revision() {
    let (mut hub, mut controller) = rolled_out(4, |_| {});
    hub.annotate("kedge.dev/max-failures", "0");
    hub.change_image("bad");
    hub.turns(&mut controller, 0..5, all(Fate::Crashes));
    let spared = hub.running().iter().find(|(_, images)| *images == &["i:1"]).unwrap().0.clone();
    let pod = hub.pods().iter().find(|pod| pod["spec"]["nodeName"] == *spared).unwrap()["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    hub.delete(&POD, "n", &pod, Propagation::Unset);
    hub.create(&NODE, json!({"metadata": {"name": "late"}}));
    hub.turns(&mut controller, 5..10, all(Fate::Crashes));
    assert_eq!((hub.with_image("i:1"), hub.with_image("bad")), (4, 1), "{:?}", hub.running());
    assert_eq!((hub.status("updatedNumberScheduled"), hub.status("desiredNumberScheduled")), (1, 5));
    hub.change_image("i:3");
    hub.turns(&mut controller, 10..30, all(Fate::Crashes));
    assert_eq!(hub.with_image("i:3"), 5);
}

#[test]
fn stopped_set_never_looks_finished_to_kubectl() {
    let (mut hub, mut controller) = rolled_out(3, budget(3));
    hub.annotate("kedge.dev/max-failures", "1");
    hub.change_image("bad");
    hub.turns(&mut controller, 0..5, all(Fate::RunsBetweenCrashes));
    assert_eq!((hub.stopped().0.as_str(), hub.status("updatedNumberScheduled")), ("True", 3));
    assert_eq!(hub.status("numberAvailable"), 0, "each is ready, and crashes");
    // when the nodes recover for good, the update resumes
    hub.turns(&mut controller, 5..10, |_, _| Fate::Runs);
    for pod in hub.pods() {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        hub.edit(&POD, "n", &name, |pod| pod["status"]["containerStatuses"] = json!([]));
    }
    hub.run_at(&mut controller, 11);
    assert_eq!((hub.stopped().0.as_str(), hub.status("numberAvailable")), ("False", 3));
}

#[test]
fn first_rollout_and_a_complete_one_are_not_stopped() {
    let (mut hub, mut controller) = (Hub::with_nodes(3), DaemonSets::default());
    let mut value = set("bad");
    value["metadata"]["annotations"] = json!({"kedge.dev/max-failures": "0"});
    hub.create(&DAEMON_SET, value);
    hub.turns(&mut controller, 0..5, all(Fate::Crashes));
    assert_eq!((hub.with_image("bad"), hub.stopped().0.as_str()), (3, ""));
    let (state, message, _) = hub.viewed();
    assert_eq!(state, "under way");
    assert!(message.starts_with("no other revision was completed"), "{message}");
    hub.turns(&mut controller, 5..10, |_, _| Fate::Runs);
    hub.turns(&mut controller, 10..15, all(Fate::Crashes));
    assert_eq!(hub.stopped().0, "");
}

#[test]
fn bad_annotation_value_is_reported_and_the_default_holds() {
    let (mut hub, mut controller) = rolled_out(10, |_| {});
    for (key, value) in [("kedge.dev/max-failures", "-3"), ("kedge.dev/progress-deadline", "soon")] {
        hub.annotate(key, value);
    }
    hub.change_image("bad");
    hub.turns(&mut controller, 0..10, all(Fate::RunsBetweenCrashes));
    let events = hub.names(&EVENT);
    let said: Vec<String> = events
        .iter()
        .map(|name| hub.value(&EVENT, "n", &name[2..]))
        .filter(|event| event["reason"] == "InvalidAnnotation")
        .map(|event| event["message"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said.iter()
            .any(|one| one.starts_with("annotation kedge.dev/max-failures is \"-3\", expected a number"))
    );
    assert_eq!((hub.with_image("bad"), hub.stopped().0.as_str()), (1, ""), "one of ten is a tenth");
}

#[test]
fn stopped_update_is_rolled_back_once() {
    let (mut hub, mut controller) = rolled_out(4, |_| {});
    hub.annotate("kedge.dev/max-failures", "0");
    hub.annotate("kedge.dev/rollback-on-failure", "true");
    hub.change_image("bad");
    hub.turns(&mut controller, 0..20, all(Fate::Crashes));
    hub.run_at(&mut controller, 20);
    assert_eq!((hub.with_image("i:1"), hub.stopped().0.as_str()), (4, "False"), "{:?}", hub.running());
    assert_eq!(hub.value(&DAEMON_SET, "n", "d")["spec"]["template"], {
        let (fresh, _) = rolled_out(1, |_| {});
        fresh.value(&DAEMON_SET, "n", "d")["spec"]["template"].clone()
    });
    assert_eq!(hub.reasons().iter().filter(|reason| *reason == "RolledBack").count(), 1);
    // somebody writes it back: it is known as bad, spreads to no node, and is not rolled back again
    hub.change_image("bad");
    hub.turns(&mut controller, 30..50, all(Fate::Crashes));
    hub.turns(&mut DaemonSets::default(), 50..60, all(Fate::Crashes));
    assert_eq!((hub.with_image("i:1"), hub.stopped().0.as_str()), (4, "True"));
    assert!(hub.stopped().1.contains("it was rolled back in template generation 2"), "{:?}", hub.stopped());
    let image =
        hub.value(&DAEMON_SET, "n", "d")["spec"]["template"]["spec"]["containers"][0]["image"].clone();
    assert_eq!(image, "bad");
    // an administrator resumes it all the same
    hub.annotate("kedge.dev/resume", "mended");
    hub.turns(&mut controller, 60..80, |_, _| Fate::Runs);
    hub.run_at(&mut controller, 80);
    assert_eq!((hub.with_image("bad"), hub.stopped().0.as_str()), (4, "False"));
}

#[test]
fn roll_back_goes_to_the_last_complete_revision() {
    let (mut hub, mut controller) = rolled_out(3, |_| {});
    hub.annotate("kedge.dev/max-failures", "0");
    hub.change_image("i:2");
    hub.turns(&mut controller, 0..10, all(Fate::Crashes));
    // neither the revision that was never complete, nor the oldest
    hub.change_image("bad1");
    hub.turns(&mut controller, 10..20, all(Fate::Crashes));
    hub.annotate("kedge.dev/rollback-on-failure", "true");
    hub.change_image("bad2");
    hub.turns(&mut controller, 20..40, all(Fate::Crashes));
    assert_eq!(hub.with_image("i:2"), 3, "{:?}", hub.running());
    // a revision that was complete before is stopped when it fails, not rolled back further
    hub.change_image("i:1");
    hub.turns(&mut controller, 40..60, |_, image| if image == "i:1" { Fate::Crashes } else { Fate::Runs });
    assert_eq!((hub.with_image("i:2"), hub.with_image("i:1"), hub.stopped().0.as_str()), (2, 1, "True"));
}

#[test]
fn roll_back_completes_if_the_hub_is_killed_after_each_task() {
    let (mut hub, mut controller) = rolled_out(3, |_| {});
    hub.annotate("kedge.dev/max-failures", "0");
    hub.annotate("kedge.dev/rollback-on-failure", "true");
    hub.change_image("bad");
    hub.turns(&mut controller, 0..1, all(Fate::Crashes));
    // step by step, each hub killed after its first task, until the template is written
    for _ in 0..60 {
        hub.one_task(&mut DaemonSets::default());
        hub.agents_meet(all(Fate::Crashes));
    }
    hub.turns(&mut DaemonSets::default(), 0..20, all(Fate::Crashes));
    assert_eq!(hub.with_image("i:1"), 3, "{:?}", hub.running());
}

/// A fleet of five; nodes 3 and 4 are canaries.
fn with_canaries(annotations: &[(&'static str, &'static str)]) -> (Hub, DaemonSets) {
    let (mut hub, controller) = rolled_out(5, budget(2));
    for node in ["node-3", "node-4"] {
        hub.edit(&NODE, "", node, |node| node["metadata"]["labels"]["canary"] = "true".into());
    }
    for (key, value) in annotations {
        hub.annotate(key, value);
    }
    (hub, controller)
}

impl Hub {
    fn nodes_with(&self, image: &str) -> Vec<String> {
        let running = self.running();
        running.into_iter().filter(|(_, images)| *images == [image]).map(|(node, _)| node).collect()
    }
}

const CANARY: (&str, &str) = ("kedge.dev/canary-selector", "canary=true");

#[test]
fn canaries_come_first_and_the_rest_after_the_soak() {
    let (mut hub, mut controller) = with_canaries(&[CANARY, ("kedge.dev/canary-soak", "60s")]);
    hub.change_image("i:2");
    hub.turns(&mut controller, 0..10, |_, _| Fate::Runs);
    assert_eq!(hub.nodes_with("i:2"), ["node-3", "node-4"]);
    assert!(hub.status("updatedNumberScheduled") < hub.status("desiredNumberScheduled"));
    // a canary that is unready for a moment, or a restarted hub, starts the soak time again
    let pod = |hub: &Hub| {
        let pods = hub.pods();
        let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == "node-3").unwrap();
        pod["metadata"]["name"].as_str().unwrap().to_owned()
    };
    let name = pod(&hub);
    hub.report(&name, "Running", false);
    hub.turns(&mut controller, [40, 41, 62, 100], |_, _| Fate::Runs);
    assert_eq!(hub.nodes_with("i:2"), ["node-3", "node-4"]);
    let mut controller = DaemonSets::default();
    hub.turns(&mut controller, [110, 150, 169], |_, _| Fate::Runs);
    assert_eq!(hub.nodes_with("i:2"), ["node-3", "node-4"]);
    hub.turns(&mut controller, [170, 171], |_, _| Fate::Runs);
    assert!(hub.nodes_with("i:2").len() < 5 && hub.reasons().contains(&"CanaryPassed".to_owned()));
    // the passed soak is recorded
    hub.turns(&mut DaemonSets::default(), 172..180, |_, _| Fate::Runs);
    assert_eq!(hub.with_image("i:2"), 5);
    // an undo needs no canaries
    hub.change_image("i:1");
    hub.turns(&mut controller, 200..210, |_, _| Fate::Runs);
    assert_eq!(hub.with_image("i:1"), 5);
}

#[test]
fn canary_that_fails_keeps_the_rest_as_it_was() {
    for fate in [Fate::Crashes, Fate::RunsBetweenCrashes, Fate::NoImage, Fate::Hangs] {
        let (mut hub, mut controller) = with_canaries(&[CANARY, ("kedge.dev/max-failures", "off")]);
        hub.change_image("bad");
        // an unready pod is not replaced outside the canaries, and a new node gets the proven revision
        let pod = hub.pods()[0]["metadata"]["name"].as_str().unwrap().to_owned();
        hub.report(&pod, "Running", false);
        hub.create(&NODE, json!({"metadata": {"name": "late"}}));
        hub.turns(&mut controller, (0..40).map(|turn| turn * 60), |node, image| {
            if node == "node-4" && bad(image) { fate } else { Fate::Runs }
        });
        assert_eq!(hub.nodes_with("bad"), ["node-3", "node-4"], "{fate:?}");
        assert_eq!(hub.with_image("i:1"), 4, "{fate:?}");
        // without the annotation the update continues
        hub.annotate("kedge.dev/canary-selector", "");
        hub.turns(&mut controller, 3000..3020, |_, _| Fate::Runs);
        assert_eq!(hub.with_image("bad"), 6, "{fate:?}");
    }
}

#[test]
fn held_pods_that_come_and_go_keep_canaries_from_nothing() {
    let (mut hub, mut controller) = with_canaries(&[CANARY]);
    let held: Vec<String> = hub
        .pods()
        .iter()
        .filter(|pod| ["node-0", "node-1", "node-2"].contains(&pod["spec"]["nodeName"].as_str().unwrap()))
        .map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned())
        .collect();
    let mut halves = |hub: &mut Hub, halves: std::ops::Range<usize>| {
        for half in halves {
            // two of the three are unready at each look, as many as the budget allows
            for (index, pod) in held.iter().enumerate() {
                hub.report(pod, "Running", index == half % 3);
            }
            hub.turns(&mut controller, [30 * half as u64], |_, _| Fate::Runs);
            if half == 0 {
                hub.change_image("i:2");
            }
        }
        hub.nodes_with("i:2")
    };
    // these pods may still be starting
    assert!(halves(&mut hub, 0..20).is_empty());
    assert_eq!(halves(&mut hub, 20..30), ["node-3", "node-4"]);
}

#[test]
fn bad_canary_annotation_updates_nothing_beyond() {
    let check = |annotations: &[(&'static str, &'static str)], reason: &str, expect: &[&str]| {
        let (mut hub, mut controller) = with_canaries(annotations);
        hub.change_image("i:2");
        hub.turns(&mut controller, (0..20).map(|turn| turn * 300), |_, _| Fate::Runs);
        assert_eq!(hub.nodes_with("i:2"), expect, "{annotations:?}");
        assert!(hub.reasons().iter().any(|found| found == reason), "{annotations:?}");
        assert!(hub.status("updatedNumberScheduled") < hub.status("desiredNumberScheduled"));
        hub.annotate("kedge.dev/canary-selector", "canary in (true)");
        hub.annotate("kedge.dev/canary-soak", "0s");
        hub.turns(&mut controller, 6000..6020, |_, _| Fate::Runs);
        assert_eq!(hub.with_image("i:2"), 5, "{annotations:?}");
    };
    check(&[("kedge.dev/canary-selector", "a b")], "InvalidAnnotation", &[]);
    check(&[("kedge.dev/canary-selector", "canary=none")], "NoCanary", &[]);
    check(&[CANARY, ("kedge.dev/canary-soak", "long")], "InvalidAnnotation", &["node-3", "node-4"]);
}

#[test]
fn canaries_that_fail_are_rolled_back() {
    let (mut hub, mut controller) =
        with_canaries(&[CANARY, ("kedge.dev/max-failures", "0"), ("kedge.dev/rollback-on-failure", "true")]);
    hub.change_image("bad");
    hub.turns(&mut controller, 0..20, all(Fate::Crashes));
    assert_eq!(hub.with_image("i:1"), 5, "{:?}", hub.running());
}

impl Hub {
    /// State and message of the rollout, and a line for each node.
    pub(super) fn viewed(&self) -> (String, String, Vec<String>) {
        let view =
            crate::controllers::daemon_sets::view(&self.index, Defaults::default(), ("n", "d"), self.wall)
                .unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let line = |node: &Value| {
            format!(
                "{} {} {} {}",
                text(&node["node"]),
                node["revision"],
                text(&node["state"]),
                text(&node["why"])
            )
        };
        let lines = view["nodes"].as_array().unwrap().iter().map(line).collect();
        (text(&view["state"]), text(&view["message"]), lines)
    }
}

#[test]
fn view_names_what_each_node_does_and_why() {
    let (mut hub, mut controller) = rolled_out(4, budget(2));
    assert_eq!(hub.viewed().0, "complete");
    hub.annotate("kedge.dev/max-failures", "0");
    hub.mark("node-3", "Unknown");
    hub.change_image("bad");
    let (state, _, lines) = hub.viewed();
    assert_eq!((state.as_str(), lines.len()), ("under way", 0), "its revision is not made yet");
    hub.run_at(&mut controller, 0);
    let (state, _, lines) = hub.viewed();
    assert_eq!(state, "under way");
    assert_eq!(lines[0], "node-0 1 waits the old pod ends");
    assert_eq!(lines[3], "node-3 1 waits the node is lost: set aside until it returns");
    hub.agents_act();
    hub.run_at(&mut controller, 1);
    assert_eq!(hub.viewed().2[1], "node-1 2 starts its node has not taken it up");
    hub.agents_meet(|node, image| match node {
        "node-0" if bad(image) => Fate::Crashes,
        "node-1" => Fate::Hangs,
        _ => Fate::Runs,
    });
    hub.run_at(&mut controller, 2);
    let (state, message, lines) = hub.viewed();
    assert_eq!(state, "stopped");
    assert!(message.contains("node-0 (crash loop)"), "{message}");
    let expect = [
        "node-0 2 failed container : CrashLoopBackOff",
        "node-1 2 starts not ready",
        "node-2 1 waits the old pod runs, the update is stopped",
        "node-3 1 waits the node is lost: set aside until it returns",
    ];
    assert_eq!(lines, expect);
    let taints = json!([{"key": "kedge.dev/no-container-runtime", "effect": "NoSchedule"}, {"key": "a", "value": "b",
        "effect": "NoExecute"}]);
    hub.edit(&NODE, "", "node-2", |node| node["spec"]["taints"] = taints.clone());
    let left_out = "node-2 null left out taint kedge.dev/no-container-runtime:NoSchedule, taint a=b:NoExecute, which the pods do not \
                    tolerate";
    assert_eq!(hub.viewed().2.last().map(String::as_str), Some(left_out));
    let (mut hub, mut controller) = with_canaries(&[CANARY]);
    hub.change_image("i:2");
    hub.turns(&mut controller, 0..10, |_, _| Fate::Runs);
    let (state, _, lines) = hub.viewed();
    assert_eq!(state, "waiting for canaries");
    assert_eq!(
        (lines[0].as_str(), lines[4].as_str()),
        ("node-0 1 waits the old pod runs, waits for the canaries", "node-4 2 runs ")
    );
    assert!(
        crate::controllers::daemon_sets::view(&hub.index, Defaults::default(), ("n", "other"), hub.wall)
            .is_none()
    );
}

/// Upstream #123232: each bad update ended one more healthy pod.
#[test]
fn run_of_bad_updates_takes_one_node_at_most() {
    const BAD: [&str; 10] = ["bad1", "bad2", "bad3", "bad4", "bad5", "bad6", "bad7", "bad8", "bad9", "bad10"];
    for (fate, limit) in [
        (Fate::Crashes, "off"),
        (Fate::RunsBetweenCrashes, "off"),
        (Fate::Hangs, "off"),
        (Fate::NoImage, "off"),
        (Fate::Crashes, "0"),
    ] {
        let (mut hub, mut controller) = rolled_out(5, |_| {});
        hub.annotate("kedge.dev/max-failures", limit);
        for (index, image) in BAD.into_iter().enumerate() {
            hub.change_image(image);
            let from = index as u64 * 10;
            hub.turns(&mut controller, from..from + 5, all(fate));
            assert_eq!(hub.with_image("i:1"), 4, "{fate:?}, {image}: {:?}", hub.running());
        }
        hub.change_image("i:2");
        hub.turns(&mut controller, 200..230, all(fate));
        assert_eq!(hub.with_image("i:2"), 5, "{fate:?}");
    }
}

/// Whatever happens to pods, nodes and the hub: never two pods of the set on a node, never more nodes without
/// a serving pod because of an update than its budget, and the last template everywhere in the end.
#[test]
fn walks_end_with_the_last_template_within_the_budget() {
    let mut updates = 0;
    for seed in 1..14 {
        let mut random = Random::new(seed);
        let (mut hub, mut controller) = rolled_out(6, |set| {
            set["spec"]["updateStrategy"] = json!({"rollingUpdate": {"maxUnavailable": BUDGET}});
        });
        let (mut image, mut second) = (1, 100);
        hub.changes = (seed % 2 == 0).then(Vec::new);
        // nodes that lost their pod for another reason than an update
        let mut harmed = std::collections::BTreeSet::new();
        for step in 0..60 {
            second += random.index(20) as u64;
            let pods = hub.pods();
            let pod = (!pods.is_empty()).then(|| pods[random.index(pods.len())].clone());
            let node = format!("node-{}", random.index(6));
            match random.index(10) {
                0 => {
                    image += 1;
                    updates += 1;
                    hub.change_image(&format!("i:{image}"));
                }
                1 => {
                    hub.mark(&node, "Unknown");
                    harmed.insert(node);
                }
                2 => hub.mark(&node, "True"),
                3 => {
                    controller = DaemonSets::default();
                    crate::controllers::Controller::sweep(&mut controller, &hub.index);
                }
                4 => {
                    if let Some(pod) = pod.filter(is_live) {
                        harmed.insert(pod["spec"]["nodeName"].as_str().unwrap().to_owned());
                        hub.report(pod["metadata"]["name"].as_str().unwrap(), "Failed", false);
                    }
                }
                5..8 => {
                    if let Some(pod) = pod {
                        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
                        match is_terminating(&pod) {
                            true => hub.confirm(&name),
                            false if is_live(&pod) => hub.report(&name, "Running", true),
                            false => {}
                        }
                    }
                }
                _ => hub.run_at(&mut controller, second),
            }
            let mut on: BTreeMap<String, usize> = BTreeMap::new();
            for pod in hub.pods() {
                *on.entry(pod["spec"]["nodeName"].as_str().unwrap().to_owned()).or_default() += 1;
            }
            assert!(on.values().all(|count| *count == 1), "seed {seed}, step {step}: {on:?}");
            let serving: std::collections::BTreeSet<String> = hub
                .pods()
                .iter()
                .filter(|pod| is_live(pod) && is_ready(pod))
                .map(|pod| pod["spec"]["nodeName"].as_str().unwrap().to_owned())
                .collect();
            harmed.retain(|node| !serving.contains(node));
            let out = (0..6)
                .map(|index| format!("node-{index}"))
                .filter(|node| !serving.contains(node) && !harmed.contains(node))
                .count();
            assert!(out <= BUDGET, "seed {seed}, step {step}: {out} nodes out by an update");
        }
        (0..6).for_each(|index| hub.mark(&format!("node-{index}"), "True"));
        for _ in 0..20 {
            second += 1000;
            hub.run_at(&mut controller, second);
            hub.agents_act();
        }
        second += 1000;
        hub.run_at(&mut controller, second);
        let expect = format!("i:{image}");
        assert!(
            hub.running().len() == 6 && hub.running().values().all(|images| *images == [expect.as_str()]),
            "seed {seed}: {:?}",
            hub.running()
        );
        assert_eq!(
            (hub.status("numberUnavailable"), hub.status("desiredNumberScheduled")),
            (0, 6),
            "seed {seed}"
        );
        assert!(hub.revisions().len() <= 11, "seed {seed}");
    }
    assert!(updates > 40, "{updates}: the walk proves little");
}
