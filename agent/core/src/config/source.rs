//! The requested source of a node's configuration: `Node.spec.configSource`, or the annotation in its place.
//!
//! Owns the judgement "empty, correct or invalid" (RULES.md, "Sources"). Looks only at the Node: whether the
//! named object exists and has the requested UID is known once it was read.

use kedge_api::excerpt;
use serde_json::{Map, Value, json};
use std::fmt;

/// A correct source: it names one ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `configMapRef`, the proposal's form: one object by UID; an edit in place is not followed.
    Pinned {
        /// Namespace of the ConfigMap.
        namespace: String,
        name: String,
        /// Its UID: a new object of that name does not match.
        uid: String,
    },
    /// `configMap`, the form Kubernetes shipped: the object of that name; an edit is a new assignment.
    Following {
        /// Namespace of the ConfigMap.
        namespace: String,
        name: String,
        /// The key that holds the payload.
        key: String,
    },
}

/// The Node's request, judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestedSource {
    /// Empty for the local config.
    Nil,
    /// One ConfigMap.
    Correct(Source),
    /// The text is the reason; the active config stays.
    Invalid(String),
}

/// The key of the payload in a pinned ConfigMap: the proposal fixes it.
pub const PINNED_KEY: &str = "kubelet";

/// Where an operator writes the source on our hub, for messages.
const FIELD: &str = "spec.configSource";

/// Where an operator writes it on any other server, which drops the field.
const ANNOTATION: &str = "annotation kedge.dev/config-source";

/// Where an operator writes the source, for messages.
pub(crate) fn place(server_is_hub: bool) -> &'static str {
    if server_is_hub { FIELD } else { ANNOTATION }
}

/// Why `{}` is invalid, in the proposal's words.
pub const ALL_NIL: &str = "invalid NodeConfigSource, exactly one subfield must be non-nil, but all were nil";

/// Longest part of a source that is read: Kubernetes' own limit for names and keys.
const NAME_BYTES: usize = 253;

/// Longest UID or resourceVersion that becomes a file name.
const UID_BYTES: usize = 64;

impl Source {
    /// Namespace and name of the ConfigMap.
    pub fn object(&self) -> (&str, &str) {
        match self {
            Self::Pinned { namespace, name, .. } | Self::Following { namespace, name, .. } => {
                (namespace, name)
            }
        }
    }

    /// The key that holds the payload.
    pub fn key(&self) -> &str {
        match self {
            Self::Pinned { .. } => PINNED_KEY,
            Self::Following { key, .. } => key,
        }
    }

    /// In the form of `spec.configSource`.
    pub fn to_value(&self) -> Value {
        match self {
            Self::Pinned { namespace, name, uid } => {
                json!({"configMapRef": {"namespace": namespace, "name": name, "uid": uid}})
            }
            Self::Following { namespace, name, key } => {
                json!({"configMap": {"namespace": namespace, "name": name, "kubeletConfigKey": key}})
            }
        }
    }

