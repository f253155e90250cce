//! Garbage collection: deletes dependents of deleted owners, the objects of deleted namespaces, and old events.
//!
//! Inputs: every kind, deletions and changes of owners only. Outputs: every kind.
//! Always holds: an owner is gone when no object of its UID exists; owners of kinds that are not served never count as gone.
//! Everything is deleted by the same rules as a client's request.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use time::OffsetDateTime;

use super::controller::{Action, Controller, Decision, Done, Edit, Level, Line, Now, Task, World};
use crate::api_error::ApiError;
use crate::kinds::pod::NODE_NAME_FIELD;
use crate::kinds::{EVENT, KINDS, Kind, NAMESPACE, NODE, POD, index_of, schema};
use crate::object::{Event, Object};
use crate::requests::{DeleteOptions, FOREGROUND, ORPHAN, Propagation};
use crate::value::{at, text};

/// Events are deleted at this age, upstream's default. It counts from creation: an event that repeats for longer is created anew.
const EVENT_LIFE: time::Duration = time::Duration::hours(1);
/// Most events; the oldest are deleted first. A thousand nodes that roll back at once write a few thousand.
const MAX_EVENTS: usize = 20_000;
/// Time between two log lines of deletions: an owner with ten thousand dependents gets one line, not ten thousand.
const LOGGED_EVERY: Duration = Duration::from_secs(5);
/// Owners named in each line; the others are only counted.
const OWNERS_NAMED: usize = 10;
/// Longest logged owner name: names in references are not validated.
const OWNER_NAME_CHARS: usize = 253;
/// Most items checked in one step without an action, so that other controllers get their turn.
const ITEMS_PER_STEP: usize = 256;

/// An item to check.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    /// The object of this kind (its position in the table), namespace and name: whether to delete or finish it.
    Object(usize, String, String),
    /// Objects that name this UID as an owner.
    Dependents(String),
    /// Whether a terminating namespace is empty.
    Namespace(String),
    /// Terminating pods of nodes that are gone.
    LostPods,
    OldEvents,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Garbage {
    queue: VecDeque<Item>,
    queued: BTreeSet<Item>,
    tally: Tally,
    log: Vec<Line>,
    logged: Duration,
}

/// The purpose of an action.
#[derive(Debug)]
pub enum Purpose {
    /// Delete the named object, because of this owner of it, if any.
    Delete(String, Option<(Value, &'static Kind)>),
    /// Update the named object.
    Update(String),
    Finalize(String),
}

impl Controller for Garbage {
    type Purpose = Purpose;
    const NAME: &'static str = "garbage";
    const SWEEP: Option<Duration> = Some(Duration::from_secs(60));

    fn inputs() -> &'static [&'static Kind] {
        KINDS
    }

    fn outputs() -> &'static [&'static Kind] {
        KINDS
    }

    fn concerns(_: &'static Kind, event: &Event) -> bool {
        match (&event.old, &event.new) {
            (_, None) => true,
            (None, Some(new)) => new.terminating || !new.owners.is_empty(),
            (Some(old), Some(new)) => new.terminating || old.owners != new.owners,
        }
    }

    fn observe(&mut self, kind: &'static Kind, event: &Event) {
        let object = event.object();
        match (&event.old, &event.new) {
            (_, None) => {
                self.push(Item::Dependents(object.uid.to_string()));
                self.push_owners(object);
                if kind.namespaced {
                    self.push(Item::Namespace(object.namespace.to_string()));
                }
            }
            // an owner that waits for its dependents may have waited for this one
            (Some(old), Some(new)) if old.owners != new.owners => {
                self.push_owners(old);
                self.push_object(kind, new);
            }
            (_, Some(new)) => self.push_object(kind, new),
        }
    }

    fn sweep(&mut self, world: &dyn World) {
        for kind in KINDS {
            for object in world.list(kind, "") {
                if object.terminating || !object.owners.is_empty() {
                    self.push_object(kind, &object);
                }
            }
        }
        self.push(Item::LostPods);
        self.push(Item::OldEvents);
    }

