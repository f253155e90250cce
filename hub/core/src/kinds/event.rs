//! Event (core/v1): something that happened to an object, for people. `garbage` deletes old events.

use kedge_api::NODE_USER_PREFIX;
use serde_json::Value;

use super::kind::{Kind, Selectable};
use super::rules;
use super::table::{Column, since};
use crate::field_error::{FieldError, FieldErrors};
use crate::value::text;

/// core/v1 Event.
pub static EVENT: Kind = Kind {
    kind: "Event",
    plural: "events",
    singular: "event",
    short_names: &["ev"],
    create_on_update: true,
    type_name: "core/v1/Event",
    selectable: SELECTABLE,
    indexed: INDEXED,
    holder,
    columns: COLUMNS,
    cells,
    validate,
    ..Kind::USUAL
};

pub(super) static COLUMNS: &[Column] = &[
    Column::text("Last Seen"),
    Column::text("Type"),
    Column::text("Reason"),
    Column::text("Object"),
    Column::text("Subobject").wide(),
    Column::text("Source").wide(),
    Column::text("Message"),
    Column::text("First Seen").wide(),
    Column::text("Count").wide(),
    Column::NAME.wide(),
];

static SELECTABLE: &[Selectable] = &[
    Selectable { label: "involvedObject.kind", value: |event| involved(event, "kind") },
    Selectable { label: "involvedObject.namespace", value: |event| involved(event, "namespace") },
    Selectable { label: "involvedObject.name", value: |event| involved(event, "name") },
    Selectable { label: "involvedObject.uid", value: |event| involved(event, "uid") },
    Selectable { label: "involvedObject.apiVersion", value: |event| involved(event, "apiVersion") },
    Selectable { label: "involvedObject.resourceVersion", value: |event| involved(event, "resourceVersion") },
    Selectable { label: "involvedObject.fieldPath", value: |event| involved(event, "fieldPath") },
    Selectable { label: "reason", value: |event| text(event, &["reason"]).to_owned() },
    Selectable {
        label: "reportingComponent",
        value: |event| text(event, &["reportingComponent"]).to_owned(),
    },
    Selectable { label: "type", value: |event| text(event, &["type"]).to_owned() },
    Selectable { label: "source", value: |event| source(event).to_owned() },
];

/// The same fields under their names in events.k8s.io, which has no `source`.
pub(super) static VIEW_SELECTABLE: &[Selectable] = &[
    Selectable { label: "regarding.kind", value: SELECTABLE[0].value },
    Selectable { label: "regarding.namespace", value: SELECTABLE[1].value },
    Selectable { label: "regarding.name", value: SELECTABLE[2].value },
    Selectable { label: "regarding.uid", value: SELECTABLE[3].value },
    Selectable { label: "regarding.apiVersion", value: SELECTABLE[4].value },
    Selectable { label: "regarding.resourceVersion", value: SELECTABLE[5].value },
    Selectable { label: "regarding.fieldPath", value: SELECTABLE[6].value },
    Selectable { label: "reason", value: SELECTABLE[7].value },
    Selectable { label: "reportingController", value: SELECTABLE[8].value },
    Selectable { label: "type", value: SELECTABLE[9].value },
];

/// Position of `involvedObject.name` among the selectable fields.
pub const NAME_FIELD: usize = 2;
/// Position of `type`.
pub const TYPE_FIELD: usize = 9;
/// Position of `involvedObject.kind`.
pub const KIND_FIELD: usize = 0;
pub(super) const INDEXED: &[usize] = &[NAME_FIELD];

/// An event about a Node is charged to that node, any other to the node that reports it. `identity` lets a
/// node write only such events.
fn holder(event: &Value) -> Option<String> {
    let node = match &*involved(event, "kind") {
        "Node" => involved(event, "name"),
        _ => reporting_node(event).to_owned(),
    };
    (!node.is_empty()).then(|| format!("{NODE_USER_PREFIX}{node}"))
}

/// The host that reports an event; empty if it names none.
pub fn reporting_node(event: &Value) -> &str {
    match text(event, &["source", "host"]) {
        "" => text(event, &["reportingInstance"]),
        host => host,
    }
}

fn involved(event: &Value, field: &str) -> String {
    text(event, &["involvedObject", field]).to_owned()
}

fn source(event: &Value) -> &str {
    match text(event, &["source", "component"]) {
        "" => text(event, &["reportingComponent"]),
        component => component,
    }
}

