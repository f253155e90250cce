//! The priorities of pods, and the one default among PriorityClasses: upstream's admission plugin `Priority`.
//!
//! Always holds: a new pod has the priority and preemption policy of its class, not those that its creator
//! wrote. At most one class is the default of pods without one, unless two writers race, and then the smaller
//! value counts, as upstream. Left to others: the rules of a class (`kinds::priority_class`).

use serde_json::Value;

use super::objects::Objects;
use crate::api_error::ApiError;
use crate::kinds::priority_class::{PREEMPTION, is_default, of_system, value};
use crate::kinds::{Kind, POD, PRIORITY_CLASS};
use crate::value::text;

/// The fields that a pod gets from its class.
struct Computed {
    /// The name of the default class, for a pod without a class.
    class: Option<String>,
    priority: i64,
    policy: String,
}

/// Sets the priority of a new pod. A value that its creator gave must be the computed one.
pub(super) fn admit(objects: &dyn Objects, kind: &Kind, pod: &mut Value) -> Result<(), ApiError> {
    if kind.kind != POD.kind {
        return Ok(());
    }
    let refuse = |why: &str| Err(ApiError::forbidden_object(kind, text(pod, &["metadata", "name"]), why));
    let spec = &pod["spec"];
    let class = text(spec, &["priorityClassName"]);
    let Some(Computed { class, priority, policy }) = computed(objects, class) else {
        return refuse(&format!("no PriorityClass with name {class} was found"));
    };
    let computed = "must not be provided in pod spec; priority admission controller computed";
    if let Some(given) = spec["priority"].as_i64().filter(|given| *given != priority) {
        return refuse(&format!(
            "the integer value of priority ({given}) {computed} {priority} from the given PriorityClass name"
        ));
    }
    let given = text(spec, &["preemptionPolicy"]);
    if !given.is_empty() && given != policy {
        return refuse(&format!(
            "the string value of PreemptionPolicy ({given}) {computed} {policy} from the given PriorityClass name"
        ));
    }
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        spec.extend(class.map(|class| ("priorityClassName".to_owned(), class.into())));
        spec.insert("priority".to_owned(), priority.into());
        spec.insert("preemptionPolicy".to_owned(), policy.into());
    }
    Ok(())
}

fn computed(objects: &dyn Objects, class: &str) -> Option<Computed> {
    let of = |object: &Value| {
        let policy = match text(object, &["preemptionPolicy"]) {
            "" => PREEMPTION,
            policy => policy,
        };
        Computed { class: None, priority: value(object), policy: policy.to_owned() }
    };
    let without = |priority| Computed { class: None, priority, policy: PREEMPTION.to_owned() };
    if !class.is_empty() {
        // upstream's own count before the hub could store them, too
        let found = objects.get(&PRIORITY_CLASS, "", class).map(|found| of(&found.value()));
        return found.or_else(|| of_system(class).map(without));
    }
    let defaults = objects.all_of(&PRIORITY_CLASS).into_iter().map(|class| class.value());
    let default = defaults.filter(is_default).min_by_key(value);
    Some(match default {
        Some(default) => {
            Computed { class: Some(text(&default, &["metadata", "name"]).to_owned()), ..of(&default) }
        }
        None => without(0),
    })
}

