//! Requests that only a node can answer, through real kubectl: the hub calls, the node opens a connection, a
//! process of its own serves it.
//!
//! The logs are files that the tests write, for a pod whose containers never start: `tests/workloads` tests
//! the logs of real containers.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use kedge_rig::agent::Agent;
use kedge_rig::babysitter::Signal;
use kedge_rig::link::{Link, LinkState};
use kedge_rig::scratch::wait_until;
use serde_json::json;

use crate::setup::{NODE, PATIENCE, Setup, payload, plain};

/// Like [`with_logs`], with a link between the node and its hub that a test can cut.
fn with_logs_behind_a_link(purpose: &str) -> (Setup, PathBuf, Link) {
    let mut link = None;
    let (setup, logs) = with_logs_and(purpose, "", |hub, agent| {
        let between = Link::start(hub.parse().unwrap()).unwrap();
        let kubeconfig = fs::read_to_string(agent.kubeconfig()).unwrap();
        agent.replace_kubeconfig(&kubeconfig.replace(hub, &between.address().to_string())).unwrap();
        link = Some(between);
    });
    (setup, logs, link.expect("it is made before the agent starts"))
}

/// A node that keeps logs in a directory of the test's, and pods `web` and `web-2` of two labels that are
/// bound to it.
fn with_logs(purpose: &str, more: &str) -> (Setup, PathBuf) {
    with_logs_and(purpose, more, |_, _| {})
}

fn with_logs_and(purpose: &str, more: &str, prepare: impl FnOnce(&str, &Agent)) -> (Setup, PathBuf) {
    let mut setup = Setup::with_hub(purpose);
    let hub = setup.cluster.hub().address().to_owned();
    let logs = setup.cluster.scratch().join("logs");
    let agent = setup.cluster.add(NODE, plain()).unwrap();
    let fields = format!("{}podLogsDir: {}\n{more}", kedge_rig::cluster::HEADER, logs.display());
    agent.write_drop_in("20-logs.conf", &fields).unwrap();
    prepare(&hub, agent);
    agent.start().unwrap();
    setup.shows("a node with a Lease", |world| world.renewal_count(NODE) > 0);
    for name in ["web", "web-2"] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}},
            "spec": {"nodeName": NODE, "containers": [{"name": "app", "image": "i"}]}});
        setup.cluster.kubectl().feed(&["create", "-f", "-"], &pod.to_string()).unwrap();
        let directory = logs.join(format!("default_{name}_uid-{name}/app"));
        fs::create_dir_all(&directory).unwrap();
        let line =
            |number: u32, text: &str| format!("2026-11-23T04:00:0{number}.000000000Z stdout F {text}\n");
        fs::write(directory.join("0.log"), line(0, "before")).unwrap();
        fs::write(directory.join("1.log.1"), line(1, &format!("one of {name}"))).unwrap();
        fs::write(directory.join("1.log"), line(2, "two") + &line(3, "three")).unwrap();
    }
    (setup, logs)
}

/// Processes of this test's node that serve a session.
fn sessions(setup: &Setup) -> usize {
    let run_dir = setup.agent().run_dir().display().to_string();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let words = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    words.filter(|words| words.contains(" session ") && words.contains(&run_dir)).count()
}

#[track_caller]
fn check_forms(setup: &Setup) {
    let kubectl = setup.cluster.kubectl();
    let check = |line: &str, expect: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(kubectl.run(&words).unwrap(), expect, "kubectl {line}");
    };
    let fails = |line: &str, expect: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let error = kubectl.run(&words).unwrap_err().to_string();
        assert!(error.contains(expect), "kubectl {line}: {error}");
    };
    check("logs web", "one of web\ntwo\nthree\n");
    check("logs web -c app --tail=1", "three\n");
    check("logs web --tail=0", "");
    check("logs web --limit-bytes=5", "one o");
    check(
        "logs web --since-time=2026-11-23T04:00:03Z --timestamps",
        "2026-11-23T04:00:03.000000000Z three\n",
    );
    check("logs web --since=1s", "");
    check("logs web --previous", "before\n");
    check("logs -l app=web --tail=1", "three\nthree\n");
    // kubectl asks for one pod after the other, in any order: it has them in a map
    let by_pods = kubectl.run(&["logs", "-l", "app=web", "--tail=3", "--prefix"]).unwrap();
    let of =
        |pod: &str| format!("[pod/{pod}/app] one of {pod}\n[pod/{pod}/app] two\n[pod/{pod}/app] three\n");
    let orders = [["web", "web-2"], ["web-2", "web"]].map(|names| names.map(of).concat());
    assert!(orders.contains(&by_pods), "{by_pods}");
    fails("logs web -c side", "container side is not valid for pod web");
    fails("logs nobody", "pods \"nobody\" not found");
    assert_eq!(kubectl.run(&["get", "--raw", "/api/v1/nodes/edge-1/proxy/healthz"]).unwrap().trim(), "ok");
    let configz = kubectl.raw("/api/v1/nodes/edge-1/proxy/configz").unwrap();
    assert_eq!(configz["kubeletconfig"]["kind"], "KubeletConfiguration");
    let metrics = kubectl.run(&["get", "--raw", "/api/v1/nodes/edge-1/proxy/metrics"]).unwrap();
    assert!(metrics.contains("kedge_lease_renewals_total"), "{metrics}");
    check_usage(setup);
    wait_until("sessions to end", PATIENCE, || sessions(setup) == 0);
}

