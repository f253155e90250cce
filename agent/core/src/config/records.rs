//! The records on disk that outlive a process (docs/internals/disk.md, "State on disk"): the meaning of each
//! file, read and written as text.
//!
//! Always holds: absent, unknown and known are three different things. Absent has a meaning (see each
//! record); unknown has none and never means "nothing"; a record of a newer agent is unknown and left alone.
//! Writing is exact: a written record is read back equal. Leaves to others: when to write (`start`,
//! `running`) and how (`platform`).

use crate::config::digest::{ConfigId, Digest, Identity};
use crate::config::source::{Source, is_file_name};
use crate::sorted::SortedMap;
use kedge_api::{Timestamp, excerpt, read};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Version of the two records that every agent version shares. An agent that does not know the version leaves
/// the record and all checkpoints alone.
const API_VERSION: &str = "kedge.dev/v2";

/// Version of records that the first release reads, too: they name no checkpoint, or name it in its form.
const FIRST_API_VERSION: &str = "kedge.dev/v1";

/// `crashLoopThreshold` is at most 10, so an eleventh startup condemns, and a twelfth does not happen.
pub const STARTUPS: usize = 11;

/// Records in `startups.json`: of the assigned config, of last-known-good, of the one before it, and of
/// local.
pub const COUNTED_CONFIGS: usize = 4;

/// UIDs in `bad-configs.json`: the file must stay small enough to write on a nearly full disk.
pub const BAD_UIDS: usize = 32;
/// Contents per UID there: a ConfigMap edited in place has as many verdicts as edits.
pub const BAD_CONTENTS: usize = 8;

/// Largest checkpoint written, and so the largest file read: a whole ConfigMap of 1 MiB (Kubernetes' limit
/// for its data), in JSON with escapes.
pub const CHECKPOINT_BYTES: usize = 4 * 1024 * 1024;

/// Longest text kept in a record: a reason is for people, and the file has a size limit.
const REASON_BYTES: usize = 512;

/// Longest field and place of a verdict kept: there may be [`BAD_UIDS`] times [`BAD_CONTENTS`].
const DETAIL_BYTES: usize = 400;

/// A file of the configuration's state. Paths are relative to `--dynamic-config-dir`, or to `--root-dir`:
/// see [`StateFile::is_below_root`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StateFile {
    /// The assigned config.
    Current,
    /// The config to fall back to.
    LastKnownGood,
    /// Verdicts, per agent version.
    BadConfigs,
    /// Counts of the configs that may run, per agent version.
    Startups,
    /// A whole ConfigMap.
    Checkpoint(CheckpointName),
    /// The update of the system, below `--root-dir`.
    SystemWanted,
    /// The faults of systems on this machine, below `--root-dir`.
    SystemBad,
}

/// The name of a checkpoint: the UID of the object it was made of, and the digest of the payload in it. Both
/// are safe as file names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CheckpointName {
    uid: String,
    /// The payload's digest; in the older form a resourceVersion.
    file: String,
}

impl CheckpointName {
    /// None unless both parts match `[A-Za-z0-9-]{1,64}`.
    pub fn new(uid: &str, file: &str) -> Option<Self> {
        (is_file_name(uid) && is_file_name(file)).then(|| Self { uid: uid.into(), file: file.into() })
    }

    /// The checkpoint for an object with this UID and payload.
    pub fn of(uid: &str, payload: Digest) -> Option<Self> {
        Self::new(uid, &payload.to_string())
    }
}

impl StateFile {
    /// The file's path below `--dynamic-config-dir`; `version` is the agent's.
    pub fn path(&self, version: &str) -> String {
        match self {
            Self::Current => "current".into(),
            Self::LastKnownGood => "last-known-good".into(),
            Self::BadConfigs => format!("{version}/bad-configs.json"),
            Self::Startups => format!("{version}/startups.json"),
            Self::Checkpoint(name) => format!("checkpoints/{}/{}", name.uid, name.file),
            Self::SystemWanted => "system/wanted".into(),
            Self::SystemBad => "system/bad".into(),
        }
    }

    /// Whether its path is below `--root-dir`: it is not the configuration's.
    pub fn is_below_root(&self) -> bool {
        matches!(self, Self::SystemWanted | Self::SystemBad)
    }

    /// Whether the API server has its content: then it may not use the room that is reserved for the records.
    pub fn can_be_had_again(&self) -> bool {
        matches!(self, Self::Checkpoint(_))
    }
}

/// The outcome of reading a file, before its content is parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// The file does not exist, and nothing shows that it ever did.
    Absent,
    /// The file does not exist, but one was set aside under this name earlier: its content is unknown.
    SetAside,
    Content(Vec<u8>),
    /// It could not be read; the text says why.
    Unreadable(String),
}

/// A record after reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known<T> {
    /// Does not exist.
    Absent,
    Is(T),
    /// It is unreadable or invalid.
    Unknown {
        why: String,
        /// False for a newer agent's record, which is left alone.
        set_aside: bool,
    },
}

impl<T> Known<T> {
    /// The record, if it could be read.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Is(record) => Some(record),
            _ => None,
        }
    }

    /// Why it could not be read, if it could not.
    pub fn unknown(&self) -> Option<&str> {
        match self {
            Self::Unknown { why, .. } => Some(why),
            _ => None,
        }
    }
}

/// One concrete configuration: its origin, its content, and the file with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigRecord {
    /// The source that the Node requested.
    pub source: Source,
    /// UID of the ConfigMap.
    pub uid: String,
    /// Of the ConfigMap when it was assigned; a later version with the same payload is not recorded.
    pub resource_version: String,
    /// The file with its payload, perhaps of another object with the same payload.
    pub checkpoint: CheckpointName,
    pub digest: Recorded,
}

/// The digest in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// The payload.
    Payload(Digest),
    /// The whole checkpoint: the first release's form. Such a record and its checkpoint stay as they are
    /// until another config replaces them, so that an upgrade writes nothing and can be taken back.
    Whole(Digest),
}

impl ConfigRecord {
    /// Whether it is of the object with this UID and resourceVersion.
    pub(crate) fn is(&self, uid: &str, resource_version: &str) -> bool {
        self.uid == uid && self.resource_version == resource_version
    }

    /// The payload's digest; `None` in the older form, where only the checkpoint shows it.
    pub(crate) fn payload(&self) -> Option<Digest> {
        match self.digest {
            Recorded::Payload(digest) => Some(digest),
            Recorded::Whole(_) => None,
        }
    }

    /// Whether both have the same payload, as far as the records show.
    pub(crate) fn is_same_payload(&self, other: &Self) -> bool {
        match (self.payload(), other.payload()) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => self == other,
        }
    }

    /// Object and key, as an operator names them.
    pub(crate) fn named(&self) -> String {
        format!("{}, key {}", self.source, self.source.key())
    }

    /// With upstream's text (Kubernetes 1.11 to 1.23).
    pub fn describe(&self) -> String {
        let (namespace, name) = self.source.object();
        format!(
            "/api/v1/namespaces/{namespace}/configmaps/{name}, UID: {}, ResourceVersion: {}, KubeletConfigKey: {}",
            self.uid,
            self.resource_version,
            self.source.key()
        )
    }
}

/// `current`: the assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Current {
    /// The assigned config; `None` means local.
    pub assigned: Option<Assigned>,
    /// UID of the Node that assigned it; empty if no Node ever did.
    pub node_uid: String,
    /// Why the source that a running agent last read was invalid.
    pub invalid_source: Option<String>,
    /// `kedge config reset` made it local, and no Node was seen since that assigns nothing: last-known-good
    /// stays as it is.
    pub reset: bool,
}

/// An assigned configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assigned {
    pub config: ConfigRecord,
    /// Wall time of the assignment, for people.
    pub since: Option<Timestamp>,
    /// False if it came with the image: then it was never downloaded, and a lack of contact proves nothing.
    pub downloaded: bool,
}

/// `last-known-good`: the configs to fall back to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LastKnownGood {
    /// None means local.
    pub config: Option<ConfigRecord>,
    /// The last-known-good before it, the next one to fall back to; None means local.
    pub previous: Option<ConfigRecord>,
    /// The system on which it ran its trial: the way back of the machine. Agents that do not know it drop it.
    pub system: Option<Digest>,
}

