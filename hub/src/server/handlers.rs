//! One request from its head to its answer: identity, target, authorization, verb.
//!
//! Always holds: nothing is read or written before `identity::authorize` has allowed it; no object is stored
//! before `identity::admit` has allowed it in its stored form. The meaning of the verbs is in `requests`, the
//! forms of answers in `respond`.

use crate::server::request_body::RequestBody;
use crate::server::trail::{CreatedName, Trail};
use crate::server::writer::{IncludeObject, Writer};
use crate::server::{finish, writer};
use std::sync::Arc;
use std::sync::Mutex;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use serde_json::{Value, json};

use super::acts::Act;
use super::audited::{audit, audit_call, audit_impersonation, audit_usage};
use super::context::{RequestContext, attributes, denied};
use super::delete_options::delete_options;
use super::limits::{Resource, Slot, Work};
use super::request::{self, Form, Parameters, header};
use super::respond::{self, Body};
use super::route::{self, AccessVerb, Route, Target};
use super::shared::Server;
use super::{
    authorities, calls, discovery, fleet, health, node_access, node_streams, openapi, pod_proxy, renewals,
    reviews, steps, subresources, tokens, usage, watch,
};
use crate::requests;
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::apply::{self, Apply, Manager, Owner};
use kedge_hub_core::continue_token::ContinueToken;
use kedge_hub_core::controllers::{config_rollouts, daemon_sets};
use kedge_hub_core::decode::{self, FieldValidation};
use kedge_hub_core::field_error::FieldError;
use kedge_hub_core::identity::denied::{DENY_LIST_NAME, DENY_LIST_NAMESPACE};
use kedge_hub_core::identity::{self, Attributes, Identity, Standing};
use kedge_hub_core::kinds::{self, CONFIG_ROLLOUT, DAEMON_SET, Kind};
use kedge_hub_core::object::Object;
use kedge_hub_core::patch::body::Patch;
use kedge_hub_core::requests::{Answer, Part, Place, WriteOptions, check_place};
use kedge_hub_core::selector::Selection;
use kedge_hub_core::state::{Page, Query};

/// Most objects of one page; a client that asks for more gets a continue token. Upstream has no such limit,
/// but its clients handle it.
const MAX_PAGE: u64 = 10_000;

/// Answers a request. It may leave the body unread, in part or, after an early refusal, completely.
pub(super) async fn handle(
    server: &Arc<Server>,
    caller: Arc<Option<Identity>>,
    slot: &Arc<Slot>,
    trail: &Trail,
    parts: &Parts,
    body: &mut RequestBody,
) -> Response<Body> {
    let answer = answer(server, Arc::clone(&caller), slot, trail, parts, body);
    let outcome = steps::in_turn(slot, answer).await;
    let mut response = outcome.unwrap_or_else(|error| respond::error(&error));
    if body.renews() && response.status() == StatusCode::NO_CONTENT {
        renewals::add_desired(server, (*caller).as_ref(), slot, &mut response);
    }
    trail.name(&mut response, &parts.headers);
    let response =
        if request::is_read_by_eye(parts) { finish::pretty(server, slot, response).await } else { response };
    finish::finish(server, slot, parts, response)
}

