//! Rollouts of configurations: each content of a ConfigMap goes over the selected nodes, batch by batch, and
//! stops when nodes get worse.
//!
//! Inputs: ConfigRollout, ConfigMap (sources), Node, Pod (of DaemonSets). Outputs: ConfigRollout (its
//! status), ConfigMap (revisions, and the source for an undo), Node (the assignment), Event. Always holds:
//! each decision is made from the stored objects, so a hub that was killed continues where it was. The cause
//! of a stop is stored before the rollout continues. Nothing is assigned unless the rollout is still as it
//! was read, so a pause counts at once. A rollout leaves alone a node that a person or another rollout
//! configures. A look reads only the nodes and pods that changed. Leaves to others: history (`history`),
//! judging nodes (`node`), which nodes come next (`plan`), stopping and budgets (`rolling`).

mod daemons;
mod history;
mod node;
mod plan;
mod settings;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::controller::{Action, Controller, Decision, Done, Edit, Level, Line, Now, Task, World};
use super::daemon_sets::short;
use super::record::{self, About, What};
use super::rolling::budget::share_down;
use super::rolling::recorded::Record;
use super::rolling::stop::{self, Stop};
use super::rolling::telling::{Deed, Telling};
use crate::api_error::ApiError;
use crate::kinds::config_rollout::{NAMESPACE, UNDO, self_set_labels};
use crate::kinds::{CONFIG_MAP, CONFIG_ROLLOUT, EVENT, Kind, NODE, POD};
use crate::object::{Event, Object};
use crate::requests::DeleteOptions;
use crate::state::Require;
use crate::value::{condition, rfc3339, set_condition, text};
use daemons::{DaemonPod, Daemons};
use history::{KEY, OF, Revision};
use kedge_api::{CLUSTER_EVENT_NAMESPACE, CONFIG_SOURCE_ANNOTATION, ROLLOUT_ANNOTATION};
use node::{Assigned, BEFORE, Facts, SET_ASIDE, State, Watch, Why};
use plan::{Plan, Progress, Row};
use settings::{RESUME, Settings};
pub use view::view;

static INPUTS: &[&Kind] = &[&CONFIG_ROLLOUT, &CONFIG_MAP, &NODE, &POD];
static OUTPUTS: &[&Kind] = &[&CONFIG_ROLLOUT, &CONFIG_MAP, &NODE, &EVENT];

/// Most assignments in a second, of all rollouts.
const PER_TURN: usize = 50;
const TURN: Duration = Duration::from_secs(1);
/// Between two looks at a rollout because of its nodes: a look counts all of them.
const PAUSE: Duration = Duration::from_millis(200);
/// Pause after the store refused a write.
const REFUSED: Duration = Duration::from_secs(5);
/// After a longer stall of the hub, in which no node could report, its duration does not count.
const STALL: Duration = Duration::from_secs(5);
/// Most messages remembered as recorded.
const TOLD: usize = 64;

/// How nodes are assigned their configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Assignment {
    /// By `spec.configSource`.
    #[default]
    Field,
    /// By the annotation `kedge.dev/config-source`, where the API server drops that field.
    Annotation,
}

/// See the module.
#[derive(Debug, Default)]
pub struct ConfigRollouts {
    assignment: Assignment,
    /// Rollouts to look at.
    queue: BTreeSet<String>,
    rollouts: BTreeMap<String, Rollout>,
    /// Nodes or pods changed: all rollouts are to be looked at, but not at once.
    is_stale: bool,
    /// Nodes as they were last read.
    nodes: BTreeMap<Box<str>, (u64, Facts)>,
    /// Nodes that changed since they were read; `None`: all are to be read.
    changed_nodes: Option<BTreeSet<Box<str>>>,
    daemons: Daemons,
    /// Rollouts to look at again at a given time, even if nothing changes.
    due: BTreeMap<String, Duration>,
    /// The turn under way, and the assignments left in it.
    turn: (Duration, usize),
    log: Vec<Line>,
    /// How many Nodes were parsed.
    #[cfg(test)]
    pub(super) parsed: usize,
}

/// State of a rollout that is kept between two looks; all of it may be lost.
#[derive(Debug, Default)]
struct Rollout {
    uid: String,
    /// When it was last looked at.
    looked: Option<Duration>,
    settings: Option<Settings>,
    /// The selected nodes.
    rows: BTreeMap<Box<str>, Selected>,
    told: (i64, BTreeSet<String>),
    telling: Telling,
    /// Assignments about which the store has not answered yet, and the status to write after them.
    awaited: usize,
    report: Option<Task<Purpose>>,
    /// Revisions that no status names are to be looked for.
    tidies: bool,
}

#[derive(Debug, Default)]
struct Selected {
    batches: u32,
    group: Box<str>,
    watch: Watch,
}

/// The purpose of an action: the rollout that it is for.
#[derive(Debug)]
pub struct Purpose {
    rollout: String,
    /// The text for the log if the store refuses; `None` for an Event, which is not worth a line.
    tries: Option<&'static str>,
    /// The node that it assigns.
    node: Option<String>,
}

impl Controller for ConfigRollouts {
    type Purpose = Purpose;
    const NAME: &'static str = "config-rollouts";
    const SWEEP: Option<Duration> = Some(Duration::from_secs(300));
    const AT_ONCE: usize = 16;
    const MINDS_STALLS: bool = true;

