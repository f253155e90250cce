//! Devices that join by the line that the hub prints: from a new machine with a name that all have to a Ready
//! node.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};

use kedge_rig::cluster::Cluster;
use kedge_rig::power_cut::print_past_test_runner;
use kedge_rig::programs;
use kedge_rig::scratch::{Scratch, wait_until};

use crate::setup::{PATIENCE, is_root};

/// A machine called `raspberrypi`, as any new one; its agent, which a loop starts again, ends with the test.
struct Device {
    scratch: Scratch,
    agent: Child,
}

impl Drop for Device {
    fn drop(&mut self) {
        // the loop, and by the namespace's end its agent
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}

const AGAIN: &str = "hostname raspberrypi && while :; do \"$0\" \"$@\"; sleep 0.2; done";

impl Device {
    fn new() -> Self {
        let scratch = Scratch::new("device").unwrap();
        let mut command = Command::new("unshare");
        command.args(["--uts", "--pid", "--kill-child", "--fork", "--mount-proc", "sh", "-c", AGAIN]);
        command.args([env!("CARGO_BIN_EXE_kedge"), "agent", "--crun", "", "--config-dir", ""]);
        let agent = command
            .args(places(&scratch))
            .env_remove("NOTIFY_SOCKET")
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(scratch.join("log")).unwrap())
            .spawn();
        Self { agent: agent.unwrap(), scratch }
    }

    /// The line of the hub, on this device.
    fn join(&self, line: &Line, flags: &[&str]) -> Child {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kedge"))
            .args(&line.words)
            .args(["--environment-file", ""])
            .args(places(&self.scratch))
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        writeln!(child.stdin.take().unwrap(), "{}", line.token).unwrap();
        child
    }

    /// Exit code and output.
    fn joins(&self, line: &Line, flags: &[&str]) -> (i32, String) {
        let output = self.join(line, flags).wait_with_output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!said.contains(&line.token), "the token is shown: {said}");
        (output.status.code().unwrap(), said)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.join("log")).unwrap()
    }
}

fn places(scratch: &Scratch) -> Vec<String> {
    let at = |name: &str| scratch.join(name).display().to_string();
    let flags = [
        ("--kubeconfig", "etc/kubeconfig"),
        ("--bootstrap-kubeconfig", "etc/bootstrap-kubeconfig"),
        ("--root-dir", "root"),
        ("--run-dir", "run"),
    ];
    flags.iter().flat_map(|(flag, name)| [(*flag).to_owned(), at(name)]).collect()
}

/// What `kedge-hub token create` prints for a device.
struct Line {
    words: Vec<String>,
    token: String,
}

fn line(cluster: &Cluster, flags: &[&str]) -> Line {
    let output = Command::new(programs::built("kedge-hub").unwrap())
        .args(["token", "create", "--data-dir"])
        .arg(cluster.kubectl().kubeconfig().parent().unwrap())
        .args(flags)
        .output()
        .unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{said}");
    let words = said.lines().find_map(|line| Some(line.split_once("kedge join ")?.1)).expect(&said);
    let is_token = |word: &&str| word.len() == 23 && word.as_bytes()[6] == b'.' && !word.contains(':');
    let token = said.split_whitespace().find(is_token).expect(&said).to_owned();
    assert!(!words.contains(&token), "{words}: every user of the device would see it");
    let words = std::iter::once("join").chain(words.split_whitespace()).map(str::to_owned);
    Line { words: words.collect(), token }
}

fn cluster(name: &str) -> Option<Cluster> {
    if !is_root() {
        print_past_test_runner("SKIPPED: a machine with a name of its own needs root");
        return None;
    }
    Some(Cluster::start(name).unwrap())
}

#[test]
fn line_that_the_hub_prints_is_taken() {
    let Some(cluster) = cluster("join-line") else { return };
    let device = Device::new();
    let printed = line(&cluster, &["--node", "edge-20"]);
    wait_until("the agent", PATIENCE, || device.scratch.join("run/kedge.sock").exists());
    let (_, said) = device.joins(&printed, &["--timeout", "3s"]);
    assert!(said.contains("bootstrap-kubeconfig is written"), "{said}{}", device.log());
}

#[test]
fn printed_line_ends_with_a_ready_node() {
    let Some(cluster) = cluster("join") else { return };
    let device = Device::new();
    let printed = line(&cluster, &["--node", "edge-21"]);
    let (code, said) = device.joins(&printed, &[]);
    assert!(code == 0 && said.contains("node edge-21 is Ready"), "{said}{}", device.log());
    let node = cluster.kubectl().json(&["get", "node", "edge-21"]).unwrap();
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "raspberrypi");
    let conditions = node["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"), "{node}");

    let at = |name: &str| device.scratch.join(name);
    assert_eq!(std::fs::metadata(at("root/pki/current")).unwrap().permissions().mode() & 0o777, 0o600);
    let secret = printed.token.split_once('.').unwrap().1;
    assert!(!device.log().contains(secret), "{}", device.log());

    let (code, said) = device.joins(&printed, &[]);
    assert!(code == 0 && said.contains("has joined already"), "{said}");
    let (code, said) = Device::new().joins(&printed, &["--timeout", "8s"]);
    assert!(code == 1, "the same line on another device: {said}");
}

#[test]
fn request_of_any_name_waits_for_a_person() {
    let Some(cluster) = cluster("join-any") else { return };
    let device = Device::new();
    let printed = line(&cluster, &["--any-node"]);
    let mut joining = device.join(&printed, &["--node-name", "edge-22"]);
    let mut lines = BufReader::new(joining.stdout.take().unwrap()).lines();
    let advice = lines.find_map(|line| {
        let line = line.unwrap();
        line.split_once("kubectl certificate approve ").map(|(_, request)| request.trim().to_owned())
    });
    let request = advice.expect("it says how to approve");
    cluster.kubectl().run(&["certificate", "approve", &request]).unwrap();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(joining.wait().unwrap().success(), "{rest:?}{}", device.log());
    assert!(rest.last().unwrap().contains("node edge-22 is Ready"), "{rest:?}");
}

#[test]
fn name_of_a_living_node_is_not_taken() {
    let Some(cluster) = cluster("join-taken") else { return };
    let (first, second) = (Device::new(), Device::new());
    let (code, said) = first.joins(&line(&cluster, &["--node", "edge-23"]), &[]);
    assert!(code == 0, "{said}");
    let (code, said) = second.joins(&line(&cluster, &["--node", "edge-23"]), &["--timeout", "15s"]);
    assert!(code == 1 && said.contains("waits for a person to approve"), "{said}{}", second.log());
}
