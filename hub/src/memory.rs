//! The index behind locks, with channels for watches.
//!
//! Leases have a lock of their own, so that renewals do not wait for readers and writers of other kinds.
//! Always holds: the writer thread alone changes the other kinds, one batch under one write lock, so every
//! reader sees whole batches in the order of revisions. A thread takes the locks in the order of [`Part`],
//! each once, and holds none while the store works: a stalled disk stops no reader and no renewal. Debug
//! builds check the order and that no lock is held. Left to `kedge_hub_core::state`: the objects, and which
//! watcher gets which change; to `server::limits`: how many watches clients may have.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use kedge_hub_core::identity::denied::{DENY_LIST_NAME, DENY_LIST_NAMESPACE};
use kedge_hub_core::kinds::rbac::is_of_rights;
use kedge_hub_core::kinds::{CONFIG_MAP, CREDENTIAL, EVENT, Kind, NODE, POD};
use kedge_hub_core::loans::{Borrower, Loan};
use kedge_hub_core::object::{Event, Object, Reference};
use kedge_hub_core::selector::Selection;
use kedge_hub_core::state::fleet::{Fleet, Note};
use kedge_hub_core::state::{
    Changed, Desired, Index, KINDS_OF_RIGHTS, Leases, Page, Query, Require, Rights, Seen, Sink, Start,
    TooOld, WatchId, WatchRefused,
};
use tokio::sync::mpsc;

/// Changes that may wait for one watcher; one that falls further behind is dropped and must watch again.
pub const WATCH_BACKLOG: usize = 1024;
/// Bytes of objects that may wait for one watcher. A client that does not read keeps every unread version
/// alive, so a limit on their number alone bounds nothing: 1024 versions of a Node may be 1.5 GiB. One change
/// may always wait, however large: while its object is the latest version, it takes no extra memory, and an
/// old version is charged to its reader.
pub const WATCH_BACKLOG_BYTES: usize = 1024 * 1024;
/// Bytes that a waiting change takes besides its objects.
const CHANGE_BYTES: usize = 256;

/// The bytes that may wait for all readers of one caller.
pub trait Budget: Debug + Send + Sync {
    /// Takes bytes from the budget. `false`: too few are left, and nothing was taken.
    fn take(&self, bytes: usize) -> bool;
    /// Gives taken bytes back.
    fn give_back(&self, bytes: usize);
}

/// The reader of an answer or of a watch. It is charged for waiting bytes that are in memory only for it.
#[derive(Debug)]
pub struct Reader {
    budget: Arc<dyn Budget>,
    /// Bytes of changes that wait for it.
    behind: AtomicUsize,
    is_over: AtomicBool,
    /// Wakes the task that writes to it.
    writer: Mutex<Option<Waker>>,
}

impl Reader {
    pub fn new(budget: Arc<dyn Budget>) -> Reader {
        Reader {
            budget,
            behind: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            writer: Mutex::default(),
        }
    }

    /// Takes bytes of its caller's budget until the returned value is dropped; `None`: too few are left.
    pub fn hold(self: &Arc<Self>, bytes: usize) -> Option<Held> {
        self.budget.take(bytes).then(|| Held { reader: Arc::clone(self), behind: 0, taken: bytes })
    }

    /// Counts a change that begins to wait; `None` if more than `most` bytes would wait. The text of its
    /// object is not charged here but by the [`Loan`].
    fn fall_behind(self: &Arc<Self>, bytes: usize, most: usize) -> Option<Held> {
        let before = self.behind.fetch_add(bytes, Ordering::Relaxed);
        let mut held = Held { reader: Arc::clone(self), behind: bytes, taken: 0 };
        if before > 0 && before + bytes > most {
            return None;
        }
        if self.budget.take(CHANGE_BYTES) {
            held.taken = CHANGE_BYTES;
        }
        // one change may always wait; without its object it is small, and there is one for each watch
        (held.taken > 0 || before == 0).then_some(held)
    }

