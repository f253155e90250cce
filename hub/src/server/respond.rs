//! Answers: bodies, tables, lists, metadata, errors. They have as few headers as clients need.

use crate::server::pieces::{FREE_BYTES, Render};
use crate::server::request::Form;
use crate::server::writer::text_of;
use crate::server::writer::{Writer, metadata};
use kedge_hub_core::object::Object;
use kedge_hub_core::state::Page;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use hyper::body::{Frame, SizeHint};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::calls::Relay;
use super::pieces::{Items, Made};
use super::watch::WatchStream;
use kedge_hub_core::api_error::ApiError;

/// Warnings sent with one answer; more would not fit a client's header limits.
const MAX_WARNINGS: usize = 16;
/// Longest warning where all together have more than [`ALL_WARNINGS_CHARS`]; upstream cuts there too.
const MAX_WARNING_CHARS: usize = 256;
/// Most characters of all warnings of an answer whole.
const ALL_WARNINGS_CHARS: usize = 4096;

/// Longest answer that is indented; indenting costs several times its size.
pub(super) const MAX_PRETTY_BYTES: usize = 1024 * 1024;
/// Most bytes of the indented lines: objects have up to twice as many as their compact text.
const MOST_LINES_BYTES: usize = 4 * MAX_PRETTY_BYTES;

/// A complete body, or a watch.
pub(super) enum Body {
    /// Parts, sent one after the other.
    Parts(VecDeque<Bytes>),
    /// A text that is in memory anyway.
    Shared(Bytes),
    /// An object or a list that is written as it is sent.
    Items(Box<Items>),
    /// Made on another thread.
    Made(Made),
    /// A stream that ends with the watch.
    Watch(Box<WatchStream>),
    /// A session with a node, which takes the connection.
    Relay(Box<Relay>),
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = match &mut *self {
            Body::Parts(parts) => Poll::Ready(parts.pop_front().map(Ok)),
            Body::Shared(text) if text.is_empty() => Poll::Ready(None),
            Body::Shared(text) => Poll::Ready(Some(Ok(std::mem::take(text)))),
            Body::Items(items) => items.poll_next(context).map(|piece| piece.map(Ok)),
            Body::Made(made) => made.poll_next(context),
            // the connection is detached before it is polled
            Body::Watch(_) | Body::Relay(_) => Poll::Ready(Some(Err(io::ErrorKind::Unsupported.into()))),
        };
        next.map(|bytes| bytes.map(|bytes| bytes.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Parts(parts) => parts.is_empty(),
            Body::Shared(text) => text.is_empty(),
            _ => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Parts(parts) => SizeHint::with_exact(parts.iter().map(|part| part.len() as u64).sum()),
            Body::Shared(text) => SizeHint::with_exact(text.len() as u64),
            Body::Items(items) => items.length().map_or_else(SizeHint::default, SizeHint::with_exact),
            Body::Made(_) | Body::Watch(_) | Body::Relay(_) => SizeHint::default(),
        }
    }
}

/// An answer with a body of this media type.
pub(super) fn bytes(code: u16, media: &str, body: impl Into<Bytes>) -> Response<Body> {
    parts(code, media, VecDeque::from([body.into()]))
}

/// An answer with a text that is in memory anyway.
pub(super) fn shared(code: u16, media: &str, text: Bytes) -> Response<Body> {
    let mut response = bytes(code, media, Bytes::new());
    *response.body_mut() = Body::Shared(text);
    response
}

pub(super) fn parts(code: u16, media: &str, body: VecDeque<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::Parts(body));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Ok(media) = media.parse() {
        response.headers_mut().insert(header::CONTENT_TYPE, media);
    }
    response
}

