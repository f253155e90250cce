//! A set of objects of the API server, as shown by a list and the watch after it: all of a selection, or one
//! by name.
//!
//! Owns which objects exist, in which version. Always holds: before the first list the objects are unknown,
//! and unknown is not empty; only a list that was read to its end, or an event of the watch after it, changes
//! the known objects, so a watch that ends, a list that fails and a server that does not answer change
//! nothing; an object missing from a list is gone; an object under a known name with another UID is another
//! object, and the one before it is shown as gone first; a known change is not shown again; objects beyond
//! the bounds are refused, and reported once; in a set each namespace has a share, and objects beyond it are
//! shown in part; a change of the server forgets everything; if one object is requested by its name, objects
//! of other names beside it are not shown. Leaves to others: rounds and pauses (`watching`), the meaning of
//! an object, and its content: that is shown, not kept.

use crate::config::records::CHECKPOINT_BYTES;
use crate::event::Listing;
use crate::outbox::json_bytes;
use crate::pods::shares::{Shares, whole_bytes};
use crate::sorted::SortedMap;
use crate::watching::{ObjectVersion, WatchOrder, Watched, Watching};
use serde_json::Value;

/// Limits of one collection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) objects: usize,
    /// Of all objects together, as text.
    pub(crate) bytes: usize,
}

/// One object. Its owner checks its size long before this limit, with an error of its own.
const ONE_OBJECT: Bounds = Bounds { objects: 1, bytes: 2 * CHECKPOINT_BYTES };

/// The news for the owner of a collection.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Shown {
    /// All objects, read at once.
    All(Vec<Value>),
    /// The one object still has the version that need not be read again.
    Unchanged(ObjectVersion),
    /// Added or changed.
    One(Value),
    /// Gone, with its last state.
    Gone(Value),
    /// Gone: its UID. Another object has its name, and is shown next.
    Replaced(String),
    /// Refused: why. The known objects stay.
    TooMuch { why: String, is_first: bool },
}

/// Namespace and name.
type Name = (String, String);

#[derive(Debug, Clone, PartialEq)]
struct Known {
    version: ObjectVersion,
    bytes: usize,
    /// It exceeds its namespace's share, so only a part of it was kept: its size in all.
    whole_bytes: Option<usize>,
}

/// One collection.
#[derive(Debug, Clone)]
pub(crate) struct Reflector {
    pub(crate) watching: Watching,
    /// The name, if one object is requested by its name. A server that does not select shows others beside
    /// it.
    asked: Option<String>,
    bounds: Bounds,
    /// Whether namespaces have shares.
    is_shared: bool,
    /// `None` before the first list.
    known: Option<SortedMap<Name, Known>>,
    is_too_much: bool,
}

impl Reflector {
    /// A reflector of the one object of this name.
    pub(crate) fn new(watched: Watched, name: &str, lists_only: bool) -> Self {
        Self { asked: Some(name.to_owned()), ..Self::bounded(watched, lists_only, ONE_OBJECT) }
    }

    /// A reflector of all objects of a selection, with a share for each namespace.
    pub(crate) fn of_set(watched: Watched, lists_only: bool, bounds: Bounds) -> Self {
        Self { is_shared: true, ..Self::bounded(watched, lists_only, bounds) }
    }

    fn bounded(watched: Watched, lists_only: bool, bounds: Bounds) -> Self {
        let watching = Watching::new(watched, lists_only);
        Self { watching, asked: None, bounds, is_shared: false, known: None, is_too_much: false }
    }

    /// Another object, of this name, or another server: forgets everything.
    pub(crate) fn list_another(&mut self, name: &str, held: Option<ObjectVersion>) -> WatchOrder {
        if let Some(asked) = &mut self.asked {
            name.clone_into(asked);
        }
        self.relist(held)
    }

    /// Another server, or a selection of other objects: forgets everything.
    pub(crate) fn relist(&mut self, held: Option<ObjectVersion>) -> WatchOrder {
        self.forget();
        self.watching.list_another(held)
    }

    /// Ends the watch.
    pub(crate) fn stop(&mut self) {
        self.forget();
        self.watching.stop();
    }

