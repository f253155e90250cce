//! The service-account tokens of a pod (`tokens`) among its other parts.

use crate::answer::Now;
use crate::pods::event::{TokenName, TokenRead};
use crate::pods::life::{Context, Life};
use crate::pods::spec::Pod;

impl Life {
    /// Requests the tokens that are missing or due.
    pub(crate) fn see_to_tokens(&mut self, pod: &Pod, ctx: &mut Context<'_>) {
        // another API server has neither the pod nor its account
        let Some(api) = self.api.as_ref().filter(|api| ctx.can_read && !api.is_deleted) else { return };
        let wake = self.tokens.step(pod, &api.reference, ctx.now, ctx.actions);
        if let Some(at) = wake {
            self.wake_at(at);
        }
    }

    pub(crate) fn token_answered(&mut self, now: Now, name: &TokenName, read: TokenRead) {
        self.files.is_stale |= self.tokens.answered(now, name, read);
    }
}
