//! The decisions about a DaemonSet's pods: which are made, which end, and what status the set reports.
//!
//! Upstream's tables (`manage`, `rollingUpdate`, `updateDaemonSetStatus`), with these differences. A pod that
//! is ready, but not yet for `minReadySeconds`, is replaced within the budget like any other serving pod:
//! upstream replaces all of them at once, so a second update soon after a first one took down the whole set.
//! So is a pod that is unready for a moment without other trouble: after a power cut all pods of a site start
//! at once, and a bad revision in that minute would replace them all. A node that the hub has lost is set
//! aside unless it has the current revision: it counts as neither desired nor unavailable, its pod is left
//! alone, and it is updated when it is back; so a dead node stops no update, and no pod is deleted while
//! nobody can tell whether it has ended. Nodes are taken in order of their names.
//!
//! Outside its maintenance windows an update ends no pod of a node that serves. A node that is held (its
//! update is stopped, or waits for canaries: `rollout`) keeps its pod, and gets a pod of the proven revision
//! if it has none.
//!
//! Always holds: a pure function of what is known. A node gets at most one pod of a set, made only after the
//! previous one is gone there (under `maxSurge` one more), with a name derived from the node, so that the
//! store refuses a second one even if two steps decide to make it. No pod that serves is ended by an update
//! beyond `maxUnavailable`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use time::OffsetDateTime;

use super::super::placing::{self, Maintained, Node, Placed};
use super::super::rolling::budget::{Budget, share};
use super::ahead::{self, ANSWERS, Step};
use super::history;
use super::rest::AtRest;
use super::rollout::{Hold, RECOVERS, SETTLES, Trouble, Verdict, Watch};
use super::words::{GENERATION, HASH};
use crate::value::{condition, text};

/// Longest part of a set's name in the name of a pod, which as a host name has at most 63 characters: hash
/// and suffix follow.
const NAME_BYTES: usize = 44;
/// Suffix of a pod that replaces another one while the old pod still runs.
const SURGE_SUFFIX: &str = "-s";
/// Between two looks at a node that is drained: the pods that leave it are not the set's.
const DRAINS: Duration = Duration::from_secs(2);

/// The fields of a pod that an update uses.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Pod {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) node: String,
    pub(super) hash: String,
    pub(super) generation: String,
    pub(super) created: String,
    /// Since when, as the pod itself has it.
    pub(super) ready_since: Option<String>,
    /// Its containers and readiness gates were ready at the last report of its node. When a node is not
    /// ready, the hub itself marks the pods there unready, and they stay so until the node is back and has
    /// reported each of them.
    pub(super) has_served: bool,
    pub(super) phase: String,
    pub(super) trouble: Option<Trouble>,
    /// Its node had no place for it: reason and message; empty otherwise.
    pub(super) misfit: String,
    pub(super) is_terminating: bool,
    /// UID of its controller; empty if it has none.
    pub(super) controller: String,
    pub(super) ahead: ahead::OfPod,
    /// Since when the hub has seen it ready, on its own clock.
    pub(super) ready_at: Option<Duration>,
    /// For how long it has been unready or in trouble.
    pub(super) watch: Watch,
}

impl Pod {
    /// The times are not filled in yet; [`Pod::note`] does that.
    pub(super) fn read(value: &Value) -> Pod {
        let of = |path: &[&str]| text(value, path).to_owned();
        let holds = |sort: &str| condition(&value["status"], sort).filter(|found| found["status"] == "True");
        let ready = holds("Ready");
        let mut gates = value["spec"]["readinessGates"].as_array().into_iter().flatten();
        let has_served = holds("ContainersReady").is_some()
            && gates.all(|gate| holds(text(gate, &["conditionType"])).is_some());
        let owners = value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let controller = owners.into_iter().find(|owner| owner["controller"] == true);
        Pod {
            name: of(&["metadata", "name"]),
            uid: of(&["metadata", "uid"]),
            node: node_of(value),
            hash: of(&["metadata", "labels", HASH]),
            generation: of(&["metadata", "labels", GENERATION]),
            created: of(&["metadata", "creationTimestamp"]),
            ready_since: ready.map(|ready| text(ready, &["lastTransitionTime"]).to_owned()),
            has_served,
            phase: of(&["status", "phase"]),
            trouble: Trouble::read(&value["status"]),
            misfit: misfit(&value["status"]),
            is_terminating: !text(value, &["metadata", "deletionTimestamp"]).is_empty(),
            controller: controller.map_or("", |owner| text(owner, &["uid"])).to_owned(),
            ahead: ahead::OfPod::read(value),
            ready_at: None,
            watch: Watch::default(),
        }
    }

    /// Fills in the times on the hub's clock: from when the hub saw each state, starting anew after each
    /// interruption. `before`: the same pod as it was last read. It was available if it was ready for
    /// `min_ready`.
    pub(super) fn note(&mut self, before: Option<Pod>, min_ready: Duration, now: Duration) {
        let (since, at, watch) =
            before.map_or_else(Default::default, |pod| (pod.ready_since, pod.ready_at, pod.watch));
        self.ready_at =
            self.ready_since.as_ref().map(|_| at.filter(|_| since == self.ready_since).unwrap_or(now));
        self.watch = watch.next(self, at.map(|at| now.saturating_sub(at)), min_ready, now);
    }

    /// Since when it has been unready without having been available in between.
    pub(super) fn unready(&self) -> Option<Duration> {
        self.watch.unready().filter(|_| self.ready_since.is_none())
    }

    /// Since when it has been unready, or ready only now and then.
    pub(super) fn restless(&self) -> Option<Duration> {
        self.watch.restless().filter(|_| self.ready_since.is_none())
    }

    /// Until when an unready pod may become ready by itself: its node may just be starting, perhaps together
    /// with all others of a site.
    pub(super) fn settles_at(&self) -> Option<Duration> {
        Some(self.unready()? + SETTLES).filter(|_| self.trouble.is_none())
    }