/// The owner of counts: the local config, or a payload, whichever object has it and whatever drop-ins are
/// beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RanAs {
    Local,
    /// A pushed config.
    Payload(Digest),
}

/// `startups.json`: the counts of every config that may run, and whether pods are held.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Startups {
    /// The config that ran last; `None` if unknown.
    pub last: Option<RanAs>,
    /// A proven config crashed too often: pods are held. This belongs to the node, and applies to whatever
    /// config starts next.
    pub hold: bool,
    /// How often they were held without a whole trial of running in between.
    pub held: u8,
    /// The node's faults when the config on trial was adopted: they do not count against the config.
    pub baseline: Complaints,
    /// The system on which all of it was counted, if the machine has slots.
    pub system: Option<Digest>,
    /// At most [`COUNTED_CONFIGS`].
    pub records: SortedMap<RanAs, Counts>,
    /// In earlier releases' form: counts of the one config that ran, by its content id. A start finds the
    /// config that they belong to; they are not written again.
    pub older: Option<Counts>,
}

impl Startups {
    /// The counts of a config that starts next, with these drop-ins. Other drop-ins mean a fresh trial, and a
    /// config that did not run last restarts its running time: its other counts stay.
    pub(crate) fn of_next(&self, ran_as: RanAs, id: ConfigId) -> Counts {
        let mut counts = self.records.get(&ran_as).cloned().unwrap_or_default();
        if counts.id != Some(id) {
            counts = Counts { id: Some(id), ran_ms: 0, contact: false, ..counts };
        }
        if self.last.is_some_and(|last| last != ran_as) {
            counts = Counts { ran_ms: 0, contact: false, worst_silence_ms: 0, ..counts.unsuspected() };
        }
        counts
    }

    /// Whether this config never ran since it was assigned, or since it may be tried again.
    pub(crate) fn is_new(&self, ran_as: RanAs) -> bool {
        self.records.get(&ran_as).is_none_or(|counts| counts.is_empty() && counts.run == 0)
    }

    /// Whether anything is counted for this config.
    pub(crate) fn counts_for(&self, ran_as: RanAs) -> bool {
        self.records.get(&ran_as).is_some_and(|counts| !counts.is_empty())
    }

    /// Sets the counts of this config. The limit holds even for a list that somebody else wrote.
    pub(crate) fn set(&mut self, ran_as: RanAs, counts: Counts) {
        self.records.insert(ran_as, counts);
        let last = self.last;
        while self.records.len() > COUNTED_CONFIGS {
            let spare = |other: &&RanAs| ![Some(RanAs::Local), Some(ran_as), last].contains(&Some(**other));
            let Some(other) = self.records.keys().find(spare).copied() else { return };
            self.records.remove(&other);
        }
    }

    /// This config runs from now on, and no other.
    pub(crate) fn begin(&mut self, ran_as: RanAs, counts: Counts) {
        let open = (counts.open.clone(), counts.run);
        self.close();
        self.last = Some(ran_as);
        self.set(ran_as, Counts { open: open.0, run: open.1, ..counts });
    }

    /// The running config ended cleanly.
    pub(crate) fn close(&mut self) {
        self.records.values_mut().for_each(|counts| counts.open = None);
    }

    /// The same after a clean end.
    pub(crate) fn closed(mut self) -> Self {
        self.close();
        self
    }

    /// Drops everything that counts against this config: it is tried again. The terms of its trial stay.
    pub(crate) fn forgive(&mut self, ran_as: RanAs) {
        if let Some(counts) = self.records.get_mut(&ran_as) {
            let Counts { id, threshold, trial_ms, .. } = *counts;
            *counts = Counts { id, threshold, trial_ms, ..Counts::default() };
        }
    }

    /// The same without the counts against these payloads; `None` if that changes nothing. The config that
    /// ran last is left alone.
    pub fn without(&self, payloads: &[Digest]) -> Option<Self> {
        let mut emptied = self.clone();
        for ran_as in payloads.iter().map(|payload| RanAs::Payload(*payload)) {
            if self.last != Some(ran_as) {
                emptied.forgive(ran_as);
            }
        }
        (emptied != *self).then_some(emptied)
    }

    /// Assigns the counts in the form of earlier releases to this content.
    pub(crate) fn take_over(&mut self, is: &Identity) {
        if let Some(counts) = self.older.take_if(|counts| counts.id.is_some_and(|id| is.is_called(id))) {
            let ran_as = RanAs::Payload(is.payload);
            self.last = Some(ran_as);
            self.set(ran_as, Counts { id: Some(is.id), ..counts });
        }
    }
}

/// The faults of its node that the agent itself sees, as far as they count against a config on trial: a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Complaints(u8);

impl Complaints {
    /// The conditions, in the order of [`Complaints::of`].
    const BITS: [u8; 4] = [1, 2, 4, 8];
    const NAMES: [&str; 4] = ["MemoryPressure", "DiskPressure", "PIDPressure", "NotReady"];

    /// The faults that are present.
    #[must_use]
    pub fn of(are: [bool; 4]) -> Self {
        let bits = are.iter().zip(Self::BITS).filter(|(is, _)| **is).map(|(_, bit)| bit);
        Self(bits.fold(0, |all, bit| all | bit))
    }

    /// The faults that the other set lacks.
    #[must_use]
    pub fn beyond(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The faults of both sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether there are no faults.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The names of the faults.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        let all = Self::NAMES.into_iter().zip(Self::BITS);
        all.filter(|(_, bit)| self.0 & bit != 0).map(|(name, _)| name).collect()
    }
}

impl Serialize for Complaints {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.names().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Complaints {
    /// Names that a later release adds are ignored.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        Ok(Self::of(Self::NAMES.map(|known| names.iter().any(|name| name == known))))
    }
}

/// The counts of one config.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counts {
    /// The drop-ins with which it ran last.
    pub id: Option<ConfigId>,
    /// Running time since the last counted startup, up to the end of the trial.
    pub ran_ms: u64,
    /// Whether it had contact with an API server: an accepted renewal or status.
    pub contact: bool,
    /// Running time since then, or since the config began, as last saved.
    pub silent_ms: u64,
    /// The longest such silence while a suspected config waits to be tried again.
    pub worst_silence_ms: u64,
    /// Running time of its trial that was lost to moments in which the node was worse than its baseline.
    pub lost_ms: u64,
    /// The faults of the last such moments, as long as it had no contact since.
    pub worse: Complaints,
    /// Counted startups since it last ran for a whole trial, by wall time.
    pub startups: heapless::Vec<Timestamp, STARTUPS>,
    /// Power cuts since the last save of `ran_ms`.
    pub cuts: u32,
    /// Boot id of the run that has not ended cleanly; `None` after a clean end.
    pub open: Option<String>,
    /// The number of the run in that boot that opened it, counted from 1; 0 if not counted.
    pub run: u64,
    /// `crashLoopThreshold` of the config, as last parsed; `None` if it was never parsed.
    pub threshold: Option<u8>,
    /// `configTrialDuration` of the config in ms, as last parsed.
    pub trial_ms: Option<u64>,
}

impl Counts {
    /// The same without the counts that lead to a verdict under rule f.
    pub(crate) fn unsuspected(self) -> Self {
        Self { silent_ms: 0, lost_ms: 0, worse: Complaints::default(), ..self }
    }

    /// Nothing is counted.
    fn is_empty(&self) -> bool {
        let Self { id, run, threshold, trial_ms, .. } = *self;
        *self == Self { id, run, threshold, trial_ms, ..Self::default() }
    }
}

/// Why a config is not tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BadKind {
    /// Not a configuration.
    Parse,
    /// A configuration with wrong values, alone or together with drop-ins and flags.
    Validate,
    /// Crashed too often.
    CrashLoop,
    /// Too many power cuts in its trial.
    Cuts,
    /// No contact with the API server for a whole trial: a suspicion, because the network may have been away.
    Contact,
    /// It crashed too often although it is proven: set aside for a while, never banned.
    Proven,
    /// Verdicts were lost while it was assigned: written by earlier releases.
    Unknown,
}

impl BadKind {
    /// Whether it is a verdict for good.
    pub(crate) fn is_final(self) -> bool {
        matches!(self, Self::Parse | Self::Validate | Self::CrashLoop)
    }

