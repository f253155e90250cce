//! The cost of the DaemonSet controller: one changed pod among 100, 1,000 and 10,000 of its set, and an
//! update of 100 nodes compared with the least possible time.
//!
//! Always holds: a real hub over real TLS; this program plays its nodes, by writing the same objects as
//! agents. Each change is sent after the hub has answered the one before, so the controller handles each.
//! Processor time and allocations are those of the whole hub: comparing 10,000 with 100 shows the growth that
//! is due to the controller.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::{Duration, Instant};

use kedge_rig::client::Connection;
use kedge_rig::error::RigError;
use kedge_rig::table::{Figure, Goal};
use serde_json::{Value, json};

use crate::cost;
use crate::load::{WORKERS, each, hub_process};
use crate::push::{JSON, MERGE};
use crate::setup::{LIMIT, Setup, io};

const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/namespaces/default/pods";
const SET: &str = "/apis/apps/v1/namespaces/default/daemonsets";
/// Nodes of the set in each stage.
const SIZES: [usize; 3] = [100, 1000, 10_000];
/// Changes measured in each stage: enough for the 10 ms ticks of processor time to be a small error.
const CHANGES: usize = 4000;
const COUNTED_CHANGES: usize = 200;
/// A cost is flat if it is at most this much higher among the most nodes: the store and the index grow, too.
const FLAT: f64 = 1.5;
/// Time for the hub to finish the work that the last change caused.
const SETTLED: Duration = Duration::from_secs(2);
/// Flags with which nodes that renew no Lease count as ready.
const NODES_STAY: [&str; 2] = ["--node-monitor-grace-period", "1h"];
/// For the update: nodes, the number updated at a time, and the time of one to end a pod, and to start one.
const UPDATED: usize = 100;
const AT_A_TIME: usize = 10;
const STEP: Duration = Duration::from_millis(50);

/// See the module.
pub(crate) fn measure() -> Result<Vec<Figure>, RigError> {
    let mut figures = Vec::new();
    let mut first = None;
    for size in SIZES {
        let seconds = changes(size)?;
        let flat = first.map(|first: f64| seconds / first);
        first = first.or(Some(seconds));
        let how = format!(
            "/proc/PID/stat over {CHANGES} changes of an annotation, one after the other, with store and TLS"
        );
        let name = format!("rollouts: CPU per 1,000 changed pods of {size}");
        figures.push(Figure::new(&name, seconds * 1000.0, "s", how));
        let goal = Goal::AtMost(FLAT);
        let times = flat.map(|flat| {
            let name = format!("rollouts: the same, times that of {}", SIZES[0]);
            Figure::new(&name, flat, "", format!("a set of {size} nodes")).with_goal(goal)
        });
        figures.extend(times);
    }
    for size in SIZES {
        let counted = counted_changes(size)?;
        let how = format!("callgrind over {COUNTED_CHANGES} such changes, all that the hub does meanwhile");
        let (instructions, allocations) = (counted.instructions, counted.allocations);
        let each = |value: f64| value / COUNTED_CHANGES as f64;
        let name = |what: &str| format!("rollouts: {what} per changed pod of {size}");
        figures.push(Figure::new(&name("instructions"), each(instructions), "", how.clone()));
        figures.push(Figure::new(&name("allocations"), each(allocations), "", how));
    }
    figures.extend(update()?);
    Ok(figures)
}

/// A hub with a set of so many nodes, all of which run its pod.
struct Fleet {
    setup: Setup,
    pods: Vec<String>,
}

impl Fleet {
    fn open(setup: Setup, size: usize) -> Result<Fleet, RigError> {
        let admin = setup.admin.clone();
        let nodes: Vec<String> = (0..size).map(|number| format!("node-{number}")).collect();
        each(shares(&nodes), move |names| {
            let mut hub = admin.connect()?;
            names.into_iter().try_for_each(|name| {
                let body = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
                hub.accepted("POST", NODES, JSON, &body).map(drop)
            })
        })?;
        let mut hub = setup.connect()?;
        hub.accepted("POST", SET, JSON, &set("1")).map_err(io("create a DaemonSet"))?;
        let pods = awaited(&mut hub, size)?;
        let admin = setup.admin.clone();
        each(shares(&pods), move |names| {
            let mut hub = admin.connect()?;
            names.iter().try_for_each(|name| run(&mut hub, name))
        })?;
        std::thread::sleep(SETTLED);
        Ok(Fleet { setup, pods })
    }

    /// Changes so many pods, one after the other.
    fn change(&self, count: usize) -> Result<(), RigError> {
        let mut hub = self.setup.connect()?;
        for (number, name) in self.pods.iter().cycle().step_by(7).take(count).enumerate() {
            let patch = json!({"metadata": {"annotations": {"bench": number.to_string()}}});
            hub.accepted("PATCH", &format!("{PODS}/{name}"), MERGE, &patch).map_err(io("change a pod"))?;
        }
        std::thread::sleep(SETTLED);
        Ok(())
    }
}

/// The names, divided among the workers.
fn shares(names: &[String]) -> Vec<Vec<String>> {
    names.chunks(names.len().div_ceil(WORKERS).max(1)).map(<[String]>::to_vec).collect()
}

/// The hub's processor seconds for one change.
fn changes(size: usize) -> Result<f64, RigError> {
    let setup = Setup::open_with("bench-rollouts", &NODES_STAY)?;
    let process = hub_process(&setup)?;
    let fleet = Fleet::open(setup, size)?;
    let before = process.cpu_secs()?;
    fleet.change(CHANGES)?;
    Ok((process.cpu_secs()? - before) / CHANGES as f64)
}

