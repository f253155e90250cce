//! One node: a board around the core of one agent, with a disk, a supervisor, clocks and a link to the hub.
//!
//! Always holds: actions are performed only on the test's command or in the order of a real agent; every
//! action and every performed step is kept in `seen`; two steps at once end the test. Nothing here knows the
//! rules that it tests. Leaves the hub and the passing of time to [`crate::World`].

use crate::HEADER;
use crate::board::Board;
use crate::checks::{self, Asked};
use crate::containers::Containers;
use crate::credential::Credential;
use crate::disk::Disk;
use crate::hub::Hub;
use crate::machine::Machine;
use crate::programs::Programs;
use crate::watch::{News, Watch};
use kedge_api::Timestamp;
use kedge_core::config::records::{Read, StateFile};
use kedge_core::kubelet::{Capacity, LayerText, LocalLayers, Origin};
use kedge_core::system::Slots;
use kedge_core::{
    Action, Answer, Collection, Core, Decommission, Event, Exit, HostFacts, ImageState, LeaseRequest, Level,
    Listing, Now, Options, Outcome, Phase, PodNetworks, Report, Request, RequestKey, Runtime, Step, WatchEnd,
    WatchFailure, Watched,
};
use kedge_hub_core::kinds::{CONFIG_MAP, NODE};
use kedge_platform::fake::{Loss, Losses};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// The answer to actions that a node without containers never orders.
const NO_RUNTIME: &str = "this node has no runtime";

/// Something that happened, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    /// The core asked for it.
    Asked(Action),
    /// A file step was performed.
    Performed(Step, Outcome),
}

/// A running agent, and its pending orders.
pub struct Process {
    pub node: Core,
    /// Gets the same events, if every promise is checked: it must return the same actions.
    twin: Option<Core>,
    asked: Asked,
    pub step: Option<Step>,
    pub facts_wanted: bool,
    pub requests: Vec<Request>,
    pub renewal: Option<(LeaseRequest, Duration)>,
    /// A record of a decommissioning on its way to the disk.
    pub leaving: Option<Decommission>,
    /// State is to be removed.
    pub removes: bool,
    node_watch: Option<Watch>,
    /// Namespace and name of the ConfigMap that is watched.
    pub watched: Option<(String, String)>,
    map_watch: Option<Watch>,
    pods_watch: Option<PodsWatch>,
    node_round: u64,
    map_round: u64,
    pods_round: u64,
    pub exit: Option<String>,
    /// `maxPods` of the configuration in use.
    pub used: Option<u32>,
    /// Whether it got SIGTERM or an order to stop.
    pub stop_asked: bool,
}

impl Process {
    /// The same process at the same moment; its watches begin again with a list.
    fn fork(&self) -> Self {
        let anew = |watch: &Option<Watch>| watch.as_ref().map(Watch::anew);
        Self {
            node: self.node.clone(),
            twin: self.twin.clone(),
            asked: self.asked.clone(),
            step: self.step.clone(),
            facts_wanted: self.facts_wanted,
            requests: self.requests.clone(),
            renewal: self.renewal.clone(),
            leaving: self.leaving.clone(),
            removes: self.removes,
            node_watch: anew(&self.node_watch),
            watched: self.watched.clone(),
            map_watch: anew(&self.map_watch),
            pods_watch: self.pods_watch.as_ref().map(|_| PodsWatch::default()),
            node_round: self.node_round,
            map_round: self.map_round,
            pods_round: self.pods_round,
            exit: self.exit.clone(),
            used: self.used,
            stop_asked: self.stop_asked,
        }
    }

    /// The current round of the ConfigMap's watch, counted from 1.
    pub fn map_round(&self) -> u64 {
        self.map_round
    }
}

/// A watch of the pods bound to the node. It shows the differences to what it showed before, so several
/// changes of one pod may appear as one.
#[derive(Default)]
struct PodsWatch {
    /// Each pod with its version, by its UID; `None`: a list is due.
    shown: Option<BTreeMap<String, Value>>,
    /// The hub's count of changes when everything was shown.
    looked_at: Option<u64>,
}

/// Everything around the core of one agent.
pub struct Node {
    pub name: String,
    pub disk: Disk,
    pub link: bool,
    /// The watch of the pods delays its changes meanwhile.
    pub watch_is_late: bool,
    pub board: Board,
    pub version: String,
    pub local: LocalLayers,
    pub dynamic: bool,
    pub facts: HostFacts,
    /// `--node-labels`.
    pub labels: BTreeMap<String, String>,
    /// The slot of the running disk image.
    pub slot: Option<String>,
    /// `None` if it has no slots.
    pub machine: Option<Machine>,
    /// `None` if no program lies beside the packaged one.
    pub programs: Option<Programs>,
    /// The record of a decommissioning on its disk.
    pub decommission: Option<Decommission>,
    /// How often state was removed for that.
    pub removals: u32,
    pub process: Option<Process>,
    /// `None` if it runs no pods.
    pub containers: Option<Containers>,
    /// `None` if it needs none.
    pub credential: Option<Credential>,
    pub seen: Vec<Seen>,
    pub log: Vec<String>,
    /// Number of complete ConfigMaps that the agent has read.
    pub downloads: usize,
    pub starts: u64,
    pub seed: u64,
    /// The speed of the agent's monotonic clock, in percent: 100 is right.
    pub hurry_percent: u32,
    /// The agent's requests and actions are checked. Off in worlds that lie to it, because then it may order
    /// anything.
    pub checked: bool,
    /// Also runs the checks that are too expensive for thousands of runs.
    pub thorough: bool,
}

