//! The events that the pods' actor takes and the actions it gives: the contract with the runtime, the images, the disk and the
//! API server.
//!
//! Always holds: an action is complete and performing it needs no decision. A performer that cannot carry out a part of an order
//! fails it and names the part; it leaves nothing out. Each command (`PreparePod`,
//! `PullImage`, `CreateContainer`, `StartContainer`, `StopContainer`, `RemoveContainer`, `RemovePod`) is answered exactly once, as
//! late as the performer likes: by the event its doc names, or by `Failed`. Per pod and container at most one command is under
//! way, except that `StopContainer` may be given again with a shorter grace. What the performer sees without being asked (a
//! process that ends, a shim that is gone) is `Observed` too. A crash of the agent loses commands and answers: the next start
//! begins with `Event::Inventory`, and no action comes before it. Leaves to others: what the events mean (`pods`), how actions are
//! performed (the crate `kedge`, the simulation).

use crate::answer::{Answer, Level};
use crate::config::source::is_file_name;
pub use crate::images::ImageConfig;
use crate::images::image::Image;
use crate::images::thresholds::{Collected, Thresholds};
use crate::node::facts::ApiServer;
pub use crate::node::facts::PodNetworks;
use crate::node::pressing::Pressing;
use crate::pods::keys::{ContainerKey, ObjectName, PodRef, PodUid};
use crate::pods::orders::{HookKind, HookNote, HookOrder, RunKey};
use crate::pods::probes::{Health, ProbeKey, ProbeOrder, ProbeOutcome};
use crate::sorted::SortedMap;
use kedge_api::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Everything that can happen to the pods of a node.
#[derive(Debug, Clone, PartialEq)]
pub enum PodEvent {
    /// The desired set as it lies on disk, at the start of the agent, and the answer to `ReadDesired`. `Err`: not even the directory
    /// could be read, which does not mean that it is empty.
    DesiredRead(Result<Vec<DesiredFound>, String>),
    /// Everything the runtime has, at the start of the agent, before any other event of the runtime; again whenever the runtime
    /// may have lost events. A runtime that cannot answer yet sends nothing: unknown is not empty.
    Inventory(Inventory),
    /// A run of a container has come into this state.
    Observed(Observation),
    /// The answer to `PreparePod`.
    PodPrepared { pod: PodUid, network: PodNetwork },
    /// The answer to `UpdateVolumes`.
    VolumesUpdated { pod: PodUid },
    /// The answer to `RemovePod`.
    PodRemoved { pod: PodUid },
    /// The answer to `RemoveContainer`.
    ContainerRemoved(ContainerKey),
    /// The answer to `RunProbe`.
    Probed { probe: ProbeKey, outcome: ProbeOutcome },
    /// The answer to `RunHook`; `Err`: why it failed, or could not be run.
    HookEnded { container: ContainerKey, kind: HookKind, done: Result<(), String> },
    /// The answer to `RunProbe` or `RunHook` of a run that was stopped by `StopRun` before its end.
    RunStopped(RunKey),
    /// `PullImage` found that the image must be fetched and began. No answer yet.
    ImagePulling { pod: PodUid, container: String },
    /// The answer to `PullImage`: every layer of it is unpacked, durable and vouched for.
    ImageReady { pod: PodUid, container: String, image: Image },
    /// The answer to a command that failed and left nothing half done, or as little as the next try repairs.
    Failed { command: Command, failure: Failure },
    /// Time passed.
    Tick,
    /// What the node is and has. Without it no pod is admitted; at the start it may be what the last run knew.
    Node(Box<NodeFacts>),
    /// Whether the pods are held (a crash loop under a proven config): while they are, nothing is started or stopped.
    /// Nothing is done before the first of these.
    Held(bool),
    /// The Node was read after the last `ReadNode`, or is not there; `Node` came before, if that changed anything.
    NodeRead,
    /// The host was looked at: the threshold that pods end for now, if any.
    Looked(Option<Pressing>),
    /// The machine stops and waits for the pods (true), or does not stop after all.
    Shutdown(bool),
    /// The answer to `MeasurePods`; a pod that could not be measured is left out. `took`: how long that took.
    PodsMeasured { measure: Measure, usages: Vec<PodUsage>, took: Duration },
    /// The answer to `CollectImages`. `Err`: nothing was removed.
    ImagesCollected(Result<Collected, String>),
    /// All pods that the API server binds to this node, read at once, and the UID of the Node they are bound to. Only a list that
    /// was read to its end is one; a failed or partial read sends nothing.
    PodsListed { node_uid: String, pods: Vec<Value> },
    /// A pod bound to this node was added or changed.
    PodSeen(Value),
    /// A pod is no longer in the API: its last state.
    PodGone(Value),
    /// The answer to `ReadObject`.
    ObjectRead { name: ObjectName, read: ObjectRead },
    /// The answer to `RequestToken`.
    TokenRead { name: TokenName, read: TokenRead },
    /// What pods refer to may have changed: it is read again.
    ObjectsAreOld,
    /// The answer to `ReadStaticPods`: every file in `staticPodPath`, with its content or why it cannot be read; sorted by path.
    /// `Err`: the directory could not be read, and its pods go on.
    StaticPods(Result<Vec<StaticFile>, String>),
    /// The answer to `ReadStaticPods` where it would be the same as the one before.
    StaticPodsUnchanged,
    /// `kedge pods release`, or the Node annotation `kedge.dev/release-pods`: the orphaned pods end, or the one of this
    /// namespace and name.
    Release(Option<(String, String)>),
    /// The answer to `SaveDesired`: whether it is durable.
    DesiredSaved { file: DesiredFile, done: Result<(), String> },
    /// The answer to `PatchPodStatus`, `DeletePod`, `CreateMirrorPod`.
    Answered { request: PodRequest, answer: Answer },
}

