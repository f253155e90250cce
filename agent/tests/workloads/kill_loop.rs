//! Agent, crun, shims, hub and network plugins that are killed at random while pods come, run and end.
//!
//! Always holds: no container runs twice, only one whose own shim was killed starts again, and once more for
//! each crun that was killed while it made or started it (that attempt failed, and counts), the Lease is
//! renewed, and nothing is left of pods that are gone: processes, mounts, control groups, addresses, rules,
//! links, records.
//!
//! `KEDGE_CRASH_FULL=1` kills 500 times, not 30. After every few kills of the agent another configuration is
//! pushed: more than ten kills under one would hold the pods, and then nothing begins that could be killed.

use crate::killed_agents::{NO_TRIAL, pids};
use crate::pods::{NODE, Setup, put_network};
use crate::setup::{INSIDE, LIMIT, isolated_network, processes};
use kedge_platform::linux::Roots;
use kedge_platform::workloads::{Crun, probe};
use kedge_rig::Random;
use kedge_rig::power_cut::is_full;
use kedge_rig::scratch::{poll, wait_until};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Pods that stay; those with an odd number have a network of their own.
const STAYING: usize = 4;
/// Kills of the agent under one configuration: two fewer than hold the pods after the next.
const KILLS_OF_ONE_CONFIG: usize = 8;
/// How long a program that lives for milliseconds is waited for.
const CATCH: Duration = Duration::from_secs(2);
/// Longest time between two renewals of the Lease: its duration. Hubs that were killed do not count.
const LEASE: Duration = Duration::from_secs(40);
/// How long a container may wait after many killed shims: the longest back-off of restarts is five minutes.
const BACK_OFF: Duration = Duration::from_secs(330);

fn pod(name: &str, host_network: bool, policy: &str, script: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeName": NODE, "hostNetwork": host_network, "terminationGracePeriodSeconds": 1, "restartPolicy": policy,
        "automountServiceAccountToken": false,
        "containers": [{"name": "main", "image": "web:1", "command": ["/bin/sh", "-c", script, name]}]}})
}

/// Processes with this name, as the kernel has it, that live.
fn named(name: &str) -> Vec<i64> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let found = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i64>().ok());
    found
        .filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name)
        })
        .collect()
}

/// A signal to a process that may have ended.
fn try_kill(pid: i64) -> bool {
    Command::new("/usr/bin/env").args(["kill", "-KILL", &pid.to_string()]).output().unwrap().status.success()
}

/// The words with which a process was started.
fn words(pid: i64) -> Option<Vec<String>> {
    let line = String::from_utf8(fs::read(format!("/proc/{pid}/cmdline")).ok()?).ok()?;
    Some(line.split('\0').map(str::to_owned).collect())
}

/// The UID of the pod to which this path in its bundle belongs.
fn pod_of(path: &str) -> Option<String> {
    Some(path.split("/pods/").nth(1)?.split('/').next()?.to_owned())
}

/// The pod whose container this crun makes or starts.
fn started_by(pid: i64) -> Option<String> {
    let words = words(pid)?;
    let starts = words.iter().any(|word| word == "create" || word == "start");
    words.iter().find_map(|word| pod_of(word)).filter(|_| starts)
}

/// The shims, by the pod whose container they have.
fn shims() -> BTreeMap<String, i64> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i64>().ok());
    let shim = |pid: i64| {
        let words = words(pid)?;
        let bundle = words.get(2).filter(|_| words[1] == "shim")?;
        Some((pod_of(bundle)?, pid))
    };
    pids.filter_map(shim).collect()
}

struct Load {
    setup: Setup,
    random: Random,
    staying: Vec<String>,
    jobs: BTreeSet<String>,
    /// Shims that were killed, and cruns that made or started a container, by the UID of their pod.
    starters_killed: BTreeMap<String, u64>,
    kills: BTreeMap<&'static str, usize>,
    pushes: usize,
}

impl Load {
    fn kubectl(&self, words: &[&str]) -> Option<String> {
        self.setup.cluster.kubectl().run(words).ok()
    }

    fn below(&mut self, count: usize) -> usize {
        self.random.below(count as u64) as usize
    }

