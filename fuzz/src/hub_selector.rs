//! Label and field selectors, against an object: each is refused or selects, and its negation selects the
//! rest.

use crate::Target;
use crate::hub_body::check_refusal;
use crate::input::{joined, sections};
use kedge_hub_core::Object;
use kedge_hub_core::kinds::{CONFIG_MAP, EVENT, Kind, NODE};
use kedge_hub_core::selector::Selection;
use serde_json::json;

pub(crate) const TARGET: Target =
    Target { name: "hub_selector", run, seeds, words: WORDS, longest_bytes: 512, mutations: 5000 };

const WORDS: &[&str] = &[
    " in (",
    " notin (",
    ")",
    "==",
    "!=",
    "=",
    "!",
    ">",
    "<",
    ",",
    "metadata.name=",
    "metadata.namespace!=",
    "spec.unschedulable=",
    "involvedObject.name=",
    "reason=",
    "example.com/a",
    "a",
    "b",
    "edge",
    "\\,",
    "\\=",
    "\u{1e}",
    "9223372036854775808",
    "-1",
];

fn seeds() -> Vec<Vec<u8>> {
    [
        joined(&["n", "a=b,c!=d,!e", "metadata.name=edge"]),
        joined(&["n", "a in (b, c),d notin (e)", "spec.unschedulable=true"]),
        joined(&["m", "size > 3,size<10,a", "metadata.namespace!=kube-system,metadata.name==edge"]),
        joined(&["e", "", "involvedObject.name=edge-1,reason!=x"]),
    ]
    .to_vec()
}

fn run(data: &[u8]) {
    let [kind, labels, fields] = sections::<3>(data);
    let kind: &'static Kind = match kind {
        b"e" => &EVENT,
        b"m" => &CONFIG_MAP,
        _ => &NODE,
    };
    let (labels, fields) = (String::from_utf8_lossy(labels), String::from_utf8_lossy(fields));
    let value = json!({"metadata": {"name": "edge", "namespace": "ns", "labels": {"a": "b", "size": "5"}}});
    let object = Object::new(kind, &value, 1).expect("it has a name");
    match Selection::parse(kind, "", &labels, &fields) {
        Err(error) => check_refusal(&error),
        Ok(selection) => {
            let is_selected = selection.selects(&object);
            assert!(
                selection.name.as_deref().is_none_or(|name| name == "edge") || !is_selected,
                "{labels:?} {fields:?}"
            );
            check_key(kind, &labels, &object);
        }
    }
}

/// `key` and `!key` are opposites, for every key.
fn check_key(kind: &'static Kind, key: &str, object: &Object) {
    if key.contains([',', '(', '=', '<', '>', '!']) || key.trim().is_empty() {
        return;
    }
    let parsed = |text: &str| Selection::parse(kind, "", text, "").map(|selection| selection.selects(object));
    if let (Ok(there), Ok(absent)) = (parsed(key), parsed(&format!("!{key}"))) {
        assert_ne!(there, absent, "{key:?}");
    }
}
