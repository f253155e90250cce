//! Fetches the images that a pod mounts as volumes (`image_volumes`).

use crate::answer::Now;
use crate::images::image::Image;
use crate::pods::event::{Failure, ImageOrder, PodAction};
use crate::pods::image_volumes::SLOT;
use crate::pods::life::{Context, Life};
use crate::pods::pulls::pull_words;
use crate::pods::spec::{Pod, pull_policy};
use crate::pods::steps::starting::credentials;

impl Life {
    /// Orders the next image; returns whether all are on the node.
    pub(crate) fn see_to_image_volumes(&mut self, pod: &Pod, ctx: &mut Context<'_>) -> bool {
        if self.image_volumes.are_pulled() {
            return false;
        }
        let Some((volume, image)) = self.image_volumes.missing(pod) else { return true };
        if let Some(due) = self.image_volumes.wait(ctx.now) {
            self.wake_at(due);
            return false;
        }
        let Some(credentials) = credentials(pod, ctx) else { return false };
        self.image_volumes.ordered(volume, &image.reference);
        let policy = Some(image.pull_policy.as_str()).filter(|policy| !policy.is_empty());
        ctx.actions.push(PodAction::PullImage(Box::new(ImageOrder {
            pod: self.uid.clone(),
            container: SLOT.into(),
            image: image.reference.clone(),
            policy: pull_policy(&image.reference, policy),
            credentials,
        })));
        false
    }

    /// The ordered image is on the node.
    pub(crate) fn image_volume_ready(&mut self, image: Image, actions: &mut Vec<PodAction>) {
        let was_pulled = image.pulled.is_some();
        let Some((volume, reference)) = self.image_volumes.pulled(image.id) else { return };
        self.is_dirty = true;
        for name in self.mounting(&volume) {
            self.containers.entry(name).or_default().waiting = None;
        }
        if was_pulled {
            let message = format!("Successfully pulled image {reference:?} of volume {volume:?}");
            self.announce(false, "Pulled", message, actions);
        }
    }

    pub(crate) fn image_volume_failed(&mut self, now: Now, failure: &Failure, actions: &mut Vec<PodAction>) {
        let Some((volume, reference, is_backing_off)) = self.image_volumes.failed(now, failure) else {
            return;
        };
        let (reason, event, text, told) = pull_words(&reference, failure, is_backing_off);
        for name in self.mounting(&volume) {
            self.containers.entry(name).or_default().waiting = Some((reason, text.clone()));
        }
        self.hindered(now, event, format!("volume {volume:?}: {told}"), actions);
    }

    /// The containers that mount a volume.
    fn mounting(&self, volume: &str) -> Vec<String> {
        let specs = self.pod.iter().flat_map(|pod| pod.spec.all_containers());
        let mounting = specs.filter(|spec| spec.volume_mounts.iter().any(|mount| mount.name == volume));
        mounting.map(|spec| spec.name.clone()).collect()
    }
}
