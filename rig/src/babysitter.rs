//! A process supervisor for machines without systemd, for the try-out and for end-to-end tests.
//!
//! Owns the processes of one [`Unit`]: starts them, hears their notify socket, signals them, runs the command that records how
//! each run ended, and restarts. What to do when is decided by [`crate::service`]; this file performs it on one thread.
//! Always holds: what a process said before it ended is heard before its end; only the main process is believed
//! (`NotifyAccess=main`); a process dies with the thread that watches it, so a killed test leaves nothing behind.
//! Not a part of what Kedge promises: devices run `kedge.service` under systemd.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, UnixAddr, UnixCredentials, recvmsg, setsockopt, sockopt,
};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::service::{Act, End, Event, Exit, Limits, Notice, Phase, Service, notices};

/// systemd's own limit for one notify message (PIPE_BUF).
const DATAGRAM_BYTES: usize = 4096;
/// Ends kept in memory. A crash loop of days under a babysitter must not fill it.
const ENDS_KEPT: usize = 1000;
/// The longest sleep of the loop: bounds what a lost wake-up could cost.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// How the main process is started. `$$` stays its process id over `exec`, which is how WATCHDOG_PID can name it. PDEATHSIG is
/// set by `setpriv` (util-linux, on every Debian) because doing it here would need unsafe code.
const LAUNCH: &str =
    r#"[ -z "$WATCHDOG_USEC" ] || export WATCHDOG_PID=$$; exec setpriv --pdeathsig KILL -- "$@""#;
/// What a process inherits when [`Unit::inherit_environment`] is off, as under systemd.
const KEPT_VARIABLES: [&str; 3] = ["PATH", "HOME", "LANG"];

/// What to run and how: the part of a unit file that is understood here.
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
    /// Whether our own environment is handed on. Under systemd it is not.
    pub inherit_environment: bool,
    /// Becomes `$RUNTIME_DIRECTORY`; created if missing, and kept over restarts (`RuntimeDirectoryPreserve=yes`).
    pub run_dir: Option<PathBuf>,
    /// Becomes `$STATE_DIRECTORY`; created if missing.
    pub state_dir: Option<PathBuf>,
    /// Standard output and error are appended to this file. `None`: they are ours.
    pub log: Option<PathBuf>,
    /// `Restart=`: always, or no.
    pub restart: bool,
    /// The time limits.
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
}

/// Why a babysitter cannot do its work.
#[derive(Debug)]
pub enum BabysitterError {
    /// The unit names no program.
    NoCommand {
        /// The unit.
        unit: String,
    },
    /// Something on the machine refused.
    Io {
        /// What was tried, on which path.
        tried: String,
        /// The answer.
        source: io::Error,
    },
    /// What was waited for did not come.
    TimedOut {
        /// The unit.
        unit: String,
        /// What was waited for.
        awaited: String,
        /// What there was instead.
        found: String,
    },
}

impl std::fmt::Display for BabysitterError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BabysitterError::NoCommand { unit } => write!(out, "unit {unit} names no command to run"),
            BabysitterError::Io { tried, source } => write!(out, "{tried}: {source}"),
            BabysitterError::TimedOut { unit, awaited, found } => {
                write!(out, "unit {unit}: waited for {awaited}, found {found}")
            }
        }
    }
}

impl std::error::Error for BabysitterError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BabysitterError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// One run that is over.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Which run, counted from 1.
    pub run: u64,
    /// How it ended, in systemd's words.
    pub end: End,
    /// From the start of the process to its end.
    pub ran: Duration,
    /// The exit code of the recording command; `None` if there is none, or it could not be run or did not exit by itself.
    pub recorder_exit_code: Option<i32>,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let End { result, exit, .. } = &self.end;
        write!(
            out,
            "run {} ended after {:.1} s: {} ({} {})",
            self.run,
            self.ran.as_secs_f64(),
            result.as_str(),
            exit.code(),
            exit.status()
        )
    }
}

/// What is known about a unit at one moment.
#[derive(Debug, Clone)]
pub struct State {
    /// Where it is in its life.
    pub phase: Phase,
    /// The main process, while there is one.
    pub pid: Option<i32>,
    /// Starts so far.
    pub runs: u64,
    /// `READY=1` messages so far, one per run at most.
    pub readies: u64,
    /// `WATCHDOG=1` messages so far.
    pub pings: u64,
    /// The last `STATUS=` of this run.
    pub status: String,
    /// Runs that are over, oldest first; at most 1000.
    pub ends: VecDeque<Ended>,
}

