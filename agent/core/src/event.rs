//! The events that core takes and the actions it gives, with their parts.
//!
//! Always holds: both lists are closed, and an action is complete: performing it needs no decision. Leaves to others:
//! what an event means (`agent`), how an action is performed (the crate `kedge`, the simulator).

use crate::config::records::{CheckpointName, Read, StateFile};
use crate::kubelet::Effective;
use crate::pods::{ApiServer, PodAction, PodAsk, PodEvent};
use crate::watching::{ObjectVersion, WatchEnd, WatchOrder, Watched};
use kedge_api::Timestamp;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// Time as handed to core: running time since some fixed start, and wall time for stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Monotonic running time.
    pub mono: Duration,
    /// Wall time; never compared, but for how long a pod was active before this process (`pods::failing`).
    pub wall: Timestamp,
}

/// Longest wait that a server may ask for: what a wrong or hostile answer says must not end the heartbeat for a year.
pub(crate) const LONGEST_PATIENCE: Duration = Duration::from_secs(300);

/// Everything that can happen. Core may receive outcomes in any order, and late.
#[derive(Debug, Clone)]
pub enum Event {
    /// The agent begins. First, once.
    Start,
    /// Time passed.
    Tick,
    /// The file step asked for was performed.
    StepDone(Outcome),
    /// Facts about the host were read.
    HostFacts(Box<HostFacts>),
    /// A request was answered, or failed.
    Answered(RequestKey, Answer),
    /// The Lease request was answered, or failed.
    Renewed(Answer),
    /// It was accepted, and the answer named the latest change that concerns the node: `Kedge-Desired`.
    RenewedAsOf(u64),
    /// The hub said that calls with these ids wait for this node. It may say so more than once.
    Called(Vec<String>),
    /// A list of the collection was read to its end.
    Listed { of: Collection, listing: Listing },
    /// Its watch showed an object that was added or changed; or one that is no longer there, in its last state.
    Changed { of: Collection, object: Value, is_deleted: bool },
    /// A round has shown everything up to this resourceVersion; `is_change`: by a change of the object, not a list or a bookmark.
    /// Also contact.
    WatchPosition { watched: Watched, round: u64, version: String, is_change: bool },
    /// A round is receiving something that is not complete yet.
    WatchReceiving { watched: Watched, round: u64 },
    /// A round of a watch ended: which round of which object, and how.
    WatchEnded { watched: Watched, round: u64, end: WatchEnd },
    /// A watch had an answer other than 401: contact.
    Contact,
    /// The kubeconfig, which the shell reads, cannot be used: why.
    NoKubeconfig(String),
    /// `bad-configs.json` changed on disk.
    BadConfigsRead(Read),
    /// The disk of the state has stopped answering, or answers again.
    DiskStalled(bool),
    /// The end that was ordered, of a run that is to be followed by the next at once, cannot be made: a thread of this process does not
    /// come to its end, and would hold up the process with its heartbeat for as long. Why; None: now it can.
    EndHeldUp(Option<String>),
    /// `kedge config forgive UID`.
    Forgive(String),
    /// `kedge config reset`.
    Reset,
    /// News of the pods' runtime, images and files, and answers to [`Action::Pods`].
    Pods(Box<PodEvent>),
    /// This came from the API server of that number: the servers that the kubeconfig has named are counted. News of an earlier
    /// one is dropped; with the first of a later one, everything that was read from the earlier is forgotten.
    Heard { server: u64, event: Box<Event> },
    /// The agent was asked to stop: by whom.
    Stop(String),
}

/// What is listed and watched: all objects of a selection, here one by its name. Its stream is [`Watched`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Collection {
    /// The own Node.
    Node,
    /// One ConfigMap.
    ConfigMap { namespace: String, name: String },
    /// The pods bound to the node.
    Pods,
}

impl Collection {
    /// The stream on which it is watched.
    pub fn watched(&self) -> Watched {
        match self {
            Self::Node => Watched::Node,
            Self::ConfigMap { .. } => Watched::ConfigMap,
            Self::Pods => Watched::Pods,
        }
    }
}

/// What a list of a collection gave.
#[derive(Debug, Clone, PartialEq)]
pub enum Listing {
    /// Everything there is.
    Objects(Vec<Value>),
    /// Its one object still has the version of [`WatchOrder::held`]; its content was not read.
    Unchanged(ObjectVersion),
}