async fn answer(
    server: &Arc<Server>,
    caller: Arc<Option<Identity>>,
    slot: &Arc<Slot>,
    trail: &Trail,
    parts: &Parts,
    body: &mut RequestBody,
) -> Result<Response<Body>, ApiError> {
    let parameters = Parameters::parse(parts.uri.query().unwrap_or(""))?;
    let presented = body.presented();
    let route = route::parse(parts.uri.path());
    let act = Act::of(&route, &parts.method);
    let mut context =
        RequestContext { server, caller, presented, slot, trail, identity: None, parts, parameters, act };
    match effective(server, parts, (*context.caller).as_ref()) {
        Ok(identity) => context.identity = identity,
        Err(refused) => {
            let verb = match &route {
                Route::Target(target) => verb(&parts.method, target, &context.parameters).ok(),
                Route::Bindings(_) => Some("create"),
                Route::NodeProxy { .. } | Route::PodProxy { .. } => Some(verb_of_proxy(&parts.method)),
                _ => None,
            };
            // an attempt to impersonate is recorded whatever the request was for
            audit_impersonation(&context, &route, verb, &refused);
            return Err(refused);
        }
    }
    if context.identity.as_ref().is_some_and(|identity| identity.standing != Standing::Live)
        && !matches!(route, Route::Target(_) | Route::SelfReview)
    {
        authorize_path(&context)?;
    }
    if server.hub.is_fenced() && !passes_the_fence(&route, act) {
        return Err(fenced());
    }
    match route {
        Route::Target(target) => {
            let verb = verb(&parts.method, &target, &context.parameters)?;
            let selection = selection(&context, verb, &target);
            let mut outcome = match authorize_target(&context, verb, &target, selection.as_ref().ok()) {
                Ok(()) => resource(&context, verb, &target, selection, body).await,
                Err(refused) => Err(refused),
            };
            audit(&context, verb, &target, &mut outcome);
            outcome
        }
        route @ (Route::AccessReview
        | Route::RulesReview
        | Route::SelfReview
        | Route::SubjectReview
        | Route::LocalSubjectReview(_)
        | Route::TokenReview) => {
            reviews::authorize(&context, &route)?;
            if parts.method != Method::POST {
                return Err(ApiError::method_not_allowed());
            }
            let body = body.read().await?;
            reviews::answer(&context, &route, &body)
        }
        Route::Bindings(namespace) => bindings(&context, &namespace, body).await,
        Route::NodeProxy { node, path } => {
            let target = proxied(&kinds::NODE, String::new(), node);
            let verb = verb_of_proxy(&parts.method);
            let mut outcome = match may_ask_node(&context, verb, &target, &path) {
                Ok(()) => node_streams::proxy(&context, verb, &target, &path).await,
                Err(refused) => Err(refused),
            };
            audit(&context, verb, &target, &mut outcome);
            outcome
        }
        Route::PodProxy { namespace, name, below } => {
            let target = proxied(&kinds::POD, namespace, name);
            let verb = verb_of_proxy(&parts.method);
            let mut outcome = match authorize_target(&context, verb, &target, None) {
                Ok(()) => pod_proxy::answer(&context, verb, &target, below.as_deref(), body).await,
                Err(refused) => Err(refused),
            };
            audit(&context, verb, &target, &mut outcome);
            outcome
        }
        Route::Usage(asked) => {
            let outcome = usage::answer(&context, server, &asked).await;
            audit_usage(&context, &asked, &outcome);
            outcome
        }
        Route::Call { node, id } => {
            let outcome = calls::take(&context, &node, &id);
            audit_call(&context, &node, &outcome);
            outcome
        }
        Route::NodeAccess { node, verb } => {
            let mut outcome = node_access(&context, &node, verb, body).await;
            let target = Target {
                kind: &kinds::NODE,
                namespace: String::new(),
                name: node,
                subresource: String::new(),
            };
            audit(&context, verb.name(), &target, &mut outcome);
            outcome
        }
        Route::DenialLift { key } => {
            let mut outcome = lift(&context, &key).await;
            let target = Target {
                kind: &kinds::CONFIG_MAP,
                namespace: DENY_LIST_NAMESPACE.to_owned(),
                name: DENY_LIST_NAME.to_owned(),
                subresource: String::new(),
            };
            audit(&context, "update", &target, &mut outcome);
            outcome
        }
        Route::Fleet(place) => {
            authorize_path(&context)?;
            fleet::answer(&context, &place).await
        }
        route => {
            // all other paths are authorized as such, before it shows which of them exist
            authorize_path(&context)?;
            path(&context, route)
        }
    }
}

/// The requests that a fenced hub still serves: reads, and renewals of Leases, so that no node loses contact.
fn passes_the_fence(route: &Route, act: Act) -> bool {
    match route {
        Route::Target(target) if target.kind.is_renewed() => true,
        _ => !matches!(act, Act::Change | Act::Command),
    }
}

fn fenced() -> ApiError {
    ApiError::unavailable(
        "this hub is fenced (--fenced): another one takes its place, so nothing is changed here; ask that one, or start \
         this one without the flag",
    )
    .retry_after(60)
}

/// `POST /kedge/nodes/NAME/VERB`.
async fn node_access(
    context: &RequestContext<'_>,
    node: &str,
    verb: AccessVerb,
    body: &mut RequestBody,
) -> Result<Response<Body>, ApiError> {
    authorize_path(context)?;
    if context.parts.method != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    node_access::change(context, node, verb, &body.read().await?).await
}

/// `POST /kedge/denials/KEY/lift`.
async fn lift(context: &RequestContext<'_>, key: &str) -> Result<Response<Body>, ApiError> {
    authorize_path(context)?;
    if context.parts.method != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    node_access::lift(context, key).await
}

