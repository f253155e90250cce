//! When a rollout is complete: once each pod stayed available for a while, and why a stopped one is not
//! rolled back.

use serde_json::json;

use super::Hub;
use super::daemon_sets::{budget, is_terminating, rolled_out, set};
use crate::controllers::daemon_sets::DaemonSets;
use crate::kinds::{CONTROLLER_REVISION, DAEMON_SET, EVENT};

impl Hub {
    /// Whether a revision with this number is remembered as complete.
    fn is_complete(&self, number: i64) -> bool {
        let revisions = self.names(&CONTROLLER_REVISION);
        let mut values = revisions.iter().map(|name| self.value(&CONTROLLER_REVISION, "n", &name[2..]));
        values.any(|one| one["metadata"]["annotations"]["kedge.dev/complete"] == *number.to_string())
    }

    fn pod_on(&self, node: &str) -> String {
        let pods = self.pods();
        let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == *node).expect("one is there");
        pod["metadata"]["name"].as_str().unwrap_or_default().to_owned()
    }

    /// What kubectl waits for.
    fn looks_finished(&self) -> bool {
        let set = self.value(&DAEMON_SET, "n", "d");
        set["metadata"]["generation"] == set["status"]["observedGeneration"]
            && set["status"]["updatedNumberScheduled"] == set["status"]["desiredNumberScheduled"]
            && set["status"]["numberAvailable"] == set["status"]["desiredNumberScheduled"]
    }

    /// Pods of `bad` images run for a second, and end with an error.
    fn agents_start(&mut self, second: u64) {
        for pod in self.pods() {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let is_bad =
                pod["spec"]["containers"][0]["image"].as_str().is_some_and(|image| image.starts_with("bad"));
            let starts = pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
            if is_terminating(&pod) {
                self.confirm(&name);
            } else if is_bad {
                let (restarts, is_up) = (starts.map_or(0, |count| count + second % 2), second % 2 == 1);
                self.report(&name, "Running", is_up);
                let ended = json!({"terminated": {"exitCode": 3}});
                let state = if is_up { json!({"running": {}}) } else { ended.clone() };
                self.edit(&crate::kinds::POD, "n", &name, |pod| {
                    pod["status"]["containerStatuses"] =
                        json!([{"name": "c", "state": state, "restartCount": restarts, "lastState": ended}]);
                });
            } else if pod["status"]["conditions"][0]["status"] != "True" {
                self.report(&name, "Running", true);
            }
        }
    }
}

/// Each pod, once, without a break, on the hub's clock; and the controller wakes by itself. kubectl sees a
/// success from the beginning.
#[test]
fn rollout_is_complete_once_each_pod_stayed() {
    // (annotation, minReadySeconds, when which node's pod becomes ready or not, when it is complete)
    type Case = (&'static str, u64, &'static [(u64, usize, bool)], u64);
    let cases: [Case; 8] = [
        ("", 0, &[(0, 0, true), (0, 1, true)], 60),
        ("5m", 0, &[(0, 0, true), (0, 1, true)], 300),
        ("0s", 0, &[(0, 0, true), (7, 1, true)], 7),
        ("for ever", 0, &[(0, 0, true), (0, 1, true)], 60),
        ("", 90, &[(0, 0, true), (0, 1, true)], 90),
        ("", 0, &[(0, 0, true), (50, 1, true)], 110),
        // one that ends early begins anew
        ("", 0, &[(0, 0, true), (0, 1, true), (30, 0, false), (40, 0, true)], 100),
        // one that stayed, and restarts while another one is awaited, holds nothing up once it is available
        ("", 0, &[(0, 0, true), (40, 1, true), (70, 0, false), (80, 0, true)], 100),
    ];
    for (value, min_ready, reports, expect) in cases {
        let (mut hub, mut controller) = (Hub::with_nodes(2), DaemonSets::default());
        let mut given = set("i:1");
        given["metadata"]["annotations"] = json!({"kedge.dev/complete-after": value});
        given["spec"]["minReadySeconds"] = min_ready.into();
        hub.create(&DAEMON_SET, given);
        hub.run(&mut controller);
        hub.changes = Some(Vec::new());
        for second in 0..400 {
            for (_, node, ready) in reports.iter().filter(|report| report.0 == second) {
                let pod = hub.pod_on(&format!("node-{node}"));
                hub.report(&pod, "Running", *ready);
            }
            hub.run_at(&mut controller, second);
            let is_complete = second >= expect;
            assert_eq!(hub.is_complete(1), is_complete, "{value:?}, {reports:?}: second {second}");
            let state = hub.viewed().0;
            let is_ready = hub.looks_finished();
            let seen = if is_complete {
                "complete"
            } else if is_ready {
                "soaking"
            } else {
                "under way"
            };
            assert_eq!(state, seen, "{value:?}, {reports:?}: second {second}");
        }
        assert!(hub.looks_finished(), "{value:?}");
    }
}

