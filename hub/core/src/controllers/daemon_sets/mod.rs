//! DaemonSets: a pod on each node that matches, kept up to date within its budget.
//!
//! Inputs: DaemonSet, ControllerRevision, Pod, Node. Outputs: DaemonSet (its status), ControllerRevision,
//! Pod, Event. Semantics are those of apps/v1 and of its design document; `update` and
//! docs/guides/rollouts.md list the differences. Always holds: each decision is made from the stored objects,
//! so a hub that was killed continues where it was. Times are of the hub's monotonic clock, so after a
//! restart of the hub every pod starts with a ready time of zero. A step reads only the pods and nodes that
//! changed (`known`), and judges individually only nodes that need more than being counted (`rest`). Leaves
//! to others: history (`history`), placing (`placing`), which pods are made and ended (`update`), how far an
//! update may go (`rollout`), deleting a set's objects (`garbage`).

mod ahead;
mod drain;
mod history;
mod known;
mod rest;
mod rollout;
mod update;
mod view;
#[cfg(test)]
mod whole;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::controller::{Action, Controller, Decision, Done, Edit, Level, Line, Now, Task, World};
use super::placing::{self, Node};
use super::record::{self, About, What};
use super::rolling::recorded;
use super::rolling::telling::{Deed, Telling};
use crate::api_error::ApiError;
use crate::kinds::daemon_set::{TEMPLATE_GENERATION, selects};
use crate::kinds::{CONTROLLER_REVISION, DAEMON_SET, EVENT, Kind, NODE, POD};
use crate::object::{Event, Object};
use crate::requests::DeleteOptions;
use crate::state::Require;
use crate::value::{condition, rfc3339, set_condition, span, text};
use history::{Current, Revision, Step};
pub(super) use history::{short, unique};
use kedge_api::PULL_AHEAD_ANNOTATION;
use known::{Known, Owner, Sort};
use rest::{Basis, Ended, Rows};
pub(crate) use rollout::complaints;
use rollout::{Failures, Judge, Settings, Verdict};
use update::{Plan, Pod, Proven, Strategy, Wanted};
pub use view::{phase, view};
use words::{GENERATION, PAUSED};

static INPUTS: &[&Kind] = &[&DAEMON_SET, &CONTROLLER_REVISION, &POD, &NODE];
static OUTPUTS: &[&Kind] = &[&DAEMON_SET, &CONTROLLER_REVISION, &POD, &NODE, &EVENT];

/// Annotation with the number of nodes that are set aside; absent for zero.
const SET_ASIDE: &str = "kedge.dev/set-aside";
/// Pause before a pod that ended is replaced, doubled with each that ends; upstream's.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(15 * 60);
/// Pause after the store refused a write.
const REFUSED: Duration = Duration::from_secs(5);
/// How long a revision that has the same template as another one is kept. A client that made it may read or
/// delete it next, as a conformance test of Kubernetes does, and must still find it.
const DOUBLE_STAYS: Duration = Duration::from_secs(2);
/// Most messages remembered as recorded: annotations may change without end in one generation of a set. Above
/// this limit some messages are recorded again.
const TOLD: usize = 64;
/// Most pods of a set that are made or ended in one step.
const AT_ONCE: usize = 250;
/// Most sets in one step.
const SETS_PER_STEP: usize = 16;
/// After a longer stall of the hub, in which no pod could report, its duration does not count as waiting for
/// a pod.
const STALL: Duration = Duration::from_secs(5);

/// Defaults for sets without the annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defaults {
    /// A pod is stopped only after the images of its successor are on its node.
    pub pre_pull: bool,
}

impl Default for Defaults {
    fn default() -> Defaults {
        Defaults { pre_pull: true }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct DaemonSets {
    defaults: Defaults,
    /// Namespace and name of the sets to look at.
    queue: BTreeSet<(String, String)>,
    sets: BTreeMap<(String, String), Set>,
    /// Nodes as they were last read.
    nodes: BTreeMap<Box<str>, (u64, Node)>,
    /// Nodes that changed since they were read; `None`: all are to be read.
    changed_nodes: Option<BTreeSet<Box<str>>>,
    /// Nodes that are drained, and the set that each is drained for.
    drained: BTreeMap<Box<str>, String>,
    /// Sets to look at again at a given time, even if nothing changes.
    due: BTreeMap<(String, String), Duration>,
    log: Vec<Line>,
    /// How many nodes were judged.
    #[cfg(test)]
    pub(super) judged: usize,
    /// Skips the comparison of each look with a look at all nodes, so that the cost of a look can be
    /// measured.
    #[cfg(test)]
    pub(super) is_measured: bool,
}

/// State of a set that is kept between two looks; all of it may be lost.
#[derive(Debug, Default)]
struct Set {
    uid: String,
    known: Known,
    rows: Rows,
    failures: Failures,
    /// Messages of Events about the rollout that were recorded, of one generation of the set.
    told: (i64, BTreeSet<String>),
    /// The pods that ended by themselves, by node; at most one for each existing node.
    ended: BTreeMap<String, Ended>,
    /// The set has to look for pods and revisions without a controller to adopt: any, or at least the named
    /// ones.
    looks_for_orphans: bool,
    strays: BTreeSet<(Sort, Box<str>)>,
    /// The revisions that duplicate another one's template, and when each was first seen.
    doubles: BTreeMap<String, Duration>,
    telling: Telling,
}

/// The condition of a set whose pods do not fit some of its nodes.
const MISFITS: &str = "PodsDoNotFit";
/// Nodes in the message of that condition.
const NAMED: usize = 5;
const MAKE_A_POD: &str = "make a pod";

/// The purpose of an action: the set that it is for.
#[derive(Debug)]
pub struct Purpose {
    set: (String, String),
    uid: String,
    revision: u64,
    /// The text for the log if the store refuses; `None` for an Event, which is not worth a line.
    tries: Option<String>,
    /// The pod of which an Event reports once this action is done.
    deed: Option<(Deed, String)>,
    /// The pod or revision that it writes.
    writes: Option<(Sort, String)>,
}

impl Controller for DaemonSets {
    type Purpose = Purpose;
    const NAME: &'static str = "daemonsets";
    const SWEEP: Option<Duration> = Some(Duration::from_secs(300));
    const AT_ONCE: usize = 64;
    const MINDS_STALLS: bool = true;

    fn inputs() -> &'static [&'static Kind] {
        INPUTS
    }

    fn outputs() -> &'static [&'static Kind] {
        OUTPUTS
    }

