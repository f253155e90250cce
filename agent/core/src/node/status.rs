//! The Node's status: composed from facts about the host, compared with the API server's, and sent as the
//! smallest patch that closes the difference (a change is defined by upstream's rules).
//!
//! Always holds: a condition's `lastTransitionTime` moves only when the condition changes;
//! `lastHeartbeatTime` alone does not count as a change; parts that others own (conditions of other agents,
//! labels) are not touched.

use crate::answer::Now;
use crate::config::condition::ConfigOk;
use crate::config::records::Complaints;
use crate::config::running::Hold;
use crate::config::start::Floor;
use crate::kubelet::Config;
use crate::kubelet::quantity::bytes;
use crate::node::facts::{self, HardwareWatchdog, HostFacts, ImageState, PodNetworks, Runtime};
use crate::node::pressure::Pressures;
use crate::pace::Jitter;
use crate::pods::DEVICE;
use crate::report::ConditionReport;
use kedge_api::{
    DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeConfigStatus, NodeDaemonEndpoints, NodeStatus,
    NodeSystemInfo, Timestamp,
};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// The condition by which Kubernetes keeps away pods that need a network of their own.
const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";
/// Our reasons of it; with another reason the condition is somebody else's.
const OUR_REASONS: [&str; 3] = [NO_POD_NETWORK, NO_PODS, POD_NETWORK_READY];
const NO_POD_NETWORK: &str = "NoPodNetwork";
const NO_PODS: &str = "NoPods";
const POD_NETWORK_READY: &str = "PodNetworkReady";

/// How long a watchdog may be missing before that is reported: a driver may load late, and then systemd
/// starts it at its next ping.
const WATCHDOG_PATIENCE: Duration = Duration::from_secs(120);

/// The feature by which an API server passes on the WebSocket of a client, instead of SPDY.
const WEBSOCKETS: &str = "ExtendWebSocketsToKubelet";

/// The value of `kubeletVersion`: a version that skew checks of Kubernetes tools can read, and the agent's
/// own version.
pub fn kubelet_version(agent_version: &str) -> String {
    let (major, minor) = kedge_api::KUBERNETES_VERSION;
    // version checks of Kubernetes tools refuse a second `+`
    format!("v{major}.{minor}.0+kedge-{}", agent_version.replace('+', "-"))
}

/// The host's part of the status: composed when facts arrive, compared at every event.
#[derive(Debug, Clone)]
struct Host {
    facts: HostFacts,
    addresses: Vec<NodeAddress>,
    info: NodeSystemInfo,
    capacity: Resources,
    allocatable: Resources,
    /// The port of the kubelet's API; 0 if it is off.
    port: i32,
}

/// Composes and compares.
#[derive(Debug, Clone, Default)]
pub(crate) struct StatusKeeper {
    pub(crate) pressures: Pressures,
    host: Option<Host>,
    /// Resources whose reservations leave nothing for pods.
    used_up: Vec<String>,
    disk_stalled: bool,
    /// The condition's message while pods are held.
    pods_held: Option<String>,
    /// The condition's status, reason and message while this node is being decommissioned.
    decommissioning: Option<(&'static str, &'static str, String)>,
    system: Option<(&'static str, &'static str, String)>,
    /// Since when no hardware watchdog is active.
    unwatched_since: Option<Duration>,
    /// Whether that is longer than a start takes.
    is_unwatched: bool,
    is_stopping: bool,
    /// Whether features were declared; then, whether the server had dropped them when the Node was read.
    declared: Declared,
    /// The status that the API server is believed to have.
    believed: Option<NodeStatus>,
    /// How often the Node was read.
    reads: u64,
    /// When this process decided on its configuration: the heartbeat time of `ConfigOK`.
    started: Timestamp,
    next_report: Option<Duration>,
}

/// Whether the server keeps the declared features: a server that does not know the field drops it, and must
/// not receive it again and again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Declared {
    #[default]
    No,
    Sent,
    Dropped,
}

/// A patch to send, and the status that the server has once it is accepted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StatusPatch {
    pub(crate) body: Value,
    pub(crate) result: NodeStatus,
    /// How often the Node had been read.
    pub(crate) reads: u64,
    /// Whether something changed; otherwise it is the regular report.
    pub(crate) changed: bool,
    /// It would be sent although no report is due.
    pub(crate) differs: bool,
}

impl StatusKeeper {
    pub(crate) fn new(started: Timestamp) -> Self {
        // `Time` of the API has whole seconds: with fractions, the status read back would never equal the one
        // sent
        let started = Timestamp::from_micros((started.micros() / 1_000_000).saturating_mul(1_000_000));
        Self { started, ..Self::default() }
    }

    pub(crate) fn facts(&self) -> Option<&HostFacts> {
        self.host.as_ref().map(|host| &host.facts)
    }

    /// Takes facts about the host; `version` is the agent's. Returns warnings: reservations that leave
    /// nothing of a resource, once for as long as they do.
    pub(crate) fn observe(
        &mut self,
        now: Now,
        facts: HostFacts,
        config: &Config,
        floor: Option<&Floor>,
        version: &str,
    ) -> Vec<String> {
        self.pressures.observe(now, &facts, config, floor.map(|floor| &floor.eviction));
        let is_missing = matches!(facts.watchdog, HardwareWatchdog::Absent | HardwareWatchdog::Idle(_));
        self.unwatched_since = is_missing.then(|| self.unwatched_since.unwrap_or(now.mono));
        self.is_unwatched =
            self.unwatched_since.is_some_and(|since| now.mono >= since.saturating_add(WATCHDOG_PATIENCE));
        let (capacity, allocatable) = resources(&facts, config);
        let (addresses, info) = (addresses(&facts), node_info(&facts, version));
        let used_up = used_up(&facts, config);
        let port = config.server.as_ref().map_or(0, |server| i32::from(server.address.port()));
        self.host = Some(Host { facts, addresses, info, capacity, allocatable, port });
        let before = std::mem::replace(&mut self.used_up, used_up);
        self.used_up.iter().filter(|line| !before.contains(line)).cloned().collect()
    }