/// Everything that is done for the pods of a node.
#[derive(Debug, Clone, PartialEq)]
pub enum PodAction {
    /// Directories, volumes, cgroup, namespaces and network of a pod; what is there already stays. Answered by `PodPrepared`.
    PreparePod(Box<PodSandbox>),
    /// Replace the files of these volumes of a pod that is prepared, each volume's at once; a file that has its content already is not
    /// written. It may be given while commands of the pod's containers are under way. Answered by `VolumesUpdated`.
    UpdateVolumes { pod: PodUid, volumes: Vec<Volume> },
    /// See that the image is there, by its policy. Answered by `ImageReady`.
    PullImage(Box<ImageOrder>),
    /// Remove images that no pod needs, by these thresholds. Answered by `ImagesCollected`.
    CollectImages(Thresholds),
    /// The machine may stop. No answer.
    LetMachineStop,
    /// Look at the host now; `Looked` follows. No answer.
    LookAtHost,
    /// Read the own Node: `NodeRead`, once it was, after what it showed.
    ReadNode,
    /// Measure what these pods take. Answered by `PodsMeasured`, one of each sort at a time; a disk may take long to walk.
    MeasurePods { measure: Measure, pods: Vec<PodUid> },
    /// Make the container, with its first process not started. Answered by `Observed` (created).
    CreateContainer(Box<ContainerOrder>),
    /// Start it. Answered by `Observed` (running, or exited if that was quick).
    StartContainer(ContainerKey),
    /// Send the signal, after `grace` KILL to every process of it. Grace zero: KILL at once. Answered by `Observed` (exited or
    /// lost), also if that was seen before the command was performed.
    StopContainer {
        container: ContainerKey,
        /// None: the signal it was created with.
        signal: Option<String>,
        grace: Duration,
    },
    /// Remove what is left of a run that does not run: its root, its state, and the logs of all runs of that container but the
    /// latest two. Answered by `ContainerRemoved`.
    RemoveContainer(ContainerKey),
    /// Remove the rest of the pod, whose containers are all removed: network, volumes, cgroup, directories. Answered by
    /// `PodRemoved`.
    RemovePod {
        pod: PodUid,
        /// The pod is finished, but its object is not deleted yet.
        keep_logs: bool,
    },
    /// Run a probe of a container once, at once. Answered by `Probed`, once its timeout is over at the latest.
    RunProbe(Box<ProbeOrder>),
    /// Run a hook of a container, at once. Answered by `HookEnded`, once its timeout is over at the latest.
    RunHook(Box<HookOrder>),
    /// Stop this run, of which nothing goes on in the container; one that has ended is fine. The answer to its order becomes
    /// `RunStopped` if it had not ended; there is no other.
    StopRun(RunKey),
    /// Remember this of a run for the next agent, until the run is removed or the machine boots; it comes back by
    /// `Inventory::health`. No answer.
    NoteHealth { container: ContainerKey, health: Health },
    /// Remember how far the hooks of a run are, as long; it comes back by `Inventory::hooks`. Performed before later actions about that
    /// run. No answer.
    NoteHook { container: ContainerKey, note: HookNote },
    /// Write this durably, mode 0600, or remove it durably (None). Writes of one file are performed in order. Answered by
    /// `DesiredSaved`.
    SaveDesired { file: DesiredFile, content: Option<Vec<u8>> },
    /// These records of pods cannot be used: keep a copy of each beside it, before a write replaces it. No answer.
    KeepAside(Vec<DesiredFile>),
    /// Read the desired set again, because it could not be read. Answered by `DesiredRead`.
    ReadDesired,
    /// Read all files at `staticPodPath`. Answered by `StaticPods` or `StaticPodsUnchanged`.
    ReadStaticPods(String),
    /// Read the list of pods anew: an answer to a pod that is not remembered was lost. Answered by `PodsListed`.
    ListPods,
    /// GET a ConfigMap or a Secret. Answered by `ObjectRead`.
    ReadObject(ObjectName),
    /// POST a TokenRequest. Answered by `TokenRead`.
    RequestToken(TokenName),
    /// Strategic-merge-patch `status` of a pod. `patch` has the UID in `metadata.uid`, so that it meets no namesake.
    PatchPodStatus { pod: PodRef, patch: Value },
    /// DELETE with grace period 0 and this UID as precondition: the node's last word on a pod.
    DeletePod(PodRef),
    /// POST the mirror of a static pod.
    CreateMirrorPod { namespace: String, name: String, pod: Value },
    /// Record an Event about a pod. No answer.
    RecordEvent(PodNews),
    /// Log a warning about the node as a whole, and record an Event about it. No answer.
    WarnOfNode { reason: &'static str, message: String },
    /// Log a line.
    Log(Level, String),
}

/// What of pods is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// The memory that they could not give back, by container.
    Memory,
    Processes,
    /// Bytes and inodes on the disk: root file systems, logs, volumes.
    Disk,
    /// The same, for the limits of pods.
    Limits,
}

