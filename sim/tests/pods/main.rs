//! Pods together with configurations: the agent of one node gets configurations, is rolled back, upgraded and
//! killed while its containers run, fail and take the board down.
//!
//! Owns the promises about both together. Always holds: the same seed gives the same run; every invariant
//! notices a broken promise (`mutants`). Leaves to others: a pod's life under many more situations
//! (`agent/core/tests/pods_walk.rs`), a configuration's (`simulation`).
//!
//! `KEDGE_SIM_SEED=s` runs one seed, `KEDGE_SIM_SEEDS=n` a fortieth of n seeds, at most `KEDGE_SIM_SECONDS`
//! long: a run costs as much as forty of the simulation of configurations.

mod mutants;

use kedge_core::pods::{Exit, PodAsk};
use kedge_core::{Answer, Event, Request, RequestKey};
use kedge_platform::fake::{Loss, Random};
use kedge_sim::containers::{Containers, Lie};
use kedge_sim::hub::Hub;
use kedge_sim::situations::A;
use kedge_sim::{NODE, World, payload};
use mutants::Mutant;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

type Check = Result<(), String>;

/// Usual number of runs.
const SEEDS: u64 = 25;
/// Runs in which each mutant must be noticed.
const MUTANT_SEEDS: u64 = 60;
/// Fewest and most acts of a run before faults stop.
const ACTS: (u64, u64) = (20, 60);
const NAMES: [&str; 3] = ["a", "b", "c"];
const IMAGES: [&str; 2] = ["app:1", "app:2"];
/// Image of a container that takes the board down.
const DANGEROUS: &str = "dangerous:1";
/// Short, so that a run has many trials: the rules do not depend on a trial's length.
const TRIAL: &str = "configTrialDuration: 60s";
/// After this time a trial is over, and a renewal was accepted since.
const PROVEN: Duration = Duration::from_secs(80);
/// Time between the end of a killed agent and the supervisor's next start.
const RESTART_DELAY: Duration = Duration::from_secs(2);
/// Longer than any back-off of a pod.
const REST: Duration = Duration::from_secs(900);
/// Most such rests until all must be well.
const RESTS: u32 = 8;
/// How long a dangerous workload is left running.
const DANGER: Duration = Duration::from_secs(3600);
/// Most steps before the node must have stopped acting, if no time passes.
const TURNS: u32 = 10_000;

struct Run {
    world: World,
    random: Random,
    mutant: Option<Mutant>,
    /// The server carries out some requests, but their answers are lost.
    loses_answers: bool,
    /// Requests with a lost answer, until the agent knows of the loss, each with the number of the start that
    /// sent it.
    unanswered: Vec<(u64, RequestKey)>,
    /// Requests of a killed agent: they arrive just before the next agent's first status.
    late: Vec<Request>,
    lost: u64,
    /// UID of each pod that was not deleted yet.
    pods: BTreeMap<&'static str, String>,
    /// The server's version of each pod after the last judged change, by UID.
    told: BTreeMap<String, Value>,
    changes: u64,
    pushed: u32,
    /// How long the dangerous container runs before it strikes, and since when it has been running.
    strikes_after: Duration,
    dangerous_since: Option<Duration>,
    strikes: u32,
    trace: Vec<String>,
}

impl Run {
    /// A node that runs a proven configuration.
    fn new(seed: u64, mutant: Option<Mutant>) -> Self {
        let mut random = Random::new(seed);
        let mut world = World::new();
        let mut containers = Containers::new(random.number());
        containers.lie = match mutant {
            Some(Mutant::Lie(lie)) => Some(lie),
            _ => None,
        };
        world.containers = Some(containers);
        world.checked = mutant.is_none();
        world.seed = random.number();
        let strikes_after = Duration::from_secs(1 + random.below(240));
        Self {
            world,
            random,
            mutant,
            loses_answers: false,
            unanswered: Vec::new(),
            late: Vec::new(),
            lost: 0,
            pods: BTreeMap::new(),
            told: BTreeMap::new(),
            changes: 0,
            pushed: 0,
            strikes_after,
            dangerous_since: None,
            strikes: 0,
            trace: Vec::new(),
        }
    }