impl Node {
    /// A new board with nothing on it. Not started.
    pub fn new(name: &str, seed: u64) -> Self {
        Self {
            name: name.to_owned(),
            disk: Disk::new(),
            link: true,
            watch_is_late: false,
            board: Board::default(),
            version: "0.1.0".into(),
            local: LocalLayers::default(),
            dynamic: true,
            facts: host_facts(name),
            labels: BTreeMap::new(),
            slot: None,
            machine: None,
            programs: None,
            decommission: None,
            removals: 0,
            process: None,
            containers: None,
            credential: None,
            seen: Vec::new(),
            log: Vec::new(),
            downloads: 0,
            starts: 0,
            seed,
            hurry_percent: 100,
            checked: true,
            thorough: false,
        }
    }

    /// Another node with the same history, but an empty log and an empty `seen`: a search tries several
    /// futures of one moment.
    pub fn fork(&self) -> Self {
        Self {
            name: self.name.clone(),
            decommission: self.decommission.clone(),
            disk: self.disk.fork(),
            board: self.board.fork(),
            version: self.version.clone(),
            local: self.local.clone(),
            labels: self.labels.clone(),
            slot: self.slot.clone(),
            machine: self.machine.clone(),
            programs: self.programs.clone(),
            facts: self.facts.clone(),
            process: self.process.as_ref().map(Process::fork),
            containers: self.containers.clone(),
            credential: self.credential.clone(),
            seen: Vec::new(),
            log: Vec::new(),
            ..*self
        }
    }

    pub fn now(&self) -> Now {
        let mono = self.mono() * self.hurry_percent / 100;
        Now { mono, wall: Timestamp::from_micros(self.board.wall_micros()) }
    }

    /// Time since the board booted.
    pub fn mono(&self) -> Duration {
        self.board.mono()
    }

    /// When the agent wants to be woken, by the world's clock.
    pub fn deadline(&self) -> Option<Duration> {
        let process = self.process.as_ref()?;
        Some(process.node.next_deadline(self.now())? * 100 / self.hurry_percent)
    }

    pub fn boot_id(&self) -> String {
        self.board.boot_id().to_owned()
    }

    pub fn advance(&mut self, by: Duration) {
        self.board.advance(by);
        if let Some(process) = &mut self.process {
            process.asked.clear();
        }
    }

    pub fn base(&mut self, fields: &str) {
        let text = format!("{HEADER}{fields}\n").into_bytes();
        self.local.base = Some(LayerText { origin: Origin::File("/etc/kedge/config.yaml".into()), text });
    }

    pub fn drop_in(&mut self, fields: &str) {
        let text = format!("{HEADER}{fields}\n").into_bytes();
        self.local.drop_ins =
            vec![LayerText { origin: Origin::DropIn("/etc/kedge/config.d/10-site.conf".into()), text }];
    }

    // ------------------------------------------------------------------------------------------ the process

    /// Starts the agent and passes it its first event; performs nothing.
    pub fn launch(&mut self) {
        self.try_launch().expect("the local config is valid");
    }

    /// The same with a local config that may be invalid: then the agent refuses to start, with a reason.
    pub fn try_launch(&mut self) -> Result<(), String> {
        assert!(self.process.is_none(), "the agent runs already");
        self.start_program();
        let options = Options {
            node_name: self.name.clone(),
            version: self.version.clone(),
            local: LocalLayers { capacity: capacity_of(&self.facts), ..self.local.clone() },
            dynamic_config: self.dynamic && self.serves_pods(),
            node_labels: self.labels.clone(),
            slot: self.slot.clone(),
            slots: self.slots(),
            decommission: self.decommission.clone(),
            boot_id: self.boot_id(),
            previous_run: self.board.previous_run(),
            // another seed at each start, as on a real board, so that jitter differs between runs
            seed: self.seed.wrapping_add(self.starts),
        };
        let of_twin = self.thorough.then(|| options.clone());
        let mut node = Core::new(options, self.now()).map_err(|error| error.report())?;
        let mut twin =
            of_twin.map(|options| Core::new(options, self.now()).expect("the same options were right"));
        if self.decommission.as_ref().is_some_and(|record| record.phase == Phase::Leaving) {
            // its identity is gone
            self.link = false;
        }
        let serves = self.serves_pods();
        if let Some(containers) = self.containers.as_mut().filter(|_| serves) {
            [Some(&mut node), twin.as_mut()].into_iter().flatten().for_each(Core::serve_pods);
            containers.new_process();
        }
        if let Some(credential) = &mut self.credential {
            [Some(&mut node), twin.as_mut()].into_iter().flatten().for_each(Core::keep_identity);
            credential.order = None;
        }
        self.starts += 1;
        self.board.begin_run();
        self.disk.new_process();
        self.process = Some(Process {
            node,
            twin,
            asked: Asked::default(),
            step: None,
            facts_wanted: false,
            requests: Vec::new(),
            renewal: None,
            leaving: None,
            removes: false,
            node_watch: None,
            watched: None,
            map_watch: None,
            pods_watch: None,
            node_round: 0,
            map_round: 0,
            pods_round: 0,
            exit: None,
            used: None,
            stop_asked: false,
        });
        self.handle(Event::Start);
        Ok(())
    }

