//! The API server of the world: the hub's own pure core on one thread, in two flavours. One is our hub; the
//! other is a Kubernetes that silently drops `spec.configSource` and `status.config`.
//!
//! Owns the requests of nodes and operators. Always holds: a node's writes are subject to the kinds' rules,
//! preconditions and order of `kedge_hub_core`; UIDs of objects are never reused, and resourceVersions change
//! with every change. An operator's write in this world is stored even where the rules refuse it, because an
//! older hub, or another one, might have stored it. Readers and watches see only the core's index. Leaves to
//! others: late, lost or wrong answers; permissions; a node's side of a watch (`watch`).

mod pods;

use crate::NODE;
use crate::watch::Feed;
use kedge_api as api;
use kedge_core::{Answer, LeaseRequest, Request};
use kedge_hub_core::kinds::{self, CONFIG_MAP, EVENT, Kind, LEASE};
use kedge_hub_core::object::{Event, Object};
use kedge_hub_core::requests::{self, Decision, DeleteOptions, Fresh, Objects, Part, Place, WriteOptions};
use kedge_hub_core::selector::Selection;
use kedge_hub_core::state::{
    Batch, Changed, Desired, Everything, Expect, Index, Leases, Marks, Order, Query, Restored, Spaces, Start,
    WatchRefused, Write, WriteError, restore,
};
use kedge_hub_core::{ApiError, patch};
use kedge_platform::fake::Random;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use time::macros::datetime;

/// The kind of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    Kedge,
    Kubernetes,
}

/// The namespace of every test's ConfigMaps.
pub const NAMESPACE: &str = "kube-system";
const LEASES: &str = "kube-node-lease";
/// The hub's clock never advances: no decision that a node sees depends on it.
const NOW: OffsetDateTime = datetime!(2026-11-21 01:35:58 UTC);
/// Revisions and UIDs of a new hub begin above this.
const FIRST: u64 = 100;

#[derive(Debug)]
pub struct Hub {
    pub flavour: Flavour,
    index: Index<Feed>,
    leases: Leases<Feed>,
    order: Order,
    /// The latest change that concerns each node.
    desired: Desired,
    /// Sources that Nodes have although today's rules refuse them.
    imposed: BTreeMap<String, Value>,
    uids: u64,
    pub events: Vec<Value>,
    /// Bodies of the accepted status patches, since the last call.
    pub status_patches: Vec<Value>,
    pub renewals: u64,
}

/// The hub as restored from a backup: with its objects, but without watchers or older changes.
impl Clone for Hub {
    fn clone(&self) -> Self {
        let (index, leases, order) = self.copy_of_state(self.revision());
        let desired = desired_of(&index, self.revision());
        Self {
            index,
            leases,
            order,
            desired,
            flavour: self.flavour,
            imposed: self.imposed.clone(),
            uids: self.uids,
            events: self.events.clone(),
            status_patches: self.status_patches.clone(),
            renewals: self.renewals,
        }
    }
}

/// The objects as the rules see them: without the sources that the rules would refuse, because they would
/// then refuse a node's own patches, too.
struct Rules<'a>(&'a Hub);

impl Objects for Rules<'_> {
    fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let object = self.0.of(kind).get(kind, namespace, name)?;
        if !self.0.is_imposed(kind, name) {
            return Some(object);
        }
        let mut node = object.value();
        remove(&mut node, "/spec", "configSource");
        Object::new(kind, &node, object.revision).map(Arc::new)
    }

    fn pods_of(&self, namespace: &str) -> Vec<Arc<Object>> {
        self.0.index.pods_of(namespace)
    }
}