    /// The node's faults that may come from its configuration, from this agent's last look. A machine that is
    /// shutting down is not ready either, which is not a configuration's fault.
    pub(crate) fn complaints(&self) -> Complaints {
        let [memory, disk, pids] = self.pressures.pressed;
        let runtime = self.host.as_ref().map(|host| &host.facts.runtime);
        let is_unready = matches!(runtime, Some(Runtime::NotReady(_) | Runtime::Starting));
        Complaints::of([memory, disk, pids, is_unready])
    }

    /// The disk of the state has stopped answering, or answers again.
    pub(crate) fn disk_stalled(&mut self, stalled: bool) {
        self.disk_stalled = stalled;
    }

    /// Pods are held, or not any more.
    pub(crate) fn pods_held(&mut self, held: Option<&Hold>) {
        self.pods_held = held.map(Hold::message);
    }

    /// Status, reason and message of `SystemOK`.
    pub(crate) fn system(&mut self, condition: Option<(&'static str, &'static str, String)>) {
        self.system = condition;
    }

    pub(crate) fn decommissioning(&mut self, condition: Option<(&'static str, &'static str, String)>) {
        self.decommissioning = condition;
    }

    /// The server has the condition by which this node is decommissioned.
    pub(crate) fn says_decommissioned(&self) -> bool {
        let conditions = self.believed.iter().flat_map(|believed| &believed.conditions);
        let mut found = conditions.filter(|there| there.condition_type == kedge_api::DECOMMISSIONED);
        found.any(|there| there.status == "True")
    }

    /// The machine is shutting down, or not after all.
    pub(crate) fn machine_stops(&mut self, stops: bool) {
        self.is_stopping = stops;
    }

    /// This machine's part of `nodeInfo`.
    pub(crate) fn system_info(&self) -> Option<&NodeSystemInfo> {
        self.host.as_ref().map(|host| &host.info)
    }

    /// The status that the API server is believed to have.
    pub(crate) fn believed(&self) -> Option<&NodeStatus> {
        self.believed.as_ref()
    }

    /// How often the Node was read.
    pub(crate) fn reads(&self) -> u64 {
        self.reads
    }

    /// The Node was read.
    pub(crate) fn node_seen(&mut self, node: &Node) {
        if self.declared == Declared::Sent && !declares(&node.status) {
            self.declared = Declared::Dropped;
        }
        self.believed = Some(node.status.clone());
        self.reads = self.reads.saturating_add(1);
    }

    /// The Node is gone.
    pub(crate) fn node_gone(&mut self) {
        (self.believed, self.next_report) = (None, None);
    }

    /// A patch was accepted. The next report is due after `frequency`; after a change, somewhere in the
    /// second half of it, so that nodes which changed together (a power cut, a pushed config) drift apart.
    pub(crate) fn accepted(
        &mut self,
        now: Now,
        patch: StatusPatch,
        frequency: Duration,
        jitter: &mut Jitter,
    ) {
        if self.declared == Declared::No && declares(&patch.result) {
            self.declared = Declared::Sent;
        }
        // a read meanwhile wins, whether it is from before the patch or after: it may show a change by
        // somebody else, such as that the node is lost. Parts of the patch that it lacks are sent again.
        if patch.reads == self.reads {
            self.believed = Some(patch.result);
        }
        let half = frequency.checked_div(2).unwrap_or_default();
        let wait = if patch.changed { half.saturating_add(jitter.within(half)) } else { frequency };
        self.next_report = Some(now.mono.saturating_add(wait));
    }

    /// Whether one is due now, whatever the server has.
    pub(crate) fn is_report_due(&self, now: Now) -> bool {
        self.next_report.is_none_or(|due| now.mono >= due)
    }

    /// The present status without its times, whatever the server has.
    pub(crate) fn said(&self, config_ok: &ConfigOk, config: Option<&NodeConfigStatus>) -> Value {
        let Some(host) = &self.host else { return Value::Null };
        // conditions that are sent only because the server has them are no news of this node
        let none = NodeStatus::default();
        let now = Now { mono: Duration::ZERO, wall: self.started };
        let conditions = self.conditions(now, &none, config_ok, true).into_iter();
        let words = conditions.map(|(it, _)| json!([it.condition_type, it.status, it.reason, it.message]));
        json!([
            words.collect::<Value>(),
            [config_ok.status, &config_ok.reason, &config_ok.message],
            host.addresses,
            host.info,
            host.capacity,
            host.allocatable,
            host.port,
            config,
        ])
    }

    /// When a report is due although nothing changed.
    pub(crate) fn report_due(&self) -> Option<Duration> {
        self.next_report
    }

    /// The patch that must be sent now: the difference, or, when a report is due, the heartbeat of
    /// everything. Called at every event, so it does not compose parts that the server already has.
    pub(crate) fn patch(&self, now: Now, config_ok: &ConfigOk) -> Option<StatusPatch> {
        let host = self.host.as_ref()?;
        let believed = self.believed.as_ref()?;
        let report = self.next_report.is_none_or(|due| now.mono >= due);
        let mut status = Map::new();
        let conditions = self.conditions(now, believed, config_ok, report);
        let mut changed = conditions.iter().any(|(_, changed)| *changed);
        if !conditions.is_empty() {
            let lines = conditions.iter().map(|(condition, changed)| line(condition, *changed)).collect();
            status.insert("conditions".into(), Value::Array(lines));
        }
        if believed.addresses != host.addresses {
            // merging by type would keep old addresses beside new ones
            let mut lines: Vec<Value> = host.addresses.iter().map(|address| json!(address)).collect();
            lines.push(json!({"$patch": "replace"}));
            status.insert("addresses".into(), Value::Array(lines));
        }
        if believed.node_info != host.info {
            status.insert("nodeInfo".into(), json!(host.info));
        }
        let capacity = with_devices_gone(&host.capacity, &believed.capacity);
        if !contains(&believed.capacity, &capacity) {
            status.insert("capacity".into(), json!(capacity));
        }
        let allocatable = with_devices_gone(&host.allocatable, &believed.allocatable);
        if !contains(&believed.allocatable, &allocatable) {
            status.insert("allocatable".into(), json!(allocatable));
        }
        let (endpoints, features) = self.serving(host, believed, &mut status);
        if status.is_empty() {
            return None;
        }
        changed |= status.keys().any(|name| name != "conditions");
        let differs = changed || self.has_restarted(believed);
        let (addresses, node_info) = (host.addresses.clone(), host.info.clone());
        let mut result = NodeStatus {
            addresses,
            node_info,
            daemon_endpoints: endpoints,
            declared_features: features,
            ..believed.clone()
        };
        for (condition, _) in conditions {
            replace(&mut result.conditions, condition);
        }
        result.capacity.extend(capacity);
        result.allocatable.extend(allocatable);
        Some(StatusPatch { body: json!({"status": status}), result, reads: self.reads, changed, differs })
    }

