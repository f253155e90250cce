//! Bodies that clients send to the hub, as JSON or protobuf, and objects that it may find in its store.
//!
//! The first byte chooses the kind, the second the action; the rest is the body as `large` expands it.
//! Checked: an accepted object is in its final form (the schema changes nothing more), can be stored, shown
//! and read back; a refused one gets a Status.

use crate::Target;
use crate::input::chosen_kind;
use crate::large::expanded;
use kedge_hub_core::decode::{FieldValidation, object};
use kedge_hub_core::kinds::{Kind, schema};
use kedge_hub_core::requests::{self, Fresh};
use kedge_hub_core::{ApiError, Object};
use serde_json::Value;
use time::OffsetDateTime;

pub(crate) const TARGET: Target =
    Target { name: "hub_body", run, seeds, words: WORDS, longest_bytes: 4096, mutations: 2000 };

const FRESH: Fresh = Fresh { now: OffsetDateTime::UNIX_EPOCH, random: [7; 21] };
/// Largest body that the hub reads.
pub(crate) const BODY_BYTES: usize = 3 * 1024 * 1024;
/// Longest message of a refusal whatever the size of the body.
const MESSAGE_BYTES: usize = 64 * 1024;

const WORDS: &[&str] = &[
    "\"apiVersion\":\"v1\"",
    "\"kind\":\"Node\"",
    "\"metadata\":{",
    "\"name\":",
    "\"generateName\":",
    "\"namespace\":",
    "\"labels\":{",
    "\"annotations\":{",
    "\"ownerReferences\":[{",
    "\"finalizers\":[",
    "\"data\":{",
    "\"binaryData\":{",
    "\"immutable\":true",
    "\"spec\":{",
    "\"configSource\":",
    "\"configMapRef\":{",
    "\"taints\":[{",
    "\"effect\":\"NoSchedule\"",
    "\"podCIDR\":",
    "\"unschedulable\":",
    "\"status\":{",
    "\"conditions\":[{",
    "\"lastHeartbeatTime\":",
    "\"capacity\":{",
    "\"addresses\":[{",
    "\"leaseDurationSeconds\":",
    "\"renewTime\":",
    "\"involvedObject\":{",
    "\"firstTimestamp\":",
    "\"count\":",
    "\"series\":{",
    "\u{1d}\u{50}\u{6}\"a\u{1c}\":",
    "\u{1d}\u{50}\u{2}0,",
    "\u{1d}\u{50}\u{1}x",
    "\u{1d}\u{30}\u{1}[",
    "\u{1d}\u{30}\u{1}]",
    "\"containers\":[{",
    "null",
    "\"1Gi\"",
    "k8s\0",
    "\x0a\x0f\x0a\x02v1\x12\x09ConfigMap",
    "\x12",
    "\x7f",
];

fn seeds() -> Vec<Vec<u8>> {
    let json = |number: u8, text: &str| [&[number, b'j'][..], text.as_bytes()].concat();
    let mut protobuf = vec![0, b'p'];
    protobuf.extend_from_slice(b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x1b\x0a\x0a\x0a\x04edge\x1a\x02ns\x12\x0d\x0a\x07kubelet\x12\x02{}");
    vec![
        json(
            0,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"edge","labels":{"a":"b"}},"data":{"kubelet":"x"},"binaryData":{"b":"aGk="}}"#,
        ),
        json(
            1,
            r#"{"metadata":{"name":"e","namespace":"default"},"involvedObject":{"kind":"Node","name":"n"},"reason":"r","message":"m","firstTimestamp":"2026-11-21T01:35:58Z","count":1,"type":"Normal"}"#,
        ),
        json(
            2,
            r#"{"metadata":{"name":"kube-x","finalizers":["a/b"]},"spec":{"finalizers":["kubernetes"]}}"#,
        ),
        json(
            3,
            r#"{"metadata":{"name":"edge-1"},"spec":{"configSource":{"configMap":{"namespace":"n","name":"m","kubeletConfigKey":"k"}},"taints":[{"key":"a","effect":"NoSchedule"}]},"status":{"capacity":{"cpu":"4","memory":"1Gi"},"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":"2026-11-21T01:35:58Z"}]}}"#,
        ),
        json(
            4,
            r#"{"metadata":{"name":"p","namespace":"default"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#,
        ),
        json(
            5,
            r#"{"metadata":{"name":"edge-1"},"spec":{"holderIdentity":"edge-1","leaseDurationSeconds":40,"renewTime":"2026-11-21T01:35:58.000000Z"}}"#,
        ),
        [
            &[3, b's'][..],
            br#"{"metadata":{"name":"edge-1","labels":{"a":"b"},"uid":"u"},"spec":{"unschedulable":true}}"#,
        ]
        .concat(),
        protobuf,
    ]
}