    /// Whether it is about a config's text; all others are about its behaviour.
    pub(crate) fn is_of_text(self) -> bool {
        matches!(self, Self::Parse | Self::Validate)
    }
}

/// One verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Wall time, for people.
    pub time: Timestamp,
    /// The condition's reason.
    pub reason: String,
    /// The rule it failed.
    pub kind: BadKind,
    /// Field and place, if it does not parse or validate: the first problem, and how many more there are.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The config it was given against: object and key, for people. Empty in the records of earlier releases.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// How often it was given for the same kind, if that is tried again after a wait.
    #[serde(default, alias = "lost")]
    pub tries: u8,
    /// It may be tried once more.
    #[serde(default)]
    pub retry: bool,
    /// How long the config may be silent then: longer than the outage that its fallback had.
    #[serde(default, skip_serializing_if = "is_default")]
    pub patience_ms: u64,
    /// Number of the verdict in its list: the lowest is the oldest, whatever the clock was. 0 in the records
    /// of earlier releases.
    #[serde(default, skip_serializing_if = "is_default")]
    pub order: u64,
    /// The payload; `None` in the records of earlier releases, until a start finds its content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Digest>,
}

impl Verdict {
    /// Whether it is about this content, which has its verdicts under `id`. A config's text is judged
    /// together with the drop-ins; its behaviour, whatever they are.
    fn is_about(&self, id: ConfigId, is: &Identity) -> bool {
        match self.kind {
            BadKind::Parse | BadKind::Validate => id == is.id,
            _ => self.payload.map_or(id == is.id, |payload| payload == is.payload),
        }
    }
}

/// All verdicts on one ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BadConfigMap {
    time: Timestamp,
    reason: String,
    /// `None` if every content of the UID is bad (the proposal's form, written by hand).
    contents: Option<SortedMap<ConfigId, Verdict>>,
}

impl BadConfigMap {
    /// The number of its newest verdict; 0 for an entry without contents.
    fn newest(&self) -> u64 {
        self.contents
            .iter()
            .flat_map(SortedMap::values)
            .map(|verdict| verdict.order)
            .max()
            .unwrap_or_default()
    }
}

/// `bad-configs.json`: the configs that are not tried again until their entry is removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BadConfigs {
    by_uid: SortedMap<String, BadConfigMap>,
    /// An earlier list could not be read while this payload was assigned: the list may have had it.
    pub doubted: Option<Digest>,
    /// The Node's request to forgive, once it is recorded: it is obeyed at most once, however long it stays
    /// on the Node.
    pub forgiven: Option<Asked>,
}

/// A recorded request on the Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Wall time of the note, for people.
    pub time: Timestamp,
    /// A UID, and perhaps more words.
    pub text: String,
}

/// The names of these two beside the UIDs: the first is a text, the other an entry without verdicts, and
/// agents that do not know it read it as such.
const DOUBTED: &str = "unknown";
const FORGIVEN: &str = "forgiven";

impl BadConfigs {
    /// The verdict on one content: on its text first, then on its behaviour. An entry without contents bans
    /// all of its UID.
    pub fn verdict(&self, uid: &str, is: Option<&Identity>) -> Option<Verdict> {
        let entry = self.by_uid.get(uid)?;
        let Some(contents) = &entry.contents else {
            return Some(Verdict {
                time: entry.time,
                reason: entry.reason.clone(),
                kind: BadKind::Validate,
                detail: String::new(),
                source: String::new(),
                tries: 0,
                retry: false,
                patience_ms: 0,
                order: 0,
                payload: None,
            });
        };
        let is = is?;
        let about = contents.iter().filter(|(id, verdict)| verdict.is_about(**id, is));
        about.map(|(_, verdict)| verdict).max_by_key(|verdict| verdict.kind.is_of_text()).cloned()
    }

    /// Records a verdict in place of an earlier one of its kind; keeps the limits by dropping the oldest,
    /// never one in use: `keep` has the UIDs and payloads in use.
    pub fn mark(&mut self, uid: &str, is: &Identity, verdict: Verdict, keep: &[(String, Option<Digest>)]) {
        let (reason, detail) = (shortened(&verdict.reason), shortened_detail(&verdict.detail));
        let newest = self.by_uid.values().map(BadConfigMap::newest).max().unwrap_or_default();
        let order = newest.saturating_add(1);
        let source = shortened_detail(&verdict.source);
        let verdict = Verdict { reason, detail, source, order, payload: Some(is.payload), ..verdict };
        let entry = self.by_uid.entry(uid.to_owned()).or_insert_with(|| BadConfigMap {
            time: verdict.time,
            reason: String::new(),
            contents: Some(SortedMap::new()),
        });
        entry.time = verdict.time;
        entry.reason.clone_from(&verdict.reason);
        if let Some(contents) = &mut entry.contents {
            if !verdict.kind.is_of_text() {
                contents.retain(|id, other| other.kind.is_of_text() || !other.is_about(*id, is));
            }
            contents.insert(is.id, verdict);
            while contents.len() > BAD_CONTENTS {
                let is_used = |verdict: &Verdict| {
                    let payload = |(other, payload): &(String, Option<Digest>)| {
                        other == uid && payload.is_some() && *payload == verdict.payload
                    };
                    keep.iter().any(payload)
                };
                let old = contents.iter().filter(|(other, _)| **other != is.id);
                // eight verdicts on the text of a config in use: the oldest of them must be dropped
                let oldest = old.min_by_key(|(_, verdict)| (is_used(verdict), verdict.order));
                let Some(oldest) = oldest.map(|(other, _)| *other) else { break };
                contents.remove(&oldest);
            }
        }
        while self.by_uid.len() > BAD_UIDS {
            let old = |(other, _): &(&String, &BadConfigMap)| {
                *other != uid && !keep.iter().any(|(kept, _)| kept == *other)
            };
            let Some(oldest) = self.by_uid.iter().filter(old).min_by_key(|(_, entry)| entry.newest()) else {
                break;
            };
            let oldest = oldest.0.clone();
            self.by_uid.remove(&oldest);
        }
    }

    /// Moves the verdicts that earlier releases recorded about this content to its present id, and its
    /// payload.
    pub(crate) fn take_over(&mut self, uid: &str, is: &Identity) {
        let Some(contents) = self.by_uid.get_mut(uid).and_then(|entry| entry.contents.as_mut()) else {
            return;
        };
        let older = contents.iter().filter(|(id, verdict)| verdict.payload.is_none() && is.is_called(**id));
        for id in older.map(|(id, _)| *id).collect::<Vec<_>>() {
            if let Some(verdict) = contents.remove(&id) {
                contents.insert(is.id, Verdict { payload: Some(is.payload), ..verdict });
            }
        }
    }

    /// Removes the verdicts on a config's behaviour; returns whether there were any.
    pub(crate) fn clear(&mut self, uid: &str, is: &Identity) -> bool {
        let Some(entry) = self.by_uid.get_mut(uid) else { return false };
        let Some(contents) = &mut entry.contents else { return false };
        let before = contents.len();
        contents.retain(|id, verdict| verdict.kind.is_of_text() || !verdict.is_about(*id, is));
        let removed = contents.len() < before;
        if contents.is_empty() {
            self.by_uid.remove(uid);
        }
        removed
    }

    /// Removes all verdicts on a UID (`kedge config forgive`); returns whether there were any.
    pub fn forgive(&mut self, uid: &str) -> bool {
        self.by_uid.remove(uid).is_some()
    }

    /// The payloads of the verdicts on this UID, as far as they are recorded.
    pub fn payloads(&self, uid: &str) -> Vec<Digest> {
        let contents = self.by_uid.get(uid).and_then(|entry| entry.contents.as_ref());
        contents.into_iter().flat_map(SortedMap::values).filter_map(|verdict| verdict.payload).collect()
    }

    /// The same list, doubting this payload, or none.
    pub(crate) fn doubting(self, doubted: Option<Digest>) -> Self {
        Self { doubted, ..self }
    }

    /// Whether the list has no verdicts.
    pub fn is_empty(&self) -> bool {
        self.by_uid.is_empty()
    }

    /// UID, time and reason of every entry, for people.
    pub fn entries(&self) -> impl Iterator<Item = (&str, Timestamp, &str)> {
        self.by_uid.iter().map(|(uid, entry)| (uid.as_str(), entry.time, entry.reason.as_str()))
    }

