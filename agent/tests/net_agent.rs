//! The real agent while a part of its node or its server fails: its requests after a restart, its reaction to
//! a server that started over, and renewals that continue whatever blocks. A server that behaves is the real
//! hub; one that counts bytes or forgets is a script. Every wait is for a request, and ends the test if the
//! request never arrives.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod net_server;

use kedge_rig::client::{Connection, Identity};
use kedge_rig::hub::Hub;
use kedge_rig::programs;
use kedge_rig::scratch::wait_until;
use net_server::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

const NODE: &str = "edge-1";
const NODES: &str = "/api/v1/nodes";
const CONFIG_MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";

/// How long the agent may take for anything asked of it here: a machine that builds at the same time is slow.
const PATIENCE: Duration = Duration::from_secs(90);

/// The server's state.
struct State {
    /// The Node; `None`: it does not exist, and the watches have not reported its deletion.
    node: Option<Value>,
    config_map: Value,
    version: u64,
    /// Whether the server forbids nodes to set labels.
    refuses_labels: bool,
    /// Whether it is another Kubernetes behind a gateway that refuses renewals which accept protobuf answers:
    /// the statuses of its refusals, in turn.
    gateway: Option<std::iter::Cycle<std::array::IntoIter<u16, 3>>>,
    watches: Watches,
    /// Lists of Nodes are answered once this is open.
    nodes_listed: Gate,
}

/// The server's treatment of a watch: nothing ever happens on one.
enum Watches {
    /// It lasts until the client is gone.
    Last,
    /// A watch of the ConfigMap ends when this opens, the others last.
    EndOnce(Gate),
    /// Each ends at once, after the object as it is and a bookmark of the version that it began with.
    End,
    /// Each gets such a bookmark when this opens, and lasts.
    Bookmark(Gate),
    /// Each gets one bookmark after the other, without end.
    Flood,
}

/// Threads wait for it until it opens; then it stays open.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn opened() -> Self {
        let gate = Self::default();
        gate.open();
        gate
    }

    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        let closed = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(closed, |is_open| !*is_open).unwrap());
    }
}

impl State {
    /// A server whose Node asks for a ConfigMap of `payload_bytes`.
    fn new(payload_bytes: usize) -> Self {
        let comment = format!("# {}\n", "x".repeat(98)).repeat(payload_bytes / 100);
        let payload =
            format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{comment}");
        let source =
            json!({"configMap": {"namespace": "kube-system", "name": "edge", "kubeletConfigKey": "kubelet"}});
        Self {
            node: Some(node("node-uid-1", source)),
            config_map: json!({
                "metadata": {"namespace": "kube-system", "name": "edge", "uid": "map-uid-1", "resourceVersion": "50"},
                "data": {"kubelet": payload},
            }),
            version: 100,
            refuses_labels: false,
            gateway: None,
            watches: Watches::Last,
            nodes_listed: Gate::opened(),
        }
    }

    /// The same with these fields of the configuration.
    fn with_fields(self, fields: &str) -> Self {
        let payload =
            format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{fields}\n");
        let mut config_map = self.config_map;
        config_map["data"]["kubelet"] = json!(payload);
        Self { config_map, ..self }
    }

    fn watch(&self, path: &str) -> Reply {
        match &self.watches {
            Watches::EndOnce(gate) if path == CONFIG_MAPS => {
                let gate = gate.clone();
                Reply::Chunks(Box::new(move |_| gate.wait()))
            }
            Watches::Last | Watches::EndOnce(_) => Reply::Chunks(Box::new(|body| body.wait_for_end())),
            Watches::Bookmark(gate) => {
                let (gate, version) = (gate.clone(), self.version.to_string());
                Reply::Chunks(Box::new(move |body| {
                    gate.wait();
                    body.event("BOOKMARK", "", &version);
                    body.wait_for_end();
                }))
            }
            Watches::Flood => {
                let first = self.version;
                Reply::Chunks(Box::new(move |body| {
                    let many =
                        |from: u64| (from..from + 100).map(|at| event("BOOKMARK", "", &at.to_string()));
                    let mut pieces = (first..).step_by(100).map(|from| many(from).collect::<String>());
                    while body.is_sent(&pieces.next().unwrap()) {}
                }))
            }
            Watches::End => {
                let version = self.version.to_string();
                let object =
                    if path == CONFIG_MAPS { Some(self.config_map.clone()) } else { self.node.clone() };
                Reply::Chunks(Box::new(move |body| {
                    body.send(&format!("{}\n", json!({"type": "MODIFIED", "object": object})));
                    body.event("BOOKMARK", "", &version);
                }))
            }
        }
    }

    fn list(&self, kind: &str, items: Vec<Value>) -> Reply {
        let metadata = json!({"resourceVersion": self.version.to_string()});
        Reply::ok(
            &json!({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items}).to_string(),
        )
    }

