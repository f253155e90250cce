//! A configuration after all its layers are read: the examples of KEP-3983 and of upstream's merge, the exact
//! words of the errors, and the inputs of a configuration's identity.

use core::time::Duration;
use kedge_core::kubelet::error::{ConfigError, ErrorKind};

use kedge_core::kubelet::effective_of_proven;
use kedge_core::kubelet::quantity::Threshold;
use kedge_core::kubelet::{
    Capacity, Effective, LayerText, LocalLayers, Origin, Reserved, Signal, Taint, canonical_overrides,
    effective,
};
use serde_json::{Value, json};

const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn layer(origin: Origin, fields: &str) -> LayerText {
    LayerText { origin, text: format!("{HEADER}{fields}").into_bytes() }
}

fn drop_in(name: &str, fields: &str) -> LayerText {
    layer(Origin::DropIn(format!("/etc/kedge/config.d/{name}")), fields)
}

fn base(fields: &str) -> LayerText {
    layer(Origin::File("/etc/kedge/config.yaml".to_owned()), fields)
}

fn payload(fields: &str) -> LayerText {
    let (namespace, name, uid) = ("kube-system".to_owned(), "edge-settings".to_owned(), "7f3c".to_owned());
    layer(Origin::ConfigMap { namespace, name, uid }, fields)
}

/// A base and drop-ins that hold these fields.
fn layers(base_fields: &str, drop_ins: &[&str]) -> LocalLayers {
    let named = |(index, fields): (usize, &&str)| drop_in(&format!("{index}0.conf"), fields);
    LocalLayers {
        base: Some(base(base_fields)),
        drop_ins: drop_ins.iter().enumerate().map(named).collect(),
        flags: Vec::new(),
        ..LocalLayers::default()
    }
}

#[track_caller]
fn local(fields: &str) -> Effective {
    effective(&layers(fields, &[]), None).expect("the fields are right")
}

#[track_caller]
fn check_error(layers: &LocalLayers, kind: ErrorKind, expect: &[&str]) {
    let error = effective(layers, None).expect_err("the layers are wrong");
    let found: Vec<String> = error.problems.iter().map(ToString::to_string).collect();
    assert_eq!((error.kind, found.as_slice()), (kind, expect.map_strings().as_slice()));
}

trait MapStrings {
    fn map_strings(&self) -> Vec<String>;
}

impl MapStrings for &[&str] {
    fn map_strings(&self) -> Vec<String> {
        self.iter().map(|text| (*text).to_owned()).collect()
    }
}

#[test]
fn kep_3983_example_gives_its_final_result() {
    let layers = layers(
        "authentication:
  anonymous:
    enabled: false
  webhook:
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
clusterDNS:
- 1.2.3.4
- 1.2.3.5
",
        &["authentication:\n  x509:\n    clientCAFile: /some/new/location\n", "clusterDNS:\n- 1.2.3.6\n"],
    );
    let found = effective(&layers, None).unwrap();
    assert_eq!(
        found.object["authentication"],
        json!({
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": "/some/new/location"},
        })
    );
    assert_eq!(found.object["clusterDNS"], json!(["1.2.3.6"]));
    assert_eq!(found.without_effect, [""; 0]);
}

#[test]
fn json_layers_give_the_same_as_yaml() {
    let yaml = effective(&layers("maxPods: 5\nlogging: {verbosity: 2}\n", &[]), None).unwrap();
    let text = r#"{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1",
        "logging":{"verbosity":2},"maxPods":5}"#;
    let base = Some(LayerText { origin: Origin::File("/c.json".to_owned()), text: text.into() });
    let json = effective(&LocalLayers { base, ..LocalLayers::default() }, None).unwrap();
    assert_eq!((json.config, json.object), (yaml.config, yaml.object));
}

#[test]
fn watches_are_switched_off_with_and_without_quotes() {
    for (text, is_on) in [("off", false), ("\"off\"", false), ("Off", false), ("auto", true), ("null", true)]
    {
        let found = effective(&layers(&format!("kedge: {{watch: {text}}}\n"), &[]), None).unwrap();
        assert_eq!(found.config.watch, is_on, "{text}");
        assert_eq!(found.object["kedge"]["watch"], if is_on { "auto" } else { "off" }, "{text}");
    }
    for (text, shown) in [("on", "true"), ("never", "\"never\""), ("0", "0")] {
        let refused = effective(&layers(&format!("kedge: {{watch: {text}}}\n"), &[]), None);
        let report = refused.expect_err(text).report();
        let expect = format!("kedge.watch is {shown}, expected auto or off");
        assert!(report.contains(&expect), "{report}");
    }
}

#[test]
fn no_layer_gives_the_defaults() {
    let found = effective(&LocalLayers::default(), None).unwrap();
    let config = found.config;
    assert_eq!((config.trial.duration, config.trial.crash_loop_threshold), (Duration::from_secs(600), 10));
    assert_eq!(config.node_status_update_frequency, Duration::from_secs(10));
    assert_eq!(config.node_status_report_frequency, Duration::from_secs(300));
    assert_eq!(config.node_lease_duration_secs, 40);
    assert_eq!((config.register_node, config.register_with_taints, config.max_pods), (true, vec![], 110));
    assert_eq!(config.healthz, Some(([127, 0, 0, 1], 10_248).into()));
    assert_eq!((config.provider_id.as_str(), config.logging_verbosity, config.watch), ("", 0, true));
    assert_eq!((config.system_reserved, config.kube_reserved), (Reserved::default(), Reserved::default()));
    assert_eq!(config.eviction_hard.memory_available, Threshold::Amount(100 << 20));
    assert_eq!(config.eviction_hard.nodefs_available, Threshold::Share(100_000));
    assert_eq!(config.eviction_hard.nodefs_inodes_free, Threshold::Share(50_000));
    assert_eq!(config.eviction_hard.pid_available, Threshold::Off);
    assert_eq!(config.eviction_pressure_transition_period, Duration::from_secs(300));
    assert_eq!(
        found.object,
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "configMapAndSecretChangeDetectionStrategy": "Watch",
            "configTrialDuration": "10m0s",
            "containerLogMaxFiles": 5,
            "containerLogMaxSize": "10Mi",
            "crashLoopThreshold": 10,
            "evictionHard": {"imagefs.available": "15%", "imagefs.inodesFree": "5%", "memory.available": "100Mi",
                "nodefs.available": "10%", "nodefs.inodesFree": "5%"},
            "evictionMaxPodGracePeriod": 0,
            "evictionPressureTransitionPeriod": "5m0s",
            "fileCheckFrequency": "20s",
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": 10248,
            "imageGCHighThresholdPercent": 85,
            "imageGCLowThresholdPercent": 80,
            "imageMaximumGCAge": "0s",
            "imageMinimumGCAge": "2m0s",
            "kedge": {"watch": "auto"},
            "logging": {"verbosity": 0},
            "maxPods": 110,
            "nodeLeaseDurationSeconds": 40,
            "nodeStatusReportFrequency": "5m0s",
            "nodeStatusUpdateFrequency": "10s",
            "podLogsDir": "/var/log/pods",
            "podPidsLimit": -1,
            "registerNode": true,
            "registryBurst": 10,
            "registryPullQPS": 5,
            "shutdownGracePeriod": "0s",
            "shutdownGracePeriodCriticalPods": "0s",
            "streamingConnectionIdleTimeout": "4h0m0s",
        })
    );
    assert_eq!(found.without_effect, [""; 0]);
}

