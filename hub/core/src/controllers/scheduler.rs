//! The scheduler: binds each pod without a node to a node that fits.
//!
//! Inputs: Pod, Node. Outputs: Pod (its node, the condition `PodScheduled`), Event. Upstream's filters:
//! cordon, node selector and required node affinity, taints, host ports, resources; of the nodes that pass,
//! the one with the lowest requested share wins, and between equals the first name. Priority decides only the
//! order: no pod is preempted. Always holds: a pod is bound once, by the rules of a client's binding, and
//! only if its node did not change since it was judged; the scheduler never lets the requests of a node's
//! pods exceed its allocatable; a pod that fits nowhere gets the reason in upstream's words, once for each
//! reason, and a bound pod gets an Event with its node. A pod with requirements that this scheduler does not
//! know (required affinity to pods, hard spread over topologies) is not bound. Leaves to others: daemon pods,
//! which have a node from the start; the node's own admission, which decides last.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::controller::{Action, Controller, Decision, Done, Edit, Level, Line, Now, Task, World};
use super::placing::{self, Node};
use super::record::{self, About, What};
use crate::api_error::ApiError;
use crate::kinds::pod::{self, NODE_NAME_FIELD, PHASE_FIELD, SCHEDULER_FIELD};
use crate::kinds::{EVENT, Kind, NODE, POD};
use crate::object::{Event, Object};
use crate::quantity::Quantity;
use crate::state::Require;
use crate::value::{rfc3339, set_condition, text};

static INPUTS: &[&Kind] = &[&POD, &NODE];
static OUTPUTS: &[&Kind] = &[&POD, &EVENT];

/// The scheduler of pods that name none.
const OURS: &str = "default-scheduler";
/// Most pods bound in one step.
const AT_ONCE: usize = 256;
/// Shortest time between two changes of the reason shown for a waiting pod: while a fleet starts, the reason
/// changes with each node.
const SAID_FOR: Duration = Duration::from_secs(30);
/// Time between two tries to bind pods that the store refused.
const REFUSED: Duration = Duration::from_secs(5);
/// The resource of which every pod requests one.
const PODS: &str = "pods";

/// See the module.
#[derive(Debug, Default)]
pub struct Scheduler {
    /// Something changed that may let a pod be bound.
    is_due: bool,
    /// The requests of pods, as last read, by UID.
    pods: BTreeMap<Box<str>, (u64, Demand)>,
    nodes: BTreeMap<Box<str>, (u64, Host)>,
    /// Waiting pods, with the reason last shown for each, and when.
    refused: BTreeMap<Box<str>, (String, Duration)>,
    again: Option<Duration>,
    log: Vec<Line>,
}

type Amounts = BTreeMap<String, Quantity>;

/// The requests of a pod to its node.
#[derive(Debug, Clone)]
struct Demand {
    amounts: Amounts,
    /// Protocol, address and number of its host ports.
    ports: Vec<(String, String, u64)>,
}

/// A node and its capacity.
#[derive(Debug, Clone)]
struct Host {
    node: Node,
    revision: u64,
    is_cordoned: bool,
    allocatable: Amounts,
}

/// A node with the sum of its pods' requests.
struct Filled<'a> {
    host: &'a Host,
    used: Amounts,
    ports: Vec<(String, String, u64)>,
}

/// The purpose of an action: the pod that was to be bound; `None` if a failure may be ignored.
pub type Purpose = Option<String>;

impl Controller for Scheduler {
    type Purpose = Purpose;
    const NAME: &'static str = "scheduler";
    const SWEEP: Option<Duration> = Some(Duration::from_secs(60));
    const AT_ONCE: usize = 64;

