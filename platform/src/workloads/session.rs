//! Programs with a client, run beside a container's first process by `crun exec`.
//!
//! Always holds: the program gets the settings of the first process (user, environment, directory,
//! capabilities, control group, namespaces). It ends with its [`Session`]: if that is dropped before the
//! program has ended, all processes of the program's session are killed, and their children; a process in a
//! session of its own (a daemon) stays, with the container. After the program's own end nothing is killed. No
//! call waits for the client: our ends of the program's streams never block.
//!
//! Leaves to others: the clients and limits on their number; moving the bytes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::json;

use super::cgroups::Cgroups;
use super::crun;
use super::exec::{AFTER_KILL, LOOK, PidFile, await_crun, in_memory};
use super::places::Places;
use super::process::{self, ProcessFd, WindowSize};
use super::records::{CrunOrder, ORDER, Order, Records};
use super::{ContainerId, Settings, WorkloadError, on};

/// The type of a terminal if none is set, as in other runtimes.
const TERM: &str = "TERM=xterm";

/// A program to run in a container, with the streams that the client wants.
#[derive(Debug)]
pub struct SessionOrder<'a> {
    /// The container.
    pub id: &'a ContainerId,
    /// Program and arguments.
    pub command: &'a [String],
    /// Its input; without this the program has none.
    pub stdin: bool,
    /// Its output; without this the output is dropped.
    pub stdout: bool,
    /// Its error output; never with a terminal.
    pub stderr: bool,
    /// A terminal of this size for input and output.
    pub terminal: Option<WindowSize>,
}

/// Our ends of the streams of a program; none of them blocks.
#[derive(Debug, Default)]
pub struct Streams {
    /// To write its input; dropping this ends the input.
    pub stdin: Option<File>,
    /// Its output.
    pub stdout: Option<File>,
    /// Its error output.
    pub stderr: Option<File>,
}

impl Streams {
    /// # Errors
    /// One of them cannot be made non-blocking.
    pub(super) fn unblock(&self) -> io::Result<()> {
        for stream in [&self.stdin, &self.stdout, &self.stderr].into_iter().flatten() {
            fcntl(stream, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(())
    }
}

/// A program that runs in a container.
#[derive(Debug)]
pub struct Session {
    /// To read and write.
    pub streams: Streams,
    terminal: Option<File>,
    crun: Child,
    process: ProcessFd,
    files: Files,
    cgroups: Cgroups,
    group: String,
    shown: String,
    end: Option<i32>,
}

impl Session {
    /// Starts it. Blocks until crun has begun, and with a terminal until that exists. The program ends with
    /// the thread that calls this.
    ///
    /// # Errors
    /// The container does not exist, or crun cannot be run. Errors that crun itself reports are returned by
    /// [`Session::ended`].
    pub fn start(order: &SessionOrder<'_>, settings: &Settings) -> Result<Self, WorkloadError> {
        let id = order.id;
        id.check()?;
        let bundle = Places { run: settings.run.clone(), data: settings.data.clone() }.bundle(id);
        let Some(container) = Records::of(&bundle).read::<Order>(ORDER)? else {
            return Err(WorkloadError::refused(format_args!("container {id} does not exist")));
        };
        let failed = |error| WorkloadError::failed(format_args!("run a program in container {id}"), error);
        let process = process_of(&bundle, order).map_err(on("read the process of", &bundle))?;
        let files = Files::in_bundle(&bundle);
        let begun = match order.terminal {
            None => with_pipes(order, settings, &bundle, &process, &files),
            Some(_) => with_terminal(order, settings, &bundle, &process, &files),
        };
        let Begun { crun, process, streams, terminal } = begun.map_err(failed)?;
        let session = Self {
            streams,
            terminal,
            crun,
            process,
            files,
            cgroups: container.cgroups,
            group: container.group,
            shown: id.to_string(),
            end: None,
        };
        session.streams.unblock().map_err(failed)?;
        Ok(session)
    }

    /// Changes the size of its terminal; has no effect without one.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn resize(&self, size: WindowSize) -> io::Result<()> {
        self.terminal.as_ref().map_or(Ok(()), |terminal| process::set_window_size(terminal, size))
    }

    /// The program's exit code: 128 plus the signal if a signal ended it; `None` if it has not ended. Does
    /// not wait.
    ///
    /// # Errors
    /// It never began: the program does not exist, or the container ended meanwhile.
    pub fn ended(&mut self) -> Result<Option<i32>, WorkloadError> {
        if self.end.is_some() {
            return Ok(self.end);
        }
        let failed =
            |error| WorkloadError::failed(format_args!("run a program in container {}", self.shown), error);
        let Some(status) = self.crun.try_wait().map_err(failed)? else { return Ok(None) };
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1);
        self.end = Some(code);
        if !status.success() && self.files.pid.read().is_none() {
            return Err(failed(io::Error::other(crun::errors_in(&self.files.log))));
        }
        Ok(self.end)
    }