/// `POST` to `bindings` of a namespace: the body names the pod.
async fn bindings(
    context: &RequestContext<'_>,
    namespace: &str,
    body: &mut RequestBody,
) -> Result<Response<Body>, ApiError> {
    if context.parts.method != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    let mut target = unnamed_binding(namespace);
    let mut outcome = bind(context, &mut target, body).await;
    audit(context, "create", &target, &mut outcome);
    outcome
}

/// The target of a `POST` to `bindings` before its body has been read.
fn unnamed_binding(namespace: &str) -> Target {
    Target {
        kind: &kinds::POD,
        namespace: namespace.to_owned(),
        name: String::new(),
        subresource: "binding".to_owned(),
    }
}

/// Binds the pod that the body names, and completes the target with its name.
async fn bind(
    context: &RequestContext<'_>,
    target: &mut Target,
    body: &mut RequestBody,
) -> Result<Response<Body>, ApiError> {
    let namespace = &*target.namespace;
    let attributes = Attributes { verb: "create", resource: "bindings", namespace, ..Attributes::default() };
    context.authorize(&attributes)?;
    let body = body.read().await?;
    let (name, binding) = subresources::named_binding(context, &body)?;
    target.name = name;
    subresources::bind_named(context, target, &binding).await
}

/// The identity by whose rights the request is judged: see [`identity::effective`].
fn effective(
    server: &Server,
    parts: &Parts,
    caller: Option<&Identity>,
) -> Result<Option<Identity>, ApiError> {
    let headers = parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    identity::effective(caller, headers, &*server.hub).map_err(denied)
}

fn verb(method: &Method, target: &Target, parameters: &Parameters) -> Result<&'static str, ApiError> {
    let named = !target.name.is_empty();
    let watching = || parameters.flag("watch");
    Ok(match (method.as_str(), named) {
        ("GET", true) => "get",
        ("GET", false) if watching()? => "watch",
        ("GET", false) => "list",
        ("POST", false) => "create",
        ("POST", true) if !target.subresource.is_empty() => "create",
        ("PUT", true) => "update",
        ("PATCH", true) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        _ => return Err(ApiError::method_not_allowed()),
    })
}

/// The target of such a request.
fn proxied(kind: &'static Kind, namespace: String, name: String) -> Target {
    Target { kind, namespace, name, subresource: "proxy".to_owned() }
}

/// The verb of a request that is passed on to a node or pod.
fn verb_of_proxy(method: &Method) -> &'static str {
    match *method {
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        _ => "delete",
    }
}

fn authorize_target(
    context: &RequestContext<'_>,
    verb: &str,
    target: &Target,
    selection: Option<&Selection>,
) -> Result<(), ApiError> {
    let attributes = attributes(verb, target, selection);
    context.authorize(&attributes)
}

/// Judges as a kubelet does: by the right to all that a node serves, or to this part of it.
fn may_ask_node(
    context: &RequestContext<'_>,
    verb: &str,
    target: &Target,
    path: &[String],
) -> Result<(), ApiError> {
    authorize_target(context, verb, target, None).or_else(|refused| {
        let Some(part) = node_streams::part(path) else { return Err(refused) };
        let attributes = Attributes { subresource: part, ..attributes(verb, target, None) };
        context.authorize(&attributes).map_err(|_| refused)
    })
}

fn authorize_path(context: &RequestContext<'_>) -> Result<(), ApiError> {
    let method = context.parts.method.as_str().to_ascii_lowercase();
    let attributes = Attributes { verb: &method, path: context.parts.uri.path(), ..Attributes::default() };
    context.authorize(&attributes)
}

