//! 1,000 nodes on one hub: renewals and full status posts over kept-alive TLS, and their cost for the hub.
//!
//! Always holds: every simulated node has its own certificate, connection, Node and Lease, and sends the
//! requests of an agent. The load comes from threads of this process on the same machine, so rates are lower
//! bounds; processor time is the hub's alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kedge_rig::error::RigError;
use serde_json::{Value, json};

use crate::setup::{LEASES, Setup, identity, io};
use kedge_rig::client::{Connection, Identity};
use kedge_rig::process::{Process, bytes_in};
use kedge_rig::table::{Figure, Goal};

const NODES: usize = 1000;
/// Requests in progress at once.
pub(crate) const WORKERS: usize = 16;
/// Renewals and posts of each node.
const RENEWALS_EACH: usize = 20;
const POSTS_EACH: usize = 10;
/// Posts that fill a write-ahead log of 1,000 pages more than once.
const UNMEASURED_POSTS_EACH: usize = 3;
/// A real API server with etcd needs 1.9 to 2.3 s for 1,000 renewals; 40 times less than its best.
const CPU_SECS_PER_1000: f64 = 1.9 / 40.0;
/// "About 0": growth that does not depend on the number of renewals.
const GROWTH_MIB: f64 = 0.1;
/// Longer than the hub keeps a renewal only in memory: 30 s.
pub(crate) const FLUSHED: Duration = Duration::from_secs(32);

/// One simulated node.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) connection: Connection,
}

/// The cost of a load for the hub.
struct Cost {
    requests: usize,
    secs: f64,
    cpu_secs: f64,
    growth_bytes: f64,
}

impl Cost {
    fn rate(&self) -> f64 {
        self.requests as f64 / self.secs
    }

    fn cpu_secs_per_1000(&self) -> f64 {
        self.cpu_secs * 1000.0 / self.requests as f64
    }

    fn growth_mib_per_10000(&self) -> f64 {
        self.growth_bytes * 10_000.0 / self.requests as f64 / f64::from(1 << 20)
    }
}

/// See the module.
pub(crate) fn measure() -> Result<Vec<Figure>, RigError> {
    // between the loads no node renews, and marking them lost must not be measured
    let setup = Setup::open_with("bench-hub", &["--node-monitor-grace-period", "1h"])?;
    let data_dir = setup.scratch.path().join("hub").join("data");
    let process = hub_process(&setup)?;
    let empty = process.memory()?;
    let identities = (0..NODES)
        .map(|index| {
            let name = format!("load-{index:04}");
            let identity = identity(&setup, &name, index)?;
            Ok((name, identity))
        })
        .collect::<Result<Vec<_>, RigError>>()?;
    let nodes = each(identities, |(name, identity)| join(name, &identity))?;
    let loaded = process.memory()?;
    let cost = |nodes: Vec<Node>, times: usize, send: fn(&mut Node, usize) -> std::io::Result<()>| {
        std::thread::sleep(FLUSHED);
        let (bytes, cpu, begun) = (bytes_in(&data_dir)?, process.cpu_secs()?, Instant::now());
        let nodes = each(nodes, move |mut node| {
            for time in 0..times {
                send(&mut node, time)?;
            }
            Ok(node)
        })?;
        let (secs, cpu_secs) = (begun.elapsed().as_secs_f64(), process.cpu_secs()? - cpu);
        std::thread::sleep(FLUSHED);
        let growth_bytes = bytes_in(&data_dir)? as f64 - bytes as f64;
        Ok::<_, RigError>((nodes, Cost { requests: NODES * times, secs, cpu_secs, growth_bytes }))
    };
    // unmeasured, until the write-ahead log has its final size (after folding back it is overwritten from the
    // beginning): otherwise its first four megabytes would count as growth
    let (nodes, _) = cost(nodes, 2, renew)?;
    let (nodes, _) = cost(nodes, UNMEASURED_POSTS_EACH, post)?;
    let (nodes, renewals) = cost(nodes, RENEWALS_EACH, renew)?;
    let (nodes, posts) = cost(nodes, POSTS_EACH, post)?;
    let after = process.memory()?;
    drop(nodes);
    let load = format!(
        "{NODES} nodes, own certificates, kept-alive TLS, {WORKERS} at once, load on the same 2 cores"
    );
    Ok(vec![
        Figure::new("hub: RSS, empty", empty.rss, "KiB", "smaps_rollup"),
        Figure::new(
            "hub: RSS, 1,000 nodes",
            loaded.rss,
            "KiB",
            format!("connected, with Node and Lease; {:.0} KiB after all posts", after.rss),
        ),
        Figure::new(
            "hub: renewals per second",
            renewals.rate(),
            "/s",
            format!("{load}; kube-apiserver and etcd: 567-685"),
        ),
        Figure::new(
            "hub: CPU per 1,000 renewals",
            renewals.cpu_secs_per_1000(),
            "s",
            "/proc/PID/stat of the hub; kube-apiserver and etcd: 1.9-2.3; goal: 40 times less",
        )
        .with_goal(Goal::AtMost(CPU_SECS_PER_1000)),
        Figure::new(
            "hub: store growth per 10,000 renewals",
            renewals.growth_mib_per_10000(),
            "MiB",
            format!("files of the data directory, {} renewals; etcd: 6.6", renewals.requests),
        )
        .with_goal(Goal::AtMost(GROWTH_MIB)),
        Figure::new(
            "hub: full status posts per second",
            posts.rate(),
            "/s",
            "the same nodes; each is answered after it is on disk",
        ),
        Figure::new(
            "hub: CPU per 1,000 full status posts",
            posts.cpu_secs_per_1000(),
            "s",
            "/proc/PID/stat of the hub",
        ),
        Figure::new(
            "hub: store growth per 10,000 full status posts",
            posts.growth_mib_per_10000(),
            "MiB",
            format!("files of the data directory, {} posts; etcd: 140", posts.requests),
        ),
    ])
}

