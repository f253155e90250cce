//! The runtime's loop and the loop of pulls: what pods ask of this machine.
//!
//! Always holds: the main loop never waits for them, because core orders one thing at a time of each container; each order is answered
//! as its contract says; a disk or a crun that hangs shows in the node's `Ready` condition and withholds no watchdog ping, for no
//! kill would end it, and a heartbeat would end. An image that is there waits for no pull, and a pull for a pod that is removed
//! is given up, so that none holds up the others for longer than a pod waits for it. Leaves to others: containers (`workloads`),
//! images (`images`), every decision (core).

use super::lock;
use crate::errors::chain;
use crate::images::{Options as PullerOptions, Puller, Store};
use crate::net::proxy::ProxyEnvironment;
use crate::net::transport::{Cancel, WallClock};
use crate::workloads::network::Plugins;
use crate::workloads::{Node, Performer, volumes};
use kedge_core::images::settings::Registries;
use kedge_core::kubelet::Config;
use kedge_core::pods::{
    Command, Failure, FailureReason, ImageOrder, PodAction, PodEvent, PodUid, PullPolicy,
};
use kedge_core::{Event, Runtime};
use kedge_platform::HostFacts as _;
use kedge_platform::linux::{LinuxHost, Roots};
use kedge_platform::workloads::{Cgroups, LinuxWorkloads, Settings, Waker};
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender as EventSender;

/// Room for TLS, for the reading of an image's manifest, and for crun's orders. Only what is used becomes memory.
const STACK_BYTES: usize = 256 * 1024;
/// How long the runtime's loop waits for something to happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest that one order may take before the node says that its runtime does not answer: three steps of crun.
const ORDER_LIMIT: Duration = Duration::from_secs(180);
/// Between two looks at a machine that cannot run containers, doubled up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Least that pods may have together, whatever is reserved: none of them would even start.
const LEAST_MEMORY: u64 = 64 << 20;
/// kubelet's `containerLogMaxSize` and `containerLogMaxFiles`.
const LOG_BYTES: u64 = 10 << 20;
const LOG_FILES: u32 = 5;
/// This very program, also after an upgrade.
const PROGRAM: &str = "/proc/self/exe";

/// How the runtime does.
#[derive(Debug, Default)]
pub(crate) struct RuntimeHealth(Mutex<Health>);

#[derive(Debug, Default)]
enum Health {
    #[default]
    Starting,
    /// No container can run: why.
    Broken(String),
    /// It works, and what it is at should have ended by then.
    Works { until: Instant },
}

impl RuntimeHealth {
    fn set(&self, health: Health) {
        *lock(&self.0) = health;
    }

    fn expect_within(&self, limit: Duration) {
        self.set(Health::Works { until: Instant::now() + limit });
    }

    /// Waits for nothing.
    pub(crate) fn report(&self) -> Runtime {
        let not_ready = |why: &str| Runtime::NotReady(format!("container runtime is not ready: {why}"));
        match &*lock(&self.0) {
            Health::Starting => Runtime::Starting,
            Health::Broken(why) => not_ready(why),
            Health::Works { until } if *until < Instant::now() => {
                not_ready("an order of it does not come to an end")
            }
            Health::Works { .. } => Runtime::Ready,
        }
    }
}

/// What the loops need.
pub(crate) struct ContainerParts {
    pub(crate) settings: Settings,
    pub(crate) root_dir: PathBuf,
    pub(crate) clock: WallClock,
    pub(crate) events: EventSender<Event>,
    pub(crate) health: Arc<RuntimeHealth>,
}

enum Order {
    Pod(PodAction),
    /// Images that pods need, and whether those are all.
    Needed(BTreeSet<String>, bool),
}

/// Ways to the loops.
pub(crate) struct Containers {
    orders: Sender<Order>,
    waker: Arc<OnceLock<Waker>>,
    thread: JoinHandle<()>,
}

