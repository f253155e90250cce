//! `grpc.health.v1.Health/Check` without TLS: one call on one HTTP/2 connection, with only as much of both
//! protocols as it needs.
//!
//! Always holds: the message decides (SERVING passes), so no header of the answer is decoded; frames and
//! message have a limit; a server with another protocol fails the probe. A library for HTTP/2 would be larger
//! than all other probes.

use super::stream::{Stream, shown, worded};
use kedge_core::pods::ProbeOutcome;
use tokio::io::{AsyncRead, AsyncWrite};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PATH: &str = "/grpc.health.v1.Health/Check";
/// Largest frame that a server may send to a client that allowed no larger one.
const FRAME_BYTES: usize = 16 * 1024;
/// Longest name of a service, and longest message: a health status has two bytes.
const SERVICE_BYTES: usize = 4 * 1024;
const MESSAGE_BYTES: usize = 4 * 1024;
/// Most frames before the answer is whole.
const FRAMES: usize = 100;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// Makes the call, and judges the answer.
pub(super) async fn check(host: &str, port: u16, service: &str) -> ProbeOutcome {
    if service.len() > SERVICE_BYTES {
        return ProbeOutcome::Errored(format!(
            "the name of the service is longer than {SERVICE_BYTES} bytes"
        ));
    }
    let at = shown(host, port);
    let mut stream = match Stream::connect(host, port).await {
        Ok(stream) => stream,
        Err(why) => {
            return ProbeOutcome::Failed(format!("error: failed to connect service at {at:?}: {why}"));
        }
    };
    asked(&mut stream, &at, service).await
}

/// The outcome of a probe for the answer on this connection; for the fuzzer.
pub(super) async fn answered<S: AsyncRead + AsyncWrite + Unpin>(socket: S) -> ProbeOutcome {
    asked(&mut Stream::over(socket), "10.0.0.9:80", "").await
}

async fn asked<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut Stream<S>,
    at: &str,
    service: &str,
) -> ProbeOutcome {
    match call(stream, at, service).await {
        Ok(message) => judged(&message),
        Err(why) => ProbeOutcome::Failed(format!("error: health rpc to {at:?} failed: {why}")),
    }
}

fn judged(message: &[u8]) -> ProbeOutcome {
    match status_in(message) {
        Some(1) => ProbeOutcome::Passed,
        Some(status) => {
            let names = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];
            let number = status.to_string();
            let name = usize::try_from(status).ok().and_then(|status| names.get(status).copied());
            let name = name.unwrap_or(&number);
            ProbeOutcome::Failed(format!("service unhealthy (responded with {name:?})"))
        }
        None => ProbeOutcome::Failed(
            "error: the server answered without a health status: it may not know the service, or not implement \
             the grpc health protocol (grpc.health.v1.Health)"
                .into(),
        ),
    }
}

/// The status in a call's answer: five bytes of length, then field 1 of the message, UNKNOWN if it is absent.
fn status_in(answer: &[u8]) -> Option<u64> {
    let (&[0, a, b, c, d], rest) = answer.split_first_chunk()? else { return None };
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?;
    let mut message = rest.get(..length)?;
    let mut status = 0;
    while !message.is_empty() {
        let (key, rest) = varint(message)?;
        message = match key & 7 {
            0 => {
                let (value, rest) = varint(rest)?;
                if key >> 3 == 1 {
                    status = value;
                }
                rest
            }
            1 => rest.get(8..)?,
            2 => {
                let (length, rest) = varint(rest)?;
                rest.get(usize::try_from(length).ok()?..)?
            }
            5 => rest.get(4..)?,
            _ => return None,
        };
    }
    Some(status)
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f).checked_shl(7 * u32::try_from(index).ok()?)?;
        if byte & 0x80 == 0 {
            return Some((value, &bytes[index + 1..]));
        }
    }
    None
}

async fn call<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut Stream<S>,
    authority: &str,
    service: &str,
) -> Result<Vec<u8>, String> {
    let said = |error: std::io::Error| worded(&error);
    let mut request = PREFACE.to_vec();
    frame(&mut request, SETTINGS, 0, 0, &[]);
    frame(&mut request, HEADERS, END_HEADERS, 1, &head(authority));
    frame(&mut request, DATA, END_STREAM, 1, &body(service));
    stream.write_all(&request).await.map_err(said)?;

    let mut received = Vec::new();
    let mut message = Vec::new();
    for _ in 0..FRAMES {
        let Frame { kind, flags, stream: of, payload } = next_frame(stream, &mut received).await?;
        let mut reply = Vec::new();
        match (kind, of) {
            (SETTINGS, _) if flags & ACK == 0 => frame(&mut reply, SETTINGS, ACK, 0, &[]),
            (PING, _) if flags & ACK == 0 => frame(&mut reply, PING, ACK, 0, &payload),
            (GO_AWAY, _) => {
                return Err(format!("the server ends the connection, code {}", code(&payload, 4)));
            }
            (RST_STREAM, 1) => return Err(format!("the server ends the call, code {}", code(&payload, 0))),
            (DATA, 1) => message.extend_from_slice(unpadded(&payload, flags)?),
            _ => {}
        }
        if message.len() > MESSAGE_BYTES {
            return Err(format!("the answer is longer than {MESSAGE_BYTES} bytes"));
        }
        if of == 1 && matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            return Ok(message);
        }
        stream.write_all(&reply).await.map_err(said)?;
    }
    Err(format!("no answer in {FRAMES} frames"))
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