    fn inputs() -> &'static [&'static Kind] {
        INPUTS
    }

    fn outputs() -> &'static [&'static Kind] {
        OUTPUTS
    }

    /// A pod that waits for a node, or that frees room on one; a node with a change that matters to
    /// scheduling.
    fn concerns(kind: &'static Kind, event: &Event) -> bool {
        match (&event.old, &event.new) {
            (Some(old), Some(new)) if kind.kind == NODE.kind => !Host::read(old).is_like(&Host::read(new)),
            (Some(old), Some(new)) => waits(new) || holds(old) != holds(new),
            (None, Some(new)) => kind.kind == NODE.kind || waits(new),
            _ => true,
        }
    }

    fn observe(&mut self, _: &'static Kind, _: &Event) {
        self.is_due = true;
    }

    fn sweep(&mut self, _: &dyn World) {
        self.is_due = true;
    }

    fn reconcile(&mut self, world: &dyn World, now: Now) -> Decision<Purpose> {
        if self.again.is_some_and(|at| at <= now.running) {
            (self.is_due, self.again) = (true, None);
        }
        if !std::mem::take(&mut self.is_due) {
            return Decision { next: self.again, ..Decision::default() };
        }
        let stored = world.list(&POD, "");
        let mut waiting: Vec<(&Object, Value)> =
            stored.iter().filter(|pod| waits(pod)).map(|pod| (&**pod, pod.value())).collect();
        waiting.retain(|(_, pod)| pod["spec"]["schedulingGates"].as_array().is_none_or(Vec::is_empty));
        self.refused.retain(|uid, _| waiting.iter().any(|(pod, _)| pod.uid == *uid));
        if waiting.is_empty() {
            return Decision { next: self.again, ..Decision::default() };
        }
        self.read(world, &stored);
        let mut filled = self.filled(&stored);
        // by priority, then by age
        waiting.sort_by_cached_key(|(pod, value)| {
            (
                Reverse(value["spec"]["priority"].as_i64().unwrap_or(0)),
                text(value, &["metadata", "creationTimestamp"]).to_owned(),
                pod.name.clone(),
            )
        });
        let mut tasks = Vec::new();
        let mut said = Vec::new();
        let mut bound = 0;
        for (object, pod) in &waiting {
            let demand = Demand::read(pod);
            match choose(&filled, pod, &demand) {
                Ok(chosen) if bound < AT_ONCE => {
                    bound += 1;
                    tasks.push(bind(object, filled[chosen].host));
                    filled[chosen].take(&demand);
                }
                Ok(_) => {}
                Err(why) => said.push((*object, pod, why)),
            }
        }
        let mut more = bound == AT_ONCE;
        let mut changes = 0;
        for (object, pod, why) in said {
            match self.refused.get(&object.uid) {
                Some((known, _)) if *known == why => {}
                Some((_, at)) if *at + SAID_FOR > now.running => self.look_again(*at + SAID_FOR),
                _ if changes == AT_ONCE => more = true,
                _ => {
                    changes += 1;
                    tasks.extend(refuse(object, pod, &why, now));
                    self.refused.insert(object.uid.clone(), (why, now.running));
                }
            }
        }
        self.is_due |= more;
        Decision { tasks, guarded: None, more, next: self.again }
    }

    fn performed(
        &mut self,
        purpose: Purpose,
        outcome: Result<Done, ApiError>,
        now: Now,
    ) -> Vec<Task<Purpose>> {
        let Some(pod) = purpose else { return Vec::new() };
        match outcome {
            // the node changed meanwhile, or another client bound the pod first
            Ok(Done::Stored(_, false)) => self.is_due = true,
            Ok(Done::Stored(bound, true)) => return vec![tell_of_binding(&bound, now)],
            Ok(_) => {}
            Err(error) if error.code == 404 => {}
            Err(error) => {
                self.log.push((Level::Warning, format!("cannot bind pod {pod}: {error}; trying again")));
                self.look_again(now.running + REFUSED);
            }
        }
        Vec::new()
    }

    fn take_log(&mut self, _: Now) -> Vec<Line> {
        std::mem::take(&mut self.log)
    }
}

impl Scheduler {
    fn look_again(&mut self, at: Duration) {
        self.again = Some(self.again.map_or(at, |known| known.min(at)));
    }

