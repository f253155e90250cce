//! An agent that is killed again and again while pods come, run and end: no container is restarted, lost or
//! doubled, and no line of a log is missing.
//!
//! `KEDGE_CRASH_FULL=1` kills it a hundred times.

use crate::pods::{NODE, Setup};
use crate::setup::{LIMIT, isolated_network, kill, processes};
use kedge_rig::power_cut::is_full;
use kedge_rig::scratch::{poll, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Pods that write a line every 50 ms, each with its number.
const COUNTERS: usize = 4;
/// From the start of an agent to its end: at most this, so that some end before they are ready and some in
/// full work.
const LONGEST_LIFE_MS: usize = 2000;
/// No trial: an agent that is killed so often would fail its trial and hold its pods, and here pods should
/// start and end.
pub(crate) const NO_TRIAL: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionHard: {nodefs.available: 0%, imagefs.available: 0%}\nconfigTrialDuration: 0s\n";

fn pod(name: &str, restart_policy: &str, script: &str, shared: &Path) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 1, "restartPolicy": restart_policy,
        "volumes": [{"name": "shared", "hostPath": {"path": shared}}],
        "containers": [{"name": "main", "image": "web:1", "command": ["/bin/sh", "-c", script, name],
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}]}})
}

fn counter(name: &str, shared: &Path) -> Value {
    pod(name, "Always", "i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done", shared)
}

/// Records its begin and its end in the file that all jobs share.
fn job(name: &str, shared: &Path) -> Value {
    let script = "echo $0 begin >>/shared/ran; seq 1 500; sleep 0.3; echo done; echo $0 end >>/shared/ran";
    pod(name, "Never", script, shared)
}

/// The first processes of this pod's containers, by the last word of their command line.
pub(crate) fn pids(name: &str) -> Vec<i64> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i64>().ok());
    let end = format!("\0{name}\0");
    let is_one = |pid: &i64| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(b"/bin/sh\0-c\0") && line.ends_with(end.as_bytes())
    };
    let all: Vec<i64> = pids.filter(is_one).collect();
    // between fork and exec a child of the shell has its command line
    let is_child = |pid: &i64| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<i64>().ok());
        parent.is_none_or(|parent| all.contains(&parent))
    };
    all.iter().copied().filter(|pid| !is_child(pid)).collect()
}

/// The texts of a pod's log; there is one file for each run.
fn logged(pod: &Value) -> Vec<String> {
    let (name, uid) = (text(&pod["metadata"]["name"]), text(&pod["metadata"]["uid"]));
    let directory = PathBuf::from(format!("/var/log/pods/default_{name}_{uid}/main"));
    let files = fs::read_dir(&directory).unwrap().count();
    assert_eq!(files, 1, "{name} was run once");
    let log = fs::read_to_string(directory.join("0.log")).unwrap();
    log.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned()).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

struct Load {
    setup: Setup,
    shared: PathBuf,
    jobs: BTreeSet<String>,
}

impl Load {
    fn pods(&self) -> Vec<Value> {
        let mut list = self.setup.cluster.kubectl().json(&["get", "pods"]).unwrap();
        list["items"].as_array_mut().unwrap().drain(..).collect()
    }

    fn apply(&self, pods: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": pods}).to_string();
        self.setup.cluster.kubectl().feed(&["apply", "-f", "-"], &list).unwrap();
    }

    /// Deletes the jobs that are reported as done; each has a whole log.
    fn remove_done(&self) {
        let all: Vec<String> = (1..=500).map(|n| n.to_string()).chain(["done".to_owned()]).collect();
        let mut done = Vec::new();
        for pod in self.pods() {
            let name = text(&pod["metadata"]["name"]);
            let status = &pod["status"];
            if !self.jobs.contains(&name) || !pod["metadata"]["deletionTimestamp"].is_null() {
                continue;
            }
            assert_ne!(status["phase"], "Failed", "{status}");
            if status["phase"] == "Succeeded" {
                assert_eq!(status["containerStatuses"][0]["restartCount"], 0, "{status}");
                assert_eq!(logged(&pod), all, "{name}");
                done.push(name);
            }
        }
        if !done.is_empty() {
            let words = ["delete", "pod", "--wait=false"].into_iter().chain(done.iter().map(String::as_str));
            self.setup.cluster.kubectl().run(&words.collect::<Vec<_>>()).unwrap();
        }
    }

