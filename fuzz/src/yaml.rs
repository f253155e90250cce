//! Any text gives a tree within its limits, or an error with its position.

use crate::Target;
use kedge_core::kubelet::yaml::{self, Content, MAX_DEPTH, MAX_KEY_BYTES, MAX_NODES, Position, Tree};
use serde_json::Value;
use std::collections::BTreeSet;

pub(crate) const TARGET: Target =
    Target { name: "yaml", run, seeds, words: WORDS, longest_bytes: 4096, mutations: 3000 };

/// Longest message about a text: it becomes part of a condition, which API servers limit.
pub(crate) const MESSAGE_BYTES: usize = 700;

const WORDS: &[&str] = &[
    "!!str ",
    "!!map",
    "!!seq",
    "!!int",
    "!!binary",
    "&a ",
    "*a",
    "<<: *a",
    "---\n",
    "...\n",
    "%YAML 1.2\n",
    "- ",
    "? ",
    ": ",
    "|\n ",
    ">-\n ",
    "|+2\n",
    "~",
    "null",
    "true",
    "yes",
    "off",
    "0o17",
    "0x1F",
    "0b1",
    "1_000",
    "1e3",
    ".inf",
    ".nan",
    "-.5",
    "2026-11-21",
    "\\u0041",
    "\\ud83d\\ude00",
    "\\x41",
    "\\N",
    "\u{feff}",
    "\u{85}",
    "\u{2028}",
    "\t",
    "\r\n",
    "'",
    "\"",
    "[",
    "]",
    "{",
    "}",
    ",",
    "#",
];

fn seeds() -> Vec<Vec<u8>> {
    [
        "kind: KubeletConfiguration\nlogging:\n  verbosity: 2\nclusterDNS: [10.0.0.10, \"fd00::1\"]\n",
        "# comment\n%YAML 1.2\n---\na: &k word\nb: !!str 12\nc:\n- *k\n- |\n  block\n- >-\n  folded\n   text\nd: ? e\n...\n",
        "a: [1, 0x1F, 0o17, 0644, 0b1, 1e3, -.5, +7, ~, yes, off, 'it''s', \"\\u0041\\x41\\n\", {b: c, d: [e]}]\n",
        "{\"a\":{\"b\":[1,2.5,-0,1e300,true,null,\"\\ud83d\\ude00\"]},\"\":\"\"}",
        "? complex\n: value\n? [a]\n: b\n",
        "a: 1\r\nb: 2\r\n\u{feff}c: 3\n",
        "base: &b {x: 1}\nuse: {<<: *b}\n",
        "a: .inf\n",
        "\"multi\n  line\": 'plain\n\n  text'\n",
        "- - - a\n    - b\n  -\n- ~\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

fn run(data: &[u8]) {
    match yaml::parse(data) {
        Err(error) => check_message(&error.to_string()),
        Ok(tree) => {
            let lines =
                u32::try_from(data.split(|byte| matches!(byte, b'\n' | b'\r')).count()).unwrap_or(u32::MAX);
            let mut nodes = 0;
            check_tree(&tree, 1, lines, &mut nodes);
            assert!(nodes <= MAX_NODES, "{nodes} values");
            check_as_json(data, &tree.to_json());
        }
    }
}

/// A message for operators is neither empty nor too long.
pub(crate) fn check_message(message: &str) {
    assert!(!message.is_empty(), "an error without a word");
    assert!(message.len() <= MESSAGE_BYTES, "{} bytes of message: {message}", message.len());
    assert!(!message.contains('\0'), "a NUL in {message:?}");
}

fn check_tree(tree: &Tree, depth: usize, lines: u32, nodes: &mut usize) {
    assert!(depth <= MAX_DEPTH + 1, "{depth} levels");
    *nodes += 1;
    check_position(tree.position, lines);
    match &tree.content {
        Content::List(items) => items.iter().for_each(|item| check_tree(item, depth + 1, lines, nodes)),
        Content::Object(entries) => {
            let mut keys = BTreeSet::new();
            for entry in entries {
                assert!(entry.key.len() <= MAX_KEY_BYTES, "a key of {} bytes", entry.key.len());
                assert!(keys.insert(&entry.key), "key {:?} twice", entry.key);
                check_position(entry.key_position, lines);
                check_tree(&entry.value, depth + 1, lines, nodes);
            }
        }
        Content::Null | Content::Bool(_) | Content::Number(_) | Content::Text(_) => {}
    }
}

fn check_position(position: Position, lines: u32) {
    // the position of a value that is left out at the end of a text is after the last line
    assert!((1..=lines + 1).contains(&position.line), "{position:?} of {lines} lines");
    assert!(position.column >= 1, "{position:?}");
}

/// JSON is YAML: a text that is both has one meaning, and a tree written as JSON is read back unchanged.
fn check_as_json(data: &[u8], value: &Value) {
    if let Ok(json) = serde_json::from_slice::<Value>(data) {
        assert!(means(value, &json), "as YAML {value}, as JSON {json}");
    }
    let written = value.to_string();
    match yaml::parse(written.as_bytes()) {
        Ok(again) => assert!(means(&again.to_json(), value), "{written} is read back as {}", again.to_json()),
        // a tree at a limit has more punctuation as JSON
        Err(error) => assert!(error.message.contains("more than"), "{written}: {error}"),
    }
}

/// Equal, with numbers compared by value, because JSON has only one kind of them. A float may lose its last
/// digit: the JSON reader without exact floats is 20 KB smaller, and no field of a configuration needs
/// seventeen digits.
pub(crate) fn means(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            let (one_value, other_value) = (one.as_f64().unwrap_or(0.0), other.as_f64().unwrap_or(0.0));
            let is_float = one.is_f64() || other.is_f64();
            one == other
                || is_float && (one_value - other_value).abs() <= one_value.abs() * 4.0 * f64::EPSILON
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| means(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let same =
                |(key, value): (&String, &Value)| other.get(key).is_some_and(|other| means(value, other));
            one.len() == other.len() && one.iter().all(same)
        }
        _ => one == other,
    }
}
