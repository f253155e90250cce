//! A registry's 401: the requested authentication (`WWW-Authenticate`, RFC 9110 section 11), and the answer
//! to it.
//!
//! Always holds: the header is bounded; of several challenges Bearer is preferred to Basic, others are
//! skipped; the requested scope of a token is to read one repository, whatever else the registry proposes.
//! Leaves to others: sending, and whether the token's server may see a password
//! (`agent/src/images/registry.rs`).

use kedge_api::{excerpt, percent_encoded};
use serde::Deserialize;

/// Longest header that is read; known ones have under 500 bytes.
pub const MAX_HEADER_BYTES: usize = 8 * 1024;
/// Most challenges and parameters read.
const MAX_PARTS: usize = 64;
/// Longest token; the longest known have 4 KiB, and most servers accept no header above 8 KiB.
pub const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// The authentication that a registry requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// User and password with each request.
    Basic,
    /// A token from another server.
    Bearer {
        /// The URL that gives tokens.
        realm: String,
        /// The service that the token is for; empty if the registry sends none.
        service: String,
    },
}

impl Challenge {
    /// Chooses among the challenges of one answer's headers.
    ///
    /// # Errors
    /// No challenge can be met; the text lists the challenges.
    pub fn choose<'a>(headers: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut found = None;
        let mut asked = String::new();
        for header in headers {
            if header.len() > MAX_HEADER_BYTES {
                return Err(format!(
                    "WWW-Authenticate has {} bytes, expected at most {MAX_HEADER_BYTES}",
                    header.len()
                ));
            }
            asked.push_str(header);
            for (scheme, parameters) in challenges(header) {
                match read(scheme, &parameters) {
                    bearer @ Some(Self::Bearer { .. }) => return bearer.ok_or_else(String::new),
                    other => found = found.or(other),
                }
            }
        }
        found.ok_or_else(|| {
            format!("the registry asks for authentication by {:?}, expected Basic or Bearer", excerpt(&asked))
        })
    }

    /// The URL of a token to read `repository`; `None` for Basic.
    #[must_use]
    pub fn token_url(&self, repository: &str) -> Option<String> {
        let Self::Bearer { realm, service } = self else { return None };
        let separator = if realm.contains('?') { '&' } else { '?' };
        let scope = percent_encoded(&format!("repository:{repository}:pull"));
        let mut url = format!("{realm}{separator}scope={scope}");
        if !service.is_empty() {
            url.push_str(&format!("&service={}", percent_encoded(service)));
        }
        Some(url)
    }
}

fn read(scheme: &str, parameters: &[(String, String)]) -> Option<Challenge> {
    let value = |name: &str| {
        let mut same = parameters.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
        same.next().map(|(_, value)| value.clone())
    };
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let realm =
        value("realm").filter(|realm| !realm.is_empty() && !realm.contains(['#', ' ', '\r', '\n']))?;
    Some(Challenge::Bearer { realm, service: value("service").unwrap_or_default() })
}

/// The challenges of one header: each a scheme and its parameters.
fn challenges(header: &str) -> Vec<(&str, Vec<(String, String)>)> {
    let mut found: Vec<(&str, Vec<(String, String)>)> = Vec::new();
    let mut rest = header;
    for _ in 0..MAX_PARTS {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let word = rest.find([' ', '\t', ',', '=']).unwrap_or(rest.len());
        if word == 0 {
            // not a word: the rest cannot be split
            break;
        }
        let (name, after) = rest.split_at(word);
        let parameter = after.trim_start_matches([' ', '\t']).strip_prefix('=');
        match (parameter, found.last_mut()) {
            (Some(value), Some((_, parameters))) => {
                let (value, left) = value_of(value.trim_start_matches([' ', '\t']));
                parameters.push((name.to_owned(), value));
                rest = left;
            }
            (Some(value), None) => rest = value_of(value).1,
            (None, _) => {
                found.push((name, Vec::new()));
                rest = after;
            }
        }
        if rest.is_empty() {
            break;
        }
    }
    found
}

/// A token or a quoted string, and the rest of the text.
fn value_of(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &quoted[at.saturating_add(1)..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            other => value.push(other),
        }
    }
    (value, "")
}

#[derive(Deserialize)]
struct RawToken {
    token: Option<String>,
    access_token: Option<String>,
}

/// The token in the answer of a token server.
///
/// # Errors
/// The answer has no token that can be sent.
pub fn token(bytes: &[u8]) -> Result<String, String> {
    // the error is not repeated: it might quote a part of a token
    let raw: RawToken =
        kedge_api::read::from_slice(bytes).map_err(|_| "the answer is not the JSON that is expected")?;
    let token = raw.token.filter(|token| !token.is_empty()).or(raw.access_token).unwrap_or_default();
    if token.is_empty() || token.len() > MAX_TOKEN_BYTES || !token.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(format!("the answer holds no token of 1 to {MAX_TOKEN_BYTES} printable characters"));
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(headers: &[&str], expect: Result<Option<&str>, &str>) {
        let found = Challenge::choose(headers.iter().copied());
        match (found, expect) {
            (Ok(found), Ok(expect)) => {
                assert_eq!(found.token_url("team/app").as_deref(), expect, "{headers:?}")
            }
            (Err(why), Err(expect)) => assert!(why.contains(expect), "{why}"),
            (found, _) => panic!("{headers:?}: {found:?}"),
        }
    }

    #[test]
    fn bearer_is_taken_before_basic() {
        let url = "https://auth.lan/token?scope=repository%3Ateam%2Fapp%3Apull&service=r.lan";
        let bearer = r#"Bearer realm="https://auth.lan/token",service="r.lan",scope="repository:other:push""#;
        check(&[bearer], Ok(Some(url)));
        check(&["Basic realm=\"r\"", bearer], Ok(Some(url)));
        check(&[&format!("Basic realm=\"a,b=c\\\" d\", {bearer}")], Ok(Some(url)));
        check(&["bEARER service = r.lan , Realm=https://auth.lan/token"], Ok(Some(url)));
        check(
            &[r#"Bearer realm="https://a/t?x=1""#],
            Ok(Some("https://a/t?x=1&scope=repository%3Ateam%2Fapp%3Apull")),
        );
        check(&[r#"Negotiate abc==, Basic realm="x""#], Ok(None));
        check(&["Basic"], Ok(None));
    }

    #[test]
    fn challenge_that_cannot_be_met_is_named() {
        check(&["Negotiate"], Err("Negotiate"));
        check(&[], Err("expected Basic or Bearer"));
        check(&["Bearer service=x"], Err("Bearer"));
        check(&["Bearer realm=\"\""], Err("Bearer"));
        check(&["realm=\"x\""], Err("realm"));
        check(&["=,=\"\\"], Err("expected"));
        check(&[&"x".repeat(MAX_HEADER_BYTES + 1)], Err("8193 bytes"));
    }

    #[test]
    fn token_must_fit_into_a_header() {
        assert_eq!(token(br#"{"token":"abc","expires_in":300}"#).as_deref(), Ok("abc"));
        assert_eq!(token(br#"{"token":"","access_token":"d.e-f_"}"#).as_deref(), Ok("d.e-f_"));
        for answer in [
            &br#"{"token":"a\r\nX: y"}"#[..],
            br#"{}"#,
            br#"{"token":7}"#,
            br#"<html>secret"#,
            format!("{{\"token\":\"{}\"}}", "x".repeat(MAX_TOKEN_BYTES + 1)).as_bytes(),
        ] {
            let why = token(answer).unwrap_err();
            assert!(!why.contains("secret"), "{why}");
        }
    }
}
