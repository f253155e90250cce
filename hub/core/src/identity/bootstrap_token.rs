//! Bootstrap tokens: Secrets in upstream's form, by which a machine without a certificate asks for its first
//! one.
//!
//! Owns: the keys of such a Secret, their rules, and the identity that a token proves. Always holds: a token
//! is read from a valid Secret of `kube-system` alone. Comparing a secret takes the same time wherever it
//! differs. Neither a token's `Debug` output nor an error contains its secret. A count of uses never rises,
//! and the same request uses it once, however often it is repeated. Left to others: finding the Secret of a
//! request (the server), approving requests (`controllers::approving`), signing `cluster-info`
//! (`controllers::bootstrap_tokens`).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::{digest, hmac};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::identity::Identity;
use crate::field_error::{FieldError, FieldErrors};
use crate::kinds::names::NameRule;
use crate::kinds::schema;
use crate::value::{rfc3339, text};
use kedge_api::{AUTHENTICATED_GROUP, BOOTSTRAP_GROUP, BOOTSTRAP_USER_PREFIX};

/// The type of the Secrets.
pub const TYPE: &str = "bootstrap.kubernetes.io/token";
/// Their namespace.
pub const NAMESPACE: &str = "kube-system";
/// The name of such a Secret is this prefix and the token's id.
const NAME_PREFIX: &str = "bootstrap-token-";
/// Characters of an id and of a secret.
const ID_CHARS: usize = 6;
const SECRET_CHARS: usize = 16;
/// Most uses that are counted: each leaves 22 characters in the Secret.
pub const MOST_USES: u32 = 1000;
/// Random bytes for a new token: enough, although those that would favour some characters are dropped.
pub const RANDOM_BYTES: usize = 64;

const ID: &str = "token-id";
const SECRET: &str = "token-secret";
const EXPIRATION: &str = "expiration";
const DESCRIPTION: &str = "description";
const AUTHENTICATES: &str = "usage-bootstrap-authentication";
const SIGNS: &str = "usage-bootstrap-signing";
const GROUPS: &str = "auth-extra-groups";
const NODE: &str = "kedge.dev-node";
const USES: &str = "kedge.dev-uses";
const APPROVE: &str = "kedge.dev-approve";
const ADMITTED: &str = "kedge.dev-admitted";

/// Upstream's patterns, for its messages.
const ID_PATTERN: &str = r"\A([a-z0-9]{6})\z";
const SECRET_PATTERN: &str = r"\A([a-z0-9]{16})\z";
const GROUP_PATTERN: &str = r"\Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\z";

/// In errors in place of a secret, and of an id that may be a whole token by mistake; upstream's text.
const REDACTED: &str = "<secret contents redacted>";

/// The nodes that a token may ask a certificate for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Names {
    /// The node of this name.
    One(String),
    /// Nodes whose name begins so, any node if it is empty.
    Prefix(String),
}

impl Names {
    /// A name, or a prefix that ends in `*`.
    ///
    /// # Errors
    /// Text for people: no node can have such a name.
    pub fn parse(written: &str) -> Result<Names, String> {
        let judged = |name: &str| NameRule::Subdomain.complaint(name).map_or(Ok(()), Err);
        match written.strip_suffix('*') {
            None => judged(written).map(|()| Names::One(written.to_owned())),
            // a prefix is valid if a longer name can be
            Some(prefix) => judged(&format!("{prefix}0")).map(|()| Names::Prefix(prefix.to_owned())),
        }
    }
}

impl fmt::Display for Names {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Names::One(name) => out.write_str(name),
            Names::Prefix(prefix) => write!(out, "{prefix}*"),
        }
    }
}

/// A bootstrap token.
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    pub id: String,
    secret: String,
    /// `None`: it does not expire.
    pub expiration: Option<OffsetDateTime>,
    pub description: String,
    /// It authenticates requests to the API.
    pub authenticates: bool,
    /// It signs `kube-public/cluster-info`.
    pub signs: bool,
    /// Groups besides `system:bootstrappers`.
    pub groups: Vec<String>,
    pub names: Names,
    /// Certificates that it may still ask for; `None`: any number until it expires.
    pub uses: Option<u32>,
    /// Requests for names under a prefix do not wait for a person.
    pub approve: bool,
    /// Digests of the requests that used it.
    admitted: Vec<String>,
}

impl fmt::Debug for BootstrapToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "BootstrapToken({} for {}, uses {:?})", self.id, self.names, self.uses)
    }
}