fn path(context: &RequestContext<'_>, route: Route) -> Result<Response<Body>, ApiError> {
    match &route {
        Route::Unknown => return Err(ApiError::path_not_found()),
        Route::Unserved(why) => return Err(ApiError::not_served(why)),
        _ => {}
    }
    if !matches!(context.parts.method, Method::GET | Method::HEAD) {
        return Err(ApiError::method_not_allowed());
    }
    let accept = header(&context.parts.headers, "accept");
    match route {
        Route::Index => Ok(discovery::index()),
        Route::CoreVersions => Ok(discovery::core(accept)),
        Route::Groups => Ok(discovery::groups(accept)),
        Route::Group(group) => Ok(discovery::group(&group)),
        Route::Resources(group, version) => Ok(discovery::resources(&group, &version)),
        Route::OpenApiIndex => Ok(openapi::index()),
        Route::OpenApi(group, version) => openapi::document(&group, &version),
        Route::OpenApiV2 => Ok(openapi::version_2(accept)),
        Route::Version => Ok(health::version()),
        Route::Health(check) => health::health(context, &check),
        Route::Metrics => Ok(health::metrics(context.server)),
        Route::Nodes => Ok(node_access::list(context)),
        Route::Authorities => Ok(authorities::answer(context)),
        Route::Denials => Ok(node_access::denials(context)),
        Route::Rollout { namespace, name } => {
            let (hub, now) = (&context.server.hub, time::OffsetDateTime::now_utc());
            let found = daemon_sets::view(&**hub, hub.rollout_defaults(), (&namespace, &name), now);
            let found = found.ok_or_else(|| ApiError::not_found(&DAEMON_SET, &name))?;
            Ok(respond::json(200, &found))
        }
        Route::ConfigRollout { name } => {
            let found = config_rollouts::view(&*context.server.hub, &name, time::OffsetDateTime::now_utc());
            let found = found.ok_or_else(|| ApiError::not_found(&CONFIG_ROLLOUT, &name))?;
            Ok(respond::json(200, &found))
        }
        Route::OpenIdConfiguration => tokens::configuration(context),
        Route::OpenIdKeys => tokens::keys(context),
        // `answer` handles these itself, and never passes them to this function
        Route::Target(_)
        | Route::AccessReview
        | Route::RulesReview
        | Route::SelfReview
        | Route::SubjectReview
        | Route::LocalSubjectReview(_)
        | Route::TokenReview
        | Route::Bindings(_)
        | Route::NodeAccess { .. }
        | Route::DenialLift { .. }
        | Route::NodeProxy { .. }
        | Route::PodProxy { .. }
        | Route::Fleet(_)
        | Route::Usage(_)
        | Route::Call { .. }
        | Route::Unserved(_)
        | Route::Unknown => Err(ApiError::path_not_found()),
    }
}

async fn resource(
    context: &RequestContext<'_>,
    verb: &str,
    target: &Target,
    selection: Result<Selection, ApiError>,
    body: &mut RequestBody,
) -> Result<Response<Body>, ApiError> {
    let kind = target.kind;
    let part = match &*target.subresource {
        "" => Part::Main,
        "status" if kind.status => Part::Status,
        name => match kind.subresources().iter().find(|known| known.name == name) {
            Some(known) if !known.verbs.contains(&verb) => return Err(ApiError::method_not_allowed()),
            Some(known) if known.name == "approval" => Part::Approval,
            Some(known) if known.name == "finalize" => Part::Finalize,
            Some(known) if matches!(known.name, "log" | "attach" | "exec" | "portforward") => {
                return node_streams::answer(context, verb, target, known).await;
            }
            Some(known) => {
                let body = body.read().await?;
                return subresources::create(context, target, known, &body).await;
            }
            None => {
                let why = kind.unserved(name);
                return Err(why.map_or_else(ApiError::path_not_found, ApiError::not_served));
            }
        },
    };
    let known = part == Part::Main || matches!(verb, "get" | "update" | "patch");
    let scoped = !kind.namespaced || !target.namespace.is_empty() || matches!(verb, "list" | "watch");
    if !kind.allows(verb) || !known || !scoped {
        // a missing object is 404 even if the kind cannot be deleted: a client that cleans up after a failed
        // creation continues only after that answer
        if verb == "delete" && part == Part::Main && !exists(context, target) {
            return Err(ApiError::not_found(kind, &target.name));
        }
        return Err(ApiError::method_not_allowed());
    }
    let writes = !matches!(verb, "get" | "list" | "watch");
    let form = request::wanted_form(&context.parts.headers, writes)?;
    let include = IncludeObject::parse(context.parameters.text("includeObject"))?;
    let writer = Writer { kind, form, include };
    match verb {
        "get" => get(context, target, writer),
        "list" => list(context, target, &selection?, writer),
        "watch" => watch_collection(context, target, selection?, form),
        _ => {
            let body = body.read().await?;
            if part == Part::Status
                && let Some(node) = context.author()
                && let Some(refused) = context.presented.refusal_of_status(node, &body)
            {
                return Err(refused);
            }
            if verb == "deletecollection" {
                return delete_collection(context, target, &selection?, writer, &body).await;
            }
            if let Some(old) = context.server.hub.get(kind.stored(), &target.namespace, &target.name) {
                context.charge(Work::Parsed(old.json.len()));
            }
            write(context, verb, target, part, writer, &body).await
        }
    }
}