    pub fn handle(&mut self, event: Event) {
        let now = self.now();
        let Some(process) = &mut self.process else { return };
        if matches!(event, Event::Heard { server, .. } if server > process.node.server()) {
            process.asked.clear();
        }
        process.stop_asked |= matches!(event, Event::Stop(_));
        if matches!(event, Event::EndHeldUp(Some(_))) {
            process.exit = None;
        }
        let mut actions = Vec::new();
        if let Some(twin) = &mut process.twin {
            let mut same = Vec::new();
            twin.handle(now, event.clone(), &mut same);
            process.node.handle(now, event, &mut actions);
            assert_eq!(actions, same, "the same events, other actions");
        } else {
            process.node.handle(now, event, &mut actions);
        }
        for action in actions {
            self.take(action);
        }
        if self.thorough && !self.exited() {
            let process = self.process.as_ref().expect("it has not exited");
            checks::check_report(&process.node, now, process.used.is_some(), process.step.is_some());
        }
    }

    fn take(&mut self, action: Action) {
        self.seen.push(Seen::Asked(action.clone()));
        let process = self.process.as_mut().expect("a process gave this action");
        assert!(
            process.exit.is_none() || matches!(action, Action::Log(..)),
            "after the exit was ordered: {action:?}"
        );
        match action {
            Action::Step(step) => {
                assert!(process.step.is_none(), "a second step while {:?} is under way", process.step);
                if let (Step::Write(file, bytes), true) = (&step, self.checked) {
                    checks::check_write(&self.disk, &self.version, file, bytes);
                }
                process.step = Some(step);
            }
            Action::Use(effective) => {
                assert!(process.used.is_none(), "a second configuration in one run");
                process.used = Some(effective.config.max_pods);
            }
            Action::ConsumeEvidence => self.board.consume_evidence(),
            Action::Sweep { keep } => self.sweep(keep.map(|keep| {
                keep.into_iter().map(|name| StateFile::Checkpoint(name).path(&self.version)).collect()
            })),
            Action::ReadHostFacts => {
                assert!(!process.facts_wanted, "a second look at the host");
                process.facts_wanted = true;
            }
            Action::Request(request) => {
                // core must queue by itself: a real client would send both, and their answers could cross
                let same = process.requests.iter().any(|other| other.key() == request.key());
                assert!(!same, "a second {:?} in flight", request.key());
                if self.thorough {
                    process.asked.count(Some(request.key()));
                    checks::check_request(&request);
                }
                process.requests.push(request);
            }
            Action::Renew { request, deadline } => {
                assert!(process.renewal.is_none(), "a second renewal in flight");
                if self.thorough {
                    process.asked.count(None);
                }
                process.renewal = Some((request, deadline));
            }
            Action::WatchNode(order) => {
                assert!(order.round > process.node_round, "a round twice");
                process.node_round = order.round;
                process.node_watch = Some(Watch::new(&NODE, "", &self.name, &order));
            }
            Action::WatchConfigMap { namespace, name, order } => {
                assert!(order.round > process.map_round, "a round twice");
                process.map_round = order.round;
                process.map_watch = Some(Watch::new(&CONFIG_MAP, &namespace, &name, &order));
                process.watched = Some((namespace, name));
            }
            Action::EndConfigMapWatch => (process.map_watch, process.watched) = (None, None),
            Action::TakeCall(_) => unreachable!("the hub of this world calls no node"),
            Action::TakeAuthorities(_) => unreachable!("the hub of this world keeps its authority"),
            Action::Identity(order) => {
                let credential = self.credential.as_mut().expect("this node has no credential");
                assert!(credential.order.is_none(), "a second order about the credential");
                credential.order = Some(*order);
            }
            Action::System(order) => {
                let waiting = match (&mut self.machine, &mut self.programs) {
                    (Some(machine), _) => &mut machine.order,
                    (None, Some(programs)) => &mut programs.order,
                    (None, None) => unreachable!("this node cannot be updated"),
                };
                assert!(waiting.is_none(), "a second order about the system");
                *waiting = Some(*order);
            }
            Action::WatchPods(order) => {
                assert!(order.round > process.pods_round, "a round twice");
                process.pods_round = order.round;
                process.pods_watch = Some(PodsWatch::default());
            }
            Action::EndPodsWatch => process.pods_watch = None,
            Action::Pods(order) => self.containers.as_mut().expect(NO_RUNTIME).order(*order),
            Action::NeedImages { images, is_all } => {
                self.containers.as_mut().expect(NO_RUNTIME).need(images, is_all);
            }
            Action::Exit { why, start_again } => {
                // the exit code decides whether a supervisor starts the agent again
                let is_leaving = self.decommission.is_some();
                // an agent also ends for the starter of programs
                let may_stop = is_leaving || self.programs.is_some();
                assert!(may_stop || start_again != process.stop_asked, "another kind of end: {why:?}");
                if let Some(programs) = &mut self.programs {
                    programs.replaces = start_again;
                }
                assert!(!why.is_empty() && process.step.is_none(), "it exits within a step: {why:?}");
                process.exit = Some(why);
            }
            Action::NoteDecommission(record) => {
                assert!(process.leaving.is_none(), "two records at once");
                process.leaving = Some(record);
            }
            Action::RemoveState => process.removes = true,
            Action::Log(level, line) => {
                assert!(line.len() <= checks::LOG_BYTES, "a line of {} bytes: {:.200}", line.len(), line);
                let mark = if level == Level::Warn { "W" } else { " " };
                self.log.push(format!("{mark} {line}"));
            }
        }
    }

