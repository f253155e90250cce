//! How many pods of a disruption budget may be evicted: upstream's arithmetic, on the pods as they are.
//!
//! Always holds: the status of a budget and the answer to an eviction are computed here, so they agree; what
//! cannot be computed allows nothing. A pod that is being deleted does not count as healthy, so one eviction
//! after the other sees those before. Left to others: that evictions take turns (the server).

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api_error::ApiError;
use crate::kinds::daemon_set::selects_by;
use crate::kinds::disruption_budget::percent;
use crate::kinds::{DISRUPTION_BUDGET, POD, served};
use crate::object::Object;
use crate::requests::Objects;
use crate::value::{condition, set_condition, text};

/// The condition of a budget.
const ALLOWED: &str = "DisruptionAllowed";
const FAILED: &str = "SyncFailed";
const REFUSAL: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

/// A budget and its pods, counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    healthy: i64,
    desired: i64,
    expected: i64,
    /// Why it cannot be computed.
    failure: Option<String>,
}

impl Standing {
    /// `pods`: all of the budget's namespace.
    pub fn of(budget: &Value, pods: &[Arc<Object>]) -> Standing {
        let pods: Vec<Value> =
            pods.iter().filter(|pod| is_selected(budget, pod)).map(|pod| pod.value()).collect();
        let healthy = pods.iter().filter(|pod| !is_terminating(pod) && is_ready(pod)).count();
        let spec = &budget["spec"];
        let counted = match (&spec["maxUnavailable"], &spec["minAvailable"]) {
            (Value::Null, Value::Null) => Ok((0, 0)),
            (Value::Null, least) if percent(least).is_none() => {
                Ok((number(pods.len()), least.as_i64().unwrap_or(0)))
            }
            // a share of replicas, or of none
            _ => match pods.iter().find_map(without_scale) {
                Some(why) => Err(why),
                None => Ok((0, 0)),
            },
        };
        let (expected, desired) = counted.as_ref().copied().unwrap_or((0, 0));
        Standing { healthy: number(healthy), desired, expected, failure: counted.err() }
    }

    /// How many healthy pods may be evicted now.
    pub fn allowed(&self) -> i64 {
        match self.failure {
            None if self.expected > 0 => self.healthy.saturating_sub(self.desired).max(0),
            _ => 0,
        }
    }

    /// Writes the status of a budget. `now`: RFC 3339.
    pub fn write(&self, budget: &mut Value, now: &str) {
        let generation = budget["metadata"]["generation"].clone();
        if !budget["status"].is_object() {
            budget["status"] = json!({});
        }
        let status = &mut budget["status"];
        let allowed = self.allowed();
        for (field, value) in [
            ("currentHealthy", self.healthy),
            ("desiredHealthy", self.desired),
            ("expectedPods", self.expected),
            ("disruptionsAllowed", allowed),
        ] {
            status[field] = value.into();
        }
        status["observedGeneration"] = generation.clone();
        let (reason, holds) = match (&self.failure, allowed > 0) {
            (Some(_), _) => (FAILED, "False"),
            (None, true) => ("SufficientPods", "True"),
            (None, false) => ("InsufficientPods", "False"),
        };
        let message = self.failure.as_deref().unwrap_or("");
        let new = json!({"type": ALLOWED, "status": holds, "reason": reason, "message": message,
            "observedGeneration": generation});
        set_condition(status, new, now);
        // upstream's conditions have a message, if an empty one
        for condition in status["conditions"].as_array_mut().into_iter().flatten() {
            if let Some(fields) = condition.as_object_mut() {
                fields.entry("message").or_insert_with(|| "".into());
            }
        }
    }

    /// Upstream's sentence for a refused eviction.
    fn refusal(&self, name: &str) -> String {
        match &self.failure {
            Some(why) => format!(
                "The disruption budget {name} does not allow evicting pods currently because it failed sync: {why}"
            ),
            None if self.healthy <= self.desired => format!(
                "The disruption budget {name} needs {} healthy pods and has {} currently",
                self.desired, self.healthy
            ),
            None => format!("The disruption budget {name} does not allow evicting pods currently"),
        }
    }
}

/// Whether a namespace has budgets.
pub fn is_guarded(objects: &dyn Objects, namespace: &str) -> bool {
    !budgets(objects, namespace).is_empty()
}

