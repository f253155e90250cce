//! Detached watches: written without the HTTP library, so that an idle one does not hold its buffers, 16 KiB
//! a connection. A fleet is thousands of idle watches.
//!
//! hyper's connection is detached before it has written anything, and given back after the watch; bytes that
//! the client sends meanwhile are kept for the next request. Always holds: the answer is one HTTP response,
//! chunked if the client supports that, and the byte stream is identical to what hyper would have produced. A
//! client that reads nothing costs one TLS record, whatever the watch shows: a stored object is copied from
//! its own text into records, and a text made only for this watch is charged to its caller. Left to others:
//! the events and the end of the watch (`watch`).

use std::future::poll_fn;
use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Response;
use kedge_hub_core::loans::Loan;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};

use super::link::{Link, head_text};
use super::respond::Body;
use super::watch::{Line, Stored, WatchStream};
use crate::memory::Held;

/// Most bytes kept of those that a client sends during a watch: a whole request fits. No more is read until
/// the watch has ended.
const EARLY_BYTES: usize = 1024;
/// Bytes of events that are written together: a TLS record.
const RECORD_BYTES: usize = 16 * 1024;
/// Time for the remaining bytes when the watch's time is over. Then it is cut off: otherwise a client that
/// reads a byte now and then could keep it open for ever.
const LAST_WRITE: Duration = Duration::from_secs(60);

impl<S: AsyncRead + AsyncWrite + Unpin> Link<S> {
    /// Writes a watch until its end; returns true if the connection can be reused.
    pub(super) async fn write_watch(&mut self, answer: Answer) -> io::Result<bool> {
        let reader = Arc::clone(answer.watch.reader());
        tokio::select! {
            biased;
            // the mark of a complete answer is omitted, so the client sees that it was cut off
            () = poll_fn(|context| reader.poll_over(context)) => Ok(false),
            written = self.write_lines(answer) => written,
        }
    }

    async fn write_lines(&mut self, answer: Answer) -> io::Result<bool> {
        let Answer { head, mut watch, manner, cut } = answer;
        let mut text = Text { bytes: head_of(&head, manner), long: None };
        drop(head);
        loop {
            let next = poll_fn(|context| self.poll_next(&mut watch, manner, &mut text, context)).await?;
            match next {
                Next::Gone => return Ok(false),
                Next::Write => self.write_text(cut, &mut text, manner).await?,
                Next::Last => break,
            }
        }
        if manner.chunks {
            text.bytes.extend_from_slice(b"0\r\n\r\n");
        }
        self.write_text(cut, &mut text, manner).await?;
        if manner.closes {
            self.shut_down().await?;
        }
        Ok(!manner.closes)
    }

    /// Writes the text, and then the long line at its end. Bytes after that line become the beginning of the
    /// next text.
    async fn write_text(&mut self, end: Instant, text: &mut Text, manner: Manner) -> io::Result<()> {
        let Text { bytes, long } = std::mem::take(text);
        let writing = async {
            self.write_bytes(&bytes).await?;
            // freed, because TLS now has a copy: bytes for a slow client wait there
            drop(bytes);
            let Some(Long { line, written }) = long else { return self.flush().await };
            for part in line.bytes()[written..].chunks(RECORD_BYTES) {
                self.write_bytes(part).await?;
            }
            text.end_line(&line, manner);
            Ok(())
        };
        let too_slow =
            || io::Error::new(io::ErrorKind::TimedOut, "the watch is over, and its client too slow");
        timeout_at(end, writing).await.unwrap_or_else(|_| Err(too_slow()))
    }

