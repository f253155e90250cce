//! One run of the simulation: a node, a hub and an operator, moved by chance one small act at a time.
//!
//! Always holds: the same seed and mode give the same run; after every act everything that was asked for and done is
//! shown to the model (the expected state), and the invariants are checked. Leaves to others: what must hold (`invariants`), what it is compared
//! with (`model`).

use crate::configs::{DROP_IN, Design, Nature, SLOWLY, designs, with_pods};
use crate::coverage::Coverage;
use crate::model::{Config, Model, text};
use crate::mutants::Mutant;
use kedge_core::config::records::{Read, STARTUPS, StateFile};
use kedge_core::kubelet::canonical_overrides;
use kedge_core::{Action, Answer, ConfigId, Event, Exit, Outcome, Report, Request, Step};
use kedge_platform::fake::{Loss, Operation, Random};
use kedge_sim::disk::{WITHIN_A_WRITE, WriteFault, name};
use kedge_sim::hub::{Flavour, Hub, NAMESPACE, refused};
use kedge_sim::{NODE, Seen, WALL_MICROS, World, map_event, node_event};
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(crate) type Check = Result<(), String>;

/// What may happen in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Everything.
    All,
    /// Good configs, and power cuts, no more of them than condemn.
    CutsOnly,
    /// Good configs, and one outage of any length.
    OneOutage,
}

/// Cuts in a row that a config survives (rule d).
const CUTS: u32 = 28;
/// More starts than the rules need to condemn all there is: crash loops and silent reboots of two configs.
const MANY_STARTS: u64 = 200;
/// Transitions that few runs come to.
const RARE: [&str; 6] = [
    "clean-exit",
    "contact-under-fallback",
    "contact-under-retry",
    "forgive",
    "record-verdict",
    "trial-over-without-contact",
];
/// Fewest events before a run comes to rest.
const FEWEST_EVENTS: u64 = 200;
const MAPS: [&str; 3] = ["x", "y", "z"];
/// A ConfigMap that only another node's Node names.
const ANOTHERS_MAP: &str = "another";
const VERSIONS: [&str; 2] = ["0.1.0", "0.2.0"];
/// A stretch without a start and without a write after which nothing more is expected: what a node waits for by itself, a save
/// of progress or another try of a write or of a request, comes within five minutes.
const CALM: Duration = Duration::from_secs(2400);
const TWENTY_YEARS_MICROS: i64 = 20 * 365 * 24 * 3600 * 1_000_000;

/// What the network and the API server are like while the link is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    Fine,
    /// Requests arrive, and their answers do not.
    HalfDead,
    /// Watches are open, and say nothing.
    Silent,
    /// The server has no time for anybody.
    Busy,
}

pub(crate) struct Simulation {
    pub(crate) world: World,
    pub(crate) random: Random,
    pub(crate) designs: Vec<Design>,
    pub(crate) mode: Mode,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) drop_in: usize,
    pub(crate) model: Model,
    pub(crate) coverage: Coverage,
    /// The trace so far, if somebody asked for one.
    pub(crate) trace: Option<Vec<String>>,
    overrides: Vec<u8>,
    /// When the config in use ends its run.
    late: Option<Duration>,
    local_invalid: bool,
    /// A verdict was written in the start under way.
    verdict_now: bool,
    old_nodes: Vec<Value>,
    old_maps: Vec<(String, Value)>,
    /// Requests of an agent that is dead, still on their way.
    orphans: Vec<Request>,
    cuts_left: u32,
    outages_left: u32,
    network: Network,
    /// The board keeps time while it has no power.
    has_clock: bool,
    /// The hub as somebody saved it.
    backup: Option<Hub>,
    /// Files that chance damaged: that others can be read is owed to how they were written.
    pub(crate) damaged: BTreeSet<String>,
    /// What an agent had read, or was told to be written, and a cut took back.
    pub(crate) taken_back: Vec<String>,
    /// What is assigned, as it was last read or written.
    assigned: Option<Vec<u8>>,
    /// What the mutant puts in the place of the counts.
    returning: Option<Vec<u8>>,
    /// The transition that was under way when somebody last looked.
    under_way: Option<&'static str>,
    /// When the hub last took a renewal.
    pub(crate) renewed_at: Duration,
    /// Events handed to the agent.
    pub(crate) events: u64,
    /// No more faults.
    pub(crate) settling: bool,
}

impl Simulation {
    pub(crate) fn new(seed: u64, mutant: Option<Mutant>, traced: bool) -> Self {
        let mut random = Random::new(seed);
        let mode = match random.below(10) {
            0 => Mode::CutsOnly,
            1 => Mode::OneOutage,
            _ => Mode::All,
        };
        let mode = if mutant == Some(Mutant::ManyOutages) { Mode::OneOutage } else { mode };
        let flavour = if random.percent(25) { Flavour::Kubernetes } else { Flavour::Kedge };
        let mut world = World::with(flavour);
        world.seed = random.number();
        // a broken promise must be noticed by the invariant that guards it
        world.checked = mutant.is_none();
        world.base(SLOWLY);
        match mutant {
            Some(Mutant::TrialTooShort) => world.hurry_percent = 150,
            Some(Mutant::ClockCrawls) => world.hurry_percent = 1,
            _ => {}
        }
        let designs = designs(&mut random, mode != Mode::All);
        let mut simulation = Self {
            world,
            random,
            designs,
            mode,
            mutant,
            drop_in: 0,
            model: Model::default(),
            coverage: Coverage::default(),
            trace: traced.then(Vec::new),
            overrides: Vec::new(),
            late: None,
            local_invalid: false,
            verdict_now: false,
            old_nodes: Vec::new(),
            old_maps: Vec::new(),
            orphans: Vec::new(),
            cuts_left: if mode == Mode::OneOutage { 1 } else { CUTS },
            outages_left: if mutant == Some(Mutant::ManyOutages) { 9 } else { 1 },
            network: Network::Fine,
            has_clock: true,
            backup: None,
            damaged: BTreeSet::new(),
            taken_back: Vec::new(),
            assigned: None,
            returning: None,
            under_way: None,
            renewed_at: Duration::ZERO,
            events: 0,
            settling: false,
        };
        simulation.has_clock = simulation.random.percent(60);
        simulation.world.disk.syncs_files = mutant != Some(Mutant::ContentsNotSynced);
        simulation.world.disk.syncs_directories = mutant != Some(Mutant::NamesNotSynced);
        simulation.world.disk.settles_directories = mutant != Some(Mutant::NamesNotSettled);
        simulation.world.version = (*simulation.random.pick(&VERSIONS)).into();
        if simulation.random.percent(20) {
            simulation.world.hub.delete_node();
        }
        simulation.edit_drop_in();
        let about: Vec<String> = simulation
            .designs
            .iter()
            .map(|design| {
                format!(
                    "{}: trial {} s, threshold {}, {:?} / with drop-in {:?}",
                    design.max_pods,
                    design.trial_ms / 1000,
                    design.threshold,
                    design.nature(0),
                    design.nature(1)
                )
            })
            .collect();
        simulation.trace(|| format!("{mode:?}, {flavour:?}; designs by maxPods: {}", about.join("; ")));
        simulation
    }

