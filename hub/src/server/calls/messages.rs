//! A node's answer in messages of a WebSocket, as upstream's API server sends logs to browsers and to other
//! clients that ask for it.
//!
//! Always holds: messages of the client are ignored, as upstream does; the last message of a complete answer
//! is followed by a close frame, and an answer that breaks off has none. Left to others: the choice of
//! requests that may be answered this way (`node_streams`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, header};
use kedge_hub_core::api_error::ApiError;

use crate::server::request::header as header_of;

/// RFC 6455 requires a server to append this to the client's key.
const KEY_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The served subprotocols: messages of bytes, and of text in base64.
const PROTOCOLS: [&str; 2] = ["binary.k8s.io", "base64.binary.k8s.io"];

/// The form of one client's messages.
#[derive(Debug)]
pub(crate) struct Messages {
    /// The one of [`PROTOCOLS`] that the client offered; if it offered none, messages have the form of the
    /// first, and the answer names no protocol.
    protocol: Option<&'static str>,
    accept: String,
}

impl Messages {
    /// A frame that closes: code 1000, all is well.
    pub(super) const CLOSE: &'static [u8] = &[0x88, 2, 0x03, 0xe8];

    /// The WebSocket that this request asks for; `None` if it asks for none.
    ///
    /// # Errors
    /// The request asks for a WebSocket that the hub does not serve.
    pub(crate) fn asked(headers: &HeaderMap) -> Result<Option<Messages>, ApiError> {
        if !header_of(headers, "upgrade").eq_ignore_ascii_case("websocket") {
            return Ok(None);
        }
        let version = header_of(headers, "sec-websocket-version");
        let key = header_of(headers, "sec-websocket-key");
        if version != "13" || key.is_empty() {
            return Err(ApiError::bad_request(format!(
                "expected a WebSocket of version 13 with a key, found version {version:?}"
            )));
        }
        let offered = header_of(headers, "sec-websocket-protocol");
        let offered: Vec<&str> = offered.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        // as upstream, the first that the client lists
        let protocol = offered.iter().find_map(|name| PROTOCOLS.into_iter().find(|known| known == name));
        if protocol.is_none() && !offered.is_empty() {
            return Err(ApiError::bad_request(format!(
                "expected one of the WebSocket protocols {}, found {offered:?}",
                PROTOCOLS.join(", ")
            )));
        }
        let text = format!("{key}{KEY_SUFFIX}");
        let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
        Ok(Some(Messages { protocol, accept: STANDARD.encode(digest) }))
    }

    /// The headers of the 101.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        if let Ok(accept) = HeaderValue::from_str(&self.accept) {
            headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        }
        if let Some(protocol) = self.protocol {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
        }
        headers
    }

    /// A whole message with these bytes.
    pub(super) fn frame(&self, bytes: &[u8]) -> Vec<u8> {
        let is_text = self.protocol == Some(PROTOCOLS[1]);
        let encoded = is_text.then(|| STANDARD.encode(bytes).into_bytes());
        let bytes = encoded.as_deref().unwrap_or(bytes);
        // the final frame of a message, of text or bytes; a server does not mask
        let mut frame = vec![if is_text { 0x81 } else { 0x82 }];
        match (u8::try_from(bytes.len()), u16::try_from(bytes.len())) {
            (Ok(length @ ..=125), _) => frame.push(length),
            (_, Ok(length)) => {
                frame.push(126);
                frame.extend_from_slice(&length.to_be_bytes());
            }
            _ => {
                frame.push(127);
                frame.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
            }
        }
        frame.extend_from_slice(bytes);
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(protocol: &str) -> Result<Option<Messages>, ApiError> {
        let mut headers = HeaderMap::new();
        headers.insert("upgrade", HeaderValue::from_static("WebSocket"));
        headers.insert("sec-websocket-version", HeaderValue::from_static("13"));
        // the example of RFC 6455, section 1.3
        headers.insert("sec-websocket-key", HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ=="));
        headers.insert("sec-websocket-protocol", HeaderValue::from_str(protocol).unwrap());
        Messages::asked(&headers)
    }

    #[test]
    fn protocol_is_the_clients_first_that_is_known() {
        let check = |offered: &str, expect: Option<&str>| {
            let messages = asked(offered).unwrap().unwrap();
            assert_eq!(messages.protocol, expect, "{offered}");
            assert_eq!(messages.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        };
        check("", None);
        check("binary.k8s.io", Some("binary.k8s.io"));
        check("x, base64.binary.k8s.io, binary.k8s.io", Some("base64.binary.k8s.io"));
        assert_eq!(asked("v4.channel.k8s.io").unwrap_err().code, 400);
        assert!(Messages::asked(&HeaderMap::new()).unwrap().is_none());
    }

    #[test]
    fn lengths_are_written_as_the_rfc_says() {
        let messages = asked("binary.k8s.io").unwrap().unwrap();
        assert_eq!(messages.frame(b""), [0x82, 0]);
        assert_eq!(messages.frame(b"ab"), [0x82, 2, b'a', b'b']);
        assert_eq!(messages.frame(&[0; 126])[..4], [0x82, 126, 0, 126]);
        assert_eq!(messages.frame(&[0; 65536])[..10], [0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]);
        let text = asked("base64.binary.k8s.io").unwrap().unwrap();
        assert_eq!(text.frame(b"ab"), b"\x81\x04YWI=");
    }
}
