//! The loops of the agent beside the main one, each on a thread of its own: the disk, and the streams to the
//! API server.
//!
//! Always holds: each performs complete orders and reports every outcome as an event; none decides; each
//! shows progress to the watchdog while it works and tells the watchdog before it waits. A disk that hangs
//! stalls no heartbeat, a slow transfer no renewal.

pub(crate) mod containers;
pub(crate) mod disk;
mod identity;
pub(crate) mod passing;
mod pulls;
pub(crate) mod quota;
mod requests;
mod rest;
mod shutdown;
mod static_files;
mod thread;
mod watches;

use crate::faults::Faults;
use crate::net::servers::Servers;
use crate::net::transport::WallClock;
pub(crate) use crate::perform::thread::spawn;
use crate::perform::thread::{NETWORK_TURN, RENEW, has_finished};
use crate::queue::{Receiver, Sender, sync_channel};
use crate::system::performer::{Machine, Systems};
use crate::workloads::probes::Probes;
use containers::{ContainerParts, Containers};
use disk::{DiskHealth, DiskLoop, DiskOrder};
use kedge_core::identity::IdentityAction;
use kedge_core::kubelet::Config;
use kedge_core::pods::{PodAction, PodEvent};
use kedge_core::system::SystemOrder;
use kedge_core::{Collection, Event, LeaseRequest, PodPart, Request, WatchOrder};
use kedge_platform::linux::{give_back_stack, logind};
use kedge_platform::{Progress, Watchdog};
use passing::InPassing;
use requests::ApiServer;
use rest::Rest;
use shutdown::Shutdown;
use static_files::StaticFilesLoop;
use std::collections::BTreeSet;
use std::iter;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender as EventSender;
use watches::{LatestRound, Round};

/// Orders that wait for a loop. Core has at most a handful under way; a full queue makes the main loop wait,
/// and the watchdog see it.
const ORDERS: usize = 16;

/// How long the disk may take for one order: flash that collects its garbage stalls for many seconds.
const DISK_TURN: Duration = Duration::from_secs(120);

/// An order for the loop of renewals, and its server.
type LeaseOrder = (LeaseRequest, Duration, u64);

/// Channels to the loops.
pub(crate) struct Loops {
    disk: Sender<DiskOrder>,
    disk_thread: JoinHandle<()>,
    disk_rest: Arc<Rest>,
    /// Where a look at the host is left that a renewal was ordered with.
    pub(crate) passing: Arc<InPassing>,
    renew: Sender<LeaseOrder>,
    transfer: Sender<(Request, u64)>,
    config_map: Arc<LatestRound>,
    node: Arc<LatestRound>,
    /// `None` on a node without a runtime.
    pods: PodPart<PodLoops>,
    server: ApiServer,
    bootstrap: Option<PathBuf>,
    health: Arc<DiskHealth>,
    systems: Arc<Systems>,
}

/// Channels to the loops that only a node with a runtime has.
struct PodLoops {
    watch: Arc<LatestRound>,
    parts: ContainerParts,
    probes: Probes,
    containers: Containers,
    shutdown: ShutdownThread,
    /// `None` if the configuration in use has no place of static pods, or none was read yet.
    static_files: Option<StaticFilesLoop>,
}

/// The thread of shutdowns.
enum ShutdownThread {
    /// A shutdown of the machine waits for no pods.
    Unneeded,
    /// The system gave no thread yet; whether that was logged.
    Missing(shutdown::Places, Duration, bool),
    Runs(Shutdown),
}

impl ShutdownThread {
    /// Starts the thread, where it is needed and does not run.
    fn start(&mut self, events: &EventSender<Event>) {
        let Self::Missing(places, grace, is_logged) = self else { return };
        match Shutdown::start(places.clone(), *grace, events.clone()) {
            Ok(shutdown) => *self = Self::Runs(shutdown),
            // tried again with each renewal
            Err(error) if !std::mem::replace(is_logged, true) => {
                log::warn!(
                    "the machine does not wait for pods yet: cannot start a thread: {error}; trying again"
                );
            }
            Err(_) => {}
        }
    }
}

/// The parts of the loops.
pub(crate) struct Parts {
    pub(crate) disk: DiskLoop,
    /// `None` on a node without a runtime.
    pub(crate) containers: PodPart<ContainerParts>,
    pub(crate) node_name: String,
    /// Notified when the credential is another node's; `None` if a flag gave the name.
    pub(crate) renamed: Option<Arc<Notify>>,
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The folder with the node's own credential.
    pub(crate) own: PathBuf,
    /// `--bootstrap-kubeconfig`.
    pub(crate) bootstrap: Option<PathBuf>,
    pub(crate) clock: WallClock,
    pub(crate) servers: Servers,
    pub(crate) events: EventSender<Event>,
    pub(crate) faults: Faults,
    /// Performs orders about systems.
    pub(crate) machine: Machine,
}

