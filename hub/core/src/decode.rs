//! Request bodies: from bytes and a content type to a value that has passed the schema.
//!
//! JSON is read strictly enough to notice duplicate fields; the client chooses whether unknown and duplicate
//! fields are refused, warned about or ignored (`fieldValidation`). In every case unknown fields are dropped,
//! as upstream does. Always holds: reading takes time and memory linear in the body, and at most
//! `cost::MAX_TREE_BYTES` for the result, in each format.

use std::fmt;

use kedge_api::excerpt;
use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::api_error::ApiError;
use crate::apply;
use crate::cost::{Budget, Excess};
use crate::field_error::FieldError;
use crate::kinds::{Kind, schema};
use crate::path::Path;
use crate::protobuf::{self, ProtobufError};
use crate::yaml::{self, YamlError};

/// Media types of objects that clients may send.
pub const ACCEPTED: &[&str] = &["application/json", "application/vnd.kubernetes.protobuf"];

/// Media type of server-side apply.
pub const APPLY: &str = "application/apply-patch+yaml";

/// The treatment of unknown and duplicate fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    /// Refuse with 400.
    Strict,
    /// Accept with a `Warning` header; upstream's default.
    #[default]
    Warn,
    /// Accept silently.
    Ignore,
}

impl FieldValidation {
    /// From the query parameter of a verb; empty is the default.
    pub fn parse(verb: &str, text: &str) -> Result<FieldValidation, ApiError> {
        match text {
            "" | "Warn" => Ok(FieldValidation::Warn),
            "Strict" => Ok(FieldValidation::Strict),
            "Ignore" => Ok(FieldValidation::Ignore),
            other => {
                let supported = &["Ignore", "Strict", "Warn"];
                Err(ApiError::invalid_options(
                    verb,
                    &FieldError::unsupported("fieldValidation", other, supported),
                ))
            }
        }
    }
}

/// A body, and warnings about it.
#[derive(Debug)]
pub struct Decoded {
    pub value: Value,
    /// Sentences for `Warning` headers.
    pub warnings: Vec<String>,
}

/// Reads an object of a kind.
pub fn object(
    kind: &Kind,
    content_type: &str,
    body: &[u8],
    validation: FieldValidation,
) -> Result<Decoded, ApiError> {
    let (mut value, duplicates) = parse(content_type, body)?;
    check_type(kind, &value)?;
    apply::mark_reset(&mut value);
    judged(kind.schema(), kind.version, kind.kind, (value, duplicates), validation)
}

/// Reads an object that is posted and never stored: a review, a binding, an eviction.
pub fn posted(
    of: &'static schema::Type,
    version: &str,
    content_type: &str,
    body: &[u8],
    validation: FieldValidation,
) -> Result<Decoded, ApiError> {
    let kind = of.name.rsplit('/').next().unwrap_or(of.name);
    let read = parse(content_type, body)?;
    let given = read.0.get("kind").and_then(Value::as_str).unwrap_or("");
    if !given.is_empty() && given != kind {
        let given = excerpt(given);
        return Err(ApiError::bad_request(format!("the body is a {given}, expected a {kind}")));
    }
    judged(of, version, kind, read, validation)
}

/// Refuses, reports or ignores unknown and duplicate fields.
fn judged(
    of: &'static schema::Type,
    version: &str,
    kind: &str,
    (mut value, duplicates): (Value, Vec<String>),
    validation: FieldValidation,
) -> Result<Decoded, ApiError> {
    let cannot = |why: &str| {
        ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
    };
    let mut findings = schema::conform(of, &mut value);
    for path in duplicates {
        findings.add_duplicate(path);
    }
    if let Some(wrong) = findings.wrong {
        return Err(cannot(&wrong));
    }
    let complaints = findings.complaints();
    if validation == FieldValidation::Strict && !complaints.is_empty() {
        return Err(cannot(&format!("strict decoding error: {}", complaints.join(", "))));
    }
    let warnings = if validation == FieldValidation::Warn { complaints } else { Vec::new() };
    Ok(Decoded { value, warnings })
}