    /// When it has been ready for so long that its earlier crashes no longer count; the end of other trouble
    /// only its node reports.
    pub(super) fn recovers_at(&self) -> Option<Duration> {
        Some(self.ready_at? + RECOVERS).filter(|_| self.trouble == Some(Trouble::Crashes))
    }

    pub(super) fn is_troubled(&self, now: Duration) -> bool {
        self.trouble.is_some() && self.recovers_at().is_none_or(|at| at > now)
    }

    /// Whether the pod runs, but crashed not long ago.
    pub(super) fn is_unsteady(&self, now: Duration) -> bool {
        self.trouble == Some(Trouble::Crashes) && self.is_troubled(now)
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Which of two pods stays: a ready one first, then one that was ready at the last report of its node,
    /// because then only the hub marked it unready.
    fn rank(&self) -> u8 {
        match self.ready_since {
            Some(_) => 0,
            None if self.has_served => 1,
            None => 2,
        }
    }

    fn is_live(&self) -> bool {
        !(self.is_terminating || self.has_ended())
    }
}

/// Why a node had no place for a pod: its resources, ports or labels.
fn misfit(status: &Value) -> String {
    let reason = text(status, &["reason"]);
    let is_of_place = reason.starts_with("OutOf") || matches!(reason, "NodePorts" | "NodeAffinity");
    if text(status, &["phase"]) != "Failed" || !is_of_place {
        return String::new();
    }
    let message = kedge_api::excerpt(text(status, &["message"]));
    if message.is_empty() { reason.to_owned() } else { format!("{reason}: {message}") }
}

/// The node that it runs on, or is pinned to.
fn node_of(pod: &Value) -> String {
    let bound = text(pod, &["spec", "nodeName"]);
    if !bound.is_empty() {
        return bound.to_owned();
    }
    let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let field = &required["nodeSelectorTerms"][0]["matchFields"][0];
    if field["key"] == "metadata.name" {
        field["values"][0].as_str().unwrap_or_default().to_owned()
    } else {
        String::new()
    }
}

/// The settings of a set, as its update reads them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wanted {
    pub(super) name: String,
    /// The pod spec of the template, with the tolerations of daemon pods.
    pub(super) spec: Value,
    pub(super) hash: String,
    pub(super) generation: String,
    pub(super) min_ready: Duration,
    /// How long a pod is ready on end, at least once, before the rollout is complete; no less than
    /// `min_ready`.
    pub(super) stays: Duration,
    pub(super) strategy: Strategy,
    /// The hub replaces pods by itself (not `OnDelete`), though the set may be paused.
    pub(super) is_rolling: bool,
    pub(super) proven: Option<Proven>,
    /// Whether an update can fail: not if its revision was complete before, nor if the set has no other
    /// revision.
    pub(super) minds_failures: bool,
    /// Images that nodes pull before their pod is stopped; `None` if nothing is pulled ahead.
    pub(super) ahead: Option<ahead::Request>,
    /// Whether nodes are drained before their pod is stopped.
    pub(super) drain: Drain,
    /// Namespace and name, as a node that is drained for the set names it.
    pub(super) place: String,
}

/// The pods that leave a node before an update stops the set's pod there. Pods of DaemonSets and static pods stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drain {
    Nothing,
    /// Those with a controller, which makes them anew elsewhere. Others are waited for.
    Controlled,
    All,
}

/// The revision for nodes that must not get the current one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Proven {
    pub(super) name: String,
    pub(super) hash: String,
    pub(super) template: Value,
    /// Its pod spec with the tolerations of daemon pods.
    pub(super) spec: Value,
    /// Its rollout was seen complete; otherwise it is only the revision that pods have.
    pub(super) was_complete: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Strategy {
    /// Pods are replaced when somebody deletes them, or not at all while the set is paused.
    OnDelete,
    /// Both as the set has them: numbers, or percentages of the desired pods.
    Rolling { unavailable: Value, surge: Value },
}

/// The actions to take, and the status of the set.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Name and node of each pod to make.
    pub(super) make: Vec<(String, String)>,
    /// Name and node of each pod of the proven revision to make.
    pub(super) restore: Vec<(String, String)>,
    /// Name and UID of each pod to end.
    pub(super) end: Vec<(String, String)>,
    /// Name and UID of each pod with a changed request to its node: the annotation to pull images ahead, or
    /// `None` to withdraw it.
    pub(super) ask: Vec<(String, String, Option<String>)>,
    /// Node, name and UID of each pod to end once its node is drained.
    pub(super) drain: Vec<(String, String, String)>,
    /// Nodes that are drained for the set and need not be any more.
    pub(super) release: Vec<String>,
    /// Pods that ended by themselves, each with its node.
    pub(super) ended: Vec<Pod>,
    pub(super) status: Status,
    /// When a pod becomes available if nothing changes.
    pub(super) next: Option<Duration>,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Status {
    pub(super) current: usize,
    pub(super) misscheduled: usize,
    pub(super) desired: usize,
    pub(super) ready: usize,
    pub(super) updated: usize,
    pub(super) available: usize,
    pub(super) set_aside: usize,
}

/// The pods of one node.
pub(super) struct Here<'a> {
    pub(super) node: &'a Node,
    pub(super) placed: Placed,
    pub(super) maintained: Maintained,
    /// All pods that still exist, also terminating ones; the oldest first.
    pub(super) all: Vec<&'a Pod>,
    /// Pods that are neither terminating nor ended; ready ones first, because of two only the first stays.
    pub(super) old: Vec<&'a Pod>,
    pub(super) new: Vec<&'a Pod>,
    pub(super) is_set_aside: bool,
}

