//! An API server with Nodes, their Leases and Events, and some ConfigMaps, in two flavours: our hub, and a Kubernetes that
//! silently drops `spec.configSource` and `status.config`.
//!
//! Always holds: objects have UIDs that never come back and resourceVersions that change with every change; a status
//! patch merges by condition type and address type, as a real one does. Leaves to others: being late, lost or wrong.

use crate::NODE;
use kedge_api as api;
use kedge_core::{Answer, LeaseRequest, Request};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What kind of server it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    Kedge,
    Kubernetes,
}

/// The namespace every test's ConfigMaps live in.
pub const NAMESPACE: &str = "kube-system";

#[derive(Debug, Clone)]
pub struct Hub {
    pub flavour: Flavour,
    nodes: BTreeMap<String, Value>,
    config_maps: BTreeMap<String, Value>,
    leases: BTreeMap<String, Value>,
    pub events: Vec<Value>,
    /// Bodies of the status patches taken, since somebody looked.
    pub status_patches: Vec<Value>,
    pub renewals: u64,
    counter: u64,
}

impl Hub {
    pub fn new(flavour: Flavour) -> Self {
        Self {
            flavour,
            nodes: BTreeMap::new(),
            config_maps: BTreeMap::new(),
            leases: BTreeMap::new(),
            events: Vec::new(),
            status_patches: Vec::new(),
            renewals: 0,
            counter: 100,
        }
    }

    /// Counts on from here: a hub that was wiped gives out other UIDs than it did before.
    pub fn wiped(&mut self, counter: u64) {
        self.counter = counter;
    }

    /// What it has counted to.
    pub fn counter(&self) -> u64 {
        self.counter
    }

    fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn stamp(&mut self, mut object: Value) -> Value {
        let version = self.count();
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        object
    }

    // ------------------------------------------------------------------------------------------ the operator

    /// Creates the Node, as a node's registration would.
    pub fn create_node(&mut self, name: &str) {
        let uid = format!("node-{}", self.count());
        let node = json!({"metadata": {"name": name, "uid": uid}, "spec": {}, "status": {}});
        let node = self.stamp(node);
        self.nodes.insert(name.to_owned(), node);
    }

    /// The Node of the first board.
    pub fn node(&self) -> Option<&Value> {
        self.node_named(NODE)
    }

    pub fn node_named(&self, name: &str) -> Option<&Value> {
        self.nodes.get(name)
    }

    pub fn delete_node(&mut self) {
        self.nodes.remove(NODE);
    }

    /// The Lease of the first board.
    pub fn lease(&self) -> Option<&Value> {
        self.leases.get(NODE)
    }

    pub fn delete_lease(&mut self) {
        self.leases.remove(NODE);
    }

    pub fn config_map(&self, name: &str) -> Option<&Value> {
        self.config_maps.get(name)
    }

    /// Places a ConfigMap as it is, whatever was there before.
    pub fn put_config_map(&mut self, name: &str, map: Value) {
        self.config_maps.insert(name.to_owned(), map);
    }

    pub fn node_uid(&self) -> String {
        let uid = self.node().and_then(|node| node["metadata"]["uid"].as_str());
        uid.unwrap_or_default().to_owned()
    }

    /// Creates or replaces a ConfigMap under key `kubelet`; a new one has a new UID. Returns its UID.
    pub fn push(&mut self, name: &str, payload: &str) -> String {
        self.push_data(name, json!({"kubelet": payload}))
    }

