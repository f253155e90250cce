//! The fleet in numbers: how many nodes are in which state, run which version, report which condition. The
//! page `/fleet` and `/metrics` show the same numbers.
//!
//! Owns: one row for each Node, and the counts of values that rows share; the ends of certificates, pods that
//! wait for a reason, and the order of warnings. Always holds: after every change the numbers are those of a
//! new count of all objects. A change costs the object that changed, and reading numbers costs the number of
//! different values. Memory: about 600 bytes for each Node, 96 of them its last day ([`day`]). Left to
//! others: locks, clocks, the meaning of numbers for people (`page`), and the rights to read them.

mod day;
mod row;

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Duration;

use super::index::Changed;
pub use day::{CELL, CELLS, Day, Level, Levels, TRACKS};
pub use row::{By, MOST_CHARS, STATES, Sight, TROUBLES};

use crate::identity::credential::Record;
use crate::kinds::event::TYPE_FIELD;
use crate::kinds::pod::{NODE_NAME_FIELD, PHASE_FIELD};
use crate::kinds::{CREDENTIAL, EVENT, Kind, NODE, POD};
use crate::object::{Object, key};
use crate::plain::ascii;
use crate::value::{at, text};

/// Bounds of the time for which nodes are silent, with their names; the last one has no bound.
pub const SILENCES: [(&str, i64); 6] = [
    ("hour", 3600),
    ("day", 86_400),
    ("week", 7 * 86_400),
    ("month", 30 * 86_400),
    ("year", 365 * 86_400),
    ("longer", i64::MAX),
];
/// Bounds of the days until certificates end.
pub const CERTIFICATE_DAYS: [i64; 5] = [0, 7, 30, 90, 365];
/// Waiting for these is the ordinary start of a pod.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// See the module.
#[derive(Debug, Default)]
pub struct Fleet {
    nodes: BTreeMap<Box<str>, Row>,
    counts: BTreeMap<(By, String), usize>,
    /// Silent nodes by the time since when.
    silence: BTreeMap<i64, usize>,
    /// Ends of the newest certificates of all names, and those of Nodes by their time.
    ends: BTreeMap<Box<str>, i64>,
    node_ends: BTreeMap<i64, usize>,
    phases: BTreeMap<Box<str>, usize>,
    /// Pods that wait, by their key: why, and on which node.
    waiting: BTreeMap<String, (String, Box<str>)>,
    /// How many of them a node has for one reason.
    waiting_on: BTreeMap<(String, Box<str>), usize>,
    /// Keys of warnings by their revision.
    warnings: BTreeMap<u64, String>,
}

#[derive(Debug)]
struct Row {
    sight: Sight,
    day: Day,
}

/// The effect of a change of one object on the counts. Made without the counts, because it parses the object.
#[derive(Debug)]
pub struct Note(What);

#[derive(Debug)]
enum What {
    Node(Box<str>, Option<Sight>),
    End(Box<str>, Option<i64>),
    Pod { key: String, old: Option<Box<str>>, new: Option<Box<str>>, waits: Option<(String, Box<str>)> },
    Warning { old: Option<u64>, new: Option<(u64, String)> },
}

impl Note {
    /// `None`: the change concerns no count.
    pub fn of(Changed { kind, event, .. }: &Changed) -> Option<Note> {
        Note::new(kind, event.old.as_deref(), event.new.as_deref())
    }

    fn new(kind: &Kind, old: Option<&Object>, new: Option<&Object>) -> Option<Note> {
        let object = new.or(old)?;
        let is = |other: &Kind| kind.kind == other.kind && kind.group == other.group;
        Some(Note(if is(&NODE) {
            What::Node(object.name.clone(), new.map(|node| Sight::read(&node.value())))
        } else if is(&POD) {
            let phase =
                |pod: Option<&Object>| pod.map(|pod| ascii(pod.field(PHASE_FIELD), MOST_CHARS).into());
            let key = key(&object.namespace, &object.name);
            What::Pod { key, old: phase(old), new: phase(new), waits: new.and_then(waits) }
        } else if is(&EVENT) {
            let warns = |event: &&Object| event.field(TYPE_FIELD) == "Warning";
            let at = |event: &Object| (event.revision, key(&event.namespace, &event.name));
            What::Warning { old: old.filter(warns).map(|old| old.revision), new: new.filter(warns).map(at) }
        } else if is(&CREDENTIAL) {
            let end =
                new.and_then(|record| Record::read(&record.value()).newest).map(|newest| newest.not_after);
            What::End(object.name.clone(), end)
        } else {
            return None;
        }))
    }
}

/// Why a pod's container waits, and on which node. Most pods wait for nothing: these are not parsed. A quote
/// in a string would be escaped, so the field's name matches nowhere else.
fn waits(pod: &Object) -> Option<(String, Box<str>)> {
    const FIELD: &[u8] = b"\"waiting\":{";
    if !pod.json.windows(FIELD.len()).any(|window| window == FIELD) {
        return None;
    }
    let value = pod.value();
    let of = |field| at(&value, &["status", field]).and_then(|all| all.as_array()).into_iter().flatten();
    let reasons = of("initContainerStatuses").chain(of("containerStatuses"));
    let reason = reasons
        .map(|status| text(status, &["state", "waiting", "reason"]))
        .find(|reason| !reason.is_empty() && !STARTING.contains(reason))?;
    Some((ascii(reason, MOST_CHARS), pod.field(NODE_NAME_FIELD).into()))
}