    /// Removes files that no record names: checkpoints, leftovers, other versions' counts.
    fn sweep(&mut self, keep: Option<Vec<String>>) {
        let ours = StateFile::Startups.path(&self.version);
        let named =
            if self.thorough { checks::named_checkpoints(&self.disk, &self.version) } else { Vec::new() };
        self.disk.sweep(&|path| {
            let checkpoint = path.starts_with("checkpoints") && path != Path::new("checkpoints");
            // a directory is kept if anything in it is
            let is_named = |keep: &Vec<String>| keep.iter().any(|kept| Path::new(kept).starts_with(path));
            let counts = path.ends_with("startups.json");
            (!checkpoint || keep.as_ref().is_none_or(is_named)) && (!counts || path == Path::new(&ours))
        });
        for path in named {
            assert!(self.disk.content(&path).is_some(), "{path}, which a record names, was swept away");
        }
    }

    // ------------------------------------------------------------------------------------------ performing

    pub fn perform(&mut self, step: &Step) -> Outcome {
        let path = |file: &StateFile| file.path(&self.version);
        match step {
            Step::Read(file) => {
                let path = path(file);
                Outcome::Read(self.disk.read(&path))
            }
            Step::Write(file, bytes) => {
                let path = path(file);
                Outcome::Done(self.disk.write(file, &path, bytes))
            }
            Step::SetAside(file) => {
                let path = path(file);
                Outcome::Done(self.disk.set_aside(&path, *file == StateFile::BadConfigs))
            }
        }
    }

    /// Performs the step that the agent ordered. Returns whether there was one.
    pub fn do_step(&mut self) -> bool {
        let Some(step) = self.process.as_mut().and_then(|process| process.step.take()) else { return false };
        let outcome = self.perform(&step);
        self.seen.push(Seen::Performed(step, outcome.clone()));
        self.handle(Event::StepDone(outcome));
        true
    }

    /// Whether it is not decommissioned so far that no pod is served.
    fn serves_pods(&self) -> bool {
        self.decommission.as_ref().is_none_or(Decommission::has_pods)
    }

    /// Makes the next write, or removal, of a decommissioning.
    pub fn do_leaving(&mut self) -> bool {
        let Some(process) = &mut self.process else { return false };
        if let Some(record) = process.leaving.take() {
            self.decommission = Some(record);
            self.handle(Event::DecommissionNoted(Ok(())));
        } else if std::mem::take(&mut process.removes) {
            self.removals += 1;
            self.handle(Event::StateRemoved(Ok(())));
        } else {
            return false;
        }
        true
    }

    fn wall_secs(&self) -> u64 {
        u64::try_from(self.board.wall_micros()).unwrap_or_default() / 1_000_000
    }

    /// Performs the order about the credential. Returns whether there was one.
    fn do_credential(&mut self) -> bool {
        let (wall, link) = (self.wall_secs(), self.link);
        let credential = self.credential.as_mut().filter(|_| self.process.is_some());
        let Some(event) = credential.and_then(|credential| credential.perform(wall, link)) else {
            return false;
        };
        self.handle(Event::Identity(Box::new(event)));
        true
    }

    /// Performs the order about the system. Returns whether there was one.
    pub fn do_system(&mut self) -> bool {
        let is_online = self.is_online();
        let events = match (&mut self.machine, &mut self.programs) {
            _ if self.process.is_none() => Vec::new(),
            (Some(machine), _) => machine.perform(is_online),
            (None, Some(programs)) => programs.perform(&mut self.disk, is_online),
            (None, None) => Vec::new(),
        };
        let is_any = !events.is_empty();
        events.into_iter().for_each(|event| self.handle(Event::System(Box::new(event))));
        is_any
    }

