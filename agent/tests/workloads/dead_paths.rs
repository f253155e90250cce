//! A pod's path on a server that stops answering, with a real hub, a real agent and crun: which parts of the
//! pod hang, and that nothing else does.

use crate::pods::{NODE, Setup};
use crate::setup::{LIMIT, isolated, isolated_network};
use kedge_platform::trees;
use kedge_rig::Scratch;
use kedge_rig::cluster::{HEADER, Source};
use kedge_rig::dead_disk::{DeadDisk, FILE};
use kedge_rig::scratch::wait_until;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// The hub's grace period: a node that was silent for longer is lost.
pub(crate) const MOST_SILENCE: Duration = Duration::from_secs(40);

pub(crate) fn pod(name: &str, path: Option<&Path>, script: &str) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
        "containers": [{"name": "main", "image": "web:1", "command": ["/bin/sh", "-c", script]}]}});
    if let Some(path) = path {
        pod["spec"]["volumes"] = json!([{"name": "far", "hostPath": {"path": path, "type": "Directory"}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "far", "mountPath": "/far"}]);
    }
    pod
}

/// Processes of this command line that wait in the kernel, where no signal ends them.
fn stuck(line: &str) -> usize {
    let is_stuck = |pid: &str| {
        let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let words = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        let status = String::from_utf8_lossy(&read("status")).into_owned();
        words.trim().ends_with(line) && status.lines().any(|line| line.starts_with("State:\tD"))
    };
    let pids =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    pids.filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit()) && is_stuck(pid)).count()
}

pub(crate) fn dead_disk(at: &Path) -> Option<DeadDisk> {
    let disk = DeadDisk::mount(at);
    assert!(disk.is_some() || std::env::var_os("CI").is_none(), "no FUSE on this machine");
    if disk.is_none() {
        kedge_rig::power_cut::print_past_test_runner("SKIPPED: no FUSE on this machine");
    }
    disk
}

impl Setup {
    pub(crate) fn apply(&self, pod: &Value) {
        self.cluster.kubectl().feed(&["apply", "-f", "-"], &pod.to_string()).unwrap();
    }

    fn is_running(&self, name: &str) -> bool {
        let pod = self.cluster.kubectl().json(&["get", "pod", name]).unwrap_or_default();
        pod["status"]["phase"] == "Running"
    }

    pub(crate) fn has_event(&self, parts: &[&str]) -> bool {
        let events = self.cluster.kubectl().run(&["get", "events"]).unwrap_or_default();
        events.lines().any(|line| parts.iter().all(|part| line.contains(part)))
    }

    pub(crate) fn push(&self, name: &str) -> String {
        let payload = format!("{HEADER}maxPods: 77\n");
        let uid = self.cluster.create_config(name, &payload).unwrap();
        self.cluster.assign(NODE, &Source::Following { name: name.into() }).unwrap();
        uid
    }

    pub(crate) fn config_ok(&self) -> (String, String) {
        self.cluster.view().look(|world| {
            let found = world.condition(NODE, "ConfigOK");
            found
                .map(|(status, message, reason)| (status.into(), format!("{message}: {reason}")))
                .unwrap_or_default()
        })
    }

    #[track_caller]
    fn was_never_silent(&self, since: Instant) {
        let silence = self.cluster.view().look(|world| world.longest_silence(NODE, since));
        assert!(silence < MOST_SILENCE, "the node was silent for {silence:?}");
    }
}

#[test]
fn dead_host_path_holds_up_its_own_pod_only() {
    isolated_network("dead_paths::dead_host_path_holds_up_its_own_pod_only", || {
        let setup = Setup::with_runtime();
        let began = Instant::now();
        let far = setup.cluster.agent(NODE).root_dir().with_file_name("far");
        let Some(disk) = dead_disk(&far) else { return };
        disk.die();
        setup.apply(&pod("stuck", Some(&far), "exec sleep 86321"));
        wait_until("a look at the path", LIMIT, || disk.waiting() > 0);

        // others start and go
        setup.apply(&pod("other", None, "exec sleep 86322"));
        setup.shows("another pod Running", || setup.is_running("other"));
        setup.cluster.kubectl().run(&["delete", "pod", "other", "--timeout=30s"]).unwrap();

        // the pod waits, and reports for what; its tries leave one stuck process
        let words = format!("hostPath {} does not answer", far.display());
        setup.shows("an Event that says why", || setup.has_event(&["pod/stuck", "FailedMount", &words]));
        setup.shows("a reason that says why", || {
            let pod = setup.cluster.kubectl().json(&["get", "pod", "stuck"]).unwrap_or_default();
            let waits = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
            waits["reason"] == "ContainerCreating"
                && waits["message"].as_str().is_some_and(|it| it.contains(&words))
        });
        assert_eq!(stuck("look"), 1);

        // a pushed config is adopted in place, and the heartbeat continues
        let before = setup.cluster.agent(NODE).babysitter().state();
        let uid = setup.push("edge-next");
        let runs = format!("using current (UID: {uid})");
        setup.shows("the pushed configuration", || {
            let (status, words) = setup.config_ok();
            status == "True" && words.starts_with(&runs)
        });
        let now = setup.cluster.agent(NODE).babysitter().state();
        assert_eq!(now.pid, before.pid, "the program has taken its own place");
        // the next agent tries the same, knows of that process, and leaves one for another pod
        setup.apply(&pod("late", Some(&far), "exec sleep 86321"));
        setup.shows("an Event of another pod", || setup.has_event(&["pod/late", "FailedMount", &words]));
        assert_eq!(stuck("look"), 2);
        setup.was_never_silent(began);

        // it can be deleted, and the agent can be stopped
        setup.cluster.kubectl().run(&["delete", "pod", "stuck", "late", "--timeout=40s"]).unwrap();
        let mut setup = setup;
        let asked = Instant::now();
        setup.cluster.agent_mut(NODE).stop().unwrap();
        assert!(asked.elapsed() < Duration::from_secs(6), "the unit's TimeoutStopSec=");

        // the server is back, and with it the pod
        disk.revive();
        wait_until("the end of the look", LIMIT, || stuck("look") == 0);
        setup.cluster.agent_mut(NODE).start().unwrap();
        setup.apply(&pod("back", Some(&far), "cat /far/data; exec sleep 86323"));
        setup.shows("the pod on a server that answers", || setup.is_running("back"));
    });
}

