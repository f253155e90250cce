//! Everything that can happen to a node in one state: its own next acts, with a fault at any of its writes,
//! and the acts of the world, of an operator and of the power supply.
//!
//! Always holds: the agent is the real core over the fake board; an act ends when the agent only waits; the
//! one renewal of a tick is under way for all of it and is answered, or fails, at its end. Leaves to others:
//! the invariants.

use crate::cast::{Cast, Config, Nature, TICK};
use crate::scenarios::{Fault, Scenario};
use crate::state::{End, Records, State};
use kedge_core::config::records::{Read, StateFile};
use kedge_core::{Answer, Event, Outcome, Request, Step};
use kedge_sim::disk::name;
use kedge_sim::hub::NAMESPACE;
use kedge_sim::{NODE, WALL_MICROS, node_event};
use serde_json::json;
use std::time::Duration;

/// After this much of a tick the core tries everything again that failed: its pauses are over.
const PAUSES: Duration = Duration::from_secs(61);
/// Runs in a row that end by crashes in a storm: a proven config is held twice, each time after eleven.
const STORM: usize = 24;
/// Runs in a row that are cut at once in a brownout: a config is tried twice, and tolerates 28 cuts each
/// time.
const BROWNOUT: usize = 60;

/// Available memory of 1 GiB: too little for a config with a high threshold, and too little for every config.
const ENOUGH: u64 = 400 << 20;
const SHORT: u64 = 50 << 20;

/// A node's own acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// It starts.
    Start,
    /// It reads its Node, and the object to which the Node refers.
    Follow,
    /// A tick passes.
    Tick,
    /// It gets an order to stop.
    Stop,
    /// Somebody forgives every config that has a verdict.
    Forgive,
}

/// A fault within a program. Writes are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Nothing,
    /// The power fails before this write.
    Cut(usize),
    /// The process is killed before this write.
    Kill(usize),
    /// This write fails.
    FailOne(usize),
    /// This write and all later ones fail.
    FailFrom(usize),
}

impl Trouble {
    fn stops_before(self, write: usize) -> bool {
        matches!(self, Self::Cut(at) | Self::Kill(at) if at == write)
    }

    fn fails(self, write: usize) -> bool {
        matches!(self, Self::FailOne(at) if at == write) || matches!(self, Self::FailFrom(at) if write >= at)
    }

    fn text(self) -> String {
        match self {
            Self::Nothing => String::new(),
            Self::Cut(at) => format!(", POWER CUT before write {}", at + 1),
            Self::Kill(at) => format!(", KILLED before write {}", at + 1),
            Self::FailOne(at) => format!(", write {} FAILS", at + 1),
            Self::FailFrom(at) => format!(", writes from {} on FAIL", at + 1),
        }
    }
}

/// The kind of a step in the fault-free future.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Start,
    Tick,
    Other,
}

/// The result of one act.
pub(crate) struct Done {
    pub(crate) kind: Kind,
    pub(crate) text: String,
    /// The config that ran in it.
    pub(crate) config: Option<Config>,
    /// A renewal was accepted.
    pub(crate) heard: bool,
}

pub(crate) struct Stage {
    pub(crate) scenario: &'static Scenario,
    pub(crate) cast: Cast,
    /// Every config counts as good, while a scenario's first state is made.
    pub(crate) is_tame: bool,
}

/// A program under way.
struct Run<'a> {
    stage: &'a Stage,
    state: &'a mut State,
    trouble: Trouble,
    writes: usize,
    /// The fault ended it.
    is_stopped: bool,
    /// The parser killed the process.
    is_killed_by_parser: bool,
    renewals: u32,
    failed: Vec<&'static str>,
}

