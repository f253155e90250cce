//! Layers of configuration: a payload, the `--config` file and two drop-ins, in any state.
//!
//! Checked: an effective configuration read back as a layer stays the same; whether the base comes from a
//! file or from a ConfigMap changes only its recorded origin; canonical overrides are canonical; errors name
//! the field or file and stay short.

use crate::Target;
use crate::input::{SEPARATOR, joined, sections};
use crate::yaml::{check_message, means};
use kedge_core::kubelet::error::ConfigError;
use kedge_core::kubelet::layers::MAX_PROBLEMS;
use kedge_core::kubelet::{
    Effective, LayerText, LocalLayers, MAX_TAINTS, Origin, canonical_overrides, effective, yaml,
};
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) const TARGET: Target =
    Target { name: "config", run, seeds, words: WORDS, longest_bytes: 4096, mutations: 1000 };

const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// Bits of the first byte.
const WITH_PAYLOAD: u8 = 1;
const WITH_BASE: u8 = 2;
const WITH_FIRST: u8 = 4;
const WITH_SECOND: u8 = 8;
const WITH_FLAG: u8 = 16;
/// The header is added before each text, so that a mutation need not spell it.
const HEADED: u8 = 32;

const WORDS: &[&str] = &[
    "apiVersion: kubelet.config.k8s.io/v1beta1\n",
    "kind: KubeletConfiguration\n",
    "configTrialDuration: ",
    "crashLoopThreshold: ",
    "nodeStatusUpdateFrequency: ",
    "nodeStatusReportFrequency: ",
    "nodeLeaseDurationSeconds: ",
    "registerNode: ",
    "registerWithTaints: ",
    "providerID: ",
    "healthzBindAddress: ",
    "healthzPort: ",
    "logging: ",
    "verbosity: ",
    "maxPods: ",
    "systemReserved: ",
    "kubeReserved: ",
    "evictionHard: ",
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "pid.available",
    "evictionPressureTransitionPeriod: ",
    "clusterDNS: ",
    "clusterDomain: ",
    "authentication: ",
    "x509: ",
    "clientCAFile: ",
    "featureGates: ",
    "staticPodPath: ",
    "imageGCHighThresholdPercent: ",
    "imageGCLowThresholdPercent: ",
    "shutdownGracePeriod: ",
    "shutdownGracePeriodCriticalPods: ",
    "containerLogMaxSize: ",
    "kedge: ",
    "key: ",
    "value: ",
    "effect: ",
    "NoSchedule",
    "NoExecute",
    "cpu",
    "memory",
    "ephemeral-storage",
    "10m",
    "1h30m",
    "10%",
    "1.5Gi",
    "500m",
    "-1",
    "null",
    "{}",
    "[]",
    "\u{1e}",
    "~",
    "true",
    "2147483648",
    "9223372036854775807",
];

fn seeds() -> Vec<Vec<u8>> {
    let all = WITH_PAYLOAD | WITH_BASE | WITH_FIRST | WITH_SECOND;
    let seed = |flags: u8, texts: &[&str]| [&[flags][..], &joined(texts)].concat();
    vec![
        seed(
            HEADED | all,
            &[
                "configTrialDuration: 1h10m\ncrashLoopThreshold: 3\nlogging: {verbosity: 2, flushFrequency: 5s}\n",
                "maxPods: 10\n",
                "systemReserved: {cpu: 1500m, memory: 1.5Gi}\nlogging: ~\n",
                "evictionHard:\n  memory.available: \"10%\"\n  nodefs.available: 1Gi\nlogging: {verbosity: 4}\n",
            ],
        ),
        seed(
            HEADED | WITH_PAYLOAD | WITH_FLAG,
            &[
                "registerWithTaints:\n- {key: example.com/a, value: b, effect: NoSchedule}\nhealthzBindAddress: '::1'\n",
            ],
        ),
        seed(
            WITH_PAYLOAD,
            &[
                "{\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"kind\":\"KubeletConfiguration\",\"maxPods\":110}",
            ],
        ),
        seed(
            HEADED | WITH_BASE | WITH_FIRST,
            &[
                "",
                "authentication: {x509: {clientCAFile: /a}}\nfeatureGates: {a: true}\n",
                "authentication: null\n",
            ],
        ),
        seed(
            HEADED | all | WITH_FLAG,
            &["nodeStatusUpdateFrequency: 20s\n", "", "featureGates: ~\n", "featureGates: {b: false}\n"],
        ),
        seed(
            HEADED | WITH_BASE,
            &[
                "",
                "imageGCHighThresholdPercent: 90\nimageGCLowThresholdPercent: 80\nshutdownGracePeriod: 30s\nclusterDNS: [10.0.0.1]\n",
            ],
        ),
    ]
}