impl Containers {
    /// Starts the loops under this configuration.
    pub(crate) fn start(parts: &ContainerParts, config: &Config) -> std::io::Result<Self> {
        let (orders, incoming) = channel();
        let pulls = Arc::new(PullQueue::default());
        let waker = Arc::new(OnceLock::new());
        let puller = Pulls {
            root_dir: parts.root_dir.clone(),
            registries: config.registries.clone(),
            clock: parts.clock.clone(),
            events: parts.events.clone(),
        };
        let wanted = pulls.clone();
        spawn("pulls", move || puller.run(&wanted))?;
        let runtime = RuntimeLoop {
            settings: parts.settings.clone(),
            root_dir: parts.root_dir.clone(),
            node: node(parts, config),
            registries: config.registries.clone(),
            clock: parts.clock.clone(),
            events: parts.events.clone(),
            health: parts.health.clone(),
            pulls,
        };
        let given = waker.clone();
        let thread = spawn("containers", move || {
            runtime.run(&incoming, &given);
            runtime.pulls.close();
        })?;
        Ok(Self { orders, waker, thread })
    }

    pub(crate) fn order(&self, action: PodAction) {
        self.send(Order::Pod(action));
    }

    pub(crate) fn need_images(&self, images: BTreeSet<String>, is_all: bool) {
        self.send(Order::Needed(images, is_all));
    }

