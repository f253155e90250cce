//! The events that the pods' actor takes and the actions it gives: its contract with the runtime, the images,
//! the disk and the API server.
//!
//! Always holds: an action is complete, so performing it needs no decision. A performer that cannot do a part
//! of an order fails the order and says which part; it never leaves a part out. Each command (`PreparePod`,
//! `PullImage`, `CreateContainer`, `StartContainer`, `StopContainer`, `RemoveContainer`, `RemovePod`) is
//! answered exactly once, as late as the performer likes: by the event that its doc comment states, or by
//! `Failed`. Per pod and container at most one command is under way, except that `StopContainer` may be
//! repeated with a shorter grace period. The performer also reports as `Observed` what it sees without a
//! command (a process that ends, a shim that disappears). A crash of the agent loses commands and answers:
//! the next start begins with `Event::Inventory`, and no action comes before it. Leaves to others: the
//! decisions that follow from an event (`pods`), how actions are performed (the crate `kedge`, the
//! simulation).

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
    /// The desired set as it was read from disk, at the start of the agent and as the answer to
    /// `ReadDesired`. `Err` if even the directory was unreadable, which does not mean that it is empty.
    DesiredRead(Result<Vec<DesiredFound>, String>),
    /// Everything the runtime has: at the start of the agent before any other event of the runtime, and again
    /// whenever the runtime may have lost events. A runtime that has no answer yet sends no event, because
    /// unknown is not empty.
    Inventory(Inventory),
    /// A run of a container has reached this state.
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
    /// The answer to `RunHook`; `Err` gives why the hook failed or could not be run.
    HookEnded { container: ContainerKey, kind: HookKind, done: Result<(), String> },
    /// The answer to `RunProbe` or `RunHook` if `StopRun` stopped that run before it ended.
    RunStopped(RunKey),
    /// `PullImage` found that the image must be fetched, and began to. This is not the answer yet.
    ImagePulling { pod: PodUid, container: String },
    /// The answer to `PullImage`: every layer of the image is unpacked, on disk and verified.
    ImageReady { pod: PodUid, container: String, image: Image },
    /// The answer to a command that failed; it left only remains that the next try repairs.
    Failed { command: Command, failure: Failure },
    /// Time passed.
    Tick,
    /// The facts of the node and its capacity. Before this event no pod is admitted; at the start of the
    /// agent it may carry the facts of the last run.
    Node(Box<NodeFacts>),
    /// Whether the pods are held (after a crash loop under a proven configuration): while they are, no
    /// container is started or stopped. The pods give no action before the first of these events.
    Held(bool),
    /// The Node was read after the last `ReadNode`, or found absent; if this changed any fact, `Node` came
    /// before.
    NodeRead,
    /// The host was looked at; carries the threshold for which pods have to end now, if any.
    Looked(Option<Pressing>),
    /// The machine is shutting down and waits for the pods (true), or the shutdown was cancelled (false).
    Shutdown(bool),
    /// The answer to `MeasurePods`; a pod that could not be measured is left out. `took` is how long the
    /// measurement lasted.
    PodsMeasured { measure: Measure, usages: Vec<PodUsage>, took: Duration },
    /// The answer to `CollectImages`. `Err` if no image was removed.
    ImagesCollected(Result<Collected, String>),
    /// All pods that the API server binds to this node, from one complete read, and the UID of the Node they
    /// are bound to. A failed or partial read sends no event.
    PodsListed { node_uid: String, pods: Vec<Value> },
    /// A pod bound to this node was added or changed.
    PodSeen(Value),
    /// A pod was removed from the API; carries its last state.
    PodGone(Value),
    /// The answer to `ReadObject`.
    ObjectRead { name: ObjectName, read: ObjectRead },
    /// The answer to `RequestToken`.
    TokenRead { name: TokenName, read: TokenRead },
    /// The objects that pods refer to may have changed, so they are read again.
    ObjectsAreOld,
    /// The answer to `ReadStaticPods`: every file in `staticPodPath`, with its content or why it is
    /// unreadable; sorted by path. `Err` if the directory was unreadable; its pods keep running.
    StaticPods(Result<Vec<StaticFile>, String>),
    /// The answer to `ReadStaticPods` if it would be the same as the one before.
    StaticPodsUnchanged,
    /// From `kedge pods release` or the Node annotation `kedge.dev/release-pods`: end the orphaned pods, or
    /// only the one with this namespace and name.
    Release(Option<(String, String)>),
    /// The answer to `SaveDesired`; `Ok` if the file is on disk.
    DesiredSaved { file: DesiredFile, done: Result<(), String> },
    /// The answer to `PatchPodStatus`, `DeletePod` or `CreateMirrorPod`.
    Answered { request: PodRequest, answer: Answer },
}

