//! Fetches and renews the service-account tokens of a pod (`tokens`).

use crate::answer::Now;
use crate::pods::event::{PodAction, TokenName, TokenRead};
use crate::pods::life::{Context, Life};
use crate::pods::spec::Pod;
use crate::pods::tokens::{key_of, sources};
use std::time::Duration;

impl Life {
    /// Requests the tokens that are missing or due.
    pub(crate) fn see_to_tokens(&mut self, pod: &Pod, ctx: &mut Context<'_>) {
        // another API server has neither the pod nor its account
        let Some(api) = self.api.as_ref().filter(|api| ctx.can_read && !api.is_deleted) else { return };
        let mut wake = None;
        for source in sources(pod) {
            let (audience, expiration_secs) = key_of(source);
            let token = self.tokens.known.entry((audience.clone(), expiration_secs)).or_default();
            if token.is_asked_for {
                continue;
            }
            let due = token.due.max(token.retry.due());
            if ctx.now.mono < due {
                wake = Some(wake.map_or(due, |wake: Duration| wake.min(due)));
                continue;
            }
            token.is_asked_for = true;
            let account = pod.spec.service_account_name.clone();
            let pod = api.reference.clone();
            let name = TokenName { pod, account, audience, expiration_secs };
            ctx.actions.push(PodAction::RequestToken(name));
        }
        if let Some(at) = wake {
            self.wake_at(at);
        }
    }

    pub(crate) fn token_answered(&mut self, now: Now, name: &TokenName, read: TokenRead) {
        self.files.is_stale |= self.tokens.answered(now, name, read);
    }
}
