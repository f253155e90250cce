//! Performs the pods' actor's orders to the runtime, and reports events: pods, volumes, containers, their
//! logs' places.
//!
//! Always holds: each command is answered as its contract says (`kedge_core::pods::PodAction`), by an
//! observation or by `Failed`; facts that a later run of the agent needs are stored with the pod, so it needs
//! no memory of its own: before a network plugin runs, the means to undo it. Blocks for as long as our own
//! disk or a bounded run of crun takes, and for no path that a pod names: use a thread that may. Leaves to
//! others: every decision (core), images (`Layers`), running plugins (`network`), looking at paths of pods
//! (`looks`).

mod kept;
mod log_links;
pub mod looks;
pub(crate) mod measure;
mod messages;
pub mod network;
pub(crate) mod probes;
pub mod signals;
pub mod volumes;

use kedge_api::{Timestamp, names};
use kedge_core::pods::{
    self, Command, ContainerKey, Failure, FailureReason, Inventory, PodAction, PodEvent, PodNetwork,
    PodSandbox, PodUid, Seccomp,
};
use kedge_core::sorted::{SortedMap, SortedSet};
use kedge_core::workloads::cni::{Attachment, Verb};
use kedge_core::workloads::groups::{self, Limits};
use kedge_core::workloads::{files, seccomp, spec, users};
use kedge_platform::trees::{self, Removal};
use kedge_platform::workloads::{
    Console, ContainerExit, ContainerId, ContainerOrder, ContainerState, Device, FoundPlace, GroupLimits,
    LogOrder, Notes, Observation, PodFound, PodOrder, PodPlaces, WorkloadError, Workloads, bind_below,
};
use kept::Kept;
use looks::{Found, Look, Looks, Seen, Task, Then};
use network::{Networks, Plugins};
pub use probes::{grpc_answered, http_answered};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Notes stored with a pod.
pub(crate) const NAMESPACE: &str = "namespace";
pub(crate) const NAME: &str = "name";
const NODE_UID: &str = "nodeUID";
const HOST_PID: &str = "hostPID";
const VOLUMES: &str = "volumes";
/// An `Attachment`, before plugins run and after.
const NETWORK: &str = "network";
/// Notes stored with a container.
const IMAGE: &str = "image";
const IMAGE_NAME: &str = "imageName";
const STOP_SIGNAL: &str = "stopSignal";
/// `terminationMessagePolicy`.
const MESSAGE_POLICY: &str = "terminationMessagePolicy";
const FALLS_BACK_TO_LOGS: &str = "FallbackToLogsOnError";
/// A `Health`.
const HEALTH: &str = "health";
/// A `HookNote`.
const HOOK: &str = "hook";

/// Most directories of logs that an inventory reads.
const LOG_ENTRIES: usize = 10_000;
/// Logs of a container's runs that stay: the last one, and the one before, for `kubectl logs --previous`.
const LOGS_KEPT: usize = 2;
/// Longest hosts or resolv.conf of the machine that is copied.
const ETC_BYTES: usize = 256 * 1024;

/// Processes and threads of one pod, unless the configuration sets it: a pod that forks without end must
/// leave some to others.
pub const POD_PROCESSES: i64 = 4096;

/// The machine's directory of devices.
const DEV: &str = "/dev";

/// Where an image's layers are.
pub trait Layers {
    /// The layers of the image with this ID, the topmost first.
    ///
    /// # Errors
    /// A part of it is missing.
    fn layers(&self, image: &str) -> Result<Vec<PathBuf>, String>;
}

/// The performer's knowledge of its node.
#[derive(Debug, Clone)]
pub struct Node {
    /// The control group above all pods'.
    pub pods_group: String,
    pub has_unified_groups: bool,
    /// The lowest OOM score that a container can get.
    pub least_oom_score: i32,
    /// A bit for the number of each capability that no container can be given.
    pub lacking_capabilities: u64,
    pub memory_bytes: u64,
    /// Memory for all pods together; never 0.
    pub allocatable_memory_bytes: u64,
    /// Processes and threads for all pods together (`Board::processes`); `None` if the machine sets no limit.
    pub processes: Option<u64>,
    /// `podPidsLimit`; `None` or below 1 means [`POD_PROCESSES`].
    pub pod_pids_limit: Option<i64>,
    pub volumes: volumes::Places,
    /// `seccomp` of the root directory: profiles that pods name.
    pub seccomp: PathBuf,
    /// `/var/log/pods`.
    pub logs: PathBuf,
    /// `containerLogMaxSize`.
    pub log_max_bytes: u64,
    /// `containerLogMaxFiles`.
    pub log_max_files: u32,
    /// Has the machine's hosts and resolv.conf.
    pub etc: PathBuf,
    pub plugins: Plugins,
    /// A file that is locked while a plugin runs, in a place that a reboot empties.
    pub plugins_lock: PathBuf,
    /// The directory on the disk for records by which networks are undone.
    pub networks: PathBuf,
    /// How paths of pods are looked at.
    pub looks: looks::Places,
    /// `clusterDNS`.
    pub cluster_dns: Vec<String>,
    /// `clusterDomain`.
    pub cluster_domain: String,
}

/// A prepared pod.
#[derive(Debug, Clone)]
struct Prepared {
    shared: spec::Shared,
    volumes: SortedMap<String, PathBuf>,
    logs: PathBuf,
}

