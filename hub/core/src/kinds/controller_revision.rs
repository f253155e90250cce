//! ControllerRevision: one stored template of a controller. Its data never changes, only its number.

use serde_json::Value;

use super::kind::Kind;
use super::table::{Column, age};
use crate::field_error::{FieldError, FieldErrors};
use crate::value::text;

/// apps/v1 ControllerRevision.
pub static CONTROLLER_REVISION: Kind = Kind {
    group: "apps",
    kind: "ControllerRevision",
    plural: "controllerrevisions",
    singular: "controllerrevision",
    type_name: "apps/v1/ControllerRevision",
    columns: &[Column::NAME, Column::text("Controller"), Column::integer("Revision"), Column::AGE],
    cells,
    validate,
    ..Kind::USUAL
};

fn cells(revision: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    let number = revision["revision"].as_i64().unwrap_or(0);
    vec![
        text(revision, &["metadata", "name"]).into(),
        controller(revision).into(),
        number.into(),
        age(revision, now),
    ]
}

/// The controlling owner as `daemonset.apps/name`.
fn controller(revision: &Value) -> String {
    let owners = revision["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let Some(owner) = owners.into_iter().find(|owner| owner["controller"] == true) else {
        return "<none>".to_owned();
    };
    let kind = text(owner, &["kind"]).to_lowercase();
    match text(owner, &["apiVersion"]).split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{}", text(owner, &["name"])),
        None => format!("{kind}/{}", text(owner, &["name"])),
    }
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
    // Go's name of what is there in place of an object; an older hub took it
    let found = match &new["data"] {
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Null | Value::Object(_) => "",
    };
    if new["data"].is_null() {
        errors.push(FieldError::required("data", "data is mandatory"));
    } else if !found.is_empty() && old.is_none() {
        let why = format!(
            "error parsing data: json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
        );
        errors.push(FieldError::invalid("data", "<value omitted>", &why));
    }
    if let Some(number) = new["revision"].as_i64().filter(|number| *number < 0) {
        errors.push(FieldError::invalid("revision", number, "must be greater than or equal to 0"));
    }
    if old.is_some_and(|old| old["data"] != new["data"]) {
        errors.push(FieldError::invalid("data", new["data"].clone(), "field is immutable"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn data_is_needed_and_stays() {
        let check = |new: Value, old: Option<Value>, expect: &[&str]| {
            let mut errors = FieldErrors::default();
            validate(&new, old.as_ref(), &mut errors);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
        };
        let first = json!({"data": {"spec": 1}, "revision": 1});
        check(first.clone(), None, &[]);
        check(json!({"revision": 1}), None, &["data: Required value: data is mandatory"]);
        check(
            json!({"data": {}, "revision": -1}),
            None,
            &["revision: Invalid value: -1: must be greater than or equal to 0"],
        );
        for (data, found) in
            [(json!("x"), "string"), (json!(5), "number"), (json!(true), "bool"), (json!([1]), "array")]
        {
            let why = format!(
                "data: Invalid value: \"<value omitted>\": error parsing data: json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
            );
            let revision = json!({"data": data, "revision": 1});
            check(revision.clone(), None, &[&why]);
            check(revision.clone(), Some(revision), &[]);
        }
        check(json!({"data": {"spec": 1}, "revision": 2}), Some(first.clone()), &[]);
        check(
            json!({"data": {"spec": 2}, "revision": 2}),
            Some(first),
            &["data: Invalid value: {\"spec\":2}: field is immutable"],
        );
    }

    #[test]
    fn controller_is_shown_with_its_group() {
        let owned = json!({"metadata": {"ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "controller": true}]}});
        assert_eq!(controller(&owned), "daemonset.apps/d");
        assert_eq!(controller(&json!({})), "<none>");
    }
}
