//! The progress of a DaemonSet's update, node by node, for people: `kedge-hub rollout`.
//!
//! Always holds: it reads the stored objects and decides nothing; states that depend on the controller's
//! clock (not ready in time, a soak) are taken from the controller's records. Leaves to others: the table
//! (`kedge-hub`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use time::OffsetDateTime;

use super::super::controller::World;
use super::super::placing::{self, Node};
use super::ahead::Step;
use super::history::Revision;
use super::rollout::{STAYS, STOPPED, Settings};
use super::update::{Here, Pod, Wanted, gather};
use super::{Defaults, is_paused, proven, shows_success, wanted};
use crate::kinds::{CONTROLLER_REVISION, DAEMON_SET, NODE, POD};
use crate::value::{condition, text};

/// The rollout of a set: its `state` (complete, stopped, paused, waiting for canaries, soaking, under way),
/// counts, and `nodes`, each with `node`, `revision`, `state` (waits, pulls, starts, runs, failed, left out)
/// and `why`. `None` if the set does not exist.
pub fn view(
    world: &dyn World,
    defaults: Defaults,
    (namespace, name): (&str, &str),
    wall: OffsetDateTime,
) -> Option<Value> {
    let object = world.get(&DAEMON_SET, namespace, name)?;
    let set = object.value();
    let dependents = world.dependents(&object.uid);
    let of = |kind: &'static str| dependents.iter().filter(move |(found, _)| found.kind == kind);
    let revisions: Vec<Revision> =
        of(CONTROLLER_REVISION.kind).map(|(_, object)| Revision::read(&object.value())).collect();
    let values: Vec<Value> = of(POD.kind).map(|(_, object)| object.value()).collect();
    let pods: Vec<Pod> = values.iter().map(Pod::read).filter(|pod| pod.controller == *object.uid).collect();
    let status = |field: &str| set["status"][field].as_i64().unwrap_or(0);
    let mut answer = json!({
        "namespace": namespace, "name": name, "revision": "", "state": "under way", "message": "",
        "desired": status("desiredNumberScheduled"), "updated": status("updatedNumberScheduled"),
        "available": status("numberAvailable"), "failed": 0, "nodes": [],
    });
    let template = &set["spec"]["template"];
    let newest = revisions.iter().filter(|one| one.is_of(template)).max_by_key(|one| one.number);
    // without a revision the controller has not looked at the set yet: only the stored counts can be shown
    let Some(current) = newest else { return Some(answer) };
    let live: BTreeSet<String> = pods.iter().map(|pod| pod.hash.clone()).collect();
    let settings = Settings::read(&set);
    let wanted = wanted(&set, &settings, current.into(), proven(&set, &revisions, &live), true, defaults);
    let nodes: Vec<Node> = world.list(&NODE, "").iter().map(|object| Node::read(object)).collect();
    let (nodes, pods): (Vec<&Node>, Vec<&Pod>) = (nodes.iter().collect(), pods.iter().collect());
    let is_observed = set["metadata"]["generation"] == set["status"]["observedGeneration"];
    let highest = revisions.iter().map(|one| one.number).max();
    let is_complete = current.complete == Some(current.number) && highest == Some(current.number);
    let waits_for_canaries = settings.has_canaries() && current.waits_for_canaries();
    let stop = current.stopped_in(&wanted.generation);
    let (state, message) = match stop {
        // the records are about an older template until the controller has observed this one
        _ if !is_observed => ("under way", String::new()),
        Some(why) => ("stopped", why.to_owned()),
        None if is_complete => ("complete", String::new()),
        None if shows_success(&set) => ("soaking", soak(&wanted)),
        None if is_paused(&set) => ("paused", String::new()),
        None if !wanted.is_rolling => ("left to deletions (OnDelete)", String::new()),
        None if waits_for_canaries => ("waiting for canaries", String::new()),
        None => ("under way", String::new()),
    };
    let by_uid: BTreeMap<&str, &Value> =
        values.iter().map(|value| (text(value, &["metadata", "uid"]), value)).collect();
    let rows = gather(&wanted, &nodes, &pods, wall);
    let number = |hash: &str| revisions.iter().find(|one| one.hash == hash).map(|one| one.number);
    let shown = rows.iter().filter(|here| here.placed.runs).map(|here| {
        let is_held = waits_for_canaries && !settings.is_canary(here.node);
        let (pod, state, why) = row(&wanted, here, &by_uid, state, is_held);
        json!({"node": here.node.name, "revision": pod.and_then(|pod| number(&pod.hash)), "state": state, "why": why})
    });
    let left_out = nodes.iter().filter_map(|node| {
        let why = placing::kept_away(&wanted.spec, node)?;
        Some(json!({"node": node.name, "revision": Value::Null, "state": "left out", "why": why}))
    });
    let shown: Vec<Value> = shown.chain(left_out).collect();
    let failed = shown.iter().filter(|row| row["state"] == "failed").count();
    // neither stopped nor rolled back, and the reader expects one of both
    let message = match wanted.proven {
        None if failed > 0 && message.is_empty() => NOTHING_BEFORE.to_owned(),
        _ => message,
    };
    answer["failed"] = failed.into();
    answer["nodes"] = shown.into();
    answer["revision"] = current.name.as_str().into();
    answer["state"] = state.into();
    answer["message"] = message.into();
    Some(answer)
}

