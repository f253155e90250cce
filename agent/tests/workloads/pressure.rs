//! A node whose disk, a file system of its own on a loop device, runs full under a real agent, and one that
//! reaches its machine's limit of processes: which images and pods are removed, which stay, and that the
//! pressure ends. Memory runs short in the story `pods-pressure` of hil-tests, on a machine of its own.

use crate::pods::{NODE, Setup, layout_with};
use crate::setup::{isolated_network, isolated_network_alone, kill, processes};
use kedge_rig::scratch::poll;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The node's disk; the file system keeps a twentieth for root.
const DISK: &str = "256M";
/// Sizes of the files that this test's pods write: without the greedy pod's files there is room enough.
const CRITICAL_MIB: u32 = 80;
const GREEDY_MIB: u32 = 90;
const MODEST_MIB: u32 = 2;
/// Measures each second, and clears pressure soon after it is gone.
const DROP_IN: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nnodeStatusUpdateFrequency: 1s\n\
    evictionHard: {nodefs.available: 64Mi}\nevictionPressureTransitionPeriod: 5s\n";
/// Pods with a limit are measured each minute.
const LIMITS: Duration = Duration::from_secs(180);

/// Makes the disk, and mounts it in the mount namespace of this test, with which it goes.
fn make_disk(root: &Path) {
    let script = "mkdir -p $0 && truncate -s $1 $0.img && mkfs.ext4 -q -F $0.img && mount -o loop $0.img $0";
    let made = Command::new("sh").args(["-c", script]).arg(root).arg(DISK).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// A pod that writes so much, then waits for `go`, writes more and keeps running.
fn pod(name: &str, before_mib: u32, after_mib: u32, spec: &Value) -> Value {
    let script = format!(
        "dd if=/dev/zero of=$0.before bs=1M count={before_mib} 2>/dev/null; echo begun; while ! cat /go/go >/dev/null 2>&1; \
         do sleep 0.2; done; dd if=/dev/zero of=/data/after bs=1M count={after_mib} 2>/dev/null; echo written; exec sleep 86321"
    );
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "kube-system"}, "spec": {
        "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "data", "emptyDir": {}}, {"name": "go", "hostPath": {"path": "/etc/go"}}],
        "containers": [{"name": "main", "image": "web:1", "command": ["/bin/sh", "-c", script, "/tmp/x"],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "go", "mountPath": "/go"}]}]}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][key] = value.clone();
    }
    pod
}

fn status(setup: &Setup, name: &str) -> Value {
    setup.cluster.kubectl().json(&["-n", "kube-system", "get", "pod", name]).unwrap_or_default()["status"]
        .take()
}

fn node(setup: &Setup) -> Value {
    setup.cluster.kubectl().json(&["get", "node", NODE]).unwrap_or_default()
}

fn condition_of(setup: &Setup, name: &str) -> Value {
    let node = node(setup);
    let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == name).cloned().unwrap_or_default()
}

fn condition(setup: &Setup) -> Value {
    condition_of(setup, "DiskPressure")["status"].take()
}

fn has_taint(setup: &Setup, key: &str) -> bool {
    let node = node(setup);
    node["spec"]["taints"].as_array().is_some_and(|taints| {
        taints.iter().any(|taint| taint["key"] == key && taint["effect"] == "NoSchedule")
    })
}

fn available_mib(root: &Path) -> u64 {
    let found = Command::new("stat").args(["-f", "-c", "%a %S"]).arg(root).output().unwrap();
    let text = String::from_utf8(found.stdout).unwrap();
    let numbers: Vec<u64> = text.split_whitespace().map(|number| number.parse().unwrap()).collect();
    (numbers[0] * numbers[1]) >> 20
}

fn has_loop_devices() -> bool {
    let works = |program: &str, argument: &str| {
        Command::new(program).arg(argument).output().is_ok_and(|output| output.status.success())
    };
    works("losetup", "--find") && works("mkfs.ext4", "-V")
}

/// Checks that the pods that use less are still in their first run.
fn assert_others_go_on(setup: &Setup, is_done: impl Fn(&str) -> bool) {
    for name in ["modest", "critical"] {
        setup.shows(&format!("{name} whole"), || is_done(name));
        let status = status(setup, name);
        let restarts = &status["containerStatuses"][0]["restartCount"];
        assert_eq!((&status["phase"], restarts), (&json!("Running"), &json!(0)), "{status}");
    }
}