    fn answer(&mut self, heard: &Heard) -> Reply {
        let (path, query) = heard.path.split_once('?').unwrap_or((&heard.path, ""));
        let not_found = || Reply::status(404, "NotFound", "not found");
        if let Some(gateway) = self.gateway.as_mut().filter(|_| asks_for_protobuf(heard)) {
            return Reply::Answer(gateway.next().unwrap(), "Bad Request".to_owned());
        }
        match (heard.method.as_str(), path) {
            ("GET", "/version") if self.gateway.is_some() => Reply::ok(r#"{"gitVersion":"v1.36.0"}"#),
            ("GET", "/version") => Reply::ok(r#"{"gitVersion":"v1.34.0+kedge-0.1.0"}"#),
            ("GET", NODES | CONFIG_MAPS) if query.contains("watch=true") => self.watch(path),
            ("GET", NODES) => {
                let Reply::Answer(_, list) = self.list("NodeList", self.node.iter().cloned().collect())
                else {
                    unreachable!("a list is an answer")
                };
                let gate = self.nodes_listed.clone();
                Reply::Chunks(Box::new(move |body| {
                    gate.wait();
                    body.send(&list);
                }))
            }
            ("GET", CONFIG_MAPS) => {
                let mut map = self.config_map.clone();
                if heard.header("accept").is_some_and(|accept| accept.contains("PartialObjectMetadataList")) {
                    map.as_object_mut().unwrap().remove("data");
                }
                self.list("ConfigMapList", vec![map])
            }
            ("POST", NODES) => {
                self.version += 1;
                self.node = Some(node("node-uid-2", Value::Null));
                Reply::Answer(201, "{}".to_owned())
            }
            ("PATCH", _) if self.node.is_none() => not_found(),
            ("PATCH", _) if self.refuses_labels && heard.body.contains("\"labels\"") => {
                Reply::status(403, "Forbidden", "is not allowed to modify labels: site")
            }
            ("PATCH" | "POST", _) => Reply::ok("{}"),
            _ => not_found(),
        }
    }
}

fn asks_for_protobuf(heard: &Heard) -> bool {
    heard.header("accept").is_some_and(|accept| accept.contains("protobuf"))
}

fn node(uid: &str, source: Value) -> Value {
    json!({
        "metadata": {"name": NODE, "uid": uid, "resourceVersion": "60"},
        "spec": {"configSource": source},
    })
}

/// An agent process and its directory, with its kubeconfig.
struct Agent {
    directory: Scratch,
    program: PathBuf,
    /// Its base configuration.
    base: Option<PathBuf>,
    child: Option<Child>,
}

impl Agent {
    fn in_directory(directory: Scratch) -> Self {
        Self { directory, program: env!("CARGO_BIN_EXE_kedge").into(), base: None, child: None }
    }

    fn kubeconfig(&self) -> PathBuf {
        self.directory.join("kubeconfig")
    }

    fn start(&mut self) {
        self.start_with_log(Stdio::null());
    }

    fn start_with_log(&mut self, log: impl Into<Stdio>) {
        let at = |name: &str| self.directory.join(name).display().to_string();
        let child = Command::new(&self.program)
            .args(["agent", "--crun", "", "--hostname-override", NODE, "--config-dir", ""])
            .args(["--kubeconfig", &at("kubeconfig"), "--root-dir", &at("state"), "--run-dir", &at("run")])
            .args(["--node-status-update-frequency", "1s"])
            .args(self.base.iter().flat_map(|path| [Path::new("--config"), path]))
            .env_remove("NOTIFY_SOCKET")
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// Ends the agent as a person would, and waits for it.
    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = Command::new("kill").arg(child.id().to_string()).status();
            wait_until("the agent to stop", PATIENCE, || child.try_wait().unwrap().is_some());
        }
    }

    /// Starts of the program so far, including those by which it replaced itself.
    fn runs(&self) -> u64 {
        let run = std::fs::read_to_string(self.directory.join("run/run"));
        run.ok().and_then(|run| run.parse().ok()).unwrap_or(0)
    }

    /// Waits until another config runs: the program replaced itself after its start number `run`, in the same
    /// process.
    fn wait_for_adoption(&mut self, run: u64) {
        wait_until("the agent to adopt", PATIENCE, || {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the process ended: {ended:?}");
            self.runs() == run + 1
        });
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// An agent of the real hub.
struct OfHub {
    // in this order: fields are dropped from first to last
    agent: Agent,
    admin: Connection,
    hub: Hub,
}

impl OfHub {
    fn new() -> Self {
        let directory = Scratch::new("net-agent").unwrap();
        let hub = Hub::start(&directory.join("hub"), &[]).unwrap();
        directory.write("kubeconfig", hub.node_kubeconfig(NODE).unwrap());
        let admin = std::fs::read_to_string(hub.kubectl().kubeconfig()).unwrap();
        let admin = Identity::read(&admin).unwrap().connect().unwrap();
        Self { agent: Agent::in_directory(directory), admin, hub }
    }

    /// Waits until the Lease was renewed this many times.
    fn wait_renewals(&mut self, times: usize) {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}");
        let mut seen = BTreeSet::new();
        wait_until("a renewal", PATIENCE, || {
            let answer = self.admin.request("GET", &path, "", b"").unwrap();
            let lease: Value = serde_json::from_slice(&answer.body).unwrap();
            seen.extend(lease["spec"]["renewTime"].as_str().map(str::to_owned));
            // the first renewal may belong to an earlier run
            seen.len() > times
        });
    }
}

/// The answers of an older release's hub to its agent, in turn for each request, regardless of the versions
/// in the request.
struct Recorded(BTreeMap<String, VecDeque<(String, String)>>);

impl Recorded {
    fn of_release(release: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hub/tests/data").join(release);
        let text = std::fs::read_to_string(path.join("exchanges.jsonl")).unwrap();
        let mut all = BTreeMap::<_, VecDeque<_>>::new();
        for line in text.lines() {
            let exchange: Value = serde_json::from_str(line).unwrap();
            let request = exchange["request"].as_str().unwrap();
            let (head, body) = exchange["answer"].as_str().unwrap().split_once("\r\n\r\n").unwrap();
            let asked = request.split(" HTTP/1.1").next().unwrap();
            all.entry(Self::key(asked)).or_default().push_back((head.to_owned(), body.to_owned()));
        }
        Self(all)
    }

    fn key(asked: &str) -> String {
        asked.split("&resourceVersion=").next().unwrap().to_owned()
    }

    fn answer(&mut self, heard: &Heard) -> Reply {
        let asked = format!("{} {}", heard.method, heard.path);
        let Some(answers) = self.0.get_mut(&Self::key(&asked)) else {
            return Reply::status(404, "NotFound", "it was not asked for then");
        };
        let (head, body) = match answers.len() {
            1 => answers[0].clone(),
            _ => answers.pop_front().unwrap(),
        };
        if !asked.contains("watch=true") {
            return Reply::Raw(format!("{head}\r\n\r\n{body}").into_bytes());
        }
        Reply::Chunks(Box::new(move |chunks| {
            let mut rest = body.as_str();
            while let Some((length, after)) = rest.split_once("\r\n") {
                let length = usize::from_str_radix(length, 16).unwrap();
                let Some(text) = after.get(..length).filter(|text| !text.is_empty()) else { break };
                chunks.send(text);
                rest = after[length..].trim_start_matches("\r\n");
            }
            chunks.wait_for_end();
        }))
    }
}

/// Each release whose hub's answers are kept, and the UID of the ConfigMap that they assign.
const RELEASES: &[(&str, &str)] = &[("0.1.0", "970a9a5a-1ae7-4941-a247-dc69d2e9d2ce")];

/// The next agent at the hub of today: it takes the recorded answers as the agent of that release did.
#[test]
fn answers_of_each_release_are_understood() {
    for &(release, adopted) in RELEASES {
        let authority = Authority::new("ca");
        let recorded = Mutex::new(Recorded::of_release(release));
        let server = Server::start(&authority, move |heard| {
            recorded.lock().unwrap_or_else(PoisonError::into_inner).answer(heard)
        });
        let Bench { folder: directory, .. } = Bench::new(&authority, server.address);
        let mut agent = Agent::in_directory(directory);
        agent.start();
        wait_until("the recorded configuration to run", PATIENCE, || {
            server.counts.heard().iter().any(|heard| {
                let status: Value = serde_json::from_str(&heard.body).unwrap_or_default();
                status["status"]["config"]["active"]["configMap"]["uid"] == adopted
            })
        });
        let renewed =
            server.counts.heard().iter().filter(|heard| heard.path.ends_with("/leases/edge-1")).count();
        assert!(renewed > 0, "{release}: it renewed nothing");
        agent.stop();
    }
}

/// An agent of a scripted server.
struct OfScript {
    authority: Authority,
    state: Arc<Mutex<State>>,
    server: Server,
    agent: Agent,
}

/// A server that answers from its state.
fn scripted_server(authority: &Authority, state: State) -> (Server, Arc<Mutex<State>>) {
    let state = Arc::new(Mutex::new(state));
    let shared = state.clone();
    let server = Server::start(authority, move |heard| {
        shared.lock().unwrap_or_else(PoisonError::into_inner).answer(heard)
    });
    (server, state)
}

impl OfScript {
    fn new(state: State) -> Self {
        let authority = Authority::new("ca");
        let (server, state) = scripted_server(&authority, state);
        let Bench { folder: directory, .. } = Bench::new(&authority, server.address);
        Self { authority, state, server, agent: Agent::in_directory(directory) }
    }

    /// Requests received since the first `from`, as method and path.
    fn requests(&self, from: usize) -> Vec<String> {
        let heard = self.server.counts.heard();
        heard[from..].iter().map(|heard| format!("{} {}", heard.method, heard.path)).collect()
    }

    fn wait_for(&self, from: usize, times: usize, what: impl Fn(&str) -> bool) {
        let is_so = || self.requests(from).iter().filter(|asked| what(asked)).count() >= times;
        wait_until("a request", PATIENCE, is_so);
    }
}

fn is_renewal(asked: &str) -> bool {
    asked.starts_with("PATCH ") && asked.ends_with("/leases/edge-1")
}

fn is_watch_of(asked: &str, path: &str) -> bool {
    asked.starts_with(&format!("GET {path}?watch=true"))
}

#[test]
fn restart_does_not_download_an_unchanged_config() {
    const PAYLOAD_BYTES: usize = 300_000;
    let mut scripted = OfScript::new(State::new(PAYLOAD_BYTES));
    scripted.agent.start();
    scripted.agent.wait_for_adoption(1);
    scripted.agent.stop();
    let (_, adopted) = scripted.server.counts.bytes();
    assert!(adopted > PAYLOAD_BYTES as u64);

    let from = scripted.requests(0).len();
    scripted.agent.start();
    scripted.wait_for(from, 1, |asked| is_watch_of(asked, CONFIG_MAPS));
    scripted.agent.stop();
    let restart = scripted.server.counts.bytes().1 - adopted;
    println!(
        "a start with a payload of {PAYLOAD_BYTES} bytes: {adopted} bytes down to adopt it, {restart} to find it unchanged"
    );
    assert!(restart < 20_000, "{restart} bytes");

    // edited while the agent was away
    scripted.state.lock().unwrap().config_map["metadata"]["resourceVersion"] = json!("70");
    scripted.state.lock().unwrap().config_map["data"]["kubelet"] =
        json!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 7\n");
    scripted.agent.start();
    scripted.agent.wait_for_adoption(4);
}

#[test]
fn blocked_log_pipe_does_not_stop_renewals() {
    let (_reader, mut full) = std::io::pipe().unwrap();
    let log = full.try_clone().unwrap();
    // one byte after the other fills the pipe, and any room that appears in it
    let (begun, has_begun) = std::sync::mpsc::channel();
    thread::spawn(move || {
        while full.write_all(&[b'.'; 512]).is_ok() {
            let _ = begun.send(());
        }
    });
    wait_until("the pipe to be full", PATIENCE, || has_begun.recv_timeout(Duration::from_secs(1)).is_err());
    let mut node = OfHub::new();
    node.agent.start_with_log(log);
    node.wait_renewals(1);
    let payload =
        "--from-literal=kubelet=apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    node.hub.kubectl().run(&["create", "configmap", "edge", payload]).unwrap();
    let source = json!({"namespace": "default", "name": "edge", "kubeletConfigKey": "kubelet"});
    let patch = json!({"spec": {"configSource": {"configMap": source}}}).to_string();
    node.hub.kubectl().run(&["patch", "node", NODE, "--type=merge", "-p", &patch]).unwrap();
    node.agent.wait_for_adoption(1);
    node.wait_renewals(2);
    node.agent.stop();
}

#[test]
fn blocking_kubeconfig_stops_neither_start_nor_renewals() {
    let mut node = OfHub::new();
    // only a build with faults has gates
    node.agent.program = programs::agent_with_faults().unwrap();
    let kubeconfig = node.agent.kubeconfig();
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    let run_dir = node.agent.directory.join("run");
    std::fs::create_dir(&run_dir).unwrap();
    // reading it blocks, as on a disk that does not answer
    let gate = node.agent.directory.write("run/gate-kubeconfig", "");
    let is_waited_for =
        || wait_until("the kubeconfig to be read", PATIENCE, || run_dir.join("at-kubeconfig").exists());
    node.agent.start();
    wait_until("the agent to be ready", PATIENCE, || {
        let mut status = Command::new(env!("CARGO_BIN_EXE_kedge"));
        status.args(["status", "--run-dir"]).arg(&run_dir).stdout(Stdio::null()).stderr(Stdio::null());
        status.status().unwrap().success()
    });
    is_waited_for();
    std::fs::remove_file(&gate).unwrap();
    node.wait_renewals(1);
    std::fs::write(&gate, "").unwrap();
    // it looks like another file
    std::fs::write(&kubeconfig, text).unwrap();
    is_waited_for();
    node.wait_renewals(2);
    std::fs::remove_file(&gate).unwrap();
    node.agent.stop();
}

#[test]
fn kubeconfig_that_was_a_pipe_is_used_once_it_is_a_file() {
    let mut node = OfHub::new();
    let kubeconfig = node.agent.kubeconfig();
    let aside = node.agent.directory.join("aside");
    std::fs::rename(&kubeconfig, &aside).unwrap();
    assert!(Command::new("mkfifo").arg(&kubeconfig).status().unwrap().success());
    let log = node.agent.directory.join("log");
    node.agent.start_with_log(std::fs::File::create(&log).unwrap());
    wait_until("the refusal", PATIENCE, || {
        std::fs::read_to_string(&log).unwrap().contains("kubeconfig is a named pipe, expected a file")
    });
    // nobody ever writes to the pipe
    std::fs::rename(&aside, &kubeconfig).unwrap();
    node.wait_renewals(1);
    node.agent.stop();
}

#[test]
fn invalid_kubeconfig_is_logged_and_used_once_repaired() {
    let mut node = OfHub::new();
    let kubeconfig = node.agent.kubeconfig();
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    std::fs::remove_file(&kubeconfig).unwrap();
    let log = node.agent.directory.join("log");
    node.agent.start_with_log(std::fs::File::create(&log).unwrap());
    let is_logged =
        |what: &str| wait_until(what, PATIENCE, || std::fs::read_to_string(&log).unwrap().contains(what));
    is_logged("kubeconfig does not exist");
    // damage by a disk, or by somebody in a hurry
    std::fs::write(&kubeconfig, [0x17, 0xff, 0x00, 0x80]).unwrap();
    is_logged("expected YAML or JSON");
    let current = text.lines().find(|line| line.starts_with("current-context: ")).unwrap();
    std::fs::write(&kubeconfig, text.replace(current, "current-context: other")).unwrap();
    is_logged("contexts has no \"other\"");
    std::fs::write(&kubeconfig, text).unwrap();
    node.wait_renewals(1);
    node.agent.stop();
}

#[test]
fn reset_server_is_noticed_despite_a_silent_watch() {
    let node = Some(node("node-uid-1", Value::Null));
    let mut scripted = OfScript::new(State { node, ..State::new(0) });
    scripted.agent.start();
    scripted.wait_for(0, 1, is_renewal);
    scripted.wait_for(0, 1, |asked| is_watch_of(asked, NODES));
    let from = scripted.requests(0).len();
    {
        let mut state = scripted.state.lock().unwrap();
        (state.node, state.version) = (None, 100_000);
    }
    scripted.wait_for(from, 1, |asked| asked.starts_with(&format!("GET {NODES}?field")));
    scripted.wait_for(from, 1, |asked| asked == format!("POST {NODES}"));
    scripted.wait_for(from, 1, |asked| is_watch_of(asked, NODES));
    let anew = scripted.requests(from).into_iter().find(|asked| is_watch_of(asked, NODES)).unwrap();
    assert!(anew.contains("resourceVersion=100000"), "from the new list, not from the old version: {anew}");
    scripted.agent.stop();
}

#[test]
fn refused_label_is_shown_and_holds_back_nothing() {
    let mut state = State::new(0);
    (state.node, state.refuses_labels) = (Some(node("node-uid-1", Value::Null)), true);
    let mut scripted = OfScript::new(state);
    scripted.agent.start();
    let status = || {
        let mut status = Command::new(env!("CARGO_BIN_EXE_kedge"));
        status.arg("status").arg("--run-dir").arg(scripted.agent.directory.join("run"));
        String::from_utf8(status.output().unwrap().stdout).unwrap()
    };
    let problem = "refused (403 Forbidden): is not allowed to modify labels: site";
    wait_until("the refusal to be shown", PATIENCE, || {
        status().lines().any(|line| line.starts_with("problem") && line.contains(problem))
    });
    scripted.wait_for(0, 1, |asked| asked.ends_with("/nodes/edge-1/status"));
    scripted.wait_for(0, 1, is_renewal);
    scripted.agent.stop();
}

/// A gateway, or a server, that refuses the renewals that ask for a small answer: it silences no Lease.
#[test]
fn renewal_in_a_refused_form_is_followed_by_a_plain_one() {
    let gateway = Some([400, 415, 500].into_iter().cycle());
    let node = Some(node("node-uid-1", Value::Null));
    let mut scripted = OfScript::new(State { node, gateway, ..State::new(0) });
    let fields = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nnodeLeaseDurationSeconds: 4\n";
    scripted.agent.base = Some(scripted.agent.directory.write("base.yaml", fields));
    scripted.agent.start();
    // for each renewal, whether it was refused
    let renewals = || {
        let heard = scripted.server.counts.heard();
        let all = heard.iter().filter(|heard| is_renewal(&format!("{} {}", heard.method, heard.path)));
        all.map(asks_for_protobuf).collect::<Vec<bool>>()
    };
    wait_until("three refusals", PATIENCE, || renewals().iter().filter(|refused| **refused).count() >= 3);
    let renewals = renewals();
    let between: Vec<usize> = renewals.split(|refused| *refused).skip(1).map(<[bool]>::len).collect();
    assert!(between[0] >= 1 && between[1] >= 3, "accepted between refusals: {between:?}");
    scripted.agent.stop();
}

/// A node is moved to a server that has an object of the same name, and the stream of the ConfigMap is the
/// first that could notice: the agent sends the new server no request for it, and adopts nothing, until that
/// server has shown its own Node.
#[test]
fn another_server_is_asked_for_its_node_first() {
    let watch_ends = Gate::default();
    let state = State { watches: Watches::EndOnce(watch_ends.clone()), ..State::new(0) };
    let mut scripted = OfScript::new(state);
    scripted.agent.start();
    scripted.agent.wait_for_adoption(1);
    let from = scripted.requests(0).len();
    scripted.wait_for(from, 1, |asked| is_watch_of(asked, CONFIG_MAPS));
    scripted.wait_for(from, 1, is_renewal);

    let shows_node = Gate::default();
    let mut state = State { nodes_listed: shows_node.clone(), ..State::new(0).with_fields("maxPods: 7") };
    state.config_map["metadata"]["uid"] = json!("map-uid-2");
    let (second, _) = scripted_server(&scripted.authority, state);
    KubeconfigText {
        server: format!("https://{}", second.address),
        roots: &scripted.authority,
        cluster: String::new(),
        user: CERTIFICATE_USER.into(),
    }
    .write(&scripted.agent.directory);
    // the next renewal is due in ten seconds, the next round of the ConfigMap in one
    watch_ends.open();
    let asked = || second.counts.heard().into_iter().map(|heard| heard.path).collect::<Vec<_>>();
    for path in ["/version", NODES] {
        wait_until(path, PATIENCE, || asked().iter().any(|asked| asked.starts_with(path)));
    }
    let early: Vec<String> = asked().into_iter().filter(|asked| asked.starts_with(CONFIG_MAPS)).collect();
    assert!(early.is_empty() && scripted.agent.runs() == 2, "{early:?}");
    shows_node.open();
    scripted.agent.wait_for_adoption(2);
    scripted.agent.stop();
}

/// A node without a Node object renews nothing: its watch is the only connection to the old server, and one
/// bookmark a minute is all that arrives.
#[test]
fn watch_without_a_node_follows_the_kubeconfig() {
    let bookmark = Gate::default();
    let state = State { node: None, watches: Watches::Bookmark(bookmark.clone()), ..State::new(0) };
    let mut scripted = OfScript::new(state);
    let base = scripted.agent.directory.join("base.yaml");
    let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nregisterNode: false\n";
    std::fs::write(&base, text).unwrap();
    scripted.agent.base = Some(base);
    scripted.agent.start();
    scripted.wait_for(0, 1, |asked| is_watch_of(asked, NODES));

    let (second, _) = scripted_server(&scripted.authority, State { node: None, ..State::new(0) });
    KubeconfigText {
        server: format!("https://{}", second.address),
        roots: &scripted.authority,
        cluster: String::new(),
        user: CERTIFICATE_USER.into(),
    }
    .write(&scripted.agent.directory);
    bookmark.open();
    wait_until("a list of the new server", PATIENCE, || {
        second.counts.heard().iter().any(|heard| heard.path.starts_with(NODES))
    });
    scripted.agent.stop();
}

/// Watches that a server, or a proxy before it, ends at once are opened ever more rarely; renewals each
/// second stand in for a clock.
#[test]
fn watches_that_bring_nothing_are_opened_ever_more_rarely() {
    const RENEWALS: usize = 12;
    let state = State { watches: Watches::End, ..State::new(0).with_fields("nodeLeaseDurationSeconds: 4") };
    let mut scripted = OfScript::new(state);
    scripted.agent.start();
    scripted.agent.wait_for_adoption(1);
    let from = scripted.requests(0).len();
    scripted.wait_for(from, RENEWALS, is_renewal);
    let asked = scripted.requests(from);
    for path in [NODES, CONFIG_MAPS] {
        let watches = asked.iter().filter(|asked| is_watch_of(asked, path)).count();
        // after 0, 1, 3 and 7 s; without a back-off eleven
        assert!((2..=6).contains(&watches), "{watches} watches of {path} in {RENEWALS} renewals");
    }
    scripted.agent.stop();
}

/// The main loop takes events before anything else, and a server decides how many there are.
#[test]
fn flood_of_bookmarks_holds_up_no_renewal_and_no_command() {
    let state = State { watches: Watches::Flood, ..State::new(0).with_fields("nodeLeaseDurationSeconds: 4") };
    let mut scripted = OfScript::new(state);
    scripted.agent.start();
    scripted.agent.wait_for_adoption(1);
    scripted.wait_for(scripted.requests(0).len(), 2, is_renewal);
    let run_dir = scripted.agent.directory.join("run");
    let answered =
        Command::new(env!("CARGO_BIN_EXE_kedge")).args(["status", "--run-dir"]).arg(&run_dir).output();
    let answered = answered.unwrap();
    assert!(answered.status.success(), "{}", String::from_utf8_lossy(&answered.stderr));
    scripted.agent.stop();
}

/// Another Kubernetes, whose answers have the sizes of a real one's (1.36.2, recorded: a renewal's answer in
/// protobuf has 353 bytes of head and 449 of body, a status patch's 334 of head). The record of who set which
/// field is most of an object's metadata.
struct Elsewhere {
    version: u64,
    /// The node's status, in which only the agent sets fields so far.
    node: Value,
    /// The Lease has its record of managers.
    has_managers: bool,
    /// Sends to the watch of the Node, if that accepts metadata alone.
    watch: Option<Sender<String>>,
    /// Bytes of each answer to a renewal, a status patch, and of each event of the watch, by name.
    sent: Vec<(&'static str, usize)>,
}

/// Bytes of a Lease's metadata in protobuf: name, namespace, UID, version, time of creation, owner.
const LEASE_BYTES: usize = 198;
/// Bytes of the Lease's record of managers: kedge's, and that of its creation.
const LEASE_MANAGERS_BYTES: usize = 251;

/// An answer with the head that a real server gives.
fn real_answer(media: &str, body: &[u8]) -> Vec<u8> {
    let id = "0e2b6c1e-5a5c-4a36-a2c7-6f0a6a3d1b55";
    let mut answer = format!(
        "HTTP/1.1 200 OK\r\nAudit-Id: {id}\r\nCache-Control: no-cache, private\r\nContent-Type: {media}\r\n\
         X-Kubernetes-Pf-Flowschema-Uid: {id}\r\nX-Kubernetes-Pf-Prioritylevel-Uid: {id}\r\n\
         Date: Mon, 23 Nov 2026 12:00:00 GMT\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    answer.extend_from_slice(body);
    answer
}

/// The managed fields that a real server records for a kedge node: its own fields, its status, and the fields
/// of controllers.
fn real_managers() -> Value {
    let each = |names: &[&str]| {
        let fields = names.iter().map(|name| (format!("f:{name}"), json!({})));
        Value::Object(fields.collect())
    };
    let resources = ["cpu", "ephemeral-storage", "memory", "pods"];
    let condition = ["lastHeartbeatTime", "lastTransitionTime", "message", "reason", "status", "type"];
    let conditions = ["ConfigOK", "DiskPressure", "MemoryPressure", "PIDPressure", "Ready"].map(|name| {
        let mut fields = each(&condition);
        fields["."] = json!({});
        (format!("k:{{\"type\":\"{name}\"}}"), fields)
    });
    let info = [
        "architecture",
        "bootID",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeletVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ];
    let address =
        |name: &str| (format!("k:{{\"type\":\"{name}\"}}"), json!({".": {}, "f:address": {}, "f:type": {}}));
    let entry = |manager: &str, fields: Value| {
        json!({
            "manager": manager, "operation": "Update", "apiVersion": "v1", "time": "2026-11-23T12:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": fields,
        })
    };
    let mut status = entry(
        "kedge",
        json!({"f:status": {
            "f:addresses": Value::Object([address("Hostname"), address("InternalIP")].into_iter().collect()),
            "f:allocatable": each(&resources),
            "f:capacity": each(&resources),
            "f:conditions": Value::Object(conditions.into_iter().collect()),
            "f:nodeInfo": each(&info),
        }}),
    );
    status["subresource"] = json!("status");
    json!([
        entry(
            "kedge",
            json!({"f:metadata": {
                "f:annotations": {".": {}, "f:kedge.dev/config-status": {}},
                "f:labels": {".": {}, "f:kubernetes.io/arch": {}, "f:kubernetes.io/hostname": {}, "f:kubernetes.io/os": {}},
            }})
        ),
        entry(
            "kube-controller-manager",
            json!({"f:metadata": {
                "f:annotations": {"f:node.alpha.kubernetes.io/ttl": {}},
                "f:labels": {"f:beta.kubernetes.io/arch": {}, "f:beta.kubernetes.io/os": {}},
            }})
        ),
        status,
    ])
}

impl Elsewhere {
    fn new() -> Self {
        let metadata = json!({
            "name": NODE, "uid": "3d3a4b1f-6b6c-4c1e-8a43-5d2f6f4a7c11", "resourceVersion": "100",
            "creationTimestamp": "2026-11-23T12:00:00Z",
            "labels": {
                "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux",
            },
            "annotations": {"kedge.dev/config-status": "{}", "node.alpha.kubernetes.io/ttl": "0"},
            "managedFields": real_managers(),
        });
        let node =
            json!({"kind": "Node", "apiVersion": "v1", "metadata": metadata, "spec": {}, "status": {}});
        Self { version: 100, node, has_managers: true, watch: None, sent: Vec::new() }
    }

    fn sends(&mut self, what: &'static str, bytes: Vec<u8>) -> Reply {
        self.sent.push((what, bytes.len()));
        Reply::Raw(bytes)
    }

    fn sent(&self, what: &str) -> Vec<usize> {
        self.sent.iter().filter(|(sent, _)| *sent == what).map(|(_, bytes)| *bytes).collect()
    }

    /// A patch of the Node, which the watch shows.
    fn patched(&mut self, what: &'static str) -> Reply {
        self.version += 1;
        self.node["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let metadata = json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": self.node["metadata"],
        });
        let event = format!("{}\n", json!({"type": "MODIFIED", "object": metadata}));
        if let Some(watch) = &self.watch {
            self.sent.push(("event", format!("{:x}\r\n{event}\r\n", event.len()).len()));
            let _ = watch.send(event);
        }
        self.sends(what, real_answer("application/json", metadata.to_string().as_bytes()))
    }

    fn answer(&mut self, heard: &Heard) -> Reply {
        let (path, query) = heard.path.split_once('?').unwrap_or((&heard.path, ""));
        let takes_metadata =
            heard.header("accept").is_some_and(|accept| accept.contains("PartialObjectMetadata"));
        match (heard.method.as_str(), path) {
            ("GET", "/version") => Reply::ok(r#"{"gitVersion":"v1.36.2"}"#),
            ("GET", NODES) if query.contains("watch=true") && takes_metadata => {
                let (shown, show): (Sender<String>, Receiver<String>) = channel();
                self.watch = Some(shown);
                Reply::Chunks(Box::new(move |body| {
                    while let Ok(event) = show.recv() {
                        body.send(&event);
                    }
                }))
            }
            ("GET", NODES) if query.contains("watch=true") => {
                Reply::Chunks(Box::new(|body| body.wait_for_end()))
            }
            ("GET", NODES) => {
                let metadata = json!({"resourceVersion": self.version.to_string()});
                Reply::ok(
                    &json!({"kind": "NodeList", "metadata": metadata, "items": [self.node]}).to_string(),
                )
            }
            ("PATCH", path) if path.contains("/leases/") => {
                self.has_managers &= !heard.body.contains(r#""managedFields":[{}]"#);
                let managers = if self.has_managers { LEASE_MANAGERS_BYTES } else { 0 };
                let answer =
                    real_answer("application/vnd.kubernetes.protobuf", &vec![0; LEASE_BYTES + managers]);
                self.sends("renewal", answer)
            }
            ("PATCH", path) if path.ends_with("/status") => {
                let patch: Value = serde_json::from_str(&heard.body).unwrap();
                // the patch replaces the status; all other fields stay
                self.node["status"] = json!({"sent": patch["status"]});
                self.patched("status")
            }
            ("PATCH", _) => self.patched("annotation"),
            _ => Reply::Answer(201, "{}".to_owned()),
        }
    }
}

/// Bytes of a request as it came.
fn bytes_of(heard: &Heard) -> usize {
    format!("{} {} HTTP/1.1\r\n{}\r\n\r\n", heard.method, heard.path, heard.headers).len() + heard.body.len()
}

/// Every 10 s, stretched by up to 4 %.
const RENEWALS_A_DAY: f64 = 8640.0 / 1.02;
const STATUSES_A_DAY: f64 = 288.0;
/// A record of TLS 1.3 has 22 bytes more than what it carries.
const RECORD: usize = 22;
/// For the connection of each status, which a real server closes before the next: 1.5 kB up and 0.8 down,
/// recorded.
const RESUMED_HANDSHAKE: usize = 2_300;
/// On the watch of the Node each minute, as metadata: 133 bytes were recorded for the ConfigMap's bookmark,
/// and 24 for the longer kind.
const BOOKMARK: usize = 157 + RECORD;

#[test]
fn idle_day_on_another_kubernetes_fits_its_budget() {
    let authority = Authority::new("ca");
    let state = Arc::new(Mutex::new(Elsewhere::new()));
    let shared = state.clone();
    let server = Server::start(&authority, move |heard| shared.lock().unwrap().answer(heard));
    let Bench { folder: directory, .. } = Bench::new(&authority, server.address);
    let mut agent = Agent::in_directory(directory);
    let fields = "nodeLeaseDurationSeconds: 10\nnodeStatusReportFrequency: 10s\n";
    let base = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{fields}");
    agent.base = Some(agent.directory.write("base.yaml", base));
    agent.start();
    wait_until("the watch of metadata", PATIENCE, || state.lock().unwrap().watch.is_some());
    let settled = state.lock().unwrap().sent("status").len();
    let count = |what: &str| state.lock().unwrap().sent(what).len();
    wait_until("three reports", PATIENCE, || count("status") >= settled + 3 && count("renewal") >= 8);
    let heard = server.counts.heard();
    agent.stop();

    let state = state.lock().unwrap();
    let last = |is_one: &dyn Fn(&Heard) -> bool| {
        bytes_of(heard.iter().rev().find(|heard| heard.method == "PATCH" && is_one(heard)).unwrap())
    };
    let down = |what: &str| *state.sent(what).last().unwrap();
    let renewal = last(&|heard| heard.path.contains("/leases/")) + down("renewal");
    let status = last(&|heard| heard.path.ends_with("/status")) + down("status") + down("event");
    println!("bytes of a renewal: {renewal}, of a status with the event of it: {status}");
    let lists = heard.iter().filter(|heard| heard.path.starts_with(&format!("{NODES}?field"))).count();
    assert!(lists <= 2, "{lists} lists of the Node: it knows what it changed");
    assert!(!state.has_managers && renewal <= 1_180, "a renewal of {renewal} bytes");
    let day = RENEWALS_A_DAY * (renewal + 2 * RECORD) as f64
        + STATUSES_A_DAY * (status + 3 * RECORD + RESUMED_HANDSHAKE) as f64
        + 1440.0 * BOOKMARK as f64;
    println!("bytes of an idle day: {:.2} MB", day / 1e6);
    assert!(day <= 11.5e6, "{day} bytes of an idle day");
}
