//! One line of the log: an Event of `audit.k8s.io/v1` at level Metadata, in JSON.
//!
//! Always holds: it is one line and has at most [`TEXT_CHARS`] characters of anything that a client chose
//! freely, and no content of objects. The fields are upstream's and mean the same; a fact for which upstream
//! has no field is an annotation below `kedge.dev/`. Pure.

use std::net::IpAddr;

use kedge_hub_core::identity::Identity;
use kedge_hub_core::value::rfc3339;
use serde_json::{Map, Value, json};
use time::OffsetDateTime;

/// Longest name or user that is written out: both are bounded elsewhere, but a refused request may carry
/// anything.
pub(super) const TEXT_CHARS: usize = 256;
/// Groups of one identity that are written out, each cut to [`GROUP_CHARS`].
const GROUPS: usize = 16;
const GROUP_CHARS: usize = 64;
/// Names of deleted objects that are written out; their number always is.
const NAMES_CHARS: usize = 4096;

/// A fact that upstream has no field for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Note {
    /// Names of the objects of a collection that were selected.
    Names,
    /// Their number.
    Count,
    /// Nothing was changed.
    DryRun,
    /// Of a certificate that was issued or signed.
    Serial,
    /// When that certificate or token expires.
    NotAfter,
    /// Its user and groups.
    Subject,
    /// The request is of a node whose certificate had expired at this time.
    ExpiredSince,
    /// Of a token that was issued, in upstream's annotation; when it expires is [`Note::NotAfter`].
    IssuedCredential,
    /// Whom that token is good for.
    Audiences,
    /// The rules of the namespace's audit level that a pod breaks, in upstream's annotation.
    PodSecurity,
    /// Number of equal requests that this line summarizes, beside those with a line of their own.
    Repeats,
    /// Lines that were left out by a quota, and of whom.
    Omitted,
    OmittedOf,
    /// Lines that were dropped because the queue was full.
    Lost,
}

impl Note {
    pub(super) fn key(self) -> &'static str {
        match self {
            Note::Names => "kedge.dev/names",
            Note::Count => "kedge.dev/count",
            Note::DryRun => "kedge.dev/dry-run",
            Note::Serial => "kedge.dev/serial",
            Note::NotAfter => "kedge.dev/not-after",
            Note::Subject => "kedge.dev/subject",
            Note::ExpiredSince => "kedge.dev/expired-since",
            Note::IssuedCredential => "authentication.kubernetes.io/issued-credential-id",
            Note::Audiences => "kedge.dev/audiences",
            Note::PodSecurity => "pod-security.kubernetes.io/audit-violations",
            Note::Repeats => "kedge.dev/repeats",
            Note::Omitted => "kedge.dev/omitted",
            Note::OmittedOf => "kedge.dev/omitted-of",
            Note::Lost => "kedge.dev/lost",
        }
    }
}

/// When in the life of a request a line is written, in upstream's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// Before the request is carried out: it has no outcome yet.
    RequestReceived,
    ResponseComplete,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseComplete => "ResponseComplete",
        }
    }
}

/// The object that a request acts on.
#[derive(Debug, Default, Clone, Copy, Hash)]
pub(crate) struct ObjectRef<'a> {
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    /// The plural.
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    /// Empty for cluster-scoped kinds.
    pub(crate) namespace: &'a str,
    /// Empty for collections.
    pub(crate) name: &'a str,
}

/// One entry of the audit log: a request, or a command on this machine.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    /// The answer's `Audit-Id`; empty if the act was not an HTTP request.
    pub(crate) id: &'a str,
    /// The identity that the credential proves.
    pub(crate) user: &'a Identity,
    pub(crate) impersonated: Option<&'a Identity>,
    /// `None` if the act did not come over the network.
    pub(crate) from: Option<IpAddr>,
    pub(crate) uri: &'a str,
    pub(crate) agent: &'a str,
    pub(crate) verb: &'a str,
    pub(crate) object: ObjectRef<'a>,
    pub(crate) stage: Stage,
    /// The status of the answer; only meaningful once the request is complete.
    pub(crate) code: u16,
    pub(crate) received: OffsetDateTime,
    pub(crate) ended: OffsetDateTime,
    pub(crate) notes: &'a [(Note, String)],
}