fn run(data: &[u8]) {
    let Some((flags, texts)) = data.split_first() else { return };
    let [payload, base, first, second] = sections::<4>(texts);
    let layer = |bit: u8, origin: Origin, text: &[u8]| {
        let head = if flags & HEADED == 0 { "" } else { HEADER };
        (flags & bit != 0).then(|| LayerText { origin, text: [head.as_bytes(), text].concat() })
    };
    let map = Origin::ConfigMap { namespace: "kube-system".into(), name: "edge".into(), uid: "7f3c".into() };
    let payload = layer(WITH_PAYLOAD, map, payload);
    let base = layer(WITH_BASE, Origin::File("/etc/kedge/config.yaml".into()), base);
    let first = layer(WITH_FIRST, Origin::DropIn("/etc/kedge/config.d/10-a.conf".into()), first);
    let second = layer(WITH_SECOND, Origin::DropIn("/etc/kedge/config.d/20-b.conf".into()), second);
    let flag =
        (flags & WITH_FLAG != 0).then(|| ("node-ip", json!({"maxPods": 7, "logging": {"verbosity": 1}})));
    let layers = LocalLayers {
        base,
        drop_ins: first.into_iter().chain(second).collect(),
        flags: flag.into_iter().collect(),
        ..LocalLayers::default()
    };
    check(&layers, payload.as_ref());
}

fn check(layers: &LocalLayers, payload: Option<&LayerText>) {
    check_canonical(layers);
    for payload in [None, payload] {
        match effective(layers, payload) {
            Ok(found) => check_effective(&found),
            Err(error) => check_error(&error),
        }
    }
    // the same bytes in the same layer give the same configuration, whatever their source; but a value beyond
    // its bounds, which refuses a payload, is limited to the bound in a file
    if let Some(payload) = payload {
        let as_file = LayerText { origin: Origin::File("f".into()), text: payload.text.clone() };
        let filed = LocalLayers { base: Some(as_file), ..layers.clone() };
        match (effective(layers, Some(payload)), effective(&filed, None)) {
            (Ok(one), Ok(other)) => assert_eq!(one.object, other.object),
            (Err(one), Err(other)) => {
                assert_eq!(one.kind, other.kind);
                assert!(one.problems.len() + one.omitted >= other.problems.len() + other.omitted);
            }
            (Err(one), Ok(other)) => {
                let held = other.held.iter().filter(|held| held.problem.origin == Origin::File("f".into()));
                assert_eq!(one.problems.len() + one.omitted, held.count(), "{one}");
            }
            (one, other) => panic!("as a payload {one:?}, as a file {other:?}"),
        }
    }
}