impl Run<'_> {
    fn handle(&mut self, event: Event) {
        self.state.node.handle(event);
    }

    fn pass(&mut self, time: Duration) {
        self.state.node.advance(time);
        self.state.node.board.set_wall(WALL_MICROS);
    }

    fn is_over(&self) -> bool {
        self.is_stopped || self.is_killed_by_parser || self.state.node.exited()
    }

    /// Performs the agent's orders until it waits; those of the network only if `network` is given: whether
    /// requests are answered.
    fn rest(&mut self, network: Option<bool>) {
        loop {
            if self.stage.nature(self.state) == Some(Nature::KillsParser) {
                self.is_killed_by_parser = true;
            }
            if self.is_over() || !(self.do_disk() || self.state.node.do_facts() || self.do_network(network)) {
                return;
            }
        }
    }

    fn do_disk(&mut self) -> bool {
        let process = self.state.node.process.as_ref();
        let write = match process.and_then(|process| process.step.as_ref()) {
            None => return false,
            Some(Step::Write(file, _)) => Some(name(file)),
            Some(_) => None,
        };
        let Some(write) = write else { return self.state.node.do_step() };
        let number = self.writes;
        if self.trouble.stops_before(number) {
            self.is_stopped = true;
            return true;
        }
        self.writes += 1;
        if !self.trouble.fails(number) {
            return self.state.node.do_step();
        }
        self.failed.push(write);
        self.state.node.process.as_mut().expect("it asked for this step").step = None;
        self.handle(Event::StepDone(Outcome::Done(Err("input/output error".into()))));
        true
    }

    fn do_network(&mut self, network: Option<bool>) -> bool {
        let Some(works) = network else { return false };
        let failed = || Answer::Failed("no route to host".into());
        let process = self.state.node.process.as_mut().expect("it is not over");
        if !process.requests.is_empty() {
            let request = process.requests.remove(0);
            let accepted = match request {
                Request::Version => Some(json!({"gitVersion": "v1.34.0+kedge-0.1.0"})),
                _ => None,
            };
            let answer = if works { Answer::Accepted(accepted) } else { failed() };
            self.handle(Event::Answered(request.key(), answer));
            return true;
        }
        if process.renewal.take().is_some() {
            self.renewals += u32::from(works);
            self.handle(Event::Renewed(if works { Answer::Accepted(None) } else { failed() }));
            return true;
        }
        works && self.show_map()
    }

    /// Shows the watched object, if a list of it was ordered.
    fn show_map(&mut self) -> bool {
        let state = &mut *self.state;
        let process = state.node.process.as_ref().expect("it is not over");
        let (server, objects) = (state.server as u64, state.objects[state.server]);
        let now = (process.map_round(), objects);
        let Some((_, name)) = process.watched.clone().filter(|_| state.shown != now) else { return false };
        let is_list = state.shown.0 != now.0;
        state.shown = now;
        let object = self.stage.cast.object(&name, server, objects);
        state.node.show_map(NAMESPACE, &name, object, is_list);
        true
    }

    fn perform(&mut self, program: Program) {
        match program {
            Program::Start => self.start(),
            Program::Follow => self.follow(),
            Program::Tick => self.tick(),
            Program::Stop => {
                self.handle(Event::Stop("asked to stop".into()));
                self.rest(None);
            }
            Program::Forgive => self.forgive(),
        }
    }

    fn start(&mut self) {
        let state = &mut *self.state;
        if self.stage.scenario.drifts {
            state.layer = (state.layer + 1) % crate::cast::LAYERS;
        }
        state.node.local = self.stage.cast.local(state.layer);
        // every start uses the seed of the first, so that jitter never distinguishes two states
        state.node.starts = 0;
        state.node.board.set_wall(WALL_MICROS);
        state.node.launch();
        (state.read, state.shown, state.is_old, state.quiet) = (None, Default::default(), false, 0);
        state.is_news = false;
        self.rest(None);
    }

    fn follow(&mut self) {
        let state = &mut *self.state;
        let server = state.server as u64;
        if state.wants_something() {
            state.ghost.asked.insert(server);
        }
        state.read = Some((state.server, state.asks(), state.objects[state.server]));
        let mut node = json!({
            "metadata": {"name": NODE, "uid": node_uid(state.server), "resourceVersion": "7"},
            "spec": {},
            "status": {},
        });
        let source = Cast::source(state.asks());
        if !source.is_null() {
            node["spec"]["configSource"] = source;
        }
        if self.stage.scenario.asks_to_forgive {
            let object = self.stage.cast.object("a", state.server as u64, state.objects[state.server]);
            node["metadata"]["annotations"] = json!({"kedge.dev/forgive": object["metadata"]["uid"]});
        }
        self.handle(node_event(&node));
        self.rest(Some(true));
    }

    fn tick(&mut self) {
        let heard = self.stage.has_contact(self.state, self.state.link);
        self.pass(PAUSES);
        self.handle(Event::Tick);
        self.rest(None);
        if self.is_over() {
            return;
        }
        self.pass(TICK - PAUSES);
        let process = self.state.node.process.as_mut().expect("it is not over");
        if process.renewal.take().is_some() {
            self.renewals += u32::from(heard);
            let failed = || Answer::Failed("no route to host".into());
            self.handle(Event::Renewed(if heard { Answer::Accepted(None) } else { failed() }));
            self.rest(None);
        }
        if !self.is_over() {
            self.handle(Event::Tick);
            self.rest(Some(heard));
        }
    }

    fn forgive(&mut self) {
        let path = StateFile::BadConfigs.path(&self.state.node.version);
        let list = self.state.node.file(&path).unwrap_or_default();
        let mut uids: Vec<String> =
            list.as_object().into_iter().flatten().map(|(uid, _)| uid.clone()).collect();
        if uids.is_empty() {
            uids.push("any".into());
        }
        for uid in uids {
            self.handle(Event::Forgive(uid));
            self.rest(None);
            if self.is_over() {
                return;
            }
        }
    }
}

