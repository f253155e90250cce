//! Requests that only a node can answer, through kubectl: their duration, their bytes, and the memory of an
//! open session.
//!
//! Always holds: real kubectl, a hub and a node on loopback, a real container; sessions are those of a
//! person, so the times include kubectl's own start. It needs the same programs and rights as `pods`. Left to
//! others: the connections of an idle node (`idle`).

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kedge_rig::error::RigError;
use kedge_rig::kubectl::Kubectl;
use kedge_rig::process::Process;
use kedge_rig::scratch::poll;
use kedge_rig::table::{Figure, Goal, quantile};
use serde_json::json;

use crate::pods::{self, Bench, IMAGE, NODE, Network, PODS};
use crate::push::JSON;
use crate::relay::{Relay, by_connection};
use crate::setup::{LIMIT, PLAIN, Setup, io, is_named};

/// Repetitions of acts that take a fraction of a second.
const TRIES: usize = 20;
/// Open sessions while memory is read: half of the number that a node may have.
const SESSIONS: usize = 10;
/// Bytes that pass through exec in each direction.
const BULK_BYTES: usize = 64 << 20;
/// Lines of the log that is read; `containerLogMaxFiles` is set so that all are kept.
const LOG_LINES: usize = 700_000;
/// Pause before the memory of sessions is read.
const SETTLE: Duration = Duration::from_secs(5);
/// The pod whose log is read.
const WRITER: &str = "writer";

/// See the module.
pub(crate) fn measure() -> Result<Vec<Figure>, RigError> {
    let mut figures = of_a_call()?;
    figures.extend(pods::isolated(of_sessions)?);
    Ok(figures)
}

/// A node without containers: bytes and time of one call, and connections that stay open afterwards.
fn of_a_call() -> Result<Vec<Figure>, RigError> {
    let setup = Setup::open("bench-calls")?;
    let hub = setup.admin.address();
    let relay = Relay::start(hub).map_err(io("start the relay"))?;
    let kubeconfig = setup.hub.node_kubeconfig(NODE)?.replace(&hub.to_string(), &relay.address().to_string());
    let nodes = setup.watch("/api/v1/nodes")?;
    let mut agent = setup.agent_with(NODE, &kedge_rig::programs::built("kedge")?, PLAIN, &kubeconfig)?;
    agent.start()?;
    let is_ready = |node: &serde_json::Value| {
        let conditions = node["status"]["conditions"].as_array();
        is_named(node, NODE)
            && conditions.into_iter().flatten().any(|it| it["type"] == "Ready" && it["status"] == "True")
    };
    nodes.wait("the node to be Ready", LIMIT, is_ready)?;
    std::thread::sleep(SETTLE);
    let before = relay.open();
    let path = format!("/api/v1/nodes/{NODE}/proxy/healthz");
    let mut took = Vec::new();
    for _ in 0..TRIES {
        let mut hub = setup.connect()?;
        let begun = Instant::now();
        let answer = hub.request("GET", &path, "", &[]).map_err(io("ask the node"))?;
        took.push(begun.elapsed().as_secs_f64() * 1000.0);
        if answer.status != 200 {
            let said = String::from_utf8_lossy(&answer.body).into_owned();
            return Err(RigError::Failed { command: path, status: answer.status.to_string(), said });
        }
    }
    // connections opened meanwhile are the call's: the others are older
    let traffic = by_connection(relay.records().iter());
    let mut bytes: Vec<f64> = traffic.iter().map(|one| one.bytes() as f64).collect();
    let calls = bytes.split_off(bytes.len().saturating_sub(TRIES));
    let left = poll(LIMIT, || (relay.open() <= before).then(|| relay.open()));
    let left = left.unwrap_or_else(|| relay.open()).saturating_sub(before);
    agent.stop()?;
    Ok(vec![
        Figure::new(
            "calls: connections that are left",
            left as f64,
            "",
            format!("of the node to its hub, after {TRIES} calls; so an idle node sends no byte more"),
        )
        .with_goal(Goal::Exactly(0.0)),
        Figure::new(
            "calls: bytes of one",
            quantile(&calls, 0.5),
            "B",
            "GET nodes/NAME/proxy/healthz, both ways on the node's line, handshake included",
        ),
        Figure::new(
            "calls: GET nodes/NAME/proxy/healthz",
            quantile(&took, 0.5),
            "ms",
            format!("median of {TRIES}, worst {:.0} ms", quantile(&took, 1.0)),
        ),
    ])
}

