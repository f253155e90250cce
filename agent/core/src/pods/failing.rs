//! Pods that the node ends although their objects stay: why they failed, and the deadline after which a pod
//! fails.
//!
//! Always holds: the failure is on disk before the first container is stopped, unless the disk accepts no
//! record, so an agent that is killed meanwhile continues with the same end and the same text; a pod fails
//! once. `Failed` is reported when no container runs any more, as upstream. Leaves to others: the reason for
//! which a pod fails (`eviction`), stopping it (`ending`), the text of a status (`status`).

use crate::answer::Now;
use kedge_api::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub(crate) const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
/// Upstream's text.
pub(crate) const DEADLINE_MESSAGE: &str = "Pod was active on the node longer than the specified deadline";

/// Why the node ends a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Failed {
    pub(crate) reason: String,
    pub(crate) message: String,
    /// The cause is the node, not the pod: the condition `DisruptionTarget` shows it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_disruption: bool,
    pub(crate) grace_secs: u64,
    /// When this process learned of it.
    #[serde(skip)]
    pub(crate) since: Duration,
}

impl Failed {
    pub(crate) fn grace_left(&self, now: Duration) -> Duration {
        Duration::from_secs(self.grace_secs).saturating_sub(now.saturating_sub(self.since))
    }
}

/// For how long a pod has been active, for its deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Active {
    /// By the node's clock at that time.
    pub(crate) since: Timestamp,
    /// How long the pod had been active when this process began to count, and the time of that.
    counted: Duration,
    from: Duration,
}

impl Active {
    /// Starts the count at this time. A start before the pod was created, or after now, comes from a clock
    /// that was wrong, and so does a present years after this program was built; in these cases the count
    /// starts anew.
    pub(crate) fn since(since: Timestamp, created: Option<Timestamp>, now: Now) -> Self {
        let is_set =
            u128::try_from(now.wall.micros()).is_ok_and(|now| now <= kedge_api::LATEST_NOW.as_micros());
        let is_credible = is_set && created.is_none_or(|created| since >= created);
        let micros = now.wall.micros().saturating_sub(since.micros());
        let counted = u64::try_from(micros).ok().filter(|_| is_credible).unwrap_or(0);
        Self { since, counted: Duration::from_micros(counted), from: now.mono }
    }