#[test]
fn full_disk_ends_the_greedy_pod_alone() {
    if !has_loop_devices() {
        assert!(std::env::var_os("CI").is_none(), "no loop devices, or no mkfs.ext4");
        kedge_rig::power_cut::print_past_test_runner("SKIPPED: no loop devices, or no mkfs.ext4");
        return;
    }
    isolated_network("pressure::full_disk_ends_the_greedy_pod_alone", || {
        let mut setup = Setup::before_an_agent(env!("CARGO_BIN_EXE_kedge").as_ref(), make_disk);
        let agent = setup.cluster.agent(NODE);
        agent.write_drop_in("20-pressure.conf", DROP_IN).unwrap();
        let other =
            layout_with(&agent.root_dir().with_file_name("other"), &["/usr/bin/id"]).display().to_string();
        assert_eq!(agent.kedge(&["images", "import", &other, "--name", "unused:1"]).unwrap().0, 0);
        setup.await_pods();
        fs::create_dir("/etc/go").unwrap();
        let (root, kubectl) = (setup.cluster.agent(NODE).root_dir(), setup.cluster.kubectl());
        let apply = |pod: &Value| kubectl.feed(&["apply", "-f", "-"], &pod.to_string()).unwrap();
        // the critical pod uses as much and is the youngest
        apply(&pod("modest", MODEST_MIB, MODEST_MIB, &json!({})));
        apply(&pod("greedy", GREEDY_MIB / 2, GREEDY_MIB / 2, &json!({})));
        apply(&pod("critical", CRITICAL_MIB, 1, &json!({"priorityClassName": "system-node-critical"})));
        let log = |name: &str, word: &str| {
            kubectl.run(&["-n", "kube-system", "logs", name]).is_ok_and(|text| text.contains(word))
        };
        for name in ["modest", "greedy", "critical"] {
            setup.shows(&format!("{name} begun"), || log(name, "begun"));
        }
        assert_eq!(condition(&setup), "False", "{} MiB", available_mib(&root));
        let before = available_mib(&root);

        // it fills the disk beyond the threshold
        fs::write("/etc/go/go", "").unwrap();
        setup.shows("the eviction", || status(&setup, "greedy")["phase"] == "Failed");
        let agent = setup.cluster.agent(NODE);
        kill(agent.babysitter().state().pid.unwrap().into());
        let greedy = status(&setup, "greedy");
        assert_eq!(greedy["reason"], "Evicted", "{greedy}");
        let message = greedy["message"].as_str().unwrap_or_default();
        let words = "The node was low on resource: ephemeral-storage. Threshold quantity: 64Mi, available: ";
        assert!(message.starts_with(words), "{message}");
        assert!(message.contains("Container main was using "), "{message}");
        let disruption = greedy["conditions"].as_array().unwrap().iter();
        let disruption: Vec<_> = disruption.filter(|it| it["type"] == "DisruptionTarget").collect();
        assert_eq!(disruption[0]["reason"], "TerminationByKubelet", "{greedy}");

        // the greedy pod's space is freed, the pressure passes, and no other pod has ended
        setup.shows("room on the disk", || available_mib(&root) > before);
        setup.shows("no pressure", || condition(&setup) == "False");
        assert_others_go_on(&setup, |name| log(name, "written"));
        let events = kubectl.run(&["get", "events", "-A"]).unwrap();
        // only an agent that saw the change posts an Event that the pressure ended: the one that was killed
        // may have been the only one
        for reason in ["EvictionThresholdMet", "NodeHasDiskPressure"] {
            assert!(events.contains(reason), "{reason}: {events}");
        }
        let images = setup.cluster.agent(NODE).kedge(&["images", "ls"]).unwrap().1;
        assert!(!images.contains("unused:1"), "what no pod needs goes first: {images}");
        assert!(images.contains("web:1"), "{images}");

        // pods that exceed their limits end without any pressure
        let limited = |name: &str, volume: Value, resources: Value| {
            let mut limited = pod(name, 1, 8, &json!({}));
            limited["spec"]["volumes"][0]["emptyDir"] = volume;
            limited["spec"]["containers"][0]["resources"] = resources;
            apply(&limited);
        };
        limited("by-volume", json!({"sizeLimit": "4Mi"}), json!({}));
        limited("by-limit", json!({}), json!({"limits": {"ephemeral-storage": "6Mi"}}));
        limited("within", json!({"sizeLimit": "12Mi"}), json!({"limits": {"ephemeral-storage": "16Mi"}}));
        let expected = [
            ("by-volume", "Usage of EmptyDir volume \"data\" exceeds the limit \"4Mi\". "),
            ("by-limit", "Pod ephemeral local storage usage exceeds the total limit of containers 6Mi. "),
        ];
        for (name, message) in expected {
            let told =
                poll(LIMITS, || Some(status(&setup, name)).filter(|status| status["phase"] == "Failed"));
            let told = told.unwrap_or_else(|| panic!("{name} goes on: {}", status(&setup, name)));
            assert_eq!((&told["reason"], &told["message"]), (&json!("Evicted"), &json!(message)));
        }
        assert_eq!(status(&setup, "within")["phase"], "Running");
        assert_eq!(condition(&setup), "False");
    });
}

