//! A node's renewal in its plain form: `{"spec":{"renewTime":"2006-01-02T15:04:05.000000Z"}}`, as a merge
//! patch or a strategic one, or the time alone, as a patch of the type [`RENEWAL_MEDIA`].
//!
//! Always holds: a renewal made here has the same result as one by `edit`; `edit` handles all bodies that are
//! not of the plain form, and all Leases with managers. So ten thousand nodes cost one copy of a short text
//! each: no value is built, no schema is walked. Left to others: permission to renew, preconditions,
//! publication.

use std::ops::Range;

use kedge_api::RENEWAL_MEDIA;
use serde_json::{Value, json};

use crate::kinds::schema::parse_time;
use crate::object::Object;

const HEAD: &[u8] = br#"{"spec":{"renewTime":""#;
const TAIL: &[u8] = br#""}}"#;
/// The form of a time, with zeros for its digits.
const FORM: &[u8; 27] = b"0000-00-00T00:00:00.000000Z";
/// Longest text that is renewed this way. An agent's Lease has 400 bytes; the limit of what a node may write
/// is above it.
const MAX_BYTES: usize = 4096;
/// Digits of the largest number of 64 bits.
const MAX_DIGITS: usize = 20;

/// The time that a renewal sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewal([u8; FORM.len()]);

impl Renewal {
    /// Whether a patch of this type may be a renewal: such a patch makes a Lease no larger than itself.
    pub fn merges(content_type: &str) -> bool {
        matches!(
            content_type,
            "application/merge-patch+json" | "application/strategic-merge-patch+json" | RENEWAL_MEDIA
        )
    }

    /// From a patch; `None` if it is not of the plain form.
    pub fn read(content_type: &str, patch: &[u8]) -> Option<Renewal> {
        let time = match content_type {
            RENEWAL_MEDIA => patch,
            _ if Renewal::merges(content_type) => patch.strip_prefix(HEAD)?.strip_suffix(TAIL)?,
            _ => return None,
        };
        let time: [u8; FORM.len()] = time.try_into().ok()?;
        let is_formed = time.iter().zip(FORM).all(|(found, form)| match form {
            b'0' => found.is_ascii_digit(),
            mark => found == mark,
        });
        let text = std::str::from_utf8(&time).ok().filter(|_| is_formed)?;
        parse_time(text)?;
        Some(Renewal(time))
    }

    /// The merge patch that does the same.
    pub(crate) fn merge_patch(&self) -> Value {
        json!({"spec": {"renewTime": String::from_utf8_lossy(&self.0)}})
    }

    /// Whether the object has this time already; `None` if it cannot be renewed in this way.
    pub(crate) fn is_made(&self, current: &Object) -> Option<bool> {
        Some(current.json[fields(current)?.renewed] == self.0)
    }

    /// The text of the renewed object.
    pub(crate) fn make(&self, current: &Object, revision: u64) -> Option<Vec<u8>> {
        let Fields { version, renewed } = fields(current)?;
        let mut digits = [0; MAX_DIGITS];
        let version = (version, digits_of(revision, &mut digits));
        let renewed = (renewed, &self.0[..]);
        let (first, second) =
            if version.0.start < renewed.0.start { (version, renewed) } else { (renewed, version) };
        let text = &current.json;
        let parts = [
            &text[..first.0.start],
            first.1,
            &text[first.0.end..second.0.start],
            second.1,
            &text[second.0.end..],
        ];
        // of exactly its size, so that it can be shared without a copy
        Some(parts.concat())
    }
}

/// The decimal digits of a revision, in this buffer.
fn digits_of(revision: u64, space: &mut [u8; MAX_DIGITS]) -> &[u8] {
    let (mut rest, mut at) = (revision, MAX_DIGITS);
    loop {
        at -= 1;
        space[at] = b'0' + u8::try_from(rest % 10).unwrap_or_default();
        rest /= 10;
        if rest == 0 {
            return &space[at..];
        }
    }
}

/// The positions, in an object's text, of the two fields that a renewal changes.
struct Fields {
    version: Range<usize>,
    renewed: Range<usize>,
}

