//! The body of a patch request: its format, and the patched object.
//!
//! Always holds: a patched object conforms to the schema, and keeps its type, name and namespace. Left to
//! others: the rules of the kind and everything that depends on the caller (`requests`), server-side apply
//! (`apply`).

use kedge_api::{RENEWAL_MEDIA, excerpt};
use serde_json::Value;

use super::{PatchError, json, merge, strategic};
use crate::api_error::ApiError;
use crate::apply;
use crate::decode::{self, FieldValidation};
use crate::kinds::{Kind, LEASE, schema};
use crate::requests::{Renewal, check_place};
use crate::value::text;

/// Patch formats.
const PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    decode::APPLY,
];

/// A parsed patch; it is applied again after a concurrent write.
pub struct Patch {
    kind: &'static Kind,
    of: PatchOf,
    body: Value,
    /// Errors about duplicate fields in it, in upstream's words.
    complaints: Vec<String>,
}

#[derive(Clone, Copy)]
enum PatchOf {
    Json,
    Merge,
    Strategic,
}

impl Patch {
    pub fn read(kind: &'static Kind, content_type: &str, body: &[u8]) -> Result<Patch, ApiError> {
        if content_type == RENEWAL_MEDIA && (kind.group, kind.plural) == (LEASE.group, LEASE.plural) {
            let renewal = Renewal::read(content_type, body).ok_or_else(|| {
                let found = excerpt(&String::from_utf8_lossy(body));
                ApiError::bad_request(format!(
                    "a renewal of type {RENEWAL_MEDIA} is a time such as 2006-01-02T15:04:05.000000Z, found {found:?}"
                ))
            })?;
            return Ok(Patch {
                kind,
                of: PatchOf::Merge,
                body: renewal.merge_patch(),
                complaints: Vec::new(),
            });
        }
        let of = match content_type.split(';').next().unwrap_or("").trim() {
            "application/json-patch+json" => PatchOf::Json,
            "application/merge-patch+json" => PatchOf::Merge,
            "application/strategic-merge-patch+json" => PatchOf::Strategic,
            _ => return Err(ApiError::unsupported_media_type(PATCHES)),
        };
        let (body, duplicates) = decode::json(body)?;
        let operations = body.as_array().map_or(0, Vec::len);
        if matches!(of, PatchOf::Json) && operations > json::OPERATIONS {
            return Err(ApiError::too_large(format!(
                "The allowed maximum operations in a JSON patch is {}, got {operations}",
                json::OPERATIONS
            )));
        }
        if matches!(of, PatchOf::Merge) && !body.is_object() {
            return Err(ApiError::bad_request("a merge patch is a JSON object"));
        }
        let mark = if matches!(of, PatchOf::Json) { "json patch " } else { "" };
        let complaints = duplicates.iter().map(|path| format!("{mark}duplicate field {path:?}")).collect();
        Ok(Patch { kind, of, body, complaints })
    }

    /// The patched object, and errors about unknown fields, for warnings.
    pub fn apply(
        &self,
        mut value: Value,
        validation: FieldValidation,
    ) -> Result<(Value, Vec<String>), ApiError> {
        let kind = self.kind;
        let place =
            |value: &Value| ["namespace", "name"].map(|field| text(value, &["metadata", field]).to_owned());
        let [namespace, name] = place(&value);
        match self.of {
            PatchOf::Json => json::apply(&mut value, &self.body).map_err(refused)?,
            PatchOf::Merge => merge::apply(&mut value, self.body.clone()),
            PatchOf::Strategic => {
                strategic::apply(kind.schema(), &mut value, self.body.clone()).map_err(refused)?;
            }
        }
        let given = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or("");
        if given("kind") != kind.kind || given("apiVersion") != kind.api_version() {
            return Err(ApiError::bad_request("a patch cannot change apiVersion or kind"));
        }
        apply::mark_reset(&mut value);
        let findings = schema::conform(kind.schema(), &mut value);
        let refuse = |why: &str| {
            // upstream's error shows the patched object, or the patch if that cannot be written as text
            let shown = match self.of {
                PatchOf::Strategic => self.body.to_string(),
                PatchOf::Json | PatchOf::Merge => value.to_string(),
            };
            ApiError::invalid_patch(shown, why)
        };
        if let Some(wrong) = &findings.wrong {
            return Err(refuse(wrong));
        }
        let [wanted_namespace, wanted_name] = place(&value);
        if kind.namespaced && !wanted_namespace.is_empty() {
            check_place("namespace", &wanted_namespace, &namespace)?;
        }
        check_place("name", &wanted_name, &name)?;
        let mut complaints = self.complaints.clone();
        complaints.extend(findings.complaints());
        match validation {
            FieldValidation::Strict if !complaints.is_empty() => {
                Err(refuse(&format!("strict decoding error: {}", complaints.join(", "))))
            }
            FieldValidation::Warn => Ok((value, complaints)),
            _ => Ok((value, Vec::new())),
        }
    }
}

fn refused(error: PatchError) -> ApiError {
    match error {
        PatchError::Malformed(why) => ApiError::bad_request(why),
        PatchError::DoesNotApply(why) => ApiError::unprocessable(format!(
            "the server rejected our request due to an error in our request: {why}"
        )),
    }
}
