//! The watches of the own Node and of the assigned ConfigMap: their content and its changes, as events.
//!
//! Always holds: the latest order counts, and ends the watch before. Leaves to others: what is watched, when it is listed, where
//! a watch goes on and how long to pause (core), the bytes of a watch (`net::watch`).

use super::lock;
use super::requests::{ApiServer, REQUEST_DEADLINE};
use crate::net::client::{Client, NetError};
use crate::net::transport::Cancel;
use crate::net::watch::{self, WatchEnd, WatchEvent, WatchFrom, WatchLimits};
use kedge_api as api;
use kedge_core::{Event, FailureReport, KUBECONFIG_LINE, ObjectVersion, WatchFailure, WatchState, Watching};
use kedge_platform::Progress;
use serde_json::Value;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Between two tries to read a kubeconfig, which costs nothing but a look at the disk.
const KUBECONFIG_PAUSE: Duration = Duration::from_secs(5);

/// Largest ConfigMap read: Kubernetes' own limit of 1 MiB for its data, with room for metadata and escapes.
const CONFIG_MAP_BYTES: usize = 3 * 1024 * 1024;

/// A ConfigMap to be watched.
#[derive(Clone)]
pub(crate) struct ConfigMapWatch {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// What of it is on disk.
    pub(crate) held: Option<ObjectVersion>,
}

/// What to watch: the latest order counts, and ends the watch before.
pub(crate) struct LatestOrder<T> {
    state: Mutex<OrderState<T>>,
    changed: Condvar,
}

struct OrderState<T> {
    which: Option<T>,
    /// Counts the changes.
    change: u64,
    /// Ends the watch under way.
    cancel: Option<Cancel>,
}