    /// Reads the changed nodes, and the changed pods that have a node.
    fn read(&mut self, world: &dyn World, pods: &[std::sync::Arc<Object>]) {
        let mut before = std::mem::take(&mut self.nodes);
        for object in world.list(&NODE, "") {
            let known = before.remove(&*object.name).filter(|(revision, _)| *revision == object.revision);
            let read = known.unwrap_or_else(|| (object.revision, Host::read(&object)));
            self.nodes.insert(object.name.as_ref().into(), read);
        }
        let mut before = std::mem::take(&mut self.pods);
        for object in pods.iter().filter(|pod| holds(pod)) {
            let known = before.remove(&object.uid).filter(|(revision, _)| *revision == object.revision);
            let read = known.unwrap_or_else(|| (object.revision, Demand::read(&object.value())));
            self.pods.insert(object.uid.clone(), read);
        }
    }

    fn filled(&self, pods: &[std::sync::Arc<Object>]) -> Vec<Filled<'_>> {
        let mut filled: BTreeMap<&str, Filled<'_>> = self
            .nodes
            .iter()
            .map(|(name, (_, host))| (&**name, Filled { host, used: Amounts::new(), ports: Vec::new() }))
            .collect();
        for pod in pods {
            let node = filled.get_mut(pod.field(NODE_NAME_FIELD));
            if let (Some(node), Some((_, demand))) = (node, self.pods.get(&pod.uid)) {
                node.take(demand);
            }
        }
        filled.into_values().collect()
    }
}

/// Whether a pod waits to be bound by this scheduler.
fn waits(pod: &Object) -> bool {
    pod.field(NODE_NAME_FIELD).is_empty()
        && !pod.terminating
        && pod.field(SCHEDULER_FIELD) == OURS
        && !has_ended(pod)
}

/// Whether a pod uses resources of its node.
fn holds(pod: &Object) -> bool {
    !pod.field(NODE_NAME_FIELD).is_empty() && !has_ended(pod)
}

fn has_ended(pod: &Object) -> bool {
    matches!(pod.field(PHASE_FIELD), "Succeeded" | "Failed")
}

impl Demand {
    fn read(pod: &Value) -> Demand {
        let spec = &pod["spec"];
        let list = |field: &str| spec[field].as_array().map_or(&[][..], Vec::as_slice);
        let requests = |holder: &Value| amounts(&holder["resources"]["requests"]);
        let mut all = Amounts::new();
        // the sum of the containers and sidecars, or, if higher, an init container with the sidecars before
        // it
        let mut highest = Amounts::new();
        for init in list("initContainers") {
            let own = requests(init);
            if text(init, &["restartPolicy"]) == "Always" {
                add(&mut all, &own);
                raise(&mut highest, &all);
            } else {
                let mut together = all.clone();
                add(&mut together, &own);
                raise(&mut highest, &together);
            }
        }
        list("containers").iter().for_each(|container| add(&mut all, &requests(container)));
        raise(&mut all, &highest);
        // requests of the pod as a whole replace the sum
        all.extend(requests(spec));
        add(&mut all, &amounts(&spec["overhead"]));
        all.insert(PODS.to_owned(), Quantity::parse("1").unwrap_or(Quantity::ZERO));
        let of = list("containers").iter().chain(list("initContainers"));
        let ports = of.flat_map(|container| container["ports"].as_array().into_iter().flatten());
        let ports = ports.filter_map(|port| {
            let number = port["hostPort"].as_u64().filter(|number| *number > 0)?;
            let protocol = match text(port, &["protocol"]) {
                "" => "TCP",
                named => named,
            };
            Some((protocol.to_owned(), text(port, &["hostIP"]).to_owned(), number))
        });
        Demand { amounts: all, ports: ports.collect() }
    }
}

impl Host {
    fn read(object: &Object) -> Host {
        let value = object.value();
        Host {
            node: Node::read(object),
            revision: object.revision,
            is_cordoned: value["spec"]["unschedulable"] == true,
            allocatable: amounts(&value["status"]["allocatable"]),
        }
    }