    fn writer(&self) -> MutexGuard<'_, Option<Waker>> {
        // one value is put in or taken out, so a panic of another thread leaves it valid
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ready when the reader's budget is exceeded: then the reader must be closed.
    pub fn poll_over(&self, context: &Context<'_>) -> Poll<()> {
        if self.is_over.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        let mut writer = self.writer();
        if !writer.as_ref().is_some_and(|writer| writer.will_wake(context.waker())) {
            *writer = Some(context.waker().clone());
        }
        drop(writer);
        // the reader may have been marked before the waker was stored
        if self.is_over.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Borrower for Reader {
    fn take(&self, bytes: usize) -> bool {
        self.budget.take(bytes)
    }

    fn give_back(&self, bytes: usize) {
        self.budget.give_back(bytes);
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(writer) = self.writer().take() {
            writer.wake();
        }
    }
}

/// Bytes that wait for a reader; uncounted when dropped.
#[derive(Debug)]
pub struct Held {
    pub(crate) reader: Arc<Reader>,
    /// Bytes of a change that waits.
    behind: usize,
    /// Bytes taken from its caller's budget.
    taken: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.behind > 0 {
            self.reader.behind.fetch_sub(self.behind, Ordering::Relaxed);
        }
        if self.taken > 0 {
            self.reader.budget.give_back(self.taken);
        }
    }
}

/// A change that waits to be written to a client. The change counts as waiting until this is dropped.
#[derive(Debug)]
pub struct Waiting {
    pub revision: u64,
    pub seen: Seen,
    /// The object after this change, or as it was when deleted; if it is no longer selected, as it was
    /// before.
    pub object: Loan,
    /// The object before the change, for a watch that compares.
    pub before: Option<Loan>,
    _held: Held,
}

impl Waiting {
    /// `most`: bytes that may wait for the reader. `None`: too many bytes wait already.
    fn new(event: &Event, seen: Seen, client: &Client, most: usize) -> Option<Waiting> {
        let object = match (seen, &event.old) {
            (Seen::Left, Some(old)) => old,
            _ => event.object(),
        };
        let held = client.reader.fall_behind(CHANGE_BYTES + object.json.len(), most)?;
        let lend = |object: &Arc<Object>| {
            Loan::new(Arc::clone(object), Arc::clone(&client.reader) as Arc<dyn Borrower>)
        };
        let before = event.old.as_ref().filter(|_| client.compares && seen == Seen::Modified);
        Some(Waiting {
            revision: event.revision,
            seen,
            object: lend(object),
            before: before.map(lend),
            _held: held,
        })
    }
}

/// The client of a watch.
#[derive(Debug, Clone)]
pub struct Client {
    pub reader: Arc<Reader>,
    /// The client is shown only changed fields, not every version.
    pub compares: bool,
}

/// A message to a watcher.
#[derive(Debug)]
pub enum News {
    /// A change, for a part of the hub itself.
    Event(Arc<Event>),
    /// A change, for a client. Boxed: the queue of an idle watch has room for several.
    Change(Box<Waiting>),
    /// The node was told of a change with this revision by the answer to a renewal, and expects the watch to
    /// reach it.
    Named(u64),
    /// A call with this id waits for the client, a node.
    Called(Arc<str>),
    /// The hub closes: every change up to this revision was received.
    Last(u64),
}

/// The sending side of a watch.
#[derive(Debug)]
pub struct Sender {
    queue: mpsc::Sender<News>,
    /// `None`: a part of the hub itself, which reads its changes.
    client: Option<Client>,
}

impl Sink for Sender {
    fn queue(&self, event: &Arc<Event>, seen: Seen) -> bool {
        let news = match &self.client {
            None => Some(News::Event(Arc::clone(event))),
            Some(client) if client.reader.is_over.load(Ordering::Acquire) => None,
            Some(client) => Waiting::new(event, seen, client, WATCH_BACKLOG_BYTES)
                .map(|waiting| News::Change(Box::new(waiting))),
        };
        news.is_some_and(|news| self.queue.try_send(news).is_ok())
    }

    fn takes_renewals(&self) -> bool {
        self.client.is_some()
    }

    fn close(&self, revision: u64) {
        // the channel is full, so the client is far behind; it resumes at the last change that it has read
        let _ = self.queue.try_send(News::Last(revision));
    }
}

/// Sends a watch the revisions that its client learned elsewhere. It does not keep the watch alive.
#[derive(Debug)]
pub struct Reminder(mpsc::WeakSender<News>);

impl Reminder {
    pub fn is_open(&self) -> bool {
        self.0.upgrade().is_some_and(|queue| !queue.is_closed())
    }

