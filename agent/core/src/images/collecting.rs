//! When images are collected, and which Events report it, by kubelet's rule.
//!
//! Always holds: one collection is under way at a time; the first starts as soon as the images that pods need
//! are known, and records ages; no image is examined if the thresholds remove none. A lasting failure is
//! reported twice (`FreeDiskSpaceFailed` or a line of the log, then `ImageGCFailed`), and again after a
//! success. Leaves to others: which images to remove (`collect`), and the removal.

use super::collect::used_percent;
use crate::answer::Level;
use crate::config::running::Notice;
use crate::images::thresholds::{Collected, Thresholds};
use std::time::Duration;

/// Between two collections: kubelet's `ImageGCPeriod`.
const PERIOD: Duration = Duration::from_secs(300);
/// Names of removed images in one line of the log.
const MOST_NAMES: usize = 20;

#[derive(Clone, Debug)]
pub(crate) struct Collecting {
    /// `None` if images are never removed.
    thresholds: Option<Thresholds>,
    /// When the next is due; `None` while one is under way.
    wake: Option<Duration>,
    /// Consecutive failures.
    failures: u32,
}

impl Collecting {
    pub(crate) fn new(thresholds: Thresholds) -> Self {
        let removes = thresholds.high_percent < 100 || thresholds.maximum_age.is_some();
        Self { thresholds: removes.then_some(thresholds), wake: Some(Duration::ZERO), failures: 0 }
    }

    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.wake.filter(|_| self.thresholds.is_some())
    }

    /// The thresholds, if a collection is due now.
    pub(crate) fn begin(&mut self, now: Duration) -> Option<Thresholds> {
        self.next_deadline().filter(|due| *due <= now)?;
        self.wake = None;
        self.thresholds
    }

    /// Starts one now, whether or not it is due; false if another one is under way.
    pub(crate) fn begin_at_once(&mut self) -> bool {
        self.wake.take().is_some()
    }

    /// The collection has ended: returns the reports.
    pub(crate) fn ended(&mut self, now: Duration, result: &Result<Collected, String>) -> Report {
        self.wake = Some(now.saturating_add(PERIOD));
        let mut report = Report::default();
        report.lines.extend(result.as_ref().ok().and_then(removed).map(|line| (Level::Info, line)));
        let Some((reason, message)) = failure(result) else {
            self.failures = 0;
            return report;
        };
        self.failures = self.failures.saturating_add(1);
        let notice = |reason, message| Some(Notice { warning: true, reason, message });
        match (self.failures, reason) {
            (1, Some(reason)) => report.notice = notice(reason, message),
            (1, None) => {
                let line = format!("image garbage collection failed: {message}; trying again");
                report.lines.push((Level::Warn, line));
            }
            (2, _) => report.notice = notice("ImageGCFailed", message),
            _ => {}
        }
        report
    }
}

/// The reports of a collection to people.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) lines: Vec<(Level, String)>,
    pub(crate) notice: Option<Notice>,
}

fn removed(collected: &Collected) -> Option<String> {
    let Collected { images, freed_bytes, .. } = collected;
    let names: Vec<&str> = images.iter().take(MOST_NAMES).map(String::as_str).collect();
    let count = images.len();
    (count > 0).then(|| {
        format!("removed {count} images that no pod needs, {freed_bytes} bytes: {}", names.join(", "))
    })
}

/// Why a collection failed, with upstream's reason if it has one of its own.
fn failure(result: &Result<Collected, String>) -> Option<(Option<&'static str>, String)> {
    let collected = match result {
        Ok(collected) => collected,
        Err(why) => return Some((None, why.clone())),
    };
    if let Some(first) = collected.problems.first() {
        return Some((None, format!("{first} ({} problems)", collected.problems.len())));
    }
    (collected.freed_bytes < collected.wanted_bytes).then(|| {
        // upstream's text
        let message = format!(
            "Insufficient free disk space on the node's image filesystem ({}% of {} used). Failed to free sufficient space by \
             deleting unused images (freed {} bytes). Investigate disk usage, as it could be used by active images, logs, volumes, \
             or other data.",
            used_percent(&collected.disk),
            size(collected.disk.capacity_bytes),
            collected.freed_bytes
        );
        (Some("FreeDiskSpaceFailed"), message)
    })
}

/// In upstream's form.
fn size(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, shift)| bytes >> shift > 0);
    unit.map_or_else(
        || format!("{bytes} B"),
        |(unit, shift)| {
            let tenths = (u128::from(bytes) * 10) >> shift;
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::room::Disk;

    fn collected(wanted_bytes: u64, freed_bytes: u64) -> Result<Collected, String> {
        let disk = Disk { capacity_bytes: 10 << 30, available_bytes: 1 << 30, inodes: 0, inodes_free: 0 };
        Ok(Collected { disk, wanted_bytes, freed_bytes, images: vec![], problems: vec![] })
    }

    const RULE: Thresholds =
        Thresholds { minimum_age: Duration::ZERO, maximum_age: None, high_percent: 85, low_percent: 80 };

    #[test]
    fn collection_is_due_at_once_and_five_minutes_after_its_end() {
        let mut collecting = Collecting::new(RULE);
        assert_eq!(collecting.begin(Duration::from_secs(7)), Some(RULE));
        assert_eq!(
            (collecting.begin(Duration::MAX), collecting.next_deadline()),
            (None, None),
            "one at a time"
        );
        collecting.ended(Duration::from_secs(1000), &collected(0, 0));
        assert_eq!(collecting.next_deadline(), Some(Duration::from_secs(1300)));
        let off = Thresholds { high_percent: 100, ..RULE };
        assert_eq!(Collecting::new(off).next_deadline(), None);
        assert!(Collecting::new(Thresholds { maximum_age: Some(PERIOD), ..off }).next_deadline().is_some());
    }

    #[test]
    fn failure_that_goes_on_is_reported_twice() {
        let failed = Err("the disk failed".to_owned());
        let short = collected(100, 10);
        let mut collecting = Collecting::new(RULE);
        let mut said = |result: &Result<Collected, String>| {
            let report = collecting.ended(Duration::from_secs(1), result);
            (report.notice.map(|notice| notice.reason), report.lines.len())
        };
        assert_eq!(said(&failed), (None, 1), "a line of the log");
        assert_eq!(said(&failed), (Some("ImageGCFailed"), 0));
        assert_eq!(said(&failed), (None, 0));
        assert_eq!(said(&collected(100, 100)), (None, 0));
        assert_eq!(said(&short), (Some("FreeDiskSpaceFailed"), 0));
        assert_eq!(said(&short), (Some("ImageGCFailed"), 0));
        assert_eq!(said(&short), (None, 0));
    }

    #[test]
    fn full_disk_is_reported_in_upstreams_words() {
        let (_, message) = failure(&collected(100, 10)).unwrap();
        assert!(
            message.contains("(90% of 10.0 GiB used)") && message.contains("(freed 10 bytes)"),
            "{message}"
        );
        assert_eq!([size(5), size(1536), size(3 << 40)], ["5 B", "1.5 KiB", "3.0 TiB"]);
    }
}
