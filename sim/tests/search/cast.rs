//! The configs of a scenario, by letter, and the effect of each on a board.
//!
//! Owns payloads, drop-ins and the objects with the payloads. Always holds: the `maxPods` of a config
//! identifies it; the local config is `D`. Trials last a quarter of a day, two ticks, unless a scenario sets
//! another length, so that eight ticks cover the core's longest wait of a day.

use crate::scenarios::Scenario;
use kedge_core::kubelet::{LayerText, LocalLayers, Origin, canonical_overrides};
use kedge_core::{ConfigId, Digest};
use kedge_sim::hub::NAMESPACE;
use kedge_sim::{DEFAULT_PODS, HEADER, payload};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// A config by its letter.
pub(crate) type Config = char;
/// The local config.
pub(crate) const LOCAL: Config = 'D';
/// The Node has an invalid source.
pub(crate) const INVALID_SOURCE: Config = 'X';
const PAYLOADS: [Config; 4] = ['A', 'B', 'G', 'H'];
/// Sets of drop-ins that a board may have.
pub(crate) const LAYERS: usize = 3;

/// The time in which progress is saved once.
pub(crate) const TICK: Duration = Duration::from_secs(3 * 3600);
/// Ticks of a trial.
pub(crate) const TRIAL_TICKS: usize = 2;
/// Ticks of the core's longest wait, a day.
pub(crate) const DAY_TICKS: usize = 8;

/// The effect of a config on the board that runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nature {
    Good,
    /// The process ends as soon as the config is used.
    Crashes,
    /// It ends after one tick.
    CrashesLate,
    /// The kernel panics as soon as it is used.
    Panics,
    /// The board resets as soon as it is used, without a trace.
    Resets,
    /// It reaches no server.
    Lost,
    /// It reaches no server after the first tick of each run.
    LostLater,
    /// The node is short of memory by this config's thresholds, and by those of no other.
    Presses,
    /// Not a configuration at all.
    Unparsable,
    /// A configuration with wrong values.
    Invalid,
    /// The process ends while it parses the payload.
    KillsParser,
}

impl Nature {
    pub(crate) fn is_valid(self) -> bool {
        !matches!(self, Self::Unparsable | Self::Invalid | Self::KillsParser)
    }

    pub(crate) fn ends_runs(self) -> bool {
        matches!(self, Self::Crashes | Self::CrashesLate | Self::Panics | Self::Resets | Self::KillsParser)
    }
}

pub(crate) struct Cast {
    scenario: &'static Scenario,
    payloads: BTreeMap<Config, String>,
    layers: Vec<LocalLayers>,
    by_payload: BTreeMap<String, Config>,
    by_id: BTreeMap<String, Config>,
}

impl Cast {
    pub(crate) fn new(scenario: &'static Scenario) -> Self {
        let texts = PAYLOADS.into_iter().zip(201..);
        let payloads: BTreeMap<Config, String> =
            texts.map(|(config, pods)| (config, text(scenario, config, pods))).collect();
        let layers: Vec<LocalLayers> = (0..LAYERS).map(|layer| local(scenario, layer)).collect();
        let digest = |text: &String| Digest::of(text.as_bytes()).to_string();
        let by_payload = payloads.iter().map(|(config, text)| (digest(text), *config)).collect();
        let mut by_id = BTreeMap::new();
        for layers in &layers {
            let overrides = canonical_overrides(layers).expect("the drop-ins are valid");
            for (config, text) in &payloads {
                by_id.insert(ConfigId::of(text.as_bytes(), &overrides).to_string(), *config);
            }
        }
        Self { scenario, payloads, layers, by_payload, by_id }
    }

    pub(crate) fn nature(&self, config: Config, layer: usize) -> Nature {
        self.scenario.nature(config, layer)
    }

    /// The local config with this set of drop-ins.
    pub(crate) fn local(&self, layer: usize) -> LocalLayers {
        self.layers[layer].clone()
    }

    /// The config that has this `maxPods`.
    pub(crate) fn with_pods(&self, pods: u32) -> Config {
        if pods == DEFAULT_PODS {
            return LOCAL;
        }
        PAYLOADS[usize::try_from(pods - 201).expect("one of the payloads")]
    }

    /// The config whose payload has this digest.
    pub(crate) fn with_payload(&self, digest: &str) -> Option<Config> {
        self.by_payload.get(digest).copied()
    }

    /// The config that a verdict with this id is about; the id is of its payload and a set of drop-ins.
    pub(crate) fn with_id(&self, id: &str) -> Option<Config> {
        self.by_id.get(id).copied()
    }

    pub(crate) fn digest(&self, config: Config) -> String {
        self.payloads.get(&config).map(|text| Digest::of(text.as_bytes()).to_string()).unwrap_or_default()
    }

