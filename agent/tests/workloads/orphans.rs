//! Pods that an API server left behind, with the real hub, agent and crun: the hub is wiped, so the node's
//! Node has another UID.
//!
//! Always holds: pods that the earlier hub bound keep running, over agents, shown as orphaned, until the
//! present hub binds a pod of the same name or controller, an operator releases them on the node, or the
//! Node's annotation does; the next pod starts after the old one has ended. Under the same UID, a list
//! without a pod ends it, and a list that could not be read ends none.

use crate::killed_agents::pids;
use crate::pods::{NODE, Setup};
use crate::setup::{LIMIT, isolated_network};
use kedge_rig::scratch::wait_until;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The API binds another of its name.
const NAMED: &str = "named";
/// The API binds another of its controller.
const CONTROLLED: &str = "controlled";
/// `kedge pods release` ends it.
const RELEASED: &str = "released";
/// The annotation of the Node ends it.
const ANNOTATED: &str = "annotated";
const ALL: [&str; 4] = [NAMED, CONTROLLED, RELEASED, ANNOTATED];

/// Records its begin and its end.
fn spec(mark: &str, shared: &Path) -> Value {
    let script =
        "echo $0 begins >>/shared/ran; trap 'echo $0 ends >>/shared/ran; exit 0' TERM; sleep 86323 & wait";
    json!({"hostNetwork": true, "terminationGracePeriodSeconds": 20, "automountServiceAccountToken": false,
        "volumes": [{"name": "shared", "hostPath": {"path": shared}}],
        "containers": [{"name": "main", "image": "web:1", "command": ["/bin/sh", "-c", script, mark],
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}]})
}

fn pod(mark: &str, shared: &Path) -> Value {
    let mut spec = spec(mark, shared);
    spec["nodeName"] = json!(NODE);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": mark}, "spec": spec})
}

fn daemon_set(mark: &str, shared: &Path) -> Value {
    let labels = json!({"app": mark});
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": mark}, "spec": {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec(mark, shared)}}})
}

struct Node {
    setup: Setup,
    shared: PathBuf,
}

impl Node {
    fn new() -> Self {
        let mut setup = Setup::with_runtime();
        let shared = setup.cluster.scratch().join("shared");
        fs::create_dir(&shared).unwrap();
        let node = Self { setup, shared };
        let pods = [NAMED, RELEASED, ANNOTATED].map(|mark| pod(mark, &node.shared));
        node.apply(&[&pods[..], &[daemon_set(CONTROLLED, &node.shared)]].concat());
        node.setup.shows("four processes", || ALL.iter().all(|mark| pids(mark).len() == 1));
        node.setup.shows("four records", || node.records() == 4);
        node
    }

    fn apply(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        self.setup.cluster.kubectl().feed(&["apply", "-f", "-"], &list).unwrap();
    }

    fn kubectl(&self, words: &[&str]) -> String {
        self.setup.cluster.kubectl().run(words).unwrap_or_default()
    }

    fn uid(&self) -> String {
        self.kubectl(&["get", "node", NODE, "-o", "jsonpath={.metadata.uid}"])
    }

    /// All its objects are lost, but not its authority, so all credentials stay valid.
    fn wipe_hub(&mut self) {
        self.setup.cluster.hub_mut().stop().unwrap();
        let data = self.setup.cluster.hub().log().with_file_name("data");
        let program = kedge_rig::programs::built("kedge-hub").unwrap();
        let begun =
            Command::new(program).args(["restore", "--empty", "--data-dir"]).arg(&data).output().unwrap();
        assert!(begun.status.success(), "{}", String::from_utf8_lossy(&begun.stderr));
        self.setup.cluster.hub_mut().start_again().unwrap();
    }

    fn records(&self) -> usize {
        let root = self.setup.cluster.agent(NODE).root_dir();
        fs::read_dir(root.join("pods/desired")).map_or(0, Iterator::count)
    }