impl Hub {
    pub fn new(flavour: Flavour) -> Self {
        let (index, leases, order) = empty_state(FIRST);
        let desired = Desired::new(FIRST);
        let mut hub = Self {
            flavour,
            index,
            leases,
            order,
            desired,
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

    /// Counts on from here: a hub that was wiped assigns other UIDs than before.
    pub fn wiped(&mut self, counter: u64) {
        let counter = counter.max(self.counter());
        (self.index, self.leases, self.order) = self.copy_of_state(counter);
        self.desired = desired_of(&self.index, counter);
        self.uids = counter;
    }

    /// The highest number that it has assigned.
    pub fn counter(&self) -> u64 {
        self.revision().max(self.uids)
    }

    /// The last revision of either space.
    fn revision(&self) -> u64 {
        self.order.revision().max(self.leases.revision())
    }

    /// The part of the state that has the objects of this kind.
    fn of(&self, kind: &Kind) -> &Index<Feed> {
        Everything { index: &self.index, leases: &self.leases }.of(kind)
    }

    fn copy_of_state(&self, revision: u64) -> (Index<Feed>, Leases<Feed>, Order) {
        let (mut index, mut leases, order) = empty_state(revision);
        for kind in kinds::KINDS {
            let page = self.of(kind).list(kind, &Selection::all(""), &Query::default());
            for object in page.expect("the latest is known").objects {
                match kind.is_renewed() {
                    true => leases.restore(kind, copied(kind, &object)),
                    false => index.restore(kind, copied(kind, &object)),
                }
            }
        }
        (index, leases, order)
    }

    fn is_imposed(&self, kind: &Kind, name: &str) -> bool {
        kind.kind == kinds::NODE.kind && self.imposed.contains_key(name)
    }

    // ------------------------------------------------------------------------------------------ reading

    fn object(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Value> {
        Some(self.of(kind).get(kind, namespace, name)?.value())
    }

    /// A list of the one object of this name, and its version. Null if it does not exist.
    pub(crate) fn list_one(&self, kind: &Kind, namespace: &str, name: &str) -> (Value, u64) {
        let page = self.of(kind).list(kind, &selection(kind, namespace, name), &Query::default());
        let page = page.expect("the latest is known");
        (page.objects.first().map_or(Value::Null, |object| object.value()), page.revision)
    }

    /// A watch of the one object of this name, with the changes after this version.
    pub(crate) fn watch(
        &mut self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        after: u64,
    ) -> Result<Feed, WatchRefused> {
        let selection = selection(kind, namespace, name);
        let feed = Feed::default();
        let (start, _, _) = match kind.is_renewed() {
            true => self.leases.watch(kind, selection, Some(after), feed.clone())?,
            false => self.index.watch(kind, selection, Some(after), feed.clone())?,
        };
        let Start::Changes(changes) = start else { unreachable!("it names a version") };
        feed.begin_with(changes);
        Ok(feed)
    }

    /// The Node of the first board.
    pub fn node(&self) -> Option<Value> {
        self.node_named(NODE)
    }

    pub fn node_named(&self, name: &str) -> Option<Value> {
        self.object(&kinds::NODE, "", name)
    }

    /// The Lease of the first board.
    pub fn lease(&self) -> Option<Value> {
        self.object(&LEASE, LEASES, NODE)
    }

    pub fn config_map(&self, name: &str) -> Option<Value> {
        self.object(&CONFIG_MAP, NAMESPACE, name)
    }

    pub fn node_uid(&self) -> String {
        self.index.get(&kinds::NODE, "", NODE).map(|node| node.uid.to_string()).unwrap_or_default()
    }

    pub fn uid_of(&self, name: &str) -> String {
        let map = self.config_map(name);
        let uid = map.as_ref().and_then(|map| map["metadata"]["uid"].as_str());
        uid.unwrap_or("uid-of-nothing").to_owned()
    }

    pub fn condition(&self, kind: &str) -> Option<Value> {
        self.condition_of(NODE, kind)
    }

    pub fn condition_of(&self, name: &str, kind: &str) -> Option<Value> {
        let node = self.node_named(name)?;
        let conditions = node["status"]["conditions"].as_array()?;
        conditions.iter().find(|condition| condition["type"] == kind).cloned()
    }

    // ------------------------------------------------------------------------------------------ writing

    fn fresh(&self) -> Fresh {
        let mut bytes = Random::new(self.counter());
        Fresh { now: NOW, random: std::array::from_fn(|_| bytes.number().to_le_bytes()[0]) }
    }

    /// Performs a decision. `uid` is the UID for a new object.
    fn perform(&mut self, decision: Decision, uid: Option<String>) -> Result<(), ApiError> {
        let Decision::Write(mut write, _) = decision else { return Ok(()) };
        if let (Some(uid), Some(new)) = (uid, &mut write.new) {
            new["metadata"]["uid"] = json!(uid);
        }
        self.write(write)
    }

    /// Makes a change; a Node keeps the source that was imposed on it.
    fn write(&mut self, write: Write) -> Result<(), ApiError> {
        if write.volatile {
            self.leases.renew(write).expect("one thread decided on what is there");
            return Ok(());
        }
        let is_deletion = write.new.is_none();
        let (kind, name) = (write.kind, write.name.clone());
        let mut changes = self.ordered(write)?;
        if is_deletion && kind.kind == kinds::NODE.kind {
            self.imposed.remove(&name);
        }
        if self.is_imposed(kind, &name) {
            for changed in &mut changes {
                let mut node = changed.event.object().value();
                node["spec"]["configSource"] = self.imposed[&name].clone();
                let node = Object::new(kind, &node, changed.event.revision).expect("it has a name");
                replace_new(changed, node);
            }
        }
        self.publish(changes);
        Ok(())
    }

    fn publish(&mut self, changes: Vec<Changed>) {
        for changed in changes {
            match changed.kind.is_renewed() {
                true => drop(self.leases.settle(changed).expect("nothing is renewed meanwhile")),
                false => {
                    self.desired.note(&changed);
                    self.index.publish(vec![changed]);
                }
            }
        }
    }

    /// Makes readers see this value in the object's place, whatever it is; the rules see an empty object of
    /// that name.
    fn show(&mut self, place: &Place<'_>, shown: &Value) {
        let Place { kind, namespace, name } = *place;
        let (expect, new) = (self.expect(place), Some(stand_in(namespace, name)));
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let write =
            Write { kind, namespace, name, expect, requires: Vec::new(), new, volatile: false, author: None };
        let mut changes = self.ordered(write).expect("it is small");
        for changed in &mut changes {
            let text = serde_json::to_vec(shown).expect("a JSON value can be written");
            let object = with_text(place, changed.event.revision, text);
            replace_new(changed, object);
        }
        self.publish(changes);
    }

    fn expect(&self, place: &Place<'_>) -> Expect {
        let current = self.of(place.kind).get(place.kind, place.namespace, place.name);
        current.map_or(Expect::Absent, |object| Expect::Revision(object.revision))
    }

    /// The change with its revision, durable but not yet published.
    fn ordered(&mut self, write: Write) -> Result<Vec<Changed>, ApiError> {
        let mut batch = Batch::default();
        let staged = match write.kind.is_renewed() {
            true => self.leases.stage(&self.index, &mut batch, write),
            false => self.order.stage(&self.index, &mut batch, write),
        };
        match staged {
            Err(WriteError::TooLarge) => return Err(ApiError::too_large("the object is too large")),
            Err(WriteError::Excess(excess)) => return Err(excess.refusal("the object")),
            staged => drop(staged.expect("one thread decided on what is there")),
        }
        let commit = self.order.commit(&self.leases, batch, 0).expect("it has a change");
        Ok(self.order.committed(&mut self.leases, commit))
    }

    fn create(&mut self, kind: &'static Kind, namespace: &str, value: Value) -> Result<String, ApiError> {
        self.create_by(None, kind, namespace, value)
    }

    /// Creates an object, by the node of this name or by another client.
    fn create_by(
        &mut self,
        author: Option<&str>,
        kind: &'static Kind,
        namespace: &str,
        value: Value,
    ) -> Result<String, ApiError> {
        let options = WriteOptions { author, ..WriteOptions::internal() };
        let decision =
            requests::create(&Rules(self), kind, namespace, value.clone(), &options, &self.fresh())?;
        self.uids += 1;
        let name = value["metadata"]["name"].as_str().unwrap_or_default();
        let uid = match kind.kind {
            "ConfigMap" => format!("uid-{name}-{}", self.uids),
            kind => format!("{}-{}", kind.to_lowercase(), self.uids),
        };
        self.perform(decision, Some(uid.clone()))?;
        Ok(uid)
    }

    /// A patch by the node of this name.
    fn patch(
        &mut self,
        author: &str,
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
        let options = WriteOptions { author: Some(author), ..WriteOptions::internal() };
        let decision = requests::edit(&Rules(self), place, part, &options, &self.fresh(), compute)?;
        self.perform(decision, None)
    }

    fn delete(&mut self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Value> {
        let there = self.of(kind).get(kind, namespace, name)?;
        let shown = there.value();
        let place = Place { kind, namespace, name };
        if !is_sound(kind, &there) {
            // the rules cannot parse the value that is only shown
            let text = stand_in(namespace, name).to_string().into_bytes();
            let readable = with_text(&place, there.revision, text);
            match kind.is_renewed() {
                true => self.leases.restore(kind, readable),
                false => self.index.restore(kind, readable),
            }
        }
        let (options, asked) = (WriteOptions::internal(), DeleteOptions::default());
        let decision = requests::delete(&Rules(self), &place, &asked, &options, NOW).expect("it is there");
        self.perform(decision, None).expect("a deletion is small");
        Some(shown)
    }

    /// Stores an object unchanged, whatever the rules require; one that is too large for the store is only
    /// shown.
    fn overwrite(&mut self, place: &Place<'_>, mut new: Value) {
        let Place { kind, namespace, name } = *place;
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let expect = self.expect(place);
        let write = Write {
            kind,
            namespace,
            name,
            expect,
            requires: Vec::new(),
            new: Some(new.clone()),
            volatile: false,
            author: None,
        };
        if self.write(write).is_err() {
            let next = self.order.revision() + 1;
            new["metadata"]["resourceVersion"] = json!(next.to_string());
            self.show(place, &new);
        }
    }

    // ------------------------------------------------------------------------------------------ the operator

    /// Creates the Node, as a node's registration would; an existing one is deleted first.
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

    /// The same with any data. It has a new version even if nothing else changed.
    pub fn push_data(&mut self, name: &str, data: Value) -> String {
        let mut map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data,
        });
        let there = self.config_map(name);
        let uid = match there.as_ref().and_then(|there| there["metadata"]["uid"].as_str()) {
            Some(uid) => uid.to_owned(),
            None => match self.create(&CONFIG_MAP, NAMESPACE, map.clone()) {
                Ok(uid) => return uid,
                Err(_) => format!("uid-{name}-{}", self.uids),
            },
        };
        map["metadata"]["uid"] = json!(uid);
        if let Some(there) = there {
            map["metadata"]["creationTimestamp"] = there["metadata"]["creationTimestamp"].clone();
        }
        self.overwrite(&Place { kind: &CONFIG_MAP, namespace: NAMESPACE, name }, map);
        uid
    }

    /// Shows any value as the ConfigMap, even one that is hardly a ConfigMap, whatever was there before.
    pub fn put_config_map(&mut self, name: &str, map: &Value) {
        self.show(&Place { kind: &CONFIG_MAP, namespace: NAMESPACE, name }, map);
    }

    /// Deletes it and returns it, if it existed.
    pub fn delete_config_map(&mut self, name: &str) -> Option<Value> {
        self.delete(&CONFIG_MAP, NAMESPACE, name)
    }

    /// `{configMapRef}` for the present ConfigMap of that name.
    pub fn pinned(&self, name: &str) -> Value {
        json!({"configMapRef": {"namespace": NAMESPACE, "name": name, "uid": self.uid_of(name)}})
    }

    /// `{configMap}` for that name.
    pub fn following(name: &str) -> Value {
        json!({"configMap": {"namespace": NAMESPACE, "name": name, "kubeletConfigKey": "kubelet"}})
    }

    /// Sets the source in the Node of the first board; null removes it. On a Kubernetes server it sets the
    /// annotation.
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
        // if the Node had a source that the rules refuse, they would refuse a node's own patches, too
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

    /// Whether the rules allow a Node to have this source.
    fn is_storable(&self, name: &str, source: &Value) -> bool {
        let node = Place { kind: &kinds::NODE, namespace: "", name };
        let assigned = |_: &Object, mut node: Value| {
            node["spec"]["configSource"] = source.clone();
            Ok(node)
        };
        let options = WriteOptions::internal();
        requests::edit(&Rules(self), &node, Part::Main, &options, &self.fresh(), assigned).is_ok()
    }

    pub fn edit_node(&mut self, edit: impl FnOnce(&mut Value)) {
        self.edit(NODE, edit);
    }

    fn edit(&mut self, name: &str, edit: impl FnOnce(&mut Value)) {
        let Some(mut node) = self.node_named(name) else { return };
        edit(&mut node);
        self.overwrite(&Place { kind: &kinds::NODE, namespace: "", name }, node);
    }

    /// The node lifecycle controller's reaction to a silent node.
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
            Request::Register(body) | Request::PatchLabels(body) if reserved_label(body).is_some() => {
                let label = reserved_label(body).unwrap_or_default();
                let why = format!("nodes {name:?} is forbidden: is not allowed to modify labels: {label}");
                return refused(403, "Forbidden", &why);
            }
            Request::Register(node) => self.create_by(Some(name), &kinds::NODE, "", node.clone()).map(drop),
            Request::PatchStatus(body) => {
                let done = self.patch(name, &node, Part::Status, |node| {
                    patch::strategic::apply(kinds::NODE.schema(), node, body.clone())
                });
                if done.is_ok() {
                    self.status_patches.push(body.clone());
                }
                done
            }
            Request::PatchLabels(body) | Request::PatchNode(body) => {
                self.patch(name, &node, Part::Main, |node| {
                    patch::merge::apply(node, body.clone());
                    Ok(())
                })
            }
            Request::PostEvent(event) => return answer(self.post(event)),
            Request::Pods { ask, .. } => return self.answer_pods(name, ask),
            Request::RejectPods => unreachable!("no simulated agent is asked to reject all pods"),
        };
        // agents ask our hub for no answer, and other servers for the metadata only
        if done.is_ok() && self.flavour == Flavour::Kubernetes {
            let metadata = self.node_named(name).map(|node| node["metadata"].clone());
            return Answer::Accepted(Some(json!({"metadata": metadata})));
        }
        answer(done)
    }

