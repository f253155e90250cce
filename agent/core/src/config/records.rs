//! The records on disk that outlive a process (ARCHITECTURE.md, "State on disk"): what each file means, read and written as text.
//!
//! Always holds: absent, unknown and known are three different things. Absent says something (see each record); unknown
//! says nothing and never means "nothing"; a record of a newer agent is unknown and left alone. Writing is exact: what
//! was written is read back equal. Leaves to others: when to write (`start`, `running`) and how (`platform`).

use crate::config::digest::{ConfigId, Digest};
use crate::config::source::{Source, is_file_name};
use kedge_api::{Timestamp, excerpt};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Version of the two records that every agent version shares. An agent that does not know it leaves the record and all
/// checkpoints alone.
const API_VERSION: &str = "kedge.dev/v2";

/// Of records that the first release reads, too: they name no checkpoint, or name it in its form.
const FIRST_API_VERSION: &str = "kedge.dev/v1";

/// `crashLoopThreshold` is at most 10, so an eleventh startup condemns: there is no twelfth.
pub const STARTUPS: usize = 11;

/// UIDs in `bad-configs.json`: the file must stay small enough to write on a nearly full disk.
pub const BAD_UIDS: usize = 32;
/// Contents per UID there: a ConfigMap edited in place has as many verdicts as edits.
pub const BAD_CONTENTS: usize = 8;

/// Largest checkpoint written, and so the largest file read: a ConfigMap of 1 MiB (Kubernetes' limit for its data), whole, in
/// JSON with escapes.
pub const CHECKPOINT_BYTES: usize = 4 * 1024 * 1024;

/// Longest text kept in a record: a reason is for people, and the file has a bound.
const REASON_BYTES: usize = 512;

/// Longest field and place of a verdict kept: there may be [`BAD_UIDS`] times [`BAD_CONTENTS`].
const DETAIL_BYTES: usize = 400;

/// A file of the configuration's state. Paths are relative to `--dynamic-config-dir`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StateFile {
    /// What is assigned.
    Current,
    /// What we fall back to.
    LastKnownGood,
    /// Verdicts, per agent version.
    BadConfigs,
    /// Counts of the running config, per agent version.
    Startups,
    /// A whole ConfigMap.
    Checkpoint(CheckpointName),
}

/// Which checkpoint: the UID of the object it was made of, and the digest of the payload in it. Both are safe as file names.
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

    /// Where an object with this UID and payload is put.
    pub fn of(uid: &str, payload: Digest) -> Option<Self> {
        Self::new(uid, &payload.to_string())
    }
}

impl StateFile {
    /// Where it lies below `--dynamic-config-dir`; `version` is the agent's.
    pub fn path(&self, version: &str) -> String {
        match self {
            Self::Current => "current".into(),
            Self::LastKnownGood => "last-known-good".into(),
            Self::BadConfigs => format!("{version}/bad-configs.json"),
            Self::Startups => format!("{version}/startups.json"),
            Self::Checkpoint(name) => format!("checkpoints/{}/{}", name.uid, name.file),
        }
    }
}

/// The outcome of reading a file, before its content is parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// No such file, and nothing says there was one.
    Absent,
    /// No such file, but one was set aside under this name earlier: its content is unknown.
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
    /// It could not be understood.
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

/// One concrete configuration: where it came from, which content it was, and which file holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigRecord {
    /// As the Node asked for it.
    pub source: Source,
    /// UID of the ConfigMap.
    pub uid: String,
    /// Of the ConfigMap when it was assigned; a later one with the same payload is not recorded.
    pub resource_version: String,
    /// The file that holds its payload, perhaps that of another object with the same payload.
    pub checkpoint: CheckpointName,
    pub digest: Recorded,
}

/// What the digest in a record is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// The payload.
    Payload(Digest),
    /// The whole checkpoint: the first release's form. Such a record and its checkpoint stay as they are until another
    /// config takes its place, so that an upgrade writes nothing and can be taken back.
    Whole(Digest),
}

impl ConfigRecord {
    /// Whether it is of the object with this UID and resourceVersion.
    pub(crate) fn is(&self, uid: &str, resource_version: &str) -> bool {
        self.uid == uid && self.resource_version == resource_version
    }

    /// The payload's digest; None in the older form, whose checkpoint says it.
    pub(crate) fn payload(&self) -> Option<Digest> {
        match self.digest {
            Recorded::Payload(digest) => Some(digest),
            Recorded::Whole(_) => None,
        }
    }

