//! Heads of HTTP/1.1 messages, for conversations without an HTTP library: the local socket, the node's own
//! port, calls of the hub, and probes.
//!
//! Always holds: a head is read whole or not at all. Leaves to others: how many bytes and how much time it
//! may take, and the body.

use kedge_api::percent_decoded;

/// The headers of a message, and the bytes of its head with the empty line.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) bytes: usize,
    headers: Vec<(String, Vec<u8>)>,
}

impl Head {
    fn of(bytes: usize, headers: &[httparse::Header<'_>]) -> Self {
        let owned = |header: &httparse::Header<'_>| (header.name.to_ascii_lowercase(), header.value.to_vec());
        Self { bytes, headers: headers.iter().map(owned).collect() }
    }

    /// The value of the first header of this name, which is in lower case.
    pub(crate) fn value(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_slice())
    }

    /// The value without blanks around it; `None` if it is not text.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.value(name).and_then(|value| core::str::from_utf8(value).ok()).map(str::trim)
    }

    /// The names, in lower case, and values of all headers that are texts.
    pub(crate) fn into_texts(self) -> impl Iterator<Item = (String, String)> {
        let text =
            |(name, value): (String, Vec<u8>)| Some((name, String::from_utf8(value).ok()?.trim().to_owned()));
        self.headers.into_iter().filter_map(text)
    }
}

/// The head of a request: method, target, headers. `None` while it is not whole; an error also if it has more
/// headers than `most`.
pub(crate) fn request(bytes: &[u8], most: usize) -> Result<Option<(String, String, Head)>, httparse::Error> {
    let mut headers = vec![httparse::EMPTY_HEADER; most];
    let mut head = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(length) = head.parse(bytes)? else { return Ok(None) };
    let text = |part: Option<&str>| part.unwrap_or_default().to_owned();
    Ok(Some((text(head.method), text(head.path), Head::of(length, head.headers))))
}

/// The head of a response: status and headers. `None` and errors as for [`request`].
pub(crate) fn response(bytes: &[u8], most: usize) -> Result<Option<(u16, Head)>, httparse::Error> {
    let mut headers = vec![httparse::EMPTY_HEADER; most];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = head.parse(bytes)? else { return Ok(None) };
    Ok(Some((head.code.unwrap_or_default(), Head::of(length, head.headers))))
}

/// The pairs of a query; `None` if it is not encoded as it must be.
pub(crate) fn query(text: &str) -> Option<Vec<(String, String)>> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let decode = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((decoded(key, true)?, decoded(value, true)?))
    };
    pairs.map(decode).collect()
}

/// Undoes percent encoding, and a query's `+` for a blank.
pub(crate) fn decoded(text: &str, is_query: bool) -> Option<String> {
    let bytes = if is_query { percent_decoded(&text.replace('+', " ")) } else { percent_decoded(text) };
    String::from_utf8(bytes?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_is_read_only_when_it_is_whole() {
        let text = b"GET /a?b HTTP/1.1\r\nHost: h \r\nX: \xff\r\n\r\nbody";
        for end in 0..text.len() - 4 {
            assert!(request(&text[..end], 2).unwrap().is_none(), "{end}");
        }
        let (method, target, head) = request(text, 2).unwrap().unwrap();
        assert_eq!((method.as_str(), target.as_str(), head.bytes), ("GET", "/a?b", text.len() - 4));
        assert_eq!((head.text("host"), head.text("x"), head.text("y")), (Some("h"), None, None));
        assert_eq!(head.value("x"), Some(&b"\xff"[..]));
        assert_eq!(head.into_texts().collect::<Vec<_>>(), [("host".to_owned(), "h".to_owned())]);
        assert!(request(text, 1).is_err(), "too many headers");
    }

    #[test]
    fn query_that_is_badly_encoded_is_refused() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(query("a=b+c&&d&e=%2B"), Some(vec![pair("a", "b c"), pair("d", ""), pair("e", "+")]));
        assert_eq!((query("a=%f"), query("%ff=1")), (None, None));
    }
}