    /// Judges a `spec.configSource` that is present.
    pub fn parse(value: &Value) -> Result<Self, String> {
        let Value::Object(fields) = value else {
            return Err(format!("invalid NodeConfigSource, expected an object, found {}", kind_of(value)));
        };
        let present = |name: &str| fields.get(name).filter(|field| !field.is_null());
        match (present("configMapRef"), present("configMap")) {
            (None, None) => Err(ALL_NIL.into()),
            (Some(_), Some(_)) => {
                Err("invalid NodeConfigSource, exactly one subfield must be non-nil, but configMapRef and configMap \
                     were both set"
                    .into())
            }
            (Some(reference), None) => pinned(reference),
            (None, Some(named)) => following(named),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (namespace, name) = self.object();
        write!(f, "ConfigMap {namespace}/{name}")
    }
}

/// Judges a Node's request. `annotation` is read only where the server is not our hub: there a node's own
/// identity may write annotations, and the hub keeps the real field.
pub fn requested_source(
    config_source: Option<&Value>,
    annotation: Option<&str>,
    server_is_hub: bool,
) -> RequestedSource {
    let field = config_source.filter(|value| !value.is_null());
    let annotation = annotation.filter(|text| !server_is_hub && !text.trim().is_empty());
    let judge =
        |value: &Value| Source::parse(value).map_or_else(RequestedSource::Invalid, RequestedSource::Correct);
    match (field, annotation) {
        (None, None) => RequestedSource::Nil,
        (Some(field), None) => judge(field),
        (field, Some(text)) => match (field, serde_json::from_slice::<Value>(text.as_bytes())) {
            (_, Err(error)) => RequestedSource::Invalid(format!(
                "annotation {} is not JSON: {error}",
                kedge_api::CONFIG_SOURCE_ANNOTATION
            )),
            (Some(field), Ok(value)) if *field != value => RequestedSource::Invalid(format!(
                "spec.configSource and annotation {} are both set and differ",
                kedge_api::CONFIG_SOURCE_ANNOTATION
            )),
            (_, Ok(Value::Null)) => RequestedSource::Nil,
            (Some(field), Ok(_)) => judge(field),
            (None, Ok(value)) => match judge(&value) {
                RequestedSource::Invalid(why) => RequestedSource::Invalid(in_annotation(why)),
                judged => judged,
            },
        },
    }
}

/// Names the place where the operator wrote it, instead of the field.
fn in_annotation(why: String) -> String {
    match why.strip_prefix(FIELD) {
        Some(rest) => format!("{ANNOTATION}{rest}"),
        None => why,
    }
}

fn pinned(reference: &Value) -> Result<Source, String> {
    let fields = object(reference, "configMapRef")?;
    let (kind, api_version) = (text(fields, "kind")?, text(fields, "apiVersion")?);
    if !matches!(kind, "" | "ConfigMap") || !matches!(api_version, "" | "v1") {
        return Err(format!(
            "invalid ObjectReference, it refers to a {} of {}, expected a ConfigMap of v1",
            excerpt(or(kind, "ConfigMap")).escape_debug(),
            excerpt(or(api_version, "v1")).escape_debug()
        ));
    }
    let (namespace, name, uid) = (text(fields, "namespace")?, text(fields, "name")?, text(fields, "uid")?);
    if namespace.is_empty() || name.is_empty() || uid.is_empty() {
        return Err("invalid ObjectReference, all of UID, Name, and Namespace must be specified".into());
    }
    check_name("namespace", namespace)?;
    check_name("name", name)?;
    if !is_file_name(uid) {
        return Err(format!(
            "invalid ObjectReference, UID {:?} is not one: expected at most {UID_BYTES} letters, digits and hyphens",
            excerpt(uid)
        ));
    }
    Ok(Source::Pinned { namespace: namespace.into(), name: name.into(), uid: uid.into() })
}

fn following(named: &Value) -> Result<Source, String> {
    let fields = object(named, "configMap")?;
    for forbidden in ["uid", "resourceVersion"] {
        if !text(fields, forbidden)?.is_empty() {
            return Err(format!(
                "spec.configSource.configMap.{forbidden}: Forbidden: {forbidden} must not be set in spec"
            ));
        }
    }
    let part = |field: &str| {
        let value = text(fields, field)?;
        if value.is_empty() {
            return Err(format!("spec.configSource.configMap.{field}: Required value: {field} must be set"));
        }
        check_name(field, value)?;
        Ok(value.to_owned())
    };
    Ok(Source::Following {
        namespace: part("namespace")?,
        name: part("name")?,
        key: part("kubeletConfigKey")?,
    })
}

fn object<'a>(value: &'a Value, field: &str) -> Result<&'a Map<String, Value>, String> {
    value
        .as_object()
        .ok_or_else(|| format!("invalid NodeConfigSource, {field} is {}, expected an object", kind_of(value)))
}

fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Result<&'a str, String> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(other) => {
            Err(format!("invalid NodeConfigSource, {name} is {}, expected a string", kind_of(other)))
        }
    }
}

/// Checks for the characters that Kubernetes allows in names and ConfigMap keys: they become parts of a URL's
/// path or are looked up as a key.
fn check_name(field: &str, value: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if value.len() > NAME_BYTES || !value.chars().all(allowed) || value == "." || value.starts_with("..") {
        return Err(format!(
            "spec.configSource: Invalid value: {field} is {:?}, not a Kubernetes name",
            excerpt(value)
        ));
    }
    Ok(())
}

