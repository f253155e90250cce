//! GET requests of probes, as upstream sends and judges them.
//!
//! Always holds: a status from 200 to 399 passes; a redirect to another host is not followed, and passes with
//! a warning; a header of the spec replaces the default one; head and body are read up to a limit. Leaves to
//! others: the connection (`stream`).

use super::stream::{Stream, shown, worded};
use crate::http1;
use crate::workloads::probes::stream::OUTPUT_BYTES;
use kedge_core::pods::{HttpCheck, ProbeOutcome};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};

/// Most redirects that are followed: Go's.
const REDIRECTS: usize = 10;
/// Longest head of an answer, and most headers in it.
const HEAD_BYTES: usize = 64 * 1024;
const HEADERS: usize = 100;
/// Answers before the one that counts (100 Continue, 103 Early Hints).
const INTERIM_ANSWERS: usize = 5;

/// Returns the TLS configuration when it is needed.
type Tls<'a> = &'a (dyn Fn() -> Result<Arc<rustls::ClientConfig>, String> + Sync);

/// The target of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    is_https: bool,
    host: String,
    port: u16,
    path: String,
}

impl Target {
    fn authority(&self) -> String {
        shown(&self.host, self.port)
    }

    fn url(&self) -> String {
        let scheme = if self.is_https { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.path)
    }

    /// The target of a `Location` from here; `None` if HTTP cannot reach it.
    fn redirected(&self, location: &str) -> Option<Self> {
        let (is_https, rest) = match location.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some((scheme, _)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => return None,
            _ => match location.strip_prefix("//") {
                Some(rest) => (self.is_https, rest),
                None => return Some(Self { path: self.relative(location), ..self.clone() }),
            },
        };
        let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(at);
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let default = if is_https { 443 } else { 80 };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
            _ => (authority, default),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Some(Self { is_https, host, port, path: sendable(path) })
    }

    fn relative(&self, location: &str) -> String {
        if location.starts_with('/') {
            return sendable(location);
        }
        let path = self.path.split('?').next().unwrap_or_default();
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        sendable(&format!("{directory}/{location}"))
    }
}

/// A path in the form of a request line: absolute, without fragment, with all but ASCII escaped.
fn sendable(path: &str) -> String {
    let path = path.split('#').next().unwrap_or_default();
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut sendable = slash.to_owned();
    for byte in path.bytes() {
        match byte {
            b'!'..=b'~' => sendable.push(char::from(byte)),
            _ => sendable.push_str(&format!("%{byte:02X}")),
        }
    }
    sendable
}

/// The head of an answer, and the begin of its body.
pub(super) struct Answer {
    status: u16,
    location: Option<String>,
    body: Vec<u8>,
}

/// Sends the request, and judges the answer. It ends at `end` at the latest.
pub(super) async fn probe(check: &HttpCheck, end: Instant, tls: Tls<'_>) -> ProbeOutcome {
    match get(check, end, tls).await {
        Err(why) => ProbeOutcome::Failed(why),
        Ok(answer) => judged(&answer),
    }
}

fn judged(answer: &Answer) -> ProbeOutcome {
    match answer.status {
        200..=299 => ProbeOutcome::Passed,
        300..=399 => ProbeOutcome::Warned(format!(
            "Probe terminated redirects, Response body: {}",
            String::from_utf8_lossy(&answer.body)
        )),
        status => ProbeOutcome::Failed(format!("HTTP probe failed with statuscode: {status}")),
    }
}

/// The outcome of a probe for the answer on this connection, and the path of its redirect; for the fuzzer.
pub(super) async fn answered<S: AsyncRead + AsyncWrite + Unpin>(
    socket: S,
    end: Instant,
) -> (ProbeOutcome, Option<String>) {
    let target = Target { is_https: false, host: "10.0.0.9".into(), port: 80, path: "/healthz?a=b".into() };
    match exchange(&mut Stream::over(socket), &target, &[], end).await {
        Err(why) => (ProbeOutcome::Failed(why), None),
        Ok(answer) => {
            let next = answer.location.as_ref().and_then(|location| target.redirected(location));
            (judged(&answer), next.map(|next| next.path))
        }
    }
}