/// Judges an eviction by the budgets of its pod. True if the pod may be evicted because it is not healthy:
/// then only at its present version.
///
/// # Errors
/// 429 if a budget forbids it now; 500 if several budgets select the pod, as upstream.
pub fn judge(objects: &dyn Objects, pod: &Object) -> Result<bool, ApiError> {
    let value = pod.value();
    let phase = text(&value, &["status", "phase"]);
    if pod.terminating || matches!(phase, "Succeeded" | "Failed" | "Pending") {
        return Ok(phase == "Pending" && !pod.terminating);
    }
    let budgets = budgets(objects, &pod.namespace);
    let selecting: Vec<&Value> = budgets.iter().filter(|budget| is_selected(budget, pod)).collect();
    let budget = match selecting[..] {
        [] => return Ok(false),
        [budget] => budget,
        _ => {
            return Err(ApiError::internal(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            ));
        }
    };
    let standing = Standing::of(budget, &objects.pods_of(&pod.namespace));
    if !is_ready(&value) {
        let always = text(budget, &["spec", "unhealthyPodEvictionPolicy"]) == "AlwaysAllow";
        let undisrupted = standing.failure.is_none() && standing.desired > 0;
        if always || (undisrupted && standing.healthy >= standing.desired) {
            return Ok(true);
        }
    }
    match standing.allowed() {
        0 => Err(refused(&standing.refusal(text(budget, &["metadata", "name"])), None)),
        _ => Ok(false),
    }
}

/// The refusal of an eviction whose pod changed meanwhile.
pub fn changed_meanwhile(name: &str) -> ApiError {
    refused(&format!("The pod {name} changed while its eviction was judged."), Some(10))
}

fn refused(why: &str, again_secs: Option<u32>) -> ApiError {
    let error = ApiError::too_many_requests(REFUSAL);
    let mut error = ApiError { retry_after_secs: None, details: json!({}), ..error };
    error.details["causes"] = json!([{"reason": "DisruptionBudget", "message": why}]);
    match again_secs {
        Some(secs) => error.retry_after(secs),
        None => error,
    }
}

fn budgets(objects: &dyn Objects, namespace: &str) -> Vec<Value> {
    let all = objects.all_of(&DISRUPTION_BUDGET);
    all.iter().filter(|budget| &*budget.namespace == namespace).map(|budget| budget.value()).collect()
}

/// A selector that is absent selects nothing, an empty one everything.
fn is_selected(budget: &Value, pod: &Object) -> bool {
    let selector = &budget["spec"]["selector"];
    !selector.is_null() && selects_by(selector, |key| pod.label(key))
}

fn is_terminating(pod: &Value) -> bool {
    !text(pod, &["metadata", "deletionTimestamp"]).is_empty()
}

fn is_ready(pod: &Value) -> bool {
    condition(&pod["status"], "Ready").is_some_and(|ready| ready["status"] == "True")
}