    fn poll_next(
        &mut self,
        watch: &mut WatchStream,
        manner: Manner,
        text: &mut Text,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Next>> {
        while text.bytes.len() < RECORD_BYTES && text.long.is_none() {
            match watch.poll_next(context) {
                Poll::Ready(Some(line)) => {
                    if !text.add(line, manner, watch) {
                        return Poll::Ready(Ok(Next::Last));
                    }
                }
                Poll::Ready(None) => return Poll::Ready(Ok(Next::Last)),
                Poll::Pending => break,
            }
        }
        if !text.bytes.is_empty() {
            return Poll::Ready(Ok(Next::Write));
        }
        let keep = (!manner.closes).then_some(EARLY_BYTES);
        self.poll_gone(keep, context).map_ok(|()| Next::Gone)
    }
}

enum Next {
    /// Bytes to write.
    Write,
    /// The last bytes to write.
    Last,
    /// The client has left.
    Gone,
}

/// The head of an answer of unknown length.
fn head_of(head: &http::response::Parts, manner: Manner) -> Vec<u8> {
    let mut text = head_text(if manner.chunks { "HTTP/1.1" } else { "HTTP/1.0" }, head);
    if manner.chunks {
        text.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    if manner.closes {
        text.extend_from_slice(b"connection: close\r\n");
    }
    text.extend_from_slice(b"\r\n");
    text
}

/// The bytes to write next.
#[derive(Debug, Default)]
struct Text {
    bytes: Vec<u8>,
    /// The last line, if it is too long to be copied into `bytes`.
    long: Option<Long>,
}

/// A line that is partly written.
#[derive(Debug)]
struct Long {
    line: Content,
    written: usize,
}

/// The content of a line, without the JSON around it.
#[derive(Debug)]
enum Content {
    /// An object, from its own text.
    Stored(Loan),
    /// A text made for this watch, and the bytes charged to its client.
    Made { text: Vec<u8>, _held: Option<Held> },
}

impl Content {
    fn bytes(&self) -> &[u8] {
        match self {
            Content::Stored(object) => &object.json,
            Content::Made { text, .. } => text,
        }
    }
}

impl Text {
    /// Adds a line, or its first part. `false`: the client's budget does not allow it.
    fn add(&mut self, line: Line, manner: Manner, watch: &WatchStream) -> bool {
        let length = line.len();
        let held = match &line {
            Line::Text(text) if text.len() > RECORD_BYTES => match watch.reader().hold(length) {
                Some(held) => Some(held),
                None => return false,
            },
            _ => None,
        };
        if manner.chunks {
            // writing to memory does not fail
            let _ = write!(self.bytes, "{length:x}\r\n");
        }
        let line = match line {
            Line::Stored(stored) => {
                stored.head().for_each(|part| self.bytes.extend_from_slice(part));
                Content::Stored(stored.object)
            }
            Line::Text(text) => Content::Made { text, _held: held },
        };
        let room = RECORD_BYTES.saturating_sub(self.bytes.len());
        let written = line.bytes().len().min(room);
        self.bytes.extend_from_slice(&line.bytes()[..written]);
        if written == line.bytes().len() {
            self.end_line(&line, manner);
        } else {
            self.long = Some(Long { line, written });
        }
        true
    }

    /// Appends the end of a line.
    fn end_line(&mut self, line: &Content, manner: Manner) {
        if matches!(line, Content::Stored(_)) {
            self.bytes.extend_from_slice(Stored::END);
        }
        if manner.chunks {
            self.bytes.extend_from_slice(b"\r\n");
        }
    }
}

/// How a watch is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Manner {
    /// In chunks; an HTTP/1.0 client reads until the connection's end.
    pub(super) chunks: bool,
    /// The connection is closed after it.
    pub(super) closes: bool,
}

/// The answer to a watch.
#[derive(Debug)]
pub(super) struct Answer {
    head: http::response::Parts,
    watch: Box<WatchStream>,
    manner: Manner,
    /// The time after which nothing more is written.
    cut: Instant,
}

/// The place in a connection for a watch that will be detached.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<Option<Answer>>);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Option<Answer>> {
        // one value is put in or taken out, so a panic of another thread leaves it valid
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the answer if it is a watch; returns any other.
    pub(super) fn keep(&self, response: Response<Body>, manner: Manner) -> Option<Response<Body>> {
        let (head, body) = response.into_parts();
        match body {
            Body::Watch(watch) => {
                let cut = watch.deadline() + LAST_WRITE;
                *self.lock() = Some(Answer { head, watch, manner, cut });
                None
            }
            body => Some(Response::from_parts(head, body)),
        }
    }

    pub(super) fn is_kept(&self) -> bool {
        self.lock().is_some()
    }

    pub(super) fn take(&self) -> Option<Answer> {
        self.lock().take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Budget, Memory};
    use crate::server::request::{Form, Parameters};
    use crate::server::{respond, watch};
    use kedge_hub_core::kinds::CONFIG_MAP;
    use kedge_hub_core::object::{Event, Object};
    use kedge_hub_core::selector::Selection;
    use kedge_hub_core::state::Changed;
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    #[derive(Debug)]
    struct Unlimited;

    impl Budget for Unlimited {
        fn take(&self, _: usize) -> bool {
            true
        }

        fn give_back(&self, _: usize) {}
    }

    fn run<T>(story: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(story)
    }

    fn answer(memory: &Arc<Memory>) -> Answer {
        answer_to(memory, Arc::new(Unlimited))
    }

