//! The configurations of a simulation run, and the effect of each on the agent: its nature, which a drop-in
//! may change.
//!
//! Always holds: the `maxPods` of a design identifies it, so the running one can be recognised from outside.

use kedge_platform::fake::Random;
use kedge_sim::{DEFAULT_PODS, HEADER};

/// The effect of a configuration on the agent that runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Nature {
    Good,
    /// The process ends as soon as the config is used.
    CrashesAtOnce,
    /// It ends after this many tenths of its trial.
    CrashesAfter(u32),
    /// A loop of the agent hangs at once; the supervisor's watchdog ends the agent.
    Hangs,
    /// The kernel ends the agent at once because of its memory.
    EatsMemory,
    /// The hardware watchdog resets the board at once, and leaves evidence.
    ResetsBoard,
    /// The board reboots at once without a trace.
    RebootsSilently,
    /// The kernel panics at once.
    Panics,
    /// It runs, but without a network.
    LosesContact,
    /// Not a configuration at all.
    Unparsable,
    /// A configuration with wrong values.
    Invalid,
}

impl Nature {
    /// Whether it can be used at all.
    pub(crate) fn is_valid(self) -> bool {
        !matches!(self, Self::Unparsable | Self::Invalid)
    }
}

const BAD: [Nature; 12] = [
    Nature::CrashesAtOnce,
    Nature::CrashesAfter(1),
    Nature::CrashesAfter(4),
    Nature::CrashesAfter(9),
    Nature::Hangs,
    Nature::EatsMemory,
    Nature::ResetsBoard,
    Nature::RebootsSilently,
    Nature::Panics,
    Nature::LosesContact,
    Nature::Unparsable,
    Nature::Invalid,
];

/// One payload.
#[derive(Debug, Clone)]
pub(crate) struct Design {
    pub(crate) payload: String,
    pub(crate) max_pods: u32,
    pub(crate) trial_ms: u64,
    pub(crate) threshold: u8,
    /// Its natures without and with the drop-in.
    natures: [Nature; 2],
}

impl Design {
    /// Its nature, without (0) or with (1) the drop-in.
    pub(crate) fn nature(&self, drop_in: usize) -> Nature {
        self.natures[drop_in]
    }

    /// Running time after which no earlier crash counts against it.
    pub(crate) fn settled_ms(&self) -> u64 {
        self.trial_ms.max(60_000)
    }
}

/// Fields of every configuration of a simulation run, so that hours pass with few events.
pub(crate) const SLOWLY: &str =
    "nodeLeaseDurationSeconds: 160\nnodeStatusUpdateFrequency: 5m\nnodeStatusReportFrequency: 5m\n";

/// Values that would silence a node for years, keep its disk or a processor busy, or never end a trial: each
/// exceeds a bound.
const HARMFUL: [(&str, &str); 6] = [
    ("nodeLeaseDurationSeconds: 160", "nodeLeaseDurationSeconds: 2147483647"),
    ("nodeLeaseDurationSeconds: 160", "nodeLeaseDurationSeconds: 1"),
    ("nodeStatusUpdateFrequency: 5m", "nodeStatusUpdateFrequency: 876000h"),
    ("nodeStatusUpdateFrequency: 5m", "nodeStatusUpdateFrequency: 1ms"),
    ("nodeStatusReportFrequency: 5m", "nodeStatusReportFrequency: 876000h"),
    ("crashLoopThreshold: ", "healthzPort: 70000\ncrashLoopThreshold: "),
];

/// An operator's setting to save traffic: the node then learns of a push only by its renewals.
pub(crate) const WITHOUT_WATCHES: &str = "kedge: {watch: off}\n";

/// The drop-in: it corrects a threshold that is out of range, so a payload may be valid only with it.
pub(crate) const DROP_IN: &str = "logging:\n  verbosity: 3\n";

/// Designs for one run. `all_good`: none of them does harm.
pub(crate) fn designs(random: &mut Random, all_good: bool) -> Vec<Design> {
    (0..6).map(|number| design(random, number, all_good)).collect()
}

fn design(random: &mut Random, number: u32, all_good: bool) -> Design {
    let nature = |random: &mut Random| {
        if all_good || random.percent(40) { Nature::Good } else { *random.pick(&BAD) }
    };
    let first = nature(random);
    // an unparsable payload stays unparsable with any drop-in; wrong values may be corrected by one
    let second = match first {
        Nature::Unparsable => first,
        _ if random.percent(60) && first != Nature::Invalid => first,
        _ => std::iter::repeat_with(|| nature(random))
            .find(|nature| nature.is_valid() || first == Nature::Invalid && *nature == Nature::Invalid)
            .expect("chance finds one"),
    };
    let (trial, trial_ms) =
        *random.pick(&[("0s", 0), ("40s", 40_000), ("4m", 240_000), ("10m", 600_000), ("1h", 3_600_000)]);
    let threshold = *random.pick(&[0, 1, 2, 10]);
    let max_pods = 201 + number;
    let mut payload = format!(
        "{HEADER}maxPods: {max_pods}\nconfigTrialDuration: {trial}\ncrashLoopThreshold: {threshold}\n{SLOWLY}"
    );
    match (first, second) {
        (Nature::Unparsable, _) => payload = format!("number: {max_pods}: ["),
        // wrong alone but right with the drop-in, or wrong with both
        (Nature::Invalid, Nature::Invalid) => {
            let (field, harmful) = *random.pick(&HARMFUL);
            payload = payload.replace(field, harmful);
        }
        (Nature::Invalid, _) => payload.push_str("logging:\n  verbosity: 44\n"),
        _ => {}
    }
    if first != Nature::Unparsable && random.percent(12) {
        payload.push_str(WITHOUT_WATCHES);
    }
    Design { payload, max_pods, trial_ms, threshold, natures: [first, second] }
}

/// The design with this `maxPods`; `None` for the local config.
pub(crate) fn with_pods(designs: &[Design], max_pods: u32) -> Option<&Design> {
    assert!(
        max_pods == DEFAULT_PODS || designs.iter().any(|design| design.max_pods == max_pods),
        "{max_pods}"
    );
    designs.iter().find(|design| design.max_pods == max_pods)
}
