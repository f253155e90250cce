//! The runtime's loop: the pods' orders to this machine, except for images that must be fetched (`pulls`).
//!
//! Always holds: the main loop never waits for it, because core orders one action at a time for each
//! container; each order is answered as its contract says; a disk or a crun that hangs shows in the node's
//! `Ready` condition, with the order, and withholds no watchdog ping, because a kill could not end the hang,
//! and would end the heartbeat. This loop does not touch paths that a pod chooses. A present image waits for
//! no pull; no image is removed before the images that pods need are recorded durably. Leaves to others:
//! containers (`workloads`), images (`images`, `pulls`), every decision (core).

use super::pulls::{ImagePlace, PullQueue, Pulls};
use super::rest::Rest;
use crate::errors::chain;
use crate::images::{Puller, Store};
use crate::locks::locked;
use crate::net::transport::WallClock;
use crate::queue::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use crate::workloads::measure::Places;
use crate::workloads::network::Plugins;
use crate::workloads::{Node, Performer, looks, volumes};
use kedge_core::kubelet::Config;
use kedge_core::pods::{FailureReason, ImageOrder, Measure, PodAction, PodEvent, PodUid, PullPolicy};
use kedge_core::{Event, Runtime};
use kedge_platform::HostFacts as _;
use kedge_platform::linux::{LinuxHost, Roots, give_back_stack};
use kedge_platform::workloads::{Board, Cgroups, LinuxWorkloads, Settings, Waker};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender as EventSender;

/// Room for TLS, for the reading of an image's manifest, and for crun's orders. Only pages in use become
/// memory.
const STACK_BYTES: usize = 256 * 1024;
/// How long the runtime's loop waits for an event.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest that one order may take before the node says that its runtime does not answer: three steps of
/// crun.
const ORDER_LIMIT: Duration = Duration::from_secs(180);
/// Between two checks of a machine that cannot run containers, doubled up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Least memory for all pods together, whatever is reserved: with less not even one would start.
const LEAST_MEMORY: u64 = 64 << 20;

/// The state of the runtime.
#[derive(Debug, Default)]
pub(crate) struct RuntimeHealth {
    health: Mutex<Health>,
    /// crun.
    program: PathBuf,
    /// Why no container can begin, though what there is can be followed and ended.
    obstacle: Mutex<Option<String>>,
    /// The controllers that the kernel lacks, once somebody has looked.
    lacking_controllers: Mutex<Option<Vec<&'static str>>>,
    /// Ends the wait of the loop.
    waker: OnceLock<Waker>,
}

#[derive(Debug, Default)]
enum Health {
    #[default]
    Starting,
    /// No container can run, for this reason.
    Broken(String),
    /// It works, and its present order should have ended by then.
    Works { until: Instant, at: String },
}

impl RuntimeHealth {
    pub(crate) fn of(program: PathBuf) -> Self {
        Self { program, ..Self::default() }
    }

    fn set(&self, health: Health) {
        *locked(&self.health) = health;
    }

    /// Why no container can begin, if so. crun may come and go at any time.
    fn missing(&self) -> Option<String> {
        match self.program.is_file() {
            true => locked(&self.obstacle).clone(),
            false => Some(format!("{} is not there: no container can start", self.program.display())),
        }
    }

    pub(crate) fn lacking_controllers(&self) -> Option<Vec<&'static str>> {
        locked(&self.lacking_controllers).clone()
    }

    fn expect_within(&self, limit: Duration, at: impl Into<String>) {
        self.set(Health::Works { until: Instant::now() + limit, at: at.into() });
    }

    /// Its present order.
    pub(crate) fn is_at(&self) -> String {
        match &*locked(&self.health) {
            Health::Starting => "it starts".into(),
            Health::Broken(why) => why.clone(),
            Health::Works { at, .. } => format!("it is at this: {at}"),
        }
    }

    /// Never blocks. It is called with each look at the host, so it also has the loop look for crun again.
    pub(crate) fn report(&self) -> Runtime {
        let not_ready = |why: &str| Runtime::NotReady(format!("container runtime is not ready: {why}"));
        match &*locked(&self.health) {
            Health::Starting => return Runtime::Starting,
            Health::Broken(why) => return not_ready(why),
            Health::Works { until, at } if *until < Instant::now() => {
                return not_ready(&format!("an order of it does not come to an end: {at}"));
            }
            Health::Works { .. } => {}
        }
        let Some(why) = self.missing() else { return Runtime::Ready };
        if locked(&self.obstacle).is_some()
            && let Some(waker) = self.waker.get()
        {
            waker.wake();
        }
        Runtime::Missing(why)
    }
}

