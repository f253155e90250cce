//! `kedge agent`: the main loop. Waits for an event or a deadline, hands it to core, performs the actions,
//! feeds the outcomes back, and decides nothing.
//!
//! Always holds: checkpoint, decision and watchdog come first, then the network; nothing here exits because
//! of time, network or disk. One thread owns core; everything that may block has a thread of its own
//! (`perform`).

use crate::decommission;
use crate::errors::chain;
use crate::faults::Faults;
use crate::identity::files;
use crate::identity::store::Store;
use crate::local::{self, Call, answers};
use crate::locks::locked;
use crate::net::known_server::KnownServer;
use crate::net::servers::Servers;
use crate::net::transport::WallClock;
use crate::node_name::{self, NodeName};
use crate::options::{AgentOptions, Places};
use crate::perform::containers::{ContainerParts, RuntimeHealth};
use crate::perform::disk::{BESIDE, DiskLoop, DiskOrder, KnownIdentity};
use crate::perform::quota::Quota;
use crate::perform::{Loops, Parts};
use crate::refused::Start;
use crate::slot::host;
use crate::system::performer::Machine;
use crate::{VERSION, local_config, logging};
use kedge_api::Timestamp;
use kedge_core::kubelet::{Capacity, Effective};
use kedge_core::{
    Action, Core, Decommission, Event, Exit, Level, Now, Options, Phase, PodPart, PreviousRun, Step,
};
use kedge_platform::linux::{
    self, Alarm, Awaited, Claim, LinuxClocks, LinuxHost, NotifySocket, Program, Roots, StuckThread,
};
use kedge_platform::{
    Clocks, Displaced, HostFacts as _, PreviousExit, RunDirectory, Supervisor, Watchdog, WriteError,
};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc};

/// Events that wait for the main loop. It takes microseconds for each; when the queue is full the loops wait,
/// so memory does not grow.
const EVENTS: usize = 64;

/// Calls of the local endpoint that wait: at most eight are served at once.
const CALLS: usize = 8;

/// How long one turn of the main loop may take.
const MAIN_TURN: Duration = Duration::from_secs(20);

/// How often pages of the program's code are given back to the kernel: the code that ran since, for a renewal
/// and a bookmark, stays in memory. Less often would keep the code that only a start needs; each time costs
/// some thirty minor faults.
const CODE_REST: Duration = Duration::from_secs(30);

/// The main loop's name at the watchdog.
const MAIN_LOOP: &str = "main";

/// Without a supervisor the loops are checked all the same, for the log.
const CHECK_PERIOD: Duration = Duration::from_secs(10);

/// How long a look at the host waits for the answer to a renewal, with which the main loop wakes.
const PASSING: Duration = Duration::from_secs(1);

/// A start may take this long before the supervisor loses patience: a board at its first boot has a busy
/// disk.
const START_PATIENCE: Duration = Duration::from_secs(120);

/// Time between two tries to remove the identity of a node that was decommissioned.
const LEAVES_AGAIN: Duration = Duration::from_secs(60);

/// How long the end of a run waits for the loops before it counts as delayed. Core ordered the end after its
/// last write, so only a look at the host can be under way, or a step of the runtime.
const DISK_REST: Duration = Duration::from_secs(2);

/// How often to check whether the loops rest, before the program is replaced; and whether the cause of a
/// delay has ended.
const REST_LOOK: Duration = Duration::from_millis(5);
const HELD_UP_LOOK: Duration = Duration::from_millis(500);

/// How long the end of a run looks for a signal whose handler ran just before signals were blocked: one turn
/// of the runtime.
const LAST_SIGNAL: Duration = Duration::from_millis(1);

/// How long the loop sleeps if the timer cannot be set.
const ALARM_FAILED: Duration = Duration::from_secs(1);

/// The local configuration is invalid: `EX_CONFIG` of sysexits.h.
const EXIT_CONFIG: u8 = 78;

/// Why the agent cannot run at all.
#[derive(Debug)]
pub enum AgentError {
    /// The local config cannot be read.
    LocalConfig(local_config::LocalConfigError),
    /// The local config is invalid; the text is the whole report.
    InvalidConfig(String),
    /// The node has no usable name.
    NodeName(String),
    /// Another agent runs with these paths; where it was found.
    AnotherAgent(String),
    /// A basic call to the system failed.
    System(&'static str, std::io::Error),
}

impl AgentError {
    /// The exit code for each reason.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::LocalConfig(_) | Self::InvalidConfig(_) => EXIT_CONFIG,
            _ => 1,
        }
    }
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LocalConfig(error) => write!(f, "{error}; refusing to start"),
            Self::InvalidConfig(report) => {
                write!(f, "the local configuration is invalid, refusing to start:\n{report}")
            }
            Self::NodeName(why) => write!(f, "{why}; name the node with --hostname-override"),
            Self::AnotherAgent(error) => write!(f, "{error}; refusing to run beside it"),
            Self::System(what, error) => write!(f, "cannot {what}: {error}"),
        }
    }
}

impl std::error::Error for AgentError {}