/// The action that waits for a pod's network.
#[derive(Debug)]
enum Awaited {
    /// Continue preparing it.
    Attached(Box<PodSandbox>, Box<Attachment>),
    /// Start anew: an earlier try was not finished.
    Undone(Box<PodSandbox>),
    /// Continue removing it.
    Detached { keep_logs: bool },
}

impl Awaited {
    fn command(&self, pod: &PodUid) -> Command {
        match self {
            Self::Attached(..) | Self::Undone(_) => Command::PreparePod(pod.clone()),
            Self::Detached { .. } => Command::RemovePod(pod.clone()),
        }
    }
}

/// The performer, on any board.
pub struct Performer<W, L> {
    workloads: W,
    images: L,
    networks: Networks,
    kept: Kept,
    looks: Looks,
    /// Pods whose network is being made or undone.
    awaited: SortedMap<PodUid, Awaited>,
    node: Node,
    /// Removes volumes on the disk.
    removal: Removal,
    prepared: SortedMap<PodUid, Prepared>,
    /// Starts that have not been answered.
    starting: SortedSet<ContainerId>,
    /// Stops that have not been answered.
    stopping: SortedSet<ContainerId>,
}

/// A command's failure.
type Failed = (FailureReason, String);
/// A command's answer; `None` if it comes later.
type Done = Result<Option<PodEvent>, Failed>;

fn other(error: impl ToString) -> Failed {
    (FailureReason::Other, error.to_string())
}

impl<W: Workloads, L: Layers> Performer<W, L> {
    /// `wake` ends a wait of the board's `observe`.
    pub fn new(workloads: W, images: L, node: Node, wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let (starting, stopping) = (SortedSet::new(), SortedSet::new());
        let removal = Removal::open(&node.volumes.disk);
        let networks = Networks::new(node.plugins.clone(), node.plugins_lock.clone(), wake.clone());
        let looks = Looks::new(node.looks.clone(), wake);
        let kept = Kept::below(&node.networks);
        let (awaited, prepared) = (SortedMap::new(), SortedMap::new());
        Self {
            workloads,
            images,
            networks,
            kept,
            looks,
            awaited,
            node,
            removal,
            prepared,
            starting,
            stopping,
        }
    }

    /// The board's side.
    pub fn workloads(&mut self) -> &mut W {
        &mut self.workloads
    }

    /// Replaces the facts about the machine: crun came later, for example.
    pub fn set_node(&mut self, node: Node) {
        self.node = node;
    }

    /// Everything that exists, before any command.
    pub fn inventory(&mut self) -> PodEvent {
        let found = self.workloads.pods();
        let mut inventory = Inventory { logs: self.logs_found(), ..Inventory::default() };
        let mut kept = self.kept.pods();
        for pod in &found {
            kept.remove(&pod.uid);
        }
        // pods whose records in the run directory were lost, for example by a reboot
        let lost = kept.into_iter().map(|uid| PodFound { uid, order: None });
        for pod in found.into_iter().chain(lost) {
            let Some(uid) = PodUid::new(&pod.uid) else { continue };
            let order = pod.order.filter(|order| self.has_network_of(order));
            let notes = order.as_ref().map(|order| order.notes.clone());
            let notes = notes.or_else(|| self.kept.notes(&uid)).unwrap_or_default();
            let addresses = order.as_ref().and_then(addresses_of);
            let is_taken_up = order.is_some_and(|order| self.take_up(&order).is_ok());
            let note = |name: &str| notes.get(name).cloned().unwrap_or_default();
            inventory.pods.push(pods::PodFound {
                uid,
                namespace: note(NAMESPACE),
                name: note(NAME),
                node_uid: note(NODE_UID),
                network: addresses.filter(|_| is_taken_up).map(|addresses| PodNetwork { addresses }),
            });
        }
        let observed = self.workloads.observe(Duration::ZERO);
        log_links::sweep(&self.node.logs);
        for key in observed.iter().filter_map(|it| key_of(&it.id)) {
            self.link_log(&key);
        }
        inventory.health = observed.iter().filter_map(|it| self.noted(&it.id, HEALTH)).collect();
        inventory.hooks = observed.iter().filter_map(|it| self.noted(&it.id, HOOK)).collect();
        inventory.containers = observed.into_iter().filter_map(|it| self.found(it)).collect();
        PodEvent::Inventory(inventory)
    }

    /// True if the namespace that its plugins ran in exists: a new one would have no network.
    fn has_network_of(&self, order: &PodOrder) -> bool {
        order.host_network || self.workloads.network_of(&order.uid).is_some()
    }

    /// An earlier agent's note about a run.
    fn noted<T: DeserializeOwned>(&self, id: &ContainerId, name: &str) -> Option<(ContainerKey, T)> {
        let noted = kedge_api::read::from_slice(self.workloads.notes(id).get(name)?.as_bytes()).ok()?;
        Some((key_of(id)?, noted))
    }

    fn note(&mut self, key: &ContainerKey, name: &str, value: &impl Serialize) {
        let text = serde_json::to_string(value).unwrap_or_default();
        if let Err(error) = self.workloads.note(&id_of(key), name, &text) {
            log::warn!("the next agent will not know the {name} of container {key}: {error}");
        }
    }