    /// Puts the port of the kubelet's API, and its features, into a patch if the server has others; returns
    /// the server's values afterwards.
    fn serving(
        &self,
        host: &Host,
        believed: &NodeStatus,
        status: &mut Map<String, Value>,
    ) -> (NodeDaemonEndpoints, Vec<String>) {
        let there = believed.daemon_endpoints.kubelet_endpoint.as_ref().map_or(0, |endpoint| endpoint.port);
        let endpoints = if there == host.port {
            believed.daemon_endpoints.clone()
        } else {
            status.insert("daemonEndpoints".into(), json!({"kubeletEndpoint": {"Port": host.port}}));
            NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port: host.port }) }
        };
        let serves = host.port != 0;
        if declares(believed) == serves || (serves && self.declared == Declared::Dropped) {
            return (endpoints, believed.declared_features.clone());
        }
        let features = if serves { vec![WEBSOCKETS.to_owned()] } else { Vec::new() };
        status.insert("declaredFeatures".into(), json!(features));
        (endpoints, features)
    }

    /// The conditions to send, each with whether it changed.
    fn conditions(
        &self,
        now: Now,
        believed: &NodeStatus,
        config_ok: &ConfigOk,
        report: bool,
    ) -> Vec<(NodeCondition, bool)> {
        let there = |name: &str| believed.conditions.iter().find(|there| there.condition_type == name);
        // a node whose disk always answered spends no bytes on that condition
        let stall_matters = self.disk_stalled || there(kedge_api::DISK_STALLED).is_some();
        let stalled = stall_matters.then(|| disk_stalled(self.disk_stalled));
        let hold_matters = self.pods_held.is_some() || there(kedge_api::PODS_HELD).is_some();
        let held = hold_matters.then(|| pods_held(self.pods_held.as_deref()));
        let leaving = self.decommissioning.as_ref().map(|(status, reason, message)| Words {
            name: kedge_api::DECOMMISSIONED,
            status,
            reason,
            message,
        });
        let system = self.system.as_ref().map(|(status, reason, message)| Words {
            name: kedge_api::SYSTEM_OK,
            status,
            reason,
            message,
        });
        let network = self.network_unavailable(there(NETWORK_UNAVAILABLE));
        let watchdog = self.watchdog_missing(there(kedge_api::WATCHDOG_MISSING).is_some());
        let image = self.image_ok();
        let image = image.as_ref().map(|(status, reason, message)| Words {
            name: kedge_api::IMAGE_OK,
            status,
            reason,
            message,
        });
        let limits = self.limits_not_kept(there(kedge_api::LIMITS_NOT_KEPT).is_some());
        let limits = limits.as_ref().map(|(status, reason, message)| Words {
            name: kedge_api::LIMITS_NOT_KEPT,
            status,
            reason,
            message,
        });
        let more = stalled
            .into_iter()
            .chain(held)
            .chain(leaving)
            .chain(system)
            .chain(network)
            .chain(watchdog)
            .chain(image)
            .chain(limits);
        let own = self.own_conditions().into_iter().chain(more).filter_map(|words| {
            let there = there(words.name);
            let changed = there.is_none_or(|there| !words.matches(there));
            // as upstream: when its status changed
            let unchanged = there.filter(|there| there.status == words.status);
            (changed || report).then(|| (words.since(now.wall, unchanged, now.wall), changed))
        });
        let words = Words {
            name: kedge_api::CONFIG_OK,
            status: config_ok.status,
            reason: &config_ok.reason,
            message: &config_ok.message,
        };
        let there = there(words.name);
        let changed = there.is_none_or(|there| !words.matches(there));
        let restarted = self.has_restarted(believed);
        // "the last time this condition changed"
        let unchanged = there.filter(|_| !changed);
        let config_ok =
            (changed || restarted).then(|| (words.since(self.started, unchanged, now.wall), changed));
        own.chain(config_ok).collect()
    }

    /// Whether the server's `ConfigOK` is of an earlier process.
    fn has_restarted(&self, believed: &NodeStatus) -> bool {
        let mut conditions = believed.conditions.iter();
        let there = conditions.find(|there| there.condition_type == kedge_api::CONFIG_OK);
        there.is_none_or(|there| there.last_heartbeat_time != Some(self.started))
    }

    fn own_conditions(&self) -> [Words<'_>; 4] {
        let [memory, disk, pid] = self.pressures.pressed;
        let pressure = |name, pressed: bool, texts: [(&'static str, &'static str); 2]| {
            let (reason, message) = texts[usize::from(pressed)];
            Words { name, status: if pressed { "True" } else { "False" }, reason, message }
        };
        [
            pressure(
                "MemoryPressure",
                memory,
                [
                    ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
                    ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
                ],
            ),
            pressure(
                "DiskPressure",
                disk,
                [
                    ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
                    ("KubeletHasDiskPressure", "kubelet has disk pressure"),
                ],
            ),
            pressure(
                "PIDPressure",
                pid,
                [
                    ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
                    ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
                ],
            ),
            self.ready(),
        ]
    }

    /// Where pods get no network of their own, a scheduler must place none here except those that use the
    /// node's. Somebody else's condition about the pods' network, or about a node without pods, is left
    /// alone.
    fn network_unavailable(&self, there: Option<&NodeCondition>) -> Option<Words<'_>> {
        let facts = &self.host.as_ref()?.facts;
        let is_ours = there.is_some_and(|there| OUR_REASONS.contains(&there.reason.as_str()));
        let (status, reason, message) = match (&facts.runtime, &facts.pod_network) {
            (Runtime::Absent, _) if !is_ours => return None,
            (Runtime::Absent, _) => ("False", NO_PODS, "this node runs no pods"),
            (_, PodNetworks::NotReady(_)) => {
                ("True", NO_POD_NETWORK, "pods get no network of their own on this node: use hostNetwork")
            }
            (_, PodNetworks::Ready(_)) if there.is_some() && !is_ours => return None,
            (_, PodNetworks::Ready(_)) => {
                ("False", POD_NETWORK_READY, "pods get a network of their own from CNI plugins")
            }
        };
        Some(Words { name: NETWORK_UNAVAILABLE, status, reason, message })
    }

    /// A node that has one, and always had, spends no bytes on that condition.
    fn watchdog_missing(&self, is_there: bool) -> Option<Words<'_>> {
        let (status, reason, message) = match &self.host.as_ref()?.facts.watchdog {
            HardwareWatchdog::Active(_) if is_there => {
                ("False", "WatchdogActive", "a hardware watchdog resets this node if its kernel hangs")
            }
            // the image before this one may have reported it
            HardwareWatchdog::NotAsked if is_there => (
                "False",
                "WatchdogNotAsked",
                "this node runs no disk image; its watchdog is its owner's matter",
            ),
            HardwareWatchdog::Absent if self.is_unwatched => (
                "True",
                "NoHardwareWatchdog",
                "the kernel has found no hardware watchdog: if it hangs, nothing resets this node",
            ),
            HardwareWatchdog::Idle(_) if self.is_unwatched => (
                "True",
                "WatchdogNotActive",
                "nothing has started the hardware watchdog: if the kernel hangs, nothing resets this node",
            ),
            _ => return None,
        };
        Some(Words { name: kedge_api::WATCHDOG_MISSING, status, reason, message })
    }

    /// Status, reason and message of `LimitsNotKept`: nothing before the runtime has looked, nor on a node
    /// that always kept them.
    fn limits_not_kept(&self, is_there: bool) -> Option<(&'static str, &'static str, String)> {
        let facts = &self.host.as_ref()?.facts;
        Some(match (&facts.runtime, facts.lacking_controllers.as_deref()) {
            (_, Some(lacking @ [_, ..])) => ("True", "NoController", facts::limits_not_kept(lacking)),
            (_, Some([])) if is_there => ("False", "LimitsKept", "limits of pods are kept".into()),
            (Runtime::Absent, None) if is_there => ("False", NO_PODS, "this node runs no pods".into()),
            _ => return None,
        })
    }

    /// Status, reason and message of `ImageOK`, on a disk image.
    fn image_ok(&self) -> Option<(&'static str, &'static str, String)> {
        Some(match &self.host.as_ref()?.facts.image {
            ImageState::NotAsked => return None,
            ImageState::Good(slot) => ("True", "SlotGood", format!("slot {slot} runs, and is good")),
            ImageState::OnTrial(slot) => (
                "Unknown",
                "SlotOnTrial",
                format!("slot {slot} is on trial: the other one runs again if it fails"),
            ),
            ImageState::FellBack(slot) => (
                "False",
                "OtherSlotFailed",
                format!("slot {slot} runs, because the other one, which is newer, has failed all its tries"),
            ),
            ImageState::Unknown(why) => {
                ("Unknown", "BootEntriesUnreadable", format!("cannot tell which slots may be started: {why}"))
            }
        })
    }

    pub(crate) fn ready_report(&self) -> ConditionReport {
        let Words { status, reason, message, .. } = self.ready();
        ConditionReport { status, reason: reason.to_owned(), message: message.to_owned() }
    }

    fn ready(&self) -> Words<'_> {
        let (status, reason, message) = match self.host.as_ref().map(|host| &host.facts.runtime) {
            // upstream's text
            _ if self.is_stopping => ("False", "KubeletNotReady", "node is shutting down"),
            Some(Runtime::NotReady(why)) => ("False", "KubeletNotReady", why.as_str()),
            Some(Runtime::Missing(why)) => ("False", kedge_api::NO_CONTAINER_RUNTIME, why.as_str()),
            Some(Runtime::Starting) => ("False", "KubeletNotReady", "container runtime is starting"),
            _ => ("True", "KubeletReady", "kubelet is posting ready status"),
        };
        Words { name: "Ready", status, reason, message }
    }
}

