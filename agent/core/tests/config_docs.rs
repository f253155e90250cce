//! docs/reference/config.md lists exactly the fields of the schema, each under its effect, and
//! docs/reference/config.schema.json is that schema in the form that editors read. This fails until both
//! follow a changed kind, default or name of a field.

// a build with fault injection has fields that no release has, and the page is about releases
#![cfg(not(feature = "fault-injection"))]

use kedge_core::kubelet::schema::{self, Default, Effect, Field, Kind};
use kedge_core::kubelet::{LayerText, LocalLayers, Origin, effective};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const PAGE: &str = include_str!("../../../docs/reference/config.md");

/// The lines between the markers of this name.
fn section(name: &str) -> Vec<&'static str> {
    let begin = format!("<!-- {name}: begin");
    let end = format!("<!-- {name}: end -->");
    let lines = PAGE.lines().skip_while(|line| !line.starts_with(&begin)).skip(1);
    let found: Vec<&str> = lines.take_while(|line| *line != end).collect();
    assert!(!found.is_empty(), "the page has a section {name}");
    found
}

fn fields(effect: Effect) -> Vec<(String, &'static Field)> {
    schema::leaves().into_iter().filter(|(_, field)| field.effect == effect).collect()
}

fn shown(default: Default) -> String {
    match default {
        Default::None => String::new(),
        Default::Bool(value) => format!("`{value}`"),
        Default::Int(value) => format!("`{value}`"),
        Default::Text(value) => format!("`{value}`"),
    }
}

#[test]
fn table_has_every_honoured_field_with_default_and_bounds() {
    let rows: Vec<[String; 3]> = section("honoured")
        .into_iter()
        .skip(2)
        .map(|row| {
            let mut cells = row.split('|').map(str::trim).skip(1);
            let mut cell = || cells.next().unwrap_or_default().to_owned();
            let (field, default, meaning, bounds) = (cell(), cell(), cell(), cell());
            assert!(!meaning.is_empty(), "{row}");
            [field, default, bounds]
        })
        .collect();
    let expect: Vec<[String; 3]> = fields(Effect::Honoured)
        .into_iter()
        .map(|(path, field)| [format!("`{path}`"), shown(field.default), field.bounds()])
        .collect();
    assert_eq!(rows, expect);
}

#[track_caller]
fn check_list(name: &str, effect: Effect) {
    let text = section(name).join(" ");
    let listed: Vec<&str> = text.split(", ").map(|field| field.trim().trim_matches('`')).collect();
    let expect: Vec<String> = fields(effect).into_iter().map(|(path, _)| path).collect();
    assert_eq!(listed, expect);
}

#[test]
fn lists_have_every_field_without_effect() {
    check_list("with pods", Effect::WithPods);
    check_list("no effect", Effect::NoEffect);
}

/// The meaning of each honoured field on the page, without links.
fn meanings() -> BTreeMap<String, String> {
    let rows = section("honoured").into_iter().skip(2);
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let mut meaning = String::new();
        let mut rest = cells[3];
        while let Some((before, link)) = rest.split_once('[') {
            meaning.push_str(before);
            match link.split_once("](").and_then(|(text, end)| Some((text, end.split_once(')')?.1))) {
                Some((text, end)) => {
                    meaning.push_str(text);
                    rest = end;
                }
                None => {
                    meaning.push('[');
                    rest = link;
                }
            }
        }
        meaning.push_str(rest);
        (cells[1].trim_matches('`').to_owned(), meaning.replace('`', ""))
    })
    .collect()
}

/// The schema of a value; null removes the value of a lower layer, so it is valid everywhere.
fn value_schema(kind: &Kind, path: &str, meanings: &BTreeMap<String, String>) -> Value {
    const QUANTITY: &str = "^[+-]?[0-9]*\\.?[0-9]+([eE][+-]?[0-9]+|[munkMGTPE]|[KMGTPE]i)?$";
    const DURATION: &str = "^[+-]?(0|([0-9]*\\.?[0-9]+(ns|us|µs|ms|s|m|h))+)$";
    match *kind {
        Kind::Bool => json!({"type": ["boolean", "null"]}),
        Kind::Int { low, high } => json!({"type": ["integer", "null"], "minimum": low, "maximum": high}),
        Kind::Number => json!({"type": ["number", "null"]}),
        Kind::Text => json!({"type": ["string", "null"]}),
        Kind::OneOf(words) => {
            let mut allowed: Vec<Value> = words.iter().map(|word| json!(word)).collect();
            // an unquoted off
            allowed.extend(words.contains(&"off").then_some(Value::Bool(false)));
            allowed.push(Value::Null);
            json!({"enum": allowed})
        }
        Kind::Duration | Kind::DurationIn { .. } => {
            json!({"type": ["string", "integer", "null"], "pattern": DURATION, "minimum": 0, "maximum": 0})
        }
        Kind::DurationOrInteger => json!({"type": ["string", "integer", "null"], "pattern": DURATION}),
        Kind::QuantityText => json!({"type": ["string", "null"], "pattern": QUANTITY}),
        Kind::Quantity => json!({"type": ["string", "number", "null"], "pattern": QUANTITY}),
        Kind::Threshold => json!({"type": ["string", "null"]}),
        Kind::List(items) => {
            json!({"type": ["array", "null"], "items": value_schema(items, path, meanings)})
        }
        Kind::Map(values) => {
            json!({"type": ["object", "null"], "additionalProperties": value_schema(values, path, meanings)})
        }
        Kind::Object(fields) => object_schema(fields, path, meanings),
    }
}

