//! Waiting for several streams at once, and the terminal of a command.
//!
//! Always holds: a terminal that was made raw is restored when its [`RawTerminal`] is dropped, and by a
//! panic; a signal that would end the command or resize its terminal is returned as an event, and does not
//! interrupt it.
//!
//! Leaves to others: moving data between the streams.

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

/// A stream, and the event that is awaited on it. Without flags, only the end of its other side is awaited.
#[derive(Debug)]
pub struct Awaited<'a> {
    stream: BorrowedFd<'a>,
    wants: PollFlags,
    found: PollFlags,
}

/// The other side has stopped writing; nix has no name for this flag.
const ENDS: PollFlags = PollFlags::from_bits_retain(libc::POLLRDHUP);
/// Flags of a stream whose other side is gone.
const GONE: PollFlags = PollFlags::POLLHUP.union(ENDS).union(PollFlags::POLLERR);

impl<'a> Awaited<'a> {
    fn new(stream: &'a impl AsFd, wants: PollFlags) -> Self {
        Self { stream: stream.as_fd(), wants, found: PollFlags::empty() }
    }

    /// Waits until the stream can be read, or has ended.
    pub fn read(stream: &'a impl AsFd) -> Self {
        Self::new(stream, PollFlags::POLLIN)
    }

    /// Waits until there is room to write, or the reader is gone.
    pub fn write(stream: &'a impl AsFd) -> Self {
        Self::new(stream, PollFlags::POLLOUT)
    }

    /// Waits until its other side is gone.
    pub fn end(stream: &'a impl AsFd) -> Self {
        Self::new(stream, ENDS)
    }

    /// Waits until both of its directions are closed, as by a reset.
    pub fn broken(stream: &'a impl AsFd) -> Self {
        Self::new(stream, PollFlags::empty())
    }

    /// After [`wait`]: an event occurred.
    pub fn is_ready(&self) -> bool {
        !self.found.is_empty()
    }

    /// After [`wait`]: only its end was awaited, and its other side is gone.
    pub fn has_ended(&self) -> bool {
        self.wants == ENDS && self.found.intersects(GONE)
    }
}

/// Waits until an awaited event occurs, or until the time is over; may return early.
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
    // nix returns `None` if there is a flag that it has no name for
    let found: Vec<PollFlags> = polled.iter().map(|it| it.revents().unwrap_or(ENDS)).collect();
    awaited.iter_mut().zip(found).for_each(|(it, found)| it.found = found);
    Ok(())
}

/// True if the event has already occurred; does not wait.
pub fn is_ready(mut awaited: Awaited<'_>) -> bool {
    wait(std::slice::from_mut(&mut awaited), Some(Duration::ZERO)).is_ok() && awaited.is_ready()
}

/// A signal to a command that works in a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It must end.
    End(i32),
    /// Its terminal has another size.
    Resized,
}

/// The signals of a command, as a stream.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// From now on these signals have no effect by themselves. Call it before other threads begin.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn take() -> io::Result<Self> {
        let mut taken = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGWINCH] {
            taken.add(signal);
        }
        taken.thread_block()?;
        Ok(Self(SignalFd::with_flags(&taken, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// The next signal; `None` if none is pending.
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

/// The settings of the terminal before it was made raw.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// A raw terminal, which passes each key to the command unchanged.
#[derive(Debug)]
pub struct RawTerminal(());

impl RawTerminal {
    /// Makes standard input's terminal raw.
    ///
    /// # Errors
    /// It is not a terminal.
    pub fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        if let Ok(mut kept) = BEFORE.lock() {
            *kept = Some(before);
        }
        // a panic may end the process without dropping this value
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
    // tried without waiting, because the panic may have occurred while the lock is held
    if let Ok(mut kept) = BEFORE.try_lock()
        && let Some(before) = kept.take()
    {
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &before);
    }
}