    /// Sends this revision to the watch. `false`: the watch has ended.
    pub fn name(&self, revision: u64) -> bool {
        let Some(queue) = self.0.upgrade() else { return false };
        // the channel is full: the client will read more than this one change before it catches up
        let _ = queue.try_send(News::Named(revision));
        !queue.is_closed()
    }

    /// Notifies the watch that this call waits. `false`: the watch has ended.
    pub fn call(&self, id: &Arc<str>) -> bool {
        let Some(queue) = self.0.upgrade() else { return false };
        // the channel is full: the client learns of the call in the answer to its next renewal
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
    Rights,
    Fleet,
    Leases,
}

thread_local! {
    /// The parts that the current thread has locked.
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

/// In debug builds: panics if this thread holds a lock. For code that is about to wait.
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
    /// Held only for the time of one node or one change, because renewals read it.
    desired: RwLock<Desired>,
    /// Held only for the time of one decision or one change.
    rights: RwLock<Rights>,
    /// Counts the changes of `rights`: a watch or session that began at an older count is judged again.
    rights_changes: AtomicU64,
    /// Changed after the index, and held only for the time of one change or one page's numbers.
    fleet: RwLock<Fleet>,
    begun: Instant,
    /// The revision of the deny list, 0 without one: every request reads it, and a renewal must not wait for
    /// readers of other objects.
    deny_list: AtomicU64,
}

impl Memory {
    pub fn new(index: Index<Sender>, leases: Leases<Sender>, desired: Desired) -> Memory {
        let deny_list = index.get(&CONFIG_MAP, DENY_LIST_NAMESPACE, DENY_LIST_NAME);
        let deny_list = AtomicU64::new(deny_list.map_or(0, |list| list.revision));
        let mut rights = Rights::default();
        for kind in KINDS_OF_RIGHTS {
            let all = index.list(kind, &Selection::default(), &Query::default());
            for object in all.map(|page| page.objects).unwrap_or_default() {
                rights.change(kind, &object, true);
            }
        }
        let mut fleet = Fleet::default();
        for kind in [&NODE, &POD, &EVENT, &CREDENTIAL] {
            let all = index.list(kind, &Selection::default(), &Query::default());
            for object in all.map(|page| page.objects).unwrap_or_default() {
                fleet.restore(kind, &object);
            }
        }
        Memory {
            index: RwLock::new(index),
            leases: RwLock::new(leases),
            desired: RwLock::new(desired),
            rights: RwLock::new(rights),
            rights_changes: AtomicU64::new(0),
            fleet: RwLock::new(fleet),
            begun: Instant::now(),
            deny_list,
        }
    }

    /// A memory without objects.
    #[cfg(test)]
    pub(crate) fn empty() -> Memory {
        use kedge_hub_core::state::{Restored, Spaces, restore};
        let restored = restore(Spaces::default(), Vec::new());
        let Restored { index, leases, desired, .. } = restored.expect("nothing can be wrong with no records");
        Memory::new(index, leases, desired)
    }