    /// A node reports often, but the fields that decide about its pods change rarely.
    fn concerns(kind: &'static Kind, event: &Event) -> bool {
        match (&event.old, &event.new) {
            (Some(old), Some(new)) if kind.kind == NODE.kind => Node::read(old) != Node::read(new),
            _ => true,
        }
    }

    fn observe(&mut self, kind: &'static Kind, event: &Event) {
        let object = event.object();
        let at = (object.namespace.to_string(), object.name.to_string());
        if kind.kind == DAEMON_SET.kind {
            self.queue.insert(at);
        } else if kind.kind == NODE.kind {
            if let Some(changed) = &mut self.changed_nodes {
                changed.insert(object.name.as_ref().into());
            }
            self.queue.extend(self.sets.keys().cloned());
        } else if let Some(sort) = Sort::of(kind) {
            self.observe_owned(sort, event);
        }
    }

    fn sweep(&mut self, world: &dyn World) {
        let known: BTreeSet<_> = world.list(&DAEMON_SET, "").iter().map(|set| place_of(set)).collect();
        self.sets.retain(|set, _| known.contains(set));
        self.due.retain(|set, _| known.contains(set));
        for set in self.sets.values_mut() {
            set.looks_for_orphans = true;
            set.known.note_gap();
            set.rows = Rows::default();
        }
        self.changed_nodes = None;
        self.queue = known;
    }

    fn reconcile(&mut self, world: &dyn World, now: Now) -> Decision<Purpose> {
        let due: Vec<_> =
            self.due.iter().filter(|(_, at)| **at <= now.running).map(|(set, _)| set.clone()).collect();
        self.queue.extend(due);
        let stalled = now.stalled.max(now.disk_stalled);
        if stalled > STALL {
            self.sets.values_mut().for_each(|set| set.known.shift(stalled, now.running));
        }
        let mut tasks = Vec::new();
        if !(self.queue.is_empty() && self.drained.is_empty()) {
            self.read_nodes(world);
        }
        for _ in 0..SETS_PER_STEP {
            let Some(at) = self.queue.pop_first() else { break };
            self.due.remove(&at);
            tasks.extend(self.reconcile_one(world, &at, now));
        }
        tasks.extend(self.forsaken(world));
        let next = self.due.values().min().copied();
        Decision { tasks, guarded: None, more: !self.queue.is_empty(), next }
    }

    fn performed(
        &mut self,
        purpose: Purpose,
        outcome: Result<Done, ApiError>,
        now: Now,
    ) -> Vec<Task<Purpose>> {
        // the event of this write may arrive after the next step
        if let (Some(set), Some((sort, name))) = (self.sets.get_mut(&purpose.set), &purpose.writes) {
            set.known.note_change(*sort, name);
        }
        let summary = self.count(&purpose, outcome.is_ok(), now);
        let Err(error) = outcome else { return summary.into_iter().collect() };
        let Some(tries) = &purpose.tries else { return Vec::new() };
        // another client was faster, or an older pod still exists: the change arrives as an event, or the
        // next sweep finds it
        if !matches!(error.code, 404 | 409) {
            let (namespace, name) = &purpose.set;
            self.log.push((
                Level::Warning,
                format!("DaemonSet {namespace}/{name}: cannot {tries}: {error}; trying again"),
            ));
        }
        // refused by Pod Security, or because its service account does not exist
        let is_forbidden = error.code == 403 && tries == MAKE_A_POD;
        let told = is_forbidden.then(|| forbidden(&purpose.set, &purpose.uid, &error.message, now));
        self.look_again(purpose.set, now.running + REFUSED);
        summary.into_iter().chain(told).collect()
    }

    fn take_log(&mut self, _: Now) -> Vec<Line> {
        std::mem::take(&mut self.log)
    }
}

impl DaemonSets {
    pub fn new(defaults: Defaults) -> DaemonSets {
        DaemonSets { defaults, ..DaemonSets::default() }
    }

