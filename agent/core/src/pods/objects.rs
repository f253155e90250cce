//! The ConfigMaps and Secrets that pods of one Node refer to: which are needed, their known content, and
//! their copies on disk. Another Node's API server may have different objects of the same names, so each Node
//! UID has its own set.
//!
//! Always holds: an object is read once and kept until no pod refers to it; a missing answer changes nothing;
//! a copy on disk is rewritten only if its data changed; a Secret annotated `kedge.dev/offline: never` is
//! never written, and a copy from before the annotation is removed. That an object does not exist is written
//! too: a pod that runs without the object can then start without it while the server is unreachable. Leaves
//! to others: the use of the data (`environment`, `volumes`).

use crate::answer::{Level, Now};
use crate::config::digest::Digest;
use crate::pods::event::{DesiredFile, ObjectRead, PodAction};
use crate::pods::keys::{ObjectKind, ObjectName};
use crate::pods::shares::Shares;
use crate::pods::spec::{FileSource, Pod, PodSpec};
use crate::sorted::{SortedMap, SortedSet};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// On a Secret: its data stays in memory only, and pods that need it wait for the API server after a reboot.
const OFFLINE_ANNOTATION: &str = "kedge.dev/offline";
/// A copy older than this is read again when a container starts: the lifetime of kubelet's cache.
const FRESH: Duration = Duration::from_secs(60);
/// The wait after the first read without an object, doubled up to `LONGEST_WAIT`.
const FIRST_WAIT: Duration = Duration::from_secs(10);
/// Long enough that 100 pods with missing objects cost a hub little, short enough for a person who creates
/// the object.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Most bytes of all objects, which are held in memory. One namespace may use half of the space that the
/// others leave free, as with pods.
const MOST_DATA_BYTES: usize = 32 << 20;
/// The wait before the next read of an object that has no room, or makes a pod's volumes too large: each read
/// transfers all its bytes.
pub(crate) const LARGE_WAIT: Duration = Duration::from_secs(600);

/// Most absent objects that are recorded on disk: a pod can name thousands, and each takes a block.
const MOST_MISSING: usize = 64;

/// The data of an object, by key.
pub(crate) type Data = SortedMap<String, Vec<u8>>;

/// The known state of the objects of one API server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Objects {
    /// The Node to which that server bound the pods.
    node_uid: String,
    known: SortedMap<ObjectName, Object>,
}

#[derive(Debug, Clone, Default)]
struct Object {
    data: Option<Data>,
    /// Why the object is unavailable: the API server answered that it does not exist, or refused to show it.
    missing: Option<String>,
    /// The API server marked it as never changing.
    is_immutable: bool,
    is_reading: bool,
    /// Unanswered reads of this name that were sent for pods of another Node: their answers do not count for
    /// this one.
    foreign: u32,
    read_at: Option<Duration>,
    next_read: Duration,
    failures: u32,
    /// The digest of the copy that was written or is being written.
    saved: Option<Digest>,
    is_saving: bool,
}

/// The objects of all API servers whose pods are here.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownObjects {
    /// By Node UID.
    sets: SortedMap<String, Objects>,
    /// Copies on disk that were unreadable, by their name: each is replaced, or removed with the last pod
    /// that may need it.
    unreadable: BTreeSet<String>,
    /// Pods were added, changed or removed, so some objects may no longer be needed.
    pub(crate) has_new_needs: bool,
}

impl KnownObjects {
    /// The objects of the server that bound pods to this Node.
    pub(crate) fn of(&mut self, node_uid: &str) -> &mut Objects {
        self.sets.entry(node_uid.to_owned()).or_insert_with(|| Objects::of(node_uid))
    }

    pub(crate) fn get_mut(&mut self, node_uid: &str) -> Option<&mut Objects> {
        self.sets.get_mut(node_uid)
    }

    /// Takes a copy that was on disk.
    pub(crate) fn copy_found(&mut self, digest: &str, content: &[u8]) -> Result<(), String> {
        let node_uid = owner_of(content)?;
        self.of(&node_uid).copy_found(digest, content)
    }

    /// Such a copy is unreadable.
    pub(crate) fn copy_is_unreadable(&mut self, digest: String) {
        self.unreadable.insert(digest);
    }

