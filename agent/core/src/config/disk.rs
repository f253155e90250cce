//! The agent's picture of its records on disk, and the checkpoints they name.
//!
//! Always holds: the picture changes only when a write was reported durable, so the condition and the status,
//! which are composed from it, claim nothing that is not on disk; a content that is on disk already is not
//! written.

use crate::config::digest::{Digest, Identity};
use crate::config::judge;
use crate::config::records::{
    BadConfigs, ConfigRecord, Current, Known, LastKnownGood, Read, Recorded, Startups, StateFile, Verdict,
    last_known_good_bytes, read_last_known_good, shortened,
};
use crate::config::source::Source;
use crate::config::system::Systems;
use crate::kubelet::{LayerText, Origin};
use crate::system::records::{BadSystems, WantedRecord};
use crate::writes::{Durable, Steps, Suspendable};
use kedge_api::{ConfigMap, excerpt};
use std::rc::Rc;

/// The four records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) current: Known<Current>,
    pub(crate) last_known_good: Known<LastKnownGood>,
    pub(crate) bad_configs: Known<BadConfigs>,
    pub(crate) startups: Known<Startups>,
    /// Read on a machine with slots only.
    pub(crate) systems: Systems,
}

/// The assigned config, as far as the records show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AssignedNow {
    Local,
    /// A pushed config.
    Config(ConfigRecord, /* downloaded */ bool),
    /// Unknown, for this reason.
    Unknown(String),
}

impl Disk {
    /// No records, as if nothing had ever been assigned.
    pub(crate) fn empty() -> Self {
        Self {
            current: Known::Absent,
            last_known_good: Known::Absent,
            bad_configs: Known::Absent,
            startups: Known::Absent,
            systems: Systems::default(),
        }
    }

    /// Reads the records; unreadable ones are set aside and listed in `findings`.
    pub(crate) fn read(steps: &mut Steps, findings: &mut Vec<String>) -> Suspendable<Self> {
        let (mut is_renamed, mut is_of_before) = (false, false);
        let list = |read: &Read| {
            is_renamed = *read == Read::SetAside;
            BadConfigs::read(read)
        };
        let counts = |read: &Read| {
            is_of_before = Startups::is_older(read);
            Startups::read(read)
        };
        let current = record(steps, StateFile::Current, Current::read, findings)?;
        let last_known_good = record(steps, StateFile::LastKnownGood, read_last_known_good, findings)?;
        let mut bad_configs = record(steps, StateFile::BadConfigs, list, findings)?;
        let startups = record(steps, StateFile::Startups, counts, findings)?;
        if is_renamed && is_of_before {
            // no person removed it
            let why = "an earlier release set it aside".to_owned();
            findings.push(format!("{} is unknown: {why}", file_name(&StateFile::BadConfigs)));
            bad_configs = Known::Unknown { why, set_aside: true };
        }
        Ok(Self { current, last_known_good, bad_configs, startups, systems: Systems::default() })
    }

    /// Reads the records of systems; unreadable ones are set aside and listed, and count as absent.
    pub(crate) fn read_systems(&mut self, steps: &mut Steps, findings: &mut Vec<String>) -> Suspendable<()> {
        let wanted =
            record(steps, StateFile::SystemWanted, |read| of_system(read, WantedRecord::read), findings)?;
        let bad = record(steps, StateFile::SystemBad, |read| of_system(read, BadSystems::read), findings)?;
        self.systems = Systems {
            wanted: wanted.known().cloned().flatten(),
            bad: bad.known().cloned().unwrap_or_default(),
        };
        Ok(())
    }

    pub(crate) fn put_wanted(
        &mut self,
        steps: &mut Steps,
        wanted: Option<WantedRecord>,
    ) -> Suspendable<Durable> {
        if self.systems.wanted == wanted {
            return Ok(Ok(()));
        }
        let done = steps.write(StateFile::SystemWanted, WantedRecord::to_bytes(wanted.as_ref()))?;
        if done.is_ok() {
            self.systems.wanted = wanted;
        }
        Ok(done)
    }

    pub(crate) fn put_bad_systems(&mut self, steps: &mut Steps, bad: BadSystems) -> Suspendable<Durable> {
        if self.systems.bad == bad {
            return Ok(Ok(()));
        }
        let done = steps.write(StateFile::SystemBad, bad.to_bytes())?;
        if done.is_ok() {
            self.systems.bad = bad;
        }
        Ok(done)
    }

