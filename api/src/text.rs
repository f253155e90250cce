//! Texts from outside: percent encoding, and excerpts of untrusted texts.
//!
//! Always holds: no function here fails on any input, and each takes time linear in it. Leaves to others:
//! which characters are allowed where, and limits in bytes.

/// A part of a URL with everything encoded but RFC 3986's unreserved characters.
#[must_use]
pub fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Undoes percent encoding; `None` if a `%` is not followed by two hexadecimal digits.
#[must_use]
pub fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
        let (high, low) = (digit()?, digit()?);
        decoded.push(u8::try_from(high * 16 + low).ok()?);
    }
    Some(decoded)
}

/// Most characters of an untrusted text that a message repeats: messages get into logs and conditions, which
/// every watcher of Nodes receives.
const EXCERPT_CHARS: usize = 60;

/// The beginning of an untrusted text, with `...` where it was cut.
#[must_use]
pub fn excerpt(text: &str) -> String {
    excerpt_of(text, EXCERPT_CHARS)
}

/// The same with at most `chars` characters.
#[must_use]
pub fn excerpt_of(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

/// At most the first `bytes` of a text, cut between two characters.
#[must_use]
pub fn head_of(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_encoding_round_trips() {
        assert_eq!(percent_encoded("metadata.name=edge-1"), "metadata.name%3Dedge-1");
        assert_eq!(percent_encoded("ä+/=~_"), "%C3%A4%2B%2F%3D~_");
        for text in ["", "a", "ä+/= %41", "%"] {
            assert_eq!(percent_decoded(&percent_encoded(text)).as_deref(), Some(text.as_bytes()), "{text:?}");
        }
        assert_eq!(percent_decoded("%fF").as_deref(), Some(&[255][..]), "need not be UTF-8");
    }

    #[test]
    fn percent_sign_without_two_digits_is_refused() {
        for text in ["%", "%4", "a%4g", "%+1", "%-1", "%%41", "%ä"] {
            assert_eq!(percent_decoded(text), None, "{text:?}");
        }
    }

    #[test]
    fn head_ends_before_a_character_that_does_not_fit() {
        assert_eq!([0, 1, 2, 9].map(|bytes| head_of("ä", bytes)), ["", "", "ä", "ä"]);
    }

    #[test]
    fn excerpt_ends_at_a_character_and_is_marked() {
        assert_eq!(excerpt_of("äöü", 3), "äöü");
        assert_eq!(excerpt_of("äöü", 2), "äö...");
        assert_eq!(excerpt_of("", 0), "");
        assert_eq!(excerpt_of("a", 0), "...");
        assert_eq!(excerpt(&"x".repeat(61)), format!("{}...", "x".repeat(60)));
    }
}
