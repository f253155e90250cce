//! The bytes of a connection; the HTTP library may read one request of them at a time.
//!
//! Between requests a connection consists of only this: no buffers of the library, and the bytes received of
//! the next head. Always holds: the library reads no byte beyond the request that [`Link::next_request`]
//! found, so `head` checks each head first, and early bytes wait here. Nothing is read while an answer is
//! made, so a request whose client leaves is still carried out and audited.

use crate::server::respond::Body;
use hyper::body::{Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;

use bytes::Bytes;
use kedge_hub_core::api_error::ApiError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

use super::head::{self, Framing};
use super::respond;
use super::stream::{self, Eye};

/// Time in which a head must be complete, from its first byte on.
const HEAD_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes that TLS buffers for a client that does not read: a record and its frame. All others wait where they
/// are counted.
pub(super) const TLS_BYTES: usize = 20 * 1024;
/// Bytes that the kernel accepts beyond those that it can send. Without this limit it would keep megabytes
/// for each connection, in memory of the hub's control group.
pub(super) const UNSENT_BYTES: u32 = 16 * 1024;
/// Bytes per read between requests: a head with a small body, as of a renewal.
const READ_BYTES: usize = 2 * 1024;

/// A connection that is passed between requests, the HTTP library, and watches.
pub(super) struct Link<S> {
    stream: S,
    eye: fn(&S) -> Option<Eye>,
    /// Bytes that were received and not yet passed to the library.
    early: Vec<u8>,
    /// The bytes that the library may still read.
    readable: Readable,
    progress: Progress,
}

#[derive(Debug, Clone, Copy)]
enum Readable {
    Bytes(usize),
    Everything,
}

/// The state of the answer to a request.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    /// Bytes were written that are not flushed yet. hyper flushes after each answer that it encodes, so a
    /// flushed link means that its write buffer is empty.
    unflushed: AtomicBool,
    /// The library has received the whole body of the answer.
    sent: AtomicBool,
}

impl Progress {
    /// Notes that the library has received the whole body of the answer.
    pub(super) fn sent(&self) {
        self.0.sent.store(true, Ordering::Relaxed);
    }

    /// True if the whole answer is sent.
    pub(super) fn is_over(&self) -> bool {
        self.0.sent.load(Ordering::Relaxed) && !self.0.unflushed.load(Ordering::Relaxed)
    }
}

