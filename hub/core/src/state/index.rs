//! All objects, the latest changes of each kind, and their watchers.
//!
//! Always holds: changes come in through [`Index::publish`] alone, in the order of their revisions, so a
//! watcher that registers between two of them misses none and gets none twice. Changes of each kind are kept
//! in a bounded ring: a watch or a page that starts before the ring is refused, and the client lists again;
//! but not the watch of one object that has not changed since, so that clients which change other objects all
//! the time cannot force it to list again. Left to others: the limit on watchers, delivery of events to them
//! ([`Sink`]), locks, and durability (`order`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use super::relations::{At, Relations, Usage};
use crate::kinds::{KINDS, Kind, index_of};
use crate::loans;
use crate::object::{Event, Object, key};
use crate::selector::Selection;

/// Changes remembered per kind. At 500 renewals a second that is 8 s of Leases, and hours of changes by
/// people.
const RING_EVENTS: usize = 4096;
/// Bytes of remembered changes per kind, so that 1 MiB ConfigMaps do not fill the memory of a small board.
const RING_BYTES: usize = 16 * 1024 * 1024;

/// A change that has its revision.
#[derive(Debug, Clone)]
pub struct Changed {
    pub kind: &'static Kind,
    pub event: Arc<Event>,
    /// The node that made it, if a node did.
    pub author: Option<Box<str>>,
}

/// How a watcher sees a change of an object: an object that begins to match its selection counts as added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    Added,
    Modified,
    Deleted,
    /// It exists, but no longer matches: deleted for this watcher.
    Left,
}

impl Seen {
    /// `None`: the change does not concern watchers with this selection.
    pub fn by(selection: &Selection, event: &Event) -> Option<Seen> {
        let selects =
            |object: &Option<Arc<Object>>| object.as_ref().is_some_and(|object| selection.selects(object));
        match (selects(&event.old), selects(&event.new)) {
            (false, false) => None,
            (false, true) => Some(Seen::Added),
            (true, true) => Some(Seen::Modified),
            (true, false) if event.last.is_some() => Some(Seen::Deleted),
            (true, false) => Some(Seen::Left),
        }
    }
}

/// The destination of a watcher's events.
pub trait Sink {
    /// Queues an event, and how its watcher sees it. `false`: the watcher is too far behind or gone, and is
    /// dropped.
    fn queue(&self, event: &Arc<Event>, seen: Seen) -> bool;

    /// Whether it wants renewals as events: there are many, and most of the hub's own controllers do not use
    /// them.
    fn takes_renewals(&self) -> bool {
        true
    }

    /// The hub closes: every change up to this revision was queued, and none follows.
    fn close(&self, _revision: u64) {}
}

/// See the module. `S` takes the events of one watcher.
#[derive(Debug)]
pub struct Index<S> {
    revision: u64,
    kinds: Vec<OfKind<S>>,
    relations: Relations,
    watches: usize,
    next_watch: u64,
    closed: bool,
}

#[derive(Debug)]
struct OfKind<S> {
    kind: &'static Kind,
    objects: BTreeMap<String, Arc<Object>>,
    /// The number of objects in each namespace that has any.
    namespaces: BTreeMap<Box<str>, usize>,
    /// Keys by the value of a field, for each of [`Kind::indexed`].
    by_value: Vec<BTreeMap<Box<str>, BTreeSet<String>>>,
    ring: VecDeque<Arc<Event>>,
    ring_bytes: usize,
    /// Changes up to this revision are not in the ring.
    forgotten: u64,
    /// Changes up to this revision are unknown: they may belong to another history.
    begun: u64,
    watchers: BTreeMap<u64, Watcher<S>>,
    /// Watchers, by the objects that can concern them, so that a change visits no others.
    waiting: BTreeMap<Shard, Vec<u64>>,
}

/// The key by which a change finds a watcher: most watches of a fleet are of one name, or of one node's pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Shard {
    Name(Box<str>),
    /// An indexed field, by its position in [`Kind::indexed`], and its value.
    Field(usize, Box<str>),
    Any,
}

#[derive(Debug)]
struct Watcher<S> {
    selection: Selection,
    sink: S,
}

/// Names a registered watcher.
#[derive(Debug, Clone, Copy)]
pub struct WatchId {
    kind: usize,
    id: u64,
}

/// The requested version is older than the oldest remembered change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooOld {
    /// The oldest version from which changes are known.
    pub oldest: u64,
}

/// A list, or one page of it.
#[derive(Debug)]
pub struct Page {
    /// In the order of namespace and name.
    pub objects: Vec<Arc<Object>>,
    /// The state is exactly that of this revision.
    pub revision: u64,
    /// More objects follow, after this key.
    pub next: Option<String>,
    /// The number of objects after this page; unknown with selectors, or if the query did not know it either.
    pub remaining: Option<usize>,
}

/// Bytes of objects that a page may always have; a single object may have more. A client that requests many
/// objects at once expects small ones, and a node, which requests 50, gets no page of more than 4 MiB.
const PAGE_BYTES: usize = 3 << 20;
/// And this much for each requested object: 10,000 have 80 MB.
const PAGE_BYTES_PER_OBJECT: usize = 8 << 10;

