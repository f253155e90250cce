//! Requests that only a pod's node can serve: its logs, and streams into its containers.
//!
//! The hub never dials a node, and nodes open no streams to it yet. So a well-formed request is answered as upstream answers when it
//! cannot reach the kubelet, and any other as upstream does: a missing pod or container, a pod without a
//! node, an ended one. So people see the cause instead of "not found".

use http::Response;
use serde_json::Value;

use super::context::RequestContext;
use super::respond::{self, Body};
use super::route::Target;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::kinds::{NODE, POD, Subresource, at, text};

/// `GET .../log`, `GET` or `POST` of `.../exec`, `.../attach`, `.../portforward`.
pub(super) fn answer(
    context: &RequestContext<'_>,
    target: &Target,
    subresource: &Subresource,
) -> Result<Response<Body>, ApiError> {
    let hub = &context.server.hub;
    let found = hub.get(&POD, &target.namespace, &target.name);
    let pod = found.ok_or_else(|| ApiError::not_found(&POD, &target.name))?.value();
    let container = context.parameters.text("container");
    let node = match subresource.name {
        "log" => {
            check_container(&pod, container)?;
            match text(&pod, &["spec", "nodeName"]) {
                // nothing has run, so the log is empty
                "" => return Ok(respond::empty(204)),
                node => node,
            }
        }
        "portforward" => node_of(&pod)?,
        _ => {
            check_running(&pod)?;
            check_container(&pod, container)?;
            node_of(&pod)?
        }
    };
    if hub.get(&NODE, "", node).is_none() {
        return Err(ApiError::not_found(&NODE, node));
    }
    Err(ApiError::node_out_of_reach(node))
}

fn check_running(pod: &Value) -> Result<(), ApiError> {
    match text(pod, &["status", "phase"]) {
        phase @ ("Succeeded" | "Failed") => Err(ApiError::bad_request(format!(
            "cannot exec into a container in a completed pod; current phase is {phase}"
        ))),
        _ => Ok(()),
    }
}

fn node_of(pod: &Value) -> Result<&str, ApiError> {
    match text(pod, &["spec", "nodeName"]) {
        "" => {
            let name = text(pod, &["metadata", "name"]);
            Err(ApiError::bad_request(format!("pod {name} does not have a host assigned")))
        }
        node => Ok(node),
    }
}

/// The requested container must be one of the pod's; the name may be omitted if there is only one.
fn check_container(pod: &Value, named: &str) -> Result<(), ApiError> {
    let names: Vec<&str> = ["initContainers", "containers"]
        .into_iter()
        .filter_map(|list| at(pod, &["spec", list])?.as_array())
        .flatten()
        .map(|container| text(container, &["name"]))
        .collect();
    let name = text(pod, &["metadata", "name"]);
    let choice = at(pod, &["spec", "containers"]).and_then(Value::as_array).map_or(0, Vec::len);
    if named.is_empty() && choice != 1 {
        let names = names.join(" ");
        return Err(ApiError::bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{names}]"
        )));
    }
    if !named.is_empty() && !names.contains(&named) {
        return Err(ApiError::bad_request(format!("container {named} is not valid for pod {name}")));
    }
    Ok(())
}
