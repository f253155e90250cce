//! Random walks over the life of pods: one node's decisions against a runtime, a disk and an API server that
//! fail, with crashes of the agent and power cuts between any two steps.
//!
//! Owns: the fakes, the promises that must hold after each step, and those that must hold when everything
//! works again. The walk of a seed is the same every time; `KEDGE_SEED=N` walks one. Leaves to others: the
//! words of statuses and events (unit tests).

#![allow(clippy::unwrap_used, reason = "the fakes know what they hold; a surprise must end the test")]

use kedge_api::Timestamp;
use kedge_core::kubelet::Signal;
use kedge_core::pods::*;
use kedge_core::sorted::SortedMap;
use kedge_core::{Answer, Now};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Walks, and steps of each: some 5 s of a debug build together.
const WALKS: u64 = 250;
/// Further walks, which once broke a promise.
const FOUND: [u64; 8] = [418, 691, 707, 1013, 1448, 1937, 2084, 3253];
/// Walks within which each lie must be noticed.
const LIE_WALKS: u64 = 100;
const STEPS: usize = 260;
const NODE: &str = "edge";
/// Lifetime of a service account's token.
const TOKEN_LIFE: Duration = Duration::from_secs(600);
/// After contact for this long, twice the longest back-off, a node must have everything that it wants.
const SETTLED: Duration = Duration::from_secs(600);
/// A node that has ordered nothing for this long is at rest.
const REST: Duration = Duration::from_secs(1800);
/// The volume that an API server adds, with a token.
const TOKENS: &str = "kube-api-access-x";
/// The image of static pods with policy OnFailure.
const JOB: &str = "job:1";

/// A false report of the world to the node: an invariant must notice each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// A probe that passed is reported as failed.
    PassedIsFailed,
    /// A token expires after half of the lifetime that was reported.
    TokenEndsEarly,
    /// One part of an edited object is reported in its old state.
    ObjectInParts,
    /// Pressure is reported although it has passed.
    PressureIsOver,
    /// The node does not learn that a pod is critical.
    CriticalIsHidden,
    /// The server counts restarts that never happened.
    RestartsAreMore,
    /// The server patches any version, whatever version the patch requires.
    VersionIsIgnored,
}

impl Lie {
    const ALL: [(Self, &str); 7] = [
        (Self::PassedIsFailed, "invariant: no container is stopped that nobody asked to stop"),
        (Self::TokenEndsEarly, "invariant: no token expires in a running pod with contact"),
        (Self::ObjectInParts, "invariant: the files of a volume are of one edit"),
        (Self::PressureIsOver, "invariant: no pod is evicted after the pressure passed"),
        (Self::CriticalIsHidden, "invariant: no critical pod is evicted"),
        (Self::RestartsAreMore, "invariant: restarts are never taken back"),
        (Self::VersionIsIgnored, "invariant: a time of a status stays while what it is of does"),
    ];
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }

    fn one_in(&mut self, odds: usize) -> bool {
        self.below(odds) == 0
    }
}

/// The runtime: its pods and containers, and the commands it has not performed yet.
#[derive(Default)]
struct Runtime {
    pods: BTreeMap<PodUid, PodFound>,
    containers: BTreeMap<ContainerKey, Observation>,
    images: BTreeSet<String>,
    logs: SortedMap<PodUid, SortedMap<String, u32>>,
    health: SortedMap<ContainerKey, Health>,
    hook_notes: SortedMap<ContainerKey, HookNote>,
    /// The files of volumes, by pod and name.
    files: BTreeMap<(PodUid, String), Vec<VolumeFile>>,
    /// The hooks that have run, by run of a container.
    hooks: BTreeSet<(ContainerKey, HookKind)>,
    queue: Vec<PodAction>,
    /// Every key that was created, with the pod's namespace and name then.
    used: BTreeMap<ContainerKey, (String, String)>,
}

#[derive(Default)]
struct Disk {
    files: BTreeMap<DesiredFile, Vec<u8>>,
    queue: VecDeque<(DesiredFile, Option<Vec<u8>>)>,
    /// A copy of an object could not be written: it may be lost.
    lost_copy: bool,
    /// The disk could not be read, and is to be read again.
    is_read_again: bool,
}

struct Api {
    node_uid: String,
    objects: BTreeMap<(String, String), Value>,
    version: u64,
    made: u64,
    is_online: bool,
    /// Events that the agent's watch has not delivered yet. `None`: the agent must list first.
    watch: Option<VecDeque<PodEvent>>,
    requests: VecDeque<PodAction>,
    /// Patches of an agent that was killed: they arrive later, before those of the next one.
    late: VecDeque<PodAction>,
    /// Pods that killed agents rejected or evicted, by decisions that were judged when they were made.
    late_rejections: BTreeSet<String>,
    /// The ConfigMap `m`: `None` if it does not exist, 0 if it lacks the key.
    map: Option<u64>,
    /// Whether there is a Secret `s`.
    has_secret: bool,
}

impl Api {
    fn read(&self, kind: ObjectKind, lie: Option<Lie>) -> ObjectRead {
        match (kind, self.map) {
            (ObjectKind::Secret, _) if self.has_secret => ObjectRead::Found(json!({"data": {"k": "aGk="}})),
            (ObjectKind::ConfigMap, Some(0)) => ObjectRead::Found(json!({"data": {"other": "x"}})),
            (ObjectKind::ConfigMap, Some(version)) => {
                let other = if lie == Some(Lie::ObjectInParts) { version + 1 } else { version };
                ObjectRead::Found(json!({"data": {"k": format!("v{version}"), "l": format!("v{other}")}}))
            }
            _ => ObjectRead::Missing,
        }
    }
}

/// The wishes of users and the API server, whether or not the node knows of them.
#[derive(Default)]
struct Wishes {
    /// Pods that may be stopped: deleted, superseded, released, or their file was removed.
    ended: BTreeSet<String>,
    /// Pods that somebody other than the node ended.
    failed: BTreeSet<String>,
    /// Pods whose image was changed.
    edited: BTreeSet<String>,
    released: bool,
    held: bool,
    /// Every pod that the API server had: name, UID, Node.
    born: Vec<(String, String, String)>,
    /// Runs whose postStart hook failed.
    failed_hooks: BTreeSet<ContainerKey>,
    /// Pods that are critical.
    critical: BTreeSet<String>,
    /// Pods that want the one port of the host.
    ports: BTreeSet<String>,
    /// Static pods with policy OnFailure whose container ended with 0.
    done: BTreeSet<PodUid>,
}

struct World {
    random: Random,
    lie: Option<Lie>,
    seed: u64,
    now: Duration,
    core: Pods,
    runtime: Runtime,
    disk: Disk,
    api: Api,
    wishes: Wishes,
    files: BTreeMap<String, String>,
    /// The pressure that evicts pods, as last reported to the agent.
    pressing: Option<Pressing>,
    /// Pods that the node rejected or evicted, as it reports or as their records say: each decision was
    /// judged when it was made.
    decided: BTreeSet<String>,
    /// Consecutive failures of each probe that were reported to this agent.
    failures: BTreeMap<ProbeKey, u32>,
    /// When something other than a probe was last ordered.
    busy: Duration,
    /// Whether faults happen.
    is_rough: bool,
    /// Since when everything works, including the API server.
    has_contact: Option<Duration>,
    trace: VecDeque<String>,
}

fn exit(code: i32, signal: Option<i32>) -> ContainerState {
    ContainerState::Exited(Exit {
        code,
        signal,
        oom_killed: signal == Some(9),
        started: None,
        finished: None,
        message: String::new(),
    })
}

fn is_live(state: &ContainerState) -> bool {
    matches!(state, ContainerState::Running { .. } | ContainerState::Unknown(_))
}

impl World {
    fn new(seed: u64, lie: Option<Lie>) -> Self {
        let api = Api {
            node_uid: "node-1".into(),
            objects: BTreeMap::new(),
            version: 1,
            made: 0,
            is_online: true,
            watch: None,
            requests: VecDeque::new(),
            late: VecDeque::new(),
            late_rejections: BTreeSet::new(),
            map: Some(1),
            has_secret: true,
        };
        let mut world = Self {
            random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            seed,
            lie,
            now: Duration::from_secs(1),
            core: Pods::new(NODE),
            runtime: Runtime::default(),
            disk: Disk::default(),
            api,
            wishes: Wishes::default(),
            files: BTreeMap::new(),
            pressing: None,
            decided: BTreeSet::new(),
            failures: BTreeMap::new(),
            busy: Duration::ZERO,
            is_rough: true,
            has_contact: None,
            trace: VecDeque::new(),
        };
        world.start_agent();
        world
    }

    #[track_caller]
    fn must(&self, holds: bool, what: &str) {
        if !holds {
            let trace: Vec<&str> = self.trace.iter().map(String::as_str).collect();
            panic!("seed {}: {what}\n{}", self.seed, trace.join("\n"));
        }
    }

    fn note(&mut self, text: String) {
        if self.trace.len() == 60 {
            self.trace.pop_front();
        }
        self.trace.push_back(text);
    }

    fn now(&self) -> Now {
        let micros = i64::try_from(self.now.as_micros()).unwrap();
        Now { mono: self.now, wall: Timestamp::from_micros(micros) }
    }

    fn tell(&mut self, event: PodEvent) {
        let text = format!("{:>6.1} -> {event:?}", self.now.as_secs_f64());
        self.note(text.chars().take(1200).collect());
        self.judge_tokens();
        let mut actions = vec![];
        self.core.handle(self.now(), event, &mut actions);
        self.judge_decisions();
        for action in actions {
            self.order(action);
        }
    }

    /// Takes an action; judges here whether it is allowed.
    fn order(&mut self, action: PodAction) {
        if !matches!(action, PodAction::RecordEvent(_) | PodAction::Log(..)) {
            let text = format!("       <- {action:?}");
            self.note(text.chars().take(1200).collect());
        }
        // actions that are repeated while all is well
        let is_usual = matches!(
            action,
            PodAction::RunProbe(_)
                | PodAction::RecordEvent(_)
                | PodAction::RequestToken(_)
                | PodAction::UpdateVolumes { .. }
        );
        if !is_usual {
            self.busy = self.now;
        }
        match &action {
            PodAction::RunProbe(_) => {
                self.must(!self.wishes.held, "invariant: while pods are held nothing is probed");
            }
            PodAction::CreateContainer(order) => self.judge_create(order),
            PodAction::StartContainer(key) => self.judge_start(key),
            PodAction::StopContainer { container, .. } => self.judge_stop(&container.clone()),
            PodAction::PreparePod(_) | PodAction::RemovePod { .. } => {
                self.must(!self.wishes.held, "invariant: while pods are held nothing is started or stopped");
            }
            _ => {}
        }
        match action {
            PodAction::SaveDesired { file, content } => self.disk.queue.push_back((file, content)),
            PodAction::ReadDesired => self.disk.is_read_again = true,
            PodAction::ListPods => self.api.watch = None,
            PodAction::ReadNode => self.tell(PodEvent::NodeRead),
            PodAction::PatchPodStatus { .. }
            | PodAction::DeletePod(_)
            | PodAction::CreateMirrorPod { .. }
            | PodAction::ReadObject(_)
            | PodAction::RequestToken(_) => self.api.requests.push_back(action),
            PodAction::RecordEvent(_)
            | PodAction::WarnOfNode { .. }
            | PodAction::KeepAside(_)
            | PodAction::Log(..)
            | PodAction::LookAtHost => {}
            command => self.runtime.queue.push(command),
        }
    }

