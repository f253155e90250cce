//! The scenarios of ConfigRollouts (`rig/src/rollout_scenarios`) on a real hub, and on Kubernetes' own API server
//! with `kedge-hub controllers` beside it. The test plays the nodes.
//!
//! The second needs the programs of Kubernetes: `KEDGE_KUBERNETES_DIR` names the folder of kube-apiserver,
//! kube-controller-manager and etcd. Without it the test is SKIPPED, also under CI=true: nobody packages them.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kedge_rig::rollout_scenarios::{self, Stage};
use kedge_rig::scratch::Scratch;
use serde_json::{Value, json};

use crate::config_rollouts::with_version;
use crate::programs::{NODES, PATIENT};
use crate::server::{Client, Hub, scratch};

const ROLLOUTS: &str = "/apis/fleet.kedge.dev/v1/configrollouts";
const MAPS: &str = "/api/v1/namespaces/kedge-fleet/configmaps";
const SOURCE: &str = "kedge.dev/config-source";
const STATUS: &str = "kedge.dev/config-status";
/// Between two steps.
const PAUSE: Duration = Duration::from_millis(50);

/// What a scenario runs on.
enum On {
    Hub(Box<Hub>),
    /// Another API server, and the controller beside it.
    Other(Cluster, Option<Child>),
}

struct Served {
    on: On,
    admin: Client,
    count: usize,
}

/// An API server of Kubernetes; ended when dropped.
struct Cluster {
    up: PathBuf,
    folder: Scratch,
    kubeconfig: PathBuf,
    url: String,
}

impl Served {
    fn on_hub() -> Served {
        let hub = Hub::with(&PATIENT);
        let admin = hub.admin();
        Served::new(On::Hub(Box::new(hub)), admin)
    }

    fn beside(cluster: Cluster) -> Served {
        let admin = Client::new(&fs::read_to_string(&cluster.kubeconfig).unwrap(), &cluster.url);
        let controllers = cluster.controllers();
        Served::new(On::Other(cluster, Some(controllers)), admin)
    }

    fn new(on: On, mut admin: Client) -> Served {
        if matches!(on, On::Hub(_)) {
            admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "kedge-fleet"}})).expect(201);
        }
        Served { on, admin, count: 0 }
    }

    fn is_annotated(&self) -> bool {
        matches!(self.on, On::Other(..))
    }

    fn node(&mut self, name: &str) -> Value {
        self.admin.get(&format!("{NODES}/{name}")).expect(200)
    }

    /// The source that a node is assigned.
    fn assigned(&self, node: &Value) -> Value {
        match self.is_annotated() {
            true => {
                let text = node["metadata"]["annotations"][SOURCE].as_str().unwrap_or("null");
                serde_json::from_str(text).unwrap()
            }
            false => node["spec"]["configSource"].clone(),
        }
    }

    fn text_of(&mut self, source: &Value) -> String {
        if source["configMap"]["namespace"] != "kedge-fleet" {
            return String::new();
        }
        let name = source["configMap"]["name"].as_str().unwrap();
        let map = self.admin.get(&format!("{MAPS}/{name}")).expect(200);
        map["data"]["kubelet"].as_str().unwrap_or_default().to_owned()
    }

    /// Does what a node's agent does.
    fn act(&mut self, name: &str) {
        let node = self.node(name);
        let source = self.assigned(&node);
        let reported = match self.is_annotated() {
            true => {
                let text = node["metadata"]["annotations"][STATUS].as_str().unwrap_or("{}");
                serde_json::from_str::<Value>(text).unwrap()["assigned"].clone()
            }
            false => node["status"]["config"]["assigned"].clone(),
        };
        if source.is_null() || reported == with_version(&source) {
            return;
        }
        let text = self.text_of(&source);
        if text.is_empty() {
            return;
        }
        let is_good = text.starts_with("good");
        let (status, reason) =
            if is_good { ("True", "all checks passed") } else { ("False", "failed to parse") };
        let conditions = json!([{"type": "Ready", "status": "True"}, {"type": "ConfigOK", "status": status, "reason": reason}]);
        let mut config = json!({"assigned": with_version(&source)});
        if is_good {
            config["lastKnownGood"] = with_version(&source);
        }
        let mut report = json!({"status": {"conditions": conditions}});
        if self.is_annotated() {
            let known: Value = node["metadata"]["annotations"][STATUS]
                .as_str()
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default();
            if !is_good {
                config["lastKnownGood"] = known["lastKnownGood"].clone();
            }
            let annotated = json!({"metadata": {"annotations": {STATUS: config.to_string()}}});
            self.admin.patch("merge", &format!("{NODES}/{name}"), &annotated).expect(200);
        } else {
            report["status"]["config"] = config;
        }
        self.admin.patch("merge", &format!("{NODES}/{name}/status"), &report).expect(200);
    }

    fn patch(&mut self, change: &Value) {
        self.admin.patch("merge", &format!("{ROLLOUTS}/shops"), change).expect(200);
    }

    /// Each scenario begins on an empty server.
    fn clear(&mut self) {
        for (path, of) in [(ROLLOUTS, "shops"), (NODES, "n"), (MAPS, "s")] {
            let all = self.admin.get(path).expect(200);
            let names =
                all["items"].as_array().unwrap().iter().map(|one| one["metadata"]["name"].as_str().unwrap());
            let names: Vec<String> = names.filter(|name| name.starts_with(of)).map(str::to_owned).collect();
            names.iter().for_each(|name| drop(self.admin.delete(&format!("{path}/{name}")).expect(200)));
        }
    }
}

