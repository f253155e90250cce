//! Garbage collection: deletes dependents of deleted owners, and finishes deletions that wait for dependents.
//!
//! Inputs: every kind, deletions and changes of owners only. Outputs: every kind. Always holds: an owner is
//! gone when no object of its UID exists under the name in the reference; owners of kinds that are not served
//! never count as gone. The cost of a step grows with its deletions only: dependents, lost owners and pending
//! deletions are found by index. Objects are deleted in groups that share commits: each decision is right
//! whether or not the others of its group succeed, and is made again when it fails. Everything is deleted by
//! the same rules as a client's request.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use serde_json::Value;

use super::controller::{Action, Controller, Decision, Done, Edit, Level, Line, Now, Task, World};
use crate::api_error::ApiError;
use crate::kinds::{KINDS, Kind, index_of};
use crate::object::{Event, Object};
use crate::requests::{DeleteOptions, FOREGROUND, ORPHAN, Propagation};
use crate::value::{at, text};

/// Time between two log lines of deletions: an owner with ten thousand dependents gets one line, not ten
/// thousand.
const LOGGED_EVERY: Duration = Duration::from_secs(5);
/// Owners named in each line; the others are only counted.
const OWNERS_NAMED: usize = 10;
/// Longest logged owner name: names in references are not validated.
const OWNER_NAME_CHARS: usize = 253;
/// Most items checked in one step, so that other controllers get their turn.
const ITEMS_PER_STEP: usize = 256;

/// An item to check.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    /// The object of this kind (its position in the table), namespace and name: check whether to delete or
    /// finish it.
    Object(usize, String, String),
    /// The objects that name this UID as an owner.
    Dependents(String),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Garbage {
    queue: VecDeque<Item>,
    queued: BTreeSet<Item>,
    /// Items whose actions failed, until the next sweep.
    failed: BTreeSet<Item>,
    tally: Tally,
    logged: Duration,
}

/// The purpose of an action.
#[derive(Debug)]
pub struct Purpose {
    /// Checked again if the action fails.
    item: Item,
    /// The missing owner, if the object is deleted because of it.
    owner: Option<Value>,
}

impl Controller for Garbage {
    type Purpose = Purpose;
    const NAME: &'static str = "garbage";
    const SWEEP: Option<Duration> = Some(Duration::from_secs(60));
    /// One commit's worth: the store makes a group durable together.
    const AT_ONCE: usize = 256;

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
            }
            (old, Some(new)) => {
                self.push(item(kind, new));
                // the deletion of an owner may have begun to wait for its dependents
                if new.terminating {
                    self.push(Item::Dependents(object.uid.to_string()));
                }
                // an owner that waits for its dependents may have waited for this one
                if let Some(old) = old.as_ref().filter(|old| old.owners != new.owners || new.terminating) {
                    self.push_owners(old);
                }
            }
        }
    }

    fn sweep(&mut self, world: &dyn World) {
        for owner in world.lost_owners() {
            self.push(Item::Dependents(owner));
        }
        for (kind, object) in world.terminating() {
            self.push(item(kind, &object));
            self.push(Item::Dependents(object.uid.to_string()));
        }
        for item in std::mem::take(&mut self.failed) {
            self.push(item);
        }
    }

    fn reconcile(&mut self, world: &dyn World, _: Now) -> Decision<Purpose> {
        let mut tasks = Vec::new();
        for _ in 0..ITEMS_PER_STEP {
            let Some(item) = self.queue.pop_front() else { break };
            self.queued.remove(&item);
            match &item {
                Item::Object(kind, namespace, name) => {
                    if let Some(object) = world.get(KINDS[*kind], namespace, name) {
                        tasks.extend(look(world, KINDS[*kind], &object));
                    }
                }
                Item::Dependents(uid) => {
                    for (kind, dependent) in world.dependents(uid) {
                        self.push(self::item(kind, &dependent));
                    }
                }
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
        let Purpose { item, owner } = purpose;
        let (Item::Object(kind, ..), Some(owner)) = (&item, &owner) else {
            return self.updated(item, outcome);
        };
        match outcome {
            Ok(_) => self.tally.collected(owner, KINDS[*kind]),
            outcome => return self.updated(item, outcome),
        }
        Vec::new()
    }

    fn take_log(&mut self, now: Now) -> Vec<Line> {
        if now.running < self.logged + LOGGED_EVERY {
            return Vec::new();
        }
        self.logged = now.running;
        std::mem::take(&mut self.tally).lines()
    }
}

impl Garbage {
    fn push(&mut self, item: Item) {
        if self.queued.insert(item.clone()) {
            self.queue.push_back(item);
        }
    }

    fn push_owners(&mut self, object: &Object) {
        if object.owners.is_empty() {
            return;
        }
        for owner in references(&object.value()) {
            let Some(kind) = kind_of(&owner) else { continue };
            let namespace = if kind.namespaced { object.namespace.to_string() } else { String::new() };
            self.push(Item::Object(index_of(kind), namespace, text(&owner, &["name"]).to_owned()));
        }
    }

    fn updated(&mut self, item: Item, outcome: Result<Done, ApiError>) -> Vec<Task<Purpose>> {
        match outcome {
            Ok(_) => {}
            Err(error) if error.code == 404 => {}
            // it changed since the decision
            Err(error) if error.code == 409 => self.push(item),
            Err(error) => {
                if let Item::Object(kind, namespace, name) = &item {
                    let what = KINDS[*kind].plural;
                    self.tally.failed(format!("cannot delete or update {what} {namespace}/{name}: {error}"));
                }
                self.failed.insert(item);
            }
        }
        Vec::new()
    }
}

fn item(kind: &Kind, object: &Object) -> Item {
    Item::Object(index_of(kind), object.namespace.to_string(), object.name.to_string())
}

/// The actions for one object.
fn look(world: &dyn World, kind: &'static Kind, object: &Object) -> Vec<Task<Purpose>> {
    match (object.terminating, object.owners.is_empty()) {
        (true, _) => finish(world, kind, object),
        (false, false) => check_owners(world, kind, object),
        (false, true) => Vec::new(),
    }
}

/// The state of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Alive,
    /// Its deletion waits for the dependents that block it.
    Waiting,
    Gone,
}

