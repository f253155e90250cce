//! The hub as a client of a node: one request on a connection that the node dialled, and the head of the
//! node's answer.
//!
//! Always holds: the node's bytes are bounded and checked before any of them reach the client; its errors
//! become `Status` objects, as upstream's API server makes of a kubelet's. Left to others: the body of a good
//! answer (`relay`).

use std::io;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use kedge_api::POD_PORT_UPGRADE;
use kedge_hub_core::api_error::ApiError;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::timeout;

use super::relay::{Framing, Incoming, Relay};

/// Longest wait for the head of the answer. The node looks for a container meanwhile, or starts a program in
/// it.
const HEAD: Duration = Duration::from_secs(30);
/// Most bytes of the head.
const HEAD_BYTES: usize = 16 * 1024;
/// Most headers of the answer.
const HEADERS: usize = 32;
/// Most bytes that are read of an error's text, as upstream.
const ERROR_BYTES: usize = 10 * 1024;
/// The headers by which both ends of an upgrade agree on a protocol.
const OF_UPGRADES: [&str; 7] = [
    "upgrade",
    "sec-websocket-key",
    "sec-websocket-version",
    "sec-websocket-protocol",
    "sec-websocket-extensions",
    "sec-websocket-accept",
    "x-stream-protocol-version",
];

/// A request to a node.
#[derive(Debug)]
pub(crate) struct Asked {
    method: &'static str,
    target: String,
    /// Headers of a request to upgrade.
    headers: Vec<(&'static str, HeaderValue)>,
}

impl Asked {
    /// A plain request.
    pub(crate) fn get(target: String) -> Asked {
        Asked { method: "GET", target, headers: Vec::new() }
    }

    /// The same; it asks for an upgrade if the client does.
    pub(crate) fn stream(target: String, parts: &http::request::Parts) -> Asked {
        let method = if parts.method == http::Method::POST { "POST" } else { "GET" };
        let mut headers = Vec::new();
        if parts.headers.contains_key(header::UPGRADE) {
            for name in OF_UPGRADES {
                headers.extend(parts.headers.get_all(name).iter().map(|value| (name, value.clone())));
            }
        }
        Asked { method, target, headers }
    }

    /// A request for a port of a pod.
    fn port(target: String) -> Asked {
        let headers = vec![("upgrade", HeaderValue::from_static(POD_PORT_UPGRADE))];
        Asked { method: "GET", target, headers }
    }

    fn upgrades(&self) -> bool {
        !self.headers.is_empty()
    }

