//! A node for tests: its board, its disk and its API server perform every order at once, unless a test
//! prevents it.

use crate::answer::{Answer, Now};
use crate::pods::{
    Command, ContainerKey, ContainerState, DesiredFile, DesiredFound, Exit, Failure, FailureReason, Image,
    ImageConfig, Inventory, NodeFacts, Observation, PodAction, PodEvent, PodFound, PodNetwork, PodNetworks,
    PodRef, PodRequest, PodUid, Pods,
};
use kedge_api::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub(crate) struct Node {
    pub(crate) pods: Pods,
    pub(crate) secs: u64,
    /// Wall time at second 0.
    pub(crate) epoch: i64,
    /// Every order so far, in order.
    pub(crate) seen: Vec<PodAction>,
    pub(crate) records: BTreeMap<DesiredFile, Vec<u8>>,
    objects: BTreeMap<String, Value>,
    pub(crate) prepared: BTreeMap<PodUid, PodFound>,
    pub(crate) runs: BTreeMap<ContainerKey, ContainerState>,
    pub(crate) disk_is_full: bool,
    /// The labels of the Node on the server, and whether it is readable; the agent knows no labels before.
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) node_is_silent: bool,
    /// Writes get no answer.
    pub(crate) disk_hangs: bool,
    /// Why making a volume fails, if it does.
    pub(crate) fails_volumes: Option<String>,
    /// No pod gets a network.
    pub(crate) fails_networks: bool,
    /// No container starts.
    pub(crate) fails_starts: bool,
    /// Containers do not end.
    pub(crate) is_deaf: bool,
    /// Removing logs stays unfinished until a test ends it.
    pub(crate) keeps_logs: bool,
    /// The same for all files of a pod.
    pub(crate) keeps_files: bool,
    /// The API server answers each status with this HTTP status.
    pub(crate) refuses_statuses: Option<u16>,
    pub(crate) patches: Patches,
    /// A patch that arrives just before the next one.
    late: Option<(PodRef, Value)>,
    version: u64,
}

/// The fate of patches of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patches {
    Answered,
    /// The server accepts them, but the answers are lost; a watch event may show the result before the loss
    /// is noticed.
    Unheard {
        are_shown: bool,
    },
    /// They do not arrive.
    Lost,
    /// They arrive late, after the agent stopped waiting for the answer.
    Late,
}

impl Node {
    pub(crate) fn new() -> Self {
        let mut node = Self {
            pods: Pods::new("edge"),
            secs: 1,
            epoch: 1_800_000_000,
            seen: vec![],
            records: BTreeMap::new(),
            objects: BTreeMap::new(),
            prepared: BTreeMap::new(),
            runs: BTreeMap::new(),
            disk_is_full: false,
            labels: BTreeMap::new(),
            node_is_silent: false,
            disk_hangs: false,
            fails_volumes: None,
            fails_networks: false,
            fails_starts: false,
            is_deaf: false,
            keeps_logs: false,
            keeps_files: false,
            refuses_statuses: None,
            patches: Patches::Answered,
            late: None,
            version: 1,
        };
        node.start();
        node
    }

    /// Starts an agent, which finds the present state.
    pub(crate) fn start(&mut self) {
        self.pods = Pods::new("edge");
        let found = self.records.clone().into_iter();
        let found = found.map(|(file, content)| DesiredFound { file, content: Ok(content) }).collect();
        let runs = self.runs.iter();
        let containers = runs.map(|(key, state)| observation(key.clone(), state.clone())).collect();
        let pods = self.prepared.values().cloned().collect();
        let node_uid = "n".to_owned();
        let objects = self.objects.values().cloned().collect();
        for event in [
            PodEvent::Held(false),
            PodEvent::Node(Box::new(self.facts())),
            PodEvent::DesiredRead(Ok(found)),
            PodEvent::Inventory(Inventory { pods, containers, ..Inventory::default() }),
            PodEvent::StaticPods(Ok(vec![])),
            PodEvent::PodsListed { node_uid, pods: objects },
        ] {
            self.tell(event);
        }
    }

