//! Programs that run beside a container's first process, started by `crun exec`.
//!
//! Always holds: the program gets the settings of the first process (user, environment, directory,
//! capabilities, control group, namespaces). Its time is limited: when it is over, or the program is stopped,
//! the program and its descendants are killed, except those in a session of their own; no process outside of
//! the container's control group is killed. A process that waits for a dead disk does not end even then: it
//! is not waited for, and is reported to the caller. The program's output is kept up to a limit, and the rest
//! is read and dropped, so that it never waits for us. An error means that it did not run.
//!
//! Leaves to others: the choice of programs and the conclusions from their end; limits on their number, and
//! the choice of one to stop.

use std::fs::{self, File};
use std::io::{self, Seek as _, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{Pid, getpgid};
use serde_json::{Value, json};

use super::crun;
use super::places::Places;
use super::plugin::{Heard, wait};
use super::process::{self, ProcessFd};
use super::records::{CrunOrder, ORDER, Order, Records, shortened};
use super::{ContainerId, Settings, WorkloadError, on};

/// Longest time beyond the limit that crun gets to start a program before it is killed.
pub(super) const AFTER_KILL: Duration = Duration::from_secs(2);
/// Time between two checks for that.
pub(super) const LOOK: Duration = Duration::from_millis(10);

/// A program to run in a container.
#[derive(Debug)]
pub struct Exec<'a> {
    /// The container.
    pub id: &'a ContainerId,
    /// Program and arguments.
    pub command: &'a [String],
    /// The longest time that it may take.
    pub limit: Duration,
    /// Limit of kept output, both streams together.
    pub output_bytes: usize,
    /// The program is stopped once this becomes readable or its other end is closed; `None`: never.
    pub stop: Option<BorrowedFd<'a>>,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEnd {
    /// By itself.
    Ended {
        /// 128 plus the signal if a signal ended it.
        code: i32,
        /// The beginning of its output.
        output: Vec<u8>,
    },
    /// It was killed, because its time was over.
    TimedOut,
    /// It was killed, because the caller stopped it.
    Stopped,
}

/// Processes of a killed program that have not ended: they wait for a disk or a server that does not answer.
#[derive(Debug)]
pub struct LeftProgram(Vec<(i32, ProcessFd)>);

/// Most processes of a program that are remembered. A single one proves that the program has not ended.
const LEFT: usize = 4;

impl LeftProgram {
    fn of(mut processes: Vec<(i32, ProcessFd)>) -> Option<Self> {
        processes.retain(|(_, process)| !process.wait(Duration::ZERO));
        processes.truncate(LEFT);
        (!processes.is_empty()).then_some(Self(processes))
    }

    /// One of its processes that still exists.
    #[must_use]
    pub fn still_there(&self) -> Option<i32> {
        let left = self.0.iter().find(|(_, process)| !process.wait(Duration::ZERO));
        left.map(|(pid, _)| *pid)
    }
}

/// The reason why a program was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    TooLong,
    Stopped,
}

impl Exec<'_> {
    /// Runs it to its end. Blocks; the calling thread must live at least as long, because our connection to
    /// the program ends with it. Returns its end, and its processes that have not ended.
    ///
    /// # Errors
    /// It did not run: the program or the container does not exist, or the container is ending.
    pub fn run(&self, settings: &Settings) -> Result<(ExecEnd, Option<LeftProgram>), WorkloadError> {
        self.id.check()?;
        let places = Places { run: settings.run.clone(), data: settings.data.clone() };
        let crun = CrunOrder::of(settings);
        let bundle = places.bundle(self.id);
        let Some(container) = Records::of(&bundle).read::<Order>(ORDER)? else {
            return Err(WorkloadError::refused(format_args!("container {} does not exist", self.id)));
        };
        let pid_file = PidFile::in_bundle(&bundle);
        let process = self.process(&bundle).map_err(on("read the process of", &bundle))?;
        let failed = |error| WorkloadError::failed(format_args!("run a program in {}", self.id), error);
        let ran = self.run_by(&crun, (&bundle, &container), &process, &pid_file);
        let (status, output) = match ran.map_err(failed)? {
            Ran::Ended(status, output) => (status, output),
            Ran::Cut(Cut::TooLong, left) => return Ok((ExecEnd::TimedOut, left)),
            Ran::Cut(Cut::Stopped, left) => return Ok((ExecEnd::Stopped, left)),
        };
        if !status.success() && pid_file.read().is_none() {
            let said = shortened(&String::from_utf8_lossy(&output));
            return Err(failed(io::Error::other(format!("crun exec ended with {status}: {said}"))));
        }
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1);
        Ok((ExecEnd::Ended { code, output }, None))
    }

    /// The settings of the container's first process, except its command.
    fn process(&self, bundle: &Path) -> io::Result<File> {
        let mut process = crun::process(bundle)?;
        process["args"] = json!(self.command);
        process["terminal"] = json!(false);
        in_memory(&process)
    }

    fn run_by(
        &self,
        crun: &CrunOrder,
        (bundle, container): (&Path, &Order),
        order: &File,
        pid_file: &PidFile,
    ) -> io::Result<Ran> {
        let (output, to_output) = io::pipe()?;
        let fd = order.as_raw_fd();
        let mut command = crun.exec(bundle, self.id, &format!("/proc/self/fd/{fd}"), &pid_file.0);
        command.stdout(to_output.try_clone()?).stderr(to_output);
        process::handing_on(&mut command, fd);
        let child = process::bound_to_parent(&mut command).spawn()?;
        // it holds the writing ends of the pipe
        drop(command);
        let heard = self.hear(&child, Heard::new(output, self.output_bytes)?);
        match heard {
            Ok(Ok(kept)) => Ok(Ran::Ended(process::end_of(child)?, kept)),
            cut => {
                let left = kill(child, pid_file, container)?;
                cut.map(|cut| Ran::Cut(cut.err().unwrap_or(Cut::TooLong), left))
            }
        }
    }

    /// Reads until crun has ended; `Err` if the time was over first, or the program was stopped.
    fn hear(&self, child: &Child, mut output: Heard) -> io::Result<Result<Vec<u8>, Cut>> {
        let process = ProcessFd::open(child.id().cast_signed())?;
        let end = process::after(Instant::now(), self.limit);
        loop {
            let has_ended = process.as_ref().is_none_or(|process| process.wait(Duration::ZERO));
            output.read()?;
            if has_ended {
                return Ok(Ok(output.kept));
            }
            if self.stop.is_some_and(is_readable) {
                return Ok(Err(Cut::Stopped));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Err(Cut::TooLong));
            }
            wait(process.as_ref(), &[&output], self.stop, left)?;
        }
    }
}