fn exists(context: &RequestContext<'_>, target: &Target) -> bool {
    context.server.hub.get(target.kind.stored(), &target.namespace, &target.name).is_some()
}

fn get(context: &RequestContext<'_>, target: &Target, writer: Writer) -> Result<Response<Body>, ApiError> {
    let memory = context.server.hub.memory();
    let kind = target.kind.stored();
    check_not_in_future(context, memory.revision(kind))?;
    match memory.get(kind, &target.namespace, &target.name) {
        Some(object) => {
            if writer.form != Form::Whole {
                context.charge(Work::Parsed(object.json.len()));
            }
            Ok(writer.answer(200, &object))
        }
        None => Err(ApiError::not_found(target.kind, &target.name)),
    }
}

fn check_not_in_future(context: &RequestContext<'_>, current: u64) -> Result<Option<u64>, ApiError> {
    let version = context.parameters.number("resourceVersion")?;
    match version {
        Some(version) if version > current => Err(ApiError::too_large_version(version, current)),
        version => Ok(version),
    }
}

/// The selectors of a request for a collection, by which it is both authorized and answered.
fn selection(context: &RequestContext<'_>, verb: &str, target: &Target) -> Result<Selection, ApiError> {
    if !matches!(verb, "list" | "watch" | "deletecollection") {
        return Ok(Selection::default());
    }
    let text = |name| context.parameters.text(name);
    Selection::parse(target.kind, &target.namespace, text("labelSelector"), text("fieldSelector"))
}

fn watch_collection(
    context: &RequestContext<'_>,
    target: &Target,
    selection: Selection,
    form: Form,
) -> Result<Response<Body>, ApiError> {
    let taken = context.slot.take(Resource::Watches, 1)?;
    let memory = context.server.hub.memory();
    if let (Some(_), Ok(Some(version))) = (context.author(), context.parameters.number("resourceVersion")) {
        context.server.hub.meet_version(target.kind.stored(), version);
    }
    let standing = context.standing(&attributes("watch", target, Some(&selection)));
    let started =
        watch::start(memory, target.kind, selection, &context.parameters, form, context.slot.clone());
    let mut stream = match started {
        // as upstream: clients that resume a watch look for this error in an event; if the request itself
        // failed with it, they would repeat it for ever
        Err(error) if error.reason == "Expired" => {
            let event = json!({"type": "ERROR", "object": error.to_value()});
            return Ok(respond::bytes(200, "application/json", Bytes::from(format!("{event}\n"))));
        }
        started => started?.counted(taken),
    };
    if let Some(standing) = standing {
        stream = stream.while_standing(standing);
    }
    // Leases have a version space of their own, and answers to renewals name no version of it
    if let Some(node) = context.author().filter(|_| !target.kind.stored().is_renewed()) {
        stream.follow(context.slot.own_watches(), || memory.desired(node));
        if target.kind.kind == kinds::NODE.kind {
            stream.tell_of_calls(context.slot.own_watches());
        }
    }
    let mut response = respond::bytes(200, "application/json", Bytes::new());
    *response.body_mut() = Body::Watch(Box::new(stream));
    Ok(response)
}

fn list(
    context: &RequestContext<'_>,
    target: &Target,
    selection: &Selection,
    writer: Writer,
) -> Result<Response<Body>, ApiError> {
    let (page, made) = page(context, target.kind, selection)?;
    let mut meta = json!({"resourceVersion": page.revision.to_string()});
    if let Some(next) = &page.next {
        let (revision, after, remaining) = (Some(page.revision), next.clone(), page.remaining);
        meta["continue"] = ContinueToken { revision, after, remaining, made }.encode().into();
        if let Some(remaining) = page.remaining {
            meta["remainingItemCount"] = remaining.into();
        }
    }
    Ok(writer.list(page, meta))
}

