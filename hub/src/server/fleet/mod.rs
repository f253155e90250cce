//! `/fleet`: pages for people, made of the fleet's numbers and of the objects that their reader may read.
//!
//! Owns: the rights to a page, its cache, its headers, and the objects read for it. Always holds: only
//! callers who may `get` the path *and* `list` all nodes see anything. Only callers with the same rights
//! share a page, for 2 s; at most four are made at a time. A page changes nothing, and does not wait for the
//! disk. Left to others: the content of a page (`kedge_hub_core::page`).

pub(super) mod cache;
pub(super) mod numbers;
pub(super) mod place;

use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Response, header};
use kedge_hub_core::api_error::ApiError;
use kedge_hub_core::controllers::daemon_sets;
use kedge_hub_core::identity::Attributes;
use kedge_hub_core::kinds::event::{KIND_FIELD, NAME_FIELD};
use kedge_hub_core::kinds::pod::NODE_NAME_FIELD;
use kedge_hub_core::kinds::{self, CONFIG_MAP, DAEMON_SET, EVENT, Kind, LEASE, NODE, POD};
use kedge_hub_core::object::Object;
use kedge_hub_core::page::{
    self, Fact, Frame, Listed, MOST_EVENTS, MOST_PODS, Numbers, Overview, Rollout, Sees, Shown, VERSIONS,
};
use kedge_hub_core::selector::Selection;
use kedge_hub_core::state::Query;
use kedge_hub_core::value::{at, text};
use serde_json::Value;
use time::OffsetDateTime;

use super::context::RequestContext;
use super::limits::Work;
use super::respond::{self, Body};
use super::shared::Server;
use super::{health, node_access};
use numbers::{config_rollouts_kind, rollouts};
use place::Place;

/// Age from which the last backup is called bad, in seconds: eight days, for those that are made weekly.
const OLD_BACKUP: i64 = 8 * 86_400;

/// Answers a request for a page. The path is authorized already.
pub(super) async fn answer(context: &RequestContext<'_>, place: &Place) -> Result<Response<Body>, ApiError> {
    if !matches!(context.parts.method, Method::GET | Method::HEAD) {
        return Err(ApiError::method_not_allowed());
    }
    let listed = Attributes { verb: "list", resource: NODE.plural, ..Attributes::default() };
    context.authorize(&listed)?;
    let sees = sees(context);
    authorize(context, place, sees)?;
    let uri = &context.parts.uri;
    let key = (sees, uri.path_and_query().map_or_else(String::new, ToString::to_string));
    let pages = &context.server.pages;
    let text = pages.get_or_make(key, || made(context, place, sees)).await?;
    Ok(with_headers(respond::shared(200, "text/html; charset=utf-8", text)))
}

/// Whether the caller may read the object that a page is about. Decided before a page is looked up: it is kept
/// for everybody who may list the same.
fn authorize(context: &RequestContext<'_>, place: &Place, sees: Sees) -> Result<(), ApiError> {
    let (kind, namespace, name) = match place {
        Place::Rollout { namespace, name } => (&DAEMON_SET, namespace.as_str(), name),
        Place::ConfigRollout(name) if !sees.config_rollouts => {
            (config_rollouts_kind().ok_or_else(ApiError::path_not_found)?, "", name)
        }
        _ => return Ok(()),
    };
    let (group, resource) = (kind.group, kind.plural);
    context.authorize(&Attributes { verb: "get", group, resource, namespace, name, ..Attributes::default() })
}

/// What the caller may list besides Nodes.
fn sees(context: &RequestContext<'_>) -> Sees {
    let may_list = |kind: &Kind| {
        let asked =
            Attributes { verb: "list", group: kind.group, resource: kind.plural, ..Attributes::default() };
        context.authorize(&asked).is_ok()
    };
    let certificates = Attributes { verb: "get", path: "/kedge/nodes", ..Attributes::default() };
    Sees {
        pods: may_list(&POD),
        events: may_list(&EVENT),
        daemon_sets: may_list(&DAEMON_SET),
        config_rollouts: config_rollouts_kind().is_some_and(may_list),
        config_maps: may_list(&CONFIG_MAP),
        leases: may_list(&LEASE),
        certificates: context.authorize(&certificates).is_ok(),
        certificate_requests: may_list(&kinds::CERTIFICATE_REQUEST),
    }
}