/// UIDs and resourceVersions become file names only if they are this plain: no path may leave the state
/// directory.
pub fn is_file_name(text: &str) -> bool {
    (1..=UID_BYTES).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(field: Value, expect: Result<Source, &str>) {
        match (requested_source(Some(&field), None, true), expect) {
            (RequestedSource::Correct(source), Ok(expected)) => {
                assert_eq!(source, expected);
                assert_eq!(Source::parse(&source.to_value()), Ok(source));
            }
            (RequestedSource::Invalid(why), Err(part)) => assert!(why.contains(part), "{why}"),
            (got, expected) => panic!("{field}: {got:?}, expected {expected:?}"),
        }
    }

    fn pinned() -> Source {
        Source::Pinned { namespace: "n".into(), name: "m".into(), uid: "u-1".into() }
    }

    fn following() -> Source {
        Source::Following { namespace: "n".into(), name: "m".into(), key: "k.yaml".into() }
    }

    #[test]
    fn source_is_correct_in_two_forms_only() {
        check(json!({"configMapRef": {"namespace": "n", "name": "m", "uid": "u-1"}}), Ok(pinned()));
        check(
            json!({"configMapRef": {"kind": "ConfigMap", "apiVersion": "v1", "namespace": "n", "name": "m", "uid": "u-1"},
                   "configMap": null}),
            Ok(pinned()),
        );
        check(
            json!({"configMap": {"namespace": "n", "name": "m", "kubeletConfigKey": "k.yaml"}}),
            Ok(following()),
        );

        check(json!({}), Err(ALL_NIL));
        check(json!({"secretRef": {}}), Err(ALL_NIL));
        check(json!({"configMapRef": {}, "configMap": {}}), Err("both set"));
        check(json!([]), Err("expected an object, found a list"));
        check(json!({"configMapRef": "x"}), Err("configMapRef is a string, expected an object"));
        check(
            json!({"configMapRef": {"namespace": "n", "name": "m"}}),
            Err("all of UID, Name, and Namespace"),
        );
        check(
            json!({"configMapRef": {"namespace": "n", "uid": "u"}}),
            Err("all of UID, Name, and Namespace"),
        );
        check(json!({"configMapRef": {"name": "m", "uid": "u"}}), Err("all of UID, Name, and Namespace"));
        check(json!({"configMapRef": {"namespace": "n", "name": "m", "uid": 7}}), Err("uid is a number"));
        check(
            json!({"configMapRef": {"namespace": "n", "name": "m", "uid": "../x"}}),
            Err("\"../x\" is not one"),
        );
        check(
            json!({"configMapRef": {"kind": "Secret", "namespace": "n", "name": "m", "uid": "u"}}),
            Err("refers to a Secret of v1"),
        );
        check(
            json!({"configMapRef": {"kind": "a\n\u{0}", "namespace": "n", "name": "m", "uid": "u"}}),
            Err("refers to a a\\n\\0 of v1"),
        );
        check(json!({"configMap": {"namespace": "n", "name": "m"}}), Err("kubeletConfigKey must be set"));
        check(
            json!({"configMap": {"namespace": "n", "name": "m", "kubeletConfigKey": "k", "uid": "u"}}),
            Err("uid must not be set in spec"),
        );
        for part in ["../m", ".", "..", "a/b", "a%2fb"] {
            check(
                json!({"configMap": {"namespace": "n", "name": part, "kubeletConfigKey": "k"}}),
                Err("not a Kubernetes name"),
            );
        }
    }

    #[test]
    fn name_has_at_most_253_bytes() {
        let named =
            |name: &str| json!({"configMap": {"namespace": "n", "name": name, "kubeletConfigKey": "k"}});
        let longest = "m".repeat(253);
        let expect = Source::Following { namespace: "n".into(), name: longest.clone(), key: "k".into() };
        check(named(&longest), Ok(expect));
        check(named(&"m".repeat(254)), Err("not a Kubernetes name"));
    }

    #[test]
    fn empty_source_is_nil() {
        assert_eq!(requested_source(None, None, true), RequestedSource::Nil);
        assert_eq!(requested_source(Some(&Value::Null), None, false), RequestedSource::Nil);
        assert_eq!(requested_source(None, Some(" "), false), RequestedSource::Nil);
    }

    #[test]
    fn annotation_is_ignored_on_our_hub() {
        let text = following().to_value().to_string();
        assert_eq!(requested_source(None, Some(&text), false), RequestedSource::Correct(following()));
        assert_eq!(
            requested_source(None, Some(&text), true),
            RequestedSource::Nil,
            "a node could write it there"
        );
        assert_eq!(
            requested_source(Some(&following().to_value()), Some(&text), false),
            RequestedSource::Correct(following())
        );
        let differ = requested_source(Some(&pinned().to_value()), Some(&text), false);
        assert!(
            matches!(&differ, RequestedSource::Invalid(why) if why.contains("both set and differ")),
            "{differ:?}"
        );
        let without_key = json!({"configMap": {"namespace": "n", "name": "m"}}).to_string();
        let bad_name =
            json!({"configMap": {"namespace": "n/", "name": "m", "kubeletConfigKey": "k"}}).to_string();
        for (text, expect) in [
            (without_key, "annotation kedge.dev/config-source.configMap.kubeletConfigKey: Required value"),
            (bad_name, "annotation kedge.dev/config-source: Invalid value: namespace is"),
        ] {
            let judged = requested_source(None, Some(&text), false);
            assert!(
                matches!(&judged, RequestedSource::Invalid(why) if why.starts_with(expect)),
                "{judged:?}"
            );
        }
        assert!(place(false).ends_with(kedge_api::CONFIG_SOURCE_ANNOTATION));
        let garbled = requested_source(None, Some("{"), false);
        assert!(
            matches!(&garbled, RequestedSource::Invalid(why) if why.contains("is not JSON")),
            "{garbled:?}"
        );
    }
}
