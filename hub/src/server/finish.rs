//! The last form of an answer: in pieces, compressed or indented.

use crate::memory::Reader;
use crate::server::large::LARGE_BYTES;
use crate::server::limits::{Resource, Slot, Taken, Work};
use crate::server::pieces::{
    COMPRESSED_FROM, DISCOVERY_COMPRESSED_FROM, FREE_BYTES, HELD_BYTES, Held, LEVEL, Made, PIECE_BYTES,
    PIECES_AHEAD, Piece, Sending,
};
use crate::server::request;
use crate::server::respond::{Body, MAX_PRETTY_BYTES};
use crate::server::shared::Server;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::request::Parts;
use http::{Method, Response, header};
use kedge_hub_core::api_error::ApiError;
use std::collections::VecDeque;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

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

pub(super) fn compressed_from(path: &str) -> usize {
    match path {
        "/api" | "/apis" => DISCOVERY_COMPRESSED_FROM,
        _ => COMPRESSED_FROM,
    }
}

/// Turns the answer into a long one, if it is long.
pub(super) fn formed(
    server: &Server,
    slot: &Arc<Slot>,
    response: Response<Body>,
    sending: Sending,
) -> Response<Body> {
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
pub(super) fn whole(head: http::response::Parts, body: Body) -> Response<Body> {
    let body = match body {
        Body::Items(items) => Body::Parts(items.collect()),
        body => body,
    };
    Response::from_parts(head, body)
}

pub(super) fn cut(parts: VecDeque<Bytes>) -> impl Iterator<Item = Bytes> {
    parts.into_iter().flat_map(|part| {
        let ends = (0..part.len()).step_by(PIECE_BYTES);
        ends.map(move |from| part.slice(from..part.len().min(from + PIECE_BYTES))).collect::<Vec<_>>()
    })
}

/// Makes an answer piece by piece, and yields in between. Ends when the client has left.
pub(super) async fn make(
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
pub(super) fn accepts_gzip(accepted: &str) -> bool {
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
