//! The nodes that may connect: the list of nodes with their credentials, revoking one, and readmitting it.
//!
//! Owns `GET /kedge/nodes`, `POST /kedge/nodes/NAME/VERB`, `GET /kedge/denials` and `POST
//! /kedge/denials/KEY/lift`, for administrators. The commands `kedge-hub node` and `kedge-hub denied` send
//! these requests. Always holds: the entry in the deny list is durable before anything else happens and
//! before the answer. The Node object stays, with an annotation and an event that explain it. Left to others:
//! the meaning of an entry (`kedge_hub_core::identity::denied`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::Response;
use kedge_api::NODE_USER_PREFIX;
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::context::RequestContext;
use super::respond::{self, Body};
use super::route::AccessVerb;
use crate::Hub;
use crate::credential_table;
use crate::denials::REVOKED_ANNOTATION;
use crate::fresh::now_text;
use crate::node_acts::DECOMMISSION;
use crate::pki::is_dns_subdomain;
use crate::requests;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::controllers::approving::AWAITING;
use kedge_hub_core::decode;
use kedge_hub_core::identity::certificate_request::Request;
use kedge_hub_core::identity::denied::{self, Change, DENY_LIST_NAME, DENY_LIST_NAMESPACE, explanation};
use kedge_hub_core::identity::{Attributes, Identity};
use kedge_hub_core::kinds::schema::base64_decode;
use kedge_hub_core::kinds::{CERTIFICATE_REQUEST, CONFIG_MAP, EVENT, LEASE, NODE};
use kedge_hub_core::object::Object;
use kedge_hub_core::requests::{Part, Place, WriteOptions};
use kedge_hub_core::restored;
use kedge_hub_core::value::{at, condition, rfc3339, text};

/// Annotation of a Node: certificates with this issue number, a lower one, or none are to be exchanged now.
/// Nodes may not write it.
const ROTATE: &str = "kedge.dev/rotate";

/// The nodes that are registered or have an entry in the deny list, by name; and the devices that were refused
/// lately, the latest first.
pub(super) fn list(context: &RequestContext<'_>) -> Response<Body> {
    let hub = &context.server.hub;
    let denied = context.server.credentials.denied();
    let config_map = hub.get(&CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME);
    let entries = config_map.map_or(Value::Null, |found| found.value());
    let now = OffsetDateTime::now_utc().unix_timestamp();
    let registered: Vec<Arc<_>> = hub.list(&NODE, "");
    let waiting = waiting(hub);
    let known = registered.iter().map(|node| &*node.name).chain(denied.nodes());
    let mut names: Vec<&str> = known.chain(waiting.keys().map(String::as_str)).collect();
    names.sort_unstable();
    names.dedup();
    let nodes: Vec<Value> = names
        .into_iter()
        .map(|name| {
            let newest = credential_table::of(hub, name).newest;
            let ended = newest.as_ref().map(|newest| newest.not_after).filter(|end| *end <= now);
            let state = match hub.get(&NODE, "", name) {
                _ if denied.is_revoked(name) => "Revoked",
                _ if ended.is_some() => "Expired",
                Some(node) if restored::awaits_decision(&node.value()) => "AwaitingDecision",
                Some(node) if is_given_up(&node.value()) => "Decommissioning",
                Some(node) => ready_state(&node.value()),
                None => "NotRegistered",
            };
            let seen = context.server.credentials.seen(name);
            let expiry = newest.map(|newest| newest.not_after).and_then(date);
            let contact = seen.as_ref().and_then(|seen| seen.contact()).and_then(date);
            let renewed = hub.get(&LEASE, kedge_api::NODE_LEASE_NAMESPACE, name).map(|lease| lease.value());
            json!({
                "name": name,
                "state": state,
                // the expiry of its newest credential
                "certificateExpires": expiry,
                "expiredSince": ended.and_then(date),
                "waiting": waiting.get(name),
                // known only since the hub's start
                "lastContact": contact,
                // the node's own clock
                "leaseRenewed": renewed.map(|lease| text(&lease, &["spec", "renewTime"]).to_owned()),
                "access": explanation(&entries, name),
            })
        })
        .collect();
    let is_registered = |name: &str| hub.get(&NODE, "", name).is_some();
    let knocks = context.server.credentials.knocks.all(now, is_registered);
    let refused =
        knocks.iter().map(|knock| json!({"name": knock.node, "at": date(knock.at), "why": knock.why}));
    respond::json(200, &json!({"nodes": nodes, "refused": refused.collect::<Vec<_>>()}))
}