    /// Judges the node's latest decisions about pods, before they are recorded or reported.
    fn judge_decisions(&mut self) {
        let pods = self.core.report();
        for pod in &pods {
            let Some(why) = pod.rejected.as_deref() else { continue };
            let uid = pod.uid.as_str();
            if !self.decided.insert(uid.to_owned()) {
                continue;
            }
            if why.starts_with("NodePorts: ") {
                // only while another pod, which is not ending, has the port
                let mut others = pods.iter().filter(|other| self.wishes.ports.contains(other.uid.as_str()));
                let stays = |other: &PodReport| !other.is_ending && other.rejected.is_none();
                let has_cause = others.any(|other| other.uid != pod.uid && stays(other));
                self.must(has_cause, "invariant: no pod is rejected for what a pod has that ends");
            }
            if why.starts_with("Evicted: ") {
                self.must(self.pressing.is_some(), "invariant: no pod is evicted after the pressure passed");
                self.must(!self.wishes.held, "invariant: while pods are held none is evicted");
                let is_critical = pod.origin == "static" || self.wishes.critical.contains(uid);
                self.must(!is_critical, "invariant: no critical pod is evicted");
                self.wishes.ended.insert(uid.to_owned());
            }
        }
    }

    fn is_running(&self, uid: &PodUid) -> bool {
        self.runtime.containers.values().any(|run| run.container.pod == *uid && is_live(&run.state))
    }

    /// A running pod that the present API server wants has its token, and a valid one.
    fn judge_tokens(&self) {
        if self.has_contact.is_none_or(|since| self.now < since + SETTLED) {
            return;
        }
        for object in
            self.api.objects.values().filter(|object| object["metadata"]["deletionTimestamp"].is_null())
        {
            let mut names =
                object["spec"]["volumes"].as_array().into_iter().flatten().map(|volume| &volume["name"]);
            let uid = PodUid::new(object["metadata"]["uid"].as_str().unwrap()).unwrap();
            if !names.any(|name| name == TOKENS)
                || !self.is_running(&uid)
                || self.wishes.ended.contains(uid.as_str())
            {
                continue;
            }
            let files = self.runtime.files.get(&(uid.clone(), TOKENS.to_owned()));
            let token = files.and_then(|files| files.iter().find(|file| file.path == "token"));
            let ends = token.and_then(|file| std::str::from_utf8(&file.content).ok()?.parse().ok());
            let is_good = ends.is_some_and(|secs| self.now < Duration::from_secs(secs));
            let what = "invariant: no token expires in a running pod with contact";
            self.must(is_good, &format!("{what}: {uid}, {ends:?}"));
        }
    }

    /// Sets the files that a pod's containers see in its volumes.
    fn set_files(&mut self, pod: &PodUid, volumes: &[Volume]) {
        for volume in volumes {
            let VolumeSource::Files { files, .. } = &volume.source else { continue };
            let of_map = |path: &str| files.iter().find(|file| file.path == path).map(|file| &file.content);
            self.must(of_map("k") == of_map("l"), "invariant: the files of a volume are of one edit");
            self.runtime.files.insert((pod.clone(), volume.name.clone()), files.clone());
        }
    }

    fn look(&mut self) {
        let resource = [Signal::Memory, Signal::NodefsBytes, Signal::Pids][self.random.below(3)];
        let longest_grace = self.random.one_in(2).then_some(Duration::from_secs(20));
        let pressing = Pressing { signal: resource, least: 100, available: 50, longest_grace };
        let told = self.random.one_in(2).then_some(pressing);
        self.pressing = told.clone().filter(|_| self.lie != Some(Lie::PressureIsOver));
        self.tell(PodEvent::Looked(told));
    }

    fn usage(&mut self, pod: PodUid) -> PodUsage {
        let amount = self.random.below(1000) as u64;
        let disk = Some(DiskUsage { bytes: amount, inodes: 1 });
        let main = ContainerUsage { memory_bytes: Some(amount), disk };
        PodUsage {
            pod,
            memory_bytes: Some(amount),
            processes: Some(amount),
            containers: SortedMap::from([("main".to_owned(), main)]),
            volumes: SortedMap::new(),
        }
    }

    fn judge_create(&self, order: &ContainerOrder) {
        self.must(!self.wishes.held, "invariant: while pods are held nothing is started or stopped");
        let of_it = |key: &ContainerKey| key.pod == order.key.pod && key.container == order.key.container;
        let live = self.runtime.containers.values().any(|run| of_it(&run.container) && is_live(&run.state));
        self.must(!live, "invariant: no container is created beside a run of it");
        self.must(!self.runtime.used.contains_key(&order.key), "invariant: a run's key is used once");
        let is_static =
            self.api.objects.values().all(|object| object["metadata"]["uid"] != order.key.pod.as_str())
                && order.key.pod.as_str().len() == 32;
        let is_recorded = self.disk.files.contains_key(&DesiredFile::Pod(order.key.pod.clone()));
        self.must(is_static || is_recorded, "invariant: nothing is started before it is recorded");
    }

    /// Judged when the start is ordered: somebody may end the pod before it is performed.
    fn judge_start(&self, key: &ContainerKey) {
        self.must(!self.wishes.held, "invariant: while pods are held nothing is started or stopped");
        let is_done = self.results_of(key.pod.as_str()).contains(&key.container);
        self.must(
            !is_done && !self.wishes.done.contains(&key.pod),
            "invariant: what has done its work is not started again",
        );
    }

    /// A container is stopped only if somebody asked for it, or its pod's work is done.
    fn judge_stop(&self, key: &ContainerKey) {
        self.must(!self.wishes.held, "invariant: while pods are held nothing is started or stopped");
        let uid = key.pod.as_str();
        let is_wished = self.wishes.ended.contains(uid) || self.wishes.edited.contains(uid);
        let is_sidecar = key.container == "side";
        let mut failures = self.failures.iter().filter(|(probe, _)| probe.container == *key);
        let has_failed = failures.any(|(probe, count)| probe.kind != ProbeKind::Readiness && *count >= 3)
            || self.wishes.failed_hooks.contains(key);
        self.must(
            is_wished || is_sidecar || has_failed || self.wishes.released,
            "invariant: no container is stopped that nobody asked to stop",
        );
    }

    // ---- the runtime

    fn perform(&mut self, command: PodAction, is_heard: bool) {
        let fails = self.is_rough && self.random.one_in(12);
        let failure = |command| PodEvent::Failed {
            command,
            failure: Failure { reason: FailureReason::Other, message: "fault".into() },
        };
        let event = match command {
            PodAction::PreparePod(pod) => {
                let is_there = |volume: &Volume| match &volume.source {
                    VolumeSource::Image { id } => self.runtime.images.contains(id),
                    _ => true,
                };
                let are_there = pod.volumes.iter().all(is_there);
                self.must(are_there, "invariant: no volume is made of an image that is not there");
                self.set_files(&pod.uid, &pod.volumes);
                let network = (!fails).then(|| PodNetwork { addresses: vec!["10.1.0.2".into()] });
                let found = PodFound {
                    uid: pod.uid.clone(),
                    namespace: pod.namespace,
                    name: pod.name,
                    node_uid: pod.node_uid,
                    network: network.clone(),
                };
                self.runtime.pods.insert(pod.uid.clone(), found);
                match network {
                    Some(network) => PodEvent::PodPrepared { pod: pod.uid, network },
                    None => failure(Command::PreparePod(pod.uid)),
                }
            }
            PodAction::UpdateVolumes { pod, .. } if fails => failure(Command::UpdateVolumes(pod)),
            PodAction::UpdateVolumes { pod, volumes } => {
                self.must(self.runtime.pods.contains_key(&pod), "invariant: volumes of a pod that is there");
                self.set_files(&pod, &volumes);
                PodEvent::VolumesUpdated { pod }
            }
            PodAction::PullImage(order) if fails => {
                failure(Command::PullImage { pod: order.pod, container: order.container })
            }
            PodAction::PullImage(order) => {
                self.runtime.images.insert(order.image.clone());
                let config = ImageConfig { cmd: vec!["/run".into()], ..ImageConfig::default() };
                let image = Image {
                    id: order.image.clone(),
                    reference: order.image,
                    config,
                    size_bytes: 0,
                    pulled: None,
                };
                PodEvent::ImageReady { pod: order.pod, container: order.container, image }
            }
            PodAction::CreateContainer(order) if fails => failure(Command::CreateContainer(order.key)),
            PodAction::CreateContainer(order) => self.create(*order),
            PodAction::StartContainer(key) if fails => failure(Command::StartContainer(key)),
            PodAction::StartContainer(key) => self.start(key),
            PodAction::StopContainer { container, .. } if fails => failure(Command::StopContainer(container)),
            PodAction::StopContainer { container, .. } => {
                // its end was seen, and it is removed
                let Some(run) = self.runtime.containers.get_mut(&container) else { return };
                if is_live(&run.state) {
                    run.state = exit(143, Some(15));
                }
                PodEvent::Observed(run.clone())
            }
            PodAction::RemoveContainer(key) if fails => failure(Command::RemoveContainer(key)),
            PodAction::RemoveContainer(key) => {
                self.runtime.health.remove(&key);
                self.runtime.hook_notes.remove(&key);
                let run = self.runtime.containers.remove(&key);
                let state = run.map(|run| run.state);
                self.must(
                    state.is_none_or(|state| !is_live(&state)),
                    "invariant: no run is removed that may run",
                );
                PodEvent::ContainerRemoved(key)
            }
            PodAction::RemovePod { pod, .. } if fails => failure(Command::RemovePod(pod)),
            PodAction::RemovePod { pod, keep_logs } => {
                let left = self.runtime.containers.keys().any(|key| key.pod == pod);
                self.must(!left, "invariant: a pod is removed after its containers");
                self.runtime.pods.remove(&pod);
                self.runtime.files.retain(|(of, _), _| *of != pod);
                if !keep_logs {
                    self.runtime.logs.remove(&pod);
                    self.runtime.used.retain(|key, _| key.pod != pod);
                }
                PodEvent::PodRemoved { pod }
            }
            PodAction::RunProbe(order) => {
                let outcome = match self.random.below(if self.is_rough { 8 } else { 1 }) {
                    0..=3 => ProbeOutcome::Passed,
                    4 => ProbeOutcome::Errored("fault".into()),
                    _ => ProbeOutcome::Failed("fault".into()),
                };
                let count = self.failures.entry(order.key.clone()).or_default();
                match outcome {
                    ProbeOutcome::Failed(_) => *count += 1,
                    ProbeOutcome::Passed => *count = 0,
                    _ => {}
                }
                let is_lie = self.lie == Some(Lie::PassedIsFailed) && outcome == ProbeOutcome::Passed;
                let outcome = if is_lie { ProbeOutcome::Failed("fault".into()) } else { outcome };
                PodEvent::Probed { probe: order.key, outcome }
            }
            PodAction::RunHook(order) => {
                let done = if fails { Err("fault".into()) } else { Ok(()) };
                if fails && order.kind == HookKind::PostStart {
                    self.wishes.failed_hooks.insert(order.container.clone());
                }
                self.runtime.hooks.insert((order.container.clone(), order.kind));
                PodEvent::HookEnded { container: order.container, kind: order.kind, done }
            }
            // the order to stop it is still answered by its end
            PodAction::StopRun(_) => return,
            PodAction::CollectImages(_) => PodEvent::ImagesCollected(Err("nothing to remove".into())),
            PodAction::MeasurePods { measure, pods } => {
                let pods: Vec<PodUid> = pods.into_iter().filter(|_| !fails).collect();
                let usages = pods.into_iter().map(|pod| self.usage(pod)).collect();
                PodEvent::PodsMeasured { measure, usages, took: Duration::from_millis(10) }
            }
            PodAction::NoteHook { container, note } => {
                if self.runtime.containers.contains_key(&container) {
                    self.runtime.hook_notes.insert(container, note);
                }
                return;
            }
            PodAction::NoteHealth { container, health } => {
                if self.runtime.containers.contains_key(&container) {
                    self.runtime.health.insert(container, health);
                }
                return;
            }
            other => panic!("{other:?} is no command"),
        };
        if is_heard {
            self.tell(event);
        }
    }

