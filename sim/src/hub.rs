//! The API server of the world: the hub's own pure core on one thread, in two flavours. One is our hub; the other is a
//! Kubernetes that silently drops `spec.configSource` and `status.config`.
//!
//! Owns the requests of nodes and operators. Always holds: what a node writes passes the kinds' rules, preconditions and order of
//! `kedge_hub_core`; objects have UIDs that never come back, and resourceVersions that change with every change. What an
//! operator of this world does is stored even where the rules refuse it: an older hub, or another one, might have stored it.
//! Leaves to others: being late, lost or wrong; who may do what; telling a watch (`node`).

use crate::NODE;
use kedge_api as api;
use kedge_core::{Answer, LeaseRequest, Request};
use kedge_hub_core::kinds::{self, CONFIG_MAP, EVENT, Kind, LEASE, index_of};
use kedge_hub_core::object::{Event, Object};
use kedge_hub_core::requests::{self, Decision, DeleteOptions, Fresh, Part, Place, WriteOptions};
use kedge_hub_core::state::{Batch, Expect, Index, Marks, Order, Record, Sink, Write, WriteError, restore};
use kedge_hub_core::{ApiError, patch};
use kedge_platform::fake::Random;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use time::macros::datetime;

/// What kind of server it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    Kedge,
    Kubernetes,
}

/// The namespace every test's ConfigMaps live in.
pub const NAMESPACE: &str = "kube-system";
const LEASES: &str = "kube-node-lease";
/// The hub's clock stands still: no decision that a node sees depends on it.
const NOW: OffsetDateTime = datetime!(2026-11-21 01:35:58 UTC);
/// Revisions and UIDs of a new hub begin above this.
const FIRST: u64 = 100;

/// Nobody waits for events: a node's watch compares what there is with what it was shown.
#[derive(Debug)]
struct NoWatcher;

impl Sink for NoWatcher {
    fn take(&self, _: &Arc<Event>) -> bool {
        false
    }
}

#[derive(Debug)]
pub struct Hub {
    pub flavour: Flavour,
    index: Index<NoWatcher>,
    order: Order,
    /// Objects as readers see them, by the position of their kind and their name.
    shown: BTreeMap<(usize, String), Value>,
    /// Which of them no hub would store: the index has nothing of them, or what was there before.
    unstored: BTreeSet<(usize, String)>,
    /// Sources that Nodes ask for although no hub would store them.
    imposed: BTreeMap<String, Value>,
    uids: u64,
    pub events: Vec<Value>,
    /// Bodies of the status patches taken, since the last look.
    pub status_patches: Vec<Value>,
    pub renewals: u64,
}

/// The hub as it would be restored from a backup.
impl Clone for Hub {
    fn clone(&self) -> Self {
        let (index, order) = self.copy_of_state(self.order.revision());
        let copy = Self {
            index,
            order,
            flavour: self.flavour,
            shown: self.shown.clone(),
            unstored: self.unstored.clone(),
            imposed: self.imposed.clone(),
            uids: self.uids,
            events: self.events.clone(),
            status_patches: self.status_patches.clone(),
            renewals: self.renewals,
        };
        copy.assert_all_shown();
        copy
    }
}

impl Hub {
    pub fn new(flavour: Flavour) -> Self {
        let (index, order) = state(FIRST, Vec::new());
        let mut hub = Self {
            flavour,
            index,
            order,
            shown: BTreeMap::new(),
            unstored: BTreeSet::new(),
            imposed: BTreeMap::new(),
            uids: FIRST,
            events: Vec::new(),
            status_patches: Vec::new(),
            renewals: 0,
        };
        for namespace in [NAMESPACE, LEASES, "default"] {
            hub.create(&kinds::NAMESPACE, "", json!({"metadata": {"name": namespace}}))
                .expect("a right name");
        }
        hub
    }