    /// Whether both name one payload, as far as the records say.
    pub(crate) fn is_same_payload(&self, other: &Self) -> bool {
        match (self.payload(), other.payload()) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => self == other,
        }
    }

    /// In upstream's words (Kubernetes 1.11 to 1.23).
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

/// `current`: what is assigned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Current {
    /// What is assigned; None means local.
    pub assigned: Option<Assigned>,
    /// UID of the Node that assigned it; empty if no Node ever did.
    pub node_uid: String,
    /// The source that a running agent last read was invalid; the text says why.
    pub invalid_source: Option<String>,
}

/// An assigned configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assigned {
    pub config: ConfigRecord,
    /// Wall time of the assignment, for people.
    pub since: Option<Timestamp>,
    /// False if it came with the image: then it was never fetched, and a lack of contact proves nothing.
    pub downloaded: bool,
}

/// `last-known-good`: what we fall back to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LastKnownGood {
    /// None means local.
    pub config: Option<ConfigRecord>,
    /// The last-known-good before it, the next one to fall back to; None means local.
    pub previous: Option<ConfigRecord>,
}

/// What `startups.json` is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RanAs {
    Local,
    /// A pushed one.
    Config(ConfigId),
}

/// `startups.json`: the counts of the config that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Startups {
    pub ran_as: RanAs,
    /// Running time since the last counted startup, up to the end of the trial.
    pub ran_ms: u64,
    /// It had contact with an API server: an accepted renewal or status.
    pub contact: bool,
    /// Running time since then, or since it began, as last saved.
    pub silent_ms: u64,
    /// The longest such silence while a suspected config waits for it.
    pub worst_silence_ms: u64,
    /// Counted startups since it last ran for a whole trial, by wall time.
    pub startups: heapless::Vec<Timestamp, STARTUPS>,
    /// Power cuts since the last save of `ran_ms`.
    pub cuts: u32,
    /// Boot id of the run that has not ended cleanly; None after a clean end.
    pub open: Option<String>,
    /// Which of that boot's runs opened it, counted from 1; 0: not counted.
    pub run: u64,
    /// `crashLoopThreshold` of the config, as last parsed; None before it ever was.
    pub threshold: Option<u8>,
    /// `configTrialDuration` of the config in ms, as last parsed.
    pub trial_ms: Option<u64>,
    /// A proven config crashed too often: pods are held. This belongs to the node, and goes with whatever config starts next.
    pub hold: bool,
    /// How often they were held without a whole trial of running between.
    pub held: u8,
}

impl Startups {
    /// The counts of a config that starts next: those on disk if they are its own, else none; pods that are held stay held.
    pub(crate) fn of_next(on_disk: Option<&Self>, ran_as: RanAs) -> Self {
        match on_disk {
            Some(own) if own.ran_as == ran_as => own.clone(),
            Some(other) => Self { hold: other.hold, held: other.held, ..Self::fresh(ran_as) },
            None => Self::fresh(ran_as),
        }
    }

    /// All counts zero, ended cleanly.
    pub fn fresh(ran_as: RanAs) -> Self {
        Self {
            ran_as,
            ran_ms: 0,
            contact: false,
            silent_ms: 0,
            worst_silence_ms: 0,
            startups: heapless::Vec::new(),
            cuts: 0,
            open: None,
            run: 0,
            threshold: None,
            trial_ms: None,
            hold: false,
            held: 0,
        }
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
    /// No contact with the API server for a whole trial: a suspicion, for the network may have been away.
    Contact,
    /// It crashed too often although it is proven: set aside for a while, never banned.
    Proven,
    /// Verdicts were lost while it was assigned.
    Unknown,
}

/// One verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Wall time, for people.
    pub time: Timestamp,
    /// As the condition says it.
    pub reason: String,
    /// The rule it failed.
    pub kind: BadKind,
    /// Field and place, if it does not parse or validate: the first problem, and how many more there are.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// How often it was given for the same kind, if that is tried again after a wait.
    #[serde(default, alias = "lost")]
    pub tries: u8,
    /// It may be tried once more.
    #[serde(default)]
    pub retry: bool,
    /// How long it may be silent then: longer than the outage that its fallback went through.
    #[serde(default, skip_serializing_if = "is_default")]
    pub patience_ms: u64,
    /// Counts the verdicts of a list: the lowest is the oldest, whatever the clock said. 0 in what earlier releases wrote.
    #[serde(default, skip_serializing_if = "is_default")]
    pub order: u64,
}

