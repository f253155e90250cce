//! A node between a disk with any content and a server that may send anything, over several runs.
//!
//! Owns the meaning of an input's bytes: first the content of the disk, then acts of the simulation's world,
//! one byte and its arguments each. The world performs them, with all its usual checks. At the end the node
//! is left alone with its disk: it has a configuration, and stops acting.

use crate::Target;
use crate::input::Input;
use kedge_core::config::records::{Read, StateFile};
use kedge_core::{Answer, Event, Exit, HostFacts, Outcome, Step};
use kedge_sim::hub::{Hub, NAMESPACE};
use kedge_sim::{HEADER, NODE, World};
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) const TARGET: Target =
    Target { name: "node", run, seeds, words: &[], longest_bytes: 2048, mutations: 1500 };

/// Most runs of the agent in one input.
const RUNS: u64 = 12;
/// Longest UID that becomes a file name: only such UIDs have verdicts, and the local endpoint passes on no
/// others.
const UID_CHARS: usize = 64;
const MAPS: [&str; 3] = ["a", "b", "c"];
/// Fields of payloads. The input writes the last one.
const PAYLOADS: [&str; 9] = [
    "maxPods: 201\n",
    "maxPods: 202\nconfigTrialDuration: 0s\n",
    "maxPods: 203\nconfigTrialDuration: 1s\ncrashLoopThreshold: 0\n",
    "maxPods: [\n",
    "maxPods: -5\n",
    "maxPods: 206\nregisterNode: false\nnodeLeaseDurationSeconds: 160\nconfigTrialDuration: 168h\n",
    "maxPods: 207\nnodeStatusUpdateFrequency: 1s\nnodeLeaseDurationSeconds: 4\nregisterWithTaints: [{key: a, effect: NoExecute}]\n",
    "maxPods: 208\nlogging: {verbosity: 99}\nnoSuchField: 1\n",
    "",
];

fn seeds() -> Vec<Vec<u8>> {
    let steps: &[u8] = &[0; 12];
    // a config is pushed, assigned, seen, downloaded and adopted; renewals and time promote it
    let push_and_assign: &[u8] = &[4, 0, 0, 4, 0, 0, 11, 0, 1, 9, 1, 0, 8, 0, 10, 0, 0, 0, 0, 0];
    let renewals: &[u8] = &[5, 0, 3, 0, 5, 0, 3, 0, 5, 0, 3, 0, 0];
    let script = |acts: &[&[u8]]| [&[0; 7], &acts.concat()[..]].concat();
    vec![
        script(&[steps]),
        script(&[steps, push_and_assign, steps, &[8, 10], renewals, renewals]),
        script(&[steps, push_and_assign, &[18, 0], steps, &[18, 0], steps, &[3, 3]]),
        script(&[steps, push_and_assign, &[11, 1, 3, 9, 0, 1, 8, 0, 10], steps, &[18, 3], steps]),
        // a record is changed by hand between two runs
        script(&[steps, push_and_assign, steps, &[19, 3, 1, 0, 4], b"null", &[18, 4], steps]),
        script(&[
            steps,
            push_and_assign,
            &[12, 0, 3, 10, 13, 0, 16, 0, 15, 0, 17, 1, 17, 3, 9, 18, 2],
            steps,
        ]),
        [&[3, 0, 0, 2, b'{', b'}', 1, b'x', 0, 0][..], steps, &[14, 7, 6, 0, 0]].concat(),
    ]
}

fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (mut world, own) = begin(&mut input);
    world.launch();
    while !input.is_empty() && world.starts < RUNS {
        act(&mut world, &own, &mut input);
        if world.exited() && world.starts < RUNS {
            restart(&mut world, 0);
        }
    }
    world.comes_to_rest_alone();
}