    /// Counts on from here: a hub that was wiped gives out other UIDs than it did before.
    pub fn wiped(&mut self, counter: u64) {
        let counter = counter.max(self.counter());
        (self.index, self.order) = self.copy_of_state(counter);
        self.uids = counter;
        self.assert_all_shown();
    }

    /// What it has counted to.
    pub fn counter(&self) -> u64 {
        self.order.revision().max(self.uids)
    }

    fn copy_of_state(&self, revision: u64) -> (Index<NoWatcher>, Order) {
        let records = kinds::KINDS.iter().flat_map(|kind| {
            let every = kedge_hub_core::selector::Selection::all("");
            let page = self.index.list(kind, &every, &kedge_hub_core::state::Query::default());
            page.expect("the latest is known").objects.into_iter().map(|object| record(kind, &object))
        });
        state(revision, records.collect())
    }

    /// Readers see every object as the index has it, and no others.
    fn assert_all_shown(&self) {
        self.shown.keys().for_each(|place| self.assert_shown(place));
        let stored =
            |place: &&(usize, String)| !self.unstored.contains(*place) || self.stored(place).is_some();
        let count: usize = kinds::KINDS.iter().map(|kind| self.index.count(kind)).sum();
        assert_eq!(count, self.shown.keys().filter(stored).count());
    }

    /// Readers see the object of this place as the index has it.
    fn assert_shown(&self, place: &(usize, String)) {
        if self.unstored.contains(place) {
            return;
        }
        let mut stored = self.stored(place);
        let imposed = self.imposed.get(&place.1).filter(|_| place.0 == index_of(&kinds::NODE));
        if let (Some(stored), Some(source)) = (&mut stored, imposed) {
            stored["spec"]["configSource"] = source.clone();
        }
        assert_eq!(stored.as_ref(), self.shown.get(place), "{place:?}");
    }

    fn stored(&self, (position, name): &(usize, String)) -> Option<Value> {
        let kind = kinds::KINDS[*position];
        let namespace = match *position {
            at if at == index_of(&CONFIG_MAP) => NAMESPACE,
            at if at == index_of(&LEASE) => LEASES,
            _ => "",
        };
        self.index.get(kind, namespace, name).map(|object| object.value())
    }

    // ------------------------------------------------------------------------------------------ reading

    fn object(&self, kind: &Kind, name: &str) -> Option<&Value> {
        self.shown.get(&(index_of(kind), name.to_owned()))
    }

    /// The Node of the first board.
    pub fn node(&self) -> Option<&Value> {
        self.node_named(NODE)
    }

    pub fn node_named(&self, name: &str) -> Option<&Value> {
        self.object(&kinds::NODE, name)
    }

    /// The Lease of the first board.
    pub fn lease(&self) -> Option<&Value> {
        self.object(&LEASE, NODE)
    }

    pub fn config_map(&self, name: &str) -> Option<&Value> {
        self.object(&CONFIG_MAP, name)
    }

    pub fn node_uid(&self) -> String {
        let uid = self.node().and_then(|node| node["metadata"]["uid"].as_str());
        uid.unwrap_or_default().to_owned()
    }

    pub fn uid_of(&self, name: &str) -> String {
        let uid = self.config_map(name).and_then(|map| map["metadata"]["uid"].as_str());
        uid.unwrap_or("uid-of-nothing").to_owned()
    }

    pub fn condition(&self, kind: &str) -> Option<&Value> {
        self.condition_of(NODE, kind)
    }

    pub fn condition_of(&self, name: &str, kind: &str) -> Option<&Value> {
        let conditions = self.node_named(name)?["status"]["conditions"].as_array()?;
        conditions.iter().find(|condition| condition["type"] == kind)
    }

    // ------------------------------------------------------------------------------------------ writing

    fn fresh(&self) -> Fresh {
        let mut bytes = Random::new(self.counter());
        Fresh { now: NOW, random: std::array::from_fn(|_| bytes.number().to_le_bytes()[0]) }
    }

