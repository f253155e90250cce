//! The fields of served objects: one table of types, read once from `schema/types.txt`.
//!
//! The same table validates request bodies (unknown fields, wrong types), merges lists, reads protobuf, and
//! is published at `/openapi`, so these can never disagree. A value that passed [`conform`] has only fields
//! of its type, each of the right JSON type, no nulls, no zeros that mean "absent" and no empty lists or maps
//! (upstream's `omitempty`, which cannot tell an empty required list from an absent one); later code may rely
//! on that. Left to others: rules that span fields (each kind's own).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use base64::Engine;
use serde_json::Value;

use crate::path::Path;
use crate::quantity::normal_form;
use crate::value::rfc3339;

/// The text of upstream's types; `schema/extract.py` writes it.
const TYPES: &str = include_str!("../../schema/types.txt");
/// The text of Kedge's own types.
const OWN_TYPES: &str = include_str!("../../schema/fleet.txt");

/// Most unknown or duplicate fields named in one answer; more are only counted, so that an answer stays
/// small.
const NAMED_FINDINGS: usize = 32;

/// The group of Kedge's own types.
const OWN_GROUP: &str = "fleet/";

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| Schema::parse(TYPES));
static OWN_SCHEMA: LazyLock<Schema> = LazyLock::new(|| Schema::parse(OWN_TYPES));

/// All types, by names such as `core/v1/NodeSpec`.
#[derive(Debug)]
pub struct Schema {
    types: Vec<Type>,
    by_name: BTreeMap<&'static str, usize>,
}

/// One message type.
#[derive(Debug)]
pub struct Type {
    /// For example `core/v1/NodeSpec`.
    pub name: &'static str,
    /// Server-side apply owns a value of it as a whole.
    pub atomic: bool,
    /// For people.
    pub description: &'static str,
    /// In the order of the table, which is alphabetical.
    pub fields: Vec<Field>,
}

/// One field of a type.
#[derive(Debug)]
pub struct Field {
    /// The JSON name.
    pub name: &'static str,
    /// The protobuf number; 0 if the wire format is unknown.
    pub number: u32,
    /// The number, in the parent, of the embedded struct that contains the field on the wire; 0 without one.
    /// JSON has no such structs.
    pub embedded: u32,
    /// The shape of its values.
    pub shape: Shape,
    /// Upstream always writes the field.
    pub required: bool,
    /// In upstream's Go type the field is a plain value, not a pointer, so zero means absent: it is sent in
    /// protobuf, and left out in JSON.
    pub omit_zero: bool,
    /// In upstream's Go type the field is a plain struct: it is never absent, at most empty.
    pub always: bool,
    /// How a strategic merge patch treats a list; `None` replaces it.
    pub merge: Option<ListMerge>,
    /// A strategic merge of this field honours `$retainKeys`.
    pub retain_keys: bool,
    /// How server-side apply identifies items: the keys joined by `+`, or `set`; a list without either is
    /// owned as a whole.
    pub list_keys: Option<&'static str>,
    /// Server-side apply owns a map as a whole.
    pub atomic: bool,
    /// The allowed values; empty if any value is allowed.
    pub values: Vec<&'static str>,
    /// For people.
    pub description: &'static str,
}

/// How the items of a list are matched by a strategic merge patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListMerge {
    /// Objects, matched by this field.
    ByKey(&'static str),
    /// Scalars, matched by value.
    Set,
}

/// The shape of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// JSON string.
    String,
    /// JSON boolean.
    Bool,
    /// 32-bit number.
    Int32,
    /// 64-bit number.
    Int64,
    /// Floating point number.
    Double,
    /// base64 in JSON.
    Bytes,
    /// RFC 3339, whole seconds.
    Time,
    /// RFC 3339, microseconds.
    MicroTime,
    /// Kubernetes quantity such as `100m`.
    Quantity,
    /// Number or string.
    IntOrString,
    /// Any JSON.
    Raw,
    /// Another type of the table.
    Message(&'static str),
    List(Box<Shape>),
    /// Object with free keys.
    Map(Box<Shape>),
}

impl Shape {
    fn parse(word: &'static str) -> Shape {
        if let Some(rest) = word.strip_prefix("[]") {
            return Shape::List(Box::new(Shape::parse(rest)));
        }
        if let Some(rest) = word.strip_prefix("{}") {
            return Shape::Map(Box::new(Shape::parse(rest)));
        }
        match word {
            "string" => Shape::String,
            "bool" => Shape::Bool,
            "int32" => Shape::Int32,
            "int64" => Shape::Int64,
            "double" => Shape::Double,
            "bytes" => Shape::Bytes,
            "time" => Shape::Time,
            "microtime" => Shape::MicroTime,
            "quantity" => Shape::Quantity,
            "intorstring" => Shape::IntOrString,
            "raw" => Shape::Raw,
            name => Shape::Message(name),
        }
    }
}

