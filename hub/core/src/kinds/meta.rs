//! Rules that hold for every object: names, labels, annotations, finalizers, owner references.
//!
//! The limits and texts are upstream's (apimachinery `validation`), so that both accept the same objects.

use serde_json::Value;

use super::kind::Kind;
use super::names::{NameRule, label_value_complaint, qualified_name_complaint};
use crate::field_error::{FieldError, FieldErrors};
use crate::value::text;

/// All annotations of one object together; upstream's limit.
const TOTAL_ANNOTATION_BYTES: usize = 256 * 1024;
/// Most finalizers and most owners of one object: more than any use needs.
const LIST_ITEMS: usize = 1000;

/// Validates the metadata of an object.
pub fn validate(kind: &Kind, object: &Value, errors: &mut FieldErrors) {
    let meta = &object["metadata"];
    let name = text(meta, &["name"]);
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else if let Some(complaint) = kind.name_rule.complaint(name) {
        errors.push(FieldError::invalid("metadata.name", name, &complaint));
    }
    let namespace = text(meta, &["namespace"]);
    if kind.namespaced {
        if namespace.is_empty() {
            errors.push(FieldError::required("metadata.namespace", ""));
        } else if let Some(complaint) = NameRule::Label.complaint(namespace) {
            errors.push(FieldError::invalid("metadata.namespace", namespace, &complaint));
        }
    } else if !namespace.is_empty() {
        errors.push(FieldError::forbidden("metadata.namespace", "not allowed on this type"));
    }
    let generation = meta["generation"].as_i64().filter(|number| *number < 0);
    if let Some(number) = generation {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("metadata.generation", number, why));
    }
    validate_labels(meta, errors);
    validate_annotations(meta, errors);
    validate_finalizers(meta, errors);
    validate_owners(meta, errors);
}

fn entries<'a>(meta: &'a Value, field: &str) -> impl Iterator<Item = (&'a String, &'a str)> {
    meta.get(field)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| (key, value.as_str().unwrap_or("")))
}

fn validate_labels(meta: &Value, errors: &mut FieldErrors) {
    for (key, value) in entries(meta, "labels") {
        if let Some(complaint) = qualified_name_complaint(key) {
            errors.push(FieldError::invalid("metadata.labels", key.as_str(), &complaint));
        }
        if let Some(complaint) = label_value_complaint(value) {
            errors.push(FieldError::invalid("metadata.labels", value, &complaint));
        }
    }
}

fn validate_annotations(meta: &Value, errors: &mut FieldErrors) {
    let mut total = 0;
    for (key, value) in entries(meta, "annotations") {
        // upstream lowers the key first: annotation keys may carry upper case prefixes
        if let Some(complaint) = qualified_name_complaint(&key.to_lowercase()) {
            errors.push(FieldError::invalid("metadata.annotations", key.as_str(), &complaint));
        }
        total += key.len() + value.len();
    }
    if total > TOTAL_ANNOTATION_BYTES {
        errors.push(FieldError::too_long("metadata.annotations", TOTAL_ANNOTATION_BYTES));
    }
}

fn list<'a>(meta: &'a Value, field: &str) -> &'a [Value] {
    meta.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn validate_finalizers(meta: &Value, errors: &mut FieldErrors) {
    let finalizers = list(meta, "finalizers");
    if finalizers.len() > LIST_ITEMS {
        errors.push(FieldError::too_long("metadata.finalizers", LIST_ITEMS));
        return;
    }
    for finalizer in finalizers {
        let finalizer = finalizer.as_str().unwrap_or("");
        if let Some(complaint) = qualified_name_complaint(finalizer) {
            errors.push(FieldError::invalid("metadata.finalizers", finalizer, &complaint));
        }
    }
    let contrary = ["foregroundDeletion", "orphan"];
    if contrary.iter().all(|name| finalizers.iter().any(|finalizer| finalizer == name)) {
        let why = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid("metadata.finalizers", finalizers.to_vec(), why));
    }
}

fn validate_owners(meta: &Value, errors: &mut FieldErrors) {
    let owners = list(meta, "ownerReferences");
    if owners.len() > LIST_ITEMS {
        errors.push(FieldError::too_long("metadata.ownerReferences", LIST_ITEMS));
        return;
    }
    let path = "metadata.ownerReferences";
    let mut controller: Option<String> = None;
    for owner in owners {
        validate_owner(owner, path, errors);
        if owner["controller"] != true {
            continue;
        }
        let name = format!("{}/{}", text(owner, &["kind"]), text(owner, &["name"]));
        match &controller {
            None => controller = Some(name),
            Some(first) => {
                let why = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                );
                errors.push(FieldError::invalid(path, owner.clone(), &why));
            }
        }
    }
}

/// One owner; upstream's errors do not say which.
fn validate_owner(owner: &Value, path: &str, errors: &mut FieldErrors) {
    for (field, why) in [
        ("apiVersion", "version must not be empty"),
        ("kind", "must not be empty"),
        ("name", "must not be empty"),
        ("uid", "must not be empty"),
    ] {
        if text(owner, &[field]).is_empty() {
            errors.push(FieldError::invalid(format!("{path}.{field}"), "", why));
        }
    }
    // events go by themselves, and would take what they own with them
    if owner["apiVersion"] == "v1" && owner["kind"] == "Event" {
        let why = "/v1, Kind=Event is disallowed from being an owner";
        errors.push(FieldError::invalid(path, owner.clone(), why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::CONFIG_MAP;
    use serde_json::json;

    #[test]
    fn owners_are_whole_and_one_controls() {
        let check = |owners: Value, expect: &[&str]| {
            let object = json!({"metadata": {"name": "a", "namespace": "b", "ownerReferences": owners}});
            let mut errors = FieldErrors::default();
            validate(&CONFIG_MAP, &object, &mut errors);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
        };
        let owner = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "u", "controller": true});
        check(json!([owner("a")]), &[]);
        check(
            json!([{"kind": "Pod", "name": "a"}]),
            &[
                "metadata.ownerReferences.apiVersion: Invalid value: \"\": version must not be empty",
                "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty",
            ],
        );
        let mut errors = FieldErrors::default();
        validate_owners(&json!({"ownerReferences": [owner("a"), owner("b")]}), &mut errors);
        assert!(errors[0].to_string().ends_with(
            "Only one reference can have Controller set to true. Found \"true\" in references for Pod/a and Pod/b"
        ));
        validate_owner(
            &json!({"apiVersion": "v1", "kind": "Event", "name": "e", "uid": "u"}),
            "f",
            &mut errors,
        );
        assert!(errors[1].to_string().ends_with("/v1, Kind=Event is disallowed from being an owner"));
    }
}
