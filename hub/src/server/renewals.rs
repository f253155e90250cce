//! The fast path of a node's renewal: from its bytes to the renewed Lease and the bytes of the answer,
//! without the HTTP library, decoding, a schema or managers. Ten thousand nodes renew a thousand times a
//! second.
//!
//! Always holds: it makes no decision of its own. A request that is not exactly a node's renewal of its own
//! Lease, asks for anything special, or would be refused is handled in the general way (`handlers`), with the
//! same result. It waits only for its own bytes. Left to others: the end of a request (`head`), the limits of
//! its caller (`limits`).

use crate::server::authentication;
use crate::server::caller::{Caller, LEASES};
use std::io::{Cursor, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Response, header};
use kedge_api::{CALLS_HEADER, DESIRED_HEADER, NODE_LEASE_NAMESPACE, RENEWAL_MEDIA};
use kedge_hub_core::identity::{self, Attributes, Identity};
use kedge_hub_core::kinds::LEASE;
use kedge_hub_core::requests::Renewal;

use super::limits::{Slot, Work};
use super::request::prefers_minimal;
use super::respond::Body;
use super::shared::Server;

/// Largest request that is handled this way; an agent's has 300 bytes.
pub(super) const MOST_BYTES: usize = 2048;
/// Time in which the rest of a renewal must arrive after its head; then the general way waits for it.
pub(super) const REST: Duration = Duration::from_secs(5);
/// Most headers of such a request.
const HEADERS: usize = 8;
/// Headers that have no effect on a renewal whose answer contains no object. A request with any other header
/// is handled in the general way.
const WITHOUT_EFFECT: [&str; 5] = ["host", "content-length", "accept", "accept-encoding", "user-agent"];
/// Room for the answer: the status, the header with a number, and the offer of the short form.
const ANSWER_BYTES: usize = 144;

/// The bytes of an answer.
pub(super) struct Answer(Cursor<[u8; ANSWER_BYTES]>);

impl Answer {
    /// `offers`: the renewal could have been shorter, and the answer says so. A node that created its Lease
    /// with a POST has no other way to learn that.
    fn new(desired: u64, offers: bool) -> Option<Answer> {
        let mut text = Cursor::new([0; ANSWER_BYTES]);
        // the reason may be empty (RFC 9112 section 4), which saves 10 of the 8,500 bytes that a node
        // transfers a day
        write!(text, "HTTP/1.1 204 \r\n{DESIRED_HEADER}: {desired}\r\n").ok()?;
        if offers {
            write!(text, "accept-patch: {RENEWAL_MEDIA}\r\n").ok()?;
        }
        write!(text, "\r\n").ok()?;
        Some(Answer(text))
    }

    pub(super) fn text(&self) -> &[u8] {
        let length = usize::try_from(self.0.position()).unwrap_or(ANSWER_BYTES);
        &self.0.get_ref()[..length]
    }
}

/// True if the first bytes of a request look like a renewal.
pub(super) fn begins_like_one(received: &[u8]) -> bool {
    received.strip_prefix(b"PATCH ").is_some_and(|path| path.starts_with(LEASES.as_bytes()))
}

/// Makes the renewal that a complete request asks for; `None`: the general way must handle it from the start.
pub(super) fn answer(server: &Server, caller: &Caller, request: &[u8]) -> Option<Answer> {
    // after a panic the general way reports the error; shared state is behind locks and atomics, which stay
    // valid
    catch_unwind(AssertUnwindSafe(|| renew(server, caller, request))).ok().flatten()
}