impl Schema {
    fn parse(text: &'static str) -> Schema {
        let mut schema = Schema { types: Vec::new(), by_name: BTreeMap::new() };
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (words, description) = line.split_once(" | ").unwrap_or((line.trim_end_matches(" |"), ""));
            if let Some(field) = words.strip_prefix("  ") {
                if let Some(of) = schema.types.last_mut() {
                    of.fields.push(Field::parse(field, description));
                }
            } else {
                let (name, atomic) =
                    words.strip_suffix(" atomic").map_or((words, false), |name| (name, true));
                schema.by_name.insert(name, schema.types.len());
                schema.types.push(Type { name, atomic, description, fields: Vec::new() });
            }
        }
        schema
    }
}

impl Field {
    fn parse(words: &'static str, description: &'static str) -> Field {
        let mut words = words.split(' ');
        let name = words.next().unwrap_or_default();
        let numbers = words.next().unwrap_or_default();
        let (embedded, number) = numbers.split_once('.').unwrap_or(("0", numbers));
        let [embedded, number] = [embedded, number].map(|number| number.parse().unwrap_or(0));
        let shape = Shape::parse(words.next().unwrap_or("raw"));
        let mut field = Field {
            name,
            number,
            embedded,
            shape,
            required: false,
            omit_zero: false,
            always: false,
            merge: None,
            retain_keys: false,
            list_keys: None,
            atomic: false,
            values: Vec::new(),
            description,
        };
        for word in words {
            match word.split_once('=') {
                None if word == "required" => field.required = true,
                None if word == "atomic" => field.atomic = true,
                None if word == "omitzero" => field.omit_zero = true,
                None if word == "always" => field.always = true,
                None => field.retain_keys |= word == "retainkeys",
                Some(("merge", "set")) => field.merge = Some(ListMerge::Set),
                Some(("merge", key)) => field.merge = Some(ListMerge::ByKey(key)),
                Some(("keys", keys)) => field.list_keys = Some(keys),
                Some(("enum", values)) => field.values = values.split(',').collect(),
                Some(_) => {}
            }
        }
        field
    }
}

/// All types of upstream.
pub fn types() -> &'static [Type] {
    &SCHEMA.types
}

/// The type of this name.
pub fn find(name: &str) -> Option<&'static Type> {
    let schema = if name.starts_with(OWN_GROUP) { &OWN_SCHEMA } else { &SCHEMA };
    schema.by_name.get(name).map(|index| &schema.types[*index])
}

impl Type {
    /// The field of this JSON name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

/// The faults that [`conform`] found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Paths of fields that the type does not have; they are removed.
    pub unknown: Vec<String>,
    /// Paths of duplicate fields; the last value counts. Filled by the JSON reader.
    pub duplicate: Vec<String>,
    /// The first value of a wrong type, because of which the body is refused.
    pub wrong: Option<String>,
}

impl Findings {
    fn add_unknown(&mut self, path: &Path<'_>, name: &str) {
        if self.unknown.len() < NAMED_FINDINGS {
            self.unknown.push(path.child(name));
        }
    }

    /// Notes a duplicate; bounded like all findings.
    pub fn add_duplicate(&mut self, path: String) {
        if self.duplicate.len() < NAMED_FINDINGS {
            self.duplicate.push(path);
        }
    }

    /// One line for each fault, in upstream's words.
    pub fn complaints(&self) -> Vec<String> {
        let unknown = self.unknown.iter().map(|path| format!("unknown field {path:?}"));
        let duplicate = self.duplicate.iter().map(|path| format!("duplicate field {path:?}"));
        unknown.chain(duplicate).collect()
    }
}

/// Brings `value` into the form of the type: removes unknown fields, nulls, zeros where Go cannot tell them
/// from absent, and empty lists and maps, and reports the first value of a wrong type. `apiVersion` and
/// `kind` are allowed at the root.
pub fn conform(of: &'static Type, value: &mut Value) -> Findings {
    conform_as(of, value, Form::Stored)
}

/// Checks a body for an apply, and removes unknown fields. Everything else stays as written: a client that
/// applies `false`, `""`, null or an empty map owns that field, and a quantity in another spelling is another
/// value.
pub fn conform_applied(of: &'static Type, value: &mut Value) -> Findings {
    conform_as(of, value, Form::Written)
}