/// Everything that the pods' actor may have done for the pods of a node.
#[derive(Debug, Clone, PartialEq)]
pub enum PodAction {
    /// Make the directories, volumes, cgroup, namespaces and network of a pod; parts that exist already stay.
    /// Answered by `PodPrepared`.
    PreparePod(Box<PodSandbox>),
    /// Replace the files of these volumes of a prepared pod, all files of a volume at once; a file that
    /// already has its content is not written. May be given while commands of the pod's containers are under
    /// way. Answered by `VolumesUpdated`.
    UpdateVolumes { pod: PodUid, volumes: Vec<Volume> },
    /// Ensure that the image is on the node, by its policy. Answered by `ImageReady`.
    PullImage(Box<ImageOrder>),
    /// Remove images that no pod needs, by these thresholds. Answered by `ImagesCollected`.
    CollectImages(Thresholds),
    /// Let the machine stop: the pods do not need it any more. No answer.
    LetMachineStop,
    /// Look at the host now; `Looked` follows. No answer.
    LookAtHost,
    /// Read this node's Node; `NodeRead` follows once it was read, after the changes that the Node brought.
    ReadNode,
    /// Measure the resources that these pods use. Answered by `PodsMeasured`; at most one of each sort is
    /// under way, because reading a disk's usage may take long.
    MeasurePods { measure: Measure, pods: Vec<PodUid> },
    /// Make the container, with its first process not started. Answered by `Observed` (created).
    CreateContainer(Box<ContainerOrder>),
    /// Start a created container. Answered by `Observed` (running, or exited if it ended at once).
    StartContainer(ContainerKey),
    /// Send the signal, and after `grace` KILL to every process of the container. With a grace period of zero
    /// KILL is sent at once. Answered by `Observed` (exited or lost), also if that end was reported before
    /// the command was performed.
    StopContainer {
        container: ContainerKey,
        /// `None` for the signal that the container was created with.
        signal: Option<String>,
        grace: Duration,
    },
    /// Remove the remains of a run that ended: its root, its state, and the logs of all runs of that
    /// container but the latest two. Answered by `ContainerRemoved`.
    RemoveContainer(ContainerKey),
    /// Remove the pod's own part after all its containers were removed: network, volumes, cgroup,
    /// directories. Answered by `PodRemoved`.
    RemovePod {
        pod: PodUid,
        /// The pod has finished, but its object is not deleted yet.
        keep_logs: bool,
    },
    /// Run a probe of a container once, now. Answered by `Probed`, when its timeout is over at the latest.
    RunProbe(Box<ProbeOrder>),
    /// Run a hook of a container now. Answered by `HookEnded`, when its timeout is over at the latest.
    RunHook(Box<HookOrder>),
    /// Stop this run of a probe or hook, with its processes in the container; a run that has already ended is
    /// accepted too. If the run had not ended, its order is answered by `RunStopped`; `StopRun` itself has no
    /// answer.
    StopRun(RunKey),
    /// Remember this about a run for the next agent, until the run is removed or the machine boots;
    /// `Inventory::health` returns it. No answer.
    NoteHealth { container: ContainerKey, health: Health },
    /// Remember the progress of a run's hooks, for the same time; `Inventory::hooks` returns it. Performed
    /// before later actions about that run. No answer.
    NoteHook { container: ContainerKey, note: HookNote },
    /// Write this durably with mode 0600, or with `None` remove the file durably. Writes of one file are
    /// performed in order. Answered by `DesiredSaved`.
    SaveDesired { file: DesiredFile, content: Option<Vec<u8>> },
    /// These records of pods are unusable: keep a copy beside each before a write replaces it. No answer.
    KeepAside(Vec<DesiredFile>),
    /// Read the desired set again, because it was unreadable before. Answered by `DesiredRead`.
    ReadDesired,
    /// Read all files at `staticPodPath`. Answered by `StaticPods` or `StaticPodsUnchanged`.
    ReadStaticPods(String),
    /// Read the list of pods again, because the answer to a pod without a record was lost. Answered by
    /// `PodsListed`.
    ListPods,
    /// GET a ConfigMap or a Secret. Answered by `ObjectRead`.
    ReadObject(ObjectName),
    /// POST a TokenRequest. Answered by `TokenRead`.
    RequestToken(TokenName),
    /// Strategic-merge-patch `status` of a pod. `patch` has the UID in `metadata.uid`, so that it cannot
    /// change another pod of the same name.
    PatchPodStatus { pod: PodRef, patch: Value },
    /// DELETE with grace period 0 and this UID as precondition: the node's last request about a pod.
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

/// The sort of measurement of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// The memory that the kernel could not reclaim from them, by container.
    Memory,
    Processes,
    /// Bytes and inodes on the disk: root file systems, logs, volumes.
    Disk,
    /// The same as `Disk`, for the limits of pods.
    Limits,
}