    /// Pods are bound to another Node from now on: answers to reads under way do not count for it.
    pub(crate) fn node_changed(&mut self, node_uid: &str) {
        let reads: Vec<_> = self.sets.values_mut().flat_map(Objects::give_up_reads).collect();
        self.of(node_uid).await_foreign(reads);
    }

    /// A copy was written or removed, or was not.
    pub(crate) fn saved(&mut self, digest: &str, done: &Result<(), String>) {
        for objects in self.sets.values_mut() {
            objects.saved(digest, done);
        }
    }

    /// Forgets the objects that no pod refers to; `needed` are the others, by Node UID.
    pub(crate) fn keep_only(
        &mut self,
        needed: &SortedMap<&str, SortedSet<ObjectName>>,
        actions: &mut Vec<PodAction>,
    ) {
        let nothing = SortedSet::new();
        for (node_uid, objects) in &mut self.sets {
            objects.keep_only(needed.get(node_uid.as_str()).unwrap_or(&nothing), actions);
        }
        self.sets.retain(|_, objects| objects.len() > 0);
        let mut files = BTreeSet::new();
        for (node_uid, names) in needed {
            files.extend(names.iter().map(|name| file_of(node_uid, name)));
        }
        self.unreadable.retain(|digest| {
            let keep = files.contains(digest);
            if !keep {
                actions.push(removal(digest.clone()));
            }
            keep
        });
    }

    /// The number of known objects.
    pub(crate) fn len(&self) -> usize {
        self.sets.values().map(Objects::len).sum()
    }
}

/// A copy on disk.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Record {
    api_version: String,
    kind: String,
    /// The Node whose pods refer to it.
    #[serde(rename = "nodeUID")]
    node_uid: String,
    object: ObjectName,
    /// In base64.
    data: BTreeMap<String, String>,
    /// The API server had no such object, so this record has no data.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    missing: bool,
}

const RECORD_VERSION: &str = "kedge.dev/v1";
const RECORD_KIND: &str = "PodObject";

/// A pod's need of an object, not fulfilled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    Data(&'a Data),
    /// The object does not exist or cannot be shown: upstream's text.
    Missing(String),
    /// Still unknown.
    Awaited,
}

/// The Node that a copy on disk belongs to.
fn owner_of(content: &[u8]) -> Result<String, String> {
    let record: Record = kedge_api::read::from_slice(content).map_err(|error| error.to_string())?;
    Ok(record.node_uid)
}

impl Objects {
    pub(crate) fn of(node_uid: &str) -> Self {
        Self { node_uid: node_uid.to_owned(), ..Self::default() }
    }

    /// Takes a copy that was on disk.
    fn copy_found(&mut self, digest: &str, content: &[u8]) -> Result<(), String> {
        let record: Record = kedge_api::read::from_slice(content).map_err(|error| error.to_string())?;
        if record.api_version != RECORD_VERSION
            || record.kind != RECORD_KIND
            || record.node_uid != self.node_uid
            || file_of(&self.node_uid, &record.object) != digest
        {
            return Err("it is no copy of the object that its name stands for".into());
        }
        let mut data = Data::new();
        for (key, value) in &record.data {
            let value = STANDARD.decode(value).map_err(|error| format!("{key}: {error}"))?;
            data.insert(key.clone(), value);
        }
        let missing = record.missing.then(|| not_found(&record.object));
        let object = self.known.entry(record.object).or_default();
        object.data = missing.is_none().then_some(data);
        object.missing = missing;
        object.saved = Some(Digest::of(content));
        Ok(())
    }

