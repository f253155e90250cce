//! The row number of each object in the store's file: an index that the file itself does not have.
//!
//! Numbers keep the rows of one resource together, in the order of creation: objects that are written
//! together (all Leases of a fleet every 30 seconds) share pages, and a new object goes next to the last one.
//! An index in the file would cost a second page for each created or deleted object. Always holds: numbers
//! are unique, and a number in use is not given to a second object. Costs about 100 bytes of memory an
//! object.

use std::collections::HashMap;
use std::fmt;

use kedge_hub_core::object::key;

/// The numbers of one resource: 2^44 of them, more than ten thousand new objects a second use up in fifty
/// years. There is room for 2^19 resources, and a hub serves a few dozen.
const KIND_BITS: u32 = 44;

#[derive(Debug, Default)]
pub(super) struct Rows {
    /// By resource, then by namespace and name.
    numbers: HashMap<Box<str>, HashMap<Box<str>, i64>>,
    /// The last used number in the range of new objects of a resource.
    last: HashMap<Box<str>, i64>,
    /// The first unused range.
    free: i64,
    /// Resource of the range that is currently being loaded.
    reading: Option<Box<str>>,
    /// Objects added or removed since the last `commit`, by resource and key, with their previous number.
    changed: Vec<(Box<str>, Box<str>, Option<i64>)>,
}

/// The reason why a row cannot be from a hub.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RowError {
    /// A negative number, which no hub assigns.
    Negative,
    /// Two rows of one object.
    Twice,
}

impl fmt::Display for RowError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            RowError::Negative => "its row has a negative number",
            RowError::Twice => "it is there twice",
        })
    }
}