    fn send(&self, order: Order) {
        let _ = self.orders.send(order);
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// Ends the runtime's loop, so that no step of it is cut off. False: it has not ended within `limit`.
    pub(crate) fn end(self, limit: Duration) -> bool {
        drop(self.orders);
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
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

/// What the performer has to know, but for what the runtime finds out.
fn node(parts: &ContainerParts, config: &Config) -> Node {
    let host = LinuxHost::new(Roots::default(), &parts.root_dir);
    let memory_bytes = host.capacity().memory_bytes;
    Node {
        pods_group: parts.settings.pods_group.clone(),
        has_unified_groups: false,
        memory_bytes,
        allocatable_memory_bytes: kedge_core::allocatable_memory(memory_bytes, config).max(LEAST_MEMORY),
        processes: None,
        pod_pids_limit: None,
        volumes: volumes::Places {
            disk: parts.root_dir.join("volumes"),
            memory: parts.settings.run.join("volumes"),
        },
        logs: (&config.pod_logs_dir).into(),
        log_max_bytes: LOG_BYTES,
        log_max_files: LOG_FILES,
        etc: "/etc".into(),
        plugins: Plugins::default(),
        plugins_lock: parts.settings.run.join("plugins.lock"),
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

/// It becomes part of a line.
fn search_domain(config: &Config) -> String {
    let domain = &config.cluster_domain;
    if domain.contains(|part: char| part.is_whitespace() || part.is_control()) {
        log::warn!("clusterDomain is {:?}, expected a domain; it is left out", kedge_api::excerpt(domain));
        return String::new();
    }
    domain.clone()
}

fn puller(root_dir: &Path, registries: &Registries, clock: &WallClock) -> Result<(Store, Puller), String> {
    let store = Store::open(root_dir, Path::new(PROGRAM))
        .map_err(|error| format!("images below {}: {error}", root_dir.display()))?;
    let options = PullerOptions {
        registries: registries.clone(),
        clock: clock.clone(),
        proxies: ProxyEnvironment::of_process(),
        cancel: Cancel::new(),
    };
    Ok((store.clone(), Puller::new(store, options)))
}

struct RuntimeLoop {
    settings: Settings,
    root_dir: PathBuf,
    node: Node,
    registries: Registries,
    clock: WallClock,
    events: EventSender<Event>,
    health: Arc<RuntimeHealth>,
    pulls: Arc<PullQueue>,
}

/// A runtime that works.
struct Running {
    performer: Performer<LinuxWorkloads, Store>,
    store: Store,
    puller: Puller,
}

impl RuntimeLoop {
    fn run(&self, orders: &Receiver<Order>, waker: &OnceLock<Waker>) {
        let Some(mut running) = self.opened(orders) else { return };
        let _ = waker.set(running.performer.workloads().waker());
        let inventory = running.performer.inventory();
        // whoever hears of it looks whether the runtime works
        self.health.expect_within(ORDER_LIMIT);
        self.send(inventory);
        loop {
            loop {
                match orders.try_recv() {
                    Ok(order) => {
                        self.health.expect_within(ORDER_LIMIT);
                        self.perform(&mut running, order);
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            self.health.expect_within(PATIENCE + ORDER_LIMIT);
            for event in running.performer.observe(PATIENCE) {
                self.send(event);
            }
        }
    }

    fn send(&self, event: PodEvent) {
        let _ = self.events.blocking_send(Event::Pods(Box::new(event)));
    }

    /// Waits until the machine can run containers; None: the agent ends.
    fn opened(&self, orders: &Receiver<Order>) -> Option<Running> {
        let mut pause = FIRST_PAUSE;
        let mut logged = String::new();
        loop {
            let why = match self.open() {
                Ok(running) => return Some(running),
                Err(why) => why,
            };
            if logged != why {
                log::warn!("no pods can run: {why}; looking again");
                logged.clone_from(&why);
            }
            self.health.set(Health::Broken(why));
            // nothing is ordered of a runtime that did not say what it has
            match orders.recv_timeout(pause) {
                Err(RecvTimeoutError::Disconnected) => return None,
                _ => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
    }

    fn open(&self) -> Result<Running, String> {
        let (store, puller) = puller(&self.root_dir, &self.registries, &self.clock)?;
        let workloads =
            LinuxWorkloads::open(self.settings.clone(), &Roots::default()).map_err(|error| chain(&error))?;
        let board = workloads.board();
        if let Some(why) = board.obstacle() {
            return Err(why.to_owned());
        }
        log::info!("containers run by crun {}", board.crun.as_deref().unwrap_or_default());
        board.problems.iter().for_each(|problem| log::info!("containers: {problem}"));
        let node = Node {
            has_unified_groups: matches!(board.cgroups, Cgroups::V2(_)),
            processes: board.processes,
            ..self.node.clone()
        };
        let waker = workloads.waker();
        let performer = Performer::new(workloads, store.clone(), node, Arc::new(move || waker.wake()));
        Ok(Running { performer, store, puller })
    }

    fn perform(&self, running: &mut Running, order: Order) {
        match order {
            Order::Needed(images, is_all) => {
                if let Err(error) = running.store.set_needed(images, is_all) {
                    log::warn!("which images pods need could not be noted: {error}");
                }
            }
            Order::Pod(PodAction::PullImage(order)) => self.see_to_image(&running.puller, *order),
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

    /// One that is there, and need not be asked for, waits for no pull.
    fn see_to_image(&self, puller: &Puller, order: ImageOrder) {
        if order.policy == PullPolicy::Always {
            self.pulls.put(order);
            return;
        }
        let told = RefCell::new(Vec::new());
        let local = ImageOrder { policy: PullPolicy::Never, ..order.clone() };
        puller.perform(&local, &|event| told.borrow_mut().push(event));
        let told = told.into_inner();
        let is_missing = |event: &PodEvent| matches!(event, PodEvent::Failed { failure, .. } if failure.reason == FailureReason::ImageNeverPull);
        if order.policy == PullPolicy::IfNotPresent && told.iter().any(is_missing) {
            self.pulls.put(order);
            return;
        }
        told.into_iter().for_each(|event| self.send(event));
    }
}

/// Orders of pulls: those that wait, and the one that is performed.
#[derive(Default)]
struct PullQueue {
    orders: Mutex<PullOrders>,
    changed: Condvar,
}

#[derive(Default)]
struct PullOrders {
    waiting: VecDeque<ImageOrder>,
    /// Whose image is being fetched, and what ends that.
    current: Option<(PodUid, Cancel)>,
    is_closed: bool,
}

impl PullQueue {
    /// Core orders one of each container at a time, so there are no more than containers.
    fn put(&self, order: ImageOrder) {
        lock(&self.orders).waiting.push_back(order);
        self.changed.notify_one();
    }

    /// No image is wanted for this pod any more; what was ordered for it is not answered.
    fn forget(&self, pod: &PodUid) {
        let mut orders = lock(&self.orders);
        orders.waiting.retain(|order| order.pod != *pod);
        if let Some((_, cancel)) = orders.current.take_if(|(of, _)| of == pod) {
            cancel.cancel();
        }
    }

    fn close(&self) {
        lock(&self.orders).is_closed = true;
        self.changed.notify_one();
    }

    /// Waits for the next order; None: there will be no other.
    fn next(&self) -> Option<(ImageOrder, Cancel)> {
        let is_idle = |orders: &mut PullOrders| orders.waiting.is_empty() && !orders.is_closed;
        let waited = self.changed.wait_while(lock(&self.orders), is_idle);
        let mut orders = waited.unwrap_or_else(PoisonError::into_inner);
        let order = orders.waiting.pop_front().filter(|_| !orders.is_closed)?;
        let cancel = Cancel::new();
        orders.current = Some((order.pod.clone(), cancel.clone()));
        Some((order, cancel))
    }
}

/// The loop of pulls: one at a time, as kubelet's `serializeImagePulls`.
struct Pulls {
    root_dir: PathBuf,
    registries: Registries,
    clock: WallClock,
    events: EventSender<Event>,
}

impl Pulls {
    fn run(&self, orders: &PullQueue) {
        // one for all: it remembers what could not be unpacked
        let mut kept: Option<Puller> = None;
        while let Some((order, cancel)) = orders.next() {
            let send = |event| {
                if !cancel.is_cancelled() {
                    let _ = self.events.blocking_send(Event::Pods(Box::new(event)));
                }
            };
            let opened = match kept.take() {
                Some(puller) => Ok(puller),
                None => puller(&self.root_dir, &self.registries, &self.clock).map(|(_, puller)| puller),
            };
            match opened {
                Ok(puller) => {
                    puller.until(cancel.clone()).perform(&order, &send);
                    kept = Some(puller);
                }
                Err(message) => {
                    let (pod, container) = (order.pod.clone(), order.container.clone());
                    let failure = Failure { reason: FailureReason::Other, message };
                    send(PodEvent::Failed { command: Command::PullImage { pod, container }, failure });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_that_hangs_is_not_ready() {
        let health = RuntimeHealth::default();
        assert_eq!(health.report(), Runtime::Starting);
        health.expect_within(Duration::from_secs(1000));
        assert_eq!(health.report(), Runtime::Ready);
        health.set(Health::Works { until: Instant::now() - Duration::from_millis(1) });
        assert!(matches!(health.report(), Runtime::NotReady(_)));
        health.set(Health::Broken("no crun".into()));
        assert_eq!(health.report(), Runtime::NotReady("container runtime is not ready: no crun".into()));
    }

    #[test]
    fn pull_for_a_pod_that_is_removed_is_given_up() {
        let queue = PullQueue::default();
        let uid = |pod: &str| PodUid::new(pod).unwrap();
        for (pod, container) in [("u-1", "a"), ("u-2", "a"), ("u-1", "b")] {
            queue.put(ImageOrder {
                pod: uid(pod),
                container: container.into(),
                image: "lan/app:v1".into(),
                policy: PullPolicy::Always,
                credentials: Vec::new(),
            });
        }
        let (first, cancel) = queue.next().unwrap();
        assert_eq!((first.pod, cancel.is_cancelled()), (uid("u-1"), false));
        queue.forget(&uid("u-1"));
        assert!(cancel.is_cancelled());
        let (next, cancel) = queue.next().unwrap();
        queue.forget(&uid("u-1"));
        assert_eq!((next.pod, cancel.is_cancelled()), (uid("u-2"), false), "it is another's");
        queue.close();
        assert!(queue.next().is_none());
    }
}