impl BootstrapToken {
    /// A new token that authenticates and signs; `None` if the random bytes are not random.
    pub fn new(random: &[u8; RANDOM_BYTES], names: Names) -> Option<BootstrapToken> {
        const CHARACTERS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        // 252 is the largest multiple of 36 in a byte: each character is as likely as any other
        let mut characters = random
            .iter()
            .filter(|byte| **byte < 252)
            .map(|byte| char::from(CHARACTERS[usize::from(byte % 36)]));
        let id: String = characters.by_ref().take(ID_CHARS).collect();
        let secret: String = characters.take(SECRET_CHARS).collect();
        (secret.len() == SECRET_CHARS).then(|| BootstrapToken {
            id,
            secret,
            expiration: None,
            description: String::new(),
            authenticates: true,
            signs: true,
            groups: Vec::new(),
            names,
            uses: None,
            approve: false,
            admitted: Vec::new(),
        })
    }

    /// The token of a stored Secret; `None` if the Secret is no valid bootstrap token, or is being deleted.
    pub fn from_secret(secret: &Value) -> Option<BootstrapToken> {
        let is_token = text(secret, &["type"]) == TYPE && secret["metadata"]["deletionTimestamp"].is_null();
        is_token.then(|| read(secret).ok()).flatten()
    }

    /// The Secret of this token.
    pub fn to_secret(&self) -> Value {
        let mut data = json!({});
        let mut set = |key: &str, value: &str| {
            if !value.is_empty() {
                data[key] = schema::base64_encode(value.as_bytes()).into();
            }
        };
        set(ID, &self.id);
        set(SECRET, &self.secret);
        set(EXPIRATION, &self.expiration.map(rfc3339).unwrap_or_default());
        set(DESCRIPTION, &self.description);
        set(AUTHENTICATES, if self.authenticates { "true" } else { "" });
        set(SIGNS, if self.signs { "true" } else { "" });
        set(GROUPS, &self.groups.join(","));
        set(NODE, &self.names.to_string());
        set(USES, &self.uses.map(|uses| uses.to_string()).unwrap_or_default());
        set(APPROVE, if self.approve { "true" } else { "" });
        set(ADMITTED, &self.admitted.join(","));
        json!({"apiVersion": "v1", "kind": "Secret", "type": TYPE, "data": data,
            "metadata": {"name": secret_name(&self.id), "namespace": NAMESPACE}})
    }

    /// The token as a device gets it, with its secret.
    pub fn shown(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }

    /// Whether this is the token's secret.
    pub fn is_secret(&self, presented: &str) -> bool {
        let sha256 = |text: &str| digest::digest(&digest::SHA256, text.as_bytes());
        let (own, other) = (sha256(&self.secret), sha256(presented));
        own.as_ref().iter().zip(other.as_ref()).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
    }

    /// Whether the token has expired.
    pub fn is_expired(&self, now: OffsetDateTime) -> bool {
        self.expiration.is_some_and(|end| end <= now)
    }

    /// Whether the token asks for no further certificates.
    pub fn is_spent(&self) -> bool {
        self.uses == Some(0)
    }

    /// Whether the token may ask for a certificate of this node.
    pub fn covers(&self, node: &str) -> bool {
        match &self.names {
            Names::One(name) => name == node,
            Names::Prefix(prefix) => {
                node.starts_with(prefix.as_str()) && NameRule::Subdomain.complaint(node).is_none()
            }
        }
    }

    /// Whether a request for this node needs no person by the token's own rules: the administrator named the
    /// node, or asked for approval of all names under a prefix.
    pub fn approves(&self, node: &str) -> bool {
        self.covers(node) && (self.approve || matches!(self.names, Names::One(_)))
    }

    /// Whether a request for this node with this key (DER of its `SubjectPublicKeyInfo`) has used the token:
    /// its repetition uses nothing.
    pub fn has_admitted(&self, node: &str, public_key: &[u8]) -> bool {
        self.has_paid(&admission(node, public_key))
    }

    /// Whether the token has this record of a use ([`admission`]).
    pub(crate) fn has_paid(&self, admission: &str) -> bool {
        self.admitted.iter().any(|known| known == admission)
    }

