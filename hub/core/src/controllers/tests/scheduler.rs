//! The scheduler on the state alone.

use serde_json::{Value, json};

use super::Hub;
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
            // it is ready, so its taint goes
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
    hub.create(&POD, asking("p6", "600m"));
    let mut scheduler = Scheduler::default();
    hub.run(&mut scheduler);
    assert_eq!(hub.why("p6"), "0/2 nodes are available: 1 Too many pods, 2 Insufficient cpu.");
    // one that has ended leaves its part
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
    // another reason is not told at once, nor ever twice
    for second in [1, 29, 30, 31] {
        hub.run_at(&mut scheduler, second);
        assert_eq!(hub.names(&EVENT).len(), if second < 30 { 1 } else { 2 });
    }
    let expect = "0/3 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable.";
    assert_eq!((hub.why("p").as_str(), hub.names(&EVENT).len()), (expect, 2));
    let revision = hub.index.revision();
    hub.run_at(&mut scheduler, 100);
    assert_eq!(hub.index.revision(), revision);
    // room comes
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
    // the init container ends before the others begin
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