impl State {
    /// Whether the process that runs now has said `READY=1`.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Running
    }
}

enum Order {
    Start,
    Stop,
    Signal(Signal),
    /// End the process at once, record nothing, end the thread.
    Abandon,
}

enum Message {
    Order(Order),
    Exited { who: Who, exit: Exit },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Main,
    Recorder,
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

/// A running supervisor of one unit. Dropping it kills the process at once, without a record; [`Babysitter::stop`] is the polite way.
pub struct Babysitter {
    name: String,
    waker: Waker,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Babysitter {
    /// Starts the supervisor and the unit.
    pub fn start(unit: Unit) -> Result<Babysitter, BabysitterError> {
        if unit.command.is_empty() {
            return Err(BabysitterError::NoCommand { unit: unit.name });
        }
        for dir in [&unit.run_dir, &unit.state_dir].into_iter().flatten() {
            std::fs::create_dir_all(dir).map_err(|source| tried("create directory", dir, source))?;
        }
        if let Some(log) = &unit.log {
            open_log(log).map_err(|source| tried("open log", log, source))?;
        }
        let (socket, address) = bind_notify_socket()
            .map_err(|source| BabysitterError::Io { tried: "bind the notify socket".into(), source })?;
        let (messages, inbox) = channel();
        let waker = Waker { messages, address };
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                phase: Phase::Stopped,
                pid: None,
                runs: 0,
                readies: 0,
                pings: 0,
                status: String::new(),
                ends: VecDeque::new(),
            }),
            changed: Condvar::new(),
        });
        let name = unit.name.clone();
        let performer = Performer {
            service: Service::new(unit.limits.clone(), unit.restart),
            unit,
            socket,
            inbox,
            waker: waker.clone(),
            shared: shared.clone(),
            main: None,
            recorder: None,
            pending: None,
        };
        let thread =
            std::thread::Builder::new().name(format!("sits-{name}")).spawn(move || performer.run()).map_err(
                |source| BabysitterError::Io { tried: "start the supervisor's thread".into(), source },
            )?;
        waker.order(Order::Start);
        Ok(Babysitter { name, waker, shared, thread: Some(thread) })
    }

    /// The unit's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts it again after [`Babysitter::stop`].
    pub fn start_again(&self) {
        self.waker.order(Order::Start);
    }

    /// `systemctl stop`: SIGTERM, SIGKILL at the stop time limit, the record, no restart. Returns at once.
    pub fn stop(&self) {
        self.waker.order(Order::Stop);
    }

    /// Stops it and waits until it has stopped and its end is recorded.
    pub fn stop_and_wait(&self, limit: Duration) -> Result<(), BabysitterError> {
        self.stop();
        self.wait_until("its stop", limit, |state| state.phase == Phase::Stopped).map(|_| ())
    }

    /// Sends a signal to the main process, if there is one: SIGKILL for a crash, SIGSTOP for a hang.
    pub fn signal(&self, signal: Signal) {
        self.waker.order(Order::Signal(signal));
    }

    /// What is known now.
    pub fn state(&self) -> State {
        self.shared.lock().clone()
    }

    /// Waits until `is_so` holds, and returns the state in which it did.
    pub fn wait_until(
        &self,
        awaited: &str,
        limit: Duration,
        is_so: impl Fn(&State) -> bool,
    ) -> Result<State, BabysitterError> {
        let guard = self.shared.lock();
        let (guard, timeout) = self
            .shared
            .changed
            .wait_timeout_while(guard, limit, |state| !is_so(state))
            .unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            let last = guard.ends.back().map_or("no run ended yet".to_owned(), Ended::to_string);
            return Err(BabysitterError::TimedOut {
                unit: self.name.clone(),
                awaited: format!("{awaited} for {} s", limit.as_secs()),
                found: format!("phase {:?} in run {}; {last}", guard.phase, guard.runs),
            });
        }
        Ok(guard.clone())
    }

    /// Waits until the process says `READY=1` (at once, if it has).
    pub fn wait_ready(&self, limit: Duration) -> Result<State, BabysitterError> {
        self.wait_until("READY=1", limit, State::is_ready)
    }

    /// Waits until `count` runs are over, and returns them.
    pub fn wait_ends(&self, count: usize, limit: Duration) -> Result<Vec<Ended>, BabysitterError> {
        let state =
            self.wait_until(&format!("{count} ended runs"), limit, |state| state.ends.len() >= count)?;
        Ok(state.ends.into())
    }
}