/// Everything known against one ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BadConfigMap {
    time: Timestamp,
    reason: String,
    /// None: every content of the UID is bad (the proposal's form, written by hand).
    contents: Option<BTreeMap<ConfigId, Verdict>>,
}

impl BadConfigMap {
    /// The order of its newest verdict; 0 of an entry without contents.
    fn newest(&self) -> u64 {
        self.contents.iter().flat_map(BTreeMap::values).map(|verdict| verdict.order).max().unwrap_or_default()
    }
}

/// `bad-configs.json`: what is not tried again until its entry is removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BadConfigs(BTreeMap<String, BadConfigMap>);

impl BadConfigs {
    /// The verdict on one content; an entry without contents bans all of its UID.
    pub fn verdict(&self, uid: &str, id: Option<ConfigId>) -> Option<Verdict> {
        let entry = self.0.get(uid)?;
        match (&entry.contents, id) {
            (None, _) => Some(Verdict {
                time: entry.time,
                reason: entry.reason.clone(),
                kind: BadKind::Validate,
                detail: String::new(),
                tries: 0,
                retry: false,
                patience_ms: 0,
                order: 0,
            }),
            (Some(contents), Some(id)) => contents.get(&id).cloned(),
            (Some(_), None) => None,
        }
    }

    /// Records a verdict; keeps the bounds by dropping the oldest, never a UID of `keep`.
    pub fn mark(&mut self, uid: &str, id: ConfigId, verdict: Verdict, keep: &[&str]) {
        let (reason, detail) = (shortened(&verdict.reason), shortened_detail(&verdict.detail));
        let newest = self.0.values().map(BadConfigMap::newest).max().unwrap_or_default();
        let verdict = Verdict { reason, detail, order: newest.saturating_add(1), ..verdict };
        let entry = self.0.entry(uid.to_owned()).or_insert_with(|| BadConfigMap {
            time: verdict.time,
            reason: String::new(),
            contents: Some(BTreeMap::new()),
        });
        entry.time = verdict.time;
        entry.reason.clone_from(&verdict.reason);
        if let Some(contents) = &mut entry.contents {
            contents.insert(id, verdict);
            while contents.len() > BAD_CONTENTS {
                let oldest = contents.iter().filter(|(other, _)| **other != id).min_by_key(|(_, v)| v.order);
                let Some(oldest) = oldest.map(|(other, _)| *other) else { break };
                contents.remove(&oldest);
            }
        }
        while self.0.len() > BAD_UIDS {
            let old =
                |(other, _): &(&String, &BadConfigMap)| *other != uid && !keep.contains(&other.as_str());
            let Some(oldest) = self.0.iter().filter(old).min_by_key(|(_, entry)| entry.newest()) else {
                break;
            };
            let oldest = oldest.0.clone();
            self.0.remove(&oldest);
        }
    }

    /// The verdict on a content is on record under another id.
    pub(crate) fn rename(&mut self, uid: &str, from: ConfigId, to: ConfigId) {
        let contents = self.0.get_mut(uid).and_then(|entry| entry.contents.as_mut());
        if let Some(contents) = contents
            && let Some(verdict) = contents.remove(&from)
        {
            contents.insert(to, verdict);
        }
    }

    /// Removes one verdict; says whether there was one.
    pub fn clear(&mut self, uid: &str, id: ConfigId) -> bool {
        let Some(entry) = self.0.get_mut(uid) else { return false };
        let removed = entry.contents.as_mut().is_some_and(|contents| contents.remove(&id).is_some());
        if entry.contents.as_ref().is_some_and(BTreeMap::is_empty) {
            self.0.remove(uid);
        }
        removed
    }

    /// Removes everything about a UID (`kedge config forgive`); says whether there was anything.
    pub fn forgive(&mut self, uid: &str) -> bool {
        self.0.remove(uid).is_some()
    }

    /// Nothing is banned.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// UID, time and reason of every entry, for people.
    pub fn entries(&self) -> impl Iterator<Item = (&str, Timestamp, &str)> {
        self.0.iter().map(|(uid, entry)| (uid.as_str(), entry.time, entry.reason.as_str()))
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
    /// UID of the directory that holds its checkpoint, or the whole name if that is not the digest; absent in the older form.
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
    /// Agents that do not know it ignore it.
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
        // the proposal's files have no version; ours from the image builder may leave it out too
        None | Some(API_VERSION | FIRST_API_VERSION) => {}
        Some(newer) => {
            let why = format!("written by another agent ({})", excerpt(newer).escape_debug());
            return Known::Unknown { why, set_aside: false };
        }
    }
    match serde_json::from_value(json).map_err(|error| error.to_string()).and_then(of) {
        Ok(record) => Known::Is(record),
        Err(why) => Known::Unknown { why: shortened(&why), set_aside: true },
    }
}

