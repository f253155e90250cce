//! The runtime, the images and the desired set of a simulated node: the content of `/run`, of the disk and of
//! the registry, and the processes of containers.
//!
//! Owns the true state of each container, apart from what the agent was shown of it. Always holds: commands
//! are performed in order; one that was under way when the agent or the power failed is done completely, by
//! half or not at all; `/run` and unsynced layers are lost with the power, records and logs stay. A pull
//! consists of pieces and may break off between two; a container may ignore all signals but SIGKILL. It can
//! fail, hang, and lie (`Lie`), and keeps the first broken promise that it noticed. Leaves to others: the
//! checks at rest (`tests/pods`), a configuration's disk (`disk`).

use kedge_api::Timestamp;
use kedge_core::images::room::Disk;
use kedge_core::images::thresholds::Collected;
use kedge_core::pods::{
    Command, ContainerKey, ContainerOrder, ContainerState, DesiredFile, DesiredFound, Exit, Failure,
    FailureReason, Health, HookNote, Image, ImageConfig, ImageOrder, Inventory, Observation, PodAction,
    PodEvent, PodFound, PodNetwork, PodUid, ProbeOutcome,
};
use kedge_core::sorted::SortedMap;
use kedge_platform::fake::Random;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// One in this many commands fails, where commands may fail.
const FAILS: u64 = 12;
/// There, one in this many containers does not end on a signal,
const DEAF: u64 = 3;
/// and one in this many pieces of an image is the last before the connection breaks.
const CUTS: u64 = 4;
/// Pieces of an image.
const PIECES: u32 = 3;

/// A false behaviour of the runtime or the disk: a test must notice each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// The end of an agent ends its containers, too.
    EndsWithTheAgent,
    /// A stopped container keeps running.
    StopIsIgnored,
    /// Nobody sees the end of a container.
    EndIsUnseen,
    /// A layer is recorded as complete before it is synced.
    LayerIsNotSynced,
    /// A pod is reported prepared, but only half of it is.
    HalfIsWhole,
    /// A pod is reported recorded, but is not.
    RecordIsNotWritten,
    /// A record is reported removed, but stays.
    RecordStays,
    /// The images that pods need are not recorded.
    NeedIsNotNoted,
    /// A pull that broke off is reported as complete.
    CutIsWhole,
    /// A container that does not end on a signal is never killed.
    KillIsForgotten,
}

/// One run of one container.
#[derive(Debug, Clone)]
struct Run {
    /// As the runtime shows it.
    shown: Observation,
    /// Its process exists.
    is_live: bool,
    /// It was started, and nothing has happened since that may end it.
    should_live: bool,
    pod: (String, String),
    /// Only SIGKILL ends it.
    is_deaf: bool,
    /// When it will be killed, after an order to end; in time since the board's boot.
    kill_at: Option<Duration>,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Containers {
    // in /run
    pods: BTreeMap<PodUid, PodFound>,
    runs: BTreeMap<ContainerKey, Run>,
    health: SortedMap<ContainerKey, Health>,
    hooks: SortedMap<ContainerKey, HookNote>,
    /// Processes of runs that were removed, which only a lie can cause.
    ghosts: Vec<((String, String), String)>,
    // on the disk
    logs: SortedMap<PodUid, SortedMap<String, u32>>,
    desired: BTreeMap<DesiredFile, Vec<u8>>,
    /// Images that a record lists as complete.
    vouched: BTreeSet<String>,
    /// Layers, and whether they are synced.
    layers: BTreeMap<String, bool>,
    needed: BTreeSet<String>,
    /// Arrived pieces of incomplete images.
    parts: BTreeMap<String, u32>,
    // of the agent that runs
    queue: VecDeque<PodAction>,
    /// Pulls whose beginning was reported.
    begun: BTreeSet<(PodUid, String)>,
    wants_inventory: bool,
    random: Random,
    /// Commands may fail.
    pub fails: bool,
    /// As on a dead mount: commands that create, stop or remove wait.
    pub is_stuck: bool,
    pub lie: Option<Lie>,
    /// UIDs of pods that somebody deleted.
    pub asked_to_end: BTreeSet<String>,
    /// The first broken promise.
    pub broken: Option<String>,
    /// Runs started in this node's whole life.
    pub started: u64,
    /// Runs that a later agent found alive.
    pub adopted: u64,
    /// Runs that did not end on a signal, and were killed after their grace period.
    pub killed: u64,
    /// Pulls that broke off, and pulls that continued an earlier one.
    pub cut: u64,
    pub resumed: u64,
}

impl Containers {
    pub fn new(seed: u64) -> Self {
        Self {
            pods: BTreeMap::new(),
            runs: BTreeMap::new(),
            health: SortedMap::new(),
            hooks: SortedMap::new(),
            ghosts: Vec::new(),
            logs: SortedMap::new(),
            desired: BTreeMap::new(),
            vouched: BTreeSet::new(),
            layers: BTreeMap::new(),
            needed: BTreeSet::new(),
            parts: BTreeMap::new(),
            queue: VecDeque::new(),
            begun: BTreeSet::new(),
            wants_inventory: false,
            random: Random::new(seed),
            fails: false,
            is_stuck: false,
            lie: None,
            asked_to_end: BTreeSet::new(),
            broken: None,
            started: 0,
            adopted: 0,
            killed: 0,
            cut: 0,
            resumed: 0,
        }
    }

