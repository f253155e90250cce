//! The hub's own records: stored, backed up and restored as objects, and never served.
//!
//! Always holds: no request reaches them, whoever sends it, so nobody sweeps them away by accident; a hub
//! that does not know such a kind keeps its rows. Their fields are texts below `data`, as those of a
//! ConfigMap. Left to others: the meaning of a record (`identity::credential`).

use super::kind::Kind;

/// The newest credential of each node; its name is the node's.
pub static CREDENTIAL: Kind =
    Kind { kind: "Credential", plural: "credentials", singular: "credential", ..RECORD };

/// The hub's own facts, for example the newest time that it trusted.
pub static HUB_STATE: Kind = Kind { kind: "HubState", plural: "hubstates", singular: "hubstate", ..RECORD };

/// The common part of all of them.
const RECORD: Kind = Kind {
    group: "hub.kedge.dev",
    namespaced: false,
    served: false,
    type_name: "core/v1/ConfigMap",
    ..Kind::USUAL
};
