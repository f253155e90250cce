//! A socket with a deadline for a peer that stops reading, and a lingering close for a peer that still sends.
//!
//! Reads may wait for ever (an idle watch reads nothing); a write that makes no progress for [`STALL`] fails,
//! so a client that vanished or never reads holds its buffers for a minute, not until the kernel's timeout of
//! a quarter of an hour. A session has a longer deadline: a person may read its output in a pager, or a
//! program may wait for other work.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use kedge_platform::linux::probe_idle_peer;
use kedge_platform::streams::{Awaited, is_ready};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// Time in which a write must make progress. It is well above the pauses of a bad radio link.
const STALL: Duration = Duration::from_secs(60);
/// The same for a session. If the peer vanished, unanswered probes end a session sooner.
const SESSION_STALL: Duration = Duration::from_secs(4 * 60 * 60);

/// Most bytes that a refused caller may still send before it is cut off: five times the largest body.
const LINGER_BYTES: usize = 16 * 1024 * 1024;
/// After so long without a byte a session's peer is probed, at intervals, until several probes are
/// unanswered: a peer that lost its power ends the session after two and a half minutes.
const PROBE_AFTER: Duration = Duration::from_secs(75);
const PROBE_INTERVAL: Duration = Duration::from_secs(15);
const PROBES: u32 = 5;
/// Time between two checks of a peer that is neither read nor written to, so that its place is freed soon
/// after it left. Short in tests, so that they need not wait.
const LOOK: Duration = if cfg!(test) { Duration::from_millis(10) } else { Duration::from_secs(1) };
/// Longest time and longest pause of a lingering close; nginx's `lingering_time` and `lingering_timeout`.
const LINGER_TIME: Duration = Duration::from_secs(30);
const LINGER_PAUSE: Duration = Duration::from_secs(5);
/// Size of the buffer for discarded bytes.
const LINGER_BUFFER: usize = 8 * 1024;

/// Discards the bytes that the peer sends after our last answer, until it has closed or a limit is reached.
/// Closing a socket with unread bytes resets the connection, and a reset discards the answer that the peer
/// has not read yet.
pub(super) async fn linger(stream: &mut (impl AsyncRead + Unpin)) {
    let mut space = vec![0; LINGER_BUFFER];
    let reading = async {
        let mut room = LINGER_BYTES;
        while room > 0 {
            match tokio::time::timeout(LINGER_PAUSE, stream.read(&mut space)).await {
                Ok(Ok(read @ 1..)) => room = room.saturating_sub(read),
                _ => return,
            }
        }
    };
    // not an error: the time limit has passed
    let _ = tokio::time::timeout(LINGER_TIME, reading).await;
}

/// A second descriptor of a connection, which shows that its peer has left even while earlier bytes are
/// unread.
#[derive(Debug)]
pub(super) struct Eye(OwnedFd);

impl Eye {
    /// `None`: the system has no free descriptor.
    pub(super) fn of(stream: &Stalling) -> Option<Eye> {
        stream.socket.as_fd().try_clone_to_owned().ok().map(Eye)
    }

    fn sees_end(&self) -> bool {
        is_ready(Awaited::end(&self.0))
    }

    /// A reset, after which no more bytes arrive.
    fn sees_break(&self) -> bool {
        is_ready(Awaited::broken(&self.0))
    }
}

/// How long a peer may read nothing, and whether it is still there; clones share the state.
#[derive(Debug, Clone, Default)]
pub(super) struct Patience(Arc<Peer>);

#[derive(Debug, Default)]
struct Peer {
    is_of_session: AtomicBool,
    eye: Mutex<Option<Arc<Eye>>>,
}

impl Patience {
    /// From now on the deadlines of a session apply.
    pub(super) fn of_session(&self) {
        self.0.is_of_session.store(true, Ordering::Relaxed);
    }

    fn is_of_session(&self) -> bool {
        self.0.is_of_session.load(Ordering::Relaxed)
    }

    fn eye(&self) -> MutexGuard<'_, Option<Arc<Eye>>> {
        // one value is put in or taken out, so a panic of another thread leaves it valid
        self.0.eye.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Observes the peer until the returned value is dropped, which closes the descriptor.
    pub(super) fn look(&self, eye: Option<Eye>) -> Looking {
        *self.eye() = eye.map(Arc::new);
        Looking(self.clone())
    }

    /// Resolves when the peer has left this long ago, at most a second later, or has reset the connection;
    /// never while the peer is not observed.
    pub(super) async fn left_for(&self, time: Duration) {
        let mut since = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let eye = self.eye().clone();
            let Some(eye) = eye else { return std::future::pending().await };
            let mut is_over = || since.get_or_insert_with(Instant::now).elapsed() >= time;
            if eye.sees_break() || (eye.sees_end() && is_over()) {
                return;
            }
        }
    }

    fn time(&self) -> Duration {
        if self.is_of_session() { SESSION_STALL } else { STALL }
    }
}

/// Observes a peer until it is dropped; see [`Patience::look`].
pub(super) struct Looking(Patience);

impl Drop for Looking {
    fn drop(&mut self) {
        *self.0.eye() = None;
    }
}

pub(super) struct Stalling {
    socket: TcpStream,
    patience: Patience,
    /// The kernel probes the peer; only in a session, because elsewhere each probe would cost an idle node
    /// bytes.
    is_probed: bool,
    /// The deadline while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Stalling {
    pub(super) fn new(socket: TcpStream) -> Stalling {
        Stalling { socket, patience: Patience::default(), is_probed: false, stalled: None }
    }

    pub(super) fn patience(&self) -> Patience {
        self.patience.clone()
    }

    fn watched<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match write(Pin::new(&mut self.socket), context) {
            Poll::Ready(result) => {
                self.stalled = None;
                Poll::Ready(result)
            }
            Poll::Pending => {
                let time = self.patience.time();
                let timer = self
                    .stalled
                    .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + time)));
                match timer.as_mut().poll(context) {
                    Poll::Ready(()) => {
                        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer reads nothing")))
                    }
                    Poll::Pending => Poll::Pending,
                }
            }
        }
    }
}

impl AsyncRead for Stalling {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.is_probed && self.patience.is_of_session() {
            self.is_probed = true;
            // without probes the time limits remain
            let _ = probe_idle_peer(&self.socket, PROBE_AFTER, PROBE_INTERVAL, PROBES);
        }
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stalling {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.watched(context, |socket, context| socket.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.watched(context, |socket, context| socket.poll_write_vectored(context, buffers))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.watched(context, |socket, context| socket.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.watched(context, |socket, context| socket.poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn peer_that_left_is_seen_behind_unread_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let stream = Stalling::new(listener.accept().await.unwrap().0);
        let patience = stream.patience();
        let looking = patience.look(Eye::of(&stream));
        peer.write_all(b"unread").await.unwrap();
        tokio::select! {
            () = patience.left_for(Duration::ZERO) => panic!("it is there"),
            () = tokio::time::sleep(2 * LOOK) => {}
        }
        drop(peer);
        patience.left_for(Duration::ZERO).await;
        drop(looking);
        assert!(patience.eye().is_none(), "the descriptor is given back");
    }
}