    fn reconcile(&mut self, world: &dyn World, now: Now) -> Decision<Purpose> {
        let mut tasks = Vec::new();
        for _ in 0..ITEMS_PER_STEP {
            let Some(item) = self.queue.pop_front() else { break };
            self.queued.remove(&item);
            tasks = look(world, &item, now.wall);
            // the next decisions depend on the outcomes of these actions
            if !tasks.is_empty() {
                break;
            }
        }
        let next = (!self.tally.is_empty()).then_some(self.logged + LOGGED_EVERY);
        Decision { tasks, guarded: None, more: !self.queue.is_empty(), next }
    }

    fn performed(
        &mut self,
        purpose: Purpose,
        outcome: Result<Done, ApiError>,
        now: Now,
    ) -> Vec<Task<Purpose>> {
        if self.tally.is_empty() {
            self.logged = now.running;
        }
        match (purpose, outcome) {
            (Purpose::Delete(_, Some((owner, kind))), Ok(_)) => self.tally.collected(&owner, kind),
            (Purpose::Delete(..), Err(error)) if matches!(error.code, 404 | 409) => {}
            (Purpose::Delete(what, _), Err(error)) => {
                self.tally.failed(format!("cannot delete {what}: {error}"));
            }
            (Purpose::Finalize(name), Ok(_)) => {
                self.log.push((Level::Info, format!("namespace {name} is empty and gone")));
            }
            (Purpose::Update(_) | Purpose::Finalize(_), Err(error)) if error.code == 404 => {}
            (Purpose::Update(what), Err(error)) => {
                self.tally.failed(format!("cannot update {what}: {error}"));
            }
            (Purpose::Finalize(name), Err(error)) => {
                self.log.push((Level::Warning, format!("cannot finish namespace {name}: {error}")));
            }
            (Purpose::Delete(_, None) | Purpose::Update(_), Ok(_)) => {}
        }
        Vec::new()
    }

    fn take_log(&mut self, now: Now) -> Vec<Line> {
        let mut lines = std::mem::take(&mut self.log);
        if now.running >= self.logged + LOGGED_EVERY {
            self.logged = now.running;
            lines.extend(std::mem::take(&mut self.tally).lines());
        }
        lines
    }
}

impl Garbage {
    fn push(&mut self, item: Item) {
        if self.queued.insert(item.clone()) {
            self.queue.push_back(item);
        }
    }

    fn push_object(&mut self, kind: &Kind, object: &Object) {
        self.push(Item::Object(index_of(kind), object.namespace.to_string(), object.name.to_string()));
    }

    fn push_owners(&mut self, object: &Object) {
        for owner in references(&object.value()) {
            let Some(kind) = kind_of(&owner) else { continue };
            let namespace = if kind.namespaced { object.namespace.to_string() } else { String::new() };
            self.push(Item::Object(index_of(kind), namespace, text(&owner, &["name"]).to_owned()));
        }
    }
}

/// The actions for one item.
fn look(world: &dyn World, item: &Item, now: OffsetDateTime) -> Vec<Task<Purpose>> {
    match item {
        Item::Object(kind, namespace, name) => {
            let kind = KINDS[*kind];
            match world.get(kind, namespace, name) {
                Some(object) if object.terminating => finish(world, kind, &object),
                Some(object) if !object.owners.is_empty() => check_owners(world, kind, &object),
                _ => Vec::new(),
            }
        }
        Item::Dependents(uid) => {
            let dependents = world.dependents(uid);
            dependents.iter().flat_map(|(kind, object)| check_owners(world, kind, object)).collect()
        }
        Item::Namespace(name) => finish_namespace(world, name),
        Item::LostPods => release_lost_pods(world),
        Item::OldEvents => expire_events(world, now),
    }
}

