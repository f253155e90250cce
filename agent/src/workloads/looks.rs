//! Looks at the machine's paths that pods name, each look in a process of its own, `kedge look`: a path on a
//! dead disk or a dead server blocks every process that touches it, for ever, and no signal ends that.
//!
//! Always holds: no thread of the agent touches such a path, so neither its loops nor its end wait for one. A
//! look has a time limit, after which its process is killed; a process that the kill does not end is left
//! behind and holds a lock, also over starts of the agent: its pod gets no further look before it has ended,
//! and a namespace has a bounded number of such looks. One look at a time runs for a pod, some for a
//! namespace, so one user's dead server does not block the looks of all. Leaves to others: which paths to
//! look at and why (`Performer`), when to try again (core).

use crate::queue::{Receiver, Sender, channel};
use kedge_core::pods::{ContainerOrder, PodSandbox, PodUid};
use kedge_platform::linux::{file_system_use, open_lock, read_named_file};
use kedge_platform::workloads::{Device, Plugin, all_devices, bind_below, device, make_open_directory};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Longest that a look may take: a disk that spins up takes 10 s at most, a server in another country half a
/// second.
const LIMIT: Duration = Duration::from_secs(10);
/// Looks at once: for one namespace, and in all.
const AT_ONCE_OF_ONE: usize = 4;
const AT_ONCE: usize = 16;
/// Looks that do not end: of one namespace, and in all. Beyond the latter limit a namespace without such a
/// look may still start one.
const LEFT_OF_ONE: usize = 8;
const LEFT: usize = 64;
/// Longest answer: a profile for seccomp and all devices of a machine, as JSON.
const ANSWER_BYTES: usize = 4 << 20;
/// Longest order: the paths of the largest pod.
const ORDER_BYTES: u64 = 16 << 20;
/// Longest note about why a look does not end.
const NOTE_BYTES: u64 = 8 << 10;
/// A look writes this before each task.
const BEGINS: u8 = b'\n';
/// Room for an answer's parsing. Only pages in use become memory.
const STACK_BYTES: usize = 256 * 1024;

/// One task of a look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Task {
    /// A hostPath, made or checked as its type says.
    Path { volume: String, path: String, kind: String },
    /// A `subPath` of a volume of the host, to be bound; `failure` is upstream's text for a failure.
    Part { volume: PathBuf, below: String, target: PathBuf, failure: String },
    /// A profile for seccomp.
    Profile { path: PathBuf, most: usize },
    /// All devices below a directory.
    AllDevices { directory: PathBuf },
    /// One device; `name` is the pod's name for it.
    Device { name: String, path: String },
}

/// The result of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Found {
    Nothing,
    Profile(String),
    Devices(Vec<Device>),
}

/// The last output of a look.
#[derive(Debug, Serialize, Deserialize)]
enum Answered {
    Found(Vec<Found>),
    Failed(String),
}

impl Task {
    /// The task's subject, for the text of a failure.
    fn subject(&self) -> String {
        match self {
            Self::Path { volume, path, .. } => format!("volume {volume:?}: hostPath {path}"),
            Self::Part { volume, below, failure, .. } => {
                format!("{failure}{}", volume.join(below).display())
            }
            Self::Profile { path, .. } => format!("seccomp profile {}", path.display()),
            Self::AllDevices { directory } => format!("a device in {}", directory.display()),
            Self::Device { name, path } => format!("kedge.dev/{name}: device {path}"),
        }
    }

    /// Whether it is a `subPath` that failed for this reason.
    pub(super) fn is_part(&self, why: &str) -> bool {
        matches!(self, Self::Part { failure, .. } if why.starts_with(failure.as_str()))
    }