    fn inputs() -> &'static [&'static Kind] {
        INPUTS
    }

    fn outputs() -> &'static [&'static Kind] {
        OUTPUTS
    }

    fn concerns(kind: &'static Kind, event: &Event) -> bool {
        let differ = |of: fn(&crate::object::Object) -> Option<DaemonPod>| {
            let read = |object: &Option<_>| object.as_deref().and_then(of);
            read(&event.old) != read(&event.new)
        };
        match (&event.old, &event.new) {
            _ if kind.kind == POD.kind => differ(DaemonPod::read),
            _ if kind.kind == CONFIG_MAP.kind => *event.object().namespace == *NAMESPACE,
            (Some(old), Some(new)) if kind.kind == NODE.kind => Facts::read(old) != Facts::read(new),
            _ => true,
        }
    }

    fn observe(&mut self, kind: &'static Kind, event: &Event) {
        let object = event.object();
        if kind.kind == CONFIG_ROLLOUT.kind {
            self.queue.insert(object.name.to_string());
            return;
        }
        if kind.kind == NODE.kind
            && let Some(changed) = &mut self.changed_nodes
        {
            changed.insert(object.name.clone());
        }
        if kind.kind == POD.kind {
            self.daemons.note_change(&object.namespace, &object.name);
        }
        if kind.kind == CONFIG_MAP.kind {
            self.queue.extend(self.rollouts.keys().cloned());
        } else {
            self.is_stale = true;
        }
    }

    fn sweep(&mut self, world: &dyn World) {
        let known: BTreeSet<String> =
            world.list(&CONFIG_ROLLOUT, "").iter().map(|rollout| rollout.name.to_string()).collect();
        self.rollouts.retain(|name, _| known.contains(name));
        self.due.retain(|name, _| known.contains(name));
        self.rollouts.values_mut().for_each(|rollout| rollout.tidies = true);
        self.changed_nodes = None;
        self.daemons.note_gap();
        self.queue = known;
    }

    fn reconcile(&mut self, world: &dyn World, now: Now) -> Decision<Purpose> {
        let due: Vec<_> =
            self.due.iter().filter(|(_, at)| **at <= now.running).map(|(name, _)| name.clone()).collect();
        self.queue.extend(due);
        if std::mem::take(&mut self.is_stale) {
            let looked = |rollout: &Rollout| rollout.looked.map_or(now.running, |at| at + PAUSE);
            let times: Vec<_> =
                self.rollouts.iter().map(|(name, rollout)| (name.clone(), looked(rollout))).collect();
            for (name, at) in times {
                match at <= now.running {
                    true => drop(self.queue.insert(name)),
                    false => self.look_again(&name, at),
                }
            }
        }
        let stalled = now.stalled.max(now.disk_stalled);
        if stalled > STALL {
            let rows = self.rollouts.values_mut().flat_map(|rollout| rollout.rows.values_mut());
            rows.for_each(|row| row.watch.shift(stalled, now.running));
        }
        if self.turn.0 + TURN <= now.running {
            self.turn = (now.running, PER_TURN);
        }
        let mut tasks = Vec::new();
        // without a rollout nothing is read
        if !self.queue.is_empty() {
            self.refresh(world, now);
            for name in std::mem::take(&mut self.queue) {
                self.due.remove(&name);
                tasks.extend(self.reconcile_one(world, &name, now));
            }
        }
        let next = self.due.values().min().copied();
        Decision { tasks, next, ..Decision::default() }
    }

    fn performed(
        &mut self,
        purpose: Purpose,
        outcome: Result<Done, ApiError>,
        now: Now,
    ) -> Vec<Task<Purpose>> {
        let mut follow = Vec::new();
        if let (Some(node), Some(rollout)) = (&purpose.node, self.rollouts.get_mut(&purpose.rollout)) {
            let is_done = matches!(outcome, Ok(Done::Stored(_, true)));
            if let Some(changed) = &mut self.changed_nodes {
                changed.insert(node.as_str().into());
            }
            // the node or one of its pods is not as it was read
            if !is_done {
                self.daemons.note_node(node);
                let at = now.running + REFUSED;
                self.due.entry(purpose.rollout.clone()).and_modify(|due| *due = at.min(*due)).or_insert(at);
            }
            rollout.awaited = rollout.awaited.saturating_sub(1);
            if let Some((sort, reason, message)) =
                rollout.telling.answered(Deed::Assigned, node, is_done, now.running)
            {
                follow.push(event(&purpose.rollout, &rollout.uid, (sort, reason, &message), now));
            }
            if rollout.awaited == 0 {
                follow.extend(rollout.report.take());
            }
        }
        let Err(error) = outcome else { return follow };
        let Some(tries) = purpose.tries else { return follow };
        if !matches!(error.code, 404 | 409) {
            let line = format!("ConfigRollout {}: cannot {tries}: {error}; trying again", purpose.rollout);
            self.log.push((Level::Warning, line));
        }
        self.look_again(&purpose.rollout, now.running + REFUSED);
        follow
    }

    fn take_log(&mut self, _: Now) -> Vec<Line> {
        std::mem::take(&mut self.log)
    }
}

impl ConfigRollouts {
    pub fn new(assignment: Assignment) -> ConfigRollouts {
        ConfigRollouts { assignment, ..ConfigRollouts::default() }
    }

    fn look_again(&mut self, rollout: &str, at: Duration) {
        let due = self.due.entry(rollout.to_owned()).or_insert(at);
        *due = at.min(*due);
    }