    /// How many nodes have a pause, and how many messages are remembered as recorded.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> (usize, usize) {
        let all = |count: fn(&Set) -> usize| self.sets.values().map(count).sum();
        (all(|set| set.ended.len()), all(|set| set.told.1.len()))
    }

    /// Notes the store's answer about a pod; after the last answer returns the Event about all of them.
    fn count(&mut self, purpose: &Purpose, is_done: bool, now: Now) -> Option<Task<Purpose>> {
        let (deed, name) = purpose.deed.as_ref()?;
        let telling = &mut self.sets.get_mut(&purpose.set)?.telling;
        let told = telling.answered(*deed, name, is_done, now.running);
        if let Some(next) = telling.next() {
            self.look_again(purpose.set.clone(), next);
        }
        let (sort, reason, message) = told?;
        Some(event(&purpose.set, &purpose.uid, purpose.revision, (sort, reason, &message), now))
    }

    fn look_again(&mut self, set: (String, String), at: Duration) {
        let due = self.due.entry(set).or_insert(at);
        *due = at.min(*due);
    }

    /// Queues the sets that own a pod or revision, or that may be looking for it.
    fn observe_owned(&mut self, sort: Sort, event: &Event) {
        let object = event.object();
        let owners: BTreeSet<&str> = [&event.old, &event.new]
            .into_iter()
            .flatten()
            .flat_map(|object| object.owners.iter())
            .map(|uid| &**uid)
            .collect();
        for (at, set) in &mut self.sets {
            let is_owner = owners.contains(set.uid.as_str());
            let is_orphan = owners.is_empty() && *at.0 == *object.namespace;
            if is_owner {
                set.known.note_change(sort, &object.name);
            } else if is_orphan && !set.looks_for_orphans {
                set.strays.insert((sort, object.name.as_ref().into()));
            }
            if is_owner || is_orphan {
                self.queue.insert(at.clone());
            }
        }
    }

    /// Reads the nodes that changed.
    fn read_nodes(&mut self, world: &dyn World) {
        let mut changed = BTreeSet::new();
        if let Some(names) = self.changed_nodes.replace(BTreeSet::new()) {
            for name in names {
                match world.get(&NODE, "", &name) {
                    Some(object) => {
                        _ = self.nodes.insert(name.clone(), (object.revision, Node::read(&object)))
                    }
                    None => _ = self.nodes.remove(&name),
                }
                changed.insert(name);
            }
        } else {
            let mut before = std::mem::take(&mut self.nodes);
            for object in world.list(&NODE, "") {
                let name: Box<str> = object.name.as_ref().into();
                let known = before.remove(&name).filter(|(revision, _)| *revision == object.revision);
                let read = known.unwrap_or_else(|| {
                    changed.insert(name.clone());
                    (object.revision, Node::read(&object))
                });
                self.nodes.insert(name, read);
            }
            changed.extend(before.into_keys());
        }
        for name in &changed {
            match self.nodes.get(name).map(|(_, node)| &node.drained_for).filter(|set| !set.is_empty()) {
                Some(set) => drop(self.drained.insert(name.clone(), set.clone())),
                None => drop(self.drained.remove(name)),
            }
        }
        self.sets.values_mut().for_each(|set| set.rows.nodes_changed(&changed));
    }

    /// Releases the nodes that are drained for a set which is gone, or selects them no longer.
    fn forsaken(&self, world: &dyn World) -> Vec<Task<Purpose>> {
        let mut tasks = Vec::new();
        for (node, place) in &self.drained {
            let (namespace, name) = place.split_once('/').unwrap_or_default();
            let at = (namespace.to_owned(), name.to_owned());
            let is_there = world.get(&DAEMON_SET, namespace, name).is_some_and(|set| !set.terminating);
            let is_row = self.sets.get(&at).is_none_or(|set| set.rows.has(node));
            if !is_there || !is_row {
                let writes = None;
                let (uid, tries) = (String::new(), Some(drain::UNCORDON.to_owned()));
                let purpose = Purpose { set: at, uid, revision: 0, tries, deed: None, writes };
                tasks.push(Task { purpose, action: drain::uncordon(node, place) });
            }
        }
        tasks
    }

    fn reconcile_one(&mut self, world: &dyn World, at: &(String, String), now: Now) -> Vec<Task<Purpose>> {
        let Some(object) = world.get(&DAEMON_SET, &at.0, &at.1) else {
            self.sets.remove(at);
            return Vec::new();
        };
        let set = self.sets.entry(at.clone()).or_default();
        if set.uid != *object.uid {
            *set = Set { uid: object.uid.to_string(), looks_for_orphans: true, ..Set::default() };
        }
        // the garbage collector takes care of the objects of a deleted set
        if object.terminating {
            return Vec::new();
        }
        let look = Look { world, at, value: object.value(), revision: object.revision, now };
        let spec = &look.value["spec"];
        let (selector, min_ready) = (&spec["selector"], min_ready(spec));
        let owner = Owner { namespace: &at.0, uid: &set.uid, selector, min_ready };
        set.known.read(world, &owner, now.running);
        let adopted = look.adopt(set);
        if !adopted.is_empty() {
            return adopted;
        }
        let mut live = set.known.live();
        let revisions = &set.known.revisions;
        let proven = proven(&look.value, revisions, &live);
        live.extend(proven.iter().map(|proven| proven.hash.clone()));
        let limit = look.value["spec"]["revisionHistoryLimit"].as_i64().unwrap_or(10);
        match history::step(&look.value["spec"]["template"], revisions, limit, &live) {
            Step::Make { number, surplus } => {
                let mut tasks = vec![look.make_revision(number)];
                tasks.extend(look.forget(revisions, &surplus));
                tasks
            }
            Step::Keep { current, renumber, doubles, surplus } => {
                let (doubles, next_double) = due_doubles(&mut set.doubles, doubles, now.running);
                let mut tasks = look.tidy(set, &current, renumber, &doubles, &surplus);
                let Some(revision) = revisions.iter().find(|one| one.name == current.name).cloned() else {
                    return tasks;
                };
                let minds_failures = minds_failures(&revision, renumber.is_some(), proven.as_ref(), &live);
                let settings = Settings::read(&look.value);
                let wanted = wanted(&look.value, &settings, current, proven, minds_failures, self.defaults);
                set.rows.pods_changed(set.known.take_touched());
                let by = Basis {
                    nodes: &self.nodes,
                    known: &set.known,
                    wanted: &wanted,
                    settings: &settings,
                    failures: &set.failures,
                    ended: &set.ended,
                    now: now.running,
                    wall: now.wall,
                };
                set.rows.refresh(&by);
                let (mut heres, mut at_rest) = (set.rows.awake(&by), set.rows.at_rest());
                let judge = Judge {
                    settings: &settings,
                    wanted: &wanted,
                    current: &revision,
                    is_renumbered: renumber.is_some(),
                    is_shown: shows_success(&look.value),
                    heres: &heres,
                    at_rest,
                    now: now.running,
                };
                let mut failures = set.failures.clone();
                let mut verdict = judge.judge(&mut failures);
                let room = update::room(&wanted, &verdict, heres.len(), &at_rest);
                set.rows.add_outdated(room, &mut heres, &mut at_rest, &by);
                let plan = update::plan(&wanted, &verdict, &heres, at_rest, now.running);
                #[cfg(test)]
                {
                    self.judged += heres.len();
                    let found = whole::Found {
                        current: &revision,
                        is_renumbered: renumber.is_some(),
                        is_shown: shows_success(&look.value),
                        verdict: &verdict,
                        plan: &plan,
                        failures: &failures,
                        next: set.rows.next(),
                    };
                    (!self.is_measured).then(|| whole::compare(world, &set.uid, &by, &found));
                }
                set.failures = failures;
                let woken = set.rows.next();
                verdict.events.extend(
                    settings.wrong.iter().map(|message| ("Warning", "InvalidAnnotation", message.clone())),
                );
                tasks.extend(look.remember(set, &revision, &verdict));
                let proven = wanted.proven.as_ref().filter(|_| verdict.rolls_back);
                tasks.extend(proven.into_iter().flat_map(|proven| look.roll_back(set, &revision, proven)));
                set.ended.retain(|node, _| self.nodes.contains_key(node.as_str()));
                let next = look.carry_out(set, &wanted, &verdict, &plan, &mut tasks);
                set.rows.keep(wanted, settings);
                if let Some(next) = [next, verdict.next, woken, next_double].into_iter().flatten().min() {
                    self.look_again(at.clone(), next);
                }
                tasks
            }
        }
    }
}

