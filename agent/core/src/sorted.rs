//! Maps and sets as one vector in the order of the keys, with the names of `BTreeMap`'s and `BTreeSet`'s
//! methods.
//!
//! A node has tens of each: containers, images, records. `BTreeMap` adds 4 KB of code for each pair of types,
//! these add a fifth of that; there are some eighty pairs. Always holds: keys are in ascending order, each
//! once.
//!
//! Entries in bulk (`collect`, `extend`, JSON) are sorted once, in `n log n` steps, so that no order of a
//! client's keys costs more; of entries with one key the last wins. But `insert` and `remove` move all later
//! entries: a map that can have many thousands of entries and is filled one by one in a client's order (files
//! of volumes, variables), or whose values are large (the lives of pods), stays a `BTreeMap`. So does
//! `BTreeMap<String, String>`, which is in the program anyway.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Index;
use std::slice;
use std::vec;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// Most entries that a reader allocates room for before it has read them.
const READ_AHEAD: usize = 64;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SortedMap<K, V> {
    entries: Vec<(K, V)>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SortedSet<T> {
    map: SortedMap<T, ()>,
}

/// The place of one key, as [`SortedMap::entry`] finds it.
pub enum Entry<'a, K, V> {
    Occupied(OccupiedEntry<'a, K, V>),
    Vacant(VacantEntry<'a, K, V>),
}

pub struct OccupiedEntry<'a, K, V> {
    entries: &'a mut Vec<(K, V)>,
    at: usize,
}

pub struct VacantEntry<'a, K, V> {
    entries: &'a mut Vec<(K, V)>,
    at: usize,
    key: K,
}

impl<K, V> SortedMap<K, V> {
    pub const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn clear(&mut self) {
        self.entries.clear();
    }

    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter(self.entries.iter())
    }

    pub fn iter_mut(&mut self) -> IterMut<'_, K, V> {
        IterMut(self.entries.iter_mut())
    }

    pub fn keys(&self) -> Keys<'_, K, V> {
        Keys(self.entries.iter())
    }

    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + ExactSizeIterator + Clone {
        self.entries.iter().map(|(_, value)| value)
    }

    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut V> + ExactSizeIterator {
        self.entries.iter_mut().map(|(_, value)| value)
    }

    pub fn into_keys(self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator {
        self.entries.into_iter().map(|(key, _)| key)
    }

    pub fn into_values(self) -> impl DoubleEndedIterator<Item = V> + ExactSizeIterator {
        self.entries.into_iter().map(|(_, value)| value)
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.entries.retain_mut(|(key, value)| keep(key, value));
    }

    pub fn first_key_value(&self) -> Option<(&K, &V)> {
        self.entries.first().map(|(key, value)| (key, value))
    }

    /// Moves all others.
    pub fn pop_first(&mut self) -> Option<(K, V)> {
        if self.entries.is_empty() { None } else { Some(self.entries.remove(0)) }
    }

    pub fn last_key_value(&self) -> Option<(&K, &V)> {
        self.entries.last().map(|(key, value)| (key, value))
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    /// The index of the key, or the one where it would be inserted.
    fn position<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.entries.binary_search_by(|(other, _)| other.borrow().cmp(key))
    }

    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let at = self.position(key).ok()?;
        Some(&self.entries[at].1)
    }

    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let at = self.position(key).ok()?;
        Some(&mut self.entries[at].1)
    }

    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.position(key).is_ok()
    }

    pub fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let at = self.position(key).ok()?;
        let (key, value) = &self.entries[at];
        Some((key, value))
    }

    /// Returns the key's earlier value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.position(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.entries[at].1, value)),
            Err(at) => {
                self.entries.insert(at, (key, value));
                None
            }
        }
    }

    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.remove_entry(key).map(|(_, value)| value)
    }

    pub fn remove_entry<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        let at = self.position(key).ok()?;
        Some(self.entries.remove(at))
    }

    pub fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        let found = self.position(&key);
        let entries = &mut self.entries;
        match found {
            Ok(at) => Entry::Occupied(OccupiedEntry { entries, at }),
            Err(at) => Entry::Vacant(VacantEntry { entries, at, key }),
        }
    }

    /// Sorts the entries; of those with one key the last stays.
    fn settle(&mut self) {
        if self.entries.is_sorted_by(|(one, _), (next, _)| one < next) {
            return;
        }
        kedge_api::sort::sort_by(&mut self.entries, |(one, _), (other, _)| one.cmp(other));
        self.entries.dedup_by(|later, kept| {
            let is_same = later.0 == kept.0;
            if is_same {
                std::mem::swap(later, kept);
            }
            is_same
        });
    }
}