/// Deletes an object when all its owners are gone; while one is left, only removes the references to the others.
fn check_owners(world: &dyn World, kind: &'static Kind, object: &Object) -> Vec<Task<Purpose>> {
    let (alive, gone): (Vec<Value>, Vec<Value>) = references(&object.value())
        .into_iter()
        .partition(|owner| owner_exists(world, &object.namespace, owner));
    if gone.is_empty() || object.terminating {
        return Vec::new();
    }
    if alive.is_empty() {
        let mut task = delete(kind, object, Propagation::Unset);
        if let Purpose::Delete(_, because) = &mut task.purpose {
            *because = gone.into_iter().next().map(|owner| (owner, kind));
        }
        return vec![task];
    }
    gone.iter().map(|owner| disown(kind, object, text(owner, &["uid"]))).collect()
}

/// Advances an object that is marked for deletion.
fn finish(world: &dyn World, kind: &'static Kind, object: &Object) -> Vec<Task<Purpose>> {
    let value = object.value();
    let mut tasks = Vec::new();
    if kind.kind == NAMESPACE.kind {
        tasks.extend(empty_namespace(world, &object.name));
    }
    if has_finalizer(&value, ORPHAN) {
        let dependents = world.dependents(&object.uid);
        tasks.extend(dependents.iter().map(|(kind, dependent)| disown(kind, dependent, &object.uid)));
        tasks.push(remove_finalizer(kind, object, ORPHAN));
    }
    if has_finalizer(&value, FOREGROUND) {
        let blocking = blocking(world, &object.uid);
        if blocking.is_empty() {
            tasks.push(remove_finalizer(kind, object, FOREGROUND));
        }
        // the last of them to be deleted or disowned queues this object again
        tasks.extend(
            blocking.iter().map(|(kind, dependent)| delete_first(world, kind, dependent, &object.uid)),
        );
    }
    tasks
}

/// Deletes a dependent that an owner waits for, in the foreground as well. A dependent with another owner is kept.
fn delete_first(world: &dyn World, kind: &'static Kind, dependent: &Object, owner: &str) -> Task<Purpose> {
    let shared = references(&dependent.value()).iter().any(|reference| {
        text(reference, &["uid"]) != owner && owner_exists(world, &dependent.namespace, reference)
    });
    if shared {
        return disown(kind, dependent, owner);
    }
    let leaf = world.dependents(&dependent.uid).is_empty();
    let propagation = if leaf { Propagation::Unset } else { Propagation::Foreground };
    delete(kind, dependent, propagation)
}

/// Deletes the objects of a terminating namespace, or, if it is empty, the namespace.
fn empty_namespace(world: &dyn World, name: &str) -> Vec<Task<Purpose>> {
    let content = world.in_namespace(name);
    if content.is_empty() {
        return finish_namespace(world, name);
    }
    let left = content.iter().filter(|(_, object)| !object.terminating);
    left.map(|(kind, object)| {
        let options = DeleteOptions { propagation: Propagation::Background, ..DeleteOptions::default() };
        delete_with(kind, object, options)
    })
    .collect()
}

fn finish_namespace(world: &dyn World, name: &str) -> Vec<Task<Purpose>> {
    let terminating = world.get(&NAMESPACE, "", name).is_some_and(|found| found.terminating);
    if !terminating || !world.in_namespace(name).is_empty() {
        return Vec::new();
    }
    let name = name.to_owned();
    vec![Task { purpose: Purpose::Finalize(name.clone()), action: Action::FinalizeNamespace { name } }]
}

/// Deletes terminating pods of nodes that are gone: nobody else would confirm their end.
fn release_lost_pods(world: &dyn World) -> Vec<Task<Purpose>> {
    let pods = world.list(&POD, "");
    let lost = pods.iter().filter(|pod| {
        let node = pod.field(NODE_NAME_FIELD);
        pod.terminating && !node.is_empty() && world.get(&NODE, "", node).is_none()
    });
    lost.map(|pod| {
        let uid = Some(pod.uid.to_string());
        delete_with(&POD, pod, DeleteOptions { uid, grace_secs: Some(0), ..DeleteOptions::default() })
    })
    .collect()
}

