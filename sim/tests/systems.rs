//! A machine with two slots gets a new system, and its power fails once, before each of its writes and
//! orders. It starts from either slot, with one agent in both systems and with two.
//!
//! Always holds: after the fault the node ends where it would have ended without one. Leaves the texts and
//! single rules to `scenarios/systems.txt`.

use kedge_core::config::records::{Read, StateFile, read_last_known_good};
use kedge_sim::hub::Hub;
use kedge_sim::machine::{Machine, Nature, digest_of, wants};
use kedge_sim::{World, payload};
use std::time::Duration;

/// Time of a step of the world.
const STEP: Duration = Duration::from_secs(10);
/// A slot is judged this long after its boot.
const JUDGED_AFTER: Duration = Duration::from_secs(20);
/// Most restarts of the machine; a suspected system is tried twice, with three tries each.
const MOST_BOOTS: u32 = 12;

#[derive(Clone, Copy)]
struct Case {
    nature: Nature,
    /// The pushed config ends the agent.
    crashes: bool,
    /// The slot of the factory's system.
    slot: usize,
    /// `configTrialDuration`; a short one is over before the slot is judged.
    trial: &'static str,
    /// Steps between the order to restart and the end of the agent: pods end first.
    lingers: u32,
    /// Whether the pushed system has another version of the agent.
    is_another_agent: bool,
    minutes: u64,
    /// The system that runs in the end, and its `maxPods`.
    expect: (&'static str, u32),
}

const GOOD: Case = Case {
    nature: Nature::Good,
    crashes: false,
    slot: 0,
    trial: "1m",
    lingers: 0,
    is_another_agent: false,
    minutes: 12,
    expect: ("Y", 202),
};

struct Run {
    world: World,
    case: Case,
    /// Acts until the power fails.
    left: Option<usize>,
    acts: usize,
    /// Steps since the machine was ordered to restart.
    lingered: u32,
}

impl Run {
    fn new(case: Case, cut: Option<usize>) -> Self {
        let mut world = World::new();
        let mut machine = Machine::in_slot(case.slot);
        machine.natures.insert("Y".into(), case.nature);
        if case.is_another_agent {
            machine.agents.insert("Y".into(), "0.2.0".into());
        }
        world.machine = Some(machine);
        world.start();
        let trial = format!("configTrialDuration: {}\n", case.trial);
        let good = format!("{trial}{}\n", wants("X"));
        world.adopt("a", &payload(201, &good));
        world.run_for(Duration::from_secs(120));
        assert_eq!(world.state(), "known-good");
        let pushed = format!("{trial}crashLoopThreshold: 0\n{}\n", wants("Y"));
        world.hub.push("b", &payload(202, &pushed));
        let source = Hub::following("b");
        world.hub.assign(source);
        Self { world, case, left: cut, acts: 0, lingered: 0 }
    }

    /// Does what there is to do now; cuts the power before the act that is chosen.
    fn turn(&mut self) {
        loop {
            let node = &self.world.nodes[0];
            let is_act = node.process.as_ref().is_some_and(|process| process.step.is_some())
                || node.machine.as_ref().is_some_and(|machine| machine.order.is_some());
            if is_act {
                self.acts += 1;
                if self.left == Some(self.acts) {
                    self.world.power_cut();
                    return;
                }
            }
            let World { nodes, hub, .. } = &mut self.world;
            if !nodes[0].turn(hub) {
                return;
            }
        }
    }

    fn machine(&mut self) -> &mut Machine {
        self.world.machine.as_mut().expect("it has slots")
    }

    fn go(&mut self) {
        for _ in 0..self.case.minutes * 60 / STEP.as_secs() {
            for _ in 0..8 {
                if self.world.process.is_none() {
                    self.world.launch();
                }
                self.turn();
                let is_last = self.world.exited() || self.lingered >= self.case.lingers;
                if self.machine().restarts && !is_last {
                    self.lingered += 1;
                    break;
                }
                if self.machine().restarts && !self.world.exited() {
                    self.lingered = 0;
                    self.world.reboot();
                } else if self.machine().restarts {
                    self.world.power_cut();
                } else if self.world.process.is_some() && self.world.exited() {
                    self.world.exit();
                } else if self.world.process.is_some() {
                    break;
                }
            }
            let runs_pushed = self.world.process.as_ref().is_some_and(|process| process.used == Some(202));
            if self.case.crashes && runs_pushed {
                self.world.crash();
                continue;
            }
            if self.world.mono() >= JUDGED_AFTER {
                self.world.judge_slot();
            }
            self.world.advance(STEP);
            self.world.handle(kedge_core::Event::Tick);
        }
        self.turn();
    }

    #[track_caller]
    fn check(&mut self, what: &str) {
        let (system, max_pods) = self.case.expect;
        let runs = self.machine().runs();
        let boots = self.machine().boots;
        let list = self.machine().list();
        assert_eq!((runs.as_str(), self.world.used()), (system, max_pods), "{what}: {list}");
        assert!(boots <= MOST_BOOTS, "{what}: {boots} boots");
        let age = self.world.report().lease.seconds_since_renewal;
        assert!(age.is_some_and(|age| age < 60), "{what}: last renewed {age:?} s ago");
        let shown = self.world.report().system.map(|shown| (shown.status, shown.reason));
        let truth = if system == "Y" { ("True", "Wanted") } else { ("False", "BadSystem") };
        assert_eq!(shown, Some((truth.0, truth.1.to_owned())), "{what}: SystemOK");
        let path = StateFile::LastKnownGood.path("");
        let good = read_last_known_good(&self.world.disk.content(&path).map_or(Read::Absent, Read::Content));
        let good = good.known().and_then(|good| good.system);
        assert_eq!(good, Some(digest_of(system)), "{what}: the system of last-known-good");
    }
}

/// Every cut of this case, and none.
fn check(name: &str, case: Case) {
    let mut run = Run::new(case, None);
    run.go();
    run.check(name);
    let acts = run.acts;
    assert!(acts > 10, "{name}: {acts} acts");
    for cut in 1..=acts {
        let mut run = Run::new(case, Some(cut));
        run.go();
        run.check(&format!("{name}, cut before act {cut} of {acts}"));
    }
}

#[test]
fn good_system_is_promoted_with_its_config() {
    check("good", GOOD);
    check("good, slot b, another agent", Case { slot: 1, is_another_agent: true, ..GOOD });
}

#[test]
fn hanging_system_is_given_up() {
    let case = Case { nature: Nature::Hangs, minutes: 25, expect: ("X", 201), ..GOOD };
    check("hangs", case);
    check("hangs, slot b, another agent", Case { slot: 1, is_another_agent: true, ..case });
}

#[test]
fn system_that_loses_contact_is_left() {
    let case = Case { nature: Nature::DeafLater, minutes: 25, expect: ("X", 201), ..GOOD };
    check("deaf later", case);
    check("deaf later, another agent", Case { is_another_agent: true, ..case });
}

#[test]
fn config_that_crashes_takes_its_system_back() {
    let case = Case { crashes: true, minutes: 15, expect: ("X", 201), ..GOOD };
    check("crashes", case);
    check("crashes, slot b, another agent", Case { slot: 1, is_another_agent: true, ..case });
    // last-known-good runs longer than T before the slot is judged, and before the machine ends
    let case = Case { trial: "2s", lingers: 7, ..case };
    check("crashes, T shorter than the trial of a slot", case);
    check("crashes, the same, slot b, another agent", Case { slot: 1, is_another_agent: true, ..case });
}
