//! The commands of a scenario, each an act of the world around the node.
//!
//! Always holds: a command that the world cannot perform ends the test; after each a running agent has a
//! config in use, and has renewed its Lease if time passed. `push`, `assign`, `follow` and `adopt` take a
//! payload as fields (`maxPods=202 crashLoopThreshold=0`, with `:_` for a colon and a space) or as JSON text
//! (`"broken: ["`); `keys` takes several, each under its key, and `key` follows one. A line with several
//! commands separates them by `; `, `given` hides their effects, `repeat N` shows the first and the last of
//! identical rounds, `$a` is the UID of ConfigMap `a`. `memory 40%` sets the available memory from then on.

use crate::output::{Observer, shortened_rounds};
use kedge_core::{Answer, Event, Exit, Runtime, Step};
use kedge_sim::disk::{WriteFault, name};
use kedge_sim::hub::{Flavour, Hub, NAMESPACE};
use kedge_sim::machine::{self, Machine, Nature};
use kedge_sim::programs::{self, Programs};
use kedge_sim::situations::TRIAL_AND_A_RENEWAL;
use kedge_sim::{NODE, Seen, World, map_event, payload};
use serde_json::{Value, json};
use std::time::Duration;

/// Time between the end of a run and the next start.
const PAUSE: Duration = Duration::from_secs(2);