/// An answer without a body.
pub(super) fn empty(code: u16) -> Response<Body> {
    let mut response = Response::new(Body::Parts(VecDeque::new()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

pub(super) fn json(code: u16, value: &Value) -> Response<Body> {
    bytes(code, "application/json", text_of(value))
}

/// The last answer on its connection.
pub(super) fn hang_up(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
    response
}

/// The answer to a change whose client's budget does not allow more.
pub(super) fn done(code: u16) -> Response<Body> {
    json(code, &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}))
}

/// The same JSON, indented; other bodies, and those that would be too long, are unchanged.
pub(super) fn pretty(response: Response<Body>) -> Response<Body> {
    let is_json = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|media| media.to_str().is_ok_and(|media| media.starts_with("application/json")));
    if !is_json {
        return response;
    }
    let (head, body) = response.into_parts();
    let parts = match body {
        Body::Parts(parts) => parts,
        Body::Shared(text) => VecDeque::from([text]),
        Body::Items(items) => items.collect(),
        body => return Response::from_parts(head, body),
    };
    let body = match indented(parts.iter().flatten().copied(), MOST_LINES_BYTES) {
        Some(mut lines) => {
            lines.shrink_to_fit();
            VecDeque::from([Bytes::from(lines)])
        }
        None => parts,
    };
    Response::from_parts(head, Body::Parts(body))
}

/// JSON text in lines, as serde_json writes them; `None`: they have more than `most` bytes, as deep lists do.
/// It builds no tree of values, which may take a hundred times as much memory as the text.
fn indented(text: impl Iterator<Item = u8>, most: usize) -> Option<Vec<u8>> {
    let (mut lines, mut depth) = (Vec::new(), 0_usize);
    let (mut in_text, mut escaped, mut opened) = (false, false, false);
    let new_line = |lines: &mut Vec<u8>, depth: usize| {
        lines.push(b'\n');
        lines.resize(lines.len() + 2 * depth, b' ');
    };
    for byte in text {
        if lines.len() > most {
            return None;
        }
        if !in_text && byte.is_ascii_whitespace() {
            continue;
        }
        if in_text {
            in_text = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
            lines.push(byte);
            continue;
        }
        let closes = matches!(byte, b']' | b'}');
        depth = depth.saturating_sub(usize::from(closes));
        // an empty list or object is written without a line break
        if opened != closes {
            new_line(&mut lines, depth);
        }
        opened = matches!(byte, b'[' | b'{');
        depth += usize::from(opened);
        in_text = byte == b'"';
        match byte {
            b':' => lines.extend_from_slice(b": "),
            b',' => {
                lines.push(b',');
                new_line(&mut lines, depth);
            }
            byte => lines.push(byte),
        }
    }
    lines.push(b'\n');
    Some(lines)
}

/// A refusal.
pub(super) fn error(error: &ApiError) -> Response<Body> {
    let mut response = json(error.code, &error.to_value());
    if let Some(secs) = error.retry_after_secs {
        response.headers_mut().insert(header::RETRY_AFTER, secs.into());
    }
    response
}

/// Adds the date, unless the answer has one from a program: nodes without a clock of their own use it, and so
/// do people who look for a wrong clock.
pub(super) fn date(response: &mut Response<Body>) {
    thread_local! {
        /// The last second for which a text was made, and that text.
        static LATEST: RefCell<(i64, Option<HeaderValue>)> = const { RefCell::new((i64::MIN, None)) };
    }
    let now = OffsetDateTime::now_utc();
    let text = LATEST.with_borrow_mut(|(second, text)| {
        if *second != now.unix_timestamp() {
            (*second, *text) = (now.unix_timestamp(), HeaderValue::try_from(imf_fixdate(now)).ok());
        }
        text.clone()
    });
    if let Some(text) = text {
        response.headers_mut().entry(header::DATE).or_insert(text);
    }
}

/// The format of dates in RFC 9110 section 5.6.7.
fn imf_fixdate(time: OffsetDateTime) -> String {
    let weekday = time.weekday().to_string();
    let month = time.month().to_string();
    format!(
        "{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT",
        &weekday[..3],
        time.day(),
        &month[..3],
        time.year(),
        time.hour(),
        time.minute(),
        time.second()
    )
}