    /// Performs an order to the runtime; `None` if it is another performer's. Most answers are observed
    /// later.
    pub fn perform(&mut self, action: &PodAction) -> Option<Vec<PodEvent>> {
        match action {
            PodAction::NoteHealth { container, health } => {
                self.note(container, HEALTH, health);
                return Some(Vec::new());
            }
            PodAction::NoteHook { container, note } => {
                self.note(container, HOOK, note);
                return Some(Vec::new());
            }
            _ => {}
        }
        let (command, done) = match action {
            PodAction::PreparePod(sandbox) => {
                (Command::PreparePod(sandbox.uid.clone()), self.prepare(sandbox))
            }
            PodAction::UpdateVolumes { pod, volumes } => {
                (Command::UpdateVolumes(pod.clone()), self.update(pod, volumes))
            }
            PodAction::CreateContainer(order) => {
                (Command::CreateContainer(order.key.clone()), self.create(order))
            }
            PodAction::StartContainer(key) => {
                // answered by the next observation of the container, which may come at once
                let id = id_of(key);
                self.starting.insert(id.clone());
                let started = self.workloads.start_container(&id).map_err(other);
                if started.is_err() {
                    self.starting.remove(&id);
                }
                (Command::StartContainer(key.clone()), started.map(|()| None))
            }
            PodAction::StopContainer { container, signal, grace } => {
                let stopped = self.stop(&id_of(container), signal.as_deref(), *grace);
                (Command::StopContainer(container.clone()), stopped.map(|()| None))
            }
            PodAction::RemoveContainer(key) => {
                let removed = self.remove(key).map(|()| Some(PodEvent::ContainerRemoved(key.clone())));
                (Command::RemoveContainer(key.clone()), removed)
            }
            PodAction::RemovePod { pod, keep_logs } => {
                (Command::RemovePod(pod.clone()), self.remove_pod(pod, *keep_logs))
            }
            _ => return None,
        };
        Some(told_of(command, done).into_iter().collect())
    }

    /// Waits for events, no longer than `patience`.
    pub fn observe(&mut self, patience: Duration) -> Vec<PodEvent> {
        let mut events = self.heard();
        let patience = if events.is_empty() { patience } else { Duration::ZERO };
        let observed = self.workloads.observe(patience);
        events.extend(observed.into_iter().filter_map(|observation| self.news(observation)));
        events.extend(self.heard());
        events
    }

    /// The answers of threads.
    fn heard(&mut self) -> Vec<PodEvent> {
        let mut events = self.heard_of_networks();
        events.extend(self.heard_of_looks());
        events
    }

    /// Continues actions that waited for looks at a pod's paths.
    fn heard_of_looks(&mut self) -> Vec<PodEvent> {
        let mut events = Vec::new();
        while let Some(Seen { then, tasks, done, .. }) = self.looks.seen() {
            let (command, done) = match then {
                Then::Prepare(sandbox) => {
                    let done = done.map_err(|why| (FailureReason::Volume, why));
                    (Command::PreparePod(sandbox.uid.clone()), done.and_then(|_| self.prepare_seen(&sandbox)))
                }
                Then::Create(order) => {
                    let done = done.map_err(|why| failure_of_look(&tasks, why));
                    let done = done.and_then(|found| self.create_seen(&order, found));
                    (Command::CreateContainer(order.key.clone()), done.map(|()| None))
                }
            };
            events.extend(told_of(command, done));
        }
        events
    }

    /// Continues with pods whose network is attached, or detached.
    fn heard_of_networks(&mut self) -> Vec<PodEvent> {
        let mut events = Vec::new();
        while let Some(network::Answer { pod, done }) = self.networks.answer() {
            let Some(awaited) = self.awaited.remove(&pod) else { continue };
            let command = awaited.command(&pod);
            let done = match (awaited, done) {
                (Awaited::Attached(sandbox, attachment), Ok(result)) => {
                    self.finish(&sandbox, Some(&attachment.attached(result)))
                }
                (Awaited::Undone(sandbox), Ok(_)) => self.begin_anew(&sandbox),
                (Awaited::Detached { keep_logs }, Ok(_)) => self.remove_rest(&pod, keep_logs),
                (Awaited::Attached(sandbox, _) | Awaited::Undone(sandbox), Err(why)) => {
                    Err(no_network(&sandbox, &why))
                }
                (Awaited::Detached { .. }, Err(why)) => Err((
                    FailureReason::Network,
                    format!("failed to destroy network for sandbox \"{pod}\": {why}"),
                )),
            };
            events.extend(told_of(command, done));
        }
        events
    }

    fn prepare(&mut self, sandbox: &PodSandbox) -> Done {
        let tasks = volumes::looks_at(&sandbox.volumes);
        if tasks.is_empty() {
            return self.prepare_seen(sandbox);
        }
        let then = Then::Prepare(Box::new(sandbox.clone()));
        let (pod, namespace) = (sandbox.uid.clone(), sandbox.namespace.clone());
        self.looks.order(Look { pod, namespace, tasks, then });
        Ok(None)
    }

    /// The host's paths exist.
    fn prepare_seen(&mut self, sandbox: &PodSandbox) -> Done {
        if sandbox.host_network {
            return self.finish(sandbox, None);
        }
        match self.attachment_of(&sandbox.uid) {
            None => self.attach(sandbox),
            Some(attachment)
                if attachment.result.is_some()
                    && self.workloads.network_of(sandbox.uid.as_str()).is_some() =>
            {
                self.finish(sandbox, Some(&attachment))
            }
            // an earlier try failed, or an agent was killed over it, or the namespace is gone
            Some(attachment) => {
                let awaited = Awaited::Undone(Box::new(sandbox.clone()));
                self.order_of_network(&sandbox.uid, Verb::Delete, attachment, awaited)
            }
        }
    }