/// The form that a value is brought into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// One form for all spellings with the same meaning.
    Stored,
    /// The value is as its author wrote it.
    Written,
}

fn conform_as(of: &'static Type, value: &mut Value, form: Form) -> Findings {
    let mut findings = Findings::default();
    conform_message(of, value, &Path::Root, form, &mut findings);
    findings
}

fn conform_message(
    of: &'static Type,
    value: &mut Value,
    path: &Path<'_>,
    form: Form,
    findings: &mut Findings,
) {
    let Value::Object(fields) = value else {
        return wrong(findings, path, "an object", value);
    };
    let root = matches!(path, Path::Root);
    fields.retain(|name, value| {
        let Some(field) = of.field(name) else {
            let kept = root && (name == "apiVersion" || name == "kind");
            if !kept {
                findings.add_unknown(path, name);
            } else if !value.is_string() {
                wrong(findings, &Path::Field(path, name), "a string", value);
            }
            return kept;
        };
        if value.is_null() && field.shape != Shape::Raw {
            return form == Form::Written;
        }
        conform_shape(&field.shape, value, &Path::Field(path, name), form, findings);
        form == Form::Written || !field.is_absent(value)
    });
}

impl Field {
    /// Whether upstream, which stores no JSON, cannot tell this value of the field from an absent one.
    pub fn is_absent(&self, value: &Value) -> bool {
        (self.omit_zero && is_zero(value)) || is_empty_collection(&self.shape, value)
    }
}

/// Go's zero of a scalar.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(yes) => !yes,
        _ => false,
    }
}

fn is_empty_collection(shape: &Shape, value: &Value) -> bool {
    match (shape, value) {
        (Shape::List(_), Value::Array(items)) => items.is_empty(),
        (Shape::Map(_), Value::Object(entries)) => entries.is_empty(),
        _ => false,
    }
}

fn conform_shape(shape: &Shape, value: &mut Value, path: &Path<'_>, form: Form, findings: &mut Findings) {
    let expected = match shape {
        Shape::Raw => return,
        Shape::Message(name) => match find(name) {
            Some(of) => return conform_message(of, value, path, form, findings),
            None => return,
        },
        Shape::List(item) => {
            let Value::Array(items) = value else { return wrong(findings, path, "a list", value) };
            for (index, value) in items.iter_mut().enumerate() {
                conform_shape(item, value, &Path::Item(path, index), form, findings);
            }
            return;
        }
        Shape::Map(item) => {
            let Value::Object(entries) = value else { return wrong(findings, path, "a map", value) };
            for (key, value) in entries.iter_mut() {
                if value.is_null() {
                    // Go reads null as the type's empty value
                    *value = empty_of(item);
                }
                conform_shape(item, value, &Path::Field(path, key), form, findings);
            }
            return;
        }
        Shape::String => (!value.is_string()).then_some("a string"),
        Shape::Bool => (!value.is_boolean()).then_some("a boolean"),
        Shape::Int32 => value
            .as_i64()
            .is_none_or(|number| i32::try_from(number).is_err())
            .then_some("a whole number of 32 bits"),
        Shape::Int64 => (!value.is_i64()).then_some("a whole number of 64 bits"),
        Shape::Double => (!value.is_number()).then_some("a number"),
        Shape::Bytes => {
            let good = value.as_str().is_some_and(|text| base64_decode(text).is_some());
            (!good).then_some("base64 text")
        }
        Shape::Time => (!normalize(value, form, normal_time)).then_some("an RFC 3339 time"),
        Shape::MicroTime => (!normalize(value, form, normal_micro_time))
            .then_some("an RFC 3339 time with six decimal places of the second"),
        Shape::Quantity => {
            let mut text = value.as_number().map(|number| Value::String(number.to_string()));
            let good = normalize(text.as_mut().unwrap_or(value), form, normal_form);
            if form == Form::Stored
                && let Some(text) = text
            {
                *value = text;
            }
            (!good).then_some("a quantity")
        }
        Shape::IntOrString => (!value.is_string() && !value.is_i64()).then_some("a whole number or a string"),
    };
    if let Some(expected) = expected {
        wrong(findings, path, expected, value);
    }
}

/// Go's empty value of a shape.
pub(crate) fn empty_of(shape: &Shape) -> Value {
    match shape {
        Shape::Bool => Value::Bool(false),
        Shape::Int32 | Shape::Int64 | Shape::Double => Value::from(0),
        Shape::Message(_) | Shape::Map(_) => Value::Object(serde_json::Map::new()),
        Shape::List(_) => Value::Array(Vec::new()),
        Shape::Quantity => Value::from("0"),
        _ => Value::from(""),
    }
}

