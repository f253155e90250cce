//! Pods on a real system: from an image on its disk, without a registry, through kills, resets, power cuts
//! and an update.

use serde_json::{Value, json};

use crate::error::HilError;
use crate::machine::Start;
use crate::stage::{NODE, Stage, patience};

/// The name of the image; no such registry exists.
pub(super) const IMAGE: &str = "registry.invalid/team/clock:v1";
/// The directory of preloaded images in these stories: the image's own directory is read-only.
const PRELOADED: &str = "/var/lib/preloaded";
/// A line a second, counted from 1: a restarted container begins at 1 again.
const CLOCK: &str = "n=0; while sleep 1; do n=$((n+1)); echo tick $n; done";
/// More memory than its limit allows, in a shell variable.
const GREEDY: &str =
    "x=$(busybox dd if=/dev/zero bs=1M count=64 2>/dev/null | busybox tr '\\0' a); echo ${#x}";
/// One manifest that uses everything a node supports; the agent's own tests read the reports of its
/// containers.
const WHOLE: &str = include_str!("../../../agent/tests/workloads/whole.yaml");
/// `memory.max` of the clock.
const LIMIT_BYTES: u64 = 32 << 20;

/// Writes an OCI layout of the node's own busybox, so that it runs on every board.
fn layout() -> String {
    format!(
        r#"set -e; d={PRELOADED}/app; b=$d/blobs/sha256; r=/run/clock-root; mkdir -p $b $r/bin
cp /bin/busybox $r/bin/busybox; for n in sh sleep; do ln -sf busybox $r/bin/$n; done
busybox tar -C $r -cf /run/blob bin; rm -r $r
sum() {{ sha256sum "$1" | cut -d ' ' -f 1; }}
keep() {{ size=$(stat -c %s /run/blob); hash=$(sum /run/blob); mv /run/blob $b/$hash; }}
case $(uname -m) in x86_64) a=amd64;; aarch64) a=arm64;; *) a=arm;; esac
keep; layer=$hash layer_size=$size
printf '{{"architecture":"%s","os":"linux","config":{{}},"rootfs":{{"type":"layers","diff_ids":["sha256:%s"]}}}}' $a $layer >/run/blob
keep; t=application/vnd.oci.image
printf '{{"schemaVersion":2,"mediaType":"%s.manifest.v1+json","config":{{"mediaType":"%s.config.v1+json","digest":"sha256:%s","size":%s}},"layers":[{{"mediaType":"%s.layer.v1.tar","digest":"sha256:%s","size":%s}}]}}' $t $t $hash $size $t $layer $layer_size >/run/blob
keep
printf '{{"schemaVersion":2,"manifests":[{{"mediaType":"%s.manifest.v1+json","digest":"sha256:%s","size":%s,"annotations":{{"org.opencontainers.image.ref.name":"{IMAGE}"}}}}]}}' $t $hash $size >$d/index.json
sync"#
    )
}

/// The process of a container: the first of its control group.
const PROCESS: &str = "head -n 1 /sys/fs/cgroup/kedgepods/burstable/pod*/clock-*/cgroup.procs";

/// Gives the node an image of its own busybox.
pub(super) fn preload(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let process = stage.running()?;
    stage.guest(&layout())?;
    stage.guest(&format!(
        "echo 'KEDGE_FLAGS=\"--preloaded-images {PRELOADED}\"' >/etc/kedge/default && systemctl restart kedge"
    ))?;
    stage.restarted(process)?;
    Ok(())
}

