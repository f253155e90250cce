//! The facts of a request that go into the audit log, and the id that ties its line to its answer.
//!
//! Always holds: every change that a client requested, every session with a node and every read of Secrets is
//! recorded with its outcome, or counted, and so is every refused attempt to impersonate; a command has a
//! line on the disk before its node learns of it, and another at its end. The exceptions are a node's reports
//! about itself that are stored, and the renewal of a Lease by its holder. Left to others: the class of each
//! request (`acts`), the line, its place and its quota (`crate::audit`).

use crate::server::ending::Ending;
use crate::server::route::Asked;
use crate::server::trail::{CreatedName, Trail};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use http::{Response, StatusCode};
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::identity::{Identity, Standing};
use kedge_hub_core::kinds::LEASE;
use kedge_hub_core::value::rfc3339;
use time::OffsetDateTime;

use super::acts::Act;
use super::context::RequestContext;
use super::request::header;
use super::respond::Body;
use super::route::{METRICS, Route, Target};
use super::shared::Server;
use crate::audit::{Class, Entry, Note, ObjectRef, Stage};

/// Longest time for a command's line to reach the disk. Clients of commands wait longer than this.
const DURABLE: Duration = Duration::from_secs(20);

/// True if a request that a handler answered is counted instead of recorded: without a valid credential, or
/// over a limit. All refusals of an administrator's requests are recorded.
fn is_counted(caller: Option<&Identity>, code: u16) -> bool {
    caller.is_none_or(|caller| matches!(code, 401 | 429) && !caller.is_admin())
}

/// Counts a refused request that has no line: a request refused before any handler, or one that `is_counted`.
/// `caller`: the identity of the connection's credential, valid or not.
pub(super) fn count(server: &Server, from: IpAddr, caller: Option<&Identity>, code: u16, handled: bool) {
    let Some(log) = server.hub.audit().filter(|_| matches!(code, 401 | 429)) else { return };
    if !handled || is_counted(caller, code) {
        log.count(from, caller.map_or("", |caller| &caller.user), code);
    }
}

/// True if the request is one of a node's reports about itself and had an ordinary outcome. The node repeats
/// one that fails because of the hub, or because of a concurrent change.
fn is_report(caller: &Identity, target: &Target, code: u16) -> bool {
    let says_of_itself = caller.node().is_some()
        && !caller.is_admin()
        && matches!(
            (target.kind.plural, &*target.subresource),
            ("leases" | "events", "") | ("nodes" | "pods", "status")
        );
    says_of_itself && (code < 400 || code == 409 || code >= 500)
}

/// True if a request changes only the time of a Lease that its caller holds.
fn is_renewal(context: &RequestContext<'_>, target: &Target, code: u16) -> bool {
    if target.kind.kind != LEASE.kind {
        return false;
    }
    let holding = context.trail.lease.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (Some(holding), Some(caller)) = (holding.filter(|_| code < 300), (*context.caller).as_ref()) else {
        return false;
    };
    let acting = context.identity.as_ref().map_or("", |identity| &identity.user);
    let who = format!("{} {} {acting} {}", caller.user, caller.credential, context.trail.from);
    context.server.holders.renews(&target.namespace, holding, &who)
}

/// Records a change, an attempt, or a read of Secrets. A session in a pod gets its line when it is over.
pub(super) fn audit(
    context: &RequestContext<'_>,
    verb: &str,
    target: &Target,
    outcome: &mut Result<Response<Body>, ApiError>,
) {
    let code = code_of(outcome);
    let is_left_out =
        |caller: &Identity| is_report(caller, target, code) || is_renewal(context, target, code);
    if context.act == Act::Look || (*context.caller).as_ref().is_some_and(is_left_out) {
        return;
    }
    let made = outcome.as_ref().ok().and_then(|response| response.extensions().get::<CreatedName>());
    let made = made.map(|made| made.0.clone());
    let object = ObjectRef { name: made.as_deref().unwrap_or(&target.name), ..object_of(target) };
    if let Ok(response) = outcome
        && context.act == Act::Command
        && response.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Body::Relay(relay) = response.body_mut()
        && let Some(caller) = (*context.caller).clone()
    {
        relay.ends_with(Ending::new(context, caller, verb, object, code));
        return;
    }
    record(context, verb, object, code);
}

fn object_of(target: &Target) -> ObjectRef<'_> {
    ObjectRef {
        group: target.kind.group,
        version: target.kind.version,
        resource: target.kind.plural,
        subresource: &target.subresource,
        namespace: &target.namespace,
        name: &target.name,
    }
}

/// Records that a client reads the resource usage of nodes.
pub(super) fn audit_usage(
    context: &RequestContext<'_>,
    asked: &Asked,
    outcome: &Result<Response<Body>, ApiError>,
) {
    record(context, asked.verb(), object_of_usage(asked), code_of(outcome));
}

fn object_of_usage(asked: &Asked) -> ObjectRef<'_> {
    let (group, version) = METRICS;
    let Asked { resource, namespace, name } = asked;
    ObjectRef { group, version, resource, subresource: "", namespace, name }
}

