//! A board that really runs out of memory: a pod's memory is taken from the guest's own, under control groups
//! of version 2.

use std::time::Duration;

use serde_json::{Value, json};

use super::pods::{IMAGE, preload};
use crate::error::HilError;
use crate::stage::{NODE, Stage, condition, patience, payload};

/// Memory that the pods of this story hold, in MiB: the greedy one only after it gets the order.
const CRITICAL_MIB: u64 = 12;
const MODEST_MIB: u64 = 4;
const GREEDY_MIB: u64 = 48;
/// The part of that for which the threshold leaves room.
const ROOM_MIB: u64 = 24;
/// How long memory must suffice before MemoryPressure clears.
const HOLD: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;
const TAINT: &str = "node.kubernetes.io/memory-pressure";
/// The file that orders the greedy pod to begin.
const GO: &str = "/run/go";

/// Holds memory that is not a file cache: `tail` keeps as much of its input as it may have to print, and its
/// output is not read.
fn hold(mib: u64) -> String {
    format!(
        "busybox dd if=/dev/zero bs=1M count={mib} 2>/dev/null | busybox tail -c {}m | sleep 86321",
        2 * mib
    )
}

fn create(stage: &Stage<'_>, name: &str, script: &str, more: &Value) -> Result<(), HilError> {
    let requests = json!({"requests": {"memory": "1Mi"}});
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "kube-system"}, "spec": {
        "nodeName": NODE, "hostNetwork": true, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "go", "hostPath": {"path": GO, "type": "DirectoryOrCreate"}}],
        "containers": [{"name": "main", "image": IMAGE, "command": ["sh", "-c", script], "resources": requests,
            "volumeMounts": [{"name": "go", "mountPath": "/go"}]}]}});
    for (key, value) in more.as_object().into_iter().flatten() {
        pod["spec"][key] = value.clone();
    }
    stage.hub.kubectl().feed(&["create", "-f", "-"], &pod.to_string())?;
    Ok(())
}

fn status(stage: &Stage<'_>, name: &str) -> Result<Value, HilError> {
    Ok(stage.hub.kubectl().json(&["-n", "kube-system", "get", "pod", name])?["status"].take())
}

/// The node's available memory in bytes, as the node itself reports it.
fn available(stage: &Stage<'_>) -> Result<u64, HilError> {
    let path = format!("/api/v1/nodes/{NODE}/proxy/stats/summary?only_cpu_and_memory=true");
    let text = stage.hub.kubectl().run(&["get", "--raw", &path])?;
    let summary: Value =
        serde_json::from_str(&text).map_err(|error| HilError::Wrong(format!("{path}: {error}")))?;
    let memory = &summary["node"]["memory"];
    memory["availableBytes"].as_u64().ok_or_else(|| HilError::Wrong(format!("memory of the node: {memory}")))
}

fn runs(stage: &mut Stage<'_>, name: &str) -> Result<(), HilError> {
    stage.wait(&format!("the pod {name} Running"), patience(), |stage| {
        let status = status(stage, name)?;
        Ok(if status["phase"] == "Running" { Ok(()) } else { Err(status.to_string()) })
    })
}

fn is_tainted(stage: &Stage<'_>) -> Result<bool, HilError> {
    let node = stage.node()?;
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    Ok(taints.iter().any(|taint| taint["key"] == TAINT && taint["effect"] == "NoSchedule"))
}

fn await_taint(stage: &mut Stage<'_>, wanted: bool) -> Result<(), HilError> {
    stage.wait(&format!("the taint {TAINT} is there: {wanted}"), patience(), |stage| {
        let found = is_tainted(stage)?;
        Ok(if found == wanted { Ok(()) } else { Err(format!("{found}")) })
    })
}

fn await_pressure(stage: &mut Stage<'_>, wanted: &str) -> Result<(), HilError> {
    stage.wait(&format!("MemoryPressure {wanted}"), patience(), |stage| {
        let found = condition(&stage.node()?, "MemoryPressure");
        Ok(if found.0 == wanted { Ok(()) } else { Err(format!("{found:?}")) })
    })
}

