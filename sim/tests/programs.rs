//! A machine without slots gets a new program of the agent, and its power fails once: before each of its
//! writes, orders and starts. The program has the same agent in it or another one, and natures of all kinds.
//!
//! Always holds: after the fault the node ends where it would have ended without one, with contact. Leaves
//! the record of the starter to `kedge_core::system::starter`, and machines with slots to `systems`.

use kedge_core::config::records::{Read, StateFile, read_last_known_good};
use kedge_core::system::programs::packaged;
use kedge_sim::hub::Hub;
use kedge_sim::machine::digest_of;
use kedge_sim::programs::{Nature, Programs, wants};
use kedge_sim::{World, payload};
use serde_json::{Value, json};
use std::time::Duration;

/// Time of a step of the world.
const STEP: Duration = Duration::from_secs(10);
/// Most starts of a program: of a suspected one three in each of two trials, and those for configurations.
const MOST_STARTS: u32 = 16;
const TRIAL: &str = "configTrialDuration: 1m\n";

#[derive(Clone, Copy)]
struct Case {
    nature: Nature,
    /// The pushed config ends the agent.
    crashes: bool,
    /// Whether the program has another version of the agent.
    is_another_agent: bool,
    /// The program that last-known-good names, if it is not the packaged one.
    before: Option<&'static str>,
    minutes: u64,
    /// The program that runs in the end, and its `maxPods`.
    expect: (&'static str, u32),
}

const GOOD: Case = Case {
    nature: Nature::Good,
    crashes: false,
    is_another_agent: false,
    before: None,
    minutes: 8,
    expect: ("Y", 202),
};
const BAD: Case = Case { minutes: 12, expect: ("X", 201), ..GOOD };

struct Run {
    world: World,
    case: Case,
    /// Acts until the power fails.
    left: Option<usize>,
    acts: usize,
}

impl Run {
    fn new(case: Case, cut: Option<usize>) -> Self {
        let mut world = World::new();
        let mut programs = Programs::default();
        programs.natures.insert("Y".into(), case.nature);
        if case.is_another_agent {
            programs.agents.insert("Y".into(), "0.2.0".into());
        }
        world.programs = Some(programs);
        world.start();
        let names = case.before.map(wants).unwrap_or_default();
        world.hub.push("a", &payload(201, &format!("{TRIAL}{names}\n")));
        world.hub.assign(Hub::following("a"));
        let mut run = Self { world, case: GOOD, left: None, acts: 0 };
        run.go(Duration::from_secs(300));
        let Self { mut world, .. } = run;
        assert_eq!(world.state(), "known-good");
        let pushed = format!("{TRIAL}crashLoopThreshold: 0\n{}\n", wants("Y"));
        world.hub.push("b", &payload(202, &pushed));
        world.hub.assign(Hub::following("b"));
        Self { world, case, left: cut, acts: 0 }
    }

    /// Counts an act; cuts the power before the chosen one.
    fn is_cut(&mut self) -> bool {
        self.acts += 1;
        let is_cut = self.left == Some(self.acts);
        if is_cut {
            self.world.power_cut();
        }
        is_cut
    }

    /// Does what there is to do now.
    fn turn(&mut self) {
        loop {
            let node = &self.world.nodes[0];
            let is_act = node.process.as_ref().is_some_and(|process| process.step.is_some())
                || node.programs.as_ref().is_some_and(|programs| programs.order.is_some());
            if is_act && self.is_cut() {
                return;
            }
            let World { nodes, hub, .. } = &mut self.world;
            if !nodes[0].turn(hub) {
                return;
            }
        }
    }

    fn programs(&self) -> &Programs {
        self.world.programs.as_ref().expect("it has programs")
    }

    /// Until it runs and has nothing to do.
    fn settle(&mut self) {
        for _ in 0..8 {
            if self.world.process.is_none() && !self.is_cut() {
                self.world.launch();
            }
            self.turn();
            match self.world.process.is_some() && self.world.exited() {
                true => self.world.exit(),
                false if self.world.process.is_some() => return,
                false => {}
            }
        }
    }

