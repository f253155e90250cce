//! The life of the pods bound to this node: which pods should run, which run, the next steps, and the
//! reports.
//!
//! `Pods::handle` takes one event at one time and appends actions; `Pods::next_deadline` says when to call it
//! again without one. Always holds: there are no actions until the runtime's inventory, the desired set on
//! disk and whether pods are held are known; an unread list means nothing; a pod belongs to the Node that it
//! was bound to, and keeps running as an orphan when the node gets another Node; while pods are held no
//! container is started or stopped. Leaves to others: containers, images, files and requests (`event` is the
//! contract).

pub(crate) mod actor;
mod admission;
mod ahead;
mod backoff;
mod desired;
mod environment;
mod event;
mod eviction;
mod failing;
mod fields;
mod files;
#[cfg(test)]
mod fixture;
mod hooks;
mod image_volumes;
mod in_api;
mod keys;
mod lane;
mod life;
mod listing;
mod mirrors;
mod objects;
mod orders;
mod places;
mod probes;
mod pulls;
mod record;
pub(crate) mod rejecting;
mod report;
mod resizing;
mod resources;
pub(crate) mod security;
pub(crate) mod shares;
mod shutdown;
mod spec;
mod static_pods;
mod statics;
mod status;
mod steps;
mod table;
mod tokens;
mod volumes;

pub use crate::images::image::Image;
pub use crate::node::facts::ApiServer;
pub(crate) use crate::node::facts::DEVICE;
pub use crate::node::pressing::Pressing;
pub use event::{
    Command, Console, ContainerOrder, ContainerState, ContainerUsage, DesiredFile, DesiredFound, DiskUsage,
    Dns, Exit, Failure, FailureReason, HostPort, ImageConfig, ImageOrder, Inventory, Measure, Mount,
    NodeFacts, ObjectRead, Observation, PodAction, PodAsk, PodEvent, PodFound, PodNetwork, PodNetworks,
    PodNews, PodRequest, PodSandbox, PodUsage, PullPolicy, QosClass, Resources, Seccomp, Security,
    StaticFile, TERMINATION_MESSAGE_BYTES, TerminationMessage, TokenName, TokenRead, Volume, VolumeFile,
    VolumeSource,
};
pub use keys::{ContainerKey, ObjectKind, ObjectName, PodRef, PodUid};
pub use orders::{HookAct, HookKind, HookNote, HookOrder, RunKey};

pub use probes::{Check, Health, HttpCheck, ProbeKey, ProbeKind, ProbeOrder, ProbeOutcome};
pub use rejecting::rejection;
pub use report::{ContainerReport, PodReport, WaitReport};
pub use shares::{Shares, part_of};

use crate::answer::{Answer, Level, Now};
use crate::pods::spec::MIRROR_ANNOTATION;
use crate::sorted::{SortedMap, SortedSet};
use desired::Desired;
use failing::{Active, Failed};
use kedge_api::STATIC_PATH_ANNOTATION;
use life::{Context, Life, Origin, SandboxState, Verdict};
use listing::{Early, Listing};
use mirrors::Mirrors;
use objects::KnownObjects;
use record::Record;
use report::COMPLAINT_CHARS;
use serde_json::{Value, json};
use spec::Pod;
use statics::{StaticResults, Statics};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// Most pods remembered for each pod that may run: some of them end, some were rejected and wait to be
/// deleted.
const LIVES_PER_POD: u64 = 4;
/// Text of the Event on a pod that waits while pods are held; the Node's condition says for how long.
const HELD: &str = "waits: the agent on this node ended too often, and starts and stops no pod for a while; see the node's condition PodsHeld";
/// Pods that may run while the node's facts are unknown: upstream's `maxPods`.
const USUAL_PODS: u64 = 110;

/// For pods that do not fit its labels the Node is read no more often than this.
const NODE_READ_EVERY: Duration = Duration::from_secs(5);
/// Most rounds over the pods after one event: a step of one pod may affect another, but the step of that one
/// affects no third.
const MOST_ROUNDS: usize = 8;

/// Readings of this node's Node: a verdict waits for a reading that began after the verdict became due.
#[derive(Debug, Clone, Copy, Default)]
struct NodeReading {
    /// How many were ordered, and the number of the last completed one.
    ordered: u64,
    done: u64,
    /// No other reading is ordered before this time: a controller may bind unfitting pods one after another.
    not_before: Duration,
}

/// The pods of one node.
#[derive(Debug, Clone)]
pub struct Pods {
    node_name: String,
    node: Option<NodeFacts>,
    node_reading: NodeReading,
    /// `None` while unknown, in which case there are no actions.
    is_held: Option<bool>,
    has_inventory: bool,
    /// The logs that the runtime reported, kept until the desired set is known.
    logs: SortedMap<PodUid, SortedMap<String, u32>>,
    lives: BTreeMap<PodUid, Life>,
    listing: Listing,
    desired: Desired,
    objects: KnownObjects,
    statics: Statics,
    mirrors: Mirrors,
    /// The places of probes and hooks.
    places: places::Places,
    eviction: eviction::Eviction,
    shutdown: shutdown::Shutdown,
}

impl Pods {
    #[must_use]
    pub fn new(node_name: &str) -> Self {
        Self {
            node_name: node_name.to_owned(),
            node: None,
            node_reading: NodeReading::default(),
            is_held: None,
            has_inventory: false,
            logs: SortedMap::new(),
            lives: BTreeMap::new(),
            listing: Listing::default(),
            desired: Desired::default(),
            objects: KnownObjects::default(),
            statics: Statics::default(),
            mirrors: Mirrors::default(),
            places: places::Places::default(),
            eviction: eviction::Eviction::default(),
            shutdown: shutdown::Shutdown::default(),
        }
    }

    /// Takes one event; appends the actions that follow.
    pub fn handle(&mut self, now: Now, event: PodEvent, actions: &mut Vec<PodAction>) {
        let first = actions.len();
        self.route(now, event, actions);
        self.settle(now, actions);
        self.give_places(now, first, actions);
    }

    /// Holds back new actions that need a place, and starts those that get one now.
    fn give_places(&mut self, now: Now, first: usize, actions: &mut Vec<PodAction>) {
        for action in actions.split_off(first) {
            if let Some(other) = self.places.want(now.mono, action) {
                actions.push(other);
            }
        }
        let lives = &self.lives;
        let is_wanted = |run: &RunKey| lives.get(&run.container().pod).is_some_and(|life| life.awaits(run));
        let may_probe = self.is_held == Some(false);
        let places::Given { actions: begun, expired } = self.places.give(now.mono, may_probe, &is_wanted);
        actions.extend(begun);
        for run in expired {
            let RunKey::Hook(container, kind) = run else { continue };
            let why = "its time was over before there was a place for it";
            self.with(&container.pod.clone(), |life| {
                life.hook_ended(&container, kind, &Err(why.into()), actions);
            });
        }
    }

