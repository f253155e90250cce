//! Lists and watches: the present state of a set of objects, then every change of it.
//!
//! Owns the wire form of a watch (one JSON object a line, in chunks), the resourceVersion at which it
//! resumes, and the line's size limit. Always holds: a watch is one request, and its end tells whether
//! another may resume where it was and miss nothing, or the objects must be listed again. A silent connection
//! is a dead one: the server's bookmarks arrive every minute. Works on any Kubernetes since 1.20: plain list
//! and watch, no `sendInitialEvents`. It keeps no copy of the objects and does not back off between attempts;
//! both are the caller's. It blocks, on a thread of its own with a stack of [`STACK_BYTES`].

use crate::net::client::ids_of;
use crate::net::error::NetError;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use kedge_api::{excerpt, percent_encoded};
use kedge_platform::linux::give_back_stack;
use serde_json::Value;

use super::client::{Client, Request, StreamLimits, StreamedBody, shortened};

/// Most bytes of one line. The largest object that etcd takes has 1.5 MiB, JSON may need two bytes for one.
pub const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;

/// How long a watch may be silent. Servers send a bookmark about every 60 s; two may be lost to a stalled
/// link.
pub const IDLE_LIMIT: Duration = Duration::from_secs(150);

/// How long opening a watch may take, from name lookup to the head of the answer.
pub const OPEN_LIMIT: Duration = Duration::from_secs(30);

/// Most objects requested at once in a list, so that no answer is large: a page of Pods has about 1 MiB.
pub const LIST_PAGE: u32 = 50;

/// Most bytes of one page: as many as one object may have, and enough for 50 pods of 80 kB. If a page is
/// larger, fewer objects are requested at once.
const MAX_PAGE_BYTES: usize = MAX_LINE_BYTES;

/// Most objects of one list, over all pages. A node has at most a few hundred Pods.
pub const MAX_LISTED: usize = 5_000;

/// Most bytes of a page of one object.
pub const MAX_OBJECT_BYTES: usize = 3 * 1024 * 1024;

/// Pause before the next page when a busy server asks for a pause of 0 s.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// After a page that is too large, this many times fewer objects are requested at once.
const FEWER_AT_ONCE: u32 = 8;

/// Most bytes of one list, over all pages, where all of it is kept: it is in memory, and a board may have 64
/// MiB.
const MAX_LISTED_BYTES: usize = 16 * 1024 * 1024;

/// Most bytes that are read of one list, over all pages, where only a part of it is kept.
const MAX_READ_BYTES: usize = 64 * 1024 * 1024;

/// Most pages of one list. A server may send fewer objects than requested, and empty pages, but not for ever.
const MAX_PAGES: usize = 200;

/// Capacity of the line buffer that is kept between lines.
const KEPT_LINE_BYTES: usize = 16 * 1024;

/// Bytes read at once.
const READ_BYTES: usize = 4 * 1024;

/// Kind of a list of metadata only.
const METADATA_LIST_KIND: &str = "PartialObjectMetadataList";

/// `Accept` for such a list.
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// `Accept` for a watch of metadata only; a server without this form sends whole objects.
const METADATA_WATCH: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// A list as it was at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// The objects. As upstream sends them they may lack `kind` and `apiVersion`, which the list has.
    pub items: Vec<Value>,
    /// A watch from this version sees every later change.
    pub resource_version: String,
    /// The server's `Date`, in seconds since 1970.
    pub date_unix_secs: Option<u64>,
}

/// Lists a collection of objects of a kind, in pages. `path` has no query; `params` are percent-encoded pairs
/// without `limit` and `continue`, such as `fieldSelector=spec.nodeName%3Dedge-1`.
///
/// # Errors
/// Any [`NetError`]. `Refused` with status 410 means that the pages took too long: list again. `Garbled`: the
/// answer is not such a list, and does not tell which objects exist.
pub fn list(
    client: &Client,
    (path, kind): (&str, &str),
    params: &str,
    deadline: Duration,
) -> Result<Listed, NetError> {
    list_as(client, (path, kind), params, None, deadline, None)
}

