//! The record of an image on this node, and the consequences of all of them: which image a reference means,
//! which layers and blobs are kept.
//!
//! Always holds: a record is written after every layer it names is durable, so an image with a record can
//! run; of two records with one name (a cut between two writes) the later one owns it; while any record is
//! unreadable nothing counts as unused. A record of a newer agent is unknown, never empty. Leaves to others:
//! files (`agent/src/images/store.rs`), when to remove (`collect`).

use std::collections::BTreeSet;
use std::time::Duration;

use kedge_api::excerpt;
use serde::{Deserialize, Serialize};

use super::digest::BlobDigest;
use super::manifest::ImageConfig;
use super::platform::Platform;
use super::reference::Reference;
use super::signature::{MAX_SIGNATURES, Signature};
use crate::pods;
use crate::sorted::{SortedMap, SortedSet};

/// The form of records that this version reads and writes.
pub const API_VERSION: &str = "kedge.dev/v1";
/// Longest record: 512 names of about 500 bytes, 127 layers of 170, 16 signatures of 8.5 KiB (4 KiB of text,
/// each byte escaped). A start reads all records, so the image's config, which only a container needs, has a
/// file of its own.
pub const MAX_RECORD_BYTES: usize = 512 << 10;
/// Most names of one image, and most digests; beyond that the alphabetically last of the earlier ones are
/// dropped. A tag for each build would grow without end.
const MAX_NAMES: usize = 256;

/// One layer on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// The layers below it, and itself.
    pub chain: BlobDigest,
    /// The digest of its unpacked archive.
    pub diff: BlobDigest,
}

/// An image that can run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub api_version: String,
    /// The digest of its config: the image's ID.
    pub id: BlobDigest,
    /// `registry/repository:tag`.
    pub names: BTreeSet<String>,
    /// `registry/repository@digest`.
    pub digests: BTreeSet<String>,
    pub platform: Platform,
    /// The base first.
    pub layers: Vec<Layer>,
    /// Compressed, according to the manifest.
    pub size_bytes: u64,
    /// Later records have higher numbers.
    pub sequence: u64,
    /// By the node's wall clock; shown to people, used for no decision.
    pub pulled_unix_secs: u64,
    /// Signatures of its manifests as they were found, not yet compared with any key. An older agent drops
    /// them.
    #[serde(default, skip_serializing_if = "SortedSet::is_empty")]
    pub signatures: SortedSet<Signature>,
}

impl Record {
    /// Reads a record.
    ///
    /// # Errors
    /// This version does not understand the record.
    pub fn parse(bytes: &[u8]) -> Result<Self, Unreadable> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Version {
            api_version: String,
        }
        let damaged = |error: serde_json::Error| {
            Unreadable::damaged(format!("not an image's record: {}", excerpt(&error.to_string())))
        };
        let version: Version = kedge_api::read::from_slice(bytes).map_err(damaged)?;
        if version.api_version != API_VERSION {
            let found = excerpt(&version.api_version);
            return Err(Unreadable::now(format!("apiVersion is {found:?}, expected {API_VERSION:?}")));
        }
        kedge_api::read::from_slice(bytes).map_err(damaged)
    }

    /// The record's text on disk.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers are JSON")
    }

    /// A container's `imageID`: a name with the digest, or the ID.
    #[must_use]
    pub fn image_id(&self) -> String {
        self.digests.first().cloned().unwrap_or_else(|| self.id.to_string())
    }

    /// The chains of the directories to mount, the base first: on a node without overlayfs one directory with
    /// everything.
    #[must_use]
    pub fn directories(&self, has_overlay: bool) -> Vec<BlobDigest> {
        match self.layers.as_slice() {
            [_, .., top] if !has_overlay => vec![top.chain.merged()],
            layers => layers.iter().map(|layer| layer.chain).collect(),
        }
    }

    /// Every directory that may be this image's, whether or not the node has overlayfs.
    #[must_use]
    pub fn all_directories(&self) -> SortedSet<BlobDigest> {
        self.directories(true).into_iter().chain(self.directories(false)).collect()
    }

    /// The manifests that it was resolved from.
    #[must_use]
    pub fn manifests(&self) -> SortedSet<BlobDigest> {
        let digests = self.digests.iter().filter_map(|name| name.rsplit_once('@'));
        digests.filter_map(|(_, digest)| BlobDigest::parse(digest).ok()).collect()
    }

    /// In the form for a pod's container; `pulled` is how long the fetching took, and its bytes.
    #[must_use]
    pub fn for_container(&self, config: ImageConfig, pulled: Option<(Duration, u64)>) -> pods::Image {
        let (id, reference) = (self.id.to_string(), self.image_id());
        pods::Image { id, reference, config, size_bytes: self.size_bytes, pulled }
    }

    /// Adds the names by which it was pulled or imported.
    pub fn add_names(&mut self, reference: &Reference, manifest: &BlobDigest) {
        let (names, digests) = (std::mem::take(&mut self.names), std::mem::take(&mut self.digests));
        self.names.extend(reference.tagged());
        self.digests.insert(reference.with_digest(manifest));
        keep_bounded(&mut self.names, names);
        keep_bounded(&mut self.digests, digests);
    }
}

