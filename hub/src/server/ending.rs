//! The line of a session in the audit log, which is written when the session ends.

use crate::audit::{Class, Entry, ObjectRef, Stage};
use crate::hub::Hub;
use crate::server::acts::Act;
use kedge_hub_core::identity::Identity;
use std::net::IpAddr;
use std::sync::Arc;
use time::OffsetDateTime;

/// The line of a session in a pod, which is written when this is dropped.
pub(super) struct Ending {
    pub(crate) hub: Arc<Hub>,
    pub(crate) caller: Identity,
    pub(crate) impersonated: Option<Identity>,
    pub(crate) from: IpAddr,
    /// Id, URI, agent, verb.
    pub(crate) words: [String; 4],
    /// As an [`ObjectRef`] has them.
    pub(crate) object: [String; 6],
    pub(crate) received: OffsetDateTime,
    pub(crate) code: u16,
}

impl std::fmt::Debug for Ending {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Ending").field("words", &self.words).finish_non_exhaustive()
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Some(log) = self.hub.audit() else { return };
        let [id, uri, agent, verb] = &self.words;
        let [group, version, resource, subresource, namespace, name] = &self.object;
        let entry = Entry {
            id,
            user: &self.caller,
            impersonated: self.impersonated.as_ref(),
            from: Some(self.from),
            uri,
            agent,
            verb,
            object: ObjectRef { group, version, resource, subresource, namespace, name },
            stage: Stage::ResponseComplete,
            code: self.code,
            received: self.received,
            ended: OffsetDateTime::now_utc(),
            notes: &[],
        };
        log.record(Class::of(&self.caller, Act::Command.is_read(), self.code), &entry);
    }
}
