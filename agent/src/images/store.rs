//! The images of this node: their records, and their removal.
//!
//! Always holds: records are read, changed and written under one lock, an image's config before its record;
//! removal deletes an image's record first, then the layers that no record names, no pull claims and nothing
//! mounts, then configs and blobs. A removal waits for no pull, only for the moments in which one claims its
//! files. `needed.json` lists the images that pods need, so that a command knows them without a running
//! agent; while that file cannot be read, everything counts as needed.

use kedge_core::images::thresholds::{Collected, Thresholds};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kedge_core::images::collect::{self, Ages, Plan};
use kedge_core::images::manifest::{Config, ImageConfig, MAX_CONFIG_BYTES};
use kedge_core::images::record::{MAX_RECORD_BYTES, Record, Records, Unreadable};
use kedge_core::images::room::{Disk, Room};
use kedge_core::images::{BlobDigest, Reference};
use kedge_core::sorted::{SortedMap, SortedSet};
use kedge_platform::images::{BlobName, Claim, Hold, ImageFiles, Layers, mounted_layers};
use kedge_platform::{Files, ReadError, linux};

use super::error::{PullError, Sort};
use crate::errors::chain;

/// Most images; each costs a start the reading of a record. One more is refused: an incomplete list would
/// block removals.
const MAX_IMAGES: usize = 2000;
/// Most files listed: records, and half-written ones that power cuts left.
const MAX_LISTED: usize = 2 * MAX_IMAGES;
/// Longest list of needed images: 10,000 pods with a reference of 200 bytes each.
const NEEDED_BYTES: usize = 4 << 20;
const NEEDED: &str = "needed.json";
const RECORDS: &str = "records";
/// Configs of images, each named by its digest: the image's ID.
const CONFIGS: &str = "configs";

/// The removed images, and the failures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Names of images, or their IDs.
    pub images: Vec<String>,
    pub bytes: u64,
    /// Objects that could not be removed or read, and why; the rest was removed.
    pub problems: Vec<String>,
}

impl Removed {
    fn add(&mut self, other: Self) {
        self.images.extend(other.images);
        self.bytes += other.bytes;
        self.problems.extend(other.problems);
    }
}

/// The leftovers that a removal deletes besides images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leftovers {
    /// Layers only: the blobs of an interrupted pull stay for its next try.
    Layers,
    All,
}

/// Begin of the line of a claim that names a pulled image: its compressed bytes and its name follow.
const PULL: &str = "pull ";

/// An image that is being fetched or unpacked.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UnderWay {
    /// The whole reference.
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    /// Fetched, or already present.
    pub(crate) have_bytes: u64,
}

/// The directory `images` below the agent's root directory.
#[derive(Clone)]
pub struct Store {
    pub(super) files: ImageFiles,
    state: Arc<dyn Files>,
}

impl Store {
    /// Opens the images below `root_dir`; makes missing directories. `program` is this very program.
    ///
    /// # Errors
    /// A directory cannot be made.
    pub fn open(root_dir: &Path, program: &Path) -> io::Result<Self> {
        let files = ImageFiles::open(&root_dir.join("images"), program)?;
        let state = linux::files(files.root());
        Ok(Self { files, state })
    }

    /// All records.
    ///
    /// # Errors
    /// The directory cannot be listed, so the records are unknown.
    pub fn records(&self) -> Result<Records, PullError> {
        let mut records = Records::default();
        let listing = match self.state.list(Path::new(RECORDS), MAX_LISTED) {
            Err(ReadError::NotFound { .. }) => return Ok(records),
            listing => listing.map_err(|error| PullError::disk(&error))?,
        };
        for entry in &listing.entries {
            // no version writes a name that is not text
            let Some(name) = entry.name.to_str().filter(|name| name.ends_with(".json")) else { continue };
            let read = self.state.read(&Path::new(RECORDS).join(&entry.name), MAX_RECORD_BYTES);
            let unreadable = |error: ReadError| match &error {
                ReadError::NotAFile { .. } => Unreadable::damaged(chain(&error)),
                _ => Unreadable::now(chain(&error)),
            };
            records.add(name, read.map_err(unreadable).and_then(|bytes| Record::parse(&bytes)));
        }
        if listing.truncated {
            records.add("", Err(Unreadable::now(format!("more than {MAX_LISTED} records"))));
        }
        Ok(records)
    }