impl<T> Default for LatestOrder<T> {
    fn default() -> Self {
        let state = OrderState { which: None, change: 0, cancel: None };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<T: Clone> LatestOrder<T> {
    pub(crate) fn set(&self, which: Option<T>) {
        let mut state = lock(&self.state);
        state.which = which;
        state.change += 1;
        if let Some(cancel) = state.cancel.take() {
            cancel.cancel();
        }
        self.changed.notify_all();
    }

    /// Waits for something to watch; gives it with the change that named it.
    fn next(&self) -> (u64, T) {
        let mut state = lock(&self.state);
        loop {
            if let Some(which) = &state.which {
                return (state.change, which.clone());
            }
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Whether a later change came; if not, `cancel` is what the next one ends.
    fn superseded(&self, change: u64, cancel: Option<Cancel>) -> bool {
        let mut state = lock(&self.state);
        let superseded = state.change != change;
        if let (false, Some(cancel)) = (superseded, cancel) {
            state.cancel = Some(cancel);
        }
        superseded
    }
}

impl ApiServer {
    pub(crate) fn watch_node(&self, wanted: &LatestOrder<()>, token: &Progress, seed: u64) {
        // our hub then keeps our own reports to itself: 2 kB each five minutes; other servers ignore the parameter
        let selector = format!(
            "fieldSelector=metadata.name%3D{}&omitHeartbeats=true",
            api::percent_encoded(&self.node_name)
        );
        let mut url = None;
        loop {
            token.idle();
            let (change, ()) = wanted.next();
            token.busy();
            let client = self.client("watch-node", token);
            let mut watching = Watching::node(seed);
            while !wanted.superseded(change, Some(client.cancel_handle())) {
                client.api().refresh();
                let now = client.api().url();
                if url.as_ref().is_some_and(|url| *url != now) {
                    log::info!("the kubeconfig names another API server now: {now}");
                    self.is_hub.store(false, Ordering::Relaxed);
                    let _ = self.events.blocking_send(Event::ServerChanged);
                }
                url = Some(now);
                let target = WatchTarget { path: "/api/v1/nodes", params: &selector, config_map: None };
                let ended = || wanted.superseded(change, None);
                self.follow(&client, token, &target, &mut watching, &ended, &mut |object| {
                    self.node_event(object)
                });
            }
        }
    }

    fn node_event(&self, object: Option<Value>) -> Option<Event> {
        let Some(object) = object else { return Some(Event::NodeGone) };
        match serde_json::from_value::<api::Node>(object) {
            Ok(node) => Some(Event::NodeSeen(Box::new(node))),
            Err(error) => {
                log::warn!("Node {} cannot be read: {error}; keeping what is known", self.node_name);
                None
            }
        }
    }

    pub(crate) fn watch_config_map(&self, wanted: &LatestOrder<ConfigMapWatch>, token: &Progress, seed: u64) {
        loop {
            token.idle();
            let (change, ConfigMapWatch { namespace, name, held }) = wanted.next();
            token.busy();
            let client = self.client("watch-configmap", token);
            client.api().outcomes().forget(client.name());
            let path = format!("/api/v1/namespaces/{}/configmaps", api::percent_encoded(&namespace));
            let selector = format!("fieldSelector=metadata.name%3D{}", api::percent_encoded(&name));
            let target =
                WatchTarget { path: &path, params: &selector, config_map: Some((&namespace, &name)) };
            let mut watching = Watching::config_map(seed, held);
            while !wanted.superseded(change, Some(client.cancel_handle())) {
                let ended = || wanted.superseded(change, None);
                self.follow(&client, token, &target, &mut watching, &ended, &mut |object| {
                    let (namespace, name) = (namespace.clone(), name.clone());
                    Some(match object {
                        Some(mut object) => {
                            // items of a list lack what stands on the list; a checkpoint is a whole object
                            object["apiVersion"] = "v1".into();
                            object["kind"] = "ConfigMap".into();
                            Event::ConfigMapSeen { namespace, name, object }
                        }
                        None => Event::ConfigMapGone { namespace, name },
                    })
                });
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
                    self.send(Some(Event::NoAnswer { line: KUBECONFIG_LINE, why, is_first: true }));
                }
                Err(_) => {}
            }
            token.idle_for(KUBECONFIG_PAUSE);
            std::thread::sleep(KUBECONFIG_PAUSE);
        }
    }

    /// One round of a watch of one object: list it if that is due, watch it until it fails or `ended` says so, then pause.
    /// `Watching` decides what is due; once `ended` is true, nothing is sent any more.
    fn follow(
        &self,
        client: &Client,
        token: &Progress,
        target: &WatchTarget,
        watching: &mut Watching,
        ended: &dyn Fn() -> bool,
        event: &mut dyn FnMut(Option<Value>) -> Option<Event>,
    ) {
        token.busy();
        self.faults.point(client.name());
        watching.begin(client.api().refresh());
        if *watching.state() == WatchState::Listing {
            let listed = self.list(client, token, target, watching);
            if ended() {
                return;
            }
            match listed {
                Ok((found, version)) => {
                    let held = found.version(target);
                    self.send(found.event(target, event));
                    watching.listed(version, held);
                }
                Err(error) => {
                    let report = watching.list_failed(failure(&error));
                    self.report(client, target, &error, report);
                }
            }
        }
        if let WatchState::Open { version } = watching.state() {
            let version = version.clone();
            let mut opened = false;
            let (error, resume) =
                self.watch_from(client, token, target, version, &mut opened, &mut |object| {
                    watching.object_changed(object.as_ref().and_then(|object| version_of(target, object)));
                    self.send(event(object));
                });
            if ended() {
                return;
            }
            let report = watching.watch_ended(opened, resume, error.as_ref().map(failure));
            if let Some(error) = error {
                self.report(client, target, &error, report);
            }
        }
        if let WatchState::Waiting { pause, .. } = watching.state() {
            sleep(*pause, token, ended);
        }
    }

    fn send(&self, event: Option<Event>) {
        if let Some(event) = event {
            let _ = self.events.blocking_send(event);
        }
    }

    fn report(&self, client: &Client, target: &WatchTarget, error: &NetError, report: FailureReport) {
        if error.is_contact() {
            self.send(Some(Event::Contact));
        }
        if let Some((namespace, name)) = target.config_map.filter(|_| report.is_unreadable) {
            let (namespace, name, why) = (namespace.to_owned(), name.to_owned(), error.to_string());
            self.send(Some(Event::ConfigMapUnreadable { namespace, name, why }));
        }
        match failure(error) {
            WatchFailure::Unreachable => self.send(Some(Event::NoAnswer {
                line: client.name(),
                why: error.to_string(),
                is_first: report.is_logged,
            })),
            WatchFailure::Answered if report.is_logged => {
                log::warn!("{}: {error}; retrying", client.name());
            }
            WatchFailure::Answered => {}
        }
    }

    /// The object, and the version from which a watch goes on. A held version is compared by its metadata first.
    fn list(
        &self,
        client: &Client,
        token: &Progress,
        target: &WatchTarget,
        watching: &Watching,
    ) -> Result<(ListResult, String), NetError> {
        if let Some(held) = watching.held() {
            token.idle_for(REQUEST_DEADLINE);
            let listed = watch::list_metadata(client, target.path, target.params, REQUEST_DEADLINE);
            token.busy();
            match listed {
                Ok(listed) => match listed.items.first() {
                    None => return Ok((ListResult::Object(None), listed.resource_version)),
                    Some(item) if version_of(target, item).as_ref() == Some(held) => {
                        return Ok((ListResult::Held(held.clone()), listed.resource_version));
                    }
                    Some(_) => {}
                },
                // a server without this form gives the other
                Err(error) if error.status() == Some(406) => {}
                Err(error) => return Err(error),
            }
        }
        let deadline = watching.list_deadline();
        token.idle_for(deadline);
        let listed = watch::list(client, target.path, target.params, deadline);
        token.busy();
        let listed = listed?;
        Ok((ListResult::Object(listed.items.into_iter().next()), listed.resource_version))
    }

    fn watch_from(
        &self,
        client: &Client,
        token: &Progress,
        target: &WatchTarget,
        resource_version: String,
        opened: &mut bool,
        seen: &mut dyn FnMut(Option<Value>),
    ) -> (Option<NetError>, Option<String>) {
        let limits = WatchLimits { line_bytes: CONFIG_MAP_BYTES, ..WatchLimits::default() };
        let loaded = client.api().refresh();
        token.idle_for(limits.longest_silence());
        let end = watch::watch(
            client,
            target.path,
            target.params,
            WatchFrom::Version(resource_version),
            limits,
            |happened| {
                token.busy();
                self.faults.point(client.name());
                if client.api().refresh() != loaded {
                    // The kubeconfig changed, and the other streams use it already: events of this connection may be those
                    // of another server. Bookmarks bring us here every minute.
                    return ControlFlow::Break(());
                }
                match happened {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => seen(Some(object)),
                    WatchEvent::Deleted(_) => seen(None),
                    WatchEvent::Opened { .. } | WatchEvent::Bookmark(_) => {
                        *opened = true;
                        let _ = self.events.blocking_send(Event::Contact);
                    }
                }
                token.idle_for(limits.longest_silence());
                ControlFlow::Continue(())
            },
        );
        token.busy();
        match end {
            WatchEnd::Failed { error, resume } => (Some(error), resume),
            WatchEnd::Stopped { .. } | WatchEnd::Expired | WatchEnd::Cancelled => (None, None),
        }
    }
}

/// What is listed and watched; namespace and name if it is a ConfigMap.
struct WatchTarget<'a> {
    path: &'a str,
    params: &'a str,
    config_map: Option<(&'a str, &'a str)>,
}

/// What a list found.
enum ListResult {
    /// The version that is held already.
    Held(ObjectVersion),
    /// The object, if there is one.
    Object(Option<Value>),
}

impl ListResult {
    fn version(&self, target: &WatchTarget) -> Option<ObjectVersion> {
        match self {
            Self::Held(version) => Some(version.clone()),
            Self::Object(object) => object.as_ref().and_then(|object| version_of(target, object)),
        }
    }

    fn event(
        self,
        target: &WatchTarget,
        event: &mut dyn FnMut(Option<Value>) -> Option<Event>,
    ) -> Option<Event> {
        match self {
            Self::Object(object) => event(object),
            Self::Held((uid, resource_version)) => target.config_map.map(|(namespace, name)| {
                let (namespace, name) = (namespace.to_owned(), name.to_owned());
                Event::ConfigMapUnchanged { namespace, name, uid, resource_version }
            }),
        }
    }
}

/// Which version of a ConfigMap this is; the Node is small, and read whole always.
fn version_of(target: &WatchTarget, object: &Value) -> Option<ObjectVersion> {
    target.config_map?;
    let part = |name: &str| object["metadata"][name].as_str().map(str::to_owned);
    Some((part("uid")?, part("resourceVersion")?))
}

fn failure(error: &NetError) -> WatchFailure {
    match error {
        NetError::Refused { .. } | NetError::Garbled { .. } => WatchFailure::Answered,
        _ => WatchFailure::Unreachable,
    }
}

/// Sleeps in short pieces, so that a new order ends it.
fn sleep(mut left: Duration, token: &Progress, ended: &dyn Fn() -> bool) {
    while !left.is_zero() && !ended() {
        let piece = left.min(Duration::from_millis(250));
        token.idle_for(piece);
        std::thread::sleep(piece);
        left -= piece;
    }
    token.busy();
}