fn renew(server: &Server, caller: &Caller, request: &[u8]) -> Option<Answer> {
    let identity = (*caller.identity).as_ref()?;
    let node = identity.node()?;
    if caller.slot.own_watches().is_called() {
        // the general way answers with the error
        return None;
    }
    let Plain { renewal, body_bytes, is_alone } = plain(request, node)?;
    authentication::prove(server, caller, identity).ok().filter(|()| may_renew(server, identity, node))?;
    caller.note(Some(identity));
    let now = Instant::now();
    let paid = caller.slot.pace_renewal(now).ok()?;
    let renewed = server.hub.writer().renew_plainly(NODE_LEASE_NAMESPACE, node, &renewal);
    if renewed.is_none_or(|renewed| renewed.is_err()) {
        // the general way counts it again
        caller.slot.unpace(paid, now);
        return None;
    }
    caller.slot.charge(Work::Parsed(body_bytes), now);
    caller.renewed(server);
    server.counters.answers[2].fetch_add(1, Ordering::Relaxed);
    log::debug!("PATCH {LEASES}{node} 204");
    Answer::new(named(server, node, &caller.slot), !is_alone)
}

struct Plain {
    renewal: Renewal,
    body_bytes: usize,
    /// The body is only the time.
    is_alone: bool,
}

/// Reads a renewal in its plain form: of this node's Lease, without parameters or impersonation, on a
/// connection that stays open, and without an object in the answer.
fn plain(request: &[u8], node: &str) -> Option<Plain> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut head = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(length) = head.parse(request).ok()? else { return None };
    if head.version != Some(1) || head.method != Some("PATCH") || head.path?.strip_prefix(LEASES)? != node {
        return None;
    }
    let (mut content_type, mut is_minimal) = (None, false);
    for header in head.headers.iter() {
        let value = std::str::from_utf8(header.value).ok()?;
        let named = |name: &str| header.name.eq_ignore_ascii_case(name);
        match () {
            () if named("content-type") && content_type.is_none() => {
                content_type = Some(value);
                is_minimal |= value == RENEWAL_MEDIA;
            }
            () if named("prefer") => is_minimal |= prefers_minimal(value),
            () if named("connection") && value.eq_ignore_ascii_case("keep-alive") => {}
            () if WITHOUT_EFFECT.into_iter().any(named) => {}
            () => return None,
        }
    }
    let body = request.get(length..).filter(|_| is_minimal)?;
    let (media, body_bytes) = (content_type?, body.len());
    Some(Plain { renewal: Renewal::read(media, body)?, body_bytes, is_alone: media == RENEWAL_MEDIA })
}

/// True if a renewal in the general way is cheap whatever it contains: otherwise a node could make the hub
/// work at the rate of renewals. A PUT or merge patch of the node's own Lease counts against that rate even
/// if it changes other fields and so is written durably: that is one small write a second.
pub(super) fn costs_little(request: &Parts, body_bytes: Option<u64>) -> bool {
    let content_type = request.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    body_bytes.is_some_and(|bytes| bytes <= MOST_BYTES as u64)
        && (request.method == Method::PUT || content_type.is_some_and(Renewal::merges))
}

fn may_renew(server: &Server, identity: &Identity, node: &str) -> bool {
    let attributes = Attributes {
        verb: "patch",
        group: LEASE.group,
        resource: LEASE.plural,
        namespace: NODE_LEASE_NAMESPACE,
        name: node,
        ..Attributes::default()
    };
    // an administrator's writes record a manager
    !identity.is_admin() && identity::authorize(Some(identity), &attributes, &*server.hub).is_ok()
}

/// The latest change that concerns a node, for an answer that will name it.
fn named(server: &Server, node: &str, slot: &Slot) -> u64 {
    let desired = server.hub.memory().desired(node);
    slot.own_watches().name(desired);
    desired
}

