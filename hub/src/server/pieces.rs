//! Long answers, made in pieces: lists that are written as they are sent, tables that are rendered on threads
//! of their own, and answers that are compressed for clients that ask for it.
//!
//! Always holds: a thread that answers requests does not render or compress long answers, and yields to
//! others while it writes one. For a client that reads slowly the hub keeps a few pieces, the compressor, and
//! the objects, which cost nothing while they are the latest versions (`kedge_hub_core::loans`); bytes that
//! are made only for this client are charged to it until they are sent. An answer that cannot be completed
//! ends its connection, so that no client takes a part for the whole.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::request::Parts;
use http::{Method, Response, header};
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::loans::{Borrower, Loan};
use kedge_hub_core::object::Object;
use tokio::sync::mpsc;

use super::large::LARGE_BYTES;
use super::limits::{Resource, Slot, Taken, Work};
use super::request;
use super::respond::{Body, MAX_PRETTY_BYTES};
use super::shared::Server;
use crate::memory::Reader;

/// Size of a piece: a TLS record.
const PIECE_BYTES: usize = 16 * 1024;
/// Pieces after which a task yields: at most a few milliseconds of copying and encrypting.
const PIECES_AT_A_TIME: usize = 16;
/// Most pieces that wait for a slow client.
const PIECES_AHEAD: usize = 2;
/// Answers from this size on are compressed; upstream's threshold and level.
const COMPRESSED_FROM: usize = 128 * 1024;
/// The same for discovery, which kubectl reads before its first command and then every few hours: twice 4 KB,
/// in which the same names repeat.
const DISCOVERY_COMPRESSED_FROM: usize = 2 * 1024;
const LEVEL: u32 = 1;

/// Answers up to this size charge their caller nothing: that much is already reckoned for its connection.
pub(super) const FREE_BYTES: usize = 16 * 1024;
/// Bytes of a longer answer that are in memory at a time while it is sent: up to three pieces in the HTTP
/// library, one in TLS.
const HELD_BYTES: usize = 4 * PIECE_BYTES;
/// Bytes of each further object that waits in a long answer, without its text.
const LOAN_BYTES: usize = 48;

/// Appends an object in the form of the answer.
pub(super) type Render = Box<dyn FnMut(&Object, &mut Vec<u8>) + Send>;

/// An object or a list as JSON, piece by piece.
pub(super) struct Items {
    head: Vec<u8>,
    objects: std::vec::IntoIter<Loan>,
    tail: &'static [u8],
    /// `None`: as it is stored.
    render: Option<Render>,
    /// The object that is being sent, and the number of its bytes already sent.
    current: Option<(Text, usize)>,
    begun: bool,
    done: bool,
    /// Bytes of the stored texts: exact for the list itself, an estimate for other forms.
    bytes: usize,
    /// Bytes of the largest object.
    largest: usize,
    /// Pieces since the task last yielded.
    pieces: usize,
}

/// The text of an object in the form of the answer.
enum Text {
    Stored(Loan),
    Rendered(Vec<u8>),
}

impl Text {
    fn bytes(&self) -> &[u8] {
        match self {
            Text::Stored(object) => &object.json,
            Text::Rendered(text) => text,
        }
    }
}

impl Items {
    /// `head` is everything before the first item; after the last one come `]` and `}`.
    pub(super) fn new(head: Vec<u8>, objects: Vec<Arc<Object>>, render: Option<Render>) -> Items {
        Items::between(head, objects, b"]}", render)
    }

    /// One object, as it is stored.
    pub(super) fn one(object: Arc<Object>) -> Items {
        Items::between(Vec::new(), vec![object], b"", None)
    }

    fn between(
        head: Vec<u8>,
        objects: Vec<Arc<Object>>,
        tail: &'static [u8],
        render: Option<Render>,
    ) -> Items {
        let commas = objects.len().saturating_sub(1);
        let sizes = || objects.iter().map(|object| object.json.len());
        let bytes = head.len() + sizes().sum::<usize>() + commas + tail.len();
        let largest = sizes().max().unwrap_or(0);
        let objects: Vec<Loan> = objects.into_iter().map(Loan::free).collect();
        let objects = objects.into_iter();
        Items {
            head,
            objects,
            tail,
            render,
            current: None,
            begun: false,
            done: false,
            bytes,
            largest,
            pieces: 0,
        }
    }

