//! Detached watches: written without the HTTP library, so that an idle one does not hold its buffers, 16 KiB a connection. A fleet is
//! thousands of idle watches.
//!
//! hyper's connection is detached before it has written anything and returned after the watch; bytes that the client sends meanwhile
//! are kept for the next request. Always holds: the answer is one HTTP response, chunked if the client supports that, and the
//! byte stream is identical to what hyper would have produced. Left to others: the events and the end of the watch (`watch`).

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Response;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};

use super::link::{Link, head_text};
use super::respond::Body;
use super::watch::WatchStream;

/// Most bytes kept that a client sends during a watch: a whole request fits. No more is read until the watch has ended.
const EARLY_BYTES: usize = 1024;
/// Bytes of events that are written together, about a TLS record.
const RECORD_BYTES: usize = 16 * 1024;
/// Time for what is left to write when the watch's time is over. Then it is cut off: a client that reads a byte now and then would
/// keep it for ever.
const LAST_WRITE: Duration = Duration::from_secs(60);

impl<S: AsyncRead + AsyncWrite + Unpin> Link<S> {
    /// Writes a watch until its end; returns whether the connection can be reused.
    pub(super) async fn write_watch(&mut self, answer: Answer) -> io::Result<bool> {
        let Answer { head, mut watch, manner, cut } = answer;
        let mut text = head_of(&head, manner);
        drop(head);
        loop {
            let next = std::future::poll_fn(|context| self.poll_next(&mut watch, manner, &mut text, context))
                .await?;
            match next {
                Next::Gone => return Ok(false),
                Next::Write => self.write_until(cut, &std::mem::take(&mut text)).await?,
                Next::Last => break,
            }
        }
        if manner.chunks {
            text.extend_from_slice(b"0\r\n\r\n");
        }
        self.write_until(cut, &text).await?;
        if manner.closes {
            self.shut_down().await?;
        }
        Ok(!manner.closes)
    }

    async fn write_until(&mut self, end: Instant, text: &[u8]) -> io::Result<()> {
        let too_slow =
            || io::Error::new(io::ErrorKind::TimedOut, "the watch is over, and its client too slow");
        timeout_at(end, self.write(text)).await.unwrap_or_else(|_| Err(too_slow()))
    }

    fn poll_next(
        &mut self,
        watch: &mut WatchStream,
        manner: Manner,
        text: &mut Vec<u8>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Next>> {
        while text.len() < RECORD_BYTES {
            match watch.poll_next(context) {
                Poll::Ready(Some(line)) if manner.chunks => chunk(text, &line),
                Poll::Ready(Some(line)) => text.extend_from_slice(&line),
                Poll::Ready(None) => return Poll::Ready(Ok(Next::Last)),
                Poll::Pending => break,
            }
        }
        if !text.is_empty() {
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
    /// The client is gone.
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

fn chunk(text: &mut Vec<u8>, line: &[u8]) {
    // an empty chunk would be the last
    if line.is_empty() {
        return;
    }
    text.extend_from_slice(format!("{:x}\r\n", line.len()).as_bytes());
    text.extend_from_slice(line);
    text.extend_from_slice(b"\r\n");
}

/// How a watch is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Manner {
    /// In chunks; an HTTP/1.0 client reads until the connection's end.
    pub(super) chunks: bool,
    /// The connection ends with it.
    pub(super) closes: bool,
}

/// The answer to a watch.
#[derive(Debug)]
pub(super) struct Answer {
    head: http::response::Parts,
    watch: Box<WatchStream>,
    manner: Manner,
    /// Nothing is written after this.
    cut: Instant,
}

/// The slot of a connection for a watch that waits to be detached.
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
    use std::sync::Arc;
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
        let stream = watch::start(
            memory,
            &CONFIG_MAP,
            Selection::default(),
            &Parameters::default(),
            Form::Whole,
            Arc::new(Unlimited),
        );
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
                // the next request comes early
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
