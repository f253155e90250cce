//! `kedge shim`: the process that belongs to one container. It creates and starts the container, holds its
//! input and terminal, keeps its log, waits for its end, and records that, whether or not an agent lives
//! meanwhile.
//!
//! Always holds: exactly one shim serves a bundle, because it inherits the bundle's lock from the agent that
//! started it, as its standard input; the lock ends with it. Each record is written after the fact that it
//! records, and `exit.json` is the last. Whatever fails, all processes of the container are gone before
//! `exit.json` is written. If the shim is killed, its children except the container end with it; the agent
//! then ends the container.
//!
//! Leaves to others: the content of the bundle (`linux`), lines and files of the log (`log`), clients
//! (`attach`), calls of crun (`crun`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use super::attach::Attachers;
use super::cgroups::GroupLimits;
use super::crun;
use super::log::{Log, PATIENCE, Source, Stream};
use super::process::{self, ProcessName};
use super::records::{
    ContainerExit, EXIT, ORDER, Order, Records, SHIM, STATE, ShimRecord, StateRecord, VERSION, now_micros,
};
use super::{WorkloadError, on, session};

/// Like the kubelet's score for the processes that hold containers: one container's use of memory must not
/// cost another's shim. Lowering it needs a capability; without it the shim inherits the agent's value.
const OOM_SCORE: &str = "-998";
/// Processor share of all shims together, where a service of the machine gets 1024: they read the output of
/// containers.
const SHIMS_SHARES: u64 = 256;
/// The socket in the bundle to which crun sends a container's terminal.
const CONSOLE: &str = "console.sock";
/// Most output that is read after the container's end: as much as a pipe can hold by default, and more. A
/// process that still writes then is not part of the container.
const LAST_OUTPUT_BYTES: usize = 1024 * 1024;
/// Most bytes that are read of one output before the other is read.
const TURN_BYTES: usize = 64 * 1024;
/// Interval in which processes that do not end after SIGKILL are killed again: they wait for a dead disk,
/// perhaps for ever.
const KILL_AGAIN: Duration = Duration::from_secs(2);

/// Runs the shim of the bundle to its end. Call it in a process of its own.
///
/// # Errors
/// The bundle or its order cannot be used, so there is no container whose end could be recorded. Everything
/// later is recorded in `exit.json`.
pub fn shim(bundle: &Path) -> Result<(), WorkloadError> {
    let records = Records::of(bundle);
    let Some(order) = records.read::<Order>(ORDER)? else {
        return Err(WorkloadError::refused(format_args!("{} is missing", bundle.join(ORDER).display())));
    };
    let signals = stand_alone(&order).map_err(on("begin a shim for", bundle))?;
    let shim = ProcessName::of(Pid::this().as_raw()).map_err(on("read /proc for", bundle))?;
    records.write(SHIM, &ShimRecord { version: VERSION, shim })?;
    let bundle = bundle.to_path_buf();
    let mut shim = Shim { bundle, records, order, signals, ended: BTreeMap::new(), started_at: None };
    let exit = shim.serve().unwrap_or_else(|error| shim.failed(&error));
    // the agent ends a container without an order; a record would create its directory again
    if !shim.records.has(ORDER) {
        return Ok(());
    }
    shim.records.write(EXIT, &exit)
}

/// The groups that get the shims' share: their own and its parents, because a share counts only among
/// siblings. Parents that this container also has are excluded: they are the operator's, and their share is
/// that of the pods, too.
fn weighed<'a>(shims: &'a str, container: &str) -> impl Iterator<Item = &'a str> {
    let ends = shims.match_indices('/').map(|(end, _)| end).skip(1).chain([shims.len()]);
    let is_above = |group: &str| container.strip_prefix(group).is_some_and(|below| below.starts_with('/'));
    ends.map(|end| &shims[..end]).filter(move |group| !is_above(group))
}

