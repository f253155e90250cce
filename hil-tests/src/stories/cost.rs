//! The cost of pods on a real board: memory of the agent and of its shims, writes to the disk, and limits
//! that the kernel enforces, under control groups of version 2.

use std::time::Duration;

use serde_json::{Value, json};

use super::pods::{IMAGE, preload};
use crate::error::HilError;
use crate::stage::{NODE, Stage, patience, payload};

/// Pods that do nothing.
const PODS: usize = 10;
/// The goals of `make bench` for so many, in KiB: 3 MiB and 0.1 MiB for each, and half a MiB for a shim.
const MOST_PSS_KIB: u64 = 3 * 1024 + 1024;
const MOST_SHIM_KIB: u64 = 512;
/// Pause before the board is measured, and the time for which its writes are counted.
const SETTLED: Duration = Duration::from_secs(60);
const IDLE: Duration = Duration::from_secs(180);
/// Limit of processes of each pod in the configuration; and the number of children that a container tries to
/// start.
const MOST_PIDS: u64 = 16;
const TRIED_PIDS: u64 = 40;
/// The limit of a container that uses a whole processor, in thousandths of one, and the most that the kernel
/// may give it.
const CPU_MILLI: u64 = 100;
const MOST_CPU_MILLI: u64 = 130;
const BUSY: Duration = Duration::from_secs(20);

/// The control group of the pod whose container has this name. Its limits make the pod a Guaranteed one.
const BUSY_POD: &str = "$(dirname /sys/fs/cgroup/kedgepods/pod*/busy-*)";

fn create(stage: &Stage<'_>, name: &str, script: &str, limits: &Value) -> Result<(), HilError> {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeName": NODE, "restartPolicy": "Never", "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
        "containers": [{"name": name, "image": IMAGE, "command": ["sh", "-c", script], "resources": {"limits": limits}}]}});
    stage.hub.kubectl().feed(&["create", "-f", "-"], &pod.to_string())?;
    Ok(())
}

/// Waits until so many pods run.
fn run(stage: &mut Stage<'_>, count: usize) -> Result<(), HilError> {
    stage.wait(&format!("{count} pods that run"), patience(), |stage| {
        let pods = stage.hub.kubectl().json(&["get", "pods"])?;
        let phases: Vec<Value> = pods["items"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|pod| pod["status"]["phase"].clone())
            .collect();
        let running = phases.iter().filter(|phase| **phase == "Running").count();
        Ok(if running == count { Ok(()) } else { Err(format!("{phases:?}")) })
    })
}

/// Waits until this much of the guest's own time has passed.
fn pass(stage: &mut Stage<'_>, time: Duration) -> Result<(), HilError> {
    let end = stage.uptime()? + time;
    stage.wait(&format!("{} s on the guest's clock", time.as_secs()), time * 4 + patience(), |stage| {
        std::thread::sleep(Duration::from_secs(1));
        let now = stage.uptime()?;
        Ok(if now >= end { Ok(()) } else { Err(format!("{now:?} of {end:?}")) })
    })
}

fn number(text: &str) -> Result<u64, HilError> {
    text.trim().parse().map_err(|_| HilError::Garbled(format!("a number: {text:?}")))
}

pub(super) fn ten_pods(stage: &mut Stage<'_>) -> Result<(), HilError> {
    preload(stage)?;
    let fields = format!("podPidsLimit: {MOST_PIDS}\n");
    let uid = stage.push("edge-cost", &payload("20s", 10, &fields))?;
    stage.runs(&uid)?;
    limits(stage)?;
    for index in 0..PODS {
        create(stage, &format!("idle-{index}"), "exec sleep 86321", &json!({}))?;
    }
    run(stage, PODS)?;
    // during a trial the agent writes records of its progress
    stage.promotes(&uid)?;
    pass(stage, SETTLED)?;
    memory(stage)?;
    writes(stage)
}