/// Refuses a second default class.
pub(super) fn check_default(objects: &dyn Objects, kind: &Kind, class: &Value) -> Result<(), ApiError> {
    if kind.kind != PRIORITY_CLASS.kind || !is_default(class) {
        return Ok(());
    }
    let name = text(class, &["metadata", "name"]);
    let all = objects.all_of(&PRIORITY_CLASS);
    match all.iter().find(|other| &*other.name != name && is_default(&other.value())) {
        Some(other) => {
            let why = format!(
                "PriorityClass {} is already marked as default. Only one default can exist",
                other.name
            );
            Err(ApiError::forbidden_object(kind, name, &why))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::object::Object;

    struct Classes(Vec<Value>);

    impl Objects for Classes {
        fn get(&self, _: &'static Kind, _: &str, name: &str) -> Option<Arc<Object>> {
            self.all_of(&PRIORITY_CLASS).into_iter().find(|class| &*class.name == name)
        }

        fn pods_of(&self, _: &str) -> Vec<Arc<Object>> {
            Vec::new()
        }

        fn all_of(&self, _: &'static Kind) -> Vec<Arc<Object>> {
            let all = self.0.iter().filter_map(|class| Object::new(&PRIORITY_CLASS, class, 1));
            all.map(Arc::new).collect()
        }
    }

    fn class(name: &str, value: i64, policy: &str, default: bool) -> Value {
        json!({"metadata": {"name": name, "uid": name}, "value": value, "preemptionPolicy": policy,
            "globalDefault": default})
    }

    #[track_caller]
    fn check(objects: &Classes, spec: Value, expect: Result<Value, &str>) {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": spec});
        let found = admit(objects, &POD, &mut pod).map(|()| pod["spec"].clone());
        match (found, expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect),
            (Err(error), Err(expect)) => {
                assert_eq!(
                    (error.code, &*error.message),
                    (403, &*format!("pods \"p\" is forbidden: {expect}"))
                );
            }
            (found, expect) => panic!("{spec}: {found:?}, expected {expect:?}", spec = pod["spec"]),
        }
    }

    #[test]
    fn pod_has_the_priority_of_its_class() {
        let objects = Classes(vec![class("high", 1000, "Never", false)]);
        let high = json!({"priorityClassName": "high", "priority": 1000, "preemptionPolicy": "Never"});
        check(&objects, json!({"priorityClassName": "high"}), Ok(high.clone()));
        check(&objects, high.clone(), Ok(high));
        let zero = json!({"priority": 0, "preemptionPolicy": "PreemptLowerPriority"});
        check(&objects, json!({}), Ok(zero.clone()));
        check(&objects, zero.clone(), Ok(zero));
        let critical = json!({"priorityClassName": "system-node-critical", "priority": 2_000_001_000,
            "preemptionPolicy": "PreemptLowerPriority"});
        check(&objects, json!({"priorityClassName": "system-node-critical"}), Ok(critical));
        check(&objects, json!({"priorityClassName": "low"}), Err("no PriorityClass with name low was found"));
        let computed = "must not be provided in pod spec; priority admission controller computed";
        let refused =
            |what: &str, to: &str| format!("{what} {computed} {to} from the given PriorityClass name");
        let wrong = refused("the integer value of priority (5)", "1000");
        check(&objects, json!({"priorityClassName": "high", "priority": 5}), Err(&wrong));
        let wrong = refused("the integer value of priority (5)", "0");
        check(&objects, json!({"priority": 5}), Err(&wrong));
        let wrong = refused("the string value of PreemptionPolicy (Never)", "PreemptLowerPriority");
        check(&objects, json!({"preemptionPolicy": "Never"}), Err(&wrong));
    }

    #[test]
    fn pod_without_a_class_has_the_default_one() {
        let of = |value: i64, name: &str| json!({"priorityClassName": name, "priority": value, "preemptionPolicy": "PreemptLowerPriority"});
        let usual = class("usual", 7, "PreemptLowerPriority", true);
        let one = Classes(vec![class("high", 9, "Never", false), usual.clone()]);
        check(&one, json!({}), Ok(of(7, "usual")));
        let two = Classes(vec![usual.clone(), class("less", 3, "PreemptLowerPriority", true)]);
        check(&two, json!({}), Ok(of(3, "less")));
        let more = class("more", 8, "PreemptLowerPriority", true);
        let error = check_default(&one, &PRIORITY_CLASS, &more).unwrap_err();
        let expect = "priorityclasses.scheduling.k8s.io \"more\" is forbidden: PriorityClass usual is already marked as default. Only one default can exist";
        assert_eq!((error.code, &*error.message), (403, expect));
        for class in [&usual, &class("plain", 1, PREEMPTION, false)] {
            assert!(check_default(&one, &PRIORITY_CLASS, class).is_ok(), "{class}");
        }
    }
}