/// Reads a body that is applied to the object at `place` (namespace and name). Unknown fields are always
/// refused, as upstream does: no manager can own them.
///
/// Codes and texts are upstream's (apiserver's `applyPatcher`; apimachinery's `versionCheckManager`, which
/// since 1.27 first checks that the body names its type; `structuredMergeManager`), with one exception: a
/// body that the type cannot hold gets 400 BadRequest. Upstream up to 1.36 answers 500 because that error
/// carries no status, and intends 400 (kubernetes/kubernetes#139253): the mistake is the client's.
pub fn applied(
    kind: &Kind,
    place: (&str, &str),
    body: &[u8],
    validation: FieldValidation,
) -> Result<Decoded, ApiError> {
    let (mut value, duplicates) = parse(APPLY, body)?;
    let given = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or("");
    if (given("apiVersion"), given("kind")) != (&*kind.api_version(), kind.kind) {
        let named = type_text(&excerpt(given("apiVersion")), &excerpt(given("kind")));
        return Err(ApiError::bad_request(format!("invalid object type: {named}")));
    }
    apply::mark_reset(&mut value);
    let findings = schema::conform_applied(kind.schema(), &mut value);
    if let Some(wrong) = findings.wrong {
        return Err(ApiError::untyped(kind, place, &wrong));
    }
    let unknown: Vec<String> =
        findings.unknown.iter().map(|path| format!(".{path}: field not declared in schema")).collect();
    match unknown.as_slice() {
        [] => {}
        [one] => return Err(ApiError::untyped(kind, place, one)),
        all => {
            let why = format!("errors:\n  {}", all.join("\n  "));
            return Err(ApiError::untyped(kind, place, &why));
        }
    }
    let key = |path: &String| path.rsplit('.').next().unwrap_or(path).to_owned();
    let twice: Vec<String> =
        duplicates.iter().map(|path| format!("key {:?} already set in map", key(path))).collect();
    if validation == FieldValidation::Strict && !twice.is_empty() {
        return Err(ApiError::bad_request(format!(
            "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  {}",
            twice.join("\n  ")
        )));
    }
    let warnings = if validation == FieldValidation::Warn { twice } else { Vec::new() };
    Ok(Decoded { value, warnings })
}

/// A type as upstream writes it, with empty parts where upstream cannot parse it: `apps/v1, Kind=DaemonSet`,
/// `/v1, Kind=Pod`, `/, Kind=`.
fn type_text(version: &str, kind: &str) -> String {
    match version.split('/').collect::<Vec<_>>().as_slice() {
        [version] => format!("/{version}, Kind={kind}"),
        [group, version] => format!("{group}/{version}, Kind={kind}"),
        _ => "/, Kind=".to_owned(),
    }
}

/// A body may leave out apiVersion and kind; if it names them they must be those of the path.
fn check_type(kind: &Kind, value: &Value) -> Result<(), ApiError> {
    let given = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or("");
    let (version, name) = (given("apiVersion"), given("kind"));
    let right_version = version.is_empty() || version == kind.api_version();
    let right_name = name.is_empty() || name == kind.kind;
    let (version, name) = (excerpt(version), excerpt(name));
    if !right_name {
        return Err(ApiError::bad_request(format!(
            "{name} in version {:?} cannot be handled as a {}: the kind in the data ({name}) does not match the expected kind ({})",
            version, kind.kind, kind.kind
        )));
    }
    if !right_version {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({})",
            kind.api_version()
        )));
    }
    Ok(())
}

/// Reads a body of any media type into a value; also returns the paths of duplicate fields.
pub fn parse(content_type: &str, body: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    match content_type.split(';').next().unwrap_or("").trim() {
        // the default is JSON
        "" | "application/json" => read_json(body, Repeated::IsMerged),
        // clients mostly send JSON, which is valid YAML; only the JSON reader notices duplicate fields
        APPLY if body.trim_ascii_start().starts_with(b"{") => json(body),
        APPLY => match yaml::parse(body) {
            Ok(value) => Ok((value, Vec::new())),
            Err(YamlError::Malformed(why)) => {
                Err(ApiError::bad_request(format!("error decoding YAML: {why}")))
            }
            Err(YamlError::Excess(excess)) => Err(excess.refusal("the YAML body")),
        },
        "application/vnd.kubernetes.protobuf" => match protobuf::decode(body) {
            Ok(value) => Ok((value, Vec::new())),
            Err(ProtobufError::Malformed(why)) => {
                Err(ApiError::bad_request(format!("the protobuf body {why}")))
            }
            Err(ProtobufError::UnknownField(why)) => {
                Err(ApiError::bad_request(format!("the protobuf body has {why}")))
            }
            Err(ProtobufError::Excess(excess)) => Err(excess.refusal("the protobuf body")),
            Err(ProtobufError::UnknownType(_)) => {
                Err(ApiError::unsupported_media_type(&["application/json"]))
            }
        },
        _ => Err(ApiError::unsupported_media_type(ACCEPTED)),
    }
}