    /// The exact length, if it is known before the whole text is.
    pub(super) fn length(&self) -> Option<u64> {
        self.render.is_none().then_some(self.bytes as u64)
    }

    /// The most bytes that wait for a slow client and are made only for it; the text of an object in another
    /// form is at most twice as long as its stored text.
    fn held(&self) -> usize {
        let text = match self.render {
            None => self.bytes.min(HELD_BYTES),
            Some(_) => (2 * self.bytes).min(HELD_BYTES + 2 * self.largest),
        };
        text + if self.is_lent() { LOAN_BYTES * (self.objects.len() - 1) } else { 0 }
    }

    /// True if the objects have more bytes than may wait at a time: then they are charged to a reader.
    fn is_lent(&self) -> bool {
        self.bytes > HELD_BYTES
    }

    /// From now on the objects are charged to this reader.
    fn lend(&mut self, reader: &Arc<Reader>) {
        self.objects
            .as_mut_slice()
            .iter_mut()
            .for_each(|object| object.lend(Arc::clone(reader) as Arc<dyn Borrower>));
    }

    /// The next piece of a list that is sent as it is stored.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.pieces == PIECES_AT_A_TIME {
            self.pieces = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.pieces += 1;
        let piece = self.next();
        self.bytes -= piece.as_ref().map_or(0, Bytes::len);
        Poll::Ready(piece)
    }

    fn text(&mut self, object: Loan) -> Text {
        match &mut self.render {
            None => Text::Stored(object),
            Some(render) => {
                let mut text = Vec::new();
                render(&object, &mut text);
                Text::Rendered(text)
            }
        }
    }

    /// Appends as much of the current object as fits; `false` without one.
    fn go_on(&mut self, piece: &mut Vec<u8>) -> bool {
        let Some((text, sent)) = &mut self.current else { return false };
        let rest = &text.bytes()[*sent..];
        let part = rest.len().min(PIECE_BYTES.saturating_sub(piece.len()));
        piece.extend_from_slice(&rest[..part]);
        *sent += part;
        if *sent == text.bytes().len() {
            self.current = None;
        }
        true
    }
}

impl Iterator for Items {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.done {
            return None;
        }
        let mut piece = std::mem::take(&mut self.head);
        while piece.len() < PIECE_BYTES {
            if self.go_on(&mut piece) {
                continue;
            }
            let Some(object) = self.objects.next() else {
                piece.extend_from_slice(self.tail);
                self.done = true;
                break;
            };
            if std::mem::replace(&mut self.begun, true) {
                piece.push(b',');
            }
            self.current = Some((self.text(object), 0));
        }
        Some(piece.into())
    }
}

/// An answer that is made by another thread.
pub(super) struct Made {
    pieces: mpsc::Receiver<Piece>,
    /// Set by the last piece.
    complete: bool,
}

enum Piece {
    Some(Bytes),
    Last,
}

impl Made {
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.complete {
            return Poll::Ready(None);
        }
        self.pieces.poll_recv(context).map(|piece| match piece {
            Some(Piece::Some(bytes)) => Some(Ok(bytes)),
            Some(Piece::Last) => {
                self.complete = true;
                None
            }
            None => Some(Err(io::Error::other("the answer could not be completed"))),
        })
    }
}

/// The facts of a request and its answer that decide how the answer is sent.
#[derive(Debug, Clone, Copy)]
struct Sending {
    /// The client accepts gzip for an answer from this size on.
    compressed_from: Option<usize>,
    /// The request changed nothing, so its client may repeat it.
    only_reads: bool,
    bytes: usize,
    renders: bool,
}

impl Sending {
    fn compresses(self) -> bool {
        self.compressed_from.is_some_and(|least| self.bytes >= least)
    }

    /// True if threads for large requests make the answer.
    fn elsewhere(self) -> bool {
        self.compresses() || (self.renders && self.bytes >= LARGE_BYTES)
    }

    /// The work that is charged to its caller.
    fn work(self) -> Work {
        if self.compresses() || self.renders { Work::Parsed(self.bytes) } else { Work::Copied(self.bytes) }
    }
}

/// The share of its caller's limits that an answer holds until it is sent.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    _taken: Option<Arc<Taken>>,
    /// The reader to which its objects are lent.
    reader: Option<Arc<Reader>>,
}

