//! The identity of a caller: by a client certificate that TLS has verified, or a bearer token that the API
//! server knows.

use serde_json::{Map, Value};

use crate::identity::x509;
use crate::kubelet_api::Request;

/// The group of every authenticated user.
const AUTHENTICATED: &str = "system:authenticated";
/// Longest token: those of service accounts have one to two KiB.
const MAX_TOKEN_BYTES: usize = 8 * 1024;

/// An authenticated caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) groups: Vec<String>,
    pub(super) extra: Map<String, Value>,
}

impl User {
    fn known(mut self) -> Option<Self> {
        if !self.groups.iter().any(|group| group == AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        (!self.name.is_empty()).then_some(self)
    }

    /// The subject of a verified certificate; `None` if it has no name.
    pub(super) fn of_certificate(der: &[u8]) -> Option<Self> {
        let x509::Subject { name, groups } = x509::subject(der)?;
        Self { name, groups, ..Self::default() }.known()
    }

    /// The user of a TokenReview; `None`: the API server does not know the token.
    pub(super) fn of_review(review: &Value) -> Option<Self> {
        let status = &review["status"];
        let error = status["error"].as_str().unwrap_or_default();
        if status["authenticated"] != true || !error.is_empty() {
            return None;
        }
        let user = &status["user"];
        let text = |field: &str| user[field].as_str().unwrap_or_default().to_owned();
        let groups = user["groups"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Self {
            name: text("username"),
            uid: text("uid"),
            groups: groups.map(str::to_owned).collect(),
            extra: user["extra"].as_object().cloned().unwrap_or_default(),
        }
        .known()
    }
}

/// The bearer token of a request, if it has one of a valid form.
pub(super) fn bearer(request: &Request) -> Option<&str> {
    let (scheme, token) = request.header("authorization")?.split_once(' ')?;
    let token = token.trim();
    let could_be = !token.is_empty()
        && token.len() <= MAX_TOKEN_BYTES
        && token.bytes().all(|byte| byte.is_ascii_graphic())
        && scheme.eq_ignore_ascii_case("bearer");
    could_be.then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn token_review_names_a_user_or_nobody() {
        let review = |status: Value| User::of_review(&json!({"status": status}));
        let user = json!({"username": "u", "uid": "1", "groups": ["g"], "extra": {"k": ["v"]}});
        let known = review(json!({"authenticated": true, "user": user})).unwrap();
        assert_eq!(
            (known.name.as_str(), known.groups),
            ("u", vec!["g".to_owned(), AUTHENTICATED.to_owned()])
        );
        assert_eq!(known.extra["k"], json!(["v"]));
        assert_eq!(review(json!({"user": user})), None);
        assert_eq!(review(json!({"authenticated": true, "user": user, "error": "expired"})), None);
        assert_eq!(review(json!({"authenticated": true})), None);
        assert_eq!(review(json!({"authenticated": "true", "user": user})), None);
    }

    #[test]
    fn bearer_token_is_read_from_its_header() {
        let check = |value: &str, expect: Option<&str>| {
            let headers = vec![("authorization".to_owned(), value.to_owned())];
            let request = Request { method: "GET".into(), path: Vec::new(), query: Vec::new(), headers };
            assert_eq!(bearer(&request), expect, "{value}");
        };
        check("Bearer abc", Some("abc"));
        check("bearer  abc", Some("abc"));
        check("Basic abc", None);
        check("Bearer ", None);
        check("Bearer a b", None);
        check(&format!("Bearer {}", "x".repeat(9000)), None);
    }
}
