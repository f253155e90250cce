//! The honoured fields in the form for the rest of the agent: typed, complete, in range.
//!
//! Always holds: a [`Config`] exists only if every honoured field was valid, and has no `Option` where a
//! default exists. Reading reports every problem it meets and continues with the default, so one run shows
//! them all. Left to others: types (checked per layer before), defaults (already in the object), and all
//! other fields.

use crate::images::thresholds::Thresholds;
use crate::pods::ApiServer;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use kedge_api::{MOST_WINDOWS, MaintenanceWindows, WINDOW_EXPECTED, excerpt, names};
use serde_json::{Map, Value};

use crate::images::settings::Registries;
use crate::sorted::SortedMap;

use super::eviction::{Eviction, Signal};
use super::quantity::{Quantity, Threshold};
use super::schema::Beyond;
use super::server::ServerSettings;
use super::{duration, path, schema};

/// The bound of `healthzBindAddress`, in messages.
const LOOPBACK_EXPECTED: &str = "a loopback address such as \"127.0.0.1\"";

/// The bound of `podLogsDir`, in messages: upstream's, and a path that a pod's log cannot leave.
const LOGS_EXPECTED: &str = "a normalized absolute path of ASCII characters such as \"/var/log/pods\"";

/// Most taints a node registers with. Each pod is matched against each; more is a mistake, and the Node grows
/// by it.
pub const MAX_TAINTS: usize = 100;

/// Longest `providerID`; those of clouds have about 100 bytes.
const PROVIDER_ID_BYTES: usize = 512;

/// `registryBurst` of 0.
const REGISTRY_BURST: u32 = 10;
/// `maxParallelImagePulls` if `serializeImagePulls` is false and it is not set; upstream has no limit then.
const PARALLEL_PULLS: u32 = 4;
/// Least `containerLogMaxSize`: a line may have 16 KiB.
const LEAST_LOG_BYTES: i64 = 64 << 10;
/// Most of `kedge.devices`: each is a resource in the Node's status.
const MAX_DEVICES: usize = 64;
/// Most API servers that a configuration may name: each that is down costs a failing request its time.
const MOST_SERVERS: usize = 4;
/// Most paths of one: a modem has five.
const MAX_DEVICE_PATHS: usize = 16;
/// Each check reads all files.
const MOST_FREQUENT_FILE_CHECK: Duration = Duration::from_secs(1);

/// How long an assigned configuration is on trial, and how many crashes it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// `configTrialDuration`: running time until it becomes last-known-good; zero means at first contact.
    pub duration: Duration,
    /// `crashLoopThreshold`: counted startups it survives, 0 to 10. One more rolls it back.
    pub crash_loop_threshold: u8,
}

/// `evictionHard`: the thresholds of the pressure conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictionHard {
    /// `memory.available`, bytes.
    pub memory_available: Threshold,
    /// `nodefs.available`, bytes.
    pub nodefs_available: Threshold,
    /// `nodefs.inodesFree`, inodes.
    pub nodefs_inodes_free: Threshold,
    /// `imagefs.available`, bytes: of the same file system.
    pub imagefs_available: Threshold,
    /// `imagefs.inodesFree`, inodes.
    pub imagefs_inodes_free: Threshold,
    /// `pid.available`, process numbers. Off unless set, as upstream.
    pub pid_available: Threshold,
}

/// Resources kept from pods: `systemReserved` or `kubeReserved`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// `cpu`, thousandths of a CPU.
    pub cpu_milli: u64,
    /// `memory`, bytes.
    pub memory_bytes: u64,
    /// `ephemeral-storage`, bytes.
    pub ephemeral_storage_bytes: u64,
    /// `pid`, process numbers.
    pub pid: u64,
}

