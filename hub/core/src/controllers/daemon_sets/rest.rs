//! Nodes at rest: nodes that a look at a set need not judge one by one.
//!
//! Most nodes of a set run the right pod, wait for their turn, start a pod, or are lost; only a change of
//! their pod or Node, or a time that is known in advance, can change the decision about them. They are
//! counted by state; a look judges all other nodes, and as many waiting ones as the budget has room for. So
//! the cost of a look depends on the work in progress, not on the size of the set. Always holds: judging a
//! node at rest would add the same to a look as its count does (the tests compare each look with one at all
//! nodes); a node that failed, or is a canary, is never at rest. Leaves to others: noticing changes (`known`)
//! and acting on them (`rollout`, `update`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use time::OffsetDateTime;

use super::super::placing::{self, Node, Placed};
use super::known::Known;
use super::rollout::{Failures, Settings};
use super::update::{Here, Pod, Wanted};

/// The last pod of a node that ended by itself.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) name: String,
    /// When the next pod that ends may be replaced, and the pause after that.
    pub(super) allowed: Duration,
    pub(super) pause: Duration,
    /// Why the node had no place for it; empty otherwise.
    pub(super) misfit: String,
}

/// The state of a node at rest. Each has at most one pod of the set that is not being deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// An available pod of the current revision; whether it has stayed so for long enough.
    Updated { has_stayed: bool },
    /// The same, but it crashed not long ago.
    Unsteady,
    /// An available pod of another revision.
    Outdated { is_proven: bool },
    /// The same, outside the node's maintenance windows.
    Closed,
    /// A pod of the current revision that is not available: not yet, or in a rollout that counts no failures.
    Starting { is_ready: bool },
    /// Only pods that are being deleted.
    Ending,
    /// A pod that ended by itself, and is replaced after a pause.
    Ended { is_current: bool },
    /// The hub has lost the node, and no pod there is of the current revision.
    Aside { has_pod: bool },
}

/// How many nodes are at rest, and at what.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct AtRest {
    pub(super) updated: usize,
    /// Of these, those that have not stayed so for long enough.
    pub(super) soaking: usize,
    pub(super) unsteady: usize,
    pub(super) outdated: usize,
    pub(super) starting: usize,
    /// Nodes with a starting pod that is ready.
    pub(super) ready: usize,
    pub(super) ending: usize,
    pub(super) ended: usize,
    /// Nodes with an ended pod of the current revision.
    pub(super) ended_current: usize,
    pub(super) aside: usize,
    pub(super) aside_with_pod: usize,
}

impl AtRest {
    /// Nodes that should run a pod and are not set aside.
    pub(super) fn desired(&self) -> usize {
        self.updated + self.outdated + self.out()
    }

    /// Nodes that use up the budget of an update.
    pub(super) fn out(&self) -> usize {
        self.unsteady + self.starting + self.ending + self.ended
    }

    fn count(&mut self, rest: Rest, change: impl Fn(&mut usize)) {
        match rest {
            Rest::Updated { has_stayed } => {
                change(&mut self.updated);
                if !has_stayed {
                    change(&mut self.soaking);
                }
            }
            Rest::Unsteady => change(&mut self.unsteady),
            Rest::Outdated { .. } | Rest::Closed => change(&mut self.outdated),
            Rest::Starting { is_ready } => {
                change(&mut self.starting);
                if is_ready {
                    change(&mut self.ready);
                }
            }
            Rest::Ending => change(&mut self.ending),
            Rest::Ended { is_current } => {
                change(&mut self.ended);
                if is_current {
                    change(&mut self.ended_current);
                }
            }
            Rest::Aside { has_pod } => {
                change(&mut self.aside);
                if has_pod {
                    change(&mut self.aside_with_pod);
                }
            }
        }
    }
}

/// A node that runs a pod of the set, or should.
#[derive(Debug)]
struct Row {
    placed: Placed,
    /// Its state at rest, and when it has to be judged again at the latest.
    rest: Option<(Rest, Option<Duration>)>,
}

/// The nodes of a set, judged. All of it can be computed again from `known`, so it may be lost.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// The settings by which the rows were judged: other settings make them all invalid.
    basis: Option<(Wanted, Settings)>,
    rows: BTreeMap<Box<str>, Row>,
    /// Nodes that changed since they were judged.
    changed: BTreeSet<Box<str>>,
    /// Those that are not at rest.
    awake: BTreeSet<Box<str>>,
    at_rest: AtRest,
    /// Nodes at rest with an old pod: first those with a revision that was never complete, then those with
    /// the proven one.
    outdated: [BTreeSet<Box<str>>; 2],
    /// When each node at rest has to be judged again.
    wakes: BTreeSet<(Duration, Box<str>)>,
}