    /// What was decided takes place. `uid` is that of a new object.
    fn perform(&mut self, decision: Decision, uid: Option<String>) -> Result<(), ApiError> {
        let Decision::Write(mut write, _) = decision else { return Ok(()) };
        if let (Some(uid), Some(new)) = (uid, &mut write.new) {
            new["metadata"]["uid"] = json!(uid);
        }
        self.write(write)
    }

    fn write(&mut self, write: Write) -> Result<(), ApiError> {
        let (place, mut new) = ((index_of(write.kind), write.name.clone()), write.new.clone());
        let mut batch = Batch::default();
        let written = if write.volatile {
            self.order.renew(&self.index, write).map(|renewed| self.index.publish(vec![renewed]))
        } else {
            self.order.stage(&self.index, &mut batch, write).map(drop)
        };
        match written {
            Err(WriteError::TooLarge) => return Err(ApiError::too_large("the object is too large")),
            written => written.expect("one thread decided on what is there"),
        }
        if let Some(commit) = self.order.commit(&self.index, batch, false) {
            let changes = self.order.committed(commit);
            self.index.publish(changes);
        }
        self.unstored.remove(&place);
        match &mut new {
            Some(new) => {
                new["metadata"]["resourceVersion"] = json!(self.order.revision().to_string());
                if let Some(source) = self.imposed.get(&place.1).filter(|_| place.0 == index_of(&kinds::NODE))
                {
                    new["spec"]["configSource"] = source.clone();
                }
                self.shown.insert(place.clone(), new.take());
            }
            None => {
                self.shown.remove(&place);
                if place.0 == index_of(&kinds::NODE) {
                    self.imposed.remove(&place.1);
                }
            }
        }
        self.assert_shown(&place);
        Ok(())
    }

    fn create(&mut self, kind: &'static Kind, namespace: &str, value: Value) -> Result<String, ApiError> {
        let options = WriteOptions::internal();
        let decision =
            requests::create(&self.index, kind, namespace, value.clone(), &options, &self.fresh())?;
        self.uids += 1;
        let name = value["metadata"]["name"].as_str().unwrap_or_default();
        let uid = match kind.kind {
            "ConfigMap" => format!("uid-{name}-{}", self.uids),
            kind => format!("{}-{}", kind.to_lowercase(), self.uids),
        };
        self.perform(decision, Some(uid.clone()))?;
        Ok(uid)
    }

    fn patch(
        &mut self,
        place: &Place<'_>,
        part: Part,
        patch: impl FnOnce(&mut Value) -> Result<(), patch::PatchError>,
    ) -> Result<(), ApiError> {
        let drops_ours = self.flavour == Flavour::Kubernetes;
        let compute = |_: &Object, mut value: Value| {
            patch(&mut value).map_err(|error| ApiError::bad_request(format!("{error:?}")))?;
            if drops_ours {
                remove(&mut value, "/spec", "configSource");
                remove(&mut value, "/status", "config");
            }
            Ok(value)
        };
        let options = WriteOptions::internal();
        let decision = requests::edit(&self.index, place, part, &options, &self.fresh(), compute)?;
        self.perform(decision, None)
    }