impl Loops {
    /// Starts the loops; they wait for orders.
    pub(crate) fn start(parts: Parts, watchdog: &mut Watchdog) -> std::io::Result<Self> {
        let Parts {
            mut disk,
            containers,
            node_name,
            renamed,
            kubeconfig,
            own,
            bootstrap,
            clock,
            servers,
            events,
            faults,
            machine,
        } = parts;
        let systems = Systems::new(machine, clock.clone(), events.clone());
        let health = disk.health.clone();
        let (disk_orders, orders) = sync_channel(ORDERS);
        let token = watchdog.watch(kedge_core::DISK_LOOP, faults.limit(kedge_core::DISK_LOOP, DISK_TURN));
        let (to, hang) = (events.clone(), faults.clone());
        let disk_rest = Arc::new(Rest::default());
        let rest = disk_rest.clone();
        let passing = Arc::new(InPassing::default());
        let left = passing.clone();
        let disk_thread = spawn(kedge_core::DISK_LOOP, move || {
            token.busy();
            disk.take_over();
            run_orders(
                orders,
                (&token, &rest),
                || {
                    hang.point(kedge_core::DISK_LOOP);
                    hang.gate(kedge_core::DISK_LOOP);
                },
                |order| {
                    // the same wake-up serves a look at the list
                    let then =
                        matches!(order, DiskOrder::ReadHostFacts).then_some(DiskOrder::CheckBadConfigs);
                    for order in iter::once(order).chain(then) {
                        let answer = disk.perform(order);
                        let sent = match answer {
                            Some(facts @ Event::HostFacts(_)) => left.leave(facts),
                            other => other,
                        };
                        if let Some(event) = sent {
                            let _ = to.blocking_send(event);
                        }
                    }
                },
            );
        })?;

        let server = ApiServer::new(node_name, renamed, (kubeconfig, own), clock, servers, events, faults);
        let (renew, orders) = sync_channel(ORDERS);
        server.run(RENEW, watchdog, orders, |server, client, (request, deadline, number): LeaseOrder| {
            let client = client.map(|client| client.for_server(number));
            (number, server.renew(client.as_ref().map_err(Clone::clone), request, deadline))
        })?;
        let (transfer, orders) = sync_channel(ORDERS);
        server.run("transfer", watchdog, orders, |server, client, (request, number): (Request, u64)| {
            let client = client.map(|client| client.for_server(number));
            let answer = server.transfer(client.as_ref().map_err(Clone::clone), &request);
            (number, Event::Answered(request.key(), answer))
        })?;
        let mut watch = |name: &'static str| {
            let rounds = Arc::new(LatestRound::default());
            let token = watchdog.watch(name, NETWORK_TURN);
            let (wanted, server) = (rounds.clone(), server.clone());
            spawn(name, move || server.watch(name, &wanted, &token)).map(|_| rounds)
        };
        let (node, config_map) = (watch("watch-node")?, watch("watch-configmap")?);
        // on a node without a runtime these threads and the watch of pods would only cost memory
        let pods = match containers.into_inner() {
            Some(parts) => {
                let probes = Probes::new(parts.settings.clone(), parts.events.clone());
                let watch = watch("watch-pods")?;
                let (containers, shutdown, static_files) =
                    (Containers::start()?, ShutdownThread::Unneeded, None);
                Some(PodLoops { watch, parts, probes, containers, shutdown, static_files })
            }
            None => None,
        };
        let (disk, pods) = (disk_orders, PodPart::of(|| pods));
        Ok(Self {
            disk,
            disk_thread,
            disk_rest,
            passing,
            renew,
            transfer,
            config_map,
            node,
            pods,
            server,
            bootstrap,
            health,
            systems,
        })
    }

    /// Takes the API servers of the configuration in use, before the network is used.
    pub(crate) fn use_servers(&self, config: &Config) {
        self.server.servers.set(&config.servers);
    }

    pub(crate) fn servers(&self) -> Servers {
        self.server.servers.clone()
    }

    /// The API server in use, if the configuration names several.
    pub(crate) fn used_server(&self) -> Option<kedge_core::pods::ApiServer> {
        self.server.servers.used()
    }

    /// Starts the runtime's loops, where there is a runtime.
    pub(crate) fn start_containers(&mut self, config: &Config) {
        let Some(pods) = self.pods.as_mut() else { return };
        pods.containers.begin(&pods.parts, config);
        let grace: Duration = config.pods.shutdown.iter().map(|group| group.grace).sum();
        if grace.is_zero() {
            return;
        }
        let places = shutdown::Places {
            bus: logind::SYSTEM_BUS.into(),
            drop_in: "/run/systemd/logind.conf.d/99-kedge.conf".into(),
        };
        pods.shutdown = ShutdownThread::Missing(places, grace, false);
        pods.shutdown.start(&pods.parts.events);
    }

    /// The returned event is known at once; other answers arrive later as events.
    pub(crate) fn pods(&mut self, action: PodAction) -> Option<PodEvent> {
        match action {
            PodAction::SaveDesired { file, content } => self.disk(DiskOrder::SaveDesired(file, content)),
            PodAction::KeepAside(files) => self.disk(DiskOrder::KeepAside(files)),
            PodAction::ReadDesired => self.disk(DiskOrder::ReadDesired),
            PodAction::ReadStaticPods(path) => return self.look_at_static_files(path),
            PodAction::RunProbe(order) => {
                if let Some(pods) = self.pods.as_ref() {
                    pods.probes.run(*order);
                }
            }
            PodAction::LetMachineStop => {
                if let Some(PodLoops { shutdown: ShutdownThread::Runs(shutdown), .. }) = self.pods.as_ref() {
                    shutdown.let_go();
                }
            }
            PodAction::RunHook(order) => {
                if let Some(pods) = self.pods.as_ref() {
                    pods.probes.run_hook(*order);
                }
            }
            PodAction::StopRun(run) => {
                if let Some(pods) = self.pods.as_ref() {
                    pods.probes.stop(&run);
                }
            }
            action => {
                if let Some(containers) = self.containers() {
                    containers.order(action);
                }
            }
        }
        None
    }

    fn look_at_static_files(&mut self, path: String) -> Option<PodEvent> {
        let faults = self.server.faults.clone();
        let pods = self.pods.as_mut()?;
        let files = match pods.static_files.take() {
            Some(files) => files,
            None => match StaticFilesLoop::start(pods.parts.events.clone(), faults) {
                Ok(started) => started,
                Err(error) => {
                    let why = format!("cannot read {path}: cannot start a thread: {error}");
                    return Some(PodEvent::StaticPods(Err(why)));
                }
            },
        };
        pods.static_files.insert(files).read(path);
        None
    }

    /// An order about the node's own credential; the answer comes as an event.
    pub(crate) fn identity(&self, action: IdentityAction) {
        match action {
            IdentityAction::Step(step) => self.disk(DiskOrder::Identity(step)),
            IdentityAction::Ask { by, name, request } => {
                identity::ask(&self.server, self.bootstrap.clone(), by, name, request);
            }
        }
    }

    /// The registries of the configuration in use, for systems.
    pub(crate) fn use_registries(&self, config: &Config) {
        self.systems.use_registries(&config.registries);
    }

    pub(crate) fn system(&self, order: SystemOrder) {
        self.systems.order(order);
    }

    pub(crate) fn take_authorities(&self, wanted: String) {
        identity::take_authorities(&self.server, wanted);
    }

    pub(crate) fn need_images(&self, images: BTreeSet<String>, is_all: bool) {
        if let Some(containers) = self.containers() {
            containers.need_images(images, is_all);
        }
    }

    fn containers(&self) -> Option<&Containers> {
        self.pods.as_ref().map(|pods| &pods.containers).filter(|containers| containers.has_begun())
    }

    /// `None` ends the watch of pods.
    pub(crate) fn watch_pods(&self, server: u64, order: Option<WatchOrder>) {
        if let Some(pods) = self.pods.as_ref() {
            pods.watch.set(order.map(|order| Round { of: Collection::Pods, order, server }));
        }
    }

    /// The API server's and the disk's part of `kedge status --output json`.
    pub(crate) fn report(&self) -> (serde_json::Value, serde_json::Value) {
        (self.server.for_status(), self.health.report())
    }

    pub(crate) fn disk(&self, order: DiskOrder) {
        let _ = self.disk.send(order);
    }

    /// Asks the runtime's loop to rest; the disk's starts nothing without an order.
    pub(crate) fn rest(&self) {
        if let Some(pods) = self.pods.as_ref() {
            pods.containers.rest();
        }
    }

    /// Ends the rest of the runtime's loop, if it rests already; otherwise it still enters its rest.
    pub(crate) fn go_on_if_it_rests(&self) {
        if let Some(pods) = self.pods.as_ref().filter(|pods| pods.containers.rests()) {
            pods.containers.go_on();
        }
    }

    /// Whether the disk's loop is idle.
    pub(crate) fn disk_rests(&self) -> bool {
        self.disk_rest.rests()
    }

    /// The loop that works instead of resting, and on which order.
    pub(crate) fn works_on(&self) -> Option<String> {
        let pods = self.pods.as_ref().filter(|pods| !pods.containers.rests());
        let runtime = pods.map(|pods| format!("the runtime does not answer: {}", pods.parts.health.is_at()));
        runtime.or_else(|| (!self.disk_rests()).then(|| "the disk does not answer".into()))
    }

    /// Ends the loops of the runtime, the disk and static pods once they have performed their orders. False
    /// if that takes longer than `limit`.
    pub(crate) fn end(self, limit: Duration) -> bool {
        let (containers, static_files) =
            self.pods.into_inner().map(|pods| (Some(pods.containers), pods.static_files)).unwrap_or_default();
        if containers.is_some_and(|containers| !containers.end(limit)) {
            return false;
        }
        drop(self.disk);
        let by = Instant::now() + limit;
        has_finished(&self.disk_thread, by) && static_files.is_none_or(|files| files.end(by))
    }

    /// From now on only the connection of renewals is kept while it is idle.
    pub(crate) fn keep_one_connection(&self) {
        self.server.keep_one_connection();
    }

    pub(crate) fn renew(&mut self, server: u64, request: LeaseRequest, deadline: Duration) {
        if let Some(pods) = self.pods.as_mut() {
            pods.shutdown.start(&pods.parts.events);
        }
        let _ = self.renew.send((request, deadline, server));
    }

    pub(crate) fn request(&self, server: u64, request: Request) {
        let _ = self.transfer.send((request, server));
    }

    pub(crate) fn watch_node(&self, server: u64, order: WatchOrder) {
        self.node.set(Some(Round { of: Collection::Node, order, server }));
    }

    /// Namespace and name, and the order; `None` ends the watch of the ConfigMap.
    pub(crate) fn watch_config_map(&self, server: u64, which: Option<((String, String), WatchOrder)>) {
        self.config_map.set(which.map(|((namespace, name), order)| {
            let of = Collection::ConfigMap { namespace, name };
            Round { of, order, server }
        }));
    }
}

