//! The options of a delete, from its body or its query.

use bytes::Bytes;
use kedge_api::excerpt;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::decode;
use kedge_hub_core::field_error::FieldError;
use kedge_hub_core::kinds::schema;
use kedge_hub_core::requests::{DeleteOptions, Propagation};
use kedge_hub_core::value;
use serde_json::Value;

use super::context::RequestContext;
use super::request::{self, header};

/// Reads the options from the body or from query parameters.
pub(super) fn delete_options(
    context: &RequestContext<'_>,
    body: &Bytes,
) -> Result<(DeleteOptions, bool), ApiError> {
    let mut value = Value::Null;
    if !body.is_empty() {
        (value, _) = decode::parse(header(&context.parts.headers, "content-type"), body)?;
    }
    read_delete_options(context, value)
}

/// Reads the options from a value, or from the query if the value is null.
pub(super) fn read_delete_options(
    context: &RequestContext<'_>,
    mut value: Value,
) -> Result<(DeleteOptions, bool), ApiError> {
    match value::text(&value, &["kind"]) {
        "" | "DeleteOptions" => {}
        other => {
            let other = excerpt(other);
            return Err(ApiError::bad_request(format!("the body is a {other}, expected a DeleteOptions")));
        }
    }
    if !value.is_null()
        && let Some(of) = schema::find("meta/v1/DeleteOptions")
        && let Some(wrong) = schema::conform(of, &mut value).wrong
    {
        return Err(ApiError::bad_request(format!("DeleteOptions: {wrong}")));
    }
    let dry_run = match value["dryRun"].as_array().map(Vec::as_slice) {
        None | Some([]) => context.parameters.dry_run("delete")?,
        Some(all) => match all.iter().find(|value| *value != "All") {
            None => true,
            Some(other) => {
                return Err(request::unsupported_dry_run("delete", other.as_str().unwrap_or_default()));
            }
        },
    };
    let text =
        |path: &[&str]| Some(value::text(&value, path)).filter(|text| !text.is_empty()).map(str::to_owned);
    let policy = text(&["propagationPolicy"])
        .unwrap_or_else(|| context.parameters.text("propagationPolicy").to_owned());
    let orphans = match value["orphanDependents"].as_bool() {
        None if context.parameters.has("orphanDependents") => {
            Some(context.parameters.flag("orphanDependents")?)
        }
        given => given,
    };
    if !policy.is_empty() && orphans.is_some() {
        let why = "orphanDependents and deletionPropagation cannot be both set";
        let error = FieldError::invalid("propagationPolicy", &*policy, why);
        return Err(ApiError::invalid_options("delete", &error));
    }
    let propagation = match &*policy {
        // orphanDependents is the predecessor of propagationPolicy
        "" if orphans == Some(true) => Propagation::Orphan,
        "" if orphans == Some(false) => Propagation::Background,
        "" => Propagation::Unset,
        "Background" => Propagation::Background,
        "Foreground" => Propagation::Foreground,
        "Orphan" => Propagation::Orphan,
        other => {
            let error =
                FieldError::unsupported("propagationPolicy", other, &["Background", "Foreground", "Orphan"]);
            return Err(ApiError::invalid_options("delete", &error));
        }
    };
    let grace_secs = match value["gracePeriodSeconds"].as_i64() {
        Some(secs) => Some(secs),
        None => context.parameters.signed("gracePeriodSeconds")?,
    };
    let options = DeleteOptions {
        uid: text(&["preconditions", "uid"]),
        resource_version: text(&["preconditions", "resourceVersion"]),
        propagation,
        grace_secs,
    };
    Ok((options, dry_run))
}
