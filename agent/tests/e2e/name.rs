//! A node's name: taken from its kubeconfig, on a machine whose host name differs.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use kedge_rig::cluster::Cluster;
use kedge_rig::power_cut::print_past_test_runner;
use kedge_rig::scratch::{Scratch, wait_until};

use crate::setup::{Setup, is_root, plain};

const NODE: &str = "edge-21";
const LIMIT: Duration = Duration::from_secs(60);

/// An agent without a supervisor, on a machine of that name; it ends with the test.
struct Alone(Child);

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn agent(scratch: &Scratch, flags: &[&str]) -> Alone {
    let at = |name: &str| scratch.join(name).display().to_string();
    let child = Command::new("unshare")
        .args([
            "--uts",
            "sh",
            "-c",
            "hostname raspberrypi && exec \"$0\" \"$@\"",
            env!("CARGO_BIN_EXE_kedge"),
        ])
        .args(["agent", "--crun", "", "--config-dir", "", "--kubeconfig", &at("kubeconfig")])
        .args(["--root-dir", &at("state"), "--run-dir", &at("run")])
        .args(flags)
        .env_remove("NOTIFY_SOCKET")
        .stderr(std::fs::File::create(scratch.join("log")).unwrap())
        .spawn();
    Alone(child.unwrap())
}

fn logs(scratch: &Scratch, text: &str) {
    wait_until(text, LIMIT, || std::fs::read_to_string(scratch.join("log")).unwrap().contains(text));
}

/// A hub, and where the kubeconfig is that it made for the node.
fn hub_and_kubeconfig(name: &str) -> Option<(Setup, PathBuf)> {
    if !is_root() {
        print_past_test_runner("SKIPPED: a machine with a name of its own needs root");
        return None;
    }
    let mut cluster = Cluster::start(name).unwrap();
    cluster.add(NODE, plain()).unwrap();
    let kubeconfig = cluster.scratch().join(NODE).join("kubeconfig");
    Some((Setup { cluster }, kubeconfig))
}

fn kedge(scratch: &Scratch, words: &[&str]) -> String {
    let at = |name: &str| scratch.join(name).display().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_kedge"))
        .args(words)
        .args(["--root-dir", &at("state"), "--run-dir", &at("run")])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A device starts without a kubeconfig, which arrives after its first start, as in a shop.
#[test]
fn machine_called_raspberrypi_joins_as_its_kubeconfig_says() {
    let Some((setup, kubeconfig)) = hub_and_kubeconfig("raspberrypi") else { return };
    let scratch = Scratch::new("raspberrypi").unwrap();
    let _agent = agent(&scratch, &[]);
    logs(&scratch, "kubeconfig");
    std::fs::copy(kubeconfig, scratch.join("kubeconfig")).unwrap();
    setup.shows("the node, with a Lease", |world| world.renewal_count(NODE) > 0);
    let node = setup.cluster.kubectl().json(&["get", "node", NODE]).unwrap();
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "raspberrypi");
    logs(&scratch, "the kubeconfig is another node's, taking its name");
    // and from the beginning, once it is there
    let again = Scratch::new("raspberrypi").unwrap();
    std::fs::copy(scratch.join("kubeconfig"), again.join("kubeconfig")).unwrap();
    let before = setup.cluster.view().look(|world| world.renewal_count(NODE));
    drop(_agent);
    let _agent = agent(&again, &[]);
    setup.shows("the same node", |world| world.renewal_count(NODE) > before);
    assert!(!std::fs::read_to_string(again.join("log")).unwrap().contains("taking its name"));
}

#[test]
fn name_that_is_not_the_credentials_is_told_everywhere() {
    let Some((_setup, kubeconfig)) = hub_and_kubeconfig("other-name") else { return };
    let scratch = Scratch::new("other-name").unwrap();
    std::fs::copy(kubeconfig, scratch.join("kubeconfig")).unwrap();
    let _agent = agent(&scratch, &["--hostname-override", "n2"]);
    let sentence = "is node edge-21's, this agent calls itself n2: set --hostname-override edge-21 in /etc/default/kedge";
    logs(&scratch, sentence);
    let status = kedge(&scratch, &["status"]);
    assert!(status.contains(sentence), "{status}");
    // the command queries the agent, however that was started
    let doctor = kedge(&scratch, &["doctor", "--environment-file", "", "--config-dir", ""]);
    let line = doctor.lines().find(|line| line.contains(" name ")).unwrap_or_else(|| panic!("{doctor}"));
    assert!(line.starts_with("FAIL") && line.contains("is node edge-21's"), "{doctor}");
    assert!(doctor.contains("-> set --hostname-override edge-21"), "{doctor}");
    assert!(!doctor.contains("no --kubeconfig is given") && !doctor.contains(" of 9 kinds"), "{doctor}");
}