fn add<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    *counts.entry(key).or_default() += 1;
}

fn subtract<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Fleet {
    /// Adds a stored object, at start.
    pub fn restore(&mut self, kind: &Kind, object: &Object) {
        if let Some(note) = Note::new(kind, None, Some(object)) {
            self.apply(note, Duration::ZERO);
        }
    }

    /// Takes a change; `now` is the time since the start.
    pub fn apply(&mut self, Note(what): Note, now: Duration) {
        match what {
            What::Node(name, Some(sight)) => self.set_node(name, sight, now),
            What::Node(name, None) => {
                if let Some(row) = self.nodes.remove(&name) {
                    self.uncount(&name, &row.sight);
                }
            }
            What::End(name, end) => self.set_end(name, end),
            What::Pod { key, old, new, waits } => {
                if let Some(old) = old {
                    subtract(&mut self.phases, &old);
                }
                if let Some(new) = new {
                    add(&mut self.phases, new);
                }
                let before = match waits {
                    Some(waits) => {
                        add(&mut self.waiting_on, waits.clone());
                        self.waiting.insert(key, waits)
                    }
                    None => self.waiting.remove(&key),
                };
                if let Some(before) = before {
                    subtract(&mut self.waiting_on, &before);
                }
            }
            What::Warning { old, new } => {
                old.map(|revision| self.warnings.remove(&revision));
                self.warnings.extend(new);
            }
        }
    }

    fn set_node(&mut self, name: Box<str>, sight: Sight, now: Duration) {
        let mut day = match self.nodes.remove(&name) {
            Some(row) => {
                self.uncount(&name, &row.sight);
                row.day
            }
            None => Day::new(now, sight.levels),
        };
        day.set(now, sight.levels);
        sight.facts.iter().for_each(|fact| add(&mut self.counts, fact.clone()));
        if let Some(since) = sight.silent_since {
            add(&mut self.silence, since);
        }
        if let Some(end) = self.ends.get(&name) {
            add(&mut self.node_ends, *end);
        }
        self.nodes.insert(name, Row { sight, day });
    }

    fn uncount(&mut self, name: &str, sight: &Sight) {
        sight.facts.iter().for_each(|fact| subtract(&mut self.counts, fact));
        if let Some(since) = &sight.silent_since {
            subtract(&mut self.silence, since);
        }
        if let Some(end) = self.ends.get(name) {
            subtract(&mut self.node_ends, end);
        }
    }

    fn set_end(&mut self, name: Box<str>, end: Option<i64>) {
        let has_node = self.nodes.contains_key(&name);
        let before = match end {
            Some(end) => {
                if has_node {
                    add(&mut self.node_ends, end);
                }
                self.ends.insert(name, end)
            }
            None => self.ends.remove(&name),
        };
        if let Some(before) = before.filter(|_| has_node) {
            subtract(&mut self.node_ends, &before);
        }
    }

    /// The number of Nodes.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The nodes with this value of a property.
    pub fn count_of(&self, by: By, value: &str) -> usize {
        self.counts.get(&(by, value.to_owned())).copied().unwrap_or(0)
    }

    /// The values of a property with their numbers: the `most` most frequent ones.
    pub fn groups(&self, by: By, most: usize) -> Groups {
        let of = self.counts.range((by, String::new())..).take_while(|((found, _), _)| *found == by);
        Groups::of(of.map(|((_, value), count)| (value.clone(), *count)), most)
    }

    /// The phases of all pods.
    pub fn phases(&self) -> Groups {
        Groups::of(self.phases.iter().map(|(phase, count)| (phase.to_string(), *count)), usize::MAX)
    }

    /// Why pods wait: the number of nodes with such pods for each reason.
    pub fn waiting(&self, most: usize) -> Groups {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (reason, node) in self.waiting_on.keys() {
            if self.nodes.contains_key(node) {
                *counts.entry(reason).or_default() += 1;
            }
        }
        Groups::of(counts.into_iter().map(|(reason, count)| (reason.to_owned(), count)), most)
    }

    /// The nodes that have been silent for less than each of [`SILENCES`], and at least for the one before.
    pub fn silences(&self, now: i64) -> [usize; SILENCES.len()] {
        let mut counts = [0; SILENCES.len()];
        for (since, count) in &self.silence {
            counts[silence(now, *since)] += count;
        }
        counts
    }

    /// Certificates by the days until they end, cumulative as buckets are: at most as many as each of
    /// [`CERTIFICATE_DAYS`], then all; and the sum of the days. One that has ended has 0 days or fewer.
    pub fn certificates(&self, now: i64) -> ([usize; CERTIFICATE_DAYS.len() + 1], i64) {
        let (mut counts, mut sum) = ([0; CERTIFICATE_DAYS.len() + 1], 0_i64);
        for (end, count) in &self.node_ends {
            let days = days_left(now, *end);
            sum = sum.saturating_add(days.saturating_mul(i64::try_from(*count).unwrap_or(i64::MAX)));
            let first = CERTIFICATE_DAYS.iter().position(|most| days <= *most);
            counts[first.unwrap_or(CERTIFICATE_DAYS.len())..].iter_mut().for_each(|bucket| *bucket += count);
        }
        (counts, sum)
    }

    /// When a node's newest certificate ends (Unix time).
    pub fn end_of(&self, node: &str) -> Option<i64> {
        self.ends.get(node).copied()
    }

    /// The counted values of a Node.
    pub fn sight(&self, node: &str) -> Option<&Sight> {
        Some(&self.nodes.get(node)?.sight)
    }

    /// The last day of a node.
    pub fn day(&self, node: &str, now: Duration) -> Option<[Levels; CELLS]> {
        Some(self.nodes.get(node)?.day.cells(now))
    }

    /// Keys of the latest warnings, the newest first.
    pub fn warnings(&self, most: usize) -> Vec<String> {
        self.warnings.values().rev().take(most).cloned().collect()
    }

    /// The names of the nodes that match all filters, in order.
    pub fn find<'a>(&'a self, filters: &'a [Filter], now: i64) -> impl Iterator<Item = (&'a str, &'a Sight)> {
        let pods: Vec<BTreeSet<&str>> = filters
            .iter()
            .filter_map(|filter| match filter {
                Filter::Waiting(reason) => Some(reason),
                _ => None,
            })
            .map(|reason| {
                let of = self.waiting_on.range((reason.clone(), Box::default())..);
                of.take_while(|((found, _), _)| found == reason).map(|((_, node), _)| &**node).collect()
            })
            .collect();
        let matches = move |name: &str, sight: &Sight| {
            pods.iter().all(|nodes| nodes.contains(name))
                && filters.iter().all(|filter| match filter {
                    Filter::Fact(by, value) => {
                        sight.facts.iter().any(|fact| fact.0 == *by && fact.1 == *value)
                    }
                    Filter::Silent(bucket) => {
                        sight.silent_since.is_some_and(|since| silence(now, since) == *bucket)
                    }
                    Filter::Ends(most) => {
                        self.ends.get(name).is_some_and(|end| days_left(now, *end) <= *most)
                    }
                    Filter::Waiting(_) => true,
                })
        };
        let rows = self.nodes.iter().map(|(name, row)| (&**name, &row.sight));
        rows.filter(move |(name, sight)| matches(name, sight))
    }
}

