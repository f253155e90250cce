//! Containers of one node: memory, times from an order to a process, bytes written to flash.
//!
//! Always holds: real crun, real shims, the pods' own process namespaces, an image that is already present;
//! times run from the request of this program to the moment when it sees the result on a watch or in `/proc`,
//! so they include the hub's part. It needs root, crun, busybox (static), CNI plugins; its processes have
//! control groups of their own, its mounts and its network are private to one thread, and all of it is
//! removed at the end. Left to others: pulls (`pulls`), probes and volumes (`volumes`), updates (`updates`).

mod updates;
mod volumes;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use kedge_platform::linux::Roots;
use kedge_platform::workloads::{Cgroups, Crun, probe, unmount};
use kedge_rig::agent::{Agent, AgentOptions, RIG_DROP_IN_FILE};
use kedge_rig::error::RigError;
use kedge_rig::process::Process;
use kedge_rig::programs;
use kedge_rig::scratch::poll;
use kedge_rig::table::{Figure, Goal, quantile};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

use crate::pulls;
use crate::push::JSON;
use crate::relay::Relay;
use crate::setup::{Helper, LIMIT, PLAIN, Setup, Watched, io, is_named, pid};
use crate::trace;

pub(crate) const NODE: &str = "pods";
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const IMAGE: &str = "bench:1";
/// The network of pods: the package's configuration, and Debian's plugins for it.
const NETWORK: &str = include_str!("../../../agent/cni/99-kedge.conflist");
const PLUGINS: [&str; 3] = ["bridge", "host-local", "portmap"];
const PLUGIN_DIR: &str = "/usr/lib/cni";
/// Pause before the memory of the node is read.
const SETTLE: Duration = Duration::from_secs(30);
/// Repetitions of acts that take milliseconds.
const TRIES: u32 = 10;
/// Longest start of one of many pods on a machine that does other work.
const LONGEST_BEGIN: Duration = Duration::from_secs(10);
/// Time for strace to attach to all threads.
const ATTACH: Duration = Duration::from_secs(2);
/// Seconds that a container's process sleeps, plus the number of its pod, by which it is identified in
/// `/proc`.
const SLEEP_SECS: u32 = 800_000;

/// The allowed memory of a node with so many pods: 3 MiB, and 0.1 for each.
fn pss_goal(pods: u32) -> Goal {
    Goal::AtMost(3072.0 + 102.4 * f64::from(pods))
}

/// The differences between the node of a section and one of a device.
struct Kind {
    purpose: &'static str,
    drop_in: &'static str,
    /// Its root directory is a tmpfs of this many MiB.
    disk_mib: Option<u32>,
    /// Its traffic with the hub is counted.
    is_relayed: bool,
}

const PLAIN_NODE: Kind = Kind { purpose: "bench-pods", drop_in: PLAIN, disk_mib: None, is_relayed: false };

/// A hub, and a node that runs containers.
pub(crate) struct Bench {
    pub(crate) setup: Setup,
    pub(crate) pods: Watched,
    pub(crate) agent: Agent,
    registry: pulls::Registry,
    relay: Option<Relay>,
    cgroups: Cgroups,
    group: String,
}

/// The network of a pod.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Network {
    Host,
    Own,
}

/// See the module; `window` is the time for which writes of the idle node are counted.
pub(crate) fn measure(window: Duration) -> Result<Vec<Figure>, RigError> {
    isolated(move |bench| bench.figures(window))
}

/// Probes and volumes: see `volumes`; `window` is the time for which bytes of idle pods are counted.
pub(crate) fn measure_volumes(window: Duration) -> Result<Vec<Figure>, RigError> {
    isolated_as(&volumes::NODE, move |bench| volumes::figures(bench, window))
}

/// Updates of a DaemonSet there: see `updates`.
pub(crate) fn measure_updates() -> Result<Vec<Figure>, RigError> {
    isolated_as(&updates::NODE, updates::figures)
}

/// Measures with a node on a thread of its own.
pub(crate) fn isolated(
    measure: impl FnOnce(&mut Bench) -> Result<Vec<Figure>, RigError> + Send + 'static,
) -> Result<Vec<Figure>, RigError> {
    isolated_as(&PLAIN_NODE, measure)
}

