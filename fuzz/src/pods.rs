//! A pod from an API server, a file or the checkpoint, through admission to the settings of its containers;
//! with the image that it names, and the objects that it refers to.
//!
//! Owns a node with a board that carries out every order at once. Each input runs three times: under a first
//! agent, under a second one that finds its containers, and after a power cut without an API server. Always
//! checked: an order can be carried out and never leads outside of its directories; records are read back and
//! start the same containers again; a restart of the agent ends no container; an unknown field is refused;
//! every waiting container has a reason; in the end no orders are left.

use crate::Target;
use crate::input::{joined, sections};
use kedge_api::Timestamp;
use kedge_core::images::manifest::Config;
use kedge_core::pods::{
    ApiServer, ContainerKey, ContainerOrder, ContainerState, DesiredFile, DesiredFound, Exit, Image,
    ImageConfig, Inventory, NodeFacts, ObjectRead, Observation, PodAction, PodEvent, PodFound, PodNetwork,
    PodNetworks, PodRequest, PodSandbox, PodUid, Pods, ProbeOutcome, StaticFile, TokenRead, Volume,
    VolumeSource,
};
use kedge_core::sorted::SortedMap;
use kedge_core::workloads::files::{Resolver, hosts, resolv_conf};
use kedge_core::workloads::groups::container_group;
use kedge_core::workloads::spec::{Granted, Machine, Shared, config};
use kedge_core::workloads::users::user_of;
use kedge_core::{Answer, Now};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Component, Path};
use std::time::Duration;

pub(crate) const TARGET: Target =
    Target { name: "pods", run, seeds, words: WORDS, longest_bytes: 6144, mutations: 400 };

/// Most orders in one life of an agent, after which it should long have stopped: 64 containers take some 500.
const MOST_ORDERS: usize = 5000;
/// Most deadlines to wait for in one life.
const MOST_WAITS: usize = 12;
/// Longest text for people: it becomes an Event, a line of the log or a part of a status.
const TEXT_BYTES: usize = 16 * 1024;
const NODE: &str = "edge";
const NODE_UID: &str = "n-1";

const WORDS: &[&str] = &[
    "{\"metadata\":{\"name\":\"",
    "\"namespace\":\"d\"",
    "\"uid\":\"u-1\"",
    "\"annotations\":{",
    "\"labels\":{",
    "\"deletionTimestamp\":\"2026-11-21T01:00:00Z\"",
    "\"spec\":{",
    "\"containers\":[{",
    "\"initContainers\":[{\"name\":\"i\",\"image\":\"x:1\"",
    "\"image\":\"x:1\"",
    "\"command\":[\"",
    "\"args\":[\"$(A)\"]",
    "\"env\":[{\"name\":\"A\",\"value\":\"",
    "\"valueFrom\":{\"configMapKeyRef\":{\"name\":\"m\",\"key\":\"k\"}}",
    "\"valueFrom\":{\"secretKeyRef\":{\"name\":\"s\",\"key\":\"k\"}}",
    "\"valueFrom\":{\"fieldRef\":{\"fieldPath\":\"",
    "metadata.annotations['",
    "\"valueFrom\":{\"resourceFieldRef\":{\"resource\":\"limits.cpu\",\"divisor\":\"1m\"}}",
    "\"envFrom\":[{\"prefix\":\"P_\",\"configMapRef\":{\"name\":\"m\"}}]",
    "\"volumes\":[{\"name\":\"v\",",
    "\"emptyDir\":{\"medium\":\"Memory\",\"sizeLimit\":\"1Mi\"}",
    "\"hostPath\":{\"path\":\"/a\",\"type\":\"Directory\"}",
    "\"configMap\":{\"name\":\"m\",\"items\":[{\"key\":\"k\",\"path\":\"",
    "\"secret\":{\"secretName\":\"s\",\"defaultMode\":256}",
    "\"projected\":{\"sources\":[{",
    "\"downwardAPI\":{\"items\":[{\"path\":\"l\",\"fieldRef\":{\"fieldPath\":\"metadata.labels\"}}]}",
    "\"serviceAccountToken\":{\"path\":\"token\"}",
    "\"image\":{\"reference\":\"x:2\"}",
    "\"volumeMounts\":[{\"name\":\"v\",\"mountPath\":\"/v\",\"subPath\":\"",
    "\"subPathExpr\":\"$(A)\"",
    "..",
    "/",
    "\"resources\":{\"limits\":{\"cpu\":\"1\",\"memory\":\"1Mi\",\"kedge.dev/gps\":\"1\"}}",
    "\"securityContext\":{\"runAsUser\":",
    "\"runAsNonRoot\":true",
    "\"fsGroup\":",
    "\"supplementalGroups\":[",
    "\"capabilities\":{\"add\":[\"NET_ADMIN\"],\"drop\":[\"ALL\"]}",
    "\"seccompProfile\":{\"type\":\"Localhost\",\"localhostProfile\":\"",
    "\"appArmorProfile\":{\"type\":\"RuntimeDefault\"}",
    "\"sysctls\":[{\"name\":\"net.ipv4.ping_group_range\",\"value\":\"0 1\"}]",
    "\"privileged\":true",
    "\"livenessProbe\":{\"exec\":{\"command\":[\"x\"]}}",
    "\"readinessProbe\":{\"httpGet\":{\"port\":80}}",
    "\"startupProbe\":{\"tcpSocket\":{\"port\":\"http\"}}",
    "\"lifecycle\":{\"postStart\":{\"sleep\":{\"seconds\":1}}}",
    "\"restartPolicy\":\"Always\"",
    "\"restartPolicy\":\"Never\"",
    "\"hostNetwork\":true",
    "\"hostPID\":true",
    "\"shareProcessNamespace\":true",
    "\"ports\":[{\"containerPort\":80,\"hostPort\":80,\"name\":\"http\"}]",
    "\"dnsPolicy\":\"None\",\"dnsConfig\":{\"nameservers\":[\"",
    "\"hostAliases\":[{\"ip\":\"",
    "\"imagePullSecrets\":[{\"name\":\"s\"}]",
    "\"activeDeadlineSeconds\":",
    "\"terminationGracePeriodSeconds\":",
    "\"priority\":2000000000",
    "\"ephemeralContainers\":[{\"name\":\"e\"}]",
    "\"kedge.dev/offline\":\"never\"",
    "\"apiVersion\":\"kedge.dev/v1\",\"kind\":\"DesiredPod\",\"nodeUID\":\"",
    "\"apiVersion\":\"kedge.dev/v1\",\"kind\":\"PodObject\",\"nodeUID\":\"",
    "\"results\":{\"a\":{\"code\":1}}",
    "\"rejected\":{\"reason\":\"r\",\"message\":\"m\"}",
    "\"failed\":{",
    "\"activeSince\":\"2026-11-21T01:00:00Z\"",
    "\"ended\":",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n",
    "null",
    "-1",
    "18446744073709551615",
    "9223372036854775807",
    "\\u0000",
    "\\n",
];

