//! The hub with 5,000 nodes, with many writers, and with many watchers.
//!
//! Always holds: the load comes from connections of one administrator over real TLS, on threads of this
//! process on the same machine, so rates are lower bounds. A write counts if it was answered after it was on
//! disk. Memory is the hub's own, as the kernel reports it.

use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kedge_rig::error::RigError;
use kedge_rig::process::{Process, files_below};
use kedge_rig::programs;
use kedge_rig::table::{Figure, Goal, quantile};
use serde_json::{Value, json};

use crate::load::{FLUSHED, JSON, MERGE, STRATEGIC, status};
use crate::setup::{Helper, LEASES, LIMIT, Setup, identity, io, source};
use crate::trace;
use kedge_rig::client::{Connection, Identity};

const NODES: usize = 5000;
/// Connections that create the nodes.
const MAKERS: usize = 32;
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Writing time for each number of writers.
const WRITING: Duration = Duration::from_secs(5);
const WATCHERS: usize = 1000;
/// Number of first starts; the median counts.
const STARTS: usize = 9;
/// Time for the hub to become idle.
const SETTLED: Duration = Duration::from_secs(3);
/// Updates whose bytes are counted: enough to fold the store's log back more than once.
const COUNTED: usize = 1500;
/// Nodes that report and renew for that, each with its own certificate: each Lease is renewed three times
/// within the period for which a renewal stays in memory, as by an agent that renews every ten seconds.
const RENEWED: usize = 500;
const START_MS: f64 = 200.0;
const IDLE_KIB: f64 = 15.0 * 1024.0;
const FLEET_KIB: f64 = 150.0 * 1024.0;
const WATCH_KIB: f64 = 22.0;
/// Nodes differ in little more than their names.
const GZIP_SHARE: f64 = 0.1;
/// Pages of the fleet, each made anew.
const PAGES: usize = 50;
const PAGE_MS: f64 = 10.0;
const PAGE_BYTES: usize = 64 * 1024;

/// See the module.
pub(crate) fn measure() -> Result<Vec<Figure>, RigError> {
    // most of these nodes are never renewed, and marking them lost must not be measured
    let mut setup = Setup::open_with("bench-fleet", &["--node-monitor-grace-period", "1h"])?;
    let pid = setup.hub.pid().ok_or_else(|| other("the hub has no process"))?;
    let process = Process::new(pid);
    std::thread::sleep(SETTLED);
    let empty = process.memory()?.rss;
    let mut figures = first_starts(setup.scratch.path())?;
    figures.push(
        Figure::new("hub: RSS, idle", empty, "KiB", "a real control plane: 503 MiB")
            .with_goal(Goal::AtMost(IDLE_KIB)),
    );
    figures.extend(watching(&setup, &process)?);
    figures.extend(writing(&setup, &process)?);
    figures.extend(full(&setup, &process)?);
    figures.extend(page(&setup)?);
    figures.extend(flash(&setup, pid)?);
    figures.push(restart(&mut setup)?);
    Ok(figures)
}

/// The time from the start of the program until it prints that it listens, in an empty directory each time.
fn first_starts(dir: &Path) -> Result<Vec<Figure>, RigError> {
    let program = programs::built("kedge-hub")?;
    let mut took = Vec::new();
    for number in 0..STARTS {
        let begun = Instant::now();
        let mut child = Command::new(&program)
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(dir.join(format!("first-{number}")))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(RigError::io("start", &program))?;
        let mut line = String::new();
        let received = child.stdout.take().map(|out| std::io::BufReader::new(out).read_line(&mut line));
        took.push(begun.elapsed().as_secs_f64() * 1000.0);
        // its directory is deleted
        let _ = child.kill();
        let _ = child.wait();
        if !matches!(received, Some(Ok(_))) || !line.starts_with("listening: ") {
            return Err(other("the hub did not say that it listens"));
        }
    }
    let how = format!(
        "p50 of {STARTS}, the slowest {:.0} ms; makes its authority and its store",
        quantile(&took, 1.0)
    );
    Ok(vec![
        Figure::new("hub: first start to ready", quantile(&took, 0.5), "ms", how)
            .with_goal(Goal::AtMost(START_MS)),
    ])
}

