//! The promises that a history of requests must satisfy, whatever the hub did in between. Pure: records in,
//! broken promises out.
//!
//! Times are readings of one counter, taken before a request was sent and after its answer was read: the
//! order of two overlapping requests is unknown. A request without an answer is not in the history, because
//! it may or may not have been carried out.

use std::collections::{BTreeMap, HashMap};

/// One observation.
#[derive(Debug, Clone)]
pub(crate) enum Record {
    /// An acknowledged write; `base` is the version to which it was bound, if any.
    Write { name: String, base: Option<u64>, version: u64, started: u64, ended: u64 },
    /// An acknowledged delete.
    Deleted { name: String, started: u64, ended: u64 },
    /// A read: the version found, or `None` if the object was missing.
    Read { name: String, version: Option<u64>, started: u64 },
    /// A list: its version and its objects.
    List { version: u64, items: Vec<(String, u64)>, started: u64 },
    /// A watch began after this version; one `segment` has no gaps.
    WatchFrom { segment: u64, version: u64 },
    /// The watch showed a change.
    Watched { segment: u64, name: String, version: u64 },
}

/// An acknowledged write, as the checks need it.
#[derive(Debug, Clone, Copy)]
struct Acknowledged {
    version: u64,
    base: Option<u64>,
    started: u64,
    ended: u64,
}

/// The promises that this history breaks, each in a sentence.
pub(crate) fn violations(history: &[Record]) -> Vec<String> {
    let mut writes: HashMap<&str, Vec<Acknowledged>> = HashMap::new();
    let mut deleted: HashMap<&str, (u64, u64)> = HashMap::new();
    for record in history {
        match record {
            Record::Write { name, base, version, started, ended } => {
                let write = Acknowledged { version: *version, base: *base, started: *started, ended: *ended };
                writes.entry(name).or_default().push(write);
            }
            Record::Deleted { name, started, ended } => {
                deleted.insert(name, (*started, *ended));
            }
            _ => {}
        }
    }
    for list in writes.values_mut() {
        list.sort_by_key(|write| write.version);
    }
    let world = World { writes, deleted };
    let mut found = Vec::new();
    world.versions_rise(&mut found);
    world.no_update_is_lost(history, &mut found);
    world.reads_are_not_stale(history, &mut found);
    world.lists_are_one_state(history, &mut found);
    world.watches_tell_everything_once_in_order(history, &mut found);
    found
}

/// The version after which a watch began, and the changes that it showed.
type Segment<'a> = (u64, Vec<(&'a str, u64)>);

struct World<'a> {
    writes: HashMap<&'a str, Vec<Acknowledged>>,
    deleted: HashMap<&'a str, (u64, u64)>,
}