/// Runs the agent until it exits.
///
/// # Errors
/// It cannot run at all; nothing was counted or written.
pub fn run(options: AgentOptions) -> Result<ExitCode, AgentError> {
    // before any thread starts: only the main one may get signals, or a signal during the program's
    // replacement would be lost
    linux::block_stop_signals();
    kedge_platform::workloads::take_out_ended_children();
    let faults = Faults::new(&options.places.run_dir);
    faults.gate("exec-begun");
    logging::start().map_err(|error| AgentError::System("start the log", error))?;
    log::info!("kedge {VERSION}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| AgentError::System("start the runtime", error))?;
    let start = Start::of(&options);
    let ran = Agent::start(options, faults).and_then(|agent| runtime.block_on(agent.run()));
    // the logged reason for the exit must not be lost
    logging::flush();
    if let Err(error) = &ran
        && start.pause(error)
    {
        return Ok(ExitCode::from(error.exit_code()));
    }
    if let Ended::Replace(program, supervisor) = ran? {
        let error = program.replace();
        log::warn!("cannot replace the program in place: {error}; the service manager starts the next run");
        supervisor.stopping();
        logging::flush();
    }
    // a probe's program may take long to end, and ends with this process
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

/// How a run ended.
enum Ended {
    /// With code 0.
    Exit,
    /// Everything is recorded and signals are blocked: the program replaces itself.
    Replace(Program, Arc<NotifySocket>),
}

/// The end that core ordered.
struct Ordered {
    why: String,
    start_again: bool,
}

/// The progress towards the next run.
enum Way {
    /// No end is ordered.
    None,
    /// It waits for the loops to rest: since when, and which threads waited in the kernel then.
    Waits { since: Duration, stuck: Vec<StuckThread> },
    /// It is delayed, and continues as ordered when these threads, and the loops, have moved.
    HeldUp { ordered: Ordered, stuck: Vec<StuckThread> },
}

/// The signals that the main loop takes.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    hang_up: Signal,
    user_1: Signal,
    user_2: Signal,
}

impl Signals {
    fn listen() -> Result<Self, AgentError> {
        let of = |kind| signal(kind).map_err(|error| AgentError::System("listen for signals", error));
        let signals = Self {
            terminate: of(SignalKind::terminate())?,
            interrupt: of(SignalKind::interrupt())?,
            quit: of(SignalKind::quit())?,
            hang_up: of(SignalKind::hangup())?,
            user_1: of(SignalKind::user_defined1())?,
            user_2: of(SignalKind::user_defined2())?,
        };
        linux::unblock_stop_signals();
        Ok(signals)
    }

    async fn next(&mut self) -> Happened {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Happened::Stop("asked to stop by SIGTERM"),
            _ = self.interrupt.recv() => Happened::Stop("asked to stop by SIGINT"),
            _ = self.quit.recv() => Happened::Stop("asked to stop by SIGQUIT"),
            _ = self.hang_up.recv() => Happened::Signal("SIGHUP: a changed local config takes effect at the next start"),
            _ = self.user_1.recv() => Happened::Signal("SIGUSR1 means nothing to this agent"),
            _ = self.user_2.recv() => Happened::Signal("SIGUSR2 means nothing to this agent"),
        }
    }

    /// Blocks them, and returns whether a stop was requested before. A later signal stays pending for the
    /// next process image. A lost SIGHUP costs nothing, because that image reads the local config anew.
    async fn end(&mut self) -> bool {
        linux::block_stop_signals();
        tokio::select! {
            biased;
            _ = self.terminate.recv() => true,
            _ = self.interrupt.recv() => true,
            _ = self.quit.recv() => true,
            () = tokio::time::sleep(LAST_SIGNAL) => false,
        }
    }
}

impl Way {
    /// When to check again.
    fn next_look(&self) -> Option<Duration> {
        match self {
            Self::None => None,
            Self::Waits { .. } => Some(REST_LOOK),
            Self::HeldUp { .. } => Some(HELD_UP_LOOK),
        }
    }
}

/// The calls of the local endpoint.
struct LocalCalls {
    waiting: mpsc::Receiver<Call>,
    sender: mpsc::Sender<Call>,
    socket: PathBuf,
    /// The flags that no configuration shows, for `kedge doctor`.
    flags: Value,
}

/// What the main loop and the guard let each other see.
#[derive(Clone, Default)]
struct Seen {
    /// A configuration is in use.
    ready: Arc<AtomicBool>,
    /// The guard found that the disk does not answer.
    disk_stalled: Arc<AtomicBool>,
    /// Notified when the guard finds that it stopped answering, or answers again.
    disk_changed: Arc<Notify>,
    /// Notified when the process that owned the records has ended.
    records_free: Arc<Notify>,
}

/// How far the end of this run has come.
struct Ending {
    /// The signal or request that asked for a stop, if any.
    stop_asked: Option<&'static str>,
    /// The next run is one of a node that is decommissioned, without pods or without an identity.
    is_leaving: bool,
    ordered: Option<Ordered>,
    way: Way,
}

struct Agent {
    node: Core,
    loops: Loops,
    events: mpsc::Receiver<Event>,
    local: LocalCalls,
    clocks: LinuxClocks,
    faults: Faults,
    supervisor: Arc<NotifySocket>,
    marks: RunDirectory,
    main_token: kedge_platform::Progress,
    seen: Seen,
    /// When core last handled an event: its deadlines up to then are done.
    handled: Now,
    ending: Ending,
    /// When this process image began.
    began: Duration,
    code_given_back: Duration,
    guard: Arc<Mutex<Guard>>,
    /// The batch of actions that is performed has a renewal.
    renews: bool,
    /// Until when a look at the host waits for the answer to a renewal.
    passing: Option<Duration>,
    /// Notified when the credential turns out to be another node's, and no flag gives this one's name.
    renamed: Arc<Notify>,
    claim: Records,
    /// The words that start a session; none without a server.
    session: PodPart<Vec<OsString>>,
    /// Events that became known while actions were performed.
    known: VecDeque<Event>,
}

/// The owner of the records in `--root-dir`.
enum Records {
    /// Ours while the file is open, if the directory could be claimed at all. Two agents on the same records
    /// would overwrite each other's changes. The disk's loop shares the claim: a write that hangs may outlast
    /// the main thread.
    Ours { claim: Option<Arc<File>> },
    /// Still another process's, which is ending: this one reads them, and does not change them.
    Awaited(Arc<Awaited>),
}

/// The capacity that bounds the thresholds of a configuration.
fn bounding(host: &LinuxHost) -> Capacity {
    let all = host.capacity();
    Capacity {
        memory_bytes: all.memory_bytes,
        storage_bytes: all.root_bytes,
        inodes: all.root_inodes,
        pids: all.pids,
    }
}

