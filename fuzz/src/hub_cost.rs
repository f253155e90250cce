//! The cost of one request of any kind and type, with bodies up to the hub's limits.
//!
//! The first byte chooses the kind, the second the request; then follow the existing object and, after the
//! separator, the body, both as `large` expands them. Checked: the bytes that the hub allocates for it, from
//! reading the body to the object to store or the refusal, stay below a line over the bytes of both; the
//! answer is short; the stored object can be read back.

use crate::Target;
use crate::cost;
use crate::hub_body::{BODY_BYTES, check_refusal};
use crate::input::{SEPARATOR, chosen_kind, sections};
use crate::large::{COUNTED, expanded, repeated};
use kedge_hub_core::apply::{self, Apply, Manager, Owner};
use kedge_hub_core::decode::{self, FieldValidation};
use kedge_hub_core::kinds::{KINDS, Kind};
use kedge_hub_core::patch::body::Patch;
use kedge_hub_core::requests::{self, Fresh};
use kedge_hub_core::{ApiError, Object, cost as limits};
use serde_json::Value;
use time::OffsetDateTime;

pub(crate) const TARGET: Target =
    Target { name: "hub_cost", run, seeds, words: WORDS, longest_bytes: 2048, mutations: 20 };

/// Largest stored object.
pub(crate) const OBJECT_BYTES: usize = 1536 * 1024;

/// The line: the bytes that a request may allocate, freed or not, for each byte of object and body, and in
/// addition. Measured: 690 for the apply of many small items of a list with keys, 250 for strategic merges,
/// 90 for updates.
const PER_BYTE: usize = 1000;
const BESIDES: usize = 256 * 1024;
/// The limit for inputs of any size: such an apply can have 350 kB before its items are too many.
const MOST: usize = 32 * limits::MAX_TREE_BYTES;

const FRESH: Fresh = Fresh { now: OffsetDateTime::UNIX_EPOCH, random: [7; 21] };
const NOW: &str = "2026-01-01T00:00:00Z";

const WORDS: &[&str] = &[
    "\u{1d}\u{40}\u{8}{\"\":0},",
    "\u{1d}\u{40}\u{4}[0],",
    "\u{1d}\u{60}\u{1}[",
    "\u{1d}\u{60}\u{1}]",
    "\u{1d}\u{60}\u{1}x",
    "\u{1d}\u{50}\u{a}\"a\u{1c}\":\"\",",
    "\u{1d}\u{30}\u{2}/a",
    "\u{1c}",
    "{\"op\":\"copy\",\"from\":\"/data\",\"path\":\"/data/a\"},",
    "{\"op\":\"add\",\"path\":\"/a/0\",\"value\":0},",
    "\"metadata\":{",
    "\"labels\":{",
    "\"spec\":{",
    "\"data\":",
    "\u{1e}",
];

