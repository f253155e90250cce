//! ServiceAccount: the identity of a pod. Every namespace has one named `default`, which `accounts` creates and recreates.
//!
//! The hub issues no tokens yet, so none is mounted into pods by itself.

use serde_json::Value;

use super::kind::Kind;
use super::table::{Column, age, count};
use crate::value::text;

/// core/v1 ServiceAccount.
pub static SERVICE_ACCOUNT: Kind = Kind {
    kind: "ServiceAccount",
    plural: "serviceaccounts",
    singular: "serviceaccount",
    short_names: &["sa"],
    type_name: "core/v1/ServiceAccount",
    columns: &[Column::NAME, Column::integer("Secrets"), Column::AGE],
    cells,
    ..Kind::USUAL
};

fn cells(account: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    let secrets = count(&account["secrets"]);
    vec![text(account, &["metadata", "name"]).into(), secrets.into(), age(account, now)]
}
