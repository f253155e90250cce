//! `/stats/summary` and `/metrics/resource`: resource usage of the machine, its pods and their containers, in
//! upstream's forms.
//!
//! Always holds: a value that cannot be measured is left out, not zero; a request costs a few small files of
//! each container, read twice for a summary, and, unless it wants no disks, a walk over a bounded number of
//! files at half a processor at most. Nothing is kept between requests, so a node without requests pays
//! nothing: a rate is measured while the request waits. Left to others: the measuring itself
//! (`workloads::measure`, `kedge_platform`).

use crate::kubelet_api::node::Node;
use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kedge_api::{Timestamp, USAGE_WINDOW};
use kedge_core::pods::{DiskUsage, PodUid};
use kedge_core::sorted::SortedMap;
use kedge_platform::HostFacts as _;
use kedge_platform::linux::{
    FileSystemUse, InterfaceUse, LinuxHost, MemoryUse, Roots, booted_at, interfaces, memory_use,
    processor_time,
};
use kedge_platform::workloads::{Settings, control_groups, running_pods, started_at};
use serde_json::{Map, Value, json};

use super::{Exchange, Request};
use crate::workloads::measure::{GroupUsage, PartsOnDisk, Places};
use crate::workloads::{NAME, NAMESPACE};

/// Files of all pods that one request visits: 4 s on flash that reads 50,000 inodes a second, with rests of
/// the same length.
const MOST_FILES: u64 = 100_000;
/// Interfaces of one network that are listed; upstream's form has no place for the sum of the others.
const MOST_INTERFACES: usize = 64;
/// Prefix of the machine's ends of pods' interfaces, which are listed with their pods.
const OF_PODS: &str = "veth";

/// Where usage is measured.
struct Board {
    node: Arc<Node>,
    roots: Roots,
    /// `None` if this node runs no containers.
    runtime: Option<(Settings, Places)>,
}

/// The usage at one moment.
struct Sample {
    at: Instant,
    wall: Timestamp,
    machine: GroupUsage,
    /// All pods together.
    pods: Option<GroupUsage>,
    each: Vec<PodSample>,
}

struct PodSample {
    uid: PodUid,
    namespace: String,
    name: String,
    group: String,
    usage: GroupUsage,
    containers: Vec<ContainerSample>,
}

struct ContainerSample {
    name: String,
    attempt: u32,
    started: Option<Timestamp>,
    usage: GroupUsage,
}

/// `/stats/summary`.
pub(super) async fn summary(request: &Request, exchange: Exchange, node: Arc<Node>) -> io::Result<()> {
    let with_disks = !request.flag("only_cpu_and_memory");
    let begun = tokio::task::spawn_blocking(move || {
        let board = Board::open(node, with_disks);
        let sample = board.sample();
        (board, sample)
    });
    let (board, before) = begun.await?;
    tokio::time::sleep(USAGE_WINDOW).await;
    let written = tokio::task::spawn_blocking(move || {
        let now = board.sample();
        board.summary(&before, &now, with_disks).to_string()
    });
    exchange.answer(200, "application/json", written.await?.as_bytes()).await
}

/// `/metrics/resource`.
pub(super) async fn resource(exchange: Exchange, node: Arc<Node>) -> io::Result<()> {
    let written = tokio::task::spawn_blocking(move || metrics(&Board::open(node, false).sample()));
    exchange.answer(200, "text/plain; version=0.0.4; charset=utf-8", written.await?.as_bytes()).await
}

impl Board {
    fn open(node: Arc<Node>, with_disks: bool) -> Self {
        let settings = node.agent.runtime.settings(&node.agent.places);
        let roots = Roots::default();
        let runtime = settings.map(|settings| {
            let places = Places {
                groups: control_groups(&roots),
                pods_group: settings.pods_group.clone(),
                roots: settings.data.clone(),
                volumes: node.agent.places.root_dir.join("volumes"),
                logs: match with_disks {
                    true => crate::logs::logs_dir(&node.agent).unwrap_or_default(),
                    false => PathBuf::new(),
                },
            };
            (settings, places)
        });
        Self { node, roots, runtime }
    }

