//! Reading JSON values by a path of fields, and the time as the API writes it.

use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The text at a path of fields, empty if absent or of another type.
pub fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or("")
}

/// The value at a path of fields.
pub fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, field| value.get(field))
}

/// The time as `metadata.creationTimestamp` writes it: RFC 3339 in whole seconds.
pub fn rfc3339(time: OffsetDateTime) -> String {
    let seconds = time.replace_nanosecond(0).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    seconds.format(&Rfc3339).unwrap_or_default()
}

/// The condition of this type in a status.
pub fn condition<'a>(status: &'a Value, condition_type: &str) -> Option<&'a Value> {
    status["conditions"].as_array()?.iter().find(|condition| condition["type"] == condition_type)
}
