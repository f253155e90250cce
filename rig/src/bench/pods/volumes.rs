//! Pods like those of large clusters: three probes and four volumes each. Measures their cost while they only
//! run, and how fast a node reacts to an edit and to a full disk.
//!
//! Always holds: probes go to a server of this program, so the pods' own work is not measured; a relay counts
//! the bytes between agent and hub, except renewals and bookmarks, which a node without pods has, too; the
//! agent's disk is a tmpfs that this program can fill.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use kedge_rig::error::RigError;
use kedge_rig::process::Process;
use kedge_rig::table::{Figure, Goal, quantile};
use serde_json::{Value, json};

use super::{Bench, Kind, Network, milliseconds, missing, pod, process_of};
use crate::push::{CONFIG_MAPS, JSON, MERGE};
use crate::relay::{Traffic, by_connection};
use crate::setup::{LIMIT, io, pid};

/// A node that rarely reports an unchanged status. Its only eviction threshold is 64 MiB of free disk, which
/// this program can pass.
pub(super) const NODE: Kind = Kind {
    purpose: "bench-volumes",
    drop_in: "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nhealthzPort: 0\nnodeStatusReportFrequency: 5m\nevictionHard: {nodefs.available: 64Mi, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}\n",
    disk_mib: Some(DISK_MIB),
    is_relayed: true,
};
const DISK_MIB: u32 = 256;
/// MiB that fill the disk beyond the threshold.
const FILLED_MIB: usize = 208;
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
/// The name of the objects in the pods' volumes.
const OBJECT: &str = "bench";
/// Pods whose probes run each second, and the time for which their processor time is counted.
const PROBED: u32 = 20;
const PROBED_SECS: u32 = 20;
/// Number of pods that are started with a token, and without.
const WITH_TOKENS: u32 = 10;
/// Time for the first status of started pods to arrive.
const SETTLE: Duration = Duration::from_secs(5);
/// Number of timed edits, and the pause before each: objects are read at most every 20 s.
const EDITS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(21);
/// The time of three renewals, by which their connection is recognized.
const RENEWALS: Duration = Duration::from_secs(35);
/// Longer than any bookmark, shorter than a pod on a watch.
const OBJECT_RECORD_BYTES: usize = 600;
/// Time for which idle pods send nothing: longer than two rounds of all acts that a node repeats each minute.
const WINDOW: Duration = Duration::from_secs(120);
/// Longest time between two reports of the node's unchanged status, on a machine that does other work.
const REPORT: Duration = Duration::from_secs(400);
const DAY_SECS: f64 = 86_400.0;
/// Time between two tokens of a pod: four fifths of 3,607 s, and up to a tenth less.
const TOKEN_SECS: f64 = 3607.0 * 0.8 * 0.95;

/// The JSON of one probe of a container.
fn probe(kind: &str, port: u16) -> Value {
    match kind {
        "httpGet" => json!({"httpGet": {"host": "127.0.0.1", "port": port, "path": "/healthz"}}),
        "tcpSocket" => json!({"tcpSocket": {"host": "127.0.0.1", "port": port}}),
        _ => json!({"exec": {"command": ["/bin/busybox", "true"]}}),
    }
}

/// A pod with one probe a second, or with none.
fn probed(number: u32, kind: Option<&str>, port: u16) -> Value {
    let mut pod = pod(number, Network::Host);
    if let Some(kind) = kind {
        let mut probe = probe(kind, port);
        probe["periodSeconds"] = json!(1);
        pod["spec"]["containers"][0]["livenessProbe"] = probe;
    }
    pod
}

/// A pod with three probes and four volumes; the fifth has a token.
fn full(number: u32, port: u16, has_token: bool) -> Value {
    let mut pod = pod(number, Network::Host);
    let labels = json!({"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}});
    let mut volumes = vec![
        json!({"name": "config", "configMap": {"name": OBJECT}}),
        json!({"name": "secret", "secret": {"secretName": OBJECT}}),
        json!({"name": "info", "downwardAPI": {"items": [labels]}}),
        json!({"name": "scratch", "emptyDir": {}}),
    ];
    if has_token {
        let source = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}});
        volumes.push(json!({"name": "token", "projected": {"sources": [source]}}));
    }
    let mount = |volume: &Value| {
        let name = volume["name"].as_str().unwrap_or_default();
        json!({"name": name, "mountPath": format!("/m/{name}")})
    };
    pod["metadata"]["labels"] = json!({"app": "bench"});
    let container = &mut pod["spec"]["containers"][0];
    container["volumeMounts"] = volumes.iter().map(mount).collect();
    container["livenessProbe"] = probe("httpGet", port);
    container["readinessProbe"] = probe("tcpSocket", port);
    container["startupProbe"] = probe("exec", port);
    container["startupProbe"]["periodSeconds"] = json!(1);
    pod["spec"]["volumes"] = volumes.into();
    pod
}

