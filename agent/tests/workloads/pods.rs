//! Pods from `kubectl apply` to their end, with a real hub, a real agent, crun and a local image.

use crate::network::SHIPPED;
use crate::setup::{INSIDE, LIMIT, add_program, isolated_network, kill, make_image, processes};
use kedge_core::images::BlobDigest;
use kedge_platform::linux::Roots;
use kedge_platform::workloads::{Crun, probe};
use kedge_rig::agent::{Agent, AgentOptions};
use kedge_rig::cluster::{Cluster, HEADER, Source};
use kedge_rig::kubectl::Kubectl;
use kedge_rig::lossy_line;
use kedge_rig::scratch::wait_until;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub(crate) const NODE: &str = "edge-1";
/// An address of the machine outside the loopback network.
pub(crate) const REACHED: &str = "10.77.0.1";
/// The command line of the pod's process, as `/proc` has it.
const COMMAND_LINE: &[u8] = b"sleep\x0086321\0";

/// Processes of the pod's container.
pub(crate) fn pids() -> Vec<i64> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i64>().ok());
    let is_one = |pid: &i64| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == COMMAND_LINE);
    pids.filter(is_one).collect()
}

pub(crate) struct Setup {
    pub(crate) cluster: Cluster,
}

impl Setup {
    /// A hub, and a node with the image `web:1` whose agent has not begun.
    pub(crate) fn before_the_agent() -> Self {
        Self::before_an_agent(env!("CARGO_BIN_EXE_kedge").as_ref(), |_| ())
    }

    /// The same for an agent that this program starts; `make` prepares the disk for the node's root
    /// directory.
    pub(crate) fn before_an_agent(program: &Path, make: impl FnOnce(&Path)) -> Self {
        Self::around(Cluster::start("pods").unwrap(), program, make)
    }

    /// A hub that lossy lines lead to, and a node with the image `web:1` that `start` starts in a network of
    /// its own.
    pub(crate) fn far_away(start: impl FnOnce(&mut Agent)) -> Self {
        let cluster = Cluster::start_at("pods", lossy_line::HUB.into()).unwrap();
        let mut setup = Self::around(cluster, env!("CARGO_BIN_EXE_kedge").as_ref(), |_| ());
        start(setup.cluster.agent_mut(NODE));
        setup.takes_pods();
        setup
    }

    /// A hub at an address of this machine that pods with networks of their own reach, and a node with a
    /// runtime and that image.
    pub(crate) fn reached_by_pods() -> Self {
        let address = format!("{REACHED}/32");
        let added = Command::new("ip").args(["address", "add", &address, "dev", "lo"]).status().unwrap();
        assert!(added.success(), "in the network namespace of this test");
        let cluster = Cluster::start_at("pods", REACHED.parse().unwrap()).unwrap();
        let mut setup = Self::around(cluster, env!("CARGO_BIN_EXE_kedge").as_ref(), |_| ());
        setup.await_pods();
        setup
    }

    /// A node with the image `web:1` in a cluster without nodes.
    pub(crate) fn around(mut cluster: Cluster, program: &Path, make: impl FnOnce(&Path)) -> Self {
        let logs = cluster.scratch().join("logs");
        fs::create_dir_all(&logs).unwrap();
        fs::create_dir_all("/var/log/pods").unwrap();
        for (place, own) in [("/var/log/pods", "logs"), ("/var/log/containers", "links")] {
            fs::create_dir_all(place).unwrap();
            let own = cluster.scratch().join(own);
            fs::create_dir_all(&own).unwrap();
            let bound = Command::new("mount").arg("--bind").arg(&own).arg(place).status().unwrap();
            assert!(bound.success(), "in the mount namespace of this test");
        }
        has_own_etc(&cluster.scratch().join("."));
        let mut options = AgentOptions::new(program);
        options.crun = Some("/usr/bin/crun".into());
        options.flags = vec!["--cgroup-root".into(), std::env::var_os(INSIDE).unwrap()];
        options.restart_after = Duration::from_millis(200);
        let layout = layout(&cluster.scratch().join("layout"));
        let agent = cluster.add(NODE, options).unwrap();
        make(&agent.root_dir());
        let (code, _, why) =
            agent.kedge(&["images", "import", layout.to_str().unwrap(), "--name", "web:1"]).unwrap();
        assert_eq!(code, 0, "{why}");
        Self { cluster }
    }

