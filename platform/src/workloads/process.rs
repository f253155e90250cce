//! Processes as the kernel names them for certain, and programs that are given a limited time.
//!
//! What always holds: a process ID alone is never trusted over time: with it goes when the process began, and what is signalled
//! or awaited is a descriptor of exactly that process. A program that outlives its limit is killed with all of its group. One that
//! not even that ends, for it waits for a dead disk, is left to itself: nobody here waits for it, and it is taken out of the process
//! table when it has ended.
//!
//! Leaves to others: what the processes are.
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

/// Longest wait that is counted: 68 years. What is longer is for ever, and must not overflow the clock.
const MOST_WAIT: Duration = Duration::from_secs(i32::MAX as u64);

/// The moment when a wait ends, however long somebody asked for.
pub(super) fn after(begin: Instant, wait: Duration) -> Instant {
    begin + wait.min(MOST_WAIT)
}

/// A process: its ID, and when it began, in ticks since the machine's start. No two processes of a boot share both.
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

    /// A descriptor of exactly this process; `None`: it has ended, and perhaps another has its ID.
    pub(super) fn open(self) -> io::Result<Option<ProcessFd>> {
        let Some(fd) = ProcessFd::open(self.pid)? else { return Ok(None) };
        // looked at after it was opened: from then on the ID can go to nobody else unnoticed
        Ok(Self::of(self.pid).is_ok_and(|now| now == self).then_some(fd))
    }
}

/// The parent and the session of a process.
pub(super) fn parent_and_session(pid: i32) -> Option<(i32, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // fields 4 and 6, counted behind the name
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(1);
    Some((fields.next()?.parse().ok()?, fields.nth(1)?.parse().ok()?))
}

/// Field 22 of `/proc/PID/stat`; the second, the program's name in parentheses, may itself hold spaces and parentheses.
fn start_in(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// A descriptor of a process, which becomes readable when it ends.
#[derive(Debug)]
pub(super) struct ProcessFd(OwnedFd);

impl ProcessFd {
    /// The process that has this ID now; `None`: there is none.
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

    /// Sends a signal, also one that nix has no name for (real-time signals). A process that has ended is fine.
    pub(super) fn signal(&self, signal: i32) -> io::Result<()> {
        // SAFETY: a descriptor that we hold, an integer, and no siginfo (null is allowed and means the kernel's own).
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

    /// Waits until it has ended; false: it has not within `limit`.
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

    /// If it is a child of ours that has ended, takes it out of the process table.
    pub(super) fn reap(&self) {
        let _ = waitid(Id::PIDFd(self.0.as_fd()), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG);
    }
}

impl AsFd for ProcessFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// How many lines and columns a terminal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    /// Lines.
    pub rows: u16,
    /// Characters of a line.
    pub columns: u16,
}

/// The size of a terminal; `None`: it is no terminal, or has no size, as one at the end of a serial line.
pub fn window_size(terminal: impl AsFd) -> Option<WindowSize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `size` is a valid place for a winsize for the time of the call.
    let done = unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    let is_known = done == 0 && size.ws_row > 0 && size.ws_col > 0;
    is_known.then_some(WindowSize { rows: size.ws_row, columns: size.ws_col })
}

/// Gives a terminal another size; what runs in it is told by the kernel.
pub(super) fn set_window_size(terminal: impl AsFd, size: WindowSize) -> io::Result<()> {
    let size = libc::winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `size` is a winsize that lives as long as the call, which only reads it.
    let done = unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    Errno::result(done).map(drop).map_err(io::Error::from)
}

/// Most descriptors that are taken from one message.
const DESCRIPTORS: usize = 3;

/// Reads once from a Unix socket; the descriptors that came along are ours from then on.
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

/// A child that has ended, taken out of the process table; `None`: no child has. All signals are told apart, real-time ones too.
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

/// Makes a program begin with no blocked signals, in a group of its own, and end with the thread that starts it: what a killed
/// parent had begun must not go on behind its successor's back.
pub(super) fn bound_to_parent(command: &mut Command) -> &mut Command {
    let parent = Pid::this();
    let prepare = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        // it may have died before the line above
        if Pid::parent() != parent {
            return Err(io::Error::other("the starting process is gone"));
        }
        Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?)
    };
    // SAFETY: between fork and exec it makes four system calls; it takes no lock and, unless it fails, allocates nothing.
    unsafe { command.process_group(0).pre_exec(prepare) }
}