/// UID of this server's Node.
pub(crate) fn node_uid(server: usize) -> String {
    format!("node-{server}")
}

impl State {
    /// Status and reason of the condition, while something runs.
    pub(crate) fn condition(&self) -> Option<(&'static str, String)> {
        let report = self.node.process.as_ref()?.node.report(self.node.now())?;
        Some((report.config.condition.status, report.config.condition.reason))
    }

    fn wants_something(&self) -> bool {
        self.asks() != crate::cast::LOCAL
    }

    /// The agent has ended.
    fn down(&mut self, end: End) {
        match end {
            End::Clean => self.node.exit(),
            End::Crash => self.node.crash(),
            End::Panic => {
                self.node.power_cut();
                self.node.board.kernel_panic();
            }
            End::Cut => {
                self.node.power_cut();
            }
        }
        if end == End::Cut {
            self.ghost.cuts = self.ghost.cuts.saturating_add(1);
        }
        (self.end, self.read, self.is_old, self.quiet) = (end, None, false, 0);
    }

    pub(crate) fn left(&self, fault: Fault) -> u8 {
        self.left[fault as usize]
    }

    fn spend(&mut self, fault: Fault) {
        self.left[fault as usize] -= 1;
    }

    /// An operator acted: starts before that do not count against any config.
    fn acted(&mut self, lifts_bans: bool) {
        self.ghost.starts.clear();
        self.ghost.cuts = 0;
        if lifts_bans {
            self.ghost.banned.clear();
        }
    }
}

impl Stage {
    /// The nature of the running config.
    fn nature(&self, state: &State) -> Option<Nature> {
        let config = state.running(&self.cast)?;
        Some(if self.is_tame { Nature::Good } else { self.cast.nature(config, state.layer) })
    }

    /// Whether the running config reaches the server, over a link that is up or not.
    pub(crate) fn has_contact(&self, state: &State, link: bool) -> bool {
        link && match self.nature(state) {
            Some(Nature::Lost) => false,
            Some(Nature::LostLater) => !state.is_old,
            _ => true,
        }
    }

    /// Whether the running config ends its runs by itself.
    pub(crate) fn nature_ends_runs(&self, state: &State) -> bool {
        self.nature(state).is_some_and(Nature::ends_runs)
    }

