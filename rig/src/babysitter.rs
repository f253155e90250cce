//! A process supervisor for machines without systemd: for `make try`, the end-to-end tests, the benchmark and
//! `kedge-babysitter`.
//!
//! Owns the processes of one [`Unit`]: starts them, reads their notify socket, kills a process that is silent
//! or late, runs the command that records how each run ended, and restarts. A single thread does all that; it
//! sleeps until a message, an order, the end of the process or a time limit, and publishes changes at once.
//! Always holds: at most one process is alive; messages that a process sent before its end are read before
//! its end is handled; only messages of the main process count (`NotifyAccess=main`); the first failure of a
//! run determines its result; a process dies with the thread that watches it, so a killed test leaves nothing
//! behind. It is not part of the product: devices run `kedge.service` under systemd, which hil-tests tests on
//! booted images.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
pub use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, UnixAddr, UnixCredentials, recvmsg, setsockopt, sockopt,
};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::error::RigError;

/// systemd's own limit for one notify message (PIPE_BUF).
const DATAGRAM_BYTES: usize = 4096;
/// Most ends kept in memory. A crash loop of days must not exhaust it.
const ENDS_KEPT: usize = 1000;
/// Interval of checks of a recording command that still runs.
const RECORDER_POLL: Duration = Duration::from_millis(1);
/// systemd's EXIT_EXEC: the process could not be started.
const NOT_STARTED: i32 = 203;
/// Shell script that starts the main process. `$$` stays its process id over `exec`, so WATCHDOG_PID can
/// contain it. PDEATHSIG is set by `setpriv` (util-linux, on every Debian), because setting it in this
/// program would need unsafe code.
const LAUNCH: &str =
    r#"[ -z "$WATCHDOG_USEC" ] || export WATCHDOG_PID=$$; exec setpriv --pdeathsig KILL -- "$@""#;
/// The variables that a process inherits when [`Unit::inherit_environment`] is off, as under systemd.
const KEPT_VARIABLES: [&str; 3] = ["PATH", "HOME", "LANG"];
/// Variables of our own environment (we may be supervised ourselves) that must not be passed to the child.
const OWN_VARIABLES: [&str; 5] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "RUNTIME_DIRECTORY", "STATE_DIRECTORY"];

/// The time limits of a unit file, by their names there.
#[derive(Debug, Clone)]
pub struct Limits {
    /// `TimeoutStartSec=`: from the start of the process to `READY=1`.
    pub start: Duration,
    /// `TimeoutStopSec=`: from SIGTERM (or `STOPPING=1`) to SIGKILL. Also for the recording command.
    pub stop: Duration,
    /// `TimeoutAbortSec=`: from the watchdog's SIGABRT to SIGKILL.
    pub abort: Duration,
    /// `WatchdogSec=`: the longest silence between two `WATCHDOG=1` once ready. `None`: no watchdog.
    pub watchdog: Option<Duration>,
    /// `RestartSec=`
    pub restart_after: Duration,
}

/// The program and its settings: the part of a unit file that is supported here.
#[derive(Debug, Clone)]
pub struct Unit {
    /// For messages and the log.
    pub name: String,
    /// `ExecStart=`: program and arguments.
    pub command: Vec<OsString>,
    /// `ExecStopPost=`: run after every end, with `$SERVICE_RESULT`, `$EXIT_CODE` and `$EXIT_STATUS`.
    pub record_command: Option<Vec<OsString>>,
    /// `Environment=`
    pub environment: Vec<(OsString, OsString)>,
    /// True if the process inherits our own environment. Under systemd it does not.
    pub inherit_environment: bool,
    /// Becomes `$RUNTIME_DIRECTORY`; created if missing, and kept across restarts
    /// (`RuntimeDirectoryPreserve=yes`).
    pub run_dir: Option<PathBuf>,
    /// Becomes `$STATE_DIRECTORY`; created if missing.
    pub state_dir: Option<PathBuf>,
    /// Standard output and error are appended to this file. `None`: it inherits ours.
    pub log: Option<PathBuf>,
    /// `Restart=`: always, or no.
    pub restart: bool,
    pub limits: Limits,
}

