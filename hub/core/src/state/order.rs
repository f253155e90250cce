//! The order of durable changes: preconditions, revisions, and the content of each commit.
//!
//! Always holds: a durable change becomes visible after its commit was flushed; revisions of a space rise,
//! also after crashes, because ranges are reserved durably before use and an unclean start begins above the
//! reserved mark; a visible change, or one acknowledged as durable, is never taken back. Left to others: when
//! to commit and when renewals are due (no clock here), the store that commits, and Leases (`leases`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::condition::Refusal;
use super::desired::Desired;
use super::index::{Changed, Index, Sink};
use super::leases::Leases;
use super::requires::{Charges, Require, judge};
use crate::cost::{self, Excess};
use crate::kinds::{KINDS, Kind, index_of};
use crate::object::{Event, Object, key};

/// Revisions reserved at a time: so many that a disk which accepts no write for months does not stop renewals
/// (10,000 a second use half of it in 59 hours, 500 in 50 days), so few that a billion unclean starts fit
/// below [`MAX_REVISION`].
pub const RESERVE: u64 = 1 << 32;
/// The highest revision to start from: SQLite and clients count in signed 64 bits, and a thousand changes a
/// second for a million years do not come near it. A store with a higher one was not written by us.
pub(super) const MAX_REVISION: u64 = 1 << 62;
/// How far revisions jump when it is unknown which were handed out. 10^12 is 30 years of a thousand a second.
pub const RAISE: u64 = 1_000_000_000_000;
/// A new range is reserved when fewer than this are left.
const RESERVE_LOW: u64 = RESERVE / 2;
/// Largest stored object; the limit that upstream's etcd sets.
pub const MAX_OBJECT_BYTES: usize = 1536 * 1024;
/// Bytes of renewed objects in one commit, plus one object: as large as a commit of changes may be. A node's
/// Lease is small, but may be made as large as any object.
pub(super) const FLUSH_BYTES: usize = 2 * 1024 * 1024;
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
    /// Remove; a missing object does not count as an error.
    Delete { resource: &'a str, namespace: &'a str, name: &'a str },
}

/// One value for each space of revisions: resourceVersions are compared within a kind only, so kinds may have
/// separate counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spaces<T> {
    /// For all kinds but Leases.
    pub common: T,
    /// For the kinds with volatile fields: Leases.
    pub leases: T,
}

impl<T: Copy> Spaces<T> {
    /// The same for both.
    pub fn both(of: T) -> Spaces<T> {
        Spaces { common: of, leases: of }
    }
}

/// The revision marks of one space, found when a store is opened.
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
    /// The change may be acknowledged before it is durable.
    pub volatile: bool,
    /// The node that makes it, if a node does.
    pub author: Option<Box<str>>,
}

/// Why a change was not made.
#[derive(Debug, Clone)]
pub enum WriteError {
    /// A precondition does not hold: read again and retry.
    Mismatch,
    /// The user to whom the object is charged would exceed its quota; the text is upstream's.
    OverQuota(String),
    /// The object is larger than [`MAX_OBJECT_BYTES`].
    TooLarge,
    /// The object would be too deep to be read back.
    Excess(Excess),
    /// The store could not make it durable; nothing changed.
    Failed(String),
    /// It was not tried, because changes before it failed; nothing changed.
    Refused(Refusal),
    /// The store failed during the commit: the next start may find the change, or not.
    Uncertain(String),
    /// A renewal has to wait for a change of its object that earlier renewals overtook again and again.
    Held,
    /// Too many changes wait.
    Busy,
    /// The disk took too long; the change may still be made.
    TimedOut,
    /// The disk took too long with earlier changes; this one was taken back and will not be made.
    TakenBack,
    /// The writer has ended.
    Closed,
}

/// Changes for one commit, each judged against those before it.
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

    /// Adds a change to the object, as the batch has left it, or as it is in `own`, the index of its kind.
    /// `index` is used to judge the conditions on other objects.
    pub(super) fn stage<S: Sink>(
        &mut self,
        (own, index): (&Index<S>, &Index<S>),
        counter: &mut Counter,
        mut write: Write,
    ) -> Result<Arc<Object>, WriteError> {
        let place = (index_of(write.kind), key(&write.namespace, &write.name));
        let current = self.get(own, write.kind, &write.namespace, &write.name);
        let requires = std::mem::take(&mut write.requires);
        let mut after = *counter;
        let changed = after.change(write, current)?;
        let (old, new) = (changed.event.old.as_deref(), changed.event.new.as_deref());
        judge(&requires, index, self, changed.kind, (old, new))?;
        *counter = after;
        self.charges.add(changed.kind, old, new);
        self.overlay.insert(place, changed.event.new.clone());
        let object = changed.event.object().clone();
        self.staged.push(changed);
        Ok(object)
    }
}

