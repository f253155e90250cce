//! The core of an agent between a disk that may hold anything and a server that may say anything, over several lives.
//!
//! The input is a script: what lies on disk, then what happens, a byte or a few for each. Every step that core asks for is
//! performed on a disk in memory or refused; everything else may come in any order, late, twice or never. After each event:
//! the same events give the same actions (a twin gets them too), one file step at a time, nothing after an exit, what is
//! written can be read and nothing is named before it is durable, texts stay short, and no deadline lies in the past. At
//! the end the node is left alone with its disk: it has a configuration, and comes to rest.

use crate::Target;
use crate::input::Input;
use kedge_api as api;
use kedge_core::config::records::{
    Assigned, BadConfigs, CheckpointName, ConfigRecord, Current, Known, LastKnownGood, RanAs, Read, STARTUPS,
    Startups, StateFile, last_known_good_bytes, read_last_known_good,
};
use kedge_core::config::source::Source;
use kedge_core::kubelet::{LayerText, LocalLayers, Origin, canonical_overrides};
use kedge_core::{
    Action, Answer, ConfigId, Core, Digest, Event, Exit, HostFacts, Now, Options, Outcome, PreviousRun,
    RequestKind, Step,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(crate) const TARGET: Target =
    Target { name: "node", run, seeds, words: &[], longest_bytes: 2048, mutations: 1500 };

const NAME: &str = "edge-1";
const VERSION: &str = "0.1.0";
const NAMESPACE: &str = "kube-system";
const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// Most lives of one script.
const LIVES: u32 = 12;

/// Longest text of a condition, whatever a server or a file put into it.
const CONDITION_BYTES: usize = 4096;

/// Longest line for the log; a report of a bad config has twenty problems.
const LOG_BYTES: usize = 16 * 1024;

/// Largest body of a request: a status has a dozen conditions and the configuration three times.
const BODY_BYTES: usize = 24 * 1024;

/// Requests of one kind between two moments: more is a loop that only the network slows down.
const REQUESTS_AT_ONCE: u32 = 8;

/// Payloads, by number. The last is written by the script.
const PAYLOADS: [&str; 9] = [
    "maxPods: 201\n",
    "maxPods: 202\nconfigTrialDuration: 0s\n",
    "maxPods: 203\nconfigTrialDuration: 1s\ncrashLoopThreshold: 0\n",
    "maxPods: [\n",
    "maxPods: -5\n",
    "maxPods: 206\nregisterNode: false\nnodeLeaseDurationSeconds: 2147483647\nconfigTrialDuration: 2562047h\n",
    "maxPods: 207\nnodeStatusUpdateFrequency: 1s\nnodeLeaseDurationSeconds: 1\nregisterWithTaints: [{key: a, effect: NoExecute}]\n",
    "maxPods: 208\nlogging: {verbosity: 99}\nnoSuchField: 1\n",
    "",
];

fn seeds() -> Vec<Vec<u8>> {
    let plain: &[u8] = &[0; 12];
    let script = |happens: &[u8]| [plain, happens].concat();
    let steps: &[u8] = &[0; 12];
    let assign_first = [8, 0, 0, 1, 0, 0, 12, 0, 0, 0, 0, 10, 0, 0, 4, 0, 0];
    vec![
        script(steps),
        script(&[steps, &assign_first, steps, &[18, 0], steps, &[3, 3, 3]].concat()),
        script(&[steps, &[9, 0, 7, 3, 3, 3, 1, 18, 4], steps].concat()),
        // something assigned, last-known-good, verdicts and counts on disk
        [&[1, 5, 0, 5, 1, 3, 0, 5, 0, 1, 2, 3, 0, 0][..], steps, &[2, 40, 3, 3, 3, 18, 1], steps].concat(),
        [&[2, 4, 2, 4, 2, 4, 2, 4, 9, 9, 9][..], steps, &[18, 2], steps, &[18, 3], steps].concat(),
        [&[3, 1, 2, 3, 0, 6, 1, 1][..], steps, steps, &[14, 15, 16, 17, 1, 1, 1]].concat(),
    ]
}

fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new(&mut input);
    world.launch();
    while !input.is_empty() && world.lives < LIVES {
        world.happen(&mut input);
    }
    world.is_left_alone();
}

