//! Requests posted to a pod: its binding to a node, and its eviction. Neither is stored, only its effect.

use bytes::Bytes;
use http::Response;
use serde_json::{Value, json};

use super::context::{RequestContext, attributes, denied};
use super::delete_options::read_delete_options;
use super::request::header;
use super::respond::{self, Body};
use super::route::Target;
use crate::requests;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::decode::{self, Decoded, FieldValidation};
use kedge_hub_core::field_error::FieldError;
use kedge_hub_core::identity;
use kedge_hub_core::kinds::{BINDING, POD, Subresource, pod, schema, text};
use kedge_hub_core::requests::{Part, Place, WriteOptions};

/// `POST .../NAME/SUBRESOURCE`.
pub(super) async fn create(
    context: &RequestContext<'_>,
    target: &Target,
    subresource: &Subresource,
    body: &Bytes,
) -> Result<Response<Body>, ApiError> {
    let Decoded { value, warnings } = read(context, subresource, body)?;
    let named = text(&value, &["metadata", "name"]);
    if !named.is_empty() && named != target.name {
        let message =
            format!("the name of the object ({named}) does not match the name on the URL ({})", target.name);
        return Err(ApiError::bad_request(message));
    }
    match subresource.name {
        "token" => {
            let mut response = super::tokens::issue(context, target, value)?;
            respond::warn(&mut response, &warnings);
            return Ok(response);
        }
        "binding" => bind(context, target, &value).await?,
        _ => evict(context, target, value).await?,
    }
    Ok(done(&warnings))
}

fn done(warnings: &[String]) -> Response<Body> {
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    let mut response = respond::json(201, &status);
    respond::warn(&mut response, warnings);
    response
}

/// The Binding of a `POST .../bindings`, and the name of its pod.
pub(super) fn named_binding(
    context: &RequestContext<'_>,
    body: &Bytes,
) -> Result<(String, Decoded), ApiError> {
    let binding = read(context, &BINDING, body)?;
    match text(&binding.value, &["metadata", "name"]) {
        "" => Err(ApiError::bad_request("name is required: the binding names its pod")),
        name => Ok((name.to_owned(), binding)),
    }
}

/// [`create`] for a binding whose body has been read.
pub(super) async fn bind_named(
    context: &RequestContext<'_>,
    target: &Target,
    binding: &Decoded,
) -> Result<Response<Body>, ApiError> {
    bind(context, target, &binding.value).await?;
    Ok(done(&binding.warnings))
}

fn read(context: &RequestContext<'_>, subresource: &Subresource, body: &Bytes) -> Result<Decoded, ApiError> {
    let (group, version, kind) = subresource.of;
    let group = if group.is_empty() { "core" } else { group.split('.').next().unwrap_or(group) };
    let of = schema::find(&format!("{group}/{version}/{kind}")).ok_or_else(ApiError::path_not_found)?;
    let validation = FieldValidation::parse("create", context.parameters.text("fieldValidation"))?;
    decode::posted(of, version, header(&context.parts.headers, "content-type"), body, validation)
}

async fn bind(context: &RequestContext<'_>, target: &Target, binding: &Value) -> Result<(), ApiError> {
    let sort = text(binding, &["target", "kind"]);
    let node = text(binding, &["target", "name"]);
    let mut errors = Vec::new();
    if !matches!(sort, "" | "Node") {
        errors.push(FieldError::unsupported("target.kind", sort, &["Node", "<empty>"]));
    }
    if node.is_empty() {
        errors.push(FieldError::required("target.name", ""));
    }
    if !errors.is_empty() {
        return Err(ApiError::invalid(&POD, &target.name, &errors));
    }
    let attributes = attributes("create", target, None);
    let admit = admission(context, &attributes);
    let dry_run = context.parameters.dry_run("create")?;
    let options = WriteOptions { dry_run, admit: &admit, ..WriteOptions::internal() };
    let hub = &context.server.hub;
    let wanted_uid = text(binding, &["metadata", "uid"]);
    let compute = |current: &kedge_hub_core::Object, mut found: Value| {
        if !wanted_uid.is_empty() && wanted_uid != &*current.uid {
            let why = format!(
                "Precondition failed: UID in precondition: {wanted_uid}, UID in object meta: {}",
                current.uid
            );
            return Err(ApiError::conflict_because(&POD, &target.name, &why));
        }
        pod::bind(&mut found, binding, &crate::fresh::now_text())
            .map_err(|why| ApiError::conflict_because(&POD, &target.name, &why))?;
        Ok(found)
    };
    requests::edit(hub, &place(target), Part::Binding, &options, compute).await?;
    Ok(())
}

/// There are no disruption budgets, so an eviction is a graceful deletion with a permission of its own.
async fn evict(context: &RequestContext<'_>, target: &Target, mut eviction: Value) -> Result<(), ApiError> {
    let (wanted, dry_run) = read_delete_options(context, eviction["deleteOptions"].take())?;
    let attributes = attributes("create", target, None);
    let admit = admission(context, &attributes);
    let dry_run = dry_run || context.parameters.dry_run("create")?;
    let options = WriteOptions { dry_run, admit: &admit, ..WriteOptions::internal() };
    requests::delete(&context.server.hub, &place(target), &wanted, &options).await?;
    Ok(())
}

fn place(target: &Target) -> Place<'_> {
    Place { kind: &POD, namespace: &target.namespace, name: &target.name }
}

fn admission<'a>(
    context: &'a RequestContext<'_>,
    attributes: &'a identity::Attributes<'a>,
) -> impl Fn(Option<&Value>, &Value) -> Result<(), ApiError> + Send + Sync + 'a {
    move |old, new| match &context.identity {
        Some(identity) => {
            identity::admit(identity, attributes, old, new, &*context.server.hub).map_err(denied)
        }
        None => Err(ApiError::unauthorized()),
    }
}