    fn containers(&mut self) -> &mut Containers {
        self.world.containers.as_mut().expect("it was given some")
    }

    fn say(&mut self, what: &str) {
        let time = self.world.time.as_secs();
        self.trace.push(format!("{time:>7} s  {what}"));
    }

    fn run(&mut self) -> Check {
        self.world.start();
        self.world.adopt("a", &payload(A, TRIAL));
        self.pass(PROVEN)?;
        assert_eq!((self.world.state(), self.world.used()), ("known-good", A));
        match self.random.one_in(4) || self.mutant == Some(Mutant::ProofIsLost) {
            true => self.endure()?,
            false => {
                self.create();
                self.containers().fails = true;
                let acts = ACTS.0 + self.random.below(ACTS.1 - ACTS.0);
                for _ in 0..acts {
                    self.act()?;
                    let some = self.random.below(12);
                    self.turns(Some(some))?;
                }
            }
        }
        self.come_to_rest()?;
        self.boot_alone()
    }

    // ------------------------------------------------------------------------------------------ time

    /// Performs the node's orders, one at a time, some of them or all.
    fn turns(&mut self, some: Option<u64>) -> Check {
        let mut left = some.unwrap_or(TURNS.into());
        while left > 0 {
            left -= 1;
            if self.world.exited() {
                self.invariant_a_workload_condemns_no_proven_config()?;
                self.world.supervise();
            }
            if !self.turn() {
                break;
            }
            self.judge_changes()?;
            self.containers().check()?;
        }
        let is_at_rest = left > 0 || some.is_some();
        match is_at_rest {
            true => self.containers().check(),
            false => Err(format!("no rest within {TURNS} steps")),
        }
    }

    /// Performs one order, unless the server loses it. Returns whether there was one.
    fn turn(&mut self) -> bool {
        let first = self.world.process.as_ref().and_then(|process| process.requests.first());
        let is_lost = first.is_some_and(|request| match (request, self.mutant) {
            (Request::Pods { ask, .. }, Some(Mutant::DeletionIsLost)) => matches!(**ask, PodAsk::Delete(_)),
            (Request::Pods { ask, .. }, Some(Mutant::StatusIsLost)) => {
                matches!(**ask, PodAsk::PatchStatus { .. })
            }
            _ => false,
        });
        if is_lost {
            return self.world.do_request(Some(Answer::Accepted(None)));
        }
        if self.sends_a_status() {
            self.let_the_late_arrive();
            if self.loses_answers && self.random.one_in(8) {
                self.kill_the_agent();
                return true;
            }
        }
        if self.mutant == Some(Mutant::VersionIsIgnored) {
            self.mean_any_version();
        }
        if self.lose_an_answer() {
            return true;
        }
        let World { nodes, hub, .. } = &mut self.world;
        nodes[0].turn(hub) || self.know_a_loss()
    }

    /// The server carries out the oldest request, and its answer is lost: the agent hears of the loss later.
    fn lose_an_answer(&mut self) -> bool {
        if !self.unanswered.is_empty() && self.random.one_in(4) {
            return self.know_a_loss();
        }
        if !self.loses_answers || !self.world.link || self.world.exited() || !self.random.one_in(3) {
            return false;
        }
        let World { nodes, hub, .. } = &mut self.world;
        let Some(key) = nodes[0].do_request_unheard(hub) else { return false };
        self.lost += 1;
        self.unanswered.push((self.world.starts, key));
        true
    }

    /// Whether the next request is a pod's status.
    fn sends_a_status(&self) -> bool {
        let first = self.world.process.as_ref().and_then(|process| process.requests.first());
        first.is_some_and(|request| match request {
            Request::Pods { ask, .. } => matches!(**ask, PodAsk::PatchStatus { .. }),
            _ => false,
        })
    }