    /// The plugins' work was undone.
    fn begin_anew(&mut self, sandbox: &PodSandbox) -> Done {
        let dropped = self.workloads.drop_network(sandbox.uid.as_str());
        dropped.map_err(|error| no_network(sandbox, &error.to_string()))?;
        self.attach(sandbox)
    }

    /// Makes the pod's namespace, stores the means to undo the rest, and starts plugins in it.
    fn attach(&mut self, sandbox: &PodSandbox) -> Done {
        let network = self.networks.plugins.network();
        let attachment = network.and_then(|network| Attachment::of(network, sandbox));
        let attachment = attachment.map_err(|why| no_network(sandbox, &why))?;
        self.make(sandbox, Some(&attachment))?;
        let awaited = Awaited::Attached(Box::new(sandbox.clone()), Box::new(attachment.clone()));
        self.order_of_network(&sandbox.uid, Verb::Add, attachment, awaited)
    }

    fn order_of_network(
        &mut self,
        pod: &PodUid,
        verb: Verb,
        attachment: Attachment,
        awaited: Awaited,
    ) -> Done {
        let namespace = self.workloads.network_of(pod.as_str());
        let order = network::Order { pod: pod.clone(), verb, attachment, namespace };
        self.networks.order(order).map_err(|why| (FailureReason::Network, why))?;
        self.awaited.insert(pod.clone(), awaited);
        Ok(None)
    }

    /// The last step: the pod has its network.
    fn finish(&mut self, sandbox: &PodSandbox, attachment: Option<&Attachment>) -> Done {
        self.make(sandbox, attachment)?;
        let addresses = attachment.map_or_else(|| Ok(Vec::new()), Attachment::addresses);
        let addresses = addresses.map_err(|why| no_network(sandbox, &why))?;
        Ok(Some(PodEvent::PodPrepared { pod: sandbox.uid.clone(), network: PodNetwork { addresses } }))
    }

    fn make(&mut self, sandbox: &PodSandbox, attachment: Option<&Attachment>) -> Result<(), Failed> {
        if let Some(attachment) = attachment {
            self.kept.keep(&sandbox.uid, &notes_of(sandbox, Some(attachment)));
        }
        let most_memory = self.node.allocatable_memory_bytes;
        let layers = |image: &str| self.images.layers(image);
        let volumes = self.node.volumes.make(&sandbox.uid, &sandbox.volumes, most_memory, &layers);
        let volumes = volumes.map_err(|why| (FailureReason::Volume, why))?;
        let order = self.order(sandbox, &volumes, attachment);
        self.take_up(&order).map_err(other)
    }

    /// Replaces files while the pod's containers read them.
    fn update(&self, pod: &PodUid, volumes: &[pods::Volume]) -> Done {
        if !self.prepared.contains_key(pod) {
            return Err(not_prepared(pod));
        }
        let most_memory = self.node.allocatable_memory_bytes;
        let layers = |image: &str| self.images.layers(image);
        let made = self.node.volumes.make(pod, volumes, most_memory, &layers);
        made.map_err(|why| (FailureReason::Volume, why))?;
        Ok(Some(PodEvent::VolumesUpdated { pod: pod.clone() }))
    }

    /// The pod's present or intended attachment; if its records are unreadable, one that undoes it by its ID.
    fn attachment_of(&self, pod: &PodUid) -> Option<Attachment> {
        let found = self.workloads.pods().into_iter().find(|found| found.uid == pod.as_str());
        let attachment = found.and_then(|found| attachment_in(&found.order?.notes));
        attachment.or_else(|| {
            let kept = self.kept.notes(pod)?;
            let lost = || Some(Attachment::lost(self.networks.plugins.network().ok()?, pod));
            attachment_in(&kept).or_else(lost)
        })
    }

    fn order(
        &self,
        sandbox: &PodSandbox,
        volumes: &SortedMap<String, PathBuf>,
        attachment: Option<&Attachment>,
    ) -> PodOrder {
        let root = &self.node.pods_group;
        let own = groups::pod_group(root, sandbox.qos, &sandbox.uid);
        let mut notes = notes_of(sandbox, attachment);
        notes.insert(HOST_PID.into(), sandbox.host_pid.to_string());
        notes.insert(VOLUMES.into(), serde_json::to_string(volumes).unwrap_or_default());
        let addresses = attachment.and_then(|attachment| attachment.addresses().ok()).unwrap_or_default();
        PodOrder {
            uid: sandbox.uid.to_string(),
            hostname: sandbox.hostname.clone(),
            host_network: sandbox.host_network,
            host_ipc: sandbox.host_ipc,
            share_process_namespace: sandbox.share_process_namespace,
            groups: vec![
                (root.clone(), self.limits_of_all()),
                (groups::class_group(root, sandbox.qos), limits(&groups::class_limits(sandbox.qos))),
                (own, self.limits_of_one(&groups::pod_limits(sandbox.qos, &sandbox.resources))),
            ],
            files: self.small_files(sandbox, &addresses),
            notes,
        }
    }

    /// Limits that keep pods without limits of their own from using up the machine, and the agent with it.
    fn limits_of_all(&self) -> GroupLimits {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        GroupLimits {
            memory: Some(signed(self.node.allocatable_memory_bytes)),
            pids: self.node.processes.map(signed),
            ..GroupLimits::default()
        }
    }

    fn limits_of_one(&self, own: &Limits) -> GroupLimits {
        let pids = self.node.pod_pids_limit.filter(|limit| *limit > 0).unwrap_or(POD_PROCESSES);
        GroupLimits { pids: Some(pids), ..limits(own) }
    }