    /// How the running config ends its run at once, if it does.
    fn ends_at_once(&self, state: &State) -> Option<End> {
        match self.nature(state)? {
            Nature::Crashes => Some(End::Crash),
            Nature::Panics => Some(End::Panic),
            Nature::Resets => Some(End::Cut),
            _ => None,
        }
    }

    /// Whether the Node, or the object to which it refers, differs from the one that this run has read.
    fn has_news(&self, state: &State) -> bool {
        state.read != Some((state.server, state.asks(), state.objects[state.server]))
    }

    /// The node's own next step, without faults.
    pub(crate) fn step(&self, state: &mut State, link: bool) -> Done {
        state.link = link;
        if state.node.process.is_none() {
            return self.perform(state, Program::Start, Trouble::Nothing).0;
        }
        if let Some(end) = self.ends_at_once(state) {
            return self.ended(state, end);
        }
        let follows = self.has_contact(state, link) && self.has_news(state);
        let program = if follows { Program::Follow } else { Program::Tick };
        self.perform(state, program, Trouble::Nothing).0
    }

    fn ended(&self, state: &mut State, end: End) -> Done {
        let config = state.running(&self.cast);
        let text = format!("{} ends its run: {end:?}", config.unwrap_or('?'));
        state.down(end);
        Done { kind: Kind::Other, text, config, heard: false }
    }

    /// Performs a program; also returns the number of its writes.
    fn perform(&self, state: &mut State, program: Program, trouble: Trouble) -> (Done, usize) {
        let begun = state.running(&self.cast);
        let mut run = Run {
            stage: self,
            state,
            trouble,
            writes: 0,
            is_stopped: false,
            is_killed_by_parser: false,
            renewals: 0,
            failed: Vec::new(),
        };
        run.perform(program);
        let Run { is_stopped, is_killed_by_parser, writes, renewals, failed, .. } = run;
        // a start has no config in use before, all other programs may end it
        let config = begun.or(state.running(&self.cast));
        self.note_time(state, program, renewals > 0);
        let mut text = self.told(state, program, begun, trouble, renewals > 0);
        let written = state.node.disk.take_written();
        if !written.is_empty() {
            text.push_str(&format!(" [wrote {}]", written.join(", ")));
        }
        if !failed.is_empty() {
            text.push_str(&format!(" [failed: {}]", failed.join(", ")));
        }
        match trouble {
            Trouble::Cut(_) if is_stopped => state.down(End::Cut),
            _ if is_stopped || is_killed_by_parser => state.down(End::Crash),
            _ if state.node.exited() => {
                let why = state.node.process.as_ref().and_then(|process| process.exit.clone());
                text.push_str(&format!("; exits: {}", why.unwrap_or_default()));
                state.down(End::Clean);
            }
            _ if program == Program::Tick && self.nature(state) == Some(Nature::CrashesLate) => {
                text.push_str("; it crashes late");
                state.down(End::Crash);
            }
            _ => {}
        }
        let kind = match program {
            Program::Start => Kind::Start,
            Program::Tick => Kind::Tick,
            _ => Kind::Other,
        };
        (Done { kind, text, config, heard: renewals > 0 }, writes)
    }

    fn note_time(&self, state: &mut State, program: Program, is_renewed: bool) {
        let Some(config) = state.running(&self.cast) else { return };
        if program == Program::Start {
            let starts = state.ghost.starts.entry(config).or_default();
            *starts = starts.saturating_add(1).min(120);
        }
        let quiet = state.ghost.quiet.entry(config).or_insert(9);
        if is_renewed {
            (*quiet, state.quiet) = (0, 0);
        } else if program == Program::Tick {
            *quiet = (*quiet + 1).min(9);
            state.quiet = (state.quiet + 1).min(9 + state.trial_ticks as u8);
        }
        state.is_old |= program == Program::Tick;
        state.is_news &= program != Program::Tick;
    }

