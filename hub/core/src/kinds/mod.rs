//! The table of served kinds. A kind is one [`Kind`] entry; the store, the verbs, discovery, tables and
//! OpenAPI are generic over it, so serving another kind means another entry here (and its rules in a file
//! beside).
//!
//! Always holds: entries are statics, compared by [`Kind::resource_name`]; rules see only values that passed
//! [`schema::conform`]. Left to others: authorization (`identity`), and actions after a write
//! (`controllers`).

mod absent;
pub mod certificate_request;
pub mod config_map;
pub mod config_rollout;
pub mod controller_revision;
pub mod daemon_set;
pub mod disruption_budget;
pub mod event;
mod event_view;
mod internal;
pub mod kind;
pub mod lease;
pub mod meta;
pub mod names;
pub mod namespace;
pub mod node;
pub mod pod;
pub mod pod_spec;
mod pod_status;
pub mod priority_class;
pub mod rbac;
pub mod rules;
pub mod runtime_class;
pub mod schema;
pub mod secret;
pub mod service;
pub mod service_account;
pub mod table;

use serde_json::Value;

pub use crate::value::{at, text};
pub use absent::absent;
pub use certificate_request::CERTIFICATE_REQUEST;
pub use config_map::CONFIG_MAP;
pub use config_rollout::CONFIG_ROLLOUT;
pub use controller_revision::CONTROLLER_REVISION;
pub use daemon_set::DAEMON_SET;
pub use disruption_budget::DISRUPTION_BUDGET;
pub use event::EVENT;
pub use event_view::EVENT_VIEW;
pub use internal::{CREDENTIAL, HUB_STATE};
pub use kind::{ALL_VERBS, BINDING, Kind, Selectable, Subresource, View};
pub use lease::LEASE;
pub use namespace::NAMESPACE;
pub use node::NODE;
pub use pod::POD;
pub use priority_class::PRIORITY_CLASS;
pub use rbac::{CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING};
pub use runtime_class::RUNTIME_CLASS;
pub use secret::SECRET;
pub use service::SERVICE;
pub use service_account::SERVICE_ACCOUNT;

/// Every kind that has objects of its own, in the order of discovery; those that are not served come last.
pub static KINDS: &[&Kind] = &[
    &CONFIG_MAP,
    &EVENT,
    &NAMESPACE,
    &NODE,
    &POD,
    &SECRET,
    &SERVICE,
    &SERVICE_ACCOUNT,
    &CONTROLLER_REVISION,
    &DAEMON_SET,
    &CERTIFICATE_REQUEST,
    &DISRUPTION_BUDGET,
    &CLUSTER_ROLE_BINDING,
    &CLUSTER_ROLE,
    &ROLE_BINDING,
    &ROLE,
    &PRIORITY_CLASS,
    &LEASE,
    &RUNTIME_CLASS,
    &CONFIG_ROLLOUT,
    &CREDENTIAL,
    &HUB_STATE,
];

/// Makes a field and the first item of a list beside it, in `part`, equal. The field wins if they differ.
pub(crate) fn mirror_first(
    object: &mut Value,
    part: &str,
    one: &str,
    many: &str,
    to_item: impl Fn(&str) -> Value,
    of_item: impl Fn(&Value) -> String,
) {
    let Some(fields) = object.get_mut(part).and_then(Value::as_object_mut) else { return };
    let single = fields.get(one).and_then(Value::as_str).unwrap_or("").to_owned();
    let first = fields.get(many).and_then(Value::as_array).and_then(|list| list.first()).map(of_item);
    match first {
        Some(first) if single.is_empty() => drop(fields.insert(one.to_owned(), first.into())),
        Some(first) if first == single => {}
        _ if single.is_empty() => {}
        _ => drop(fields.insert(many.to_owned(), Value::Array(vec![to_item(&single)]))),
    }
}

/// Other types of the objects of [`KINDS`].
pub static VIEWS: &[&Kind] = &[&EVENT_VIEW];

/// All kinds that clients find in discovery: those of [`KINDS`], then [`VIEWS`].
pub fn served() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().chain(VIEWS).copied().filter(|kind| kind.served)
}

/// The position of a kind in the table.
pub fn index_of(kind: &Kind) -> usize {
    KINDS
        .iter()
        .position(|known| known.kind == kind.kind && known.group == kind.group)
        .expect("kinds are statics of the table")
}

/// The kind of this group, version and resource.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    served().find(|kind| kind.group == group && kind.version == version && kind.plural == plural)
}

/// The kind of this resource name (`nodes`, `leases.coordination.k8s.io`; the bare plural is enough while it
/// is unique).
pub fn by_resource(resource: &str) -> Option<&'static Kind> {
    let plural = resource.split('.').next().unwrap_or(resource);
    KINDS
        .iter()
        .copied()
        .find(|kind| kind.plural == plural && (resource == plural || kind.resource_name() == resource))
}

/// The group versions that are served, core first.
pub fn group_versions() -> Vec<(&'static str, &'static str)> {
    let mut found = Vec::new();
    for kind in served() {
        if !found.contains(&(kind.group, kind.version)) {
            found.push((kind.group, kind.version));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn every_kind_has_a_type_and_a_cell_per_column() {
        for kind in served() {
            for name in [kind.kind, kind.plural, kind.singular] {
                assert!(!name.is_empty(), "{}", kind.type_name);
            }
            assert!(schema::find(kind.type_name).is_some(), "{}", kind.type_name);
            let cells = (kind.cells)(&serde_json::json!({}), time::OffsetDateTime::UNIX_EPOCH);
            assert_eq!(cells.len(), kind.columns.len(), "{}", kind.kind);
            let stored = kind.stored();
            assert_eq!(by_resource(&stored.resource_name()).map(|found| found.kind), Some(stored.kind));
        }
    }

    #[test]
    fn records_of_the_hub_are_not_served() {
        for kind in [&CREDENTIAL, &HUB_STATE] {
            assert!(KINDS.iter().any(|stored| stored.kind == kind.kind), "{}", kind.kind);
            assert!(find(kind.group, kind.version, kind.plural).is_none(), "{}", kind.kind);
            assert!(!group_versions().contains(&(kind.group, kind.version)), "{}", kind.kind);
            assert!(schema::find(kind.type_name).is_some(), "{}", kind.kind);
        }
    }

    #[test]
    fn object_has_the_fields_that_upstream_always_writes() {
        let check = |kind: &Kind, mut value: Value, expect: Value| {
            kind.complete(&mut value);
            assert_eq!(value, expect, "{}", kind.kind);
        };
        check(&CONFIG_MAP, json!({}), json!({}));
        check(&LEASE, json!({}), json!({"spec": {}}));
        check(&NODE, json!({"spec": {"a": 1}}), json!({"spec": {"a": 1}, "status": {}}));
        let zeros = json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 2});
        check(
            &DAEMON_SET,
            json!({"status": {"numberReady": 2}}),
            json!({"spec": {}, "status": zeros.clone()}),
        );
        let one_name = |fields: Value| json!({"spec": {"template": {"spec": fields}}, "status": zeros});
        let both = json!({"serviceAccount": "a", "serviceAccountName": "a"});
        check(&DAEMON_SET, one_name(json!({"serviceAccount": "a"})), one_name(both));
    }
}