/// Measures each second; a pod that is evicted for the soft threshold has its grace period.
const SOFT: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nnodeStatusUpdateFrequency: 1s\n\
    evictionHard: {nodefs.available: 0%, imagefs.available: 0%}\nevictionSoft: {nodefs.available: 64Mi}\n\
    evictionSoftGracePeriod: {nodefs.available: 1s}\nevictionMaxPodGracePeriod: 20\nevictionPressureTransitionPeriod: 5s\n";
/// Patience for a machine that is busy with other work.
const BUSY: Duration = Duration::from_secs(240);

/// Waits until `is_so` holds; fails with the agent's log after [`BUSY`].
#[track_caller]
fn comes(setup: &Setup, awaited: &str, is_so: impl Fn() -> bool) {
    let reached = poll(BUSY, || is_so().then_some(()));
    assert!(reached.is_some(), "waited in vain for {awaited}\n{}", setup.cluster.agent(NODE).log_text());
}

/// Pods that were evicted, by their status.
fn evicted(setup: &Setup) -> Vec<String> {
    let list = setup.cluster.kubectl().json(&["-n", "kube-system", "get", "pods"]).unwrap_or_default();
    let pods = list["items"].as_array().cloned().unwrap_or_default().into_iter();
    let evicted = pods.filter(|pod| pod["status"]["reason"] == "Evicted");
    evicted.map(|mut pod| pod["metadata"]["name"].take().as_str().unwrap_or_default().to_owned()).collect()
}

/// The agent is killed while the pod that it evicts ends, and again when that has ended, before the hub
/// received the status. `greedy_mib`: beyond the threshold, or all of the disk, which may then take no record
/// of the eviction.
fn check_eviction_that_is_cut_short(greedy_mib: u32) {
    let mut setup = Setup::before_an_agent(env!("CARGO_BIN_EXE_kedge").as_ref(), make_disk);
    setup.cluster.agent(NODE).write_drop_in("20-pressure.conf", SOFT).unwrap();
    setup.await_pods();
    fs::create_dir_all("/etc/go").unwrap();
    let (root, kubectl) = (setup.cluster.agent(NODE).root_dir(), setup.cluster.kubectl());
    let apply = |pod: &Value| kubectl.feed(&["apply", "-f", "-"], &pod.to_string()).unwrap();
    apply(&pod("modest", MODEST_MIB, MODEST_MIB, &json!({})));
    apply(&pod("critical", CRITICAL_MIB, 0, &json!({"priorityClassName": "system-node-critical"})));
    // the pod notes the TERM signal, and does not end
    let mut greedy = pod("greedy", 1, greedy_mib, &json!({"terminationGracePeriodSeconds": 60}));
    let script = greedy["spec"]["containers"][0]["command"][2].as_str().unwrap();
    let script = script.replace("exec sleep 86321", "while :; do sleep 0.2; done");
    greedy["spec"]["containers"][0]["command"][2] =
        json!(format!("trap 'echo told >/go/told' TERM; {script}"));
    apply(&greedy);
    let log = |name: &str, word: &str| {
        kubectl.run(&["-n", "kube-system", "logs", name]).is_ok_and(|text| text.contains(word))
    };
    for name in ["modest", "greedy", "critical"] {
        comes(&setup, &format!("{name} begun"), || log(name, "begun"));
    }
    let uid = kubectl
        .run(&["-n", "kube-system", "get", "pod", "greedy", "-o", "jsonpath={.metadata.uid}"])
        .unwrap();
    let runs = || processes("told").iter().any(|process| process.contains("/go/told"));
    let killed = |why: &'static str| {
        let agent = setup.cluster.agent(NODE).babysitter();
        let before = agent.state();
        kill(before.pid.unwrap().into());
        move || agent.wait_until(why, BUSY, |state| state.runs > before.runs && state.is_ready()).unwrap()
    };
    assert!(runs());

    fs::write("/etc/go/go", "").unwrap();
    comes(&setup, "the signal", || fs::read_to_string("/etc/go/told").is_ok());
    let next = killed("the next agent");
    assert!(runs(), "killed before its end");
    let record = fs::read_to_string(root.join(format!("pods/desired/{uid}.json"))).unwrap_or_default();
    let (is_recorded, left) = (record.contains("\"Evicted\""), available_mib(&root));
    println!("measured: killed with {left} MiB left, record of the eviction: {is_recorded}");
    assert!(is_recorded || greedy_mib > GREEDY_MIB, "{record}");
    next();
    assert!(evicted(&setup).is_empty());

    // the hub does not learn of the end
    let hub = setup.cluster.hub().pid().unwrap();
    signal(hub, "STOP");
    comes(&setup, "its end", || !runs());
    let next = killed("one more agent");
    signal(hub, "CONT");
    next();
    comes(&setup, "the eviction", || status(&setup, "greedy")["phase"] == "Failed");
    let greedy = status(&setup, "greedy");
    assert_eq!(greedy["reason"], "Evicted", "{greedy}");
    let words = "The node was low on resource: ephemeral-storage. Threshold quantity: 64Mi, available: ";
    assert!(greedy["message"].as_str().unwrap_or_default().starts_with(words), "{greedy}");
    comes(&setup, "no pressure", || available_mib(&root) > 64 && condition(&setup) == "False");
    assert_others_go_on(&setup, |name| log(name, "begun"));
    assert_eq!(evicted(&setup), ["greedy"]);
    fs::remove_dir_all("/etc/go").unwrap();
}

