//! The bytes of a session, from one connection to the other.
//!
//! Always holds: an end that does not read stops the other, and a bounded number of bytes wait between them;
//! if the node's answer breaks off, the client's answer breaks off, too; a session without any traffic ends
//! after a time. A session is served without the HTTP library, like a watch: the library would not notice
//! that a client leaves while nothing is sent. A program's answer keeps its length, or its way of ending.

use crate::server::authentication::Standing;
use crate::server::calls::session::{Asker, Session};
use crate::server::ending::Ending;
use std::convert::Infallible;
use std::io;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt, DuplexStream};
use tokio::sync::oneshot;

use super::messages::Messages;
use super::program;

/// A session without traffic ends after this time, as upstream's `streamingConnectionIdleTimeout`.
pub(crate) const IDLE: Duration = Duration::from_secs(4 * 60 * 60);
/// Time for the remaining bytes once one side has ended. Short in tests, so that they need not wait.
pub(crate) const LINGER: Duration =
    if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(10) };
/// Most bytes of one read.
pub(crate) const PIECE_BYTES: usize = 8 * 1024;
/// Longest size line of a chunk: 16 digits, and extensions, which are hardly used.
const MOST_SIZE_BYTES: usize = 256;

/// How a body is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    Bytes(u64),
    Chunks,
}

/// The position of the reader in a body.
#[derive(Debug)]
enum Place {
    Bytes(u64),
    /// Before the size of a chunk.
    Size,
    Chunk(u64),
    /// Before the line end after a chunk.
    Behind,
    /// Before the line end after the last chunk.
    Last,
    End,
}

/// A body on its way from a node.
#[derive(Debug)]
pub(crate) struct Incoming {
    bytes: Vec<u8>,
    place: Place,
}

impl Incoming {
    pub(super) fn new(early: Vec<u8>, framing: Framing) -> Incoming {
        let place = match framing {
            Framing::Bytes(bytes) => Place::Bytes(bytes),
            Framing::Chunks => Place::Size,
        };
        Incoming { bytes: early, place }
    }

    /// The next piece of the body; `None` when it is complete. Cancel safe.
    pub(super) async fn next(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(piece) = self.piece()? {
                return Ok(Some(piece));
            }
            if matches!(self.place, Place::End) {
                return Ok(None);
            }
            let mut piece = [0; PIECE_BYTES];
            match stream.read(&mut piece).await? {
                0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the answer broke off")),
                amount => self.bytes.extend_from_slice(&piece[..amount]),
            }
        }
    }

    /// A piece of the body from the bytes already read; `None`: more must be read, or the body is complete.
    fn piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            match &mut self.place {
                Place::Bytes(0) => self.place = Place::End,
                Place::Chunk(0) => self.place = Place::Behind,
                Place::End => return Ok(None),
                _ if self.bytes.is_empty() => return Ok(None),
                Place::Bytes(left) | Place::Chunk(left) => {
                    let most = usize::try_from(*left).unwrap_or(usize::MAX).min(self.bytes.len());
                    *left -= most as u64;
                    let rest = self.bytes.split_off(most);
                    return Ok(Some(std::mem::replace(&mut self.bytes, rest)));
                }
                Place::Size => match httparse::parse_chunk_size(&self.bytes) {
                    Ok(httparse::Status::Complete((length, size))) => {
                        self.bytes.drain(..length);
                        self.place = if size == 0 { Place::Last } else { Place::Chunk(size) };
                    }
                    Ok(httparse::Status::Partial) if self.bytes.len() <= MOST_SIZE_BYTES => return Ok(None),
                    // a longer line would be kept, and scanned again at each read
                    Ok(httparse::Status::Partial) | Err(_) => return Err(garbled()),
                },
                place @ (Place::Behind | Place::Last) => {
                    let next = if matches!(place, Place::Last) { Place::End } else { Place::Size };
                    match self.bytes.get(..2) {
                        Some(b"\r\n") => {
                            self.bytes.drain(..2);
                            self.place = next;
                        }
                        Some(_) => return Err(garbled()),
                        None => return Ok(None),
                    }
                }
            }
        }
    }
}

fn garbled() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the chunks of the answer are garbled")
}

/// The framing of an answer to the client.
#[derive(Debug)]
pub(crate) enum Frames {
    /// The body ends with the connection.
    None,
    Chunks,
    Messages(Messages),
}

impl Frames {
    pub(crate) fn piece(&self, piece: Vec<u8>) -> Vec<u8> {
        match self {
            Frames::None => piece,
            Frames::Chunks => {
                let mut text = format!("{:x}\r\n", piece.len()).into_bytes();
                text.extend_from_slice(&piece);
                text.extend_from_slice(b"\r\n");
                text
            }
            Frames::Messages(messages) => messages.frame(&piece),
        }
    }