impl Drop for Babysitter {
    fn drop(&mut self) {
        self.waker.order(Order::Abandon);
        if let Some(thread) = self.thread.take() {
            // a panic of that thread has been printed; there is nothing left to save
            let _ = thread.join();
        }
    }
}

fn tried(what: &str, path: &Path, source: io::Error) -> BabysitterError {
    BabysitterError::Io { tried: format!("{what} {}", path.display()), source }
}

fn open_log(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

/// Sends messages to the performer's thread: the message through a channel, and a datagram from our own process that wakes it.
///
/// One queue for wake-ups and notify messages is the point: when the datagram that announces an end is read, everything the
/// process said before it has been read too.
#[derive(Clone)]
struct Waker {
    messages: Sender<Message>,
    address: PathBuf,
}

impl Waker {
    fn order(&self, order: Order) {
        self.send(Message::Order(order));
    }

    fn send(&self, message: Message) {
        // fails only once the thread has ended: then there is nobody left to tell
        if self.messages.send(message).is_ok()
            && let Ok(socket) = UnixDatagram::unbound()
        {
            let _ = socket.send_to(b"wake", &self.address);
        }
    }
}

fn bind_notify_socket() -> io::Result<(UnixDatagram, PathBuf)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // in the temporary directory, not in the run directory: a socket's path may have 107 bytes only; and a file, not an
    // abstract name, because not every notify client speaks to those
    let path = std::env::temp_dir().join(format!("kedge-notify-{}-{count}", std::process::id()));
    if let Err(error) = std::fs::remove_file(&path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let socket = UnixDatagram::bind(&path)?;
    setsockopt(&socket, sockopt::PassCred, &true)?;
    Ok((socket, path))
}

struct Running {
    child: Child,
    pid: i32,
    since: Instant,
}

impl Drop for Performer {
    fn drop(&mut self) {
        // a leftover is replaced by the next process that gets our id
        let _ = std::fs::remove_file(&self.waker.address);
    }
}

struct Performer {
    unit: Unit,
    service: Service,
    socket: UnixDatagram,
    inbox: Receiver<Message>,
    waker: Waker,
    shared: Arc<Shared>,
    main: Option<Running>,
    recorder: Option<Running>,
    /// The end that is being recorded.
    pending: Option<Ended>,
}

impl Performer {
    fn run(mut self) {
        loop {
            let mut acts = Vec::new();
            match self.hear() {
                Heard::Notices(said) => self.take_notices(said, &mut acts),
                Heard::Wake => match self.inbox.try_recv() {
                    Ok(Message::Order(Order::Abandon)) => return self.abandon(),
                    Ok(message) => self.take(message, &mut acts),
                    Err(_) => {}
                },
                Heard::Nothing => {}
            }
            self.service.handle(Instant::now(), Event::Tick, &mut acts);
            self.perform(acts);
            self.publish();
        }
    }

    fn hear(&self) -> Heard {
        let wait = match self.service.deadline() {
            Some(deadline) => deadline.saturating_duration_since(Instant::now()).min(LONGEST_WAIT),
            None => LONGEST_WAIT,
        };
        // a time limit of zero would mean none
        let _ = self.socket.set_read_timeout(Some(wait.max(Duration::from_millis(1))));
        let Ok((pid, text)) = receive(&self.socket) else {
            return Heard::Nothing;
        };
        if pid == std::process::id().cast_signed() {
            return Heard::Wake;
        }
        match self.main.as_ref().is_some_and(|main| main.pid == pid) {
            true => Heard::Notices(notices(&text)),
            false => Heard::Nothing,
        }
    }

    fn take_notices(&mut self, said: Vec<Notice>, acts: &mut Vec<Act>) {
        let now = Instant::now();
        for notice in said {
            let mut state = self.shared.lock();
            match &notice {
                Notice::Ready if self.service.phase() == Phase::Starting => state.readies += 1,
                Notice::Ping => state.pings += 1,
                Notice::Status(text) => state.status.clone_from(text),
                _ => {}
            }
            drop(state);
            self.service.handle(now, Event::Said(notice), acts);
        }
    }

    fn take(&mut self, message: Message, acts: &mut Vec<Act>) {
        let now = Instant::now();
        match message {
            Message::Order(Order::Start) => self.service.handle(now, Event::Start, acts),
            Message::Order(Order::Stop) => self.service.handle(now, Event::Stop, acts),
            Message::Order(Order::Signal(signal)) => self.signal_main(signal),
            Message::Order(Order::Abandon) => {}
            Message::Exited { who: Who::Main, exit } => {
                let ran = match self.main.take() {
                    Some(mut main) => {
                        // reaped only now, so no signal of ours could have hit a stranger with the same process id
                        let _ = main.child.wait();
                        now - main.since
                    }
                    None => Duration::ZERO,
                };
                self.main_ended(now, exit, ran, acts);
            }
            Message::Exited { who: Who::Recorder, exit } => {
                if let Some(mut recorder) = self.recorder.take() {
                    let _ = recorder.child.wait();
                }
                self.recorder_ended(exit, acts);
            }
        }
    }

    fn main_ended(&mut self, now: Instant, exit: Exit, ran: Duration, acts: &mut Vec<Act>) {
        let before = acts.len();
        self.service.handle(now, Event::Ended(exit), acts);
        let run = self.shared.lock().runs;
        let end = acts[before..].iter().find_map(|act| match act {
            Act::Record(end) => Some(end.clone()),
            _ => None,
        });
        self.pending = end.map(|end| Ended { run, end, ran, recorder_exit_code: None });
    }

    fn recorder_ended(&mut self, exit: Exit, acts: &mut Vec<Act>) {
        if let Some(mut ended) = self.pending.take() {
            if let Exit::Exited(code) = exit
                && self.unit.record_command.is_some()
            {
                ended.recorder_exit_code = Some(code);
            }
            let mut state = self.shared.lock();
            if state.ends.len() == ENDS_KEPT {
                state.ends.pop_front();
            }
            state.ends.push_back(ended);
        }
        self.service.handle(Instant::now(), Event::Recorded, acts);
    }

    fn perform(&mut self, mut acts: Vec<Act>) {
        while !acts.is_empty() {
            let mut more = Vec::new();
            for act in acts {
                match act {
                    Act::Spawn => self.spawn_main(&mut more),
                    Act::Signal(number) => {
                        if let Ok(signal) = Signal::try_from(number) {
                            self.signal_main(signal);
                        }
                    }
                    Act::Record(end) => self.spawn_recorder(&end, &mut more),
                    Act::KillRecorder => {
                        if let Some(recorder) = &self.recorder {
                            let _ = kill(Pid::from_raw(recorder.pid), Signal::SIGKILL);
                        }
                    }
                }
            }
            acts = more;
        }
    }

    fn signal_main(&self, signal: Signal) {
        if let Some(main) = &self.main {
            let _ = kill(Pid::from_raw(main.pid), signal);
        }
    }

    fn spawn_main(&mut self, acts: &mut Vec<Act>) {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(LAUNCH).arg("sh").args(&self.unit.command);
        self.prepare(&mut command);
        command.env("NOTIFY_SOCKET", &self.waker.address);
        if let Some(period) = self.unit.limits.watchdog {
            command.env("WATCHDOG_USEC", period.as_micros().to_string());
        }
        {
            let mut state = self.shared.lock();
            state.runs += 1;
            state.status.clear();
        }
        match self.spawn(command, Who::Main) {
            Ok(running) => self.main = Some(running),
            Err(error) => {
                self.complain(&format!("start {:?}: {error}", self.unit.command[0]));
                // systemd's EXIT_EXEC
                self.main_ended(Instant::now(), Exit::Exited(203), Duration::ZERO, acts);
            }
        }
    }

    fn spawn_recorder(&mut self, end: &End, acts: &mut Vec<Act>) {
        let Some((program, arguments)) = self.unit.record_command.as_deref().and_then(<[_]>::split_first)
        else {
            return self.recorder_ended(Exit::Exited(0), acts);
        };
        let mut command = Command::new(program);
        command.args(arguments);
        self.prepare(&mut command);
        command.env("SERVICE_RESULT", end.result.as_str());
        command.env("EXIT_CODE", end.exit.code());
        command.env("EXIT_STATUS", end.exit.status());
        match self.spawn(command, Who::Recorder) {
            Ok(running) => self.recorder = Some(running),
            Err(error) => {
                self.complain(&format!("record the end: {error}"));
                self.recorder_ended(Exit::Killed(0), acts);
            }
        }
    }

    fn prepare(&self, command: &mut Command) {
        if !self.unit.inherit_environment {
            command.env_clear();
            command.envs(KEPT_VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        }
        // what stands in our own environment (we may run under a supervisor ourselves) is about us, not about the child
        for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "RUNTIME_DIRECTORY", "STATE_DIRECTORY"]
        {
            command.env_remove(name);
        }
        if let Some(dir) = &self.unit.run_dir {
            command.env("RUNTIME_DIRECTORY", dir);
        }
        if let Some(dir) = &self.unit.state_dir {
            command.env("STATE_DIRECTORY", dir);
        }
        let run = self.shared.lock().runs;
        command.env("INVOCATION_ID", format!("{:016x}{run:016x}", std::process::id()));
        command.envs(self.unit.environment.iter().map(|(name, value)| (name, value)));
        // its own group: Ctrl-C in the terminal is for us, and we stop our children in order
        command.process_group(0);
        command.stdin(Stdio::null());
    }

    fn spawn(&self, mut command: Command, who: Who) -> io::Result<Running> {
        if let Some(path) = &self.unit.log {
            let log = open_log(path)?;
            command.stderr(log.try_clone()?).stdout(log);
        }
        let child = command.spawn()?;
        let pid = child.id().cast_signed();
        let waker = self.waker.clone();
        std::thread::Builder::new().name("waits".into()).spawn(move || {
            let exit = wait_without_reaping(pid);
            waker.send(Message::Exited { who, exit });
        })?;
        Ok(Running { child, pid, since: Instant::now() })
    }

    /// Kills without a record: for a supervisor that is dropped.
    fn abandon(mut self) {
        for mut running in [self.main.take(), self.recorder.take()].into_iter().flatten() {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
        let mut state = self.shared.lock();
        state.phase = Phase::Stopped;
        state.pid = None;
        drop(state);
        self.shared.changed.notify_all();
    }

    fn publish(&self) {
        let mut state = self.shared.lock();
        state.phase = self.service.phase();
        state.pid = self.main.as_ref().map(|main| main.pid);
        drop(state);
        self.shared.changed.notify_all();
    }

    fn complain(&self, text: &str) {
        use std::io::Write;
        let line = format!("babysitter of {}: {text}\n", self.unit.name);
        match self.unit.log.as_deref().map(open_log) {
            Some(Ok(mut log)) => drop(log.write_all(line.as_bytes())),
            _ => eprint!("{line}"),
        }
    }
}

enum Heard {
    Notices(Vec<Notice>),
    Wake,
    Nothing,
}

/// One datagram and the process id of its sender, as the kernel attests it.
fn receive(socket: &UnixDatagram) -> nix::Result<(i32, String)> {
    let mut buffer = [0_u8; DATAGRAM_BYTES];
    let mut control = nix::cmsg_space!(UnixCredentials);
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let message =
        recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let sender = message.cmsgs()?.find_map(|part| match part {
        ControlMessageOwned::ScmCredentials(credentials) => Some(credentials.pid()),
        _ => None,
    });
    let length = message.bytes;
    let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
    Ok((sender.unwrap_or(0), text))
}

fn wait_without_reaping(pid: i32) -> Exit {
    loop {
        match waitid(Id::Pid(Pid::from_raw(pid)), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
            Ok(WaitStatus::Exited(_, code)) => return Exit::Exited(code),
            Ok(WaitStatus::Signaled(_, signal, false)) => return Exit::Killed(signal as i32),
            Ok(WaitStatus::Signaled(_, signal, true)) => return Exit::Dumped(signal as i32),
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            // reaped already, by `abandon`: nobody reads this answer
            Err(_) => return Exit::Killed(0),
        }
    }
}
