//! The disk loop's work: one order at a time, each outcome an event.
//!
//! Owns how core's steps become operations on files, and which leftovers a sweep removes. Always holds: an
//! order that fails is reported, never repeated here; a sweep keeps every checkpoint that a record names.
//! Leaves to others: the content and the time of writes (core), how they become durable (`platform`).

use super::containers::RuntimeHealth;
use super::quota::Quota;
use crate::decommission;
use crate::identity::store::Store;
use crate::locks::locked;
use crate::net::known_server::KnownServer;
use crate::workloads::network::Plugins;
use kedge_core::config::records::{CHECKPOINT_BYTES, CheckpointName, Read, StateFile};
use kedge_core::identity::{self, IdentityEvent};
use kedge_core::pods::{DesiredFile, DesiredFound, PodEvent};
use kedge_core::{Event, HardwareWatchdog, HostFacts, ImageState, Outcome, Runtime, Step};
use kedge_platform::files::Kind;
use kedge_platform::linux::Roots;
use kedge_platform::workloads::{has_apparmor, has_selinux};
use kedge_platform::{Files, HostIdentity, PreviousExit, ReadError, SweepReport, WatchdogDevice, files};
use serde_json::{Value, json};
use std::fs::File;
use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Most entries that one sweep visits; the next start's sweep visits the others.
const SWEEP_ENTRIES: usize = 20_000;

/// Most names read to find other versions' directories.
const LISTED: usize = 10_000;

/// Directories of the pods' desired set, below `--root-dir`.
const DESIRED: [&str; 2] = ["pods/desired", "pods/objects"];

/// Largest file of it: a Secret of 1 MiB in base64, or a pod of 1.5 MiB, which is the most that etcd takes.
const DESIRED_BYTES: usize = 2 * 1024 * 1024;

/// Directories below `--root-dir` that are not the configuration's and have records: of pods, of the port,
/// the node's own credential, and of systems.
pub(crate) const BESIDE: [&str; 5] = [DESIRED[0], DESIRED[1], "serving", "pki", "system"];

/// Most unusable records of pods that are kept, and the largest: more would fill a small disk.
const MOST_ASIDE: usize = 20;
const ASIDE_BYTES: usize = 64 * 1024;

/// Versions of the agent whose verdicts are kept: ours, and the one we may be rolled back to.
const VERSIONS_KEPT: usize = 2;

/// An order to the disk loop.
pub(crate) enum DiskOrder {
    /// One step of a transition.
    Step(Step),
    /// The evidence of the previous run is recorded: delete it.
    ConsumeEvidence,
    /// Remove files that no record names.
    Sweep(Option<Vec<CheckpointName>>),
    /// Look at the host.
    ReadHostFacts,
    /// Check whether `bad-configs.json` was edited.
    CheckBadConfigs,
    /// Write a file of the pods' desired set, or remove it.
    SaveDesired(DesiredFile, Option<Vec<u8>>),
    /// Keep copies of unusable records of pods.
    KeepAside(Vec<DesiredFile>),
    /// Read the pods' desired set.
    ReadDesired,
    /// Record how far a decommissioning has come.
    NoteDecommission(Vec<u8>),
    /// Remove all state but the identity.
    RemoveState,
    /// A step about the node's own credential.
    Identity(kedge_core::identity::Step),
}

/// The state of the disk, for `kedge status`.
#[derive(Debug, Default)]
pub(crate) struct DiskHealth(Mutex<Health>);

#[derive(Debug, Default)]
struct Health {
    /// Since when an order is under way.
    busy: Option<Instant>,
    last_write: Option<Instant>,
    /// The error of the last write.
    problem: Option<String>,
}

impl DiskHealth {
    fn set_busy(&self, is_busy: bool) {
        locked(&self.0).busy = is_busy.then(Instant::now);
    }

    fn note_write(&self, path: &str, done: &Result<(), String>) {
        let mut health = locked(&self.0);
        health.problem = done.as_ref().err().map(|why| format!("write {path}: {why}"));
        if done.is_ok() {
            health.last_write = Some(Instant::now());
        }
    }

    /// Never blocks.
    pub(crate) fn report(&self) -> Value {
        let health = locked(&self.0);
        let age = |at: Option<Instant>| at.map(|at| at.elapsed().as_secs());
        json!({
            "busySeconds": age(health.busy),
            "secondsSinceWrite": age(health.last_write),
            "problem": health.problem,
        })
    }
}

/// One reading of the host's identity, a dozen files, serves for this many looks: minutes. A system update
/// may replace os-release.
const IDENTITY_LOOKS: u32 = 30;

/// Facts that hardly ever change while the machine runs, from the last complete reading. A reading that lacks
/// a part, for want of descriptors or because a disk was not there yet, serves for one look only.
#[derive(Default)]
pub(crate) struct KnownIdentity {
    read: HostIdentity,
    /// For how many looks it still serves.
    looks_left: u32,
}

impl KnownIdentity {
    fn read(&mut self, host: &dyn kedge_platform::HostFacts) -> HostIdentity {
        let is_whole = |it: &HostIdentity| !it.machine_id.is_empty() && !it.kernel_release.is_empty();
        if self.looks_left == 0 {
            let read = host.identity();
            self.looks_left = if is_whole(&read) { IDENTITY_LOOKS } else { 1 };
            if is_whole(&read) || !is_whole(&self.read) {
                self.read = read;
            }
        }
        self.looks_left -= 1;
        self.read.clone()
    }
}

