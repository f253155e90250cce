//! Watches: a body that sends every change once and in order, until its time is over.
//!
//! Events wait in the watch's own bounded queue and are written when the connection accepts them; a watcher
//! that is too slow is dropped and its stream ends, so that the client resumes from the last version it saw.
//! An object is sent from its own text: bytes that only this watch keeps in memory are charged to its caller
//! until they are sent (`kedge_hub_core::loans`). A bookmark never names a version before every change up to
//! it was sent. A bookmark is sent each minute, at the end, and on a node's own watch when the node was told
//! of a later change than the watch has shown (`own_watches`), or has a waiting call: then it carries the ids
//! of the calls.
//!
//! One parameter is our own: `omitHeartbeats=true` leaves out changes that affect only the conditions'
//! `lastHeartbeatTime`. A node that reports every five minutes uses it for the watch of its own Node: its own
//! reports need not come back over its link. Other API servers ignore the parameter, and other clients see
//! every change.

use crate::server::authentication::Standing;
use crate::server::writer::{IncludeObject, Writer};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use kedge_api::CALLS_ANNOTATION;
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep};

use super::limits::{Taken, Work};
use super::own_watches::OwnWatches;
use super::request::{Form, Parameters};
use crate::memory::{Budget, Client, Held, Memory, News, Reader, Waiting, Watch};
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::field_error::FieldError;
use kedge_hub_core::kinds::Kind;
use kedge_hub_core::loans::{Borrower, Loan};
use kedge_hub_core::object::Object;
use kedge_hub_core::selector::Selection;
use kedge_hub_core::state::{Seen, Start, WatchRefused};

/// Longest duration of a watch, so that connections move to renewed certificates.
const MAX_WATCH: Duration = Duration::from_secs(60 * 60);
/// A watch without a timeout lasts between this and twice this, so that a fleet does not reconnect at once.
const DEFAULT_WATCH: Duration = Duration::from_secs(30 * 60);
/// Time between bookmarks, give or take a quarter.
const BOOKMARK: Duration = Duration::from_secs(60);

/// Capacity that the queue of an idle watch keeps.
const IDLE_QUEUE: usize = 4;
/// Initial objects of up to this many bytes are not charged: that much is already reckoned for the
/// connection.
const FREE_BYTES: usize = 16 * 1024;
/// Bytes of each further initial object that waits to be sent, without its text.
const PRESENT_BYTES: usize = 48;

#[derive(Debug)]
pub(super) struct WatchStream {
    watch: Watch,
    reader: Arc<Reader>,
    writer: Writer,
    /// The initial objects, which are sent before the queue.
    present: Present,
    queue: VecDeque<Queued>,
    bookmarks: bool,
    /// The version up to which the client knows that it has all changes.
    shown: u64,
    titles_sent: bool,
    /// Calls that the next bookmark announces.
    calls: Vec<Arc<str>>,
    next_bookmark: Pin<Box<Sleep>>,
    deadline: Pin<Box<Sleep>>,
    ended: bool,
    /// Its place among its caller's watches.
    counted: Option<Taken>,
    /// The token that began the watch; checked before each line.
    standing: Option<Standing>,
}

#[derive(Debug, Default)]
struct Present {
    objects: std::vec::IntoIter<Loan>,
    _held: Option<Held>,
}

impl Present {
    /// The objects are charged to this reader, unless they are small; `None` if its budget does not allow
    /// them.
    fn of(objects: Vec<Arc<Object>>, reader: &Arc<Reader>) -> Option<Present> {
        let bytes: usize = objects.iter().map(|object| object.json.len()).sum();
        if bytes <= FREE_BYTES {
            let objects: Vec<Loan> = objects.into_iter().map(Loan::free).collect();
            return Some(Present { objects: objects.into_iter(), _held: None });
        }
        let held = match PRESENT_BYTES * (objects.len() - 1) {
            0 => None,
            bytes => Some(reader.hold(bytes)?),
        };
        let lend = |object| Loan::new(object, Arc::clone(reader) as Arc<dyn Borrower>);
        let objects: Vec<Loan> = objects.into_iter().map(lend).collect();
        Some(Present { objects: objects.into_iter(), _held: held })
    }
}

/// The next bytes to write.
#[derive(Debug)]
pub(super) enum Line {
    /// A complete line.
    Text(Vec<u8>),
    /// An object in its stored form.
    Stored(Stored),
}