    fn create(&mut self, order: ContainerOrder) -> PodEvent {
        let key = order.key.clone();
        let is_prepared = self.runtime.pods.get(&key.pod).is_some_and(|pod| pod.network.is_some());
        self.must(is_prepared, "invariant: a container is created in a pod that is prepared");
        let is_whole = self.runtime.images.contains(&order.image.id);
        self.must(is_whole, "invariant: an image that is not wholly there is not run");
        self.runtime.used.insert(key.clone(), (order.namespace, order.pod_name));
        let logs = self.runtime.logs.entry(key.pod.clone()).or_default();
        logs.insert(key.container.clone(), key.attempt);
        let run = Observation {
            container: key.clone(),
            state: ContainerState::Created,
            image_name: order.image_name,
            image_reference: order.image.reference,
        };
        self.runtime.containers.insert(key, run.clone());
        PodEvent::Observed(run)
    }

    fn start(&mut self, key: ContainerKey) -> PodEvent {
        let name = self.runtime.used[&key].clone();
        let twin = self.runtime.containers.values().any(|run| {
            is_live(&run.state)
                && run.container.container == key.container
                && self.runtime.used[&run.container] == name
        });
        self.must(!twin, "invariant: no pod runs twice");
        let run = self.runtime.containers.get_mut(&key).expect("a run that is started is there");
        let started = Timestamp::from_micros(i64::try_from(self.now.as_micros()).unwrap());
        run.state = ContainerState::Running { pid: 7, started };
        if key.container == "init" {
            run.state = exit(0, None);
        }
        PodEvent::Observed(run.clone())
    }

    /// The containers whose end is final and durable.
    fn results_of(&self, uid: &str) -> BTreeSet<String> {
        let file = PodUid::new(uid).map(DesiredFile::Pod);
        let content = file.and_then(|file| self.disk.files.get(&file));
        let record: Value =
            content.map(|content| serde_json::from_slice(content).unwrap()).unwrap_or_default();
        record["results"].as_object().into_iter().flat_map(|results| results.keys().cloned()).collect()
    }

    fn inventory(&self) -> Inventory {
        Inventory {
            pods: self.runtime.pods.values().cloned().collect(),
            containers: self.runtime.containers.values().cloned().collect(),
            logs: self.runtime.logs.clone(),
            health: self.runtime.health.clone(),
            hooks: self.runtime.hook_notes.clone(),
        }
    }

    /// Some container ends by itself, or its state is unknown for a while.
    fn disturb_container(&mut self) {
        let live: Vec<ContainerKey> = self
            .runtime
            .containers
            .values()
            .filter(|run| is_live(&run.state))
            .map(|run| run.container.clone())
            .collect();
        if live.is_empty() {
            return;
        }
        let key = live[self.random.below(live.len())].clone();
        if self.random.one_in(6) {
            let state = ContainerState::Unknown("stuck".into());
            let unknown = Observation { state, ..self.runtime.containers[&key].clone() };
            self.tell(PodEvent::Observed(unknown));
            return;
        }
        let state = match self.random.below(6) {
            0 => exit(137, Some(9)),
            1 => ContainerState::Lost("its shim was killed".into()),
            2 => exit(1, None),
            _ => exit(0, None),
        };
        let is_ending = self.core.report().iter().any(|pod| pod.uid == key.pod && pod.is_ending);
        let run = self.runtime.containers.get_mut(&key).unwrap();
        if run.image_name == JOB && !is_ending && state == exit(0, None) {
            self.wishes.done.insert(key.pod.clone());
        }
        run.state = state;
        let run = run.clone();
        // seen late, or only by the next inventory
        if !self.random.one_in(8) {
            self.tell(PodEvent::Observed(run));
        } else {
            let inventory = self.inventory();
            self.tell(PodEvent::Inventory(inventory));
        }
    }

    // ---- the agent and the board

    fn start_agent(&mut self) {
        self.core = Pods::new(NODE);
        self.failures.clear();
        self.decided = self.decided_on_disk();
        self.api.watch = None;
        self.api.requests.clear();
        let is_held = self.wishes.held;
        let is_held_first = self.random.one_in(2);
        if is_held_first {
            self.tell(PodEvent::Held(is_held));
        }
        self.tell(PodEvent::Node(Box::new(NodeFacts {
            name: NODE.into(),
            addresses: vec!["10.0.0.1".into()],
            cpu_milli: 4000,
            memory_bytes: 1 << 30,
            pods: 50,
            network: PodNetworks::Ready("edge".into()),
            has_cluster_dns: true,
            ..NodeFacts::default()
        })));
        self.disk.is_read_again = false;
        let inventory = self.inventory();
        if self.random.one_in(2) {
            self.read_desired();
            self.tell(PodEvent::Inventory(inventory));
        } else {
            self.tell(PodEvent::Inventory(inventory));
            self.read_desired();
        }
        self.tell_static();
        if !is_held_first {
            self.tell(PodEvent::Held(is_held));
        }
    }

    /// Pods that earlier agents rejected or ended, according to the records on the disk.
    fn decided_on_disk(&self) -> BTreeSet<String> {
        let uid_of = |(file, content): (&DesiredFile, &Vec<u8>)| {
            let DesiredFile::Pod(uid) = file else { return None };
            let record: Value = serde_json::from_slice(content).unwrap();
            let is_decided = !record["rejected"].is_null() || !record["failed"].is_null();
            is_decided.then(|| uid.as_str().to_owned())
        };
        self.disk.files.iter().filter_map(uid_of).collect()
    }

    fn read_desired(&mut self) {
        let files = self.disk.files.iter();
        let found =
            files.map(|(file, content)| DesiredFound { file: file.clone(), content: Ok(content.clone()) });
        let found = found.collect();
        let fails = self.is_rough && self.random.one_in(8);
        self.tell(PodEvent::DesiredRead(if fails { Err("input/output error".into()) } else { Ok(found) }));
    }

    fn crash_agent(&mut self) {
        self.note("== the agent is killed".into());
        let sent = std::mem::take(&mut self.api.requests).into_iter();
        self.api.late.extend(sent.filter(|request| matches!(request, PodAction::PatchPodStatus { .. })));
        self.api.late_rejections.extend(self.decided.iter().cloned());
        let queue = std::mem::take(&mut self.runtime.queue);
        for command in queue {
            if self.random.one_in(2) {
                self.perform(command, false);
            }
        }
        self.lose_writes();
        self.start_agent();
    }

    fn cut_power(&mut self) {
        self.note("== the power is cut".into());
        self.runtime.queue.clear();
        self.runtime.containers.clear();
        self.runtime.health.clear();
        self.runtime.hook_notes.clear();
        self.runtime.pods.clear();
        self.runtime.files.clear();
        self.lose_writes();
        let done = std::mem::take(&mut self.wishes.done).into_iter();
        // a power cut may come before the record is written
        self.wishes.done = done.filter(|uid| !self.results_of(uid.as_str()).is_empty()).collect();
        self.start_agent();
    }

    /// Of the writes under way, only some of the first become durable.
    fn lose_writes(&mut self) {
        let kept = self.random.below(self.disk.queue.len() + 1);
        for (file, content) in std::mem::take(&mut self.disk.queue).into_iter().take(kept) {
            self.write(file, content);
        }
    }

    fn write(&mut self, file: DesiredFile, content: Option<Vec<u8>>) {
        match content {
            Some(content) => self.disk.files.insert(file, content),
            None => self.disk.files.remove(&file),
        };
    }

    fn perform_write(&mut self) {
        if std::mem::take(&mut self.disk.is_read_again) {
            return self.read_desired();
        }
        let Some((file, content)) = self.disk.queue.pop_front() else { return };
        let fails = self.is_rough && self.random.one_in(10);
        if fails {
            self.disk.lost_copy |= matches!(file, DesiredFile::Object(_));
        } else {
            self.write(file.clone(), content);
        }
        let done = if fails { Err("disk full".into()) } else { Ok(()) };
        self.tell(PodEvent::DesiredSaved { file, done });
    }

    // ---- the API server

    fn changed(&mut self, key: (String, String)) {
        self.api.version += 1;
        let version = self.api.version.to_string();
        let object = self.api.objects.get_mut(&key).unwrap();
        object["metadata"]["resourceVersion"] = json!(version);
        let event = PodEvent::PodSeen(object.clone());
        if let Some(watch) = &mut self.api.watch {
            watch.push_back(event);
        }
    }