    /// The marks of the pods that the agent shows as orphaned.
    fn orphans(&self) -> Vec<&'static str> {
        let pods = self.setup.cluster.agent(NODE).kedge_json(&["pods"]).unwrap_or_default();
        let is_orphan = |mark: &&str| {
            let mut pods = pods["pods"].as_array().into_iter().flatten();
            pods.any(|pod| {
                pod["isOrphaned"] == true && pod["name"].as_str().is_some_and(|name| name.starts_with(mark))
            })
        };
        ALL.into_iter().filter(is_orphan).collect()
    }

    #[track_caller]
    fn awaits_orphans(&self, expect: &[&str]) {
        self.setup.shows(&format!("the orphans {expect:?}"), || self.orphans() == expect);
    }

    /// The lines that the pod's runs wrote, in order.
    fn lines(&self, mark: &str) -> Vec<String> {
        let text = fs::read_to_string(self.shared.join("ran")).unwrap_or_default();
        let own = text.lines().filter_map(|line| line.strip_prefix(mark)?.strip_prefix(' '));
        own.map(str::to_owned).collect()
    }

    /// Checks that the old pod had ended before the new one began.
    #[track_caller]
    fn is_replaced(&self, mark: &str, before: &[i64]) {
        self.setup
            .shows(&format!("another process of {mark}"), || pids(mark).len() == 1 && pids(mark) != before);
        assert_eq!(self.lines(mark), ["begins", "ends", "begins"], "{mark}");
    }
}

#[test]
fn orphans_go_on_until_each_is_replaced_or_released() {
    isolated_network("orphans::orphans_go_on_until_each_is_replaced_or_released", || {
        let mut node = Node::new();
        let (uid, before) = (node.uid(), ALL.map(pids));
        node.wipe_hub();
        node.setup.shows("another Node", || !node.uid().is_empty() && node.uid() != uid);
        node.awaits_orphans(&ALL);
        let (_, shown, _) = node.setup.cluster.agent(NODE).kedge(&["pods"]).unwrap();
        assert_eq!(shown.matches("orphaned").count(), 4, "{shown}");
        let agent = node.setup.cluster.agent_mut(NODE);
        agent.stop().unwrap();
        agent.start().unwrap();
        node.awaits_orphans(&ALL);
        assert_eq!(ALL.map(pids), before, "over the wiped hub and two agents");

        node.apply(&[pod(NAMED, &node.shared)]);
        node.is_replaced(NAMED, &before[0]);
        node.apply(&[daemon_set(CONTROLLED, &node.shared)]);
        node.is_replaced(CONTROLLED, &before[1]);
        node.awaits_orphans(&[RELEASED, ANNOTATED]);
        let replaced = [NAMED, CONTROLLED].map(pids);

        let release =
            || node.setup.cluster.agent(NODE).kedge(&["pods", "release", "default/released"]).unwrap();
        assert_eq!(release().0, 0);
        node.setup.shows("the end of the one that was released", || node.orphans() == [ANNOTATED]);
        assert_eq!((pids(RELEASED), pids(ANNOTATED)), (vec![], before[3].clone()));
        let (code, _, why) = release();
        assert!(code != 0 && why.contains("no orphaned pod"), "{why}");
        node.kubectl(&["annotate", "node", NODE, "kedge.dev/release-pods=true"]);
        node.awaits_orphans(&[]);
        wait_until("the end of the one that the annotation released", LIMIT, || pids(ANNOTATED).is_empty());
        for mark in [RELEASED, ANNOTATED] {
            assert_eq!(node.lines(mark), ["begins", "ends"], "{mark}");
        }
        assert_eq!([NAMED, CONTROLLED].map(pids), replaced, "what is not orphaned goes on");
        node.setup.shows("the records of those that are bound", || node.records() == 2);

        // deleted while no agent runs: an agent that cannot read the list ends none, one that reads it ends
        // both
        node.setup.cluster.agent_mut(NODE).stop().unwrap();
        node.kubectl(&["delete", "daemonset", CONTROLLED, "--cascade=orphan"]);
        node.kubectl(&["delete", "pod", "--all", "--force", "--grace-period=0"]);
        assert_eq!(node.kubectl(&["get", "pods", "-o", "name"]), "");
        node.setup.cluster.hub_mut().stop().unwrap();
        node.setup.cluster.agent_mut(NODE).start().unwrap();
        let runs = || {
            let pods = node.setup.cluster.agent(NODE).kedge_json(&["pods"]).unwrap_or_default();
            let pods = pods["pods"].as_array().cloned().unwrap_or_default();
            pods.iter()
                .filter(|pod| pod["containers"][0]["state"] == "Running" && pod["isEnding"] == false)
                .count()
        };
        node.setup.shows("both adopted", || runs() == 2);
        assert_eq!([NAMED, CONTROLLED].map(pids), replaced);
        node.setup.cluster.hub_mut().start_again().unwrap();
        let is_empty = || [NAMED, CONTROLLED].iter().all(|mark| pids(mark).is_empty());
        wait_until("the end of what an empty list does not have", LIMIT, is_empty);
        wait_until("no records", LIMIT, || node.records() == 0);
    });
}