const NOTHING_BEFORE: &str =
    "no other revision was completed or has a pod: failures neither stop this one nor roll it back";

/// The phase of a set's update as the set alone records it, and why: a list of many sets costs no more than
/// they do. See [`view`] for its nodes.
pub fn phase(set: &Value) -> (&'static str, String) {
    let count = |field: &str| set["status"][field].as_u64().unwrap_or(0);
    let stop = condition(&set["status"], STOPPED).filter(|stop| stop["status"] == "True");
    let is_observed = set["metadata"]["generation"] == set["status"]["observedGeneration"];
    let all = count("desiredNumberScheduled");
    match stop {
        Some(stop) if is_observed => ("Stopped", text(stop, &["message"]).to_owned()),
        _ if is_paused(set) => ("Paused", String::new()),
        _ if is_observed && count("updatedNumberScheduled") >= all && count("numberAvailable") >= all => {
            ("Complete", String::new())
        }
        _ => ("Progressing", String::new()),
    }
}

/// Why a rollout that kubectl takes for a success is not complete yet.
fn soak(wanted: &Wanted) -> String {
    let seconds = wanted.stays.as_secs();
    format!("each pod is available; complete once each has been for {seconds} s without a break ({STAYS})")
}

/// The pod to show for a node, its state, and why.
fn row<'a>(
    wanted: &Wanted,
    here: &Here<'a>,
    by_uid: &BTreeMap<&str, &Value>,
    state: &str,
    is_held: bool,
) -> (Option<&'a Pod>, &'static str, String) {
    let newest = here.all.iter().rev().find(|pod| wanted.is_current(pod) && !pod.is_terminating);
    let Some(pod) = newest.copied() else {
        let old = here.all.first().copied();
        let request = here.old.first().zip(wanted.ahead.as_ref()).filter(|_| !here.is_set_aside);
        let step = request.map(|(old, request)| request.step(old, here.node));
        let serving = |text: &str| format!("{text}; the old pod runs until the images are there");
        match &step {
            Some(Step::Pulling(text)) => return (old, "pulls", serving(text)),
            Some(Step::Failing(text)) => return (old, "failed", serving(text)),
            Some(Step::Silent) => return (old, "pulls", serving("asked to pull images, not answered yet")),
            _ => {}
        }
        let serves = here.old.first().is_some_and(|pod| pod.ready_since.is_some());
        let what = match old {
            _ if here.is_set_aside => "the node is lost: set aside until it returns",
            None => "no pod",
            Some(_) if here.old.is_empty() => "the old pod ends",
            Some(_) if serves => "the old pod runs",
            Some(_) => "the old pod is not ready",
        };
        let until = match state {
            _ if here.is_set_aside => "",
            "stopped" => ", the update is stopped",
            "paused" => ", the set is paused",
            _ if !wanted.is_rolling => " until it is deleted",
            _ if is_held => ", waits for the canaries",
            _ if serves && here.node.drained_for == wanted.place => ", its node is drained first",
            _ if serves && !here.maintained.is_open => {
                return (old, "waits", format!("{what}, {}", here.node.maintenance()));
            }
            _ => "",
        };
        return (old, "waits", format!("{what}{until}"));
    };
    if here.node.is_lost {
        return (Some(pod), "failed", "node lost".to_owned());
    }
    let value = by_uid.get(pod.uid.as_str());
    let status = value.map_or(&Value::Null, |value| &value["status"]);
    // a container that waits for its usual start has no reason worth showing
    let trouble = containers(status).find_map(|container| {
        let reason = text(container, &["state", "waiting", "reason"]);
        let is_waiting = !matches!(reason, "" | "ContainerCreating" | "PodInitializing");
        is_waiting.then(|| explained(container, reason, &["state", "waiting", "message"]))
    });
    let ended = || {
        containers(status).find_map(|container| {
            let reason = text(container, &["lastState", "terminated", "reason"]);
            let count = container["restartCount"].as_i64().unwrap_or(0);
            (count > 0).then(|| format!("{}, {count} restarts", explained(container, reason, &[])))
        })
    };
    let (state, why) = if pod.phase == "Failed" {
        ("failed", [text(status, &["reason"]), text(status, &["message"])].join(": "))
    } else if pod.trouble.is_some() {
        ("failed", trouble.or_else(ended).unwrap_or_default())
    } else if pod.ready_since.is_some() {
        ("runs", String::new())
    } else if containers(status).next().is_none() {
        ("starts", "its node has not taken it up".to_owned())
    } else if containers(status).any(|container| {
        container["state"]["waiting"].is_object() && text(container, &["imageID"]).is_empty()
    }) {
        ("pulls", trouble.unwrap_or_default())
    } else {
        ("starts", ended().unwrap_or_else(|| "not ready".to_owned()))
    };
    (Some(pod), state, why)
}

fn containers(status: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["initContainerStatuses", "containerStatuses"].into_iter();
    lists.flat_map(move |list| status[list].as_array().into_iter().flatten())
}

fn explained(container: &Value, reason: &str, message: &[&str]) -> String {
    let (name, message) = (text(container, &["name"]), text(container, message));
    match message {
        "" => format!("container {name}: {reason}"),
        message => format!("container {name}: {reason}: {message}"),
    }
}