    fn answer_to(memory: &Arc<Memory>, budget: Arc<dyn Budget>) -> Answer {
        let (selection, parameters) = (Selection::default(), Parameters::default());
        let stream = watch::start(memory, &CONFIG_MAP, selection, &parameters, Form::Whole, budget);
        let (mut head, _) = respond::bytes(200, "application/json", "").into_parts();
        head.headers.insert("x-b", "c".parse().unwrap());
        let (watch, manner) = (Box::new(stream.unwrap()), Manner { chunks: true, closes: false });
        let cut = watch.deadline() + LAST_WRITE;
        Answer { head, watch, manner, cut }
    }

    fn publish(memory: &Memory, revision: u64) {
        let map = json!({"metadata": {"name": "a", "namespace": "n"}});
        let new = Object::new(&CONFIG_MAP, &map, revision).map(Arc::new);
        let event = Event { revision, old: None, new, last: None };
        memory.publish(vec![Changed { kind: &CONFIG_MAP, event: Arc::new(event), author: None }]);
    }

    async fn read_until(stream: &mut DuplexStream, end: &str) -> String {
        let mut text = Vec::new();
        while !text.ends_with(end.as_bytes()) {
            text.push(stream.read_u8().await.unwrap());
        }
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn detached_watch_is_one_chunked_answer() {
        run(async {
            let (mut client, server) = tokio::io::duplex(4096);
            let memory = Arc::new(Memory::empty());
            let mut link = Link::new(server);
            let answer = answer(&memory);
            let writing = async { (link.write_watch(answer).await.unwrap(), link) };
            let asking = async {
                publish(&memory, 2);
                let head = read_until(&mut client, "\r\n\r\n").await;
                let chunk = read_until(&mut client, "\n\r\n").await;
                let expected = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-b: c\r\n\
                                transfer-encoding: chunked";
                assert_eq!(head.trim_end(), expected);
                let (length, line) = chunk.split_once("\r\n").unwrap();
                assert_eq!(usize::from_str_radix(length, 16).unwrap() + 2, line.len());
                assert!(line.starts_with("{\"type\":\"ADDED\",\"object\":{"), "{line}");
                // the next request arrives during the watch
                client.write_all(b" /next").await.unwrap();
                tokio::task::yield_now().await;
                memory.close();
                assert_eq!(read_until(&mut client, "\r\n\r\n").await, "0\r\n\r\n");
                client.shutdown().await.unwrap();
            };
            let ((goes_on, link), ()) = tokio::join!(writing, asking);
            assert!(goes_on);
            let (mut early, mut rest) = link.into_parts();
            rest.read_to_end(&mut early).await.unwrap();
            assert_eq!(early, b" /next", "what came during the watch is for the next request");
        });
    }

    /// A budget that allows nothing.
    #[derive(Debug)]
    struct Empty;

    impl Budget for Empty {
        fn take(&self, _: usize) -> bool {
            false
        }

        fn give_back(&self, _: usize) {}
    }

    fn put(memory: &Memory, revision: u64, bytes: usize) {
        let value = |revision: u64| {
            json!({"metadata": {"name": "a", "namespace": "n", "resourceVersion": revision.to_string()},
                "data": {"k": "x".repeat(bytes)}})
        };
        let old = memory.get(&CONFIG_MAP, "n", "a");
        let new = Object::new(&CONFIG_MAP, &value(revision), revision).map(Arc::new);
        let event = Event { revision, old, new, last: None };
        memory.publish(vec![Changed { kind: &CONFIG_MAP, event: Arc::new(event), author: None }]);
    }

    #[test]
    fn large_objects_arrive_whole_after_a_pause() {
        run(async {
            let (mut client, server) = tokio::io::duplex(4096);
            let memory = Arc::new(Memory::empty());
            let mut link = Link::new(server);
            let answer = answer(&memory);
            let reading = async {
                put(&memory, 2, 100_000);
                read_until(&mut client, "\r\n\r\n").await;
                // while the first is being sent
                put(&memory, 3, 200_000);
                memory.close();
                for (kind, bytes) in [("ADDED", 100_000), ("MODIFIED", 200_000)] {
                    let length = read_until(&mut client, "\r\n").await;
                    let mut line = vec![0; usize::from_str_radix(length.trim_end(), 16).unwrap()];
                    client.read_exact(&mut line).await.unwrap();
                    let event: serde_json::Value = serde_json::from_slice(&line).unwrap();
                    let data = event["object"]["data"]["k"].as_str().map(str::len);
                    assert_eq!((event["type"].as_str(), data), (Some(kind), Some(bytes)));
                    assert_eq!(read_until(&mut client, "\r\n").await, "\r\n");
                }
                assert_eq!(read_until(&mut client, "\r\n\r\n").await, "0\r\n\r\n");
            };
            let (goes_on, ()) = tokio::join!(link.write_watch(answer), reading);
            assert!(goes_on.unwrap());
        });
    }

    #[test]
    fn watch_is_cut_off_at_an_old_version_that_nobody_pays() {
        run(async {
            for (budget, goes_on) in
                [(Arc::new(Empty) as Arc<dyn Budget>, false), (Arc::new(Unlimited), true)]
            {
                let (mut client, server) = tokio::io::duplex(4096);
                let memory = Arc::new(Memory::empty());
                put(&memory, 2, 100_000);
                let answer = answer_to(&memory, budget);
                let reading = async {
                    read_until(&mut client, "\r\n\r\n").await;
                    put(&memory, 3, 10);
                    memory.close();
                    let mut rest = Vec::new();
                    let read = tokio::time::timeout(Duration::from_secs(20), client.read_to_end(&mut rest));
                    let _ = read.await;
                    rest.len()
                };
                let writing = async {
                    let mut link = Link::new(server);
                    link.write_watch(answer).await.unwrap()
                };
                let (went_on, read) = tokio::join!(writing, reading);
                assert_eq!((went_on, read > 100_000), (goes_on, goes_on), "{read}");
            }
        });
    }

    #[test]
    fn leaving_client_ends_its_watch_and_read_ahead_is_bounded() {
        run(async {
            let (mut client, server) = tokio::io::duplex(64);
            let memory = Arc::new(Memory::empty());
            let mut link = Link::new(server);
            let answer = answer(&memory);
            assert_eq!(memory.watches(), 1);
            let talking = async {
                read_until(&mut client, "\r\n\r\n").await;
                let mut sent = 0;
                let limit = std::time::Duration::from_millis(50);
                while let Ok(wrote) = tokio::time::timeout(limit, client.write(&[b'x'; 64])).await {
                    sent += wrote.unwrap();
                    assert!(sent <= 2 * EARLY_BYTES + 64, "{sent}");
                }
                memory.close();
            };
            let (goes_on, ()) = tokio::join!(link.write_watch(answer), talking);
            assert!(goes_on.unwrap(), "its requests are answered once the watch is over");

            let (client, server) = tokio::io::duplex(4096);
            let memory = Arc::new(Memory::empty());
            let answer = self::answer(&memory);
            drop(client);
            // the client may be gone, or refuse the head
            assert!(!Link::new(server).write_watch(answer).await.unwrap_or(false));
            assert_eq!(memory.watches(), 0);
        });
    }

    #[test]
    fn watch_whose_client_reads_too_slowly_is_cut_off() {
        run(async {
            let (client, server) = tokio::io::duplex(16);
            let memory = Arc::new(Memory::empty());
            let watch = Answer { cut: Instant::now(), ..answer(&memory) };
            let error = Link::new(server).write_watch(watch).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(memory.watches(), 0);
            drop(client);
        });
    }

    #[test]
    fn closing_client_gets_an_end_and_its_leaving_is_noticed() {
        run(async {
            for (chunks, head) in [
                (
                    false,
                    "HTTP/1.0 200 OK\r\ncontent-type: application/json\r\nx-b: c\r\nconnection: close\r\n\r\n",
                ),
                (
                    true,
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-b: c\r\n\
                     transfer-encoding: chunked\r\nconnection: close\r\n\r\n",
                ),
            ] {
                let manner = Manner { chunks, closes: true };
                let (mut client, server) = tokio::io::duplex(64);
                let memory = Arc::new(Memory::empty());
                let watch = Answer { manner, ..answer(&memory) };
                let mut link = Link::new(server);
                let leaving = async {
                    assert_eq!(read_until(&mut client, "\r\n\r\n").await, head);
                    client.write_all(&[b'x'; 4 * EARLY_BYTES]).await.unwrap();
                    client.shutdown().await.unwrap();
                };
                let (goes_on, ()) = tokio::join!(link.write_watch(watch), leaving);
                assert!(!goes_on.unwrap());
                assert_eq!(memory.watches(), 0);

                let (mut client, server) = tokio::io::duplex(4096);
                let memory = Arc::new(Memory::empty());
                let watch = Answer { manner, ..answer(&memory) };
                publish(&memory, 2);
                memory.close();
                assert!(!Link::new(server).write_watch(watch).await.unwrap());
                let mut text = String::new();
                client.read_to_string(&mut text).await.unwrap();
                let body = text.strip_prefix(head).unwrap();
                assert!(body.ends_with(if chunks { "}\n\r\n0\r\n\r\n" } else { "}\n" }), "{body}");
                assert_eq!(body.starts_with("{\"type\":\"ADDED\""), !chunks, "{body}");
            }
        });
    }
}