impl Current {
    /// Nothing assigned.
    pub fn local(node_uid: &str) -> Self {
        Self { assigned: None, node_uid: node_uid.into(), invalid_source: None }
    }

    /// Reads `current`.
    pub fn read(read: &Read) -> Known<Self> {
        shared_record(read, Self::local(""), |json| {
            let assigned = json.config()?.map(|config| Assigned {
                config,
                since: json.since,
                downloaded: json.downloaded.unwrap_or(true),
            });
            Ok(Self { assigned, node_uid: json.node_uid, invalid_source: json.invalid_source })
        })
    }

    /// The text of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut json = RecordJson::of(self.assigned.as_ref().map(|assigned| &assigned.config));
        json.node_uid.clone_from(&self.node_uid);
        json.invalid_source = self.invalid_source.as_deref().map(shortened);
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
        Ok(LastKnownGood { config: json.config()?, previous: previous.flatten() })
    })
}

/// The text of `last-known-good`.
pub fn last_known_good_bytes(good: &LastKnownGood) -> Vec<u8> {
    let mut json = RecordJson::of(good.config.as_ref());
    json.previous = good.previous.as_ref().map(|previous| {
        Box::new(RecordJson { api_version: String::new(), ..RecordJson::of(Some(previous)) })
    });
    text_of(&json)
}

#[derive(Serialize, Deserialize)]
struct StartupsJson {
    id: String,
    ran_ms: u64,
    contact: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    silent_ms: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    worst_silence_ms: u64,
    startups: heapless::Vec<Timestamp, STARTUPS>,
    cuts: u32,
    open: Option<String>,
    // older agents do not write it, and ignore it
    #[serde(default, skip_serializing_if = "is_default")]
    run: u64,
    threshold: Option<u8>,
    trial_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    hold: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    held: u8,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A record of one agent version: there are no newer forms to leave alone.
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

impl Startups {
    /// Reads `startups.json`.
    pub fn read(read: &Read) -> Known<Self> {
        own_record(read, |bytes| {
            let json: StartupsJson = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
            let ran_as = match json.id.as_str() {
                "local" => RanAs::Local,
                id => RanAs::Config(ConfigId::parse(id).ok_or("id is neither \"local\" nor 64 hex digits")?),
            };
            Ok(Self {
                ran_as,
                ran_ms: json.ran_ms,
                contact: json.contact,
                silent_ms: json.silent_ms,
                worst_silence_ms: json.worst_silence_ms,
                startups: json.startups,
                cuts: json.cuts,
                open: json.open,
                run: json.run,
                threshold: json.threshold,
                trial_ms: json.trial_ms,
                hold: json.hold,
                held: json.held,
            })
        })
    }

    /// The text of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        text_of(&StartupsJson {
            id: match self.ran_as {
                RanAs::Local => "local".into(),
                RanAs::Config(id) => id.to_string(),
            },
            ran_ms: self.ran_ms,
            contact: self.contact,
            silent_ms: self.silent_ms,
            worst_silence_ms: self.worst_silence_ms,
            startups: self.startups.clone(),
            cuts: self.cuts,
            open: self.open.clone(),
            run: self.run,
            threshold: self.threshold,
            trial_ms: self.trial_ms,
            hold: self.hold,
            held: self.held,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct BadConfigMapJson {
    time: Timestamp,
    reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    contents: Option<BTreeMap<String, Verdict>>,
}

impl BadConfigs {
    /// Reads `bad-configs.json`; one that is absent bans nothing.
    pub fn read(read: &Read) -> Known<Self> {
        own_record(read, |bytes| {
            // as in the proposal: an empty file lists nothing
            if bytes.iter().all(u8::is_ascii_whitespace) {
                return Ok(Self::default());
            }
            let json: BTreeMap<String, BadConfigMapJson> =
                serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
            json.into_iter()
                .map(|(uid, entry)| Ok((uid, entry.checked()?)))
                .collect::<Result<_, String>>()
                .map(Self)
        })
    }