/// What a pod takes; absent: nobody could tell, or it was not asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodUsage {
    pub pod: PodUid,
    pub memory_bytes: Option<u64>,
    pub processes: Option<u64>,
    pub containers: SortedMap<String, ContainerUsage>,
    /// By name; those that lie on the disk of the node.
    pub volumes: SortedMap<String, DiskUsage>,
}

/// What a container takes, all its runs together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContainerUsage {
    pub memory_bytes: Option<u64>,
    pub disk: Option<DiskUsage>,
}

/// What something takes of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskUsage {
    pub bytes: u64,
    pub inodes: u64,
}

impl DiskUsage {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let bytes = self.bytes.saturating_add(other.bytes);
        Self { bytes, inodes: self.inodes.saturating_add(other.inodes) }
    }
}

/// A file of the desired set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DesiredFile {
    /// One pod.
    Pod(PodUid),
    /// One ConfigMap or Secret that pods refer to; named by the digest of its kind, namespace and name.
    Object(String),
}

impl DesiredFile {
    /// Where it lies below `--root-dir`.
    #[must_use]
    pub fn path(&self) -> String {
        match self {
            Self::Pod(uid) => format!("pods/desired/{uid}.json"),
            Self::Object(digest) => format!("pods/objects/{digest}.json"),
        }
    }

    /// The inverse; None for any other file.
    #[must_use]
    pub fn from_path(path: &str) -> Option<Self> {
        let (folder, name) = path.strip_prefix("pods/")?.split_once('/')?;
        let name = name.strip_suffix(".json").filter(|name| is_file_name(name))?;
        match folder {
            "desired" => PodUid::new(name).map(Self::Pod),
            "objects" => Some(Self::Object(name.to_owned())),
            _ => None,
        }
    }
}

/// A file of the desired set, as it lies on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredFound {
    pub file: DesiredFile,
    /// Or why it cannot be read.
    pub content: Result<Vec<u8>, String>,
}

/// What the runtime has.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Inventory {
    /// Pods that were prepared, wholly or not, and are not removed.
    pub pods: Vec<PodFound>,
    /// Runs that were created, wholly or not, and are not removed. A half-created one that never ran is `Lost` or left out.
    pub containers: Vec<Observation>,
    /// The highest attempt that has a log, by pod and container, also of earlier boots.
    pub logs: SortedMap<PodUid, SortedMap<String, u32>>,
    /// What `NoteHealth` noted of runs that are not removed.
    pub health: SortedMap<ContainerKey, Health>,
    /// The same of `NoteHook`.
    pub hooks: SortedMap<ContainerKey, HookNote>,
}