fn object_schema(fields: &[Field], path: &str, meanings: &BTreeMap<String, String>) -> Value {
    let properties: Map<String, Value> = fields
        .iter()
        .map(|field| {
            let path = match (path, field.name.contains('.')) {
                ("", _) => field.name.to_owned(),
                (_, true) => format!("{path}[\"{}\"]", field.name),
                (_, false) => format!("{path}.{}", field.name),
            };
            let mut schema = value_schema(&field.kind, &path, meanings);
            let effect = match field.effect {
                Effect::Honoured => meanings.get(&path).cloned().unwrap_or_default(),
                Effect::WithPods | Effect::NoEffect if matches!(field.kind, Kind::Object(_)) => String::new(),
                Effect::WithPods | Effect::NoEffect => "accepted, without effect here".to_owned(),
            };
            let bounds = field.bounds();
            let parts = [effect.as_str(), bounds.as_str()];
            let description =
                parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(". ");
            if !description.is_empty() {
                schema["description"] = description.into();
            }
            if let Some(default) = field.default.value() {
                schema["default"] = default;
            }
            (field.name.to_owned(), schema)
        })
        .collect();
    json!({"type": ["object", "null"], "properties": properties, "additionalProperties": false})
}

fn config_schema() -> Value {
    let mut schema = object_schema(schema::FIELDS, "", &meanings());
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    schema["title"] = "KubeletConfiguration, as Kedge reads it".into();
    schema["type"] = "object".into();
    schema["required"] = json!(["apiVersion", "kind"]);
    schema["properties"]["apiVersion"] = json!({"const": schema::API_VERSION});
    schema["properties"]["kind"] = json!({"const": schema::KIND});
    schema
}

/// `docs/reference/config.schema.json`; `KEDGE_GOLDEN=write` writes it.
#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "the test compares a file of the repository, and writes it on request"
)]
fn schema_for_editors_is_the_table_of_fields() {
    let text = serde_json::to_string_pretty(&config_schema()).unwrap() + "\n";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/config.schema.json");
    if std::env::var("KEDGE_GOLDEN").is_ok_and(|word| word == "write") {
        std::fs::write(path, &text).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == text, "{path} is not the table of fields: run this test with KEDGE_GOLDEN=write");
}

/// Whether a value fits a schema, by the words that `value_schema` writes but patterns.
fn fits(value: &Value, schema: &Value) -> bool {
    if let Some(only) = schema.get("const") {
        return value == only;
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array) {
        return allowed.contains(value);
    }
    let name = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_of = |of: &Value| of == name || (of == "number" && name == "integer");
    let types = &schema["type"];
    if !types.as_array().map_or(is_of(types), |types| types.iter().any(is_of)) {
        return false;
    }
    let within = |number: i64| {
        schema["minimum"].as_i64().is_none_or(|low| low <= number)
            && schema["maximum"].as_i64().is_none_or(|high| number <= high)
    };
    match value {
        Value::Number(number) => number.as_i64().is_none_or(within),
        Value::Array(items) => items.iter().all(|item| fits(item, &schema["items"])),
        Value::Object(fields) => fields.iter().all(|(name, value)| {
            match (schema["properties"].get(name), &schema["additionalProperties"]) {
                (Some(own), _) => fits(value, own),
                (None, Value::Object(_)) => fits(value, &schema["additionalProperties"]),
                (None, _) => false,
            }
        }),
        _ => true,
    }
}

#[test]
fn schema_for_editors_judges_as_the_agent() {
    for (fragment, expect) in [
        ("{}", true),
        (r#"{"maxPods": 5}"#, true),
        (r#"{"maxPods": null}"#, true),
        (r#"{"maxPods": 10001}"#, false),
        (r#"{"maxPods": "5"}"#, false),
        (r#"{"maxpods": 5}"#, false),
        (r#"{"configTrialDuration": "20s"}"#, true),
        (r#"{"configTrialDuration": 0}"#, true),
        (r#"{"configTrialDuration": 20}"#, false),
        (r#"{"kedge": {"watch": "off"}}"#, true),
        (r#"{"kedge": {"watch": false}}"#, true),
        (r#"{"kedge": {"watch": "on"}}"#, false),
        (r#"{"kedge": {"devices": {"gps": ["/dev/ttyUSB0"]}}}"#, true),
        (r#"{"evictionHard": {"memory.available": "100Mi"}}"#, true),
        (r#"{"evictionHard": {"memory": "100Mi"}}"#, false),
        (r#"{"registerWithTaints": [{"key": "a", "effect": "NoSchedule"}]}"#, true),
        (r#"{"logging": {"verbosity": 11}}"#, false),
    ] {
        let mut value: Value = serde_json::from_str(fragment).unwrap();
        value["apiVersion"] = schema::API_VERSION.into();
        value["kind"] = schema::KIND.into();
        assert_eq!(fits(&value, &config_schema()), expect, "schema: {fragment}");
        let pushed = LayerText { origin: Origin::Pushed("pushed".into()), text: value.to_string().into() };
        let judged = effective(&LocalLayers::default(), Some(&pushed));
        assert_eq!(judged.is_ok(), expect, "agent: {fragment}");
    }
}