    fn let_the_late_arrive(&mut self) {
        for request in std::mem::take(&mut self.late) {
            if self.world.link {
                self.world.hub.answer(NODE, &request);
            }
        }
    }

    /// The agent notices that a connection is broken.
    fn know_a_loss(&mut self) -> bool {
        let Some((start, key)) = self.unanswered.pop() else { return false };
        if start == self.world.starts && !self.world.exited() {
            self.world.handle(Event::Answered(key, Answer::Failed("the connection broke off".into())));
        }
        true
    }

    fn mean_any_version(&mut self) {
        for request in self.world.process.iter_mut().flat_map(|process| &mut process.requests) {
            if let Request::Pods { ask, .. } = request
                && let PodAsk::PatchStatus { body, .. } = &mut **ask
                && let Some(metadata) = body["metadata"].as_object_mut()
            {
                metadata.remove("resourceVersion");
            }
        }
    }

    /// Compares the server's version of each pod with the one before the last change.
    fn judge_changes(&mut self) -> Check {
        let changes = self.world.hub.changes();
        if std::mem::replace(&mut self.changes, changes) == changes {
            return Ok(());
        }
        let mut told = BTreeMap::new();
        for pod in self.world.hub.pods_of(NODE).0 {
            let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            if let Some(before) = self.told.get(&uid) {
                invariant_status_never_goes_back(&uid, before, &pod)?;
                invariant_no_time_of_a_status_moves(&uid, before, &pod)?;
            }
            told.insert(uid, pod);
        }
        self.told = told;
        if self.mutant == Some(Mutant::RestartsAreMore) && self.random.one_in(20) {
            let names: Vec<&str> = self.pods.keys().copied().collect();
            names.into_iter().for_each(|name| self.world.hub.count_restarts_up(name));
            self.told.clear();
        }
        Ok(())
    }

    fn pass(&mut self, time: Duration) -> Check {
        let end = self.world.time + time;
        loop {
            self.turns(None)?;
            self.strike();
            if self.world.exited() {
                continue;
            }
            if self.world.time >= end {
                return Ok(());
            }
            let due = self.world.deadline().and_then(|at| at.checked_sub(self.world.mono()));
            let left = end - self.world.time;
            let strike = self
                .dangerous_since
                .map(|since| (since + self.strikes_after).saturating_sub(self.world.time));
            // at a deadline the agent gets a tick, and time continues
            let mono = self.world.mono();
            let kill = self.containers().next_kill().map(|at| at.saturating_sub(mono));
            let waits = [due, strike, kill, Some(left)].into_iter().flatten().filter(|wait| !wait.is_zero());
            self.world.advance(waits.min().unwrap_or(left));
            // nothing reads it later, and hours make it long
            self.world.seen.clear();
            self.world.handle(Event::Tick);
        }
    }

    // ------------------------------------------------------------------------------------------ acts

    fn act(&mut self) -> Check {
        match self.random.below(20) {
            0..=4 => self.create(),
            5 => self.delete(),
            6 | 7 => self.push(),
            8 | 9 => self.kill_the_agent(),
            10 => self.upgrade()?,
            11 => self.cut_power(),
            12 | 13 => self.end_a_container(),
            14 => {
                self.world.link = !self.world.link;
                self.say("the link comes or goes");
            }
            15 => return self.prune(),
            17 => {
                self.loses_answers = !self.loses_answers;
                self.world.watch_is_late = self.loses_answers && self.random.percent(50);
                self.say("answers are lost, or not");
            }
            16 => {
                let is_stuck = self.random.percent(50);
                self.containers().is_stuck = is_stuck;
                self.say("mounts stick, or do not");
            }
            _ => {
                let time = Duration::from_secs(1 + self.random.below(300));
                self.pass(time)?;
            }
        }
        Ok(())
    }

    fn create(&mut self) {
        let (name, image) = (*self.random.pick(&NAMES), *self.random.pick(&IMAGES));
        let is_there = self.world.hub.pods_of(NODE).0.iter().any(|pod| pod["metadata"]["name"] == name);
        if !is_there {
            self.create_of(name, image);
        }
    }