/// Creates a DaemonSet that runs a pod of the preloaded image.
fn begin(stage: &mut Stage<'_>) -> Result<(), HilError> {
    preload(stage)?;
    let limits = json!({"limits": {"memory": LIMIT_BYTES.to_string()}});
    let container =
        json!({"name": "clock", "image": IMAGE, "command": ["sh", "-c", CLOCK], "resources": limits});
    let set = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "clock"}, "spec": {
        "selector": {"matchLabels": {"app": "clock"}},
        "template": {"metadata": {"labels": {"app": "clock"}}, "spec": {
            "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false, "containers": [container]}}}});
    stage.hub.kubectl().feed(&["create", "-f", "-"], &set.to_string())?;
    serves(stage)?;
    let pod = pod(stage)?;
    let address = pod["status"]["podIP"].as_str().unwrap_or_default().to_owned();
    stage.expect("the pod has an address of its own network", address.starts_with("10.85."), true)?;
    let shown = stage.guest("cat /sys/fs/cgroup/kedgepods/burstable/pod*/clock-*/memory.max")?;
    stage.expect("memory.max", shown, LIMIT_BYTES.to_string())?;
    stage.say(&format!(
        "a DaemonSet's pod runs from an image on the disk, at {address}, within its memory limit"
    ));
    Ok(())
}

fn pod(stage: &Stage<'_>) -> Result<Value, HilError> {
    let pods = stage.hub.kubectl().json(&["get", "pods", "-l", "app=clock"])?;
    Ok(pods["items"][0].clone())
}

/// Waits until the API shows the pod as Ready on this node.
fn serves(stage: &mut Stage<'_>) -> Result<(), HilError> {
    stage.wait("a Ready pod of the DaemonSet", patience(), |stage| {
        let set = stage.hub.kubectl().json(&["get", "daemonset", "clock"])?;
        let pod = pod(stage)?;
        let is_ready = set["status"]["numberReady"] == 1 && pod["spec"]["nodeName"] == NODE;
        Ok(if is_ready { Ok(()) } else { Err(format!("{}: {}", set["status"], pod["status"])) })
    })
}

/// Waits until the container runs by the node's own means, and continues to count; returns its last tick.
fn ticks(stage: &mut Stage<'_>, above: u64) -> Result<u64, HilError> {
    stage.wait(&format!("a tick above {above} in the log of a container that runs"), patience(), |stage| {
        let (code, process) = stage.ask(PROCESS)?;
        let (_, line) =
            stage.ask("tail -qn 1 $(ls -t /var/log/pods/default_clock-*/clock/*.log | head -n 1)")?;
        let tick = line.rsplit_once("tick ").and_then(|(_, tick)| tick.trim().parse().ok());
        Ok(match tick.filter(|tick| code == 0 && !process.is_empty() && *tick > above) {
            Some(tick) => Ok(tick),
            None => Err(format!("process {process:?}, log {line:?}")),
        })
    })
}

pub(super) fn live(stage: &mut Stage<'_>) -> Result<(), HilError> {
    begin(stage)?;
    greedy(stage)?;
    whole(stage)?;
    let tick = ticks(stage, 1)?;
    let container = stage.guest(PROCESS)?;
    let agent = stage.running()?;
    stage.guest(&format!("kill -KILL {agent}"))?;
    stage.restarted(agent)?;
    ticks(stage, tick)?;
    let now = stage.guest(PROCESS)?;
    stage.expect("the container's process after the agent was killed", now, container)?;
    stage.say("the agent was killed: the container goes on");
    // without a network: neither an API server nor a registry can be reached
    stage.comes_back_as(&Start { unplugged: true, ..Start::default() })?;
    ticks(stage, 1)?;
    stage.say("after a power cut, without a network: the pod runs");
    // as a reset by a watchdog: nothing is flushed, and no process ends the containers
    let boot = stage.boot_id()?;
    stage.machine.run_last("echo b >/proc/sysrq-trigger")?;
    stage.machine.wait_reset(patience())?;
    stage.comes_back(&boot)?;
    ticks(stage, 1)?;
    stage.machine.plug(true)?;
    stage.renews()?;
    serves(stage)?;
    stage.say("after a reset: the pod runs, and the API shows it as Ready");
    stage.hub.kubectl().run(&["delete", "daemonset", "clock", "--wait=true"])?;
    stage.wait("no pod, process, mount or address of it", patience(), |stage| {
        let pods = stage.hub.kubectl().json(&["get", "pods"])?;
        let (_, left) = stage.ask(
            "cat /sys/fs/cgroup/kedgepods/burstable/pod*/*/cgroup.procs 2>/dev/null; ls /run/kedge/containers/pods 2>/dev/null; \
             grep kedge/containers /proc/mounts; ls /sys/class/net | grep veth",
        )?;
        let count = pods["items"].as_array().map_or(0, |pods| {
            pods.iter().filter(|pod| pod["metadata"]["labels"]["app"] == "clock").count()
        });
        Ok(if count == 0 && left.is_empty() { Ok(()) } else { Err(format!("{count} pods; {left}")) })
    })?;
    stage.say("the DaemonSet is deleted: nothing of it is left on the node");
    Ok(())
}

/// A container that exceeds its memory limit is ended, and its end is shown.
fn greedy(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let container = json!({"name": "greedy", "image": IMAGE, "command": ["sh", "-c", GREEDY],
        "resources": {"limits": {"memory": "16Mi"}}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "greedy"}, "spec": {
        "restartPolicy": "Never", "automountServiceAccountToken": false, "nodeName": NODE, "containers": [container]}});
    stage.hub.kubectl().feed(&["create", "-f", "-"], &pod.to_string())?;
    let ended = stage.wait("the end of the pod that takes too much memory", patience(), |stage| {
        let pod = stage.hub.kubectl().json(&["get", "pod", "greedy"])?;
        let ended = pod["status"]["containerStatuses"][0]["state"]["terminated"].clone();
        Ok(if ended.is_object() { Ok(ended) } else { Err(pod["status"].to_string()) })
    })?;
    stage.expect("reason", ended["reason"].as_str(), Some("OOMKilled"))?;
    stage.say("a container beyond its memory limit: OOMKilled");
    Ok(())
}

/// A manifest with everything runs, is probed, follows an edit, and is refused where it must be.
fn whole(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let manifest = WHOLE.replace("@node@", NODE).replace("@image@", IMAGE);
    stage.hub.kubectl().feed(&["apply", "-f", "-"], &manifest)?;
    let main = |status: &Value| {
        let mut containers = status["containerStatuses"].as_array().into_iter().flatten();
        containers.find(|container| container["name"] == "main").cloned().unwrap_or_default()
    };
    let is_ready = move |status: &Value, restarts: u64| {
        let main = main(status);
        main["ready"] == true && main["restartCount"] == restarts
    };
    let status = |stage: &Stage<'_>, name: &str| -> Result<Value, HilError> {
        Ok(stage.hub.kubectl().json(&["get", "pod", name])?["status"].take())
    };
    stage.wait("the pod with everything in it", patience(), |stage| {
        let status = status(stage, "whole")?;
        Ok(if is_ready(&status, 0) { Ok(()) } else { Err(status.to_string()) })
    })?;
    let refused = status(stage, "whole-refused")?;
    let why = refused["message"].as_str().unwrap_or_default().to_owned();
    stage.expect("the refusal names the field", why.contains("persistentVolumeClaim"), true)?;
    let device = status(stage, "whole-device")?;
    stage.expect("reason", device["reason"].as_str(), Some("UnexpectedAdmissionError"))?;
    stage.hub.kubectl().run(&["patch", "configmap", "whole", "-p", r#"{"data":{"word":"second"}}"#])?;
    let status = stage.wait("a run after the edit", patience(), |stage| {
        let status = status(stage, "whole")?;
        Ok(if is_ready(&status, 1) { Ok(status) } else { Err(status.to_string()) })
    })?;
    let ended = main(&status)["lastState"]["terminated"].clone();
    stage.expect("the message of the run that ended", ended["message"].as_str(), Some("ended: preStop\n"))?;
    let names = ["pod/whole", "pod/whole-refused", "pod/whole-device", "configmap/whole", "secret/whole"];
    stage.hub.kubectl().run(&[&["delete"][..], &names[..], &["--wait=true"]].concat())?;
    stage.say("a pod with every sort of probe, hook, volume and variable runs, is restarted after an edit, and goes");
    Ok(())
}

pub(super) fn updated(stage: &mut Stage<'_>) -> Result<(), HilError> {
    begin(stage)?;
    super::slots::good(stage)?;
    ticks(stage, 1)?;
    serves(stage)?;
    stage.say("the pod runs in the new slot");
    Ok(())
}
