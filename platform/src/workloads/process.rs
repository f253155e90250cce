//! Unambiguous references to processes, and programs with limited time.
//!
//! Always holds: a process ID alone is never used over time: the start time of the process belongs to it, and
//! signals and waits use a descriptor of exactly that process. A program that exceeds its limit is killed
//! with its whole group. If even that does not end it, because it waits for a dead disk, it is abandoned: no
//! code here waits for it, and it is removed from the process table once it has ended.
//!
//! Leaves to others: the purpose of the processes.
#![allow(
    unsafe_code,
    reason = "system calls that nix has no safe form of, descriptors that others send, and what runs between fork and exec"
)]

use std::fs;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, killpg, sigprocmask};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// Longest wait: 68 years. A longer one is cut to that, so that the clock does not overflow.
const MOST_WAIT: Duration = Duration::from_secs(i32::MAX as u64);

/// The moment when a wait ends; the wait may have any length.
pub(super) fn after(begin: Instant, wait: Duration) -> Instant {
    begin + wait.min(MOST_WAIT)
}

/// A process: its ID and start time, in ticks since the machine's start. No two processes of a boot share
/// both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessName {
    pub(super) pid: i32,
    pub(super) start: u64,
}

impl ProcessName {
    /// The process that has this ID now.
    pub(super) fn of(pid: i32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let start =
            start_in(&stat).ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat: no start time")))?;
        Ok(Self { pid, start })
    }

    /// A descriptor of exactly this process; `None` if it has ended, and another may have its ID.
    pub(super) fn open(self) -> io::Result<Option<ProcessFd>> {
        let Some(fd) = ProcessFd::open(self.pid)? else { return Ok(None) };
        // checked after it was opened: from then on the ID cannot pass to another process unnoticed
        Ok(Self::of(self.pid).is_ok_and(|now| now == self).then_some(fd))
    }
}

/// The parent and the session of a process.
pub(super) fn parent_and_session(pid: i32) -> Option<(i32, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // fields 4 and 6, counted after the name
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(1);
    Some((fields.next()?.parse().ok()?, fields.nth(1)?.parse().ok()?))
}

/// Field 22 of `/proc/PID/stat`; the second one, the program's name in parentheses, may itself contain spaces
/// and parentheses.
fn start_in(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// A descriptor of a process, which becomes readable when it ends.
#[derive(Debug)]
pub(super) struct ProcessFd(OwnedFd);

impl ProcessFd {
    /// The process that has this ID now; `None` if the ID is unused.
    pub(super) fn open(pid: i32) -> io::Result<Option<Self>> {
        // SAFETY: pidfd_open takes two integers and gives a descriptor or -1; no memory is involved.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return match Errno::last() {
                Errno::ESRCH => Ok(None),
                error => Err(error.into()),
            };
        }
        let fd = i32::try_from(fd).map_err(|_| io::Error::other("pidfd_open gave no descriptor"))?;
        // SAFETY: the call above just gave this descriptor to us alone.
        Ok(Some(Self(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Sends a signal, also one that nix has no name for (real-time signals). Succeeds if the process has
    /// ended.
    pub(super) fn signal(&self, signal: i32) -> io::Result<()> {
        // SAFETY: a descriptor that we hold, an integer, and no siginfo (null is allowed and means the
        // kernel's own).
        let done = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.0.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        match Errno::result(done) {
            Ok(_) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until it has ended; false if it has not within `limit`.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        let end = after(Instant::now(), limit);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(0) if left.is_zero() => return false,
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Removes it from the process table if it is a child of ours that has ended.
    pub(super) fn reap(&self) {
        let _ = waitid(Id::PIDFd(self.0.as_fd()), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG);
    }
}

impl AsFd for ProcessFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The number of lines and columns of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    /// Lines.
    pub rows: u16,
    /// Characters of a line.
    pub columns: u16,
}

/// The size of a terminal; `None` if it is not a terminal, or has no size, like one at the end of a serial
/// line.
pub fn window_size(terminal: impl AsFd) -> Option<WindowSize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `size` is a valid place for a winsize for the time of the call.
    let done = unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    let is_known = done == 0 && size.ws_row > 0 && size.ws_col > 0;
    is_known.then_some(WindowSize { rows: size.ws_row, columns: size.ws_col })
}

/// Changes the size of a terminal; the kernel notifies the programs in it.
pub(super) fn set_window_size(terminal: impl AsFd, size: WindowSize) -> io::Result<()> {
    let size = libc::winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `size` is a winsize that lives as long as the call, which only reads it.
    let done = unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    Errno::result(done).map(drop).map_err(io::Error::from)
}

/// Most descriptors that are taken from one message.
const DESCRIPTORS: usize = 3;

/// Reads once from a Unix socket; received descriptors then belong to us.
pub(crate) fn receive(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = nix::cmsg_space!([RawFd; DESCRIPTORS]);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_fd().as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let mut received = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            // SAFETY: the kernel has just made these descriptors for us alone, by the call above.
            received.extend(descriptors.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok((message.bytes, received))
}

/// A child that has ended, removed from the process table; `None` if no child has. All signals are
/// distinguished, including real-time ones.
pub(super) fn next_ended_child() -> Option<(i32, ExitStatus)> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a valid place for an int for the time of the call.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
        match Errno::result(pid) {
            Ok(0) => return None,
            Ok(pid) => return Some((pid, ExitStatus::from_raw(status))),
            Err(Errno::EINTR) => {}
            Err(_) => return None,
        }
    }
}

/// Makes a program start without blocked signals, in a group of its own, and end with the thread that starts
/// it: work that a killed parent had begun must not continue unnoticed by its successor.
pub(super) fn bound_to_parent(command: &mut Command) -> &mut Command {
    let parent = Pid::this();
    let prepare = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        // the parent may have died before the line above
        if Pid::parent() != parent {
            return Err(io::Error::other("the starting process is gone"));
        }
        Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?)
    };
    // SAFETY: between fork and exec it makes four system calls; it takes no lock and, unless it fails,
    // allocates nothing.
    unsafe { command.process_group(0).pre_exec(prepare) }
}

