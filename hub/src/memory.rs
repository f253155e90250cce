//! All objects in memory, the latest changes of each kind, and who watches them.
//!
//! Always holds: the writer thread alone changes it, one batch under one write lock, so every reader sees whole batches in
//! the order of revisions, and a watcher that registers under the lock misses nothing and sees nothing twice. Changes of each
//! kind are kept in a bounded ring: a watch or a page that starts before the ring is answered 410 and lists again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::mpsc;

use kedge_hub_core::kinds::{KINDS, Kind};
use kedge_hub_core::object::{Event, Object};
use kedge_hub_core::selector::Selection;

/// Changes remembered per kind. At 500 renewals a second that is 8 s of Leases, and hours of anything people write.
const RING_EVENTS: usize = 4096;
/// Bytes of remembered changes per kind, so that 1 MiB ConfigMaps do not fill the memory of a small board.
const RING_BYTES: usize = 16 * 1024 * 1024;
/// Changes that wait for one watcher; when it is further behind it is dropped and must watch again.
pub const WATCH_BACKLOG: usize = 1024;
/// Open watches of all clients together. At about 14 KiB each this bounds them to 280 MiB.
pub const MAX_WATCHES: usize = 20_000;

/// See the module.
#[derive(Debug)]
pub struct Memory {
    inner: RwLock<Inner>,
}

#[derive(Debug)]
struct Inner {
    revision: u64,
    kinds: Vec<OfKind>,
    watches: usize,
    next_watch: u64,
    closed: bool,
}

#[derive(Debug)]
struct OfKind {
    objects: BTreeMap<String, Arc<Object>>,
    ring: VecDeque<Arc<Event>>,
    ring_bytes: usize,
    /// Changes up to this revision are not in the ring.
    forgotten: u64,
    watchers: HashMap<u64, Watcher>,
    /// Watchers of one name are found by it: most watches of a fleet are of this form.
    by_name: HashMap<String, Vec<u64>>,
    /// The others.
    any_name: Vec<u64>,
}

#[derive(Debug)]
struct Watcher {
    selection: Selection,
    sender: mpsc::Sender<Arc<Event>>,
}

/// The version asked for is older than what is remembered.
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
    /// The state is exactly the one of this revision.
    pub revision: u64,
    /// There is more, after this key.
    pub next: Option<String>,
    /// How many more, not looking at selectors.
    pub remaining: usize,
}

/// What a list asks of the memory.
#[derive(Debug, Default)]
pub struct Query<'a> {
    /// Exactly this revision; `None` is the latest.
    pub revision: Option<u64>,
    /// Only keys after this one.
    pub after: Option<&'a str>,
    /// At most so many objects.
    pub limit: Option<usize>,
}

/// What a new watcher is told first.
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
    /// It starts before what is remembered.
    TooOld(TooOld),
    /// It starts in the future; the current revision is given.
    TooLarge(u64),
    /// There are [`MAX_WATCHES`] already.
    TooMany,
    /// The hub closes.
    Closed,
}

/// The position of a kind in the table.
pub fn index_of(kind: &Kind) -> usize {
    KINDS
        .iter()
        .position(|known| known.kind == kind.kind && known.group == kind.group)
        .expect("kinds are statics of the table")
}

/// The key of an object: `namespace/name`, and `/name` for cluster-scoped kinds.
pub fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

impl Memory {
    /// Empty, at a revision before which nothing is remembered.
    pub fn new(revision: u64) -> Memory {
        let of_kind = || OfKind {
            objects: BTreeMap::new(),
            ring: VecDeque::new(),
            ring_bytes: 0,
            forgotten: revision,
            watchers: HashMap::new(),
            by_name: HashMap::new(),
            any_name: Vec::new(),
        };
        let kinds = KINDS.iter().map(|_| of_kind()).collect();
        Memory { inner: RwLock::new(Inner { revision, kinds, watches: 0, next_watch: 0, closed: false }) }
    }

    // a panic under the lock can only come from the writer, whose end stops the hub; readers go on until then
    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a stored object in place, at start.
    pub fn restore(&self, kind: usize, object: Object) {
        let mut inner = self.write();
        inner.kinds[kind].objects.insert(key(&object.namespace, &object.name), Arc::new(object));
    }

    /// The latest revision that readers can see.
    pub fn revision(&self) -> u64 {
        self.read().revision
    }

    /// Objects of a kind.
    pub fn count(&self, kind: usize) -> usize {
        self.read().kinds[kind].objects.len()
    }

    /// Open watches.
    pub fn watches(&self) -> usize {
        self.read().watches
    }

    /// One object.
    pub fn get(&self, kind: usize, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.read().kinds[kind].objects.get(&key(namespace, name)).cloned()
    }