/// A pod that the runtime has, as `PodSandbox` described it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFound {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
    /// The Node it was prepared for; empty for a static pod.
    pub node_uid: String,
    /// None: half prepared; `PreparePod` is given again.
    pub network: Option<PodNetwork>,
}

/// The state of one run of a container.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    pub container: ContainerKey,
    pub state: ContainerState,
    /// `ContainerOrder::image_name` and `image.reference` that it was created with. Empty if unknown.
    pub image_name: String,
    pub image_reference: String,
}

/// What a run of a container is doing.
#[derive(Debug, Clone, PartialEq)]
pub enum ContainerState {
    /// Made, its first process not started.
    Created,
    /// Running.
    Running { pid: u32, started: Timestamp },
    /// Ended, and the end was seen.
    Exited(Exit),
    /// It does not run (now ended for certain), but nobody saw how it ended; why not, empty if that is unknown, too.
    Lost(String),
    /// It cannot be told whether it runs. It is neither started again nor counted as ended.
    Unknown(String),
}

/// How a run of a container ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exit {
    /// 128 + signal if a signal ended it.
    pub code: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The kernel killed it because its cgroup had no memory left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oom_killed: bool,
    /// None: it never ran, or that was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Timestamp>,
    /// What the container left to say of it, as its `TerminationMessage` has it. An older agent passes it over.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// The addresses of a pod, best first; empty on the host's network.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodNetwork {
    pub addresses: Vec<String>,
}

/// A command, for its failure.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Command {
    PreparePod(PodUid),
    UpdateVolumes(PodUid),
    PullImage { pod: PodUid, container: String },
    CreateContainer(ContainerKey),
    StartContainer(ContainerKey),
    StopContainer(ContainerKey),
    RemoveContainer(ContainerKey),
    RemovePod(PodUid),
}

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub reason: FailureReason,
    /// What was tried, expected and found.
    pub message: String,
}

/// The sorts of failure that Kubernetes shows by different words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureReason {
    /// Any other: the word follows from the command.
    Other,
    /// The image's name is no reference: `InvalidImageName`.
    InvalidImageName,
    /// Not there, and the policy forbids to fetch it: `ErrImageNeverPull`.
    ImageNeverPull,
    /// No key that the configuration names has signed it: `SignatureValidationFailed`.
    ImageSignature,
    /// A pull that got further and did not come to its end: shown as any other, and no reason to wait longer for the next.
    PullBrokeOff,
    /// There, but it cannot be read: `ImageInspectError`.
    ImageInspect,
    /// A volume could not be set up: event `FailedMount`.
    Volume,
    /// The network could not be set up: event `FailedCreatePodSandBox`.
    Network,
    /// The order cannot be carried out as it is written (no such user, no command): `CreateContainerConfigError`.
    Config,
    /// The parts that `PreparePod` made were lost: it is ordered again.
    Unprepared,
}

/// An image to see to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageOrder {
    pub pod: PodUid,
    pub container: String,
    /// As the pod has it.
    pub image: String,
    pub policy: PullPolicy,
    /// The contents of the pod's `imagePullSecrets`, `.dockerconfigjson` or `.dockercfg` (then wrapped in `auths`), in order.
    pub credentials: Vec<Vec<u8>>,
}

/// `imagePullPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// What `PreparePod` makes.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSandbox {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
    /// Kept with the pod and told again by `PodFound`.
    pub node_uid: String,
    pub hostname: String,
    pub host_network: bool,
    pub host_pid: bool,
    pub host_ipc: bool,
    pub share_process_namespace: bool,
    pub qos: QosClass,
    /// The pod's cgroup: the sums over its containers, as kubelet's.
    pub resources: Resources,
    pub volumes: Vec<Volume>,
    /// `containers[].ports` that have a `hostPort`.
    pub host_ports: Vec<HostPort>,
    pub dns: Dns,
    /// `hostAliases`: address and names.
    pub host_aliases: Vec<(String, Vec<String>)>,
}

/// `dnsPolicy` and `dnsConfig`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dns {
    /// `ClusterFirst`, `ClusterFirstWithHostNet`, `Default`, `None`.
    pub policy: String,
    pub nameservers: Vec<String>,
    pub searches: Vec<String>,
    /// Name and value.
    pub options: Vec<(String, Option<String>)>,
}