/// The parts that the loops need.
pub(crate) struct ContainerParts {
    pub(crate) settings: Settings,
    pub(crate) root_dir: PathBuf,
    pub(crate) preloaded_images: PathBuf,
    pub(crate) clock: WallClock,
    pub(crate) events: EventSender<Event>,
    pub(crate) health: Arc<RuntimeHealth>,
}

enum Order {
    /// The first order of all.
    Begin(Box<RuntimeLoop>),
    Pod(PodAction),
    /// Images that pods need, and whether those are all.
    Needed(BTreeSet<String>, bool),
}

/// The order, for people.
impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin(_) => f.write_str("begin"),
            Self::Needed(..) => f.write_str("note which images pods need"),
            Self::Pod(action) => match action {
                PodAction::PreparePod(pod) => write!(f, "prepare pod {}/{}", pod.namespace, pod.name),
                PodAction::UpdateVolumes { pod, .. } => write!(f, "update the volumes of pod {pod}"),
                PodAction::CreateContainer(order) => {
                    write!(f, "create container {} of pod {}/{}", order.key, order.namespace, order.pod_name)
                }
                PodAction::StartContainer(key) => write!(f, "start container {key}"),
                PodAction::StopContainer { container, .. } => write!(f, "stop container {container}"),
                PodAction::RemoveContainer(key) => write!(f, "remove container {key}"),
                PodAction::RemovePod { pod, .. } => write!(f, "remove pod {pod}"),
                PodAction::PullImage(order) => write!(f, "look for image {}", order.image),
                _ => f.write_str("note something about a pod"),
            },
        }
    }
}

/// Channels to the loops.
pub(crate) struct Containers {
    orders: Sender<Order>,
    waker: Arc<OnceLock<Waker>>,
    thread: JoinHandle<()>,
    rest: Arc<Rest>,
    has_begun: bool,
}