/// Upstream's rules: if a living owner remains that does not wait for its dependents, the object stays,
/// without the references to the other owners; otherwise it is deleted. In a ring of owners that wait for
/// each other, the object before the one that was deleted first stops blocking.
fn check_owners(world: &dyn World, kind: &'static Kind, object: &Object) -> Vec<Task<Purpose>> {
    let references = references(&object.value());
    let states: Vec<Owner> = references.iter().map(|owner| owner_state(world, object, owner)).collect();
    let is = |state: Owner| states.contains(&state);
    if states.iter().all(|state| *state == Owner::Alive) {
        return Vec::new();
    }
    if is(Owner::Alive) {
        let lost = references.iter().zip(&states).filter(|(_, state)| **state != Owner::Alive);
        return vec![disown(kind, object, lost.map(|(owner, _)| text(owner, &["uid"]).to_owned()).collect())];
    }
    if is(Owner::Waiting) {
        let dependents = world.dependents(&object.uid);
        let ring = dependents.iter().any(|(_, dependent)| waits(dependent));
        let propagation = if dependents.is_empty() { Propagation::Unset } else { Propagation::Foreground };
        let unblocked = ring.then(|| unblock(kind, object));
        // `unblock` changes the version, so a deletion at the present version would fail
        let version = (!ring).then(|| object.revision.to_string());
        return unblocked.into_iter().chain([delete(kind, object, propagation, version, None)]).collect();
    }
    let version = Some(object.revision.to_string());
    vec![delete(kind, object, Propagation::Unset, version, references.into_iter().next())]
}

/// Advances an object that is marked for deletion. The object is queued again when its last dependent is
/// deleted or disowned.
fn finish(world: &dyn World, kind: &'static Kind, object: &Object) -> Vec<Task<Purpose>> {
    let value = object.value();
    let mut tasks = Vec::new();
    if has_finalizer(&value, ORPHAN) {
        let mut dependents = world.dependents(&object.uid);
        dependents.retain(|(_, dependent)| names(kind, object, dependent, false));
        if dependents.is_empty() {
            tasks.push(remove_finalizer(kind, object, ORPHAN));
        }
        tasks.extend(
            dependents.iter().map(|(of, dependent)| disown(of, dependent, vec![object.uid.to_string()])),
        );
    }
    if has_finalizer(&value, FOREGROUND) {
        let dependents = world.dependents(&object.uid);
        if !dependents.iter().any(|(_, dependent)| names(kind, object, dependent, true)) {
            tasks.push(remove_finalizer(kind, object, FOREGROUND));
        }
    }
    tasks
}