/// The parameters of a list.
#[derive(Debug, Default)]
pub struct Query<'a> {
    /// Exactly this revision; `None` is the latest.
    pub revision: Option<u64>,
    /// Keys up to this one are left out.
    pub after: Option<&'a str>,
    /// Most objects. A page of large ones has fewer.
    pub limit: Option<usize>,
    /// For a further page: the number of remaining objects given by the previous page. Counting them again
    /// would make every page cost as much as the whole list.
    pub remaining: Option<usize>,
}

/// The first events of a new watcher.
#[derive(Debug)]
pub enum Start {
    /// The present objects.
    Objects(Vec<Arc<Object>>),
    /// The changes since the version it named.
    Changes(Vec<Arc<Event>>),
}

/// Why a watch cannot start.
#[derive(Debug, PartialEq, Eq)]
pub enum WatchRefused {
    /// It starts before the oldest remembered change.
    TooOld(TooOld),
    /// It starts in the future; the current revision is given.
    TooLarge(u64),
    /// The hub is closing.
    Closed,
}

impl<S: Sink> Index<S> {
    /// Empty, at a revision before which no changes are known.
    pub fn new(revision: u64) -> Index<S> {
        let of_kind = |kind: &&'static Kind| OfKind {
            kind,
            objects: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            by_value: kind.indexed.iter().map(|_| BTreeMap::new()).collect(),
            ring: VecDeque::new(),
            ring_bytes: 0,
            forgotten: revision,
            begun: revision,
            watchers: BTreeMap::new(),
            waiting: BTreeMap::new(),
        };
        let kinds = KINDS.iter().map(of_kind).collect();
        Index { revision, kinds, relations: Relations::default(), watches: 0, next_watch: 0, closed: false }
    }

    /// Puts a stored object in place, at start.
    pub fn restore(&mut self, kind: &Kind, object: Object) {
        let at = (index_of(kind), key(&object.namespace, &object.name));
        let object = Arc::new(object);
        let old = self.kinds[at.0].store(&at.1, Some(object.clone()));
        self.relations.change(&at, old.as_deref(), Some(&object));
    }

    /// The latest revision that readers can see.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Objects of a kind.
    pub fn count(&self, kind: &Kind) -> usize {
        self.kinds[index_of(kind)].objects.len()
    }

    /// Open watches.
    pub fn watches(&self) -> usize {
        self.watches
    }

    /// One object; `namespace` is empty for cluster-scoped kinds.
    pub fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.kinds[index_of(kind)].objects.get(&key(namespace, name)).cloned()
    }

    /// The object with this [`key`].
    pub(super) fn get_at(&self, kind: &Kind, key: &str) -> Option<&Arc<Object>> {
        self.kinds[index_of(kind)].objects.get(key)
    }

    /// Objects that name this UID as an owner, of all kinds.
    pub fn dependents(&self, uid: &str) -> Vec<(&'static Kind, Arc<Object>)> {
        self.relations.dependents(uid).filter_map(|at| self.at(at)).collect()
    }

    fn at(&self, (kind, key): &At) -> Option<(&'static Kind, Arc<Object>)> {
        Some((KINDS[*kind], self.kinds[*kind].objects.get(key)?.clone()))
    }

    /// Objects that are marked for deletion, of all kinds.
    pub fn terminating(&self) -> Vec<(&'static Kind, Arc<Object>)> {
        self.relations.terminating().filter_map(|at| self.at(at)).collect()
    }

    /// Whether an object of any kind has this UID.
    pub fn exists(&self, uid: &str) -> bool {
        self.relations.exists(uid)
    }

    /// UIDs that objects name as an owner, and that no object has. The owner may be of an unserved kind.
    pub fn lost_owners(&self) -> Vec<String> {
        self.relations.lost_owners()
    }

    /// The usage charged to a user: bytes, and objects of this kind.
    pub fn usage(&self, holder: &str, kind: &Kind) -> Usage {
        self.relations.usage(holder, index_of(kind))
    }

    /// The objects of a kind that are charged to a user.
    pub fn charged(&self, holder: &str, kind: &Kind) -> Vec<Arc<Object>> {
        let of_holder = self.relations.charged(holder, index_of(kind));
        of_holder.filter_map(|at| Some(self.at(at)?.1)).collect()
    }

    /// The values of an indexed field that objects have.
    pub fn values(&self, kind: &Kind, field: usize) -> Vec<String> {
        let of_kind = &self.kinds[index_of(kind)];
        let position = kind.indexed.iter().position(|indexed| *indexed == field);
        let values = position.into_iter().flat_map(|position| of_kind.by_value[position].keys());
        values.map(ToString::to_string).collect()
    }

    /// The namespaces that have objects, whether or not they exist themselves.
    pub fn namespaces_in_use(&self) -> BTreeSet<String> {
        let kinds = self.kinds.iter().filter(|of_kind| of_kind.kind.namespaced);
        kinds.flat_map(|of_kind| of_kind.namespaces.keys().map(ToString::to_string)).collect()
    }

    /// All objects of a namespace.
    pub fn in_namespace(&self, namespace: &str) -> Vec<(&'static Kind, Arc<Object>)> {
        let selection = Selection::all(namespace);
        let kinds = KINDS.iter().zip(&self.kinds).filter(|(kind, _)| kind.namespaced);
        kinds
            .flat_map(|(kind, of_kind)| {
                of_kind.range(&selection, None).map(move |(_, object)| (*kind, object.clone()))
            })
            .collect()
    }

    /// Lists the selected objects.
    pub fn list(&self, kind: &Kind, selection: &Selection, query: &Query<'_>) -> Result<Page, TooOld> {
        let of_kind = &self.kinds[index_of(kind)];
        let revision = query.revision.unwrap_or(self.revision).min(self.revision);
        if revision < of_kind.forgotten && revision < self.revision {
            return Err(TooOld { oldest: of_kind.forgotten });
        }
        let later = of_kind.changed_after(revision, selection, query.after);
        let present = of_kind.range(selection, query.after).filter(|(key, _)| !later.contains_key(*key));
        let taken_back = later.iter().filter_map(|(key, old)| Some((key, (*old)?)));
        let mut page = page(merged(present, taken_back), selection, revision, query.limit);
        let whole =
            || (query.after.is_none() && !selection.is_filtered()).then(|| of_kind.count(selection, &later));
        page.remaining = match &page.next {
            None => Some(0),
            Some(_) if selection.is_filtered() => None,
            Some(_) => query.remaining.or_else(whole).map(|all| all.saturating_sub(page.objects.len())),
        };
        Ok(page)
    }

    /// Registers a watcher. `from`: `None` starts with the present objects, else with the changes after that
    /// revision. Also returns the revision up to which `Start` contains everything.
    pub fn watch(
        &mut self,
        kind: &Kind,
        selection: Selection,
        from: Option<u64>,
        sink: S,
    ) -> Result<(Start, u64, WatchId), WatchRefused> {
        let revision = self.revision;
        if self.closed {
            return Err(WatchRefused::Closed);
        }
        let kind = index_of(kind);
        let start = self.kinds[kind].start(&selection, from, revision)?;
        let id = self.next_watch;
        self.next_watch += 1;
        self.watches += 1;
        self.kinds[kind].register(id, Watcher { selection, sink });
        Ok((start, revision, WatchId { kind, id }))
    }

    /// Makes durable changes visible, and hands them to their watchers.
    pub fn publish(&mut self, changes: Vec<Changed>) {
        for changed in changes {
            let object = changed.event.object();
            let key = key(&object.namespace, &object.name);
            self.publish_one(key, changed, |_| true);
        }
    }

    /// Publishes a change that need not be durable, of the object with this [`key`], and hands it to the
    /// watchers that take such changes.
    pub(super) fn publish_renewal(&mut self, key: String, changed: Changed) {
        self.publish_one(key, changed, Sink::takes_renewals);
    }

    fn publish_one(&mut self, key: String, Changed { kind, event, .. }: Changed, takes: impl Fn(&S) -> bool) {
        self.revision = event.revision;
        let at = (index_of(kind), key);
        let old = match (&event.old, &event.new) {
            (Some(old), Some(new)) if new.shares_facts(old) && new.holder.is_none() => {
                self.kinds[at.0].objects.insert(at.1, new.clone())
            }
            (_, new) => {
                let old = self.kinds[at.0].store(&at.1, new.clone());
                self.relations.change(&at, old.as_deref(), new.as_deref());
                old
            }
        };
        // before anybody gets the new version: from now on readers of the old one read an old version
        let known =
            event.old.as_ref().filter(|known| old.as_ref().is_none_or(|old| !Arc::ptr_eq(old, known)));
        old.iter().chain(known).chain(&event.last).for_each(|object| loans::supersede(object));
        self.watches -= self.kinds[at.0].tell(event, takes);
    }

    /// Continues from a later revision, and forgets all changes before it.
    pub fn skip_to(&mut self, revision: u64) {
        self.revision = revision;
        for of_kind in &mut self.kinds {
            of_kind.ring.clear();
            of_kind.ring_bytes = 0;
            (of_kind.forgotten, of_kind.begun) = (revision, revision);
        }
    }

    /// Whether [`Index::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Ends all watches, each with the revision up to which it has everything, and refuses new ones.
    pub fn close(&mut self) {
        self.closed = true;
        self.watches = 0;
        for of_kind in &mut self.kinds {
            of_kind.watchers.values().for_each(|watcher| watcher.sink.close(self.revision));
            of_kind.watchers.clear();
            of_kind.waiting.clear();
        }
    }

    /// Ends a watch; does nothing for one that was dropped already.
    pub fn unwatch(&mut self, watch: WatchId) {
        if self.kinds[watch.kind].unregister(watch.id) {
            self.watches -= 1;
        }
    }
}