/// A line with the text of a stored object.
#[derive(Debug)]
pub(super) struct Stored {
    of: &'static str,
    pub(super) object: Loan,
}

impl Stored {
    /// The bytes after the object.
    pub(super) const END: &[u8] = b"}\n";

    /// The bytes before the object.
    pub(super) fn head(&self) -> impl Iterator<Item = &'static [u8]> + use<> {
        [b"{\"type\":\"".as_slice(), self.of.as_bytes(), b"\",\"object\":"].into_iter()
    }
}

impl Line {
    /// The bytes of the line.
    pub(super) fn len(&self) -> usize {
        match self {
            Line::Text(text) => text.len(),
            Line::Stored(stored) => {
                stored.head().map(<[u8]>::len).sum::<usize>() + stored.object.json.len() + Stored::END.len()
            }
        }
    }

    #[cfg(test)]
    pub(super) fn text(self) -> Vec<u8> {
        match self {
            Line::Text(text) => text,
            Line::Stored(stored) => {
                let head: Vec<&[u8]> = stored.head().collect();
                [&*head.concat(), &*stored.object.json, Stored::END].concat()
            }
        }
    }
}

#[derive(Debug)]
enum Queued {
    Change(Box<Waiting>),
    /// The end of the initial events.
    Initial(u64),
    Bookmark(u64),
    /// The client was told of a change of this version.
    Named(u64),
    /// A call waits for the client, a node.
    Called(Arc<str>),
    /// The hub closes at this version.
    Last(u64),
}

impl Queued {
    fn new(news: News) -> Queued {
        match news {
            News::Change(waiting) => Queued::Change(waiting),
            News::Named(revision) => Queued::Named(revision),
            News::Called(id) => Queued::Called(id),
            News::Last(revision) => Queued::Last(revision),
            // watches of clients do not receive it; if one did, its next bookmark would cover it
            News::Event(event) => Queued::Named(event.revision),
        }
    }
}

/// Starts a watch by its parameters.
pub(super) fn start(
    memory: &Arc<Memory>,
    kind: &'static Kind,
    selection: Selection,
    parameters: &Parameters,
    form: Form,
    budget: Arc<dyn Budget>,
) -> Result<WatchStream, ApiError> {
    let include = IncludeObject::parse(parameters.text("includeObject"))?;
    let bookmarks = parameters.flag("allowWatchBookmarks")?;
    let omit_heartbeats = parameters.flag("omitHeartbeats")?;
    let from = from(parameters)?;
    // as upstream: 0 counts as not given
    let timeout = parameters.number("timeoutSeconds")?.filter(|secs| *secs > 0);
    let reader = Arc::new(Reader::new(budget));
    let client = Client { reader: Arc::clone(&reader), compares: omit_heartbeats };
    let (start, revision, watch) = memory
        .watch(kind.stored(), selection, from.after, Some(client.clone()))
        .map_err(|why| refused(why, from.after))?;
    if let Some(wanted) = from.at_least.filter(|wanted| *wanted > revision) {
        return Err(ApiError::too_large_version(wanted, revision));
    }
    let behind = || {
        ApiError::too_many_requests(
            "too many bytes wait for the readers of this identity, please try again later",
        )
    };
    let (mut present, mut queue) = (Present::default(), VecDeque::new());
    match start {
        Start::Objects(_) if from.skip_present => {}
        Start::Objects(objects) => present = Present::of(objects, &reader).ok_or_else(behind)?,
        Start::Changes(changes) => {
            let waiting = watch.waiting(changes, &client).ok_or_else(behind)?;
            queue.extend(waiting.into_iter().map(Queued::Change));
        }
    }
    if from.initial_events {
        queue.push_back(Queued::Initial(revision));
    }
    let spread = f64::from(u32::try_from(revision % 1000).unwrap_or(0)) / 1000.0;
    let lasting = match timeout {
        Some(secs) => Duration::from_secs(secs).min(MAX_WATCH),
        None => DEFAULT_WATCH.mul_f64(1.0 + spread),
    };
    Ok(WatchStream {
        watch,
        reader,
        writer: Writer { kind, form, include },
        present,
        queue,
        bookmarks,
        shown: from.after.unwrap_or(0),
        titles_sent: false,
        calls: Vec::new(),
        next_bookmark: Box::pin(tokio::time::sleep(BOOKMARK.mul_f64(0.75 + spread / 2.0))),
        deadline: Box::pin(tokio::time::sleep(lasting)),
        ended: false,
        counted: None,
        standing: None,
    })
}

