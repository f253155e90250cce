//! Checks of every request and action of an agent, in every world: in the rows, the simulation and the fuzz
//! target of a node.
//!
//! Owns the checks of a single action or moment. Always holds: a broken promise is a panic that names it.
//! Leaves checks over time to the simulation (`tests/simulation/invariants.rs`).

use crate::disk::Disk;
use kedge_core::config::records::{
    BadConfigs, ConfigRecord, Current, Read, Recorded, Startups, StateFile, read_last_known_good,
};
use kedge_core::system::records::{BadSystems, WantedRecord};
use kedge_core::{Core, Digest, Now, Request, RequestKey};
use serde_json::Value;
use std::collections::BTreeMap;

/// Longest text of a condition, whatever a server or a file put into it.
const CONDITION_BYTES: usize = 4096;
/// Longest line for the log; a report of a bad config has twenty problems.
pub(crate) const LOG_BYTES: usize = 16 * 1024;
/// Largest body of a request: a status has a dozen conditions and three configurations.
const BODY_BYTES: usize = 24 * 1024;
/// Most requests of one kind between two moments: more would be a loop that only the network slows down.
const REQUESTS_AT_ONCE: u32 = 8;

/// Core can read every record that it writes, and a record names no missing configuration.
pub(crate) fn check_write(disk: &Disk, version: &str, file: &StateFile, bytes: &[u8]) {
    let read = Read::Content(bytes.to_vec());
    let known = match file {
        StateFile::Current => Current::read(&read).known().is_some(),
        StateFile::LastKnownGood => read_last_known_good(&read).known().is_some(),
        StateFile::BadConfigs => BadConfigs::read(&read).known().is_some(),
        StateFile::Startups => Startups::read(&read).known().is_some(),
        StateFile::SystemWanted => WantedRecord::read(bytes).is_ok(),
        StateFile::SystemBad => BadSystems::read(bytes).is_ok(),
        StateFile::Checkpoint(_) => serde_json::from_slice::<Value>(bytes).is_ok(),
    };
    assert!(known, "{file:?} is written as {}", bytes.escape_ascii());
    if !disk.is_touched() {
        check_named(disk, version, file, &read);
    }
}

/// A record may name a further configuration only if its complete checkpoint exists.
fn check_named(disk: &Disk, version: &str, file: &StateFile, read: &Read) {
    let before = disk.content(&file.path(version)).map_or(Read::Absent, Read::Content);
    let mut before = named_by(file, &before);
    if *file == StateFile::LastKnownGood {
        // its previous configuration was its main one before, perhaps in an older form
        let named: Vec<_> = before.iter().map(|config| config.checkpoint.clone()).collect();
        let previous = named_by(file, read).into_iter().skip(1);
        before.extend(previous.filter(|previous| named.contains(&previous.checkpoint)));
    }
    for config in named_by(file, read).into_iter().filter(|config| !before.contains(config)) {
        check_checkpoint(disk, version, file, config);
    }
}

fn check_checkpoint(disk: &Disk, version: &str, file: &StateFile, config: ConfigRecord) {
    let path = StateFile::Checkpoint(config.checkpoint.clone()).path(version);
    let there = disk.content(&path).unwrap_or_else(|| panic!("{file:?} names {path}, nothing is there"));
    let object: Value = serde_json::from_slice(&there).unwrap_or_default();
    let mut texts = object["data"].as_object().into_iter().flatten().filter_map(|(_, text)| text.as_str());
    let is_whole = match config.digest {
        Recorded::Payload(digest) => texts.any(|text| Digest::of(text.as_bytes()) == digest),
        Recorded::Whole(digest) => Digest::of(&there) == digest,
    };
    assert!(is_whole, "{file:?} names {path}, which has another payload");
}

/// The configurations that a record names, last-known-good before its previous one.
fn named_by(file: &StateFile, read: &Read) -> Vec<ConfigRecord> {
    match file {
        StateFile::Current => {
            let assigned = Current::read(read).known().and_then(|current| current.assigned.clone());
            assigned.map(|assigned| assigned.config).into_iter().collect()
        }
        StateFile::LastKnownGood => {
            let good = read_last_known_good(read).known().cloned().unwrap_or_default();
            good.config.into_iter().chain(good.previous).collect()
        }
        _ => Vec::new(),
    }
}

/// Existing checkpoints that a record on disk names: a sweep must keep them.
pub(crate) fn named_checkpoints(disk: &Disk, version: &str) -> Vec<String> {
    let configs = [StateFile::Current, StateFile::LastKnownGood].map(|file| {
        let read = disk.content(&file.path(version)).map_or(Read::Absent, Read::Content);
        named_by(&file, &read)
    });
    let names = configs.into_iter().flatten().map(|config| config.checkpoint);
    let paths = names.map(|name| StateFile::Checkpoint(name).path(version));
    paths.filter(|path| disk.content(path).is_some()).collect()
}

/// Requests and renewals since time last passed, by their kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked(BTreeMap<Option<RequestKey>, u32>);

impl Asked {
    /// `None` counts a renewal.
    pub(crate) fn count(&mut self, kind: Option<RequestKey>) {
        let asked = self.0.entry(kind).or_default();
        *asked += 1;
        assert!(*asked <= REQUESTS_AT_ONCE, "{kind:?}: {asked} times at one moment");
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

pub(crate) fn check_request(request: &Request) {
    let bytes = format!("{request:?}").len();
    assert!(bytes <= BODY_BYTES, "{:?} of {bytes} bytes", request.key());
}

/// The agent reports from the moment a configuration is in use, in texts that an API server accepts.
pub(crate) fn check_report(core: &Core, now: Now, is_used: bool, has_step: bool) {
    let report = core.report(now);
    assert_eq!(report.is_some(), is_used, "in use, and not reported");
    let Some(report) = report else {
        assert!(has_step, "a start that waits for nothing");
        return;
    };
    let condition = &report.config.condition;
    assert!(matches!(condition.status, "True" | "False" | "Unknown"));
    for text in [&condition.message, &condition.reason] {
        assert!(!text.is_empty() && text.len() <= CONDITION_BYTES, "{} bytes: {text}", text.len());
    }
    assert!(report.config.status.error.len() <= CONDITION_BYTES, "{}", report.config.status.error);
    serde_json::to_string(&report).expect("a report is JSON");
}
