//! The scheduler on the state alone.

use std::collections::BTreeMap;

use kedge_rig::Random;
use serde_json::{Value, json};

use super::Hub;
use crate::controllers::Controller as _;
use crate::controllers::scheduler::Scheduler;
use crate::kinds::{EVENT, NODE, POD};

fn node(name: &str, cpu: &str, memory: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": "3"}}})
}

fn asking(name: &str, cpu: &str) -> Value {
    json!({"metadata": {"namespace": "n", "name": name}, "spec": {"containers": [
        {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}})
}

impl Hub {
    pub(super) fn fleet(nodes: &[(&str, &str)]) -> Hub {
        let mut hub = Hub::with_namespace();
        for (name, cpu) in nodes {
            hub.create(&NODE, node(name, cpu, "1Gi"));
            // it is ready, so its taint is removed
            hub.edit(&NODE, "", name, |node| node["spec"]["taints"] = json!([]));
        }
        hub
    }

    fn bound(&self, pod: &str) -> String {
        self.value(&POD, "n", pod)["spec"]["nodeName"].as_str().unwrap_or_default().to_owned()
    }

    fn why(&self, pod: &str) -> String {
        let pod = self.value(&POD, "n", pod);
        let condition = &pod["status"]["conditions"][0];
        assert_eq!(
            (&condition["type"], &condition["status"], &condition["reason"]),
            (&json!("PodScheduled"), &json!("False"), &json!("Unschedulable"))
        );
        condition["message"].as_str().unwrap().to_owned()
    }

    /// The Events about a pod, in one line each.
    fn told(&self, pod: &str) -> Vec<String> {
        let events = crate::controllers::World::list(&self.index, &EVENT, "");
        let events = events.iter().map(|event| event.value());
        let about = events.filter(|event| event["involvedObject"]["name"] == pod);
        let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
        about
            .map(|event| {
                let component = text(&event["source"], "component");
                format!(
                    "{} {} {component}: {}",
                    text(&event, "type"),
                    text(&event, "reason"),
                    text(&event, "message")
                )
            })
            .collect()
    }
}

#[test]
fn pods_are_spread_by_what_is_asked_for() {
    let mut hub = Hub::fleet(&[("a", "1"), ("b", "2")]);
    for (pod, cpu, expect) in
        [("p1", "500m", "b"), ("p2", "300m", "a"), ("p3", "500m", "b"), ("p4", "200m", "a"), ("p5", "1", "b")]
    {
        hub.create(&POD, asking(pod, cpu));
        hub.run(&mut Scheduler::default());
        assert_eq!(hub.bound(pod), expect, "{pod}");
    }
    let bound = hub.value(&POD, "n", "p1");
    assert_eq!(bound["status"]["conditions"][0]["status"], "True");
    assert_eq!(hub.told("p1"), ["Normal Scheduled default-scheduler: Successfully assigned n/p1 to b"]);
    hub.create(&POD, asking("p6", "600m"));
    let mut scheduler = Scheduler::default();
    hub.run(&mut scheduler);
    let why = "0/2 nodes are available: 1 Too many pods, 2 Insufficient cpu.";
    assert_eq!(hub.why("p6"), why);
    assert_eq!(hub.told("p6"), [format!("Warning FailedScheduling default-scheduler: {why}")]);
    // a pod that has ended frees its share
    hub.edit(&POD, "n", "p5", |pod| pod["status"]["phase"] = "Succeeded".into());
    hub.run(&mut scheduler);
    assert_eq!(hub.bound("p6"), "b");
}

#[test]
fn pod_that_nobody_takes_says_why_once() {
    let mut hub = Hub::fleet(&[]);
    let mut scheduler = Scheduler::default();
    hub.create(&POD, asking("p", "1"));
    hub.run(&mut scheduler);
    assert_eq!(hub.why("p"), "no nodes available to schedule pods");
    for name in ["cordoned", "tainted", "small"] {
        hub.create(&NODE, node(name, "500m", "1Gi"));
        hub.edit(&NODE, "", name, |node| node["spec"]["taints"] = json!([]));
    }
    hub.edit(&NODE, "", "cordoned", |node| node["spec"]["unschedulable"] = true.into());
    hub.edit(&NODE, "", "tainted", |node| {
        node["spec"]["taints"] = json!([{"key": "k", "effect": "NoSchedule"}])
    });
    // another reason is shown only after the half minute, and only once
    for second in [1, 29, 30, 31] {
        hub.run_at(&mut scheduler, second);
        assert_eq!(hub.names(&EVENT).len(), if second < 30 { 1 } else { 2 });
    }
    let expect = "0/3 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable.";
    assert_eq!((hub.why("p").as_str(), hub.names(&EVENT).len()), (expect, 2));
    let revision = hub.index.revision();
    hub.run_at(&mut scheduler, 100);
    assert_eq!(hub.index.revision(), revision);
    // now there is room
    hub.edit(&NODE, "", "small", |node| node["status"]["allocatable"]["cpu"] = "1".into());
    hub.run(&mut scheduler);
    assert_eq!(hub.bound("p"), "small");
}

#[test]
fn filters_are_upstreams() {
    let mut hub = Hub::fleet(&[("a", "4"), ("b", "4")]);
    hub.edit(&NODE, "", "b", |node| node["metadata"]["labels"]["disk"] = "ssd".into());
    let selecting = |name: &str| {
        let mut pod = asking(name, "1m");
        pod["spec"]["nodeSelector"] = json!({"disk": "ssd"});
        pod
    };
    let port = |name: &str, address: &str| {
        let mut pod = selecting(name);
        pod["spec"]["containers"][0]["ports"] =
            json!([{"containerPort": 80, "hostPort": 8080, "hostIP": address}]);
        pod
    };
    for pod in [port("first", "10.0.0.1"), port("other-address", "10.0.0.2"), port("every-address", "")] {
        hub.create(&POD, pod);
        hub.run(&mut Scheduler::default());
    }
    assert_eq!(
        (hub.bound("first"), hub.bound("other-address"), hub.bound("every-address")),
        ("b".into(), "b".into(), String::new())
    );
    assert_eq!(
        hub.why("every-address"),
        "0/2 nodes are available: 1 node(s) didn't have free ports for the requested pod ports, 1 node(s) didn't match Pod's node affinity/selector."
    );
    for (name, field, value) in [
        ("foreign", "schedulerName", json!("mine")),
        ("gated", "schedulingGates", json!([{"name": "example.com/x"}])),
    ] {
        let mut pod = asking(name, "1m");
        pod["spec"][field] = value;
        hub.create(&POD, pod);
    }
    let mut near = asking("near", "1m");
    near["spec"]["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}]}});
    hub.create(&POD, near);
    hub.run(&mut Scheduler::default());
    assert_eq!((hub.bound("foreign"), hub.bound("gated"), hub.bound("near")), Default::default());
    assert_eq!(hub.why("near"), "required anti-affinity to pods is not served by this scheduler");
}

#[test]
fn init_containers_and_sidecars_count_as_upstream() {
    let mut hub = Hub::fleet(&[("a", "1")]);
    let with = |name: &str, init: Value, cpu: &str| {
        let mut pod = asking(name, cpu);
        pod["spec"]["initContainers"] = init;
        pod
    };
    let init = |name: &str, cpu: &str, policy: Option<&str>| {
        let mut container = json!({"name": name, "image": "i", "resources": {"requests": {"cpu": cpu}}});
        if let Some(policy) = policy {
            container["restartPolicy"] = policy.into();
        }
        container
    };
    // a sidecar of 300m beside an init container of 800m
    hub.create(
        &POD,
        with("too-much", json!([init("s", "300m", Some("Always")), init("i", "800m", None)]), "100m"),
    );
    // the init container ends before the other containers begin
    hub.create(
        &POD,
        with("fits", json!([init("i", "800m", None), init("s", "300m", Some("Always"))]), "700m"),
    );
    hub.run(&mut Scheduler::default());
    assert_eq!((hub.bound("too-much"), hub.bound("fits")), (String::new(), "a".to_owned()));
}

#[test]
fn higher_priority_comes_first_and_ends_nobody() {
    let mut hub = Hub::fleet(&[("a", "1")]);
    hub.create(&POD, asking("first", "600m"));
    hub.create(&POD, asking("second", "600m"));
    let mut critical = asking("third", "600m");
    critical["spec"]["priorityClassName"] = "system-node-critical".into();
    hub.create(&POD, critical);
    hub.run(&mut Scheduler::default());
    assert_eq!(
        (hub.bound("third"), hub.bound("first"), hub.names(&POD).len()),
        ("a".to_owned(), String::new(), 3)
    );
}

/// The node decides last, by its own admission: a pod that it rejects has failed, with the node's reason, and
/// is not tried again; its share is free.
#[test]
fn pod_that_its_node_rejects_ends_and_leaves_its_part() {
    for reason in
        ["OutOfcpu", "OutOfmemory", "OutOfpods", "NodeAffinity", "NodePorts", "PodFeatureUnsupported"]
    {
        let mut hub = Hub::fleet(&[("a", "1"), ("b", "500m")]);
        let mut scheduler = Scheduler::default();
        hub.create(&POD, asking("p", "800m"));
        hub.run(&mut scheduler);
        assert_eq!(hub.bound("p"), "a");
        hub.edit(&POD, "n", "p", |pod| {
            pod["status"]["phase"] = "Failed".into();
            pod["status"]["reason"] = reason.into();
        });
        let revision = hub.index.revision();
        for second in [1, 60, 3_600] {
            hub.run_at(&mut scheduler, second);
        }
        assert_eq!(hub.index.revision(), revision, "{reason}: nothing follows by itself");
        let pod = hub.value(&POD, "n", "p");
        assert_eq!((&pod["spec"]["nodeName"], &pod["status"]["reason"]), (&json!("a"), &json!(reason)));
        // a pod that replaces it may use its share, and a node that reports too little is passed over
        hub.edit(&NODE, "", "a", |node| node["status"]["allocatable"]["cpu"] = "100m".into());
        hub.create(&POD, asking("q", "400m"));
        hub.run_at(&mut scheduler, 3_700);
        assert_eq!(hub.bound("q"), "b", "{reason}");
    }
}

/// A node and its labels change between the decision and the binding: the pod is judged again, not bound by
/// the old state.
#[test]
fn pod_is_not_bound_to_a_node_that_has_changed() {
    let mut hub = Hub::fleet(&[("a", "2"), ("b", "1")]);
    let mut scheduler = Scheduler::default();
    hub.create(&POD, asking("p", "800m"));
    scheduler.sweep(&hub.index);
    let now = hub.now(1);
    let mut tasks = scheduler.reconcile(&hub.index, now).tasks;
    hub.edit(&NODE, "", "a", |node| node["status"]["allocatable"]["cpu"] = "100m".into());
    while let Some(task) = tasks.pop() {
        tasks.extend(hub.act(&mut scheduler, task, now));
    }
    assert_eq!(hub.bound("p"), "");
    hub.run_at(&mut scheduler, 2);
    assert_eq!(hub.bound("p"), "b");
}

/// A way in which a run breaks a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// A node admits every pod.
    NodeTakesAll,
    /// The hub never hears that a node rejected a pod.
    RejectionIsLost,
    /// The reason why a pod waits is not shown.
    ReasonIsLost,
}

/// Nodes with a capacity that changes before the hub hears of it: the hub binds by its own knowledge, the
/// nodes admit by their real capacity. Returns how many pods a node rejected, or the broken promise.
fn disagree(seed: u64, mutant: Option<Mutant>) -> Result<usize, String> {
    let mut random = Random::new(seed);
    let names = ["a", "b", "c"];
    let mut hub = Hub::fleet(&names.map(|name| (name, "1000m")));
    let mut scheduler = Scheduler::default();
    let mut has = BTreeMap::from(names.map(|name| (name, 1_000)));
    let (mut asks, mut rejected) = (BTreeMap::new(), 0);
    let (mut admitted, mut writes): (BTreeMap<String, &str>, u64) = Default::default();
    for second in 0..120 {
        let name = format!("p{second}");
        match random.index(4) {
            0 | 1 => {
                let milli = 50 + 50 * random.index(12);
                hub.create(&POD, asking(&name, &format!("{milli}m")));
                asks.insert(name, milli);
            }
            2 => {
                // another program on the machine takes or frees room: the hub hears of it now or later
                let node = names[random.index(3)];
                has.insert(node, 300 + 100 * random.index(8));
            }
            _ => {
                let node = names[random.index(3)];
                let cpu = format!("{}m", has[node]);
                hub.edit(&NODE, "", node, |node| node["status"]["allocatable"]["cpu"] = cpu.clone().into());
            }
        }
        let before = hub.index.revision();
        hub.run_at(&mut scheduler, second);
        writes += hub.index.revision() - before;
        for (pod, milli) in &asks {
            let value = hub.value(&POD, "n", pod);
            let Some(node) = names.into_iter().find(|node| value["spec"]["nodeName"] == *node) else {
                continue;
            };
            let is_done = value["status"]["phase"] == "Failed";
            if is_done || admitted.contains_key(pod) {
                continue;
            }
            let used: usize = admitted.iter().filter(|(_, on)| **on == node).map(|(pod, _)| asks[pod]).sum();
            if used + milli <= has[node] || mutant == Some(Mutant::NodeTakesAll) {
                admitted.insert(pod.clone(), node);
                if used + milli > has[node] {
                    return Err(format!("invariant_no_node_takes_more_than_it_has: {node} at {second}"));
                }
                continue;
            }
            rejected += 1;
            hub.edit(&POD, "n", pod, |pod| {
                pod["status"]["phase"] = "Failed".into();
                pod["status"]["reason"] = "OutOfcpu".into();
                if mutant == Some(Mutant::RejectionIsLost) {
                    pod["status"]["phase"] = "Pending".into();
                }
            });
        }
    }
    for pod in asks.keys() {
        let value = hub.value(&POD, "n", pod);
        let (bound, phase) = (&value["spec"]["nodeName"], &value["status"]["phase"]);
        let mut why = value["status"]["conditions"][0]["message"].as_str().unwrap_or_default();
        if mutant == Some(Mutant::ReasonIsLost) {
            why = "";
        }
        let is_clear = match (bound.is_string(), phase == "Failed") {
            (true, true) => value["status"]["reason"] == "OutOfcpu",
            (true, false) => admitted.contains_key(pod),
            (false, _) => why.starts_with("0/3 nodes are available"),
        };
        if !is_clear {
            return Err(format!("invariant_a_disagreement_ends_in_a_clear_state: {pod}: {value}"));
        }
    }
    // a binding and a change of the reason with its Event, at most each half minute
    if writes > 12 * asks.len() as u64 {
        return Err(format!(
            "invariant_a_disagreement_is_no_hot_loop: {writes} writes for {} pods",
            asks.len()
        ));
    }
    Ok(rejected)
}

#[test]
fn scheduler_and_node_that_disagree_end_in_a_clear_state() {
    let rejected: usize =
        (0..20).map(|seed| disagree(seed, None).unwrap_or_else(|why| panic!("seed {seed}: {why}"))).sum();
    assert!(rejected > 20, "it shows nothing: {rejected}");
    for (mutant, invariant) in [
        (Mutant::NodeTakesAll, "invariant_no_node_takes_more_than_it_has"),
        (Mutant::RejectionIsLost, "invariant_a_disagreement_ends_in_a_clear_state"),
        (Mutant::ReasonIsLost, "invariant_a_disagreement_ends_in_a_clear_state"),
    ] {
        let noticed = (0..20)
            .filter_map(|seed| disagree(seed, Some(mutant)).err())
            .any(|why| why.starts_with(invariant));
        assert!(noticed, "{mutant:?}");
    }
}
