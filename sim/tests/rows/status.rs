//! The Node's status: host facts, labels, capacity and allocatable, and the error that goes with a verdict.

use crate::{A, B, HOUR, MINUTE, payload, short};
use kedge_core::{Action, Event, Request, Runtime};
use kedge_sim::hub::{Flavour, Hub};
use kedge_sim::{NODE, Seen, World};
use serde_json::{Value, json};

/// A field of the Node on the API server.
#[track_caller]
fn said(world: &World, pointer: &str) -> Value {
    let node = world.hub.node().expect("there is one");
    node.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {node}")).clone()
}

fn running(fields: &str) -> World {
    let mut world = World::new();
    world.base(fields);
    world.start();
    world
}

#[test]
fn node_info_names_machine_and_agent() {
    let world = running("");
    let expect = json!({
        "machineID": "5f3c",
        "systemUUID": "a-uuid",
        "bootID": "00000000-0000-4000-8000-000000000001",
        "kernelVersion": "6.1.0",
        "osImage": "Debian GNU/Linux 12",
        "containerRuntimeVersion": "kedge://0.1.0",
        "kubeletVersion": "v1.36.0+kedge-0.1.0",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": "arm64",
    });
    assert_eq!(said(&world, "/status/nodeInfo"), expect);
}

#[test]
fn labels_are_set_on_present_and_new_nodes() {
    let expect = json!({
        "kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64",
    });
    assert_eq!(said(&running(""), "/metadata/labels"), expect);
    let mut world = World::new();
    world.hub = Hub::new(Flavour::Kedge);
    world.start();
    world.run_for(MINUTE);
    assert_eq!(said(&world, "/metadata/labels"), expect);
}

/// `capacity` and `allocatable` of a node of 4 CPUs, 1 GiB of memory and 8 GiB of storage with these fields.
#[track_caller]
fn check_resources(fields: &str, capacity: [&str; 4], allocatable: [&str; 4]) {
    let mut world = World::new();
    world.base(fields);
    world.facts.runtime = Runtime::Ready;
    world.start();
    let object = |values: [&str; 4]| {
        let [cpu, memory, storage, pods] = values;
        json!({"cpu": cpu, "memory": memory, "ephemeral-storage": storage, "pods": pods})
    };
    assert_eq!(said(&world, "/status/capacity"), object(capacity), "{fields}");
    assert_eq!(said(&world, "/status/allocatable"), object(allocatable), "{fields}");
}

#[test]
fn reservations_and_eviction_reduce_allocatable() {
    let all = |pods| ["4", "1Gi", "8Gi", pods];
    check_resources(
        "evictionHard: {memory.available: 100Mi, nodefs.available: 1Gi}",
        all("110"),
        ["4", "924Mi", "7Gi", "110"],
    );
    check_resources(
        "maxPods: 12\n\
         evictionHard: {memory.available: 100Mi, nodefs.available: 1Gi}\n\
         systemReserved: {cpu: 500m, memory: 200Mi, ephemeral-storage: 1Gi}\n\
         kubeReserved: {cpu: 250m, memory: 24Mi, ephemeral-storage: 2Gi}",
        all("12"),
        ["3250m", "700Mi", "4Gi", "12"],
    );
    check_resources(
        "systemReserved: {cpu: \"5\", memory: 2Gi, ephemeral-storage: 9Gi}",
        all("110"),
        ["0", "0", "0", "110"],
    );
}

#[test]
fn pods_and_ready_follow_the_container_runtime() {
    let mut world = running("maxPods: 12");
    let posting = "kubelet is posting ready status";
    let not_ready = || Runtime::NotReady("the runtime starts".into());
    for (runtime, pods, ready, message) in [
        (Runtime::Absent, "0", "True", posting),
        (not_ready(), "0", "False", "the runtime starts"),
        (Runtime::Ready, "12", "True", posting),
        (not_ready(), "0", "False", "the runtime starts"),
        (Runtime::Missing("there is no crun".into()), "0", "False", "there is no crun"),
        (Runtime::Ready, "12", "True", posting),
    ] {
        world.facts.runtime = runtime.clone();
        world.run_for(MINUTE);
        for resources in ["capacity", "allocatable"] {
            assert_eq!(said(&world, &format!("/status/{resources}/pods")), pods, "{runtime:?}");
        }
        let conditions = said(&world, "/status/conditions");
        let of_type = |name: &str| conditions.as_array()?.iter().find(|condition| condition["type"] == name);
        let condition = of_type("Ready").expect("it is reported");
        let reason = match (ready, &runtime) {
            ("True", _) => "KubeletReady",
            (_, Runtime::Missing(_)) => "NoContainerRuntime",
            _ => "KubeletNotReady",
        };
        assert_eq!(
            (&condition["status"], &condition["reason"], &condition["message"]),
            (&json!(ready), &json!(reason), &json!(message))
        );
    }
}

#[test]
fn due_report_wakes_the_agent() {
    let mut world = running("");
    world.run_for(MINUTE);
    world.hub.status_patches.clear();
    // with neither renewals nor host facts answered, only the report is left to wake it
    let begun = world.mono();
    let is_report = |seen: &Seen| matches!(seen, Seen::Asked(Action::Request(Request::PatchStatus(_))));
    world.seen.clear();
    while !world.seen.iter().any(is_report) {
        world.advance(world.deadline().expect("a report is due") - world.mono());
        world.handle(Event::Tick);
    }
    let waited = world.mono() - begun;
    assert!(waited > MINUTE && waited <= 5 * MINUTE, "{waited:?}");
}

#[test]
fn idle_node_sleeps_until_its_next_heartbeat() {
    let mut world = running(
        "nodeStatusUpdateFrequency: 5m\nnodeStatusReportFrequency: 5m\nnodeLeaseDurationSeconds: 160",
    );
    world.seen.clear();
    world.run_for(HOUR);
    // each wake has a reason: 90 renewals, 12 looks at the host and as many reports
    let asked = world.seen.iter().filter(|seen| matches!(seen, Seen::Asked(_))).count();
    assert!((100..=120).contains(&asked), "{asked}");
}

#[test]
fn error_appends_verdict_details_if_any() {
    let (mut world, _) = World::known_good();
    let uid = world.adopt("b", &short(B, "10m", 0));
    world.crash_and_start();
    assert_eq!(world.used(), A);
    let error = format!("current failed trial period due to crash loop (UID: {uid})");
    assert_eq!(world.config_status()["error"], json!(error));
    let uid = world.adopt("c", &payload(B, "crashLoopThreshold: 11"));
    let error = format!("failed to validate current (UID: {uid}): config c (uid {uid}): ");
    let said = world.config_status()["error"].as_str().unwrap_or_default().to_owned();
    assert!(said.starts_with(&error) && said.len() > error.len(), "{said}");
}
