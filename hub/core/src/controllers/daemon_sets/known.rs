//! The cached pods and revisions of a set, each as it was last read.
//!
//! Always holds: after [`Known::read`] the cache equals the store, except for changes whose events have not
//! arrived yet; the set's own writes are noted with their outcome, so no step decides without them. A sweep,
//! or a missed change, causes everything to be read again. Leaves to others: decisions based on it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use super::super::controller::World;
use super::history::Revision;
use super::update::Pod;
use crate::kinds::daemon_set::selects;
use crate::kinds::{CONTROLLER_REVISION, Kind, POD};
use crate::object::Object;

#[derive(Debug)]
struct Read {
    revision: u64,
    pod: Pod,
}

/// See the module. It takes about 1,100 bytes for each pod, by the sizes of its fields and their texts.
#[derive(Debug, Default)]
pub(super) struct Known {
    is_read: bool,
    /// Names of pods and revisions that changed since they were read. It has at most as many names as there
    /// are pods and revisions now, and were at the last look.
    changed: BTreeSet<(Sort, Box<str>)>,
    /// The pods that it controls, by name.
    pods: BTreeMap<Box<str>, Read>,
    /// Names of these pods by node.
    on: BTreeMap<Box<str>, Vec<Box<str>>>,
    /// The number of pods of each revision, by its hash.
    hashes: BTreeMap<String, usize>,
    /// Pods that it does not select any more.
    strangers: BTreeSet<Box<str>>,
    /// Nodes whose pods changed.
    touched: BTreeSet<Box<str>>,
    /// The revisions that name the set as an owner, in order of their names.
    pub(super) revisions: Vec<Revision>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sort {
    Pod,
    Revision,
}

impl Sort {
    pub(super) fn of(kind: &Kind) -> Option<Sort> {
        match kind.kind {
            found if found == POD.kind => Some(Sort::Pod),
            found if found == CONTROLLER_REVISION.kind => Some(Sort::Revision),
            _ => None,
        }
    }

    pub(super) fn kind(self) -> &'static Kind {
        match self {
            Sort::Pod => &POD,
            Sort::Revision => &CONTROLLER_REVISION,
        }
    }
}

/// The set that owns the pods and revisions to read.
pub(super) struct Owner<'a> {
    pub(super) namespace: &'a str,
    pub(super) uid: &'a str,
    pub(super) selector: &'a Value,
    pub(super) min_ready: Duration,
}

impl Known {
    /// An object of this name came, went or changed.
    pub(super) fn note_change(&mut self, sort: Sort, name: &str) {
        if self.is_read {
            self.changed.insert((sort, name.into()));
        }
    }

    /// A change was missed: everything is to be read again.
    pub(super) fn note_gap(&mut self) {
        self.is_read = false;
        self.changed.clear();
    }

    /// Reads what changed; times are counted from `now`.
    pub(super) fn read(&mut self, world: &dyn World, of: &Owner<'_>, now: Duration) {
        if self.is_read {
            for (sort, name) in std::mem::take(&mut self.changed) {
                let found = world.get(sort.kind(), of.namespace, &name);
                match sort {
                    Sort::Pod => self.put_pod(&name, found.as_deref(), of, now),
                    Sort::Revision => self.put_revision(&name, found.as_deref(), of),
                }
            }
            return;
        }
        self.is_read = true;
        let mut gone: BTreeSet<Box<str>> = self.pods.keys().cloned().collect();
        self.revisions.clear();
        for (kind, object) in world.dependents(of.uid) {
            match Sort::of(kind) {
                Some(Sort::Revision) => self.put_revision(&object.name, Some(&*object), of),
                Some(Sort::Pod) => {
                    gone.remove(&*object.name);
                    let known = self.pods.get(&*object.name);
                    if known.is_none_or(|known| {
                        known.revision != object.revision || *known.pod.uid != *object.uid
                    }) {
                        self.put_pod(&object.name, Some(&*object), of, now);
                    }
                }
                None => {}
            }
        }
        for name in gone {
            self.put_pod(&name, None, of, now);
        }
    }

