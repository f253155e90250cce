//! Requests that only a pod's node can serve: its logs, and streams into its containers.
//!
//! The hub never dials a node, and nodes open no streams to it yet. So a request that the node could serve is answered as upstream
//! answers when it cannot reach the kubelet.

use http::Response;

use super::context::RequestContext;
use super::respond::{self, Body};
use super::route::Target;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::kinds::{NODE, POD, Subresource};
use kedge_hub_core::requests::serving_node;

/// `GET .../log`, `GET` or `POST` of `.../exec`, `.../attach`, `.../portforward`.
pub(super) fn answer(
    context: &RequestContext<'_>,
    target: &Target,
    subresource: &Subresource,
) -> Result<Response<Body>, ApiError> {
    let hub = &context.server.hub;
    let found = hub.get(&POD, &target.namespace, &target.name);
    let pod = found.ok_or_else(|| ApiError::not_found(&POD, &target.name))?.value();
    match serving_node(&pod, subresource.name, context.parameters.text("container"))? {
        None => Ok(respond::empty(204)),
        Some(node) if hub.get(&NODE, "", node).is_none() => Err(ApiError::not_found(&NODE, node)),
        Some(node) => Err(ApiError::node_out_of_reach(node)),
    }
}
