//! Images that are pulled before an update stops a pod: which node gets which request, and the effect of its
//! answer.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Hub;
use super::daemon_sets::{budget, is_live, is_terminating, rolled_out};
use crate::controllers::daemon_sets::{DaemonSets, Defaults};
use crate::kinds::{DAEMON_SET, NODE, POD};
use kedge_api::{IMAGES_PULLED, PULL_AHEAD_ANNOTATION, PullAhead};

impl Hub {
    /// The node's agent is Kedge's.
    fn make_capable(&mut self, node: &str) {
        self.edit(&NODE, "", node, |node| {
            node["status"]["nodeInfo"] = json!({"kubeletVersion": "v1.36.0+kedge-0.1.0"});
        });
    }

    /// Node, images and revision of each request.
    fn asked(&self) -> Vec<(String, Vec<String>, String)> {
        let of = |pod: &Value| {
            let request = pod["metadata"]["annotations"][PULL_AHEAD_ANNOTATION].as_str()?;
            let request: PullAhead = serde_json::from_str(request).unwrap();
            let images = request.images.into_iter().map(|image| image.image).collect();
            Some((pod["spec"]["nodeName"].as_str()?.to_owned(), images, request.revision))
        };
        self.pods().iter().filter(|pod| is_live(pod)).filter_map(of).collect()
    }

    fn asked_nodes(&self) -> Vec<String> {
        self.asked().into_iter().map(|(node, ..)| node).collect()
    }