fn run(data: &[u8]) {
    let [number, how, body @ ..] = data else { return };
    let kind = chosen_kind(*number);
    let body = expanded(body, BODY_BYTES);
    match how {
        b's' => stored(kind, &body),
        b'p' => sent(kind, "application/vnd.kubernetes.protobuf", &body),
        _ => sent(kind, "application/json; charset=utf-8", &body),
    }
}

fn sent(kind: &'static Kind, content_type: &str, body: &[u8]) {
    let strict = object(kind, content_type, body, FieldValidation::Strict);
    match object(kind, content_type, body, FieldValidation::Warn) {
        Err(error) => {
            check_refusal(&error);
            assert!(strict.is_err(), "the strict reader accepts a body that the other refuses");
        }
        Ok(decoded) => {
            assert_eq!(strict.is_ok(), decoded.warnings.is_empty(), "{:?}", decoded.warnings);
            check_final(kind, &decoded.value);
            match requests::new_object(kind, decoded.value, &FRESH) {
                Ok(value) => check_stored(kind, &value),
                Err(error) => check_refusal(&error),
            }
        }
    }
}

/// Checks that the schema has nothing more to change.
fn check_final(kind: &'static Kind, value: &Value) {
    let mut again = value.clone();
    let findings = schema::conform(kind.schema(), &mut again);
    assert_eq!(findings.wrong, None);
    assert!(findings.unknown.is_empty(), "{:?}", findings.unknown);
    // a collection that the first pass emptied may leave its own parent empty
    let mut once_more = again.clone();
    schema::conform(kind.schema(), &mut once_more);
    assert_eq!(again, once_more);
}

fn check_stored(kind: &'static Kind, value: &Value) {
    // the name may still be generated from generateName
    let Some(object) = Object::new(kind, value, 1) else { return };
    assert_eq!(&object.value(), value);
    let again = Object::from_json(kind, object.json.to_vec(), 1).expect("it was an object before");
    assert_eq!((&again.name, &again.namespace, &again.uid), (&object.name, &object.namespace, &object.uid));
    show(kind, value);
}

fn show(kind: &'static Kind, value: &Value) {
    let cells = (kind.cells)(value, OffsetDateTime::UNIX_EPOCH);
    assert_eq!(cells.len(), kind.columns.len());
    (kind.warnings)(value, None);
}

/// An object from a damaged or foreign store is read or refused, and can be printed.
fn stored(kind: &'static Kind, text: &[u8]) {
    let Some(object) = Object::from_json(kind, text.to_vec(), 1) else { return };
    for index in 0..kind.selectable.len() {
        object.field(index);
    }
    show(kind, &object.value());
}

/// A refusal blames the client and has a text.
pub(crate) fn check_refusal(error: &ApiError) {
    assert!((400..500).contains(&error.code), "{error:?}");
    assert!(
        !error.message.is_empty() && error.message.len() <= MESSAGE_BYTES,
        "{} bytes",
        error.message.len()
    );
    let status = error.to_value();
    assert_eq!(
        (status["kind"].as_str(), status["code"].as_u64()),
        (Some("Status"), Some(u64::from(error.code)))
    );
}