fn made(context: &RequestContext<'_>, place: &Place, sees: Sees) -> Result<Bytes, ApiError> {
    let frame = Frame {
        path: context.parts.uri.path(),
        still: context.parameters.has("still"),
        now: OffsetDateTime::now_utc(),
    };
    let text = match place {
        Place::Overview => overview(context, &frame, sees),
        Place::Nodes => nodes(context, &frame, sees),
        Place::Node(name) => node(context, &frame, sees, name),
        Place::Rollout { namespace, name } => rollout(context, &frame, sees, namespace, name),
        Place::ConfigRollout(name) => config_rollout(context, &frame, name),
    };
    text.map(Bytes::from)
}

fn overview(context: &RequestContext<'_>, frame: &Frame<'_>, sees: Sees) -> Result<String, ApiError> {
    let hub = &context.server.hub;
    let numbers = hub.memory().with_fleet(|fleet, _| Numbers::of(fleet, frame.now.unix_timestamp()));
    let read = |key: &String| {
        let (namespace, name) = key.split_once('/')?;
        Some(value(context, &*hub.get(&EVENT, namespace, name)?))
    };
    let warnings = if sees.events { numbers.warnings.iter().filter_map(read).collect() } else { Vec::new() };
    let requests = if sees.certificate_requests { node_access::waiting(hub).len() } else { 0 };
    let is_registered = |node: &str| hub.get(&NODE, "", node).is_some();
    let knocks = match sees.certificates {
        true => context.server.credentials.knocks.all(frame.now.unix_timestamp(), is_registered),
        false => Vec::new(),
    };
    let mut all = rollouts(hub, sees, |object| value(context, object));
    all.sort_by_cached_key(Rollout::rank);
    let shown = Overview {
        numbers: &numbers,
        hub: facts(context.server, frame.now),
        rollouts: all,
        warnings,
        requests,
        knocks,
        sees,
    };
    Ok(page::overview(frame, &shown))
}

/// The hub's own state.
fn facts(server: &Server, now: OffsetDateTime) -> Vec<Fact> {
    let checks = health::serving(server);
    let is_ready = checks.iter().all(|(_, fault)| fault.is_none());
    let ready = if is_ready { "yes" } else { "no" };
    let mut facts = vec![
        Fact { name: "version", value: crate::VERSION.to_owned(), is_bad: false },
        Fact { name: "ready", value: ready.to_owned(), is_bad: !is_ready },
    ];
    let faults = checks.into_iter().filter_map(|(name, fault)| Some((name, fault?)));
    facts.extend(faults.map(|(name, value)| Fact { name, value, is_bad: true }));
    if server.hub.is_fenced() {
        let value = "read-only, another hub takes its place".to_owned();
        facts.push(Fact { name: "fenced", value, is_bad: true });
    }
    let now = now.unix_timestamp();
    facts.push(match server.hub.last_backup() {
        None => Fact { name: "last backup", value: "unknown".to_owned(), is_bad: false },
        Some(None) => Fact { name: "last backup", value: "never".to_owned(), is_bad: true },
        Some(Some(at)) => {
            let is_bad = now.saturating_sub(at) > OLD_BACKUP;
            Fact { name: "last backup", value: page::ago(now, at), is_bad }
        }
    });
    facts
}

fn nodes(context: &RequestContext<'_>, frame: &Frame<'_>, sees: Sees) -> Result<String, ApiError> {
    let parameters = context.parameters.pairs();
    let now = frame.now.unix_timestamp();
    let listed = context.server.hub.memory().with_fleet(|fleet, _| Listed::of(fleet, sees, parameters, now));
    let listed = listed.map_err(|name| {
        ApiError::bad_request(format!("{name:?} is no filter of nodes, or needs a right that you lack"))
    })?;
    Ok(page::list(frame, &listed))
}

