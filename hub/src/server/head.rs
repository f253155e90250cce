//! The head of a request, before the HTTP library reads it: its end, the length of the body, and signs of an
//! improper client.
//!
//! Always holds: a request that a proxy in front of the hub might read as two requests, or as one for another
//! host, is refused: bare line feeds, folded lines, no `Host` or two, two `Content-Length`s. The library is
//! given exactly one request at a time. Pure. Left to others: the request line, the names and values of
//! headers (the library).

use kedge_hub_core::api_error::ApiError;

/// Largest request head. Long selectors and client certificates' names fit many times over.
pub(super) const MAX_HEAD_BYTES: usize = 32 * 1024;
/// Largest length that is read as a number; the limit of bodies is far below.
const MAX_LENGTH_DIGITS: usize = 15;

/// The end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// Head and body take this many bytes together.
    Bytes(usize),
    /// The body is in chunks: the library finds its end, and nothing can follow it on the connection.
    Chunks,
}

/// Looks for the end of the first request's head in the received bytes; `None` if more must be received.
/// `from`: the index of the first byte that was not yet examined.
pub(super) fn framing(received: &[u8], from: usize) -> Result<Option<Framing>, ApiError> {
    // the same result for a head that arrives at once and one that arrives byte by byte
    for at in from..received.len().min(MAX_HEAD_BYTES) {
        if received[at] != b'\n' {
            continue;
        }
        if at == 0 || received[at - 1] != b'\r' {
            return Err(ApiError::bad_request("the request has a line that does not end in CR LF"));
        }
        if received[..=at].ends_with(b"\r\n\r\n") {
            return body(&received[..at - 3]).map(|body| {
                Some(match body {
                    Some(length) => Framing::Bytes((at + 1).saturating_add(length)),
                    None => Framing::Chunks,
                })
            });
        }
    }
    if received.len() > MAX_HEAD_BYTES {
        let mut error =
            ApiError::bad_request(format!("the head of the request is larger than {MAX_HEAD_BYTES} bytes"));
        error.code = 431;
        return Err(error);
    }
    Ok(None)
}

/// The length of the body, `None` for one in chunks, from the lines of a head.
fn body(head: &[u8]) -> Result<Option<usize>, ApiError> {
    let refused = |why: &str| Err(ApiError::bad_request(format!("the request has {why}")));
    let (mut hosts, mut length, mut chunks) = (0, None, false);
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let request = lines.next().unwrap_or_default();
    for line in lines {
        if matches!(line.first(), Some(b' ' | b'\t')) {
            return refused("a folded header");
        }
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return refused("a header without a colon");
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"host") {
            hosts += 1;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            if length.replace(number(value)).is_some() {
                return refused("more than one Content-Length");
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            chunks = true;
        }
    }
    match (hosts, request.ends_with(b" HTTP/1.0")) {
        (1, _) | (0, true) => {}
        (0, false) => return refused("no Host"),
        _ => return refused("more than one Host"),
    }
    match (length, chunks) {
        (None, true) => Ok(None),
        (None, false) => Ok(Some(0)),
        (Some(_), true) => refused("both Content-Length and Transfer-Encoding"),
        (Some(Some(length)), false) => Ok(Some(length)),
        (Some(None), false) => refused("a Content-Length that is not a number"),
    }
}

fn number(digits: &[u8]) -> Option<usize> {
    let plain =
        !digits.is_empty() && digits.len() <= MAX_LENGTH_DIGITS && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| plain)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result must not depend on the pieces in which the head arrives.
    fn check(request: &str, expect: Result<Option<Framing>, u16>) {
        let whole = framing(request.as_bytes(), 0).map_err(|error| error.code);
        assert_eq!(whole, expect, "{request:?}");
        let mut seen = 0;
        let mut found = Ok(None);
        while seen < request.len() && matches!(found, Ok(None)) {
            found = framing(&request.as_bytes()[..seen + 1], seen).map_err(|error| error.code);
            seen += 1;
        }
        assert_eq!(found, expect, "{request:?} byte by byte");
    }

    #[test]
    fn end_of_a_request_is_found() {
        let get = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        check(get, Ok(Some(Framing::Bytes(get.len()))));
        check(&get[..get.len() - 1], Ok(None));
        check(&format!("{get}GET / HTTP/1.1\r\n"), Ok(Some(Framing::Bytes(get.len()))));
        let post = "POST / HTTP/1.1\r\nHOST:x\r\nContent-Length: 12\r\n\r\n";
        check(post, Ok(Some(Framing::Bytes(post.len() + 12))));
        // a length that overflows 32 bits must not end the request early
        let huge = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4294967295\r\n\r\n";
        check(huge, Ok(Some(Framing::Bytes(huge.len().saturating_add(u32::MAX as usize)))));
        check("POST / HTTP/1.1\r\nhost: x\r\nTransfer-Encoding: chunked\r\n\r\n", Ok(Some(Framing::Chunks)));
        let old = "GET / HTTP/1.0\r\n\r\n";
        check(old, Ok(Some(Framing::Bytes(old.len()))));
        check("", Ok(None));
    }

    #[test]
    fn ambiguous_requests_are_refused() {
        for request in [
            "GET / HTTP/1.1\nhost: x\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: x\n\r\n",
            "GET / HTTP/1.1\r\nhost: x\r\n\n",
            "\nGET / HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
            "GET / HTTP/1.0\r\nhost: x\r\nHost: x\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: x\r\n folded\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: x\r\nname\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: +1\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1, 1\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length:\r\n\r\n",
        ] {
            check(request, Err(400));
        }
    }

    #[test]
    fn head_beyond_its_limit_is_refused() {
        let request = |bytes: usize| {
            let (before, after) = ("GET / HTTP/1.1\r\nhost: x\r\nx: ", "\r\n\r\n");
            format!("{before}{}{after}", "x".repeat(bytes - before.len() - after.len()))
        };
        check(&request(MAX_HEAD_BYTES), Ok(Some(Framing::Bytes(MAX_HEAD_BYTES))));
        check(&request(MAX_HEAD_BYTES + 1), Err(431));
        check(&request(MAX_HEAD_BYTES + 1)[..MAX_HEAD_BYTES], Ok(None));
        check(&request(MAX_HEAD_BYTES * 2), Err(431));
    }

    #[test]
    fn length_is_a_number_of_few_digits() {
        for (digits, expect) in [
            ("0", Some(0)),
            ("007", Some(7)),
            ("999999999999999", "999999999999999".parse().ok()),
            ("0000000000000001", None),
            ("", None),
            ("-1", None),
            ("1 1", None),
            ("0x1", None),
        ] {
            assert_eq!(number(digits.as_bytes()), expect, "{digits:?}");
        }
    }
}
