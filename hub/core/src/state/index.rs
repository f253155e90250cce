//! All objects, the latest changes of each kind, and their watchers.
//!
//! Always holds: changes come in through [`Index::publish`] alone, in the order of their revisions, so a watcher that registers
//! between two of them misses none and gets none twice. Changes of each kind are kept in a bounded ring: a watch or a page
//! that starts before the ring is refused, and the client lists again. Left to others: how an event reaches its watcher ([`Sink`]),
//! locks, and what becomes durable (`order`).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use crate::kinds::{KINDS, Kind, index_of};
use crate::object::{Event, Object, key};
use crate::selector::Selection;

/// Changes remembered per kind. At 500 renewals a second that is 8 s of Leases, and hours of anything people write.
const RING_EVENTS: usize = 4096;
/// Bytes of remembered changes per kind, so that 1 MiB ConfigMaps do not fill the memory of a small board.
const RING_BYTES: usize = 16 * 1024 * 1024;
/// Open watches of all clients together. At about 14 KiB each this bounds them to 280 MiB.
pub const MAX_WATCHES: usize = 20_000;

/// A change that was given its revision.
#[derive(Debug, Clone)]
pub struct Changed {
    pub kind: &'static Kind,
    pub event: Arc<Event>,
}

/// Where a watcher's events go.
pub trait Sink {
    /// Queues an event. `false`: the watcher is too far behind or gone, and is dropped.
    fn take(&self, event: &Arc<Event>) -> bool;
}

/// See the module. `S` takes the events of one watcher.
#[derive(Debug)]
pub struct Index<S> {
    revision: u64,
    kinds: Vec<OfKind<S>>,
    watches: usize,
    next_watch: u64,
    closed: bool,
}

#[derive(Debug)]
struct OfKind<S> {
    objects: BTreeMap<String, Arc<Object>>,
    ring: VecDeque<Arc<Event>>,
    ring_bytes: usize,
    /// Changes up to this revision are not in the ring.
    forgotten: u64,
    watchers: BTreeMap<u64, Watcher<S>>,
    /// Watchers of one name, by that name: most watches of a fleet are of this form.
    by_name: BTreeMap<String, Vec<u64>>,
    /// The others.
    any_name: Vec<u64>,
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
    /// The state is exactly the one of this revision.
    pub revision: u64,
    /// There is more, after this key.
    pub next: Option<String>,
    /// The number of remaining objects, ignoring selectors.
    pub remaining: usize,
}

/// The parameters of a list.
#[derive(Debug, Default)]
pub struct Query<'a> {
    /// Exactly this revision; `None` is the latest.
    pub revision: Option<u64>,
    /// Only keys after this one.
    pub after: Option<&'a str>,
    /// Most objects.
    pub limit: Option<usize>,
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
    /// There are [`MAX_WATCHES`] already.
    TooMany,
    /// The hub is closing.
    Closed,
}

impl<S: Sink> Index<S> {
    /// Empty, at a revision before which nothing is remembered.
    pub fn new(revision: u64) -> Index<S> {
        let of_kind = || OfKind {
            objects: BTreeMap::new(),
            ring: VecDeque::new(),
            ring_bytes: 0,
            forgotten: revision,
            watchers: BTreeMap::new(),
            by_name: BTreeMap::new(),
            any_name: Vec::new(),
        };
        let kinds = KINDS.iter().map(|_| of_kind()).collect();
        Index { revision, kinds, watches: 0, next_watch: 0, closed: false }
    }

    /// Puts a stored object in place, at start.
    pub fn restore(&mut self, kind: &Kind, object: Object) {
        self.kinds[index_of(kind)].objects.insert(key(&object.namespace, &object.name), Arc::new(object));
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

    /// Objects that name this UID as an owner, of all kinds.
    pub fn dependents(&self, uid: &str) -> Vec<(&'static Kind, Arc<Object>)> {
        let owned = |object: &&Arc<Object>| object.owners.iter().any(|owner| &**owner == uid);
        let of_kind = |(kind, of_kind): (&&'static Kind, &OfKind<S>)| {
            of_kind.objects.values().filter(owned).map(|object| (*kind, object.clone())).collect::<Vec<_>>()
        };
        KINDS.iter().zip(&self.kinds).flat_map(of_kind).collect()
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
        let revision = query.revision.unwrap_or(self.revision);
        if revision >= self.revision {
            let objects = of_kind.range(selection, query.after);
            return Ok(page(objects, selection, self.revision, query.limit));
        }
        if revision < of_kind.forgotten {
            return Err(TooOld { oldest: of_kind.forgotten });
        }
        let past = of_kind.state_at(revision, selection, query.after);
        Ok(page(past.iter(), selection, revision, query.limit))
    }

    /// Registers a watcher. `from`: `None` starts with the present objects, else with the changes after that revision.
    /// Also returns the revision up to which `Start` contains everything.
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
        if self.watches >= MAX_WATCHES {
            return Err(WatchRefused::TooMany);
        }
        let kind = index_of(kind);
        let start = self.kinds[kind].start(&selection, from, revision)?;
        let id = self.next_watch;
        self.next_watch += 1;
        self.watches += 1;
        self.kinds[kind].register(id, Watcher { selection, sink });
        Ok((start, revision, WatchId { kind, id }))
    }

    /// Makes changes visible, after they are durable (or need not be), and hands them to their watchers.
    pub fn publish(&mut self, changes: Vec<Changed>) {
        for Changed { kind, event } in changes {
            self.revision = event.revision;
            let dropped = self.kinds[index_of(kind)].apply(event);
            self.watches -= dropped;
        }
    }

    /// Whether [`Index::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Ends all watches and refuses new ones.
    pub fn close(&mut self) {
        self.closed = true;
        self.watches = 0;
        for of_kind in &mut self.kinds {
            of_kind.watchers.clear();
            of_kind.by_name.clear();
            of_kind.any_name.clear();
        }
    }

    /// Ends a watch; one that was dropped already stays so.
    pub fn unwatch(&mut self, watch: WatchId) {
        if self.kinds[watch.kind].unregister(watch.id) {
            self.watches -= 1;
        }
    }
}

/// Whether a watcher gets a change: it selected the object before or selects it now.
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

impl<S: Sink> OfKind<S> {
    /// The first events of a new watcher.
    fn start(&self, selection: &Selection, from: Option<u64>, revision: u64) -> Result<Start, WatchRefused> {
        match from {
            None => {
                let selected = self.range(selection, None).filter(|(_, object)| selection.selects(object));
                Ok(Start::Objects(selected.map(|(_, object)| object.clone()).collect()))
            }
            Some(from) if from > revision => Err(WatchRefused::TooLarge(revision)),
            Some(from) if from < self.forgotten => {
                Err(WatchRefused::TooOld(TooOld { oldest: self.forgotten }))
            }
            Some(from) => {
                let first = self.ring.partition_point(|event| event.revision <= from);
                let concerned = self.ring.range(first..).filter(|event| concerns(selection, event));
                Ok(Start::Changes(concerned.cloned().collect()))
            }
        }
    }
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

    fn register(&mut self, id: u64, watcher: Watcher<S>) {
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

    /// Records a change and sends it to the watchers; returns how many were too slow and are dropped.
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
            if concerns(&watcher.selection, &event) && !watcher.sink.take(&event) {
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
    // BTreeMap panics on a range that ends before it starts, which a forged token may cause
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
    use crate::kinds::CONFIG_MAP;
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
        fn take(&self, event: &Arc<Event>) -> bool {
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
            self.index.publish(vec![Changed { kind: &CONFIG_MAP, event: Arc::new(event) }]);
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
}