    /// Objects that name this UID as an owner, of all kinds.
    pub fn dependents(&self, uid: &str) -> Vec<(usize, Arc<Object>)> {
        let inner = self.read();
        let owned = |object: &&Arc<Object>| object.owners.iter().any(|owner| &**owner == uid);
        let of_kind = |(index, of_kind): (usize, &OfKind)| {
            of_kind.objects.values().filter(owned).map(|object| (index, object.clone())).collect::<Vec<_>>()
        };
        inner.kinds.iter().enumerate().flat_map(of_kind).collect()
    }

    /// All objects of a namespace.
    pub fn in_namespace(&self, namespace: &str) -> Vec<(usize, Arc<Object>)> {
        let inner = self.read();
        let selection = Selection::all(namespace);
        let kinds = inner.kinds.iter().enumerate().filter(|(index, _)| KINDS[*index].namespaced);
        kinds
            .flat_map(|(index, of_kind)| {
                of_kind.range(&selection, None).map(move |(_, o)| (index, o.clone()))
            })
            .collect()
    }

    /// Whether an object of this UID exists.
    pub fn has_uid(&self, uid: &str) -> bool {
        self.read().kinds.iter().any(|of_kind| of_kind.objects.values().any(|object| &*object.uid == uid))
    }

    /// Lists what is selected.
    pub fn list(&self, kind: usize, selection: &Selection, query: &Query<'_>) -> Result<Page, TooOld> {
        let inner = self.read();
        let of_kind = &inner.kinds[kind];
        let revision = query.revision.unwrap_or(inner.revision);
        if revision >= inner.revision {
            let objects = of_kind.range(selection, query.after);
            return Ok(page(objects, selection, inner.revision, query.limit));
        }
        if revision < of_kind.forgotten {
            return Err(TooOld { oldest: of_kind.forgotten });
        }
        let past = of_kind.state_at(revision, selection, query.after);
        Ok(page(past.iter(), selection, revision, query.limit))
    }

    /// Registers a watcher. `from`: `None` starts with the present objects, else with the changes after that revision.
    /// Also returns the revision up to which `Start` tells everything.
    pub fn watch(
        self: &Arc<Self>,
        kind: usize,
        selection: Selection,
        from: Option<u64>,
    ) -> Result<(Start, u64, Watch), WatchRefused> {
        let mut inner = self.write();
        let revision = inner.revision;
        if inner.closed {
            return Err(WatchRefused::Closed);
        }
        if inner.watches >= MAX_WATCHES {
            return Err(WatchRefused::TooMany);
        }
        let of_kind = &inner.kinds[kind];
        let start = match from {
            None => {
                let selected =
                    of_kind.range(&selection, None).filter(|(_, object)| selection.selects(object));
                Start::Objects(selected.map(|(_, object)| object.clone()).collect())
            }
            Some(from) if from > revision => return Err(WatchRefused::TooLarge(revision)),
            Some(from) if from < of_kind.forgotten => {
                return Err(WatchRefused::TooOld(TooOld { oldest: of_kind.forgotten }));
            }
            Some(from) => {
                let first = of_kind.ring.partition_point(|event| event.revision <= from);
                let concerned = of_kind.ring.range(first..).filter(|event| concerns(&selection, event));
                Start::Changes(concerned.cloned().collect())
            }
        };
        let (sender, receiver) = mpsc::channel(WATCH_BACKLOG);
        let id = inner.next_watch;
        inner.next_watch += 1;
        inner.watches += 1;
        inner.kinds[kind].register(id, Watcher { selection: selection.clone(), sender });
        Ok((start, revision, Watch { memory: self.clone(), kind, id, selection, receiver }))
    }

    /// Makes changes visible: the writer's last step, after they are durable (or need not be).
    pub fn publish(&self, changes: Vec<(usize, Arc<Event>)>) {
        let mut inner = self.write();
        for (kind, event) in changes {
            inner.revision = event.revision;
            let dropped = inner.kinds[kind].apply(event);
            inner.watches -= dropped;
        }
    }

    /// Ends all watches and refuses new ones.
    pub fn close(&self) {
        let mut inner = self.write();
        inner.closed = true;
        inner.watches = 0;
        for of_kind in &mut inner.kinds {
            of_kind.watchers.clear();
            of_kind.by_name.clear();
            of_kind.any_name.clear();
        }
    }

    fn unregister(&self, kind: usize, id: u64) {
        let mut inner = self.write();
        if inner.kinds[kind].unregister(id) {
            inner.watches -= 1;
        }
    }
}

/// Whether a watcher must hear of a change: it selected the object before or selects it now.
fn concerns(selection: &Selection, event: &Event) -> bool {
    [&event.old, &event.new].into_iter().flatten().any(|object| selection.selects(object))
}