    /// The bytes that mark the answer as complete.
    pub(crate) fn end(&self) -> &'static [u8] {
        match self {
            Frames::None => b"",
            Frames::Chunks => b"0\r\n\r\n",
            Frames::Messages(_) => Messages::CLOSE,
        }
    }
}

#[derive(Debug)]
pub(crate) enum What {
    /// Any bytes, in both directions.
    Raw { early: Vec<u8> },
    /// The body of an answer.
    Body(Incoming),
    /// The body of an answer, for a client that wants it in messages of a WebSocket.
    Messages(Incoming, Messages),
}

/// The origin of an answer.
#[derive(Debug)]
pub(crate) enum Source {
    Node(DuplexStream, What),
    Program(program::Answer),
}

/// A body that comes in pieces.
pub(crate) trait Pieces {
    /// The next piece; `None` when the body is complete. Cancel safe.
    fn next_piece(&mut self) -> impl Future<Output = io::Result<Option<Vec<u8>>>> + Send;
}

impl Pieces for (DuplexStream, Incoming) {
    async fn next_piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.1.next(&mut self.0).await
    }
}

impl Pieces for program::Answer {
    async fn next_piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.next().await
    }
}

/// The rest of a session, after the head of its answer.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) source: Source,
    headers: HeaderMap,
    /// The validity of the token that the client showed.
    pub(crate) standing: Option<Standing>,
    pub(crate) side: Side,
}

/// The owner of the connection that a relay serves.
#[derive(Debug)]
pub(crate) enum Side {
    /// The node; resolves when the client has left.
    Node(oneshot::Receiver<Infallible>),
    Client {
        _held: Option<(Session, Asker)>,
        /// The client, with its line in the audit log if that is written at the end.
        ending: Option<Box<Ending>>,
    },
}

impl Relay {
    /// The side of a node.
    pub(super) fn raw(stream: DuplexStream, asks: oneshot::Receiver<Infallible>) -> Relay {
        Relay { side: Side::Node(asks), ..Relay::upgraded(stream, Vec::new(), HeaderMap::new()) }
    }

    /// The side of a client that was upgraded.
    pub(super) fn upgraded(stream: DuplexStream, early: Vec<u8>, headers: HeaderMap) -> Relay {
        Relay::of_client(Source::Node(stream, What::Raw { early }), headers)
    }

    /// The side of a client that gets an answer.
    pub(super) fn body(stream: DuplexStream, body: Incoming, headers: HeaderMap) -> Relay {
        Relay::of_client(Source::Node(stream, What::Body(body)), headers)
    }

    /// The side of a client that gets what a program in a pod answers.
    pub(super) fn answer(answer: program::Answer) -> Relay {
        Relay::of_client(Source::Program(answer), HeaderMap::new())
    }

    fn of_client(source: Source, headers: HeaderMap) -> Relay {
        Relay { source, headers, standing: None, side: Side::Client { _held: None, ending: None } }
    }

    /// Turns an answer into messages of a WebSocket; leaves other relays unchanged.
    pub(super) fn in_messages(self, messages: Messages) -> Relay {
        match self.source {
            Source::Node(stream, What::Body(body)) => {
                let headers = messages.headers();
                Relay { headers, source: Source::Node(stream, What::Messages(body, messages)), ..self }
            }
            source => Relay { source, ..self },
        }
    }

    pub(super) fn held(self, session: Session, asker: Asker, standing: Option<Standing>) -> Relay {
        Relay { side: Side::Client { _held: Some((session, asker)), ending: None }, standing, ..self }
    }

    /// Keeps `with` until the session is over.
    pub(crate) fn ends_with(&mut self, with: Box<Ending>) {
        if let Side::Client { ending, .. } = &mut self.side {
            *ending = Some(with);
        }
    }

    /// The whole answer of a node, or all bytes that it sends after an upgrade. `may_have` is called with the
    /// size of each piece, and fails if the answer becomes too large.
    pub(super) async fn read(
        self,
        may_have: impl FnMut(usize) -> io::Result<()> + Send,
    ) -> io::Result<Vec<u8>> {
        match self.source {
            Source::Node(mut stream, What::Raw { mut early }) => {
                stream.read_to_end(&mut early).await?;
                Ok(early)
            }
            Source::Node(stream, What::Body(body) | What::Messages(body, _)) => {
                whole((stream, body), may_have).await
            }
            Source::Program(answer) => whole(answer, may_have).await,
        }
    }

    /// The head of the answer.
    pub(super) fn head(&self) -> (StatusCode, HeaderMap) {
        let status = match &self.source {
            Source::Node(_, What::Raw { .. } | What::Messages(..)) => StatusCode::SWITCHING_PROTOCOLS,
            Source::Node(_, What::Body(_)) => StatusCode::OK,
            Source::Program(answer) => answer.response.status(),
        };
        (status, self.headers.clone())
    }
}

