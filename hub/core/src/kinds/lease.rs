//! Lease: the heartbeat. A renewal (only `spec.renewTime` differs) is volatile: acknowledged from memory,
//! durable in batches.

use serde_json::Value;

use super::kind::Kind;
use super::rules;
use super::table::{Column, age};
use crate::field_error::{FieldError, FieldErrors};
use crate::value::text;

/// The strategy of coordinated leader election that Kubernetes itself defines; others have a domain.
const STRATEGY: &str = "OldestEmulationVersion";

/// coordination.k8s.io/v1 Lease. A PUT of a missing one creates it and a PUT without resourceVersion is
/// refused, as upstream.
pub static LEASE: Kind = Kind {
    group: "coordination.k8s.io",
    kind: "Lease",
    plural: "leases",
    singular: "lease",
    unconditional_update: false,
    create_on_update: true,
    type_name: "coordination/v1/Lease",
    any_finalizer: true,
    volatile: &[&["spec", "renewTime"]],
    columns: &[Column::NAME, Column::text("Holder"), Column::AGE],
    cells,
    validate,
    ..Kind::USUAL
};

fn cells(lease: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    let holder = text(lease, &["spec", "holderIdentity"]);
    vec![text(lease, &["metadata", "name"]).into(), holder.into(), age(lease, now)]
}

fn validate(new: &Value, _old: Option<&Value>, errors: &mut FieldErrors) {
    if let Some(duration) = new["spec"]["leaseDurationSeconds"].as_i64().filter(|duration| *duration <= 0) {
        errors.push(FieldError::invalid("spec.leaseDurationSeconds", duration, "must be greater than 0"));
    }
    if let Some(transitions) = new["spec"]["leaseTransitions"].as_i64().filter(|transitions| *transitions < 0)
    {
        let explained = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("spec.leaseTransitions", transitions, explained));
    }
    let strategy = text(new, &["spec", "strategy"]);
    if !strategy.contains('/') {
        rules::optional_one_of(&new["spec"], "strategy", &[STRATEGY], "spec", errors);
    } else {
        rules::label_key(strategy, "spec.strategy", errors);
    }
    if !text(new, &["spec", "preferredHolder"]).is_empty() && strategy.is_empty() {
        let why = "may only be specified if `strategy` is defined";
        errors.push(FieldError::forbidden("spec.preferredHolder", why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lease_has_sensible_numbers_and_a_strategy_for_its_holder() {
        let check = |spec: Value, expect: &[&str]| {
            let mut errors = FieldErrors::default();
            validate(&json!({"spec": spec}), None, &mut errors);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
        };
        check(json!({"leaseDurationSeconds": 40, "leaseTransitions": 0}), &[]);
        check(
            json!({"leaseDurationSeconds": 0, "leaseTransitions": -1, "preferredHolder": "a"}),
            &[
                "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
                "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
                "spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined",
            ],
        );
        check(json!({"strategy": "OldestEmulationVersion", "preferredHolder": "a"}), &[]);
    }
}
