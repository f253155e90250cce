//! From a reference to an image that can run.
//!
//! Always holds: mirrors are tried first, then the registry; an image that needs a signature is checked
//! before anything but its manifest is fetched; a layer is fetched only if it is missing, resumed where an
//! earlier try ended, compared with its digest, unpacked, made durable; the record is written last. Blobs are
//! removed once the record is written: a device stores each byte once. A pull claims the files that it uses
//! beforehand, so removals can run beside it. Left to others: which pods wait, and when a failed pull is
//! tried again.

use std::cell::Cell;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kedge_api::excerpt;
use kedge_core::images::bad::BadArchives;
use kedge_core::images::credentials::{self, Keyring};
use kedge_core::images::manifest::{self, Blob, Config, Document, ImageConfig, MAX_CONFIG_BYTES, Manifest};
use kedge_core::images::policy::Decision;
use kedge_core::images::record::{API_VERSION, Layer, Record};
use kedge_core::images::settings::Registries;
use kedge_core::images::signature::Signature;
use kedge_core::images::{BlobDigest, Platform, PullPolicy, Reference};
use kedge_core::sorted::SortedSet;
use kedge_platform::images::{
    BlobError, BlobName, Cancelled, Claim, IMPORT, Limits, Part, Step, Unpack, UnpackError,
};
use kedge_platform::linux::{open_named_file, read_named_file};
use kedge_platform::trees;
use log::warn;

use super::error::{PullError, Sort};
use super::layout::Layout;
use super::preloaded::Preloaded;
use super::registry::{Network, Registry};
use super::signatures;
use super::source::Source;
use super::store::{Store, admit, blob_name};
use crate::errors::chain;
use crate::net::proxy::ProxyEnvironment;
use crate::net::transport::{Cancel, Lookup, WallClock};

/// Bytes read from the network at a time.
const CHUNK_BYTES: usize = 64 * 1024;
/// How often a download checks that there is still room: other pulls and containers write meanwhile.
const ROOM_BYTES: u64 = 8 << 20;
/// How often a download is resumed within one pull, each time after it got further.
const MAX_RESUMES: u32 = 20;
/// A try that brought this much does not count as one of them, and a pull that brought it does not lengthen
/// the pause before the next: a link that cuts each connection after some MiB is slow, not broken.
const PROGRESS_BYTES: u64 = 256 * 1024;
/// A download that brings less than this in [`SLOWEST_TIME`] is given up, because it delays all pulls behind
/// it.
const SLOWEST_BYTES: u64 = 64 * 1024;
const SLOWEST_TIME: Duration = Duration::from_secs(300);
/// Most entries of a layer: the largest images known have 300,000 files in all their layers.
const MAX_ENTRIES: u64 = 500_000;
/// A layer may unpack to this much, and [`MOST_RATIO`] times its compressed size: gzip reaches 1000, real
/// layers 10. A bomb would be written to flash again at each try.
const LEAST_BYTES: u64 = 64 << 20;
const MOST_RATIO: u64 = 100;
/// Longest that one layer is unpacked: 8 GiB at 5 MB/s, an SD card's rate.
const UNPACK_TIME: Duration = Duration::from_secs(1800);
/// How long to wait for a removal, or for another pull of the same blob, between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// The parts of a [`Puller`].
pub struct Options {
    pub registries: Registries,
    /// A directory of OCI layouts that are tried before registries; it need not exist.
    pub preloaded: PathBuf,
    pub clock: WallClock,
    pub proxies: ProxyEnvironment,
    pub cancel: Cancel,
}

/// The stage of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The image was found: how many layers and bytes are missing.
    Resolved { layers: usize, bytes: u64 },
    /// Bytes of the layer that is being fetched.
    Fetching { digest: BlobDigest, have: u64, size: u64 },
    /// A layer is being unpacked.
    Unpacking { digest: BlobDigest },
}

/// An image that can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    pub record: Record,
    pub config: ImageConfig,
    /// Bytes that the network brought for it.
    pub fetched_bytes: u64,
}

/// Pulls images, one with each call. Calls may run on several threads at once.
pub struct Puller {
    store: Store,
    network: Network,
    registries: Registries,
    /// `None`: preloaded images are not considered.
    preloaded: Option<Preloaded>,
    platform: Platform,
    /// Shared by all pullers that [`Puller::until`] made from the same one.
    bad: Arc<Mutex<BadArchives>>,
}

/// The pull of one image.
struct Pull<'a> {
    puller: &'a Puller,
    reference: &'a Reference,
    progress: &'a dyn Fn(Progress),
    fetched_bytes: u64,
    /// Bytes by which blobs grew in this pull.
    gained_bytes: u64,
    /// The signatures that its source has for its manifest.
    signatures: SortedSet<Signature>,
}