/// Like [`list()`], but `take` reduces each object at once to the part that is kept, so that much more can be
/// read than fits in memory. An object that is too large on its own arrives as metadata only, and `take` is
/// called with `true`.
///
/// # Errors
/// Those of [`list()`].
pub fn list_taking(
    client: &Client,
    (path, kind): (&str, &str),
    params: &str,
    deadline: Duration,
    take: &mut dyn FnMut(Value, bool) -> Value,
) -> Result<Listed, NetError> {
    list_as(client, (path, kind), params, None, deadline, Some(take))
}

/// Like [`list()`], with the objects' metadata alone, without their content. Every Kubernetes since 1.15
/// serves it.
///
/// # Errors
/// Those of [`list()`]. `Refused` with status 406 means that the server lacks this form.
pub fn list_metadata(
    client: &Client,
    (path, kind): (&str, &str),
    params: &str,
    deadline: Duration,
) -> Result<Listed, NetError> {
    list_as(client, (path, kind), params, Some(METADATA_LIST), deadline, None)
}

fn list_as(
    client: &Client,
    (path, kind): (&str, &str),
    params: &str,
    accept: Option<&'static str>,
    deadline: Duration,
    mut take: Option<&mut dyn FnMut(Value, bool) -> Value>,
) -> Result<Listed, NetError> {
    let most_bytes = if take.is_some() { MAX_READ_BYTES } else { MAX_LISTED_BYTES };
    let mut at_once = LIST_PAGE;
    // this page has one object that is too large, reduced to its metadata
    let mut in_part = false;
    let begun = Instant::now();
    let mut listed = Listed { items: Vec::new(), resource_version: String::new(), date_unix_secs: None };
    let mut next = String::new();
    let (mut pages, mut bytes) = (0, 0);
    loop {
        let query = joined(&[params, &format!("limit={at_once}"), &next]);
        let left = deadline.saturating_sub(begun.elapsed());
        let request = Request::get(format!("{path}?{query}"), left);
        let accept = if in_part { Some(METADATA_LIST) } else { accept };
        let response_limit_bytes = if at_once == 1 { MAX_OBJECT_BYTES } else { MAX_PAGE_BYTES };
        let request = Request { accept, response_limit_bytes, ..request };
        let response = match client.request(&request) {
            Err(NetError::TooLarge { .. })
                if !in_part && bytes < most_bytes && (at_once > 1 || take.is_some()) =>
            {
                bytes += response_limit_bytes;
                in_part = at_once == 1;
                at_once = (at_once / FEWER_AT_ONCE).max(1);
                continue;
            }
            // otherwise the pages before it would have been read for nothing
            Err(NetError::Refused { status: 429, retry_after, .. }) if pages > 0 && left > LONGEST_PAUSE => {
                // this thread may sleep; a server that says 0 is not asked without pause
                std::thread::sleep(retry_after.unwrap_or(LONGEST_PAUSE).clamp(LEAST_PAUSE, LONGEST_PAUSE));
                continue;
            }
            answer => answer?,
        };
        listed.date_unix_secs = response.date_unix_secs;
        pages += 1;
        bytes += response.body.len();
        let garbled = |why: String| NetError::Garbled {
            request: response.request.clone(),
            status: Some(response.status),
            why,
        };
        if pages > MAX_PAGES || bytes > most_bytes {
            let most = format!("{MAX_PAGES} of {most_bytes} bytes");
            return Err(garbled(format!(
                "the list has {pages} pages of {bytes} bytes, expected at most {most}"
            )));
        }
        let mut page: Value = response.json()?;
        // an empty list of another kind does not mean that there are no objects of this kind
        if let Some(found) = page.get("kind") {
            // a server without the metadata's form may give whole objects
            let is_metadata = accept == Some(METADATA_LIST) && found == METADATA_LIST_KIND;
            let expected = format!("{kind}List");
            if *found != expected && !is_metadata {
                let found = kedge_api::excerpt(&found.to_string());
                return Err(garbled(format!("the answer has the kind {found}, expected {expected}")));
            }
        }
        match page.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => match &mut take {
                Some(take) => listed.items.extend(items.into_iter().map(|item| take(item, in_part))),
                None => listed.items.extend(items),
            },
            // upstream writes an empty list as null in places
            Some(Value::Null) => {}
            _ => return Err(garbled("the answer is not a list: it has no items".to_owned())),
        }
        if listed.items.len() > MAX_LISTED {
            return Err(garbled(format!("the list has more than {MAX_LISTED} objects")));
        }
        match page.pointer("/metadata/resourceVersion").and_then(Value::as_str) {
            Some(version) if !version.is_empty() => listed.resource_version = version.to_owned(),
            _ => return Err(garbled("the list has no resourceVersion".to_owned())),
        }
        in_part = false;
        at_once = (at_once + 1).min(LIST_PAGE);
        match page.pointer("/metadata/continue").and_then(Value::as_str) {
            Some(token) if !token.is_empty() => next = format!("continue={}", percent_encoded(token)),
            _ => return Ok(listed),
        }
    }
}

