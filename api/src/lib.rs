//! The Kubernetes objects that both sides speak, as plain serde types.
//!
//! Owns: field names and their JSON spelling, and the two time formats of the API. Always holds: a type here can be
//! read from any Kubernetes API server, ours or not; fields it does not name are ignored, so none of these types is
//! ever written back whole over an object that somebody else may have extended: send patches. Leaves to others:
//! validation and defaulting (the hub), deciding (the agent's core). The hub keeps objects as JSON and only borrows
//! these views of them.

mod config_map;
mod event;
mod lease;
mod meta;
mod node;
mod status;
mod time;
mod watch;

pub use config_map::ConfigMap;
pub use event::{Event, EventSource, ObjectReference};
pub use lease::{Lease, LeaseSpec, NODE_LEASE_NAMESPACE};
pub use meta::{ListMeta, ObjectMeta, OwnerReference};
pub use node::{
    ConfigMapNodeConfigSource, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeConfigSource,
    NodeConfigStatus, NodeDaemonEndpoints, NodeSpec, NodeStatus, NodeSystemInfo, Taint,
};
pub use status::{Status, StatusCause, StatusDetails};
pub use time::{Timestamp, TimestampError};
pub use watch::{WatchEvent, WatchEventType};

/// The annotation that carries `spec.configSource` where the API server drops that field (every server but our hub).
pub const CONFIG_SOURCE_ANNOTATION: &str = "kedge.dev/config-source";
/// The annotation that mirrors `status.config` where the API server drops that field.
pub const CONFIG_STATUS_ANNOTATION: &str = "kedge.dev/config-status";
/// The condition that says which configuration a node uses and whether that is the one asked for.
pub const CONFIG_OK: &str = "ConfigOK";
/// What our hub's `/version` adds to its `gitVersion`, so that an agent knows it talks to one.
pub const HUB_VERSION_MARK: &str = "+kedge";
