//! The watches of the own Node and of the assigned ConfigMap: what is there, and what changes, as events.
//!
//! Always holds: the latest order counts, and ends the watch before; a watch that broke off goes on where it was if nothing can
//! have been missed. Decides itself when to list anew, where to go on and how long to wait. Leaves to others: what is watched
//! (core), the bytes of a watch (`net::watch`).

use super::lock;
use super::requests::{ApiServer, REQUEST_DEADLINE};
use crate::net::client::{Client, NetError, is_contact};
use crate::net::transport::Cancel;
use crate::net::watch::{self, WatchEnd, WatchEvent, WatchFrom, WatchLimits};
use kedge_api as api;
use kedge_core::Event;
use kedge_platform::Progress;
use serde_json::Value;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// How long reading a ConfigMap may take in the end: 1 MiB at 4 kB/s. Each try that fails doubles what the next is given: a dead
/// link is found out soon, and a slow one gets its time.
const LONGEST_DOWNLOAD: Duration = Duration::from_secs(5 * 60);

/// First wait after a watch failed; doubled up to the longest.
const WATCH_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WATCH_WAIT: Duration = Duration::from_secs(30);

/// Largest ConfigMap read: Kubernetes' own limit of 1 MiB for its data, with room for metadata and escapes.
const CONFIG_MAP_BYTES: usize = 3 * 1024 * 1024;

/// UID and resourceVersion of an object: two that have both in common are one and the same.
pub(crate) type Version = (String, String);

/// A ConfigMap to be watched.
#[derive(Clone)]
pub(crate) struct ConfigMapWatch {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// What of it is on disk.
    pub(crate) held: Option<Version>,
}

