//! A node between a disk that may hold anything and a server that may say anything, over several runs.
//!
//! Owns what the bytes of an input mean: what lies on disk, then what happens, a byte or a few for each. The rest is the
//! simulation's world: every step that core asks for is performed on its disk or refused; everything else may come in any
//! order, late, twice or never; and it checks what it always checks, thoroughly. At the end the node is left alone with its
//! disk: it has a configuration, and comes to rest.

use crate::Target;
use crate::input::Input;
use kedge_api as api;
use kedge_core::config::records::{
    Assigned, CheckpointName, ConfigRecord, Current, RanAs, Read, STARTUPS, Startups, StateFile,
    last_known_good_bytes,
};
use kedge_core::config::source::Source;
use kedge_core::kubelet::canonical_overrides;
use kedge_core::{Answer, ConfigId, Digest, Event, Exit, HostFacts, Outcome, RequestKind, Step};
use kedge_sim::hub::NAMESPACE;
use kedge_sim::{HEADER, NODE, World, node_event};
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) const TARGET: Target =
    Target { name: "node", run, seeds, words: &[], longest_bytes: 2048, mutations: 1500 };

/// Most runs of the agent in one input.
const RUNS: u64 = 12;

/// The boot in which an input begins.
const BOOT: &str = "00000000-0000-4000-8000-000000000001";

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
    // a config without a trial: seen, downloaded, adopted, seen again, promoted at the first renewals
    let seen: &[u8] = &[4, 0, 0, 8, 0, 1, 1, 0, 0, 10, 1, 0, 7, 1];
    let renewals: &[u8] = &[5, 0, 3, 5, 0, 3, 0, 5, 0, 3, 0, 5, 0, 0, 0];
    vec![
        script(steps),
        script(&[steps, seen, steps, steps, seen, renewals, renewals].concat()),
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
    let mut script = Script::new(&mut input);
    script.world.launch();
    while !input.is_empty() && script.world.starts < RUNS {
        script.happen(&mut input);
    }
    script.world.comes_to_rest_alone();
}

struct Script {
    world: World,
    overrides: Vec<u8>,
    versions: u32,
    own_payload: String,
}

impl Script {
    fn new(input: &mut Input<'_>) -> Self {
        let mut world = World::new();
        world.thorough = true;
        let local = input.choice(4);
        if local & 1 == 1 {
            world.base("maxPods: 50");
        }
        if local & 2 == 2 {
            world.drop_in("logging: {verbosity: 1}");
        }
        world.dynamic = input.choice(8) != 7;
        let overrides = canonical_overrides(&world.local).expect("the drop-ins are ours");
        let own_payload = input.text();
        let mut script = Self { world, overrides, versions: 0, own_payload };
        script.fill_disk(input);
        script
    }

    // ------------------------------------------------------------------------------------------ the disk

    fn fill_disk(&mut self, input: &mut Input<'_>) {
        for file in [StateFile::Current, StateFile::LastKnownGood, StateFile::BadConfigs, StateFile::Startups]
        {
            let path = file.path(&self.world.version);
            let content = match input.choice(8) {
                0 | 1 => None,
                2 => Some(input.bytes().to_vec()),
                3 => {
                    self.world.disk.put(&format!("{path}.corrupt-1"), b"x");
                    None
                }
                _ => Some(self.record(&file, input)),
            };
            if let Some(content) = content {
                self.world.disk.put(&path, &content);
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
            let path = StateFile::Checkpoint(name).path(&self.world.version);
            match input.choice(8) {
                0 => {}
                1 => self.world.disk.put(&path, &bytes[..bytes.len() / 2]),
                2 => self.world.disk.put(&path, input.bytes()),
                _ => self.world.disk.put(&path, &bytes),
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
                    startups.startups.push(self.world.now().wall).expect("no more than there is room for");
                }
                startups.cuts = input.one_of(&[0, 1, 28, 29, u32::MAX]);
                startups.open =
                    input.one_of(&[None, Some(BOOT), Some("another"), Some("")]).map(str::to_owned);
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
        let watched = self.world.process.as_ref().and_then(|process| process.watched.clone());
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
            "metadata": {"name": NODE, "uid": uid, "annotations": annotations},
            "spec": {"configSource": source},
            "status": status,
        });
        match serde_json::from_value::<api::Node>(node.clone()) {
            Ok(_) => node_event(&node),
            // the shell cannot read it either, and says what any answer says
            Err(_) => Event::Contact,
        }
    }

    // ------------------------------------------------------------------------------------------ what happens

    /// The process ends in some way, or has ended, and the next one begins.
    fn restart(&mut self, way: u8) {
        let world = &mut self.world;
        let has_exited = world.exited();
        world.board.consume_evidence();
        match way % 6 {
            _ if has_exited => world.exit(),
            0 => world.crash(),
            1 => world.end(Exit { exit_status: "ABRT".into(), ..world.ending("watchdog") }),
            2 => world.die_unrecorded(),
            3 => world.power_cut(),
            4 => {
                world.power_cut();
                world.board.hardware_reset();
            }
            _ => {
                world.power_cut();
                world.board.kernel_panic();
            }
        }
        world.advance(Duration::from_secs(2));
        world.launch();
    }