    fn text(&self) -> Vec<u8> {
        let connection = if self.upgrades() { "Upgrade" } else { "close" };
        let mut text =
            format!("{} {} HTTP/1.1\r\nHost: node\r\nConnection: {connection}\r\n", self.method, self.target)
                .into_bytes();
        for (name, value) in &self.headers {
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(b": ");
            text.extend_from_slice(value.as_bytes());
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(b"\r\n");
        text
    }
}

/// The head of an answer.
#[derive(Debug)]
struct Head {
    status: u16,
    framing: Option<Framing>,
    headers: HeaderMap,
}

/// Sends the request and reads the head of the answer; a refusal is an error.
pub(super) async fn ask(mut stream: DuplexStream, node: &str, asked: Asked) -> Result<Relay, ApiError> {
    let (head, early) = head_of(&mut stream, node, &asked).await?;
    match (head.status, head.framing) {
        (101, _) if asked.upgrades() => {
            let mut headers = head.headers;
            headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
            Ok(Relay::upgraded(stream, early, headers))
        }
        (200, Some(framing)) => {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, harmless(head.headers.get(header::CONTENT_TYPE)));
            headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            Ok(Relay::body(stream, Incoming::new(early, framing), headers))
        }
        _ => Err(refused(stream, early, node, &head).await),
    }
}

/// Has the node connect to a port of a pod; returns the connection to the program there.
pub(super) async fn connect(
    mut stream: DuplexStream,
    node: &str,
    target: String,
) -> Result<DuplexStream, ApiError> {
    let (head, early) = head_of(&mut stream, node, &Asked::port(target)).await?;
    match head.status {
        101 if early.is_empty() => Ok(stream),
        101 => Err(ApiError::program_failed("it speaks before it is asked")),
        _ => Err(refused(stream, early, node, &head).await),
    }
}

/// The head of the answer, and the bytes received after it.
async fn head_of(stream: &mut DuplexStream, node: &str, asked: &Asked) -> Result<(Head, Vec<u8>), ApiError> {
    let failed = |why: String| ApiError::node_failed(node, &why);
    let exchanged = async {
        stream.write_all(&asked.text()).await?;
        read_head(stream).await
    };
    match timeout(HEAD, exchanged).await {
        Ok(exchanged) => exchanged.map_err(|error| failed(error.to_string())),
        Err(_) => Err(failed(format!("it did not answer within {} s", HEAD.as_secs()))),
    }
}

/// The error for an answer that refuses or is malformed.
async fn refused(stream: DuplexStream, early: Vec<u8>, node: &str, head: &Head) -> ApiError {
    let Head { status, framing, .. } = *head;
    match status {
        400.. => {
            let text = error_text(stream, Incoming::new(early, framing.unwrap_or(Framing::Bytes(0)))).await;
            ApiError::of_kubelet(status, text)
        }
        _ => ApiError::node_failed(node, &format!("its answer has the status {status} and no length")),
    }
}

/// The content type of a node's answer, unless a browser would run such content: an administrator's browser
/// would take it for the hub's own.
fn harmless(given: Option<&HeaderValue>) -> HeaderValue {
    let of = |value: &&HeaderValue| {
        let text = value.to_str().unwrap_or_default();
        let kind = text.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("text/plain") || kind.eq_ignore_ascii_case("application/json")
    };
    given.filter(of).cloned().unwrap_or(HeaderValue::from_static("application/octet-stream"))
}

/// Sends a request, and returns all bytes that a client would get: for a fuzzer, which has no client.
///
/// # Errors
/// The node refuses, or its answer is malformed or incomplete.
pub async fn read_answer(stream: DuplexStream, upgrade: bool) -> Result<Vec<u8>, ApiError> {
    let mut asked = Asked::get("/x".to_owned());
    if upgrade {
        asked.headers.push(("upgrade", HeaderValue::from_static("websocket")));
    }
    let relay = ask(stream, "node", asked).await?;
    relay.read(|_| Ok(())).await.map_err(|error| ApiError::node_failed("node", &error.to_string()))
}

async fn read_head(stream: &mut DuplexStream) -> io::Result<(Head, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some((head, length)) = parse(&bytes)? {
            return Ok((head, bytes.split_off(length)));
        }
        if bytes.len() >= HEAD_BYTES {
            return Err(io::Error::other(format!("the head of its answer has more than {HEAD_BYTES} bytes")));
        }
        let mut piece = [0; 2048];
        match stream.read(&mut piece).await? {
            0 => return Err(io::Error::other("it closed the connection without an answer")),
            amount => bytes.extend_from_slice(&piece[..amount]),
        }
    }
}

fn parse(bytes: &[u8]) -> io::Result<Option<(Head, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(io::Error::other(format!("its answer is not HTTP: {error}"))),
    };
    let (mut framing, mut kept) = (None, HeaderMap::new());
    for field in head.headers.iter() {
        let value = String::from_utf8_lossy(field.value);
        if field.name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
            framing = Some(Framing::Chunks);
        } else if field.name.eq_ignore_ascii_case("content-length") && framing.is_none() {
            framing = value.trim().parse().ok().map(Framing::Bytes);
        }
        let is_kept = |name: &str| field.name.eq_ignore_ascii_case(name);
        if OF_UPGRADES.iter().any(|name| is_kept(name)) || is_kept("content-type") {
            let name = HeaderName::from_bytes(field.name.as_bytes());
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(field.value)) {
                kept.append(name, value);
            }
        }
    }
    let status = head.code.filter(|code| StatusCode::from_u16(*code).is_ok()).unwrap_or_default();
    Ok(Some((Head { status, framing, headers: kept }, length)))
}

