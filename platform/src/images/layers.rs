//! Layers: directories that containers mount, each made once from its archive.
//!
//! Always holds: a layer exists only if its record does, which is written after everything below its
//! directory is durable; all other entries are leftovers. The directory's name is a part of the chain's
//! digest (mount options must be short), the record has all of it, and another chain of the same name is
//! refused. The archive is read by a confined process with limits; the process ends with the thread that
//! waits for it.
//!
//! Where overlayfs cannot be mounted, an image's archives are unpacked into one directory, one over the other
//! ([`Unpack`] with several steps): such a layer is complete by itself and shares nothing. The caller names
//! it by a separate digest.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};

use super::apply::Blame;
use super::child::{Refused, Unpacked};
use super::mounts::{self, NAME_BYTES};
use super::{BlobName, Hold, sync_directory};
use crate::files::Files;
use crate::{linux, trees};

/// Longest record of a layer; it has about 250 bytes.
const RECORD_BYTES: usize = 4096;
/// Longest answer of the unpacking process: the result, or the refusal.
const ANSWER_BYTES: u64 = 16 * 1024;
/// Most layers listed: 127 of each of some hundred images.
const MAX_LISTED: usize = 20_000;

/// The name under which an archive that is not a layer is unpacked, and that of its claim.
pub const IMPORT: &str = "import";
/// For the error message.
const MOUNTS: &str = "/proc/self/mountinfo";
/// Prefix of the names with which overlayfs is tested; the number of the process follows.
const PROBE: &str = "probe-";

/// How often a waiting thread checks for cancellation.
const LOOK: Duration = Duration::from_millis(100);

/// Number of tests of overlayfs in this process.
static PROBES: AtomicU32 = AtomicU32::new(0);

/// The most that one layer may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub entries: u64,
    /// Bytes on the disk, and bytes of the unpacked archive.
    pub bytes: u64,
    pub time: Duration,
}

/// Tells whether an unpacking was cancelled; checked regularly while it lasts.
#[derive(Clone)]
pub struct Cancelled(Arc<dyn Fn() -> bool + Send + Sync>);

impl Cancelled {
    /// Cancelled once `is_so` returns true; other threads may cause that.
    pub fn when(is_so: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_so))
    }

    #[must_use]
    pub fn never() -> Self {
        Self::when(|| false)
    }

    fn is_so(&self) -> bool {
        (self.0)()
    }
}

impl fmt::Debug for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cancelled({})", self.is_so())
    }
}

/// One archive.
#[derive(Debug)]
pub struct Step<'a> {
    pub archive: File,
    /// `plain`, `gzip` or `zstd`.
    pub packing: &'a str,
    /// The digest of the unpacked archive.
    pub diff: &'a BlobName,
}

/// The request to make a layer.
#[derive(Debug)]
pub struct Unpack<'a> {
    pub chain: &'a BlobName,
    /// The chains of the layers below it, the base first; they must exist. Empty with several steps.
    pub below: &'a [BlobName],
    /// One archive; without overlayfs all of an image, the base first.
    pub steps: Vec<Step<'a>>,
    pub limits: Limits,
    pub cancelled: Cancelled,
}

/// The record that proves that a layer is complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LayerRecord {
    pub chain: String,
    pub entries: u64,
    pub bytes: u64,
}