impl Held {
    /// Holds the bytes that were taken for a text while it was made.
    pub(super) fn of(taken: Taken) -> Held {
        Held { _taken: Some(Arc::new(taken)), reader: None }
    }

    /// Ready when the caller's budget for its objects is exceeded.
    pub(super) fn poll_over(&self, context: &Context<'_>) -> Poll<()> {
        self.reader.as_ref().map_or(Poll::Pending, |reader| reader.poll_over(context))
    }
}

/// Prepares an answer for sending: compressed if the client asked for it and it is long, rendered on another
/// thread if that takes long. Only an answer to a request that reads may be refused for lack of bytes or
/// places: a refused client repeats its request, and so would repeat a change.
pub(super) fn finish(
    server: &Server,
    slot: &Arc<Slot>,
    parts: &Parts,
    response: Response<Body>,
) -> Response<Body> {
    let asked =
        parts.method != Method::HEAD && accepts_gzip(request::header(&parts.headers, "accept-encoding"));
    let compressed_from = asked.then(|| compressed_from(parts.uri.path()));
    let only_reads = matches!(parts.method, Method::GET | Method::HEAD);
    let (mut head, mut body) = response.into_parts();
    let (bytes, renders, cost) = match &body {
        Body::Items(items) => (items.bytes, items.render.is_some(), items.held()),
        Body::Parts(parts) => {
            let bytes = parts.iter().map(Bytes::len).sum();
            (bytes, false, bytes)
        }
        // the text is in memory with or without this answer, so only the pieces under way are charged
        Body::Shared(text) => (text.len(), false, text.len().min(HELD_BYTES)),
        Body::Made(_) | Body::Watch(_) | Body::Relay(_) => (0, false, 0),
    };
    let mut held: Held = head.extensions.remove().unwrap_or_default();
    if held._taken.is_none() && cost > FREE_BYTES {
        match slot.take(Resource::BodyBytes, cost) {
            Ok(taken) => held = Held::of(taken),
            Err(refused) if only_reads => return super::respond::error(&refused),
            Err(_) if matches!(&body, Body::Items(items) if items.render.is_none()) => {}
            // its change was made, but its caller's budget does not allow its text
            Err(_) => return super::respond::done(head.status.as_u16()),
        }
    }
    if let Body::Items(items) = &mut body
        && items.is_lent()
    {
        let reader = Arc::new(Reader::new(slot.clone()));
        items.lend(&reader);
        held.reader = Some(reader);
    }
    let sending = Sending { compressed_from, only_reads, bytes, renders };
    let mut response = formed(server, slot, Response::from_parts(head, body), sending);
    // the connection keeps it until the answer is sent
    response.extensions_mut().insert(held);
    response
}

fn compressed_from(path: &str) -> usize {
    match path {
        "/api" | "/apis" => DISCOVERY_COMPRESSED_FROM,
        _ => COMPRESSED_FROM,
    }
}

/// Turns the answer into a long one, if it is long.
fn formed(server: &Server, slot: &Arc<Slot>, response: Response<Body>, sending: Sending) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    let (renders, compresses) = (sending.renders, sending.compresses());
    slot.charge(sending.work(), Instant::now());
    if !sending.elsewhere() {
        return if renders { whole(head, body) } else { Response::from_parts(head, body) };
    }
    let taken = match slot.take(Resource::LongAnswers, 1) {
        Ok(taken) => Some(taken),
        // an uncompressed answer needs no place
        Err(_) if !renders => return Response::from_parts(head, body),
        Err(refused) if sending.only_reads => return super::respond::error(&refused),
        Err(_) => None,
    };
    if compresses {
        head.headers.insert(header::CONTENT_ENCODING, header::HeaderValue::from_static("gzip"));
        head.headers.append(header::VARY, header::HeaderValue::from_static("Accept-Encoding"));
    }
    let (out, pieces) = mpsc::channel(PIECES_AHEAD);
    match body {
        Body::Items(items) => drop(server.large.spawn(make(*items, compresses, out, taken))),
        Body::Parts(parts) => drop(server.large.spawn(make(cut(parts), compresses, out, taken))),
        Body::Shared(text) => drop(server.large.spawn(make(cut([text].into()), compresses, out, taken))),
        body => return Response::from_parts(head, body),
    }
    Response::from_parts(head, Body::Made(Made { pieces, complete: false }))
}