    fn perform(&self) -> Result<Found, String> {
        match self {
            Self::Path { volume, path, kind } => {
                host_path(Path::new(path), kind).map_err(|error| format!("volume {volume:?}: {error}"))?;
                // the kernel's cached knowledge of a file does not prove that its server answers
                let _ = file_system_use(Path::new(path));
                Ok(Found::Nothing)
            }
            Self::Part { volume, below, target, failure } => bind_below(volume, Path::new(below), target)
                .map(|()| Found::Nothing)
                .map_err(|error| format!("{failure}{error}")),
            Self::Profile { path, most } => {
                // upstream's text
                let failed = |why: String| format!("cannot load seccomp profile {:?}: {why}", path.display());
                let bytes = read_named_file(path, *most).map_err(|error| failed(error.to_string()))?;
                String::from_utf8(bytes).map(Found::Profile).map_err(|error| failed(error.to_string()))
            }
            Self::AllDevices { directory } => all_devices(directory)
                .map(Found::Devices)
                .map_err(|error| format!("read the devices in {}: {error}", directory.display())),
            Self::Device { path, .. } => {
                let failed = |why: String| format!("{}: {why}", self.subject());
                let device = device(path).map_err(|error| failed(error.to_string()))?;
                let device = device.ok_or_else(|| failed("it is not a device".into()))?;
                Ok(Found::Devices(vec![device]))
            }
        }
    }
}

/// `kedge look`: performs the tasks that it reads from its standard input, and writes their results.
///
/// # Errors
/// It cannot read its order, or write its answer.
pub fn look() -> io::Result<()> {
    let mut order = Vec::new();
    io::stdin().take(ORDER_BYTES).read_to_end(&mut order)?;
    let tasks: Vec<Task> = kedge_api::read::from_slice(&order).map_err(io::Error::other)?;
    let mut output = io::stdout();
    let answered = perform_all(&tasks, || {
        output.write_all(&[BEGINS])?;
        output.flush()
    })?;
    let answered = serde_json::to_vec(&answered)?;
    output.write_all(&answered)?;
    output.flush()
}

fn perform_all(tasks: &[Task], mut begin: impl FnMut() -> io::Result<()>) -> io::Result<Answered> {
    let mut found = Vec::with_capacity(tasks.len());
    for task in tasks {
        begin()?;
        match task.perform() {
            Ok(one) => found.push(one),
            Err(why) => return Ok(Answered::Failed(why)),
        }
    }
    Ok(Answered::Found(found))
}

/// The purpose of a look: the action that continues after its answer.
#[derive(Debug)]
pub(super) enum Then {
    Prepare(Box<PodSandbox>),
    Create(Box<ContainerOrder>),
}

/// A look that was ordered.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) pod: PodUid,
    pub(super) namespace: String,
    pub(super) tasks: Vec<Task>,
    pub(super) then: Then,
}

/// The outcome of a look, with the results of its tasks, one by one.
#[derive(Debug)]
pub(super) struct Seen {
    pod: PodUid,
    pub(super) then: Then,
    pub(super) tasks: Vec<Task>,
    pub(super) done: Result<Vec<Found>, String>,
}

/// The places that looks need.
#[derive(Debug, Clone)]
pub struct Places {
    /// This program, for `kedge look`.
    pub program: PathBuf,
    /// Has a file for each pod with a look, locked by the look's process. A reboot empties it.
    pub locks: PathBuf,
}

/// Waiting looks and those that run, each on a thread that waits for its process.
pub(super) struct Looks {
    places: Arc<Places>,
    /// Held while locks are taken and counted.
    locking: Arc<Mutex<()>>,
    wake: Arc<dyn Fn() + Send + Sync>,
    waiting: VecDeque<Look>,
    /// Pod and namespace of each running look.
    under_way: Vec<(PodUid, String)>,
    seen: (Sender<Seen>, Receiver<Seen>),
}

impl Looks {
    pub(super) fn new(places: Places, wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self {
            places: Arc::new(places),
            locking: Arc::default(),
            wake,
            waiting: VecDeque::new(),
            under_way: Vec::new(),
            seen: channel(),
        }
    }

    /// Passes on an order, which is answered later.
    pub(super) fn order(&mut self, look: Look) {
        self.waiting.push_back(look);
        self.begin();
    }

    /// The next outcome, if there is one.
    pub(super) fn seen(&mut self) -> Option<Seen> {
        let seen = self.seen.1.try_recv().ok()?;
        self.under_way.retain(|(pod, _)| *pod != seen.pod);
        self.begin();
        Some(seen)
    }