    fn forget(&mut self) {
        (self.known, self.is_too_much) = (None, false);
    }

    /// A list was read to its end.
    pub(crate) fn listed(&mut self, listing: Listing) -> Shown {
        let objects = match listing {
            Listing::Objects(objects) if self.is_shared => {
                let mut shares = Shares::default();
                objects.into_iter().map(|object| shares.admit(object)).collect()
            }
            Listing::Objects(objects) => self.of_asked(objects),
            Listing::Unchanged(version) => {
                let known = Known { version: version.clone(), bytes: 0, whole_bytes: None };
                self.known = Some(SortedMap::from([(Name::default(), known)]));
                return Shown::Unchanged(version);
            }
        };
        let known: SortedMap<Name, Known> =
            objects.iter().map(|object| (self.name_of(object), known_as(object))).collect();
        if let Some(too_much) = self.too_much(objects.len(), bytes_of(&known)) {
            return too_much;
        }
        self.is_too_much = false;
        self.known = Some(known);
        Shown::All(objects)
    }

    /// The objects of the requested name. If there is none, one of the others stands for all: its owner
    /// checks it, because an object that such a server does not show need not be missing.
    fn of_asked(&self, mut objects: Vec<Value>) -> Vec<Value> {
        if let Some(asked) = &self.asked {
            match objects.iter().any(|object| text(object, "name") == asked) {
                true => objects.retain(|object| text(object, "name") == asked),
                false => objects.truncate(1),
            }
        }
        objects
    }

    /// Whether it has a name other than the requested one.
    fn is_strange(&self, object: &Value) -> bool {
        let name = text(object, "name");
        !name.is_empty() && self.asked.as_ref().is_some_and(|asked| asked != name)
    }

    /// A collection of one name has one place, so that a version may be known without its name.
    fn name_of(&self, object: &Value) -> Name {
        match self.bounds.objects {
            1 => Name::default(),
            _ => (text(object, "namespace").to_owned(), text(object, "name").to_owned()),
        }
    }

    /// The watch showed that an object was added or changed, or, with its last state, that it is gone.
    pub(crate) fn changed(&mut self, object: Value, is_deleted: bool) -> Vec<Shown> {
        if self.is_strange(&object) {
            return Vec::new();
        }
        let name = self.name_of(&object);
        let before = self.known.as_ref().and_then(|known| known.get(&name)).cloned();
        if is_deleted {
            self.known.get_or_insert_default().remove(&name);
            return vec![Shown::Gone(object)];
        }
        let mut object = object;
        if self.is_shared {
            object = self.shares_without(&name).admit(object);
        }
        let is = known_as(&object);
        if before.as_ref().is_some_and(|before| before.version == is.version && !is.version.1.is_empty()) {
            return Vec::new();
        }
        let known = self.known.get_or_insert_default();
        let objects = known.len().saturating_add(usize::from(before.is_none()));
        let bytes = bytes_of(known)
            .saturating_add(is.bytes)
            .saturating_sub(before.as_ref().map_or(0, |before| before.bytes));
        if let Some(too_much) = self.too_much(objects, bytes) {
            return vec![too_much];
        }
        let uid = is.version.0.clone();
        self.known.get_or_insert_default().insert(name, is);
        let gone = before.filter(|before| before.version.0 != uid);
        let gone = gone.map(|before| Shown::Replaced(before.version.0));
        gone.into_iter().chain([Shown::One(object)]).collect()
    }

    /// Size of the object of this name at the API server; 0 if it is not known.
    pub(crate) fn bytes_of(&self, namespace: &str, name: &str) -> usize {
        let known = self.known.as_ref().and_then(|known| known.get(&(namespace.to_owned(), name.to_owned())));
        known.map_or(0, |known| known.whole_bytes.unwrap_or(known.bytes))
    }

    /// The bytes taken by each namespace, without this object.
    fn shares_without(&self, but: &Name) -> Shares {
        let mut shares = Shares::default();
        for (name, known) in self.known.iter().flatten() {
            if name != but && known.whole_bytes.is_none() {
                shares.add(&name.0, known.bytes);
            }
        }
        shares
    }