/// The reason why a layer could not be made.
#[derive(Debug)]
pub enum UnpackError {
    /// The archive does not match its digest or its format. Fetching it again may help if it was damaged
    /// here.
    Archive { layer: String, why: String },
    /// The archive has more entries than [`Limits::entries`].
    ManyEntries { layer: String, why: String },
    /// The archive takes more than [`Limits::bytes`].
    ManyBytes { layer: String, why: String },
    /// The disk had no room, or failed, while the archive was unpacked.
    Disk { layer: String, why: String },
    /// The unpacked archive has another digest than the image states.
    Differs { chain: BlobName, expected: String, found: String },
    /// The process exceeded its time limit.
    TooLong { layer: String, limit: Duration },
    /// The record of the layer is missing, and containers have the layer mounted: it cannot be made anew
    /// under them.
    Mounted { layer: String },
    /// The unpacking was cancelled.
    Cancelled { layer: String },
    /// Another chain has this name on this node.
    Taken { chain: BlobName, by: String },
    /// The disk or the kernel failed.
    Io { operation: &'static str, path: PathBuf, source: io::Error },
}

impl fmt::Display for UnpackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Archive { layer, why }
            | Self::ManyEntries { layer, why }
            | Self::ManyBytes { layer, why }
            | Self::Disk { layer, why } => write!(f, "layer {layer}: {why}"),
            Self::Differs { chain, expected, found } => {
                write!(f, "layer {}: unpacks to sha256:{found}, expected sha256:{expected}", shown(chain))
            }
            Self::TooLong { layer, limit } => {
                write!(f, "layer {layer}: not unpacked within {} s", limit.as_secs())
            }
            Self::Mounted { layer } => {
                write!(
                    f,
                    "layer {layer}: its record is lost, and a container uses it: it is made anew after that container"
                )
            }
            Self::Cancelled { layer } => write!(f, "layer {layer}: cancelled"),
            Self::Taken { chain, by } => write!(f, "layer {}: its name is taken by chain {by}", shown(chain)),
            Self::Io { operation, path, .. } => write!(f, "cannot {operation} {}", path.display()),
        }
    }
}

impl Error for UnpackError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

fn shown(chain: &BlobName) -> &str {
    &chain.as_str()[..12]
}

/// The name of a chain's directory.
fn short(chain: &BlobName) -> &str {
    &chain.as_str()[..NAME_BYTES]
}

/// The directory of layers.
#[derive(Clone)]
pub struct Layers {
    directory: PathBuf,
    program: PathBuf,
    has_overlay: Arc<OnceLock<bool>>,
}

impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Layers({})", self.directory.display())
    }
}

impl Layers {
    pub(super) fn new(directory: PathBuf, program: PathBuf) -> Self {
        Self { directory, program, has_overlay: Arc::default() }
    }

    /// The directory itself: names of layers are relative to it.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The name of a chain's directory in [`Layers::directory`].
    #[must_use]
    pub fn name(chain: &BlobName) -> &str {
        short(chain)
    }

    /// The record of a layer; `None` if the layer does not exist.
    #[must_use]
    pub fn record(&self, chain: &BlobName) -> Option<LayerRecord> {
        self.record_of(short(chain)).filter(|record| record.chain == chain.as_str())
    }