/// The template and revision that a pod is made from.
struct Source<'a> {
    template: &'a Value,
    spec: &'a Value,
    hash: &'a str,
    generation: &'a str,
}

/// One look at one set.
struct Look<'a> {
    world: &'a dyn World,
    at: &'a (String, String),
    value: Value,
    revision: u64,
    now: Now,
}

impl Look<'_> {
    fn task(&self, tries: &str, action: Action) -> Task<Purpose> {
        let (set, uid, revision, writes) = (self.at.clone(), self.uid(), self.revision, written(&action));
        let purpose = Purpose { set, uid, revision, tries: Some(tries.to_owned()), deed: None, writes };
        Task { purpose, action }
    }

    /// Adopts pods and revisions that the set selects and nobody controls, and releases pods that it no
    /// longer selects.
    fn adopt(&self, set: &mut Set) -> Vec<Task<Purpose>> {
        let selector = &self.value["spec"]["selector"];
        let mut tasks = Vec::new();
        let uid = set.uid.clone();
        for pod in set.known.strangers() {
            tasks.push(self.own(&POD, &pod.name, &pod.uid, &uid, false));
        }
        let strays = std::mem::take(&mut set.strays);
        let orphans: Vec<(Sort, Arc<Object>)> = match std::mem::take(&mut set.looks_for_orphans) {
            true => {
                let all = |sort: Sort| {
                    self.world.list(sort.kind(), &self.at.0).into_iter().map(move |one| (sort, one))
                };
                [Sort::Pod, Sort::Revision].into_iter().flat_map(all).collect()
            }
            false => {
                let found = |(sort, name): (Sort, Box<str>)| {
                    Some((sort, self.world.get(sort.kind(), &self.at.0, &name)?))
                };
                strays.into_iter().filter_map(found).collect()
            }
        };
        for (sort, object) in orphans {
            // most have an owner: cheap checks first
            if object.terminating || set.known.has(&object.name, &object.uid) {
                continue;
            }
            let value = object.value();
            if controller(&value).is_none() && selects(selector, &value["metadata"]["labels"]) {
                tasks.push(self.own(sort.kind(), &object.name, &object.uid, &uid, true));
            }
        }
        tasks
    }

    /// Becomes the controller of an object, or ceases to be.
    fn own(&self, kind: &'static Kind, name: &str, meant: &str, uid: &str, takes: bool) -> Task<Purpose> {
        let (owner, meant, uid) = (history::owner(&self.value), meant.to_owned(), uid.to_owned());
        let edit: Edit = Box::new(move |value, _| {
            if value["metadata"]["uid"] != *meant || takes && controller(value).is_some() {
                return false;
            }
            if !value["metadata"]["ownerReferences"].is_array() {
                value["metadata"]["ownerReferences"] = json!([]);
            }
            let Some(owners) = value["metadata"]["ownerReferences"].as_array_mut() else { return false };
            owners.retain(|owner| owner["uid"] != *uid);
            if takes {
                owners.push(owner.clone());
            }
            true
        });
        let (namespace, name) = (self.at.0.clone(), name.to_owned());
        // the adoption must fail if the set was deleted meanwhile
        let requires = vec![self.unchanged()];
        self.task(
            "adopt or release what it selects",
            Action::Update { kind, namespace, name, edit, requires },
        )
    }

    /// Requires that the set is still as this look read it.
    fn unchanged(&self) -> Require {
        let (namespace, name) = self.at.clone();
        Require::Unchanged { kind: &DAEMON_SET, namespace, name, revision: Some(self.revision) }
    }

    fn make_revision(&self, number: i64) -> Task<Purpose> {
        let (name, value) = history::make(&self.value, number);
        if self.world.get(&CONTROLLER_REVISION, &self.at.0, &name).is_none() {
            return self.task("remember its template", Action::create(&CONTROLLER_REVISION, value));
        }
        // the name belongs to another template or another set: a higher collision count gives the next name
        // another hash
        let count = self.value["status"]["collisionCount"].as_i64().unwrap_or(0).saturating_add(1);
        self.edit_set(move |set, _| set["status"]["collisionCount"] = count.into())
    }

    fn edit_set(&self, mut change: impl FnMut(&mut Value, &str) + Send + 'static) -> Task<Purpose> {
        let uid = self.value["metadata"]["uid"].clone();
        let edit: Edit = Box::new(move |value, now| {
            let is_meant = value["metadata"]["uid"] == uid;
            if is_meant {
                change(value, now);
            }
            is_meant
        });
        let (namespace, name) = self.at.clone();
        self.task(
            "report its status",
            Action::Update { kind: &DAEMON_SET, namespace, name, edit, requires: Vec::new() },
        )
    }

    /// Brings the history in order; before a duplicate revision is deleted, its pods get the hash of the one
    /// that stays.
    fn tidy(
        &self,
        set: &Set,
        current: &Current,
        renumber: Option<i64>,
        doubles: &[String],
        surplus: &[String],
    ) -> Vec<Task<Purpose>> {
        let revisions = &set.known.revisions;
        let mut tasks = Vec::new();
        if let Some(number) = renumber {
            tasks.push(
                self.edit_revision(&current.name, move |revision| revision["revision"] = number.into()),
            );
        }
        for double in revisions.iter().filter(|revision| doubles.contains(&revision.name)) {
            let is_its = |pod: &&Pod| pod.hash == double.hash && pod.hash != current.hash;
            let its: Vec<&Pod> = set.known.pods().filter(is_its).collect();
            if its.is_empty() {
                tasks.push(self.remove(&CONTROLLER_REVISION, &double.name, &double.uid));
            }
            tasks.extend(its.into_iter().map(|pod| self.relabel(pod, current.hash.clone())));
        }
        tasks.extend(self.forget(revisions, surplus));
        tasks
    }

    fn forget(&self, revisions: &[Revision], surplus: &[String]) -> Vec<Task<Purpose>> {
        let old = revisions.iter().filter(|revision| surplus.contains(&revision.name));
        old.map(|old| self.remove(&CONTROLLER_REVISION, &old.name, &old.uid)).collect()
    }

    fn edit_revision(
        &self,
        name: &str,
        mut change: impl FnMut(&mut Value) + Send + 'static,
    ) -> Task<Purpose> {
        let edit: Edit = Box::new(move |value, _| {
            change(value);
            true
        });
        let (namespace, name) = (self.at.0.clone(), name.to_owned());
        let action = Action::Update {
            kind: &CONTROLLER_REVISION,
            namespace,
            name,
            edit,
            requires: vec![self.unchanged()],
        };
        self.task("number its history", action)
    }

    fn relabel(&self, pod: &Pod, hash: String) -> Task<Purpose> {
        let uid = pod.uid.clone();
        let edit: Edit = Box::new(move |value, _| {
            let is_meant = value["metadata"]["uid"] == *uid;
            if is_meant {
                value["metadata"]["labels"][words::HASH] = hash.as_str().into();
            }
            is_meant
        });
        let (namespace, name) = (self.at.0.clone(), pod.name.clone());
        self.task("label a pod", Action::Update { kind: &POD, namespace, name, edit, requires: Vec::new() })
    }

    /// Asks the node of a pod to pull images ahead, or withdraws that request.
    fn ask(&self, name: &str, uid: &str, request: Option<String>) -> Task<Purpose> {
        let uid = uid.to_owned();
        let edit: Edit = Box::new(move |value, _| {
            if value["metadata"]["uid"] != *uid {
                return false;
            }
            let annotations = &mut value["metadata"]["annotations"];
            if !annotations.is_object() {
                *annotations = json!({});
            }
            let Some(annotations) = annotations.as_object_mut() else { return false };
            match &request {
                Some(request) => {
                    let known = annotations.insert(PULL_AHEAD_ANNOTATION.to_owned(), request.as_str().into());
                    known.is_none_or(|known| known != request.as_str())
                }
                None => annotations.remove(PULL_AHEAD_ANNOTATION).is_some(),
            }
        });
        let (namespace, name) = (self.at.0.clone(), name.to_owned());
        let action = Action::Update { kind: &POD, namespace, name, edit, requires: Vec::new() };
        self.task("ask for images of a pod", action)
    }

    fn remove(&self, kind: &'static Kind, name: &str, uid: &str) -> Task<Purpose> {
        let options = DeleteOptions { uid: Some(uid.to_owned()), ..DeleteOptions::default() };
        let (namespace, name) = (self.at.0.clone(), name.to_owned());
        self.task(
            "end a pod or forget a template",
            Action::Delete { kind, namespace, name, options, requires: Vec::new() },
        )
    }

    /// Writes down what a look at the rollout found, and reports it.
    fn remember(&self, set: &mut Set, current: &Revision, verdict: &Verdict) -> Vec<Task<Purpose>> {
        let mut tasks = Vec::new();
        if verdict.record.is_some() || verdict.complete.is_some() {
            let (record, complete) = (verdict.record.clone(), verdict.complete);
            let edit: Edit = Box::new(move |revision, _| {
                let annotations = &mut revision["metadata"]["annotations"];
                if !annotations.is_object() {
                    *annotations = json!({});
                }
                let Some(annotations) = annotations.as_object_mut() else { return false };
                match record.as_ref().map(recorded::Record::write) {
                    Some(Some(text)) => drop(annotations.insert(words::RECORD.to_owned(), text.into())),
                    Some(None) => drop(annotations.remove(words::RECORD)),
                    None => {}
                }
                if let Some(number) = complete {
                    annotations.insert(words::COMPLETE.to_owned(), number.to_string().into());
                }
                true
            });
            let (namespace, name) = (self.at.0.clone(), current.name.clone());
            let action =
                Action::Update { kind: &CONTROLLER_REVISION, namespace, name, edit, requires: Vec::new() };
            tasks.push(self.task("remember how its update goes", action));
        }
        let generation = self.value["metadata"]["generation"].as_i64().unwrap_or(0);
        if set.told.0 != generation || set.told.1.len() >= TOLD {
            set.told = (generation, BTreeSet::new());
        }
        for (sort, reason, message) in &verdict.events {
            if set.told.1.insert(message.clone()) {
                tasks.push(self.event(sort, reason, message));
            }
        }
        tasks
    }

    /// Writes the template of the proven revision, unless the template was changed meanwhile.
    fn roll_back(&self, set: &mut Set, from: &Revision, to: &Proven) -> Vec<Task<Purpose>> {
        let (uid, template) = (self.value["metadata"]["uid"].clone(), to.template.clone());
        let found = self.value["spec"]["template"].clone();
        let edit: Edit = Box::new(move |value, _| {
            let is_meant = value["metadata"]["uid"] == uid && value["spec"]["template"] == found;
            if is_meant {
                value["spec"]["template"] = template.clone();
            }
            is_meant
        });
        let (namespace, name) = self.at.clone();
        let action = Action::Update { kind: &DAEMON_SET, namespace, name, edit, requires: Vec::new() };
        let mut tasks = vec![self.task("roll back its template", action)];
        let message = format!("Rolled back from revision {} to {}", from.name, to.name);
        if set.told.1.insert(message.clone()) {
            tasks.push(self.event("Warning", "RolledBack", &message));
        }
        tasks
    }

    /// The tasks of a plan; returns the time of the next look.
    fn carry_out(
        &self,
        set: &mut Set,
        wanted: &Wanted,
        verdict: &Verdict,
        plan: &Plan,
        tasks: &mut Vec<Task<Purpose>>,
    ) -> Option<Duration> {
        let mut next = plan.next;
        let mut ended = 0;
        for pod in &plan.ended {
            let known = set.ended.get(&pod.node);
            let (allowed, pause) =
                known.map_or((Duration::ZERO, FIRST_PAUSE), |known| (known.allowed, known.pause));
            if allowed > self.now.running {
                next = [next, Some(allowed)].into_iter().flatten().min();
                continue;
            }
            if ended == AT_ONCE {
                next = Some(self.now.running);
                break;
            }
            ended += 1;
            let (allowed, pause) = (self.now.running + pause, (pause * 2).min(LONGEST_PAUSE));
            let misfit = pod.misfit.clone();
            if let Some((reason, _)) = misfit.split_once(':') {
                let message = format!("Its pod does not fit node {} ({reason})", pod.node);
                if set.told.1.insert(message.clone()) {
                    tasks.push(self.event("Warning", "DoesNotFit", &message));
                }
            }
            set.ended.insert(pod.node.clone(), Ended { name: pod.name.clone(), allowed, pause, misfit });
            let (sort, reason, what) = match pod.phase.as_str() {
                "Failed" => ("Warning", "FailedDaemonPod", "failed"),
                _ => ("Normal", "SucceededDaemonPod", "succeeded"),
            };
            let (namespace, node) = (&self.at.0, &pod.node);
            let message = format!(
                "Found {what} daemon pod {namespace}/{} on node {node}, will try to kill it",
                pod.name
            );
            if let Some((sort, reason, message)) =
                set.telling.found(ended, (sort, reason, message), self.now.running)
            {
                tasks.push(self.event(sort, reason, &message));
            }
            tasks.push(self.remove(&POD, &pod.name, &pod.uid));
        }
        // after a pod that ran long enough to be available, the pauses start again with the shortest
        let known = &set.known;
        let runs = |node: &str| known.pods_on(node).iter().any(|pod| pod.ready_at.is_some());
        set.ended.retain(|node, ended| !runs(node) || ended.allowed + LONGEST_PAUSE > self.now.running);
        let misfits = set.ended.iter().filter(|(node, ended)| !ended.misfit.is_empty() && !runs(node));
        let misfits: Vec<String> =
            misfits.map(|(node, ended)| format!("{node} ({})", ended.misfit)).collect();
        let current = Source {
            template: &self.value["spec"]["template"],
            spec: &wanted.spec,
            hash: &wanted.hash,
            generation: &wanted.generation,
        };
        // without a generation, because it would make the pod one of the current template
        let proven = wanted.proven.as_ref().map(|proven| Source {
            template: &proven.template,
            spec: &proven.spec,
            hash: &proven.hash,
            generation: "",
        });
        let restored = plan.restore.iter().filter_map(|of| Some((proven.as_ref()?, of)));
        set.telling.begin();
        let made: Vec<_> = plan.make.iter().map(|of| (&current, of)).chain(restored).collect();
        for (source, (name, node)) in made.iter().take(AT_ONCE) {
            let (name, requires) = self.free_name(name, set.ended.get(node).map(|ended| ended.name.as_str()));
            let value = self.pod(source, &name, node);
            let task = self.task(MAKE_A_POD, Action::Create { kind: &POD, value, requires });
            tasks.push(counted(set, task, Deed::Made, &name));
        }
        for (name, uid) in plan.end.iter().take(AT_ONCE) {
            tasks.push(counted(set, self.remove(&POD, name, uid), Deed::Ended, name));
        }
        for (node, name, uid) in plan.drain.iter().take(AT_ONCE) {
            match drain::step(self.world, wanted, node) {
                drain::Step::Drained => {
                    tasks.push(counted(set, self.remove(&POD, name, uid), Deed::Ended, name))
                }
                drain::Step::Cordon(edit) => {
                    let (namespace, name, requires) = (String::new(), node.clone(), vec![self.unchanged()]);
                    let action = Action::Update { kind: &NODE, namespace, name, edit, requires };
                    tasks.push(self.task("cordon a node", action));
                }
                drain::Step::Evict(pods, waits) => {
                    for pod in pods {
                        let options =
                            DeleteOptions { uid: Some(pod.uid.to_string()), ..DeleteOptions::default() };
                        let (namespace, name) = (pod.namespace.to_string(), pod.name.to_string());
                        let requires = vec![self.unchanged()];
                        let action = Action::Delete { kind: &POD, namespace, name, options, requires };
                        tasks.push(self.task("drain a node", action));
                    }
                    if let Some(message) = waits
                        && set.told.1.insert(message.clone())
                    {
                        tasks.push(self.event("Warning", "DrainWaits", &message));
                    }
                }
            }
        }
        for node in plan.release.iter().take(AT_ONCE) {
            tasks.push(self.task(drain::UNCORDON, drain::uncordon(node, &wanted.place)));
        }
        for (name, uid, request) in plan.ask.iter().take(AT_ONCE) {
            tasks.push(self.ask(name, uid, request.clone()));
        }
        for (sort, reason, message) in set.telling.overdue(self.now.running) {
            tasks.push(self.event(sort, reason, &message));
        }
        next = [next, set.telling.next()].into_iter().flatten().min();
        tasks.extend(self.report(plan, verdict, &misfits));
        if made.len().max(plan.end.len()).max(plan.ask.len()) > AT_ONCE {
            next = Some(self.now.running);
        }
        next
    }

    /// The name for a pod to make, and a requirement on the node's other name. The other name is used in two
    /// cases: an object that is not the set's has the first one (for example a pod that the set released), or
    /// a pod of the first name `ended` by itself, so that clients which wait until that name is gone, as
    /// upstream's do, see it gone.
    fn free_name(&self, name: &str, ended: Option<&str>) -> (String, Vec<Require>) {
        let other = update::other_name(name);
        let found = |name: &str| self.world.get(&POD, &self.at.0, name);
        if found(name).is_some_and(|pod| controller(&pod.value()) != Some(&self.uid())) {
            return (other, Vec::new());
        }
        // the other name belongs to the pod beside it, during a surge
        if found(&other).is_some() {
            return (name.to_owned(), Vec::new());
        }
        let (chosen, left) =
            if ended == Some(name) { (other, name.to_owned()) } else { (name.to_owned(), other) };
        // if two steps choose different names, only one of them may make a pod
        let free =
            Require::Unchanged { kind: &POD, namespace: self.at.0.clone(), name: left, revision: None };
        (chosen, vec![free])
    }

    fn pod(&self, source: &Source<'_>, name: &str, node: &str) -> Value {
        let template = source.template;
        let mut labels = template["metadata"]["labels"].as_object().cloned().unwrap_or_default();
        labels.insert(words::HASH.to_owned(), source.hash.into());
        if !source.generation.is_empty() {
            labels.insert(GENERATION.to_owned(), source.generation.into());
        }
        let mut spec = source.spec.clone();
        placing::pin(&mut spec, node);
        let mut metadata = json!({"namespace": self.at.0, "name": name, "labels": labels, "ownerReferences": [history::owner(&self.value)]});
        for field in ["annotations", "finalizers"] {
            if let Some(given) = template["metadata"].get(field) {
                metadata[field] = given.clone();
            }
        }
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    }

    /// Writes the status if it changed.
    fn report(&self, plan: &Plan, verdict: &Verdict, misfits: &[String]) -> Option<Task<Purpose>> {
        let found = &plan.status;
        let generation = self.value["metadata"]["generation"].clone();
        let fields = [
            ("currentNumberScheduled", found.current, true),
            ("numberMisscheduled", found.misscheduled, true),
            ("desiredNumberScheduled", found.desired, true),
            ("numberReady", found.ready, true),
            ("updatedNumberScheduled", found.updated, false),
            ("numberAvailable", found.available, false),
            ("numberUnavailable", found.desired.saturating_sub(found.available), false),
        ];
        let set_aside = found.set_aside;
        let is_stopped = verdict.stopped.is_some();
        let (state, reason) = if is_stopped { ("True", "TooManyFailures") } else { ("False", "GoesOn") };
        let message = verdict.stopped.clone().unwrap_or_default();
        let stop = json!({"type": rollout::STOPPED, "status": state, "reason": reason, "message": message});
        let has_misfits = !misfits.is_empty();
        let (state, reason) = if has_misfits { ("True", "NoRoom") } else { ("False", "Fits") };
        let message = match misfits {
            [] => String::new(),
            all => {
                let more = all.len().saturating_sub(NAMED);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                format!("its pods do not fit these nodes: {}{more}", all[..all.len().min(NAMED)].join(", "))
            }
        };
        let fit = json!({"type": MISFITS, "status": state, "reason": reason, "message": message});
        let apply = move |set: &mut Value, now: &str| {
            if has_misfits || condition(&set["status"], MISFITS).is_some() {
                set_condition(&mut set["status"], fit.clone(), now);
            }
            // most sets never have this condition
            if is_stopped || condition(&set["status"], rollout::STOPPED).is_some() {
                set_condition(&mut set["status"], stop.clone(), now);
            }
            set["status"]["observedGeneration"] = generation.clone();
            for (field, count, is_shown) in fields {
                match set["status"].as_object_mut() {
                    Some(status) if count == 0 && !is_shown => drop(status.remove(field)),
                    _ => set["status"][field] = count.into(),
                }
            }
            match (set_aside, set["metadata"]["annotations"].as_object_mut()) {
                (0, Some(annotations)) => drop(annotations.remove(SET_ASIDE)),
                (0, None) => {}
                (count, _) => set["metadata"]["annotations"][SET_ASIDE] = count.to_string().into(),
            }
        };
        let mut after = self.value.clone();
        apply(&mut after, &rfc3339(self.now.wall));
        (after != self.value).then(|| self.edit_set(apply))
    }

    fn uid(&self) -> String {
        text(&self.value, &["metadata", "uid"]).to_owned()
    }

    fn event(&self, sort: &str, reason: &str, message: &str) -> Task<Purpose> {
        event(self.at, &self.uid(), self.revision, (sort, reason, message), self.now)
    }
}