/// Reads JSON; also returns the paths of duplicate fields, of which the last one counts.
pub fn json(body: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    read_json(body, Repeated::Replaces)
}

fn read_json(body: &[u8], repeated: Repeated) -> Result<(Value, Vec<String>), ApiError> {
    let mut reading = Reading { repeated, ..Reading::default() };
    let mut reader = serde_json::Deserializer::from_slice(body);
    let seed = Reader { path: &Path::Root, reading: &mut reading };
    let read = seed.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    match (read, reading.excess) {
        (Ok(value), _) => Ok((value, reading.duplicates)),
        (Err(_), Some(excess)) => Err(excess.refusal("the body")),
        (Err(error), None) => Err(ApiError::bad_request(format!("the body is no valid JSON: {error}"))),
    }
}

/// Reads JSON from a field that a client wrote; `None` if it is not JSON, or exceeds the limits. As a tree of
/// values it may take a hundred times its bytes, so text from clients is always read within this budget.
pub fn value(text: &[u8]) -> Option<Value> {
    json(text).ok().map(|(value, _)| value)
}

/// The meaning of a repeated field.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Repeated {
    #[default]
    Replaces,
    /// Go reads a repeated object into the earlier one: maps are merged, and list items are merged by
    /// position.
    IsMerged,
}

/// Merges a repeated value into the earlier one. Each value of the later one is visited once.
fn put_over(before: &mut Value, after: Value) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in after {
                match before.get_mut(&key) {
                    Some(before) => put_over(before, value),
                    None => drop(before.insert(key, value)),
                }
            }
        }
        (Value::Array(before), Value::Array(after)) => {
            before.truncate(after.len());
            let known = before.len();
            let mut after = after.into_iter();
            before
                .iter_mut()
                .zip(after.by_ref().take(known))
                .for_each(|(before, value)| put_over(before, value));
            before.extend(after);
        }
        (before, after) => *before = after,
    }
}

/// The state while a body is read.
#[derive(Default)]
struct Reading {
    repeated: Repeated,
    duplicates: Vec<String>,
    budget: Budget,
    /// The limit at which reading stopped.
    excess: Option<Excess>,
}

impl Reading {
    /// Notes the limit for the answer; the error only ends the reading.
    fn within<E: serde::de::Error>(&mut self, charged: Result<(), Excess>) -> Result<(), E> {
        charged.map_err(|excess| {
            self.excess = Some(excess);
            E::custom(excess)
        })
    }
}

struct Reader<'a> {
    path: &'a Path<'a>,
    reading: &'a mut Reading,
}