/// The resources that a pod uses; a field is absent if it is unknown or was not measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodUsage {
    pub pod: PodUid,
    pub memory_bytes: Option<u64>,
    pub processes: Option<u64>,
    pub containers: SortedMap<String, ContainerUsage>,
    /// By name; only volumes on the node's disk.
    pub volumes: SortedMap<String, DiskUsage>,
}

/// The resources that all runs of a container use together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContainerUsage {
    pub memory_bytes: Option<u64>,
    pub disk: Option<DiskUsage>,
}

/// The space that a directory uses on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskUsage {
    pub bytes: u64,
    pub inodes: u64,
}

impl DiskUsage {
    /// The sum of the two.
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
    /// The file's path below `--root-dir`.
    #[must_use]
    pub fn path(&self) -> String {
        match self {
            Self::Pod(uid) => format!("pods/desired/{uid}.json"),
            Self::Object(digest) => format!("pods/objects/{digest}.json"),
        }
    }

    /// The inverse of `path`; `None` for any other file.
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

/// A file of the desired set, as it was read from disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredFound {
    pub file: DesiredFile,
    /// `Err` gives why the file is unreadable.
    pub content: Result<Vec<u8>, String>,
}

/// Everything the runtime has.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Inventory {
    /// Pods that were prepared, fully or partly, and not removed.
    pub pods: Vec<PodFound>,
    /// Runs that were created, fully or partly, and not removed. A partly created run that never started is
    /// `Lost` or left out.
    pub containers: Vec<Observation>,
    /// The highest attempt that has a log, by pod and container, including earlier boots.
    pub logs: SortedMap<PodUid, SortedMap<String, u32>>,
    /// The health that `NoteHealth` noted for runs that are not removed.
    pub health: SortedMap<ContainerKey, Health>,
    /// The same for `NoteHook`.
    pub hooks: SortedMap<ContainerKey, HookNote>,
}

/// A pod that the runtime has, as `PodSandbox` described it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFound {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
    /// The Node that it was prepared for; empty for a static pod.
    pub node_uid: String,
    /// `None` if the pod is only partly prepared; then `PreparePod` is given again.
    pub network: Option<PodNetwork>,
}