/// A process: the core twice, and what it waits for.
struct Process {
    node: Core,
    twin: Core,
    step: Option<Step>,
    in_flight: BTreeSet<RequestKind>,
    renewal: bool,
    looking: bool,
    watched: Option<(String, String)>,
    used: bool,
    exited: bool,
    asked: BTreeMap<&'static str, u32>,
}

struct World {
    files: BTreeMap<String, Vec<u8>>,
    local: LocalLayers,
    overrides: Vec<u8>,
    dynamic: bool,
    now: Now,
    boot: u32,
    lives: u32,
    previous: PreviousRun,
    process: Option<Process>,
    versions: u32,
    own_payload: String,
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let local = local_layers(input.choice(4));
        let overrides = canonical_overrides(&local).expect("the drop-ins are ours");
        let mut world = Self {
            files: BTreeMap::new(),
            local,
            overrides,
            dynamic: input.choice(8) != 7,
            now: Now {
                mono: Duration::from_secs(20),
                wall: api::Timestamp::from_micros(1_795_224_958_000_000),
            },
            boot: 1,
            lives: 0,
            previous: PreviousRun::default(),
            process: None,
            versions: 0,
            own_payload: String::new(),
        };
        world.own_payload = input.text();
        world.fill_disk(input);
        world
    }

    // ------------------------------------------------------------------------------------------ the disk

    fn fill_disk(&mut self, input: &mut Input<'_>) {
        for file in [StateFile::Current, StateFile::LastKnownGood, StateFile::BadConfigs, StateFile::Startups]
        {
            let content = match input.choice(8) {
                0 | 1 => None,
                2 => Some(input.bytes().to_vec()),
                3 => {
                    self.put(&format!("{}.corrupt-1", file.path(VERSION)), b"x");
                    None
                }
                _ => Some(self.record(&file, input)),
            };
            if let Some(content) = content {
                self.put(&file.path(VERSION), &content);
            }
        }
    }

    /// A well-formed record about one of the payloads, with its checkpoint: whole, damaged or missing.
    fn record(&mut self, file: &StateFile, input: &mut Input<'_>) -> Vec<u8> {
        let number = input.choice(PAYLOADS.len() as u8);
        let object = self.config_map(number, "1");
        let bytes = serde_json::to_vec(&object).expect("a JSON value can be written");
        let uid = uid_of(number);
        let id = ConfigId::of(&uid, self.payload(number).as_bytes(), &self.overrides);
        let config = ConfigRecord {
            source: source_of(number, input.coin()),
            uid: uid.clone(),
            resource_version: "1".into(),
            sha256: Digest::of(&bytes),
        };
        if matches!(file, StateFile::Current | StateFile::LastKnownGood) {
            let name = CheckpointName::new(&uid, "1").expect("our UIDs are file names");
            let path = StateFile::Checkpoint(name).path(VERSION);
            match input.choice(8) {
                0 => {}
                1 => self.put(&path, &bytes[..bytes.len() / 2]),
                2 => self.put(&path, input.bytes()),
                _ => self.put(&path, &bytes),
            }
        }
        match file {
            StateFile::LastKnownGood => last_known_good_bytes(&Some(config)),
            StateFile::Current => {
                let assigned = Assigned { config, since: None, downloaded: input.coin() };
                let invalid_source = (input.choice(8) == 1).then(|| input.text());
                Current { assigned: Some(assigned), node_uid: "node-1".into(), invalid_source }.to_bytes()
            }
            StateFile::Startups => {
                let ran_as = if input.choice(4) == 0 { RanAs::Local } else { RanAs::Config(id) };
                let mut startups = Startups::fresh(ran_as);
                startups.ran_ms = input.one_of(&[0, 999, 60_000, 600_000, u64::MAX]);
                startups.contact = input.coin();
                for _ in 0..input.choice(STARTUPS as u8 + 1) {
                    startups.startups.push(self.now.wall).expect("no more than there is room for");
                }
                startups.cuts = input.one_of(&[0, 1, 28, 29, u32::MAX]);
                startups.open =
                    input.one_of(&[None, Some("boot-1"), Some("boot-0"), Some("")]).map(str::to_owned);
                startups.threshold = input.one_of(&[None, Some(0), Some(10), Some(255)]);
                startups.trial_ms = input.one_of(&[None, Some(0), Some(1000), Some(u64::MAX)]);
                startups.to_bytes()
            }
            _ => {
                let kind = input.one_of(&["parse", "validate", "crashLoop", "cuts", "contact", "unknown"]);
                let entry = if input.coin() {
                    json!({"time": "2026-11-21T01:00:00Z", "reason": "by hand"})
                } else {
                    let verdict = json!({"time": "2026-11-21T01:00:00Z", "reason": "r", "kind": kind,
                        "lost": input.byte(), "retry": input.coin()});
                    json!({"time": "2026-11-21T01:00:00Z", "reason": "r", "contents": {id.to_string(): verdict}})
                };
                json!({uid: entry}).to_string().into_bytes()
            }
        }
    }

    fn put(&mut self, path: &str, content: &[u8]) {
        self.files.insert(path.to_owned(), content.to_vec());
    }

    fn read(&self, file: &StateFile) -> Read {
        let path = file.path(VERSION);
        let aside = format!("{path}.corrupt-");
        match self.files.get(&path) {
            Some(bytes) => Read::Content(bytes.clone()),
            None if self.files.keys().any(|other| other.starts_with(&aside)) => Read::SetAside,
            None => Read::Absent,
        }
    }

    fn perform(&mut self, step: &Step) -> Outcome {
        match step {
            Step::Read(file) => Outcome::Read(self.read(file)),
            Step::Write(file, bytes) => {
                self.put(&file.path(VERSION), bytes);
                Outcome::Done(Ok(()))
            }
            Step::SetAside(file) => {
                let path = file.path(VERSION);
                if let Some(bytes) = self.files.remove(&path) {
                    let number = self.files.len();
                    self.put(&format!("{path}.corrupt-{number}"), &bytes);
                }
                Outcome::Done(Ok(()))
            }
        }
    }

    fn sweep(&mut self, keep: Option<&[CheckpointName]>) {
        let Some(keep) = keep else { return };
        let kept: Vec<String> =
            keep.iter().map(|name| StateFile::Checkpoint(name.clone()).path(VERSION)).collect();
        let named = self.named_checkpoints();
        self.files.retain(|path, _| !path.starts_with("checkpoints/") || kept.contains(path));
        for path in named {
            assert!(self.files.contains_key(&path), "{path}, which a record names, was swept away");
        }
    }

    /// Checkpoints that are there and that a record on disk names.
    fn named_checkpoints(&self) -> Vec<String> {
        let current = Current::read(&self.read(&StateFile::Current));
        let assigned =
            current.known().and_then(|current| current.assigned.as_ref()).map(|assigned| &assigned.config);
        let good: Known<LastKnownGood> = read_last_known_good(&self.read(&StateFile::LastKnownGood));
        let good = good.known().and_then(Option::as_ref);
        let names = assigned.into_iter().chain(good).filter_map(ConfigRecord::checkpoint);
        let paths = names.map(|name| StateFile::Checkpoint(name).path(VERSION));
        paths.filter(|path| self.files.contains_key(path)).collect()
    }

    // ------------------------------------------------------------------------------------------ the server

    fn payload(&self, number: u8) -> String {
        let fields = PAYLOADS[usize::from(number) % PAYLOADS.len()];
        format!("{HEADER}{}", if fields.is_empty() { &self.own_payload } else { fields })
    }

    fn config_map(&self, number: u8, version: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name_of(number), "namespace": NAMESPACE, "uid": uid_of(number), "resourceVersion": version},
            "data": {"kubelet": self.payload(number)},
        })
    }

    fn config_map_seen(&mut self, input: &mut Input<'_>) -> Event {
        let number = input.choice(PAYLOADS.len() as u8);
        self.versions += u32::from(input.coin());
        let version = (1 + self.versions).to_string();
        let mut object = self.config_map(number, &version);
        match input.choice(12) {
            0 => object["metadata"]["uid"] = json!(hostile_text(input)),
            1 => object["metadata"]["resourceVersion"] = json!(hostile_text(input)),
            2 => object["data"] = json!({hostile_text(input): "x"}),
            3 => object["data"]["kubelet"] = json!(5),
            4 => object["kind"] = json!("Secret"),
            5 => object = serde_json::from_slice(input.bytes()).unwrap_or_default(),
            6 => object["metadata"]["name"] = json!(hostile_text(input)),
            _ => {}
        }
        let (namespace, name) = self.watched(number, input);
        Event::ConfigMapSeen { namespace, name, object }
    }

    /// Mostly the object that is watched.
    fn watched(&self, number: u8, input: &mut Input<'_>) -> (String, String) {
        let watched = self.process.as_ref().and_then(|process| process.watched.clone());
        match (input.choice(8), watched) {
            (1..8, Some(watched)) => watched,
            _ => (NAMESPACE.into(), name_of(number)),
        }
    }

    fn node_seen(&self, input: &mut Input<'_>) -> Event {
        let uid = input.one_of(&["node-1", "node-1", "node-1", "node-2", ""]);
        let number = input.choice(PAYLOADS.len() as u8);
        let source = match input.choice(8) {
            0 => Value::Null,
            1 | 2 => source_of(number, true).to_value(),
            3 | 4 => source_of(number, false).to_value(),
            5 => json!({}),
            6 => {
                let text = hostile_text(input);
                json!({"configMapRef": {"namespace": NAMESPACE, "name": "m", "uid": text, "kind": text}})
            }
            _ => serde_json::from_slice(input.bytes()).unwrap_or_default(),
        };
        let annotations = match input.choice(4) {
            1 => json!({api::CONFIG_SOURCE_ANNOTATION: source_of(number, true).to_value().to_string()}),
            2 => json!({api::CONFIG_SOURCE_ANNOTATION: hostile_text(input)}),
            3 => json!({api::CONFIG_STATUS_ANNOTATION: hostile_text(input)}),
            _ => json!({}),
        };
        let status: Value = match input.choice(4) {
            1 => serde_json::from_slice(input.bytes()).unwrap_or_default(),
            2 => {
                json!({"conditions": [{"type": "ConfigOK", "status": "True"}, {"type": "Ready", "status": "Unknown"}]})
            }
            _ => json!({}),
        };
        let node = json!({
            "metadata": {"name": NAME, "uid": uid, "annotations": annotations},
            "spec": {"configSource": source},
            "status": status,
        });
        match serde_json::from_value::<api::Node>(node) {
            Ok(node) => Event::NodeSeen(Box::new(node)),
            // the shell cannot read it either, and says what any answer says
            Err(_) => Event::Contact,
        }
    }

    // ------------------------------------------------------------------------------------------ lives

    fn launch(&mut self) {
        self.lives += 1;
        let options = Options {
            node_name: NAME.into(),
            version: VERSION.into(),
            local: self.local.clone(),
            dynamic_config: self.dynamic,
            node_labels: BTreeMap::new(),
            boot_id: format!("boot-{}", self.boot),
            previous_run: self.previous.clone(),
            seed: u64::from(self.lives),
        };
        let node = || Core::new(options.clone(), self.now).expect("the local config is valid");
        self.process = Some(Process {
            node: node(),
            twin: node(),
            step: None,
            in_flight: BTreeSet::new(),
            renewal: false,
            looking: false,
            watched: None,
            used: false,
            exited: false,
            asked: BTreeMap::new(),
        });
        self.handle(Event::Start);
    }

    /// The process ends in some way, or has ended, and the next one begins.
    fn restart(&mut self, way: u8) {
        let exited = self.process.take().is_some_and(|process| process.exited);
        let boot_id = format!("boot-{}", self.boot);
        let exit = |result: &str, status: &str| {
            let (result, exit_status) = (result.to_owned(), status.to_owned());
            Some(Exit { boot_id: boot_id.clone(), result, exit_status, was_ready: true, ..Exit::default() })
        };
        self.previous = PreviousRun::default();
        match way % 6 {
            _ if exited => self.previous.exit = exit("success", "0"),
            0 => self.previous.exit = exit("exit-code", "101"),
            1 => self.previous.exit = exit("watchdog", "ABRT"),
            2 => {}
            3 => self.boot += 1,
            4 => {
                self.boot += 1;
                self.previous.hardware_reset = true;
            }
            _ => {
                self.boot += 1;
                self.previous.kernel_panic = true;
            }
        }
        self.pass(Duration::from_secs(2));
        self.launch();
    }

    fn pass(&mut self, time: Duration) {
        self.now.mono += time;
        let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        self.now.wall = api::Timestamp::from_micros(self.now.wall.micros().saturating_add(micros));
        if let Some(process) = &mut self.process {
            process.asked.clear();
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        let Some(process) = &mut self.process else { return };
        let (mut actions, mut of_twin) = (Vec::new(), Vec::new());
        process.node.handle(now, event.clone(), &mut actions);
        process.twin.handle(now, event, &mut of_twin);
        assert_eq!(actions, of_twin, "the same events, other actions");
        for action in actions {
            self.take(action);
        }
        self.check();
    }

    fn take(&mut self, action: Action) {
        let Some(process) = &mut self.process else { return };
        let counted = |process: &mut Process, what: &'static str| {
            let asked = process.asked.entry(what).or_default();
            *asked += 1;
            assert!(*asked <= REQUESTS_AT_ONCE, "{what}: {asked} times at one moment");
        };
        assert!(!process.exited || matches!(action, Action::Log(..)), "after the exit: {action:?}");
        match action {
            Action::Step(step) => {
                assert!(process.step.is_none(), "{step:?} while {:?} is under way", process.step);
                check_step(&step);
                process.step = Some(step.clone());
                if let Step::Write(file, bytes) = &step {
                    self.check_what_is_named(file, bytes);
                }
            }
            Action::Use(_) => {
                assert!(!process.used, "a second configuration in one life");
                process.used = true;
            }
            Action::Sweep { keep } => self.sweep(keep.as_deref()),
            Action::ReadHostFacts => {
                assert!(!std::mem::replace(&mut process.looking, true), "a second look at the host");
            }
            Action::Request(request) => {
                let kind = request.kind();
                counted(process, kind_name(kind));
                assert!(process.in_flight.insert(kind), "a second {kind:?} in flight");
                let bytes = format!("{request:?}").len();
                assert!(bytes <= BODY_BYTES, "{kind:?} of {bytes} bytes");
            }
            Action::Renew { .. } => {
                counted(process, "renewal");
                assert!(!std::mem::replace(&mut process.renewal, true), "a second renewal in flight");
            }
            Action::WatchConfigMap(watched) => process.watched = watched,
            Action::Exit(why) => {
                assert!(!why.is_empty() && process.step.is_none(), "it exits within a step");
                process.exited = true;
            }
            Action::Log(_, line) => assert!(line.len() <= LOG_BYTES, "a line of {} bytes", line.len()),
            Action::ConsumeEvidence | Action::WatchNode => {}
        }
    }

    /// What holds after every event.
    fn check(&mut self) {
        let now = self.now;
        let Some(process) = &mut self.process else { return };
        if process.exited {
            return;
        }
        let is_starting = process.node.report(now).is_none();
        assert_eq!(is_starting, !process.used, "in use, and not said");
        assert!(!is_starting || process.step.is_some(), "a start that waits for nothing");
        if let Some(report) = process.node.report(now) {
            let condition = &report.config.condition;
            assert!(matches!(condition.status, "True" | "False" | "Unknown"));
            for text in [&condition.message, &condition.reason] {
                assert!(!text.is_empty() && text.len() <= CONDITION_BYTES, "{} bytes: {text}", text.len());
            }
            assert!(report.config.status.error.len() <= CONDITION_BYTES, "{}", report.config.status.error);
            serde_json::to_string(&report).expect("a report is JSON");
        }
    }

    /// A record may name a configuration that it did not name before only when its checkpoint is there, whole.
    fn check_what_is_named(&self, file: &StateFile, bytes: &[u8]) {
        let named = |file: &StateFile, read: &Read| match file {
            StateFile::Current => Current::read(read)
                .known()
                .and_then(|current| current.assigned.clone())
                .map(|assigned| assigned.config),
            StateFile::LastKnownGood => read_last_known_good(read).known().cloned().flatten(),
            _ => None,
        };
        let Some(config) = named(file, &Read::Content(bytes.to_vec())) else { return };
        if named(file, &self.read(file)).is_some_and(|before| before == config) {
            return;
        }
        let path =
            config.checkpoint().map(|name| StateFile::Checkpoint(name).path(VERSION)).unwrap_or_default();
        let there = self.files.get(&path).map(|bytes| Digest::of(bytes));
        assert_eq!(there, Some(config.sha256), "{file:?} names {path}");
    }

    // ------------------------------------------------------------------------------------------ what happens

    fn happen(&mut self, input: &mut Input<'_>) {
        match input.choice(20) {
            0 => self.do_step(),
            1 => self.fail_step(input),
            2 => {
                let secs = u64::from(input.byte());
                self.pass(Duration::from_secs(secs * secs));
                self.handle(Event::Tick);
            }
            3 => self.wait_for_deadline(),
            4 => self.answer(input),
            5 => self.answer_renewal(input),
            6 => self.look(input),
            7 => self.handle(Event::NodeGone),
            8 | 9 => {
                let event = self.node_seen(input);
                self.handle(event);
            }
            10..=12 => {
                let event = self.config_map_seen(input);
                self.handle(event);
            }
            13 => {
                let number = input.choice(PAYLOADS.len() as u8);
                let (namespace, name) = self.watched(number, input);
                let event = match input.coin() {
                    true => Event::ConfigMapGone { namespace, name },
                    false => Event::ConfigMapUnreadable { namespace, name, why: system_text(input) },
                };
                self.handle(event);
            }
            14 => self.handle(Event::Contact),
            15 => {
                let read = match input.choice(4) {
                    0 => Read::Content(input.bytes().to_vec()),
                    1 => Read::Unreadable(system_text(input)),
                    2 => Read::Absent,
                    _ => Read::Content(self.record(&StateFile::BadConfigs, input)),
                };
                self.handle(Event::BadConfigsRead(read));
            }
            16 => {
                let number = input.choice(PAYLOADS.len() as u8);
                self.handle(Event::Forgive(uid_of(number)));
            }
            17 => {
                let event = match input.choice(4) {
                    0 => Event::Reset,
                    1 => {
                        if let Some(process) = &mut self.process {
                            process.asked.clear();
                        }
                        Event::ServerChanged
                    }
                    2 => Event::Stop("asked to stop by SIGTERM".into()),
                    _ => {
                        let micros = i64::from(input.byte()) * 100_000_000_000_000;
                        self.now.wall = api::Timestamp::from_micros(micros);
                        Event::Tick
                    }
                };
                self.handle(event);
            }
            _ => {
                let way = input.byte();
                self.restart(way);
            }
        }
        if self.process.as_ref().is_some_and(|process| process.exited) && self.lives < LIVES {
            self.restart(0);
        }
    }

    fn do_step(&mut self) {
        let Some(step) = self.process.as_mut().and_then(|process| process.step.take()) else { return };
        let outcome = self.perform(&step);
        self.handle(Event::StepDone(outcome));
    }

    /// The disk refuses, or answers another question; what a write left behind is anybody's guess.
    fn fail_step(&mut self, input: &mut Input<'_>) {
        let Some(step) = self.process.as_mut().and_then(|process| process.step.take()) else { return };
        let why = system_text(input);
        let outcome = match (&step, input.choice(4)) {
            (Step::Read(_), 0) => Outcome::Done(Ok(())),
            (Step::Read(_), _) => Outcome::Read(Read::Unreadable(why)),
            (_, 0) => Outcome::Read(Read::Absent),
            (_, 1) => {
                self.perform(&step);
                Outcome::Done(Err(why))
            }
            _ => Outcome::Done(Err(why)),
        };
        self.handle(Event::StepDone(outcome));
    }

    /// As the main loop: a deadline that has come is a tick; one that stays would keep a processor busy.
    fn wait_for_deadline(&mut self) {
        for _ in 0..4 {
            let Some(process) = self.process.as_ref().filter(|process| !process.exited) else { return };
            let Some(at) = process.node.next_deadline(self.now) else { return };
            if at > self.now.mono {
                self.pass(at - self.now.mono);
                self.handle(Event::Tick);
                return;
            }
            self.handle(Event::Tick);
        }
        let deadline = self.process.as_ref().and_then(|process| process.node.next_deadline(self.now));
        let exited = self.process.as_ref().is_none_or(|process| process.exited);
        assert!(
            exited || deadline.is_none_or(|at| at > self.now.mono),
            "the deadline {deadline:?} stays in the past at {:?}",
            self.now.mono
        );
    }

    fn answer(&mut self, input: &mut Input<'_>) {
        let Some(process) = self.process.as_mut() else { return };
        let Some(kind) = process
            .in_flight
            .iter()
            .nth(usize::from(input.choice(5)) % process.in_flight.len().max(1))
            .copied()
        else {
            return;
        };
        process.in_flight.remove(&kind);
        let answer = match (kind, input.choice(6)) {
            (RequestKind::Version, 0) => Answer::Accepted(Some(json!({"gitVersion": "v1.34.0+kedge-0.1.0"}))),
            (RequestKind::Version, 1) => Answer::Accepted(Some(json!({"gitVersion": "v1.36.2"}))),
            (_, 0..=3) => Answer::Accepted(serde_json::from_slice(input.bytes()).ok()),
            _ => refusal(input),
        };
        self.handle(Event::Answered(kind, answer));
    }

    fn answer_renewal(&mut self, input: &mut Input<'_>) {
        let Some(process) = self.process.as_mut().filter(|process| process.renewal) else { return };
        process.renewal = false;
        let answer = if input.coin() { refusal(input) } else { Answer::Accepted(None) };
        self.handle(Event::Renewed(answer));
    }

    fn look(&mut self, input: &mut Input<'_>) {
        let Some(process) = self.process.as_mut().filter(|process| process.looking) else { return };
        process.looking = false;
        let amount = |input: &mut Input<'_>| input.one_of(&[0, 1, 1 << 20, 8 << 30, u64::MAX]);
        let facts = HostFacts {
            boot_id: format!("boot-{}", self.boot),
            os_image: input.text(),
            addresses: vec![input.text()],
            cpus: input.one_of(&[0, 1, 64, u64::from(u32::MAX)]),
            memory_bytes: amount(input),
            storage_bytes: amount(input),
            memory_available_bytes: amount(input),
            storage_available_bytes: amount(input),
            pids: amount(input),
            pids_in_use: amount(input),
            ..HostFacts::default()
        };
        self.handle(Event::HostFacts(Box::new(facts)));
    }

    // ------------------------------------------------------------------------------------------ the end

    /// No server, and a disk that works: after a few lives it stays, with a configuration in use.
    fn is_left_alone(&mut self) {
        for _ in 0..8 {
            if self.process.as_ref().is_none_or(|process| process.exited) {
                self.restart(0);
            }
            if self.stays_for(Duration::from_secs(2 * 3600)) {
                let process = self.process.as_ref().expect("it stays");
                assert!(process.node.effective().is_some(), "no configuration in use");
                return;
            }
        }
        panic!("it does not stay");
    }

    /// False if it exits before. Nothing is answered but the disk.
    fn stays_for(&mut self, time: Duration) -> bool {
        let end = self.now.mono + time;
        for _ in 0..20_000 {
            let Some(process) = self.process.as_ref().filter(|process| !process.exited) else { return false };
            if process.step.is_some() {
                self.do_step();
                continue;
            }
            let used = process.used;
            match process.node.next_deadline(self.now) {
                Some(at) if at <= end => self.wait_for_deadline(),
                _ => return used,
            }
        }
        panic!("20,000 steps and deadlines in two hours in which nothing happened")
    }
}

