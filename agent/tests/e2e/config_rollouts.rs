//! A configuration that goes over four nodes by a ConfigRollout: three revisions, of which the last is valid
//! and harmful.

use kedge_rig::cluster::Cluster;
use kedge_rig::scratch::poll;
use serde_json::Value;

use crate::setup::{PATIENCE, payload, plain};

const NODES: [&str; 4] = ["edge-1", "edge-2", "edge-3", "edge-4"];

const ROLLOUT: &str = "
apiVersion: fleet.kedge.dev/v1
kind: ConfigRollout
metadata: {name: shops}
spec:
  selector: {matchLabels: {fleet.kedge.dev/group: shops}}
  source: {name: settings}
  strategy:
    maxUnavailable: 2
    completeAfter: 2s
    batches:
    - selector: {matchLabels: {fleet.kedge.dev/ring: canary}}
      soak: 2s
";

struct Site(Cluster);

impl Site {
    fn kubectl(&self, arguments: &[&str]) -> String {
        self.0.kubectl().run(arguments).unwrap()
    }

    fn apply(&self, manifest: &str) {
        self.0.kubectl().feed(&["apply", "-f", "-"], manifest).unwrap();
    }

    fn push(&self, fields: &str) {
        let text = payload(1, 2, fields).replace('\n', "\n    ");
        self.apply(&format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: kedge-fleet}}\n\
             data:\n  kubelet: |\n    {text}\n"
        ));
    }

    fn rollout(&self) -> Value {
        self.0.kubectl().json(&["get", "cro", "shops", "-o", "json"]).unwrap()
    }

    #[track_caller]
    fn shows(&self, awaited: &str, is_so: impl Fn(&Value) -> bool) {
        let found = poll(PATIENCE, || is_so(&self.rollout()).then_some(()));
        assert!(found.is_some(), "{awaited}: {:#}", self.rollout()["status"]);
    }

    /// The revision of each node, as it is assigned and as it is promoted.
    fn revisions(&self) -> Vec<(String, String)> {
        let nodes = self.0.kubectl().json(&["get", "nodes", "-o", "json"]).unwrap();
        let name = |source: &Value| source["configMap"]["name"].as_str().unwrap_or_default().to_owned();
        let both = |node: &Value| {
            (name(&node["spec"]["configSource"]), name(&node["status"]["config"]["lastKnownGood"]))
        };
        nodes["items"].as_array().unwrap().iter().map(both).collect()
    }
}

#[test]
fn harmful_revision_stops_at_the_canary() {
    let mut cluster = Cluster::start("config-rollout").unwrap();
    for node in NODES {
        cluster.add(node, plain()).unwrap().start().unwrap();
    }
    let mut site = Site(cluster);
    let is_ready = |node: &&str| {
        site.0
            .view()
            .look(|world| world.condition(node, "Ready").is_some_and(|(status, ..)| status == "True"))
    };
    assert!(poll(PATIENCE, || NODES.iter().all(|node| is_ready(node)).then_some(())).is_some());
    site.kubectl(&["create", "namespace", "kedge-fleet"]);
    site.kubectl(&["label", "nodes", "--all", "fleet.kedge.dev/group=shops"]);
    site.kubectl(&["label", "node", NODES[0], "fleet.kedge.dev/ring=canary"]);
    site.push("nodeStatusReportFrequency: 1m\n");
    site.apply(ROLLOUT);
    for fields in ["nodeStatusReportFrequency: 1m\n", "nodeStatusReportFrequency: 2m\n"] {
        site.push(fields);
        site.shows("complete", |rollout| {
            rollout["status"]["phase"] == "Complete" && rollout["status"]["nodes"]["updated"] == 4
        });
        let revisions = site.revisions();
        assert!(revisions.iter().all(|both| *both == revisions[0] && both.0 == both.1), "{revisions:?}");
    }
    let good = site.revisions()[1].clone();
    site.push("evictionHard: {memory.available: 99%, nodefs.available: 99%}\n");
    let is_stopped = |rollout: &Value| rollout["status"]["phase"] == "Stopped";
    site.shows("stopped", is_stopped);
    let after = site.revisions();
    assert_ne!(after[0].0, good.0, "the canary is assigned the harmful one");
    assert_eq!(after[1..], [good.clone(), good.clone(), good.clone()], "the others are not");
    site.0.hub_mut().kill();
    site.0.hub_mut().start_again().unwrap();
    site.shows("still stopped", is_stopped);
    assert_eq!(site.revisions()[1..], after[1..]);
    site.kubectl(&["annotate", "cro", "shops", "fleet.kedge.dev/undo-to=0"]);
    site.shows("undone", |rollout| {
        rollout["status"]["phase"] == "Complete" && rollout["status"]["nodes"]["updated"] == 4
    });
    assert_eq!(site.revisions(), vec![good; 4]);
}
