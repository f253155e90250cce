//! A fleet with a DaemonSet that is updated again and again, simulated with faults. Links fail: partitions,
//! flapping links, nodes that a revision cuts off. Pods fail: they crash, hang, are ready now and then, find
//! no image, or a person marks them as failed. Nodes fail: slow pulls, full disks, drains, power cuts, nodes
//! that are created again under their names or renamed. People and the hub add to it: templates that change
//! with every step, pauses, a hub that is killed between two writes. Meanwhile configurations are pushed, and
//! some nodes have maintenance windows; sets use `maxUnavailable` or `maxSurge`, and some agents pull ahead.
//! The controller hears of each change, or reads everything again. One seed is one run.
//!
//! After each step of the controller the promises of docs/guides/rollouts.md are checked by the store and the
//! agents, not by the memory of the controller. Each promise has a name in the assertions. In the end the
//! faults stop, and the last revision must be everywhere.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::macros::datetime;

use super::Hub;
use crate::controllers::daemon_sets::{DaemonSets, Defaults};
use crate::controllers::{Action, Controller as _, Task, World};
use crate::kinds::pod::NODE_NAME_FIELD;
use crate::kinds::{CONTROLLER_REVISION, DAEMON_SET, NODE, POD};
use crate::object::Object;
use crate::requests::{DeleteOptions, Propagation};
use crate::selector::Selection;
use kedge_api::{
    IMAGES_PULLED, MAINTENANCE_ANNOTATION, MaintenanceWindows, PULL_AHEAD_ANNOTATION, PullAhead,
};
use kedge_rig::Random;

/// Nodes of the usual run; `KEDGE_ROLLOUT_NODES` sets their number, `KEDGE_ROLLOUT_SEEDS` the number of runs,
/// `KEDGE_ROLLOUT_FIRST` the first seed.
const NODES: usize = 60;
const SEEDS: u64 = 9;
/// Steps with faults, and most steps until everything must be as it should.
const STEPS: usize = 160;
const STEPS_TO_SETTLE: usize = 400;
/// Most of these steps before the first fault.
const STEPS_TO_BEGIN: usize = 50;
/// Seconds between two steps.
const STEP: u64 = 10;
const BEGIN: OffsetDateTime = datetime!(2026-11-21 12:00:00 UTC);
/// On a revision: its rollout was complete.
const COMPLETE: &str = "kedge.dev/complete";
/// On a set: its updates replace no pod.
const PAUSED: &str = "kedge.dev/paused";
const FATES: [&str; 10] = ["good", "good", "good", "slow", "crash", "shaky", "flap", "hang", "nopull", "cut"];
/// Steps in which the template changes each time.
const EDITS: usize = 5;
/// How long pods stay ready before a rollout is complete, in steps, by the seed.
const STAYS_STEPS: [usize; 4] = [6, 2, 0, 3];
/// Crashes of a container before it runs for good.
const CRASHES: usize = 3;

#[derive(Debug, Default)]
struct Place {
    /// The hub does not hear from it until this step.
    away_until: usize,
    /// Its revision cut it off: only the operator brings it back.
    is_cut: bool,
    is_marked: bool,
    /// No image can be pulled until this step.
    full_until: usize,
    /// Until this step the hub hears from the node in every second step.
    flaps_until: usize,
    /// When the node is back, its containers start again.
    lost_power: bool,
    /// When updates may stop a pod there.
    windows: Option<MaintenanceWindows>,
}

impl Place {
    fn is_away(&self, step: usize) -> bool {
        self.is_cut || self.away_until > step || self.flaps_until > step && step.is_multiple_of(2)
    }
}

/// A pod as its agent knows it.
#[derive(Debug, Clone)]
struct Run {
    node: String,
    hash: String,
    image: String,
    is_ready: bool,
    /// The step in which its readiness was last reported.
    since: usize,
    restarts: usize,
    has_reported: bool,
    /// Somebody wrote that it failed: its agent reports nothing more about it.
    has_failed: bool,
    /// The request to pull images ahead that its node cannot serve.
    refuses: Option<String>,
    /// Since which step it has been ready, and for how many on end at most.
    ready_from: Option<usize>,
    longest: usize,
}

/// The state of the current revision, as stored.
#[derive(Debug)]
struct Standing {
    image: String,
    /// Its number when it was last complete.
    complete: Option<String>,
    is_stopped: bool,
    is_paused: bool,
    waits_for_canaries: bool,
}

struct Fleet {
    hub: Hub,
    controller: DaemonSets,
    random: Random,
    seed: u64,
    step: usize,
    places: BTreeMap<String, Place>,
    /// Names that a machine had before, and until when the hub keeps the pods under that name.
    former: BTreeMap<String, usize>,
    /// Nodes whose agent pulls ahead.
    capable: BTreeSet<String>,
    /// Node and image.
    pulled: BTreeSet<(String, String)>,
    /// A new pod starts beside the old one.
    surges: bool,
    /// For how long a pod stays ready before the rollout is complete.
    stays_steps: usize,
    runs: BTreeMap<String, Run>,
    /// Under a surge: the nodes where a pod of the current revision starts beside a serving one.
    surging: BTreeSet<String>,
    images: usize,
    /// Until this step somebody changes the template in each step.
    edited_until: usize,
    /// In this step somebody ends the pause of the set.
    paused_until: Option<usize>,
    /// Images that all reachable nodes ran at the same time.
    everywhere: BTreeSet<String>,
    budget: usize,
    seen: BTreeMap<&'static str, usize>,
}