    fn told(
        &self,
        state: &State,
        program: Program,
        begun: Option<Config>,
        trouble: Trouble,
        is_renewed: bool,
    ) -> String {
        let trouble = trouble.text();
        let runs = |config: Option<Config>| config.map_or_else(|| "nothing".to_owned(), String::from);
        match program {
            Program::Start => {
                let used = state.running(&self.cast);
                let (status, reason) = state.condition().unwrap_or_default();
                format!("start{trouble} -> {} {status} ({reason})", runs(used))
            }
            Program::Follow => {
                format!("{} reads that the Node asks for {}{trouble}", runs(begun), state.asks())
            }
            Program::Tick if is_renewed => format!("tick under {}, heard{trouble}", runs(begun)),
            Program::Tick => format!("tick under {}, silent{trouble}", runs(begun)),
            Program::Stop => format!("planned stop{trouble}"),
            Program::Forgive => format!("FORGIVE{trouble}"),
        }
    }

    // ------------------------------------------------------------------------------------------ everything
    // that can happen

    /// A program without a fault, and with a cut, a kill or failing writes at every place, as far as the
    /// state allows.
    fn each_trouble(&self, state: &State, program: Program, out: &mut Vec<(Done, State)>) -> usize {
        let mut next = state.fork();
        let (done, writes) = self.perform(&mut next, program, Trouble::Nothing);
        out.push((done, next));
        for (fault, troubles) in [
            (Fault::Cut, [Some(Trouble::Cut as fn(usize) -> Trouble), None]),
            (Fault::Kill, [Some(Trouble::Kill), None]),
            (Fault::Fail, [Some(Trouble::FailOne), Some(Trouble::FailFrom)]),
        ] {
            if state.left(fault) == 0 {
                continue;
            }
            for (trouble, at) in
                troubles.into_iter().flatten().flat_map(|trouble| (0..writes).map(move |at| (trouble, at)))
            {
                let mut next = state.fork();
                next.spend(fault);
                let (done, _) = self.perform(&mut next, program, trouble(at));
                out.push((done, next));
            }
        }
        writes
    }

    /// Everything that can happen in this state.
    pub(crate) fn successors(&self, state: &State) -> Vec<(Done, State)> {
        let mut out = Vec::new();
        if state.node.process.is_none() {
            self.each_trouble(state, Program::Start, &mut out);
            if state.end != End::Cut {
                self.act(state, Fault::Cut, &mut out, |next| {
                    next.down(End::Cut);
                    "power cut while stopped".into()
                });
            }
            self.operator_acts(state, &mut out);
            return out;
        }
        if let Some(end) = self.ends_at_once(state) {
            let mut next = state.fork();
            out.push((self.ended(&mut next, end), next));
            return out;
        }
        let has_contact = self.has_contact(state, state.link);
        if has_contact && self.has_news(state) {
            self.each_trouble(state, Program::Follow, &mut out);
        }
        if !has_contact || state.read.is_some() {
            self.each_trouble(state, Program::Tick, &mut out);
        }
        self.world_acts(state, &mut out);
        self.operator_acts(state, &mut out);
        out
    }

    /// One act that uses up one of the scenario's faults.
    fn act(
        &self,
        state: &State,
        fault: Fault,
        out: &mut Vec<(Done, State)>,
        act: impl FnOnce(&mut State) -> String,
    ) {
        if state.left(fault) > 0 {
            let mut next = state.fork();
            next.spend(fault);
            let config = state.running(&self.cast);
            let text = act(&mut next);
            out.push((Done { kind: Kind::Other, text, config, heard: false }, next));
        }
    }

