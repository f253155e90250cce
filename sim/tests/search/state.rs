//! One state of the search: a node, its server's objects, the remaining faults, and the memory of the
//! invariants.
//!
//! Always holds: a fork shares nothing with its origin; two states with the same [`State::key`] do not differ
//! in anything that a decision depends on: boots and runs are counted relative to the present, and values
//! that no rule can distinguish any more (running time beyond the trial, silence beyond a day) are cut off.
//! Leaves to others: the possible acts (`acts`).

use crate::cast::{Cast, Config, DAY_TICKS, LOCAL, Objects, TICK};
use crate::scenarios::FAULTS;
use kedge_core::config::records::StateFile;
use kedge_sim::Node;
use serde_json::Value;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

/// How the run before the next start ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum End {
    Clean,
    Crash,
    Panic,
    Cut,
}

/// The invariants' memory of the way to a state.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Ghost {
    /// Starts of each config since an operator last acted.
    pub(crate) starts: BTreeMap<Config, u8>,
    /// Ticks under each config since a renewal was last accepted.
    pub(crate) quiet: BTreeMap<Config, u8>,
    /// Configs banned for good, until an act lifts the ban, each with the UID of its object: the ban does not
    /// apply to another object.
    pub(crate) banned: BTreeSet<(String, Config)>,
    /// Power cuts since an operator last acted.
    pub(crate) cuts: u8,
    /// Servers whose Node had a source when it was read.
    pub(crate) asked: BTreeSet<u64>,
    /// Memory was short for another reason than a config.
    pub(crate) was_pressed: bool,
}

pub(crate) struct State {
    pub(crate) node: Node,
    /// Which of the two servers the kubeconfig names.
    pub(crate) server: usize,
    /// The assignment on each server.
    pub(crate) asks: [char; 2],
    pub(crate) objects: [Objects; 2],
    /// The source that this run last read: its server, and the history of the objects at that time.
    pub(crate) read: Option<(usize, char, Objects)>,
    /// The last shown round of the ConfigMap's watch, and the history of the objects at that time.
    pub(crate) shown: (u64, Objects),
    pub(crate) link: bool,
    /// The present set of drop-ins.
    pub(crate) layer: usize,
    /// Whether a tick passed in this run.
    pub(crate) is_old: bool,
    /// The memory changed in this tick: the agent's last measurement is older.
    pub(crate) is_news: bool,
    /// Ticks of this run since its last contact.
    pub(crate) quiet: u8,
    pub(crate) end: End,
    /// Ticks of every trial.
    pub(crate) trial_ticks: usize,
    /// How many of each fault the search may still inject.
    pub(crate) left: [u8; FAULTS],
    pub(crate) ghost: Ghost,
}

impl State {
    pub(crate) fn fork(&self) -> Self {
        Self { node: self.node.fork(), ghost: self.ghost.clone(), ..*self }
    }

    /// A copy of the state without the invariants' memory, and without further faults.
    pub(crate) fn fork_in_peace(&self) -> Self {
        Self { node: self.node.fork(), ghost: Ghost::default(), left: [0; FAULTS], link: true, ..*self }
    }

    pub(crate) fn running(&self, cast: &Cast) -> Option<Config> {
        let used = self.node.process.as_ref()?.used?;
        Some(cast.with_pods(used))
    }

    /// UID of the object of the running config.
    pub(crate) fn running_uid(&self) -> Option<String> {
        let report = self.node.process.as_ref()?.node.report(self.node.now())?;
        Some(report.config.status.active?.config_map?.uid)
    }

    /// The present assignment.
    pub(crate) fn asks(&self) -> char {
        self.asks[self.server]
    }

    /// The config that the present source leads to.
    pub(crate) fn wants(&self) -> Option<Config> {
        Cast::asked_for(self.asks(), self.objects[self.server])
    }

    /// The key of everything that a decision may depend on.
    pub(crate) fn key(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        self.hash_disk(&mut hash);
        self.hash_process(&mut hash);
        (self.server, self.asks, self.objects, self.read, self.layer, self.is_old).hash(&mut hash);
        (&self.node.version, self.quiet).hash(&mut hash);
        (self.node.facts.memory_available_bytes, self.is_news).hash(&mut hash);
        hash.finish()
    }