fn page<'a>(
    objects: impl Iterator<Item = (&'a String, &'a Arc<Object>)>,
    selection: &Selection,
    revision: u64,
    limit: Option<usize>,
) -> Page {
    let most_bytes =
        limit.map_or(usize::MAX, |limit| limit.saturating_mul(PAGE_BYTES_PER_OBJECT).max(PAGE_BYTES));
    let limit = limit.unwrap_or(usize::MAX);
    let mut page = Page { objects: Vec::new(), revision, next: None, remaining: None };
    let mut last: Option<&String> = None;
    let mut bytes = 0;
    for (key, object) in objects.filter(|(_, object)| selection.selects(object)) {
        bytes += object.json.len();
        if page.objects.len() >= limit || (bytes > most_bytes && !page.objects.is_empty()) {
            page.next = last.cloned();
            break;
        }
        last = Some(key);
        page.objects.push(object.clone());
    }
    page
}

/// Merges two sequences in the order of their keys, which have no key in common.
fn merged<'a, T>(
    first: impl Iterator<Item = (&'a String, T)>,
    second: impl Iterator<Item = (&'a String, T)>,
) -> impl Iterator<Item = (&'a String, T)> {
    let (mut first, mut second) = (first.peekable(), second.peekable());
    std::iter::from_fn(move || match (first.peek(), second.peek()) {
        (Some((a, _)), Some((b, _))) if b < a => second.next(),
        (Some(_), _) => first.next(),
        (None, _) => second.next(),
    })
}

impl<S: Sink> OfKind<S> {
    /// The first events of a new watcher.
    fn start(&self, selection: &Selection, from: Option<u64>, revision: u64) -> Result<Start, WatchRefused> {
        match from {
            None => {
                let selected = self.range(selection, None).filter(|(_, object)| selection.selects(object));
                Ok(Start::Objects(selected.map(|(_, object)| object.clone()).collect()))
            }
            Some(from) if from > revision => Err(WatchRefused::TooLarge(revision)),
            Some(from) if from < self.forgotten && !self.is_unchanged(selection, from) => {
                Err(WatchRefused::TooOld(TooOld { oldest: self.forgotten }))
            }
            Some(from) => {
                let first = self.ring.partition_point(|event| event.revision <= from);
                let concerned = self.ring.range(first..).filter(|event| Seen::by(selection, event).is_some());
                Ok(Start::Changes(concerned.cloned().collect()))
            }
        }
    }

    /// Whether a selection is for one object, which exists and has not changed after a revision.
    fn is_unchanged(&self, selection: &Selection, revision: u64) -> bool {
        let is_one = !self.kind.namespaced || !selection.namespace.is_empty();
        let name = selection.name.as_ref().filter(|_| is_one && revision >= self.begun);
        let found = name.and_then(|name| self.objects.get(&key(&selection.namespace, name)));
        // if it had been created anew, its revision would be later
        found.is_some_and(|object| object.revision <= revision)
    }

    /// Candidates of a selection by key: the object that it names, those with the required value of an
    /// indexed field, or all of its namespace.
    fn range<'a>(
        &'a self,
        selection: &Selection,
        after: Option<&str>,
    ) -> Box<dyn Iterator<Item = (&'a String, &'a Arc<Object>)> + 'a> {
        let Some(bounds) = bounds(self.kind, selection, after) else { return Box::new(std::iter::empty()) };
        if let (Some(name), true, "") = (&selection.name, self.kind.namespaced, &*selection.namespace) {
            let mut keys: Vec<String> =
                self.namespaces.keys().map(|namespace| key(namespace, name)).collect();
            keys.retain(|key| std::ops::RangeBounds::contains(&bounds, key));
            keys.sort_unstable();
            return Box::new(keys.into_iter().filter_map(|key| self.objects.get_key_value(&key)));
        }
        match selection.indexed.as_ref().filter(|_| selection.name.is_none()) {
            Some((field, value)) => {
                let position = self.kind.indexed.iter().position(|indexed| indexed == field);
                let keys = position.and_then(|position| self.by_value[position].get(&**value));
                let keys = keys.into_iter().flat_map(move |keys| keys.range::<String, _>(bounds.clone()));
                Box::new(keys.filter_map(|key| self.objects.get_key_value(key)))
            }
            None => Box::new(self.objects.range::<String, _>(bounds)),
        }
    }

    /// The objects of a namespace (empty: all) before these later changes.
    fn count(&self, selection: &Selection, later: &BTreeMap<String, Option<&Arc<Object>>>) -> usize {
        let present = match &*selection.namespace {
            "" => self.objects.len(),
            namespace => self.namespaces.get(namespace).copied().unwrap_or(0),
        };
        let removed = later.values().filter(|old| old.is_some()).count();
        let changed = later.keys().filter(|key| self.objects.contains_key(*key)).count();
        present + removed - changed
    }

    /// The objects that changed after a revision, within the selection's keys, as they were at that revision.
    fn changed_after(
        &self,
        revision: u64,
        selection: &Selection,
        after: Option<&str>,
    ) -> BTreeMap<String, Option<&Arc<Object>>> {
        let mut changed = BTreeMap::new();
        let Some(bounds) = bounds(self.kind, selection, after) else { return changed };
        for event in self.ring.iter().rev().take_while(|event| event.revision > revision) {
            let object = event.object();
            let key = key(&object.namespace, &object.name);
            if std::ops::RangeBounds::contains(&bounds, &key) {
                changed.insert(key, event.old.as_ref());
            }
        }
        changed
    }

    fn shard(&self, selection: &Selection) -> Shard {
        if let Some(name) = &selection.name {
            return Shard::Name(name.as_str().into());
        }
        let indexed = selection.indexed.as_ref().and_then(|(field, value)| {
            let position = self.kind.indexed.iter().position(|indexed| indexed == field)?;
            Some(Shard::Field(position, value.as_str().into()))
        });
        indexed.unwrap_or(Shard::Any)
    }

    fn register(&mut self, id: u64, watcher: Watcher<S>) {
        self.waiting.entry(self.shard(&watcher.selection)).or_default().push(id);
        self.watchers.insert(id, watcher);
    }

    fn unregister(&mut self, id: u64) -> bool {
        let Some(watcher) = self.watchers.remove(&id) else { return false };
        let shard = self.shard(&watcher.selection);
        if let Some(ids) = self.waiting.get_mut(&shard) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.waiting.remove(&shard);
            }
        }
        true
    }

    /// Puts an object in place of another, or removes it; returns the other.
    fn store(&mut self, key: &str, new: Option<Arc<Object>>) -> Option<Arc<Object>> {
        let old = match &new {
            Some(new) => self.objects.insert(key.to_owned(), new.clone()),
            None => self.objects.remove(key),
        };
        // most changes keep all indexed values: these cost no update of an index
        for (field, keys) in self.kind.indexed.iter().zip(&mut self.by_value) {
            let value =
                |object: &Option<Arc<Object>>| object.as_ref().map(|object| Box::from(object.field(*field)));
            let (before, after): (Option<Box<str>>, Option<Box<str>>) = (value(&old), value(&new));
            if before == after {
                continue;
            }
            if let Some(before) = before
                && let Some(of_value) = keys.get_mut(&before)
            {
                of_value.remove(key);
                if of_value.is_empty() {
                    keys.remove(&before);
                }
            }
            if let Some(after) = after {
                keys.entry(after).or_default().insert(key.to_owned());
            }
        }
        match (&old, &new) {
            (None, Some(new)) if self.kind.namespaced => {
                *self.namespaces.entry(new.namespace.clone()).or_default() += 1;
            }
            (Some(old), None) if self.kind.namespaced => {
                if let Some(count) = self.namespaces.get_mut(&old.namespace) {
                    *count -= 1;
                    if *count == 0 {
                        self.namespaces.remove(&old.namespace);
                    }
                }
            }
            _ => {}
        }
        old
    }

    /// The shards with watchers that a change can concern, besides [`Shard::Any`].
    fn shards(&self, event: &Event) -> BTreeSet<Shard> {
        let mut shards = BTreeSet::from([Shard::Name(event.object().name.clone())]);
        for object in [&event.old, &event.new].into_iter().flatten() {
            let fields = self.kind.indexed.iter().enumerate();
            shards
                .extend(fields.map(|(position, field)| Shard::Field(position, object.field(*field).into())));
        }
        shards
    }

    /// Sends a change to its watchers and keeps it in the ring; returns how many watchers were too slow and
    /// are dropped.
    fn tell(&mut self, event: Arc<Event>, takes: impl Fn(&S) -> bool) -> usize {
        let mut slow = Vec::new();
        // names and fields are copied for their watchers only: Leases, which have most changes, have no such
        // watchers
        let only_any = self.waiting.keys().all(|shard| *shard == Shard::Any);
        let shards = if only_any { BTreeSet::new() } else { self.shards(&event) };
        for id in
            std::iter::once(&Shard::Any).chain(&shards).filter_map(|shard| self.waiting.get(shard)).flatten()
        {
            let Some(watcher) = self.watchers.get(id).filter(|watcher| takes(&watcher.sink)) else {
                continue;
            };
            let seen = Seen::by(&watcher.selection, &event);
            if seen.is_some_and(|seen| !watcher.sink.queue(&event, seen)) {
                slow.push(*id);
            }
        }
        self.remember(event);
        slow.into_iter().filter(|id| self.unregister(*id)).count()
    }

    fn remember(&mut self, event: Arc<Event>) {
        self.ring_bytes += event.weight();
        self.ring.push_back(event);
        while self.ring.len() > RING_EVENTS || (self.ring_bytes > RING_BYTES && self.ring.len() > 1) {
            if let Some(dropped) = self.ring.pop_front() {
                self.ring_bytes -= dropped.weight();
                self.forgotten = dropped.revision;
            }
        }
    }
}