    fn must(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds && self.broken.is_none() {
            self.broken = Some(what());
        }
    }

    // ------------------------------------------------------------------------------------------ looking

    /// Whether a process of this pod's container runs.
    pub fn runs(&self, uid: &str) -> bool {
        self.runs.iter().any(|(key, run)| key.pod.as_str() == uid && run.is_live)
    }

    /// Whether the process of the run with this ID exists.
    pub fn is_live(&self, id: &str) -> bool {
        self.runs.iter().any(|(key, run)| key.id() == id && run.is_live)
    }

    /// Images of running containers.
    pub fn running_images(&self) -> BTreeSet<String> {
        self.runs.values().filter(|run| run.is_live).map(|run| run.shown.image_name.clone()).collect()
    }

    /// UIDs of the pods that still have something in `/run`, and of those with a record.
    pub fn left(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let of_runs = self.runs.keys().map(|key| &key.pod);
        let there = self.pods.keys().chain(of_runs).map(|uid| uid.as_str().to_owned()).collect();
        let recorded = self.desired.keys().filter_map(|file| match file {
            DesiredFile::Pod(uid) => Some(uid.as_str().to_owned()),
            DesiredFile::Object(_) => None,
        });
        (there, recorded.collect())
    }

    /// The largest number of runs kept of one container.
    pub fn most_runs(&self) -> usize {
        let mut counts = BTreeMap::new();
        for key in self.runs.keys() {
            *counts.entry((&key.pod, &key.container)).or_insert(0) += 1;
        }
        counts.into_values().max().unwrap_or(0)
    }

    /// When the next container that did not end on a signal is killed.
    pub fn next_kill(&self) -> Option<Duration> {
        let waits = self.is_stuck || self.lie == Some(Lie::KillIsForgotten);
        let due = self.runs.values().filter(|run| run.is_live).filter_map(|run| run.kill_at);
        due.min().filter(|_| !waits)
    }

    /// Judged after each act: a started container runs until something happens that may end it.
    pub fn check(&mut self) -> Result<(), String> {
        let dead = self.runs.iter().find(|(_, run)| run.should_live && !run.is_live).map(|(key, _)| key.id());
        self.must(dead.is_none(), || {
            format!("invariant_no_end_of_the_agent_ends_a_container: {} ended", dead.unwrap_or_default())
        });
        self.broken.take().map_or(Ok(()), Err)
    }

    // ------------------------------------------------------------------------------------------ what happens