/// The kernel enforces the limits of the manifest and the configuration.
fn limits(stage: &mut Stage<'_>) -> Result<(), HilError> {
    create(stage, "busy", "while :; do :; done", &json!({"cpu": format!("{CPU_MILLI}m"), "memory": "16Mi"}))?;
    run(stage, 1)?;
    let shown = stage.guest(&format!("cat {BUSY_POD}/busy-*/cpu.max {BUSY_POD}/pids.max"))?;
    let expected = format!("{} 100000\n{MOST_PIDS}", CPU_MILLI * 100);
    stage.expect("cpu.max of the container, pids.max of the pod", shown, expected)?;
    let stat = |stage: &mut Stage<'_>, name: &str| {
        number(&stage.guest(&format!("sed -n 's/^{name} //p' {BUSY_POD}/busy-*/cpu.stat"))?)
    };
    let (before, begin) = (stat(stage, "usage_usec")?, stage.uptime()?);
    pass(stage, BUSY)?;
    let (after, end) = (stat(stage, "usage_usec")?, stage.uptime()?);
    let millis = u64::try_from((end - begin).as_millis()).unwrap_or(u64::MAX).max(1);
    let share = (after - before) / millis;
    let what = format!("{share} thousandths of a processor are at most {MOST_CPU_MILLI}");
    stage.expect(&what, share <= MOST_CPU_MILLI, true)?;
    let held_back = stat(stage, "nr_throttled")?;
    stage.expect("the kernel held it back", held_back > 0, true)?;
    stage.say(&format!(
        "a container that wants a processor gets {share} of {CPU_MILLI} thousandths, held back {held_back} times"
    ));

    let fork =
        format!("n=0; while [ $n -lt {TRIED_PIDS} ]; do sleep 86321 & n=$((n+1)); echo has $n; done; wait");
    create(stage, "many", &fork, &json!({}))?;
    stage.wait("the end of a container that has too many children", patience(), |stage| {
        let status = stage.hub.kubectl().json(&["get", "pod", "many"])?["status"].take();
        Ok(if status["phase"] == "Failed" { Ok(()) } else { Err(status.to_string()) })
    })?;
    let log = stage.hub.kubectl().run(&["logs", "many"])?;
    stage.expect(&format!("it is told: {log}"), log.contains("can't fork"), true)?;
    let has = log.lines().filter_map(|line| line.rsplit_once("has ")?.1.parse::<u64>().ok()).max();
    let has = has.unwrap_or_default();
    // the shell itself counts, too
    stage.expect(&format!("{has} children, at most {MOST_PIDS}"), (1..MOST_PIDS).contains(&has), true)?;
    stage.say(&format!(
        "a container that forks {TRIED_PIDS} times has {has} children of {MOST_PIDS} processes"
    ));
    stage.hub.kubectl().run(&["delete", "pod", "busy", "many", "--wait=true"])?;
    Ok(())
}

/// Measured for processes that have settled.
fn memory(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let process = stage.running()?;
    let pss = number(
        &stage.guest(&format!("sed -n 's/^Pss: *\\([0-9]*\\) kB/\\1/p' /proc/{process}/smaps_rollup"))?,
    )?;
    stage.expect(
        &format!("PSS of the agent, {pss} KiB, is at most {MOST_PSS_KIB}"),
        pss <= MOST_PSS_KIB,
        true,
    )?;
    let shims = stage.guest(
        "for f in $(grep -lzx sh[i]m /proc/[0-9]*/cmdline 2>/dev/null); do sum=0; \
         for kib in $(sed -n 's/^Private_.*: *\\([0-9]*\\) kB/\\1/p' ${f%cmdline}smaps_rollup); do sum=$((sum + kib)); done; \
         echo $sum; done",
    )?;
    let mut shims = shims.lines().map(number).collect::<Result<Vec<_>, _>>()?;
    shims.sort_unstable();
    stage.expect("shims", shims.len(), PODS)?;
    let (middle, most) = (shims[PODS / 2], shims[PODS - 1]);
    stage.expect(
        &format!("private memory of a shim, {most} KiB, is at most {MOST_SHIM_KIB}"),
        most <= MOST_SHIM_KIB,
        true,
    )?;
    stage.say(&format!(
        "with {PODS} pods: PSS of the agent {pss} KiB; private memory of a shim {middle} KiB, at most {most}"
    ));
    Ok(())
}

/// Bytes that the agent and the shims had the kernel write to disks, and bytes written to the disk that has
/// the state.
fn written(stage: &mut Stage<'_>) -> Result<(u64, u64), HilError> {
    let process = stage.running()?;
    // sectors of 512 bytes
    let text = stage.guest(&format!(
        "journalctl --sync; sync; d=$(basename $(readlink -f /dev/disk/by-partlabel/state)); sum=0; \
         for f in /proc/{process}/io $(grep -lzx sh[i]m /proc/[0-9]*/cmdline 2>/dev/null); do \
         sum=$((sum + $(sed -n 's/^write_bytes: //p' ${{f%/*}}/io))); done; \
         set -- $(cat $(readlink -f /sys/class/block/$d/..)/stat); echo $sum; echo $7"
    ))?;
    let mut numbers = text.lines().map(number);
    let mut next = || numbers.next().unwrap_or_else(|| Err(HilError::Garbled(text.clone())));
    Ok((next()?, next()? * 512))
}

/// While pods that log nothing run, agent and shims write nothing.
fn writes(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let before = written(stage)?;
    pass(stage, IDLE)?;
    let after = written(stage)?;
    let what = format!("bytes that agent and shims had written in {} idle seconds", IDLE.as_secs());
    stage.expect(&what, after.0 - before.0, 0)?;
    stage.renews()?;
    stage.say(&format!(
        "{PODS} pods, {} s: agent and shims wrote nothing, the whole system {} bytes, and the Lease is renewed",
        IDLE.as_secs(),
        after.1 - before.1
    ));
    Ok(())
}