/// Separates from the agent: session, control group, signals.
fn stand_alone(order: &Order) -> io::Result<SignalFd> {
    // fails if it already leads its group
    let _ = nix::unistd::setsid();
    nix::sys::prctl::set_child_subreaper(true)?;
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    // otherwise systemd would count the shim as the agent's, and report it at each start
    let _ = order.cgroups.put(&order.shims_group, 0);
    let shares = GroupLimits { cpu_shares: Some(SHIMS_SHARES), ..GroupLimits::default() };
    for group in weighed(&order.shims_group, &order.group) {
        let _ = order.cgroups.make(group, &shares);
    }
    // these signals do not end it, because it must outlive its container; a shutdown that cannot wait kills
    // it
    let mut waited = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        waited.add(signal);
    }
    waited.thread_block()?;
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    Ok(SignalFd::with_flags(&children, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

struct Shim {
    bundle: PathBuf,
    records: Records,
    order: Order,
    signals: SignalFd,
    /// Children that ended while another one was being awaited.
    ended: BTreeMap<i32, ExitStatus>,
    started_at: Option<i64>,
}

impl Shim {
    /// Follows the container from its creation to its end.
    fn serve(&mut self) -> io::Result<ContainerExit> {
        let log = Log::start(self.order.log.clone())?;
        // before the container is visible as running
        let mut attached = Attachers::listen(&self.bundle, self.order.console);
        let mut sources = if self.order.console.tty {
            self.create_with_terminal(&mut attached)?
        } else {
            self.create_with_pipes(&mut attached)?
        };
        let pid = self.pid()?;
        let process = ProcessName::of(pid);
        let oom_before = self.oom_kills();
        let start = self.order.crun.start(&self.bundle, &self.order.id);
        self.run(start, "start", self.order.crun.limit())?;
        let started_at = now_micros();
        self.started_at = Some(started_at);
        // a process that has already ended has no start time to record, and only its end matters
        if let Ok(process) = process {
            let state = StateRecord { version: VERSION, process, started_at };
            self.records.write(STATE, &state).map_err(io::Error::other)?;
        }
        let status = self.follow(pid, &mut sources, &log, &mut attached)?;
        let finished_at = now_micros();
        let oom_after = self.oom_kills();
        let exit = ContainerExit { finished_at, ..exit_of(status, started_at, oom_after > oom_before) };
        let dropped_lines = self.wind_up(&mut sources, log, &mut attached);
        attached.finish(exit.exit_code);
        Ok(ContainerExit { dropped_lines, ..exit })
    }

    /// Creates a container with pipes for its input and output; its output will be logged.
    fn create_with_pipes(&mut self, attached: &mut Attachers) -> io::Result<Vec<Source>> {
        let (out_reader, out_writer) = std::io::pipe()?;
        let (err_reader, err_writer) = std::io::pipe()?;
        let sources = vec![
            Source::new(OwnedFd::from(out_reader), Stream::Stdout)?,
            Source::new(OwnedFd::from(err_reader), Stream::Stderr)?,
        ];
        let stdin = if self.order.console.stdin {
            let (in_reader, in_writer) = std::io::pipe()?;
            attached.begin(Some(File::from(OwnedFd::from(in_writer))), None)?;
            Stdio::from(in_reader)
        } else {
            Stdio::null()
        };
        let streams = [stdin, Stdio::from(out_writer), Stdio::from(err_writer)];
        let create = self.order.crun.create(&self.bundle, &self.order.id, streams, None);
        self.run(create, "create", self.order.crun.limit())?;
        Ok(sources)
    }

    /// Creates a container with a terminal of its own; crun sends the terminal's master side to the shim.
    fn create_with_terminal(&mut self, attached: &mut Attachers) -> io::Result<Vec<Source>> {
        let path = self.bundle.join(CONSOLE);
        let _ = std::fs::remove_file(&path);
        let (socket, name) = session::listen(&path)?;
        let streams = [Stdio::null(), Stdio::null(), Stdio::null()];
        let create = self.order.crun.create(&self.bundle, &self.order.id, streams, Some(&name));
        let limit = self.order.crun.limit();
        self.run(create, "create", limit)?;
        let taken = socket.accept().and_then(|(connection, _)| session::master_from(&connection, limit));
        let _ = std::fs::remove_file(&path);
        let terminal = taken.map_err(|error| {
            io::Error::new(error.kind(), format!("crun create gave no terminal: {error}"))
        })?;
        let stdin = if self.order.console.stdin { Some(terminal.try_clone()?) } else { None };
        let source = Source::new(OwnedFd::from(terminal.try_clone()?), Stream::Stdout)?;
        attached.begin(stdin, Some(terminal))?;
        Ok(vec![source])
    }

    /// Runs a step of crun within its limit; the error is crun's own text.
    fn run(&mut self, mut command: Command, step: &str, limit: Duration) -> io::Result<()> {
        let child = process::bound_to_parent(&mut command).spawn();
        // the command holds the container's ends of the pipes
        drop(command);
        let program = self.order.crun.program.display();
        let child = child.map_err(|error| io::Error::new(error.kind(), format!("run {program}: {error}")))?;
        let pid = child.id().cast_signed();
        let end = process::after(Instant::now(), limit);
        loop {
            self.collect();
            if let Some(status) = self.ended.remove(&pid) {
                return match status.success() {
                    true => Ok(()),
                    false => Err(io::Error::other(format!("crun {step}: {}", crun::errors(&self.bundle)))),
                };
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let _ = nix::sys::signal::killpg(Pid::from_raw(pid), Signal::SIGKILL);
                let text = format!("crun {step} was not done after {} ms and was killed", limit.as_millis());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            wait(&mut [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)], left)?;
        }
    }

    /// The container's first process, from the file that crun wrote.
    fn pid(&self) -> io::Result<i32> {
        crun::read_pid(&self.bundle.join(crun::PID_FILE))
    }

    /// Removes all ended children from the process table: crun, the container, and, where the container has
    /// no PID namespace of its own, orphans of its processes.
    fn collect(&mut self) {
        while let Ok(Some(_)) = self.signals.read_signal() {}
        while let Some((pid, status)) = process::next_ended_child() {
            self.ended.insert(pid, status);
        }
    }

    /// Keeps the log, and serves attached clients, until the container ends.
    fn follow(
        &mut self,
        pid: i32,
        sources: &mut [Source],
        log: &Log,
        attached: &mut Attachers,
    ) -> io::Result<ExitStatus> {
        loop {
            self.collect();
            if let Some(status) = self.ended.remove(&pid) {
                return Ok(status);
            }
            // the results of other children are not needed
            self.ended.clear();
            let now = Instant::now();
            attached.serve(now);
            let takes = log.takes_lines(now) && !attached.is_behind();
            // output that a client does not take at once is kept in memory: at most one reading of each
            // stream
            let most = if attached.is_empty() { TURN_BYTES } else { 1 };
            let mut copy = |stream, bytes: &[u8]| attached.take(stream, bytes, now);
            let read: usize = if takes {
                sources.iter_mut().map(|source| source.pump(log, most, now, &mut copy)).sum()
            } else {
                0
            };
            if read > 0 {
                continue;
            }
            let (takes, is_behind) = (log.takes_lines(now), attached.is_behind());
            let mut awaited = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
            attached.await_in(&mut awaited);
            if takes && !is_behind {
                let pipes = sources.iter().filter_map(Source::pipe);
                awaited.extend(pipes.map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)));
                wait_for_ever(&mut awaited)?;
                continue;
            }
            let mut limit = attached.patience_left(now);
            if !takes {
                awaited.push(PollFd::new(log.room().as_fd(), PollFlags::POLLIN));
                limit = limit.min(log.patience_left(now));
            }
            wait(&mut awaited, limit)?;
        }
    }

    /// After the end: ends the container's remaining processes, takes the last output, and makes crun forget
    /// the container. Returns the number of lines missing in the log.
    fn wind_up(&mut self, sources: &mut [Source], log: Log, attached: &mut Attachers) -> u64 {
        self.end_all();
        // the amount is limited by the reads below
        log.lift_limit();
        let (end, attached_end) = (Instant::now() + PATIENCE, Attachers::end_of_patience());
        for source in sources {
            take_rest(source, &log, end, attached, attached_end);
        }
        let dropped = log.finish(PATIENCE);
        self.forget();
        dropped
    }

    /// Ends all processes of the container, however long that takes: while one is left, the container has not
    /// ended, and its files and volumes are in use.
    fn end_all(&mut self) {
        let (groups, group) = (self.order.cgroups.clone(), self.order.group.clone());
        let mut left = groups.kill_all(&group).map_err(|error| error.kind());
        // an invalid group has no processes
        while left.is_err_and(|kind| kind != io::ErrorKind::InvalidInput) {
            self.collect();
            let _ = wait(&mut [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)], KILL_AGAIN);
            left = match groups.kill_once(&group) {
                Ok(0) => Ok(()),
                Ok(_) => Err(io::ErrorKind::Other),
                Err(error) => Err(error.kind()),
            };
        }
    }

    fn forget(&mut self) {
        let delete = self.order.crun.delete(&self.bundle, &self.order.id);
        // the agent's removal will handle anything left
        let _ = self.run(delete, "delete", crun::DELETE_WITHIN.min(self.order.crun.limit()));
    }

    fn oom_kills(&self) -> u64 {
        self.order.cgroups.oom_kills(&self.order.group).unwrap_or(0)
    }

    /// For a container that did not begin, or cannot be followed: ends all its processes.
    fn failed(&mut self, error: &io::Error) -> ContainerExit {
        self.end_all();
        self.forget();
        self.collect();
        match self.started_at {
            None => ContainerExit::never_began(&error.to_string()),
            started_at => ContainerExit::lost(&format!("its shim failed: {error}"), started_at),
        }
    }
}