    fn record_of(&self, name: &str) -> Option<LayerRecord> {
        if !fs::symlink_metadata(self.directory.join(name)).ok()?.is_dir() {
            return None;
        }
        let bytes =
            linux::files(&self.directory).read(Path::new(&format!("{name}.json")), RECORD_BYTES).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// All existing layers.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self) -> io::Result<Vec<LayerRecord>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.directory)?.take(MAX_LISTED) {
            let name = entry?.file_name();
            found.extend(
                name.to_str().filter(|name| name.len() == NAME_BYTES).and_then(|name| self.record_of(name)),
            );
        }
        Ok(found)
    }

    /// True if layers can be mounted over one another here. It is tested until the kernel has answered,
    /// because a disk that is full or fails proves nothing about overlayfs.
    ///
    /// # Errors
    /// The test could not be made.
    pub fn has_overlay(&self) -> io::Result<bool> {
        if let Some(known) = self.has_overlay.get() {
            return Ok(*known);
        }
        let has_overlay = answer(self.try_overlay())?;
        // a thread that was faster had the same answer
        Ok(*self.has_overlay.get_or_init(|| has_overlay))
    }

    fn try_overlay(&self) -> io::Result<()> {
        // names of this test alone: another process may be testing now, and a power cut may have left names
        // of an earlier test
        let number = PROBES.fetch_add(1, Ordering::Relaxed);
        let names = ["below", "new", "work", "mnt"]
            .map(|end| format!("{PROBE}{}-{number}.{end}", std::process::id()));
        let clear = || names.iter().for_each(|name| drop(trees::remove(&self.directory.join(name))));
        clear();
        let (directory, [below, upper, work, target]) = (self.directory.clone(), names.clone());
        let tried = on_a_thread(move || {
            for name in [&below, &upper, &work, &target] {
                make(&directory.join(name))?;
            }
            mounts::set_thread_apart(&directory)?;
            mounts::overlay(&[&below], &upper, &work, &target)?;
            mounts::unmount(&target)
        });
        clear();
        tried
    }

    /// Makes a layer, unless it exists. One at a time, because it keeps a small board's processor and disk
    /// busy. After cancellation it ends at once, including its process and its wait for others.
    ///
    /// # Errors
    /// It could not be made; incomplete parts were removed.
    pub fn unpack(&self, unpack: Unpack<'_>) -> Result<LayerRecord, UnpackError> {
        let name = short(unpack.chain);
        let _only = self.hold(name, &unpack.cancelled)?;
        match self.record_of(name) {
            Some(record) if record.chain == unpack.chain.as_str() => return Ok(record),
            Some(record) => return Err(UnpackError::Taken { chain: unpack.chain.clone(), by: record.chain }),
            None => {}
        }
        let mounted = mounts::mounted_layers(&self.directory);
        let mounted =
            mounted.map_err(|source| UnpackError::Io { operation: "read", path: MOUNTS.into(), source })?;
        if mounted.contains(name) {
            return Err(UnpackError::Mounted { layer: shown(unpack.chain).to_owned() });
        }
        self.clear(name)?;
        let made = self.make(unpack);
        if made.is_err() {
            // ignored, because the disk itself may have failed: the next sweep tries again
            let _ = self.clear(name);
        }
        made
    }

    fn hold(&self, name: &str, cancelled: &Cancelled) -> Result<Hold, UnpackError> {
        let path = self.directory.join(".lock");
        let failed = |source| UnpackError::Io { operation: "lock", path: path.clone(), source };
        super::clear_lock(&path).map_err(failed)?;
        let file = linux::open_lock(&path).map_err(failed)?;
        // the holder's time is limited
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Hold { _file: file }),
                Err(fs::TryLockError::Error(error)) => return Err(failed(error)),
                Err(fs::TryLockError::WouldBlock) if cancelled.is_so() => {
                    return Err(UnpackError::Cancelled { layer: name.to_owned() });
                }
                Err(fs::TryLockError::WouldBlock) => thread::sleep(LOOK),
            }
        }
    }

    /// Removes everything of that name.
    fn clear(&self, name: &str) -> Result<(), UnpackError> {
        for end in [".json", "", ".new", ".work", ".mnt", ".gone"] {
            let path = self.directory.join(format!("{name}{end}"));
            trees::remove(&path).map_err(|source| UnpackError::Io { operation: "remove", path, source })?;
        }
        Ok(())
    }

    fn make(&self, unpack: Unpack<'_>) -> Result<LayerRecord, UnpackError> {
        let chain = unpack.chain;
        let name = short(chain);
        let at = |end: &str| self.directory.join(format!("{name}{end}"));
        let failed =
            |operation, path: &Path, source| UnpackError::Io { operation, path: path.to_path_buf(), source };
        for end in [".new", ".work", ".mnt"] {
            make(&at(end)).map_err(|source| failed("make", &at(end), source))?;
        }
        // the mode of the root directory of a container whose layers have no entry for it
        let open = fs::set_permissions(at(".new"), fs::Permissions::from_mode(0o755));
        open.map_err(|source| failed("change", &at(".new"), source))?;
        let (entries, bytes) = self.run_steps(unpack)?;
        let file = File::open(at(".new")).map_err(|source| failed("open", &at(".new"), source))?;
        nix::unistd::syncfs(&file).map_err(|errno| failed("sync", &at(".new"), errno.into()))?;
        fs::rename(at(".new"), at("")).map_err(|source| failed("rename", &at(".new"), source))?;
        sync_directory(&self.directory).map_err(|source| failed("sync", &self.directory, source))?;
        let record = LayerRecord { chain: chain.to_string(), entries, bytes };
        let text =
            serde_json::to_vec(&record).map_err(|error| failed("describe", &at(".json"), error.into()))?;
        let written = linux::files(&self.directory).write_durably(Path::new(&format!("{name}.json")), &text);
        written.map_err(|error| failed("write", &at(".json"), io::Error::other(with_causes(&error))))?;
        for end in [".work", ".mnt"] {
            let _ = trees::remove(&at(end));
        }
        Ok(record)
    }

    /// Unpacks all archives into `NAME.new`; returns entries and bytes.
    fn run_steps(&self, unpack: Unpack<'_>) -> Result<(u64, u64), UnpackError> {
        let Unpack { chain, below, steps, limits, cancelled } = unpack;
        let (mut entries, mut bytes) = (0, 0);
        for step in steps {
            let left = Limits {
                entries: limits.entries.saturating_sub(entries),
                bytes: limits.bytes.saturating_sub(bytes),
                ..limits
            };
            let job = Job {
                directory: self.directory.clone(),
                program: self.program.clone(),
                name: short(chain).to_owned(),
                below: below.iter().map(|chain| short(chain).to_owned()).collect(),
                packing: step.packing.to_owned(),
                limits: left,
                cancelled: cancelled.clone(),
            };
            let archive = step.archive;
            let ended = on_a_thread(move || job.run(archive));
            let ended = ended.map_err(|source| UnpackError::Io {
                operation: "unpack into",
                path: self.directory.join(short(chain)),
                source,
            })?;
            let unpacked = ended.judge(shown(chain), limits.time)?;
            if unpacked.diff != step.diff.as_str() {
                let expected = step.diff.to_string();
                return Err(UnpackError::Differs { chain: chain.clone(), expected, found: unpacked.diff });
            }
            entries += unpacked.entries;
            bytes += unpacked.bytes;
        }
        Ok((entries, bytes))
    }

    /// Unpacks an archive that is not a layer into a directory of its own.
    pub(super) fn extract(
        &self,
        archive: File,
        packing: &str,
        limits: Limits,
    ) -> Result<PathBuf, UnpackError> {
        let _only = self.hold(IMPORT, &Cancelled::never())?;
        self.clear(IMPORT)?;
        let at = |end: &str| self.directory.join(format!("{IMPORT}{end}"));
        for end in [".new", ".mnt"] {
            make(&at(end)).map_err(|source| UnpackError::Io { operation: "make", path: at(end), source })?;
        }
        let job = Job {
            directory: self.directory.clone(),
            program: self.program.clone(),
            name: IMPORT.to_owned(),
            below: Vec::new(),
            packing: packing.to_owned(),
            limits,
            cancelled: Cancelled::never(),
        };
        let ended = on_a_thread(move || job.run(archive));
        let ended =
            ended.map_err(|source| UnpackError::Io { operation: "unpack into", path: at(".new"), source });
        let judged = ended.and_then(|ended| ended.judge(IMPORT, limits.time));
        let _ = trees::remove(&at(".mnt"));
        match judged {
            Ok(_) => Ok(at(".new")),
            Err(error) => {
                let _ = self.clear(IMPORT);
                Err(error)
            }
        }
    }

    /// Removes a layer that is not claimed: its record first, so that a power cut leaves a leftover and never
    /// half a layer.
    ///
    /// # Errors
    /// The disk failed; the layer may be partly removed, and does not count any more.
    pub fn remove(&self, chain: &BlobName) -> Result<(), UnpackError> {
        let name = short(chain);
        if self.record(chain).is_some() {
            let files = linux::files(&self.directory);
            files.remove(Path::new(&format!("{name}.json"))).map_err(|error| UnpackError::Io {
                operation: "remove",
                path: self.directory.join(format!("{name}.json")),
                source: io::Error::other(with_causes(&error)),
            })?;
            self.clear(name)?;
        }
        Ok(())
    }

    /// Removes leftovers of a power cut or a kill: all entries without a record that are neither claimed nor
    /// mounted.
    ///
    /// # Errors
    /// The directory or the mounts cannot be read; entries that cannot be removed are returned by their
    /// names.
    pub fn sweep(&self, claimed: &BTreeSet<String>) -> io::Result<Vec<String>> {
        let claimed: BTreeSet<&str> =
            claimed.iter().map(|name| name.get(..NAME_BYTES).unwrap_or(name)).collect();
        let mounted = mounts::mounted_layers(&self.directory)?;
        let mut stuck = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let layer = name.split('.').next().unwrap_or_default();
            let is_whole = layer.len() == NAME_BYTES
                && (name == layer || name == format!("{layer}.json"))
                && self.record_of(layer).is_some();
            let is_used = claimed.contains(layer) || mounted.contains(layer) || is_being_tried(layer);
            let is_kept = name == ".lock" || is_whole || is_used;
            if !is_kept && trees::remove(&entry.path()).is_err() {
                stuck.push(name);
            }
        }
        Ok(stuck)
    }
}

