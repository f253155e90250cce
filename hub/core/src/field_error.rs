//! One wrong field of an object, in upstream's words.

use std::fmt;

use kedge_api::excerpt_of;
use serde_json::{Value, json};

/// The fault of one field of an object; see `ApiError::invalid`.
#[derive(Debug, Clone)]
pub struct FieldError {
    reason: &'static str,
    field: String,
    text: String,
}

/// Characters of a wrong value that a message repeats.
const SHOWN_CHARS: usize = 256;

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{:?}", excerpt_of(text, SHOWN_CHARS)),
        other => excerpt_of(&other.to_string(), SHOWN_CHARS),
    }
}

impl FieldError {
    /// The entry of a Status object's `details.causes`.
    pub fn cause(&self) -> Value {
        json!({"reason": self.reason, "message": self.text, "field": self.field})
    }

    /// The field must be given.
    pub fn required(field: impl Into<String>, detail: &str) -> FieldError {
        let text =
            if detail.is_empty() { "Required value".to_owned() } else { format!("Required value: {detail}") };
        FieldError { reason: "FieldValueRequired", field: field.into(), text }
    }

    /// The value breaks a rule.
    pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: &str) -> FieldError {
        let text = format!("Invalid value: {}: {detail}", shown(&value.into()));
        FieldError { reason: "FieldValueInvalid", field: field.into(), text }
    }

    /// The field must not be given.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> FieldError {
        FieldError {
            reason: "FieldValueForbidden",
            field: field.into(),
            text: format!("Forbidden: {detail}"),
        }
    }

    /// The value is not one of the allowed ones.
    pub fn unsupported(field: impl Into<String>, value: impl Into<Value>, supported: &[&str]) -> FieldError {
        let supported = supported.iter().map(|value| format!("{value:?}")).collect::<Vec<_>>().join(", ");
        let text = format!("Unsupported value: {}: supported values: {supported}", shown(&value.into()));
        FieldError { reason: "FieldValueNotSupported", field: field.into(), text }
    }

    /// The value is a duplicate in a list that is a set.
    pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> FieldError {
        let text = format!("Duplicate value: {}", shown(&value.into()));
        FieldError { reason: "FieldValueDuplicate", field: field.into(), text }
    }

    /// The value is a duplicate of another one in this respect.
    pub fn duplicate_because(field: impl Into<String>, value: impl Into<Value>, detail: &str) -> FieldError {
        let mut error = FieldError::duplicate(field, value);
        error.text = format!("{}: {detail}", error.text);
        error
    }

    /// The list has more than `limit` items.
    pub fn too_many(field: impl Into<String>, found: usize, limit: usize) -> FieldError {
        let text = format!("Too many: {found}: must have at most {limit} items");
        FieldError { reason: "FieldValueTooMany", field: field.into(), text }
    }

    /// The value names something that does not exist.
    pub fn not_found(field: impl Into<String>, value: impl Into<Value>) -> FieldError {
        let text = format!("Not found: {}", shown(&value.into()));
        FieldError { reason: "FieldValueNotFound", field: field.into(), text }
    }

    /// The value has more than `limit` bytes.
    pub fn too_long(field: impl Into<String>, limit: usize) -> FieldError {
        let text = format!("Too long: may not be more than {limit} bytes");
        FieldError { reason: "FieldValueTooLong", field: field.into(), text }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.field, self.text)
    }
}