fn seeds() -> Vec<Vec<u8>> {
    let meta = r#"{"metadata":{"name":"x","namespace":"d"},"#;
    let map = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{"#;
    let (many, fewer) = (500_000, 15_000);
    let entry = format!("\"k{COUNTED}\":\"\",");
    let removed = format!("\"k{COUNTED}\":null,");
    let label = format!("\"-{COUNTED}\":\"\",");
    let line = format!(" a{COUNTED}: x\n");
    let deeper = format!(r#"{{"op":"copy","from":"/data","path":"/data{}"}},"#, "/a".repeat(64));
    let number = format!("{COUNTED},");
    let insert = r#"{"op":"add","path":"/data/0","value":0},"#;
    let variable = format!("{{\"name\":\"e{COUNTED}\"}},");
    let (containers, end) = (r#""spec":{"containers":[{"name":"c","env":["#, r#"{"name":"c"}]}}"#);
    let repeats = |again: &str| {
        let body = [
            Text("{"),
            Text(containers),
            Times(4_000, &variable),
            Text("{\"name\":\"e\"}]},"),
            Times(4_000, again),
            Text(end),
        ];
        seed("Pod", b's', &[Text(meta), Text("\"spec\":{}}")], &body)
    };
    vec![
        // a repeated merge key, with a long list inside
        repeats(r#"{"name":"c","env":[]},"#),
        repeats(r#"{"name":"c","env":[{"name":"e1"}]},"#),
        repeats(r#"{"name":"c","$setElementOrder/env":[]},"#),
        // many tiny values
        seed(
            "ControllerRevision",
            b'c',
            &[],
            &[Text(meta), Text("\"data\":["), Times(many, "{\"\":0},"), Text("0]}")],
        ),
        seed(
            "ControllerRevision",
            b'c',
            &[],
            &[Text(meta), Text("\"data\":["), Times(many, "[0],"), Text("0]}")],
        ),
        // a long key above many items, and one that is too long
        seed(
            "ConfigMap",
            b'c',
            &[],
            &[Text(meta), Text("\""), Times(60_000, "k"), Text("\":["), Times(many, "0,"), Text("0]}")],
        ),
        seed(
            "ConfigMap",
            b'c',
            &[],
            &[Text(meta), Text("\""), Times(many, "k"), Text("\":["), Times(many, "0,"), Text("0]}")],
        ),
        // depth, duplicates, unknown fields, errors
        seed(
            "ConfigMap",
            b'c',
            &[],
            &[Text(meta), Text("\"a\":"), Times(400, "["), Times(400, "]"), Text("}")],
        ),
        seed("ConfigMap", b'c', &[], &[Text(meta), Times(many, "\"a\":0,"), Text("\"a\":0}")]),
        seed("ConfigMap", b'c', &[], &[Text(meta), Times(fewer, &entry), Text("\"a\":0}")]),
        seed(
            "Node",
            b's',
            &[Text(meta), Text("\"spec\":{}}")],
            &[Text("{\"metadata\":{\"labels\":{"), Times(fewer, &label), Text("\"a\":\"\"}}}")],
        ),
        // a patch that nests deeper with every operation, and one that moves a long list with each
        seed(
            "ControllerRevision",
            b'j',
            &[Text(meta), Text("\"data\":"), Times(64, "{\"a\":"), Text("0"), Times(64, "}"), Text("}")],
            &[Text("["), Times(9, &deeper), Text("{\"op\":\"test\",\"path\":\"\"}]")],
        ),
        seed(
            "ControllerRevision",
            b'j',
            &[Text(meta), Text("\"data\":["), Times(200_000, "0,"), Text("0]}")],
            &[Text("["), Times(9_000, insert), Text("{}]")],
        ),
        // large maps, written, applied and patched
        seed(
            "ConfigMap",
            b'u',
            &[Text(meta), Text("\"data\":{}}")],
            &[Text(meta), Text("\"data\":{"), Times(fewer, &entry), Text("\"a\":\"\"}}")],
        ),
        seed(
            "ConfigMap",
            b'a',
            &[Text(meta), Text("\"data\":{}}")],
            &[Text(map), Times(fewer, &entry), Text("\"a\":\"\"}}")],
        ),
        seed(
            "ConfigMap",
            b'a',
            &[Text(meta), Text("\"data\":{}}")],
            &[Text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata:\n"), Times(fewer, &line)],
        ),
        seed(
            "ConfigMap",
            b'm',
            &[Text(meta), Text("\"data\":{"), Times(fewer, &entry), Text("\"a\":\"\"}}")],
            &[Text("{\"data\":{"), Times(fewer, &removed), Text("\"a\":null}}")],
        ),
        // an item as long as many others, which the patch puts in another order
        seed(
            "ControllerRevision",
            b's',
            &[
                Text(meta),
                Text("\"data\":{\"l\":[\""),
                Times(60_000, "x"),
                Text("\","),
                Times(fewer, &number),
                Text("0]}}"),
            ],
            &[Text("{\"data\":{\"$setElementOrder/l\":["), Times(fewer, &number), Text("0],\"l\":[0]}}")],
        ),
        // 131,072 empty references of two bytes each
        seed(
            "ServiceAccount",
            b'p',
            &[],
            &[
                Text("k8s\0\n\u{14}\n\u{2}v1\u{12}\u{e}ServiceAccount\u{12}"),
                Bytes(&[0x80, 0x80, 0x10]),
                Times(131_072, "\u{12}\0"),
            ],
        ),
    ]
}

/// A part of a seed.
enum Part<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
    Times(usize, &'a str),
}
use Part::{Bytes, Text, Times};

fn seed(kind: &str, request: u8, object: &[Part<'_>], body: &[Part<'_>]) -> Vec<u8> {
    let number = KINDS.iter().position(|known| known.kind == kind).expect("the hub serves it");
    let mut seed = vec![u8::try_from(number).expect("there are few kinds"), request];
    let text = |parts: &[Part<'_>]| {
        let bytes = |part: &Part<'_>| match part {
            Text(text) => text.as_bytes().to_vec(),
            Bytes(bytes) => bytes.to_vec(),
            Times(times, piece) => repeated(*times, piece),
        };
        parts.iter().flat_map(bytes).collect::<Vec<u8>>()
    };
    seed.extend(text(object));
    seed.push(SEPARATOR);
    seed.extend(text(body));
    seed
}

fn run(data: &[u8]) {
    let [number, request, texts @ ..] = data else { return };
    let kind = chosen_kind(*number);
    let [object, body] = sections::<2>(texts);
    let (object, body) = (expanded(object, OBJECT_BYTES), expanded(body, BODY_BYTES));
    judged(kind, *request, &object, &body);
}

/// Makes the request; returns what it allocated.
pub(crate) fn judged(kind: &'static Kind, request: u8, object: &[u8], body: &[u8]) -> usize {
    let (outcome, bytes) = cost::allocated(|| answered(kind, request, object, body));
    if let Err(error) = &outcome {
        check_refusal(error);
    }
    if cost::is_judged() {
        let given = object.len() + body.len();
        let line = (BESIDES + PER_BYTE * given).min(MOST);
        assert!(bytes <= line, "{} {} of {given} bytes allocates {bytes}", char::from(request), kind.kind);
    }
    bytes
}

fn answered(kind: &'static Kind, request: u8, object: &[u8], body: &[u8]) -> Result<(), ApiError> {
    const JSON: &str = "application/json";
    let read = |content_type: &str, text: &[u8]| {
        decode::object(kind, content_type, text, FieldValidation::Warn).map(|read| read.value)
    };
    let new = match request {
        b'c' => requests::new_object(kind, read(JSON, body)?, &FRESH)?,
        b'p' => requests::new_object(kind, read("application/vnd.kubernetes.protobuf", body)?, &FRESH)?,
        _ => {
            // not validated by today's rules, because an older hub may have stored it
            let mut old = read(JSON, object)?;
            kind.complete(&mut old);
            let wanted = match request {
                b'u' => read(JSON, body)?,
                b'a' => applied(kind, body)?.to(old.clone(), NOW)?,
                _ => {
                    let patch = Patch::read(kind, patch_type(request), body)?;
                    patch.apply(old.clone(), FieldValidation::Warn)?.0
                }
            };
            limits::check_change(Some(&old), &wanted)?;
            let mut new = requests::merged_with_old(kind, requests::Part::All, &old, wanted, NOW)?;
            let manager = Manager { name: "b".to_owned(), subresource: String::new() };
            apply::track(kind, &old, &mut new, None, Owner::Updates(&manager), (false, NOW));
            (kind.warnings)(&new, Some(&old));
            new
        }
    };
    limits::check_change(None, &new)?;
    (kind.cells)(&new, OffsetDateTime::UNIX_EPOCH);
    if let Some(stored) = Object::new(kind, &new, 1) {
        assert_eq!(stored.value(), new, "what is stored is read back");
    }
    Ok(())
}

fn patch_type(request: u8) -> &'static str {
    match request {
        b'j' => "application/json-patch+json",
        b'm' => "application/merge-patch+json",
        _ => "application/strategic-merge-patch+json",
    }
}

fn applied(kind: &'static Kind, body: &[u8]) -> Result<Apply, ApiError> {
    let body: Value = decode::applied(kind, ("d", "x"), body, FieldValidation::Warn)?.value;
    let manager = Manager { name: "a".to_owned(), subresource: String::new() };
    Apply::new(kind, body, manager, true)
}