impl Unit {
    /// A unit with the limits of `kedge.service`.
    pub fn new(name: &str, command: Vec<OsString>) -> Unit {
        Unit {
            name: name.to_owned(),
            command,
            record_command: None,
            environment: Vec::new(),
            inherit_environment: false,
            run_dir: None,
            state_dir: None,
            log: None,
            restart: true,
            limits: Limits {
                start: Duration::from_secs(90),
                stop: Duration::from_secs(20),
                abort: Duration::from_secs(20),
                watchdog: Some(Duration::from_secs(30)),
                restart_after: Duration::from_secs(2),
            },
        }
    }

    fn open_log(&self) -> io::Result<Option<File>> {
        let Some(path) = &self.log else { return Ok(None) };
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        OpenOptions::new().create(true).append(true).open(path).map(Some)
    }

    /// Sets the environment and the streams of a process of this unit.
    fn prepare(&self, command: &mut Command) -> io::Result<()> {
        if !self.inherit_environment {
            command.env_clear();
            command.envs(KEPT_VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        }
        for name in OWN_VARIABLES {
            command.env_remove(name);
        }
        for (name, dir) in [("RUNTIME_DIRECTORY", &self.run_dir), ("STATE_DIRECTORY", &self.state_dir)] {
            if let Some(dir) = dir {
                command.env(name, dir);
            }
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        // its own group: Ctrl-C in the terminal is meant for us, and we stop our children properly
        command.process_group(0).stdin(Stdio::null());
        if let Some(log) = self.open_log()? {
            command.stderr(log.try_clone()?).stdout(log);
        }
        Ok(())
    }
}

/// `$SERVICE_RESULT` (systemd.exec(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceResult {
    Success,
    /// It succeeded, but never sent `READY=1`.
    Protocol,
    /// A start or stop time limit was exceeded.
    Timeout,
    ExitCode,
    Signal,
    CoreDump,
    Watchdog,
}

impl ServiceResult {
    /// The value that systemd puts into `$SERVICE_RESULT`.
    pub fn as_str(self) -> &'static str {
        match self {
            ServiceResult::Success => "success",
            ServiceResult::Protocol => "protocol",
            ServiceResult::Timeout => "timeout",
            ServiceResult::ExitCode => "exit-code",
            ServiceResult::Signal => "signal",
            ServiceResult::CoreDump => "core-dump",
            ServiceResult::Watchdog => "watchdog",
        }
    }

    fn of(exit: ExitStatus) -> ServiceResult {
        match (exit.code(), exit.signal()) {
            // SIGHUP, SIGINT, SIGTERM and SIGPIPE are clean ends of a service (systemd.service(5),
            // SuccessExitStatus=)
            (Some(0), _) | (None, Some(1 | 2 | 13 | 15)) => ServiceResult::Success,
            (Some(_), _) => ServiceResult::ExitCode,
            (None, _) if exit.core_dumped() => ServiceResult::CoreDump,
            (None, _) => ServiceResult::Signal,
        }
    }
}

/// `$EXIT_CODE` and `$EXIT_STATUS`.
fn exit_words(exit: ExitStatus) -> (&'static str, String) {
    let Some(signal) = exit.signal() else { return ("exited", exit.code().unwrap_or(0).to_string()) };
    let name = Signal::try_from(signal).map(|known| known.as_str().trim_start_matches("SIG").to_owned());
    (if exit.core_dumped() { "dumped" } else { "killed" }, name.unwrap_or_else(|_| signal.to_string()))
}