/// Where a watch begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchFrom {
    /// After a resourceVersion: a list's, or the one at which the last watch ended.
    Version(String),
    /// Starts with an `Added` for every present object, then the changes. Until the first bookmark there is
    /// no version to resume from, so after an early end the watch starts over.
    Initial,
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent {
    /// The server accepted the watch. This is contact.
    Opened {
        /// The server's `Date`, in seconds since 1970.
        date_unix_secs: Option<u64>,
    },
    /// An object is new to the set.
    Added(Value),
    /// An object of the set changed.
    Modified(Value),
    /// An object left the set; this is its last state.
    Deleted(Value),
    /// Nothing changed up to this resourceVersion.
    Bookmark(String),
    /// Calls with these ids wait for the node (our hub only). A bookmark follows.
    Called(Vec<String>),
    /// A part of an event arrived; the rest is on its way.
    Receiving,
}

/// Why a watch ended.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEnd {
    /// The callback returned `Break`.
    Stopped {
        /// The version from which to resume.
        resume: Option<String>,
    },
    /// The server ended it in good order: every server does so after half an hour or so.
    Ended {
        /// The version from which to resume without missing anything.
        resume: Option<String>,
    },
    /// The resourceVersion is too old for the server (410): list again.
    Expired,
    /// The connection was lost or refused. Back off, then resume from `resume`; without it, list again.
    Failed {
        error: NetError,
        /// The version from which to resume without missing anything.
        resume: Option<String>,
    },
    /// [`super::transport::Cancel`] ended it.
    Cancelled,
}

/// Limits of one watch.
#[derive(Clone, Copy, Debug)]
pub struct WatchLimits {
    /// For opening it.
    pub open: Duration,
    /// Between two pieces of it.
    pub idle: Duration,
    /// Most bytes of one line.
    pub line_bytes: usize,
    /// Between two reports that a line is still coming.
    pub receiving: Duration,
}

impl WatchLimits {
    /// Longest time from the first byte of a line to its end: with the usual limits, 1 MiB at 4 kB/s. Without
    /// it the bytes of an endless line would keep a useless watch alive.
    fn line(&self) -> Duration {
        self.idle * 2
    }

    /// Longest time without a call of the callback while all is well: a pause, a slow line, or opening anew.
    pub(crate) fn longest_silence(&self) -> Duration {
        self.line() + self.idle + self.open
    }
}

impl Default for WatchLimits {
    fn default() -> Self {
        let receiving = Duration::from_secs(1);
        Self { open: OPEN_LIMIT, idle: IDLE_LIMIT, line_bytes: MAX_LINE_BYTES, receiving }
    }
}

/// Watches a collection until the watch ends. `path` and `params` are as for [`list()`], without `watch`,
/// `allowWatchBookmarks` and `resourceVersion`; a `timeoutSeconds` may be among them. Call it on a stream of
/// its own, whose [`Client::cancel_handle`] ends it.
pub fn watch(
    client: &Client,
    path: &str,
    params: &str,
    from: WatchFrom,
    limits: WatchLimits,
    on_event: impl FnMut(WatchEvent) -> ControlFlow<()>,
) -> WatchEnd {
    watch_as(client, path, params, from, None, limits, on_event)
}