/// The decommissioning that was begun. At its end the identity is removed. Then, or if that fails, no request
/// is sent to a server any more.
fn leave(options: &AgentOptions) -> Option<Decommission> {
    let record = decommission::begun(&options.places.root_dir)?;
    if record.phase != Phase::Leaving {
        return Some(record);
    }
    let own = options.kubeconfig.as_deref();
    // where `kedge join` and the images put it
    let bootstrap = own.map(|own| own.with_file_name("bootstrap-kubeconfig"));
    let credentials: Vec<PathBuf> = bootstrap.into_iter().chain(own.map(Path::to_owned)).collect();
    let root_dir = options.places.root_dir.clone();
    let discard = record.wipe.then_some(decommission::discard as fn(&Path));
    let leave = move || decommission::remove_identity(&root_dir, &credentials, discard);
    match leave() {
        Ok(()) => {
            log::warn!("this node was decommissioned: its identity is removed, and it waits for another one");
            None
        }
        Err(why) => {
            log::warn!(
                "this node was decommissioned, and its identity is not removed, trying again each minute: {why}"
            );
            let again = move || {
                while leave().is_err() {
                    std::thread::sleep(LEAVES_AGAIN);
                }
                // the next run begins without the record
                log::warn!("this node was decommissioned: its identity is removed now, starting anew");
                crate::logging::flush();
                std::process::exit(0);
            };
            if let Err(error) = std::thread::Builder::new().name("leave".into()).spawn(again) {
                log::warn!("the next start tries again: {error}");
            }
            Some(record)
        }
    }
}

impl Agent {
    fn start(mut options: AgentOptions, faults: Faults) -> Result<Self, AgentError> {
        let supervisor = Arc::new(NotifySocket::from_environment());
        supervisor.extend_timeout(START_PATIENCE);
        let roots = Roots::default();
        let clocks = LinuxClocks::new(&roots);
        let began = clocks.monotonic();
        let mut layers = local_config::read(&options.local).map_err(AgentError::LocalConfig)?;
        let claim = claim(&options.places, &roots)?;
        let decommission = leave(&options);
        if decommission.as_ref().is_some_and(|record| record.phase == Phase::Leaving) {
            options.kubeconfig = None;
        }
        let host = LinuxHost::new(roots.clone(), &options.places.root_dir);
        layers.capacity = bounding(&host);
        let hostname = host.identity().hostname;
        let is_name_given = options.node_name.is_some();
        let own = files::folder(&options.places.root_dir);
        let of_file = |path: Option<&Path>, own| {
            path.filter(|_| !is_name_given).and_then(|path| node_name::of_file(path, own))
        };
        let bootstrap = options.bootstrap_kubeconfig.as_deref();
        let credential =
            of_file(options.kubeconfig.as_deref(), Some(&own)).or_else(|| of_file(bootstrap, None));
        let NodeName { name: node_name, is_credentials } =
            node_name::choose(options.node_name.as_deref(), credential, &hostname);
        crate::flags::check_node_name(&node_name).map_err(|error| AgentError::NodeName(error.to_string()))?;
        let session = PodPart::of(|| crate::calls::words(&options, &node_name));
        let given_kubeconfig = options.given_kubeconfig();
        let mut node_labels = options.node_labels;
        if is_credentials && kedge_api::names::label_value_complaint(&hostname).is_none() {
            node_labels.entry("kubernetes.io/hostname".to_owned()).or_insert(hostname);
        }
        let renamed = Arc::new(Notify::new());
        let flags = json!({
            "crun": options.runtime.crun,
            "cgroupRoot": options.runtime.cgroup_root,
        });

        let is_image = host::is_image(&roots);
        let slot = host::of_image(&roots);
        let machine = Machine::new(options.places.clone());
        let marks = RunDirectory::new(&options.places.run_dir);
        let previous =
            linux::previous_exit(linux::files(&options.places.root_dir), roots).beside(marks.clone());
        let seed = seed(&clocks);
        let mut node = Core::new(
            Options {
                node_name: node_name.clone(),
                version: VERSION.into(),
                local: layers,
                // the configuration's records are removed
                dynamic_config: options.dynamic_config
                    && decommission.as_ref().is_none_or(Decommission::has_pods),
                node_labels,
                slot,
                slots: machine.slots(),
                decommission: decommission.clone(),
                boot_id: clocks.boot_id().to_owned(),
                previous_run: previous_run(&previous, marks.next_run()),
                seed,
            },
            now(&clocks, &faults),
        )
        .map_err(|error| AgentError::InvalidConfig(error.report()))?;

        let serves = decommission.as_ref().is_none_or(Decommission::has_pods);
        let certificate_clock: WallClock = {
            let (clocks, faults) = (clocks.clone(), faults.clone());
            Arc::new(move || {
                let wall = now(&clocks, &faults).wall.micros();
                // with this floor a board without a clock, which says 1970, accepts certificates that an API
                // server got before this release; those of Kedge hubs are valid from 1970 on, and need no
                // floor
                Duration::from_micros(u64::try_from(wall).unwrap_or(0)).max(kedge_api::EARLIEST_NOW)
            })
        };
        let (event_sender, events) = mpsc::channel(EVENTS);
        let containers = PodPart::of(|| {
            let settings = options.runtime.settings(&options.places).filter(|_| serves)?;
            node.serve_pods();
            let health = Arc::new(RuntimeHealth::of(settings.crun.program.clone()));
            Some(ContainerParts {
                settings,
                root_dir: options.places.root_dir.clone(),
                preloaded_images: options.places.preloaded_images.clone(),
                clock: certificate_clock.clone(),
                events: event_sender.clone(),
                health,
            })
        });
        if serves && containers.as_ref().is_none() {
            node.reject_pods();
        }
        if options.kubeconfig.is_some() {
            node.keep_identity();
        }
        let handled = now(&clocks, &faults);
        let (call_sender, calls) = mpsc::channel(CALLS);
        let period = supervisor.watchdog_period().unwrap_or(CHECK_PERIOD * 3) / 3;
        let mut watchdog = Watchdog::new(period);
        let main_token = watchdog.watch(MAIN_LOOP, MAIN_TURN);
        let servers = Servers::default();
        let disk = DiskLoop {
            files: linux::files(&options.places.dynamic_config_dir),
            root_files: linux::files(&options.places.root_dir),
            beside: BESIDE
                .iter()
                .map(|below| linux::files(options.places.root_dir.join(below)) as _)
                .collect(),
            previous: Box::new(previous),
            host: Box::new(host),
            identity: KnownIdentity::default(),
            version: VERSION.into(),
            node_name: node_name.clone(),
            bad_configs: None,
            bad_configs_unreadable: None,
            health: Arc::default(),
            server: KnownServer::of(options.kubeconfig.clone(), own.clone(), servers.clone()),
            state_places: (options.places.root_dir.clone(), vec![options.places.dynamic_config_dir.clone()]),
            credential: options.kubeconfig.is_some().then(|| Store {
                files: linux::files(&options.places.root_dir),
                kubeconfig: given_kubeconfig,
                bootstrap: options.bootstrap_kubeconfig.clone(),
                node_name: node_name.clone(),
                renamed: (!is_name_given).then(|| renamed.clone()),
            }),
            quota: Quota::default(),
            runtime: containers.as_ref().map(|parts| parts.health.clone()),
            read_only: claim.read_only(),
            is_image,
            was_displaced: was_displaced(&options.places),
            _claim: claim.ours(),
        };
        let parts = Parts {
            disk,
            containers,
            node_name,
            renamed: (!is_name_given).then(|| renamed.clone()),
            kubeconfig: options.kubeconfig,
            own,
            bootstrap: options.bootstrap_kubeconfig,
            clock: certificate_clock,
            servers,
            events: event_sender.clone(),
            faults: faults.clone(),
            machine,
        };
        let loops = Loops::start(parts, &mut watchdog)
            .map_err(|error| AgentError::System("start a thread", error))?;
        let seen = Seen::default();
        let guard = Guard {
            watchdog,
            period,
            clocks: clocks.clone(),
            supervisor: supervisor.clone(),
            marks: marks.clone(),
            seen: seen.clone(),
            awaited: claim.awaited(),
            events: event_sender,
            stalled: Vec::new(),
            told: false,
            checked: Duration::ZERO,
            alarm: Arc::new(Alarm::new().map_err(|error| AgentError::System("make a timer", error))?),
        };
        let guard = guard.start().map_err(|error| AgentError::System("start a thread", error))?;
        Ok(Self {
            node,
            loops,
            events,
            local: LocalCalls { waiting: calls, sender: call_sender, socket: options.places.socket(), flags },
            clocks,
            faults,
            supervisor,
            marks,
            main_token,
            handled,
            seen,
            ending: Ending { stop_asked: None, is_leaving: false, ordered: None, way: Way::None },
            began,
            code_given_back: began,
            guard,
            renews: false,
            passing: None,
            renamed,
            claim,
            session,
            known: VecDeque::new(),
        })
    }