fn page<'a>(
    objects: impl Iterator<Item = (&'a String, &'a Arc<Object>)>,
    selection: &Selection,
    revision: u64,
    limit: Option<usize>,
) -> Page {
    let limit = limit.unwrap_or(usize::MAX);
    let mut page = Page { objects: Vec::new(), revision, next: None, remaining: 0 };
    let mut last = None;
    for (key, object) in objects {
        if page.objects.len() < limit {
            last = Some(key);
            if selection.selects(object) {
                page.objects.push(object.clone());
            }
        } else if selection.selects(object) {
            page.remaining += 1;
        }
    }
    if page.remaining > 0 {
        page.next = last.cloned();
    }
    page
}

impl OfKind {
    /// Objects by key: all, or those of the selection's namespace, or the one it names.
    fn range<'a>(
        &'a self,
        selection: &Selection,
        after: Option<&str>,
    ) -> Box<dyn Iterator<Item = (&'a String, &'a Arc<Object>)> + 'a> {
        let bounds = bounds(selection, after);
        match bounds {
            Some(bounds) => Box::new(self.objects.range::<String, _>(bounds)),
            None => Box::new(std::iter::empty()),
        }
    }

    /// The objects of a past revision: the present ones with the later changes taken back.
    fn state_at(
        &self,
        revision: u64,
        selection: &Selection,
        after: Option<&str>,
    ) -> BTreeMap<String, Arc<Object>> {
        let mut state: BTreeMap<String, Arc<Object>> =
            self.range(selection, after).map(|(key, object)| (key.clone(), object.clone())).collect();
        let Some(bounds) = bounds(selection, after) else { return state };
        for event in self.ring.iter().rev().take_while(|event| event.revision > revision) {
            let object = event.object();
            let key = key(&object.namespace, &object.name);
            if !std::ops::RangeBounds::contains(&bounds, &key) {
                continue;
            }
            match &event.old {
                Some(old) => state.insert(key, old.clone()),
                None => state.remove(&key),
            };
        }
        state
    }

    fn register(&mut self, id: u64, watcher: Watcher) {
        match &watcher.selection.name {
            Some(name) => self.by_name.entry(name.clone()).or_default().push(id),
            None => self.any_name.push(id),
        }
        self.watchers.insert(id, watcher);
    }

    fn unregister(&mut self, id: u64) -> bool {
        let Some(watcher) = self.watchers.remove(&id) else { return false };
        match &watcher.selection.name {
            Some(name) => {
                if let Some(ids) = self.by_name.get_mut(name) {
                    ids.retain(|other| *other != id);
                    if ids.is_empty() {
                        self.by_name.remove(name);
                    }
                }
            }
            None => self.any_name.retain(|other| *other != id),
        }
        true
    }

    /// Takes a change in and tells the watchers; returns how many were too slow and are dropped.
    fn apply(&mut self, event: Arc<Event>) -> usize {
        let object = event.object().clone();
        let key = key(&object.namespace, &object.name);
        match &event.new {
            Some(new) => self.objects.insert(key, new.clone()),
            None => self.objects.remove(&key),
        };
        let mut slow = Vec::new();
        let named = self.by_name.get(&*object.name).map_or(&[][..], Vec::as_slice);
        for id in named.iter().chain(&self.any_name) {
            let Some(watcher) = self.watchers.get(id) else { continue };
            if concerns(&watcher.selection, &event) && watcher.sender.try_send(event.clone()).is_err() {
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

fn bounds(selection: &Selection, after: Option<&str>) -> Option<(Bound<String>, Bound<String>)> {
    let mut low = match (&*selection.namespace, &selection.name) {
        ("", _) => Bound::Unbounded,
        (namespace, Some(name)) => Bound::Included(key(namespace, name)),
        (namespace, None) => Bound::Included(key(namespace, "")),
    };
    let high = match (&*selection.namespace, &selection.name) {
        ("", _) => Bound::Unbounded,
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
    // BTreeMap panics on a range that ends before it starts; a forged token may ask for one
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

/// A registered watcher; dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    memory: Arc<Memory>,
    kind: usize,
    id: u64,
    /// What it asked for.
    pub selection: Selection,
    /// Changes that concern it, in order. It ends when the watcher was too slow or the hub closes.
    pub receiver: mpsc::Receiver<Arc<Event>>,
}

impl Watch {
    /// A revision up to which every change is in the receiver or was taken from it.
    pub fn progress(&self) -> u64 {
        self.memory.revision()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.memory.unregister(self.kind, self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_hub_core::kinds::CONFIG_MAP;
    use serde_json::json;

    struct World {
        memory: Arc<Memory>,
        kind: usize,
        revision: u64,
    }

    impl World {
        fn new() -> World {
            World { memory: Arc::new(Memory::new(10)), kind: index_of(&CONFIG_MAP), revision: 10 }
        }

        fn put(&mut self, namespace: &str, name: &str, label: &str) -> u64 {
            self.revision += 1;
            let value = json!({"metadata": {"namespace": namespace, "name": name, "labels": {"l": label}}});
            let new = Object::new(&CONFIG_MAP, &value, self.revision).map(Arc::new);
            let old = self.memory.get(self.kind, namespace, name);
            self.publish(Event { revision: self.revision, old, new, last: None })
        }

        fn delete(&mut self, namespace: &str, name: &str) -> u64 {
            self.revision += 1;
            let old = self.memory.get(self.kind, namespace, name);
            self.publish(Event { revision: self.revision, last: old.clone(), old, new: None })
        }

        fn publish(&self, event: Event) -> u64 {
            self.memory.publish(vec![(self.kind, Arc::new(event))]);
            self.revision
        }

        fn names(
            &self,
            selection: &Selection,
            query: Query<'_>,
        ) -> Result<(Vec<String>, Option<String>), TooOld> {
            let page = self.memory.list(self.kind, selection, &query)?;
            let names = page.objects.iter().map(|object| key(&object.namespace, &object.name)).collect();
            Ok((names, page.next))
        }
    }

    #[test]
    fn lists_keep_to_their_namespace_and_go_on_where_a_page_ended() {
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
    fn a_list_of_a_past_revision_is_exactly_that_state() {
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
    fn a_watcher_hears_of_what_concerns_it_once_and_in_order() {
        let mut world = World::new();
        let first = world.put("a", "1", "x");
        let selection = Selection::parse(&CONFIG_MAP, "a", "l=x", "").unwrap();
        let (start, _, mut watch) = world.memory.watch(world.kind, selection, Some(first)).unwrap();
        assert!(matches!(start, Start::Changes(changes) if changes.is_empty()));
        world.put("a", "2", "y");
        let entered = world.put("a", "2", "x");
        world.put("b", "3", "x");
        let left = world.put("a", "2", "y");
        world.put("a", "2", "z");
        let gone = world.delete("a", "1");
        let mut heard = Vec::new();
        while let Ok(event) = watch.receiver.try_recv() {
            heard.push(event.revision);
        }
        assert_eq!(heard, [entered, left, gone]);
        let selection = Selection::parse(&CONFIG_MAP, "a", "l=x", "").unwrap();
        let (start, _, _watch) = world.memory.watch(world.kind, selection, Some(first)).unwrap();
        let Start::Changes(replayed) = start else { panic!("expected changes") };
        assert_eq!(replayed.iter().map(|event| event.revision).collect::<Vec<_>>(), heard);
    }

    #[test]
    fn a_slow_watcher_is_dropped_and_the_others_go_on() {
        let mut world = World::new();
        let (_, _, mut slow) = world.memory.watch(world.kind, Selection::all(""), None).unwrap();
        for _ in 0..=WATCH_BACKLOG {
            world.put("a", "1", "x");
        }
        assert_eq!(world.memory.watches(), 0);
        let (_, _, mut quick) = world.memory.watch(world.kind, Selection::all(""), None).unwrap();
        world.put("a", "1", "x");
        assert!(quick.receiver.try_recv().is_ok());
        let mut heard = 0;
        while slow.receiver.try_recv().is_ok() {
            heard += 1;
        }
        assert_eq!(heard, WATCH_BACKLOG);
        drop((slow, quick));
        assert_eq!(world.memory.watches(), 0);
    }

    #[test]
    fn the_ring_is_bounded_and_older_versions_are_too_old() {
        let mut world = World::new();
        for _ in 0..RING_EVENTS + 5 {
            world.put("a", "1", "x");
        }
        let refused = world.memory.watch(world.kind, Selection::all(""), Some(12)).map(|_| ()).unwrap_err();
        assert_eq!(refused, WatchRefused::TooOld(TooOld { oldest: 15 }));
        let future =
            world.memory.watch(world.kind, Selection::all(""), Some(1 << 40)).map(|_| ()).unwrap_err();
        assert_eq!(future, WatchRefused::TooLarge(world.revision));
    }

    #[test]
    fn a_watch_of_one_name_is_told_of_that_name_only() {
        let mut world = World::new();
        let selection = Selection::parse(&CONFIG_MAP, "a", "", "metadata.name=1").unwrap();
        let (_, _, mut watch) = world.memory.watch(world.kind, selection, None).unwrap();
        world.put("a", "2", "x");
        let mine = world.put("a", "1", "x");
        assert_eq!(watch.receiver.try_recv().unwrap().revision, mine);
        assert!(watch.receiver.try_recv().is_err());
    }
}