/// Adds a task to the group that one Event reports together.
fn counted(set: &mut Set, mut task: Task<Purpose>, deed: Deed, name: &str) -> Task<Purpose> {
    set.telling.expect(deed);
    task.purpose.deed = Some((deed, name.to_owned()));
    task
}

/// The duplicate revisions that are to be deleted now, and when the next one is due.
fn due_doubles(
    seen: &mut BTreeMap<String, Duration>,
    doubles: Vec<String>,
    now: Duration,
) -> (Vec<String>, Option<Duration>) {
    seen.retain(|name, _| doubles.contains(name));
    let mut next: Option<Duration> = None;
    let mut due = Vec::new();
    for name in doubles {
        let at = seen.entry(name.clone()).or_insert(now).saturating_add(DOUBLE_STAYS);
        match at <= now {
            true => due.push(name),
            false => next = Some(next.map_or(at, |known| known.min(at))),
        }
    }
    (due, next)
}

/// The pod or revision that an action writes.
fn written(action: &Action) -> Option<(Sort, String)> {
    match action {
        Action::Create { kind, value, .. } => {
            Some((Sort::of(kind)?, text(value, &["metadata", "name"]).to_owned()))
        }
        Action::Update { kind, name, .. } | Action::Delete { kind, name, .. } => {
            Some((Sort::of(kind)?, name.clone()))
        }
        _ => None,
    }
}

