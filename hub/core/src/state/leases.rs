//! Leases: objects with a separate space of revisions, and renewals that never wait.
//!
//! Owns: all objects of kinds with volatile fields, their watchers, which renewals are only in memory, and
//! which Leases were renewed since the last look. A *renewal* (an update of only a volatile field) is judged,
//! published and acknowledged here in one step: it passes no queue, is acknowledged without a disk write, and
//! is flushed with all others of the same [`FLUSH`](super::FLUSH). A *durable* change (creation, deletion,
//! holder, labels) is staged with a provisional revision, committed, and then settled.
//!
//! Always holds:
//! - Revisions of the space rise in the order of publication; none is handed out twice. Ranges are reserved
//!   durably, like those of the other space, so an unclean start begins above everything that was handed out
//!   before.
//! - A renewal between the staging of a durable change and its commit wins: the change is not published
//!   ([`WriteError::Mismatch`]), its writer decides again, and the row that the commit wrote is replaced
//!   before that. A change that follows [`OVERTAKEN`] such overtaken changes of the object wins: renewals of
//!   the object are refused until the commit has ended, or takes too long ([`Leases::release`]).
//! - **A start without a reservation** (the disk accepts no write) hands out revisions of the span from
//!   [`UNRESERVED`] on, which no reservation reaches before a billion unclean starts. It begins there at the
//!   time of the start: milliseconds since 1970, 2^17 revisions for each, so it stays behind the clock, and a
//!   later such start begins above it. If the clock was set back, a start may hand out revisions of an
//!   earlier one, if its time falls into the milliseconds whose revisions that one used: one for each 131,072
//!   renewals, 33 for a day of 500 nodes, and within one millisecond it depends on 16 random bits. A version
//!   from such a start counts as too old at a later start with a reservation, unless that reservation is in
//!   the span, too: so a watch never continues from a version that had another meaning.
//!
//! One lock around it is enough (shards would not help: one sequence orders all changes anyway, and a renewal
//! holds it for about as long as it takes to copy the object). Left to others: that lock, the clock, the
//! store.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::index::{Changed, Index, Query, Sink, Start, WatchId, WatchRefused};
use super::order::{Batch, Counter, FLUSH_BYTES, MAX_REVISION, Write, WriteError, event};
use super::{Page, TooOld};
use crate::kinds::{KINDS, Kind, index_of};
use crate::object::{Event, Object, key};
use crate::requests::Renewal;
use crate::selector::Selection;

/// The first revision of starts without a reservation.
pub const UNRESERVED: u64 = MAX_REVISION / 2;
/// Revisions for each millisecond of the clock: 2^44 milliseconds are 557 years, and fit below
/// [`MAX_REVISION`].
const PER_MILLISECOND: u64 = 1 << 17;
/// Changes of one object that renewals may overtake in a row. A node that renews every ten seconds overtakes
/// one change in a thousand; a node that renews without a pause would keep its Lease from ever being deleted.
const OVERTAKEN: u32 = 4;
/// Most objects with a count of overtaken changes; above that all counts start again, which costs a few more
/// tries.
const MAX_CONTESTED: usize = 1024;
/// Milliseconds of the clock, about 4.6 hours, that are added to a reservation in the span: adding the whole
/// time would soon exhaust it.
const CLOCK_AFTER_RESERVATION: u64 = 1 << 24;

/// See the module. `S` takes the events of one watcher.
#[derive(Debug)]
pub struct Leases<S> {
    index: Index<S>,
    counter: Counter,
    /// Objects whose last change may not be on the disk.
    unsaved: Since,
    /// Renewed objects that are being written, in batches.
    due: VecDeque<(usize, Arc<Object>)>,
    /// Objects renewed since the last call of `heard`; `None` until the first call.
    heard: Option<Since>,
    /// How many changes of an object were overtaken in a row.
    contested: BTreeMap<Place, u32>,
    /// Objects of the commit under way that are not renewed meanwhile.
    held: BTreeSet<Place>,
    ended: bool,
}

/// The position of a kind in the table, and the key of an object.
type Place = (usize, String);

fn place(kind: &Kind, namespace: &str, name: &str) -> Place {
    (index_of(kind), key(namespace, name))
}

/// Objects changed since a revision: each object with a newer version is listed.
#[derive(Debug, Default)]
struct Since {
    revision: u64,
    changed: Vec<(usize, Arc<Object>)>,
}

impl Since {
    /// Lists the object `new`, unless it was listed already when it got the version `old` (0: it is created).
    fn note(&mut self, kind: usize, old: u64, new: &Arc<Object>) {
        if old <= self.revision {
            self.changed.push((kind, new.clone()));
        }
    }

    fn take(&mut self, revision: u64) -> Vec<(usize, Arc<Object>)> {
        self.revision = revision;
        std::mem::take(&mut self.changed)
    }
}

/// The result of a plain renewal.
#[derive(Debug)]
pub struct Renewed {
    pub object: Arc<Object>,
    /// Its time was another one before.
    pub changed: bool,
}