impl<'a> Entry<'a> {
    /// True if the act did not come over the network.
    pub(super) fn is_own(&self) -> bool {
        self.from.is_none()
    }

    /// An act of the hub itself.
    pub(crate) fn own(hub: &'a Identity, verb: &'a str, now: OffsetDateTime) -> Entry<'a> {
        Entry {
            id: "",
            user: hub,
            impersonated: None,
            from: None,
            uri: "",
            agent: "",
            verb,
            object: ObjectRef::default(),
            stage: Stage::ResponseComplete,
            code: 200,
            received: now,
            ended: now,
            notes: &[],
        }
    }

    /// Verb, resource and outcome: the key under which omitted lines are counted.
    pub(super) fn act(&self) -> String {
        let ObjectRef { resource, subresource, .. } = self.object;
        let slash = if subresource.is_empty() { "" } else { "/" };
        let subresource = cut(subresource, GROUP_CHARS);
        let outcome = match self.stage {
            Stage::RequestReceived => "begun".to_owned(),
            Stage::ResponseComplete => self.code.to_string(),
        };
        format!("{} {resource}{slash}{subresource} {outcome}", self.verb)
    }

    /// With a line break at its end.
    pub(super) fn line(&self) -> String {
        let mut event = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "stage": self.stage.name(),
            "auditID": self.id, "verb": self.verb, "requestURI": cut(self.uri, TEXT_CHARS), "user": user(self.user),
            "requestReceivedTimestamp": micros(self.received), "stageTimestamp": micros(self.ended),
        });
        if self.stage == Stage::ResponseComplete {
            event["responseStatus"] = json!({"code": self.code});
        }
        if let Some(impersonated) = self.impersonated {
            event["impersonatedUser"] = user(impersonated);
        }
        if let Some(from) = self.from {
            event["sourceIPs"] = json!([from.to_canonical().to_string()]);
        }
        if !self.agent.is_empty() {
            event["userAgent"] = cut(self.agent, TEXT_CHARS).into();
        }
        let object = self.object.fields();
        if !object.is_empty() {
            event["objectRef"] = object.into();
        }
        if !self.notes.is_empty() {
            let notes =
                self.notes.iter().map(|(note, text)| (note.key().to_owned(), cut(text, NAMES_CHARS).into()));
            event["annotations"] = Value::Object(notes.collect());
        }
        format!("{event}\n")
    }
}

impl ObjectRef<'_> {
    fn fields(&self) -> Map<String, Value> {
        [
            ("apiGroup", self.group),
            ("apiVersion", self.version),
            ("resource", self.resource),
            ("subresource", self.subresource),
            ("namespace", self.namespace),
            ("name", self.name),
        ]
        .into_iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(field, text)| (field.to_owned(), cut(text, TEXT_CHARS).into()))
        .collect()
    }
}

/// UserInfo of `authentication.k8s.io/v1`. Of the facts in `extra` only the credential's id is written.
fn user(identity: &Identity) -> Value {
    let mut user = json!({"username": cut(&identity.user, TEXT_CHARS)});
    if !identity.uid.is_empty() {
        user["uid"] = cut(&identity.uid, TEXT_CHARS).into();
    }
    if !identity.groups.is_empty() {
        let shown = identity.groups.iter().take(GROUPS).map(|group| cut(group, GROUP_CHARS).into());
        user["groups"] = Value::Array(shown.collect());
    }
    if !identity.credential.is_empty() {
        user["extra"] =
            json!({kedge_hub_core::identity::CREDENTIAL_ID: [cut(&identity.credential, TEXT_CHARS)]});
    }
    user
}

