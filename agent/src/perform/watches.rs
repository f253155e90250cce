//! The watches of the own Node, of the assigned ConfigMap and of pods: performs the rounds that core orders,
//! and reports their events and their end.
//!
//! Always holds: one round at a time for each object, the latest order counts and ends the round before; a
//! round contacts the server it was ordered for, or none, and all its events carry that server's number.
//! Leaves to others: which objects to watch, from where, and when the next round begins (core), the bytes of
//! a watch (`net::watch`).

use super::requests::{ApiServer, REQUEST_DEADLINE};
use crate::locks::locked;
use crate::net::client::Client;
use crate::net::error::NetError;
use crate::net::transport::Cancel;
use crate::net::watch::{self, WatchEvent, WatchFrom, WatchLimits};
use kedge_api as api;
use kedge_core::pods::{self, Shares};
use kedge_core::{Collection, Event, Listing, ObjectVersion, WatchEnd, WatchFailure, WatchOrder};
use kedge_platform::Progress;
use kedge_platform::linux::give_back_stack;
use serde_json::Value;
use std::ops::ControlFlow;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// Between two tries to read a kubeconfig, which costs nothing but a look at the disk.
const KUBECONFIG_PAUSE: Duration = Duration::from_secs(5);

/// Largest ConfigMap read: Kubernetes' own limit of 1 MiB for its data, with room for metadata and escapes.
const CONFIG_MAP_BYTES: usize = 3 * 1024 * 1024;

/// A watch that ends in good order within this time and had no events was not worth opening, which is logged.
const ENDED_AT_ONCE: Duration = Duration::from_secs(5);

/// A round to perform.
#[derive(Clone)]
pub(crate) struct Round {
    pub(crate) of: Collection,
    pub(crate) order: WatchOrder,
    /// The server it was ordered for.
    pub(crate) server: u64,
}

/// The round to perform: the latest order counts, and ends the round before.
#[derive(Default)]
pub(crate) struct LatestRound {
    state: Mutex<RoundState>,
    changed: Condvar,
}

#[derive(Default)]
struct RoundState {
    /// Ordered, and not started yet.
    next: Option<Round>,
    /// Counts the orders.
    change: u64,
    /// Ends the round under way.
    cancel: Option<Cancel>,
}

impl LatestRound {
    pub(crate) fn set(&self, round: Option<Round>) {
        let mut state = locked(&self.state);
        state.next = round;
        state.change += 1;
        if let Some(cancel) = state.cancel.take() {
            cancel.cancel();
        }
        self.changed.notify_all();
    }