    fn sample(&self) -> Sample {
        let machine =
            GroupUsage { processor_time: processor_time(&self.roots), memory: memory_use(&self.roots) };
        let (pods, each) = match &self.runtime {
            Some((settings, places)) => (Some(places.usage_of(&places.pods_group)), pods(settings, places)),
            None => (None, Vec::new()),
        };
        Sample { at: Instant::now(), wall: now(), machine, pods, each }
    }

    fn summary(&self, before: &Sample, now: &Sample, with_disks: bool) -> Value {
        let rates = Rates { before, now };
        let mut node = rates.usage(&now.machine, before.machine.processor_time);
        node.insert("nodeName".into(), self.node_name().into());
        if let Some(booted) = booted_at(&self.roots) {
            node.insert("startTime".into(), Timestamp::from_micros(booted * 1_000_000).rfc3339().into());
        }
        let mut of_system = Vec::new();
        if let Some(usage) = now.pods.as_ref().filter(|usage| **usage != GroupUsage::default()) {
            let mut pods = rates.usage(usage, before.pods.and_then(|usage| usage.processor_time));
            pods.insert("name".into(), "pods".into());
            of_system.push(pods);
        }
        node.insert("systemContainers".into(), json!(of_system));
        let mut most = MOST_FILES;
        let mut pods = Vec::new();
        for pod in &now.each {
            let mut value = rates.pod(pod);
            if let Some((_, places)) = self.runtime.as_ref().filter(|_| with_disks) {
                let parts = places.parts_on_disk(&pod.uid, &mut most);
                disks_of_pod(&mut value, pod, &parts, &places.file_systems(), now.wall);
                if let Some(found) = places.groups.interfaces(&pod.group, &self.roots) {
                    value["network"] = network(&found, "eth0", now.wall);
                }
                if let Some(count) = places.groups.count(&pod.group) {
                    value["process_stats"] = json!({"process_count": count});
                }
            }
            pods.push(value);
        }
        if with_disks {
            self.add_machine(&mut node, now.wall);
        }
        json!({"node": node, "pods": pods})
    }

    /// Disk, network and processes of the machine.
    fn add_machine(&self, node: &mut Map<String, Value>, wall: Timestamp) {
        let root_dir = &self.node.agent.places.root_dir;
        let host = LinuxHost::new(self.roots.clone(), root_dir);
        if let Some(found) = kedge_platform::linux::file_system_use(root_dir) {
            node.insert("fs".into(), file_system(&found, Some(used_of(&found)), wall));
            // the part of it that images use is not counted
            node.insert("runtime".into(), json!({"imageFs": file_system(&found, None, wall)}));
        }
        let mut found = interfaces(&self.roots, "self");
        found.retain(|interface| !interface.name.starts_with(OF_PODS));
        let addresses = host.addresses();
        let first = addresses.first().map_or("eth0", |address| address.interface.as_str());
        node.insert("network".into(), network(&found, first, wall));
        let rlimit = json!({"time": wall.rfc3339(), "maxpid": host.capacity().pids, "curproc": host.usage().pids_in_use});
        node.insert("rlimit".into(), rlimit);
    }

    fn node_name(&self) -> String {
        let named = self.node.agent.node_name.clone();
        named.unwrap_or_else(|| {
            LinuxHost::new(self.roots.clone(), &self.node.agent.places.root_dir).identity().hostname
        })
    }
}

/// The pods with running containers, as of now.
fn pods(settings: &Settings, places: &Places) -> Vec<PodSample> {
    let running = running_pods(settings).into_iter().filter(|pod| !pod.containers.is_empty());
    let one = |pod: kedge_platform::workloads::RunningPod| {
        let uid = PodUid::new(&pod.uid)?;
        let group = places.group_of(&uid)?;
        let containers = pod.containers.iter().map(|id| ContainerSample {
            name: id.name.clone(),
            attempt: id.attempt,
            started: started_at(settings, id).map(Timestamp::from_micros),
            usage: places.usage_of(&format!("{group}/{}-{}", id.name, id.attempt)),
        });
        let note = |key: &str| pod.notes.get(key).cloned();
        Some(PodSample {
            namespace: note(NAMESPACE)?,
            name: note(NAME)?,
            usage: places.usage_of(&group),
            containers: containers.collect(),
            uid,
            group,
        })
    };
    running.filter_map(one).collect()
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// Rates between two samples.
struct Rates<'a> {
    before: &'a Sample,
    now: &'a Sample,
}

