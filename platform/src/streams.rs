//! Waiting for several streams at once, and the terminal that a command was started in.
//!
//! What always holds: a terminal that was made raw is restored when its [`RawTerminal`] is dropped, and by a panic; a signal that
//! would end or resize the command is an event here, never an end in the middle.
//!
//! Leaves to others: what moves between the streams.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

/// A stream, and what is awaited of it. Nothing: that its other side goes away.
#[derive(Debug)]
pub struct Awaited<'a> {
    stream: BorrowedFd<'a>,
    wants: PollFlags,
    found: PollFlags,
}

/// The other side writes no more; nix has no name for it.
const ENDS: PollFlags = PollFlags::from_bits_retain(libc::POLLRDHUP);
/// What the kernel says of a stream whose other side is gone.
const GONE: PollFlags = PollFlags::POLLHUP.union(ENDS).union(PollFlags::POLLERR);

impl<'a> Awaited<'a> {
    fn new(stream: &'a impl AsFd, wants: PollFlags) -> Self {
        Self { stream: stream.as_fd(), wants, found: PollFlags::empty() }
    }

    /// Waits until it can be read, or has ended.
    pub fn read(stream: &'a impl AsFd) -> Self {
        Self::new(stream, PollFlags::POLLIN)
    }

    /// Waits until there is room to write, or nobody reads any more.
    pub fn write(stream: &'a impl AsFd) -> Self {
        Self::new(stream, PollFlags::POLLOUT)
    }

    /// Waits until its other side is gone.
    pub fn end(stream: &'a impl AsFd) -> Self {
        Self::new(stream, ENDS)
    }

    /// Waits until both of its directions are over, as by a reset.
    pub fn broken(stream: &'a impl AsFd) -> Self {
        Self::new(stream, PollFlags::empty())
    }

    /// After [`wait`]: something of it was found.
    pub fn is_ready(&self) -> bool {
        !self.found.is_empty()
    }

    /// After [`wait`]: only its end was awaited, and its other side is gone.
    pub fn has_ended(&self) -> bool {
        self.wants == ENDS && self.found.intersects(GONE)
    }
}

/// Waits until one of them is as awaited, or until the time is over; may return early.
///
/// # Errors
/// The kernel refuses: too many descriptors, no memory.
pub fn wait(awaited: &mut [Awaited<'_>], limit: Option<Duration>) -> io::Result<()> {
    let mut polled: Vec<PollFd<'_>> = awaited.iter().map(|it| PollFd::new(it.stream, it.wants)).collect();
    let limit = match limit {
        None => PollTimeout::NONE,
        Some(Duration::ZERO) => PollTimeout::ZERO,
        // rounded up: a limit below a millisecond must not become a busy loop
        Some(limit) => PollTimeout::try_from(limit + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX),
    };
    match poll(&mut polled, limit) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    // nix gives nothing where there is a flag that it has no name for
    let found: Vec<PollFlags> = polled.iter().map(|it| it.revents().unwrap_or(ENDS)).collect();
    awaited.iter_mut().zip(found).for_each(|(it, found)| it.found = found);
    Ok(())
}

/// Whether it is so now, without waiting.
pub fn is_ready(mut awaited: Awaited<'_>) -> bool {
    wait(std::slice::from_mut(&mut awaited), Some(Duration::ZERO)).is_ok() && awaited.is_ready()
}

/// What a command that works in a terminal is told by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It shall end.
    End(i32),
    /// Its terminal has another size.
    Resized,
}

/// The signals of a command, as a stream.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// From here on they do nothing by themselves. Before other threads begin.
    ///
    /// # Errors
    /// There is no descriptor.
    pub fn take() -> io::Result<Self> {
        let mut taken = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGWINCH] {
            taken.add(signal);
        }
        taken.thread_block()?;
        Ok(Self(SignalFd::with_flags(&taken, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// The next one; `None`: there is none now.
    pub fn next(&self) -> Option<Told> {
        let signal = self.0.read_signal().ok().flatten()?.ssi_signo.cast_signed();
        Some(if signal == Signal::SIGWINCH as i32 { Told::Resized } else { Told::End(signal) })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// How the terminal was, while it is raw.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// The command's terminal hands over each key as it is.
#[derive(Debug)]
pub struct RawTerminal(());

impl RawTerminal {
    /// Makes standard input's terminal raw.
    ///
    /// # Errors
    /// It is no terminal.
    pub fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        if let Ok(mut kept) = BEFORE.lock() {
            *kept = Some(before);
        }
        // a panic may end the process without a drop
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            others(panic);
        }));
        tcsetattr(io::stdin(), SetArg::TCSADRAIN, &raw)?;
        Ok(Self(()))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    // a panic while it is held finds nothing to wait for
    if let Ok(mut kept) = BEFORE.try_lock()
        && let Some(before) = kept.take()
    {
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &before);
    }
}