impl Containers {
    /// Starts the runtime's loop, which waits for its configuration.
    ///
    /// # Errors
    /// The system gave no thread for it.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (orders, incoming) = channel();
        let waker = Arc::new(OnceLock::new());
        let rest = Arc::new(Rest::default());
        let (given, at_rest) = (waker.clone(), rest.clone());
        let thread = spawn("containers", move || {
            if let Ok(Order::Begin(runtime)) = at_rest.during(|| incoming.recv()) {
                runtime.run(&incoming, &given, &at_rest);
                runtime.pulls.close();
            }
        })?;
        Ok(Self { orders, waker, thread, rest, has_begun: false })
    }

    /// Starts work under this configuration.
    pub(crate) fn begin(&mut self, parts: &ContainerParts, config: &Config) {
        let place = ImagePlace {
            root_dir: parts.root_dir.clone(),
            preloaded: parts.preloaded_images.clone(),
            registries: config.registries.clone(),
            clock: parts.clock.clone(),
        };
        let runtime = RuntimeLoop {
            settings: parts.settings.clone(),
            node: node(parts, config),
            events: parts.events.clone(),
            health: parts.health.clone(),
            puller: Arc::new(Pulls::new(place.clone(), parts.events.clone())),
            place,
            pulls: Arc::new(PullQueue::new(&config.images)),
            pulls_at_once: config.images.pulls_at_once,
        };
        self.send(Order::Begin(Box::new(runtime)));
        self.has_begun = true;
    }

    /// Whether it accepts orders.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    pub(crate) fn order(&self, action: PodAction) {
        self.send(Order::Pod(action));
    }

    pub(crate) fn need_images(&self, images: BTreeSet<String>, is_all: bool) {
        self.send(Order::Needed(images, is_all));
    }

    fn send(&self, order: Order) {
        let _ = self.orders.send(order);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// Asks the loop to rest.
    pub(crate) fn rest(&self) {
        self.rest.begin();
        self.wake();
    }

    pub(crate) fn rests(&self) -> bool {
        self.rest.rests()
    }

    pub(crate) fn go_on(&self) {
        self.rest.go_on();
    }

    /// Ends the runtime's loop, so that no step of it is cut off. Returns false if it has not ended within
    /// `limit`.
    pub(crate) fn end(self, limit: Duration) -> bool {
        self.wake();
        drop(self.orders);
        self.rest.end();
        let end = Instant::now() + limit;
        while !self.thread.is_finished() {
            if Instant::now() > end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).stack_size(STACK_BYTES).spawn(body)
}

/// The performer's settings, except for those that only the runtime knows.
fn node(parts: &ContainerParts, config: &Config) -> Node {
    let host = LinuxHost::new(Roots::default(), &parts.root_dir);
    let memory_bytes = host.capacity().memory_bytes;
    Node {
        pods_group: parts.settings.pods_group.clone(),
        has_unified_groups: false,
        least_oom_score: -1000,
        lacking_capabilities: 0,
        memory_bytes,
        allocatable_memory_bytes: kedge_core::allocatable_memory(memory_bytes, config).max(LEAST_MEMORY),
        processes: None,
        pod_pids_limit: config.pods.pids_limit,
        volumes: volumes::Places {
            disk: parts.root_dir.join("volumes"),
            memory: parts.settings.run.join("volumes"),
        },
        seccomp: parts.root_dir.join("seccomp"),
        logs: (&config.pod_logs_dir).into(),
        log_max_bytes: config.pods.log_max_bytes,
        log_max_files: config.pods.log_max_files,
        etc: "/etc".into(),
        plugins: Plugins::default(),
        plugins_lock: parts.settings.run.join("plugins.lock"),
        networks: parts.root_dir.join("networks"),
        looks: looks::Places {
            program: parts.settings.program.clone(),
            locks: parts.settings.run.join("looks"),
        },
        cluster_dns: name_servers(config),
        cluster_domain: search_domain(config),
    }
}

fn name_servers(config: &Config) -> Vec<String> {
    let (servers, wrong) = config.name_servers();
    for wrong in wrong {
        log::warn!("clusterDNS has {:?}, expected an IP address; it is left out", kedge_api::excerpt(wrong));
    }
    servers
}

/// The cluster's domain for the `search` line of pods' resolv.conf; empty if `clusterDomain` has white space
/// or control characters, which would break that line.
fn search_domain(config: &Config) -> String {
    let domain = &config.cluster_domain;
    if domain.contains(|part: char| part.is_whitespace() || part.is_control()) {
        log::warn!("clusterDomain is {:?}, expected a domain; it is left out", kedge_api::excerpt(domain));
        return String::new();
    }
    domain.clone()
}

struct RuntimeLoop {
    settings: Settings,
    place: ImagePlace,
    node: Node,
    events: EventSender<Event>,
    health: Arc<RuntimeHealth>,
    puller: Arc<Pulls>,
    pulls: Arc<PullQueue>,
    pulls_at_once: u32,
}

/// A working runtime.
struct Running {
    performer: Performer<LinuxWorkloads, Store>,
    store: Store,
    puller: Puller,
    unnoted: Unnoted,
    /// When it is looked again whether containers can begin, and the pause after that; None: they can.
    looks: Option<(Instant, Duration)>,
}

/// Images that pods need and that could not be recorded durably yet, and whether they are all.
#[derive(Default)]
struct Unnoted(Option<(BTreeSet<String>, bool)>);

impl Unnoted {
    /// Adds the images that pods need now to those that could not be recorded before; replaces them if these
    /// are all.
    fn add(&mut self, mut images: BTreeSet<String>, is_all: bool) {
        let before = self.0.take().filter(|_| !is_all);
        let was_all = before.as_ref().is_some_and(|(_, was_all)| *was_all);
        images.extend(before.into_iter().flat_map(|(images, _)| images));
        self.0 = Some((images, is_all || was_all));
    }

    /// Records them.
    fn note(&mut self, store: &Store) -> Result<(), String> {
        let Some((images, is_all)) = &self.0 else { return Ok(()) };
        let noted = store.set_needed(images.clone(), *is_all);
        noted.map_err(|error| format!("which images pods need could not be noted: {error}"))?;
        self.0 = None;
        Ok(())
    }
}

impl RuntimeLoop {
    fn run(&self, orders: &Receiver<Order>, waker: &OnceLock<Waker>, rest: &Rest) {
        let Some(mut running) = self.opened(orders, rest) else { return };
        let _ = waker.set(running.performer.workloads().waker());
        let _ = self.health.waker.set(running.performer.workloads().waker());
        let inventory = running.performer.inventory();
        // core, which gets the event, checks whether the runtime works
        self.health.expect_within(ORDER_LIMIT, "list what there is");
        self.send(inventory);
        loop {
            loop {
                match orders.try_recv() {
                    Ok(order) => {
                        self.health.expect_within(ORDER_LIMIT, order.to_string());
                        self.perform(&mut running, order);
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            if !rest.work_is_wanted() {
                return;
            }
            self.health.expect_within(PATIENCE + ORDER_LIMIT, "follow the containers");
            give_back_stack();
            for event in running.performer.observe(PATIENCE) {
                self.send(event);
            }
            self.look_again(&mut running);
        }
    }

    fn send(&self, event: PodEvent) {
        let _ = self.events.blocking_send(Event::Pods(Box::new(event)));
    }

    /// Waits until the machine can run containers; `None` if the agent ends.
    fn opened(&self, orders: &Receiver<Order>, rest: &Rest) -> Option<Running> {
        let mut pause = FIRST_PAUSE;
        let mut logged = String::new();
        let mut pulling = 0;
        loop {
            let opened = self.start_pulls(&mut pulling).and_then(|()| self.open());
            let why = match opened {
                Ok(running) => return Some(running),
                Err(why) => why,
            };
            if logged != why {
                log::warn!("no pods can run: {why}; looking again");
                logged.clone_from(&why);
            }
            self.health.set(Health::Broken(why));
            // core orders nothing of a runtime that has not reported its containers
            match rest.during(|| orders.recv_timeout(pause)) {
                Err(RecvTimeoutError::Disconnected) => return None,
                _ if !rest.work_is_wanted() => return None,
                _ => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
    }

    /// Starts the missing threads of pulls.
    fn start_pulls(&self, running: &mut u32) -> Result<(), String> {
        while *running < self.pulls_at_once {
            let (puller, wanted) = (self.puller.clone(), self.pulls.clone());
            spawn("pulls", move || puller.run(&wanted))
                .map_err(|error| format!("cannot start a thread for pulls: {error}"))?;
            *running += 1;
        }
        Ok(())
    }

    fn open(&self) -> Result<Running, String> {
        let (store, puller) = self.place.open()?;
        let workloads =
            LinuxWorkloads::open(self.settings.clone(), &Roots::default()).map_err(|error| chain(&error))?;
        let looks = self.judge(workloads.board(), None);
        let node = self.node_of(workloads.board());
        let waker = workloads.waker();
        let performer = Performer::new(workloads, store.clone(), node, Arc::new(move || waker.wake()));
        Ok(Running { performer, store, puller, unnoted: Unnoted::default(), looks })
    }

    fn node_of(&self, board: &Board) -> Node {
        Node {
            has_unified_groups: matches!(board.cgroups, Cgroups::V2(_)),
            least_oom_score: board.least_oom_score,
            lacking_capabilities: board.lacking,
            processes: board.processes,
            ..self.node.clone()
        }
    }

    /// Notes whether containers can begin, and says so if it is news. Returns when to look again; `pause`:
    /// the one before the last look.
    fn judge(&self, board: &Board, pause: Option<Duration>) -> Option<(Instant, Duration)> {
        *locked(&self.health.obstacle) = board.obstacle().map(str::to_owned);
        *locked(&self.health.lacking_controllers) = Some(board.cgroups.lacking());
        if board.obstacle().is_none() {
            log::info!("containers run by crun {}", board.crun.as_deref().unwrap_or_default());
            board.problems.iter().for_each(|problem| log::info!("containers: {problem}"));
            return None;
        }
        if pause.is_none() {
            let why = self.health.missing().unwrap_or_default();
            log::warn!("{why}; what runs goes on, looking again");
        }
        Some((Instant::now(), pause.map_or(FIRST_PAUSE, |pause| (pause * 2).min(LONGEST_PAUSE))))
    }

    /// Looks whether containers can begin by now. Without crun's file it is not asked.
    fn look_again(&self, running: &mut Running) {
        let Some((last, pause)) = running.looks else { return };
        if !self.health.program.is_file() {
            running.looks = Some((last, FIRST_PAUSE));
            return;
        }
        if last.elapsed() < pause {
            return;
        }
        self.health.expect_within(ORDER_LIMIT, "look whether containers can begin");
        let board = running.performer.workloads().look_again(&Roots::default()).clone();
        running.looks = self.judge(&board, Some(pause));
        if running.looks.is_none() {
            running.performer.set_node(self.node_of(&board));
        }
    }

    fn perform(&self, running: &mut Running, order: Order) {
        match order {
            Order::Begin(_) => {}
            Order::Needed(images, is_all) => {
                running.unnoted.add(images, is_all);
                if let Err(why) = running.unnoted.note(&running.store) {
                    log::warn!("{why}");
                }
            }
            Order::Pod(PodAction::CollectImages(thresholds)) => match running.unnoted.note(&running.store) {
                Ok(()) => self.pulls.collect(thresholds),
                Err(why) => self.send(PodEvent::ImagesCollected(Err(why))),
            },
            Order::Pod(PodAction::PullImage(order)) => self.see_to_image(&running.puller, *order),
            Order::Pod(PodAction::MeasurePods { measure, pods }) => {
                let groups = running.performer.workloads().board().cgroups.clone();
                self.measure(groups, measure, pods);
            }
            Order::Pod(action) => {
                if let PodAction::RemovePod { pod, .. } = &action {
                    self.pulls.forget(pod);
                }
                for event in running.performer.perform(&action).unwrap_or_default() {
                    self.send(event);
                }
            }
        }
    }

    /// In a thread of its own, because walking a disk may take long; core requests one of each kind at a
    /// time.
    fn measure(&self, groups: Cgroups, measure: Measure, pods: Vec<PodUid>) {
        let places = Places {
            groups,
            pods_group: self.node.pods_group.clone(),
            roots: self.settings.data.clone(),
            volumes: self.node.volumes.disk.clone(),
            logs: self.node.logs.clone(),
        };
        let events = self.events.clone();
        let begun = spawn("measure", move || {
            let _ = events.blocking_send(Event::Pods(Box::new(places.measure(measure, &pods))));
        });
        if let Err(error) = begun {
            log::warn!("pods are not measured: cannot start a thread: {error}");
            self.send(PodEvent::PodsMeasured { measure, usages: Vec::new(), took: Duration::ZERO });
        }
    }

    /// A present image that needs no check by the registry waits for no pull. A preloaded image takes long to
    /// unpack, too: another thread does that, so that it does not wait behind a registry that may not answer.
    fn see_to_image(&self, puller: &Puller, order: ImageOrder) {
        if order.policy == PullPolicy::Always {
            self.pulls.put(order);
            return;
        }
        let told = RefCell::new(Vec::new());
        let local = ImageOrder { policy: PullPolicy::Never, ..order.clone() };
        puller.of_what_is_unpacked().perform(&local, &|event| told.borrow_mut().push(event));
        let told = told.into_inner();
        // a signature may be in the registry
        let is_missing = |event: &PodEvent| {
            matches!(event, PodEvent::Failed { failure, .. }
                if matches!(failure.reason, FailureReason::ImageNeverPull | FailureReason::ImageSignature))
        };
        match told.iter().any(is_missing) {
            true if puller.is_preloaded(&order.image) => self.use_preloaded(order),
            true if order.policy == PullPolicy::IfNotPresent => self.pulls.put(order),
            _ => told.into_iter().for_each(|event| self.send(event)),
        }
    }

    fn use_preloaded(&self, order: ImageOrder) {
        if !self.pulls.put_preloaded(order) {
            return;
        }
        let (puller, pulls) = (self.puller.clone(), self.pulls.clone());
        if let Err(error) = spawn("preloaded", move || puller.run_preloaded(&pulls)) {
            log::warn!("preloaded images wait for those of registries: cannot start a thread: {error}");
            self.pulls.without_unpacker();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_that_hangs_is_not_ready() {
        let health = RuntimeHealth::of("/bin/sh".into());
        assert_eq!(health.report(), Runtime::Starting);
        health.expect_within(Duration::from_secs(1000), "stop container web");
        assert_eq!(health.report(), Runtime::Ready);
        let until = Instant::now() - Duration::from_millis(1);
        health.set(Health::Works { until, at: "stop container web".into() });
        let Runtime::NotReady(why) = health.report() else { panic!() };
        assert!(why.ends_with("does not come to an end: stop container web"), "{why}");
        health.set(Health::Broken("no store".into()));
        assert_eq!(health.report(), Runtime::NotReady("container runtime is not ready: no store".into()));
    }

    #[test]
    fn missing_crun_is_noticed_and_so_is_its_return() {
        let crun = std::env::temp_dir().join(format!("kedge-crun-{}", std::process::id()));
        let health = RuntimeHealth::of(crun.clone());
        health.expect_within(Duration::from_secs(1000), "follow the containers");
        let missing = format!("{} is not there: no container can start", crun.display());
        assert_eq!(health.report(), Runtime::Missing(missing.clone()));
        std::fs::write(&crun, "").unwrap();
        assert_eq!(health.report(), Runtime::Ready);
        std::fs::remove_file(&crun).unwrap();
        assert_eq!(health.report(), Runtime::Missing(missing));
    }

    #[test]
    fn needs_that_could_not_be_noted_are_not_forgotten() {
        let images = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let mut unnoted = Unnoted::default();
        unnoted.add(images(&["a"]), true);
        unnoted.add(images(&["b"]), false);
        assert_eq!(unnoted.0, Some((images(&["a", "b"]), true)));
        unnoted.add(images(&["c"]), true);
        assert_eq!(unnoted.0, Some((images(&["c"]), true)));
        unnoted.0 = None;
        unnoted.add(images(&["d"]), false);
        assert_eq!(unnoted.0, Some((images(&["d"]), false)));
    }
}