    /// A new agent begins.
    pub(crate) fn new_process(&mut self) {
        self.wants_inventory = true;
        self.adopted += self.runs.values().filter(|run| run.is_live).count() as u64;
    }

    /// The agent ended: the first of its pending commands are done, unheard, and the next one perhaps by
    /// half.
    pub(crate) fn agent_ended(&mut self, now: Timestamp) {
        let mut queue = std::mem::take(&mut self.queue);
        let whole = self.random.index(queue.len() + 1);
        let rest = queue.split_off(whole);
        for action in queue {
            self.perform(action, true, (now, Duration::ZERO));
        }
        if let Some(action) = rest.into_iter().next() {
            self.do_half(action);
        }
        // waits for the end of a grace period, and downloads, end with the agent
        self.queue.clear();
        self.begun.clear();
        self.runs.values_mut().for_each(|run| run.kill_at = None);
        if self.lie == Some(Lie::EndsWithTheAgent) {
            self.runs.values_mut().filter(|run| run.is_live).for_each(|run| end(run, &exited(143, Some(15))));
        }
    }

    fn do_half(&mut self, action: PodAction) {
        match action {
            PodAction::PreparePod(pod) => {
                let found = PodFound {
                    uid: pod.uid.clone(),
                    namespace: pod.namespace,
                    name: pod.name,
                    node_uid: pod.node_uid,
                    network: None,
                };
                self.pods.entry(pod.uid).or_insert(found);
            }
            // downloaded, by half or completely, but not recorded
            PodAction::PullImage(order) if self.random.percent(50) => self.fetch_piece(&order.image),
            PodAction::PullImage(order) => drop(self.layers.entry(order.image).or_insert(false)),
            PodAction::CreateContainer(order) if self.layers.get(&order.image.id) == Some(&true) => {
                drop(self.create(*order));
            }
            _ => {}
        }
    }

    /// The power failed, and the agent with it.
    pub(crate) fn power_lost(&mut self) {
        for action in std::mem::take(&mut self.queue).into_iter().take(self.random.index(4)) {
            if let PodAction::SaveDesired { file, content } = action {
                self.save(file, content);
            }
        }
        (self.pods, self.runs, self.health, self.hooks) = Default::default();
        self.ghosts.clear();
        self.layers.retain(|_, is_synced| *is_synced);
        // the disk keeps a part of the unsynced data
        let kept = u32::try_from(self.random.index(PIECES as usize)).expect("it is small");
        self.parts.values_mut().for_each(|pieces| *pieces = (*pieces).min(kept));
        self.begun.clear();
        self.is_stuck = false;
    }

    /// A container ends by itself.
    pub fn end_one(&mut self, exit: &Exit) -> Option<PodEvent> {
        let live: Vec<ContainerKey> =
            self.runs.iter().filter(|(_, run)| run.is_live).map(|(key, _)| key.clone()).collect();
        let key = live.get(self.random.index(live.len()))?;
        let run = self.runs.get_mut(key)?;
        if self.lie == Some(Lie::EndIsUnseen) {
            (run.is_live, run.should_live) = (false, false);
            return None;
        }
        end(run, &ContainerState::Exited(exit.clone()));
        run.should_live = false;
        Some(PodEvent::Observed(run.shown.clone()))
    }

    /// `kedge images prune`: removes images that nobody recorded as needed. Returns the removed ones.
    pub fn prune(&mut self) -> Vec<String> {
        let goes: Vec<String> =
            self.vouched.iter().filter(|name| !self.needed.contains(*name)).cloned().collect();
        for name in &goes {
            self.vouched.remove(name);
            self.layers.remove(name);
        }
        goes
    }

    // ------------------------------------------------------------------------------------------ orders