    fn gone(&mut self, key: &(String, String)) {
        let Some(object) = self.api.objects.remove(key) else { return };
        self.wishes.ended.insert(object["metadata"]["uid"].as_str().unwrap().to_owned());
        if let Some(watch) = &mut self.api.watch {
            watch.push_back(PodEvent::PodGone(object));
        }
    }

    fn create_pod(&mut self) {
        let name = ["a", "b", "c", "d"][self.random.below(4)];
        let key = ("default".to_owned(), name.to_owned());
        if self.api.objects.contains_key(&key) {
            return;
        }
        self.api.made += 1;
        let port = json!([{"containerPort": 80, "hostPort": 80}]);
        let token =
            json!({"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_LIFE.as_secs()}});
        let from = json!({"configMapKeyRef": {"name": "m", "key": "k"}});
        let probe = || json!({"tcpSocket": {"port": 80}, "periodSeconds": 5, "timeoutSeconds": 5});
        let spec = match self.random.below(12) {
            10 | 11 => json!({"containers": [{"name": "main", "image": "x:1", "livenessProbe": probe(),
                "readinessProbe": probe(), "startupProbe": probe(),
                "lifecycle": {"postStart": {"exec": {"command": ["x"]}}, "preStop": {"sleep": {"seconds": 1}}}},
                {"name": "more", "image": "y:1"}]}),
            9 => {
                json!({"containers": [{"name": "main", "image": "x:1", "env": [{"name": "K", "valueFrom": from}]}]})
            }
            6 => json!({"restartPolicy": "Never",
                "containers": [{"name": "main", "image": "x:1"}, {"name": "more", "image": "y:1"}]}),
            7 => json!({"restartPolicy": "OnFailure",
                "containers": [{"name": "main", "image": "x:1"}, {"name": "more", "image": "y:1"}]}),
            8 => json!({"containers": [{"name": "main", "image": "x:1", "ports": port}]}),
            0 if self.random.one_in(3) => {
                // the node may end it
                self.wishes.ended.insert(format!("pod-{}", self.api.made));
                json!({"activeDeadlineSeconds": 30, "containers": [{"name": "main", "image": "x:1"}]})
            }
            0 => json!({"containers": [{"name": "main", "image": "x:1"}]}),
            1 => json!({"containers": [{"name": "main", "image": "x:1"}, {"name": "more", "image": "y:1"}],
                "initContainers": [{"name": "init", "image": "x:1"},
                    {"name": "side", "image": "x:1", "restartPolicy": "Always"}]}),
            2 => json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": "x:1"}],
                "initContainers": [{"name": "side", "image": "x:1", "restartPolicy": "Always"}]}),
            3 => json!({"restartPolicy": "OnFailure", "containers": [{"name": "main", "image": "x:1"}]}),
            4 => json!({"containers": [{"name": "main", "image": "x:1", "env":
                [{"name": "V", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}],
                "serviceAccountName": "runs", "volumes": [{"name": "v", "configMap": {"name": "m"}},
                    {"name": "i", "image": {"reference": "data:1"}}, {"name": TOKENS, "projected": {"sources": [token]}}]}),
            _ if self.random.one_in(3) => {
                self.wishes.critical.insert(format!("pod-{}", self.api.made));
                json!({"priority": 2_000_000_000, "containers": [{"name": "main", "image": "x:1"}]})
            }
            _ => json!({"containers": [{"name": "main", "image": "x:1", "tty": self.random.one_in(3)}]}),
        };
        if spec["containers"][0]["ports"].is_array() {
            self.wishes.ports.insert(format!("pod-{}", self.api.made));
        }
        let controller = json!([{"kind": "DaemonSet", "name": name, "controller": true}]);
        let object = json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("pod-{}", self.api.made),
                "ownerReferences": controller, "generation": 1},
            "spec": spec, "status": {"phase": "Pending"},
        });
        self.supersede(name);
        self.api.objects.insert(key.clone(), object);
        self.changed(key);
    }

    /// Pods of another Node under this name may end now.
    fn supersede(&mut self, name: &str) {
        let (born, node_uid) = (&self.wishes.born, &self.api.node_uid);
        let old = born.iter().filter(|(other, _, node)| other == name && node != node_uid);
        let old: Vec<String> = old.map(|(_, uid, _)| uid.clone()).collect();
        self.wishes.ended.extend(old);
        let uid = format!("pod-{}", self.api.made);
        self.wishes.born.push((name.to_owned(), uid, self.api.node_uid.clone()));
    }

    fn some_pod(&mut self) -> Option<(String, String)> {
        let keys: Vec<_> = self.api.objects.keys().cloned().collect();
        if keys.is_empty() { None } else { Some(keys[self.random.below(keys.len())].clone()) }
    }

    fn delete_pod(&mut self) {
        let Some(key) = self.some_pod() else { return };
        if self.random.one_in(6) {
            self.gone(&key);
            return;
        }
        let object = self.api.objects.get_mut(&key).unwrap();
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        object["metadata"]["deletionGracePeriodSeconds"] = json!(5);
        let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
        self.wishes.ended.insert(uid);
        self.changed(key);
    }

    fn edit_pod(&mut self) {
        let Some(key) = self.some_pod() else { return };
        if self.random.one_in(2) {
            self.ask_ahead(key);
            return;
        }
        let object = self.api.objects.get_mut(&key).unwrap();
        let image = &mut object["spec"]["containers"][0]["image"];
        *image = if *image == "x:1" { json!("x:2") } else { json!("x:1") };
        let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
        self.wishes.edited.insert(uid);
        self.changed(key);
    }

    /// Requests images for the pod that will take its place, or withdraws that request.
    fn ask_ahead(&mut self, key: (String, String)) {
        let revision = self.api.version.to_string();
        let count = self.random.below(4);
        let images: Vec<Value> =
            (0..count).map(|index| json!({"image": format!("next:{index}"), "policy": ""})).collect();
        let request = json!({"revision": revision, "images": images}).to_string();
        // the other annotations stay: no API server lets a mirror lose the one that marks it as a mirror
        let annotations = &mut self.api.objects.get_mut(&key).unwrap()["metadata"]["annotations"];
        let mut known = annotations.as_object().cloned().unwrap_or_default();
        match count {
            0 => _ = known.remove("kedge.dev/pull-ahead"),
            _ => _ = known.insert("kedge.dev/pull-ahead".into(), json!(request)),
        }
        *annotations = Value::Object(known);
        self.changed(key);
    }

    /// Images that were requested ahead are pulled and reported; without a request there is no report.
    fn judge_ahead(&self, uid: &str, object: &Value) {
        let mut conditions = object["status"]["conditions"].as_array().unwrap().iter();
        let answer = conditions.find(|one| one["type"] == "kedge.dev/ImagesPulled");
        let request = object["metadata"]["annotations"]["kedge.dev/pull-ahead"].as_str();
        let request: Option<Value> = request.map(|text| serde_json::from_str(text).unwrap());
        let told = request.map(|request| format!("{}: ", request["revision"].as_str().unwrap()));
        let is_answered = match (&told, answer) {
            (None, None) => true,
            (Some(told), Some(answer)) => {
                answer["status"] == "True" && answer["message"].as_str().unwrap().starts_with(told)
            }
            _ => false,
        };
        self.must(is_answered, &format!("invariant: {uid} has what is asked for ahead: {answer:?} {told:?}"));
    }

    /// Somebody other than the node ends the pod, and leaves its object.
    fn fail_pod(&mut self) {
        let Some(key) = self.some_pod() else { return };
        let object = self.api.objects.get_mut(&key).unwrap();
        let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
        if uid.starts_with("mirror")
            || matches!(object["status"]["phase"].as_str(), Some("Failed" | "Succeeded"))
        {
            return;
        }
        object["status"]["phase"] = json!("Failed");
        object["status"]["reason"] = json!("Evicted");
        self.wishes.failed.insert(uid.clone());
        self.wishes.ended.insert(uid);
        self.changed(key);
    }

    /// The hub is wiped, or the node moves: another Node, no pods.
    fn move_node(&mut self) {
        self.note("== another Node".into());
        self.api.made += 1;
        self.api.node_uid = format!("node-{}", self.api.made);
        self.api.objects.clear();
        self.api.watch = None;
        (self.api.map, self.api.has_secret) = (None, false);
        if self.random.one_in(2) {
            self.crash_agent();
            return;
        }
        self.api.is_online = false;
        while !self.api.requests.is_empty() {
            self.perform_request();
        }
        self.api.is_online = true;
    }

    /// Somebody edits the ConfigMap, breaks it, deletes it.
    fn edit_map(&mut self) {
        self.api.map = [None, Some(0), Some(self.api.version)][self.random.below(3)];
        self.api.has_secret = true;
    }

    fn perform_request(&mut self) {
        if let Some(PodAction::PatchPodStatus { pod, patch }) = self.api.late.pop_front() {
            if self.api.is_online {
                self.note(format!("       late: {pod:?} {patch}").chars().take(1200).collect());
                self.patch(&pod, &patch);
                // a rejection is not recorded, and a phase Failed that the API shows is final, whatever the
                // next agent decides. It is no intention any more: it was judged when it was made
                if patch["status"]["phase"] == "Failed" && self.api.late_rejections.contains(&pod.uid) {
                    self.wishes.ended.insert(pod.uid);
                }
            }
            return;
        }
        let Some(request) = self.api.requests.pop_front() else { return };
        let is_lost = !self.api.is_online || (self.is_rough && self.random.one_in(10));
        let is_done = self.api.is_online && !(is_lost && self.random.one_in(2));
        let refused = |status| Answer::Refused {
            status,
            reason: String::new(),
            message: String::new(),
            retry_after: None,
        };
        let failed = Answer::Failed("no route".into());
        match request {
            PodAction::ReadObject(name) => {
                let no_route = ObjectRead::Failed("no route".into());
                let read = if is_lost { no_route } else { self.api.read(name.kind, self.lie) };
                self.tell(PodEvent::ObjectRead { name, read });
            }
            PodAction::RequestToken(name) => {
                let mut ends = self.now + TOKEN_LIFE;
                if self.lie == Some(Lie::TokenEndsEarly) {
                    ends -= TOKEN_LIFE / 2;
                }
                let issued = TokenRead::Issued { token: ends.as_secs().to_string(), life: TOKEN_LIFE };
                let read = if is_lost { TokenRead::Failed("no route".into()) } else { issued };
                self.tell(PodEvent::TokenRead { name, read });
            }
            PodAction::PatchPodStatus { pod, patch } => {
                let answer = if is_done { self.patch(&pod, &patch) } else { failed.clone() };
                let answer = if is_lost { failed } else { answer };
                self.watch_first();
                self.tell(PodEvent::Answered { request: PodRequest::PatchStatus(pod), answer });
            }
            PodAction::DeletePod(pod) => {
                let key = (pod.namespace.clone(), pod.name.clone());
                let uid = self.api.objects.get(&key).map(|object| object["metadata"]["uid"].clone());
                let mut answer = match uid {
                    None => refused(404),
                    Some(uid) if uid != pod.uid.as_str() => refused(409),
                    Some(_) => Answer::Accepted(None),
                };
                if is_done && answer == Answer::Accepted(None) {
                    let rest = self.runtime.containers.keys().any(|run| run.pod.as_str() == pod.uid);
                    self.must(!rest, "invariant: the last word on a pod comes after its containers");
                    self.gone(&key);
                }
                if is_lost {
                    answer = failed;
                }
                self.watch_first();
                self.tell(PodEvent::Answered { request: PodRequest::Delete(pod), answer });
            }
            PodAction::CreateMirrorPod { namespace, name, pod } => {
                let key = (namespace.clone(), name.clone());
                let mut answer = refused(409);
                if is_done && !self.api.objects.contains_key(&key) {
                    self.api.made += 1;
                    let mut object = pod;
                    object["metadata"]["uid"] = json!(format!("mirror-{}", self.api.made));
                    self.api.objects.insert(key.clone(), object);
                    self.changed(key.clone());
                    let object = self.api.objects[&key].clone();
                    answer = Answer::Accepted(Some(object));
                }
                if is_lost {
                    answer = failed;
                }
                if is_done && self.are_answers_late() && self.random.one_in(4) {
                    self.gone(&key);
                }
                self.watch_first();
                self.tell(PodEvent::Answered {
                    request: PodRequest::CreateMirror { namespace, name },
                    answer,
                });
            }
            other => panic!("{other:?} is no request"),
        }
    }

    /// Only in some walks, so that the seeds of the others still break the same promise, or notice the same
    /// lie.
    fn are_answers_late(&self) -> bool {
        self.is_rough && self.lie.is_none() && self.seed.is_multiple_of(5)
    }

    /// The watch may be faster than the answer.
    fn watch_first(&mut self) {
        if self.are_answers_late() && self.random.one_in(2) {
            (0..4).for_each(|_| self.hear());
        }
    }

    fn patch(&mut self, pod: &PodRef, patch: &Value) -> Answer {
        let key = (pod.namespace.clone(), pod.name.clone());
        let uid = self.api.objects.get(&key).map(|object| &object["metadata"]["uid"]);
        if uid.is_none_or(|uid| *uid != pod.uid.as_str()) {
            // another pod has the name: its UID differs from the patch's
            let (status, message) = if uid.is_some() { (409, "another UID") } else { (404, "no such pod") };
            let message = message.to_owned();
            return Answer::Refused { status, reason: String::new(), message, retry_after: None };
        }
        let meant = &patch["metadata"]["resourceVersion"];
        let is_meant = meant.is_null() || *meant == self.api.objects[&key]["metadata"]["resourceVersion"];
        if !is_meant && self.lie != Some(Lie::VersionIsIgnored) {
            let message = "the object has been modified".to_owned();
            return Answer::Refused { status: 409, reason: "Conflict".into(), message, retry_after: None };
        }
        let old = self.api.objects[&key]["status"].clone();
        let mut new = merged(&old, &patch["status"]);
        self.judge_status(&pod.uid, &old, &new);
        if self.lie == Some(Lie::RestartsAreMore) {
            for told in new["containerStatuses"].as_array_mut().into_iter().flatten() {
                told["restartCount"] = json!(told["restartCount"].as_u64().unwrap_or(0) + 1);
            }
        }
        self.api.objects.get_mut(&key).unwrap()["status"] = new;
        self.changed(key.clone());
        let object = self.api.objects[&key].clone();
        Answer::Accepted(self.random.one_in(2).then_some(object))
    }

    /// A container that was reported as running still runs, or its end is reported; nothing is taken back.
    fn judge_status(&self, uid: &str, old: &Value, new: &Value) {
        let is_over = |status: &Value| matches!(status["phase"].as_str(), Some("Failed" | "Succeeded"));
        // a status may be on its way while somebody else ends the pod: the node learns of that, and reports
        // the end
        let is_final = is_over(old) && !self.wishes.failed.contains(uid);
        self.must(!is_final || old["phase"] == new["phase"], "invariant: a phase that is final stays");
        if new["phase"] == "Failed" && !is_over(old) {
            let lists = ["containerStatuses", "initContainerStatuses"];
            let mut all = lists.iter().flat_map(|list| new[*list].as_array().into_iter().flatten());
            let has_failed =
                all.any(|told| told["state"]["terminated"]["exitCode"].as_i64().unwrap_or(0) != 0);
            self.must(new["reason"].is_string() || has_failed, "invariant: a pod that failed has a cause");
        }
        let moved = moved_time(old, new);
        self.must(
            moved.is_none(),
            &format!("invariant: a time of a status stays while what it is of does: {uid}: {moved:?}"),
        );
        for list in ["containerStatuses", "initContainerStatuses"] {
            for before in old[list].as_array().into_iter().flatten() {
                let after = new[list]
                    .as_array()
                    .and_then(|list| list.iter().find(|after| after["name"] == before["name"]));
                let Some(after) = after else {
                    self.must(false, "invariant: no container leaves a status");
                    return;
                };
                let count = |status: &Value| status["restartCount"].as_u64().unwrap_or(0);
                self.must(count(after) >= count(before), "invariant: restarts are never taken back");
                if before["state"]["running"].is_object() {
                    let id = &before["containerID"];
                    let runs = after["state"]["running"].is_object() && after["containerID"] == *id;
                    let ended = [&after["state"], &after["lastState"]];
                    let is_told = ended.iter().any(|state| state["terminated"]["containerID"] == *id);
                    // more than one restart at once: the status has room for the latest end only
                    let later = ended.iter().any(|state| state["terminated"]["containerID"].is_string());
                    let skipped = later && count(after) > count(before);
                    self.must(
                        runs || is_told || skipped,
                        "invariant: the end of what was reported as running is reported",
                    );
                }
            }
        }
    }

    fn hear(&mut self) {
        if !self.api.is_online {
            return;
        }
        match &mut self.api.watch {
            None => {
                self.api.watch = Some(VecDeque::new());
                let pods = self.api.objects.values().map(|pod| self.told_of(pod)).collect();
                let node_uid = self.api.node_uid.clone();
                self.tell(PodEvent::PodsListed { node_uid, pods });
            }
            Some(watch) => match watch.pop_front() {
                Some(PodEvent::PodSeen(pod)) => self.tell(PodEvent::PodSeen(self.told_of(&pod))),
                Some(event) => self.tell(event),
                None => {}
            },
        }
    }

    fn told_of(&self, pod: &Value) -> Value {
        let mut pod = pod.clone();
        if self.lie == Some(Lie::CriticalIsHidden) {
            pod["spec"].as_object_mut().unwrap().remove("priority");
        }
        pod
    }

    // ---- static pods

    fn edit_files(&mut self) {
        let path = "/etc/static/w.yaml".to_owned();
        let old = self.static_uids();
        if self.random.one_in(3) {
            self.files.remove(&path);
        } else {
            let image = ["x:1", "x:2", JOB][self.random.below(3)];
            let policy = if image == JOB { "OnFailure" } else { "Always" };
            let text = format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: w}}\nspec: {{hostNetwork: true, restartPolicy: {policy}, containers: [{{name: main, image: '{image}'}}]}}\n"
            );
            self.files.insert(path, text);
        }
        // the old one may end; the new one, which may be an earlier one again, must not
        self.wishes.ended.extend(old);
        self.wishes.done.clear();
        self.tell_static();
    }

    fn static_uids(&self) -> Vec<String> {
        let pods = self.core.report();
        pods.into_iter()
            .filter(|pod| pod.uid.as_str().len() == 32)
            .map(|pod| pod.uid.as_str().to_owned())
            .collect()
    }

    fn tell_static(&mut self) {
        let files = self.files.iter();
        let files = files
            .map(|(path, text)| StaticFile { path: path.clone(), content: Ok(text.clone().into_bytes()) });
        let files = files.collect();
        self.tell(PodEvent::StaticPods(Ok(files)));
    }

    // ---- the walk

    fn step(&mut self) {
        match self.random.below(44) {
            0..=13 => self.perform_command(),
            14..=18 => self.perform_write(),
            19..=22 => self.perform_request(),
            23..=26 => self.hear(),
            27 => self.disturb_container(),
            28..=29 => self.create_pod(),
            30 => self.delete_pod(),
            31 if self.random.one_in(3) => self.edit_pod(),
            32 if self.random.one_in(3) => self.edit_files(),
            33 if self.random.one_in(2) => self.crash_agent(),
            34 if self.random.one_in(5) => self.cut_power(),
            35 => self.api.is_online = !self.random.one_in(3),
            36 if !self.api.is_online => self.api.watch = None,
            37 if self.random.one_in(15) => self.move_node(),
            38 if self.random.one_in(8) => self.hold(),
            40 if self.random.one_in(2) => self.edit_map(),
            42 if self.random.one_in(2) => self.look(),
            41 if self.random.one_in(2) => self.fail_pod(),
            39 if self.random.one_in(10) => {
                self.wishes.released = true;
                self.tell(PodEvent::Release(None));
            }
            _ => self.pass_time(),
        }
        let most = self.core.kept().into_iter().max_by_key(|(_, kept)| *kept).unwrap();
        self.must(most.1 <= 60, most.0);
    }

    fn hold(&mut self) {
        let is_held = !self.wishes.held;
        // commands that were ordered before the hold are performed
        while !self.runtime.queue.is_empty() {
            self.perform_command();
        }
        self.wishes.held = is_held;
        self.tell(PodEvent::Held(is_held));
    }

    fn perform_command(&mut self) {
        if !self.runtime.queue.is_empty() {
            let at = self.random.below(self.runtime.queue.len());
            let command = self.runtime.queue.remove(at);
            self.perform(command, true);
        }
    }

    fn pass_time(&mut self) {
        let deadline = self.core.next_deadline();
        let least = Duration::from_millis(200);
        self.now = deadline
            .map_or(self.now + least, |deadline| deadline.max(self.now + least).min(self.now + least * 100));
        self.tell(PodEvent::Tick);
    }

    /// Everything works from here on, until nothing is left to do.
    fn settle(&mut self) {
        self.is_rough = false;
        self.has_contact = self.api.is_online.then_some(self.now);
        let mut is_read_again = false;
        self.pressing = None;
        self.tell(PodEvent::Looked(None));
        (self.api.map, self.api.has_secret) = (Some(self.api.version), true);
        let inventory = self.inventory();
        self.tell(PodEvent::Inventory(inventory));
        for _ in 0..20_000 {
            if !self.runtime.queue.is_empty() {
                self.perform_command();
            } else if self.disk.is_read_again || !self.disk.queue.is_empty() {
                self.perform_write();
            } else if !self.api.requests.is_empty() {
                self.perform_request();
            } else if self.api.is_online && self.api.watch.as_ref().is_none_or(|watch| !watch.is_empty()) {
                self.hear();
            } else if self.now > self.busy + REST {
                if is_read_again || !self.api.is_online {
                    return;
                }
                is_read_again = true;
                self.busy = self.now;
                self.tell(PodEvent::ObjectsAreOld);
            } else if let Some(deadline) = self.core.next_deadline() {
                if !self.api.is_online && deadline > self.now + Duration::from_secs(900) {
                    return;
                }
                // without the API server, reads are retried for ever
                self.now = deadline.max(self.now + Duration::from_millis(1));
                self.tell(PodEvent::Tick);
                let has_work = self.disk.is_read_again || !self.runtime.queue.is_empty();
                if !self.api.is_online && !has_work && self.random.one_in(60) {
                    return;
                }
            } else {
                return;
            }
        }
        self.must(false, "invariant: it comes to rest");
    }

    fn unhold(&mut self) {
        self.wishes.held = false;
        self.tell(PodEvent::Held(false));
    }

    /// After a power cut without the hub, the pods that it last wanted run.
    fn judge_offline(&self) {
        let records: Vec<Value> = self
            .disk
            .files
            .iter()
            .filter_map(|(file, content)| match file {
                DesiredFile::Pod(_) => Some(serde_json::from_slice(content).unwrap()),
                DesiredFile::Object(_) => None,
            })
            .collect();
        let name = |record: &Value| record["pod"]["metadata"]["name"].as_str().unwrap().to_owned();
        for record in &records {
            let spec = &record["pod"]["spec"];
            let has_twin = records.iter().filter(|other| name(other) == name(record)).count() > 1;
            let is_plain = spec["restartPolicy"].is_null()
                && spec["volumes"].is_null()
                && spec["containers"][0]["env"].is_null();
            if !record["ended"].is_null()
                || !record["rejected"].is_null()
                || !is_plain
                || !record["results"].is_null()
                || !record["failed"].is_null()
                || !spec["activeDeadlineSeconds"].is_null()
                || has_twin
            {
                continue;
            }
            let uid = record["pod"]["metadata"]["uid"].as_str().unwrap();
            self.must_run(uid, spec);
        }
    }

    fn must_run(&self, uid: &str, spec: &Value) {
        let done = self.results_of(uid);
        let containers = spec["containers"].as_array().unwrap().iter();
        for container in containers.filter(|container| !done.contains(container["name"].as_str().unwrap())) {
            let runs = self.runtime.containers.values().any(|run| {
                run.container.pod.as_str() == uid
                    && run.container.container == container["name"]
                    && is_live(&run.state)
                    && run.image_name == container["image"].as_str().unwrap()
            });
            self.must(runs, &format!("invariant: {uid} runs: {}", container["name"]));
        }
    }

    /// The files of a ConfigMap have its present content.
    fn judge_map(&self, uid: &str, spec: &Value) {
        if spec["volumes"][0]["configMap"].is_null() || self.lie == Some(Lie::ObjectInParts) {
            return;
        }
        let files = self.runtime.files.get(&(PodUid::new(uid).unwrap(), "v".to_owned()));
        let expected = format!("v{}", self.api.map.unwrap());
        let has_them =
            files.is_some_and(|files| files.iter().all(|file| file.content == expected.as_bytes()));
        self.must(has_them, &format!("invariant: {uid} has the files of {expected}: {files:?}"));
    }

    /// The pods of the files run, and no other static pods.
    fn judge_static(&self) {
        let pods = self.core.report();
        let pods: Vec<&PodReport> = pods.iter().filter(|pod| pod.origin == "static").collect();
        let what = format!("invariant: static pods are those of the files: {:?} {pods:?}", self.files);
        self.must(pods.len() == self.files.len() && pods.iter().all(|pod| !pod.is_ending), &what);
        for (pod, text) in pods.iter().zip(self.files.values()) {
            let image = text.split('\'').nth(1).unwrap();
            if image != JOB {
                self.must_run(pod.uid.as_str(), &json!({"containers": [{"name": "main", "image": image}]}));
            }
        }
    }

    /// Somebody edits the files, and nothing fails any more except the connection to the API server.
    fn go_on_alone(&mut self) {
        (self.api.is_online, self.api.watch) = (false, None);
        self.is_rough = false;
        self.edit_files();
        let until = self.now + SETTLED;
        while self.now < until || !self.runtime.queue.is_empty() {
            self.turn();
        }
    }

    /// Pods that another API server bound and nobody ended keep running, with the content of that server's
    /// objects.
    fn judge_orphans(&self) {
        let pods = self.core.report();
        for pod in pods.iter().filter(|pod| pod.is_orphaned && !pod.is_ending && pod.rejected.is_none()) {
            let Some(content) = self.disk.files.get(&DesiredFile::Pod(pod.uid.clone())) else { continue };
            let record: Value = serde_json::from_slice(content).unwrap();
            let spec = &record["pod"]["spec"];
            let has_run = self.runtime.used.keys().any(|key| key.pod == pod.uid && key.container == "main");
            // the key that it needs may have been deleted before the Node was
            let has_what_it_needs = !self.disk.lost_copy && spec["containers"][0]["env"][0]["name"] != "K";
            let has_deadline = !spec["activeDeadlineSeconds"].is_null();
            if spec["restartPolicy"].is_null() && has_run && has_what_it_needs && !has_deadline {
                self.must_run(pod.uid.as_str(), spec);
            }
        }
    }

    /// At rest with everything working: wanted pods run and are reported, others are gone.
    fn judge_rest(&self) {
        let mut desired = BTreeSet::new();
        for object in self.api.objects.values() {
            let uid = object["metadata"]["uid"].as_str().unwrap();
            self.must(
                object["metadata"]["deletionTimestamp"].is_null(),
                &format!("invariant: deleted {uid} ends and is reported gone"),
            );
            if uid.starts_with("mirror") {
                let phase = object["status"]["phase"].as_str();
                let is_told = matches!(phase, Some("Running" | "Succeeded"));
                self.must(is_told, &format!("invariant: a mirror shows how its pod does: {object}"));
                continue;
            }
            desired.insert(uid.to_owned());
            let (status, spec) = (&object["status"], &object["spec"]);
            match status["phase"].as_str() {
                Some("Running") => {
                    self.must_run(uid, spec);
                    self.judge_map(uid, spec);
                    self.judge_ahead(uid, object);
                }
                Some("Failed" | "Succeeded") => {
                    let mut runs = self.runtime.containers.values();
                    let is_idle = !runs.any(|run| run.container.pod.as_str() == uid && is_live(&run.state));
                    self.must(is_idle, &format!("invariant: {uid} has ended, whoever ended it"));
                }
                phase => self.must(false, &format!("invariant: {uid} gets on, and is not {phase:?}")),
            }
            for condition in status["conditions"].as_array().into_iter().flatten() {
                let reason = condition["reason"].as_str().unwrap_or_default();
                let is_stale = condition["status"] == "True" && reason.contains("Not");
                self.must(!is_stale, &format!("invariant: a condition that is met is not {reason}"));
            }
            for told in status["containerStatuses"].as_array().into_iter().flatten() {
                if told["state"]["running"].is_object() {
                    self.must(told["ready"] == true, &format!("invariant: {uid} is ready: {told}"));
                    let id = told["containerID"].as_str().unwrap().strip_prefix("kedge://").unwrap();
                    let runs = self
                        .runtime
                        .containers
                        .values()
                        .any(|run| run.container.id() == id && is_live(&run.state));
                    self.must(runs, &format!("invariant: what is reported as running runs: {uid} {object}"));
                }
            }
        }
        for run in self.runtime.containers.values() {
            let uid = run.container.pod.as_str();
            let is_orphan = self
                .runtime
                .pods
                .get(&run.container.pod)
                .is_some_and(|pod| pod.node_uid != self.api.node_uid);
            self.must(desired.contains(uid) || is_orphan, &format!("invariant: {uid} is gone"));
        }
        // a container keeps at most its latest run and the one before, whose log people may read
        let mut runs = BTreeMap::new();
        for key in self.runtime.containers.keys() {
            *runs.entry((key.pod.clone(), key.container.clone())).or_insert(0) += 1;
        }
        self.must(runs.values().all(|runs| *runs <= 2), "invariant: nothing grows: runs");
        for file in self.disk.files.keys() {
            if let DesiredFile::Pod(uid) = file {
                let is_kept = self.core.report().iter().any(|pod| pod.uid == *uid);
                self.must(is_kept, &format!("invariant: nothing grows: the record of {uid}"));
            }
        }
        let mirrors = self
            .api
            .objects
            .values()
            .filter(|object| object["metadata"]["uid"].as_str().unwrap().starts_with("mirror"));
        self.must(
            mirrors.count() == self.files.len(),
            "invariant: each static pod has its mirror, and no other",
        );
        self.judge_static();
    }
}