    /// When to call `handle` with `Tick` if nothing happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let is_ready = self.is_ready();
        let lives = self.lives.values().filter(|_| is_ready);
        let wake = |life: &Life| life.wake.into_iter().chain(life.probing.wake).min();
        let lives = lives.filter_map(|life| if life.is_dirty { Some(Duration::ZERO) } else { wake(life) });
        let may_evict = is_ready && self.is_held == Some(false);
        let eviction = self.eviction_deadline().filter(|_| may_evict);
        lives
            .chain(eviction)
            .chain(self.shutdown_deadline())
            .chain(self.mirrors.deadline())
            .chain(self.node_reading_due().filter(|_| is_ready))
            .chain(self.desired.deadline())
            .chain(self.listing.deadline())
            .chain(self.places.next_deadline())
            .min()
    }

    /// Whether everything that decisions need is known.
    fn is_ready(&self) -> bool {
        self.desired.is_read && self.has_inventory && self.is_held.is_some() && self.node.is_some()
    }

    /// Puts the event where it belongs: into a life, or into the state of the node.
    fn route(&mut self, now: Now, event: PodEvent, actions: &mut Vec<PodAction>) {
        match event {
            PodEvent::DesiredRead(found) => self.desired_read(now, found, actions),
            PodEvent::Inventory(inventory) => self.inventory(now, inventory),
            PodEvent::Observed(observation) => self.observed(now, &observation, actions),
            PodEvent::PodPrepared { pod, network } => self.with(&pod, |life| life.prepared(network)),
            PodEvent::VolumesUpdated { pod } => self.with(&pod, |life| life.files.updated()),
            PodEvent::TokenRead { name, read } => {
                if let Some(uid) = tokens::uid_of(&name) {
                    self.with(&uid, |life| life.token_answered(now, &name, read));
                }
            }
            PodEvent::ObjectsAreOld => self.read_objects_again(now, actions),
            PodEvent::PodRemoved { pod } => self.with(&pod, Life::removed),
            PodEvent::ContainerRemoved(key) => self.with(&key.pod, |life| life.container_removed(&key)),
            // these images are no container's, so there is no Event about them
            PodEvent::ImagePulling { container, .. }
                if [ahead::SLOT, image_volumes::SLOT].contains(&container.as_str()) => {}
            PodEvent::ImagePulling { pod, container } => self.with(&pod, |life| {
                let message = format!("Pulling image {:?}", life.image_of(&container));
                life.announce_of(&container, false, "Pulling", message, actions);
            }),
            PodEvent::ImageReady { pod, container, image } => {
                self.with(&pod, |life| match container.as_str() {
                    ahead::SLOT => life.image_ahead_ready(&image, actions),
                    image_volumes::SLOT => life.image_volume_ready(image, actions),
                    name => life.image_ready(name, image, actions),
                });
            }
            PodEvent::Failed { command, failure } => {
                self.with(command.pod(), |life| life.failed(now, &command, &failure, actions));
            }
            PodEvent::Probed { probe, outcome } => {
                self.places.ended(&RunKey::Probe(probe.clone()));
                if let Some(life) = self.lives.get_mut(&probe.container.pod) {
                    life.probed(now, &probe, &outcome, actions);
                }
            }
            PodEvent::HookEnded { container, kind, done } => {
                self.places.ended(&RunKey::Hook(container.clone(), kind));
                if let Some(life) = self.lives.get_mut(&container.pod) {
                    life.hook_ended(&container, kind, &done, actions);
                }
            }
            PodEvent::RunStopped(run) => {
                self.places.stopped(&run);
                if let Some(life) = self.lives.get_mut(&run.container().pod) {
                    life.made_room(now, &run, actions);
                }
            }
            PodEvent::Tick | PodEvent::StaticPodsUnchanged => {}
            PodEvent::NodeRead => {
                self.node_reading.done = self.node_reading.ordered;
                self.touch_all();
            }
            PodEvent::ImagesCollected(_) => self.images_collected(),
            PodEvent::Looked(pressing) => self.looked(now, pressing),
            PodEvent::Shutdown(stops) => self.machine_stops(stops, actions),
            PodEvent::PodsMeasured { measure, usages, took } => {
                self.measured(now, measure, &usages, took, actions);
            }
            PodEvent::Node(facts) => self.node(*facts),
            PodEvent::Held(is_held) => {
                self.is_held = Some(is_held);
                self.touch_all();
            }
            PodEvent::StaticPods(files) => self.static_pods(now, files, actions),
            PodEvent::ObjectRead { name, read } => {
                let present = self.listing.node_uid.as_ref().and_then(|uid| self.objects.get_mut(uid));
                if present.is_some_and(|objects| objects.answered(now, &name, read, actions)) {
                    self.object_changed(&name);
                }
                self.touch_all();
            }
            PodEvent::Release(which) => self.release(now, which.as_ref(), actions),
            PodEvent::DesiredSaved { file: DesiredFile::Pod(uid), done } => {
                match self.lives.contains_key(&uid) {
                    true => self.with(&uid, |life| life.desired_saved(now, &done, actions)),
                    false => self.desired.leftover_removed(now, uid, &done),
                }
            }
            PodEvent::DesiredSaved { file: DesiredFile::Object(digest), done } => {
                self.objects.saved(&digest, &done);
                self.touch_all();
            }
            PodEvent::Answered { request, answer } => self.answered(now, &request, &answer),
            // before the desired set is known, a pod that runs here would look new
            news if self.desired.is_read => self.api_news(now, news, actions),
            news => self.listing.early.note(news),
        }
    }

    /// Takes events of the API server about its pods.
    fn api_news(&mut self, now: Now, news: PodEvent, actions: &mut Vec<PodAction>) {
        match news {
            PodEvent::PodsListed { node_uid, pods } => self.listed(now, node_uid, &pods, actions),
            PodEvent::PodSeen(object) => self.seen(now, &object, actions),
            PodEvent::PodGone(object) => self.gone(now, &object),
            _ => {}
        }
    }

    fn observed(&mut self, now: Now, observation: &Observation, actions: &mut Vec<PodAction>) {
        let uid = &observation.container.pod;
        let has_ended = matches!(observation.state, ContainerState::Exited(_) | ContainerState::Lost(_));
        // the end of an unknown pod needs no step
        if self.lives.contains_key(uid) || !has_ended {
            self.life_of(uid).observed(now, observation, actions);
        }
    }

    /// The files of volumes may come from this object.
    fn object_changed(&mut self, name: &ObjectName) {
        for life in self.lives.values_mut() {
            let refers = life.pod.as_ref().is_some_and(|pod| objects::needed_by(pod).contains(name));
            life.files.is_stale |= refers;
        }
    }

    /// Reads the objects again that pods of the current API server refer to.
    fn read_objects_again(&mut self, now: Now, actions: &mut Vec<PodAction>) {
        let Some(node_uid) = self.listing.node_uid.as_ref().filter(|_| self.desired.is_read) else { return };
        let bound = self.lives.values().filter(|life| life.node_uid() == node_uid && !life.is_over());
        let needed: SortedSet<ObjectName> =
            bound.filter_map(|life| life.pod.as_ref()).flat_map(|pod| objects::needed_by(pod)).collect();
        if let Some(objects) = self.objects.get_mut(node_uid) {
            needed.iter().for_each(|name| objects.read_again(now, name, actions));
        }
    }

    fn with(&mut self, uid: &PodUid, change: impl FnOnce(&mut Life)) {
        if let Some(life) = self.lives.get_mut(uid) {
            change(life);
            life.is_dirty = true;
        }
    }

    fn touch_all(&mut self) {
        for life in self.lives.values_mut() {
            life.is_dirty = true;
        }
    }

    /// Statuses that were refused need not wait any longer.
    fn statuses_are_taken(&mut self) {
        for api in self.lives.values_mut().filter_map(|life| life.api.as_mut()) {
            api.retry.0.succeeded();
        }
        self.touch_all();
    }

    /// The pod with that UID; if there is none, adds one that only the runtime knows.
    fn life_of(&mut self, uid: &PodUid) -> &mut Life {
        let origin = Origin::Found { node_uid: String::new() };
        self.lives.entry(uid.clone()).or_insert_with(|| Life::new(uid.clone(), "", "", origin))
    }

    fn node(&mut self, facts: NodeFacts) {
        if self.node.as_ref() != Some(&facts) {
            self.node = Some(facts);
            self.touch_all();
        }
    }

    // ---- the desired set on disk, and the runtime's inventory

    fn desired_read(
        &mut self,
        now: Now,
        found: Result<Vec<DesiredFound>, String>,
        actions: &mut Vec<PodAction>,
    ) {
        let warn = |text: String| PodAction::Log(Level::Warn, text);
        let found = match found {
            Ok(found) => found,
            Err(why) => {
                self.desired.unread(now, &why, actions);
                return;
            }
        };
        let mut unusable = Vec::new();
        for DesiredFound { file, content } in found {
            let path = file.path();
            let taken = content.and_then(|content| match &file {
                DesiredFile::Pod(uid) => self.record_found(now, uid, &content),
                DesiredFile::Object(digest) => self.objects.copy_found(digest, &content),
            });
            let Err(why) = taken else { continue };
            actions.push(warn(format!("{path} cannot be used: {why}; what runs goes on")));
            match file {
                DesiredFile::Pod(uid) => {
                    unusable.push(DesiredFile::Pod(uid.clone()));
                    self.desired.unreadable.insert(uid);
                }
                // it may be a copy of a Secret, which must not outlive the Secret or an annotation that
                // forbids it; the server still has the data
                DesiredFile::Object(digest) => self.objects.copy_is_unreadable(digest),
            }
        }
        if !unusable.is_empty() {
            actions.push(PodAction::KeepAside(unusable));
        }
        self.desired.is_read = true;
        self.objects.has_new_needs = true;
        self.statics.forget_results(actions);
        let Early { node_uid, pods } = std::mem::take(&mut self.listing.early);
        if let Some(node_uid) = node_uid {
            let pods: Vec<Value> = pods.into_values().collect();
            self.listed(now, node_uid, &pods, actions);
        }
        self.touch_all();
    }

    fn record_found(&mut self, now: Now, uid: &PodUid, content: &[u8]) -> Result<(), String> {
        let (record, pod) = Record::read(content)?;
        if pod.uid != *uid {
            return Err(format!("it is of pod {}", pod.uid));
        }
        let durable = record.meaning();
        let failed = record.failed.map(|failed| Failed { since: now.mono, ..failed });
        let active_since = record.active_since;
        if record.node_uid.is_empty() {
            let path = pod.annotations.get(STATIC_PATH_ANNOTATION).cloned();
            let results = StaticResults { path, results: record.results, failed, active_since, durable };
            self.statics.results.insert(uid.clone(), results);
            self.begin_static(now, uid);
            return Ok(());
        }
        let origin = Origin::Api { node_uid: record.node_uid };
        let life = self.lives.entry(uid.clone());
        let life = life.or_insert_with(|| Life::new(uid.clone(), &pod.namespace, &pod.name, origin.clone()));
        life.origin = origin;
        life.namespace.clone_from(&pod.namespace);
        life.name.clone_from(&pod.name);
        life.admission.verdict = record.rejected.map_or(Verdict::Admitted, Verdict::Rejected);
        life.results = record.results;
        life.ending.failed = failed;
        life.ending.active = active_since.map(|since| Active::since(since, pod.created, now));
        life.ending.asked =
            record.ended.map(|secs| life::End { grace: Duration::from_secs(secs), since: now.mono });
        life.pod = Some(Rc::new(pod));
        life.saved.durable = Some(durable);
        life.saved.is_stale = true;
        Ok(())
    }

    fn inventory(&mut self, now: Now, inventory: Inventory) {
        let mut silent = vec![];
        let seen: SortedSet<&ContainerKey> =
            inventory.containers.iter().map(|found| &found.container).collect();
        for found in &inventory.pods {
            let life = self.life_of(&found.uid);
            if let Origin::Found { node_uid } = &mut life.origin {
                node_uid.clone_from(&found.node_uid);
                life.namespace.clone_from(&found.namespace);
                life.name.clone_from(&found.name);
            }
            if !matches!(life.sandbox.state, SandboxState::Preparing | SandboxState::Removing { .. }) {
                life.sandbox.state =
                    if found.network.is_some() { SandboxState::Ready } else { SandboxState::Half };
            }
            life.sandbox.network = found.network.clone().unwrap_or_default();
        }
        for observation in &inventory.containers {
            // the earlier process has already recorded Events about its own commands
            let life = self.life_of(&observation.container.pod);
            life.observed(now, observation, &mut silent);
            life.adopt_health(&observation.container, &inventory.health);
            life.adopt_hooks(now.mono, &observation.container, &inventory.hooks);
        }
        let prepared: SortedSet<&PodUid> = inventory.pods.iter().map(|found| &found.uid).collect();
        for life in self.lives.values_mut() {
            life.forget_unseen(now, &seen, prepared.contains(&life.uid.clone()));
            // an earlier agent may have been killed before it updated the volumes' files
            life.files.is_stale = true;
            life.is_dirty = true;
        }
        self.logs = inventory.logs;
        self.has_inventory = true;
    }

    // ---- the API server

    fn listed(&mut self, now: Now, node_uid: String, pods: &[Value], actions: &mut Vec<PodAction>) {
        let is_same_node = self.listing.node_uid.replace(node_uid.clone()).as_ref() == Some(&node_uid);
        if !is_same_node {
            self.objects.node_changed(&node_uid);
        }
        let mirrors = self.mirrors.list_begins();
        let mut listed = BTreeSet::new();
        let foreign = pods.iter().filter(|object| self.is_bound_elsewhere(object)).count();
        if foreign > 0 {
            let text = format!("the API server listed {foreign} pods of other nodes, which are ignored");
            actions.push(PodAction::Log(Level::Warn, text));
        }
        // a list is believed even if its versions are older: the server's data may have been restored from a
        // backup
        for api in self.lives.values_mut().filter_map(|life| life.api.as_mut()) {
            api.version = None;
        }
        self.listing.has_told_of_parts &= pods.iter().any(shares::is_part);
        for object in pods {
            if let Some(uid) = object["metadata"]["uid"].as_str().and_then(PodUid::new) {
                // the server has the pod again
                self.with(&uid, |life| {
                    life.api.take_if(|api| api.is_deleted);
                });
                listed.insert(uid);
            }
            self.seen(now, object, actions);
        }
        if is_same_node {
            self.mirrors.list_ends(now, mirrors);
        }
        for life in self.lives.values_mut() {
            let is_bound_here = match &life.origin {
                Origin::Api { node_uid: bound } => *bound == node_uid,
                // empty for a static pod
                Origin::Found { node_uid: bound } => !bound.is_empty() && *bound == node_uid,
                Origin::Static { .. } => false,
            };
            if is_bound_here && !listed.contains(&life.uid) {
                life.gone_from_api(now);
            }
            // the current server's object, if any, belongs to another Node's API
            if is_orphan(life, &node_uid) {
                life.api = None;
            }
            life.is_dirty = true;
        }
        self.desired.forget_unreadable(|uid| self.lives.contains_key(uid), actions);
    }

    /// Whether the pod is another node's: the server, or a proxy in front of it, did not filter.
    fn is_bound_elsewhere(&self, object: &Value) -> bool {
        object["spec"]["nodeName"].as_str().is_some_and(|name| !name.is_empty() && name != self.node_name)
    }

    fn seen(&mut self, now: Now, object: &Value, actions: &mut Vec<PodAction>) {
        if self.is_bound_elsewhere(object) {
            return;
        }
        if let Some(hash) = object["metadata"]["annotations"][MIRROR_ANNOTATION].as_str() {
            self.mirrors.seen(hash, object);
            self.touch_all();
            return;
        }
        let Some(node_uid) = self.listing.node_uid.clone() else { return };
        if shares::is_part(object) {
            self.seen_in_part(now, object, actions);
            return;
        }
        // a pod with an invalid spec is taken without it, so that its status can say what is wrong
        let (pod, problem) = match Pod::read(object) {
            Ok(pod) => (pod, None),
            Err(why) => match Pod::read(&without_spec(object)) {
                Ok(pod) => (pod, Some(kedge_api::excerpt_of(&why, COMPLAINT_CHARS))),
                Err(_) => {
                    let why = kedge_api::excerpt_of(&why, COMPLAINT_CHARS);
                    let name = kedge_api::excerpt(object["metadata"]["name"].as_str().unwrap_or_default());
                    let text = format!("a pod named {name:?} cannot be read and is left alone: {why}");
                    actions.push(PodAction::Log(Level::Warn, text));
                    return;
                }
            },
        };
        if self.is_one_too_many(&pod.uid) {
            let why = format!("this node has {} pods, and remembers no more", self.lives.len());
            turn_away(&pod, object, &why, actions);
            return;
        }
        self.end_predecessors(now, &node_uid, &pod);
        let origin = Origin::Api { node_uid };
        let uid = pod.uid.clone();
        let life = self.lives.entry(uid.clone());
        let life = life.or_insert_with(|| Life::new(uid.clone(), &pod.namespace, &pod.name, origin.clone()));
        // the content on disk is unknown, so the record is written anew
        life.saved.is_unknown |= self.desired.takes_over(&uid);
        life.bound(now, origin, pod, object, problem);
        self.objects.has_new_needs = true;
    }

    /// Takes a pod of a namespace that exceeds its share: a running pod keeps running unchanged until it is
    /// deleted; any other pod is rejected.
    fn seen_in_part(&mut self, now: Now, object: &Value, actions: &mut Vec<PodAction>) {
        let Ok(pod) = Pod::read(&without_spec(object)) else { return };
        if !std::mem::replace(&mut self.listing.has_told_of_parts, true) {
            let message = format!(
                "pods of namespace {} are more, or larger, than its share of what this node takes ({} pods, {} bytes of all \
                 namespaces): pod {} and further ones are rejected, and of those that run only the deletion is seen",
                pod.namespace,
                shares::MOST_TAKEN,
                shares::MOST_TAKEN_BYTES,
                pod.name
            );
            actions.push(PodAction::WarnOfNode { reason: "PodsLeftOut", message });
        }
        match self.lives.get_mut(&pod.uid) {
            Some(life) => life.seen_in_part(now, &pod, object),
            // its record is unreadable, so it may be running
            None if self.desired.unreadable.contains(&pod.uid) => {}
            // the same for a pod that the inventory may still report
            None if !self.has_inventory => self.listing.later(now),
            None => {
                let why = format!(
                    "the pods of its namespace {} have more than its share of this node",
                    pod.namespace
                );
                turn_away(&pod, object, &why, actions);
            }
        }
    }

    /// Whether this pod is unknown, and there is no room to remember it.
    fn is_one_too_many(&self, uid: &PodUid) -> bool {
        // before the inventory is known the runtime may have it
        let is_new =
            self.has_inventory && !self.lives.contains_key(uid) && !self.desired.unreadable.contains(uid);
        let may_run = self.node.as_ref().map_or(USUAL_PODS, |node| node.pods);
        is_new && self.lives.len() as u64 >= may_run.saturating_mul(LIVES_PER_POD)
    }

    /// Ends orphaned pods when the API binds a pod of the same namespace and name, or of the same controller.
    fn end_predecessors(&mut self, now: Now, node_uid: &str, pod: &Pod) {
        for life in self.lives.values_mut() {
            let is_orphan = match &life.origin {
                Origin::Api { node_uid: bound } => bound != node_uid,
                Origin::Found { node_uid: bound } => !bound.is_empty() && bound != node_uid,
                Origin::Static { .. } => false,
            };
            if !is_orphan || life.uid == pod.uid || life.ending.asked.is_some() {
                continue;
            }
            let own = life.pod.as_ref().and_then(|pod| pod.controller.as_ref());
            let same_controller = own.is_some() && own == pod.controller.as_ref();
            if life.namespace == pod.namespace && (life.name == pod.name || same_controller) {
                let grace = life.own_grace();
                life.end(now, grace);
            }
        }
    }

    fn gone(&mut self, now: Now, object: &Value) {
        // if another pod has replaced this one, only its UID is known
        let Some(uid) = object["metadata"]["uid"].as_str() else { return };
        self.forget_mirror(now, uid);
        if let Some(uid) = PodUid::new(uid) {
            self.with(&uid, |life| {
                if matches!(life.origin, Origin::Api { .. }) {
                    life.gone_from_api(now);
                }
            });
        }
    }

    /// The server no longer has a mirror with this UID.
    fn forget_mirror(&mut self, now: Now, uid: &str) {
        if self.mirrors.forget(now, uid) {
            self.touch_all();
        }
    }

    fn answered(&mut self, now: Now, request: &PodRequest, answer: &Answer) {
        match request {
            PodRequest::CreateMirror { namespace, name } => {
                self.mirrors.created(now, (namespace.clone(), name.clone()), answer);
                self.touch_all();
            }
            PodRequest::PatchStatus(pod) => {
                // the answer to its creation may arrive after the event about its deletion
                if matches!(answer, Answer::Refused { status: 404, .. }) {
                    self.forget_mirror(now, &pod.uid);
                }
                // the final status of a removed static pod is not sent again: its mirror is deleted too
                let is_mirror = self.mirrors.have(&pod.uid);
                if !self.with_reference(pod, |life| life.status_answered(now, answer)) && !is_mirror {
                    self.listing.turned_away(now, answer);
                }
            }
            PodRequest::Delete(pod) => {
                if self.mirrors.deleted(now, pod, answer) {
                    self.touch_all();
                } else if !self.with_reference(pod, |life| life.delete_answered(now, answer)) {
                    self.listing.turned_away(now, answer);
                }
            }
        }
    }

    /// Whether the request is about a pod that is known here, or about a mirror.
    pub(crate) fn remembers(&self, request: &PodRequest) -> bool {
        let (PodRequest::PatchStatus(pod) | PodRequest::Delete(pod)) = request else { return true };
        PodUid::new(&pod.uid).is_some_and(|uid| self.lives.contains_key(&uid)) || self.mirrors.is_one(pod)
    }

    /// Changes the life whose object, or mirror, this is. Returns false if there is none.
    fn with_reference(&mut self, pod: &PodRef, change: impl FnOnce(&mut Life)) -> bool {
        let is_it = |life: &&mut Life| life.api.as_ref().is_some_and(|api| api.reference == *pod);
        let Some(life) = self.lives.values_mut().find(is_it) else { return false };
        change(life);
        life.is_dirty = true;
        true
    }

    fn release(&mut self, now: Now, which: Option<&(String, String)>, actions: &mut Vec<PodAction>) {
        let Some(node_uid) = self.listing.node_uid.clone() else { return };
        for life in self.lives.values_mut().filter(|life| is_orphan(life, &node_uid)) {
            if which.is_none_or(|(namespace, name)| *namespace == life.namespace && *name == life.name) {
                let text = format!("orphaned pod {}/{} is released and ends", life.namespace, life.name);
                actions.push(PodAction::Log(Level::Info, text));
                let grace = life.own_grace();
                life.end(now, grace);
            }
        }
    }

    // ---- static pods

    fn static_pods(
        &mut self,
        now: Now,
        files: Result<Vec<StaticFile>, String>,
        actions: &mut Vec<PodAction>,
    ) {
        let is_known = |uid: &PodUid| self.lives.contains_key(uid);
        let Some((current, unknown)) = self.statics.read(files, &self.node_name, &is_known, actions) else {
            return;
        };
        for life in self.lives.values_mut() {
            let ends = match &life.origin {
                Origin::Static { path } => !unknown.contains_key(path) && !current.contains_key(&life.uid),
                // see `end_lost_statics`
                Origin::Found { .. } | Origin::Api { .. } => false,
            };
            if ends && life.ending.asked.is_none() {
                let grace = life.own_grace();
                life.end(now, grace);
            }
        }
        self.statics.replace(current, unknown);
        for uid in self.statics.uids() {
            self.begin_static(now, &uid);
        }
        self.statics.forget_results(actions);
        self.touch_all();
    }

    /// Ends static pods that only the runtime has: their files were removed, or now contain other pods, since
    /// the last agent ran.
    fn end_lost_statics(&mut self, now: Now) {
        let is_lost = |life: &&Life| {
            let is_static = matches!(&life.origin, Origin::Found { node_uid } if node_uid.is_empty());
            is_static && !life.name.is_empty() && life.ending.asked.is_none() && self.statics.are_read()
        };
        let has_gone = |life: &&Life| {
            self.statics.have_name(&life.namespace, &life.name)
                || !self.statics.may_be_there(self.mirrors.path_of(&life.uid))
        };
        let lost = self.lives.values().filter(is_lost).filter(has_gone);
        let lost: Vec<PodUid> = lost.map(|life| life.uid.clone()).collect();
        for uid in lost {
            self.with(&uid, |life| {
                let grace = life.own_grace();
                life.end(now, grace);
            });
        }
    }

    /// Starts a static pod, or starts it anew if its file came back while it was ending.
    fn begin_static(&mut self, now: Now, uid: &PodUid) {
        let Some((path, pod)) = self.statics.get(uid) else { return };
        let origin = Origin::Static { path: path.clone() };
        let life = self.lives.entry(uid.clone());
        let life = life.or_insert_with(|| Life::new(uid.clone(), &pod.namespace, &pod.name, origin.clone()));
        if life.pod.is_none() {
            life.origin = origin;
            life.namespace.clone_from(&pod.namespace);
            life.name.clone_from(&pod.name);
            life.pod = Some(Rc::clone(pod));
            life.is_dirty = true;
        }
        life.saved.is_unknown |= self.desired.takes_over(uid);
        if let Some(StaticResults { results, failed, active_since, durable, .. }) =
            self.statics.results.remove(uid)
        {
            life.results.extend(results);
            life.ending.failed = life.ending.failed.take().or(failed);
            life.ending.active = active_since.map(|since| Active::since(since, None, now));
            life.saved.durable = Some(durable);
            life.saved.is_stale = true;
            life.is_dirty = true;
        }
    }

    // ---- the steps that follow

    /// When the Node is read for pods whose verdict waits for it.
    fn node_reading_due(&self) -> Option<Duration> {
        let NodeReading { ordered, done, not_before } = self.node_reading;
        let waits = |life: &Life| life.admission.doubt.is_some_and(|doubt| doubt > ordered);
        (done == ordered && self.lives.values().any(waits)).then_some(not_before)
    }

    fn see_to_the_node(&mut self, now: Now, actions: &mut Vec<PodAction>) {
        if self.node_reading_due().is_some_and(|due| due <= now.mono) {
            self.node_reading.ordered = self.node_reading.ordered.saturating_add(1);
            self.node_reading.not_before = now.mono.saturating_add(NODE_READ_EVERY);
            actions.push(PodAction::ReadNode);
        }
    }

    /// Takes the next step of every pod that changed or whose time has come.
    fn settle(&mut self, now: Now, actions: &mut Vec<PodAction>) {
        self.desired.read_again(now, actions);
        self.listing.list_again(now, actions);
        self.desired.remove_leftovers(now, actions);
        if !self.is_ready() {
            return self.see_to_shutdown(now, actions);
        }
        self.end_lost_statics(now);
        self.use_logs(now);
        let may_run = self.is_held == Some(false);
        for life in self.lives.values_mut().filter(|life| life.probing.wake.is_some_and(|at| at <= now.mono))
        {
            life.see_to_probes(now, self.node.as_ref(), may_run, actions);
        }
        if may_run && !self.is_shutting_down() {
            self.see_to_pressure(now, actions);
        }
        for _ in 0..MOST_ROUNDS {
            if let Some(node_uid) = &self.listing.node_uid {
                let node = (self.node_name.as_str(), node_uid.as_str());
                self.mirrors.settle(now, &mut self.lives, &self.statics, node, actions);
            }
            self.see_to_shutdown(now, actions);
            let due: Vec<PodUid> = self.due(now).collect();
            if due.is_empty() {
                break;
            }
            for uid in due {
                self.advance(now, &uid, actions);
            }
        }
        self.see_to_the_node(now, actions);
        // an unreadable record may refer to any object
        if self.desired.unreadable.is_empty() && std::mem::take(&mut self.objects.has_new_needs) {
            self.forget_objects(actions);
        }
    }

    /// Forgets the objects that no pod refers to.
    fn forget_objects(&mut self, actions: &mut Vec<PodAction>) {
        let mut needed: SortedMap<&str, SortedSet<ObjectName>> = SortedMap::new();
        for life in self.lives.values().filter(|life| !life.is_static()) {
            let names = life.pod.iter().flat_map(|pod| objects::needed_by(pod));
            needed.entry(life.node_uid()).or_default().extend(names);
        }
        self.objects.keep_only(&needed, actions);
    }

    fn due(&self, now: Now) -> impl Iterator<Item = PodUid> + use<'_> {
        let is_due = move |life: &&Life| life.is_dirty || life.wake.is_some_and(|at| at <= now.mono);
        self.lives.values().filter(is_due).map(|life| life.uid.clone())
    }

    /// Uses the logs left on disk: a container that has a log and no known run counts as having run before,
    /// and gets the next attempt number. Removes what is left of pods that are neither desired nor running,
    /// once all static pods are known.
    fn use_logs(&mut self, now: Now) {
        let is_all_known = self.statics.are_all_known() && self.listing.node_uid.is_some();
        for (uid, containers) in std::mem::take(&mut self.logs) {
            let Some(life) = self.lives.get_mut(&uid) else {
                if is_all_known && !self.desired.unreadable.contains(&uid) {
                    let origin = Origin::Found { node_uid: String::new() };
                    let mut rest = Life::new(uid.clone(), "", "", origin);
                    rest.end(now, Duration::ZERO);
                    self.lives.insert(uid, rest);
                } else {
                    self.logs.insert(uid, containers);
                }
                continue;
            };
            for (name, attempt) in containers {
                let container = life.containers.entry(name).or_default();
                container.ran_before |= container.run.is_none();
                container.next_attempt = container.next_attempt.max(attempt.saturating_add(1));
            }
        }
    }

    fn advance(&mut self, now: Now, uid: &PodUid, actions: &mut Vec<PodAction>) {
        let Some(mut life) = self.lives.remove(uid) else { return };
        life.is_dirty = false;
        life.wake = None;
        let is_held = self.is_held != Some(false);
        let is_shutting_down = self.is_shutting_down();
        let node_uid = life.node_uid().to_owned();
        let can_read = self.listing.node_uid.as_ref() == Some(&node_uid);
        let mut ctx = Context {
            now,
            node: self.node.as_ref(),
            node_reading: (self.node_reading.ordered, self.node_reading.done),
            lives: &self.lives,
            objects: self.objects.of(&node_uid),
            can_read,
            is_shutting_down,
            actions,
        };
        life.note_results();
        life.announce_lost(ctx.actions);
        if life.ending.asked.is_none() && !is_held {
            life.admit(&mut ctx);
            life.see_to_deadline(&mut ctx);
        }
        life.note_what_is_asked_ahead();
        life.save(&mut ctx);
        if !is_held {
            life.see_to_hooks(&mut ctx);
        } else if self.is_held == Some(true) && life.waits_for_a_hold_to_end() {
            // only an Event of its own explains why a pod stays Pending or Terminating
            life.announce(true, "PodsHeld", HELD.into(), ctx.actions);
        }
        life.see_to_probes(now, ctx.node, !is_held, ctx.actions);
        if !is_held {
            if life.is_over() {
                life.go_down(&mut ctx);
            } else if life.ending.shutdown.is_some() {
                life.shut_down(&mut ctx);
            } else {
                life.go_up(&mut ctx);
            }
        }
        life.report(&mut ctx);
        life.save(&mut ctx);
        life.delete(&mut ctx);
        if life.is_over_and_gone() {
            let (namespace, name) = (life.namespace, life.name);
            // the mirror shows the life that is over; a pod that starts again needs a new mirror, and another
            // pod with its name may need one
            self.mirrors.let_go(&(namespace.clone(), name), uid);
            self.make_way(&namespace);
            self.objects.has_new_needs = true;
            self.begin_static(now, uid);
            return;
        }
        if life.is_leaving() && (life.is_down() || !life.has_begun()) {
            self.make_way(&life.namespace);
        }
        self.objects.has_new_needs |= life.slim();
        self.lives.insert(uid.clone(), life);
    }

    /// A pod of this namespace has ended: pods that waited for this are looked at again.
    fn make_way(&mut self, namespace: &str) {
        for life in self.lives.values_mut() {
            let waits = life.namespace == namespace && !life.has_begun() && !life.is_over();
            let is_unjudged = life.admission.verdict == Verdict::Pending && life.ending.asked.is_none();
            life.is_dirty |= waits || is_unjudged;
        }
    }

    // ---- for other parts of core

    /// Names of images that pods need, so garbage collection keeps them.
    #[must_use]
    pub fn images_in_use(&self) -> BTreeSet<String> {
        let pods = self.lives.values().filter(|life| !life.is_over()).filter_map(|life| life.pod.as_ref());
        let of_pod = |pod: &Rc<Pod>| {
            let named = pod.spec.all_containers().map(|spec| spec.image.clone());
            named.chain(pod.spec.images_of_volumes()).collect::<Vec<_>>()
        };
        let named = pods.flat_map(of_pod);
        let containers = self.lives.values().flat_map(|life| life.containers.values());
        let run = containers.filter_map(|container| container.run.as_ref().filter(|run| !run.is_removed));
        // also while the pod ends, because its successor starts only when it is gone
        let ahead = self.lives.values().flat_map(|life| life.ahead.images());
        let all = named.chain(run.map(|run| run.image_reference.clone())).chain(ahead);
        all.filter(|name| !name.is_empty()).collect()
    }

    /// The same, once it is known which pods run here, and whether it is complete: an unreadable file or
    /// record may need further images.
    pub(crate) fn needed_images(&self) -> Option<(BTreeSet<String>, bool)> {
        let is_all = self.statics.are_all_known() && self.desired.unreadable.is_empty();
        self.is_ready().then(|| (self.images_in_use(), is_all))
    }

    /// Whether a list of the pods bound to this Node contains all that are known. Pods on disk are unknown
    /// until the disk was read.
    pub(crate) fn has_all_of(&self, node_uid: &str, pods: &[Value]) -> bool {
        let listed: SortedSet<&str> = pods.iter().filter_map(|pod| pod["metadata"]["uid"].as_str()).collect();
        let is_bound_here = |life: &&Life| match &life.origin {
            Origin::Api { node_uid: bound } | Origin::Found { node_uid: bound } => bound == node_uid,
            Origin::Static { .. } => false,
        };
        let is_listed = |life: &Life| listed.contains(life.uid.as_str()) || life.ending.asked.is_some();
        self.desired.is_read && self.has_inventory && self.lives.values().filter(is_bound_here).all(is_listed)
    }

    /// Whether pods of another Node still run here.
    pub(crate) fn has_orphans(&self) -> bool {
        let Some(node_uid) = &self.listing.node_uid else { return false };
        self.lives.values().any(|life| life.ending.asked.is_none() && is_orphan(life, node_uid))
    }

    /// For `kedge pods` and the local endpoint.
    #[must_use]
    pub fn report(&self) -> Vec<PodReport> {
        let is_orphaned =
            |life: &Life| self.listing.node_uid.as_ref().is_some_and(|uid| is_orphan(life, uid));
        self.lives.values().map(|life| life.for_people(is_orphaned(life))).collect()
    }

    /// Whether the desired set on disk and the runtime's inventory were received. Before that, other pods and
    /// containers may exist, and a reported one may be running.
    #[must_use]
    pub fn is_report_complete(&self) -> bool {
        self.desired.is_read && self.has_inventory
    }

    /// The number of kept entries, by sort, for tests that check that none grows.
    #[must_use]
    pub fn kept(&self) -> [(&'static str, usize); 7] {
        let containers = self.lives.values().map(|life| life.containers.len()).sum();
        let older = self
            .lives
            .values()
            .flat_map(|life| life.containers.values())
            .map(|container| container.older.len());
        [
            ("pods", self.lives.len()),
            ("containers", containers),
            ("earlier runs", older.sum()),
            ("objects", self.objects.len()),
            ("mirrors", self.mirrors.len()),
            ("probes and hooks", self.places.len()),
            ("complaints", self.statics.len().saturating_add(self.desired.len())),
        ]
    }
}