/// Checks the machine's resource usage, and its logs.
#[track_caller]
fn check_usage(setup: &Setup) {
    let kubectl = setup.cluster.kubectl();
    let proxy = "/api/v1/nodes/edge-1/proxy";
    let summary = kubectl.raw(&format!("{proxy}/stats/summary")).unwrap();
    assert_eq!(summary["node"]["nodeName"], NODE);
    for field in [
        "cpu/usageNanoCores",
        "memory/workingSetBytes",
        "fs/usedBytes",
        "rlimit/maxpid",
        "network/interfaces",
    ] {
        assert!(summary.pointer(&format!("/node/{field}")).is_some(), "{field}: {summary}");
    }
    let small = kubectl.raw(&format!("{proxy}/stats/summary?only_cpu_and_memory=true")).unwrap();
    assert!(small["node"]["fs"].is_null() && small["node"]["memory"].is_object(), "{small}");
    let metrics = kubectl.run(&["get", "--raw", &format!("{proxy}/metrics/resource")]).unwrap();
    assert!(metrics.contains("\nnode_memory_working_set_bytes "), "{metrics}");
    let listed = kubectl.run(&["get", "--raw", &format!("{proxy}/logs/")]).unwrap();
    assert!(listed.starts_with("<pre>\n"), "{listed}");
    let top = kubectl.run(&["top", "nodes"]).unwrap();
    assert!(top.contains("CPU(cores)") && top.contains(NODE), "{top}");
}

#[test]
fn kubectl_logs_works_in_every_form() {
    let (setup, _) = with_logs("calls-forms", "");
    check_forms(&setup);
}

#[test]
fn kubectl_logs_works_without_watches() {
    let (setup, _) = with_logs("calls-frugal", "kedge:\n  watch: 'off'\n");
    let begun = setup.cluster.kubectl().run(&["logs", "web", "--tail=1"]);
    assert_eq!(begun.unwrap(), "three\n");
    let top = setup.cluster.kubectl().run(&["top", "nodes"]).unwrap_err().to_string();
    assert!(top.contains("(without watches it hears of a call with its next renewal only): edge-1"), "{top}");
}

/// `kubectl logs -f`, and what it prints.
struct Follower {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Follower {
    fn new(setup: &Setup) -> Self {
        let kubectl = setup.cluster.kubectl();
        let mut command = Command::new(kubectl.program());
        command.arg("--kubeconfig").arg(kubectl.kubeconfig()).args(["logs", "-f", "web", "--tail=1"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn append(logs: &std::path::Path, text: &str) {
    let path = logs.join("default_web_uid-web/app/1.log");
    let mut file = fs::File::options().append(true).open(path).unwrap();
    writeln!(file, "2026-11-23T04:00:09.000000000Z stdout F {text}").unwrap();
}

#[test]
fn followed_log_goes_on_while_the_agent_is_killed() {
    let (setup, logs) = with_logs("calls-killed", "");
    let mut follower = Follower::new(&setup);
    assert_eq!(follower.line(), "three\n");
    assert_eq!(sessions(&setup), 1);
    setup.agent().babysitter().signal(Signal::SIGKILL);
    append(&logs, "four");
    assert_eq!(follower.line(), "four\n");
    setup.agent().babysitter().wait_ends(1, PATIENCE).unwrap();
    setup.agent().babysitter().wait_ready(PATIENCE).unwrap();
    append(&logs, "five");
    assert_eq!(follower.line(), "five\n");
    // a new agent takes new calls
    let read =
        kedge_rig::scratch::poll(PATIENCE, || setup.cluster.kubectl().run(&["logs", "web", "--tail=1"]).ok());
    assert_eq!(read.as_deref(), Some("five\n"));
    drop(follower);
    wait_until("the session to end with who asked", PATIENCE, || sessions(&setup) == 0);
}

#[test]
fn followed_log_ends_with_the_hub_and_leaves_nothing() {
    let (mut setup, _) = with_logs("calls-hub", "");
    let mut follower = Follower::new(&setup);
    assert_eq!(follower.line(), "three\n");
    setup.cluster.hub_mut().stop().unwrap();
    setup.cluster.hub_mut().start_again().unwrap();
    assert_eq!(follower.line(), "", "the log breaks off");
    wait_until("the session to end with the hub", PATIENCE, || sessions(&setup) == 0);
    let read =
        kedge_rig::scratch::poll(PATIENCE, || setup.cluster.kubectl().run(&["logs", "web", "--tail=1"]).ok());
    assert_eq!(read.as_deref(), Some("three\n"));
}

#[test]
fn followed_log_goes_on_while_the_program_is_replaced() {
    let (setup, logs) = with_logs("calls-replaced", "");
    let mut follower = Follower::new(&setup);
    assert_eq!(follower.line(), "three\n");
    let uid = setup.pin("edge", &payload(600, 0, "maxPods: 42\n"));
    setup.runs(&uid);
    append(&logs, "four");
    assert_eq!(follower.line(), "four\n");
    assert_eq!(sessions(&setup), 1);
    assert_eq!(setup.cluster.kubectl().run(&["logs", "web", "--tail=1"]).unwrap(), "four\n");
}

#[test]
fn link_that_is_cut_ends_a_session_at_both_ends() {
    let (setup, _, link) = with_logs_behind_a_link("calls-cut");
    let mut follower = Follower::new(&setup);
    assert_eq!(follower.line(), "three\n");
    link.set(LinkState::Cut);
    assert_eq!(follower.line(), "", "the log breaks off");
    assert!(!follower.child.wait().unwrap().success(), "and kubectl says so");
    wait_until("the session to end with the link", PATIENCE, || sessions(&setup) == 0);
    link.set(LinkState::Normal);
    let read =
        kedge_rig::scratch::poll(PATIENCE, || setup.cluster.kubectl().run(&["logs", "web", "--tail=1"]).ok());
    assert_eq!(read.as_deref(), Some("three\n"));
}
