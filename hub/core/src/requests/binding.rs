//! The binding of a pod to a node, posted to the pod or to `bindings`.
//!
//! Owns: the rules of a Binding, and its effect on the pod. Always holds: a pod is bound once, and only if
//! its uid is the one the binding names. Left to others: permission to bind (`identity`), making the write
//! (`edit`).

use serde_json::Value;

use crate::api_error::ApiError;
use crate::field_error::FieldError;
use crate::kinds::{POD, pod};
use crate::object::Object;
use crate::value::text;

/// Refuses an object with another name, posted to the subresource of the pod (or account) `name`.
pub fn check_name(posted: &Value, name: &str) -> Result<(), ApiError> {
    match text(posted, &["metadata", "name"]) {
        "" => Ok(()),
        named if named == name => Ok(()),
        named => Err(ApiError::bad_request(format!(
            "the name of the object ({named}) does not match the name on the URL ({name})"
        ))),
    }
}

/// The pod that a Binding posted to `bindings` names.
pub fn bound_pod(binding: &Value) -> Result<&str, ApiError> {
    match text(binding, &["metadata", "name"]) {
        "" => Err(ApiError::bad_request("name is required: the binding names its pod")),
        name => Ok(name),
    }
}

/// Validates the Binding of the pod `name`.
pub fn check_binding(binding: &Value, name: &str) -> Result<(), ApiError> {
    let sort = text(binding, &["target", "kind"]);
    let mut errors = Vec::new();
    if !matches!(sort, "" | "Node") {
        errors.push(FieldError::unsupported("target.kind", sort, &["Node", "<empty>"]));
    }
    if text(binding, &["target", "name"]).is_empty() {
        errors.push(FieldError::required("target.name", ""));
    }
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid(&POD, name, &errors)) }
}

/// Binds the pod `current`, with the content `found`, at the time `now` (RFC 3339).
pub fn bind(current: &Object, mut found: Value, binding: &Value, now: &str) -> Result<Value, ApiError> {
    let wanted = text(binding, &["metadata", "uid"]);
    if !wanted.is_empty() && wanted != &*current.uid {
        let why = format!(
            "Precondition failed: UID in precondition: {wanted}, UID in object meta: {}",
            current.uid
        );
        return Err(ApiError::conflict_because(&POD, &current.name, &why));
    }
    pod::bind(&mut found, binding, now)
        .map_err(|why| ApiError::conflict_because(&POD, &current.name, &why))?;
    Ok(found)
}