/// Answers a pod without a record here. If the answer is lost, it is given again when the pods are listed
/// again, see `turned_away`.
fn turn_away(pod: &Pod, object: &Value, why: &str, actions: &mut Vec<PodAction>) {
    let reference = pod.reference();
    if pod.deletion.is_some() {
        actions.push(PodAction::DeletePod(reference));
        return;
    }
    if matches!(object["status"]["phase"].as_str(), Some("Failed" | "Succeeded")) {
        return;
    }
    let message = format!("Pod was rejected: {why}");
    let status = json!({"phase": "Failed", "reason": "OutOfpods", "message": message});
    let patch = json!({"metadata": {"uid": reference.uid}, "status": status});
    actions.push(PodAction::PatchPodStatus { pod: reference, patch });
}

/// Whether it is bound to another Node than this one, or was found in the runtime and is not known to be
/// bound; a static pod whose file was not read yet does not count as an orphan.
fn is_orphan(life: &Life, node_uid: &str) -> bool {
    match &life.origin {
        Origin::Api { node_uid: bound } => bound != node_uid,
        Origin::Found { node_uid: bound } if bound.is_empty() => life.name.is_empty(),
        Origin::Found { node_uid: bound } => bound != node_uid,
        Origin::Static { .. } => false,
    }
}

