//! A pod's status as upstream's node agent composes it: phase, conditions, container states; and the patch
//! that sends it to the API server.
//!
//! Always holds: a condition keeps its `lastTransitionTime` while its status stays, whether or not the server
//! has accepted it yet; conditions of other clients are not changed; a patch has only the changed fields.
//! Leaves to others: the changes of containers (`life`), when a status is sent.

use crate::outbox::json_bytes;
use crate::pods::admission::NOT_SERVED;
use crate::pods::event::Exit;
use crate::pods::keys::PodRef;
use crate::pods::probes::Health;
use crate::pods::resizing;
use crate::pods::spec::{Container, Ephemeral, PodSpec, ReadinessGate, RestartPolicy};
use crate::pods::table::EPHEMERAL;
use kedge_api::Timestamp;
use serde_json::{Map, Value, json};

/// Upstream's reason for an end that was not seen.
const UNSEEN: &str = "ContainerStatusUnknown";

/// A state of a container as a status shows it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Shown {
    Waiting { reason: String, message: String },
    Running { started: Timestamp },
    Terminated(Terminated),
}

/// How a run ended, as a status shows it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Terminated {
    pub(crate) exit_code: i32,
    pub(crate) signal: Option<i32>,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) started: Option<Timestamp>,
    pub(crate) finished: Option<Timestamp>,
    pub(crate) container_id: String,
}

impl Terminated {
    pub(crate) fn by(exit: &Exit, container_id: String) -> Self {
        let reason = match exit {
            Exit { oom_killed: true, .. } => "OOMKilled",
            Exit { code: 0, .. } => "Completed",
            _ => "Error",
        };
        Self {
            exit_code: exit.code,
            signal: exit.signal,
            reason: reason.into(),
            message: exit.message.clone(),
            started: exit.started,
            finished: exit.finished,
            container_id,
        }
    }

    /// The state of a container that ran and whose end was not seen, in upstream's words.
    pub(crate) fn unseen(container_id: String) -> Self {
        Self {
            exit_code: 137,
            signal: None,
            reason: UNSEEN.into(),
            message: "The container could not be located when the pod was terminated".into(),
            started: None,
            finished: None,
            container_id,
        }
    }

    pub(crate) fn is_unseen(&self) -> bool {
        self.reason == UNSEEN
    }

    /// The same for a run that ended according to the runtime, with the reason why its exit is unknown.
    pub(crate) fn lost(container_id: String, why: &str) -> Self {
        let mut end = Self::unseen(container_id);
        if !why.is_empty() {
            end.message = format!("The container was ended: {why}");
        }
        end
    }

    /// Reads it from a status of the API.
    pub(crate) fn read(value: &Value) -> Option<Self> {
        let terminated = value.as_object()?;
        let text = |key: &str| terminated.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let time = |key: &str| Timestamp::parse(terminated.get(key)?.as_str()?).ok();
        let number = |key: &str| i32::try_from(terminated.get(key)?.as_i64()?).ok();
        Some(Self {
            exit_code: number("exitCode").unwrap_or(0),
            signal: number("signal"),
            reason: text("reason"),
            message: text("message"),
            started: time("startedAt"),
            finished: time("finishedAt"),
            container_id: text("containerID"),
        })
    }

    fn json(&self, message_bytes: usize) -> Value {
        let mut json = json!({"exitCode": self.exit_code, "reason": self.reason});
        let message = kedge_api::head_of(&self.message, message_bytes);
        let texts = [("message", message), ("containerID", self.container_id.as_str())];
        for (key, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
            json[key] = json!(text);
        }
        if let Some(signal) = self.signal {
            json["signal"] = json!(signal);
        }
        for (key, time) in [("startedAt", self.started), ("finishedAt", self.finished)] {
            if let Some(time) = time {
                json[key] = json!(time);
            }
        }
        json
    }
}

/// One container, as a status shows it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ContainerView {
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) image_id: String,
    pub(crate) container_id: String,
    pub(crate) restart_count: u32,
    /// Of a running run.
    pub(crate) health: Health,
    pub(crate) state: Shown,
    pub(crate) last: Option<Terminated>,
}

impl ContainerView {
    fn is_running(&self) -> bool {
        matches!(self.state, Shown::Running { .. })
    }

    /// Whether its probes report it as ready; for an init container, whether it has completed.
    fn is_ready(&self, spec: &Container, is_init: bool) -> bool {
        match &self.state {
            Shown::Terminated(end) => is_init && !spec.is_sidecar() && end.exit_code == 0,
            Shown::Running { .. } => self.health.is_ready && (!is_init || spec.is_sidecar()),
            Shown::Waiting { .. } => false,
        }
    }

    fn has_started(&self) -> bool {
        self.is_running() && self.health.is_started
    }