    /// Ends it now, with the processes of its session.
    pub fn kill(&mut self) {
        let end = Instant::now() + AFTER_KILL;
        // a program that is being started has no ID yet
        while self.files.pid.read().is_none() && !self.has_ended() && Instant::now() < end {
            std::thread::sleep(LOOK);
        }
        // until crun has been waited for, its ID and its child's cannot pass to other processes
        if let Some(pid) = self.files.pid.read()
            && !self.has_ended()
        {
            self.kill_session(pid, end);
            await_crun(Some(&self.process));
        }
        process::kill_group(self.crun.id().cast_signed());
        let _ = self.crun.wait();
        self.end.get_or_insert(128 + libc::SIGKILL);
    }

    fn has_ended(&mut self) -> bool {
        self.end.is_some() || self.process.wait(Duration::ZERO)
    }

    /// Kills until no process is left: those that start between a listing and the signals are found by the
    /// next listing.
    fn kill_session(&self, first: i32, end: Instant) {
        let session = process::parent_and_session(first).map(|(_, session)| session);
        while Instant::now() < end {
            let found = self.processes_of(first, session);
            let opened: Vec<(i32, ProcessFd)> =
                found.into_iter().filter_map(|pid| Some((pid, ProcessFd::open(pid).ok()??))).collect();
            // an ID may have passed to another process before it was opened
            let still = self.processes_of(first, session);
            if still.is_empty() {
                return;
            }
            for (_, process) in opened.iter().filter(|(pid, _)| still.contains(pid)) {
                let _ = process.signal(libc::SIGKILL);
            }
            for (_, process) in &opened {
                process.wait(LOOK);
            }
        }
    }

    /// The processes of the session, and all their descendants.
    fn processes_of(&self, first: i32, session: Option<i32>) -> BTreeSet<i32> {
        let all: Vec<(i32, i32, i32)> = self
            .cgroups
            .processes(&self.group)
            .into_iter()
            .filter_map(|pid| process::parent_and_session(pid).map(|(parent, its)| (pid, parent, its)))
            .collect();
        let is_ours = |pid: i32, its: i32| pid == first || session == Some(its);
        let mut found: BTreeSet<i32> =
            all.iter().filter(|(pid, _, its)| is_ours(*pid, *its)).map(|(pid, ..)| *pid).collect();
        loop {
            let before = found.len();
            let more: Vec<i32> =
                all.iter().filter(|(_, parent, _)| found.contains(parent)).map(|(pid, ..)| *pid).collect();
            found.extend(more);
            if found.len() == before {
                return found;
            }
        }
    }
}

impl AsFd for Session {
    /// Becomes readable when the program has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !matches!(self.ended(), Ok(None)) {
            return;
        }
        self.kill();
    }
}

/// The files of crun for one program, removed with the session.
#[derive(Debug)]
struct Files {
    pid: PidFile,
    log: PathBuf,
    console: PathBuf,
}

impl Files {
    fn in_bundle(bundle: &Path) -> Self {
        let pid = PidFile::in_bundle(bundle);
        let beside = |ending: &str| pid.0.with_extension(ending);
        Self { log: beside("log"), console: beside("sock"), pid }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for path in [&self.log, &self.console] {
            let _ = fs::remove_file(path);
        }
    }
}

/// The settings of the container's first process, except its command and its terminal.
fn process_of(bundle: &Path, order: &SessionOrder<'_>) -> io::Result<File> {
    let mut process = crun::process(bundle)?;
    process["args"] = json!(order.command);
    process["terminal"] = json!(order.terminal.is_some());
    if let Some(WindowSize { rows, columns }) = order.terminal {
        process["consoleSize"] = json!({"height": rows, "width": columns});
    }
    if order.terminal.is_some()
        && let Some(variables) = process["env"].as_array_mut()
        && !variables.iter().any(|it| it.as_str().is_some_and(|text| text.starts_with("TERM=")))
    {
        variables.push(json!(TERM));
    }
    in_memory(&process)
}

struct Begun {
    crun: Child,
    process: ProcessFd,
    streams: Streams,
    terminal: Option<File>,
}

/// Starts crun; also returns a descriptor of it, which refers to it even after its end.
fn start(mut command: Command, process: &File) -> io::Result<(Child, ProcessFd)> {
    process::handing_on(&mut command, process.as_raw_fd());
    let mut crun = process::bound_to_parent(&mut command).spawn()?;
    match ProcessFd::open(crun.id().cast_signed()) {
        Ok(Some(process)) => Ok((crun, process)),
        other => {
            let _ = crun.kill();
            let _ = crun.wait();
            Err(other.err().unwrap_or_else(|| io::Error::other("crun is gone")))
        }
    }
}