/// The changes to make durable, all or none.
#[derive(Debug)]
pub struct Commit {
    staged: Vec<Changed>,
    renewals: Vec<(&'static Kind, Arc<Object>)>,
    /// Renewed objects that this commit covers, including deleted ones.
    flushed: usize,
    /// The new reserved marks, if they are due.
    pub reserve: Option<Spaces<u64>>,
}

impl Commit {
    /// Durable changes in it, besides renewals.
    pub fn staged(&self) -> usize {
        self.staged.len()
    }

    /// The number of due renewals that this commit covers.
    pub fn flushed(&self) -> usize {
        self.flushed
    }

    /// The changes for the store; `names` are the resource names of [`KINDS`]. Renewals come first: a staged
    /// change of the same object is later.
    pub fn changes<'a>(&'a self, names: &'a [String]) -> Vec<Change<'a>> {
        let mut changes = Vec::with_capacity(self.renewals.len() + self.staged.len());
        changes.extend(self.renewals.iter().map(|(kind, object)| put(&names[index_of(kind)], object)));
        changes.extend(self.staged.iter().map(|Changed { kind, event, .. }| {
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

/// Revisions of one space: the last that was handed out, and how many are reserved.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counter {
    pub(super) revision: u64,
    pub(super) reserved: u64,
}

impl Counter {
    /// The next revision.
    pub(super) fn next(&mut self) -> Result<u64, WriteError> {
        if self.revision >= self.reserved {
            return Err(WriteError::Failed("no revision can be reserved on the disk".to_owned()));
        }
        self.revision += 1;
        Ok(self.revision)
    }

    pub(super) fn is_low(&self) -> bool {
        self.reserved.saturating_sub(self.revision) <= RESERVE_LOW
    }

    /// A change of the `current` object, with the next revision.
    pub(super) fn change(
        &mut self,
        write: Write,
        current: Option<Arc<Object>>,
    ) -> Result<Changed, WriteError> {
        let found = current.as_ref().map_or(Expect::Absent, |object| Expect::Revision(object.revision));
        if found != write.expect || (write.new.is_none() && current.is_none()) {
            return Err(WriteError::Mismatch);
        }
        let mut after = *self;
        let author = write.author;
        let event = event(write.kind, after.next()?, write.new, current)?;
        if event.new.as_ref().is_some_and(|new| new.json.len() > MAX_OBJECT_BYTES) {
            return Err(WriteError::TooLarge);
        }
        *self = after;
        Ok(Changed { kind: write.kind, event: Arc::new(event), author })
    }
}

/// Gives changes their revisions. See the module.
#[derive(Debug)]
pub struct Order {
    counter: Counter,
}

impl Order {
    /// The last revision that was handed out.
    pub fn revision(&self) -> u64 {
        self.counter.revision
    }

    /// Adds a durable change to the batch, judged against earlier changes in the batch, or the index. Returns
    /// the object as the change leaves it. Leases: [`Leases::stage`].
    ///
    /// # Errors
    /// On an error the batch is unchanged.
    pub fn stage<S: Sink>(
        &mut self,
        index: &Index<S>,
        batch: &mut Batch,
        write: Write,
    ) -> Result<Arc<Object>, WriteError> {
        batch.stage((index, index), &mut self.counter, write)
    }

    /// The changes to make durable now: the batch, at most `renewals` of the due renewals ([`Leases::due`]),
    /// and new reservations once one is due. `None` if there is nothing to commit.
    pub fn commit<S: Sink>(&self, leases: &Leases<S>, batch: Batch, renewals: usize) -> Option<Commit> {
        let (renewals, flushed) = leases.due(renewals);
        let low = self.counter.is_low() || leases.is_low();
        let reserve = low
            .then(|| Spaces { common: self.counter.revision, leases: leases.revision() })
            .map(|Spaces { common, leases }| Spaces { common: common + RESERVE, leases: leases + RESERVE });
        if batch.is_empty() && flushed == 0 && reserve.is_none() {
            return None;
        }
        Some(Commit { staged: batch.staged, renewals, flushed, reserve })
    }

    /// The commit is durable. Returns the changes to publish: with [`Index::publish`], or with
    /// [`Leases::settle`]. (A failed commit needs no call: nothing changed, and its revisions are not used
    /// again.)
    pub fn committed<S: Sink>(&mut self, leases: &mut Leases<S>, commit: Commit) -> Vec<Changed> {
        if let Some(reserve) = commit.reserve {
            self.counter.reserved = reserve.common;
            leases.reserved(reserve.leases);
        }
        leases.saved(commit.flushed);
        commit.staged
    }

    /// Continues from a higher revision: a client knows one that the store does not have. No revision is
    /// handed out before it is reserved.
    pub fn raise(&mut self) {
        let raised = self.counter.revision.saturating_add(RAISE);
        if raised <= MAX_REVISION {
            self.counter = Counter { revision: raised, reserved: raised };
        }
    }

    /// The reservation that [`Restored`] asks for could not be made: no revision is handed out until one is.
    pub fn not_reserved(&mut self) {
        self.counter.reserved = self.counter.revision;
    }
}

pub(super) fn event(
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
    /// All objects but Leases.
    pub index: Index<S>,
    pub leases: Leases<S>,
    pub desired: Desired,
    pub order: Order,
    /// The reservations to make durable before anything else.
    pub reserve: Spaces<u64>,
    /// Records of unserved kinds: they stay in the store and are not shown.
    pub unserved: Vec<String>,
}

/// From the records of a store. Revisions start above every revision of their space that was ever handed out.
///
/// # Errors
/// The store was not written by us: an object has no name, or a revision is out of range.
pub fn restore<S: Sink>(marks: Spaces<Marks>, records: Vec<Record>) -> Result<Restored<S>, String> {
    let mut found = Spaces::both(0);
    let (mut known, mut unserved) = (Vec::new(), Vec::new());
    for record in records {
        let kind = KINDS.iter().find(|kind| kind.resource_name() == record.resource);
        let newest =
            if kind.is_some_and(|kind| kind.is_renewed()) { &mut found.leases } else { &mut found.common };
        *newest = record.revision.max(*newest);
        match kind {
            Some(kind) => known.push((*kind, record)),
            None => unserved.push(format!("{} {}/{}", record.resource, record.namespace, record.name)),
        }
    }
    let start =
        Spaces { common: first(marks.common, found.common)?, leases: first(marks.leases, found.leases)? };
    let (mut index, mut leases) = (Index::new(start.common), Index::new(start.leases));
    let mut desired = Desired::new(start.common);
    for (kind, record) in known {
        let name = format!("{} {}/{}", record.resource, record.namespace, record.name);
        let Some(object) = Object::from_json(kind, record.json, record.revision) else {
            return Err(format!("stored object {name} is no JSON object with a name"));
        };
        desired.restore(kind, &object);
        if kind.is_renewed() { &mut leases } else { &mut index }.restore(kind, object);
    }
    let reserve = Spaces { common: start.common + RESERVE, leases: start.leases + RESERVE };
    let order = Order { counter: Counter { revision: start.common, reserved: reserve.common } };
    let leases = Leases::new(leases, Counter { revision: start.leases, reserved: reserve.leases });
    Ok(Restored { index, leases, desired, order, reserve, unserved })
}

/// The revision to start from: no later one was handed out.
fn first(marks: Marks, newest: u64) -> Result<u64, String> {
    // an object newer than the marks is an error of the store; even then versions must not go back. 0 means
    // "any version" to clients, so revisions start above it
    let start = marks.clean.unwrap_or(marks.reserved).max(newest).max(1);
    if start > MAX_REVISION {
        return Err(format!("the store's latest revision is {start}, expected at most {MAX_REVISION}"));
    }
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::super::index::Seen;
    use super::*;
    use crate::kinds::{LEASE, NODE};
    use crate::object::Event;

    struct NoSink;

    impl Sink for NoSink {
        fn queue(&self, _: &Arc<Event>, _: Seen) -> bool {
            true
        }
    }

    fn record(resource: &str, revision: u64) -> Record {
        let json = br#"{"metadata": {"name": "a"}}"#.to_vec();
        let (resource, name) = (resource.to_owned(), "a".to_owned());
        Record { resource, namespace: String::new(), name, revision, json }
    }

    fn restored(marks: Marks, records: Vec<Record>) -> Result<Restored<NoSink>, String> {
        restore(Spaces::both(marks), records)
    }

    /// Each space begins above every revision that it handed out, whether a mark or an object shows it.
    #[test]
    fn revisions_begin_above_marks_and_objects() {
        let lease = LEASE.resource_name();
        let check = |marks: Marks, found: [u64; 2], expect: [u64; 2]| {
            let records = vec![record("nodes", found[0]), record(&lease, found[1])];
            let restored = restored(marks, records).unwrap();
            assert_eq!(
                [restored.order.revision(), restored.leases.revision()],
                expect,
                "{marks:?} {found:?}"
            );
            let reserve = Spaces { common: expect[0] + RESERVE, leases: expect[1] + RESERVE };
            assert_eq!(restored.reserve, reserve);
        };
        check(Marks { reserved: 900, clean: None }, [5, 7], [900, 900]);
        check(Marks { reserved: 900, clean: Some(60) }, [5, 7], [60, 60]);
        check(Marks { reserved: 900, clean: Some(60) }, [70, 7], [70, 60]);
        check(Marks { reserved: 900, clean: None }, [5, 1000], [900, 1000]);
        check(Marks::default(), [0, 0], [1, 1]);
        assert!(restored(Marks { reserved: MAX_REVISION + 1, clean: None }, Vec::new()).is_err());
        assert!(restored(Marks::default(), vec![record("nodes", MAX_REVISION + 1)]).is_err());
    }

    #[test]
    fn nothing_is_handed_out_without_a_reservation() {
        let mut found = restored(Marks { reserved: 900, clean: None }, vec![record("nodes", 5)]).unwrap();
        found.order.not_reserved();
        let write = || Write {
            kind: &NODE,
            namespace: String::new(),
            name: "a".to_owned(),
            expect: Expect::Revision(5),
            requires: Vec::new(),
            new: None,
            volatile: false,
            author: None,
        };
        let mut batch = Batch::default();
        let refused = found.order.stage(&found.index, &mut batch, write());
        assert!(matches!(refused, Err(WriteError::Failed(_))), "{refused:?}");
        let commit = found.order.commit(&found.leases, batch, 0).unwrap();
        found.order.committed(&mut found.leases, commit);
        let gone = found.order.stage(&found.index, &mut Batch::default(), write()).unwrap();
        assert_eq!(gone.revision, 901);
    }

    #[test]
    fn raised_revisions_are_reserved_first() {
        let Restored { mut order, mut leases, index, .. } =
            restored(Marks { reserved: 900, clean: Some(60) }, Vec::new()).unwrap();
        order.raise();
        let write = || Write {
            kind: &NODE,
            namespace: String::new(),
            name: "a".to_owned(),
            expect: Expect::Absent,
            requires: Vec::new(),
            new: Some(serde_json::json!({"metadata": {"name": "a"}})),
            volatile: false,
            author: None,
        };
        assert!(order.stage(&index, &mut Batch::default(), write()).is_err(), "none is reserved");
        let commit = order.commit(&leases, Batch::default(), 0).unwrap();
        assert_eq!(commit.reserve.map(|reserve| reserve.common), Some(60 + RAISE + RESERVE));
        order.committed(&mut leases, commit);
        let made = order.stage(&index, &mut Batch::default(), write()).unwrap();
        assert_eq!(made.revision, 61 + RAISE);
        // not above the highest revision that a start accepts
        order.counter.revision = MAX_REVISION;
        order.raise();
        assert_eq!(order.counter.revision, MAX_REVISION);
    }

    #[test]
    fn half_of_a_reservation_is_left_when_the_next_is_made() {
        let restored: Restored<NoSink> = restore(Spaces::default(), Vec::new()).unwrap();
        let Restored { mut leases, mut order, .. } = restored;
        let reserve = |order: &Order, leases: &Leases<NoSink>| {
            order.commit(leases, Batch::default(), 0).map(|commit| commit.reserve)
        };
        assert_eq!(reserve(&order, &leases), None);
        order.counter.revision += RESERVE / 2;
        let due = Spaces { common: order.counter.revision + RESERVE, leases: 1 + RESERVE };
        assert_eq!(reserve(&order, &leases), Some(Some(due)));
        let commit = order.commit(&leases, Batch::default(), 0).unwrap();
        order.committed(&mut leases, commit);
        assert_eq!(reserve(&order, &leases), None);
        leases.reserved(leases.revision() + RESERVE / 2);
        assert!(reserve(&order, &leases).is_some(), "that of Leases is used up as well");
    }
}