fn signal(pid: i32, name: &str) {
    let status = Command::new("/usr/bin/env").args(["kill", &format!("-{name}"), &pid.to_string()]).status();
    assert!(status.unwrap().success());
}

#[test]
fn eviction_that_is_cut_short_ends_that_pod_alone() {
    if !has_loop_devices() {
        assert!(std::env::var_os("CI").is_none(), "no loop devices, or no mkfs.ext4");
        kedge_rig::power_cut::print_past_test_runner("SKIPPED: no loop devices, or no mkfs.ext4");
        return;
    }
    isolated_network("pressure::eviction_that_is_cut_short_ends_that_pod_alone", || {
        check_eviction_that_is_cut_short(GREEDY_MIB);
    });
}

#[test]
fn eviction_cut_short_on_a_full_disk_ends_that_pod_alone() {
    if !has_loop_devices() {
        assert!(std::env::var_os("CI").is_none(), "no loop devices, or no mkfs.ext4");
        kedge_rig::power_cut::print_past_test_runner("SKIPPED: no loop devices, or no mkfs.ext4");
        return;
    }
    isolated_network("pressure::eviction_cut_short_on_a_full_disk_ends_that_pod_alone", || {
        check_eviction_that_is_cut_short(100_000);
    });
}

/// Processes that the pod of the test below starts, and how many of them the threshold leaves room for: the
/// number of other processes on the machine varies by less.
const FORKED: u64 = 2000;
const ROOM: u64 = 1000;
/// How long PIDs must suffice before the condition clears.
const HOLD: Duration = Duration::from_secs(15);

/// The machine's limit of processes, and the number of them that exist.
fn machine_processes() -> (u64, u64) {
    let read = |path: &str| fs::read_to_string(path).unwrap();
    let most = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
    let most = most.map(|path| read(path).trim().parse::<u64>().unwrap()).into_iter().min().unwrap();
    let load = read("/proc/loadavg");
    let (_, present) = load.split(' ').nth(3).unwrap().split_once('/').unwrap();
    (most, present.parse().unwrap())
}

fn seconds(time: &Value) -> i64 {
    let found = Command::new("date").args(["+%s", "-d", time.as_str().unwrap_or_default()]).output().unwrap();
    String::from_utf8(found.stdout).unwrap().trim().parse().unwrap_or_else(|_| panic!("{time} is no time"))
}

