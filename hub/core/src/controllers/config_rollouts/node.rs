//! A node as a rollout of a configuration sees it: its assignment, its report, and the judgement of both.
//!
//! Always holds: a node is judged by comparison with itself before the assignment, which an annotation of the
//! Node remembers. So a node that was under pressure already does not stop a rollout. Contact alone makes no
//! node good: it promoted the revision, and is not worse than before. Times are of the hub's clock, from when
//! it saw a state. Leaves to others: which node is assigned which revision (`plan`).

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::placing::Node;
use crate::decode;
use crate::kinds::config_rollout::{NAMESPACE, version_numbers};
use crate::object::Object;
use crate::value::{condition, text};
use kedge_api::{CONFIG_OK, CONFIG_SOURCE_ANNOTATION, CONFIG_STATUS_ANNOTATION, ROLLOUT_ANNOTATION};

/// Annotation of a Node: its troubles when it was assigned the present revision, and the DaemonSets that
/// served there.
pub(super) const BEFORE: &str = "fleet.kedge.dev/before";
/// Annotation of a Node, with any value: rollouts leave the node out.
pub(super) const SET_ASIDE: &str = "fleet.kedge.dev/set-aside";
/// A node must be worse for this long before it counts as failed: agents restart within it.
const SETTLES: Duration = Duration::from_secs(60);
/// The same for pods that served before: an image may have to be pulled again.
pub(super) const SERVES_AGAIN: Duration = Duration::from_secs(10 * 60);
/// How long a node that changes its system may be away before it counts as lost: a slow board tries to start
/// three times.
const REBOOTS: Duration = Duration::from_secs(15 * 60);
/// Longest reason of a failure in a message.
const REASON_BYTES: usize = 120;

/// Troubles of a node: the type of the condition, and the status that means trouble.
const TROUBLES: [(&str, &str, &str); 5] = [
    ("Ready", "False", "not ready"),
    ("MemoryPressure", "True", "memory pressure"),
    ("DiskPressure", "True", "disk pressure"),
    ("PIDPressure", "True", "PID pressure"),
    ("SystemOK", "False", "its system"),
];

/// The assignment of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Assigned {
    #[default]
    Nothing,
    /// By a rollout: its name, and the revision's.
    Rollout(Box<str>, Box<str>),
    /// By a person or another program.
    ByHand,
}

/// The fields of a Node that rollouts use.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Facts {
    pub(super) node: Node,
    pub(super) uid: Box<str>,
    pub(super) assigned: Assigned,
    /// The revision that it reports as last-known-good; empty for any other ConfigMap.
    pub(super) promoted: Box<str>,
    /// The revision that its report is about.
    reported: Box<str>,
    config_ok: Option<bool>,
    config_reason: Box<str>,
    /// One bit for each of [`TROUBLES`].
    troubles: u8,
    before: u8,
    /// The DaemonSets that served when it was assigned the revision.
    pub(super) served: Vec<String>,
    pub(super) is_set_aside: bool,
    /// By its last report it fetches another system, or starts it: it reboots for that.
    changes_system: bool,
    pub(super) version: Option<[u32; 6]>,
}

impl Facts {
    pub(super) fn read(object: &Object) -> Facts {
        let value = object.value();
        let status = config_status(&value);
        let own = |field: &str| -> Box<str> {
            let map = &status[field]["configMap"];
            if text(map, &["namespace"]) == NAMESPACE { text(map, &["name"]).into() } else { "".into() }
        };
        let ok = condition(&value["status"], CONFIG_OK);
        let reason = ok.map_or("", |ok| text(ok, &["reason"]));
        let before = parsed(&value, BEFORE);
        let named = before["troubles"].as_array().into_iter().flatten();
        let served = before["served"].as_array().into_iter().flatten();
        Facts {
            node: Node::read(object),
            uid: object.uid.clone(),
            assigned: assigned(&value),
            promoted: own("lastKnownGood"),
            reported: own("assigned"),
            config_ok: ok.and_then(|ok| match text(ok, &["status"]) {
                "True" => Some(true),
                "False" => Some(false),
                _ => None,
            }),
            config_reason: reason[..reason.floor_char_boundary(REASON_BYTES)].into(),
            troubles: bits(|sort, bad| {
                condition(&value["status"], sort).is_some_and(|found| found["status"] == *bad)
            }),
            before: named.fold(0, |all, name| all | bits(|sort, _| name == sort)),
            served: served.filter_map(|set| set.as_str().map(str::to_owned)).collect(),
            is_set_aside: value["metadata"]["annotations"].get(SET_ASIDE).is_some(),
            changes_system: condition(&value["status"], "SystemOK")
                .is_some_and(|found| found["status"] == "Unknown"),
            version: version_numbers(text(&value, &["status", "nodeInfo", "kubeletVersion"])),
        }
    }