/// Makes a program begin without blocked signals, in a process group of its own. It continues when its
/// starter ends.
pub(super) fn in_own_group(command: &mut Command) -> &mut Command {
    let prepare = || Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?);
    // SAFETY: between fork and exec it makes one system call; it takes no lock and allocates nothing.
    unsafe { command.process_group(0).pre_exec(prepare) }
}

/// Makes a program an orphan, in a session of its own, without blocked signals and with only the first three
/// descriptors: it continues when its starter ends, and its starter need not wait for it. `spawn` returns a
/// process that has already ended.
pub(super) fn orphaned(command: &mut Command) -> &mut Command {
    let prepare = || {
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        nix::unistd::setsid()?;
        // closes descriptors that were inherited unintentionally; kernels before 5.11 cannot do this, and
        // there are hardly ever any
        //
        // SAFETY: three integers; it marks descriptors of this process to be closed by exec, and touches no
        // memory.
        let _ =
            unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        // SAFETY: this runs in a process that was just forked and has one thread.
        match unsafe { libc::fork() } {
            0 => Ok(()),
            // SAFETY: it ends the process at once, without unwinding or flushing anything that belongs to the
            // starter.
            1.. => unsafe { libc::_exit(0) },
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec it makes five system calls; it takes no lock and allocates nothing.
    unsafe { command.pre_exec(prepare) }
}

/// Most descriptors that a process has by default.
const DESCRIPTORS_BY_DEFAULT: RawFd = 1024;

/// Closes every descriptor of this process, including the first three: from here on it cannot read or write.
pub(super) fn close_all_descriptors() {
    // SAFETY: three integers. The closed descriptors belong to objects that the caller does not use any more:
    // it only waits for signals.
    if unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) } == 0 {
        return;
    }
    // kernels before 5.9
    for fd in 0..DESCRIPTORS_BY_DEFAULT {
        // SAFETY: as above.
        let _ = unsafe { libc::close(fd) };
    }
}

/// Lets a program, but none of its children, run before all other processes without deadlines, until
/// [`in_turn`]: so its children cannot overtake it, however busy the machine is. If the kernel refuses that,
/// it runs with normal priority.
pub(super) fn before_others(command: &mut Command) -> &mut Command {
    let prepare = || {
        schedule(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1);
        Ok(())
    };
    // SAFETY: between fork and exec it makes one system call; it takes no lock and allocates nothing.
    unsafe { command.pre_exec(prepare) }
}

/// Ends [`before_others`] for a child that has not been waited for.
pub(super) fn in_turn(child: i32) {
    schedule(child, libc::SCHED_OTHER, 0);
}

/// The kernel's own call, whose `struct sched_param` is one integer: musl's function of that name only
/// returns that it is not implemented.
fn schedule(process: i32, policy: i32, priority: libc::c_int) {
    // SAFETY: it reads `priority`, which lives as long as the call, and concerns the calling process or a
    // child of ours.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setscheduler, process, policy, &raw const priority) };
}

/// Lets a program, and all its descendants, inherit this descriptor: a lock on it is held until the last of
/// them has ended.
pub(super) fn handing_on(command: &mut Command, fd: RawFd) -> &mut Command {
    let keep = move || {
        // SAFETY: an integer that names a descriptor of ours; no memory is involved.
        let done = unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
        Errno::result(done).map(drop).map_err(io::Error::from)
    };
    // SAFETY: between fork and exec it makes one system call; it takes no lock and allocates nothing.
    unsafe { command.pre_exec(keep) }
}

/// Makes a program create files that others may read, whatever the umask of the service: users of a container
/// must be able to pass the directories that lead to its mounts.
pub(super) fn making_readable_files(command: &mut Command) -> &mut Command {
    let prepare = || {
        umask(Mode::S_IWGRP | Mode::S_IWOTH);
        Ok(())
    };
    // SAFETY: between fork and exec it makes one system call, which cannot fail; it takes no lock and
    // allocates nothing.
    unsafe { command.pre_exec(prepare) }
}

