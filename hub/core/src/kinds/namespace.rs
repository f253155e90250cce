//! Namespace. Deleting one marks it Terminating; the controller `namespaces` empties it and then removes it.

use kedge_api::NODE_LEASE_NAMESPACE;
use serde_json::{Value, json};

use super::kind::{Kind, Selectable};
use super::names;
use super::table::{Column, age};
use crate::field_error::{FieldError, FieldErrors};
use crate::pod_security;
use crate::value::text;

/// Namespaces that the hub creates by itself.
pub const SYSTEM: [&str; 4] = ["default", "kube-system", "kube-public", NODE_LEASE_NAMESPACE];
/// Namespaces that cannot be deleted: upstream's, and `kube-node-lease`, which holds the heartbeats.
pub const PROTECTED: [&str; 4] = SYSTEM;
/// The finalizer of the hub's own controller in `spec.finalizers`.
pub const FINALIZER: &str = "kubernetes";
/// Every namespace carries its own name under this label.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// core/v1 Namespace.
pub static NAMESPACE: Kind = Kind {
    kind: "Namespace",
    plural: "namespaces",
    singular: "namespace",
    short_names: &["ns"],
    namespaced: false,
    verbs: &["create", "delete", "get", "list", "patch", "update", "watch"],
    status: true,
    type_name: "core/v1/Namespace",
    name_rule: names::NameRule::Label,
    selectable: &[Selectable {
        label: "status.phase",
        value: |namespace| text(namespace, &["status", "phase"]).to_owned(),
    }],
    columns: &[Column::NAME, Column::text("Status"), Column::AGE],
    cells,
    prepare,
    validate,
    admitted: &[&["spec", "finalizers"]],
    ..Kind::USUAL
};

fn cells(namespace: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    let phase = text(namespace, &["status", "phase"]);
    vec![text(namespace, &["metadata", "name"]).into(), phase.into(), age(namespace, now)]
}

fn prepare(new: &mut Value, old: Option<&Value>) {
    let name = text(new, &["metadata", "name"]).to_owned();
    new["metadata"]["labels"][NAME_LABEL] = name.into();
    match old {
        None => {
            new["spec"]["finalizers"] = json!([FINALIZER]);
            new["status"] = json!({"phase": "Active"});
        }
        // as upstream, finalizers change only through the finalize subresource
        Some(old) => new["spec"] = old["spec"].clone(),
    }
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
    pod_security::label_errors(new, old).into_iter().for_each(|error| errors.push(error));
    let finalizers = new["spec"]["finalizers"].as_array().map_or(&[][..], Vec::as_slice);
    for (index, finalizer) in finalizers.iter().filter_map(Value::as_str).enumerate() {
        let path = format!("spec.finalizers[{index}]");
        if let Some(complaint) = names::qualified_name_complaint(finalizer) {
            errors.push(FieldError::invalid(path, finalizer, &complaint));
        } else if finalizer != FINALIZER && !finalizer.contains('/') {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(path, finalizer, why));
        }
    }
}