#[test]
fn every_honoured_field_is_read() {
    let found = local(
        "configTrialDuration: 1h10m
crashLoopThreshold: 3
nodeStatusUpdateFrequency: 1.5s
nodeStatusReportFrequency: 1m
nodeLeaseDurationSeconds: 120
registerNode: no
registerWithTaints:
- {key: example.com/dedicated, value: edge, effect: NoSchedule}
- {key: example.com/dedicated, effect: NoExecute}
providerID: board://7
healthzPort: 8080
healthzBindAddress: '::1'
logging: {verbosity: 0xA}
maxPods: 0
systemReserved: {cpu: 1500m, memory: 200Mi, ephemeral-storage: 1Gi, pid: '1000'}
kubeReserved: {cpu: '0.1'}
evictionHard: {memory.available: 5%, nodefs.available: 1Gi, nodefs.inodesFree: 0%, pid.available: 10%}
evictionSoft: {memory.available: 10%}
evictionSoftGracePeriod: {memory.available: 1m30s}
evictionMinimumReclaim: {nodefs.available: 500Mi, pid.available: '0'}
evictionMaxPodGracePeriod: 20
evictionPressureTransitionPeriod: 1ms
streamingConnectionIdleTimeout: 30m
",
    );
    let config = found.config;
    assert_eq!((config.trial.duration, config.trial.crash_loop_threshold), (Duration::from_secs(4200), 3));
    assert_eq!(config.node_status_update_frequency, Duration::from_millis(1500));
    assert_eq!(config.node_status_report_frequency, Duration::from_secs(60));
    assert_eq!((config.node_lease_duration_secs, config.register_node), (120, false));
    let taint = |value: &str, effect: &str| Taint {
        key: "example.com/dedicated".to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
    };
    assert_eq!(config.register_with_taints, [taint("edge", "NoSchedule"), taint("", "NoExecute")]);
    assert_eq!((config.provider_id.as_str(), config.max_pods), ("board://7", 0));
    assert_eq!(config.healthz, Some("[::1]:8080".parse().unwrap()));
    assert_eq!(config.logging_verbosity, 10);
    let reserved =
        Reserved { cpu_milli: 1500, memory_bytes: 200 << 20, ephemeral_storage_bytes: 1 << 30, pid: 1000 };
    assert_eq!(config.system_reserved, reserved);
    assert_eq!(config.kube_reserved, Reserved { cpu_milli: 100, ..Reserved::default() });
    assert_eq!(config.eviction_hard.memory_available, Threshold::Share(50_000));
    assert_eq!(config.eviction_hard.nodefs_available, Threshold::Amount(1 << 30));
    assert_eq!(config.eviction_hard.nodefs_inodes_free, Threshold::Off);
    assert_eq!(config.eviction_hard.pid_available, Threshold::Share(100_000));
    let threshold = |signal: Signal, grace: Option<u64>| {
        let mut all = config.eviction.thresholds.iter();
        let found = all.find(|it| it.signal == signal && it.grace == grace.map(Duration::from_secs));
        found.map(|it| (it.least, it.reclaim)).unwrap()
    };
    assert_eq!(threshold(Signal::Memory, Some(90)), (Threshold::Share(100_000), Threshold::Off));
    assert_eq!(threshold(Signal::Memory, None), (Threshold::Share(50_000), Threshold::Off));
    let (nodefs, imagefs) = (threshold(Signal::NodefsBytes, None), threshold(Signal::ImagefsBytes, None));
    assert_eq!(nodefs, (Threshold::Amount(1 << 30), Threshold::Amount(500 << 20)));
    assert_eq!(imagefs, (Threshold::Share(150_000), Threshold::Off));
    assert_eq!(config.eviction.thresholds.len(), 7);
    assert_eq!(config.eviction.longest_grace, Duration::from_secs(20));
    assert_eq!(config.eviction_pressure_transition_period, Duration::from_millis(1));
    assert_eq!(config.streaming_connection_idle_timeout, Duration::from_secs(1800));
    assert_eq!(found.without_effect, [""; 0]);
    assert_eq!(found.object["configTrialDuration"], "1h10m0s");
    assert_eq!(found.object["evictionPressureTransitionPeriod"], "1ms");
}

/// Durations whose zero upstream's defaulting reads as "not set", and those whose zero is a value.
#[test]
fn zero_of_a_duration_is_what_upstream_makes_of_it() {
    let rows = [
        ("nodeStatusUpdateFrequency", "10s"),
        ("nodeStatusReportFrequency", "5m0s"),
        ("evictionPressureTransitionPeriod", "5m0s"),
        ("fileCheckFrequency", "20s"),
        ("imageMinimumGCAge", "2m0s"),
        ("streamingConnectionIdleTimeout", "4h0m0s"),
        ("configTrialDuration", "0s"),
        ("imageMaximumGCAge", "0s"),
    ];
    for (field, expect) in rows {
        for zero in ["0s", "0", "'0'", "0h0m0s"] {
            let found = local(&format!("{field}: {zero}"));
            assert_eq!(found.object[field], expect, "{field}: {zero}");
            let lower = format!("{field}: 1m");
            let drop_in = format!("{field}: {zero}");
            let found = effective(&layers(&lower, &[&drop_in]), None).unwrap();
            assert_eq!(found.object[field], expect, "{field}: {zero} over 1m");
            let found = effective(&layers("", &[]), Some(&payload(&drop_in))).unwrap();
            assert_eq!(found.object[field], expect, "{field}: {zero}, pushed");
        }
    }
    let found = local("nodeLeaseDurationSeconds: 0\nmaxPods: 0");
    assert_eq!((found.config.node_lease_duration_secs, found.config.max_pods), (40, 0));
    // as if it were not set, so the other field's value holds for both
    let found = local("nodeStatusUpdateFrequency: 20s\nnodeStatusReportFrequency: 0s");
    assert_eq!(found.config.node_status_report_frequency, Duration::from_secs(20));
}