    /// Writes an image's config, then its record, and takes its names from other images. Nothing is written
    /// if nothing changed. The caller must block removals.
    pub(super) fn save(&self, new: Record, config: Option<&[u8]>) -> Result<Record, PullError> {
        let _only = self.files.hold_records().map_err(|error| PullError::disk(&error))?;
        let records = self.records()?;
        admit(&records, &new.id)?;
        if let Some(config) = config {
            // written also for a known image: its config may be damaged
            let written = self.state.write_durably(Path::new(&config_path(&new.id)), config);
            written.map_err(|error| PullError::disk(&error))?;
        }
        if !records.is_news(&new)
            && let Some(known) = records.get(&new.id)
        {
            return Ok(known.clone());
        }
        let writes = records.with_new(new);
        for record in &writes {
            let path = record_path(&record.id);
            let written = self.state.write_durably(Path::new(&path), &record.to_bytes());
            written.map_err(|error| PullError::disk(&error))?;
        }
        writes.into_iter().next().ok_or_else(|| PullError::new(Sort::Disk, "nothing was written"))
    }

    /// An image's config, if that and every layer are present. A config with damaged bytes counts as absent:
    /// the next pull fetches it.
    pub(super) fn whole(&self, record: &Record) -> Option<ImageConfig> {
        let has = |chain: &BlobDigest| {
            blob_name(chain).is_some_and(|name| self.files.layers.record(&name).is_some())
        };
        let directories = record.directories(self.has_overlay().ok()?);
        let bytes = self.state.read(Path::new(&config_path(&record.id)), MAX_CONFIG_BYTES).ok()?;
        let is_good = BlobDigest::of(&bytes) == record.id && directories.iter().all(has);
        Some(Config::parse(&bytes, record.layers.len()).ok().filter(|_| is_good)?.image)
    }

    /// Keeps names from removal; see [`ImageFiles::claim`].
    pub(super) fn claim(&self, names: impl IntoIterator<Item = String>) -> Result<Claim, PullError> {
        self.files.claim(names).map_err(|error| self.lock_failed(&error))
    }

    /// The same for the pull of an image with these blobs, which have this many bytes together.
    pub(super) fn claim_pull(
        &self,
        reference: &Reference,
        size_bytes: u64,
        blobs: impl Iterator<Item = String>,
    ) -> Result<Claim, PullError> {
        self.claim([format!("{PULL}{size_bytes} {reference}")].into_iter().chain(blobs))
    }

    /// The pulls of all processes into this store.
    ///
    /// # Errors
    /// The claims cannot be read.
    pub(crate) fn under_way(&self) -> Result<Vec<UnderWay>, PullError> {
        let claims = self.files.claims().map_err(|error| PullError::disk(&error))?;
        let mut found: Vec<UnderWay> = claims.iter().filter_map(|lines| self.pull_of(lines)).collect();
        kedge_api::sort::sort_by(&mut found, |one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    fn pull_of(&self, claimed: &[String]) -> Option<UnderWay> {
        let (size, name) = claimed.iter().find_map(|line| line.strip_prefix(PULL))?.split_once(' ')?;
        let size_bytes = size.parse().ok()?;
        // a layer may be listed twice, and the names of unpacked layers are not blobs
        let blobs: SortedSet<&String> = claimed.iter().collect();
        let have = blobs.into_iter().filter_map(|name| Some(self.files.blobs.bytes(&BlobName::new(name)?)));
        Some(UnderWay { name: name.to_owned(), size_bytes, have_bytes: have.sum::<u64>().min(size_bytes) })
    }

    fn lock_failed(&self, error: &io::Error) -> PullError {
        PullError::new(Sort::Disk, format!("cannot lock {}: {error}", self.files.root().display()))
    }

    /// Whether this node mounts layers over one another.
    pub(super) fn has_overlay(&self) -> Result<bool, PullError> {
        self.files.layers.has_overlay().map_err(|error| {
            PullError::new(
                Sort::Disk,
                format!("cannot try overlayfs in {}: {error}", self.files.root().display()),
            )
        })
    }

    /// The room there is for images.
    pub(super) fn room(&self) -> Result<Room, PullError> {
        Ok(self.disk().map_err(|error| PullError::disk(&error))?.room())
    }

    fn disk(&self) -> io::Result<Disk> {
        let [capacity_bytes, available_bytes, inodes, inodes_free] = self.files.space()?;
        Ok(Disk { capacity_bytes, available_bytes, inodes, inodes_free })
    }

    /// Records durably which images pods need; those recorded before stay unless these are all. Nothing is
    /// written if nothing changed.
    ///
    /// # Errors
    /// The disk failed; the earlier list stays valid.
    pub fn set_needed(&self, mut references: BTreeSet<String>, is_all: bool) -> Result<(), PullError> {
        let known = self.needed_references();
        if !is_all {
            references.extend(known.clone().map_err(|why| PullError::new(Sort::Disk, why))?);
        }
        if known.is_ok_and(|known| known == references) {
            return Ok(());
        }
        let text = serde_json::to_vec(&references).map_err(|error| PullError::disk(&error))?;
        let _only = self.files.hold_records().map_err(|error| PullError::disk(&error))?;
        self.state.write_durably(Path::new(NEEDED), &text).map_err(|error| PullError::disk(&error))
    }

    fn needed_references(&self) -> Result<BTreeSet<String>, String> {
        match self.state.read(Path::new(NEEDED), NEEDED_BYTES) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| format!("{NEEDED}: {error}")),
            Err(ReadError::NotFound { .. }) => Ok(BTreeSet::new()),
            Err(error) => Err(chain(&error)),
        }
    }

