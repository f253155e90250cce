//! The common vocabulary of agent and hub: the Kubernetes objects that both use, as plain serde types, and
//! the rules for names and texts.
//!
//! Owns: field names and their JSON spelling, the names both sides must agree on, the two time formats of the
//! API, and the syntax of names and labels. Always holds: a type here can be read from any Kubernetes API
//! server, ours or not; fields it does not name are ignored, so none of these types is ever written back
//! whole over an object that another client may have extended: send patches. Leaves to others: validation and
//! defaulting of objects (the hub), deciding (the agent's core). The hub keeps objects as JSON and only
//! borrows these views of them.

mod config_map;
mod distance;
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
pub mod serial;
pub mod sort;
mod text;
mod time;
pub mod yaml;

pub use config_map::ConfigMap;
pub use distance::distance;
pub use event::{Event, EventSource, ObjectReference};
pub use identity::{
    ADMIN_GROUP, AUTHENTICATED_GROUP, BOOTSTRAP_GROUP, BOOTSTRAP_USER_PREFIX, CLIENT_SIGNER, NODE_GROUP,
    NODE_SIGNER, NODE_USER_PREFIX, SERVING_SIGNER,
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

/// Kind of an object that is shown without anything but its metadata.
pub const METADATA_KIND: &str = "PartialObjectMetadata";
/// The annotation that replaces `spec.configSource` on an API server that drops that field (every server but
/// our hub).
pub const CONFIG_SOURCE_ANNOTATION: &str = "kedge.dev/config-source";
/// The annotation that replaces `status.config` on an API server that drops that field.
pub const CONFIG_STATUS_ANNOTATION: &str = "kedge.dev/config-status";
/// The annotation in which a node reports the set of certificate authorities that it trusts, by the set's
/// digest.
pub const AUTHORITIES_ANNOTATION: &str = "kedge.dev/authorities";
/// The annotation in which the hub names the set of certificate authorities that a node is to trust, by the
/// set's digest; the set is in `kube-public/cluster-info`.
pub const TRUST_ANNOTATION: &str = "kedge.dev/trust";
/// The annotation by which an administrator makes a node forget its verdicts on the ConfigMap with this UID.
/// On our hub a node may not write it.
pub const FORGIVE_ANNOTATION: &str = "kedge.dev/forgive";
/// The annotation by which an administrator's own test keeps a node from making a configuration, and the
/// system under it, last-known-good: any text, for people. On our hub a node may not write it.
pub const HOLD_PROMOTION_ANNOTATION: &str = "kedge.dev/hold-promotion";
/// The annotation in which a node shows the digests of the system, or the agent, that it runs, that it is to
/// run, and that is last-known-good's, and how far the update is: an object in JSON.
pub const SYSTEM_ANNOTATION: &str = "kedge.dev/system";
/// The annotation by which an administrator ends a node for good: the UID of the Node, or that and `,wipe`.
/// On our hub a node may not write it.
pub const DECOMMISSION_ANNOTATION: &str = "kedge.dev/decommission";
/// The condition of a node that is being ended so; True once nothing is left on it but its identity.
pub const DECOMMISSIONED: &str = "Decommissioned";
/// The annotation with the API server that a node uses, if its configuration names several.
pub const SERVER_ANNOTATION: &str = "kedge.dev/server";
/// The annotation by which an administrator has a node's certificate exchanged: a number; certificates up to
/// this issue number are. On our hub a node may not write it.
pub const ROTATE_ANNOTATION: &str = "kedge.dev/rotate";
/// The annotation by which a ConfigRollout marks a node whose configuration it assigned: the rollout's name,
/// `@`, and that of the ConfigMap. On Kedge's hub a node may not write it.
pub const ROLLOUT_ANNOTATION: &str = "fleet.kedge.dev/rollout";
/// The condition that shows which configuration a node uses and whether it is the requested one.
pub const CONFIG_OK: &str = "ConfigOK";
/// The condition that shows whether the disk with the node's state has stopped responding. A node without
/// such an incident does not have it.
pub const DISK_STALLED: &str = "DiskStalled";
/// The condition that shows whether two machines renew the Lease of one node: their disk was copied with its
/// credential (our hub only). A node that never had a double does not have it.
pub const DUPLICATE_IDENTITY: &str = "DuplicateIdentity";
/// The reason of our hub's 409 for a status of the machine that came second.
pub const DUPLICATE: &str = "Duplicate";
/// On the first request of each connection of a node: the first eight bytes of the machine's boot id, in
/// hexadecimal. Our hub tells two machines with one credential apart by it; other servers ignore it.
pub const BOOT_HEADER: &str = "kedge-boot";
/// The condition that shows whether a crash loop of the agent holds the pods of a node. A node without such
/// an incident does not have it.
pub const PODS_HELD: &str = "PodsHeld";
/// The condition of a node that runs from a disk image without a hardware watchdog. A node that always had a
/// watchdog does not have it.
pub const WATCHDOG_MISSING: &str = "WatchdogMissing";
/// The condition that shows whether a node runs the disk image that it was given last.
pub const IMAGE_OK: &str = "ImageOK";
/// Condition of a Node: whether it runs the system that its configuration wants.
pub const SYSTEM_OK: &str = "SystemOK";
/// The label with the hardware watchdog of a disk image's board, by its driver's name, or `none`.
pub const WATCHDOG_LABEL: &str = "kedge.dev/watchdog";
/// The label, and the annotation, with the slot of a disk image that a node runs: `a` or `b`. Nodes can be
/// selected by the label, but an operator may set it by a flag; the annotation is written by the node itself.
pub const SLOT: &str = "kedge.dev/slot";
/// The namespace of node Leases (`v1.NamespaceNodeLease`).
pub const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";
/// The namespace of events about cluster-scoped objects, as in upstream's clients.
pub const CLUSTER_EVENT_NAMESPACE: &str = "default";
/// In the answer to a node's renewal: the latest resourceVersion at which somebody else changed an object
/// that the node follows (our hub only).
pub const DESIRED_HEADER: &str = "kedge-desired";
/// On a bookmark of a node's watch of its own Node: the ids of the calls that wait for the node, separated by
/// commas (our hub only).
pub const CALLS_ANNOTATION: &str = "kedge.dev/calls";
/// The same in the answer to a node's renewal.
pub const CALLS_HEADER: &str = "kedge-call";
/// The protocol of a connection by which a node takes a call: after the upgrade the hub is the client of the
/// kubelet's API.
pub const SESSION_UPGRADE: &str = "kedge-session";
/// The protocol of a connection to a port of a pod: after the upgrade the bytes are the program's.
pub const POD_PORT_UPGRADE: &str = "kedge-pod-port";
/// How long an agent measures processor time to answer a request for its node's usage.
pub const USAGE_WINDOW: core::time::Duration = core::time::Duration::from_secs(1);
/// The media type of a patch that renews a node's own Lease: the body is only the time,
/// `2006-01-02T15:04:05.000000Z`, and the answer has no body (our hub only, which offers it in
/// `Accept-Patch`).
pub const RENEWAL_MEDIA: &str = "text/vnd.kedge.renewal";
/// The condition of a node whose kernel lacks a controller that limits of pods need, and the reason of Events
/// about pods that set such a limit.
pub const LIMITS_NOT_KEPT: &str = "LimitsNotKept";
/// The taint of an unready node.
pub const NOT_READY_TAINT: &str = "node.kubernetes.io/not-ready";
/// The reason of a `Ready` that is false because no container can begin on the node, and of pods that it
/// rejects for that.
pub const NO_CONTAINER_RUNTIME: &str = "NoContainerRuntime";
/// The taint of such a node, and of one that is to run no pods.
pub const NO_RUNTIME_TAINT: &str = "kedge.dev/no-container-runtime";
/// The taint of a silent node.
pub const UNREACHABLE_TAINT: &str = "node.kubernetes.io/unreachable";
/// The annotation of a static pod, and of its mirror, with the path of its file.
pub const STATIC_PATH_ANNOTATION: &str = "kedge.dev/static-path";
/// Prefix of the name of the volume that an API server adds to pods for the token of their service account.
pub const AUTOMOUNTED_VOLUME_PREFIX: &str = "kube-api-access-";
/// The mark in `gitVersion` of our hub's `/version`, by which an agent recognises the hub.
pub const HUB_VERSION_MARK: &str = "+kedge";
/// The version, major and minor, of the Kubernetes API that the hub serves and agents use; both report it,
/// because kubectl and other tools warn when the versions are further apart than they support.
/// `hub/core/schema/extract.py` reads the fields of this version.
pub const KUBERNETES_VERSION: (u32, u32) = (1, 36);
