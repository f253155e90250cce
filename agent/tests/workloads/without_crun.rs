//! A node whose crun is not there: it says so, rejects its pods and confirms their ends; crun comes, goes and
//! comes again, and nobody starts the agent anew for that. What ran before goes on, and is never reported as
//! ended.

use crate::pods::{NODE, layout};
use crate::setup::{INSIDE, LIMIT, isolated};
use kedge_rig::agent::AgentOptions;
use kedge_rig::cluster::Cluster;
use kedge_rig::scratch::poll;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;

struct Site {
    cluster: Cluster,
}

impl Site {
    #[track_caller]
    fn until(&self, awaited: &str, is_so: impl Fn() -> bool) {
        let begin = std::time::Instant::now();
        let reached = poll(LIMIT, || is_so().then_some(()));
        eprintln!("{awaited}: {} ms", begin.elapsed().as_millis());
        assert!(
            reached.is_some(),
            "waited in vain for {awaited}\n{:#}\n{}\n{}",
            self.node(),
            self.cluster.kubectl().run(&["get", "pods,ds,events", "-o", "wide"]).unwrap_or_default(),
            self.cluster.agent(NODE).log_text()
        );
    }

    fn node(&self) -> Value {
        self.cluster.kubectl().json(&["get", "node", NODE]).unwrap_or_default()
    }

    fn ready(&self) -> (String, String, String) {
        let node = self.node();
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = conditions.into_iter().find(|one| one["type"] == "Ready").unwrap_or_default();
        let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"), text("message"))
    }

    fn is_tainted(&self) -> bool {
        self.node()["spec"]["taints"].to_string().contains("kedge.dev/no-container-runtime")
    }

    /// Phase and reason of the pods with this label.
    fn pods(&self, app: &str) -> Vec<(String, String)> {
        let pods = self.cluster.kubectl().json(&["get", "pods", "-l", &format!("app={app}")]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let of = |pod: &Value| (text(&pod["status"]["phase"]), text(&pod["status"]["reason"]));
        pods.unwrap_or_default()["items"].as_array().into_iter().flatten().map(of).collect()
    }

    fn apply(&self, object: &Value) {
        self.cluster.kubectl().feed(&["apply", "-f", "-"], &object.to_string()).unwrap();
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        self.cluster.kubectl().run(arguments).unwrap()
    }
}

fn spec() -> Value {
    json!({"hostNetwork": true, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "web:1", "command": ["/bin/sleep", "86471"]}]})
}

fn pod(name: &str) -> Value {
    let mut spec = spec();
    spec["nodeName"] = NODE.into();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec})
}

fn daemon_set(name: &str, tolerations: &Value) -> Value {
    let labels = json!({"app": name});
    let mut spec = spec();
    spec["tolerations"] = tolerations.clone();
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name}, "spec": {
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}})
}

fn processes() -> usize {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let command_lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    command_lines.filter(|line| line == b"/bin/sleep\x0086471\0").count()
}

#[test]
fn node_without_crun_rejects_pods_until_there_is_one() {
    isolated("without_crun::node_without_crun_rejects_pods_until_there_is_one", || {
        let mut cluster = Cluster::start("without-crun").unwrap();
        let crun = cluster.scratch().join("crun");
        let layout = layout(&cluster.scratch().join("layout"));
        let logs = cluster.scratch().join("logs");
        let mut options = AgentOptions::new(env!("CARGO_BIN_EXE_kedge").as_ref());
        options.crun = Some(crun.clone());
        options.flags = vec!["--cgroup-root".into(), std::env::var_os(INSIDE).unwrap()];
        let agent = cluster.add(NODE, options).unwrap();
        let config = format!(
            "{}podLogsDir: {}\nnodeStatusUpdateFrequency: 2s\n",
            kedge_rig::cluster::HEADER,
            logs.display()
        );
        agent.write_drop_in("20-pods.conf", &config).unwrap();
        let (code, _, why) =
            agent.kedge(&["images", "import", layout.to_str().unwrap(), "--name", "web:1"]).unwrap();
        assert_eq!(code, 0, "{why}");
        agent.start().unwrap();
        let mut site = Site { cluster };

        let not_there = format!("{} is not there: no container can start", crun.display());
        let is_missing = |site: &Site| {
            let (status, reason, message) = site.ready();
            status == "False" && reason == "NoContainerRuntime" && message.ends_with(&not_there)
        };
        site.until("a node that says why it is not ready", || is_missing(&site));
        site.until("its taint", || site.is_tainted());
        // a DaemonSet comes here only if it asks to, and then its pods fail
        site.apply(&daemon_set("usual", &json!([])));
        site.apply(&daemon_set("willing", &json!([{"operator": "Exists"}])));
        site.apply(&pod("bound"));
        let failed = ("Failed".to_owned(), "NoContainerRuntime".to_owned());
        site.until("a pod that fails with the reason", || site.pods("bound") == [failed.clone()]);
        site.until("one of the set that tolerates the taint", || site.pods("willing").contains(&failed));
        assert_eq!(site.pods("usual"), []);
        let (_, shown) = site.cluster.hub().rollout("usual").unwrap();
        assert!(shown.contains("left out   taint kedge.dev/no-container-runtime:NoSchedule"), "{shown}");
        let told = site.kubectl(&["get", "events", "--field-selector", "reason=NoContainerRuntime"]);
        assert!(told.contains(&not_there), "{told}");
        // nothing hangs
        site.kubectl(&["delete", "pod", "bound", "--timeout=30s"]);
        site.kubectl(&["delete", "daemonset", "willing", "--cascade=foreground", "--timeout=30s"]);
        assert_eq!(site.pods("willing"), []);

        symlink("/usr/bin/crun", &crun).unwrap();
        site.until("a node that is ready by itself", || site.ready().0 == "True" && !site.is_tainted());
        let running = ("Running".to_owned(), String::new());
        site.until("the pod of the set", || site.pods("usual") == [running.clone()] && processes() == 1);

        // it goes while a container runs
        fs::remove_file(&crun).unwrap();
        site.until("a node that says so again", || is_missing(&site) && site.is_tainted());
        site.apply(&pod("later"));
        site.until("another pod that fails", || site.pods("later") == [failed.clone()]);
        assert_eq!((site.pods("usual"), processes()), (vec![running.clone()], 1));
        // and for an agent that starts without it
        site.cluster.agent_mut(NODE).stop().unwrap();
        site.cluster.agent_mut(NODE).start().unwrap();
        site.until("the same of another agent", || is_missing(&site));
        site.apply(&pod("latest"));
        site.until("a third pod that fails", || site.pods("latest") == [failed.clone()]);
        assert_eq!(
            (site.pods("usual"), processes()),
            (vec![running.clone()], 1),
            "nobody says that it ended"
        );
        symlink("/usr/bin/crun", &crun).unwrap();
        site.until("a node that is ready again", || site.ready().0 == "True" && !site.is_tainted());
        assert_eq!((site.pods("usual"), processes()), (vec![running], 1));
        let restarts = site.kubectl(&["get", "pods", "-l", "app=usual", "-o", "jsonpath={..restartCount}"]);
        assert_eq!(restarts, "0");
        site.kubectl(&["delete", "daemonset,pod", "--all", "--timeout=60s"]);
        site.until("the end", || processes() == 0);
    });
}
