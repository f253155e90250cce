//! The index behind locks, and watches as channels.
//!
//! Leases have a lock of their own: their renewals wait for no reader and no writer of other kinds. Always holds: the writer thread alone
//! changes the other kinds, one batch under one write lock, so every reader sees whole batches in the order of revisions. A
//! thread takes the locks in the order of [`Part`], each once, and holds none while the store works: a disk that stalls
//! stops no reader and no renewal. Debug builds check both. Left to `kedge_hub_core::state`: the objects, and which watcher gets which
//! change; to `server::limits`: how many watches clients may have.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kedge_hub_core::identity::denied::{DENY_LIST_NAME, DENY_LIST_NAMESPACE};
use kedge_hub_core::kinds::{CONFIG_MAP, Kind};
use kedge_hub_core::object::{Event, Object, Reference};
use kedge_hub_core::selector::Selection;
use kedge_hub_core::state::{
    Changed, Desired, Index, Leases, Page, Query, Require, Sink, Start, TooOld, WatchId, WatchRefused,
};
use tokio::sync::mpsc;

/// Changes that wait for one watcher; when it is further behind it is dropped and must watch again.
pub const WATCH_BACKLOG: usize = 1024;
/// Bytes of objects that wait for one watcher. A client that does not read keeps every version alive that it has not read, so their
/// number alone bounds nothing: 1024 versions of a Node may be 1.5 GiB. One change always waits, however large, and whatever others hold.
pub const WATCH_BACKLOG_BYTES: usize = 1024 * 1024;
/// Bytes that a waiting change takes besides its objects.
const CHANGE_BYTES: usize = 256;

/// The bytes that may wait for all watches of one caller.
pub trait Budget: Debug + Send + Sync {
    /// Takes bytes of the budget. `false`: there are not enough, and nothing was taken.
    fn take(&self, bytes: usize) -> bool;
    /// Gives taken bytes back.
    fn give_back(&self, bytes: usize);
}

/// The bytes that wait for one watcher.
#[derive(Debug)]
struct Backlog {
    bytes: AtomicUsize,
    /// `None`: a part of the hub itself, which reads its changes.
    budget: Option<Arc<dyn Budget>>,
}

impl Backlog {
    /// Counts a change that begins to wait; `None` if it must not, at most so many bytes waiting.
    fn hold(self: &Arc<Self>, event: &Event, most: usize) -> Option<Held> {
        let Some(budget) = &self.budget else {
            return Some(Held { backlog: Arc::clone(self), bytes: 0, charged: false });
        };
        let bytes = size(event);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = before == 0 || before + bytes <= most;
        let charged = fits && budget.take(bytes);
        // dropped if it must not wait, which uncounts it
        let held = Held { backlog: Arc::clone(self), bytes, charged };
        (charged || before == 0).then_some(held)
    }
}

/// Bytes that a waiting change keeps in memory.
fn size(event: &Event) -> usize {
    let size = |object: &Option<Arc<Object>>| object.as_ref().map_or(0, |object| object.json.len());
    CHANGE_BYTES + size(&event.new).max(size(&event.last)).max(size(&event.old))
}

/// Counted bytes of a waiting change; uncounted when dropped.
#[derive(Debug)]
struct Held {
    backlog: Arc<Backlog>,
    bytes: usize,
    /// Whether the budget gave them: not those of the one change that always waits, if it had none left.
    charged: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.backlog.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        if let Some(budget) = self.backlog.budget.as_ref().filter(|_| self.charged) {
            budget.give_back(self.bytes);
        }
    }
}

/// A change that waits to be written to its watcher. It counts as waiting until it is dropped.
#[derive(Debug)]
pub struct Waiting {
    pub event: Arc<Event>,
    _held: Held,
}

/// What a watcher receives.
#[derive(Debug)]
pub enum News {
    Change(Waiting),
    /// Its client has heard of a change of this revision, and waits for the watch to come to it.
    Named(u64),
    /// A call with this id waits for its client, a node.
    Called(Arc<str>),
    /// The hub closes: every change up to this revision was received.
    Last(u64),
}

/// The sending side of a watch.
#[derive(Debug)]
pub struct Sender {
    queue: mpsc::Sender<News>,
    backlog: Arc<Backlog>,
}

impl Sink for Sender {
    fn take(&self, event: &Arc<Event>) -> bool {
        let waiting = |held| News::Change(Waiting { event: event.clone(), _held: held });
        self.backlog
            .hold(event, WATCH_BACKLOG_BYTES)
            .is_some_and(|held| self.queue.try_send(waiting(held)).is_ok())
    }