/// The outcome of a program.
enum Ran {
    /// crun's exit status, and the output of crun and the program.
    Ended(ExitStatus, Vec<u8>),
    /// It was killed: the reason, and its processes that have not ended.
    Cut(Cut, Option<LeftProgram>),
}

/// True if there is something to read, or the other end is closed.
fn is_readable(fd: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// A file in memory from which crun reads.
pub(super) fn in_memory(process: &Value) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"process", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(process.to_string().as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Kills the program with its descendants, which are in its own process group, or still in crun's. Returns
/// the processes that do not end.
fn kill(mut child: Child, pid_file: &PidFile, container: &Order) -> io::Result<Option<LeftProgram>> {
    let end = Instant::now() + AFTER_KILL;
    let crun = child.id().cast_signed();
    let mut left = Vec::new();
    // a program that is being started has no ID yet
    while pid_file.read().is_none() && child.try_wait()?.is_none() && Instant::now() < end {
        std::thread::sleep(LOOK);
    }
    // crun has not been waited for, so its ID is still its own, and so is its child's while crun runs
    if let Some(pid) = pid_file.read()
        && let Some(program) = ProcessFd::open(pid)?
        && child.try_wait()?.is_none()
    {
        if let Ok(group) = getpgid(Some(Pid::from_raw(pid))) {
            left = kill_members(group, container, end);
        }
        program.signal(libc::SIGKILL)?;
        await_crun(ProcessFd::open(crun)?.as_ref());
        left.push((pid, program));
    }
    if let Err(crun) = process::cut(child) {
        left.extend(ProcessFd::open(crun)?.map(|process| (crun, process)));
    }
    Ok(LeftProgram::of(left))
}

/// Gives crun the time to remove its killed program from the process table. If crun is killed first, process
/// 1 has to do that, and where it does not, the container's PID namespace can never end.
pub(super) fn await_crun(crun: Option<&ProcessFd>) {
    if let Some(crun) = crun {
        crun.wait(AFTER_KILL);
    }
}

/// Kills the processes of a process group and their children in the container, until none is left; returns
/// those left at the end. A child may have a session of its own. The container's group is checked, because a
/// program chooses its process group: one that sees the machine's processes could name one of theirs.
fn kill_members(group: Pid, container: &Order, end: Instant) -> Vec<(i32, ProcessFd)> {
    let members = || {
        let mut found = container.cgroups.processes(&container.group);
        found.sort_unstable();
        let mut known: Vec<i32> = Vec::new();
        loop {
            let count = known.len();
            let is_one = |pid: &i32| {
                let parent = || process::parent_and_session(*pid).map(|(parent, _)| parent);
                getpgid(Some(Pid::from_raw(*pid))) == Ok(group)
                    || parent().is_some_and(|it| known.contains(&it))
            };
            let (more, rest): (Vec<i32>, Vec<i32>) = found.into_iter().partition(is_one);
            known.extend(more);
            found = rest;
            if known.len() == count {
                return known;
            }
        }
    };
    let mut opened: Vec<(i32, ProcessFd)> = Vec::new();
    loop {
        // a child whose parent was killed before it
        opened.retain(|(_, process)| !process.wait(Duration::ZERO));
        let more = members().into_iter().filter(|pid| opened.iter().all(|(known, _)| known != pid));
        let mut more: Vec<(i32, ProcessFd)> =
            more.filter_map(|pid| Some((pid, ProcessFd::open(pid).ok()??))).collect();
        // an ID may have passed to another process before it was opened
        let still = members();
        more.retain(|(pid, _)| still.contains(pid));
        opened.append(&mut more);
        if opened.is_empty() || Instant::now() > end {
            return opened;
        }
        for (_, process) in &opened {
            let _ = process.signal(libc::SIGKILL);
        }
        for (_, process) in &opened {
            process.wait(LOOK);
        }
    }
}

/// The file to which crun writes the program's ID once it runs.
#[derive(Debug)]
pub(super) struct PidFile(pub(super) PathBuf);

impl PidFile {
    pub(super) fn in_bundle(bundle: &Path) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = bundle.join(format!("exec-{}-{number}.pid", std::process::id()));
        // of an agent that was restarted in place, with the same process ID and counter
        let _ = fs::remove_file(&path);
        Self(path)
    }

    pub(super) fn read(&self) -> Option<i32> {
        crun::read_pid(&self.0).ok().filter(|pid| *pid > 1)
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
