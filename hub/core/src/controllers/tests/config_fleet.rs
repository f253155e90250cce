//! A fleet with a ConfigRollout whose source is edited again and again, simulated with faults. Links fail.
//! Revisions are refused, never promoted, promoted with pressure, or cut their nodes off. Nodes come, go, and
//! are assigned by hand. People pause, undo and resume, and the hub is killed between two writes. The
//! controller hears of each change, or reads everything again. One seed is one run.
//!
//! After each step the promises of docs/guides/rollouts.md are checked from what the store and the agents
//! know, not from what the controller remembers; each has a name in the assertions. In the end the faults
//! stop, and the last revision must be everywhere.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Value, json};

use super::Hub;
use super::config_rollouts::{self, assigned, promoted, report, rollout, set};
use crate::controllers::config_rollouts::ConfigRollouts;
use crate::controllers::{Controller as _, World};
use crate::kinds::{CONFIG_MAP, CONFIG_ROLLOUT, NAMESPACE, NODE};
use crate::requests::Propagation;
use kedge_rig::Random;

/// Nodes of the usual run; `KEDGE_ROLLOUT_NODES` sets their number, `KEDGE_ROLLOUT_SEEDS` the number of runs.
const NODES: usize = 60;
const SEEDS: u64 = 9;
/// Steps with faults, and most steps until everything must be as it should.
const STEPS: usize = 120;
const STEPS_TO_SETTLE: usize = 400;
/// Seconds between two steps.
const STEP: u64 = 10;
const FLEET: &str = "kedge-fleet";
const FATES: [&str; 8] = ["good", "good", "good", "slow", "bad", "tight", "hangs", "cuts"];
const CANARIES: usize = 3;

#[derive(Debug, Default)]
struct Place {
    /// The hub does not hear from it until this step.
    away_until: usize,
    /// A revision cut it off: a person brings it back at this step.
    cut_until: usize,
    is_lost: bool,
    /// The text that it tries, and until which step.
    tries: Option<(String, usize)>,
    is_by_hand: bool,
}

struct Fleet {
    hub: Hub,
    controller: ConfigRollouts,
    random: Random,
    seed: u64,
    step: usize,
    places: BTreeMap<String, Place>,
    edits: usize,
    /// Nodes that were ever assigned each text.
    reached: BTreeMap<String, BTreeSet<String>>,
    /// Texts whose rollout a person resumed after a stop.
    resumed: BTreeSet<String>,
    budget: usize,
    seen: BTreeMap<&'static str, usize>,
}