    /// An Event is validated, but kept only for the test: there are too many.
    fn post(&mut self, event: &Value) -> Result<(), ApiError> {
        let namespace = event["metadata"]["namespace"].as_str().unwrap_or_default();
        let options = WriteOptions::internal();
        requests::create(&Rules(self), &EVENT, namespace, event.clone(), &options, &self.fresh())?;
        self.events.push(event.clone());
        Ok(())
    }

    /// Answers a renewal by the node of this name.
    pub fn renew(&mut self, name: &str, request: &LeaseRequest) -> Answer {
        let done = match request {
            LeaseRequest::Create(lease) => self.create(&LEASE, LEASES, lease.clone()).map(drop),
            LeaseRequest::Patch(body) => self.patch_lease(name, body),
            LeaseRequest::Renew(time) => self.patch_lease(name, &json!({"spec": {"renewTime": time}})),
        };
        self.renewals += u64::from(done.is_ok());
        answer(done)
    }

    fn patch_lease(&mut self, name: &str, body: &Value) -> Result<(), ApiError> {
        let lease = Place { kind: &LEASE, namespace: LEASES, name };
        self.patch(name, &lease, Part::Main, |lease| {
            patch::merge::apply(lease, body.clone());
            Ok(())
        })
    }

    /// The latest change that concerns this node, as the answer to a renewal names it; only our hub does.
    pub fn desired(&self, name: &str) -> Option<u64> {
        (self.flavour == Flavour::Kedge).then(|| self.desired.of(name))
    }
}

