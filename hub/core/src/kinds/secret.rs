//! Secret: like a ConfigMap, with bytes only and a type that requires keys.
//!
//! `stringData` is write-only and never stored, as upstream. Secrets are stored unencrypted: anybody who can
//! read the data directory can read them, so its files have the mode 0600.

use serde_json::Value;

use super::kind::{Kind, Selectable};
use super::table::{Column, age, count};
use super::{names, schema};
use crate::decode;
use crate::field_error::{FieldError, FieldErrors};
use crate::identity::bootstrap_token;
use crate::value::{at, text};

/// All values of one Secret together; upstream's limit.
const TOTAL_BYTES: usize = 1024 * 1024;
/// The default type of a Secret.
const OPAQUE: &str = "Opaque";

/// core/v1 Secret.
pub static SECRET: Kind = Kind {
    kind: "Secret",
    plural: "secrets",
    singular: "secret",
    type_name: "core/v1/Secret",
    selectable: &[Selectable { label: "type", value: |secret| text(secret, &["type"]).to_owned() }],
    columns: &[Column::NAME, Column::text("Type"), Column::integer("Data"), Column::AGE],
    cells,
    prepare,
    validate,
    ..Kind::USUAL
};

fn cells(secret: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    let entries = count(&secret["data"]);
    vec![
        text(secret, &["metadata", "name"]).into(),
        text(secret, &["type"]).into(),
        entries.into(),
        age(secret, now),
    ]
}

fn prepare(new: &mut Value, old: Option<&Value>) {
    if let Some(strings) = new.as_object_mut().and_then(|fields| fields.remove("stringData")) {
        for (key, value) in strings.as_object().into_iter().flatten() {
            let encoded = schema::base64_encode(value.as_str().unwrap_or("").as_bytes());
            new["data"][key] = encoded.into();
        }
    }
    if text(new, &["type"]).is_empty() {
        let kept = old.map_or(OPAQUE, |old| text(old, &["type"])).to_owned();
        new["type"] = kept.into();
    }
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
    let mut total = 0;
    for (key, value) in new["data"].as_object().into_iter().flatten() {
        if let Some(complaint) = names::config_key_complaint(key) {
            errors.push(FieldError::invalid(format!("data[{key}]"), key.as_str(), &complaint));
        }
        total += value.as_str().and_then(schema::base64_decode).map_or(0, |bytes| bytes.len());
    }
    if total > TOTAL_BYTES {
        errors.push(FieldError::too_long("data", TOTAL_BYTES));
    }
    validate_type(new, old, errors);
    let Some(old) = old else { return };
    if new["type"] != old["type"] {
        errors.push(FieldError::invalid("type", new["type"].clone(), "field is immutable"));
    }
    if old["immutable"] == true {
        let explained = "field is immutable when `immutable` is set";
        if new["immutable"] != true {
            errors.push(FieldError::forbidden("immutable", explained));
        }
        if new["data"] != old["data"] {
            errors.push(FieldError::forbidden("data", explained));
        }
    }
}

/// Upstream's rules for the types it knows; any other type is free.
fn validate_type(new: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
    let has = |key: &str| at(new, &["data", key]).is_some();
    let require = |key: &str, errors: &mut FieldErrors| {
        if !has(key) {
            errors.push(FieldError::required(format!("data[{key}]"), ""));
        }
    };
    match text(new, &["type"]) {
        "kubernetes.io/service-account-token" => {
            let key = "kubernetes.io/service-account.name";
            if text(new, &["metadata", "annotations", key]).is_empty() {
                errors.push(FieldError::required(format!("metadata.annotations[{key}]"), ""));
            }
        }
        "kubernetes.io/dockercfg" => require_json(new, ".dockercfg", errors),
        "kubernetes.io/dockerconfigjson" => require_json(new, ".dockerconfigjson", errors),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            require("username", errors);
            require("password", errors);
        }
        "kubernetes.io/ssh-auth" if text(new, &["data", "ssh-privatekey"]).is_empty() => {
            errors.push(FieldError::required("data[ssh-privatekey]", ""));
        }
        "kubernetes.io/tls" => {
            require("tls.crt", errors);
            require("tls.key", errors);
        }
        bootstrap_token::TYPE => bootstrap_token::validate(new, old, errors),
        _ => {}
    }
}

fn require_json(new: &Value, key: &str, errors: &mut FieldErrors) {
    let path = format!("data[{key}]");
    let Some(value) = at(new, &["data", key]).and_then(Value::as_str) else {
        return errors.push(FieldError::required(path, ""));
    };
    let read = schema::base64_decode(value).and_then(|bytes| decode::value(&bytes));
    if !matches!(read, Some(Value::Object(_))) {
        errors.push(FieldError::invalid(path, "<secret contents redacted>", "expected a JSON object"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(new: Value, old: Option<Value>, expect: &[&str]) {
        let mut new = new;
        prepare(&mut new, old.as_ref());
        let mut errors = FieldErrors::default();
        validate(&new, old.as_ref(), &mut errors);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn types_ask_for_their_keys() {
        check(json!({"data": {"a": "eA=="}}), None, &[]);
        check(json!({"type": "example.com/own"}), None, &[]);
        check(
            json!({"type": "kubernetes.io/tls", "data": {"tls.crt": ""}}),
            None,
            &["data[tls.key]: Required value"],
        );
        check(json!({"type": "kubernetes.io/ssh-auth"}), None, &["data[ssh-privatekey]: Required value"]);
        check(
            json!({"type": "kubernetes.io/basic-auth"}),
            None,
            &["data[username]: Required value", "data[password]: Required value"],
        );
        check(
            json!({"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "{}"}}),
            None,
            &[],
        );
        check(
            json!({"type": "kubernetes.io/dockercfg", "stringData": {".dockercfg": "{"}}),
            None,
            &["data[.dockercfg]: Invalid value: \"<secret contents redacted>\": expected a JSON object"],
        );
        check(
            json!({"type": "kubernetes.io/service-account-token"}),
            None,
            &["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
        );
    }

    #[test]
    fn string_data_is_stored_as_bytes_and_type_is_immutable() {
        let mut new = json!({"data": {"a": "eA=="}, "stringData": {"b": "x", "a": "y"}});
        prepare(&mut new, None);
        assert_eq!(new, json!({"type": "Opaque", "data": {"a": "eQ==", "b": "eA=="}}));
        let old = json!({"type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}});
        check(json!({"data": {"tls.crt": "", "tls.key": ""}}), Some(old.clone()), &[]);
        check(json!({"type": "Opaque"}), Some(old), &["type: Invalid value: \"Opaque\": field is immutable"]);
        let old = json!({"type": "Opaque", "immutable": true, "data": {"a": "eA=="}});
        check(
            json!({"immutable": true, "data": {"a": "eQ=="}}),
            Some(old),
            &["data: Forbidden: field is immutable when `immutable` is set"],
        );
    }
}