fn isolated_as(
    kind: &'static Kind,
    measure: impl FnOnce(&mut Bench) -> Result<Vec<Figure>, RigError> + Send + 'static,
) -> Result<Vec<Figure>, RigError> {
    // bridges, addresses and rules of pods, and the mounts, end with the thread and its processes
    let section = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
            .map_err(|errno| io("make a network and mounts of its own")(errno.into()))?;
        let mut bench = Bench::start(kind)?;
        let measured = measure(&mut bench);
        let cleared = bench.clear();
        let figures = measured?;
        cleared.map(|()| figures)
    });
    section.join().unwrap_or_else(|why| std::panic::resume_unwind(why))
}

impl Bench {
    fn start(kind: &Kind) -> Result<Bench, RigError> {
        let crun = found("crun")?;
        let board = probe(&Roots::default(), &Crun { program: crun.clone(), ..Crun::default() });
        if let Some(why) = board.obstacle() {
            return Err(missing("a machine that can run containers", why));
        }
        // first, so that hub and node start in this thread's own network and mounts
        isolate()?;
        let setup = Setup::open(kind.purpose)?;
        set_network(setup.scratch.path())?;
        let group = group()?;
        let program = match std::env::var_os("KEDGE_STATIC_AGENT") {
            Some(program) => program.into(),
            None => programs::built("kedge")?,
        };
        let options = AgentOptions {
            crun: Some(crun),
            flags: vec!["--cgroup-root".into(), group.clone().into()],
            ..AgentOptions::new(&program)
        };
        let dir = setup.scratch.path().join(NODE);
        if let Some(mib) = kind.disk_mib {
            let size = format!("size={mib}m,mode=755");
            let script = "mkdir -p $0/root && mount -t tmpfs -o $1 tmpfs $0/root";
            ran("sh", &["-c", script, &dir.display().to_string(), &size])?;
        }
        let hub = setup.admin.address();
        let relay = kind.is_relayed.then(|| Relay::start(hub)).transpose().map_err(io("start the relay"))?;
        let mut kubeconfig = setup.hub.node_kubeconfig(NODE)?;
        if let Some(relay) = &relay {
            kubeconfig = kubeconfig.replace(&hub.to_string(), &relay.address().to_string());
        }
        let mut agent = Agent::prepare(&dir, NODE, &kubeconfig, options)?;
        let registry = pulls::Registry::start(&setup.scratch.path().join("large"))?;
        let drop_in = format!(
            "{}podLogsDir: {}\nkedge:\n  images:\n    insecureRegistries: [\"{}\"]\n",
            kind.drop_in,
            dir.join("logs").display(),
            registry.server()
        );
        agent.write_drop_in(RIG_DROP_IN_FILE, &drop_in)?;
        let layout = layout(&setup.scratch.path().join("layout"), &[found("busybox")?])?;
        let import = ["images", "import", &layout.path.display().to_string(), "--name", IMAGE];
        let (status, _, said) = agent.kedge(&import)?;
        if status != 0 {
            return Err(RigError::Failed { command: import.join(" "), status: status.to_string(), said });
        }
        let nodes = setup.watch("/api/v1/nodes")?;
        agent.start()?;
        let takes_pods =
            |node: &Value| is_named(node, NODE) && node["status"]["allocatable"]["pods"] == "110";
        nodes.wait("the node to take pods", LIMIT, takes_pods)?;
        let pods = setup.watch(PODS)?;
        Ok(Bench { setup, pods, agent, registry, relay, cgroups: board.cgroups, group })
    }

