//! Volumes that are images: each image is pulled before the pod's volumes are made, one after the other, by
//! its own policy and with the pod's secrets.
//!
//! Always holds: a volume is made only of an image that is completely on the node; an image is needed as long
//! as a pod that names it is not over; while an image is unavailable, the containers that mount it wait, with
//! the same reasons as for their own images. Leaves to others: how an image is pulled, and mounting it (the
//! runtime).

use crate::answer::Now;
use crate::pods::backoff::Retry;
use crate::pods::event::Failure;
use crate::pods::pulls::pull_retry;
use crate::pods::spec::{ImageVolume, Pod, PodSpec};
use std::collections::BTreeMap;
use std::time::Duration;

/// Used in an order in place of a container's name; a container cannot have this name.
pub(crate) const SLOT: &str = "+volume";

/// The progress of the images of a pod's volumes.
#[derive(Debug, Clone, Default)]
pub(crate) struct ImageVolumes {
    /// The IDs of the images that are on the node, by volume.
    ready: BTreeMap<String, String>,
    /// The volume and the image that is being pulled or checked.
    pulling: Option<(String, String)>,
    retry: Retry,
}

impl ImageVolumes {
    /// The ID of a volume's image; `None` if the image is not on the node.
    pub(crate) fn id(&self, volume: &str) -> Option<&String> {
        self.ready.get(volume)
    }

    /// Whether an order is under way.
    pub(crate) fn are_pulled(&self) -> bool {
        self.pulling.is_some()
    }

    /// The first volume of the pod whose image is not on the node.
    pub(crate) fn missing<'a>(&self, pod: &'a Pod) -> Option<(&'a str, &'a ImageVolume)> {
        let volumes = pod.spec.volumes.iter();
        let mut images = volumes.filter_map(|volume| Some((volume.name.as_str(), volume.image.as_ref()?)));
        images.find(|(volume, _)| !self.ready.contains_key(*volume))
    }

    /// Until when the next order waits after a failure.
    pub(crate) fn wait(&self, now: Now) -> Option<Duration> {
        (!self.retry.is_due(now.mono)).then(|| self.retry.due())
    }

    /// The image of this volume was ordered.
    pub(crate) fn ordered(&mut self, volume: &str, reference: &str) {
        self.pulling = Some((volume.to_owned(), reference.to_owned()));
    }

    /// The ordered image is on the node. Returns volume and reference.
    pub(crate) fn pulled(&mut self, id: String) -> Option<(String, String)> {
        let (volume, reference) = self.pulling.take()?;
        self.retry.succeeded();
        self.ready.insert(volume.clone(), id);
        Some((volume, reference))
    }

    /// The ordered image could not be pulled. Returns volume and reference, and whether it failed before.
    pub(crate) fn failed(&mut self, now: Now, failure: &Failure) -> Option<(String, String, bool)> {
        let (volume, reference) = self.pulling.take()?;
        pull_retry(&mut self.retry, now, failure);
        Some((volume, reference, self.retry.failures() > 1))
    }

    /// Making the volumes failed, perhaps because an image was removed meanwhile: checks all again.
    pub(crate) fn check_again(&mut self) {
        self.ready.clear();
    }
}