    /// Whether requests leave the node.
    fn is_online(&self) -> bool {
        let is_deaf = self.machine.as_ref().is_some_and(Machine::is_deaf)
            || self.programs.as_ref().is_some_and(Programs::is_deaf);
        self.link && !is_deaf
    }

    fn slots(&self) -> Option<Slots> {
        let programs = self.programs.as_ref().map(|programs| programs.slots(&self.disk));
        self.machine.as_ref().map(Machine::slots).or(programs)
    }

    /// The packaged program starts the chosen one.
    fn start_program(&mut self) {
        let Some(mut programs) = self.programs.take_if(|programs| !std::mem::take(&mut programs.is_replaced))
        else {
            return;
        };
        self.disk.new_process();
        let boot = self.boot_id();
        let (previous, board) = (self.board.previous_run(), &mut self.board);
        programs.start(&mut self.disk, &boot, previous, |exit| {
            board.begin_run();
            board.record_exit(Exit { boot_id: boot.clone(), run: board.run(), ..exit });
            board.previous_run()
        });
        self.version = programs.agent().cloned().unwrap_or_else(|| "0.1.0".into());
        self.programs = Some(programs);
    }

    /// The boot loader chooses the slot of this boot.
    fn boot_machine(&mut self) {
        if let Some(machine) = &mut self.machine {
            machine.boot();
            self.version = machine.agent().cloned().unwrap_or_else(|| "0.1.0".into());
            self.facts.image = match machine.is_on_trial() {
                true => ImageState::OnTrial("b"),
                false => ImageState::NotAsked,
            };
        }
    }

    /// The health check finds the running slot good, or misses contact.
    pub fn judge_slot(&mut self) {
        let is_online = self.is_online();
        let Some(machine) = self.machine.as_mut().filter(|machine| machine.is_on_trial()) else { return };
        if is_online {
            machine.bless();
            self.facts.image = ImageState::Good("b");
        } else {
            machine.fail();
            machine.restarts = true;
        }
    }

    /// Gives the agent the facts about the host.
    pub fn do_facts(&mut self) -> bool {
        let Some(process) = self.process.as_mut().filter(|process| process.facts_wanted) else {
            return false;
        };
        process.facts_wanted = false;
        let mut facts = HostFacts { boot_id: self.boot_id(), ..self.facts.clone() };
        if self.containers.is_some() {
            (facts.runtime, facts.pod_network) = (Runtime::Ready, PodNetworks::Ready("edge".into()));
        }
        self.handle(Event::HostFacts(Box::new(facts)));
        true
    }

    /// Performs the next of the orders for containers, images and the desired set. Returns whether there was
    /// one.
    pub fn do_pods(&mut self) -> bool {
        let (now, is_online) = ((self.now().wall, self.mono()), self.link);
        // before a configuration is in use core accepts no events about pods
        if self.process.as_ref().is_none_or(|process| process.used.is_none()) {
            return false;
        }
        let Some(event) = self.containers.as_mut().and_then(|it| it.next(is_online, now)) else {
            return false;
        };
        self.handle(Event::Pods(Box::new(event)));
        true
    }

    /// The watch of the pods shows its list or its next change, if there is one.
    pub fn do_watch_pods(&mut self, hub: &Hub) -> bool {
        let Some(process) = &mut self.process else { return false };
        let round = process.pods_round;
        let is_late = self.watch_is_late;
        let is_due = |watch: &&mut PodsWatch| {
            watch.looked_at != Some(hub.changes()) && (watch.shown.is_none() || !is_late)
        };
        let Some(watch) = process.pods_watch.as_mut().filter(is_due) else {
            return false;
        };
        let (pods, version) = hub.pods_of(&self.name);
        let (news, is_list) = watch.next(&pods);
        let is_all = watch.has_shown(&pods);
        watch.looked_at = is_all.then(|| hub.changes());
        let Some(event) = news else { return false };
        self.handle(event);
        if is_all {
            let (watched, version) = (Watched::Pods, version.to_string());
            self.handle(Event::WatchPosition { watched, round, version, is_change: !is_list });
        }
        true
    }

    /// Answers the oldest request: the server's answer, or this one instead.
    pub fn do_request(&mut self, hub: &mut Hub, instead: Option<Answer>) -> bool {
        let Some(process) = self.process.as_mut().filter(|process| !process.requests.is_empty()) else {
            return false;
        };
        let request = process.requests.remove(0);
        // with any credential of the caller
        let is_public = request.key() == RequestKey::Version;
        let instead =
            instead.filter(|answer| !(is_public && matches!(answer, Answer::Refused { status: 401, .. })));
        let answer = instead.unwrap_or_else(|| hub.answer(&self.name, &request));
        self.handle(Event::Answered(request.key(), answer));
        true
    }

    /// The server carries out the oldest request. Its answer is lost; returns the kind of the request.
    pub fn do_request_unheard(&mut self, hub: &mut Hub) -> Option<RequestKey> {
        let process = self.process.as_mut().filter(|process| !process.requests.is_empty())?;
        let request = process.requests.remove(0);
        hub.answer(&self.name, &request);
        Some(request.key())
    }