/// A finished run.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The number of the run, counted from 1.
    pub run: u64,
    pub result: ServiceResult,
    pub exit: ExitStatus,
    /// From the start of the process to its end.
    pub ran: Duration,
    /// True if the recording command ended with code 0, or is not set.
    pub is_recorded: bool,
    /// True if the process replaced its program in place (`RELOADING=1`) and continues as the next run.
    pub is_replaced: bool,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (code, status) = exit_words(self.exit);
        let (run, secs, result) = (self.run, self.ran.as_secs_f64(), self.result.as_str());
        write!(out, "run {run} ended after {secs:.1} s: {result} ({code} {status})")
    }
}

/// The state of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not running, and not ordered to run.
    Stopped,
    /// Waiting for the pause before the next start.
    Pause,
    /// Running, no `READY=1` yet.
    Starting,
    /// Running and ready.
    Running,
    /// It replaces itself in place: it sent `RELOADING=1`, and no `READY=1` yet. Only the watchdog's limit
    /// applies, as under systemd.
    Reloading,
    /// Ending, because of SIGTERM, SIGABRT, or its own decision (`STOPPING=1`).
    Stopping,
    /// SIGKILL was sent.
    Killing,
    /// The process has ended; the recording command runs.
    Recording,
}

/// The state of a unit at one moment.
#[derive(Debug, Clone)]
pub struct State {
    pub phase: Phase,
    /// The main process, while there is one.
    pub pid: Option<i32>,
    /// Number of runs so far: starts of a process, and replacements in place.
    pub runs: u64,
    /// Number of `WATCHDOG=1` messages so far.
    pub pings: u64,
    /// Number of processes that SIGKILL does not end: they wait in the kernel, for a disk. As under systemd,
    /// the unit continues without them.
    pub stuck: usize,
    /// The last `STATUS=` of this run.
    pub status: String,
    /// Finished runs, oldest first; at most 1000.
    pub ends: VecDeque<Ended>,
}

impl State {
    /// True if the present process has sent `READY=1`.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Running
    }

    fn add(&mut self, ended: Ended) {
        if self.ends.len() == ENDS_KEPT {
            self.ends.pop_front();
        }
        self.ends.push_back(ended);
    }
}