    /// Waits for an order; returns it with its number.
    fn next(&self) -> (u64, Round) {
        give_back_stack();
        let mut state = locked(&self.state);
        loop {
            if let Some(round) = state.next.take() {
                return (state.change, round);
            }
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// From now on a later order ends the round by `cancel`. False if a later order has arrived already.
    fn begin(&self, change: u64, cancel: Cancel) -> bool {
        let mut state = locked(&self.state);
        let is_latest = state.change == change;
        state.cancel = is_latest.then_some(cancel);
        is_latest
    }

    /// Marks the round's end. True if no later order arrived, so that its end counts.
    fn end(&self, change: u64) -> bool {
        let mut state = locked(&self.state);
        state.cancel = None;
        state.change == change
    }

    fn is_latest(&self, change: u64) -> bool {
        locked(&self.state).change == change
    }
}

impl ApiServer {
    /// Performs rounds as they are ordered; ends with the process.
    pub(crate) fn watch(&self, name: &'static str, rounds: &LatestRound, token: &Progress) {
        let mut kept = None;
        let mut watched = None;
        loop {
            token.idle();
            let (change, round) = rounds.next();
            token.busy();
            self.faults.point(name);
            // a later order cancels for good, so a client serves until then
            let client = kept.take().unwrap_or_else(|| self.client(name, token));
            if watched.replace(round.of.clone()) != Some(round.of.clone()) {
                // another object: the outcomes of the one before are stale
                client.api().outcomes().forget(client.name());
            }
            if !rounds.begin(change, client.cancel_handle()) {
                continue;
            }
            let listener = Listener {
                server: self,
                client: &client.for_server(round.server),
                token,
                target: Target::of(&self.node_name, &round.of),
                number: round.server,
                is_wanted: &|| rounds.is_latest(change),
            };
            let end = listener.perform(&round.order);
            if rounds.end(change) {
                let (watched, number) = (round.of.watched(), round.order.round);
                // the first stream that notices another server announces it
                let server = client.api().server().max(round.server);
                self.heard(server, Event::WatchEnded { watched, round: number, end });
                kept = Some(client).filter(|_| !round.order.lists_only);
            }
        }
    }

    fn client(&self, name: &'static str, token: &Progress) -> Client {
        let mut logged = String::new();
        loop {
            match self.api() {
                Ok(api) => return api.stream(name),
                // another problem is logged again: the kubeconfig may be half corrected
                Err(why) if logged != why => {
                    logged.clone_from(&why);
                    let _ = self.events.blocking_send(Event::NoKubeconfig(why));
                }
                Err(_) => {}
            }
            token.idle_for(KUBECONFIG_PAUSE);
            std::thread::sleep(KUBECONFIG_PAUSE);
        }
    }
}

/// Selects the pods that are bound to this node.
pub(super) fn bound_to(node_name: &str) -> String {
    format!("fieldSelector=spec.nodeName%3D{}", api::percent_encoded(node_name))
}

/// The collection that is listed and watched.
struct Target<'a> {
    of: &'a Collection,
    path: String,
    params: String,
    /// Kind of its objects: items of a list lack it.
    kind: &'static str,
}

impl<'a> Target<'a> {
    fn of(node_name: &str, of: &'a Collection) -> Self {
        let named = |name: &str| format!("fieldSelector=metadata.name%3D{}", api::percent_encoded(name));
        let (path, params, kind) = match of {
            // our hub then keeps our own reports to itself: 2 kB each five minutes; other servers ignore the
            // parameter
            Collection::Node => {
                ("/api/v1/nodes".to_owned(), format!("{}&omitHeartbeats=true", named(node_name)), "Node")
            }
            Collection::ConfigMap { namespace, name } => {
                let path = format!("/api/v1/namespaces/{}/configmaps", api::percent_encoded(namespace));
                (path, named(name), "ConfigMap")
            }
            Collection::Pods => ("/api/v1/pods".to_owned(), bound_to(node_name), "Pod"),
        };
        Self { of, path, params, kind }
    }

    /// Why this is not an item of such a list. A list with a wrong item cannot show which objects do not
    /// exist.
    fn stranger(&self, item: &Value) -> Option<String> {
        if let Some(kind) = item.get("kind").filter(|kind| *kind != self.kind && *kind != api::METADATA_KIND)
        {
            let kind = api::excerpt(&kind.to_string());
            return Some(format!("an item of the list has the kind {kind}, expected {}", self.kind));
        }
        let has = |field: &str| item["metadata"][field].as_str().is_some_and(|text| !text.is_empty());
        let lacking = ["name", "uid"].into_iter().find(|field| !has(field))?;
        Some(format!("an item of the list has no metadata.{lacking}"))
    }

    fn listed(&self, mut objects: Vec<Value>) -> Event {
        objects.iter_mut().for_each(|object| self.complete(object));
        self.listing(Listing::Objects(objects))
    }

    /// A Node that is shown by its metadata alone is marked so, and passed on as such.
    fn changed(&self, mut object: Value, is_deleted: bool) -> Event {
        if *self.of != Collection::Node || object["kind"] != api::METADATA_KIND {
            self.complete(&mut object);
        }
        Event::Changed { of: self.of.clone(), object, is_deleted }
    }

    /// Adds the fields that a list leaves out, because a checkpoint is a whole object. Core checks anything
    /// but an object.
    fn complete(&self, object: &mut Value) {
        if let Some(fields) = object.as_object_mut() {
            fields.insert("apiVersion".into(), "v1".into());
            fields.insert("kind".into(), self.kind.into());
        }
    }

    fn listing(&self, listing: Listing) -> Event {
        Event::Listed { of: self.of.clone(), listing }
    }
}

/// One round under way.
struct Listener<'a> {
    server: &'a ApiServer,
    client: &'a Client,
    token: &'a Progress,
    target: Target<'a>,
    /// Number of the server it was ordered for.
    number: u64,
    /// Whether no later order has arrived.
    is_wanted: &'a dyn Fn() -> bool,
}