    pub fn do_renewal(&mut self, hub: &mut Hub, instead: Option<Answer>) -> bool {
        let Some((request, _)) = self.process.as_ref().and_then(|process| process.renewal.clone()) else {
            return false;
        };
        let latest = hub.desired(&self.name).filter(|_| instead.is_none());
        let answer = instead.unwrap_or_else(|| hub.renew(&self.name, &request));
        self.answer_renewal(answer, latest)
    }

    /// Answers the renewal; `latest` is the change that an accepting answer names.
    pub fn answer_renewal(&mut self, answer: Answer, latest: Option<u64>) -> bool {
        let process = self.process.as_mut();
        if process.and_then(|process| process.renewal.take()).is_none() {
            return false;
        }
        self.handle(match (answer, latest) {
            (Answer::Accepted(_), Some(latest)) => Event::RenewedAsOf(latest),
            (answer, _) => Event::Renewed(answer),
        });
        true
    }

    /// The server refuses the credential with which the Node is watched.
    fn do_refused_watch(&mut self) -> bool {
        let Some(process) = self.process.as_mut() else { return false };
        if process.node_watch.take().is_none() {
            return false;
        }
        let failure = Some((WatchFailure::Unreachable, "Unauthorized".to_owned()));
        let end = WatchEnd { failure, is_refused: true, ..WatchEnd::default() };
        let round = process.node_round;
        self.handle(Event::WatchEnded { watched: Watched::Node, round, end });
        true
    }

    /// The watch of the Node shows its list or its next change, if there is one.
    pub fn do_watch_node(&mut self, hub: &mut Hub) -> bool {
        self.watch_node(hub).is_some()
    }

    /// The same; returns the Node as it was shown, null if it does not exist.
    pub fn watch_node(&mut self, hub: &mut Hub) -> Option<Value> {
        let process = self.process.as_mut()?;
        let news = process.node_watch.as_mut()?.next(hub)?;
        let round = process.node_round;
        let name = self.name.clone();
        self.handle(event_of(Collection::Node, &name, news.object.clone(), news.is_list));
        self.has_come_to(Watched::Node, round, &news);
        Some(news.object)
    }

    /// Reports the position of a watch after its news; a round that only lists is over.
    fn has_come_to(&mut self, watched: Watched, round: u64, news: &News) {
        let version = news.version.to_string();
        self.handle(Event::WatchPosition { watched, round, version, is_change: !news.is_list });
        let Some(process) = self.process.as_mut().filter(|_| news.is_last) else { return };
        let (watch, latest) = match watched {
            Watched::Node => (&mut process.node_watch, process.node_round),
            Watched::ConfigMap => (&mut process.map_watch, process.map_round),
            Watched::Pods => unreachable!("it is no watch of one object"),
        };
        if latest == round {
            *watch = None;
            self.handle(Event::WatchEnded { watched, round, end: WatchEnd::default() });
        }
    }

    /// The watch of the ConfigMap shows its list or its next change, if there is one.
    pub fn do_watch_map(&mut self, hub: &mut Hub) -> bool {
        self.watch_map(hub).is_some()
    }

    /// The same; returns the ConfigMap as it was shown, null if it does not exist.
    pub fn watch_map(&mut self, hub: &mut Hub) -> Option<Value> {
        let process = self.process.as_mut()?;
        let (namespace, name) = process.watched.clone()?;
        let news = process.map_watch.as_mut()?.next(hub)?;
        let (round, object) = (process.map_round, news.object.clone());
        self.show_map(&namespace, &name, object.clone(), news.is_list);
        self.has_come_to(Watched::ConfigMap, round, &news);
        Some(object)
    }

    /// The watch shows the ConfigMap of this name, null if it does not exist, in a list or as a change.
    pub fn show_map(&mut self, namespace: &str, name: &str, object: Value, is_list: bool) {
        let Some(process) = &self.process else { return };
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let held = process.node.held_config_map().filter(|_| is_list);
        let part = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
        let of = Collection::ConfigMap { namespace, name: name.clone() };
        let event = match held {
            // like the agent: a list of metadata shows whether the download is needed
            Some(held) if (&held.0, &held.1) == (&part("uid"), &part("resourceVersion")) => {
                Event::Listed { of, listing: Listing::Unchanged(held) }
            }
            _ => {
                self.downloads += usize::from(!object.is_null());
                event_of(of, &name, object, is_list)
            }
        };
        self.handle(event);
    }

    /// Whether a watch has something to show.
    pub fn has_news(&self) -> bool {
        let Some(process) = &self.process else { return false };
        [&process.node_watch, &process.map_watch].into_iter().flatten().any(Watch::has_news)
    }

    /// The kubeconfig names another server: the agent hears that from one of its streams, and nothing from
    /// the new server yet.
    pub fn change_server(&mut self) {
        let Some(server) = self.process.as_ref().map(|process| process.node.server() + 1) else { return };
        self.handle(Event::Heard { server, event: Box::new(Event::Tick) });
    }