    /// Name and key of the object that an operator assigns. Small letters are other names of a payload: `a`
    /// and `b` are further keys of A's object, `o` is another object with A's payload.
    fn place(asked: char) -> (&'static str, &'static str) {
        match asked {
            'A' => ("a", "kubelet"),
            'a' => ("a", "same"),
            'b' => ("a", "other"),
            'o' => ("twin", "kubelet"),
            'B' => ("b", "kubelet"),
            'G' => ("g", "kubelet"),
            'H' => ("h", "kubelet"),
            other => panic!("nobody is called {other}"),
        }
    }

    /// The `spec.configSource` for this assignment.
    pub(crate) fn source(asked: char) -> Value {
        match asked {
            LOCAL => Value::Null,
            INVALID_SOURCE => json!({"configMap": {"namespace": NAMESPACE}}),
            asked => {
                let (name, key) = Self::place(asked);
                json!({"configMap": {"namespace": NAMESPACE, "name": name, "kubeletConfigKey": key}})
            }
        }
    }

    /// The config that this source leads to; `None` if it leads to nothing that can be judged.
    pub(crate) fn asked_for(asked: char, objects: Objects) -> Option<Config> {
        match asked {
            INVALID_SOURCE => None,
            LOCAL => Some(LOCAL),
            'A' if objects.is_edited() => Some('B'),
            'a' | 'o' => Some('A'),
            'b' => Some('B'),
            asked => Some(asked),
        }
    }

    /// The object of this name on this server.
    pub(crate) fn object(&self, name: &str, server: u64, objects: Objects) -> Value {
        let text = |config: Config| self.payloads[&config].clone();
        let data = match name {
            "a" => {
                let edited = if objects.is_edited() { 'B' } else { 'A' };
                json!({"kubelet": text(edited), "same": text('A'), "other": text('B')})
            }
            "twin" => json!({"kubelet": text('A')}),
            name => json!({"kubelet": text(name.to_ascii_uppercase().chars().next().expect("a letter"))}),
        };
        let uid = format!("uid-{name}-{server}-{}", objects.creations());
        let version = format!("{}", 10 + objects.0);
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": NAMESPACE, "uid": uid, "resourceVersion": version},
            "data": data,
        })
    }
}

/// The history of a server's objects: how often A's was edited to have B's payload, and then deleted and
/// created again with its first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Objects(pub(crate) u8);

impl Objects {
    fn is_edited(self) -> bool {
        self.0 % 2 == 1
    }

    fn creations(self) -> u8 {
        self.0 / 2
    }

    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

fn text(scenario: &Scenario, config: Config, pods: u32) -> String {
    let nature = |layer| scenario.nature(config, layer);
    if nature(0) == Nature::Unparsable {
        return format!("number: {pods}: [");
    }
    let is_invalid_later = (1..LAYERS).any(|layer| nature(layer) == Nature::Invalid);
    let wrong = if nature(0) == Nature::Invalid { "healthzPort: 70000\n" } else { "" };
    let presses = if nature(0) == Nature::Presses { "evictionHard: {memory.available: 45%}\n" } else { "" };
    // the drop-ins under which it is invalid lower the other threshold
    let low = if is_invalid_later { 70 } else { 50 };
    let fields = format!(
        "{}crashLoopThreshold: {}\nimageGCLowThresholdPercent: {low}\n{wrong}{presses}",
        terms(scenario.trial_ticks),
        scenario.threshold
    );
    payload(pods, &fields)
}

/// Renewals every 40 s: one is always under way at the end of a tick.
fn terms(trial_ticks: usize) -> String {
    let hours = TICK.as_secs() / 3600 * trial_ticks as u64;
    format!("configTrialDuration: {hours}h\nnodeLeaseDurationSeconds: 160\nnodeStatusUpdateFrequency: 5m\n")
}

fn local(scenario: &Scenario, layer: usize) -> LocalLayers {
    let text = |fields: String| format!("{HEADER}{fields}").into_bytes();
    let base = format!("{}imageGCLowThresholdPercent: 50\n", terms(TRIAL_TICKS));
    let base = LayerText { origin: Origin::File("/etc/kedge/config.yaml".into()), text: text(base) };
    let mut local = LocalLayers { base: Some(base), ..LocalLayers::default() };
    if layer > 0 {
        let is_narrow = PAYLOADS.iter().any(|config| scenario.nature(*config, layer) == Nature::Invalid);
        let high = if is_narrow { 60 } else { 84 };
        let fields = format!("registryPullQPS: {}\nimageGCHighThresholdPercent: {high}\n", 10 + layer);
        let origin = Origin::DropIn("/etc/kedge/config.d/10-site.conf".into());
        local.drop_ins = vec![LayerText { origin, text: text(fields) }];
    }
    local
}