    /// Boots the machine.
    pub(crate) fn boot(&mut self) {
        self.runs.clear();
        self.prepared.clear();
        self.start();
    }

    pub(crate) fn facts(&self) -> NodeFacts {
        NodeFacts {
            name: "edge".into(),
            cpu_milli: 4000,
            memory_bytes: 1 << 30,
            pods: 10,
            network: PodNetworks::Ready("edge".into()),
            ..NodeFacts::default()
        }
    }

    /// Binds a pod to the node; its UID is its name.
    pub(crate) fn bind(&mut self, name: &str, mut spec: Value) {
        if spec["containers"].is_null() {
            spec["containers"] = json!([{"name": "a", "image": "x:1"}]);
        }
        self.see(json!({"metadata": {"name": name, "namespace": "default", "uid": name, "generation": 1},
            "spec": spec, "status": {"phase": "Pending"}}));
    }

    /// Shows a pod that is new or replaces another.
    pub(crate) fn see(&mut self, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let name = object["metadata"]["name"].as_str().expect("it has one").to_owned();
        self.objects.insert(name, object.clone());
        self.tell(PodEvent::PodSeen(object));
    }

    pub(crate) fn status(&self, name: &str) -> &Value {
        &self.objects[name]["status"]
    }

    pub(crate) fn condition(&self, name: &str, kind: &str) -> Value {
        let conditions = self.status(name)["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
    }

    pub(crate) fn runs(&self, name: &str) -> bool {
        let mut runs = self.runs.iter().filter(|(key, _)| key.pod.as_str() == name);
        runs.any(|(_, state)| matches!(state, ContainerState::Running { .. }))
    }

    /// Lets this many seconds pass, second by second.
    pub(crate) fn wait(&mut self, secs: u64) {
        for _ in 0..secs {
            self.secs += 1;
            self.tell(PodEvent::Tick);
        }
    }

    fn now(&self) -> Now {
        let secs = self.epoch + i64::try_from(self.secs).expect("small");
        Now {
            mono: std::time::Duration::from_secs(self.secs),
            wall: Timestamp::from_micros(secs * 1_000_000),
        }
    }

    /// Hands the event to the pods, and performs the actions that follow.
    pub(crate) fn tell(&mut self, event: PodEvent) {
        let mut actions = vec![];
        self.pods.handle(self.now(), event, &mut actions);
        for action in actions {
            self.seen.push(action.clone());
            if let Some(answer) = self.perform(action) {
                self.tell(answer);
            }
        }
    }

    fn perform(&mut self, action: PodAction) -> Option<PodEvent> {
        Some(match action {
            PodAction::PreparePod(pod) if self.fails_volumes.is_some() => {
                let message = self.fails_volumes.clone().unwrap_or_default();
                let failure = Failure { reason: FailureReason::Volume, message };
                PodEvent::Failed { command: Command::PreparePod(pod.uid), failure }
            }
            PodAction::PreparePod(pod) if self.fails_networks => {
                let failure = Failure { reason: FailureReason::Network, message: "it fails".into() };
                PodEvent::Failed { command: Command::PreparePod(pod.uid), failure }
            }
            PodAction::PreparePod(pod) => {
                let network = PodNetwork { addresses: vec!["10.1.0.2".into()] };
                let found = PodFound {
                    uid: pod.uid.clone(),
                    namespace: pod.namespace,
                    name: pod.name,
                    node_uid: pod.node_uid,
                    network: Some(network.clone()),
                };
                self.prepared.insert(pod.uid.clone(), found);
                PodEvent::PodPrepared { pod: pod.uid, network }
            }
            PodAction::PullImage(order) => {
                let config = ImageConfig { cmd: vec!["/run".into()], ..ImageConfig::default() };
                let image = Image { config, ..Image::default() };
                PodEvent::ImageReady { pod: order.pod, container: order.container, image }
            }
            PodAction::CreateContainer(order) if !self.prepared.contains_key(&order.key.pod) => {
                let failure = Failure { reason: FailureReason::Unprepared, message: "it is gone".into() };
                PodEvent::Failed { command: Command::CreateContainer(order.key), failure }
            }
            PodAction::CreateContainer(order) => self.run(order.key, ContainerState::Created),
            PodAction::StartContainer(key) if self.fails_starts => {
                let failure = Failure { reason: FailureReason::Other, message: "it fails".into() };
                PodEvent::Failed { command: Command::StartContainer(key), failure }
            }
            PodAction::StartContainer(key) => {
                let started = self.now().wall;
                self.run(key, ContainerState::Running { pid: 7, started })
            }
            PodAction::StopContainer { .. } if self.is_deaf => return None,
            PodAction::StopContainer { container, .. } => self.end(container, 143),
            PodAction::RemoveContainer(key) => {
                self.runs.remove(&key);
                PodEvent::ContainerRemoved(key)
            }
            PodAction::RemovePod { keep_logs: false, .. } if self.keeps_logs => return None,
            PodAction::RemovePod { .. } if self.keeps_files => return None,
            PodAction::RemovePod { pod, .. } => {
                self.prepared.remove(&pod);
                PodEvent::PodRemoved { pod }
            }
            PodAction::SaveDesired { .. } if self.disk_hangs => return None,
            PodAction::SaveDesired { file, .. } if self.disk_is_full => {
                PodEvent::DesiredSaved { file, done: Err("no space left on device".into()) }
            }
            PodAction::SaveDesired { file, content } => {
                match content {
                    Some(content) => self.records.insert(file.clone(), content),
                    None => self.records.remove(&file),
                };
                PodEvent::DesiredSaved { file, done: Ok(()) }
            }
            PodAction::PatchPodStatus { pod, .. } if self.refuses_statuses.is_some() => {
                let status = self.refuses_statuses.unwrap_or_default();
                let answer = Answer::Refused {
                    status,
                    reason: String::new(),
                    message: String::new(),
                    retry_after: None,
                };
                PodEvent::Answered { request: PodRequest::PatchStatus(pod), answer }
            }
            PodAction::PatchPodStatus { pod, patch } => {
                // a test answers the one of a mirror itself
                self.objects.get(&pod.uid)?;
                if let Some((pod, patch)) = self.late.take() {
                    self.patch(&pod, &patch);
                }
                if self.patches == Patches::Late {
                    self.late = Some((pod, patch));
                    return None;
                }
                let failed = Answer::Failed("the connection broke off".into());
                let mut answer = match self.patches {
                    Patches::Lost => failed.clone(),
                    _ => self.patch(&pod, &patch),
                };
                if let Patches::Unheard { are_shown } = self.patches {
                    answer = failed;
                    if are_shown {
                        self.tell(PodEvent::PodSeen(self.objects[&pod.uid].clone()));
                    }
                }
                PodEvent::Answered { request: PodRequest::PatchStatus(pod), answer }
            }
            PodAction::ReadNode if self.node_is_silent => return None,
            PodAction::ReadNode => {
                let facts = NodeFacts { labels: self.labels.clone(), ..self.facts() };
                self.tell(PodEvent::Node(Box::new(facts)));
                PodEvent::NodeRead
            }
            PodAction::ListPods => {
                PodEvent::PodsListed { node_uid: "n".into(), pods: self.objects.values().cloned().collect() }
            }
            _ => return None,
        })
    }

    /// The server accepts the patch, unless it is for another version.
    fn patch(&mut self, pod: &PodRef, patch: &Value) -> Answer {
        let object = self.objects.get_mut(&pod.uid).expect("it is patched by its UID");
        let (meant, version) =
            (&patch["metadata"]["resourceVersion"], &object["metadata"]["resourceVersion"]);
        if !meant.is_null() && meant != version {
            let (reason, message) = ("Conflict".to_owned(), "it has another version".to_owned());
            return Answer::Refused { status: 409, reason, message, retry_after: None };
        }
        let before = object["status"].clone();
        merge(&mut object["status"], &patch["status"]);
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if let Some(moved) = moved_time(&before, &object["status"]) {
            panic!("{}: {moved}", pod.name);
        }
        Answer::Accepted(Some(object.clone()))
    }

    fn run(&mut self, key: ContainerKey, state: ContainerState) -> PodEvent {
        self.runs.insert(key.clone(), state.clone());
        PodEvent::Observed(observation(key, state))
    }

    /// Ends the running container of this pod, as if by itself.
    pub(crate) fn ends(&mut self, pod: &str, container: &str, code: i32) {
        let is_meant = |key: &&ContainerKey| key.pod.as_str() == pod && key.container == container;
        let key = self.runs.keys().rfind(is_meant).expect("it runs").clone();
        let ended = self.end(key, code);
        self.tell(ended);
    }

    fn end(&mut self, key: ContainerKey, code: i32) -> PodEvent {
        let finished = Some(self.now().wall);
        let exit =
            Exit { code, signal: None, oom_killed: false, started: None, finished, message: String::new() };
        self.run(key, ContainerState::Exited(exit))
    }

    /// Events recorded so far.
    pub(crate) fn news(&self) -> Vec<String> {
        let text = |action: &PodAction| match action {
            PodAction::RecordEvent(news) => Some(format!("{} {}", news.reason, news.message)),
            _ => None,
        };
        self.seen.iter().filter_map(text).collect()
    }

    /// The grace period of each stop so far, in seconds.
    pub(crate) fn stops(&self) -> Vec<(&str, u64)> {
        let stop = |action: &'_ PodAction| match action {
            PodAction::StopContainer { container, grace, .. } => Some((container.clone(), grace.as_secs())),
            _ => None,
        };
        let name = |pod: &PodUid| self.objects.keys().find(|name| *name == pod.as_str()).expect("bound here");
        self.seen.iter().filter_map(stop).map(|(key, grace)| (name(&key.pod).as_str(), grace)).collect()
    }
}

