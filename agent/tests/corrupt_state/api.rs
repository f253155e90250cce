//! The real hub of a board, and the queries that a test makes.
//!
//! Always holds: a board's hub is its own, on a copy of the data of the one that its state was made with, so
//! UIDs and credentials are the same.

use kedge_rig::Scratch;
use kedge_rig::client::{Connection, Identity};
use kedge_rig::hub::Hub;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) const NODE: &str = "edge-1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A running hub.
#[derive(Clone)]
pub(crate) struct Api(Arc<Mutex<Inner>>);

struct Inner {
    admin: Connection,
    hub: Hub,
    /// The Lease's last renewal that was seen, and how many since the agent's start.
    renewed: Value,
    renewals: u64,
    // last: the hub ends before its directory goes
    directory: Scratch,
}

impl Inner {
    fn get(&mut self, path: &str) -> Value {
        let answer = self.admin.request("GET", path, "", b"").expect("the hub answers");
        serde_json::from_slice(&answer.body).expect("JSON")
    }

    fn look_at_lease(&mut self) -> bool {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}");
        let found = self.get(&path)["spec"]["renewTime"].take();
        let is_new = !found.is_null() && found != self.renewed;
        if is_new {
            self.renewed = found;
        }
        is_new
    }
}

impl Api {
    /// A hub on a copy of this data, or an empty one.
    pub(crate) fn start(data: Option<&Path>) -> Self {
        let directory = Scratch::new("corrupt-hub").expect("a directory");
        if let Some(data) = data {
            copy(data, &directory.join("data"));
        }
        let hub = Hub::start(&directory, &[]).expect("the hub");
        let admin = std::fs::read_to_string(hub.kubectl().kubeconfig()).expect("its kubeconfig");
        let admin = Identity::read(&admin).and_then(|admin| admin.connect()).expect("a connection");
        Self(Arc::new(Mutex::new(Inner { admin, hub, renewed: Value::Null, renewals: 0, directory })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn node_kubeconfig(&self) -> String {
        self.lock().hub.node_kubeconfig(NODE).expect("credentials")
    }

    /// Ends the hub in order and hands out its data.
    pub(crate) fn stop(&self) -> Scratch {
        let mut inner = self.lock();
        inner.hub.stop().expect("the hub stops");
        let copied = Scratch::new("corrupt-data").expect("a directory");
        copy(&inner.directory.join("data"), &copied.join("data"));
        copied
    }

    /// Marks an agent's start: renewals are counted from here.
    pub(crate) fn begin(&self) {
        let mut inner = self.lock();
        inner.look_at_lease();
        inner.renewals = 0;
    }

    /// Renewals of the Lease since the agent's start; two between calls of this count as one.
    pub(crate) fn renewals(&self) -> u64 {
        let mut inner = self.lock();
        inner.renewals += u64::from(inner.look_at_lease());
        inner.renewals
    }

    /// Makes a ConfigMap and returns its UID.
    pub(crate) fn create(&self, name: &str, payload: &str) -> String {
        let map = json!({"metadata": {"name": name}, "data": {"kubelet": payload}});
        let headers = "content-type: application/json\r\n";
        let made = self.lock().admin.request("POST", MAPS, headers, map.to_string().as_bytes());
        let made: Value = serde_json::from_slice(&made.expect("the hub answers").body).expect("JSON");
        made["metadata"]["uid"].as_str().expect("a UID").to_owned()
    }

    /// Assigns the ConfigMap of this name to the Node, by UID.
    pub(crate) fn assign(&self, name: &str) {
        let mut inner = self.lock();
        let uid = inner.get(&format!("{MAPS}/{name}"))["metadata"]["uid"].take();
        let source = json!({"configMapRef": {"namespace": "default", "name": name, "uid": uid}});
        let patch = json!({"spec": {"configSource": source}}).to_string();
        let headers = "content-type: application/merge-patch+json\r\n";
        let path = format!("/api/v1/nodes/{NODE}");
        let answer = inner.admin.request("PATCH", &path, headers, patch.as_bytes()).expect("the hub answers");
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    }

    /// The status of `ConfigOK` as the API shows it.
    pub(crate) fn config_ok(&self) -> Value {
        let node = self.lock().get(&format!("/api/v1/nodes/{NODE}"));
        let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        let found = conditions.into_iter().find(|condition| condition["type"] == "ConfigOK");
        found.map_or(Value::Null, |condition| condition["status"].clone())
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "copy {}", from.display());
}