    /// The images that a pod needs or a container mounts.
    fn needed(&self, records: &Records) -> Result<SortedSet<BlobDigest>, String> {
        let mounted = mounted_layers(self.files.layers.directory())
            .map_err(|error| format!("/proc/self/mountinfo: {error}"))?;
        let references = self.needed_references()?;
        let references = references.iter().filter_map(|text| Reference::parse(text).ok());
        let mut needed: SortedSet<BlobDigest> =
            references.filter_map(|reference| records.find(&reference)).map(|record| record.id).collect();
        // by its topmost layer, whose name covers those below: they may be shared by many images
        let is_mounted = |record: &&Record| {
            let tops = [true, false].map(|has_overlay| record.directories(has_overlay).pop());
            let mut names = tops.iter().flatten().filter_map(blob_name);
            names.any(|name| mounted.contains(Layers::name(&name)))
        };
        needed.extend(records.iter().filter(is_mounted).map(|record| record.id));
        Ok(needed)
    }

    /// Removes images that nobody needs, whatever their age, and all leftovers: one after the other, like
    /// [`Store::collect`].
    ///
    /// # Errors
    /// The images are unknown; nothing was removed.
    pub fn prune(&self) -> Result<Removed, PullError> {
        let mut unused = Vec::new();
        let mut removed = self.remove_if(|records, needed| {
            unused = collect::unused(records, needed);
            Ok((Vec::new(), Leftovers::All))
        })?;
        self.remove_each(&unused, &mut removed);
        Ok(removed)
    }

    /// Removes each of these images if nobody needs it when its turn comes. A container whose image is
    /// present waits for at most one removal.
    fn remove_each(&self, ids: &[BlobDigest], removed: &mut Removed) {
        for id in ids {
            let one = self.remove_if(|records, needed| {
                // a pod may have started meanwhile, or a command removed it
                let may_go = records.get(id).is_some() && !needed.contains(id);
                Ok((may_go.then_some(*id).into_iter().collect(), Leftovers::Layers))
            });
            match one {
                Ok(one) => removed.add(one),
                Err(error) => return removed.problems.push(error.text),
            }
        }
    }

    /// Removes one image by name or ID.
    ///
    /// # Errors
    /// The image does not exist, or is needed.
    pub fn remove(&self, name: &str) -> Result<Removed, PullError> {
        if let Ok(id) = BlobDigest::parse(name)
            && self.records()?.is_unreadable(&id)
        {
            return self.remove_unreadable(&id);
        }
        self.remove_if(|records, needed| {
            let found = match BlobDigest::parse(name) {
                Ok(id) => records.get(&id),
                Err(_) => {
                    records.find(&Reference::parse(name).map_err(|why| PullError::new(Sort::Name, why))?)
                }
            };
            let found =
                found.ok_or_else(|| PullError::new(Sort::Name, format!("there is no image {name}")))?;
            if needed.contains(&found.id) {
                return Err(PullError::new(
                    Sort::Name,
                    format!("{name} is needed by a pod or mounted by a container"),
                ));
            }
            Ok((vec![found.id], Leftovers::Layers))
        })
    }