/// The requests that wait for a person, by node: the name of one, and why.
pub(super) fn waiting(hub: &Hub) -> BTreeMap<String, Value> {
    let of_node = |request: &Value| {
        let status = &request["status"];
        let is_decided =
            ["Approved", "Denied", "Failed"].iter().any(|sort| condition(status, sort).is_some());
        let why = condition(status, AWAITING).filter(|_| !is_decided)?;
        let asked = base64_decode(text(request, &["spec", "request"]))?;
        let node = Request::from_pem(&asked).ok()?.common_name.strip_prefix(NODE_USER_PREFIX)?.to_owned();
        let name = text(request, &["metadata", "name"]);
        Some((node, json!({"request": name, "reason": why["reason"], "message": why["message"]})))
    };
    hub.list(&CERTIFICATE_REQUEST, "").iter().filter_map(|request| of_node(&request.value())).collect()
}

fn date(time: i64) -> Option<String> {
    OffsetDateTime::from_unix_timestamp(time).ok().map(rfc3339)
}

/// Whether a node has an order to give up that it has not obeyed so far.
fn is_given_up(node: &Value) -> bool {
    let asked = text(node, &["metadata", "annotations", DECOMMISSION]);
    asked.split(',').next().is_some_and(|uid| !uid.is_empty() && uid == text(node, &["metadata", "uid"]))
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

/// Performs an administrator's act on a node. The body may give a `reason`, `sameCredentials`, `force` and
/// `wipe`.
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
    match verb {
        AccessVerb::Revoke => access(context, node, Access::Revoke, &body).await,
        AccessVerb::Readmit => access(context, node, Access::Readmit, &body).await,
        AccessVerb::Accept | AccessVerb::Rotate | AccessVerb::Decommission => {
            ask(context, node, verb, body["wipe"] == true).await
        }
    }
}

/// A change of the deny list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Revoke,
    Readmit,
}

/// Asks something of a node, by an annotation of its Node; or accepts the assignment of a restored one.
async fn ask(
    context: &RequestContext<'_>,
    node: &str,
    verb: AccessVerb,
    wipe: bool,
) -> Result<Response<Body>, ApiError> {
    let hub = &context.server.hub;
    let numbers = Arc::clone(hub.issue_numbers());
    // also those that other processes took
    let issued = tokio::task::spawn_blocking(move || numbers.refreshed()).await;
    let issued = issued.map_err(|_| ApiError::internal("the counter failed"))?;
    let waited = AtomicBool::new(false);
    // as a patch of the Node: who is not an administrator needs the right to assign, and to wipe
    let attributes = Attributes { verb: "patch", resource: NODE.plural, name: node, ..Attributes::default() };
    let admit = |old: Option<&Value>, new: &Value| context.admit(&attributes, old, new);
    let options = WriteOptions { admit: &admit, ..WriteOptions::internal() };
    let place = Place { kind: &NODE, namespace: "", name: node };
    let compute = |found: &Object, mut value: Value| {
        let annotation = match verb {
            AccessVerb::Rotate => Some((ROTATE, issued.to_string())),
            AccessVerb::Decommission => {
                Some((DECOMMISSION, format!("{}{}", found.uid, if wipe { ",wipe" } else { "" })))
            }
            _ => None,
        };
        match annotation {
            Some((key, text)) => value["metadata"]["annotations"][key] = text.into(),
            None => waited.store(restored::accept(&mut value), Ordering::Relaxed),
        }
        Ok(value)
    };
    requests::edit(hub, &place, Part::All, &options, compute).await?;
    if verb == AccessVerb::Accept && !waited.into_inner() {
        return Err(ApiError::conflict_because(&NODE, node, "it does not wait for a decision"));
    }
    let by = context.identity.as_ref().map_or("", |identity: &Identity| &identity.user);
    let message = match verb {
        AccessVerb::Rotate => {
            format!("{by} asked node {node} for new credentials: it exchanges them at its next contact")
        }
        AccessVerb::Decommission => format!(
            "{by} asked node {node} to give up: it ends its pods and removes its state{}; then it is denied and its Node deleted. \
             A device that is stolen or never comes back needs `kedge-hub node revoke {node}`",
            if wipe { " (its record asks for a wiped disk, which no agent does so far)" } else { "" }
        ),
        _ => format!("{by} accepted the restored assignment of node {node}"),
    };
    log::info!("{message}");
    Ok(respond::json(200, &json!({"name": node, "message": message})))
}