/// Everything that the agent does. Performed in the order given: what follows `Use` may rely on the configuration in use, and a
/// log line explains the action after it.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Perform one file step, then report `StepDone`.
    Step(Step),
    /// This is the configuration from now on. Everything that must be recorded before is.
    Use(Box<Effective>),
    /// The evidence of the previous run is recorded: it may be deleted.
    ConsumeEvidence,
    /// Remove checkpoints no record names, leftovers, and other versions' counts. In the background.
    Sweep {
        /// Checkpoints that stay; None: all, because a record that might name one is unknown.
        keep: Option<Vec<CheckpointName>>,
    },
    /// Read facts about the host, then report `HostFacts`.
    ReadHostFacts,
    /// Ask the API server, then report `Answered`.
    Request(Request),
    /// Ask the API server on the stream of renewals, then report `Renewed`.
    Renew { request: LeaseRequest, deadline: Duration },
    /// Watch the own Node for one round, in place of the one under way, then report `WatchEnded`.
    WatchNode(WatchOrder),
    /// The same for this ConfigMap, and no other.
    WatchConfigMap { namespace: String, name: String, order: WatchOrder },
    /// Watch no ConfigMap any more.
    EndConfigMapWatch,
    /// Watch the pods bound to the node for one round, in place of the one under way, then report `WatchEnded`.
    WatchPods(WatchOrder),
    /// Watch no pods any more.
    EndPodsWatch,
    /// An order of the pods' actor for the runtime, the images or the disk: never one for the API server.
    Pods(Box<PodAction>),
    /// Start a session that takes the call with this id.
    TakeCall(String),
    /// Note durably which images pods need, for commands that remove others.
    NeedImages {
        images: BTreeSet<String>,
        /// Else there may be pods of which nothing could be read yet: what was noted before stays.
        is_all: bool,
    },
    /// End this run. Only log lines follow.
    Exit {
        why: String,
        /// Another configuration is to run: the program starts again, in place if it can. Else it was asked to stop. Either way an
        /// exit with code 0 is right.
        start_again: bool,
    },
    /// Log a line.
    Log(Level, String),
}

/// Level of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// An operator should look.
    Warn,
    /// Worth knowing.
    Info,
    /// For debugging.
    Debug,
}

/// A request to the API server.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// `GET /version`.
    Version,
    /// Create the Node.
    Register(Value),
    /// Strategic-merge-patch the Node's status.
    PatchStatus(Value),
    /// Merge-patch the Node: its labels.
    PatchLabels(Value),
    /// Merge-patch the Node: the mirrored status.
    PatchNode(Value),
    /// Create an Event in namespace default.
    PostEvent(Value),
    /// Something that the pods' actor asks, in one of its slots.
    Pods { slot: u8, ask: Box<PodAsk> },
}

/// What a request is for: one of each is in flight at a time, and its answer carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RequestKey {
    /// Renew the Lease, or create it.
    Renew,
    /// `GET /version`.
    Version,
    /// Create the Node.
    Register,
    /// Patch the Node's status.
    PatchStatus,
    /// Patch the Node's labels: apart from the mirrored status, because a server may refuse a label.
    PatchLabels,
    /// Patch the Node's annotation of the mirrored status.
    PatchNode,
    /// Create an Event.
    PostEvent,
    /// Something that the pods' actor asks: it has a few of these slots, and repeats what failed itself.
    Pods(u8),
}

impl Request {
    /// Its body, if it has one.
    pub(crate) fn body(&self) -> Option<&Value> {
        match self {
            Self::Version => None,
            Self::Pods { ask, .. } => ask.body(),
            Self::Register(body)
            | Self::PatchStatus(body)
            | Self::PatchLabels(body)
            | Self::PatchNode(body)
            | Self::PostEvent(body) => Some(body),
        }
    }

    /// What it is for.
    pub fn key(&self) -> RequestKey {
        match self {
            Self::Version => RequestKey::Version,
            Self::Register(_) => RequestKey::Register,
            Self::PatchStatus(_) => RequestKey::PatchStatus,
            Self::PatchLabels(_) => RequestKey::PatchLabels,
            Self::PatchNode(_) => RequestKey::PatchNode,
            Self::PostEvent(_) => RequestKey::PostEvent,
            Self::Pods { slot, .. } => RequestKey::Pods(*slot),
        }
    }
}

/// How an API server answered.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Done; the object, if one was asked for.
    Accepted(Option<Value>),
    /// The server will not; with its Status.
    Refused {
        status: u16,
        reason: String,
        message: String,
        /// When to come back, if it says.
        retry_after: Option<Duration>,
    },
    /// No answer that counts: unreachable, untrusted, late, garbled.
    Failed(String),
}

