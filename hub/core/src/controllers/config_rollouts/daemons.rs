//! The daemon pods of each node: which DaemonSets serve there.
//!
//! Always holds: after [`Daemons::read`] the cache equals the store, except for changes whose events have not
//! arrived yet; it reads only pods that changed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use super::super::controller::World;
use super::node::SERVES_AGAIN;
use crate::kinds::{DAEMON_SET, POD};
use crate::object::Object;
use crate::state::Require;
use crate::value::{condition, text};

/// Namespace and name.
type Place = (Box<str>, Box<str>);

/// Most DaemonSets whose service is remembered for a node.
const SERVED: usize = 16;

/// The fields of a daemon pod that rollouts use.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DaemonPod {
    node: Box<str>,
    /// Namespace and name of its set.
    set: String,
    serves: bool,
}

impl DaemonPod {
    pub(super) fn read(object: &Object) -> Option<DaemonPod> {
        // most pods with an owner are daemon pods: a cheap check first
        if object.owners.is_empty() {
            return None;
        }
        let value = object.value();
        let owners = value["metadata"]["ownerReferences"].as_array()?;
        let set =
            owners.iter().find(|owner| owner["controller"] == true && owner["kind"] == DAEMON_SET.kind)?;
        let is_ready = |ready: &Value| ready["status"] == "True";
        Some(DaemonPod {
            node: text(&value, &["spec", "nodeName"]).into(),
            set: format!("{}/{}", object.namespace, text(set, &["name"])),
            serves: !object.terminating && condition(&value["status"], "Ready").is_some_and(is_ready),
        })
    }
}

#[derive(Debug)]
struct Known {
    revision: u64,
    pod: DaemonPod,
    /// Since when it serves, or does not.
    since: Duration,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Daemons {
    pods: BTreeMap<Place, Known>,
    on: BTreeMap<Box<str>, BTreeSet<Place>>,
    /// Pods that changed since they were read; `None`: all are to be read.
    changed: Option<BTreeSet<Place>>,
}

impl Daemons {
    pub(super) fn note_change(&mut self, namespace: &str, name: &str) {
        if let Some(changed) = &mut self.changed {
            changed.insert((namespace.into(), name.into()));
        }
    }

    /// The pods of a node are to be read again: a change that says nothing of service is not noted, and
    /// [`Daemons::unchanged`] names revisions.
    pub(super) fn note_node(&mut self, node: &str) {
        if let Some(changed) = &mut self.changed {
            changed.extend(self.on.get(node).into_iter().flatten().cloned());
        }
    }

    /// A change was missed: everything is to be read again.
    pub(super) fn note_gap(&mut self) {
        self.changed = None;
    }

    pub(super) fn read(&mut self, world: &dyn World, now: Duration) {
        if let Some(changed) = self.changed.replace(BTreeSet::new()) {
            for place in changed {
                let found = world.get(&POD, &place.0, &place.1);
                self.put(place, found.as_deref(), now);
            }
            return;
        }
        let mut gone: BTreeSet<Place> = self.pods.keys().cloned().collect();
        for object in world.list(&POD, "") {
            let place = (object.namespace.clone(), object.name.clone());
            gone.remove(&place);
            if self.pods.get(&place).is_none_or(|known| known.revision != object.revision) {
                self.put(place, Some(&object), now);
            }
        }
        gone.into_iter().for_each(|place| self.put(place, None, now));
    }

    fn put(&mut self, place: Place, found: Option<&Object>, now: Duration) {
        let before = self.pods.remove(&place);
        if let Some(before) = &before
            && let Some(places) = self.on.get_mut(&before.pod.node)
        {
            places.remove(&place);
        }
        let Some((object, pod)) = found.and_then(|object| Some((object, DaemonPod::read(object)?))) else {
            return;
        };
        let same = before.filter(|before| before.pod.serves == pod.serves);
        let since = same.map_or(now, |before| before.since);
        self.on.entry(pod.node.clone()).or_default().insert(place.clone());
        self.pods.insert(place, Known { revision: object.revision, pod, since });
    }

    fn on(&self, node: &str) -> impl Iterator<Item = (&Place, &Known)> {
        let places = self.on.get(node).into_iter().flatten();
        places.filter_map(|place| self.pods.get_key_value(place))
    }

    /// The DaemonSets that serve on a node.
    pub(super) fn served(&self, node: &str) -> Vec<String> {
        let serving = self.on(node).filter(|(_, known)| known.pod.serves);
        let sets: BTreeSet<String> = serving.map(|(_, known)| known.pod.set.clone()).collect();
        sets.into_iter().take(SERVED).collect()
    }

    /// Whether all of these serve on a node.
    pub(super) fn serve(&self, sets: &[String], node: &str) -> bool {
        let serves = |set: &String| self.on(node).any(|(_, known)| known.pod.serves && known.pod.set == *set);
        // a set that was deleted since, or chooses other nodes now, has no pod there
        let is_there = |set: &String| self.on(node).any(|(_, known)| known.pod.set == *set);
        sets.iter().all(|set| serves(set) || !is_there(set))
    }

    /// Whether a pod there stopped serving not long ago: perhaps an update has it.
    pub(super) fn are_busy(&self, node: &str, now: Duration) -> Option<Duration> {
        let idle = self.on(node).filter(|(_, known)| !known.pod.serves);
        idle.map(|(_, known)| known.since + SERVES_AGAIN).filter(|over| *over > now).max()
    }

    /// Requires that the pods of a node are still as they were read: an update of a DaemonSet that took one
    /// of them meanwhile comes first.
    pub(super) fn unchanged(&self, node: &str) -> Vec<Require> {
        let pods = self.on(node).take(SERVED);
        pods.map(|((namespace, name), known)| Require::Unchanged {
            kind: &POD,
            namespace: namespace.to_string(),
            name: name.to_string(),
            revision: Some(known.revision),
        })
        .collect()
    }
}