/// The parts of the disk loop.
pub(crate) struct DiskLoop {
    pub(crate) files: Arc<dyn Files>,
    /// `--root-dir`: other processes record there how a run ended.
    pub(crate) root_files: Arc<dyn Files>,
    /// Other directories below it that have records of their own: a power cut leaves temporary files there,
    /// too.
    pub(crate) beside: Vec<Arc<dyn Files>>,
    pub(crate) previous: Box<dyn PreviousExit>,
    pub(crate) host: Box<dyn kedge_platform::HostFacts>,
    pub(crate) identity: KnownIdentity,
    pub(crate) version: String,
    pub(crate) node_name: String,
    pub(crate) bad_configs: Option<Vec<u8>>,
    /// Why the list could not be read at the last look.
    pub(crate) bad_configs_unreadable: Option<String>,
    pub(crate) health: Arc<DiskHealth>,
    pub(crate) server: KnownServer,
    /// `--root-dir`, and other directories with state.
    pub(crate) state_places: (PathBuf, Vec<PathBuf>),
    /// The pods' desired set's share of the disk.
    pub(crate) quota: Quota,
    /// `None` on a node without an API server.
    pub(crate) credential: Option<Store>,
    /// `None` on a node without a runtime.
    pub(crate) runtime: Option<Arc<RuntimeHealth>>,
    /// Set if this run must not change the disk: the reason.
    pub(crate) read_only: Option<String>,
    /// Whether the node runs a disk image, which should have a hardware watchdog.
    pub(crate) is_image: bool,
    /// A directory above the records was set aside: a missing record may have existed.
    pub(crate) was_displaced: bool,
    /// The claim on `--root-dir` while this process may still write there: longer than the main thread lives,
    /// if the disk hangs.
    pub(crate) _claim: Option<Arc<File>>,
}

impl DiskLoop {
    pub(crate) fn perform(&mut self, order: DiskOrder) -> Option<Event> {
        self.health.set_busy(true);
        let event = self.perform_order(order);
        self.health.set_busy(false);
        event
    }

    fn perform_order(&mut self, order: DiskOrder) -> Option<Event> {
        match order {
            DiskOrder::Step(step) => Some(Event::StepDone(self.step(step))),
            DiskOrder::ConsumeEvidence | DiskOrder::Sweep(_) if self.read_only.is_some() => None,
            DiskOrder::ConsumeEvidence => {
                if let Err(error) = self.previous.consume() {
                    log::warn!(
                        "evidence of the previous run could not be marked as used: {}",
                        crate::errors::chain(&error)
                    );
                }
                None
            }
            DiskOrder::Sweep(keep) => {
                self.sweep(keep.as_deref());
                None
            }
            DiskOrder::ReadHostFacts => Some(Event::HostFacts(Box::new(self.host_facts()))),
            DiskOrder::CheckBadConfigs => self.check_bad_configs(),
            DiskOrder::SaveDesired(file, content) => {
                let done = self.save_desired(&file.path(), content.as_deref());
                Some(Event::Pods(Box::new(PodEvent::DesiredSaved { file, done })))
            }
            DiskOrder::KeepAside(files) => {
                files.iter().for_each(|file| self.keep_desired_aside(&file.path()));
                None
            }
            DiskOrder::NoteDecommission(record) => {
                let done = match &self.read_only {
                    Some(why) => Err(why.clone()),
                    None => {
                        let written = self.root_files.write_durably(Path::new(decommission::RECORD), &record);
                        written.map_err(|error| crate::errors::chain(&error))
                    }
                };
                self.health.note_write(decommission::RECORD, &done);
                Some(Event::DecommissionNoted(done))
            }
            DiskOrder::RemoveState => {
                let (root, others) = &self.state_places;
                Some(Event::StateRemoved(decommission::remove_state(root, others)))
            }
            DiskOrder::Identity(step) => self.credential_step(step),
            DiskOrder::ReadDesired => {
                let found = desired(&*self.root_files);
                if let Ok(files) = &found {
                    let bytes = |found: &DesiredFound| found.content.as_ref().map_or(DESIRED_BYTES, Vec::len);
                    self.quota.found(files.iter().map(|found| (found.file.path(), bytes(found))));
                }
                Some(Event::Pods(Box::new(PodEvent::DesiredRead(found))))
            }
        }
    }

    fn credential_step(&self, step: identity::Step) -> Option<Event> {
        let is_read = matches!(step, identity::Step::Look | identity::Step::Prepare(..));
        let event = match self.read_only.as_ref().filter(|_| !is_read) {
            Some(why) => IdentityEvent::Done(Err(why.clone())),
            None => self.credential.as_ref()?.perform(step),
        };
        if let IdentityEvent::Done(done) = &event {
            self.health.note_write("pki", done);
        }
        Some(Event::Identity(Box::new(event)))
    }

    fn save_desired(&mut self, path: &str, content: Option<&[u8]>) -> Result<(), String> {
        if let Some(why) = &self.read_only {
            return Err(why.clone());
        }
        if let Some(why) = content.and_then(|content| self.quota.refusal(path, content.len())) {
            return Err(format!("cannot write {path}: {why}; the file is unchanged"));
        }
        // pods must not use the room that is reserved for the configuration's verdicts
        let done = match content {
            Some(content) => self.root_files.write_beside_reserve(Path::new(path), content),
            None => self.root_files.remove(Path::new(path)),
        };
        match (&done, content) {
            (Ok(()), Some(content)) => self.quota.wrote(path, content.len()),
            (Ok(()), None) => self.quota.removed(path),
            (Err(_), _) => {}
        }
        let done = done.map_err(|error| crate::errors::chain(&error));
        self.health.note_write(path, &done);
        done
    }