/// True if a process is testing overlayfs under this name now.
fn is_being_tried(name: &str) -> bool {
    let pid = name.strip_prefix(PROBE).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
    pid.is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists())
}

/// The conclusion from a test of overlayfs; an error if it proves nothing about the kernel.
fn answer(tried: io::Result<()>) -> io::Result<bool> {
    use nix::libc::{EINVAL, ENODEV, ENOSYS, EOPNOTSUPP, EPERM};
    match tried {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(ENODEV | EINVAL | EPERM | ENOSYS | EOPNOTSUPP)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn with_causes(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn make(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)
}

/// Runs a function on a separate thread, so that its mounts and working directory affect no other.
fn on_a_thread<T: Send + 'static>(run: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let thread = thread::Builder::new().name("unpack".to_owned()).spawn(run)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that unpacks has panicked")))
}

/// One run of the process.
struct Job {
    directory: PathBuf,
    program: PathBuf,
    name: String,
    below: Vec<String>,
    packing: String,
    limits: Limits,
    cancelled: Cancelled,
}

/// The end of the process.
struct Ended {
    output: Result<String, CutOff>,
    status: Option<std::process::ExitStatus>,
    errors: String,
}

/// The reason why the process was ended early.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CutOff {
    TooLong,
    Cancelled,
}