fn refused(refused: WatchRefused, asked: Option<u64>) -> ApiError {
    let asked = asked.unwrap_or(0);
    match refused {
        WatchRefused::TooOld(too_old) => ApiError::too_old_version(asked, too_old.oldest),
        WatchRefused::TooLarge(current) => ApiError::too_large_version(asked, current),
        WatchRefused::Closed => ApiError::unavailable("the hub is shutting down"),
    }
}

/// The point at which a watch starts.
#[derive(Debug, Default, PartialEq, Eq)]
struct From {
    /// After this version; `None`: with the objects that exist.
    after: Option<u64>,
    /// The state must have at least this version.
    at_least: Option<u64>,
    /// Existing objects are not sent.
    skip_present: bool,
    /// A bookmark marks the end of the existing objects.
    initial_events: bool,
}

fn from(parameters: &Parameters) -> Result<From, ApiError> {
    let version = parameters.number("resourceVersion")?;
    let matching = parameters.text("resourceVersionMatch");
    let forbidden =
        |field: &str, why: &str| Err(ApiError::invalid_options("list", &FieldError::forbidden(field, why)));
    if !parameters.has("sendInitialEvents") {
        if !matching.is_empty() {
            return forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            );
        }
        return Ok(From { after: version.filter(|version| *version != 0), ..From::default() });
    }
    if matching != "NotOlderThan" {
        return forbidden(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        );
    }
    let at_least = version.filter(|version| *version != 0);
    if parameters.flag("sendInitialEvents")? {
        return Ok(From { at_least, initial_events: true, ..From::default() });
    }
    Ok(From { after: at_least, skip_present: true, ..From::default() })
}

impl WatchStream {
    /// Counts as one of its caller's watches until it is dropped.
    pub(super) fn counted(mut self, taken: Taken) -> WatchStream {
        self.counted = Some(taken);
        self
    }

    /// Ends the watch when the token that began it is no longer valid.
    pub(super) fn while_standing(mut self, standing: Standing) -> WatchStream {
        self.standing = Some(standing);
        self
    }

    /// Makes this one of a node's own watches, which reach each change that the node's renewals name.
    /// `desired` returns the latest such change.
    pub(super) fn follow(&mut self, own: &OwnWatches, desired: impl FnOnce() -> u64) {
        own.add(self.watch.reminder());
        // looked up after the watch was added, because later revisions remind the watch. Changes at the
        // beginning of the watch may already reach it
        self.queue.push_back(Queued::Named(desired()));
    }

    /// Makes this the watch of a node's own Node, which announces calls.
    pub(super) fn tell_of_calls(&mut self, own: &OwnWatches) {
        let waiting = own.add_of_node(self.watch.reminder());
        self.queue.extend(waiting.into_iter().map(Queued::Called));
    }