/// Its pods are ready for a moment, again and again, as without `minReadySeconds`.
#[test]
fn image_that_ends_after_a_second_is_rolled_back() {
    let (mut hub, mut controller) = rolled_out(2, budget(2));
    hub.annotate("kedge.dev/complete-after", "");
    hub.annotate("kedge.dev/max-failures", "0");
    hub.annotate("kedge.dev/rollback-on-failure", "true");
    hub.change_image("bad");
    for second in 0..100 {
        hub.run_at(&mut controller, second);
        hub.agents_start(second);
        assert!(!hub.is_complete(2), "second {second}: {:?}", hub.viewed());
    }
    assert_eq!(hub.with_image("i:1"), 2, "{:?}", hub.viewed());
    assert!(hub.reasons().contains(&"RolledBack".to_owned()), "{:?}", hub.reasons());
}

/// Without it the update would wait for ever, and stop nowhere.
#[test]
fn pod_that_never_stays_fails_in_time() {
    let (mut hub, mut controller) = rolled_out(3, |_| {});
    hub.annotate("kedge.dev/complete-after", "60s");
    hub.annotate("kedge.dev/max-failures", "0");
    hub.annotate("kedge.dev/progress-deadline", "200s");
    hub.change_image("i:2");
    let mut failed_at = None;
    for second in (0..600).step_by(10) {
        hub.run_at(&mut controller, second);
        for pod in hub.pods() {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            match is_terminating(&pod) {
                true => hub.confirm(name),
                false if pod["spec"]["containers"][0]["image"] == "i:2" => {
                    hub.report(name, "Running", second % 40 != 0);
                }
                false => {}
            }
        }
        if hub.stopped().0 == "True" {
            failed_at.get_or_insert(second);
        }
    }
    assert!(hub.stopped().1.contains("(not ready in time)"), "{:?}", hub.stopped());
    assert!(failed_at.is_some_and(|at| (260..320).contains(&at)), "{failed_at:?}");
}

/// One that is stopped, and whose pods recover, is complete, and a success to kubectl, once they stayed.
#[test]
fn stopped_update_that_recovers_is_finished_after_the_soak() {
    let (mut hub, mut controller) = rolled_out(2, budget(2));
    hub.annotate("kedge.dev/complete-after", "60s");
    hub.annotate("kedge.dev/max-failures", "0");
    hub.annotate("kedge.dev/progress-deadline", "20s");
    hub.change_image("i:2");
    let mut recovered_at = None;
    for second in (0..300).step_by(5) {
        hub.run_at(&mut controller, second);
        for pod in hub.pods() {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if is_terminating(&pod) {
                hub.confirm(&name);
            } else if hub.stopped().0 == "True" && recovered_at.is_none_or(|at| at == second) {
                recovered_at = Some(second);
                hub.report(&name, "Running", true);
            }
        }
        let at = recovered_at.unwrap_or(u64::MAX - 1000);
        let expect = second > at + 60;
        assert_eq!((hub.looks_finished(), hub.is_complete(2)), (expect, expect), "second {second}");
    }
    assert_eq!(hub.stopped().0, "False");
}

#[test]
fn stop_says_why_it_is_not_rolled_back() {
    // (whether it is to be rolled back, when the images before the last one are complete, these, and the
    // text)
    let cases: [(&str, &str, &[&str], &str); 4] = [
        ("false", "0s", &["i:1"], "; not rolled back, for kedge.dev/rollback-on-failure is not \"true\""),
        ("true", "0s", &["i:1"], ""),
        (
            "true",
            "0s",
            &["bad", "i:1"],
            "; not rolled back, for it was complete before, as number 1 (kedge.dev/complete)",
        ),
        ("true", "1h", &["i:1"], "; not rolled back, for no other revision was complete"),
    ];
    for (value, stays, before, expect) in cases {
        let (mut hub, mut controller) = (Hub::with_nodes(3), DaemonSets::default());
        let mut given = set(before[0]);
        given["metadata"]["annotations"] = json!({"kedge.dev/complete-after": stays, "kedge.dev/max-failures": "0",
            "kedge.dev/rollback-on-failure": value});
        // so that the last one spreads no further before it is known to be bad
        given["spec"]["minReadySeconds"] = 5.into();
        hub.create(&DAEMON_SET, given);
        hub.run(&mut controller);
        for image in before {
            hub.change_image(image);
            for second in 0..40 {
                hub.run_at(&mut controller, second);
                hub.agents_act();
            }
        }
        hub.annotate("kedge.dev/complete-after", "60s");
        hub.change_image("bad");
        for second in 100..160 {
            hub.run_at(&mut controller, second);
            hub.agents_start(second);
        }
        let events = hub.names(&EVENT).into_iter().map(|name| hub.value(&EVENT, "n", &name[2..]));
        let mut stops = events.filter(|event| event["reason"] == "RolloutStopped");
        let stop = stops.next().map(|event| event["message"].as_str().unwrap_or_default().to_owned());
        let stop = stop.unwrap_or_default();
        let reason = stop.split_once("another value").map(|(_, reason)| reason.to_owned());
        assert_eq!(reason.as_deref(), Some(expect), "{value} {before:?}: {stop}");
        let runs = if expect.is_empty() { 3 } else { hub.with_image("i:1") };
        assert_eq!(hub.with_image("i:1"), runs, "{:?}", hub.viewed());
    }
}
