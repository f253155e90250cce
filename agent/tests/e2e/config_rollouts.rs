//! A configuration that goes over real agents by a ConfigRollout: three revisions, of which the last is valid
//! and harmful; a hub that is killed after the stop; and the way back.

use kedge_rig::cluster::Cluster;
use kedge_rig::scratch::poll;
use serde_json::Value;

use crate::setup::{PATIENCE, payload, plain};

/// Nodes of the ordinary run; `KEDGE_ROLLOUT_AGENTS` sets their number.
const NODES: usize = 4;

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

#[allow(clippy::disallowed_methods, reason = "a run sets how many agents it has room for")]
fn nodes() -> Vec<String> {
    let count = std::env::var("KEDGE_ROLLOUT_AGENTS").ok().and_then(|text| text.parse().ok());
    (1..=count.unwrap_or(NODES)).map(|number| format!("edge-{number:02}")).collect()
}

#[test]
fn harmful_revision_stops_at_the_canary() {
    let mut cluster = Cluster::start("config-rollout").unwrap();
    let names = nodes();
    for node in &names {
        cluster.add(node, plain()).unwrap().start().unwrap();
    }
    let mut site = Site(cluster);
    let is_ready = |node: &String| {
        site.0
            .view()
            .look(|world| world.condition(node, "Ready").is_some_and(|(status, ..)| status == "True"))
    };
    assert!(poll(PATIENCE, || names.iter().all(is_ready).then_some(())).is_some());
    site.kubectl(&["create", "namespace", "kedge-fleet"]);
    site.kubectl(&["label", "nodes", "--all", "fleet.kedge.dev/group=shops"]);
    site.kubectl(&["label", "node", &names[0], "fleet.kedge.dev/ring=canary"]);
    site.push("nodeStatusReportFrequency: 1m\n");
    site.apply(ROLLOUT);
    for fields in ["nodeStatusReportFrequency: 1m\n", "nodeStatusReportFrequency: 2m\n"] {
        site.push(fields);
        site.shows("complete", |rollout| {
            rollout["status"]["phase"] == "Complete" && rollout["status"]["nodes"]["updated"] == names.len()
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
    assert!(after[1..].iter().all(|both| *both == good), "the others are not: {after:?}");
    site.0.hub_mut().kill();
    site.0.hub_mut().start_again().unwrap();
    site.shows("still stopped", is_stopped);
    assert_eq!(site.revisions()[1..], after[1..]);
    site.kubectl(&["annotate", "cro", "shops", "fleet.kedge.dev/undo-to=0"]);
    site.shows("undone", |rollout| {
        rollout["status"]["phase"] == "Complete" && rollout["status"]["nodes"]["updated"] == names.len()
    });
    assert_eq!(site.revisions(), vec![good; names.len()]);
}