/// The next event on a connection.
pub(super) enum Next {
    /// A request; `chunks`: its body is in chunks.
    Request { chunks: bool },
    /// An improper request.
    Refused(ApiError),
    /// The client has left, or sent nothing for too long.
    Gone,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Link<S> {
    pub(super) fn new(stream: S) -> Link<S> {
        Link::seen_by(stream, |_| None)
    }

    /// The same for a stream whose peer can be observed.
    pub(super) fn seen_by(stream: S, eye: fn(&S) -> Option<Eye>) -> Link<S> {
        Link { stream, eye, early: Vec::new(), readable: Readable::Bytes(0), progress: Progress::default() }
    }

    /// A second descriptor, to observe whether the peer is still there.
    pub(super) fn eye(&self) -> Option<Eye> {
        (self.eye)(&self.stream)
    }

    /// The progress of the next answer, to be observed while hyper owns the stream.
    pub(super) fn progress(&self) -> Progress {
        self.progress.0.sent.store(false, Ordering::Relaxed);
        self.progress.clone()
    }

    pub(super) fn stream(&self) -> &S {
        &self.stream
    }

    /// The connection itself, and the bytes that arrived early.
    #[cfg(test)]
    pub(super) fn into_parts(self) -> (Vec<u8>, S) {
        (self.early, self.stream)
    }

    /// Waits for the head of the next request, which must begin in time, and lets the library read that
    /// request.
    pub(super) async fn next_request(&mut self, idle: Duration) -> io::Result<Next> {
        if self.early.is_empty() {
            match timeout(idle, self.receive()).await {
                Ok(received) => {
                    if received? == 0 {
                        return Ok(Next::Gone);
                    }
                }
                Err(_) => {
                    self.shut_down().await?;
                    return Ok(Next::Gone);
                }
            }
        }
        match timeout(HEAD_TIMEOUT, self.head()).await {
            Ok(next) => next,
            Err(_) => Ok(Next::Refused(ApiError::timeout("the head of the request took too long"))),
        }
    }

    async fn head(&mut self) -> io::Result<Next> {
        let mut seen = 0;
        loop {
            match head::framing(&self.early, seen) {
                Ok(Some(Framing::Bytes(bytes))) => {
                    self.readable = Readable::Bytes(bytes);
                    return Ok(Next::Request { chunks: false });
                }
                Ok(Some(Framing::Chunks)) => {
                    self.readable = Readable::Everything;
                    return Ok(Next::Request { chunks: true });
                }
                Ok(None) => seen = self.early.len(),
                Err(refused) => return Ok(Next::Refused(refused)),
            }
            if self.receive().await? == 0 {
                return Ok(Next::Gone);
            }
        }
    }

    /// The request that was found, if it has been received completely.
    pub(super) fn whole_request(&self) -> Option<&[u8]> {
        match self.readable {
            Readable::Bytes(bytes) => self.early.get(..bytes),
            Readable::Everything => None,
        }
    }

    /// Skips the request that was found, because it is answered without the library.
    pub(super) fn skip_request(&mut self) {
        if let Readable::Bytes(bytes) = std::mem::replace(&mut self.readable, Readable::Bytes(0)) {
            drop_front(&mut self.early, bytes);
        }
    }

    /// From here on the reader gets all bytes.
    pub(super) fn read_everything(&mut self) {
        self.readable = Readable::Everything;
    }

    /// The bytes of a request, or of its beginning.
    pub(super) fn early(&self) -> &[u8] {
        &self.early
    }

    /// Receives the rest of a request of at most `most` bytes. If the rest does not arrive in time, the
    /// received part is kept.
    pub(super) async fn receive_rest(&mut self, most: usize, time: Duration) -> io::Result<()> {
        let Readable::Bytes(bytes) = self.readable else { return Ok(()) };
        let rest = async {
            while self.early.len() < bytes && bytes <= most {
                if self.receive().await? == 0 {
                    break;
                }
            }
            Ok(())
        };
        timeout(time, rest).await.unwrap_or(Ok(()))
    }

    /// Receives more bytes; returns their number, 0 at the end.
    async fn receive(&mut self) -> io::Result<usize> {
        std::future::poll_fn(|context| self.poll_receive(context, READ_BYTES)).await
    }

    fn poll_receive(&mut self, context: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        let mut space = [0; READ_BYTES];
        let mut read = ReadBuf::new(&mut space[..most.min(READ_BYTES)]);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut read))?;
        self.early.extend_from_slice(read.filled());
        Poll::Ready(Ok(read.filled().len()))
    }

    /// Resolves when the client leaves. Bytes that it sends are kept for the next request, up to `keep`;
    /// dropped if that is `None`.
    pub(super) fn poll_gone(
        &mut self,
        keep: Option<usize>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while keep.is_none_or(|most| self.early.len() < most) {
            let room = keep.map_or(READ_BYTES, |most| most - self.early.len());
            if ready!(self.poll_receive(context, room))? == 0 {
                return Poll::Ready(Ok(()));
            }
            if keep.is_none() {
                self.early.clear();
            }
        }
        Poll::Pending
    }

    /// Writes these bytes and flushes.
    pub(super) async fn write(&mut self, text: &[u8]) -> io::Result<()> {
        self.stream.write_all(text).await?;
        self.stream.flush().await
    }

    /// Passes these bytes on, to wait in TLS until they are sent.
    pub(super) async fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Resolves when all written bytes are sent.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        self.stream.flush().await
    }

    /// Answers an error without the library, as the last answer of the connection.
    pub(super) async fn refuse(&mut self, error: &ApiError) -> io::Result<()> {
        let mut refusal = respond::hang_up(respond::error(error));
        respond::date(&mut refusal);
        let (head, body) = refusal.into_parts();
        let body: Bytes = match body {
            Body::Parts(parts) => parts.into_iter().flatten().collect(),
            _ => Bytes::new(),
        };
        let mut text = head_text("HTTP/1.1", &head);
        text.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        text.extend_from_slice(&body);
        self.write(&text).await?;
        self.shut_down().await?;
        self.linger().await;
        Ok(())
    }

    /// See [`stream::linger`].
    pub(super) async fn linger(&mut self) {
        stream::linger(&mut self.stream).await;
    }

    /// Closes TLS properly, so that the client knows that the answer is complete.
    pub(super) async fn shut_down(&mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }
}

/// Drops the first bytes, and frees the buffer with the last ones: an idle connection must hold none.
fn drop_front(early: &mut Vec<u8>, bytes: usize) {
    early.drain(..bytes);
    if early.is_empty() {
        *early = Vec::new();
    }
}