/// Makes a program nobody's child, in a session of its own, with no blocked signals and no descriptors but the first three: it goes on when
/// its starter ends, and its starter need not wait for its end. `spawn` gives a process that has ended already.
pub(super) fn orphaned(command: &mut Command) -> &mut Command {
    let prepare = || {
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        nix::unistd::setsid()?;
        // what was inherited without being asked for; kernels before 5.11 cannot, and there is hardly ever anything
        // SAFETY: three integers; it marks descriptors of this process to be closed by exec, and touches no memory.
        let _ =
            unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        // SAFETY: this runs in a process that was just forked and has one thread.
        match unsafe { libc::fork() } {
            0 => Ok(()),
            // SAFETY: it ends the process at once; nothing is unwound or flushed that belongs to the starter.
            1.. => unsafe { libc::_exit(0) },
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec it makes five system calls; it takes no lock and allocates nothing.
    unsafe { command.pre_exec(prepare) }
}

/// Most descriptors that a process has by default.
const DESCRIPTORS_BY_DEFAULT: RawFd = 1024;

/// Closes every descriptor of this process, the first three too: from here on it reads and writes nothing.
pub(super) fn close_all_descriptors() {
    // SAFETY: three integers. What is closed belongs to objects that the caller uses no more: it waits for signals.
    if unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) } == 0 {
        return;
    }
    // kernels before 5.9
    for fd in 0..DESCRIPTORS_BY_DEFAULT {
        // SAFETY: as above.
        let _ = unsafe { libc::close(fd) };
    }
}

/// Lets a program, but nothing that it starts, run before all others of the machine that have no deadlines, until [`in_turn`]: what it
/// starts cannot overtake it, however busy the machine is. Where the kernel refuses that, it runs in its turn.
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

/// The kernel's own call, whose `struct sched_param` is one integer: musl's function of that name only says that it is not implemented.
fn schedule(process: i32, policy: i32, priority: libc::c_int) {
    // SAFETY: it reads `priority`, which lives as long as the call, and concerns the calling process or a child of ours.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setscheduler, process, policy, &raw const priority) };
}

/// Lets a program, and all that it starts, keep this descriptor: what is locked by it stays so until the last of them has ended.
pub(super) fn handing_on(command: &mut Command, fd: RawFd) -> &mut Command {
    let keep = move || {
        // SAFETY: an integer that names a descriptor of ours; no memory is involved.
        let done = unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
        Errno::result(done).map(drop).map_err(io::Error::from)
    };
    // SAFETY: between fork and exec it makes one system call; it takes no lock and allocates nothing.
    unsafe { command.pre_exec(keep) }
}

/// Has a program make files that others may read, whatever the umask of the service: directories that lead to a container's mounts are
/// its users' to pass.
pub(super) fn making_readable_files(command: &mut Command) -> &mut Command {
    let prepare = || {
        umask(Mode::S_IWGRP | Mode::S_IWOTH);
        Ok(())
    };
    // SAFETY: between fork and exec it makes one system call, which cannot fail; it takes no lock and allocates nothing.
    unsafe { command.pre_exec(prepare) }
}

/// Gives a program, and all that it starts, a session keyring of its own: else what `crun exec` runs has that of the agent. It has no name,
/// as the one has that crun gives a container: that one may be linked, and its keys read, by whatever has the same user and its number.
pub(super) fn with_own_keyring(command: &mut Command) -> &mut Command {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    let prepare = || {
        // SAFETY: two integers, of which the second is no name; no memory is involved.
        match Errno::result(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, 0_usize) }) {
            // a kernel without keys
            Ok(_) | Err(Errno::ENOSYS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    };
    // SAFETY: between fork and exec it makes one system call; it takes no lock and allocates nothing.
    unsafe { command.pre_exec(prepare) }
}

/// Where system programs are.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Keeps the agent's environment from a program: crun would hand NOTIFY_SOCKET on to the container.
pub(super) fn with_plain_environment(command: &mut Command) {
    command.env_clear().env("PATH", PATH);
}

/// How long a program that was killed may take to end. One that waits for a disk or a server does not end before that answers.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Programs that did not end when they were killed. They are bounded by who starts them: a path, a plugin or a container has one at most.
static LEFT: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// Runs a program to its end, or kills it, with its whole group, when the limit is over (`TimedOut`).
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

/// What is added to the error of a program that was killed and is still there.
pub(super) fn still_there(pid: i32) -> String {
    format!("; process {pid} does not end after SIGKILL, and is left to itself")
}

/// How a program ended that has.
pub(super) fn end_of(mut child: Child) -> io::Result<ExitStatus> {
    take_out_what_was_left();
    child.wait()
}

/// Kills a program with its whole group. `Err`: its process, which has not ended, and is not awaited.
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

/// Takes out of the process table what has ended since.
fn take_out_what_was_left() {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
}

/// Takes all children that have ended out of the process table. Only before this process starts any: programs that an image of it before
/// this one left to themselves.
pub fn take_out_ended_children() {
    while next_ended_child().is_some() {}
}

/// Kills a program that leads a group of its own, with all of it.
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