/// The settings for pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSettings {
    /// `staticPodPath`, absolute; `None` if there are no static pods.
    pub static_path: Option<String>,
    /// `fileCheckFrequency`: how often the files there are read, a second at least.
    pub file_check_frequency: Duration,
    /// The groups in which pods end when the machine stops, the lowest priority first; if empty, it waits for
    /// no pod.
    pub shutdown: Vec<ShutdownGroup>,
    /// `podPidsLimit`; `None` if not set.
    pub pids_limit: Option<i64>,
    /// `allowedUnsafeSysctls`: names, or their beginning before a `*`.
    pub unsafe_sysctls: Vec<String>,
    /// `kedge.devices`: the devices that containers may request, by name: paths below `/dev`.
    pub devices: SortedMap<String, Vec<String>>,
    /// `seccompDefault`.
    pub filters_calls: bool,
    /// `configMapAndSecretChangeDetectionStrategy: Get`.
    pub rereads_each_minute: bool,
    /// `containerLogMaxSize`, bytes.
    pub log_max_bytes: u64,
    /// `containerLogMaxFiles`.
    pub log_max_files: u32,
}

/// Pods that end together when the machine stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownGroup {
    /// Of this priority and above, up to the next group.
    pub priority: i64,
    /// How long they have.
    pub grace: Duration,
}

impl ShutdownGroup {
    /// One of `shutdownGracePeriodByPodPriority`.
    fn read(entry: &Value) -> Self {
        let number = |field: &str| entry.get(field).and_then(Value::as_i64).unwrap_or_default();
        let secs = u64::try_from(number("shutdownGracePeriodSeconds")).unwrap_or_default();
        Self { priority: number("priority"), grace: Duration::from_secs(secs).min(LONGEST_SHUTDOWN) }
    }
}

/// Longest grace of one group: an operator who stops a machine waits for it.
const LONGEST_SHUTDOWN: Duration = Duration::from_secs(3600);
/// Pods of this priority and above are critical: upstream's `SystemCriticalPriority`.
const CRITICAL_PRIORITY: i64 = 2_000_000_000;

/// The settings for images, except for their sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageSettings {
    /// `imageGCHighThresholdPercent` and its like.
    pub collection: Thresholds,
    /// `maxParallelImagePulls`; 1 under `serializeImagePulls`.
    pub pulls_at_once: u32,
    /// `registryPullQPS`: pulls that start in a second; 0 means no limit.
    pub pulls_per_sec: u32,
    /// `registryBurst`.
    pub pulls_burst: u32,
}

/// One of `registerWithTaints`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    /// The key; never empty.
    pub key: String,
    /// The value; empty if none.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// Faults that an agent built for tests commits on request. Without any it behaves normally.
#[cfg(feature = "fault-injection")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultInjection {
    /// `crashAfter`: crash once the config has run this long; zero is at once.
    pub crash_after: Option<Duration>,
    /// `hangLoop`: the loop that stops making progress, or "start", which is before the agent is ready.
    pub hang_loop: Option<String>,
    /// `hangAfter`: when it stops.
    pub hang_after: Duration,
    /// `clockOffset`: milliseconds added to the wall clock; may be negative.
    pub clock_offset_ms: i64,
}