    /// The time at which the watch ends.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline.deadline()
    }

    /// The reader to which its bytes are charged.
    pub(super) fn reader(&self) -> &Arc<Reader> {
        &self.reader
    }

    /// The next line of the body; `None` ends it.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Line>> {
        if let Some(standing) = &mut self.standing
            && (standing.poll_over(context).is_ready() || !standing.proves())
        {
            self.standing = None;
            self.present = Present::default();
            self.queue.clear();
            self.ended = true;
        }
        loop {
            if let Some(object) = self.present.objects.next() {
                return Poll::Ready(Some(self.line("ADDED", object)));
            }
            if let Some(queued) = self.queue.pop_front() {
                match self.write(queued) {
                    Some(line) => return Poll::Ready(Some(line)),
                    None => continue,
                }
            }
            // release the buffer of the initial events: later ones come one at a time
            if self.queue.capacity() > IDLE_QUEUE {
                self.queue = VecDeque::new();
            }
            self.present = Present::default();
            if self.ended {
                return Poll::Ready(None);
            }
            // checked here as well, because the timer below is never polled while changes keep coming
            if self.deadline.is_elapsed() {
                self.queue_bookmark();
                self.ended = true;
                continue;
            }
            match self.watch.receiver.poll_recv(context) {
                Poll::Ready(Some(news)) => {
                    self.queue.push_back(Queued::new(news));
                    continue;
                }
                Poll::Ready(None) => self.ended = true,
                Poll::Pending if self.deadline.as_mut().poll(context).is_ready() => {
                    self.queue_bookmark();
                    self.ended = true;
                }
                Poll::Pending if self.next_bookmark.as_mut().poll(context).is_ready() => {
                    self.next_bookmark.as_mut().reset(Instant::now() + BOOKMARK);
                    self.queue_bookmark();
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Queues all changes that were not sent yet, then a bookmark of the current version.
    fn queue_bookmark(&mut self) {
        if !self.bookmarks {
            return;
        }
        // read first: all changes up to this version are in the receiver already
        let mut upto = self.watch.progress().max(self.shown);
        let mut named = 0;
        while let Ok(news) = self.watch.receiver.try_recv() {
            match &news {
                News::Change(waiting) => upto = upto.max(waiting.revision),
                // this bookmark reaches all revisions named so far
                News::Named(revision) => {
                    named = named.max(*revision);
                    continue;
                }
                News::Called(id) => {
                    self.calls.push(Arc::clone(id));
                    continue;
                }
                News::Last(_) | News::Event(_) => {}
            }
            self.queue.push_back(Queued::new(news));
        }
        self.queue.push_back(Queued::Bookmark(upto));
        if named > upto {
            self.queue.push_back(Queued::Named(named));
        }
    }

    fn write(&mut self, queued: Queued) -> Option<Line> {
        match queued {
            Queued::Change(waiting) => {
                let revision = waiting.revision;
                let line = self.change(*waiting)?;
                self.shown = revision;
                Some(line)
            }
            Queued::Initial(revision) => {
                self.shown = revision;
                Some(self.bookmark(revision, true))
            }
            Queued::Bookmark(revision) => {
                self.shown = revision;
                self.next_bookmark.as_mut().reset(Instant::now() + BOOKMARK);
                Some(self.bookmark(revision, false))
            }
            Queued::Named(revision) => {
                if self.shown < revision {
                    self.queue_bookmark();
                }
                None
            }
            Queued::Called(id) => {
                if self.bookmarks {
                    self.calls.push(id);
                    self.queue_bookmark();
                }
                None
            }
            Queued::Last(revision) => {
                (self.bookmarks && self.shown < revision).then(|| self.bookmark(revision, false))
            }
        }
    }

    fn change(&mut self, waiting: Waiting) -> Option<Line> {
        let Waiting { revision, seen, object, before, .. } = waiting;
        Some(match seen {
            Seen::Added => self.line("ADDED", object),
            Seen::Modified if before.is_some_and(|before| self.is_heartbeat(&before, &object)) => {
                return None;
            }
            Seen::Modified => self.line("MODIFIED", object),
            Seen::Deleted => self.line("DELETED", object),
            Seen::Left => {
                // as upstream: the object as it last matched, with the version of the change
                let mut value = object.value();
                value["metadata"]["resourceVersion"] = revision.to_string().into();
                self.line_of("DELETED", value)
            }
        })
    }

    fn is_heartbeat(&self, old: &Object, new: &Object) -> bool {
        self.charge(Work::Parsed(old.json.len() + new.json.len()));
        is_heartbeat(old, new)
    }

    /// Charges work to the caller's rate: a change costs it once for each of its watches.
    fn charge(&self, work: Work) {
        if let Some(counted) = &self.counted {
            counted.charge(work);
        }
    }

    fn line(&mut self, of: &'static str, object: Loan) -> Line {
        if self.writer.form != Form::Whole || self.writer.kind.view.is_some() {
            self.charge(Work::Parsed(object.json.len()));
            return self.line_of(of, object.value());
        }
        self.charge(Work::Copied(object.json.len()));
        Line::Stored(Stored { of, object })
    }

    fn line_of(&mut self, of: &str, value: Value) -> Line {
        let object = match self.writer.form {
            Form::Table(_) => {
                let meta = json!({"resourceVersion": value["metadata"]["resourceVersion"]});
                let titles = !std::mem::replace(&mut self.titles_sent, true);
                self.writer.table(std::iter::once(self.writer.kind.shown(value)), meta, titles)
            }
            _ => self.writer.value(value),
        };
        let mut text = format!("{{\"type\":\"{of}\",\"object\":{object}}}\n");
        // the text may wait for a slow reader
        text.shrink_to_fit();
        Line::Text(text.into_bytes())
    }

    fn bookmark(&mut self, revision: u64, initial: bool) -> Line {
        let mut meta = json!({"resourceVersion": revision.to_string()});
        if initial {
            meta["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        } else if !self.calls.is_empty() {
            meta["annotations"] = json!({CALLS_ANNOTATION: std::mem::take(&mut self.calls).join(",")});
        }
        let kind = self.writer.kind;
        let object = match self.writer.form {
            Form::Table(_) => self.writer.table(std::iter::empty(), meta, false),
            Form::Metadata(version) => json!({
                "kind": "PartialObjectMetadata", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": meta}),
            _ => json!({"kind": kind.kind, "apiVersion": kind.api_version(), "metadata": meta}),
        };
        Line::Text(format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n").into_bytes())
    }
}

/// True if only the version and the conditions' `lastHeartbeatTime` differ.
fn is_heartbeat(old: &Object, new: &Object) -> bool {
    let without = |object: &Object| {
        let mut value = object.value();
        value["metadata"]["resourceVersion"].take();
        let conditions = value.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
        for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
            condition.remove("lastHeartbeatTime");
        }
        value
    };
    without(old) == without(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_hub_core::kinds::CONFIG_MAP;
    use kedge_hub_core::kinds::node::NODE;
    use kedge_hub_core::object::Event;
    use kedge_hub_core::state::Changed;
    use std::task::Waker;

    #[derive(Debug)]
    struct Unlimited;

    impl Budget for Unlimited {
        fn take(&self, _: usize) -> bool {
            true
        }

        fn give_back(&self, _: usize) {}
    }

    /// A runtime for timers: no task of it runs, so polled futures need not yield.
    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    /// A node's watch of one ConfigMap, after version 1 or later.
    struct Stage {
        memory: Arc<Memory>,
        own: OwnWatches,
        stream: WatchStream,
    }

    impl Stage {
        fn new() -> Stage {
            let (memory, own) = (Arc::new(Memory::empty()), OwnWatches::default());
            let stream = Stage::open(&memory, &own, 1, 0);
            Stage { memory, own, stream }
        }

        /// `desired`: the latest change that concerns the node.
        fn open(memory: &Arc<Memory>, own: &OwnWatches, after: u64, desired: u64) -> WatchStream {
            let selection = Selection::parse(&CONFIG_MAP, "n", "", "metadata.name=mine").unwrap();
            let query = format!("allowWatchBookmarks=true&resourceVersion={after}");
            let parameters = Parameters::parse(&query).unwrap();
            let mut stream =
                start(memory, &CONFIG_MAP, selection, &parameters, Form::Whole, Arc::new(Unlimited)).unwrap();
            stream.follow(own, || desired);
            stream
        }

        /// A change of the ConfigMap of this name.
        fn put(&self, name: &str) -> u64 {
            let revision = self.memory.revision(&CONFIG_MAP) + 1;
            let value = json!({"metadata": {"name": name, "namespace": "n"}});
            let new = Object::new(&CONFIG_MAP, &value, revision).map(Arc::new);
            let event = Event { revision, old: None, new, last: None };
            self.memory.publish(vec![Changed { kind: &CONFIG_MAP, event: Arc::new(event), author: None }]);
            revision
        }

        /// The events that can be written now: their types, with the versions of bookmarks. `END` if the
        /// watch has ended.
        fn written(&mut self) -> Vec<String> {
            let mut written = Vec::new();
            loop {
                match self.stream.poll_next(&mut Context::from_waker(Waker::noop())) {
                    Poll::Pending => return written,
                    Poll::Ready(None) => {
                        written.push("END".to_owned());
                        return written;
                    }
                    Poll::Ready(Some(line)) => {
                        let event: Value = serde_json::from_slice(&line.text()).unwrap();
                        let kind = event["type"].as_str().unwrap().to_owned();
                        let version = event["object"]["metadata"]["resourceVersion"].as_str();
                        let version = version.filter(|_| kind == "BOOKMARK").unwrap_or_default();
                        written.push(format!("{kind}{version}"));
                    }
                }
            }
        }
    }

    #[test]
    fn named_change_is_come_to_once() {
        let runtime = runtime();
        let _entered = runtime.enter();
        let mut stage = Stage::new();
        let other = stage.put("other");
        assert!(stage.written().is_empty(), "nobody waits for it");
        stage.own.name(other);
        stage.own.name(other);
        assert_eq!(stage.written(), [format!("BOOKMARK{other}")]);
        // reached by the change itself
        let mine = stage.put("mine");
        stage.own.name(mine);
        assert_eq!(stage.written(), ["ADDED"]);
        // several changes before the first is written
        let first = stage.put("other");
        stage.own.name(first);
        stage.put("mine");
        let last = stage.put("other");
        stage.own.name(last);
        assert_eq!(stage.written(), ["ADDED".to_owned(), format!("BOOKMARK{last}")]);
        stage.own.name(first);
        assert!(stage.written().is_empty());
    }

    #[test]
    fn watch_that_goes_on_comes_to_what_was_named_before() {
        let runtime = runtime();
        let _entered = runtime.enter();
        let mut stage = Stage::new();
        let (mine, other) = (stage.put("mine"), stage.put("other"));
        for (after, desired, expect) in [
            (1, other, vec!["ADDED".to_owned(), format!("BOOKMARK{other}")]),
            (1, mine, vec!["ADDED".to_owned()]),
            (mine, other, vec![format!("BOOKMARK{other}")]),
            (other, other, vec![]),
        ] {
            stage.stream = Stage::open(&stage.memory, &stage.own, after, desired);
            assert_eq!(stage.written(), expect, "after {after}, named {desired}");
        }
    }

    #[test]
    fn closing_hub_tells_its_last_version_but_not_to_the_slow() {
        let runtime = runtime();
        let _entered = runtime.enter();
        let mut stage = Stage::new();
        let mut slow = Stage::open(&stage.memory, &stage.own, 1, 0);
        stage.put("mine");
        assert_eq!(stage.written(), ["ADDED"]);
        for _ in 0..crate::memory::WATCH_BACKLOG - 1 {
            stage.put("mine");
            stage.written();
        }
        // one change more than may wait: the slow watcher is dropped, and a bookmark would skip the changes
        // that it has not received
        stage.put("mine");
        stage.written();
        let last = stage.put("other");
        stage.memory.close();
        assert_eq!(stage.written(), [format!("BOOKMARK{last}"), "END".to_owned()]);
        std::mem::swap(&mut stage.stream, &mut slow);
        let end = stage.written().split_off(crate::memory::WATCH_BACKLOG);
        assert_eq!(end, ["END"]);
    }

    #[test]
    fn heartbeat_changes_only_its_time() {
        let node = |condition: Value, spec: Value, revision: u64| {
            let value = json!({"metadata": {"name": "a", "resourceVersion": revision.to_string()}, "spec": spec,
                "status": {"conditions": [condition]}});
            Object::new(&NODE, &value, revision).unwrap()
        };
        let ready =
            |status: &str, at: &str| json!({"type": "Ready", "status": status, "lastHeartbeatTime": at});
        let old = node(ready("True", "1"), json!({}), 7);
        let check =
            |new: Object, expect: bool| assert_eq!(is_heartbeat(&old, &new), expect, "{:?}", new.json);
        check(node(ready("True", "2"), json!({}), 8), true);
        check(node(ready("Unknown", "2"), json!({}), 8), false);
        check(node(ready("True", "2"), json!({"unschedulable": true}), 8), false);
        check(node(json!({"type": "Ready", "status": "True"}), json!({}), 8), true);
        check(
            node(json!({"type": "Other", "status": "True", "lastHeartbeatTime": "2"}), json!({}), 8),
            false,
        );
    }

    #[test]
    fn watch_starts_as_its_parameters_ask() {
        let check = |query: &str, expect: Option<From>| {
            assert_eq!(from(&Parameters::parse(query).unwrap()).ok(), expect, "{query}");
        };
        check("", Some(From::default()));
        check("resourceVersion=0", Some(From::default()));
        check("resourceVersion=7", Some(From { after: Some(7), ..From::default() }));
        check("resourceVersion=7&resourceVersionMatch=NotOlderThan", None);
        check("sendInitialEvents=true", None);
        check("sendInitialEvents=true&resourceVersionMatch=Exact", None);
        check(
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            Some(From { initial_events: true, ..From::default() }),
        );
        check(
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=9",
            Some(From { initial_events: true, at_least: Some(9), ..From::default() }),
        );
        check(
            "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=9",
            Some(From { after: Some(9), skip_present: true, ..From::default() }),
        );
        check("resourceVersion=x", None);
    }
}