    fn pods(&self) -> Vec<Value> {
        let list = self.setup.cluster.kubectl().json(&["get", "pods"]).unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    fn apply(&self, pods: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": pods}).to_string();
        let apply = || self.setup.cluster.kubectl().feed(&["apply", "-f", "-"], &list).ok();
        poll(LIMIT, apply).expect("a hub that takes pods");
    }

    /// One more pod that comes and goes, and the end of an earlier one.
    fn churn(&mut self, round: usize) {
        let name = format!("job-{round}");
        self.apply(&[pod(&name, round.is_multiple_of(4), "OnFailure", "sleep 0.5")]);
        self.jobs.insert(name);
        if self.jobs.len() > 4 {
            let oldest = self.jobs.pop_first().unwrap();
            self.kubectl(&["delete", "pod", &oldest, "--wait=false"]);
        }
    }

    /// Kills a program that lives for milliseconds, if one comes while pods come and go.
    fn catch(&mut self, names: &[&str], round: usize) -> bool {
        let moment = Duration::from_millis(self.random.below(10));
        let (is_killed, pod) = thread::scope(|scope| {
            let caught = scope.spawn(move || {
                let end = Instant::now() + CATCH;
                while Instant::now() < end {
                    if let Some(pid) = names.iter().flat_map(|name| named(name)).next() {
                        thread::sleep(moment);
                        // its name is looked at again, for its ID may have passed to another
                        if names.iter().any(|name| named(name).contains(&pid)) {
                            let pod = started_by(pid);
                            return (try_kill(pid), pod);
                        }
                    }
                }
                (false, None)
            });
            self.churn(round);
            caught.join().unwrap()
        });
        if let Some(pod) = pod.filter(|_| is_killed) {
            *self.starters_killed.entry(pod).or_default() += 1;
        }
        is_killed
    }

    fn kill_agent(&self) {
        let agent = self.setup.cluster.agent(NODE);
        let before = agent.babysitter().state();
        if let Some(pid) = before.pid {
            try_kill(pid.into());
        }
        let is_next = |state: &kedge_rig::babysitter::State| state.runs > before.runs && state.pid.is_some();
        agent.babysitter().wait_until("another agent", LIMIT, is_next).unwrap();
    }

    /// A configuration under which no agent was killed, if it is time for one.
    fn push(&mut self) {
        let killed = self.kills.get("agent").copied().unwrap_or(0);
        if killed / KILLS_OF_ONE_CONFIG > self.pushes {
            self.pushes = killed / KILLS_OF_ONE_CONFIG;
            self.setup.replace_itself(100 + u32::try_from(self.pushes).unwrap());
        }
    }

    fn kill_shim(&mut self) {
        let all: Vec<(String, i64)> = shims().into_iter().collect();
        if all.is_empty() {
            return;
        }
        let (uid, pid) = &all[self.below(all.len())];
        if try_kill(*pid) {
            *self.starters_killed.entry(uid.clone()).or_default() += 1;
        }
    }

    fn kill_one(&mut self, round: usize) {
        let what = ["agent", "crun", "shim", "agent", "plugin", "hub"][self.below(6)];
        let is_killed = match what {
            "crun" => self.catch(&["crun"], round),
            "plugin" => self.catch(&["bridge", "host-local", "portmap", "iptables"], round),
            _ => {
                self.churn(round);
                // the moment is what differs from kill to kill
                thread::sleep(Duration::from_millis(self.random.below(500)));
                true
            }
        };
        match what {
            "shim" => self.kill_shim(),
            "hub" => {
                self.setup.cluster.hub_mut().kill();
                self.setup.cluster.hub_mut().start_again().unwrap();
            }
            "agent" => self.kill_agent(),
            _ => {}
        }
        if is_killed {
            *self.kills.entry(what).or_default() += 1;
        }
        self.push();
    }
}

/// Looks all the time whether a pod's container runs twice.
fn watch_for_doubles<T>(names: &[String], body: impl FnOnce() -> T) -> (T, Vec<String>) {
    let (ends, doubles) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let done = thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                for name in names {
                    // a process that ends is there for a moment: both are, if they are there again
                    let (first, again) = (pids(name), pids(name));
                    if first.len() > 1 && first == again {
                        doubles.lock().unwrap().push(format!("{name}: {first:?}"));
                    }
                }
                thread::sleep(Duration::from_millis(20));
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        ends.store(true, Ordering::Relaxed);
        done
    });
    (done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), doubles.into_inner().unwrap())
}

