//! A Node's `spec.configSource` and the annotation in its place, from a server that may send anything.

use crate::Target;
use crate::input::{joined, sections};
use crate::yaml::check_message;
use kedge_core::config::source::{RequestedSource, Source, requested_source};
use serde_json::Value;

pub(crate) const TARGET: Target =
    Target { name: "source", run, seeds, words: WORDS, longest_bytes: 2048, mutations: 5000 };

const WORDS: &[&str] = &[
    "\"configMapRef\":",
    "\"configMap\":",
    "\"namespace\":",
    "\"name\":",
    "\"uid\":",
    "\"kubeletConfigKey\":",
    "\"kind\":",
    "\"apiVersion\":",
    "\"ConfigMap\"",
    "\"v1\"",
    "\"resourceVersion\":",
    "null",
    "{}",
    "\"..\"",
    "\".\"",
    "\"a/b\"",
    "\"\"",
    "\"kube-system\"",
    "\u{1e}",
    "\\u0000",
];

fn seeds() -> Vec<Vec<u8>> {
    const PINNED: &str = r#"{"configMapRef":{"namespace":"kube-system","name":"edge","uid":"7f3c-1"}}"#;
    const FOLLOWING: &str =
        r#"{"configMap":{"namespace":"kube-system","name":"edge","kubeletConfigKey":"kubelet"}}"#;
    let kind =
        r#"{"configMapRef":{"kind":"ConfigMap","apiVersion":"v1","namespace":"a","name":"b","uid":"c"}}"#;
    let both = r#"{"configMapRef":{"namespace":"a","name":"b","uid":"c"},"configMap":null}"#;
    [
        joined(&["H", PINNED, ""]),
        joined(&["K", FOLLOWING, ""]),
        joined(&["K", "", PINNED]),
        joined(&["K", PINNED, FOLLOWING]),
        joined(&["K", kind, kind]),
        joined(&["H", both, ""]),
        joined(&["H", "{}", ""]),
        joined(&["K", "null", "null"]),
        joined(&["K", "", "{"]),
    ]
    .to_vec()
}

fn run(data: &[u8]) {
    let [server, field, annotation] = sections::<3>(data);
    let is_hub = server != b"K";
    let field: Option<Value> = serde_json::from_slice(field).ok();
    let annotation = std::str::from_utf8(annotation).ok().filter(|text| !text.is_empty());
    match requested_source(field.as_ref(), annotation, is_hub) {
        RequestedSource::Nil => {
            assert!(field.is_none_or(|field| field.is_null()), "a source that is set is not nil")
        }
        RequestedSource::Invalid(why) => check_message(&why),
        RequestedSource::Correct(source) => check_source(&source),
    }
}

/// The source is read back from its record, and its parts are valid segments of a path.
fn check_source(source: &Source) {
    assert_eq!(Source::parse(&source.to_value()).as_ref(), Ok(source));
    let (namespace, name) = source.object();
    for part in [namespace, name, source.key()] {
        assert!(!part.is_empty() && part.len() <= 253, "{source:?}");
        assert!(
            !part.contains(['/', '\\', '%', '?', '#', '\0']) && part != "." && part != "..",
            "{source:?}"
        );
    }
    if let Source::Pinned { uid, .. } = source {
        assert!(kedge_core::config::source::is_file_name(uid), "{source:?}");
    }
}