impl Puller {
    /// A puller into this store.
    #[must_use]
    pub fn new(store: Store, options: Options) -> Self {
        let network = Network {
            lookup: Arc::new(Lookup::system()),
            links: Arc::default(),
            cancel: options.cancel,
            clock: options.clock,
            proxies: options.proxies,
        };
        Self {
            store,
            network,
            registries: options.registries,
            preloaded: Some(Preloaded::new(&options.preloaded)),
            platform: this_platform(),
            bad: Arc::default(),
        }
    }

    /// The same puller, whose calls end when `cancel` is cancelled.
    #[must_use]
    pub fn until(&self, cancel: Cancel) -> Self {
        Self {
            store: self.store.clone(),
            network: Network { cancel, ..self.network.clone() },
            registries: self.registries.clone(),
            preloaded: self.preloaded.clone(),
            platform: self.platform.clone(),
            bad: self.bad.clone(),
        }
    }

    /// Whether a pod may use the present image when no server answers.
    pub(crate) fn uses_present_offline(&self) -> bool {
        self.registries.uses_present_offline
    }

    /// The same puller, which uses unpacked images only, and no preloaded ones.
    #[must_use]
    pub fn of_what_is_unpacked(&self) -> Self {
        Self { preloaded: None, ..self.until(self.network.cancel.clone()) }
    }

    /// Whether an image is preloaded.
    #[must_use]
    pub fn is_preloaded(&self, image: &str) -> bool {
        let found = Reference::parse(image).ok().and_then(|name| self.preloaded.as_ref()?.find(&name));
        found.is_some()
    }

    /// Makes the image available, by its pull policy. Blocks while it is fetched. `secrets` are the pod's;
    /// the node's own credentials are tried after them.
    ///
    /// # Errors
    /// The image is missing; see [`PullError::sort`]. Bytes fetched so far stay for the next try.
    pub fn ensure(
        &self,
        reference: &Reference,
        policy: PullPolicy,
        secrets: &Keyring,
        progress: &dyn Fn(Progress),
    ) -> Result<Ready, PullError> {
        let present = {
            let _hold = self.hold()?;
            let records = self.store.records()?;
            records.find(reference).and_then(|record| Some((record.clone(), self.store.whole(record)?)))
        };
        let judged = present.as_ref().map_or(Ok(()), |(record, _)| self.judge(reference, record));
        let absent = || match &judged {
            Ok(()) => never(reference),
            Err(why) => {
                PullError::new(Sort::Unsigned, format!("image {reference} is here and not used: {why}"))
            }
        };
        let present = present.filter(|_| judged.is_ok());
        match (policy.decide(reference, present.is_some()), present) {
            (Decision::Use, Some((record, config))) => return Ok(Ready { record, config, fetched_bytes: 0 }),
            // policy Always asks for the registry's image, not for the preloaded one
            (decision, None) if policy != PullPolicy::Always => {
                match self.use_preloaded(reference, progress) {
                    Some(Err(error)) if decision == Decision::Pull && !error.is_final() => {
                        warn!(
                            "preloaded image {reference} cannot be used, a registry is asked for it: {error}"
                        );
                    }
                    Some(taken) => return taken,
                    None if decision == Decision::Refuse => return Err(absent()),
                    None => {}
                }
            }
            (Decision::Refuse, _) => return Err(absent()),
            _ => {}
        }
        let mut keyring = secrets.clone();
        self.add_own_credentials(&mut keyring)?;
        self.ask_registries(reference, &keyring, progress)
    }

    /// The image, if it is preloaded. This is not a pull: neither "Pulling" nor "Pulled" is reported of it.
    fn use_preloaded(
        &self,
        reference: &Reference,
        progress: &dyn Fn(Progress),
    ) -> Option<Result<Ready, PullError>> {
        let (mut layout, digest) = self.preloaded.as_ref()?.find(reference)?;
        let progress = |step: Progress| match step {
            Progress::Resolved { .. } => {}
            step => progress(step),
        };
        let mut pull = Pull::new(self, reference, &progress);
        let taken = pull.run(&mut layout, &digest.to_string());
        Some(taken.map(|ready| Ready { fetched_bytes: 0, ..ready }))
    }

    /// Whether the signature policy allows a present image under this name.
    fn judge(&self, reference: &Reference, record: &Record) -> Result<(), String> {
        self.registries.signatures.judge(
            reference,
            &record.manifests(),
            &record.signatures,
            &signatures::is_by,
        )
    }