    /// The annotation that remembers how the node is now.
    pub(super) fn remembered(&self, served: &[String]) -> String {
        let named = TROUBLES.iter().enumerate().filter(|(index, _)| self.troubles & (1 << index) != 0);
        let named: Vec<&str> = named.map(|(_, (sort, _, _))| *sort).collect();
        json!({"troubles": named, "served": served}).to_string()
    }

    /// The revision that this rollout assigned.
    pub(super) fn revision_of(&self, rollout: &str) -> Option<&str> {
        match &self.assigned {
            Assigned::Rollout(by, revision) if **by == *rollout => Some(revision),
            _ => None,
        }
    }

    /// Whether it neither promoted nor lost the revision that a rollout assigned to it: it may be down for
    /// that.
    pub(super) fn is_out(&self) -> bool {
        matches!(&self.assigned, Assigned::Rollout(_, revision) if *revision != self.promoted)
    }

    /// Whether it refused the revision that it is assigned.
    fn refuses(&self, revision: &str) -> bool {
        self.config_ok == Some(false) && *self.reported == *revision
    }

    /// The trouble that it did not have before.
    fn new_trouble(&self) -> Option<&'static str> {
        let new = self.troubles & !self.before;
        let found = TROUBLES.iter().enumerate().find(|(index, _)| new & (1 << index) != 0);
        found.map(|(_, (_, _, shown))| *shown)
    }

    /// Why it fails under a revision, by its report alone; for people.
    pub(super) fn complaint(&self, revision: &str) -> Option<String> {
        if self.refuses(revision) {
            return Some(self.config_reason.to_string());
        }
        self.new_trouble().map(str::to_owned)
    }
}

fn bits(is_so: impl Fn(&str, &str) -> bool) -> u8 {
    let found = TROUBLES.iter().enumerate().filter(|(_, (sort, bad, _))| is_so(sort, bad));
    found.fold(0, |all, (index, _)| all | 1 << index)
}

/// An annotation with JSON; null if it cannot be parsed.
fn parsed(value: &Value, annotation: &str) -> Value {
    let found = text(value, &["metadata", "annotations", annotation]);
    decode::value(found.as_bytes()).unwrap_or_default()
}

/// `status.config`, or the annotation in its place.
fn config_status(value: &Value) -> Value {
    match &value["status"]["config"] {
        Value::Null => parsed(value, CONFIG_STATUS_ANNOTATION),
        found => found.clone(),
    }
}

/// The assignment of a Node, by the field, or by the annotation in its place.
pub(super) fn assigned(value: &Value) -> Assigned {
    let annotated = text(value, &["metadata", "annotations", CONFIG_SOURCE_ANNOTATION]);
    let source = match &value["spec"]["configSource"] {
        Value::Null if annotated.is_empty() => return Assigned::Nothing,
        Value::Null => parsed(value, CONFIG_SOURCE_ANNOTATION),
        found => found.clone(),
    };
    let map = &source["configMap"];
    match text(value, &["metadata", "annotations", ROLLOUT_ANNOTATION]).split_once('@') {
        Some((rollout, revision)) if map["namespace"] == NAMESPACE && map["name"] == revision => {
            Assigned::Rollout(rollout.into(), revision.into())
        }
        _ => Assigned::ByHand,
    }
}

/// Why a node failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Why {
    /// It refused the revision, for this reason.
    Refused(Box<str>),
    /// It has this trouble, and did not before.
    Worse(&'static str),
    Pods,
    Late,
    Lost,
}