    /// Every start finds the unusable file again until a write replaces it: one copy of the same content is
    /// enough.
    fn keep_desired_aside(&self, path: &str) {
        let path = Path::new(path);
        if self.read_only.is_some() || self.has_copy_aside(path) {
            return;
        }
        if let Err(error @ ReadError::TooLarge { .. }) = self.root_files.read(path, ASIDE_BYTES) {
            log::warn!("{} is not kept aside: {}", path.display(), crate::errors::chain(&error));
            return;
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let is_aside = |name: &std::ffi::OsStr| name.to_string_lossy().contains(".corrupt-");
        let kept = self
            .root_files
            .list(folder, LISTED)
            .map_or(0, |listing| listing.entries.iter().filter(|entry| is_aside(&entry.name)).count());
        if kept >= MOST_ASIDE {
            log::warn!("{} is not kept aside: {} has {kept} such files", path.display(), folder.display());
            return;
        }
        match self.root_files.keep_aside(path) {
            Ok(aside) => log::warn!("{} is kept aside as {}", path.display(), aside.display()),
            Err(error) => {
                log::warn!("{} is not kept aside: {}", path.display(), crate::errors::chain(&error))
            }
        }
    }

    fn has_copy_aside(&self, path: &Path) -> bool {
        let Ok(content) = self.root_files.read(path, ASIDE_BYTES) else { return false };
        (1..=files::SET_ASIDE_KEPT + 1).any(|number| {
            let copy = format!("{}.corrupt-{number}", path.display());
            self.root_files.read(Path::new(&copy), ASIDE_BYTES).is_ok_and(|found| found == content)
        })
    }

    fn step(&mut self, step: Step) -> Outcome {
        match (step, &self.read_only) {
            (Step::Write(..) | Step::SetAside(_), Some(why)) => Outcome::Done(Err(why.clone())),
            (step, _) => self.step_on_disk(step),
        }
    }

    fn step_on_disk(&mut self, step: Step) -> Outcome {
        match step {
            Step::Read(file) => {
                let read = self.read(&file);
                if file == StateFile::BadConfigs {
                    self.bad_configs = content(&read);
                    self.bad_configs_unreadable = why_unreadable(&read);
                }
                Outcome::Read(read)
            }
            Step::Write(file, bytes) => {
                let path = file.path(&self.version);
                let done = if file.can_be_had_again() {
                    self.files.write_beside_reserve(Path::new(&path), &bytes)
                } else {
                    self.files_of(&file).write_durably(Path::new(&path), &bytes)
                };
                log::debug!(
                    "wrote {path}, {} bytes: {}",
                    bytes.len(),
                    if done.is_ok() { "durable" } else { "failed" }
                );
                if file == StateFile::BadConfigs && done.is_ok() {
                    self.bad_configs = Some(bytes);
                }
                let done = done.map_err(|error| crate::errors::chain(&error));
                self.health.note_write(&path, &done);
                Outcome::Done(done)
            }
            Step::SetAside(file) if file.is_below_root() => {
                let done = self.root_files.set_aside(Path::new(&file.path(&self.version)));
                Outcome::Done(done.map(drop).map_err(|error| crate::errors::chain(&error)))
            }
            Step::SetAside(file) => {
                let stays = file == StateFile::BadConfigs;
                Outcome::Done(self.set_aside(Path::new(&file.path(&self.version)), stays))
            }
        }
    }

    fn files_of(&self, file: &StateFile) -> &dyn Files {
        if file.is_below_root() { &*self.root_files } else { &*self.files }
    }

    fn read(&self, file: &StateFile) -> Read {
        let path = file.path(&self.version);
        let path = Path::new(&path);
        match self.files_of(file).read(path, CHECKPOINT_BYTES) {
            Ok(bytes) => Read::Content(bytes),
            Err(ReadError::NotFound { .. }) if file.is_below_root() => Read::Absent,
            Err(ReadError::NotFound { .. }) => match (self.why_not_there(path), file) {
                // if other records were lost, the node behaves as if they had never existed
                (Read::Absent, StateFile::Current | StateFile::LastKnownGood) if self.was_displaced => {
                    Read::SetAside
                }
                (read, _) => read,
            },
            Err(error) => Read::Unreadable(crate::errors::chain(&error)),
        }
    }

    /// Distinguishes a lost record from one that never existed: copies of it were set aside, or its directory
    /// is not a directory.
    fn why_not_there(&self, path: &Path) -> Read {
        if let Some((parent, kind)) = self.displaced_parent(path) {
            let name = if parent == Path::new("") {
                "the state directory".into()
            } else {
                parent.display().to_string()
            };
            return Read::Unreadable(format!("{name} is a {kind}, expected a directory"));
        }
        let mut parts = path.ancestors().filter(|part| *part != Path::new(""));
        if parts.any(|part| self.was_set_aside(part)) { Read::SetAside } else { Read::Absent }
    }

    /// Files in place of a directory above `path`, the topmost first.
    fn displaced_parent<'a>(&self, path: &'a Path) -> Option<(&'a Path, Kind)> {
        let mut parents: Vec<&Path> = path.ancestors().skip(1).collect();
        parents.reverse();
        parents.into_iter().find_map(|parent| match self.files.list(parent, 0) {
            Err(ReadError::NotAFile { kind, .. }) => Some((parent, kind)),
            _ => None,
        })
    }

    /// Looks for the names directly: a list of a directory with a hundred thousand others would not include
    /// them.
    fn was_set_aside(&self, path: &Path) -> bool {
        (1..=files::SET_ASIDE_KEPT + 1).any(|number| {
            let remains = format!("{}.corrupt-{number}", path.display());
            !matches!(self.files.read(Path::new(&remains), 0), Err(ReadError::NotFound { .. }))
        })
    }

    /// Renames an unreadable file, or gives it a second name if it `stays` until it is replaced; or renames
    /// the file in place of its directory if that is the cause.
    fn set_aside(&self, path: &Path, stays: bool) -> Result<(), String> {
        let (target, done) = match self.displaced_parent(path) {
            Some((parent, _)) if parent != Path::new("") => (parent, self.files.set_aside(parent)),
            _ if stays => (path, self.files.keep_aside(path)),
            _ => (path, self.files.set_aside(path)),
        };
        match done {
            Ok(aside) => {
                log::info!("{} set aside as {}", target.display(), aside.display());
                Ok(())
            }
            Err(error) => Err(crate::errors::chain(&error)),
        }
    }

