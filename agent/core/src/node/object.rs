//! The own Node as an object of the API server: its existence, its creation, its labels, and the annotation
//! that shows `status.config` on servers that drop the field.
//!
//! Always holds: only a Node of the own name counts; labels of others stay; before the Node was read, or
//! while it is unreadable, its absence has no consequences. Our hub keeps the node's own reports out of its
//! watch. On other servers the watch shows metadata alone: each version that no request of ours made may be a
//! change of the status, as the node lifecycle makes it for a node that it considers lost, so the Node is
//! read whole again. Leaves to others: its status and its Lease (`heartbeat`), the config source that it
//! names (`config`).

use crate::answer::{Answer, LONGEST_PATIENCE, Level};
use crate::event::{Action, Request, RequestKey};
use crate::kubelet::Config;
use crate::node::facts::HostFacts;
use crate::node::registration::{missing_labels, registration, wrong_annotations};
use crate::node::rival;
use crate::outbox::{LONGEST_WAIT, Terms};
use crate::pace::Rewrites;
use crate::reflector::{Reflector, Shown};
use crate::sorted::SortedMap;
use crate::turn::{Order, Turn};
use crate::watching::Watched;
use kedge_api::{self as api, excerpt, excerpt_of};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::Duration;

/// The annotation with the text of `status.config`.
#[derive(Debug, Clone)]
struct StatusAnnotation {
    text: String,
    /// The version of the Node that has it, from the server's answer.
    version: Option<u64>,
}

/// A new fact about the Node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum NodeNews {
    /// It exists: `is_another` if it differs from the one seen before, `is_whole` if it came with its status.
    Seen {
        is_another: bool,
        is_whole: bool,
    },
    Gone,
}

/// The requests that change the Node.
const CHANGES: [RequestKey; 4] =
    [RequestKey::Register, RequestKey::PatchStatus, RequestKey::PatchLabels, RequestKey::PatchNode];

/// How many versions are remembered: the last of each request, and those by which a watch may lag behind.
const MOST_VERSIONS: usize = 8;

/// Characters of the reason why a Node is unreadable.
const WHY_CHARS: usize = 200;

/// Tells, by resourceVersion, our own changes of the Node from those of others, where only the Node's
/// metadata is watched.
#[derive(Debug, Clone, Default)]
struct Versions {
    /// The latest versions that our requests made, from the server's answers.
    ours: VecDeque<String>,
    /// Versions that the watch has shown, and that may come from a request under way.
    open: Vec<String>,
    /// Somebody else changed the Node: it must be read whole.
    is_changed: bool,
}

impl Versions {
    fn made(&mut self, version: &str) {
        self.open.retain(|open| open != version);
        self.ours.truncate(MOST_VERSIONS - 1);
        self.ours.push_front(version.to_owned());
    }

    fn shown(&mut self, version: &str) {
        let is_ours = self.ours.iter().any(|ours| ours == version);
        if !is_ours {
            self.is_changed |= self.open.len() == MOST_VERSIONS || version.is_empty();
            self.open.truncate(MOST_VERSIONS - 1);
            self.open.push(version.to_owned());
        }
    }

    /// No request is under way that may have made one of them.
    fn no_more_answers(&mut self) {
        self.is_changed |= !std::mem::take(&mut self.open).is_empty();
    }

    /// The Node was read whole.
    fn read(&mut self) {
        self.open.clear();
        self.is_changed = false;
    }
}

/// Labels and annotations that were written, and are written again if somebody else changes them.
#[derive(Debug, Clone, Default)]
struct Labels {
    offered: Option<Value>,
    /// Each with the value that was written last.
    written: SortedMap<String, Value>,
    rewrites: Rewrites,
    /// When the next write may be sent; set while one waits for this.
    paced: Option<Duration>,
}

impl Labels {
    /// Whether all of these were written before with these values, together or one by one.
    fn are_written(&self, body: &Value) -> bool {
        entries_of(body).all(|(key, value)| self.written.get(&key) == Some(value))
    }
}

/// The labels and annotations of a patch.
fn entries_of(body: &Value) -> impl Iterator<Item = (String, &Value)> {
    let parts = body["metadata"].as_object().into_iter().flatten();
    parts.flat_map(|(part, entries)| {
        let entries = entries.as_object().into_iter().flatten();
        entries.map(move |(key, value)| (format!("{part}/{key}"), value))
    })
}