/// Objects that changed since the last look.
#[derive(Debug, Default)]
pub struct Heard {
    /// As their first change left them.
    pub objects: Vec<Arc<Object>>,
    /// These are all objects that changed up to this revision.
    pub revision: u64,
}

impl<S: Sink> Leases<S> {
    pub(super) fn new(index: Index<S>, counter: Counter) -> Leases<S> {
        let unsaved = Since { revision: counter.revision, changed: Vec::new() };
        let (contested, held) = (BTreeMap::new(), BTreeSet::new());
        Leases { index, counter, unsaved, due: VecDeque::new(), heard: None, contested, held, ended: false }
    }

    /// Puts a stored object in place, at start.
    pub fn restore(&mut self, kind: &Kind, object: Object) {
        self.index.restore(kind, object);
    }

    /// The objects and their changes, as readers see them.
    pub fn index(&self) -> &Index<S> {
        &self.index
    }

    /// The last revision that was handed out.
    pub fn revision(&self) -> u64 {
        self.counter.revision
    }

    /// Registers a watcher; see [`Index::watch`].
    pub fn watch(
        &mut self,
        kind: &Kind,
        selection: Selection,
        from: Option<u64>,
        sink: S,
    ) -> Result<(Start, u64, WatchId), WatchRefused> {
        let present = self.index.revision();
        if from.is_some_and(|from| from >= UNRESERVED && present < UNRESERVED) {
            return Err(WatchRefused::TooOld(TooOld { oldest: present }));
        }
        self.index.watch(kind, selection, from, sink)
    }

    /// Ends a watch.
    pub fn unwatch(&mut self, watch: WatchId) {
        self.index.unwatch(watch);
    }

    /// Ends all watches and refuses new ones.
    pub fn close(&mut self) {
        self.index.close();
    }

    /// Refuses all further renewals. Returns the last revision that was handed out.
    pub fn end(&mut self) -> u64 {
        self.ended = true;
        self.counter.revision
    }

    /// Lists the selected objects.
    pub fn list(&self, kind: &Kind, selection: &Selection, query: &Query<'_>) -> Result<Page, TooOld> {
        self.index.list(kind, selection, query)
    }

    /// A renewal: visible at once, durable later.
    ///
    /// # Errors
    /// On an error nothing changed.
    pub fn renew(&mut self, write: Write) -> Result<Arc<Object>, WriteError> {
        self.may_renew(write.kind, &write.namespace, &write.name)?;
        let key = key(&write.namespace, &write.name);
        let current = self.index.get_at(write.kind, &key).cloned();
        let changed = self.counter.change(write, current)?;
        Ok(self.publish_renewal(key, changed))
    }

    /// A renewal in its plain form. `None`: the object is missing, or must be renewed in the general way.
    pub fn renew_plainly(
        &mut self,
        kind: &'static Kind,
        namespace: &str,
        name: &str,
        renewal: &Renewal,
    ) -> Option<Result<Renewed, WriteError>> {
        let key = key(namespace, name);
        let old = self.index.get_at(kind, &key)?.clone();
        if renewal.is_made(&old)? {
            return Some(Ok(Renewed { object: old, changed: false }));
        }
        if let Err(error) = self.may_renew(kind, namespace, name) {
            return Some(Err(error));
        }
        let revision = match self.counter.next() {
            Ok(revision) => revision,
            Err(error) => return Some(Err(error)),
        };
        let new = Arc::new(old.with_text(renewal.make(&old, revision)?, revision));
        let event = Event { revision, old: Some(old), new: Some(new), last: None };
        let object = self.publish_renewal(key, Changed { kind, event: Arc::new(event), author: None });
        Some(Ok(Renewed { object, changed: true }))
    }

    fn may_renew(&self, kind: &Kind, namespace: &str, name: &str) -> Result<(), WriteError> {
        if self.ended {
            return Err(WriteError::Closed);
        }
        // renewals are hardly ever held
        let is_held = self.holds_renewals() && self.held.contains(&place(kind, namespace, name));
        if is_held { Err(WriteError::Held) } else { Ok(()) }
    }

    /// Whether renewals of some objects wait for the commit under way.
    pub fn holds_renewals(&self) -> bool {
        !self.held.is_empty()
    }

    /// Allows renewals of all objects again: the commit under way failed, or takes too long.
    pub fn release(&mut self) {
        self.held.clear();
    }

    fn publish_renewal(&mut self, key: String, changed: Changed) -> Arc<Object> {
        self.note(&changed);
        let object = changed.event.object().clone();
        self.index.publish_renewal(key, changed);
        object
    }

    /// Lists the object as changed.
    fn note(&mut self, Changed { kind, event, .. }: &Changed) {
        let Some(new) = &event.new else { return };
        let old = event.old.as_ref().map_or(0, |old| old.revision);
        self.unsaved.note(index_of(kind), old, new);
        if let Some(heard) = &mut self.heard {
            heard.note(index_of(kind), old, new);
        }
    }