    async fn run(mut self) -> Result<Ended, AgentError> {
        self.faults.gate("exec-claimed");
        let mut signals = Signals::listen()?;
        let alarm = alarm().map_err(|error| AgentError::System("make a timer", error))?;
        self.listen()?;
        // only after the socket proved that no other agent is running
        self.marks.begin();
        self.main_token.busy();
        self.handle(Event::Start);
        while !self.may_end() {
            self.give_back_code();
            let deadline = self.node.next_deadline(self.handled);
            let passing = self.passing.filter(|_| self.ending.ordered.is_none());
            let deadline = [deadline, passing].into_iter().flatten().min();
            let wait = deadline.map(|at| at.saturating_sub(self.clocks.monotonic()));
            let wait = [wait, self.ending.way.next_look()].into_iter().flatten().min();
            match wait {
                Some(wait) => self.main_token.idle_for(wait),
                None => self.main_token.idle(),
            }
            // core accepts no events between an exit and the event that it is delayed
            let is_awaited = !matches!(self.ending.way, Way::Waits { .. });
            let happened = tokio::select! {
                biased;
                signal = signals.next() => signal,
                () = self.seen.records_free.notified() => Happened::RecordsFree,
                () = self.renamed.notified() => Happened::Renamed,
                () = self.seen.disk_changed.notified() => Happened::Time,
                event = self.events.recv(), if is_awaited => event.map_or(Happened::Time, |event| Happened::Event(Box::new(event))),
                call = self.local.waiting.recv(), if is_awaited => call.map_or(Happened::Time, Happened::Call),
                () = over(&alarm, wait) => Happened::Time,
            };
            self.main_token.busy();
            self.faults.point(MAIN_LOOP);
            if let Ok(mut guard) = self.guard.try_lock() {
                guard.check_if_due();
            }
            match happened {
                Happened::Stop(why) => self.stop(why),
                Happened::RecordsFree => {
                    // this run changed nothing, and that process may have finished a last change
                    let why = "the run before has ended, reading its records anew".into();
                    self.ending.ordered = Some(Ordered { why, start_again: true });
                }
                Happened::Renamed => {
                    let why = "the kubeconfig is another node's, taking its name".into();
                    self.ending.ordered = Some(Ordered { why, start_again: true });
                }
                Happened::Signal(what) => log::info!("{what}"),
                Happened::Event(event) => self.handle(*event),
                Happened::Call(call) => self.answer(call),
                Happened::Time => self.handle(Event::Tick),
            }
            // events have priority, and a server can send one after the other without end
            if is_awaited && let Ok(call) = self.local.waiting.try_recv() {
                self.answer(call);
            }
            if let Some(facts) = self.in_passing() {
                self.handle(facts);
            }
            self.leave_a_stalled_disk();
        }
        Ok(self.end(signals).await)
    }