    fn is_like(&self, other: &Host) -> bool {
        self.node == other.node
            && self.is_cordoned == other.is_cordoned
            && self.allocatable == other.allocatable
    }
}

impl Filled<'_> {
    fn take(&mut self, demand: &Demand) {
        add(&mut self.used, &demand.amounts);
        self.ports.extend(demand.ports.iter().cloned());
    }

    /// Why the node does not take a pod; empty if it does.
    fn refuses(&self, pod: &Value, demand: &Demand) -> Vec<String> {
        let spec = &pod["spec"];
        let tolerates_cordon = || {
            let taint = json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"});
            placing::is_tolerated(spec, &taint)
        };
        if self.host.is_cordoned && !tolerates_cordon() {
            return vec!["node(s) were unschedulable".to_owned()];
        }
        if placing::untolerated(spec, &self.host.node).next().is_some() {
            return vec!["node(s) had untolerated taint(s)".to_owned()];
        }
        if !placing::selects(spec, &self.host.node) {
            return vec!["node(s) didn't match Pod's node affinity/selector".to_owned()];
        }
        if demand.ports.iter().any(|wanted| self.ports.iter().any(|taken| collide(wanted, taken))) {
            return vec!["node(s) didn't have free ports for the requested pod ports".to_owned()];
        }
        let lacks = |(name, amount): &(&String, &Quantity)| {
            let used = self.used.get(*name).copied().unwrap_or(Quantity::ZERO);
            let has = self.host.allocatable.get(*name).copied().unwrap_or(Quantity::ZERO);
            **amount > Quantity::ZERO && used.plus(**amount) > has
        };
        let lacking = demand.amounts.iter().filter(lacks);
        lacking
            .map(
                |(name, _)| {
                    if name == PODS { "Too many pods".to_owned() } else { format!("Insufficient {name}") }
                },
            )
            .collect()
    }

    /// The requested share of processor and memory with this pod, the sum of both in percent.
    fn load(&self, demand: &Demand) -> u32 {
        let share = |name: &str| {
            let amount = |of: &Amounts| of.get(name).copied().unwrap_or(Quantity::ZERO);
            u32::from(
                amount(&self.used).plus(amount(&demand.amounts)).percent_of(amount(&self.host.allocatable)),
            )
        };
        share("cpu") + share("memory")
    }
}

/// The position of the node to bind to, or the reason why no node fits.
fn choose(nodes: &[Filled<'_>], pod: &Value, demand: &Demand) -> Result<usize, String> {
    if let Some(unknown) = beyond_us(&pod["spec"]) {
        return Err(format!("{unknown} is not served by this scheduler"));
    }
    if nodes.is_empty() {
        return Err("no nodes available to schedule pods".to_owned());
    }
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut best = None;
    for (index, node) in nodes.iter().enumerate() {
        let why = node.refuses(pod, demand);
        if why.is_empty() {
            let pods = node
                .used
                .get(PODS)
                .map_or(0, |pods| pods.percent_of(node.host.allocatable.get(PODS).copied().unwrap_or(*pods)));
            let load = (node.load(demand), pods, index);
            best = best.filter(|found| *found < load).or(Some(load));
        }
        for reason in why {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    let reasons: Vec<String> = {
        let mut counted: Vec<String> =
            reasons.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        counted.sort();
        counted
    };
    best.map(|(_, _, index)| index)
        .ok_or_else(|| format!("0/{} nodes are available: {}.", nodes.len(), reasons.join(", ")))
}

/// A requirement of a pod that this scheduler does not support.
fn beyond_us(spec: &Value) -> Option<&'static str> {
    let required = |kind: &str| {
        let terms = &spec["affinity"][kind]["requiredDuringSchedulingIgnoredDuringExecution"];
        terms.as_array().is_some_and(|terms| !terms.is_empty())
    };
    let mut spreads = spec["topologySpreadConstraints"].as_array().into_iter().flatten();
    if required("podAffinity") {
        Some("required affinity to pods")
    } else if required("podAntiAffinity") {
        Some("required anti-affinity to pods")
    } else {
        let is_hard = |spread: &Value| text(spread, &["whenUnsatisfiable"]) != "ScheduleAnyway";
        spreads.any(is_hard).then_some("a topology spread that must be kept")
    }
}

fn collide(one: &(String, String, u64), other: &(String, String, u64)) -> bool {
    let is_any = |address: &str| matches!(address, "" | "0.0.0.0" | "::");
    (&one.0, one.2) == (&other.0, other.2) && (one.1 == other.1 || is_any(&one.1) || is_any(&other.1))
}

fn amounts(of: &Value) -> Amounts {
    let read = |(name, value): (&String, &Value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Some((name.clone(), Quantity::parse(&text)?))
    };
    of.as_object().into_iter().flatten().filter_map(read).collect()
}

fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = to.entry(name.clone()).or_insert(Quantity::ZERO);
        *sum = sum.plus(*amount);
    }
}

