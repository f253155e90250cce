//! Patches of every type against objects of every kind.
//!
//! The first byte chooses the kind, the second the type of patch; then follow the object and, after the
//! separator, the patch, as `large` expands them. Checked: a merge patch applied twice has the same result as
//! once, no directive of a strategic patch reaches its result, nothing grows beyond the size of the input,
//! and the schema can judge the result.

use crate::Target;
use crate::hub_body::BODY_BYTES;
use crate::hub_cost::OBJECT_BYTES;
use crate::input::{SEPARATOR, chosen_kind, sections};
use crate::large::expanded;
use kedge_hub_core::kinds::{Kind, schema};
use kedge_hub_core::patch::json::COPIED_BYTES;
use kedge_hub_core::patch::{PatchError, json, merge, strategic};
use serde_json::Value;

pub(crate) const TARGET: Target =
    Target { name: "hub_patch", run, seeds, words: WORDS, longest_bytes: 2048, mutations: 3000 };

const WORDS: &[&str] = &[
    "\"$patch\":\"replace\"",
    "\"$patch\":\"delete\"",
    "\"$patch\":\"merge\"",
    "\"$retainKeys\":[",
    "\"$setElementOrder/conditions\":[",
    "\"$deleteFromPrimitiveList/finalizers\":[",
    "{\"op\":\"add\",\"path\":\"",
    "{\"op\":\"remove\",\"path\":\"",
    "{\"op\":\"replace\",\"path\":\"",
    "{\"op\":\"move\",\"from\":\"",
    "{\"op\":\"copy\",\"from\":\"",
    "{\"op\":\"test\",\"path\":\"",
    "\",\"value\":",
    "/metadata/labels/a~1b",
    "/spec/taints/-",
    "/0",
    "~0",
    "~1",
    "\"metadata\":{",
    "\"labels\":{",
    "\"finalizers\":[",
    "\"ownerReferences\":[{\"uid\":",
    "\"spec\":{",
    "\"taints\":[{\"key\":",
    "\"status\":{",
    "\"conditions\":[{\"type\":",
    "\"addresses\":[{\"type\":",
    "\"data\":{",
    "\"containers\":[{\"name\":",
    "null",
    "\u{1d}\u{20}\u{2}/a",
    "\u{1d}\u{30}\u{5}{\"a\":",
    "\u{1d}\u{30}\u{1}}",
    "\u{1d}\u{50}\u{2}0,",
    "\u{1e}",
];

fn seeds() -> Vec<Vec<u8>> {
    let node = r#"{"metadata":{"name":"edge-1","labels":{"a":"b"},"finalizers":["x/y","z/z"],"ownerReferences":[{"uid":"u","name":"n"}]},"spec":{"taints":[{"key":"k","effect":"NoSchedule"},{"key":"l","effect":"NoExecute"}]},"status":{"conditions":[{"type":"Ready","status":"True"},{"type":"X","status":"False"}],"addresses":[{"type":"InternalIP","address":"1.2.3.4"}]}}"#;
    let map = r#"{"metadata":{"name":"m"},"data":{"a":"1","b":"2"}}"#;
    let seed = |number: u8, how: u8, object: &str, patch: &str| {
        [&[number, how][..], object.as_bytes(), &[SEPARATOR], patch.as_bytes()].concat()
    };
    vec![
        seed(
            3,
            b's',
            node,
            r#"{"status":{"conditions":[{"type":"Ready","status":"Unknown"},{"type":"X","$patch":"delete"}],"$setElementOrder/conditions":[{"type":"Ready"}]}}"#,
        ),
        seed(
            3,
            b's',
            node,
            r#"{"spec":{"taints":[{"$patch":"replace"},{"key":"q","effect":"NoSchedule"}]},"metadata":{"labels":{"a":null,"$patch":"merge"}}}"#,
        ),
        seed(
            3,
            b's',
            node,
            r#"{"metadata":{"$deleteFromPrimitiveList/finalizers":["x/y"],"finalizers":["n/n"],"$setElementOrder/finalizers":["n/n","z/z"]}}"#,
        ),
        seed(3, b's', node, r#"{"spec":{"$retainKeys":["providerID"],"providerID":"x"}}"#),
        seed(0, b'm', map, r#"{"data":{"a":null,"c":"3"},"metadata":{"labels":{"x":"y"}}}"#),
        seed(
            3,
            b'j',
            node,
            r#"[{"op":"test","path":"/metadata/name","value":"edge-1"},{"op":"add","path":"/spec/taints/-","value":{"key":"n"}},{"op":"remove","path":"/metadata/labels/a"}]"#,
        ),
        seed(
            0,
            b'j',
            map,
            r#"[{"op":"move","from":"/data/a","path":"/data/z"},{"op":"copy","from":"/data","path":"/data/y"},{"op":"replace","path":"","value":{}}]"#,
        ),
    ]
}

fn run(data: &[u8]) {
    let [number, how, texts @ ..] = data else { return };
    let kind = chosen_kind(*number);
    let [object, patch] = sections::<2>(texts);
    let (object, patch) = (expanded(object, OBJECT_BYTES), expanded(patch, BODY_BYTES));
    let (Ok(mut object), Ok(patch)) =
        (serde_json::from_slice::<Value>(&object), serde_json::from_slice::<Value>(&patch))
    else {
        return;
    };
    if schema::conform(kind.schema(), &mut object).wrong.is_some() {
        return;
    }
    let given = object.to_string().len() + patch.to_string().len();
    match how {
        b'm' => merged(object, patch, given),
        b'j' => {
            let operations = patch.as_array().map_or(0, Vec::len);
            if checked(json::apply(&mut object, &patch)) {
                let bytes = object.to_string().len();
                assert!(bytes <= given + COPIED_BYTES + 64 * operations, "{bytes} bytes of {given}");
            }
        }
        _ => strategically(kind, object, patch, given),
    }
}

fn merged(object: Value, patch: Value, given: usize) {
    let mut once = object;
    merge::apply(&mut once, patch.clone());
    assert!(once.to_string().len() <= given, "{once} of {given} bytes");
    let mut twice = once.clone();
    merge::apply(&mut twice, patch);
    assert_eq!(once, twice);
}

fn strategically(kind: &'static Kind, object: Value, patch: Value, given: usize) {
    // in free maps (labels, data) a key may look like a directive
    let had_dollars = object.to_string().contains('$');
    let mut once = object;
    if !checked(strategic::apply(kind.schema(), &mut once, patch)) {
        return;
    }
    assert!(once.is_object() && once.to_string().len() <= given + 64, "{once} of {given} bytes");
    assert!(had_dollars || !has_directive(&once), "a directive in {once}");
    schema::conform(kind.schema(), &mut once);
}

/// Whether the patch applied; if not, the error must have a text.
fn checked(applied: Result<(), PatchError>) -> bool {
    match applied {
        Ok(()) => true,
        Err(PatchError::Malformed(why) | PatchError::DoesNotApply(why)) => {
            assert!(!why.is_empty(), "a refusal without a text");
            false
        }
    }
}

fn has_directive(value: &Value) -> bool {
    let is_directive = |key: &String| {
        key == "$patch"
            || key == "$retainKeys"
            || key.starts_with("$setElementOrder/")
            || key.starts_with("$deleteFromPrimitiveList/")
    };
    match value {
        Value::Object(fields) => fields.iter().any(|(key, value)| is_directive(key) || has_directive(value)),
        Value::Array(items) => items.iter().any(has_directive),
        _ => false,
    }
}