impl Listener<'_> {
    /// Lists, if ordered, and watches until the end.
    fn perform(&self, order: &WatchOrder) -> WatchEnd {
        let from = match &order.after {
            Some(version) => version.clone(),
            None => match self.list(order) {
                Ok((found, version)) => {
                    self.send(found);
                    version
                }
                Err(error) => return self.failed(error, None),
            },
        };
        if order.lists_only {
            self.has_come_to(order.round, from, false);
            return WatchEnd::default();
        }
        self.watch_from(order, from)
    }

    fn has_come_to(&self, round: u64, version: String, is_change: bool) {
        self.send(Event::WatchPosition { watched: self.target.of.watched(), round, version, is_change });
    }

    /// Sends events of the server that the round was ordered for, and only while the round is wanted.
    fn send(&self, event: Event) {
        if (self.is_wanted)() {
            self.server.heard(self.number, event);
        }
    }

    fn failed(&self, error: NetError, resume: Option<String>) -> WatchEnd {
        if error.is_contact() {
            self.send(Event::Contact);
        }
        let failure = match &error {
            NetError::Refused { .. } | NetError::TooLarge { .. } | NetError::Garbled { .. } => {
                WatchFailure::Answered
            }
            _ => WatchFailure::Unreachable,
        };
        let is_refused = error.status() == Some(401);
        let failure = Some((failure, with_advice(&error)));
        WatchEnd { resume, failure, is_refused, ..WatchEnd::default() }
    }

    /// The result of a list, and the version from which to watch. A held version is compared by its metadata
    /// first.
    fn list(&self, order: &WatchOrder) -> Result<(Event, String), NetError> {
        let (path, params) = (self.target.path.as_str(), self.target.params.as_str());
        if let Some(held) = &order.held {
            self.token.idle_for(REQUEST_DEADLINE);
            let listed =
                watch::list_metadata(self.client, (path, self.target.kind), params, REQUEST_DEADLINE);
            self.token.busy();
            match listed {
                Ok(listed) => match &listed.items[..] {
                    [] => return Ok((self.target.listed(Vec::new()), listed.resource_version)),
                    [item] if version_of(item).as_ref() == Some(held) => {
                        let unchanged = Listing::Unchanged(held.clone());
                        return Ok((self.target.listing(unchanged), listed.resource_version));
                    }
                    _ => {}
                },
                // a server without this form sends the other
                Err(error) if error.status() == Some(406) => {}
                Err(error) => return Err(error),
            }
        }
        self.token.idle_for(order.list_deadline);
        let what = (path, self.target.kind);
        let listed = match self.target.of {
            Collection::Pods => {
                let mut shares = Shares::default();
                let take = &mut |pod, is_too_large| match is_too_large {
                    true => pods::part_of(&pod, watch::MAX_OBJECT_BYTES),
                    false => shares.admit(pod),
                };
                watch::list_taking(self.client, what, params, order.list_deadline, take)
            }
            _ => watch::list(self.client, what, params, order.list_deadline),
        };
        self.token.busy();
        let listed = listed?;
        if let Some(why) = listed.items.iter().find_map(|item| self.target.stranger(item)) {
            return Err(NetError::Garbled { request: format!("GET {path}"), status: Some(200), why });
        }
        Ok((self.target.listed(listed.items), listed.resource_version))
    }

    fn watch_from(&self, order: &WatchOrder, from: String) -> WatchEnd {
        let round = order.round;
        let limits = WatchLimits { line_bytes: CONFIG_MAP_BYTES, ..WatchLimits::default() };
        let loaded = self.client.api().refresh();
        let mut opened = None;
        let mut brought = false;
        self.token.idle_for(limits.longest_silence());
        let position = WatchFrom::Version(from.clone());
        let (path, params) = (self.target.path.as_str(), self.target.params.as_str());
        let on_event = |happened| {
            self.token.busy();
            self.server.faults.point(self.client.name());
            if self.client.api().refresh() != loaded {
                // The kubeconfig changed, and the other streams use it already. Bookmarks bring us here every
                // minute.
                return ControlFlow::Break(());
            }
            let is_change =
                matches!(happened, WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Deleted(_));
            let is_deleted = matches!(happened, WatchEvent::Deleted(_));
            let version = match happened {
                WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
                    let version = resource_version_of(&object);
                    self.send(self.target.changed(object, is_deleted));
                    version
                }
                WatchEvent::Opened { .. } => {
                    opened = Some(Instant::now());
                    Some(from.clone())
                }
                WatchEvent::Bookmark(version) => Some(version),
                WatchEvent::Called(ids) => {
                    self.send(Event::Called(ids));
                    None
                }
                WatchEvent::Receiving => {
                    self.send(Event::WatchReceiving { watched: self.target.of.watched(), round });
                    None
                }
            };
            if let Some(version) = version {
                brought |= is_later(&version, &from);
                self.has_come_to(round, version, is_change);
            }
            self.token.idle_for(limits.longest_silence());
            ControlFlow::Continue(())
        };
        let end = match order.metadata_only {
            true => watch::watch_metadata(self.client, path, params, position, limits, on_event),
            false => watch::watch(self.client, path, params, position, limits, on_event),
        };
        self.token.busy();
        let lived = opened.map_or(Duration::ZERO, |at: Instant| at.elapsed().max(Duration::from_millis(1)));
        let end = match end {
            watch::WatchEnd::Ended { resume } if !brought && lived < ENDED_AT_ONCE => {
                let why = "the server ended the watch at once, without an event".to_owned();
                WatchEnd { resume, failure: Some((WatchFailure::Unreachable, why)), ..WatchEnd::default() }
            }
            watch::WatchEnd::Ended { resume } => WatchEnd { resume, ..WatchEnd::default() },
            watch::WatchEnd::Failed { error, resume } => self.failed(error, resume),
            // versions of one server mean nothing to another, and another server may be behind the same URL
            // now
            watch::WatchEnd::Stopped { .. } | watch::WatchEnd::Expired | watch::WatchEnd::Cancelled => {
                WatchEnd::default()
            }
        };
        WatchEnd { lived, brought, ..end }
    }
}