    fn world_acts(&self, state: &State, out: &mut Vec<(Done, State)>) {
        for (fault, end, text) in [
            (Fault::Cut, End::Cut, "power cut"),
            (Fault::Crash, End::Crash, "it crashes"),
            (Fault::Panic, End::Panic, "the machine panics"),
        ] {
            self.act(state, fault, out, |next| {
                next.down(end);
                text.into()
            });
        }
        self.act(state, Fault::Storm, out, |next| self.storm(next, End::Crash, STORM));
        self.act(state, Fault::Brownout, out, |next| self.storm(next, End::Cut, BROWNOUT));
        if state.link {
            self.act(state, Fault::Outage, out, |next| {
                next.link = false;
                "the network goes".into()
            });
        } else {
            let mut next = state.fork();
            next.link = true;
            out.push((
                Done { kind: Kind::Other, text: "the network is back".into(), config: None, heard: false },
                next,
            ));
        }
        self.act(state, Fault::Pressure, out, |next| {
            let is_pressed = next.node.facts.memory_available_bytes == Some(SHORT);
            next.node.facts.memory_available_bytes = Some(if is_pressed { ENOUGH } else { SHORT });
            (next.ghost.was_pressed, next.is_news) = (true, true);
            format!("pressure from outside {}", if is_pressed { "ends" } else { "begins" })
        });
        if state.left(Fault::Garbage) > 0 {
            let path = StateFile::BadConfigs.path(&state.node.version);
            if state.node.disk.content(&path).is_some() {
                self.act(state, Fault::Garbage, out, |next| {
                    next.node.disk.put(&path, b"garbage");
                    next.down(End::Cut);
                    "bad-configs.json becomes unreadable, power cut".into()
                });
            }
        }
        for lost in ["current", "startups.json", "checkpoints/"] {
            self.act(state, Fault::Lose, out, |next| {
                next.node.disk.retain(|path| !(path.ends_with(lost) || path.starts_with(lost)));
                next.down(End::Cut);
                // lost records may have been the proof of a ban
                next.ghost.banned.clear();
                format!("{lost} is LOST, power cut")
            });
        }
        if state.left(Fault::Stop) > 0 {
            let from = out.len();
            self.each_trouble(state, Program::Stop, out);
            out[from..].iter_mut().for_each(|(_, next)| next.spend(Fault::Stop));
        }
    }

    /// Run after run ends at once, until another config runs.
    fn storm(&self, next: &mut State, end: End, most: usize) -> String {
        let config = next.running(&self.cast);
        let mut runs = 0;
        while runs < most && next.running(&self.cast) == config {
            next.down(end);
            self.perform(next, Program::Start, Trouble::Nothing);
            if next.node.process.is_none() {
                break;
            }
            runs += 1;
        }
        let text = format!("{runs} runs in a row end at once ({end:?})");
        let (_, reason) = next.condition().unwrap_or_default();
        match next.running(&self.cast) {
            Some(config) => format!("{text}, then {config} runs ({reason})"),
            None => text,
        }
    }

    fn operator_acts(&self, state: &State, out: &mut Vec<(Done, State)>) {
        for asked in self.scenario.pushes.chars().filter(|asked| *asked != state.asks()) {
            self.act(state, Fault::Push, out, |next| {
                next.asks[next.server] = asked;
                next.acted(false);
                format!("PUSH {asked}")
            });
        }
        self.act(state, Fault::Edit, out, |next| {
            next.objects[next.server] = next.objects[next.server].next();
            next.acted(false);
            "A's object is EDITED or made anew".into()
        });
        self.act(state, Fault::Server, out, |next| {
            (next.server, next.read) = (1 - next.server, None);
            next.node.change_server();
            next.acted(false);
            "ANOTHER SERVER".into()
        });
        if state.node.process.is_none() {
            return;
        }
        self.act(state, Fault::Upgrade, out, |next| {
            self.perform(next, Program::Stop, Trouble::Nothing);
            next.node.version = if next.node.version == "0.1.0" { "0.2.0".into() } else { "0.1.0".into() };
            // each version judges by itself, so bans do not carry over
            next.acted(true);
            "UPGRADE to the other version".into()
        });
        self.act(state, Fault::DropIn, out, |next| {
            self.perform(next, Program::Stop, Trouble::Nothing);
            next.layer = 1 - next.layer;
            next.acted(false);
            "other DROP-INS".into()
        });
        let has_verdicts =
            state.node.disk.content(&StateFile::BadConfigs.path(&state.node.version)).is_some();
        if state.left(Fault::Forgive) > 0 && has_verdicts {
            let from = out.len();
            self.each_trouble(state, Program::Forgive, out);
            for (_, next) in &mut out[from..] {
                next.spend(Fault::Forgive);
                next.acted(true);
            }
        }
    }