impl Rows {
    /// Loads a row of the file. Must be called in ascending order of numbers.
    pub(super) fn read(
        &mut self,
        number: i64,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<(), RowError> {
        if number < 0 {
            return Err(RowError::Negative);
        }
        let range = number >> KIND_BITS;
        if range >= self.free {
            self.free = range + 1;
            // a tool may have numbered all rows from 1: a range belongs to the first resource found in it
            self.reading = (!self.last.contains_key(resource)).then(|| resource.into());
        }
        if let Some(owner) = &self.reading {
            match self.last.get_mut(owner) {
                Some(last) => *last = number,
                None => drop(self.last.insert(owner.clone(), number)),
            }
        }
        match self.of(resource).insert(key(namespace, name).into(), number) {
            None => Ok(()),
            Some(_) => Err(RowError::Twice),
        }
    }

    /// The number of an object's row.
    pub(super) fn find(&self, resource: &str, namespace: &str, name: &str) -> Option<i64> {
        self.numbers.get(resource)?.get(key(namespace, name).as_str()).copied()
    }

    /// Gives a number to an object that has none; `None` if no number is left.
    pub(super) fn add(&mut self, resource: &str, namespace: &str, name: &str) -> Option<i64> {
        let next = self
            .last
            .get(resource)
            .and_then(|last| last.checked_add(1).filter(|next| next >> KIND_BITS == last >> KIND_BITS));
        let number = match next {
            Some(next) => next,
            None => self.free_range()?,
        };
        self.last.insert(resource.into(), number);
        let place: Box<str> = key(namespace, name).into();
        self.changed.push((resource.into(), place.clone(), None));
        self.of(resource).insert(place, number);
        Some(number)
    }

    /// The first number of an unused range.
    fn free_range(&mut self) -> Option<i64> {
        let first = self.free.checked_mul(1 << KIND_BITS)?;
        self.free += 1;
        Some(first)
    }

    /// Removes an object; returns its number, if it had one.
    pub(super) fn remove(&mut self, resource: &str, namespace: &str, name: &str) -> Option<i64> {
        let (place, number) = self.numbers.get_mut(resource)?.remove_entry(key(namespace, name).as_str())?;
        self.changed.push((resource.into(), place, Some(number)));
        Some(number)
    }

    /// Notes that the file now has the additions and removals.
    pub(super) fn commit(&mut self) {
        self.changed.clear();
    }

    /// Restores the state of the last `commit`. Numbers given out since are skipped, like those of removed
    /// objects.
    pub(super) fn roll_back(&mut self) {
        while let Some((resource, place, before)) = self.changed.pop() {
            let numbers = self.of(&resource);
            match before {
                Some(number) => drop(numbers.insert(place, number)),
                None => drop(numbers.remove(&place)),
            }
        }
    }

    fn of(&mut self, resource: &str) -> &mut HashMap<Box<str>, i64> {
        if !self.numbers.contains_key(resource) {
            self.numbers.insert(resource.into(), HashMap::new());
        }
        self.numbers.get_mut(resource).expect("it was put there two lines above")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: i64 = 1 << KIND_BITS;

    #[test]
    fn rows_of_one_resource_are_adjacent_and_numbers_unique() {
        let mut rows = Rows::default();
        let mut add = |resource: &str, name: &str| rows.add(resource, "", name).unwrap();
        assert_eq!(
            [add("nodes", "a"), add("leases", "a"), add("nodes", "b"), add("leases", "b")],
            [0, RANGE, 1, RANGE + 1]
        );
        assert_eq!(rows.remove("nodes", "", "b"), Some(1));
        assert_eq!(rows.remove("nodes", "", "b"), None);
        assert_eq!(rows.find("nodes", "", "b"), None);
        assert_eq!(rows.add("nodes", "", "c"), Some(2));
        assert_eq!((rows.find("nodes", "", "a"), rows.find("leases", "", "b")), (Some(0), Some(RANGE + 1)));
    }

    #[test]
    fn numbers_continue_after_those_in_the_file() {
        let check = |file: &[(i64, &str)], resource: &str, expect: Option<i64>| {
            let mut rows = Rows::default();
            for (index, (number, resource)) in file.iter().enumerate() {
                rows.read(*number, resource, "", &format!("n{index}")).unwrap();
            }
            assert_eq!(rows.add(resource, "", "new"), expect, "{file:?} {resource}");
        };
        check(&[], "nodes", Some(0));
        check(&[(4, "nodes")], "nodes", Some(5));
        check(&[(4, "nodes")], "leases", Some(RANGE));
        check(&[(RANGE + 9, "nodes")], "leases", Some(2 * RANGE));
        // foreign numbers: the range belongs to the first resource, and no number in use is assigned again
        let mixed = [(1, "nodes"), (2, "leases"), (3, "nodes"), (4, "leases")];
        check(&mixed, "nodes", Some(5));
        check(&mixed, "leases", Some(RANGE));
        // a resource in two ranges
        check(&[(1, "nodes"), (RANGE, "nodes"), (RANGE + 1, "leases")], "nodes", Some(2));
        check(&[(1, "nodes"), (RANGE, "nodes"), (RANGE + 1, "leases")], "leases", Some(2 * RANGE));
        // a range is full, and all of them
        check(&[(RANGE - 1, "nodes")], "nodes", Some(RANGE));
        check(&[(i64::MAX - 1, "nodes")], "nodes", Some(i64::MAX));
        check(&[(i64::MAX, "nodes")], "nodes", None);
        check(&[(i64::MAX, "nodes")], "leases", None);
    }

    #[test]
    fn rollback_restores_rows_and_skips_given_numbers() {
        let mut rows = Rows::default();
        rows.read(4, "nodes", "", "kept").unwrap();
        rows.add("nodes", "", "made");
        rows.commit();
        rows.remove("nodes", "", "kept");
        assert_eq!(rows.add("nodes", "", "kept"), Some(6), "gone and made anew");
        rows.remove("nodes", "", "made");
        rows.add("nodes", "", "new");
        rows.remove("nodes", "", "new");
        rows.add("leases", "", "new");
        rows.roll_back();
        let found = [("nodes", "kept"), ("nodes", "made"), ("nodes", "new"), ("leases", "new")];
        assert_eq!(
            found.map(|(resource, name)| rows.find(resource, "", name)),
            [Some(4), Some(5), None, None]
        );
        assert_eq!(
            (rows.add("nodes", "", "next"), rows.add("leases", "", "next")),
            (Some(8), Some(RANGE + 1))
        );
        rows.roll_back();
        assert_eq!(rows.find("nodes", "", "made"), Some(5), "only the last commit's are undone");
    }

    #[test]
    fn foreign_rows_are_refused() {
        let mut rows = Rows::default();
        assert_eq!(rows.read(-1, "nodes", "", "a"), Err(RowError::Negative));
        rows.read(1, "nodes", "", "a").unwrap();
        rows.read(2, "nodes", "x", "a").unwrap();
        rows.read(3, "leases", "", "a").unwrap();
        assert_eq!(rows.read(4, "nodes", "", "a"), Err(RowError::Twice));
    }
}