    fn figures(&mut self, window: Duration) -> Result<Vec<Figure>, RigError> {
        let mut figures = vec![self.memory(0)?];
        let (mut begins, mut replaced) = (Vec::new(), Vec::new());
        for _ in 0..TRIES {
            begins.push(self.run(1..2, Network::Host)?);
            replaced.push(self.replace(1)?);
            self.remove(1..2)?;
        }
        let median = |values: &[f64]| quantile(values, 0.5);
        let tries = |values: &[f64]| format!("median of {TRIES}, worst {:.0} ms", quantile(values, 1.0));
        figures.push(
            Figure::new(
                "pods: bound to running, hostNetwork",
                median(&begins),
                "ms",
                format!("POST with nodeName to ready on a watch, local image; {}", tries(&begins)),
            )
            .with_goal(Goal::AtMost(150.0)),
        );
        figures.push(
            Figure::new(
                "pods: killed process to the next one",
                median(&replaced),
                "ms",
                format!("SIGKILL to a new process in /proc; a kubelet: 650; {}", tries(&replaced)),
            )
            .with_goal(Goal::AtMost(100.0)),
        );
        self.run(1..2, Network::Host)?;
        figures.push(self.memory(1)?);
        self.remove(1..2)?;
        let ten = self.run(1..11, Network::Host)?;
        figures.push(
            Figure::new("pods: ten pods to all running", ten / 1000.0, "s", "kubelet and containerd: 3.2")
                .with_goal(Goal::AtMost(1.5)),
        );
        figures.push(self.memory(10)?);
        figures.push(self.idle_writes(window)?);
        figures.push(self.bytes_of_starts(11..16)?);
        self.run(16..51, Network::Host)?;
        figures.push(self.memory(50)?);
        figures.extend(self.shims()?);
        self.remove(1..51)?;
        figures.extend(self.own_network()?);
        figures.extend(self.registry.measure(&self.agent, self.setup.scratch.path())?);
        Ok(figures)
    }

    /// Pods with a network of their own, alternating with pods on the host's.
    fn own_network(&mut self) -> Result<[Figure; 2], RigError> {
        let (mut own, mut host) = (Vec::new(), Vec::new());
        for _ in 0..TRIES {
            for (network, times) in [(Network::Own, &mut own), (Network::Host, &mut host)] {
                times.push(self.run(1..2, network)?);
                self.remove(1..2)?;
            }
        }
        let (median, of_host) = (quantile(&own, 0.5), quantile(&host, 0.5));
        let how = format!(
            "the same with the package's CNI configuration ({}); median of {TRIES}, worst {:.0} ms",
            PLUGINS.join(", "),
            quantile(&own, 1.0)
        );
        let beside = format!("of pods in turns with those, {of_host:.0} ms; median of {TRIES}");
        Ok([
            Figure::new("pods: bound to running, CNI", median, "ms", how).with_goal(Goal::AtMost(300.0)),
            Figure::new("pods: CNI, times hostNetwork", median / of_host, "", beside),
        ])
    }

    /// Starts the pods of these numbers; returns the milliseconds until they run.
    pub(crate) fn run(&mut self, numbers: std::ops::Range<u32>, network: Network) -> Result<f64, RigError> {
        self.run_as(numbers, |number| pod(number, network))
    }

    /// The same for pods that `make` describes.
    fn run_as(
        &mut self,
        numbers: std::ops::Range<u32>,
        make: impl Fn(u32) -> Value,
    ) -> Result<f64, RigError> {
        self.pods.forget();
        // an earlier connection has been idle for too long
        let mut hub = self.setup.connect()?;
        let begun = Instant::now();
        for number in numbers.clone() {
            hub.accepted("POST", PODS, JSON, &make(number)).map_err(io("create a pod"))?;
        }
        let mut left: Vec<String> = numbers.map(name).collect();
        let limit = LIMIT.max(LONGEST_BEGIN * left.len() as u32);
        let (at, _) = self.pods.wait("pods to run", limit, |object| {
            let status = &object["status"];
            if status["phase"] == "Running" && status["containerStatuses"][0]["ready"] == true {
                left.retain(|name| !is_named(object, name));
            }
            left.is_empty()
        })?;
        Ok(milliseconds(begun, at))
    }

    fn remove(&mut self, numbers: std::ops::Range<u32>) -> Result<(), RigError> {
        let mut hub = self.setup.connect()?;
        let paths = numbers.map(|number| format!("{PODS}/{}", name(number))).collect::<Vec<_>>();
        for path in &paths {
            hub.accepted("DELETE", path, "", &Value::Null).map_err(io("delete a pod"))?;
        }
        for path in &paths {
            let gone = poll(LIMIT, || match hub.request("GET", path, "", &[]) {
                Ok(answer) if answer.status != 404 => None,
                answer => Some(answer),
            });
            let answer = gone.ok_or_else(|| missing(&format!("{path} to be gone"), "it is still there"))?;
            answer.map_err(io("see that a pod is gone"))?;
        }
        Ok(())
    }

