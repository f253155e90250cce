//! Programs that somebody talks to, run beside a container's first process by `crun exec`.
//!
//! What always holds: the program has what the first process was given (user, environment, directory, capabilities, control group,
//! namespaces). It ends with its [`Session`]: dropped before the program has ended, all processes of the program's session are
//! killed, and their children; what made a session of its own (a daemon) stays, with the container. After its
//! own end nothing is killed. No call waits for whoever talks to the program: our ends of its streams never block.
//!
//! Leaves to others: who talks to it, and how many there may be; moving the bytes.

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

/// What a terminal is called where nothing else is said, as with other runtimes.
const TERM: &str = "TERM=xterm";

/// A program to be run in a container, and which of its streams somebody wants.
#[derive(Debug)]
pub struct SessionOrder<'a> {
    /// Where.
    pub id: &'a ContainerId,
    /// Program and arguments.
    pub command: &'a [String],
    /// Its input; without it the program has none.
    pub stdin: bool,
    /// Its output; without it the output is dropped.
    pub stdout: bool,
    /// Its other output; never with a terminal.
    pub stderr: bool,
    /// A terminal of this size, which is input and output.
    pub terminal: Option<WindowSize>,
}

/// Our ends of the streams of a program; none of them blocks.
#[derive(Debug, Default)]
pub struct Streams {
    /// What is written is its input; dropped, the input ends.
    pub stdin: Option<File>,
    /// Its output.
    pub stdout: Option<File>,
    /// Its other output.
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
    /// What it reads and writes.
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
    /// Starts it. Blocks until crun has begun, and with a terminal until that is there. The program ends with the thread that
    /// calls this.
    ///
    /// # Errors
    /// There is no such container, or crun cannot be run. What crun itself finds wrong is the error of [`Session::ended`].
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

    /// Gives its terminal another size; without a terminal nothing happens.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn resize(&self, size: WindowSize) -> io::Result<()> {
        self.terminal.as_ref().map_or(Ok(()), |terminal| process::set_window_size(terminal, size))
    }

    /// How it ended: 128 and the signal if a signal ended it; `None`: it has not. Does not wait.
    ///
    /// # Errors
    /// It never began: there is no such program, or the container ended meanwhile.
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
        // one that is being started has no ID yet
        while self.files.pid.read().is_none() && !self.has_ended() && Instant::now() < end {
            std::thread::sleep(LOOK);
        }
        // until it has been waited for nobody else has its ID, nor that of its child
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

    /// Kills until nothing is left of it: what is born between a look and the signals shows at the next look.
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

    /// The processes of the session, and all that descend from them.
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
    /// Readable when the program has ended.
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

/// What crun reads and writes beside the program, gone with the session.
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

/// The container's own process, but for its command and its terminal.
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

/// crun, and a descriptor of it, which names it also once it has ended.
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

/// crun makes the terminal in the container, and sends its master to a socket.
///
/// It gives the terminal its size (`consoleSize`) right after it has let its child go, which becomes the program, and only then sends it:
/// whoever sets a size after that is too late for a program that looks at once. So crun must not be overtaken by its child in between;
/// on a busy machine it is in every second run, because a process that is woken goes first, and shims have a small share.
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

/// A socket of the bundle, whose path may be longer than a socket's name can be; the name is good for a process that runs in the
/// bundle.
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

/// The terminal that crun has sent.
pub(super) fn master_from(connection: &UnixStream, limit: Duration) -> io::Result<File> {
    connection.set_nonblocking(false)?;
    connection.set_read_timeout(Some(limit))?;
    let mut name = [0; 256];
    let (_, mut descriptors) = process::receive(connection, &mut name)?;
    let master = descriptors.pop().ok_or_else(|| io::Error::other("crun sent no terminal"))?;
    Ok(File::from(master))
}

/// The terminal that crun sends. A short program may have ended by then, and crun with it.
fn master_of(socket: &UnixListener, crun: &ProcessFd, limit: Duration) -> io::Result<File> {
    let end = process::after(Instant::now(), limit);
    loop {
        // before the socket: what it has sent by its end is there
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
        // it ends unnoticed here at most for one look
        let look = PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::ZERO);
        let _ = poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], look);
    }
}
