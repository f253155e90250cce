//! Every field that a configuration may have: upstream's KubeletConfiguration v1beta1 as of 1.36 (and the
//! fields that its master had added for 1.37), the two trial fields of dynamic kubelet configuration, and
//! ours under `kedge`.
//!
//! Always holds: a field outside this table is an error; its type is upstream's, so a value that decodes
//! there decodes here; its [`Effect`] tells whether it has an effect here, and only a field with an effect
//! has a default. Each path has one kind, so merging never meets a list on one side and an object on the
//! other. Every number with an effect has bounds with a reason: a value may be valid upstream and still
//! silence a node or wear out its flash. Left to others: which layer wrote a field, and combinations of
//! fields.

pub use kedge_api::distance;
use kedge_api::excerpt;
use serde_json::Value;

use super::quantity::{Quantity, Threshold};
use super::yaml::{Content, Position, Tree};
use super::{duration, path};

/// The only `apiVersion` read.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// The only `kind` read.
pub const KIND: &str = "KubeletConfiguration";

/// The effect of a field here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// This agent uses it.
    Honoured,
    /// It will have an effect once this agent runs pods; until then the same as [`Effect::NoEffect`].
    WithPods,
    /// Known from upstream; accepted, checked for its type, without effect.
    NoEffect,
}

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number; beyond the bounds it is a number with a wrong value.
    Int {
        /// Lowest value.
        low: i64,
        /// Highest value.
        high: i64,
    },
    /// Any number.
    Number,
    Text,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Text in Go's form of a duration; a bare 0 is accepted too.
    Duration,
    /// The same; beyond the bounds it is a duration with a wrong value.
    DurationIn {
        /// Shortest, nanoseconds.
        low: i64,
        /// Longest, nanoseconds.
        high: i64,
    },
    /// A duration, or a number of nanoseconds (upstream's `logging.flushFrequency`).
    DurationOrInteger,
    /// Text with a quantity, as in upstream's `map[string]string` fields.
    QuantityText,
    /// A quantity as text or number, as in upstream's `resource.Quantity` fields.
    Quantity,
    /// Text with a quantity or a percentage.
    Threshold,
    /// A list; merged as a whole.
    List(&'static Kind),
    /// An object with keys of the user's choice; merged by key.
    Map(&'static Kind),
    /// An object with these fields; merged by field.
    Object(&'static [Field]),
}

/// The value of a field that no layer sets. Only honoured fields have one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Default {
    /// Absent.
    None,
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Text, also for durations and quantities.
    Text(&'static str),
}

impl Default {
    /// The value, if there is one.
    #[must_use]
    pub fn value(self) -> Option<Value> {
        match self {
            Self::None => None,
            Self::Bool(value) => Some(Value::Bool(value)),
            Self::Int(value) => Some(Value::from(value)),
            Self::Text(value) => Some(Value::from(value)),
        }
    }
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The field's name in the file.
    pub name: &'static str,
    pub kind: Kind,
    /// Its effect here. For an object with fields, their effects count.
    pub effect: Effect,
    /// Its value when no layer sets it.
    pub default: Default,
    /// Why values beyond its bounds are refused; empty if its type is the only bound.
    pub why: &'static str,
    /// Zero stands for the default, as in upstream's defaulting. Files that kubeadm writes are full of such
    /// zeros.
    pub zero_is_default: bool,
    /// The values that the first release accepted, if those were more: this machine's own files may still
    /// have them.
    took: Option<Kind>,
}

impl Field {
    const fn took(mut self, kind: Kind) -> Self {
        self.took = Some(kind);
        self
    }

    const fn zero_is_default(mut self) -> Self {
        self.zero_is_default = true;
        self
    }

    /// The field's bounds in words, with their reason.
    #[must_use]
    pub fn bounds(&self) -> String {
        match self.kind.bounds() {
            Some((low, high)) => format!("{low} to {high}: {}", self.why),
            None => self.why.to_owned(),
        }
    }
}

impl Kind {
    /// The lowest and highest value in a file's form; `None` if the type is the only bound.
    fn bounds(&self) -> Option<(String, String)> {
        match *self {
            Self::Int { low, high } => Some((low.to_string(), high.to_string())),
            Self::DurationIn { low, high } => Some((duration::format(low), duration::format(high))),
            _ => None,
        }
    }
}

const fn honoured(name: &'static str, kind: Kind, default: Default) -> Field {
    Field { name, kind, effect: Effect::Honoured, default, why: "", zero_is_default: false, took: None }
}

/// A field with bounds of its own, and their reason.
const fn bounded(name: &'static str, kind: Kind, default: Default, why: &'static str) -> Field {
    Field { name, kind, effect: Effect::Honoured, default, why, zero_is_default: false, took: None }
}

const fn with_pods(name: &'static str, kind: Kind) -> Field {
    let (effect, default) = (Effect::WithPods, Default::None);
    Field { name, kind, effect, default, why: "", zero_is_default: false, took: None }
}

const fn no_effect(name: &'static str, kind: Kind) -> Field {
    let (effect, default) = (Effect::NoEffect, Default::None);
    Field { name, kind, effect, default, why: "", zero_is_default: false, took: None }
}

const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// Shortest `nodeStatusReportFrequency`, nanoseconds.
pub(super) const SHORTEST_REPORT: i64 = 10 * SECOND;

/// Longest `nodeStatusReportFrequency`, nanoseconds.
pub(super) const LONGEST_REPORT: i64 = 5 * MINUTE;

/// The default address of the local endpoint.
pub(super) const LOOPBACK: &str = "127.0.0.1";

/// The kubelet's directory of logs, where collectors of logs look for them.
pub(super) const POD_LOGS: &str = "/var/log/pods";

/// A number from `low` on, of the 32 bits that upstream gives it.
const fn from(low: i64) -> Kind {
    Kind::Int { low, high: i32::MAX as i64 }
}

const I32: Kind = from(i32::MIN as i64);
/// Upstream refuses negative values here.
const COUNT: Kind = from(0);
const PORT: Kind = Kind::Int { low: 0, high: 65_535 };
/// A bit of a packet's mark.
const MARK_BIT: Kind = Kind::Int { low: 0, high: 31 };
const I64: Kind = Kind::Int { low: i64::MIN, high: i64::MAX };
/// A duration of any length from `low` nanoseconds on.
const fn at_least(low: i64) -> Kind {
    Kind::DurationIn { low, high: i64::MAX }
}
const PERCENT: Kind = Kind::Int { low: 0, high: 100 };
const U32: Kind = Kind::Int { low: 0, high: u32::MAX as i64 };
const LIST_OF_TEXT: Kind = Kind::List(&Kind::Text);
/// How long a shutdown of the machine may wait for pods.
const SHUTDOWN: Kind = Kind::DurationIn { low: 0, high: HOUR };
const MAP_OF_TEXT: Kind = Kind::Map(&Kind::Text);

/// The fields of a KubeletConfiguration, except for `apiVersion` and `kind`. Sorted by subject as in
/// upstream's types.go.
pub static FIELDS: &[Field] = &[
    // proposed with dynamic kubelet configuration; upstream dropped both with it
    bounded(
        "configTrialDuration",
        Kind::DurationIn { low: 0, high: 7 * DAY },
        Default::Text("10m0s"),
        "a longer trial would write its progress to flash for years, and end for no board that is switched off at times",
    )
    .took(at_least(0)),
    bounded(
        "crashLoopThreshold",
        Kind::Int { low: 0, high: 10 },
        Default::Int(10),
        "more crashes are not remembered",
    ),
    // heartbeats and registration
    bounded(
        "nodeStatusUpdateFrequency",
        Kind::DurationIn { low: SECOND, high: 5 * MINUTE },
        Default::Text("10s"),
        "shorter keeps a small board busy; longer leaves a full disk and an edit of bad-configs.json unnoticed",
    )
    .zero_is_default()
    .took(at_least(SECOND)),
    // set by nodeStatusUpdateFrequency when only that one is set: see `settings`
    bounded(
        "nodeStatusReportFrequency",
        Kind::DurationIn { low: SHORTEST_REPORT, high: LONGEST_REPORT },
        Default::Text("5m0s"),
        "shorter is traffic without news; after 5 minutes pods of a node that is not heard of are evicted",
    )
    .zero_is_default()
    .took(at_least(SECOND)),
    bounded(
        "nodeLeaseDurationSeconds",
        Kind::Int { low: 4, high: 160 },
        Default::Int(40),
        "renewed every 1 to 40 s: a control plane gives a node up after 50 s, and a slow link answers no faster",
    )
    .zero_is_default()
    .took(from(1)),
    no_effect("nodeStatusMaxImages", from(-1)).took(I32),
    honoured("registerNode", Kind::Bool, Default::Bool(true)),
    bounded(
        "registerWithTaints",
        Kind::List(&Kind::Object(TAINT)),
        Default::None,
        "at most 100: each pod is matched against each, and the Node grows by it",
    ),
    bounded(
        "providerID",
        Kind::Text,
        Default::None,
        "at most 512 bytes: every server refuses a Node that is too large, and a node without one renews nothing",
    ),
    // the local endpoint
    bounded("healthzPort", PORT, Default::Int(10_248), "the ports of TCP"),
    bounded(
        "healthzBindAddress",
        Kind::Text,
        Default::Text(LOOPBACK),
        "a loopback address, because the endpoint has no authentication",
    ),
    no_effect("logging", Kind::Object(LOGGING)),
    // capacity and pressure
    bounded(
        "maxPods",
        Kind::Int { low: 0, high: 10_000 },
        Default::Int(110),
        "more is a typing error: no node runs so many",
    )
    .took(COUNT),
    honoured("systemReserved", Kind::Object(RESERVED), Default::None),
    honoured("kubeReserved", Kind::Object(RESERVED), Default::None),
    honoured("evictionHard", Kind::Object(EVICTION_HARD), Default::None),
    bounded(
        "evictionPressureTransitionPeriod",
        Kind::DurationIn { low: 0, high: DAY },
        Default::Text("5m0s"),
        "longer and one moment of pressure keeps pods away for good",
    )
    .zero_is_default()
    .took(at_least(0)),
    bounded("evictionSoft", MAP_OF_TEXT, Default::None, "the signals of evictionHard, each with a period; at most 50% of what the node has"),
    bounded("evictionSoftGracePeriod", MAP_OF_TEXT, Default::None, "not negative"),
    bounded("evictionMaxPodGracePeriod", COUNT, Default::Int(0), "not negative").took(I32),
    bounded("evictionMinimumReclaim", MAP_OF_TEXT, Default::None, "not negative, and at most 50% of what the node has"),
    // thresholds always merge with their defaults here
    no_effect("mergeDefaultEvictionSettings", Kind::Bool),
    with_pods("podsPerCore", COUNT).took(I32),
    with_pods("enforceNodeAllocatable", LIST_OF_TEXT),
    with_pods("systemReservedCgroup", Kind::Text),
    with_pods("kubeReservedCgroup", Kind::Text),
    with_pods("reservedSystemCPUs", Kind::Text),
    with_pods("reservedMemory", Kind::List(&Kind::Object(MEMORY_RESERVATION))),
    with_pods("localStorageCapacityIsolation", Kind::Bool),
    // pods
    bounded(
        "staticPodPath",
        Kind::Text,
        Default::None,
        "absolute; in a local file also relative to its directory",
    ),
    with_pods("staticPodURL", Kind::Text),
    with_pods("staticPodURLHeader", Kind::Map(&LIST_OF_TEXT)),
    bounded(
        "podLogsDir",
        Kind::Text,
        Default::Text(POD_LOGS),
        "a normalized absolute path of ASCII characters: collectors of logs read there",
    ),
    with_pods("syncFrequency", Kind::Duration),
    bounded(
        "fileCheckFrequency",
        Kind::DurationIn { low: 0, high: HOUR },
        Default::Text("20s"),
        "less than 1s is 1s, for each look reads all files; longer leaves an edit unnoticed",
    )
    .zero_is_default()
    .took(Kind::Duration),
    with_pods("httpCheckFrequency", Kind::Duration),
    honoured("clusterDomain", Kind::Text, Default::None),
    honoured("clusterDNS", LIST_OF_TEXT, Default::None),
    with_pods("resolvConf", Kind::Text),
    with_pods("podCIDR", Kind::Text),
    bounded(
        "podPidsLimit",
        Kind::Int { low: -1, high: 4_194_304 },
        Default::Int(-1),
        "Linux numbers no more processes; below 1 is 4096, for a pod that forks without end must leave some to others",
    )
    .took(I64),
    with_pods("cpuCFSQuota", Kind::Bool),
    with_pods("cpuCFSQuotaPeriod", Kind::Duration),
    honoured("seccompDefault", Kind::Bool, Default::None),
    honoured("allowedUnsafeSysctls", LIST_OF_TEXT, Default::None),
    with_pods("failSwapOn", Kind::Bool),
    with_pods("memorySwap", Kind::Object(&[with_pods("swapBehavior", Kind::Text)])),
    with_pods("memoryThrottlingFactor", Kind::Number),
    with_pods("memoryReservationPolicy", Kind::Text),
    with_pods("singleProcessOOMKill", Kind::Bool),
    with_pods("userNamespaces", Kind::Object(&[with_pods("idsPerPod", I64)])),
    with_pods("crashLoopBackOff", Kind::Object(&[with_pods("maxContainerRestartPeriod", Kind::Duration)])),
    bounded(
        "containerLogMaxSize",
        Kind::QuantityText,
        Default::Text("10Mi"),
        "at least 64Ki: a line may have 16 KiB",
    ),
    bounded(
        "containerLogMaxFiles",
        Kind::Int { low: 2, high: 1000 },
        Default::Int(5),
        "the one that is written and one before it; each is renamed at a rotation",
    )
    .took(I32),
    // a container's shim rotates its log as it writes
    no_effect("containerLogMaxWorkers", from(1)).took(I32),
    no_effect("containerLogMonitorInterval", Kind::Duration),
    bounded(
        "configMapAndSecretChangeDetectionStrategy",
        Kind::OneOf(&["", "Get", "Cache", "Watch"]),
        Default::Text("Watch"),
        "Get, Cache or Watch; empty is Watch as upstream",
    ),
    with_pods("volumeStatsAggPeriod", Kind::Duration),
    bounded("shutdownGracePeriod", SHUTDOWN, Default::Text("0s"), "an operator who stops a machine waits for it")
        .took(Kind::Duration),
    bounded("shutdownGracePeriodCriticalPods", SHUTDOWN, Default::Text("0s"), "at most shutdownGracePeriod")
        .took(Kind::Duration),
    bounded(
        "shutdownGracePeriodByPodPriority",
        Kind::List(&Kind::Object(PRIORITY_GRACE_PERIOD)),
        Default::None,
        "not beside shutdownGracePeriod; each at most an hour",
    ),
    // images
    bounded("registryPullQPS", COUNT, Default::Int(5), "not negative; 0 is no limit").took(I32),
    bounded("registryBurst", COUNT, Default::Int(10), "not negative; 0 is 10 as upstream").took(I32),
    // derived from maxParallelImagePulls: see `settings`
    honoured("serializeImagePulls", Kind::Bool, Default::None),
    bounded(
        "maxParallelImagePulls",
        Kind::Int { low: 1, high: 16 },
        Default::None,
        "each is a thread, and all share one line and one disk",
    )
    .took(I32),
    with_pods("imagePullCredentialsVerificationPolicy", Kind::Text),
    with_pods("preloadedImagesVerificationAllowlist", LIST_OF_TEXT),
    bounded("imageMinimumGCAge", at_least(0), Default::Text("2m0s"), "not negative")
        .zero_is_default()
        .took(Kind::Duration),
    bounded(
        "imageMaximumGCAge",
        at_least(0),
        Default::Text("0s"),
        "not negative, and more than imageMinimumGCAge; 0s is never",
    )
    .took(Kind::Duration),
    bounded(
        "imageGCHighThresholdPercent",
        PERCENT,
        Default::Int(85),
        "more than imageGCLowThresholdPercent; 100: never for lack of space",
    ),
    bounded("imageGCLowThresholdPercent", PERCENT, Default::Int(80), "a part of the disk"),
    bounded(
        "streamingConnectionIdleTimeout",
        Kind::DurationIn { low: SECOND, high: DAY },
        Default::Text("4h0m0s"),
        "shorter ends what a person thinks about; longer keeps what a lost client began",
    )
    .zero_is_default()
    .took(Kind::Duration),
    // the kubelet's API on a port of its own: `server`
    honoured("enableServer", Kind::Bool, Default::None),
    bounded("address", Kind::Text, Default::None, "an IP address; 0.0.0.0 if not set"),
    bounded("port", PORT, Default::None, "the ports of TCP").took(I32),
    bounded(
        "readOnlyPort",
        Kind::Int { low: 0, high: 0 },
        Default::None,
        "such a port has no authentication",
    )
    .took(I32),
    bounded("tlsCertFile", Kind::Text, Default::None, "an absolute path; tlsPrivateKeyFile must be set, too"),
    bounded("tlsPrivateKeyFile", Kind::Text, Default::None, "an absolute path; tlsCertFile must be set, too"),
    no_effect("tlsCipherSuites", LIST_OF_TEXT),
    no_effect("tlsCurvePreferences", Kind::List(&I32)),
    bounded("tlsMinVersion", Kind::Text, Default::None, "VersionTLS12 or VersionTLS13"),
    honoured("rotateCertificates", Kind::Bool, Default::None),
    honoured("serverTLSBootstrap", Kind::Bool, Default::None),
    no_effect("authentication", Kind::Object(AUTHENTICATION)),
    no_effect("authorization", Kind::Object(AUTHORIZATION)),
    honoured("enableDebuggingHandlers", Kind::Bool, Default::None),
    no_effect("enableContentionProfiling", Kind::Bool),
    no_effect("enableProfilingHandler", Kind::Bool),
    no_effect("enableDebugFlagsHandler", Kind::Bool),
    // read by the sessions that serve the logs
    honoured("enableSystemLogHandler", Kind::Bool, Default::None),
    honoured("enableSystemLogQuery", Kind::Bool, Default::None),
    no_effect("showHiddenMetricsForVersion", Kind::Text),
    // the kubelet's client, process, and machine
    no_effect("eventRecordQPS", COUNT).took(I32),
    no_effect("eventBurst", COUNT).took(I32),
    no_effect("kubeAPIQPS", COUNT).took(I32),
    no_effect("kubeAPIBurst", COUNT).took(I32),
    no_effect("contentType", Kind::Text),
    no_effect("oomScoreAdj", Kind::Int { low: -1000, high: 1000 }).took(I32),
    no_effect("maxOpenFiles", Kind::Int { low: 0, high: i64::MAX }).took(I64),
    no_effect("runOnce", Kind::Bool),
    no_effect("protectKernelDefaults", Kind::Bool),
    no_effect("kernelMemcgNotification", Kind::Bool),
    no_effect("makeIPTablesUtilChains", Kind::Bool),
    no_effect("iptablesMasqueradeBit", MARK_BIT).took(I32),
    no_effect("iptablesDropBit", MARK_BIT).took(I32),
    no_effect("hairpinMode", Kind::Text),
    no_effect("volumePluginDir", Kind::Text),
    no_effect("enableControllerAttachDetach", Kind::Bool),
    no_effect("containerRuntimeEndpoint", Kind::Text),
    no_effect("imageServiceEndpoint", Kind::Text),
    no_effect("runtimeRequestTimeout", Kind::Duration),
    no_effect("kubeletCgroups", Kind::Text),
    no_effect("systemCgroups", Kind::Text),
    no_effect("cgroupRoot", Kind::Text),
    no_effect("cgroupsPerQOS", Kind::Bool),
    no_effect("cgroupDriver", Kind::Text),
    no_effect("failCgroupV1", Kind::Bool),
    no_effect("qosReserved", MAP_OF_TEXT),
    no_effect("cpuManagerPolicy", Kind::Text),
    no_effect("cpuManagerPolicyOptions", MAP_OF_TEXT),
    no_effect("cpuManagerReconcilePeriod", Kind::Duration),
    no_effect("memoryManagerPolicy", Kind::Text),
    no_effect("topologyManagerPolicy", Kind::Text),
    no_effect("topologyManagerScope", Kind::Text),
    no_effect("topologyManagerPolicyOptions", MAP_OF_TEXT),
    no_effect("systemPartition", Kind::Object(SYSTEM_PARTITION)),
    no_effect("featureGates", Kind::Map(&Kind::Bool)),
    no_effect("tracing", Kind::Object(TRACING)),
    // ours
    no_effect("kedge", Kind::Object(KEDGE)),
];

const TAINT: &[Field] = &[
    honoured("key", Kind::Text, Default::None),
    honoured("value", Kind::Text, Default::None),
    honoured("effect", Kind::Text, Default::None),
    honoured("timeAdded", Kind::Text, Default::None),
];

const LOGGING: &[Field] = &[
    bounded("verbosity", Kind::Int { low: 0, high: 10 }, Default::Int(0), "the kubelet's levels end there"),
    no_effect("format", Kind::Text),
    no_effect("flushFrequency", Kind::DurationOrInteger),
    no_effect(
        "vmodule",
        Kind::List(&Kind::Object(&[no_effect("filePattern", Kind::Text), no_effect("verbosity", U32)])),
    ),
    no_effect(
        "options",
        Kind::Object(&[
            no_effect("text", Kind::Object(LOG_STREAMS)),
            no_effect("json", Kind::Object(LOG_STREAMS)),
        ]),
    ),
];

const LOG_STREAMS: &[Field] =
    &[no_effect("splitStream", Kind::Bool), no_effect("infoBufferSize", Kind::Quantity)];

/// The resources upstream lets one reserve.
const RESERVED: &[Field] = &[
    bounded(
        "cpu",
        Kind::QuantityText,
        Default::None,
        "not negative; more than the node has is logged, and leaves pods nothing",
    ),
    bounded(
        "memory",
        Kind::QuantityText,
        Default::None,
        "not negative; more than the node has is logged, and leaves pods nothing",
    ),
    bounded(
        "ephemeral-storage",
        Kind::QuantityText,
        Default::None,
        "not negative; more than the node has is logged, and leaves pods nothing",
    ),
    bounded(
        "pid",
        Kind::QuantityText,
        Default::None,
        "not negative; more than the node has is logged, and leaves pods nothing",
    ),
];

const HALF_WHY: &str = "at most 50% of what the node has: more is a typing error, and ends its pods";

/// Upstream's signals. Each has its own default, so thresholds merge one by one: a file that sets one keeps
/// the others (upstream's base file loses them, kubernetes/kubernetes#127577).
const EVICTION_HARD: &[Field] = &[
    bounded("memory.available", Kind::Threshold, Default::Text("100Mi"), HALF_WHY),
    bounded("nodefs.available", Kind::Threshold, Default::Text("10%"), HALF_WHY),
    bounded("nodefs.inodesFree", Kind::Threshold, Default::Text("5%"), HALF_WHY),
    bounded("pid.available", Kind::Threshold, Default::None, HALF_WHY),
    bounded("imagefs.available", Kind::Threshold, Default::Text("15%"), HALF_WHY),
    bounded("imagefs.inodesFree", Kind::Threshold, Default::Text("5%"), HALF_WHY),
    with_pods("containerfs.available", Kind::Threshold),
    with_pods("containerfs.inodesFree", Kind::Threshold),
    with_pods("allocatableMemory.available", Kind::Threshold),
];

const MEMORY_RESERVATION: &[Field] =
    &[with_pods("numaNode", I32), with_pods("limits", Kind::Map(&Kind::Quantity))];

const PRIORITY_GRACE_PERIOD: &[Field] =
    &[honoured("priority", I32, Default::None), honoured("shutdownGracePeriodSeconds", I64, Default::None)];

/// How long an answer of the API server about a caller may be cached.
const TTL: Kind = Kind::DurationIn { low: 0, high: HOUR };
const TTL_WHY: &str = "a revoked right counts for as long";

const AUTHENTICATION: &[Field] = &[
    no_effect(
        "x509",
        Kind::Object(&[bounded("clientCAFile", Kind::Text, Default::None, "an absolute path")]),
    ),
    no_effect(
        "webhook",
        Kind::Object(&[
            honoured("enabled", Kind::Bool, Default::None),
            bounded("cacheTTL", TTL, Default::None, TTL_WHY).took(Kind::Duration),
        ]),
    ),
    no_effect(
        "anonymous",
        Kind::Object(&[bounded("enabled", Kind::Bool, Default::None, "false where port is not 0")]),
    ),
];

const AUTHORIZATION: &[Field] = &[
    bounded("mode", Kind::Text, Default::None, "Webhook where port is not 0"),
    no_effect(
        "webhook",
        Kind::Object(&[
            bounded("cacheAuthorizedTTL", TTL, Default::None, TTL_WHY).took(Kind::Duration),
            bounded("cacheUnauthorizedTTL", TTL, Default::None, TTL_WHY).took(Kind::Duration),
        ]),
    ),
];

const SYSTEM_PARTITION: &[Field] = &[
    no_effect("memoryLimit", Kind::Quantity),
    no_effect("cpuset", Kind::Text),
    no_effect("namespaces", LIST_OF_TEXT),
];

const TRACING: &[Field] =
    &[no_effect("endpoint", Kind::Text), no_effect("samplingRatePerMillion", COUNT).took(I32)];

/// YAML reads this as `false`, unless it is quoted.
pub(super) const OFF: &str = "off";

/// Ours: settings for which upstream has no field.
const KEDGE: &[Field] = &[
    bounded("watch", Kind::OneOf(&["auto", OFF]), Default::Text("auto"), "auto or off"),
    no_effect("images", Kind::Object(IMAGES)),
    bounded(
        "devices",
        Kind::Map(&LIST_OF_TEXT),
        Default::None,
        "at most 64 names as those of containers, each with 1 to 16 paths below /dev",
    ),
    bounded(
        "maintenanceWindows",
        LIST_OF_TEXT,
        Default::None,
        "at most 16 of [DAY[-DAY] ]HH:MM-HH:MM in UTC, such as Mon-Fri 22:00-04:00",
    ),
    bounded(
        "servers",
        LIST_OF_TEXT,
        Default::None,
        "at most 4 of https://HOST[:PORT], with the authorities of the kubeconfig's server",
    ),
    no_effect("system", Kind::Object(SYSTEM)),
    no_effect("agent", Kind::Object(AGENT)),
    no_effect("download", Kind::Object(DOWNLOAD)),
    #[cfg(feature = "fault-injection")]
    no_effect("faultInjection", Kind::Object(FAULT_INJECTION)),
];

/// Words of [`SYSTEM`] and [`DOWNLOAD`].
pub(super) const WINDOW: &str = "Window";
pub(super) const MANUAL: &str = "Manual";

const VERSION: Field =
    bounded("version", Kind::Text, Default::None, "letters, digits and .+~-_, at most 128 bytes");
/// The source of an update, and the digest of its manifest: see `wanted`.
const PINNED: Kind = Kind::Map(&Kind::Object(&[
    honoured("image", Kind::Text, Default::None),
    honoured("url", Kind::Text, Default::None),
    honoured("digest", Kind::Text, Default::None),
]));
const PINNED_WHY: &str =
    "at most 32, each a digest and either an image with a digest of its own or a URL of https";

/// The disk image that a node with two slots should run.
const SYSTEM: &[Field] = &[
    VERSION,
    bounded("images", PINNED, Default::None, PINNED_WHY),
    bounded("reboot", Kind::OneOf(&[WINDOW, MANUAL]), Default::None, "Window or Manual"),
    bounded("keys", Kind::Text, Default::None, "at most 8 KiB"),
];

/// The program that a node without slots should run.
const AGENT: &[Field] = &[VERSION, bounded("programs", PINNED, Default::None, PINNED_WHY)];

const DOWNLOAD: &[Field] = &[
    bounded("bytesPerSecond", Kind::Quantity, Default::None, "at least 1Ki: slower takes days"),
    bounded("window", Kind::OneOf(&["Any", WINDOW]), Default::None, "Any or Window"),
];

/// The sources of images.
const IMAGES: &[Field] = &[
    bounded(
        "mirrors",
        Kind::Map(&LIST_OF_TEXT),
        Default::None,
        "at most 100 registries of 8: one that is down costs each pull its time limit",
    ),
    bounded("insecureRegistries", LIST_OF_TEXT, Default::None, "at most 100 of host or host:port"),
    bounded(
        "certificateAuthorities",
        MAP_OF_TEXT,
        Default::None,
        "at most 100, each PEM or an absolute path",
    ),
    bounded("credentialsFile", Kind::Text, Default::None, "an absolute path"),
    bounded("offline", Kind::OneOf(&["wait", "usePresent"]), Default::None, "wait or usePresent"),
    bounded(
        "signaturePolicy",
        Kind::Map(&LIST_OF_TEXT),
        Default::None,
        "at most 100 rules, each at most 16 public keys in PEM (ECDSA P-256 or Ed25519), or insecureAcceptAnything alone",
    ),
];

#[cfg(feature = "fault-injection")]
const ANY_LENGTH: Kind = Kind::DurationIn { low: 0, high: i64::MAX };

/// Faults that an agent built for tests commits on request.
#[cfg(feature = "fault-injection")]
const FAULT_INJECTION: &[Field] = &[
    honoured("crashAfter", ANY_LENGTH, Default::None),
    honoured("hangLoop", Kind::Text, Default::None),
    honoured("hangAfter", ANY_LENGTH, Default::None),
    honoured("clockOffset", Kind::Duration, Default::None),
];

/// A fault of one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) field: String,
    pub(super) position: Position,
    pub(super) message: String,
}

/// Finds the fields of `tree` that are unknown or have the wrong type. `tree` is a whole configuration.
pub(super) fn check_types(tree: &Tree, report: &mut dyn FnMut(Finding)) {
    let mut check = TypeCheck { path: String::new(), report };
    for entry in tree.entries() {
        if entry.key != "apiVersion" && entry.key != "kind" {
            check.entry(FIELDS, &entry.key, entry.key_position, &entry.value);
        }
    }
}

struct TypeCheck<'a> {
    path: String,
    report: &'a mut dyn FnMut(Finding),
}