    /// The assigned config.
    pub(crate) fn assigned(&self) -> AssignedNow {
        match &self.current {
            Known::Is(Current { assigned: None, .. }) => AssignedNow::Local,
            Known::Is(Current { assigned: Some(assigned), .. }) => {
                AssignedNow::Config(assigned.config.clone(), assigned.downloaded)
            }
            Known::Absent if self.fallback().is_none() && self.last_known_good.unknown().is_none() => {
                AssignedNow::Local
            }
            Known::Absent => AssignedNow::Unknown("the record of it is missing".into()),
            Known::Unknown { why, .. } => {
                AssignedNow::Unknown(format!("the record of it is unreadable: {why}"))
            }
        }
    }

    /// The remote last-known-good, if there is one.
    pub(crate) fn fallback(&self) -> Option<&ConfigRecord> {
        self.last_known_good.known().and_then(|good| good.config.as_ref())
    }

    /// The remote last-known-good before that, if there is one.
    pub(crate) fn previous(&self) -> Option<&ConfigRecord> {
        self.last_known_good.known().and_then(|good| good.previous.as_ref())
    }

    /// The verdict on a config. A proven one is never banned: its crashes and cuts, under whatever agent
    /// version they were counted before it was proven, only set it aside.
    pub(crate) fn verdict(&self, uid: &str, is: Option<&Identity>, is_proven: bool) -> Option<Verdict> {
        let verdict = self.bad_configs.known()?.verdict(uid, is)?;
        Some(if is_proven { judge::against_proven(verdict) } else { verdict })
    }

    /// Why the source that a running agent last read was invalid.
    pub(crate) fn invalid_source(&self) -> Option<&str> {
        self.current.known().and_then(|current| current.invalid_source.as_deref())
    }

    /// UIDs, and payloads where the records have them, whose verdicts are never dropped for space.
    pub(crate) fn in_use(&self) -> Vec<(String, Option<Digest>)> {
        let current = self.current.known().and_then(|current| current.assigned.as_ref());
        let named = current.map(|assigned| &assigned.config).into_iter();
        let named = named.chain(self.fallback()).chain(self.previous());
        named.map(|config| (config.uid.clone(), config.payload())).collect()
    }

    /// Writes `current` unless it has this content. The inner result: whether it is durable.
    pub(crate) fn put_current(&mut self, steps: &mut Steps, current: Current) -> Suspendable<Durable> {
        put(steps, StateFile::Current, &mut self.current, current, Current::to_bytes)
    }

    /// Writes `last-known-good` unless it has this content.
    pub(crate) fn put_last_known_good(
        &mut self,
        steps: &mut Steps,
        good: LastKnownGood,
    ) -> Suspendable<Durable> {
        put(steps, StateFile::LastKnownGood, &mut self.last_known_good, good, last_known_good_bytes)
    }

    /// Writes `bad-configs.json` unless it has this content.
    pub(crate) fn put_bad_configs(&mut self, steps: &mut Steps, bad: BadConfigs) -> Suspendable<Durable> {
        put(steps, StateFile::BadConfigs, &mut self.bad_configs, bad, BadConfigs::to_bytes)
    }

    /// Writes `startups.json` unless it has this content.
    pub(crate) fn put_startups(&mut self, steps: &mut Steps, startups: Startups) -> Suspendable<Durable> {
        put(steps, StateFile::Startups, &mut self.startups, startups, Startups::to_bytes)
    }

    /// Writes `startups.json` even if it has this content.
    pub(crate) fn rewrite_startups(&mut self, steps: &mut Steps, startups: Startups) -> Suspendable<Durable> {
        let done = steps.write(StateFile::Startups, startups.to_bytes())?;
        if done.is_ok() {
            self.startups = Known::Is(startups);
        }
        Ok(done)
    }
}

fn record<T>(
    steps: &mut Steps,
    file: StateFile,
    parse: impl FnOnce(&Read) -> Known<T>,
    findings: &mut Vec<String>,
) -> Suspendable<Known<T>> {
    let known = parse(&steps.read(file.clone())?);
    if let Known::Unknown { why, set_aside } = &known {
        let name = file_name(&file);
        if *set_aside {
            let done = steps.set_aside(file)?;
            let said = match &done {
                Ok(()) => "set aside".to_owned(),
                Err(error) => format!("could not be set aside: {error}"),
            };
            findings.push(format!("{name} is unreadable ({why}); {said}"));
            if done.is_err() {
                return Ok(Known::Unknown { why: why.clone(), set_aside: false });
            }
        } else {
            findings.push(format!("{name} is unknown: {why}"));
        }
    }
    Ok(known)
}

