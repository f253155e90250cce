//! An operator that keeps pushing configurations to one node: good ones, and bad ones of every kind, each
//! until it is answered.
//!
//! Always holds: every content is new, so an answer cannot be one to an earlier push; a push counts as
//! answered only when the API server shows this very content (its version, or its UID in the condition's
//! reason) as active or as bad; a good push follows each bad one. Time in which the soak itself has disrupted
//! the node's link or the hub does not count.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use kedge_rig::cluster::{HEADER, Source, assign};
use kedge_rig::error::RigError;
use kedge_rig::kubectl::Kubectl;
use kedge_rig::view::View;
use serde_json::{Value, json};

use crate::disruptions::Disruptions;

/// Longest acceptable time until an answer, without disruptions. A connection that a router forgot is noticed
/// by the watch's silence limit of 150 s.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(240);
/// The time limit of one wait for the API.
const LOOK: Duration = Duration::from_secs(1);
/// Trial period of the good ones: short, so that many end.
const TRIAL: &str = "2s";
/// Most failures that are described; further ones are only counted.
const DESCRIBED: usize = 20;
/// The condition's reason for an empty source.
const UNCLEAR: &str = "exactly one subfield must be non-nil, but all were nil";

/// The kind of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PushKind {
    /// Assigned by name, edited in place: adopted and promoted.
    Good,
    /// Does not parse.
    Unparsable,
    /// Parses, but is invalid.
    Invalid,
    /// The agent crashes under it.
    Crashing,
    /// The agent's main loop stops under it, and the watchdog ends it.
    Hanging,
    /// A `ConfigMap` without the key.
    KeyMissing,
    /// A `ConfigMap` that does not exist.
    ObjectMissing,
    /// `configSource: {}`.
    SourceEmpty,
    /// `configSource: null`.
    Unassigned,
}

/// The bad pushes to a node, in turn; a good one follows each.
const BAD: [PushKind; 8] = [
    PushKind::Unparsable,
    PushKind::Invalid,
    PushKind::Crashing,
    PushKind::KeyMissing,
    PushKind::Hanging,
    PushKind::ObjectMissing,
    PushKind::SourceEmpty,
    PushKind::Unassigned,
];

impl PushKind {
    /// Unintended ends of the agent, under `crashLoopThreshold: 1`.
    fn unclean_ends(self) -> usize {
        if matches!(self, PushKind::Crashing | PushKind::Hanging) { 2 } else { 0 }
    }
}

/// The count of pushes and answers.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// (kind, undisturbed seconds until the answer) of each answered push.
    pub(crate) answered: Vec<(PushKind, f64)>,
    /// Pushes made.
    pub(crate) made: usize,
    /// Ends that the pushes to one node must have caused: (node, ends).
    pub(crate) unclean_ends: Vec<(&'static str, usize)>,
    /// Descriptions of failures.
    pub(crate) failures: Vec<String>,
    /// Number of failures beyond the described ones.
    pub(crate) further: usize,
}

/// Pushes to one node.
pub(crate) struct Pusher<'a> {
    pub(crate) node: &'static str,
    pub(crate) kubectl: Kubectl,
    pub(crate) view: &'a View,
    /// Held for reading while kubectl runs; for writing while the hub is away.
    pub(crate) hub: &'a RwLock<()>,
    pub(crate) disruptions: &'a Disruptions,
    pub(crate) over: &'a AtomicBool,
    pub(crate) tally: &'a Mutex<Tally>,
    /// Time between two pushes.
    pub(crate) pause: Duration,
    /// True if bad ones are among them.
    pub(crate) with_bad: bool,
    pub(crate) count: Cell<usize>,
}

/// A `ConfigMap` as the API server returns it.
struct Object {
    name: String,
    uid: String,
    version: String,
}

impl Object {
    fn of(object: &Value) -> Object {
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
        Object { name: text("name"), uid: text("uid"), version: text("resourceVersion") }
    }
}

fn has_config(node: &Value, role: &str, object: &Object) -> bool {
    let source = &node["status"]["config"][role]["configMap"];
    source["uid"] == object.uid.as_str() && source["resourceVersion"] == object.version.as_str()
}

fn condition(node: &Value) -> Option<&Value> {
    node.pointer("/status/conditions")?.as_array()?.iter().find(|condition| condition["type"] == "ConfigOK")
}