    /// Reads what changed, and selects the nodes of each queued rollout: of all of them before one assigns
    /// anything, so that none takes a node of another one.
    fn refresh(&mut self, world: &dyn World, now: Now) {
        let changed = self.read_nodes(world);
        self.daemons.read(world, now.running);
        for name in &self.queue {
            let Some(object) = world.get(&CONFIG_ROLLOUT, "", name) else {
                self.rollouts.remove(name);
                continue;
            };
            let rollout = self.rollouts.entry(name.clone()).or_default();
            if rollout.uid != *object.uid {
                *rollout = Rollout { uid: object.uid.to_string(), tidies: true, ..Rollout::default() };
            }
            let settings = Settings::read(&object.value());
            if !rollout.settings.as_ref().is_some_and(|known| known.selects_like(&settings)) {
                let mut before = std::mem::take(&mut rollout.rows);
                for (name, (_, facts)) in &self.nodes {
                    let watch = before.remove(name).map(|row| row.watch).unwrap_or_default();
                    rollout.select(&settings, name, facts, watch);
                }
            }
            rollout.settings = Some(settings);
        }
        for rollout in self.rollouts.values_mut() {
            let Some(settings) = rollout.settings.take() else { continue };
            for name in &changed {
                let watch = rollout.rows.remove(name).map(|row| row.watch).unwrap_or_default();
                if let Some((_, facts)) = self.nodes.get(name) {
                    rollout.select(&settings, name, facts, watch);
                }
            }
            rollout.settings = Some(settings);
        }
    }

    /// Reads the nodes that changed; returns their names.
    fn read_nodes(&mut self, world: &dyn World) -> BTreeSet<Box<str>> {
        let Some(names) = self.changed_nodes.replace(BTreeSet::new()) else {
            let mut changed = BTreeSet::new();
            let mut before = std::mem::take(&mut self.nodes);
            for object in world.list(&NODE, "") {
                let known = before.remove(&object.name).filter(|(revision, _)| *revision == object.revision);
                let read = known.unwrap_or_else(|| {
                    changed.insert(object.name.clone());
                    (object.revision, Facts::read(&object))
                });
                self.nodes.insert(object.name.clone(), read);
            }
            changed.extend(before.into_keys());
            #[cfg(test)]
            {
                self.parsed += changed.len();
            }
            return changed;
        };
        for name in &names {
            match world.get(&NODE, "", name) {
                Some(object) => {
                    _ = self.nodes.insert(name.clone(), (object.revision, Facts::read(&object)));
                }
                None => _ = self.nodes.remove(name),
            }
        }
        #[cfg(test)]
        {
            self.parsed += names.len();
        }
        names
    }

    fn reconcile_one(&mut self, world: &dyn World, name: &str, now: Now) -> Vec<Task<Purpose>> {
        let Some(object) = world.get(&CONFIG_ROLLOUT, "", name) else { return Vec::new() };
        let Some(mut rollout) = self.rollouts.remove(name) else { return Vec::new() };
        rollout.looked = Some(now.running);
        let mut tasks = Vec::new();
        if let Some(settings) = rollout.settings.take().filter(|_| !object.terminating) {
            let mut look = Look {
                world,
                name,
                value: object.value(),
                revision: object.revision,
                now,
                settings: &settings,
                nodes: &self.nodes,
                others: &self.rollouts,
                daemons: &self.daemons,
                assignment: self.assignment,
                most: self.turn.1,
                next: None,
            };
            tasks = look.reconcile(&mut rollout);
            let assigned = tasks.iter().filter(|task| task.purpose.node.is_some()).count();
            self.turn.1 = self.turn.1.saturating_sub(assigned);
            if let Some(next) = look.next {
                self.look_again(name, next.max(now.running + Duration::from_millis(1)));
            }
            rollout.settings = Some(settings);
        }
        self.rollouts.insert(name.to_owned(), rollout);
        tasks
    }
}

impl Rollout {
    fn select(&mut self, settings: &Settings, name: &str, facts: &Facts, watch: Watch) {
        let labels = facts.node.labels();
        if settings.selects(labels) {
            let (batches, group) = (settings.batches_of(labels), settings.group_of(labels));
            self.rows.insert(name.into(), Selected { batches, group, watch });
        }
    }
}

/// The content of a source, or the reason for its absence: reason and message of a condition.
type Payload = Result<String, (&'static str, String)>;

/// One look at one rollout.
struct Look<'a> {
    world: &'a dyn World,
    name: &'a str,
    value: Value,
    revision: u64,
    now: Now,
    settings: &'a Settings,
    nodes: &'a BTreeMap<Box<str>, (u64, Facts)>,
    others: &'a BTreeMap<String, Rollout>,
    daemons: &'a Daemons,
    assignment: Assignment,
    /// Assignments left in this turn.
    most: usize,
    /// When to look again if nothing changes.
    next: Option<Duration>,
}

/// The result of a look, for the status.
struct Found<'a> {
    revisions: Vec<Revision>,
    update: Option<&'a Revision>,
    complete: Option<&'a str>,
    counts: Counts,
    phase: &'static str,
    batch: usize,
    reason: &'static str,
    message: String,
    stopped: Option<String>,
}

/// How many nodes are in which state.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    selected: usize,
    updated: usize,
    trying: usize,
    failed: usize,
    away: usize,
    conflicting: usize,
    too_old: usize,
    set_aside: usize,
    waiting: usize,
}

