//! The scenarios of the search: the configs of each, its possible faults and their number, and its
//! invariants.

use crate::cast::{Config, DAY_TICKS, LOCAL, Nature, TRIAL_TICKS};
use crate::invariants::{BASE, Invariant, ROUGH};

/// A fault or an act of somebody else; a scenario limits how often each happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The power fails, while the agent waits or before any write.
    Cut,
    /// The process is killed before any write.
    Kill,
    /// A write fails, or all writes from one on.
    Fail,
    Crash,
    /// The machine panics.
    Panic,
    /// A planned stop.
    Stop,
    /// The Node gets another source.
    Push,
    /// The network fails.
    Outage,
    Upgrade,
    /// The drop-ins are replaced.
    DropIn,
    Forgive,
    /// The list of bad configs becomes unreadable.
    Garbage,
    /// A record is lost.
    Lose,
    /// Run after run crashes at once, whichever config runs.
    Storm,
    /// Power-on after power-on ends at once.
    Brownout,
    /// The object is edited, or created again.
    Edit,
    /// The kubeconfig names the other server.
    Server,
    /// Another program takes the node's memory, or releases it.
    Pressure,
}

/// The number of kinds of faults.
pub(crate) const FAULTS: usize = Fault::Pressure as usize + 1;

pub(crate) struct Scenario {
    pub(crate) title: &'static str,
    /// Configs that are not good, under each set of drop-ins; a single nature applies to all sets.
    natures: &'static [(Config, &'static [Nature])],
    invariants: &'static [&'static [Invariant]],
    /// The assignments that a push may make.
    pub(crate) pushes: &'static str,
    pub(crate) faults: &'static [(Fault, u8)],
    /// Drop-ins change at every start.
    pub(crate) drifts: bool,
    /// `crashLoopThreshold` of every config.
    pub(crate) threshold: u8,
    pub(crate) last_known_good: Config,
    /// The last-known-good before that.
    pub(crate) before: Config,
    /// A was on the image, and there was never a network.
    pub(crate) is_preloaded: bool,
    /// The assignment on the other server.
    pub(crate) second_server: char,
    /// Ticks of the trial of every pushed config.
    pub(crate) trial_ticks: usize,
    /// The Node has an annotation that asks to forgive A, from the beginning and without end.
    pub(crate) asks_to_forgive: bool,
}

impl Scenario {
    pub(crate) fn nature(&self, config: Config, layer: usize) -> Nature {
        let natures = self.natures.iter().find(|(other, _)| *other == config).map(|(_, natures)| *natures);
        match natures {
            None => Nature::Good,
            Some([one]) => *one,
            Some(natures) => natures[layer],
        }
    }

    pub(crate) fn invariants(&self) -> impl Iterator<Item = Invariant> {
        self.invariants.iter().copied().flatten().copied()
    }
}

const FULL: &[&[Invariant]] = &[BASE, &[Invariant::GoodConfigWins, Invariant::ProvenRunsInShortPowerOns]];
const CALM: &[&[Invariant]] = &[
    BASE,
    &[Invariant::GoodConfigWins, Invariant::ProvenRunsInShortPowerOns, Invariant::OutageCondemnsNothing],
];

const PRESSED: &[&[Invariant]] = &[BASE, &[Invariant::GoodConfigWins, Invariant::PressureIsNotPromoted]];

const A: Scenario = Scenario {
    title: "",
    natures: &[],
    invariants: FULL,
    pushes: "A",
    faults: &[],
    drifts: false,
    threshold: 1,
    last_known_good: 'G',
    before: LOCAL,
    is_preloaded: false,
    second_server: LOCAL,
    trial_ticks: TRIAL_TICKS,
    asks_to_forgive: false,
};
/// A trial that is longer than the core's longest wait.
const TWO_DAYS: usize = 2 * DAY_TICKS;
/// Nothing is pushed.
const G: Scenario = Scenario { pushes: "", ..A };

