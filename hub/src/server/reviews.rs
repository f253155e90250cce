//! Reviews of access: one request of the caller (`kubectl auth can-i`) or of another user, all permissions
//! (`--list`), the caller's identity (`kubectl auth whoami`), and a token. Nothing is stored.

use http::Response;
use serde_json::{Value, json};

use super::context::RequestContext;
use super::request::{self, Form, header};
use super::respond::{self, Body};
use super::route::Route;
use super::view::View;
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
        Route::SubjectReview => {
            ("authorization.k8s.io", "subjectaccessreviews", "authorization/v1/SubjectAccessReview")
        }
        Route::LocalSubjectReview(_) => {
            ("authorization.k8s.io", "localsubjectaccessreviews", "authorization/v1/LocalSubjectAccessReview")
        }
        Route::TokenReview => ("authentication.k8s.io", "tokenreviews", "authentication/v1/TokenReview"),
        _ => ("authentication.k8s.io", "selfsubjectreviews", "authentication/v1/SelfSubjectReview"),
    }
}

pub(super) fn authorize(context: &RequestContext<'_>, route: &Route) -> Result<(), ApiError> {
    let (group, resource, _) = place(route);
    let namespace = if let Route::LocalSubjectReview(namespace) = route { namespace } else { "" };
    let attributes = Attributes { verb: "create", group, resource, namespace, ..Attributes::default() };
    context.authorize(&attributes)
}

pub(super) fn answer(
    context: &RequestContext<'_>,
    route: &Route,
    body: &[u8],
) -> Result<Response<Body>, ApiError> {
    // a review has no table, and is only answered as a whole
    if request::wanted_form(&context.parts.headers, false)? != Form::Whole {
        return Err(ApiError::not_acceptable());
    }
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
    // these three need no decision; the access reviews below share one
    if *route == Route::SelfReview {
        let review = json!({
            "kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"creationTimestamp": crate::fresh::now_text()},
            "status": {"userInfo": user_info(identity)},
        });
        return Ok(review);
    }
    if *route == Route::RulesReview {
        let namespace = text(value, &["spec", "namespace"]);
        if namespace.is_empty() {
            return Err(ApiError::bad_request("no namespace on request"));
        }
        let review = json!({
            "kind": "SelfSubjectRulesReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {}, "spec": {},
            "status": identity::rules(identity, namespace, &*context.server.hub),
        });
        return Ok(review);
    }
    if *route == Route::TokenReview {
        let spec = value["spec"].clone();
        let review = json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"creationTimestamp": null}, "status": super::tokens::review(context, &spec), "spec": spec});
        return Ok(review);
    }
    let spec = value["spec"].clone();
    let kind = match route {
        Route::SubjectReview => "SubjectAccessReview",
        Route::LocalSubjectReview(namespace) => {
            check_local(namespace, value)?;
            "LocalSubjectAccessReview"
        }
        _ => "SelfSubjectAccessReview",
    };
    let decision = match route {
        Route::AccessReview => decide(context, kind, Some(identity), &spec)?,
        _ => decide(context, kind, Some(&subject(kind, &spec)?), &spec)?,
    };
    let status = match decision {
        Ok(reason) if reason.is_empty() => json!({"allowed": true}),
        Ok(reason) => json!({"allowed": true, "reason": reason}),
        Err(denied) if denied.reason.is_empty() => json!({"allowed": false}),
        Err(denied) => json!({"allowed": false, "reason": denied.reason}),
    };
    let review = json!({
        "kind": kind, "apiVersion": "authorization.k8s.io/v1", "metadata": {},
        "spec": spec, "status": status,
    });
    Ok(review)
}

pub(super) fn user_info(identity: &Identity) -> Value {
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

/// A review in a namespace asks about that namespace.
fn check_local(namespace: &str, review: &Value) -> Result<(), ApiError> {
    let named = text(review, &["metadata", "namespace"]);
    if !named.is_empty() && named != namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let found = text(review, &["spec", "resourceAttributes", "namespace"]);
    if found != namespace {
        return Err(ApiError::bad_request(format!(
            "spec.resourceAttributes.namespace must match namespace: {namespace}"
        )));
    }
    Ok(())
}

/// The user that a review asks about.
fn subject(kind: &str, spec: &Value) -> Result<Identity, ApiError> {
    let list = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (user, groups) = (text(spec, &["user"]), list(&spec["groups"]));
    if user.is_empty() && groups.is_empty() {
        return Err(ApiError::unprocessable(format!(
            "{kind}.authorization.k8s.io \"\" is invalid: spec.user: Invalid value: \"\": at least one of user or group must be specified"
        )));
    }
    let facts = spec["extra"].as_object().into_iter().flatten();
    Ok(Identity {
        user: user.to_owned(),
        groups,
        uid: text(spec, &["uid"]).to_owned(),
        facts: facts.map(|(key, values)| (key.clone(), list(values))).collect(),
        ..Identity::default()
    })
}

/// The reason why a request would be allowed, if it would be.
fn decide(
    context: &RequestContext<'_>,
    kind: &str,
    identity: Option<&Identity>,
    spec: &Value,
) -> Result<Result<String, identity::Denied>, ApiError> {
    let charge = |work| context.charge(work);
    let view = &View { hub: &context.server.hub, charge: &charge };
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
            Ok(allowed(identity, &attributes, view))
        }
        (None, Some(path)) => {
            let attributes = Attributes {
                verb: text(path, &["verb"]),
                path: text(path, &["path"]),
                ..Attributes::default()
            };
            Ok(allowed(identity, &attributes, view))
        }
        _ => Err(ApiError::unprocessable(format!(
            "{kind}.authorization.k8s.io \"\" is invalid: spec.resourceAttributes: Invalid value: exactly one of nonResourceAttributes or resourceAttributes must be specified"
        ))),
    }
}

fn allowed(
    identity: Option<&Identity>,
    attributes: &Attributes<'_>,
    view: &View<'_>,
) -> Result<String, identity::Denied> {
    identity::authorize(identity, attributes, view)?;
    Ok(identity.map(|identity| identity::reason(identity, attributes, view)).unwrap_or_default())
}