impl Look<'_> {
    fn reconcile(&mut self, rollout: &mut Rollout) -> Vec<Task<Purpose>> {
        let stored = history::read(&self.value["status"]);
        let undo = text(&self.value, &["metadata", "annotations", UNDO]).to_owned();
        if !undo.is_empty() {
            return self.undo(rollout, &stored, &undo);
        }
        let payload = self.payload();
        let mut revisions = stored.clone();
        let mut problem = None;
        match payload.as_ref().map(|payload| (payload, history::name(self.name, payload))) {
            Ok((payload, name)) => match self.world.get(&CONFIG_MAP, NAMESPACE, &name) {
                None => return vec![self.make(payload)],
                Some(found) if found.value()["data"] == json!({KEY: payload}) => {
                    history::renew(&mut revisions, &name);
                }
                Some(_) => {
                    let message = format!("ConfigMap {NAMESPACE}/{name} exists and has another content");
                    problem = Some(("RevisionTaken", message));
                }
            },
            Err((reason, message)) => problem = Some((*reason, message.clone())),
        }
        let complete = revisions.iter().rev().find(|one| one.is_complete).map(|one| one.name.clone());
        // it reads all nodes, and most looks have nothing to forget
        let forgets = rollout.tidies || revisions.len() > self.settings.history + 1;
        let in_use = if forgets { self.in_use() } else { BTreeSet::new() };
        let surplus = history::surplus(&revisions, self.settings.history, complete.as_deref(), &in_use);
        let mut tasks: Vec<Task<Purpose>> = surplus.iter().filter_map(|name| self.forget(name)).collect();
        tasks.extend(self.tidy(rollout, &revisions, &in_use));
        // one that is gone is forgotten
        let is_there = |one: &Revision| self.world.get(&CONFIG_MAP, NAMESPACE, &one.name).is_some();
        let newest = revisions.last().map(|one| one.name.clone());
        revisions.retain(|one| Some(&one.name) == newest.as_ref() || is_there(one));
        let complete = complete.filter(|name| {
            revisions.iter().any(|one| one.name == *name) && {
                self.world.get(&CONFIG_MAP, NAMESPACE, name).is_some()
            }
        });
        let update = revisions.last().cloned();
        let (states, counts) = self.judge(rollout, update.as_ref());
        let Some(mut update) = update else {
            let (reason, message) = problem.unwrap_or(("NoRevision", String::new()));
            let found = Found {
                revisions,
                update: None,
                complete: None,
                counts,
                phase: "Progressing",
                batch: 1,
                reason,
                message,
                stopped: None,
            };
            tasks.extend(self.report(&found));
            return tasks;
        };
        let mut events = self.stop(&mut update, failed(rollout, &states), complete.as_deref(), counts);
        let batches = self.settings.batches.len();
        let passed = if update.is_complete { batches } else { update.batch.min(batches) };
        let is_stopped = update.record.stopped.is_some();
        if let Some(newest) = revisions.last_mut() {
            newest.clone_from(&update);
        }
        let is_stored = revisions == stored;
        let rows = self.rows(rollout, &states, &update.name, complete.as_deref());
        let may_assign = !self.settings.is_paused && is_stored && rollout.awaited == 0;
        let progress = Progress {
            passed,
            may_update: may_assign && !is_stopped && (problem.is_none() || update.is_complete),
            may_complete: may_assign && complete.as_ref().is_some_and(|name| *name != update.name),
            is_stopped,
            most: self.most,
            tolerated: self.most_failures(counts) + update.record.forgiven,
            now: self.now.running,
        };
        let plan = plan::plan(self.settings, &rows, &progress);
        if !is_stopped && plan.is_passed && !update.is_complete {
            update.batch = passed + 1;
            let message =
                format!("Batch {} of revision {} is well: the next begins", passed + 1, update.name);
            events.push(("Normal", "BatchPassed", message));
        }
        if !is_stopped && plan.is_complete && !update.is_complete {
            update.is_complete = true;
            update.record = Record::default();
            let message = format!("Revision {} is complete: {} nodes run it", update.name, counts.updated);
            events.push(("Normal", "Complete", message));
        }
        update.comes_back &= !plan.is_everywhere;
        if let Some(newest) = revisions.last_mut() {
            newest.clone_from(&update);
        }
        let complete = if update.is_complete { Some(update.name.clone()) } else { complete };
        let assignments = self.assign(&plan, &update.name, complete.as_deref());
        if plan.has_more {
            self.wake(self.now.running + TURN);
        }
        if let Some(at) = plan.soaks_until {
            self.wake(at);
        }
        let (phase, reason, message) = self.phase(&update, &plan, passed, counts, problem);
        let found = Found {
            stopped: update.record.stopped.clone(),
            update: Some(&update),
            complete: complete.as_deref(),
            revisions,
            counts,
            phase,
            batch: passed.min(batches) + 1,
            reason,
            message,
        };
        let report = self.report(&found);
        tasks.extend(self.tell(rollout, events));
        if is_stored && update.record.rolled_back.as_deref() == Some(&*update.generation()) && is_stopped {
            tasks.extend(self.roll_back(rollout, &update, complete.as_deref()));
        }
        if assignments.is_empty() {
            tasks.extend(report);
        } else {
            // the assignments count only while the rollout is as it was read
            rollout.awaited = assignments.len();
            rollout.report = report;
            rollout.telling.begin();
            assignments.iter().for_each(|_| rollout.telling.expect(Deed::Assigned));
            tasks.extend(assignments);
        }
        let overdue = rollout.telling.overdue(self.now.running);
        tasks.extend(overdue.into_iter().map(|(sort, reason, message)| {
            event(self.name, &rollout.uid, (sort, reason, &message), self.now)
        }));
        if let Some(at) = rollout.telling.next() {
            self.wake(at);
        }
        tasks
    }

    fn wake(&mut self, at: Duration) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    fn task(&self, tries: &'static str, action: Action) -> Task<Purpose> {
        Task { purpose: Purpose { rollout: self.name.to_owned(), tries: Some(tries), node: None }, action }
    }

    /// Requires that the rollout is still as this look read it.
    fn unchanged(&self) -> Require {
        let (namespace, name) = (String::new(), self.name.to_owned());
        Require::Unchanged { kind: &CONFIG_ROLLOUT, namespace, name, revision: Some(self.revision) }
    }

    fn source(&self) -> Option<Arc<Object>> {
        self.world.get(&CONFIG_MAP, NAMESPACE, &self.settings.source)
    }

    /// Whether the source is there and can never be written.
    fn is_fixed(&self) -> bool {
        self.source().is_some_and(|source| source.value()["immutable"] == true)
    }

    fn payload(&self) -> Payload {
        let Settings { source, key, .. } = self.settings;
        let Some(object) = self.source() else {
            let message = format!("ConfigMap {NAMESPACE}/{source} does not exist; nodes keep what they have");
            return Err(("SourceMissing", message));
        };
        match text(&object.value(), &["data", key]) {
            "" => {
                let message = format!(
                    "ConfigMap {NAMESPACE}/{source} has no text under the key {key}; nodes keep what they have"
                );
                Err(("SourceInvalid", message))
            }
            found => Ok(found.to_owned()),
        }
    }

    fn make(&self, payload: &str) -> Task<Purpose> {
        let value = history::make(self.name, payload);
        let requires = vec![self.unchanged()];
        self.task("make a revision", Action::Create { kind: &CONFIG_MAP, value, requires })
    }

    /// The revisions that a node is assigned, or may fall back to.
    fn in_use(&self) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        for (_, facts) in self.nodes.values() {
            found.insert(&*facts.promoted);
            if let Assigned::Rollout(_, revision) = &facts.assigned {
                found.insert(revision);
            }
        }
        found
    }

    fn forget(&self, name: &str) -> Option<Task<Purpose>> {
        let found = self.world.get(&CONFIG_MAP, NAMESPACE, name)?;
        let options = DeleteOptions { uid: Some(found.uid.to_string()), ..DeleteOptions::default() };
        let (namespace, name) = (NAMESPACE.to_owned(), name.to_owned());
        let requires = vec![self.unchanged()];
        let action = Action::Delete { kind: &CONFIG_MAP, namespace, name, options, requires };
        Some(self.task("forget a revision", action))
    }

    /// Forgets revisions that no status names: they were made just before the source changed again.
    fn tidy(
        &self,
        rollout: &mut Rollout,
        revisions: &[Revision],
        in_use: &BTreeSet<&str>,
    ) -> Vec<Task<Purpose>> {
        if !std::mem::take(&mut rollout.tidies) {
            return Vec::new();
        }
        let maps = self.world.list(&CONFIG_MAP, NAMESPACE);
        let is_known = |name: &str| revisions.iter().any(|one| one.name == *name) || in_use.contains(name);
        let is_ours =
            |value: &Value| value["metadata"]["labels"][OF] == *self.name && value["immutable"] == true;
        let lost = maps.iter().filter(|map| !is_known(&map.name) && is_ours(&map.value()));
        lost.filter_map(|map| self.forget(&map.name)).collect()
    }

    /// Judges the selected nodes under the update.
    fn judge(&mut self, rollout: &mut Rollout, update: Option<&Revision>) -> (Vec<State>, Counts) {
        let mut counts = Counts { selected: rollout.rows.len(), ..Counts::default() };
        let mut next = None;
        let mut states = Vec::with_capacity(rollout.rows.len());
        for (name, row) in &mut rollout.rows {
            let Some((_, facts)) = self.nodes.get(name) else {
                states.push(State::SetAside);
                continue;
            };
            let state = self.state(name, facts, &mut row.watch, update, &mut next);
            *match state {
                State::SetAside => &mut counts.set_aside,
                State::Conflicting => &mut counts.conflicting,
                State::TooOld => &mut counts.too_old,
                State::Away => &mut counts.away,
                State::Closed | State::Busy | State::Waiting => &mut counts.waiting,
                State::Trying => &mut counts.trying,
                State::Good => &mut counts.updated,
                State::Failed(_) => &mut counts.failed,
            } += 1;
            states.push(state);
        }
        if let Some(at) = next {
            self.wake(at);
        }
        (states, counts)
    }

    fn state(
        &self,
        name: &str,
        facts: &Facts,
        watch: &mut Watch,
        update: Option<&Revision>,
        next: &mut Option<Duration>,
    ) -> State {
        if facts.is_set_aside {
            return State::SetAside;
        }
        let is_others = match &facts.assigned {
            Assigned::Nothing => false,
            Assigned::ByHand => true,
            // a rollout that is gone, or selects other nodes now, has left it
            Assigned::Rollout(by, _) => {
                **by != *self.name
                    && self.others.get(&**by).is_some_and(|other| other.rows.contains_key(name))
            }
        };
        if is_others {
            return State::Conflicting;
        }
        let maintained = facts.node.windows(self.now.wall);
        if let Some(update) = update.filter(|update| facts.revision_of(self.name) == Some(&*update.name)) {
            let look = node::Look {
                revision: &update.name,
                deadline: self.settings.deadline,
                serves: self.daemons.serve(&facts.served, name),
                is_open: maintained.is_open,
                now: self.now.running,
            };
            return watch.judge(facts, &look, next);
        }
        let mut at = |over: Duration| *next = Some(next.map_or(over, |next| next.min(over)));
        if facts.node.is_lost {
            return State::Away;
        }
        if let Some(least) = &self.settings.least_version
            && (least.is_none() || facts.version < *least)
        {
            return State::TooOld;
        }
        if !maintained.is_open {
            maintained.stays.into_iter().for_each(|stays| at(self.now.running + stays));
            return State::Closed;
        }
        if !facts.node.drained_for.is_empty() && !facts.is_out() {
            return State::Busy;
        }
        // one that is out by this rollout's doing already is not waited for
        if let Some(over) = self.daemons.are_busy(name, self.now.running).filter(|_| !facts.is_out()) {
            at(over);
            return State::Busy;
        }
        State::Waiting
    }

    fn rows<'r>(
        &self,
        rollout: &'r Rollout,
        states: &[State],
        update: &str,
        complete: Option<&str>,
    ) -> Vec<Row<'r>> {
        let selected = rollout.rows.iter().map(|(name, row)| (&**name, row)).zip(states);
        let row = |((name, row), state): ((&'r str, &'r Selected), &State)| {
            let facts = self.nodes.get(name).map(|(_, facts)| facts);
            let revision = facts.and_then(|facts| facts.revision_of(self.name));
            let has_update = revision == Some(update);
            let is_ours = !matches!(state, State::Conflicting | State::SetAside);
            // a lost node may be down for the update, but not for what came before
            let is_out = is_ours
                && facts.is_some_and(|facts| facts.is_out() && (has_update || !facts.node.is_lost))
                || matches!(state, State::Trying | State::Failed(_));
            Row {
                name,
                state: state.clone(),
                good: row.watch.good,
                batches: row.batches,
                group: &row.group,
                has_update: has_update && is_ours,
                has_complete: revision.is_some() && revision == complete,
                is_new: facts.is_some_and(|facts| facts.assigned == Assigned::Nothing),
                is_out,
            }
        };
        selected.map(row).collect()
    }

    /// Failures that do not stop the update: a share of the nodes that it reached, and less than the budget.
    /// An update with its budget used up by failures would wait for ever.
    fn most_failures(&self, counts: Counts) -> usize {
        self.tolerated(counts).min(plan::budget(self.settings, counts.selected) - 1)
    }

    /// How many failures the field `maxFailures` alone permits.
    fn tolerated(&self, counts: Counts) -> usize {
        share_down(&self.settings.max_failures, counts.updated + counts.trying + counts.failed)
    }

    /// Decides whether the update stops or continues; returns the Events about it.
    fn stop(
        &self,
        update: &mut Revision,
        failed: Vec<(String, &Why)>,
        complete: Option<&str>,
        counts: Counts,
    ) -> Vec<(&'static str, &'static str, String)> {
        if update.is_complete {
            return Vec::new();
        }
        // a reader who counts up to maxFailures would wonder why it stopped sooner
        let most = self.most_failures(counts);
        let sooner = match self.tolerated(counts) {
            tolerated if tolerated > most => format!(
                "; maxFailures permits {tolerated}, but maxUnavailable no more than {} on trial or failed at a time",
                most + 1
            ),
            _ => String::new(),
        };
        let limit = self.settings.max_failures.to_string();
        let generation = update.generation();
        let stop = Stop {
            known: &update.record,
            generation: &generation,
            resume: &self.settings.resume,
            limit: &limit,
            failed: failed.len(),
            most: Some(most),
            is_update: true,
        };
        let rolls_back = self.settings.rolls_back;
        let back = match (rolls_back, complete) {
            (false, _) => "; not rolled back, for rollbackOnFailure is not set",
            (true, None) => "; not rolled back, for no other revision was complete",
            (true, Some(_)) => "",
        };
        let keep = format!(
            "nodes keep what they run until the source changes, or maxFailures or the annotation {RESUME} does"
        );
        let name = update.name.clone();
        let why = |most| {
            let failures = stop::failures(failed.into_iter(), most);
            format!("Stopped revision {name}: {failures}{sooner}; {keep}{back}")
        };
        let again = |before: &str| {
            format!(
                "Stopped revision {name}: it was rolled back as number {before}, and written again since; {keep}"
            )
        };
        let (mut next, was_stopped) = stop.next(why, again);
        if next.stopped.is_some() && rolls_back && next.rolled_back.is_none() && complete.is_some() {
            next.rolled_back = Some(generation);
        }
        let mut events = Vec::new();
        match (&next.stopped, was_stopped) {
            (Some(why), false) => events.push(("Warning", "Stopped", why.clone())),
            (None, true) => events.push(("Normal", "Resumed", format!("Revision {name} goes on"))),
            _ => {}
        }
        // in the form in which it is read again
        update.record = next.write().map(|text| Record::read(&text)).unwrap_or_default();
        events
    }

    fn assign(&self, plan: &Plan<'_>, update: &str, complete: Option<&str>) -> Vec<Task<Purpose>> {
        let complete = plan.complete.iter().filter_map(|node| Some((*node, complete?)));
        let all = plan.update.iter().map(|node| (*node, update)).chain(complete);
        all.filter_map(|(node, revision)| self.assign_one(node, revision)).collect()
    }

    fn assign_one(&self, node: &str, revision: &str) -> Option<Task<Purpose>> {
        let (_, facts) = self.nodes.get(node)?;
        let (uid, found) = (facts.uid.clone(), facts.assigned.clone());
        let mark = format!("{}@{revision}", self.name);
        let before = facts.remembered(&self.daemons.served(node));
        let source =
            json!({"configMap": {"namespace": NAMESPACE, "name": revision, "kubeletConfigKey": KEY}});
        let assignment = self.assignment;
        let edit: Edit = Box::new(move |value, _| {
            // a person or another rollout may have assigned it meanwhile
            if value["metadata"]["uid"] != *uid || node::assigned(value) != found {
                return false;
            }
            let annotations = &mut value["metadata"]["annotations"];
            annotations[ROLLOUT_ANNOTATION] = mark.as_str().into();
            annotations[BEFORE] = before.as_str().into();
            match assignment {
                Assignment::Field => value["spec"]["configSource"] = source.clone(),
                Assignment::Annotation => annotations[CONFIG_SOURCE_ANNOTATION] = source.to_string().into(),
            }
            true
        });
        let mut requires = self.daemons.unchanged(node);
        requires.push(self.unchanged());
        let (namespace, name) = (String::new(), node.to_owned());
        let mut task =
            self.task("assign a node", Action::Update { kind: &NODE, namespace, name, edit, requires });
        task.purpose.node = Some(node.to_owned());
        Some(task)
    }

    /// Phase, and reason and message of the condition `Progressing`.
    fn phase(
        &self,
        update: &Revision,
        plan: &Plan<'_>,
        passed: usize,
        counts: Counts,
        problem: Option<(&'static str, String)>,
    ) -> (&'static str, &'static str, String) {
        let name = &update.name;
        if update.record.stopped.is_some() {
            return ("Stopped", "TooManyFailures", String::new());
        }
        let phase = match () {
            () if update.is_complete && !update.comes_back => "Complete",
            () if self.settings.is_paused => "Paused",
            () if plan.soaks_until.is_some() => "Soaking",
            () => "Progressing",
        };
        if let Some((reason, message)) = problem {
            return (phase, reason, message);
        }
        let batches = self.settings.batches.len() + 1;
        let batch = passed + 1;
        match phase {
            "Paused" => (phase, phase, format!("revision {name}: no node is assigned anything")),
            "Complete" => (phase, phase, format!("revision {name} is on {} nodes", counts.updated)),
            "Soaking" => (phase, phase, format!("revision {name}: batch {batch} of {batches} soaks")),
            _ if counts.selected == 0 => (phase, "NoNodes", "no node is selected".to_owned()),
            _ if plan.is_used_up => {
                let message = format!(
                    "revision {name}: other nodes wait until those that failed ({}) are well or have the annotation {SET_ASIDE}, for these use up maxUnavailable",
                    counts.failed
                );
                (phase, "BudgetUsedUp", message)
            }
            _ if plan.has_nobody => {
                let message = format!("revision {name}: no node of batch {batch} of {batches} is there");
                (phase, "EmptyBatch", message)
            }
            _ => (phase, "Assigning", format!("revision {name}: batch {batch} of {batches} is under way")),
        }
    }

    /// Writes the status if it changed.
    fn report(&self, found: &Found<'_>) -> Option<Task<Purpose>> {
        let counts = found.counts;
        let name = |revision: Option<&str>| revision.unwrap_or_default().to_owned();
        let fields = json!({
            "observedGeneration": self.value["metadata"]["generation"],
            "currentRevision": name(found.complete),
            "updateRevision": name(found.update.map(|update| &*update.name)),
            "phase": found.phase, "batch": found.batch, "batches": self.settings.batches.len() + 1,
            "nodes": {
                "selected": counts.selected, "updated": counts.updated, "trying": counts.trying,
                "failed": counts.failed, "away": counts.away, "conflicting": counts.conflicting,
                "tooOld": counts.too_old, "setAside": counts.set_aside, "waiting": counts.waiting,
            },
            "revisions": history::write(&found.revisions),
        });
        let yes = |is_so: bool| if is_so { "True" } else { "False" };
        let (is_stopped, is_complete) = (found.stopped.is_some(), found.phase == "Complete");
        let is_going = matches!(found.phase, "Progressing" | "Soaking");
        // a condition without a message is not valid for older clients
        let stop = found.stopped.as_deref().unwrap_or("not more nodes failed than it tolerates");
        let progress = if found.message.is_empty() { "no node is assigned anything" } else { &found.message };
        let labels = self_set_labels(&self.value["spec"]).join(", ");
        let conditions = [
            json!({"type": "Progressing", "status": yes(is_going), "reason": found.reason, "message": progress}),
            json!({"type": "Stopped", "status": yes(is_stopped), "reason": if is_stopped { "TooManyFailures" } else { "GoesOn" }, "message": stop}),
            json!({"type": "Complete", "status": yes(is_complete), "reason": found.phase, "message": progress}),
        ];
        let warning = json!({"type": "SelfSetLabels", "status": yes(!labels.is_empty()), "reason": if labels.is_empty() { "OnlyTrusted" } else { "NodesMayChoose" },
            "message": if labels.is_empty() { "no node may set a label of the selectors".to_owned() } else { format!("a node may set these labels itself, and so choose its configuration: {labels}") }});
        let uid = self.value["metadata"]["uid"].clone();
        let apply = move |rollout: &mut Value, now: &str| {
            if !rollout["status"].is_object() {
                rollout["status"] = json!({});
            }
            for condition in &conditions {
                set_condition(&mut rollout["status"], condition.clone(), now);
            }
            if warning["status"] == "True" || condition(&rollout["status"], "SelfSetLabels").is_some() {
                set_condition(&mut rollout["status"], warning.clone(), now);
            }
            for (field, value) in fields.as_object().into_iter().flatten() {
                match rollout["status"].as_object_mut() {
                    // in its stored form
                    Some(status) if *value == "" || *value == json!([]) => drop(status.remove(field)),
                    _ => rollout["status"][field] = value.clone(),
                }
            }
        };
        let mut after = self.value.clone();
        apply(&mut after, &rfc3339(self.now.wall));
        if after == self.value {
            return None;
        }
        let edit: Edit = Box::new(move |value, now| {
            let is_meant = value["metadata"]["uid"] == uid;
            if is_meant {
                apply(value, now);
            }
            is_meant
        });
        let (namespace, name) = (String::new(), self.name.to_owned());
        let action = Action::Update { kind: &CONFIG_ROLLOUT, namespace, name, edit, requires: Vec::new() };
        Some(self.task("report its status", action))
    }

    fn tell(
        &self,
        rollout: &mut Rollout,
        events: Vec<(&'static str, &'static str, String)>,
    ) -> Vec<Task<Purpose>> {
        let generation = self.value["metadata"]["generation"].as_i64().unwrap_or(0);
        if rollout.told.0 != generation || rollout.told.1.len() >= TOLD {
            rollout.told = (generation, BTreeSet::new());
        }
        let new = events.into_iter().filter(|(_, _, message)| rollout.told.1.insert(message.clone()));
        let new: Vec<_> = new.collect();
        new.iter()
            .map(|(sort, reason, message)| event(self.name, &rollout.uid, (sort, reason, message), self.now))
            .collect()
    }

    /// Writes the content of an older revision to the source, then removes the annotation that asks for it.
    fn undo(&self, rollout: &mut Rollout, revisions: &[Revision], asked: &str) -> Vec<Task<Purpose>> {
        let found = history::undone(revisions, asked);
        let payload = found.and_then(|found| self.content(&found.name));
        let mut tasks = Vec::new();
        match (found, payload) {
            (Some(found), Some(payload)) => {
                let is_done = self.payload().as_deref().ok() == Some(&*payload);
                if !is_done && !self.is_fixed() {
                    tasks.push(self.write_source(payload));
                    return tasks;
                }
                let told = if is_done {
                    let message = format!("Undone to revision {}, number {}", found.name, found.number);
                    ("Normal", "Undone", message)
                } else {
                    let source = &self.settings.source;
                    let message =
                        format!("ConfigMap {NAMESPACE}/{source} is immutable: replace it to go back");
                    ("Warning", "UndoImpossible", message)
                };
                tasks.extend(self.tell(rollout, vec![told]));
            }
            _ => {
                let message = format!("There is no revision {asked} to go back to");
                tasks.extend(self.tell(rollout, vec![("Warning", "UndoImpossible", message)]));
            }
        }
        let asked = asked.to_owned();
        let edit: Edit = Box::new(move |value, _| {
            let is_meant = text(value, &["metadata", "annotations", UNDO]) == asked;
            if let Some(annotations) = value["metadata"]["annotations"].as_object_mut().filter(|_| is_meant) {
                annotations.remove(UNDO);
            }
            is_meant
        });
        let (namespace, name) = (String::new(), self.name.to_owned());
        let action = Action::Update { kind: &CONFIG_ROLLOUT, namespace, name, edit, requires: Vec::new() };
        tasks.push(self.task("undo", action));
        tasks
    }

    fn content(&self, revision: &str) -> Option<String> {
        let object = self.world.get(&CONFIG_MAP, NAMESPACE, revision)?;
        Some(text(&object.value(), &["data", KEY]).to_owned()).filter(|found| !found.is_empty())
    }

    /// Writes a content to the source, unless the rollout or the source was changed meanwhile.
    fn write_source(&self, payload: String) -> Task<Purpose> {
        let Settings { source, key, .. } = self.settings;
        let (kind, mut requires) = (&CONFIG_MAP, vec![self.unchanged()]);
        let Some(found) = self.source() else {
            let value = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"namespace": NAMESPACE, "name": source}, "data": {key: payload}});
            return self.task("write the source", Action::Create { kind, value, requires });
        };
        let (namespace, name, revision) = (NAMESPACE.to_owned(), source.clone(), Some(found.revision));
        // else somebody's repair would be written over
        requires.push(Require::Unchanged { kind, namespace, name, revision });
        let key = key.clone();
        let edit: Edit = Box::new(move |value, _| {
            value["data"][&key] = payload.as_str().into();
            true
        });
        let (namespace, name) = (NAMESPACE.to_owned(), source.clone());
        self.task("write the source", Action::Update { kind, namespace, name, edit, requires })
    }

    fn roll_back(&self, rollout: &mut Rollout, from: &Revision, to: Option<&str>) -> Vec<Task<Purpose>> {
        let Some((to, payload)) = to.and_then(|to| Some((to, self.content(to)?))) else { return Vec::new() };
        if self.is_fixed() {
            let source = &self.settings.source;
            let message =
                format!("ConfigMap {NAMESPACE}/{source} is immutable: replace it to go back to {to}");
            return self.tell(rollout, vec![("Warning", "RollbackImpossible", message)]);
        }
        let mut tasks = vec![self.write_source(payload)];
        let message = format!("Rolled back from revision {}, number {}, to {to}", from.name, from.number);
        tasks.extend(self.tell(rollout, vec![("Warning", "RolledBack", message)]));
        tasks
    }
}

/// The failed nodes, each with the reason.
fn failed<'a>(rollout: &Rollout, states: &'a [State]) -> Vec<(String, &'a Why)> {
    let failed = rollout.rows.keys().zip(states).filter_map(|(name, state)| match state {
        State::Failed(why) => Some((name.to_string(), why)),
        _ => None,
    });
    failed.collect()
}

fn event(rollout: &str, uid: &str, told: (&str, &str, &str), now: Now) -> Task<Purpose> {
    let (sort, reason, message) = told;
    let about = About { kind: &CONFIG_ROLLOUT, namespace: "", name: rollout, uid, revision: None };
    let mark = format!("{:x}.{}", now.wall.unix_timestamp_nanos(), short(&format!("{reason}{message}")));
    let what = What { sort, reason, message };
    let value =
        record::event(&about, &what, "config-rollouts-controller", CLUSTER_EVENT_NAMESPACE, &mark, now);
    let purpose = Purpose { rollout: rollout.to_owned(), tries: None, node: None };
    Task { purpose, action: Action::create(&EVENT, value) }
}