impl<T> SortedSet<T> {
    pub const fn new() -> Self {
        Self { map: SortedMap::new() }
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub fn clear(&mut self) {
        self.map.clear();
    }

    pub fn iter(&self) -> Keys<'_, T, ()> {
        self.map.keys()
    }

    pub fn first(&self) -> Option<&T> {
        self.iter().next()
    }

    pub fn last(&self) -> Option<&T> {
        self.iter().next_back()
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.map.retain(|item, ()| keep(item));
    }
}

impl<T: Ord> SortedSet<T> {
    pub fn contains<Q: Ord + ?Sized>(&self, item: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.map.contains_key(item)
    }

    /// Returns whether it is new.
    pub fn insert(&mut self, item: T) -> bool {
        self.map.insert(item, ()).is_none()
    }

    /// Returns whether it was present.
    pub fn remove<Q: Ord + ?Sized>(&mut self, item: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.map.remove_entry(item).is_some()
    }

    pub fn is_subset(&self, other: &Self) -> bool {
        self.iter().all(|item| other.contains(item))
    }

    pub fn difference<'a>(&'a self, other: &'a Self) -> impl DoubleEndedIterator<Item = &'a T> + Clone {
        self.iter().filter(|item| !other.contains(*item))
    }
}

impl<'a, K, V> Entry<'a, K, V> {
    pub fn or_insert(self, value: V) -> &'a mut V {
        self.or_insert_with(|| value)
    }

    pub fn or_default(self) -> &'a mut V
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }

    pub fn or_insert_with(self, value: impl FnOnce() -> V) -> &'a mut V {
        match self {
            Self::Occupied(entry) => entry.into_mut(),
            Self::Vacant(entry) => entry.insert(value()),
        }
    }

    pub fn and_modify(mut self, change: impl FnOnce(&mut V)) -> Self {
        if let Self::Occupied(entry) = &mut self {
            change(entry.get_mut());
        }
        self
    }
}

impl<'a, K, V> OccupiedEntry<'a, K, V> {
    pub fn get(&self) -> &V {
        &self.entries[self.at].1
    }

    pub fn get_mut(&mut self) -> &mut V {
        &mut self.entries[self.at].1
    }

    pub fn into_mut(self) -> &'a mut V {
        &mut self.entries[self.at].1
    }

    pub fn remove(self) -> V {
        self.entries.remove(self.at).1
    }
}

impl<'a, K, V> VacantEntry<'a, K, V> {
    pub fn insert(self, value: V) -> &'a mut V {
        self.entries.insert(self.at, (self.key, value));
        &mut self.entries[self.at].1
    }
}

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Default for SortedSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SortedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<T: fmt::Debug> fmt::Debug for SortedSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self).finish()
    }
}

impl<K: Borrow<Q> + Ord, Q: Ord + ?Sized, V> Index<&Q> for SortedMap<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("no entry found for key")
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self { entries: entries.into_iter().collect() };
        map.settle();
        map
    }
}

impl<T: Ord> FromIterator<T> for SortedSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self { map: items.into_iter().map(|item| (item, ())).collect() }
    }
}

impl<K: Ord, V> Extend<(K, V)> for SortedMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        self.entries.extend(entries);
        self.settle();
    }
}

impl<T: Ord> Extend<T> for SortedSet<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        self.map.extend(items.into_iter().map(|item| (item, ())));
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for SortedMap<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<T: Ord, const N: usize> From<[T; N]> for SortedSet<T> {
    fn from(items: [T; N]) -> Self {
        items.into_iter().collect()
    }
}

pub struct Iter<'a, K, V>(slice::Iter<'a, (K, V)>);
pub struct IterMut<'a, K, V>(slice::IterMut<'a, (K, V)>);
pub struct Keys<'a, K, V>(slice::Iter<'a, (K, V)>);
pub struct IntoItems<T>(vec::IntoIter<(T, ())>);

