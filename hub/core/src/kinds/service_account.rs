//! ServiceAccount: the identity of a pod. Every namespace has one named `default`, which `accounts` creates and recreates.
//!
//! The hub issues no tokens yet, so none is mounted into pods by itself.

use super::kind::Kind;

/// core/v1 ServiceAccount.
pub static SERVICE_ACCOUNT: Kind = Kind {
    kind: "ServiceAccount",
    plural: "serviceaccounts",
    singular: "serviceaccount",
    short_names: &["sa"],
    type_name: "core/v1/ServiceAccount",
    ..Kind::USUAL
};
