//! Serves a session on the connection of its client, in place of the HTTP library.

use crate::server::calls::program::Length;
use crate::server::calls::relay::{Frames, IDLE, LINGER, PIECE_BYTES, Pieces, Relay, Side, Source, What};
use crate::server::detached_watch::Manner;
use crate::server::link::{Link, head_text};
use crate::server::respond::Body;
use crate::server::stream;
use http::Response;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout};

/// A relay whose answer has yet to be written.
pub(crate) struct Kept {
    pub(crate) head: http::response::Parts,
    pub(crate) relay: Box<Relay>,
    pub(crate) chunks: bool,
}

/// The place in a connection for a relay that will be detached.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<Option<Kept>>);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Option<Kept>> {
        // one value is put in or taken out, so a panic of another thread leaves it valid
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the answer if it is a relay; returns any other.
    pub(crate) fn keep(&self, response: Response<Body>, manner: Manner) -> Option<Response<Body>> {
        let (head, body) = response.into_parts();
        match body {
            Body::Relay(relay) => {
                *self.lock() = Some(Kept { head, relay, chunks: manner.chunks });
                None
            }
            body => Some(Response::from_parts(head, body)),
        }
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.lock().is_some()
    }

    pub(crate) fn take(&self) -> Option<Kept> {
        self.lock().take()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Link<S> {
    /// Serves a session to its end, and with it the connection.
    pub(crate) async fn relay(&mut self, kept: Kept) -> io::Result<()> {
        let Kept { head, relay, chunks } = kept;
        let Relay { source, standing, mut side, .. } = *relay;
        let over = async {
            match standing {
                Some(mut standing) => std::future::poll_fn(|context| standing.poll_over(context)).await,
                None => std::future::pending().await,
            }
        };
        let version = if chunks { "HTTP/1.1" } else { "HTTP/1.0" };
        let mut text = head_text(version, &head);
        let relaying = async {
            match source {
                Source::Node(stream, What::Raw { early }) => {
                    text.extend_from_slice(b"\r\n");
                    text.extend_from_slice(&early);
                    self.write(&text).await?;
                    self.pass_raw(stream, &mut side).await
                }
                Source::Node(stream, What::Body(body)) => {
                    let length = Length::Chunks;
                    self.write_answer(text, (stream, body), length, chunks).await
                }
                Source::Program(answer) => {
                    let length = answer.length();
                    self.write_answer(text, answer, length, chunks).await
                }
                Source::Node(stream, What::Messages(body, messages)) => {
                    text.extend_from_slice(b"\r\n");
                    // as upstream: the client may wait for this empty message to know that the session is
                    // open
                    text.extend(messages.frame(b""));
                    self.write(&text).await?;
                    self.pass_body((stream, body), Frames::Messages(messages)).await
                }
            }
        };
        tokio::select! {
            relayed = relaying => relayed,
            // the mark of a complete answer is omitted, so the client sees that it was cut off
            () = over => Ok(()),
        }
    }

    /// `text`: the head, without the headers that state how the body ends.
    async fn write_answer(
        &mut self,
        mut text: Vec<u8>,
        body: impl Pieces,
        length: Length,
        knows_chunks: bool,
    ) -> io::Result<()> {
        let frames = match length {
            Length::Bytes(bytes) => {
                text.extend_from_slice(format!("content-length: {bytes}\r\n").as_bytes());
                Frames::None
            }
            Length::Chunks if knows_chunks => {
                text.extend_from_slice(b"transfer-encoding: chunked\r\n");
                Frames::Chunks
            }
            Length::Chunks | Length::Unknown => Frames::None,
        };
        text.extend_from_slice(b"connection: close\r\n\r\n");
        self.write(&text).await?;
        self.pass_body(body, frames).await
    }

    async fn pass_body(&mut self, mut body: impl Pieces, frames: Frames) -> io::Result<()> {
        loop {
            let piece = tokio::select! {
                piece = body.next_piece() => piece?,
                gone = std::future::poll_fn(|context| self.poll_gone(None, context)) => return gone,
                () = tokio::time::sleep(IDLE) => return Ok(()),
            };
            let Some(piece) = piece else { break };
            self.write(&frames.piece(piece)).await?;
        }
        self.write(frames.end()).await?;
        self.shut_down().await
    }

    async fn pass_raw(&mut self, stream: DuplexStream, side: &mut Side) -> io::Result<()> {
        self.read_everything();
        let passed = Passed::new();
        let (mut link_in, mut link_out) = tokio::io::split(self);
        let (mut stream_in, mut stream_out) = tokio::io::split(stream);
        let is_of_node = matches!(side, Side::Node(_));
        {
            let forth = passed.copy(&mut link_in, &mut stream_out);
            let back = passed.copy(&mut stream_in, &mut link_out);
            tokio::pin!(forth, back);
            tokio::select! {
                done = &mut back => done?,
                done = &mut forth => match done {
                    // the node has closed, and its answer may still be on its way to a slow client
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe && !is_of_node => back.await?,
                    Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
                    _ => timeout(LINGER, back).await.unwrap_or(Ok(()))?,
                },
                // writing alone would not notice that the client has left, if the node reads nothing
                () = asker_left(side) => timeout(LINGER, back).await.unwrap_or(Ok(()))?,
                () = passed.idle() => return Ok(()),
            }
        }
        if !is_of_node {
            // closed while the client still sends, the connection would be reset, and unread bytes of the
            // answer lost
            let _ = timeout(LINGER, stream::linger(&mut link_in)).await;
        }
        Ok(())
    }
}

/// Resolves on the node's side when the client has left.
pub(super) async fn asker_left(side: &mut Side) {
    match side {
        Side::Node(asks) => {
            let _ = asks.await;
        }
        Side::Client { .. } => std::future::pending().await,
    }
}

/// The time of the last traffic.
pub(super) struct Passed {
    began: Instant,
    at_secs: AtomicU64,
}

impl Passed {
    fn new() -> Passed {
        Passed { began: Instant::now(), at_secs: AtomicU64::new(0) }
    }

    async fn copy(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let amount = from.read(&mut piece).await?;
            if amount == 0 {
                return to.shutdown().await;
            }
            to.write_all(&piece[..amount]).await?;
            to.flush().await?;
            self.at_secs.store(self.began.elapsed().as_secs(), Ordering::Relaxed);
        }
    }

    /// Returns when nothing has passed for too long.
    async fn idle(&self) {
        loop {
            let end = self.began + Duration::from_secs(self.at_secs.load(Ordering::Relaxed)) + IDLE;
            if end <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}