impl Rates<'_> {
    fn usage(&self, usage: &GroupUsage, before: Option<Duration>) -> Map<String, Value> {
        let mut value = Map::new();
        if let Some(time) = usage.processor_time {
            let elapsed = self.now.at.duration_since(self.before.at);
            let rate = before.and_then(|before| nano_cores(time.checked_sub(before)?, elapsed));
            let fields = [("usageNanoCores", rate), ("usageCoreNanoSeconds", Some(nanoseconds(time)))];
            value.insert("cpu".into(), timed(self.now.wall, fields));
        }
        if let Some(memory) = &usage.memory {
            value.insert("memory".into(), memory_of(memory, self.now.wall));
            if memory.swapped.is_some() {
                let fields =
                    [("swapAvailableBytes", memory.swap_available), ("swapUsageBytes", memory.swapped)];
                value.insert("swap".into(), timed(self.now.wall, fields));
            }
        }
        value
    }

    fn pod(&self, pod: &PodSample) -> Value {
        let known = self.before.each.iter().find(|known| known.uid == pod.uid);
        let mut value = self.usage(&pod.usage, known.and_then(|known| known.usage.processor_time));
        let containers = pod.containers.iter().map(|container| {
            let same =
                |known: &&ContainerSample| known.name == container.name && known.attempt == container.attempt;
            let known = known.and_then(|known| known.containers.iter().find(same));
            let mut value = self.usage(&container.usage, known.and_then(|known| known.usage.processor_time));
            value.insert("name".into(), container.name.as_str().into());
            if let Some(started) = container.started {
                value.insert("startTime".into(), started.rfc3339().into());
            }
            Value::Object(value)
        });
        value.insert("containers".into(), containers.collect());
        if let Some(started) = pod.containers.iter().filter_map(|container| container.started).min() {
            value.insert("startTime".into(), started.rfc3339().into());
        }
        let named = json!({"name": pod.name, "namespace": pod.namespace, "uid": pod.uid.as_str()});
        value.insert("podRef".into(), named);
        Value::Object(value)
    }
}