impl TypeCheck<'_> {
    fn entry(&mut self, fields: &[Field], key: &str, key_position: Position, value: &Tree) {
        let length = path::enter(&mut self.path, key);
        match fields.iter().find(|field| field.name == key) {
            // null removes the value of lower layers, whatever it was
            Some(_) if value.is_null() => {}
            Some(field) => self.value(value, &field.kind),
            None => self.unknown(fields, key, key_position),
        }
        self.path.truncate(length);
    }

    fn unknown(&mut self, fields: &[Field], key: &str, position: Position) {
        let hint = match nearest(key, fields) {
            Some(name) => format!(" (did you mean {name}?)"),
            None => String::new(),
        };
        let path = excerpt(&self.path);
        let message = format!("unknown field {path}{hint}");
        (self.report)(Finding { field: self.path.clone(), position, message });
    }

    fn value(&mut self, tree: &Tree, kind: &Kind) {
        match (kind, &tree.content) {
            (Kind::Object(fields), Content::Object(entries)) => {
                for entry in entries {
                    self.entry(fields, &entry.key, entry.key_position, &entry.value);
                }
            }
            (Kind::Map(values), Content::Object(entries)) => {
                for entry in entries.iter().filter(|entry| !entry.value.is_null()) {
                    let length = path::enter(&mut self.path, &entry.key);
                    self.value(&entry.value, values);
                    self.path.truncate(length);
                }
            }
            (Kind::List(items), Content::List(list)) => {
                for (index, item) in list.iter().enumerate() {
                    let length = path::enter_index(&mut self.path, index);
                    self.value(item, items);
                    self.path.truncate(length);
                }
            }
            _ if has_type(kind, &tree.content) => {}
            _ => self.wrong(tree, kind),
        }
    }

    fn wrong(&mut self, tree: &Tree, kind: &Kind) {
        let message =
            format!("{} is {}, expected {}", excerpt(&self.path), shown(tree), expected(kind, tree));
        (self.report)(Finding { field: self.path.clone(), position: tree.position, message });
    }
}

