//! Calls: requests that only a node can answer, on a connection that the node dials.
//!
//! For example, a client asks for a container's log. The hub notes a call under a random id, and sends the id
//! to the node on a connection that is open anyway (a bookmark on the watch of its own Node, a header of its
//! next renewal's answer). The node dials, takes the call with `POST /apis/kedge.dev/v1/nodes/NAME/calls/ID`,
//! and after the 101 the roles are swapped: the hub is the client of the kubelet's API on that connection
//! (`exchange`), or of a program in a pod to which the node connects (`program`), and the answer is passed to
//! the client (`relay`).
//!
//! Always holds: an id is taken once, by the node that it is for, within seconds, and another node that tries
//! it learns and changes nothing; sessions are limited per node, per user and in total; nothing is stored,
//! and a node without calls costs nothing. Left to others: permissions (`handlers`), and the node's answer.

mod exchange;
mod messages;
mod program;
mod relay;
mod serving;
pub(crate) mod session;

use crate::server::calls::session::{Announced, Dialled, Session};
use crate::server::usages::Unready;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, Method, Response, header};
use kedge_api::{NODE_LEASE_NAMESPACE, NODE_USER_PREFIX, SESSION_UPGRADE};
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::identity::Identity;
use kedge_hub_core::kinds::{LEASE, NODE};
use kedge_hub_core::value::at;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::audited::Begins;
use super::authentication::Standing;
use super::context::{RequestContext, attributes};
use super::limits::{Slot, Taken};
use super::request::header as header_of;
use super::respond::{self, Body};
use super::shared::Server;
use crate::fresh::fresh;
use crate::hub::Hub;
use crate::pki::PROBE_USER;
pub(super) use exchange::Asked;
pub use exchange::read_answer;
pub(super) use messages::Messages;
pub(super) use program::{Answer, Question};
pub(super) use relay::{LINGER, Relay};
pub(crate) use serving::{Kept, Waiting};

/// Time in which a node that watches must dial: it starts a process, and begins TLS over a slow link.
const DIAL: Duration = Duration::from_secs(10);
/// The longest period of renewals, by which a node without watches learns of a call.
const LONGEST_PERIOD: u64 = 40;
/// The Lease duration of a node that sets none.
const LEASE_SECS: u64 = 40;
/// Prefix of the path at which nodes take calls.
const TAKE: &str = "/apis/kedge.dev/v1/nodes/";
/// Size of the buffer between the two connections of a session, each way.
const PIPE_BYTES: usize = 16 * 1024;

/// Sends a request to a node and passes its answer on, plainly or in messages.
pub(super) async fn open(
    context: &RequestContext<'_>,
    node: &str,
    asked: Asked,
    messages: Option<Messages>,
    begins: &Begins<'_>,
) -> Result<Response<Body>, ApiError> {
    let wait = patience(&context.server.hub, node)?;
    let user = context.identity_now()?.user.clone();
    let answering = async {
        let (session, Dialled { stream, asker }) = dialled(context.server, node, &user, wait).await?;
        // the credential may have been revoked meanwhile, or expired
        context.identity_now()?;
        begins.record(context, node).await?;
        let mut relay = exchange::ask(stream, node, asked).await?;
        if let Some(messages) = messages {
            relay = relay.in_messages(messages);
        }
        Ok(relay.held(session, asker, standing(context, begins)).into_response())
    };
    tokio::select! {
        answered = answering => answered,
        // frees the session's place for others
        () = context.presented.left() => Err(ApiError::caller_left(node)),
    }
}

/// The reasons for which a session ends. An answer about a part of a node's API ends only with its token:
/// such an answer is short, and another right may have led to it.
fn standing(context: &RequestContext<'_>, begins: &Begins<'_>) -> Option<Standing> {
    let asked = attributes(begins.verb, begins.target, None);
    match context.authorize(&asked) {
        Err(_) if begins.target.kind.kind == NODE.kind => context.presented.standing(None),
        _ => context.standing(&asked),
    }
}

/// Sends a request to a program in a pod of a node. The answer's head is made by `shown` from the program's.
pub(super) async fn ask_program(
    context: &RequestContext<'_>,
    node: &str,
    question: Question,
    begins: &Begins<'_>,
    shown: impl FnOnce(&Answer) -> Response<()> + Send,
) -> Result<Response<Body>, ApiError> {
    let wait = patience(&context.server.hub, node)?;
    let user = context.identity_now()?.user.clone();
    let answering = async {
        let (session, Dialled { stream, asker }) = dialled(context.server, node, &user, wait).await?;
        // the credential may have been revoked meanwhile, or expired
        context.identity_now()?;
        begins.record(context, node).await?;
        let connected = exchange::connect(stream, node, question.place.clone()).await?;
        let answer = program::ask(connected, question).await?;
        let (head, ()) = shown(&answer).into_parts();
        if answer.is_over() {
            // answered by the HTTP library, because it knows for each such answer why it has no body
            let mut response = respond::empty(head.status.as_u16());
            *response.headers_mut() = head.headers;
            return Ok(response);
        }
        let relay = Relay::answer(answer).held(session, asker, standing(context, begins));
        let mut response = relay.into_response();
        *response.headers_mut() = head.headers;
        Ok(response)
    };
    tokio::select! {
        answered = answering => answered,
        // frees the session's place for others
        () = context.presented.left() => Err(ApiError::caller_left(node)),
    }
}

