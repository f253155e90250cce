//! Long answers, made in pieces: lists that are written as they are sent, tables that are rendered on threads
//! of their own, and answers that are compressed for clients that ask for it.
//!
//! Always holds: a thread that answers requests does not render or compress long answers, and yields to
//! others while it writes one. For a client that reads slowly the hub keeps a few pieces, the compressor, and
//! the objects, which cost nothing while they are the latest versions (`kedge_hub_core::loans`); bytes that
//! are made only for this client are charged to it until they are sent. An answer that cannot be completed
//! ends its connection, so that no client takes a part for the whole.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use kedge_hub_core::loans::{Borrower, Loan};
use kedge_hub_core::object::Object;
use tokio::sync::mpsc;

use super::large::LARGE_BYTES;
use super::limits::{Taken, Work};
use crate::memory::Reader;

/// Size of a piece: a TLS record.
pub(crate) const PIECE_BYTES: usize = 16 * 1024;
/// Pieces after which a task yields: at most a few milliseconds of copying and encrypting.
const PIECES_AT_A_TIME: usize = 16;
/// Most pieces that wait for a slow client.
pub(crate) const PIECES_AHEAD: usize = 2;
/// Answers from this size on are compressed; upstream's threshold and level.
pub(crate) const COMPRESSED_FROM: usize = 128 * 1024;
/// The same for discovery, which kubectl reads before its first command and then every few hours: twice 4 KB,
/// in which the same names repeat.
pub(crate) const DISCOVERY_COMPRESSED_FROM: usize = 2 * 1024;
pub(crate) const LEVEL: u32 = 1;

/// Answers up to this size charge their caller nothing: that much is already reckoned for its connection.
pub(super) const FREE_BYTES: usize = 16 * 1024;
/// Bytes of a longer answer that are in memory at a time while it is sent: up to three pieces in the HTTP
/// library, one in TLS.
pub(crate) const HELD_BYTES: usize = 4 * PIECE_BYTES;
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
    pub(crate) render: Option<Render>,
    /// The object that is being sent, and the number of its bytes already sent.
    current: Option<(Text, usize)>,
    begun: bool,
    done: bool,
    /// Bytes of the stored texts: exact for the list itself, an estimate for other forms.
    pub(crate) bytes: usize,
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
    pub(crate) fn held(&self) -> usize {
        let text = match self.render {
            None => self.bytes.min(HELD_BYTES),
            Some(_) => (2 * self.bytes).min(HELD_BYTES + 2 * self.largest),
        };
        text + if self.is_lent() { LOAN_BYTES * (self.objects.len() - 1) } else { 0 }
    }

    /// True if the objects have more bytes than may wait at a time: then they are charged to a reader.
    pub(crate) fn is_lent(&self) -> bool {
        self.bytes > HELD_BYTES
    }

    /// From now on the objects are charged to this reader.
    pub(crate) fn lend(&mut self, reader: &Arc<Reader>) {
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
    pub(crate) pieces: mpsc::Receiver<Piece>,
    /// Set by the last piece.
    pub(crate) complete: bool,
}

pub(crate) enum Piece {
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
pub(crate) struct Sending {
    /// The client accepts gzip for an answer from this size on.
    pub(crate) compressed_from: Option<usize>,
    /// The request changed nothing, so its client may repeat it.
    pub(crate) only_reads: bool,
    pub(crate) bytes: usize,
    pub(crate) renders: bool,
}

impl Sending {
    pub(crate) fn compresses(self) -> bool {
        self.compressed_from.is_some_and(|least| self.bytes >= least)
    }

    /// True if threads for large requests make the answer.
    pub(crate) fn elsewhere(self) -> bool {
        self.compresses() || (self.renders && self.bytes >= LARGE_BYTES)
    }

    /// The work that is charged to its caller.
    pub(crate) fn work(self) -> Work {
        if self.compresses() || self.renders { Work::Parsed(self.bytes) } else { Work::Copied(self.bytes) }
    }
}

/// The share of its caller's limits that an answer holds until it is sent.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    pub(crate) _taken: Option<Arc<Taken>>,
    /// The reader to which its objects are lent.
    pub(crate) reader: Option<Arc<Reader>>,
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

#[cfg(test)]
mod tests {
    use crate::server::finish::{accepts_gzip, make};
    use crate::server::limits::Resource;

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
