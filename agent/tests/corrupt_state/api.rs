//! An API server over TLS with one Node, its Lease, its Events and some ConfigMaps: enough for an agent to live with.
//!
//! Always holds: a watch tells every change once; what the agent says of itself is kept for the test to look at. Everything
//! else it is asked for is answered 404.

use crate::net_server::{Authority, Chunks, Heard, Reply, Server};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

pub(crate) const NODE: &str = "edge-1";
pub(crate) const NAMESPACE: &str = "kube-system";
/// How long a watch stays open without a change.
const WATCH: Duration = Duration::from_secs(60);

/// What the server knows.
#[derive(Default)]
pub(crate) struct World {
    source: Value,
    maps: BTreeMap<String, Value>,
    version: u64,
    /// Agents started: a watch of an earlier one ends.
    agents: u64,
    /// Renewals of the Lease.
    pub(crate) renewals: u64,
    /// `ConfigOK` as it was last patched.
    pub(crate) config_ok: Value,
    /// Reasons and messages of the Events.
    pub(crate) events: Vec<String>,
}

/// A running server.
#[derive(Clone)]
pub(crate) struct Api {
    world: Arc<(Mutex<World>, Condvar)>,
    pub(crate) port: u16,
}

impl Api {
    pub(crate) fn start(authority: &Authority) -> Self {
        let world: Arc<(Mutex<World>, Condvar)> = Arc::default();
        let for_script = world.clone();
        let server = Server::start(authority, move |heard| answer(&for_script, heard));
        Self { world, port: server.address.port() }
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world.0)
    }

    /// An agent starts: what was said of the one before is forgotten.
    pub(crate) fn begin(&self) {
        let mut world = self.world();
        world.agents += 1;
        world.renewals = 0;
        world.config_ok = Value::Null;
        self.world.1.notify_all();
    }

    /// Makes a ConfigMap with this UID.
    pub(crate) fn create(&self, name: &str, uid: &str, payload: &str) {
        let mut world = self.world();
        world.version += 1;
        let version = world.version.to_string();
        let metadata = json!({"name": name, "namespace": NAMESPACE, "uid": uid, "resourceVersion": version});
        world.maps.insert(name.into(), json!({"metadata": metadata, "data": {"kubelet": payload}}));
    }

    /// All ConfigMaps, to be served by another server.
    pub(crate) fn maps(&self) -> BTreeMap<String, Value> {
        self.world().maps.clone()
    }

    pub(crate) fn serve(&self, maps: BTreeMap<String, Value>) {
        let mut world = self.world();
        world.version += 1000;
        world.maps = maps;
    }

    /// Sets what the Node asks for: the ConfigMap of this name, by UID.
    pub(crate) fn assign(&self, name: &str) {
        let mut world = self.world();
        let uid = world.maps[name]["metadata"]["uid"].clone();
        world.source = json!({"configMapRef": {"namespace": NAMESPACE, "name": name, "uid": uid}});
        world.version += 1;
        self.world.1.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn answer(shared: &Arc<(Mutex<World>, Condvar)>, heard: &Heard) -> Reply {
    let (path, query) = heard.path.split_once('?').unwrap_or((&heard.path, ""));
    let last = path.rsplit('/').next().unwrap_or_default();
    let watch = query.contains("watch=true");
    match (heard.method.as_str(), last) {
        ("GET", "version") => Reply::ok(r#"{"gitVersion":"v1.35.0+kedge-0.1.0"}"#),
        ("GET", "nodes") if watch => watch_node(shared.clone()),
        ("GET", "nodes") => list(&lock(&shared.0), "NodeList", |world| Some(node(world))),
        ("GET", "configmaps") if watch => watch_nothing(shared.clone()),
        ("GET", "configmaps") => {
            let name = query.split("metadata.name%3D").nth(1).unwrap_or_default();
            let name = name.split('&').next().unwrap_or_default();
            list(&lock(&shared.0), "ConfigMapList", |world| world.maps.get(name).cloned())
        }
        _ => take(&mut lock(&shared.0), heard, path),
    }
}

fn take(world: &mut World, heard: &Heard, path: &str) -> Reply {
    let body: Value = serde_json::from_str(&heard.body).unwrap_or_default();
    match heard.method.as_str() {
        "PATCH" | "POST" if path.contains("/leases") => world.renewals += 1,
        "PATCH" if path.ends_with("/status") => {
            let conditions = body["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let found = conditions.into_iter().find(|condition| condition["type"] == "ConfigOK");
            if let Some(condition) = found {
                world.config_ok = condition;
            }
        }
        "POST" if path.ends_with("/events") => {
            let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
            world.events.push(format!("{}: {}", text("reason"), text("message")));
        }
        "PATCH" if path.contains("/nodes/") => {}
        _ => return Reply::status(404, "NotFound", "there is no such thing here"),
    }
    Reply::ok("{}")
}

fn node(world: &World) -> Value {
    let metadata = json!({"name": NODE, "uid": "node-uid-1", "resourceVersion": world.version.to_string()});
    let mut node = json!({"metadata": metadata, "spec": {}, "status": {}});
    if !world.source.is_null() {
        node["spec"]["configSource"] = world.source.clone();
    }
    node
}

fn list(world: &World, kind: &str, item: impl FnOnce(&World) -> Option<Value>) -> Reply {
    let items: Vec<Value> = item(world).into_iter().collect();
    let version = world.version.to_string();
    Reply::ok(&json!({"kind": kind, "metadata": {"resourceVersion": version}, "items": items}).to_string())
}

/// Tells of every change of the world as a change of the Node, until another agent starts.
fn watch_node(shared: Arc<(Mutex<World>, Condvar)>) -> Reply {
    Reply::Chunks(Box::new(move |chunks: &mut Chunks<'_>| {
        let (agents, mut version) = {
            let world = lock(&shared.0);
            (world.agents, world.version)
        };
        while let Some(node) = next(&shared, agents, &mut version) {
            chunks.send(&format!("{}\n", json!({"type": "MODIFIED", "object": node})));
        }
    }))
}

fn watch_nothing(shared: Arc<(Mutex<World>, Condvar)>) -> Reply {
    Reply::Chunks(Box::new(move |_| {
        let agents = lock(&shared.0).agents;
        let mut version = u64::MAX;
        let _ = next(&shared, agents, &mut version);
    }))
}

/// The Node once it is newer than `version`; None when the watch is over.
fn next(shared: &(Mutex<World>, Condvar), agents: u64, version: &mut u64) -> Option<Value> {
    let over = |world: &World| world.agents != agents || world.version > *version;
    let wait = shared.1.wait_timeout_while(lock(&shared.0), WATCH, |world| !over(world));
    let (world, timeout) = wait.unwrap_or_else(std::sync::PoisonError::into_inner);
    if timeout.timed_out() || world.agents != agents {
        return None;
    }
    *version = world.version;
    Some(node(&world))
}
