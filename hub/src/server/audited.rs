//! What of a request goes into the audit log, and the id that ties its line to its answer.
//!
//! Always holds: every change that a client asked for, every session with a node and every read of Secrets is recorded with its outcome,
//! or counted; the exception is what a node reports about itself when it is stored. Left to others: the line, its place and its quota
//! (`crate::audit`).

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use http::{HeaderMap, HeaderValue, Response};
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::identity::Identity;
use kedge_hub_core::kinds::SECRET;
use time::OffsetDateTime;

use super::context::RequestContext;
use super::request::{header, wants_minimal};
use super::respond::Body;
use super::route::{METRICS, Target};
use super::shared::Server;
use super::usage::Asked;
use crate::audit::{Class, Entry, Note, ObjectRef};
use crate::fresh::fresh;

/// Upstream's name of the header with the id of a request.
const AUDIT_ID: &str = "audit-id";
/// Longest name of a request that is taken from the client; upstream cuts there.
const AUDIT_ID_BYTES: usize = 64;
/// Names of a collection's objects that are collected for its line, which cuts them.
const NAMES: usize = 512;

/// What a node is asked for: logs and commands tell and do what Secrets and changes do.
const SESSIONS: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

/// The name that a created object got.
#[derive(Debug, Clone)]
pub(super) struct CreatedName(pub(super) Box<str>);

/// What is known of a request beside its head, for its line.
#[derive(Debug)]
pub(super) struct Trail {
    number: u64,
    from: IpAddr,
    received: OffsetDateTime,
    notes: Mutex<Vec<(Note, String)>>,
}

impl Trail {
    pub(super) fn new(from: IpAddr) -> Trail {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Trail { number, from, received: OffsetDateTime::now_utc(), notes: Mutex::default() }
    }

    /// Where the request comes from.
    pub(super) fn from(&self) -> IpAddr {
        self.from
    }

    /// The client's own name for its request, or a new one.
    fn id(&self, headers: &HeaderMap) -> String {
        match header(headers, AUDIT_ID) {
            own if own.is_empty() || own.len() > AUDIT_ID_BYTES => self.new_id(),
            own => own.to_owned(),
        }
    }

    /// A UUID: random for each start of the hub, then the number of the request.
    fn new_id(&self) -> String {
        static START: LazyLock<u64> = LazyLock::new(|| {
            let random = fresh().map_or([0; 21], |fresh| fresh.random);
            random.iter().take(8).fold(0, |all, byte| all << 8 | u64::from(*byte))
        });
        let (start, number) = (*START, self.number);
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            start >> 32,
            start >> 16 & 0xffff,
            start >> 4 & 0xfff,
            0x8000 | start & 0xf,
            number & 0xffff_ffff_ffff
        )
    }

    /// Adds the request's id to its answer, except for clients that want little: a node's renewals are most requests, and their answers
    /// pass metered links.
    pub(super) fn name(&self, response: &mut Response<Body>, headers: &HeaderMap) {
        if !wants_minimal(headers)
            && let Ok(id) = HeaderValue::try_from(self.id(headers))
        {
            response.headers_mut().insert(AUDIT_ID, id);
        }
    }

    fn note(&self, note: Note, text: String) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push((note, text));
    }

    /// The objects of a collection that a request acts on, also if it fails half way.
    pub(super) fn acts_on<'a>(&self, names: impl ExactSizeIterator<Item = &'a str>) {
        self.note(Note::Count, names.len().to_string());
        let names: Vec<&str> = names.take(NAMES).collect();
        self.note(Note::Names, names.join(","));
    }

    /// The request is answered with a token.
    pub(super) fn issues(&self, id: &str, audiences: &[String], expires: &str) {
        self.note(Note::IssuedCredential, format!("JTI={id}"));
        self.note(Note::Audiences, audiences.join(","));
        self.note(Note::NotAfter, expires.to_owned());
    }

    /// The request is let through all the same.
    pub(super) fn violates(&self, what: &str) {
        self.note(Note::PodSecurity, what.to_owned());
    }

    /// The request changes nothing.
    pub(super) fn dry_run(&self) {
        self.note(Note::DryRun, "true".to_owned());
    }
}

/// Whether a request that a handler answered is counted instead of recorded: without a valid credential, or over a limit. What an
/// administrator is refused is recorded.
fn is_counted(caller: Option<&Identity>, code: u16) -> bool {
    caller.is_none_or(|caller| matches!(code, 401 | 429) && !caller.is_admin())
}

/// Counts a refused request that is not recorded: what no handler saw is not. `caller`: of the connection's credential, valid or not.
pub(super) fn count(server: &Server, from: IpAddr, caller: Option<&Identity>, code: u16, handled: bool) {
    let Some(log) = server.hub.audit().filter(|_| matches!(code, 401 | 429)) else { return };
    if !handled || is_counted(caller, code) {
        log.count(from, caller.map_or("", |caller| &caller.user), code);
    }
}

