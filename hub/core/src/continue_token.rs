//! Continue tokens: the position of the next page of a list, and the state that the page shows.
//!
//! Always holds: all pages of one list show one revision, or the client gets an error that they no longer
//! can. A token expires after [`LIFE`] even if nothing changed: a client that tests how it handles an expired
//! one need not wait for a busy day. A forged token shows its author only what a list would show as well.
//! Left to others: the page (`state`), the clock.

use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::decode;
use crate::kinds::schema::{base64_decode, base64_encode};

/// Seconds for which a token names a state; upstream forgets old states after five to ten minutes.
pub const LIFE_SECS: i64 = 5 * 60;

const FORMAT: &str = "kedge/v1";
/// Upstream's text for a page of a state that the server has forgotten.
const EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContinueToken {
    /// The state of the pages before; `None` continues with the latest.
    pub revision: Option<u64>,
    /// The last key before.
    pub after: String,
    /// Objects left after the pages before, if known.
    pub remaining: Option<usize>,
    /// When the first page was read, in seconds since 1970.
    pub made: i64,
}

impl ContinueToken {
    pub fn encode(&self) -> String {
        let token = json!({"v": FORMAT, "rv": self.revision, "start": self.after, "left": self.remaining, "at": self.made});
        base64_encode(token.to_string().as_bytes())
    }

    /// # Errors
    /// 400 if the text cannot be a token of this server; 410 if the token expired, with a new token for the
    /// rest of the list in its latest state.
    pub fn decode(text: &str, now: i64) -> Result<ContinueToken, ApiError> {
        let foreign = || ApiError::bad_request("continue key is not valid: it was not made by this server");
        let read: Option<Value> = base64_decode(text).and_then(|bytes| decode::value(&bytes));
        let read = read.filter(|token| token["v"] == FORMAT).ok_or_else(foreign)?;
        let token = ContinueToken {
            revision: read["rv"].as_u64(),
            after: read["start"].as_str().ok_or_else(foreign)?.to_owned(),
            remaining: read["left"].as_u64().and_then(|left| usize::try_from(left).ok()),
            made: read["at"].as_i64().unwrap_or(0),
        };
        // a clock that was set back expires tokens as well
        let age = now.saturating_sub(token.made);
        if token.revision.is_some() && !(0..=LIFE_SECS).contains(&age) {
            return Err(token.expired());
        }
        Ok(token)
    }

    /// 410, with a token that continues from here in the latest state.
    pub fn expired(self) -> ApiError {
        let rest = ContinueToken { revision: None, remaining: None, ..self };
        ApiError { list_continue: Some(rest.encode()), ..ApiError::expired(EXPIRED) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: ContinueToken =
        ContinueToken { revision: Some(7), after: String::new(), remaining: Some(3), made: 1_000 };

    #[test]
    fn token_is_read_as_written_until_it_expires() {
        let check = |now: i64, expect: Option<u16>| {
            let read = ContinueToken::decode(&TOKEN.encode(), now);
            assert_eq!(read.as_ref().err().map(|error| error.code), expect, "{now}");
            if let Ok(read) = read {
                assert_eq!(read, TOKEN);
            }
        };
        check(1_000, None);
        check(1_000 + LIFE_SECS, None);
        check(1_001 + LIFE_SECS, Some(410));
        check(999, Some(410));
    }

    #[test]
    fn expired_token_is_answered_with_one_for_the_rest() {
        let error = ContinueToken::decode(&TOKEN.encode(), 10_000).unwrap_err();
        let status = error.to_value();
        assert_eq!((status["code"].clone(), status["reason"].clone()), (410.into(), "Expired".into()));
        let rest = status["metadata"]["continue"].as_str().unwrap();
        let rest = ContinueToken::decode(rest, 1_000_000).unwrap();
        assert_eq!((rest.revision, rest.after, rest.remaining), (None, TOKEN.after, None));
    }

    #[test]
    fn foreign_token_is_refused() {
        for text in ["", "x", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJhIn0"] {
            assert_eq!(ContinueToken::decode(text, 0).unwrap_err().code, 400, "{text}");
        }
    }
}