/// What core writes, core can read.
fn check_step(step: &Step) {
    let Step::Write(file, bytes) = step else { return };
    let read = Read::Content(bytes.clone());
    let known = match file {
        StateFile::Current => Current::read(&read).known().is_some(),
        StateFile::LastKnownGood => read_last_known_good(&read).known().is_some(),
        StateFile::BadConfigs => BadConfigs::read(&read).known().is_some(),
        StateFile::Startups => Startups::read(&read).known().is_some(),
        StateFile::Checkpoint(_) => serde_json::from_slice::<Value>(bytes).is_ok(),
    };
    assert!(known, "{file:?} is written as {}", bytes.escape_ascii());
}

fn local_layers(which: u8) -> LocalLayers {
    let text = |fields: &str| format!("{HEADER}{fields}\n").into_bytes();
    let base = LayerText { origin: Origin::File("/etc/kedge/config.yaml".into()), text: text("maxPods: 50") };
    let drop_in = LayerText {
        origin: Origin::DropIn("/etc/kedge/config.d/10.conf".into()),
        text: text("logging: {verbosity: 1}"),
    };
    LocalLayers {
        base: (which & 1 == 1).then_some(base),
        drop_ins: (which & 2 == 2).then_some(drop_in).into_iter().collect(),
        flags: Vec::new(),
    }
}

