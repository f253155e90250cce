//! The order of changes: preconditions, revisions, and the content of each durable commit.
//!
//! Two classes. A *durable* change becomes visible after the commit that holds it was flushed. A *volatile* one (a Lease renewal)
//! is visible at once and becomes durable with all others of the same [`FLUSH`], not with whatever is committed meanwhile: a fleet
//! always commits something, and each renewal would cost the flash a page. A crash may lose the renewals of that time, never more.
//! Always holds: revisions rise, also over crashes, because ranges are reserved durably before they are used and an unclean start
//! begins above the reserved mark; nothing visible or acknowledged as durable is ever taken back.
//! Left to others: when to commit and when renewals are due (no clock here), and the store that commits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::condition::Refusal;
use super::index::{Changed, Index, Sink};
use super::requires::{Charges, Require, judge};
use crate::cost::{self, Excess};
use crate::kinds::{KINDS, Kind, index_of};
use crate::object::{Event, Object, key};

/// Revisions reserved at a time: at 500 writes a second a new reservation is due every three minutes.
pub const RESERVE: u64 = 100_000;
/// The highest revision to start from: SQLite and clients count in signed 64 bits, and a thousand changes a second for a million years
/// do not come near it. A store that names a higher one was not written by us.
const MAX_REVISION: u64 = 1 << 62;
/// A new range is reserved when fewer than this are left; more than any batch uses.
const RESERVE_LOW: u64 = 10_000;
/// Largest stored object; the limit that upstream's etcd sets.
pub const MAX_OBJECT_BYTES: usize = 1536 * 1024;
/// The longest time a renewal stays in memory only.
pub const FLUSH: Duration = Duration::from_secs(30);

/// One stored object.
#[derive(Debug)]
pub struct Record {
    /// `plural` or `plural.group`.
    pub resource: String,
    /// Empty for cluster-scoped kinds.
    pub namespace: String,
    pub name: String,
    /// The revision at which it was written.
    pub revision: u64,
    pub json: Vec<u8>,
}

/// One change of a durable commit.
#[derive(Debug)]
pub enum Change<'a> {
    /// Insert or replace.
    Put { resource: &'a str, namespace: &'a str, name: &'a str, revision: u64, json: &'a [u8] },
    /// Remove; a missing object is no error.
    Delete { resource: &'a str, namespace: &'a str, name: &'a str },
}

/// The revision marks found when a store is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marks {
    /// No revision above this was ever handed out.
    pub reserved: u64,
    /// The last revision handed out, only known after a clean close.
    pub clean: Option<u64>,
}

/// The precondition of a write on the object itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// No object of that name.
    Absent,
    /// The object at this revision.
    Revision(u64),
}

/// One change to be made.
#[derive(Debug, Clone)]
pub struct Write {
    pub kind: &'static Kind,
    /// Empty for cluster-scoped kinds.
    pub namespace: String,
    pub name: String,
    pub expect: Expect,
    /// Preconditions on other objects: all must hold.
    pub requires: Vec<Require>,
    /// The object to store, its resourceVersion is set here; `None` deletes.
    pub new: Option<Value>,
    /// May be acknowledged before it is durable.
    pub volatile: bool,
}

/// Why a change was not made.
#[derive(Debug, Clone)]
pub enum WriteError {
    /// A precondition does not hold: read again and retry.
    Mismatch,
    /// The user whom the object is charged to would have more than its quota; the text is upstream's.
    OverQuota(String),
    /// The object is larger than [`MAX_OBJECT_BYTES`].
    TooLarge,
    /// The object could not be read back.
    Excess(Excess),
    /// The store could not make it durable; nothing changed.
    Failed(String),
    /// It was not tried, because changes before it failed; nothing changed.
    Refused(Refusal),
    /// The store failed while it made it durable: it may or may not be found after the next start.
    Uncertain(String),
    /// Too many changes wait.
    Busy,
    /// The disk took too long; the change may still be made.
    TimedOut,
    /// The disk took too long with the changes before it; this one was taken back and is not made.
    TakenBack,
    /// The writer has ended.
    Closed,
}

/// Changes that go into one commit, each judged against those before it.
#[derive(Debug, Default)]
pub struct Batch {
    staged: Vec<Changed>,
    overlay: BTreeMap<(usize, String), Option<Arc<Object>>>,
    pub(super) charges: Charges,
}