    /// A hub, and a node with a runtime and that image.
    pub(crate) fn with_runtime() -> Self {
        let mut setup = Self::before_the_agent();
        setup.await_pods();
        setup.shows("the taint of a node without a pod network", || {
            let taints = setup.cluster.kubectl().run(&["get", "node", NODE, "-o", "jsonpath={.spec.taints}"]);
            taints.is_ok_and(|taints| taints.contains("node.kubernetes.io/network-unavailable"))
        });
        setup
    }

    /// Starts the agent, and returns when its node takes pods.
    pub(crate) fn await_pods(&mut self) {
        self.cluster.agent_mut(NODE).start().unwrap();
        self.takes_pods();
    }

    #[track_caller]
    fn takes_pods(&self) {
        self.shows("a node that takes pods", || {
            let node = self.cluster.kubectl().json(&["get", "node", NODE]).unwrap_or_default();
            node["status"]["allocatable"]["pods"] == "110"
        });
    }

    #[track_caller]
    pub(crate) fn shows(&self, awaited: &str, is_so: impl Fn() -> bool) {
        let reached = kedge_rig::scratch::poll(LIMIT, || is_so().then_some(()));
        assert!(reached.is_some(), "waited in vain for {awaited}\n{}", self.cluster.agent(NODE).log_text());
    }

    fn pod(&self) -> Value {
        self.cluster.kubectl().json(&["get", "pod", "web"]).unwrap_or_default()
    }

    pub(crate) fn runs_with(&self, restarts: u64) -> bool {
        let status = self.pod()["status"].take();
        let container = &status["containerStatuses"][0];
        status["phase"] == "Running" && container["ready"] == true && container["restartCount"] == restarts
    }

    /// Kills the agent, and waits until the next one has its pod.
    pub(crate) fn replace_the_agent(&self) {
        let agent = self.cluster.agent(NODE);
        let before = agent.babysitter().state();
        kill(before.pid.unwrap().into());
        agent
            .babysitter()
            .wait_until("another agent", LIMIT, |state| state.runs > before.runs && state.is_ready())
            .unwrap();
        self.shows("the pod adopted", || {
            let pods = agent.kedge_json(&["pods"]).unwrap_or_default();
            pods["pods"][0]["containers"][0]["state"] == "Running"
        });
    }

    /// Has the agent replace itself for a configuration with this many pods, and waits until the node runs by
    /// it.
    pub(crate) fn replace_itself(&self, most_pods: u32) {
        let name = format!("settings-{most_pods}");
        let payload = format!("{HEADER}maxPods: {most_pods}\n");
        self.cluster.create_config(&name, &payload).unwrap();
        self.cluster.assign(NODE, &Source::Following { name }).unwrap();
        self.shows("the node by its new configuration", || {
            let node = self.cluster.kubectl().json(&["get", "node", NODE]).unwrap_or_default();
            node["status"]["allocatable"]["pods"] == json!(most_pods.to_string())
        });
    }

    /// Ends all processes of the node at once, and its mounts, like a power cut. Volatile files stay: the
    /// caller prepares the next boot's.
    pub(crate) fn turn_off(&mut self) {
        let agent = self.cluster.agent_mut(NODE);
        agent.cut();
        let below = [agent.run_dir(), agent.root_dir()];
        let group = std::env::var(INSIDE).unwrap();
        probe(&Roots::default(), &Crun::default()).cgroups.kill_all(&group).unwrap();
        wait_until("the end of the shims", LIMIT, || processes("shim").is_empty());
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mounts = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        let is_below = |place: &&str| {
            below
                .iter()
                .any(|directory| Path::new(place).starts_with(directory) && Path::new(place) != directory)
        };
        for place in mounts.filter(is_below).collect::<Vec<_>>().into_iter().rev() {
            assert!(Command::new("umount").args(["--lazy", place]).status().unwrap().success(), "{place}");
        }
    }