/// Checks that a node could take a call at once.
pub(super) fn ready(server: &Server, node: &str) -> Result<(), Unready> {
    patience(&server.hub, node).map_err(|_| Unready::Unheard)?;
    match slot_of(server, node).own_watches().is_watching() {
        true => Ok(()),
        false => Err(Unready::WithoutWatch),
    }
}

/// Sends a request to a node that is ready, for the hub itself, and returns the whole answer, of `most` bytes
/// at most. Each piece is added to `taken` as it arrives.
///
/// # Errors
/// 504 if the node did not dial. Otherwise the node's error.
pub(super) async fn ask(
    server: &Server,
    node: &str,
    target: &str,
    most: usize,
    taken: &mut Taken,
) -> Result<Vec<u8>, ApiError> {
    let (_session, Dialled { stream, asker: _asker }) = dialled(server, node, PROBE_USER, DIAL).await?;
    let relay = exchange::ask(stream, node, Asked::get(target.to_owned())).await?;
    let mut left = most;
    let may_have = |bytes| {
        let too_many = || io::Error::other(format!("its answer has more than {most} bytes"));
        left = usize::checked_sub(left, bytes).ok_or_else(too_many)?;
        taken.more(bytes).map_err(|refused| io::Error::other(refused.message))
    };
    relay.read(may_have).await.map_err(|error| ApiError::node_failed(node, &error.to_string()))
}

/// The node's share of the hub's limits.
pub(super) fn slot_of(server: &Server, node: &str) -> Arc<Slot> {
    let identity = Identity::new(&format!("{NODE_USER_PREFIX}{node}"), &["system:nodes"]);
    server.limits.slot(Some(&identity), IpAddr::V4(Ipv4Addr::UNSPECIFIED), Instant::now())
}

/// Calls a node for a user, and waits until the node dials.
async fn dialled(
    server: &Server,
    node: &str,
    user: &str,
    wait: Duration,
) -> Result<(Session, Dialled), ApiError> {
    let made = server.calls.make(node, user, new_id()?)?;
    let announced = Announced::new(slot_of(server, node), &made.session.id);
    let dialled = timeout(wait, made.dialled).await;
    drop(announced);
    let Ok(Ok(dialled)) = dialled else {
        log::info!("node {node:?} was called for {user:?}, and did not dial within {} s", wait.as_secs());
        return Err(ApiError::node_did_not_dial(node, wait.as_secs()));
    };
    Ok((made.session, dialled))
}

/// True if the first bytes of a request look like a call: while a call waits, the hub watches for its
/// client's end.
pub(super) fn begins_like_one(received: &[u8]) -> bool {
    let target = received.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let mut segments = path.split(|byte| *byte == b'/');
    let last = segments.next_back().unwrap_or_default();
    [&b"log"[..], b"exec", b"attach", b"portforward", b"proxy"].contains(&last)
        || segments.any(|segment| segment == b"proxy")
        || path.starts_with(b"/apis/metrics.k8s.io/")
}

/// The time in which a node must dial.
///
/// # Errors
/// The node cannot learn of a call: it never renewed, or the hub has not heard from it for long.
fn patience(hub: &Hub, node: &str) -> Result<Duration, ApiError> {
    let found = hub.get(&NODE, "", node).ok_or_else(|| ApiError::not_found(&NODE, node))?.value();
    let conditions = at(&found, &["status", "conditions"]).and_then(Value::as_array);
    let ready = conditions.into_iter().flatten().find(|condition| condition["type"] == "Ready");
    if ready.is_some_and(|ready| ready["status"] == "Unknown") {
        return Err(ApiError::node_out_of_reach(node, "the hub has not heard of it for a while"));
    }
    let Some(lease) = hub.get(&LEASE, NODE_LEASE_NAMESPACE, node) else {
        return Err(ApiError::node_out_of_reach(node, "it has never renewed its Lease"));
    };
    let secs = at(&lease.value(), &["spec", "leaseDurationSeconds"]).and_then(Value::as_u64);
    // a node renews four times within its Lease's duration
    let period = (secs.unwrap_or(LEASE_SECS) / 4).clamp(1, LONGEST_PERIOD);
    Ok(DIAL + Duration::from_secs(period))
}

/// 160 random bits.
fn new_id() -> Result<String, ApiError> {
    Ok(fresh()?.random.iter().take(20).map(|byte| format!("{byte:02x}")).collect())
}