/// A time in the status that changed although the state that it belongs to did not: since when the pod
/// exists, or a condition has its value.
fn moved_time(old: &Value, new: &Value) -> Option<String> {
    if old["startTime"].is_string() && new["startTime"] != old["startTime"] {
        return Some(format!("startTime {}, then {}", old["startTime"], new["startTime"]));
    }
    let conditions = |status: &Value| status["conditions"].as_array().cloned().unwrap_or_default();
    let after = conditions(new);
    conditions(old).iter().find_map(|before| {
        let now = after.iter().find(|now| now["type"] == before["type"])?;
        let [was, is] = [before, now].map(|one| one["lastTransitionTime"].as_str().unwrap_or_default());
        // all times here have the same form
        let is_right = if now["status"] == before["status"] { is == was } else { is >= was };
        (!is_right).then(|| format!("{before}, then {now}"))
    })
}

fn merged(old: &Value, patch: &Value) -> Value {
    let mut new = old.as_object().cloned().unwrap_or_default();
    for (key, value) in patch.as_object().unwrap() {
        match (key.as_str(), value) {
            (_, Value::Null) => {
                new.remove(key);
            }
            ("conditions", Value::Array(conditions)) => {
                let list = new.entry(key).or_insert_with(|| json!([])).as_array_mut().unwrap();
                for condition in conditions {
                    let is_it = |other: &Value| other["type"] == condition["type"];
                    let before = list.iter().position(is_it).map(|at| list.swap_remove(at));
                    if condition["$patch"] == "delete" {
                        continue;
                    }
                    list.push(merged(&before.unwrap_or_else(|| json!({})), condition));
                }
            }
            (_, Value::Array(items)) => {
                let items = items.iter().filter(|item| item.get("$patch").is_none()).cloned();
                new.insert(key.clone(), items.collect());
            }
            (_, value) => {
                new.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(new)
}

fn walk(seed: u64) {
    walk_with(seed, None);
}

fn walk_with(seed: u64, lie: Option<Lie>) {
    let mut world = World::new(seed, lie);
    for _ in 0..STEPS {
        world.step();
    }
    world.unhold();
    if seed % 7 == 1 {
        world.go_on_alone();
        world.judge_static();
    }
    if seed.is_multiple_of(3) {
        world.api.is_online = false;
        world.api.watch = None;
        world.cut_power();
        world.settle();
        world.judge_offline();
        world.judge_static();
    }
    world.api.is_online = true;
    world.settle();
    world.judge_rest();
    world.judge_orphans();
}

/// A node with room for two pods, at its start.
fn begun() -> Pods {
    let mut core = Pods::new(NODE);
    let facts = NodeFacts {
        name: NODE.into(),
        pods: 2,
        network: PodNetworks::Ready("edge".into()),
        ..NodeFacts::default()
    };
    for event in [
        PodEvent::Held(false),
        PodEvent::Node(Box::new(facts)),
        PodEvent::DesiredRead(Ok(vec![])),
        PodEvent::Inventory(Inventory::default()),
        PodEvent::StaticPods(Ok(vec![])),
    ] {
        told(&mut core, 0, event);
    }
    core
}

fn told(core: &mut Pods, secs: u64, event: PodEvent) -> Vec<PodAction> {
    let mut actions = vec![];
    let now = Now { mono: Duration::from_secs(secs), wall: Timestamp::from_micros(0) };
    core.handle(now, event, &mut actions);
    if actions.contains(&PodAction::ReadNode) {
        core.handle(now, PodEvent::NodeRead, &mut actions);
    }
    actions
}

/// A pod that is rejected.
fn misplaced(index: usize) -> Value {
    json!({"metadata": {"name": format!("p{index}"), "namespace": "d", "uid": format!("u-{index}")},
        "spec": {"nodeSelector": {"zone": "elsewhere"}, "containers": [{"name": "a", "image": "x:1"}]},
        "status": {"phase": "Pending"}})
}

fn patched(actions: &[PodAction]) -> Vec<(PodRef, Value)> {
    let patches = actions.iter().filter_map(|action| match action {
        PodAction::PatchPodStatus { pod, patch } => Some((pod.clone(), patch.clone())),
        _ => None,
    });
    patches.collect()
}

#[test]
fn refused_status_is_sent_again_unless_the_pod_is_gone() {
    let mut core = begun();
    let pods = vec![misplaced(0)];
    let actions = told(&mut core, 1, PodEvent::PodsListed { node_uid: "n".into(), pods });
    let (pod, _) = patched(&actions).pop().unwrap();
    let mut secs = 1;
    for (status, is_sent_again) in [(409, true), (422, true), (403, true), (404, false)] {
        let (reason, message) = (String::new(), String::new());
        let answer = Answer::Refused { status, reason, message, retry_after: None };
        let request = PodRequest::PatchStatus(pod.clone());
        let at_once = told(&mut core, secs, PodEvent::Answered { request, answer });
        assert!(patched(&at_once).is_empty(), "{status}: not without a wait");
        secs += 300;
        let later = told(&mut core, secs, PodEvent::Tick);
        assert_eq!(!patched(&later).is_empty(), is_sent_again, "{status}");
    }
}

#[test]
fn status_that_comes_back_changed_holds_up_no_deletion() {
    let mut core = begun();
    let changed = |version: u32, is_deleted: bool| {
        let mut pod = misplaced(0);
        pod["metadata"]["resourceVersion"] = json!(version.to_string());
        if is_deleted {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        }
        PodEvent::PodSeen(pod)
    };
    let pods = vec![misplaced(0)];
    let mut actions = told(&mut core, 1, PodEvent::PodsListed { node_uid: "n".into(), pods });
    for version in 1..=2 {
        let (pod, _) = patched(&actions).pop().unwrap();
        let request = PodRequest::PatchStatus(pod);
        told(&mut core, 1, PodEvent::Answered { request, answer: Answer::Accepted(None) });
        actions = told(&mut core, 1, changed(version, false));
    }
    assert!(patched(&actions).is_empty(), "not over and over: {actions:?}");
    let ends = told(&mut core, 2, changed(3, true));
    let removal = PodAction::RemovePod { pod: PodUid::new("u-0").unwrap(), keep_logs: false };
    assert!(ends.contains(&removal), "{ends:?}");
    let last = told(&mut core, 2, PodEvent::PodRemoved { pod: PodUid::new("u-0").unwrap() });
    assert!(last.iter().any(|action| matches!(action, PodAction::DeletePod(_))), "{last:?}");
}

#[test]
fn status_for_an_old_version_waits_for_news() {
    let mut core = begun();
    let pod = |version: u32| {
        let mut pod = misplaced(0);
        pod["metadata"]["resourceVersion"] = json!(version.to_string());
        pod
    };
    let listed = |version| PodEvent::PodsListed { node_uid: "n".into(), pods: vec![pod(version)] };
    let conflict = |pod: &PodRef| {
        let (reason, message) = ("Conflict".to_owned(), "it has another version".to_owned());
        let answer = Answer::Refused { status: 409, reason, message, retry_after: None };
        PodEvent::Answered { request: PodRequest::PatchStatus(pod.clone()), answer }
    };
    let named = |actions: &[PodAction]| {
        let versions =
            patched(actions).into_iter().map(|(_, patch)| patch["metadata"]["resourceVersion"].clone());
        versions.collect::<Vec<_>>()
    };
    let first = told(&mut core, 1, listed(7));
    assert_eq!(named(&first), ["7"], "an earlier agent may have sent one");
    let (reference, _) = patched(&first).pop().unwrap();
    let at_once = told(&mut core, 2, conflict(&reference));
    assert!(patched(&at_once).is_empty() && !at_once.contains(&PodAction::ListPods), "{at_once:?}");
    let seen = told(&mut core, 3, PodEvent::PodSeen(pod(8)));
    assert_eq!(named(&seen), ["8"], "no wait once it is known");
    // the watch was faster than the answer
    told(&mut core, 4, PodEvent::PodSeen(pod(9)));
    assert_eq!(named(&told(&mut core, 5, conflict(&reference))), ["9"]);
    told(&mut core, 6, conflict(&reference));
    let silence = told(&mut core, 600, PodEvent::Tick);
    assert!(patched(&silence).is_empty() && silence.contains(&PodAction::ListPods), "{silence:?}");
    assert!(told(&mut core, 601, PodEvent::Tick).is_empty(), "once");
    assert_eq!(named(&told(&mut core, 602, listed(11))), ["11"]);
    told(&mut core, 603, conflict(&reference));
    let again = told(&mut core, 604, PodEvent::PodSeen(pod(12)));
    assert!(patched(&again).is_empty(), "somebody changes it again and again: {again:?}");
    let last = told(&mut core, 2000, PodEvent::Tick);
    assert_eq!(named(&last), ["12"]);
    let request = PodRequest::PatchStatus(reference);
    let rest = told(&mut core, 2001, PodEvent::Answered { request, answer: Answer::Accepted(None) });
    assert!(patched(&rest).is_empty(), "{rest:?}");
}

#[test]
fn status_of_a_mirror_is_sent_once() {
    let mut core = begun();
    told(&mut core, 1, PodEvent::PodsListed { node_uid: "n".into(), pods: vec![] });
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: w}\nspec: {hostNetwork: true, containers: [{name: a, image: x}]}";
    let file = StaticFile { path: "/etc/static/w.yaml".into(), content: Ok(text.into()) };
    let actions = told(&mut core, 2, PodEvent::StaticPods(Ok(vec![file])));
    let creation = actions.into_iter().find_map(|action| match action {
        PodAction::CreateMirrorPod { namespace, name, pod } => Some((namespace, name, pod)),
        _ => None,
    });
    let (namespace, name, mut mirror) = creation.unwrap();
    (mirror["metadata"]["uid"], mirror["metadata"]["resourceVersion"]) = (json!("m"), json!("5"));
    let request = PodRequest::CreateMirror { namespace, name };
    let answer = Answer::Accepted(Some(mirror));
    let sent = patched(&told(&mut core, 3, PodEvent::Answered { request, answer }));
    let [(reference, _)] = &sent[..] else { panic!("{sent:?}") };
    // the answer has no object, and the watch has not shown the result yet
    let request = PodRequest::PatchStatus(reference.clone());
    let next = told(&mut core, 4, PodEvent::Answered { request, answer: Answer::Accepted(None) });
    assert!(patched(&next).is_empty(), "{next:?}");
}

#[test]
fn pod_that_may_not_run_is_asked_for_no_image_ahead() {
    let mut core = begun();
    let pod = |version: u32| {
        let mut pod = misplaced(0);
        pod["metadata"]["resourceVersion"] = json!(version.to_string());
        let request = json!({"revision": "r", "images": [{"image": "next:1", "policy": ""}]}).to_string();
        pod["metadata"]["annotations"] = json!({"kedge.dev/pull-ahead": request});
        pod
    };
    let pods = vec![pod(1)];
    let mut actions = told(&mut core, 1, PodEvent::PodsListed { node_uid: "n".into(), pods });
    let mut sent = 0;
    // each status is shown by the watch, with an annotation that the node does not keep
    for version in 2..8 {
        let Some((reference, patch)) = patched(&actions).pop() else { break };
        sent += 1;
        let mut stored = pod(version);
        stored["status"] = merged(&stored["status"], &patch["status"]);
        let request = PodRequest::PatchStatus(reference);
        actions = told(&mut core, 1, PodEvent::Answered { request, answer: Answer::Accepted(None) });
        actions.extend(told(&mut core, 1, PodEvent::PodSeen(stored)));
    }
    assert_eq!(sent, 1, "{actions:?}");
}

#[test]
fn list_from_a_backup_is_believed() {
    let mut core = begun();
    let pod = |version: &str, phase: &str| {
        let mut pod = misplaced(0);
        pod["metadata"]["resourceVersion"] = json!(version);
        pod["status"]["phase"] = json!(phase);
        vec![pod]
    };
    let listed = |pods| PodEvent::PodsListed { node_uid: "n".into(), pods };
    let sent = told(&mut core, 1, listed(pod("100", "Pending")));
    let (reference, patch) = patched(&sent).pop().unwrap();
    let mut stored = pod("101", "Failed").pop().unwrap();
    stored["status"] = patch["status"].clone();
    let request = PodRequest::PatchStatus(reference);
    let answer = Answer::Accepted(Some(stored));
    let rest = told(&mut core, 2, PodEvent::Answered { request, answer });
    assert!(patched(&rest).is_empty());
    let again = told(&mut core, 3, listed(pod("7", "Pending")));
    assert_eq!(patched(&again).len(), 1, "the status that the backup lacks");
}

#[test]
fn lost_answer_to_a_pod_too_many_is_given_again() {
    let (mut core, pods) = (begun(), (0..20).map(misplaced).collect());
    let actions = told(&mut core, 1, PodEvent::PodsListed { node_uid: "n".into(), pods });
    let mut patches = patched(&actions).into_iter();
    let (pod, _) = patches.find(|(_, patch)| patch["status"]["reason"] == "OutOfpods").unwrap();
    let lists = |actions: &[PodAction]| actions.iter().filter(|it| **it == PodAction::ListPods).count();
    let mut answer = |secs: u64, answer: Answer| {
        let request = PodRequest::PatchStatus(pod.clone());
        assert_eq!(lists(&told(&mut core, secs, PodEvent::Answered { request, answer })), 0, "not at once");
        (1..=2).map(|round| lists(&told(&mut core, secs + 1000 * round, PodEvent::Tick))).collect::<Vec<_>>()
    };
    let (reason, message) = (String::new(), String::new());
    assert_eq!(answer(10, Answer::Refused { status: 429, reason, message, retry_after: None }), [1, 0]);
    assert_eq!(answer(3000, Answer::Accepted(None)), [0, 0]);
}

#[test]
fn rejected_pods_cost_no_flash_and_are_limited() {
    let (mut core, pods) = (begun(), (0..20).map(misplaced).collect());
    let actions = told(&mut core, 1, PodEvent::PodsListed { node_uid: "n".into(), pods });
    let patches = patched(&actions);
    let count =
        |reason: &str| patches.iter().filter(|(_, patch)| patch["status"]["reason"] == reason).count();
    assert_eq!((count("NodeAffinity"), count("OutOfpods")), (8, 12), "each is answered");
    assert_eq!(core.kept()[0], ("pods", 8));
    let saves = actions.iter().filter(|action| matches!(action, PodAction::SaveDesired { .. })).count();
    assert_eq!(saves, 0, "what never ran is not recorded");
}

#[test]
fn run_that_was_made_by_a_killed_agent_is_started() {
    let pod = json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"},
        "spec": {"containers": [{"name": "a", "image": "x:1"}]}, "status": {"phase": "Pending"}});
    let uid = PodUid::new("u").unwrap();
    let key = ContainerKey { pod: uid.clone(), container: "a".into(), attempt: 0 };
    let mut core = begun();
    let listed = PodEvent::PodsListed { node_uid: "n".into(), pods: vec![pod] };
    let actions = told(&mut core, 1, listed);
    let saved = actions.into_iter().find_map(|action| match action {
        PodAction::SaveDesired { file, content } => {
            content.map(|content| DesiredFound { file, content: Ok(content) })
        }
        _ => None,
    });
    let mut core = Pods::new(NODE);
    let facts = NodeFacts { name: NODE.into(), pods: 2, ..NodeFacts::default() };
    told(&mut core, 2, PodEvent::Node(Box::new(facts)));
    told(&mut core, 2, PodEvent::Held(false));
    told(&mut core, 2, PodEvent::DesiredRead(Ok(saved.into_iter().collect())));
    let found = PodFound {
        uid,
        namespace: "d".into(),
        name: "p".into(),
        node_uid: "n".into(),
        network: Some(PodNetwork::default()),
    };
    let run = Observation {
        container: key.clone(),
        state: ContainerState::Created,
        image_name: "x:1".into(),
        image_reference: String::new(),
    };
    let inventory = Inventory { pods: vec![found], containers: vec![run], ..Inventory::default() };
    let actions = told(&mut core, 2, PodEvent::Inventory(inventory));
    assert!(actions.contains(&PodAction::StartContainer(key)), "not made again as a restart: {actions:?}");
}

