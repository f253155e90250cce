//! One run of the simulation: a node, a hub and an operator, driven by chance one small act at a time.
//!
//! Always holds: the same seed and mode give the same run; after every act all orders and their results go to
//! the model (the expected state), and the invariants are checked. Leaves to others: the invariants
//! (`invariants`), the expected state (`model`).

use crate::configs::{DROP_IN, Design, Nature, SLOWLY, designs, with_pods};
mod ends;
mod network;
mod observe;
mod operator;
mod steps;

use crate::coverage::Coverage;
use crate::model::{About, Config, Model, about as about_of, checkpoint_path, last_of, startups_in, text};
use crate::mutants::Mutant;
use kedge_core::config::records::{Read, STARTUPS, StateFile};
use kedge_core::kubelet::canonical_overrides;
use kedge_core::{
    Action, Answer, ConfigId, Digest, Event, Exit, Outcome, Report, Request, RequestKey, Step, WatchEnd,
    WatchFailure, Watched,
};
use kedge_platform::fake::{Loss, Operation, Random};
use kedge_sim::disk::{WITHIN_A_WRITE, WriteFault, name};
use kedge_sim::hub::{Flavour, Hub, NAMESPACE, refused};
use kedge_sim::{NODE, Seen, WALL_MICROS, World, map_event, node_event};
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(crate) type Check = Result<(), String>;

/// The events that are possible in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Everything.
    All,
    /// Good configs, and power cuts, but fewer than condemn a config.
    CutsOnly,
    /// Good configs, and one outage of any length.
    OneOutage,
}

/// Cuts in a row that a config survives (rule d).
const CUTS: u32 = 28;
/// More starts than the rules need to condemn everything: crash loops and silent reboots of two configs.
const MANY_STARTS: u64 = 200;
/// Edits of an object's metadata, a minute apart.
const EDITS: u32 = 3;
/// A time in which the disk does not respond, or watches end at once.
const LONG_FAULT: Duration = Duration::from_secs(3600);
/// After this time the guard of a real agent reports to core that the disk stalls.
const STALL_NOTICED: Duration = Duration::from_secs(120);
/// Transitions that few runs reach.
const RARE: [&str; 5] = ["clean-exit", "wait-over", "forgive", "record-verdict", "silent-trial"];
/// Fewest events before the faults of a run stop.
const FEWEST_EVENTS: u64 = 200;
const MAPS: [&str; 3] = ["x", "y", "z"];
/// Key of the second config in an object with two.
const OTHER_KEY: &str = "kubelet-new";
/// A ConfigMap that only another node's Node names.
const ANOTHERS_MAP: &str = "another";
const VERSIONS: [&str; 2] = ["0.1.0", "0.2.0"];
/// A stretch without a start and without a write after which nothing more is expected: everything that a node
/// does by itself, a save of progress or another try of a write or of a request, comes within five minutes.
pub(crate) const CALM: Duration = Duration::from_secs(2400);
/// Most such stretches until one must be calm. A proven config that crashes late in its trial of an hour is
/// set aside after 22 crashes, 20 hours; with a fallback's trial of a minute it takes eight of these until
/// the following wait is a calm stretch.
const LONGEST_UNREST: usize = 360;
/// How often [`CALM`] fits into the longest silence of a trial: a day, plus the random extension of patience.
const LONGEST_SILENCE: u32 = 45;
const TWENTY_YEARS_MICROS: i64 = 20 * 365 * 24 * 3600 * 1_000_000;

