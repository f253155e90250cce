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
    validate_annotations(meta, "metadata.annotations", errors);
    validate_finalizers(meta, errors);
    validate_owners(meta, errors);
}

/// Rules for a new object beyond those of [`validate`].
pub fn validate_new(kind: &Kind, object: &Value, errors: &mut FieldErrors) {
    let meta = &object["metadata"];
    let base = text(meta, &["generateName"]);
    // upstream does not judge the metadata of v1 Events, because their creators put a dot after the name of
    // the object
    if !base.is_empty()
        && kind.kind != "Event"
        && let Some(complaint) = kind.name_rule.complaint(&completed(base))
    {
        errors.push(FieldError::invalid("metadata.generateName", base, &complaint));
    }
    validate_new_finalizers(kind, None, meta, errors);
}

/// Rules for a change beyond those of [`validate`]. `wanted` is the metadata as the client sent it, completed
/// with fields that the server keeps.
pub fn validate_change(kind: &Kind, old: &Value, wanted: &Value, errors: &mut FieldErrors) {
    validate_new_finalizers(kind, Some(&old["metadata"]), wanted, errors);
    validate_deletion(&old["metadata"], wanted, errors);
}

/// The base of a generated name as if it were the whole name: its hyphen at the end will not be the last
/// character.
fn completed(base: &str) -> String {
    match base.strip_suffix('-') {
        Some("") | None => base.to_owned(),
        // upstream replaces the last two characters
        Some(before) => before.chars().take(before.chars().count() - 1).chain(['a']).collect(),
    }
}

/// Finalizers of Kubernetes' own, which need no domain.
pub(super) const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// Refuses a finalizer that has neither a domain nor a standard name. A finalizer that the object already has
/// may stay: an older hub accepted it, and the object must remain changeable.
fn validate_new_finalizers(kind: &Kind, old: Option<&Value>, meta: &Value, errors: &mut FieldErrors) {
    if kind.any_finalizer {
        return;
    }
    let had = old.map_or(&[][..], |old| list(old, "finalizers"));
    for (index, value) in list(meta, "finalizers").iter().enumerate().take(LIST_ITEMS) {
        let finalizer = value.as_str().unwrap_or("");
        if finalizer.contains('/') || STANDARD_FINALIZERS.contains(&finalizer) || had.contains(value) {
            continue;
        }
        let why = "name is neither a standard finalizer name nor is it fully qualified";
        errors.push(FieldError::invalid(format!("metadata.finalizers[{index}]"), finalizer, why));
    }
}

/// Refuses a change that marks an object for deletion: only a DELETE may. Another time for a deletion that
/// has begun is ignored, as upstream does.
fn validate_deletion(old: &Value, wanted: &Value, errors: &mut FieldErrors) {
    if text(old, &["deletionTimestamp"]).is_empty() && !text(wanted, &["deletionTimestamp"]).is_empty() {
        let value = wanted["deletionTimestamp"].clone();
        errors.push(FieldError::invalid("metadata.deletionTimestamp", value, IMMUTABLE));
    }
    let grace = &wanted["deletionGracePeriodSeconds"];
    if !grace.is_null() && *grace != old["deletionGracePeriodSeconds"] {
        errors.push(FieldError::invalid("metadata.deletionGracePeriodSeconds", grace.clone(), IMMUTABLE));
    }
}

const IMMUTABLE: &str = "field is immutable";

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

