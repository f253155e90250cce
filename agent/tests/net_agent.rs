//! The real agent against an API server that a test scripts: what it asks for again after a restart, what it notices of a
//! server that began anew, and that its heartbeat goes on whoever does not do his part on the node. Every wait is for something that was asked, and ends the test if it never is.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod net_server;

use net_server::*;
use serde_json::{Value, json};
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const NODE: &str = "edge-1";
const NODES: &str = "/api/v1/nodes";
const CONFIG_MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";

/// How long the agent may take for anything asked of it here: a machine that builds at the same time is slow.
const PATIENCE: Duration = Duration::from_secs(90);

/// What the server holds.
struct State {
    /// The Node; none: it is not there, and nobody told the watches.
    node: Option<Value>,
    config_map: Value,
    version: u64,
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
        match (heard.method.as_str(), path) {
            ("GET", "/version") => Reply::ok(r#"{"gitVersion":"v1.34.0+kedge-0.1.0"}"#),
            // nothing ever happens on a watch: what it waits for is not told
            ("GET", NODES | CONFIG_MAPS) if query.contains("watch=true") => {
                Reply::Chunks(Box::new(|body| body.wait_for_end()))
            }
            ("GET", NODES) => self.list("NodeList", self.node.iter().cloned().collect()),
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
            ("PATCH" | "POST", _) => Reply::ok("{}"),
            _ => not_found(),
        }
    }
}

fn node(uid: &str, source: Value) -> Value {
    json!({
        "metadata": {"name": NODE, "uid": uid, "resourceVersion": "60"},
        "spec": {"configSource": source},
    })
}

/// An agent with its server and its directories.
struct Scene {
    state: Arc<Mutex<State>>,
    server: Server,
    bench: Bench,
    agent: Option<Child>,
}

impl Scene {
    fn new(state: State) -> Self {
        let authority = Authority::new("ca");
        let state = Arc::new(Mutex::new(state));
        let shared = state.clone();
        let server = Server::start(&authority, move |heard| {
            shared.lock().unwrap_or_else(PoisonError::into_inner).answer(heard)
        });
        let bench = Bench::new(&authority, server.address);
        Self { state, server, bench, agent: None }
    }

    fn start(&mut self) {
        self.start_with_log(Stdio::null());
    }

    fn start_with_log(&mut self, log: impl Into<Stdio>) {
        let at = |name: &str| self.bench.folder.join(name).display().to_string();
        let agent = Command::new(env!("CARGO_BIN_EXE_kedge"))
            .args(["agent", "--hostname-override", NODE, "--config-dir", ""])
            .args(["--kubeconfig", &at("kubeconfig"), "--root-dir", &at("state"), "--run-dir", &at("run")])
            .args(["--node-status-update-frequency", "1s"])
            .env_remove("NOTIFY_SOCKET")
            .stderr(log)
            .spawn()
            .unwrap();
        self.agent = Some(agent);
    }

    /// Ends the agent as a person would, and waits for it.
    fn stop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = Command::new("kill").arg(agent.id().to_string()).status();
            wait_until("the agent to stop", || agent.try_wait().unwrap().is_some());
        }
    }

    /// Waits until the agent ended by itself.
    fn wait_for_exit(&mut self) {
        let mut agent = self.agent.take().unwrap();
        wait_until("the agent to adopt", || agent.try_wait().unwrap().is_some());
    }

    /// Requests heard since the first `from`, as method and path.
    fn heard(&self, from: usize) -> Vec<String> {
        let heard = self.server.counts.heard();
        heard[from..].iter().map(|heard| format!("{} {}", heard.method, heard.path)).collect()
    }

    fn wait_for(&self, from: usize, times: usize, what: impl Fn(&str) -> bool) {
        wait_until("a request", || self.heard(from).iter().filter(|asked| what(asked)).count() >= times);
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Some(agent) = &mut self.agent {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(20));
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
    let mut scene = Scene::new(State::new(PAYLOAD_BYTES));
    scene.start();
    scene.wait_for_exit();
    let (_, adopted) = scene.server.counts.bytes();
    assert!(adopted > PAYLOAD_BYTES as u64);

    let from = scene.heard(0).len();
    scene.start();
    scene.wait_for(from, 1, |asked| is_watch_of(asked, CONFIG_MAPS));
    scene.stop();
    let restart = scene.server.counts.bytes().1 - adopted;
    println!(
        "a start with a payload of {PAYLOAD_BYTES} bytes: {adopted} bytes down to adopt it, {restart} to find it unchanged"
    );
    assert!(restart < 20_000, "{restart} bytes");

    // edited while the agent was away
    scene.state.lock().unwrap().config_map["metadata"]["resourceVersion"] = json!("70");
    scene.state.lock().unwrap().config_map["data"]["kubelet"] =
        json!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 7\n");
    scene.start();
    scene.wait_for_exit();
}