/// Reads the remaining output of a container that has ended, as far as the log and the clients take it in
/// time.
fn take_rest(source: &mut Source, log: &Log, end: Instant, attached: &mut Attachers, attached_end: Instant) {
    let mut left = LAST_OUTPUT_BYTES;
    while left > 0 {
        let now = Instant::now();
        let most = if attached.is_empty() { left.min(TURN_BYTES) } else { 1 };
        let read = source.pump(log, most, now, &mut |stream, bytes| attached.take(stream, bytes, now));
        attached.drain(attached_end);
        left -= read.min(left);
        if read > 0 {
            continue;
        }
        if source.is_dry() || now > end {
            break;
        }
        if log.takes_lines(now) {
            continue;
        }
        let room = &mut [PollFd::new(log.room().as_fd(), PollFlags::POLLIN)];
        if wait(room, end.saturating_duration_since(now)).is_err() {
            break;
        }
    }
    source.finish(log, Instant::now());
}

/// An out-of-memory kill of another process than the first counts as well, but the container ended for lack
/// of memory only if SIGKILL ended the first one.
fn exit_of(status: ExitStatus, started_at: i64, some_killed: bool) -> ContainerExit {
    let signal = status.signal();
    let code = status.code().unwrap_or_else(|| 128 + signal.unwrap_or(0));
    let oom_killed = some_killed && signal == Some(libc::SIGKILL);
    ContainerExit { signal, oom_killed, ..ContainerExit::now(code, Some(started_at)) }
}