/// The nodes that run a pod of the set, or should, in order.
pub(super) fn gather<'a>(
    wanted: &Wanted,
    nodes: &[&'a Node],
    pods: &[&'a Pod],
    wall: OffsetDateTime,
) -> Vec<Here<'a>> {
    let mut by_node: BTreeMap<&str, Vec<&'a Pod>> = BTreeMap::new();
    for pod in pods.iter().copied() {
        by_node.entry(&pod.node).or_default().push(pod);
    }
    let mut heres = Vec::new();
    for node in nodes.iter().copied() {
        let placed = placing::place(&wanted.spec, node);
        let all = by_node.remove(node.name.as_str()).unwrap_or_default();
        if !all.is_empty() || placed.runs {
            heres.push(Here::new(wanted, node, placed, all, wall));
        }
    }
    heres
}

impl<'a> Here<'a> {
    pub(super) fn new(
        wanted: &Wanted,
        node: &'a Node,
        placed: Placed,
        mut all: Vec<&'a Pod>,
        wall: OffsetDateTime,
    ) -> Here<'a> {
        all.sort_by(|one, other| (&one.created, &one.name).cmp(&(&other.created, &other.name)));
        let live = all.iter().copied().filter(|pod| pod.is_live());
        let (mut new, mut old): (Vec<_>, Vec<_>) = live.partition(|pod| wanted.is_current(pod));
        for pods in [&mut new, &mut old] {
            pods.sort_by_key(|pod: &&Pod| pod.rank());
        }
        let is_set_aside = placed.runs && node.is_lost && new.is_empty();
        Here { node, placed, maintained: node.maintained(wall), all, old, new, is_set_aside }
    }
}

/// Decides on the actions and the status. `heres`: all nodes except those `at_rest`, in order of their names.
pub(super) fn plan(
    wanted: &Wanted,
    verdict: &Verdict,
    heres: &[Here<'_>],
    at_rest: AtRest,
    now: Duration,
) -> Plan {
    let (plan, ending) = (Plan::default(), BTreeSet::new());
    Planner { wanted, verdict, at_rest, now, plan, ending }.plan(heres)
}

/// At most how many outdated nodes at rest a plan may replace the pod of, in addition to `others` nodes that
/// are not at rest.
pub(super) fn room(wanted: &Wanted, verdict: &Verdict, others: usize, at_rest: &AtRest) -> usize {
    let Strategy::Rolling { unavailable, surge } = &wanted.strategy else { return 0 };
    // the canaries are never at rest
    if verdict.hold != Hold::Nothing {
        return 0;
    }
    let most = others + at_rest.desired() + at_rest.aside;
    match share(surge, most) {
        0 => share(unavailable, most).max(1).saturating_sub(at_rest.out()),
        surge => surge,
    }
}

impl Wanted {
    /// Upstream's rule: by the revision's hash, or by the template's generation.
    pub(super) fn is_current(&self, pod: &Pod) -> bool {
        pod.hash == self.hash || !pod.generation.is_empty() && pod.generation == self.generation
    }

    pub(super) fn available_at(&self, pod: &Pod) -> Option<Duration> {
        Some(pod.ready_at? + self.min_ready)
    }

    pub(super) fn is_available(&self, pod: &Pod, now: Duration) -> bool {
        self.available_at(pod).is_some_and(|at| at <= now)
    }

    /// When a pod has stayed ready for long enough, at least once; `None`: it is not ready, and never did.
    pub(super) fn stays_at(&self, pod: &Pod) -> Option<Duration> {
        if pod.watch.longest() >= self.stays {
            return Some(Duration::ZERO);
        }
        Some(pod.ready_at? + self.stays)
    }

    pub(super) fn has_stayed(&self, pod: &Pod, now: Duration) -> bool {
        self.stays_at(pod).is_some_and(|at| at <= now)
    }

    /// Whether a pod is of the proven revision.
    pub(super) fn is_proven(&self, pod: &Pod) -> bool {
        self.proven.as_ref().is_some_and(|proven| proven.hash == pod.hash)
    }

    /// The name of a node's pod; the other one of the two if a pod there has the first. The hash in it is
    /// long: with a short one, two of 10,000 nodes would have the same name in one fleet of a hundred, and
    /// anybody who may name a node could choose a name that keeps another node from getting a pod.
    fn pod_name(&self, node: &str, taken: &[&Pod]) -> String {
        let of = self.name[..self.name.floor_char_boundary(NAME_BYTES)].trim_end_matches(['.', '-']);
        let name = format!("{of}-{}", history::unique(&format!("{}/{node}", self.name)));
        if taken.iter().any(|pod| pod.name == name) { other_name(&name) } else { name }
    }
}

/// The other one of the two names that a set's pod on a node may have.
pub(super) fn other_name(name: &str) -> String {
    name.strip_suffix(SURGE_SUFFIX).map_or_else(|| name.to_owned() + SURGE_SUFFIX, str::to_owned)
}

struct Planner<'a> {
    wanted: &'a Wanted,
    verdict: &'a Verdict,
    at_rest: AtRest,
    now: Duration,
    plan: Plan,
    /// UIDs of the pods that the plan ends.
    ending: BTreeSet<String>,
}