/// The inputs for judging a node.
pub(super) struct Basis<'a> {
    pub(super) nodes: &'a BTreeMap<Box<str>, (u64, Node)>,
    pub(super) known: &'a Known,
    pub(super) wanted: &'a Wanted,
    pub(super) settings: &'a Settings,
    pub(super) failures: &'a Failures,
    pub(super) ended: &'a BTreeMap<String, Ended>,
    pub(super) now: Duration,
    /// A step of the wall clock is noticed at the next sweep.
    pub(super) wall: OffsetDateTime,
}

impl Basis<'_> {
    /// Until when an ended pod of a node is not replaced.
    pub(super) fn pauses_until(&self, node: &str) -> Option<Duration> {
        self.ended.get(node).map(|ended| ended.allowed).filter(|at| *at > self.now)
    }
}

impl Rows {
    /// Notes that these nodes came, went or changed.
    pub(super) fn nodes_changed<'a>(&mut self, names: impl IntoIterator<Item = &'a Box<str>>) {
        for name in names {
            self.drop_row(name);
            self.changed.insert(name.clone());
        }
    }

    /// The pods of these nodes changed.
    pub(super) fn pods_changed(&mut self, nodes: BTreeSet<Box<str>>) {
        self.changed.extend(nodes);
    }

    /// Judges the nodes that changed, those that were not at rest, and those with an expired time.
    pub(super) fn refresh(&mut self, by: &Basis<'_>) {
        let is_same = self
            .basis
            .as_ref()
            .is_some_and(|(wanted, settings)| wanted == by.wanted && settings == by.settings);
        let mut again = std::mem::take(&mut self.changed);
        if is_same {
            again.extend(std::mem::take(&mut self.awake));
            while self.wakes.first().is_some_and(|(at, _)| *at <= by.now) {
                again.extend(self.wakes.pop_first().map(|(_, name)| name));
            }
        } else {
            *self = Rows::default();
            again = by.nodes.keys().cloned().collect();
        }
        for name in again {
            let placed = self.drop_row(&name);
            let Some((_, node)) = by.nodes.get(&name) else { continue };
            let placed = placed.unwrap_or_else(|| placing::place(&by.wanted.spec, node));
            self.judge(name, node, placed, by);
        }
    }

    /// Whether a node runs a pod of the set, or should; `true` as long as nothing is judged.
    pub(super) fn has(&self, node: &str) -> bool {
        self.basis.is_none() || self.rows.contains_key(node) || self.changed.contains(node)
    }

    /// From now on the rows are those of these settings.
    pub(super) fn keep(&mut self, wanted: Wanted, settings: Settings) {
        self.basis = Some((wanted, settings));
    }

    pub(super) fn at_rest(&self) -> AtRest {
        self.at_rest
    }

    /// When the next node at rest wakes.
    pub(super) fn next(&self) -> Option<Duration> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// The nodes that are not at rest, in order of their names.
    pub(super) fn awake<'a>(&self, by: &Basis<'a>) -> Vec<Here<'a>> {
        self.awake.iter().filter_map(|name| self.here(name, by)).collect()
    }

    /// Adds up to `most` of the waiting nodes at rest, in the order of their turn, and subtracts them from
    /// the count.
    pub(super) fn add_outdated<'a>(
        &self,
        most: usize,
        heres: &mut Vec<Here<'a>>,
        at_rest: &mut AtRest,
        by: &Basis<'a>,
    ) {
        let before = heres.len();
        let first = self.outdated.iter().flatten().take(most);
        heres.extend(first.filter_map(|name| self.here(name, by)));
        at_rest.outdated -= heres.len() - before;
        heres.sort_by(|one, other| one.node.name.cmp(&other.node.name));
    }

    fn here<'a>(&self, name: &str, by: &Basis<'a>) -> Option<Here<'a>> {
        let (_, node) = by.nodes.get(name)?;
        Some(Here::new(by.wanted, node, self.rows.get(name)?.placed, by.known.pods_on(name), by.wall))
    }

    /// Forgets the state of a node and returns only whether pods are placed on it.
    fn drop_row(&mut self, name: &str) -> Option<Placed> {
        let row = self.rows.remove(name)?;
        self.awake.remove(name);
        if let Some((rest, until)) = row.rest {
            self.at_rest.count(rest, |count| *count -= 1);
            if let Rest::Outdated { is_proven } = rest {
                self.outdated[usize::from(is_proven)].remove(name);
            }
            until.map(|at| self.wakes.remove(&(at, name.into())));
        }
        Some(row.placed)
    }

    fn judge(&mut self, name: Box<str>, node: &Node, placed: Placed, by: &Basis<'_>) {
        let pods = by.known.pods_on(&name);
        if pods.is_empty() && !placed.runs {
            return;
        }
        let rest = rest(&Here::new(by.wanted, node, placed, pods, by.wall), by);
        if let Some((rest, until)) = rest {
            self.at_rest.count(rest, |count| *count += 1);
            if let Rest::Outdated { is_proven } = rest {
                self.outdated[usize::from(is_proven)].insert(name.clone());
            }
            self.wakes.extend(until.map(|at| (at, name.clone())));
        } else {
            self.awake.insert(name.clone());
        }
        self.rows.insert(name, Row { placed, rest });
    }
}