    pub(crate) fn log(&self, attempt: u32) -> String {
        let uid = self.pod()["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let path = format!("/var/log/pods/default_web_{uid}/main/{attempt}.log");
        fs::read_to_string(&path).unwrap_or_else(|error| format!("{path}: {error}"))
    }
}

/// Gives the mount namespace of this test a `/etc` of its own, without networks for pods.
fn has_own_etc(scratch: &Path) {
    let script = "cd \"$0\" && mkdir etc && mount -t tmpfs etc etc && mkdir etc/upper etc/work && \
        mount -t overlay -o lowerdir=/etc,upperdir=etc/upper,workdir=etc/work etc /etc && rm -rf /etc/cni";
    let made = Command::new("sh").args(["-c", script]).arg(scratch).status().unwrap();
    assert!(made.success());
}

/// An OCI layout with busybox.
pub(crate) fn layout(at: &Path) -> std::path::PathBuf {
    layout_with(at, &[])
}

/// With these programs of the machine, too.
pub(crate) fn layout_with(at: &Path, programs: &[&str]) -> std::path::PathBuf {
    layout_of(at, &json!({}), |image| programs.iter().for_each(|program| add_program(image, program)))
}

/// With the files that `add` adds to the image, and this in its config.
pub(crate) fn layout_of(at: &Path, config: &Value, add: impl FnOnce(&Path)) -> std::path::PathBuf {
    let blobs = at.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    make_image(&at.join("image"));
    add(&at.join("image"));
    let archived = Command::new("tar")
        .args(["--mode=a+rX", "-C"])
        .arg(at.join("image"))
        .args(["-cf", "-", "."])
        .output()
        .unwrap();
    assert!(archived.status.success());
    let blob = |bytes: &[u8], media: &str| {
        let digest = BlobDigest::of(bytes);
        fs::write(blobs.join(digest.hex()), bytes).unwrap();
        json!({"mediaType": format!("application/vnd.oci.image.{media}"), "digest": digest, "size": bytes.len()})
    };
    let layer = blob(&archived.stdout, "layer.v1.tar");
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = json!({"architecture": architecture, "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]}});
    let config = blob(config.to_string().as_bytes(), "config.v1+json");
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": [layer]});
    let manifest = blob(manifest.to_string().as_bytes(), "manifest.v1+json");
    fs::write(at.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string()).unwrap();
    fs::write(at.join("index.json"), json!({"schemaVersion": 2, "manifests": [manifest]}).to_string())
        .unwrap();
    fs::remove_dir_all(at.join("image")).unwrap();
    at.to_owned()
}

fn manifest() -> String {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
        "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "web:1", "command": ["/bin/sh", "-c", "echo $GREETING; exec sleep 86321"],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "env": [{"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "words", "key": "hello"}}}]}]}});
    let words = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "words"}, "data": {"hello": "hello edge"}});
    json!({"apiVersion": "v1", "kind": "List", "items": [words, pod]}).to_string()
}

/// Nodes without a machine: one is unschedulable, the other was never registered by an agent.
fn add_other_nodes(kubectl: &Kubectl) {
    let node = |name: &str, spec: Value| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec});
    let nodes = [node("edge-2", json!({"unschedulable": true})), node("edge-3", json!({}))];
    kubectl
        .feed(
            &["create", "-f", "-"],
            &json!({"apiVersion": "v1", "kind": "List", "items": nodes}).to_string(),
        )
        .unwrap();
}