/// The board as flashed or found: local files, and any bytes for a record.
fn begin(input: &mut Input<'_>) -> (World, String) {
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
    let own = input.text();
    for file in [StateFile::Current, StateFile::LastKnownGood, StateFile::BadConfigs, StateFile::Startups] {
        let content = input.bytes();
        if !content.is_empty() {
            let path = file.path(&world.version);
            world.disk.put(&path, content);
        }
    }
    (world, own)
}

fn act(world: &mut World, own: &str, input: &mut Input<'_>) {
    match input.choice(20) {
        0 => drop(world.do_step()),
        1 => fail_step(world, input),
        2 => {
            // squared, so that one byte covers seconds as well as most of a day
            let secs = u64::from(input.byte());
            world.advance(Duration::from_secs(secs * secs));
            world.handle(Event::Tick);
        }
        3 => world.wait_for_deadline(),
        4 => {
            let answer = answer(input);
            world.do_request(answer);
        }
        5 => {
            // an invented acceptance would promise a renewal that the hub never got: only the hub accepts
            let answer = answer(input).filter(|answer| !matches!(answer, Answer::Accepted(_)));
            world.do_renewal(answer);
        }
        6 => look(world, input),
        7 => match input.coin() {
            true => world.hub.create_node(NODE),
            false => world.hub.delete_node(),
        },
        8 => drop(world.do_watch_node()),
        9 => {
            let source = source(world, input);
            world.hub.assign(source);
        }
        10 => drop(world.do_watch_map()),
        11 => {
            let (name, fields) = (input.one_of(&MAPS), input.one_of(&PAYLOADS));
            world.hub.push(name, &format!("{HEADER}{}", if fields.is_empty() { own } else { fields }));
        }
        12 => show_odd_map(world, input),
        13 => match input.choice(4) {
            0 => world.list_again(),
            1 => world.lose_news(),
            2 => drop(world.hub.delete_config_map(input.one_of(&MAPS))),
            _ => {
                let why = system_text(input);
                world.refuse_map(&why);
            }
        },
        14 => world.handle(Event::Contact),
        15 => {
            let read = match input.choice(3) {
                0 => world.read_bad_configs(),
                1 => Read::Unreadable(system_text(input)),
                _ => Read::Content(input.bytes().to_vec()),
            };
            world.handle(Event::BadConfigsRead(read));
        }
        16 => {
            let uid = world.hub.uid_of(input.one_of(&MAPS));
            world.handle(Event::Forgive(uid.chars().take(UID_CHARS).collect()));
        }
        17 => match input.choice(4) {
            0 => world.handle(Event::Reset),
            1 => world.change_server(),
            2 => world.handle(Event::Stop("asked to stop by SIGTERM".into())),
            _ => world.board.set_wall(i64::from(input.byte()) * 100_000_000_000_000),
        },
        18 => restart(world, input.byte()),
        _ => damage(world, input),
    }
}

/// The process ends in some way, or has ended already, and the next one begins.
fn restart(world: &mut World, way: u8) {
    match way % 6 {
        _ if world.exited() => world.exit(),
        0 => world.crash(),
        1 => world.end(Exit { exit_status: "ABRT".into(), ..world.ending("watchdog") }),
        2 => world.die_unrecorded(),
        3 => world.power_cut(),
        way => {
            world.power_cut();
            if way == 4 { world.board.hardware_reset() } else { world.board.kernel_panic() }
        }
    }
    world.advance(Duration::from_secs(2));
    world.launch();
}

/// A file is changed behind the agent's back: cut short, replaced, removed, or one member of its JSON set to
/// anything.
fn damage(world: &mut World, input: &mut Input<'_>) {
    let paths = world.disk.paths();
    let Some(path) = paths.get(usize::from(input.byte()) % paths.len().max(1)).cloned() else { return };
    let content = world.disk.content(&path).unwrap_or_default();
    match input.choice(4) {
        0 => world.disk.put(&path, &content[..content.len() / 2]),
        1 => {
            let mut record: Value = serde_json::from_slice(&content).unwrap_or_default();
            let members: Vec<String> =
                record.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
            let at = usize::from(input.byte()) % members.len().max(1);
            if let Some(member) = members.get(at) {
                record[member] = serde_json::from_slice(input.bytes()).unwrap_or_default();
                world.disk.put(&path, record.to_string().as_bytes());
            }
        }
        2 => world.disk.put(&path, input.bytes()),
        _ => world.disk.remove(&path),
    }
}