    /// The config that a start would choose now, after a clean end.
    pub(crate) fn would_start(&self, state: &State) -> Option<Config> {
        let mut next = state.fork_in_peace();
        if next.node.process.is_some() {
            self.perform(&mut next, Program::Stop, Trouble::Nothing);
        }
        self.perform(&mut next, Program::Start, Trouble::Nothing);
        next.running(&self.cast)
    }

    /// One power-on of at most a tick, ended by a cut.
    pub(crate) fn short_power_on(&self, state: &mut State) {
        let was_off = state.node.process.is_none();
        self.step(state, true);
        if !was_off && state.is_old && state.node.process.is_some() {
            state.down(End::Cut);
        }
    }

    // ------------------------------------------------------------------------------------------ the first
    // state

    /// The initial state of a scenario: its last-known-good and the one before it were earned by trials.
    pub(crate) fn first_state(scenario: &'static Scenario) -> State {
        let stage = Self { scenario, cast: Cast::new(scenario), is_tame: true };
        let mut node = kedge_sim::Node::new(NODE, 1);
        node.local = stage.cast.local(0);
        node.facts.memory_available_bytes = Some(ENOUGH);
        let mut state = State {
            node,
            server: 0,
            asks: [crate::cast::LOCAL, scenario.second_server],
            objects: Default::default(),
            read: None,
            shown: Default::default(),
            link: true,
            layer: if scenario.drifts { crate::cast::LAYERS - 1 } else { 0 },
            is_old: false,
            is_news: false,
            quiet: 0,
            end: End::Clean,
            trial_ticks: scenario.trial_ticks,
            left: [0; crate::scenarios::FAULTS],
            ghost: Default::default(),
        };
        let earned = [scenario.before, scenario.last_known_good];
        for config in earned.into_iter().filter(|config| *config != crate::cast::LOCAL) {
            state.asks[0] = config;
            // the trial, and time for the download, the restart and the promotion
            stage.steps(&mut state, 6 + scenario.trial_ticks);
            let records = Records::of(&state, &stage.cast);
            assert_eq!(records.last_known_good, config, "{}: not earned", scenario.title);
        }
        if scenario.is_preloaded {
            stage.preload(&mut state);
        } else {
            stage.steps(&mut state, 2);
        }
        state.ghost = Default::default();
        state.ghost.asked.insert(0);
        if let Some(config) = state.running(&stage.cast) {
            state.ghost.quiet.insert(config, 0);
        }
        for (fault, most) in scenario.faults {
            state.left[*fault as usize] = *most;
        }
        state
    }

    fn steps(&self, state: &mut State, steps: usize) {
        for _ in 0..steps {
            // drop-ins that change at each start change from the first state on
            self.step(state, true);
        }
    }

    /// As on an image with a config: A is assigned, and was never downloaded.
    fn preload(&self, state: &mut State) {
        state.asks[0] = 'A';
        while Records::of(state, &self.cast).assigned != Some('A') {
            self.step(state, true);
        }
        if state.node.process.is_some() {
            self.perform(state, Program::Stop, Trouble::Nothing);
        }
        let Read::Content(bytes) = state.node.disk.read("current") else { panic!("A was assigned") };
        let mut current: serde_json::Value = serde_json::from_slice(&bytes).expect("it was written as JSON");
        current["downloaded"] = json!(false);
        state.node.disk.put("current", current.to_string().as_bytes());
        let startups = StateFile::Startups.path(&state.node.version);
        state.node.disk.remove(&startups);
        state.node.board.consume_evidence();
        state.link = false;
    }
}