/// What is to be watched: the latest word counts, and ends the watch before.
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
            let mut wait = WatchState::new(seed);
            while !wanted.superseded(change, Some(client.cancel_handle())) {
                client.api().refresh();
                let now = client.api().url();
                if url.as_ref().is_some_and(|url| *url != now) {
                    log::info!("the kubeconfig names another API server now: {now}");
                    self.is_hub.store(false, Ordering::Relaxed);
                    let _ = self.events.blocking_send(Event::ServerChanged);
                }
                url = Some(now);
                let set = WatchTarget { path: "/api/v1/nodes", params: &selector, config_map: None };
                let ended = || wanted.superseded(change, None);
                self.follow(&client, token, &set, &mut wait, &ended, &mut |object| self.node_event(object));
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
            let path = format!("/api/v1/namespaces/{}/configmaps", api::percent_encoded(&namespace));
            let selector = format!("fieldSelector=metadata.name%3D{}", api::percent_encoded(&name));
            let set = WatchTarget { path: &path, params: &selector, config_map: Some((&namespace, &name)) };
            let mut wait = WatchState { held, ..WatchState::new(seed) };
            while !wanted.superseded(change, Some(client.cancel_handle())) {
                let ended = || wanted.superseded(change, None);
                self.follow(&client, token, &set, &mut wait, &ended, &mut |object| {
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
        let mut said = String::new();
        loop {
            match self.api() {
                Ok(api) => return api.stream(name),
                // said again when it is another problem: somebody may be mending it
                Err(why) if said != why => {
                    log::warn!("no API server: {why}; running without, trying on");
                    said = why;
                }
                Err(_) => {}
            }
            token.idle_for(LONGEST_WATCH_WAIT);
            std::thread::sleep(Duration::from_secs(5));
        }
    }

    /// Lists a set of one object, then watches it, until it fails or `ended` says so; then waits. Goes on where the last
    /// watch broke off if nothing can have been missed: a list costs as much as all that happens in an hour.
    fn follow(
        &self,
        client: &Client,
        token: &Progress,
        set: &WatchTarget,
        wait: &mut WatchState,
        ended: &dyn Fn() -> bool,
        event: &mut dyn FnMut(Option<Value>) -> Option<Event>,
    ) {
        token.busy();
        self.faults.point(client.name());
        let loaded = client.api().refresh();
        if wait.loaded != loaded {
            // versions of one server mean nothing to another, and behind one URL there may be another now
            wait.resume = None;
            wait.loaded = loaded;
        }
        let send = |event: Option<Event>| {
            if let Some(event) = event {
                let _ = self.events.blocking_send(event);
            }
        };
        let from = match wait.resume.take() {
            Some(version) => Ok(version),
            None => {
                let found = self.read(client, token, set, wait);
                found.map(|(found, version)| {
                    if !ended() {
                        send(match (found, set.config_map) {
                            (ListResult::Held((uid, resource_version)), Some((namespace, name))) => {
                                let (namespace, name) = (namespace.to_owned(), name.to_owned());
                                Some(Event::ConfigMapUnchanged { namespace, name, uid, resource_version })
                            }
                            (ListResult::Held(_), None) => None,
                            (ListResult::Object(object), _) => event(object),
                        });
                        wait.reset();
                    }
                    version
                })
            }
        };
        let unread = from.is_err();
        let failed = match from {
            Err(error) => Some(error),
            Ok(_) if ended() => return,
            Ok(version) => {
                let mut opened = false;
                let mut held = wait.held.take();
                let mut seen = |object: Option<Value>| {
                    held = object.as_ref().and_then(|object| version_of(set, object));
                    send(event(object));
                };
                let (error, resume) = self.watch_from(client, token, set, version, &mut opened, &mut seen);
                if opened {
                    wait.reset();
                }
                (wait.resume, wait.held) = (resume, held);
                error
            }
        };
        if ended() {
            return;
        }
        if let Some(error) = failed {
            if is_contact::<()>(&Err(error.clone())) {
                send(Some(Event::Contact));
            }
            let answered = matches!(error, NetError::Refused { .. } | NetError::Garbled { .. });
            if answered {
                // From where it was refused it may be refused for ever: a hub restored from a backup is behind what we saw.
                // And what was called unreadable is readable again only when it was read.
                wait.resume = None;
            }
            // one try that fails for lack of a network is no news; a download that goes on failing is
            if let Some((namespace, name)) = set.config_map
                && (answered || (unread && wait.said))
            {
                let (namespace, name, why) = (namespace.to_owned(), name.to_owned(), error.to_string());
                send(Some(Event::ConfigMapUnreadable { namespace, name, why }));
            }
            wait.log(client.name(), &error);
        }
        wait.pass(token, ended);
    }

    /// What there is now, and from which version a watch goes on. What we hold already is asked for by its metadata first.
    fn read(
        &self,
        client: &Client,
        token: &Progress,
        set: &WatchTarget,
        wait: &mut WatchState,
    ) -> Result<(ListResult, String), NetError> {
        if let Some(held) = &wait.held {
            token.idle_for(REQUEST_DEADLINE);
            let listed = watch::list_metadata(client, set.path, set.params, REQUEST_DEADLINE);
            token.busy();
            match listed {
                Ok(listed) => match listed.items.first() {
                    None => return Ok((ListResult::Object(None), listed.resource_version)),
                    Some(item) if version_of(set, item).as_ref() == Some(held) => {
                        return Ok((ListResult::Held(held.clone()), listed.resource_version));
                    }
                    Some(_) => {}
                },
                // a server without this form gives the other
                Err(error) if error.status() == Some(406) => {}
                Err(error) => return Err(error),
            }
        }
        let deadline = if set.config_map.is_some() { wait.patience } else { REQUEST_DEADLINE };
        token.idle_for(deadline);
        let listed = watch::list(client, set.path, set.params, deadline);
        token.busy();
        let listed = listed?;
        let object = listed.items.into_iter().next();
        wait.held = object.as_ref().and_then(|object| version_of(set, object));
        Ok((ListResult::Object(object), listed.resource_version))
    }

    fn watch_from(
        &self,
        client: &Client,
        token: &Progress,
        set: &WatchTarget,
        resource_version: String,
        opened: &mut bool,
        seen: &mut dyn FnMut(Option<Value>),
    ) -> (Option<NetError>, Option<String>) {
        let limits = WatchLimits { line_bytes: CONFIG_MAP_BYTES, ..WatchLimits::default() };
        let loaded = client.api().refresh();
        token.idle_for(limits.longest_silence());
        let end = watch::watch(
            client,
            set.path,
            set.params,
            WatchFrom::Version(resource_version),
            limits,
            |happened| {
                token.busy();
                self.faults.point(client.name());
                if client.api().refresh() != loaded {
                    // The other streams speak to whom the kubeconfig names now: what comes from here is not their word
                    // any more. Bookmarks bring us here every minute.
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
    /// What we hold already.
    Held(Version),
    /// The object, if there is one.
    Object(Option<Value>),
}

/// Which version of a ConfigMap this is; the Node is small, and read whole always.
fn version_of(set: &WatchTarget, object: &Value) -> Option<Version> {
    set.config_map?;
    let part = |name: &str| object["metadata"][name].as_str().map(str::to_owned);
    Some((part("uid")?, part("resourceVersion")?))
}

/// The wait between two tries of a watch.
struct WatchState {
    next: Duration,
    seed: u64,
    said: bool,
    /// Where the last watch broke off.
    resume: Option<String>,
    /// Which loading of the kubeconfig that was under.
    loaded: u64,
    /// How long the next download may take.
    patience: Duration,
    /// The version of the object that core has, or can read on its own disk.
    held: Option<Version>,
}

impl WatchState {
    fn new(seed: u64) -> Self {
        Self {
            next: WATCH_WAIT,
            seed: seed | 1,
            said: false,
            resume: None,
            loaded: 0,
            patience: REQUEST_DEADLINE,
            held: None,
        }
    }

    fn reset(&mut self) {
        self.next = WATCH_WAIT;
        self.said = false;
        self.patience = REQUEST_DEADLINE;
    }

    /// Said once when it begins, not at every try of an outage.
    fn log(&mut self, name: &str, error: &NetError) {
        if !std::mem::replace(&mut self.said, true) {
            log::warn!("{name}: {error}; trying on");
        }
    }

    /// Waits in short pieces, so that a new order ends it.
    fn pass(&mut self, token: &Progress, ended: &dyn Fn() -> bool) {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let stretch = 1.0 + (self.seed >> 40) as f64 / (1u64 << 24) as f64 / 4.0;
        let mut left = self.next.mul_f64(stretch);
        self.next = (self.next * 2).min(LONGEST_WATCH_WAIT);
        self.patience = (self.patience * 2).min(LONGEST_DOWNLOAD);
        while !left.is_zero() && !ended() {
            let piece = left.min(Duration::from_millis(250));
            token.idle_for(piece);
            std::thread::sleep(piece);
            left -= piece;
        }
        token.busy();
    }
}
