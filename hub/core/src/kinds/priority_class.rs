//! PriorityClass: the names of priorities.
//!
//! Always holds: value and preemption policy of a class never change; names that begin with `system-` are
//! those of [`SYSTEM`]. Validation and texts are upstream's. Left to others: giving pods their priority
//! (`requests::priority`), the order in which nodes end pods (the agent).

use serde_json::{Value, json};

use super::kind::Kind;
use super::rules::Errors;
use super::table::{Column, age};
use crate::field_error::FieldError;
use crate::value::text;

/// The preemption policy of a class without one.
pub const PREEMPTION: &str = "PreemptLowerPriority";
/// Beginning of the names of upstream's own classes.
const SYSTEM_PREFIX: &str = "system-";
/// The highest value of other classes.
const HIGHEST: i64 = 1_000_000_000;

/// Name, value and description of upstream's own classes.
pub const SYSTEM: [(&str, i64, &str); 2] = [
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
];

/// scheduling.k8s.io/v1 PriorityClass.
pub static PRIORITY_CLASS: Kind = Kind {
    group: "scheduling.k8s.io",
    kind: "PriorityClass",
    plural: "priorityclasses",
    singular: "priorityclass",
    short_names: &["pc"],
    namespaced: false,
    type_name: "scheduling/v1/PriorityClass",
    columns: &[
        Column::NAME,
        Column::integer("Value"),
        Column::boolean("Global-Default"),
        Column::AGE,
        Column::text("PreemptionPolicy"),
    ],
    cells,
    convert: |class| {
        if let Some(class) = class.as_object_mut() {
            class.entry("value").or_insert_with(|| 0.into());
        }
    },
    prepare,
    validate,
    ..Kind::USUAL
};

fn cells(class: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    vec![
        text(class, &["metadata", "name"]).into(),
        value(class).into(),
        is_default(class).into(),
        age(class, now),
        text(class, &["preemptionPolicy"]).into(),
    ]
}

/// The priority that the class names.
pub fn value(class: &Value) -> i64 {
    class["value"].as_i64().unwrap_or(0)
}

/// Whether pods without a class have this one.
pub fn is_default(class: &Value) -> bool {
    class["globalDefault"] == true
}

/// The value of one of upstream's own classes.
pub fn of_system(name: &str) -> Option<i64> {
    SYSTEM.iter().find(|(known, ..)| *known == name).map(|(_, value, _)| *value)
}

/// Upstream's own classes as objects.
pub fn system_classes() -> impl Iterator<Item = (&'static str, Value)> {
    SYSTEM.into_iter().map(|(name, value, description)| {
        (name, json!({"metadata": {"name": name}, "value": value, "description": description}))
    })
}

fn prepare(class: &mut Value, old: Option<&Value>) {
    if old.is_none() {
        // upstream never increments it
        class["metadata"]["generation"] = 1.into();
    }
    if class["preemptionPolicy"].is_null() {
        class["preemptionPolicy"] = PREEMPTION.into();
    }
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut Errors) {
    if let Some(old) = old {
        if value(new) != value(old) {
            errors.push(FieldError::forbidden("value", "may not be changed in an update."));
        }
        let policy = text(new, &["preemptionPolicy"]);
        if policy != text(old, &["preemptionPolicy"]) {
            errors.push(FieldError::invalid("preemptionPolicy", policy, "field is immutable"));
        }
        let name = text(new, &["metadata", "name"]);
        if name.starts_with(SYSTEM_PREFIX) && is_default(new) && !is_default(old) {
            let why = format!("globalDefault of {name} PriorityClass must be false");
            errors.push(FieldError::forbidden("globalDefault", &why));
        }
        return;
    }
    let name = text(new, &["metadata", "name"]);
    if name.starts_with(SYSTEM_PREFIX) {
        let why = match of_system(name) {
            None => format!("{name} is not a known system priority class"),
            Some(known) if known != value(new) => format!("value of {name} PriorityClass must be {known}"),
            Some(_) if is_default(new) => format!("globalDefault of {name} PriorityClass must be false"),
            Some(_) => String::new(),
        };
        if !why.is_empty() {
            let why = format!(
                "priority class names with '{SYSTEM_PREFIX}' prefix are reserved for system use only. error: {why}"
            );
            errors.push(FieldError::forbidden("metadata.name", &why));
        }
    } else if value(new) > HIGHEST {
        let why = format!("maximum allowed value of a user defined priority is {HIGHEST}");
        errors.push(FieldError::forbidden("value", &why));
    }
    let policy = text(new, &["preemptionPolicy"]);
    if policy.is_empty() {
        errors.push(FieldError::required("preemptionPolicy", ""));
    } else if !matches!(policy, PREEMPTION | "Never") {
        errors.push(FieldError::unsupported("preemptionPolicy", policy, &[PREEMPTION, "Never"]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(new: Value, old: Option<&Value>, expect: &[&str]) {
        let mut new = new;
        prepare(&mut new, old);
        let mut errors = Errors::default();
        validate(&new, old, &mut errors);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect, "{new}");
    }

    fn class(name: &str, value: i64) -> Value {
        json!({"metadata": {"name": name}, "value": value})
    }

    #[test]
    fn class_has_a_bound_and_upstreams_names_are_upstreams() {
        for (name, value) in [("high", 1_000_000_000), ("low", -2_000_000_000), ("none", 0)] {
            check(class(name, value), None, &[]);
        }
        for (_, class) in system_classes() {
            check(class, None, &[]);
        }
        let most = "value: Forbidden: maximum allowed value of a user defined priority is 1000000000";
        check(class("high", 1_000_000_001), None, &[most]);
        let reserved = "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: ";
        check(
            class("system-x", 1),
            None,
            &[&format!("{reserved}system-x is not a known system priority class")],
        );
        check(
            class("system-node-critical", 1),
            None,
            &[&format!("{reserved}value of system-node-critical PriorityClass must be 2000001000")],
        );
        let mut default = class("system-cluster-critical", 2_000_000_000);
        default["globalDefault"] = true.into();
        check(
            default,
            None,
            &[&format!("{reserved}globalDefault of system-cluster-critical PriorityClass must be false")],
        );
        let policy = "preemptionPolicy: Unsupported value: \"Now\": supported values: \"PreemptLowerPriority\", \"Never\"";
        check(json!({"metadata": {"name": "a"}, "value": 1, "preemptionPolicy": "Now"}), None, &[policy]);
        let empty = json!({"metadata": {"name": "a"}, "value": 1, "preemptionPolicy": ""});
        check(empty, None, &["preemptionPolicy: Required value"]);
    }

    #[test]
    fn value_and_policy_never_change() {
        let mut old = class("high", 5);
        prepare(&mut old, None);
        assert_eq!(cells(&old, time::OffsetDateTime::UNIX_EPOCH)[1..3], [json!(5), json!(false)]);
        let mut new = old.clone();
        new["description"] = "another".into();
        new["globalDefault"] = true.into();
        check(new.clone(), Some(&old), &[]);
        let mut system = class("system-node-critical", 2_000_001_000);
        prepare(&mut system, None);
        let before = system.clone();
        system["globalDefault"] = true.into();
        check(
            system,
            Some(&before),
            &["globalDefault: Forbidden: globalDefault of system-node-critical PriorityClass must be false"],
        );
        new["value"] = 6.into();
        new["preemptionPolicy"] = "Never".into();
        check(
            new,
            Some(&old),
            &[
                "value: Forbidden: may not be changed in an update.",
                "preemptionPolicy: Invalid value: \"Never\": field is immutable",
            ],
        );
    }
}
