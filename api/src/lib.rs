//! What agent and hub have in common: the Kubernetes objects that both speak, as plain serde types, and the rules for names
//! and texts.
//!
//! Owns: field names and their JSON spelling, the names both sides must agree on, the two time formats of the API, what names
//! and labels look like. Always holds: a type here can be read from any Kubernetes API server, ours or not; fields it does
//! not name are ignored, so none of these types is ever written back whole over an object that another client may have
//! extended: send patches. Leaves to others: validation and defaulting of objects (the hub), deciding (the agent's core).
//! The hub keeps objects as JSON and only borrows these views of them.

mod config_map;
mod event;
mod identity;
pub mod labels;
mod maintenance;
mod meta;
pub mod names;
mod node;
pub mod pod_numbers;
mod pull_ahead;
pub mod read;
mod text;
mod time;
pub mod yaml;

pub use config_map::ConfigMap;
pub use event::{Event, EventSource, ObjectReference};
pub use identity::{
    ADMIN_GROUP, AUTHENTICATED_GROUP, CLIENT_SIGNER, NODE_GROUP, NODE_SIGNER, NODE_USER_PREFIX,
    SERVING_SIGNER,
};
pub use maintenance::{MAINTENANCE_ANNOTATION, MOST_WINDOWS, MaintenanceWindows, Opening, WINDOW_EXPECTED};
pub use meta::{ObjectMeta, OwnerReference};
pub use node::{
    ConfigMapNodeConfigSource, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeConfigSource,
    NodeConfigStatus, NodeDaemonEndpoints, NodeSpec, NodeStatus, NodeSystemInfo, Taint,
};
pub use pull_ahead::{
    IMAGES_PULLED, ImageAhead, MOST_PULLED_AHEAD, PULL_AHEAD_ANNOTATION, PULLING, PullAhead,
};
pub use text::{excerpt, excerpt_of, head_of, percent_decoded, percent_encoded};
pub use time::{EARLIEST_NOW, LATEST_NOW, Timestamp, TimestampError};

/// Kind of an object that is shown by its metadata alone.
pub const METADATA_KIND: &str = "PartialObjectMetadata";
/// The annotation that carries `spec.configSource` where the API server drops that field (every server but our hub).
pub const CONFIG_SOURCE_ANNOTATION: &str = "kedge.dev/config-source";
/// The annotation that mirrors `status.config` where the API server drops that field.
pub const CONFIG_STATUS_ANNOTATION: &str = "kedge.dev/config-status";
/// The annotation by which an administrator has a node forget its verdicts on the ConfigMap with this UID. On our hub a node may not
/// write it.
pub const FORGIVE_ANNOTATION: &str = "kedge.dev/forgive";
/// The condition that says which configuration a node uses and whether that is the one asked for.
pub const CONFIG_OK: &str = "ConfigOK";
/// The condition that says whether the disk of the node's state has stopped answering. A node that never saw that has none.
pub const DISK_STALLED: &str = "DiskStalled";
/// The condition that says whether a crash loop of the agent holds the pods of a node. A node whose pods were never held has none.
pub const PODS_HELD: &str = "PodsHeld";
/// The condition of a node of a disk image that no watchdog of the hardware watches. A node that never lacked one has none.
pub const WATCHDOG_MISSING: &str = "WatchdogMissing";
/// The condition that says whether a node runs the disk image that it was given last.
pub const IMAGE_OK: &str = "ImageOK";
/// The label with the hardware watchdog of a disk image's board, as its driver calls it, or `none`.
pub const WATCHDOG_LABEL: &str = "kedge.dev/watchdog";
/// The label, and the annotation, with the slot of a disk image that a node runs: `a` or `b`. A label is what nodes are selected by, and
/// an operator may set it by a flag; the annotation is the node's own word.
pub const SLOT: &str = "kedge.dev/slot";
/// Where node Leases live (`v1.NamespaceNodeLease`).
pub const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";
/// Where events about cluster-scoped objects are kept, as upstream's clients do.
pub const CLUSTER_EVENT_NAMESPACE: &str = "default";
/// In the answer to a node's renewal: the latest resourceVersion at which somebody else changed what the node follows (our hub only).
pub const DESIRED_HEADER: &str = "kedge-desired";
/// On a bookmark of a node's watch of its own Node: the ids of the calls that wait for it, by commas (our hub only).
pub const CALLS_ANNOTATION: &str = "kedge.dev/calls";
/// The same in the answer to a node's renewal.
pub const CALLS_HEADER: &str = "kedge-call";
/// What a connection is upgraded to by which a node takes a call: after it the hub is the client of the kubelet's API.
pub const SESSION_UPGRADE: &str = "kedge-session";
/// What a request for a port of a pod is upgraded to: after it the bytes are the program's.
pub const POD_PORT_UPGRADE: &str = "kedge-pod-port";
/// How long an agent that is asked what its node uses measures to tell how fast it does.
pub const USAGE_WINDOW: core::time::Duration = core::time::Duration::from_secs(1);
/// The media type of a patch that renews a node's own Lease: the body is the time alone, `2006-01-02T15:04:05.000000Z`, and the answer has
/// none (our hub only, which offers it in `Accept-Patch`).
pub const RENEWAL_MEDIA: &str = "text/vnd.kedge.renewal";
/// The taint of a node that is not ready.
pub const NOT_READY_TAINT: &str = "node.kubernetes.io/not-ready";
/// The taint of a node that is silent.
pub const UNREACHABLE_TAINT: &str = "node.kubernetes.io/unreachable";
/// The annotation of a static pod, and of its mirror, with the path of its file.
pub const STATIC_PATH_ANNOTATION: &str = "kedge.dev/static-path";
/// How the name of the volume begins that an API server adds to pods for the token of their service account.
pub const AUTOMOUNTED_VOLUME_PREFIX: &str = "kube-api-access-";
/// What our hub's `/version` adds to its `gitVersion`, so that an agent knows it talks to one.
pub const HUB_VERSION_MARK: &str = "+kedge";
/// The Kubernetes version, major and minor, whose API the hub serves and agents speak, and which both report: kubectl and other
/// tools warn when the two are further apart than they support. `hub/core/schema/extract.py` reads the fields of this version.
pub const KUBERNETES_VERSION: (u32, u32) = (1, 36);
