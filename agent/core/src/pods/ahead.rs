//! Pulls images ahead: the images of the pod that will replace this one, while this one still runs.
//!
//! The hub requests this by an annotation of the running pod, and the node answers by a condition of the pod
//! (`kedge_api::PullAhead`). Always holds: at most one of these images is being pulled for a pod at a time;
//! the requested images count as needed until the pod is gone, so they are not collected meanwhile; a failed
//! pull is tried again after a back-off and does not disturb running containers. The pull uses the secrets of
//! the running pod, because the node may read no others. Only pods of the API server have this: on a static
//! pod the annotation has no effect. Leaves to others: the decision to request images and the use of the
//! condition (the hub), how an image is pulled.

use crate::answer::Now;
use crate::images::image::Image;
use crate::pods::backoff::Retry;
use crate::pods::event::Failure;
use crate::pods::pulls::{pull_retry, pull_words};
use crate::pods::status::Judged;
use kedge_api::{ImageAhead, MOST_PULLED_AHEAD, PULL_AHEAD_ANNOTATION, PULLING, PullAhead};
use std::time::Duration;

/// Used in an order in place of a container's name; a container cannot have this name.
pub(crate) const SLOT: &str = "+ahead";
/// Longest message of the condition.
const MESSAGE_CHARS: usize = 1000;

/// The requested images, and how many of them were pulled.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ahead {
    /// The annotation as it was read.
    annotation: Option<String>,
    wanted: Option<PullAhead>,
    /// Why the annotation is unreadable.
    problem: Option<String>,
    /// This many images, counted from the first, are on the node.
    done: usize,
    /// The image that is being pulled or checked.
    pulling: Option<String>,
    retry: Retry,
    /// Reason and message of the last failure.
    failure: Option<(&'static str, String)>,
    fetched_bytes: u64,
    took: Duration,
}

impl Ahead {
    pub(crate) fn asked(&mut self, annotation: Option<&String>) {
        if annotation == self.annotation.as_ref() {
            return;
        }
        // an order that is under way will still be answered, so it stays noted
        let pulling = self.pulling.take();
        *self = Self { annotation: annotation.cloned(), pulling, ..Self::default() };
        let Some(text) = annotation else { return };
        match kedge_api::read::from_slice::<PullAhead>(text.as_bytes()) {
            Ok(wanted) if wanted.images.len() <= MOST_PULLED_AHEAD => self.wanted = Some(wanted),
            Ok(PullAhead { revision, images }) => {
                let count = images.len();
                self.problem = Some(format!(
                    "{revision}: annotation {PULL_AHEAD_ANNOTATION} names {count} images, expected {MOST_PULLED_AHEAD} at most; none is \
                     pulled ahead"
                ));
            }
            Err(error) => {
                self.problem = Some(format!(
                    "annotation {PULL_AHEAD_ANNOTATION} cannot be read: {error}; no image is pulled ahead"
                ));
            }
        }
    }

    /// The names of the requested images.
    pub(crate) fn images(&self) -> impl Iterator<Item = String> {
        self.wanted.iter().flat_map(|wanted| wanted.images.iter().map(|image| image.image.clone()))
    }

    /// The first image that is not on the node, unless an order is under way.
    pub(crate) fn next(&self) -> Option<&ImageAhead> {
        self.wanted.as_ref().filter(|_| self.pulling.is_none())?.images.get(self.done)
    }

    /// Until when the next one waits after a failure.
    pub(crate) fn wait(&self, now: Now) -> Option<Duration> {
        (!self.retry.is_due(now.mono)).then(|| self.retry.due())
    }

    /// The next one was ordered.
    pub(crate) fn ordered(&mut self, image: &str) {
        self.pulling = Some(image.to_owned());
    }

    /// Takes the answer to an order; returns the image's name if it is still requested.
    fn answered(&mut self) -> Option<String> {
        let pulled = self.pulling.take()?;
        self.next().is_some_and(|next| next.image == pulled).then_some(pulled)
    }