fn cells(event: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    let event_time = text(event, &["eventTime"]);
    let first = match text(event, &["firstTimestamp"]) {
        "" => since(event_time, now),
        stamp => since(stamp, now),
    };
    let (last, count) = match event.get("series") {
        Some(series) => {
            (since(text(series, &["lastObservedTime"]), now), series["count"].as_i64().unwrap_or(1))
        }
        None => {
            let last = text(event, &["lastTimestamp"]);
            let last = if last.is_empty() { first.clone() } else { since(last, now) };
            (last, event["count"].as_i64().unwrap_or(1).max(1))
        }
    };
    let instance = reporting_node(event);
    let from =
        if instance.is_empty() { source(event).to_owned() } else { format!("{}, {instance}", source(event)) };
    let mut object = involved(event, "kind").to_lowercase();
    let name = involved(event, "name");
    if !name.is_empty() {
        object = format!("{object}/{name}");
    }
    vec![
        last.into(),
        text(event, &["type"]).into(),
        text(event, &["reason"]).into(),
        object.into(),
        involved(event, "fieldPath").into(),
        from.into(),
        text(event, &["message"]).trim().into(),
        first.into(),
        count.to_string().into(),
        text(event, &["metadata", "name"]).into(),
    ]
}

/// Upstream's rules. An event is in the namespace of its object, or in `default` if that has none. One with
/// an `eventTime`, as newer clients write it, must also name its reporter and action.
fn validate(new: &Value, _old: Option<&Value>, errors: &mut FieldErrors) {
    validate_with(new, "reportingComponent", errors);
}

/// The rules of both types; `reporter` is what the reporting program is called in the type that was sent.
pub(super) fn validate_with(new: &Value, reporter: &str, errors: &mut FieldErrors) {
    let timed = !text(new, &["eventTime"]).is_empty();
    let namespace = text(new, &["metadata", "namespace"]);
    let about = involved(new, "namespace");
    let good = match (&*about, timed) {
        ("", false) => namespace == "default",
        ("", true) => matches!(namespace, "default" | "kube-system"),
        // upstream does not compare them for a timed event
        (about, timed) => timed || about == namespace,
    };
    if !good {
        let why = "does not match event.namespace";
        errors.push(FieldError::invalid("involvedObject.namespace", about, why));
    }
    if timed {
        validate_timed(new, reporter, errors);
    }
}

/// Longest texts of a timed event; upstream's limits.
const TEXT_BYTES: [(&str, usize); 4] =
    [("reportingInstance", 128), ("action", 128), ("reason", 128), ("message", 1024)];

fn validate_timed(event: &Value, reporter: &str, errors: &mut FieldErrors) {
    let named = text(event, &["reportingComponent"]);
    if named.is_empty() {
        errors.push(FieldError::required(reporter, ""));
    }
    rules::label_key(named, reporter, errors);
    for (field, limit) in TEXT_BYTES {
        let found = text(event, &[field]);
        if found.is_empty() && field != "message" {
            errors.push(FieldError::required(field, ""));
        }
        if found.len() > limit {
            let why = format!("can have at most {limit} characters");
            errors.push(FieldError::invalid(field, "", &why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn event_is_in_the_namespace_of_its_object() {
        let check = |namespace: &str, about: &str, good: bool| {
            let event = json!({"metadata": {"namespace": namespace}, "involvedObject": {"namespace": about}});
            let mut errors = FieldErrors::default();
            validate(&event, None, &mut errors);
            assert_eq!(errors.is_empty(), good, "{namespace} {about}");
        };
        check("default", "", true);
        check("kube-system", "", false);
        check("other", "", false);
        check("other", "other", true);
        check("default", "other", false);
    }

    #[test]
    fn timed_event_says_who_reports_what() {
        let check = |change: Value, expect: &[&str]| {
            let mut event = json!({"metadata": {"namespace": "kube-system"}, "eventTime": "2026-01-01T00:00:00.000000Z",
                "reportingComponent": "example.com/c", "reportingInstance": "c-1", "action": "A", "reason": "R"});
            for (field, value) in change.as_object().unwrap() {
                event[field] = value.clone();
            }
            let mut errors = FieldErrors::default();
            validate(&event, None, &mut errors);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
        };
        check(json!({}), &[]);
        check(
            json!({"reportingInstance": "", "action": "", "reason": ""}),
            &["reportingInstance: Required value", "action: Required value", "reason: Required value"],
        );
        check(
            json!({"message": "x".repeat(1025)}),
            &["message: Invalid value: \"\": can have at most 1024 characters"],
        );
        let mut errors = FieldErrors::default();
        let event = json!({"reportingInstance": "i", "action": "a", "reason": "r"});
        validate_timed(&event, "reportingComponent", &mut errors);
        assert_eq!(errors[0].to_string(), "reportingComponent: Required value");
    }

    #[test]
    fn repeated_events_show_their_count() {
        let event = json!({
            "metadata": {"name": "e"}, "count": 3, "type": "Normal", "reason": "R", "message": "m\n",
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:01:00Z",
            "involvedObject": {"kind": "Node", "name": "n"}, "source": {"component": "c", "host": "h"},
        });
        let now = super::super::schema::parse_time("2026-01-01T00:01:30Z").unwrap();
        assert_eq!(
            cells(&event, now),
            ["30s", "Normal", "R", "node/n", "", "c, h", "m", "90s", "3", "e"].map(Value::from)
        );
    }
}
