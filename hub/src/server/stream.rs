//! A socket that gives up on a peer that stops reading.
//!
//! Reads may wait for ever (an idle watch reads nothing); a write that makes no progress for [`STALL`] fails, so a client that
//! vanished or never reads holds its buffers for a minute, not until the kernel's timeout of a quarter of an hour.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// A write must make progress in this time. Well above the pauses of a bad radio link.
const STALL: Duration = Duration::from_secs(60);

/// See the module.
pub(super) struct Stalling {
    socket: TcpStream,
    /// Set while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Stalling {
    pub(super) fn new(socket: TcpStream) -> Stalling {
        Stalling { socket, stalled: None }
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
                let timer = self
                    .stalled
                    .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + STALL)));
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