    /// The text of the file, laid out for a person who may edit it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let json: BTreeMap<&str, BadConfigMapJson> = self
            .0
            .iter()
            .map(|(uid, entry)| {
                let contents = entry.contents.as_ref();
                let contents =
                    contents.map(|all| all.iter().map(|(id, v)| (id.to_string(), v.clone())).collect());
                (uid.as_str(), BadConfigMapJson { time: entry.time, reason: entry.reason.clone(), contents })
            })
            .collect();
        let mut text = serde_json::to_vec_pretty(&json).expect("records are maps with string keys");
        text.push(b'\n');
        text
    }
}

impl BadConfigMapJson {
    fn checked(self) -> Result<BadConfigMap, String> {
        let id = |text: &str| {
            ConfigId::parse(text).ok_or_else(|| format!("content {:.70?} is not 64 hex digits", text))
        };
        let contents = match self.contents {
            None => None,
            Some(all) => {
                Some(all.into_iter().map(|(text, v)| Ok((id(&text)?, v))).collect::<Result<_, String>>()?)
            }
        };
        Ok(BadConfigMap { time: self.time, reason: self.reason, contents })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> ConfigRecord {
        ConfigRecord {
            source: Source::Pinned { namespace: "n".into(), name: "m".into(), uid: "u-1".into() },
            uid: "u-1".into(),
            resource_version: "7".into(),
            checkpoint: CheckpointName::of("u-1", Digest::of(b"x")).expect("file names"),
            digest: Recorded::Payload(Digest::of(b"x")),
        }
    }

    /// As the first release wrote it.
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
            Current { assigned: None, node_uid: "n-1".into(), invalid_source: Some("why".into()) },
            Current { assigned: Some(assigned), node_uid: "n-1".into(), invalid_source: None },
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
            let alone = LastKnownGood { config, previous: None };
            let good = LastKnownGood { previous: Some(older()), ..alone.clone() };
            assert_eq!(read_last_known_good(&content(&last_known_good_bytes(&alone))), Known::Is(alone));
            assert_eq!(read_last_known_good(&content(&last_known_good_bytes(&good))), Known::Is(good));
        }
        let mut startups = Startups::fresh(RanAs::Config(ConfigId::of(b"p", b"")));
        startups.startups.push(Timestamp::from_micros(5_000_000)).unwrap();
        startups.open = Some("boot".into());
        startups.run = 3;
        startups.trial_ms = Some(600_000);
        for startups in [startups, Startups::fresh(RanAs::Local)] {
            assert_eq!(Startups::read(&content(&startups.to_bytes())), Known::Is(startups));
        }
    }