impl PodSpec {
    /// The names of the images that are used as volumes.
    pub(crate) fn images_of_volumes(&self) -> impl Iterator<Item = String> {
        self.volumes.iter().filter_map(|volume| Some(volume.image.as_ref()?.reference.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::image::Image;
    use crate::pods::event::{FailureReason, PodAction, PodEvent, PodNetworks, PullPolicy, VolumeSource};
    use crate::pods::{Command, Inventory, NodeFacts, PodUid, Pods};
    use serde_json::{Value, json};

    struct Node {
        pods: Pods,
        secs: u64,
    }

    fn pod() -> Value {
        let volume = |name: &str, image: Value| json!({"name": name, "image": image});
        json!({"metadata": {"name": "p", "namespace": "n", "uid": "u-1"}, "spec": {
            "volumes": [volume("a", json!({"reference": "data:1"})),
                volume("b", json!({"reference": "more:latest", "pullPolicy": "Never"}))],
            "containers": [{"name": "main", "image": "x:1", "volumeMounts": [{"name": "a", "mountPath": "/a"}]}]}})
    }

    impl Node {
        /// A node to which the pod is bound, and the actions so far.
        fn with_pod() -> (Self, Vec<PodAction>) {
            let mut node = Self { pods: Pods::new("edge"), secs: 1 };
            let facts = NodeFacts {
                pods: 10,
                memory_bytes: 1 << 30,
                network: PodNetworks::Ready("n".into()),
                ..NodeFacts::default()
            };
            let mut all = vec![];
            for event in [
                PodEvent::Node(Box::new(facts)),
                PodEvent::Held(false),
                PodEvent::DesiredRead(Ok(vec![])),
                PodEvent::Inventory(Inventory::default()),
                PodEvent::StaticPods(Ok(vec![])),
                PodEvent::PodsListed { node_uid: "N".into(), pods: vec![pod()] },
            ] {
                all.extend(node.tell(event));
            }
            (node, all)
        }

        fn tell(&mut self, event: PodEvent) -> Vec<PodAction> {
            let now = Now { mono: Duration::from_secs(self.secs), wall: Default::default() };
            let (mut all, mut events) = (vec![], vec![event]);
            while let Some(event) = events.pop() {
                let mut actions = vec![];
                self.pods.handle(now, event, &mut actions);
                for action in actions {
                    match action {
                        PodAction::SaveDesired { file, .. } => {
                            events.push(PodEvent::DesiredSaved { file, done: Ok(()) });
                        }
                        other => all.push(other),
                    }
                }
            }
            all
        }

        fn is_there(&mut self, id: &str) -> Vec<PodAction> {
            let image = Image { id: id.into(), ..Image::default() };
            let pod = PodUid::new("u-1").unwrap();
            self.tell(PodEvent::ImageReady { pod, container: SLOT.into(), image })
        }

        fn fails(&mut self, reason: FailureReason) -> Vec<PodAction> {
            let command = Command::PullImage { pod: PodUid::new("u-1").unwrap(), container: SLOT.into() };
            let failure = Failure { reason, message: "no route".into() };
            self.tell(PodEvent::Failed { command, failure })
        }
    }

    fn pulls(actions: &[PodAction]) -> Vec<(&str, PullPolicy)> {
        let orders = actions.iter().filter_map(|action| match action {
            PodAction::PullImage(order) if order.container == SLOT => {
                Some((order.image.as_str(), order.policy))
            }
            _ => None,
        });
        orders.collect()
    }

    fn prepared(actions: &[PodAction]) -> Option<Vec<(String, VolumeSource)>> {
        actions.iter().find_map(|action| match action {
            PodAction::PreparePod(pod) => {
                Some(pod.volumes.iter().map(|volume| (volume.name.clone(), volume.source.clone())).collect())
            }
            _ => None,
        })
    }

    #[test]
    fn pod_is_prepared_once_its_images_are_there() {
        let (mut node, actions) = Node::with_pod();
        assert_eq!(pulls(&actions), [("data:1", PullPolicy::IfNotPresent)]);
        let actions = node.is_there("id-a");
        assert_eq!((pulls(&actions), prepared(&actions)), (vec![("more:latest", PullPolicy::Never)], None));
        let actions = node.is_there("id-b");
        let image = |name: &str, id: &str| (name.to_owned(), VolumeSource::Image { id: id.into() });
        assert_eq!(prepared(&actions), Some(vec![image("a", "id-a"), image("b", "id-b")]));
        let needed = node.pods.images_in_use();
        assert!(["data:1", "more:latest", "x:1"].iter().all(|name| needed.contains(*name)), "{needed:?}");

        // an image that was removed before it was mounted is fetched again
        let failure = Failure { reason: FailureReason::Volume, message: "it is not there".into() };
        let command = Command::PreparePod(PodUid::new("u-1").unwrap());
        node.tell(PodEvent::Failed { command, failure });
        node.secs += 60;
        assert_eq!(pulls(&node.tell(PodEvent::Tick)), [("data:1", PullPolicy::IfNotPresent)]);
    }

    #[test]
    fn image_that_cannot_be_had_keeps_the_pod_waiting() {
        let (mut node, _) = Node::with_pod();
        let actions = node.fails(FailureReason::Other);
        assert_eq!((pulls(&actions), prepared(&actions)), (vec![], None));
        let reason = |node: &Node| node.pods.report()[0].containers[0].reason.clone();
        assert_eq!(reason(&node).as_deref(), Some("ErrImagePull"));
        node.secs += 5;
        assert!(pulls(&node.tell(PodEvent::Tick)).is_empty(), "it backs off");
        node.secs += 6;
        assert_eq!(pulls(&node.tell(PodEvent::Tick)).len(), 1);
        node.fails(FailureReason::Other);
        assert_eq!(reason(&node).as_deref(), Some("ImagePullBackOff"));
        node.secs += 30;
        assert_eq!(pulls(&node.tell(PodEvent::Tick)).len(), 1);
        node.is_there("id-a");
        assert_eq!(reason(&node), None);
        node.fails(FailureReason::ImageNeverPull);
        assert_eq!(reason(&node), None, "no container mounts the other");
    }
}