impl Planner<'_> {
    fn plan(mut self, heres: &[Here<'_>]) -> Plan {
        self.count_at_rest();
        for here in heres {
            self.count(here);
        }
        let desired = self.plan.status.desired;
        let (unavailable, surge) = match &self.wanted.strategy {
            Strategy::OnDelete => (0, 0),
            Strategy::Rolling { unavailable, surge } => (share(unavailable, desired), share(surge, desired)),
        };
        for here in heres {
            self.keep_one(here, surge > 0);
        }
        match self.wanted.strategy {
            Strategy::OnDelete => {}
            Strategy::Rolling { .. } if surge > 0 => self.surge(heres, surge),
            // validation refuses 0 for both, but a percentage of few nodes may round to 0
            Strategy::Rolling { .. } => self.replace(heres, unavailable.max(1)),
        }
        self.take_back(heres);
        self.release(heres);
        self.plan
    }

    fn count_at_rest(&mut self) {
        let (at_rest, status) = (&self.at_rest, &mut self.plan.status);
        let available = at_rest.updated + at_rest.unsteady;
        status.desired = at_rest.desired();
        status.current = available + at_rest.outdated + at_rest.starting + at_rest.ended;
        status.updated = available + at_rest.starting + at_rest.ended_current;
        status.ready = available + at_rest.outdated + at_rest.ready;
        status.available = available + at_rest.outdated;
        if self.verdict.stopped.is_none() {
            status.set_aside = at_rest.aside;
        } else {
            status.available -= at_rest.soaking;
            status.desired += at_rest.aside;
            status.current += at_rest.aside_with_pod;
        }
    }

    fn count(&mut self, here: &Here<'_>) {
        let next = here.all.iter().filter_map(|pod| self.available_at(pod)).filter(|at| *at > self.now).min();
        self.plan.next = [self.plan.next, next].into_iter().flatten().min();
        let oldest = here.all.iter().find(|pod| !pod.is_terminating);
        let status = &mut self.plan.status;
        if !here.placed.runs {
            status.misscheduled += usize::from(oldest.is_some());
            return;
        }
        // the loss of the nodes that a stopped update has not reached must not complete it
        if here.is_set_aside && self.verdict.stopped.is_none() {
            status.set_aside += 1;
            return;
        }
        status.desired += 1;
        let Some(pod) = oldest else { return };
        status.current += 1;
        status.updated += usize::from(self.wanted.is_current(pod));
        let has_failed = self.verdict.stopped.is_some() && self.verdict.failed.contains(&here.node.name);
        // kubectl reports no success of a stopped update before it is complete
        let is_soaking = self.verdict.stopped.is_some()
            && self.wanted.is_current(pod)
            && !self.wanted.has_stayed(pod, self.now);
        let is_available = self.is_available(pod) && !has_failed && !is_soaking;
        let is_ready = pod.ready_since.is_some();
        let status = &mut self.plan.status;
        status.ready += usize::from(is_ready);
        status.available += usize::from(is_available);
    }

    /// Keeps one pod on each node that should have one and none elsewhere, whatever their revisions.
    fn keep_one(&mut self, here: &Here<'_>, is_surging: bool) {
        let live = || here.old.iter().chain(&here.new);
        if !here.placed.keeps {
            return live().for_each(|pod| self.end(pod));
        }
        // nobody can tell whether a pod on a lost node has ended, nor whether another pod serves there
        if here.node.is_lost {
            return;
        }
        self.plan.ended.extend(
            here.all.iter().filter(|pod| pod.has_ended() && !pod.is_terminating).map(|pod| (*pod).clone()),
        );
        if here.placed.runs && here.all.is_empty() {
            if self.is_held(here) { self.restore(here) } else { self.make(here) }
        }
        for doubles in [&here.old, &here.new] {
            doubles.iter().skip(1).for_each(|pod| self.end(pod));
        }
        if let (Some(old), Some(new), false) = (here.old.first(), here.new.first(), is_surging) {
            // this happens after a surge was switched off or paused; the only pod that serves stays, whatever
            // its revision
            let serves = |pod: &Pod| pod.ready_since.is_some() || pod.has_served;
            let serves_alone = serves(new) && !serves(old);
            let is_better = self.is_available(new) && !self.is_held(here);
            let spare = if is_better || serves_alone { old } else { new };
            self.end(spare);
        }
    }

    /// Replaces old pods, with at most `most` nodes that have no serving pod.
    fn replace(&mut self, heres: &[Here<'_>], most: usize) {
        let mut budget = Budget::new(most, self.at_rest.out());
        let (mut candidates, mut unheard) = (Vec::new(), Vec::new());
        for here in heres.iter().filter(|here| here.placed.runs && !here.is_set_aside) {
            let may_serve = self.may_serve(here);
            match (here.old.first(), here.new.first()) {
                (Some(_), None) if self.is_held(here) => {
                    if self.verdict.starting.contains(&here.node.name) {
                        budget.note_out();
                    }
                }
                (Some(_), None) if may_serve && !here.maintained.is_open => self.await_window(here),
                (Some(old), None) if old.ready_since.is_some() => {
                    // a node that already pulls, or is drained, keeps its turn
                    let is_begun = self.is_asked(old) || self.is_drained(here);
                    candidates.push(((!is_begun, self.rank(old)), here));
                }
                // the node may just be back, with many others
                (Some(_), None) if may_serve => unheard.push(here),
                (Some(old), None) => {
                    self.end(old);
                    budget.note_out();
                }
                (None, Some(new)) if self.is_available(new) && !new.is_troubled(self.now) => {}
                _ => budget.note_out(),
            }
        }
        candidates.sort_by_key(|(rank, _)| *rank);
        // unheard nodes go first, because their pods may serve nobody; each uses up the budget, because it
        // may also serve
        let room = budget.room();
        let left = room.saturating_sub(unheard.len());
        let candidates = candidates.into_iter().map(|(_, here)| here).take(left);
        for here in unheard.into_iter().take(room).chain(candidates) {
            self.replace_one(here);
        }
    }

    /// Whether the old pod of a node serves, as far as the hub knows.
    fn may_serve(&mut self, here: &Here<'_>) -> bool {
        let Some(old) = here.old.first() else { return false };
        let settles = old.settles_at().filter(|at| *at > self.now);
        self.plan.next = [self.plan.next, settles].into_iter().flatten().min();
        old.ready_since.is_some() || old.has_served || settles.is_some()
    }

    fn await_window(&mut self, here: &Here<'_>) {
        let opens = here.maintained.stays.map(|stays| self.now + stays);
        self.plan.next = [self.plan.next, opens].into_iter().flatten().min();
    }

    /// Ends a serving pod once the images of its successor are on the node.
    fn replace_one(&mut self, here: &Here<'_>) {
        let Some(old) = here.old.first() else { return };
        let step = self.wanted.ahead.as_ref().map_or(Step::Unneeded, |request| request.step(old, here.node));
        match step {
            Step::Unneeded | Step::Pulled => self.end_serving(here, old),
            Step::Ask(request) => self.plan.ask.push((old.name.clone(), old.uid.clone(), Some(request))),
            Step::Silent => match old.watch.asked().unwrap_or(self.now) + ANSWERS {
                over if over <= self.now => self.end_serving(here, old),
                over => self.plan.next = Some(self.plan.next.map_or(over, |next| next.min(over))),
            },
            // wait also for a node that is slow or cannot pull: stopping its pod would not speed it up
            Step::Pulling(_) | Step::Failing(_) => {}
        }
    }

    /// Ends a pod that may serve, after its node is drained if the set wants that.
    fn end_serving(&mut self, here: &Here<'_>, old: &Pod) {
        if self.wanted.drain == Drain::Nothing {
            return self.end(old);
        }
        self.plan.drain.push((here.node.name.clone(), old.name.clone(), old.uid.clone()));
        let again = self.now + DRAINS;
        self.plan.next = Some(self.plan.next.map_or(again, |next| next.min(again)));
    }

    fn is_drained(&self, here: &Here<'_>) -> bool {
        here.node.drained_for == self.wanted.place
    }

    /// Releases nodes that were drained: the next pod is available there, or the old one stays.
    fn release(&mut self, heres: &[Here<'_>]) {
        for here in heres {
            if !self.is_drained(here) {
                continue;
            }
            let drains = self.plan.drain.iter().any(|(node, ..)| *node == here.node.name);
            let mut pods = here.old.iter().chain(&here.new);
            let serves = pods.any(|pod| self.is_available(pod) && !self.ending.contains(&pod.uid));
            if !here.placed.runs || serves && !drains {
                self.plan.release.push(here.node.name.clone());
            }
        }
    }

    fn is_asked(&self, pod: &Pod) -> bool {
        self.wanted.ahead.as_ref().is_some_and(|request| !request.is_not(&pod.ahead.asked))
    }

    /// Withdraws requests that no longer matter: for another revision, or for one that the node's pod already
    /// has.
    fn take_back(&mut self, heres: &[Here<'_>]) {
        for here in heres.iter().filter(|here| !here.is_set_aside) {
            for (pod, is_old) in
                here.old.iter().map(|pod| (pod, true)).chain(here.new.iter().map(|pod| (pod, false)))
            {
                let means_something = is_old && self.is_asked(pod);
                if pod.ahead.asked.is_empty() || means_something || self.ending.contains(&pod.uid) {
                    continue;
                }
                if !self.plan.ask.iter().any(|(_, uid, _)| *uid == pod.uid) {
                    self.plan.ask.push((pod.name.clone(), pod.uid.clone(), None));
                }
            }
        }
    }

    /// Starts a new pod beside the old one, on at most `most` nodes at a time; the old one ends once the new
    /// one is available.
    fn surge(&mut self, heres: &[Here<'_>], most: usize) {
        let mut surging = 0;
        let (mut candidates, mut unheard) = (Vec::new(), Vec::new());
        for here in heres.iter().filter(|here| here.placed.runs && !here.is_set_aside) {
            let may_serve = self.may_serve(here);
            match (here.old.first(), here.new.first()) {
                (Some(_), _) if self.is_held(here) => {}
                (Some(old), Some(new)) if self.is_available(new) && !here.node.is_lost => self.end(old),
                (Some(_), Some(_)) => surging += 1,
                // a further pod is made only after the terminating one is gone
                (Some(_), None) if here.all.len() > 1 => surging += 1,
                (Some(_), None) if may_serve && !here.maintained.is_open => self.await_window(here),
                (Some(old), None) if old.ready_since.is_some() => candidates.push((self.rank(old), here)),
                // the node may just be back, with many others: as in `replace`
                (Some(_), None) if may_serve => unheard.push(here),
                (Some(_), None) => self.make(here),
                (None, _) => {}
            }
        }
        candidates.sort_by_key(|(rank, _)| *rank);
        let candidates = candidates.into_iter().map(|(_, here)| here);
        for here in unheard.into_iter().chain(candidates).take(most.saturating_sub(surging)) {
            self.make(here);
        }
    }

    fn is_held(&self, here: &Here<'_>) -> bool {
        self.verdict.hold.holds(&here.node.name)
    }

    /// The order of replacing: pods that are not yet available, then those of a revision that was never
    /// complete, so that a series of bad updates stays on the nodes that already have one.
    fn rank(&self, old: &Pod) -> (bool, bool) {
        (self.is_available(old) && !old.is_troubled(self.now), self.wanted.is_proven(old))
    }

    fn make(&mut self, here: &Here<'_>) {
        self.plan.make.push((self.wanted.pod_name(&here.node.name, &here.all), here.node.name.clone()));
    }

    /// Gives a node that must not get the current revision a pod of the proven one, if the proven one fits
    /// there.
    fn restore(&mut self, here: &Here<'_>) {
        let runs = |proven: &Proven| placing::place(&proven.spec, here.node).runs;
        if self.wanted.proven.as_ref().is_some_and(runs) {
            let name = self.wanted.pod_name(&here.node.name, &here.all);
            self.plan.restore.push((name, here.node.name.clone()));
        }
    }

    fn end(&mut self, pod: &Pod) {
        if self.ending.insert(pod.uid.clone()) {
            self.plan.end.push((pod.name.clone(), pod.uid.clone()));
        }
    }

    fn available_at(&self, pod: &Pod) -> Option<Duration> {
        self.wanted.available_at(pod)
    }

    fn is_available(&self, pod: &Pod) -> bool {
        self.wanted.is_available(pod, self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::NODE;
    use crate::object::Object;
    use serde_json::json;

    fn node(name: &str, ready: &str) -> Node {
        let status = json!({"conditions": [{"type": "Ready", "status": ready}]});
        Node::read(&Object::new(&NODE, &json!({"metadata": {"name": name}, "status": status}), 1).unwrap())
    }

    fn nodes(names: &[&str]) -> Vec<Node> {
        names.iter().map(|name| node(name, "True")).collect()
    }

    fn wanted(unavailable: Value, surge: Value) -> Wanted {
        Wanted {
            name: "d".into(),
            spec: json!({}),
            hash: "new".into(),
            generation: "2".into(),
            min_ready: Duration::from_secs(10),
            stays: Duration::ZERO,
            strategy: Strategy::Rolling { unavailable, surge },
            is_rolling: true,
            proven: None,
            minds_failures: true,
            ahead: None,
            drain: Drain::Nothing,
            place: "n/d".into(),
        }
    }

    /// A pod `node:hash:state`, with a name of its own if `node` has a suffix. States: ok (available), ready
    /// (since just now), no, unheard (ready before its node was lost), ending, failed.
    fn pods(texts: &[&str]) -> Vec<Pod> {
        let read = |(index, text): (usize, &&str)| {
            let parts: Vec<&str> = text.split(':').collect();
            let [node, hash, state] = parts[..] else { panic!("{text}") };
            let name = format!("{node}-{hash}-{index}");
            let since = match state {
                "ok" => Some(0),
                "ready" => Some(95),
                _ => None,
            };
            Pod {
                uid: name.clone(),
                name,
                node: node.into(),
                hash: hash.into(),
                generation: String::new(),
                created: format!("2026-01-01T00:00:{index:02}Z"),
                ready_since: since.map(|_| "t".into()),
                has_served: since.is_some() || state == "unheard",
                phase: if state == "failed" { "Failed" } else { "Running" }.into(),
                trouble: None,
                misfit: String::new(),
                is_terminating: state == "ending",
                controller: "u".into(),
                ahead: ahead::OfPod::default(),
                ready_at: since.map(Duration::from_secs),
                watch: Watch::default(),
            }
        };
        texts.iter().enumerate().map(read).collect()
    }

    const WALL: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

    fn planned(wanted: &Wanted, nodes: &[Node], texts: &[&str]) -> Plan {
        let pods = pods(texts);
        let (nodes, pods): (Vec<&Node>, Vec<&Pod>) = (nodes.iter().collect(), pods.iter().collect());
        let heres = gather(wanted, &nodes, &pods, WALL);
        plan(wanted, &Verdict::default(), &heres, AtRest::default(), Duration::from_secs(100))
    }

    /// Nodes on which pods are made, and the pods that are ended.
    #[track_caller]
    fn check(wanted: &Wanted, nodes: &[Node], texts: &[&str], made: &[&str], ended: &[&str]) {
        let plan = planned(wanted, nodes, texts);
        let on: Vec<&str> = plan.make.iter().map(|(_, node)| node.as_str()).collect();
        let gone: Vec<&str> = plan.end.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((&on[..], &gone[..]), (made, ended), "{texts:?}");
    }

    #[test]
    fn nodes_that_are_back_are_updated_within_the_budget() {
        let three = nodes(&["a", "b", "c"]);
        let one = wanted(json!(1), json!(0));
        check(&one, &three, &["a:old:unheard", "b:old:unheard", "c:old:ok"], &[], &["a-old-0"]);
        check(&one, &three, &["a:old:ok", "b:old:ok", "c:old:unheard"], &[], &["c-old-2"]);
        check(&one, &three, &["a:old:unheard", "b:new:no", "c:old:unheard"], &[], &[]);
        let two = wanted(json!(2), json!(0));
        check(&two, &three, &["a:old:ok", "b:old:ok", "c:old:unheard"], &[], &["c-old-2", "a-old-0"]);
        // a pod that its own node reports as not ready serves nobody
        check(&one, &three, &["a:old:no", "b:old:no", "c:old:ok"], &[], &["a-old-0", "b-old-1"]);
    }

    /// This is the state after a power cut of all nodes.
    #[test]
    fn pods_that_have_just_lost_readiness_stay_in_the_budget() {
        let three = nodes(&["a", "b", "c"]);
        let now = Duration::from_secs(100);
        let ended = |wanted: &Wanted, unready: u64, trouble: Option<Trouble>| {
            let mut pods = pods(&["a:old:no", "b:old:no", "c:old:no"]);
            for pod in &mut pods {
                (pod.ready_since, pod.trouble) = (None, trouble);
                pod.watch =
                    Watch::default().next(pod, None, Duration::ZERO, now - Duration::from_secs(unready));
            }
            let heres =
                gather(wanted, &three.iter().collect::<Vec<_>>(), &pods.iter().collect::<Vec<_>>(), WALL);
            let plan = plan(wanted, &Verdict::default(), &heres, AtRest::default(), now);
            (plan.end.len() + plan.make.len(), plan.next.map(|next| next.as_secs()))
        };
        for one in [wanted(json!(1), json!(0)), wanted(json!(0), json!(1))] {
            assert_eq!(ended(&one, 0, None), (1, Some(160)));
            assert_eq!(ended(&one, 59, None), (1, Some(101)));
            assert_eq!(ended(&one, 60, None), (3, None));
            assert_eq!(ended(&one, 0, Some(Trouble::Crashes)), (3, None));
        }
    }

    #[test]
    fn nodes_that_are_back_surge_within_the_budget() {
        let three = nodes(&["a", "b", "c"]);
        let one = wanted(json!(0), json!(1));
        check(&one, &three, &["a:old:unheard", "b:old:unheard", "c:old:ok"], &["a"], &[]);
        check(&one, &three, &["a:old:ok", "b:old:ok", "c:old:unheard"], &["c"], &[]);
        check(&one, &three, &["a:old:unheard", "b:old:ok", "b:new:no", "c:old:unheard"], &[], &[]);
        let two = wanted(json!(0), json!(2));
        check(&two, &three, &["a:old:ok", "b:old:ok", "c:old:unheard"], &["c", "a"], &[]);
        // a pod that its own node reports as not ready serves nobody
        check(&one, &three, &["a:old:no", "b:old:no", "c:old:ok"], &["a", "b", "c"], &[]);
    }

    #[test]
    fn pod_marked_by_the_hub_has_served() {
        let check = |gates: Value, conditions: &[(&str, &str)], expect: bool| {
            let conditions: Vec<Value> =
                conditions.iter().map(|(sort, status)| json!({"type": sort, "status": status})).collect();
            let pod =
                Pod::read(&json!({"spec": {"readinessGates": gates}, "status": {"conditions": conditions}}));
            assert_eq!((pod.has_served, pod.ready_since.is_some()), (expect, false), "{conditions:?}");
        };
        let gates = json!([{"conditionType": "door"}]);
        check(json!(null), &[("Ready", "False"), ("ContainersReady", "True")], true);
        check(json!(null), &[("Ready", "False"), ("ContainersReady", "False")], false);
        check(json!(null), &[("Ready", "False")], false);
        check(gates.clone(), &[("Ready", "False"), ("ContainersReady", "True"), ("door", "False")], false);
        check(gates, &[("Ready", "False"), ("ContainersReady", "True"), ("door", "True")], true);
    }

    #[test]
    fn each_node_gets_one_pod_and_keeps_the_oldest() {
        let rolling = wanted(json!(1), json!(0));
        let two = nodes(&["a", "b"]);
        check(&rolling, &two, &[], &["a", "b"], &[]);
        check(&rolling, &two, &["a:new:ok"], &["b"], &[]);
        check(&rolling, &two, &["a:new:ok", "a:new:ok", "b:new:ok"], &[], &["a-new-1"]);
        // as after a second update under a surge: upstream would end the serving pod
        check(&rolling, &two, &["a:old:no", "a:old:ok", "b:new:no"], &[], &["a-old-0"]);
        // as after a partition in the middle of a surge: the younger pod serves, though its node has not
        // reported so yet
        check(&rolling, &two, &["a:old:no", "a:old:unheard", "b:new:no"], &[], &["a-old-0"]);
        // as after a pause in the middle of a surge: the new pod is not available yet, but the only serving
        // one
        check(&rolling, &two, &["a:old:no", "a:new:ready", "b:new:ok"], &[], &["a-old-0"]);
        check(&rolling, &two, &["a:old:ok", "a:new:ready", "b:new:ok"], &[], &["a-new-1"]);
        // not before the previous pod is gone
        check(&rolling, &two, &["a:new:ok", "b:old:ending"], &[], &[]);
        check(&rolling, &two, &["a:new:ok", "b:new:failed"], &[], &[]);
        let failed = planned(&rolling, &two, &["a:new:ok", "b:new:failed"]).ended;
        assert_eq!(failed.len(), 1);
        // pods of a node that does not exist are another controller's task
        check(&rolling, &two, &["a:new:ok", "b:new:ok", "gone:new:ok"], &[], &[]);
    }

    #[test]
    fn budget_bounds_what_does_not_serve() {
        let three = nodes(&["a", "b", "c"]);
        let all_old = ["a:old:ok", "b:old:ok", "c:old:ok"];
        let one = wanted(json!(1), json!(0));
        check(&one, &three, &all_old, &[], &["a-old-0"]);
        check(&wanted(json!("34%"), json!(0)), &three, &all_old, &[], &["a-old-0", "b-old-1"]);
        check(&wanted(json!("0%"), json!("0%")), &three, &all_old, &[], &["a-old-0"]);
        // one pod is missing already: terminating, gone, or new and not yet available
        check(&one, &three, &["a:old:ending", "b:old:ok", "c:old:ok"], &[], &[]);
        check(&one, &three, &["b:old:ok", "c:old:ok"], &["a"], &[]);
        check(&one, &three, &["a:new:no", "b:old:ok", "c:old:ok"], &[], &[]);
        check(&one, &three, &["a:new:ready", "b:old:ok", "c:old:ok"], &[], &[]);
        check(&one, &three, &["a:new:ok", "b:old:ok", "c:old:ok"], &[], &["b-old-1"]);
        // pods that do not serve are replaced at once, and use up the budget
        check(&one, &three, &["a:old:ok", "b:old:no", "c:old:no"], &[], &["b-old-1", "c-old-2"]);
        check(
            &wanted(json!(3), json!(0)),
            &three,
            &["a:old:ok", "b:old:no", "c:old:ok"],
            &[],
            &["b-old-1", "a-old-0", "c-old-2"],
        );
    }

    #[test]
    fn second_update_soon_after_the_first_stays_within_the_budget() {
        let three = nodes(&["a", "b", "c"]);
        check(
            &wanted(json!(1), json!(0)),
            &three,
            &["a:old:ready", "b:old:ready", "c:old:ready"],
            &[],
            &["a-old-0"],
        );
        check(
            &wanted(json!(1), json!(0)),
            &three,
            &["a:old:ok", "b:old:ok", "c:old:ready"],
            &[],
            &["c-old-2"],
        );
    }

    #[test]
    fn revision_that_was_never_complete_is_replaced_first() {
        let proven = Proven {
            name: "d-old".into(),
            hash: "old".into(),
            template: json!({}),
            spec: json!({}),
            was_complete: true,
        };
        let one = Wanted { proven: Some(proven), ..wanted(json!(1), json!(0)) };
        let three = nodes(&["a", "b", "c"]);
        check(&one, &three, &["a:old:ok", "b:old:ok", "c:bad:ok"], &[], &["c-bad-2"]);
        check(&one, &three, &["a:old:ready", "b:old:ok", "c:bad:ok"], &[], &["a-old-0"]);
        let surging = Wanted { strategy: wanted(json!(0), json!(1)).strategy, ..one };
        check(&surging, &three, &["a:old:ok", "b:old:ok", "c:bad:ok"], &["c"], &[]);
    }

    #[test]
    fn held_pod_that_still_starts_uses_up_the_budget() {
        let (one, two) = (wanted(json!(1), json!(0)), nodes(&["a", "b"]));
        let pods = pods(&["a:old:ok", "b:old:no"]);
        let heres = gather(&one, &two.iter().collect::<Vec<_>>(), &pods.iter().collect::<Vec<_>>(), WALL);
        let ended = |starting: &[&str]| {
            let verdict = Verdict {
                hold: Hold::Others(["a".to_owned()].into()),
                starting: starting.iter().map(|node| (*node).to_owned()).collect(),
                ..Verdict::default()
            };
            let plan = plan(&one, &verdict, &heres, AtRest::default(), Duration::from_secs(100));
            plan.end.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(ended(&["b"]), [""; 0]);
        assert_eq!(ended(&[]), ["a-old-0"], "what is not ready for long holds up no canary");
    }

    #[test]
    fn surge_starts_the_new_pod_beside_the_old() {
        let three = nodes(&["a", "b", "c"]);
        let one = wanted(json!(0), json!(1));
        check(&one, &three, &["a:old:ok", "b:old:ok", "c:old:ok"], &["a"], &[]);
        check(&one, &three, &["a:old:ok", "a:new:no", "b:old:ok", "c:old:ok"], &[], &[]);
        check(&one, &three, &["a:old:ok", "a:new:ready", "b:old:ok", "c:old:ok"], &[], &[]);
        check(&one, &three, &["a:old:ok", "a:new:ok", "b:old:ok", "c:old:ok"], &["b"], &["a-old-0"]);
        check(&one, &three, &["a:old:no", "b:old:ok", "c:old:ok"], &["a", "b"], &[]);
        check(&one, &three, &["a:new:ok", "b:new:ok", "c:new:ok"], &[], &[]);
        // the strategy was changed between
        check(
            &wanted(json!(1), json!(0)),
            &three,
            &["a:old:ok", "a:new:no", "b:new:ok", "c:new:ok"],
            &[],
            &["a-new-1"],
        );
    }

    #[test]
    fn names_alternate_only_beside_another_pod() {
        let one = wanted(json!(0), json!(1));
        let first = one.pod_name("a", &[]);
        let taken = pods(&["a:old:ok"]);
        let named = Pod { name: first.clone(), ..taken[0].clone() };
        let second = one.pod_name("a", &[&named]);
        assert_eq!(second, format!("{first}-s"));
        assert_eq!(one.pod_name("a", &[&Pod { name: second, ..named }]), first);
        assert_ne!(one.pod_name("b", &[]), first);
        let long = Wanted { name: "d.".repeat(120), ..one };
        assert_eq!(long.pod_name("a", &[]).len() + SURGE_SUFFIX.len(), 62);
    }

    #[test]
    fn pods_of_many_nodes_have_different_names() {
        let one = wanted(json!(1), json!(0));
        let names: BTreeSet<String> =
            (0..200_000).map(|node| one.pod_name(&format!("node-{node}"), &[])).collect();
        assert_eq!(names.len(), 200_000);
    }

    #[test]
    fn node_lost_before_the_update_is_set_aside() {
        let rolling = wanted(json!(1), json!(0));
        let fleet = [node("a", "Unknown"), node("b", "True"), node("c", "Unknown")];
        check(&rolling, &fleet, &["a:old:no", "b:old:ok"], &[], &["b-old-1"]);
        let status = planned(&rolling, &fleet, &["a:old:no", "b:old:ok"]).status;
        assert_eq!((status.desired, status.set_aside, status.current), (1, 2, 1));
        // when it is back, it is treated like any other node
        let back = [node("a", "True"), node("b", "True")];
        check(&rolling, &back, &["a:old:no", "b:new:ok"], &[], &["a-old-0"]);
        // a node that was lost with the new revision uses up the budget
        let lost = [node("a", "Unknown"), node("b", "True")];
        check(&rolling, &lost, &["a:new:no", "b:old:ok"], &[], &[]);
        assert_eq!(planned(&rolling, &lost, &["a:new:no", "b:old:ok"]).status.desired, 2);
    }

    #[test]
    fn status_counts_as_upstream() {
        let rolling = Wanted { spec: json!({"nodeName": "a"}), ..wanted(json!(1), json!(0)) };
        let plan = planned(&rolling, &nodes(&["a", "b"]), &["a:old:ready", "a:new:ok", "b:old:ok"]);
        let expect = Status {
            current: 1,
            misscheduled: 1,
            desired: 1,
            ready: 1,
            updated: 0,
            available: 0,
            set_aside: 0,
        };
        assert_eq!((plan.status, plan.next), (expect, Some(Duration::from_secs(105))));
    }

    #[test]
    fn on_delete_replaces_nothing_by_itself() {
        let set = Wanted { strategy: Strategy::OnDelete, ..wanted(json!(1), json!(0)) };
        check(&set, &nodes(&["a", "b"]), &["a:old:no"], &["b"], &[]);
    }

    #[test]
    fn pods_leave_nodes_that_do_not_match_any_more() {
        let set = Wanted { spec: json!({"nodeSelector": {"x": "y"}}), ..wanted(json!(1), json!(0)) };
        check(&set, &nodes(&["a"]), &["a:new:ok"], &[], &["a-new-0"]);
    }
}