    /// The same with the remaining faults, and the invariants' memory.
    pub(crate) fn whole_key(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        (self.key(), self.link, self.end, self.left, &self.ghost).hash(&mut hash);
        hash.finish()
    }

    fn hash_disk(&self, hash: &mut DefaultHasher) {
        let (boot, runs) = (self.node.boot_id(), self.node.board.previous_run().runs);
        for path in self.node.disk.paths() {
            path.hash(hash);
            if path.starts_with("checkpoints/") || path.contains(".corrupt-") {
                continue;
            }
            let bytes = self.node.disk.content(&path).unwrap_or_default();
            match serde_json::from_slice::<Value>(&bytes) {
                Ok(mut record) => {
                    count_from_now(&mut record, &boot, runs);
                    record.to_string().hash(hash);
                }
                Err(_) => bytes.hash(hash),
            }
        }
    }

    fn hash_process(&self, hash: &mut DefaultHasher) {
        let previous = self.node.board.previous_run();
        let exit = previous.exit.as_ref();
        let boot = self.node.boot_id();
        let exit = exit
            .map(|exit| (exit.boot_id == boot, previous.runs - exit.run.min(previous.runs), &exit.result));
        (exit, previous.hardware_reset, previous.kernel_panic).hash(hash);
        let Some(process) = &self.node.process else { return None::<u32>.hash(hash) };
        process.used.hash(hash);
        let Some(report) = process.node.report(self.node.now()) else { return };
        let config = &report.config;
        (config.state, config.startups, config.cuts, config.contact, config.obstacle).hash(hash);
        (config.condition.status, &config.condition.reason, &config.condition.message).hash(hash);
        let ran = config.ran_seconds / TICK.as_secs();
        // a config without anything pending is settled after its trial; with something pending, after twice
        // the longest wait
        let is_settled = matches!(config.state, "known-good" | "local") && config.condition.status == "True";
        // and one tick more: from then on what the node shows no longer depends on the past
        let most = if is_settled { self.trial_ticks + 1 } else { self.trial_ticks + 2 * DAY_TICKS };
        ran.min(most as u64).hash(hash);
    }
}

/// Most doublings of a wait: from a quarter of a day, or from a minute in the local config's terms.
const DOUBLINGS: u64 = 12;

/// Boots and runs as the next decision sees them: this one or another, and how many runs ago.
fn count_from_now(record: &mut Value, boot: &str, runs: u64) {
    match record {
        Value::Array(parts) => parts.iter_mut().for_each(|part| count_from_now(part, boot, runs)),
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), &*value) {
                    ("run", Value::Number(run)) => {
                        let ago = runs.saturating_sub(run.as_u64().unwrap_or_default());
                        *value = ago.min(3).into();
                    }
                    ("open", Value::String(open)) => *value = (open == boot).into(),
                    // the order of verdicts matters only when there are dozens
                    ("order", _) => *value = 0.into(),
                    // doubles a wait that is limited to a day
                    ("tries" | "lost" | "held", Value::Number(times)) => {
                        *value = times.as_u64().unwrap_or_default().min(DOUBLINGS).into();
                    }
                    _ => count_from_now(value, boot, runs),
                }
            }
        }
        _ => {}
    }
}

/// One entry of `bad-configs.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// UID of the object.
    pub(crate) uid: String,
    pub(crate) config: Config,
    /// The agent never tries it again by itself.
    pub(crate) is_final: bool,
}

/// The records on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Records {
    /// `None` if the assignment is unknown.
    pub(crate) assigned: Option<Config>,
    /// UID of the Node that assigned it.
    pub(crate) assigned_by: String,
    pub(crate) is_source_invalid: bool,
    pub(crate) last_known_good: Config,
    pub(crate) before: Config,
    /// `None` if the list cannot be read.
    pub(crate) bad: Option<Vec<Verdict>>,
    /// Verdicts on this one were lost.
    pub(crate) doubted: Option<Config>,
    /// Configs with a checkpoint on disk.
    pub(crate) checkpoints: BTreeSet<Config>,
}