    fn too_much(&mut self, objects: usize, bytes: usize) -> Option<Shown> {
        let Bounds { objects: most, bytes: largest } = self.bounds;
        if objects <= most && bytes <= largest {
            return None;
        }
        let is_first = !std::mem::replace(&mut self.is_too_much, true);
        let why = format!(
            "the API server sent {objects} objects with {bytes} bytes in all, expected at most {most} objects and \
             {largest} bytes"
        );
        Some(Shown::TooMuch { why, is_first })
    }
}

fn bytes_of(known: &SortedMap<Name, Known>) -> usize {
    known.values().map(|known| known.bytes).sum()
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

fn uid_of(object: &Value) -> &str {
    text(object, "uid")
}

fn known_as(object: &Value) -> Known {
    let version = (uid_of(object).to_owned(), text(object, "resourceVersion").to_owned());
    Known { version, bytes: json_bytes(object), whole_bytes: whole_bytes(object) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::Jitter;
    use crate::pods::shares::is_part;
    use serde_json::json;

    /// A collection, and a consumer that follows its news.
    struct Bench {
        reflector: Reflector,
        /// By name, UID and version; `None` while unknown.
        seen: Option<SortedMap<String, (String, u64)>>,
        refused: usize,
    }

    fn object(name: &str, uid: u64, version: u64) -> Value {
        let uid = format!("{name}-{uid}");
        json!({"metadata": {"namespace": "n", "name": name, "uid": uid, "resourceVersion": version.to_string()}})
    }

    impl Bench {
        fn of(objects: usize, bytes: usize) -> Self {
            let mut reflector = Reflector::bounded(Watched::Node, false, Bounds { objects, bytes });
            reflector.relist(None);
            Self { reflector, seen: None, refused: 0 }
        }

        fn take(&mut self, shown: impl IntoIterator<Item = Shown>) {
            for shown in shown {
                match shown {
                    Shown::All(objects) => {
                        self.seen = Some(SortedMap::new());
                        objects.iter().for_each(|object| self.note(object));
                    }
                    Shown::One(object) => self.note(&object),
                    Shown::Gone(object) => self.lose(uid_of(&object)),
                    Shown::Replaced(uid) => self.lose(&uid),
                    Shown::TooMuch { .. } => self.refused += 1,
                    Shown::Unchanged(_) => {}
                }
            }
        }

        fn lose(&mut self, uid: &str) {
            self.seen.get_or_insert_default().retain(|_, (there, _)| there != uid);
        }

        fn note(&mut self, object: &Value) {
            let version = text(object, "resourceVersion").parse().expect("a number");
            let entry = (uid_of(object).to_owned(), version);
            let before =
                self.seen.get_or_insert_default().insert(text(object, "name").to_owned(), entry.clone());
            assert!(before.is_none_or(|before| before.0 == entry.0), "the one before it is not gone");
        }

        fn list(&mut self, objects: &[Value]) {
            let shown = self.reflector.listed(Listing::Objects(objects.to_vec()));
            self.take([shown]);
        }

        fn change(&mut self, object: &Value, is_deleted: bool) {
            let shown = self.reflector.changed(object.clone(), is_deleted);
            self.take(shown);
        }

        fn names(&self) -> Option<Vec<&str>> {
            self.seen.as_ref().map(|seen| seen.keys().map(String::as_str).collect())
        }
    }

    #[test]
    fn nothing_is_known_before_a_list_and_an_empty_one_is_empty() {
        let mut bench = Bench::of(9, 9999);
        assert_eq!(bench.names(), None);
        bench.list(&[]);
        assert_eq!(bench.names(), Some(vec![]));
    }

    #[test]
    fn list_shows_what_went_while_nobody_watched() {
        let mut bench = Bench::of(9, 9999);
        bench.list(&[object("a", 1, 1), object("b", 1, 2)]);
        bench.change(&object("c", 1, 3), false);
        assert_eq!(bench.names(), Some(vec!["a", "b", "c"]));
        bench.list(&[object("b", 1, 2)]);
        assert_eq!(bench.names(), Some(vec!["b"]));
    }

    #[test]
    fn object_made_anew_is_shown_as_gone_first() {
        let mut bench = Bench::of(9, 9999);
        bench.list(&[object("a", 1, 1)]);
        let shown = bench.reflector.changed(object("a", 2, 5), false);
        assert_eq!(shown, [Shown::Replaced("a-1".into()), Shown::One(object("a", 2, 5))]);
        let shown = bench.reflector.changed(object("a", 2, 5), false);
        assert_eq!(shown, [], "known in this version");
        bench.change(&object("a", 2, 6), true);
        assert!(bench.reflector.changed(object("a", 2, 5), false).len() == 1, "it is back");
    }

    #[test]
    fn of_another_server_nothing_is_known() {
        let mut bench = Bench::of(9, 9999);
        bench.list(&[object("a", 1, 1)]);
        bench.reflector.relist(None);
        assert_eq!(bench.reflector.known, None);
        // the same UID and version by chance: it is another object
        assert_eq!(bench.reflector.changed(object("a", 1, 1), false), [Shown::One(object("a", 1, 1))]);
        bench.reflector.stop();
        assert_eq!(bench.reflector.known, None);
    }

    #[test]
    fn one_object_is_known_by_its_place() {
        let mut reflector = Reflector::new(Watched::ConfigMap, "a", false);
        let held = ("a-1".to_owned(), "3".to_owned());
        assert_eq!(reflector.listed(Listing::Unchanged(held.clone())), Shown::Unchanged(held));
        assert_eq!(reflector.changed(object("a", 1, 3), false), [], "that version was not read again");
        let shown = reflector.changed(object("a", 2, 4), false);
        assert_eq!(shown, [Shown::Replaced("a-1".into()), Shown::One(object("a", 2, 4))]);
        assert_eq!(reflector.changed(object("a", 2, 5), true), [Shown::Gone(object("a", 2, 5))]);
    }

    #[test]
    fn server_that_does_not_select_shows_what_is_asked_for() {
        let mut reflector = Reflector::new(Watched::ConfigMap, "", false);
        reflector.list_another("b", None);
        let mut listed = |objects: &[Value]| reflector.listed(Listing::Objects(objects.to_vec()));
        let all = [object("a", 1, 1), object("b", 1, 2), object("c", 1, 3)];
        assert_eq!(listed(&all), Shown::All(vec![object("b", 1, 2)]));
        assert_eq!(listed(&[]), Shown::All(Vec::new()));
        // the owner sees that it is another one, so that the requested one's state is unknown
        assert_eq!(listed(&[object("a", 1, 1), object("c", 1, 3)]), Shown::All(vec![object("a", 1, 1)]));
        assert_eq!(listed(&all), Shown::All(vec![object("b", 1, 2)]));
        for is_deleted in [false, true] {
            assert_eq!(reflector.changed(object("a", 1, 4), is_deleted), []);
        }
        assert_eq!(reflector.changed(object("b", 1, 2), false), [], "it is known");
        assert_eq!(reflector.changed(object("b", 1, 5), true), [Shown::Gone(object("b", 1, 5))]);
    }

    #[test]
    fn too_much_is_reported_once_and_nothing_of_it_is_taken() {
        let size = json_bytes(&object("a", 1, 1));
        let mut bench = Bench::of(2, 3 * size);
        bench.list(&[object("a", 1, 1)]);
        let three = [object("a", 1, 1), object("b", 1, 2), object("c", 1, 3)];
        for is_first in [true, false] {
            let shown = bench.reflector.listed(Listing::Objects(three.to_vec()));
            assert!(matches!(shown, Shown::TooMuch { is_first: found, .. } if found == is_first));
        }
        assert_eq!(bench.reflector.known.as_ref().map(SortedMap::len), Some(1), "what was known stays");
        bench.change(&object("b", 1, 2), false);
        bench.change(&object("c", 1, 3), false);
        assert_eq!((bench.names(), bench.refused), (Some(vec!["a", "b"]), 1));
        let mut large = object("b", 1, 4);
        large["data"] = json!("x".repeat(size));
        bench.change(&large, false);
        assert_eq!(bench.refused, 2, "too large beside the other");
        bench.change(&object("a", 1, 5), true);
        bench.change(&large, false);
        assert_eq!((bench.names(), bench.refused), (Some(vec!["b"]), 2), "alone it fits");
    }

    #[test]
    fn large_pods_of_one_namespace_hide_no_news_of_others() {
        let large = |namespace: &str, name: &str, version: u64| {
            let mut pod = object(name, 1, version);
            pod["metadata"]["namespace"] = json!(namespace);
            pod["data"] = json!("x".repeat(1_300_000));
            pod
        };
        let bounds = Bounds { objects: 100, bytes: 20 << 20 };
        let mut reflector = Reflector::of_set(Watched::Pods, false, bounds);
        reflector.relist(None);
        let hogs: Vec<Value> = (0..40).map(|index| large("hog", &format!("h{index}"), 1)).collect();
        let Shown::All(all) = reflector.listed(Listing::Objects(hogs)) else { panic!("it is taken") };
        let taken = all.iter().filter(|pod| !is_part(pod)).count();
        assert!((5..=6).contains(&taken), "{taken}");
        // of another namespace: it appears, grows, goes; of its own: one more is shown in part, and so is a
        // deletion
        let small = object("small", 1, 2);
        assert_eq!(reflector.changed(small.clone(), false), [Shown::One(small)]);
        let grown = large("n", "small", 3);
        assert_eq!(reflector.changed(grown.clone(), false), [Shown::One(grown)]);
        let [Shown::One(more)] = &reflector.changed(large("hog", "more", 4), false)[..] else {
            panic!("it is shown")
        };
        assert!(is_part(more));
        let mut ending = large("hog", "h0", 5);
        ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let [Shown::One(shown)] = &reflector.changed(ending, false)[..] else { panic!("it is shown") };
        assert_eq!(shown["metadata"]["deletionTimestamp"], "2026-01-01T00:00:00Z");
        // objects that are gone leave room
        for index in 0..40 {
            let gone = large("hog", &format!("h{index}"), 6);
            assert!(matches!(reflector.changed(gone, true)[..], [Shown::Gone(_)]));
        }
        let after = large("hog", "after", 7);
        assert_eq!(reflector.changed(after.clone(), false), [Shown::One(after)]);
    }

    /// A server that changes at random, and whose watch breaks off, loses events, and begins with a list
    /// again.
    #[test]
    fn consumer_has_what_the_server_has_after_every_list() {
        for seed in 1..40 {
            let mut random = Jitter::new(seed);
            let mut below = move |limit: u32| {
                random.within(std::time::Duration::from_secs(limit.into())).as_secs() as usize
            };
            let mut bench = Bench::of(9, 99_999);
            let mut server: SortedMap<String, (u64, u64)> = SortedMap::new();
            let (mut version, mut is_heard) = (0, false);
            for _ in 0..300 {
                version += 1;
                let name = ["a", "b", "c", "d", "e"][below(5)].to_owned();
                let there = server.get(&name).copied();
                let (uid, is_deleted) = match (there, below(6)) {
                    (Some((uid, _)), 0 | 1) => (uid, true),
                    (Some((uid, _)), 2..) => (uid, false),
                    (None, _) => (version, false),
                };
                match is_deleted {
                    true => drop(server.remove(&name)),
                    false => drop(server.insert(name.clone(), (uid, version))),
                }
                if is_heard {
                    bench.change(&object(&name, uid, version), is_deleted);
                }
                // the watch breaks off, or another list begins
                match below(10) {
                    0 => is_heard = false,
                    1 | 2 => {
                        let all: Vec<Value> = server
                            .iter()
                            .map(|(name, (uid, version))| object(name, *uid, *version))
                            .collect();
                        bench.list(&all);
                        is_heard = true;
                    }
                    _ => {}
                }
                if is_heard {
                    let expect = server
                        .iter()
                        .map(|(name, (uid, version))| (name.clone(), (format!("{name}-{uid}"), *version)));
                    assert_eq!(bench.seen, Some(expect.collect()), "seed {seed}");
                }
            }
            assert_eq!(bench.refused, 0);
        }
    }
}