    /// The first release reads v1 alone, and takes the uid and resourceVersion in it for the name of the checkpoint.
    #[test]
    fn record_has_the_version_of_the_release_that_can_read_it() {
        let good = |config: Option<ConfigRecord>| LastKnownGood { config, previous: Some(record()) };
        let version = |config: Option<ConfigRecord>| {
            let json: Value = serde_json::from_slice(&last_known_good_bytes(&good(config))).expect("JSON");
            json["apiVersion"].as_str().expect("a text").to_owned()
        };
        assert_eq!([None, Some(older())].map(version), ["kedge.dev/v1"; 2]);
        assert_eq!([record(), elsewhere("u-1", "7")].map(|new| version(Some(new))), ["kedge.dev/v2"; 2]);
        // what was written between the two, in the present form
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
    fn startups_text_is_readable_by_every_version() {
        let mut startups = Startups::fresh(RanAs::Local);
        let text = |startups: &Startups| String::from_utf8(startups.to_bytes()).expect("JSON");
        assert_eq!(
            text(&startups),
            "{\"id\":\"local\",\"ran_ms\":0,\"contact\":false,\"startups\":[],\"cuts\":0,\"open\":null,\
             \"threshold\":null,\"trial_ms\":null}\n"
        );
        startups.run = 1;
        assert!(text(&startups).contains("\"run\":1,"), "{}", text(&startups));
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
        let whole = Current { assigned: None, node_uid: "n".into(), invalid_source: None }.to_bytes();
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
        assert!(BadConfigs::read(&Read::SetAside).unknown().is_some());
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
        let text = format!(
            r#"{{"id":"local","ran_ms":0,"contact":false,"startups":[{stamps}],"cuts":0,"open":null,"threshold":null,"trial_ms":null}}"#
        );
        assert!(Startups::read(&content(text.as_bytes())).unknown().is_some());
    }

    fn verdict(second: i64) -> Verdict {
        Verdict {
            time: Timestamp::from_micros(second * 1_000_000),
            reason: "failed to validate current (UID: u)".into(),
            kind: BadKind::Validate,
            detail: String::new(),
            tries: 0,
            retry: false,
            patience_ms: 0,
            order: 0,
        }
    }

    #[test]
    fn entry_without_contents_bans_the_whole_uid() {
        let text = br#"{"u-1": {"time": "2026-11-21T01:00:00Z", "reason": "by hand"}}"#;
        let Known::Is(bad) = BadConfigs::read(&content(text)) else { panic!("unknown") };
        for id in [None, Some(ConfigId::of(b"a", b"")), Some(ConfigId::of(b"b", b""))] {
            assert_eq!(bad.verdict("u-1", id).unwrap().reason, "by hand");
        }
        assert_eq!(bad.verdict("u-2", None), None);
        assert_eq!(BadConfigs::read(&content(&bad.to_bytes())), Known::Is(bad));
    }

    #[test]
    fn verdict_is_about_one_content_until_cleared() {
        let (a, b) = (ConfigId::of(b"a", b""), ConfigId::of(b"b", b""));
        let mut bad = BadConfigs::default();
        bad.mark("u", a, verdict(1), &[]);
        assert!(bad.verdict("u", Some(a)).is_some() && !bad.is_empty());
        assert_eq!(bad.verdict("u", Some(b)), None);
        assert_eq!(BadConfigs::read(&content(&bad.to_bytes())), Known::Is(bad.clone()));
        assert!(bad.clear("u", a) && bad.is_empty() && !bad.clear("u", a));
        bad.mark("u", a, verdict(1), &[]);
        assert!(bad.forgive("u") && bad.is_empty() && !bad.forgive("u"));
    }

    #[test]
    fn oldest_verdicts_go_first_except_those_in_use() {
        let mut bad = BadConfigs::default();
        let id = |n: u8| ConfigId::of(&[n], b"");
        for n in 0..40 {
            bad.mark(&format!("u-{n}"), id(n), verdict(n.into()), &["u-0", "u-3"]);
        }
        assert_eq!(bad.entries().count(), BAD_UIDS);
        for kept in ["u-0", "u-3", "u-39"] {
            assert!(bad.entries().any(|(uid, ..)| uid == kept), "{kept}");
        }
        assert!(!bad.entries().any(|(uid, ..)| uid == "u-1"));
        for n in 0..20 {
            bad.mark("u-0", id(n), verdict(100 + i64::from(n)), &[]);
        }
        assert!((12..20).all(|n| bad.verdict("u-0", Some(id(n))).is_some()));
        assert!((0..12).all(|n| bad.verdict("u-0", Some(id(n))).is_none()));
    }

    #[test]
    fn oldest_verdict_goes_first_when_the_clock_went_back() {
        let mut bad = BadConfigs::default();
        let id = |n: u8| ConfigId::of(&[n], b"");
        for n in 0..10 {
            bad.mark("u", id(n), verdict(100 - i64::from(n)), &[]);
        }
        assert_eq!([0, 1, 2, 9].map(|n| bad.verdict("u", Some(id(n))).is_some()), [false, false, true, true]);
        let mut bad = BadConfigs::default();
        for n in 0..34 {
            bad.mark(&format!("u-{n}"), id(n), verdict(100 - i64::from(n)), &[]);
        }
        let known = |wanted: &str| bad.entries().any(|(uid, ..)| uid == wanted);
        assert_eq!(["u-0", "u-1", "u-2", "u-33"].map(known), [false, false, true, true]);
        // a verdict that is given again is the newest
        bad.mark("u-2", id(2), verdict(0), &[]);
        bad.mark("late", id(99), verdict(0), &[]);
        let known = |wanted: &str| bad.entries().any(|(uid, ..)| uid == wanted);
        assert_eq!(["u-2", "u-3", "late"].map(known), [true, false, true]);
        assert_eq!(BadConfigs::read(&content(&bad.to_bytes())), Known::Is(bad));
    }

    #[test]
    fn long_reason_and_detail_are_cut() {
        let mut bad = BadConfigs::default();
        let long = Verdict { reason: "é".repeat(100_000), detail: "é".repeat(100_000), ..verdict(1) };
        bad.mark("u", ConfigId::of(b"", b""), long, &[]);
        assert!(bad.to_bytes().len() < 4096);
    }
}