    fn ask_registries(
        &self,
        reference: &Reference,
        keyring: &Keyring,
        progress: &dyn Fn(Progress),
    ) -> Result<Ready, PullError> {
        let mut failed: Option<PullError> = None;
        let mut gained = 0;
        let has_answered = Cell::new(false);
        let progress = &|step: Progress| {
            has_answered.set(has_answered.get() || matches!(step, Progress::Resolved { .. }));
            progress(step);
        };
        for endpoint in self.registries.endpoints(reference) {
            let there = endpoint.localized(reference);
            let credentials = keyring.for_image(&there).into_iter().cloned().collect();
            let mut registry =
                Registry::new(&self.network, &self.registries, endpoint, reference, credentials);
            let mut pull = Pull::new(self, reference, progress);
            let ended = pull.run(&mut registry, &reference.manifest_name());
            gained += pull.gained_bytes;
            match ended {
                Err(error) if !error.is_final() => {
                    has_answered.set(has_answered.get() || error.sort != Sort::Unreachable);
                    let text = match failed.take() {
                        Some(earlier) => format!("{earlier}; {error}"),
                        None => error.text,
                    };
                    failed = Some(PullError { text, ..PullError::new(error.sort, "") });
                }
                ended => return ended,
            }
        }
        let mut error = failed.unwrap_or_else(|| PullError::new(Sort::Bad, "no registry"));
        // a pull that got further must not wait as long for its next try as one that reached nobody
        if error.sort == Sort::Unreachable && gained >= PROGRESS_BYTES {
            error.sort = Sort::BrokeOff;
        }
        let text = format!("pull {reference}: {}", error.text);
        Err(PullError { text, is_outage: !has_answered.get(), ..error })
    }

    /// Imports the images of an OCI layout, a directory or a tar archive of one.
    ///
    /// # Errors
    /// One of them cannot be imported; those before it were.
    pub fn import(
        &self,
        path: &Path,
        name: Option<&Reference>,
        progress: &dyn Fn(Progress),
    ) -> Result<Vec<Ready>, PullError> {
        let is_directory = std::fs::metadata(path).map_err(|error| unreadable(path, &error))?.is_dir();
        if is_directory {
            return self.import_directory(&mut Layout::new(path, path), name, progress);
        }
        let _only = self.store.files.hold_import().map_err(|error| PullError::disk(&error))?;
        let _claim = {
            let _hold = self.hold()?;
            self.store.claim([IMPORT.to_owned()])?
        };
        let directory = self.extracted(path)?;
        let imported = self.import_directory(&mut Layout::new(&directory, path), name, progress);
        // the next import or sweep tries again
        let _ = trees::remove(&directory);
        imported
    }

    fn extracted(&self, path: &Path) -> Result<PathBuf, PullError> {
        let mut file = open_named_file(path).map_err(|error| PullError::new(Sort::Bad, chain(&error)))?;
        let mut magic = [0; 4];
        let count = file.read(&mut magic).map_err(|error| unreadable(path, &error))?;
        let packing = match &magic[..count] {
            [0x1f, 0x8b, ..] => "gzip",
            [0x28, 0xb5, 0x2f, 0xfd] => "zstd",
            _ => "plain",
        };
        std::io::Seek::rewind(&mut file).map_err(|error| unreadable(path, &error))?;
        let room = self.store.room()?;
        let limits = Limits { entries: MAX_ENTRIES.min(room.entries), bytes: room.bytes, time: UNPACK_TIME };
        self.store
            .files
            .extract(file, packing, limits)
            .map_err(|error| PullError::new(Sort::Bad, format!("{}: {}", path.display(), chain(&error))))
    }

    fn import_directory(
        &self,
        layout: &mut Layout,
        name: Option<&Reference>,
        progress: &dyn Fn(Progress),
    ) -> Result<Vec<Ready>, PullError> {
        let images = layout.images(name)?;
        let taken = images.iter().map(|image| {
            let mut pull = Pull::new(self, &image.reference, progress);
            pull.run(layout, &image.digest.to_string())
        });
        taken.collect()
    }

    /// Blocks removals; waits for one that is under way.
    fn hold(&self) -> Result<kedge_platform::images::Hold, PullError> {
        loop {
            let hold = self.store.files.hold_shared().map_err(|error| PullError::disk(&error))?;
            match hold {
                Some(hold) => return Ok(hold),
                None => self.pause()?,
            }
        }
    }