/// Adds earlier names while there is room.
fn keep_bounded(names: &mut BTreeSet<String>, earlier: impl IntoIterator<Item = String>) {
    for one in earlier {
        if names.len() >= MAX_NAMES {
            return;
        }
        names.insert(one);
    }
}

fn keep_at_most<T: Ord>(most: usize, kept: &mut SortedSet<T>, earlier: impl IntoIterator<Item = T>) {
    for one in earlier {
        if kept.len() >= most {
            return;
        }
        kept.insert(one);
    }
}

/// Why a file that should be a record is unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub why: String,
    /// No version wrote it in this form, and no version will read it. Otherwise it may be a newer agent's, or
    /// the disk may return it later.
    pub is_damaged: bool,
}

impl Unreadable {
    #[must_use]
    pub fn damaged(why: String) -> Self {
        Self { why, is_damaged: true }
    }

    /// Unreadable to this version, or at this moment.
    #[must_use]
    pub fn now(why: String) -> Self {
        Self { why, is_damaged: false }
    }
}

/// All images of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    all: SortedMap<BlobDigest, Record>,
    /// Files that should be records and are unreadable.
    unreadable: Vec<(String, Unreadable)>,
}

impl Records {
    /// Adds the content of a file.
    pub fn add(&mut self, file: &str, read: Result<Record, Unreadable>) {
        let unreadable = match read {
            Ok(record) if file == format!("{}.json", record.id.hex()) => {
                self.all.insert(record.id, record);
                return;
            }
            Ok(record) => Unreadable::damaged(format!("holds the record of {}", record.id)),
            Err(unreadable) => unreadable,
        };
        self.unreadable.push((file.to_owned(), unreadable));
    }

    /// Files that no version will ever read, and why: the image of such a record is lost.
    pub fn damaged(&self) -> impl Iterator<Item = (&str, &str)> {
        let damaged = self.unreadable.iter().filter(|(_, unreadable)| unreadable.is_damaged);
        damaged.map(|(file, unreadable)| (&**file, &*unreadable.why))
    }

    /// All readable ones, by ID.
    pub fn iter(&self) -> impl Iterator<Item = &Record> {
        self.all.values()
    }

    /// The unreadable ones, and why.
    #[must_use]
    pub fn unreadable(&self) -> Vec<String> {
        self.unreadable.iter().map(|(file, unreadable)| format!("{file}: {}", unreadable.why)).collect()
    }

    /// Whether the record of this ID exists and is unreadable.
    #[must_use]
    pub fn is_unreadable(&self, id: &BlobDigest) -> bool {
        let record = format!("{}.json", id.hex());
        self.unreadable.iter().any(|(file, _)| *file == record)
    }

    /// The image of this ID.
    #[must_use]
    pub fn get(&self, id: &BlobDigest) -> Option<&Record> {
        self.all.get(id)
    }

    /// The image of a reference. With a digest the repository has to be the same: another one's credentials
    /// may differ.
    #[must_use]
    pub fn find(&self, reference: &Reference) -> Option<&Record> {
        match &reference.digest {
            Some(digest) => {
                let name = reference.with_digest(digest);
                self.all.values().find(|record| record.digests.contains(&name))
            }
            None => self.holder_of(&reference.tagged()?),
        }
    }

    /// The image that has this `registry/repository:tag`: of two the later.
    fn holder_of(&self, name: &str) -> Option<&Record> {
        let named = self.all.values().filter(|record| record.names.contains(name));
        named.max_by_key(|record| record.sequence)
    }