    fn small_files(&self, sandbox: &PodSandbox, addresses: &[String]) -> BTreeMap<String, String> {
        let machine = |name: &str| {
            let bytes = kedge_platform::linux::read_named_file(&self.node.etc.join(name), ETC_BYTES)
                .unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let resolver = files::Resolver {
            cluster_dns: self.node.cluster_dns.clone(),
            cluster_domain: self.node.cluster_domain.clone(),
            machine: machine("resolv.conf"),
        };
        let hosts = sandbox.host_network.then(|| machine("hosts"));
        let resolv_conf =
            files::resolv_conf(&sandbox.dns, &sandbox.namespace, sandbox.host_network, &resolver);
        [
            ("hosts", files::hosts(hosts.as_deref(), addresses, &sandbox.hostname, &sandbox.host_aliases)),
            ("resolv.conf", resolv_conf),
            ("hostname", format!("{}\n", sandbox.hostname)),
        ]
        .map(|(name, text)| (name.to_owned(), text))
        .into()
    }

    /// Prepares the pod, or finds that it is prepared, and remembers the facts that its containers need.
    fn take_up(&mut self, order: &PodOrder) -> Result<(), WorkloadError> {
        let places = self.workloads.prepare_pod(order)?;
        let note = |name: &str| order.notes.get(name).map(String::as_str).unwrap_or_default();
        let uid = PodUid::new(&order.uid)
            .ok_or_else(|| WorkloadError::Refused(format!("{:?} is not a pod's UID", order.uid)))?;
        let directory = format!("{}_{}_{uid}", note(NAMESPACE), note(NAME));
        let prepared = Prepared {
            shared: shared(order, &places, note(HOST_PID) == "true"),
            volumes: kedge_api::read::from_slice(note(VOLUMES).as_bytes()).unwrap_or_default(),
            logs: self.node.logs.join(directory),
        };
        self.prepared.insert(uid, prepared);
        Ok(())
    }

    fn create(&mut self, order: &pods::ContainerOrder) -> Done {
        let tasks = self.looks_for(order)?;
        if tasks.is_empty() {
            return self.create_seen(order, Vec::new()).map(|()| None);
        }
        let then = Then::Create(Box::new(order.clone()));
        let (pod, namespace) = (order.key.pod.clone(), order.namespace.clone());
        self.looks.order(Look { pod, namespace, tasks, then });
        Ok(None)
    }

    /// The looks at the machine that the container needs before it is made: all paths outside of our own
    /// directories.
    fn looks_for(&self, order: &pods::ContainerOrder) -> Result<Vec<Task>, Failed> {
        let prepared = self.prepared_of(&order.key.pod)?;
        let own = &self.node.volumes;
        let parts = own.parts(&order.key, &order.mounts).map_err(|why| (FailureReason::Config, why))?;
        let mut tasks = Vec::new();
        for (index, mount) in order.mounts.iter().enumerate() {
            let Some(path) = prepared.volumes.get(&mount.volume) else { continue };
            if own.is_own(&order.key.pod, &mount.volume, path) {
                continue;
            }
            tasks.push(match parts.get(&index) {
                Some(target) => volumes::part_of(path, (&order.key, mount), target),
                None => Task::Path {
                    volume: mount.volume.clone(),
                    path: path.display().to_string(),
                    kind: looks::ANY_THING.into(),
                },
            });
        }
        if let Seccomp::Localhost(name) = &order.security.seccomp {
            // a link there leads wherever the machine's owner wants
            tasks.push(Task::Profile { path: self.node.seccomp.join(name), most: seccomp::PROFILE_BYTES });
        }
        tasks.extend(devices_wanted(&order.security)?);
        Ok(tasks)
    }

    fn prepared_of(&self, pod: &PodUid) -> Result<&Prepared, Failed> {
        self.prepared.get(pod).ok_or_else(|| not_prepared(pod))
    }

    /// The looks' results, one by one.
    fn create_seen(&mut self, order: &pods::ContainerOrder, found: Vec<Found>) -> Result<(), Failed> {
        let pod = &order.key.pod;
        let prepared = self.prepared.get(pod).ok_or_else(|| not_prepared(pod))?;
        let layers = self.images.layers(&order.image.id).map_err(|why| (FailureReason::ImageInspect, why))?;
        let mut granted = granted(order, found)?;
        granted.lacking = self.node.lacking_capabilities;
        if !order.termination_message.path.is_empty() {
            let file = messages::make(&self.node.volumes, &order.key).map_err(other)?;
            granted.message = Some(file.display().to_string());
        }
        let machine = spec::Machine {
            pods_group: self.node.pods_group.clone(),
            has_unified_groups: self.node.has_unified_groups,
            least_oom_score: self.node.least_oom_score,
            memory_bytes: self.node.memory_bytes,
        };
        // kept with the container, because a later agent has no other memory of them
        let notes = [
            (IMAGE, order.image.reference.clone()),
            (IMAGE_NAME, order.image_name.clone()),
            (STOP_SIGNAL, order.stop_signal.clone()),
            (
                MESSAGE_POLICY,
                if order.termination_message.falls_back_to_logs { FALLS_BACK_TO_LOGS } else { "File" }.into(),
            ),
        ];
        let places = order.image.config.places().map_err(|why| (FailureReason::Config, why))?;
        let container = ContainerOrder {
            id: id_of(&order.key),
            layers,
            places: places.into_iter().map(Into::into).collect(),
            group: groups::container_group(&machine.pods_group, order.qos, &order.key),
            log: LogOrder {
                path: log_of(prepared, &order.key),
                max_bytes: self.node.log_max_bytes,
                max_files: self.node.log_max_files,
            },
            console: Console {
                stdin: order.console.stdin,
                stdin_once: order.console.stdin_once,
                tty: order.console.tty,
            },
            notes: notes.map(|(name, value)| (name.to_owned(), value)).into(),
        };
        let parts = self.bind_own_parts(order, prepared).map_err(|why| (FailureReason::Config, why))?;
        let place = |mount: &pods::Mount| {
            let index = order.mounts.iter().position(|other| other == mount)?;
            let place = parts.get(&index).or_else(|| prepared.volumes.get(&mount.volume));
            place.map(|path| path.display().to_string())
        };
        let config = |image: &kedge_platform::workloads::UserFiles, found: &[FoundPlace]| {
            let user =
                users::user_of(&order.security, &order.image.config.user, &image.passwd, &image.group)?;
            let shown =
                |(path, source): &FoundPlace| (path.display().to_string(), source.display().to_string());
            let granted = spec::Granted { volumes: found.iter().map(shown).collect(), ..granted.clone() };
            spec::config(order, &user, &prepared.shared, &machine, &granted, &place)
        };
        let created = self.workloads.create_container(&container, &config);
        created.map_err(|error| match error {
            WorkloadError::Refused(why) => (FailureReason::Config, why),
            WorkloadError::Unprepared(why) => (FailureReason::Unprepared, why),
            error => other(error),
        })?;
        self.link_log(&order.key);
        Ok(())
    }

    fn link_log(&self, key: &ContainerKey) {
        if let Some(prepared) = self.prepared.get(&key.pod) {
            log_links::make(&prepared.logs, key, &log_of(prepared, key));
        }
    }

    /// Binds parts of volumes; the look has bound those of the host.
    fn bind_own_parts(
        &self,
        order: &pods::ContainerOrder,
        prepared: &Prepared,
    ) -> Result<SortedMap<usize, PathBuf>, String> {
        let own = &self.node.volumes;
        let mut parts = SortedMap::new();
        for (index, mount) in order.mounts.iter().enumerate().filter(|(_, mount)| !mount.sub_path.is_empty())
        {
            let Some(volume) = prepared.volumes.get(&mount.volume) else { continue };
            let target = own.part(&order.key, index);
            if own.is_own(&order.key.pod, &mount.volume, volume) {
                let bound = bind_below(volume, Path::new(&mount.sub_path), &target);
                bound.map_err(|error| volumes::no_part(&order.key, mount, &error.to_string()))?;
            }
            parts.insert(index, target);
        }
        Ok(parts)
    }

    fn stop(&mut self, id: &ContainerId, signal: Option<&str>, grace: Duration) -> Result<(), Failed> {
        let noted = self.workloads.notes(id).remove(STOP_SIGNAL).unwrap_or_default();
        // an unreadable signal must not keep a container running
        let signal = signals::number(signal.unwrap_or(&noted)).unwrap_or(signals::TERM);
        self.stopping.insert(id.clone());
        self.workloads.stop_container(id, signal, grace).map_err(|error| {
            self.stopping.remove(id);
            other(error)
        })
    }

    fn remove(&mut self, key: &ContainerKey) -> Result<(), Failed> {
        let id = id_of(key);
        self.workloads.remove_container(&id).map_err(other)?;
        self.node.volumes.unbind_parts(key).map_err(other)?;
        messages::remove(&self.node.volumes, key).map_err(other)?;
        self.starting.remove(&id);
        self.stopping.remove(&id);
        if let Some(prepared) = self.prepared.get(&key.pod) {
            log_links::remove(&prepared.logs, key);
            keep_latest_logs(&prepared.logs.join(&key.container));
        }
        Ok(())
    }

    fn remove_pod(&mut self, pod: &PodUid, keep_logs: bool) -> Done {
        if self.workloads.has_containers(pod.as_str()) {
            return Err(other(format!("pod {pod} still has containers, which may use its volumes")));
        }
        match self.attachment_of(pod) {
            Some(attachment) => {
                self.order_of_network(pod, Verb::Delete, attachment, Awaited::Detached { keep_logs })
            }
            None => self.remove_rest(pod, keep_logs),
        }
    }

    /// The pod's network is gone.
    fn remove_rest(&mut self, pod: &PodUid, keep_logs: bool) -> Done {
        let known = self.workloads.pods().into_iter().find(|found| found.uid == pod.as_str());
        let notes = known.and_then(|found| found.order).map(|order| order.notes).unwrap_or_default();
        // volumes first: without the pod's record nobody would look for them
        self.node.volumes.remove(pod, &mut self.removal).map_err(|why| (FailureReason::Volume, why))?;
        self.workloads.remove_pod(pod.as_str()).map_err(other)?;
        self.kept.forget(pod);
        let logs = self.prepared.remove(pod).map(|prepared| prepared.logs).or_else(|| {
            let (namespace, name) = (notes.get(NAMESPACE)?, notes.get(NAME)?);
            Some(self.node.logs.join(format!("{namespace}_{name}_{pod}")))
        });
        let logs = logs.or_else(|| self.logs_of(pod));
        if let Some(logs) = logs.filter(|_| !keep_logs)
            && let Err(error) = trees::remove(&logs)
        {
            log::warn!("remove the logs in {}: {error}", logs.display());
        }
        Ok(Some(PodEvent::PodRemoved { pod: pod.clone() }))
    }

    /// A container at the time of the inventory.
    fn found(&self, Observation { id, state }: Observation) -> Option<pods::Observation> {
        let state = match state {
            // it can be started again
            ContainerState::Exited(exit) if exit.error.is_some() => pods::ContainerState::Created,
            // its start is repeated, and answered
            ContainerState::Created | ContainerState::Starting => pods::ContainerState::Created,
            state => told(state)?,
        };
        self.observation(&id, state)
    }

    fn news(&mut self, Observation { id, state }: Observation) -> Option<PodEvent> {
        let has_ended = matches!(state, ContainerState::Exited(_) | ContainerState::Lost(_));
        let was_starting = match state {
            ContainerState::Created | ContainerState::Starting => false,
            _ => self.starting.remove(&id),
        };
        let was_stopping = if has_ended { self.stopping.remove(&id) } else { self.stopping.contains(&id) };
        let state = match state {
            ContainerState::Exited(ContainerExit { error: Some(message), .. })
                if was_starting && !was_stopping =>
            {
                let failure = Failure { reason: FailureReason::Other, message };
                return Some(PodEvent::Failed { command: Command::StartContainer(key_of(&id)?), failure });
            }
            // a container that was stopped before it started
            ContainerState::Created if was_stopping => {
                self.stopping.remove(&id);
                pods::ContainerState::Lost(String::new())
            }
            state => told(state)?,
        };
        self.observation(&id, state).map(PodEvent::Observed)
    }

    fn observation(&self, id: &ContainerId, mut state: pods::ContainerState) -> Option<pods::Observation> {
        let mut notes = self.workloads.notes(id);
        let mut note = |name: &str| notes.remove(name).unwrap_or_default();
        let (image_reference, image_name) = (note(IMAGE), note(IMAGE_NAME));
        let container = key_of(id)?;
        if let pods::ContainerState::Exited(exit) = &mut state {
            exit.message =
                self.message_of(&container, exit.code != 0 && note(MESSAGE_POLICY) == FALLS_BACK_TO_LOGS);
        }
        Some(pods::Observation { container, state, image_name, image_reference })
    }

    /// The message of a run that has ended.
    fn message_of(&self, key: &ContainerKey, falls_back_to_logs: bool) -> String {
        let message = messages::read(&self.node.volumes, key);
        match self.prepared.get(&key.pod).filter(|_| message.is_empty() && falls_back_to_logs) {
            Some(prepared) => messages::end_of_log(&log_of(prepared, key)),
            None => message,
        }
    }

    /// The logs of a pod of which only the logs are left.
    fn logs_of(&self, pod: &PodUid) -> Option<PathBuf> {
        let is_its = |name: &String| pod_of_logs(name).as_ref() == Some(pod);
        names_in(&self.node.logs).into_iter().find(is_its).map(|name| self.node.logs.join(name))
    }

    /// The highest attempt with a log, by pod and container.
    fn logs_found(&self) -> SortedMap<PodUid, SortedMap<String, u32>> {
        let mut found: SortedMap<PodUid, SortedMap<String, u32>> = SortedMap::new();
        for pod in names_in(&self.node.logs) {
            let Some(uid) = pod_of_logs(&pod) else { continue };
            let directory = self.node.logs.join(&pod);
            for container in names_in(&directory) {
                let attempts = names_in(&directory.join(&container));
                let highest = attempts.iter().filter_map(|name| attempt_of(name)).max();
                if let Some(highest) = highest {
                    found.entry(uid.clone()).or_default().insert(container, highest);
                }
            }
        }
        found
    }
}

/// The pod whose logs are in a directory of this name, `NAMESPACE_NAME_UID`. A configuration may set a
/// directory where others keep theirs, and the logs of a removed pod are deleted: a directory with another
/// form of name is not ours.
fn pod_of_logs(directory: &str) -> Option<PodUid> {
    let mut parts = directory.split('_');
    let (namespace, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let is_of_pod = parts.next().is_none() && names::is_subdomain(namespace) && names::is_subdomain(name);
    PodUid::new(uid).filter(|_| is_of_pod)
}

fn log_of(prepared: &Prepared, key: &ContainerKey) -> PathBuf {
    prepared.logs.join(&key.container).join(format!("{}.log", key.attempt))
}

/// The event of an answer; `None` if it comes later.
fn told_of(command: Command, done: Done) -> Option<PodEvent> {
    done.unwrap_or_else(|(reason, message)| {
        Some(PodEvent::Failed { command, failure: Failure { reason, message } })
    })
}

/// A failure with upstream's text.
fn no_network(sandbox: &PodSandbox, why: &str) -> Failed {
    (FailureReason::Network, format!("failed to setup network for sandbox \"{}\": {why}", sandbox.uid))
}

fn attachment_in(notes: &Notes) -> Option<Attachment> {
    kedge_api::read::from_slice(notes.get(NETWORK)?.as_bytes()).ok()
}

/// The notes by which a later agent can undo the network of a pod.
fn notes_of(sandbox: &PodSandbox, attachment: Option<&Attachment>) -> Notes {
    let network = attachment.and_then(|attachment| serde_json::to_string(attachment).ok());
    let notes = [
        (NAMESPACE, sandbox.namespace.clone()),
        (NAME, sandbox.name.clone()),
        (NODE_UID, sandbox.node_uid.clone()),
    ];
    let notes = notes.into_iter().chain(network.map(|network| (NETWORK, network)));
    notes.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The addresses of a pod that has its network; `None` if it has no network yet.
fn addresses_of(order: &PodOrder) -> Option<Vec<String>> {
    if order.host_network {
        return Some(Vec::new());
    }
    attachment_in(&order.notes).filter(|attachment| attachment.result.is_some())?.addresses().ok()
}

fn limits(limits: &Limits) -> GroupLimits {
    let signed = |value: Option<u64>| value.map(|value| i64::try_from(value).unwrap_or(i64::MAX));
    GroupLimits {
        cpu_shares: limits.cpu_shares,
        cpu_quota: signed(limits.cpu_quota),
        cpu_period: limits.cpu_quota.map(|_| groups::PERIOD),
        memory: signed(limits.memory_bytes),
        pids: None,
    }
}

fn shared(order: &PodOrder, places: &PodPlaces, host_pid: bool) -> spec::Shared {
    let text = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    spec::Shared {
        hostname: order.hostname.clone(),
        host_pid,
        network: text(&places.network),
        uts: text(&places.uts),
        ipc: text(&places.ipc),
        pid: text(&places.pid),
        shm: places.shm.display().to_string(),
        files: places.files.display().to_string(),
    }
}

fn not_prepared(pod: &PodUid) -> Failed {
    (FailureReason::Unprepared, format!("pod {pod} is not prepared"))
}

/// The looks for the paths of these device names; a container without one of its devices would run, and not
/// work.
fn devices_wanted(security: &pods::Security) -> Result<Vec<Task>, Failed> {
    if security.is_privileged {
        return Ok(vec![Task::AllDevices { directory: DEV.into() }]);
    }
    let mut tasks = Vec::new();
    for (name, paths) in &security.devices {
        if paths.is_empty() {
            let why = "kedge.devices of the node's configuration does not have it";
            return Err(other(format!("kedge.dev/{name}: {why}")));
        }
        tasks.extend(paths.iter().map(|path| Task::Device { name: name.clone(), path: path.clone() }));
    }
    Ok(tasks)
}

/// The machine's objects that the order names, from the results of the looks.
fn granted(order: &pods::ContainerOrder, found: Vec<Found>) -> Result<spec::Granted, Failed> {
    let (mut devices, mut profile) = (Vec::<Device>::new(), None);
    for found in found {
        match found {
            Found::Nothing => {}
            Found::Profile(text) => profile = Some(text),
            Found::Devices(found) => {
                for device in found {
                    if !devices.contains(&device) {
                        devices.push(device);
                    }
                }
            }
        }
    }
    let profile = match (&order.security.seccomp, profile) {
        (Seccomp::Localhost(name), Some(text)) => {
            let read = seccomp::of_file(text.as_bytes());
            Some(read.map_err(|why| other(format!("cannot load seccomp profile {name:?}: {why}")))?)
        }
        _ => None,
    };
    let devices = devices.into_iter().map(device_told).collect();
    Ok(spec::Granted { devices, profile, ..spec::Granted::default() })
}

/// Upstream's reason for a failed look before the creation.
fn failure_of_look(tasks: &[Task], why: String) -> Failed {
    match tasks.iter().any(|task| task.is_part(&why)) {
        true => (FailureReason::Config, why),
        false => other(why),
    }
}

/// A device as core's type.
fn device_told(device: Device) -> spec::Device {
    let Device { path, is_block, numbers: (major, minor), mode, uid, gid } = device;
    spec::Device { path, is_block, major, minor, mode, uid, gid }
}

fn id_of(key: &ContainerKey) -> ContainerId {
    ContainerId { pod: key.pod.to_string(), name: key.container.clone(), attempt: key.attempt }
}

fn key_of(id: &ContainerId) -> Option<ContainerKey> {
    Some(ContainerKey { pod: PodUid::new(&id.pod)?, container: id.name.clone(), attempt: id.attempt })
}

/// A state as core's type; `None` if core does not wait for it.
fn told(state: ContainerState) -> Option<pods::ContainerState> {
    Some(match state {
        ContainerState::Created => pods::ContainerState::Created,
        ContainerState::Starting => return None,
        ContainerState::Running { pid, started } => pods::ContainerState::Running {
            pid: u32::try_from(pid).unwrap_or(0),
            started: Timestamp::from_micros(started),
        },
        ContainerState::Exited(exit) => pods::ContainerState::Exited(pods::Exit {
            code: exit.exit_code,
            signal: exit.signal,
            oom_killed: exit.oom_killed,
            started: exit.started_at.map(Timestamp::from_micros),
            finished: Some(Timestamp::from_micros(exit.finished_at)),
            message: String::new(),
        }),
        ContainerState::Lost(exit) => pods::ContainerState::Lost(exit.why.unwrap_or_default()),
    })
}

fn names_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().take(LOG_ENTRIES).filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// `3.log`, `3.log.1`.
fn attempt_of(name: &str) -> Option<u32> {
    let (attempt, rest) = name.split_once('.')?;
    attempt.parse().ok().filter(|_| rest == "log" || rest.starts_with("log."))
}

fn keep_latest_logs(directory: &Path) {
    let files = names_in(directory);
    let attempts: SortedSet<u32> = files.iter().filter_map(|name| attempt_of(name)).collect();
    let Some(oldest) = attempts.iter().rev().nth(LOGS_KEPT - 1) else { return };
    for name in files.iter().filter(|name| attempt_of(name).is_some_and(|attempt| attempt < *oldest)) {
        let path = directory.join(name);
        if let Err(error) = trees::remove(&path) {
            log::warn!("remove the old log {}: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests;