    pub(crate) fn find(&self, name: &ObjectName) -> Found<'_> {
        let Some(object) = self.known.get(name) else { return Found::Awaited };
        match (&object.data, &object.missing) {
            (_, Some(why)) => Found::Missing(why.clone()),
            (Some(data), None) => Found::Data(data),
            (None, None) => Found::Awaited,
        }
    }

    /// Whether its state is on disk, or is not meant to be, and no newer state is about to arrive. For a pod
    /// that has been waiting since `since`, a read that ended after that time is enough, even if another read
    /// for other pods is under way. If the server did not answer the last read, this read is not waited for.
    pub(crate) fn is_settled(&self, name: &ObjectName, since: Duration) -> bool {
        self.known.get(name).is_none_or(|object| {
            let is_awaited = object.is_reading && object.failures == 0;
            !object.is_saving && (!is_awaited || object.read_at.is_some_and(|at| at >= since))
        })
    }

    /// Reads the object if it is unknown or its copy is old.
    pub(crate) fn want(&mut self, now: Now, name: &ObjectName, actions: &mut Vec<PodAction>) {
        self.want_since(now, name, now.mono, actions);
    }

    /// The same for a pod that has been waiting since `since`: a copy that was not old then is not read
    /// again.
    pub(crate) fn want_since(
        &mut self,
        now: Now,
        name: &ObjectName,
        since: Duration,
        actions: &mut Vec<PodAction>,
    ) {
        let object = self.known.entry(name.clone()).or_default();
        let is_old = object.read_at.is_none_or(|at| since >= at.saturating_add(FRESH));
        let is_due = now.mono >= object.next_read;
        let is_old = is_old && !object.is_immutable;
        if !object.is_reading && object.foreign == 0 && is_due && (is_old || object.missing.is_some()) {
            object.is_reading = true;
            actions.push(PodAction::ReadObject(name.clone()));
        }
    }

    /// Reads a known object again, whatever the age of its copy, unless it never changes.
    pub(crate) fn read_again(&mut self, now: Now, name: &ObjectName, actions: &mut Vec<PodAction>) {
        let Some(object) = self.known.get_mut(name) else { return };
        if object.foreign == 0 && !object.is_reading && !object.is_immutable && now.mono >= object.next_read {
            object.is_reading = true;
            actions.push(PodAction::ReadObject(name.clone()));
        }
    }

    /// Whether it is unknown because the API server did not answer.
    pub(crate) fn is_out_of_reach(&self, name: &ObjectName) -> bool {
        self.known.get(name).is_some_and(|object| object.data.is_none() && object.failures > 0)
    }

    /// When it may be read again; `None` while it is being read.
    pub(crate) fn next_read(&self, name: &ObjectName) -> Option<Duration> {
        let object = self.known.get(name).filter(|object| !object.is_reading && object.foreign == 0)?;
        let old_at = object
            .read_at
            .filter(|_| object.missing.is_none())
            .map_or(Duration::ZERO, |at| at.saturating_add(FRESH));
        Some(object.next_read.max(old_at))
    }

    /// Takes an answer; returns whether the known state changed.
    pub(crate) fn answered(
        &mut self,
        now: Now,
        name: &ObjectName,
        read: ObjectRead,
        actions: &mut Vec<PodAction>,
    ) -> bool {
        let has_room = matches!(read, ObjectRead::Missing) && self.has_room_for_a_missing_one();
        let data = match &read {
            ObjectRead::Found(found) => data_of(name.kind, found),
            _ => Data::new(),
        };
        let fits = self.fits(name, bytes_of(&data));
        let Some(object) = self.known.get_mut(name) else { return false };
        if object.foreign > 0 {
            object.foreign = object.foreign.saturating_sub(1);
            return false;
        }
        object.is_reading = false;
        let missing = match read {
            ObjectRead::Found(found) => {
                object.failures = 0;
                object.read_at = Some(now.mono);
                if fits {
                    object.next_read = now.mono;
                    return object.update(&self.node_uid, name, &found, data, actions);
                }
                object.next_read = now.mono.saturating_add(LARGE_WAIT);
                let why = too_large(name, &data);
                if object.data.is_some() {
                    if !may_lie_on_disk(&found) {
                        object.save(&self.node_uid, name, None, actions);
                    }
                    let text = format!("{why}; pods keep the data that was read before");
                    actions.push(PodAction::Log(Level::Warn, text));
                    return false;
                }
                return object.missing.replace(why).is_none();
            }
            ObjectRead::Missing => {
                if object.data.is_none() && has_room {
                    object.save(&self.node_uid, name, Some(record_of(&self.node_uid, name, None)), actions);
                }
                Some(not_found(name))
            }
            // an object that the server refuses now was readable before, and containers run with it
            ObjectRead::Refused(why) => object.data.is_none().then_some(why),
            ObjectRead::Failed(_) => None,
        };
        object.next_read = now.mono.saturating_add(wait_after(object.failures));
        object.failures = object.failures.saturating_add(1);
        let Some(missing) = missing else { return false };
        let is_news = object.missing.as_ref() != Some(&missing);
        object.missing = Some(missing);
        is_news
    }

    /// Whether there is room for this many bytes of data beside the other objects.
    fn fits(&self, name: &ObjectName, bytes: usize) -> bool {
        let mut shares = Shares::within(usize::MAX, MOST_DATA_BYTES);
        for (other, object) in self.known.iter().filter(|(other, _)| *other != name) {
            if let Some(data) = &object.data {
                shares.add(&other.namespace, bytes_of(data));
            }
        }
        shares.fits(&name.namespace, bytes)
    }

    /// Whether one more absent object may be recorded.
    fn has_room_for_a_missing_one(&self) -> bool {
        let is_written = |object: &&Object| object.data.is_none() && object.saved.is_some();
        self.known.values().filter(is_written).nth(MOST_MISSING - 1).is_none()
    }

    /// From now on another API server is used: the known state stays, and reads under way count as another
    /// server's.
    fn give_up_reads(&mut self) -> Vec<(ObjectName, u32)> {
        let mut reads = vec![];
        for (name, object) in &mut self.known {
            // an object with a stored copy no longer counts as missing, as after a restart of the agent,
            // which reads the copy
            object.missing.take_if(|_| object.data.is_some());
            let own = u32::from(std::mem::take(&mut object.is_reading));
            let count = std::mem::take(&mut object.foreign).saturating_add(own);
            if count > 0 {
                reads.push((name.clone(), count));
            }
        }
        reads
    }

    /// Takes over reads that are under way for another Node's pods: no read of the same name is sent before
    /// they are answered.
    fn await_foreign(&mut self, reads: Vec<(ObjectName, u32)>) {
        for (name, count) in reads {
            let object = self.known.entry(name).or_default();
            object.foreign = object.foreign.saturating_add(count);
        }
    }

    /// Writing or removing a copy has ended.
    pub(crate) fn saved(&mut self, digest: &str, done: &Result<(), String>) -> bool {
        let node_uid = &self.node_uid;
        let object = self.known.iter_mut().find(|(name, _)| file_of(node_uid, name) == digest);
        let Some((_, object)) = object else { return false };
        object.is_saving = false;
        if done.is_err() {
            // the content on disk is unknown, so the next read writes again
            object.saved = None;
        }
        true
    }

    /// Forgets objects that no pod refers to.
    pub(crate) fn keep_only(&mut self, needed: &SortedSet<ObjectName>, actions: &mut Vec<PodAction>) {
        let node_uid = &self.node_uid;
        self.known.retain(|name, object| {
            let keep = needed.contains(name) || object.foreign > 0;
            if !keep && (object.saved.is_some() || object.is_saving) {
                actions.push(removal(file_of(node_uid, name)));
            }
            keep
        });
    }

    /// Number of kept objects, for tests that check bounds.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }
}