/// Whether a scalar decodes as `kind`; the caller checks lists and objects.
fn has_type(kind: &Kind, content: &Content) -> bool {
    match (kind, content) {
        (Kind::OneOf(words), Content::Text(text)) => words.contains(&text.as_str()),
        // an unquoted off
        (Kind::OneOf(words), Content::Bool(false)) => words.contains(&OFF),
        (Kind::Bool, Content::Bool(_))
        | (Kind::Number, Content::Number(_))
        | (Kind::Text, Content::Text(_)) => true,
        (Kind::Int { .. }, Content::Number(number)) => number.is_i64() || number.is_u64(),
        (Kind::Duration | Kind::DurationIn { .. } | Kind::DurationOrInteger, Content::Text(text)) => {
            duration::parse(text).is_some()
        }
        (Kind::Duration | Kind::DurationIn { .. }, Content::Number(number)) => number.as_i64() == Some(0),
        (Kind::DurationOrInteger, Content::Number(number)) => number.is_i64(),
        (Kind::Quantity | Kind::QuantityText, Content::Text(text)) => Quantity::parse(text).is_some(),
        (Kind::Quantity, Content::Number(_)) => true,
        (Kind::Threshold, Content::Text(text)) => Threshold::parse(text).is_some(),
        _ => false,
    }
}

