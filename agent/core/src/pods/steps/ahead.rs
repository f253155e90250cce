//! Fetches the images of the pod that will replace this one (`ahead`).

use crate::answer::Now;
use crate::images::image::Image;
use crate::pods::ahead::SLOT;
use crate::pods::event::{Failure, ImageOrder, PodAction};
use crate::pods::keys::{ObjectKind, ObjectName};
use crate::pods::life::{Context, Life, Origin};
use crate::pods::spec::{Pod, pull_policy};
use crate::pods::steps::starting::credentials;
use kedge_api::PULL_AHEAD_ANNOTATION;

impl Life {
    pub(crate) fn note_what_is_asked_ahead(&mut self) {
        if let (Origin::Api { .. }, Some(pod)) = (&self.origin, &self.pod) {
            // an idle pod keeps no annotations: each event about it would make the request anew
            let asked = pod.annotations.get(PULL_AHEAD_ANNOTATION).filter(|_| !self.is_idle());
            self.ahead.asked(asked);
        }
    }

    /// Orders the next requested image.
    pub(crate) fn pull_ahead(&mut self, pod: &Pod, ctx: &mut Context<'_>) {
        let Some(next) = self.ahead.next() else { return };
        let policy = Some(next.policy.as_str()).filter(|policy| !policy.is_empty());
        let (image, policy) = (next.image.clone(), pull_policy(&next.image, policy));
        if let Some(due) = self.ahead.wait(ctx.now) {
            self.wake_at(due);
            return;
        }
        for secret in pod.spec.image_pull_secrets.iter().filter(|_| ctx.can_read) {
            let (kind, namespace) = (ObjectKind::Secret, pod.namespace.clone());
            let name = ObjectName { kind, namespace, name: secret.name.clone() };
            ctx.objects.want(ctx.now, &name, ctx.actions);
        }
        let Some(credentials) = credentials(pod, ctx) else { return };
        self.ahead.ordered(&image);
        ctx.actions.push(PodAction::PullImage(Box::new(ImageOrder {
            pod: self.uid.clone(),
            container: SLOT.into(),
            image,
            policy,
            credentials,
        })));
    }

    pub(crate) fn image_ahead_ready(&mut self, image: &Image, actions: &mut Vec<PodAction>) {
        if let Some((reason, message)) = self.ahead.pulled(image) {
            self.announce(false, reason, message, actions);
        }
    }

    pub(crate) fn image_ahead_failed(&mut self, now: Now, failure: &Failure, actions: &mut Vec<PodAction>) {
        if let Some((event, message)) = self.ahead.failed(now, failure) {
            self.announce(true, event, message, actions);
        }
    }
}
