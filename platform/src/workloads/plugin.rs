//! Programs that get a request on their input and answer on their output, as network plugins do.
//!
//! Always holds: a plugin's time and answer are limited; beyond either it is killed with all its descendants,
//! and one that waits for a dead disk, and so does not end, is not waited for; neither its errors nor its
//! answer can exhaust our memory. It inherits none of our environment. The request does not appear on a
//! command line. A file stays locked while any process that it started runs, even after this agent was
//! killed: so no agent undoes work that is still in progress, and processes that do not end can be found.
//!
//! Leaves to others: the requests, and the meaning of answers.

use std::fs::{self, File, TryLockError};
use std::io::{self, PipeReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::process::{self, ProcessFd};
use crate::linux::open_lock;

/// Limit of the kept error output of a plugin; the rest is read and dropped.
const ERROR_BYTES: usize = 4 * 1024;
/// Time between two checks whether plugins of an earlier agent have ended.
const LOOK: Duration = Duration::from_millis(20);
/// Most descriptors of a process that are examined: processes of a plugin have a few.
const DESCRIPTORS: usize = 1000;

/// A plugin to run.
#[derive(Debug)]
pub struct Plugin<'a> {
    /// The program.
    pub program: &'a Path,
    /// Its arguments.
    pub arguments: &'a [&'a str],
    /// Its environment, beside `PATH`.
    pub environment: &'a [(&'a str, String)],
    /// Its input.
    pub input: &'a [u8],
    /// The longest time that it may take.
    pub limit: Duration,
    /// Longest answer.
    pub answer_bytes: usize,
    /// A lock that is held while it runs.
    pub lock: Option<&'a File>,
}

/// How a plugin ended by itself.
#[derive(Debug)]
pub struct PluginOutput {
    /// The failure, if it did not succeed.
    pub failure: Option<String>,
    /// Its answer.
    pub stdout: Vec<u8>,
    /// The first 4 KiB of its errors.
    pub stderr: Vec<u8>,
}

/// Locks the file of the plugins, once those that an earlier agent started have ended. Within `grace` they
/// may end by themselves, then they are killed; `None` if they have not ended after another `grace`.
///
/// # Errors
/// The file cannot be made or locked.
pub fn plugins_of_earlier_agents(lock: &Path, grace: Duration) -> io::Result<Option<File>> {
    let file = open_lock(lock)?;
    if is_locked_within(&file, grace)? {
        return Ok(Some(file));
    }
    for (pid, process) in holders(&file)? {
        log::warn!(
            "process {pid}, which a network plugin of an earlier agent started, is killed: it does not end"
        );
        process.signal(libc::SIGKILL)?;
    }
    Ok(is_locked_within(&file, grace)?.then_some(file))
}

fn is_locked_within(file: &File, limit: Duration) -> io::Result<bool> {
    let end = Instant::now() + limit;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if Instant::now() < end => std::thread::sleep(LOOK),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// The processes, except this one, that have the file open.
fn holders(file: &File) -> io::Result<Vec<(i32, ProcessFd)>> {
    let wanted = identity(&file.metadata()?);
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        let Some(pid) = pid.filter(|pid| *pid != std::process::id().cast_signed()) else { continue };
        // a process that ends meanwhile has none; the descriptor is opened first, so that its ID cannot refer
        // to another process
        let Ok(Some(process)) = ProcessFd::open(pid) else { continue };
        let open = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        let has_it = |open: fs::DirEntry| fs::metadata(open.path()).is_ok_and(|it| identity(&it) == wanted);
        if open.take(DESCRIPTORS).any(has_it) {
            found.push((pid, process));
        }
    }
    Ok(found)
}

fn identity(file: &fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

impl Plugin<'_> {
    /// Runs it to its end.
    ///
    /// # Errors
    /// It could not be started, or it was killed because it took too long or answered too much.
    pub fn run(&self) -> io::Result<PluginOutput> {
        self.run_heard(&mut Vec::new())
    }

    /// The same; if it is killed, its answer so far is put into `heard`.
    ///
    /// # Errors
    /// As of [`Plugin::run`].
    pub fn run_heard(&self, heard: &mut Vec<u8>) -> io::Result<PluginOutput> {
        let mut input = File::from(memfd_create(c"plugin", MFdFlags::MFD_CLOEXEC)?);
        input.write_all(self.input)?;
        io::Seek::rewind(&mut input)?;
        let (stdout, to_stdout) = io::pipe()?;
        let (stderr, to_stderr) = io::pipe()?;
        let mut command = Command::new(self.program);
        process::with_plain_environment(&mut command);
        command.args(self.arguments);
        command.envs(self.environment.iter().map(|(name, value)| (*name, value))).current_dir("/");
        command.stdin(Stdio::from(input)).stdout(to_stdout).stderr(to_stderr);
        if let Some(lock) = self.lock {
            process::handing_on(&mut command, lock.as_raw_fd());
        }
        // the next agent waits for a plugin that holds the lock; nothing could undo one that was cut short
        let command_of_ours = match self.lock {
            Some(_) => process::in_own_group(&mut command),
            None => process::bound_to_parent(&mut command),
        };
        let child = command_of_ours.spawn()?;
        // it holds the writing ends of the pipes
        drop(command);
        let (stdout, stderr) = match self.hear(&child, stdout, stderr, heard) {
            Ok(all) => all,
            Err(error) => {
                let left = process::cut(child).map_or_else(process::still_there, |()| String::new());
                return Err(io::Error::new(error.kind(), format!("{error}{left}")));
            }
        };
        let status = process::end_of(child)?;
        Ok(PluginOutput { failure: (!status.success()).then(|| status.to_string()), stdout, stderr })
    }

    /// Reads until the program has ended. Its descendants may live on with its output, and are not waited
    /// for.
    fn hear(
        &self,
        child: &Child,
        stdout: PipeReader,
        stderr: PipeReader,
        heard: &mut Vec<u8>,
    ) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let process = ProcessFd::open(child.id().cast_signed())?;
        let mut answer = Heard::new(stdout, self.answer_bytes)?;
        let mut errors = Heard::new(stderr, ERROR_BYTES)?;
        let end = Instant::now() + self.limit;
        loop {
            let has_ended = process.as_ref().is_none_or(|process| process.wait(Duration::ZERO));
            answer.read()?;
            errors.read()?;
            if answer.is_too_long {
                let why = format!("its answer is longer than {} bytes", self.answer_bytes);
                return Err(io::Error::other(why));
            }
            if has_ended {
                return Ok((answer.kept, errors.kept));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                *heard = answer.kept;
                let why = format!("not done after {} s", self.limit.as_secs_f32());
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            wait(process.as_ref(), &[&answer, &errors], None, left)?;
        }
    }
}

