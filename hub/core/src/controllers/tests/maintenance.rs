//! Maintenance windows of nodes: when an update may stop a serving pod.

use serde_json::Value;
use time::macros::datetime;

use super::Hub;
use super::daemon_sets::{budget, rolled_out};
use crate::controllers::Controller as _;
use crate::controllers::daemon_sets::DaemonSets;
use crate::kinds::{NODE, POD};
use kedge_api::MAINTENANCE_ANNOTATION;

impl Hub {
    fn set_windows(&mut self, node: &str, windows: &str) {
        self.edit(&NODE, "", node, |node| {
            node["metadata"]["annotations"][MAINTENANCE_ANNOTATION] =
                if windows.is_empty() { Value::Null } else { windows.into() };
        });
    }

    fn updated(&mut self, controller: &mut DaemonSets, seconds: std::ops::Range<u64>) -> Vec<String> {
        for second in seconds {
            self.run_at(controller, second);
            self.agents_act();
        }
        let running = self.running();
        running.into_iter().filter(|(_, images)| *images == ["i:2"]).map(|(node, _)| node).collect()
    }
}

#[test]
fn node_outside_its_window_keeps_its_pod() {
    let (mut hub, mut controller) = rolled_out(4, budget(1));
    hub.set_windows("node-0", "13:00-14:00");
    hub.set_windows("node-1", "Sat 11:00-13:00");
    hub.set_windows("node-2", "Sun 11:00-13:00");
    hub.change_image("i:2");
    // it is Saturday, 12:00: the budget of one is not spent on nodes with a closed window
    assert_eq!(hub.updated(&mut controller, 0..10), ["node-1", "node-3"]);
    let lines = hub.viewed().2;
    assert_eq!(lines[0], "node-0 1 waits the old pod runs, waits for its maintenance window");
    hub.wall = datetime!(2026-11-21 13:00:00 UTC);
    assert_eq!(hub.updated(&mut controller, 3600..3610), ["node-0", "node-1", "node-3"]);
    // the node no longer has a window
    hub.set_windows("node-2", "");
    assert_eq!(hub.updated(&mut controller, 3610..3620).len(), 4);
    assert_eq!(hub.viewed().0, "complete");
}

#[test]
fn window_that_opens_is_not_slept_through() {
    let (mut hub, mut controller) = rolled_out(2, budget(1));
    hub.set_windows("node-0", "12:10-12:20");
    hub.set_windows("node-1", "12:30-12:40");
    hub.change_image("i:2");
    hub.run_at(&mut controller, 5);
    controller.sweep(&hub.index);
    let now = hub.now(5);
    let next = controller.reconcile(&hub.index, now).next;
    assert_eq!(next, Some(std::time::Duration::from_secs(5 + 600)));
}

#[test]
fn pod_that_does_not_serve_is_replaced_at_any_time() {
    let (mut hub, mut controller) = rolled_out(2, budget(1));
    hub.set_windows("node-0", "13:00-14:00");
    hub.set_windows("node-1", "13:00-14:00");
    let pods = hub.pods();
    let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == "node-0").unwrap();
    let name = pod["metadata"]["name"].as_str().unwrap();
    hub.report(name, "Running", false);
    hub.change_image("i:2");
    for second in [0, 59] {
        hub.run_at(&mut controller, second);
        assert_eq!(hub.running().len(), 2, "its node may just be starting");
    }
    assert_eq!(hub.updated(&mut controller, 60..70), ["node-0"]);
}

#[test]
fn window_that_cannot_be_read_keeps_updates_away() {
    let (mut hub, mut controller) = rolled_out(2, |set| {
        set["spec"]["updateStrategy"] =
            serde_json::json!({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}});
    });
    hub.set_windows("node-0", "at night");
    hub.change_image("i:2");
    assert_eq!(hub.updated(&mut controller, 0..10), ["node-1"]);
    let expect =
        "node-0 1 waits the old pod runs, its annotation kedge.dev/maintenance-windows cannot be read";
    assert_eq!(hub.viewed().2[0], expect);
}

/// The hub itself has marked the pod of that node as not ready.
#[test]
fn surge_waits_for_the_window_of_a_node_that_is_back() {
    let (mut hub, mut controller) = rolled_out(2, |set| {
        set["spec"]["updateStrategy"] =
            serde_json::json!({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}});
    });
    hub.set_windows("node-0", "13:00-14:00");
    for pod in hub.pods().iter().filter(|pod| pod["spec"]["nodeName"] == "node-0") {
        let name = pod["metadata"]["name"].as_str().unwrap();
        hub.edit(&POD, "n", name, |pod| {
            pod["status"]["conditions"] = serde_json::json!([{"type": "Ready", "status": "False"},
                {"type": "ContainersReady", "status": "True"}]);
        });
    }
    hub.change_image("i:2");
    hub.run_at(&mut controller, 1);
    let running = hub.running();
    assert_eq!((&running["node-0"][..], running["node-1"].len()), (&["i:1".to_owned()][..], 2));
}