impl Object {
    /// Notes the API server's state; returns whether it is new.
    fn update(
        &mut self,
        node_uid: &str,
        name: &ObjectName,
        found: &Value,
        data: Data,
        actions: &mut Vec<PodAction>,
    ) -> bool {
        self.is_immutable = found["immutable"] == true;
        let is_news = self.missing.take().is_some() || self.data.as_ref() != Some(&data);
        let content = may_lie_on_disk(found).then(|| record_of(node_uid, name, Some(&data)));
        self.save(node_uid, name, content, actions);
        self.data = Some(data);
        is_news
    }

    /// Writes the copy, or removes it (`None`), unless the disk already has this content.
    fn save(
        &mut self,
        node_uid: &str,
        name: &ObjectName,
        content: Option<Vec<u8>>,
        actions: &mut Vec<PodAction>,
    ) {
        let digest = content.as_deref().map(Digest::of);
        if digest != self.saved {
            self.is_saving = true;
            self.saved = digest;
            let file = DesiredFile::Object(file_of(node_uid, name));
            actions.push(PodAction::SaveDesired { file, content });
        }
    }
}

fn may_lie_on_disk(object: &Value) -> bool {
    object["metadata"]["annotations"][OFFLINE_ANNOTATION] != "never"
}

fn bytes_of(data: &Data) -> usize {
    data.iter().map(|(key, value)| key.len().saturating_add(value.len())).sum()
}

