//! The context of one request for its handlers, and its questions to the authorizer.

use crate::server::authentication::{Presented, Right, Standing};
use crate::server::trail::Trail;
use std::sync::Arc;
use std::time::Instant;

use http::request::Parts;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::identity::{self, Attributes, Identity};
use kedge_hub_core::selector::Selection;
use serde_json::Value;

use super::acts::Act;
use super::limits::{Slot, Work};
use super::request::Parameters;
use super::route::Target;
use super::shared::Server;
use super::view::View;

/// The context of a request that every handler needs.
pub(super) struct RequestContext<'a> {
    pub(super) server: &'a Server,
    /// The identity of the request's credential.
    pub(super) caller: Arc<Option<Identity>>,
    /// The credentials that prove that identity; each decision checks them again.
    pub(super) presented: Arc<Presented>,
    /// The caller's share of the hub's limits.
    pub(super) slot: &'a Arc<Slot>,
    /// Facts for its line in the audit log.
    pub(super) trail: &'a Trail,
    /// The effective identity: the caller's own, or the one that it impersonates.
    pub(super) identity: Option<Identity>,
    pub(super) parts: &'a Parts,
    pub(super) parameters: Parameters,
    /// The class of the request, for the audit log.
    pub(super) act: Act,
}

impl RequestContext<'_> {
    /// The effective identity, for a decision at this moment.
    ///
    /// # Errors
    /// 401 if the credential is no longer valid: a request may have waited for its turn, for the disk, or for
    /// other objects.
    pub(super) fn identity_now(&self) -> Result<&Identity, ApiError> {
        self.presented.identity()?;
        self.identity.as_ref().ok_or_else(ApiError::unauthorized)
    }

    /// The node that makes the request. `None` for an administrator who impersonates a node, because the node
    /// itself does not know of the request.
    pub(super) fn author(&self) -> Option<&str> {
        (*self.caller).as_ref().and_then(Identity::node)
    }

    /// Refuses a request that the effective identity is not allowed to make.
    pub(super) fn authorize(&self, attributes: &Attributes<'_>) -> Result<(), ApiError> {
        let charge = |work| self.charge(work);
        identity::authorize(
            self.identity.as_ref(),
            attributes,
            &View { hub: &self.server.hub, charge: &charge },
        )
        .map_err(denied)
    }

    /// Refuses a change that the effective identity is not allowed to store now.
    pub(super) fn admit(
        &self,
        attributes: &Attributes<'_>,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<(), ApiError> {
        let identity = self.identity_now()?;
        let charge = |work| self.charge(work);
        identity::admit(identity, attributes, old, new, &View { hub: &self.server.hub, charge: &charge })
            .map_err(denied)
    }

    /// The conditions, besides its connection, under which a watch or session of this request stays open.
    pub(super) fn standing(&self, asked: &Attributes<'_>) -> Option<Standing> {
        let right = match (&*self.caller, &self.identity) {
            (Some(caller), Some(identity)) => Right::new(caller, identity, &self.parts.headers, asked),
            _ => None,
        };
        self.presented.standing(right)
    }

    /// Charges work to the caller's rate.
    pub(super) fn charge(&self, work: Work) {
        self.slot.charge(work, Instant::now());
    }
}

pub(super) fn denied(denied: identity::Denied) -> ApiError {
    ApiError::from_status(denied.status, denied.message)
}

pub(super) fn attributes<'a>(
    verb: &'a str,
    target: &'a Target,
    selection: Option<&'a Selection>,
) -> Attributes<'a> {
    Attributes {
        verb,
        // another type of a kind's objects is authorized as the kind
        group: target.kind.stored().group,
        resource: target.kind.plural,
        subresource: &target.subresource,
        namespace: &target.namespace,
        name: &target.name,
        selection,
        path: "",
    }
}