    /// Every verdict with its UID, oldest first, for people. An entry without contents was written by a
    /// person.
    pub fn verdicts(&self) -> Vec<(&str, Verdict)> {
        let of_entry = |(uid, entry): (&'_ String, &'_ BadConfigMap)| match &entry.contents {
            Some(contents) => contents.values().cloned().collect(),
            None => self.verdict(uid, None).into_iter().collect::<Vec<_>>(),
        };
        let all = self.by_uid.iter().map(|(uid, entry)| (uid.as_str(), of_entry((uid, entry))));
        let mut all: Vec<_> =
            all.flat_map(|(uid, verdicts)| verdicts.into_iter().map(move |verdict| (uid, verdict))).collect();
        kedge_api::sort::sort_by_key(&mut all, |(_, verdict)| verdict.order);
        all
    }
}

/// At most [`REASON_BYTES`] of a text, and a mark where it was cut.
pub(crate) fn shortened(text: &str) -> String {
    cut(text, REASON_BYTES)
}

/// The same for a verdict's detail.
pub(crate) fn shortened_detail(text: &str) -> String {
    cut(text, DETAIL_BYTES)
}

/// Cutting again changes nothing.
fn cut(text: &str, bytes: usize) -> String {
    let end = text.char_indices().map(|(at, _)| at).find(|at| *at >= bytes);
    end.map_or_else(|| text.to_owned(), |end| format!("{}...", &text[..end]))
}

// ---------------------------------------------------------------------------------------------- JSON forms

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RecordJson {
    /// Empty in a record within another.
    #[serde(default, rename = "apiVersion", skip_serializing_if = "String::is_empty")]
    api_version: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    local: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<Value>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    uid: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    resource_version: String,
    /// UID of the directory of its checkpoint, or the whole name if that differs from the digest; absent in
    /// the older form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checkpoint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<Digest>,
    #[serde(default, rename = "nodeUID", skip_serializing_if = "String::is_empty")]
    node_uid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    downloaded: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    invalid_source: Option<String>,
    /// Agents that do not know this field or the next ones ignore them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    reset: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    system: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous: Option<Box<RecordJson>>,
}

impl RecordJson {
    fn of(config: Option<&ConfigRecord>) -> Self {
        let api_version = match config.map(|config| config.digest) {
            Some(Recorded::Payload(_)) => API_VERSION,
            Some(Recorded::Whole(_)) | None => FIRST_API_VERSION,
        };
        Self {
            api_version: api_version.into(),
            local: config.is_none(),
            source: config.map(|c| c.source.to_value()),
            uid: config.map(|c| c.uid.clone()).unwrap_or_default(),
            resource_version: config.map(|c| c.resource_version.clone()).unwrap_or_default(),
            checkpoint: config.and_then(ConfigRecord::directory),
            sha256: config.map(|c| match c.digest {
                Recorded::Payload(digest) | Recorded::Whole(digest) => digest,
            }),
            node_uid: String::new(),
            since: None,
            downloaded: None,
            invalid_source: None,
            reset: false,
            system: None,
            previous: None,
        }
    }

    fn config(&self) -> Result<Option<ConfigRecord>, String> {
        if self.local {
            return Ok(None);
        }
        let source = self.source.as_ref().ok_or("it has neither \"local\": true nor a source")?;
        let sha256 = self.sha256.ok_or("it has no sha256")?;
        let unusable = || {
            let named = [&self.uid, &self.resource_version].map(|part| excerpt(part));
            format!("uid {:?} or resourceVersion {:?} cannot be a file name", named[0], named[1])
        };
        if CheckpointName::new(&self.uid, &self.resource_version).is_none() {
            return Err(unusable());
        }
        let (checkpoint, digest) = match &self.checkpoint {
            None => (CheckpointName::new(&self.uid, &self.resource_version), Recorded::Whole(sha256)),
            Some(name) => match name.split_once('/') {
                None => (CheckpointName::of(name, sha256), Recorded::Payload(sha256)),
                Some((uid, file)) => (CheckpointName::new(uid, file), Recorded::Payload(sha256)),
            },
        };
        Ok(Some(ConfigRecord {
            source: Source::parse(source)?,
            uid: self.uid.clone(),
            resource_version: self.resource_version.clone(),
            checkpoint: checkpoint.ok_or("checkpoint cannot be a file name")?,
            digest,
        }))
    }
}

impl ConfigRecord {
    /// As [`RecordJson::checkpoint`].
    fn directory(&self) -> Option<String> {
        let digest = self.payload()?;
        let CheckpointName { uid, file } = &self.checkpoint;
        Some(if *file == digest.to_string() { uid.clone() } else { format!("{uid}/{file}") })
    }
}

fn text_of(json: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec(json).expect("records are maps with string keys");
    text.push(b'\n');
    text
}

/// Reads a record that all versions share: an empty file means local, a newer `apiVersion` means unknown.
fn shared_record<T>(read: &Read, local: T, of: impl FnOnce(RecordJson) -> Result<T, String>) -> Known<T> {
    let bytes = match read {
        Read::Absent => return Known::Absent,
        Read::SetAside => return Known::Unknown { why: "it was set aside".into(), set_aside: false },
        Read::Unreadable(why) => return Known::Unknown { why: why.clone(), set_aside: true },
        Read::Content(bytes) => bytes,
    };
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Known::Is(local);
    }
    let json: Value = match serde_json::from_slice(bytes) {
        Ok(json) => json,
        Err(error) => return Known::Unknown { why: format!("not JSON: {error}"), set_aside: true },
    };
    match json.get("apiVersion").and_then(Value::as_str) {
        // the proposal's files have no version; files of the image builder may leave it out too
        None | Some(API_VERSION | FIRST_API_VERSION) => {}
        Some(newer) => {
            let why = format!("written by another agent ({})", excerpt(newer).escape_debug());
            return Known::Unknown { why, set_aside: false };
        }
    }
    match read::from_value(&json).map_err(|error| error.to_string()).and_then(of) {
        Ok(record) => Known::Is(record),
        Err(why) => Known::Unknown { why: shortened(&why), set_aside: true },
    }
}

impl Current {
    /// Nothing assigned.
    pub fn local(node_uid: &str) -> Self {
        Self { assigned: None, node_uid: node_uid.into(), invalid_source: None, reset: false }
    }

    /// Nothing assigned until a Node is seen that assigns something.
    pub fn reset(node_uid: &str) -> Self {
        Self { reset: true, ..Self::local(node_uid) }
    }

    /// Reads `current`.
    pub fn read(read: &Read) -> Known<Self> {
        shared_record(read, Self::local(""), |json| {
            let assigned = json.config()?.map(|config| Assigned {
                config,
                since: json.since,
                downloaded: json.downloaded.unwrap_or(true),
            });
            let (node_uid, invalid_source) = (json.node_uid, json.invalid_source);
            Ok(Self { assigned, node_uid, invalid_source, reset: json.reset })
        })
    }

    /// The text of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut json = RecordJson::of(self.assigned.as_ref().map(|assigned| &assigned.config));
        json.node_uid.clone_from(&self.node_uid);
        json.invalid_source = self.invalid_source.as_deref().map(shortened);
        json.reset = self.reset;
        if let Some(assigned) = &self.assigned {
            json.since = assigned.since;
            json.downloaded = Some(assigned.downloaded);
        }
        text_of(&json)
    }
}

/// Reads `last-known-good`.
pub fn read_last_known_good(read: &Read) -> Known<LastKnownGood> {
    shared_record(read, LastKnownGood::default(), |json| {
        let previous = json.previous.as_ref().map(|previous| previous.config()).transpose()?;
        Ok(LastKnownGood { config: json.config()?, previous: previous.flatten(), system: json.system })
    })
}

/// The text of `last-known-good`.
pub fn last_known_good_bytes(good: &LastKnownGood) -> Vec<u8> {
    let mut json = RecordJson::of(good.config.as_ref());
    json.system = good.system;
    json.previous = good.previous.as_ref().map(|previous| {
        Box::new(RecordJson { api_version: String::new(), ..RecordJson::of(Some(previous)) })
    });
    text_of(&json)
}