impl Fleet {
    fn new(seed: u64, count: usize) -> Fleet {
        let mut random = Random::new(seed);
        let mut hub = Hub::with_namespace();
        for name in [FLEET, "default"] {
            hub.create(&NAMESPACE, json!({"metadata": {"name": name}}));
        }
        hub.changes = (!seed.is_multiple_of(3)).then(Vec::new);
        let budget = (count / 10).max(1);
        let soak = *random.pick(&["0s", "60s"]);
        let canary = json!({"selector": {"matchLabels": {"fleet.kedge.dev/ring": "canary"}}, "soak": soak});
        let mut strategy = json!({"maxUnavailable": budget, "progressDeadline": "2m",
            "batches": [canary, {"limit": "20%"}], "maxFailures": *random.pick(&["0%", "1%", "5%"]),
            "rollbackOnFailure": *random.pick(&[true, false])});
        if random.percent(40) {
            strategy["perGroup"] = json!({"label": "fleet.kedge.dev/site", "maxUnavailable": 2});
        }
        hub.create(&CONFIG_ROLLOUT, rollout(strategy));
        let mut fleet = Fleet {
            hub,
            controller: ConfigRollouts::default(),
            random,
            seed,
            step: 0,
            places: BTreeMap::new(),
            edits: 0,
            reached: BTreeMap::new(),
            resumed: BTreeSet::new(),
            budget,
            seen: BTreeMap::new(),
        };
        for index in 0..count {
            fleet.add_node(index);
        }
        fleet.write("good-0");
        fleet
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    #[track_caller]
    fn require(&self, promise: &str, holds: bool, why: impl FnOnce() -> String) {
        assert!(holds, "{promise}: seed {}, step {}: {}", self.seed, self.step, why());
    }

    fn add_node(&mut self, index: usize) {
        let name = format!("n{index:05}");
        let ring = if index < CANARIES { "canary" } else { "wide" };
        let site = (index % 7).to_string();
        let labels = json!({"fleet.kedge.dev/group": "shops", "fleet.kedge.dev/ring": ring, "fleet.kedge.dev/site": site});
        self.hub.create(&NODE, json!({"metadata": {"name": name, "labels": labels}}));
        self.hub.edit(&NODE, "", &name, |node| {
            node["status"] = json!({"conditions": []});
            set(node, "Ready", "True", "");
        });
        self.places.insert(name, Place::default());
    }

    fn write(&mut self, text: &str) {
        if self.hub.index.get(&CONFIG_MAP, FLEET, "settings").is_none() {
            let metadata = json!({"namespace": FLEET, "name": "settings"});
            self.hub.create(&CONFIG_MAP, json!({"metadata": metadata, "data": {"kubelet": text}}));
        } else {
            self.hub.edit(&CONFIG_MAP, FLEET, "settings", |map| map["data"]["kubelet"] = text.into());
        }
    }

    fn source(&self) -> String {
        text_of(&self.hub.value(&CONFIG_MAP, FLEET, "settings"))
    }

    fn rollout(&self) -> Value {
        self.hub.value(&CONFIG_ROLLOUT, "", "shops")
    }

    fn nodes(&self) -> BTreeMap<String, Value> {
        let all = World::list(&self.hub.index, &NODE, "");
        all.iter().map(|node| (node.name.to_string(), node.value())).collect()
    }

    fn some_node(&mut self) -> String {
        let names: Vec<String> = self.places.keys().cloned().collect();
        self.random.pick(&names).clone()
    }

    fn annotate(&mut self, key: &str, value: &str) {
        self.hub.edit(&CONFIG_ROLLOUT, "", "shops", |rollout| {
            rollout["metadata"]["annotations"][key] = value.into();
        });
    }

    fn disturb(&mut self) {
        match self.random.index(30) {
            0 | 1 => {
                self.edits += 1;
                let text = format!("{}-{}", self.random.pick(&FATES), self.edits);
                self.write(&text);
                self.saw("edits");
            }
            2 => {
                self.annotate("fleet.kedge.dev/undo-to", "0");
                let source = self.source();
                self.resumed.insert(source);
                self.saw("undos");
            }
            3 => {
                let value = self.step.to_string();
                self.annotate("fleet.kedge.dev/resume", &value);
                let source = self.source();
                self.resumed.insert(source);
                self.saw("resumes");
            }
            4..9 => {
                for _ in 0..self.random.index(4) {
                    let name = self.some_node();
                    self.places.get_mut(&name).unwrap().away_until = self.step + 2 + self.random.index(20);
                }
                self.saw("partitions");
            }
            9 => {
                let paused = self.random.percent(30);
                self.hub
                    .edit(&CONFIG_ROLLOUT, "", "shops", |rollout| rollout["spec"]["paused"] = paused.into());
                self.saw("pauses");
            }
            10 => {
                let name = self.some_node();
                let source =
                    json!({"configMap": {"namespace": "n", "name": "mine", "kubeletConfigKey": "kubelet"}});
                self.hub.edit(&NODE, "", &name, |node| node["spec"]["configSource"] = source.clone());
                self.places.get_mut(&name).unwrap().is_by_hand = true;
                self.saw("hands");
            }
            11 => {
                let index = self.places.len() + self.step + 1000;
                self.add_node(index);
                self.saw("new nodes");
            }
            12 => {
                let name = self.some_node();
                if self.places.len() > CANARIES + 5 && name.as_str() >= "n00003" {
                    self.hub.delete(&NODE, "", &name, Propagation::Unset);
                    self.places.remove(&name);
                    self.saw("gone nodes");
                }
            }
            _ => {}
        }
    }

    /// One step of the controller; in some steps the hub is killed between two writes.
    fn control(&mut self, kills: bool) {
        let before = self.nodes();
        let seen = self.rollout();
        let second = self.step as u64 * STEP;
        if !(kills && self.random.percent(15)) {
            self.hub.run_at(&mut self.controller, second);
        } else {
            self.hub.tell(&mut self.controller);
            let now = self.hub.now(second);
            let mut tasks = VecDeque::from(self.controller.reconcile(&self.hub.index, now).tasks);
            let mut left = self.random.index(6);
            while let Some(task) = tasks.pop_front().filter(|_| left > 0) {
                left -= 1;
                tasks.extend(self.hub.act(&mut self.controller, task, now));
            }
            self.controller = ConfigRollouts::default();
            self.controller.sweep(&self.hub.index);
            self.saw("kills");
        }
        self.check(&before, &seen);
    }

    fn check(&mut self, before: &BTreeMap<String, Value>, seen: &Value) {
        let after = self.nodes();
        let now = self.rollout();
        let (mut taken, mut count) = (0, 0);
        for (name, node) in &after {
            let was = before.get(name).map_or("", |node| assigned(node));
            if was == assigned(node) {
                continue;
            }
            count += 1;
            let place = &self.places[name];
            self.require("a hand is not overwritten", !place.is_by_hand, || name.clone());
            self.require("paused means paused", seen["spec"]["paused"] != true, || name.clone());
            let known = ["updateRevision", "currentRevision"]
                .map(|field| now["status"][field].as_str().unwrap_or_default().to_owned());
            let stored = ["updateRevision", "currentRevision"]
                .map(|field| seen["status"][field].as_str().unwrap_or_default().to_owned());
            self.require(
                "only the update and the complete revision are assigned",
                known.iter().chain(&stored).any(|one| one == assigned(node)),
                || format!("{name} got {}", assigned(node)),
            );
            let text = text_of(&self.hub.value(&CONFIG_MAP, FLEET, assigned(node)));
            self.require("a revision is there when it is assigned", !text.is_empty(), || name.clone());
            let is_stopped = seen["status"]["phase"] == "Stopped" && now["status"]["phase"] == "Stopped";
            let is_same = seen["status"]["updateRevision"] == now["status"]["updateRevision"]
                && seen["metadata"]["annotations"] == now["metadata"]["annotations"];
            self.require(
                "a stop holds",
                !(is_stopped && is_same && *assigned(node) == stored[0] && stored[0] != stored[1]),
                || format!("{name} got {text}"),
            );
            let served = before
                .get(name)
                .is_some_and(|node| !promoted(node).is_empty() && assigned(node) == promoted(node));
            taken += usize::from(served);
            self.reached.entry(text).or_default().insert(name.clone());
        }
        let out = after.iter().filter(|(name, node)| {
            let place = &self.places[*name];
            // one that refused its configuration runs the one before
            let has_refused = crate::value::condition(&node["status"], "ConfigOK")
                .is_some_and(|ok| ok["status"] == "False")
                && node["status"]["config"]["assigned"]
                    == config_rollouts::seen(&node["spec"]["configSource"]);
            !place.is_by_hand
                && !has_refused
                && !place.is_lost
                && !promoted(node).is_empty()
                && assigned(node) != promoted(node)
        });
        let out = out.count();
        self.require("no more than the budget is out", taken == 0 || out <= self.budget, || {
            format!("{out} nodes, {taken} of them taken just now")
        });
        self.require("50 assignments at a time", count <= 50, || count.to_string());
        let reached = self.reached.iter().filter(|(text, _)| !self.resumed.contains(*text));
        for (text, nodes) in
            reached.filter(|(text, _)| !text.starts_with("good") && !text.starts_with("slow"))
        {
            self.require(
                "a harmful revision reaches the first batch",
                nodes.len() <= CANARIES.max(1),
                || format!("{text}: {nodes:?}"),
            );
        }
    }

    /// The agents: each one with contact tries its assigned text.
    fn agents(&mut self) {
        for (name, node) in self.nodes() {
            let place = self.places.get_mut(&name).unwrap();
            let is_lost = place.away_until.max(place.cut_until) > self.step;
            if is_lost != place.is_lost {
                place.is_lost = is_lost;
                let ready = if is_lost { "Unknown" } else { "True" };
                self.hub.edit(&NODE, "", &name, |node| set(node, "Ready", ready, ""));
            }
            let found = assigned(&node).to_owned();
            let is_reported =
                node["status"]["config"]["assigned"] == config_rollouts::seen(&node["spec"]["configSource"]);
            if is_lost || found.is_empty() || place.is_by_hand || is_reported {
                continue;
            }
            let text = text_of(&self.hub.value(&CONFIG_MAP, FLEET, &found));
            let (fate, number) = text.split_once('-').unwrap();
            let place = self.places.get_mut(&name).unwrap();
            match &place.tries {
                Some((tried, until)) if *tried == found => {
                    if *until > self.step {
                        continue;
                    }
                    place.tries = None;
                    if fate == "cuts" {
                        // its agent rolls back once a person is there
                        place.cut_until = self.step + 30;
                    }
                    let shown = match fate {
                        "slow" => format!("good-{number}"),
                        "cuts" => format!("bad-{number}"),
                        _ => text,
                    };
                    self.hub.edit(&NODE, "", &name, |node| report(node, &shown));
                }
                _ => {
                    let steps = if fate == "slow" { 5 } else { 1 + self.random.index(2) };
                    place.tries = Some((found, self.step + steps));
                }
            }
        }
    }

    fn settle(&mut self) {
        for place in self.places.values_mut() {
            (place.away_until, place.cut_until) = (0, 0);
        }
        self.hub.edit(&CONFIG_ROLLOUT, "", "shops", |rollout| rollout["spec"]["paused"] = false.into());
        self.write("good-last");
        let goal = |fleet: &Fleet| {
            let nodes = fleet.nodes();
            let mut ours = nodes.iter().filter(|(name, _)| !fleet.places[*name].is_by_hand);
            let has =
                |node: &Value| text_of(&fleet.hub.value(&CONFIG_MAP, FLEET, promoted(node))) == "good-last";
            fleet.rollout()["status"]["phase"] == "Complete" && ours.all(|(_, node)| has(node))
        };
        for _ in 0..STEPS_TO_SETTLE {
            self.step += 1;
            self.control(false);
            self.agents();
            if goal(self) {
                return;
            }
        }
        self.require("the last revision is everywhere in the end", false, || {
            format!("{:#}", self.rollout()["status"])
        });
    }
}

fn text_of(map: &Value) -> String {
    map["data"]["kubelet"].as_str().unwrap_or_default().to_owned()
}

#[allow(clippy::disallowed_methods, reason = "a person who runs the simulation sets it")]
fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn config_promises_hold_in_a_fleet() {
    let count = from_environment("KEDGE_ROLLOUT_NODES").map_or(NODES, |count| count as usize);
    let mut seen: BTreeMap<&'static str, usize> = BTreeMap::new();
    for seed in 1..=from_environment("KEDGE_ROLLOUT_SEEDS").unwrap_or(SEEDS) {
        let mut fleet = Fleet::new(seed, count);
        for step in 1..=STEPS {
            fleet.step = step;
            fleet.disturb();
            fleet.control(true);
            if fleet.rollout()["status"]["phase"] == "Stopped" {
                fleet.saw("stops");
            }
            fleet.agents();
        }
        fleet.step = STEPS;
        fleet.settle();
        fleet.seen.into_iter().for_each(|(what, count)| *seen.entry(what).or_default() += count);
    }
    for what in ["edits", "undos", "resumes", "partitions", "pauses", "hands", "new nodes", "kills", "stops"]
    {
        assert!(seen.contains_key(what), "no {what} in any run: {seen:?}");
    }
}