/// See the module.
pub(super) fn figures(bench: &mut Bench, window: Duration) -> Result<Vec<Figure>, RigError> {
    let port = serve()?;
    let mut hub = bench.setup.connect()?;
    let object = |data: Value| {
        let mut object = json!({"metadata": {"name": OBJECT}});
        for (field, value) in data.as_object().into_iter().flatten() {
            object[field] = value.clone();
        }
        object
    };
    let config = object(json!({"data": {"key": "0"}}));
    let secret = object(json!({"stringData": {"key": "hidden"}}));
    for (path, object) in [(CONFIG_MAPS, config), (SECRETS, secret)] {
        hub.accepted("POST", path, JSON, &object).map_err(io("create what the volumes hold"))?;
    }

    let renewing = renewing(bench)?;
    let mut figures = probes(bench, port)?;
    after_a_report(bench)?;
    let token = token(bench, port, renewing)?;
    bench.run_as(1..11, |number| full(number, port, false))?;
    figures.push(bench.memory_as("volumes: PSS of an agent with 10 such pods", 10)?);
    figures.extend(edits(bench)?);
    bench.run_as(11..51, |number| full(number, port, false))?;
    figures.push(bench.memory_as("volumes: PSS of an agent with 50 such pods", 50)?);
    after_a_report(bench)?;
    figures.extend(wire(bench, window.min(WINDOW), renewing, token)?);
    figures.push(eviction(bench)?);
    Ok(figures)
}

/// The processor time of a probe, by its kind.
fn probes(bench: &mut Bench, port: u16) -> Result<Vec<Figure>, RigError> {
    let agent = Process::new(pid(&bench.agent)?);
    let mut took = BTreeMap::new();
    for kind in [None, Some("httpGet"), Some("tcpSocket"), Some("exec")] {
        bench.run_as(1..PROBED + 1, |number| probed(number, kind, port))?;
        std::thread::sleep(SETTLE);
        let before = agent.cpu_secs_with_children()?;
        std::thread::sleep(Duration::from_secs(PROBED_SECS.into()));
        took.insert(kind, agent.cpu_secs_with_children()? - before);
        bench.remove(1..PROBED + 1)?;
    }
    let idle = took.remove(&None).unwrap_or_default();
    let runs = f64::from(PROBED * PROBED_SECS);
    let figure = |(kind, secs): (Option<&str>, f64)| {
        let kind = kind.unwrap_or_default();
        let with =
            if kind == "exec" { ", with the program (true) and its way into the container" } else { "" };
        let how = format!(
            "/proc/PID/stat of the agent{with}: {PROBED} pods, one a second each, for {PROBED_SECS} s, less {:.0} ms of pods without",
            idle * 1000.0
        );
        Figure::new(
            &format!("volumes: processor time of a probe, {kind}"),
            (secs - idle) * 1e6 / runs,
            "us",
            how,
        )
    };
    Ok(took.into_iter().map(figure).collect())
}

/// The connection of renewals: on a node without pods it is the only one with requests.
fn renewing(bench: &Bench) -> Result<usize, RigError> {
    let begun = Instant::now();
    std::thread::sleep(RENEWALS);
    let traffic = traffic(bench, begun)?;
    let most = traffic.iter().max_by_key(|traffic| traffic.exchanges).filter(|most| most.exchanges > 1);
    most.map(|most| most.connection).ok_or_else(|| missing("renewals", &format!("{traffic:?}")))
}

fn traffic(bench: &Bench, since: Instant) -> Result<Vec<Traffic>, RigError> {
    let relay = bench.relay.as_ref().ok_or_else(|| missing("a relay", "none"))?;
    let records: Vec<_> = relay.records().into_iter().filter(|record| record.at >= since).collect();
    Ok(by_connection(records.iter()))
}

/// Waits until the node has reported its status: the next report, which would be counted, follows after five
/// minutes, or two and a half after a change.
fn after_a_report(bench: &Bench) -> Result<(), RigError> {
    let nodes = bench.setup.watch("/api/v1/nodes")?;
    let mut first = None;
    nodes.wait("a report of the node's status", REPORT, |node| {
        let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        let ready = conditions.find(|condition| condition["type"] == "Ready");
        let time = ready.map(|ready| ready["lastHeartbeatTime"].clone());
        *first.get_or_insert_with(|| time.clone()) != time
    })?;
    Ok(())
}

/// Bytes of all traffic except renewals and bookmarks, from now until `during` has ended.
fn passed(
    bench: &mut Bench,
    renewing: usize,
    during: impl FnOnce(&mut Bench) -> Result<(), RigError>,
) -> Result<usize, RigError> {
    let begun = Instant::now();
    during(bench)?;
    let traffic = traffic(bench, begun)?;
    let others = traffic.iter().filter(|traffic| traffic.connection != renewing);
    let bytes = others.map(|traffic| match traffic.exchanges {
        0 => traffic.down_records.iter().filter(|bytes| **bytes > OBJECT_RECORD_BYTES).sum(),
        _ => traffic.bytes(),
    });
    Ok(bytes.sum())
}