impl<K, V> Clone for Iter<'_, K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, V> Clone for Keys<'_, K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// An iterator of this module: the vector's own items, in another shape.
macro_rules! iterator {
    ([$($generic:tt)*] $name:ty, $item:ty, $entry:pat => $shape:expr) => {
        impl<$($generic)*> Iterator for $name {
            type Item = $item;

            fn next(&mut self) -> Option<$item> {
                self.0.next().map(|$entry| $shape)
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                self.0.size_hint()
            }
        }

        impl<$($generic)*> DoubleEndedIterator for $name {
            fn next_back(&mut self) -> Option<$item> {
                self.0.next_back().map(|$entry| $shape)
            }
        }

        impl<$($generic)*> ExactSizeIterator for $name {}
    };
}
iterator!(['a, K, V] Iter<'a, K, V>, (&'a K, &'a V), (key, value) => (key, value));
iterator!(['a, K, V] IterMut<'a, K, V>, (&'a K, &'a mut V), (key, value) => (&*key, value));
iterator!(['a, K, V] Keys<'a, K, V>, &'a K, (key, _) => key);
iterator!([T] IntoItems<T>, T, (item, ()) => item);

impl<K, V> IntoIterator for SortedMap<K, V> {
    type Item = (K, V);
    type IntoIter = vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

impl<'a, K, V> IntoIterator for &'a SortedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, K, V> IntoIterator for &'a mut SortedMap<K, V> {
    type Item = (&'a K, &'a mut V);
    type IntoIter = IterMut<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T> IntoIterator for SortedSet<T> {
    type Item = T;
    type IntoIter = IntoItems<T>;

    fn into_iter(self) -> Self::IntoIter {
        IntoItems(self.map.entries.into_iter())
    }
}

impl<'a, T> IntoIterator for &'a SortedSet<T> {
    type Item = &'a T;
    type IntoIter = Keys<'a, T, ()>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<K: Serialize, V: Serialize> Serialize for SortedMap<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl<T: Serialize> Serialize for SortedSet<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Deserialize<'de> for SortedMap<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<K, V>(PhantomData<(K, V)>);

        impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Visitor<'de> for Entries<K, V> {
            type Value = SortedMap<K, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
                let mut map = SortedMap {
                    entries: Vec::with_capacity(access.size_hint().unwrap_or(0).min(READ_AHEAD)),
                };
                while let Some(entry) = access.next_entry()? {
                    map.entries.push(entry);
                }
                map.settle();
                Ok(map)
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

impl<'de, T: Deserialize<'de> + Ord> Deserialize<'de> for SortedSet<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + Ord> Visitor<'de> for Items<T> {
            type Value = SortedSet<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
                let mut map = SortedMap { entries: Vec::new() };
                while let Some(item) = access.next_element()? {
                    map.entries.push((item, ()));
                }
                map.settle();
                Ok(SortedSet { map })
            }
        }
        deserializer.deserialize_seq(Items(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::cmp::Ordering;
    use std::collections::BTreeMap;

    /// Numbers that look random, the same each time.
    fn numbers(seed: u64) -> impl Iterator<Item = u64> {
        let step =
            |n: &u64| Some(n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        std::iter::successors(Some(seed), step).map(|n| n >> 33)
    }

    fn assert_same(map: &SortedMap<u8, u64>, model: &BTreeMap<u8, u64>) {
        assert!(map.iter().eq(model), "{map:?} beside {model:?}");
        assert!(map.iter().rev().eq(model.iter().rev()));
        assert!(map.keys().eq(model.keys()) && map.values().eq(model.values()));
        assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
        assert_eq!(map.first_key_value(), model.first_key_value());
        assert_eq!(map.last_key_value(), model.last_key_value());
        assert_eq!(format!("{map:?}"), format!("{model:?}"));
        assert_eq!(serde_json::to_string(map).unwrap(), serde_json::to_string(model).unwrap());
    }

    #[test]
    fn map_does_what_btree_map_does() {
        for seed in 0..20 {
            let (mut map, mut model) = (SortedMap::new(), BTreeMap::new());
            let mut numbers = numbers(seed);
            let mut next = move || numbers.next().unwrap();
            for _ in 0..300 {
                let (key, value) = ((next() % 24) as u8, next());
                match next() % 12 {
                    0..4 => assert_eq!(map.insert(key, value), model.insert(key, value)),
                    4..6 => assert_eq!(map.remove(&key), model.remove(&key)),
                    6 => {
                        *map.entry(key).or_default() +=
                            *model.entry(key).and_modify(|n| *n += 1).or_insert(1) & 1
                    }
                    7 => assert_eq!(map.get(&key), model.get(&key)),
                    8 => assert_eq!(map.pop_first(), model.pop_first()),
                    9 => assert_eq!(map.get_mut(&key).map(|n| std::mem::replace(n, value)), {
                        model.get_mut(&key).map(|n| std::mem::replace(n, value))
                    }),
                    10 => {
                        let more: Vec<_> = (0..next() % 6).map(|n| ((next() % 24) as u8, n)).collect();
                        map.extend(more.clone());
                        model.extend(more);
                    }
                    _ => {
                        map.retain(|other, _| other % 5 != key % 5);
                        model.retain(|other, _| other % 5 != key % 5);
                    }
                }
                // `entry` above gave both other values
                map.iter_mut().zip(model.values()).for_each(|((_, value), other)| *value = *other);
                assert_same(&map, &model);
                assert_same(&serde_json::from_str(&serde_json::to_string(&model).unwrap()).unwrap(), &model);
                assert_eq!(map.contains_key(&key), model.contains_key(&key));
                assert!(map.clone().into_iter().eq(model.clone()));
            }
        }
    }

    #[test]
    fn last_of_equal_keys_counts() {
        let model = BTreeMap::from([(1, 3), (2, 4)]);
        assert_same(&SortedMap::from([(2, 1), (1, 2), (1, 3), (2, 4)]), &model);
        assert_same(&serde_json::from_str(r#"{"2": 1, "1": 2, "1": 3, "2": 4}"#).unwrap(), &model);
        let set: SortedSet<u8> = serde_json::from_str("[3, 1, 3, 2]").unwrap();
        assert_eq!(set, SortedSet::from([1, 2, 3]));
        assert_eq!(serde_json::to_string(&set).unwrap(), "[1,2,3]");
    }

    #[test]
    fn sets_compare_as_sets() {
        let (some, all) = (SortedSet::from([1, 3]), SortedSet::from([3, 2, 1]));
        assert!(some.is_subset(&all) && !all.is_subset(&some));
        assert!(all.difference(&some).eq(&[2]));
        assert!(some.difference(&all).next().is_none());
        assert_eq!((all.first(), all.last()), (Some(&1), Some(&3)));
    }

    thread_local! {
        static COMPARISONS: Cell<u64> = const { Cell::new(0) };
    }

    /// A key that counts how often it is compared.
    #[derive(Debug, PartialEq, Eq, serde::Deserialize)]
    struct Counted(u64);

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    /// In descending order each insertion moves all present entries, after a search of 17 comparisons.
    /// Sorting takes one for each.
    #[test]
    fn hostile_order_is_sorted_once() {
        const KEYS: u64 = 100_000;
        let compared = |read: &dyn Fn() -> u64| {
            COMPARISONS.set(0);
            assert_eq!(read(), KEYS);
            COMPARISONS.get()
        };
        let pairs = || (0..KEYS).rev().map(|n| (Counted(n), n));
        let count = |map: &SortedMap<Counted, u64>| {
            assert!(map.values().copied().eq(0..KEYS));
            map.len() as u64
        };
        let items = serde_json::to_string(&(0..KEYS).rev().collect::<Vec<_>>()).unwrap();
        let entries =
            format!("{{{}}}", (0..KEYS).rev().map(|n| format!(r#""{n}":{n}"#)).collect::<Vec<_>>().join(","));
        let ways: [(&str, &dyn Fn() -> u64); 4] = [
            ("collected", &|| count(&pairs().collect())),
            ("extended", &|| {
                let mut map = SortedMap::new();
                map.extend(pairs());
                count(&map)
            }),
            ("a list", &|| serde_json::from_str::<SortedSet<Counted>>(&items).unwrap().len() as u64),
            ("an object", &|| count(&serde_json::from_str(&entries).unwrap())),
        ];
        for (way, read) in ways {
            let comparisons = compared(read);
            assert!(comparisons < 4 * KEYS, "{way}: {comparisons} comparisons of {KEYS} keys");
        }
    }
}
