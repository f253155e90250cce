//! ServiceAccount: who a pod is. Every namespace has one named `default`, made (and made again) by `accounts`.
//!
//! The hub issues no tokens yet, so none is mounted into pods by itself.

use serde_json::Value;

use super::table::{Column, age, count};
use super::{ALL_VERBS, Kind, meta, no_defaults, no_rules, no_warnings, text};

/// core/v1 ServiceAccount.
pub static SERVICE_ACCOUNT: Kind = Kind {
    group: "",
    version: "v1",
    kind: "ServiceAccount",
    plural: "serviceaccounts",
    singular: "serviceaccount",
    short_names: &["sa"],
    categories: &[],
    namespaced: true,
    verbs: ALL_VERBS,
    status: false,
    status_on_create: false,
    generation: false,
    unconditional_update: true,
    create_on_update: false,
    type_name: "core/v1/ServiceAccount",
    name_rule: meta::NameRule::Subdomain,
    volatile: &[],
    selectable: &[],
    columns: &[Column::NAME, Column::integer("Secrets"), Column::AGE],
    cells,
    prepare: no_defaults,
    validate: no_rules,
    warnings: no_warnings,
};

fn cells(account: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    let secrets = count(&account["secrets"]);
    vec![text(account, &["metadata", "name"]).into(), secrets.into(), age(account, now)]
}