    /// Whether the ordered end may happen now. If it replaces the program, it waits until the loops rest, and
    /// until no thread waits in the kernel for a disk or a server that does not answer: such a thread would
    /// delay the whole process. If that takes long, core gets an event and continues; a stop waits for
    /// nothing.
    fn may_end(&mut self) -> bool {
        let start_again = self.ending.ordered.as_ref().map(|ordered| ordered.start_again);
        match (start_again, std::mem::replace(&mut self.ending.way, Way::None)) {
            (None, Way::HeldUp { ordered, mut stuck }) => {
                stuck.retain(|thread| linux::stuck_threads().contains(thread));
                // the runtime's loop rests for no longer than it must: its own work may be the cause of the
                // delay
                let is_free = stuck.is_empty() && self.loops.disk_rests();
                if is_free {
                    self.loops.rest();
                }
                if !is_free || self.loops.works_on().is_some() {
                    self.ending.way = Way::HeldUp { ordered, stuck };
                } else {
                    self.handle(Event::EndHeldUp(None));
                    // an end that core did not order happens all the same
                    self.ending.ordered.get_or_insert(ordered);
                    self.begin_way();
                }
                false
            }
            (None, _) => false,
            (Some(false), _) => true,
            (Some(true), Way::Waits { since, mut stuck }) => {
                // everything is recorded: a stop has nothing to wait for
                if let (Some(why), Some(ordered)) = (self.ending.stop_asked, &mut self.ending.ordered) {
                    *ordered = Ordered { why: why.into(), start_again: false };
                    return true;
                }
                stuck.retain(|thread| linux::stuck_threads().contains(thread));
                let works_on = self.loops.works_on();
                if stuck.is_empty() && works_on.is_none() {
                    return true;
                }
                let has_waited = self.clocks.monotonic().saturating_sub(since) >= DISK_REST;
                match self.ending.ordered.take_if(|_| has_waited) {
                    Some(ordered) => self.hold_up(ordered, stuck, works_on),
                    None => self.ending.way = Way::Waits { since, stuck },
                }
                false
            }
            (Some(true), _) => {
                self.begin_way();
                false
            }
        }
    }

    fn begin_way(&mut self) {
        self.loops.rest();
        self.ending.way = Way::Waits { since: self.clocks.monotonic(), stuck: linux::stuck_threads() };
    }

    fn hold_up(&mut self, ordered: Ordered, stuck: Vec<StuckThread>, works_on: Option<String>) {
        self.loops.go_on_if_it_rests();
        let of_thread = |thread: &StuckThread| {
            format!("thread {:?} waits for a disk or a server that does not answer", thread.name)
        };
        let why = works_on.into_iter().chain(stuck.iter().map(of_thread)).collect::<Vec<_>>().join("; ");
        log::warn!("not replaced in place: {why}; going on as before, and looking again: {}", ordered.why);
        self.ending.way = Way::HeldUp { ordered, stuck };
        self.handle(Event::EndHeldUp(Some(why)));
    }

    fn give_back_code(&mut self) {
        let now = self.clocks.monotonic();
        if now.saturating_sub(self.code_given_back) >= CODE_REST {
            self.code_given_back = now;
            linux::give_back_code();
        }
    }

    fn stop(&mut self, why: &'static str) {
        // first of all, and not on the disk, which may be the part that hangs: if the process is killed, this
        // mark shows that it had been asked to stop
        self.marks.mark_stopping();
        self.supervisor.stopping();
        if self.ending.stop_asked.replace(why).is_some() {
            let why = "asked to stop again, not waiting for the disk".into();
            self.ending.ordered = Some(Ordered { why, start_again: false });
        }
        self.handle(Event::Stop(why.into()));
    }

    /// A stop does not wait for a disk that does not answer, whether the stop or the hang was first.
    fn leave_a_stalled_disk(&mut self) {
        if let Some(why) = self.ending.stop_asked
            && self.ending.ordered.is_none()
            && self.seen.disk_stalled.load(Ordering::Relaxed)
        {
            let why = format!("{why}, not waiting for a disk that does not answer");
            self.ending.ordered = Some(Ordered { why, start_again: false });
        }
    }

    /// Ends this run: by replacing the program in place if another config is to run and that is possible,
    /// otherwise by an exit, after which the service manager starts the agent again, after its pause.
    async fn end(mut self, mut signals: Signals) -> Ended {
        let Some(Ordered { why, start_again }) = self.ending.ordered.take() else { return Ended::Exit };
        log::info!("exiting: {why}");
        self.supervisor.status(&why);
        let (marks, supervisor) = (self.marks.clone(), self.supervisor.clone());
        let boot_id = self.clocks.boot_id().to_owned();
        if start_again {
            match self.replacement(&mut signals).await {
                Ok(program) => return Ended::Replace(program, supervisor),
                Err(why) => {
                    log::info!("not replaced in place, the service manager starts the next run: {why}")
                }
            }
        }
        marks.mark_stopping();
        // where nothing else records the end of a process, an end that could not be written to the disk would
        // count as a crash
        marks.record_clean_end(&boot_id);
        supervisor.stopping();
        Ended::Exit
    }

    /// Makes sure that the program may replace itself, and records the end of this run.
    async fn replacement(mut self, signals: &mut Signals) -> Result<Program, String> {
        self.faults.gate("exec-decided");
        let program = Program::running().map_err(|error| error.to_string())?;
        // exec waits for every thread: one that waits for the disk would delay the rest of the agent as long;
        // the loops rest by now
        self.events.close();
        if !self.loops.end(DISK_REST) {
            return Err("the disk or the runtime is busy".into());
        }
        if signals.end().await {
            return Err("asked to stop".into());
        }
        self.faults.gate("exec-blocked");
        let now = self.clocks.monotonic();
        if !self.marks.may_replace(now, now.saturating_sub(self.began)) {
            return Err("there were too many replacements in the last minute".into());
        }
        self.marks.mark_stopping();
        self.marks.record_clean_end(self.clocks.boot_id());
        self.supervisor.reloading(now);
        self.faults.gate("exec-recorded");
        Ok(program)
    }