    fn takes_renewals(&self) -> bool {
        self.backlog.budget.is_some()
    }

    fn close(&self, revision: u64) {
        // a client that is behind by a whole queue goes on at the last change that it has read
        let _ = self.queue.try_send(News::Last(revision));
    }
}

/// Tells a watch what its client has heard of. It does not keep the watch.
#[derive(Debug)]
pub struct Reminder(mpsc::WeakSender<News>);

impl Reminder {
    pub fn is_open(&self) -> bool {
        self.0.upgrade().is_some_and(|queue| !queue.is_closed())
    }

    /// Tells it of this revision. `false`: it has ended.
    pub fn name(&self, revision: u64) -> bool {
        let Some(queue) = self.0.upgrade() else { return false };
        // a client that is behind by a whole queue sees more than this one change before it catches up
        let _ = queue.try_send(News::Named(revision));
        !queue.is_closed()
    }

    /// Tells it that this call waits. `false`: it has ended.
    pub fn call(&self, id: &Arc<str>) -> bool {
        let Some(queue) = self.0.upgrade() else { return false };
        // a client that is behind by a whole queue hears of it in the answer to its next renewal
        let _ = queue.try_send(News::Called(Arc::clone(id)));
        !queue.is_closed()
    }
}

/// The parts of the state that have locks, in the order in which a thread takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// All kinds but Leases.
    Index,
    Desired,
    Leases,
}

thread_local! {
    /// The parts that this thread has locked.
    static LOCKED: Cell<Vec<Part>> = const { Cell::new(Vec::new()) };
}

/// Runs `change` on the parts that this thread has locked; in debug builds only.
fn note_locks(change: impl FnOnce(&mut Vec<Part>)) {
    if cfg!(debug_assertions) {
        let mut locked = LOCKED.take();
        change(&mut locked);
        LOCKED.set(locked);
    }
}

/// In debug builds: panics if this thread holds a lock. For those about to wait.
pub(crate) fn assert_unlocked() {
    note_locks(|locked| {
        assert!(locked.is_empty(), "{locked:?} would be locked for as long as the disk takes")
    });
}

/// A guard of the lock of one part.
pub(crate) struct Locked<G> {
    guard: G,
    part: Part,
}

impl<G> Locked<G> {
    /// `lock` waits for the lock.
    fn new(part: Part, lock: impl FnOnce() -> G) -> Locked<G> {
        note_locks(|locked| {
            assert!(locked.iter().all(|other| *other < part), "{part:?} is locked after {locked:?}");
            locked.push(part);
        });
        Locked { guard: lock(), part }
    }
}

impl<G> Drop for Locked<G> {
    fn drop(&mut self) {
        note_locks(|locked| locked.retain(|part| *part != self.part));
    }
}

impl<G: Deref> Deref for Locked<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Locked<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

#[derive(Debug)]
pub struct Memory {
    /// All kinds but Leases.
    index: RwLock<Index<Sender>>,
    leases: RwLock<Leases<Sender>>,
    /// Held for no longer than one node or one change takes: renewals read it.
    desired: RwLock<Desired>,
    /// The revision of the deny list, 0 without one: each request asks, and a renewal waits for no reader of other objects.
    deny_list: AtomicU64,
}

impl Memory {
    pub fn new(index: Index<Sender>, leases: Leases<Sender>, desired: Desired) -> Memory {
        let deny_list = index.get(&CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME);
        let deny_list = AtomicU64::new(deny_list.map_or(0, |list| list.revision));
        Memory {
            index: RwLock::new(index),
            leases: RwLock::new(leases),
            desired: RwLock::new(desired),
            deny_list,
        }
    }

    /// Empty.
    #[cfg(test)]
    pub(crate) fn empty() -> Memory {
        use kedge_hub_core::state::{Restored, Spaces, restore};
        let restored = restore(Spaces::default(), Vec::new());
        let Restored { index, leases, desired, .. } = restored.expect("nothing can be wrong with no records");
        Memory::new(index, leases, desired)
    }