    fn bad(&self) -> MutexGuard<'_, BadArchives> {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pause(&self) -> Result<(), PullError> {
        self.go_on()?;
        thread::sleep(PAUSE);
        Ok(())
    }

    /// Whether somebody still wants the image: a server may already have sent much that is not read yet.
    fn go_on(&self) -> Result<(), PullError> {
        match self.network.cancel.is_cancelled() {
            true => Err(PullError::new(Sort::Cancelled, "cancelled")),
            false => Ok(()),
        }
    }

    fn add_own_credentials(&self, keyring: &mut Keyring) -> Result<(), PullError> {
        let Some(path) = &self.registries.credentials_file else { return Ok(()) };
        let read = read_named_file(Path::new(path), credentials::MAX_BYTES).map_err(|error| chain(&error));
        let added = read.and_then(|bytes| keyring.add(&bytes));
        added.map_err(|why| {
            PullError::new(Sort::Denied, format!("kedge.images.credentialsFile {path}: {why}"))
        })
    }
}

impl<'a> Pull<'a> {
    fn new(puller: &'a Puller, reference: &'a Reference, progress: &'a dyn Fn(Progress)) -> Self {
        let (fetched_bytes, gained_bytes) = (0, 0);
        Self { puller, reference, progress, fetched_bytes, gained_bytes, signatures: SortedSet::new() }
    }

    /// `name` is the tag or digest that the source is asked for.
    fn run(&mut self, source: &mut dyn Source, name: &str) -> Result<Ready, PullError> {
        let (digest, manifest) = self.resolve(source, name)?;
        self.signatures = self.signatures(source, digest, &manifest)?;
        let mut claim = match self.known_or_claimed(digest, &manifest)? {
            Ok(ready) => return Ok(ready),
            Err(claim) => claim,
        };
        let taken = self.take_in(source, &manifest, &mut claim, digest);
        let blobs = manifest.layers.iter().map(|layer| &layer.blob).chain([&manifest.config]);
        drop(claim);
        // on a full disk the fetched blobs are useless, too, because the rest has no room
        if taken.as_ref().map_or_else(|error| error.sort == Sort::Disk, |_| true) {
            // a leftover is removed by the next prune
            let _ = self.puller.store.remove_blobs(blobs.filter_map(|blob| blob_name(&blob.digest)));
        }
        taken
    }

    /// The signatures of the resolved image, where a policy requires some: one of them convinces, or one that
    /// is known already does. A layout's signatures are taken even if no policy requires them now, for a
    /// later configuration.
    fn signatures(
        &self,
        source: &mut dyn Source,
        digest: BlobDigest,
        manifest: &Manifest,
    ) -> Result<SortedSet<Signature>, PullError> {
        let policy = &self.puller.registries.signatures;
        let is_covered = policy.covers(self.reference);
        if is_covered && self.is_known_as_signed(manifest)? || !is_covered && !source.is_at_hand() {
            return Ok(SortedSet::new());
        }
        let found = signatures::of(source, &digest)?;
        let judged =
            policy.judge(self.reference, &SortedSet::from([digest]), &found.signatures, &signatures::is_by);
        judged.map(|()| found.signatures).map_err(|why| {
            let problem = found.problem.map_or_else(String::new, |problem| format!(" ({problem})"));
            PullError::new(Sort::Unsigned, format!("{}: manifest {digest}: {why}{problem}", source.shown()))
        })
    }

    /// Whether the image is present with a valid signature of a key that the configuration accepts. Its ID
    /// covers the unpacked content of its layers, so it is the same image whatever manifest leads to it.
    fn is_known_as_signed(&self, manifest: &Manifest) -> Result<bool, PullError> {
        let _hold = self.puller.hold()?;
        let records = self.puller.store.records()?;
        let known = records.get(&manifest.config.digest);
        Ok(known.is_some_and(|record| self.puller.judge(self.reference, record).is_ok()))
    }

    /// The image, if it is present; otherwise a claim of its blobs.
    fn known_or_claimed(
        &self,
        digest: BlobDigest,
        manifest: &Manifest,
    ) -> Result<Result<Ready, Claim>, PullError> {
        let store = &self.puller.store;
        let _hold = self.puller.hold()?;
        let records = store.records()?;
        let known = records.find(&Reference { digest: Some(digest), ..self.reference.clone() });
        if let Some((known, config)) = known.and_then(|known| Some((known, store.whole(known)?))) {
            let record = self.save(known.clone(), None, digest)?;
            return Ok(Ok(Ready { record, config, fetched_bytes: self.fetched_bytes }));
        }
        admit(&records, &manifest.config.digest)?;
        let blobs = manifest.layers.iter().map(|layer| &layer.blob).chain([&manifest.config]);
        let blobs = blobs.map(|blob| blob.digest.hex());
        Ok(Err(store.claim_pull(self.reference, manifest.size_bytes(), blobs)?))
    }