    /// Opens the socket first: it also shows whether another agent runs with these paths.
    fn listen(&self) -> Result<(), AgentError> {
        let listener = match self.claim {
            Records::Ours { .. } => local::Listener::unix(&self.local.socket),
            Records::Awaited(_) => local::Listener::unix_in_place(&self.local.socket),
        };
        match listener {
            Ok(listener) => drop(tokio::spawn(local::serve(listener, self.local.sender.clone()))),
            Err(error @ local::server::ListenError::InUse { .. }) => {
                return Err(AgentError::AnotherAgent(error.to_string()));
            }
            Err(error) => log::warn!("no local endpoint: {}", chain(&error)),
        }
        Ok(())
    }

    fn now(&self) -> Now {
        now(&self.clocks, &self.faults)
    }

    /// The look at the host that waited for whatever woke this loop.
    fn in_passing(&mut self) -> Option<Event> {
        // core accepts no events between an exit and the event that it is delayed
        let until = self.passing.filter(|_| self.ending.ordered.is_none())?;
        let is_over = self.clocks.monotonic() >= until;
        let facts = if is_over { self.loops.passing.end() } else { self.loops.passing.take() };
        if is_over || facts.is_some() {
            self.passing = None;
        }
        facts
    }

    fn handle(&mut self, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next {
            let mut actions = Vec::new();
            self.handled = self.now();
            self.node.handle(self.handled, event, &mut actions);
            self.renews = actions.iter().any(|action| matches!(action, Action::Renew { .. }));
            for action in actions {
                self.perform(action);
            }
            next = self.known.pop_front();
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Step(step) => {
                if !self.seen.ready.load(Ordering::Relaxed) && matches!(step, Step::Write(..)) {
                    self.supervisor.extend_timeout(START_PATIENCE);
                }
                self.loops.disk(DiskOrder::Step(step));
            }
            Action::Use(effective) => self.use_config(&effective),
            Action::ConsumeEvidence => self.loops.disk(DiskOrder::ConsumeEvidence),
            Action::Sweep { keep } => self.loops.disk(DiskOrder::Sweep(keep)),
            Action::ReadHostFacts => {
                if self.renews {
                    self.loops.passing.open();
                    self.passing = Some(self.handled.mono.saturating_add(PASSING));
                }
                self.loops.disk(DiskOrder::ReadHostFacts);
            }
            Action::Request(request) => self.loops.request(self.node.server(), request),
            Action::Renew { request, deadline } => self.loops.renew(self.node.server(), request, deadline),
            Action::WatchNode(order) => self.loops.watch_node(self.node.server(), order),
            Action::WatchConfigMap { namespace, name, order } => {
                self.loops.watch_config_map(self.node.server(), Some(((namespace, name), order)));
            }
            Action::EndConfigMapWatch => self.loops.watch_config_map(self.node.server(), None),
            Action::WatchPods(order) => self.loops.watch_pods(self.node.server(), Some(order)),
            Action::EndPodsWatch => self.loops.watch_pods(self.node.server(), None),
            Action::Pods(action) => {
                let known = self.loops.pods(*action).map(|event| Event::Pods(Box::new(event)));
                self.known.extend(known);
            }
            Action::Identity(action) => self.loops.identity(*action),
            Action::System(order) => self.loops.system(*order),
            Action::TakeAuthorities(wanted) => self.loops.take_authorities(wanted),
            Action::TakeCall(call) => {
                crate::calls::start(self.session(), &call, self.loops.used_server());
            }
            Action::NeedImages { images, is_all } => self.loops.need_images(images, is_all),
            Action::Exit { why, start_again } => {
                let start_again = start_again || (self.ending.is_leaving && self.ending.stop_asked.is_none());
                self.ending.ordered = Some(Ordered { why, start_again });
            }
            Action::NoteDecommission(record) => {
                self.ending.is_leaving |= !record.has_pods();
                self.loops.disk(DiskOrder::NoteDecommission(record.text()));
            }
            Action::RemoveState => self.loops.disk(DiskOrder::RemoveState),
            Action::Log(Level::Warn, text) => log::warn!("{text}"),
            Action::Log(Level::Info, text) => log::info!("{text}"),
            Action::Log(Level::Debug, text) => log::debug!("{text}"),
        }
    }

    /// From here on the configuration is in use: a crash counts against it.
    fn use_config(&mut self, effective: &Effective) {
        logging::verbosity(effective.config.logging_verbosity);
        log::info!("effective configuration: {}", effective.without_secrets());
        if !effective.config.watch {
            self.loops.keep_one_connection();
        }
        self.loops.use_servers(&effective.config);
        self.loops.use_registries(&effective.config);
        self.loops.start_containers(&effective.config);
        self.faults.arm(&effective.config);
        self.faults.point("start");
        if let Some(address) = effective.config.healthz {
            match local::Listener::tcp(address) {
                Ok(listener) => drop(tokio::spawn(local::serve(listener, self.local.sender.clone()))),
                Err(error) => log::warn!("no health endpoint: {}", chain(&error)),
            }
        }
        if let Some(server) = &effective.config.server {
            crate::kubelet_api::server::offer(server, self.session(), self.loops.servers());
        }
        self.marks.mark_ready();
        crate::refused::forget(self.marks.path());
        // the status of an earlier process image stays with the service manager until it is replaced
        self.supervisor.status(&self.what_runs());
        self.supervisor.ready();
        self.seen.ready.store(true, Ordering::Relaxed);
        // reading the configuration used much stack
        linux::give_back_stack();
    }

