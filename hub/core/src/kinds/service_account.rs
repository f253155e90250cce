//! ServiceAccount: the identity of a pod. Every namespace has one named `default`, which `accounts` creates
//! and recreates.
//!
//! Left to others: the parts that a pod gets from it (`requests::service_account`), and its tokens
//! (`identity::token`).

use super::kind::Kind;

/// core/v1 ServiceAccount.
pub static SERVICE_ACCOUNT: Kind = Kind {
    kind: "ServiceAccount",
    plural: "serviceaccounts",
    singular: "serviceaccount",
    short_names: &["sa"],
    shows_deleted: true,
    type_name: "core/v1/ServiceAccount",
    ..Kind::USUAL
};