/// The last answer; the error has upstream's text.
pub(super) async fn get(check: &HttpCheck, end: Instant, tls: Tls<'_>) -> Result<Answer, String> {
    let mut target = Target {
        is_https: check.is_https,
        host: check.host.clone(),
        port: check.port,
        path: sendable(&check.path),
    };
    for _ in 0..=REDIRECTS {
        let url = target.url();
        let asked = timeout_at(end, ask(&target, &check.headers, end, tls)).await;
        let answer = asked
            .unwrap_or_else(|_| {
                Err("context deadline exceeded (Client.Timeout exceeded while awaiting headers)".into())
            })
            .map_err(|why| format!("Get {url:?}: {why}"))?;
        let next = match (answer.status, &answer.location) {
            (301 | 302 | 303 | 307 | 308, Some(location)) => target.redirected(location),
            _ => None,
        };
        match next {
            Some(next) if next.host.eq_ignore_ascii_case(&check.host) => target = next,
            _ => return Ok(answer),
        }
    }
    Err(format!("Get {:?}: stopped after {REDIRECTS} redirects", target.url()))
}

async fn ask(
    target: &Target,
    headers: &[(String, String)],
    end: Instant,
    tls: Tls<'_>,
) -> Result<Answer, String> {
    let mut stream = Stream::connect(&target.host, target.port).await?;
    if target.is_https {
        stream = stream.with_tls(&target.host, tls()?)?;
    }
    exchange(&mut stream, target, headers, end).await
}

/// Sends the request, and reads the answer to it.
async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut Stream<S>,
    target: &Target,
    headers: &[(String, String)],
    end: Instant,
) -> Result<Answer, String> {
    let said = |error: std::io::Error| worded(&error);
    stream.write_all(&request(target, headers)).await.map_err(said)?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    for _ in 0..INTERIM_ANSWERS {
        let head = loop {
            if let Some(head) = head_of(&bytes)? {
                break head;
            }
            if bytes.len() > HEAD_BYTES {
                return Err(format!("the head of the answer is longer than {HEAD_BYTES} bytes"));
            }
            match stream.read(&mut buffer).await.map_err(said)? {
                0 => return Err("EOF".into()),
                length => bytes.extend_from_slice(&buffer[..length]),
            }
        };
        bytes.drain(..head.length);
        if (100..=199).contains(&head.status) {
            continue;
        }
        // the status decides, even if the body does not end
        let _ = timeout_at(end, read_body(stream, &head, &mut bytes)).await;
        bytes.truncate(OUTPUT_BYTES);
        return Ok(Answer { status: head.status, location: head.location, body: bytes });
    }
    Err(format!("the server answered with {INTERIM_ANSWERS} interim answers"))
}

/// Reads enough of it that the server can send a short answer completely.
async fn read_body<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut Stream<S>,
    head: &Head,
    body: &mut Vec<u8>,
) {
    let mut buffer = [0; 4096];
    while body.len() < OUTPUT_BYTES && !head.is_whole(body) {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(length) => body.extend_from_slice(&buffer[..length]),
        }
    }
}