/// The same for a hub with many nodes.
fn restart(setup: &mut Setup) -> Result<Figure, RigError> {
    setup.hub.stop()?;
    let begun = Instant::now();
    setup.hub.start_again()?;
    let took = begun.elapsed().as_secs_f64() * 1000.0;
    Ok(Figure::new("hub: start to ready, 5,000 nodes", took, "ms", "checks the store and loads it"))
}

fn other(why: &str) -> RigError {
    io("measure the hub")(std::io::Error::other(why))
}

/// Runs the same code on so many threads, each with a connection from a separate address; returns the sum of
/// their results.
fn together(
    admin: &Identity,
    threads: usize,
    act: impl Fn(usize, Connection) -> std::io::Result<usize> + Send + Sync + Clone + 'static,
) -> Result<usize, RigError> {
    let workers: Vec<_> = (0..threads)
        .map(|index| {
            let (admin, act) = (admin.clone().from_address(source(index)), act.clone());
            std::thread::spawn(move || act(index, admin.connect()?))
        })
        .collect();
    let mut sum = 0;
    for worker in workers {
        sum += worker.join().map_err(|_| other("a worker panicked"))?.map_err(io("load the hub"))?;
    }
    Ok(sum)
}

/// The name of one of the fleet's nodes.
fn name(number: usize) -> String {
    format!("fleet-{number:05}")
}

fn full(setup: &Setup, process: &Process) -> Result<Vec<Figure>, RigError> {
    together(&setup.admin, MAKERS, |index, mut connection| {
        for number in (index..NODES).step_by(MAKERS) {
            let name = name(number);
            let node = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                    "nodeInfo": {"kernelVersion": "6.12.20", "osImage": "Debian GNU/Linux 12", "kubeletVersion": "v1.35.0"}}});
            connection.accepted("POST", "/api/v1/nodes", JSON, &node)?;
            let lease = json!({"metadata": {"name": name, "namespace": "kube-node-lease"},
                "spec": {"holderIdentity": name, "leaseDurationSeconds": 40,
                    "renewTime": "2026-10-31T00:00:00.000000Z"}});
            connection.accepted("POST", LEASES, JSON, &lease)?;
        }
        Ok(0)
    })?;
    std::thread::sleep(SETTLED);
    let memory = process.memory()?.rss;
    let mut connection = setup.connect()?;
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
        compressed(&mut connection, &answer.body)?,
    ])
}

/// The page for people. Each one has another query, so none comes from the hub's cache.
fn page(setup: &Setup) -> Result<Vec<Figure>, RigError> {
    let mut connection = setup.connect()?;
    let (mut took, mut bytes) = (Vec::new(), 0);
    for number in 0..PAGES {
        let (begun, path) = (Instant::now(), format!("/fleet?still={number}"));
        let answer = connection.request("GET", &path, "", b"").map_err(io("read the page"))?;
        took.push(begun.elapsed().as_secs_f64() * 1000.0);
        bytes = answer.body.len();
        if answer.status != 200 {
            return Err(other("the page of the fleet was refused"));
        }
    }
    let how = format!("p50 of {PAGES}, the slowest {:.1} ms; made anew, over TLS", quantile(&took, 1.0));
    Ok(vec![
        Figure::new("hub: page of 5,000 nodes", quantile(&took, 0.5), "ms", how)
            .with_goal(Goal::AtMost(PAGE_MS)),
        Figure::new("hub: bytes of that page", bytes as f64, "B", "uncompressed")
            .with_goal(Goal::AtMost(PAGE_BYTES as f64)),
    ])
}

/// The same list for a client that accepts gzip.
fn compressed(connection: &mut Connection, plain: &[u8]) -> Result<Figure, RigError> {
    let begun = Instant::now();
    let answer = connection
        .request("GET", "/api/v1/nodes", "accept-encoding: gzip\r\n", b"")
        .map_err(io("list the nodes"))?;
    let took = begun.elapsed().as_secs_f64() * 1000.0;
    let is_gzip = answer.header("content-encoding") == ["gzip"];
    let unpacked = if is_gzip { gunzip(&answer.body)? } else { answer.body.clone() };
    // a controller may write between two lists: the nodes are the same, but not every byte
    let list: Value = serde_json::from_slice(&unpacked).map_err(|_| other("the list is no JSON"))?;
    if list["items"].as_array().map(Vec::len) != Some(NODES) {
        return Err(other("the compressed list lacks nodes"));
    }
    let share = answer.body.len() as f64 / plain.len() as f64;
    let how = format!(
        "of the plain list, in {took:.0} ms{}",
        if is_gzip { "" } else { "; the hub did not compress it" }
    );
    Ok(Figure::new("hub: list of 5,000 nodes, gzip", share, "times the bytes", how)
        .with_goal(Goal::AtMost(GZIP_SHARE)))
}