    /// The identity of a caller with this token.
    pub fn identity(&self) -> Identity {
        let mut groups: Vec<String> =
            [BOOTSTRAP_GROUP.to_owned()].into_iter().chain(self.groups.clone()).collect();
        groups.sort_unstable();
        groups.dedup();
        groups.push(AUTHENTICATED_GROUP.to_owned());
        Identity {
            user: format!("{BOOTSTRAP_USER_PREFIX}{}", self.id),
            groups,
            // valid until that second, as upstream
            not_after: self.expiration.map(OffsetDateTime::unix_timestamp),
            ..Identity::default()
        }
    }

    /// The signature of a text by this token: a JSON web signature without its content (RFC 7515, appendix
    /// F), as kubeadm verifies it.
    pub fn sign(&self, content: &str) -> String {
        let header = URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "kid": self.id}).to_string());
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.secret.as_bytes());
        format!("{header}..{}", URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes())))
    }
}

/// The name of the Secret of the token with this id.
pub fn secret_name(id: &str) -> String {
    format!("{NAME_PREFIX}{id}")
}

/// The id of the token whose identity has this name of a user.
pub fn of_user(user: &str) -> Option<&str> {
    user.strip_prefix(BOOTSTRAP_USER_PREFIX).filter(|id| is_id(id))
}

/// Id and secret of a bearer token, if it has the form of a bootstrap token.
pub fn parse(token: &str) -> Option<(&str, &str)> {
    token.split_once('.').filter(|(id, secret)| is_id(id) && is_plain(secret, SECRET_CHARS))
}

/// Uses the token of a Secret for a request with this node and key (DER of its `SubjectPublicKeyInfo`).
/// Returns whether the request may be approved: also without a change, if the token does not count its uses
/// or this request used it before.
pub fn spend(secret: &mut Value, node: &str, public_key: &[u8]) -> bool {
    let Some(token) = BootstrapToken::from_secret(secret) else { return false };
    if !token.covers(node) {
        return false;
    }
    let Some(uses) = token.uses.filter(|_| !token.has_admitted(node, public_key)) else { return true };
    let Some(left) = uses.checked_sub(1) else { return false };
    let mut admitted = token.admitted;
    admitted.push(admission(node, public_key));
    let mut set =
        |key: &str, value: &str| secret["data"][key] = schema::base64_encode(value.as_bytes()).into();
    set(USES, &left.to_string());
    set(ADMITTED, &admitted.join(","));
    true
}

/// The record of one use: half of a digest, because a token may be used for many nodes.
pub(crate) fn admission(node: &str, public_key: &[u8]) -> String {
    let mut all = digest::Context::new(&digest::SHA256);
    // no name contains this byte, so no two pairs have the same text
    [node.as_bytes(), b"\0", public_key].into_iter().for_each(|part| all.update(part));
    URL_SAFE_NO_PAD.encode(&all.finish().as_ref()[..16])
}

/// Checks a new or changed Secret of this type. Upstream stores a wrong one and ignores it; here its writer
/// gets an error at once.
pub(crate) fn validate(new: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
    if old.is_some_and(|old| old["data"] == new["data"]) {
        return;
    }
    if let Err(found) = read(new) {
        errors.extend(found);
    }
}