#[test]
fn record_that_the_disk_keeps_is_removed_later() {
    let mut core = Pods::new(NODE);
    let facts = NodeFacts { name: NODE.into(), pods: 2, ..NodeFacts::default() };
    let file = DesiredFile::Pod(PodUid::new("u").unwrap());
    let garbage = DesiredFound { file: file.clone(), content: Ok(b"garbage".to_vec()) };
    told(&mut core, 1, PodEvent::Node(Box::new(facts)));
    told(&mut core, 1, PodEvent::Held(false));
    let object = DesiredFile::from_path(&format!("pods/objects/{}.json", "0".repeat(64))).unwrap();
    let secret = DesiredFound { file: object, content: Ok(b"garbage".to_vec()) };
    let actions = told(&mut core, 1, PodEvent::DesiredRead(Ok(vec![garbage, secret])));
    // a file that may be of a Secret is not kept aside
    assert!(actions.contains(&PodAction::KeepAside(vec![file.clone()])), "{actions:?}");
    told(&mut core, 1, PodEvent::Inventory(Inventory::default()));
    let removes = |actions: &[PodAction]| {
        actions.contains(&PodAction::SaveDesired { file: file.clone(), content: None })
    };
    let listed = PodEvent::PodsListed { node_uid: "n".into(), pods: vec![] };
    assert!(removes(&told(&mut core, 1, listed)), "neither here nor there");
    let mut saved = |secs: u64, done: Result<(), String>| {
        let event = PodEvent::DesiredSaved { file: file.clone(), done };
        assert!(!removes(&told(&mut core, secs, event)), "not at once");
        removes(&told(&mut core, secs + 1000, PodEvent::Tick))
    };
    assert!(saved(2, Err("disk full".into())), "it is tried again");
    assert!(saved(2000, Err("disk full".into())), "and again");
    assert!(!saved(4000, Ok(())), "until it is gone");
}