fn gunzip(bytes: &[u8]) -> Result<Vec<u8>, RigError> {
    let mut child = Command::new("gzip")
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(io("run gzip"))?;
    let (mut input, bytes) = (child.stdin.take().expect("it is piped"), bytes.to_vec());
    let writer = std::thread::spawn(move || input.write_all(&bytes));
    let output = child.wait_with_output().map_err(io("run gzip"))?;
    match writer.join() {
        Ok(Ok(())) if output.status.success() => Ok(output.stdout),
        _ => Err(other("the compressed list is no gzip")),
    }
}

fn writing(setup: &Setup, process: &Process) -> Result<Vec<Figure>, RigError> {
    let mut figures = Vec::new();
    for writers in [1, 16, 256] {
        together(&setup.admin, writers, move |index, mut connection| {
            let map = json!({"metadata": {"name": format!("w-{writers}-{index}")}, "data": {"count": "0"}});
            connection.accepted("POST", MAPS, JSON, &map).map(|_| 0)
        })?;
        let begun = Instant::now();
        let count = together(&setup.admin, writers, move |index, mut connection| {
            let (path, mut count) = (format!("{MAPS}/w-{writers}-{index}"), 0);
            while begun.elapsed() < WRITING {
                count += 1;
                let patch = json!({"data": {"count": count.to_string()}});
                connection.accepted("PATCH", &path, MERGE, &patch)?;
            }
            Ok(count)
        })?;
        let rate = count as f64 / begun.elapsed().as_secs_f64();
        let name = format!("hub: durable writes, {writers} at once");
        figures.push(Figure::new(&name, rate, "/s", "merge patches of ConfigMaps over TLS, one each"));
    }
    let (_, bytes) = files_below(&setup.scratch.path().join("hub/data"));
    let how = "then, all files; the store's log and the audit log among them";
    figures.push(Figure::new("hub: store", bytes as f64 / f64::from(1 << 20), "MiB", how));
    figures.push(Figure::new("hub: RSS", process.memory()?.rss / 1024.0, "MiB", "then"));
    Ok(figures)
}

/// The flash wear of an update: bytes passed to the file system, counted by strace. The fleet's nodes must
/// exist.
fn flash(setup: &Setup, pid: i32) -> Result<Vec<Figure>, RigError> {
    let identities = (0..RENEWED).map(|number| identity(setup, &name(number), number));
    let identities = identities.collect::<Result<Vec<_>, RigError>>()?;
    let mut admin = setup.connect()?;
    let accepted = |by: &mut Connection, method: &str, path: &str, headers: &str, body: &Value| {
        by.accepted(method, path, headers, body).map(drop).map_err(io("load the hub"))
    };
    accepted(
        &mut admin,
        "POST",
        MAPS,
        JSON,
        &json!({"metadata": {"name": "flash"}, "data": {"count": "0"}}),
    )?;
    let map = format!("{MAPS}/flash");
    let maps = bytes_each(setup, "maps", pid, Duration::ZERO, |count| {
        accepted(&mut admin, "PATCH", &map, MERGE, &json!({"data": {"count": count.to_string()}}))
    })?;
    let post = |number: usize| format!("/api/v1/nodes/{}/status", name(number));
    let mut nodes = Vec::new();
    for (number, identity) in identities.iter().enumerate() {
        // a connection that sends nothing for seconds is closed, so each sends at once
        let mut node = identity.connect().map_err(io("connect as a node"))?;
        accepted(&mut node, "PATCH", &post(number), STRATEGIC, &status(&name(number), 0))?;
        nodes.push(node);
    }
    let statuses = bytes_each(setup, "statuses", pid, Duration::ZERO, |count| {
        let number = count % RENEWED;
        accepted(&mut nodes[number], "PATCH", &post(number), STRATEGIC, &status(&name(number), count))
    })?;
    // no earlier renewals are left in memory, and those made now are written at the end
    std::thread::sleep(FLUSHED);
    let lease = |number: usize| format!("{LEASES}/{}", name(number));
    let leases = bytes_each(setup, "leases", pid, FLUSHED, |count| {
        let renew_time = format!("2026-11-01T00:{:02}:{:02}.000001Z", count / 60 % 60, count % 60);
        let renewal = json!({"spec": {"renewTime": renew_time}});
        let number = count % RENEWED;
        accepted(&mut nodes[number], "PATCH", &lease(number), MERGE, &renewal)
    })?;
    let figure = |what: &str, bytes: f64, how: String| {
        let how = format!("{COUNTED}{how}; all calls that write files");
        Figure::new(&format!("hub: bytes written per {what}"), bytes, "B", how)
    };
    let times = COUNTED / RENEWED;
    Ok(vec![
        figure("ConfigMap update", maps, " of one object, one after the other".into()),
        figure("NodeStatus", statuses, format!(", of {RENEWED} nodes in turn")),
        figure("Lease renewal", leases, format!(", each of {RENEWED} Leases {times} times within 30 s")),
    ])
}