    /// Kills the agent, and returns once there is another one, ready or not.
    fn kill_the_agent(&self) {
        let agent = self.setup.cluster.agent(NODE);
        let before = agent.babysitter().state();
        kill(before.pid.unwrap().into());
        agent
            .babysitter()
            .wait_until("another agent", LIMIT, |state| state.runs > before.runs && state.pid.is_some())
            .unwrap();
    }
}

#[test]
fn containers_stay_while_agents_are_killed() {
    isolated_network("killed_agents::containers_stay_while_agents_are_killed", || {
        let kills = if is_full() { 100 } else { 5 };
        let mut setup = Setup::before_the_agent();
        setup.cluster.agent(NODE).write_drop_in("20-no-trial.conf", NO_TRIAL).unwrap();
        let shared = setup.cluster.scratch().join("shared");
        fs::create_dir(&shared).unwrap();
        setup.await_pods();
        let mut load = Load { setup, shared, jobs: BTreeSet::new() };
        let counters: Vec<String> = (0..COUNTERS).map(|n| format!("counter-{n}")).collect();
        load.apply(&counters.iter().map(|name| counter(name, &load.shared)).collect::<Vec<_>>());
        let running = || -> Option<Vec<Vec<i64>>> {
            let all: Vec<Vec<i64>> = counters.iter().map(|name| pids(name)).collect();
            all.iter().all(|pids| !pids.is_empty()).then_some(all)
        };
        let begun = poll(LIMIT, running).unwrap();
        assert!(begun.iter().all(|pids| pids.len() == 1), "{begun:?}");

        let mut random: usize = 1;
        for round in 0..kills {
            let name = format!("job-{round}");
            load.apply(&[job(&name, &load.shared)]);
            load.jobs.insert(name);
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // only the moment differs from kill to kill; nothing is awaited
            thread::sleep(Duration::from_millis(((random >> 33) % LONGEST_LIFE_MS) as u64));
            load.kill_the_agent();
            assert_eq!(running().as_ref(), Some(&begun), "after {} kills", round + 1);
            load.remove_done();
        }

        let ended = poll(5 * LIMIT, || {
            load.remove_done();
            (load.pods().len() == COUNTERS).then_some(())
        });
        assert!(ended.is_some(), "{:?}\n{}", load.pods(), load.setup.cluster.agent(NODE).log_text());
        let mut expect: Vec<String> =
            load.jobs.iter().flat_map(|name| [format!("{name} begin"), format!("{name} end")]).collect();
        let ran = fs::read_to_string(load.shared.join("ran")).unwrap();
        let mut ran: Vec<String> = ran.lines().map(str::to_owned).collect();
        expect.sort();
        ran.sort();
        assert_eq!(ran, expect, "each job was run once, to its end");

        assert_eq!(running(), Some(begun));
        let mut lines = 0;
        for pod in load.pods() {
            let status = &pod["status"]["containerStatuses"][0];
            assert_eq!(
                (status["restartCount"].as_u64(), &status["ready"]),
                (Some(0), &json!(true)),
                "{status}"
            );
            let logged = logged(&pod);
            let expect: Vec<String> = (0..logged.len()).map(|n| n.to_string()).collect();
            assert!(logged == expect, "{}: a line is missing or doubled", pod["metadata"]["name"]);
            lines += logged.len();
        }
        eprintln!("{kills} kills, {} jobs, {lines} lines of {COUNTERS} pods", load.jobs.len());
        assert!(lines > kills * COUNTERS, "they wrote all the time");
        let words = ["delete", "pod", "--all", "--timeout=120s"];
        load.setup.cluster.kubectl().run(&words).unwrap();
        wait_until("the end of all shims", LIMIT, || processes("shim").is_empty());
    });
}