    // only the writer can panic under the lock, and the hub stops when the writer ends; until then readers
    // continue
    pub(crate) fn read(&self) -> Locked<RwLockReadGuard<'_, Index<Sender>>> {
        Locked::new(Part::Index, || self.index.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self) -> Locked<RwLockWriteGuard<'_, Index<Sender>>> {
        Locked::new(Part::Index, || self.index.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks the Leases for reading. Held for no longer than one list takes.
    pub(crate) fn leases(&self) -> Locked<RwLockReadGuard<'_, Leases<Sender>>> {
        Locked::new(Part::Leases, || self.leases.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks the Leases for a change. Never held while the thread waits for anything.
    pub(crate) fn leases_mut(&self) -> Locked<RwLockWriteGuard<'_, Leases<Sender>>> {
        Locked::new(Part::Leases, || self.leases.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn read_desired(&self) -> Locked<RwLockReadGuard<'_, Desired>> {
        Locked::new(Part::Desired, || self.desired.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn desired_mut(&self) -> Locked<RwLockWriteGuard<'_, Desired>> {
        Locked::new(Part::Desired, || self.desired.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the part that has the objects of this kind.
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

    /// UIDs that objects name as an owner, and that no object has. The owner may be of a kind that is not
    /// served.
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

    /// True if the other objects that a write requires to be unchanged still are.
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

    /// Registers a watcher; see [`Index::watch`]. Its changes are charged to this client; a watcher of the
    /// hub itself has none, and receives no renewals.
    pub fn watch(
        self: &Arc<Self>,
        kind: &'static Kind,
        selection: Selection,
        from: Option<u64>,
        client: Option<Client>,
    ) -> Result<(Start, u64, Watch), WatchRefused> {
        let (queue, receiver) = mpsc::channel(WATCH_BACKLOG);
        let reminder = queue.downgrade();
        let sender = Sender { queue, client };
        let (start, revision, id) = if kind.is_renewed() {
            self.leases_mut().watch(kind, selection.clone(), from, sender)?
        } else {
            self.write().watch(kind, selection.clone(), from, sender)?
        };
        Ok((start, revision, Watch { memory: self.clone(), kind, id, selection, receiver, reminder }))
    }

    /// Makes durable changes visible, of all kinds but Leases: the writer's last step.
    pub fn publish(&self, changes: Vec<Changed>) {
        // objects are parsed before any lock is held
        let notes: Vec<Note> = changes.iter().filter_map(Note::of).collect();
        let mut index = self.write();
        for changed in &changes {
            self.desired_mut().note(changed);
            self.note_deny_list(changed);
            self.note_rights(changed);
        }
        index.publish(changes);
        drop(index);
        if !notes.is_empty() {
            let now = self.begun.elapsed();
            let mut fleet =
                Locked::new(Part::Fleet, || self.fleet.write().unwrap_or_else(PoisonError::into_inner));
            notes.into_iter().for_each(|note| fleet.apply(note, now));
        }
    }

    /// Passes the fleet's numbers, and the time since the start, to `look`, which must not ask this memory.
    pub fn with_fleet<T>(&self, look: impl FnOnce(&Fleet, Duration) -> T) -> T {
        let fleet = || self.fleet.read().unwrap_or_else(PoisonError::into_inner);
        look(&Locked::new(Part::Fleet, fleet), self.begun.elapsed())
    }

    fn note_rights(&self, Changed { kind, event, .. }: &Changed) {
        if !is_of_rights(kind) {
            return;
        }
        let rights = || self.rights.write().unwrap_or_else(PoisonError::into_inner);
        Locked::new(Part::Rights, rights).change(kind, event.object(), event.new.is_some());
        self.rights_changes.fetch_add(1, Ordering::Release);
    }

    /// Passes the rights to `look`, which must not ask this memory.
    pub fn with_rights(&self, look: impl FnOnce(&Rights)) {
        let rights = || self.rights.read().unwrap_or_else(PoisonError::into_inner);
        look(&Locked::new(Part::Rights, rights));
    }

    /// The number of changes of the rights; a new one is visible before the writer of the change is answered.
    pub fn rights_changes(&self) -> u64 {
        self.rights_changes.load(Ordering::Acquire)
    }

    fn note_deny_list(&self, Changed { kind, event, .. }: &Changed) {
        let object = event.object();
        let is_list = kind.kind == CONFIG_MAP.kind
            && (&*object.namespace, &*object.name) == (DENY_LIST_NAMESPACE, DENY_LIST_NAME);
        if is_list {
            self.deny_list.store(event.new.as_ref().map_or(0, |list| list.revision), Ordering::Release);
        }
    }

    /// The revision of the deny list, 0 without one; the new one is visible before the writer of the change
    /// is answered.
    pub fn deny_list(&self) -> u64 {
        self.deny_list.load(Ordering::Acquire)
    }

    /// The latest revision that concerns a node: see [`Desired::of`]. A node that gets this revision in an
    /// answer finds it in whatever it reads next: readers wait for the batch that contains it.
    pub fn desired(&self, node: &str) -> u64 {
        self.read_desired().of(node)
    }

    /// Whether a node's Node, or a pod bound to it, refers to an object. Costs the same for any number of
    /// pods.
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
    /// The objects that it watches.
    pub selection: Selection,
    /// Changes that concern it, in order. It ends when the watcher was too slow or the hub closes.
    pub receiver: mpsc::Receiver<News>,
    reminder: mpsc::WeakSender<News>,
}

impl Watch {
    /// The changes before the watch began, as waiting changes; `None` if the client's budget does not allow
    /// it. The hub remembers a limited number of changes, so these are not limited by
    /// [`WATCH_BACKLOG_BYTES`].
    pub fn waiting(&self, events: Vec<Arc<Event>>, client: &Client) -> Option<Vec<Box<Waiting>>> {
        let wait = |event: Arc<Event>| {
            let seen = Seen::by(&self.selection, &event)?;
            Some(Waiting::new(&event, seen, client, usize::MAX).map(Box::new))
        };
        events.into_iter().filter_map(wait).collect()
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

    /// Counts the bytes that it gave out; refuses beyond a limit.
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

    /// The handler of renewals then drops the reminder, so a caller that opens and ends watches leaves
    /// nothing behind here.
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
        // a watch that fell behind has ended, too, though its client has not read all of it
        let behind = open();
        let reminder = behind.reminder();
        (0..=WATCH_BACKLOG).for_each(|_| put(&memory));
        assert!(!reminder.is_open() && !reminder.name(9));
    }

    /// A watch of all ConfigMaps by a client that may hold so many bytes.
    fn unread(memory: &Arc<Memory>, limit: usize) -> (Arc<Purse>, Arc<Reader>, Watch) {
        let purse = Arc::new(Purse { limit, given: AtomicUsize::new(0) });
        let reader = Arc::new(Reader::new(purse.clone()));
        let client = Client { reader: Arc::clone(&reader), compares: false };
        let (_, _, watch) = memory.watch(&CONFIG_MAP, Selection::all(""), None, Some(client)).unwrap();
        (purse, reader, watch)
    }

    fn is_over(reader: &Reader) -> bool {
        reader.poll_over(&Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn unread_watch_holds_a_bounded_number_of_bytes() {
        let memory = Arc::new(Memory::empty());
        // the number of changes it received, and whether it must be closed because the budget is exceeded
        let check = |limit: usize, each: usize, expect: (usize, bool)| {
            let (purse, reader, mut unread) = unread(&memory, limit);
            for _ in 0..20 {
                put_with(&memory, each);
            }
            assert_eq!(memory.watches(), 0, "{limit} {each}");
            let mut received = 0;
            while unread.receiver.try_recv().is_ok() {
                received += 1;
            }
            assert_eq!((received, is_over(&reader)), expect, "{limit} {each}");
            assert_eq!(purse.given.load(Ordering::Relaxed), 0, "everything was given back");
        };
        check(usize::MAX, 200_000, (5, false));
        // one change waits, however large
        check(usize::MAX, 1_400_000, (1, false));
        // while it is the latest version
        check(0, 200_000, (1, true));
        // the caller's other watches have taken the remaining bytes
        check(500_000, 200_000, (3, true));
        // exact to the byte; revisions above a hundred, so that all are equally long
        (0..20).for_each(|_| put(&memory));
        let (_, reader, watch) = unread(&memory, usize::MAX);
        put(&memory);
        let rest = WATCH_BACKLOG_BYTES / 2 - reader.behind.load(Ordering::Relaxed);
        drop(watch);
        check(usize::MAX, rest, (2, false));
        check(usize::MAX, rest + 1, (1, false));
    }

    /// The object of a change that is being sent.
    fn object_of(waiting: Waiting) -> Loan {
        waiting.object
    }

    #[test]
    fn old_version_is_paid_for_until_it_is_sent() {
        let memory = Arc::new(Memory::empty());
        let given = |purse: &Purse| purse.given.load(Ordering::Relaxed) / 100_000;
        let (purse, _, mut watch) = unread(&memory, usize::MAX);
        let (other, _, others) = unread(&memory, usize::MAX);
        put_with(&memory, 100_000);
        assert_eq!((given(&purse), given(&other)), (0, 0), "the latest version costs nothing");
        let Ok(News::Change(sending)) = watch.receiver.try_recv() else { panic!("a change") };
        put_with(&memory, 100_000);
        assert_eq!(given(&purse) + given(&other), 1, "the old one costs one of them");
        // a watch that is dropped with its changes gives their bytes back
        drop(others);
        assert_eq!((given(&purse), given(&other)), (1, 0), "who still sends it pays");
        let object = object_of(*sending);
        assert_eq!(given(&purse), 1);
        drop(object);
        assert_eq!(given(&purse), 0);
        drop(watch);
        assert_eq!(purse.given.load(Ordering::Relaxed), 0);
    }
}
