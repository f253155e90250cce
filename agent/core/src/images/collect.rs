//! Garbage collection of images: kubelet's rule by age and by how full the disk is.
//!
//! Always holds: an image that a pod needs or a container mounts is never chosen, nor one younger than
//! `imageMinimumGCAge`, nor any image while a record is unreadable. Of the rest, first the images unused
//! beyond `imageMaximumGCAge`; then, once the disk is as full as `imageGCHighThresholdPercent`, the least
//! recently used until it is at `imageGCLowThresholdPercent`.
//!
//! Ages are running time of this agent, as upstream's: an image seen at a start is as young as the start. The
//! freed bytes of a removal are those of the layers that no other image keeps.

use crate::images::thresholds::Thresholds;
use crate::sorted::{SortedMap, SortedSet};
use std::time::Duration;

use super::digest::BlobDigest;
use super::record::{Record, Records};
use super::room::Disk;

/// Since when each image is known, and when it was last needed.
#[derive(Clone, Debug, Default)]
pub struct Ages(SortedMap<BlobDigest, Age>);

#[derive(Clone, Copy, Debug)]
struct Age {
    first_seen: Duration,
    last_needed: Duration,
}

impl Ages {
    /// Records the present images, and which of them are needed. Forgets those that are gone.
    pub fn note(&mut self, records: &Records, needed: &SortedSet<BlobDigest>, now: Duration) {
        self.0.retain(|id, _| records.get(id).is_some());
        for record in records.iter() {
            // an image that was never needed counts from when it came: with upstream's zero it would be
            // removed before all others
            let age = self.0.entry(record.id).or_insert(Age { first_seen: now, last_needed: now });
            if needed.contains(&record.id) {
                age.last_needed = now;
            }
        }
    }
}

/// The images to remove, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub remove: Vec<BlobDigest>,
    /// Bytes that this frees.
    pub freed_bytes: u64,
    /// Bytes that should be freed; more than `freed_bytes` means `FreeDiskSpaceFailed`.
    pub wanted_bytes: u64,
}

/// Chooses images to remove. `sizes` are the bytes of each layer on disk.
#[must_use]
pub fn choose(
    records: &Records,
    ages: &Ages,
    needed: &SortedSet<BlobDigest>,
    sizes: &SortedMap<BlobDigest, u64>,
    (disk, thresholds): (&Disk, &Thresholds),
    now: Duration,
) -> Plan {
    let mut plan = Plan { wanted_bytes: wanted(disk, thresholds), ..Plan::default() };
    if records.layers().is_none() {
        return plan;
    }
    let mut users = users_of_layers(records);
    let mut unused: Vec<(Age, BlobDigest)> = records
        .iter()
        .filter(|record| !needed.contains(&record.id))
        .filter_map(|record| Some((*ages.0.get(&record.id)?, record.id)))
        .filter(|(age, _)| now.saturating_sub(age.first_seen) >= thresholds.minimum_age)
        .collect();
    kedge_api::sort::sort_by_key(&mut unused, |(age, id)| (age.last_needed, age.first_seen, *id));
    for (age, id) in unused {
        // an image that this collection is the first to see has no age, and may go if no minimum age is set
        let is_old =
            thresholds.maximum_age.is_some_and(|oldest| now.saturating_sub(age.last_needed) >= oldest);
        if !is_old && plan.freed_bytes >= plan.wanted_bytes {
            continue;
        }
        plan.remove.push(id);
        plan.freed_bytes = plan.freed_bytes.saturating_add(release(records, &id, &mut users, sizes));
    }
    plan
}

/// All images that nobody needs, whatever their age: `kedge images prune`.
#[must_use]
pub fn unused(records: &Records, needed: &SortedSet<BlobDigest>) -> Vec<BlobDigest> {
    if records.layers().is_none() {
        return Vec::new();
    }
    records.iter().map(|record| record.id).filter(|id| !needed.contains(id)).collect()
}

/// How full the disk is, as kubelet rounds it.
pub(super) fn used_percent(disk: &Disk) -> u128 {
    let (capacity, available) = (u128::from(disk.capacity_bytes), u128::from(disk.available_bytes));
    100_u128.saturating_sub(available.saturating_mul(100).checked_div(capacity).unwrap_or(100))
}

/// How many bytes should be freed, by kubelet's rule.
fn wanted(disk: &Disk, thresholds: &Thresholds) -> u64 {
    let (capacity, available) = (u128::from(disk.capacity_bytes), u128::from(disk.available_bytes));
    let is_full = used_percent(disk) >= u128::from(thresholds.high_percent);
    if capacity == 0 || thresholds.high_percent >= 100 || !is_full {
        return 0;
    }
    let target = capacity.saturating_mul(100_u128.saturating_sub(thresholds.low_percent.into())) / 100;
    u64::try_from(target.saturating_sub(available)).unwrap_or(u64::MAX)
}

fn users_of_layers(records: &Records) -> SortedMap<BlobDigest, usize> {
    let mut users: SortedMap<BlobDigest, usize> = SortedMap::new();
    for directory in records.iter().flat_map(Record::all_directories) {
        let count = users.entry(directory).or_default();
        *count = count.saturating_add(1);
    }
    users
}