/// The state of one run of a container.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    pub container: ContainerKey,
    pub state: ContainerState,
    /// `ContainerOrder::image_name` and `image.reference` from the run's creation. Empty if unknown.
    pub image_name: String,
    pub image_reference: String,
}

/// The state of a run of a container.
#[derive(Debug, Clone, PartialEq)]
pub enum ContainerState {
    /// Created, but its first process was not started.
    Created,
    /// Running.
    Running { pid: u32, started: Timestamp },
    /// Ended, and the end was seen.
    Exited(Exit),
    /// The run has certainly ended, but how it ended was not seen; carries the reason, or an empty text if
    /// that is unknown too.
    Lost(String),
    /// Whether the container runs is unknown. It is neither started again nor counted as ended.
    Unknown(String),
}

/// How a run of a container ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exit {
    /// 128 + signal if a signal ended the container.
    pub code: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The kernel killed it because its cgroup had no memory left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub oom_killed: bool,
    /// `None` if the container never ran or its start was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Timestamp>,
    /// The message that the container left about its end, as its `TerminationMessage` defines. An older agent
    /// ignores this field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// The addresses of a pod, preferred first; empty on the host's network.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodNetwork {
    pub addresses: Vec<String>,
}

/// Identifies the command that failed.
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
    /// The attempted work, with the expected and the found value.
    pub message: String,
}

/// The sorts of failure for which Kubernetes shows different reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureReason {
    /// Any other failure: the reason follows from the command.
    Other,
    /// The image's name is an invalid reference: `InvalidImageName`.
    InvalidImageName,
    /// The image is not on the node, and the policy forbids fetching it: `ErrImageNeverPull`.
    ImageNeverPull,
    /// The image has no signature by a configured key: `SignatureValidationFailed`.
    ImageSignature,
    /// A pull that got further than before but did not complete: shown like any other failure, but it does
    /// not lengthen the wait for the next try.
    PullBrokeOff,
    /// The image is on the node but unreadable: `ImageInspectError`.
    ImageInspect,
    /// Setting a volume up failed: event `FailedMount`.
    Volume,
    /// Setting the network up failed: event `FailedCreatePodSandBox`.
    Network,
    /// The order is impossible as written (no such user, no command): `CreateContainerConfigError`.
    Config,
    /// The parts that `PreparePod` made were lost: it is ordered again.
    Unprepared,
}

/// An image that `PullImage` shall provide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageOrder {
    pub pod: PodUid,
    pub container: String,
    /// The name as the pod has it.
    pub image: String,
    pub policy: PullPolicy,
    /// The contents of the pod's `imagePullSecrets`, `.dockerconfigjson` or `.dockercfg` (then wrapped in
    /// `auths`), in order.
    pub credentials: Vec<Vec<u8>>,
}

/// `imagePullPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// Everything that `PreparePod` makes.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSandbox {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
    /// Kept with the pod and reported again by `PodFound`.
    pub node_uid: String,
    pub hostname: String,
    pub host_network: bool,
    pub host_pid: bool,
    pub host_ipc: bool,
    pub share_process_namespace: bool,
    pub qos: QosClass,
    /// For the pod's cgroup: the sums over its containers, as the kubelet's.
    pub resources: Resources,
    pub volumes: Vec<Volume>,
    /// The entries of `containers[].ports` that have a `hostPort`.
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

/// A port of the host that is forwarded to one of the pod.
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
    /// `fsGroup`: the volume belongs to this group, which may read it and may write an empty directory; a
    /// path of the host is not changed.
    pub group: Option<u32>,
}

/// The sort of a volume and its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeSource {
    /// An empty directory, mode 0777.
    EmptyDir {
        /// Whether it is in memory, as a tmpfs.
        memory: bool,
        size_limit: Option<u64>,
    },
    /// A path of the host; `kind` as upstream: empty, `DirectoryOrCreate`, `Directory`, `FileOrCreate`,
    /// `File`, `Socket`, `CharDevice`, `BlockDevice`.
    HostPath { path: String, kind: String },
    /// The content of the image with this ID, read-only; programs on it cannot be executed.
    Image { id: String },
    /// Exactly these files, read-only and replaced all at once; in a tmpfs if `memory`.
    Files { files: Vec<VolumeFile>, memory: bool },
}