fn wrong(findings: &mut Findings, path: &Path<'_>, expected: &str, found: &Value) {
    if findings.wrong.is_some() {
        return;
    }
    let found = match found {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "a boolean".to_owned(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the string {:?}", kedge_api::excerpt(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    let place = match path {
        Path::Root => "the body".to_owned(),
        _ => path.text(),
    };
    findings.wrong = Some(format!("{place}: expected {expected}, found {found}"));
}

/// Standard base64, as Go's JSON writes `[]byte`.
pub fn base64_decode(text: &str) -> Option<Vec<u8>> {
    base64::engine::general_purpose::STANDARD.decode(text.as_bytes()).ok()
}

/// Standard base64.
pub fn base64_encode(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// An RFC 3339 time.
pub fn parse_time(text: &str) -> Option<time::OffsetDateTime> {
    time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339).ok()
}

/// Brings a text into its normal form; `false` if it has none. In the form as written the text stays as it
/// is.
fn normalize(value: &mut Value, form: Form, normal: fn(&str) -> Option<Cow<'_, str>>) -> bool {
    let changed = match value.as_str().and_then(normal) {
        None => return false,
        Some(Cow::Owned(text)) if form == Form::Stored => text,
        Some(_) => return true,
    };
    *value = Value::String(changed);
    true
}

/// A time as upstream returns it: UTC, in whole seconds. An empty text stays empty.
fn normal_time(text: &str) -> Option<Cow<'_, str>> {
    if text.is_empty() {
        return Some(text.into());
    }
    let time = parse_time(text)?;
    let normal = text.len() == "2006-01-02T15:04:05Z".len() && text.ends_with('Z');
    Some(if normal { text.into() } else { rfc3339(time.to_offset(time::UtcOffset::UTC)).into() })
}