    pub(crate) fn order(&mut self, action: PodAction) {
        if let PodAction::StopContainer { container, .. } = &action {
            let is_asked = self.asked_to_end.contains(container.pod.as_str());
            self.must(is_asked, || {
                format!("invariant_no_end_of_the_agent_ends_a_container: {container} is stopped unasked")
            });
            if let Some(run) = self.runs.get_mut(container) {
                run.should_live = false;
            }
        }
        self.queue.push_back(action);
    }

    pub(crate) fn need(&mut self, images: BTreeSet<String>, is_all: bool) {
        if self.lie == Some(Lie::NeedIsNotNoted) {
            return;
        }
        if is_all {
            self.needed.clear();
        }
        self.needed.extend(images);
    }

    /// The next answer for the agent; `None` if nothing is to be done, or everything waits.
    pub(crate) fn next(&mut self, is_online: bool, now: (Timestamp, Duration)) -> Option<PodEvent> {
        if std::mem::take(&mut self.wants_inventory) {
            return Some(PodEvent::Inventory(self.inventory()));
        }
        if self.next_kill().is_some_and(|due| due <= now.1) {
            let mut runs = self.runs.values_mut();
            let run = runs.find(|run| run.is_live && run.kill_at.is_some_and(|due| due <= now.1))?;
            end(run, &exited(137, Some(9)));
            self.killed += 1;
            return Some(PodEvent::Observed(run.shown.clone()));
        }
        let waits = |action: &PodAction| {
            matches!(
                action,
                PodAction::PreparePod(_) | PodAction::StopContainer { .. } | PodAction::RemovePod { .. }
            )
        };
        loop {
            let at = self.queue.iter().position(|action| !self.is_stuck || !waits(action))?;
            let action = self.queue.remove(at)?;
            let event = self.perform(action, is_online, now);
            if event.is_some() {
                return event;
            }
        }
    }

    fn inventory(&self) -> Inventory {
        Inventory {
            pods: self.pods.values().cloned().collect(),
            containers: self.runs.values().map(|run| run.shown.clone()).collect(),
            logs: self.logs.clone(),
            health: self.health.clone(),
            hooks: self.hooks.clone(),
        }
    }