pub(crate) fn hub_process(setup: &Setup) -> Result<Process, RigError> {
    let pid = setup
        .hub
        .pid()
        .ok_or_else(|| RigError::TimedOut { awaited: "the hub's process".into(), found: "none".into() })?;
    Ok(Process::new(pid))
}

/// Runs the function for each item on [`WORKERS`] threads; the results are in any order.
pub(crate) fn each<T: Send + 'static, U: Send + 'static>(
    things: Vec<T>,
    act: impl Fn(T) -> std::io::Result<U> + Send + Sync + 'static,
) -> Result<Vec<U>, RigError> {
    let act = Arc::new(act);
    let mut shares: Vec<Vec<T>> = (0..WORKERS).map(|_| Vec::new()).collect();
    for (index, thing) in things.into_iter().enumerate() {
        shares[index % WORKERS].push(thing);
    }
    let threads: Vec<_> = shares
        .into_iter()
        .map(|share| {
            let act = act.clone();
            std::thread::spawn(move || {
                share.into_iter().map(|thing| act(thing)).collect::<std::io::Result<Vec<U>>>()
            })
        })
        .collect();
    let mut results = Vec::new();
    for thread in threads {
        let share =
            thread.join().map_err(|_| io("load the hub")(std::io::Error::other("a worker panicked")))?;
        results.extend(share.map_err(io("load the hub"))?);
    }
    Ok(results)
}

pub(crate) const JSON: &str = "content-type: application/json\r\nprefer: return=minimal\r\n";
pub(crate) const MERGE: &str = "content-type: application/merge-patch+json\r\nprefer: return=minimal\r\n";
pub(crate) const STRATEGIC: &str =
    "content-type: application/strategic-merge-patch+json\r\nprefer: return=minimal\r\n";

/// Registers Node and Lease as an agent does.
pub(crate) fn join(name: String, identity: &Identity) -> std::io::Result<Node> {
    let mut connection = identity.connect()?;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}}});
    connection.accepted("POST", "/api/v1/nodes", JSON, &node)?;
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": "2026-11-01T00:00:00.000000Z"}});
    connection.accepted("POST", LEASES, JSON, &lease)?;
    Ok(Node { name, connection })
}

pub(crate) fn renew(node: &mut Node, time: usize) -> std::io::Result<()> {
    let renew_time = format!("2026-11-01T{:02}:{:02}:{:02}.000001Z", time / 3600, time / 60 % 60, time % 60);
    let patch = json!({"spec": {"renewTime": renew_time}});
    node.connection.accepted("PATCH", &format!("{LEASES}/{}", node.name), MERGE, &patch).map(drop)
}

/// A complete status of a node, as in an agent's first post, which is larger than later ones.
pub(crate) fn status(name: &str, time: usize) -> Value {
    let at = format!("2026-11-01T01:{:02}:{:02}Z", time / 60 % 60, time % 60);
    let condition = |name: &str, status: &str, reason: &str, message: &str| {
        json!({"type": name, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": at, "lastTransitionTime": "2026-11-01T00:00:00Z"})
    };
    let conditions: Value = json!([
        condition(
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available"
        ),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        condition(
            "ConfigOK",
            "True",
            "all checks passed",
            "using current (UID: 5d1b6a5e-6a0b-4d3c-9c53-0e4c3b2a1f00)"
        ),
    ]);
    let resources = |memory: &str| {
        json!({"cpu": "4", "memory": memory, "pods": "110", "ephemeral-storage": "28Gi",
            "hugepages-2Mi": "0", "hugepages-1Gi": "0"})
    };
    json!({"status": {
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": name}],
        "capacity": resources("3884364Ki"), "allocatable": resources("3781964Ki"),
        "conditions": conditions,
        "nodeInfo": {"architecture": "arm64", "bootID": "8c1de7c3-7f4c-4a1e-9a6c-9b5a3c1d2e4f", "operatingSystem": "linux",
            "containerRuntimeVersion": "", "kernelVersion": "6.12.20+rpt-rpi-v8", "kubeProxyVersion": "",
            "kubeletVersion": "v0.1.0", "machineID": "5f8c2c4c3c3d4cbb8f7e2d1c0b9a8f7e",
            "osImage": "Debian GNU/Linux 12 (bookworm)", "systemUUID": "100000007c4d3e2f"},
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    }})
}

fn post(node: &mut Node, time: usize) -> std::io::Result<()> {
    let patch = status(&node.name, time);
    node.connection
        .accepted("PATCH", &format!("/api/v1/nodes/{}/status", node.name), STRATEGIC, &patch)
        .map(drop)
}
