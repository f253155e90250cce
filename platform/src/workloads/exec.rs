//! Programs that are run beside a container's first process, by `crun exec`.
//!
//! What always holds: the program has all that the first process was given (user, environment, directory, capabilities, control
//! group, namespaces). It has a limited time: what takes longer is killed with what it started, unless that made a
//! session of its own, and so is one that is stopped; nothing outside of the container's control group is. One that waits for a dead
//! disk does not end by that: it is not awaited, and its caller is told. Its output is kept
//! up to a limit, and the rest is read and dropped, so that it never waits for us. An error means that it did not run.
//!
//! Leaves to others: what is run, and what its end means; how many at once, and which is stopped for others.

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

/// How long crun may take beyond the limit to start a program that is to be killed.
pub(super) const AFTER_KILL: Duration = Duration::from_secs(2);
/// Between two looks whether it has.
pub(super) const LOOK: Duration = Duration::from_millis(10);

/// A program to be run in a container.
#[derive(Debug)]
pub struct Exec<'a> {
    /// Where.
    pub id: &'a ContainerId,
    /// Program and arguments.
    pub command: &'a [String],
    /// How long it may take.
    pub limit: Duration,
    /// How much of its output is kept, both streams together.
    pub output_bytes: usize,
    /// Once this can be read, or its other end is closed, the program is stopped; None: never.
    pub stop: Option<BorrowedFd<'a>>,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEnd {
    /// By itself.
    Ended {
        /// 128 and the signal if a signal ended it.
        code: i32,
        /// The begin of what it wrote.
        output: Vec<u8>,
    },
    /// It was killed, because its time was over.
    TimedOut,
    /// It was killed, because it was to be stopped.
    Stopped,
}

/// What was killed of a program and has not ended: it waits for a disk or a server that does not answer.
#[derive(Debug)]
pub struct LeftProgram(Vec<(i32, ProcessFd)>);

/// Most processes of a program that are remembered. One of them is enough to know that it has not ended.
const LEFT: usize = 4;

impl LeftProgram {
    fn of(mut processes: Vec<(i32, ProcessFd)>) -> Option<Self> {
        processes.retain(|(_, process)| !process.wait(Duration::ZERO));
        processes.truncate(LEFT);
        (!processes.is_empty()).then_some(Self(processes))
    }

    /// One of its processes that is still there.
    #[must_use]
    pub fn still_there(&self) -> Option<i32> {
        let left = self.0.iter().find(|(_, process)| !process.wait(Duration::ZERO));
        left.map(|(pid, _)| *pid)
    }
}

/// Why a program was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    TooLong,
    Stopped,
}

impl Exec<'_> {
    /// Runs it to its end. Blocks, on a thread that lives as long: with it the program's connection to us ends. Beside how it ended, what
    /// of it has not.
    ///
    /// # Errors
    /// It did not run: there is no such program, or no such container, or that ends.
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

    /// The container's own process, but for its command.
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
        // it has the writing ends of the pipe
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

    /// Reads until crun has ended; `Err`: it has not within the limit, or before it was to be stopped.
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

/// What came of a program.
enum Ran {
    /// How crun ended, and what it and the program wrote.
    Ended(ExitStatus, Vec<u8>),
    /// It was killed: why, and what of it has not ended.
    Cut(Cut, Option<LeftProgram>),
}

/// Whether there is something to read, or the other end is closed.
fn is_readable(fd: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// A file for crun to read.
pub(super) fn in_memory(process: &Value) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"process", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(process.to_string().as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Kills the program with what it started, which are in a process group of theirs, or still in crun's. Returns what does not end.
fn kill(mut child: Child, pid_file: &PidFile, container: &Order) -> io::Result<Option<LeftProgram>> {
    let end = Instant::now() + AFTER_KILL;
    let crun = child.id().cast_signed();
    let mut left = Vec::new();
    // one that is being started has no ID yet
    while pid_file.read().is_none() && child.try_wait()?.is_none() && Instant::now() < end {
        std::thread::sleep(LOOK);
    }
    // crun has not been waited for, so nobody else has its ID, nor that of its child while it runs
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

/// Gives crun the time to take its program, which was killed, out of the process table. If crun is killed first, that is left to process 1,
/// and where that does not do it, the container's PID namespace can never end.
pub(super) fn await_crun(crun: Option<&ProcessFd>) {
    if let Some(crun) = crun {
        crun.wait(AFTER_KILL);
    }
}

/// Kills what of a process group is in the container, until nothing is left of it; returns what is left at the end. A program chooses its
/// group: one that sees the machine's processes could name one of theirs.
fn kill_members(group: Pid, container: &Order, end: Instant) -> Vec<(i32, ProcessFd)> {
    let members = || {
        let mut found = container.cgroups.processes(&container.group);
        found.retain(|pid| getpgid(Some(Pid::from_raw(*pid))) == Ok(group));
        found
    };
    loop {
        let mut opened: Vec<(i32, ProcessFd)> =
            members().into_iter().filter_map(|pid| Some((pid, ProcessFd::open(pid).ok()??))).collect();
        // an ID may have passed to another process before it was opened
        let still = members();
        opened.retain(|(pid, _)| still.contains(pid));
        if still.is_empty() || Instant::now() > end {
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

/// Where crun writes the program's ID, once it runs.
#[derive(Debug)]
pub(super) struct PidFile(pub(super) PathBuf);

impl PidFile {
    pub(super) fn in_bundle(bundle: &Path) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = bundle.join(format!("exec-{}-{number}.pid", std::process::id()));
        // of an agent that was restarted in place, and counted as we do
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