#[derive(Debug, Clone)]
pub(crate) struct NodeObject {
    pub(crate) reflector: Reflector,
    node: Option<Box<api::Node>>,
    is_missing: bool,
    /// UID of the Node last seen, whether or not it still exists.
    seen_uid: String,
    /// The Node is not listed again before this.
    next_relist: Duration,
    versions: Versions,
    /// After a change by somebody else it is not read again before this.
    next_read: Duration,
    /// The server answered with another node's Node: logged once.
    wrong_node_logged: bool,
    /// The Node as last shown is unreadable: logged once.
    is_unreadable: bool,
    /// `status.config` as it was last put into the outbox, for a server that is not our hub.
    annotation: Option<StatusAnnotation>,
    /// The pace of writing it again.
    annotation_rewrites: Rewrites,
    labels: Labels,
}

impl NodeObject {
    pub(crate) fn new(lists_only: bool, turn: &mut Turn) -> Self {
        // a server may refuse the Node, a label or an annotation, and an administrator may then make or set
        // it, or allow it
        let terms = Terms { holds_refused: true, ..Terms::default() };
        for key in [RequestKey::Register, RequestKey::PatchLabels, RequestKey::PatchNode] {
            turn.outbox.set_terms(key, terms);
        }
        Self {
            reflector: Reflector::new(Watched::Node, &turn.options.node_name, lists_only),
            node: None,
            is_missing: false,
            seen_uid: String::new(),
            next_relist: turn.now.mono,
            versions: Versions::default(),
            next_read: turn.now.mono,
            wrong_node_logged: false,
            is_unreadable: false,
            annotation: None,
            annotation_rewrites: Rewrites::default(),
            labels: Labels::default(),
        }
    }

    /// As last seen; `None` if it does not exist, or is not known.
    pub(crate) fn node(&self) -> Option<&api::Node> {
        self.node.as_deref()
    }

    /// The server was read, and has no such Node.
    pub(crate) fn is_missing(&self) -> bool {
        self.is_missing
    }

    /// Reads it, and watches from there.
    pub(crate) fn list(&mut self, turn: &mut Turn) {
        let order = self.reflector.watching.list(None);
        turn.act(Action::WatchNode(order));
    }

    pub(crate) fn server_changed(&mut self, turn: &mut Turn) {
        (self.node, self.is_missing, self.annotation) = (None, false, None);
        self.labels = Labels::default();
        (self.next_relist, self.next_read) = (turn.now.mono, turn.now.mono);
        self.versions = Versions::default();
        let order = self.reflector.list_another(&turn.options.node_name, None);
        turn.act(Action::WatchNode(order));
    }

    /// The server's version is known. A server that is not our hub would show each report of ours whole, 5 kB
    /// each 5 minutes.
    pub(crate) fn server_is(&mut self, is_hub: bool, turn: &mut Turn) {
        if !is_hub && let Some(order) = self.reflector.watching.narrow() {
            turn.act(Action::WatchNode(order));
        }
    }

    // ------------------------------------------------------------------------------------------ what is
    // shown

    /// Returns `None` if nothing relevant changed.
    pub(crate) fn shown(&mut self, shown: Shown, turn: &mut Turn) -> Option<NodeNews> {
        match shown {
            Shown::All(mut objects) => {
                self.versions.read();
                match objects.pop() {
                    Some(object) => self.seen(object, turn),
                    None => Some(self.gone()),
                }
            }
            Shown::One(object) => self.seen(object, turn),
            Shown::Gone(_) => Some(self.gone()),
            Shown::Replaced(_) | Shown::Unchanged(_) | Shown::TooMuch { .. } => None,
        }
    }