/// Like [`watch()`], with the objects' metadata alone, where the server has that form: such an object is a
/// `PartialObjectMetadata`.
pub fn watch_metadata(
    client: &Client,
    path: &str,
    params: &str,
    from: WatchFrom,
    limits: WatchLimits,
    on_event: impl FnMut(WatchEvent) -> ControlFlow<()>,
) -> WatchEnd {
    watch_as(client, path, params, from, Some(METADATA_WATCH), limits, on_event)
}

fn watch_as(
    client: &Client,
    path: &str,
    params: &str,
    from: WatchFrom,
    accept: Option<&'static str>,
    limits: WatchLimits,
    mut on_event: impl FnMut(WatchEvent) -> ControlFlow<()>,
) -> WatchEnd {
    let mut position = Position { from: from.clone(), is_resumable: matches!(from, WatchFrom::Version(_)) };
    let outcome = watch_once(client, path, params, &mut position, accept, limits, &mut on_event);
    let resume = position.resume();
    match outcome {
        Ok(()) => WatchEnd::Ended { resume },
        Err(Stop::Expired) => WatchEnd::Expired,
        Err(Stop::ByCallback) => WatchEnd::Stopped { resume },
        // resuming would deliver the same line again, and a list may show less of that object
        Err(Stop::TooLong(error)) => WatchEnd::Failed { error, resume: None },
        Err(Stop::Failed(NetError::Cancelled)) => WatchEnd::Cancelled,
        Err(Stop::Failed(error)) => WatchEnd::Failed { error, resume },
    }
}

/// How far a watch has come.
struct Position {
    from: WatchFrom,
    /// Whether resuming from here misses nothing. Not within the initial objects, whose versions are in no
    /// order.
    is_resumable: bool,
}

impl Position {
    fn resume(&self) -> Option<String> {
        match &self.from {
            WatchFrom::Version(version) if self.is_resumable => Some(version.clone()),
            _ => None,
        }
    }

    /// Moves to the version of an event just delivered.
    fn advance(&mut self, version: &str, is_bookmark: bool) {
        if is_bookmark {
            self.is_resumable = true;
        }
        if self.is_resumable {
            self.from = WatchFrom::Version(version.to_owned());
        }
    }

    fn param(&self) -> String {
        match &self.from {
            WatchFrom::Version(version) => format!("resourceVersion={}", percent_encoded(version)),
            WatchFrom::Initial => String::new(),
        }
    }
}

enum Stop {
    ByCallback,
    Expired,
    /// A line exceeds the limit.
    TooLong(NetError),
    Failed(NetError),
}

impl From<NetError> for Stop {
    fn from(error: NetError) -> Self {
        if error.status() == Some(410) { Self::Expired } else { Self::Failed(error) }
    }
}

/// One connection's worth of a watch.
fn watch_once(
    client: &Client,
    path: &str,
    params: &str,
    position: &mut Position,
    accept: Option<&'static str>,
    limits: WatchLimits,
    on_event: &mut dyn FnMut(WatchEvent) -> ControlFlow<()>,
) -> Result<(), Stop> {
    let query = joined(&["watch=true&allowWatchBookmarks=true", params, &position.param()]);
    let stream_limits = StreamLimits { open: limits.open, idle: limits.idle };
    let body = client.open_stream(&format!("{path}?{query}"), accept, stream_limits)?;
    deliver(on_event, WatchEvent::Opened { date_unix_secs: body.date_unix_secs })?;
    let mut lines = Lines { body, limits, bytes: Vec::new(), scanned: 0 };
    while let Some(end) = lines.next_end(on_event)? {
        let (event, version, calls) = parse(&lines.bytes[..end], lines.body.asked())?;
        lines.consume(end);
        let is_bookmark = matches!(event, WatchEvent::Bookmark(_));
        if !calls.is_empty() {
            deliver(on_event, WatchEvent::Called(calls))?;
        }
        let delivered = deliver(on_event, event);
        // the callback has this event, so resuming means after it
        position.advance(&version, is_bookmark);
        delivered?;
    }
    Ok(())
}

fn deliver(on_event: &mut dyn FnMut(WatchEvent) -> ControlFlow<()>, event: WatchEvent) -> Result<(), Stop> {
    match on_event(event) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Stop::ByCallback),
    }
}