/// Waits until there is something to read, there or on `more`, or the process has ended.
pub(super) fn wait(
    process: Option<&ProcessFd>,
    heard: &[&Heard],
    more: Option<BorrowedFd<'_>>,
    left: Duration,
) -> io::Result<()> {
    let open = heard.iter().filter_map(|heard| heard.pipe.as_ref().map(|pipe| pipe.as_fd()));
    let fds = open.chain(process.map(|process| process.as_fd())).chain(more);
    let mut awaited: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
    match poll(&mut awaited, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// An output that is being read.
pub(super) struct Heard {
    /// `None` after its end.
    pipe: Option<PipeReader>,
    most: usize,
    pub(super) kept: Vec<u8>,
    is_too_long: bool,
}

impl Heard {
    pub(super) fn new(pipe: PipeReader, most: usize) -> io::Result<Self> {
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self { pipe: Some(pipe), most, kept: Vec::new(), is_too_long: false })
    }

    /// Reads the available output, up to a limit: a program that writes endlessly must not keep us from
    /// checking the time.
    pub(super) fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        for _ in 0..64 {
            let Some(pipe) = &mut self.pipe else { return Ok(()) };
            match pipe.read(&mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(length) => self.keep(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = self.most - self.kept.len();
        self.is_too_long |= bytes.len() > room;
        self.kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, limit: Duration, lock: Option<&File>) -> io::Result<PluginOutput> {
        let environment = [("CNI_COMMAND", "ADD".to_owned())];
        // the shell reads the script from its input
        let input = script.as_bytes();
        let program = Path::new("/bin/sh");
        let arguments = &[];
        Plugin { program, arguments, environment: &environment, input, limit, answer_bytes: 100_000, lock }
            .run()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn plugin_is_asked_and_answers() {
        let output =
            run("printf $CNI_COMMAND; env | grep -c CARGO; echo why >&2; exit 3", LONG, None).unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ADD0\n", "and has nothing of our environment");
        assert_eq!((output.failure.as_deref(), &output.stderr[..]), (Some("exit status: 3"), &b"why\n"[..]));
        let long = run("head -c 100000 /dev/zero; head -c 100000 /dev/zero >&2", LONG, None).unwrap();
        assert_eq!((long.failure, long.stdout.len(), long.stderr.len()), (None, 100_000, ERROR_BYTES));
    }

    #[test]
    fn plugin_that_answers_without_end_is_killed() {
        let error = run("exec cat /dev/zero", LONG, None).unwrap_err().to_string();
        assert_eq!(error, "its answer is longer than 100000 bytes");
    }

    #[test]
    fn plugin_that_hangs_is_killed_with_its_children() {
        let path = std::env::temp_dir().join(format!("kedge-plugin-lock-{}", std::process::id()));
        let lock = plugins_of_earlier_agents(&path, Duration::ZERO).unwrap().unwrap();
        let error = run("sleep 1000 & wait", Duration::from_millis(200), Some(&lock)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(lock);
        assert!(plugins_of_earlier_agents(&path, LONG).unwrap().is_some(), "its child has the lock");
        let _ = std::fs::remove_file(path);
    }

    #[test]
    fn what_a_plugin_started_is_awaited_then_killed() {
        let path = std::env::temp_dir().join(format!("kedge-plugin-kept-{}", std::process::id()));
        let lock = plugins_of_earlier_agents(&path, Duration::ZERO).unwrap().unwrap();
        // like a plugin whose agent was killed: its child continues
        let output = run("sleep 1000 >&2 & echo $!", LONG, Some(&lock)).unwrap();
        drop(lock);
        let pid = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        let process = ProcessFd::open(pid).unwrap().unwrap();
        let file = File::open(&path).unwrap();
        assert!(matches!(file.try_lock(), Err(TryLockError::WouldBlock)), "it has the lock");
        assert_eq!(holders(&file).unwrap().iter().map(|(pid, _)| *pid).collect::<Vec<_>>(), [pid]);
        drop(file);
        assert!(plugins_of_earlier_agents(&path, Duration::from_secs(1)).unwrap().is_some());
        assert!(process.wait(LONG), "it was killed");
        let _ = std::fs::remove_file(path);
    }
}