    /// Kills the process of a pod; returns the milliseconds until its successor runs.
    fn replace(&self, number: u32) -> Result<f64, RigError> {
        let killed = process_of(number).ok_or_else(|| missing("a process of the pod", "none"))?;
        let begun = Instant::now();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(killed), nix::sys::signal::Signal::SIGKILL)
            .map_err(|errno| io("kill a container")(errno.into()))?;
        while begun.elapsed() < LIMIT {
            if process_of(number).is_some_and(|pid| pid != killed) {
                return Ok(milliseconds(begun, Instant::now()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(missing("another process of the pod", "none"))
    }

    fn memory(&self, pods: u32) -> Result<Figure, RigError> {
        self.memory_as(&format!("pods: PSS of an agent with {pods}"), pods)
    }

    fn memory_as(&self, name: &str, pods: u32) -> Result<Figure, RigError> {
        std::thread::sleep(SETTLE);
        let memory = Process::new(pid(&self.agent)?).most_memory()?;
        let how = format!(
            "most of 35 s of smaps_rollup, {} s after; RSS {:.0} KiB, private {:.0} KiB; shims share its text",
            SETTLE.as_secs(),
            memory.rss,
            memory.private
        );
        Ok(Figure::new(name, memory.pss, "KiB", how).with_goal(pss_goal(pods)))
    }

    /// The memory and threads of a shim.
    fn shims(&self) -> Result<Vec<Figure>, RigError> {
        let memory = self.shim_pids().into_iter().map(|pid| Process::new(pid).memory());
        let memory: Vec<_> = memory.collect::<Result<_, _>>()?;
        if memory.is_empty() {
            return Err(missing("shims", "none"));
        }
        let count = memory.len();
        let of = |part: fn(&kedge_rig::process::Memory) -> f64| {
            quantile(&memory.iter().map(part).collect::<Vec<_>>(), 0.5)
        };
        let private = Figure::new(
            "pods: private memory of a shim",
            of(|memory| memory.private),
            "KiB",
            format!("median of {count}"),
        );
        Ok(vec![
            private.with_goal(Goal::AtMost(512.0)),
            Figure::new("pods: PSS of a shim", of(|memory| memory.pss), "KiB", format!("median of {count}")),
        ])
    }

    fn shim_pids(&self) -> Vec<i32> {
        let run = self.agent.run_dir().display().to_string();
        pids(|line| line.contains("\0shim\0") && line.contains(&run))
    }

    /// Bytes written to the disk while pods only run. Logs are not included; these pods write none.
    fn idle_writes(&self, window: Duration) -> Result<Figure, RigError> {
        let mut traced = self.shim_pids();
        traced.push(pid(&self.agent)?);
        let writes = self.traced("idle", &traced, || {
            std::thread::sleep(window);
            Ok(())
        })?;
        let how = format!(
            "strace of the agent and {} shims for {} s: every call that can change its root directory",
            traced.len() - 1,
            window.as_secs()
        );
        let per_hour = writes.changes as f64 * 3600.0 / window.as_secs_f64();
        Ok(Figure::new("pods: file writes of ten, idle hour", per_hour, "", how)
            .with_goal(Goal::Exactly(0.0)))
    }

    fn bytes_of_starts(&mut self, numbers: std::ops::Range<u32>) -> Result<Figure, RigError> {
        let count = f64::from(numbers.end - numbers.start);
        let prefix = self.prefix("starts");
        let strace = strace(&prefix, &[pid(&self.agent)?])?;
        self.run(numbers, Network::Host)?;
        std::thread::sleep(ATTACH);
        strace.stop()?;
        let writes = self.below_root(&prefix)?;
        let how = format!(
            "strace of the agent and all it starts, {count} pods: {:.1} flushes and {:.1} files each; not what a directory takes",
            writes.syncs as f64 / count,
            writes.renamed.len() as f64 / count
        );
        Ok(Figure::new("pods: bytes to disk per start", writes.bytes as f64 / count, "B", how))
    }

    fn prefix(&self, name: &str) -> PathBuf {
        self.setup.scratch.path().join(format!("{name}.strace"))
    }

    fn traced(
        &self,
        name: &str,
        pids: &[i32],
        during: impl FnOnce() -> Result<(), RigError>,
    ) -> Result<trace::Trace, RigError> {
        let prefix = self.prefix(name);
        let strace = strace(&prefix, pids)?;
        let done = during();
        strace.stop()?;
        done?;
        self.below_root(&prefix)
    }

    /// The writes below the agent's root directory: on a device all others go to tmpfs.
    fn below_root(&self, prefix: &Path) -> Result<trace::Trace, RigError> {
        let root = self.agent.root_dir().display().to_string();
        let text = trace::collect(prefix)?;
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(&root)).collect();
        Ok(trace::read(&lines.join("\n"), &[]))
    }

    fn clear(&mut self) -> Result<(), RigError> {
        let stopped = self.agent.stop();
        let group = Path::new(&self.group);
        self.cgroups.kill_all(&self.group).map_err(RigError::io("end what runs in the group", group))?;
        let mounts = Path::new("/proc/thread-self/mounts");
        let text = fs::read_to_string(mounts).map_err(RigError::io("read", mounts))?;
        let places = text.lines().rev().filter_map(|line| line.split(' ').nth(1)).map(Path::new);
        for place in places.filter(|place| place.starts_with(self.setup.scratch.path())) {
            unmount(place).map_err(RigError::io("unmount", place))?;
        }
        // killed processes take a moment to disappear, longer on a busy machine
        let begun = Instant::now();
        while let Err(error) = self.cgroups.remove(&self.group) {
            if begun.elapsed() > LIMIT {
                return Err(RigError::io("remove the group", group)(error));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        stopped
    }
}

/// The control group of this process. In a PID namespace, which `.ci/bench` makes, every such process has the
/// id 1, so the namespace is part of the name.
fn group() -> Result<String, RigError> {
    let namespace = Path::new("/proc/self/ns/pid");
    let inode = fs::metadata(namespace).map_err(RigError::io("look at", namespace))?.ino();
    Ok(format!("/kedge-bench-{inode}-{}", std::process::id()))
}

fn strace(prefix: &Path, pids: &[i32]) -> Result<Helper, RigError> {
    let prefix = prefix.display().to_string();
    let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
    let mut words = vec!["-f", "-ff", "-ttt", "-y", "-e", trace::CALLS, "-o", &prefix];
    pids.iter().for_each(|pid| words.extend(["-p", pid]));
    let helper = Helper::start("strace", &words)?;
    std::thread::sleep(ATTACH);
    Ok(helper)
}

fn milliseconds(begun: Instant, at: Instant) -> f64 {
    at.saturating_duration_since(begun).as_secs_f64() * 1000.0
}

fn name(number: u32) -> String {
    format!("bench-{number}")
}

fn pod(number: u32, network: Network) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name(number)}, "spec": {
        "nodeName": NODE, "hostNetwork": network == Network::Host, "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": IMAGE,
            "command": ["/bin/busybox", "sleep", (SLEEP_SECS + number).to_string()]}]}})
}