/// A condition on nodes that a link has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    Fact(By, String),
    /// The position in [`SILENCES`].
    Silent(usize),
    /// At most as many days until the certificate ends.
    Ends(i64),
    /// A pod waits for this reason.
    Waiting(String),
}

impl Filter {
    /// From a parameter; `None`: it is unknown. A value is as long as a counted text at most: it becomes part
    /// of links.
    pub fn parse(name: &str, value: &str) -> Option<Filter> {
        if value.len() > 2 * MOST_CHARS {
            return None;
        }
        let bucket = || SILENCES.iter().position(|(known, _)| *known == value);
        match name {
            "silent" => bucket().map(Filter::Silent),
            "ends" => value.parse().ok().map(Filter::Ends),
            "waiting" => Some(Filter::Waiting(value.to_owned())),
            _ => {
                let by = By::ALL.into_iter().find(|by| by.name() == name)?;
                Some(Filter::Fact(by, value.to_owned()))
            }
        }
    }

    /// Name and value of its parameter.
    pub fn parameter(&self) -> (&'static str, String) {
        match self {
            Filter::Fact(by, value) => (by.name(), value.clone()),
            Filter::Silent(bucket) => ("silent", SILENCES[*bucket].0.to_owned()),
            Filter::Ends(days) => ("ends", days.to_string()),
            Filter::Waiting(reason) => ("waiting", reason.clone()),
        }
    }
}

fn silence(now: i64, since: i64) -> usize {
    let passed = now.saturating_sub(since);
    SILENCES.iter().position(|(_, bound)| passed < *bound).unwrap_or(SILENCES.len() - 1)
}

/// Whole days until a time, rounded up; not positive once it has passed.
pub fn days_left(now: i64, end: i64) -> i64 {
    let seconds = end.saturating_sub(now);
    seconds.div_euclid(86_400) + i64::from(seconds.rem_euclid(86_400) > 0)
}

/// Values with their numbers, the most frequent first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Groups {
    pub rows: Vec<(String, usize)>,
    /// The number of further values, and the sum of their counts.
    pub more: usize,
    pub of_more: usize,
}

impl Groups {
    fn of(all: impl Iterator<Item = (String, usize)>, most: usize) -> Groups {
        let mut rows: Vec<(String, usize)> = all.collect();
        rows.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let rest = rows.split_off(rows.len().min(most));
        Groups { rows, more: rest.len(), of_more: rest.iter().map(|(_, count)| count).sum() }
    }
}

#[cfg(test)]
mod tests;