    /// Adds a durable change to the batch, as [`Order::stage`](super::Order::stage) does; `index` has the
    /// other kinds. Its revision is provisional: it gets the final one when it is [settled](Leases::settle),
    /// because renewals of other objects are published meanwhile.
    ///
    /// # Errors
    /// On an error the batch is unchanged.
    pub fn stage(
        &mut self,
        index: &Index<S>,
        batch: &mut Batch,
        write: Write,
    ) -> Result<Arc<Object>, WriteError> {
        let place = place(write.kind, &write.namespace, &write.name);
        let staged = batch.stage((&self.index, index), &mut self.counter, write)?;
        if self.contested.get(&place).is_some_and(|overtaken| *overtaken >= OVERTAKEN) {
            self.held.insert(place);
        }
        Ok(staged)
    }

    /// Publishes a staged change after its commit. Returns the object as the change left it.
    ///
    /// # Errors
    /// [`WriteError::Mismatch`]: the object was renewed meanwhile. The row that the commit wrote is replaced
    /// first, as a renewal that is due; until then the writer must not hear that nothing changed.
    pub fn settle(&mut self, changed: Changed) -> Result<Arc<Object>, WriteError> {
        let object = changed.event.object().clone();
        let place = place(changed.kind, &object.namespace, &object.name);
        self.held.remove(&place);
        let current = self.index.get(changed.kind, &object.namespace, &object.name);
        let revision_of = |object: &Option<Arc<Object>>| object.as_ref().map(|object| object.revision);
        if revision_of(&current) != revision_of(&changed.event.old) {
            // replaced first
            self.due.push_front((place.0, object));
            self.overtaken(place);
            return Err(WriteError::Mismatch);
        }
        self.contested.remove(&place);
        let mut changed = changed;
        if self.index.revision() > changed.event.revision {
            // renewals of other objects were published meanwhile
            let new = changed.event.new.as_ref().map(|object| object.value());
            let event = event(changed.kind, self.counter.next()?, new, current)?;
            changed.event = Arc::new(event);
        }
        let object = changed.event.object().clone();
        // also as unsaved: the row may have the provisional revision
        self.note(&changed);
        self.index.publish(vec![changed]);
        Ok(object)
    }

    fn overtaken(&mut self, place: Place) {
        if self.contested.len() >= MAX_CONTESTED && !self.contested.contains_key(&place) {
            self.contested.clear();
        }
        let overtaken = self.contested.entry(place).or_insert(0);
        *overtaken = overtaken.saturating_add(1);
    }

    /// Objects whose last change is only in memory.
    pub fn unsaved(&self) -> usize {
        self.unsaved.changed.len() + self.due.len()
    }

    /// All renewals that are only in memory are due now.
    pub fn flush(&mut self) {
        self.due.extend(self.unsaved.take(self.counter.revision));
    }

    /// Whether renewals are due.
    pub fn is_flushing(&self) -> bool {
        !self.due.is_empty()
    }

    /// The first objects that are due, in their present version, and the number of due entries that they
    /// cover: deleted objects are left out.
    pub(super) fn due(&self, most: usize) -> (Vec<(&'static Kind, Arc<Object>)>, usize) {
        let (mut found, mut passed, mut bytes) = (Vec::new(), 0, 0);
        for (kind, object) in self.due.iter().take(most) {
            passed += 1;
            let kind = KINDS[*kind];
            let Some(now) = self.index.get(kind, &object.namespace, &object.name) else { continue };
            bytes += now.json.len();
            found.push((kind, now));
            if bytes >= FLUSH_BYTES {
                break;
            }
        }
        (found, passed)
    }

    /// The first entries that were due are on the disk.
    pub(super) fn saved(&mut self, objects: usize) {
        self.due.drain(..objects);
    }

    pub(super) fn is_low(&self) -> bool {
        self.counter.is_low()
    }

    pub(super) fn reserved(&mut self, upto: u64) {
        self.counter.reserved = upto;
    }

    /// The reservation could not be made: the revisions continue in the span for such starts. `now` is the
    /// time in milliseconds since 1970.
    pub fn not_reserved(&mut self, now: u64, random: u16) {
        let (random, last) = (u64::from(random), self.counter.revision);
        let mut start = UNRESERVED + now.min(UNRESERVED / PER_MILLISECOND - 1) * PER_MILLISECOND + random;
        if start <= last {
            // the last revision is ahead of the clock, soon after a reservation in the span, or because the
            // clock was set back
            start = last + now % CLOCK_AFTER_RESERVATION * PER_MILLISECOND + random;
        }
        let start = start.min(MAX_REVISION);
        self.counter = Counter { revision: start, reserved: 2 * MAX_REVISION };
        self.index.skip_to(start);
    }

    /// The objects that were renewed, created or changed since the last call. The first call returns nothing.
    pub fn heard(&mut self) -> Heard {
        let revision = self.counter.revision;
        let changed = self.heard.get_or_insert_default().take(revision);
        Heard { objects: changed.into_iter().map(|(_, object)| object).collect(), revision }
    }
}