/// A value outside its field's bounds.
#[derive(Debug)]
pub(super) struct Beyond {
    pub(super) field: String,
    /// The value found and those expected.
    pub(super) message: String,
    /// The value that is used instead, if one may be.
    pub(super) nearest: String,
    /// Whether the first release accepted it.
    pub(super) was_taken: bool,
}

/// Moves each value of a complete configuration that is outside its field's bounds to the nearest within, and
/// reports it. Durations are in Go's form.
pub(super) fn hold_in_bounds(object: &mut serde_json::Map<String, Value>, report: &mut dyn FnMut(Beyond)) {
    hold_fields(FIELDS, object, &mut String::new(), report);
}

fn hold_fields(
    fields: &[Field],
    object: &mut serde_json::Map<String, Value>,
    path: &mut String,
    report: &mut dyn FnMut(Beyond),
) {
    for (key, value) in object {
        if let Some(field) = fields.iter().find(|field| field.name == key) {
            let length = path::enter(path, key);
            hold_value(&field.kind, field.took, value, path, report);
            path.truncate(length);
        }
    }
}

fn hold_value(
    kind: &Kind,
    took: Option<Kind>,
    value: &mut Value,
    path: &mut String,
    report: &mut dyn FnMut(Beyond),
) {
    match (kind, &mut *value) {
        (Kind::Object(fields), Value::Object(object)) => hold_fields(fields, object, path, report),
        (Kind::Map(values), Value::Object(object)) => {
            for (key, value) in object {
                let length = path::enter(path, key);
                hold_value(values, None, value, path, report);
                path.truncate(length);
            }
        }
        (Kind::List(items), Value::Array(list)) => {
            for (index, item) in list.iter_mut().enumerate() {
                let length = path::enter_index(path, index);
                hold_value(items, None, item, path, report);
                path.truncate(length);
            }
        }
        // an unquoted off
        (Kind::OneOf(_), Value::Bool(false)) => *value = OFF.into(),
        _ => {
            if let (Some(within), Some((low, high))) = (nearest_within(kind, value), kind.bounds()) {
                report(Beyond {
                    field: path.clone(),
                    message: format!("{} is {value}, expected {low} to {high}", excerpt(path)),
                    nearest: within.to_string(),
                    was_taken: took.is_some_and(|kind| nearest_within(&kind, value).is_none()),
                });
                *value = within;
            }
        }
    }
}