/// A node with a container.
fn of_sessions(bench: &mut Bench) -> Result<Vec<Figure>, RigError> {
    bench.run(1..2, Network::Host)?;
    start_writer(bench)?;
    let kubectl = bench.setup.hub.kubectl().clone();
    let mut figures = vec![of_true(&kubectl)?];
    figures.extend(memory(bench, &kubectl)?);
    figures.extend(throughput(&kubectl)?);
    Ok(figures)
}

/// A pod that has written its log.
fn start_writer(bench: &mut Bench) -> Result<(), RigError> {
    let script = format!("busybox seq {LOG_LINES}; exec busybox sleep 800999");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": WRITER}, "spec": {
        "nodeName": NODE, "hostNetwork": true, "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": IMAGE,
            "command": ["/bin/busybox", "sh", "-c", script.replace("busybox", "/bin/busybox")]}]}});
    bench.pods.forget();
    let mut hub = bench.setup.connect()?;
    hub.accepted("POST", PODS, JSON, &pod).map_err(io("create a pod"))?;
    let runs = |pod: &serde_json::Value| is_named(pod, WRITER) && pod["status"]["phase"] == "Running";
    bench.pods.wait("the pod that writes to run", LIMIT, runs).map(drop)?;
    let last = LOG_LINES.to_string();
    let kubectl = bench.setup.hub.kubectl();
    let written = poll(LIMIT, || {
        let tail = kubectl.run(&["logs", WRITER, "--tail=1"]).ok()?;
        (tail.trim() == last).then_some(())
    });
    written
        .ok_or_else(|| RigError::TimedOut { awaited: format!("line {last} of a log"), found: "less".into() })
}

/// The time of `kubectl exec POD -- true`, beside that of kubectl's simplest request to the hub.
fn of_true(kubectl: &Kubectl) -> Result<Figure, RigError> {
    let (mut took, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..TRIES {
        let lines: [(&[&str], &mut Vec<f64>); 2] = [
            (&["exec", "bench-1", "--", "/bin/busybox", "true"], &mut took),
            (&["get", "--raw", "/healthz"], &mut alone),
        ];
        for (line, times) in lines {
            let begun = Instant::now();
            kubectl.run(line)?;
            times.push(begun.elapsed().as_secs_f64() * 1000.0);
        }
    }
    let how = format!(
        "kubectl's own start included (get --raw /healthz: {:.0} ms); median of {TRIES}, worst {:.0} ms",
        quantile(&alone, 0.5),
        quantile(&took, 1.0)
    );
    Ok(Figure::new("calls: kubectl exec -- true", quantile(&took, 0.5), "ms", how)
        .with_goal(Goal::AtMost(150.0)))
}

/// A running kubectl, which is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(kubectl: &Kubectl, line: &[&str], stdin: Stdio) -> Result<Running, RigError> {
    let mut command = Command::new(kubectl.program());
    command.arg("--kubeconfig").arg(kubectl.kubeconfig()).args(line);
    command.stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map(Running).map_err(io("start kubectl"))
}