    /// Garbage collection: removes the images that `collect::choose` chooses, one after the other, so that a
    /// pull or container that waits for the lock waits for at most one removal.
    ///
    /// # Errors
    /// The images are unknown; nothing was removed.
    pub fn collect(
        &self,
        ages: &mut Ages,
        thresholds: &Thresholds,
        now: Duration,
    ) -> Result<Collected, PullError> {
        let mut plan = Plan::default();
        let disk = self.disk().map_err(|error| PullError::disk(&error))?;
        let sizes = self.layer_sizes()?;
        let mut removed = self.remove_if(|records, needed| {
            ages.note(records, needed, now);
            plan = collect::choose(records, ages, needed, &sizes, (&disk, thresholds), now);
            // a pull that waits for its next try keeps its blobs, unless the disk is too full
            let leftovers = if plan.wanted_bytes > 0 { Leftovers::All } else { Leftovers::Layers };
            Ok((Vec::new(), leftovers))
        })?;
        self.remove_each(&plan.remove, &mut removed);
        Ok(Collected {
            disk,
            wanted_bytes: plan.wanted_bytes,
            freed_bytes: removed.bytes,
            images: removed.images,
            problems: removed.problems,
        })
    }

    /// Bytes on disk of each present layer.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn layer_sizes(&self) -> Result<SortedMap<BlobDigest, u64>, PullError> {
        let layers = self.files.layers.list().map_err(|error| PullError::disk(&error))?;
        let digest = |chain: &str| BlobDigest::parse(&format!("sha256:{chain}")).ok();
        Ok(layers.iter().filter_map(|layer| Some((digest(&layer.chain)?, layer.bytes))).collect())
    }

    /// Removes an unreadable record, such as a newer agent's; then the layers that only it could have kept.
    /// Containers that run keep their layers, because those are mounted.
    fn remove_unreadable(&self, id: &BlobDigest) -> Result<Removed, PullError> {
        let (_alone, claimed) = self.hold_alone()?;
        let mut removed = Removed::default();
        self.state.remove(Path::new(&record_path(id))).map_err(|error| PullError::disk(&error))?;
        removed.images.push(id.to_string());
        self.remove_leftovers(Leftovers::Layers, &claimed, &mut removed)?;
        Ok(removed)
    }

    /// Blocks claims, and returns those that exist.
    fn hold_alone(&self) -> Result<(Hold, BTreeSet<String>), PullError> {
        let hold = self.files.hold_alone().map_err(|error| self.lock_failed(&error))?;
        let claimed = self.files.claimed().map_err(|error| self.lock_failed(&error))?;
        Ok((hold, claimed))
    }

    /// Removes blobs that no pull claims.
    pub(super) fn remove_blobs(&self, names: impl Iterator<Item = BlobName>) -> Result<(), PullError> {
        let (_alone, claimed) = self.hold_alone()?;
        for name in names.filter(|name| !claimed.contains(name.as_str())) {
            self.files.blobs.remove(&name).map_err(|error| PullError::disk(&error))?;
        }
        Ok(())
    }

    /// Sets records aside that no version can read. Their images are lost in any case, and each such record
    /// would block all removals. Layers of running containers stay, because they are mounted.
    fn set_damaged_aside(&self) -> Result<(), PullError> {
        let _only = self.files.hold_records().map_err(|error| PullError::disk(&error))?;
        let records = self.records()?;
        for (file, why) in records.damaged() {
            let path = Path::new(RECORDS).join(file);
            let now = self.state.set_aside(&path).map_err(|error| PullError::disk(&error))?;
            log::warn!(
                "{RECORDS}/{file} is damaged: {why}; it was set aside as {}, and its image is no longer here",
                now.display()
            );
        }
        Ok(())
    }

    fn remove_if(
        &self,
        choose: impl FnOnce(&Records, &SortedSet<BlobDigest>) -> Result<(Vec<BlobDigest>, Leftovers), PullError>,
    ) -> Result<Removed, PullError> {
        let (_alone, claimed) = self.hold_alone()?;
        self.set_damaged_aside()?;
        let records = self.records()?;
        let unknown = |why: String| PullError::new(Sort::Disk, format!("{why}; nothing was removed"));
        if let Some(why) = records.unreadable().first() {
            let hint = "an image whose record cannot be read is removed by its ID";
            return Err(unknown(format!("{RECORDS}/{why} ({hint})")));
        }
        let needed = self.needed(&records).map_err(unknown)?;
        let mut removed = Removed::default();
        let (chosen, leftovers) = choose(&records, &needed)?;
        for id in chosen {
            let name = records.get(&id).and_then(|record| record.names.first().cloned());
            match self.state.remove(Path::new(&record_path(&id))) {
                Ok(()) => removed.images.push(name.unwrap_or_else(|| id.to_string())),
                Err(error) => removed.problems.push(chain(&error)),
            }
        }
        self.remove_leftovers(leftovers, &claimed, &mut removed)?;
        Ok(removed)
    }

    /// Removes half-written records that power cuts left: nobody writes a record while the lock is held.
    fn remove_half_written(&self, removed: &mut Removed) {
        let _only = match self.files.hold_records() {
            Ok(held) => held,
            Err(error) => return removed.problems.push(format!("lock records: {error}")),
        };
        for directory in ["", RECORDS, CONFIGS] {
            let report = linux::files(self.files.root().join(directory)).sweep_root(MAX_LISTED);
            removed.problems.extend(report.errors);
        }
    }

    /// Removes layers and configs that no image has, half-written files of those and of records; perhaps
    /// blobs.
    fn remove_leftovers(
        &self,
        leftovers: Leftovers,
        claimed: &BTreeSet<String>,
        removed: &mut Removed,
    ) -> Result<(), PullError> {
        self.remove_half_written(removed);
        let records = self.records()?;
        let mounted =
            mounted_layers(self.files.layers.directory()).map_err(|error| PullError::disk(&error))?;
        // nothing is removed while a record cannot be read: any layer could belong to it
        let Some(kept) = records.layers() else { return Ok(()) };
        for (chain_id, bytes) in self.layer_sizes()? {
            let Some(name) = blob_name(&chain_id) else { continue };
            let is_claimed = claimed.contains(name.as_str());
            if is_claimed || kept.contains(&chain_id) || mounted.contains(Layers::name(&name)) {
                continue;
            }
            match self.files.layers.remove(&name) {
                Ok(()) => removed.bytes += bytes,
                Err(error) => removed.problems.push(chain(&error)),
            }
        }
        match self.files.layers.sweep(claimed) {
            Ok(stuck) => {
                removed.problems.extend(stuck.iter().map(|name| format!("cannot remove layers/{name}")))
            }
            Err(error) => removed.problems.push(format!("layers: {error}")),
        }
        self.remove_configs(&records, removed);
        if leftovers == Leftovers::Layers {
            return Ok(());
        }
        let blobs = self.files.blobs.list().map_err(|error| PullError::disk(&error))?;
        let blobs = blobs.iter().filter(|name| !claimed.contains(name.as_str()));
        let failed = blobs.filter_map(|name| self.files.blobs.remove(name).err());
        removed.problems.extend(failed.map(|error| chain(&error)));
        Ok(())
    }

    /// Configs that no image has.
    fn remove_configs(&self, records: &Records, removed: &mut Removed) {
        let listing = match self.state.list(Path::new(CONFIGS), MAX_LISTED) {
            Err(ReadError::NotFound { .. }) => return,
            Err(error) => return removed.problems.push(chain(&error)),
            Ok(listing) => listing,
        };
        let kept: BTreeSet<String> = records.iter().map(|record| config_path(&record.id)).collect();
        for entry in listing.entries {
            let path = Path::new(CONFIGS).join(&entry.name);
            if !kept.contains(path.to_string_lossy().as_ref())
                && let Err(error) = self.state.remove(&path)
            {
                removed.problems.push(chain(&error));
            }
        }
    }
}

/// Whether there may be one more image.
pub(super) fn admit(records: &Records, id: &BlobDigest) -> Result<(), PullError> {
    if records.get(id).is_some() || records.iter().count() < MAX_IMAGES {
        return Ok(());
    }
    Err(PullError::new(Sort::Disk, format!("there are {MAX_IMAGES} images: prune first")))
}

fn record_path(id: &BlobDigest) -> String {
    format!("{RECORDS}/{}.json", id.hex())
}

fn config_path(id: &BlobDigest) -> String {
    format!("{CONFIGS}/{}.json", id.hex())
}

/// A digest as a file's name.
pub(super) fn blob_name(digest: &BlobDigest) -> Option<BlobName> {
    BlobName::new(&digest.hex())
}