fn too_large(name: &ObjectName, data: &Data) -> String {
    let ObjectName { kind, namespace, name } = name;
    let kind = match kind {
        ObjectKind::ConfigMap => "configmap",
        ObjectKind::Secret => "secret",
    };
    format!(
        "{kind} {name:?} has {} bytes: with it namespace {namespace} would have more than its share of the {MOST_DATA_BYTES} bytes \
         of ConfigMaps and Secrets that this node holds",
        bytes_of(data)
    )
}

/// Upstream's text.
fn not_found(name: &ObjectName) -> String {
    match name.kind {
        ObjectKind::ConfigMap => format!("configmap {:?} not found", name.name),
        ObjectKind::Secret => format!("secret {:?} not found", name.name),
    }
}

fn wait_after(failures: u32) -> Duration {
    FIRST_WAIT.saturating_mul(1 << failures.min(8)).min(LONGEST_WAIT)
}

fn removal(digest: String) -> PodAction {
    PodAction::SaveDesired { file: DesiredFile::Object(digest), content: None }
}

/// The name of an object's copy on disk.
fn file_of(node_uid: &str, name: &ObjectName) -> String {
    let kind = match name.kind {
        ObjectKind::ConfigMap => "ConfigMap",
        ObjectKind::Secret => "Secret",
    };
    Digest::of(format!("{node_uid}/{kind}/{}/{}", name.namespace, name.name).as_bytes()).to_string()
}

/// `None` as data if the object does not exist.
fn record_of(node_uid: &str, name: &ObjectName, data: Option<&Data>) -> Vec<u8> {
    let record = Record {
        api_version: RECORD_VERSION.into(),
        kind: RECORD_KIND.into(),
        node_uid: node_uid.to_owned(),
        object: name.clone(),
        data: data.into_iter().flatten().map(|(key, value)| (key.clone(), STANDARD.encode(value))).collect(),
        missing: data.is_none(),
    };
    serde_json::to_vec(&record).expect("a map of texts is JSON")
}

/// Texts of a ConfigMap, and base64 values of both kinds; an invalid base64 value is left out.
fn data_of(kind: ObjectKind, object: &Value) -> Data {
    let entries = |field: &str| object[field].as_object().into_iter().flatten();
    let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.as_bytes().to_vec()));
    let binary =
        |(key, value): (&String, &Value)| Some((key.clone(), STANDARD.decode(value.as_str()?).ok()?));
    match kind {
        ObjectKind::ConfigMap => {
            entries("data").filter_map(text).chain(entries("binaryData").filter_map(binary)).collect()
        }
        ObjectKind::Secret => entries("data").filter_map(binary).collect(),
    }
}