impl Batch {
    /// The object as the staged writes leave it.
    pub(super) fn get<S: Sink>(
        &self,
        index: &Index<S>,
        kind: &Kind,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<Object>> {
        match self.overlay.get(&(index_of(kind), key(namespace, name))) {
            Some(staged) => staged.clone(),
            None => index.get(kind, namespace, name),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.staged.is_empty()
    }

    pub fn len(&self) -> usize {
        self.staged.len()
    }
}

/// The changes to make durable, all or none.
#[derive(Debug)]
pub struct Commit {
    staged: Vec<Changed>,
    renewals: Vec<(&'static Kind, Arc<Object>)>,
    flush: bool,
    /// The new reserved mark, if one is due.
    pub reserve: Option<u64>,
}

impl Commit {
    /// The changes for the store; `names` are the resource names of [`KINDS`]. Renewals come first: a staged change of the same
    /// object is later.
    pub fn changes<'a>(&'a self, names: &'a [String]) -> Vec<Change<'a>> {
        let mut changes = Vec::with_capacity(self.renewals.len() + self.staged.len());
        changes.extend(self.renewals.iter().map(|(kind, object)| put(&names[index_of(kind)], object)));
        changes.extend(self.staged.iter().map(|Changed { kind, event }| {
            let resource = &*names[index_of(kind)];
            match &event.new {
                Some(object) => put(resource, object),
                None => {
                    let object = event.object();
                    Change::Delete { resource, namespace: &object.namespace, name: &object.name }
                }
            }
        }));
        changes
    }
}

fn put<'a>(resource: &'a str, object: &'a Object) -> Change<'a> {
    Change::Put {
        resource,
        namespace: &object.namespace,
        name: &object.name,
        revision: object.revision,
        json: &object.json,
    }
}

/// Gives changes their revisions. See the module.
#[derive(Debug)]
pub struct Order {
    revision: u64,
    reserved: u64,
    /// Objects whose latest renewal is only in memory, by the position of their kind and their key.
    unsaved: BTreeSet<(usize, String)>,
}

impl Order {
    /// Of a start whose reservation could not be made durable: no revision is handed out before a commit has made one.
    #[must_use]
    pub fn unreserved(self) -> Order {
        Order { reserved: self.revision, ..self }
    }

    /// The last revision that was handed out.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Objects whose latest renewal is only in memory.
    pub fn unsaved(&self) -> usize {
        self.unsaved.len()
    }

    /// Adds a durable change to the batch, judged against what the batch already changed, or the index. Returns the object as the
    /// change leaves it.
    ///
    /// # Errors
    /// The batch is as before.
    pub fn stage<S: Sink>(
        &mut self,
        index: &Index<S>,
        batch: &mut Batch,
        mut write: Write,
    ) -> Result<Arc<Object>, WriteError> {
        let place = (index_of(write.kind), key(&write.namespace, &write.name));
        let current = batch.get(index, write.kind, &write.namespace, &write.name);
        let requires = std::mem::take(&mut write.requires);
        let changed = self.change(write, current)?;
        let (old, new) = (changed.event.old.as_deref(), changed.event.new.as_deref());
        if let Err(refused) = judge(&requires, index, batch, changed.kind, (old, new)) {
            self.revision -= 1;
            return Err(refused);
        }
        batch.charges.add(changed.kind, old, new);
        batch.overlay.insert(place, changed.event.new.clone());
        let object = changed.event.object().clone();
        batch.staged.push(changed);
        Ok(object)
    }

    /// A volatile change: to be published at once, and durable with the next commit that flushes.
    pub fn renew<S: Sink>(&mut self, index: &Index<S>, write: Write) -> Result<Changed, WriteError> {
        let place = (index_of(write.kind), key(&write.namespace, &write.name));
        let current = index.get(write.kind, &write.namespace, &write.name);
        let changed = self.change(write, current)?;
        self.unsaved.insert(place);
        Ok(changed)
    }

    fn change(&mut self, write: Write, current: Option<Arc<Object>>) -> Result<Changed, WriteError> {
        let found = current.as_ref().map_or(Expect::Absent, |object| Expect::Revision(object.revision));
        if found != write.expect || (write.new.is_none() && current.is_none()) {
            return Err(WriteError::Mismatch);
        }
        if self.revision >= self.reserved {
            return Err(WriteError::Failed("no revision can be reserved on the disk".to_owned()));
        }
        let event = event(write.kind, self.revision + 1, write.new, current)?;
        if event.new.as_ref().is_some_and(|new| new.json.len() > MAX_OBJECT_BYTES) {
            return Err(WriteError::TooLarge);
        }
        self.revision += 1;
        Ok(Changed { kind: write.kind, event: Arc::new(event) })
    }

    /// The changes to make durable now: the batch, all renewals that are only in memory if `flush`, and a new reservation if one is due.
    /// `None`: nothing.
    pub fn commit<S: Sink>(&self, index: &Index<S>, batch: Batch, flush: bool) -> Option<Commit> {
        let reserve = (self.reserved - self.revision <= RESERVE_LOW).then(|| self.revision + RESERVE);
        if batch.is_empty() && !flush && reserve.is_none() {
            return None;
        }
        let unsaved = self.unsaved.iter().filter(|_| flush);
        let renewals = unsaved.filter_map(|(kind, place)| {
            let (namespace, name) = place.split_once('/')?;
            Some((KINDS[*kind], index.get(KINDS[*kind], namespace, name)?))
        });
        Some(Commit { staged: batch.staged, renewals: renewals.collect(), flush, reserve })
    }

    /// The commit is durable. Returns the changes to publish. (After one that failed there is nothing to do: nothing changed, and
    /// its revisions are not used again.)
    pub fn committed(&mut self, commit: Commit) -> Vec<Changed> {
        self.reserved = commit.reserve.unwrap_or(self.reserved);
        if commit.flush {
            self.unsaved.clear();
        }
        commit.staged
    }
}

fn event(
    kind: &Kind,
    revision: u64,
    new: Option<Value>,
    old: Option<Arc<Object>>,
) -> Result<Event, WriteError> {
    let stamped = |mut value: Value| {
        value["metadata"]["resourceVersion"] = revision.to_string().into();
        let unnamed = || WriteError::Failed("the object has no name".to_owned());
        Object::new(kind, &value, revision)
            .map(Arc::new)
            .ok_or_else(|| cost::check_depth(&value).err().map_or_else(unnamed, WriteError::Excess))
    };
    match (new, &old) {
        (Some(value), _) => Ok(Event { revision, new: Some(stamped(value)?), old, last: None }),
        (None, Some(gone)) => {
            let last = Some(stamped(gone.value())?);
            Ok(Event { revision, old, new: None, last })
        }
        (None, None) => Err(WriteError::Mismatch),
    }
}

/// The state loaded from a store.
#[derive(Debug)]
pub struct Restored<S> {
    pub index: Index<S>,
    pub order: Order,
    /// The reservation to make durable before anything else.
    pub reserve: u64,
    /// Records of kinds that are not served: they stay in the store and are not shown.
    pub unserved: Vec<String>,
}

/// From the records of a store. Revisions start above every revision that was ever handed out.
///
/// # Errors
/// The store was not written by us: an object without a name, or a revision out of range.
pub fn restore<S: Sink>(marks: Marks, records: Vec<Record>) -> Result<Restored<S>, String> {
    // an object newer than the marks is a fault of the store; versions must not go back even then
    let newest = records.iter().map(|record| record.revision).max().unwrap_or(0);
    // 0 means "any version" to clients, so revisions start above it
    let start = marks.clean.unwrap_or(marks.reserved).max(newest).max(1);
    if start > MAX_REVISION {
        return Err(format!("the store's latest revision is {start}, expected at most {MAX_REVISION}"));
    }
    let mut index = Index::new(start);
    let mut unserved = Vec::new();
    for record in records {
        let name = format!("{} {}/{}", record.resource, record.namespace, record.name);
        let Some(kind) = KINDS.iter().find(|kind| kind.resource_name() == record.resource) else {
            unserved.push(name);
            continue;
        };
        match Object::from_json(kind, record.json, record.revision) {
            Some(object) => index.restore(kind, object),
            None => return Err(format!("stored object {name} is no JSON object with a name")),
        }
    }
    let reserve = start + RESERVE;
    let order = Order { revision: start, reserved: reserve, unsaved: BTreeSet::new() };
    Ok(Restored { index, order, reserve, unserved })
}