fn process_of(number: u32) -> Option<i32> {
    let line = format!("/bin/busybox\0sleep\0{}\0", SLEEP_SECS + number);
    pids(|found| found == line).pop()
}

/// Process ids, selected by command line.
pub(crate) fn pids(is_one: impl Fn(&str) -> bool) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let line = |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    pids.filter(|pid| is_one(&String::from_utf8_lossy(&line(pid)))).collect()
}

fn missing(awaited: &str, found: &str) -> RigError {
    RigError::TimedOut { awaited: awaited.to_owned(), found: found.to_owned() }
}

/// Makes mounts private to this process, and starts the loopback interface.
fn isolate() -> Result<(), RigError> {
    ran("sh", &["-c", "mount --make-rprivate / && ip link set lo up"]).map(drop)
}

/// The package's network for pods, with its addresses stored in this directory.
fn set_network(scratch: &Path) -> Result<(), RigError> {
    for plugin in PLUGINS {
        let path = Path::new(PLUGIN_DIR).join(plugin);
        fs::metadata(&path).map_err(RigError::io("look at the CNI plugin", &path))?;
    }
    // an overlay over /etc, so that writes to it are private
    let script = "mkdir $0 && mount -t tmpfs tmpfs $0 && mkdir $0/upper $0/work && \
        mount -t overlay -o lowerdir=/etc,upperdir=$0/upper,workdir=$0/work overlay /etc && \
        rm -rf /etc/cni && mkdir -p /etc/cni/net.d";
    ran("sh", &["-c", script, &scratch.join("etc").display().to_string()])?;
    let text = NETWORK.replace("/run/kedge/addresses", &scratch.join("addresses").display().to_string());
    let path = Path::new("/etc/cni/net.d/99-kedge.conflist");
    fs::write(path, text).map_err(RigError::io("write", path))
}