#[test]
fn short_of_processes_ends_the_pod_that_has_most() {
    isolated_network_alone("pressure::short_of_processes_ends_the_pod_that_has_most", || {
        let (most, present) = machine_processes();
        if most - present < 2 * FORKED {
            assert!(std::env::var_os("CI").is_none(), "{present} of {most} processes");
            kedge_rig::power_cut::print_past_test_runner(&format!(
                "SKIPPED: the machine has {present} of {most} processes"
            ));
            return;
        }
        // no threshold counts beyond half of the machine's limit, so the test fakes a lower limit
        let most = 2 * (present + ROOM) - 2;
        fs::write("/etc/pid_max", most.to_string()).unwrap();
        let bound =
            Command::new("mount").args(["--bind", "/etc/pid_max", "/proc/sys/kernel/pid_max"]).status();
        assert!(bound.unwrap().success());
        // an odd number has a single form, without a suffix
        let threshold = (most - present - ROOM - 1) | 1;
        let mut setup = Setup::before_the_agent();
        let drop_in = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nnodeStatusUpdateFrequency: 1s\n\
             evictionHard: {{pid.available: \"{threshold}\", nodefs.available: 0%, imagefs.available: 0%}}\n\
             evictionPressureTransitionPeriod: {}s\npodPidsLimit: {}\n",
            HOLD.as_secs(),
            2 * FORKED
        );
        setup.cluster.agent(NODE).write_drop_in("20-pressure.conf", &drop_in).unwrap();
        setup.await_pods();
        fs::create_dir("/etc/go").unwrap();
        let kubectl = setup.cluster.kubectl();
        let forks = |name: &str, count: u64, more: Value| {
            let script = format!(
                "echo begun; while ! cat /go/go >/dev/null 2>&1; do sleep 0.2; done; \
                 for i in $(seq {count}); do sleep 86321 & done; echo forked; wait"
            );
            let mut pod = pod(name, 0, 0, &more);
            pod["spec"]["containers"][0]["command"] = json!(["/bin/sh", "-c", script]);
            kubectl.feed(&["apply", "-f", "-"], &pod.to_string()).unwrap();
        };
        // neither the lower priority nor the later start decides, but how many processes a pod has
        let critical = json!({"priorityClassName": "system-node-critical"});
        forks("critical", FORKED / 8, critical);
        forks("greedy", FORKED, json!({}));
        forks("modest", 10, json!({}));
        let log = |name: &str, word: &str| {
            kubectl.run(&["-n", "kube-system", "logs", name]).is_ok_and(|text| text.contains(word))
        };
        for name in ["modest", "greedy", "critical"] {
            setup.shows(&format!("{name} begun"), || log(name, "begun"));
        }
        assert_eq!(condition_of(&setup, "PIDPressure")["status"], "False", "{:?}", machine_processes());
        assert!(!has_taint(&setup, "node.kubernetes.io/pid-pressure"));

        fs::write("/etc/go/go", "").unwrap();
        setup.shows("the eviction", || status(&setup, "greedy")["phase"] == "Failed");
        let greedy = status(&setup, "greedy");
        assert_eq!(greedy["reason"], "Evicted", "{greedy}");
        let message = greedy["message"].as_str().unwrap_or_default();
        let words =
            format!("The node was low on resource: pids. Threshold quantity: {threshold}, available: ");
        assert!(message.starts_with(&words), "{message}");
        // the pod's status may come before the Node's
        let pressed = || condition_of(&setup, "PIDPressure");
        setup.shows("PIDPressure", || pressed()["status"] == "True");
        assert_eq!(pressed()["reason"], "KubeletHasInsufficientPID");
        setup.shows("the hub's taint", || has_taint(&setup, "node.kubernetes.io/pid-pressure"));
        // while the condition holds the node takes no pod
        forks("late", 1, json!({}));
        setup.shows("a pod that is refused", || status(&setup, "late")["reason"] == "Evicted");

        setup.shows("no pressure", || condition_of(&setup, "PIDPressure")["status"] == "False");
        let over = condition_of(&setup, "PIDPressure");
        setup.shows("no taint", || !has_taint(&setup, "node.kubernetes.io/pid-pressure"));
        // The processes end before the shim notes the end of the first of them: by seconds on a busy machine.
        let held = seconds(&over["lastTransitionTime"])
            - seconds(&greedy["containerStatuses"][0]["state"]["terminated"]["finishedAt"]);
        assert!(
            held >= i64::try_from(HOLD.as_secs()).unwrap() / 2,
            "the condition held for {held} s: {over} {greedy}"
        );
        assert_others_go_on(&setup, |name| log(name, "forked"));
        let events = kubectl.run(&["get", "events", "-A"]).unwrap();
        for reason in ["EvictionThresholdMet", "NodeHasInsufficientPID", "NodeHasSufficientPID"] {
            assert!(events.contains(reason), "{reason}: {events}");
        }
    });
}