/// The honoured part of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `configTrialDuration` and `crashLoopThreshold`.
    pub trial: Trial,
    /// `nodeStatusUpdateFrequency`: how often the node's status is computed.
    pub node_status_update_frequency: Duration,
    /// `nodeStatusReportFrequency`: how often it is sent when nothing changed.
    pub node_status_report_frequency: Duration,
    /// `nodeLeaseDurationSeconds`, 4 to 160.
    pub node_lease_duration_secs: u32,
    /// `rotateCertificates`: whether the node renews its certificate.
    pub rotates_certificates: bool,
    /// `registerNode`: whether a missing Node is created.
    pub register_node: bool,
    /// `registerWithTaints`: the taints of a Node that is created.
    pub register_with_taints: Vec<Taint>,
    /// `providerID`: goes into a Node that is created; empty if none.
    pub provider_id: String,
    /// `healthzBindAddress` and `healthzPort`; `None` when the port is 0, which switches it off.
    pub healthz: Option<SocketAddr>,
    /// `port` and the fields that belong to it; `None` if the port is off.
    pub server: Option<ServerSettings>,
    /// `logging.verbosity`, 0 to 10.
    pub logging_verbosity: u8,
    /// `maxPods`: the `pods` capacity.
    pub max_pods: u32,
    /// `systemReserved`.
    pub system_reserved: Reserved,
    /// `kubeReserved`.
    pub kube_reserved: Reserved,
    /// `evictionHard`.
    pub eviction_hard: EvictionHard,
    /// All thresholds of node pressure, including `eviction_hard`, and how they end pods.
    pub eviction: Eviction,
    /// `evictionPressureTransitionPeriod`: how long pressure must be gone before the condition clears.
    pub eviction_pressure_transition_period: Duration,
    /// `podLogsDir`: absolute.
    pub pod_logs_dir: String,
    /// `streamingConnectionIdleTimeout`: how long a session of exec or attach may be silent.
    pub streaming_connection_idle_timeout: Duration,
    /// `clusterDomain`.
    pub cluster_domain: String,
    /// `clusterDNS`, as it is written: [`Config::name_servers`].
    pub cluster_dns: Vec<String>,
    /// Those about pods.
    pub pods: PodSettings,
    /// When images are pulled, and when they are removed.
    pub images: ImageSettings,
    /// `kedge.images`: the sources of images.
    pub registries: Registries,
    /// `kedge.watch`: whether the node watches its objects, or only reads them when a renewal announces a
    /// change.
    pub watch: bool,
    /// `kedge.maintenanceWindows`: when updates of pods may start; if empty, at any time.
    pub maintenance_windows: Vec<String>,
    /// `kedge.servers`: API servers in the order in which they are tried, before the kubeconfig's own.
    pub servers: Vec<ApiServer>,
    /// `kedge.faultInjection`.
    #[cfg(feature = "fault-injection")]
    pub fault_injection: FaultInjection,
}

impl Config {
    /// Reads a complete, type-checked object; problems go to `report` as path and sentence.
    pub(super) fn read(object: &Map<String, Value>, report: &mut dyn FnMut(&str, String)) -> Self {
        let mut reader = Reader { object: Some(object), prefix: "", report };
        Self {
            trial: Trial {
                duration: reader.duration("configTrialDuration"),
                crash_loop_threshold: reader.integer("crashLoopThreshold"),
            },
            node_status_update_frequency: reader.duration("nodeStatusUpdateFrequency"),
            node_status_report_frequency: reader.duration("nodeStatusReportFrequency"),
            node_lease_duration_secs: reader.integer("nodeLeaseDurationSeconds"),
            // upstream's default is false, for clusters that approve no request
            rotates_certificates: object.get("rotateCertificates") != Some(&Value::Bool(false)),
            register_node: reader.bool("registerNode"),
            register_with_taints: reader.taints(),
            provider_id: reader.text("providerID"),
            healthz: reader.healthz(),
            server: ServerSettings::read(object),
            logging_verbosity: reader.below("logging").integer("verbosity"),
            max_pods: reader.integer("maxPods"),
            system_reserved: reader.below("systemReserved").reserved(),
            kube_reserved: reader.below("kubeReserved").reserved(),
            eviction_hard: reader.below("evictionHard").eviction_hard(),
            eviction: reader.eviction(object),
            eviction_pressure_transition_period: reader.duration("evictionPressureTransitionPeriod"),
            pod_logs_dir: reader.pod_logs_dir(),
            streaming_connection_idle_timeout: reader.duration("streamingConnectionIdleTimeout"),
            cluster_domain: reader.text("clusterDomain"),
            cluster_dns: reader.texts("clusterDNS"),
            pods: reader.pods(),
            images: reader.images(),
            registries: reader.registries(),
            watch: reader.below("kedge").text("watch") != schema::OFF,
            maintenance_windows: reader.maintenance_windows(),
            servers: reader.servers(),
            #[cfg(feature = "fault-injection")]
            fault_injection: reader.fault_injection(),
        }
    }
}