/// Collects all pieces.
async fn whole(
    mut pieces: impl Pieces,
    mut may_have: impl FnMut(usize) -> io::Result<()> + Send,
) -> io::Result<Vec<u8>> {
    let mut whole = Vec::new();
    while let Some(piece) = pieces.next_piece().await? {
        may_have(piece.len())?;
        // reserve no more than was allowed
        whole.reserve_exact(piece.len());
        whole.extend_from_slice(&piece);
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::calls::serving::Kept;
    use crate::server::link::Link;
    use http::Response;
    use tokio::io::AsyncWriteExt as _;
    use tokio::time::timeout;

    fn read(framing: Framing, pieces: &[&str]) -> Result<String, io::ErrorKind> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut node, mut stream) = tokio::io::duplex(4096);
            for piece in pieces {
                node.write_all(piece.as_bytes()).await.unwrap();
            }
            drop(node);
            let mut body = Incoming::new(Vec::new(), framing);
            let mut text = Vec::new();
            while let Some(piece) = body.next(&mut stream).await.map_err(|error| error.kind())? {
                text.extend_from_slice(&piece);
            }
            Ok(String::from_utf8(text).unwrap())
        })
    }

    #[test]
    fn body_is_whole_or_an_error() {
        let (cut, garbled) = (Err(io::ErrorKind::UnexpectedEof), Err(io::ErrorKind::InvalidData));
        assert_eq!(read(Framing::Bytes(4), &["ab", "cd"]), Ok("abcd".into()));
        assert_eq!(read(Framing::Bytes(0), &[]), Ok(String::new()));
        assert_eq!(read(Framing::Bytes(5), &["ab", "cd"]), cut);
        assert_eq!(read(Framing::Chunks, &["3\r\nabc\r\n1;x=y\r\nd\r\n0\r\n\r\n"]), Ok("abcd".into()));
        assert_eq!(read(Framing::Chunks, &["3\r\nabc\r\n"]), cut);
        assert_eq!(read(Framing::Chunks, &["3\r\nabc\r\n0\r\n"]), cut);
        assert_eq!(read(Framing::Chunks, &["3\r\nabcd\r\n"]), garbled);
        assert_eq!(read(Framing::Chunks, &["x\r\n"]), garbled);
        for endless in ["1;", "1 ", "1"] {
            assert_eq!(read(Framing::Chunks, &[endless, &"  ".repeat(1000)]), garbled, "{endless:?}");
        }
    }

    #[test]
    fn chunks_may_come_byte_by_byte() {
        let mut body = Incoming::new(Vec::new(), Framing::Chunks);
        let mut text = Vec::new();
        for byte in b"a\r\n0123456789\r\n2\r\nxy\r\n0\r\n\r\n" {
            body.bytes.push(*byte);
            while let Some(piece) = body.piece().unwrap() {
                text.extend_from_slice(&piece);
            }
        }
        assert!(matches!(body.place, Place::End));
        assert_eq!(text, b"0123456789xy");
    }

    /// A session between a client and a node, each at the other end of a pipe.
    async fn session(what: What, story: impl AsyncFnOnce(DuplexStream, DuplexStream)) -> io::Result<()> {
        let (client, server) = tokio::io::duplex(1024);
        let (stream, node) = tokio::io::duplex(1024);
        let relay = Relay::of_client(Source::Node(stream, what), HeaderMap::new());
        served(relay, client, server, node, story).await
    }

    /// Serves this relay between these ends.
    async fn served(
        relay: Relay,
        client: DuplexStream,
        server: DuplexStream,
        node: DuplexStream,
        story: impl AsyncFnOnce(DuplexStream, DuplexStream),
    ) -> io::Result<()> {
        let (head, ()) = Response::new(()).into_parts();
        let mut link = Link::new(server);
        let kept = Kept { head, relay: Box::new(relay), chunks: true };
        let serving = async {
            let done = link.relay(kept).await;
            drop(link);
            done
        };
        let (done, ()) = tokio::join!(serving, story(client, node));
        done
    }

    #[tokio::test]
    async fn answer_that_breaks_off_has_no_last_chunk() {
        for is_whole in [true, false] {
            let body = What::Body(Incoming::new(b"2\r\nab".to_vec(), Framing::Chunks));
            let done = session(body, async |mut client, mut node| {
                if is_whole {
                    node.write_all(b"\r\n0\r\n\r\n").await.unwrap();
                }
                drop(node);
                let mut text = String::new();
                client.read_to_string(&mut text).await.unwrap();
                assert_eq!(text.ends_with("2\r\nab\r\n0\r\n\r\n"), is_whole, "{text}");
            });
            assert_eq!(done.await.is_ok(), is_whole);
        }
    }

    #[tokio::test]
    async fn answer_in_messages_is_closed_when_whole() {
        for is_whole in [true, false] {
            let mut headers = HeaderMap::new();
            for (name, value) in
                [("upgrade", "websocket"), ("sec-websocket-version", "13"), ("sec-websocket-key", "a")]
            {
                headers.insert(name, http::HeaderValue::from_static(value));
            }
            let messages = Messages::asked(&headers).unwrap().unwrap();
            let what = What::Messages(Incoming::new(b"2\r\nab".to_vec(), Framing::Chunks), messages);
            let done = session(what, async |mut client, mut node| {
                // messages of the client are read and ignored
                client.write_all(&[b'x'; 4096]).await.unwrap();
                if is_whole {
                    node.write_all(b"\r\n0\r\n\r\n").await.unwrap();
                }
                drop(node);
                let mut text = Vec::new();
                client.read_to_end(&mut text).await.unwrap();
                let end = text.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
                let expect: &[u8] =
                    if is_whole { b"\x82\0\x82\x02ab\x88\x02\x03\xe8" } else { b"\x82\0\x82\x02ab" };
                assert_eq!(&text[end..], expect);
            });
            assert_eq!(done.await.is_ok(), is_whole);
        }
    }

    #[tokio::test]
    async fn client_that_leaves_ends_a_silent_session() {
        for raw in [true, false] {
            let what = match raw {
                true => What::Raw { early: Vec::new() },
                false => What::Body(Incoming::new(Vec::new(), Framing::Chunks)),
            };
            let done = session(what, async |client, mut node| {
                drop(client);
                assert_eq!(node.read(&mut [0; 16]).await.unwrap(), 0);
            });
            let _ = done.await;
        }
    }

    #[tokio::test]
    async fn raw_bytes_pass_both_ways_with_what_came_early() {
        let done = session(What::Raw { early: b"early ".to_vec() }, async |mut client, mut node| {
            let large = vec![b'x'; 100_000];
            client.write_all(b"question").await.unwrap();
            let mut asked = [0; 8];
            node.read_exact(&mut asked).await.unwrap();
            assert_eq!(&asked, b"question");
            let sending = async {
                node.write_all(&large).await.unwrap();
                drop(node);
            };
            let mut text = Vec::new();
            let (_, read) = tokio::join!(sending, client.read_to_end(&mut text));
            read.unwrap();
            assert!(text.ends_with(&large) && text.len() > large.len());
            assert!(String::from_utf8_lossy(&text).contains("\r\n\r\nearly x"));
        });
        done.await.unwrap();
    }

    #[tokio::test]
    async fn client_that_does_not_read_stops_the_node() {
        let done = session(What::Raw { early: Vec::new() }, async |client, mut node| {
            let mut sent = 0;
            let sending = async {
                loop {
                    sent += node.write(&[0; 1024]).await.unwrap();
                }
            };
            let _ = timeout(Duration::from_millis(50), sending).await;
            // as much as two pipes and one piece can hold
            assert!(sent <= 2 * 1024 + PIECE_BYTES + 1024, "{sent}");
            drop(client);
            drop(node);
        });
        let _ = done.await;
    }

    /// Sends until the other end takes no more.
    async fn fill(stream: &mut DuplexStream) {
        let sending = async { while stream.write_all(&[0; 1024]).await.is_ok() {} };
        let _ = timeout(Duration::from_millis(50), sending).await;
    }

    #[tokio::test]
    async fn node_that_takes_nothing_is_left_with_its_asker() {
        let (node, server) = tokio::io::duplex(1024);
        let (stream, theirs) = tokio::io::duplex(1024);
        let (asker, asks) = oneshot::channel();
        let mut _silent = None;
        let done = served(Relay::raw(stream, asks), node, server, theirs, async |node, mut theirs| {
            fill(&mut theirs).await;
            drop((theirs, asker));
            _silent = Some(node);
        });
        timeout(Duration::from_secs(60), done)
            .await
            .expect("it ends, though the node reads nothing")
            .unwrap();
    }

    #[tokio::test]
    async fn answer_reaches_a_client_that_still_sends() {
        let done = session(What::Raw { early: Vec::new() }, async |mut client, mut node| {
            fill(&mut client).await;
            let answer = [[b'x'; 1500].as_slice(), b"the end"].concat();
            node.write_all(&answer).await.unwrap();
            drop(node);
            // the relay sees the end before the client reads on
            tokio::task::yield_now().await;
            let mut text = Vec::new();
            client.read_to_end(&mut text).await.unwrap();
            assert!(text.ends_with(&answer), "{}", String::from_utf8_lossy(&text));
        });
        done.await.unwrap();
    }
}