/// The text of an error, up to a limit.
async fn error_text(mut stream: DuplexStream, mut body: Incoming) -> String {
    let mut text = Vec::new();
    let reading = async {
        while let Ok(Some(piece)) = body.next(&mut stream).await {
            text.extend_from_slice(&piece);
            if text.len() >= ERROR_BYTES {
                return;
            }
        }
    };
    // a part of the text is better than none
    let _ = timeout(HEAD, reading).await;
    text.truncate(ERROR_BYTES);
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of a node's answer.
    fn answered(upgrade: bool, answer: &str) -> Result<Relay, ApiError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (stream, mut node) = tokio::io::duplex(64 * 1024);
            node.write_all(answer.as_bytes()).await.unwrap();
            node.shutdown().await.unwrap();
            let mut request = http::Request::get("/x");
            if upgrade {
                request = request.header("upgrade", "websocket").header("authorization", "secret");
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            let relay = ask(stream, "n", Asked::stream("/x?y=z".into(), &parts)).await;
            let mut request = String::new();
            let mut piece = [0; 1024];
            let length = node.read(&mut piece).await.unwrap();
            request.push_str(&String::from_utf8_lossy(&piece[..length]));
            assert!(
                request.starts_with("GET /x?y=z HTTP/1.1\r\n") && !request.contains("secret"),
                "{request}"
            );
            assert_eq!(request.contains("upgrade: websocket\r\n"), upgrade);
            relay
        })
    }

    #[track_caller]
    fn refused(upgrade: bool, answer: &str, code: u16, text: &str) {
        let error = answered(upgrade, answer).expect_err("it is refused");
        assert_eq!(error.code, code, "{error}");
        assert!(error.message.contains(text), "{error}");
    }

    #[test]
    fn good_answer_is_relayed_without_foreign_headers() {
        let answer =
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nSet-Cookie: a\r\nContent-Length: 1\r\n\r\nx";
        let (status, headers) = answered(false, answer).ok().unwrap().head();
        assert_eq!((status.as_u16(), headers.len()), (200, 2));
        let answer = "HTTP/1.1 101 \r\nUpgrade: websocket\r\nSec-WebSocket-Accept: a\r\nServer: b\r\n\r\n";
        let (status, headers) = answered(true, answer).ok().unwrap().head();
        assert_eq!((status.as_u16(), headers.len()), (101, 3));
    }

    #[test]
    fn no_browser_runs_what_a_node_answers() {
        for (given, expect) in [
            ("Content-Type: text/plain; version=0.0.4\r\n", "text/plain; version=0.0.4"),
            ("Content-Type: application/json\r\n", "application/json"),
            ("Content-Type: text/html\r\n", "application/octet-stream"),
            ("Content-Type: text/plainly\r\n", "application/octet-stream"),
            ("Content-Type: image/svg+xml; text/plain\r\n", "application/octet-stream"),
            ("", "application/octet-stream"),
        ] {
            let answer = format!("HTTP/1.1 200 OK\r\n{given}Content-Length: 1\r\n\r\nx");
            let (_, headers) = answered(false, &answer).ok().unwrap().head();
            assert_eq!(headers[header::CONTENT_TYPE], expect);
            assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        }
    }

    #[test]
    fn error_of_a_node_is_a_status_in_its_words() {
        refused(false, "HTTP/1.1 400 Bad\r\nContent-Length: 4\r\n\r\nno a", 400, "no a");
        refused(true, "HTTP/1.1 404 \r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n", 404, "no");
        refused(false, "HTTP/1.1 500 \r\nContent-Length: 9\r\n\r\ncut", 500, "cut");
        refused(false, "HTTP/1.1 403 \r\nContent-Length: 1\r\n\r\n\n", 403, "the node gave no reason");
    }

    #[test]
    fn answer_that_makes_no_sense_is_refused() {
        refused(false, "", 500, "without an answer");
        refused(false, "SSH-2.0-x\r\n\r\n", 500, "not HTTP");
        refused(false, "HTTP/1.1 101 \r\n\r\n", 500, "status 101");
        refused(false, "HTTP/1.1 200 OK\r\n\r\nendless", 500, "no length");
        refused(false, "HTTP/1.1 302 \r\nContent-Length: 0\r\nLocation: /\r\n\r\n", 500, "302");
        refused(false, &format!("HTTP/1.1 200 OK\r\na: {}", "x".repeat(20_000)), 500, "more than");
    }
}