    fn begin(&mut self) {
        while let Some(at) = self.next()
            && let Some(look) = self.waiting.remove(at)
        {
            self.under_way.push((look.pod.clone(), look.namespace.clone()));
            self.begin_one(look);
        }
    }

    /// The first look that may start now.
    fn next(&self) -> Option<usize> {
        if self.under_way.len() >= AT_ONCE {
            return None;
        }
        self.waiting.iter().position(|look| {
            let of_one = self.under_way.iter().filter(|(_, namespace)| *namespace == look.namespace);
            of_one.count() < AT_ONCE_OF_ONE && self.under_way.iter().all(|(pod, _)| *pod != look.pod)
        })
    }

    fn begin_one(&self, look: Look) {
        // without a program, as in tests of the performer
        #[cfg(test)]
        if self.places.program.as_os_str().is_empty() {
            let done = match perform_all(&look.tasks, || Ok(())) {
                Ok(Answered::Found(found)) => Ok(found),
                Ok(Answered::Failed(why)) => Err(why),
                Err(error) => Err(error.to_string()),
            };
            return answer(&self.seen.0, look, done);
        }
        let (places, locking, wake) = (self.places.clone(), self.locking.clone(), self.wake.clone());
        let seen = self.seen.0.clone();
        // the thread that answers takes it out
        let look = Arc::new(Mutex::new(Some(look)));
        let given = look.clone();
        let begun =
            std::thread::Builder::new().name("look".into()).stack_size(STACK_BYTES).spawn(move || {
                let Some(look) = taken(&given) else { return };
                let done = places.take(&look, &locking);
                answer(&seen, look, done);
                wake();
            });
        if let Err(error) = begun
            && let Some(look) = taken(&look)
        {
            answer(&self.seen.0, look, Err(format!("cannot start a thread: {error}")));
            (self.wake)();
        }
    }
}

fn taken(look: &Mutex<Option<Look>>) -> Option<Look> {
    look.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn answer(seen: &Sender<Seen>, look: Look, done: Result<Vec<Found>, String>) {
    let Look { pod, tasks, then, .. } = look;
    let _ = seen.send(Seen { pod, then, tasks, done });
}

impl Places {
    /// Takes a look, no longer than its limit.
    fn take(&self, look: &Look, locking: &Mutex<()>) -> Result<Vec<Found>, String> {
        let at = self.locks.join(format!("{}_{}", look.namespace, look.pod));
        let mut lock = {
            let _counted = locking.lock().unwrap_or_else(PoisonError::into_inner);
            self.lock(&at, &look.namespace)?
        };
        let input = serde_json::to_vec(&look.tasks).map_err(|error| error.to_string())?;
        let plugin = Plugin {
            program: &self.program,
            arguments: &["look"],
            environment: &[],
            input: &input,
            limit: LIMIT,
            answer_bytes: ANSWER_BYTES,
            lock: Some(&lock),
        };
        let mut heard = Vec::new();
        let done = match plugin.run_heard(&mut heard) {
            Ok(output) => found_in(&output.stdout, output.failure),
            Err(error) => Err(does_not_answer(&look.tasks, &heard, &error)),
        };
        if let Err(why) = &done {
            // for the next try, in case this process does not end
            let _ = lock.write_all(why.as_bytes());
        }
        let _counted = locking.lock().unwrap_or_else(PoisonError::into_inner);
        drop(lock);
        // the lock is held as long as its process lives
        if let Ok(Some(_free)) = try_lock(&at) {
            let _ = fs::remove_file(&at);
        }
        done
    }

    /// The lock file of a look, emptied.
    fn lock(&self, at: &Path, namespace: &str) -> Result<File, String> {
        let failed = |error: io::Error| format!("cannot lock {}: {error}", at.display());
        DirBuilder::new().recursive(true).mode(0o700).create(&self.locks).map_err(failed)?;
        let Some(lock) = try_lock(at).map_err(failed)? else { return Err(note_of(at)) };
        let left = self.left_beside(at);
        let of_one: Vec<&PathBuf> =
            left.iter().filter(|path| namespace_of(path) == Some(namespace)).collect();
        if let Some(first) = of_one.first()
            && (of_one.len() >= LEFT_OF_ONE || left.len() >= LEFT)
        {
            let _ = fs::remove_file(at);
            let many = of_one.len();
            return Err(format!(
                "{many} earlier looks at paths of pods in namespace {namespace:?} have not ended, one of them: {}",
                note_of(first)
            ));
        }
        lock.set_len(0).map_err(failed)?;
        Ok(lock)
    }

    /// The locks of other looks that run or do not end. Removes files that nobody has locked.
    fn left_beside(&self, own: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.locks).into_iter().flatten().flatten();
        let mut left = Vec::new();
        for path in entries.map(|entry| entry.path()).filter(|path| path != own) {
            match try_lock(&path) {
                Ok(Some(_free)) => drop(fs::remove_file(&path)),
                _ => left.push(path),
            }
        }
        left
    }
}

