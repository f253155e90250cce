//! Keeps a pod's resources if the API server changes them in the spec of an admitted pod (`pods/resize`),
//! because this node does not resize pods.
//!
//! Always holds: a pod keeps the resources that it was admitted with until it ends: in each run, in its
//! record, across starts of the agent and of the machine, and in its share of the node. Leaves to others: how
//! a status shows this (`status`), and when.

use crate::pods::spec::{Pod, ResourceRequirements, quantity};
use serde_json::{Map, Value};

/// Upstream's condition, and its reason for a resize that will never be done.
pub(crate) const CONDITION: &str = "PodResizePending";
pub(crate) const REASON: &str = "Infeasible";
pub(crate) const WHY: &str = "in-place resize is not served by this node: its containers go on with the resources they were \
    admitted with";
/// Upstream's reason of the Event.
pub(crate) const EVENT: &str = "ResizeInfeasible";

/// Where a spec has containers, by their key.
const LISTS: [&str; 2] = ["initContainers", "containers"];

/// Replaces the resources in a later state of a pod by those that it was admitted with. Returns whether the
/// later state has other resources.
pub(crate) fn keep_admitted(later: &mut Pod, admitted: &Pod) -> bool {
    let mut asks = keep(&mut later.raw_spec, &admitted.raw_spec);
    for list in LISTS {
        let containers = later.raw_spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let mut known = admitted.raw_spec[list].as_array().into_iter().flatten();
            if let Some(known) = known.find(|known| known["name"] == container["name"]) {
                asks |= keep(container, known);
            }
        }
    }
    let known = |name: &str| admitted.spec.all_containers().find(|known| known.name == name);
    for container in later.spec.init_containers.iter_mut().chain(&mut later.spec.containers) {
        if let Some(known) = known(&container.name) {
            container.resources.clone_from(&known.resources);
        }
    }
    asks
}

/// The same for an object with `resources`: a container, or a pod as a whole.
fn keep(later: &mut Value, admitted: &Value) -> bool {
    let (Some(later), known) = (later.as_object_mut(), &admitted["resources"]) else { return false };
    let asked = later.get("resources").unwrap_or(&Value::Null);
    if asked == known {
        return false;
    }
    let is_other = amounts(asked) != amounts(known);
    match known {
        Value::Null => later.remove("resources"),
        known => later.insert("resources".into(), known.clone()),
    };
    is_other
}

/// The amounts in thousandths, so that they compare equal however they are written.
fn amounts(resources: &Value) -> Vec<(&str, &str, Option<i64>)> {
    let list = |which: &'static str| {
        let entries = resources[which].as_object().into_iter().flatten();
        entries.map(move |(name, amount)| {
            (which, name.as_str(), quantity(amount).map(|amount| amount.milli_units()))
        })
    };
    list("requests").chain(list("limits")).collect()
}

/// The resources that a container's status shows while a resize is requested, because schedulers use these
/// values then.
pub(crate) fn shown(resources: &ResourceRequirements) -> Map<String, Value> {
    let mut shown = Map::new();
    let list = |amounts: &std::collections::BTreeMap<String, Value>| {
        amounts.iter().map(|(name, amount)| (name.clone(), amount.clone())).collect::<Map<_, _>>()
    };
    let both = [("limits", &resources.limits), ("requests", &resources.requests)];
    let given = both.into_iter().filter(|(_, amounts)| !amounts.is_empty());
    let both: Map<String, Value> =
        given.map(|(which, amounts)| (which.to_owned(), Value::Object(list(amounts)))).collect();
    shown.insert("resources".into(), Value::Object(both));
    if !resources.requests.is_empty() {
        shown.insert("allocatedResources".into(), Value::Object(list(&resources.requests)));
    }
    shown
}

#[cfg(test)]
mod tests {
    use crate::pods::fixture::Node;
    use crate::pods::{PodAction, Resources};
    use serde_json::{Value, json};

    const FIRST: (&str, &str) = ("500m", "64Mi");

    fn object((cpu, memory): (&str, &str), generation: i64) -> Value {
        let both = json!({"cpu": cpu, "memory": memory});
        json!({"metadata": {"name": "p", "namespace": "default", "uid": "p", "generation": generation},
            "spec": {"containers": [{"name": "a", "image": "x:1", "resources": {"requests": both, "limits": both}}]},
            "status": {"phase": "Pending"}})
    }

    struct Resized {
        node: Node,
        generation: i64,
    }

    impl Resized {
        /// A pod that runs with the first resources.
        fn new() -> Self {
            let mut this = Self { node: Node::new(), generation: 0 };
            this.ask(FIRST);
            assert!(this.node.runs("p"));
            this.node.seen.clear();
            this
        }