impl Config {
    /// `clusterDNS`: the addresses, and the entries that are not addresses. A kubelet ignores those too, so
    /// they refuse no configuration.
    #[must_use]
    pub fn name_servers(&self) -> (Vec<String>, Vec<&str>) {
        let (right, wrong): (Vec<&String>, Vec<&String>) =
            self.cluster_dns.iter().partition(|text| text.parse::<IpAddr>().is_ok());
        (right.into_iter().cloned().collect(), wrong.into_iter().map(String::as_str).collect())
    }
}

/// A text field with bounds.
struct TextBound {
    field: &'static str,
    expected: &'static str,
    /// The value that is used in place of others.
    nearest: &'static str,
    is_within: fn(&str) -> bool,
}

const TEXT_BOUNDS: [TextBound; 5] = [
    TextBound {
        field: "healthzBindAddress",
        expected: LOOPBACK_EXPECTED,
        nearest: schema::LOOPBACK,
        // an invalid address was never accepted: see `healthz`
        is_within: |text| text.parse::<IpAddr>().map_or(true, |address| address.is_loopback()),
    },
    TextBound {
        field: "podLogsDir",
        expected: LOGS_EXPECTED,
        nearest: schema::POD_LOGS,
        is_within: is_normalized,
    },
    TextBound {
        field: "staticPodPath",
        expected: "an absolute path",
        nearest: "",
        is_within: |text| text.is_empty() || text.starts_with('/'),
    },
    TextBound {
        field: "providerID",
        expected: "at most 512 bytes",
        nearest: "",
        is_within: |text| text.len() <= PROVIDER_ID_BYTES,
    },
    TextBound {
        field: "containerLogMaxSize",
        expected: "at least 64Ki",
        nearest: "64Ki",
        is_within: |text| Quantity::parse(text).is_none_or(|size| size.units() >= LEAST_LOG_BYTES),
    },
];

/// Replaces texts that an earlier release accepted, and that are beyond today's bounds, by the nearest
/// within, and reports them: that release accepted any address, and then opened no endpoint, and did not read
/// the other fields.
pub(super) fn hold_texts(object: &mut Map<String, Value>, report: &mut dyn FnMut(Beyond)) {
    for TextBound { field, expected, nearest, is_within } in TEXT_BOUNDS {
        let Some(Value::String(text)) = object.get_mut(field) else { continue };
        if is_within(text) {
            continue;
        }
        report(Beyond {
            field: field.to_owned(),
            message: format!("{field} is {:?}, expected {expected}", excerpt(text)),
            nearest: format!("{nearest:?}"),
            was_taken: true,
        });
        nearest.clone_into(text);
    }
}

/// Whether it is an absolute path, of ASCII, in its shortest form.
fn is_normalized(path: &str) -> bool {
    let mut names = path.strip_prefix('/').unwrap_or_default().split('/');
    path.is_ascii()
        && path.len() < 4096
        && !path.contains('\0')
        && names.all(|name| !matches!(name, "" | "." | ".."))
}

/// Reads the fields of one object, whose values have been moved into their bounds.
struct Reader<'a> {
    object: Option<&'a Map<String, Value>>,
    prefix: &'static str,
    report: &'a mut dyn FnMut(&str, String),
}

impl<'a> Reader<'a> {
    fn below(&mut self, field: &'static str) -> Reader<'_> {
        let object = self.value(field).and_then(Value::as_object);
        Reader { object, prefix: field, report: self.report }
    }

    fn value(&self, field: &str) -> Option<&'a Value> {
        self.object.and_then(|object| object.get(field))
    }

    fn path(&self, field: &str) -> String {
        let mut path = self.prefix.to_owned();
        path::enter(&mut path, field);
        path
    }

    /// Reports the field's value and the value expected.
    fn wrong(&mut self, field: &str, expected: &str) {
        let path = self.path(field);
        let found = match self.value(field) {
            Some(Value::String(text)) => format!("{:?}", excerpt(text)),
            Some(value) => excerpt(&value.to_string()),
            None => "missing".to_owned(),
        };
        let message = format!("{path} is {found}, expected {expected}");
        (self.report)(&path, message);
    }