fn cut(text: &str, chars: usize) -> &str {
    match text.char_indices().nth(chars) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

/// A `MicroTime`.
fn micros(time: OffsetDateTime) -> String {
    let whole = rfc3339(time);
    format!("{}.{:06}Z", whole.trim_end_matches('Z'), time.microsecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_upstreams_fields() {
        let caller = Identity {
            uid: "7".to_owned(),
            credential: "X509SHA256=ab".into(),
            ..Identity::new("admin", &["system:masters", "system:authenticated"])
        };
        let bob = Identity::new("bob", &["staff"]);
        let time = OffsetDateTime::from_unix_timestamp_nanos(1_000_000_000_001_002_000).unwrap();
        let entry = Entry {
            id: "1-2",
            user: &caller,
            impersonated: Some(&bob),
            from: Some("::ffff:192.0.2.1".parse().unwrap()),
            uri: "/apis/apps/v1/namespaces/x/daemonsets/y?dryRun=All",
            agent: "kubectl/v1.36",
            verb: "patch",
            object: ObjectRef {
                group: "apps",
                version: "v1",
                resource: "daemonsets",
                subresource: "status",
                namespace: "x",
                name: "y",
            },
            stage: Stage::ResponseComplete,
            code: 403,
            received: time,
            ended: time + time::Duration::milliseconds(5),
            notes: &[(Note::Names, "a,b".to_owned()), (Note::Count, "2".to_owned())],
        };
        let expect = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "stage": "ResponseComplete",
            "auditID": "1-2", "verb": "patch", "requestURI": "/apis/apps/v1/namespaces/x/daemonsets/y?dryRun=All",
            "user": {"username": "admin", "uid": "7", "groups": ["system:masters", "system:authenticated"],
                "extra": {"authentication.kubernetes.io/credential-id": ["X509SHA256=ab"]}},
            "impersonatedUser": {"username": "bob", "groups": ["staff"]},
            "sourceIPs": ["192.0.2.1"], "userAgent": "kubectl/v1.36",
            "objectRef": {"apiGroup": "apps", "apiVersion": "v1", "resource": "daemonsets", "subresource": "status",
                "namespace": "x", "name": "y"},
            "responseStatus": {"code": 403},
            "requestReceivedTimestamp": "2001-09-09T01:46:40.001002Z", "stageTimestamp": "2001-09-09T01:46:40.006002Z",
            "annotations": {"kedge.dev/names": "a,b", "kedge.dev/count": "2"},
        });
        assert_eq!(serde_json::from_str::<Value>(&entry.line()).unwrap(), expect);
        let begun = Entry { stage: Stage::RequestReceived, ..entry };
        let line = serde_json::from_str::<Value>(&begun.line()).unwrap();
        assert_eq!((&line["stage"], line.get("responseStatus")), (&json!("RequestReceived"), None));
        assert_eq!(begun.act(), "patch daemonsets/status begun");
    }

    #[test]
    fn line_is_short_and_one_whatever_it_contains() {
        let long = "\n\u{1}ä".repeat(5000);
        let groups = vec![long.as_str(); 1000];
        let caller =
            Identity { uid: long.clone(), credential: long.as_str().into(), ..Identity::new(&long, &groups) };
        let object = ObjectRef {
            group: &long,
            version: &long,
            resource: &long,
            subresource: &long,
            namespace: &long,
            name: &long,
        };
        let hub = Identity::new("hub", &[]);
        let own = Entry::own(&hub, "sign", OffsetDateTime::UNIX_EPOCH);
        let notes = [(Note::Names, long.clone())];
        let entry = Entry {
            user: &caller,
            impersonated: Some(&caller),
            uri: &long,
            agent: &long,
            object,
            notes: &notes,
            ..own
        };
        let line = entry.line();
        assert_eq!(line.matches('\n').count(), 1);
        // a control character takes six bytes
        let chars = 14 * TEXT_CHARS + 2 * GROUPS * GROUP_CHARS + NAMES_CHARS;
        assert!(line.len() < 6 * chars + 1000, "{}", line.len());
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["objectRef"]["name"].as_str().map(|name| name.chars().count()), Some(TEXT_CHARS));
        assert_eq!(read["user"]["groups"].as_array().map(Vec::len), Some(GROUPS));
    }
}