/// `None` if the object is not in the plain form of a Lease, is being deleted, or has managers, because a
/// renewal may change their entries.
fn fields(object: &Object) -> Option<Fields> {
    let text = &*object.json;
    if text.len() > MAX_BYTES || object.terminating {
        return None;
    }
    let (mut version, mut renewed) = (None, None);
    let (mut depth, mut at, mut part) = (0_usize, 0, &b""[..]);
    while at < text.len() {
        match text[at] {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let string = string(text, at)?;
                at = string.end;
                if text.get(at + 1) != Some(&b':') {
                    at += 1;
                    continue;
                }
                let key = &text[string];
                match (depth, part, key) {
                    (1, ..) => part = key,
                    (2, b"metadata", b"managedFields") => return None,
                    (2, b"metadata", b"resourceVersion") => version = Some(value(text, at + 2)?),
                    (2, b"spec", b"renewTime") => renewed = Some(value(text, at + 2)?),
                    _ => {}
                }
            }
            _ => {}
        }
        at += 1;
    }
    let renewed = renewed.filter(|found: &Range<usize>| found.len() == FORM.len())?;
    Some(Fields { version: version?, renewed })
}

/// The string value at a place, without its quotes.
fn value(text: &[u8], at: usize) -> Option<Range<usize>> {
    if text.get(at) == Some(&b'"') { string(text, at) } else { None }
}

/// The inside of the string that begins with the quote at this place.
fn string(text: &[u8], at: usize) -> Option<Range<usize>> {
    let mut end = at + 1;
    while *text.get(end)? != b'"' {
        end += if text[end] == b'\\' { 2 } else { 1 };
    }
    Some(at + 1..end)
}

#[cfg(test)]
mod tests {
    use super::super::{Answer, Decision, Fresh, Objects, Part, Place, WriteOptions, edit};
    use super::*;
    use crate::decode::FieldValidation;
    use crate::kinds::{Kind, LEASE};
    use crate::patch::body::Patch;
    use kedge_rig::Random;
    use serde_json::{Value, json};
    use std::sync::Arc;

    const MERGE: &str = "application/merge-patch+json";
    const FRESH: Fresh = Fresh { now: time::macros::datetime!(2026-11-21 12:00:00 UTC), random: [7; 21] };

    struct One(Arc<Object>);

    impl Objects for One {
        fn get(&self, _: &'static Kind, _: &str, _: &str) -> Option<Arc<Object>> {
            Some(self.0.clone())
        }

        fn pods_of(&self, _: &str) -> Vec<Arc<Object>> {
            Vec::new()
        }
    }

