//! Upstream's error answers: every refusal of the API is an [`ApiError`], and becomes a `Status` object.
//!
//! Texts and reasons are upstream's, because kubectl and controllers match on them. The code tells whose
//! fault it is; an internal cause (a full disk) is logged where it happened and shown to the client in one
//! sentence.

use std::fmt;

use kedge_api::{excerpt, excerpt_of};
use serde_json::{Value, json};

use crate::field_error::{FieldError, FieldErrors, SHOWN_CHARS};
use crate::kinds::Kind;

/// A refused request.
#[derive(Debug, Clone)]
pub struct ApiError {
    /// HTTP status.
    pub code: u16,
    /// Upstream's machine-readable reason, for example `NotFound`.
    pub reason: &'static str,
    /// For people; kubectl prints it.
    pub message: String,
    /// `details` of the Status object, absent when null.
    pub details: Value,
    /// Seconds after which to try again, for 429, 503 and 504.
    pub retry_after_secs: Option<u32>,
    /// `metadata.continue` of the Status object.
    pub list_continue: Option<String>,
}

impl fmt::Display for ApiError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

impl ApiError {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> ApiError {
        let (details, retry_after_secs, list_continue) = (Value::Null, None, None);
        ApiError { code, reason, message: message.into(), details, retry_after_secs, list_continue }
    }

    fn about(mut self, kind: &Kind, name: &str) -> ApiError {
        let mut details = json!({"name": name, "kind": kind.plural});
        if !kind.group.is_empty() {
            details["group"] = kind.group.into();
        }
        self.details = details;
        self
    }

    /// Replaces the usual delay after which the client may try again.
    #[must_use]
    pub fn retry_after(mut self, secs: u32) -> ApiError {
        self.retry_after_secs = Some(secs);
        if self.details.is_null() {
            self.details = json!({});
        }
        self.details["retryAfterSeconds"] = secs.into();
        self
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(400, "BadRequest", message)
    }

    /// 400: a body that the kind's type cannot hold, in upstream's words.
    pub fn untyped(kind: &Kind, (namespace, name): (&str, &str), why: &str) -> ApiError {
        let Kind { group, version, kind, .. } = kind;
        ApiError::bad_request(format!(
            "failed to create typed patch object ({namespace}/{name}; {group}/{version}, Kind={kind}): {why}"
        ))
    }