fn raise(to: &mut Amounts, at_least: &Amounts) {
    for (name, amount) in at_least {
        let known = to.entry(name.clone()).or_insert(*amount);
        if *known < *amount {
            *known = *amount;
        }
    }
}

/// Binds by the rules of a client's binding, if the node did not change.
fn bind(object: &Object, host: &Host) -> Task<Purpose> {
    let (uid, node) = (object.uid.to_string(), host.node.name.clone());
    let binding = json!({"target": {"name": node}});
    let edit: Edit = Box::new(move |value, now| {
        value["metadata"]["uid"] == *uid && pod::bind(value, &binding, now).is_ok()
    });
    let unchanged = Require::Unchanged {
        kind: &NODE,
        namespace: String::new(),
        name: node,
        revision: Some(host.revision),
    };
    let (namespace, name) = (object.namespace.to_string(), object.name.to_string());
    let purpose = Some(format!("{namespace}/{name}"));
    Task { purpose, action: Action::Bind { namespace, name, edit, requires: vec![unchanged] } }
}

/// The Event with the node of a bound pod, in upstream's words.
fn tell_of_binding(pod: &Object, now: Now) -> Task<Purpose> {
    let (namespace, name) = (&*pod.namespace, &*pod.name);
    let message = format!("Successfully assigned {namespace}/{name} to {}", pod.field(NODE_NAME_FIELD));
    let about = About { kind: &POD, namespace, name, uid: &pod.uid, revision: Some(pod.revision) };
    let what = What { sort: "Normal", reason: "Scheduled", message: &message };
    // a pod is bound once
    let mark = super::daemon_sets::short(&format!("{}{message}", pod.uid));
    let event = record::event(&about, &what, OURS, namespace, &mark, now);
    Task { purpose: None, action: Action::create(&EVENT, event) }
}

/// Shows why a pod waits: in its condition, and by an Event.
fn refuse(object: &Object, pod: &Value, why: &str, now: Now) -> [Task<Purpose>; 2] {
    let (uid, message) = (object.uid.to_string(), why.to_owned());
    let edit: Edit = Box::new(move |value, time| {
        if value["metadata"]["uid"] != *uid || !text(value, &["spec", "nodeName"]).is_empty() {
            return false;
        }
        let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
            "lastProbeTime": null});
        set_condition(&mut value["status"], condition, time);
        true
    });
    let (namespace, name) = (object.namespace.to_string(), object.name.to_string());
    let action = Action::Update {
        kind: &POD,
        namespace: namespace.clone(),
        name: name.clone(),
        edit,
        requires: Vec::new(),
    };
    let mark = super::daemon_sets::short(&format!("{}{why}{}", object.uid, rfc3339(now.wall)));
    let (uid, revision) = (text(pod, &["metadata", "uid"]), Some(object.revision));
    let about = About { kind: &POD, namespace: &namespace, name: &name, uid, revision };
    let what = What { sort: "Warning", reason: "FailedScheduling", message: why };
    let event = record::event(&about, &what, OURS, &namespace, &mark, now);
    [Task { purpose: None, action }, Task { purpose: None, action: Action::create(&EVENT, event) }]
}