/// Performs the disk's orders as they arrive; ends with the process.
fn run_orders<T>(
    orders: Receiver<T>,
    (token, rest): (&Progress, &Rest),
    mut before: impl FnMut(),
    mut perform: impl FnMut(T),
) {
    loop {
        token.idle();
        give_back_stack();
        let Ok(order) = rest.during(|| orders.recv()) else { return };
        token.busy();
        before();
        perform(order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;
    use std::os::unix::fs::FileExt as _;

    const DEEP_PAGES: usize = 16;
    const PAGE_BYTES: usize = 4096;

    #[inline(never)]
    fn goes_deep() -> usize {
        let deep = black_box([1_u8; DEEP_PAGES * PAGE_BYTES]);
        std::ptr::from_ref(&deep).addr()
    }

    /// How many of the pages that `goes_deep` wrote are in memory: the highest bit of their words in
    /// `pagemap`.
    fn resident(address: usize) -> usize {
        let mut words = [0; DEEP_PAGES * 8];
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        pagemap.read_exact_at(&mut words, (address / PAGE_BYTES * 8) as u64).unwrap();
        words.chunks_exact(8).filter(|word| word[7] & 0x80 != 0).count()
    }

    #[test]
    fn loop_that_waits_has_given_back_its_stack() {
        let (send, orders) = sync_channel::<()>(1);
        let (tell, told) = sync_channel(1);
        let token = Watchdog::new(Duration::from_secs(1)).watch("disk", Duration::from_secs(1));
        let perform = move |()| {
            let address = goes_deep();
            tell.send((address, resident(address))).unwrap();
        };
        let thread =
            spawn("disk", move || run_orders(orders, (&token, &Rest::default()), || {}, perform)).unwrap();
        send.send(()).unwrap();
        let (address, deep) = told.recv().unwrap();
        assert_eq!(deep, DEEP_PAGES);
        let by = Instant::now() + Duration::from_secs(20);
        // the frames of this wait use the uppermost pages
        while resident(address) > DEEP_PAGES / 2 {
            assert!(Instant::now() < by, "{} of {deep} pages while it waits", resident(address));
            std::thread::yield_now();
        }
        drop(send);
        thread.join().unwrap();
    }
}
