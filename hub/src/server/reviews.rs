//! Reviews of the caller's own access: one request (`kubectl auth can-i`), all permissions (`--list`), and its identity (`kubectl auth
//! whoami`). Nothing is stored.

use http::Response;
use serde_json::{Value, json};

use super::context::{RequestContext, denied};
use super::request::header;
use super::respond::{self, Body};
use super::route::Route;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::decode::{self, Decoded, FieldValidation};
use kedge_hub_core::identity::{self, Attributes, Identity};
use kedge_hub_core::kinds::{schema, text};

fn place(route: &Route) -> (&'static str, &'static str, &'static str) {
    match route {
        Route::AccessReview => {
            ("authorization.k8s.io", "selfsubjectaccessreviews", "authorization/v1/SelfSubjectAccessReview")
        }
        Route::RulesReview => {
            ("authorization.k8s.io", "selfsubjectrulesreviews", "authorization/v1/SelfSubjectRulesReview")
        }
        _ => ("authentication.k8s.io", "selfsubjectreviews", "authentication/v1/SelfSubjectReview"),
    }
}

pub(super) fn authorize(context: &RequestContext<'_>, route: &Route) -> Result<(), ApiError> {
    let (group, resource, _) = place(route);
    let attributes = Attributes { verb: "create", group, resource, ..Attributes::default() };
    identity::authorize(context.identity.as_ref(), &attributes, &*context.server.hub).map_err(denied)
}

pub(super) fn answer(
    context: &RequestContext<'_>,
    route: &Route,
    body: &[u8],
) -> Result<Response<Body>, ApiError> {
    let (_, _, type_name) = place(route);
    let of = schema::find(type_name).ok_or_else(ApiError::path_not_found)?;
    let validation = FieldValidation::parse("create", context.parameters.text("fieldValidation"))?;
    let content_type = header(&context.parts.headers, "content-type");
    let Decoded { value, warnings } = decode::posted(of, "v1", content_type, body, validation)?;
    let mut response = respond::json(201, &review(context, route, &value)?);
    respond::warn(&mut response, &warnings);
    Ok(response)
}

fn review(context: &RequestContext<'_>, route: &Route, value: &Value) -> Result<Value, ApiError> {
    let Some(identity) = &context.identity else { return Err(ApiError::unauthorized()) };
    if *route == Route::SelfReview {
        let review = json!({
            "kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"creationTimestamp": crate::fresh::now_text()},
            "status": {"userInfo": user_info(identity)},
        });
        return Ok(review);
    }
    if *route == Route::RulesReview {
        if text(value, &["spec", "namespace"]).is_empty() {
            return Err(ApiError::bad_request("no namespace on request"));
        }
        let review = json!({
            "kind": "SelfSubjectRulesReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {}, "spec": {},
            "status": identity::rules(identity),
        });
        return Ok(review);
    }
    let spec = value["spec"].clone();
    let decision = decide(context, &spec)?;
    let status = match decision {
        Ok(()) => json!({"allowed": true}),
        Err(denied) if denied.reason.is_empty() => json!({"allowed": false}),
        Err(denied) => json!({"allowed": false, "reason": denied.reason}),
    };
    let review = json!({
        "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {},
        "spec": spec, "status": status,
    });
    Ok(review)
}

fn user_info(identity: &Identity) -> Value {
    let mut info = json!({"username": identity.user, "groups": identity.groups});
    if !identity.uid.is_empty() {
        info["uid"] = identity.uid.as_str().into();
    }
    let extra = identity.extra();
    if !extra.is_empty() {
        info["extra"] = json!(extra);
    }
    info
}

fn decide(context: &RequestContext<'_>, spec: &Value) -> Result<Result<(), identity::Denied>, ApiError> {
    let view = &*context.server.hub;
    let identity = context.identity.as_ref();
    match (spec.get("resourceAttributes"), spec.get("nonResourceAttributes")) {
        (Some(resource), None) => {
            let attributes = Attributes {
                verb: text(resource, &["verb"]),
                group: text(resource, &["group"]),
                resource: text(resource, &["resource"]),
                subresource: text(resource, &["subresource"]),
                namespace: text(resource, &["namespace"]),
                name: text(resource, &["name"]),
                ..Attributes::default()
            };
            Ok(identity::authorize(identity, &attributes, view))
        }
        (None, Some(path)) => {
            let attributes = Attributes {
                verb: text(path, &["verb"]),
                path: text(path, &["path"]),
                ..Attributes::default()
            };
            Ok(identity::authorize(identity, &attributes, view))
        }
        _ => Err(ApiError::unprocessable(
            "SelfSubjectAccessReview.authorization.k8s.io \"\" is invalid: spec.resourceAttributes: Invalid value: exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )),
    }
}