#[test]
fn blocked_log_pipe_does_not_stop_renewals() {
    let (_reader, mut full) = std::io::pipe().unwrap();
    let log = full.try_clone().unwrap();
    // one byte after the other fills the pipe, and takes what room ever comes
    let (begun, has_begun) = std::sync::mpsc::channel();
    thread::spawn(move || {
        while full.write_all(&[b'.'; 512]).is_ok() {
            let _ = begun.send(());
        }
    });
    let filled = || has_begun.recv_timeout(Duration::from_secs(1)).is_err();
    wait_until("the pipe to be full", filled);
    let mut scene = Scene::new(State::new(0));
    scene.start_with_log(log);
    scene.wait_for(0, 1, is_renewal);
    scene.wait_for_exit();
    scene.start();
    scene.wait_for(0, 2, is_renewal);
    scene.stop();
}

#[test]
fn blocking_kubeconfig_stops_neither_start_nor_renewals() {
    let mut scene = Scene::new(State { node: Some(node("node-uid-1", Value::Null)), ..State::new(0) });
    let kubeconfig = scene.bench.folder.join("kubeconfig");
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    std::fs::remove_file(&kubeconfig).unwrap();
    // whoever reads a pipe nobody writes to waits, as on a disk that does not answer
    assert!(Command::new("mkfifo").arg(&kubeconfig).status().unwrap().success());
    scene.start();
    let run_dir = scene.bench.folder.join("run");
    wait_until("the agent to be ready", || {
        let mut status = Command::new(env!("CARGO_BIN_EXE_kedge"));
        status.args(["status", "--run-dir"]).arg(&run_dir).stdout(Stdio::null()).stderr(Stdio::null());
        status.status().unwrap().success()
    });
    std::fs::write(&kubeconfig, text).unwrap();
    // written to, the pipe looks like another file, and is read again in vain
    scene.wait_for(0, 2, is_renewal);
    scene.stop();
}

#[test]
fn invalid_kubeconfig_is_logged_and_used_once_repaired() {
    let mut scene = Scene::new(State { node: Some(node("node-uid-1", Value::Null)), ..State::new(0) });
    let kubeconfig = scene.bench.folder.join("kubeconfig");
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    std::fs::remove_file(&kubeconfig).unwrap();
    let log = scene.bench.folder.join("log");
    scene.start_with_log(std::fs::File::create(&log).unwrap());
    let is_told = |what: &str| wait_until(what, || std::fs::read_to_string(&log).unwrap().contains(what));
    is_told("No such file");
    // what a disk may make of it, or somebody in a hurry
    std::fs::write(&kubeconfig, [0x17, 0xff, 0x00, 0x80]).unwrap();
    is_told("expected YAML or JSON");
    std::fs::write(&kubeconfig, text.replace("current-context: test", "current-context: other")).unwrap();
    is_told("contexts has no \"other\"");
    std::fs::write(&kubeconfig, text).unwrap();
    scene.wait_for(0, 1, is_renewal);
    scene.stop();
}

#[test]
fn reset_server_is_noticed_despite_a_silent_watch() {
    let mut scene = Scene::new(State { node: Some(node("node-uid-1", Value::Null)), ..State::new(0) });
    scene.start();
    scene.wait_for(0, 1, is_renewal);
    scene.wait_for(0, 1, |asked| is_watch_of(asked, NODES));
    let from = scene.heard(0).len();
    {
        let mut state = scene.state.lock().unwrap();
        (state.node, state.version) = (None, 100_000);
    }
    scene.wait_for(from, 1, |asked| asked.starts_with(&format!("GET {NODES}?field")));
    scene.wait_for(from, 1, |asked| asked == format!("POST {NODES}"));
    scene.wait_for(from, 1, |asked| is_watch_of(asked, NODES));
    let anew = scene.heard(from).into_iter().find(|asked| is_watch_of(asked, NODES)).unwrap();
    assert!(anew.contains("resourceVersion=100000"), "from the new list, not from the old version: {anew}");
    scene.stop();
}