/// Makes a short answer, so that its length is known before it is sent.
fn whole(head: http::response::Parts, body: Body) -> Response<Body> {
    let body = match body {
        Body::Items(items) => Body::Parts(items.collect()),
        body => body,
    };
    Response::from_parts(head, body)
}

fn cut(parts: VecDeque<Bytes>) -> impl Iterator<Item = Bytes> {
    parts.into_iter().flat_map(|part| {
        let ends = (0..part.len()).step_by(PIECE_BYTES);
        ends.map(move |from| part.slice(from..part.len().min(from + PIECE_BYTES))).collect::<Vec<_>>()
    })
}

/// Makes an answer piece by piece, and yields in between. Ends when the client has left.
async fn make(
    pieces: impl Iterator<Item = Bytes>,
    compresses: bool,
    out: mpsc::Sender<Piece>,
    _taken: Option<Taken>,
) {
    let mut encoder = compresses.then(|| GzEncoder::new(Vec::new(), Compression::new(LEVEL)));
    for piece in pieces {
        let piece = match &mut encoder {
            None => piece,
            Some(encoder) => match encoder.write_all(&piece) {
                Ok(()) if encoder.get_ref().len() < PIECE_BYTES / 2 => Bytes::new(),
                Ok(()) => std::mem::take(encoder.get_mut()).into(),
                // writing to memory does not fail
                Err(_) => return,
            },
        };
        if !piece.is_empty() && out.send(Piece::Some(piece)).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
    if let Some(encoder) = encoder {
        let Ok(rest) = encoder.finish() else { return };
        if out.send(Piece::Some(rest.into())).await.is_err() {
            return;
        }
    }
    // the client may have left
    let _ = out.send(Piece::Last).await;
}

/// As upstream reads the header: `gzip` without parameters.
fn accepts_gzip(accepted: &str) -> bool {
    accepted.split(',').any(|encoding| encoding.trim() == "gzip")
}

/// Indents the answer unless it is too long; on threads for large requests if it is large. A caller with too
/// many long answers in progress gets it unindented.
pub(super) async fn pretty(server: &Server, slot: &Arc<Slot>, response: Response<Body>) -> Response<Body> {
    let bytes = match response.body() {
        Body::Items(items) => items.bytes,
        Body::Parts(parts) => parts.iter().map(Bytes::len).sum(),
        Body::Shared(text) => text.len(),
        Body::Made(_) | Body::Watch(_) | Body::Relay(_) => return response,
    };
    if bytes > MAX_PRETTY_BYTES {
        return response;
    }
    slot.charge(Work::Parsed(bytes), Instant::now());
    if bytes <= LARGE_BYTES {
        return super::respond::pretty(response);
    }
    let Ok(taken) = slot.take(Resource::LongAnswers, 1) else { return response };
    let indented = server.large.spawn(async move {
        let _taken = taken;
        super::respond::pretty(response)
    });
    indented.await.unwrap_or_else(|error| super::respond::error(&ApiError::internal(error.to_string())))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use kedge_hub_core::kinds::CONFIG_MAP;
    use serde_json::{Value, json};

    fn objects(count: usize) -> Vec<Arc<Object>> {
        let object = |number: usize| {
            let map = json!({"metadata": {"name": format!("m{number}")}, "data": {"k": "x".repeat(1000)}});
            Arc::new(Object::new(&CONFIG_MAP, &map, 1 + number as u64).unwrap())
        };
        (0..count).map(object).collect()
    }

    fn items(count: usize) -> Items {
        Items::new(b"{\"items\":[".to_vec(), objects(count), None)
    }

    #[test]
    fn list_in_pieces_is_the_whole_list() {
        for count in [0, 1, 2, 100, 1000] {
            let list = items(count);
            let length = list.length().unwrap();
            let pieces: Vec<Bytes> = list.collect();
            assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES + 2));
            let text: Vec<u8> = pieces.into_iter().flatten().collect();
            assert_eq!(text.len() as u64, length);
            let read: Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(read["items"].as_array().unwrap().len(), count);
        }
    }

    #[test]
    fn large_objects_are_sent_in_small_pieces() {
        let object = |number: usize| {
            let map = json!({"metadata": {"name": format!("m{number}")}, "data": {"k": "x".repeat(100_000 + number)}});
            Arc::new(Object::new(&CONFIG_MAP, &map, 1 + number as u64).unwrap())
        };
        let objects: Vec<_> = (0..3).map(object).collect();
        let text =
            |objects: &[Arc<Object>]| objects.iter().map(|object| object.json.to_vec()).collect::<Vec<_>>();
        let list = [b"[".to_vec(), text(&objects).join(&b','), b"]}".to_vec()].concat();
        let twice = |object: &Object, text: &mut Vec<u8>| {
            text.extend_from_slice(&object.json);
            text.extend_from_slice(&object.json);
        };
        let rendered = [
            b"[".to_vec(),
            text(&objects).iter().map(|text| text.repeat(2)).collect::<Vec<_>>().join(&b','),
            b"]}".to_vec(),
        ]
        .concat();
        for (items, expect) in [
            (Items::new(b"[".to_vec(), objects.clone(), None), list),
            (Items::one(objects[0].clone()), objects[0].json.to_vec()),
            (Items::new(b"[".to_vec(), objects.clone(), Some(Box::new(twice))), rendered),
        ] {
            let pieces: Vec<Bytes> = items.collect();
            assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES + 2));
            assert!(pieces.concat() == expect);
        }
    }

    #[test]
    fn long_answers_are_made_elsewhere_and_paid_for() {
        let check = |asked, renders, bytes, compresses, elsewhere| {
            let compressed_from = bool::then_some(asked, COMPRESSED_FROM);
            let sending = Sending { compressed_from, only_reads: true, bytes, renders };
            let found = (sending.compresses(), sending.elsewhere());
            assert_eq!(found, (compresses, elsewhere), "{sending:?}");
            let is_parsed = matches!(sending.work(), Work::Parsed(paid) if paid == bytes);
            let is_copied = matches!(sending.work(), Work::Copied(paid) if paid == bytes);
            assert_eq!(
                (is_parsed, is_copied),
                (compresses || renders, !(compresses || renders)),
                "{sending:?}"
            );
        };
        check(true, false, 128 * 1024 - 1, false, false);
        check(true, false, 128 * 1024, true, true);
        check(false, false, 1 << 24, false, false);
        check(false, true, 64 * 1024 - 1, false, false);
        check(false, true, 64 * 1024, false, true);
        check(true, true, 64 * 1024, false, true);
        check(true, true, 128 * 1024, true, true);
        check(true, true, 0, false, false);
    }

    #[tokio::test]
    async fn compressed_answer_is_the_same() {
        for (count, compresses) in [(1000, true), (1000, false), (0, true)] {
            let limits = super::super::limits::Limits::new(&crate::capacity::Capacity::of(
                &crate::capacity::Machine { memory_bytes: 1 << 30, descriptors: 4096, processors: 1 },
            ));
            let slot = limits.slot(None, [127, 0, 0, 1].into(), std::time::Instant::now());
            let taken = slot.take(Resource::LongAnswers, 1).unwrap();
            let (out, pieces) = mpsc::channel(PIECES_AHEAD);
            let mut made = Made { pieces, complete: false };
            tokio::spawn(make(items(count), compresses, out, Some(taken)));
            let mut sent = Vec::new();
            while let Some(piece) = std::future::poll_fn(|context| made.poll_next(context)).await {
                sent.extend_from_slice(&piece.unwrap());
            }
            let text = if compresses {
                let mut text = Vec::new();
                flate2::read::GzDecoder::new(&*sent).read_to_end(&mut text).unwrap();
                assert!(sent.len() < text.len() / 5 || count == 0);
                text
            } else {
                sent
            };
            assert_eq!(text, items(count).flatten().collect::<Vec<u8>>());
        }
    }

    #[tokio::test]
    async fn answer_that_breaks_off_is_an_error() {
        let (out, pieces) = mpsc::channel(PIECES_AHEAD);
        let mut made = Made { pieces, complete: false };
        out.send(Piece::Some(Bytes::from_static(b"{"))).await.unwrap();
        drop(out);
        let mut next = async || std::future::poll_fn(|context| made.poll_next(context)).await;
        assert!(next().await.unwrap().is_ok());
        assert!(next().await.unwrap().is_err());
    }

    #[test]
    fn gzip_is_asked_for_as_upstream_reads_it() {
        for (header, expect) in [
            ("", false),
            ("gzip", true),
            ("deflate, gzip", true),
            ("gzip;q=0", false),
            ("br", false),
            ("*", false),
        ] {
            assert_eq!(accepts_gzip(header), expect, "{header}");
        }
    }
}