/// A pod with most of the served fields.
fn rich() -> Value {
    json!({
        "metadata": {"name": "web-0", "namespace": "d", "uid": "u-1", "generation": 2, "labels": {"app": "web"},
            "annotations": {"note": "a\nb", "kedge.dev/pull-ahead": r#"{"revision":"r","images":[{"image":"x:3","policy":"IfNotPresent"}]}"#}, "creationTimestamp": "2026-11-21T01:00:00Z",
            "ownerReferences": [{"kind": "DaemonSet", "name": "web", "controller": true}]},
        "spec": {"nodeName": NODE, "restartPolicy": "Always", "hostname": "web", "terminationGracePeriodSeconds": 5,
            "securityContext": {"runAsUser": 7, "fsGroup": 8, "supplementalGroups": [9], "seccompProfile": {"type": "RuntimeDefault"},
                "sysctls": [{"name": "net.ipv4.ping_group_range", "value": "0 1"}]},
            "dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.1"], "options": [{"name": "ndots", "value": "2"}]},
            "hostAliases": [{"ip": "10.0.0.9", "hostnames": ["one"]}], "imagePullSecrets": [{"name": "s"}],
            "volumes": [{"name": "data", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {"name": "host", "hostPath": {"path": "/var/data", "type": "DirectoryOrCreate"}},
                {"name": "map", "configMap": {"name": "m", "items": [{"key": "k", "path": "a/b", "mode": 288}]}},
                {"name": "all", "projected": {"defaultMode": 420, "sources": [{"secret": {"name": "s"}},
                    {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]}}],
            "initContainers": [{"name": "i", "image": "x:1", "command": ["/init"]}],
            "containers": [{"name": "a", "image": "r.lan/x@sha256:00", "args": ["$(A)", "$$(B)"], "workingDir": "/w",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)2"},
                    {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
                    {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['note']"}}},
                    {"name": "E", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}}],
                "envFrom": [{"prefix": "P_", "configMapRef": {"name": "m", "optional": true}}],
                "ports": [{"containerPort": 80, "hostPort": 8080, "name": "http"}],
                "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "64Mi", "kedge.dev/gps": "1"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data", "subPathExpr": "$(A)/x"},
                    {"name": "map", "mountPath": "/etc/map", "readOnly": true}, {"name": "all", "mountPath": "/all"}],
                "securityContext": {"capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}, "readOnlyRootFilesystem": true},
                "livenessProbe": {"exec": {"command": ["x"]}, "periodSeconds": 3},
                "readinessProbe": {"httpGet": {"port": "http", "path": "/"}},
                "lifecycle": {"postStart": {"exec": {"command": ["y"]}}, "preStop": {"sleep": {"seconds": 1}}}}]}
    })
}