fn desired_of(index: &Index<Feed>, revision: u64) -> Desired {
    let mut desired = Desired::new(revision);
    for kind in [&kinds::NODE, &kinds::POD] {
        let page = index.list(kind, &Selection::all(""), &Query::default()).expect("the latest is known");
        page.objects.iter().for_each(|object| desired.restore(kind, object));
    }
    desired
}

/// A label that a node may not set on itself. Other permissions of a node are not checked here.
fn reserved_label(body: &Value) -> Option<&str> {
    let labels = body["metadata"]["labels"].as_object()?;
    labels.keys().map(String::as_str).find(|key| !api::labels::may_node_set(key))
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

/// The one object of this name.
fn selection(kind: &Kind, namespace: &str, name: &str) -> Selection {
    let escaped = name.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
    Selection::parse(kind, namespace, "", &format!("metadata.name={escaped}")).expect("every kind has names")
}

/// Whether the object's own fields agree with the index.
fn is_sound(kind: &Kind, object: &Object) -> bool {
    let read = Object::from_json(kind, object.json.to_vec(), object.revision);
    read.is_some_and(|read| (&read.namespace, &read.name) == (&object.namespace, &object.name))
}

fn copied(kind: &'static Kind, object: &Object) -> Object {
    let text = object.json.to_vec();
    if is_sound(kind, object) {
        return Object::from_json(kind, text, object.revision).expect("it was read just now");
    }
    let place = Place { kind, namespace: &object.namespace, name: &object.name };
    with_text(&place, object.revision, text)
}

fn stand_in(namespace: &str, name: &str) -> Value {
    json!({"metadata": {"namespace": namespace, "name": name}})
}

/// An object of this place with this text for its readers.
fn with_text(place: &Place<'_>, revision: u64, text: Vec<u8>) -> Object {
    let stand_in = stand_in(place.namespace, place.name);
    let mut object = Object::new(place.kind, &stand_in, revision).expect("it has a name");
    object.json = text.into();
    object
}

fn replace_new(changed: &mut Changed, new: Object) {
    let Event { revision, old, .. } = &*changed.event;
    let event = Event { revision: *revision, old: old.clone(), new: Some(Arc::new(new)), last: None };
    changed.event = Arc::new(event);
}

/// The state of a new store, at this revision.
fn empty_state(revision: u64) -> (Index<Feed>, Leases<Feed>, Order) {
    let marks = Spaces::both(Marks { reserved: revision, clean: Some(revision) });
    let Restored { index, leases, order, .. } =
        restore(marks, Vec::new()).expect("the revision is one of ours");
    (index, leases, order)
}