    fn create_of(&mut self, name: &'static str, image: &str) {
        let uid = self.world.hub.create_pod(NODE, name, image);
        self.say(&format!("pod {name} ({uid}) of {image}"));
        self.pods.insert(name, uid);
    }

    fn delete(&mut self) {
        let names: Vec<&str> = self.pods.keys().copied().collect();
        if names.is_empty() {
            return;
        }
        let name = *self.random.pick(&names);
        self.delete_of(name);
    }

    fn delete_of(&mut self, name: &str) {
        let Some(uid) = self.pods.remove(name) else { return };
        self.containers().asked_to_end.insert(uid);
        self.world.hub.delete_pod(name);
        self.say(&format!("delete pod {name}"));
    }

    /// Pushes a working configuration, an invalid one, or the first one again.
    fn push(&mut self) {
        self.pushed += 1;
        let text = match self.random.below(3) {
            0 => "maxPods: [".to_owned(),
            _ => payload(300 + self.pushed, TRIAL),
        };
        match self.random.one_in(4) {
            true => self.world.hub.assign(Hub::following("a")),
            false => drop(self.world.assign_following("b", &text)),
        }
        self.say("push a configuration");
    }

    fn kill_the_agent(&mut self) {
        if self.world.process.is_some() && !self.world.exited() {
            self.say("the agent is killed");
            let process = self.world.process.as_mut().expect("it has not exited");
            // requests that it has sent arrive all the same
            self.late = std::mem::take(&mut process.requests);
            if self.random.percent(50) {
                self.let_the_late_arrive();
            }
            self.world.crash();
            self.world.advance(RESTART_DELAY);
        }
    }

    /// The agent is stopped, and another version starts.
    fn upgrade(&mut self) -> Check {
        if self.world.exited() {
            return Ok(());
        }
        self.world.process.as_mut().expect("it has not exited").stop_asked = true;
        self.world.handle(Event::Stop("asked to stop".into()));
        while !self.world.exited() && self.turn() {}
        if !self.world.exited() {
            return Err("no rest: an agent that is asked to stop does not".into());
        }
        if self.world.process.is_none() {
            // the agent was killed first
            return Ok(());
        }
        self.world.exit();
        self.world.version = if self.world.version == "0.1.0" { "0.2.0" } else { "0.1.0" }.into();
        self.say("upgrade");
        Ok(())
    }

    fn cut_power(&mut self) {
        self.say("the power is cut");
        self.dangerous_since = None;
        let lie = matches!(self.mutant, Some(Mutant::Lie(Lie::EndIsUnseen)));
        // a boot starts every container again, including one whose end nobody saw
        if !lie {
            self.world.power_cut_with(Loss::Everything);
        }
    }

    fn end_a_container(&mut self) {
        let oom_killed = self.random.one_in(3);
        let (code, signal) = match self.random.below(3) {
            _ if oom_killed => (137, Some(9)),
            0 => (0, None),
            _ => (1, None),
        };
        let exit = Exit { code, signal, oom_killed, started: None, finished: None, message: String::new() };
        let seen = self.containers().end_one(&exit);
        self.say("a container ends");
        // an agent that is not running will read it at its start
        if let Some(seen) = seen.filter(|_| !self.world.exited()) {
            self.world.handle(Event::Pods(Box::new(seen)));
        }
    }

    fn prune(&mut self) -> Check {
        let running = self.containers().running_images();
        let gone = self.containers().prune();
        self.say(&format!("prune: {gone:?}"));
        match gone.iter().find(|name| running.contains(*name)) {
            Some(name) => Err(format!("invariant_collection_takes_nothing_in_use: {name} is gone, and runs")),
            None => Ok(()),
        }
    }

    // ------------------------------------------------------------------------------------------ a dangerous
    // workload