    fn json(&self, spec: &Container, is_init: bool, message_bytes: usize) -> Value {
        let state = match &self.state {
            Shown::Running { started } => json!({"running": {"startedAt": started}}),
            Shown::Terminated(end) => json!({"terminated": end.json(message_bytes)}),
            Shown::Waiting { reason, message } if message.is_empty() => {
                json!({"waiting": {"reason": reason}})
            }
            Shown::Waiting { reason, message } => {
                json!({"waiting": {"reason": reason, "message": kedge_api::excerpt_of(message, MESSAGE_CHARS)}})
            }
        };
        let last = self.last.as_ref().map_or(json!({}), |end| json!({"terminated": end.json(message_bytes)}));
        let mut json = json!({
            "name": self.name, "image": self.image, "imageID": self.image_id, "state": state, "lastState": last,
            "restartCount": self.restart_count, "ready": self.is_ready(spec, is_init), "started": self.has_started(),
        });
        if !self.container_id.is_empty() {
            json["containerID"] = json!(self.container_id);
        }
        json
    }
}

/// The exit code of a container that could not be started, as containerd reports it.
const NEVER_BEGAN: i32 = 128;
/// Most ephemeral containers shown in a status: everyone who may debug a pod may add one after another.
const MOST_EPHEMERAL: usize = 32;
/// Longest message of a waiting container: every watcher of pods gets it.
const MESSAGE_CHARS: usize = 1024;
/// Longest status that is sent. A server that refuses a status for its size (ours: from 64 KiB on) refuses it
/// always: it would show no newer status of the pod, the pod could not be deleted, and each try would cost
/// the node a share of its requests.
const STATUS_BYTES: usize = 48 * 1024;
/// The lengths to which these fields' texts are cut, one after the other, until the status fits; names,
/// reasons and times stay.
const SHORTER: [usize; 4] = [1024, 256, 64, 24];
const CUT: [&str; 3] = ["message", "image", "imageID"];
/// Most bytes of the termination messages of all containers together, for the same reason; upstream's. Each
/// container has an equal part.
const TERMINATION_MESSAGES_BYTES: usize = 12 * 1024;

/// The input of a status.
pub(crate) struct Situation<'a> {
    pub(crate) spec: &'a PodSpec,
    pub(crate) generation: i64,
    /// In the spec's order.
    pub(crate) init: Vec<ContainerView>,
    pub(crate) main: Vec<ContainerView>,
    /// Whether the network and the volumes are ready.
    pub(crate) is_prepared: bool,
    /// Why they are not ready: reason and message.
    pub(crate) hindrance: Option<(&'a str, &'a str)>,
    /// No container runs or will be started any more.
    pub(crate) is_over: bool,
    /// The containers' exits are their results: none is started again, whatever later changes of the spec
    /// say.
    pub(crate) is_finished: bool,
    pub(crate) is_static: bool,
    /// Reason and message if the pod failed, independent of its containers.
    pub(crate) failed: Option<(String, String)>,
    /// Why the node ends it for lack of a resource.
    pub(crate) disruption: Option<&'a str>,
    pub(crate) addresses: &'a [String],
    pub(crate) host_addresses: &'a [String],
    pub(crate) qos: &'static str,
    /// The progress of the images that are pulled ahead, if any were requested.
    pub(crate) ahead: Option<Judged<'static>>,
    /// The API server's spec has other resources than the pod.
    pub(crate) awaits_resize: bool,
    /// The times of the status that was composed before, by [`times_of`]; the server may lack that status.
    /// Null if there was none.
    pub(crate) given: &'a Value,
}