/// Whether a request is one of a node's reports about itself that has the usual end. One that fails for the hub's sake, or meets a
/// concurrent change, is repeated by the node.
fn is_report(caller: &Identity, verb: &str, target: &Target, code: u16) -> bool {
    let says_of_itself = caller.node().is_some()
        && matches!(
            (target.kind.plural, &*target.subresource),
            ("leases" | "events", "") | ("nodes" | "pods", "status")
        );
    // leader elections renew Leases as nodes do
    let renews = target.kind.plural == "leases" && matches!(verb, "update" | "patch");
    match code {
        0..400 => says_of_itself || renews,
        409 | 500.. => says_of_itself,
        _ => false,
    }
}

/// Records a change, an attempt, or a read of Secrets.
pub(super) fn audit(
    context: &RequestContext<'_>,
    verb: &str,
    target: &Target,
    outcome: &Result<Response<Body>, ApiError>,
) {
    let is_session = SESSIONS.contains(&&*target.subresource);
    let is_plain_read = is_read(verb) && target.kind.kind != SECRET.kind && !is_session;
    let is_left_out = |caller: &Identity| is_report(caller, verb, target, code_of(outcome));
    if is_plain_read || (*context.caller).as_ref().is_some_and(is_left_out) {
        return;
    }
    let made = outcome.as_ref().ok().and_then(|response| response.extensions().get::<CreatedName>());
    let object = ObjectRef {
        group: target.kind.group,
        version: target.kind.version,
        resource: target.kind.plural,
        subresource: &target.subresource,
        namespace: &target.namespace,
        name: made.map_or(&target.name, |made| &made.0),
    };
    record(context, verb, object, outcome);
}

/// Records that nodes are asked what they use.
pub(super) fn audit_usage(
    context: &RequestContext<'_>,
    asked: &Asked,
    outcome: &Result<Response<Body>, ApiError>,
) {
    let (group, version) = METRICS;
    let Asked { resource, namespace, name } = asked;
    record(
        context,
        asked.verb(),
        ObjectRef { group, version, resource, subresource: "", namespace, name },
        outcome,
    );
}

fn is_read(verb: &str) -> bool {
    matches!(verb, "get" | "list" | "watch")
}

fn code_of(outcome: &Result<Response<Body>, ApiError>) -> u16 {
    outcome.as_ref().map_or_else(|error| error.code, |response| response.status().as_u16())
}

/// Writes the line of a request, unless it is counted.
fn record(
    context: &RequestContext<'_>,
    verb: &str,
    object: ObjectRef<'_>,
    outcome: &Result<Response<Body>, ApiError>,
) {
    let Some(log) = context.server.hub.audit() else { return };
    let code = code_of(outcome);
    let Some(caller) = (*context.caller).as_ref().filter(|caller| !is_counted(Some(caller), code)) else {
        return;
    };
    let (headers, uri) = (&context.parts.headers, &context.parts.uri);
    let (trail, impersonated) = (context.trail, impersonated(context));
    let notes = trail.notes.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = Entry {
        id: &trail.id(headers),
        user: caller,
        impersonated: impersonated.as_ref(),
        from: Some(trail.from),
        uri: uri.path_and_query().map_or("", |path| path.as_str()),
        agent: header(headers, "user-agent"),
        verb,
        object,
        code,
        received: trail.received,
        ended: OffsetDateTime::now_utc(),
        notes: &notes,
    };
    log.record(Class::of(caller, is_read(verb), code), &entry);
}

/// The identity that a request acts as; if that was refused, the one that it asked for.
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
        let user = Identity::new("u", &[]);
        let check = |caller: &Identity, verb: &str, path: &str, codes: [bool; 4]| {
            let super::super::route::Route::Target(target) = super::super::route::parse(path) else {
                panic!("{path}")
            };
            let found = [200, 403, 409, 503].map(|code| is_report(caller, verb, &target, code));
            assert_eq!(found, codes, "{} {verb} {path}", caller.user);
        };
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
        check(&node, "update", lease, [true, false, true, true]);
        check(&user, "update", lease, [true, false, false, false]);
        check(&user, "delete", lease, [false; 4]);
        check(&node, "patch", "/api/v1/nodes/n/status", [true, false, true, true]);
        check(&user, "patch", "/api/v1/nodes/n/status", [false; 4]);
        check(&node, "patch", "/api/v1/nodes/n", [false; 4]);
        check(&node, "create", "/api/v1/namespaces/default/events", [true, false, true, true]);
        check(&node, "create", "/api/v1/namespaces/default/pods", [false; 4]);
        check(&node, "delete", "/api/v1/namespaces/default/pods/p", [false; 4]);
    }
}