fn request(target: &Target, headers: &[(String, String)]) -> Vec<u8> {
    let given = |name: &str| headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
    let (major, minor) = kedge_api::KUBERNETES_VERSION;
    let defaults = [
        ("Host", target.authority()),
        ("User-Agent", format!("kube-probe/{major}.{minor}")),
        ("Accept", "*/*".to_owned()),
    ];
    let mut text = format!("GET {} HTTP/1.1\r\n", target.path);
    for (name, value) in defaults.iter().filter(|(name, _)| !given(name)) {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    // as upstream: a manifest leaves a header out by an empty value
    let kept = headers.iter().filter(|(name, value)| {
        let may_be_absent = ["Accept", "User-Agent"].iter().any(|other| name.eq_ignore_ascii_case(other));
        let is_left_out = value.is_empty() && may_be_absent;
        !(is_left_out || name.eq_ignore_ascii_case("connection"))
    });
    for (name, value) in kept {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("Connection: close\r\n\r\n");
    text.into_bytes()
}

#[derive(Debug, PartialEq, Eq)]
struct Head {
    length: usize,
    status: u16,
    location: Option<String>,
    content_length: Option<usize>,
    is_chunked: bool,
}

impl Head {
    fn is_whole(&self, body: &[u8]) -> bool {
        let has_none = matches!(self.status, 204 | 304);
        let has_all = self.content_length.is_some_and(|length| body.len() >= length);
        has_none || has_all || (self.is_chunked && body.ends_with(b"0\r\n\r\n"))
    }
}

/// `None` if it is incomplete.
fn head_of(bytes: &[u8]) -> Result<Option<Head>, String> {
    let parsed = http1::response(bytes, HEADERS);
    let Some((status, head)) = parsed.map_err(|error| format!("malformed HTTP response: {error}"))? else {
        return Ok(None);
    };
    let value = |name: &str| head.value(name).map(|value| String::from_utf8_lossy(value).trim().to_owned());
    Ok(Some(Head {
        length: head.bytes,
        status,
        location: value("location"),
        content_length: value("content-length").and_then(|length| length.parse().ok()),
        is_chunked: value("transfer-encoding").is_some_and(|it| it.to_ascii_lowercase().ends_with("chunked")),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(path: &str) -> Target {
        Target { is_https: false, host: "10.0.0.9".into(), port: 8080, path: path.into() }
    }

    #[test]
    fn redirects_resolve_as_urls() {
        let at = |location: &str| target("/a/b?c").redirected(location).map(|target| target.url());
        for (location, expect) in [
            ("/x", "http://10.0.0.9:8080/x"),
            ("x#f", "http://10.0.0.9:8080/a/x"),
            ("//other/x", "http://other:80/x"),
            ("https://other", "https://other:443/"),
            ("http://u:p@other:81?q", "http://other:81/?q"),
            ("https://[::1]:5/é", "https://[::1]:5/%C3%A9"),
            ("https://[::1]/", "https://[::1]:443/"),
            ("/x?to=http://other/", "http://10.0.0.9:8080/x?to=http://other/"),
        ] {
            assert_eq!(at(location).as_deref(), Some(expect), "{location}");
        }
        for nowhere in ["ftp://x/", "http://x:99999/"] {
            assert_eq!(at(nowhere), None, "{nowhere}");
        }
    }

    #[test]
    fn headers_of_the_spec_take_the_place_of_defaults() {
        let text = |headers: &[(&str, &str)]| {
            let headers: Vec<(String, String)> =
                headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            String::from_utf8(request(&target("/"), &headers)).unwrap()
        };
        let (major, minor) = kedge_api::KUBERNETES_VERSION;
        assert_eq!(
            text(&[("X", "1"), ("X", "2")]),
            format!(
                "GET / HTTP/1.1\r\nHost: 10.0.0.9:8080\r\nUser-Agent: kube-probe/{major}.{minor}\r\nAccept: */*\r\nX: 1\r\nX: 2\r\nConnection: close\r\n\r\n"
            )
        );
        assert_eq!(
            text(&[("host", "h"), ("Accept", ""), ("user-agent", ""), ("Connection", "keep-alive")]),
            "GET / HTTP/1.1\r\nhost: h\r\nConnection: close\r\n\r\n"
        );
    }

    #[test]
    fn head_is_read_once_it_is_whole() {
        let text = b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 3\r\n\r\nabc";
        let begin = text.len() - 3;
        assert_eq!(head_of(&text[..begin - 1]), Ok(None));
        let head = head_of(text).unwrap().unwrap();
        assert_eq!((head.status, head.location.as_deref(), head.length), (302, Some("/x"), begin));
        assert!(head.is_whole(&text[begin..]) && !head.is_whole(b"ab"));
        assert!(head_of(b"SSH-2.0-x\r\n").is_err());
        let chunked = head_of(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap().unwrap();
        assert!(chunked.is_whole(b"1\r\na\r\n0\r\n\r\n") && !chunked.is_whole(b"1\r\na\r\n"));
    }
}