fn seeds() -> Vec<Vec<u8>> {
    let plain = r#"{"metadata":{"name":"p","namespace":"d","uid":"u-1"},"spec":{"containers":[{"name":"a","image":"x:1"}]}}"#;
    let object = r#"{"metadata":{"annotations":{}},"data":{"k":"aGVq"}}"#;
    let never = r#"{"metadata":{"annotations":{"kedge.dev/offline":"never"}},"data":{"k":"aGk="}}"#;
    let file = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  hostNetwork: true\n  containers:\n  - {name: a, image: x, command: [sh]}\n";
    let image = json!({"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": []},
        "config": {"Env": ["A=b", "PATH=/bin"], "Entrypoint": ["/e"], "Cmd": ["x"], "User": "web:web", "WorkingDir": "/srv",
            "StopSignal": "SIGINT", "Volumes": {"/data": {}}}})
    .to_string();
    let (passwd, group) =
        ("root:x:0:0::/:/bin/sh\nweb:x:7:7::/:\n", "root:x:0:\nweb:x:7:\nmore:x:70:web,other\n");
    let rich = rich();
    let (record, copy) = written_for(&rich, object);
    let token = json!({"metadata": {"name": "t", "namespace": "d", "uid": "u-2"}, "spec": {"serviceAccountName": "default",
        "volumes": [{"name": "kube-api-access-x", "projected": {"sources": [{"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}]}}],
        "containers": [{"name": "a", "image": "x", "stdin": true, "tty": true, "volumeMounts": [{"name": "kube-api-access-x", "mountPath": "/var/run/t"}]}]}})
    .to_string();
    let ended = record.replacen("{\"apiVersion\"", "{\"ended\":3,\"apiVersion\"", 1);
    let rich = rich.to_string();
    [
        joined(&["\u{7f}", plain, "", "", "", object, &image, passwd, group]),
        joined(&["\u{7f}", &rich, file, "", "", object, &image, passwd, group]),
        joined(&["\u{7f}", "", file, &record, &copy, object, &image, "", ""]),
        joined(&["\u{7f}", &rich, "", &ended, &copy, never, "{}", "", ""]),
        joined(&["\u{3f}", &token, "", "u-1\n{}", "0\n[]", never, "", "", ""]),
        joined(&["\u{0}", plain, "kind: Pod", "u-9\n{", "", "", "", "", ""]),
    ]
    .to_vec()
}

/// The records that a node writes for this pod and for the object that it refers to.
fn written_for(pod: &Value, object: &str) -> (String, String) {
    let mut world = World::of(&Given { pod: Some(pod.clone()), ..Given::of(object.as_bytes()) });
    world.live(true);
    let of = |wanted: fn(&DesiredFile) -> bool| {
        let (file, content) =
            world.records.iter().find(|(file, _)| wanted(file)).expect("it is written down");
        let name = file.path();
        let name = name.rsplit('/').next().expect("it has a name").trim_end_matches(".json");
        format!("{name}\n{}", String::from_utf8_lossy(content))
    };
    (of(|file| matches!(file, DesiredFile::Pod(_))), of(|file| matches!(file, DesiredFile::Object(_))))
}

/// The parts of an input.
#[derive(Clone, Default)]
struct Given {
    choices: u8,
    pod: Option<Value>,
    file: Option<Vec<u8>>,
    found: Vec<(DesiredFile, Vec<u8>)>,
    object: Option<Value>,
    image: ImageConfig,
    passwd: String,
    group: String,
}

impl Given {
    fn of(object: &[u8]) -> Self {
        Self { choices: 0x7f, object: serde_json::from_slice(object).ok(), ..Self::default() }
    }
}

fn run(data: &[u8]) {
    let [choices, pod, file, record, copy, object, image, passwd, group] = sections::<9>(data);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let on_disk = |folder: &str, section: &[u8]| {
        let at = section.iter().position(|byte| *byte == b'\n')?;
        let file = DesiredFile::from_path(&format!("pods/{folder}/{}.json", text(&section[..at])))?;
        Some((file, section[at + 1..].to_vec()))
    };
    let mut given = Given {
        choices: choices.first().copied().unwrap_or_default(),
        pod: serde_json::from_slice(pod).ok(),
        file: (!file.is_empty()).then(|| file.to_vec()),
        found: on_disk("desired", record).into_iter().chain(on_disk("objects", copy)).collect(),
        // the image's config has no layers here: its settings of processes count
        image: Config::parse(image, 0).map(|config| config.image).unwrap_or_default(),
        passwd: text(passwd),
        group: text(group),
        ..Given::of(object)
    };
    live_and_die(&given);
    if let Some(pod) = given.pod.as_mut().filter(|pod| pod["spec"].is_object()) {
        pod["spec"]["fieldOfTomorrow"] = json!(1);
        refuses_unknown(&given);
    }
}

/// A first agent, its successor, and the next boot without an API server.
fn live_and_die(given: &Given) {
    let mut world = World::of(given);
    world.live(true);
    let running = world.running();
    let (orders, sandboxes) = (world.orders.clone(), world.prepared.clone());
    world.judge_report();

    world.restart();
    world.live(false);
    world.judge_report();
    for key in &running {
        assert!(world.running().contains(key), "a restart of the agent ended {key}");
    }
    assert!(world.created.iter().all(|key| !running.contains(key)), "what runs is made again");

    world.cut();
    world.live(false);
    world.judge_report();
    for (key, before) in orders.iter().filter(|(key, _)| running.contains(*key) && world.comes_back(key)) {
        let is_it =
            |other: &&ContainerOrder| other.key.pod == key.pod && other.key.container == key.container;
        let after = world.orders.values().find(is_it);
        let after = after.unwrap_or_else(|| panic!("{key} ran, and after a power cut it does not"));
        let same = ContainerOrder { key: before.key.clone(), ..after.clone() };
        assert_eq!(&same, before, "after a power cut it is made otherwise");
        let (before, after) = (&sandboxes[&key.pod], &world.prepared[&key.pod]);
        assert_eq!(after, before, "after a power cut its pod is made otherwise");
    }
}

fn refuses_unknown(given: &Given) {
    let alone = Given { file: None, found: Vec::new(), ..given.clone() };
    let mut world = World::of(&alone);
    world.live(true);
    assert!(world.created.is_empty(), "a pod with a field that nobody knows runs");
}

struct World {
    given: Given,
    pods: Pods,
    secs: u64,
    /// The API server answers.
    is_online: bool,
    records: BTreeMap<DesiredFile, Vec<u8>>,
    /// Files that an agent wrote, and the input did not.
    written: BTreeSet<DesiredFile>,
    api: BTreeMap<String, Value>,
    /// Pods that the API server has not bound, by UID.
    others: BTreeMap<String, Value>,
    prepared: BTreeMap<PodUid, PodSandbox>,
    runs: BTreeMap<ContainerKey, ContainerState>,
    orders: BTreeMap<ContainerKey, ContainerOrder>,
    /// The image of each run, as ordered.
    made: BTreeMap<ContainerKey, (String, String)>,
    /// Created by this agent.
    created: Vec<ContainerKey>,
    /// Pods with a token, which must not be on any disk.
    with_tokens: BTreeSet<String>,
    complaints: Vec<String>,
}

impl World {
    fn of(given: &Given) -> Self {
        let api = given.pod.iter().map(|pod| ("the one".to_owned(), pod.clone())).collect();
        Self {
            given: given.clone(),
            pods: Pods::new(NODE),
            secs: 1,
            is_online: true,
            records: given.found.iter().cloned().collect(),
            written: BTreeSet::new(),
            api,
            others: BTreeMap::new(),
            prepared: BTreeMap::new(),
            runs: BTreeMap::new(),
            orders: BTreeMap::new(),
            made: BTreeMap::new(),
            created: Vec::new(),
            with_tokens: BTreeSet::new(),
            complaints: Vec::new(),
        }
    }

    fn has(&self, bit: u8) -> bool {
        self.given.choices & bit != 0
    }

    fn facts(&self) -> NodeFacts {
        let devices = SortedMap::from([("gps".to_owned(), vec!["/dev/null".to_owned()])]);
        let network = match self.has(1) {
            true => PodNetworks::Ready("edge".into()),
            false => PodNetworks::NotReady("no plugin".into()),
        };
        NodeFacts {
            name: NODE.into(),
            labels: BTreeMap::from([("zone".to_owned(), "a".to_owned())]),
            addresses: vec!["192.0.2.7".into()],
            cpu_milli: 4000,
            memory_bytes: 1 << 30,
            storage_bytes: self.has(2).then_some(1 << 30),
            pods: 10,
            network,
            has_cluster_dns: self.has(4),
            api_server: self.has(8).then(|| ApiServer { host: "192.0.2.1".into(), port: 6443 }),
            has_apparmor: self.has(16),
            has_selinux: !self.has(32),
            devices: if self.has(64) { devices } else { SortedMap::new() },
            filters_calls: self.has(128),
            ..NodeFacts::default()
        }
    }

    fn now(&self) -> Now {
        let secs = 1_790_000_000 + i64::try_from(self.secs).expect("small");
        Now { mono: Duration::from_secs(self.secs), wall: Timestamp::from_micros(secs * 1_000_000) }
    }

    /// The agent ends, and another one finds its containers and records.
    fn restart(&mut self) {
        self.pods = Pods::new(NODE);
        self.created.clear();
    }

    /// A power cut: only the disk remains.
    fn cut(&mut self) {
        self.restart();
        self.runs.clear();
        self.prepared.clear();
        self.orders.clear();
    }

    fn running(&self) -> BTreeSet<ContainerKey> {
        let runs = self.runs.iter().filter(|(_, state)| matches!(state, ContainerState::Running { .. }));
        runs.map(|(key, _)| key.clone()).collect()
    }

    /// Whether the disk is enough to run it again: it needs no token, and no object that may not be on a
    /// disk.
    fn comes_back(&self, key: &ContainerKey) -> bool {
        let uid = key.pod.as_str();
        let of_api = self.api.values().find(|pod| pod["metadata"]["uid"] == uid);
        let policy = of_api.map(|pod| &pod["spec"]["restartPolicy"]);
        let is_always = policy.is_some_and(|policy| policy.is_null() || policy == "Always");
        let object = self.given.object.as_ref();
        let is_kept = object.is_none_or(|it| it["metadata"]["annotations"]["kedge.dev/offline"].is_null());
        let has_deadline = of_api.is_some_and(|pod| !pod["spec"]["activeDeadlineSeconds"].is_null());
        is_always && is_kept && !has_deadline && !self.with_tokens.contains(uid)
    }

    /// The life of an agent: it starts, gets its events, and all its orders are carried out.
    fn live(&mut self, is_online: bool) {
        self.is_online = is_online;
        let found = self.records.clone().into_iter();
        let found = found.map(|(file, content)| DesiredFound { file, content: Ok(content) }).collect();
        let containers = self.runs.clone();
        let containers = containers.into_iter().map(|(key, state)| self.observation(key, state)).collect();
        let pods = self.prepared.values().map(found_of).collect();
        let file = self.given.file.clone();
        let files = file.map(|content| StaticFile { path: "/etc/p/a.yaml".into(), content: Ok(content) });
        let mut events = VecDeque::from([
            PodEvent::Held(false),
            PodEvent::Node(Box::new(self.facts())),
            PodEvent::DesiredRead(Ok(found)),
            PodEvent::Inventory(Inventory { pods, containers, ..Inventory::default() }),
            PodEvent::StaticPods(Ok(files.into_iter().collect())),
        ]);
        if is_online {
            let pods = self.api.values().cloned().collect();
            events.push_back(PodEvent::PodsListed { node_uid: NODE_UID.into(), pods });
        }
        let (mut orders, mut waits) = (0, 0);
        loop {
            while let Some(event) = events.pop_front() {
                let mut actions = Vec::new();
                self.pods.handle(self.now(), event, &mut actions);
                orders += actions.len();
                assert!(orders < MOST_ORDERS, "it does not come to rest: {actions:?}");
                for action in actions {
                    events.extend(self.perform(action));
                }
            }
            let due = self.pods.next_deadline().map(|due| due.as_secs() + 1);
            // deadlines more than five minutes ahead do not belong to a start
            match due.filter(|due| *due <= self.secs + 300 && waits < MOST_WAITS) {
                Some(due) => self.secs = self.secs.max(due),
                None => return,
            }
            waits += 1;
            events.push_back(PodEvent::Tick);
        }
    }

    fn perform(&mut self, action: PodAction) -> Option<PodEvent> {
        Some(match action {
            PodAction::PreparePod(pod) => {
                judge_sandbox(&pod);
                let (uid, network) = (pod.uid.clone(), network_of(&pod));
                self.prepared.insert(uid.clone(), *pod);
                PodEvent::PodPrepared { pod: uid, network }
            }
            PodAction::UpdateVolumes { pod, volumes } => {
                volumes.iter().for_each(judge_volume);
                PodEvent::VolumesUpdated { pod }
            }
            PodAction::PullImage(order) => {
                let (id, reference) = ("sha256:1".to_owned(), order.image);
                let config = self.given.image.clone();
                let image = Image { id, reference, config, size_bytes: 0, pulled: None };
                PodEvent::ImageReady { pod: order.pod, container: order.container, image }
            }
            PodAction::CreateContainer(order) => {
                self.judge_order(&order);
                let key = order.key.clone();
                self.created.push(key.clone());
                let names = (order.image_name.clone(), order.image.reference.clone());
                self.made.insert(key.clone(), names);
                self.orders.insert(key.clone(), *order);
                self.run(key, ContainerState::Created)
            }
            PodAction::StartContainer(key) => {
                // an init container with such a name finishes at once
                let state = match key.container.starts_with('i') {
                    true => ContainerState::Exited(self.exit(0)),
                    false => ContainerState::Running { pid: 7, started: self.now().wall },
                };
                self.run(key, state)
            }
            PodAction::StopContainer { container, .. } => {
                let exit = self.exit(143);
                self.run(container, ContainerState::Exited(exit))
            }
            PodAction::RemoveContainer(key) => {
                self.runs.remove(&key);
                PodEvent::ContainerRemoved(key)
            }
            PodAction::RemovePod { pod, .. } => {
                self.prepared.remove(&pod);
                PodEvent::PodRemoved { pod }
            }
            PodAction::RunProbe(order) => {
                PodEvent::Probed { probe: order.key, outcome: ProbeOutcome::Passed }
            }
            PodAction::RunHook(order) => {
                PodEvent::HookEnded { container: order.container, kind: order.kind, done: Ok(()) }
            }
            PodAction::MeasurePods { measure, .. } => {
                PodEvent::PodsMeasured { measure, usages: Vec::new(), took: Duration::from_millis(1) }
            }
            PodAction::SaveDesired { file, content } => self.save(file, content),
            PodAction::ReadObject(name) => {
                let read = match &self.given.object {
                    _ if !self.is_online => ObjectRead::Failed("no answer".into()),
                    Some(object) => ObjectRead::Found(object.clone()),
                    None => ObjectRead::Missing,
                };
                PodEvent::ObjectRead { name, read }
            }
            PodAction::RequestToken(name) => {
                self.with_tokens.insert(name.pod.uid.clone());
                let life = Duration::from_secs(name.expiration_secs);
                let read = match self.is_online {
                    true => TokenRead::Issued { token: "t".into(), life },
                    false => TokenRead::Failed("no answer".into()),
                };
                PodEvent::TokenRead { name, read }
            }
            PodAction::PatchPodStatus { pod, patch } => {
                judge_patch(&patch);
                let answer = match self.is_online {
                    true => Answer::Accepted(Some(self.patched(&pod.uid, &patch))),
                    false => Answer::Failed("no answer".into()),
                };
                PodEvent::Answered { request: PodRequest::PatchStatus(pod), answer }
            }
            PodAction::DeletePod(pod) => {
                let answer = Answer::Accepted(None);
                PodEvent::Answered { request: PodRequest::Delete(pod), answer }
            }
            PodAction::CreateMirrorPod { namespace, name, pod } => {
                assert_eq!(
                    (&pod["metadata"]["namespace"], &pod["metadata"]["name"]),
                    (&json!(namespace), &json!(name))
                );
                let request = PodRequest::CreateMirror { namespace, name };
                PodEvent::Answered { request, answer: Answer::Accepted(None) }
            }
            PodAction::RecordEvent(news) => return self.said(news.message),
            PodAction::WarnOfNode { message, .. } => return self.said(message),
            PodAction::Log(_, text) => return self.said(text),
            _ => return None,
        })
    }

    /// A pod in the API server after a patch of its status.
    fn patched(&mut self, uid: &str, patch: &Value) -> Value {
        let metadata = &patch["metadata"];
        let new = || json!({"metadata": metadata, "status": {}});
        let bound = self.api.values_mut().find(|pod| pod["metadata"]["uid"] == uid);
        let pod = match bound {
            Some(pod) => pod,
            None => self.others.entry(uid.to_owned()).or_insert_with(new),
        };
        if !pod["status"].is_object() {
            pod["status"] = json!({});
        }
        merge(&mut pod["status"], &patch["status"]);
        pod.clone()
    }

    fn said(&mut self, text: String) -> Option<PodEvent> {
        assert!(!text.is_empty() && text.len() <= TEXT_BYTES, "{} bytes: {text}", text.len());
        for file in &self.written {
            let path = format!("{} cannot be used", file.path());
            assert!(!text.starts_with(&path), "what an agent wrote the next one cannot read: {text}");
        }
        self.complaints.push(text);
        None
    }

    fn save(&mut self, file: DesiredFile, content: Option<Vec<u8>>) -> PodEvent {
        match content {
            Some(content) => {
                let is_secret = matches!(file, DesiredFile::Object(_)) && {
                    let copy: Value = serde_json::from_slice(&content).expect("it writes JSON");
                    copy["object"]["kind"] == "Secret"
                };
                let object = self.given.object.as_ref().filter(|_| is_secret && self.is_online);
                let is_kept =
                    object.is_none_or(|it| it["metadata"]["annotations"]["kedge.dev/offline"] != "never");
                assert!(is_kept, "a Secret that no disk may hold is written down");
                self.records.insert(file.clone(), content);
                self.written.insert(file.clone());
            }
            None => {
                self.records.remove(&file);
            }
        }
        PodEvent::DesiredSaved { file, done: Ok(()) }
    }

    fn run(&mut self, key: ContainerKey, state: ContainerState) -> PodEvent {
        self.runs.insert(key.clone(), state.clone());
        PodEvent::Observed(self.observation(key, state))
    }

    fn observation(&self, container: ContainerKey, state: ContainerState) -> Observation {
        let order = self.made.get(&container).cloned().unwrap_or_default();
        let (image_name, image_reference) = order;
        Observation { container, state, image_name, image_reference }
    }

    fn exit(&self, code: i32) -> Exit {
        let finished = Some(self.now().wall);
        Exit { code, signal: None, oom_killed: false, started: None, finished, message: String::new() }
    }

    /// An order is complete, and its settings equal those of the spec.
    fn judge_order(&self, order: &ContainerOrder) {
        let sandbox = self.prepared.get(&order.key.pod).expect("a container comes after its pod");
        assert!(!order.argv.is_empty(), "there is nothing to run");
        let names: BTreeSet<&str> = order.env.iter().map(|(name, _)| name.as_str()).collect();
        assert!(
            names.len() == order.env.len()
                && names.iter().all(|name| !name.is_empty() && !name.contains('='))
        );
        judge_name(&order.key.container);
        for mount in &order.mounts {
            assert!(sandbox.volumes.iter().any(|volume| volume.name == mount.volume), "{mount:?}");
            assert!(mount.path.starts_with('/'), "{mount:?}");
            judge_relative(&mount.sub_path);
        }
        if let kedge_core::pods::Seccomp::Localhost(path) = &order.security.seccomp {
            judge_relative(path);
        }
        let machine = Machine {
            pods_group: "/kedgepods".into(),
            has_unified_groups: self.has(2),
            memory_bytes: 1 << 30,
            least_oom_score: 0,
        };
        let group = container_group(&machine.pods_group, order.qos, &order.key);
        assert!(
            group.starts_with("/kedgepods/")
                && !Path::new(&group).components().any(|it| it == Component::ParentDir)
        );
        let shared =
            Shared { hostname: sandbox.hostname.clone(), host_pid: sandbox.host_pid, ..Shared::default() };
        let granted = Granted {
            profile: Some(json!({})),
            message: Some("/run/message".into()),
            volumes: order
                .image
                .config
                .places()
                .unwrap_or_default()
                .into_iter()
                .map(|it| (it.clone(), it))
                .collect(),
            ..Granted::default()
        };
        let user =
            match user_of(&order.security, &order.image.config.user, &self.given.passwd, &self.given.group) {
                Ok(user) => user,
                Err(why) => return judge_text(&why),
            };
        let place = |mount: &kedge_core::pods::Mount| Some(format!("/volumes/{}", mount.volume));
        let bytes = config(order, &user, &shared, &machine, &granted, &place).expect("the order is complete");
        let config: Value = serde_json::from_slice(&bytes).expect("it is JSON");
        assert_eq!(config["process"]["args"], json!(order.argv));
        assert_eq!(config["process"]["user"]["uid"], json!(user.uid));
        assert_eq!(config["process"]["noNewPrivileges"], json!(order.security.no_new_privileges));
        let mounts = config["mounts"].as_array().expect("it has some");
        for mount in &order.mounts {
            let is_it = |it: &&Value| it["destination"] == mount.path.as_str();
            let found = mounts.iter().rfind(is_it).unwrap_or_else(|| panic!("{mount:?} is not mounted"));
            // of several mounts at one path only the last can be seen
            let last = order.mounts.iter().rfind(|it| it.path == mount.path).expect("it is one");
            let mode = if last.read_only { "ro" } else { "rw" };
            let is_message = order.termination_message.path == mount.path;
            assert!(
                is_message || found["options"].as_array().is_some_and(|all| all.contains(&json!(mode))),
                "{found}"
            );
        }
        let is_hidden = config["linux"]["maskedPaths"].as_array().is_some_and(|paths| !paths.is_empty());
        assert_eq!(is_hidden, !order.security.is_privileged);
    }

    /// Each pod runs, or its report has a reason why not.
    fn judge_report(&self) {
        for pod in self.pods.report() {
            assert!(pod.rejected.as_ref().is_none_or(|why| !why.is_empty()));
            for container in &pod.containers {
                let is_told =
                    container.state != "Waiting" || container.reason.is_some() || pod.rejected.is_some();
                // without answers it waits for the API server, which the node reports itself
                let is_asked_for = pod.is_ending || !self.is_online;
                assert!(is_told || is_asked_for, "{container:?} waits for no reason in {pod:?}");
            }
        }
        let known = self.pods.report().len();
        assert!(
            known > 0 || self.api.is_empty() || !self.is_online || !self.complaints.is_empty(),
            "a pod is passed over"
        );
    }
}

/// Merges as a strategic merge patch of a status does.
fn merge(old: &mut Value, patch: &Value) {
    let Some(fields) = old.as_object_mut() else { return };
    for (key, value) in patch.as_object().into_iter().flatten() {
        match (key.as_str(), value) {
            (_, Value::Null) => _ = fields.remove(key),
            ("conditions", Value::Array(conditions)) => {
                let list = fields.entry(key).or_insert_with(|| json!([]));
                if !list.is_array() {
                    *list = json!([]);
                }
                let list = list.as_array_mut().expect("it is one");
                for condition in conditions {
                    match list.iter_mut().find(|other| other["type"] == condition["type"]) {
                        Some(there) => merge(there, condition),
                        None => list.push(condition.clone()),
                    }
                }
            }
            (_, Value::Array(items)) => {
                let items = items.iter().filter(|item| item.get("$patch").is_none());
                fields.insert(key.clone(), items.cloned().collect());
            }
            _ => _ = fields.insert(key.clone(), value.clone()),
        }
    }
}

fn network_of(pod: &PodSandbox) -> PodNetwork {
    let addresses = if pod.host_network { Vec::new() } else { vec!["10.1.0.2".into(), "fd00::2".into()] };
    PodNetwork { addresses }
}

fn found_of(pod: &PodSandbox) -> PodFound {
    PodFound {
        uid: pod.uid.clone(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        node_uid: pod.node_uid.clone(),
        network: Some(network_of(pod)),
    }
}

fn judge_sandbox(pod: &PodSandbox) {
    pod.hostname.split('.').for_each(judge_name);
    judge_name(&pod.namespace);
    let names: BTreeSet<&str> = pod.volumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(names.len(), pod.volumes.len(), "two volumes of one name");
    pod.volumes.iter().for_each(judge_volume);
    let addresses = network_of(pod).addresses;
    let _ = hosts(None, &addresses, &pod.hostname, &pod.host_aliases);
    let text = resolv_conf(&pod.dns, &pod.namespace, pod.host_network, &Resolver::default());
    assert!(pod.dns.nameservers.iter().all(|it| text.contains(it.as_str())));
}

fn judge_volume(volume: &Volume) {
    judge_name(&volume.name);
    match &volume.source {
        VolumeSource::Files { files, .. } => {
            let mut seen = BTreeSet::new();
            for file in files {
                judge_relative(&file.path);
                assert!(!file.path.is_empty() && !file.path.starts_with(".."), "{}", file.path);
                assert!(file.mode <= 0o777, "{:o}", file.mode);
                assert!(seen.insert(&file.path), "{} is there twice", file.path);
            }
        }
        VolumeSource::HostPath { path, .. } => {
            assert!(!Path::new(path).components().any(|it| it == Component::ParentDir), "{path}");
        }
        VolumeSource::EmptyDir { .. } | VolumeSource::Image { .. } => {}
    }
}

/// Of a directory, a host.
fn judge_name(name: &str) {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    assert!((1..=63).contains(&name.len()) && name.bytes().all(is_plain), "{name:?}");
}

fn judge_relative(path: &str) {
    let leads_out = |component: Component<'_>| !matches!(component, Component::Normal(_) | Component::CurDir);
    assert!(!Path::new(path).components().any(leads_out), "{path:?} leads out");
}

fn judge_patch(patch: &Value) {
    assert!(patch["metadata"]["uid"].is_string(), "{patch}");
    let phase = patch["status"]["phase"].as_str();
    let is_phase = |phase| ["Pending", "Running", "Succeeded", "Failed", "Unknown"].contains(&phase);
    assert!(phase.is_none_or(is_phase), "{phase:?}");
    let text = patch.to_string();
    assert!(text.len() <= 1 << 20, "a status of {} bytes", text.len());
}

fn judge_text(text: &str) {
    assert!(!text.is_empty() && text.len() <= TEXT_BYTES, "{} bytes: {text}", text.len());
}