#[test]
fn kubectl_runs_a_pod_and_attaches_to_it() {
    isolated_network("pods::kubectl_runs_a_pod_and_attaches_to_it", || {
        let setup = Setup::with_runtime();
        let kubectl = setup.cluster.kubectl();
        add_other_nodes(kubectl);
        setup.shows("a taint of the node that nobody has heard of", || {
            let taints = kubectl.run(&["get", "node", "edge-3", "-o", "jsonpath={.spec.taints}"]);
            taints.is_ok_and(|taints| taints.contains("node.kubernetes.io/not-ready"))
        });
        // no node takes it, each for reasons of its own, in upstream's words; it tolerates the taint of a
        // node without a pod network
        let huge = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "huge"}, "spec": {
            "tolerations": [{"key": "node.kubernetes.io/network-unavailable", "operator": "Exists"}],
            "containers": [{"name": "main", "image": "web:1",
                "resources": {"requests": {"cpu": "1000", "memory": "1000Ti", "kedge.dev/absent": 1}, "limits": {"kedge.dev/absent": 1}}}]}});
        kubectl.feed(&["create", "-f", "-"], &huge.to_string()).unwrap();
        let why = "0/3 nodes are available: 1 Insufficient cpu, 1 Insufficient kedge.dev/absent, 1 Insufficient memory, \
            1 node(s) had untolerated taint(s), 1 node(s) were unschedulable.";
        let event = "jsonpath={range .items[?(@.reason==\"FailedScheduling\")]}{.type} {.source.component} {.message}{\"\\n\"}{end}";
        setup.shows("why no node takes it", || {
            kubectl
                .run(&["get", "events", "-o", event])
                .is_ok_and(|all| all == format!("Warning default-scheduler {why}\n"))
        });
        let condition = kubectl.json(&["get", "pod", "huge"]).unwrap()["status"]["conditions"][0].take();
        assert_eq!((&condition["reason"], &condition["message"]), (&json!("Unschedulable"), &json!(why)));

        // once its node has a network for pods, a pod that requests nothing runs there: users need to name
        // only an image
        put_network();
        setup.shows("a node without the taint", || {
            let taints = kubectl.run(&["get", "node", NODE, "-o", "jsonpath={.spec.taints}"]);
            taints.is_ok_and(|taints| taints.is_empty())
        });
        let mut words =
            vec!["run", "web", "--image=web:1", "--restart=Never", "-i", "--quiet", "--command", "--"];
        words.extend(["/bin/sh", "-c", "cat; echo end"]);
        assert_eq!(kubectl.feed(&words, "one\ntwo\n").unwrap(), "one\ntwo\nend\n");
        setup.shows("the pod's end", || setup.pod()["status"]["phase"] == "Succeeded");
        assert_eq!(kubectl.run(&["logs", "web"]).unwrap(), "one\ntwo\nend\n");
        let ran = setup.pod();
        assert_eq!(ran["spec"]["nodeName"], NODE, "the hub's scheduler bound it");
        let events = kubectl.run(&["get", "events", "-o", "wide"]).unwrap();
        assert!(events.contains("Successfully assigned default/web to edge-1"), "{events}");
        assert!(ran["status"]["podIP"].as_str().is_some_and(|it| it.starts_with("10.85.")), "{ran}");

        // a pod that the scheduler accepts and the node rejects is Failed, and says why
        let refused = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "refused"}, "spec": {
            "hostUsers": false, "containers": [{"name": "main", "image": "web:1"}]}});
        let reads = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "reads"}, "spec": {
            "terminationGracePeriodSeconds": 1, "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "web:1", "stdin": true, "command": ["/bin/sh", "-c", "read x; echo got $x"]}]}});
        for pod in [refused, reads] {
            kubectl.feed(&["apply", "-f", "-"], &pod.to_string()).unwrap();
        }
        setup.shows("the pod that its node refuses", || {
            let pod = kubectl.json(&["get", "pod", "refused"]).unwrap_or_default();
            let message = pod["status"]["message"].as_str().unwrap_or_default();
            (&pod["status"]["phase"], &pod["status"]["reason"])
                == (&json!("Failed"), &json!("PodFeatureUnsupported"))
                && pod["spec"]["nodeName"] == NODE
                && message.contains("spec.hostUsers: ")
        });
        setup.shows("the pod Running", || {
            kubectl.json(&["get", "pod", "reads"]).unwrap_or_default()["status"]["phase"] == "Running"
        });
        assert_eq!(kubectl.feed(&["attach", "-i", "--quiet", "reads"], "x\n").unwrap(), "got x\n");
    });
}

/// Installs the network configuration of the package for the pods of this machine.
pub(crate) fn put_network() {
    fs::create_dir_all("/etc/cni/net.d").unwrap();
    let list = SHIPPED.replace("/run/kedge/addresses", "/etc/cni/addresses");
    fs::write("/etc/cni/net.d/99-kedge.conflist", list).unwrap();
}