/// The nearest value within the bounds; `None` if it is within already.
fn nearest_within(kind: &Kind, value: &Value) -> Option<Value> {
    match (kind, value) {
        (Kind::Int { low, high }, Value::Number(number)) => {
            // a number that does not fit an i64 is too large
            let found = number.as_i64().unwrap_or(i64::MAX);
            let fits = number.is_i64() && (*low..=*high).contains(&found);
            (!fits).then(|| Value::from(found.clamp(*low, *high)))
        }
        (Kind::DurationIn { low, high }, Value::String(text)) => {
            let found = duration::parse(text)?;
            let fits = (*low..=*high).contains(&found);
            (!fits).then(|| Value::from(duration::format(found.clamp(*low, *high))))
        }
        _ => None,
    }
}

fn expected(kind: &Kind, found: &Tree) -> String {
    let text = match kind {
        Kind::Bool if is_text(found, &["true", "false"]) => "true or false (without quotes)",
        Kind::Bool => "true or false",
        Kind::Int { .. } if found.text().is_some_and(|text| text.parse::<i64>().is_ok()) => {
            "a whole number (without quotes)"
        }
        Kind::Int { low, high } if *high < i64::from(i32::MAX) => return format!("{low} to {high}"),
        Kind::Int { .. } => "a whole number",
        Kind::Number => "a number",
        Kind::OneOf(words) => return words.join(" or "),
        Kind::Text => match found.content {
            Content::Bool(_) | Content::Number(_) => "text (put it in quotes)",
            _ => "text",
        },
        Kind::Duration | Kind::DurationIn { .. } => "a duration such as \"10s\" or \"1h30m\"",
        Kind::DurationOrInteger => "a duration such as \"10s\" or \"1h30m\", or nanoseconds",
        Kind::QuantityText if matches!(found.content, Content::Number(_)) => "a quantity (put it in quotes)",
        Kind::Quantity | Kind::QuantityText => "a quantity such as \"200Mi\" or \"1500m\"",
        Kind::Threshold if matches!(found.content, Content::Number(_)) => "a quantity (put it in quotes)",
        Kind::Threshold => "a quantity such as \"200Mi\" or a percentage from \"0%\" to \"100%\"",
        Kind::List(_) => "a list",
        Kind::Map(_) | Kind::Object(_) => "an object",
    };
    text.to_owned()
}