/// True if this is a node's first attempt to take a call that waits for it. It does not count against the
/// node's limit of requests: the client of the call must not wait because of the node's earlier requests.
pub(super) fn is_first_try(server: &Server, identity: &Identity, path: &str) -> bool {
    let Some(node) = identity.node() else { return false };
    let name_and_id = path.strip_prefix(TAKE).and_then(|rest| rest.split_once("/calls/"));
    name_and_id.is_some_and(|(name, id)| name == node && server.calls.first_try(id, node))
}

/// Serves a node that takes a call: `POST /apis/kedge.dev/v1/nodes/NAME/calls/ID`.
pub(super) fn take(context: &RequestContext<'_>, node: &str, id: &str) -> Result<Response<Body>, ApiError> {
    // the credential's own identity: an administrator who impersonates a node is not that node
    if context.author() != Some(node) || context.identity_now()?.node() != Some(node) {
        return Err(ApiError::forbidden(format!("only node {node:?} takes calls for it")));
    }
    if context.parts.method != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    let upgrade = header_of(&context.parts.headers, "upgrade");
    if !upgrade.eq_ignore_ascii_case(SESSION_UPGRADE) {
        return Err(ApiError::bad_request(format!("Upgrade: expected {SESSION_UPGRADE}, found {upgrade:?}")));
    }
    let unknown = || ApiError::call_not_found(id);
    let call = context.server.calls.take(id, node).ok_or_else(unknown)?;
    let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
    let (asker, asks) = oneshot::channel();
    call.dialled.send(Dialled { stream: theirs, asker }).map_err(|_| unknown())?;
    let mut response = Relay::raw(ours, asks).into_response();
    *response.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(SESSION_UPGRADE));
    Ok(response)
}

impl Relay {
    fn into_response(self) -> Response<Body> {
        let mut response = respond::empty(200);
        let (status, headers) = self.head();
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        *response.body_mut() = Body::Relay(Box::new(self));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::calls::session::{Calls, Made, NODE_MOST, USER_MOST};

    fn make(calls: &Arc<Calls>, node: &str, user: &str, id: &str) -> Result<Made, ApiError> {
        calls.make(node, user, id.to_owned())
    }

    #[test]
    fn call_is_taken_once_and_by_its_node() {
        let calls = Arc::new(Calls::new(512));
        let made = make(&calls, "a", "u", "1").unwrap();
        assert!(!calls.first_try("1", "b") && !calls.first_try("2", "a"));
        assert_eq!([0; 2].map(|_| calls.first_try("1", "a")), [true, false]);
        assert!(calls.take("1", "b").is_none() && calls.take("2", "a").is_none());
        assert!(calls.take("1", "a").is_some(), "what another node tried changes nothing");
        assert!(calls.take("1", "a").is_none());
        drop(made);
        let made = make(&calls, "a", "u", "2").unwrap();
        drop(made);
        assert!(calls.take("2", "a").is_none(), "its user has left");
        let state = calls.state();
        assert_eq!((state.all, state.held.len()), (0, 0));
    }

    #[test]
    fn call_is_known_by_its_first_line() {
        let check = |line: &str, expect: bool| {
            let head = format!("{line} HTTP/1.1\r\nx: /log \r\n\r\n");
            assert_eq!(begins_like_one(head.as_bytes()), expect, "{line}");
        };
        check("GET /api/v1/namespaces/n/pods/p/log?follow=true", true);
        check("POST /api/v1/namespaces/n/pods/p/exec?command=a/b", true);
        check("GET /api/v1/nodes/n/proxy/configz", true);
        check("PUT /api/v1/namespaces/n/pods/https:p:80/proxy/a/b", true);
        check("POST /api/v1/namespaces/n/pods/p/proxy", true);
        check("GET /api/v1/namespaces/n/pods?x=/log", false);
        check("POST /apis/kedge.dev/v1/nodes/n/calls/log0", false);
        assert!(!begins_like_one(b""));
    }

    #[test]
    fn sessions_of_a_node_a_user_and_all_are_limited() {
        let calls = Arc::new(Calls::new(512));
        let fill = |node: &dyn Fn(usize) -> String, user: &dyn Fn(usize) -> String| {
            let made = |n| make(&calls, &node(n), &user(n), &format!("{}-{n}", user(n)));
            (0..1000).map_while(|n| made(n).ok()).collect::<Vec<_>>()
        };
        let of_node = fill(&|_| "a".into(), &|n| format!("u{n}"));
        assert_eq!(of_node.len(), NODE_MOST);
        assert_eq!(make(&calls, "a", "x", "x").err().map(|error| error.code), Some(429));
        drop(of_node);
        let of_user = fill(&|n| format!("n{n}"), &|_| "u".into());
        assert_eq!(of_user.len(), USER_MOST);
        let rest = fill(&|n| format!("n{n}"), &|n| format!("v{n}"));
        assert_eq!(rest.len(), 512 - USER_MOST);
        assert_eq!(make(&calls, "z", "z", "z").err().map(|error| error.code), Some(503));
    }
}