    fn session(&self) -> Option<&[OsString]> {
        self.session.as_ref().map(Vec::as_slice)
    }

    /// The running configuration, in one line for `systemctl status`.
    fn what_runs(&self) -> String {
        let active = self.node.report(self.handled).and_then(|report| report.config.status.active);
        match active.and_then(|source| source.config_map) {
            Some(map) => format!("runs ConfigMap {}/{} (UID: {})", map.namespace, map.name, map.uid),
            None => "runs the local configuration".into(),
        }
    }

    fn answer(&mut self, call: Call) {
        let now = self.now();
        let (server, disk) = self.loops.report();
        let (process, flags) = (linux::process_facts(&Roots::default()), self.local.flags.clone());
        let around = answers::Surroundings { process, server, disk, flags };
        let (response, event) = answers::answer(&call.request, &self.node, now, &around);
        call.answer(response);
        if let Some(event) = event {
            self.handle(event);
        }
    }
}

enum Happened {
    Stop(&'static str),
    /// A signal that has no effect here: the line to log.
    Signal(&'static str),
    RecordsFree,
    /// The kubeconfig is another node's.
    Renamed,
    Event(Box<Event>),
    Call(Call),
    Time,
}

#[expect(
    deprecated,
    reason = "its successor is unsafe, for types that name another descriptor later: this one cannot"
)]
fn alarm() -> std::io::Result<AsyncFd<Alarm>> {
    AsyncFd::with_interest(Alarm::new()?, Interest::READABLE)
}

/// Waits for this time; `None`: for ever.
async fn over(alarm: &AsyncFd<Alarm>, wait: Option<Duration>) {
    if let Err(error) = alarm.get_ref().set(wait) {
        log::error!("cannot set a timer: {error}");
        return tokio::time::sleep(ALARM_FAILED).await;
    }
    // it may still count as readable from before it was set
    while let Ok(mut readable) = alarm.readable().await {
        if let Ok(Ok(())) = readable.try_io(|alarm| alarm.get_ref().went_off()) {
            return;
        }
    }
}

/// The present time, without faults.
pub(crate) fn wall_now(clocks: &impl Clocks) -> Now {
    let micros = clocks.wall().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    let wall = Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX));
    Now { mono: clocks.monotonic(), wall }
}

fn now(clocks: &impl Clocks, faults: &Faults) -> Now {
    let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    let micros = i64::try_from(since(clocks.wall())).unwrap_or(i64::MAX);
    let offset = faults.clock_offset_ms().saturating_mul(1000);
    Now { mono: clocks.monotonic(), wall: Timestamp::from_micros(micros.saturating_add(offset)) }
}

/// Directories below `--root-dir` that no write of a record would make again (those writes clear their own
/// way), or that must be read before anything is written there.
const KEPT_BELOW: [&str; 11] = [
    "containers",
    "images",
    "images/blobs",
    "images/claims",
    "images/configs",
    "images/layers",
    "images/records",
    "pods",
    "pods/desired",
    "pods/objects",
    "volumes",
];

/// Logs that a file in place of a directory, which a damaged disk left, was set aside: otherwise containers
/// would have no directory, and the configuration could never be written again.
fn report_way(directory: &Path, made: Result<Option<Displaced>, WriteError>) {
    match made {
        Ok(None) => {}
        Ok(Some(displaced)) => log::warn!("{displaced}; what was in the directory is lost"),
        Err(error) => {
            log::warn!("{} is no directory and stays in the way: {}", directory.display(), chain(&error));
        }
    }
}

/// Claims `--root-dir` for this agent, and makes sure that directories can be made in it: the socket alone
/// does not prove the claim, because it is in another directory. A directory that cannot be claimed at all is
/// a fault of the disk, and no disk stops an agent: neither does a disk that keeps the process before us from
/// ending.
fn claim(places: &Places, roots: &Roots) -> Result<Records, AgentError> {
    let root_dir = &places.root_dir;
    let directory = root_dir.display();
    report_way(root_dir, linux::make_way_alone(root_dir));
    match Claim::take(root_dir, roots) {
        Ok(Claim::Held(file)) => {
            let below = KEPT_BELOW.iter().map(|below| root_dir.join(below));
            for directory in below.chain([places.dynamic_config_dir.clone()]) {
                report_way(&directory, linux::make_way(&directory));
            }
            Ok(Records::Ours { claim: Some(Arc::new(file)) })
        }
        Ok(Claim::Taken) => Err(AgentError::AnotherAgent(format!(
            "root directory {directory}: another agent keeps its state there"
        ))),
        Ok(Claim::Awaited(awaited)) => {
            let holder = awaited.holder;
            log::warn!(
                "root directory {directory}: process {holder} is ending and cannot, its disk does not answer; \
                running without changing anything there"
            );
            Ok(Records::Awaited(Arc::new(awaited)))
        }
        Err(error) => {
            log::warn!("cannot claim root directory {directory}: {error}; running all the same");
            Ok(Records::Ours { claim: None })
        }
    }
}

/// Whether a file was in place of the directory of the records, now or in an earlier run.
pub(crate) fn was_displaced(places: &Places) -> bool {
    [&places.root_dir, &places.dynamic_config_dir]
        .iter()
        .any(|place| !linux::set_aside_from(place).is_empty())
}

impl Records {
    fn ours(&self) -> Option<Arc<File>> {
        match self {
            Self::Ours { claim } => claim.clone(),
            Self::Awaited(_) => None,
        }
    }

    fn awaited(&self) -> Option<Arc<Awaited>> {
        match self {
            Self::Ours { .. } => None,
            Self::Awaited(awaited) => Some(awaited.clone()),
        }
    }

    /// The reason if nothing may be changed.
    fn read_only(&self) -> Option<String> {
        let holder = self.awaited()?.holder;
        Some(format!(
            "the disk does not answer, and process {holder}, which is ending, still has the records"
        ))
    }
}