pub(super) fn memory(stage: &mut Stage<'_>) -> Result<(), HilError> {
    preload(stage)?;
    create(stage, "critical", &hold(CRITICAL_MIB), &json!({"priorityClassName": "system-node-critical"}))?;
    create(stage, "modest", &hold(MODEST_MIB), &json!({}))?;
    let greedy = format!("while ! [ -e /go/go ]; do sleep 0.5; done; {}", hold(GREEDY_MIB));
    create(stage, "greedy", &greedy, &json!({}))?;
    for name in ["critical", "modest", "greedy"] {
        runs(stage, name)?;
    }
    // the pods must have all their memory: two readings are about equal
    let settled = stage.wait("memory that is settled", patience(), |stage| {
        let before = available(stage)?;
        std::thread::sleep(Duration::from_secs(3));
        let now = available(stage)?;
        Ok(if now.abs_diff(before) < 2 * MIB { Ok(now) } else { Err(format!("{before}, then {now}")) })
    })?;
    let kernel = stage.guest("sed -n 's/^MemAvailable: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo")?;
    let threshold = (settled / MIB).saturating_sub(ROOM_MIB);
    stage.say(&format!(
        "available as evictions count: {} MiB, as the kernel does: {} MiB; the threshold: {threshold} MiB",
        settled / MIB,
        kernel.parse::<u64>().unwrap_or(0) >> 10
    ));
    let fields = format!(
        "nodeStatusUpdateFrequency: 1s\nevictionHard: {{memory.available: {threshold}Mi}}\nevictionPressureTransitionPeriod: {}s\n",
        HOLD.as_secs()
    );
    let uid = stage.push("edge-pressure", &payload("1h", 10, &fields))?;
    stage.runs(&uid)?;
    await_pressure(stage, "False")?;
    let tainted = is_tainted(stage)?;
    stage.expect("tainted before", tainted, false)?;

    stage.guest(&format!("touch {GO}/go"))?;
    let evicted = stage.wait("the eviction", patience(), |stage| {
        let status = status(stage, "greedy")?;
        Ok(if status["phase"] == "Failed" { Ok(status) } else { Err(status.to_string()) })
    })?;
    stage.expect("reason", evicted["reason"].as_str(), Some("Evicted"))?;
    let message = evicted["message"].as_str().unwrap_or_default().to_owned();
    let words =
        format!("The node was low on resource: memory. Threshold quantity: {threshold}Mi, available: ");
    stage.expect(&format!("the message {message:?}"), message.starts_with(&words), true)?;
    stage.expect("it names the container", message.contains("Container main was using "), true)?;
    let (pressed, _, reason) = condition(&stage.node()?, "MemoryPressure");
    stage.expect("MemoryPressure", (&*pressed, &*reason), ("True", "KubeletHasInsufficientMemory"))?;
    let pressed_since = stage.uptime()?;
    await_taint(stage, true)?;
    stage.say(&format!("the greedy pod was evicted, the node says why and is tainted: {message}"));
    // it requests no memory, and so would be evicted first
    create(stage, "late", &hold(1), &json!({"containers": [{"name": "main", "image": IMAGE}]}))?;
    stage.wait("a pod without requests that is refused", patience(), |stage| {
        let status = status(stage, "late")?;
        Ok(if status["reason"] == "Evicted" { Ok(()) } else { Err(status.to_string()) })
    })?;

    await_pressure(stage, "False")?;
    // the condition was true at a check before `pressed_since`, and the last check that found too little
    // memory was at most its grace period before that
    let held = stage.uptime()?.saturating_sub(pressed_since);
    let least = HOLD.as_secs() - 8;
    stage.took("after the eviction the condition held for", held, least..patience().as_secs())?;
    await_taint(stage, false)?;
    for name in ["critical", "modest"] {
        let status = status(stage, name)?;
        let container = status["containerStatuses"][0].clone();
        let found = (status["phase"].as_str(), container["restartCount"].as_u64());
        stage.expect(&format!("phase and restarts of {name}"), found, (Some("Running"), Some(0)))?;
    }
    let oom =
        stage.guest("cat /sys/fs/cgroup/kedgepods/memory.events | grep '^oom_kill ' | cut -d ' ' -f 2")?;
    stage.expect("kills by the kernel for want of memory", oom.as_str(), "0")?;
    stage.say("the other pods run as before, and pressure and taint are gone");
    Ok(())
}