/// The lines of an answer's head, without the last, empty one.
pub(super) fn head_text(version: &str, head: &http::response::Parts) -> Vec<u8> {
    let mut text = version.as_bytes().to_vec();
    text.push(b' ');
    text.extend_from_slice(head.status.as_str().as_bytes());
    text.push(b' ');
    text.extend_from_slice(head.status.canonical_reason().unwrap_or_default().as_bytes());
    text.extend_from_slice(b"\r\n");
    for (name, value) in &head.headers {
        text.extend_from_slice(name.as_str().as_bytes());
        text.extend_from_slice(b": ");
        text.extend_from_slice(value.as_bytes());
        text.extend_from_slice(b"\r\n");
    }
    text
}

/// The library's view: the request that was found, and no byte after it.
impl<S: AsyncRead + Unpin> AsyncRead for Link<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let most = match this.readable {
            // not woken: the request is complete, and the client's next bytes matter only after the answer
            Readable::Bytes(0) => return Poll::Pending,
            Readable::Bytes(bytes) => bytes.min(buffer.remaining()),
            Readable::Everything => buffer.remaining(),
        };
        let read = if this.early.is_empty() {
            let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut part))?;
            let read = part.filled().len();
            buffer.advance(read);
            read
        } else {
            let read = most.min(this.early.len());
            buffer.put_slice(&this.early[..read]);
            drop_front(&mut this.early, read);
            read
        };
        if let Readable::Bytes(bytes) = &mut this.readable {
            *bytes -= read;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Link<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.progress.0.unflushed.store(true, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.progress.0.unflushed.store(true, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.progress.0.unflushed.store(false, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A body that is being sent; it reports when the HTTP library has received all of it.
pub(super) struct Sending {
    body: Body,
    progress: Progress,
}

impl Sending {
    pub(super) fn new(body: Body, progress: Progress) -> Sending {
        Sending { body, progress }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.progress.sent();
    }
}

impl hyper::body::Body for Sending {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::caller::IDLE;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn answer_is_over_when_all_of_it_is_flushed() {
        let (_client, server) = tokio::io::duplex(8);
        let mut link = Link::new(server);
        let progress = link.progress();
        assert!(!progress.is_over());
        link.write_all(b"1234").await.unwrap();
        progress.sent();
        assert!(!progress.is_over());
        AsyncWriteExt::flush(&mut link).await.unwrap();
        assert!(progress.is_over());
        assert!(!link.progress().is_over(), "the next answer is another one");
    }

    #[tokio::test]
    async fn library_reads_one_request_at_a_time() {
        let (mut client, server) = tokio::io::duplex(4096);
        let mut link = Link::new(server);
        let first = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody";
        let second = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        client.write_all(&first.as_bytes()[..first.len() - 2]).await.unwrap();
        assert!(matches!(link.next_request(IDLE).await.unwrap(), Next::Request { chunks: false }));
        client.write_all(format!("dy{second}").as_bytes()).await.unwrap();
        for request in [first, second] {
            let mut read = vec![0; request.len()];
            link.read_exact(&mut read).await.unwrap();
            assert_eq!(String::from_utf8(read).unwrap(), request);
            let mut more = [0; 1];
            let beyond = std::future::poll_fn(|context| {
                Poll::Ready(Pin::new(&mut link).poll_read(context, &mut ReadBuf::new(&mut more)).is_ready())
            });
            assert!(!beyond.await, "nothing more is read");
            if request == first {
                assert!(matches!(link.next_request(IDLE).await.unwrap(), Next::Request { chunks: false }));
            }
        }
    }

    #[tokio::test]
    async fn connection_that_is_not_used_ends() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut link = Link::new(server);
        assert!(matches!(link.next_request(Duration::ZERO).await.unwrap(), Next::Gone));
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "closed in order");
    }

    #[tokio::test]
    async fn head_that_is_too_large_is_refused() {
        let (mut client, server) = tokio::io::duplex(4096);
        let mut link = Link::new(server);
        let sending = async {
            let _ = client.write_all(&vec![b'x'; 2 * head::MAX_HEAD_BYTES]).await;
        };
        tokio::select! {
            next = link.next_request(IDLE) => assert!(matches!(next.unwrap(), Next::Refused(error) if error.code == 431)),
            () = sending => unreachable!("the link does not read that much"),
        }
        assert!(link.early().len() <= head::MAX_HEAD_BYTES + READ_BYTES);
    }
}