/// The disk refuses, or gives the outcome of another step; the effect of a failed write is unknown.
fn fail_step(world: &mut World, input: &mut Input<'_>) {
    let Some(step) = world.process.as_mut().and_then(|process| process.step.take()) else { return };
    let why = system_text(input);
    let outcome = match (&step, input.choice(4)) {
        (Step::Read(_), 0) => Outcome::Done(Ok(())),
        (Step::Read(_), _) => Outcome::Read(Read::Unreadable(why)),
        (_, 0) => Outcome::Read(Read::Absent),
        (_, 1) => {
            world.perform(&step);
            Outcome::Done(Err(why))
        }
        _ => Outcome::Done(Err(why)),
    };
    world.handle(Event::StepDone(outcome));
}

fn source(world: &World, input: &mut Input<'_>) -> Value {
    match input.choice(6) {
        0 => world.hub.pinned(input.one_of(&MAPS)),
        1 => Hub::following(input.one_of(&MAPS)),
        2 => Value::Null,
        3 => json!({}),
        4 => {
            let text = hostile_text(input);
            json!({"configMapRef": {"namespace": NAMESPACE, "name": "a", "uid": text, "kind": text}})
        }
        _ => serde_json::from_slice(input.bytes()).unwrap_or_default(),
    }
}

/// A ConfigMap as no API server would store it.
fn show_odd_map(world: &mut World, input: &mut Input<'_>) {
    let name = input.one_of(&MAPS);
    let mut map =
        world.hub.config_map(name).filter(Value::is_object).unwrap_or_else(|| json!({"metadata": {}}));
    match input.choice(6) {
        0 => map["metadata"] = json!({"name": name, "namespace": NAMESPACE, "uid": hostile_text(input)}),
        1 => map["metadata"] = json!({"name": hostile_text(input), "resourceVersion": hostile_text(input)}),
        2 => map["data"] = json!({hostile_text(input): "x"}),
        3 => map["data"] = json!({"kubelet": 5}),
        4 => map["kind"] = json!("Secret"),
        _ => map = serde_json::from_slice(input.bytes()).unwrap_or_default(),
    }
    world.hub.put_config_map(name, &map);
}

fn look(world: &mut World, input: &mut Input<'_>) {
    let amount = input.one_of(&[0, 1, 1 << 20, 8 << 30, u64::MAX]);
    world.facts = HostFacts {
        os_image: input.text(),
        addresses: vec![input.text()],
        cpus: input.one_of(&[0, 1, 64, u64::from(u32::MAX)]),
        memory_bytes: amount,
        storage_available_bytes: Some(amount),
        pids: amount,
        ..HostFacts::default()
    };
    world.do_facts();
}

/// The server's own answer, or this one instead, with the client's limits: short texts, waits of at most ten
/// minutes.
fn answer(input: &mut Input<'_>) -> Option<Answer> {
    match input.choice(5) {
        0 | 1 => None,
        2 => Some(Answer::Accepted(serde_json::from_slice(input.bytes()).ok())),
        3 => Some(Answer::Failed("connection refused".into())),
        _ => Some(Answer::Refused {
            status: input.one_of(&[400, 401, 403, 404, 409, 410, 422, 429, 500, 503, 302]),
            reason: input.text(),
            message: "m".repeat(usize::from(input.byte()) * 4),
            retry_after: input.one_of(&[None, Some(Duration::ZERO), Some(Duration::from_secs(600))]),
        }),
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

/// The reason of a failure, in one line, as the shell writes it.
fn system_text(input: &mut Input<'_>) -> String {
    let text = if input.coin() { "w".repeat(1000) } else { input.text() };
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