fn node(context: &RequestContext<'_>, frame: &Frame<'_>, sees: Sees, name: &str) -> Result<String, ApiError> {
    let hub = &context.server.hub;
    let missing = || ApiError::not_found(&NODE, name);
    let node = hub.get(&NODE, "", name).ok_or_else(missing)?;
    let found = hub.memory().with_fleet(|fleet, now| {
        Some((fleet.sight(name)?.clone(), fleet.day(name, now)?, fleet.end_of(name)))
    });
    let (sight, day, certificate) = found.ok_or_else(missing)?;
    let lease = if sees.leases { hub.get(&LEASE, kedge_api::NODE_LEASE_NAMESPACE, name) } else { None };
    let select = |kind, field| {
        let selection = Selection::by_field(kind, "", field, name);
        hub.memory()
            .list(kind, &selection, &Query::default())
            .map_or_else(|_| Vec::new(), |page| page.objects)
    };
    let read = |objects: &[Arc<Object>], most: usize| -> Vec<Value> {
        objects.iter().take(most).map(|object| value(context, object)).collect()
    };
    let pods = if sees.pods { select(&POD, NODE_NAME_FIELD) } else { Vec::new() };
    let mut events = if sees.events { select(&EVENT, NAME_FIELD) } else { Vec::new() };
    events.retain(|event| event.field(KIND_FIELD) == NODE.kind);
    events.sort_by_key(|event| std::cmp::Reverse(event.revision));
    // the versions that the node names, which may be those of any ConfigMap: for readers of all of them
    let node = value(context, &node);
    let maps = VERSIONS.map(|(_, which)| {
        let source = at(&node, &["status", "config", which, "configMap"]).filter(|_| sees.config_maps)?;
        let map = hub.get(&CONFIG_MAP, text(source, &["namespace"]), text(source, &["name"]))?;
        Some((source.clone(), value(context, &map)))
    });
    let payloads = maps.each_ref().map(|found| {
        let (source, map) = found.as_ref()?;
        page::payload(source, map)
    });
    Ok(page::node(
        frame,
        &Shown {
            node: &node,
            sight: &sight,
            day: &day,
            lease: lease.map(|lease| value(context, &lease)).as_ref(),
            pods: &read(&pods, MOST_PODS),
            of_pods: pods.len(),
            events: &read(&events, MOST_EVENTS),
            of_events: events.len(),
            certificate,
            payloads,
            sees,
        },
    ))
}

fn rollout(
    context: &RequestContext<'_>,
    frame: &Frame<'_>,
    sees: Sees,
    namespace: &str,
    name: &str,
) -> Result<String, ApiError> {
    let hub = &context.server.hub;
    let set = hub.get(&DAEMON_SET, namespace, name).ok_or_else(|| ApiError::not_found(&DAEMON_SET, name))?;
    let set = value(context, &set);
    // the pods of the set lead to its nodes
    let place = (namespace, name);
    let view =
        if sees.pods { daemon_sets::view(&**hub, hub.rollout_defaults(), place, frame.now) } else { None };
    Ok(page::rollout(frame, &Rollout::of_daemon_set(&set), &set, view.as_ref()))
}

fn config_rollout(context: &RequestContext<'_>, frame: &Frame<'_>, name: &str) -> Result<String, ApiError> {
    let kind = config_rollouts_kind().ok_or_else(ApiError::path_not_found)?;
    let found = context.server.hub.get(kind, "", name).ok_or_else(|| ApiError::not_found(kind, name))?;
    let found = value(context, &found);
    Ok(page::rollout(frame, &Rollout::of_config_rollout(&found), &found, None))
}

/// Parses an object, at the caller's cost.
fn value(context: &RequestContext<'_>, object: &Object) -> Value {
    context.charge(Work::Parsed(object.json.len()));
    object.value()
}

/// A browser runs nothing, fetches nothing and keeps nothing of a page.
fn with_headers(mut response: Response<Body>) -> Response<Body> {
    static POLICY: OnceLock<HeaderValue> = OnceLock::new();
    let policy = POLICY.get_or_init(|| {
        let digest = ring::digest::digest(&ring::digest::SHA256, page::STYLE.as_bytes());
        let style = STANDARD.encode(digest.as_ref());
        let policy = format!(
            "default-src 'none'; style-src 'sha256-{style}'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'"
        );
        HeaderValue::try_from(policy).expect("base64 is a valid header")
    });
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, policy.clone());
    let fixed: [(HeaderName, &'static str); 3] = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
