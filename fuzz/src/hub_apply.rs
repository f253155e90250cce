//! Server-side apply of arbitrary bodies, JSON and YAML, to objects of every kind with arbitrary managers.
//!
//! The first byte chooses the kind, the second the subresource and whether conflicts are forced; then follow
//! the live object and two bodies that are applied one after the other, separated, as `large` expands them.
//! Checked: a repeated apply changes nothing; the object does not grow beyond the size of its inputs;
//! managers stay readable.

use crate::Target;
use crate::hub_cost::OBJECT_BYTES;
use crate::input::{SEPARATOR, chosen_kind, sections};
use crate::large::expanded;
use kedge_hub_core::apply::{self, Apply, Manager, Owner};
use kedge_hub_core::decode::{APPLY, FieldValidation, object, parse};
use kedge_hub_core::kinds::{Kind, schema};
use serde_json::{Value, json};

pub(crate) const TARGET: Target =
    Target { name: "hub_apply", run, seeds, words: WORDS, longest_bytes: 2048, mutations: 2500 };

const WORDS: &[&str] = &[
    "\"managedFields\":[",
    "{\"manager\":\"a\",\"operation\":\"Apply\",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{",
    "\"operation\":\"Update\"",
    "\"f:data\":{",
    "\"f:metadata\":{",
    "\"f:labels\":{",
    "\"k:{\\\"type\\\":\\\"Ready\\\"}\":{",
    "\"v:\\\"x/y\\\"\":{}",
    "\".\":{}",
    "\"i:0\":{}",
    "\"finalizers\":[",
    "\"conditions\":[{\"type\":",
    "\"containers\":[{\"name\":",
    "\"ports\":[{\"containerPort\":",
    "metadata:\n  labels:\n    a: b\n",
    "- ",
    "&a ",
    "*a",
    "\u{1e}",
];
/// Most bytes of managers' entries for each byte of a field: its steps, quotes and the entry around them.
const GROWTH_PER_BYTE: usize = 24;

fn seeds() -> Vec<Vec<u8>> {
    let seed = |number: u8, how: u8, live: &str, first: &str, second: &str| {
        let mut bytes = vec![number, how];
        bytes.extend([live, first, second].join(std::str::from_utf8(&[SEPARATOR]).unwrap_or("")).as_bytes());
        bytes
    };
    let map = r#"{"metadata":{"name":"m","managedFields":[{"manager":"b","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{".":{},"f:a":{}}}}]},"data":{"a":"1","b":"2"}}"#;
    vec![
        seed(
            0,
            b'f',
            map,
            r#"{"apiVersion":"v1","metadata":{"labels":{"x":"y"}},"data":{"a":"3"}}"#,
            r#"{"data":{}}"#,
        ),
        seed(
            0,
            b'-',
            map,
            "metadata:\n  labels: {x: \"y\"}\ndata:\n  a: \"1\"\n",
            "data:\n  c: |\n    text\n",
        ),
        seed(
            3,
            b's',
            r#"{"metadata":{"name":"n"},"status":{"conditions":[{"type":"Ready","status":"True"}]}}"#,
            r#"{"status":{"conditions":[{"type":"X","status":"True"},{"type":"Ready","status":"False"}]}}"#,
            r#"{"status":{"conditions":[{"type":"Ready","status":"False"}]}}"#,
        ),
        seed(
            3,
            b'f',
            r#"{"metadata":{"name":"n","finalizers":["x/y"]},"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]}}"#,
            r#"{"metadata":{"finalizers":["a/b","x/y"]},"spec":{"taints":[]}}"#,
            r#"{"metadata":{"finalizers":["a/b"]}}"#,
        ),
        seed(
            4,
            b'f',
            r#"{"metadata":{"name":"p"},"spec":{"hostNetwork":true,"volumes":[{"name":"v","hostPath":{"path":"/x","type":""}}]}}"#,
            r#"{"spec":{"hostNetwork":false,"nodeName":"","volumes":[{"name":"v","hostPath":null,"emptyDir":{}}]}}"#,
            r#"{"spec":{"volumes":[{"name":"v","secret":{"secretName":"s"}}],"containers":[]}}"#,
        ),
        seed(
            4,
            b'f',
            r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"a","ports":[{"containerPort":80}]}]}}"#,
            r#"{"spec":{"containers":[{"name":"b","image":"i"},{"name":"a","args":["x"]}]}}"#,
            r#"{"spec":{"containers":[{"name":"b","image":"j","resources":{}}]}}"#,
        ),
    ]
}

fn run(data: &[u8]) {
    let [number, how, texts @ ..] = data else { return };
    let kind = chosen_kind(*number);
    let [live, first, second] = sections::<3>(texts).map(|text| expanded(text, OBJECT_BYTES));
    let given = live.len() + first.len() + second.len() + data.len();
    let Ok(live) = object(kind, "application/json", &live, FieldValidation::Ignore) else { return };
    let mut live = live.value;
    if !live["metadata"].is_object() {
        live["metadata"] = json!({});
    }
    let (Some(first), Some(second)) = (read(kind, *how, &first), read(kind, *how, &second)) else { return };
    let given = given + live.to_string().len();

    let Some(once) = applied(&first, live.clone(), given) else { return };
    let again = applied(&first, once.clone(), given).expect("a manager does not conflict with itself");
    assert_eq!(again, once, "a repeated apply changed the object");
    let Some(then) = applied(&second, once.clone(), 2 * given) else { return };

    // an update by another manager, and one without a manager, keep managers readable
    for owner in [Owner::Updates(&manager(b'-')), Owner::Nobody] {
        let mut updated = once.clone();
        let claim = apply::take_claim(&mut updated);
        apply::track(kind, &then, &mut updated, claim, owner, (false, "2026-01-01T00:00:00Z"));
        let mut conforming = updated.clone();
        assert!(schema::conform(kind.schema(), &mut conforming).unknown.is_empty(), "{updated}");
    }
}

fn manager(how: u8) -> Manager {
    let subresource = if how == b's' { "status" } else { "" };
    Manager { name: "a".to_owned(), subresource: subresource.to_owned() }
}

fn read(kind: &'static Kind, how: u8, body: &[u8]) -> Option<Apply> {
    let (mut body, _) = parse(APPLY, body).ok()?;
    // as written, with zeros and nulls
    if schema::conform_applied(kind.schema(), &mut body).wrong.is_some() {
        return None;
    }
    Apply::new(kind, body, manager(how), how != b'-').ok()
}

fn applied(what: &Apply, live: Value, given: usize) -> Option<Value> {
    match what.to(live, "2026-01-01T00:00:00Z") {
        Ok(object) => {
            let bytes = object.to_string().len();
            assert!(bytes <= 1024 + GROWTH_PER_BYTE * given, "{bytes} bytes of {given}");
            Some(object)
        }
        Err(error) => {
            assert!(error.code == 409 && !error.message.is_empty(), "{error:?}");
            None
        }
    }
}