    /// Ends the current round of this watch. Returns whether there was one.
    pub fn end_watch(&mut self, watched: Watched, end: WatchEnd) -> bool {
        let Some(process) = &mut self.process else { return false };
        let (watch, round) = match watched {
            Watched::Node => (&mut process.node_watch, process.node_round),
            Watched::ConfigMap => (&mut process.map_watch, process.map_round),
            Watched::Pods => unreachable!("it is no watch of one object"),
        };
        if watch.take().is_none() {
            return false;
        }
        self.handle(Event::WatchEnded { watched, round, end });
        true
    }

    /// The server refuses to show the watched ConfigMap.
    pub fn refuse_map(&mut self, why: &str) -> bool {
        let failure = Some((WatchFailure::Answered, why.to_owned()));
        self.end_watch(Watched::ConfigMap, WatchEnd { failure, ..WatchEnd::default() })
    }

    /// The watches begin again with a list, as after a broken connection that nobody noticed.
    pub fn list_again(&mut self) {
        self.watches().for_each(Watch::list_again);
    }

    /// Changes that the watches have not shown yet are lost silently.
    pub fn lose_news(&mut self) {
        self.watches().for_each(Watch::lose_news);
    }

    fn watches(&mut self) -> impl Iterator<Item = &mut Watch> {
        let watches = self.process.as_mut().map(|process| [&mut process.node_watch, &mut process.map_watch]);
        watches.into_iter().flatten().flatten()
    }

    /// Performs the agent's first pending order, in a real agent's sequence. Returns whether there was one.
    pub fn turn(&mut self, hub: &mut Hub) -> bool {
        if self.exited() {
            return false;
        }
        let link = self.is_online();
        let wall = self.wall_secs();
        let is_refused = self.credential.as_ref().is_some_and(|credential| credential.is_refused(wall));
        let unauthorized = || Answer::Refused {
            status: 401,
            reason: "Unauthorized".into(),
            message: "Unauthorized".into(),
            retry_after: None,
        };
        let down = || match link {
            false => Some(Answer::Failed("connection refused".into())),
            true => is_refused.then(unauthorized),
        };
        let is_refused = link && is_refused;
        let link = link && !is_refused;
        self.do_step()
            || self.do_leaving()
            || self.do_credential()
            || self.do_system()
            || self.do_facts()
            || self.do_pods()
            || self.do_request(hub, down())
            || self.do_renewal(hub, down())
            || (is_refused && self.do_refused_watch())
            || (link && (self.do_watch_node(hub) || self.do_watch_map(hub) || self.do_watch_pods(hub)))
    }

    pub fn exited(&self) -> bool {
        self.process.as_ref().is_none_or(|process| process.exit.is_some())
    }

    // ------------------------------------------------------------------------------------------ ends

    /// Performs the exit that the agent ordered.
    pub fn exit(&mut self) {
        let process = self.process.take().expect("it runs");
        assert!(process.exit.is_some(), "it ordered no exit");
        let replaces = self.programs.as_ref().is_some_and(|programs| programs.replaces);
        self.containers_outlive();
        let exit = Exit {
            exit_code: "exited".into(),
            exit_status: "0".into(),
            stop_asked: process.stop_asked,
            ..self.ending("success")
        };
        self.board.record_exit(exit);
        if let Some(programs) = &mut self.programs {
            programs.is_replaced = replaces;
        }
    }

    /// The supervisor's part for an agent that is not running: performs the ordered exit, and starts the next
    /// run.
    pub fn supervise(&mut self) {
        if self.process.is_some() {
            self.exit();
        }
        self.launch();
    }

    pub fn ending(&self, result: &str) -> Exit {
        let (boot_id, run) = (self.boot_id(), self.board.run());
        Exit { boot_id, run, result: result.into(), was_ready: true, ..Exit::default() }
    }

    /// The process ends, and the supervisor records how.
    pub fn end(&mut self, exit: Exit) {
        self.process = None;
        self.containers_outlive();
        self.board.record_exit(exit);
    }

    fn containers_outlive(&mut self) {
        let now = self.now().wall;
        if let Some(containers) = &mut self.containers {
            containers.agent_ended(now);
        }
    }

    /// The process ends with a panic.
    pub fn crash(&mut self) {
        let exit = Exit { exit_code: "exited".into(), exit_status: "101".into(), ..self.ending("exit-code") };
        self.end(exit);
    }

    /// The process ends without an exit record.
    pub fn die_unrecorded(&mut self) {
        self.process = None;
        self.containers_outlive();
        self.board.forget_exit();
    }

    /// The power fails and comes back; everything that was not durable is lost.
    pub fn power_cut(&mut self) {
        self.power_cut_with(Loss::Everything);
    }

    /// The same; `loss` chooses the part of the unsynced data that is lost.
    pub fn power_cut_with(&mut self, loss: Loss) -> Losses {
        self.process = None;
        if let Some(containers) = &mut self.containers {
            containers.power_lost();
        }
        self.board.reboot();
        if let Some(programs) = &mut self.programs {
            programs.is_replaced = false;
        }
        self.boot_machine();
        self.disk.lose_power(loss)
    }