/// The phase: upstream's `getPhase`.
pub(crate) fn phase(situation: &Situation<'_>) -> &'static str {
    if situation.failed.is_some() {
        return "Failed";
    }
    let policy = situation.spec.restart_policy;
    let mut pending_init = 0_usize;
    for (view, spec) in situation.init.iter().zip(&situation.spec.init_containers) {
        let end = match (&view.state, &view.last) {
            // a sidecar does not have to complete; below it counts like a main container
            _ if spec.is_sidecar() => continue,
            (Shown::Terminated(end), _) | (Shown::Waiting { .. }, Some(end)) => Some(end),
            _ => None,
        };
        match end {
            Some(end) if situation.is_finished && end.exit_code != 0 && policy == RestartPolicy::Never => {
                return "Failed";
            }
            Some(_) => {}
            None => pending_init = pending_init.saturating_add(1),
        }
    }
    let sidecars =
        || situation.init.iter().zip(&situation.spec.init_containers).filter(|(_, spec)| spec.is_sidecar());
    let has_initialized = situation.main.iter().any(|view| view.is_running() || view.last.is_some());
    let never_ran = |view: &ContainerView| matches!(view.state, Shown::Waiting { .. }) && view.last.is_none();
    let pending_sidecars = sidecars().filter(|(view, _)| never_ran(view)).count();
    let waiting =
        situation.main.iter().filter(|view| never_ran(view)).count().saturating_add(pending_sidecars);
    let running = situation
        .main
        .iter()
        .filter(|view| view.is_running())
        .count()
        .saturating_add(sidecars().filter(|(view, _)| view.is_running()).count());
    if pending_init > 0 || (pending_sidecars > 0 && !has_initialized) || waiting > 0 {
        return "Pending";
    }
    if running > 0 {
        return "Running";
    }
    let ends: Vec<&Terminated> = situation.main.iter().filter_map(end_of).collect();
    let succeeded = ends.iter().all(|end| end.exit_code == 0);
    let is_restarted = !situation.is_finished || ends.iter().any(|end| restarts_after(policy, end.exit_code));
    match (situation.is_over && !situation.is_static, is_restarted, succeeded) {
        (true, _, true) | (false, false, true) => "Succeeded",
        (true, _, false) | (false, false, false) => "Failed",
        (false, true, _) => "Running",
    }
}

fn end_of(view: &ContainerView) -> Option<&Terminated> {
    match &view.state {
        Shown::Terminated(end) => Some(end),
        Shown::Waiting { .. } => view.last.as_ref(),
        Shown::Running { .. } => None,
    }
}

/// Whether a main container with this exit is started again.
pub(crate) fn restarts_after(policy: RestartPolicy, exit_code: i32) -> bool {
    match policy {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => exit_code != 0,
        RestartPolicy::Never => false,
    }
}

/// The whole status; `old` is the server's.
pub(crate) fn compose(situation: &Situation<'_>, old: &Value, now: Timestamp) -> Value {
    // as upstream: a final phase stays
    let phase = match old["phase"].as_str() {
        Some("Failed") => "Failed",
        Some("Succeeded") => "Succeeded",
        _ => phase(situation),
    };
    let mut status = Map::new();
    let mut set = |key: &str, value: Value| status.insert(key.to_owned(), value);
    set("phase", json!(phase));
    if let Some((reason, message)) = &situation.failed {
        set("reason", json!(reason));
        set("message", json!(kedge_api::excerpt_of(message, MESSAGE_CHARS)));
    } else if old["phase"] == phase && matches!(phase, "Failed" | "Succeeded") {
        // the client that ended the pod gave the reason
        for key in ["reason", "message"] {
            old.get(key).into_iter().for_each(|value| _ = set(key, value.clone()));
        }
    }
    set("conditions", conditions(situation, phase, old, now));
    set("qosClass", json!(situation.qos));
    if situation.generation > 0 {
        set("observedGeneration", json!(situation.generation));
    }
    let began = old.get("startTime").or_else(|| situation.given.get("startTime"));
    set("startTime", began.cloned().unwrap_or_else(|| json!(now)));
    if let Some(first) = situation.host_addresses.first() {
        set("hostIP", json!(first));
        set("hostIPs", json!([{"ip": first}]));
    }
    let own = if situation.spec.host_network && situation.is_prepared {
        &situation.host_addresses[..situation.host_addresses.len().min(1)]
    } else {
        situation.addresses
    };
    if let Some(first) = own.first() {
        set("podIP", json!(first));
        set("podIPs", own.iter().map(|ip| json!({"ip": ip})).collect());
    } else if let (Some(ip), Some(ips)) = (old.get("podIP"), old.get("podIPs")) {
        // a pod that is over keeps its former address
        if situation.is_over {
            set("podIP", ip.clone());
            set("podIPs", ips.clone());
        }
    }
    let message_bytes =
        TERMINATION_MESSAGES_BYTES.checked_div(situation.spec.all_containers().count()).unwrap_or(0);
    let statuses = |views: &[ContainerView], specs: &[Container], is_init| {
        let pairs = views.iter().zip(specs);
        let json = |(view, spec): (&ContainerView, &Container)| {
            let mut json = view.json(spec, is_init, message_bytes);
            if let (true, Some(fields)) = (situation.awaits_resize, json.as_object_mut()) {
                fields.extend(resizing::shown(&spec.resources));
            }
            json
        };
        pairs.map(json).collect::<Value>()
    };
    if !situation.init.is_empty() {
        set("initContainerStatuses", statuses(&situation.init, &situation.spec.init_containers, true));
    }
    set("containerStatuses", statuses(&situation.main, &situation.spec.containers, false));
    if !situation.spec.ephemeral_containers.is_empty() {
        set("ephemeralContainerStatuses", refused(&situation.spec.ephemeral_containers));
    }
    fitting(Value::Object(status))
}

/// Shortens a status to a size that every API server accepts, by cutting texts that users or images chose.
fn fitting(mut status: Value) -> Value {
    for most in SHORTER {
        if json_bytes(&status) <= STATUS_BYTES {
            break;
        }
        shorten(&mut status, most);
    }
    status
}

fn shorten(value: &mut Value, most: usize) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| shorten(item, most)),
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if CUT.contains(&name.as_str()) => {
                        *text = kedge_api::excerpt_of(text, most);
                    }
                    value => shorten(value, most),
                }
            }
        }
        _ => {}
    }
}

/// The statuses of ephemeral containers, which end before they start: `kubectl debug` waits until one runs or
/// ends.
fn refused(containers: &[Ephemeral]) -> Value {
    let one = |container: &Ephemeral| {
        json!({"name": container.name, "image": container.image, "imageID": "", "ready": false, "restartCount": 0, "lastState": {},
            "state": {"terminated": {"exitCode": NEVER_BEGAN, "reason": NOT_SERVED, "message": EPHEMERAL}}})
    };
    containers.iter().take(MOST_EPHEMERAL).map(one).collect()
}