    /// The number of the next record.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.all.values().map(|record| record.sequence).max().map_or(1, |last| last.saturating_add(1))
    }

    /// The records to write for a new image: its own first, then those of images that lose a name to it.
    #[must_use]
    pub fn with_new(&self, mut new: Record) -> Vec<Record> {
        new.sequence = self.next_sequence();
        if let Some(earlier) = self.all.get(&new.id) {
            keep_bounded(&mut new.digests, earlier.digests.iter().cloned());
            let kept = earlier.names.iter().filter(|name| self.holder_of(name) == Some(earlier));
            keep_bounded(&mut new.names, kept.cloned());
            keep_at_most(MAX_SIGNATURES, &mut new.signatures, earlier.signatures.iter().cloned());
        }
        let losers =
            self.all.values().filter(|record| record.id != new.id && !record.names.is_disjoint(&new.names));
        let losers: Vec<Record> = losers
            .map(|record| Record {
                names: record.names.difference(&new.names).cloned().collect(),
                ..record.clone()
            })
            .collect();
        std::iter::once(new).chain(losers).collect()
    }

    /// Whether a new record adds nothing to the present ones: then nothing is written.
    #[must_use]
    pub fn is_news(&self, new: &Record) -> bool {
        self.all.get(&new.id).is_none_or(|earlier| {
            !new.digests.is_subset(&earlier.digests)
                || new.names.iter().any(|name| self.holder_of(name) != Some(earlier))
                || new.layers != earlier.layers
                || !new.signatures.is_subset(&earlier.signatures)
        })
    }

    /// The directories that images need. `None` while a record is unreadable: any layer could be one of its.
    #[must_use]
    pub fn layers(&self) -> Option<SortedSet<BlobDigest>> {
        self.unreadable.is_empty().then(|| self.all.values().flat_map(Record::all_directories).collect())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn record(n: u8, names: &[&str], layers: &[u8], sequence: u64) -> Record {
        let digest = |n: u8| BlobDigest::of(&[n]);
        let mut record = Record {
            api_version: API_VERSION.to_owned(),
            id: digest(n),
            names: BTreeSet::new(),
            digests: BTreeSet::new(),
            platform: Platform::of_processor("x86_64", None),
            layers: layers.iter().map(|n| Layer { chain: digest(*n), diff: digest(*n) }).collect(),
            size_bytes: 10,
            sequence,
            pulled_unix_secs: 0,
            signatures: SortedSet::new(),
        };
        for name in names {
            record.add_names(&Reference::parse(name).unwrap(), &digest(n));
        }
        record
    }

    pub(crate) fn records(all: &[Record]) -> Records {
        let mut records = Records::default();
        for record in all {
            records.add(&format!("{}.json", record.id.hex()), Record::parse(&record.to_bytes()));
        }
        assert_eq!(records.unreadable(), [""; 0]);
        records
    }

    #[test]
    fn moved_tag_belongs_to_the_later_image() {
        let old = record(1, &["r.lan/a:v1", "r.lan/a:old"], &[10], 1);
        let present = records(std::slice::from_ref(&old));
        let writes = present.with_new(record(2, &["r.lan/a:v1"], &[10, 11], 0));
        let ids: Vec<_> = writes.iter().map(|record| record.id).collect();
        assert_eq!(ids, [BlobDigest::of(&[2]), old.id], "its own record is written first");
        assert_eq!(writes[0].sequence, 2);
        assert_eq!(writes[1].names, BTreeSet::from(["r.lan/a:old".to_owned()]));
        // every prefix of these writes is a state that a start can use
        let find = |records: &Records, name: &str| {
            records.find(&Reference::parse(name).unwrap()).map(|found| found.id)
        };
        for taken in 1..=2 {
            let after = records(&[&[old.clone()][..], &writes[..taken]].concat());
            assert_eq!(find(&after, "r.lan/a:v1"), Some(writes[0].id), "{taken}");
            assert_eq!(find(&after, "r.lan/a:old"), Some(old.id), "{taken}");
            let by_digest = format!("r.lan/a@{}", BlobDigest::of(&[1]));
            assert_eq!(find(&after, &by_digest), Some(old.id));
            assert_eq!(find(&after, &by_digest.replace("r.lan/a", "r.lan/b")), None, "another repository");
        }
    }

    #[test]
    fn signatures_of_an_image_are_gathered_and_bounded() {
        let some = |range: std::ops::Range<usize>| -> SortedSet<Signature> {
            let one = |n| serde_json::json!({"payload": format!("{n:02}"), "signature": ""});
            range.map(|n| serde_json::from_value(one(n)).unwrap()).collect()
        };
        let old = Record { signatures: some(0..10), ..record(1, &["r.lan/a:v1"], &[10], 1) };
        let present = records(std::slice::from_ref(&old));
        let same = Record { signatures: some(0..3), ..old.clone() };
        let more = Record { signatures: some(50..60), ..old.clone() };
        assert!(!present.is_news(&same) && present.is_news(&more));
        let kept = &present.with_new(more).remove(0).signatures;
        assert!(kept.len() == MAX_SIGNATURES && some(50..60).is_subset(kept), "the new ones first: {kept:?}");
        assert_eq!(old.manifests(), SortedSet::from([BlobDigest::of(&[1])]));
        let text = String::from_utf8(record(1, &[], &[], 1).to_bytes()).unwrap();
        assert!(!text.contains("signatures"), "as an older agent wrote it: {text}");
    }

    #[test]
    fn merged_directory_is_none_of_the_layers() {
        let image = record(1, &[], &[10, 11], 1);
        let merged = image.directories(false);
        assert_eq!(merged.len(), 1);
        assert!(!image.directories(true).contains(&merged[0]));
        assert_eq!(records(std::slice::from_ref(&image)).layers().unwrap().len(), 3);
        let single = record(1, &[], &[10], 1);
        assert_eq!(single.directories(false), single.directories(true));
    }

    #[test]
    fn known_image_is_no_news() {
        let present = records(&[record(1, &["r.lan/a:v1"], &[10], 1), record(2, &["r.lan/b:v1"], &[10], 2)]);
        assert!(!present.is_news(&record(1, &["r.lan/a:v1"], &[10], 0)));
        assert!(present.is_news(&record(1, &["r.lan/a:v2"], &[10], 0)));
        assert!(present.is_news(&record(3, &["r.lan/a:v1"], &[10], 0)));
        assert!(present.is_news(&record(1, &["r.lan/b:v1"], &[10], 0)));
    }

    #[test]
    fn unreadable_record_keeps_all_layers() {
        let mut present = records(&[record(1, &["r.lan/a:v1"], &[10, 11], 1)]);
        assert_eq!(present.layers().unwrap().len(), 3);
        let newer = String::from_utf8(record(2, &[], &[], 1).to_bytes()).unwrap().replace("dev/v1", "dev/v9");
        present.add("x.json", Record::parse(newer.as_bytes()));
        assert!(present.unreadable()[0].contains("kedge.dev/v9"), "{:?}", present.unreadable());
        assert_eq!(present.layers(), None);
        assert!(!present.is_unreadable(&BlobDigest::of(&[2])));
        let id = BlobDigest::of(&[2]);
        present.add(&format!("{}.json", id.hex()), Record::parse(newer.as_bytes()));
        assert!(present.is_unreadable(&id) && !present.is_unreadable(&BlobDigest::of(&[1])));
        let mut misplaced = Records::default();
        misplaced.add("y.json", Ok(record(1, &[], &[], 1)));
        assert_eq!((misplaced.layers(), misplaced.iter().count()), (None, 0));
    }

    #[test]
    fn damaged_is_what_no_version_reads() {
        let good = record(2, &[], &[], 1).to_bytes();
        let newer = String::from_utf8(good.clone()).unwrap().replace("dev/v1", "dev/v9");
        let cut = &good[..good.len() - 1];
        let of_ours = br#"{"apiVersion":"kedge.dev/v1"}"#;
        let mut records = Records::default();
        let forbidden = Unreadable::now("Input/output error".to_owned());
        for (file, read) in [
            ("newer.json", Record::parse(newer.as_bytes())),
            ("disk.json", Err(forbidden)),
            ("cut.json", Record::parse(cut)),
            ("empty.json", Record::parse(b"")),
            ("fields.json", Record::parse(of_ours)),
            ("misplaced.json", Record::parse(&good)),
        ] {
            records.add(file, read);
        }
        let damaged: Vec<_> = records.damaged().map(|(file, _)| file).collect();
        assert_eq!(damaged, ["cut.json", "empty.json", "fields.json", "misplaced.json"]);
        assert_eq!((records.unreadable().len(), records.layers()), (6, None));
    }

    #[test]
    fn names_of_one_image_are_bounded() {
        let mut record = record(1, &[], &[], 1);
        for n in 0..MAX_NAMES + 5 {
            record.add_names(&Reference::parse(&format!("r.lan/a:{n}")).unwrap(), &BlobDigest::of(b"m"));
        }
        assert_eq!((record.names.len(), record.digests.len()), (MAX_NAMES, 1));
        assert!(record.to_bytes().len() < MAX_RECORD_BYTES);
        // each pull adds one, and the image keeps the name of its latest pull
        let mut present = records(&[record.clone()]);
        for n in 0..3 {
            let name = format!("r.lan/z:{n}");
            let mut pulled = Record { names: BTreeSet::new(), digests: BTreeSet::new(), ..record.clone() };
            pulled.add_names(&Reference::parse(&name).unwrap(), &BlobDigest::of(&[n]));
            let writes = present.with_new(pulled);
            assert_eq!((writes[0].names.len(), writes[0].digests.len()), (MAX_NAMES, 2 + usize::from(n)));
            assert!(writes[0].names.contains(&name));
            present = records(&writes);
        }
    }
}