fn wait(awaited: &mut [PollFd<'_>], limit: Duration) -> io::Result<()> {
    // rounded up: a limit below a millisecond must not become a busy loop
    let limit = PollTimeout::try_from(limit + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
    poll_once(awaited, limit)
}

fn wait_for_ever(awaited: &mut [PollFd<'_>]) -> io::Result<()> {
    poll_once(awaited, PollTimeout::NONE)
}

fn poll_once(awaited: &mut [PollFd<'_>], limit: PollTimeout) -> io::Result<()> {
    match poll(awaited, limit) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::on_a_pipe;
    use super::super::records::{Console, LogOrder};
    use super::*;
    use std::io::{Read as _, Write as _};

    #[test]
    fn share_is_that_of_groups_without_pods() {
        let check = |shims: &str, container: &str, expect: &[&str]| {
            assert_eq!(weighed(shims, container).collect::<Vec<_>>(), expect);
        };
        check("/kedge/shims", "/kedgepods/podx/c-0", &["/kedge", "/kedge/shims"]);
        check("/a/b/kedge/shims", "/a/b/kedgepods/podx/c-0", &["/a/b/kedge", "/a/b/kedge/shims"]);
        check("/a/shims", "/a/pods/podx/c-0", &["/a/shims"]);
    }

    #[test]
    fn last_output_is_taken_however_slow_the_log_is() {
        let scratch = std::env::temp_dir().join(format!("kedge-last-output-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&scratch);
        std::fs::create_dir_all(&scratch).unwrap();
        let path = scratch.join("0.log");
        let (log, mut disk) = on_a_pipe(LogOrder { path, max_bytes: 1 << 30, max_files: 1 });
        let (reader, mut writer) = std::io::pipe().unwrap();
        // twenty times the amount that may wait for the log's disk
        writer.write_all(&b"x\n".repeat(30_000)).unwrap();
        drop(writer);
        let taken = std::thread::spawn(move || {
            let mut lines = 0;
            let mut some = [0; 512];
            while let Ok(count @ 1..) = disk.read(&mut some) {
                lines += some[..count].iter().filter(|byte| **byte == b'\n').count();
            }
            lines
        });
        let mut source = Source::new(OwnedFd::from(reader), Stream::Stdout).unwrap();
        log.lift_limit();
        let mut attached = Attachers::listen(&scratch, Console::default());
        let end = Instant::now() + Duration::from_secs(60);
        take_rest(&mut source, &log, end, &mut attached, end);
        assert_eq!(log.finish(Duration::from_secs(60)), 0);
        assert_eq!(taken.join().unwrap(), 30_000);
        std::fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    fn end_by_code_signal_and_memory_are_told_apart() {
        let check = |raw: i32, killed: bool, expect: (i32, Option<i32>, bool)| {
            let exit = exit_of(ExitStatus::from_raw(raw), 1, killed);
            assert_eq!((exit.exit_code, exit.signal, exit.oom_killed), expect, "{raw}");
            assert_eq!((exit.started_at, exit.error), (Some(1), None));
        };
        check(0, false, (0, None, false));
        check(3 << 8, false, (3, None, false));
        // a helper process was killed for lack of memory, and the first one gave up with code 1
        check(1 << 8, true, (1, None, false));
        check(9, false, (137, Some(9), false));
        check(9, true, (137, Some(9), true));
        check(15, true, (143, Some(15), false));
        check(37, false, (165, Some(37), false));
    }
}