    fn check_bad_configs(&mut self) -> Option<Event> {
        let path = StateFile::BadConfigs.path(&self.version);
        if self.bad_configs.is_none()
            && matches!(self.files.read(Path::new(&path), CHECKPOINT_BYTES), Err(ReadError::NotFound { .. }))
        {
            // still missing: the start has looked for the reason, which takes twenty names
            return None;
        }
        let read = self.read(&StateFile::BadConfigs);
        let now = content(&read);
        let why = why_unreadable(&read);
        if why.is_some() {
            // it may be an edit: core reports that the earlier list stays in force, once for each reason
            let before = std::mem::replace(&mut self.bad_configs_unreadable, why);
            return (self.bad_configs_unreadable != before).then_some(Event::BadConfigsRead(read));
        }
        self.bad_configs_unreadable = None;
        if now == self.bad_configs {
            return None;
        }
        self.bad_configs = now;
        log::info!("bad-configs.json was edited");
        let is_gone = matches!(read, Read::Absent | Read::SetAside);
        Some(Event::BadConfigsRead(if is_gone { Read::Content(b"{}".to_vec()) } else { read }))
    }

    fn sweep(&self, keep: Option<&[CheckpointName]>) {
        let versions = self.versions_to_keep();
        let report = self.files.sweep(&|path| kept(path, keep, &self.version, &versions), SWEEP_ENTRIES);
        // a power cut while the end of a run is recorded leaves a temporary file beside the record
        let others = [&self.root_files].into_iter().chain(&self.beside);
        let reports: Vec<SweepReport> =
            [report].into_iter().chain(others.map(|files| files.sweep_root(SWEEP_ENTRIES))).collect();
        tell_sweep(&reports);
        if let Err(error) = self.files.ensure_reserve(files::RESERVE_BYTES) {
            log::warn!("no reserve for a full disk: {}", crate::errors::chain(&error));
        }
    }

    /// Ours, and of the others the one that ran last: only its counts were not swept yet. Once they are
    /// swept, the highest: an upgrade that was taken back left its directory, too, and must not push out the
    /// verdicts of the version that works.
    fn versions_to_keep(&self) -> Vec<String> {
        let mut versions: Vec<String> = match self.files.list(Path::new(""), LISTED) {
            Ok(listing) if !listing.truncated => {
                listing.entries.iter().map(|entry| entry.name.to_string_lossy().into_owned()).collect()
            }
            // a list that could not be read completely does not show which are the highest
            _ => return Vec::new(),
        };
        versions.retain(|name| is_version(name) && *name != self.version);
        versions.sort_by_cached_key(|name| std::cmp::Reverse((self.has_counts(name), numbers(name))));
        versions.truncate(VERSIONS_KEPT - 1);
        versions.push(self.version.clone());
        versions
    }

    fn has_counts(&self, version: &str) -> bool {
        self.is_there(&StateFile::Startups, version)
    }

    fn is_there(&self, file: &StateFile, version: &str) -> bool {
        !matches!(self.files.read(Path::new(&file.path(version)), 0), Err(ReadError::NotFound { .. }))
    }

    /// Earlier builds did not include their commit in the version, so their records are filed under the
    /// release alone. The first start of a build with a commit copies these records to its own version. The
    /// old files stay, in case such an earlier build is installed again. The verdicts are copied first: a
    /// power cut between the two copies loses only counts. An agent that may not change the disk uses the old
    /// files directly.
    pub(crate) fn take_over(&mut self) {
        let Some((release, _)) = self.version.split_once('+') else { return };
        let release = release.to_owned();
        let both = [StateFile::BadConfigs, StateFile::Startups];
        // only the version that ran last has counts: verdicts that were copied before may have been lifted
        // since
        if !self.has_counts(&release) || both.iter().any(|file| self.is_there(file, &self.version)) {
            return;
        }
        if self.read_only.is_some() {
            self.version = release;
            return;
        }
        for file in both {
            let (from, to) = (file.path(&release), file.path(&self.version));
            let Ok(content) = self.files.read(Path::new(&from), CHECKPOINT_BYTES) else { continue };
            if let Err(error) = self.files.write_durably(Path::new(&to), &content) {
                log::warn!("{from} is not taken over: {}", crate::errors::chain(&error));
                return;
            }
            log::info!("{from} is taken over as {to}");
        }
    }

    fn addresses(&self) -> Vec<String> {
        let ips = self.host.addresses().into_iter().map(|address| address.ip);
        ips.filter(|ip| is_reportable(*ip)).take(ADDRESSES).map(|ip| ip.to_string()).collect()
    }

    fn host_facts(&mut self) -> HostFacts {
        let identity = self.identity.read(&*self.host);
        let (capacity, usage) = (self.host.capacity(), self.host.usage());
        HostFacts {
            machine_id: identity.machine_id,
            system_uuid: identity.system_uuid,
            boot_id: identity.boot_id,
            kernel_version: identity.kernel_release,
            os_image: identity.os_image,
            architecture: identity.architecture.to_owned(),
            hostname: self.node_name.clone(),
            addresses: self.addresses(),
            cpus: capacity.cpus.into(),
            memory_bytes: capacity.memory_bytes,
            storage_bytes: capacity.root_bytes,
            inodes: capacity.root_inodes,
            pids: capacity.pids,
            memory_available_bytes: usage.memory_available_bytes,
            storage_available_bytes: usage.root_available_bytes,
            inodes_free: usage.root_available_inodes,
            pids_in_use: usage.pids_in_use,
            runtime: self.runtime.as_ref().map_or(Runtime::Absent, |runtime| runtime.report()),
            lacking_controllers: self.runtime.as_ref().and_then(|runtime| runtime.lacking_controllers()),
            pod_network: self.runtime.as_ref().map(|_| Plugins::default().look()).unwrap_or_default(),
            api_server: match &self.runtime {
                Some(_) => self.server.look(),
                None => self.server.chosen(),
            },
            authorities: self.server.authorities(),
            has_apparmor: has_apparmor(&Roots::default()),
            has_selinux: has_selinux(&Roots::default()),
            watchdog: if self.is_image {
                watchdog(&self.host.watchdogs())
            } else {
                HardwareWatchdog::NotAsked
            },
            image: if self.is_image { crate::slot::admission::image() } else { ImageState::NotAsked },
        }
    }
}