/// The range of keys that a selection can select. The empty namespace is that of cluster-scoped objects, or
/// all namespaces.
fn bounds(kind: &Kind, selection: &Selection, after: Option<&str>) -> Option<(Bound<String>, Bound<String>)> {
    let named = selection.name.as_ref().filter(|_| !kind.namespaced || !selection.namespace.is_empty());
    let mut low = match (&*selection.namespace, named) {
        ("", None) => Bound::Unbounded,
        (namespace, Some(name)) => Bound::Included(key(namespace, name)),
        (namespace, None) => Bound::Included(key(namespace, "")),
    };
    let high = match (&*selection.namespace, named) {
        ("", None) => Bound::Unbounded,
        (namespace, Some(name)) => Bound::Included(key(namespace, name)),
        // '0' is the character after '/'
        (namespace, None) => Bound::Excluded(format!("{namespace}0")),
    };
    if let Some(after) = after {
        let later = match &low {
            Bound::Included(low) | Bound::Excluded(low) => after >= low.as_str(),
            Bound::Unbounded => true,
        };
        if later {
            low = Bound::Excluded(after.to_owned());
        }
    }
    // BTreeMap panics on a range that ends before it starts, which a forged token may ask for
    let backwards = match (&low, &high) {
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => {
            low >= high
        }
        _ => false,
    };
    match backwards {
        true if low == high && matches!(low, Bound::Included(_)) => Some((low, high)),
        true => None,
        false => Some((low, high)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{CONFIG_MAP, POD};
    use serde_json::json;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// Accepts a fixed number of events.
    #[derive(Debug, Default, Clone)]
    struct Taken(Rc<RefCell<Vec<Arc<Event>>>>, Option<usize>);

    impl Taken {
        fn revisions(&self) -> Vec<u64> {
            self.0.borrow().iter().map(|event| event.revision).collect()
        }
    }

    impl Sink for Taken {
        fn queue(&self, event: &Arc<Event>, _: Seen) -> bool {
            let has_room = self.1.is_none_or(|room| self.0.borrow().len() < room);
            if has_room {
                self.0.borrow_mut().push(event.clone());
            }
            has_room
        }
    }

    struct World {
        index: Index<Taken>,
        revision: u64,
    }

    impl World {
        fn new() -> World {
            World { index: Index::new(10), revision: 10 }
        }

        fn put(&mut self, namespace: &str, name: &str, label: &str) -> u64 {
            self.revision += 1;
            let value = json!({"metadata": {"namespace": namespace, "name": name, "labels": {"l": label}}});
            let new = Object::new(&CONFIG_MAP, &value, self.revision).map(Arc::new);
            let old = self.index.get(&CONFIG_MAP, namespace, name);
            self.publish(Event { revision: self.revision, old, new, last: None })
        }

        fn delete(&mut self, namespace: &str, name: &str) -> u64 {
            self.revision += 1;
            let old = self.index.get(&CONFIG_MAP, namespace, name);
            self.publish(Event { revision: self.revision, last: old.clone(), old, new: None })
        }

        fn publish(&mut self, event: Event) -> u64 {
            self.index.publish(vec![Changed { kind: &CONFIG_MAP, event: Arc::new(event), author: None }]);
            self.revision
        }

        fn names(
            &self,
            selection: &Selection,
            query: Query<'_>,
        ) -> Result<(Vec<String>, Option<String>), TooOld> {
            let page = self.index.list(&CONFIG_MAP, selection, &query)?;
            let names = page.objects.iter().map(|object| key(&object.namespace, &object.name)).collect();
            Ok((names, page.next))
        }
    }

    #[test]
    fn list_stays_in_namespace_and_continues_after_a_page() {
        let mut world = World::new();
        for (namespace, name) in [("a", "2"), ("a", "1"), ("a-b", "1"), ("a0", "1"), ("b", "1")] {
            world.put(namespace, name, "x");
        }
        let all = Selection::all("");
        let (names, next) = world.names(&Selection::all("a"), Query::default()).unwrap();
        assert_eq!((names, next), (vec!["a/1".to_owned(), "a/2".to_owned()], None));
        let first = world.names(&all, Query { limit: Some(2), ..Query::default() }).unwrap();
        assert_eq!(first, (vec!["a-b/1".to_owned(), "a/1".to_owned()], Some("a/1".to_owned())));
        let rest = world.names(&all, Query { after: Some("a/1"), ..Query::default() }).unwrap();
        assert_eq!(rest.0, ["a/2", "a0/1", "b/1"]);
        let forged = world.names(&Selection::all("a"), Query { after: Some("zzz"), ..Query::default() });
        assert_eq!(forged.unwrap().0, Vec::<String>::new());
    }

    #[test]
    fn page_of_large_objects_has_fewer() {
        let mut world = World::new();
        for name in ["1", "2", "3", "4", "5"] {
            let bytes = if name == "4" { 3 << 20 } else { 1 << 20 };
            world.put("a", name, &"x".repeat(bytes));
        }
        let all = Selection::all("");
        let mut pages = vec![];
        let mut after: Option<String> = None;
        loop {
            let query = Query { limit: Some(50), after: after.as_deref(), ..Query::default() };
            let (names, next) = world.names(&all, query).unwrap();
            pages.push(names.join(" "));
            match next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        // an object larger than a page is a page by itself
        assert_eq!(pages, ["a/1 a/2", "a/3", "a/4", "a/5"]);
        assert_eq!(world.names(&all, Query::default()).unwrap().0.len(), 5, "who asks for no page gets all");
    }

    #[test]
    fn list_of_past_revision_is_exactly_that_state() {
        let mut world = World::new();
        world.put("a", "1", "x");
        world.put("a", "2", "x");
        let then = world.put("a", "3", "x");
        world.delete("a", "1");
        world.put("a", "4", "x");
        world.put("a", "2", "y");
        let all = Selection::all("");
        let query = || Query { revision: Some(then), ..Query::default() };
        assert_eq!(world.names(&all, query()).unwrap().0, ["a/1", "a/2", "a/3"]);
        let labelled = Selection::parse(&CONFIG_MAP, "a", "l=x", "").unwrap();
        assert_eq!(world.names(&labelled, query()).unwrap().0, ["a/1", "a/2", "a/3"]);
        assert_eq!(world.names(&labelled, Query::default()).unwrap().0, ["a/3", "a/4"]);
        let before_start = Query { revision: Some(9), ..Query::default() };
        assert_eq!(world.names(&all, before_start), Err(TooOld { oldest: 10 }));
    }

    #[test]
    fn watcher_gets_selected_changes_once_in_order() {
        let mut world = World::new();
        let first = world.put("a", "1", "x");
        let selection = Selection::parse(&CONFIG_MAP, "a", "l=x", "").unwrap();
        let taken = Taken::default();
        let (start, _, _) = world.index.watch(&CONFIG_MAP, selection, Some(first), taken.clone()).unwrap();
        assert!(matches!(start, Start::Changes(changes) if changes.is_empty()));
        world.put("a", "2", "y");
        let entered = world.put("a", "2", "x");
        world.put("b", "3", "x");
        let left = world.put("a", "2", "y");
        world.put("a", "2", "z");
        let gone = world.delete("a", "1");
        let received = taken.revisions();
        assert_eq!(received, [entered, left, gone]);
        let selection = Selection::parse(&CONFIG_MAP, "a", "l=x", "").unwrap();
        let (start, _, _) = world.index.watch(&CONFIG_MAP, selection, Some(first), Taken::default()).unwrap();
        let Start::Changes(replayed) = start else { panic!("expected changes") };
        assert_eq!(replayed.iter().map(|event| event.revision).collect::<Vec<_>>(), received);
    }

    #[test]
    fn watch_of_an_unchanged_object_goes_on_whatever_was_forgotten() {
        let mut world = World::new();
        let made = world.put("a", "mine", "x");
        for _ in 0..=RING_EVENTS {
            world.put("a", "other", "x");
        }
        let mut check = |namespace: &str, fields: &str, from: u64, expect: bool| {
            let selection = Selection::parse(&CONFIG_MAP, namespace, "", fields).unwrap();
            let started = world.index.watch(&CONFIG_MAP, selection, Some(from), Taken::default());
            let goes_on = matches!(&started, Ok((Start::Changes(changes), ..)) if changes.is_empty());
            assert_eq!(goes_on, expect, "{namespace} {fields} {from}: {started:?}");
        };
        check("a", "metadata.name=mine", made, true);
        // the object did not exist before that
        check("a", "metadata.name=mine", made - 1, false);
        check("a", "metadata.name=other", made, false);
        // a missing object may have existed
        check("a", "metadata.name=gone", made, false);
        check("", "metadata.name=mine", made, false);
        check("a", "", made, false);
        let last = world.revision;
        world.index.skip_to(last + 5);
        let selection = Selection::parse(&CONFIG_MAP, "a", "", "metadata.name=mine").unwrap();
        let refused = world.index.watch(&CONFIG_MAP, selection, Some(last), Taken::default());
        assert_eq!(refused.unwrap_err(), WatchRefused::TooOld(TooOld { oldest: last + 5 }));
    }

    #[test]
    fn slow_watcher_is_dropped_and_others_go_on() {
        let mut world = World::new();
        let slow = Taken(Rc::default(), Some(3));
        let quick = Taken::default();
        world.index.watch(&CONFIG_MAP, Selection::all(""), None, slow.clone()).unwrap();
        let (_, _, id) = world.index.watch(&CONFIG_MAP, Selection::all(""), None, quick.clone()).unwrap();
        for _ in 0..5 {
            world.put("a", "1", "x");
        }
        assert_eq!((slow.revisions().len(), quick.revisions().len()), (3, 5));
        assert_eq!(world.index.watches(), 1);
        world.index.unwatch(id);
        world.index.unwatch(id);
        assert_eq!(world.index.watches(), 0);
    }

    #[test]
    fn ring_is_bounded_and_older_versions_are_too_old() {
        let mut world = World::new();
        for _ in 0..RING_EVENTS + 5 {
            world.put("a", "1", "x");
        }
        let refused = world
            .index
            .watch(&CONFIG_MAP, Selection::all(""), Some(12), Taken::default())
            .map(|_| ())
            .unwrap_err();
        assert_eq!(refused, WatchRefused::TooOld(TooOld { oldest: 15 }));
        let future = world
            .index
            .watch(&CONFIG_MAP, Selection::all(""), Some(1 << 40), Taken::default())
            .map(|_| ())
            .unwrap_err();
        assert_eq!(future, WatchRefused::TooLarge(world.revision));
    }

    #[test]
    fn watch_of_one_name_gets_that_name_only() {
        let mut world = World::new();
        let selection = Selection::parse(&CONFIG_MAP, "a", "", "metadata.name=1").unwrap();
        let taken = Taken::default();
        world.index.watch(&CONFIG_MAP, selection, None, taken.clone()).unwrap();
        world.put("a", "2", "x");
        let mine = world.put("a", "1", "x");
        assert_eq!(taken.revisions(), [mine]);
    }

    /// The position of `spec.nodeName` among a pod's selectable fields.
    const NODE: usize = crate::kinds::pod::NODE_NAME_FIELD;

    fn pod(random: &mut kedge_rig::Random, revision: u64) -> Object {
        let pick = |random: &mut kedge_rig::Random, of: &[&str]| of[random.index(of.len())].to_owned();
        let (namespace, name) = (pick(random, &["a", "a-b", "b"]), pick(random, &["1", "2", "3", "4"]));
        let mut pod = json!({"metadata": {"namespace": namespace, "name": name, "uid": revision.to_string()},
            "spec": {"nodeName": pick(random, &["", "x", "y"])}});
        pod["metadata"]["labels"]["l"] = pick(random, &["1", "2"]).into();
        pod["metadata"]["ownerReferences"] = json!([{"uid": pick(random, &["u", "v"])}]);
        if random.index(2) == 0 {
            pod["metadata"]["annotations"][crate::kinds::pod::MIRROR_ANNOTATION] = json!("");
        }
        Object::new(&POD, &pod, revision).unwrap()
    }

    /// Whatever is written and deleted: lists of every form and revision, watches and relations equal those
    /// found by a scan.
    #[test]
    fn indexes_agree_with_a_scan() {
        let selections = || {
            let parse =
                |namespace, labels, fields| Selection::parse(&POD, namespace, labels, fields).unwrap();
            [
                Selection::all(""),
                Selection::all("a"),
                parse("", "", "metadata.name=2"),
                parse("a-b", "", "metadata.name=2"),
                parse("", "l=1", "spec.nodeName=x"),
                parse("b", "", "spec.nodeName=,spec.nodeName!=x"),
                parse("", "", "spec.nodeName=y,metadata.name=1"),
                Selection::by_field(&POD, "", NODE, "x"),
            ]
        };
        for seed in 1..20 {
            let mut random = kedge_rig::Random::new(seed);
            let mut index: Index<Taken> = Index::new(1);
            let watches: Vec<(Selection, Taken)> = selections().map(|found| (found, Taken::default())).into();
            for (selection, taken) in &watches {
                index.watch(&POD, selection.clone(), None, taken.clone()).unwrap();
            }
            let mut states = vec![BTreeMap::new()];
            let mut events = Vec::new();
            for revision in 2..40 {
                let mut state: BTreeMap<String, Arc<Object>> = states.last().unwrap().clone();
                let new = Arc::new(pod(&mut random, revision));
                let key = key(&new.namespace, &new.name);
                let old = state.remove(&key);
                let event = match old {
                    Some(old) if random.index(2) == 0 => {
                        Event { revision, last: Some(old.clone()), old: Some(old), new: None }
                    }
                    old => {
                        state.insert(key, new.clone());
                        Event { revision, old, new: Some(new), last: None }
                    }
                };
                let event = Arc::new(event);
                events.push(event.clone());
                index.publish(vec![Changed { kind: &POD, event, author: None }]);
                states.push(state);
            }
            // two objects a page, so that pages begin at every second key of every past state
            for (at, state) in (1..).zip(&states) {
                for selection in selections() {
                    let scanned: Vec<u64> =
                        state.values().filter(|pod| selection.selects(pod)).map(|pod| pod.revision).collect();
                    let mut paged = Vec::new();
                    let (mut after, mut remaining) = (None, None);
                    loop {
                        let query =
                            Query { revision: Some(at), after: after.as_deref(), limit: Some(2), remaining };
                        let page = index.list(&POD, &selection, &query).unwrap();
                        paged.extend(page.objects.iter().map(|pod| pod.revision));
                        let left = (!selection.is_filtered()).then(|| scanned.len() - paged.len());
                        assert!(page.remaining == left || page.next.is_none(), "seed {seed} {selection:?}");
                        (after, remaining) = (page.next, page.remaining);
                        if after.is_none() {
                            break;
                        }
                    }
                    assert_eq!(paged, scanned, "seed {seed} at {at}: {selection:?}");
                }
            }
            for (selection, taken) in &watches {
                let concerned = events.iter().filter(|event| Seen::by(selection, event).is_some());
                let concerned: Vec<u64> = concerned.map(|event| event.revision).collect();
                assert_eq!(taken.revisions(), concerned, "seed {seed} {selection:?}");
            }
            check_relations(&index, states.last().unwrap(), seed);
        }
    }

    fn check_relations(index: &Index<Taken>, state: &BTreeMap<String, Arc<Object>>, seed: u64) {
        let select = |wanted: &dyn Fn(&Object) -> bool| {
            state.values().filter(|pod| wanted(pod)).map(|pod| pod.revision).collect::<Vec<_>>()
        };
        for owner in ["u", "v", "w"] {
            let owned = index.dependents(owner).iter().map(|(_, pod)| pod.revision).collect::<Vec<_>>();
            assert_eq!(owned, select(&|pod| pod.owners.iter().any(|of| &**of == owner)), "seed {seed}");
        }
        for holder in ["system:node:", "system:node:x", "system:node:y"] {
            let held = |pod: &Object| pod.holder.as_deref() == Some(holder);
            let charged = index.charged(holder, &POD).iter().map(|pod| pod.revision).collect::<Vec<_>>();
            assert_eq!(charged, select(&held), "seed {seed}");
            let bytes = state.values().filter(|pod| held(pod)).map(|pod| pod.json.len()).sum();
            assert_eq!(index.usage(holder, &POD), Usage { bytes, objects: charged.len() }, "seed {seed}");
        }
        assert!(state.values().all(|pod| index.exists(&pod.uid)) && !index.exists("u"), "seed {seed}");
        let namespaces: BTreeSet<String> = state.values().map(|pod| pod.namespace.to_string()).collect();
        assert_eq!(index.namespaces_in_use(), namespaces, "seed {seed}");
        let nodes: BTreeSet<String> = state.values().map(|pod| pod.field(NODE).to_owned()).collect();
        assert_eq!(index.values(&POD, NODE), Vec::from_iter(nodes), "seed {seed}");
    }

    /// A change visits the watchers that it can concern, not those of every node.
    #[test]
    fn change_visits_its_own_shards_only() {
        let mut index: Index<Taken> = Index::new(1);
        for node in 0..1000 {
            let selection = Selection::by_field(&POD, "", NODE, &format!("n{node}"));
            index.watch(&POD, selection, None, Taken::default()).unwrap();
        }
        let pod = |node: &str| {
            let pod = json!({"metadata": {"namespace": "a", "name": "1"}, "spec": {"nodeName": node}});
            Some(Arc::new(Object::new(&POD, &pod, 2).unwrap()))
        };
        let moved = Event { revision: 2, old: pod("n1"), new: pod("n2"), last: None };
        let of_kind = &index.kinds[index_of(&POD)];
        let visited =
            of_kind.shards(&moved).iter().filter_map(|shard| of_kind.waiting.get(shard)).flatten().count();
        assert_eq!(visited, 2);
    }
}