/// Adds to an answer of the general way the latest change that concerns the node, so that the node need not
/// poll and needs no watch; also the calls that wait for it, and the offer of the shortest renewal.
pub(super) fn add_desired(
    server: &Server,
    caller: Option<&Identity>,
    slot: &Slot,
    response: &mut Response<Body>,
) {
    if let Some(node) = caller.and_then(Identity::node) {
        let desired = named(server, node, slot);
        let headers = response.headers_mut();
        if slot.own_watches().is_called()
            && let Ok(calls) = HeaderValue::try_from(slot.own_watches().calls())
        {
            headers.insert(HeaderName::from_static(CALLS_HEADER), calls);
        }
        headers.insert(HeaderName::from_static(DESIRED_HEADER), HeaderValue::from(desired));
        headers.insert(HeaderName::from_static("accept-patch"), HeaderValue::from_static(RENEWAL_MEDIA));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "{\"spec\":{\"renewTime\":\"2026-11-21T00:00:00.000000Z\"}}";

    #[track_caller]
    fn check(line: &str, fields: &str, body: &str, expect: bool) {
        let line = line.replace("LEASES/", LEASES);
        let request = format!("{line}\r\nhost: h\r\n{fields}content-length: {}\r\n\r\n{body}", body.len());
        let read = plain(request.as_bytes(), "n");
        assert_eq!(read.map(|read| read.body_bytes), expect.then_some(body.len()), "{request}");
    }

    #[test]
    fn only_plain_renewals_take_the_short_way() {
        const PATCH: &str = "PATCH LEASES/n HTTP/1.1";
        const MERGE: &str = "content-type: application/merge-patch+json\r\n";
        const MINIMAL: &str = "prefer: return=minimal\r\n";
        let with = |more: &str| format!("{MERGE}{MINIMAL}{more}");
        check(PATCH, &with(""), BODY, true);
        check(
            PATCH,
            "Content-Type: application/strategic-merge-patch+json\r\nPREFER: a, return=minimal\r\n",
            BODY,
            true,
        );
        check(
            PATCH,
            &with("accept: application/json\r\nuser-agent: curl/8\r\nconnection: Keep-Alive\r\n"),
            BODY,
            true,
        );
        for more in [
            "connection: close\r\n",
            "impersonate-user: x\r\n",
            "authorization: Bearer x\r\n",
            "expect: 100-continue\r\n",
            "audit-id: x\r\n",
            "content-type: text/plain\r\n",
            "x: \u{e9}\r\n",
            "accept: a\r\naccept: b\r\naccept: c\r\naccept: d\r\naccept: e\r\n",
        ] {
            check(PATCH, &with(more), BODY, false);
        }
        let media = format!("content-type: {RENEWAL_MEDIA}\r\n");
        check(PATCH, &media, "2026-11-21T00:00:00.000000Z", true);
        check(PATCH, &format!("{media}{MINIMAL}"), "2026-11-21T00:00:00.000000Z", true);
        check(PATCH, &media, BODY, false);
        check(PATCH, &with(""), "2026-11-21T00:00:00.000000Z", false);
        check(PATCH, MERGE, BODY, false);
        check(PATCH, MINIMAL, BODY, false);
        check(PATCH, &format!("{MERGE}prefer: return=representation\r\n"), BODY, false);
        check(PATCH, &with(""), &BODY.replace("renewTime", "acquireTime"), false);
        check(PATCH, &with(""), &format!("{BODY} "), false);
        for line in [
            "PUT LEASES/n HTTP/1.1",
            "PATCH LEASES/n HTTP/1.0",
            "PATCH LEASES/m HTTP/1.1",
            "PATCH LEASES/n/status HTTP/1.1",
            "PATCH LEASES/n?dryRun=All HTTP/1.1",
            "PATCH LEASES/%6e HTTP/1.1",
            "PATCH https://h LEASES/n HTTP/1.1",
        ] {
            check(line, &with(""), BODY, false);
        }
    }

    #[test]
    fn answer_holds_the_largest_revision() {
        let check = |offers, offer: &str| {
            let answer = Answer::new(u64::MAX, offers).unwrap();
            let expect = format!("HTTP/1.1 204 \r\nkedge-desired: {}\r\n{offer}\r\n", u64::MAX);
            assert_eq!(answer.text(), expect.as_bytes());
        };
        check(false, "");
        check(true, "accept-patch: text/vnd.kedge.renewal\r\n");
    }
}