    pub fn push_data(&mut self, name: &str, data: Value) -> String {
        let uid = match self.config_maps.get(name).and_then(|map| map["metadata"]["uid"].as_str()) {
            Some(uid) => uid.to_owned(),
            None => format!("uid-{name}-{}", self.count()),
        };
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": NAMESPACE, "uid": uid},
            "data": data,
        });
        let map = self.stamp(map);
        self.config_maps.insert(name.to_owned(), map);
        uid
    }

    /// Deletes it and returns it, if it was there.
    pub fn delete_config_map(&mut self, name: &str) -> Option<Value> {
        self.config_maps.remove(name)
    }

    pub fn uid_of(&self, name: &str) -> String {
        let uid = self.config_maps.get(name).and_then(|map| map["metadata"]["uid"].as_str());
        uid.unwrap_or("uid-of-nothing").to_owned()
    }

    /// `{configMapRef}` for the ConfigMap of that name as it is now.
    pub fn pinned(&self, name: &str) -> Value {
        json!({"configMapRef": {"namespace": NAMESPACE, "name": name, "uid": self.uid_of(name)}})
    }

    /// `{configMap}` for that name.
    pub fn following(name: &str) -> Value {
        json!({"configMap": {"namespace": NAMESPACE, "name": name, "kubeletConfigKey": "kubelet"}})
    }

    /// Sets what the Node of the first board asks for; null is nothing. Against Kubernetes it is the annotation.
    pub fn assign(&mut self, source: Value) {
        self.assign_to(NODE, source);
    }

    /// The same for the Node of this name.
    pub fn assign_to(&mut self, name: &str, source: Value) {
        let flavour = self.flavour;
        self.edit(name, |node| match flavour {
            Flavour::Kedge if source.is_null() => {
                if let Some(spec) = node["spec"].as_object_mut() {
                    spec.remove("configSource");
                }
            }
            Flavour::Kedge => node["spec"]["configSource"] = source,
            Flavour::Kubernetes if source.is_null() => {
                let all = node.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
                if let Some(all) = all {
                    all.remove(api::CONFIG_SOURCE_ANNOTATION);
                }
            }
            Flavour::Kubernetes => {
                node["metadata"]["annotations"][api::CONFIG_SOURCE_ANNOTATION] = json!(source.to_string());
            }
        });
    }

    pub fn edit_node(&mut self, edit: impl FnOnce(&mut Value)) {
        self.edit(NODE, edit);
    }

    fn edit(&mut self, name: &str, edit: impl FnOnce(&mut Value)) {
        let Some(mut node) = self.nodes.get(name).cloned() else { return };
        edit(&mut node);
        let node = self.stamp(node);
        self.nodes.insert(name.to_owned(), node);
    }

    /// What the node lifecycle does when nothing was heard of a node.
    pub fn mark_unknown(&mut self) {
        self.edit_node(|node| {
            let conditions = node.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
            for condition in conditions.into_iter().flatten() {
                if condition["type"] != api::CONFIG_OK {
                    condition["status"] = json!("Unknown");
                    condition["reason"] = json!("NodeStatusUnknown");
                    condition["message"] = json!("Kubelet stopped posting node status.");
                }
            }
        });
    }

    pub fn condition(&self, kind: &str) -> Option<&Value> {
        self.condition_of(NODE, kind)
    }

    pub fn condition_of(&self, name: &str, kind: &str) -> Option<&Value> {
        let conditions = self.nodes.get(name)?["status"]["conditions"].as_array()?;
        conditions.iter().find(|condition| condition["type"] == kind)
    }

    // ------------------------------------------------------------------------------------------ the node

    /// Answers a request of the node of this name.
    pub fn answer(&mut self, name: &str, request: &Request) -> Answer {
        match request {
            Request::Version => {
                let mark = if self.flavour == Flavour::Kedge { "v1.34.0+kedge-0.1.0" } else { "v1.36.2" };
                Answer::Accepted(Some(json!({"gitVersion": mark})))
            }
            Request::Register(node) => self.register(name, node),
            Request::PatchStatus(patch) => self.patch_status(name, patch),
            Request::PatchNode(patch) => self.patch_node(name, patch),
            Request::PostEvent(event) => {
                self.events.push(event.clone());
                Answer::Accepted(None)
            }
        }
    }

    fn register(&mut self, name: &str, node: &Value) -> Answer {
        if self.nodes.contains_key(name) {
            return refused(409, "AlreadyExists", "node already exists");
        }
        let mut node = node.clone();
        node["metadata"]["uid"] = json!(format!("node-{}", self.count()));
        let node = self.stamp(node);
        self.nodes.insert(name.to_owned(), node);
        Answer::Accepted(None)
    }

    fn patch_status(&mut self, name: &str, patch: &Value) -> Answer {
        let Some(mut node) = self.nodes.get(name).cloned() else {
            return refused(404, "NotFound", "no such node");
        };
        self.status_patches.push(patch.clone());
        merge(&mut node["status"], &patch["status"], "status");
        if self.flavour == Flavour::Kubernetes
            && let Some(status) = node["status"].as_object_mut()
        {
            status.remove("config");
        }
        self.changed(name, node)
    }

    fn patch_node(&mut self, name: &str, patch: &Value) -> Answer {
        let Some(mut node) = self.nodes.get(name).cloned() else {
            return refused(404, "NotFound", "no such node");
        };
        merge(&mut node, patch, "node");
        self.changed(name, node)
    }

    fn changed(&mut self, name: &str, node: Value) -> Answer {
        if self.nodes.get(name) != Some(&node) {
            let node = self.stamp(node);
            self.nodes.insert(name.to_owned(), node);
        }
        Answer::Accepted(None)
    }

    /// Answers a renewal by the node of this name.
    pub fn renew(&mut self, name: &str, request: &LeaseRequest) -> Answer {
        match (request, self.leases.get_mut(name)) {
            (LeaseRequest::Patch(_), None) => return refused(404, "NotFound", "no such lease"),
            (LeaseRequest::Create(_), Some(_)) => {
                return refused(409, "AlreadyExists", "lease already exists");
            }
            (LeaseRequest::Create(lease), None) => drop(self.leases.insert(name.to_owned(), lease.clone())),
            (LeaseRequest::Patch(patch), Some(lease)) => merge(lease, patch, "lease"),
        }
        self.renewals += 1;
        Answer::Accepted(None)
    }
}

pub fn refused(status: u16, reason: &str, message: &str) -> Answer {
    Answer::Refused { status, reason: reason.into(), message: message.into(), retry_after: None }
}

/// A strategic merge patch as far as Nodes need one: null removes, lists of conditions and addresses merge by `type`
/// unless the patch says `$patch: replace`, other lists are replaced.
fn merge(target: &mut Value, patch: &Value, name: &str) {
    match patch {
        Value::Object(fields) => {
            if !target.is_object() {
                *target = Value::Object(Map::new());
            }
            let target = target.as_object_mut().expect("made an object above");
            for (key, value) in fields {
                if value.is_null() {
                    target.remove(key);
                } else {
                    merge(target.entry(key.clone()).or_insert(Value::Null), value, key);
                }
            }
        }
        Value::Array(items) if matches!(name, "conditions" | "addresses") => merge_list(target, items),
        other => *target = other.clone(),
    }
}

fn merge_list(target: &mut Value, items: &[Value]) {
    if !target.is_array() || items.iter().any(|item| item["$patch"] == "replace") {
        *target = json!([]);
    }
    let list = target.as_array_mut().expect("made a list above");
    for item in items.iter().filter(|item| item.get("$patch").is_none()) {
        match list.iter_mut().find(|there| there["type"] == item["type"]) {
            Some(there) => merge(there, item, "item"),
            None => list.push(item.clone()),
        }
    }
}