fn namespace_of(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()?.split_once('_').map(|(namespace, _)| namespace)
}

/// `None` if a look holds it.
fn try_lock(at: &Path) -> io::Result<Option<File>> {
    let file = open_lock(at)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The note about a look that does not end.
fn note_of(at: &Path) -> String {
    let mut note = String::new();
    let read = open_lock(at).and_then(|mut file| {
        file.rewind()?;
        file.take(NOTE_BYTES).read_to_string(&mut note)
    });
    match read {
        Ok(1..) => note,
        // its agent was killed meanwhile
        _ => "an earlier look at its paths has not ended".into(),
    }
}

/// The results in the process's output.
fn found_in(stdout: &[u8], failure: Option<String>) -> Result<Vec<Found>, String> {
    let begun = stdout.iter().take_while(|byte| **byte == BEGINS).count();
    match kedge_api::read::from_slice(&stdout[begun..]) {
        Ok(Answered::Found(found)) => Ok(found),
        Ok(Answered::Failed(why)) => Err(why),
        Err(error) => {
            let failure = failure.unwrap_or_else(|| error.to_string());
            Err(format!("kedge look gave no answer: {failure}"))
        }
    }
}

/// `heard` is its output until it was killed.
fn does_not_answer(tasks: &[Task], heard: &[u8], error: &io::Error) -> String {
    let begun = heard.iter().take_while(|byte| **byte == BEGINS).count();
    match tasks.get(begun.saturating_sub(1)).filter(|_| error.kind() == io::ErrorKind::TimedOut) {
        Some(task) => format!("{} does not answer: {error}", task.subject()),
        None => format!("cannot look at paths of the pod: {error}"),
    }
}

pub(crate) fn directory(path: &Path, mode: u32) -> io::Result<PathBuf> {
    if !path.is_dir() {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    Ok(path.to_owned())
}

/// A path of the host, made or checked as its type says. It may hang for ever: only for a process of its own.
pub(crate) fn host_path(path: &Path, kind: &str) -> io::Result<()> {
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return Err(io::Error::other(format!(
            "hostPath {:?} is not an absolute path without \"..\"",
            path.display()
        )));
    }
    let found = path.metadata();
    let missing = found.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let failed =
        |error: io::Error| io::Error::new(error.kind(), format!("hostPath {}: {error}", path.display()));
    if missing && matches!(kind, "" | "DirectoryOrCreate") {
        return make_open_directory(path).map_err(failed);
    }
    if missing && kind == "FileOrCreate" {
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        return made.and_then(|file| file.set_permissions(Permissions::from_mode(0o644))).map_err(failed);
    }
    let found = found.map_err(failed)?;
    let sort = found.file_type();
    let fits = match kind {
        "" | ANY_THING => true,
        "DirectoryOrCreate" | "Directory" => sort.is_dir(),
        "FileOrCreate" | "File" => sort.is_file(),
        "Socket" => sort.is_socket(),
        "CharDevice" => sort.is_char_device(),
        "BlockDevice" => sort.is_block_device(),
        other => return Err(io::Error::other(format!("hostPath type {other:?} is not known"))),
    };
    match fits {
        true => Ok(()),
        false => {
            Err(io::Error::other(format!("hostPath type check failed: {} is not a {kind}", path.display())))
        }
    }
}

/// The type of a hostPath of any kind, which is not made.
pub(crate) const ANY_THING: &str = "Any";