    /// A proven configuration and a container that takes the board or the agent down, again and again.
    fn endure(&mut self) -> Check {
        self.create_of("a", DANGEROUS);
        self.create_of("b", IMAGES[0]);
        self.pass(DANGER)?;
        assert!(self.strikes > 2, "it struck {} times", self.strikes);
        self.delete_of("a");
        Ok(())
    }

    /// The container has run for long enough: the board is reset, its kernel panics, or the agent runs out of
    /// memory.
    fn strike(&mut self) {
        let is_running = self.containers().running_images().contains(DANGEROUS);
        let since = self.dangerous_since.get_or_insert(self.world.time);
        let is_due = self.world.time >= *since + self.strikes_after;
        // a container that was stopped meanwhile begins its time again
        if !is_running {
            self.dangerous_since = None;
            return;
        }
        if !is_due || self.world.exited() {
            return;
        }
        self.dangerous_since = None;
        self.strikes += 1;
        let kind = self.random.below(4);
        self.say(&format!("the workload strikes: {kind}"));
        match kind {
            0 => {
                let ending = self.world.ending("oom-kill");
                self.world.end(kedge_core::Exit {
                    exit_code: "killed".into(),
                    exit_status: "KILL".into(),
                    ..ending
                });
                let exit = Exit {
                    code: 137,
                    signal: Some(9),
                    oom_killed: true,
                    started: None,
                    finished: None,
                    message: String::new(),
                };
                self.containers().end_one(&exit);
            }
            // only kinds 1 and 2 leave evidence: to the agent the third is a plain power cut
            kind => {
                self.world.power_cut();
                match kind {
                    1 => self.world.board.hardware_reset(),
                    2 => self.world.board.kernel_panic(),
                    _ => {}
                }
            }
        }
        if self.mutant == Some(Mutant::ProofIsLost) {
            self.world.disk.remove("last-known-good");
        }
    }

    /// Architecture, "Proven configs": the effect of a workload on the board or the agent never leads to a
    /// verdict on the config.
    fn invariant_a_workload_condemns_no_proven_config(&self) -> Check {
        if self.pushed > 0 {
            // other configs were proven since, and it may be on trial again
            return Ok(());
        }
        let bad = self.world.bad_configs();
        let verdict = &bad[self.world.hub.uid_of("a")];
        match verdict.is_null() {
            true => Ok(()),
            false => Err(format!("invariant_a_workload_condemns_no_proven_config: {verdict}")),
        }
    }

    // ------------------------------------------------------------------------------------------ at rest

    fn come_to_rest(&mut self) -> Check {
        self.say("== everything works from here on");
        self.world.link = true;
        (self.loses_answers, self.world.watch_is_late) = (false, false);
        self.containers().fails = false;
        self.containers().is_stuck = false;
        let mut at_last = Ok(());
        for _ in 0..RESTS {
            self.pass(REST)?;
            at_last = self.judge();
            if at_last.is_ok() {
                break;
            }
        }
        at_last
    }

