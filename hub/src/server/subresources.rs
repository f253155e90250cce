//! Requests posted to a pod: its binding to a node, and its eviction. Neither is stored, only its effect.

use bytes::Bytes;
use http::Response;
use serde_json::{Value, json};

use super::context::{RequestContext, attributes};
use super::delete_options::read_delete_options;
use super::request::header;
use super::respond::{self, Body};
use super::route::Target;
use crate::requests;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::decode::{self, Decoded, FieldValidation};
use kedge_hub_core::disruption;
use kedge_hub_core::identity;
use kedge_hub_core::kinds::{BINDING, POD, Subresource, schema};
use kedge_hub_core::requests::{Part, Place, WriteOptions, bind, bound_pod, check_binding, check_name};

/// `POST .../NAME/SUBRESOURCE`.
pub(super) async fn create(
    context: &RequestContext<'_>,
    target: &Target,
    subresource: &Subresource,
    body: &Bytes,
) -> Result<Response<Body>, ApiError> {
    let Decoded { value, warnings } = read(context, subresource, body)?;
    check_name(&value, &target.name)?;
    match subresource.name {
        "token" => {
            let mut response = super::tokens::issue(context, target, value)?;
            respond::warn(&mut response, &warnings);
            return Ok(response);
        }
        "binding" => bind_pod(context, target, &value).await?,
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
    let name = bound_pod(&binding.value)?.to_owned();
    Ok((name, binding))
}

/// [`create`] for a binding whose body has been read.
pub(super) async fn bind_named(
    context: &RequestContext<'_>,
    target: &Target,
    binding: &Decoded,
) -> Result<Response<Body>, ApiError> {
    bind_pod(context, target, &binding.value).await?;
    Ok(done(&binding.warnings))
}

fn read(context: &RequestContext<'_>, subresource: &Subresource, body: &Bytes) -> Result<Decoded, ApiError> {
    let (group, version, kind) = subresource.of;
    let group = if group.is_empty() { "core" } else { group.split('.').next().unwrap_or(group) };
    let of = schema::find(&format!("{group}/{version}/{kind}")).ok_or_else(ApiError::path_not_found)?;
    let validation = FieldValidation::parse("create", context.parameters.text("fieldValidation"))?;
    decode::posted(of, version, header(&context.parts.headers, "content-type"), body, validation)
}

async fn bind_pod(context: &RequestContext<'_>, target: &Target, binding: &Value) -> Result<(), ApiError> {
    check_binding(binding, &target.name)?;
    let attributes = attributes("create", target, None);
    let admit = admission(context, &attributes);
    let dry_run = context.parameters.dry_run("create")?;
    let author = context.author();
    let options = WriteOptions { dry_run, admit: &admit, author, ..WriteOptions::internal() };
    let hub = &context.server.hub;
    let bound = |current: &kedge_hub_core::Object, found: Value| {
        bind(current, found, binding, &crate::fresh::now_text())
    };
    requests::edit(hub, &place(target), Part::Binding, &options, bound).await?;
    Ok(())
}

/// Evictions in namespaces with disruption budgets take turns, so that each one counts the pods without those
/// that the others ended.
static TURNS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// An eviction is a graceful deletion with a permission of its own that disruption budgets may forbid.
async fn evict(context: &RequestContext<'_>, target: &Target, mut eviction: Value) -> Result<(), ApiError> {
    let (mut wanted, dry_run) = read_delete_options(context, eviction["deleteOptions"].take())?;
    let attributes = attributes("create", target, None);
    let admit = admission(context, &attributes);
    let dry_run = dry_run || context.parameters.dry_run("create")?;
    let author = context.author();
    let options = WriteOptions { dry_run, admit: &admit, author, ..WriteOptions::internal() };
    let hub = &context.server.hub;
    if !disruption::is_guarded(&**hub, &target.namespace) {
        return requests::delete(hub, &place(target), &wanted, &options).await.map(drop);
    }
    let _turn = TURNS.lock().await;
    let pod = hub.get(&POD, &target.namespace, &target.name);
    let pod = pod.ok_or_else(|| ApiError::not_found(&POD, &target.name))?;
    let pinned = disruption::judge(&**hub, &pod)? && wanted.resource_version.is_none();
    if pinned {
        wanted.resource_version = Some(pod.revision.to_string());
    }
    match requests::delete(hub, &place(target), &wanted, &options).await {
        Err(error) if pinned && error.reason == "Conflict" => {
            Err(disruption::changed_meanwhile(&target.name))
        }
        done => done.map(drop),
    }
}

fn place(target: &Target) -> Place<'_> {
    Place { kind: &POD, namespace: &target.namespace, name: &target.name }
}

fn admission<'a>(
    context: &'a RequestContext<'_>,
    attributes: &'a identity::Attributes<'a>,
) -> impl Fn(Option<&Value>, &Value) -> Result<(), ApiError> + Send + Sync + 'a {
    move |old, new| context.admit(attributes, old, new)
}
