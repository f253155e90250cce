//! PodDisruptionBudget: how many of the selected pods must stay when pods are evicted.
//!
//! Validation and texts are upstream's. Left to others: the arithmetic (`disruption`), the status
//! (`controllers::disruptions`), judging an eviction (the server).

use serde_json::Value;

use super::kind::Kind;
use super::rules::{self, Errors};
use super::table::{Column, age};
use crate::field_error::FieldError;
use crate::value::{at, text};

/// The two forms of a budget; one of them may be given.
const FORMS: [&str; 2] = ["minAvailable", "maxUnavailable"];

/// policy/v1 PodDisruptionBudget.
pub static DISRUPTION_BUDGET: Kind = Kind {
    group: "policy",
    kind: "PodDisruptionBudget",
    plural: "poddisruptionbudgets",
    singular: "poddisruptionbudget",
    short_names: &["pdb"],
    status: true,
    generation: true,
    unconditional_update: false,
    type_name: "policy/v1/PodDisruptionBudget",
    columns: &[
        Column::NAME,
        Column::text("Min Available"),
        Column::text("Max Unavailable"),
        Column::integer("Allowed Disruptions"),
        Column::AGE,
    ],
    cells,
    convert,
    validate,
    warnings,
    ..Kind::USUAL
};

fn cells(budget: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    let form = |field: &str| match &budget["spec"][field] {
        Value::Null => "N/A".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    vec![
        text(budget, &["metadata", "name"]).into(),
        form(FORMS[0]).into(),
        form(FORMS[1]).into(),
        budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0).into(),
        age(budget, now),
    ]
}

/// Upstream writes these numbers also if they are zero.
fn convert(budget: &mut Value) {
    if let Some(status) = budget.get_mut("status").and_then(Value::as_object_mut) {
        for number in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
            status.entry(number).or_insert_with(|| 0.into());
        }
    }
}

/// The number of a percentage.
pub fn percent(value: &Value) -> Option<i64> {
    let digits = value.as_str()?.strip_suffix('%')?;
    let good = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    // upstream takes a number beyond all bounds for too great, too
    good.then(|| digits.parse().unwrap_or(i64::MAX))
}

fn validate(new: &Value, _: Option<&Value>, errors: &mut Errors) {
    let spec = &new["spec"];
    if FORMS.iter().all(|form| at(spec, &[form]).is_some()) {
        let why = "minAvailable and maxUnavailable cannot be both set";
        errors.push(FieldError::invalid("spec", spec.clone(), why));
    }
    for form in FORMS {
        let path = format!("spec.{form}");
        match (&spec[form], percent(&spec[form])) {
            (Value::String(text), None) => {
                let why = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
                errors.push(FieldError::invalid(path, text.as_str(), why));
            }
            (value, Some(percent)) if percent > 100 => {
                errors.push(FieldError::invalid(path, value.clone(), "must not be greater than 100%"));
            }
            _ => rules::not_negative(spec, form, "spec", errors),
        }
    }
    rules::label_selector(&spec["selector"], "spec.selector", errors);
    let policies = ["AlwaysAllow", "IfHealthyBudget"];
    rules::optional_one_of(spec, "unhealthyPodEvictionPolicy", &policies, "spec", errors);
    for (field, _) in rules::entries(new, "status") {
        rules::not_negative(&new["status"], field, "status", errors);
    }
}

fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let spec = &new["spec"];
    let needs_scale = at(spec, &["maxUnavailable"]).is_some() || percent(&spec["minAvailable"]).is_some();
    let why = "spec.maxUnavailable and percentages are of the replicas of the pods' owners, and nothing here has replicas: \
               no healthy pod of this budget is evicted; give spec.minAvailable a whole number";
    let changed = old.is_none_or(|old| old["spec"] != *spec);
    (needs_scale && changed).then(|| why.to_owned()).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(spec: Value, expect: &[&str]) {
        let mut errors = Errors::default();
        validate(&json!({"spec": spec}), None, &mut errors);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect, "{spec}");
    }

    #[test]
    fn budget_is_a_number_or_a_percentage_of_one_form() {
        for value in [json!(0), json!(7), json!("0%"), json!("100%")] {
            check(json!({"minAvailable": value}), &[]);
            check(
                json!({"maxUnavailable": value, "selector": {}, "unhealthyPodEvictionPolicy": "AlwaysAllow"}),
                &[],
            );
        }
        check(json!({}), &[]);
        let both = "spec: Invalid value: {\"maxUnavailable\":1,\"minAvailable\":1}: minAvailable and maxUnavailable cannot be both set";
        check(json!({"minAvailable": 1, "maxUnavailable": 1}), &[both]);
        check(
            json!({"minAvailable": -1}),
            &["spec.minAvailable: Invalid value: -1: must be greater than or equal to 0"],
        );
        for value in ["101%", "99999999999999999999%"] {
            let why = format!("spec.maxUnavailable: Invalid value: {value:?}: must not be greater than 100%");
            check(json!({"maxUnavailable": value}), &[&why]);
        }
        for value in ["", "1", "%", "-1%", "1.5%"] {
            let mut errors = Errors::default();
            validate(&json!({"spec": {"minAvailable": value}}), None, &mut errors);
            let found = errors.iter().next().unwrap().to_string();
            assert!(found.contains("a valid percent string must be a numeric string"), "{value}: {found}");
        }
        check(
            json!({"unhealthyPodEvictionPolicy": "Never"}),
            &[
                "spec.unhealthyPodEvictionPolicy: Unsupported value: \"Never\": supported values: \"AlwaysAllow\", \"IfHealthyBudget\"",
            ],
        );
    }

    #[test]
    fn budget_that_needs_replicas_is_answered_with_a_warning() {
        let of = |spec: Value| json!({"spec": spec});
        for (spec, warned) in [
            (json!({"minAvailable": 1}), false),
            (json!({"minAvailable": "50%"}), true),
            (json!({"maxUnavailable": 1}), true),
            (json!({}), false),
        ] {
            assert_eq!(warnings(&of(spec.clone()), None).len(), usize::from(warned), "{spec}");
            assert!(warnings(&of(spec.clone()), Some(&of(spec))).is_empty());
        }
    }
}