/// Adds `Warning: 299 - "..."` headers.
pub(super) fn warn(response: &mut Response<Body>, warnings: &[String]) {
    let shown = &warnings[..warnings.len().min(MAX_WARNINGS)];
    let all: usize = shown.iter().map(|warning| warning.chars().count()).sum();
    let most = if all > ALL_WARNINGS_CHARS { MAX_WARNING_CHARS } else { ALL_WARNINGS_CHARS };
    for warning in shown {
        let plain: String = warning.chars().filter(|c| !c.is_control()).take(most).collect();
        let quoted = plain.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = header::HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}

/// The text of a list up to its first item.
pub(super) fn head_of_list(mut list: Value, items: &str) -> Vec<u8> {
    if let Some(fields) = list.as_object_mut() {
        fields.remove(items);
    }
    let mut head = list.to_string().into_bytes();
    head.pop();
    head.extend_from_slice(format!(",\"{items}\":[").as_bytes());
    head
}

impl Writer {
    /// The answer to a get or a write.
    pub(super) fn answer(&self, code: u16, object: &Arc<Object>) -> Response<Body> {
        let is_stored = matches!(self.form, Form::Whole | Form::Nothing) && self.kind.view.is_none();
        if is_stored && object.json.len() > FREE_BYTES {
            let mut response = bytes(code, &self.media(), Bytes::new());
            *response.body_mut() = Body::Items(Box::new(Items::one(Arc::clone(object))));
            return response;
        }
        bytes(code, &self.media(), self.object(object))
    }

    /// The answer to a list.
    pub(super) fn list(&self, page: Page, meta: Value) -> Response<Body> {
        let writer = *self;
        let (list, media, render): (_, _, Option<Render>) = match self.form {
            Form::Table(_) => {
                let render = move |object: &Object, text: &mut Vec<u8>| {
                    let row = writer.row(writer.kind.shown(object.value()));
                    text.extend_from_slice(row.to_string().as_bytes());
                };
                (self.table(std::iter::empty(), meta, true), self.media(), Some(Box::new(render)))
            }
            Form::Metadata(version) => {
                let render = move |object: &Object, text: &mut Vec<u8>| {
                    text.extend_from_slice(metadata(object.value(), version).to_string().as_bytes());
                };
                let list = json!({
                    "kind": "PartialObjectMetadataList", "apiVersion": format!("meta.k8s.io/{version}"),
                    "metadata": meta,
                });
                let media =
                    format!("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v={version}");
                (list, media, Some(Box::new(render)))
            }
            // the texts one after the other; unless the kind is a view they are never parsed
            Form::Whole | Form::Nothing => {
                let list = json!({
                    "kind": self.kind.list_kind(), "apiVersion": self.kind.api_version(), "metadata": meta,
                });
                let render: Option<Render> = match self.kind.view {
                    Some(_) => Some(Box::new(move |object: &Object, text: &mut Vec<u8>| {
                        text.extend_from_slice(&writer.kind.shown_text(object));
                    })),
                    None => None,
                };
                (list, "application/json".to_owned(), render)
            }
        };
        let head = head_of_list(list, if matches!(self.form, Form::Table(_)) { "rows" } else { "items" });
        let mut response = bytes(200, &media, Bytes::new());
        *response.body_mut() = Body::Items(Box::new(Items::new(head, page.objects, render)));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_is_in_the_form_of_http() {
        for (seconds, expect) in [
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (1_709_164_800, "Thu, 29 Feb 2024 00:00:00 GMT"),
        ] {
            let time = OffsetDateTime::from_unix_timestamp(seconds).unwrap();
            assert_eq!(imf_fixdate(time), expect);
        }
    }

    #[test]
    fn date_of_a_program_stays() {
        let mut response = empty(200);
        date(&mut response);
        assert!(response.headers()[header::DATE].to_str().unwrap().ends_with(" GMT"));
        let own = HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT");
        response.headers_mut().insert(header::DATE, own.clone());
        date(&mut response);
        assert_eq!(response.headers().get_all(header::DATE).iter().collect::<Vec<_>>(), [&own]);
    }

    #[test]
    fn lines_are_those_of_serde_json() {
        for value in [
            json!({}),
            json!([]),
            json!({"a": {}, "b": [], "c": [[], {}, [1, -2.5, null, true]]}),
            json!({"q\"u\\": "a\\\"{[,:]}", "é\n": ["", " ", "\\"]}),
            json!("text"),
            json!(17),
        ] {
            let expect = format!("{}\n", serde_json::to_string_pretty(&value).unwrap());
            for text in [value.to_string(), expect.clone()] {
                let lines = indented(text.bytes(), usize::MAX).unwrap();
                assert_eq!(String::from_utf8(lines).unwrap(), expect);
            }
        }
        let deep = (0..100).fold(json!([0, 0, 0, 0]), |inner, _| json!([inner])).to_string();
        assert!(indented(deep.bytes(), 200 * deep.len()).is_some());
        assert!(indented(deep.bytes(), 10 * deep.len()).is_none());
    }
}