/// Revokes or readmits a node.
async fn access(
    context: &RequestContext<'_>,
    node: &str,
    verb: Access,
    body: &Value,
) -> Result<Response<Body>, ApiError> {
    let same = body["sameCredentials"] == true;
    // the command sends `force: false`, so that a mistyped name does not leave the stolen node in. A program
    // that uses the API has its names from elsewhere, and may know of nodes that this hub does not
    if verb == Access::Revoke && body["force"] == false && !is_known(context, node).await {
        return Err(ApiError {
            message: format!(
                "no node {node:?} is known: no Node, no Lease, no entry of the deny list and no credentials in the audit log have this \
                 name, so nothing was revoked; see kedge-hub node list, or revoke it all the same with --force"
            ),
            ..ApiError::not_found(&NODE, node)
        });
    }
    let by = context.identity.as_ref().map_or("", |identity: &Identity| &identity.user);
    let reason = text(body, &["reason"]);
    let time = now_text();
    let issue = take_number(context, node, verb).await?;
    let change = Change { by, time: &time, issue, reason };
    let before = enter(context, |config_map| {
        let entry = explanation(config_map, node);
        match verb {
            Access::Revoke => change.revoke(config_map, node),
            Access::Readmit if entry.is_null() => {}
            Access::Readmit if same => change.forget(config_map, node),
            Access::Readmit => change.readmit(config_map, node),
        }
        entry
    })
    .await?;
    if verb == Access::Readmit && before.is_null() {
        return Err(ApiError {
            message: format!("node {node:?} is not revoked"),
            ..ApiError::not_found(&NODE, node)
        });
    }
    let message = match verb {
        Access::Revoke if reason.is_empty() => {
            format!("{by} revoked the credentials of node {node}")
        }
        Access::Revoke => format!("{by} revoked the credentials of node {node}: {reason}"),
        Access::Readmit if same => {
            format!("{by} readmitted node {node} with the credentials that it has")
        }
        Access::Readmit => format!("{by} readmitted node {node}; it needs new credentials"),
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

/// Takes the issue number of a change: greater than those of all credentials so far. A revocation on a full
/// disk, where no number can be taken, uses the highest one.
async fn take_number(context: &RequestContext<'_>, node: &str, verb: Access) -> Result<u64, ApiError> {
    let hub = Arc::clone(&context.server.hub);
    // if this directory is an older copy, a node may have shown a credential with a greater number
    let newest = context.server.credentials.newest_issue(node);
    let take = move || {
        let numbers = hub.issue_numbers();
        let taken = numbers.meet(newest).and_then(|_| numbers.take());
        hub.note_issued();
        (taken, numbers.highest())
    };
    let (taken, highest) =
        tokio::task::spawn_blocking(take).await.map_err(|_| ApiError::internal("the counter failed"))?;
    match (taken, verb) {
        (Ok(number), _) => Ok(number),
        (Err(error), Access::Revoke) => {
            log::warn!("node {node:?} is revoked without an issue number of its own: {error}");
            Ok(highest)
        }
        (Err(error), Access::Readmit) => {
            Err(ApiError::internal(format!("cannot take an issue number: {error}")))
        }
    }
}

/// The entries of the deny list.
pub(super) fn denials(context: &RequestContext<'_>) -> Response<Body> {
    let hub = &context.server.hub;
    let list = hub.get(&CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME);
    let list = list.map_or(Value::Null, |found| found.value());
    let entries: Vec<Value> = denied::keys(&list)
        .map(|(map, key)| json!({"entry": key, "explanation": denied::explained(&list[map][key])}))
        .collect();
    respond::json(200, &json!({"denials": entries}))
}

/// Ends one denial, by its entry in the list. A certificate counts again; a user or node needs new ones.
pub(super) async fn lift(context: &RequestContext<'_>, key: &str) -> Result<Response<Body>, ApiError> {
    let list = context.server.hub.get(&CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME);
    let node = list.and_then(|list| denied::node_of(&list.value(), key)).unwrap_or_default();
    let issue = take_number(context, &node, Access::Readmit).await?;
    let by = context.identity.as_ref().map_or("", |identity: &Identity| &identity.user);
    let time = now_text();
    let change = Change { by, time: &time, issue, reason: "" };
    if enter(context, |config_map| denied::lift(config_map, key, &change)).await?.is_none() {
        return Err(ApiError {
            message: format!(
                "the deny list has no entry {key:?} to lift, or that is a readmission already; see kedge-hub denied list. \
                 `kedge-hub node readmit NAME --same-credentials` also lets in a node's earlier credentials"
            ),
            ..ApiError::not_found(&CONFIG_MAP, key)
        });
    }
    let message = match denied::is_of_holder(key) {
        true => format!(
            "{by} lifted the denial {key}: its holder needs new credentials, the earlier ones stay refused"
        ),
        false => format!("{by} lifted the denial {key}: its credentials count again"),
    };
    log::warn!("{message}");
    Ok(respond::json(200, &json!({"entry": key, "message": message})))
}

/// Changes the deny list, creating it if missing; returns the result of `edit`.
async fn enter<T: Send + Default>(
    context: &RequestContext<'_>,
    edit: impl Fn(&mut Value) -> T + Send + Sync,
) -> Result<T, ApiError> {
    let hub = &context.server.hub;
    if hub.get(&CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME).is_none() {
        match hub.create(&CONFIG_MAP, denied::empty_list()).await {
            Err(error) if error.reason != "AlreadyExists" => return Err(error),
            _ => {}
        }
    }
    let found = Mutex::new(T::default());
    // as a change of the list: a rule must name it
    let attributes = Attributes {
        verb: "update",
        resource: CONFIG_MAP.plural,
        namespace: DENY_LIST_NAMESPACE,
        name: DENY_LIST_NAME,
        ..Attributes::default()
    };
    let admit = |old: Option<&Value>, new: &Value| context.admit(&attributes, old, new);
    let options = WriteOptions { admit: &admit, lifts_denials: true, ..WriteOptions::internal() };
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
async fn explain(context: &RequestContext<'_>, node: &str, verb: Access, message: &str, time: &str) {
    let hub = &context.server.hub;
    let Some(found) = hub.get(&NODE, "", node) else { return };
    let annotated = hub.update(&NODE, "", node, |object| {
        let annotations = &mut object["metadata"]["annotations"];
        match (verb, annotations.as_object_mut()) {
            (Access::Revoke, _) => annotations[REVOKED_ANNOTATION] = format!("{time}: {message}").into(),
            (Access::Readmit, Some(annotations)) => drop(annotations.remove(REVOKED_ANNOTATION)),
            (Access::Readmit, None) => {}
        }
    });
    let annotated = annotated.await.map(drop);
    let reason = match verb {
        Access::Revoke => "NodeRevoked",
        Access::Readmit => "NodeReadmitted",
    };
    let event = json!({
        "metadata": {"generateName": format!("{node}-"), "namespace": kedge_api::CLUSTER_EVENT_NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": &*found.uid},
        "reason": reason, "message": message, "type": if verb == Access::Revoke { "Warning" } else { "Normal" },
        "source": {"component": "kedge-hub"}, "reportingComponent": "kedge-hub", "reportingInstance": "",
        "firstTimestamp": time, "lastTimestamp": time, "count": 1,
    });
    let recorded = hub.create(&EVENT, event).await.map(drop);
    for error in [annotated, recorded].into_iter().filter_map(Result::err) {
        log::warn!("cannot explain on node {node:?} that {message}: {error}");
    }
}