/// Billionths of a processor; `None` if the time is too short to tell.
fn nano_cores(worked: Duration, elapsed: Duration) -> Option<u64> {
    let rate = worked.as_nanos().checked_mul(1_000_000_000)?.checked_div(elapsed.as_nanos())?;
    u64::try_from(rate).ok()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The known fields, with the time.
fn timed<const N: usize>(wall: Timestamp, fields: [(&str, Option<u64>); N]) -> Value {
    let known = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
    let time = ("time".to_owned(), wall.rfc3339().into());
    Value::Object(std::iter::once(time).chain(known).collect())
}

fn memory_of(memory: &MemoryUse, wall: Timestamp) -> Value {
    timed(
        wall,
        [
            ("availableBytes", memory.available),
            ("usageBytes", Some(memory.used)),
            ("workingSetBytes", Some(memory.working_set)),
            ("rssBytes", memory.anonymous),
            ("pageFaults", memory.faults),
            ("majorPageFaults", memory.major_faults),
        ],
    )
}

fn used_of(found: &FileSystemUse) -> DiskUsage {
    let inodes = found.inodes.map_or(0, |inodes| inodes.all.saturating_sub(inodes.free));
    DiskUsage { bytes: found.used_bytes, inodes }
}

/// Usage of a part of a file system, and that file system's room.
fn file_system(found: &FileSystemUse, used: Option<DiskUsage>, wall: Timestamp) -> Value {
    timed(
        wall,
        [
            ("availableBytes", Some(found.available_bytes)),
            ("capacityBytes", Some(found.capacity_bytes)),
            ("usedBytes", used.map(|used| used.bytes)),
            ("inodesFree", found.inodes.map(|inodes| inodes.free)),
            ("inodes", found.inodes.map(|inodes| inodes.all)),
            ("inodesUsed", used.filter(|_| found.inodes.is_some()).map(|used| used.inodes)),
        ],
    )
}

fn disks_of_pod(
    value: &mut Value,
    pod: &PodSample,
    parts: &PartsOnDisk,
    [roots, logs, volumes]: &[Option<FileSystemUse>; 3],
    wall: Timestamp,
) {
    let part = |found: &Option<FileSystemUse>, sizes: &SortedMap<String, DiskUsage>, name: &str| {
        Some(file_system(found.as_ref()?, Some(*sizes.get(name)?), wall))
    };
    for (at, container) in pod.containers.iter().enumerate() {
        for (field, found, sizes) in [("rootfs", roots, &parts.roots), ("logs", logs, &parts.logs)] {
            if let Some(part) = part(found, sizes, &container.name) {
                value["containers"][at][field] = part;
            }
        }
    }
    let listed = parts.volumes.keys().filter_map(|name| {
        let mut volume = part(volumes, &parts.volumes, name)?;
        volume["name"] = name.as_str().into();
        Some(volume)
    });
    let listed: Vec<Value> = listed.collect();
    if !listed.is_empty() {
        value["volume"] = listed.into();
    }
    if let (Some(found), Some(sum)) = (roots, parts.sum) {
        value["ephemeral-storage"] = file_system(found, Some(sum), wall);
    }
}

/// Interfaces, and one of them as that of the whole.
fn network(found: &[InterfaceUse], first: &str, wall: Timestamp) -> Value {
    let one = |interface: &InterfaceUse| {
        json!({
            "name": interface.name, "rxBytes": interface.received_bytes, "rxErrors": interface.receive_errors,
            "txBytes": interface.sent_bytes, "txErrors": interface.send_errors,
        })
    };
    let first = found.iter().find(|interface| interface.name == first).or(found.first());
    let mut value = first.map_or_else(|| json!({"name": ""}), one);
    value["time"] = wall.rfc3339().into();
    value["interfaces"] = found.iter().take(MOST_INTERFACES).map(one).collect();
    value
}

/// A metric of upstream's: its name, type, level and help, and its lines.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    lines: String,
}

impl Metric {
    fn new(name: &'static str, kind: &'static str, help: &'static str) -> Self {
        Self { name, kind, help, lines: String::new() }
    }

    /// Adds a line. Names of objects need no escapes.
    fn add(&mut self, labels: &str, value: Option<f64>, wall: Option<Timestamp>) {
        let Some(value) = value else { return };
        let at = wall.map_or_else(String::new, |wall| format!(" {}", wall.micros() / 1000));
        let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.lines, "{}{braces} {value}{at}", self.name);
    }
}