impl World {
    /// Everything works, and one pod has a token.
    fn with_a_token(seed: u64) -> (Self, PodUid) {
        let mut world = Self::new(seed, None);
        world.is_rough = false;
        let token =
            json!({"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_LIFE.as_secs()}});
        let object = json!({
            "metadata": {"name": "a", "namespace": "default", "uid": "pod-1", "generation": 1},
            "spec": {"containers": [{"name": "main", "image": "x:1"}], "serviceAccountName": "runs",
                "volumes": [{"name": TOKENS, "projected": {"sources": [token]}}]},
            "status": {"phase": "Pending"},
        });
        let key = ("default".to_owned(), "a".to_owned());
        world.api.objects.insert(key.clone(), object);
        world.changed(key);
        (world, PodUid::new("pod-1").unwrap())
    }

    /// One step: an action under way ends, or time passes if there is no such action.
    fn turn(&mut self) {
        if !self.runtime.queue.is_empty() {
            self.perform_command();
        } else if self.disk.is_read_again || !self.disk.queue.is_empty() {
            self.perform_write();
        } else if !self.api.requests.is_empty() {
            self.perform_request();
        } else if self.api.is_online && self.api.watch.as_ref().is_none_or(|watch| !watch.is_empty()) {
            self.hear();
        } else {
            let later = self.now + Duration::from_secs(10);
            let deadline = self.core.next_deadline().unwrap_or(later);
            self.now = deadline.clamp(self.now + Duration::from_millis(1), later);
            self.tell(PodEvent::Tick);
        }
    }

    /// When the token in the pod's volume ends.
    fn token_ends(&self, pod: &PodUid) -> Option<Duration> {
        let files = self.runtime.files.get(&(pod.clone(), TOKENS.to_owned()))?;
        let token = files.iter().find(|file| file.path == "token")?;
        Some(Duration::from_secs(std::str::from_utf8(&token.content).ok()?.parse().ok()?))
    }

    /// Causes one fault in each of a few rotations, this many turns after the token was requested; returns
    /// how many it caused.
    #[track_caller]
    fn rotate_under(&mut self, pod: &PodUid, at: usize, blow: fn(&mut Self)) -> usize {
        const ROTATIONS: usize = 3;
        let (mut known, mut rotations, mut dealt) = (None, 0, 0);
        let mut since_asked: Option<usize> = None;
        let mut is_struck = false;
        for _ in 0..20_000 {
            let asks = |request: &PodAction| matches!(request, PodAction::RequestToken(_));
            if since_asked.is_none() && self.api.requests.iter().any(asks) {
                since_asked = Some(0);
            }
            if !is_struck && known.is_some() && since_asked == Some(at) {
                (is_struck, dealt) = (true, dealt + 1);
                blow(self);
            } else {
                self.turn();
                since_asked = since_asked.map(|turns| turns + 1);
            }
            let ends = self.token_ends(pod);
            if self.is_running(pod) {
                let is_good = ends.is_some_and(|ends| self.now < ends);
                self.must(
                    is_good,
                    &format!("a running pod's token is good, {at} turns after it was asked for: {ends:?}"),
                );
            }
            // the turns after it belong to its rotation: a fault is caused there, too
            let is_over = since_asked.is_some_and(|turns| turns > at.max(6));
            if ends.is_some() && ends != known && is_over {
                rotations += usize::from(known.is_some());
                (known, since_asked, is_struck) = (ends, None, false);
                if rotations == ROTATIONS {
                    return dealt;
                }
            }
        }
        panic!("only {rotations} rotations, {dealt} blows, {at} turns after it was asked for");
    }
}

#[test]
fn token_is_good_through_a_blow_at_each_turn_of_its_rotation() {
    let blows: [fn(&mut World); 2] = [World::crash_agent, World::cut_power];
    for seed in 1..=4 {
        for blow in blows {
            for at in 0..12 {
                let (mut world, pod) = World::with_a_token(seed);
                let dealt = world.rotate_under(&pod, at, blow);
                assert!(dealt >= 2, "{dealt} blows, {at} turns after the token was asked for");
            }
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a failed walk is repeated by its seed")]
#[test]
fn random_walks_keep_every_promise() {
    if let Ok(seed) = std::env::var("KEDGE_SEED") {
        walk(seed.parse().unwrap());
        return;
    }
    for seed in (0..WALKS).chain(FOUND) {
        walk(seed);
    }
}

#[test]
fn every_lie_is_noticed() {
    for (lie, invariant) in Lie::ALL {
        let broken = (0..LIE_WALKS).find_map(|seed| {
            let done = std::panic::catch_unwind(|| walk_with(seed, Some(lie)));
            let text = done.err()?.downcast::<String>().unwrap();
            text.contains(invariant).then_some(seed)
        });
        assert!(broken.is_some(), "{lie:?} is not noticed: {invariant}");
    }
}