#[test]
fn dead_path_in_a_container_holds_up_one_probe() {
    isolated_network("dead_paths::dead_path_in_a_container_holds_up_one_probe", || {
        let setup = Setup::with_runtime();
        let far = setup.cluster.agent(NODE).root_dir().with_file_name("far");
        let Some(disk) = dead_disk(&far) else { return };
        let mut probed = pod("probed", Some(&far), "exec sleep 86321");
        let line = format!("cat /far/{FILE}");
        probed["spec"]["containers"][0]["readinessProbe"] = json!({"exec": {"command": ["/bin/sh", "-c", format!("{line}; true")]},
            "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 1});
        setup.apply(&probed);
        setup.apply(&pod("again", Some(&far), "exit 1"));
        setup.shows("a container that ended", || setup.has_event(&["pod/again", "BackOff"]));
        setup.shows("the pod Ready", || {
            let pod = setup.cluster.kubectl().json(&["get", "pod", "probed"]).unwrap_or_default();
            pod["status"]["containerStatuses"][0]["ready"] == true
        });
        disk.die();
        // its last program is still stuck, so no other one starts
        setup.shows("a probe that does not begin", || {
            setup.has_event(&["pod/probed", "Unhealthy", "was not run: process", "does not end"])
        });
        assert_eq!(stuck(&line), 1);

        // a container that should restart reports why it does not, and delays no other
        let words = format!("hostPath {} does not answer", far.display());
        setup.shows("why it is not created", || setup.has_event(&["pod/again", "Failed", &words]));
        setup.apply(&pod("other", None, "exec sleep 86322"));
        setup.shows("another pod Running", || setup.is_running("other"));
        disk.revive();
        wait_until("the end of what hung", LIMIT, || stuck(&line) == 0);
    });
}

/// An administrator may mount one inside a pod's directory: a program that looks at it hangs, and the agent
/// would hang with it at its next exit.
#[test]
fn dead_mount_in_a_tree_is_not_looked_at() {
    isolated("dead_paths::dead_mount_in_a_tree_is_not_looked_at", || {
        let scratch = Scratch::new("dead-tree").unwrap();
        scratch.write("tree/a/b/file", "x");
        let Some(disk) = dead_disk(&scratch.join("tree/a/far")) else { return };
        disk.die();
        let (tell, told) = std::sync::mpsc::channel();
        let tree = scratch.join("tree");
        std::thread::spawn(move || {
            let size = trees::measure(&tree, 100).unwrap();
            let _ = tell.send((size.inodes, trees::remove(&tree).unwrap_err().to_string()));
        });
        let (inodes, why) = told.recv_timeout(LIMIT).expect("nothing hangs");
        assert_eq!((inodes, disk.waiting()), (4, 0));
        assert!(why.contains("cross-device") || why.contains("busy"), "{why}");
        assert!(!scratch.join("tree/a/b/file").exists(), "all else is removed");
    });
}

#[test]
fn runtime_that_hangs_defers_a_push() {
    isolated_network("dead_paths::runtime_that_hangs_defers_a_push", || {
        let mut setup = Setup::before_the_agent();
        let volumes = setup.cluster.agent(NODE).root_dir().join("volumes");
        let Some(disk) = dead_disk(&volumes) else { return };
        setup.await_pods();
        let began = Instant::now();
        disk.die();
        let mut waits = pod("waits", None, "exec sleep 86321");
        waits["spec"]["volumes"] = json!([{"name": "own", "emptyDir": {}}]);
        setup.apply(&waits);
        wait_until("the runtime's loop at its own disk", LIMIT, || disk.waiting() > 0);
        let before = setup.cluster.agent(NODE).babysitter().state();
        let uid = setup.push("edge-next");
        setup.shows("why it is not used yet", || {
            let (status, words) = setup.config_ok();
            status == "Unknown"
                && words.contains("the runtime does not answer: it is at this: prepare pod default/waits")
        });
        let renewals = |setup: &Setup| setup.cluster.view().look(|world| world.renewal_count(NODE));
        let seen = renewals(&setup);
        setup.shows("renewals that go on", || renewals(&setup) > seen + 1);
        let now = setup.cluster.agent(NODE).babysitter().state();
        assert_eq!((now.pid, now.runs), (before.pid, before.runs), "the agent did not end");

        // once it answers, the configuration is used
        disk.revive();
        let runs = format!("using current (UID: {uid})");
        setup.shows("the pushed configuration", || {
            let (status, words) = setup.config_ok();
            status == "True" && words.starts_with(&runs)
        });
        setup.was_never_silent(began);
    });
}