/// Status, reason and message of a condition.
pub(crate) type Judged<'a> = (bool, &'a str, String);

fn conditions(situation: &Situation<'_>, phase: &str, old: &Value, now: Timestamp) -> Value {
    let good: Judged<'_> = (true, "", String::new());
    let initialized = initialized(situation, phase);
    let ready = containers_ready(situation, phase);
    let (reason, message) = situation.hindrance.filter(|_| !situation.is_prepared).unwrap_or_default();
    let prepared = (situation.is_prepared, reason, kedge_api::excerpt_of(message, MESSAGE_CHARS));
    let all = [
        ("PodReadyToStartContainers", prepared),
        ("Initialized", initialized),
        ("Ready", with_gates(situation.spec, &ready, old)),
        ("ContainersReady", ready),
        ("PodScheduled", good),
    ];
    let disrupted = |message: &str| ("DisruptionTarget", (true, "TerminationByKubelet", message.to_owned()));
    let all = all.into_iter().chain(situation.disruption.map(disrupted));
    let ahead = situation.ahead.clone().map(|judged| (kedge_api::IMAGES_PULLED, judged));
    let infeasible = || (resizing::CONDITION, (true, resizing::REASON, resizing::WHY.to_owned()));
    let resize = situation.awaits_resize.then(infeasible);
    let condition = |(kind, (is_true, reason, message)): (&str, Judged<'_>)| {
        let status = if is_true { "True" } else { "False" };
        let since = since(kind, status, old, situation.given).unwrap_or_else(|| json!(now));
        let mut condition = json!({"type": kind, "status": status, "lastTransitionTime": since});
        if !reason.is_empty() {
            condition["reason"] = json!(reason);
        }
        if !message.is_empty() {
            condition["message"] = json!(message);
        }
        if situation.generation > 0 {
            condition["observedGeneration"] = json!(situation.generation);
        }
        condition
    };
    all.chain(ahead).chain(resize).map(condition).collect()
}

/// Since when a condition has this status: by the server's status, else by the one that was composed before.
fn since(kind: &str, status: &str, old: &Value, given: &Value) -> Option<Value> {
    let [there, before] = [old, given].map(|status| condition_of(status, kind));
    let time = |condition: &Value| {
        let time = &condition["lastTransitionTime"];
        (condition["status"] == status && !time.is_null()).then(|| time.clone())
    };
    let instant = |time: &Value| Timestamp::parse(time.as_str().unwrap_or_default()).ok();
    // a change by another client since then is later
    let is_latest =
        |time: &Value| there.is_none_or(|there| instant(&there["lastTransitionTime"]) <= instant(time));
    there.and_then(time).or_else(|| before.and_then(time).filter(is_latest))
}

pub(crate) fn has_condition(status: &Value, kind: &str) -> bool {
    condition_of(status, kind).is_some()
}