    pub(crate) fn trace(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>8.0} s  {}", self.world.time.as_secs_f64(), line()));
        }
    }

    /// Runs for some acts, and at least `FEWEST_EVENTS` events, then lets everything come to rest.
    pub(crate) fn run(&mut self, acts: u64) -> Check {
        let mut done = 0;
        while done < acts || self.events < FEWEST_EVENTS {
            self.act()?;
            done += 1;
        }
        self.settle()
    }

    // ------------------------------------------------------------------------------------------ one act

    fn act(&mut self) -> Check {
        if self.mode == Mode::All && self.random.percent(2) {
            self.touch_files();
            return self.observe();
        }
        if self.random.percent(6) {
            self.act_as_operator();
            return self.observe();
        }
        if self.world.process.is_none() {
            return self.act_stopped();
        }
        if self.world.exited() {
            match self.random.below(20) {
                0 => self.cut(),
                _ => self.exit(),
            }
            return self.observe();
        }
        match self.random.below(40) {
            0..=19 => self.act_pending(),
            20..=27 => self.pass_to_deadline(),
            28..=31 => {
                let minutes = self.random.below(90);
                self.prompt(Duration::from_secs(60 * minutes), false)
            }
            32 => self.end_by_chance(),
            33 => self.change_link(),
            34..=35 if self.mode == Mode::All => self.disturb(),
            _ => self.act_pending(),
        }
    }

    fn act_stopped(&mut self) -> Check {
        match self.random.below(12) {
            0 => {
                self.change_while_stopped();
                self.observe()
            }
            1 => {
                let seconds = self.random.below(100_000);
                self.pass_time(Duration::from_secs(seconds));
                self.observe()
            }
            2 => {
                self.cut();
                self.observe()
            }
            _ => self.start(),
        }
    }

    pub(crate) fn start(&mut self) -> Check {
        self.verdict_now = false;
        self.overrides = canonical_overrides(&self.world.local).unwrap_or_default();
        self.hit("event", "Start");
        if let (Some(Mutant::RunsNotCounted), Some(exit)) = (self.mutant, &mut self.world.previous.exit) {
            exit.run = 0;
        }
        match self.world.try_launch() {
            Ok(()) => {
                let version = self.world.version.clone();
                let boot = self.world.boot_id();
                self.trace(|| format!("START of {version} in {boot}"));
                self.hit("transition", "start");
                self.under_way = Some("start");
                if self.mutant == Some(Mutant::StepForgotten) && self.random.percent(5) {
                    self.world.process.as_mut().expect("it has just begun").step = None;
                }
                self.observe()
            }
            Err(why) => {
                self.hit("start case", "1 local invalid");
                self.trace(|| format!("START refused: {why}"));
                if self.random.percent(50) {
                    self.mend_local();
                }
                Ok(())
            }
        }
    }

    /// One of the things the agent waits for happens.
    fn act_pending(&mut self) -> Check {
        let process = self.world.process.as_ref().expect("it runs");
        let step = process.step.is_some();
        let others =
            [process.facts_wanted, !process.requests.is_empty(), process.renewal.is_some(), self.link()];
        // a disk is fast and a network slow, most of the time
        if step && (self.random.percent(60) || !others.contains(&true)) {
            return self.do_step();
        }
        match self.random.below(5) {
            0 if others[0] => self.do_facts(),
            1 | 2 if others[1] => self.do_request(),
            3 if others[2] => self.do_renewal(),
            4 if others[3] => self.do_watches(),
            _ if step => self.do_step(),
            _ => self.do_all_pending(),
        }
    }

    fn do_all_pending(&mut self) -> Check {
        self.do_facts()?;
        self.do_request()?;
        self.do_renewal()?;
        self.do_watches()
    }

    // ------------------------------------------------------------------------------------------ steps

    fn do_step(&mut self) -> Check {
        let Some(step) = self.world.process.as_ref().and_then(|process| process.step.clone()) else {
            return Ok(());
        };
        let is_write = matches!(step, Step::Write(..));
        let changes = !matches!(step, Step::Read(_));
        let about = about(&step);
        let faulty = self.mode == Mode::All && !self.settling;
        // what comes seldom is cut often, or nothing would be known of it
        let rare = self.under_way.is_some_and(|transition| RARE.contains(&transition));
        let chance = if rare && self.random.percent(20) {
            *self.random.pick(&[2, 3, 7])
        } else {
            self.random.below(100)
        };
        let chance = self.mutants_chance(&step).unwrap_or(chance);
        match chance {
            0 if faulty => {
                self.trace(|| format!("  about to {about}"));
                self.hit("fault", "crash before a step");
                self.die_by_chance();
                return self.observe();
            }
            1 if faulty => {
                self.trace(|| format!("  {about}, not answered yet"));
                self.hit("fault", "crash after a step");
                self.perform(&step);
                self.die_by_chance();
                return self.observe();
            }
            2 if self.may_cut() => {
                self.trace(|| format!("  about to {about}"));
                self.hit("fault", "cut before a step");
                self.cut_within();
                return self.observe();
            }
            3 if self.may_cut() => {
                self.trace(|| format!("  {about}, not answered yet"));
                self.hit("fault", "cut after a step");
                self.perform(&step);
                self.cut_within();
                return self.observe();
            }
            4 | 5 if faulty && changes => {
                self.hit("fault", "write error");
                self.trace(|| format!("  {about}: fails"));
                return self.step_done(step, Outcome::Done(Err("input/output error".into())));
            }
            6 if faulty && is_write => {
                self.hit("fault", "error though written");
                self.trace(|| format!("  {about}: done, but its name could not be made durable"));
                self.write_until(Operation::Rename, &step);
                self.model.tampered = true;
                return self.step_done(step, Outcome::Done(Err("input/output error".into())));
            }
            7 | 8 if self.may_cut() && is_write => {
                let stage = *self.random.pick(&WITHIN_A_WRITE);
                self.trace(|| format!("  in the middle of: {about} ({stage:?})"));
                self.hit("fault", "cut in the middle of a write");
                self.write_until(stage, &step);
                self.cut_within();
                return self.observe();
            }
            9 if faulty && is_write => {
                let stage = *self.random.pick(&WITHIN_A_WRITE);
                let stage =
                    if self.mutant == Some(Mutant::NamesNotSettled) { Operation::Rename } else { stage };
                self.trace(|| format!("  in the middle of: {about} ({stage:?})"));
                self.hit("fault", "crash in the middle of a write");
                self.write_until(stage, &step);
                self.die_by_chance();
                return self.observe();
            }
            _ => {}
        }
        let outcome = self.perform(&step);
        self.trace(|| format!("  {about}: {}", short(&outcome)));
        self.step_done(step, outcome)
    }

    /// What a mutant needs to be noticed comes seldom by chance.
    fn mutants_chance(&mut self, step: &Step) -> Option<u64> {
        match (self.mutant?, step) {
            // a start is recorded, and the power goes before the evidence is consumed
            (Mutant::RunsNotCounted, Step::Write(StateFile::Startups, _)) if self.model.run.is_none() => {
                self.random.percent(20).then_some(3)
            }
            // a process is killed between a name and its sync; the next is cut off after it has read
            (Mutant::NamesNotSettled, Step::Write(..)) => self.random.percent(10).then_some(9),
            (Mutant::NamesNotSettled, Step::Read(_)) => self.random.percent(10).then_some(3),
            _ => None,
        }
    }

    fn step_done(&mut self, step: Step, outcome: Outcome) -> Check {
        self.world.process.as_mut().expect("it runs").step = None;
        self.world.seen.push(Seen::Performed(step, outcome.clone()));
        self.handle("StepDone", Event::StepDone(outcome));
        self.observe()
    }

    /// A durable write that comes no further than this.
    fn write_until(&mut self, stage: Operation, step: &Step) {
        if let Step::Write(file, bytes) = step {
            let path = file.path(&self.world.version);
            self.world.disk.write_until(stage, file, &path, bytes);
        }
    }

    fn handle(&mut self, name: &'static str, event: Event) {
        self.hit("event", name);
        self.events += 1;
        self.world.handle(event);
    }

    /// Performs a step on the disk, faithfully or as the mutant has it.
    fn perform(&mut self, step: &Step) -> Outcome {
        let starting = self.model.run.is_none();
        let lost = match (self.mutant, step) {
            (Some(Mutant::StartNotRecorded), Step::Write(StateFile::Startups, _)) => starting,
            (Some(Mutant::VerdictNotWritten), Step::Write(StateFile::BadConfigs, _)) => true,
            (Some(Mutant::AssignmentNotWritten), Step::Write(StateFile::Current, _)) => true,
            (Some(Mutant::CheckpointNotWritten), Step::Write(StateFile::Checkpoint(_), _)) => true,
            (Some(Mutant::PromotionNotWritten), Step::Write(StateFile::LastKnownGood, _)) => true,
            (Some(Mutant::ProgressNotWritten), Step::Write(StateFile::Startups, _)) => !starting,
            _ => false,
        };
        if lost && self.world.disk.fault == WriteFault::None {
            return Outcome::Done(Ok(()));
        }
        let outcome = self.world.perform(step);
        match (self.mutant, step, &outcome) {
            (Some(Mutant::VerdictsForgotten), Step::Read(StateFile::BadConfigs), _) => {
                Outcome::Read(Read::Absent)
            }
            (Some(Mutant::CurrentIsWhatIsActive), Step::Read(StateFile::Current), _)
                if self.world.bad_configs().as_object().is_some_and(|bad| !bad.is_empty()) =>
            {
                let good = self.world.disk.read("last-known-good");
                if matches!(good, Read::Content(_)) { Outcome::Read(good) } else { outcome }
            }
            (
                Some(Mutant::CountsWithoutOwner),
                Step::Read(StateFile::Startups),
                Outcome::Read(Read::Content(bytes)),
            ) => {
                let assigned = self.recorded("current").map(|config| config.id.to_string());
                let mut record: Value = serde_json::from_slice(bytes).unwrap_or_default();
                if let (Some(id), true) = (assigned, record.is_object()) {
                    record["id"] = json!(id);
                }
                Outcome::Read(Read::Content(record.to_string().into_bytes()))
            }
            (Some(Mutant::NeverForgiven), Step::Read(StateFile::Startups), _) => {
                self.returning.take().map_or(outcome, |bytes| Outcome::Read(Read::Content(bytes)))
            }
            _ => outcome,
        }
    }

    // ------------------------------------------------------------------------------------------ network

    fn nature(&self) -> Nature {
        let used = self.world.process.as_ref().and_then(|process| process.used);
        used.and_then(|pods| with_pods(&self.designs, pods))
            .map_or(Nature::Good, |design| design.nature(self.drop_in))
    }

    /// Whether anything gets through.
    pub(crate) fn link(&self) -> bool {
        self.world.link && self.nature() != Nature::LosesContact
    }

    fn do_facts(&mut self) -> Check {
        if self.world.do_facts() {
            self.hit("event", "HostFacts");
        }
        self.observe()
    }

    /// What becomes of a request: None, the server answers it.
    fn network_fault(&mut self) -> Option<Answer> {
        if !self.link() {
            return Some(Answer::Failed("no route to host".into()));
        }
        if self.mode != Mode::All || self.settling {
            return None;
        }
        match self.network {
            Network::HalfDead if self.random.percent(90) => {
                self.hit("fault", "half-dead network");
                return Some(Answer::Failed("timed out".into()));
            }
            Network::Busy if self.random.percent(80) => {
                self.hit("fault", "answer 503");
                let retry_after = self.random.percent(50).then_some(Duration::from_secs(30));
                let (reason, message) = ("ServiceUnavailable".to_owned(), "starting".to_owned());
                return Some(Answer::Refused { status: 503, reason, message, retry_after });
            }
            _ => {}
        }
        let (name, answer) = match self.random.below(40) {
            0 => ("answer lost", Answer::Failed("timed out".into())),
            1 => ("answer 401", refused(401, "Unauthorized", "Unauthorized")),
            2 => {
                let retry_after = Some(Duration::from_secs(self.random.below(100_000)));
                let message = "too many requests".to_owned();
                let reason = "TooManyRequests".to_owned();
                ("answer 429", Answer::Refused { status: 429, reason, message, retry_after })
            }
            3 => ("answer 500", refused(500, "InternalError", "etcdserver: request timed out")),
            4 => ("answer 410", refused(410, "Expired", "too old resource version")),
            _ => return None,
        };
        self.hit("fault", name);
        Some(answer)
    }

    fn note_contact(&mut self, answer: &Answer) {
        if answer.is_contact() {
            self.model.contact();
        } else if self.mutant == Some(Mutant::ContactWithoutAnswer) {
            self.world.handle(Event::Contact);
        }
    }

    fn do_request(&mut self) -> Check {
        let Some(request) = self.world.process.as_ref().and_then(|process| process.requests.first().cloned())
        else {
            return Ok(());
        };
        let answer = match self.network_fault() {
            Some(Answer::Failed(why)) => {
                // it may have arrived all the same
                if self.link() && self.random.percent(50) {
                    self.world.hub.answer(NODE, &request);
                }
                Answer::Failed(why)
            }
            Some(answer) => answer,
            None if self.mutant == Some(Mutant::StatusDropped)
                && matches!(request, Request::PatchStatus(_) | Request::PatchNode(_)) =>
            {
                Answer::Accepted(None)
            }
            None => self.world.hub.answer(NODE, &request),
        };
        self.trace(|| format!("  {:?}: {answer}", request.kind()));
        self.hit("event", "Answered");
        self.events += 1;
        self.world.do_request(Some(answer.clone()));
        self.note_contact(&answer);
        self.observe()
    }

    fn do_renewal(&mut self) -> Check {
        let Some((request, _)) = self.world.process.as_ref().and_then(|process| process.renewal.clone())
        else {
            return Ok(());
        };
        let answer = match self.network_fault() {
            Some(answer) => answer,
            None if self.settling && self.mutant == Some(Mutant::RenewalsDropped) => Answer::Accepted(None),
            None => {
                self.renewed_at = self.world.time;
                self.world.hub.renew(NODE, &request)
            }
        };
        self.trace(|| format!("  renewal: {answer}"));
        self.hit("event", "Renewed");
        self.events += 1;
        self.world.do_renewal(Some(answer.clone()));
        self.note_contact(&answer);
        self.observe()
    }

    fn do_watches(&mut self) -> Check {
        if !self.shows_news() || self.world.exited() {
            return Ok(());
        }
        let node = self.world.hub.node().cloned().unwrap_or(Value::Null);
        if self.world.do_watch_node() {
            self.hit("event", if node.is_null() { "NodeGone" } else { "NodeSeen" });
            self.events += 1;
            self.trace(|| format!("  sees its Node: source {}", source_of(&node)));
            self.remember_node(node);
            self.model.contact();
            self.observe()?;
        }
        let name = self.world.process.as_ref().and_then(|process| process.watched.clone());
        let map = name.as_ref().and_then(|(_, name)| self.world.hub.config_map(name)).cloned();
        let downloads = self.world.downloads;
        if !self.world.exited() && self.world.do_watch_map() {
            let name_of_event = match &map {
                None => "ConfigMapGone",
                Some(_) if self.world.downloads == downloads => "ConfigMapUnchanged",
                Some(_) => "ConfigMapSeen",
            };
            self.hit("event", name_of_event);
            self.events += 1;
            self.trace(|| {
                format!(
                    "  sees ConfigMap {name:?}: {}",
                    map.as_ref().map_or("gone", |map| text(map, "/metadata/uid"))
                )
            });
            if let (Some((_, name)), Some(map)) = (name, map) {
                self.old_maps.push((name, map));
            }
            self.model.contact();
        }
        self.observe()
    }

    fn remember_node(&mut self, node: Value) {
        if !node.is_null() {
            self.old_nodes.push(node);
        }
        if self.old_nodes.len() > 8 {
            self.old_nodes.remove(0);
        }
        if self.old_maps.len() > 8 {
            self.old_maps.remove(0);
        }
    }

    fn change_link(&mut self) -> Check {
        if self.mode == Mode::All && self.random.percent(50) {
            let all = [Network::Fine, Network::HalfDead, Network::Silent, Network::Busy];
            self.network = *self.random.pick(&all);
            if self.network == Network::Silent {
                self.hit("fault", "silent watches");
            }
            let network = self.network;
            self.trace(|| format!("THE NETWORK IS {network:?}"));
            return Ok(());
        }
        if self.world.link {
            if self.mode == Mode::CutsOnly || (self.mode == Mode::OneOutage && self.outages_left == 0) {
                return Ok(());
            }
            self.outages_left = self.outages_left.saturating_sub(1);
            self.hit("fault", "link down");
        }
        self.world.link = !self.world.link;
        let up = self.world.link;
        self.trace(|| format!("THE LINK IS {}", if up { "UP" } else { "DOWN" }));
        Ok(())
    }

    /// A slow, stale or lying network, and events that come from nowhere.
    fn disturb(&mut self) -> Check {
        if !self.link() {
            return Ok(());
        }
        let contact = match self.random.below(13) {
            0 | 1 if !self.old_nodes.is_empty() => {
                let node = self.random.pick(&self.old_nodes).clone();
                self.hit("fault", "stale node");
                self.trace(|| format!("  STALE Node: source {}", source_of(&node)));
                self.model.forget_crashes();
                self.handle("NodeSeen", node_event(&node));
                self.world.forget_shown();
                true
            }
            2 | 3 if !self.old_maps.is_empty() => {
                let (name, map) = self.random.pick(&self.old_maps).clone();
                self.hit("fault", "stale config map");
                self.trace(|| {
                    format!("  STALE ConfigMap {name} {}", text(&map, "/metadata/resourceVersion"))
                });
                self.model.forget_crashes();
                self.handle("ConfigMapSeen", map_event(NAMESPACE, &name, map));
                self.world.forget_shown();
                true
            }
            4 if !self.old_maps.is_empty() => {
                let (name, mut map) = self.random.pick(&self.old_maps).clone();
                self.hit("fault", "wrong uid");
                self.trace(|| format!("  ConfigMap {name} with a WRONG UID"));
                self.model.forget_crashes();
                map["metadata"]["uid"] = json!("no-such-uid");
                self.handle("ConfigMapSeen", map_event(NAMESPACE, &name, map));
                self.world.forget_shown();
                true
            }
            5 => {
                let name = *self.random.pick(&MAPS);
                let (namespace, name) = (NAMESPACE.to_owned(), name.to_owned());
                let why = "403 forbidden".to_owned();
                self.handle("ConfigMapUnreadable", Event::ConfigMapUnreadable { namespace, name, why });
                self.world.forget_shown();
                false
            }
            6 => {
                self.handle("Contact", Event::Contact);
                true
            }
            7 => {
                self.trace(|| "  ANOTHER SERVER".into());
                let on_their_way = self.world.process.as_ref().map_or(0, |process| process.requests.len());
                self.handle("ServerChanged", Event::ServerChanged);
                // requests to the old server end, and say so late
                for _ in 0..on_their_way {
                    self.world.do_request(Some(Answer::Failed("the old server is gone".into())));
                }
                false
            }
            8 => {
                let read = self.world.read_bad_configs();
                self.handle("BadConfigsRead", Event::BadConfigsRead(read));
                false
            }
            9 | 10 if !self.orphans.is_empty() => {
                let request = self.orphans.remove(0);
                self.hit("fault", "executed after a restart");
                self.trace(|| format!("  a request of a dead agent ARRIVES: {:?}", request.kind()));
                self.world.hub.answer(NODE, &request);
                false
            }
            11 if !self.old_nodes.is_empty() => {
                let mut node = self.random.pick(&self.old_nodes).clone();
                node["metadata"]["uid"] = json!("uid-of-edge-2");
                if self.mutant != Some(Mutant::AnothersNode) {
                    node["metadata"]["name"] = json!("edge-2");
                }
                match self.world.hub.flavour {
                    Flavour::Kedge => node["spec"]["configSource"] = Hub::following(ANOTHERS_MAP),
                    Flavour::Kubernetes => {
                        let text = Hub::following(ANOTHERS_MAP).to_string();
                        node["metadata"]["annotations"] = json!({kedge_api::CONFIG_SOURCE_ANNOTATION: text});
                    }
                }
                self.hit("fault", "another node's Node");
                self.trace(|| format!("  the Node of ANOTHER node: source {}", source_of(&node)));
                self.handle("NodeSeen", node_event(&node));
                true
            }
            _ => {
                self.hit("fault", "watch expired");
                self.trace(|| "  lost its watches".into());
                self.world.forget_shown();
                false
            }
        };
        if contact {
            self.model.contact();
        }
        self.observe()
    }

    // ------------------------------------------------------------------------------------------ time

    fn pass_time(&mut self, time: Duration) {
        self.world.advance(time);
    }

    fn pass_to_deadline(&mut self) -> Check {
        if self.mode != Mode::All {
            // in a good world no time passes while an answer is waited for
            self.prompt(Duration::ZERO, false)?;
            if self.world.exited() {
                return Ok(());
            }
        }
        let mono = self.world.mono;
        let deadline = self.world.deadline().unwrap_or(mono + Duration::from_secs(60));
        let mut time = deadline.saturating_sub(mono);
        if self.random.percent(10) {
            time = time * u32::try_from(self.random.below(300)).expect("small") / 100;
        }
        self.tick(time)
    }

    /// Time passes, and the agent is told; unless what it runs ends it before.
    fn tick(&mut self, time: Duration) -> Check {
        let mono = self.world.mono;
        let until_late = self.late.map(|late| late.saturating_sub(mono));
        if let Some(until) = until_late.filter(|until| *until <= time) {
            self.pass_time(until);
            self.trace(|| "  the config CRASHES the agent".into());
            self.crash("exit code");
            return self.observe();
        }
        self.pass_time(time);
        if self.settling && self.mutant == Some(Mutant::CrashesForever) && self.random.percent(30) {
            self.crash("exit code");
            return self.observe();
        }
        self.handle("Tick", Event::Tick);
        self.observe()
    }

    /// Everything is done promptly for a while; with `restart`, the supervisor restarts what ends.
    fn prompt(&mut self, time: Duration, restart: bool) -> Check {
        let (end, starts) = (self.world.time + time, self.world.starts);
        self.trace(|| format!("everything is prompt for {} s", time.as_secs()));
        loop {
            if self.world.process.is_none() || self.world.exited() {
                if !restart {
                    return Ok(());
                }
                if self.world.starts > starts + MANY_STARTS {
                    return Err(format!(
                        "invariant_everything_comes_to_rest: {MANY_STARTS} starts within {} s",
                        time.as_secs()
                    ));
                }
                if self.world.process.is_some() {
                    self.exit();
                    self.observe()?;
                }
                self.pass_time(Duration::from_secs(2));
                self.start()?;
                continue;
            }
            if self.do_next_pending()? {
                continue;
            }
            if self.world.time >= end {
                return Ok(());
            }
            let mono = self.world.mono;
            let left = end - self.world.time;
            let wait = self
                .world
                .deadline()
                .map_or(left, |at| at.saturating_sub(mono).max(Duration::from_millis(1)).min(left));
            self.tick(wait)?;
        }
    }

    /// The first thing the agent waits for happens, as a real agent would have it. Says whether there was one.
    fn do_next_pending(&mut self) -> Result<bool, String> {
        let Some(process) = &self.world.process else { return Ok(false) };
        let (step, facts, requests, renewal) = (
            process.step.is_some(),
            process.facts_wanted,
            !process.requests.is_empty(),
            process.renewal.is_some(),
        );
        if step {
            self.do_step()?;
        } else if facts {
            self.do_facts()?;
        } else if requests {
            self.do_request()?;
        } else if renewal {
            self.do_renewal()?;
        } else {
            let before = self.world.seen.len();
            let shown = self.shows_news();
            debug_assert_eq!(before, 0);
            return if shown { self.do_watches().map(|()| true) } else { Ok(false) };
        }
        Ok(true)
    }

    /// Whether a watch has something to tell, and does.
    fn shows_news(&self) -> bool {
        self.link() && self.network != Network::Silent && self.world.has_news()
    }

    // ------------------------------------------------------------------------------------------ ends

    pub(crate) fn may_cut(&self) -> bool {
        !self.settling && (self.mode == Mode::All || self.cuts_left > 0)
    }

    /// The board's record says that what runs does so in this boot. A run that could not be recorded is known to nobody: its
    /// crash counts only if it falls into the boot of the last one that was.
    fn open(&self) -> bool {
        let id = self.model.run.as_ref().and_then(|run| run.config).map(|config| config.id.to_string());
        let startups = self.world.startups();
        id.is_some_and(|id| startups["id"] == json!(id)) && startups["open"] == json!(self.world.boot_id())
    }

    fn leave(&mut self, crashed: bool) {
        let open = self.open();
        let startups = self.world.startups();
        let left_open = ConfigId::parse(text(&startups, "/id")).filter(|_| startups["open"].is_string());
        self.model.ends(self.world.mono, &self.designs, crashed, open, left_open);
        self.late = None;
        if let Some(process) = &mut self.world.process {
            self.orphans.append(&mut process.requests);
            self.orphans.truncate(4);
        }
    }

    fn cut(&mut self) {
        if !self.may_cut() {
            return;
        }
        self.cuts_left = self.cuts_left.saturating_sub(1);
        self.hit("end", "power cut");
        self.cut_power();
        self.trace(|| "POWER CUT".into());
    }

    /// A power cut while a transition is under way.
    fn cut_within(&mut self) {
        if let Some(transition) = self.under_way {
            self.hit("cut within", transition);
        }
        self.cut();
    }

    /// The power goes, and comes back: of what was not durable, not all is there again.
    fn power_goes(&mut self) {
        if self.world.previous.kernel_panic {
            // it lies where the kernel left it until somebody notes that it was seen
            self.model.evidence_stays();
        }
        let told = std::mem::take(&mut self.model.told_last);
        let held = told.into_iter().filter(|(path, told)| self.world.disk.is(path, told.as_deref()));
        let held: BTreeMap<String, Option<Vec<u8>>> = held.collect();
        let startups = StateFile::Startups.path(&self.world.version);
        let counts = self.world.disk.content(&startups);
        let losses = self.world.power_cut_with(Loss::Chance(self.random.number()));
        for (name, count) in [
            ("lost names", losses.renames_lost),
            ("names that nobody acknowledged", losses.renames_kept),
            ("torn files", losses.files_torn),
        ] {
            if count > 0 {
                self.hit("after a cut", name);
                self.trace(|| format!("  after the cut: {count} {name}"));
            }
        }
        if !self.world.disk.is(&startups, counts.as_deref()) {
            // what nobody had acknowledged is gone, and with it that the run which crashed was open
            self.model.doubt_last_crash();
        }
        let is_back = |(path, told): &(&String, &Option<Vec<u8>>)| !self.world.disk.is(path, told.as_deref());
        self.taken_back.extend(held.iter().filter(is_back).map(|(path, _)| path.clone()));
        if !self.has_clock {
            self.world.wall_micros = 0;
            self.hit("fault", "boot without a clock");
        }
    }

    fn cut_power(&mut self) {
        self.leave(false);
        self.power_goes();
        match self.mutant {
            Some(Mutant::CutResetsRunning) => {
                let mut record = self.world.startups();
                if record.is_object() {
                    record["ran_ms"] = json!(0);
                    let path = StateFile::Startups.path(&self.world.version);
                    self.world.disk.put(&path, record.to_string().as_bytes());
                }
            }
            Some(Mutant::CutCountsAsCrash) => self.world.previous.hardware_reset = true,
            _ => {}
        }
    }

    pub(crate) fn exit(&mut self) {
        let why = self.world.process.as_ref().and_then(|process| process.exit.clone()).unwrap_or_default();
        self.trace(|| format!("EXIT: {why}"));
        self.hit("end", "exit");
        self.leave(false);
        self.world.exit();
    }

    /// The process ends in a way that counts.
    fn crash(&mut self, how: &'static str) {
        self.hit("end", how);
        self.leave(true);
        let ending = |world: &World, result: &str| world.ending(result);
        match how {
            "unrecorded" => self.world.die_unrecorded(),
            "exit code" => self.world.crash(),
            "signal" => self.world.end(Exit { exit_status: "SEGV".into(), ..ending(&self.world, "signal") }),
            "core dump" => {
                self.world.end(Exit { exit_status: "ABRT".into(), ..ending(&self.world, "core-dump") })
            }
            "out of memory" => self.world.end(ending(&self.world, "oom-kill")),
            "watchdog" => {
                self.world.end(Exit { stalled: vec!["renew".into()], ..ending(&self.world, "watchdog") });
            }
            "start timeout" => {
                self.world.end(Exit { was_ready: false, stop_asked: true, ..ending(&self.world, "timeout") })
            }
            "crash, then reboot" => {
                self.world.crash();
                self.power_goes();
            }
            "hardware reset" => {
                self.power_goes();
                self.world.previous = Default::default();
                self.world.previous.hardware_reset = true;
            }
            "kernel panic" => {
                self.power_goes();
                self.world.previous = Default::default();
                self.world.previous.kernel_panic = true;
            }
            other => panic!("no such end: {other}"),
        }
        if self.mutant == Some(Mutant::CrashNotCounted) {
            let boot = self.world.startups()["open"].as_str().unwrap_or_default().to_owned();
            self.world.previous.exit =
                Some(Exit { boot_id: boot, stop_asked: true, ..ending(&self.world, "success") });
        }
        self.trace(|| format!("END: {how}"));
    }

    fn die_by_chance(&mut self) {
        let ends =
            ["unrecorded", "exit code", "signal", "core dump", "out of memory", "watchdog", "start timeout"];
        let how = *self.random.pick(&ends);
        self.crash(how);
    }

    /// The agent ends for reasons of its own or of the world.
    fn end_by_chance(&mut self) -> Check {
        match self.random.below(8) {
            0..=2 => {
                self.trace(|| "asked to STOP".into());
                self.world.process.as_mut().expect("it runs").stop_asked = true;
                self.handle("Stop", Event::Stop("asked to stop".into()));
                if self.random.percent(50) {
                    self.hit("end", "stop");
                    self.observe()?;
                    self.prompt(Duration::ZERO, false)?;
                } else if self.random.percent(30) && self.mode == Mode::All {
                    self.hit("end", "stop killed at its time limit");
                    self.leave(false);
                    self.world.end(Exit { stop_asked: true, ..self.world.ending("timeout") });
                }
            }
            3 | 4 => self.cut(),
            5 if self.mode == Mode::All => {
                self.hit("end", "watchdog, only the disk");
                self.trace(|| "END: the disk stood still".into());
                self.leave(false);
                self.world.end(Exit { stalled: vec!["disk".into()], ..self.world.ending("watchdog") });
            }
            6 if self.mode == Mode::All => self.crash("crash, then reboot"),
            _ if self.mode == Mode::All => self.die_by_chance(),
            _ => {}
        }
        self.observe()
    }

    /// What the config in use does to the agent at once.
    fn apply_nature(&mut self) {
        match self.nature() {
            Nature::Good | Nature::LosesContact | Nature::Unparsable | Nature::Invalid => {}
            Nature::CrashesAtOnce => {
                let how = *self.random.pick(&["exit code", "signal", "core dump", "unrecorded"]);
                self.crash(how);
            }
            Nature::CrashesAfter(tenths) => {
                let used = self.world.process.as_ref().and_then(|process| process.used);
                let design = used.and_then(|pods| with_pods(&self.designs, pods));
                let settled = Duration::from_millis(design.map_or(0, Design::settled_ms));
                self.late = Some(self.world.mono + settled * tenths / 10);
            }
            Nature::Hangs => self.crash("watchdog"),
            Nature::EatsMemory => self.crash("out of memory"),
            Nature::ResetsBoard => self.crash("hardware reset"),
            Nature::Panics => self.crash("kernel panic"),
            Nature::RebootsSilently => {
                self.hit("end", "silent reboot");
                self.cut_power();
                self.trace(|| "END: a silent reboot".into());
            }
        }
    }

    // ------------------------------------------------------------------------------------------ people

    fn act_as_operator(&mut self) {
        let wild = self.mode == Mode::All;
        self.model.forget_crashes();
        if wild && self.random.percent(25) && self.forgive() {
            return;
        }
        let (name, design) = (*self.random.pick(&MAPS), self.random.pick(&self.designs).clone());
        let is_running = self.world.process.is_some();
        let (pods, hub) = (design.max_pods, &mut self.world.hub);
        let told = match self.random.below(if wild { 30 } else { 12 }) {
            0..=3 => {
                hub.push(name, &design.payload);
                hub.assign(hub.pinned(name));
                format!("pushes {pods} as {name} and assigns it by UID")
            }
            4..=7 => {
                hub.push(name, &design.payload);
                hub.assign(Hub::following(name));
                format!("pushes {pods} as {name} and assigns it by name")
            }
            8..=9 => {
                hub.push(name, &design.payload);
                format!("pushes {pods} as {name}")
            }
            10 => {
                hub.assign(Value::Null);
                "assigns nothing".into()
            }
            11 if hub.config_map(name).is_some() => {
                hub.assign(hub.pinned(name));
                format!("assigns {name} as it is")
            }
            12 | 13 => {
                hub.delete_config_map(name);
                format!("deletes {name}")
            }
            14 | 15 => {
                hub.delete_config_map(name);
                hub.push(name, &design.payload);
                format!("re-creates {name} as {pods}")
            }
            16 => {
                hub.assign(json!({}));
                "assigns {}".into()
            }
            17 => {
                let both = json!({
                    "configMapRef": hub.pinned(name)["configMapRef"], "configMap": Hub::following(name)["configMap"],
                });
                hub.assign(both);
                "assigns both forms at once".into()
            }
            18 => {
                hub.push_data(name, json!({"other": "text"}));
                format!("takes the payload out of {name}")
            }
            19 => {
                hub.delete_node();
                if self.random.percent(50) {
                    self.world.hub.create_node(NODE);
                }
                "re-creates or deletes the Node".into()
            }
            20 => {
                let flavour = hub.flavour;
                let counter = self.random.below(1 << 40);
                self.world.hub = Hub::new(flavour);
                self.world.hub.wiped(counter);
                self.hit("fault", "hub wiped");
                "WIPES THE HUB".into()
            }
            21 => {
                hub.mark_unknown();
                "hears nothing and marks the Node Unknown".into()
            }
            23 if is_running => {
                self.model.forget_all();
                self.handle("Reset", Event::Reset);
                "resets on the node".into()
            }
            24 => {
                let years = if self.random.percent(50) { 1 } else { -1 };
                self.world.wall_micros = (self.world.wall_micros + years * TWENTY_YEARS_MICROS).max(0);
                self.hit("fault", "clock step");
                "the clock on the wall jumps by 20 years".into()
            }
            25 => {
                self.world.wall_micros =
                    WALL_MICROS + i64::try_from(self.world.time.as_micros()).expect("a run");
                self.hit("fault", "clock set right");
                "the clock on the wall is set right".into()
            }
            26 => {
                self.backup = Some(hub.clone());
                "saves the hub".into()
            }
            27 if self.backup.is_some() => {
                let newest = self.world.hub.counter();
                self.world.hub = self.backup.clone().expect("there is one");
                self.world.hub.wiped(newest);
                self.hit("fault", "hub restored");
                "RESTORES THE HUB as it was saved".into()
            }
            _ => return,
        };
        self.trace(|| format!("OPERATOR {told}"));
    }

    /// Says whether there was anything to forgive.
    fn forgive(&mut self) -> bool {
        let bad = self.world.bad_configs();
        let Some(uid) = bad.as_object().and_then(|bad| bad.keys().next().cloned()) else { return false };
        let by_hand = self.world.process.is_none() || self.random.percent(30);
        self.trace(|| format!("OPERATOR forgives {uid}{}", if by_hand { " by hand" } else { "" }));
        self.model.forget_all();
        if by_hand {
            let mut bad = bad;
            if let Some(bad) = bad.as_object_mut() {
                bad.remove(&uid);
            }
            let path = StateFile::BadConfigs.path(&self.world.version);
            self.world.disk.put(&path, bad.to_string().as_bytes());
            self.model.tampered = true;
            if self.random.percent(70) {
                let read = self.world.read_bad_configs();
                self.handle("BadConfigsRead", Event::BadConfigsRead(read));
            }
        } else {
            self.forgiven_ids(&bad, &uid);
            self.handle("Forgive", Event::Forgive(uid));
        }
        true
    }

    fn change_while_stopped(&mut self) {
        if self.mode != Mode::All {
            return;
        }
        match self.random.below(5) {
            0 | 1 => self.edit_drop_in(),
            2 => {
                let version = *self.random.pick(&VERSIONS);
                match version.cmp(&self.world.version) {
                    Ordering::Greater => self.hit("fault", "agent upgraded"),
                    Ordering::Less => self.hit("fault", "agent downgraded"),
                    Ordering::Equal => {}
                }
                self.model.upgraded(&self.world.version, version);
                self.world.version = version.into();
                self.model.forget_crashes();
                self.trace(|| format!("THE AGENT IS NOW {version}"));
            }
            3 => {
                self.local_invalid = true;
                self.world.drop_in("maxPods: lots\n");
                self.trace(|| "a drop-in is BROKEN".into());
            }
            _ => {
                self.world.dynamic = !self.world.dynamic;
                self.model.doubt_last_crash();
                let dynamic = self.world.dynamic;
                self.model.forget_crashes();
                self.trace(|| format!("--dynamic-config={dynamic}"));
            }
        }
    }

    fn edit_drop_in(&mut self) {
        self.drop_in = usize::from(self.mode == Mode::All && self.random.percent(50));
        self.mend_local();
        self.model.forget_crashes();
        let drop_in = self.drop_in;
        self.trace(|| format!("{} drop-in", if drop_in == 1 { "with the" } else { "no" }));
    }

    fn mend_local(&mut self) {
        self.local_invalid = false;
        self.world.local.drop_ins.clear();
        if self.drop_in == 1 {
            self.world.drop_in(DROP_IN);
        }
        self.overrides = canonical_overrides(&self.world.local).expect("the local config is valid");
    }

    /// Files are damaged, lost or made unreadable, or the disk fills up or is freed.
    fn touch_files(&mut self) {
        if self.random.percent(50) {
            let works = self.world.disk.fault == WriteFault::None;
            let (fault, name) = match self.random.below(4) {
                0 | 1 if works => (WriteFault::All, "disk full"),
                2 if works => (WriteFault::Checkpoints, "disk full but for the reserve"),
                3 if works => (WriteFault::ReadOnly, "disk read-only"),
                _ => (WriteFault::None, "disk mended"),
            };
            self.world.disk.fault = fault;
            self.hit("fault", name);
            self.trace(|| format!("THE DISK: {name}"));
            return;
        }
        let paths: Vec<String> =
            self.world.disk.paths().into_iter().filter(|path| !path.contains(".corrupt-")).collect();
        if paths.is_empty() || self.random.percent(50) {
            return;
        }
        let path = self.random.pick(&paths).clone();
        let kind = match self.random.below(3) {
            0 => {
                let length = self.random.below(40);
                let bytes = vec![0; usize::try_from(length).expect("small")];
                // an empty record says local: a hand did that, not chance
                self.world.disk.put(&path, if bytes.is_empty() { b"x" } else { &bytes });
                "damaged record"
            }
            1 => {
                self.world.disk.remove(&path);
                "removed record"
            }
            _ => {
                self.world.disk.make_unreadable(&path);
                "unreadable record"
            }
        };
        self.hit("fault", kind);
        self.damaged.insert(path.clone());
        self.trace(|| format!("FILE {path}: {kind}"));
        self.model.forget_all();
        self.model.tampered = true;
    }

    // ------------------------------------------------------------------------------------------ observing

    pub(crate) fn hit(&mut self, kind: &'static str, name: &'static str) {
        self.coverage.hit(kind, name);
    }

    /// Shows the model what was asked for and done, then checks what must hold.
    pub(crate) fn observe(&mut self) -> Check {
        for seen in std::mem::take(&mut self.world.seen) {
            match seen {
                Seen::Asked(action) => self.asked(&action)?,
                Seen::Performed(step, outcome) => self.performed(&step, &outcome)?,
            }
        }
        for line in std::mem::take(&mut self.world.log) {
            self.trace(|| format!("    | {line}"));
        }
        self.note_transition();
        if self.world.process.as_ref().is_some_and(|process| process.step.is_none()) {
            self.model.rests();
        }
        self.check()
    }

    fn asked(&mut self, action: &Action) -> Check {
        let what = match action {
            Action::Step(Step::Read(_)) => "Read",
            Action::Step(Step::Write(..)) => "Write",
            Action::Step(Step::SetAside(_)) => "SetAside",
            Action::Use(_) => "Use",
            Action::ConsumeEvidence => "ConsumeEvidence",
            Action::Sweep { .. } => "Sweep",
            Action::ReadHostFacts => "ReadHostFacts",
            Action::Request(Request::Version) => "Version",
            Action::Request(Request::Register(_)) => "Register",
            Action::Request(Request::PatchStatus(_)) => "PatchStatus",
            Action::Request(Request::PatchNode(_)) => "PatchNode",
            Action::Request(Request::PostEvent(_)) => "PostEvent",
            Action::Renew { .. } => "Renew",
            Action::WatchNode => "WatchNode",
            Action::WatchConfigMap(_) => "WatchConfigMap",
            Action::Exit(_) => "Exit",
            Action::Log(..) => "Log",
        };
        self.hit("action", what);
        match action {
            Action::Use(_) => self.used(),
            Action::Step(Step::SetAside(file)) => self.invariant_no_record_is_torn(file),
            Action::WatchConfigMap(Some((_, name))) if name == ANOTHERS_MAP => {
                Err("invariant_only_its_own_node_is_obeyed: it watches what another node's Node names".into())
            }
            Action::Request(Request::PatchStatus(body)) => {
                let mut sent = body["status"]["config"].clone();
                if self.mutant == Some(Mutant::StatusClaims) && !sent["assigned"].is_null() {
                    sent["assigned"]["configMap"]["resourceVersion"] = json!("1");
                }
                self.invariant_status_never_claims_what_is_not_on_disk(&sent)
            }
            Action::Request(Request::PatchNode(body)) => {
                let mirrored = text(body, "/metadata/annotations/kedge.dev~1config-status");
                let status = serde_json::from_str(mirrored).unwrap_or(Value::Null);
                self.invariant_status_never_claims_what_is_not_on_disk(&status)
            }
            _ => Ok(()),
        }
    }

    /// What the agent says, or what the mutant says it says; None while it says nothing.
    pub(crate) fn report(&self) -> Option<Report> {
        let mut report = self.world.process.as_ref()?.node.report(self.world.now())?;
        if self.mutant == Some(Mutant::AlwaysTrue) {
            report.config.condition.status = "True";
        }
        Some(report)
    }

    /// A config is used from now on.
    fn used(&mut self) -> Check {
        if let (Some(Mutant::AnotherConfigRuns), Some(process)) = (self.mutant, &mut self.world.process) {
            process.used = Some(kedge_sim::DEFAULT_PODS);
        }
        let Some(report) = self.report() else {
            // it was asked to stop before it began, and is gone already
            self.model.begins(self.world.mono, None, false);
            return Ok(());
        };
        let active = report.config.status.active.clone().and_then(|source| source.config_map);
        let config = match &active {
            None => None,
            Some(source) => {
                let path = format!("checkpoints/{}/{}", source.uid, source.resource_version);
                if self.mutant == Some(Mutant::CheckpointVanishes) {
                    self.world.disk.remove(&path);
                    self.model.told.remove(&path);
                }
                Some(self.checkpoint(&path).ok_or_else(|| {
                    format!("invariant_what_runs_is_on_disk: {path} runs and has no checkpoint")
                })?)
            }
        };
        let startups = self.world.startups();
        let recorded = config.is_some_and(|config| startups["id"] == json!(config.id.to_string()))
            && startups["open"] == json!(self.world.boot_id());
        self.trace(|| {
            format!(
                "  USES {:?}, {}, recorded: {recorded}",
                config.map(|config| config.max_pods),
                report.config.state
            )
        });
        self.invariants_of_a_start(config, &report)?;
        self.model.begins(self.world.mono, config, recorded);
        let obstacle = report.config.obstacle;
        if let Some(obstacle) = obstacle {
            self.hit("obstacle", obstacle);
            match obstacle {
                "marked" if !self.verdict_now => self.hit("rule", "a"),
                "missing" => self.hit("rule", "b"),
                _ => {}
            }
        }
        let fallback = report.config.state == "fallback";
        self.hit(
            "start case",
            match (config, fallback) {
                (None, false) => "2 local",
                (Some(_), false) => "3 assigned",
                (Some(_), true) => "4 last-known-good",
                (None, true) => "5 local instead",
            },
        );
        Ok(())
    }

    /// What a checkpoint holds, by the hand of the test.
    pub(crate) fn checkpoint(&self, path: &str) -> Option<Config> {
        // what the agent read of it, if it did: the file may have been damaged since
        let told = self.model.told.get(path).and_then(Option::as_ref);
        let there = if told.is_none() { self.world.disk.content(path) } else { None };
        let object: Value = serde_json::from_slice(told.or(there.as_ref())?).ok()?;
        let payload = object["data"]["kubelet"].as_str()?;
        let design = self.designs.iter().find(|design| design.payload == payload)?;
        let id = ConfigId::of(text(&object, "/metadata/uid"), payload.as_bytes(), &self.overrides);
        Some(Config { id, max_pods: design.max_pods })
    }

    /// What a record on disk names.
    pub(crate) fn recorded(&self, path: &str) -> Option<Config> {
        let record = self.world.file(path)?;
        let (uid, version) = (text(&record, "/uid"), text(&record, "/resourceVersion"));
        self.checkpoint(&format!("checkpoints/{uid}/{version}"))
    }

    fn performed(&mut self, step: &Step, outcome: &Outcome) -> Check {
        let path = |file: &StateFile| file.path(&self.world.version);
        match (step, outcome) {
            (Step::Read(file), Outcome::Read(read)) => {
                let checkpoint_is_gone = matches!(file, StateFile::Checkpoint(_)) && *read == Read::Absent;
                if matches!(read, Read::Unreadable(_) | Read::SetAside) || checkpoint_is_gone {
                    // whatever it said is lost now, however long ago it was damaged; and without its content nobody knows whose
                    // the counts are
                    self.model.forget_all();
                }
                if let (StateFile::Current, Read::Content(bytes)) = (file, read)
                    && self.assigned.as_ref() != Some(bytes)
                {
                    // an adoption that nobody acknowledged was made, or taken back
                    self.assigned = Some(bytes.clone());
                    self.model.forget_crashes();
                }
                if let (StateFile::Startups, Read::Content(bytes)) = (file, read) {
                    // a write that nobody acknowledged may have been made
                    let record: Value = serde_json::from_slice(bytes).unwrap_or_default();
                    let id = ConfigId::parse(text(&record, "/id"));
                    self.model.counts_are_of(id);
                    self.model.startups_read(id, startups_in(&record));
                }
                match read {
                    Read::Content(bytes) => self.model.told.insert(path(file), Some(bytes.clone())),
                    Read::Absent | Read::SetAside => self.model.told.insert(path(file), None),
                    Read::Unreadable(_) => self.model.told.remove(&path(file)),
                };
                Ok(())
            }
            (Step::Write(file, bytes), Outcome::Done(Ok(()))) => {
                self.model.told.insert(path(file), Some(bytes.clone()));
                self.model.writes += 1;
                self.wrote(file, bytes)
            }
            (Step::Write(StateFile::Startups | StateFile::BadConfigs, _), Outcome::Done(Err(_))) => {
                // a crash that cannot be recorded now may never be
                self.model.doubt_last_crash();
                // nor what was forgiven
                self.model.forgiven.clear();
                Ok(())
            }
            (Step::SetAside(file), Outcome::Done(Ok(()))) => {
                self.model.forget_all();
                self.model.told.insert(path(file), None);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn wrote(&mut self, file: &StateFile, bytes: &[u8]) -> Check {
        let mut record: Value = serde_json::from_slice(bytes).unwrap_or_default();
        self.damaged.remove(&file.path(&self.world.version));
        if let (Some(Mutant::RecordsGrow), StateFile::Startups) = (self.mutant, file) {
            record["startups"] = json!(vec!["2026-11-21T01:00:00Z"; STARTUPS + 1]);
        }
        match file {
            StateFile::BadConfigs => {
                self.model.proven_by_verdict();
                self.verdict_now = true;
                self.invariant_a_forgiven_config_is_tried(&record)?;
                self.note_verdicts(&record);
                self.invariants_of_verdicts(&record)
            }
            StateFile::Startups => {
                let id = ConfigId::parse(text(&record, "/id"));
                self.model.proven_by_counts();
                self.model.saved(id, record["ran_ms"].as_u64());
                self.invariant_startups_are_bounded(&record)?;
                self.invariant_an_end_counts_once(id, startups_in(&record))
            }
            StateFile::LastKnownGood => {
                if self.mutant == Some(Mutant::CheckpointSwept) {
                    self.world.disk.retain(|path| !path.starts_with("checkpoints/"));
                    self.model.told.retain(|path, _| !path.starts_with("checkpoints/"));
                }
                self.model.ran(self.world.mono, &self.designs);
                self.invariant_last_known_good_survived_a_trial(&record)
            }
            StateFile::Current => {
                self.assigned = Some(bytes.to_vec());
                if self.under_way == Some("adopt") || self.readdresses_another() {
                    // what runs next takes the place of what is counted now, however long ago it was assigned
                    self.model.forget_crashes();
                    if let Some(run) = &mut self.model.run {
                        run.superseded = true;
                    }
                }
                self.readdressed(&record);
                Ok(())
            }
            StateFile::Checkpoint(_) => Ok(()),
        }
    }

    /// What is assigned has another address, and is not what runs: it may be tried at once.
    fn readdresses_another(&self) -> bool {
        let running = self.model.run.as_ref().and_then(|run| run.config).map(|config| config.max_pods);
        let assigned = self.recorded("current").map(|config| config.max_pods);
        self.under_way == Some("readdress") && running != assigned
    }

    /// The same payload under another object: what it went through goes with it.
    fn readdressed(&mut self, record: &Value) {
        let Some(run) = &self.model.run else { return };
        let Some(running) = run.config else { return };
        let path = format!("checkpoints/{}/{}", text(record, "/uid"), text(record, "/resourceVersion"));
        let Some(config) = self.checkpoint(&path) else { return };
        if config.max_pods == running.max_pods && config.id != running.id {
            let since = run.since;
            let counts_must_follow = self.report().is_some_and(|report| report.config.state != "fallback");
            self.model.ran(self.world.mono, &self.designs);
            let past = self.model.past.get(&running.id).cloned().unwrap_or_default();
            self.model.past.insert(config.id, past);
            if let Some(run) = &mut self.model.run {
                run.config = Some(config);
                run.since = self.world.mono.max(since);
                run.ahead_of_its_counts = counts_must_follow;
            }
        }
    }

    /// The contents of this UID are about to be forgiven.
    fn forgiven_ids(&mut self, bad: &Value, uid: &str) {
        let contents = bad[uid]["contents"].as_object().into_iter().flatten();
        self.model.forgiving.extend(contents.filter_map(|(id, _)| ConfigId::parse(id)));
        if self.mutant == Some(Mutant::NeverForgiven) {
            // counts that condemn come back from nowhere
            let Some(id) = self.model.forgiving.iter().next().copied() else { return };
            let stamps = vec!["2026-11-21T01:00:00Z"; STARTUPS];
            let record = json!({
                "id": id.to_string(), "ran_ms": 0, "contact": false, "startups": stamps, "cuts": 0, "open": null,
                "threshold": 1, "trial_ms": 60_000,
            });
            self.returning = Some(record.to_string().into_bytes());
        }
    }

    fn note_verdicts(&mut self, record: &Value) {
        let version = self.world.version.clone();
        for id in crate::model::final_verdicts(record) {
            self.model.condemned.insert((version.clone(), id));
        }
        let entries = record.as_object().into_iter().flatten();
        let kinds: Vec<String> = entries
            .filter_map(|(_, entry)| entry["contents"].as_object())
            .flat_map(|contents| contents.values())
            .filter_map(|verdict| verdict["kind"].as_str())
            .map(str::to_owned)
            .collect();
        for kind in kinds {
            let rule = match kind.as_str() {
                "crashLoop" => "c",
                "cuts" => "d",
                "parse" => "e parse",
                "validate" => "e validate",
                "contact" => "f",
                _ => "verdicts lost",
            };
            self.hit("rule", rule);
        }
    }

    fn note_transition(&mut self) {
        let Some(process) = &self.world.process else { return };
        if process.step.is_some() && process.used.is_some() {
            let report = self.world.report();
            if report.config.transition != self.under_way {
                self.under_way = report.config.transition;
                if let Some(transition) = self.under_way {
                    self.hit("transition", transition);
                }
            }
            self.hit("state", report.config.state);
        } else if process.step.is_none() {
            self.under_way = None;
        }
        let used_now = self.model.run.as_ref().is_some_and(|run| run.since == self.world.mono);
        if used_now && self.late.is_none() && self.nature() != Nature::Good && self.model.fresh {
            self.model.fresh = false;
            self.apply_nature();
        }
    }

    // ------------------------------------------------------------------------------------------ rest

    /// No more faults: everything must come to rest, first perhaps without a network, then with one.
    fn settle(&mut self) -> Check {
        self.settling = true;
        self.trace(|| "NO MORE FAULTS".into());
        self.world.disk.fault = WriteFault::None;
        self.world.disk.mend_reads();
        self.network = Network::Fine;
        if !self.world.dynamic && self.world.process.is_some() {
            self.leave(false);
            self.world.end(Exit { stop_asked: true, ..self.world.ending("success") });
        }
        self.world.dynamic = true;
        if self.local_invalid {
            self.mend_local();
        }
        let may_be_down = match self.mode {
            Mode::All => true,
            Mode::CutsOnly => false,
            // one outage is promised: it is under way, or has not begun
            Mode::OneOutage => !self.world.link || self.outages_left > 0,
        };
        if may_be_down && (self.random.percent(25) || self.mutant == Some(Mutant::ManyOutages)) {
            self.world.link = false;
            self.come_to_rest("without a network")?;
        }
        self.world.link = true;
        self.world.forget_shown();
        self.come_to_rest("with a network")?;
        self.invariants_at_rest()
    }

    /// A stretch without a start and without a write must come.
    fn come_to_rest(&mut self, how: &str) -> Check {
        for _ in 0..120 {
            let (starts, writes) = (self.world.starts, self.model.writes);
            self.prompt(CALM, true)?;
            if (starts, writes) == (self.world.starts, self.model.writes) {
                return Ok(());
            }
        }
        Err(format!("invariant_everything_comes_to_rest: {how}, still restarting or writing after 80 hours"))
    }
}

fn startups_in(record: &Value) -> u64 {
    record["startups"].as_array().map_or(0, |startups| startups.len() as u64)
}

fn source_of(node: &Value) -> String {
    let annotation = text(node, "/metadata/annotations/kedge.dev~1config-source");
    if annotation.is_empty() { node["spec"]["configSource"].to_string() } else { annotation.to_owned() }
}

fn about(step: &Step) -> String {
    match step {
        Step::Read(file) => format!("read {}", name(file)),
        Step::Write(file, bytes) => {
            format!("write {}: {}", name(file), String::from_utf8_lossy(bytes).trim_end())
        }
        Step::SetAside(file) => format!("set {} aside", name(file)),
    }
}

fn short(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Read(Read::Content(bytes)) => format!("{} bytes", bytes.len()),
        Outcome::Read(other) => format!("{other:?}"),
        Outcome::Done(Ok(())) => "done".into(),
        Outcome::Done(Err(why)) => why.clone(),
    }
}