    /// Fetches the config, fetches and unpacks the layers, then writes the record.
    fn take_in(
        &mut self,
        source: &mut dyn Source,
        manifest: &Manifest,
        claim: &mut Claim,
        digest: BlobDigest,
    ) -> Result<Ready, PullError> {
        let (config, bytes) = self.config(source, manifest)?;
        let layers = chained(&config.diff_ids);
        let record = Record {
            api_version: API_VERSION.to_owned(),
            id: manifest.config.digest,
            names: Default::default(),
            digests: Default::default(),
            platform: config.platform,
            layers,
            size_bytes: manifest.size_bytes(),
            sequence: 0,
            pulled_unix_secs: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            signatures: SortedSet::new(),
        };
        {
            let _hold = self.puller.hold()?;
            let added = claim.add(record.all_directories().iter().map(BlobDigest::hex));
            added.map_err(|error| PullError::new(Sort::Disk, format!("cannot write a claim: {error}")))?;
        }
        self.layers(source, manifest, &record.layers)?;
        let _hold = self.puller.hold()?;
        let record = self.save(record, Some(&bytes), digest)?;
        Ok(Ready { record, config: config.image, fetched_bytes: self.fetched_bytes })
    }

    /// Bytes of a blob that are still to be fetched.
    fn lacking(&self, blob: &Blob) -> u64 {
        let have = blob_name(&blob.digest)
            .map_or(0, |name| self.puller.store.files.blobs.have(&name, blob.size_bytes));
        blob.size_bytes - have
    }

    /// Checks that this many bytes may still be written.
    fn reserve(&self, bytes: u64) -> Result<(), PullError> {
        self.puller.store.room()?.reserve(bytes).map_err(|why| PullError::new(Sort::Disk, why))
    }

    /// Writes the record with the image's name.
    fn save(
        &self,
        mut record: Record,
        config: Option<&[u8]>,
        digest: BlobDigest,
    ) -> Result<Record, PullError> {
        record.names.clear();
        record.digests.clear();
        record.signatures.clone_from(&self.signatures);
        record.add_names(self.reference, &digest);
        self.puller.store.save(record, config)
    }

    /// The digest that the name stands for, and the manifest of the image for this node.
    fn resolve(&mut self, source: &mut dyn Source, name: &str) -> Result<(BlobDigest, Manifest), PullError> {
        let fetched = source.manifest(name)?;
        self.fetched_bytes += fetched.bytes.len() as u64;
        let bad =
            |why: String| PullError::new(Sort::Bad, format!("{}: manifest {name}: {why}", source.shown()));
        let digest = BlobDigest::of(&fetched.bytes);
        if BlobDigest::parse(name).is_ok_and(|expected| expected != digest) {
            return Err(bad(format!("its digest is {digest}")));
        }
        match Document::parse(&fetched.bytes, fetched.content_type.as_deref()).map_err(bad)? {
            Document::Manifest(manifest) => Ok((digest, manifest)),
            Document::Index(offered) => {
                let chosen = manifest::choose(&offered, &self.puller.platform).map_err(bad)?;
                Ok((digest, self.chosen(source, &chosen.manifest)?))
            }
        }
    }

    /// The manifest that an index names.
    fn chosen(&mut self, source: &mut dyn Source, blob: &Blob) -> Result<Manifest, PullError> {
        let fetched = source.manifest(&blob.digest.to_string())?;
        self.fetched_bytes += fetched.bytes.len() as u64;
        let bad = |why: &str| {
            PullError::new(Sort::Bad, format!("{}: manifest {}: {why}", source.shown(), blob.digest))
        };
        if BlobDigest::of(&fetched.bytes) != blob.digest {
            return Err(bad(&format!("its digest is {}", BlobDigest::of(&fetched.bytes))));
        }
        match Document::parse(&fetched.bytes, fetched.content_type.as_deref()).map_err(|why| bad(&why))? {
            Document::Manifest(manifest) => Ok(manifest),
            Document::Index(_) => Err(bad("an index within an index, expected an image")),
        }
    }

    /// The config, and its bytes.
    fn config(
        &mut self,
        source: &mut dyn Source,
        manifest: &Manifest,
    ) -> Result<(Config, Vec<u8>), PullError> {
        let blob = &manifest.config;
        let name = self.fetch(source, blob)?;
        let bytes = self
            .puller
            .store
            .files
            .blobs
            .read(&name, MAX_CONFIG_BYTES)
            .map_err(|error| PullError::disk(&error))?;
        let bad = |why: String| {
            PullError::new(Sort::Bad, format!("{}: config {}: {why}", source.shown(), blob.digest))
        };
        let config = Config::parse(&bytes, manifest.layers.len()).map_err(bad)?;
        let host = &self.puller.platform;
        if !config.platform.architecture.is_empty() && host.rank(&config.platform).is_none() {
            let platform = excerpt(&config.platform.to_string()).replace(char::is_control, " ");
            return Err(bad(format!("the image is for {platform}, this node is {host}")));
        }
        Ok((config, bytes))
    }