#[test]
fn pod_lives_from_kubectl_apply_to_delete() {
    isolated_network("pods::pod_lives_from_kubectl_apply_to_delete", || {
        let setup = Setup::with_runtime();
        let kubectl = setup.cluster.kubectl();
        kubectl.feed(&["apply", "-f", "-"], &manifest()).unwrap();
        setup.shows("the pod Running", || setup.runs_with(0));
        assert!(setup.log(0).ends_with("stdout F hello edge\n"), "{}", setup.log(0));
        let [pid] = pids()[..] else { panic!("one process: {:?}", pids()) };
        let of_account = |file: &str| {
            let path = format!("/proc/{pid}/root/var/run/secrets/kubernetes.io/serviceaccount/{file}");
            fs::read_to_string(&path).unwrap_or_else(|error| format!("{path}: {error}"))
        };
        assert_eq!((of_account("namespace"), of_account("token").split('.').count()), ("default".into(), 3));
        assert!(of_account("ca.crt").starts_with("-----BEGIN CERTIFICATE"), "{}", of_account("ca.crt"));

        // the agent is killed: the container keeps running, and the next agent adopts it
        let agent = setup.cluster.agent(NODE);
        let (followed, over_api) = std::thread::scope(|scope| {
            let over_api =
                scope.spawn(|| kubectl.run(&["logs", "-f", "web", "--request-timeout=0"]).unwrap());
            setup.shows("a session", || !processes("session").is_empty());
            setup.replace_the_agent();
            assert_eq!(pids(), [pid], "it was not restarted");
            assert!(setup.runs_with(0), "{}", setup.pod()["status"]);

            // the container is killed: another takes its place, and a client that follows the log of the
            // first reaches its end
            let followed = scope.spawn(|| agent.kedge(&["logs", "-f", "web"]).unwrap());
            kill(pid);
            setup.shows("another container", || setup.runs_with(1));
            (followed.join().unwrap(), over_api.join().unwrap())
        });
        assert_eq!(followed, (0, "hello edge\n".to_owned(), String::new()));
        assert_eq!(over_api, "hello edge\n", "over the API, through the end of the agent");
        assert_eq!(kubectl.run(&["logs", "-p", "web"]).unwrap(), "hello edge\n");
        let (code, previous, _) = agent.kedge(&["logs", "-p", "--timestamps", "default/web"]).unwrap();
        assert!(code == 0 && previous.ends_with("Z hello edge\n"), "{previous}");
        let (code, _, why) = agent.kedge(&["logs", "web", "-c", "other"]).unwrap();
        assert!(code == 1 && why.contains("only of: main"), "{why}");
        let [other] = pids()[..] else { panic!("one process: {:?}", pids()) };
        assert_ne!(other, pid);
        let last = setup.pod()["status"]["containerStatuses"][0]["lastState"]["terminated"].clone();
        assert_eq!((last["exitCode"].as_i64(), last["signal"].as_i64()), (Some(137), Some(9)), "{last}");
        assert_eq!(last["message"], "hello edge", "the end of its log");
        let (_, listed, _) = agent.kedge(&["pods"]).unwrap();
        assert!(listed.contains(" 1/1 "), "{listed}");

        // deleted and gone
        kubectl.run(&["delete", "pod", "web", "--timeout=60s"]).unwrap();
        assert_eq!(pids(), [0; 0], "a pod that is gone runs nothing");
        let root = agent.root_dir();
        let files = |directory: &str| fs::read_dir(root.join(directory)).map(Iterator::count).unwrap_or(0);
        wait_until("no records of pods", LIMIT, || files("pods/desired") == 0 && files("pods/objects") == 0);
        let logs = fs::read_dir("/var/log/pods").unwrap().count();
        assert_eq!(logs, 0, "no logs of a pod that is gone");

        // a pod with a network of its own waits, and reports for what
        let own_network = manifest().replace("\"hostNetwork\":true,", "");
        kubectl.feed(&["apply", "-f", "-"], &own_network).unwrap();
        setup.shows("an Event that says why", || {
            kubectl.run(&["get", "events"]).is_ok_and(|events| events.contains("NetworkPluginNotReady"))
        });
        assert_eq!((pids(), &setup.pod()["status"]["phase"]), (vec![], &json!("Pending")));

        // until there is a network: the taint is removed, the pod runs with an address, and keeps it over an
        // agent's restart
        put_network();
        setup.shows("the pod on its own network", || setup.runs_with(0));
        setup.shows("a node without the taint", || {
            let taints = kubectl.run(&["get", "node", NODE, "-o", "jsonpath={.spec.taints}"]);
            taints.is_ok_and(|taints| !taints.contains("network-unavailable"))
        });
        let address = setup.pod()["status"]["podIP"].clone();
        assert!(address.as_str().is_some_and(|it| it.starts_with("10.85.")), "{}", setup.pod()["status"]);
        setup.replace_the_agent();
        assert_eq!(setup.pod()["status"]["podIP"], address);
        kubectl.run(&["delete", "pod", "web", "--timeout=60s"]).unwrap();
        let reserved = fs::read_dir("/etc/cni/addresses/kedge").unwrap().flatten();
        let reserved = reserved.filter(|entry| entry.file_name().to_string_lossy().starts_with("10."));
        assert_eq!(reserved.count(), 0, "no address of a pod that is gone");
    });
}