    /// 401.
    pub fn unauthorized() -> ApiError {
        ApiError::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403 with a whole message.
    pub fn forbidden(message: impl Into<String>) -> ApiError {
        ApiError::new(403, "Forbidden", message)
    }

    /// 403 about an object: `namespaces "default" is forbidden: ...`.
    pub fn forbidden_object(kind: &Kind, name: &str, why: &str) -> ApiError {
        let message = format!("{} {name:?} is forbidden: {why}", kind.resource_name());
        ApiError::new(403, "Forbidden", message).about(kind, name)
    }

    /// 404 of an object.
    pub fn not_found(kind: &Kind, name: &str) -> ApiError {
        ApiError::new(404, "NotFound", format!("{} {name:?} not found", kind.resource_name()))
            .about(kind, name)
    }

    /// 404 of a path.
    pub fn path_not_found() -> ApiError {
        ApiError::not_served("the server could not find the requested resource")
    }

    /// A 404 with a reason. It has no details, like the 404 of any other path: kubectl recognises an unserved
    /// path by their absence.
    pub fn not_served(why: &str) -> ApiError {
        let mut error = ApiError::new(404, "NotFound", why);
        error.details = json!({});
        error
    }

    /// 405.
    pub fn method_not_allowed() -> ApiError {
        let message = "the server does not allow this method on the requested resource";
        let mut error = ApiError::new(405, "MethodNotAllowed", message);
        error.details = json!({});
        error
    }

    /// 406.
    pub fn not_acceptable() -> ApiError {
        let message = "only the following media types are accepted: application/json";
        ApiError::new(406, "NotAcceptable", message)
    }

    /// 415; `accepted` are the media types that would do.
    pub fn unsupported_media_type(accepted: &[&str]) -> ApiError {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        ApiError::new(415, "UnsupportedMediaType", message)
    }

    /// 409: the name is taken.
    pub fn already_exists(kind: &Kind, name: &str, being_deleted: bool) -> ApiError {
        let prefix = if being_deleted { "object is being deleted: " } else { "" };
        let message = format!("{prefix}{} {name:?} already exists", kind.resource_name());
        ApiError::new(409, "AlreadyExists", message).about(kind, name)
    }

    /// 409: the object was changed in the meantime.
    pub fn conflict(kind: &Kind, name: &str) -> ApiError {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        ApiError::conflict_because(kind, name, why)
    }

    /// 409 for another reason.
    pub fn conflict_because(kind: &Kind, name: &str, why: &str) -> ApiError {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", kind.resource_name());
        ApiError::new(409, "Conflict", message).about(kind, name)
    }

    /// 409 of an apply: each cause names a field and its manager.
    pub fn apply_conflict(message: String, causes: Vec<Value>) -> ApiError {
        let mut error = ApiError::new(409, "Conflict", message);
        error.details = json!({"causes": causes});
        error
    }

    /// 410: the client must list again.
    pub fn expired(message: impl Into<String>) -> ApiError {
        ApiError::new(410, "Expired", message)
    }

    /// 410 of a watch that starts before the oldest remembered change.
    pub fn too_old_version(asked: u64, oldest: u64) -> ApiError {
        ApiError::expired(format!("too old resource version: {asked} ({oldest})"))
    }

    /// 500: upstream's answer when the kubelet cannot be reached, which is always the case here.
    pub fn node_out_of_reach(node: &str, why: &str) -> ApiError {
        ApiError::new(500, "", format!("error dialing backend: node {node:?} cannot be asked: {why}"))
    }

    /// 504: the hub called the node, and the node did not connect within `secs`.
    pub fn node_did_not_dial(node: &str, secs: u64) -> ApiError {
        let message = format!(
            "error dialing backend: node {node:?} was asked to open a connection, and did not within {secs} s"
        );
        ApiError::new(504, "Timeout", message)
    }

    /// 504 for a client that disconnected before the node answered, so nobody reads it.
    pub fn caller_left(node: &str) -> ApiError {
        let message = format!("error dialing backend: the client left before node {node:?} answered");
        ApiError::new(504, "Timeout", message)
    }

    /// 500: the node connected, but its answer cannot be used.
    pub fn node_failed(node: &str, why: &str) -> ApiError {
        ApiError::new(500, "", format!("error dialing backend: node {node:?}: {why}"))
    }

    /// 503: a program in a pod gives no answer that could be passed on, in upstream's words.
    pub fn program_failed(why: &str) -> ApiError {
        ApiError::new(503, "ServiceUnavailable", format!("error trying to reach service: {why}"))
    }

    /// An error of the kubelet, passed on as upstream does: with the kubelet's text and status.
    pub fn of_kubelet(status: u16, text: String) -> ApiError {
        let reason = match status {
            400 => "BadRequest",
            403 => "Forbidden",
            404 => "NotFound",
            405 => "MethodNotAllowed",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "",
        };
        let text = text.trim_end();
        let text = if text.is_empty() { "the node gave no reason" } else { text };
        ApiError::new(status, reason, text.to_owned())
    }

    /// 404: no call with this id is waiting for the node that takes it.
    pub fn call_not_found(id: &str) -> ApiError {
        ApiError::new(404, "NotFound", format!("no call {:?} waits for this node", excerpt(id)))
    }

    /// 504: the requested version is in the future.
    pub fn too_large_version(asked: u64, current: u64) -> ApiError {
        let message = format!("Too large resource version: {asked}, current: {current}");
        let mut error = ApiError::new(504, "Timeout", message).retry_after(1);
        error.details["causes"] =
            json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]);
        error
    }

    /// 413.
    pub fn too_large(message: impl Into<String>) -> ApiError {
        ApiError::new(413, "RequestEntityTooLarge", message)
    }

    /// 422: the object breaks the rules of its kind.
    pub fn invalid(kind: &Kind, name: &str, errors: &[FieldError]) -> ApiError {
        let mut all = FieldErrors::default();
        all.extend(errors.iter().cloned());
        ApiError::invalid_fields(kind, name, &all)
    }

    /// The same with the faults that a validation found.
    pub fn invalid_fields(kind: &Kind, name: &str, errors: &FieldErrors) -> ApiError {
        let mut texts = errors.iter().map(ToString::to_string).collect::<Vec<_>>();
        if errors.more() > 0 {
            texts.push(format!("and {} more", errors.more()));
        }
        let all = if let [one] = texts.as_slice() { one.clone() } else { format!("[{}]", texts.join(", ")) };
        let qualified = if kind.group.is_empty() {
            kind.kind.to_owned()
        } else {
            format!("{}.{}", kind.kind, kind.group)
        };
        // whole, as far as names go
        let name = excerpt_of(name, SHOWN_CHARS);
        let mut error = ApiError::new(422, "Invalid", format!("{qualified} {name:?} is invalid: {all}"))
            .about(kind, &name);
        error.details["kind"] = kind.kind.into();
        error.details["causes"] = errors.iter().map(FieldError::cause).collect();
        error
    }

    /// 422 of the options of a write with this verb, for example `dryRun`.
    pub fn invalid_options(verb: &str, error: &FieldError) -> ApiError {
        let kind = match verb {
            "create" => "CreateOptions",
            "update" => "UpdateOptions",
            "patch" => "PatchOptions",
            "list" => "ListOptions",
            _ => "DeleteOptions",
        };
        let mut refused =
            ApiError::new(422, "Invalid", format!("{kind}.meta.k8s.io \"\" is invalid: {error}"));
        refused.details = json!({"group": "meta.k8s.io", "kind": kind, "causes": [error.cause()]});
        refused
    }

    /// 422 of a patch whose result cannot be an object; upstream names neither kind nor object here.
    pub fn invalid_patch(shown: impl Into<Value>, why: &str) -> ApiError {
        let error = FieldError::invalid("patch", shown, why);
        let mut refused = ApiError::new(422, "Invalid", format!(" \"\" is invalid: {error}"));
        refused.details = json!({"causes": [error.cause()]});
        refused
    }

    /// 422 without an object, for example a patch that cannot be applied.
    pub fn unprocessable(message: impl Into<String>) -> ApiError {
        ApiError::new(422, "Invalid", message)
    }

    /// 429.
    pub fn too_many_requests(message: impl Into<String>) -> ApiError {
        ApiError::new(429, "TooManyRequests", message).retry_after(1)
    }

    /// 500.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(500, "InternalError", message)
    }

    /// 503: nothing was changed, try again.
    pub fn unavailable(message: impl Into<String>) -> ApiError {
        ApiError::new(503, "ServiceUnavailable", message).retry_after(5)
    }

    /// 504: took too long.
    pub fn timeout(message: impl Into<String>) -> ApiError {
        ApiError::new(504, "Timeout", message).retry_after(1)
    }

    /// An error of this HTTP status, for answers that other parts decided on (authorization).
    pub fn from_status(code: u16, message: String) -> ApiError {
        match code {
            400 => ApiError::bad_request(message),
            401 => ApiError::new(401, "Unauthorized", message),
            403 => ApiError::new(403, "Forbidden", message),
            _ => ApiError::new(code, "InternalError", message),
        }
    }

    /// The `Status` object.
    pub fn to_value(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        if let Some(token) = &self.list_continue {
            status["metadata"]["continue"] = token.as_str().into();
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;

    #[test]
    fn messages_are_upstreams() {
        let check = |error: ApiError, code: u16, message: &str| {
            assert_eq!((error.code, error.message.as_str()), (code, message));
            assert_eq!(error.to_value()["kind"], "Status");
        };
        check(ApiError::not_found(&kinds::NODE, "x"), 404, "nodes \"x\" not found");
        check(ApiError::not_found(&kinds::LEASE, "x"), 404, "leases.coordination.k8s.io \"x\" not found");
        check(ApiError::already_exists(&kinds::NODE, "x", false), 409, "nodes \"x\" already exists");
        check(ApiError::too_old_version(3, 9), 410, "too old resource version: 3 (9)");
        let errors =
            [FieldError::required("spec.a", "must be set"), FieldError::invalid("b", 1, "too small")];
        check(
            ApiError::invalid(&kinds::LEASE, "x", &errors),
            422,
            "Lease.coordination.k8s.io \"x\" is invalid: [spec.a: Required value: must be set, b: Invalid value: 1: too small]",
        );
        let long = "x".repeat(253);
        check(
            ApiError::invalid(&kinds::NODE, &long, &errors[..1]),
            422,
            &format!("Node {long:?} is invalid: spec.a: Required value: must be set"),
        );
        check(
            ApiError::invalid(&kinds::NODE, "x", &errors[..1]),
            422,
            "Node \"x\" is invalid: spec.a: Required value: must be set",
        );
    }
}