fn condition_of<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    status["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// The times of this status, for [`Situation::given`].
pub(crate) fn times_of(status: &Value) -> Value {
    json!({"startTime": status["startTime"], "conditions": status["conditions"]})
}

/// Whether a status has the times of another one, with the same states.
pub(crate) fn has_times(status: &Value, other: &Value) -> bool {
    let has = |condition: &Value| {
        let there = condition["type"].as_str().and_then(|kind| condition_of(status, kind));
        there.is_some_and(|there| {
            ["status", "lastTransitionTime"].iter().all(|key| there[*key] == condition[*key])
        })
    };
    status["startTime"] == other["startTime"] && other["conditions"].as_array().into_iter().flatten().all(has)
}

fn initialized(situation: &Situation<'_>, phase: &str) -> Judged<'static> {
    if phase == "Succeeded" {
        return (true, "PodCompleted", String::new());
    }
    let has_started = situation.main.iter().any(|view| view.is_running() || end_of(view).is_some());
    let pairs = situation.init.iter().zip(&situation.spec.init_containers);
    let is_complete = |view: &ContainerView, spec: &Container| match spec.is_sidecar() {
        true => view.has_started(),
        false => view.is_ready(spec, true),
    };
    let incomplete = pairs.filter(|(view, spec)| !is_complete(view, spec));
    let incomplete: Vec<&str> = incomplete.map(|(view, _)| view.name.as_str()).collect();
    if incomplete.is_empty() || has_started {
        return (true, "", String::new());
    }
    let message = format!("containers with incomplete status: [{}]", incomplete.join(" "));
    (false, "ContainersNotInitialized", message)
}

fn containers_ready(situation: &Situation<'_>, phase: &str) -> Judged<'static> {
    match phase {
        "Succeeded" => return (false, "PodCompleted", String::new()),
        "Failed" => return (false, "PodFailed", String::new()),
        _ => {}
    }
    let sidecars = situation.init.iter().zip(&situation.spec.init_containers);
    let sidecars = sidecars.filter(|(_, spec)| spec.is_sidecar()).map(|pair| (pair, true));
    let main = situation.main.iter().zip(&situation.spec.containers).map(|pair| (pair, false));
    let unready = sidecars.chain(main).filter(|((view, spec), is_init)| !view.is_ready(spec, *is_init));
    let unready: Vec<&str> = unready.map(|((view, _), _)| view.name.as_str()).collect();
    if unready.is_empty() {
        return (true, "", String::new());
    }
    (false, "ContainersNotReady", format!("containers with unready status: [{}]", unready.join(" ")))
}

/// Whether the pod is ready: its containers are, and the conditions of its readiness gates are true. With
/// upstream's text.
fn with_gates(spec: &PodSpec, containers: &Judged<'static>, old: &Value) -> Judged<'static> {
    if !containers.0 {
        return containers.clone();
    }
    let known = old["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let complaint = |gate: &ReadinessGate| {
        let kind = &gate.condition_type;
        match known.iter().find(|condition| condition["type"] == **kind) {
            None => Some(format!("corresponding condition of pod readiness gate {kind:?} does not exist.")),
            Some(condition) if condition["status"] == "True" => None,
            Some(condition) => {
                let status = condition["status"].as_str().unwrap_or_default();
                Some(format!("the status of pod readiness gate {kind:?} is not \"True\", but {status}"))
            }
        }
    };
    let complaints: Vec<String> = spec.readiness_gates.iter().filter_map(complaint).collect();
    if complaints.is_empty() {
        return containers.clone();
    }
    let message = kedge_api::excerpt_of(&complaints.join(", "), MESSAGE_CHARS);
    (false, "ReadinessGatesNotReady", message)
}

/// Fields of a status that a patch of this agent may remove.
const OWNED: &[&str] = &["reason", "message", "podIP", "podIPs"];

/// Conditions that appear and disappear together with the request that they answer.
const ANSWERS: [&str; 2] = [kedge_api::IMAGES_PULLED, resizing::CONDITION];

/// The strategic merge patch from `old` to `new`; `None` if they are equal.
pub(crate) fn patch(pod: &PodRef, old: &Value, new: &Value) -> Option<Value> {
    let mut changes = Map::new();
    for (key, value) in new.as_object()? {
        if key == "conditions" {
            let before = old["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            let conditions = value.as_array().into_iter().flatten();
            let changed = conditions.filter(|condition| !has_same(before, condition));
            let mut changed: Vec<Value> = changed.map(|condition| over(before, condition)).collect();
            let now = value.as_array().map(Vec::as_slice).unwrap_or_default();
            for kind in ANSWERS {
                let answer = json!({"type": kind});
                if of_its_type(before, &answer).is_some() && of_its_type(now, &answer).is_none() {
                    changed.push(json!({"type": kind, "$patch": "delete"}));
                }
            }
            if !changed.is_empty() {
                changes.insert(key.clone(), Value::Array(changed));
            }
        } else if old.get(key) != Some(value) {
            let value =
                if matches!(key.as_str(), "podIPs" | "hostIPs") { replaced(value) } else { value.clone() };
            changes.insert(key.clone(), value);
        }
    }
    for key in OWNED {
        if new.get(key).is_none() && old.get(key).is_some_and(|value| !value.is_null()) {
            changes.insert((*key).to_owned(), Value::Null);
        }
    }
    (!changes.is_empty()).then(|| json!({"metadata": {"uid": pod.uid}, "status": changes}))
}

/// Fields of a condition that belong to this agent.
const OF_CONDITION: &[&str] = &["status", "reason", "message", "lastTransitionTime", "observedGeneration"];

/// Whether the server has this condition; fields that other clients added do not count.
fn has_same(before: &[Value], condition: &Value) -> bool {
    let same = |key: &str, before: &Value| {
        let absent = |value: &Value| value.is_null() || value == "";
        before[key] == condition[key] || (absent(&before[key]) && absent(&condition[key]))
    };
    of_its_type(before, condition).is_some_and(|before| OF_CONDITION.iter().all(|key| same(key, before)))
}

/// The condition as the server should merge it into its own: a field that is left out would stay.
fn over(before: &[Value], condition: &Value) -> Value {
    let mut merged = condition.as_object().cloned().unwrap_or_default();
    for key in OF_CONDITION {
        let is_there = of_its_type(before, condition).is_some_and(|before| !before[*key].is_null());
        if is_there && !merged.contains_key(*key) {
            merged.insert((*key).to_owned(), Value::Null);
        }
    }
    Value::Object(merged)
}

fn of_its_type<'a>(conditions: &'a [Value], condition: &Value) -> Option<&'a Value> {
    conditions.iter().find(|other| other["type"] == condition["type"])
}

/// Makes a strategic merge patch replace a list that it would otherwise merge.
fn replaced(list: &Value) -> Value {
    let items = list.as_array().cloned().unwrap_or_default();
    items.into_iter().chain([json!({"$patch": "replace"})]).collect()
}

/// `old` after the API server accepted `new`.
pub(crate) fn merged(old: &Value, new: &Value) -> Value {
    let mut merged = old.as_object().cloned().unwrap_or_default();
    for key in OWNED {
        merged.remove(*key);
    }
    for (key, value) in new.as_object().into_iter().flatten() {
        if key != "conditions" {
            merged.insert(key.clone(), value.clone());
        }
    }
    let ours = new["conditions"].as_array().cloned().unwrap_or_default();
    let others = old["conditions"].as_array().cloned().unwrap_or_default().into_iter();
    let others = others.filter(|other| ANSWERS.iter().all(|kind| other["type"] != *kind));
    let others = others.filter(|other| ours.iter().all(|own| own["type"] != other["type"]));
    let conditions = others.chain(ours.clone()).collect::<Vec<_>>();
    merged.insert("conditions".into(), Value::Array(conditions));
    Value::Object(merged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_micros(secs * 1_000_000)
    }

    fn view(name: &str, state: Shown, last: Option<i32>) -> ContainerView {
        ContainerView {
            name: name.into(),
            image: "x".into(),
            image_id: String::new(),
            container_id: String::new(),
            restart_count: 0,
            health: Health { is_started: true, is_ready: true },
            state,
            last: last.map(ended),
        }
    }

    fn ended(code: i32) -> Terminated {
        let exit = Exit {
            code,
            signal: None,
            oom_killed: false,
            started: None,
            finished: None,
            message: String::new(),
        };
        Terminated::by(&exit, String::new())
    }

    fn state(word: &str) -> (Shown, Option<i32>) {
        let waiting = || Shown::Waiting { reason: "ContainerCreating".into(), message: String::new() };
        match word {
            "wait" => (waiting(), None),
            "run" => (Shown::Running { started: at(1) }, None),
            "ok" => (Shown::Terminated(ended(0)), None),
            "bad" => (Shown::Terminated(ended(1)), None),
            "loop" => (waiting(), Some(1)),
            "long" => (Shown::Terminated(Terminated { message: "x".repeat(4096), ..ended(1) }), None),
            other => panic!("{other}"),
        }
    }

    /// `i:` is an init container, `s:` a sidecar.
    fn with<T>(policy: &str, words: &str, is_over: bool, run: impl FnOnce(&Situation<'_>) -> T) -> T {
        let (mut init, mut main, mut inits, mut mains) = (vec![], vec![], vec![], vec![]);
        for (index, word) in words.split_whitespace().enumerate() {
            let name = format!("c{index}");
            let (kind, word) = word.split_once(':').unwrap_or(("", word));
            let (state, last) = state(word);
            let mut spec = json!({"name": name});
            if kind == "s" {
                spec["restartPolicy"] = json!("Always");
            }
            let (views, specs) =
                if kind.is_empty() { (&mut main, &mut mains) } else { (&mut init, &mut inits) };
            views.push(view(&name, state, last));
            specs.push(spec);
        }
        let spec = json!({"restartPolicy": policy, "initContainers": inits, "containers": mains});
        let spec = PodSpec::deserialize(spec).unwrap();
        run(&Situation {
            hindrance: None,
            awaits_resize: false,
            spec: &spec,
            generation: 2,
            init,
            main,
            is_prepared: true,
            is_over,
            is_finished: true,
            is_static: false,
            failed: None,
            disruption: None,
            addresses: &["10.1.0.2".into()],
            host_addresses: &["10.0.0.1".into()],
            qos: "BestEffort",
            ahead: None,
            given: &Value::Null,
        })
    }

    #[test]
    fn status_fits_whatever_names_and_messages_its_pod_has() {
        with("Always", &"long ".repeat(64), false, |situation| {
            let spec: Vec<Value> = (0..64).map(|index| json!({"name": format!("c{index}")})).collect();
            let spec = PodSpec::deserialize(json!({"containers": spec})).unwrap();
            let long = |view: &ContainerView| ContainerView {
                name: format!("{}{}", "n".repeat(60), view.name),
                image: "i".repeat(10_000),
                image_id: "d".repeat(400),
                container_id: "kedge://0123".repeat(8),
                ..view.clone()
            };
            let main = situation.main.iter().map(long).collect();
            let (failed, ahead) = (situation.failed.clone(), situation.ahead.clone());
            let situation = Situation { spec: &spec, main, init: vec![], failed, ahead, ..*situation };
            let found = compose(&situation, &json!({}), at(9));
            assert!(json_bytes(&found) <= STATUS_BYTES, "{}", json_bytes(&found));
            let names = found["containerStatuses"]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["name"].as_str().unwrap().len());
            assert!(names.min() >= Some(62), "names are keys of the patch");
        });
        // if all containers are ready, only the gates can keep the pod from being ready
        let gates: Vec<Value> =
            (0..10_000).map(|gate| json!({"conditionType": format!("example.org/{gate}")})).collect();
        let spec = PodSpec::deserialize(json!({"readinessGates": gates})).unwrap();
        let (_, reason, message) = with_gates(&spec, &(true, "", String::new()), &json!({}));
        assert_eq!(reason, "ReadinessGatesNotReady");
        assert!(message.len() <= 2 * MESSAGE_CHARS, "{}", message.len());
    }

    #[test]
    fn ephemeral_container_ends_before_it_begins() {
        with("Always", "run", false, |running| {
            let ephemeral =
                json!({"ephemeralContainers": [{"name": "debugger", "image": "tools:1", "command": ["sh"]}]});
            let ephemeral_containers = PodSpec::deserialize(ephemeral).unwrap().ephemeral_containers;
            let spec = PodSpec { ephemeral_containers, ..running.spec.clone() };
            let (main, init) = (running.main.clone(), vec![]);
            let status = compose(
                &Situation { spec: &spec, main, init, failed: None, ahead: None, ..*running },
                &json!({}),
                at(1),
            );
            assert_eq!(
                (&status["phase"], status["containerStatuses"].as_array().unwrap().len()),
                (&json!("Running"), 1)
            );
            let told = &status["ephemeralContainerStatuses"][0];
            assert_eq!((&told["name"], &told["image"]), (&json!("debugger"), &json!("tools:1")));
            let end = &told["state"]["terminated"];
            assert_eq!((&end["exitCode"], &end["reason"]), (&json!(128), &json!("PodFeatureUnsupported")));
            assert!(
                end["message"].as_str().unwrap().starts_with("ephemeral containers are not served"),
                "{end}"
            );
            let without = compose(running, &json!({}), at(1));
            assert!(without.get("ephemeralContainerStatuses").is_none());
        });
    }

    #[test]
    fn phase_follows_upstream() {
        for (policy, words, is_over, expect) in [
            ("Always", "wait", false, "Pending"),
            ("Always", "run", false, "Running"),
            ("Always", "run wait", false, "Pending"),
            ("Always", "run loop", false, "Running"),
            ("Always", "loop", false, "Running"),
            ("Always", "ok", false, "Running"),
            ("Always", "ok", true, "Succeeded"),
            ("Always", "bad", true, "Failed"),
            ("OnFailure", "ok", false, "Succeeded"),
            ("OnFailure", "bad ok", false, "Running"),
            ("Never", "bad ok", false, "Failed"),
            ("Never", "ok ok", false, "Succeeded"),
            ("Never", "ok run", false, "Running"),
            ("Always", "i:run wait", false, "Pending"),
            ("Always", "i:loop wait", false, "Pending"),
            ("Never", "i:bad wait", false, "Failed"),
            ("OnFailure", "i:bad wait", false, "Pending"),
            ("Always", "i:ok run", false, "Running"),
            ("Always", "s:run run", false, "Running"),
            ("Always", "s:run wait", false, "Pending"),
            ("Always", "s:loop run", false, "Running"),
            ("Never", "s:run ok", false, "Running"),
            ("Never", "s:bad ok", false, "Succeeded"),
        ] {
            assert_eq!(with(policy, words, is_over, phase), expect, "{policy} {words} over: {is_over}");
        }
    }

    #[test]
    fn condition_changed_by_others_is_newer_than_the_sent_one() {
        with("Always", "run", false, |situation| {
            let given = times_of(&compose(situation, &json!({}), at(5)));
            let (main, init) = (situation.main.clone(), vec![]);
            let situation = Situation { main, init, failed: None, ahead: None, given: &given, ..*situation };
            let since = |changed: i64| {
                let ready = json!({"type": "Ready", "status": "False", "lastTransitionTime": at(changed)});
                let status = compose(&situation, &json!({"conditions": [ready]}), at(9));
                let conditions = status["conditions"].as_array().unwrap();
                let ready = conditions.iter().find(|condition| condition["type"] == "Ready").unwrap();
                ready["lastTransitionTime"].clone()
            };
            assert_eq!([since(4), since(7)], [json!(at(5)), json!(at(9))]);
        });
    }

    fn condition(status: &Value, kind: &str) -> (String, String, String) {
        let conditions = status["conditions"].as_array().unwrap();
        let found = conditions.iter().find(|condition| condition["type"] == kind).unwrap();
        let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"), text("message"))
    }

    #[test]
    fn pod_conditions_have_kubelets_status_and_reason() {
        let check = |policy: &str, words: &str, kind: &str, expect: (&str, &str, &str)| {
            let status = with(policy, words, false, |situation| compose(situation, &json!({}), at(5)));
            let found = condition(&status, kind);
            assert_eq!((found.0.as_str(), found.1.as_str(), found.2.as_str()), expect, "{words} {kind}");
        };
        check("Always", "run", "Ready", ("True", "", ""));
        check("Always", "run", "PodScheduled", ("True", "", ""));
        let unready = "containers with unready status: [c1]";
        check("Always", "run loop", "Ready", ("False", "ContainersNotReady", unready));
        check("Always", "run loop", "ContainersReady", ("False", "ContainersNotReady", unready));
        check("Never", "ok", "Ready", ("False", "PodCompleted", ""));
        check("Never", "ok", "Initialized", ("True", "PodCompleted", ""));
        check("Never", "bad", "Ready", ("False", "PodFailed", ""));
        let incomplete = "containers with incomplete status: [c0 c1]";
        check(
            "Always",
            "i:run s:wait wait",
            "Initialized",
            ("False", "ContainersNotInitialized", incomplete),
        );
        check("Always", "i:ok s:run wait", "Initialized", ("True", "", ""));
        check("Always", "i:ok s:loop run", "Initialized", ("True", "", ""));
    }

    #[test]
    fn patch_has_only_what_changed() {
        let pod = PodRef { namespace: "d".into(), name: "p".into(), uid: "u".into() };
        let others =
            json!({"conditions": [{"type": "Mine", "status": "True"}], "startTime": "1970-01-01T00:00:01Z"});
        let first = with("Always", "wait", false, |situation| compose(situation, &others, at(5)));
        let sent = patch(&pod, &others, &first).unwrap();
        assert_eq!(sent["metadata"]["uid"], "u");
        assert!(sent["status"].get("startTime").is_none(), "kept");
        assert_eq!(sent["status"]["podIPs"], json!([{"ip": "10.1.0.2"}, {"$patch": "replace"}]));
        let known = merged(&others, &first);
        assert_eq!(known["conditions"].as_array().unwrap().len(), 6, "another's condition stays");
        let same = with("Always", "wait", false, |situation| compose(situation, &known, at(9)));
        assert_eq!(patch(&pod, &known, &same), None, "time alone is no change");
        let running = with("Always", "run", false, |situation| compose(situation, &known, at(9)));
        let sent = patch(&pod, &known, &running).unwrap();
        let mut changed: Vec<&String> = sent["status"].as_object().unwrap().keys().collect();
        kedge_api::sort::sort(&mut changed);
        assert_eq!(changed, ["conditions", "containerStatuses", "phase"]);
        let kinds: Vec<&Value> =
            sent["status"]["conditions"].as_array().unwrap().iter().map(|c| &c["type"]).collect();
        assert_eq!(kinds, ["Ready", "ContainersReady"], "those whose status changed");
        let ready = sent["status"]["conditions"][0].as_object().unwrap();
        assert_eq!([&ready["reason"], &ready["message"]], [&Value::Null; 2], "a merge would keep them");
        assert_eq!(sent["status"]["conditions"][0]["lastTransitionTime"], "1970-01-01T00:00:09Z");
    }

    #[test]
    fn terminated_state_round_trips() {
        let exit = Exit {
            code: 137,
            signal: Some(9),
            oom_killed: true,
            started: Some(at(1)),
            finished: Some(at(2)),
            message: "why".into(),
        };
        let end = Terminated::by(&exit, "kedge://x".into());
        assert_eq!(end.reason, "OOMKilled");
        assert_eq!(Terminated::read(&end.json(4096)), Some(end));
        assert_eq!(Terminated::read(&Value::Null), None);
    }

    #[test]
    fn messages_of_ends_share_what_a_status_may_hold() {
        let message = |text: &str, bytes: usize| {
            let end = Terminated { message: text.into(), ..ended(1) };
            end.json(bytes)["message"].as_str().map(str::to_owned)
        };
        assert_eq!(message("", 9), None);
        assert_eq!(message("why", 9), Some("why".into()));
        assert_eq!(message("wh\u{e4}t", 3), Some("wh".into()), "a character is whole or not there");
        let words = "long long i:long long long s:long";
        let status = with("Never", words, false, |situation| compose(situation, &Value::Null, at(1)));
        let lists =
            ["initContainerStatuses", "containerStatuses"].map(|list| status[list].as_array().unwrap());
        let of = |one: &Value| one["state"]["terminated"]["message"].as_str().map(str::len);
        assert_eq!(lists.into_iter().flatten().filter_map(of).collect::<Vec<_>>(), [2048; 6]);
    }

    #[test]
    fn pod_is_ready_when_its_gates_are() {
        let spec: PodSpec = serde_json::from_value(
            json!({"readinessGates": [{"conditionType": "a/up"}, {"conditionType": "b"}]}),
        )
        .expect("it is a spec");
        let check = |containers: bool, conditions: Value, expect: (bool, &str, &str)| {
            let containers = (containers, "Cause", String::new());
            let (is_true, reason, message) =
                with_gates(&spec, &containers, &json!({"conditions": conditions}));
            assert_eq!((is_true, reason, message.as_str()), expect, "{conditions}");
        };
        let of = |kind: &str, status: &str| json!({"type": kind, "status": status});
        check(true, json!([of("a/up", "True"), of("b", "True")]), (true, "Cause", ""));
        check(false, json!([of("a/up", "True"), of("b", "True")]), (false, "Cause", ""));
        let message = "the status of pod readiness gate \"a/up\" is not \"True\", but False, \
            corresponding condition of pod readiness gate \"b\" does not exist.";
        check(true, json!([of("a/up", "False")]), (false, "ReadinessGatesNotReady", message));
    }
}