impl Job {
    /// Runs on a separate thread: mounts, runs the process, unmounts.
    fn run(self, archive: File) -> io::Result<Ended> {
        mounts::set_thread_apart(&self.directory)?;
        let at = |end: &str| format!("{}{end}", self.name);
        let below: Vec<&str> = self.below.iter().map(String::as_str).collect();
        match below.is_empty() {
            true => mounts::bind(&at(".new"), &at(".mnt"))?,
            false => mounts::overlay(&below, &at(".new"), &at(".work"), &at(".mnt"))?,
        }
        let ended =
            self.start(archive, &at(".mnt")).and_then(|child| wait(child, self.limits.time, &self.cancelled));
        let unmounted = mounts::unmount(&at(".mnt"));
        let ended = ended?;
        unmounted?;
        Ok(ended)
    }

    fn start(&self, archive: File, directory: &str) -> io::Result<Child> {
        let Limits { entries, bytes, time } = self.limits;
        Command::new(&self.program)
            .arg("unpack")
            .args([
                &self.packing,
                &entries.to_string(),
                &bytes.to_string(),
                &time.as_secs().max(1).to_string(),
            ])
            .current_dir(directory)
            .env_clear()
            .stdin(archive)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
    }
}

/// Waits until the process has closed its output, or the time is over, or it is cancelled; then ends it.
fn wait(mut child: Child, limit: Duration, cancelled: &Cancelled) -> io::Result<Ended> {
    let end = Instant::now() + limit;
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    let output = read_until(stdout.as_mut(), end, cancelled);
    if output.is_err() {
        child.kill()?;
    }
    let status = child.wait()?;
    let soon = Instant::now() + Duration::from_secs(1);
    let errors = read_until(stderr.as_mut(), soon, &Cancelled::never()).unwrap_or_default();
    Ok(Ended { output, status: Some(status), errors })
}