/// The lines of a body.
struct Lines {
    body: StreamedBody,
    limits: WatchLimits,
    bytes: Vec<u8>,
    /// Bytes already searched for a line end.
    scanned: usize,
}

impl Lines {
    /// Waits for a whole line and returns where it ends; `None` at the orderly end of the body.
    fn next_end(
        &mut self,
        on_event: &mut dyn FnMut(WatchEvent) -> ControlFlow<()>,
    ) -> Result<Option<usize>, Stop> {
        let mut begun = Instant::now();
        let mut shown = begun;
        loop {
            if let Some(at) = self.bytes[self.scanned..].iter().position(|byte| *byte == b'\n') {
                let end = self.scanned + at + 1;
                self.scanned = 0;
                return Ok(Some(end));
            }
            self.scanned = self.bytes.len();
            if self.bytes.len() > self.limits.line_bytes {
                return Err(Stop::TooLong(NetError::TooLarge {
                    request: self.body.asked().to_owned(),
                    status: 200,
                    limit: self.limits.line_bytes,
                }));
            }
            if !self.bytes.is_empty() && begun.elapsed() > self.limits.line() {
                let secs = self.limits.line().as_secs();
                return Err(self.garbled(format!("a line took longer than {secs} s")));
            }
            if !self.bytes.is_empty() && shown.elapsed() > self.limits.receiving {
                shown = Instant::now();
                deliver(on_event, WatchEvent::Receiving)?;
            }
            if self.bytes.is_empty() {
                // processing the last line used more of the stack than waiting for the next does
                give_back_stack();
            }
            let mut piece = [0; READ_BYTES];
            match self.body.read(&mut piece)? {
                0 if self.bytes.is_empty() => return Ok(None),
                0 => return Err(self.garbled("it ends within a line".to_owned())),
                amount => {
                    // the pause before a line does not count against its time
                    if self.bytes.is_empty() {
                        begun = Instant::now();
                        shown = begun;
                    }
                    self.bytes.extend_from_slice(&piece[..amount]);
                }
            }
        }
    }

    /// Drops a processed line.
    fn consume(&mut self, end: usize) {
        self.bytes.drain(..end);
        self.bytes.shrink_to(KEPT_LINE_BYTES);
    }

    fn garbled(&self, why: String) -> Stop {
        garbled(self.body.asked(), &why)
    }
}

fn garbled(asked: &str, why: &str) -> Stop {
    Stop::Failed(NetError::Garbled {
        request: asked.to_owned(),
        status: Some(200),
        why: format!("the watch: {why}"),
    })
}

/// One line as an event, the resourceVersion it leads to, and the ids of calls that it announces.
fn parse(line: &[u8], asked: &str) -> Result<(WatchEvent, String, Vec<String>), Stop> {
    let mut event: Value = serde_json::from_slice(line)
        .map_err(|error| garbled(asked, &format!("a line is not JSON: {error}")))?;
    let object = event.get_mut("object").map(Value::take).unwrap_or_default();
    let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
    if kind == "ERROR" {
        return Err(error_event(asked, &object));
    }
    let version = match object.pointer("/metadata/resourceVersion").and_then(Value::as_str) {
        Some(version) if !version.is_empty() => version.to_owned(),
        _ => return Err(garbled(asked, "an event has no resourceVersion")),
    };
    let mut calls = Vec::new();
    let event = match kind {
        "ADDED" => WatchEvent::Added(object),
        "MODIFIED" => WatchEvent::Modified(object),
        "DELETED" => WatchEvent::Deleted(object),
        "BOOKMARK" => {
            let annotations = object.pointer("/metadata/annotations");
            let told =
                annotations.and_then(|annotations| annotations.get(kedge_api::CALLS_ANNOTATION)?.as_str());
            calls = ids_of(told.unwrap_or_default());
            WatchEvent::Bookmark(version.clone())
        }
        other => {
            return Err(garbled(asked, &format!("an event has the type \"{}\"", excerpt(other))));
        }
    };
    Ok((event, version, calls))
}