/// A scenario's part of a server that all of them share.
struct Shared<'a>(&'a mut Served);

impl Stage for Shared<'_> {
    fn add_nodes(&mut self, count: usize) {
        self.0.clear();
        self.0.count = count;
        for index in 0..count {
            let ring = if index == 0 { "canary" } else { "wide" };
            let labels = json!({"fleet.kedge.dev/group": "shops", "fleet.kedge.dev/ring": ring});
            let node = json!({"metadata": {"name": format!("n{index}"), "labels": labels}});
            self.0.admin.post(NODES, &node).expect(201);
            let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
            self.0.admin.patch("merge", &format!("{NODES}/n{index}/status"), &ready).expect(200);
        }
    }

    fn create(&mut self, strategy: Value) {
        let rollout = json!({"apiVersion": "fleet.kedge.dev/v1", "kind": "ConfigRollout", "metadata": {"name": "shops"},
            "spec": {"selector": {"matchLabels": {"fleet.kedge.dev/group": "shops"}},
                "source": {"name": "settings", "kubeletConfigKey": "kubelet"}, "strategy": strategy}});
        self.0.admin.post(ROLLOUTS, &rollout).expect(201);
    }

    fn push(&mut self, text: &str) {
        let map =
            json!({"metadata": {"name": "settings", "namespace": "kedge-fleet"}, "data": {"kubelet": text}});
        if self.0.admin.get(&format!("{MAPS}/settings")).code == 404 {
            self.0.admin.post(MAPS, &map).expect(201);
        } else {
            self.0
                .admin
                .patch("merge", &format!("{MAPS}/settings"), &json!({"data": map["data"]}))
                .expect(200);
        }
    }

    fn annotate(&mut self, key: &str, value: &str) {
        self.0.patch(&json!({"metadata": {"annotations": {key: value}}}));
    }

    fn pause(&mut self, is_paused: bool) {
        self.0.patch(&json!({"spec": {"paused": is_paused}}));
    }

    fn assign_by_hand(&mut self, node: &str) {
        let source =
            json!({"configMap": {"namespace": "default", "name": "mine", "kubeletConfigKey": "kubelet"}});
        let change = match self.0.is_annotated() {
            true => json!({"metadata": {"annotations": {SOURCE: source.to_string()}}}),
            false => json!({"spec": {"configSource": source}}),
        };
        self.0.admin.patch("merge", &format!("{NODES}/{node}"), &change).expect(200);
    }

    fn restart(&mut self) {
        match &mut self.0.on {
            On::Hub(hub) => {
                hub.restart("KILL");
                self.0.admin = hub.admin();
            }
            On::Other(cluster, controllers) => {
                controllers.take().into_iter().for_each(end);
                *controllers = Some(cluster.controllers());
            }
        }
    }

    fn step(&mut self) {
        (0..self.0.count).for_each(|index| self.0.act(&format!("n{index}")));
        std::thread::sleep(PAUSE);
    }

    fn status(&mut self) -> Value {
        let found = self.0.admin.get(&format!("{ROLLOUTS}/shops"));
        if found.code == 404 { Value::Null } else { found.expect(200)["status"].clone() }
    }

    fn texts(&mut self) -> Vec<String> {
        let nodes: Vec<Value> = (0..self.0.count).map(|index| self.0.node(&format!("n{index}"))).collect();
        let sources: Vec<Value> = nodes.iter().map(|node| self.0.assigned(node)).collect();
        sources.iter().map(|source| self.0.text_of(source)).collect()
    }

    fn patience(&self) -> usize {
        1200
    }
}

fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

impl Drop for Served {
    fn drop(&mut self) {
        if let On::Other(_, controllers) = &mut self.on {
            controllers.take().into_iter().for_each(end);
        }
    }
}

/// Port of the first server that a test starts; it takes three more after it.
const PORT: u16 = 17440;

impl Cluster {
    /// A server with the manifests of the docs; `None` without Kubernetes' programs.
    fn start() -> Option<Cluster> {
        let skipped = |why: &str| {
            // straight to standard error: the test harness hides what passing tests print
            let _ = std::io::stderr().write_all(format!("SKIPPED: {why}\n").as_bytes());
        };
        if std::env::var_os("KEDGE_KUBERNETES_DIR").is_none() {
            skipped("KEDGE_KUBERNETES_DIR does not name the folder of Kubernetes' programs");
            return None;
        }
        let up = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubernetes/up");
        let folder = scratch();
        let at = folder.path().join("kubernetes");
        // nodes that renew nothing are not lost
        let started = Command::new(&up)
            .arg(&at)
            .arg(PORT.to_string())
            .env(
                "KEDGE_CONTROLLER_MANAGER_FLAGS",
                "--controllers=*,-node-lifecycle-controller,-nodelifecycle",
            )
            .stdout(Stdio::null())
            .status();
        assert!(started.is_ok_and(|status| status.success()), "{} did not start a server", up.display());
        let kubeconfig = at.join("admin.kubeconfig");
        let url = format!("https://127.0.0.1:{PORT}");
        Some(Cluster { up, folder, kubeconfig, url })
    }

    fn controllers(&self) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kedge-hub"));
        command.args(["controllers", "--only", "config-rollouts", "--kubeconfig"]).arg(&self.kubeconfig);
        command.stdin(Stdio::null()).spawn().unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = Command::new(&self.up).arg("--down").arg(self.folder.path().join("kubernetes")).status();
    }
}

#[test]
fn scenarios_hold_on_a_hub() {
    let mut served = Served::on_hub();
    rollout_scenarios::all().for_each(|scenario| scenario.run(&mut Shared(&mut served)));
}

#[test]
fn scenarios_hold_beside_kubernetes() {
    let Some(cluster) = Cluster::start() else { return };
    let Some(kubectl) = crate::programs::kubectl_for(&cluster.kubeconfig, cluster.folder.path()) else {
        return;
    };
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/kubernetes/config-rollouts.yaml");
    kubectl.ok_with("apply -f -", &fs::read_to_string(manifest).unwrap());
    kubectl.ok("wait --for condition=established crd/configrollouts.fleet.kedge.dev --timeout=60s");
    // its storage answers a moment later: until then it is a 429, after which kubectl asks again
    kubectl.ok("get configrollouts");
    let mut served = Served::beside(cluster);
    rollout_scenarios::all().for_each(|scenario| scenario.run(&mut Shared(&mut served)));
}
