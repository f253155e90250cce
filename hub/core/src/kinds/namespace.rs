//! Namespace. Deleting one marks it Terminating; the controller `namespaces` empties it and then removes it.

use kedge_api::NODE_LEASE_NAMESPACE;
use serde_json::{Value, json};

use super::kind::{Kind, Selectable};
use super::table::{Column, age};
use super::{meta, names};
use crate::field_error::{FieldError, FieldErrors};
use crate::pod_security::policy;
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
            let finalizers = &mut new["spec"]["finalizers"];
            match finalizers.as_array_mut() {
                Some(given) if given.iter().any(|given| given == FINALIZER) => {}
                Some(given) => given.push(FINALIZER.into()),
                None => *finalizers = json!([FINALIZER]),
            }
            new["status"] = json!({"phase": "Active"});
        }
        // as upstream, finalizers change only through the finalize subresource
        Some(old) => new["spec"] = old["spec"].clone(),
    }
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
    policy::label_errors(new, old).into_iter().for_each(|error| errors.push(error));
    let finalizers = new["spec"]["finalizers"].as_array().map_or(&[][..], Vec::as_slice);
    for (index, finalizer) in finalizers.iter().filter_map(Value::as_str).enumerate() {
        // upstream names the place only where they change later
        let path =
            if old.is_none() { "spec.finalizers".to_owned() } else { format!("spec.finalizers[{index}]") };
        if let Some(complaint) = names::qualified_name_complaint(finalizer) {
            errors.push(FieldError::invalid(path, finalizer, &complaint));
        } else if !meta::STANDARD_FINALIZERS.contains(&finalizer) && !finalizer.contains('/') {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(path, finalizer, why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_finalizers_stay_beside_the_hubs() {
        let made = |finalizers: Value| {
            let mut namespace = json!({"metadata": {"name": "n"}, "spec": {"finalizers": finalizers}});
            prepare(&mut namespace, None);
            namespace["spec"]["finalizers"].clone()
        };
        assert_eq!(made(Value::Null), json!(["kubernetes"]));
        assert_eq!(made(json!(["a.dev/b"])), json!(["a.dev/b", "kubernetes"]));
        assert_eq!(made(json!(["kubernetes", "a.dev/b"])), json!(["kubernetes", "a.dev/b"]));
        let mut changed = json!({"metadata": {"name": "n"}, "spec": {"finalizers": ["a.dev/b"]}});
        prepare(&mut changed, Some(&json!({"spec": {"finalizers": ["kubernetes"]}})));
        assert_eq!(changed["spec"]["finalizers"], json!(["kubernetes"]), "only finalize changes them");
    }

    #[test]
    fn finalizers_are_standard_or_have_a_domain() {
        let check = |finalizer: &str, old: Option<&Value>, expect: &[&str]| {
            let namespace = json!({"spec": {"finalizers": [finalizer]}});
            let mut errors = FieldErrors::default();
            validate(&namespace, old, &mut errors);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
        };
        for good in ["kubernetes", "orphan", "foregroundDeletion", "a.dev/b"] {
            check(good, None, &[]);
        }
        let why =
            "Invalid value: \"nope\": name is neither a standard finalizer name nor is it fully qualified";
        check("nope", None, &[&format!("spec.finalizers: {why}")]);
        check("nope", Some(&json!({})), &[&format!("spec.finalizers[0]: {why}")]);
    }
}