/// Why the replicas of a pod's owner are unknown; a pod without an owner has none.
fn without_scale(pod: &Value) -> Option<String> {
    let owners = pod["metadata"]["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    let kind = served().find(|kind| {
        owner["kind"] == kind.kind && owner["apiVersion"] == kind.api_version() && kind.kind != POD.kind
    });
    Some(match kind {
        Some(kind) => format!("{} does not implement the scale subresource", kind.resource_name()),
        None => format!("found no controllers for pod {:?}", text(pod, &["metadata", "name"])),
    })
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::Kind;

    struct Stored {
        budgets: Vec<Value>,
        pods: Vec<Value>,
    }

    impl Objects for Stored {
        fn get(&self, _: &'static Kind, _: &str, _: &str) -> Option<Arc<Object>> {
            None
        }

        fn pods_of(&self, _: &str) -> Vec<Arc<Object>> {
            self.pods.iter().filter_map(|pod| Object::new(&POD, pod, 1)).map(Arc::new).collect()
        }

        fn all_of(&self, _: &'static Kind) -> Vec<Arc<Object>> {
            let all = self.budgets.iter().filter_map(|one| Object::new(&DISRUPTION_BUDGET, one, 1));
            all.map(Arc::new).collect()
        }
    }

    fn pod(name: &str, ready: bool) -> Value {
        json!({"metadata": {"name": name, "namespace": "n", "labels": {"app": "a"}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}})
    }

    fn budget(spec: Value) -> Value {
        let mut budget = json!({"metadata": {"name": "b", "namespace": "n", "generation": 3}, "spec": spec});
        budget["spec"]["selector"] = json!({"matchLabels": {"app": "a"}});
        budget
    }

    fn answer(budgets: &[Value], pods: &[Value], index: usize) -> Result<bool, String> {
        let objects = Stored { budgets: budgets.to_vec(), pods: pods.to_vec() };
        let asked = Object::new(&POD, &pods[index], 1).unwrap();
        judge(&objects, &asked).map_err(|error| match error.code {
            429 => error.details["causes"][0]["message"].as_str().unwrap().to_owned(),
            _ => error.message,
        })
    }

    #[test]
    fn budget_keeps_as_many_healthy_pods_as_it_says() {
        let two = budget(json!({"minAvailable": 2}));
        let needs = |healthy: u8| {
            Err(format!("The disruption budget b needs 2 healthy pods and has {healthy} currently"))
        };
        let mut pods = vec![pod("a", true), pod("b", true), pod("c", true)];
        assert_eq!(answer(std::slice::from_ref(&two), &pods, 0), Ok(false));
        pods[1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(answer(std::slice::from_ref(&two), &pods, 0), needs(2));
        assert_eq!(answer(std::slice::from_ref(&two), &pods, 1), Ok(false), "it ends already");
        pods[2] = pod("c", false);
        assert_eq!(answer(std::slice::from_ref(&two), &pods, 0), needs(1));
        assert_eq!(answer(std::slice::from_ref(&two), &pods, 2), needs(1), "not healthy, and needed");
        let mut always = two.clone();
        always["spec"]["unhealthyPodEvictionPolicy"] = "AlwaysAllow".into();
        assert_eq!(answer(&[always], &pods, 2), Ok(true));
        pods[1] = pod("b", true);
        assert_eq!(answer(std::slice::from_ref(&two), &pods, 2), Ok(true), "the others suffice");
        for phase in ["Succeeded", "Failed", "Pending"] {
            pods[0]["status"]["phase"] = phase.into();
            assert_eq!(answer(std::slice::from_ref(&two), &pods, 0), Ok(phase == "Pending"), "{phase}");
        }
        pods[0] = pod("a", true);
        let several = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        assert_eq!(answer(&[two.clone(), two.clone()], &pods, 0), Err(several.to_owned()));
        pods[0]["metadata"]["labels"]["app"] = "b".into();
        assert_eq!(answer(&[two], &pods, 0), Ok(false), "not selected");
    }

    #[test]
    fn what_cannot_be_counted_allows_nothing() {
        let owner = |version: &str, kind: &str| json!([{"apiVersion": version, "kind": kind, "name": "o", "uid": "u", "controller": true}]);
        for spec in [json!({"maxUnavailable": 1}), json!({"minAvailable": "50%"})] {
            let budget = budget(spec);
            let mut one = pod("a", true);
            for (version, kind, expect) in [
                ("apps/v1", "DaemonSet", "daemonsets.apps does not implement the scale subresource"),
                ("example.com/v1", "Thing", "found no controllers for pod \"a\""),
            ] {
                one["metadata"]["ownerReferences"] = owner(version, kind);
                let found = answer(std::slice::from_ref(&budget), std::slice::from_ref(&one), 0).unwrap_err();
                assert!(found.ends_with(&format!("because it failed sync: {expect}")), "{found}");
            }
            let alone = pod("a", true);
            let found = answer(std::slice::from_ref(&budget), std::slice::from_ref(&alone), 0).unwrap_err();
            assert_eq!(found, "The disruption budget b does not allow evicting pods currently");
            let unready = pod("a", false);
            assert!(answer(std::slice::from_ref(&budget), std::slice::from_ref(&unready), 0).is_err());
        }
        let nobody = json!({"metadata": {"name": "b", "namespace": "n"}, "spec": {"minAvailable": 1}});
        assert_eq!(
            answer(&[nobody], &[pod("a", true)], 0),
            Ok(false),
            "without a selector it selects nothing"
        );
    }

    #[test]
    fn status_is_written_once() {
        let pods: Vec<Arc<Object>> = [pod("a", true), pod("b", true)]
            .iter()
            .map(|pod| Arc::new(Object::new(&POD, pod, 1).unwrap()))
            .collect();
        let mut budget = budget(json!({"minAvailable": 1}));
        let standing = Standing::of(&budget, &pods);
        standing.write(&mut budget, "t1");
        let expect = json!({"currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2, "disruptionsAllowed": 1, "observedGeneration": 3,
            "conditions": [{"type": "DisruptionAllowed", "status": "True", "reason": "SufficientPods", "message": "",
                "observedGeneration": 3, "lastTransitionTime": "t1"}]});
        assert_eq!(budget["status"], expect);
        standing.write(&mut budget, "t2");
        assert_eq!(budget["status"], expect);
        Standing::of(&budget, &pods[..1]).write(&mut budget, "t3");
        assert_eq!(budget["status"]["conditions"][0]["reason"], "InsufficientPods");
        budget["spec"]["minAvailable"] = "50%".into();
        Standing::of(&budget, &[]).write(&mut budget, "t4");
        assert_eq!(budget["status"]["disruptionsAllowed"], 0);
    }
}