    // ------------------------------------------------------------------------------------------ looking

    #[track_caller]
    pub fn report(&self) -> Report {
        let process = self.process.as_ref().expect("it runs");
        process.node.report(self.now()).expect("a config is in use")
    }

    /// `maxPods` of the configuration in use.
    #[track_caller]
    pub fn used(&self) -> u32 {
        self.process.as_ref().and_then(|process| process.used).expect("a config is in use")
    }

    pub fn file(&self, path: &str) -> Option<Value> {
        let bytes = self.disk.content(path)?;
        Some(serde_json::from_slice(&bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes))))
    }

    pub fn startups(&self) -> Value {
        self.file(&StateFile::Startups.path(&self.version)).unwrap_or(Value::Null)
    }

    /// The counts of the config that ran last.
    pub fn counts(&self) -> Value {
        let startups = self.startups();
        startups["records"][startups["last"].as_str().unwrap_or_default()].clone()
    }

    pub fn bad_configs(&self) -> Value {
        self.file(&StateFile::BadConfigs.path(&self.version)).unwrap_or(Value::Null)
    }

    pub fn read_bad_configs(&self) -> Read {
        self.disk.read(&StateFile::BadConfigs.path(&self.version))
    }
}

impl PodsWatch {
    /// The next difference to the shown pods, and whether it is a list.
    fn next(&mut self, pods: &[Value]) -> (Option<Event>, bool) {
        let uid = |pod: &Value| pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let Some(shown) = &mut self.shown else {
            self.shown = Some(pods.iter().map(|pod| (uid(pod), pod.clone())).collect());
            let listing = Listing::Objects(pods.to_vec());
            return (Some(Event::Listed { of: Collection::Pods, listing }), true);
        };
        let gone = shown.keys().find(|known| pods.iter().all(|pod| uid(pod) != **known)).cloned();
        if let Some(object) = gone.and_then(|uid| shown.remove(&uid)) {
            return (Some(Event::Changed { of: Collection::Pods, object, is_deleted: true }), false);
        }
        let changed = pods.iter().find(|pod| shown.get(&uid(pod)) != Some(pod)).cloned();
        let event = changed.map(|object| {
            shown.insert(uid(&object), object.clone());
            Event::Changed { of: Collection::Pods, object, is_deleted: false }
        });
        (event, false)
    }

    fn has_shown(&self, pods: &[Value]) -> bool {
        self.shown.as_ref().is_some_and(|shown| {
            shown.len() == pods.len() && pods.iter().all(|pod| shown.values().any(|known| known == pod))
        })
    }
}

/// A list of the node's own Node; null if it does not exist.
pub fn node_event(there: &Value) -> Event {
    event_of(Collection::Node, "", there.clone(), true)
}

/// A list of a ConfigMap; null if it does not exist.
pub fn map_event(namespace: &str, name: &str, there: Value) -> Event {
    let of = Collection::ConfigMap { namespace: namespace.to_owned(), name: name.to_owned() };
    event_of(of, name, there, true)
}

/// A list or a change of the single object of a collection; null if it does not exist.
fn event_of(of: Collection, name: &str, there: Value, is_list: bool) -> Event {
    match (is_list, there.is_null()) {
        (true, true) => Event::Listed { of, listing: Listing::Objects(Vec::new()) },
        (true, false) => Event::Listed { of, listing: Listing::Objects(vec![there]) },
        (false, is_deleted) => {
            let object = if is_deleted { json!({"metadata": {"name": name}}) } else { there };
            Event::Changed { of, object, is_deleted }
        }
    }
}

fn capacity_of(facts: &HostFacts) -> Capacity {
    Capacity {
        memory_bytes: facts.memory_bytes,
        storage_bytes: facts.storage_bytes,
        inodes: facts.inodes,
        pids: facts.pids,
    }
}

fn host_facts(name: &str) -> HostFacts {
    HostFacts {
        machine_id: "5f3c".into(),
        system_uuid: "a-uuid".into(),
        boot_id: String::new(),
        kernel_version: "6.1.0".into(),
        os_image: "Debian GNU/Linux 12".into(),
        architecture: "arm64".into(),
        hostname: name.to_owned(),
        addresses: vec!["192.0.2.7".into()],
        cpus: 4,
        memory_bytes: 1 << 30,
        storage_bytes: 8 << 30,
        inodes: 500_000,
        pids: 32_768,
        memory_available_bytes: Some(1 << 29),
        storage_available_bytes: Some(4 << 30),
        inodes_free: Some(400_000),
        pids_in_use: Some(120),
        runtime: Runtime::Absent,
        lacking_controllers: None,
        pod_network: PodNetworks::default(),
        api_server: None,
        authorities: None,
        has_apparmor: false,
        has_selinux: false,
        watchdog: kedge_core::HardwareWatchdog::default(),
        image: kedge_core::ImageState::default(),
    }
}