    fn delete(&mut self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Value> {
        let there = self.object(kind, name).cloned();
        let (options, asked) = (WriteOptions::internal(), DeleteOptions::default());
        let place = Place { kind, namespace, name };
        match requests::delete(&self.index, &place, &asked, &options, NOW) {
            Ok(decision) => self.perform(decision, None).expect("a deletion is small"),
            // it was only shown
            Err(_) => {
                self.unstored.remove(&(index_of(kind), name.to_owned()));
                self.shown.remove(&(index_of(kind), name.to_owned()));
            }
        }
        there
    }

    /// Stores an object as it is, whatever the rules say; one that is too large for the store is only shown.
    fn overwrite(&mut self, kind: &'static Kind, namespace: &str, name: &str, new: Value) {
        let current = self.index.get(kind, namespace, name);
        let expect = current.map_or(Expect::Absent, |object| Expect::Revision(object.revision));
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let mut too_large = new.clone();
        let write = Write { kind, namespace, name: name.clone(), expect, new: Some(new), volatile: false };
        if self.write(write).is_err() {
            self.uids += 1;
            too_large["metadata"]["resourceVersion"] = json!(self.uids.to_string());
            self.unstored.insert((index_of(kind), name.clone()));
            self.shown.insert((index_of(kind), name), too_large);
        }
    }

    // ------------------------------------------------------------------------------------------ the operator

    /// Creates the Node, as a node's registration would; one that is there goes first.
    pub fn create_node(&mut self, name: &str) {
        let node = json!({"metadata": {"name": name}, "spec": {}, "status": {}});
        self.delete(&kinds::NODE, "", name);
        self.create(&kinds::NODE, "", node).expect("a right Node");
    }

    pub fn delete_node(&mut self) {
        self.delete(&kinds::NODE, "", NODE);
    }

    pub fn delete_lease(&mut self) {
        self.delete(&LEASE, LEASES, NODE);
    }

    /// Creates or replaces a ConfigMap under key `kubelet`; a new one has a new UID. Returns its UID.
    pub fn push(&mut self, name: &str, payload: &str) -> String {
        self.push_data(name, json!({"kubelet": payload}))
    }

    /// The same with any data. It has a new version even if nothing else is new.
    pub fn push_data(&mut self, name: &str, data: Value) -> String {
        let mut map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data,
        });
        let uid = match self.config_map(name).and_then(|there| there["metadata"]["uid"].as_str()) {
            Some(uid) => uid.to_owned(),
            None => match self.create(&CONFIG_MAP, NAMESPACE, map.clone()) {
                Ok(uid) => return uid,
                Err(_) => format!("uid-{name}-{}", self.uids),
            },
        };
        map["metadata"]["uid"] = json!(uid);
        if let Some(created) =
            self.config_map(name).map(|there| there["metadata"]["creationTimestamp"].clone())
        {
            map["metadata"]["creationTimestamp"] = created;
        }
        self.overwrite(&CONFIG_MAP, NAMESPACE, name, map);
        uid
    }

    /// Shows a ConfigMap as it is, whatever was there before, and however little it is one.
    pub fn put_config_map(&mut self, name: &str, map: Value) {
        self.unstored.insert((index_of(&CONFIG_MAP), name.to_owned()));
        self.shown.insert((index_of(&CONFIG_MAP), name.to_owned()), map);
    }

    /// Deletes it and returns it, if it was there.
    pub fn delete_config_map(&mut self, name: &str) -> Option<Value> {
        self.delete(&CONFIG_MAP, NAMESPACE, name)
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
        if self.node_named(name).is_none() {
            return;
        }
        self.imposed.remove(name);
        // beside a source that the rules refuse, a node's own patches would be refused, too
        let is_storable = self.is_storable(name, &source);
        if flavour == Flavour::Kedge && !is_storable {
            self.imposed.insert(name.to_owned(), source);
            return self.edit(name, |node| remove(node, "/spec", "configSource"));
        }
        self.edit(name, |node| match flavour {
            Flavour::Kedge if source.is_null() => remove(node, "/spec", "configSource"),
            Flavour::Kedge => node["spec"]["configSource"] = source,
            Flavour::Kubernetes if source.is_null() => {
                remove(node, "/metadata/annotations", api::CONFIG_SOURCE_ANNOTATION);
            }
            Flavour::Kubernetes => {
                node["metadata"]["annotations"][api::CONFIG_SOURCE_ANNOTATION] = json!(source.to_string());
            }
        });
    }

    /// Whether the rules let a Node have this source.
    fn is_storable(&self, name: &str, source: &Value) -> bool {
        let node = Place { kind: &kinds::NODE, namespace: "", name };
        let assigned = |_: &Object, mut node: Value| {
            node["spec"]["configSource"] = source.clone();
            Ok(node)
        };
        let options = WriteOptions::internal();
        requests::edit(&self.index, &node, Part::Main, &options, &self.fresh(), assigned).is_ok()
    }

    pub fn edit_node(&mut self, edit: impl FnOnce(&mut Value)) {
        self.edit(NODE, edit);
    }

    fn edit(&mut self, name: &str, edit: impl FnOnce(&mut Value)) {
        let Some(mut node) = self.node_named(name).cloned() else { return };
        edit(&mut node);
        self.overwrite(&kinds::NODE, "", name, node);
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

    // ------------------------------------------------------------------------------------------ the nodes

    /// Answers a request of the node of this name.
    pub fn answer(&mut self, name: &str, request: &Request) -> Answer {
        let node = Place { kind: &kinds::NODE, namespace: "", name };
        let done = match request {
            Request::Version => {
                let mark = if self.flavour == Flavour::Kedge { "v1.34.0+kedge-0.1.0" } else { "v1.36.2" };
                return Answer::Accepted(Some(json!({"gitVersion": mark})));
            }
            Request::Register(node) => self.create(&kinds::NODE, "", node.clone()).map(drop),
            Request::PatchStatus(body) => {
                let done = self.patch(&node, Part::Status, |node| {
                    patch::strategic::apply(kinds::NODE.schema(), node, body.clone())
                });
                if done.is_ok() {
                    self.status_patches.push(body.clone());
                }
                done
            }
            Request::PatchNode(body) => self.patch(&node, Part::Main, |node| {
                patch::merge::apply(node, body.clone());
                Ok(())
            }),
            Request::PostEvent(event) => self.post(event),
        };
        answer(done)
    }

    /// An Event is judged, and kept for the test alone: there are too many.
    fn post(&mut self, event: &Value) -> Result<(), ApiError> {
        let namespace = event["metadata"]["namespace"].as_str().unwrap_or_default();
        let options = WriteOptions::internal();
        requests::create(&self.index, &EVENT, namespace, event.clone(), &options, &self.fresh())?;
        self.events.push(event.clone());
        Ok(())
    }

    /// Answers a renewal by the node of this name.
    pub fn renew(&mut self, name: &str, request: &LeaseRequest) -> Answer {
        let done = match request {
            LeaseRequest::Create(lease) => self.create(&LEASE, LEASES, lease.clone()).map(drop),
            LeaseRequest::Patch(body) => {
                let lease = Place { kind: &LEASE, namespace: LEASES, name };
                self.patch(&lease, Part::Main, |lease| {
                    patch::merge::apply(lease, body.clone());
                    Ok(())
                })
            }
        };
        self.renewals += u64::from(done.is_ok());
        answer(done)
    }
}