/// A port of the host that leads to one of the pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    pub host_ip: String,
    pub host_port: u16,
    pub container_port: u16,
    /// TCP, UDP or SCTP.
    pub protocol: String,
}

/// A volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub name: String,
    pub source: VolumeSource,
    /// `fsGroup`: it belongs to this group, which may read it, and write an empty directory; a path of the host stays as it is.
    pub group: Option<u32>,
}

/// What a volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeSource {
    /// An empty directory, mode 0777.
    EmptyDir {
        /// In memory: a tmpfs.
        memory: bool,
        size_limit: Option<u64>,
    },
    /// A path of the host; `kind` as upstream: empty, `DirectoryOrCreate`, `Directory`, `FileOrCreate`, `File`, `Socket`,
    /// `CharDevice`, `BlockDevice`.
    HostPath { path: String, kind: String },
    /// What the image with this ID holds, read only; no program of it can be run.
    Image { id: String },
    /// These files and no others, read only and replaced all at once; in a tmpfs if `memory`.
    Files { files: Vec<VolumeFile>, memory: bool },
}

/// A file that the API gives: of a ConfigMap, a Secret, or about the pod itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeFile {
    /// Relative, without `..`; its first part does not begin with `..`.
    pub path: String,
    pub mode: u32,
    /// None: root.
    pub owner: Option<u32>,
    pub content: Vec<u8>,
}

/// What `CreateContainer` makes.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerOrder {
    pub key: ContainerKey,
    pub namespace: String,
    pub pod_name: String,
    /// As the pod has it.
    pub image_name: String,
    pub image: Image,
    /// Program and arguments; never empty.
    pub argv: Vec<String>,
    /// In order, each name once; the image's first. `HOSTNAME` and `PATH` of a container without one are the runtime's to add.
    pub env: Vec<(String, String)>,
    /// Empty: `/`.
    pub working_dir: String,
    pub mounts: Vec<Mount>,
    pub resources: Resources,
    pub security: Security,
    pub qos: QosClass,
    /// What `StopContainer` without a signal sends: as the image has it, else `SIGTERM`.
    pub stop_signal: String,
    pub termination_message: TerminationMessage,
    pub console: Console,
}

/// What a container reads from, and what it is a terminal of: its fields of these names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Console {
    pub stdin: bool,
    pub stdin_once: bool,
    pub tty: bool,
}

/// Where a container says why it ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TerminationMessage {
    /// A file in the container, there from its begin on. Empty: it has no such file.
    pub path: String,
    /// The end of its log counts if it failed and the file is empty.
    pub falls_back_to_logs: bool,
}

/// Longest message of one run: upstream's.
pub const TERMINATION_MESSAGE_BYTES: usize = 4096;

/// As whom a container runs, and what it may do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Security {
    /// None: as the image says.
    pub user: Option<u32>,
    pub group: Option<u32>,
    /// Further groups.
    pub groups: Vec<u32>,
    /// Those groups alone: none that the image puts the user in.
    pub without_groups_of_image: bool,
    /// The container is not created if it would run as root, or if its user is unknown.
    pub must_not_be_root: bool,
    /// As the kernel names them: `CAP_KILL`.
    pub capabilities: Vec<String>,
    pub read_only_root: bool,
    pub no_new_privileges: bool,
    /// All of the machine's devices, and nothing of `/proc` and `/sys` hidden or read-only.
    pub is_privileged: bool,
    pub seccomp: Seccomp,
    /// The profile of AppArmor; None: none is set.
    pub apparmor: Option<String>,
    /// Devices by name, with their paths; without a path: the node's configuration has none of this name any more.
    pub devices: SortedMap<String, Vec<String>>,
    /// Of the pod's own namespaces: name with dots, and value.
    pub sysctls: BTreeMap<String, String>,
}

/// Which system calls a container may make.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Seccomp {
    #[default]
    Unconfined,
    RuntimeDefault,
    /// As a file below `seccomp` of the root directory says: relative, without `..`.
    Localhost(String),
}

/// A volume in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Name of a volume of the pod.
    pub volume: String,
    /// Absolute, in the container.
    pub path: String,
    pub read_only: bool,
    /// No program on it can be run.
    pub no_exec: bool,
    /// What the machine mounts below it later is seen there, too: `mountPropagation: HostToContainer`.
    pub follows_host: bool,
    /// What of the volume: relative, without `..`; made as a directory if it is not there. No link of the volume may lead out of
    /// it. Empty: all.
    pub sub_path: String,
}

