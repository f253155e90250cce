//! Event of events.k8s.io/v1: the events of the core group under another type, as newer clients write and
//! read them.
//!
//! Owns: the names that differ, and the stricter rules of this type. Always holds: an event has one stored
//! form, the core one; an event written through one type can be read through the other. Leaves to others:
//! everything else (`event`).

use serde_json::Value;

use super::event::{self, EVENT};
use super::kind::{Kind, View};
use super::rules::Errors;
use crate::field_error::FieldError;
use crate::value::{at, text};

/// The fields of the core type and their names here.
const NAMES: [(&str, &str); 7] = [
    ("count", "deprecatedCount"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("involvedObject", "regarding"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
];
/// The fields that no update through this type changes, by their names in the core type.
const IMMUTABLE: [&str; 12] = [
    "involvedObject",
    "reason",
    "message",
    "source",
    "firstTimestamp",
    "lastTimestamp",
    "count",
    "type",
    "eventTime",
    "action",
    "related",
    "reportingComponent",
];

/// events.k8s.io/v1 Event.
pub static EVENT_VIEW: Kind = Kind {
    group: "events.k8s.io",
    kind: "Event",
    plural: "events",
    singular: "event",
    short_names: &["ev"],
    create_on_update: true,
    type_name: "events/v1/Event",
    selectable: event::VIEW_SELECTABLE,
    indexed: event::INDEXED,
    columns: event::COLUMNS,
    cells: |event, now| (EVENT.cells)(&stored(event.clone()), now),
    view: Some(&VIEW),
    ..Kind::USUAL
};

static VIEW: View = View { of: &EVENT, shown, stored, validate };

fn renamed(
    mut event: Value,
    name: fn(&(&'static str, &'static str)) -> (&'static str, &'static str),
) -> Value {
    if let Some(fields) = event.as_object_mut() {
        for (from, to) in NAMES.iter().map(name) {
            if let Some(value) = fields.remove(from) {
                fields.insert(to.to_owned(), value);
            }
        }
    }
    event
}

fn shown(event: Value) -> Value {
    let mut event = renamed(event, |(core, here)| (*core, *here));
    event["apiVersion"] = EVENT_VIEW.api_version().into();
    event
}

fn stored(event: Value) -> Value {
    let mut event = renamed(event, |(core, here)| (*here, *core));
    event["apiVersion"] = EVENT.api_version().into();
    event
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut Errors) {
    // upstream's errors have the names of the core type, but for this field
    event::validate_with(new, "reportingController", errors);
    let series = new.get("series");
    if old.and_then(|old| old.get("series")) != series
        && let Some(series) = series
    {
        if series["count"].as_i64().unwrap_or(0) < 2 {
            errors.push(FieldError::invalid("series.count", "", "should be at least 2"));
        }
        if text(series, &["lastObservedTime"]).is_empty() {
            errors.push(FieldError::required("series.lastObservedTime", ""));
        }
    }
    match old {
        Some(old) => {
            for field in IMMUTABLE.into_iter().filter(|field| old.get(*field) != new.get(*field)) {
                errors.push(FieldError::invalid(field, new[field].clone(), "field is immutable"));
            }
        }
        None => validate_new(new, errors),
    }
}

fn validate_new(new: &Value, errors: &mut Errors) {
    if text(new, &["eventTime"]).is_empty() {
        errors.push(FieldError::required("eventTime", ""));
    }
    let sort = text(new, &["type"]);
    if !matches!(sort, "Normal" | "Warning") {
        errors.push(FieldError::invalid("type", "", &format!("has invalid value: {sort}")));
    }
    for field in ["firstTimestamp", "lastTimestamp"] {
        if !text(new, &[field]).is_empty() {
            errors.push(FieldError::invalid(field, "", "needs to be unset"));
        }
    }
    if new["count"].as_i64().unwrap_or(0) != 0 {
        errors.push(FieldError::invalid("count", "", "needs to be unset"));
    }
    let source = at(new, &["source"]).and_then(Value::as_object);
    if source.is_some_and(|source| source.values().any(|value| value != "")) {
        errors.push(FieldError::invalid("source", "", "needs to be unset"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::schema;
    use serde_json::json;

    fn event() -> Value {
        json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
            "regarding": {"kind": "Node", "name": "n"}, "note": "m", "reason": "R", "action": "A", "type": "Normal",
            "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "c", "reportingInstance": "i"})
    }

    #[test]
    fn event_is_the_same_under_both_types() {
        let core = stored(event());
        assert_eq!((&core["message"], &core["involvedObject"]["name"]), (&json!("m"), &json!("n")));
        assert_eq!((&core["reportingComponent"], &core["apiVersion"]), (&json!("c"), &json!("v1")));
        assert_eq!(shown(core), event());
    }

    #[test]
    fn fields_without_a_name_here_are_the_same_in_both_types() {
        let (core, here) = (EVENT.schema(), EVENT_VIEW.schema());
        for field in &core.fields {
            let name =
                NAMES.iter().find(|(core, _)| *core == field.name).map_or(field.name, |(_, here)| here);
            let there = here.field(name).unwrap_or_else(|| panic!("{name}"));
            let same = there.shape == field.shape || matches!(there.shape, schema::Shape::Message(_));
            assert!(same, "{name}");
        }
        assert_eq!(core.fields.len(), here.fields.len());
    }

    #[test]
    fn selectors_stand_at_the_positions_of_the_core_type() {
        for (position, selectable) in EVENT_VIEW.selectable.iter().enumerate() {
            let core = stored(event());
            assert_eq!(
                (selectable.value)(&core),
                (EVENT.selectable[position].value)(&core),
                "{}",
                selectable.label
            );
        }
    }

    #[test]
    fn new_event_is_of_the_new_form_and_then_stays() {
        let check = |new: &Value, old: Option<&Value>, expect: &[&str]| {
            let mut errors = Errors::default();
            validate(new, old, &mut errors);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
        };
        let good = stored(event());
        check(&good, None, &[]);
        let mut bad = good.clone();
        for (field, value) in [
            ("eventTime", json!("")),
            ("type", json!("Odd")),
            ("firstTimestamp", json!("2026-01-01T00:00:00Z")),
            ("count", json!(1)),
            ("source", json!({"component": "c"})),
            ("series", json!({"count": 1})),
        ] {
            bad[field] = value;
        }
        check(
            &bad,
            None,
            &[
                "series.count: Invalid value: \"\": should be at least 2",
                "series.lastObservedTime: Required value",
                "eventTime: Required value",
                "type: Invalid value: \"\": has invalid value: Odd",
                "firstTimestamp: Invalid value: \"\": needs to be unset",
                "count: Invalid value: \"\": needs to be unset",
                "source: Invalid value: \"\": needs to be unset",
            ],
        );
        let mut changed = good.clone();
        changed["message"] = "other".into();
        check(&changed, Some(&good), &["message: Invalid value: \"other\": field is immutable"]);
        changed = good.clone();
        changed["series"] = json!({"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"});
        check(&changed, Some(&good), &[]);
    }
}
