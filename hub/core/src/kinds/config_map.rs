//! ConfigMap: text and bytes for nodes and pods, at most 1 MiB, optionally immutable.

use serde_json::Value;

use super::kind::Kind;
use super::table::{Column, age, count};
use super::{names, schema};
use crate::field_error::{FieldError, FieldErrors};
use crate::identity::denied::{self, is_deny_list};
use crate::value::{at, text};

/// All values of one ConfigMap together; upstream's limit.
const TOTAL_BYTES: usize = 1024 * 1024;

/// core/v1 ConfigMap.
pub static CONFIG_MAP: Kind = Kind {
    kind: "ConfigMap",
    plural: "configmaps",
    singular: "configmap",
    short_names: &["cm"],
    type_name: "core/v1/ConfigMap",
    columns: &[Column::NAME, Column::integer("Data"), Column::AGE],
    cells,
    validate,
    warnings,
    ..Kind::USUAL
};

/// Warnings about keys of the deny list that deny nothing, kept from an older hub: their writer may believe
/// that they do.
fn warnings(new: &Value, _: Option<&Value>) -> Vec<String> {
    if !is_deny_list(text(new, &["metadata", "namespace"]), text(new, &["metadata", "name"])) {
        return Vec::new();
    }
    let complaint = |(map, key): (&str, &str)| Some(format!("{map}[{key}] {}", denied::complaint(key)?));
    denied::keys(new).filter_map(complaint).collect()
}

fn validate_deny_list(new: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
    // nothing could be revoked any more; a list that an older hub let become immutable may be changed
    if new["immutable"] == true && old.is_none_or(|old| old["immutable"] != true) {
        let why = "the list of revoked credentials must stay changeable";
        errors.push(FieldError::forbidden("immutable", why));
    }
    let is_owned = |value: &Value| {
        at(value, &["metadata", "ownerReferences"])
            .and_then(Value::as_array)
            .is_some_and(|owners| !owners.is_empty())
    };
    if is_owned(new) && !old.is_some_and(is_owned) {
        let why = "the list of revoked credentials must not be deleted with another object";
        errors.push(FieldError::forbidden("metadata.ownerReferences", why));
    }
    for (map, key) in denied::keys(new) {
        let is_new = old.is_none_or(|old| denied::keys(old).all(|(_, known)| known != key));
        if let Some(complaint) = denied::complaint(key).filter(|_| is_new) {
            errors.push(FieldError::invalid(format!("{map}[{key}]"), key, &complaint));
        }
    }
}

fn cells(object: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    let entries = count(&object["data"]) + count(&object["binaryData"]);
    vec![text(object, &["metadata", "name"]).into(), entries.into(), age(object, now)]
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
    let mut total = 0;
    for field in ["data", "binaryData"] {
        for (key, value) in new[field].as_object().into_iter().flatten() {
            let path = format!("{field}[{key}]");
            if let Some(complaint) = names::config_key_complaint(key) {
                errors.push(FieldError::invalid(path.as_str(), key.as_str(), &complaint));
            }
            if field == "data" && at(new, &["binaryData", key]).is_some() {
                errors.push(FieldError::invalid(
                    path,
                    key.as_str(),
                    "duplicate of key present in binaryData",
                ));
            }
            let value = value.as_str().unwrap_or("");
            total += if field == "data" {
                value.len()
            } else {
                schema::base64_decode(value).map_or(0, |v| v.len())
            };
        }
    }
    if total > TOTAL_BYTES {
        // upstream's name for a field without a name
        errors.push(FieldError::too_long("[]", TOTAL_BYTES));
    }
    if is_deny_list(text(new, &["metadata", "namespace"]), text(new, &["metadata", "name"])) {
        validate_deny_list(new, old, errors);
        return;
    }
    if let Some(old) = old.filter(|old| old["immutable"] == true) {
        if new["immutable"] != true {
            errors.push(FieldError::forbidden("immutable", "field is immutable when `immutable` is set"));
        }
        for field in ["data", "binaryData"] {
            if new[field] != old[field] {
                errors.push(FieldError::forbidden(field, "field is immutable when `immutable` is set"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(new: Value, old: Option<Value>, expect: &[&str]) {
        let mut errors = FieldErrors::default();
        validate(&new, old.as_ref(), &mut errors);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn keys_sizes_and_immutability_are_validated() {
        check(json!({"data": {"kubelet": "x"}, "binaryData": {"b": "AA=="}}), None, &[]);
        check(
            json!({"data": {"a": "x"}, "binaryData": {"a": "AA=="}}),
            None,
            &["data[a]: Invalid value: \"a\": duplicate of key present in binaryData"],
        );
        check(json!({"data": {"a": "x".repeat(TOTAL_BYTES)}}), None, &[]);
        check(
            json!({"data": {"a": "x".repeat(TOTAL_BYTES + 1)}}),
            None,
            &["[]: Too long: may not be more than 1048576 bytes"],
        );
        let list = |immutable: bool, node: &str| {
            json!({"metadata": {"namespace": "kube-system", "name": "kedge-denied"},
            "immutable": immutable, "data": {node: ""}})
        };
        let refused = "immutable: Forbidden: the list of revoked credentials must stay changeable";
        check(list(true, "node.a"), None, &[refused]);
        check(list(true, "node.a"), Some(list(false, "node.a")), &[refused]);
        // stored by an older hub
        check(list(true, "node.a"), Some(list(true, "node.b")), &[]);
        check(list(false, "node.a"), Some(list(true, "node.a")), &[]);
        let typo = |map: Value| json!({"metadata": {"namespace": "kube-system", "name": "kedge-denied"}, "data": map});
        let refused = "data[edge-1]: Invalid value: \"edge-1\": denies nothing, expected node.NAME with the name of a node, user.NAME, certificate.SHA256 or node-sha256.SHA256";
        check(typo(json!({"edge-1": ""})), None, &[refused]);
        check(typo(json!({"edge-1": "", "node.a": ""})), Some(typo(json!({"edge-1": ""}))), &[]);
        assert_eq!(warnings(&typo(json!({"edge-1": "", "node.a": ""})), None).len(), 1);
        let mut owned = list(false, "node.a");
        owned["metadata"]["ownerReferences"] = json!([{"name": "x"}]);
        let refused = "metadata.ownerReferences: Forbidden: the list of revoked credentials must not be deleted with another object";
        check(owned, Some(list(false, "node.a")), &[refused]);
        let old = json!({"immutable": true, "data": {"a": "1"}});
        check(old.clone(), Some(old.clone()), &[]);
        check(
            json!({"immutable": true, "data": {"a": "2"}}),
            Some(old.clone()),
            &["data: Forbidden: field is immutable when `immutable` is set"],
        );
        check(
            json!({"data": {"a": "1"}}),
            Some(old),
            &["immutable: Forbidden: field is immutable when `immutable` is set"],
        );
    }
}