/// Records that a node was refused a call because it has no right to it.
pub(super) fn audit_call(
    context: &RequestContext<'_>,
    node: &str,
    outcome: &Result<Response<Body>, ApiError>,
) {
    let code = code_of(outcome);
    // a node that is too late, or breaks the protocol, attempts no intrusion
    if matches!(code, 401 | 403) {
        record(context, "create", object_of_call(node), code);
    }
}

fn object_of_call(node: &str) -> ObjectRef<'_> {
    ObjectRef {
        group: "kedge.dev",
        version: "v1",
        resource: "nodes",
        subresource: "calls",
        name: node,
        ..ObjectRef::default()
    }
}

/// Records a request that was refused because its caller may not impersonate the identity it named. The
/// attempt is recorded, whatever the request was for. `verb`: the verb of a request for an object, if it is
/// one.
pub(super) fn audit_impersonation(
    context: &RequestContext<'_>,
    route: &Route,
    verb: Option<&str>,
    refused: &ApiError,
) {
    let method = context.parts.method.as_str().to_ascii_lowercase();
    let of_node = |name, subresource| ObjectRef {
        version: "v1",
        resource: "nodes",
        subresource,
        name,
        ..ObjectRef::default()
    };
    let pods = |namespace, name, subresource| ObjectRef {
        version: "v1",
        resource: "pods",
        subresource,
        namespace,
        name,
        ..ObjectRef::default()
    };
    let (own, object) = match route {
        Route::Target(target) => ("", object_of(target)),
        Route::Bindings(namespace) => ("", pods(namespace, "", "binding")),
        Route::NodeProxy { node, .. } => ("", of_node(node, "proxy")),
        Route::PodProxy { namespace, name, .. } => ("", pods(namespace, name, "proxy")),
        Route::NodeAccess { node, verb } => (verb.name(), of_node(node, "")),
        Route::Usage(asked) => (asked.verb(), object_of_usage(asked)),
        Route::Call { node, .. } => ("create", object_of_call(node)),
        // the line contains the path
        _ => ("", ObjectRef::default()),
    };
    let verb = verb.or(Some(own).filter(|own| !own.is_empty())).unwrap_or(&method);
    record(context, verb, object, refused.code);
}

fn code_of(outcome: &Result<Response<Body>, ApiError>) -> u16 {
    outcome.as_ref().map_or_else(|error| error.code, |response| response.status().as_u16())
}

/// A request that is about to be passed on to a node.
pub(super) struct Begins<'a> {
    pub(super) verb: &'a str,
    pub(super) target: &'a Target,
}

impl Begins<'_> {
    /// Makes a line about a command durable, before its node learns of it.
    ///
    /// # Errors
    /// The line cannot be written to the disk, or its caller has used up its quota of the log: then the
    /// command must not be passed on.
    pub(super) async fn record(&self, context: &RequestContext<'_>, node: &str) -> Result<(), ApiError> {
        let (Some(log), Some(caller)) = (context.server.hub.audit(), (*context.caller).as_ref()) else {
            return Ok(());
        };
        if context.act != Act::Command {
            return Ok(());
        }
        let target = self.target;
        let refused = |why: &str| {
            let (part, of, name) = (&target.subresource, target.kind.plural, &target.name);
            format!("{part} of {of} {name:?} was not passed on to node {node:?}: {why}")
        };
        let recorded = {
            let line = Line::new(context, caller, self.verb, object_of(target));
            let entry = Entry { stage: Stage::RequestReceived, ..line.entry() };
            log.record_durably(Class::of(caller, context.act.is_read(), 0), &entry)
        };
        let Ok(written) = recorded else {
            let why = "this client has used up its share of the audit log, please try again later";
            return Err(ApiError::too_many_requests(refused(why)));
        };
        match tokio::time::timeout(DURABLE, written).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => {
                let why = "the hub's disk does not take its line in the audit log";
                Err(ApiError::unavailable(refused(why)))
            }
            Err(_) => {
                let secs = DURABLE.as_secs();
                let why = format!("the hub's disk did not take its line in the audit log within {secs} s");
                Err(ApiError::unavailable(refused(&why)))
            }
        }
    }
}

/// The facts of a request's line, except its outcome.
struct Line<'a> {
    id: String,
    impersonated: Option<Identity>,
    caller: &'a Identity,
    context: &'a RequestContext<'a>,
    verb: &'a str,
    object: ObjectRef<'a>,
}