/// The object with a readable spec, for a pod that has to be answered at least.
fn without_spec(object: &Value) -> Value {
    json!({"metadata": object["metadata"], "spec": {"containers": [{"name": "unreadable"}]}})
}

#[cfg(test)]
mod tests {
    use crate::answer::Now;
    use crate::pods::fixture::Node;
    use crate::pods::{Inventory, PodAction, PodEvent, Pods, part_of};
    use kedge_api::Timestamp;
    use serde_json::{Value, json};
    use std::time::Duration;

    fn pod(name: &str, node: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "default", "uid": name, "generation": 1},
            "spec": {"nodeName": node, "containers": [{"name": "a", "image": "x:1"}]}, "status": {"phase": "Pending"}})
    }

    fn list(node: &mut Node, pods: Vec<Value>) {
        node.tell(PodEvent::PodsListed { node_uid: "n".into(), pods });
        node.wait(2);
    }

    fn warnings(node: &Node, said: &str) -> usize {
        let is_it = |action: &&PodAction| matches!(action, PodAction::Log(_, text) if text.contains(said));
        node.seen.iter().filter(is_it).count()
    }

    #[test]
    fn report_is_complete_once_disk_and_runtime_are_known() {
        let now = Now { mono: Duration::ZERO, wall: Timestamp::default() };
        let (disk, runtime) = (PodEvent::DesiredRead(Ok(vec![])), PodEvent::Inventory(Inventory::default()));
        let unread = PodEvent::DesiredRead(Err("input/output error".into()));
        let check = |news: &[&PodEvent], expect: bool| {
            let mut pods = Pods::new("edge");
            news.iter().for_each(|event| pods.handle(now, (*event).clone(), &mut vec![]));
            assert_eq!(pods.is_report_complete(), expect, "{news:?}");
        };
        check(&[], false);
        check(&[&disk], false);
        check(&[&runtime], false);
        check(&[&runtime, &unread], false);
        check(&[&disk, &runtime], true);
        check(&[&runtime, &unread, &disk], true);
    }

    #[test]
    fn pods_of_other_nodes_are_left_alone() {
        let mut node = Node::new();
        node.see(pod("own", "edge"));
        node.wait(2);
        assert!(node.runs("own"));
        let others = (0..1000).map(|number| pod(&format!("other-{number}"), "elsewhere"));
        list(&mut node, others.chain([pod("own", "edge")]).collect());
        assert!(node.runs("own") && node.runs.len() == 1, "{:?}", node.runs);
        assert_eq!(warnings(&node, "listed 1000 pods of other nodes"), 1);
        node.tell(PodEvent::PodSeen(pod("another", "elsewhere")));
        node.wait(2);
        assert_eq!(node.runs.len(), 1, "{:?}", node.runs);
        // a pod cannot be bound to another node: such an answer is garbled, and ends no pod
        list(&mut node, vec![pod("own", "elsewhere")]);
        assert!(node.runs("own"));
        // under the same UID an empty list means that there are no pods
        list(&mut node, vec![]);
        assert!(!node.runs("own"));
    }

    #[test]
    fn pod_that_cannot_be_read_stops_no_other() {
        let mut node = Node::new();
        for name in ["one", "two", "broken"] {
            node.see(pod(name, "edge"));
        }
        node.wait(2);
        let mut broken = pod("broken", "edge");
        broken["spec"]["containers"] = json!("none");
        let unreadable = [
            json!({"metadata": {"name": ["x"], "uid": "u"}, "spec": 7}),
            json!({"metadata": 1}),
            json!("pod"),
            json!([]),
            Value::Null,
            broken,
        ];
        for bad in unreadable {
            // a list without the broken pod would end it
            list(&mut node, vec![pod("one", "edge"), bad.clone(), pod("broken", "edge"), pod("two", "edge")]);
            assert!(["one", "two", "broken"].into_iter().all(|name| node.runs(name)), "{bad}");
        }
        assert!(warnings(&node, "cannot be read and is left alone") > 0);
    }

    fn patches(node: &Node, name: &str) -> usize {
        let is_it =
            |action: &&PodAction| matches!(action, PodAction::PatchPodStatus { pod, .. } if pod.name == name);
        node.seen.iter().filter(is_it).count()
    }

    fn part(name: &str, phase: &str) -> Value {
        let mut pod = part_of(&pod(name, "edge"), 1_000_000);
        pod["status"]["phase"] = json!(phase);
        pod
    }

    fn told_of_parts(node: &Node) -> usize {
        let is_it =
            |action: &&PodAction| matches!(action, PodAction::WarnOfNode { reason: "PodsLeftOut", .. });
        node.seen.iter().filter(is_it).count()
    }

    #[test]
    fn running_pod_beyond_its_share_goes_on_until_it_is_deleted() {
        let mut node = Node::new();
        node.see(pod("old", "edge"));
        node.see(pod("other", "edge"));
        node.wait(2);
        let told = patches(&node, "old");
        for is_listed in [true, false] {
            match is_listed {
                true => list(&mut node, vec![part("old", "Running"), pod("other", "edge")]),
                false => node.tell(PodEvent::PodSeen(part("old", "Running"))),
            }
            node.wait(5);
            assert!(node.runs("old") && node.runs("other"));
        }
        assert_eq!((patches(&node, "old"), told_of_parts(&node)), (told, 1), "its status is known");
        // also after a start of the agent, which then knows no status
        node.start();
        node.tell(PodEvent::PodSeen(part("old", "Running")));
        node.wait(2);
        assert!(node.runs("old"));
        let mut deleted = part("old", "Running");
        deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        deleted["metadata"]["deletionGracePeriodSeconds"] = json!(7);
        node.tell(PodEvent::PodSeen(deleted));
        node.wait(2);
        assert!(!node.runs("old") && node.runs("other"));
        assert_eq!(node.stops(), [("old", 7)]);
        let deletes = node
            .seen
            .iter()
            .filter(|action| matches!(action, PodAction::DeletePod(pod) if pod.name == "old"));
        assert_eq!(deletes.count(), 1);
    }

    #[test]
    fn pod_beyond_its_share_is_rejected_once() {
        let mut node = Node::new();
        node.see(pod("small", "edge"));
        node.see(part("new", "Pending"));
        node.wait(2);
        assert!(!node.runs("new") && node.pods.report().len() == 1);
        assert_eq!(node.status("new")["phase"], "Failed");
        let why = node.status("new")["message"].as_str().unwrap_or_default();
        assert!(why.contains("namespace default have more than its share"), "{why}");
        list(&mut node, vec![part("new", "Failed"), pod("small", "edge")]);
        assert_eq!((patches(&node, "new"), told_of_parts(&node)), (1, 1));
        // it is deleted, and has no containers to end
        let mut deleted = part("new", "Failed");
        deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        node.tell(PodEvent::PodSeen(deleted));
        assert!(
            node.seen.iter().any(|action| matches!(action, PodAction::DeletePod(pod) if pod.name == "new"))
        );
        // after a list without such pods the next one is reported
        list(&mut node, vec![pod("small", "edge")]);
        node.see(part("newer", "Pending"));
        assert_eq!(told_of_parts(&node), 2);
    }

    #[test]
    fn pod_whose_status_is_refused_for_good_is_still_deleted() {
        for status in [400, 403, 405, 413, 422] {
            let mut node = Node::new();
            node.see(pod("a", "edge"));
            node.wait(2);
            node.refuses_statuses = Some(status);
            let mut deleted = pod("a", "edge");
            deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            deleted["metadata"]["deletionGracePeriodSeconds"] = json!(1);
            node.see(deleted);
            node.wait(700);
            assert!(!node.runs("a"));
            assert!(node.seen.iter().any(|action| matches!(action, PodAction::DeletePod(_))), "{status}");
        }
    }

    #[test]
    fn runs_whose_start_fails_are_not_kept() {
        for list in ["containers", "initContainers"] {
            let mut node = Node::new();
            node.fails_starts = true;
            node.bind("a", json!({list: [{"name": "broken", "image": "x:1"}]}));
            node.wait(4000);
            let starts = node.seen.iter().filter(|action| matches!(action, PodAction::StartContainer(_)));
            assert!(starts.count() > 10);
            assert!(node.runs.len() <= 2, "{list}: {:?}", node.runs.keys());
        }
    }

    #[test]
    fn pod_that_waits_while_pods_are_held_has_an_event() {
        let mut node = Node::new();
        node.bind("runs", json!({}));
        node.wait(10);
        assert!(node.runs("runs"));
        node.tell(PodEvent::Held(true));
        node.bind("waits", json!({}));
        node.wait(100);
        let held: Vec<String> =
            node.news().into_iter().filter(|news| news.starts_with("PodsHeld ")).collect();
        assert!(matches!(&held[..], [one] if one.contains("see the node's condition PodsHeld")), "{held:?}");
        assert!(node.runs("runs") && !node.runs("waits"));
        node.tell(PodEvent::Held(false));
        node.wait(100);
        assert!(node.runs("waits"));
    }
}