    /// When the pod will have been active for this long.
    pub(crate) fn reaches(&self, length: Duration) -> Duration {
        self.from.saturating_add(length.saturating_sub(self.counted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extremes::{extremes, spec_with, with_other_numbers};
    use crate::pods::PodEvent;
    use crate::pods::event::{DesiredFile, PodAction, StaticFile};
    use kedge_api::pod_numbers;

    /// Lets a pod run, be deleted and go, with any numbers in its spec, unless it is refused.
    fn live(node: &mut Node, uid: &str) {
        node.wait(20);
        let running: Vec<_> = node.runs.keys().map(|key| key.container.clone()).collect();
        running.iter().for_each(|container| node.ends(uid, container, 1));
        node.wait(30);
    }

    #[test]
    fn no_number_of_an_api_pod_stops_the_agent() {
        for (path, _) in pod_numbers::rows() {
            for number in extremes() {
                let mut node = Node::new();
                node.bind("p", spec_with(&path, &number));
                live(&mut node, "p");
                for grace in extremes() {
                    let mut node = Node::new();
                    if path != "terminationGracePeriodSeconds" {
                        continue;
                    }
                    node.bind("p", spec_with(&path, &number));
                    node.wait(2);
                    node.see(json!({"metadata": {"name": "p", "namespace": "default", "uid": "p", "generation": grace,
                        "deletionTimestamp": "2027-01-15T08:00:00Z", "deletionGracePeriodSeconds": grace},
                        "spec": spec_with(&path, &number), "status": {"phase": "Running"}}));
                    node.wait(40);
                }
            }
        }
    }

    #[test]
    fn static_pod_with_a_number_out_of_range_is_refused() {
        for (path, range) in pod_numbers::rows() {
            for number in extremes() {
                let mut node = Node::new();
                let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec_with(&path, &number)});
                let content = Ok(manifest.to_string().into_bytes());
                node.tell(PodEvent::StaticPods(Ok(vec![StaticFile { path: "/p.yaml".into(), content }])));
                let is_told = |action: &PodAction| matches!(action, PodAction::WarnOfNode { message, .. } if message.contains("Invalid value: "));
                let is_inside = number.as_i64().is_some_and(|number| range.contains(&number));
                assert_eq!(node.seen.iter().any(is_told), !is_inside, "{path}: {number}");
                let uid = node.runs.keys().map(|key| key.pod.to_string()).next();
                uid.into_iter().for_each(|uid| live(&mut node, &uid));
            }
        }
    }

    #[test]
    fn no_number_of_a_pods_record_stops_the_agent() {
        let mut node = Node::new();
        node.bind("p", json!({"activeDeadlineSeconds": 5, "terminationGracePeriodSeconds": 3, "priority": 1,
            "restartPolicy": "Never", "containers": [{"name": "a", "image": "x:1"}, {"name": "b", "image": "x:1"}]}));
        node.ends("p", "b", 3);
        node.is_deaf = true;
        node.wait(6);
        let (file, content) = node.records.iter().next().expect("it has a record");
        let mut record: serde_json::Value = serde_json::from_slice(content).unwrap();
        assert_eq!((&record["failed"]["graceSecs"], &record["results"]["b"]["code"]), (&json!(3), &json!(3)));
        record["ended"] = json!(4);
        let all = with_other_numbers(&record);
        assert!(all.len() >= 60, "{} records", all.len());
        for (what, other) in all {
            for is_static in [false, true] {
                let mut other = other.clone();
                if is_static {
                    other["nodeUID"] = json!("");
                }
                let mut node = Node::new();
                node.records.insert(file.clone(), other.to_string().into_bytes());
                node.start();
                node.wait(20);
                assert!(!node.seen.is_empty(), "{what}");
            }
        }
        assert!(matches!(file, DesiredFile::Pod(_)));
    }

    #[test]
    fn clock_years_ahead_at_a_start_ends_no_pod() {
        for (years, ends) in [(1, true), (15, false)] {
            let mut node = Node::new();
            node.bind("p", json!({"activeDeadlineSeconds": 1000}));
            node.wait(10);
            node.epoch += years * 365 * 24 * 60 * 60;
            node.start();
            node.wait(5);
            assert_eq!(node.runs("p"), !ends, "{years} years");
            // it counts from this point
            node.wait(1000);
            assert!(!node.runs("p"), "{years} years");
        }
    }

    #[test]
    fn negative_grace_is_one_second() {
        let mut node = Node::new();
        node.bind("p", json!({"terminationGracePeriodSeconds": -1}));
        assert!(node.runs("p"), "{:?}", node.status("p"));
        node.see(json!({"metadata": {"name": "p", "namespace": "default", "uid": "p",
            "deletionTimestamp": "2027-01-15T08:00:00Z", "deletionGracePeriodSeconds": -7}, "status": {},
            "spec": {"terminationGracePeriodSeconds": -1, "containers": [{"name": "a", "image": "x:1"}]}}));
        assert_eq!(node.stops(), [("p", 2)], "as soon as a pod can end here");
    }
    use crate::pods::fixture::Node;
    use serde_json::json;

    #[test]
    fn pod_past_its_deadline_fails_in_upstreams_words() {
        let mut node = Node::new();
        node.bind("p", json!({"activeDeadlineSeconds": 20, "terminationGracePeriodSeconds": 7}));
        node.wait(19);
        assert!(node.runs("p"));
        node.is_deaf = true;
        node.wait(1);
        assert_eq!(node.stops(), [("p", 7)]);
        assert_eq!(node.status("p")["phase"], "Running", "its container has not ended");
        node.is_deaf = false;
        node.start();
        let status = node.status("p");
        assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("DeadlineExceeded")));
        assert_eq!(status["message"], DEADLINE_MESSAGE);
        assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["exitCode"], 143);
        assert!(node.condition("p", "DisruptionTarget").is_null(), "it is the pod's own end");
        let told = format!("{DEADLINE_EXCEEDED} {DEADLINE_MESSAGE}");
        assert_eq!(node.news().iter().filter(|text| **text == told).count(), 1);
        assert!(node.runs.is_empty(), "nothing is left of it");
    }

    #[test]
    fn pod_that_fails_makes_way_for_one_that_needs_its_port() {
        let mut node = Node::new();
        let ports = json!([{"containerPort": 80, "hostPort": 80}]);
        let containers = json!([{"name": "a", "image": "x:1", "ports": ports}]);
        node.bind("p", json!({"activeDeadlineSeconds": 5, "containers": containers}));
        node.is_deaf = true;
        node.wait(5);
        assert_eq!(node.stops(), [("p", 30)]);
        node.bind("q", json!({"containers": containers}));
        assert_eq!(node.status("q")["phase"], "Pending", "a rejection would be for good");
        node.is_deaf = false;
        node.start();
        assert_eq!(node.status("p")["phase"], "Failed");
        assert!(node.runs("q"), "{}", node.status("q"));
    }

    #[test]
    fn failure_is_told_once_and_outlives_agent_and_boot() {
        let mut node = Node::new();
        node.bind("p", json!({"activeDeadlineSeconds": 5}));
        node.wait(5);
        let before = (node.status("p").clone(), node.records.clone());
        node.seen.clear();
        node.start();
        node.boot();
        node.wait(1000);
        assert_eq!((node.status("p").clone(), node.records.clone()), before);
        assert!(node.stops().is_empty() && !node.runs("p"));
        let is_idle = |action: &PodAction| {
            !matches!(action, PodAction::PatchPodStatus { .. } | PodAction::SaveDesired { .. })
        };
        assert!(node.seen.iter().all(is_idle), "{:?}", node.seen);
    }

    #[test]
    fn failure_is_durable_before_a_container_is_stopped() {
        let mut node = Node::new();
        node.bind("p", json!({"activeDeadlineSeconds": 5}));
        node.disk_hangs = true;
        node.wait(60);
        assert!(node.stops().is_empty() && node.runs("p"));
        assert_eq!(node.status("p")["phase"], "Running", "nor is it reported");
        // a disk that accepts no write delays no end
        (node.disk_hangs, node.disk_is_full) = (false, true);
        node.start();
        node.wait(60);
        assert_eq!(node.status("p")["reason"], DEADLINE_EXCEEDED);
        assert!(node.runs.is_empty());
    }

    #[test]
    fn deadline_counts_across_agents_by_a_clock_that_is_right() {
        // by how much the clock is changed while no agent runs, and the seconds that remain then
        for (set, left) in [(0, 10), (5, 5), (3600, 1), (-3600, 20)] {
            let mut node = Node::new();
            node.bind("p", json!({"activeDeadlineSeconds": 20}));
            node.wait(10);
            node.epoch += set;
            node.start();
            node.wait(left - 1);
            assert_eq!(node.runs("p"), left > 1 || set == 0, "set by {set} s");
            node.wait(1);
            assert!(!node.runs("p"), "set by {set} s");
        }
        let now = Now { mono: Duration::ZERO, wall: Timestamp::from_micros(9_000_000) };
        let at = |secs: i64| Timestamp::from_micros(secs * 1_000_000);
        let left = |created| Active::since(at(1), created, now).reaches(Duration::from_secs(100));
        assert_eq!(left(None), Duration::from_secs(92));
        assert_eq!(left(Some(at(5))), Duration::from_secs(100), "it began before it was made");
    }
}