    fn judge(&mut self) -> Check {
        let (pods, _) = self.world.hub.pods_of(NODE);
        let mut bound = BTreeSet::new();
        for pod in &pods {
            let (name, uid) = (&pod["metadata"]["name"], pod["metadata"]["uid"].as_str().unwrap_or_default());
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                return Err(format!(
                    "invariant_a_deleted_pod_ends_and_is_gone: {name} ({uid}) is still there"
                ));
            }
            bound.insert(uid.to_owned());
            self.judge_status(pod)?;
        }
        let (there, recorded) = self.containers().left();
        if let Some(uid) = there.difference(&bound).next() {
            return Err(format!("invariant_a_deleted_pod_ends_and_is_gone: something of {uid} is left"));
        }
        if let Some(uid) = recorded.difference(&bound).next() {
            return Err(format!("invariant_nothing_grows: the record of {uid} is left"));
        }
        match self.containers().most_runs() {
            0..=2 => Ok(()),
            runs => Err(format!("invariant_nothing_grows: {runs} runs of one container")),
        }
    }

    fn judge_status(&mut self, pod: &Value) -> Check {
        let (name, status) = (pod["metadata"]["name"].clone(), &pod["status"]);
        if status["phase"] != "Running" {
            return Err(format!(
                "invariant_what_is_asked_for_runs_and_is_reported: {name} is {}",
                status["phase"]
            ));
        }
        for told in status["containerStatuses"].as_array().into_iter().flatten() {
            let id = told["containerID"].as_str().unwrap_or_default().trim_start_matches("kedge://");
            if told["state"]["running"].is_null() {
                return Err(format!(
                    "invariant_what_is_asked_for_runs_and_is_reported: {name}: {}",
                    told["state"]
                ));
            }
            if !self.containers().is_live(id) {
                return Err(format!("invariant_what_is_reported_as_running_runs: {id} of {name} does not"));
            }
        }
        Ok(())
    }

    /// A boot without a server: the last desired pods run.
    fn boot_alone(&mut self) -> Check {
        self.say("== a boot alone");
        self.world.link = false;
        self.world.power_cut();
        self.dangerous_since = None;
        let mut silent = None;
        for _ in 0..RESTS {
            self.pass(REST)?;
            let pods = self.pods.clone();
            silent = pods.into_iter().find(|(_, uid)| !self.containers().runs(uid));
            if silent.is_none() {
                break;
            }
        }
        match silent {
            None => Ok(()),
            Some((name, uid)) => {
                Err(format!("invariant_what_was_asked_last_goes_on: {name} ({uid}) does not run"))
            }
        }
    }
}

/// A status never goes back: number of restarts, a final phase, the observed generation.
fn invariant_status_never_goes_back(uid: &str, before: &Value, after: &Value) -> Check {
    let (old, new) = (&before["status"], &after["status"]);
    let is_over = matches!(old["phase"].as_str(), Some("Failed" | "Succeeded"));
    let generation = |status: &Value| status["observedGeneration"].as_i64().unwrap_or(0);
    let is_back = is_over && new["phase"] != old["phase"]
        || generation(new) < generation(old)
        || generation(new) > after["metadata"]["generation"].as_i64().unwrap_or(0);
    let restarts = |status: &Value, name: &Value| {
        let mut all = status["containerStatuses"].as_array().into_iter().flatten();
        all.find(|told| told["name"] == *name).and_then(|told| told["restartCount"].as_u64())
    };
    let mut told = old["containerStatuses"].as_array().into_iter().flatten();
    let is_less = told.any(|told| restarts(new, &told["name"]) < restarts(old, &told["name"]));
    match is_back || is_less {
        true => Err(format!("invariant_status_never_goes_back: {uid}: {old}, then {new}")),
        false => Ok(()),
    }
}

/// A pod's start time never changes once reported, and a condition's transition time changes only with its
/// status, to a later time: no clock of this world goes back.
fn invariant_no_time_of_a_status_moves(uid: &str, before: &Value, after: &Value) -> Check {
    let (old, new) = (&before["status"], &after["status"]);
    let has_start_moved = old["startTime"].is_string() && new["startTime"] != old["startTime"];
    let now = |kind: &Value| {
        new["conditions"].as_array().into_iter().flatten().find(|condition| condition["type"] == *kind)
    };
    // all times have one form
    let time = |condition: &Value| condition["lastTransitionTime"].as_str().unwrap_or_default().to_owned();
    let has_moved = |condition: &&Value| {
        now(&condition["type"]).is_some_and(|now| match now["status"] == condition["status"] {
            true => time(now) != time(condition),
            false => time(now) < time(condition),
        })
    };
    let moved = old["conditions"].as_array().into_iter().flatten().find(has_moved);
    match (has_start_moved, moved) {
        (false, None) => Ok(()),
        _ => Err(format!("invariant_no_time_of_a_status_moves: {uid}: {old}, then {new}")),
    }
}

/// The result of one run: the reason of its failure, and its trace.
fn simulate(seed: u64, mutant: Option<Mutant>) -> (Option<String>, Run) {
    let mut run = Run::new(seed, mutant);
    let outcome = catch_unwind(AssertUnwindSafe(|| run.run()));
    let failure = match outcome {
        Ok(done) => done.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Some(format!("panic: {}", text.unwrap_or_default()))
        }
    };
    (failure, run)
}

