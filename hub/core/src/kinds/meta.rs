//! Rules that hold for every object: names, labels, annotations, finalizers, owner references.
//!
//! The limits and texts are upstream's (apimachinery `validation`), so that both accept the same objects.

use serde_json::Value;

use super::kind::Kind;
use super::names::{NameRule, label_value_complaint, qualified_name_complaint};
use crate::field_error::FieldError;
use crate::value::text;

/// All annotations of one object together; upstream's limit.
const TOTAL_ANNOTATION_BYTES: usize = 256 * 1024;
/// Most finalizers and most owners of one object: more than any use needs.
const LIST_ITEMS: usize = 1000;

/// Validates the metadata of an object.
pub fn validate(kind: &Kind, object: &Value, errors: &mut Vec<FieldError>) {
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

fn validate_labels(meta: &Value, errors: &mut Vec<FieldError>) {
    for (key, value) in entries(meta, "labels") {
        if let Some(complaint) = qualified_name_complaint(key) {
            errors.push(FieldError::invalid("metadata.labels", key.as_str(), &complaint));
        }
        if let Some(complaint) = label_value_complaint(value) {
            errors.push(FieldError::invalid("metadata.labels", value, &complaint));
        }
    }
}

fn validate_annotations(meta: &Value, errors: &mut Vec<FieldError>) {
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

fn validate_finalizers(meta: &Value, errors: &mut Vec<FieldError>) {
    let finalizers = list(meta, "finalizers");
    if finalizers.len() > LIST_ITEMS {
        errors.push(FieldError::too_long("metadata.finalizers", LIST_ITEMS));
        return;
    }
    for (index, finalizer) in finalizers.iter().enumerate() {
        let finalizer = finalizer.as_str().unwrap_or("");
        if let Some(complaint) = qualified_name_complaint(finalizer) {
            errors.push(FieldError::invalid(format!("metadata.finalizers[{index}]"), finalizer, &complaint));
        }
    }
}

fn validate_owners(meta: &Value, errors: &mut Vec<FieldError>) {
    let owners = list(meta, "ownerReferences");
    if owners.len() > LIST_ITEMS {
        errors.push(FieldError::too_long("metadata.ownerReferences", LIST_ITEMS));
        return;
    }
    for (index, owner) in owners.iter().enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if text(owner, &[field]).is_empty() {
                let path = format!("metadata.ownerReferences[{index}].{field}");
                errors.push(FieldError::invalid(path, "", "must not be empty"));
            }
        }
    }
    let controllers = owners.iter().filter(|owner| owner["controller"] == true).count();
    if controllers > 1 {
        let explained = "only one reference can have Controller set to true";
        errors.push(FieldError::invalid("metadata.ownerReferences", controllers, explained));
    }
}