/// The table of values that a drop-in may write, one field each.
#[test]
fn drop_in_changes_only_what_it_writes() {
    let check = |base: &str, drop_in: &str, field: &str, expect: Value| {
        let found = effective(&layers(base, &[drop_in]), None).unwrap();
        let value = found.object.pointer(&format!("/{field}")).cloned().unwrap_or(Value::Null);
        assert_eq!(value, expect, "{base} and {drop_in}");
    };
    // absent: kept; scalar: replaced
    check("maxPods: 5", "port: 1", "maxPods", json!(5));
    check("maxPods: 5", "maxPods: 6", "maxPods", json!(6));
    // a list is replaced as a whole, also by an empty one
    check("clusterDNS: [a, b]", "clusterDNS: [c]", "clusterDNS", json!(["c"]));
    check("clusterDNS: [a, b]", "clusterDNS: []", "clusterDNS", json!([]));
    // maps and structs are merged by key
    check(
        "featureGates: {A: true, B: true}",
        "featureGates: {B: false, C: true}",
        "featureGates",
        json!({"A": true, "B": false, "C": true}),
    );
    check(
        "systemReserved: {cpu: '1'}",
        "systemReserved: {memory: 1Gi}",
        "systemReserved",
        json!({"cpu": "1", "memory": "1Gi"}),
    );
    check(
        "logging: {format: json}",
        "logging: {verbosity: 3}",
        "logging",
        json!({"format": "json", "verbosity": 3}),
    );
    // an explicit zero stays a zero, also in fields with a default here (upstream sets them back to the
    // default)
    check("port: 1", "port: 0", "port", json!(0));
    check("readOnlyPort: 10255", "readOnlyPort: 0", "readOnlyPort", json!(0));
    check("", "cpuManagerReconcilePeriod: 0s", "cpuManagerReconcilePeriod", json!("0s"));
    check("", "configTrialDuration: 0s", "configTrialDuration", json!("0s"));
    check("", "maxPods: 0", "maxPods", json!(0));
    check("", "healthzPort: 0", "healthzPort", json!(0));
    check("logging: {verbosity: 3}", "logging: {verbosity: 0}", "logging/verbosity", json!(0));
    // null restores the default, or removes the value where the field has no default
    check("maxPods: 5", "maxPods: null", "maxPods", json!(110));
    check("port: 5", "port:", "port", Value::Null);
    check(
        "systemReserved: {cpu: '1', memory: 1Gi}",
        "systemReserved: {cpu: null}",
        "systemReserved",
        json!({"memory": "1Gi"}),
    );
    check("logging: {format: json}", "logging: ~", "logging", json!({"verbosity": 0}));
}

#[test]
fn thresholds_merge_one_by_one_over_the_defaults() {
    let defaults = json!({"imagefs.available": "15%", "imagefs.inodesFree": "5%", "memory.available": "100Mi",
        "nodefs.available": "10%", "nodefs.inodesFree": "5%"});
    let with = |memory: &str| {
        let mut thresholds = defaults.clone();
        thresholds["memory.available"] = json!(memory);
        thresholds
    };
    let set = "evictionHard: {memory.available: 200Mi}";
    assert_eq!(local(set).object["evictionHard"], with("200Mi"));
    assert_eq!(effective(&layers("", &[set]), None).unwrap().object["evictionHard"], with("200Mi"));
    let only_drop_in = LocalLayers { drop_ins: vec![drop_in("a.conf", set)], ..LocalLayers::default() };
    assert_eq!(effective(&only_drop_in, None).unwrap().object["evictionHard"], with("200Mi"));
    let removed = effective(&layers(set, &["evictionHard: {memory.available: null}"]), None).unwrap();
    assert_eq!(removed.object["evictionHard"], defaults);
}

#[test]
fn report_frequency_defaults_to_update_frequency() {
    let check = |fields: &str, seconds: u64| {
        let frequency = local(fields).config.node_status_report_frequency;
        assert_eq!(frequency, Duration::from_secs(seconds), "{fields}");
    };
    check("", 300);
    check("nodeStatusUpdateFrequency: 20s", 20);
    // an interval within the bounds of reports
    check("nodeStatusUpdateFrequency: 1s", 10);
    check("nodeStatusUpdateFrequency: 20s\nnodeStatusReportFrequency: 1m", 60);
    check("nodeStatusReportFrequency: 1m", 60);
    let frequency =
        effective(&layers("nodeStatusUpdateFrequency: 20s", &["nodeStatusUpdateFrequency: ~"]), None);
    assert_eq!(frequency.unwrap().config.node_status_report_frequency, Duration::from_secs(300));
}

/// Upstream's end-to-end test of the drop-in directory, with its two zeros as our rules read them, and
/// without its read-only port.
#[test]
fn upstream_end_to_end_row_is_reproduced() {
    let found = effective(
        &layers(
            "port: 10250
readOnlyPort: 10255
clusterDNS: [10.0.0.10]
cpuCFSQuotaPeriod: 100ms
systemReserved: {memory: 1Gi}
authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 5m, cacheUnauthorizedTTL: 30s}}
staticPodURLHeader: {kubelet-api-support: [Authenticate, X-Custom], other: [a]}
featureGates: {AllAlpha: false, MemoryQoS: true}
shutdownGracePeriodByPodPriority: [{priority: 4, shutdownGracePeriodSeconds: 60}]
",
            &[
                "port: 8081
readOnlyPort: 10257
clusterDNS: [192.168.1.1, 192.168.1.2]
systemReserved: {memory: 1Gi}
authorization: {webhook: {cacheAuthorizedTTL: 6m}}
staticPodURLHeader: {kubelet-api-support: [Authenticate]}
featureGates: {KubeletTracing: true}
shutdownGracePeriodByPodPriority:
- {priority: 1, shutdownGracePeriodSeconds: 60}
- {priority: 2, shutdownGracePeriodSeconds: 45}
",
                "port: 8080
cpuManagerReconcilePeriod: 0s
clusterDNS: [192.168.1.1, 192.168.1.5, 192.168.1.8]
systemReserved: {memory: 2Gi}
authorization: {webhook: {cacheUnauthorizedTTL: 40s}}
featureGates: {MemoryQoS: false}
shutdownGracePeriodByPodPriority:
- {priority: 1, shutdownGracePeriodSeconds: 19}
- {priority: 2, shutdownGracePeriodSeconds: 41}
- {priority: 6, shutdownGracePeriodSeconds: 30}
",
            ],
        ),
        None,
    )
    .unwrap();
    let object = &found.configz()["kubeletconfig"];
    assert_eq!(object["port"], 8080);
    assert_eq!(object["readOnlyPort"], 0);
    assert_eq!(object["clusterDNS"], json!(["192.168.1.1", "192.168.1.5", "192.168.1.8"]));
    assert_eq!(object["systemReserved"], json!({"memory": "2Gi"}));
    assert_eq!(object["cpuCFSQuotaPeriod"], "100ms");
    assert_eq!(object["cpuManagerReconcilePeriod"], "0s");
    assert_eq!(
        object["staticPodURLHeader"],
        json!({"kubelet-api-support": ["Authenticate"], "other": ["a"]})
    );
    assert_eq!(
        object["authorization"],
        json!({"mode": "Webhook", "webhook": {"cacheAuthorizedTTL": "6m0s", "cacheUnauthorizedTTL": "40s"}})
    );
    assert_eq!(
        object["featureGates"],
        json!({"AllAlpha": false, "MemoryQoS": false, "KubeletTracing": true})
    );
    let periods = [(1, 19), (2, 41), (6, 30)];
    let periods = periods
        .map(|(priority, seconds)| json!({"priority": priority, "shutdownGracePeriodSeconds": seconds}));
    assert_eq!(object["shutdownGracePeriodByPodPriority"], json!(periods));
}