fn is_text(tree: &Tree, words: &[&str]) -> bool {
    tree.text().is_some_and(|text| words.contains(&text))
}

/// A value in a message's form.
pub(super) fn shown(tree: &Tree) -> String {
    match &tree.content {
        Content::Null => "null".to_owned(),
        Content::Bool(value) => value.to_string(),
        Content::Number(value) => value.to_string(),
        Content::Text(text) => format!("{:?}", excerpt(text)),
        Content::List(_) => "a list".to_owned(),
        Content::Object(_) => "an object".to_owned(),
    }
}

/// The field whose name is at most two edits away, or differs in case only.
fn nearest(key: &str, fields: &[Field]) -> Option<&'static str> {
    /// Longer than any field's name by more than two edits: nothing can be near it.
    const LONGEST: usize = 48;
    if key.len() > LONGEST {
        return None;
    }
    let candidates = fields.iter().map(|field| (distance(key, field.name), field.name));
    // two edits turn any two letters into any others: short names need more in common
    candidates
        .filter(|(edits, name)| *edits <= 2 && (*edits).saturating_mul(3) <= name.len())
        .min()
        .map(|(_, name)| name)
}

/// Every declared field except objects with fields of their own, with its path, in the table's order.
#[must_use]
pub fn leaves() -> Vec<(String, &'static Field)> {
    let mut found = Vec::new();
    collect_leaves(FIELDS, &mut String::new(), &mut found);
    found
}

fn collect_leaves(fields: &'static [Field], path: &mut String, found: &mut Vec<(String, &'static Field)>) {
    for field in fields {
        let length = path::enter(path, field.name);
        match field.kind {
            Kind::Object(fields) => collect_leaves(fields, path, found),
            _ => found.push((path.clone(), field)),
        }
        path.truncate(length);
    }
}