/// The state that a list asks for: the latest, an exact one, or a page of one; and the time at which its
/// first page was read.
fn page(
    context: &RequestContext<'_>,
    kind: &'static Kind,
    selection: &Selection,
) -> Result<(Page, i64), ApiError> {
    let now = time::OffsetDateTime::now_utc().unix_timestamp();
    let parameters = &context.parameters;
    let memory = context.server.hub.memory();
    let invalid = |error: FieldError| ApiError::invalid_options("list", &error);
    let forbidden = |field: &str, why: &str| invalid(FieldError::forbidden(field, why));
    // as upstream: 0 and negative numbers mean no limit
    let limit =
        parameters.signed("limit")?.and_then(|limit| u64::try_from(limit).ok()).filter(|limit| *limit > 0);
    let limit = limit.map(|limit| usize::try_from(limit.min(MAX_PAGE)).unwrap_or(usize::MAX));
    let matching = parameters.text("resourceVersionMatch");
    let version = parameters.number("resourceVersion")?;
    if parameters.has("sendInitialEvents") {
        return Err(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    if !matching.is_empty() {
        if version.is_none() {
            return Err(forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
        if parameters.has("continue") {
            return Err(forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden when continue is provided",
            ));
        }
        if !matches!(matching, "Exact" | "NotOlderThan") {
            let allowed = ["Exact", "NotOlderThan", ""];
            return Err(invalid(FieldError::unsupported("resourceVersionMatch", matching, &allowed)));
        }
        if matching == "Exact" && version == Some(0) {
            return Err(forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ));
        }
    }
    if !parameters.text("continue").is_empty() {
        if version.is_some_and(|version| version != 0) {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let token = ContinueToken::decode(parameters.text("continue"), now)?;
        let ContinueToken { revision, remaining, .. } = token;
        let query = Query { revision, after: Some(&token.after), limit, remaining };
        // a list that continues in the latest state is consistent from that page on
        let made = revision.map_or(now, |_| token.made);
        let page = memory.list(kind.stored(), selection, &query);
        return page.map(|page| (page, made)).map_err(|_| token.expired());
    }
    let version = check_not_in_future(context, memory.revision(kind.stored()))?;
    let revision = version.filter(|_| matching == "Exact");
    let query = Query { revision, limit, ..Query::default() };
    let page = memory.list(kind.stored(), selection, &query);
    page.map(|page| (page, now))
        .map_err(|_| ApiError::expired("The resourceVersion for the provided list is too old."))
}

async fn write(
    context: &RequestContext<'_>,
    verb: &str,
    target: &Target,
    part: Part,
    writer: Writer,
    body: &Bytes,
) -> Result<Response<Body>, ApiError> {
    let attributes = attributes(verb, target, None);
    let reports = context.author().is_some() && part == Part::Status && target.kind.kind == kinds::NODE.kind;
    let dry_run = context.parameters.dry_run(verb)?;
    let admit = move |old: Option<&Value>, new: &Value| {
        if target.kind.kind == kinds::LEASE.kind && !dry_run {
            context.trail.leases(old, new);
        }
        admitted(context, &attributes, old, new)?;
        if reports {
            meet_versions(context, new);
        }
        Ok(())
    };
    let asked = move |old: Option<&Value>, wanted: &Value| judge(context, verb, target, part, old, wanted);
    let manager = manager(context, verb, target)?;
    let owner = match context.identity.as_ref() {
        // see `apply`: reports of nodes record no manager
        Some(identity) if identity.node().is_some() && !identity.is_admin() => Owner::Nobody,
        _ => Owner::Updates(&manager),
    };
    let limited = context.identity.as_ref().is_none_or(|identity| !identity.is_admin());
    if dry_run && verb != "delete" {
        context.trail.dry_run();
    }
    let author = context.author();
    let options = WriteOptions {
        dry_run,
        admit: &admit,
        asked: &asked,
        owner,
        limited,
        author,
        ..WriteOptions::internal()
    };
    match verb {
        "delete" => delete(context, target, writer, body, options).await,
        _ => change(context, verb, target, part, writer, body, &options).await,
    }
}

/// Notes the versions of configurations that a node reports: they may be from an earlier hub whose data
/// directory was lost.
fn meet_versions(context: &RequestContext<'_>, node: &Value) {
    for which in ["assigned", "active", "lastKnownGood"] {
        let version = kinds::text(node, &["status", "config", which, "configMap", "resourceVersion"]);
        if let Ok(version) = version.parse() {
            context.server.hub.meet_version(&kinds::CONFIG_MAP, version);
        }
    }
}

fn admitted(
    context: &RequestContext<'_>,
    attributes: &Attributes<'_>,
    old: Option<&Value>,
    new: &Value,
) -> Result<(), ApiError> {
    context.admit(attributes, old, new)
}

/// Judges the whole object that a request describes: see [`identity::admit_requested`], and the rules of the
/// type that it is shown as.
fn judge(
    context: &RequestContext<'_>,
    verb: &str,
    target: &Target,
    part: Part,
    old: Option<&Value>,
    wanted: &Value,
) -> Result<(), ApiError> {
    if let Some(old) = old.filter(|_| part == Part::Status) {
        let identity = context.identity.as_ref().ok_or_else(ApiError::unauthorized)?;
        identity::admit_requested(identity, &attributes(verb, target, None), old, wanted).map_err(denied)?;
    }
    target.kind.judge_view(wanted, old)
}

/// The field manager: the `fieldManager` parameter, else the client's `User-Agent`.
fn manager(context: &RequestContext<'_>, verb: &str, target: &Target) -> Result<Manager, ApiError> {
    let named = context.parameters.text("fieldManager");
    let why = match named {
        long if long.len() > apply::MAX_NAME_BYTES => {
            Some(FieldError::too_long("fieldManager", apply::MAX_NAME_BYTES))
        }
        odd if odd.chars().any(char::is_control) => {
            Some(FieldError::invalid("fieldManager", odd, "should only contain printable characters"))
        }
        _ => None,
    };
    if let Some(error) = why {
        return Err(ApiError::invalid_options(verb, &error));
    }
    let agent = header(&context.parts.headers, "user-agent").split('/').next().unwrap_or("");
    let mut name = if named.is_empty() { agent } else { named }.to_owned();
    name.truncate(name.floor_char_boundary(apply::MAX_NAME_BYTES));
    if name.is_empty() {
        // upstream's name
        "unknown".clone_into(&mut name);
    }
    Ok(Manager { name, subresource: target.subresource.clone() })
}

/// Stamps a new certificate request with its requester, refuses a subject that no approval may grant
/// (upstream's CertificateSubjectRestriction).
fn stamp_requester(
    context: &RequestContext<'_>,
    target: &Target,
    request: &mut Value,
) -> Result<(), ApiError> {
    let kind = target.kind;
    let Some(identity) = context.identity.as_ref().filter(|_| kind.kind == kinds::CERTIFICATE_REQUEST.kind)
    else {
        return Ok(());
    };
    if let Some(why) = kinds::certificate_request::forbidden_subject(request) {
        let name = kinds::text(request, &["metadata", "name"]);
        return Err(ApiError::forbidden_object(kind, name, &why));
    }
    kinds::certificate_request::stamp_requester(request, identity);
    Ok(())
}

/// Server-side apply.
async fn apply_patch(
    context: &RequestContext<'_>,
    target: &Target,
    part: Part,
    body: &Bytes,
    options: &WriteOptions<'_>,
) -> Result<(Answer, Vec<String>), ApiError> {
    let Target { kind: as_kind, namespace, name, .. } = target;
    let kind = as_kind.stored();
    if context.parameters.text("fieldManager").is_empty() {
        let missing = FieldError::required("fieldManager", "is required for apply patch");
        return Err(ApiError::invalid_options("patch", &missing));
    }
    let force = context.parameters.flag("force")?;
    let validation = FieldValidation::parse("patch", context.parameters.text("fieldValidation"))?;
    let place = (namespace.as_str(), name.as_str());
    let read = decode::applied(as_kind, place, body, validation)?;
    // a missing name is taken from the URL if the object exists, and refused later if it does not
    let given = kinds::text(&read.value, &["metadata", "name"]);
    if !given.is_empty() {
        check_place("name", given, name)?;
    }
    let applied = Apply::new(kind, as_kind.to_stored(read.value), manager(context, "patch", target)?, force)?;
    let may_create = |value: &mut Value| {
        let attributes = Attributes { name: "", ..attributes("create", target, None) };
        context.authorize(&attributes)?;
        stamp_requester(context, target, value)
    };
    let answer = requests::apply(
        &context.server.hub,
        &Place { kind, namespace, name },
        part,
        &applied,
        options,
        &may_create,
    )
    .await?;
    Ok((answer, read.warnings))
}

async fn change(
    context: &RequestContext<'_>,
    verb: &str,
    target: &Target,
    part: Part,
    writer: Writer,
    body: &Bytes,
    options: &WriteOptions<'_>,
) -> Result<Response<Body>, ApiError> {
    let Target { kind: as_kind, namespace, name, .. } = target;
    let kind = as_kind.stored();
    let hub = &context.server.hub;
    let validation = FieldValidation::parse(verb, context.parameters.text("fieldValidation"))?;
    let content_type = header(&context.parts.headers, "content-type");
    let place = Place { kind, namespace, name };
    let (answer, mut warnings) = match verb {
        "create" => {
            let mut read = decode::object(as_kind, content_type, body, validation)?;
            stamp_requester(context, target, &mut read.value)?;
            let value = as_kind.to_stored(read.value);
            (requests::create(hub, kind, namespace, value, options).await?, read.warnings)
        }
        "update" => {
            let read = decode::object(as_kind, content_type, body, validation)?;
            let value = as_kind.to_stored(read.value);
            (requests::update(hub, &place, part, value, options).await?, read.warnings)
        }
        _ if content_type.split(';').next().unwrap_or("").trim() == decode::APPLY => {
            apply_patch(context, target, part, body, options).await?
        }
        _ => {
            if context.parameters.has("force") {
                let given = FieldError::forbidden("force", "may not be specified for non-apply patch");
                return Err(ApiError::invalid_options("patch", &given));
            }
            let patch = Patch::read(as_kind, content_type, body)?;
            // `compute` runs again after a conflict: the complaints of its last run count
            let found = Mutex::new(Vec::new());
            let compute = |_: &Object, old: Value| {
                let (value, complaints) = patch.apply(as_kind.shown(old), validation)?;
                let value = as_kind.to_stored(value);
                if let Ok(mut found) = found.lock() {
                    *found = complaints;
                }
                Ok(value)
            };
            let answer = requests::edit(hub, &place, part, options, compute).await?;
            (answer, found.into_inner().unwrap_or_default())
        }
    };
    warnings.extend(answer.warnings.iter().cloned());
    answer.violation.iter().for_each(|violation| context.trail.violates(violation));
    let mut response = written(&answer, writer);
    respond::warn(&mut response, &warnings);
    Ok(response)
}

fn written(answer: &Answer, writer: Writer) -> Response<Body> {
    let code = if answer.created { 201 } else { 200 };
    let mut response = match (writer.form, &answer.object) {
        (Form::Nothing, _) => respond::empty(if answer.created { 201 } else { 204 }),
        (_, Some(object)) => writer.answer(code, object),
        (_, None) => respond::bytes(code, &writer.media(), writer::text_of(&writer.value(answer.value()))),
    };
    if let Some(object) = &answer.object {
        response.extensions_mut().insert(CreatedName(object.name.clone()));
    }
    response
}

async fn delete(
    context: &RequestContext<'_>,
    target: &Target,
    writer: Writer,
    body: &Bytes,
    options: WriteOptions<'_>,
) -> Result<Response<Body>, ApiError> {
    let (wanted, dry_run) = delete_options(context, body)?;
    let options = WriteOptions { dry_run: dry_run || options.dry_run, ..options };
    if options.dry_run {
        context.trail.dry_run();
    }
    let Target { kind, namespace, name, .. } = target;
    let place = Place { kind: kind.stored(), namespace, name };
    let answer = requests::delete(&context.server.hub, &place, &wanted, &options).await?;
    let warned = |mut response| {
        respond::warn(&mut response, &answer.warnings);
        Ok(response)
    };
    if !answer.deleted || kind.shows_deleted || writer.form == Form::Nothing {
        return warned(written(&answer, writer));
    }
    let mut details = json!({"name": name, "kind": kind.plural, "uid": answer.value()["metadata"]["uid"]});
    if !kind.group.is_empty() {
        details["group"] = kind.group.into();
    }
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
    warned(respond::json(200, &status))
}

async fn delete_collection(
    context: &RequestContext<'_>,
    target: &Target,
    selection: &Selection,
    writer: Writer,
    body: &Bytes,
) -> Result<Response<Body>, ApiError> {
    let attributes = attributes("deletecollection", target, None);
    let admit = |old: Option<&Value>, new: &Value| admitted(context, &attributes, old, new);
    let (wanted, dry_run) = delete_options(context, body)?;
    let dry_run = dry_run || context.parameters.dry_run("deletecollection")?;
    let author = context.author();
    let options = WriteOptions { dry_run, admit: &admit, author, ..WriteOptions::internal() };
    let hub = &context.server.hub;
    let (mut page, _) = page(context, target.kind, selection)?;
    let kind = target.kind.stored();
    context.trail.acts_on(page.objects.iter().map(|object| &*object.name));
    if dry_run {
        context.trail.dry_run();
    }
    requests::delete_all(hub, kind, &page.objects, &wanted, &options).await?;
    page.revision = hub.revision(kind);
    let meta = json!({"resourceVersion": page.revision.to_string()});
    Ok(if writer.form == Form::Nothing { respond::empty(204) } else { writer.list(page, meta) })
}
