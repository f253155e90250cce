//! The hub's state: all objects, their watchers, and the order of their changes.
//!
//! Owns: the index of all objects and their watchers ([`Index`]), and the order of writes ([`Order`]): preconditions (on the object
//! itself, [`Expect`], and on others, [`Require`]), revisions and their reservation, what belongs into the next durable commit, renewals that are only in memory.
//! Always holds: a durable change becomes visible after the commit that holds it; a renewal at once; revisions rise, also over a crash.
//! Leaves to others: the durable store itself, its thread, locks and channels. A program with one thread may own both parts:
//! stage a batch of writes, make its commit durable however it likes, then publish what [`Order::committed`] returns.

mod condition;
mod index;
mod order;
mod relations;
mod requires;

pub use condition::{Condition, Failing, Refusal, Sort, frees_room};
pub use index::{Changed, Index, MAX_WATCHES, Page, Query, Sink, Start, TooOld, WatchId, WatchRefused};
pub use order::{
    Batch, Change, Commit, Expect, FLUSH, MAX_OBJECT_BYTES, Marks, Order, RESERVE, Record, Restored, Write,
    WriteError, restore,
};
pub use relations::Usage;
pub use requires::{Quota, Require};

/// One thread that owns both parts, with a disk that may refuse a commit or lose power.
#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use kedge_rig::Random;
    use serde_json::json;

    use super::*;
    use crate::kinds::LEASE;
    use crate::object::Event;

    struct NoSink;

    impl Sink for NoSink {
        fn take(&self, _: &Arc<Event>) -> bool {
            true
        }
    }

    #[derive(Default)]
    struct Disk {
        objects: BTreeMap<String, (u64, Vec<u8>)>,
        marks: Marks,
    }

    impl Disk {
        fn commit(&mut self, commit: &Commit) {
            let names: Vec<String> = crate::kinds::KINDS.iter().map(|kind| kind.resource_name()).collect();
            for change in commit.changes(&names) {
                match change {
                    Change::Put { name, revision, json, .. } => {
                        self.objects.insert(name.to_owned(), (revision, json.to_vec()));
                    }
                    Change::Delete { name, .. } => drop(self.objects.remove(name)),
                }
            }
            self.marks.reserved = commit.reserve.unwrap_or(self.marks.reserved);
        }

        fn start(&mut self) -> (Index<NoSink>, Order) {
            let record = |(name, (revision, json)): (&String, &(u64, Vec<u8>))| Record {
                resource: LEASE.resource_name(),
                namespace: String::new(),
                name: name.clone(),
                revision: *revision,
                json: json.clone(),
            };
            let restored = restore(self.marks, self.objects.iter().map(record).collect()).unwrap();
            self.marks.reserved = restored.reserve;
            (restored.index, restored.order)
        }
    }

    fn write(random: &mut Random, index: &Index<NoSink>) -> Write {
        let name = ["a", "b", "c"][random.index(3)];
        let found = index.get(&LEASE, "", name);
        // now and then an expectation that does not hold
        let expect = match found {
            Some(found) if random.index(8) > 0 => Expect::Revision(found.revision),
            _ => Expect::Absent,
        };
        let new = (random.index(5) > 0).then(|| json!({"metadata": {"name": name}}));
        let volatile = new.is_some() && expect != Expect::Absent && random.index(2) == 0;
        Write {
            kind: &LEASE,
            namespace: String::new(),
            name: name.to_owned(),
            expect,
            requires: Vec::new(),
            new,
            volatile,
        }
    }

    /// Whatever the disk refuses and whenever power fails: no revision is used twice, and what a commit made durable stays.
    #[test]
    fn revisions_rise_and_commits_stay_over_power_cuts() {
        for seed in 1..200 {
            let mut random = Random::new(seed);
            let mut disk = Disk::default();
            let (mut index, mut order) = disk.start();
            let mut highest = 0;
            for _ in 0..200 {
                let mut batch = Batch::default();
                for _ in 0..random.index(4) {
                    let write = write(&mut random, &index);
                    let revision = if write.volatile {
                        order.renew(&index, write).map(|changed| {
                            let revision = changed.event.revision;
                            index.publish(vec![changed]);
                            revision
                        })
                    } else {
                        order.stage(&index, &mut batch, write).map(|object| object.revision)
                    };
                    let Ok(revision) = revision else { continue };
                    assert!(revision > highest, "seed {seed}: {revision} after {highest}");
                    highest = revision;
                }
                if let Some(commit) = order.commit(&index, batch, random.index(4) == 0)
                    && random.index(5) > 0
                {
                    disk.commit(&commit);
                    index.publish(order.committed(commit));
                }
                if random.index(20) == 0 {
                    (index, order) = disk.start();
                }
                for (name, (revision, _)) in &disk.objects {
                    let found = index.get(&LEASE, "", name).map(|found| found.revision);
                    assert!(found >= Some(*revision), "seed {seed}: {name} {found:?}");
                }
                assert_eq!(index.count(&LEASE), disk.objects.len(), "seed {seed}");
            }
        }
    }
}
