//! Event (core/v1): what happened to an object, for people. `garbage` deletes old events.

use kedge_api::NODE_USER_PREFIX;
use serde_json::Value;

use super::kind::{Kind, Selectable};
use super::table::{Column, since};
use crate::field_error::FieldError;
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
    indexed: &[NAME_FIELD],
    holder,
    columns: &[
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
    ],
    cells,
    validate,
    ..Kind::USUAL
};

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
    Selectable { label: "source", value: |event| source(event).to_owned() },
    Selectable { label: "type", value: |event| text(event, &["type"]).to_owned() },
];

/// Position of `involvedObject.name` among the selectable fields.
const NAME_FIELD: usize = 2;

/// An event about a Node is charged to that node, any other to the node that reports it. `identity` lets a node write no others.
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
    let stamp = |field: &str| match text(event, &[field]) {
        "" => since(event_time, now),
        stamp => since(stamp, now),
    };
    let first = stamp("firstTimestamp");
    let (last, count) = match event.get("series") {
        Some(series) => {
            (since(text(series, &["lastObservedTime"]), now), series["count"].as_i64().unwrap_or(1))
        }
        None => (stamp("lastTimestamp"), event["count"].as_i64().unwrap_or(1).max(1)),
    };
    let last = match (count, event.get("series")) {
        (2.., _) => format!("{last} (x{count} over {first})"),
        _ => last,
    };
    let instance = reporting_node(event);
    let from =
        if instance.is_empty() { source(event).to_owned() } else { format!("{}, {instance}", source(event)) };
    let object = format!("{}/{}", involved(event, "kind").to_lowercase(), involved(event, "name"));
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

/// Upstream's rule: an event is in the namespace of its object; events about cluster-scoped objects are in
/// `default` (upstream's legacy rule also allows `kube-system`).
fn validate(new: &Value, _old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let namespace = text(new, &["metadata", "namespace"]);
    let about = involved(new, "namespace");
    let good =
        if about.is_empty() { matches!(namespace, "default" | "kube-system") } else { about == namespace };
    if !good {
        let explained = "does not match event.namespace";
        errors.push(FieldError::invalid("involvedObject.namespace", about, explained));
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
            let mut errors = Vec::new();
            validate(&event, None, &mut errors);
            assert_eq!(errors.is_empty(), good, "{namespace} {about}");
        };
        check("default", "", true);
        check("other", "", false);
        check("other", "other", true);
        check("default", "other", false);
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
            ["30s (x3 over 90s)", "Normal", "R", "node/n", "", "c, h", "m", "90s", "3", "e"].map(Value::from)
        );
    }
}