fn disk_stalled(is: bool) -> Words<'static> {
    let (status, reason, message) = if is {
        let message = "the disk of the node's state does not answer; the node goes on and records nothing until it does";
        ("True", "DiskDoesNotAnswer", message)
    } else {
        ("False", "DiskAnswers", "the disk of the node's state answers")
    };
    Words { name: kedge_api::DISK_STALLED, status, reason, message }
}

fn pods_held(message: Option<&str>) -> Words<'_> {
    let (status, reason, message) = match message {
        Some(message) => ("True", "AgentCrashLoop", message),
        None => ("False", "PodsNotHeld", "pods are started and stopped as they should be"),
    };
    Words { name: kedge_api::PODS_HELD, status, reason, message }
}

/// The text of a condition, without its times.
struct Words<'a> {
    name: &'a str,
    status: &'static str,
    reason: &'a str,
    message: &'a str,
}

impl Words<'_> {
    fn matches(&self, there: &NodeCondition) -> bool {
        there.status == self.status && there.reason == self.reason && there.message == self.message
    }

    /// The whole condition; its transition time is the server's if it did not change, and otherwise now.
    fn since(
        &self,
        heartbeat: Timestamp,
        unchanged: Option<&NodeCondition>,
        now: Timestamp,
    ) -> NodeCondition {
        NodeCondition {
            condition_type: self.name.into(),
            status: self.status.into(),
            reason: self.reason.into(),
            message: self.message.into(),
            last_heartbeat_time: Some(heartbeat),
            last_transition_time: unchanged.and_then(|there| there.last_transition_time).or(Some(now)),
        }
    }
}