    /// Fetches and unpacks the missing layers.
    fn layers(
        &mut self,
        source: &mut dyn Source,
        manifest: &Manifest,
        layers: &[Layer],
    ) -> Result<(), PullError> {
        let files = &self.puller.store.files;
        // a kernel without overlayfs mounts one directory: all archives are unpacked into the top layer
        let is_merged = !self.puller.store.has_overlay()? && layers.len() > 1;
        let is_missing =
            |chain: &BlobDigest| blob_name(chain).is_none_or(|name| files.layers.record(&name).is_none());
        let missing: Vec<usize> = match layers.last() {
            Some(top) if is_merged && is_missing(&top.chain.merged()) => (0..layers.len()).collect(),
            _ if is_merged => Vec::new(),
            _ => (0..layers.len()).filter(|at| is_missing(&layers[*at].chain)).collect(),
        };
        match is_merged {
            true => self.check_not_bad(source, manifest, layers, &missing)?,
            false => {
                missing.iter().try_for_each(|at| self.check_not_bad(source, manifest, layers, &[*at]))?
            }
        }
        let lacking: Vec<u64> = missing.iter().map(|at| self.lacking(&manifest.layers[*at].blob)).collect();
        let mut bytes: u64 = lacking.iter().sum();
        (self.progress)(Progress::Resolved { layers: missing.len(), bytes });
        self.reserve(bytes)?;
        if is_merged {
            for at in &missing {
                self.fetch(source, &manifest.layers[*at].blob)?;
            }
            return if missing.is_empty() {
                Ok(())
            } else {
                self.unpack(manifest, layers, (&missing, layers.len() - 1), 0)
            };
        }
        for (at, lacked) in missing.into_iter().zip(lacking) {
            self.fetch(source, &manifest.layers[at].blob)?;
            bytes -= lacked;
            self.unpack(manifest, layers, (&[at], at), bytes)?;
        }
        Ok(())
    }

    /// Refuses archives that failed too often, before they are fetched.
    fn check_not_bad(
        &self,
        source: &dyn Source,
        manifest: &Manifest,
        layers: &[Layer],
        archives: &[usize],
    ) -> Result<(), PullError> {
        let Some(key) = bad_key(manifest, layers, archives) else { return Ok(()) };
        match self.puller.bad().refusal(&key) {
            Some(why) => Err(PullError::new(Sort::Bad, format!("{}: {why}", source.shown()))),
            None => Ok(()),
        }
    }

    /// Unpacks archives into the layer at `target`; leaves room for this many bytes that are still to be
    /// fetched.
    fn unpack(
        &self,
        manifest: &Manifest,
        layers: &[Layer],
        (archives, target): (&[usize], usize),
        kept: u64,
    ) -> Result<(), PullError> {
        let files = &self.puller.store.files;
        let named = |digest: &BlobDigest| {
            blob_name(digest).ok_or_else(|| PullError::new(Sort::Bad, format!("{digest} is no file's name")))
        };
        let diffs: Vec<BlobName> =
            archives.iter().map(|at| named(&layers[*at].diff)).collect::<Result<_, _>>()?;
        let mut steps = Vec::new();
        let mut packed = 0;
        for (at, diff) in archives.iter().zip(&diffs) {
            let layer = &manifest.layers[*at];
            packed += layer.blob.size_bytes;
            let archive =
                files.blobs.open(&named(&layer.blob.digest)?).map_err(|error| PullError::disk(&error))?;
            steps.push(Step { archive, packing: layer.compression.name(), diff });
        }
        (self.progress)(Progress::Unpacking { digest: manifest.layers[target].blob.digest });
        self.puller.go_on()?;
        let is_merged = archives.len() > 1;
        let made = if is_merged { layers[target].chain.merged() } else { layers[target].chain };
        let below = if is_merged { &[][..] } else { &layers[..target] };
        let below: Vec<BlobName> = below.iter().map(|layer| named(&layer.chain)).collect::<Result<_, _>>()?;
        let room = self.puller.store.room()?;
        let most = packed.saturating_mul(MOST_RATIO).saturating_add(LEAST_BYTES);
        let limits = Limits {
            entries: MAX_ENTRIES.min(room.entries),
            bytes: most.min(room.bytes.saturating_sub(kept)),
            time: UNPACK_TIME,
        };
        let cancel = self.puller.network.cancel.clone();
        let cancelled = Cancelled::when(move || cancel.is_cancelled());
        let unpack = Unpack { chain: &named(&made)?, below: &below, steps, limits, cancelled };
        files.layers.unpack(unpack).map(|_| ()).map_err(|error| match error {
            UnpackError::Io { .. } | UnpackError::Mounted { .. } | UnpackError::Disk { .. } => {
                PullError::disk(&error)
            }
            UnpackError::Cancelled { .. } => PullError::new(Sort::Cancelled, error.to_string()),
            // the limit came from the free space, not from the archive
            UnpackError::ManyBytes { .. } if limits.bytes < most => {
                let text = format!("{}; the disk has {} bytes for it", chain(&error), limits.bytes);
                PullError::new(Sort::Disk, text)
            }
            UnpackError::ManyEntries { .. } if limits.entries < MAX_ENTRIES => {
                let text = format!("{}; the disk has {} inodes for it", chain(&error), limits.entries);
                PullError::new(Sort::Disk, text)
            }
            _ => {
                let blobs = archives.iter().filter_map(|at| blob_name(&manifest.layers[*at].blob.digest));
                // a blob that was damaged on this disk is fetched again by the next try
                let bad = blobs.filter(|name| matches!(files.blobs.verify(name), Ok(false))).count();
                let note = if bad > 0 { "; it went bad on this disk and was discarded" } else { "" };
                let text = format!("{}{note}", chain(&error));
                if let Some(key) = bad_key(manifest, layers, archives).filter(|_| bad == 0) {
                    self.puller.bad().failed(key, &text);
                }
                PullError::new(Sort::Bad, text)
            }
        })
    }