    // a panic under the lock can only come from the writer, whose end stops the hub; readers go on until then
    pub(crate) fn read(&self) -> Locked<RwLockReadGuard<'_, Index<Sender>>> {
        Locked::new(Part::Index, || self.index.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self) -> Locked<RwLockWriteGuard<'_, Index<Sender>>> {
        Locked::new(Part::Index, || self.index.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Leases, to read. Never held for longer than a list takes.
    pub(crate) fn leases(&self) -> Locked<RwLockReadGuard<'_, Leases<Sender>>> {
        Locked::new(Part::Leases, || self.leases.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Leases, to change. Never held while something waits.
    pub(crate) fn leases_mut(&self) -> Locked<RwLockWriteGuard<'_, Leases<Sender>>> {
        Locked::new(Part::Leases, || self.leases.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn read_desired(&self) -> Locked<RwLockReadGuard<'_, Desired>> {
        Locked::new(Part::Desired, || self.desired.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn desired_mut(&self) -> Locked<RwLockWriteGuard<'_, Desired>> {
        Locked::new(Part::Desired, || self.desired.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks at the part that has the objects of this kind.
    fn of<T>(&self, kind: &Kind, look: impl FnOnce(&Index<Sender>) -> T) -> T {
        if kind.is_renewed() { look(self.leases().index()) } else { look(&self.read()) }
    }

    /// The latest revision of a kind that readers can see.
    pub fn revision(&self, kind: &Kind) -> u64 {
        self.of(kind, Index::revision)
    }

    /// Objects of a kind.
    pub fn count(&self, kind: &Kind) -> usize {
        self.of(kind, |index| index.count(kind))
    }

    /// Open watches.
    pub fn watches(&self) -> usize {
        let others = self.read().watches();
        others + self.leases().index().watches()
    }

    /// One object; `namespace` is empty for cluster-scoped kinds.
    pub fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.of(kind, |index| index.get(kind, namespace, name))
    }

    /// Objects that name this UID as an owner, of all kinds.
    pub fn dependents(&self, uid: &str) -> Vec<(&'static Kind, Arc<Object>)> {
        let mut found = self.read().dependents(uid);
        found.extend(self.leases().index().dependents(uid));
        found
    }

    /// Whether an object of any kind has this UID.
    pub fn exists(&self, uid: &str) -> bool {
        self.read().exists(uid) || self.leases().index().exists(uid)
    }

    /// UIDs that objects name as an owner, and that no object has. The owner may be of a kind that is not served.
    pub fn lost_owners(&self) -> Vec<String> {
        let (others, leases) = (self.read(), self.leases());
        let mut lost = others.lost_owners();
        lost.retain(|uid| !leases.index().exists(uid));
        lost.extend(leases.index().lost_owners().into_iter().filter(|uid| !others.exists(uid)));
        lost
    }

    /// The namespaces that have objects, whether or not they exist themselves.
    pub fn namespaces_in_use(&self) -> BTreeSet<String> {
        let mut used = self.read().namespaces_in_use();
        used.extend(self.leases().index().namespaces_in_use());
        used
    }

    /// Whether the other objects that a write requires to be unchanged are so now.
    pub fn are_unchanged(&self, requires: &[Require]) -> bool {
        requires.iter().all(|require| match require {
            Require::Unchanged { kind, namespace, name, revision } => {
                self.get(kind, namespace, name).map(|found| found.revision) == *revision
            }
            _ => true,
        })
    }

    /// All objects of a namespace.
    pub fn in_namespace(&self, namespace: &str) -> Vec<(&'static Kind, Arc<Object>)> {
        let mut found = self.read().in_namespace(namespace);
        found.extend(self.leases().index().in_namespace(namespace));
        found
    }

    /// Objects that are marked for deletion, of all kinds.
    pub fn terminating(&self) -> Vec<(&'static Kind, Arc<Object>)> {
        let mut found = self.read().terminating();
        found.extend(self.leases().index().terminating());
        found
    }

    /// The objects of a kind that are charged to a user.
    pub fn charged(&self, holder: &str, kind: &Kind) -> Vec<Arc<Object>> {
        self.of(kind, |index| index.charged(holder, kind))
    }

    /// The values of an indexed field that objects of a kind have.
    pub fn values(&self, kind: &Kind, field: usize) -> Vec<String> {
        self.of(kind, |index| index.values(kind, field))
    }

    /// Lists the selected objects.
    pub fn list(&self, kind: &Kind, selection: &Selection, query: &Query<'_>) -> Result<Page, TooOld> {
        self.of(kind, |index| index.list(kind, selection, query))
    }

    /// Registers a watcher; see [`Index::watch`]. Its changes wait at the cost of this budget; a watcher of the hub itself has
    /// none, and renewals are no events for it.
    pub fn watch(
        self: &Arc<Self>,
        kind: &'static Kind,
        selection: Selection,
        from: Option<u64>,
        budget: Option<Arc<dyn Budget>>,
    ) -> Result<(Start, u64, Watch), WatchRefused> {
        let (queue, receiver) = mpsc::channel(WATCH_BACKLOG);
        let backlog = Arc::new(Backlog { bytes: AtomicUsize::new(0), budget });
        let reminder = queue.downgrade();
        let sender = Sender { queue, backlog: Arc::clone(&backlog) };
        let (start, revision, id) = if kind.is_renewed() {
            self.leases_mut().watch(kind, selection.clone(), from, sender)?
        } else {
            self.write().watch(kind, selection.clone(), from, sender)?
        };
        Ok((
            start,
            revision,
            Watch { memory: self.clone(), kind, id, selection, receiver, reminder, backlog },
        ))
    }

    /// Makes durable changes visible, of all kinds but Leases: the writer's last step.
    pub fn publish(&self, changes: Vec<Changed>) {
        let mut index = self.write();
        for changed in &changes {
            self.desired_mut().note(changed);
            self.note_deny_list(changed);
        }
        index.publish(changes);
    }

    fn note_deny_list(&self, Changed { kind, event, .. }: &Changed) {
        let object = event.object();
        let is_list = kind.kind == CONFIG_MAP.kind
            && (&*object.namespace, &*object.name) == (DENY_LIST_NAMESPACE, DENY_LIST_NAME);
        if is_list {
            self.deny_list.store(event.new.as_ref().map_or(0, |list| list.revision), Ordering::Release);
        }
    }

    /// The revision of the deny list, 0 without one; that of a change from before its writer is answered.
    pub fn deny_list(&self) -> u64 {
        self.deny_list.load(Ordering::Acquire)
    }

    /// The latest revision that concerns a node: see [`Desired::of`]. A node that is answered it finds that revision, whatever it reads
    /// next: readers wait for the batch that it is in.
    pub fn desired(&self, node: &str) -> u64 {
        self.read_desired().of(node)
    }

    /// Whether a node's Node, or a pod bound to it, refers to an object. Costs the same for any number of pods.
    pub fn node_refers_to(&self, node: &str, object: &Reference) -> bool {
        self.read_desired().refers(node, object)
    }

    /// Whether all watches were ended.
    pub fn is_closed(&self) -> bool {
        self.read().is_closed()
    }

    /// Ends all watches and refuses new ones.
    pub fn close(&self) {
        self.write().close();
        self.leases_mut().close();
    }
}

/// A registered watcher; dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    memory: Arc<Memory>,
    kind: &'static Kind,
    id: WatchId,
    /// What it asked for.
    pub selection: Selection,
    /// Changes that concern it, in order. It ends when the watcher was too slow or the hub closes.
    pub receiver: mpsc::Receiver<News>,
    reminder: mpsc::WeakSender<News>,
    backlog: Arc<Backlog>,
}

impl Watch {
    /// The changes before the watch began, as ones that wait; `None` if the budget does not allow it. Their number is limited by what
    /// the hub remembers, so they do not count for [`WATCH_BACKLOG_BYTES`].
    pub fn waiting(&self, events: Vec<Arc<Event>>) -> Option<Vec<Waiting>> {
        let budget = self.backlog.budget.clone();
        let backlog = Arc::new(Backlog { bytes: AtomicUsize::new(0), budget });
        let wait = |event: Arc<Event>| {
            let held = backlog.hold(&event, usize::MAX)?;
            Some(Waiting { event, _held: held })
        };
        events.into_iter().map(wait).collect()
    }

    pub fn reminder(&self) -> Reminder {
        Reminder(self.reminder.clone())
    }

    /// A revision up to which every change is in the receiver or was taken from it.
    pub fn progress(&self) -> u64 {
        self.memory.revision(self.kind)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.kind.is_renewed() {
            self.memory.leases_mut().unwatch(self.id);
        } else {
            self.memory.write().unwatch(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_hub_core::kinds::CONFIG_MAP;
    use serde_json::json;

    fn put(memory: &Memory) {
        put_with(memory, 0);
    }

    fn put_with(memory: &Memory, bytes: usize) {
        let revision = memory.revision(&CONFIG_MAP) + 1;
        let map = json!({"metadata": {"namespace": "a", "name": "1"}, "data": {"k": "x".repeat(bytes)}});
        let new = Object::new(&CONFIG_MAP, &map, revision);
        let event = Event { revision, old: None, new: new.map(Arc::new), last: None };
        memory.publish(vec![Changed { kind: &CONFIG_MAP, event: Arc::new(event), author: None }]);
    }

    #[test]
    #[should_panic(expected = "Index is locked after [Leases]")]
    fn locks_in_another_order_are_noticed() {
        let memory = Memory::empty();
        drop((memory.read(), memory.leases()));
        let _leases = memory.leases();
        drop(memory.read());
    }

    #[test]
    #[should_panic(expected = "[Index, Leases] would be locked for as long as the disk takes")]
    fn locks_while_the_store_works_are_noticed() {
        let memory = Memory::empty();
        assert_unlocked();
        let _locked = (memory.read(), memory.leases_mut());
        assert_unlocked();
    }

    #[test]
    fn slow_watcher_is_dropped_after_its_backlog() {
        let memory = Arc::new(Memory::empty());
        let (_, _, mut slow) = memory.watch(&CONFIG_MAP, Selection::all(""), None, None).unwrap();
        for _ in 0..=WATCH_BACKLOG {
            put(&memory);
        }
        assert_eq!(memory.watches(), 0);
        let (_, _, mut quick) = memory.watch(&CONFIG_MAP, Selection::all(""), None, None).unwrap();
        put(&memory);
        assert!(quick.receiver.try_recv().is_ok());
        let mut received = 0;
        while slow.receiver.try_recv().is_ok() {
            received += 1;
        }
        assert_eq!(received, WATCH_BACKLOG);
        drop((slow, quick));
        assert_eq!(memory.watches(), 0);
    }

    /// Counts what it gave; refuses beyond a limit.
    #[derive(Debug)]
    struct Purse {
        limit: usize,
        given: AtomicUsize,
    }

    impl Budget for Purse {
        fn take(&self, bytes: usize) -> bool {
            let fits = |given| (given + bytes <= self.limit).then_some(given + bytes);
            self.given.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
        }

        fn give_back(&self, bytes: usize) {
            self.given.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Its caller forgets it then: one that opens and ends watches keeps nothing here.
    #[test]
    fn watch_that_has_ended_is_reminded_of_nothing() {
        let memory = Arc::new(Memory::empty());
        let open = || memory.watch(&CONFIG_MAP, Selection::all(""), None, None).unwrap().2;
        let mut watch = open();
        let reminder = watch.reminder();
        assert!(reminder.is_open() && reminder.name(7));
        assert!(matches!(watch.receiver.try_recv(), Ok(News::Named(7))));
        drop(watch);
        assert!(!reminder.is_open() && !reminder.name(8));
        // one that fell behind has ended, too, though its client has not read all of it
        let behind = open();
        let reminder = behind.reminder();
        (0..=WATCH_BACKLOG).for_each(|_| put(&memory));
        assert!(!reminder.is_open() && !reminder.name(9));
    }

    #[test]
    fn unread_watch_holds_a_bounded_number_of_bytes() {
        let memory = Arc::new(Memory::empty());
        let check = |limit: usize, each: usize, expect: usize| {
            let purse = Arc::new(Purse { limit, given: AtomicUsize::new(0) });
            let (_, _, mut unread) =
                memory.watch(&CONFIG_MAP, Selection::all(""), None, Some(purse.clone())).unwrap();
            for _ in 0..20 {
                put_with(&memory, each);
            }
            assert_eq!(memory.watches(), 0, "{limit} {each}");
            let mut received = 0;
            while unread.receiver.try_recv().is_ok() {
                received += 1;
            }
            assert_eq!(received, expect, "{limit} {each}");
            assert_eq!(purse.given.load(Ordering::Relaxed), 0, "everything was given back");
        };
        check(usize::MAX, 200_000, 5);
        // one change waits, however large
        check(usize::MAX, 1_400_000, 1);
        check(0, 200_000, 1);
        // the caller's other watches have taken the rest
        check(500_000, 200_000, 2);
        // to the last byte; above a hundred, so that all revisions are as long
        (0..20).for_each(|_| put(&memory));
        let purse = Arc::new(Purse { limit: usize::MAX, given: AtomicUsize::new(0) });
        let watch = memory.watch(&CONFIG_MAP, Selection::all(""), None, Some(purse.clone())).unwrap();
        put(&memory);
        let rest = WATCH_BACKLOG_BYTES / 2 - purse.given.load(Ordering::Relaxed);
        drop(watch);
        check(usize::MAX, rest, 2);
        check(usize::MAX, rest + 1, 1);
        // a watch that is dropped with its changes gives their bytes back
        let purse = Arc::new(Purse { limit: usize::MAX, given: AtomicUsize::new(0) });
        let watch = memory.watch(&CONFIG_MAP, Selection::all(""), None, Some(purse.clone())).unwrap();
        put_with(&memory, 100_000);
        assert!(purse.given.load(Ordering::Relaxed) > 100_000);
        drop(watch);
        assert_eq!(purse.given.load(Ordering::Relaxed), 0);
    }
}