/// A changed condition whole; only the heartbeat of an unchanged one, because the server merges by type.
fn line(condition: &NodeCondition, changed: bool) -> Value {
    if changed {
        return json!(condition);
    }
    json!({"type": condition.condition_type, "lastHeartbeatTime": condition.last_heartbeat_time})
}

fn declares(status: &NodeStatus) -> bool {
    status.declared_features.iter().any(|name| name == WEBSOCKETS)
}

fn replace(conditions: &mut Vec<NodeCondition>, condition: NodeCondition) {
    match conditions.iter_mut().find(|other| other.condition_type == condition.condition_type) {
        Some(there) => *there = condition,
        None => conditions.push(condition),
    }
}

fn addresses(facts: &HostFacts) -> Vec<NodeAddress> {
    let of = |address_type: &str, address: &str| NodeAddress {
        address_type: address_type.into(),
        address: address.into(),
    };
    let ips = facts.addresses.iter().map(|ip| of("InternalIP", ip));
    ips.chain((!facts.hostname.is_empty()).then(|| of("Hostname", &facts.hostname))).collect()
}

fn node_info(facts: &HostFacts, version: &str) -> NodeSystemInfo {
    NodeSystemInfo {
        machine_id: facts.machine_id.clone(),
        system_uuid: facts.system_uuid.clone(),
        boot_id: facts.boot_id.clone(),
        kernel_version: facts.kernel_version.clone(),
        os_image: facts.os_image.clone(),
        container_runtime_version: format!("kedge://{version}"),
        kubelet_version: kubelet_version(version),
        kube_proxy_version: String::new(),
        operating_system: "linux".into(),
        architecture: facts.architecture.clone(),
    }
}

type Resources = BTreeMap<String, String>;

/// Devices that an earlier configuration had are 0, as upstream: merging removes no entry.
fn with_devices_gone(own: &Resources, there: &Resources) -> Resources {
    let gone = there.keys().filter(|name| name.starts_with(DEVICE) && !own.contains_key(*name));
    let gone = gone.map(|name| (name.clone(), "0".to_owned()));
    own.clone().into_iter().chain(gone).collect()
}

/// Capacity, and the part of it for pods.
fn resources(facts: &HostFacts, config: &Config) -> (Resources, Resources) {
    // a scheduler would place pods here that would neither run nor be deleted
    let pods = if facts.runtime == Runtime::Ready { config.max_pods } else { 0 };
    let resources = |cpu_milli: u64, memory: u64, storage: u64| {
        let devices = config.pods.devices.keys().filter(|_| pods > 0);
        let devices = devices.map(|name| (format!("{DEVICE}{name}"), "1".to_owned()));
        [
            ("cpu", milli(cpu_milli)),
            ("memory", bytes(memory)),
            ("ephemeral-storage", bytes(storage)),
            ("pods", pods.to_string()),
        ]
        .into_iter()
        .map(|(name, quantity)| (name.to_owned(), quantity))
        .chain(devices)
        .collect()
    };
    let left = allocatable(facts, config);
    (
        resources(facts.cpus.saturating_mul(1000), facts.memory_bytes, facts.storage_bytes),
        resources(left.cpu_milli, left.memory_bytes, left.storage_bytes.unwrap_or(0)),
    )
}

/// Resources that pods may request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allocatable {
    pub(crate) cpu_milli: u64,
    pub(crate) memory_bytes: u64,
    /// `None` if the disk could not be read.
    pub(crate) storage_bytes: Option<u64>,
}

pub(crate) fn allocatable(facts: &HostFacts, config: &Config) -> Allocatable {
    let (system, kube) = (&config.system_reserved, &config.kube_reserved);
    let left =
        |capacity: u64, kept: [u64; 3]| kept.iter().fold(capacity, |left, kept| left.saturating_sub(*kept));
    let storage_kept = config.eviction_hard.nodefs_available.amount(facts.storage_bytes).unwrap_or(0);
    let reserved = [system.ephemeral_storage_bytes, kube.ephemeral_storage_bytes, storage_kept];
    Allocatable {
        cpu_milli: left(facts.cpus.saturating_mul(1000), [system.cpu_milli, kube.cpu_milli, 0]),
        memory_bytes: allocatable_memory(facts.memory_bytes, config),
        storage_bytes: (facts.storage_bytes > 0).then(|| left(facts.storage_bytes, reserved)),
    }
}

/// The part of this memory for all pods together.
pub fn allocatable_memory(memory_bytes: u64, config: &Config) -> u64 {
    let kept = config.eviction_hard.memory_available.amount(memory_bytes).unwrap_or(0);
    let reserved = [config.system_reserved.memory_bytes, config.kube_reserved.memory_bytes, kept];
    reserved.iter().fold(memory_bytes, |left, kept| left.saturating_sub(*kept))
}