impl<'a> Line<'a> {
    fn new(
        context: &'a RequestContext<'a>,
        caller: &'a Identity,
        verb: &'a str,
        object: ObjectRef<'a>,
    ) -> Line<'a> {
        let id = context.trail.id(&context.parts.headers);
        Line { id, impersonated: impersonated(context), caller, context, verb, object }
    }

    fn entry(&self) -> Entry<'_> {
        let (headers, uri) = (&self.context.parts.headers, &self.context.parts.uri);
        Entry {
            id: &self.id,
            user: self.caller,
            impersonated: self.impersonated.as_ref(),
            from: Some(self.context.trail.from),
            uri: uri.path_and_query().map_or("", |path| path.as_str()),
            agent: header(headers, "user-agent"),
            verb: self.verb,
            object: self.object,
            stage: Stage::ResponseComplete,
            code: 0,
            received: self.context.trail.received,
            ended: OffsetDateTime::now_utc(),
            notes: &[],
        }
    }
}

/// Writes the line of a request, unless it is counted.
fn record(context: &RequestContext<'_>, verb: &str, object: ObjectRef<'_>, code: u16) {
    let Some(log) = context.server.hub.audit() else { return };
    let Some(caller) = (*context.caller).as_ref().filter(|caller| !is_counted(Some(caller), code)) else {
        return;
    };
    let line = Line::new(context, caller, verb, object);
    let mut notes = context.trail.notes.lock().unwrap_or_else(PoisonError::into_inner);
    if let Standing::Expired(since) = caller.standing
        && let Ok(since) = OffsetDateTime::from_unix_timestamp(since)
    {
        notes.push((Note::ExpiredSince, rfc3339(since)));
    }
    log.record(
        Class::of(caller, context.act.is_read(), code),
        &Entry { code, notes: &notes, ..line.entry() },
    );
}

impl Ending {
    fn new(
        context: &RequestContext<'_>,
        caller: Identity,
        verb: &str,
        object: ObjectRef<'_>,
        code: u16,
    ) -> Box<Ending> {
        let line = Line::new(context, &caller, verb, object);
        let entry = line.entry();
        let words = [entry.id, entry.uri, entry.agent, verb].map(str::to_owned);
        let ObjectRef { group, version, resource, subresource, namespace, name } = object;
        let object = [group, version, resource, subresource, namespace, name].map(str::to_owned);
        let impersonated = line.impersonated.clone();
        let Trail { from, received, .. } = *context.trail;
        let hub = Arc::clone(&context.server.hub);
        Box::new(Ending { hub, caller, impersonated, from, words, object, received, code })
    }
}

/// The identity that a request acts as; if impersonation was refused, the identity that it named.
fn impersonated(context: &RequestContext<'_>) -> Option<Identity> {
    let headers = &context.parts.headers;
    if !headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
        return None;
    }
    let asked = || Identity {
        user: header(headers, "impersonate-user").to_owned(),
        uid: header(headers, "impersonate-uid").to_owned(),
        groups: headers
            .get_all("impersonate-group")
            .iter()
            .map(|group| String::from_utf8_lossy(group.as_bytes()).into_owned())
            .collect(),
        ..Identity::default()
    };
    Some(context.identity.clone().unwrap_or_else(asked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_uuids_and_differ() {
        let from = IpAddr::from([192, 0, 2, 1]);
        let (one, other) = (Trail::new(from).new_id(), Trail::new(from).new_id());
        assert_ne!(one, other);
        let parts: Vec<usize> = one.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{one}");
        assert!(one.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit()));
        assert_eq!((&one[14..15], &one[19..20]), ("4", "8"), "{one}");
    }

    #[test]
    fn anonymous_and_excessive_requests_are_counted() {
        let (admin, node) =
            (Identity::new("a", &["system:masters"]), Identity::new("system:node:n", &["system:nodes"]));
        let check =
            |caller: Option<&Identity>, code, expect| assert_eq!(is_counted(caller, code), expect, "{code}");
        check(None, 401, true);
        check(None, 404, true);
        check(Some(&node), 401, true);
        check(Some(&node), 429, true);
        check(Some(&node), 403, false);
        check(Some(&node), 200, false);
        check(Some(&admin), 429, false);
    }

    #[test]
    fn only_usual_ends_of_a_nodes_reports_are_left_out() {
        let node = Identity::new("system:node:n", &["system:nodes"]);
        let both = Identity::new("system:node:n", &["system:nodes", "system:masters"]);
        let user = Identity::new("u", &[]);
        let check = |caller: &Identity, path: &str, codes: [bool; 4]| {
            let Route::Target(target) = super::super::route::parse(path) else { panic!("{path}") };
            let found = [200, 403, 409, 503].map(|code| is_report(caller, &target, code));
            assert_eq!(found, codes, "{} {path}", caller.user);
        };
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
        check(&node, lease, [true, false, true, true]);
        check(&both, lease, [false; 4]);
        check(&user, lease, [false; 4]);
        check(&node, "/api/v1/nodes/n/status", [true, false, true, true]);
        check(&user, "/api/v1/nodes/n/status", [false; 4]);
        check(&node, "/api/v1/nodes/n", [false; 4]);
        check(&node, "/api/v1/namespaces/default/events", [true, false, true, true]);
        check(&node, "/api/v1/namespaces/default/pods", [false; 4]);
        check(&node, "/api/v1/namespaces/default/pods/p", [false; 4]);
    }
}