#[test]
fn kills_of_everything_harm_nothing() {
    isolated_network("kill_loop::kills_of_everything_harm_nothing", || {
        let kills = if is_full() { 500 } else { 30 };
        let mut setup = Setup::before_the_agent();
        setup.cluster.agent(NODE).write_drop_in("20-no-trial.conf", NO_TRIAL).unwrap();
        put_network();
        setup.await_pods();
        let staying: Vec<String> = (0..STAYING).map(|number| format!("stays-{number}")).collect();
        let mut load = Load {
            setup,
            random: Random::new(33),
            staying: staying.clone(),
            jobs: BTreeSet::new(),
            starters_killed: BTreeMap::new(),
            kills: BTreeMap::new(),
            pushes: 0,
        };
        let stays = |(number, name): (usize, &String)| {
            pod(name, number.is_multiple_of(2), "Always", "while :; do sleep 0.1; done")
        };
        load.apply(&staying.iter().enumerate().map(stays).collect::<Vec<_>>());
        let all_run = |load: &Load| load.staying.iter().all(|name| pids(name).len() == 1);
        load.setup.shows("all that stay", || all_run(&load));

        let ((), doubles) = watch_for_doubles(&staying, || {
            let mut round = 0;
            while load.kills.values().sum::<usize>() < kills {
                round += 1;
                load.kill_one(round);
                assert!(round < 10 * kills, "{:?}", load.kills);
            }
            let log = || load.setup.cluster.agent(NODE).log_text();
            let back = poll(BACK_OFF, || all_run(&load).then_some(()));
            assert!(back.is_some(), "waited in vain for all that stay\n{}", log());
        });
        assert_eq!(doubles, [""; 0]);
        eprintln!("measured: kill loop: {:?}, {} pushes", load.kills, load.pushes);

        // the heartbeat goes on
        let renewed = || {
            load.kubectl(&["get", "lease", NODE, "-n", "kube-node-lease", "-o", "jsonpath={.spec.renewTime}"])
        };
        let before = renewed();
        wait_until("a renewal", LEASE, || renewed() != before);
        let restarts =
            |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0);
        let is_as_it_should = |load: &Load| {
            let pods = load.pods();
            load.staying.iter().all(|name| {
                let pod = pods.iter().find(|pod| pod["metadata"]["name"] == **name);
                pod.is_some_and(|pod| {
                    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
                    let most = load.starters_killed.get(uid).copied().unwrap_or(0);
                    pod["status"]["containerStatuses"][0]["ready"] == true && restarts(pod) <= most
                })
            })
        };
        load.setup.shows(
            &format!(
                "no restart but for killed shims and cruns {:?}: {:?}",
                load.starters_killed,
                load.pods()
            ),
            || is_as_it_should(&load),
        );

        load.kubectl(&["delete", "pod", "--all", "--wait=false"]).unwrap();
        load.setup.shows("no pod", || load.pods().is_empty());
        let agent = load.setup.cluster.agent(NODE);
        let left = || {
            let names = |path: &str| {
                let entries = fs::read_dir(path).into_iter().flatten().flatten();
                entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
            };
            let mut left: Vec<String> = processes("shim");
            left.extend(names("/etc/cni/addresses/kedge").into_iter().filter(|name| name.starts_with("10.")));
            let (run, root) = (agent.run_dir(), agent.root_dir());
            for place in [
                run.join("containers/pods"),
                run.join("containers/crun"),
                root.join("networks"),
                root.join("containers"),
            ] {
                left.extend(
                    names(place.to_str().unwrap()).into_iter().filter(|name| !name.starts_with(".gone")),
                );
            }
            let output = |program: &str, words: &[&str]| {
                String::from_utf8(Command::new(program).args(words).output().unwrap().stdout).unwrap()
            };
            left.extend(
                output("ip", &["-o", "link"]).lines().filter(|it| it.contains("veth")).map(str::to_owned),
            );
            let rules = output("/usr/sbin/iptables", &["-t", "nat", "-S"]);
            left.extend(
                rules
                    .lines()
                    .filter(|it| it.contains("CNI-") && !it.contains("CNI-HOSTPORT-"))
                    .map(str::to_owned),
            );
            let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
            left.extend(mounts.lines().filter(|it| it.contains("/containers/pods/")).map(str::to_owned));
            let groups = probe(&Roots::default(), &Crun::default()).cgroups;
            let above = format!("{}/kedgepods", std::env::var(INSIDE).unwrap().trim_end_matches('/'));
            for class in ["", "/burstable", "/besteffort"] {
                let found = groups.children(&format!("{above}{class}"));
                left.extend(found.into_iter().filter(|name| name.starts_with("pod")));
            }
            left
        };
        let is_clean = poll(LIMIT, || left().is_empty().then_some(()));
        assert!(is_clean.is_some(), "left: {:?}\n{}", left(), agent.log_text());
    });
}