/// A file whose content comes from the API: from a ConfigMap or a Secret, or about the pod itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeFile {
    /// Relative and without `..`; its first part does not start with `..`.
    pub path: String,
    pub mode: u32,
    /// `None` for root.
    pub owner: Option<u32>,
    pub content: Vec<u8>,
}

/// Everything that `CreateContainer` makes.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerOrder {
    pub key: ContainerKey,
    pub namespace: String,
    pub pod_name: String,
    /// The name as the pod has it.
    pub image_name: String,
    pub image: Image,
    /// Program and arguments; never empty.
    pub argv: Vec<String>,
    /// In order, each name once; the image's first. The runtime adds `HOSTNAME`, and `PATH` if the container
    /// has none.
    pub env: Vec<(String, String)>,
    /// Empty for `/`.
    pub working_dir: String,
    pub mounts: Vec<Mount>,
    pub resources: Resources,
    pub security: Security,
    pub qos: QosClass,
    /// The signal of a `StopContainer` without one: as the image has it, else `SIGTERM`.
    pub stop_signal: String,
    pub termination_message: TerminationMessage,
    pub console: Console,
}

/// The container's input and terminal: the fields of the same names in its spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Console {
    pub stdin: bool,
    pub stdin_once: bool,
    pub tty: bool,
}

/// Where a container writes why it ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TerminationMessage {
    /// A file in the container, which exists from its start. Empty if the container has no such file.
    pub path: String,
    /// If the container failed and the file is empty, the end of its log is the message.
    pub falls_back_to_logs: bool,
}

/// Longest message of one run: upstream's.
pub const TERMINATION_MESSAGE_BYTES: usize = 4096;

/// The user that a container runs as, and its permissions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Security {
    /// `None` for the user of the image.
    pub user: Option<u32>,
    pub group: Option<u32>,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// The container gets only these groups, without those that the image's `/etc/group` gives the user.
    pub without_groups_of_image: bool,
    /// The container is not created if it would run as root or if its user is unknown.
    pub must_not_be_root: bool,
    /// With the kernel's names, such as `CAP_KILL`.
    pub capabilities: Vec<String>,
    pub read_only_root: bool,
    pub no_new_privileges: bool,
    /// The container has all of the machine's devices, and no part of `/proc` and `/sys` is hidden or
    /// read-only.
    pub is_privileged: bool,
    pub seccomp: Seccomp,
    /// The AppArmor profile; `None` sets none.
    pub apparmor: Option<String>,
    /// Devices by name, with their paths; a name without paths is missing from the node's current
    /// configuration.
    pub devices: SortedMap<String, Vec<String>>,
    /// Sysctls of the pod's own namespaces: name with dots, and value.
    pub sysctls: BTreeMap<String, String>,
}

/// Which system calls a container may make.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Seccomp {
    #[default]
    Unconfined,
    RuntimeDefault,
    /// The profile in this file below `seccomp` of the root directory: relative and without `..`.
    Localhost(String),
}

/// A volume in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The name of a volume of the pod.
    pub volume: String,
    /// An absolute path in the container.
    pub path: String,
    pub read_only: bool,
    /// Programs on it cannot be executed.
    pub no_exec: bool,
    /// File systems that the machine mounts below it later appear there too: `mountPropagation:
    /// HostToContainer`.
    pub follows_host: bool,
    /// The part of the volume to mount: relative and without `..`; made as a directory if it does not exist.
    /// A link in the volume may not lead out of the volume. Empty for the whole volume.
    pub sub_path: String,
}

/// Requests and limits; `None` where the spec gives none.
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