    /// Makes a blob available.
    fn fetch(&mut self, source: &mut dyn Source, blob: &Blob) -> Result<BlobName, PullError> {
        let name = blob_name(&blob.digest).ok_or_else(|| PullError::new(Sort::Bad, "no digest"))?;
        let (mut resumes, mut is_again) = (0, false);
        // one pace for all tries: a download that is resumed again and again is no faster
        let mut pace = Pace::begin(Instant::now());
        loop {
            let waits_since = Instant::now();
            let Some(mut part) = self.part(&name, blob)? else { return Ok(name) };
            pace.pause(waits_since.elapsed());
            let from = part.length();
            self.reserve(blob.size_bytes - from)?;
            if let Err(error) = self.download(source, &mut part, blob, &mut pace) {
                let gained = part.length().saturating_sub(from);
                self.gained_bytes += gained;
                resumes += u32::from(gained < PROGRESS_BYTES);
                let has_gone_on = gained > 0 && pace.is_kept(0, Instant::now());
                let may_go_on = error.sort == Sort::Unreachable && has_gone_on && resumes <= MAX_RESUMES;
                if !may_go_on {
                    return Err(error);
                }
                continue;
            }
            let gained = part.length().saturating_sub(from);
            self.gained_bytes += gained;
            match part.finish() {
                Ok(()) => return Ok(name),
                // the fault may be in the bytes of an earlier try
                Err(BlobError::Differs { .. }) if from > 0 && !is_again => is_again = true,
                Err(BlobError::Short { .. }) if gained > 0 && resumes < MAX_RESUMES => {
                    resumes += u32::from(gained < PROGRESS_BYTES);
                }
                Err(error) => return Err(blob_failed(source, &error)),
            }
        }
    }

    /// The blob to be written; waits while another pull writes it.
    fn part(&self, name: &BlobName, blob: &Blob) -> Result<Option<Part>, PullError> {
        loop {
            match self.puller.store.files.blobs.part(name, blob.size_bytes) {
                Err(BlobError::Busy { .. }) => self.puller.pause()?,
                part => return part.map_err(|error| PullError::disk(&error)),
            }
        }
    }

    fn download(
        &mut self,
        source: &mut dyn Source,
        part: &mut Part,
        blob: &Blob,
        pace: &mut Pace,
    ) -> Result<(), PullError> {
        if part.length() == blob.size_bytes {
            return Ok(());
        }
        let mut stream = source.blob(blob, part.length())?;
        // a server that has no such byte may have another blob than the earlier try: begin anew
        if stream.is_none() && part.length() > 0 {
            part.restart().map_err(|error| blob_failed(source, &error))?;
            stream = source.blob(blob, 0)?;
        }
        let Some(mut stream) = stream else {
            let text = format!(
                "{}: blob {}: it answers with another part than was asked for",
                source.shown(),
                blob.digest
            );
            return Err(PullError::new(Sort::Bad, text));
        };
        // a server without ranges sends everything again
        if stream.starts_at != part.length() {
            part.restart().map_err(|error| blob_failed(source, &error))?;
        }
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut unchecked = 0;
        loop {
            let count = match stream.reader.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) => {
                    let text = format!("{}: blob {}: broke off: {error}", source.shown(), blob.digest);
                    return Err(self.broken(text));
                }
            };
            part.append(&buffer[..count]).map_err(|error| blob_failed(source, &error))?;
            self.fetched_bytes += count as u64;
            unchecked += count as u64;
            if unchecked >= ROOM_BYTES {
                unchecked = 0;
                self.reserve(blob.size_bytes - part.length())?;
            }
            (self.progress)(Progress::Fetching {
                digest: blob.digest,
                have: part.length(),
                size: blob.size_bytes,
            });
            self.puller.go_on()?;
            if !pace.is_kept(count as u64, Instant::now()) {
                let text = format!(
                    "{}: blob {}: less than {SLOWEST_BYTES} bytes in {} s",
                    source.shown(),
                    blob.digest,
                    SLOWEST_TIME.as_secs()
                );
                return Err(PullError::new(Sort::Unreachable, text));
            }
        }
    }

    fn broken(&self, text: String) -> PullError {
        let sort =
            if self.puller.network.cancel.is_cancelled() { Sort::Cancelled } else { Sort::Unreachable };
        PullError::new(sort, text)
    }
}