/// Takes the zeros that stand for a default out of a configuration that all layers have written.
pub(super) fn unset_zeros(object: &mut serde_json::Map<String, Value>) {
    let is_zero = |value: &Value| match value {
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => duration::parse(text) == Some(0),
        _ => false,
    };
    let stands_for_default =
        |name: &str| FIELDS.iter().any(|field| field.zero_is_default && field.name == name);
    object.retain(|name, value| !(is_zero(value) && stands_for_default(name)));
}

/// Puts the defaults into a configuration that all layers have written, and returns the fields it set.
pub(super) fn apply_defaults(object: &mut serde_json::Map<String, Value>, set: &mut dyn FnMut(&str)) {
    default_fields(FIELDS, object, &mut String::new(), set);
}

fn default_fields(
    fields: &[Field],
    object: &mut serde_json::Map<String, Value>,
    path: &mut String,
    set: &mut dyn FnMut(&str),
) {
    for field in fields {
        let length = path::enter(path, field.name);
        if let Kind::Object(fields) = field.kind
            && has_default(fields)
        {
            let nested = object.entry(field.name).or_insert_with(|| Value::Object(serde_json::Map::new()));
            if let Value::Object(nested) = nested {
                default_fields(fields, nested, path, set);
            }
        } else if let Some(value) = field.default.value()
            && !object.contains_key(field.name)
        {
            object.insert(field.name.to_owned(), value);
            set(path);
        }
        path.truncate(length);
    }
}

fn has_default(fields: &[Field]) -> bool {
    fields.iter().any(|field| match field.kind {
        Kind::Object(fields) => has_default(fields),
        _ => field.default != Default::None,
    })
}

/// Writes durations in Go's form, as upstream's `/configz` shows them (`10m` becomes `10m0s`).
pub(super) fn normalize(object: &mut serde_json::Map<String, Value>) {
    normalize_fields(FIELDS, object);
}

fn normalize_fields(fields: &[Field], object: &mut serde_json::Map<String, Value>) {
    for (key, value) in object {
        if let Some(field) = fields.iter().find(|field| field.name == key) {
            normalize_value(&field.kind, value);
        }
    }
}

fn normalize_value(kind: &Kind, value: &mut Value) {
    match (kind, value) {
        (Kind::Object(fields), Value::Object(object)) => normalize_fields(fields, object),
        (Kind::Map(values), Value::Object(object)) => {
            object.values_mut().for_each(|value| normalize_value(values, value));
        }
        (Kind::List(items), Value::Array(list)) => {
            list.iter_mut().for_each(|item| normalize_value(items, item))
        }
        (Kind::Duration | Kind::DurationIn { .. }, value) => {
            let nanos = value.as_str().map_or(Some(0), duration::parse);
            if let Some(nanos) = nanos {
                *value = Value::from(duration::format(nanos));
            }
        }
        _ => {}
    }
}

/// Lists every field of `object` that has no effect here.
pub(super) fn without_effect(object: &serde_json::Map<String, Value>) -> Vec<String> {
    let mut found = Vec::new();
    idle_fields(FIELDS, object, &mut String::new(), &mut found);
    found
}

