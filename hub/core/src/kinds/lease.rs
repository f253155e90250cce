//! Lease: the heartbeat. A renewal (only `spec.renewTime` differs) is volatile: acknowledged from memory, durable in batches.

use serde_json::Value;

use super::kind::Kind;
use super::table::{Column, age};
use crate::field_error::FieldError;
use crate::value::text;

/// coordination.k8s.io/v1 Lease. A PUT of a missing one creates it and a PUT without resourceVersion is refused, as upstream.
pub static LEASE: Kind = Kind {
    group: "coordination.k8s.io",
    kind: "Lease",
    plural: "leases",
    singular: "lease",
    unconditional_update: false,
    create_on_update: true,
    type_name: "coordination/v1/Lease",
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

fn validate(new: &Value, _old: Option<&Value>, errors: &mut Vec<FieldError>) {
    if let Some(duration) = new["spec"]["leaseDurationSeconds"].as_i64().filter(|duration| *duration <= 0) {
        errors.push(FieldError::invalid("spec.leaseDurationSeconds", duration, "must be greater than 0"));
    }
    if let Some(transitions) = new["spec"]["leaseTransitions"].as_i64().filter(|transitions| *transitions < 0)
    {
        let explained = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("spec.leaseTransitions", transitions, explained));
    }
}