    fn seen(&mut self, object: Value, turn: &mut Turn) -> Option<NodeNews> {
        let expected = &turn.options.node_name;
        let is_whole = object["kind"] != api::METADATA_KIND;
        let node = match api::read::from_value::<api::Node>(&object) {
            Ok(node) if node.metadata.name == *expected => Box::new(node),
            Ok(node) => {
                if !std::mem::replace(&mut self.wrong_node_logged, true) {
                    let found = excerpt(&node.metadata.name);
                    let line = format!(
                        "the API server answered with the Node of {found:?}, expected {expected:?}; its config source is ignored"
                    );
                    turn.log(Level::Warn, line);
                }
                return None;
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_unreadable, true) {
                    // the error repeats a text of the wrong type whole
                    let why = excerpt_of(&error.to_string(), WHY_CHARS).escape_debug().to_string();
                    turn.log(
                        Level::Warn,
                        format!("Node {expected} cannot be read: {why}; keeping what is known"),
                    );
                }
                return None;
            }
        };
        self.is_unreadable = false;
        if !is_whole {
            return self.seen_metadata(node.metadata, turn);
        }
        let is_another = !self.seen_uid.is_empty() && self.seen_uid != node.metadata.uid;
        self.seen_uid.clone_from(&node.metadata.uid);
        self.is_missing = false;
        if self.node().is_some_and(|before| before.metadata.uid != node.metadata.uid) {
            // another Node of that name; the deletion of the one before was not seen
            self.annotation = None;
        }
        self.node = Some(node);
        self.note_overwritten_annotation(turn);
        Some(NodeNews::Seen { is_another, is_whole: true })
    }

    /// Takes an event of a metadata watch. If it is about another Node than the known one, it takes effect
    /// once that was read whole.
    fn seen_metadata(&mut self, metadata: api::ObjectMeta, turn: &mut Turn) -> Option<NodeNews> {
        self.is_missing = false;
        let Some(node) = self.node.as_mut().filter(|node| node.metadata.uid == metadata.uid) else {
            self.versions.is_changed = true;
            return None;
        };
        self.versions.shown(&metadata.resource_version);
        node.metadata = metadata;
        self.note_overwritten_annotation(turn);
        Some(NodeNews::Seen { is_another: false, is_whole: false })
    }

    fn gone(&mut self) -> NodeNews {
        (self.node, self.is_missing, self.annotation) = (None, true, None);
        self.labels = Labels::default();
        self.versions = Versions::default();
        NodeNews::Gone
    }

    /// Lists the Node again: the server answers 404 although the watch has it. A server that was wiped and
    /// has since passed the watched version sends no event on that watch.
    pub(crate) fn not_found(&mut self, turn: &mut Turn) {
        if self.node.is_none() || turn.now.mono < self.next_relist {
            return;
        }
        self.next_relist = turn.now.mono.saturating_add(LONGEST_PATIENCE);
        turn.log(Level::Info, "the API server does not find the Node, reading it anew");
        self.list(turn);
    }

    pub(crate) fn poll_watch(&mut self, turn: &mut Turn) {
        if !CHANGES.iter().any(|key| turn.outbox.is_in_flight(key)) {
            self.versions.no_more_answers();
        }
        if self.versions.is_changed && turn.now.mono >= self.next_read {
            self.versions.read();
            // if a controller stamps the Node each second, the agent must not read it as often
            self.next_read = turn.now.mono.saturating_add(LONGEST_WAIT);
            return self.list(turn);
        }
        if let Some(order) = self.reflector.watching.poll(turn.now, None) {
            turn.act(Action::WatchNode(order));
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let read = self.versions.is_changed.then_some(self.next_read);
        self.reflector.watching.next_deadline().into_iter().chain(read).chain(self.labels.paced).min()
    }

    // ------------------------------------------------------------------------------------------ requests

    pub(crate) fn offer_registration(&self, config: &Config, facts: Option<&HostFacts>, turn: &mut Turn) {
        let options = turn.options;
        turn.offer(RequestKey::Register, |_| {
            let facts = facts.filter(|_| config.register_node && self.is_missing);
            facts.map(|facts| Request::Register(registration(options, config, Some(facts))))
        });
    }

    /// Labels first: a server that refuses the annotations still gets the labels. Those that were written
    /// before, and that somebody else removed or changed, are written again with growing pauses.
    /// `system`: the annotation about the system of this machine.
    pub(crate) fn offer_labels(
        &mut self,
        config: &Config,
        facts: Option<&HostFacts>,
        system: Option<String>,
        turn: &mut Turn,
    ) {
        let options = turn.options;
        let Self { node, labels, .. } = self;
        labels.paced = None;
        turn.offer(RequestKey::PatchLabels, |now| {
            let node = node.as_deref()?;
            let missing = missing_labels(node, options, facts);
            let body = match missing.is_empty() {
                false => json!({"metadata": {"labels": missing}}),
                true => {
                    let annotations = wrong_annotations(node, options, config, facts, system);
                    if annotations.is_empty() {
                        return None;
                    }
                    json!({"metadata": {"annotations": annotations}})
                }
            };
            if labels.are_written(&body) && now.mono < labels.rewrites.due() {
                labels.paced = Some(labels.rewrites.due());
                return None;
            }
            labels.offered = Some(body.clone());
            Some(Request::PatchLabels(body))
        });
    }

    /// The last offered labels, or annotations, were accepted.
    pub(crate) fn labels_accepted(&mut self, config: &Config, longest: Duration, turn: &Turn) {
        let Some(body) = self.labels.offered.take() else { return };
        let is_again = self.labels.are_written(&body);
        let first = config.node_status_update_frequency;
        self.labels.rewrites.written(turn.now.mono, is_again, first, longest);
        // the node's own ones: their number is limited
        for (key, value) in entries_of(&body) {
            self.labels.written.insert(key, value.clone());
        }
    }

    /// Writes `status.config` as text into the annotation, on a server that drops the field. Returns whether
    /// an older one is still on its way: the present one follows after its answer, and then the condition.
    pub(crate) fn offer_status_annotation(&mut self, text: String, turn: &mut Turn) -> bool {
        let is_done = match (&self.annotation, &self.node) {
            // until ours is known to be on the server, the annotation there may be the one that it replaces
            (Some(annotation), _) => annotation.text == text,
            (None, Some(node)) => node.metadata.annotations.get(api::CONFIG_STATUS_ANNOTATION) == Some(&text),
            (None, None) => true,
        };
        if is_done {
            return false;
        }
        let (now, key) = (turn.now, RequestKey::PatchNode);
        if turn.outbox.is_in_flight(&key) {
            return true;
        }
        let body = json!({"metadata": {"annotations": {api::CONFIG_STATUS_ANNOTATION: text}}});
        let order = Order::Request(Request::PatchNode(body));
        if turn.outbox.is_free(now, &key)
            && !turn.outbox.is_held(now, &key, &order)
            && turn.outbox.put(now, key, order)
        {
            self.annotation = Some(StatusAnnotation { text, version: None });
            // a waiting status would be sent first, with the present condition: it is offered again after the
            // annotation
            turn.outbox.withdraw(&RequestKey::PatchStatus);
        }
        false
    }

    /// There is no Node to patch.
    pub(crate) fn withdraw(&self, turn: &mut Turn) {
        turn.outbox.withdraw(&RequestKey::PatchLabels);
        turn.outbox.withdraw(&RequestKey::PatchNode);
    }

    /// The Node was created, exists already, or was changed by us.
    pub(crate) fn settled(&mut self, key: RequestKey, answer: &Answer, turn: &mut Turn) {
        self.reflector.watching.changed_by_us(turn.now);
        if key == RequestKey::PatchNode {
            if let Some(annotation) =
                self.annotation.as_mut().filter(|annotation| annotation.version.is_none())
            {
                annotation.version = version_of(answer).and_then(|version| version.parse().ok());
            }
            self.note_overwritten_annotation(turn);
        }
    }

    /// A request of ours has changed the Node.
    pub(crate) fn changed_by_us(&mut self, answer: &Answer) {
        if let Some(version) = version_of(answer) {
            self.versions.made(version);
        }
    }

    pub(crate) fn failed(&mut self, key: RequestKey) {
        if key == RequestKey::PatchNode {
            self.annotation = None;
        }
    }

    /// Notices that somebody overwrote the annotation: a late request of an earlier run, or another client.
    /// The annotation is sent again after growing pauses, so that two writers do not fight in a loop. A
    /// version of the Node older than our write shows the earlier text. A server that drops the annotation
    /// does not get it again.
    fn note_overwritten_annotation(&mut self, turn: &mut Turn) {
        let (Some(annotation), Some(node)) = (&self.annotation, &self.node) else { return };
        let Some(there) = node.metadata.annotations.get(api::CONFIG_STATUS_ANNOTATION) else { return };
        let seen: Option<u64> = node.metadata.resource_version.parse().ok();
        if *there != annotation.text && annotation.version.is_some() && seen > annotation.version {
            self.annotation = None;
            self.annotation_rewrites.written(turn.now.mono, true, LONGEST_WAIT, rival::PAUSE);
            turn.outbox.pause(&RequestKey::PatchNode, self.annotation_rewrites.due());
        }
    }
}

/// The version of the object in a server's answer.
fn version_of(answer: &Answer) -> Option<&str> {
    let Answer::Accepted(Some(object)) = answer else { return None };
    object["metadata"]["resourceVersion"].as_str()
}