/// The present form.
#[derive(Serialize, Deserialize)]
struct StartupsJson {
    last: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    hold: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    held: u8,
    #[serde(default, skip_serializing_if = "is_default")]
    baseline: Complaints,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    system: Option<Digest>,
    records: SortedMap<String, CountsJson>,
}

#[derive(Serialize, Deserialize)]
struct CountsJson {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<ConfigId>,
    ran_ms: u64,
    #[serde(alias = "contact")]
    heard: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    silent_ms: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    worst_silence_ms: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    lost_ms: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    worse: Complaints,
    startups: heapless::Vec<Timestamp, STARTUPS>,
    cuts: u32,
    open: Option<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    run: u64,
    threshold: Option<u8>,
    trial_ms: Option<u64>,
}

impl RanAs {
    fn name(self) -> String {
        match self {
            Self::Local => "local".into(),
            Self::Payload(digest) => digest.to_string(),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "local" => Ok(Self::Local),
            digest => Digest::parse(digest)
                .map(Self::Payload)
                .ok_or_else(|| format!("{:?} is neither \"local\" nor 64 hex digits", excerpt(digest))),
        }
    }
}

impl From<CountsJson> for Counts {
    fn from(json: CountsJson) -> Self {
        let CountsJson { id, ran_ms, heard: contact, silent_ms, worst_silence_ms, startups, .. } = json;
        let CountsJson { lost_ms, worse, cuts, open, run, threshold, trial_ms, .. } = json;
        Self {
            id,
            ran_ms,
            contact,
            silent_ms,
            worst_silence_ms,
            lost_ms,
            worse,
            startups,
            cuts,
            open,
            run,
            threshold,
            trial_ms,
        }
    }
}