/// The annotations of an object or template; errors name the map.
pub(super) fn validate_annotations(meta: &Value, path: &str, errors: &mut FieldErrors) {
    let mut total = 0;
    for (key, value) in entries(meta, "annotations") {
        // upstream lowers the key first: annotation keys may carry upper case prefixes
        if let Some(complaint) = qualified_name_complaint(&key.to_lowercase()) {
            errors.push(FieldError::invalid(path, key.as_str(), &complaint));
        }
        total += key.len() + value.len();
    }
    if total > TOTAL_ANNOTATION_BYTES {
        errors.push(FieldError::too_long(path, TOTAL_ANNOTATION_BYTES));
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

/// One owner; upstream's errors do not show which.
fn validate_owner(owner: &Value, path: &str, errors: &mut FieldErrors) {
    let version = text(owner, &["apiVersion"]);
    // to upstream an unparsable version counts as missing
    if version.rsplit('/').next() == Some("") || version.split('/').count() > 2 {
        let why = "version must not be empty";
        errors.push(FieldError::invalid(format!("{path}.apiVersion"), version, why));
    }
    for (field, why) in
        [("kind", "must not be empty"), ("name", "must not be empty"), ("uid", "must not be empty")]
    {
        if text(owner, &[field]).is_empty() {
            errors.push(FieldError::invalid(format!("{path}.{field}"), "", why));
        }
    }
    // events expire, and would take the objects that they own with them
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

    fn complaints(check: impl FnOnce(&mut FieldErrors)) -> Vec<String> {
        let mut errors = FieldErrors::default();
        check(&mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn finalizer_without_domain_is_refused_but_for_old_ones() {
        let wanted = json!({"finalizers": ["orphan", "a.b/c", "nope"]});
        let fault = "metadata.finalizers[2]: Invalid value: \"nope\": name is neither a standard finalizer name nor is it fully qualified";
        for kind in crate::kinds::KINDS {
            let new = complaints(|errors| validate_new(kind, &json!({"metadata": wanted}), errors));
            let none = json!({"metadata": {}});
            let changed = complaints(|errors| validate_change(kind, &none, &wanted, errors));
            let expect: &[&str] = if kind.kind == "Lease" { &[] } else { &[fault] };
            assert_eq!(
                (new, changed),
                (
                    expect.iter().map(|text| (*text).to_owned()).collect(),
                    expect.iter().map(|text| (*text).to_owned()).collect()
                ),
                "{}",
                kind.kind
            );
            let old = json!({"metadata": wanted});
            assert!(complaints(|errors| validate_change(kind, &old, &wanted, errors)).is_empty());
        }
    }

    #[test]
    fn base_of_generated_name_is_judged_like_the_name() {
        for (base, good) in
            [("a-", true), ("ab-", true), ("a", true), ("A_", false), ("-", false), ("a.-", true)]
        {
            let object = json!({"metadata": {"name": "a", "generateName": base}});
            let found = complaints(|errors| validate_new(&CONFIG_MAP, &object, errors));
            assert_eq!(found.is_empty(), good, "{base}: {found:?}");
        }
    }

    #[test]
    fn change_cannot_begin_a_deletion() {
        let alive = json!({"metadata": {}});
        let ending = json!({"metadata": {"deletionTimestamp": "2026-11-21T12:00:00Z", "deletionGracePeriodSeconds": 3}});
        let later = json!({"deletionTimestamp": "2027-11-21T12:00:00Z"});
        let check = |old: &Value, wanted: &Value| {
            complaints(|errors| validate_change(&CONFIG_MAP, old, wanted, errors))
        };
        assert_eq!(
            check(&alive, &later),
            ["metadata.deletionTimestamp: Invalid value: \"2027-11-21T12:00:00Z\": field is immutable"]
        );
        assert_eq!(
            check(&alive, &json!({"deletionGracePeriodSeconds": 1})),
            ["metadata.deletionGracePeriodSeconds: Invalid value: 1: field is immutable"]
        );
        // the server's own fields stay, whatever a change contains
        assert!(check(&ending, &later).is_empty());
        assert!(check(&ending, &ending["metadata"]).is_empty());
        assert_eq!(check(&ending, &json!({"deletionGracePeriodSeconds": 4})).len(), 1);
    }

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
        for version in ["a/b/c", "a/", "/"] {
            let owner = json!([{"apiVersion": version, "kind": "Pod", "name": "a", "uid": "u"}]);
            let fault = format!(
                "metadata.ownerReferences.apiVersion: Invalid value: \"{version}\": version must not be empty"
            );
            check(owner, &[&fault]);
        }
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