impl World<'_> {
    /// Later writes have higher versions, and no version is assigned twice.
    fn versions_rise(&self, found: &mut Vec<String>) {
        let mut all: Vec<(&str, Acknowledged)> = self
            .writes
            .iter()
            .flat_map(|(name, list)| list.iter().map(move |write| (*name, *write)))
            .collect();
        all.sort_by_key(|(name, write)| (write.version, *name));
        for pair in all.windows(2) {
            if pair[0].1.version == pair[1].1.version {
                found.push(format!(
                    "version {} was given twice, to {} and {}",
                    pair[0].1.version, pair[0].0, pair[1].0
                ));
            }
        }
        // from the highest version down: no write with a lower version may have begun after one with a higher
        // version had ended
        let mut earliest_end = u64::MAX;
        for (name, write) in all.iter().rev() {
            if write.started > earliest_end {
                found.push(format!(
                    "{name}: version {} went back: a higher one was acknowledged before",
                    write.version
                ));
            }
            earliest_end = earliest_end.min(write.ended);
        }
    }

    /// No other version is between the one to which a write was bound and its own, as far as any client saw.
    fn no_update_is_lost(&self, history: &[Record], found: &mut Vec<String>) {
        let mut known: HashMap<&str, Vec<u64>> = HashMap::new();
        for (name, list) in &self.writes {
            known.entry(name).or_default().extend(list.iter().map(|write| write.version));
        }
        for record in history {
            if let Record::Watched { name, version, .. } = record {
                known.entry(name).or_default().push(*version);
            }
        }
        for versions in known.values_mut() {
            versions.sort_unstable();
            versions.dedup();
        }
        for (name, list) in &self.writes {
            for write in list {
                let Some(base) = write.base else { continue };
                let all = &known[name];
                let next = all.partition_point(|version| *version <= base);
                if all.get(next).is_some_and(|between| *between < write.version) {
                    found.push(format!(
                        "{name}: version {} was bound to {base} and overwrote {}",
                        write.version, all[next]
                    ));
                }
            }
        }
    }

    /// The highest version that was acknowledged before `started`.
    fn acknowledged_before(&self, name: &str, started: u64) -> Option<u64> {
        let list = self.writes.get(name)?;
        list.iter().rev().find(|write| write.ended < started).map(|write| write.version)
    }

    fn may_be_gone(&self, name: &str, by: u64) -> bool {
        self.deleted.get(name).is_some_and(|(started, _)| *started <= by)
    }

    fn is_gone(&self, name: &str, by: u64) -> bool {
        self.deleted.get(name).is_some_and(|(_, ended)| *ended < by)
    }

    fn reads_are_not_stale(&self, history: &[Record], found: &mut Vec<String>) {
        for record in history {
            let Record::Read { name, version, started } = record else { continue };
            let least = self.acknowledged_before(name, *started);
            match version {
                Some(version) if least.is_some_and(|least| *version < least) => {
                    found.push(format!("{name}: read at {version} after {least:?} was acknowledged"));
                }
                Some(_) if self.is_gone(name, *started) => {
                    found.push(format!("{name}: read after its deletion was acknowledged"));
                }
                // a delete that was sent before the read's answer, acknowledged or not, explains an absence
                None if least.is_some() && !self.may_be_gone(name, u64::MAX) => {
                    found.push(format!("{name}: acknowledged at {least:?} and lost"));
                }
                _ => {}
            }
        }
    }

    fn lists_are_one_state(&self, history: &[Record], found: &mut Vec<String>) {
        for record in history {
            let Record::List { version: at, items, started } = record else { continue };
            let items: HashMap<&str, u64> =
                items.iter().map(|(name, version)| (name.as_str(), *version)).collect();
            for (name, version) in &items {
                if version > at {
                    found.push(format!("a list of version {at} has {name} at {version}"));
                }
                if self.is_gone(name, *started) {
                    found.push(format!("a list of version {at} has {name} after its deletion"));
                }
            }
            for (name, list) in &self.writes {
                if let Some(newer) = list.iter().find(|write| write.ended < *started && write.version > *at) {
                    found.push(format!("a list of version {at} began after {name} was at {}", newer.version));
                }
                let due = list.iter().rev().find(|write| write.version <= *at).map(|write| write.version);
                match (due, items.get(name)) {
                    (Some(due), Some(listed)) if *listed < due => {
                        found.push(format!("a list of version {at} has {name} at {listed}, not {due}"));
                    }
                    (Some(due), None) if !self.may_be_gone(name, u64::MAX) => {
                        found.push(format!("a list of version {at} lacks {name}, acknowledged at {due}"));
                    }
                    _ => {}
                }
            }
        }
    }

    fn watches_tell_everything_once_in_order(&self, history: &[Record], found: &mut Vec<String>) {
        let mut segments: BTreeMap<u64, Segment<'_>> = BTreeMap::new();
        for record in history {
            match record {
                Record::WatchFrom { segment, version } => {
                    segments.entry(*segment).or_insert((*version, Vec::new()));
                }
                Record::Watched { segment, name, version } => {
                    if let Some((_, events)) = segments.get_mut(segment) {
                        events.push((name, *version));
                    }
                }
                _ => {}
            }
        }
        for (segment, (from, events)) in segments {
            let mut last = from;
            for (name, version) in &events {
                if *version <= last {
                    found.push(format!("watch {segment}: {name} at {version} after {last}"));
                }
                last = last.max(*version);
            }
            let events: std::collections::HashSet<(&str, u64)> = events.into_iter().collect();
            for (name, list) in &self.writes {
                for write in list.iter().filter(|write| write.version > from && write.version <= last) {
                    if !events.contains(&(*name, write.version)) {
                        found.push(format!(
                            "watch {segment} from {from} to {last} did not tell of {name} at {}",
                            write.version
                        ));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(name: &str, base: Option<u64>, version: u64, at: u64) -> Record {
        Record::Write { name: name.to_owned(), base, version, started: at, ended: at + 1 }
    }

    fn watched(segment: u64, name: &str, version: u64) -> Record {
        Record::Watched { segment, name: name.to_owned(), version }
    }

    fn list(version: u64, items: &[(&str, u64)], started: u64) -> Record {
        let items = items.iter().map(|(name, version)| ((*name).to_owned(), *version)).collect();
        Record::List { version, items, started }
    }

    fn read(name: &str, version: Option<u64>, started: u64) -> Record {
        Record::Read { name: name.to_owned(), version, started }
    }

    #[track_caller]
    fn check(history: &[Record], expect: &[&str]) {
        assert_eq!(violations(history), expect);
    }

    #[test]
    fn every_broken_promise_is_found() {
        let good = [write("a", None, 1, 0), write("a", Some(1), 2, 10), write("b", None, 3, 20)];
        let with = |more: &[Record]| [&good[..], more].concat();
        check(&with(&[read("a", Some(2), 30), list(3, &[("a", 2), ("b", 3)], 30)]), &[]);
        check(&with(&[list(2, &[("a", 2)], 15)]), &[]);
        check(&with(&[write("c", None, 3, 30)]), &["version 3 was given twice, to b and c"]);
        check(
            &with(&[write("c", None, 0, 30)]),
            &["c: version 0 went back: a higher one was acknowledged before"],
        );
        check(&with(&[write("a", Some(1), 4, 30)]), &["a: version 4 was bound to 1 and overwrote 2"]);
        check(&with(&[read("a", Some(1), 30)]), &["a: read at 1 after Some(2) was acknowledged"]);
        check(&with(&[read("a", None, 30)]), &["a: acknowledged at Some(2) and lost"]);
        check(&with(&[list(3, &[("a", 1), ("b", 3)], 30)]), &["a list of version 3 has a at 1, not 2"]);
        check(&with(&[list(3, &[("a", 2)], 30)]), &["a list of version 3 lacks b, acknowledged at 3"]);
        check(&with(&[list(2, &[("a", 2)], 30)]), &["a list of version 2 began after b was at 3"]);
        check(&with(&[list(3, &[("a", 4), ("b", 3)], 15)]), &["a list of version 3 has a at 4"]);
        let from = |segment, version| Record::WatchFrom { segment, version };
        check(&with(&[from(1, 1), watched(1, "a", 2), watched(1, "b", 3)]), &[]);
        check(&with(&[from(1, 1), watched(1, "b", 3)]), &["watch 1 from 1 to 3 did not tell of a at 2"]);
        check(&with(&[from(1, 1), watched(1, "b", 3), watched(1, "a", 2)]), &["watch 1: a at 2 after 3"]);
        check(&with(&[from(1, 1), watched(1, "a", 2), watched(1, "a", 2)]), &["watch 1: a at 2 after 2"]);
        let gone = Record::Deleted { name: "b".to_owned(), started: 40, ended: 41 };
        check(&with(&[gone.clone(), read("b", None, 50), list(4, &[("a", 2)], 50)]), &[]);
        check(&with(&[gone, read("b", Some(3), 50)]), &["b: read after its deletion was acknowledged"]);
    }
}
