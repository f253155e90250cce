//! The hub's state: all objects, their watchers, and the order of their changes.
//!
//! Owns: the index of all objects and their watchers ([`Index`]), and the order of durable writes
//! ([`Order`]): preconditions, revisions and their reservation, the content of the next commit. It also owns
//! Leases, which have a separate count of revisions and renewals that are not written one by one
//! ([`Leases`]). The latest change that concerns each node ([`Desired`]) and the fleet in numbers
//! ([`fleet::Fleet`]) are part of it, too. Always holds: a durable change becomes visible after its commit, a
//! renewal at once; revisions rise, also after a crash. Leaves to others: the durable store itself, its
//! thread, locks and channels. A program with one thread may own all parts: stage a batch of writes, make its
//! commit durable however it likes, then publish and settle what [`Order::committed`] returns.

mod condition;
mod desired;
pub mod fleet;
mod index;
mod leases;
mod order;
mod relations;
mod requires;
mod rights;
mod room;

pub use condition::{Condition, Failing, Refusal, SMALL_BYTES, Sort};
pub use desired::Desired;
pub use index::{Changed, Index, Page, Query, Seen, Sink, Start, TooOld, WatchId, WatchRefused};
pub use leases::{Heard, Leases, Renewed, UNRESERVED};
pub use order::{
    Batch, Change, Commit, Expect, FLUSH, MAX_OBJECT_BYTES, Marks, Order, RAISE, RESERVE, Record, Restored,
    Spaces, Write, WriteError, restore,
};
pub use relations::Usage;
pub use requires::{Quota, Require};
pub use rights::{Grant, KINDS_OF_RIGHTS, Rights, Rule, not_covered, quoted};
pub use room::{Effect, may_free_room};

/// Both parts for readers on one thread.
#[derive(Debug)]
pub struct Everything<'a, S> {
    pub index: &'a Index<S>,
    pub leases: &'a Leases<S>,
}

impl<'a, S: Sink> Everything<'a, S> {
    /// The part that has the objects of this kind.
    pub fn of(&self, kind: &crate::kinds::Kind) -> &'a Index<S> {
        if kind.is_renewed() { self.leases.index() } else { self.index }
    }
}