/// The memory of open, silent sessions.
fn memory(bench: &Bench, kubectl: &Kubectl) -> Result<[Figure; 2], RigError> {
    let hub = bench
        .setup
        .hub
        .pid()
        .ok_or_else(|| RigError::TimedOut { awaited: "the hub's process".into(), found: "none".into() })?;
    let before = Process::new(hub).memory()?.pss;
    let line = ["exec", "-i", "bench-1", "--", "/bin/busybox", "cat"];
    let running: Vec<Running> =
        (0..SESSIONS).map(|_| start(kubectl, &line, Stdio::piped())).collect::<Result<_, _>>()?;
    let run_dir = bench.agent.run_dir().display().to_string();
    let sessions = || pods::pids(|line| line.contains("\0session\0") && line.contains(&run_dir));
    let stand = poll(LIMIT, || {
        let cats = pods::pids(|line| line == "/bin/busybox\0cat\0").len();
        (sessions().len() == SESSIONS && cats == SESSIONS).then_some(())
    });
    stand.ok_or_else(|| RigError::TimedOut {
        awaited: format!("{SESSIONS} sessions"),
        found: sessions().len().to_string(),
    })?;
    std::thread::sleep(SETTLE);
    let after = Process::new(hub).memory()?.pss;
    let each: Vec<_> =
        sessions().into_iter().map(|pid| Process::new(pid).memory()).collect::<Result<_, _>>()?;
    let private: Vec<f64> = each.iter().map(|memory| memory.private).collect();
    let pss: Vec<f64> = each.iter().map(|memory| memory.pss).collect();
    // kept until here, because open sessions are measured
    drop(running);
    Ok([
        Figure::new(
            "calls: private memory of a session, node",
            quantile(&private, 0.5),
            "KiB",
            format!(
                "smaps_rollup of kedge session with exec -i cat, silent; PSS {:.0} KiB; median of {SESSIONS}",
                quantile(&pss, 0.5)
            ),
        ),
        Figure::new(
            "calls: memory of a session, hub",
            (after - before) / SESSIONS as f64,
            "KiB",
            format!("PSS of the hub with {SESSIONS} less without, by their number"),
        ),
    ])
}

/// The throughput of exec and logs.
fn throughput(kubectl: &Kubectl) -> Result<[Figure; 3], RigError> {
    let timed = |line: &[&str], stdin: Stdio| -> Result<f64, RigError> {
        let begun = Instant::now();
        let mut running = start(kubectl, line, stdin)?;
        let status = running.0.wait().map_err(io("wait for kubectl"))?;
        if !status.success() {
            let said = "its outputs were dropped".to_owned();
            return Err(RigError::Failed { command: line.join(" "), status: status.to_string(), said });
        }
        Ok(begun.elapsed().as_secs_f64())
    };
    let rate = |bytes: usize, secs: f64| bytes as f64 / 1e6 / secs;
    let blocks = format!("count={}", BULK_BYTES >> 16);
    let out = ["exec", "bench-1", "--", "/bin/busybox", "dd", "if=/dev/zero", "bs=64k", &blocks];
    let out = timed(&out, Stdio::null())?;
    let mut zeros = Command::new("head");
    zeros.args(["-c", &BULK_BYTES.to_string(), "/dev/zero"]).stdout(Stdio::piped());
    let mut zeros = zeros.spawn().map_err(io("start head"))?;
    let input = zeros.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let line =
        ["exec", "-i", "bench-1", "--", "/bin/busybox", "sh", "-c", "exec /bin/busybox cat > /dev/null"];
    let input = timed(&line, input)?;
    zeros.wait().map_err(io("wait for head"))?;
    let log_bytes: usize = (1..=LOG_LINES).map(|line| line.to_string().len() + 1).sum();
    let log = timed(&["logs", WRITER], Stdio::null())?;
    let mebibytes = |bytes: usize| format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20));
    Ok([
        Figure::new("calls: exec, output", rate(BULK_BYTES, out), "MB/s", mebibytes(BULK_BYTES)),
        Figure::new("calls: exec, input", rate(BULK_BYTES, input), "MB/s", mebibytes(BULK_BYTES)),
        Figure::new(
            "calls: logs",
            rate(log_bytes, log),
            "MB/s",
            format!("{LOG_LINES} short lines, {}", mebibytes(log_bytes)),
        ),
    ])
}