/// A `MicroTime` as upstream returns it: UTC. It needs six decimal places, because Go's clients cannot parse
/// any other number of them.
fn normal_micro_time(text: &str) -> Option<Cow<'_, str>> {
    if text.is_empty() {
        return Some(text.into());
    }
    let time = parse_time(text)?;
    let places = text.split_once('.')?.1.bytes().take_while(u8::is_ascii_digit).count();
    if places != 6 {
        return None;
    }
    if text.ends_with('Z') {
        return Some(text.into());
    }
    let seconds = rfc3339(time.to_offset(time::UtcOffset::UTC));
    Some(format!("{}.{:06}Z", seconds.trim_end_matches('Z'), time.microsecond()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(of: &str, mut input: Value, expect: Value, complaints: &[&str]) {
        let findings = conform(find(of).unwrap(), &mut input);
        assert_eq!(findings.wrong, None);
        assert_eq!(input, expect);
        assert_eq!(findings.complaints(), complaints);
    }

    fn check_wrong(of: &str, mut input: Value, expect: &str) {
        assert_eq!(conform(find(of).unwrap(), &mut input).wrong.as_deref(), Some(expect));
    }

    #[test]
    fn every_type_of_a_field_is_in_the_table() {
        fn inner(shape: &Shape) -> &Shape {
            match shape {
                Shape::List(item) | Shape::Map(item) => inner(item),
                other => other,
            }
        }
        for of in types() {
            for field in &of.fields {
                if let Shape::Message(name) = inner(&field.shape) {
                    assert!(find(name).is_some(), "{} {} names {name}", of.name, field.name);
                }
            }
        }
        assert!(types().len() > 150);
    }

    #[test]
    fn unknown_fields_nulls_and_empty_maps_are_removed() {
        let node = "core/v1/Node";
        check(
            node,
            json!({"kind": "Node", "apiVersion": "v1"}),
            json!({"kind": "Node", "apiVersion": "v1"}),
            &[],
        );
        check(
            node,
            json!({"spec": {"foo": 1, "unschedulable": true}, "bar": {}}),
            json!({"spec": {"unschedulable": true}}),
            &["unknown field \"bar\"", "unknown field \"spec.foo\""],
        );
        check(
            node,
            json!({"status": {"conditions": [{"type": "Ready", "status": "True", "x": 1}]}}),
            json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
            &["unknown field \"status.conditions[0].x\""],
        );
        check(
            node,
            json!({"metadata": {"labels": {}, "annotations": null, "finalizers": []}, "spec": {"taints": null}}),
            json!({"metadata": {}, "spec": {}}),
            &[],
        );
        // zeros are removed where Go's value is not a pointer, and so is an empty list, even a required one
        let zeros = json!({"unschedulable": false, "podCIDR": "", "configSource": {"configMap": {
            "name": "", "namespace": "", "kubeletConfigKey": "", "uid": ""}}});
        let config = json!({"configMap": {"name": "", "namespace": "", "kubeletConfigKey": ""}});
        check(node, json!({"spec": zeros}), json!({"spec": {"configSource": config}}), &[]);
        let pod = json!({"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false});
        let mut given = pod.clone();
        given.as_object_mut().unwrap().extend([
            ("hostNetwork".to_owned(), false.into()),
            ("schedulerName".to_owned(), "".into()),
            ("containers".to_owned(), json!([])),
        ]);
        check("core/v1/PodSpec", given, pod, &[]);
        // an empty object counts as a value: the node validates it
        check(node, json!({"spec": {"configSource": {}}}), json!({"spec": {"configSource": {}}}), &[]);
        check(
            node,
            json!({"status": {"capacity": {"cpu": 2}}}),
            json!({"status": {"capacity": {"cpu": "2"}}}),
            &[],
        );
        check("core/v1/ConfigMap", json!({"data": {"a": null}}), json!({"data": {"a": ""}}), &[]);
    }

    #[test]
    fn applied_value_stays_as_it_is_written() {
        let of = find("core/v1/PodSpec").unwrap();
        let resources = json!({"limits": {"cpu": 0.5, "memory": "1024Mi"}, "requests": {}});
        let container =
            json!({"name": "c", "tty": false, "env": [], "livenessProbe": null, "resources": resources});
        let written = json!({"containers": [container], "schedulerName": "", "nodeSelector": {}});
        let mut value = written.clone();
        value["x"] = json!(1);
        assert_eq!(conform_applied(of, &mut value).complaints(), ["unknown field \"x\""]);
        assert_eq!(value, written);
        value["containers"][0]["resources"]["limits"]["cpu"] = json!("much");
        let wrong = conform_applied(of, &mut value).wrong.unwrap();
        assert!(wrong.starts_with("containers[0].resources.limits.cpu: expected a quantity"), "{wrong}");
    }

    #[test]
    fn value_of_a_wrong_type_is_reported_with_its_path() {
        check_wrong(
            "core/v1/Node",
            json!({"spec": {"unschedulable": "yes"}}),
            "spec.unschedulable: expected a boolean, found the string \"yes\"",
        );
        check_wrong("core/v1/Node", json!([]), "the body: expected an object, found a list");
        check_wrong(
            "core/v1/ConfigMap",
            json!({"data": {"a": 1}}),
            "data.a: expected a string, found the number 1",
        );
        check_wrong(
            "core/v1/ConfigMap",
            json!({"binaryData": {"a": "*"}}),
            "binaryData.a: expected base64 text, found the string \"*\"",
        );
        check_wrong(
            "coordination/v1/Lease",
            json!({"spec": {"leaseDurationSeconds": 4000000000u32}}),
            "spec.leaseDurationSeconds: expected a whole number of 32 bits, found the number 4000000000",
        );
        check_wrong(
            "coordination/v1/Lease",
            json!({"spec": {"renewTime": "yesterday"}}),
            "spec.renewTime: expected an RFC 3339 time with six decimal places of the second, found the string \"yesterday\"",
        );
    }

    #[test]
    fn quantities_and_times_get_their_normal_form() {
        check(
            "core/v1/Node",
            json!({"status": {"capacity": {"cpu": 0.5, "memory": "1024Mi", "pods": "110"}}}),
            json!({"status": {"capacity": {"cpu": "500m", "memory": "1Gi", "pods": "110"}}}),
            &[],
        );
        check_wrong(
            "core/v1/Node",
            json!({"status": {"capacity": {"cpu": "1 Gi"}}}),
            "status.capacity.cpu: expected a quantity, found the string \"1 Gi\"",
        );
        let lease = "coordination/v1/Lease";
        let renewed = |time: &str| json!({"spec": {"renewTime": time}});
        for (given, expect) in [
            ("2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:00.000000Z"),
            ("2026-01-01T01:00:00.250000+01:00", "2026-01-01T00:00:00.250000Z"),
        ] {
            check(lease, renewed(given), renewed(expect), &[]);
        }
        for wrong in ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:00.0000000Z"] {
            let expect = format!(
                "spec.renewTime: expected an RFC 3339 time with six decimal places of the second, found the string {wrong:?}"
            );
            check_wrong(lease, renewed(wrong), &expect);
        }
        let made = |time: &str| json!({"metadata": {"creationTimestamp": time}});
        check(lease, made("2026-01-01T01:00:00.9+01:00"), made("2026-01-01T00:00:00Z"), &[]);
    }
}