/// One thread that owns all parts, with a disk that may refuse a commit or lose power.
#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use kedge_rig::Random;
    use serde_json::json;

    use super::*;
    use crate::kinds::{CONFIG_MAP, KINDS, Kind, LEASE};
    use crate::object::{Event, Object};

    struct NoSink;

    impl Sink for NoSink {
        fn queue(&self, _: &Arc<Event>, _: Seen) -> bool {
            true
        }
    }

    #[derive(Default)]
    struct Disk {
        objects: BTreeMap<(String, String), (u64, Vec<u8>)>,
        marks: Spaces<Marks>,
    }

    impl Disk {
        fn commit(&mut self, commit: &Commit) {
            let names: Vec<String> = KINDS.iter().map(|kind| kind.resource_name()).collect();
            for change in commit.changes(&names) {
                match change {
                    Change::Put { resource, name, revision, json, .. } => {
                        self.objects
                            .insert((resource.to_owned(), name.to_owned()), (revision, json.to_vec()));
                    }
                    Change::Delete { resource, name, .. } => {
                        self.objects.remove(&(resource.to_owned(), name.to_owned()));
                    }
                }
            }
            self.reserve(commit.reserve);
        }

        fn reserve(&mut self, reserve: Option<Spaces<u64>>) {
            if let Some(Spaces { common, leases }) = reserve {
                self.marks.common.reserved = common;
                self.marks.leases.reserved = leases;
            }
        }

        /// A start, on a disk that accepts the reservation or does not.
        fn start(&mut self, milliseconds: u64, is_full: bool) -> Running {
            let record =
                |((resource, name), (revision, json)): (&(String, String), &(u64, Vec<u8>))| Record {
                    resource: resource.clone(),
                    namespace: String::new(),
                    name: name.clone(),
                    revision: *revision,
                    json: json.clone(),
                };
            let restored = restore(self.marks, self.objects.iter().map(record).collect()).unwrap();
            let Restored { index, mut leases, mut order, reserve, .. } = restored;
            if is_full {
                order.not_reserved();
                leases.not_reserved(milliseconds, 7);
            } else {
                self.reserve(Some(reserve));
            }
            Running { index, leases, order, acknowledged: BTreeMap::new() }
        }
    }

    struct Running {
        index: Index<NoSink>,
        leases: Leases<NoSink>,
        order: Order,
        /// The state after the last answered durable change, by kind and name: whether the object exists.
        acknowledged: BTreeMap<(String, String), bool>,
    }

    impl Running {
        fn get(&self, kind: &Kind, name: &str) -> Option<Arc<Object>> {
            Everything { index: &self.index, leases: &self.leases }.of(kind).get(kind, "", name)
        }

        fn write(&self, random: &mut Random) -> Write {
            let kind = [&CONFIG_MAP, &LEASE, &LEASE][random.index(3)];
            let name = ["a", "b", "c"][random.index(3)];
            // now and then a wrong expectation
            let expect = match self.get(kind, name) {
                Some(found) if random.index(8) > 0 => Expect::Revision(found.revision),
                _ => Expect::Absent,
            };
            let new = (random.index(5) > 0).then(|| json!({"metadata": {"name": name}}));
            let volatile =
                kind.is_renewed() && new.is_some() && expect != Expect::Absent && random.index(2) == 0;
            let requires = Vec::new();
            Write {
                kind,
                namespace: String::new(),
                name: name.to_owned(),
                expect,
                requires,
                new,
                volatile,
                author: None,
            }
        }

        fn stage(&mut self, batch: &mut Batch, random: &mut Random) {
            let write = self.write(random);
            // a write that does not apply leaves the batch unchanged
            let _ = match write.kind.is_renewed() {
                true => self.leases.stage(&self.index, batch, write),
                false => self.order.stage(&self.index, batch, write),
            };
        }

        /// Returns the revisions that readers see.
        fn publish(&mut self, commit: Commit) -> Vec<(bool, u64)> {
            let mut visible = Vec::new();
            for changed in self.order.committed(&mut self.leases, commit) {
                let (is_lease, is_there) = (changed.kind.is_renewed(), changed.event.new.is_some());
                let place = (changed.kind.resource_name(), changed.event.object().name.to_string());
                let revision = if is_lease {
                    self.leases.settle(changed).ok().map(|object| object.revision)
                } else {
                    let revision = changed.event.revision;
                    self.index.publish(vec![changed]);
                    Some(revision)
                };
                visible.extend(revision.map(|revision| (is_lease, revision)));
                // an overtaken change is not answered before its row is replaced: until then it may have been
                // made, or not
                match revision {
                    Some(_) => drop(self.acknowledged.insert(place, is_there)),
                    None => drop(self.acknowledged.remove(&place)),
                }
            }
            visible
        }

        fn renew(&mut self, random: &mut Random) -> Option<(bool, u64)> {
            let write = self.write(random);
            let renewed = if write.volatile { self.leases.renew(write).ok() } else { None };
            renewed.map(|object| (true, object.revision))
        }

        fn revisions(&self) -> [u64; 2] {
            [self.index.revision(), self.leases.index().revision()]
        }

        fn has(&self, place: &(String, String)) -> bool {
            let kind = KINDS.iter().find(|kind| kind.resource_name() == place.0).unwrap();
            self.get(kind, &place.1).is_some()
        }
    }

    /// Whatever the disk refuses, whenever power fails, and however many renewals come during a commit: no
    /// revision is used twice, and changes that were acknowledged as durable stay.
    #[test]
    fn revisions_rise_and_commits_stay_over_power_cuts() {
        let (mut overtaken, mut unreserved) = (0, 0);
        for seed in 1..100 {
            let mut random = Random::new(seed);
            let mut disk = Disk::default();
            let mut hub = disk.start(0, false);
            let (mut used, mut highest, mut milliseconds) = (BTreeSet::new(), [0; 2], 1_700_000_000_000);
            for _ in 0..200 {
                let (mut batch, mut visible) = (Batch::default(), Vec::new());
                for _ in 0..random.index(4) {
                    match hub.renew(&mut random) {
                        Some(renewed) => visible.push(renewed),
                        None => hub.stage(&mut batch, &mut random),
                    }
                }
                if random.index(4) == 0 {
                    hub.leases.flush();
                }
                if let Some(commit) = hub.order.commit(&hub.leases, batch, 2)
                    && random.index(5) > 0
                {
                    disk.commit(&commit);
                    let staged = commit.staged();
                    // renewals do not wait for the commit
                    visible.extend((0..random.index(4)).filter_map(|_| hub.renew(&mut random)));
                    let published = hub.publish(commit);
                    overtaken += staged - published.len();
                    visible.extend(published);
                }
                for revision in visible {
                    assert!(used.insert(revision), "seed {seed}: {revision:?} was used twice");
                }
                let now = hub.revisions();
                assert!(now.iter().zip(highest).all(|(now, highest)| *now >= highest), "seed {seed}");
                highest = now;
                for (place, is_there) in &hub.acknowledged {
                    assert_eq!(hub.has(place), *is_there, "seed {seed}: {place:?}");
                    assert_eq!(disk.objects.contains_key(place), *is_there, "seed {seed}: {place:?}");
                }
                if random.index(20) == 0 {
                    // an orderly stop: every renewal is flushed
                    hub.leases.flush();
                    while hub.leases.is_flushing() {
                        let commit = hub.order.commit(&hub.leases, Batch::default(), 2).unwrap();
                        disk.commit(&commit);
                        assert!(hub.publish(commit).is_empty());
                    }
                    for name in ["a", "b", "c"] {
                        let stored = disk.objects.get(&(LEASE.resource_name(), name.to_owned()));
                        let stored = stored.map(|(revision, _)| *revision);
                        assert_eq!(
                            stored,
                            hub.get(&LEASE, name).map(|object| object.revision),
                            "seed {seed}"
                        );
                    }
                }
                if random.index(20) == 0 {
                    milliseconds += 1;
                    // the power fails, and the disk accepts no reservation at the next start
                    let is_full = random.index(4) == 0;
                    unreserved += usize::from(is_full);
                    hub = Running { acknowledged: hub.acknowledged, ..disk.start(milliseconds, is_full) };
                    let [common, leases] = hub.revisions();
                    assert!(common >= highest[0], "seed {seed}");
                    assert!(leases > highest[1] || highest[1] >= UNRESERVED, "seed {seed}");
                    highest = [common, leases];
                }
            }
        }
        assert!(overtaken > 100 && unreserved > 100, "{overtaken} {unreserved} prove little");
    }
}
