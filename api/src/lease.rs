//! The Lease: a node's heartbeat, small on purpose and apart from its status.

use crate::ObjectMeta;
use serde::{Deserialize, Serialize};

/// Where node Leases live (`v1.NamespaceNodeLease`).
pub const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";

/// `coordination.k8s.io/v1 Lease`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Lease {
    /// Name of the node; owned by its Node object.
    pub metadata: ObjectMeta,
    /// Who holds it and until when.
    pub spec: LeaseSpec,
}

/// `LeaseSpec`. Times are `MicroTime` texts: nobody here compares them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpec {
    /// Name of the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub holder_identity: String,
    /// Seconds after which an unrenewed Lease may be judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_duration_seconds: Option<i32>,
    /// When the holder last renewed it, by the holder's clock.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub renew_time: String,
}
