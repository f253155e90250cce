//! The nodes that may connect: the list of nodes with their credentials, revoking one, and readmitting it.
//!
//! Owns: `GET /kedge/nodes` and `POST /kedge/nodes/NAME/revoke|readmit`, for administrators: the other side
//! of `kedge-hub node`. Always holds: the entry in the deny list is durable before anything else happens and
//! before the answer; the Node object stays, with an annotation and an event that explain it. Left to others:
//! the meaning of an entry (`kedge_hub_core::identity::denied`).

use std::sync::{Arc, Mutex, PoisonError};

use http::Response;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::context::RequestContext;
use super::respond::{self, Body};
use super::route::AccessVerb;
use crate::denials::REVOKED_ANNOTATION;
use crate::fresh::now_text;
use crate::pki::is_dns_subdomain;
use crate::requests;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::decode;
use kedge_hub_core::identity::Identity;
use kedge_hub_core::identity::denied::{
    Change, DENY_LIST_NAME, DENY_LIST_NAMESPACE, explanation, readmission_time,
};
use kedge_hub_core::kinds::{CONFIG_MAP, EVENT, LEASE, NODE};
use kedge_hub_core::object::Object;
use kedge_hub_core::requests::{Part, Place, WriteOptions};
use kedge_hub_core::value::{at, rfc3339, text};

/// The nodes that are registered or have an entry in the deny list, by name.
pub(super) fn list(context: &RequestContext<'_>) -> Response<Body> {
    let hub = &context.server.hub;
    let denied = context.server.credentials.denied();
    let config_map = hub.get(&CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME);
    let entries = config_map.map_or(Value::Null, |found| found.value());
    let registered: Vec<Arc<_>> = hub.list(&NODE, "");
    let mut names: Vec<&str> = registered.iter().map(|node| &*node.name).chain(denied.nodes()).collect();
    names.sort_unstable();
    names.dedup();
    let nodes: Vec<Value> = names
        .into_iter()
        .map(|name| {
            let state = match hub.get(&NODE, "", name) {
                _ if denied.is_revoked(name) => "Revoked",
                Some(node) => ready_state(&node.value()),
                None => "NotRegistered",
            };
            let seen = context.server.credentials.seen(name);
            let expiry = seen.as_ref().and_then(|seen| seen.not_after).and_then(date);
            let contact = seen.as_ref().and_then(|seen| seen.contact()).and_then(date);
            let renewed = hub.get(&LEASE, kedge_api::NODE_LEASE_NAMESPACE, name).map(|lease| lease.value());
            json!({
                "name": name,
                "state": state,
                // both are known only since the hub's start
                "certificateExpires": expiry,
                "lastContact": contact,
                // the node's own clock
                "leaseRenewed": renewed.map(|lease| text(&lease, &["spec", "renewTime"]).to_owned()),
                "access": explanation(&entries, name),
            })
        })
        .collect();
    respond::json(200, &json!({"nodes": nodes}))
}

fn date(time: i64) -> Option<String> {
    OffsetDateTime::from_unix_timestamp(time).ok().map(rfc3339)
}

/// The state of a node that may connect, by its condition Ready.
fn ready_state(node: &Value) -> &'static str {
    let conditions = at(node, &["status", "conditions"]).and_then(Value::as_array);
    let ready = conditions.into_iter().flatten().find(|condition| condition["type"] == "Ready");
    match ready.map_or("", |ready| text(ready, &["status"])) {
        "True" => "Ready",
        "False" => "NotReady",
        _ => "Unknown",
    }
}

/// Revokes or readmits a node; the body may give a `reason` and `sameCredentials`.
pub(super) async fn change(
    context: &RequestContext<'_>,
    node: &str,
    verb: AccessVerb,
    body: &[u8],
) -> Result<Response<Body>, ApiError> {
    if !is_dns_subdomain(node) {
        return Err(ApiError::bad_request(format!(
            "{node:?} is no name of a node, expected a DNS name in lower case"
        )));
    }
    let body: Value = match body {
        [] => Value::Null,
        body => decode::json(body)?.0,
    };
    let same = body["sameCredentials"] == true;
    // the command sends `force: false`, so that a mistyped name does not leave the stolen node in. A program
    // that uses the API has its names from elsewhere, and may know of nodes that this hub does not
    if verb == AccessVerb::Revoke && body["force"] == false && !is_known(context, node).await {
        return Err(ApiError {
            message: format!(
                "no node {node:?} is known: no Node, no Lease, no entry of the deny list and no credentials in the audit log have this \
                 name, so nothing was revoked; see kedge-hub node list, or revoke it all the same with --force"
            ),
            ..ApiError::not_found(&NODE, node)
        });
    }
    let by = context.identity.as_ref().map_or("", |identity: &Identity| &identity.user);
    let reason = text(&body, &["reason"]);
    let (time, now) = (now_text(), OffsetDateTime::now_utc());
    let stamp = |at: OffsetDateTime| at.format(&Rfc3339).unwrap_or_else(|_| time.clone());
    let newest_issue = context.server.credentials.newest_issue(node);
    let Before { entry: before, ahead } = enter(context, |config_map| {
        let entry = explanation(config_map, node);
        let mut ahead = None;
        match verb {
            AccessVerb::Revoke => Change { by, time: &stamp(now), reason }.revoke(config_map, node),
            AccessVerb::Readmit if entry.is_null() => {}
            AccessVerb::Readmit if same => Change { by, time: &stamp(now), reason }.forget(config_map, node),
            AccessVerb::Readmit => match readmission_time(config_map, node, now, newest_issue) {
                Ok(since) => Change { by, time: &stamp(since), reason }.readmit(config_map, node),
                Err(told) => ahead = Some(told),
            },
        }
        Before { entry, ahead }
    })
    .await?;
    if let Some(told) = ahead {
        let why = format!(
            "its entry in the deny list is of {}, and the hub's clock shows {time}: set the clock of the hub first, or a stolen \
             credential would count again",
            rfc3339(told)
        );
        return Err(ApiError::conflict_because(&NODE, node, &why));
    }
    if verb == AccessVerb::Readmit && before.is_null() {
        return Err(ApiError {
            message: format!("node {node:?} is not revoked"),
            ..ApiError::not_found(&NODE, node)
        });
    }
    let message = match verb {
        AccessVerb::Revoke if reason.is_empty() => {
            format!("{by} revoked the credentials of node {node}")
        }
        AccessVerb::Revoke => format!("{by} revoked the credentials of node {node}: {reason}"),
        AccessVerb::Readmit if same => {
            format!("{by} readmitted node {node} with the credentials that it has")
        }
        AccessVerb::Readmit => format!("{by} readmitted node {node}; it needs new credentials"),
    };
    log::info!("{message}");
    explain(context, node, verb, &message, &time).await;
    Ok(respond::json(200, &json!({"name": node, "message": message})))
}

