//! Networks by plugins that are shell scripts, on a board in memory.

use super::*;
use crate::workloads::Performer;
use crate::workloads::tests::{Shelf, check_failed, performer, performer_with, pod, sandbox};
use kedge_core::pods::{
    Command, FailureReason, HostPort, Inventory, PodAction, PodEvent, PodNetwork, PodSandbox,
};
use kedge_platform::workloads::{FakeWorkloads, Workloads as _};
use kedge_rig::Scratch;
use kedge_rig::scratch::poll;
use serde_json::json;

const WAIT: Duration = Duration::from_secs(60);
/// A plugin for tests: it records its call and its input, runs the test's script, and returns an address.
const SCRIPT: &str = r#"#!/bin/sh
cd "${0%/plugins/*}" && me=${0##*/}
cat >"in.$me.$CNI_COMMAND"
echo "$CNI_COMMAND $me $CNI_CONTAINERID $CNI_IFNAME $CNI_NETNS" >>calls
[ ! -f "do.$me.$CNI_COMMAND" ] || . "./do.$me.$CNI_COMMAND"
[ "$CNI_COMMAND" = DEL ] || echo '{"cniVersion":"1.0.0","ips":[{"address":"10.9.0.2/24"}]}'
"#;

type Fake = Performer<FakeWorkloads, Shelf>;

/// A node with a network of two plugins.
fn node() -> Scratch {
    let scratch = Scratch::new("network").unwrap();
    let list = json!({"cniVersion": "1.0.0", "name": "edge", "plugins": [
        {"type": "first"}, {"type": "second", "capabilities": {"portMappings": true}}]});
    scratch.write("net.d/10-edge.conflist", list.to_string());
    for name in ["first", "second"] {
        let path = scratch.write(&format!("plugins/{name}"), SCRIPT);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    scratch
}

fn own_network() -> PodSandbox {
    let port =
        HostPort { host_ip: String::new(), host_port: 8080, container_port: 80, protocol: "TCP".into() };
    PodSandbox { host_network: false, host_ports: vec![port], ..sandbox() }
}

/// The answers to one order, including later ones.
#[track_caller]
fn perform(performer: &mut Fake, action: PodAction) -> Vec<PodEvent> {
    let events = performer.perform(&action).unwrap();
    if !events.is_empty() {
        return events;
    }
    let later = || Some(performer.observe(Duration::ZERO)).filter(|events| !events.is_empty());
    poll(WAIT, later).expect("an answer")
}

fn prepare(performer: &mut Fake) -> Vec<PodEvent> {
    perform(performer, PodAction::PreparePod(Box::new(own_network())))
}

fn remove(performer: &mut Fake) -> Vec<PodEvent> {
    perform(performer, PodAction::RemovePod { pod: pod(), keep_logs: false })
}

fn prepared() -> [PodEvent; 1] {
    let network = PodNetwork { addresses: vec!["10.9.0.2".into()] };
    [PodEvent::PodPrepared { pod: pod(), network }]
}

/// The calls of plugins since the last look.
fn calls(scratch: &Scratch) -> Vec<String> {
    let path = scratch.join("calls");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let _ = std::fs::remove_file(path);
    text.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
}

const ADDS: [&str; 2] = ["ADD first", "ADD second"];
const DELETES: [&str; 2] = ["DEL second", "DEL first"];

fn read(scratch: &Scratch, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(scratch.join(name)).unwrap()).unwrap()
}

#[test]
fn pod_is_attached_known_and_detached() {
    let scratch = node();
    let mut first = performer(&scratch, FakeWorkloads::default());
    assert_eq!(prepare(&mut first), prepared());
    let called = std::fs::read_to_string(scratch.join("calls")).unwrap();
    assert_eq!(called, "ADD first uid-1 eth0 /fake/uid-1/net\nADD second uid-1 eth0 /fake/uid-1/net\n");
    calls(&scratch);
    let asked = read(&scratch, "in.second.ADD");
    assert_eq!(asked["prevResult"]["ips"][0]["address"], "10.9.0.2/24");
    assert_eq!(asked["runtimeConfig"]["portMappings"][0]["hostPort"], 8080);
    let order = first.workloads().pods()[0].order.clone().unwrap();
    assert!(order.files["hosts"].contains("10.9.0.2\tedge\n"), "{}", order.files["hosts"]);
    assert_eq!(prepare(&mut first), prepared(), "repeated, it is there");

    // the next agent knows the pod, and detaches it with its original configuration
    let board = first.workloads().after_restart();
    drop(first);
    let mut next = performer(&scratch, board);
    let PodEvent::Inventory(inventory) = next.inventory() else { panic!() };
    assert_eq!(inventory.pods[0].network, Some(PodNetwork { addresses: vec!["10.9.0.2".into()] }));
    scratch.write("net.d/00-other.conflist", "{");
    assert_eq!(remove(&mut next), [PodEvent::PodRemoved { pod: pod() }]);
    assert_eq!(calls(&scratch), DELETES);
    assert_eq!(read(&scratch, "in.first.DEL")["prevResult"], asked["prevResult"]);
    assert_eq!(next.inventory(), PodEvent::Inventory(Inventory::default()));
}

#[track_caller]
fn check_failure(limit: Duration, script: &str, part: &str) {
    let scratch = node();
    let plugins = Plugins {
        configurations: scratch.join("net.d"),
        programs: vec![scratch.join("none"), scratch.join("plugins")],
        limit,
    };
    let mut performer = performer_with(&scratch, FakeWorkloads::default(), plugins);
    let behaviour = scratch.write("do.second.ADD", script);
    let events = prepare(&mut performer);
    let words = "failed to setup network for sandbox \"uid-1\": ";
    check_failed(&events, &Command::PreparePod(pod()), FailureReason::Network, words);
    check_failed(&events, &Command::PreparePod(pod()), FailureReason::Network, part);
    assert_eq!(calls(&scratch), [ADDS, DELETES].concat(), "what was begun is undone");
    // a later try starts anew
    std::fs::remove_file(behaviour).unwrap();
    let again = match limit {
        WAIT => prepare(&mut performer),
        _ => return,
    };
    assert_eq!(again, prepared());
    assert_eq!(calls(&scratch), [DELETES, ADDS].concat());
    assert_eq!(remove(&mut performer), [PodEvent::PodRemoved { pod: pod() }]);
}

#[test]
fn failed_cni_add_is_reported_and_undone() {
    let words = r#"echo '{"code":11,"msg":"no room","details":"of 254"}'; exit 1"#;
    check_failure(WAIT, words, "plugin type=\"second\" failed (add): no room; of 254");
    check_failure(WAIT, "echo garbage; exit 0", "its answer \"garbage\" cannot be read");
    check_failure(WAIT, "exec cat /dev/zero", "failed (add): its answer is longer than 65536 bytes");
    check_failure(WAIT, "echo '{}'; exit 0", "its plugins gave no address to eth0");
    check_failure(WAIT, "kill -9 $$", "failed (add): signal: 9 (SIGKILL)");
}

#[test]
fn plugin_that_hangs_is_killed() {
    check_failure(Duration::from_secs(3), "exec sleep 1000", "failed (add): not done after 3 s");
}

#[test]
fn plugin_that_hangs_holds_up_no_pod_of_the_host() {
    let scratch = node();
    scratch.write("do.first.ADD", "while [ ! -f go ]; do sleep 0.1; done");
    let mut performer = performer(&scratch, FakeWorkloads::default());
    let waits = performer.perform(&PodAction::PreparePod(Box::new(own_network()))).unwrap();
    assert_eq!(waits, []);
    let uid = PodUid::new("uid-2").unwrap();
    let other = PodSandbox { uid: uid.clone(), ..sandbox() };
    let events = performer.perform(&PodAction::PreparePod(Box::new(other))).unwrap();
    assert_eq!(events, [PodEvent::PodPrepared { pod: uid, network: PodNetwork::default() }]);
    scratch.write("go", "");
    let later = || Some(performer.observe(Duration::ZERO)).filter(|events| !events.is_empty());
    assert_eq!(poll(WAIT, later).unwrap(), prepared());
}

#[test]
fn next_agent_undoes_what_a_killed_one_began() {
    let scratch = node();
    let behaviour = scratch.write("do.second.ADD", "touch reached; while [ ! -f go ]; do sleep 0.1; done");
    let mut first = performer(&scratch, FakeWorkloads::default());
    assert_eq!(first.perform(&PodAction::PreparePod(Box::new(own_network()))).unwrap(), []);
    poll(WAIT, || scratch.join("reached").exists().then_some(())).expect("the second plugin");
    let board = first.workloads().after_restart();
    std::fs::remove_file(behaviour).unwrap();
    // the answer of its plugins is lost with the agent
    scratch.write("go", "");
    drop(first);
    let mut next = performer(&scratch, board);
    let PodEvent::Inventory(inventory) = next.inventory() else { panic!() };
    assert_eq!(inventory.pods[0].network, None, "it is not prepared");
    assert_eq!(prepare(&mut next), prepared());
    let called = calls(&scratch);
    assert_eq!(called, [ADDS, DELETES, ADDS].concat());
}

#[test]
fn failed_network_deletion_is_reported_and_retried() {
    let scratch = node();
    let mut performer = performer(&scratch, FakeWorkloads::default());
    prepare(&mut performer);
    calls(&scratch);
    let behaviour = scratch.write("do.second.DEL", r#"echo '{"code":5,"msg":"no iptables"}'; exit 1"#);
    let events = remove(&mut performer);
    let words = "failed to destroy network for sandbox \"uid-1\": plugin type=\"second\" failed (delete): no iptables";
    check_failed(&events, &Command::RemovePod(pod()), FailureReason::Network, words);
    assert_eq!(calls(&scratch), DELETES, "the others are asked all the same");
    assert_eq!(performer.workloads().pods().len(), 1, "it is not forgotten");
    std::fs::remove_file(behaviour).unwrap();
    assert_eq!(remove(&mut performer), [PodEvent::PodRemoved { pod: pod() }]);
}

#[test]
fn network_needs_its_file_and_its_programs() {
    let scratch = node();
    let plugins = |programs: &str| Plugins {
        configurations: scratch.join("net.d"),
        programs: vec![scratch.join(programs)],
        limit: WAIT,
    };
    assert_eq!(plugins("plugins").look(), PodNetworks::Ready("edge".into()));
    let missing = plugins("other").network().unwrap_err();
    assert!(missing.starts_with("failed to find plugin \"first\" in path ["), "{missing}");
    scratch.write("net.d/05-bad.conf", "{}");
    let bad = plugins("plugins").network().unwrap_err();
    assert!(bad.contains("05-bad.conf: name is"), "the next one would be another network: {bad}");
    scratch.write("net.d/05-bad.conf", "x".repeat(cni::CONFIG_BYTES + 1));
    assert!(plugins("plugins").network().unwrap_err().contains("05-bad.conf"));
    std::fs::remove_dir_all(scratch.join("net.d")).unwrap();
    let none = plugins("plugins").network().unwrap_err();
    assert!(none.starts_with("no network config found in "), "{none}");
}