fn check_effective(found: &Effective) {
    let text = found.to_text();
    match yaml::parse(text.as_bytes()) {
        Ok(tree) => assert!(means(&tree.to_json(), &found.object), "{} is shown as {text}", found.object),
        Err(error) => panic!("what we show is not YAML: {error}\n{text}"),
    }
    let config = &found.config;
    // every valid configuration keeps the node in contact: its renewals and reports come within the patience
    // of a control plane
    assert!((4..=160).contains(&config.node_lease_duration_secs) && config.trial.crash_loop_threshold <= 10);
    let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
    assert!((Duration::from_secs(1)..=minutes(5)).contains(&config.node_status_update_frequency));
    assert!((Duration::from_secs(10)..=minutes(5)).contains(&config.node_status_report_frequency));
    assert!(config.trial.duration <= minutes(7 * 24 * 60));
    assert!(config.healthz.is_none_or(|address| address.ip().is_loopback()));
    assert!(config.register_with_taints.len() <= MAX_TAINTS && config.logging_verbosity <= 10);
    for path in &found.without_effect {
        assert!(
            found.provenance.is_set(path) || path.contains('.') || found.object.get(path).is_some(),
            "{path}"
        );
    }
    let shown = found.to_json();
    assert_eq!(shown["config"], found.object);
    // the effective configuration, written out and read as the only layer, gives itself (it has no relative
    // paths, which would begin at its directory)
    let written = LayerText { origin: Origin::File("written".into()), text: text.into_bytes() };
    match effective(&LocalLayers { base: Some(written), ..LocalLayers::default() }, None) {
        Ok(again) => {
            assert!(means(&again.object, &found.object), "{} is read back as {}", found.object, again.object);
            assert_eq!(again.config, found.config);
        }
        Err(error) => panic!("it is refused when read back: {error}\n{}", found.to_text()),
    }
}

pub(crate) fn check_error(error: &ConfigError) {
    assert!(!error.problems.is_empty() && error.problems.len() <= MAX_PROBLEMS);
    for problem in &error.problems {
        check_message(&problem.message);
    }
    assert!(error.to_string().lines().count() == 1, "more than a line: {error}");
    assert!(error.report().lines().count() <= MAX_PROBLEMS + 1, "{}", error.report());
}

/// Overrides as one canonical drop-in are the same overrides.
fn check_canonical(layers: &LocalLayers) {
    let Ok(canonical) = canonical_overrides(layers) else { return };
    let Ok(Value::Object(mut object)) = serde_json::from_slice(&canonical) else {
        panic!("canonical overrides are no JSON object: {}", canonical.escape_ascii())
    };
    object.insert("apiVersion".into(), json!("kubelet.config.k8s.io/v1beta1"));
    object.insert("kind".into(), json!("KubeletConfiguration"));
    let text = Value::Object(object).to_string().into_bytes();
    let one = LayerText { origin: Origin::DropIn("/one".into()), text };
    let merged = LocalLayers { drop_ins: vec![one], ..LocalLayers::default() };
    // an object that replaces another is represented as a list, which no text can express: then there is
    // nothing to compare
    if let Ok(again) = canonical_overrides(&merged) {
        let json =
            |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("canonical overrides are JSON");
        let (once, twice) = (json(&canonical), json(&again));
        assert!(means(&once, &twice), "{once} becomes {twice}");
        if once != twice {
            return;
        }
        let base = LayerText { origin: Origin::File("/base".into()), text: BASE.as_bytes().to_vec() };
        let over = |layers: &LocalLayers| {
            let layers = LocalLayers { base: Some(base.clone()), ..layers.clone() };
            effective(&layers, None).map(|found| found.object).map_err(|error| error.kind)
        };
        assert_eq!(over(layers), over(&merged), "the overrides {}", canonical.escape_ascii());
    }
}

/// A base with something to be overridden at each level.
const BASE: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 50\nlogging: \
     {verbosity: 3}\nfeatureGates: {A: true}\nsystemReserved: {cpu: 100m}\nclusterDNS: [10.0.0.9]\nevictionHard: \
     {memory.available: 100Mi}\nauthentication: {x509: {clientCAFile: /ca}}\nconfigTrialDuration: 5m\n";

const _: () = assert!(SEPARATOR < 0x20, "YAML refuses it, so it separates texts");