/// The facts of the node by which pods are admitted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeFacts {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// For `status.hostIP`, preferred first.
    pub addresses: Vec<String>,
    /// Allocatable.
    pub cpu_milli: u64,
    pub memory_bytes: u64,
    /// `None` if unknown.
    pub storage_bytes: Option<u64>,
    pub pods: u64,
    /// Conditions of pressure that are true now: `MemoryPressure` and the like.
    pub pressures: Vec<&'static str>,
    /// While it is not ready, only pods on the host's network start.
    pub network: PodNetworks,
    /// Whether `clusterDNS` has an address.
    pub has_cluster_dns: bool,
    /// `None` if the node has no API server or its address is unknown.
    pub api_server: Option<ApiServer>,
    /// Whether the kernel enforces profiles of AppArmor.
    pub has_apparmor: bool,
    /// Whether the kernel labels files and processes by SELinux.
    pub has_selinux: bool,
    /// `kedge.devices`.
    pub devices: SortedMap<String, Vec<String>>,
    /// `allowedUnsafeSysctls`.
    pub unsafe_sysctls: Vec<String>,
    /// `seccompDefault`: a container without a profile gets `RuntimeDefault`.
    pub filters_calls: bool,
    /// The controllers that the kernel lacks.
    pub lacking_controllers: Vec<&'static str>,
    /// Whether there is a `podPidsLimit`.
    pub limits_pids: bool,
    /// Why no container can begin, if so.
    pub no_runtime: Option<String>,
}

/// The result of reading an object.
#[derive(Debug, Clone, PartialEq)]
pub enum ObjectRead {
    /// The object.
    Found(Value),
    /// The API server answered that the object does not exist.
    Missing,
    /// The API server refused to show the object.
    Refused(String),
    /// No answer came, so the known content stays.
    Failed(String),
}

/// A token of a pod's service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenName {
    /// The pod that the token is bound to; its namespace is that of the account.
    pub pod: PodRef,
    pub account: String,
    /// Empty for the API server's own audience.
    pub audience: String,
    pub expiration_secs: u64,
}

/// The result of requesting a token.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenRead {
    Issued {
        token: String,
        life: Duration,
    },
    /// Why the request was refused or got no answer.
    Failed(String),
}

impl fmt::Debug for TokenRead {
    /// Leaves the token out.
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
    /// The path as an operator sees it.
    pub path: String,
    /// At most `kubelet::yaml::MAX_TEXT_BYTES` long.
    pub content: Result<Vec<u8>, String>,
}

/// Identifies a request about a pod, for its answer. At most one of each sort and pod is under way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodRequest {
    PatchStatus(PodRef),
    Delete(PodRef),
    CreateMirror { namespace: String, name: String },
}

/// A request of pods to the API server.
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
    /// The request's body; `None` for a deletion, whose body follows from the pod.
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

/// An Event about a pod, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodNews {
    pub pod: PodRef,
    /// `spec.containers{name}`; empty for the pod as a whole.
    pub field_path: String,
    /// Type Warning, otherwise Normal.
    pub is_warning: bool,
    /// The pod does not run because of it: if there is no room for all events, others are left out.
    pub is_urgent: bool,
    /// Upstream's reason.
    pub reason: &'static str,
    pub message: String,
}

impl Command {
    /// The pod that the request is about.
    #[must_use]
    pub fn pod(&self) -> &PodUid {
        match self {
            Self::PreparePod(pod)
            | Self::UpdateVolumes(pod)
            | Self::RemovePod(pod)
            | Self::PullImage { pod, .. } => pod,
            Self::CreateContainer(key)
            | Self::StartContainer(key)
            | Self::StopContainer(key)
            | Self::RemoveContainer(key) => &key.pod,
        }
    }
}

impl PodRequest {
    /// Namespace and name of the pod that the request is about.
    #[must_use]
    pub fn name(&self) -> (&str, &str) {
        match self {
            Self::PatchStatus(pod) | Self::Delete(pod) => (&pod.namespace, &pod.name),
            Self::CreateMirror { namespace, name } => (namespace, name),
        }
    }
}