/// Bytes that a process writes to files for each of [`COUNTED`] acts, counted until some time after the last.
fn bytes_each(
    setup: &Setup,
    name: &str,
    pid: i32,
    after: Duration,
    mut act: impl FnMut(usize) -> Result<(), RigError>,
) -> Result<f64, RigError> {
    let prefix = setup.scratch.path().join(format!("{name}.strace"));
    let (prefix_text, pid_text) = (prefix.display().to_string(), pid.to_string());
    let strace = Helper::start(
        "strace",
        &["-f", "-ff", "-ttt", "-y", "-e", trace::CALLS, "-o", &prefix_text, "-p", &pid_text],
    )?;
    traced(pid)?;
    for count in 1..=COUNTED {
        act(count)?;
    }
    std::thread::sleep(after);
    strace.stop()?;
    let written = trace::read(&trace::collect(&prefix)?, &[]);
    if written.bytes == 0 {
        return Err(other("strace saw no file written"));
    }
    Ok(written.bytes as f64 / COUNTED as f64)
}

/// Waits until every thread of a process is traced.
fn traced(pid: i32) -> Result<(), RigError> {
    let tasks = format!("/proc/{pid}/task");
    let begun = Instant::now();
    while begun.elapsed() < LIMIT {
        let entries = std::fs::read_dir(&tasks).map_err(RigError::io("read", Path::new(&tasks)))?;
        let mut texts = entries.flatten().map(|task| std::fs::read_to_string(task.path().join("status")));
        if texts.all(|text| {
            text.is_ok_and(|text| text.contains("TracerPid:") && !text.contains("TracerPid:\t0\n"))
        }) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(other("strace does not attach: may this user trace other processes?"))
}

fn watching(setup: &Setup, process: &Process) -> Result<Vec<Figure>, RigError> {
    let before = process.memory()?.rss;
    let watches = (0..WATCHERS).map(|_| setup.watch(MAPS)).collect::<Result<Vec<_>, RigError>>()?;
    std::thread::sleep(SETTLED);
    let each = (process.memory()?.rss - before) / WATCHERS as f64;
    let map = json!({"metadata": {"name": "fan-out"}});
    let (cpu, begun) = (process.cpu_secs()?, Instant::now());
    setup.connect()?.accepted("POST", MAPS, JSON, &map).map_err(io("make a ConfigMap"))?;
    for watch in &watches {
        watch.wait("the change", LIMIT, |object| object["metadata"]["name"] == "fan-out")?;
    }
    let (received, cpu) = (begun.elapsed(), process.cpu_secs()? - cpu);
    Ok(vec![
        Figure::new("hub: memory of an idle watch", each, "KiB", format!("RSS, {WATCHERS} watches over TLS"))
            .with_goal(Goal::AtMost(WATCH_KIB)),
        Figure::new(
            "hub: one change to 1,000 watchers",
            received.as_secs_f64() * 1000.0,
            "ms",
            format!(
                "from the write to the last watcher's having it; {:.0} ms of the hub's processor",
                cpu * 1000.0
            ),
        ),
    ])
}