fn idle_fields(
    fields: &[Field],
    object: &serde_json::Map<String, Value>,
    path: &mut String,
    found: &mut Vec<String>,
) {
    for (key, value) in object {
        let Some(field) = fields.iter().find(|field| field.name == key) else { continue };
        let length = path::enter(path, key);
        match (field.kind, value) {
            (Kind::Object(fields), Value::Object(object)) => idle_fields(fields, object, path, found),
            _ if field.effect != Effect::Honoured => found.push(path.clone()),
            _ => {}
        }
        path.truncate(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::yaml;

    #[track_caller]
    fn check(text: &str, expect: &[&str]) {
        let tree = yaml::parse(text.as_bytes()).unwrap();
        let mut found = Vec::new();
        check_types(&tree, &mut |finding| found.push(finding.message));
        assert_eq!(found, expect, "{text}");
    }

    #[test]
    fn wrong_type_error_has_found_and_expected() {
        check("logging: {verbosity: loud}", &["logging.verbosity is \"loud\", expected 0 to 10"]);
        check("registerNode: \"yes\"", &["registerNode is \"yes\", expected true or false"]);
        check(
            "registerNode: \"true\"",
            &["registerNode is \"true\", expected true or false (without quotes)"],
        );
        check("maxPods: \"20\"", &["maxPods is \"20\", expected a whole number (without quotes)"]);
        check("registerNode: yes", &[]);
        check("maxPods: many", &["maxPods is \"many\", expected 0 to 10000"]);
        check("maxPods: 1.5", &["maxPods is 1.5, expected 0 to 10000"]);
        check("podsPerCore: 1.5", &["podsPerCore is 1.5, expected a whole number"]);
        check("maxPods: 10.0", &[]);
        check("providerID: 7", &["providerID is 7, expected text (put it in quotes)"]);
        check("providerID: [a]", &["providerID is a list, expected text"]);
        check("providerID: {a: 1}", &["providerID is an object, expected text"]);
        check("configTrialDuration: 0", &[]);
        check(
            "configTrialDuration: 10",
            &["configTrialDuration is 10, expected a duration such as \"10s\" or \"1h30m\""],
        );
        check(
            "configTrialDuration: 10 parsecs",
            &["configTrialDuration is \"10 parsecs\", expected a duration such as \"10s\" or \"1h30m\""],
        );
        check(
            "systemReserved: {cpu: 1}",
            &["systemReserved.cpu is 1, expected a quantity (put it in quotes)"],
        );
        check(
            "systemReserved: {cpu: lots}",
            &["systemReserved.cpu is \"lots\", expected a quantity such as \"200Mi\" or \"1500m\""],
        );
        check(
            "evictionHard: {memory.available: 110%}",
            &[
                "evictionHard[\"memory.available\"] is \"110%\", expected a quantity such as \"200Mi\" or a percentage from \"0%\" to \"100%\"",
            ],
        );
        check("memoryThrottlingFactor: high", &["memoryThrottlingFactor is \"high\", expected a number"]);
        check("clusterDNS: 1.2.3.4", &["clusterDNS is \"1.2.3.4\", expected a list"]);
        check(
            "clusterDNS: [1.2.3.4, 5, null]",
            &["clusterDNS[1] is 5, expected text (put it in quotes)", "clusterDNS[2] is null, expected text"],
        );
        check("featureGates: {A: true, B: maybe}", &["featureGates.B is \"maybe\", expected true or false"]);
        check("authentication: [x509]", &["authentication is a list, expected an object"]);
        check("systemPartition: {memoryLimit: 100}", &[]);
        check("systemPartition: {memoryLimit: 1Gi}", &[]);
        check(
            "systemPartition: {memoryLimit: lots}",
            &["systemPartition.memoryLimit is \"lots\", expected a quantity such as \"200Mi\" or \"1500m\""],
        );
        check(
            "evictionHard: {memory.available: 5}",
            &["evictionHard[\"memory.available\"] is 5, expected a quantity (put it in quotes)"],
        );
        check("oomScoreAdj: -999", &[]);
        check("maxOpenFiles: 18446744073709551615", &[]);
        check(
            "logging: {flushFrequency: 1.5}",
            &[
                "logging.flushFrequency is 1.5, expected a duration such as \"10s\" or \"1h30m\", or nanoseconds",
            ],
        );
        check("logging: {flushFrequency: 5000000000}", &[]);
        check("logging: {flushFrequency: 5s}", &[]);
    }

    #[test]
    fn null_is_valid_for_every_field_and_key() {
        check(
            "maxPods: null\nlogging: ~\nfeatureGates: {A: null}\nevictionHard:\n  memory.available:\n",
            &[],
        );
    }

    #[test]
    fn unknown_field_error_suggests_the_nearest() {
        check(
            "confgTrialDuration: 1m",
            &["unknown field confgTrialDuration (did you mean configTrialDuration?)"],
        );
        check("maxpods: 1", &["unknown field maxpods (did you mean maxPods?)"]);
        check("logging: {verbosty: 1}", &["unknown field logging.verbosty (did you mean verbosity?)"]);
        check("evictionHard: {memory.avail: 1Mi}", &["unknown field evictionHard[\"memory.avail\"]"]);
        check("systemReserved: {gpu: 1}", &["unknown field systemReserved.gpu (did you mean cpu?)"]);
        check("flux: 1", &["unknown field flux"]);
        check("pert: 1", &["unknown field pert (did you mean port?)"]);
        check("past: 1", &["unknown field past"]);
        check(
            "registerWithTaints: [{key: a, effekt: b}]",
            &["unknown field registerWithTaints[0].effekt (did you mean effect?)"],
        );
        check(&format!("{}: 1", "x".repeat(500)), &[&format!("unknown field {}...", "x".repeat(60))]);
    }

    #[test]
    fn numbers_out_of_range_are_found() {
        let check = |text: &str, expect: &[&str]| {
            let value = yaml::parse(text.as_bytes()).unwrap().to_json();
            let mut found = Vec::new();
            hold_in_bounds(&mut value.as_object().unwrap().clone(), &mut |beyond| found.push(beyond.message));
            assert_eq!(found, expect, "{text}");
        };
        check("crashLoopThreshold: 10", &[]);
        check("crashLoopThreshold: 11", &["crashLoopThreshold is 11, expected 0 to 10"]);
        check("logging: {verbosity: 11}", &["logging.verbosity is 11, expected 0 to 10"]);
        check("nodeLeaseDurationSeconds: 3", &["nodeLeaseDurationSeconds is 3, expected 4 to 160"]);
        check("nodeLeaseDurationSeconds: 161", &["nodeLeaseDurationSeconds is 161, expected 4 to 160"]);
        check("configTrialDuration: 168h0m0s", &[]);
        check(
            "configTrialDuration: 168h0m1s",
            &["configTrialDuration is \"168h0m1s\", expected 0s to 168h0m0s"],
        );
        check("port: 65536", &["port is 65536, expected 0 to 65535"]);
        // the kubelet refuses these, too
        check("kubeAPIQPS: -1", &["kubeAPIQPS is -1, expected 0 to 2147483647"]);
        check("oomScoreAdj: -1001", &["oomScoreAdj is -1001, expected -1000 to 1000"]);
        check("iptablesDropBit: 32", &["iptablesDropBit is 32, expected 0 to 31"]);
        check("nodeStatusMaxImages: -1", &[]);
        check(
            "maxOpenFiles: 18446744073709551615",
            &["maxOpenFiles is 18446744073709551615, expected 0 to 9223372036854775807"],
        );
        check(
            "tlsCurvePreferences: [1, 3000000000]",
            &["tlsCurvePreferences[1] is 3000000000, expected -2147483648 to 2147483647"],
        );
    }

    #[test]
    fn value_beyond_its_bounds_is_held_at_the_nearest() {
        for (written, held) in [
            ("nodeLeaseDurationSeconds: 2147483647", r#"{"nodeLeaseDurationSeconds":160}"#),
            ("nodeLeaseDurationSeconds: -9", r#"{"nodeLeaseDurationSeconds":4}"#),
            ("podPidsLimit: 18446744073709551615", r#"{"podPidsLimit":4194304}"#),
            ("nodeStatusUpdateFrequency: 2h", r#"{"nodeStatusUpdateFrequency":"5m0s"}"#),
            ("logging: {verbosity: 99}", r#"{"logging":{"verbosity":10}}"#),
            ("maxPods: 7", r#"{"maxPods":7}"#),
        ] {
            let value = yaml::parse(written.as_bytes()).unwrap().to_json();
            let mut object = value.as_object().unwrap().clone();
            let mut reports = 0;
            hold_in_bounds(&mut object, &mut |_| reports += 1);
            assert_eq!(serde_json::to_string(&object).unwrap(), held);
            assert_eq!(reports, usize::from(held != r#"{"maxPods":7}"#));
            hold_in_bounds(&mut object, &mut |beyond| panic!("{beyond:?}"));
        }
    }

    #[test]
    fn every_honoured_number_has_bounds_with_a_reason() {
        for (path, field) in leaves() {
            let is_number = matches!(
                field.kind,
                Kind::Int { .. }
                    | Kind::DurationIn { .. }
                    | Kind::Duration
                    | Kind::Number
                    | Kind::QuantityText
            );
            let is_fault = path.starts_with("kedge.faultInjection");
            if field.effect == Effect::Honoured && is_number && !is_fault {
                assert!(!field.why.is_empty() && !matches!(field.kind, Kind::Duration), "{path}");
            }
        }
    }

    #[test]
    fn field_names_are_unique_and_only_honoured_have_defaults() {
        let leaves = leaves();
        let mut names: Vec<&String> = leaves.iter().map(|(path, _)| path).collect();
        kedge_api::sort::sort(&mut names);
        names.dedup();
        assert_eq!(names.len(), leaves.len());
        for (path, field) in leaves {
            assert!(field.default == Default::None || field.effect == Effect::Honoured, "{path}");
            if let (Kind::DurationIn { .. }, Default::Text(text)) = (field.kind, field.default) {
                assert_eq!(duration::format(duration::parse(text).unwrap()), text, "{path}");
            }
        }
    }
}