impl Records {
    pub(crate) fn of(state: &State, cast: &Cast) -> Self {
        let json =
            |path: &str| -> Option<Value> { serde_json::from_slice(&state.node.disk.content(path)?).ok() };
        let (current, good) =
            (json("current").unwrap_or_default(), json("last-known-good").unwrap_or_default());
        let named = |record: &Value| match record["local"] == true {
            true => Some(LOCAL),
            false => cast.with_payload(record["sha256"].as_str().unwrap_or_default()),
        };
        let path = StateFile::BadConfigs.path(&state.node.version);
        let (bad, doubted) = match state.node.disk.content(&path) {
            None => (Some(Vec::new()), None),
            Some(_) => match json(&path) {
                None => (None, None),
                Some(list) => verdicts(&list, cast),
            },
        };
        let paths = state.node.disk.paths();
        let is_there = |config: &Config| {
            let digest = cast.digest(*config);
            paths.iter().any(|path| path.starts_with("checkpoints/") && path.ends_with(&digest))
        };
        let checkpoints = ['A', 'B', 'G', 'H'].into_iter().filter(is_there).collect();
        Self {
            assigned: named(&current),
            assigned_by: current["nodeUID"].as_str().unwrap_or_default().to_owned(),
            is_source_invalid: !current["invalidSource"].is_null(),
            last_known_good: named(&good).unwrap_or(LOCAL),
            before: named(&good["previous"]).unwrap_or(LOCAL),
            bad,
            doubted,
            checkpoints,
        }
    }

    /// The configs that a start tries, in order.
    pub(crate) fn chain(&self) -> Vec<Config> {
        let assigned = match self.assigned {
            None if self.last_known_good == LOCAL => Some(LOCAL),
            assigned => assigned,
        };
        if assigned == Some(LOCAL) {
            return vec![LOCAL];
        }
        let first = assigned.filter(|_| !self.is_source_invalid);
        let mut chain = Vec::new();
        for config in first.into_iter().chain([self.last_known_good, self.before, LOCAL]) {
            if !chain.contains(&config) {
                chain.push(config);
            }
        }
        chain
    }

    pub(crate) fn is_proven(&self, config: Config) -> bool {
        [LOCAL, self.last_known_good, self.before].contains(&config)
    }

    /// Final verdicts in the list.
    pub(crate) fn finals(&self) -> BTreeSet<(String, Config)> {
        let finals = self.bad.iter().flatten().filter(|verdict| verdict.is_final);
        finals.map(|verdict| (verdict.uid.clone(), verdict.config)).collect()
    }

    /// Configs banned until somebody lifts it: a final verdict on a config that is proven only delays it,
    /// whatever the list contains.
    pub(crate) fn banned(&self) -> BTreeSet<Config> {
        let finals = self.finals().into_iter().map(|(_, config)| config);
        finals.filter(|config| !self.is_proven(*config)).collect()
    }
}

fn verdicts(list: &Value, cast: &Cast) -> (Option<Vec<Verdict>>, Option<Config>) {
    let mut found = Vec::new();
    let mut doubted = list["unknown"].as_str().and_then(|payload| cast.with_payload(payload));
    let entries = list.as_object().into_iter().flatten();
    let contents = entries.filter_map(|(uid, entry)| Some((uid, entry["contents"].as_object()?)));
    for (uid, (id, verdict)) in contents.flat_map(|(uid, all)| all.iter().map(move |one| (uid, one))) {
        let payload = verdict["payload"].as_str().unwrap_or_default();
        let Some(config) = cast.with_payload(payload).or_else(|| cast.with_id(id)) else { continue };
        let tries = verdict["tries"].as_u64().or_else(|| verdict["lost"].as_u64());
        let is_final = match verdict["kind"].as_str() {
            Some("crashLoop") => true,
            Some("cuts") => tries != Some(1),
            Some("unknown") => {
                doubted = Some(config);
                false
            }
            _ => false,
        };
        found.push(Verdict { uid: uid.clone(), config, is_final: is_final && verdict["retry"] != true });
    }
    (Some(found), doubted)
}
