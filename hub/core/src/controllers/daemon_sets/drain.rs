//! Nodes that are drained before an update stops the set's pod there (`kedge.dev/drain-before-update`).
//!
//! Always holds: the node is cordoned before the first pod leaves, and only what the hub cordoned, for the set
//! that the Node's annotation names, does it uncordon. Pods of DaemonSets, static pods and pods that ended stay,
//! as under `kubectl drain --ignore-daemonsets`. A pod without a controller would be gone for good: it is waited
//! for, unless the set forces it. Leaves to others: which nodes have their turn, and when one is released
//! (`update`).

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::controller::{Action, Edit, World};
use super::super::placing::DRAINED_FOR;
use super::update::{Drain, Wanted};
use crate::kinds::pod::{NODE_NAME_FIELD, is_mirror};
use crate::kinds::{NODE, POD};
use crate::object::Object;
use crate::selector::Selection;
use crate::value::text;

/// For the log, if the store refuses.
pub(super) const UNCORDON: &str = "uncordon a node";

/// How far a node is.
pub(super) enum Step {
    /// It takes new pods so far.
    Cordon(Edit),
    /// These pods are to leave; and what is waited for besides, for people.
    Evict(Vec<Arc<Object>>, Option<String>),
    Drained,
}

/// The next step for a node whose pod of the set waits to be replaced.
pub(super) fn step(world: &dyn World, wanted: &Wanted, node: &str) -> Step {
    let is_cordoned =
        world.get(&NODE, "", node).is_none_or(|found| found.value()["spec"]["unschedulable"] == true);
    if !is_cordoned {
        let place = wanted.place.clone();
        return Step::Cordon(Box::new(move |node, _| {
            node["spec"]["unschedulable"] = true.into();
            if !node["metadata"]["annotations"].is_object() {
                node["metadata"]["annotations"] = json!({});
            }
            node["metadata"]["annotations"][DRAINED_FOR] = place.as_str().into();
            true
        }));
    }
    let (mut leaving, mut ends, mut alone) = (Vec::new(), false, Vec::new());
    for pod in world.select(&POD, &Selection::by_field(&POD, "", NODE_NAME_FIELD, node)) {
        let value = pod.value();
        let controller = controller(&value);
        let has_ended = matches!(text(&value, &["status", "phase"]), "Succeeded" | "Failed");
        if has_ended || controller == Some("DaemonSet") || is_mirror(&value) {
            continue;
        }
        if pod.terminating {
            ends = true;
        } else if controller.is_some() || wanted.drain == Drain::All {
            leaving.push(pod);
        } else {
            alone.push(format!("{}/{}", pod.namespace, pod.name));
        }
    }
    if leaving.is_empty() && alone.is_empty() && !ends {
        return Step::Drained;
    }
    let waits = alone.first().map(|first| {
        let more = if alone.len() > 1 { format!(" and {} more", alone.len() - 1) } else { String::new() };
        format!(
            "Node {node} is not drained: pod {first}{more} has no controller; delete it, or set {} to force",
            super::words::DRAIN
        )
    });
    Step::Evict(leaving, waits)
}

/// Lets a node take pods again, if it is still drained for this set.
pub(super) fn uncordon(node: &str, place: &str) -> Action {
    let place = place.to_owned();
    let edit: Edit = Box::new(move |node, _| {
        let is_meant = text(node, &["metadata", "annotations", DRAINED_FOR]) == place;
        if is_meant {
            if let Some(annotations) = node["metadata"]["annotations"].as_object_mut() {
                annotations.remove(DRAINED_FOR);
            }
            if let Some(spec) = node["spec"].as_object_mut() {
                spec.remove("unschedulable");
            }
        }
        is_meant
    });
    Action::Update {
        kind: &NODE,
        namespace: String::new(),
        name: node.to_owned(),
        edit,
        requires: Vec::new(),
    }
}

fn controller(pod: &Value) -> Option<&str> {
    let owners = pod["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|owner| owner["controller"] == true).map(|owner| text(owner, &["kind"]))
}