fn observation(container: ContainerKey, state: ContainerState) -> Observation {
    Observation { container, state, image_name: "x:1".into(), image_reference: "x:1".into() }
}

/// A time in the status that changed although its subject did not.
fn moved_time(before: &Value, after: &Value) -> Option<String> {
    if before["startTime"].is_string() && before["startTime"] != after["startTime"] {
        return Some(format!("startTime {}, then {}", before["startTime"], after["startTime"]));
    }
    let conditions = |status: &Value| status["conditions"].as_array().cloned().unwrap_or_default();
    let (before, after) = (conditions(before), conditions(after));
    before.iter().find_map(|was| {
        let is = after.iter().find(|is| is["type"] == was["type"] && is["status"] == was["status"])?;
        (is["lastTransitionTime"] != was["lastTransitionTime"]).then(|| format!("{was}, then {is}"))
    })
}

/// Merges as a strategic merge patch.
fn merge(old: &mut Value, patch: &Value) {
    let fields = old.as_object_mut().expect("it is an object");
    for (key, value) in patch.as_object().into_iter().flatten() {
        match (key.as_str(), value) {
            (_, Value::Null) => _ = fields.remove(key),
            ("conditions", Value::Array(conditions)) => {
                let list = fields.entry(key).or_insert_with(|| json!([]));
                let list = list.as_array_mut().expect("it is a list");
                for condition in conditions {
                    if condition["$patch"] == "delete" {
                        list.retain(|other| other["type"] != condition["type"]);
                        continue;
                    }
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
