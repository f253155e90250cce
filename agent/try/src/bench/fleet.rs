//! The hub with 5,000 nodes in it, with many writers, and with many watchers.
//!
//! Always holds: one administrator's connections over real TLS make the load, from threads of this process on the same machine,
//! so rates are lower bounds. Every write that counts was answered after it was on disk. Memory is the hub's own, from the kernel.

use std::time::{Duration, Instant};

use kedge_try::error::KitError;
use kedge_try::process::Process;
use kedge_try::table::{Figure, Goal};
use serde_json::{Value, json};

use crate::client::{Connection, Identity};
use crate::stage::{LEASES, PATIENCE, Stage, io};

const NODES: usize = 5000;
/// Connections that make the nodes.
const MAKERS: usize = 32;
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const JSON: &str = "content-type: application/json\r\nprefer: return=minimal\r\n";
const MERGE: &str = "content-type: application/merge-patch+json\r\nprefer: return=minimal\r\n";
/// How long each number of writers writes.
const WRITING: Duration = Duration::from_secs(5);
const WATCHERS: usize = 1000;
/// Time for the hub to become idle.
const SETTLED: Duration = Duration::from_secs(3);
const START_MS: f64 = 200.0;
const IDLE_KIB: f64 = 15.0 * 1024.0;
const FLEET_KIB: f64 = 150.0 * 1024.0;
const WATCH_KIB: f64 = 22.0;

/// See the module.
pub(crate) fn measure() -> Result<Vec<Figure>, KitError> {
    let begun = Instant::now();
    let stage = Stage::open("bench-fleet")?;
    let started = begun.elapsed();
    let pid = stage.hub.pid().ok_or_else(|| other("the hub has no process"))?;
    let process = Process::new(pid);
    std::thread::sleep(SETTLED);
    let empty = process.memory()?.rss;
    let mut figures = vec![
        Figure::new(
            "hub: first start to ready",
            started.as_secs_f64() * 1000.0,
            "ms",
            "until it says that it listens; makes its authority and its store",
        )
        .with_goal(Goal::AtMost(START_MS)),
        Figure::new("hub: RSS, idle", empty, "KiB", "a real control plane: 503 MiB")
            .with_goal(Goal::AtMost(IDLE_KIB)),
    ];
    figures.extend(watching(&stage, &process)?);
    figures.extend(writing(&stage, pid)?);
    figures.extend(full(&stage, &process)?);
    Ok(figures)
}

fn other(why: &str) -> KitError {
    io("measure the hub")(std::io::Error::other(why))
}

/// Runs the same on so many threads, each with a connection of its own; the sum of what they return.
fn together(
    admin: &Identity,
    threads: usize,
    act: impl Fn(usize, Connection) -> std::io::Result<usize> + Send + Sync + Clone + 'static,
) -> Result<usize, KitError> {
    let workers: Vec<_> = (0..threads)
        .map(|index| {
            let (admin, act) = (admin.clone(), act.clone());
            std::thread::spawn(move || act(index, admin.connect()?))
        })
        .collect();
    let mut sum = 0;
    for worker in workers {
        sum += worker.join().map_err(|_| other("a worker panicked"))?.map_err(io("load the hub"))?;
    }
    Ok(sum)
}