/// The objects that a pod refers to. A static pod refers to none: a static pod with such a reference is
/// refused.
pub(crate) fn needed_by(pod: &Pod) -> SortedSet<ObjectName> {
    let PodSpec { volumes, image_pull_secrets, .. } = &pod.spec;
    let mut needed = SortedSet::new();
    let mut add = |kind, name: &str| {
        // an object with an invalid name is reported missing without a request
        if kedge_api::names::subdomain_complaint(name).is_none() {
            needed.insert(ObjectName { kind, namespace: pod.namespace.clone(), name: name.to_owned() });
        }
    };
    for volume in volumes {
        for source in volume.file_sources().into_iter().flatten() {
            if let FileSource::Object(kind, object) = source {
                add(kind, &object.name);
            }
        }
    }
    for secret in image_pull_secrets {
        add(ObjectKind::Secret, &secret.name);
    }
    for container in pod.spec.all_containers() {
        for from in &container.env_from {
            if let Some(source) = &from.config_map_ref {
                add(ObjectKind::ConfigMap, &source.name);
            }
            if let Some(source) = &from.secret_ref {
                add(ObjectKind::Secret, &source.name);
            }
        }
        for source in container.env.iter().filter_map(|variable| variable.value_from.as_ref()) {
            if let Some(source) = &source.config_map_key_ref {
                add(ObjectKind::ConfigMap, &source.name);
            }
            if let Some(source) = &source.secret_key_ref {
                add(ObjectKind::Secret, &source.name);
            }
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_api::Timestamp;
    use serde_json::json;

    /// For a pod that starts waiting after all reads.
    const LATER: Duration = Duration::MAX;

    fn at(secs: u64) -> Now {
        Now { mono: Duration::from_secs(secs), wall: Timestamp::from_micros(0) }
    }

    fn secret() -> ObjectName {
        ObjectName { kind: ObjectKind::Secret, namespace: "default".into(), name: "s".into() }
    }

    fn read(objects: &mut Objects, secs: u64, read: ObjectRead) -> Vec<PodAction> {
        let mut actions = vec![];
        objects.answered(at(secs), &secret(), read, &mut actions);
        actions
    }

    fn found(annotations: &Value, version: &str) -> ObjectRead {
        ObjectRead::Found(json!({"metadata": {"annotations": annotations, "resourceVersion": version},
            "data": {"key": "aGk="}}))
    }

    #[test]
    fn immutable_object_is_never_read_again() {
        for (is_immutable, reads) in [(false, 1), (true, 0)] {
            let mut objects = Objects::default();
            objects.want(at(0), &secret(), &mut vec![]);
            let object = json!({"metadata": {}, "data": {"key": "aGk="}, "immutable": is_immutable});
            read(&mut objects, 1, ObjectRead::Found(object));
            let mut actions = vec![];
            objects.read_again(at(2), &secret(), &mut actions);
            objects.want(at(7200), &secret(), &mut actions);
            assert_eq!(actions.len(), reads, "{is_immutable}");
        }
    }

    #[test]
    fn copy_is_written_once_and_read_back() {
        let mut objects = Objects::default();
        let mut actions = vec![];
        objects.want(at(0), &secret(), &mut actions);
        objects.want(at(0), &secret(), &mut actions);
        assert_eq!(actions, [PodAction::ReadObject(secret())], "one read at a time");
        assert_eq!(objects.find(&secret()), Found::Awaited);
        let saves = read(&mut objects, 1, found(&json!({}), "1"));
        let [PodAction::SaveDesired { file: DesiredFile::Object(digest), content: Some(content) }] =
            &saves[..]
        else {
            panic!("{saves:?}")
        };
        assert!(!objects.is_settled(&secret(), LATER), "not before it is durable");
        assert_eq!(objects.next_read(&secret()), Some(Duration::from_secs(61)));
        objects.saved(digest, &Ok(()));
        assert!(objects.is_settled(&secret(), LATER));
        assert_eq!(read(&mut objects, 70, found(&json!({}), "2")), [], "metadata is not worth a write");

        let mut again = Objects::default();
        again.copy_found(digest, content).unwrap();
        assert!(matches!(again.find(&secret()), Found::Data(data) if data["key"] == b"hi"));
        assert!(again.copy_found(&"0".repeat(64), content).is_err(), "a file that was moved");
        let mut actions = vec![];
        again.keep_only(&SortedSet::new(), &mut actions);
        assert_eq!(actions, [removal(digest.clone())]);
    }

    #[test]
    fn absence_is_written_once_and_read_back() {
        let mut objects = Objects::default();
        objects.want(at(0), &secret(), &mut vec![]);
        let saves = read(&mut objects, 1, ObjectRead::Missing);
        let [PodAction::SaveDesired { file: DesiredFile::Object(digest), content: Some(content) }] =
            &saves[..]
        else {
            panic!("{saves:?}")
        };
        assert!(!objects.is_settled(&secret(), LATER), "not before it is durable");
        objects.saved(digest, &Ok(()));
        assert_eq!(read(&mut objects, 70, ObjectRead::Missing), [], "it lies there");
        let absent = Found::Missing("secret \"s\" not found".into());
        assert_eq!(objects.find(&secret()), absent);

        let mut again = Objects::default();
        again.copy_found(digest, content).unwrap();
        assert_eq!(again.find(&secret()), absent, "without anybody to ask");
        let mut actions = vec![];
        again.want(at(0), &secret(), &mut actions);
        assert_eq!(actions, [PodAction::ReadObject(secret())], "and asked for as soon as there is somebody");
        assert!(!again.is_settled(&secret(), LATER), "whose answer is waited for");
        assert_eq!(read(&mut again, 1, found(&json!({}), "1")).len(), 1, "the data takes its place");
        assert!(matches!(again.find(&secret()), Found::Data(_)));
        assert_eq!(read(&mut again, 2, ObjectRead::Missing), [], "the copy of one that was there stays");
    }

    #[test]
    fn names_of_missing_objects_on_disk_are_bounded() {
        let mut objects = Objects::default();
        let mut saves = vec![];
        for number in 0..MOST_MISSING + 10 {
            let name = ObjectName { name: format!("s-{number}"), ..secret() };
            objects.want(at(0), &name, &mut vec![]);
            objects.answered(at(1), &name, ObjectRead::Missing, &mut saves);
            assert!(matches!(objects.find(&name), Found::Missing(_)));
        }
        assert_eq!(saves.len(), MOST_MISSING);
    }

    #[test]
    fn objects_of_one_namespace_leave_room_to_those_of_others() {
        let mut objects = Objects::default();
        let mut actions = vec![];
        let large = |secs: u64,
                     name: &ObjectName,
                     bytes: usize,
                     objects: &mut Objects,
                     actions: &mut Vec<PodAction>| {
            objects.want(at(secs), name, &mut vec![]);
            let map = json!({"metadata": {}, "data": {"key": "x".repeat(bytes)}});
            objects.answered(at(secs), name, ObjectRead::Found(map), actions)
        };
        let map = |namespace: &str, number: usize| ObjectName {
            kind: ObjectKind::ConfigMap,
            namespace: namespace.into(),
            name: format!("m-{number}"),
        };
        (0..100).for_each(|number| _ = large(1, &map("hog", number), 1 << 20, &mut objects, &mut actions));
        let held =
            (0..100).filter(|number| matches!(objects.find(&map("hog", *number)), Found::Data(_))).count();
        assert_eq!(held, 16, "half of 32 MiB");
        let Found::Missing(why) = objects.find(&map("hog", 99)) else { panic!("there is no room for it") };
        assert!(
            why.contains(
                "configmap \"m-99\" has 1048579 bytes: with it namespace hog would have more than its share"
            ),
            "{why}"
        );
        assert!(large(2, &map("other", 0), 1 << 20, &mut objects, &mut actions), "it is news");
        assert!(matches!(objects.find(&map("other", 0)), Found::Data(_)));
        // it is read again, but rarely
        let read_again = |objects: &mut Objects, secs: u64| {
            let mut actions = vec![];
            objects.want(at(secs), &map("hog", 99), &mut actions);
            actions.len()
        };
        assert_eq!((read_again(&mut objects, 600), read_again(&mut objects, 601)), (0, 1));
        // an object that grows beyond the limit keeps its old content, and a removed one frees its room
        actions.clear();
        assert!(!large(3, &map("hog", 0), 2 << 20, &mut objects, &mut actions));
        assert!(matches!(objects.find(&map("hog", 0)), Found::Data(data) if data["key"].len() == 1 << 20));
        assert!(
            matches!(&actions[..], [PodAction::Log(Level::Warn, text)] if text.contains("pods keep the data that was read before")),
            "{actions:?}"
        );
        // a Secret that may no longer be on disk is removed from it then too
        actions.clear();
        let private = json!({"metadata": {"annotations": {OFFLINE_ANNOTATION: "never"}}, "data": {"key": "x".repeat(2 << 20)}});
        objects.want(at(700), &map("hog", 0), &mut vec![]);
        objects.answered(at(700), &map("hog", 0), ObjectRead::Found(private), &mut actions);
        let file = DesiredFile::Object(file_of("", &map("hog", 0)));
        assert!(actions.contains(&PodAction::SaveDesired { file, content: None }), "it is removed");
        objects.keep_only(&SortedSet::from([map("other", 0)]), &mut vec![]);
        assert!(large(700, &map("hog", 99), 1 << 20, &mut objects, &mut actions));
        assert!(matches!(objects.find(&map("hog", 99)), Found::Data(_)));
    }

    #[test]
    fn secret_that_must_not_lie_on_disk_is_not_written() {
        let mut objects = Objects::default();
        objects.want(at(0), &secret(), &mut vec![]);
        assert_eq!(read(&mut objects, 1, found(&json!({"kedge.dev/offline": "never"}), "1")), []);
        assert!(objects.is_settled(&secret(), LATER) && matches!(objects.find(&secret()), Found::Data(_)));
        let mut objects = Objects::default();
        objects.want(at(0), &secret(), &mut vec![]);
        read(&mut objects, 1, found(&json!({}), "1"));
        let removed = read(&mut objects, 2, found(&json!({"kedge.dev/offline": "never"}), "2"));
        assert_eq!(removed, [removal(file_of("", &secret()))], "a copy from before the annotation");
    }

    #[test]
    fn refusal_hides_nothing_that_is_known() {
        let mut objects = Objects::default();
        objects.want(at(0), &secret(), &mut vec![]);
        read(&mut objects, 0, ObjectRead::Refused("forbidden".into()));
        assert_eq!(objects.find(&secret()), Found::Missing("forbidden".into()));
        objects.want(at(20), &secret(), &mut vec![]);
        read(&mut objects, 20, found(&json!({}), "1"));
        objects.want(at(90), &secret(), &mut vec![]);
        read(&mut objects, 90, ObjectRead::Refused("forbidden".into()));
        assert!(matches!(objects.find(&secret()), Found::Data(_)));
    }

    #[test]
    fn answer_of_another_api_server_says_nothing() {
        let (mut old, mut new) = (Objects::of("1"), Objects::of("2"));
        old.want(at(0), &secret(), &mut vec![]);
        read(&mut old, 0, found(&json!({}), "1"));
        old.want(at(61), &secret(), &mut vec![]);
        new.await_foreign(old.give_up_reads());
        let mut actions = vec![];
        new.want(at(61), &secret(), &mut actions);
        assert_eq!(actions, [], "whose answer would it be?");
        read(&mut new, 62, found(&json!({}), "9"));
        assert_eq!(new.find(&secret()), Found::Awaited);
        assert!(matches!(old.find(&secret()), Found::Data(_)));
        new.want(at(62), &secret(), &mut actions);
        assert_eq!(actions, [PodAction::ReadObject(secret())]);
    }

    #[test]
    fn copy_belongs_to_one_node() {
        let (mut first, mut second) = (Objects::of("1"), Objects::of("2"));
        first.want(at(0), &secret(), &mut vec![]);
        let saves = read(&mut first, 1, found(&json!({}), "1"));
        let [PodAction::SaveDesired { file: DesiredFile::Object(digest), content: Some(content) }] =
            &saves[..]
        else {
            panic!("{saves:?}")
        };
        assert_eq!(owner_of(content), Ok("1".into()));
        assert!(second.copy_found(digest, content).is_err());
        assert_ne!(file_of("1", &secret()), file_of("2", &secret()));
    }

    #[test]
    fn read_under_way_is_waited_for_once() {
        let mut objects = Objects::default();
        objects.want(at(0), &secret(), &mut vec![]);
        assert!(!objects.is_settled(&secret(), LATER));
        read(&mut objects, 0, found(&json!({"kedge.dev/offline": "never"}), "1"));
        objects.want(at(61), &secret(), &mut vec![]);
        assert!(!objects.is_settled(&secret(), LATER), "the answer may be news");
        assert!(
            objects.is_settled(&secret(), Duration::ZERO),
            "for what has waited since before the first one"
        );
        assert_eq!(objects.next_read(&secret()), None);
        read(&mut objects, 62, ObjectRead::Failed("no route".into()));
        assert!(objects.is_settled(&secret(), LATER));
        objects.want(at(72), &secret(), &mut vec![]);
        assert!(objects.is_settled(&secret(), LATER), "a server that did not answer holds nothing up");
    }

    #[test]
    fn answer_that_did_not_come_changes_nothing() {
        let mut objects = Objects::default();
        objects.want(at(0), &secret(), &mut vec![]);
        read(&mut objects, 0, found(&json!({}), "1"));
        objects.want(at(61), &secret(), &mut vec![]);
        read(&mut objects, 62, ObjectRead::Failed("no route".into()));
        assert!(matches!(objects.find(&secret()), Found::Data(_)));
        let mut actions = vec![];
        objects.want(at(63), &secret(), &mut actions);
        assert_eq!(actions, [], "not before the wait is over");
        objects.want(at(73), &secret(), &mut actions);
        assert_eq!(actions.len(), 1);
        read(&mut objects, 74, ObjectRead::Missing);
        assert_eq!(objects.find(&secret()), Found::Missing("secret \"s\" not found".into()));
    }
}