fn expire_events(world: &dyn World, now: OffsetDateTime) -> Vec<Task<Purpose>> {
    let mut events = world.list(&EVENT, "");
    // a repeating event is updated: its revision tells its age among the others
    events.sort_by_key(|event| event.revision);
    let surplus = events.len().saturating_sub(MAX_EVENTS);
    let expired = events.iter().enumerate().filter(|(index, event)| {
        *index < surplus || made_at(&event.value()).is_some_and(|made| now - made > EVENT_LIFE)
    });
    expired.map(|(_, event)| delete(&EVENT, event, Propagation::Unset)).collect()
}

fn delete(kind: &'static Kind, object: &Object, propagation: Propagation) -> Task<Purpose> {
    let uid = Some(object.uid.to_string());
    delete_with(kind, object, DeleteOptions { uid, propagation, ..DeleteOptions::default() })
}

fn delete_with(kind: &'static Kind, object: &Object, options: DeleteOptions) -> Task<Purpose> {
    let (namespace, name) = (object.namespace.to_string(), object.name.to_string());
    let purpose = Purpose::Delete(shown(kind, object), None);
    Task { purpose, action: Action::Delete { kind, namespace, name, options } }
}

fn update(kind: &'static Kind, object: &Object, edit: Edit) -> Task<Purpose> {
    let (namespace, name) = (object.namespace.to_string(), object.name.to_string());
    let purpose = Purpose::Update(shown(kind, object));
    Task { purpose, action: Action::Update { kind, namespace, name, edit } }
}

fn disown(kind: &'static Kind, dependent: &Object, owner: &str) -> Task<Purpose> {
    let owner = owner.to_owned();
    let edit: Edit = Box::new(move |value, _| {
        if let Some(owners) = value["metadata"]["ownerReferences"].as_array_mut() {
            owners.retain(|reference| reference["uid"] != *owner);
        }
        true
    });
    update(kind, dependent, edit)
}

fn remove_finalizer(kind: &'static Kind, object: &Object, finalizer: &'static str) -> Task<Purpose> {
    let uid = object.uid.to_string();
    let edit: Edit = Box::new(move |value, _| {
        let is_meant = value["metadata"]["uid"] == *uid;
        if is_meant && let Some(finalizers) = value["metadata"]["finalizers"].as_array_mut() {
            finalizers.retain(|known| known != finalizer);
        }
        is_meant
    });
    update(kind, object, edit)
}

fn shown(kind: &Kind, object: &Object) -> String {
    format!("{} {}/{}", kind.plural, object.namespace, object.name)
}

/// The content of the next log lines; bounded, whatever happens until then.
#[derive(Debug, Default)]
struct Tally {
    /// How many objects of which kind were deleted because this owner is gone, for the first [`OWNERS_NAMED`] owners.
    collected: BTreeMap<String, BTreeMap<&'static str, usize>>,
    /// The number of deleted objects of further owners.
    of_others: usize,
    /// The first failure, and the number of failures.
    failure: String,
    failures: usize,
}

impl Tally {
    fn is_empty(&self) -> bool {
        self.collected.is_empty() && self.failures == 0
    }

    fn collected(&mut self, owner: &Value, kind: &Kind) {
        let name: String = text(owner, &["name"]).chars().take(OWNER_NAME_CHARS).collect();
        let owner = format!("{} {name:?}", text(owner, &["kind"]));
        if self.collected.len() < OWNERS_NAMED || self.collected.contains_key(&owner) {
            *self.collected.entry(owner).or_default().entry(kind.plural).or_default() += 1;
        } else {
            self.of_others += 1;
        }
    }

    fn failed(&mut self, why: String) {
        if self.failures == 0 {
            self.failure = why;
        }
        self.failures += 1;
    }