/// The file that kubeadm writes, with the zeros that mean "the default".
#[test]
fn kubeadm_file_is_accepted_with_its_zeros() {
    let fields = "address: 0.0.0.0
authentication: {anonymous: {enabled: false}, webhook: {cacheTTL: 0s, enabled: true}, x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}
authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: \"\"
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging: {flushFrequency: 0, options: {json: {infoBufferSize: \"0\"}, text: {infoBufferSize: \"0\"}}, verbosity: 0}
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
resolvConf: /run/systemd/resolve/resolv.conf
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
";
    let found = local(fields);
    assert_eq!(found.object["memorySwap"], json!({}));
    let config = found.config;
    assert_eq!(config.eviction_pressure_transition_period, Duration::from_secs(300));
    assert_eq!(config.node_status_report_frequency, Duration::from_secs(300));
    assert_eq!(config.node_status_update_frequency, Duration::from_secs(10));
}

#[test]
fn payload_replaces_base_below_drop_ins_and_flags() {
    let mut layers = layers("maxPods: 1\nproviderID: base\n", &["crashLoopThreshold: 4"]);
    layers.flags =
        vec![("register-with-taints", json!({"registerWithTaints": [{"key": "a", "effect": "NoExecute"}]}))];
    let pushed = payload("maxPods: 2\ncrashLoopThreshold: 9\nregisterWithTaints: []\n");
    let found = effective(&layers, Some(&pushed)).unwrap();
    assert_eq!((found.config.max_pods, found.config.provider_id.as_str()), (2, ""));
    assert_eq!(found.config.trial.crash_loop_threshold, 4);
    assert_eq!(found.config.register_with_taints[0].key, "a");
    let source = |path: &str| found.provenance.get(path).map(ToString::to_string);
    assert_eq!(source("maxPods").unwrap(), "ConfigMap kube-system/edge-settings:3");
    assert_eq!(source("crashLoopThreshold").unwrap(), "drop-in /etc/kedge/config.d/00.conf:3");
    assert_eq!(source("registerWithTaints").unwrap(), "flag --register-with-taints");
    assert_eq!(source("healthzPort").unwrap(), "default");
    assert_eq!(source("port"), None);
    let set =
        ["maxPods", "registerWithTaints", "healthzPort", "port"].map(|path| found.provenance.is_set(path));
    assert_eq!(set, [true, true, false, false], "by a layer, by a flag, by default, by nobody");
}

#[test]
fn other_kind_is_refused_by_name() {
    let check = |text: &str, expect: &[&str]| {
        let base = Some(LayerText { origin: Origin::File("/c.yaml".to_owned()), text: text.into() });
        check_error(&LocalLayers { base, ..LocalLayers::default() }, ErrorKind::Parse, expect);
    };
    for empty in ["", "# nothing\n", "---\n"] {
        check(empty, &["config file /c.yaml: is empty, expected a KubeletConfiguration"]);
    }
    check(
        "maxPods: 1",
        &[
            "config file /c.yaml: apiVersion is missing, expected kubelet.config.k8s.io/v1beta1",
            "config file /c.yaml: kind is missing, expected KubeletConfiguration",
        ],
    );
    check(
        "apiVersion: v1\nkind: Pod\nspec: {}\n",
        &[
            "config file /c.yaml: apiVersion is \"v1\", expected kubelet.config.k8s.io/v1beta1 (line 1)",
            "config file /c.yaml: kind is \"Pod\", expected KubeletConfiguration (line 2)",
        ],
    );
    check(
        "apiVersion: kubelet.config.k8s.io/v1\nkind: KubeletConfiguration\n",
        &[
            "config file /c.yaml: apiVersion is \"kubelet.config.k8s.io/v1\", expected kubelet.config.k8s.io/v1beta1 (line 1)",
        ],
    );
    check("- a\n", &["config file /c.yaml: is a list, expected a KubeletConfiguration (line 1)"]);
    check("loud", &["config file /c.yaml: is \"loud\", expected a KubeletConfiguration (line 1)"]);
    check(
        "a: [1\n",
        &[
            "config file /c.yaml: not YAML or JSON: neither a \",\" nor a closing bracket where one was expected (line 2)",
        ],
    );
    check("a: 1\n---\nb: 1\n", &["config file /c.yaml: a second document begins, expected one (line 2)"]);
    check(&"#".repeat(2_000_000), &["config file /c.yaml: text has 2000000 bytes, expected at most 1572864"]);
}

#[test]
fn errors_name_file_field_and_line_in_each_layer() {
    check_error(
        &layers("logging:\n  verbosity: loud\n", &["maxpods: 1\n", "providerID: a\nproviderID: b\n"]),
        ErrorKind::Parse,
        &[
            "config file /etc/kedge/config.yaml: logging.verbosity is \"loud\", expected 0 to 10 (line 4)",
            "drop-in /etc/kedge/config.d/00.conf: unknown field maxpods (did you mean maxPods?) (line 3)",
            "drop-in /etc/kedge/config.d/10.conf: duplicate key \"providerID\", first at line 3 (line 4)",
        ],
    );
    let error =
        effective(&LocalLayers::default(), Some(&payload("logging: {verbosity: loud}"))).expect_err("loud");
    assert_eq!(
        error.to_string(),
        "config edge-settings (uid 7f3c): logging.verbosity is \"loud\", expected 0 to 10 (line 3)"
    );
    let problem = &error.problems[0];
    assert_eq!((problem.field.as_str(), problem.line, problem.column), ("logging.verbosity", 3, 22));
}

#[test]
fn invalid_value_names_the_layer_that_wrote_it() {
    let check = |fields: &str, expect: &[&str]| {
        let expect: Vec<String> =
            expect.iter().map(|text| format!("drop-in /etc/kedge/config.d/00.conf: {text}")).collect();
        let expect: Vec<&str> = expect.iter().map(String::as_str).collect();
        check_error(&layers("maxPods: 1", &[fields]), ErrorKind::Validate, &expect);
    };
    check("crashLoopThreshold: 11", &["crashLoopThreshold is 11, expected 0 to 10 (line 3)"]);
    check("crashLoopThreshold: -1", &["crashLoopThreshold is -1, expected 0 to 10 (line 3)"]);
    check("configTrialDuration: -1s", &["configTrialDuration is \"-1s\", expected 0s to 168h0m0s (line 3)"]);
    check(
        "nodeStatusUpdateFrequency: 1ns",
        &["nodeStatusUpdateFrequency is \"1ns\", expected 1s to 5m0s (line 3)"],
    );
    check(
        "nodeStatusReportFrequency: -5m",
        &["nodeStatusReportFrequency is \"-5m0s\", expected 10s to 5m0s (line 3)"],
    );
    check("nodeLeaseDurationSeconds: -1", &["nodeLeaseDurationSeconds is -1, expected 4 to 160 (line 3)"]);
    check("logging: {verbosity: 11}", &["logging.verbosity is 11, expected 0 to 10 (line 3)"]);
    check("healthzPort: 65536", &["healthzPort is 65536, expected 0 to 65535 (line 3)"]);
    check(
        "healthzBindAddress: localhost",
        &["healthzBindAddress is \"localhost\", expected a loopback address such as \"127.0.0.1\" (line 3)"],
    );
    check("maxPods: -1", &["maxPods is -1, expected 0 to 10000 (line 3)"]);
    check(
        "systemReserved:\n  cpu: -1m",
        &["systemReserved.cpu is \"-1m\", expected an amount that is not negative (line 4)"],
    );
    check(
        "evictionPressureTransitionPeriod: -1ns",
        &["evictionPressureTransitionPeriod is \"-1ns\", expected 0s to 24h0m0s (line 3)"],
    );
    check(
        "registerWithTaints:\n- {key: a, effect: NoExecute}\n- {key: a, effect: NoExecute}\n- {key: -b, effect: NoExecute}\n- {key: a, effect: Never}\n- {key: a, effect: NoSchedule, value: 'x y'}",
        &[
            "registerWithTaints[1] repeats key a with effect NoExecute, expected each pair once (line 4)",
            "registerWithTaints[2].key is \"-b\", expected a label key such as \"example.com/dedicated\" (line 4)",
            "registerWithTaints[3].effect is \"Never\", expected NoSchedule, PreferNoSchedule or NoExecute (line 4)",
            "registerWithTaints[4].value is \"x y\", expected a label value (line 4)",
        ],
    );
    let many = format!("registerWithTaints: [{}]", vec!["{key: a, effect: NoExecute}"; 101].join(","));
    check(&many, &["registerWithTaints has 101 taints, expected at most 100 (line 3)"]);
    check(
        "maxPods: -1\nlogging: {verbosity: 11}\nhealthzBindAddress: x",
        &[
            "logging.verbosity is 11, expected 0 to 10 (line 4)",
            "maxPods is -1, expected 0 to 10000 (line 3)",
            "healthzBindAddress is \"x\", expected a loopback address such as \"127.0.0.1\" (line 5)",
        ],
    );
}

#[test]
fn values_and_pairs_are_valid_up_to_their_limits() {
    for (fields, is_right) in [
        ("nodeStatusUpdateFrequency: 1s", true),
        ("nodeStatusUpdateFrequency: 999ms", false),
        ("nodeStatusUpdateFrequency: 5m", true),
        ("nodeStatusUpdateFrequency: 301s", false),
        ("nodeStatusReportFrequency: 9s", false),
        ("nodeStatusReportFrequency: 10s", true),
        ("nodeStatusReportFrequency: 5m1s", false),
        ("nodeLeaseDurationSeconds: 3", false),
        ("nodeLeaseDurationSeconds: 4", true),
        ("nodeLeaseDurationSeconds: 160", true),
        ("nodeLeaseDurationSeconds: 161", false),
        ("configTrialDuration: 168h", true),
        ("configTrialDuration: 168h1ns", false),
        ("evictionPressureTransitionPeriod: 24h1s", false),
        ("evictionSoft: {memory.available: 5%}\nevictionSoftGracePeriod: {memory.available: 1m}", true),
        ("evictionSoft: {memory.available: 5%}", false),
        ("evictionSoft: {memory.available: much}\nevictionSoftGracePeriod: {memory.available: 1m}", false),
        ("evictionSoft: {memory.free: 5%}\nevictionSoftGracePeriod: {memory.free: 1m}", false),
        ("evictionSoft: {memory.available: 5%}\nevictionSoftGracePeriod: {memory.available: -1m}", false),
        ("evictionMinimumReclaim: {nodefs.available: 0Mi, containerfs.available: 1Gi}", true),
        ("evictionMinimumReclaim: {nodefs.available: -1Mi}", false),
        ("evictionMinimumReclaim: {nodefs.available: 51%}", false),
        ("evictionMaxPodGracePeriod: -1", false),
        ("evictionHard: {memory.available: 50%, pid.available: 100%, nodefs.inodesFree: 0%}", true),
        ("evictionHard: {memory.available: 50.1%}", false),
        ("evictionHard: {pid.available: 99.9%}", false),
        // the node's capacity is not known here
        ("evictionHard: {memory.available: 30Gi}", true),
        ("evictionSoft: {memory.available: 51%}\nevictionSoftGracePeriod: {memory.available: 1m}", false),
        ("maxPods: 10000", true),
        ("maxPods: 10001", false),
        ("healthzBindAddress: 127.8.9.1", true),
        ("healthzBindAddress: '::'", false),
        ("healthzPort: 65535", true),
        ("imageGCLowThresholdPercent: 0\nimageGCHighThresholdPercent: 100", true),
        ("imageGCLowThresholdPercent: -1\nimageGCHighThresholdPercent: 100", false),
        ("imageGCLowThresholdPercent: 0\nimageGCHighThresholdPercent: 101", false),
        ("imageGCLowThresholdPercent: 50\nimageGCHighThresholdPercent: 51", true),
        ("imageGCLowThresholdPercent: 50\nimageGCHighThresholdPercent: 50", false),
        // checked against the other field's default
        ("imageGCLowThresholdPercent: 84", true),
        ("imageGCLowThresholdPercent: 85", false),
        ("imageGCHighThresholdPercent: 81", true),
        ("imageGCHighThresholdPercent: 80", false),
        ("shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 10s", true),
        ("shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 11s", false),
        ("shutdownGracePeriodCriticalPods: 1s", false),
        ("shutdownGracePeriodByPodPriority: [{priority: 1}]\nshutdownGracePeriod: 0s", true),
        ("shutdownGracePeriodByPodPriority: []\nshutdownGracePeriod: 10s", true),
        ("shutdownGracePeriodByPodPriority: [{priority: 1}]\nshutdownGracePeriod: 10s", false),
        ("imageMinimumGCAge: 2m\nimageMaximumGCAge: 121s", true),
        ("imageMinimumGCAge: 2m\nimageMaximumGCAge: 120s", false),
        ("imageMinimumGCAge: 2m\nimageMaximumGCAge: 119s", false),
        ("imageMinimumGCAge: 2m\nimageMaximumGCAge: 0s", true),
        ("imageMaximumGCAge: 1s", true),
    ] {
        let pushed = payload(fields);
        let found = effective(&LocalLayers::default(), Some(&pushed)).map(drop).map_err(|error| error.kind);
        assert_eq!(found, if is_right { Ok(()) } else { Err(ErrorKind::Validate) }, "{fields}");
    }
}

#[test]
fn proven_payload_beyond_its_bounds_is_held_at_them() {
    let fields = "nodeLeaseDurationSeconds: 2147483647\nnodeStatusReportFrequency: 2000000h\nhealthzBindAddress: 0.0.0.0\nmaxPods: 7";
    let local = LocalLayers::default();
    let error = effective(&local, Some(&payload(fields))).expect_err("refused when it is new");
    assert_eq!((error.kind, error.problems.len()), (ErrorKind::Validate, 3), "{error}");
    let found = effective_of_proven(&local, &payload(fields)).expect("it has been last-known-good");
    assert_eq!(found.config.node_lease_duration_secs, 160);
    assert_eq!(found.config.node_status_report_frequency, Duration::from_secs(300));
    assert!(found.config.healthz.is_some_and(|address| address.ip().is_loopback()));
    assert_eq!(found.config.max_pods, 7);
    assert_eq!(
        found.held.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "config edge-settings (uid 7f3c): nodeLeaseDurationSeconds is 2147483647, expected 4 to 160 (line 3); using 160",
            "config edge-settings (uid 7f3c): nodeStatusReportFrequency is \"2000000h0m0s\", expected 10s to 5m0s (line 4); using \"5m0s\"",
            "config edge-settings (uid 7f3c): healthzBindAddress is \"0.0.0.0\", expected a loopback address such as \"127.0.0.1\" (line 5); using \"127.0.0.1\"",
        ]
    );
    // a value that no release accepted is refused all the same
    assert!(effective_of_proven(&local, &payload("healthzBindAddress: here")).is_err());
}

#[test]
fn threshold_is_bounded_by_half_of_what_the_node_has() {
    let capacity = Capacity { memory_bytes: 64 << 20, storage_bytes: 4 << 30, inodes: 0, pids: 4096 };
    let local = LocalLayers { capacity, ..LocalLayers::default() };
    let check = |fields: &str, expect: &str| {
        let found = effective(&local, Some(&payload(fields))).map_err(|error| error.to_string());
        assert_eq!(found.err().unwrap_or_default(), expect, "{fields}");
    };
    // on this board the built-in default for memory is more than half
    check("maxPods: 7", "");
    check("evictionHard: {memory.available: 32Mi, nodefs.inodesFree: 30G, pid.available: 2k}", "");
    let beyond = "expected at most 50% of what the node has";
    check(
        "evictionHard: {memory.available: 33Mi}",
        &format!(
            "config edge-settings (uid 7f3c): evictionHard[\"memory.available\"] is \"33Mi\", {beyond} (67108864) (line 3)"
        ),
    );
    check(
        "evictionHard: {imagefs.available: 60%}",
        &format!(
            "config edge-settings (uid 7f3c): evictionHard[\"imagefs.available\"] is \"60%\", {beyond} (line 3)"
        ),
    );
    let proven =
        effective_of_proven(&local, &payload("evictionHard: {memory.available: 100Mi}")).expect("it ran");
    let memory = &proven.config.eviction.thresholds[0];
    assert_eq!(memory.least.amount(64 << 20), Some(32 << 20));
    assert_eq!(proven.held.len(), 1, "{:?}", proven.held);
    // this machine's own files are limited, too
    let base = Some(base("evictionHard: {memory.available: 99%}"));
    let filed = effective(&LocalLayers { base, ..local.clone() }, None).expect("an upgrade starts");
    assert_eq!(filed.config.eviction.thresholds[0].least.amount(64 << 20), Some(32 << 20));
    assert!(filed.held[0].is_local());
}

#[test]
fn local_value_that_the_first_release_took_is_held() {
    for (fields, used) in [
        ("configTrialDuration: 300h", "\"168h0m0s\""),
        ("nodeStatusUpdateFrequency: 10m", "\"5m0s\""),
        ("nodeStatusReportFrequency: 10m", "\"5m0s\""),
        ("nodeStatusReportFrequency: 1s", "\"10s\""),
        ("nodeLeaseDurationSeconds: 300", "160"),
        ("nodeLeaseDurationSeconds: 1", "4"),
        ("evictionPressureTransitionPeriod: 25h", "\"24h0m0s\""),
        ("evictionSoft: {memory.free: 5%}", "nothing"),
        (
            "evictionSoft: {memory.available: 5%}\nevictionSoftGracePeriod: {memory.available: soon}",
            "nothing",
        ),
        ("evictionMinimumReclaim: {memory.available: -1Mi}", "nothing"),
        ("evictionMaxPodGracePeriod: -1", "0"),
        ("maxPods: 2147483647", "10000"),
        ("healthzBindAddress: 0.0.0.0", "\"127.0.0.1\""),
        ("maxParallelImagePulls: 0", "1"),
        ("containerLogMaxSize: 1Ki", "\"64Ki\""),
        ("containerLogMaxFiles: 1", "2"),
        ("podPidsLimit: 9223372036854775807", "4194304"),
        ("imageMinimumGCAge: -1s", "\"0s\""),
        ("shutdownGracePeriod: 2h", "\"1h0m0s\""),
        ("oomScoreAdj: -2147483648", "-1000"),
        ("maxOpenFiles: -9223372036854775808", "0"),
        ("tracing: {samplingRatePerMillion: -1}", "0"),
    ] {
        let pushed = payload("providerID: pushed");
        for (layers, payload) in [
            (layers(fields, &[]), None),
            (layers("", &[fields]), None),
            (layers("", &[fields]), Some(&pushed)),
        ] {
            let found = effective(&layers, payload).unwrap_or_else(|error| panic!("{fields}: {error}"));
            let held: Vec<&str> = found.held.iter().map(|held| held.used.as_str()).collect();
            assert_eq!(held, [used], "{fields}");
        }
        let error =
            effective(&LocalLayers::default(), Some(&payload(fields))).expect_err("nobody has run it");
        assert_eq!(error.kind, ErrorKind::Validate, "{fields}");
    }
    let line = local("nodeLeaseDurationSeconds: 300").held[0].to_string();
    let expect = "config file /etc/kedge/config.yaml: nodeLeaseDurationSeconds is 300, expected 4 to 160 (line 3); using 160";
    assert_eq!(line, expect);
}

#[test]
fn local_value_that_no_release_took_is_refused() {
    for fields in [
        "configTrialDuration: -1s",
        "nodeStatusUpdateFrequency: 999ms",
        "nodeStatusReportFrequency: 999ms",
        "nodeLeaseDurationSeconds: -1",
        "crashLoopThreshold: 11",
        "maxPods: -1",
        "maxPods: 2147483648",
        "healthzPort: 65536",
        "healthzBindAddress: here",
        "logging: {verbosity: 11}",
        "maxParallelImagePulls: 2147483648",
    ] {
        for layers in [layers(fields, &[]), layers("", &[fields])] {
            let error = effective(&layers, None).expect_err(fields);
            assert_eq!((error.kind, error.problems.len()), (ErrorKind::Validate, 1), "{fields}");
        }
    }
}

#[test]
fn relative_static_pod_path_is_resolved_from_its_config_file() {
    let path = |layers: &LocalLayers, payload: Option<&LayerText>| {
        effective(layers, payload).unwrap().object["staticPodPath"].clone()
    };
    assert_eq!(path(&layers("staticPodPath: manifests", &[]), None), "/etc/kedge/manifests");
    assert_eq!(path(&layers("", &["staticPodPath: m"]), None), "/etc/kedge/config.d/m");
    assert_eq!(path(&layers("staticPodPath: /srv/m", &[]), None), "/srv/m");
    assert_eq!(path(&layers("staticPodPath: ''", &[]), None), "");
    let pushed = payload("staticPodPath: m");
    let refused = effective(&LocalLayers::default(), Some(&pushed)).unwrap_err().to_string();
    assert!(refused.contains("expected an absolute path"), "a push has no directory: {refused}");
    let proven = effective_of_proven(&LocalLayers::default(), &pushed).unwrap();
    assert_eq!((proven.config.pods.static_path, proven.held.len()), (None, 1), "an earlier release took it");
}

#[test]
fn limits_of_pods_and_images_are_read() {
    let defaults = local("maxPods: 1");
    let pods = &defaults.config.pods;
    assert_eq!((pods.pids_limit, pods.log_max_bytes, pods.log_max_files), (None, 10 << 20, 5));
    let images = defaults.config.images;
    assert_eq!((images.pulls_at_once, images.pulls_per_sec, images.pulls_burst), (1, 5, 10));
    let found = local(
        "podPidsLimit: 50\ncontainerLogMaxSize: 1Mi\ncontainerLogMaxFiles: 2\nimageMinimumGCAge: 1h\nimageMaximumGCAge: 2h
imageGCHighThresholdPercent: 90\nimageGCLowThresholdPercent: 70\nregistryPullQPS: 0\nregistryBurst: 0",
    );
    let pods = &found.config.pods;
    assert_eq!((pods.pids_limit, pods.log_max_bytes, pods.log_max_files), (Some(50), 1 << 20, 2));
    let images = found.config.images;
    assert_eq!((images.pulls_per_sec, images.pulls_burst), (0, 10));
    let rule = images.collection;
    assert_eq!((rule.minimum_age.as_secs(), rule.maximum_age), (3600, Some(Duration::from_secs(7200))));
    assert_eq!((rule.high_percent, rule.low_percent), (90, 70));
    for (fields, at_once) in [
        ("serializeImagePulls: false", 4),
        ("maxParallelImagePulls: 3", 3),
        ("serializeImagePulls: false\nmaxParallelImagePulls: 1", 1),
        ("serializeImagePulls: true\nmaxParallelImagePulls: 1", 1),
    ] {
        assert_eq!(local(fields).config.images.pulls_at_once, at_once, "{fields}");
    }
    let pushed = payload("serializeImagePulls: true\nmaxParallelImagePulls: 2");
    assert!(effective(&LocalLayers::default(), Some(&pushed)).is_err(), "as the kubelet");
}

#[test]
fn zero_is_the_default_of_file_check_frequency() {
    for (text, secs) in [("0s", 20), ("10ms", 1), ("5s", 5)] {
        let layers = layers(&format!("fileCheckFrequency: {text}"), &[]);
        let found = effective(&layers, None).unwrap().config.pods.file_check_frequency;
        assert_eq!(found.as_secs(), secs, "{text}");
    }
}

#[test]
fn value_corrected_by_a_higher_layer_is_valid() {
    let found = effective(&layers("maxPods: -1", &["maxPods: 3"]), None).unwrap();
    assert_eq!(found.config.max_pods, 3);
}

#[test]
fn error_keeps_twenty_problems_and_counts_the_rest() {
    let fields: String = (0..50).map(|index| format!("nonsense{index}: 1\n")).collect();
    let error = effective(&layers(&fields, &[]), None).expect_err("nonsense");
    assert_eq!((error.problems.len(), error.omitted), (20, 30));
    assert_eq!(
        error.to_string(),
        "config file /etc/kedge/config.yaml: unknown field nonsense0 (line 3) (and 49 more)"
    );
    assert!(
        error.report().ends_with("unknown field nonsense19 (line 22)\nand 30 more"),
        "{}",
        error.report()
    );
}

#[test]
fn too_many_drop_ins_are_refused() {
    let layers = LocalLayers { drop_ins: vec![drop_in("a.conf", ""); 1001], ..LocalLayers::default() };
    check_error(
        &layers,
        ErrorKind::Parse,
        &["drop-in /etc/kedge/config.d/a.conf: is drop-in number 1001, expected at most 1000"],
    );
}

#[test]
fn overrides_differ_only_by_what_they_change() {
    let canonical = |drop_ins: &[&str]| -> Result<String, ConfigError> {
        canonical_overrides(&layers("maxPods: 1", drop_ins)).map(|text| String::from_utf8(text).unwrap())
    };
    let same = [
        canonical(&["maxPods: 2\nlogging: {verbosity: 1, format: json}"]),
        canonical(&["# a comment\nlogging:\n  format: \"json\"\n  verbosity: 0x1\n\nmaxPods: 2"]),
        canonical(&["maxPods: 7", "logging: {format: json}", "maxPods: 2\nlogging: {verbosity: 1}"]),
    ];
    for found in same {
        assert_eq!(found.unwrap(), r#"{"logging":{"format":"json","verbosity":1},"maxPods":2}"#);
    }
    assert_eq!(canonical(&[]).unwrap(), "{}");
    assert_eq!(canonical(&["maxPods: ~"]).unwrap(), r#"{"maxPods":null}"#);
    assert_eq!(
        canonical(&["logging: ~", "logging: {verbosity: 1}"]).unwrap(),
        r#"{"logging":[{"verbosity":1}]}"#
    );
    assert_eq!(canonical(&["featureGates: {B: no}"]).unwrap(), r#"{"featureGates":{"B":false}}"#);
    assert_eq!(
        canonical(&["clusterDNS: [10.0.0.1, 10.0.0.2, 10.0.0.3]"]).unwrap(),
        r#"{"clusterDNS":["10.0.0.1","10.0.0.2","10.0.0.3"]}"#
    );
    assert_eq!(canonical(&["maxPods: many"]).expect_err("not a number").kind, ErrorKind::Parse);

    let with_flag = LocalLayers { flags: vec![("x", json!({"maxPods": 2}))], ..LocalLayers::default() };
    assert_eq!(canonical_overrides(&with_flag).unwrap(), br#"{"maxPods":2}"#);
}

#[test]
fn shown_text_names_layers_and_reads_back_the_same() {
    let layers = layers(
        "kubeAPIQPS: 1\nproviderID: 'yes'\nclusterDNS: [a, '1']\nfeatureGates: {'on': true}\nauthentication: {}\nstaticPodURLHeader: {'a b': ['x: y', \"l\\n#\"]}\n",
        &["logging: {verbosity: 3}\nmaxPods: 7\n"],
    );
    let found = effective(&layers, None).unwrap();
    let text = found.to_text();
    assert_eq!(kedge_core::kubelet::yaml::parse(text.as_bytes()).unwrap().to_json(), found.object);
    let line =
        |start: &str| text.lines().find(|line| line.trim_start().starts_with(start)).unwrap().to_owned();
    assert_eq!(
        line("kubeAPIQPS"),
        format!("{:48}# from config file /etc/kedge/config.yaml:3, without effect", "kubeAPIQPS: 1")
    );
    assert_eq!(line("maxPods"), format!("{:48}# from drop-in /etc/kedge/config.d/00.conf:4", "maxPods: 7"));
    assert_eq!(line("crashLoop"), format!("{:48}# from default", "crashLoopThreshold: 10"));
    assert_eq!(line("memory.available"), format!("{:48}# from default", "  memory.available: 100Mi"));
}

#[test]
fn lists_are_shown_one_item_a_line() {
    let text = local("clusterDNS: [10.0.0.1, 10.0.0.2]\nregisterWithTaints: []\n").to_text();
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("clusterDNS:")).expect("it was set");
    assert_eq!(lines[at + 1..at + 3], ["- \"10.0.0.1\"", "- \"10.0.0.2\""]);
    assert!(lines.iter().any(|line| line.starts_with("registerWithTaints: [] ")), "{text}");
}

#[test]
fn ambiguous_text_is_shown_in_quotes() {
    for (text, shown) in [
        ("aws:///zone/i-1", "\"aws:///zone/i-1\""),
        ("/dev/disk", "/dev/disk"),
        ("edge_1.site-2/50%", "edge_1.site-2/50%"),
        ("yes", "\"yes\""),
        ("1", "\"1\""),
        ("2001-12-14", "\"2001-12-14\""),
        ("10m0s", "10m0s"),
        ("-x", "\"-x\""),
        ("~x", "\"~x\""),
        ("a b", "\"a b\""),
        ("a#b", "\"a#b\""),
    ] {
        let found = local(&format!("providerID: {}\n", Value::from(text)));
        let start = format!("providerID: {shown} ");
        assert!(found.to_text().lines().any(|line| line.starts_with(&start)), "{text}: {}", found.to_text());
    }
}

#[test]
fn unknown_field_suggests_a_near_known_one() {
    for (key, near) in [
        ("maxpods", Some("maxPods")),
        ("maxPod", Some("maxPods")),
        ("maxPo", Some("maxPods")),
        ("maxP", None),
        ("xmaxPods", Some("maxPods")),
        ("xxmaxPods", Some("maxPods")),
        ("xxxmaxPods", None),
        ("maxPodsxx", Some("maxPods")),
        ("maxPodsxxx", None),
        ("mxaPods", Some("maxPods")),
        ("pxxt", None),
    ] {
        let hint = near.map(|name| format!(" (did you mean {name}?)")).unwrap_or_default();
        let expect = format!("config file /etc/kedge/config.yaml: unknown field {key}{hint} (line 3)");
        check_error(&layers(&format!("{key}: 1"), &[]), ErrorKind::Parse, &[&expect]);
    }
}

#[test]
fn as_many_taints_as_allowed_are_taken() {
    let taint = |number: usize| format!("- {{key: t{number}, effect: NoExecute}}\n");
    let taints = |count: usize| format!("registerWithTaints:\n{}", (0..count).map(taint).collect::<String>());
    assert_eq!(local(&taints(100)).config.register_with_taints.len(), 100);
    check_error(
        &layers(&taints(101), &[]),
        ErrorKind::Validate,
        &[
            "config file /etc/kedge/config.yaml: registerWithTaints has 101 taints, expected at most 100 (line 4)",
        ],
    );
}

#[test]
fn devices_are_named_paths_below_dev() {
    let devices = |text: &str| format!("kedge: {{devices: {{{text}}}}}\n");
    let found = local(&devices("gps: [/dev/serial/by-id/gps], modem: [/dev/ttyUSB0, /dev/ttyUSB1]"));
    assert_eq!(found.config.pods.devices["gps"], ["/dev/serial/by-id/gps"]);
    assert_eq!(found.config.pods.devices["modem"].len(), 2);
    for (text, expect) in [
        ("GPS: [/dev/gps]", "kedge.devices.GPS: expected a name as those of containers"),
        ("gps: []", "kedge.devices.gps: expected 1 to 16 paths, and has 0"),
        ("gps: [/etc/passwd]", "kedge.devices.gps: expected paths below /dev, and has \"/etc/passwd\""),
        ("gps: [/dev/../etc]", "expected paths below /dev"),
    ] {
        let refused = effective(&layers(&devices(text), &[]), None).unwrap_err();
        let shown = format!("{refused:?}");
        assert!(shown.contains(&expect.replace('"', "\\\"")), "{shown}");
    }
}

#[test]
fn servers_are_few_and_by_https() {
    let servers = |text: &str| format!("kedge: {{servers: [{text}]}}\n");
    let found = local(&servers("'https://new.lan:6443', 'https://10.0.0.7', 'https://[fd00::1]:7443'"));
    let urls: Vec<String> = found.config.servers.iter().map(|server| server.url()).collect();
    assert_eq!(urls, ["https://new.lan:6443", "https://10.0.0.7:443", "https://[fd00::1]:7443"]);
    assert!(local("port: 1\n").config.servers.is_empty());
    let expected = "kedge.servers: expected https://HOST[:PORT]";
    for text in [
        "'http://new.lan'",
        "new.lan",
        "'https://new.lan/path'",
        "'https://user@new.lan'",
        "'https://new.lan:0'",
        "'https://new.lan:+1'",
        "'https://new.lan:65536'",
        "'https://[new.lan]'",
        "'https://'",
    ] {
        let refused = format!("{:?}", effective(&layers(&servers(text), &[]), None).unwrap_err());
        assert!(refused.contains(expected), "{text}: {refused}");
    }
    let many = ["a", "b", "c", "d", "e"].map(|host| format!("'https://{host}.lan'")).join(", ");
    for (text, expect) in [
        (many.as_str(), "at most 4 servers, and has 5"),
        ("'https://a', 'https://a:443'", "each server once"),
    ] {
        let refused = format!("{:?}", effective(&layers(&servers(text), &[]), None).unwrap_err());
        assert!(refused.contains(expect), "{refused}");
    }
}

#[test]
fn maintenance_windows_are_times_of_the_week() {
    let windows = |text: &str| format!("kedge: {{maintenanceWindows: [{text}]}}\n");
    let found = local(&windows("\"Mon-Fri 22:00-04:00\", \"Sat 00:00-00:00\""));
    assert_eq!(found.config.maintenance_windows, ["Mon-Fri 22:00-04:00", "Sat 00:00-00:00"]);
    assert!(local("port: 1\n").config.maintenance_windows.is_empty());
    let many = vec!["\"02:00-04:00\""; 17].join(",");
    let expected = "kedge.maintenanceWindows: expected [DAY[-DAY] ]HH:MM-HH:MM in UTC";
    for (text, expect) in [
        ("\"2-4\"", expected),
        ("\"02:00-04:00, 05:00-06:00\"", expected),
        (many.as_str(), "kedge.maintenanceWindows: expected at most 16 windows, and has 17"),
    ] {
        let refused = effective(&layers(&windows(text), &[]), None).unwrap_err();
        let shown = format!("{refused:?}");
        assert!(shown.contains(expect), "{shown}");
    }
}

#[test]
fn shown_json_has_object_layers_and_fields_without_effect() {
    let found = local("kubeAPIQPS: 1\nmaxPods: 2\n").to_json();
    assert_eq!(found["config"]["maxPods"], 2);
    assert_eq!(found["provenance"]["maxPods"], "config file /etc/kedge/config.yaml:4");
    assert_eq!(found["provenance"]["evictionHard[\"memory.available\"]"], "default");
    assert_eq!(found["withoutEffect"], json!(["kubeAPIQPS"]));
}

#[cfg(not(feature = "fault-injection"))]
#[test]
fn release_refuses_fault_injection() {
    check_error(
        &layers("kedge: {faultInjection: {crashAfter: 0s}}", &[]),
        ErrorKind::Parse,
        &["config file /etc/kedge/config.yaml: unknown field kedge.faultInjection (line 3)"],
    );
}

#[cfg(feature = "fault-injection")]
#[test]
fn fault_injection_is_read_in_a_build_with_it() {
    let fields = "kedge: {faultInjection: {crashAfter: 0s, hangLoop: disk, hangAfter: 2s, clockOffset: -1h}}";
    let faults = local(fields).config.fault_injection;
    assert_eq!((faults.crash_after, faults.hang_loop.as_deref()), (Some(Duration::ZERO), Some("disk")));
    assert_eq!((faults.hang_after, faults.clock_offset_ms), (Duration::from_secs(2), -3_600_000));
    assert_eq!(local("").config.fault_injection, kedge_core::kubelet::FaultInjection::default());
}
