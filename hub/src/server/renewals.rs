//! The short way of a node's renewal: from its bytes to the renewed Lease, without decoding, a schema or managers.
//!
//! Always holds: it decides nothing. A request that is not plainly a node's renewal of its own Lease, asks for anything special, or would be
//! refused takes the general way (`handlers`), with the same result. It waits for its body and for nothing else.

use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Response};
use kedge_api::{DESIRED_HEADER, NODE_LEASE_NAMESPACE};
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::identity::{self, Attributes, Identity};
use kedge_hub_core::kinds::LEASE;
use kedge_hub_core::requests::Renewal;

use super::request::{self, Form, RequestBody, header};
use super::respond::{self, Body};
use super::shared::Server;

/// Answers a renewal; `None`: it has to take the general way.
pub(super) async fn answer(
    server: &Server,
    caller: Option<&Identity>,
    parts: &Parts,
    body: &mut RequestBody,
) -> Option<Result<Response<Body>, ApiError>> {
    let node = caller?.node()?;
    if !body.renews() || !is_plain(parts) {
        return None;
    }
    let form = request::wanted_form(&parts.headers, true).ok()?;
    if !matches!(form, Form::Nothing | Form::Whole) || !may_renew(server, caller, node) {
        return None;
    }
    let content_type = header(&parts.headers, "content-type");
    let read = match body.read().await {
        Ok(read) => read,
        Err(error) => return Some(Err(error)),
    };
    let renewed = Renewal::read(content_type, &read)
        .and_then(|renewal| server.hub.writer().renew_plainly(NODE_LEASE_NAMESPACE, node, &renewal));
    let Some(Ok(lease)) = renewed else {
        body.put_back(read);
        return None;
    };
    Some(Ok(match form {
        Form::Nothing => respond::empty(204),
        _ => respond::bytes(200, "application/json", lease.json.clone()),
    }))
}

/// Names the latest change that concerns the node, so that it need not ask and needs no watch.
pub(super) fn add_desired(server: &Server, caller: Option<&Identity>, response: &mut Response<Body>) {
    if let Some(node) = caller.and_then(Identity::node) {
        let desired = server.hub.memory().desired(node);
        response.headers_mut().insert(HeaderName::from_static(DESIRED_HEADER), HeaderValue::from(desired));
    }
}

/// Without parameters, and not for somebody else.
fn is_plain(parts: &Parts) -> bool {
    let impersonates = |name: &http::HeaderName| name.as_str().starts_with("impersonate-");
    parts.method == Method::PATCH && parts.uri.query().is_none() && !parts.headers.keys().any(impersonates)
}

fn may_renew(server: &Server, caller: Option<&Identity>, node: &str) -> bool {
    let attributes = Attributes {
        verb: "patch",
        group: LEASE.group,
        resource: LEASE.plural,
        namespace: NODE_LEASE_NAMESPACE,
        name: node,
        ..Attributes::default()
    };
    // an administrator's writes have a manager
    caller.is_some_and(|caller| !caller.is_admin())
        && identity::authorize(caller, &attributes, &*server.hub).is_ok()
}