/// A node, its surroundings, and the record of what it did.
pub(crate) struct Stage {
    world: World,
    observer: Observer,
    /// The agent's orders are performed only by commands.
    held: bool,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self { world: World::new(), observer: Observer::default(), held: false }
    }

    /// Performs one line, which may have several commands; returns what the node did.
    pub(crate) fn perform(&mut self, line: &str) -> Vec<String> {
        if let Some(line) = line.strip_prefix("given ") {
            self.perform(line);
            return Vec::new();
        }
        let Some((times, rest)) = line.strip_prefix("repeat ").and_then(|rest| rest.split_once(' ')) else {
            line.split("; ").for_each(|command| self.command(command));
            return self.observer.take_lines();
        };
        let rounds = (0..times.parse().expect("repeat N")).map(|_: usize| {
            rest.split("; ").for_each(|command| self.command(command));
            self.observer.take_lines()
        });
        shortened_rounds(rounds.collect())
    }

    fn command(&mut self, command: &str) {
        let command = self.with_uids(command);
        let (word, rest) = command.split_once(' ').unwrap_or((&command, ""));
        if !(self.process(word, rest) || self.operator(word, rest) || self.board(word, rest)) {
            panic!("no such command: {command}");
        }
        if !self.held && self.world.process.is_some() && word != "run" {
            self.world.turn();
            let process = self.world.process.as_ref();
            assert!(process.is_some_and(|process| process.used.is_some()), "no config is in use");
        }
        self.observer.observe(&mut self.world, None);
    }

    /// `$a` is the UID of ConfigMap `a`.
    fn with_uids(&self, command: &str) -> String {
        let names = self.observer.config_maps.iter().rev();
        names.fold(command.to_owned(), |command, name| {
            command.replace(&format!("${name}"), &self.world.hub.uid_of(name))
        })
    }

    /// Starts and ends of the agent.
    fn process(&mut self, word: &str, rest: &str) -> bool {
        let world = &mut self.world;
        match word {
            "known-good" => {
                self.observer.config_maps.insert("a".into());
                world.start();
                world.adopt("a", &text_of("maxPods=201"));
                world.run_for(TRIAL_AND_A_RENEWAL);
                assert_eq!(world.state(), "known-good");
            }
            "start" => {
                self.held = false;
                match world.try_launch() {
                    Ok(()) => world.turn(),
                    Err(why) => self.observer.note(&format!("refused: {why}")),
                }
            }
            "launch" => {
                self.held = true;
                world.launch();
            }
            "hold" => self.held = true,
            "turn" => self.held = false,
            "step" => assert!(world.do_step(), "no step is due"),
            "until" => {
                world.disk.take_written();
                while !world.disk.take_written().contains(&rest) {
                    assert!(
                        world.do_step() || world.do_watch_node() || world.do_watch_map(),
                        "{rest} is not written"
                    );
                }
            }
            // everything except the watches
            "settle" => while world.do_step() || world.do_request(None) {},
            "see" => assert!(match rest {
                "node" => world.do_watch_node(),
                _ => world.do_watch_map(),
            }),
            "restart" => world.restart(),
            "exit" => world.exit(),
            "stop" => world.stop(),
            "asked-to-stop" => {
                world.process.as_mut().expect("it runs").stop_asked = true;
                world.handle(Event::Stop("asked to stop".into()));
            }
            "crash" => {
                self.held = false;
                world.crash();
                world.advance(PAUSE);
            }
            "cut" => {
                self.held = false;
                world.power_cut();
            }
            "reboot" => world.reboot(),
            "dies-after" => {
                self.write_unheard(rest);
                self.world.die_unrecorded();
                self.held = false;
            }
            "cut-after" => {
                self.write_unheard(rest);
                self.world.power_cut();
                self.held = false;
            }
            // a machine with two slots
            "machine" => world.machine = Some(Machine::default()),
            "system" => {
                let (system, nature) = rest.split_once(' ').expect("system Y NATURE");
                let machine = world.machine.as_mut().expect("a machine");
                match nature {
                    "hangs" => drop(machine.natures.insert(system.into(), Nature::Hangs)),
                    "deaf" => drop(machine.natures.insert(system.into(), Nature::Deaf)),
                    "revoked" => drop(machine.natures.insert(system.into(), Nature::Revoked)),
                    "deaf-later" => drop(machine.natures.insert(system.into(), Nature::DeafLater)),
                    "good" => drop(machine.natures.remove(system)),
                    _ => {
                        let version = nature.strip_prefix("agent=").expect("a nature, or agent=VERSION");
                        machine.agents.insert(system.into(), version.into());
                    }
                }
            }
            // the restart that the agent ordered, or one of the health check
            "boot" => {
                self.held = false;
                assert!(world.machine.as_ref().is_some_and(|it| it.restarts), "no restart was ordered");
                world.reboot();
            }
            // the end of a slot's trial
            "judge" => world.judge_slot(),
            "lose-tries" => world.machine.as_mut().expect("a machine").lose_tries(),
            // a person writes a system on the device
            "by-hand" => world.machine.as_mut().expect("a machine").write_by_hand(rest),
            // a machine without slots
            "programs" => world.programs = Some(Programs::default()),
            "list" => {
                let line = match (&world.machine, &world.programs) {
                    (Some(machine), _) => format!("runs {} of: {}", machine.runs(), machine.list()),
                    (None, Some(programs)) => {
                        format!("runs {} of: {}", programs.runs(), Programs::list(&world.disk))
                    }
                    (None, None) => panic!("a machine, or programs"),
                };
                self.observer.note(&line);
            }
            "dies" => {
                self.held = false;
                world.die_unrecorded();
            }
            "ends" => {
                let exit = ending(rest, world.ending(rest.split(' ').next().unwrap_or_default()));
                world.end(exit);
            }
            "run" => self.run(time(rest)),
            _ => return false,
        }
        true
    }

    /// Writes this record, but the agent never hears that it is durable.
    fn write_unheard(&mut self, record: &str) {
        let world = &mut self.world;
        loop {
            let process = world.process.as_mut().expect("it runs");
            match process.step.take_if(|step| matches!(step, Step::Write(file, _) if name(file) == record)) {
                None => assert!(world.do_step(), "{record} is not written"),
                Some(step) => {
                    let outcome = world.perform(&step);
                    world.seen.push(Seen::Performed(step, outcome));
                    return;
                }
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let begin = self.world.mono();
        let end = begin + time;
        loop {
            self.world.turn();
            self.observer.observe(&mut self.world, Some(begin));
            if self.world.exited() {
                return;
            }
            if self.world.mono() >= end {
                return self.check_heartbeat(time);
            }
            let next =
                self.world.deadline().filter(|at| *at > self.world.mono()).map_or(end, |at| at.min(end));
            self.world.advance(next - self.world.mono());
            self.world.handle(Event::Tick);
        }
    }

    /// A running node renews its Lease, whatever else happens.
    fn check_heartbeat(&self, time: Duration) {
        if self.world.link && time > Duration::from_secs(60) {
            let age = self.world.report().lease.seconds_since_renewal;
            assert!(age.is_some_and(|age| age < 15), "last renewed {age:?} s ago");
        }
    }

    /// An operator's acts on the API server, or on the agent at its board.
    fn operator(&mut self, word: &str, rest: &str) -> bool {
        let world = &mut self.world;
        let (name, content) = rest.split_once(' ').unwrap_or((rest, ""));
        if matches!(word, "push" | "push-data" | "keys" | "assign" | "follow" | "adopt") {
            self.observer.config_maps.insert(name.to_owned());
        }
        match word {
            "push" => drop(world.hub.push(name, &text_of(content))),
            "push-data" => drop(world.hub.push_data(name, parsed(content))),
            "keys" => {
                let parts = content.split(" | ").map(|part| part.split_once(' ').expect("KEY PAYLOAD | ..."));
                let data: serde_json::Map<String, Value> =
                    parts.map(|(key, payload)| (key.to_owned(), json!(text_of(payload)))).collect();
                world.hub.push_data(name, data.into());
            }
            "key" => {
                let mut source = Hub::following(name);
                source["configMap"]["kubeletConfigKey"] = json!(content);
                world.hub.assign(source);
            }
            "delete" => drop(world.hub.delete_config_map(name)),
            "assign" => {
                if !content.is_empty() {
                    world.hub.push(name, &text_of(content));
                }
                world.hub.assign(world.hub.pinned(name));
            }
            "follow" => {
                if !content.is_empty() {
                    world.hub.push(name, &text_of(content));
                }
                world.hub.assign(Hub::following(name));
            }
            "adopt" => drop(world.adopt(name, &text_of(content))),
            "unassign" => world.hub.assign(Value::Null),
            "source" => world.hub.assign(parsed(rest)),
            "forgive" => {
                let known = world.hub.config_map(rest).is_some();
                let uid = if known { world.hub.uid_of(rest) } else { rest.to_owned() };
                world.handle(Event::Forgive(uid));
            }
            "hold-promotion" => {
                world.hub.edit_node(|node| match on(rest) {
                    true => {
                        node["metadata"]["annotations"]["kedge.dev/hold-promotion"] =
                            json!("a test is under way");
                    }
                    false => {
                        let annotations = node["metadata"]["annotations"].as_object_mut();
                        annotations.expect("it has some").remove("kedge.dev/hold-promotion");
                    }
                });
            }
            "reset" => world.handle(Event::Reset),
            "edit-bad-configs" => {
                world.disk.put("0.1.0/bad-configs.json", rest.as_bytes());
                world.handle(Event::BadConfigsRead(world.read_bad_configs()));
            }
            "node" => match rest {
                "deleted" => world.hub.delete_node(),
                "created" => world.hub.create_node(NODE),
                _ => panic!("node deleted|created"),
            },
            "hub" => match rest {
                "wiped" => {
                    // UIDs and versions are never reused
                    let counter = world.hub.counter();
                    world.hub = Hub::new(Flavour::Kedge);
                    world.hub.wiped(counter);
                }
                _ => panic!("hub wiped"),
            },
            "unreadable" => {
                let watched = world.process.as_ref().and_then(|process| process.watched.clone());
                assert_eq!(watched, Some((NAMESPACE.to_owned(), name.to_owned())), "it is not watched");
                world.refuse_map(content);
            }
            "object" => {
                let metadata =
                    json!({"namespace": NAMESPACE, "name": name, "uid": content, "resourceVersion": "1"});
                let object = json!({"metadata": metadata, "data": {"kubelet": "x"}});
                world.handle(map_event(NAMESPACE, name, object));
            }
            "lists-again" => world.list_again(),
            "contact" => world.handle(Event::Renewed(Answer::Accepted(None))),
            "tick" => world.handle(Event::Tick),
            "start-event" => world.handle(Event::Start),
            _ => return false,
        }
        true
    }

    /// The board: its disk, clock, network, drop-ins, evidence.
    fn board(&mut self, word: &str, rest: &str) -> bool {
        let world = &mut self.world;
        let (name, content) = rest.split_once(' ').unwrap_or((rest, ""));
        match word {
            // the available part of a memory of 1 GiB; half of it by default
            "memory" => world.facts.memory_available_bytes = share(rest).map(|share| (1 << 30) * share / 100),
            "memory-size" => world.facts.memory_bytes = (1 << 30) * share(rest).expect("a share") / 100,
            "runtime" => {
                world.facts.runtime = match rest {
                    "works" => Runtime::Ready,
                    "fails" => Runtime::NotReady("crun is missing".into()),
                    _ => panic!("runtime works|fails"),
                }
            }
            "network" => world.link = on(rest),
            "dynamic-config" => world.dynamic = on(rest),
            "disk" => {
                world.disk.fault = match (name, content) {
                    ("works", _) => WriteFault::None,
                    ("full", _) => WriteFault::All,
                    ("read-only", _) => WriteFault::ReadOnly,
                    ("fails", "next") => WriteFault::Once(0),
                    ("fails", after) => {
                        let after = after.strip_prefix("after ").expect("disk fails next|after N");
                        WriteFault::Once(after.parse().expect("a number"))
                    }
                    _ => panic!("disk works|full|read-only|fails next|fails after N"),
                }
            }
            "remove" if rest == "everything" => world.disk.retain(|_| false),
            "remove" => {
                let path = self.observer.path_of(world, rest);
                world.disk.remove(&path);
            }
            "put" => {
                let path = self.observer.path_of(world, name);
                world.disk.put(&path, &bytes_of(content));
            }
            "edit" => edit(world, name, content),
            "clock" => world.board.set_wall(rest.parse().expect("microseconds")),
            "wait" => world.advance(time(rest)),
            "agent-version" => world.version = rest.into(),
            "drop-in" if rest == "none" => world.local.drop_ins.clear(),
            "drop-in" => world.drop_in(&fields_of(rest)),
            "base" => world.base(&fields_of(rest)),
            "evidence" => {
                world.board.consume_evidence();
                match rest {
                    "hardware-reset" => world.board.hardware_reset(),
                    "kernel-panic" => world.board.kernel_panic(),
                    _ => panic!("evidence hardware-reset|kernel-panic"),
                }
            }
            "show" => self.observer.show(world, rest),
            _ => return false,
        }
        true
    }
}

/// Sets members of a record, as somebody might who builds an image.
fn edit(world: &mut World, path: &str, members: &str) {
    let mut record = world.file(path).expect("the record is there");
    for (member, value) in parsed(members).as_object().expect("members") {
        record[member] = value.clone();
    }
    world.disk.put(path, record.to_string().as_bytes());
}

/// `signal status=SEGV stop-asked not-ready stalled=disk`
fn ending(words: &str, exit: Exit) -> Exit {
    words.split(' ').skip(1).fold(exit, |exit, word| match word {
        "stop-asked" => Exit { stop_asked: true, ..exit },
        _ if word.starts_with("status=") => Exit { exit_status: word["status=".len()..].into(), ..exit },
        "not-ready" => Exit { was_ready: false, ..exit },
        _ => {
            let stalled =
                word.strip_prefix("stalled=").expect("stop-asked, not-ready, status=S or stalled=LOOP");
            Exit { stalled: vec![stalled.into()], ..exit }
        }
    })
}

/// `40%`, or `unknown`.
fn share(word: &str) -> Option<u64> {
    word.strip_suffix('%').map(|share| share.parse().expect("a number"))
}

fn on(word: &str) -> bool {
    match word {
        "on" => true,
        "off" => false,
        _ => panic!("on|off"),
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// A payload: fields, or a JSON string with the whole text.
fn text_of(content: &str) -> String {
    match content.starts_with('"') {
        true => parsed(content).as_str().expect("a text").to_owned(),
        false => {
            let (max_pods, fields) = content.split_once(' ').unwrap_or((content, ""));
            let max_pods = max_pods.strip_prefix("maxPods=").expect("maxPods comes first");
            payload(max_pods.parse().expect("a number"), fields_of(fields).trim_end())
        }
    }
}

fn fields_of(content: &str) -> String {
    let fields = content.split(' ').filter(|field| !field.is_empty());
    fields
        .map(|field| match field.strip_prefix("system=") {
            Some(system) => machine::wants(system) + "\n",
            None if field.starts_with("agent=") => programs::wants(&field["agent=".len()..]) + "\n",
            None => field.replacen('=', ": ", 1).replace(":_", ": ") + "\n",
        })
        .collect()
}

/// A JSON string gives its text; anything else is taken literally.
fn bytes_of(content: &str) -> Vec<u8> {
    match content.starts_with('"') {
        true => parsed(content).as_str().expect("a text").as_bytes().to_vec(),
        false => content.as_bytes().to_vec(),
    }
}

/// `90s`, `2m30s`, `24h`.
fn time(text: &str) -> Duration {
    let seconds = text.split_inclusive(['h', 'm', 's']).map(|part| {
        let (number, unit) = part.split_at(part.len() - 1);
        let number: u64 = number.parse().expect("a number and a unit");
        match unit {
            "s" => number,
            "m" => number * 60,
            "h" => number * 3600,
            _ => panic!("h, m or s"),
        }
    });
    Duration::from_secs(seconds.sum())
}