        /// The API server accepts a resize.
        fn ask(&mut self, resources: (&str, &str)) {
            self.generation += 1;
            let mut object = object(resources, self.generation);
            if self.generation > 1 {
                object["status"] = self.node.status("p").clone();
            }
            self.node.see(object);
        }

        fn pending(&self) -> Value {
            self.node.condition("p", super::CONDITION)
        }

        /// The limits of each container that was created since.
        fn created(&self) -> Vec<(Option<u64>, Option<u64>)> {
            let order = |action: &PodAction| match action {
                PodAction::CreateContainer(order) => Some(order.resources),
                _ => None,
            };
            let both = |it: Resources| (it.cpu_limit_milli, it.memory_limit_bytes);
            self.node.seen.iter().filter_map(order).map(both).collect()
        }
    }

    #[test]
    fn resize_is_infeasible_and_changes_nothing() {
        let mut this = Resized::new();
        assert!(this.pending().is_null());
        this.ask(("1", "128Mi"));
        let told = this.pending();
        assert_eq!((&told["status"], &told["reason"]), (&json!("True"), &json!("Infeasible")));
        assert_eq!((&told["message"], &told["observedGeneration"]), (&json!(super::WHY), &json!(2)));
        let both = json!({"cpu": "500m", "memory": "64Mi"});
        let container = &this.node.status("p")["containerStatuses"][0];
        assert_eq!(container["resources"], json!({"requests": both, "limits": both}));
        assert_eq!(container["allocatedResources"], both);
        assert_eq!(container["restartCount"], 0);
        assert!(this.node.runs("p") && this.node.stops().is_empty() && this.created().is_empty());
        let events =
            |this: &Resized| this.node.news().iter().filter(|text| text.starts_with(super::EVENT)).count();
        assert_eq!(events(&this), 1);
        this.node.wait(600);
        this.node.start();
        assert_eq!((events(&this), this.pending()), (1, told), "told once, also by the next agent");
    }

    #[test]
    fn resize_that_is_taken_back_is_pending_no_more() {
        let mut this = Resized::new();
        this.ask(("1", "64Mi"));
        this.ask(("0.5", "67108864"));
        assert!(this.pending().is_null(), "the same amounts: {}", this.pending());
        let container = &this.node.status("p")["containerStatuses"][0];
        assert!(container.get("resources").is_none() && container.get("allocatedResources").is_none());
        assert!(this.node.runs("p") && this.created().is_empty());
        // and a resize may be requested again
        this.ask(("2", "64Mi"));
        assert_eq!(this.pending()["observedGeneration"], 4);
    }

    #[test]
    fn later_runs_have_what_was_admitted() {
        let mut this = Resized::new();
        let admitted = [(Some(500), Some(64 << 20))];
        this.ask(("4000", "900Gi"));
        this.node.ends("p", "a", 1);
        this.node.wait(1);
        assert_eq!(this.created(), admitted, "after its end");
        this.node.seen.clear();
        this.node.start();
        this.node.ends("p", "a", 1);
        this.node.wait(10);
        assert_eq!(this.created(), admitted, "after a start of the agent");
        this.node.seen.clear();
        this.node.boot();
        assert_eq!(this.created(), admitted, "after a boot");
        assert_eq!(this.pending()["reason"], "Infeasible");
    }

    #[test]
    fn others_are_admitted_by_what_runs() {
        for (resize, fits) in [(("4", "64Mi"), true), (("100m", "1Mi"), false)] {
            let mut this = Resized::new();
            this.ask(resize);
            let cpu = if fits { "3500m" } else { "3600m" };
            let other = json!({"containers": [{"name": "a", "image": "x:1", "resources": {"requests": {"cpu": cpu}}}]});
            this.node.bind("other", other);
            assert_eq!(this.node.runs("other"), fits, "{resize:?}");
        }
    }

    #[test]
    fn resize_before_the_admission_is_what_is_admitted() {
        let mut node = Node::new();
        node.disk_hangs = true;
        node.pods = crate::pods::Pods::new("edge");
        node.see(object(FIRST, 1));
        node.see(object(("1", "64Mi"), 2));
        node.disk_hangs = false;
        node.start();
        assert!(node.runs("p") && node.condition("p", super::CONDITION).is_null());
    }

    #[test]
    fn pod_that_is_over_awaits_no_resize() {
        let mut this = Resized::new();
        this.ask(("1", "64Mi"));
        this.node.tell(crate::pods::PodEvent::Release(None));
        let mut object = object(("1", "64Mi"), 3);
        object["metadata"]["deletionTimestamp"] = json!("2027-01-15T08:00:00Z");
        object["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        object["status"] = this.node.status("p").clone();
        this.node.see(object);
        assert!(this.pending().is_null() && !this.node.runs("p"), "{}", this.pending());
    }
}