/// Whether this version from a watch that began after `from` is a later one. The object with which it began
/// again is not: otherwise the agent would contact a server that shows the present object, and then ends each
/// watch, every second for ever.
fn is_later(version: &str, from: &str) -> bool {
    match (version.parse::<u64>(), from.parse::<u64>()) {
        (Ok(version), Ok(from)) => version > from,
        _ => version != from,
    }
}

/// The error, and the missing right where the server lacks a rule for this node: one that allows `get` alone
/// does not suffice.
fn with_advice(error: &NetError) -> String {
    match error.status() {
        Some(403) => {
            format!("{error}; on Kubernetes a role must allow list and watch: docs/guides/kubernetes.md")
        }
        _ => error.to_string(),
    }
}

/// The version of an object.
fn version_of(object: &Value) -> Option<ObjectVersion> {
    Some((object["metadata"]["uid"].as_str()?.to_owned(), resource_version_of(object)?))
}

fn resource_version_of(object: &Value) -> Option<String> {
    object["metadata"]["resourceVersion"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn forbidden_list_names_the_rights_that_are_needed() {
        let refused = |status| NetError::Refused {
            request: "GET https://k/api/v1/configmaps".into(),
            status,
            reason: String::new(),
            message: "no".into(),
            retry_after: None,
        };
        let advice = "a role must allow list and watch: docs/guides/kubernetes.md";
        for (status, is_advised) in [(403, true), (404, false), (500, false)] {
            let found = with_advice(&refused(status));
            assert!(found.starts_with(&refused(status).to_string()), "{found}");
            assert_eq!(found.ends_with(advice), is_advised, "{found}");
        }
    }

    #[test]
    fn watch_hands_on_metadata_of_a_node_as_that() {
        let shown = |of: &Collection| {
            let object = json!({"kind": api::METADATA_KIND, "metadata": {"name": "edge-1"}});
            let Event::Changed { object, .. } = Target::of("edge-1", of).changed(object, false) else {
                panic!("a change is handed on as one");
            };
            object["kind"].clone()
        };
        assert_eq!(shown(&Collection::Node), api::METADATA_KIND);
        assert_eq!(shown(&Collection::Pods), "Pod");
        // a list has whole objects: an item that claims otherwise would be listed again for ever
        let node = Collection::Node;
        let Event::Listed { listing: Listing::Objects(objects), .. } =
            Target::of("edge-1", &node).listed(vec![json!({"kind": api::METADATA_KIND})])
        else {
            panic!("a list is handed on as one");
        };
        assert_eq!(objects[0]["kind"], "Node");
    }

    #[test]
    fn item_that_is_no_object_is_handed_on_as_it_is() {
        let of = Collection::ConfigMap { namespace: "n".into(), name: "m".into() };
        let target = Target::of("edge-1", &of);
        let Event::Listed { listing: Listing::Objects(objects), .. } =
            target.listed(vec![json!(5), json!("x"), json!([1]), Value::Null, json!({"data": {}})])
        else {
            panic!("a list is handed on as one");
        };
        let whole = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {}});
        assert_eq!(objects, [json!(5), json!("x"), json!([1]), Value::Null, whole]);
    }
}