    /// The ordered image is on the node. Returns reason and text of an Event if it was the last one.
    pub(crate) fn pulled(&mut self, image: &Image) -> Option<(&'static str, String)> {
        self.answered()?;
        self.done = self.done.saturating_add(1);
        self.failure = None;
        self.retry.succeeded();
        let (took, bytes) = image.pulled.unwrap_or_default();
        (self.took, self.fetched_bytes) =
            (self.took.saturating_add(took), self.fetched_bytes.saturating_add(bytes));
        let (is_done, reason, message) = self.judged()?;
        is_done.then(|| (reason, format!("Pulled ahead for revision {message}")))
    }

    /// The ordered image could not be pulled. Returns reason and text of an Event.
    pub(crate) fn failed(&mut self, now: Now, failure: &Failure) -> Option<(&'static str, String)> {
        let image = self.answered()?;
        pull_retry(&mut self.retry, now, failure);
        let (reason, event, text, told) = pull_words(&image, failure, self.retry.failures() > 1);
        self.failure = Some((reason, text));
        Some((event, format!("Pulling ahead for the next pod: {told}")))
    }

    /// The condition; `None` if no images are requested.
    pub(crate) fn judged(&self) -> Option<Judged<'static>> {
        let judged = |is_true, reason, text: String| {
            Some((is_true, reason, kedge_api::excerpt_of(&text, MESSAGE_CHARS)))
        };
        if let Some(problem) = &self.problem {
            return judged(false, "InvalidRequest", problem.clone());
        }
        let PullAhead { revision, images } = self.wanted.as_ref()?;
        let Some(next) = images.get(self.done) else {
            let (count, bytes, took) = (images.len(), self.fetched_bytes, self.took.as_millis());
            let text =
                format!("{revision}: {count} images are there, {bytes} bytes were fetched in {took} ms");
            return judged(true, "Pulled", text);
        };
        match &self.failure {
            Some((reason, why)) => judged(false, reason, format!("{revision}: {why}")),
            None => judged(false, PULLING, format!("{revision}: image {:?} is being pulled", next.image)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Answer;
    use crate::pods::event::{ImageOrder, PodAction};
    use crate::pods::keys::{ObjectKind, ObjectName};
    use crate::pods::probes::tests::Node;
    use crate::pods::{
        Command, FailureReason, Inventory, NodeFacts, ObjectRead, PodEvent, PodNetworks, PodRequest, PodUid,
        Pods, PullPolicy,
    };
    use serde_json::{Value, json};

    fn pod(asked: &str) -> Value {
        let annotations = if asked.is_empty() { json!({}) } else { json!({PULL_AHEAD_ANNOTATION: asked}) };
        json!({"metadata": {"name": "p", "namespace": "n", "uid": "u-1", "annotations": annotations},
            "spec": {"containers": [{"name": "a", "image": "x:1"}], "imagePullSecrets": [{"name": "s"}]}})
    }

    fn asks(revision: &str, images: &[&str]) -> String {
        let images: Vec<Value> =
            images.iter().map(|image| json!({"image": image, "policy": "IfNotPresent"})).collect();
        json!({"revision": revision, "images": images}).to_string()
    }

    /// A node on which the pod runs; its Secret has been read.
    fn node() -> Node {
        let mut node = Node { pods: Pods::new("edge"), secs: 1, seen: vec![] };
        let facts = NodeFacts {
            name: "edge".into(),
            cpu_milli: 4000,
            memory_bytes: 1 << 30,
            pods: 10,
            network: PodNetworks::Ready("n".into()),
            has_cluster_dns: true,
            ..NodeFacts::default()
        };
        let secret = json!({"data": {".dockerconfigjson": "e30="}});
        let name = ObjectName { kind: ObjectKind::Secret, namespace: "n".into(), name: "s".into() };
        for event in [
            PodEvent::Node(Box::new(facts)),
            PodEvent::Held(false),
            PodEvent::DesiredRead(Ok(vec![])),
            PodEvent::Inventory(Inventory::default()),
            PodEvent::StaticPods(Ok(vec![])),
            PodEvent::PodsListed { node_uid: "N".into(), pods: vec![pod("")] },
            PodEvent::ObjectRead { name, read: ObjectRead::Found(secret) },
        ] {
            let actions = node.tell(event);
            node.perform_all(actions);
        }
        assert_eq!(node.pods.report()[0].containers[0].state, "Running");
        node
    }

    impl Node {
        /// As `perform`, but the API server accepts statuses; returns the orders to pull ahead.
        fn perform_all(&mut self, mut actions: Vec<PodAction>) -> Vec<ImageOrder> {
            let mut orders = vec![];
            while !actions.is_empty() {
                for action in std::mem::take(&mut actions) {
                    let event = match action {
                        PodAction::PullImage(order) if order.container == SLOT => {
                            orders.push(*order);
                            continue;
                        }
                        PodAction::PatchPodStatus { pod, patch } => {
                            let request = PodRequest::PatchStatus(pod.clone());
                            self.seen.push(PodAction::PatchPodStatus { pod, patch });
                            Ok(PodEvent::Answered { request, answer: Answer::Accepted(None) })
                        }
                        other => self.carried_out(other),
                    };
                    actions.extend(event.into_iter().flat_map(|event| self.tell(event)));
                }
            }
            orders
        }

        fn ask(&mut self, text: &str) -> Vec<ImageOrder> {
            let actions = self.tell(PodEvent::PodSeen(pod(text)));
            self.perform_all(actions)
        }

        fn pulled(&mut self, bytes: u64) -> Vec<ImageOrder> {
            let image = Image { pulled: Some((Duration::from_millis(20), bytes)), ..Image::default() };
            let pod = PodUid::new("u-1").unwrap();
            let actions = self.tell(PodEvent::ImageReady { pod, container: SLOT.into(), image });
            self.perform_all(actions)
        }

        fn failed(&mut self) -> Vec<ImageOrder> {
            let pod = PodUid::new("u-1").unwrap();
            let failure = Failure { reason: FailureReason::Other, message: "no route".into() };
            let command = Command::PullImage { pod, container: SLOT.into() };
            let actions = self.tell(PodEvent::Failed { command, failure });
            self.perform_all(actions)
        }

        fn later(&mut self, secs: u64) -> Vec<ImageOrder> {
            self.secs += secs;
            let actions = self.tell(PodEvent::Tick);
            self.perform_all(actions)
        }

        /// The condition as it was last sent: status, reason, message.
        fn condition(&self) -> [String; 3] {
            let of = |action: &PodAction| match action {
                PodAction::PatchPodStatus { patch, .. } => {
                    let conditions = patch["status"]["conditions"].as_array()?;
                    conditions.iter().find(|one| one["type"] == kedge_api::IMAGES_PULLED).cloned()
                }
                _ => None,
            };
            let found = self.seen.iter().rev().find_map(of).unwrap_or_default();
            ["status", "reason", "message"].map(|key| found[key].as_str().unwrap_or_default().to_owned())
        }
    }

    fn names(orders: &[ImageOrder]) -> Vec<&str> {
        orders.iter().map(|order| order.image.as_str()).collect()
    }

    #[test]
    fn images_asked_for_are_pulled_one_by_one_and_answered() {
        let mut node = node();
        let orders = node.ask(&asks("r2", &["x:2", "y:2"]));
        assert_eq!(names(&orders), ["x:2"]);
        assert_eq!(orders[0].credentials, [b"{}"], "the secrets of the pod that runs");
        assert_eq!(orders[0].policy, PullPolicy::IfNotPresent);
        assert_eq!(node.condition(), ["False", "Pulling", "r2: image \"x:2\" is being pulled"]);
        assert_eq!(names(&node.later(1)), [""; 0], "one at a time");
        assert_eq!(names(&node.pulled(100)), ["y:2"]);
        assert_eq!(names(&node.pulled(11)), [""; 0]);
        let expect = ["True", "Pulled", "r2: 2 images are there, 111 bytes were fetched in 40 ms"];
        assert_eq!(node.condition(), expect);
        assert_eq!(node.pods.report()[0].containers[0].restarts, 0, "the pod runs all the while");
    }

    #[test]
    fn pull_ahead_that_fails_is_tried_again_after_a_back_off() {
        let mut node = node();
        node.ask(&asks("r2", &["x:2"]));
        assert_eq!(names(&node.failed()), [""; 0]);
        assert_eq!(node.condition(), ["False", "ErrImagePull", "r2: no route"]);
        assert_eq!(names(&node.later(9)), [""; 0]);
        assert_eq!(names(&node.later(1)), ["x:2"]);
        node.failed();
        assert_eq!(node.condition()[1], "ImagePullBackOff");
        assert_eq!(names(&node.later(20)), ["x:2"]);
        node.pulled(1);
        assert_eq!(node.condition()[..2], ["True", "Pulled"]);
        assert_eq!(node.pods.report()[0].containers[0].state, "Running");
    }

    #[test]
    fn images_asked_for_are_not_collected_until_the_pod_is_gone() {
        let mut node = node();
        node.ask(&asks("r2", &["x:2"]));
        let has = |node: &Node| node.pods.images_in_use().contains("x:2");
        assert!(has(&node));
        let mut ending = pod(&asks("r2", &["x:2"]));
        ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        node.tell(PodEvent::PodSeen(ending));
        assert!(has(&node), "the pod that needs it comes once this one is gone");
        let mut other = self::node();
        other.ask(&asks("r2", &["x:2"]));
        other.ask("");
        assert!(!has(&other), "nothing is asked for any more");
    }

    #[test]
    fn another_request_takes_the_place_of_the_first() {
        let mut node = node();
        node.ask(&asks("r2", &["x:2"]));
        assert_eq!(names(&node.ask(&asks("r3", &["x:3"]))), [""; 0], "the first is still under way");
        assert_eq!(node.condition()[2], "r3: image \"x:3\" is being pulled");
        assert_eq!(names(&node.pulled(1)), ["x:3"]);
        node.pulled(1);
        assert!(node.condition()[2].starts_with("r3: 1 images"), "{:?}", node.condition());
        // the request is withdrawn, so the condition disappears too
        let mut object = pod("");
        object["status"]["conditions"] = json!([{"type": kedge_api::IMAGES_PULLED, "status": "True"}]);
        let actions = node.tell(PodEvent::PodSeen(object));
        let removal = json!({"type": kedge_api::IMAGES_PULLED, "$patch": "delete"});
        let is_removed = actions.iter().any(|action| match action {
            PodAction::PatchPodStatus { patch, .. } => {
                patch["status"]["conditions"].as_array().is_some_and(|list| list.contains(&removal))
            }
            _ => false,
        });
        assert!(is_removed, "{actions:?}");
    }

    #[test]
    fn request_that_cannot_be_read_is_refused() {
        let mut node = node();
        assert_eq!(names(&node.ask("images: x:2")), [""; 0]);
        assert_eq!(node.condition()[..2], ["False", "InvalidRequest"]);
        let many: Vec<String> = (0..=MOST_PULLED_AHEAD).map(|index| format!("x:{index}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(names(&node.ask(&asks("r2", &many))), [""; 0]);
        assert!(node.condition()[2].starts_with("r2: annotation"), "{:?}", node.condition());
        assert!(!node.pods.images_in_use().contains("x:2"));
    }
}