impl fmt::Display for Why {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Why::Refused(reason) if reason.is_empty() => "refused",
            Why::Refused(reason) => reason,
            Why::Worse(trouble) => trouble,
            Why::Pods => "pods that served do not",
            Why::Late => "not promoted in time",
            Why::Lost => "node lost",
        })
    }
}

/// The state of a selected node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    SetAside,
    Conflicting,
    TooOld,
    Away,
    /// Outside its maintenance windows.
    Closed,
    /// A DaemonSet's update has one of its pods.
    Busy,
    Waiting,
    Trying,
    Good,
    Failed(Why),
}

/// Since when the hub has seen a node in some state, under one revision.
#[derive(Debug, Default, Clone)]
pub(super) struct Watch {
    revision: Box<str>,
    pub(super) good: Option<Duration>,
    worse: Option<Duration>,
    unserved: Option<Duration>,
    lost: Option<Duration>,
    /// How long it has tried, without the time in which it was away or outside its windows.
    spent: Duration,
    /// When `spent` was last counted, if it grows.
    counts: Option<Duration>,
}

/// One look at an assigned node.
pub(super) struct Look<'a> {
    pub(super) revision: &'a str,
    pub(super) deadline: Duration,
    /// Whether all DaemonSets that served before do.
    pub(super) serves: bool,
    pub(super) is_open: bool,
    pub(super) now: Duration,
}

impl Watch {
    /// The state of a node that is assigned the revision; `next` gets the time at which it changes by itself.
    pub(super) fn judge(&mut self, facts: &Facts, look: &Look<'_>, next: &mut Option<Duration>) -> State {
        if *self.revision != *look.revision {
            *self = Watch { revision: look.revision.into(), ..Watch::default() };
        }
        let now = look.now;
        let is_promoted = *facts.promoted == *look.revision;
        if let Some(since) = self.counts {
            self.spent += now.saturating_sub(since);
        }
        let tries = !is_promoted && !facts.node.is_lost;
        self.counts = (tries && look.is_open).then_some(now);
        let trouble = facts.new_trouble().filter(|_| !facts.node.is_lost);
        self.worse = trouble.and(self.worse.or(Some(now)));
        self.unserved = (!look.serves && !facts.node.is_lost).then(|| self.unserved.unwrap_or(now));
        self.lost = facts.node.is_lost.then(|| self.lost.unwrap_or(now));
        let mut is_over = |since: Option<Duration>, limit: Duration| {
            let Some(over) = since.map(|since| since + limit) else { return false };
            if over > now {
                *next = Some(next.map_or(over, |next| next.min(over)));
            }
            over <= now
        };
        let is_gone =
            !is_promoted && facts.node.is_lost && (!facts.changes_system || is_over(self.lost, REBOOTS));
        let why = if is_gone {
            Some(Why::Lost)
        } else if facts.refuses(look.revision) {
            Some(Why::Refused(facts.config_reason.clone()))
        } else if is_over(self.worse, SETTLES) {
            trouble.map(Why::Worse)
        } else if is_over(self.unserved, SERVES_AGAIN) {
            Some(Why::Pods)
        } else if tries && self.spent >= look.deadline {
            Some(Why::Late)
        } else {
            None
        };
        if let Some(why) = why {
            self.good = None;
            return State::Failed(why);
        }
        is_over(self.counts, look.deadline.saturating_sub(self.spent));
        // a lost node that promoted the revision before stays as it was
        let is_well = facts.node.is_lost || self.worse.is_none() && self.unserved.is_none();
        if !(is_promoted && is_well) {
            self.good = None;
            return State::Trying;
        }
        self.good = self.good.or(Some(now));
        State::Good
    }

    /// The hub stood still for `by` and received nothing: that time does not count.
    pub(super) fn shift(&mut self, by: Duration, now: Duration) {
        let all = [&mut self.worse, &mut self.unserved, &mut self.good, &mut self.counts, &mut self.lost];
        for since in all.into_iter().flatten() {
            *since = (*since + by).min(now);
        }
    }
}