/// An Event about a set; `what` is its type, reason and message.
fn event(
    set: &(String, String),
    uid: &str,
    revision: u64,
    (sort, reason, message): (&str, &str, &str),
    now: Now,
) -> Task<Purpose> {
    let (namespace, name) = set;
    let mark = history::short(&format!("{uid}{reason}{message}{}", rfc3339(now.wall)));
    let about = About { kind: &DAEMON_SET, namespace, name, uid, revision: Some(revision) };
    let what = What { sort, reason, message };
    let value = record::event(&about, &what, "daemonset-controller", namespace, &mark, now);
    about_event(set, uid, revision, value)
}

fn about_event(set: &(String, String), uid: &str, revision: u64, value: Value) -> Task<Purpose> {
    let purpose =
        Purpose { set: set.clone(), uid: uid.to_owned(), revision, tries: None, deed: None, writes: None };
    Task { purpose, action: Action::create(&EVENT, value) }
}

/// The Event that pods of a set are refused: one for all of them, however often they are tried, for as long
/// as the Event is kept.
fn forbidden(set: &(String, String), uid: &str, why: &str, now: Now) -> Task<Purpose> {
    let (namespace, name) = set;
    let about = About { kind: &DAEMON_SET, namespace, name, uid, revision: None };
    let message = format!("Error creating: {why}");
    let what = What { sort: "Warning", reason: "FailedCreate", message: &message };
    let mark = history::short(&format!("{uid}FailedCreate"));
    let value = record::event(&about, &what, "daemonset-controller", namespace, &mark, now);
    about_event(set, uid, 0, value)
}