fn counted_changes(size: usize) -> Result<cost::Counted, RigError> {
    let setup = Setup::open_counted("bench-rollouts-counted", &NODES_STAY)?;
    let pid = setup.hub.pid().ok_or_else(|| io("find the hub's process")(std::io::Error::other("gone")))?;
    let dump = setup.scratch.path().join(format!("callgrind.{pid}.1"));
    let fleet = Fleet::open(setup, size)?;
    cost::control(pid, cost::BEGIN)?;
    fleet.change(COUNTED_CHANGES)?;
    cost::control(pid, "--dump")?;
    cost::read(&dump)
}

/// A node's next act.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    End(String),
    Run(String),
}

/// An update whose nodes take [`STEP`] to end a pod and to start one: no order of them is faster than one
/// group after the other.
fn update() -> Result<[Figure; 2], RigError> {
    let setup = Setup::open_with("bench-update", &NODES_STAY)?;
    let fleet = Fleet::open(setup, UPDATED)?;
    let watch = fleet.setup.admin.watch(PODS).map_err(io("watch pods"))?;
    let mut hub = fleet.setup.connect()?;
    let (mut due, mut taken) = (BinaryHeap::new(), BTreeSet::new());
    let begun = Instant::now();
    let patch = json!({"spec": {"template": set("2")["spec"]["template"]}});
    hub.accepted("PATCH", &format!("{SET}/bench"), MERGE, &patch).map_err(io("change the template"))?;
    let mut updated = 0;
    while updated < UPDATED {
        let wait = due.peek().map_or(LIMIT, |Reverse((at, _)): &Reverse<(Instant, Act)>| {
            at.saturating_duration_since(Instant::now())
        });
        if let Ok((at, event)) = watch.recv_timeout(wait) {
            let object = &event["object"];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (name, uid) = (text(&object["metadata"]["name"]), text(&object["metadata"]["uid"]));
            let is_ending = object["metadata"]["deletionTimestamp"].is_string();
            let is_new = object["spec"]["containers"][0]["image"] == image("2")
                && object["status"]["phase"] != "Running";
            let is_gone = event["type"] == "DELETED";
            if !is_gone && (is_ending || is_new) && taken.insert((uid, is_ending)) {
                due.push(Reverse((at + STEP, if is_ending { Act::End(name) } else { Act::Run(name) })));
            }
        } else if due.is_empty() {
            return Err(RigError::TimedOut {
                awaited: "the update".into(),
                found: format!("{updated} nodes"),
            });
        }
        // plays the nodes: each act is due `STEP` after the event that causes it
        while due.peek().is_some_and(|Reverse((at, _))| *at <= Instant::now()) {
            match due.pop() {
                Some(Reverse((_, Act::End(name)))) => {
                    let body = json!({"gracePeriodSeconds": 0});
                    hub.accepted("DELETE", &format!("{PODS}/{name}"), JSON, &body)
                        .map_err(io("confirm an end"))?;
                }
                Some(Reverse((_, Act::Run(name)))) => {
                    run(&mut hub, &name).map_err(io("report a pod"))?;
                    updated += 1;
                }
                None => {}
            }
        }
    }
    let took = begun.elapsed();
    let least = STEP * 2 * u32::try_from(UPDATED / AT_A_TIME).unwrap_or(1);
    let how = format!(
        "{UPDATED} acted nodes, {AT_A_TIME} at a time, {} ms to end a pod and to start one",
        STEP.as_millis()
    );
    Ok([
        Figure::new("rollouts: update of 100 nodes", took.as_secs_f64(), "s", how),
        Figure::new(
            "rollouts: update of 100 nodes, times the least",
            took.as_secs_f64() / least.as_secs_f64(),
            "",
            "that of ten groups one after the other",
        )
        .with_goal(Goal::AtMost(1.5)),
    ])
}

/// Waits until there are so many of the set's pods; returns their names.
fn awaited(hub: &mut Connection, count: usize) -> Result<Vec<String>, RigError> {
    let end = Instant::now() + LIMIT * 10;
    loop {
        let mut names = Vec::new();
        let mut next = String::new();
        loop {
            let path = format!("{PODS}?limit=500&continue={next}");
            let page = hub.accepted("GET", &path, "", &Value::Null).map_err(io("list pods"))?;
            let items = page["items"].as_array().map_or(&[][..], Vec::as_slice);
            names.extend(items.iter().filter_map(|pod| Some(pod["metadata"]["name"].as_str()?.to_owned())));
            next = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            if next.is_empty() {
                break;
            }
        }
        if names.len() >= count {
            return Ok(names);
        }
        if Instant::now() > end {
            return Err(RigError::TimedOut {
                awaited: format!("{count} pods"),
                found: names.len().to_string(),
            });
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Reports a pod as running and ready.
fn run(hub: &mut Connection, name: &str) -> std::io::Result<()> {
    let status = json!({"status": {"phase": "Running", "conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-01T00:00:00Z"}]}});
    hub.accepted("PATCH", &format!("{PODS}/{name}/status"), MERGE, &status).map(drop)
}

fn image(tag: &str) -> String {
    format!("registry.invalid/bench:{tag}")
}

fn set(tag: &str) -> Value {
    let labels = json!({"app": "bench"});
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "bench"}, "spec": {
        "selector": {"matchLabels": labels},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": AT_A_TIME}},
        "template": {"metadata": {"labels": labels}, "spec": {"automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": image(tag)}]}}}})
}