/// The first one that runs, except the kernel's own timer.
fn watchdog(devices: &[WatchdogDevice]) -> HardwareWatchdog {
    let hardware = || devices.iter().filter(|device| device.is_hardware());
    match (hardware().find(|device| device.is_active()), hardware().next()) {
        (Some(active), _) => HardwareWatchdog::Active(active.identity.clone()),
        (None, Some(idle)) => HardwareWatchdog::Idle(idle.identity.clone()),
        (None, None) => HardwareWatchdog::Absent,
    }
}

/// The pods' desired set. A missing directory is empty; one that cannot be read completely is unknown.
fn desired(files: &dyn Files) -> Result<Vec<DesiredFound>, String> {
    let mut found = Vec::new();
    for folder in DESIRED {
        let listing = match files.list(Path::new(folder), LISTED) {
            Err(ReadError::NotFound { .. }) => continue,
            listing => listing.map_err(|error| crate::errors::chain(&error))?,
        };
        if listing.truncated {
            return Err(format!("{folder} has more than {LISTED} entries"));
        }
        let paths = listing.entries.iter().map(|entry| format!("{folder}/{}", entry.name.to_string_lossy()));
        for path in paths {
            let Some(file) = DesiredFile::from_path(&path) else { continue };
            let content = files.read(Path::new(&path), DESIRED_BYTES);
            found.push(DesiredFound { file, content: content.map_err(|error| crate::errors::chain(&error)) });
        }
    }
    Ok(found)
}

fn tell_sweep(reports: &[SweepReport]) {
    let removed: usize = reports.iter().map(|report| report.removed).sum();
    let truncated = reports.iter().any(|report| report.truncated);
    if removed > 0 || truncated || reports.iter().any(|report| report.error_count > 0) {
        let rest = if truncated { "; more is left for the next start" } else { "" };
        log::info!("removed {removed} leftovers{rest}");
    }
    for error in reports.iter().flat_map(|report| &report.errors) {
        log::warn!("a leftover stays: {error}");
    }
}

/// Whether other machines can use it: not a link-local address.
fn is_reportable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    }
}

/// Addresses reported: upstream reports one per family, and each costs bytes in every full answer.
const ADDRESSES: usize = 4;

fn why_unreadable(read: &Read) -> Option<String> {
    match read {
        Read::Unreadable(why) => Some(why.clone()),
        _ => None,
    }
}

fn content(read: &Read) -> Option<Vec<u8>> {
    match read {
        Read::Content(bytes) => Some(bytes.clone()),
        _ => None,
    }
}

fn is_version(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_digit()) && name.contains('.')
}

/// Of the release: commits have no order.
fn numbers(version: &str) -> Vec<u64> {
    let release = version.split('+').next().unwrap_or_default();
    release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0)).collect()
}