impl Fleet {
    fn new(seed: u64, count: usize) -> Fleet {
        let mut random = Random::new(seed);
        let mut hub = Hub::with_namespace();
        // the controller hears of each change, after its next steps, or reads everything
        hub.changes = (!seed.is_multiple_of(3)).then(Vec::new);
        let (mut places, mut capable) = (BTreeMap::new(), BTreeSet::new());
        for index in 0..count {
            let name = format!("node-{index:04}");
            let canary = if index < 3 { "true" } else { "false" };
            let mut node = json!({"metadata": {"name": name, "labels": {"canary": canary}}});
            if random.percent(70) {
                capable.insert(name.clone());
            }
            let mut place = Place::default();
            if random.percent(15) {
                let windows = windows(&mut random);
                place.windows = MaintenanceWindows::parse(&windows);
                node["metadata"]["annotations"] = json!({MAINTENANCE_ANNOTATION: windows});
            }
            hub.create(&NODE, node);
            places.insert(name, place);
        }
        let budget = (count / 10).max(1);
        let mut annotations = json!({
            "kedge.dev/progress-deadline": "120s",
            "kedge.dev/max-failures": *random.pick(&["", "0", "2", "10%", "off"]),
            "kedge.dev/rollback-on-failure": *random.pick(&["true", "true", "false"]),
        });
        let stays_steps = STAYS_STEPS[seed as usize % STAYS_STEPS.len()];
        annotations["kedge.dev/complete-after"] = format!("{}s", stays_steps as u64 * STEP).into();
        if random.percent(50) {
            annotations["kedge.dev/canary-selector"] = "canary=true".into();
            annotations["kedge.dev/canary-soak"] = "60s".into();
        }
        let surges = random.percent(30);
        let min_ready = *random.pick(&[0, 0, 2 * STEP]);
        let strategy = match surges {
            true => json!({"maxUnavailable": 0, "maxSurge": budget}),
            false => json!({"maxUnavailable": budget}),
        };
        hub.create(
            &DAEMON_SET,
            json!({"metadata": {"namespace": "n", "name": "d", "annotations": annotations}, "spec": {
            "selector": {"matchLabels": {"app": "d"}}, "minReadySeconds": min_ready,
            "updateStrategy": {"rollingUpdate": strategy},
            "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "c", "image": "v0-good"}]}}}}),
        );
        Fleet {
            hub,
            controller: DaemonSets::default(),
            random,
            seed,
            step: 0,
            places,
            former: BTreeMap::new(),
            capable,
            pulled: BTreeSet::new(),
            surges,
            stays_steps,
            runs: BTreeMap::new(),
            surging: BTreeSet::new(),
            images: 0,
            edited_until: 0,
            paused_until: None,
            everywhere: BTreeSet::new(),
            budget,
            seen: BTreeMap::new(),
        }
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    #[track_caller]
    fn require(&self, promise: &str, holds: bool, why: impl FnOnce() -> String) {
        assert!(holds, "{promise}: seed {}, step {}: {}", self.seed, self.step, why());
    }

    fn set_image(&mut self, image: &str) {
        self.hub.edit(&DAEMON_SET, "n", "d", |set| {
            set["spec"]["template"]["spec"]["containers"][0]["image"] = image.into();
        });
    }

    /// Disturbances by people and by the environment.
    fn disturb(&mut self) {
        if self.edited_until > self.step {
            self.update();
        }
        if self.paused_until.is_some_and(|until| until <= self.step) {
            self.end_pause();
        }
        match self.random.index(44) {
            0 => self.update(),
            1 if self.images > 0 => {
                // an undo, or a tool that writes an old template back
                let known: Vec<String> = self
                    .runs
                    .values()
                    .map(|run| run.image.clone())
                    .collect::<BTreeSet<_>>()
                    .into_iter()
                    .collect();
                if !known.is_empty() {
                    let image = self.random.pick(&known).clone();
                    self.set_image(&image);
                    self.saw("undos");
                }
            }
            2 => {
                let value = self.step.to_string();
                self.hub.edit(&DAEMON_SET, "n", "d", |set| {
                    set["metadata"]["annotations"]["kedge.dev/resume"] = value.as_str().into();
                });
            }
            3..8 => {
                let names: Vec<String> = self.places.keys().cloned().collect();
                for _ in 0..self.random.index(4) {
                    let name = self.random.pick(&names).clone();
                    let until = self.step + 1 + self.random.index(20);
                    self.places.get_mut(&name).unwrap().away_until = until;
                }
                self.saw("partitions");
            }
            9..11 => {
                let names: Vec<String> = self.places.keys().cloned().collect();
                let name = self.random.pick(&names).clone();
                self.places.get_mut(&name).unwrap().full_until = self.step + 1 + self.random.index(30);
                self.saw("full disks");
            }
            11..13 => self.push_configuration(),
            13 => {
                for name in self.some_nodes() {
                    let place = self.places.get_mut(&name).unwrap();
                    place.away_until = place.away_until.max(self.step + 2);
                    place.lost_power = true;
                }
                self.saw("power cuts");
            }
            14 => {
                for name in self.some_nodes() {
                    self.places.get_mut(&name).unwrap().flaps_until = self.step + 12;
                }
                self.saw("flapping links");
            }
            15 => self.replace_node(),
            17 => self.call_failed(),
            19 => {
                let steps = 1 + self.random.index(15);
                self.pause(steps);
            }
            18 => self.rename_node(),
            16 => {
                self.edited_until = self.step + EDITS;
                self.saw("edit wars");
            }
            8 => {
                let uids: Vec<String> = self.runs.keys().cloned().collect();
                if !uids.is_empty() {
                    let uid = self.random.pick(&uids).clone();
                    let pods = World::list(&self.hub.index, &POD, "n");
                    if let Some(pod) = pods.iter().find(|pod| *pod.uid == *uid && !pod.terminating) {
                        let name = pod.name.to_string();
                        self.hub.delete(&POD, "n", &name, Propagation::Unset);
                        self.saw("drains");
                    }
                }
            }
            _ => {}
        }
    }

    fn update(&mut self) {
        self.images += 1;
        let image = format!("v{}-{}", self.images, self.random.pick(&FATES));
        self.set_image(&image);
        self.saw("updates");
    }

    fn pause(&mut self, steps: usize) {
        self.paused_until = Some(self.step + steps);
        self.hub.edit(&DAEMON_SET, "n", "d", |set| set["metadata"]["annotations"][PAUSED] = "true".into());
        self.saw("pauses");
    }

    fn end_pause(&mut self) {
        self.paused_until = None;
        self.hub.edit(&DAEMON_SET, "n", "d", |set| set["metadata"]["annotations"][PAUSED] = "false".into());
        self.saw("ends of a pause");
    }

    fn some_nodes(&mut self) -> BTreeSet<String> {
        let names: Vec<String> = self.places.keys().cloned().collect();
        (0..3).map(|_| self.random.pick(&names).clone()).collect()
    }

    /// Another machine takes the name of a node: its Node is a new object, and the pods bound to the name
    /// start there.
    fn replace_node(&mut self) {
        let Some(name) = self.some_nodes().pop_first() else { return };
        let node = self.hub.value(&NODE, "", &name);
        let metadata =
            ["name", "labels", "annotations"].map(|field| (field, node["metadata"][field].clone()));
        let metadata: serde_json::Map<String, Value> =
            metadata.into_iter().map(|(field, value)| (field.to_owned(), value)).collect();
        self.hub.delete(&NODE, "", &name, Propagation::Unset);
        self.hub.create(&NODE, json!({"metadata": metadata, "status": node["status"]}));
        let status = node["status"].clone();
        self.hub.edit(&NODE, "", &name, |node| node["status"] = status.clone());
        self.places.get_mut(&name).unwrap().lost_power = true;
        self.pulled.retain(|(node, _)| *node != name);
        self.saw("nodes made anew");
    }

    /// A machine gets another name: its Node is gone, and so are its pods after a while.
    fn rename_node(&mut self) {
        // never a canary: those have the first names
        let names: Vec<String> = self.places.keys().skip(3).cloned().collect();
        let name = self.random.pick(&names).clone();
        let new = format!("{}-{}", &name[..9], self.step);
        if self.places.contains_key(&new) || self.former.contains_key(&new) {
            return;
        }
        let node = self.hub.value(&NODE, "", &name);
        let (labels, annotations, status) =
            (&node["metadata"]["labels"], &node["metadata"]["annotations"], node["status"].clone());
        self.hub.create(
            &NODE,
            json!({"metadata": {"name": new, "labels": labels, "annotations": annotations}, "status": status}),
        );
        self.hub.edit(&NODE, "", &new, |node| node["status"] = status.clone());
        self.hub.delete(&NODE, "", &name, Propagation::Unset);
        let place = self.places.remove(&name).unwrap();
        self.places.insert(new.clone(), place);
        if self.capable.remove(&name) {
            self.capable.insert(new.clone());
        }
        let images: Vec<_> = self.pulled.extract_if(.., |(node, _)| *node == name).collect();
        self.pulled.extend(images.into_iter().map(|(_, image)| (new.clone(), image)));
        // a pod that ends with its node does not count as a surge
        self.surging.remove(&name);
        self.former.insert(name, self.step + 4);
        self.saw("nodes renamed");
    }

    /// Somebody writes that a pod failed, as upstream's conformance test does.
    fn call_failed(&mut self) {
        let uids: Vec<String> = self.runs.keys().cloned().collect();
        if uids.is_empty() {
            return;
        }
        let uid = self.random.pick(&uids).clone();
        let pods = self.pods_on(&self.runs[&uid].node);
        let Some(pod) = pods.iter().find(|pod| *pod.uid == *uid && !pod.terminating) else { return };
        self.hub.edit(&POD, "n", &pod.name, |pod| {
            pod["status"] = json!({"phase": "Failed", "qosClass": "BestEffort"});
        });
        let run = self.runs.get_mut(&uid).unwrap();
        (run.is_ready, run.has_failed) = (false, true);
        self.saw("called failed");
    }

    fn pods_on(&self, node: &str) -> Vec<Arc<Object>> {
        World::select(&self.hub.index, &POD, &Selection::by_field(&POD, "n", NODE_NAME_FIELD, node))
    }

    /// The containers of nodes that are back after a power cut are down, and their agents report that first.
    fn restart_pods(&mut self) {
        let step = self.step;
        let back = |place: &Place| place.lost_power && !place.is_away(step);
        let nodes: BTreeSet<String> =
            self.places.iter().filter(|(_, place)| back(place)).map(|(name, _)| name.clone()).collect();
        for pod in World::list(&self.hub.index, &POD, "n") {
            if !nodes.contains(pod.field(NODE_NAME_FIELD)) || pod.terminating {
                continue;
            }
            let Some(run) = self.runs.get_mut(&*pod.uid).filter(|run| !run.has_failed) else { continue };
            (run.is_ready, run.has_reported) = (false, false);
            self.report(
                &pod.name,
                &pod.uid,
                &json!({"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}),
            );
        }
        nodes.iter().for_each(|name| self.places.get_mut(name).unwrap().lost_power = false);
    }

    /// An operator gives some nodes another configuration, which may have other maintenance windows: their
    /// agents restart.
    fn push_configuration(&mut self) {
        let names: Vec<String> = self.places.keys().cloned().collect();
        let config = format!("settings-{}", self.step);
        for _ in 0..3 {
            let name = self.random.pick(&names).clone();
            let windows = self.random.one_in(3).then(|| windows(&mut self.random));
            let place = self.places.get_mut(&name).unwrap();
            place.away_until = place.away_until.max(self.step + 1);
            if let Some(windows) = &windows {
                place.windows = MaintenanceWindows::parse(windows);
            }
            self.hub.edit(&NODE, "", &name, |node| {
                let source = json!({"namespace": "n", "name": config, "kubeletConfigKey": "kubelet"});
                node["spec"]["configSource"] = json!({"configMap": source});
                if let Some(windows) = &windows {
                    node["metadata"]["annotations"] = json!({MAINTENANCE_ANNOTATION: windows});
                }
            });
        }
        self.saw("configurations");
    }

    /// The hub marks the nodes that it does not hear from, and those that are back.
    fn mark_nodes(&mut self) {
        let step = self.step;
        let changed: Vec<(String, bool)> = self
            .places
            .iter()
            .filter(|(_, place)| place.is_marked != place.is_away(step) || step == 0)
            .map(|(name, place)| (name.clone(), place.is_away(step)))
            .collect();
        for (name, is_away) in changed {
            let ready = if is_away { "Unknown" } else { "True" };
            let version = if self.capable.contains(&name) { "v1.36.0+kedge-0.1.0" } else { "v1.36.0" };
            let status = json!({"conditions": [{"type": "Ready", "status": ready}], "nodeInfo": {"kubeletVersion": version}});
            self.hub.edit(&NODE, "", &name, |node| node["status"] = status.clone());
            self.places.get_mut(&name).unwrap().is_marked = is_away;
            for pod in self.pods_on(&name) {
                if !pod.terminating {
                    let Some(run) = self.runs.get_mut(&*pod.uid).filter(|run| !run.has_failed) else {
                        continue;
                    };
                    // the container still runs, and its agent reports it again when it is back
                    run.has_reported = false;
                    self.hub.edit(&POD, "n", &pod.name, |pod| {
                        let conditions = pod["status"]["conditions"].as_array_mut().into_iter().flatten();
                        conditions
                            .filter(|one| one["type"] == "Ready")
                            .for_each(|one| one["status"] = "False".into());
                    });
                }
            }
        }
    }

    fn report(&mut self, name: &str, uid: &str, container: &Value) {
        let step = self.step;
        let run = self.runs.get_mut(uid).unwrap();
        run.since = step;
        let ready = if run.is_ready { "True" } else { "False" };
        let since =
            format!("2026-01-01T{:02}:{:02}:{:02}Z", self.step / 60 % 24, self.step % 60, run.restarts % 60);
        let status = json!({"phase": "Running", "qosClass": "BestEffort", "containerStatuses": [container],
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since},
                {"type": "ContainersReady", "status": ready, "lastTransitionTime": since}]});
        self.hub.edit(&POD, "n", name, |pod| {
            let answer = crate::value::condition(&pod["status"], IMAGES_PULLED).cloned();
            pod["status"] = status.clone();
            if let (Some(answer), Some(list)) = (answer, pod["status"]["conditions"].as_array_mut()) {
                list.push(answer);
            }
        });
    }

    /// Whether an image is on a node by now; some take long, some never arrive.
    fn pulls(&mut self, node: &str, image: &str) -> Option<bool> {
        let key = (node.to_owned(), image.to_owned());
        if self.pulled.contains(&key) {
            return Some(true);
        }
        if image.ends_with("-nopull") || self.places[node].full_until > self.step {
            return None;
        }
        let is_there = !image.ends_with("-slow") || self.random.percent(15);
        if is_there {
            self.pulled.insert(key);
        }
        Some(is_there)
    }

    /// The agent of a pod handles its request to pull ahead.
    fn pull_ahead(&mut self, name: &str, uid: &str, pod: &Value) {
        let Some(request) = pod["metadata"]["annotations"][PULL_AHEAD_ANNOTATION].as_str() else { return };
        let request: PullAhead = serde_json::from_str(request).unwrap();
        let node = self.runs[uid].node.clone();
        if !self.capable.contains(&node) {
            return;
        }
        let (status, reason) = match self.pulls(&node, &request.images[0].image) {
            Some(true) => ("True", "Pulled"),
            Some(false) => ("False", "Pulling"),
            None => ("False", "ErrImagePull"),
        };
        self.saw(if reason == "ErrImagePull" { "refused ahead" } else { "pulled ahead" });
        let refuses = (status == "False").then(|| request.revision.clone());
        self.runs.get_mut(uid).unwrap().refuses = refuses;
        let answer = json!({"type": IMAGES_PULLED, "status": status, "reason": reason,
            "message": format!("{}: as simulated", request.revision)});
        let known = crate::value::condition(&pod["status"], IMAGES_PULLED);
        if known.is_some_and(|known| known["message"] == answer["message"] && known["reason"] == reason) {
            return;
        }
        self.hub.edit(&POD, "n", name, |pod| {
            let Some(list) = pod["status"]["conditions"].as_array_mut() else { return };
            list.retain(|one| one["type"] != IMAGES_PULLED);
            list.push(answer.clone());
        });
    }

    /// A pod is gone.
    fn remove(&mut self, name: &str, uid: &str) {
        let options = DeleteOptions { grace_secs: Some(0), ..DeleteOptions::default() };
        let (namespace, name, requires) = ("n".to_owned(), name.to_owned(), Vec::new());
        self.hub.perform(Action::Delete { kind: &POD, namespace, name, options, requires }).unwrap();
        self.runs.remove(uid);
    }

    /// The agents in reach act, each with delays.
    fn agents_act(&mut self) {
        for pod in World::list(&self.hub.index, &POD, "n") {
            let (name, uid) = (pod.name.to_string(), pod.uid.to_string());
            if !self.runs.contains_key(&uid) {
                let value = pod.value();
                let image = value["spec"]["containers"][0]["image"].as_str().unwrap().to_owned();
                let node = pod.field(NODE_NAME_FIELD).to_owned();
                let hash =
                    value["metadata"]["labels"]["controller-revision-hash"].as_str().unwrap().to_owned();
                let run = Run {
                    node,
                    hash,
                    image,
                    is_ready: false,
                    since: 0,
                    restarts: 0,
                    has_reported: false,
                    has_failed: false,
                    refuses: None,
                    ready_from: None,
                    longest: 0,
                };
                self.runs.insert(uid.clone(), run);
            }
            let run = self.runs[&uid].clone();
            if let Some(until) = self.former.get(&run.node) {
                if *until <= self.step {
                    self.remove(&name, &uid);
                }
                continue;
            }
            if self.places[&run.node].is_away(self.step) || !self.random.percent(60) {
                continue;
            }
            if pod.terminating {
                self.remove(&name, &uid);
                continue;
            }
            if run.has_failed {
                continue;
            }
            if is_asked(&pod) {
                self.pull_ahead(&name, &uid, &pod.value());
            }
            let is_there =
                run.has_reported && run.is_ready || self.pulls(&run.node, &run.image) == Some(true);
            if !is_there && !run.image.ends_with("-nopull") {
                continue;
            }
            let run = self.runs.get_mut(&uid).unwrap();
            let container = match run.image.split_once('-').unwrap().1 {
                "flap" => {
                    run.is_ready = !run.is_ready;
                    json!({"name": "c", "state": {"running": {}}})
                }
                "shaky" if run.restarts > 2 * CRASHES => continue,
                "crash" | "shaky" => {
                    // in turns it runs for a moment and crashes
                    run.is_ready = !run.is_ready;
                    run.restarts += 1;
                    let last = json!({"terminated": {"exitCode": 1}});
                    let state = if run.is_ready {
                        json!({"running": {}})
                    } else {
                        json!({"waiting": {"reason": "CrashLoopBackOff"}})
                    };
                    json!({"name": "c", "state": state, "lastState": last, "restartCount": run.restarts - 1})
                }
                _ if run.has_reported => continue,
                "hang" => json!({"name": "c", "state": {"running": {}}}),
                "nopull" => json!({"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff"}}}),
                fate => {
                    run.is_ready = true;
                    if fate == "cut" {
                        let node = run.node.clone();
                        self.places.get_mut(&node).unwrap().is_cut = true;
                    }
                    json!({"name": "c", "state": {"running": {}}})
                }
            };
            self.runs.get_mut(&uid).unwrap().has_reported = true;
            self.report(&name, &uid, &container);
        }
    }

    fn standing(&self) -> Standing {
        let set = self.hub.value(&DAEMON_SET, "n", "d");
        let of = |value: &Value, path: &[&str]| crate::value::text(value, path).to_owned();
        let image = of_template(&set["spec"]["template"]);
        let annotation = |key: &str| of(&set, &["metadata", "annotations", key]);
        let revisions = World::list(&self.hub.index, &CONTROLLER_REVISION, "n");
        let values = revisions.iter().map(|revision| revision.value());
        let mine: Vec<Value> =
            values.filter(|value| of_template(&value["data"]["spec"]["template"]) == image).collect();
        let record = mine.iter().map(|value| of(value, &["metadata", "annotations", "kedge.dev/rollout"]));
        let record: Value =
            record.filter_map(|text| serde_json::from_str(&text).ok()).next().unwrap_or_default();
        let is_known = record["generation"] == annotation("deprecated.daemonset.template.generation");
        let is_stopped =
            is_known && record["stopped"].is_string() && record["resume"] == annotation("kedge.dev/resume");
        let complete = mine.iter().find_map(|value| value["metadata"]["annotations"][COMPLETE].as_str());
        let complete = complete.map(str::to_owned);
        let has_canaries = !annotation("kedge.dev/canary-selector").is_empty();
        let waits_for_canaries =
            has_canaries && complete.is_none() && !(is_known && record["soaked"] == true);
        let is_paused = annotation(PAUSED) == "true";
        Standing { image, complete, is_stopped, is_paused, waits_for_canaries }
    }

    /// One step of the controller, which may be killed in the middle; then checks the promises.
    fn control(&mut self, may_kill: bool) {
        let mut now = self.hub.now(self.step as u64 * STEP);
        now.wall = BEGIN + now.running;
        // it may hear of its own pods later
        self.hub.tell_of(&mut self.controller, &DAEMON_SET);
        let before = self.standing();
        for run in self.runs.values_mut() {
            run.ready_from = run.is_ready.then(|| run.ready_from.unwrap_or(self.step));
            run.longest = run.longest.max(run.ready_from.map_or(0, |from| self.step - from));
        }
        self.hub.wall = now.wall;
        let decision = self.controller.reconcile(&self.hub.index, now);
        let most = if may_kill && self.random.one_in(15) {
            self.saw("kills");
            self.random.index(decision.tasks.len() + 1)
        } else {
            usize::MAX
        };
        let mut tasks: VecDeque<Task<_>> = decision.tasks.into();
        if self.surges {
            let nodes: Vec<String> = self.places.keys().cloned().collect();
            nodes.iter().for_each(|node| self.note_surge(node, &before.image));
        }
        let mut took = 0;
        for _ in 0..most {
            let Some(task) = tasks.pop_front() else { break };
            let node = self.look_at(&task.action, &before, &mut took);
            let following = self.hub.act(&mut self.controller, task, now);
            tasks.extend(following);
            if let Some(node) = node.filter(|_| self.surges) {
                self.note_surge(&node, &before.image);
            }
        }
        if most < usize::MAX {
            self.controller = DaemonSets::default();
            self.controller.sweep(&self.hub.index);
        }
        self.check(&before, took);
    }

    /// Checks one action against the promises. Returns the node whose pods it changes.
    fn look_at(&mut self, action: &Action, before: &Standing, took: &mut usize) -> Option<String> {
        match action {
            Action::Delete { kind, options, name, .. } if kind.kind == POD.kind => {
                let run = options.uid.as_ref().and_then(|uid| self.runs.get(uid))?;
                let node = Some(run.node.clone());
                // or the pod belongs to a machine that has another name now
                let is_away = self.places.get(&run.node).is_none_or(|place| place.is_marked);
                self.require("no pod of a node that is away is ended", !is_away, || name.clone());
                if !run.is_ready {
                    return node;
                }
                *took += 1;
                let pod = self.hub.value(&POD, "n", name);
                let request = pod["metadata"]["annotations"][PULL_AHEAD_ANNOTATION].as_str();
                let request = request.map(|text| serde_json::from_str::<PullAhead>(text).unwrap().revision);
                let waits = request.is_some() && request == run.refuses && !self.surges;
                self.require("no pod is stopped for images that are not there", !waits, || name.clone());
                let is_closed = self.is_closed(&run.node) && !self.surges;
                self.require("no pod is stopped outside its node's window", !is_closed, || name.clone());
                let uid = options.uid.as_deref();
                let mut others = self.runs.iter().filter(|(other, _)| Some(other.as_str()) != uid);
                let serves = others.any(|(_, other)| other.node == run.node && other.is_ready);
                self.require("a surge leaves no node without a pod", serves || !self.surges, || name.clone());
                // a pause in the middle of a surge keeps the pod that was there before
                let is_undone = before.is_paused && self.surges && serves;
                let is_needed = run.image != before.image || is_undone;
                self.require("no healthy pod is restarted needlessly", is_needed, || name.clone());
                // of the two pods of a surge one may be ended
                let is_spared = !before.is_stopped || self.surges && serves;
                self.require("a stopped update takes no pod that serves", is_spared, || name.clone());
                let is_spared = !before.is_paused || self.surges && serves;
                self.require("a paused set replaces no pod that serves", is_spared, || name.clone());
                node
            }
            Action::Create { kind, value, .. } if kind.kind == POD.kind => {
                let image = of_template(value);
                let node = value["spec"]["nodeName"].as_str().unwrap();
                if image != before.image {
                    self.saw("restored");
                    return Some(node.to_owned());
                }
                if self.surges && self.serves_another(node, &before.image) {
                    self.saw("surged");
                    let others = self.surging.len() - usize::from(self.surging.contains(node));
                    self.require("the budget bounds a surge", others < self.budget, || {
                        format!("{node} and {:?}", self.surging)
                    });
                }
                self.require("a stopped revision spreads no further", !before.is_stopped, || node.to_owned());
                if before.waits_for_canaries && node >= "node-0003" {
                    // the passed soak is recorded before the first pod is made
                    let is_over =
                        !self.standing().waits_for_canaries && self.canaries_are_well(&before.image);
                    self.require("canaries come first", is_over, || node.to_owned());
                }
                Some(node.to_owned())
            }
            _ => None,
        }
    }

    /// Whether a pod of another revision serves there, or did at the node's last report.
    fn serves_another(&self, node: &str, image: &str) -> bool {
        self.runs.values().any(|run| run.node == node && run.is_ready && run.image != image)
    }

    /// Notes whether a pod of this revision starts there beside a serving one.
    fn note_surge(&mut self, node: &str, image: &str) {
        let pods = self.pods_on(node);
        let is_of = |pod: &Object| match self.runs.get(&*pod.uid) {
            Some(run) => run.image == image,
            None => of_template(&pod.value()) == image,
        };
        let starts = |pod: &Object| {
            let is_ready = self.runs.get(&*pod.uid).is_some_and(|run| run.is_ready && run.has_reported);
            !pod.terminating && !is_ready && is_of(pod)
        };
        // once the old pod is being deleted the surge is over: the new one was available, though its node may
        // be lost since
        let is_surging = pods.len() > 1
            && pods.iter().any(|pod| starts(pod))
            && pods.iter().any(|pod| !pod.terminating && !is_of(pod))
            && self.serves_another(node, image);
        match is_surging {
            true => _ = self.surging.insert(node.to_owned()),
            false => _ = self.surging.remove(node),
        }
    }

    fn is_closed(&self, node: &str) -> bool {
        let since = (self.hub.wall - BEGIN).whole_seconds();
        let windows = self.places[node].windows.as_ref();
        // Saturday, noon
        windows.is_some_and(|windows| !windows.at((5 * 24 + 12) * 3600 + since as u32).is_open)
    }

    /// Whether all reachable canaries have been ready for their soak time.
    fn canaries_are_well(&self, image: &str) -> bool {
        let mut canaries = self.places.iter().take(3).filter(|(_, place)| !place.is_marked);
        canaries.all(|(name, _)| {
            let mut runs = self.runs.values().filter(|run| run.node == *name && run.image == image);
            runs.any(|run| run.is_ready && (self.step - run.since) as u64 * STEP >= 60)
        })
    }

    fn check(&mut self, before: &Standing, took: usize) {
        let pods = World::list(&self.hub.index, &POD, "n");
        let mut on: BTreeMap<&str, Vec<&Object>> = BTreeMap::new();
        for pod in &pods {
            on.entry(pod.field(NODE_NAME_FIELD)).or_default().push(pod);
        }
        let most = if self.surges { 2 } else { 1 };
        let crowded = on.iter().find(|(_, pods)| pods.len() > most);
        self.require("at most one pod is on a node, under a surge two", crowded.is_none(), || {
            format!("{crowded:?}")
        });
        // a pod without a report yet is unready, and has the current revision or is about to be replaced
        let (mut out, mut current) = (0, 0);
        for (name, place) in &self.places {
            let live = on.get(name.as_str()).and_then(|pods| pods.iter().find(|pod| !pod.terminating));
            let run = live.map(|pod| self.runs.get(&*pod.uid));
            match run {
                None => out += usize::from(!place.is_marked),
                Some(Some(run)) if run.is_ready => {
                    current += usize::from(run.image == before.image && !place.is_marked);
                }
                // of an older revision, and unready by itself
                Some(Some(run)) if run.image != before.image => {}
                Some(Some(_)) => out += 1,
                Some(None) => out += usize::from(!place.is_marked),
            }
        }
        if took > 0 && self.surges {
            self.saw("surges");
        } else if took > 0 {
            self.saw("replaced");
            self.require("the budget is never exceeded by an update", out <= self.budget, || {
                format!("{out} of {} nodes are out after it took {took}", self.places.len())
            });
        }
        let present = self.places.values().filter(|place| !place.is_marked).count();
        if current >= present && present > 0 {
            self.everywhere.insert(before.image.clone());
        }
        let after = self.standing();
        if after.image == before.image && after.complete != before.complete {
            self.saw("complete");
            let stayed = |node: &str| {
                // the controller may hear of its end a step later
                let has = |run: &Run| run.image == after.image && run.longest + 1 >= self.stays_steps;
                self.runs.values().any(|run| run.node == node && has(run))
            };
            let mut present = self.places.iter().filter(|(_, place)| !place.is_marked);
            let early = present.find(|(node, _)| !stayed(node)).map(|(node, _)| node.clone());
            self.require("what is complete stayed", early.is_none(), || format!("{early:?}"));
        }
        if after.image != before.image {
            self.saw("roll backs");
            let known = self.everywhere.contains(&after.image);
            self.require("a roll back goes to what was complete", known, || after.image.clone());
        }
        if after.is_stopped && !before.is_stopped {
            self.saw("stops");
        }
        let set = self.hub.value(&DAEMON_SET, "n", "d");
        let status = |field: &str| set["status"][field].as_i64().unwrap_or(0);
        let observed = set["metadata"]["generation"] == set["status"]["observedGeneration"];
        let finished = observed
            && status("updatedNumberScheduled") >= status("desiredNumberScheduled")
            && status("numberAvailable") >= status("desiredNumberScheduled");
        self.require("kubectl reports no success of a stopped set", !(finished && after.is_stopped), || {
            set["status"].to_string()
        });
        let revisions = World::list(&self.hub.index, &CONTROLLER_REVISION, "n");
        let by_hash: BTreeMap<String, (i64, String)> = revisions
            .iter()
            .map(|revision| {
                let value = revision.value();
                let hash =
                    value["metadata"]["labels"]["controller-revision-hash"].as_str().unwrap_or_default();
                let image = of_template(&value["data"]["spec"]["template"]);
                (hash.to_owned(), (value["revision"].as_i64().unwrap_or(0), image))
            })
            .collect();
        let numbers: BTreeSet<i64> = by_hash.values().map(|(number, _)| *number).collect();
        self.require("each revision has a number of its own", numbers.len() == revisions.len(), || {
            format!("{by_hash:?}")
        });
        for pod in pods.iter().filter(|pod| !pod.terminating) {
            let (hash, image) = match self.runs.get(&*pod.uid) {
                // the template that a pod was made from never changes
                Some(run) => (run.hash.clone(), run.image.clone()),
                None => {
                    let value = pod.value();
                    let hash = &value["metadata"]["labels"]["controller-revision-hash"];
                    (hash.as_str().unwrap_or_default().to_owned(), of_template(&value))
                }
            };
            let is_known = by_hash.get(&hash).is_some_and(|(_, made)| *made == image);
            self.require("the history has what each pod was made from", is_known, || {
                format!("{} of {image} by {hash}, of {by_hash:?}", pod.name)
            });
        }
        let live: BTreeSet<&str> = self.runs.values().map(|run| run.image.as_str()).collect();
        self.require("the history is bounded", revisions.len() <= 12 + live.len(), || {
            revisions.len().to_string()
        });
    }

    /// The faults stop, and the last revision is a good one. Then somebody undoes it, back to the oldest good
    /// one that is stored.
    fn settle(&mut self) {
        self.images += 1;
        if self.seed.is_multiple_of(2) {
            self.settle_in_a_pause();
        }
        self.settle_at(&format!("v{}-good", self.images));
        let mut known: Vec<(i64, String)> = World::list(&self.hub.index, &CONTROLLER_REVISION, "n")
            .iter()
            .map(|revision| {
                let value = revision.value();
                (value["revision"].as_i64().unwrap_or(0), of_template(&value["data"]["spec"]["template"]))
            })
            .collect();
        known.sort();
        let newest = known.last().map(|(_, image)| image.clone());
        let is_last = newest == Some(format!("v{}-good", self.images));
        self.require("the last template has the highest number", is_last, || format!("{known:?}"));
        if let Some((_, image)) = known.into_iter().find(|(_, image)| image.ends_with("-good")) {
            self.settle_at(&image);
            self.saw("undone in the end");
        }
    }

    /// The set is paused, and no faults happen any more: the new template replaces no serving pod.
    fn settle_in_a_pause(&mut self) {
        self.pause(STEPS_TO_SETTLE);
        self.set_image(&format!("v{}-good", self.images));
        for _ in 0..10 {
            self.step += 1;
            self.mark_nodes();
            self.agents_act();
            self.hub.tell(&mut self.controller);
            self.control(false);
        }
    }

    /// This template must be everywhere in the end, once the pause is over.
    fn settle_at(&mut self, image: &str) {
        if self.paused_until.is_some() {
            self.end_pause();
        }
        self.set_image(image);
        for settled in 0..STEPS_TO_SETTLE {
            self.step += 1;
            for place in self.places.values_mut() {
                let windows = place.windows.take();
                *place = Place { is_marked: place.is_marked, windows, ..Place::default() };
            }
            self.mark_nodes();
            self.agents_act();
            // somebody resumes a set that stopped because of earlier losses or crashes
            if settled % 50 == 49 {
                let value = self.step.to_string();
                self.hub.edit(&DAEMON_SET, "n", "d", |set| {
                    set["metadata"]["annotations"]["kedge.dev/resume"] = value.as_str().into();
                });
                if self.standing().image != image {
                    self.set_image(image);
                }
            }
            self.hub.tell(&mut self.controller);
            self.control(false);
            let all = self.runs.values().filter(|run| run.is_ready && run.image == image).count();
            let set = self.hub.value(&DAEMON_SET, "n", "d");
            let count = i64::try_from(self.places.len()).unwrap();
            let is_counted = ["desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable"]
                .iter()
                .all(|field| set["status"][field] == count);
            if all == self.places.len() && is_counted && self.standing().image == image {
                return;
            }
        }
        let view = crate::controllers::daemon_sets::view(
            &self.hub.index,
            Defaults::default(),
            ("n", "d"),
            self.hub.wall,
        )
        .unwrap();
        panic!("the last revision comes everywhere: seed {}: {view:#}", self.seed);
    }

    /// No faults happen yet: in some runs the first revision completes before the first fault, so that there
    /// is one to roll back to.
    fn begin(&mut self) {
        if self.seed % 5 > 2 {
            return;
        }
        while self.step < STEPS_TO_BEGIN {
            self.mark_nodes();
            self.agents_act();
            self.hub.tell(&mut self.controller);
            (0..3).for_each(|_| self.control(false));
            self.step += 1;
            let revisions = World::list(&self.hub.index, &CONTROLLER_REVISION, "n");
            if revisions.iter().any(|one| one.value()["metadata"]["annotations"][COMPLETE].is_string()) {
                self.saw("complete at first");
                return;
            }
        }
    }

    fn run(mut self) -> BTreeMap<&'static str, usize> {
        self.begin();
        for _ in self.step..STEPS {
            self.disturb();
            self.mark_nodes();
            self.restart_pods();
            self.agents_act();
            self.hub.tell(&mut self.controller);
            for _ in 0..1 + self.random.index(3) {
                self.control(true);
            }
            self.step += 1;
        }
        self.settle();
        self.seen
    }
}

/// Whether the pod's node has a request to pull images ahead, or its agent has answered one.
fn is_asked(pod: &Object) -> bool {
    let key = PULL_AHEAD_ANNOTATION.as_bytes();
    pod.json.windows(key.len()).any(|found| found == key)
}

/// Windows that cover some minutes, and all the time after the faults, which end before half past twelve.
fn windows(random: &mut Random) -> String {
    let begin = random.index(25);
    format!("12:{begin:02}-12:{:02}, 12:30-23:00", begin + 4)
}

/// The first image of a template or a pod.
fn of_template(value: &Value) -> String {
    value["spec"]["containers"][0]["image"].as_str().unwrap_or_default().to_owned()
}

#[allow(clippy::disallowed_methods, reason = "a person who runs the simulation sets it")]
fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn promises_hold_in_a_fleet_with_faults() {
    let count = from_environment("KEDGE_ROLLOUT_NODES").map_or(NODES, |count| count as usize);
    let seeds = from_environment("KEDGE_ROLLOUT_SEEDS").unwrap_or(SEEDS);
    let mut seen: BTreeMap<&'static str, usize> = BTreeMap::new();
    let first = from_environment("KEDGE_ROLLOUT_FIRST").unwrap_or(1);
    for seed in first..first + seeds {
        for (what, times) in Fleet::new(seed, count).run() {
            *seen.entry(what).or_default() += times;
        }
    }
    for what in [
        "updates",
        "undos",
        "partitions",
        "drains",
        "kills",
        "replaced",
        "stops",
        "roll backs",
        "restored",
        "full disks",
        "configurations",
        "pulled ahead",
        "refused ahead",
        "surges",
        "surged",
        "power cuts",
        "flapping links",
        "nodes made anew",
        "nodes renamed",
        "complete",
        "complete at first",
        "undone in the end",
        "edit wars",
        "called failed",
        "pauses",
        "ends of a pause",
    ] {
        // fewer runs than usual need not meet everything
        assert!(
            seeds < SEEDS || seen.contains_key(what),
            "no {what}: the simulation proves little: {seen:?}"
        );
    }
    eprintln!("{seeds} fleets of {count} nodes: {seen:?}");
}
