//! RuntimeClass: the names of container runtimes. Objects only: an agent has one runtime.
//!
//! Validation and texts are upstream's; the handler never changes. Left to others: what a pod gets from its
//! class (`requests::runtime`), refusing such a pod (the agent).

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::kind::Kind;
use super::names::NameRule;
use super::pod_spec::{resources, scheduling};
use super::rules::{self, Errors, list};
use super::table::{Column, age};
use crate::field_error::FieldError;
use crate::value::text;

/// node.k8s.io/v1 RuntimeClass.
pub static RUNTIME_CLASS: Kind = Kind {
    group: "node.k8s.io",
    kind: "RuntimeClass",
    plural: "runtimeclasses",
    singular: "runtimeclass",
    namespaced: false,
    unconditional_update: false,
    type_name: "node/v1/RuntimeClass",
    columns: &[Column::NAME, Column::text("Handler"), Column::AGE],
    cells,
    validate,
    warnings,
    ..Kind::USUAL
};

fn cells(class: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    vec![text(class, &["metadata", "name"]).into(), text(class, &["handler"]).into(), age(class, now)]
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut Errors) {
    let handler = text(new, &["handler"]);
    if let Some(old) = old {
        if handler != text(old, &["handler"]) {
            errors.push(FieldError::invalid("handler", handler, "field is immutable"));
        }
        return;
    }
    match handler {
        "" => errors.push(FieldError::required("handler", "")),
        handler => rules::name(handler, NameRule::Label, "handler", errors),
    }
    let overhead = json!({"limits": new["overhead"]["podFixed"]});
    resources::validate_overhead(&overhead, "overhead", errors);
    let asked = &new["scheduling"];
    rules::labels(asked, "nodeSelector", "scheduling", errors);
    scheduling::validate_tolerations(asked, "scheduling", errors);
    let mut seen = BTreeSet::new();
    for (index, toleration) in list(asked, "tolerations").iter().enumerate() {
        if !seen.insert(["key", "operator", "value", "effect"].map(|field| text(toleration, &[field]))) {
            let path = format!("scheduling.tolerations[{index}]");
            errors.push(FieldError::duplicate(path, toleration.clone()));
        }
    }
}

fn warnings(_: &Value, old: Option<&Value>) -> Vec<String> {
    let why = "each node has one runtime: it refuses the pods that name this class";
    old.is_none().then(|| why.to_owned()).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(new: &Value, old: Option<&Value>, expect: &[&str]) {
        let mut errors = Errors::default();
        validate(new, old, &mut errors);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect, "{new}");
    }

    #[test]
    fn class_has_a_handler_that_never_changes() {
        let class = json!({"metadata": {"name": "graphics"}, "handler": "nvidia",
            "overhead": {"podFixed": {"memory": "120Mi"}},
            "scheduling": {"nodeSelector": {"gpu": "yes"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}});
        check(&class, None, &[]);
        check(&class, Some(&class), &[]);
        check(
            &json!({"handler": "other"}),
            Some(&class),
            &["handler: Invalid value: \"other\": field is immutable"],
        );
        check(&json!({}), None, &["handler: Required value"]);
        let mut errors = Errors::default();
        validate(&json!({"handler": "A_b"}), None, &mut errors);
        assert!(errors.iter().next().unwrap().to_string().starts_with("handler: Invalid value: \"A_b\": "));
        let twice = json!({"key": "gpu", "operator": "Exists"});
        check(
            &json!({"handler": "a", "scheduling": {"tolerations": [twice, twice]}}),
            None,
            &["scheduling.tolerations[1]: Duplicate value: {\"key\":\"gpu\",\"operator\":\"Exists\"}"],
        );
        let mut errors = Errors::default();
        let bad = json!({"handler": "a", "overhead": {"podFixed": {"cpu": "-1", "x": "1"}}, "scheduling": {"nodeSelector": {"a b": ""}}});
        validate(&bad, None, &mut errors);
        let fields: Vec<String> =
            errors.iter().map(|error| error.to_string().split(": ").next().unwrap().to_owned()).collect();
        for field in ["overhead.limits[cpu]", "overhead.limits[x]", "scheduling.nodeSelector"] {
            assert!(fields.iter().any(|found| found == field), "{field}: {fields:?}");
        }
    }
}