    /// The agents with a request answer it.
    fn answer(&mut self, status: &str, reason: &str, message: &str) {
        for (node, _, revision) in self.asked() {
            let condition = json!({"type": IMAGES_PULLED, "status": status, "reason": reason,
                "message": format!("{revision}: {message}"), "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let pods = self.pods();
            let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == *node && is_live(pod)).unwrap();
            let name = pod["metadata"]["name"].as_str().unwrap();
            self.edit(&POD, "n", name, |pod| {
                let conditions = pod["status"]["conditions"].as_array_mut().unwrap();
                conditions.retain(|one| one["type"] != IMAGES_PULLED);
                conditions.push(condition.clone());
            });
        }
    }

    fn serving(&self, image: &str) -> usize {
        let is_it = |pod: &&Value| is_live(pod) && pod["spec"]["containers"][0]["image"] == image;
        self.pods().iter().filter(is_it).count()
    }
}

fn capable(nodes: usize, change: impl FnOnce(&mut Value)) -> (Hub, DaemonSets) {
    let (mut hub, controller) = rolled_out(nodes, change);
    (0..nodes).for_each(|index| hub.make_capable(&format!("node-{index}")));
    (hub, controller)
}

#[test]
fn pod_is_stopped_once_its_images_are_there() {
    let (mut hub, mut controller) = capable(3, budget(1));
    hub.change_image("i:2");
    hub.run_at(&mut controller, 0);
    let asked = hub.asked();
    assert_eq!(asked.len(), 1, "no more at a time than the budget: {asked:?}");
    assert_eq!((asked[0].0.as_str(), &asked[0].1[..]), ("node-0", &["i:2".to_owned()][..]));
    hub.answer("False", "Pulling", "image \"i:2\" is being pulled");
    for second in [1, 100, 500] {
        hub.run_at(&mut controller, second);
        assert_eq!((hub.serving("i:1"), hub.asked_nodes().len()), (3, 1), "at {second} s");
    }
    // a hub that is killed meanwhile asks no further node
    controller = DaemonSets::default();
    hub.run_at(&mut controller, 501);
    assert_eq!((hub.serving("i:1"), hub.asked_nodes().len()), (3, 1));
    for second in 502..520 {
        hub.answer("True", "Pulled", "1 images are there");
        hub.run_at(&mut controller, second);
        hub.agents_act();
        assert!(hub.serving("i:1") + hub.serving("i:2") >= 2, "at {second} s");
    }
    assert_eq!((hub.serving("i:2"), hub.asked()), (3, vec![]));
    assert_eq!(hub.viewed().0, "complete");
}

#[test]
fn pull_ahead_that_fails_stops_an_update_without_harm() {
    let (mut hub, mut controller) = capable(4, budget(1));
    hub.annotate("kedge.dev/max-failures", "0");
    hub.change_image("bad");
    hub.run_at(&mut controller, 0);
    hub.answer("False", "ErrImagePull", "no such image");
    hub.run_at(&mut controller, 1);
    assert_eq!(
        hub.viewed().2[0],
        "node-0 1 failed no such image; the old pod runs until the images are there"
    );
    hub.run_at(&mut controller, 60);
    assert_eq!(hub.stopped().0, "", "a registry that is away for a moment stops nothing");
    hub.run_at(&mut controller, 61);
    let (status, message) = hub.stopped();
    assert_eq!(status, "True");
    assert!(message.contains("1 node failed, more than 0: node-0 (image not pulled)"), "{message}");
    assert_eq!(hub.serving("i:1"), 4, "no pod was stopped");
    hub.annotate("kedge.dev/rollback-on-failure", "true");
    hub.run_at(&mut controller, 62);
    let set = hub.value(&DAEMON_SET, "n", "d");
    assert_eq!(set["spec"]["template"]["spec"]["containers"][0]["image"], "i:1");
    assert_eq!((hub.serving("i:1"), hub.asked()), (4, vec![]), "the request is taken back");
}

#[test]
fn pull_ahead_that_recovers_goes_on() {
    let (mut hub, mut controller) = capable(4, budget(1));
    hub.annotate("kedge.dev/max-failures", "1");
    hub.change_image("i:2");
    hub.run_at(&mut controller, 0);
    hub.answer("False", "ImagePullBackOff", "no route");
    hub.run_at(&mut controller, 1);
    hub.run_at(&mut controller, 90);
    assert_eq!((hub.asked_nodes(), hub.serving("i:1")), (vec!["node-0".to_owned()], 4), "it has its turn");
    hub.answer("True", "Pulled", "1 images are there");
    hub.run_at(&mut controller, 91);
    assert_eq!((hub.serving("i:1"), hub.stopped().0.as_str()), (3, ""));
}

#[test]
fn pull_ahead_that_hangs_fails_at_the_progress_deadline() {
    let (mut hub, mut controller) = capable(3, budget(1));
    hub.annotate("kedge.dev/max-failures", "0");
    hub.annotate("kedge.dev/progress-deadline", "200s");
    hub.change_image("i:2");
    hub.run_at(&mut controller, 0);
    hub.answer("False", "Pulling", "image \"i:2\" is being pulled");
    hub.run_at(&mut controller, 1);
    hub.run_at(&mut controller, 199);
    assert_eq!(hub.stopped().0, "");
    hub.run_at(&mut controller, 201);
    let (status, message) = hub.stopped();
    assert!(status == "True" && message.contains("node-0 (image not pulled in time)"), "{message}");
    assert_eq!(hub.serving("i:1"), 3);
}

#[test]
fn node_that_does_not_answer_is_updated_after_a_minute() {
    let (mut hub, mut controller) = capable(2, budget(1));
    hub.change_image("i:2");
    hub.run_at(&mut controller, 0);
    hub.run_at(&mut controller, 59);
    assert_eq!((hub.serving("i:1"), hub.asked_nodes()), (2, vec!["node-0".to_owned()]));
    assert_eq!(
        hub.viewed().2[0],
        "node-0 1 pulls asked to pull images, not answered yet; the old pod runs until the images are there"
    );
    hub.run_at(&mut controller, 60);
    assert_eq!(hub.serving("i:1"), 1);
}

#[test]
fn answer_to_another_request_counts_for_nothing() {
    let (mut hub, mut controller) = capable(2, budget(1));
    hub.change_image("i:2");
    hub.run_at(&mut controller, 0);
    let first = hub.asked();
    hub.answer("True", "Pulled", "1 images are there");
    hub.change_image("i:3");
    hub.run_at(&mut controller, 1);
    let second = hub.asked();
    assert_eq!((second[0].1[0].as_str(), hub.serving("i:1")), ("i:3", 2), "{second:?}");
    // going back to the same template is a new request: the images may have been collected since
    hub.change_image("i:2");
    hub.run_at(&mut controller, 2);
    let third = hub.asked();
    assert!(third[0].1 == first[0].1 && third[0].2 != first[0].2, "{third:?}");
    assert_eq!(hub.serving("i:1"), 2);
}

#[test]
fn undo_takes_the_request_back() {
    let (mut hub, mut controller) = capable(2, budget(1));
    hub.change_image("i:2");
    hub.run_at(&mut controller, 0);
    assert_eq!(hub.asked().len(), 1);
    hub.change_image("i:1");
    hub.run_at(&mut controller, 1);
    assert_eq!((hub.asked(), hub.serving("i:1")), (vec![], 2));
    hub.change_image("i:2");
    hub.run_at(&mut controller, 2);
    hub.annotate("kedge.dev/paused", "true");
    hub.run_at(&mut controller, 3);
    assert_eq!((hub.asked(), hub.serving("i:1")), (vec![], 2), "nor does a paused set pull");
}

/// A change of the set, and whether its update begins with a pull.
#[test]
fn only_what_may_be_missing_is_pulled_ahead() {
    type Change = fn(&mut Value);
    let changes: [(&str, Change, Option<&[&str]>); 8] = [
        ("another image", |pod| pod["containers"][0]["image"] = "i:2".into(), Some(&["i:2"])),
        ("another variable", |pod| pod["containers"][0]["env"] = json!([{"name": "a", "value": "b"}]), None),
        (
            "its image, by Always",
            |pod| pod["containers"][0]["imagePullPolicy"] = "Always".into(),
            Some(&["i:1"]),
        ),
        (
            "one more container",
            |pod| pod["containers"].as_array_mut().unwrap().push(json!({"name": "b", "image": "b:1"})),
            Some(&["b:1"]),
        ),
        (
            "an init container of the same image",
            |pod| pod["initContainers"] = json!([{"name": "b", "image": "i:1"}]),
            None,
        ),
        (
            "an init container of its own",
            |pod| pod["initContainers"] = json!([{"name": "b", "image": "b:1"}]),
            Some(&["b:1"]),
        ),
        (
            "a secret that the pod has not",
            |pod| {
                pod["containers"][0]["image"] = "i:2".into();
                pod["imagePullSecrets"] = json!([{"name": "other"}]);
            },
            None,
        ),
        (
            "the secret that the pod has",
            |pod| {
                pod["containers"][0]["image"] = "i:2".into();
                pod["imagePullSecrets"] = json!([{"name": "own"}]);
            },
            Some(&["i:2"]),
        ),
    ];
    for (what, change, expect) in changes {
        let (mut hub, mut controller) = capable(2, |set| {
            budget(1)(set);
            set["spec"]["template"]["spec"]["imagePullSecrets"] = json!([{"name": "own"}]);
        });
        hub.edit(&DAEMON_SET, "n", "d", |set| change(&mut set["spec"]["template"]["spec"]));
        hub.run_at(&mut controller, 0);
        let asked = hub.asked().into_iter().map(|(_, images, _)| images).next();
        let expect = expect.map(|images| images.iter().map(|image| (*image).to_owned()).collect());
        assert_eq!(asked, expect, "{what}");
        let stopped = hub.pods().iter().filter(|pod| !is_live(pod)).count();
        assert_eq!(stopped, usize::from(asked.is_none()), "{what}");
    }
}

#[test]
fn pod_that_does_not_serve_waits_for_no_images() {
    let (mut hub, mut controller) = capable(2, budget(1));
    let pod = hub.pods()[0].clone();
    hub.report(pod["metadata"]["name"].as_str().unwrap(), "Running", false);
    hub.run_at(&mut controller, 0);
    hub.run_at(&mut controller, 60);
    hub.change_image("i:2");
    hub.run_at(&mut controller, 61);
    assert_eq!((hub.serving("i:1"), hub.asked()), (1, vec![]));
}

#[test]
fn set_that_wants_no_pre_pull_gets_none() {
    for (key, value, asks) in [
        ("kedge.dev/pre-pull", "false", 0),
        ("kedge.dev/pre-pull", "true", 1),
        ("kedge.dev/pre-pull", "no", 1),
    ] {
        let (mut hub, mut controller) = capable(2, budget(1));
        hub.annotate(key, value);
        hub.change_image("i:2");
        hub.run_at(&mut controller, 0);
        assert_eq!((hub.asked().len(), hub.serving("i:1")), (asks, 1 + asks), "{value}");
        assert_eq!(
            hub.reasons().iter().any(|reason| reason == "InvalidAnnotation"),
            value == "no",
            "{value}"
        );
    }
}

#[test]
fn default_of_the_hub_holds_without_an_annotation() {
    for (default, value, asks) in
        [(true, "", 1), (false, "", 0), (false, "true", 1), (true, "false", 0), (false, "no", 0)]
    {
        let (mut hub, _) = capable(2, budget(1));
        let mut controller = DaemonSets::new(Defaults { pre_pull: default });
        if !value.is_empty() {
            hub.annotate("kedge.dev/pre-pull", value);
        }
        hub.change_image("i:2");
        hub.run_at(&mut controller, 0);
        assert_eq!((hub.asked().len(), hub.serving("i:1")), (asks, 1 + asks), "{default} {value:?}");
    }
}

/// Upstream's conformance test "should rollback without unnecessary restarts" expects a pod with a missing
/// image to be replaced: by upstream's default.
#[test]
fn roll_back_restarts_no_pod_that_serves() {
    let (mut hub, _) = capable(3, |_| {});
    let mut controller = DaemonSets::new(Defaults { pre_pull: false });
    let uids = |hub: &Hub| -> BTreeSet<String> {
        hub.pods().iter().map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_owned()).collect()
    };
    let before = uids(&hub);
    hub.change_image("foo:non-existent");
    for second in 0..20 {
        hub.run_at(&mut controller, second);
        for pod in hub.pods().iter().filter(|pod| is_terminating(pod)) {
            hub.confirm(pod["metadata"]["name"].as_str().unwrap());
        }
    }
    assert_eq!((hub.serving("foo:non-existent"), hub.serving("i:1")), (1, 2), "in the middle of it");
    let kept: BTreeSet<String> = before.intersection(&uids(&hub)).cloned().collect();
    hub.change_image("i:1");
    for second in 20..40 {
        hub.run_at(&mut controller, second);
        hub.agents_act();
    }
    assert_eq!(hub.serving("i:1"), 3);
    assert_eq!((kept.len(), uids(&hub).is_superset(&kept)), (2, true), "they run as before");
}