/// Bytes of a token: the extra cost of starting a pod with one.
fn token(bench: &mut Bench, port: u16, renewing: usize) -> Result<f64, RigError> {
    let mut of = |has_token: bool| {
        let bytes = passed(bench, renewing, |bench| {
            bench.run_as(1..WITH_TOKENS + 1, |number| full(number, port, has_token))?;
            std::thread::sleep(SETTLE);
            Ok(())
        });
        bench.remove(1..WITH_TOKENS + 1)?;
        bytes
    };
    // not counted: the first time the objects of the volumes are transferred, too
    of(false)?;
    let (without, with) = (of(false)?, of(true)?);
    Ok((with as f64 - without as f64) / f64::from(WITH_TOKENS))
}

fn wire(bench: &mut Bench, window: Duration, renewing: usize, token: f64) -> Result<[Figure; 2], RigError> {
    let bytes = passed(bench, renewing, |_| {
        std::thread::sleep(window);
        Ok(())
    })?;
    let per_day = bytes as f64 / 50.0 * DAY_SECS / window.as_secs_f64();
    let idle = format!(
        "50 such pods for {} s: all but renewals and bookmarks, which a node without pods has; each object of volumes is read once an hour beside",
        window.as_secs()
    );
    let tokens = format!(
        "{token:.0} B each, what the begin of a pod costs more with one; by 80 % of 3,607 s. Bound to its pod, so no two pods share one; a pod with automountServiceAccountToken: false has none"
    );
    Ok([
        Figure::new("volumes: bytes per idle pod and day", per_day, "B", idle).with_goal(Goal::Exactly(0.0)),
        Figure::new(
            "volumes: bytes per idle pod and day, token",
            token * DAY_SECS / TOKEN_SECS / 1000.0,
            "kB",
            tokens,
        ),
    ])
}

/// The time from the edit of a ConfigMap to the change of the file in a container.
fn edits(bench: &mut Bench) -> Result<[Figure; 1], RigError> {
    let process = process_of(1).ok_or_else(|| missing("a process of the pod", "none"))?;
    let file = format!("/proc/{process}/root/m/config/key");
    let mut times = Vec::new();
    for number in 1..=EDITS {
        std::thread::sleep(PAUSE);
        let mut hub = bench.setup.connect()?;
        let (path, wanted) = (format!("{CONFIG_MAPS}/{OBJECT}"), number.to_string());
        let begun = Instant::now();
        hub.accepted("PATCH", &path, MERGE, &json!({"data": {"key": wanted}}))
            .map_err(io("edit a ConfigMap"))?;
        while fs::read_to_string(&file).map_err(RigError::io("read", file.as_ref()))? != wanted {
            if begun.elapsed() > LIMIT {
                return Err(missing(&format!("{wanted} in {file}"), "what was there before"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        times.push(milliseconds(begun, Instant::now()) / 1000.0);
    }
    let how = format!(
        "PATCH to the content in a container, ten pods with it; the answer to a renewal, each 10 s, names it; worst of {EDITS}, median {:.1} s",
        quantile(&times, 0.5)
    );
    let worst = quantile(&times, 1.0);
    Ok([Figure::new("volumes: ConfigMap edit to file", worst, "s", how).with_goal(Goal::AtMost(30.0))])
}

/// The time from a full disk to the status of the first pod that is evicted.
fn eviction(bench: &mut Bench) -> Result<Figure, RigError> {
    bench.pods.forget();
    let file = bench.agent.root_dir().join("filled");
    let begun = Instant::now();
    fs::write(&file, vec![1; FILLED_MIB << 20]).map_err(RigError::io("write", &file))?;
    let (at, _) =
        bench.pods.wait("an eviction", LIMIT * 3, |object| object["status"]["reason"] == "Evicted")?;
    fs::remove_file(&file).map_err(RigError::io("remove", &file))?;
    let how = format!(
        "{FILLED_MIB} MiB of {DISK_MIB} written at once, 64 to be free, 50 pods; to Failed (Evicted) on a watch, with the pod's end; a kubelet looks each 10 s"
    );
    Ok(Figure::new("volumes: full disk to eviction", milliseconds(begun, at) / 1000.0, "s", how))
}

/// A server that answers any request; returns its port.
fn serve() -> Result<u16, RigError> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(io("listen for probes"))?;
    let port = listener.local_addr().map_err(io("listen for probes"))?.port();
    std::thread::spawn(move || listener.incoming().flatten().for_each(answer));
    Ok(port)
}

fn answer(mut connection: TcpStream) {
    let mut request = [0; 4096];
    let _ = connection.set_read_timeout(Some(Duration::from_secs(1)));
    // a probe that only connects sends nothing
    if connection.read(&mut request).is_ok_and(|length| length > 0) {
        let _ = connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
}