/// Gives a program, and all its descendants, a session keyring of its own: otherwise a program run by `crun
/// exec` would have the agent's. The keyring has no name, unlike the one that crun gives a container: any
/// process with the same user that knows the name could link that one and read its keys.
pub(super) fn with_own_keyring(command: &mut Command) -> &mut Command {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    let prepare = || {
        // SAFETY: two integers, the second of which means "no name"; no memory is involved.
        match Errno::result(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, 0_usize) }) {
            // a kernel without key management
            Ok(_) | Err(Errno::ENOSYS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    };
    // SAFETY: between fork and exec it makes one system call; it takes no lock and allocates nothing.
    unsafe { command.pre_exec(prepare) }
}

/// The directories of system programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Keeps the agent's environment from a program: crun would pass NOTIFY_SOCKET on to the container.
pub(super) fn with_plain_environment(command: &mut Command) {
    command.env_clear().env("PATH", PATH);
}

/// Longest time for a killed program to end. One that waits for a disk or a server does not end before that
/// answers.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Killed programs that have not ended. Their number is limited by their callers: a path, a plugin or a
/// container has one at most.
static LEFT: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// Runs a program to its end, or kills it, with its whole group, when the time is over (`TimedOut`).
pub(super) fn run_within(command: &mut Command, limit: Duration) -> io::Result<ExitStatus> {
    let child = bound_to_parent(command).spawn()?;
    let has_ended = ProcessFd::open(child.id().cast_signed())?.is_none_or(|fd| fd.wait(limit));
    match has_ended {
        true => end_of(child),
        false => {
            let left = cut(child).map_or_else(still_there, |()| String::new());
            let why = format!("not done after {} s{left}", limit.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, why))
        }
    }
}

/// Added to the error of a killed program that still exists.
pub(super) fn still_there(pid: i32) -> String {
    format!("; process {pid} does not end after SIGKILL, and is left to itself")
}

/// The exit status of a program that has ended.
pub(super) fn end_of(mut child: Child) -> io::Result<ExitStatus> {
    take_out_what_was_left();
    child.wait()
}

/// Kills a program with its whole group. `Err`: the ID of its process, if that has not ended and is not
/// waited for.
pub(super) fn cut(mut child: Child) -> Result<(), i32> {
    take_out_what_was_left();
    let pid = child.id().cast_signed();
    kill_group(pid);
    let has_ended = ProcessFd::open(pid).is_ok_and(|fd| fd.is_none_or(|fd| fd.wait(ENDS_WITHIN)));
    if has_ended && child.wait().is_ok() {
        return Ok(());
    }
    LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    Err(pid)
}

/// Removes abandoned programs that have ended since from the process table.
fn take_out_what_was_left() {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
}

/// Removes all ended children from the process table. Call it only before this process starts any: they are
/// programs that an earlier image of it abandoned.
pub fn take_out_ended_children() {
    while next_ended_child().is_some() {}
}

/// Kills a program that leads a group of its own, with the whole group.
pub(super) fn kill_group(pid: i32) {
    let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_is_found_behind_any_program_name() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        for name in ["sh", "a b", ") (", "x)) S 1 1"] {
            assert_eq!(start_in(&format!("77 ({name}) {rest}")), Some(4242), "{name}");
        }
        assert_eq!(start_in("77 (sh) S 1"), None);
        assert_eq!(start_in("nonsense"), None);
    }

    #[test]
    fn longest_waits_do_not_overflow_the_clock() {
        let now = Instant::now();
        for wait in [Duration::from_secs(i64::MAX as u64), Duration::from_secs(u64::MAX), Duration::MAX] {
            assert_eq!(after(now, wait) - now, MOST_WAIT);
        }
        assert_eq!(after(now, Duration::from_secs(30)) - now, Duration::from_secs(30));
    }

    #[test]
    fn other_start_is_another_process() {
        let own = ProcessName::of(std::process::id().cast_signed()).unwrap();
        assert!(own.open().unwrap().is_some());
        assert!(ProcessName { start: own.start + 1, ..own }.open().unwrap().is_none());
    }

    #[test]
    fn program_over_its_limit_is_killed_with_its_group() {
        let scratch = std::env::temp_dir().join(format!("kedge-within-{}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $! >\"$0\"; wait"]).arg(&scratch);
        let error = run_within(&mut command, Duration::from_millis(300)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        if let Ok(pid) = fs::read_to_string(&scratch).unwrap_or_default().trim().parse::<i32>() {
            let ended = ProcessFd::open(pid).unwrap().is_none_or(|fd| fd.wait(Duration::from_secs(10)));
            assert!(ended, "the program's child {pid} lives on");
        }
        let _ = fs::remove_file(scratch);
    }
}