use Fault::*;
use Nature::*;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        title: "good A, cuts, stops, kills",
        invariants: CALM,
        threshold: 2,
        faults: &[(Push, 1), (Cut, 2), (Stop, 1), (Kill, 1)],
        ..A
    },
    Scenario {
        title: "good A, outages",
        invariants: &[
            FULL[0],
            FULL[1],
            &[Invariant::OutageCondemnsNothing, Invariant::GoodConfigWinsOverARareLink],
        ],
        faults: &[(Push, 1), (Outage, 2), (Cut, 1)],
        ..A
    },
    Scenario {
        title: "A crashes",
        natures: &[('A', &[Crashes])],
        threshold: 0,
        faults: &[(Push, 1), (Cut, 2), (Kill, 1)],
        ..A
    },
    Scenario {
        title: "A crashes, threshold 2",
        natures: &[('A', &[Crashes])],
        threshold: 2,
        faults: &[(Push, 1), (Cut, 1), (Kill, 1)],
        ..A
    },
    Scenario {
        title: "A crashes late",
        natures: &[('A', &[CrashesLate])],
        faults: &[(Push, 1), (Cut, 2), (Kill, 1)],
        ..A
    },
    Scenario {
        title: "A panics the machine",
        natures: &[('A', &[Panics])],
        faults: &[(Push, 1), (Cut, 1), (Kill, 1)],
        ..A
    },
    Scenario {
        title: "A resets the board",
        natures: &[('A', &[Resets])],
        faults: &[(Push, 1), (Kill, 1)],
        ..A
    },
    Scenario {
        title: "A kills the parser",
        natures: &[('A', &[KillsParser])],
        faults: &[(Push, 1), (Cut, 1), (Kill, 1)],
        ..A
    },
    Scenario {
        title: "A crashes, drop-ins change at every start",
        natures: &[('A', &[Crashes])],
        drifts: true,
        faults: &[(Push, 1), (Cut, 1), (Kill, 1)],
        ..A
    },
    Scenario {
        title: "A resets the board, drop-ins change at every start",
        natures: &[('A', &[Resets])],
        drifts: true,
        faults: &[(Push, 1), (Kill, 1)],
        ..A
    },
    Scenario {
        title: "A cuts itself off, drop-ins change at every start",
        natures: &[('A', &[Lost])],
        drifts: true,
        faults: &[(Push, 1), (Kill, 1)],
        ..A
    },
    Scenario {
        title: "A invalid, G crashes, drop-ins change at every start",
        natures: &[('A', &[Invalid]), ('G', &[Crashes])],
        drifts: true,
        faults: &[(Push, 1), (Kill, 1)],
        ..A
    },
    Scenario {
        title: "A kills the parser, then is invalid, by drop-ins",
        natures: &[('A', &[KillsParser, KillsParser, Invalid])],
        drifts: true,
        threshold: 2,
        faults: &[(Push, 1)],
        ..A
    },
    Scenario {
        title: "A cuts itself off",
        natures: &[('A', &[Lost])],
        faults: &[(Push, 1), (Outage, 1), (Cut, 1), (Kill, 1)],
        ..A
    },
    Scenario {
        title: "A cuts itself off after its first tick",
        natures: &[('A', &[LostLater])],
        faults: &[(Push, 1), (Outage, 1), (Cut, 1), (Kill, 1)],
        ..A
    },
    Scenario {
        title: "A cuts itself off, then good B",
        natures: &[('A', &[Lost])],
        pushes: "AB",
        faults: &[(Push, 2), (Outage, 1)],
        ..A
    },
    Scenario {
        title: "A crashes, then good B",
        natures: &[('A', &[Crashes])],
        pushes: "AB",
        faults: &[(Push, 2), (Cut, 1), (Kill, 1)],
        ..A
    },
    Scenario {
        title: "A unparsable, good B, back to local",
        natures: &[('A', &[Unparsable])],
        pushes: "ABD",
        faults: &[(Push, 3), (Cut, 1)],
        ..A
    },
    Scenario {
        title: "everything good, any push, kills",
        pushes: "ABGD",
        threshold: 2,
        faults: &[(Push, 3), (Kill, 1)],
        ..A
    },
    Scenario {
        title: "the source becomes invalid and valid again",
        natures: &[('A', &[Crashes])],
        pushes: "AXG",
        faults: &[(Push, 3), (Cut, 1), (Kill, 1)],
        ..A
    },
    Scenario {
        title: "the source is invalid, A good",
        pushes: "AX",
        faults: &[(Push, 3), (Cut, 1), (Stop, 1)],
        ..A
    },
    Scenario { title: "proven G, crashes from outside", faults: &[(Storm, 1), (Crash, 2), (Cut, 1)], ..G },
    Scenario {
        title: "proven G, crashes from outside, H before it",
        before: 'H',
        faults: &[(Storm, 2), (Crash, 1)],
        ..G
    },
    Scenario { title: "proven G, brownouts", faults: &[(Brownout, 1), (Cut, 1)], ..G },
    Scenario { title: "good A in its trial, brownouts", faults: &[(Push, 1), (Brownout, 1)], ..A },
    Scenario {
        title: "proven G crashes by itself, H before it",
        natures: &[('G', &[Crashes])],
        before: 'H',
        faults: &[(Cut, 1), (Stop, 1)],
        ..G
    },
    Scenario {
        title: "proven G and H crash, local good",
        natures: &[('G', &[Crashes]), ('H', &[CrashesLate])],
        before: 'H',
        faults: &[(Cut, 1)],
        ..G
    },
    Scenario {
        title: "A and G crash, H good",
        natures: &[('A', &[Crashes]), ('G', &[Crashes])],
        before: 'H',
        faults: &[(Push, 1), (Cut, 1)],
        ..A
    },
    Scenario {
        title: "crashes from outside, local crashes late, G good",
        natures: &[(LOCAL, &[CrashesLate])],
        faults: &[(Storm, 1), (Cut, 1)],
        ..G
    },
    Scenario {
        title: "everything crashes, H good",
        natures: &[('A', &[Panics]), ('G', &[CrashesLate]), (LOCAL, &[Crashes])],
        before: 'H',
        faults: &[(Push, 1), (Cut, 1)],
        ..A
    },
    Scenario {
        title: "proven G panics the machine by itself",
        natures: &[('G', &[Panics])],
        before: 'H',
        faults: &[(Cut, 1)],
        ..G
    },
    Scenario { title: "the machine panics under proven G", faults: &[(Panic, 4), (Crash, 2)], ..G },
    Scenario {
        title: "known bad A while good B is on trial",
        natures: &[('A', &[Crashes])],
        pushes: "AB",
        threshold: 0,
        faults: &[(Push, 3)],
        ..A
    },
    Scenario {
        title: "G crashes under drop-ins that are taken away",
        natures: &[('G', &[Good, Crashes, Good])],
        faults: &[(DropIn, 2), (Cut, 1)],
        ..G
    },
    Scenario {
        title: "G unproven under drop-ins, A crashes",
        natures: &[('G', &[Good, CrashesLate, Good]), ('A', &[Crashes])],
        faults: &[(DropIn, 2), (Push, 1)],
        ..A
    },
    Scenario {
        title: "A invalid under drop-ins",
        natures: &[('A', &[Good, Invalid, Good])],
        faults: &[(DropIn, 2), (Push, 1), (Cut, 1)],
        ..A
    },
    Scenario {
        title: "A crashes, local edits",
        natures: &[('A', &[Crashes])],
        faults: &[(DropIn, 3), (Push, 1), (Cut, 1)],
        ..A
    },
    Scenario {
        title: "first boot on local, A crashes",
        natures: &[('A', &[Crashes])],
        last_known_good: LOCAL,
        faults: &[(Push, 1), (Cut, 1), (Outage, 1), (Kill, 1)],
        ..A
    },
    Scenario {
        title: "preloaded A, never any network",
        last_known_good: LOCAL,
        is_preloaded: true,
        faults: &[(Outage, 1), (Cut, 2), (Kill, 1)],
        ..G
    },
    Scenario {
        title: "A is forgiven",
        natures: &[('A', &[Crashes])],
        threshold: 0,
        faults: &[(Push, 1), (Forgive, 1), (Cut, 1)],
        ..A
    },
    Scenario {
        title: "A crashes, and the Node has always asked to forgive it",
        natures: &[('A', &[Crashes])],
        threshold: 0,
        faults: &[(Push, 1), (Cut, 1), (Kill, 1)],
        asks_to_forgive: true,
        ..A
    },
    Scenario {
        title: "two upgrades, A crashes",
        natures: &[('A', &[Crashes])],
        faults: &[(Push, 1), (Upgrade, 2), (Cut, 1)],
        ..A
    },
    Scenario {
        title: "banned, proven by another version, and back",
        threshold: 0,
        faults: &[(Push, 1), (Upgrade, 2), (Crash, 1)],
        ..A
    },
    Scenario {
        title: "bad-configs.json becomes unreadable",
        natures: &[('A', &[Crashes])],
        pushes: "AB",
        threshold: 0,
        faults: &[(Push, 3), (Garbage, 1), (Cut, 1), (Kill, 1)],
        ..A
    },
    Scenario {
        title: "write errors, A crashes",
        natures: &[('A', &[Crashes])],
        invariants: &[ROUGH],
        faults: &[(Push, 1), (Fail, 2), (Cut, 1)],
        ..A
    },
    Scenario {
        title: "write errors, A good",
        invariants: &[ROUGH, &[Invariant::PromotedOnARenewal, Invariant::GoodConfigWins]],
        threshold: 3,
        faults: &[(Push, 1), (Fail, 2), (Cut, 1), (Stop, 1)],
        ..A
    },
    Scenario { title: "records lost, A good", threshold: 2, faults: &[(Push, 1), (Lose, 1), (Cut, 1)], ..A },
    Scenario {
        title: "records lost, A crashes",
        natures: &[('A', &[Crashes])],
        invariants: &[ROUGH],
        faults: &[(Push, 1), (Lose, 1), (Cut, 1)],
        ..A
    },
    Scenario {
        title: "A crashes, B cuts itself off",
        natures: &[('A', &[Crashes]), ('B', &[Lost])],
        pushes: "ABD",
        faults: &[(Push, 2), (Outage, 1), (Cut, 1), (DropIn, 1)],
        ..A
    },
    Scenario {
        title: "good A with a trial of two days, outages",
        trial_ticks: TWO_DAYS,
        faults: &[(Push, 1), (Outage, 2), (Cut, 1)],
        ..A
    },
    Scenario {
        title: "A with a trial of two days cuts itself off",
        natures: &[('A', &[Lost])],
        trial_ticks: TWO_DAYS,
        faults: &[(Push, 1), (Outage, 1), (Cut, 1)],
        ..A
    },
    Scenario {
        title: "two keys and two objects hold A",
        pushes: "Aabo",
        faults: &[(Push, 3), (Cut, 1)],
        ..A
    },
    Scenario {
        title: "A crashes, under every name it has",
        natures: &[('A', &[Crashes])],
        pushes: "Aao",
        threshold: 0,
        faults: &[(Push, 3), (Cut, 1)],
        ..A
    },
    Scenario {
        title: "A is edited and made anew",
        natures: &[('B', &[Crashes])],
        faults: &[(Push, 1), (Edit, 3), (Cut, 1)],
        ..A
    },
    Scenario {
        title: "another server, whose Node asks for nothing",
        pushes: "AX",
        faults: &[(Push, 2), (Server, 2), (Cut, 1)],
        ..A
    },
    Scenario {
        title: "another server, whose A was edited",
        pushes: "AD",
        second_server: 'A',
        faults: &[(Push, 2), (Edit, 1), (Server, 2), (Cut, 1)],
        ..A
    },
    Scenario {
        title: "A presses, B is good, pressure from outside",
        natures: &[('A', &[Presses])],
        invariants: PRESSED,
        pushes: "AB",
        faults: &[(Push, 2), (Pressure, 1), (Cut, 1), (Stop, 1)],
        ..A
    },
    Scenario {
        title: "A and B press",
        natures: &[('A', &[Presses]), ('B', &[Presses])],
        invariants: PRESSED,
        pushes: "AB",
        faults: &[(Push, 2), (Crash, 1), (Outage, 1)],
        ..A
    },
    Scenario {
        title: "good A, pressure from outside comes and goes",
        invariants: PRESSED,
        faults: &[(Push, 1), (Pressure, 2), (Outage, 1), (Stop, 1)],
        ..A
    },
];