enum Order {
    Start,
    Stop,
    Signal(Signal),
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running supervisor of one unit. Dropping it kills the process at once, without a record;
/// [`Babysitter::stop`] stops it properly.
pub struct Babysitter {
    name: String,
    // taken out to end the thread
    orders: Option<Sender<Order>>,
    waker: Waker,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Babysitter {
    /// Starts the supervisor and the unit.
    ///
    /// # Errors
    /// A directory, the log or the notify socket cannot be made.
    pub fn start(unit: Unit) -> Result<Babysitter, RigError> {
        for dir in [&unit.run_dir, &unit.state_dir].into_iter().flatten() {
            std::fs::create_dir_all(dir).map_err(RigError::io("create directory", dir))?;
        }
        let failed = |tried: &str| {
            let tried = format!("{tried} of {}", unit.name);
            move |source| RigError::Io { tried, source }
        };
        unit.open_log().map_err(failed("open the log"))?;
        let (socket, address) = bind_notify_socket().map_err(failed("bind the notify socket"))?;
        let waker = Waker::of(&address).map_err(failed("connect to the notify socket"))?;
        let (orders, inbox) = channel();
        let state = State {
            phase: Phase::Stopped,
            pid: None,
            runs: 0,
            pings: 0,
            stuck: 0,
            status: String::new(),
            ends: VecDeque::new(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let name = unit.name.clone();
        let supervisor = Supervisor {
            unit,
            socket,
            address,
            waker: waker.clone(),
            inbox,
            shared: shared.clone(),
            main: None,
            stuck: Vec::new(),
            phase: Phase::Stopped,
            until: None,
            watchdog_until: None,
            result: ServiceResult::Success,
            is_wanted: true,
        };
        let thread = std::thread::Builder::new().name(format!("sits-{name}")).spawn(move || supervisor.run());
        let thread = thread.map_err(|source| RigError::Io { tried: "start a thread".into(), source })?;
        let babysitter = Babysitter { name, orders: Some(orders), waker, shared, thread: Some(thread) };
        babysitter.start_again();
        Ok(babysitter)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    fn order(&self, order: Order) {
        // fails only once the thread has ended: then no process is left that could receive orders
        let _ = self.orders.as_ref().map(|orders| orders.send(order));
        self.waker.wake();
    }

    /// Starts it again after [`Babysitter::stop`].
    pub fn start_again(&self) {
        self.order(Order::Start);
    }

    /// Like `systemctl stop`: SIGTERM, SIGKILL at the stop time limit, the record, no restart. Returns at
    /// once.
    pub fn stop(&self) {
        self.order(Order::Stop);
    }

    /// Stops it and waits until it has stopped and its end is recorded.
    ///
    /// # Errors
    /// It did not stop within the limit.
    pub fn stop_and_wait(&self, limit: Duration) -> Result<(), RigError> {
        self.stop();
        self.wait_until("its stop", limit, |state| state.phase == Phase::Stopped).map(|_| ())
    }

    /// Sends a signal to the main process, if there is one: SIGKILL for a crash, SIGSTOP for a hang.
    pub fn signal(&self, signal: Signal) {
        self.order(Order::Signal(signal));
    }

    /// The present state.
    pub fn state(&self) -> State {
        self.shared.lock().clone()
    }

    /// Waits until `is_so` returns true, and returns that state.
    ///
    /// # Errors
    /// It did not within the limit.
    pub fn wait_until(
        &self,
        awaited: &str,
        limit: Duration,
        is_so: impl Fn(&State) -> bool,
    ) -> Result<State, RigError> {
        let guard = self.shared.lock();
        let waited = self.shared.changed.wait_timeout_while(guard, limit, |state| !is_so(state));
        let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            let last = guard.ends.back().map_or("no run ended yet".to_owned(), Ended::to_string);
            return Err(RigError::TimedOut {
                awaited: format!("{awaited} of {}, for {} s", self.name, limit.as_secs()),
                found: format!("phase {:?} in run {}; {last}", guard.phase, guard.runs),
            });
        }
        Ok(guard.clone())
    }

    /// Waits until the process sends `READY=1` (at once, if it has).
    ///
    /// # Errors
    /// It did not within the limit.
    pub fn wait_ready(&self, limit: Duration) -> Result<State, RigError> {
        self.wait_until("READY=1", limit, State::is_ready)
    }

    /// Waits until `count` runs have finished, and returns them.
    ///
    /// # Errors
    /// They did not within the limit.
    pub fn wait_ends(&self, count: usize, limit: Duration) -> Result<Vec<Ended>, RigError> {
        let awaited = format!("{count} ended runs");
        self.wait_until(&awaited, limit, |state| state.ends.len() >= count).map(|state| state.ends.into())
    }
}

impl Drop for Babysitter {
    fn drop(&mut self) {
        self.orders = None;
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // the panic of that thread has been printed; nothing else can be done
            let _ = thread.join();
        }
    }
}

fn bind_notify_socket() -> io::Result<(UnixDatagram, PathBuf)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    loop {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // in the temporary directory, not in the run directory: a socket's path is limited to 107 bytes; and
        // a file, not an abstract name, because not every notify client supports those
        let path = std::env::temp_dir().join(format!("kedge-notify-{}-{count}", std::process::id()));
        match UnixDatagram::bind(&path) {
            Ok(socket) => {
                setsockopt(&socket, sockopt::PassCred, &true)?;
                return Ok((socket, path));
            }
            // a leftover of an earlier process with our id, or one of a live process with our id in another
            // PID namespace: not ours to remove
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
}

/// Ends the thread's sleep, by an empty message to its notify socket.
#[derive(Clone)]
struct Waker(Arc<UnixDatagram>);

impl Waker {
    fn of(address: &Path) -> io::Result<Waker> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(address)?;
        Ok(Waker(Arc::new(socket)))
    }

    fn wake(&self) {
        // fails only once the thread has ended; waits while the socket's queue is full, so that no end is
        // missed
        let _ = self.0.send(&[]);
    }

    /// Wakes when the process ends; does not reap it.
    fn wake_at_end_of(self, pid: i32) -> io::Result<()> {
        let ends = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        let wait = move || {
            while waitid(Id::Pid(Pid::from_raw(pid)), ends) == Err(Errno::EINTR) {}
            self.wake();
        };
        std::thread::Builder::new().name(format!("waits-{pid}")).spawn(wait).map(|_| ())
    }
}

struct Main {
    child: Child,
    pid: i32,
    since: Instant,
}

/// The state of the thread.
struct Supervisor {
    unit: Unit,
    socket: UnixDatagram,
    address: PathBuf,
    waker: Waker,
    inbox: Receiver<Order>,
    shared: Arc<Shared>,
    main: Option<Main>,
    stuck: Vec<Child>,
    phase: Phase,
    /// When the limit of the current phase ends.
    until: Option<Instant>,
    watchdog_until: Option<Instant>,
    /// The result of the current run.
    result: ServiceResult,
    is_wanted: bool,
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if let Some(mut main) = self.main.take() {
            let _ = main.child.kill();
            let _ = main.child.wait();
        }
        // a leftover is replaced by the next process that gets our id
        let _ = std::fs::remove_file(&self.address);
    }
}

impl Supervisor {
    fn run(mut self) {
        loop {
            loop {
                match self.inbox.try_recv() {
                    Ok(Order::Start) => self.start(),
                    Ok(Order::Stop) => self.stop(),
                    Ok(Order::Signal(signal)) => self.signal(signal),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            let first = self.wait_for_message();
            // checked before the other messages are read: so all messages of an ended process are read before
            // its end is handled
            let exit = self.main.as_mut().and_then(|main| main.child.try_wait().ok().flatten());
            let mut next = first;
            while let Some(text) = next {
                text.lines().for_each(|line| self.notice(line));
                next = self.receive(MsgFlags::MSG_DONTWAIT);
            }
            match exit {
                Some(exit) => self.ended(exit),
                None => self.check_limits(),
            }
            self.reap_stuck();
        }
    }

    /// Changes the published state, together with the current phase and process, and wakes the threads that
    /// wait for it.
    fn publish(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.shared.lock();
        state.phase = self.phase;
        state.pid = self.main.as_ref().map(|main| main.pid);
        change(&mut state);
        drop(state);
        self.shared.changed.notify_all();
    }

    fn enter(&mut self, phase: Phase, limit: Option<Duration>) {
        self.enter_with(phase, limit, |_| {});
    }

    fn enter_with(&mut self, phase: Phase, limit: Option<Duration>, change: impl FnOnce(&mut State)) {
        self.phase = phase;
        self.until = limit.map(|limit| Instant::now() + limit);
        self.watchdog_until = None;
        self.publish(change);
    }

    /// The first failure of a run is its result; later ones (the SIGKILL after a time limit) do not change
    /// it.
    fn blame(&mut self, result: ServiceResult) {
        if self.result == ServiceResult::Success {
            self.result = result;
        }
    }

    fn start(&mut self) {
        self.is_wanted = true;
        if !matches!(self.phase, Phase::Stopped | Phase::Pause) {
            return;
        }
        self.result = ServiceResult::Success;
        let spawned = self.spawn();
        let failure = spawned.as_ref().err().map(ToString::to_string);
        self.main = spawned.ok();
        self.enter_with(Phase::Starting, Some(self.unit.limits.start), |state| {
            state.runs += 1;
            state.status.clear();
        });
        if let Some(failure) = failure {
            eprintln!("babysitter of {}: cannot start it: {failure}", self.unit.name);
            self.ended(ExitStatus::from_raw(NOT_STARTED << 8));
        }
    }

    fn spawn(&self) -> io::Result<Main> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", LAUNCH, "sh"]).args(&self.unit.command);
        self.unit.prepare(&mut command)?;
        command.env("NOTIFY_SOCKET", &self.address);
        if let Some(period) = self.unit.limits.watchdog {
            command.env("WATCHDOG_USEC", period.as_micros().to_string());
        }
        let mut child = command.spawn()?;
        let pid = child.id().cast_signed();
        if let Err(error) = self.waker.clone().wake_at_end_of(pid) {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        Ok(Main { child, pid, since: Instant::now() })
    }

    fn signal(&self, signal: Signal) {
        // not reaped yet, so its process id has not passed to another process
        let _ = self.main.as_ref().map(|main| kill(Pid::from_raw(main.pid), signal));
    }

    fn stop(&mut self) {
        self.is_wanted = false;
        match self.phase {
            Phase::Pause => self.enter(Phase::Stopped, None),
            Phase::Starting | Phase::Running | Phase::Reloading => self.terminate(),
            // it already stops by itself: as with `systemctl stop`, it still gets SIGTERM
            Phase::Stopping => self.signal(Signal::SIGTERM),
            Phase::Stopped | Phase::Killing | Phase::Recording => {}
        }
    }

    fn terminate(&mut self) {
        self.enter(Phase::Stopping, Some(self.unit.limits.stop));
        self.signal(Signal::SIGTERM);
    }

    /// Handles one line of a message of the main process (sd_notify(3)). Unknown ones are ignored, as systemd
    /// does.
    fn notice(&mut self, line: &str) {
        let watchdog = self.unit.limits.watchdog.map(|period| Instant::now() + period);
        match line.split_once('=') {
            Some(("READY", "1")) if matches!(self.phase, Phase::Starting | Phase::Reloading) => {
                self.enter(Phase::Running, None);
                self.watchdog_until = watchdog;
            }
            Some(("RELOADING", "1")) if self.phase == Phase::Running => self.replaced(),
            Some(("STOPPING", "1"))
                if matches!(self.phase, Phase::Starting | Phase::Running | Phase::Reloading) =>
            {
                self.enter(Phase::Stopping, Some(self.unit.limits.stop));
            }
            Some(("WATCHDOG", "1")) => {
                self.publish(|state| state.pings += 1);
                self.watchdog_until = self.watchdog_until.and(watchdog);
            }
            Some(("EXTEND_TIMEOUT_USEC", micros)) => {
                let by = Duration::from_micros(micros.parse().unwrap_or(0));
                // only ever to later: extending by less than the remaining time changes nothing
                for limit in [&mut self.until, &mut self.watchdog_until].into_iter().flatten() {
                    *limit = (*limit).max(Instant::now() + by);
                }
            }
            Some(("STATUS", text)) => self.publish(|state| text.clone_into(&mut state.status)),
            _ => {}
        }
    }

    fn check_limits(&mut self) {
        let now = Instant::now();
        if self.watchdog_until.is_some_and(|until| until <= now) {
            self.blame(ServiceResult::Watchdog);
            self.enter(Phase::Stopping, Some(self.unit.limits.abort));
            return self.signal(Signal::SIGABRT);
        }
        if self.until.is_none_or(|until| until > now) {
            return;
        }
        match self.phase {
            Phase::Pause => self.start(),
            Phase::Starting => {
                self.blame(ServiceResult::Timeout);
                self.terminate();
            }
            Phase::Stopping => {
                self.blame(ServiceResult::Timeout);
                self.enter(Phase::Killing, Some(self.unit.limits.stop));
                self.signal(Signal::SIGKILL);
            }
            Phase::Killing => {
                let main = self.main.take().map(|main| main.child);
                self.stuck.extend(main);
                self.ended(ExitStatus::from_raw(Signal::SIGKILL as i32));
            }
            Phase::Stopped | Phase::Running | Phase::Reloading | Phase::Recording => {}
        }
    }

    fn reap_stuck(&mut self) {
        // the thread that waits for each of them has woken us
        self.stuck.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let stuck = self.stuck.len();
        if self.shared.lock().stuck != stuck {
            self.publish(|state| state.stuck = stuck);
        }
    }

    /// One run ends and the next begins, in the same process. The watchdog continues.
    fn replaced(&mut self) {
        let ran = self
            .main
            .as_mut()
            .map_or(Duration::ZERO, |main| std::mem::replace(&mut main.since, Instant::now()).elapsed());
        let watchdog = self.watchdog_until;
        self.enter_with(Phase::Reloading, None, |state| {
            let ended = Ended {
                run: state.runs,
                result: ServiceResult::Success,
                exit: ExitStatus::from_raw(0),
                ran,
                is_recorded: true,
                is_replaced: true,
            };
            state.add(ended);
            state.runs += 1;
        });
        self.watchdog_until = watchdog;
    }

    fn ended(&mut self, exit: ExitStatus) {
        let ran = self.main.take().map_or(Duration::ZERO, |main| main.since.elapsed());
        self.blame(ServiceResult::of(exit));
        if self.phase == Phase::Starting {
            self.blame(ServiceResult::Protocol);
        }
        self.enter(Phase::Recording, None);
        let is_recorded = self.record(exit);
        let result = self.result;
        let (next, limit) = match self.is_wanted && self.unit.restart {
            true => (Phase::Pause, Some(self.unit.limits.restart_after)),
            false => (Phase::Stopped, None),
        };
        self.enter_with(next, limit, |state| {
            let run = state.runs;
            state.add(Ended { run, result, exit, ran, is_recorded, is_replaced: false });
        });
    }

    /// Runs the recording command to its end, or kills it after the stop time limit.
    fn record(&self, exit: ExitStatus) -> bool {
        let Some([program, arguments @ ..]) = self.unit.record_command.as_deref() else { return true };
        let (code, status) = exit_words(exit);
        let mut command = Command::new(program);
        command.args(arguments);
        let child = self.unit.prepare(&mut command).and_then(|()| {
            command
                .env("SERVICE_RESULT", self.result.as_str())
                .env("EXIT_CODE", code)
                .env("EXIT_STATUS", status);
            command.spawn()
        });
        let Ok(mut child) = child else { return false };
        let ended = crate::scratch::poll_every(RECORDER_POLL, self.unit.limits.stop, || {
            child.try_wait().ok().flatten()
        });
        if ended.is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
        ended.is_some_and(|status| status.success())
    }

    /// Waits for a message until the next time limit.
    fn wait_for_message(&self) -> Option<String> {
        let limit = [self.until, self.watchdog_until].into_iter().flatten().min();
        let left = limit.map(|limit| limit.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return self.receive(MsgFlags::MSG_DONTWAIT);
        }
        // fails only for a time of zero
        let _ = self.socket.set_read_timeout(left);
        self.receive(MsgFlags::empty())
    }

    /// The next message of the main process; an empty one in place of a message of others.
    fn receive(&self, flags: MsgFlags) -> Option<String> {
        let mut buffer = [0_u8; DATAGRAM_BYTES];
        let mut control = nix::cmsg_space!(UnixCredentials);
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let flags = flags | MsgFlags::MSG_CMSG_CLOEXEC;
        let message =
            recvmsg::<UnixAddr>(self.socket.as_raw_fd(), &mut parts, Some(&mut control), flags).ok()?;
        // the sender's process id, as attested by the kernel
        let sender = message.cmsgs().ok()?.find_map(|part| match part {
            ControlMessageOwned::ScmCredentials(credentials) => Some(credentials.pid()),
            _ => None,
        });
        let length = message.bytes;
        let is_main = self.main.as_ref().is_some_and(|main| sender == Some(main.pid));
        Some(if is_main { String::from_utf8_lossy(&buffer[..length]).into_owned() } else { String::new() })
    }
}