    fn put_pod(&mut self, name: &str, found: Option<&Object>, of: &Owner<'_>, now: Duration) {
        let before = self.forget_pod(name);
        let Some(object) = found else { return };
        let value = object.value();
        let mut pod = Pod::read(&value);
        // an owner need not be the controller
        if pod.controller != of.uid {
            return;
        }
        pod.note(before.filter(|before| before.uid == pod.uid), of.min_ready, now);
        let is_selected = selects(of.selector, &value["metadata"]["labels"]);
        let (name, node): (Box<str>, Box<str>) = (name.into(), pod.node.as_str().into());
        self.on.entry(node.clone()).or_default().push(name.clone());
        *self.hashes.entry(pod.hash.clone()).or_default() += 1;
        if !(is_selected || pod.is_terminating) {
            self.strangers.insert(name.clone());
        }
        self.touched.insert(node);
        self.pods.insert(name, Read { revision: object.revision, pod });
    }

    fn forget_pod(&mut self, name: &str) -> Option<Pod> {
        let Read { pod, .. } = self.pods.remove(name)?;
        self.strangers.remove(name);
        if let Some(names) = self.on.get_mut(pod.node.as_str()) {
            names.retain(|one| **one != *name);
            if names.is_empty() {
                self.on.remove(pod.node.as_str());
            }
        }
        if let Some(count) = self.hashes.get_mut(&pod.hash) {
            *count -= 1;
            if *count == 0 {
                self.hashes.remove(&pod.hash);
            }
        }
        self.touched.insert(pod.node.as_str().into());
        Some(pod)
    }

    fn put_revision(&mut self, name: &str, found: Option<&Object>, of: &Owner<'_>) {
        let place = self.revisions.binary_search_by(|one| one.name.as_str().cmp(name));
        let owned = found.filter(|object| object.owners.iter().any(|owner| **owner == *of.uid));
        match (place, owned.map(|object| Revision::read(&object.value()))) {
            (Ok(at), Some(read)) => self.revisions[at] = read,
            (Err(at), Some(read)) => self.revisions.insert(at, read),
            (Ok(at), None) => drop(self.revisions.remove(at)),
            (Err(_), None) => {}
        }
    }

    /// The nodes that had a change of their pods since the last call.
    pub(super) fn take_touched(&mut self) -> BTreeSet<Box<str>> {
        std::mem::take(&mut self.touched)
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values().map(|read| &read.pod)
    }

    pub(super) fn pods_on(&self, node: &str) -> Vec<&Pod> {
        let names = self.on.get(node).map_or(&[][..], Vec::as_slice);
        names.iter().filter_map(|name| self.pods.get(name)).map(|read| &read.pod).collect()
    }

    /// The pod of this name and UID is its own.
    pub(super) fn has(&self, name: &str, uid: &str) -> bool {
        self.pods.get(name).is_some_and(|read| read.pod.uid == uid)
            || self.revisions.iter().any(|one| one.name == name && one.uid == uid)
    }

    pub(super) fn strangers(&self) -> impl Iterator<Item = &Pod> {
        self.strangers.iter().filter_map(|name| self.pods.get(name)).map(|read| &read.pod)
    }

    /// The revisions that pods have, by their hashes.
    pub(super) fn live(&self) -> BTreeSet<String> {
        self.hashes.keys().cloned().collect()
    }

    /// The hub stood still for `by` and received nothing: that time does not count.
    pub(super) fn shift(&mut self, by: Duration, now: Duration) {
        self.pods.values_mut().for_each(|read| read.pod.watch.shift(by, now));
    }

    /// Name and resource version of each pod.
    #[cfg(test)]
    pub(super) fn versions(&self) -> BTreeSet<(String, u64)> {
        self.pods.iter().map(|(name, read)| (name.to_string(), read.revision)).collect()
    }
}