    fn happen(&mut self, input: &mut Input<'_>) {
        match input.choice(20) {
            0 => drop(self.world.do_step()),
            1 => self.fail_step(input),
            2 => {
                let secs = u64::from(input.byte());
                self.world.advance(Duration::from_secs(secs * secs));
                self.world.handle(Event::Tick);
            }
            3 => self.world.wait_for_deadline(),
            4 => self.answer(input),
            5 => self.answer_renewal(input),
            6 => self.look(input),
            7 => self.world.handle(Event::NodeGone),
            8 | 9 => {
                let event = self.node_seen(input);
                self.world.handle(event);
            }
            10..=12 => {
                let event = self.config_map_seen(input);
                self.world.handle(event);
            }
            13 => {
                let number = input.choice(PAYLOADS.len() as u8);
                let (namespace, name) = self.watched(number, input);
                let event = match input.coin() {
                    true => Event::ConfigMapGone { namespace, name },
                    false => Event::ConfigMapUnreadable { namespace, name, why: system_text(input) },
                };
                self.world.handle(event);
            }
            14 => self.world.handle(Event::Contact),
            15 => {
                let read = match input.choice(4) {
                    0 => Read::Content(input.bytes().to_vec()),
                    1 => Read::Unreadable(system_text(input)),
                    2 => Read::Absent,
                    _ => Read::Content(self.record(&StateFile::BadConfigs, input)),
                };
                self.world.handle(Event::BadConfigsRead(read));
            }
            16 => {
                let number = input.choice(PAYLOADS.len() as u8);
                self.world.handle(Event::Forgive(uid_of(number)));
            }
            17 => {
                let event = match input.choice(4) {
                    0 => Event::Reset,
                    1 => Event::ServerChanged,
                    2 => Event::Stop("asked to stop by SIGTERM".into()),
                    _ => {
                        self.world.board.set_wall(i64::from(input.byte()) * 100_000_000_000_000);
                        Event::Tick
                    }
                };
                self.world.handle(event);
            }
            _ => {
                let way = input.byte();
                self.restart(way);
            }
        }
        if self.world.exited() && self.world.starts < RUNS {
            self.restart(0);
        }
    }

    /// The disk refuses, or answers another question; what a write left behind is anybody's guess.
    fn fail_step(&mut self, input: &mut Input<'_>) {
        let Some(step) = self.world.process.as_mut().and_then(|process| process.step.take()) else { return };
        let why = system_text(input);
        let outcome = match (&step, input.choice(4)) {
            (Step::Read(_), 0) => Outcome::Done(Ok(())),
            (Step::Read(_), _) => Outcome::Read(Read::Unreadable(why)),
            (_, 0) => Outcome::Read(Read::Absent),
            (_, 1) => {
                self.world.perform(&step);
                Outcome::Done(Err(why))
            }
            _ => Outcome::Done(Err(why)),
        };
        self.world.handle(Event::StepDone(outcome));
    }

    fn answer(&mut self, input: &mut Input<'_>) {
        let Some(process) = self.world.process.as_mut() else { return };
        process.requests.sort_by_key(|request| request.kind());
        let at = usize::from(input.choice(5)) % process.requests.len().max(1);
        let Some(kind) = process.requests.get(at).map(|request| request.kind()) else { return };
        process.requests.remove(at);
        let answer = match (kind, input.choice(6)) {
            (RequestKind::Version, 0) => Answer::Accepted(Some(json!({"gitVersion": "v1.34.0+kedge-0.1.0"}))),
            (RequestKind::Version, 1) => Answer::Accepted(Some(json!({"gitVersion": "v1.36.2"}))),
            (_, 0..=3) => Answer::Accepted(serde_json::from_slice(input.bytes()).ok()),
            _ => refusal(input),
        };
        self.world.handle(Event::Answered(kind, answer));
    }

    fn answer_renewal(&mut self, input: &mut Input<'_>) {
        let is_due = self.world.process.as_ref().is_some_and(|process| process.renewal.is_some());
        if is_due {
            let answer = if input.coin() { refusal(input) } else { Answer::Accepted(None) };
            self.world.do_renewal(Some(answer));
        }
    }

    fn look(&mut self, input: &mut Input<'_>) {
        if self.world.process.as_ref().is_none_or(|process| !process.facts_wanted) {
            return;
        }
        let amount = |input: &mut Input<'_>| input.one_of(&[0, 1, 1 << 20, 8 << 30, u64::MAX]);
        self.world.facts = HostFacts {
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
        self.world.do_facts();
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