    fn perform(
        &mut self,
        action: PodAction,
        is_online: bool,
        now: (Timestamp, Duration),
    ) -> Option<PodEvent> {
        let fails = self.fails && self.random.one_in(FAILS);
        let failed = |command, message: &str| {
            let failure = Failure { reason: FailureReason::Other, message: message.to_owned() };
            Some(PodEvent::Failed { command, failure })
        };
        match action {
            PodAction::PreparePod(pod) => {
                let network = (!fails).then(PodNetwork::default);
                let found = PodFound {
                    uid: pod.uid.clone(),
                    namespace: pod.namespace,
                    name: pod.name,
                    node_uid: pod.node_uid,
                    network: network.clone(),
                };
                self.pods.insert(pod.uid.clone(), found);
                match network.or_else(|| (self.lie == Some(Lie::HalfIsWhole)).then(PodNetwork::default)) {
                    Some(network) => Some(PodEvent::PodPrepared { pod: pod.uid, network }),
                    None => failed(Command::PreparePod(pod.uid), "mount: input/output error"),
                }
            }
            PodAction::UpdateVolumes { pod, .. } => Some(PodEvent::VolumesUpdated { pod }),
            PodAction::PullImage(order) => {
                let command =
                    Command::PullImage { pod: order.pod.clone(), container: order.container.clone() };
                let key = (order.pod.clone(), order.container.clone());
                if fails || !is_online && !self.vouched.contains(&order.image) {
                    self.begun.remove(&key);
                    return failed(command, "the registry does not answer");
                }
                if self.vouched.contains(&order.image) {
                    self.begun.remove(&key);
                    return Some(self.pull(*order));
                }
                if self.begun.insert(key.clone()) {
                    self.resumed += u64::from(self.parts.contains_key(&order.image));
                    let (pod, container) = key;
                    self.queue.push_back(PodAction::PullImage(order));
                    return Some(PodEvent::ImagePulling { pod, container });
                }
                self.fetch_piece(&order.image);
                if self.fails && self.random.one_in(CUTS) {
                    self.cut += 1;
                    self.begun.remove(&key);
                    return match self.lie {
                        Some(Lie::CutIsWhole) => Some(ready(*order)),
                        _ => failed(command, "the registry broke off"),
                    };
                }
                if self.parts[&order.image] < PIECES {
                    self.queue.push_back(PodAction::PullImage(order));
                    return None;
                }
                self.begun.remove(&key);
                self.parts.remove(&order.image);
                Some(self.pull(*order))
            }
            PodAction::CreateContainer(order) if fails => {
                failed(Command::CreateContainer(order.key), "crun failed")
            }
            PodAction::CreateContainer(order) => Some(self.create(*order)),
            PodAction::StartContainer(key) if fails => failed(Command::StartContainer(key), "crun failed"),
            PodAction::StartContainer(key) => self.start(&key, now.0),
            PodAction::StopContainer { container, grace, .. } => self.stop(&container, now.1 + grace, now.1),
            PodAction::RemoveContainer(key) => Some(self.remove(key)),
            PodAction::RemovePod { pod, keep_logs } => {
                self.pods.remove(&pod);
                if !keep_logs {
                    self.logs.remove(&pod);
                }
                Some(PodEvent::PodRemoved { pod })
            }
            PodAction::RunProbe(order) => {
                Some(PodEvent::Probed { probe: order.key, outcome: ProbeOutcome::Passed })
            }
            PodAction::RunHook(order) => {
                Some(PodEvent::HookEnded { container: order.container, kind: order.kind, done: Ok(()) })
            }
            PodAction::StopRun(_) => None,
            PodAction::NoteHealth { container, health } => {
                self.health.insert(container, health);
                None
            }
            PodAction::NoteHook { container, note } => {
                self.hooks.insert(container, note);
                None
            }
            PodAction::SaveDesired { file, .. } if fails => {
                Some(PodEvent::DesiredSaved { file, done: Err("no space left on device".into()) })
            }
            PodAction::SaveDesired { file, content } => {
                self.save(file.clone(), content);
                Some(PodEvent::DesiredSaved { file, done: Ok(()) })
            }
            PodAction::ReadDesired => {
                let found = self.desired.iter();
                let found = found
                    .map(|(file, content)| DesiredFound { file: file.clone(), content: Ok(content.clone()) });
                Some(PodEvent::DesiredRead(Ok(found.collect())))
            }
            PodAction::ReadStaticPods(_) => Some(PodEvent::StaticPods(Ok(Vec::new()))),
            PodAction::CollectImages(_) => {
                let images = self.prune();
                let disk = Disk {
                    capacity_bytes: 1 << 30,
                    available_bytes: 1 << 29,
                    inodes: 1 << 16,
                    inodes_free: 1 << 15,
                };
                let problems = Vec::new();
                let collected = Collected { disk, wanted_bytes: 0, freed_bytes: 0, images, problems };
                Some(PodEvent::ImagesCollected(Ok(collected)))
            }
            // meant for the API server or the log: core never gives these to the board
            _ => None,
        }
    }

    fn save(&mut self, file: DesiredFile, content: Option<Vec<u8>>) {
        match content {
            Some(_) if self.lie == Some(Lie::RecordIsNotWritten) => {}
            Some(content) => drop(self.desired.insert(file, content)),
            None if self.lie == Some(Lie::RecordStays) => {}
            None => drop(self.desired.remove(&file)),
        }
    }

    /// Continues where an earlier try ended.
    fn fetch_piece(&mut self, image: &str) {
        let pieces = self.parts.entry(image.to_owned()).or_default();
        *pieces = (*pieces + 1).min(PIECES);
    }

    fn pull(&mut self, order: ImageOrder) -> PodEvent {
        if self.vouched.insert(order.image.clone()) {
            self.layers.insert(order.image.clone(), self.lie != Some(Lie::LayerIsNotSynced));
        }
        ready(order)
    }

