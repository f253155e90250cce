//! Logs of a real container through kubectl, over their interruptions: rotation, agents that are killed, a
//! reboot.

use crate::pods::{NODE, Setup};
use crate::setup::isolated_network;
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Lines that are followed: three files at least.
const LINES: u64 = 4000;

/// A process that ends with its value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ends all processes on the node, and removes its volatile files.
fn reboot(setup: &mut Setup) {
    setup.turn_off();
    fs::remove_dir_all(setup.cluster.agent(NODE).run_dir()).unwrap();
    setup.cluster.agent_mut(NODE).start().unwrap();
}

#[test]
fn log_goes_on_over_rotation_kills_and_a_reboot() {
    isolated_network("logs::log_goes_on_over_rotation_kills_and_a_reboot", || {
        let mut setup = Setup::before_the_agent();
        let fields = format!("{}containerLogMaxSize: 64Ki\n", kedge_rig::cluster::HEADER);
        setup.cluster.agent(NODE).write_drop_in("20-logs.conf", &fields).unwrap();
        setup.await_pods();
        let script =
            "i=0; while :; do echo line $i; i=$((i+1)); [ $((i % 20)) = 0 ] && busybox usleep 10000; done";
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
            "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [{
                "name": "main", "image": "web:1", "command": ["sh", "-c", script]}]}});
        setup.cluster.kubectl().feed(&["apply", "-f", "-"], &pod.to_string()).unwrap();
        setup.shows("a pod that runs", || setup.runs_with(0));

        // from the last line on, no line is missing and no line is repeated
        let kubectl = setup.cluster.kubectl();
        let mut command = Command::new(kubectl.program());
        command.arg("--kubeconfig").arg(kubectl.kubeconfig()).args(["logs", "-f", "web", "--tail=1"]);
        let mut follower = Running(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(follower.0.stdout.take().unwrap()).lines();
        let mut number = || -> u64 {
            let line = lines.next().expect("it goes on").unwrap();
            line.strip_prefix("line ")
                .and_then(|number| number.parse().ok())
                .unwrap_or_else(|| panic!("{line:?}"))
        };
        let first = number();
        for expect in first + 1..first + LINES {
            assert_eq!(number(), expect);
            if expect == first + LINES / 4 || expect == first + LINES / 2 {
                setup.replace_the_agent();
            }
        }
        drop(follower);
        let uid =
            setup.cluster.kubectl().run(&["get", "pod", "web", "-o", "jsonpath={.metadata.uid}"]).unwrap();
        let files = fs::read_dir(format!("/var/log/pods/default_web_{uid}/main")).unwrap().count();
        assert!(files >= 3, "{files} files: it was rotated");

        reboot(&mut setup);
        setup.shows("the pod again", || setup.runs_with(1));
        let kubectl = setup.cluster.kubectl();
        let previous = kubectl.run(&["logs", "web", "--previous", "--tail=100"]).unwrap();
        let numbers: Vec<u64> =
            previous.lines().filter_map(|line| line.strip_prefix("line ")?.parse().ok()).collect();
        assert!(numbers.len() >= 99 && numbers[0] > first + LINES / 2, "{previous}");
        assert!(numbers.is_sorted(), "{previous}");
        let beginning = kubectl.run(&["logs", "web", "--limit-bytes=7"]).unwrap();
        assert!(beginning.starts_with("line "), "{beginning}");
    });
}