fn command_of(
    order: &SessionOrder<'_>,
    settings: &Settings,
    bundle: &Path,
    process: &File,
    files: &Files,
    console: Option<&Path>,
) -> Command {
    let path = format!("/proc/self/fd/{}", process.as_raw_fd());
    let crun = CrunOrder::of(settings);
    crun.session(bundle, order.id, &path, (&files.pid.0, &files.log), console)
}

fn with_pipes(
    order: &SessionOrder<'_>,
    settings: &Settings,
    bundle: &Path,
    process: &File,
    files: &Files,
) -> io::Result<Begun> {
    let mut command = command_of(order, settings, bundle, process, files, None);
    let file = |end: OwnedFd| Some(File::from(end));
    let mut streams = Streams::default();
    if order.stdin {
        let (theirs, ours) = io::pipe()?;
        command.stdin(Stdio::from(theirs));
        streams.stdin = file(ours.into());
    }
    if order.stdout {
        let (ours, theirs) = io::pipe()?;
        command.stdout(Stdio::from(theirs));
        streams.stdout = file(ours.into());
    }
    if order.stderr {
        let (ours, theirs) = io::pipe()?;
        command.stderr(Stdio::from(theirs));
        streams.stderr = file(ours.into());
    }
    let (crun, process) = start(command, process)?;
    Ok(Begun { crun, process, streams, terminal: None })
}

/// crun makes the terminal in the container, and sends its master side to a socket.
///
/// crun gives the terminal its size (`consoleSize`) right after it has released its child, which becomes the
/// program, and only then sends the master side: a size set after that is too late for a program that reads
/// it at once. So crun must not be overtaken by its child in between; on a busy machine that happens in every
/// second run, because a process that wakes up runs first, and shims have a small share.
fn with_terminal(
    order: &SessionOrder<'_>,
    settings: &Settings,
    bundle: &Path,
    process: &File,
    files: &Files,
) -> io::Result<Begun> {
    let (socket, name) = listen(&files.console)?;
    let mut command = command_of(order, settings, bundle, process, files, Some(&name));
    process::before_others(&mut command);
    let (mut crun, process) = start(command, process)?;
    let master = master_of(&socket, &process, settings.crun.limit);
    process::in_turn(crun.id().cast_signed());
    let terminal = match master {
        Ok(terminal) => terminal,
        Err(error) => {
            process::kill_group(crun.id().cast_signed());
            let status = crun.wait()?;
            let said = crun::errors_in(&files.log);
            return Err(io::Error::new(error.kind(), format!("{error} ({status}): {said}")));
        }
    };
    let streams = Streams {
        stdin: if order.stdin { Some(terminal.try_clone()?) } else { None },
        stdout: if order.stdout { Some(terminal.try_clone()?) } else { None },
        stderr: None,
    };
    Ok(Begun { crun, process, streams, terminal: Some(terminal) })
}

/// A socket in the bundle. The bundle's path may exceed the length limit of a socket's address; the returned
/// short path is valid for a process whose working directory is the bundle.
pub(super) fn listen(path: &Path) -> io::Result<(UnixListener, PathBuf)> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::other(format!("{} names no file", path.display())));
    };
    let directory = File::open(directory)?;
    let socket =
        UnixListener::bind(Path::new(&format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name))?;
    socket.set_nonblocking(true)?;
    Ok((socket, PathBuf::from(name)))
}

/// The terminal's master side that crun has sent.
pub(super) fn master_from(connection: &UnixStream, limit: Duration) -> io::Result<File> {
    connection.set_nonblocking(false)?;
    connection.set_read_timeout(Some(limit))?;
    let mut name = [0; 256];
    let (_, mut descriptors) = process::receive(connection, &mut name)?;
    let master = descriptors.pop().ok_or_else(|| io::Error::other("crun sent no terminal"))?;
    Ok(File::from(master))
}

/// Waits for the terminal's master side from crun. A short program may have ended by then, and crun with it.
fn master_of(socket: &UnixListener, crun: &ProcessFd, limit: Duration) -> io::Result<File> {
    let end = process::after(Instant::now(), limit);
    loop {
        // checked before the socket, so that a terminal which it sent before its end is found
        let has_ended = crun.wait(Duration::ZERO);
        match socket.accept() {
            Ok((connection, _)) => return master_from(&connection, limit),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if has_ended {
            return Err(io::Error::other("crun exec gave no terminal"));
        }
        if Instant::now() >= end {
            let text = format!("crun exec gave no terminal within {} s and was killed", limit.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        // its end goes unnoticed here for one interval at most
        let look = PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::ZERO);
        let _ = poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], look);
    }
}