    fn object(value: &Value) -> Object {
        Object::new(&LEASE, value, value["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap())
            .unwrap()
    }

    /// The result of a patch by the general way: the object with its new version, or the present one.
    fn edited(current: &Object, content_type: &str, body: &[u8]) -> Option<Value> {
        let place = Place { kind: &LEASE, namespace: "kube-node-lease", name: "n" };
        let patch = Patch::read(&LEASE, content_type, body).ok()?;
        let compute =
            |_: &Object, old: Value| patch.apply(old, FieldValidation::Strict).map(|(value, _)| value);
        let objects =
            One(Arc::new(Object::from_json(&LEASE, current.json.to_vec(), current.revision).unwrap()));
        match edit(&objects, &place, Part::Main, &WriteOptions::internal(), &FRESH, compute).ok()? {
            Decision::Answer(Answer { object, .. }) => Some(object?.value()),
            Decision::Write(write, _) => {
                assert!(write.volatile, "a renewal is not durable");
                let mut new = write.new?;
                new["metadata"]["resourceVersion"] = "1000".into();
                Some(new)
            }
        }
    }

    /// The result of a patch by the plain way.
    fn renewed(current: &Object, content_type: &str, body: &[u8]) -> Option<Value> {
        let renewal = Renewal::read(content_type, body)?;
        if renewal.is_made(current)? {
            return Some(current.value());
        }
        let made = current.with_text(renewal.make(current, 1000)?, 1000);
        let read = Object::from_json(&LEASE, made.json.to_vec(), 1000).unwrap();
        assert_eq!((&read.name, &read.uid, &read.owners), (&made.name, &made.uid, &made.owners));
        Some(made.value())
    }

    fn lease(random: &mut Random) -> Value {
        let times =
            ["2026-11-21T01:35:58.000000Z", "2025-01-01T00:00:00.000000Z", "1970-01-01T00:00:00.000001Z"];
        let version = ["7", "999", "4294967296"][random.index(3)];
        let time = times[random.index(3)];
        let mut lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "n", "namespace": "kube-node-lease", "uid": "u", "creationTimestamp": "2026-11-21T01:35:58Z",
                "resourceVersion": version},
            "spec": {"holderIdentity": "n", "leaseDurationSeconds": 40, "renewTime": time}});
        let mut maybe = |change: &mut dyn FnMut(&mut Value)| {
            if random.index(3) == 0 {
                change(&mut lease);
            }
        };
        maybe(&mut |lease| {
            lease["metadata"]["annotations"] =
                json!({"renewTime": "x\\", "spec": "\"spec\":{\"renewTime\":\"", "x": "é{[\\\""})
        });
        maybe(&mut |lease| {
            lease["metadata"]["labels"] = json!({"resourceVersion": "1", "spec": "renewTime"})
        });
        maybe(&mut |lease| {
            lease["metadata"]["ownerReferences"] =
                json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "x"}])
        });
        maybe(&mut |lease| {
            lease["spec"]["holderIdentity"] = json!("\"renewTime\":\"2026-11-21T01:35:58.000000Z\"")
        });
        maybe(&mut |lease| lease["spec"]["acquireTime"] = json!("2026-11-21T01:35:58.000000Z"));
        maybe(&mut |lease| drop(lease["spec"].as_object_mut().unwrap().remove("leaseDurationSeconds")));
        lease
    }

    #[test]
    fn plain_and_general_way_give_the_same_object() {
        let mut plain = 0;
        for seed in 1..2000 {
            let mut random = Random::new(seed);
            let current = object(&lease(&mut random));
            let mut time = *b"2026-11-21T01:35:58.000000Z";
            for _ in 0..random.index(4) {
                let at = random.index(time.len());
                time[at] = b"0123456789:-.TZt,+ "[random.index(19)];
            }
            let body = [HEAD, &time, TAIL].concat();
            let kind = [MERGE, "application/strategic-merge-patch+json"][random.index(2)];
            if let Some(renewed) = renewed(&current, kind, &body) {
                plain += 1;
                assert_eq!(Some(renewed), edited(&current, kind, &body), "seed {seed}: {current:?}");
            }
        }
        assert!(plain > 500, "only {plain} renewals were plain");
    }

    #[test]
    fn whatever_is_not_plain_takes_the_general_way() {
        let time = "2026-11-21T01:35:58.000000Z";
        let body = |time: &str| format!("{{\"spec\":{{\"renewTime\":\"{time}\"}}}}");
        let check = |content_type: &str, body: &str, expect: bool| {
            assert_eq!(
                Renewal::read(content_type, body.as_bytes()).is_some(),
                expect,
                "{content_type} {body}"
            );
        };
        check(MERGE, &body(time), true);
        check("application/strategic-merge-patch+json", &body(time), true);
        check("application/apply-patch+yaml", &body(time), false);
        check("application/json-patch+json", &body(time), false);
        check("application/merge-patch+json; charset=utf-8", &body(time), false);
        check(MERGE, &format!(" {}", body(time)), false);
        check(MERGE, &body(&format!("{time}\",\"holderIdentity\":\"x")), false);
        for time in [
            "2026-11-21T01:35:58Z",
            "2026-11-21T01:35:58.000Z",
            "2026-11-21T01:35:58.0000000Z",
            "2026-11-21T01:35:58.000000+01:00",
            "2026-11-21T01:35:58,000000Z",
            "2026-02-30T01:35:58.000000Z",
            "2026-11-21T24:35:58.000000Z",
            "2026-13-21T01:35:58.000000Z",
            "",
        ] {
            check(MERGE, &body(time), false);
        }
        let renewal = Renewal::read(MERGE, body(time).as_bytes()).unwrap();
        let check = |change: &dyn Fn(&mut Value)| {
            let mut value = lease(&mut Random::new(1));
            change(&mut value);
            assert_eq!(renewal.is_made(&object(&value)), None, "{value}");
        };
        check(&|lease| lease["metadata"]["managedFields"] = json!([{"manager": "m"}]));
        check(&|lease| lease["metadata"]["deletionTimestamp"] = json!("2026-11-21T01:35:58Z"));
        check(&|lease| lease["metadata"]["annotations"] = json!({"a": "x".repeat(MAX_BYTES)}));
        check(&|lease| lease["spec"]["renewTime"] = Value::Null);
        check(&|lease| lease["spec"]["renewTime"] = json!("2026-11-21T01:35:58Z"));
        check(&|lease| drop(lease["spec"].as_object_mut().unwrap().remove("renewTime")));
    }
}