fn answer(done: Result<(), ApiError>) -> Answer {
    match done {
        Ok(()) => Answer::Accepted(None),
        Err(error) => Answer::Refused {
            status: error.code,
            reason: error.reason.into(),
            message: error.message,
            retry_after: error.retry_after_secs.map(|seconds| Duration::from_secs(seconds.into())),
        },
    }
}

pub fn refused(status: u16, reason: &str, message: &str) -> Answer {
    Answer::Refused { status, reason: reason.into(), message: message.into(), retry_after: None }
}

fn remove(object: &mut Value, part: &str, field: &str) {
    if let Some(fields) = object.pointer_mut(part).and_then(Value::as_object_mut) {
        fields.remove(field);
    }
}

fn record(kind: &Kind, object: &Object) -> Record {
    Record {
        resource: kind.resource_name(),
        namespace: object.namespace.to_string(),
        name: object.name.to_string(),
        revision: object.revision,
        json: object.json.to_vec(),
    }
}

/// The state as a store with these records would give it, at this revision.
fn state(revision: u64, records: Vec<Record>) -> (Index<NoWatcher>, Order) {
    let marks = Marks { reserved: revision, clean: Some(revision) };
    let restored = restore(marks, records).expect("we wrote these records");
    (restored.index, restored.order)
}