/// Whether a dependent really names this owner, by kind, name and UID and in the same scope, and (if
/// `blocking`) blocks its deletion. A reference with only the right UID must not block the deletion of
/// somebody else's object.
fn names(kind: &Kind, owner: &Object, dependent: &Object, blocking: bool) -> bool {
    let reaches = !kind.namespaced || dependent.namespace == owner.namespace;
    reaches
        && references(&dependent.value()).iter().any(|reference| {
            *text(reference, &["uid"]) == *owner.uid
                && *text(reference, &["name"]) == *owner.name
                && kind_of(reference)
                    .is_some_and(|found| found.kind == kind.kind && found.group == kind.group)
                && (!blocking || reference["blockOwnerDeletion"] == true)
        })
}

/// Whether its deletion waits for its dependents.
fn waits(object: &Object) -> bool {
    object.terminating && has_finalizer(&object.value(), FOREGROUND)
}

fn delete(
    kind: &'static Kind,
    object: &Object,
    propagation: Propagation,
    resource_version: Option<String>,
    owner: Option<Value>,
) -> Task<Purpose> {
    let (namespace, name) = (object.namespace.to_string(), object.name.to_string());
    let uid = Some(object.uid.to_string());
    let options = DeleteOptions { uid, resource_version, propagation, ..DeleteOptions::default() };
    let purpose = Purpose { item: item(kind, object), owner };
    Task { purpose, action: Action::Delete { kind, namespace, name, options, requires: Vec::new() } }
}

fn update(
    kind: &'static Kind,
    object: &Object,
    mut edit: impl FnMut(&mut Value) + Send + 'static,
) -> Task<Purpose> {
    let (namespace, name) = (object.namespace.to_string(), object.name.to_string());
    let uid = object.uid.to_string();
    let edit: Edit = Box::new(move |value, _| {
        let is_meant = value["metadata"]["uid"] == *uid;
        if is_meant {
            edit(value);
        }
        is_meant
    });
    let purpose = Purpose { item: item(kind, object), owner: None };
    Task { purpose, action: Action::Update { kind, namespace, name, edit, requires: Vec::new() } }
}

/// Removes the references to these owners.
fn disown(kind: &'static Kind, dependent: &Object, owners: Vec<String>) -> Task<Purpose> {
    update(kind, dependent, move |value| {
        if let Some(references) = value["metadata"]["ownerReferences"].as_array_mut() {
            references.retain(|reference| !owners.iter().any(|owner| reference["uid"] == **owner));
        }
    })
}

/// Clears `blockOwnerDeletion`, so that the deletion of its owners no longer waits for this object.
fn unblock(kind: &'static Kind, object: &Object) -> Task<Purpose> {
    update(kind, object, |value| {
        let references = value["metadata"]["ownerReferences"].as_array_mut();
        for reference in references.into_iter().flatten().filter(|one| one["blockOwnerDeletion"] == true) {
            reference["blockOwnerDeletion"] = false.into();
        }
    })
}

fn remove_finalizer(kind: &'static Kind, object: &Object, finalizer: &'static str) -> Task<Purpose> {
    update(kind, object, move |value| {
        if let Some(finalizers) = value["metadata"]["finalizers"].as_array_mut() {
            finalizers.retain(|known| known != finalizer);
        }
    })
}

/// The content of the next log lines; bounded, however many deletions there are until then.
#[derive(Debug, Default)]
struct Tally {
    /// How many objects of which kind were deleted because this owner is gone, for the first [`OWNERS_NAMED`]
    /// owners.
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

fn owner_state(world: &dyn World, object: &Object, owner: &Value) -> Owner {
    let Some(kind) = kind_of(owner) else { return Owner::Alive };
    // a cluster-scoped object cannot name the namespace of its owner: upstream ignores such a reference
    if kind.namespaced && object.namespace.is_empty() {
        return Owner::Alive;
    }
    let namespace = if kind.namespaced { &*object.namespace } else { "" };
    match world.get(kind, namespace, text(owner, &["name"])) {
        Some(found) if *found.uid == *text(owner, &["uid"]) => {
            if waits(&found) {
                Owner::Waiting
            } else {
                Owner::Alive
            }
        }
        _ => Owner::Gone,
    }
}

fn has_finalizer(value: &Value, finalizer: &str) -> bool {
    let finalizers = at(value, &["metadata", "finalizers"]).and_then(Value::as_array);
    finalizers.is_some_and(|finalizers| finalizers.iter().any(|known| known == finalizer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{CONFIG_MAP, LEASE, POD};
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