/// The text of `/metrics/resource`.
fn metrics(sample: &Sample) -> String {
    let gauge = |name, help| Metric::new(name, "gauge", help);
    let counter = |name, help| Metric::new(name, "counter", help);
    let mut container_cpu = counter(
        "container_cpu_usage_seconds_total",
        "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
    );
    let mut container_memory =
        gauge("container_memory_working_set_bytes", "[STABLE] Current working set of the container in bytes");
    let mut container_start = gauge(
        "container_start_time_seconds",
        "[STABLE] Start time of the container since unix epoch in seconds",
    );
    let mut container_swap = gauge(
        "container_swap_usage_bytes",
        "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
    );
    let mut node_cpu = counter(
        "node_cpu_usage_seconds_total",
        "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
    );
    let mut node_memory =
        gauge("node_memory_working_set_bytes", "[STABLE] Current working set of the node in bytes");
    let mut node_swap = gauge(
        "node_swap_usage_bytes",
        "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
    );
    let mut pod_cpu = counter(
        "pod_cpu_usage_seconds_total",
        "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
    );
    let mut pod_memory =
        gauge("pod_memory_working_set_bytes", "[STABLE] Current working set of the pod in bytes");
    let mut pod_swap = gauge(
        "pod_swap_usage_bytes",
        "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
    );
    let mut failed = gauge(
        "resource_scrape_error",
        "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
    );
    let at = Some(sample.wall);
    let add = |[cpu, memory, swap]: [&mut Metric; 3], labels: &str, usage: &GroupUsage| {
        cpu.add(labels, usage.processor_time.map(|time| time.as_secs_f64()), at);
        memory.add(labels, usage.memory.map(|memory| memory.working_set as f64), at);
        swap.add(labels, usage.memory.and_then(|memory| memory.swapped).map(|bytes| bytes as f64), at);
    };
    let is_known = |usage: &GroupUsage| usage.processor_time.is_some() && usage.memory.is_some();
    let mut is_whole = is_known(&sample.machine);
    add([&mut node_cpu, &mut node_memory, &mut node_swap], "", &sample.machine);
    for pod in &sample.each {
        let of_pod = format!("namespace=\"{}\",pod=\"{}\"", pod.namespace, pod.name);
        is_whole &= is_known(&pod.usage);
        add([&mut pod_cpu, &mut pod_memory, &mut pod_swap], &of_pod, &pod.usage);
        for container in &pod.containers {
            let labels = format!("container=\"{}\",{of_pod}", container.name);
            is_whole &= is_known(&container.usage);
            let of_containers = [&mut container_cpu, &mut container_memory, &mut container_swap];
            add(of_containers, &labels, &container.usage);
            let started = container.started.map(|started| started.micros() as f64 / 1e6);
            container_start.add(&labels, started, None);
        }
    }
    failed.add("", Some(if is_whole { 0.0 } else { 1.0 }), None);
    let all = [
        container_cpu,
        container_memory,
        container_start,
        container_swap,
        node_cpu,
        node_memory,
        node_swap,
        pod_cpu,
        pod_memory,
        pod_swap,
        failed,
    ];
    let mut text = String::new();
    // as upstream, a metric without a value is left out, with its help
    for Metric { name, kind, help, lines } in all.iter().filter(|metric| !metric.lines.is_empty()) {
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const MI: u64 = 1 << 20;

    fn usage(milliseconds: u64, mebibytes: u64) -> GroupUsage {
        let memory = MemoryUse {
            used: 2 * mebibytes * MI,
            working_set: mebibytes * MI,
            anonymous: Some(MI),
            faults: Some(7),
            major_faults: Some(0),
            swapped: Some(0),
            ..MemoryUse::default()
        };
        GroupUsage { processor_time: Some(Duration::from_millis(milliseconds)), memory: Some(memory) }
    }

    fn sample(at: Instant, worked: u64) -> Sample {
        let started = Timestamp::parse("2026-11-23T04:00:00.5Z").ok();
        let container = |name: &str, attempt, worked| ContainerSample {
            name: name.into(),
            attempt,
            started,
            usage: usage(worked, 3),
        };
        let pod = PodSample {
            uid: PodUid::new("u-1").unwrap(),
            namespace: "prod".into(),
            name: "web-0".into(),
            group: "/g".into(),
            usage: usage(worked, 5),
            // the second one is another run in each sample
            containers: vec![container("app", 0, worked), container("side", worked as u32, worked)],
        };
        Sample {
            at,
            wall: Timestamp::parse("2026-11-24T01:00:00Z").unwrap(),
            machine: usage(10 * worked, 100),
            pods: Some(usage(worked, 9)),
            each: vec![pod],
        }
    }

    /// A kubelet's answer has these fields, and clients look for them there.
    #[test]
    fn summary_has_upstreams_form() {
        let begun = Instant::now();
        let (before, now) = (sample(begun, 1000), sample(begun + Duration::from_secs(2), 1500));
        let rates = Rates { before: &before, now: &now };
        let found = rates.pod(&now.each[0]);
        let time = "2026-11-24T01:00:00Z";
        let memory = |working_set: u64| {
            json!({"time": time, "usageBytes": 2 * working_set, "workingSetBytes": working_set, "rssBytes": MI,
                "pageFaults": 7, "majorPageFaults": 0})
        };
        let cpu = json!({"time": time, "usageNanoCores": 250_000_000, "usageCoreNanoSeconds": 1_500_000_000});
        let swap = json!({"time": time, "swapUsageBytes": 0});
        let expect = json!({
            "podRef": {"name": "web-0", "namespace": "prod", "uid": "u-1"},
            "startTime": "2026-11-23T04:00:00Z",
            "cpu": cpu, "memory": memory(5 * MI), "swap": swap,
            "containers": [
                {"name": "app", "startTime": "2026-11-23T04:00:00Z", "cpu": cpu, "memory": memory(3 * MI), "swap": swap},
                {"name": "side", "startTime": "2026-11-23T04:00:00Z", "memory": memory(3 * MI), "swap": swap,
                    "cpu": {"time": time, "usageCoreNanoSeconds": 1_500_000_000}},
            ],
        });
        assert_eq!(found, expect);
    }

    #[test]
    fn disks_that_were_not_counted_are_left_out() {
        let now = sample(Instant::now(), 0);
        let rates = Rates { before: &now, now: &now };
        let mut value = rates.pod(&now.each[0]);
        let disk = FileSystemUse { capacity_bytes: 100, available_bytes: 50, used_bytes: 40, inodes: None };
        let size = |bytes| DiskUsage { bytes, inodes: 1 };
        let parts = PartsOnDisk {
            roots: SortedMap::from([("app".into(), size(5))]),
            volumes: SortedMap::from([("data".into(), size(6))]),
            ..PartsOnDisk::default()
        };
        disks_of_pod(&mut value, &now.each[0], &parts, &[Some(disk), Some(disk), Some(disk)], now.wall);
        let time = "2026-11-24T01:00:00Z";
        let part =
            |used: u64| json!({"time": time, "availableBytes": 50, "capacityBytes": 100, "usedBytes": used});
        assert_eq!(value["containers"][0]["rootfs"], part(5));
        for absent in ["/containers/0/logs", "/containers/1/rootfs", "/ephemeral-storage"] {
            assert!(value.pointer(absent).is_none(), "{absent}");
        }
        let mut volume = part(6);
        volume["name"] = "data".into();
        assert_eq!(value["volume"], json!([volume]));
    }

    #[test]
    fn first_interface_stands_for_the_network() {
        let interface = |name: &str, bytes| InterfaceUse {
            name: name.into(),
            received_bytes: bytes,
            ..InterfaceUse::default()
        };
        let found = [interface("eth1", 1), interface("wlan0", 2)];
        let name = |first| network(&found, first, Timestamp::default())["name"].clone();
        assert_eq!((name("wlan0"), name("gone")), (json!("wlan0"), json!("eth1")));
        assert_eq!(network(&found, "eth1", Timestamp::default())["interfaces"][1]["rxBytes"], 2);
    }

    #[test]
    fn metrics_have_upstreams_names_and_labels() {
        let mut sample = sample(Instant::now(), 1500);
        sample.each[0].containers.truncate(1);
        let text = metrics(&sample);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let labels = "namespace=\"prod\",pod=\"web-0\"";
        let at = "1795482000000";
        let expect = [
            format!("container_cpu_usage_seconds_total{{container=\"app\",{labels}}} 1.5 {at}"),
            format!("container_memory_working_set_bytes{{container=\"app\",{labels}}} 3145728 {at}"),
            format!("container_start_time_seconds{{container=\"app\",{labels}}} 1795406400.5"),
            format!("container_swap_usage_bytes{{container=\"app\",{labels}}} 0 {at}"),
            format!("node_cpu_usage_seconds_total 15 {at}"),
            format!("node_memory_working_set_bytes 104857600 {at}"),
            format!("node_swap_usage_bytes 0 {at}"),
            format!("pod_cpu_usage_seconds_total{{{labels}}} 1.5 {at}"),
            format!("pod_memory_working_set_bytes{{{labels}}} 5242880 {at}"),
            format!("pod_swap_usage_bytes{{{labels}}} 0 {at}"),
            "resource_scrape_error 0".to_owned(),
        ];
        assert_eq!(lines, expect);
        let types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        assert_eq!((types.len(), types[0]), (11, "# TYPE container_cpu_usage_seconds_total counter"));
        sample.each[0].usage.memory = None;
        let text = metrics(&sample);
        assert!(text.contains("resource_scrape_error 1") && !text.contains("pod_memory"), "{text}");
    }
}