/// The rate of a download over all its tries.
struct Pace {
    since: Instant,
    bytes: u64,
}

impl Pace {
    fn begin(now: Instant) -> Self {
        Self { since: now, bytes: 0 }
    }

    /// Excludes time spent waiting for another pull, which is nobody's fault.
    fn pause(&mut self, waited: Duration) {
        self.since += waited;
    }

    /// Counts further bytes; returns whether the download is still fast enough. Once false, it stays false.
    fn is_kept(&mut self, bytes: u64, now: Instant) -> bool {
        self.bytes += bytes;
        if now.saturating_duration_since(self.since) < SLOWEST_TIME {
            return true;
        }
        let is_kept = self.bytes >= SLOWEST_BYTES;
        if is_kept {
            *self = Self::begin(now);
        }
        is_kept
    }
}

fn blob_failed(source: &dyn Source, error: &BlobError) -> PullError {
    let sort = match error {
        BlobError::Differs { .. } | BlobError::TooLong { .. } => Sort::Bad,
        BlobError::Short { .. } | BlobError::Busy { .. } => Sort::Unreachable,
        BlobError::NoSpace { .. } | BlobError::Io { .. } => Sort::Disk,
    };
    PullError::new(sort, format!("{}: {}", source.shown(), chain(error)))
}

fn never(reference: &Reference) -> PullError {
    let text = format!("image {reference} is not present with pull policy of Never");
    PullError::new(Sort::Never, text)
}

fn unreadable(path: &Path, error: &std::io::Error) -> PullError {
    PullError::new(Sort::Bad, format!("cannot read {}: {error}", path.display()))
}

/// The key under which archives are remembered that could not be unpacked into the layer of the last of them.
fn bad_key(manifest: &Manifest, layers: &[Layer], archives: &[usize]) -> Option<BlobDigest> {
    let blobs = archives.iter().map(|at| &manifest.layers[*at].blob.digest);
    Some(BadArchives::key(&layers[*archives.last()?].chain, blobs))
}

/// The layers of an image by their unpacked content, the base first.
fn chained(diff_ids: &[BlobDigest]) -> Vec<Layer> {
    let mut below = None;
    let layers = diff_ids.iter().map(|diff| {
        let chain = BlobDigest::chain(below.as_ref(), diff);
        below = Some(chain);
        Layer { chain, diff: *diff }
    });
    layers.collect()
}

/// The platform of this machine.
fn this_platform() -> Platform {
    let cpuinfo = read_named_file(Path::new("/proc/cpuinfo"), 1 << 20).unwrap_or_default();
    let text = String::from_utf8_lossy(&cpuinfo);
    let version = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "CPU architecture").then(|| value.trim().parse::<u8>().ok())?
    });
    Platform::of_processor(std::env::consts::ARCH, version)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A registry that sends a byte each 20 s, and breaks off before the limit of a try, delays others no
    /// longer than that limit.
    #[test]
    fn slow_download_is_given_up_whatever_tries_it_takes() {
        let begun = Instant::now();
        let at = |secs: u64| begun + Duration::from_secs(secs);
        let mut pace = Pace::begin(begun);
        assert!((1..15).all(|drop| pace.is_kept(1, at(20 * drop))), "within the time");
        assert!(!pace.is_kept(1, at(300)));
        assert!(!pace.is_kept(0, at(301)), "and no further try");

        let mut steady = Pace::begin(begun);
        let kept = (1..100).all(|time| steady.is_kept(SLOWEST_BYTES / 10 + 1, at(30 * time)));
        assert!(kept, "as slow as may be");

        let mut waiting = Pace::begin(begun);
        waiting.pause(Duration::from_secs(1000));
        assert!(waiting.is_kept(1, at(1299)) && !waiting.is_kept(1, at(1300)));
    }
}