impl Answer {
    /// The server will refuse the same request again: it lacks a right, or what it says is invalid or too large.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Refused { status: 400 | 403 | 405 | 413 | 415 | 422, .. })
    }

    /// Status and reason of a refusal: its sort, whatever its message names.
    pub(crate) fn refusal(&self) -> Option<(u16, String)> {
        match self {
            Self::Refused { status, reason, .. } => Some((*status, reason.clone())),
            Self::Accepted(_) | Self::Failed(_) => None,
        }
    }

    /// Verified TLS and any answer but 401.
    pub fn is_contact(&self) -> bool {
        !matches!(self, Self::Failed(_) | Self::Refused { status: 401, .. })
    }

    pub(crate) fn retry_after(&self) -> Duration {
        match self {
            Self::Refused { retry_after: Some(wait), .. } => (*wait).min(LONGEST_PATIENCE),
            _ => Duration::ZERO,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted(_) => f.write_str("accepted"),
            Self::Refused { status, message, .. } => write!(f, "the API server answered {status}: {message}"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

/// One step on disk, performed outside of core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Read a file.
    Read(StateFile),
    /// Write it durably: temp file, fsync, rename, fsync of the directory.
    Write(StateFile, Vec<u8>),
    /// Rename it to `<name>.corrupt-<n>`. The list of bad configs stays in its place, too, until it is replaced: that it is missing
    /// says that somebody removed it.
    SetAside(StateFile),
}

/// How a step went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// What reading gave.
    Read(Read),
    /// Whether a write or a setting aside is durable; the text says why not.
    Done(Result<(), String>),
}

/// The request to the API server that keeps the Lease.
#[derive(Debug, Clone, PartialEq)]
pub enum LeaseRequest {
    /// Set its `renewTime`, and nothing else.
    Renew(String),
    /// Merge-patch the Lease.
    Patch(Value),
    /// Create it.
    Create(Value),
}

/// Facts about the host, as plain values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostFacts {
    /// `/etc/machine-id`.
    pub machine_id: String,
    /// Identity of the board.
    pub system_uuid: String,
    /// This boot.
    pub boot_id: String,
    /// `uname -r`.
    pub kernel_version: String,
    /// PRETTY_NAME of os-release.
    pub os_image: String,
    /// In Go's spelling.
    pub architecture: String,
    /// The host's name.
    pub hostname: String,
    /// Addresses others may use, best first.
    pub addresses: Vec<String>,
    /// CPUs online.
    pub cpus: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of the file system below `--root-dir`.
    pub storage_bytes: u64,
    /// Inodes there.
    pub inodes: u64,
    /// Highest number of processes.
    pub pids: u64,
    /// Bytes of memory that could be had; None, here and below: that could not be read.
    pub memory_available_bytes: Option<u64>,
    /// Bytes free below `--root-dir`.
    pub storage_available_bytes: Option<u64>,
    /// Inodes free there.
    pub inodes_free: Option<u64>,
    /// Processes there are.
    pub pids_in_use: Option<u64>,
    /// What runs containers.
    pub runtime: Runtime,
    /// Where they get a network of their own.
    pub pod_network: PodNetworks,
    /// Where the API server is; None: there is none that pods could be told.
    pub api_server: Option<ApiServer>,
    /// The kernel enforces profiles of AppArmor.
    pub has_apparmor: bool,
    /// The kernel labels files and processes by SELinux.
    pub has_selinux: bool,
    /// What resets the machine when its kernel hangs.
    pub watchdog: HardwareWatchdog,
    /// Which slot of a disk image runs, and why.
    pub image: ImageState,
}

/// What the slots of a node's disk image show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ImageState {
    /// The node runs no disk image, or one whose boot loader counts nothing.
    #[default]
    NotAsked,
    /// The slot that runs is good, and the other one may be started, or is empty.
    Good(&'static str),
    /// The slot that runs is tried.
    OnTrial(&'static str),
    /// This slot runs because the other one has failed all its tries.
    FellBack(&'static str),
    /// The boot loader's list cannot be read: why.
    Unknown(String),
}

/// The hardware watchdog of a node that runs a disk image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum HardwareWatchdog {
    /// Nobody asks: what the machine has is its owner's matter.
    #[default]
    NotAsked,
    /// The kernel has no driver for one.
    Absent,
    /// There is one of this name, and nobody has started it.
    Idle(String),
    /// One of this name runs.
    Active(String),
}

/// Whether pods can have a network of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodNetworks {
    /// They cannot: why.
    NotReady(String),
    /// They can, by the configuration of this name.
    Ready(String),
}

impl Default for PodNetworks {
    fn default() -> Self {
        Self::NotReady("nobody has looked yet".into())
    }
}

/// Whether this node can run containers: with its own state it is what `Ready` and the capacity for pods follow from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Runtime {
    /// The agent has none, and the node is ready for all that it does: to be configured and watched over.
    #[default]
    Absent,
    /// It is being started: nothing is concluded from that for a while.
    Starting,
    /// It does not work yet, or no longer: why.
    NotReady(String),
    /// It works.
    Ready,
}