/// The state of the network and the API server while the link is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    Fine,
    /// Requests arrive, but their answers do not.
    HalfDead,
    /// Watches are open, but silent.
    Silent,
    /// The server refuses everybody as too busy.
    Busy,
    /// Each watch shows its list, and ends at once.
    Ending,
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
    /// When the config in use will end its run.
    late: Option<Duration>,
    local_invalid: bool,
    /// The config that ran last is proven, and rebooted the board silently as soon as it was used. To the
    /// agent these are power cuts, which set no proven config aside.
    spared: bool,
    /// Those reboots continue without end: the one case in which a run never becomes calm.
    is_restless: bool,
    /// The current start wrote a verdict.
    verdict_now: bool,
    old_nodes: Vec<Value>,
    pub(crate) old_maps: Vec<(String, Value)>,
    /// Requests of a dead agent, still on their way.
    orphans: Vec<Request>,
    cuts_left: u32,
    outages_left: u32,
    network: Network,
    /// The board keeps time while it has no power.
    has_clock: bool,
    /// A backup of the hub.
    backup: Option<Hub>,
    /// Files that the simulation damaged: that the others are readable is due to how they were written.
    pub(crate) damaged: BTreeSet<String>,
    /// Files that an agent had read, or whose write was reported as done, and that a cut removed.
    pub(crate) taken_back: Vec<String>,
    /// The record of the assignment, as last read or written.
    assigned: Option<Vec<u8>>,
    /// The counts that the mutant puts back.
    returning: Option<Vec<u8>>,
    /// The transition that was under way at the last check.
    under_way: Option<&'static str>,
    /// The note in the last list of verdicts about the Node's request to forgive.
    noted: Value,
    /// When the hub last accepted a renewal.
    pub(crate) renewed_at: Duration,
    /// Requests since the beginning of the last possibly calm stretch, without renewals and events.
    pub(crate) requests: BTreeMap<RequestKey, u32>,
    /// Rounds of watches ordered since then.
    pub(crate) rounds: u32,
    /// The disk does not respond.
    stalled: bool,
    /// Something rewrites a drop-in before each start.
    rewrites_drop_in: bool,
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
        // the invariant must notice its broken promise, before the world's own checks do
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
            spared: false,
            is_restless: false,
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
            noted: Value::Null,
            renewed_at: Duration::ZERO,
            requests: BTreeMap::new(),
            rounds: 0,
            stalled: false,
            rewrites_drop_in: false,
            events: 0,
            settling: false,
        };
        simulation.has_clock = simulation.random.percent(60);
        simulation.rewrites_drop_in = mode == Mode::All && simulation.random.percent(15);
        simulation.world.disk.syncs_files = mutant != Some(Mutant::ContentsNotSynced);
        simulation.world.disk.syncs_directories = mutant != Some(Mutant::NamesNotSynced);
        simulation.world.disk.settles_directories = mutant != Some(Mutant::NamesNotSettled);
        simulation.world.disk.sweeps = mutant != Some(Mutant::NothingSwept);
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

    /// Runs for some acts, and at least `FEWEST_EVENTS` events, then stops the faults and waits until the run
    /// is calm.
    pub(crate) fn run(&mut self, acts: u64) -> Check {
        let mut done = 0;
        while done < acts || self.events < FEWEST_EVENTS {
            self.act()?;
            done += 1;
        }
        let settled = self.settle();
        self.count_excuses();
        settled
    }

    fn count_excuses(&mut self) {
        if self.model.tampered {
            self.hit("excuse", "files touched");
        }
        if self.has_unclear_verdicts() {
            self.hit("excuse", "verdicts unclear");
        }
        for (why, times) in std::mem::take(&mut self.model.excuses) {
            self.coverage.hit_times("excuse", why, times);
        }
    }

    // ------------------------------------------------------------------------------------------ one act

    fn act(&mut self) -> Check {
        if self.mode == Mode::All && self.random.percent(2) {
            self.touch_files();
            return self.observe();
        }
        // files pile up only after many pushes
        let operators_percent = if self.mutant == Some(Mutant::NothingSwept) { 30 } else { 6 };
        if self.random.percent(operators_percent) {
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
            36 if self.mode == Mode::All && self.random.percent(self.chance_of_a_stall()) => self.stall(),
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
        if self.rewrites_drop_in && !self.local_invalid {
            self.hit("fault", "drop-ins change at each start");
            self.mend_local();
        }
        self.overrides = canonical_overrides(&self.world.local).unwrap_or_default();
        self.hit("event", "Start");
        if self.mutant == Some(Mutant::RunsNotCounted)
            && let Some(exit) = self.world.board.previous_run().exit
        {
            self.world.board.record_exit(Exit { run: 0, ..exit });
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

    /// One of the agent's pending orders is performed.
    fn act_pending(&mut self) -> Check {
        let process = self.world.process.as_ref().expect("it runs");
        let step = process.step.is_some();
        let others =
            [process.facts_wanted, !process.requests.is_empty(), process.renewal.is_some(), self.link()];
        // most of the time the disk is fast and the network slow
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

    // ------------------------------------------------------------------------------------------ time

    fn pass_time(&mut self, time: Duration) {
        self.world.advance(time);
    }

    fn pass_to_deadline(&mut self) -> Check {
        if self.mode != Mode::All {
            // in a good world no time passes while a request waits for its answer
            self.prompt(Duration::ZERO, false)?;
            if self.world.exited() {
                return Ok(());
            }
        }
        let mono = self.world.mono();
        let deadline = self.world.deadline().unwrap_or(mono + Duration::from_secs(60));
        let mut time = deadline.saturating_sub(mono);
        if self.random.percent(10) {
            time = time * u32::try_from(self.random.below(300)).expect("small") / 100;
        }
        self.tick(time)
    }

    /// Time passes, and the agent gets a tick, unless its config ends it before.
    fn tick(&mut self, time: Duration) -> Check {
        let mono = self.world.mono();
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

    /// Performs everything promptly for a while; with `restart`, the supervisor restarts ended agents.
    fn prompt(&mut self, time: Duration, restart: bool) -> Check {
        let (end, starts) = (self.world.time + time, self.world.starts);
        self.trace(|| format!("everything is prompt for {} s", time.as_secs()));
        loop {
            if self.world.process.is_none() || self.world.exited() {
                if !restart {
                    return Ok(());
                }
                if self.world.starts > starts + MANY_STARTS {
                    // the one loop that the rules allow: see `is_restless`
                    if self.spared {
                        self.trace(|| "A PROVEN CONFIG REBOOTS THE BOARD: nothing ends that".into());
                        self.is_restless = true;
                        return Ok(());
                    }
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
            let mono = self.world.mono();
            let left = end - self.world.time;
            let wait = self
                .world
                .deadline()
                .map_or(left, |at| at.saturating_sub(mono).max(Duration::from_millis(1)).min(left));
            self.tick(wait)?;
        }
    }

    /// Performs the agent's first pending order, in a real agent's sequence. Returns whether there was one.
    fn do_next_pending(&mut self) -> Result<bool, String> {
        let Some(process) = &self.world.process else { return Ok(false) };
        let (step, facts, requests, renewal) = (
            process.step.is_some(),
            process.facts_wanted,
            !process.requests.is_empty(),
            process.renewal.is_some(),
        );
        // the disk's thread also reads the host's facts
        if step && !self.stalled {
            self.do_step()?;
        } else if facts && !self.stalled {
            self.do_facts()?;
        } else if requests {
            self.do_request()?;
        } else if renewal && !(self.stalled && self.mutant == Some(Mutant::StallSilences)) {
            self.do_renewal()?;
        } else {
            let before = self.world.seen.len();
            let shown = self.shows_news();
            debug_assert_eq!(before, 0);
            if shown {
                return self.do_watches().map(|()| true);
            }
            return if self.end_watches() { self.observe().map(|()| true) } else { Ok(false) };
        }
        Ok(true)
    }

    /// Whether a watch has something to show, and shows it.
    fn shows_news(&self) -> bool {
        self.link() && self.network != Network::Silent && self.world.has_news()
    }

    // ------------------------------------------------------------------------------------------ rest

    /// The faults stop: the run must become calm, first perhaps without a network, then with one.
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
            // one outage is allowed: it is under way, or has not begun
            Mode::OneOutage => !self.world.link || self.outages_left > 0,
        };
        if may_be_down && (self.random.percent(25) || self.mutant == Some(Mutant::ManyOutages)) {
            self.world.link = false;
            self.come_to_rest("without a network")?;
        }
        self.world.link = true;
        self.world.list_again();
        self.come_to_rest("with a network")?;
        if self.is_restless {
            return Ok(());
        }
        self.invariants_at_rest()?;
        self.edit_metadata_at_rest()?;
        self.watch_in_vain_at_rest()
    }

    /// A proxy ends every watch as soon as it is open: the agent must open it ever more rarely.
    fn watch_in_vain_at_rest(&mut self) -> Check {
        // an hour of rounds is expensive, so few runs have it; runs of a mutant always do
        if !self.link() || self.mutant.is_none() && self.random.percent(75) {
            return Ok(());
        }
        self.network = Network::Ending;
        self.world.list_again();
        self.requests.clear();
        self.rounds = 0;
        self.prompt(LONG_FAULT, true)?;
        self.invariant_a_watch_in_vain_is_opened_rarely()
    }

    /// Somebody edits the metadata of the assigned object every minute, and its payload stays.
    fn edit_metadata_at_rest(&mut self) -> Check {
        let watched = self.world.process.as_ref().and_then(|process| process.watched.clone());
        let Some((_, name)) = watched.filter(|_| self.link() && self.waits_for_nothing()) else {
            return Ok(());
        };
        let Some(map) = self.world.hub.config_map(&name) else { return Ok(()) };
        self.hit("event", "metadata edited at rest");
        let before = (self.world.starts, self.model.writes);
        for _ in 0..EDITS {
            let mut data = map["data"].clone();
            if self.mutant == Some(Mutant::EditsAreContent) {
                let other = self.designs.iter().find(|design| data["kubelet"] != json!(design.payload));
                data["kubelet"] = json!(other.expect("there are several").payload);
            }
            self.world.hub.push_data(&name, data);
            self.prompt(Duration::from_secs(60), true)?;
        }
        self.invariant_metadata_edits_write_nothing(before)
    }

    /// The running config is the assigned one, and no earlier progress remains to be saved.
    fn waits_for_nothing(&self) -> bool {
        let is_held = self.world.startups()["hold"] == true;
        let is_good =
            |report: &Report| report.config.state == "known-good" && report.config.condition.status == "True";
        !is_held && self.report().is_some_and(|report| is_good(&report))
    }

    /// There must be a stretch without a start and without a write.
    fn come_to_rest(&mut self, how: &str) -> Check {
        let mut calm = 0;
        for _ in 0..LONGEST_UNREST {
            let (starts, writes) = (self.world.starts, self.model.writes);
            let bytes = self.model.bytes_written;
            self.requests.clear();
            self.rounds = 0;
            self.prompt(CALM, true)?;
            self.invariant_flash_is_spared((starts, writes, bytes))?;
            calm = if starts == self.world.starts { calm + 1 } else { 0 };
            // a silent trial writes rarely, and may last a day
            let is_in_trial = self.report().is_some_and(|report| report.config.state == "trial");
            let is_calm = (starts, writes) == (self.world.starts, self.model.writes);
            if self.is_restless || is_calm && (!is_in_trial || calm > LONGEST_SILENCE) {
                return Ok(());
            }
        }
        Err(format!("invariant_everything_comes_to_rest: {how}, still restarting or writing after 240 hours"))
    }
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