/// Runs a program; returns its standard output.
pub(crate) fn ran(program: &str, arguments: &[&str]) -> Result<Vec<u8>, RigError> {
    let output = Command::new(program).args(arguments).output().map_err(io(&format!("run {program}")))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let command = format!("{program} {}", arguments.join(" "));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(RigError::Failed { command, status: output.status.to_string(), said })
}

/// The path of a program in `$PATH`.
pub(crate) fn found(name: &str) -> Result<PathBuf, RigError> {
    let places = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&places).map(|place| place.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| missing(&format!("{name} in $PATH"), "none"))
}

/// An OCI layout with one image of one layer.
pub(crate) struct Layout {
    pub(crate) path: PathBuf,
    /// Bytes of its files, without the padding of the tar format.
    pub(crate) bytes: u64,
    /// The descriptor of its manifest.
    pub(crate) manifest: Value,
}

/// An OCI layout whose image has these files in `/bin`, and a layer as gzip compresses it.
pub(crate) fn layout(at: &Path, files: &[PathBuf]) -> Result<Layout, RigError> {
    let (bin, blobs) = (at.join("image/bin"), at.join("blobs/sha256"));
    for directory in [&bin, &blobs] {
        fs::create_dir_all(directory).map_err(RigError::io("create directory", directory))?;
    }
    let mut bytes = 0;
    for file in files {
        let copied = fs::copy(file, bin.join(file.file_name().unwrap_or_default()));
        bytes += copied.map_err(RigError::io("copy", file))?;
    }
    let text = |path: &Path| path.display().to_string();
    let (image, archive) = (text(&at.join("image")), at.join("layer.tar"));
    ran("tar", &["-C", &image, "-cf", &text(&archive), "."])?;
    let plain = digest(&archive)?;
    ran("gzip", &["-n", &text(&archive)])?;
    let archive = at.join("layer.tar.gz");
    let layer =
        blob(&blobs, &fs::read(&archive).map_err(RigError::io("read", &archive))?, "layer.v1.tar+gzip")?;
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = json!({"architecture": architecture, "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [plain]}});
    let config = blob(&blobs, config.to_string().as_bytes(), "config.v1+json")?;
    let manifest = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config, "layers": [layer]});
    let manifest = blob(&blobs, manifest.to_string().as_bytes(), "manifest.v1+json")?;
    let index = at.join("index.json");
    let text = json!({"schemaVersion": 2, "manifests": [manifest]}).to_string();
    fs::write(&index, text).map_err(RigError::io("write", &index))?;
    Ok(Layout { path: at.to_owned(), bytes, manifest })
}

/// Writes a blob; returns its descriptor.
fn blob(blobs: &Path, bytes: &[u8], media: &str) -> Result<Value, RigError> {
    let fresh = blobs.join("new");
    fs::write(&fresh, bytes).map_err(RigError::io("write", &fresh))?;
    let digest = digest(&fresh)?;
    fs::rename(&fresh, blobs.join(digest.trim_start_matches("sha256:")))
        .map_err(RigError::io("rename", &fresh))?;
    Ok(json!({"mediaType": format!("application/vnd.oci.image.{media}"), "digest": digest,
        "size": bytes.len()}))
}

fn digest(file: &Path) -> Result<String, RigError> {
    let text = ran("sha256sum", &[&file.display().to_string()])?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(format!("sha256:{}", text.split_whitespace().next().unwrap_or_default()))
}