fn config_ok(node: &Value, status: &str, reason: &str) -> bool {
    condition(node).is_some_and(|condition| {
        condition["status"] == status
            && condition["reason"].as_str().is_some_and(|text| text.contains(reason))
    })
}

impl Pusher<'_> {
    /// Pushes until `over` is set.
    pub(crate) fn run(&self) {
        let mut bad = BAD.into_iter().cycle();
        let mut good = match self.kubectl(|kubectl| self.create(kubectl, &self.payload(PushKind::Good))) {
            Ok(object) => object,
            Err(error) => return self.failed(PushKind::Good, &error.to_string()),
        };
        while !self.over.load(Ordering::SeqCst) {
            self.push_good(&mut good);
            if self.with_bad
                && let Some(kind) = bad.next()
            {
                self.push_bad(kind);
            }
            self.rest();
        }
        if self.with_bad {
            self.push_good(&mut good);
        }
    }

    fn rest(&self) {
        let until = Instant::now() + self.pause;
        while Instant::now() < until && !self.over.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(100).min(self.pause));
        }
    }

    /// Runs kubectl while the hub is up.
    fn kubectl<T>(&self, act: impl Fn(&Kubectl) -> Result<T, RigError>) -> Result<T, RigError> {
        let _there = self.hub.read().unwrap_or_else(PoisonError::into_inner);
        act(&self.kubectl)
    }

    fn payload(&self, kind: PushKind) -> String {
        self.count.set(self.count.get() + 1);
        let number = self.count.get();
        let trial = if kind == PushKind::Good { TRIAL } else { "5m" };
        let fields = match kind {
            PushKind::Unparsable => "evictionHard: [\n",
            PushKind::Invalid => "imageGCHighThresholdPercent: 200\n",
            PushKind::Crashing => "kedge:\n  faultInjection:\n    crashAfter: 300ms\n",
            PushKind::Hanging => "kedge:\n  faultInjection:\n    hangLoop: main\n    hangAfter: 300ms\n",
            _ => "",
        };
        format!(
            "{HEADER}configTrialDuration: {trial}\ncrashLoopThreshold: 1\nmaxPods: {}\n{fields}",
            100 + number
        )
    }

    fn create(&self, kubectl: &Kubectl, payload: &str) -> Result<Object, RigError> {
        let key = format!("key-{}", self.count.get());
        let name = format!("{}-{}", self.node, self.count.get());
        let data = if payload.is_empty() { json!({key: "nothing"}) } else { json!({"kubelet": payload}) };
        let object =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
        answer(kubectl.feed(&["create", "-f", "-", "-o", "json"], &object.to_string())?)
    }

    fn push_good(&self, object: &mut Object) {
        let payload = self.payload(PushKind::Good);
        let begun = Instant::now();
        let name = object.name.clone();
        let pushed = self.kubectl(|kubectl| {
            let patch = json!({"data": {"kubelet": payload}}).to_string();
            let edited =
                kubectl.run(&["patch", "configmap", &name, "--type=merge", "-p", &patch, "-o", "json"])?;
            assign(kubectl, self.node, &Source::Following { name: name.clone() })?;
            answer(edited)
        });
        self.made(PushKind::Good);
        match pushed {
            Ok(edited) => *object = edited,
            Err(error) => return self.failed(PushKind::Good, &error.to_string()),
        }
        self.until(PushKind::Good, begun, |node| {
            has_config(node, "active", object)
                && has_config(node, "assigned", object)
                && config_ok(node, "True", "all checks passed")
        });
        if let Err(why) =
            self.wait("its promotion", Instant::now(), |node| has_config(node, "lastKnownGood", object))
        {
            self.failed(PushKind::Good, &why);
        }
    }

    fn push_bad(&self, kind: PushKind) {
        let payload = if kind == PushKind::KeyMissing { String::new() } else { self.payload(kind) };
        // `payload` counts as well, so that no two pushes share a name
        if payload.is_empty() {
            self.count.set(self.count.get() + 1);
        }
        let begun = Instant::now();
        let pushed = self.kubectl(|kubectl| {
            let object = match kind {
                PushKind::SourceEmpty | PushKind::Unassigned | PushKind::ObjectMissing => None,
                _ => Some(self.create(kubectl, &payload)?),
            };
            assign(kubectl, self.node, &self.source(kind, object.as_ref()))?;
            Ok(object)
        });
        self.made(kind);
        let object = match pushed {
            Ok(object) => object,
            Err(error) => return self.failed(kind, &error.to_string()),
        };
        let uid = object.as_ref().map(|object| object.uid.clone()).unwrap_or_default();
        let (status, reason) = match kind {
            PushKind::Unparsable => ("False", format!("failed to parse current (UID: {uid})")),
            PushKind::Invalid => ("False", format!("failed to validate current (UID: {uid})")),
            PushKind::Crashing | PushKind::Hanging => {
                ("False", format!("current failed trial period due to crash loop (UID: {uid})"))
            }
            PushKind::KeyMissing => ("Unknown", format!("\"key-{}\"", self.count.get())),
            PushKind::ObjectMissing => ("Unknown", format!("{}-none-{}", self.node, self.count.get())),
            PushKind::SourceEmpty => ("Unknown", UNCLEAR.to_owned()),
            PushKind::Unassigned | PushKind::Good => {
                ("True", "current is set to the local default".to_owned())
            }
        };
        self.until(kind, begun, |node| config_ok(node, status, &reason));
        // otherwise the hub's store would grow with each push of a long soak
        if let Some(object) = object {
            let deleted =
                self.kubectl(|kubectl| kubectl.run(&["delete", "configmap", &object.name]).map(drop));
            deleted.unwrap_or_else(|error| self.failed(kind, &error.to_string()));
        }
    }

    fn source(&self, kind: PushKind, object: Option<&Object>) -> Source {
        match (kind, object) {
            (PushKind::Unassigned, _) => Source::Nil,
            (PushKind::KeyMissing, Some(object)) => Source::Following { name: object.name.clone() },
            (_, Some(object)) => Source::Pinned { name: object.name.clone(), uid: object.uid.clone() },
            (PushKind::ObjectMissing, None) => {
                Source::Following { name: format!("{}-none-{}", self.node, self.count.get()) }
            }
            (_, None) => Source::Raw(json!({})),
        }
    }

    fn until(&self, kind: PushKind, begun: Instant, is_so: impl Fn(&Value) -> bool) {
        match self.wait(&format!("{kind:?}"), begun, is_so) {
            Ok(fair) => self.tally(|tally| tally.answered.push((kind, fair.as_secs_f64()))),
            Err(why) => self.failed(kind, &why),
        }
    }

    /// Waits until the API shows it; returns the undisturbed time that it took.
    fn wait(
        &self,
        awaited: &str,
        begun: Instant,
        is_so: impl Fn(&Value) -> bool,
    ) -> Result<Duration, String> {
        loop {
            let shown = self.view.wait_for(awaited, LOOK, |world| world.node(self.node).is_some_and(&is_so));
            let fair = self.disruptions.undisturbed_time(self.node, begun, Instant::now());
            if shown.is_ok() {
                return Ok(fair);
            }
            if fair > ANSWER_LIMIT {
                let found = self.view.look(|world| {
                    let node = world.node(self.node)?;
                    Some(format!("{} {}", condition(node)?, node["status"]["config"]))
                });
                return Err(format!(
                    "{awaited}: no answer within {} s; the API shows {}",
                    fair.as_secs(),
                    found.unwrap_or_default()
                ));
            }
        }
    }

    fn made(&self, kind: PushKind) {
        self.tally(|tally| {
            tally.made += 1;
            tally.unclean_ends.push((self.node, kind.unclean_ends()));
        });
    }

    fn failed(&self, kind: PushKind, why: &str) {
        let text = format!("{}, push {} ({kind:?}): {why}", self.node, self.count.get());
        eprintln!("kedge-soak: {text}");
        self.tally(|tally| match tally.failures.len() {
            told if told < DESCRIBED => tally.failures.push(text),
            _ => tally.further += 1,
        });
    }

    fn tally(&self, note: impl FnOnce(&mut Tally)) {
        note(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn answer(text: String) -> Result<Object, RigError> {
    let object = serde_json::from_str(&text).map_err(|error| RigError::BadAnswer {
        command: "kubectl create or patch".into(),
        problem: error.to_string(),
    })?;
    Ok(Object::of(&object))
}