/// A record of systems. Its form is fixed, so no newer one has to be kept.
fn of_system<T>(read: &Read, of: fn(&[u8]) -> Result<T, String>) -> Known<T> {
    match read {
        Read::Absent | Read::SetAside => Known::Absent,
        Read::Unreadable(why) => Known::Unknown { why: why.clone(), set_aside: true },
        Read::Content(bytes) => match of(bytes) {
            Ok(record) => Known::Is(record),
            Err(why) => Known::Unknown { why: shortened(&why), set_aside: true },
        },
    }
}

fn file_name(file: &StateFile) -> &'static str {
    match file {
        StateFile::Current => "current",
        StateFile::LastKnownGood => "last-known-good",
        StateFile::BadConfigs => "bad-configs.json",
        StateFile::Startups => "startups.json",
        StateFile::Checkpoint(_) => "a checkpoint",
        StateFile::SystemWanted => "system/wanted",
        StateFile::SystemBad => "system/bad",
    }
}

fn put<T: PartialEq>(
    steps: &mut Steps,
    file: StateFile,
    slot: &mut Known<T>,
    record: T,
    bytes: impl Fn(&T) -> Vec<u8>,
) -> Suspendable<Durable> {
    if slot.known() == Some(&record) {
        return Ok(Ok(()));
    }
    let done = steps.write(file, bytes(&record))?;
    if done.is_ok() {
        *slot = Known::Is(record);
    }
    Ok(done)
}

/// A configuration with its content, not parsed.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    pub(crate) is: Identity,
    /// The payload and its origin.
    pub(crate) payload: Rc<LayerText>,
}

/// Keys that a message lists: enough to see a typing error.
const KEYS_SHOWN: usize = 5;

/// The keys that exist, for a message about a missing one.
fn keys_of(object: &ConfigMap) -> String {
    if object.data.is_empty() {
        return "nor under any other (a file that is not UTF-8 becomes binaryData)".into();
    }
    let mut keys: Vec<String> =
        object.data.keys().take(KEYS_SHOWN).map(|key| format!("{:?}", excerpt(key))).collect();
    if object.data.len() > KEYS_SHOWN {
        keys.push(format!("{} more", object.data.len().saturating_sub(KEYS_SHOWN)));
    }
    format!("its keys are {}", keys.join(", "))
}

/// Reads the checkpoint that a record names. The inner error is why its content is unavailable.
pub(crate) fn load(
    steps: &mut Steps,
    config: &ConfigRecord,
    overrides: &[u8],
) -> Suspendable<Result<Content, String>> {
    let bytes = match read_checkpoint(steps, config)? {
        Ok(bytes) => bytes,
        Err(why) => return Ok(Err(why)),
    };
    Ok(payload_of(&bytes, config).map(|text| {
        let (namespace, name) = config.source.object();
        let origin =
            Origin::ConfigMap { namespace: namespace.into(), name: name.into(), uid: config.uid.clone() };
        let is = Identity::of(&config.uid, text.as_bytes(), overrides);
        Content { is, payload: Rc::new(LayerText { origin, text: text.into_bytes() }) }
    }))
}

fn read_checkpoint(steps: &mut Steps, config: &ConfigRecord) -> Suspendable<Result<Vec<u8>, String>> {
    Ok(match steps.read(StateFile::Checkpoint(config.checkpoint.clone()))? {
        Read::Content(bytes) => Ok(bytes),
        Read::Absent | Read::SetAside => Err("its checkpoint is missing".into()),
        Read::Unreadable(why) => Err(format!("its checkpoint cannot be read: {why}")),
    })
}

/// The payload of a record: the value with the recorded digest, under any key, because the checkpoint may be
/// of another object with the same payload.
fn payload_of(bytes: &[u8], config: &ConfigRecord) -> Result<String, String> {
    let damaged = || "its checkpoint is damaged: the digest differs from the recorded one".to_owned();
    match config.digest {
        Recorded::Whole(digest) if Digest::of(bytes) != digest => Err(damaged()),
        Recorded::Whole(_) => payload(config_map(bytes)?, &config.source),
        Recorded::Payload(digest) => {
            let object = config_map(bytes).map_err(|why| format!("its checkpoint is damaged: {why}"))?;
            let mut texts = object.data.into_values();
            texts.find(|text| Digest::of(text.as_bytes()) == digest).ok_or_else(damaged)
        }
    }
}

fn config_map(bytes: &[u8]) -> Result<ConfigMap, String> {
    // the parser's message repeats a text of the wrong type whole
    kedge_api::read::from_slice(bytes)
        .map_err(|error| format!("it is not a ConfigMap: {}", shortened(&error.to_string())))
}