/// Reads until the other side closes, unless the time is over first, or it is cancelled. Bytes beyond the
/// limit are dropped.
fn read_until<R: Read + AsFd>(
    source: Option<&mut R>,
    end: Instant,
    cancelled: &Cancelled,
) -> Result<String, CutOff> {
    let source = source.ok_or(CutOff::TooLong)?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left.min(LOOK)).unwrap_or(PollTimeout::ZERO);
        let mut ready = [PollFd::new(source.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, timeout) {
            Ok(0) if cancelled.is_so() => return Err(CutOff::Cancelled),
            Ok(0) if left.is_zero() => return Err(CutOff::TooLong),
            Ok(0) | Err(nix::Error::EINTR) => continue,
            Ok(_) => {}
            Err(_) => return Err(CutOff::TooLong),
        }
        match source.read(&mut buffer) {
            Ok(0) => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Ok(count) if bytes.len() as u64 <= ANSWER_BYTES => bytes.extend_from_slice(&buffer[..count]),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(CutOff::TooLong),
        }
    }
}

impl Ended {
    fn judge(self, layer: &str, limit: Duration) -> Result<Unpacked, UnpackError> {
        let output = self.output.map_err(|cut_off| match cut_off {
            CutOff::TooLong => UnpackError::TooLong { layer: layer.to_owned(), limit },
            CutOff::Cancelled => UnpackError::Cancelled { layer: layer.to_owned() },
        })?;
        if self.status.is_some_and(|status| status.success())
            && let Ok(unpacked) = serde_json::from_slice(output.as_bytes())
        {
            return Ok(unpacked);
        }
        let layer = layer.to_owned();
        // the kernel, too, ends a process that has used up its processor time
        if self.status.and_then(|status| status.signal()) == Some(nix::libc::SIGXCPU) {
            return Err(UnpackError::TooLong { layer, limit });
        }
        let refused = serde_json::from_slice::<Refused>(output.as_bytes()).map(|line| line.refused);
        let blame = refused.as_ref().map_or(Blame::Archive, |refusal| refusal.blame);
        let said = refused.map(|refusal| refusal.why);
        let said = said.unwrap_or_else(|_| self.errors.trim().trim_start_matches("kedge: ").to_owned());
        let why = match (said.as_str(), self.status) {
            ("", Some(status)) => format!("the process that unpacks ended with {status}"),
            (said, _) => said.chars().map(|c| if c.is_control() { ' ' } else { c }).take(1000).collect(),
        };
        Err(match blame {
            Blame::Archive => UnpackError::Archive { layer, why },
            Blame::Entries => UnpackError::ManyEntries { layer, why },
            Blame::Bytes => UnpackError::ManyBytes { layer, why },
            Blame::Disk => UnpackError::Disk { layer, why },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_disk_says_nothing_about_overlayfs() {
        use nix::libc::{EINVAL, EIO, EMFILE, ENODEV, ENOSPC, EPERM};
        assert!(answer(Ok(())).unwrap());
        for code in [ENODEV, EINVAL, EPERM] {
            assert!(!answer(Err(io::Error::from_raw_os_error(code))).unwrap());
        }
        for code in [ENOSPC, EIO, EMFILE] {
            assert!(answer(Err(io::Error::from_raw_os_error(code))).is_err());
        }
    }
}