fn name_of(number: u8) -> String {
    format!("m{number}")
}

fn uid_of(number: u8) -> String {
    format!("uid-{number}")
}

fn source_of(number: u8, is_pinned: bool) -> Source {
    let (namespace, name) = (NAMESPACE.to_owned(), name_of(number));
    if is_pinned {
        Source::Pinned { namespace, name, uid: uid_of(number) }
    } else {
        Source::Following { namespace, name, key: "kubelet".into() }
    }
}

/// A text from outside: short and odd, or very long.
fn hostile_text(input: &mut Input<'_>) -> String {
    match input.choice(6) {
        0 => "x".repeat(20_000),
        1 => "é\u{1f600}".repeat(5_000),
        2 => "\n".repeat(5_000),
        3 => "\"\\\u{0}".repeat(3_000),
        _ => input.text(),
    }
}

/// Why something failed, as the shell says it: a path and the system's words, or what the client kept of an answer.
fn system_text(input: &mut Input<'_>) -> String {
    let text = if input.coin() { "w".repeat(1000) } else { input.text() };
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// As the client hands it on: texts of at most a kibibyte, waits of at most ten minutes.
fn refusal(input: &mut Input<'_>) -> Answer {
    if input.choice(4) == 0 {
        return Answer::Failed("connection refused".into());
    }
    Answer::Refused {
        status: input.one_of(&[400, 401, 403, 404, 409, 410, 422, 429, 500, 503, 302]),
        reason: input.text(),
        message: "m".repeat(usize::from(input.byte()) * 4),
        retry_after: input.one_of(&[None, None, Some(Duration::ZERO), Some(Duration::from_secs(600))]),
    }
}

fn kind_name(kind: RequestKind) -> &'static str {
    match kind {
        RequestKind::Version => "GET /version",
        RequestKind::Register => "creating the Node",
        RequestKind::PatchStatus => "patching the status",
        RequestKind::PatchNode => "patching the Node",
        RequestKind::PostEvent => "posting an event",
    }
}