fn full(stage: &Stage, process: &Process) -> Result<Vec<Figure>, KitError> {
    together(&stage.admin, MAKERS, |index, mut connection| {
        for number in (index..NODES).step_by(MAKERS) {
            let name = format!("fleet-{number:05}");
            let node = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                    "nodeInfo": {"kernelVersion": "6.12.20", "osImage": "Debian GNU/Linux 12", "kubeletVersion": "v1.35.0"}}});
            connection.accepted("POST", "/api/v1/nodes", JSON, &node)?;
            let lease = json!({"metadata": {"name": name, "namespace": "kube-node-lease"},
                "spec": {"holderIdentity": name, "leaseDurationSeconds": 40}});
            connection.accepted("POST", LEASES, JSON, &lease)?;
        }
        Ok(0)
    })?;
    std::thread::sleep(SETTLED);
    let memory = process.memory()?.rss;
    let mut connection = stage.connect()?;
    let begun = Instant::now();
    let answer = connection.request("GET", "/api/v1/nodes", "", b"").map_err(io("list the nodes"))?;
    let listed = begun.elapsed();
    let bytes = answer.body.len();
    let list: Value = serde_json::from_slice(&answer.body).map_err(|_| other("the list is no JSON"))?;
    if list["items"].as_array().map(Vec::len) != Some(NODES) {
        return Err(other("the list lacks nodes"));
    }
    Ok(vec![
        Figure::new(
            "hub: RSS, 5,000 nodes",
            memory,
            "KiB",
            "with their Leases, after all else here; a real control plane: 2,210 MiB",
        )
        .with_goal(Goal::AtMost(FLEET_KIB)),
        Figure::new(
            "hub: list of 5,000 nodes",
            listed.as_secs_f64() * 1000.0,
            "ms",
            format!("{:.1} MiB over TLS, whole", bytes as f64 / f64::from(1 << 20)),
        ),
    ])
}

/// Bytes that a process handed to write calls on files and sockets.
fn written(pid: i32) -> Result<f64, KitError> {
    let path = format!("/proc/{pid}/io");
    let text = std::fs::read_to_string(&path).map_err(KitError::io("read", std::path::Path::new(&path)))?;
    let line = text.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|number| number.parse().ok()).ok_or_else(|| other("no wchar in /proc/PID/io"))
}

fn writing(stage: &Stage, pid: i32) -> Result<Vec<Figure>, KitError> {
    let mut figures = Vec::new();
    for writers in [1, 16, 256] {
        together(&stage.admin, writers, move |index, mut connection| {
            let map = json!({"metadata": {"name": format!("w-{writers}-{index}")}});
            connection.accepted("POST", MAPS, JSON, &map).map(|_| 0)
        })?;
        let (before, begun) = (written(pid)?, Instant::now());
        let count = together(&stage.admin, writers, move |index, mut connection| {
            let (path, mut count) = (format!("{MAPS}/w-{writers}-{index}"), 0);
            while begun.elapsed() < WRITING {
                count += 1;
                let patch = json!({"data": {"count": count.to_string()}});
                connection.accepted("PATCH", &path, MERGE, &patch)?;
            }
            Ok(count)
        })?;
        let (secs, bytes) = (begun.elapsed().as_secs_f64(), written(pid)? - before);
        let name = format!("hub: durable writes, {writers} at once");
        let how = format!("{:.0} bytes written for each, answers too", bytes / count as f64);
        figures.push(Figure::new(&name, count as f64 / secs, "/s", how));
    }
    Ok(figures)
}

fn watching(stage: &Stage, process: &Process) -> Result<Vec<Figure>, KitError> {
    let before = process.memory()?.rss;
    let watches = (0..WATCHERS).map(|_| stage.watch(MAPS)).collect::<Result<Vec<_>, KitError>>()?;
    std::thread::sleep(SETTLED);
    let each = (process.memory()?.rss - before) / WATCHERS as f64;
    let map = json!({"metadata": {"name": "fan-out"}});
    let (cpu, begun) = (process.cpu_secs()?, Instant::now());
    stage.connect()?.accepted("POST", MAPS, JSON, &map).map_err(io("make a ConfigMap"))?;
    for watch in &watches {
        watch.wait("the change", PATIENCE, |object| object["metadata"]["name"] == "fan-out")?;
    }
    let (told, cpu) = (begun.elapsed(), process.cpu_secs()? - cpu);
    Ok(vec![
        Figure::new("hub: memory of an idle watch", each, "KiB", format!("RSS, {WATCHERS} watches over TLS"))
            .with_goal(Goal::AtMost(WATCH_KIB)),
        Figure::new(
            "hub: one change to 1,000 watchers",
            told.as_secs_f64() * 1000.0,
            "ms",
            format!(
                "from the write to the last watcher's having it; {:.0} ms of the hub's processor",
                cpu * 1000.0
            ),
        ),
    ])
}