    fn lines(self) -> Vec<Line> {
        let mut lines: Vec<_> = self
            .collected
            .iter()
            .map(|(owner, counts)| {
                let counts: Vec<String> =
                    counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
                (Level::Info, format!("{owner} is gone, and with it: {}", counts.join(", ")))
            })
            .collect();
        if self.of_others > 0 {
            let line = format!("and {} more objects whose owners are gone", self.of_others);
            lines.push((Level::Info, line));
        }
        if self.failures > 0 {
            let more = match self.failures - 1 {
                0 => String::new(),
                more => format!(", and {more} more failures like it"),
            };
            lines.push((Level::Warning, format!("{}{more}; trying again", self.failure)));
        }
        lines
    }
}

fn references(value: &Value) -> Vec<Value> {
    at(value, &["metadata", "ownerReferences"]).and_then(Value::as_array).cloned().unwrap_or_default()
}

/// The kind of a reference, if it is served.
fn kind_of(owner: &Value) -> Option<&'static Kind> {
    let (version, kind) = (text(owner, &["apiVersion"]), text(owner, &["kind"]));
    KINDS.iter().copied().find(|known| known.kind == kind && known.api_version() == version)
}

fn owner_exists(world: &dyn World, namespace: &str, owner: &Value) -> bool {
    let Some(kind) = kind_of(owner) else { return true };
    // a cluster-scoped object cannot name the namespace of its owner: upstream ignores such a reference
    if kind.namespaced && namespace.is_empty() {
        return true;
    }
    let namespace = if kind.namespaced { namespace } else { "" };
    let found = world.get(kind, namespace, text(owner, &["name"]));
    found.is_some_and(|found| &*found.uid == text(owner, &["uid"]))
}

fn has_finalizer(value: &Value, finalizer: &str) -> bool {
    let finalizers = at(value, &["metadata", "finalizers"]).and_then(Value::as_array);
    finalizers.is_some_and(|finalizers| finalizers.iter().any(|known| known == finalizer))
}

/// The dependents with blockOwnerDeletion, which the owner waits for. Others are deleted after the owner, as upstream.
fn blocking(world: &dyn World, owner: &str) -> Vec<(&'static Kind, Arc<Object>)> {
    let blocks = |dependent: &Object| {
        references(&dependent.value())
            .iter()
            .any(|reference| text(reference, &["uid"]) == owner && reference["blockOwnerDeletion"] == true)
    };
    let mut dependents = world.dependents(owner);
    dependents.retain(|(_, dependent)| blocks(dependent));
    dependents
}

/// The creation time of an event by our own clock; its other times are by a node's clock, which may be years off.
fn made_at(value: &Value) -> Option<time::OffsetDateTime> {
    schema::parse_time(text(value, &["metadata", "creationTimestamp"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{CONFIG_MAP, LEASE};
    use serde_json::json;

    #[test]
    fn collected_objects_are_one_line_per_owner() {
        let owner = |name: &str| json!({"kind": "Node", "name": name, "uid": "u"});
        let mut tally = Tally::default();
        for _ in 0..10_000 {
            tally.collected(&owner("a"), &POD);
        }
        tally.collected(&owner("a"), &LEASE);
        for number in 0..OWNERS_NAMED + 5 {
            tally.collected(&owner(&format!("n\n{number:02}")), &CONFIG_MAP);
        }
        for _ in 0..3 {
            tally.failed("cannot delete pods default/p: the disk is full".to_owned());
        }
        let lines = std::mem::take(&mut tally).lines();
        assert_eq!(lines.len(), OWNERS_NAMED + 2);
        assert_eq!(lines[0].1, "Node \"a\" is gone, and with it: 1 leases, 10000 pods");
        assert_eq!(lines[1].1, "Node \"n\\n00\" is gone, and with it: 1 configmaps");
        assert_eq!(lines[OWNERS_NAMED].1, "and 6 more objects whose owners are gone");
        let failure =
            "cannot delete pods default/p: the disk is full, and 2 more failures like it; trying again";
        assert_eq!(lines[OWNERS_NAMED + 1], (Level::Warning, failure.to_owned()));
        tally.failed("cannot delete pods default/p: the disk is full".to_owned());
        assert_eq!(
            tally.lines(),
            [(Level::Warning, "cannot delete pods default/p: the disk is full; trying again".to_owned())]
        );
    }
}
