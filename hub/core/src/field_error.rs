//! The wrong fields of an object, in upstream's words.
//!
//! Always holds: an error's text is short however long the value and its path are, and an object has few of
//! them, however many of its fields are wrong: an answer may not be many times as large as the request.

use std::{fmt, io};

use kedge_api::excerpt_of;
use serde_json::{Value, json};

/// The fault of one field of an object; see `ApiError::invalid`.
#[derive(Debug, Clone)]
pub struct FieldError {
    reason: &'static str,
    field: String,
    text: String,
}

/// Characters of a wrong value, and of a path, that a message repeats: clients choose both.
pub(crate) const SHOWN_CHARS: usize = 256;
/// Errors in one answer; the others are counted. A body of 3 MiB has room for a hundred thousand.
pub const SHOWN_ERRORS: usize = 32;

/// The beginning of a value, in time that does not depend on the rest.
pub(crate) fn shown(value: &Value) -> String {
    if let Value::String(text) = value {
        return format!("{:?}", excerpt_of(text, SHOWN_CHARS));
    }
    let mut written = Beginning(Vec::new());
    // the writer fails on purpose after enough bytes
    let _ = serde_json::to_writer(&mut written, value);
    excerpt_of(&String::from_utf8_lossy(&written.0), SHOWN_CHARS)
}

/// Keeps enough bytes for [`SHOWN_CHARS`] characters, and one more to notice the cut.
struct Beginning(Vec<u8>);

impl io::Write for Beginning {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = (4 * SHOWN_CHARS + 4).saturating_sub(self.0.len());
        if room == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let taken = bytes.len().min(room);
        self.0.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn place(field: impl Into<String>) -> String {
    let field = field.into();
    if field.len() <= SHOWN_CHARS { field } else { excerpt_of(&field, SHOWN_CHARS) }
}

/// The faults of one object: the first [`SHOWN_ERRORS`], and the number of the others.
#[derive(Debug, Default)]
pub struct FieldErrors {
    shown: Vec<FieldError>,
    more: usize,
}

impl FieldErrors {
    pub fn push(&mut self, error: FieldError) {
        if self.shown.len() < SHOWN_ERRORS {
            self.shown.push(error);
        } else {
            self.more += 1;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.shown.is_empty()
    }

    /// The number of errors, including the counted ones.
    pub fn len(&self) -> usize {
        self.shown.len() + self.more
    }

    /// The errors that are shown.
    pub fn iter(&self) -> std::slice::Iter<'_, FieldError> {
        self.shown.iter()
    }

    /// The number of errors that are only counted.
    pub fn more(&self) -> usize {
        self.more
    }
}

impl std::ops::Index<usize> for FieldErrors {
    type Output = FieldError;

    fn index(&self, place: usize) -> &FieldError {
        &self.shown[place]
    }
}

impl Extend<FieldError> for FieldErrors {
    fn extend<I: IntoIterator<Item = FieldError>>(&mut self, errors: I) {
        errors.into_iter().for_each(|error| self.push(error));
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
        FieldError { reason: "FieldValueRequired", field: place(field), text }
    }

    /// The value breaks a rule.
    pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: &str) -> FieldError {
        let text = format!("Invalid value: {}: {detail}", shown(&value.into()));
        FieldError { reason: "FieldValueInvalid", field: place(field), text }
    }

    /// The field must not be given.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> FieldError {
        FieldError {
            reason: "FieldValueForbidden",
            field: place(field),
            text: format!("Forbidden: {detail}"),
        }
    }

    /// The value is not one of the allowed ones.
    pub fn unsupported(field: impl Into<String>, value: impl Into<Value>, supported: &[&str]) -> FieldError {
        let supported = supported.iter().map(|value| format!("{value:?}")).collect::<Vec<_>>().join(", ");
        let text = format!("Unsupported value: {}: supported values: {supported}", shown(&value.into()));
        FieldError { reason: "FieldValueNotSupported", field: place(field), text }
    }

    /// The value is a duplicate in a list that is a set.
    pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> FieldError {
        let text = format!("Duplicate value: {}", shown(&value.into()));
        FieldError { reason: "FieldValueDuplicate", field: place(field), text }
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
        FieldError { reason: "FieldValueNotFound", field: place(field), text }
    }

    /// The value has more than `limit` bytes.
    pub fn too_long(field: impl Into<String>, limit: usize) -> FieldError {
        let text = format!("Too long: may not be more than {limit} bytes");
        FieldError { reason: "FieldValueTooLong", field: place(field), text }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.field, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_and_paths_are_cut() {
        let long = "\u{10ffff}".repeat(1 << 16);
        for value in [json!(&long), json!([&long, &long]), json!({ &*long: 1 }), json!(vec![0; 1 << 16])] {
            let error = FieldError::invalid(&*long, value, "why");
            assert!(error.to_string().len() < 8 * 1024 && error.to_string().contains("..."), "{error}");
        }
        // the same number of characters in each form
        let list = json!([&long]);
        assert_eq!(shown(&list), excerpt_of(&list.to_string(), SHOWN_CHARS));
        assert_eq!(
            FieldError::invalid("a", json!([1, "b"]), "why").to_string(),
            r#"a: Invalid value: [1,"b"]: why"#
        );
    }

    #[test]
    fn many_errors_are_counted() {
        let mut errors = FieldErrors::default();
        errors.extend((0..1000).map(|number| FieldError::required(format!("a[{number}]"), "")));
        assert_eq!((errors.iter().count(), errors.more(), errors.len()), (SHOWN_ERRORS, 968, 1000));
    }
}