impl From<&Counts> for CountsJson {
    fn from(counts: &Counts) -> Self {
        let Counts { id, ran_ms, contact: heard, silent_ms, worst_silence_ms, startups, .. } = counts.clone();
        let Counts { lost_ms, worse, cuts, open, run, threshold, trial_ms, .. } = counts.clone();
        Self {
            id,
            ran_ms,
            heard,
            silent_ms,
            worst_silence_ms,
            lost_ms,
            worse,
            startups,
            cuts,
            open,
            run,
            threshold,
            trial_ms,
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Reads a record of one agent version: there are no newer forms to leave alone.
fn own_record<T>(read: &Read, of: impl FnOnce(&[u8]) -> Result<T, String>) -> Known<T> {
    match read {
        Read::Absent => Known::Absent,
        Read::SetAside => Known::Unknown { why: "it was set aside".into(), set_aside: false },
        Read::Unreadable(why) => Known::Unknown { why: why.clone(), set_aside: true },
        Read::Content(bytes) => match of(bytes) {
            Ok(record) => Known::Is(record),
            // the error repeats the text it found, which may be the whole file
            Err(why) => Known::Unknown { why: shortened(&why), set_aside: true },
        },
    }
}

/// Whether these counts have earlier releases' form: those of one config.
fn is_older(json: &Value) -> bool {
    json.get("records").is_none() && json.get("id").is_some()
}

impl Startups {
    /// Reads `startups.json`.
    pub fn read(read: &Read) -> Known<Self> {
        own_record(read, |bytes| {
            let json: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
            if is_older(&json) { Self::of_older(json) } else { Self::of(json) }
        })
    }

    /// Whether a release wrote it that renamed unreadable lists of bad configs.
    pub(crate) fn is_older(read: &Read) -> bool {
        match read {
            Read::Content(bytes) => serde_json::from_slice(bytes).is_ok_and(|json| is_older(&json)),
            _ => false,
        }
    }

    fn of(json: Value) -> Result<Self, String> {
        let json: StartupsJson = read::from_value(&json).map_err(|error| error.to_string())?;
        if json.records.len() > COUNTED_CONFIGS {
            return Err(format!("it has {} records, expected at most {COUNTED_CONFIGS}", json.records.len()));
        }
        let records =
            json.records.into_iter().map(|(name, counts)| Ok((RanAs::parse(&name)?, counts.into())));
        Ok(Self {
            last: json.last.as_deref().map(RanAs::parse).transpose()?,
            hold: json.hold,
            held: json.held,
            baseline: json.baseline,
            system: json.system,
            records: records.collect::<Result<_, String>>()?,
            older: None,
        })
    }

    fn of_older(mut json: Value) -> Result<Self, String> {
        let id = json["id"].as_str().and_then(ConfigId::parse);
        let is_local = json["id"] == "local";
        if id.is_none() && !is_local {
            return Err("id is neither \"local\" nor 64 hex digits".into());
        }
        let part = |json: &Value, name: &str| json.get(name).cloned().unwrap_or_default();
        let (hold, held) = (part(&json, "hold"), part(&json, "held"));
        json["id"] = Value::Null;
        let counts: CountsJson = read::from_value(&json).map_err(|error| error.to_string())?;
        let counts = Counts { id, ..counts.into() };
        let base = Self {
            hold: hold == true,
            held: held.as_u64().and_then(|held| u8::try_from(held).ok()).unwrap_or_default(),
            ..Self::default()
        };
        Ok(match is_local {
            true => Self { last: Some(RanAs::Local), records: [(RanAs::Local, counts)].into(), ..base },
            false => Self { older: Some(counts), ..base },
        })
    }

    /// The text of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let records = self.records.iter().map(|(ran_as, counts)| (ran_as.name(), counts.into()));
        text_of(&StartupsJson {
            last: self.last.map(RanAs::name),
            hold: self.hold,
            held: self.held,
            baseline: self.baseline,
            system: self.system,
            records: records.collect(),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct BadConfigMapJson {
    /// For people, so an entry that a person wrote may lack it.
    #[serde(default)]
    time: Timestamp,
    reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    contents: Option<SortedMap<String, Verdict>>,
}

impl BadConfigs {
    /// Reads `bad-configs.json`; an absent one bans nothing. A list that is set aside keeps its name until it
    /// is replaced, so an absent one was removed by somebody.
    pub fn read(read: &Read) -> Known<Self> {
        if *read == Read::SetAside {
            return Known::Absent;
        }
        own_record(read, |bytes| {
            // as in the proposal: an empty file lists nothing
            if bytes.iter().all(u8::is_ascii_whitespace) {
                return Ok(Self::default());
            }
            let mut json: BTreeMap<String, Value> =
                serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
            let doubted = json.get(DOUBTED).and_then(Value::as_str);
            let doubted = doubted
                .map(|text| {
                    Digest::parse(text)
                        .ok_or_else(|| format!("{DOUBTED} {:?} is not 64 hex digits", excerpt(text)))
                })
                .transpose()?;
            if doubted.is_some() {
                json.remove(DOUBTED);
            }
            let entry = |entry: Value| {
                read::from_value::<BadConfigMapJson>(&entry).map_err(|error| error.to_string())
            };
            let is_note = |noted: &Value| {
                noted.get("contents").and_then(Value::as_object).is_some_and(serde_json::Map::is_empty)
            };
            let forgiven = match json.get(FORGIVEN).filter(|noted| is_note(noted)) {
                Some(noted) => {
                    let BadConfigMapJson { time, reason, .. } = entry(noted.clone())?;
                    json.remove(FORGIVEN);
                    Some(Asked { time, text: shortened(&reason) })
                }
                None => None,
            };
            let entries = json.into_iter().filter_map(|(uid, json)| {
                let checked = entry(json).and_then(BadConfigMapJson::checked).transpose()?;
                Some(checked.map(|entry| (uid, entry)))
            });
            Ok(Self { by_uid: entries.collect::<Result<_, String>>()?, doubted, forgiven })
        })
    }

    /// The text of the file, laid out for a person who may edit it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let value = |json: BadConfigMapJson| serde_json::to_value(json).expect("maps with string keys");
        let entries = self.by_uid.iter().map(|(uid, entry)| {
            let contents = entry.contents.as_ref();
            let contents =
                contents.map(|all| all.iter().map(|(id, v)| (id.to_string(), v.clone())).collect());
            (
                uid.as_str(),
                value(BadConfigMapJson { time: entry.time, reason: entry.reason.clone(), contents }),
            )
        });
        let doubted = self.doubted.map(|payload| (DOUBTED, Value::from(payload.to_string())));
        let forgiven = self.forgiven.as_ref().map(|Asked { time, text }| {
            let contents = Some(SortedMap::new());
            (FORGIVEN, value(BadConfigMapJson { time: *time, reason: text.clone(), contents }))
        });
        // the verdicts on an object with such a UID would come last, and win
        let json: SortedMap<&str, Value> = doubted.into_iter().chain(forgiven).chain(entries).collect();
        let mut text = serde_json::to_vec_pretty(&json).expect("records are maps with string keys");
        text.push(b'\n');
        text
    }
}

impl BadConfigMapJson {
    /// `None` if it has no verdict: those of kind `unknown` mean that others were lost, and must not ban
    /// anything for good.
    fn checked(self) -> Result<Option<BadConfigMap>, String> {
        let id = |text: &str| {
            ConfigId::parse(text).ok_or_else(|| format!("content {:.70?} is not 64 hex digits", text))
        };
        let contents = match self.contents {
            None => None,
            Some(all) => {
                let known = all.into_iter().filter(|(_, verdict)| verdict.kind != BadKind::Unknown);
                let known: SortedMap<_, _> =
                    known.map(|(text, verdict)| Ok((id(&text)?, verdict))).collect::<Result<_, String>>()?;
                if known.is_empty() {
                    return Ok(None);
                }
                Some(known)
            }
        };
        Ok(Some(BadConfigMap { time: self.time, reason: self.reason, contents }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The local config ran last and alone, and ended cleanly.
    fn ended_local() -> Startups {
        let records = [(RanAs::Local, Counts::default())].into();
        Startups { last: Some(RanAs::Local), records, ..Startups::default() }
    }

    fn record() -> ConfigRecord {
        ConfigRecord {
            source: Source::Pinned { namespace: "n".into(), name: "m".into(), uid: "u-1".into() },
            uid: "u-1".into(),
            resource_version: "7".into(),
            checkpoint: CheckpointName::of("u-1", Digest::of(b"x")).expect("file names"),
            digest: Recorded::Payload(Digest::of(b"x")),
        }
    }

    /// In the first release's form.
    fn older() -> ConfigRecord {
        let checkpoint = CheckpointName::new("u-1", "7").expect("file names");
        ConfigRecord { checkpoint, digest: Recorded::Whole(Digest::of(b"{}")), ..record() }
    }

    /// Of another object with the same payload, and in a file that a start could not rename yet.
    fn elsewhere(uid: &str, file: &str) -> ConfigRecord {
        ConfigRecord { checkpoint: CheckpointName::new(uid, file).expect("file names"), ..record() }
    }

    fn content(bytes: &[u8]) -> Read {
        Read::Content(bytes.to_vec())
    }

    #[test]
    fn records_are_read_back_equal() {
        let assigned =
            Assigned { config: record(), since: Some(Timestamp::from_micros(0)), downloaded: false };
        for current in [
            Current::local(""),
            Current::reset("n-1"),
            Current { invalid_source: Some("why".into()), ..Current::local("n-1") },
            Current { assigned: Some(assigned), ..Current::local("n-1") },
        ] {
            assert_eq!(Current::read(&content(&current.to_bytes())), Known::Is(current));
        }
        let other = CheckpointName::of("u-0", Digest::of(b"x")).expect("file names");
        for config in [
            None,
            Some(record()),
            Some(older()),
            Some(elsewhere("u-0", "6")),
            Some(ConfigRecord { checkpoint: other, ..record() }),
        ] {
            let alone = LastKnownGood { config, ..LastKnownGood::default() };
            let good = LastKnownGood { previous: Some(older()), ..alone.clone() };
            assert_eq!(read_last_known_good(&content(&last_known_good_bytes(&alone))), Known::Is(alone));
            assert_eq!(read_last_known_good(&content(&last_known_good_bytes(&good))), Known::Is(good));
        }
        for startups in [startups(), ended_local(), Startups::default()] {
            assert_eq!(Startups::read(&content(&startups.to_bytes())), Known::Is(startups));
        }
    }

    fn payload(text: &str) -> RanAs {
        RanAs::Payload(Digest::of(text.as_bytes()))
    }

    /// Counts of a payload that ran last and crashed once, and of local.
    fn startups() -> Startups {
        let mut counts = Counts {
            id: Some(ConfigId::of(b"p", b"")),
            open: Some("boot".into()),
            run: 3,
            ran_ms: 7,
            silent_ms: 5,
            worst_silence_ms: 6,
            lost_ms: 8,
            worse: Complaints::of([true, false, true, false]),
            contact: true,
            trial_ms: Some(600_000),
            ..Counts::default()
        };
        counts.startups.push(Timestamp::from_micros(5_000_000)).expect("there is room");
        let baseline = Complaints::of([false, true, false, true]);
        let mut startups = Startups { hold: true, held: 2, baseline, ..ended_local() };
        startups.begin(payload("p"), counts);
        startups
    }

    #[test]
    fn counts_survive_other_drop_ins_and_running_time_does_not() {
        let mut startups = startups();
        let before = startups.records[&payload("p")].clone();
        assert_eq!(startups.of_next(payload("p"), ConfigId::of(b"p", b"")), before);
        let other = ConfigId::of(b"p", b"drop-in");
        let next = startups.of_next(payload("p"), other);
        let expect = Counts { id: Some(other), ran_ms: 0, contact: false, ..before.clone() };
        assert_eq!(next, expect, "silence and startups stay");
        startups.begin(RanAs::Local, Counts::default());
        let next = startups.of_next(payload("p"), ConfigId::of(b"p", b""));
        let expect =
            Counts { ran_ms: 0, contact: false, worst_silence_ms: 0, open: None, ..before.unsuspected() };
        assert_eq!(next, expect, "it did not run last");
    }

    #[test]
    fn counts_without_a_payload_keep_all_others() {
        let mut before = startups();
        let crashed = before.records[&payload("p")].clone();
        before.set(payload("q"), crashed.clone());
        let digest = |text: &str| Digest::of(text.as_bytes());
        let after = before.without(&[digest("q"), digest("r")]).expect("a change");
        assert!(!after.counts_for(payload("q")), "{after:?}");
        assert_eq!((&after.records[&payload("p")], after.last, after.hold), (&crashed, before.last, true));
        assert_eq!(before.without(&[digest("p"), digest("r")]), None, "it ran last");
        assert_eq!(after.without(&[digest("q")]), None);
    }

    #[test]
    fn five_configs_leave_four_records() {
        let mut startups = startups();
        for text in ["a", "b", "c", "d"] {
            startups.set(payload(text), Counts::default());
        }
        assert_eq!(startups.records.len(), COUNTED_CONFIGS);
        for kept in [RanAs::Local, payload("p"), payload("d")] {
            assert!(startups.records.contains_key(&kept), "{kept:?}");
        }
        let mut json: Value = serde_json::from_slice(&startups.to_bytes()).expect("JSON");
        json["records"][Digest::of(b"e").to_string()] = json["records"]["local"].clone();
        assert!(Startups::read(&content(json.to_string().as_bytes())).unknown().is_some());
    }

    /// Earlier releases wrote the counts of one config under its content id.
    #[test]
    fn older_startups_belong_to_the_content_with_that_id() {
        let older = |id: &str| {
            let text = format!(
                r#"{{"id":"{id}","ran_ms":7,"contact":true,"startups":["2026-11-21T01:00:00Z"],"cuts":1,"open":"b","run":2,"threshold":3,"trial_ms":9,"hold":true,"held":1}}"#
            );
            let Known::Is(startups) = Startups::read(&content(text.as_bytes())) else { panic!("{text}") };
            startups
        };
        let is = Identity::of("u", b"p", b"o");
        for id in [is.id, ConfigId::older("u", b"p", b"o")] {
            let mut startups = older(&id.to_string());
            startups.take_over(&Identity::of("u", b"q", b"o"));
            assert!(startups.older.is_some(), "of another content");
            startups.take_over(&is);
            let counts = &startups.records[&payload("p")];
            assert_eq!((counts.ran_ms, counts.contact, counts.startups.len(), counts.run), (7, true, 1, 2));
            assert_eq!(
                (counts.id, startups.last, startups.hold, startups.held),
                (Some(is.id), Some(payload("p")), true, 1)
            );
            assert_eq!(Startups::read(&content(&startups.to_bytes())), Known::Is(startups));
        }
        let local = older("local");
        assert_eq!((local.last, local.records[&RanAs::Local].cuts), (Some(RanAs::Local), 1));
    }

    /// The first release reads v1 alone, and takes its uid and resourceVersion for the name of the
    /// checkpoint.
    #[test]
    fn record_has_the_version_of_the_release_that_can_read_it() {
        let good = |config: Option<ConfigRecord>| LastKnownGood {
            config,
            previous: Some(record()),
            system: Some(Digest::of(b"system")),
        };
        let version = |config: Option<ConfigRecord>| {
            let json: Value = serde_json::from_slice(&last_known_good_bytes(&good(config))).expect("JSON");
            json["apiVersion"].as_str().expect("a text").to_owned()
        };
        assert_eq!([None, Some(older())].map(version), ["kedge.dev/v1"; 2]);
        assert_eq!([record(), elsewhere("u-1", "7")].map(|new| version(Some(new))), ["kedge.dev/v2"; 2]);
        // records written between the two releases, in the present form
        let text = String::from_utf8(last_known_good_bytes(&good(Some(record())))).expect("JSON");
        let v1 = content(text.replace("kedge.dev/v2", "kedge.dev/v1").as_bytes());
        assert_eq!(read_last_known_good(&v1), Known::Is(good(Some(record()))));
    }

    #[test]
    fn checkpoint_name_needs_two_file_names() {
        let longest = "x".repeat(64);
        assert!(
            CheckpointName::new("u-1", "7").is_some() && CheckpointName::new(&longest, &longest).is_some()
        );
        for (uid, version) in [("..", "7"), ("u", "/x"), ("", "7"), ("u", ""), (&"x".repeat(65), "7")] {
            assert_eq!(CheckpointName::new(uid, version), None, "{uid:?} {version:?}");
        }
    }

    #[test]
    fn record_names_one_version_of_one_object() {
        let found =
            [("u-1", "7"), ("u-1", "8"), ("u-2", "7")].map(|(uid, version)| record().is(uid, version));
        assert_eq!(found, [true, false, false]);
        assert_eq!(
            record().describe(),
            "/api/v1/namespaces/n/configmaps/m, UID: u-1, ResourceVersion: 7, KubeletConfigKey: kubelet"
        );
    }

    #[test]
    fn startups_text_names_payloads() {
        let text = String::from_utf8(ended_local().to_bytes()).expect("JSON");
        assert_eq!(
            text,
            "{\"last\":\"local\",\"records\":{\"local\":{\"ran_ms\":0,\"heard\":false,\"startups\":[],\"cuts\":0,\
             \"open\":null,\"threshold\":null,\"trial_ms\":null}}}\n"
        );
        let json: Value = serde_json::from_slice(&startups().to_bytes()).expect("JSON");
        let digest = Digest::of(b"p").to_string();
        assert_eq!(
            (&json["last"], &json["records"][&digest]["run"]),
            (&Value::from(digest.clone()), &3.into())
        );
    }

    #[test]
    fn long_text_is_cut_once() {
        for (cut, bytes) in
            [(shortened as fn(&str) -> String, REASON_BYTES), (shortened_detail, DETAIL_BYTES)]
        {
            let longest = "x".repeat(bytes);
            let once = format!("{longest}...");
            assert_eq!(cut(&longest), longest);
            assert_eq!(cut(&format!("{longest}x")), once);
            assert_eq!(cut(&once), once);
            assert_eq!(
                cut(&format!("{}\u{e9}x", "x".repeat(bytes - 1))),
                format!("{}\u{e9}...", "x".repeat(bytes - 1))
            );
        }
    }

    #[test]
    fn empty_current_or_last_known_good_means_local() {
        for empty in [&b""[..], b" \n"] {
            assert_eq!(Current::read(&content(empty)), Known::Is(Current::local("")));
            assert_eq!(read_last_known_good(&content(empty)), Known::Is(LastKnownGood::default()));
        }
    }

    #[test]
    fn record_of_a_newer_agent_is_unknown_and_left_alone() {
        let newer = content(br#"{"apiVersion":"kedge.dev/v3","anything":true}"#);
        let expect_why = "written by another agent (kedge.dev/v3)".to_owned();
        assert_eq!(Current::read(&newer), Known::Unknown { why: expect_why, set_aside: false });
    }

    #[test]
    fn damaged_record_is_unknown_with_a_reason() {
        let whole = Current::local("n").to_bytes();
        let mut cases: Vec<Vec<u8>> = vec![vec![0; 40], b"{}".to_vec(), b"[]".to_vec(), b"null".to_vec()];
        cases.extend((1..whole.len() - 1).map(|n| whole[..n].to_vec()));
        for bytes in cases {
            let shown = String::from_utf8_lossy(&bytes).into_owned();
            for unknown in [
                Current::read(&content(&bytes)).unknown().map(str::to_owned),
                read_last_known_good(&content(&bytes)).unknown().map(str::to_owned),
                Startups::read(&content(&bytes)).unknown().map(str::to_owned),
            ] {
                assert!(unknown.is_some_and(|why| !why.is_empty()), "{shown:?}");
            }
        }
        assert_eq!(BadConfigs::read(&content(b" \n")), Known::Is(BadConfigs::default()), "an empty list");
        assert_eq!(BadConfigs::read(&Read::SetAside), Known::Absent, "somebody removed it");
        assert!(Current::read(&Read::Unreadable("i/o error".into())).unknown().is_some());
        let outside = br#"{"source":{"configMapRef":{"namespace":"n","name":"m","uid":"u"}},"uid":"..","resourceVersion":"/x","sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}"#;
        assert!(
            Current::read(&content(outside))
                .unknown()
                .is_some_and(|why| why.contains("cannot be a file name"))
        );
    }

    #[test]
    fn reason_for_damage_is_short() {
        let long = format!(r#"{{"{0}":"{0}","uid":["{0}"],"id":"{0}","local":"{0}"}}"#, "x".repeat(10_000));
        let long = content(long.as_bytes());
        for unknown in [
            Current::read(&long).unknown().map(str::to_owned),
            Startups::read(&long).unknown().map(str::to_owned),
            BadConfigs::read(&long).unknown().map(str::to_owned),
        ] {
            assert!(unknown.as_ref().is_some_and(|why| why.len() < 600), "{unknown:?}");
        }
    }

    #[test]
    fn twelve_startups_are_a_damaged_record() {
        let stamps = ["\"2026-11-21T01:00:00Z\""; 12].join(",");
        let counts = format!(
            r#""ran_ms":0,"heard":false,"startups":[{stamps}],"cuts":0,"open":null,"threshold":null,"trial_ms":null"#
        );
        for text in [
            format!(r#"{{"last":"local","records":{{"local":{{{counts}}}}}}}"#),
            format!(r#"{{"id":"local",{counts}}}"#),
        ] {
            assert!(Startups::read(&content(text.as_bytes())).unknown().is_some(), "{text}");
        }
    }

    fn verdict(second: i64) -> Verdict {
        Verdict {
            time: Timestamp::from_micros(second * 1_000_000),
            reason: "failed to validate current (UID: u)".into(),
            kind: BadKind::Validate,
            source: String::new(),
            detail: String::new(),
            tries: 0,
            retry: false,
            patience_ms: 0,
            order: 0,
            payload: None,
        }
    }

    fn is(text: &str) -> Identity {
        Identity::of("u", text.as_bytes(), b"")
    }

    #[test]
    fn entry_without_contents_bans_the_whole_uid() {
        // a person may leave out a time, which is for people
        for time in ["", r#""time": "2026-11-21T01:00:00Z", "#] {
            let text = format!(r#"{{"u-1": {{{time}"reason": "by hand"}}}}"#);
            let Known::Is(bad) = BadConfigs::read(&content(text.as_bytes())) else {
                panic!("{text} is unknown")
            };
            for is in [None, Some(&is("a")), Some(&is("b"))] {
                assert_eq!(bad.verdict("u-1", is).unwrap().reason, "by hand");
            }
            assert_eq!(bad.verdict("u-2", None), None);
            assert_eq!(BadConfigs::read(&content(&bad.to_bytes())), Known::Is(bad));
        }
    }

    #[test]
    fn verdict_of_text_is_about_one_content() {
        let (a, b, edited) = (is("a"), is("b"), Identity::of("u", b"a", b"drop-in"));
        let mut bad = BadConfigs::default();
        bad.mark("u", &a, verdict(1), &[]);
        assert!(bad.verdict("u", Some(&a)).is_some() && !bad.is_empty());
        assert_eq!([bad.verdict("u", Some(&b)), bad.verdict("u", Some(&edited))], [None, None]);
        assert_eq!(BadConfigs::read(&content(&bad.to_bytes())), Known::Is(bad.clone()));
        assert!(!bad.clear("u", &a), "it does not go with what the config does");
        assert!(bad.forgive("u") && bad.is_empty() && !bad.forgive("u"));
    }

    #[test]
    fn verdict_of_deeds_is_about_a_payload() {
        let (a, b, edited) = (is("a"), is("b"), Identity::of("u", b"a", b"drop-in"));
        let crashed = |second| Verdict { kind: BadKind::CrashLoop, ..verdict(second) };
        let mut bad = BadConfigs::default();
        bad.mark("u", &a, crashed(1), &[]);
        assert!(bad.verdict("u", Some(&edited)).is_some());
        assert_eq!((bad.verdict("u", Some(&b)), bad.verdict("v", Some(&a))), (None, None));
        bad.mark("u", &edited, verdict(2), &[]);
        bad.mark("u", &b, verdict(3), &[]);
        let kinds = [a, edited, b].map(|is| bad.verdict("u", Some(&is)).map(|verdict| verdict.kind));
        let text = Some(BadKind::Validate);
        assert_eq!(kinds, [Some(BadKind::CrashLoop), text, text], "what it says comes first");
        bad.mark(
            "u",
            &Identity::of("u", b"a", b"another"),
            Verdict { kind: BadKind::Contact, ..verdict(4) },
            &[],
        );
        let kind = bad.verdict("u", Some(&a)).map(|verdict| verdict.kind);
        assert_eq!(kind, Some(BadKind::Contact), "the last one counts");
        assert_eq!(BadConfigs::read(&content(&bad.to_bytes())), Known::Is(bad.clone()));
        assert!(bad.clear("u", &edited) && !bad.clear("u", &a));
        assert!(bad.verdict("u", Some(&edited)).is_some(), "it is invalid as before");
    }

    #[test]
    fn older_verdict_is_taken_over_by_its_id() {
        let older = ConfigId::older("u", b"a", b"").to_string();
        let text = format!(
            r#"{{"u":{{"time":"2026-11-21T01:00:00Z","reason":"r","contents":{{"{older}":{{"time":"2026-11-21T01:00:00Z","reason":"r","kind":"crashLoop","lost":0,"retry":false}}}}}}}}"#
        );
        let Known::Is(mut bad) = BadConfigs::read(&content(text.as_bytes())) else { panic!("{text}") };
        assert_eq!(bad.verdict("u", Some(&is("a"))), None);
        bad.take_over("u", &is("b"));
        bad.take_over("u", &is("a"));
        assert!(bad.verdict("u", Some(&Identity::of("u", b"a", b"drop-in"))).is_some());
        assert_eq!(bad.verdict("u", Some(&is("b"))), None);
    }

    #[test]
    fn oldest_verdicts_go_first_except_those_in_use() {
        let mut bad = BadConfigs::default();
        let of = |n: u8| Identity::of("u", &[n], b"");
        let used = |uid: &str, n: u8| (uid.to_owned(), Some(Digest::of(&[n])));
        for n in 0..40 {
            bad.mark(&format!("u-{n}"), &of(n), verdict(n.into()), &[used("u-0", 0), ("u-3".into(), None)]);
        }
        assert_eq!(bad.entries().count(), BAD_UIDS);
        for kept in ["u-0", "u-3", "u-39"] {
            assert!(bad.entries().any(|(uid, ..)| uid == kept), "{kept}");
        }
        assert!(!bad.entries().any(|(uid, ..)| uid == "u-1"));
        for n in 0..20 {
            bad.mark("u-0", &of(n), verdict(100 + i64::from(n)), &[used("u-0", 2), used("u-1", 5)]);
        }
        let known: Vec<u8> = (0..20).filter(|n| bad.verdict("u-0", Some(&of(*n))).is_some()).collect();
        assert_eq!(known, [2, 13, 14, 15, 16, 17, 18, 19]);
    }

    #[test]
    fn oldest_verdict_goes_first_when_the_clock_went_back() {
        let mut bad = BadConfigs::default();
        let of = |n: u8| Identity::of("u", &[n], b"");
        for n in 0..10 {
            bad.mark("u", &of(n), verdict(100 - i64::from(n)), &[]);
        }
        let known = [0, 1, 2, 9].map(|n| bad.verdict("u", Some(&of(n))).is_some());
        assert_eq!(known, [false, false, true, true]);
        let mut bad = BadConfigs::default();
        for n in 0..34 {
            bad.mark(&format!("u-{n}"), &of(n), verdict(100 - i64::from(n)), &[]);
        }
        let known = |wanted: &str| bad.entries().any(|(uid, ..)| uid == wanted);
        assert_eq!(["u-0", "u-1", "u-2", "u-33"].map(known), [false, false, true, true]);
        // a verdict that is given again becomes the newest
        bad.mark("u-2", &of(2), verdict(0), &[]);
        bad.mark("late", &of(99), verdict(0), &[]);
        let known = |wanted: &str| bad.entries().any(|(uid, ..)| uid == wanted);
        assert_eq!(["u-2", "u-3", "late"].map(known), [true, false, true]);
        assert_eq!(BadConfigs::read(&content(&bad.to_bytes())), Known::Is(bad));
    }

    #[test]
    fn doubted_payload_stands_beside_the_verdicts() {
        let mut bad = BadConfigs { doubted: Some(Digest::of(b"p")), ..BadConfigs::default() };
        let text = format!("{{\n  \"unknown\": \"{}\"\n}}\n", Digest::of(b"p"));
        assert_eq!(bad.to_bytes(), text.as_bytes());
        bad.mark("u", &is("a"), verdict(1), &[]);
        bad.forgiven = Some(Asked { time: Timestamp::from_micros(0), text: "u again".into() });
        assert_eq!(BadConfigs::read(&content(&bad.to_bytes())), Known::Is(bad));
        for wrong in [r#"{"unknown":"7f"}"#, r#"{"unknown":{}}"#, r#"{"u":"7f"}"#] {
            assert!(BadConfigs::read(&content(wrong.as_bytes())).unknown().is_some(), "{wrong}");
        }
    }

    /// The release before reads a map of objects, each with its verdicts, and takes anything else for damage.
    #[test]
    fn note_of_a_request_is_an_entry_without_verdicts() {
        let asked = Asked { time: Timestamp::from_micros(0), text: "u again".into() };
        let bad = BadConfigs { forgiven: Some(asked), ..BadConfigs::default() };
        let json: SortedMap<String, BadConfigMapJson> =
            serde_json::from_slice(&bad.to_bytes()).expect("objects");
        assert_eq!(json["forgiven"].reason, "u again");
        assert_eq!(json["forgiven"].contents, Some(SortedMap::new()));
        let Known::Is(read) = BadConfigs::read(&content(&bad.to_bytes())) else { panic!("unknown") };
        assert!(read.is_empty() && read.entries().next().is_none() && read == bad);
    }

    #[test]
    fn entry_of_kind_unknown_bans_nothing() {
        let id = is("a").id.to_string();
        let of = |kind: &str| {
            format!(
                r#"{{"u":{{"time":"2026-11-21T01:00:00Z","reason":"r","contents":{{"{id}":{{"time":"2026-11-21T01:00:00Z","reason":"r","kind":"{kind}"}}}}}}}}"#
            )
        };
        let read = |kind: &str| BadConfigs::read(&content(of(kind).as_bytes()));
        assert_eq!(read("unknown"), Known::Is(BadConfigs::default()), "as the release before wrote it");
        assert!(read("crashLoop").known().is_some_and(|bad| bad.verdict("u", Some(&is("a"))).is_some()));
    }

    #[test]
    fn long_reason_and_detail_are_cut() {
        let mut bad = BadConfigs::default();
        let long = Verdict { reason: "é".repeat(100_000), detail: "é".repeat(100_000), ..verdict(1) };
        bad.mark("u", &is(""), long, &[]);
        assert!(bad.to_bytes().len() < 4096);
    }
}