/// Requests and limits, None where none was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resources {
    pub cpu_request_milli: Option<u64>,
    pub cpu_limit_milli: Option<u64>,
    pub memory_request_bytes: Option<u64>,
    pub memory_limit_bytes: Option<u64>,
}

/// A pod's class of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl QosClass {
    /// As `status.qosClass` has it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// What the node is and has, as far as pods are admitted by it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeFacts {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// `status.hostIP`, best first.
    pub addresses: Vec<String>,
    /// Allocatable.
    pub cpu_milli: u64,
    pub memory_bytes: u64,
    /// None: not known.
    pub storage_bytes: Option<u64>,
    pub pods: u64,
    /// Conditions of pressure that hold: `MemoryPressure` and its like.
    pub pressures: Vec<&'static str>,
    /// While it is not ready, only pods on the host's network are started.
    pub network: PodNetworks,
    /// `clusterDNS` has an address.
    pub has_cluster_dns: bool,
    /// None: there is none, or not known where.
    pub api_server: Option<ApiServer>,
    /// The kernel enforces profiles of AppArmor.
    pub has_apparmor: bool,
    /// The kernel labels files and processes by SELinux.
    pub has_selinux: bool,
    /// `kedge.devices`.
    pub devices: SortedMap<String, Vec<String>>,
    /// `allowedUnsafeSysctls`.
    pub unsafe_sysctls: Vec<String>,
    /// `seccompDefault`: what names no profile has `RuntimeDefault`.
    pub filters_calls: bool,
}

/// What reading an object gave.
#[derive(Debug, Clone, PartialEq)]
pub enum ObjectRead {
    /// The object.
    Found(Value),
    /// The API server answered that there is none.
    Missing,
    /// The API server will not show it.
    Refused(String),
    /// No answer: what was known stays.
    Failed(String),
}

/// A token of a pod's service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenName {
    /// That it is bound to; its namespace is the account's.
    pub pod: PodRef,
    pub account: String,
    /// Empty: the API server's own.
    pub audience: String,
    pub expiration_secs: u64,
}

/// What asking for a token gave.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenRead {
    Issued {
        token: String,
        life: Duration,
    },
    /// Refused, or no answer: why.
    Failed(String),
}

impl fmt::Debug for TokenRead {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Issued { life, .. } => write!(f, "Issued for {life:?}"),
            Self::Failed(why) => write!(f, "Failed({why:?})"),
        }
    }
}

/// A file of `staticPodPath`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticFile {
    /// As an operator sees it.
    pub path: String,
    /// At most `kubelet::yaml::MAX_TEXT_BYTES`.
    pub content: Result<Vec<u8>, String>,
}

/// A request about a pod, for its answer. One of each sort and pod is under way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodRequest {
    PatchStatus(PodRef),
    Delete(PodRef),
    CreateMirror { namespace: String, name: String },
}

/// What pods ask of the API server.
#[derive(Debug, Clone, PartialEq)]
pub enum PodAsk {
    /// Strategic-merge-patch a pod's status.
    PatchStatus { pod: PodRef, body: Value },
    /// Delete a pod with grace period 0, if it still has this UID.
    Delete(PodRef),
    /// Create a mirror pod.
    Create { namespace: String, body: Value },
    /// Read a ConfigMap or a Secret.
    Read(ObjectName),
    /// Create a token: a TokenRequest for this account.
    CreateToken { namespace: String, account: String, body: Value },
    /// Create an Event about a pod.
    PostEvent { namespace: String, body: Value },
}

impl PodAsk {
    /// Its body, but for that of a deletion, which follows from it.
    pub(crate) fn body(&self) -> Option<&Value> {
        match self {
            Self::PatchStatus { body, .. }
            | Self::Create { body, .. }
            | Self::CreateToken { body, .. }
            | Self::PostEvent { body, .. } => Some(body),
            Self::Delete(_) | Self::Read(_) => None,
        }
    }
}

/// Something that happened to a pod, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodNews {
    pub pod: PodRef,
    /// `spec.containers{name}`; empty: the pod as a whole.
    pub field_path: String,
    /// Warning; else Normal.
    pub is_warning: bool,
    /// The pod does not run because of it: where there is no room for all, others are left out.
    pub is_urgent: bool,
    /// Upstream's reason.
    pub reason: &'static str,
    pub message: String,
}