/// True if this hub has ever had a node of this name.
async fn is_known(context: &RequestContext<'_>, node: &str) -> bool {
    let (hub, denied) = (&context.server.hub, context.server.credentials.denied());
    let is_here = hub.get(&NODE, "", node).is_some()
        || hub.get(&LEASE, kedge_api::NODE_LEASE_NAMESPACE, node).is_some()
        || context.server.credentials.seen(node).is_some()
        || denied.is_revoked(node)
        || denied.nodes().any(|known| known == node);
    if is_here {
        return true;
    }
    let (hub, node) = (Arc::clone(hub), node.to_owned());
    let looked = move || hub.audit().is_none_or(|audit| audit.has_issued(&node));
    // a node with credentials may never have connected; a failed lookup must not prevent a revocation
    tokio::task::spawn_blocking(looked).await.unwrap_or(true)
}

/// A node's entry before a change.
#[derive(Default)]
struct Before {
    /// Null if there is none.
    entry: Value,
    /// The entry's time, if the hub's clock is behind it: then nothing was changed.
    ahead: Option<OffsetDateTime>,
}

/// Changes the deny list, creating it if missing; returns the result of `edit`.
async fn enter<T: Send + Default>(
    context: &RequestContext<'_>,
    edit: impl Fn(&mut Value) -> T + Send + Sync,
) -> Result<T, ApiError> {
    let hub = &context.server.hub;
    if hub.get(&CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME).is_none() {
        let empty = json!({"metadata": {"name": DENY_LIST_NAME, "namespace": DENY_LIST_NAMESPACE}});
        match hub.create(&CONFIG_MAP, empty).await {
            Err(error) if error.reason != "AlreadyExists" => return Err(error),
            _ => {}
        }
    }
    let found = Mutex::new(T::default());
    // an administrator who was revoked meanwhile changes nothing
    let admit = |_: Option<&Value>, _: &Value| context.identity_now().map(drop);
    let options = WriteOptions { admit: &admit, ..WriteOptions::internal() };
    let place = Place { kind: &CONFIG_MAP, namespace: DENY_LIST_NAMESPACE, name: DENY_LIST_NAME };
    let compute = |_: &Object, mut config_map: Value| {
        *found.lock().unwrap_or_else(PoisonError::into_inner) = edit(&mut config_map);
        Ok(config_map)
    };
    requests::edit(hub, &place, Part::All, &options, compute).await?;
    Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Explains the change on the Node, if it exists. A failure here is only logged, because the change itself
/// was made.
async fn explain(context: &RequestContext<'_>, node: &str, verb: AccessVerb, message: &str, time: &str) {
    let hub = &context.server.hub;
    let Some(found) = hub.get(&NODE, "", node) else { return };
    let annotated = hub.update(&NODE, "", node, |object| {
        let annotations = &mut object["metadata"]["annotations"];
        match (verb, annotations.as_object_mut()) {
            (AccessVerb::Revoke, _) => annotations[REVOKED_ANNOTATION] = format!("{time}: {message}").into(),
            (AccessVerb::Readmit, Some(annotations)) => drop(annotations.remove(REVOKED_ANNOTATION)),
            (AccessVerb::Readmit, None) => {}
        }
    });
    let annotated = annotated.await.map(drop);
    let reason = match verb {
        AccessVerb::Revoke => "NodeRevoked",
        AccessVerb::Readmit => "NodeReadmitted",
    };
    let event = json!({
        "metadata": {"generateName": format!("{node}-"), "namespace": kedge_api::CLUSTER_EVENT_NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": &*found.uid},
        "reason": reason, "message": message, "type": if verb == AccessVerb::Revoke { "Warning" } else { "Normal" },
        "source": {"component": "kedge-hub"}, "reportingComponent": "kedge-hub", "reportingInstance": "",
        "firstTimestamp": time, "lastTimestamp": time, "count": 1,
    });
    let recorded = hub.create(&EVENT, event).await.map(drop);
    for error in [annotated, recorded].into_iter().filter_map(Result::err) {
        log::warn!("cannot explain on node {node:?} that {message}: {error}");
    }
}