/// The payload of a ConfigMap under the source's key. The error continues a sentence about it.
pub(crate) fn payload(mut object: ConfigMap, source: &Source) -> Result<String, String> {
    let key = source.key();
    let text = object.data.remove(key);
    text.ok_or_else(|| format!("it has no text under key {key:?}, {}", keys_of(&object)))
}

impl Disk {
    /// Replaces an unreadable list of bad configs, in one write, by one that doubts the assigned config, the
    /// only one that may have been in it. A config that was assigned since is not doubted.
    pub(crate) fn settle_verdicts(
        &mut self,
        steps: &mut Steps,
        assigned: &AssignedNow,
        is: Option<&Identity>,
    ) -> Suspendable<()> {
        let payload = match assigned {
            AssignedNow::Config(config, _) => match config.payload().or(is.map(|is| is.payload)) {
                // the config's content decides this, once it is available again
                None => return Ok(()),
                payload => payload,
            },
            AssignedNow::Local => None,
            AssignedNow::Unknown(_) => return Ok(()),
        };
        let settled = match &self.bad_configs {
            Known::Unknown { set_aside: true, .. } => BadConfigs::default().doubting(payload),
            Known::Is(bad) if bad.doubted.is_some() && bad.doubted != payload => bad.clone().doubting(None),
            _ => return Ok(()),
        };
        // the next start repeats a write that fails here: the file is still there
        let _ = self.put_bad_configs(steps, settled)?;
        Ok(())
    }

    /// Whether the verdicts on this payload were lost while it was assigned.
    pub(crate) fn is_doubted(&self, is: &Identity) -> bool {
        self.bad_configs.known().is_some_and(|bad| bad.doubted == Some(is.payload))
    }

    /// Moves verdicts that earlier releases recorded about this content to its present id.
    pub(crate) fn take_over_verdicts(&mut self, uid: &str, is: &Identity) {
        if let Known::Is(bad) = &mut self.bad_configs {
            bad.take_over(uid, is);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::records::CheckpointName;
    use serde_json::{Value, json};

    /// The payload under key `kubelet`, or the error.
    #[track_caller]
    fn check(object: Value, expect: Result<&str, &str>) {
        let source = Source::Pinned { namespace: "n".into(), name: "m".into(), uid: "u".into() };
        let found = config_map(object.to_string().as_bytes()).and_then(|object| payload(object, &source));
        assert_eq!(found, expect.map(str::to_owned).map_err(str::to_owned), "{object}");
    }

    fn with_keys(keys: &[&str]) -> Value {
        let data: Value = keys.iter().map(|key| ((*key).to_owned(), json!("x"))).collect();
        json!({"metadata": {"uid": "u"}, "data": data})
    }

    #[test]
    fn missing_key_error_lists_up_to_five_keys() {
        check(with_keys(&["kubelet", "a"]), Ok("x"));
        let nothing = "nor under any other (a file that is not UTF-8 becomes binaryData)";
        check(with_keys(&[]), Err(&format!("it has no text under key \"kubelet\", {nothing}")));
        let five = r#"it has no text under key "kubelet", its keys are "a", "b", "c", "d", "e""#;
        check(with_keys(&["a", "b", "c", "d", "e"]), Err(five));
        check(with_keys(&["a", "b", "c", "d", "e", "f"]), Err(&format!("{five}, 1 more")));
        check(with_keys(&["a", "b", "c", "d", "e", "f", "g", "h"]), Err(&format!("{five}, 3 more")));
    }

    #[test]
    fn checkpoint_without_the_recorded_payload_is_damaged() {
        let record = |payload: &[u8]| ConfigRecord {
            source: Source::Following { namespace: "n".into(), name: "m".into(), key: "gone".into() },
            uid: "u".into(),
            resource_version: "1".into(),
            checkpoint: CheckpointName::new("u", "f").expect("file names"),
            digest: Recorded::Payload(Digest::of(payload)),
        };
        let object = json!({"data": {"a": "x", "b": "y"}}).to_string();
        assert_eq!(payload_of(object.as_bytes(), &record(b"y")), Ok("y".into()), "under another key");
        for (object, payload) in [(object.as_str(), &b"z"[..]), ("{}", b"y")] {
            let found = payload_of(object.as_bytes(), &record(payload));
            assert!(found.is_err_and(|why| why.contains("is damaged")), "{object}");
        }
        let found = payload_of(b"{", &record(b"y"));
        assert!(
            found.is_err_and(|why| why.starts_with("its checkpoint is damaged: it is not a ConfigMap: EOF"))
        );
    }
}