#[allow(clippy::disallowed_methods, reason = "a failed run is repeated by its seed")]
fn number_from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[allow(clippy::disallowed_methods, reason = "a person who waits reads a clock; what is simulated does not")]
fn begun() -> std::time::Instant {
    std::time::Instant::now()
}

#[test]
fn pods_and_configurations_keep_every_invariant() {
    let only = number_from_environment("KEDGE_SIM_SEED");
    let seeds = number_from_environment("KEDGE_SIM_SEEDS").map_or(SEEDS, |seeds| (seeds / 40).max(1));
    let limit = number_from_environment("KEDGE_SIM_SECONDS").map(Duration::from_secs);
    let (begun, mut started, mut adopted, mut strikes) = (begun(), 0, 0, 0);
    let (mut killed, mut cut, mut resumed, mut lost) = (0, 0, 0, 0);
    for seed in only.map_or(0..seeds, |seed| seed..seed + 1) {
        if limit.is_some_and(|limit| begun.elapsed() > limit) {
            break;
        }
        let (failure, mut run) = simulate(seed, None);
        if let Some(failure) = failure {
            let log = run.world.log.iter().rev().take(30).rev().cloned().collect::<Vec<_>>().join("\n");
            let trace = run.trace.join("\n");
            panic!(
                "seed {seed}: {failure}\n{trace}\nlast lines of its log:\n{log}\nagain: KEDGE_SIM_SEED={seed} \
                 cargo test -p kedge-sim --test pods"
            );
        }
        (strikes, lost) = (strikes + run.strikes, lost + run.lost);
        let containers = run.containers();
        (started, adopted) = (started + containers.started, adopted + containers.adopted);
        (killed, cut, resumed) =
            (killed + containers.killed, cut + containers.cut, resumed + containers.resumed);
    }
    println!(
        "{started} runs of containers, {adopted} adopted by a next agent, {killed} killed after their grace; {strikes} strikes of a workload; \
         {cut} pulls cut, {resumed} resumed; {lost} answers lost"
    );
    let is_met = killed > 0 && cut > 0 && resumed > 0 && lost > 0;
    // fewer runs may miss some of it by chance, without anything being wrong
    let is_enough = only.is_none() && limit.is_none() && seeds >= SEEDS;
    assert!(!is_enough || is_met, "no container was killed, no pull was cut and resumed, or no answer lost");
    assert!(!is_enough || started > 0 && adopted > 0, "nothing ran that an agent could adopt");
}

#[test]
fn every_broken_promise_is_noticed() {
    let mut unnoticed = Vec::new();
    for (mutant, invariant) in Mutant::ALL {
        let mut others = BTreeSet::new();
        let noticed = (0..MUTANT_SEEDS).find(|seed| {
            let failure = simulate(*seed, Some(mutant)).0.unwrap_or_default();
            let is_it = failure.starts_with(invariant);
            others.insert(failure.chars().take(100).collect::<String>());
            is_it
        });
        match noticed {
            Some(seed) => println!("{mutant:?}: seed {seed}"),
            None => unnoticed.push(format!("{mutant:?}, by {invariant}; noticed: {others:?}")),
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}

#[test]
fn every_invariant_has_a_broken_promise() {
    let sources = [include_str!("main.rs"), include_str!("../../src/containers.rs")];
    let texts = sources.iter().flat_map(|source| source.split("\"invariant_").skip(1));
    let names =
        texts.filter_map(|text| Some(format!("invariant_{}", text.split([' ', ':', '"', '\\']).next()?)));
    let all: BTreeSet<String> = names.filter(|name| !name.ends_with('_') && !name.contains('{')).collect();
    let guarded: BTreeSet<String> =
        Mutant::ALL.iter().map(|(_, invariant)| (*invariant).to_owned()).collect();
    assert_eq!(all, guarded);
}