/// Reads all of a Secret.
fn read(secret: &Value) -> Result<BootstrapToken, Vec<FieldError>> {
    let mut errors = Vec::new();
    let place = |key: &str| format!("data[{key}]");
    let mut value = |key: &str| {
        let bytes = schema::base64_decode(text(secret, &["data", key])).unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_else(|_| {
            errors.push(FieldError::invalid(
                place(key),
                "<secret contents redacted>",
                "must be a UTF-8 text",
            ));
            String::new()
        })
    };
    let [id, secret_text, expiration, description] = [ID, SECRET, EXPIRATION, DESCRIPTION].map(&mut value);
    let [authenticates, signs, groups] = [AUTHENTICATES, SIGNS, GROUPS].map(&mut value);
    let [node, uses, approve, admitted] = [NODE, USES, APPROVE, ADMITTED].map(&mut value);

    if text(secret, &["metadata", "namespace"]) != NAMESPACE {
        let why = format!("a bootstrap token counts in the namespace {NAMESPACE} alone");
        errors.push(FieldError::invalid(
            "metadata.namespace",
            text(secret, &["metadata", "namespace"]),
            &why,
        ));
    }
    if id.is_empty() {
        errors.push(FieldError::required(place(ID), ""));
    } else if !is_id(&id) {
        errors.push(FieldError::invalid(place(ID), REDACTED, &format!("must match {ID_PATTERN}")));
    } else if text(secret, &["metadata", "name"]) != secret_name(&id) {
        let why = format!(
            "bootstrap token name is not of the form '{NAME_PREFIX}(token-id)'. Expected: {:?}",
            secret_name(&id)
        );
        errors.push(FieldError::invalid("metadata.name", text(secret, &["metadata", "name"]), &why));
    }
    if secret_text.is_empty() {
        errors.push(FieldError::required(place(SECRET), ""));
    } else if !is_plain(&secret_text, SECRET_CHARS) {
        let why = format!("must match {SECRET_PATTERN}");
        errors.push(FieldError::invalid(place(SECRET), REDACTED, &why));
    }
    let ends = schema::parse_time(&expiration);
    if !expiration.is_empty() && ends.is_none() {
        errors.push(FieldError::invalid(
            place(EXPIRATION),
            expiration.as_str(),
            "must be a time as RFC 3339 has it",
        ));
    }
    let groups: Vec<String> = groups.split(',').filter(|_| !groups.is_empty()).map(str::to_owned).collect();
    if let Some(wrong) = groups.iter().find(|group| !is_group(group)) {
        let why = format!("bootstrap group {wrong:?} is invalid (must match {GROUP_PATTERN})");
        errors.push(FieldError::invalid(place(GROUPS), wrong.as_str(), &why));
    }
    // kubeadm's tokens have none
    let names = Names::parse(if node.is_empty() { "*" } else { &node }).unwrap_or_else(|why| {
        errors.push(FieldError::invalid(place(NODE), node.as_str(), &why));
        Names::One(String::new())
    });
    let counted = uses.parse().ok().filter(|uses| *uses <= MOST_USES);
    if !uses.is_empty() && counted.is_none() {
        let why = format!(
            "must be a number from 0 to {MOST_USES}; without it the token may be used until it expires"
        );
        errors.push(FieldError::invalid(place(USES), uses.as_str(), &why));
    }
    if !matches!(approve.as_str(), "" | "true" | "false") {
        errors.push(FieldError::unsupported(place(APPROVE), approve.as_str(), &["true", "false"]));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    Ok(BootstrapToken {
        id,
        secret: secret_text,
        expiration: ends,
        description,
        authenticates: authenticates == "true",
        signs: signs == "true",
        groups,
        names,
        uses: counted,
        approve: approve == "true",
        admitted: admitted.split(',').filter(|digest| !digest.is_empty()).map(str::to_owned).collect(),
    })
}

fn is_id(text: &str) -> bool {
    is_plain(text, ID_CHARS)
}

fn is_plain(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

fn is_group(group: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let own = group.strip_prefix(BOOTSTRAP_GROUP).and_then(|rest| rest.strip_prefix(':')).unwrap_or_default();
    own.len() <= 256
        && own.bytes().last().is_some_and(plain)
        && own.bytes().all(|byte| plain(byte) || matches!(byte, b':' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    const SECRET_TEXT: &str = "0123456789abcdef";

    fn secret(entries: &[(&str, &str)]) -> Value {
        let mut data = json!({});
        let usual = [(ID, "abcdef"), (SECRET, SECRET_TEXT), (AUTHENTICATES, "true")];
        for (key, value) in usual.iter().chain(entries) {
            data[*key] = schema::base64_encode(value.as_bytes()).into();
        }
        json!({"type": TYPE, "metadata": {"name": "bootstrap-token-abcdef", "namespace": NAMESPACE}, "data": data})
    }

    fn token(entries: &[(&str, &str)]) -> BootstrapToken {
        BootstrapToken::from_secret(&secret(entries)).unwrap()
    }

    #[track_caller]
    fn check_errors(secret: &Value, expect: &[&str]) {
        let mut errors = FieldErrors::default();
        validate(secret, None, &mut errors);
        let found: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(found, expect);
        assert!(!found.join("").contains(SECRET_TEXT));
        assert_eq!(BootstrapToken::from_secret(secret).is_some(), expect.is_empty());
    }

    #[test]
    fn wrong_secret_is_refused_in_words() {
        check_errors(&secret(&[]), &[]);
        check_errors(
            &secret(&[(ID, "ABCDEF"), (SECRET, "0123456789abcdefx")]),
            &[
                r#"data[token-id]: Invalid value: "<secret contents redacted>": must match \A([a-z0-9]{6})\z"#,
                r#"data[token-secret]: Invalid value: "<secret contents redacted>": must match \A([a-z0-9]{16})\z"#,
            ],
        );
        check_errors(
            &secret(&[(ID, ""), (SECRET, "")]),
            &["data[token-id]: Required value", "data[token-secret]: Required value"],
        );
        check_errors(
            &secret(&[(EXPIRATION, "tomorrow")]),
            &[r#"data[expiration]: Invalid value: "tomorrow": must be a time as RFC 3339 has it"#],
        );
        let group = "system:bootstrappers:a,system:masters";
        check_errors(
            &secret(&[(GROUPS, group)]),
            &[
                r#"data[auth-extra-groups]: Invalid value: "system:masters": bootstrap group "system:masters" is invalid (must match \Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\z)"#,
            ],
        );
        for (key, value) in [(NODE, "Edge"), (NODE, "a*b"), (USES, "-1"), (USES, "1001"), (APPROVE, "yes")] {
            let mut errors = FieldErrors::default();
            validate(&secret(&[(key, value)]), None, &mut errors);
            assert_eq!(errors.len(), 1, "{key} {value}");
            assert!(errors[0].to_string().starts_with(&format!("data[{key}]: ")), "{}", errors[0]);
        }
        let mut elsewhere = secret(&[]);
        elsewhere["metadata"] = json!({"name": "bootstrap-token-other0", "namespace": "default"});
        check_errors(
            &elsewhere,
            &[
                r#"metadata.namespace: Invalid value: "default": a bootstrap token counts in the namespace kube-system alone"#,
                r#"metadata.name: Invalid value: "bootstrap-token-other0": bootstrap token name is not of the form 'bootstrap-token-(token-id)'. Expected: "bootstrap-token-abcdef""#,
            ],
        );
        // a wrong one of an older hub keeps its data
        let mut errors = FieldErrors::default();
        validate(&elsewhere, Some(&elsewhere.clone()), &mut errors);
        assert!(errors.is_empty());
    }

    #[test]
    fn only_upstreams_groups_are_extra() {
        for (group, expect) in [
            ("system:bootstrappers:a", true),
            ("system:bootstrappers:kubeadm:default-node-token", true),
            ("system:bootstrappers:a-", false),
            ("system:bootstrappers:", false),
            ("system:bootstrappers", false),
            ("system:bootstrappersx:a", false),
            ("system:bootstrappers:A", false),
            ("system:bootstrappers:a ", false),
            ("system:nodes", false),
            ("", false),
        ] {
            assert_eq!(is_group(group), expect, "{group}");
        }
        assert!(is_group(&format!("system:bootstrappers:{}", "a".repeat(256))));
        assert!(!is_group(&format!("system:bootstrappers:{}", "a".repeat(257))));
        let of = token(&[(GROUPS, "system:bootstrappers:b,system:bootstrappers:a,system:bootstrappers:b")]);
        let expect = [
            "system:bootstrappers",
            "system:bootstrappers:a",
            "system:bootstrappers:b",
            "system:authenticated",
        ];
        let found = of.identity();
        assert_eq!(
            (found.user.as_str(), &*found.groups),
            ("system:bootstrap:abcdef", &expect.map(str::to_owned)[..])
        );
        assert_eq!(
            (of_user(&found.user), of_user("system:bootstrap:x"), of_user("abcdef")),
            (Some("abcdef"), None, None)
        );
        assert!(found.node().is_none() && !found.is_admin());
    }

    #[test]
    fn token_covers_its_names_alone() {
        let check = |names: &str, node: &str, covers: bool, approves: bool| {
            let found = token(&[(NODE, names)]);
            assert_eq!((found.covers(node), found.approves(node)), (covers, approves), "{names} {node}");
            let approving = token(&[(NODE, names), (APPROVE, "true")]);
            assert_eq!(approving.approves(node), covers, "{names} {node}");
        };
        check("edge-1", "edge-1", true, true);
        check("edge-1", "edge-12", false, false);
        check("edge-1", "edge-", false, false);
        check("edge-1", "", false, false);
        check("edge-*", "edge-1", true, false);
        check("edge-*", "hub-1", false, false);
        check("edge-*", "edge-", false, false);
        check("edge-*", "edge-A", false, false);
        check("*", "any.name", true, false);
        check("*", "", false, false);
        // kubeadm's
        assert!(token(&[]).covers("edge-1") && !token(&[]).approves("edge-1"));
        assert_eq!(Names::parse("e*").unwrap().to_string(), "e*");
    }

    #[test]
    fn token_ends_at_its_expiration() {
        let end = datetime!(2026-12-01 12:00:00 UTC);
        let found = token(&[(EXPIRATION, "2026-12-01T13:00:00+01:00")]);
        let second = time::Duration::SECOND;
        for (now, expect) in [(end - second, false), (end, true), (end + second, true)] {
            assert_eq!((found.is_expired(now), found.identity().is_expired(now)), (expect, expect), "{now}");
        }
        assert!(!token(&[]).is_expired(datetime!(2999-01-01 0:00 UTC)));
    }

    #[test]
    fn each_request_is_counted_once() {
        let mut stored = secret(&[(NODE, "edge-*"), (USES, "2")]);
        let left = |stored: &Value| BootstrapToken::from_secret(stored).unwrap().uses;
        assert!(!spend(&mut stored, "hub-1", b"key"), "a name that it does not cover");
        assert!(spend(&mut stored, "edge-1", b"key"));
        assert!(spend(&mut stored, "edge-1", b"key"), "again after a cut");
        assert_eq!(left(&stored), Some(1));
        assert!(spend(&mut stored, "edge-1", b"other key"));
        assert_eq!(left(&stored), Some(0));
        let spent = stored.clone();
        assert!(!spend(&mut stored, "edge-2", b"key"), "the key of another name");
        assert!(!spend(&mut stored, "edge-1", b"third key"));
        assert!(spend(&mut stored, "edge-1", b"key"), "long after");
        assert_eq!(stored, spent, "nothing else is written");
        let found = BootstrapToken::from_secret(&stored).unwrap();
        assert!(
            found.is_spent() && found.has_admitted("edge-1", b"key") && !found.has_admitted("edge-2", b"key")
        );
        let mut uncounted = secret(&[]);
        assert!(spend(&mut uncounted, "edge-1", b"key"));
        assert_eq!(uncounted, secret(&[]));
    }

    #[test]
    fn token_is_compared_whole_and_shown_nowhere() {
        let found = token(&[]);
        assert!(found.is_secret(SECRET_TEXT));
        for wrong in ["", "0123456789abcdee", "1123456789abcdef", "0123456789abcde", "0123456789abcdef0"] {
            assert!(!found.is_secret(wrong), "{wrong}");
        }
        assert!(!format!("{found:?} {:?}", found.identity()).contains(SECRET_TEXT));
        for (bearer, expect) in [
            ("abcdef.0123456789abcdef", Some(("abcdef", SECRET_TEXT))),
            ("abcdef.0123456789abcdeF", None),
            ("abcdef.0123456789abcdef0", None),
            ("abcde.0123456789abcdef", None),
            ("abcdef.", None),
            ("a.b.c", None),
        ] {
            assert_eq!(parse(bearer), expect, "{bearer}");
        }
    }

    #[test]
    fn new_token_returns_from_its_secret() {
        let random = std::array::from_fn(|place| u8::try_from(255 - place).unwrap());
        let mut made = BootstrapToken::new(&random, Names::Prefix("edge-".to_owned())).unwrap();
        assert_eq!(made.shown(), "zyxwvu.tsrqponmlkjihgfe");
        assert_eq!(BootstrapToken::from_secret(&made.to_secret()), Some(made.clone()));
        made.expiration = Some(datetime!(2026-12-01 12:00:00 UTC));
        made.description = "for the shops".to_owned();
        made.groups = vec!["system:bootstrappers:a".to_owned()];
        (made.uses, made.approve, made.signs) = (Some(3), true, false);
        assert_eq!(BootstrapToken::from_secret(&made.to_secret()), Some(made.clone()));
        let mut leaving = made.to_secret();
        leaving["metadata"]["deletionTimestamp"] = "2026-12-01T12:00:00Z".into();
        assert_eq!(BootstrapToken::from_secret(&leaving), None);
        let mut opaque = made.to_secret();
        opaque["type"] = "Opaque".into();
        assert_eq!(BootstrapToken::from_secret(&opaque), None);
        assert_eq!(BootstrapToken::new(&[255; RANDOM_BYTES], Names::Prefix(String::new())), None);
    }

    /// The signature was computed by another program (Python's hmac, with kubeadm's padding of the key).
    #[test]
    fn signature_is_a_detached_hs256() {
        let signed = token(&[]).sign("content");
        assert_eq!(
            signed,
            "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..psz1NayrXM3IaFzKZGsb5n_mBl7MjtlsZ1xE8MRmF_4"
        );
    }
}