/// An ERROR event carries a `Status`.
fn error_event(asked: &str, status: &Value) -> Stop {
    // a line may have megabytes, and the refusal is logged
    let text = |key: &str| shortened(status.get(key).and_then(Value::as_str).unwrap_or_default());
    let code =
        status.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
    if code == 410 {
        return Stop::Expired;
    }
    let retry_after = status.pointer("/details/retryAfterSeconds").and_then(Value::as_u64);
    Stop::Failed(NetError::Refused {
        request: asked.to_owned(),
        status: code,
        reason: text("reason"),
        message: text("message"),
        retry_after: retry_after.map(|secs| Duration::from_secs(secs.min(600))),
    })
}

/// Joins the parts of a query that are not empty.
fn joined(parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    parts.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::client::MAX_CALLS;

    #[test]
    fn watch_line_is_an_event_or_an_end() {
        let check = |line: &str, expect: &str| {
            let found = match parse(line.as_bytes(), "GET /x") {
                Ok((event, version, calls)) => format!("{event:?} {version} {}", calls.join("+")),
                Err(Stop::Expired) => "expired".to_owned(),
                Err(Stop::Failed(error)) => error.to_string(),
                Err(Stop::TooLong(error)) => error.to_string(),
                Err(Stop::ByCallback) => "stopped".to_owned(),
            };
            assert!(found.contains(expect), "expected {expect:?}, found {found:?}");
        };
        let object = r#"{"metadata":{"resourceVersion":"7"}}"#;
        check(&format!(r#"{{"type":"ADDED","object":{object}}}"#), "Added(");
        check(&format!(r#"{{"type":"MODIFIED","object":{object}}}"#), "Modified(");
        check(&format!(r#"{{"type":"DELETED","object":{object}}}"#), "Deleted(");
        check(&format!(r#"{{"type":"BOOKMARK","object":{object}}}"#), "Bookmark(\"7\") 7");
        let called = r#"{"metadata":{"resourceVersion":"7","annotations":{"kedge.dev/calls":"a1,,b2"}}}"#;
        check(&format!(r#"{{"type":"BOOKMARK","object":{called}}}"#), "Bookmark(\"7\") 7 a1+b2");
        check(&format!(r#"{{"type":"WHAT","object":{object}}}"#), "an event has the type \"WHAT\"");
        check(r#"{"type":"ADDED","object":{}}"#, "an event has no resourceVersion");
        check(r#"{"type":"ADDED"}"#, "an event has no resourceVersion");
        check("[]", "an event has no resourceVersion");
        check("{", "a line is not JSON");
        check(r#"{"type":"ERROR","object":{"code":410,"reason":"Expired"}}"#, "expired");
        let error = r#"{"type":"ERROR","object":{"code":500,"reason":"InternalError","message":"etcd"}}"#;
        check(error, "GET /x: refused (500 InternalError): etcd");
        check(r#"{"type":"ERROR"}"#, "refused (500)");
        let endless =
            format!(r#"{{"type":"ERROR","object":{{"message":"{0}","reason":"{0}"}}}}"#, "x".repeat(100_000));
        let Err(Stop::Failed(error)) = parse(endless.as_bytes(), "GET /x") else { panic!("it is refused") };
        assert!(error.to_string().len() < 3000, "it would be logged");
    }

    #[test]
    fn calls_of_one_bookmark_are_bounded() {
        assert_eq!(ids_of(&"a,".repeat(100_000)).len(), MAX_CALLS);
        assert_eq!(ids_of(",a1,,b2,"), ["a1", "b2"]);
    }

    #[test]
    fn initial_watch_resumes_only_after_a_bookmark() {
        let mut position = Position { from: WatchFrom::Initial, is_resumable: false };
        position.advance("9", false);
        assert_eq!((position.resume(), position.param()), (None, String::new()));
        position.advance("12", true);
        assert_eq!(position.resume().as_deref(), Some("12"));
        position.advance("15", false);
        assert_eq!(
            (position.resume().as_deref(), position.param().as_str()),
            (Some("15"), "resourceVersion=15")
        );
    }

    #[test]
    fn empty_parts_of_a_query_are_left_out() {
        assert_eq!(joined(&["", "a=b", "", "c=d"]), "a=b&c=d");
    }
}