/// The resources of which the reservations leave nothing for pods, each with the reservation and the
/// capacity. The capacity is not known when a configuration is checked, so these are warnings; the kubelet
/// refuses to start.
fn used_up(facts: &HostFacts, config: &Config) -> Vec<String> {
    let (system, kube) = (&config.system_reserved, &config.kube_reserved);
    let line = |name: &str, shown: fn(u64) -> String, [system, kube, capacity]: [u64; 3]| {
        let reserved = system.saturating_add(kube);
        (capacity > 0 && reserved > 0 && reserved >= capacity).then(|| {
            format!(
                "systemReserved and kubeReserved keep {} of {name}, expected less than the node has, {}; nothing is left for pods",
                shown(reserved),
                shown(capacity)
            )
        })
    };
    let storage = [system.ephemeral_storage_bytes, kube.ephemeral_storage_bytes, facts.storage_bytes];
    [
        line("cpu", milli, [system.cpu_milli, kube.cpu_milli, facts.cpus.saturating_mul(1000)]),
        line("memory", bytes, [system.memory_bytes, kube.memory_bytes, facts.memory_bytes]),
        line("ephemeral-storage", bytes, storage),
        line("pid", |pids| pids.to_string(), [system.pid, kube.pid, facts.pids]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Another agent's resources (device plugins) may be beside ours.
fn contains(all: &Resources, ours: &Resources) -> bool {
    ours.iter().all(|(name, quantity)| all.get(name) == Some(quantity))
}

fn milli(value: u64) -> String {
    if value.is_multiple_of(1000) { (value / 1000).to_string() } else { format!("{value}m") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_with_a_commit_is_a_semantic_version() {
        assert_eq!(kubelet_version("0.1.0"), "v1.36.0+kedge-0.1.0");
        assert_eq!(kubelet_version("0.1.0+1a2b3c4d5e-dirty"), "v1.36.0+kedge-0.1.0-1a2b3c4d5e-dirty");
    }

    #[test]
    fn amounts_are_written_as_the_api_server_writes_them() {
        for (value, expect) in [
            (0, "0"),
            (1, "1"),
            (1023, "1023"),
            (1024, "1Ki"),
            (1025, "1025"),
            (1536 << 10, "1536Ki"),
            (1 << 20, "1Mi"),
            (1 << 30, "1Gi"),
            (1 << 40, "1Ti"),
            (1 << 50, "1Pi"),
            (3 << 60, "3Ei"),
        ] {
            assert_eq!(bytes(value), expect);
        }
        for (value, expect) in [(0, "0"), (1, "1m"), (999, "999m"), (4000, "4"), (3250, "3250m")] {
            assert_eq!(milli(value), expect);
        }
    }

    #[test]
    fn reservation_of_everything_is_reported_once() {
        let mut config =
            crate::kubelet::effective(&Default::default(), None).expect("the defaults are valid").config;
        let now = Now { mono: Duration::ZERO, wall: Timestamp::default() };
        let facts = HostFacts { cpus: 4, memory_bytes: 1 << 30, ..HostFacts::default() };
        let mut keeper = StatusKeeper::new(Timestamp::default());
        let mut observe = |config: &Config| keeper.observe(now, facts.clone(), config, None, "0.1.0");
        config.system_reserved.cpu_milli = 3999;
        assert_eq!(observe(&config), [""; 0]);
        config.kube_reserved.cpu_milli = 1;
        let line = "systemReserved and kubeReserved keep 4 of cpu, expected less than the node has, 4; nothing is left for pods";
        assert_eq!(observe(&config), [line]);
        assert_eq!(observe(&config), [""; 0]);
        // an unreadable value is not zero
        config.system_reserved.pid = u64::MAX;
        assert_eq!(observe(&config), [""; 0]);
    }

    #[test]
    fn disk_stall_is_reported_until_it_is_over() {
        let config =
            crate::kubelet::effective(&Default::default(), None).expect("the defaults are valid").config;
        let (mut keeper, mut jitter) = (StatusKeeper::new(Timestamp::default()), Jitter::new(1));
        let now = |secs| Now { mono: Duration::from_secs(secs), wall: Timestamp::default() };
        keeper.node_seen(&Node::default());
        keeper.observe(now(0), HostFacts::default(), &config, None, "0.1.0");
        let ok = ConfigOk { status: "True", ..ConfigOk::default() };
        let mut sent = |secs, stalled| {
            keeper.disk_stalled(stalled);
            let patch = keeper.patch(now(secs), &ok)?;
            let conditions = patch.body["status"]["conditions"].as_array().cloned().unwrap_or_default();
            keeper.accepted(now(secs), patch, Duration::from_secs(300), &mut jitter);
            conditions
                .iter()
                .find(|condition| condition["type"] == kedge_api::DISK_STALLED)
                .map(|condition| condition["status"].as_str().unwrap_or("unchanged").to_owned())
        };
        // a disk that always answered is not reported, and costs no bytes
        assert_eq!(sent(0, false), None);
        assert_eq!(sent(1, true).as_deref(), Some("True"));
        assert_eq!(sent(2, true), None);
        assert_eq!(sent(3, false).as_deref(), Some("False"));
        assert_eq!(sent(4, false), None);
        assert_eq!(sent(400, false).as_deref(), Some("unchanged"), "in the report that is due");
    }

    #[test]
    fn port_is_reported_while_it_is_on() {
        let config =
            crate::kubelet::effective(&Default::default(), None).expect("the defaults are valid").config;
        let on =
            Config { server: Some(crate::kubelet::ServerSettings::on("0.0.0.0:10250")), ..config.clone() };
        let (mut keeper, mut jitter) = (StatusKeeper::new(Timestamp::default()), Jitter::new(1));
        let now = Now { mono: Duration::ZERO, wall: Timestamp::default() };
        let ok = ConfigOk { status: "True", ..ConfigOk::default() };
        keeper.node_seen(&Node::default());
        let mut sent = |keeper: &mut StatusKeeper, config: &Config| {
            keeper.observe(now, HostFacts::default(), config, None, "0.1.0");
            let Some(patch) = keeper.patch(now, &ok) else {
                return (Value::Null, Value::Null, NodeStatus::default());
            };
            let (body, result) = (patch.body["status"].clone(), patch.result.clone());
            keeper.accepted(now, patch, Duration::from_secs(9999), &mut jitter);
            (
                body["daemonEndpoints"]["kubeletEndpoint"]["Port"].clone(),
                body["declaredFeatures"].clone(),
                result,
            )
        };
        let nothing = (Value::Null, Value::Null);
        let two = |(port, features, _): (Value, Value, NodeStatus)| (port, features);
        // a port that is off is not mentioned
        assert_eq!(two(sent(&mut keeper, &config)), nothing);
        let (port, features, mut status) = sent(&mut keeper, &on);
        assert_eq!((port, features), (json!(10250), json!([WEBSOCKETS])));
        assert_eq!(two(sent(&mut keeper, &on)), nothing);
        // a server that dropped the unknown field does not get it again
        status.declared_features.clear();
        keeper.node_seen(&Node { status: status.clone(), ..Node::default() });
        assert_eq!(two(sent(&mut keeper, &on)), nothing);
        status.daemon_endpoints = NodeDaemonEndpoints::default();
        keeper.node_seen(&Node { status, ..Node::default() });
        assert_eq!(two(sent(&mut keeper, &on)), (json!(10250), Value::Null));
        assert_eq!(two(sent(&mut keeper, &config)), (json!(0), Value::Null));
    }

    #[test]
    fn missing_watchdog_is_reported_after_two_minutes() {
        let config =
            crate::kubelet::effective(&Default::default(), None).expect("the defaults are valid").config;
        let (mut keeper, mut jitter) = (StatusKeeper::new(Timestamp::default()), Jitter::new(1));
        keeper.node_seen(&Node::default());
        let ok = ConfigOk { status: "True", ..ConfigOk::default() };
        let mut sent = |secs, watchdog: HardwareWatchdog| {
            let now = Now { mono: Duration::from_secs(secs), wall: Timestamp::default() };
            keeper.observe(now, HostFacts { watchdog, ..HostFacts::default() }, &config, None, "0.1.0");
            let patch = keeper.patch(now, &ok)?;
            let conditions = patch.body["status"]["conditions"].as_array().cloned().unwrap_or_default();
            keeper.accepted(now, patch, Duration::from_secs(9999), &mut jitter);
            let own = conditions.iter().find(|condition| condition["type"] == kedge_api::WATCHDOG_MISSING)?;
            Some(format!("{} {}", own["status"].as_str()?, own["reason"].as_str()?))
        };
        let active = || HardwareWatchdog::Active("iTCO_wdt".into());
        let idle = || HardwareWatchdog::Idle("iTCO_wdt".into());
        assert_eq!(sent(0, HardwareWatchdog::NotAsked), None, "no image");
        assert_eq!(sent(1, active()), None, "as it should be: no bytes");
        assert_eq!(sent(10, HardwareWatchdog::Absent), None);
        assert_eq!(sent(60, idle()), None, "its driver was late");
        assert_eq!(sent(129, idle()), None);
        assert_eq!(sent(130, idle()).as_deref(), Some("True WatchdogNotActive"));
        assert_eq!(sent(131, HardwareWatchdog::Absent).as_deref(), Some("True NoHardwareWatchdog"));
        assert_eq!(sent(132, HardwareWatchdog::Absent), None, "no news");
        assert_eq!(sent(133, active()).as_deref(), Some("False WatchdogActive"));
        assert_eq!(sent(200, idle()), None, "perhaps for a moment");
        assert_eq!(sent(319, idle()), None);
        assert_eq!(sent(320, idle()).as_deref(), Some("True WatchdogNotActive"));
    }

    #[test]
    fn limits_that_are_not_kept_are_reported_without_a_flap() {
        let config =
            crate::kubelet::effective(&Default::default(), None).expect("the defaults are valid").config;
        let mut keeper = StatusKeeper::new(Timestamp::default());
        let mut jitter = Jitter::new(1);
        keeper.node_seen(&Node::default());
        let ok = ConfigOk { status: "True", ..ConfigOk::default() };
        let mut check = |secs, runtime, lacking: Option<&[&'static str]>, expect: Option<&str>| {
            let now = Now { mono: Duration::from_secs(secs), wall: Timestamp::default() };
            let lacking_controllers = lacking.map(<[_]>::to_vec);
            let facts = HostFacts { runtime, lacking_controllers, ..HostFacts::default() };
            keeper.observe(now, facts, &config, None, "0.1.0");
            let patch = keeper.patch(now, &ok);
            let found = patch.as_ref().and_then(|patch| {
                let conditions = patch.body["status"]["conditions"].as_array()?;
                let own = conditions.iter().find(|own| own["type"] == kedge_api::LIMITS_NOT_KEPT)?;
                let text = |field: &str| own[field].as_str().unwrap_or_default().to_owned();
                Some(format!("{} {}: {}", text("status"), text("reason"), text("message")))
            });
            assert_eq!(found.as_deref(), expect, "{secs}");
            if let Some(patch) = patch {
                keeper.accepted(now, patch, Duration::from_secs(9999), &mut jitter);
            }
        };
        let memory = "True NoController: the kernel has no controller memory: such limits of pods are not kept; append \
            cgroup_enable=memory cgroup_memory=1 to its command line (Raspberry Pi: cmdline.txt) and reboot";
        let pids = "True NoController: the kernel has no controller cpu, pids: such limits of pods are not kept; use a \
            kernel that has it";
        check(0, Runtime::Starting, None, None);
        check(1, Runtime::Ready, Some(&[]), None);
        check(2, Runtime::Ready, Some(&["memory"]), Some(memory));
        check(3, Runtime::Missing("crun".into()), Some(&["memory"]), None);
        // an agent that starts does not know yet
        check(4, Runtime::Starting, None, None);
        check(5, Runtime::Ready, Some(&["memory"]), None);
        check(6, Runtime::Ready, Some(&["cpu", "pids"]), Some(pids));
        check(7, Runtime::Ready, Some(&[]), Some("False LimitsKept: limits of pods are kept"));
        check(8, Runtime::Ready, Some(&[]), None);
        check(9, Runtime::Absent, None, Some("False NoPods: this node runs no pods"));
    }

    #[test]
    fn image_that_was_left_for_the_other_slot_is_reported() {
        let config =
            crate::kubelet::effective(&Default::default(), None).expect("the defaults are valid").config;
        let (mut keeper, mut jitter) = (StatusKeeper::new(Timestamp::default()), Jitter::new(1));
        keeper.node_seen(&Node::default());
        let ok = ConfigOk { status: "True", ..ConfigOk::default() };
        let mut sent = |secs, image: ImageState| {
            let now = Now { mono: Duration::from_secs(secs), wall: Timestamp::default() };
            keeper.observe(now, HostFacts { image, ..HostFacts::default() }, &config, None, "0.1.0");
            let patch = keeper.patch(now, &ok)?;
            let conditions = patch.body["status"]["conditions"].as_array().cloned().unwrap_or_default();
            keeper.accepted(now, patch, Duration::from_secs(9999), &mut jitter);
            let own = conditions.iter().find(|condition| condition["type"] == kedge_api::IMAGE_OK)?;
            Some(format!("{} {}", own["status"].as_str()?, own["message"].as_str()?))
        };
        assert_eq!(sent(0, ImageState::NotAsked), None, "no image");
        let trial = "Unknown slot b is on trial: the other one runs again if it fails";
        assert_eq!(sent(1, ImageState::OnTrial("b")).as_deref(), Some(trial));
        assert_eq!(sent(2, ImageState::OnTrial("b")), None, "no news");
        assert_eq!(sent(3, ImageState::Good("b")).as_deref(), Some("True slot b runs, and is good"));
        let left = "False slot a runs, because the other one, which is newer, has failed all its tries";
        assert_eq!(sent(4, ImageState::FellBack("a")).as_deref(), Some(left));
    }

    #[test]
    fn device_that_is_gone_is_zero_in_the_node() {
        let map = |pairs: &[(&str, &str)]| -> Resources {
            pairs.iter().map(|(name, count)| ((*name).to_owned(), (*count).to_owned())).collect()
        };
        let there =
            map(&[("cpu", "4"), ("kedge.dev/gps", "1"), ("kedge.dev/old", "1"), ("other.dev/x", "1")]);
        let own = map(&[("cpu", "4"), ("kedge.dev/gps", "1")]);
        let expect = map(&[("cpu", "4"), ("kedge.dev/gps", "1"), ("kedge.dev/old", "0")]);
        assert_eq!(with_devices_gone(&own, &there), expect);
    }

    #[test]
    fn node_with_a_runtime_keeps_a_scheduler_away() {
        let config =
            crate::kubelet::effective(&Default::default(), None).expect("the defaults are valid").config;
        let (mut keeper, mut jitter) = (StatusKeeper::new(Timestamp::default()), Jitter::new(1));
        keeper.node_seen(&Node::default());
        let ok = ConfigOk { status: "True", ..ConfigOk::default() };
        let without = PodNetworks::NotReady("no network config found".into());
        let with = PodNetworks::Ready("edge".into());
        let mut sent = |secs, runtime: Runtime, pod_network: &PodNetworks| {
            let now = Now { mono: Duration::from_secs(secs), wall: Timestamp::default() };
            let pod_network = pod_network.clone();
            keeper.observe(
                now,
                HostFacts { runtime, pod_network, ..HostFacts::default() },
                &config,
                None,
                "0.1.0",
            );
            let patch = keeper.patch(now, &ok)?;
            let conditions = patch.body["status"]["conditions"].as_array().cloned().unwrap_or_default();
            keeper.accepted(now, patch, Duration::from_secs(300), &mut jitter);
            let mut all = conditions.iter();
            let own = all.find(|condition| condition["type"] == NETWORK_UNAVAILABLE)?;
            own["status"].as_str().map(str::to_owned)
        };
        assert_eq!(sent(0, Runtime::Absent, &without), None, "no pods, no bytes");
        assert_eq!(sent(1, Runtime::Starting, &without).as_deref(), Some("True"));
        assert_eq!(sent(2, Runtime::Ready, &without), None, "no news");
        assert_eq!(sent(3, Runtime::Ready, &with).as_deref(), Some("False"), "plugins were installed");
        assert_eq!(sent(4, Runtime::Ready, &with), None, "no news");
        assert_eq!(sent(5, Runtime::Ready, &without).as_deref(), Some("True"), "and removed");
        assert_eq!(sent(6, Runtime::Absent, &without).as_deref(), Some("False"), "crun was removed");
    }

    #[test]
    fn network_that_somebody_else_vouches_for_is_left_alone() {
        let mut keeper = StatusKeeper::new(Timestamp::default());
        let config =
            crate::kubelet::effective(&Default::default(), None).expect("the defaults are valid").config;
        let mut judged = |pod_network: PodNetworks, reason: &str| {
            let facts = HostFacts { runtime: Runtime::Ready, pod_network, ..HostFacts::default() };
            let now = Now { mono: Duration::ZERO, wall: Timestamp::default() };
            keeper.observe(now, facts, &config, None, "0.1.0");
            let there = NodeCondition { reason: reason.into(), ..NodeCondition::default() };
            keeper.network_unavailable(Some(&there)).map(|words| words.status.to_owned())
        };
        let ready = || PodNetworks::Ready("k8s-pod-network".into());
        assert_eq!(judged(ready(), "CalicoIsNotUp"), None);
        assert_eq!(judged(ready(), NO_POD_NETWORK).as_deref(), Some("False"));
        assert_eq!(judged(PodNetworks::default(), "CalicoIsUp").as_deref(), Some("True"));
    }

    #[test]
    fn patch_tells_a_change_from_a_report_that_is_due() {
        let config =
            crate::kubelet::effective(&Default::default(), None).expect("the defaults are valid").config;
        let ok = ConfigOk { status: "True", ..ConfigOk::default() };
        let at = |secs| Now {
            mono: Duration::from_secs(secs),
            wall: Timestamp::from_micros(secs as i64 * 1_000_000),
        };
        let (mut keeper, mut jitter) = (StatusKeeper::new(Timestamp::default()), Jitter::new(1));
        let host = HostFacts {
            memory_bytes: 1 << 30,
            memory_available_bytes: Some(1 << 29),
            ..HostFacts::default()
        };
        let moved = HostFacts { addresses: vec!["192.0.2.9".into()], ..host.clone() };
        let pressed = HostFacts { memory_available_bytes: Some(1), ..moved.clone() };
        keeper.node_seen(&Node::default());
        let frequency = Duration::from_secs(300);
        for (secs, host, expect) in [
            (0, &host, Some(true)),
            (10, &host, None),
            (320, &host, Some(false)),
            (330, &moved, Some(true)),
            (340, &pressed, Some(true)),
            (350, &pressed, None),
        ] {
            keeper.observe(at(secs), host.clone(), &config, None, "0.1.0");
            let patch = keeper.patch(at(secs), &ok);
            assert_eq!(patch.as_ref().map(|patch| patch.changed), expect, "at {secs} s");
            if let Some(patch) = patch {
                keeper.accepted(at(secs), patch, frequency, &mut jitter);
                let wait = keeper.report_due().expect("there is a next one") - at(secs).mono;
                // nodes that changed together drift apart
                assert_eq!(wait < frequency, expect == Some(true), "{wait:?} after {secs} s");
                assert!(wait >= frequency / 2, "{wait:?} after {secs} s");
            }
        }
    }
}