    fn go(&mut self, time: Duration) {
        for _ in 0..time.as_secs() / STEP.as_secs() {
            self.settle();
            let runs_pushed = self.world.process.as_ref().is_some_and(|process| process.used == Some(202));
            if self.case.crashes && runs_pushed {
                self.world.crash();
                continue;
            }
            self.world.advance(STEP);
            self.world.handle(kedge_core::Event::Tick);
        }
        self.settle();
    }

    #[track_caller]
    fn check(&self, what: &str) {
        let (program, max_pods) = self.case.expect;
        let list = Programs::list(&self.world.disk);
        let runs = self.programs().runs();
        assert_eq!((runs.as_str(), self.world.used()), (program, max_pods), "{what}: {list}");
        let starts = self.programs().starts;
        assert!(starts <= MOST_STARTS, "{what}: {starts} starts of a program");
        let age = self.world.report().lease.seconds_since_renewal;
        assert!(age.is_some_and(|age| age < 60), "{what}: last renewed {age:?} s ago");
        let path = StateFile::LastKnownGood.path("");
        let good = read_last_known_good(&self.world.disk.content(&path).map_or(Read::Absent, Read::Content));
        let good = good.known().and_then(|good| good.system);
        let expect = match program {
            "X" => packaged(),
            program => digest_of(program),
        };
        // a program that nothing ever started leaves no way back to note
        assert!(good.is_none_or(|good| good == expect), "{what}: another program is last-known-good's");
        assert!(program == "X" || good.is_some(), "{what}: nothing is last-known-good's");
        let node = self.world.hub.node().expect("it is registered");
        let shown = node["metadata"]["annotations"]["kedge.dev/system"].as_str();
        let shown = shown.map(|text| serde_json::from_str::<Value>(text).expect("JSON"));
        let name = format!("sha256:{expect}");
        assert!(shown.as_ref().is_none_or(|shown| shown["runs"] == name.as_str()), "{what}: {shown:?}");
        if max_pods == 202 {
            let all = json!({"runs": name, "wants": name, "lastKnownGood": name, "state": "Wanted"});
            assert_eq!(shown, Some(all), "{what}");
        }
    }
}

/// This case without a cut, and with each one: of the agent in the packaged program every fifth, of another
/// agent the others, or with `FULL=1` all of both.
fn check(name: &str, case: Case) {
    let is_full = std::env::var("FULL").is_ok_and(|full| full == "1");
    let time = Duration::from_secs(60 * case.minutes);
    for is_another_agent in [false, true] {
        let case = Case { is_another_agent, ..case };
        let mut run = Run::new(case, None);
        run.go(time);
        run.check(name);
        let acts = run.acts;
        assert!(acts > 10, "{name}: {acts} acts");
        for cut in (1..=acts).filter(|cut| is_full || cut % 5 == usize::from(is_another_agent)) {
            let mut run = Run::new(case, Some(cut));
            run.go(time);
            run.check(&format!("{name}, another agent: {is_another_agent}, cut before act {cut} of {acts}"));
        }
    }
}

#[test]
fn good_program_is_promoted_with_its_config() {
    check("good", GOOD);
}

#[test]
fn program_for_another_processor_is_left() {
    check("SIGILL", Case { nature: Nature::Dies("ILL"), ..BAD });
}

#[test]
fn program_that_never_becomes_ready_is_left() {
    check("never ready", Case { nature: Nature::NeverReady, ..BAD });
}

#[test]
fn program_that_the_kernel_does_not_start_is_left() {
    check("another C library", Case { nature: Nature::NoExec, ..BAD });
}

#[test]
fn program_whose_file_is_gone_is_given_up() {
    check("gone", Case { nature: Nature::Gone, ..BAD });
}

#[test]
fn program_without_contact_is_left() {
    check("deaf", Case { nature: Nature::Deaf, minutes: 45, ..BAD });
}

#[test]
fn program_that_loses_contact_later_is_left() {
    check("deaf later", Case { nature: Nature::DeafLater, minutes: 25, ..BAD });
}

#[test]
fn config_that_crashes_takes_its_program_back() {
    let case = Case { crashes: true, before: Some("Z"), minutes: 10, expect: ("Z", 201), ..GOOD };
    check("crashes, Z before it", case);
}

/// Only a last-known-good that names its program causes a restart.
#[test]
fn config_that_crashes_leaves_its_program() {
    check("crashes", Case { crashes: true, minutes: 10, expect: ("Y", 201), ..GOOD });
}