/// Subtracts an image's use from its layers; returns the bytes of those that lost their last use.
fn release(
    records: &Records,
    id: &BlobDigest,
    users: &mut SortedMap<BlobDigest, usize>,
    sizes: &SortedMap<BlobDigest, u64>,
) -> u64 {
    let directories = records.get(id).map(Record::all_directories).unwrap_or_default();
    let mut freed = 0_u64;
    for directory in directories {
        let Some(count) = users.get_mut(&directory) else { continue };
        *count = count.saturating_sub(1);
        if *count == 0 {
            freed = freed.saturating_add(sizes.get(&directory).copied().unwrap_or(0));
        }
    }
    freed
}

#[cfg(test)]
mod tests {
    use super::super::record::Unreadable;
    use super::super::record::tests::{record, records};
    use super::*;

    const DISK: Disk = Disk { capacity_bytes: 1000, available_bytes: 100, inodes: 0, inodes_free: 0 };
    const RULE: Thresholds = Thresholds {
        minimum_age: Duration::from_secs(120),
        maximum_age: None,
        high_percent: 85,
        low_percent: 80,
    };

    fn id(n: u8) -> BlobDigest {
        BlobDigest::of(&[n])
    }

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    /// Images 1, 2 and 3 with 60 bytes each of their own on 200 that they share; needed last at 10, 20 and 30
    /// s.
    fn three() -> (Records, Ages, SortedMap<BlobDigest, u64>) {
        let all = records(&[
            record(1, &["r.lan/a:1"], &[100, 11], 1),
            record(2, &["r.lan/a:2"], &[100, 12], 2),
            record(3, &["r.lan/a:3"], &[100, 13], 3),
        ]);
        let mut ages = Ages::default();
        ages.note(&all, &SortedSet::new(), secs(0));
        for n in 1..=3 {
            ages.note(&all, &SortedSet::from([id(n)]), secs(u64::from(n) * 10));
        }
        let sizes = SortedMap::from([(id(100), 200), (id(11), 60), (id(12), 60), (id(13), 60)]);
        (all, ages, sizes)
    }

    #[track_caller]
    fn check(disk: Disk, rule: Thresholds, needed: &[u8], now: u64, expect: (&[u8], u64, u64)) {
        let (all, ages, sizes) = three();
        let needed = needed.iter().map(|n| id(*n)).collect();
        let found = choose(&all, &ages, &needed, &sizes, (&disk, &rule), secs(now));
        let remove = expect.0.iter().map(|n| id(*n)).collect();
        assert_eq!(found, Plan { remove, freed_bytes: expect.1, wanted_bytes: expect.2 });
    }

    #[test]
    fn least_recently_used_goes_until_the_low_threshold() {
        check(DISK, RULE, &[], 1000, (&[1, 2], 120, 100));
        check(DISK, RULE, &[1], 1000, (&[2, 3], 120, 100));
        check(DISK, RULE, &[1, 2, 3], 1000, (&[], 0, 100));
        let emptier = Disk { available_bytes: 151, ..DISK };
        check(emptier, RULE, &[], 1000, (&[1], 60, 49));
        check(Disk { available_bytes: 160, ..DISK }, RULE, &[], 1000, (&[], 0, 0));
        let full = Disk { available_bytes: 0, ..DISK };
        check(full, RULE, &[], 1000, (&[1, 2, 3], 380, 200));
    }

    #[test]
    fn young_image_stays_however_full_the_disk_is() {
        check(DISK, RULE, &[], 119, (&[], 0, 100));
        check(DISK, RULE, &[], 120, (&[1, 2], 120, 100));
    }

    #[test]
    fn old_image_goes_however_empty_the_disk_is() {
        let empty = Disk { available_bytes: 900, ..DISK };
        let rule = Thresholds { maximum_age: Some(secs(500)), ..RULE };
        check(empty, rule, &[], 515, (&[1], 60, 0));
        check(empty, rule, &[1], 515, (&[], 0, 0));
        check(empty, Thresholds { high_percent: 100, ..rule }, &[], 525, (&[1, 2], 120, 0));
    }

    #[test]
    fn unused_image_that_came_just_now_goes_before_pods_do() {
        let (all, mut ages, sizes) = three();
        // pulled after the last collection, and its pod is gone
        let mut new = record(4, &["r.lan/b:1"], &[100, 14], 4);
        new.pulled_unix_secs = 30;
        let all = records(&[all.iter().cloned().collect::<Vec<_>>(), vec![new]].concat());
        let needed = SortedSet::from([id(2)]);
        ages.note(&all, &needed, secs(40));
        let empty = Disk { available_bytes: 900, ..DISK };
        let found = choose(&all, &ages, &needed, &sizes, (&empty, &Thresholds::ALL_UNUSED), secs(40));
        let gone: SortedSet<BlobDigest> = found.remove.into_iter().collect();
        assert_eq!(gone, [1, 3, 4].map(id).into());
    }

    #[test]
    fn nothing_goes_while_a_record_is_unreadable() {
        let (mut all, ages, sizes) = three();
        all.add("x.json", Err(Unreadable::now("garbage".to_owned())));
        let found = choose(&all, &ages, &SortedSet::new(), &sizes, (&DISK, &RULE), secs(1000));
        assert_eq!(found.remove, []);
        assert_eq!(unused(&all, &SortedSet::new()), []);
    }

    #[test]
    fn impossible_disks_free_nothing() {
        check(Disk { capacity_bytes: 0, ..DISK }, RULE, &[], 1000, (&[], 0, 0));
        check(Disk { available_bytes: u64::MAX, ..DISK }, RULE, &[], 1000, (&[], 0, 0));
    }
}