/// Files that a sweep leaves alone: records, named checkpoints, two versions' verdicts, and all files that
/// are not ours.
fn kept(path: &Path, checkpoints: Option<&[CheckpointName]>, version: &str, versions: &[String]) -> bool {
    let parts: Vec<&str> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .collect();
    match parts.as_slice() {
        ["checkpoints", rest @ ..] if !rest.is_empty() => {
            let Some(checkpoints) = checkpoints else { return true };
            let inside = |name: &CheckpointName| {
                let whole = StateFile::Checkpoint(name.clone()).path(version);
                Path::new(&whole).starts_with(path)
            };
            checkpoints.iter().any(inside)
        }
        [name] if is_version(name) => versions.is_empty() || versions.iter().any(|kept| kept == name),
        // another version's counts would be judged by the end of a run of this version
        [name, "startups.json"] if is_version(name) => *name == version,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_platform::linux::Roots;
    use kedge_platform::{Listing, WriteError};
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn sweep_keeps_named_checkpoints_and_foreign_files() {
        let keep = [CheckpointName::new("u-1", "7").unwrap()];
        let versions = ["0.1.0".to_owned(), "0.0.9".to_owned()];
        let check = |path: &str, expect: bool| {
            assert_eq!(kept(Path::new(path), Some(&keep), "0.1.0", &versions), expect, "{path}");
        };
        for path in
            ["current", "last-known-good", "current.corrupt-1", "checkpoints", "0.1.0", "0.0.9", "notes.txt"]
        {
            check(path, true);
        }
        check("checkpoints/u-1", true);
        check("checkpoints/u-1/7", true);
        check("checkpoints/u-1/6", false);
        check("checkpoints/u-2", false);
        check("0.0.8", false);
        check("0.1.0/startups.json", true);
        check("0.0.9/startups.json", false);
        check("0.0.9/bad-configs.json", true);
    }

    /// Files below a directory, and a machine, that count how often they are read.
    struct Counted {
        files: Arc<dyn Files>,
        asked: Arc<AtomicUsize>,
        /// Only the reserve has room.
        is_full: bool,
    }

    impl Counted {
        fn count(&self) -> &dyn Files {
            self.asked.fetch_add(1, Ordering::Relaxed);
            &*self.files
        }
    }

    impl Files for Counted {
        fn read(&self, path: &Path, limit: usize) -> Result<Vec<u8>, ReadError> {
            self.count().read(path, limit)
        }
        fn write_durably(&self, path: &Path, content: &[u8]) -> Result<(), WriteError> {
            self.count().write_durably(path, content)
        }
        fn write_beside_reserve(&self, path: &Path, content: &[u8]) -> Result<(), WriteError> {
            if self.is_full {
                let source = std::io::ErrorKind::StorageFull.into();
                return Err(WriteError::NoSpace { operation: "write", path: path.to_owned(), source });
            }
            self.count().write_beside_reserve(path, content)
        }
        fn remove(&self, path: &Path) -> Result<(), WriteError> {
            self.count().remove(path)
        }
        fn set_aside(&self, path: &Path) -> Result<PathBuf, WriteError> {
            self.count().set_aside(path)
        }
        fn keep_aside(&self, path: &Path) -> Result<PathBuf, WriteError> {
            self.count().keep_aside(path)
        }
        fn list(&self, directory: &Path, limit: usize) -> Result<Listing, ReadError> {
            self.count().list(directory, limit)
        }
        fn sweep(&self, keep: &dyn Fn(&Path) -> bool, limit: usize) -> SweepReport {
            self.count().sweep(keep, limit)
        }
        fn sweep_root(&self, limit: usize) -> SweepReport {
            self.count().sweep_root(limit)
        }
        fn ensure_reserve(&self, bytes: usize) -> Result<(), WriteError> {
            self.count().ensure_reserve(bytes)
        }
        fn free_reserve(&self) -> Result<bool, WriteError> {
            self.count().free_reserve()
        }
    }

    #[derive(Default)]
    struct Host {
        identities: Arc<AtomicUsize>,
        /// The readings of its identity that lack a part.
        partial: Vec<usize>,
    }

    impl kedge_platform::HostFacts for Host {
        fn identity(&self) -> HostIdentity {
            let number = self.identities.fetch_add(1, Ordering::Relaxed);
            let kernel_release = if self.partial.contains(&number) { "" } else { "6.12" }.to_owned();
            HostIdentity { machine_id: number.to_string(), kernel_release, ..HostIdentity::default() }
        }
        fn addresses(&self) -> Vec<kedge_platform::Address> {
            Vec::new()
        }
        fn capacity(&self) -> kedge_platform::Capacity {
            kedge_platform::Capacity::default()
        }
        fn usage(&self) -> kedge_platform::Usage {
            kedge_platform::Usage::default()
        }
        fn watchdogs(&self) -> Vec<WatchdogDevice> {
            Vec::new()
        }
    }

    /// A disk loop over the files below `scratch`, wrapped by `counted`.
    fn disk_loop(
        scratch: &kedge_rig::Scratch,
        host: Host,
        counted: impl FnOnce(Arc<dyn Files>) -> Counted,
    ) -> DiskLoop {
        let files: Arc<dyn Files> = kedge_platform::linux::files(scratch.path());
        DiskLoop {
            files: Arc::new(counted(files.clone())),
            root_files: files.clone(),
            beside: BESIDE
                .iter()
                .map(|below| kedge_platform::linux::files(scratch.join(below)) as _)
                .collect(),
            previous: Box::new(kedge_platform::linux::previous_exit(files, Roots::under(scratch.path()))),
            host: Box::new(host),
            identity: KnownIdentity::default(),
            version: "0.1.0".into(),
            node_name: "edge-1".into(),
            bad_configs: None,
            bad_configs_unreadable: None,
            health: Arc::default(),
            server: KnownServer::default(),
            state_places: Default::default(),
            credential: None,
            quota: Quota::default(),
            runtime: None,
            read_only: None,
            is_image: false,
            was_displaced: false,
            _claim: None,
        }
    }

    #[test]
    fn desired_set_that_cannot_be_read_is_not_empty() {
        let scratch = kedge_rig::Scratch::new("desired").unwrap();
        let files = kedge_platform::linux::files(scratch.path());
        assert_eq!(desired(&*files), Ok(Vec::new()), "a node that never had a pod");
        for path in ["pods/desired/u-1.json", "pods/objects/ab12.json", "pods/desired/notes.txt"] {
            scratch.write(path, "{}");
        }
        let found = desired(&*files).unwrap();
        let paths: Vec<String> = found.iter().map(|found| found.file.path()).collect();
        assert_eq!(paths, ["pods/desired/u-1.json", "pods/objects/ab12.json"]);
        std::fs::remove_dir_all(scratch.join("pods/objects")).unwrap();
        scratch.write("pods/objects", "not a directory");
        assert!(desired(&*files).is_err());
    }

    #[test]
    fn sweep_removes_what_cuts_left_of_writing_records() {
        let scratch = kedge_rig::Scratch::new("cut-writes").unwrap();
        let left = BESIDE.map(|below| format!("{below}/.kedge-new-7-1"));
        left.iter().for_each(|path| drop(scratch.write(path, "half")));
        let others = ["pods/desired/u-1.json", "volumes/u-1/v/.kedge-new-7-1"];
        others.iter().for_each(|path| drop(scratch.write(path, "{}")));
        let counted = |files| Counted { files, asked: Arc::default(), is_full: false };
        let disk = disk_loop(&scratch, Host::default(), counted);
        let files = kedge_platform::linux::files(scratch.join("config"));
        DiskLoop { files, ..disk }.perform(DiskOrder::Sweep(None));
        let is_there = |path: &&str| scratch.join(path).exists();
        assert!(!left.iter().any(|path| is_there(&path.as_str())));
        assert!(others.iter().all(is_there), "what a pod wrote is a pod's");
    }

    #[test]
    fn unusable_record_is_kept_aside_once_and_stays() {
        let scratch = kedge_rig::Scratch::new("aside").unwrap();
        let counted = |files| Counted { files, asked: Arc::default(), is_full: false };
        let mut disk = disk_loop(&scratch, Host::default(), counted);
        let keep = |disk: &mut DiskLoop, names: &[String]| {
            let file = |name: &String| DesiredFile::from_path(&format!("pods/desired/{name}.json")).unwrap();
            disk.perform(DiskOrder::KeepAside(names.iter().map(file).collect()));
        };
        let aside = || {
            let names = std::fs::read_dir(scratch.join("pods/desired")).unwrap().flatten();
            names.filter(|entry| entry.file_name().to_string_lossy().contains(".corrupt-")).count()
        };
        for (content, expect) in [("{", 1), ("{", 1), ("[", 2)] {
            scratch.write("pods/desired/u-1.json", content);
            keep(&mut disk, &["u-1".into()]);
            assert_eq!(aside(), expect, "{content}");
            assert!(scratch.join("pods/desired/u-1.json").exists(), "it is unknown, not missing");
        }
        scratch.write("pods/desired/u-1.json", "x".repeat(ASIDE_BYTES + 1));
        keep(&mut disk, &["u-1".into()]);
        assert_eq!(aside(), 2, "one that is large is not kept");
        let many: Vec<String> = (2..100).map(|number| format!("u-{number}")).collect();
        many.iter().for_each(|name| drop(scratch.write(&format!("pods/desired/{name}.json"), "{")));
        keep(&mut disk, &many);
        assert_eq!(aside(), MOST_ASIDE, "nothing grows");
    }

    #[test]
    fn watchdog_of_the_hardware_that_runs_is_reported() {
        let device = |identity: &str, state: &str| WatchdogDevice {
            identity: identity.into(),
            state: state.into(),
            ..WatchdogDevice::default()
        };
        let soft = || device("Software Watchdog", "active");
        let idle = || device("i6300ESB timer", "inactive");
        assert_eq!(watchdog(&[]), HardwareWatchdog::Absent);
        assert_eq!(watchdog(&[soft()]), HardwareWatchdog::Absent);
        assert_eq!(watchdog(&[soft(), idle()]), HardwareWatchdog::Idle("i6300ESB timer".into()));
        let all = [idle(), soft(), device("iTCO_wdt", "active")];
        assert_eq!(watchdog(&all), HardwareWatchdog::Active("iTCO_wdt".into()));
    }

    #[test]
    fn records_of_a_displaced_directory_are_unknown() {
        let scratch = kedge_rig::Scratch::new("displaced").unwrap();
        let counted = |files| Counted { files, asked: Arc::default(), is_full: false };
        let mut disk = disk_loop(&scratch, Host::default(), counted);
        let all = [StateFile::Current, StateFile::LastKnownGood, StateFile::BadConfigs, StateFile::Startups];
        let read = |disk: &DiskLoop| all.clone().map(|file| disk.read(&file));
        let absent = || Read::Absent;
        assert_eq!(read(&disk), [absent(), absent(), absent(), absent()]);
        disk.was_displaced = true;
        assert_eq!(read(&disk), [Read::SetAside, Read::SetAside, absent(), absent()]);
        scratch.write("current", "{}");
        assert_eq!(disk.read(&StateFile::Current), Read::Content(b"{}".to_vec()));
    }

    /// 0.1.0 works, an upgrade to 0.2.0 was taken back, and the next is in its trial: if it is taken back,
    /// too, 0.1.0 needs its verdicts.
    #[test]
    fn sweep_keeps_the_verdicts_of_the_version_that_ran_last() {
        let scratch = kedge_rig::Scratch::new("two-upgrades").unwrap();
        for path in ["0.1.0/bad-configs.json", "0.1.0/startups.json", "0.2.0/bad-configs.json"] {
            scratch.write(path, "{}");
        }
        let counted = |files| Counted { files, asked: Arc::default(), is_full: false };
        let mut disk = DiskLoop { version: "0.3.0".into(), ..disk_loop(&scratch, Host::default(), counted) };
        for _ in 0..2 {
            disk.perform(DiskOrder::Sweep(Some(Vec::new())));
            assert!(scratch.join("0.1.0/bad-configs.json").exists());
            assert!(!scratch.join("0.1.0/startups.json").exists() && !scratch.join("0.2.0").exists());
        }
    }

    #[test]
    fn first_build_that_names_its_commit_takes_over_its_release() {
        let scratch = kedge_rig::Scratch::new("named-commit").unwrap();
        let counted = |files| Counted { files, asked: Arc::default(), is_full: false };
        let disk = |version: &str| DiskLoop {
            version: version.into(),
            ..disk_loop(&scratch, Host::default(), counted)
        };
        let records = |disk: &DiskLoop| {
            [StateFile::BadConfigs, StateFile::Startups].map(|file| content(&disk.read(&file)))
        };
        let [list, counts] = ["[verdicts]", "[counts]"].map(|text| Some(text.as_bytes().to_vec()));
        scratch.write("0.1.0/bad-configs.json", "[verdicts]");
        scratch.write("0.1.0/startups.json", "[counts]");

        let mut forecast = DiskLoop { read_only: Some("a forecast".into()), ..disk("0.1.0+aaaaaaaaaa") };
        forecast.take_over();
        assert_eq!(records(&forecast), [list.clone(), counts.clone()]);
        assert!(!scratch.join("0.1.0+aaaaaaaaaa").exists(), "it wrote nothing");

        let mut first = disk("0.1.0+aaaaaaaaaa");
        first.take_over();
        assert_eq!(records(&first), [list.clone(), counts]);
        first.perform(DiskOrder::Sweep(Some(Vec::new())));
        assert!(scratch.join("0.1.0/bad-configs.json").exists(), "for such a build, should it be put back");
        assert!(!scratch.join("0.1.0/startups.json").exists());
        // a person lifts all verdicts: they do not come back
        std::fs::remove_file(scratch.join("0.1.0+aaaaaaaaaa/bad-configs.json")).unwrap();
        first.take_over();
        assert_eq!(records(&first)[0], None);

        // another commit is another version, and judges afresh
        let mut next = disk("0.1.0+bbbbbbbbbb");
        next.take_over();
        assert_eq!(records(&next), [None, None]);
        next.perform(DiskOrder::Sweep(Some(Vec::new())));
        assert!(!scratch.join("0.1.0").exists() && scratch.join("0.1.0+aaaaaaaaaa").exists());
    }

    #[test]
    fn full_disk_has_room_for_a_verdict_and_for_no_checkpoint() {
        let scratch = kedge_rig::Scratch::new("full-disk").unwrap();
        let full = |files| Counted { files, asked: Arc::default(), is_full: true };
        let mut disk = disk_loop(&scratch, Host::default(), full);
        let mut write = |file| match disk.perform(DiskOrder::Step(Step::Write(file, vec![b'x'; 2048]))) {
            Some(Event::StepDone(Outcome::Done(done))) => done,
            _ => panic!("a write is answered"),
        };
        let checkpoint = CheckpointName::new("u-1", "7").unwrap();
        assert!(write(StateFile::Checkpoint(checkpoint)).unwrap_err().contains("the disk is full"));
        for file in [StateFile::Current, StateFile::LastKnownGood, StateFile::BadConfigs, StateFile::Startups]
        {
            write(file).unwrap();
        }
    }

    #[test]
    fn look_at_an_idle_host_reads_nothing_that_never_changes() {
        let scratch = kedge_rig::Scratch::new("disk-loop").unwrap();
        let (asked, identities) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let host = Host { identities: identities.clone(), ..Host::default() };
        let counted = |files| Counted { files, asked: asked.clone(), is_full: false };
        let mut disk = disk_loop(&scratch, host, counted);
        disk.perform(DiskOrder::Step(Step::Read(StateFile::BadConfigs)));
        asked.store(0, Ordering::Relaxed);
        for _ in 0..10 {
            assert!(matches!(disk.perform(DiskOrder::ReadHostFacts), Some(Event::HostFacts(_))));
            assert!(disk.perform(DiskOrder::CheckBadConfigs).is_none());
        }
        assert_eq!((identities.load(Ordering::Relaxed), asked.load(Ordering::Relaxed)), (1, 10));
        // an edit is noticed all the same, and so is its end
        scratch.write("0.1.0/bad-configs.json", "{}");
        assert!(matches!(disk.perform(DiskOrder::CheckBadConfigs), Some(Event::BadConfigsRead(_))));
        assert!(disk.perform(DiskOrder::CheckBadConfigs).is_none());
        std::fs::remove_file(scratch.join("0.1.0/bad-configs.json")).unwrap();
        assert!(matches!(disk.perform(DiskOrder::CheckBadConfigs), Some(Event::BadConfigsRead(_))));
        assert!(disk.perform(DiskOrder::CheckBadConfigs).is_none());
    }

    /// A directory in its place simulates a damaged sector: no read of the list succeeds.
    #[test]
    fn list_that_becomes_unreadable_is_handed_on_once() {
        let scratch = kedge_rig::Scratch::new("unreadable-list").unwrap();
        let counted = |files| Counted { files, asked: Arc::default(), is_full: false };
        let mut disk = disk_loop(&scratch, Host::default(), counted);
        scratch.write("0.1.0/bad-configs.json", "{}");
        disk.perform(DiskOrder::Step(Step::Read(StateFile::BadConfigs)));
        std::fs::remove_file(scratch.join("0.1.0/bad-configs.json")).unwrap();
        scratch.write("0.1.0/bad-configs.json/in-the-way", "");
        let mut look = || disk.perform(DiskOrder::CheckBadConfigs);
        let handed_on = look();
        assert!(matches!(handed_on, Some(Event::BadConfigsRead(Read::Unreadable(_)))));
        assert!(look().is_none(), "it is known");
        std::fs::remove_dir_all(scratch.join("0.1.0/bad-configs.json")).unwrap();
        scratch.write("0.1.0/bad-configs.json", "{}");
        assert!(look().is_none(), "nothing has changed");
        std::fs::remove_file(scratch.join("0.1.0/bad-configs.json")).unwrap();
        scratch.write("0.1.0/bad-configs.json/in-the-way", "");
        assert!(look().is_some(), "it cannot be read again");
    }

    #[test]
    fn identity_is_read_again_until_it_is_whole_and_then_rarely() {
        let host = Host { partial: vec![0, 1, 3], ..Host::default() };
        let mut identity = KnownIdentity::default();
        let looks = (0..3 + 2 * IDENTITY_LOOKS).map(|_| identity.read(&host).machine_id).collect::<Vec<_>>();
        assert_eq!(looks[..3], ["0", "1", "2"]);
        // the fourth reading lacks a part: the known facts stay, and are read again at the next look
        assert_eq!(looks.iter().filter(|id| *id == "2").count(), IDENTITY_LOOKS as usize + 1);
        assert_eq!(looks.last().map(String::as_str), Some("4"));
        assert_eq!(host.identities.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn unknown_record_keeps_all_checkpoints() {
        assert!(kept(Path::new("checkpoints/u-2/9"), None, "0.1.0", &["0.1.0".to_owned()]));
    }

    #[test]
    fn version_10_sorts_after_9() {
        assert!(numbers("0.10.0") > numbers("0.9.9"));
    }
}