/// The state of a node at rest, and when it has to be judged again at the latest; `None` if it must be judged
/// in each look.
fn rest(here: &Here<'_>, by: &Basis<'_>) -> Option<(Rest, Option<Duration>)> {
    let (wanted, now) = (by.wanted, by.now);
    // one that is drained is released in time
    if here.node.drained_for == wanted.place {
        return None;
    }
    if !here.placed.runs || by.failures.has(&here.node.name) || by.settings.is_canary(here.node) {
        return None;
    }
    if here.is_set_aside {
        // also while the hub has not yet marked the pods of the lost node unready
        let is_plain = here.all.iter().all(|pod| {
            !wanted.is_current(pod) && pod.ready_since.is_none() && (pod.is_terminating || !pod.has_ended())
        });
        return is_plain.then_some((Rest::Aside { has_pod: !here.old.is_empty() }, None));
    }
    let is_settled = |pod: &Pod| wanted.is_current(pod) && pod.ahead.asked.is_empty();
    if here.node.is_lost {
        let waits = |pod: &Pod| {
            !(pod.is_terminating || pod.has_ended()) && pod.ready_since.is_none() && is_settled(pod)
        };
        let is_plain = !wanted.minds_failures && matches!(here.all[..], [pod] if waits(pod));
        return is_plain.then_some((Rest::Starting { is_ready: false }, None));
    }
    let [pod] = here.all[..] else {
        let ends = |pod: &&Pod| pod.is_terminating && pod.ready_since.is_none();
        return (!here.all.is_empty() && here.all.iter().all(ends)).then_some((Rest::Ending, None));
    };
    if pod.is_terminating {
        return wanted.available_at(pod).is_none_or(|at| at <= now).then_some((Rest::Ending, None));
    }
    if pod.has_ended() {
        let is_current = wanted.is_current(pod);
        let is_plain = pod.ready_since.is_none() && pod.ahead.asked.is_empty();
        let until = by.pauses_until(&here.node.name)?;
        let rest = (Rest::Ended { is_current }, Some(until));
        return (is_plain && !(is_current && wanted.minds_failures)).then_some(rest);
    }
    let updated = || {
        let has_stayed = wanted.has_stayed(pod, now);
        (Rest::Updated { has_stayed }, wanted.stays_at(pod).filter(|_| !has_stayed))
    };
    if !wanted.minds_failures && is_settled(pod) {
        return match wanted.available_at(pod) {
            Some(at) if at > now => Some((Rest::Starting { is_ready: true }, Some(at))),
            Some(_) if pod.is_unsteady(now) => Some((Rest::Unsteady, pod.recovers_at())),
            Some(_) if pod.is_troubled(now) => None,
            Some(_) => Some(updated()),
            None => Some((Rest::Starting { is_ready: false }, None)),
        };
    }
    if pod.is_troubled(now) || !pod.ahead.asked.is_empty() {
        return None;
    }
    let is_current = wanted.is_current(pod);
    match wanted.available_at(pod) {
        Some(at) if at <= now && is_current => Some(updated()),
        Some(at) if at <= now => {
            let changes = here.maintained.stays.map(|stays| now + stays);
            let open = Rest::Outdated { is_proven: wanted.is_proven(pod) };
            Some((if here.maintained.is_open { open } else { Rest::Closed }, changes))
        }
        Some(at) if is_current => Some((Rest::Starting { is_ready: true }, Some(at))),
        None if is_current => {
            let over = by.settings.overdue_at(pod)?;
            (over > now).then_some((Rest::Starting { is_ready: false }, Some(over)))
        }
        _ => None,
    }
}