async fn next_frame<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut Stream<S>,
    received: &mut Vec<u8>,
) -> Result<Frame, String> {
    let mut buffer = [0; 4096];
    loop {
        if let Some((&[a, b, c, kind, flags, s, t, u, v], rest)) = received.split_first_chunk() {
            let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
            if length > FRAME_BYTES {
                return Err("the server does not speak HTTP/2".into());
            }
            if let Some(payload) = rest.get(..length) {
                let stream = u32::from_be_bytes([s, t, u, v]) & 0x7fff_ffff;
                let frame = Frame { kind, flags, stream, payload: payload.to_vec() };
                received.drain(..9 + length);
                return Ok(frame);
            }
        }
        match stream.read(&mut buffer).await.map_err(|error| worded(&error))? {
            0 => return Err("EOF".into()),
            length => received.extend_from_slice(&buffer[..length]),
        }
    }
}

fn code(payload: &[u8], at: usize) -> u32 {
    let bytes = payload.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_be_bytes)
}

fn unpadded(payload: &[u8], flags: u8) -> Result<&[u8], String> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let (padding, rest) = payload.split_first().ok_or("a frame without its padding")?;
    let length = rest.len().checked_sub(usize::from(*padding)).ok_or("a frame without its padding")?;
    Ok(&rest[..length])
}

fn frame(to: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    to.extend_from_slice(&length[1..]);
    to.extend_from_slice(&[kind, flags]);
    to.extend_from_slice(&stream.to_be_bytes());
    to.extend_from_slice(payload);
}

/// The request's head in HPACK (RFC 7541), with the static table and no Huffman codes.
fn head(authority: &str) -> Vec<u8> {
    // :method POST and :scheme http
    let mut head = vec![0x83, 0x86];
    // :path, :authority, content-type, user-agent: a name of the table, a value that is not indexed
    let (major, minor) = kedge_api::KUBERNETES_VERSION;
    let user_agent = format!("kube-probe/{major}.{minor}");
    for (name, value) in [(4, PATH), (1, authority), (31, "application/grpc"), (58, &user_agent)] {
        integer(&mut head, 4, name);
        text(&mut head, value);
    }
    head.push(0);
    text(&mut head, "te");
    text(&mut head, "trailers");
    head
}

/// An integer of HPACK after a prefix of zeros that leaves this many bits.
fn integer(to: &mut Vec<u8>, bits: u32, value: usize) {
    let most = (1_usize << bits) - 1;
    if value < most {
        to.push(u8::try_from(value).unwrap_or(0));
        return;
    }
    to.push(u8::try_from(most).unwrap_or(0));
    let mut rest = value - most;
    while rest >= 128 {
        to.push(u8::try_from(rest % 128).unwrap_or(0) | 0x80);
        rest /= 128;
    }
    to.push(u8::try_from(rest).unwrap_or(0));
}

fn text(to: &mut Vec<u8>, text: &str) {
    integer(to, 7, text.len());
    to.extend_from_slice(text.as_bytes());
}

/// `HealthCheckRequest` with its length.
fn body(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        let mut length = service.len();
        while length >= 128 {
            message.push(u8::try_from(length % 128).unwrap_or(0) | 0x80);
            length /= 128;
        }
        message.push(u8::try_from(length).unwrap_or(0));
        message.extend_from_slice(service.as_bytes());
    }
    let length = u32::try_from(message.len()).unwrap_or(0).to_be_bytes();
    [&[0], &length[..], &message].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_those_of_rfc_7541() {
        let of = |bits, value| {
            let mut bytes = Vec::new();
            integer(&mut bytes, bits, value);
            bytes
        };
        assert_eq!(of(5, 10), [10]);
        assert_eq!(of(5, 1337), [31, 154, 10]);
        assert_eq!(of(4, 31), [15, 16]);
        assert_eq!(of(7, 127), [127, 0]);
    }

    #[test]
    fn status_is_found_in_the_message() {
        for (answer, expect) in [
            (&[0, 0, 0, 0, 2, 8, 1][..], Some(1)),
            (&[0, 0, 0, 0, 0], Some(0)),
            (&[0, 0, 0, 0, 7, 0x12, 1, b'x', 0x1d, 8, 2, 9], None),
            (&[0, 0, 0, 0, 5, 0x12, 1, b'x', 8, 2], Some(2)),
            (&[1, 0, 0, 0, 2, 8, 1], None),
            (&[0, 0, 0, 0, 9, 8, 1], None),
            (&[], None),
        ] {
            assert_eq!(status_in(answer), expect, "{answer:?}");
        }
        let unhealthy = ProbeOutcome::Failed("service unhealthy (responded with \"NOT_SERVING\")".into());
        assert_eq!(judged(&[0, 0, 0, 0, 2, 8, 2]), unhealthy);
        assert!(matches!(judged(&[]), ProbeOutcome::Failed(why) if why.contains("without a health status")));
    }

    #[test]
    fn grpc_health_request_contains_the_service_name() {
        assert_eq!(body(""), [0, 0, 0, 0, 0]);
        assert_eq!(body("ab"), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        assert_eq!(body(&"x".repeat(300))[..8], [0, 0, 0, 1, 47, 0x0a, 0xac, 2]);
    }
}