    fn text(&self, field: &str) -> String {
        self.value(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    fn texts(&self, field: &str) -> Vec<String> {
        let list = self.value(field).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    }

    fn bool(&self, field: &str) -> bool {
        self.value(field).and_then(Value::as_bool).unwrap_or_default()
    }

    fn integer<N: TryFrom<i64> + Default>(&self, field: &str) -> N {
        let number = self.value(field).and_then(Value::as_i64);
        number.and_then(|number| N::try_from(number).ok()).unwrap_or_default()
    }

    fn nanos(&self, field: &str) -> Option<i64> {
        self.value(field).and_then(Value::as_str).and_then(duration::parse)
    }

    fn duration(&self, field: &str) -> Duration {
        let nanos = self.nanos(field).and_then(|nanos| u64::try_from(nanos).ok());
        nanos.map_or(Duration::ZERO, Duration::from_nanos)
    }

    fn maintenance_windows(&mut self) -> Vec<String> {
        let windows: Vec<String> = self.below("kedge").texts("maintenanceWindows");
        let is_window = |text: &String| !text.contains(',') && MaintenanceWindows::parse(text).is_some();
        let wrong = match windows.iter().find(|text| !is_window(text)) {
            Some(wrong) => Some(format!("{WINDOW_EXPECTED}, and has {:?}", excerpt(wrong))),
            None if windows.len() > MOST_WINDOWS => {
                Some(format!("at most {MOST_WINDOWS} windows, and has {}", windows.len()))
            }
            None => None,
        };
        let path = "kedge.maintenanceWindows";
        if let Some(expected) = wrong {
            (self.report)(path, format!("{path}: expected {expected}"));
        }
        windows
    }

    fn servers(&mut self) -> Vec<ApiServer> {
        let texts: Vec<String> = self.below("kedge").texts("servers");
        let mut servers: Vec<ApiServer> = Vec::new();
        let mut wrong = (texts.len() > MOST_SERVERS)
            .then(|| format!("at most {MOST_SERVERS} servers, and has {}", texts.len()));
        for text in &texts {
            match ApiServer::of_url(text) {
                Some(server) if servers.contains(&server) => {
                    wrong.get_or_insert(format!("each server once, and has {:?} again", excerpt(text)));
                }
                Some(server) => servers.push(server),
                None => {
                    wrong.get_or_insert(format!("https://HOST[:PORT], and has {:?}", excerpt(text)));
                }
            }
        }
        let path = "kedge.servers";
        if let Some(expected) = wrong {
            (self.report)(path, format!("{path}: expected {expected}"));
        }
        servers
    }

    fn devices(&mut self) -> SortedMap<String, Vec<String>> {
        let named = self.value("kedge").and_then(|kedge| kedge.get("devices")).and_then(Value::as_object);
        let mut found = SortedMap::new();
        // null removes a lower layer's value
        let named = named.into_iter().flatten().filter(|(_, list)| !list.is_null());
        for (name, list) in named {
            let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
            let paths: Vec<String> = list.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            let is_device = |path: &String| path.starts_with("/dev/") && is_normalized(path);
            let path = format!("kedge.devices.{}", excerpt(name));
            let wrong = match paths.iter().find(|path| !is_device(path)) {
                _ if names::label_complaint(name).is_some() => {
                    Some("a name as those of containers".to_owned())
                }
                _ if !(1..=MAX_DEVICE_PATHS).contains(&paths.len()) => {
                    Some(format!("1 to {MAX_DEVICE_PATHS} paths, and has {}", paths.len()))
                }
                Some(wrong) => Some(format!("paths below /dev, and has {:?}", excerpt(wrong))),
                None if found.len() == MAX_DEVICES => Some(format!("at most {MAX_DEVICES} names")),
                None => None,
            };
            match wrong {
                Some(expected) => (self.report)(&path, format!("{path}: expected {expected}")),
                None => _ = found.insert(name.clone(), paths),
            }
        }
        found
    }

    fn pods(&mut self) -> PodSettings {
        let frequency = self.duration("fileCheckFrequency");
        PodSettings {
            static_path: Some(self.text("staticPodPath")).filter(|path| !path.is_empty()),
            file_check_frequency: frequency.max(MOST_FREQUENT_FILE_CHECK),
            shutdown: self.shutdown(),
            pids_limit: Some(self.integer("podPidsLimit")).filter(|limit| *limit > 0),
            devices: self.devices(),
            unsafe_sysctls: self.texts("allowedUnsafeSysctls"),
            filters_calls: self.bool("seccompDefault"),
            rereads_each_minute: self.text("configMapAndSecretChangeDetectionStrategy") == "Get",
            log_max_bytes: self.log_bytes(),
            log_max_files: self.integer("containerLogMaxFiles"),
        }
    }

    fn shutdown(&self) -> Vec<ShutdownGroup> {
        let list = self.value("shutdownGracePeriodByPodPriority").and_then(Value::as_array);
        let mut groups: Vec<ShutdownGroup> = list.into_iter().flatten().map(ShutdownGroup::read).collect();
        if groups.is_empty() {
            let all = self.duration("shutdownGracePeriod");
            let critical = self.duration("shutdownGracePeriodCriticalPods").min(all);
            groups = vec![
                ShutdownGroup { priority: 0, grace: all.saturating_sub(critical) },
                ShutdownGroup { priority: CRITICAL_PRIORITY, grace: critical },
            ];
        }
        kedge_api::sort::sort_by_key(&mut groups, |group| group.priority);
        if groups.iter().all(|group| group.grace.is_zero()) { Vec::new() } else { groups }
    }

    fn log_bytes(&self) -> u64 {
        let size = self.value("containerLogMaxSize").and_then(Value::as_str).and_then(Quantity::parse);
        u64::try_from(size.unwrap_or_default().units()).unwrap_or_default()
    }

    fn images(&self) -> ImageSettings {
        let most = self.value("maxParallelImagePulls").map(|_| self.integer("maxParallelImagePulls"));
        // upstream's rule
        let is_serialized =
            self.value("serializeImagePulls").map_or(most.is_none(), |_| self.bool("serializeImagePulls"));
        let burst = Some(self.integer("registryBurst")).filter(|burst| *burst > 0);
        ImageSettings {
            collection: Thresholds {
                minimum_age: self.duration("imageMinimumGCAge"),
                maximum_age: Some(self.duration("imageMaximumGCAge")).filter(|age| !age.is_zero()),
                high_percent: self.integer("imageGCHighThresholdPercent"),
                low_percent: self.integer("imageGCLowThresholdPercent"),
            },
            pulls_at_once: if is_serialized { 1 } else { most.unwrap_or(PARALLEL_PULLS) },
            pulls_per_sec: self.integer("registryPullQPS"),
            pulls_burst: burst.unwrap_or(REGISTRY_BURST),
        }
    }

    fn healthz(&mut self) -> Option<SocketAddr> {
        let address = match self.text("healthzBindAddress").parse::<IpAddr>() {
            Ok(address) if address.is_loopback() => address,
            _ => {
                self.wrong("healthzBindAddress", LOOPBACK_EXPECTED);
                IpAddr::V4(Ipv4Addr::LOCALHOST)
            }
        };
        match self.integer::<u16>("healthzPort") {
            0 => None,
            port => Some(SocketAddr::new(address, port)),
        }
    }

    fn pod_logs_dir(&mut self) -> String {
        let path = self.text("podLogsDir");
        if !is_normalized(&path) {
            self.wrong("podLogsDir", LOGS_EXPECTED);
        }
        path
    }

    fn registries(&mut self) -> Registries {
        let images = self.value("kedge").and_then(|kedge| kedge.get("images"));
        Registries::read(images.and_then(Value::as_object), self.report)
    }

    fn amount(&mut self, field: &str) -> Quantity {
        let quantity =
            self.value(field).and_then(Value::as_str).and_then(Quantity::parse).unwrap_or_default();
        if quantity.is_negative() {
            self.wrong(field, "an amount that is not negative");
        }
        quantity
    }

    fn reserved(mut self) -> Reserved {
        let units = |number: i64| u64::try_from(number).unwrap_or_default();
        Reserved {
            cpu_milli: units(self.amount("cpu").milli_units()),
            memory_bytes: units(self.amount("memory").units()),
            ephemeral_storage_bytes: units(self.amount("ephemeral-storage").units()),
            pid: units(self.amount("pid").units()),
        }
    }

    fn threshold(&self, field: &str) -> Threshold {
        self.value(field).and_then(Value::as_str).and_then(Threshold::parse).unwrap_or(Threshold::Off)
    }

    fn eviction_hard(self) -> EvictionHard {
        EvictionHard {
            memory_available: self.threshold("memory.available"),
            nodefs_available: self.threshold("nodefs.available"),
            nodefs_inodes_free: self.threshold("nodefs.inodesFree"),
            imagefs_available: self.threshold("imagefs.available"),
            imagefs_inodes_free: self.threshold("imagefs.inodesFree"),
            pid_available: self.threshold("pid.available"),
        }
    }

    fn eviction(&mut self, object: &Map<String, Value>) -> Eviction {
        let hard = self.below("evictionHard").eviction_hard();
        let hard = [
            (Signal::Memory, hard.memory_available),
            (Signal::NodefsBytes, hard.nodefs_available),
            (Signal::NodefsInodes, hard.nodefs_inodes_free),
            (Signal::ImagefsBytes, hard.imagefs_available),
            (Signal::ImagefsInodes, hard.imagefs_inodes_free),
            (Signal::Pids, hard.pid_available),
        ];
        let longest = Duration::from_secs(self.integer("evictionMaxPodGracePeriod"));
        Eviction::read(&hard, object, longest)
    }

    fn taints(&mut self) -> Vec<Taint> {
        let list = self.value("registerWithTaints").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if list.len() > MAX_TAINTS {
            let message =
                format!("registerWithTaints has {} taints, expected at most {MAX_TAINTS}", list.len());
            (self.report)("registerWithTaints", message);
            return Vec::new();
        }
        let mut taints: Vec<Taint> = Vec::new();
        for (index, item) in list.iter().enumerate() {
            let text = |field: &str| item.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
            let taint = Taint { key: text("key"), value: text("value"), effect: text("effect") };
            if let Some(wrong) = what_is_wrong_with(&taint, &taints) {
                let path = format!("registerWithTaints[{index}]");
                let message = format!("{path}{wrong}");
                (self.report)(&path, message);
            }
            taints.push(taint);
        }
        taints
    }

    #[cfg(feature = "fault-injection")]
    fn fault_injection(&mut self) -> FaultInjection {
        let mut kedge = self.below("kedge");
        let faults = kedge.below("faultInjection");
        let present = |faults: &Reader<'_>, field: &str| faults.value(field).is_some();
        FaultInjection {
            crash_after: present(&faults, "crashAfter").then(|| faults.duration("crashAfter")),
            hang_loop: present(&faults, "hangLoop").then(|| faults.text("hangLoop")),
            hang_after: faults.duration("hangAfter"),
            clock_offset_ms: faults.nanos("clockOffset").unwrap_or_default() / 1_000_000,
        }
    }
}

/// An API server's rules for taints, as far as it would refuse a Node that breaks them.
fn what_is_wrong_with(taint: &Taint, others: &[Taint]) -> Option<String> {
    let effect = taint.effect.as_str();
    if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        let effect = excerpt(effect);
        return Some(format!(".effect is {effect:?}, expected NoSchedule, PreferNoSchedule or NoExecute"));
    }
    if names::qualified_name_complaint(&taint.key).is_some() {
        return Some(format!(
            ".key is {:?}, expected a label key such as \"example.com/dedicated\"",
            excerpt(&taint.key)
        ));
    }
    if names::label_value_complaint(&taint.value).is_some() {
        return Some(format!(".value is {:?}, expected a label value", excerpt(&taint.value)));
    }
    if others.iter().any(|other| other.key == taint.key && other.effect == taint.effect) {
        return Some(format!(" repeats key {} with effect {effect}, expected each pair once", taint.key));
    }
    None
}