fn place_of(object: &Object) -> (String, String) {
    (object.namespace.to_string(), object.name.to_string())
}

/// UID of the controller.
fn controller(value: &Value) -> Option<&str> {
    let owners = value["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|owner| owner["controller"] == true).map(|owner| text(owner, &["uid"]))
}

/// The revision that was last seen completely rolled out, apart from the current one; if none was, the newest
/// one that a pod has.
fn proven(set: &Value, revisions: &[Revision], live: &BTreeSet<String>) -> Option<Proven> {
    let others = || revisions.iter().filter(|revision| !revision.is_of(&set["spec"]["template"]));
    let complete = others().filter(|one| one.complete.is_some()).max_by_key(|one| (one.complete, one.number));
    let newest = || others().filter(|one| live.contains(&one.hash)).max_by_key(|one| one.number);
    let found = complete.or_else(newest)?;
    let mut spec = found.data["spec"].clone();
    placing::tolerate(&mut spec);
    let (name, hash, template) = (found.name.clone(), found.hash.clone(), found.data.clone());
    Some(Proven { name, hash, template, spec, was_complete: found.complete.is_some() })
}

/// Whether failures under the current revision can stop it: not if its rollout was complete once, nor if no
/// pod has another revision that could run instead, unless it is stopped already. `live`: the revisions that
/// pods have, including the proven one.
fn minds_failures(
    current: &Revision,
    is_renumbered: bool,
    proven: Option<&Proven>,
    live: &BTreeSet<String>,
) -> bool {
    let is_alone = proven.is_none() && live.iter().all(|hash| *hash == current.hash);
    !(is_alone && current.is_plain() || current.is_done() && !is_renumbered)
}

fn min_ready(spec: &Value) -> Duration {
    span(spec["minReadySeconds"].as_i64().unwrap_or(0))
}

fn is_paused(set: &Value) -> bool {
    !matches!(text(set, &["metadata", "annotations", PAUSED]).trim(), "" | "false")
}

/// The requirements of a set on its pods, as `update` reads them.
fn wanted(
    set: &Value,
    settings: &Settings,
    current: Current,
    proven: Option<Proven>,
    minds_failures: bool,
    defaults: Defaults,
) -> Wanted {
    let spec = &set["spec"];
    let mut pod_spec = spec["template"]["spec"].clone();
    placing::tolerate(&mut pod_spec);
    let annotation = |key: &str| text(set, &["metadata", "annotations", key]);
    let rolling = &spec["updateStrategy"]["rollingUpdate"];
    let is_rolling = text(spec, &["updateStrategy", "type"]) == "RollingUpdate";
    let rolls = is_rolling && !is_paused(set);
    let generation = annotation(TEMPLATE_GENERATION);
    let pre_pull = match annotation(words::PRE_PULL).trim() {
        "true" => true,
        "false" => false,
        _ => defaults.pre_pull,
    };
    let pulls_ahead = rolls && pre_pull;
    let ahead = pulls_ahead.then(|| ahead::Request::of(&pod_spec, &current.hash, generation));
    Wanted {
        name: text(set, &["metadata", "name"]).to_owned(),
        spec: pod_spec,
        hash: current.hash,
        generation: generation.to_owned(),
        min_ready: min_ready(spec),
        stays: settings.stays.max(min_ready(spec)),
        // a paused set replaces only pods that somebody deletes, which is what `OnDelete` does
        strategy: match rolls {
            true => Strategy::Rolling {
                unavailable: rolling["maxUnavailable"].clone(),
                surge: rolling["maxSurge"].clone(),
            },
            false => Strategy::OnDelete,
        },
        is_rolling,
        proven,
        minds_failures,
        ahead,
        drain: match annotation(words::DRAIN).trim() {
            "" | "false" => update::Drain::Nothing,
            "force" => update::Drain::All,
            // the careful meaning of a value that nobody knows
            _ => update::Drain::Controlled,
        },
        place: format!("{}/{}", text(set, &["metadata", "namespace"]), text(set, &["metadata", "name"])),
    }
}

/// Whether kubectl would report a successful rollout for this status.
fn shows_success(set: &Value) -> bool {
    let status = |field: &str| set["status"][field].as_i64().unwrap_or(0);
    let desired = status("desiredNumberScheduled");
    set["metadata"]["generation"] == set["status"]["observedGeneration"]
        && status("updatedNumberScheduled") >= desired
        && status("numberAvailable") >= desired
}