    fn create(&mut self, order: ContainerOrder) -> PodEvent {
        let is_synced = self.layers.get(&order.image.id) == Some(&true);
        self.must(is_synced, || {
            format!("invariant_an_image_not_wholly_synced_is_not_run: {} for {}", order.image.id, order.key)
        });
        let is_prepared = self.pods.get(&order.key.pod).is_some_and(|pod| pod.network.is_some());
        self.must(is_prepared, || format!("invariant_a_half_prepared_pod_is_not_run: {}", order.key));
        let key = order.key;
        self.logs.entry(key.pod.clone()).or_default().insert(key.container.clone(), key.attempt);
        let shown = Observation {
            container: key.clone(),
            state: ContainerState::Created,
            image_name: order.image_name,
            image_reference: order.image.reference,
        };
        let pod = (order.namespace, order.pod_name);
        let is_deaf = self.fails && self.random.one_in(DEAF);
        let run =
            Run { shown: shown.clone(), is_live: false, should_live: false, pod, is_deaf, kill_at: None };
        self.runs.insert(key, run);
        PodEvent::Observed(shown)
    }

    fn start(&mut self, key: &ContainerKey, now: Timestamp) -> Option<PodEvent> {
        let pod = self.runs.get(key)?.pod.clone();
        let is_it = |other: &(String, String), container: &str| *other == pod && container == key.container;
        let twin = self.runs.iter().any(|(other, run)| run.is_live && is_it(&run.pod, &other.container))
            || self.ghosts.iter().any(|(other, container)| is_it(other, container));
        self.must(!twin, || format!("invariant_no_pod_runs_twice: {key} beside another run"));
        self.started += 1;
        let run = self.runs.get_mut(key)?;
        run.shown.state = ContainerState::Running { pid: 7, started: now };
        (run.is_live, run.should_live) = (true, true);
        Some(PodEvent::Observed(run.shown.clone()))
    }

    fn stop(&mut self, key: &ContainerKey, kill_at: Duration, now: Duration) -> Option<PodEvent> {
        let run = self.runs.get_mut(key)?;
        if run.is_live && run.is_deaf && kill_at > now {
            run.kill_at = Some(run.kill_at.map_or(kill_at, |earlier| earlier.min(kill_at)));
            return None;
        }
        let was_live = run.is_live;
        if was_live {
            let (code, signal) = if run.is_deaf { (137, 9) } else { (143, 15) };
            end(run, &exited(code, Some(signal)));
            run.is_live = self.lie == Some(Lie::StopIsIgnored);
        }
        Some(PodEvent::Observed(run.shown.clone()))
    }

    fn remove(&mut self, key: ContainerKey) -> PodEvent {
        if let Some(run) = self.runs.remove(&key)
            && run.is_live
        {
            let is_lie = self.lie.is_some();
            self.must(is_lie, || format!("invariant_no_pod_runs_twice: {key} is removed while it runs"));
            self.ghosts.push((run.pod, key.container.clone()));
        }
        self.health.remove(&key);
        self.hooks.remove(&key);
        PodEvent::ContainerRemoved(key)
    }
}

fn ready(order: ImageOrder) -> PodEvent {
    let config = ImageConfig { cmd: vec!["/run".into()], ..ImageConfig::default() };
    let image =
        Image { id: order.image.clone(), reference: order.image, config, size_bytes: 0, pulled: None };
    PodEvent::ImageReady { pod: order.pod, container: order.container, image }
}

fn exited(code: i32, signal: Option<i32>) -> ContainerState {
    ContainerState::Exited(Exit {
        code,
        signal,
        oom_killed: false,
        started: None,
        finished: None,
        message: String::new(),
    })
}

fn end(run: &mut Run, state: &ContainerState) {
    run.shown.state = state.clone();
    (run.is_live, run.kill_at) = (false, None);
}