/// Duplicates noted in one body; a strict reader refuses at the first.
const DUPLICATES: usize = 32;

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        let charged = self.reading.budget.text(value);
        self.reading.within(charged)?;
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let path = Path::Item(self.path, list.len());
            let Some(item) = items.next_element_seed(Reader { path: &path, reading: self.reading })? else {
                return Ok(Value::Array(list));
            };
            let charged = self.reading.budget.item(list.len());
            self.reading.within(charged)?;
            list.push(item);
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let charged = self.reading.budget.entry(object.len(), &key);
            self.reading.within(charged)?;
            let path = Path::Field(self.path, &key);
            if self.reading.duplicates.len() < DUPLICATES && object.contains_key(&key) {
                self.reading.duplicates.push(path.text());
            }
            let value = entries.next_value_seed(Reader { path: &path, reading: self.reading })?;
            match object.get_mut(&key).filter(|_| self.reading.repeated == Repeated::IsMerged) {
                Some(before) => put_over(before, value),
                None => drop(object.insert(key, value)),
            }
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{CONFIG_MAP, NODE};

    fn check(body: &str, validation: FieldValidation, expect: Result<&[&str], (u16, &str)>) {
        match (object(&NODE, "application/json", body.as_bytes(), validation), expect) {
            (Ok(decoded), Ok(warnings)) => assert_eq!(decoded.warnings, warnings),
            (Err(error), Err((code, message))) => {
                assert_eq!((error.code, error.message.as_str()), (code, message))
            }
            (outcome, expect) => panic!("{outcome:?}, expected {expect:?}"),
        }
    }

    #[test]
    fn field_validation_refuses_warns_or_ignores() {
        let body = r#"{"spec": {"foo": 1, "unschedulable": true, "unschedulable": false}}"#;
        let complaints = ["unknown field \"spec.foo\"", "duplicate field \"spec.unschedulable\""];
        check(body, FieldValidation::Warn, Ok(&complaints));
        check(body, FieldValidation::Ignore, Ok(&[]));
        check(
            body,
            FieldValidation::Strict,
            Err((
                400,
                "Node in version \"v1\" cannot be handled as a Node: strict decoding error: unknown field \"spec.foo\", duplicate field \"spec.unschedulable\"",
            )),
        );
        check(r#"{"apiVersion": "v1", "kind": "Node"}"#, FieldValidation::Strict, Ok(&[]));
    }

    /// Like Go's decoder; in a patch, which has no type, the last value counts.
    #[test]
    fn repeated_maps_are_merged_in_objects_but_not_in_patches() {
        let body = br#"{"data": {"a": "1", "b": "1"}, "metadata": {"finalizers": ["x/a", "x/b"]}, "data": {"b": "2"},
            "metadata": {"name": "m", "finalizers": ["x/c"]}}"#;
        let read = object(&CONFIG_MAP, "application/json", body, FieldValidation::Warn).unwrap();
        assert_eq!(read.value["data"], serde_json::json!({"a": "1", "b": "2"}));
        assert_eq!(read.value["metadata"], serde_json::json!({"name": "m", "finalizers": ["x/c"]}));
        assert_eq!(read.warnings, ["duplicate field \"data\"", "duplicate field \"metadata\""]);
        let (patch, duplicates) = json(body).unwrap();
        assert_eq!((&patch["data"], duplicates.len()), (&serde_json::json!({"b": "2"}), 2));
    }

    #[test]
    fn bodies_of_a_wrong_kind_type_or_format_are_refused() {
        check(
            r#"{"spec": []}"#,
            FieldValidation::Ignore,
            Err((
                400,
                "Node in version \"v1\" cannot be handled as a Node: spec: expected an object, found a list",
            )),
        );
        check(
            r#"{"apiVersion": "v2", "kind": "Node"}"#,
            FieldValidation::Ignore,
            Err((400, "the API version in the data (v2) does not match the expected API version (v1)")),
        );
        assert_eq!(
            object(&CONFIG_MAP, "", br#"{"kind": "Node"}"#, FieldValidation::Warn).unwrap_err().code,
            400
        );
        assert_eq!(
            object(&CONFIG_MAP, "application/yaml", b"a: 1", FieldValidation::Warn).unwrap_err().code,
            415
        );
        for broken in ["", "{", "{} {}", "nul", &"[".repeat(200)] {
            assert_eq!(
                object(&NODE, "", broken.as_bytes(), FieldValidation::Warn).unwrap_err().code,
                400,
                "{broken}"
            );
        }
    }

    #[test]
    fn applied_body_names_its_type_and_repeats_no_key() {
        let read = |body: &str, validation| {
            let found = applied(&CONFIG_MAP, ("default", "m"), body.as_bytes(), validation);
            found.map(|decoded| decoded.warnings).map_err(|error| error.message)
        };
        let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\n";
        assert_eq!(read(yaml, FieldValidation::Strict), Ok(Vec::new()));
        let other = yaml.replace("ConfigMap", "Secret");
        let named = "invalid object type: /v1, Kind=Secret".to_owned();
        assert_eq!(read(&other, FieldValidation::Strict), Err(named));
        // text that begins like JSON is read by the JSON reader, which notices repeated keys
        let twice = r#" {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1", "a": "2"}}"#;
        let complaint = "key \"a\" already set in map";
        assert!(read(twice, FieldValidation::Strict).unwrap_err().ends_with(complaint));
        assert_eq!(read(twice, FieldValidation::Warn), Ok(vec![complaint.to_owned()]));
        assert_eq!(read(twice, FieldValidation::Ignore), Ok(Vec::new()));
    }

    #[test]
    fn posted_body_is_of_its_type() {
        let lease = schema::find("coordination/v1/Lease").unwrap();
        let read = |body: &str| {
            let found = posted(lease, "v1", "", body.as_bytes(), FieldValidation::Strict);
            found.map(drop).map_err(|error| error.message)
        };
        assert_eq!(read(r#"{"kind": "Lease"}"#), Ok(()));
        assert_eq!(read("{}"), Ok(()));
        assert_eq!(read(r#"{"kind": "Node"}"#), Err("the body is a Node, expected a Lease".to_owned()));
    }

    #[test]
    fn repeated_fields_are_named_up_to_a_number() {
        let body = format!("{{{}\"a\": 1}}", "\"a\": 1, ".repeat(2 * DUPLICATES));
        let (_, duplicates) = parse("", body.as_bytes()).unwrap();
        assert_eq!(duplicates.len(), DUPLICATES);
    }
}