/// The only random number: std's hasher is seeded by the system, and a spread needs no better randomness.
fn seed(clocks: &impl Clocks) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u128(clocks.monotonic().as_nanos());
    hasher.finish()
}

pub(crate) fn previous_run(previous: &impl PreviousExit, runs: u64) -> PreviousRun {
    let evidence = previous.read();
    for problem in &evidence.problems {
        log::warn!("evidence of the previous run: {problem}");
    }
    PreviousRun {
        exit: evidence.exit_record.map(|record| Exit {
            boot_id: record.boot_id,
            run: record.run,
            result: record.result,
            exit_code: record.exit_code,
            exit_status: record.exit_status,
            was_ready: record.was_ready,
            stop_asked: record.stop_asked,
            stalled: record.stalled,
        }),
        runs,
        hardware_reset: evidence.hardware_watchdog_reset,
        kernel_panic: evidence.kernel_panic,
    }
}

/// Checks the loops and feeds the supervisor's watchdog. The main loop checks when something else woke it;
/// when that is late, a thread does it that does nothing else, so that it sees a stalled main loop, too. It
/// leaves the names of stalled loops for `kedge record-exit`.
///
/// A disk that does not answer withholds no ping: a kill cannot end a process that waits for it, and would
/// end a heartbeat that works. It is reported instead.
struct Guard {
    watchdog: Watchdog,
    period: Duration,
    clocks: LinuxClocks,
    supervisor: Arc<NotifySocket>,
    marks: RunDirectory,
    seen: Seen,
    awaited: Option<Arc<Awaited>>,
    events: mpsc::Sender<Event>,
    /// Loops that were stalled at the last check.
    stalled: Vec<&'static str>,
    /// The state of the disk, as last reported to core.
    told: bool,
    checked: Duration,
    /// Wakes the guard's thread, later after the last check than a renewal wakes the main loop, and so early
    /// that one lost ping is not the last.
    alarm: Arc<Alarm>,
}

impl Guard {
    fn start(mut self) -> std::io::Result<Arc<Mutex<Self>>> {
        self.check();
        let (alarm, period, guard) = (self.alarm.clone(), self.period, Arc::new(Mutex::new(self)));
        let shared = guard.clone();
        let body = move || loop {
            if alarm.wait().is_err() {
                std::thread::sleep(period);
            }
            locked(&guard).check();
        };
        std::thread::Builder::new().name("guard".into()).stack_size(64 * 1024).spawn(body)?;
        Ok(shared)
    }

    /// A check, if the last one was a while ago.
    fn check_if_due(&mut self) {
        if self.clocks.monotonic().saturating_sub(self.checked) >= self.period / 2 {
            self.check();
        }
    }

    fn check(&mut self) {
        self.checked = self.clocks.monotonic();
        if let Err(error) = self.alarm.set(Some(self.period * 5 / 4)) {
            log::error!("cannot set a timer: {error}");
        }
        let names = self.watchdog.check(self.checked).stalled_names();
        let is_alive = names.iter().all(|name| *name == kedge_core::DISK_LOOP);
        if is_alive && !self.seen.ready.load(Ordering::Relaxed) {
            // a start that makes progress, or waits for its disk, gets more time; one that hangs does not
            self.supervisor.extend_timeout(START_PATIENCE);
        }
        if names != self.stalled {
            self.note(&names);
            self.stalled = names;
        }
        if is_alive {
            self.supervisor.watchdog_ping();
        }
        self.report_disk();
    }

    fn note(&self, names: &[&'static str]) {
        self.marks.mark_stalled(names);
        match names {
            [] => log::warn!("loops move again: {}", self.stalled.join(", ")),
            [kedge_core::DISK_LOOP] => {
                log::error!("stalled: disk; the node goes on, and records nothing until the disk answers");
            }
            names => log::error!("stalled: {}; withholding the watchdog's ping", names.join(", ")),
        }
    }

    fn report_disk(&mut self) {
        if self.awaited.take_if(|awaited| awaited.is_ours()).is_some() {
            self.seen.records_free.notify_one();
        }
        let stalled = self.awaited.is_some() || self.stalled.contains(&kedge_core::DISK_LOOP);
        if self.seen.disk_stalled.swap(stalled, Ordering::Relaxed) != stalled {
            self.seen.disk_changed.notify_one();
        }
        // a full queue: the main loop is late, and core learns it at the next check. Before a config is in
        // use core does not handle the event
        if stalled != self.told
            && self.seen.ready.load(Ordering::Relaxed)
            && self.events.try_send(Event::DiskStalled(stalled)).is_ok()
        {
            self.told = stalled;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_has_its_directories_whatever_lay_there() {
        let scratch = kedge_rig::Scratch::new("places").unwrap();
        let at = |name: &str| scratch.join(name);
        let places = Places {
            root_dir: at("state"),
            dynamic_config_dir: at("state/config"),
            run_dir: at("run"),
            preloaded_images: at("preloaded"),
        };
        scratch.write("state", "x");
        assert!(!was_displaced(&places));
        let held = claim(&places, &Roots::default()).unwrap();
        assert!(matches!(held, Records::Ours { claim: Some(_) }), "the directory was made, and claimed");
        assert!(was_displaced(&places));
        drop(held);
        // in place of the outer ones, then in place of those in them
        for is_inner in [false, true] {
            let places_of = KEPT_BELOW.into_iter().chain(["config"]);
            for below in places_of.filter(|below| below.contains('/') == is_inner) {
                scratch.write(&format!("state/{below}"), "x");
            }
            drop(claim(&places, &Roots::default()).unwrap());
        }
        for below in KEPT_BELOW.into_iter().chain(["config"]) {
            std::fs::create_dir_all(at("state").join(below)).unwrap();
        }
    }
}
