//! The Node: the operator's wishes for a machine (`spec`) and the machine's report about itself (`status`).

use crate::{ObjectMeta, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// `v1.Node`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Node {
    /// Name, UID, labels, annotations.
    pub metadata: ObjectMeta,
    /// The desired state.
    pub spec: NodeSpec,
    /// The reported state.
    pub status: NodeStatus,
}

/// `v1.NodeSpec`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// As the server sent it, not yet validated: the node decides whether it is correct, empty or invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_source: Option<Value>,
    /// The machine's name at its provider.
    #[serde(rename = "providerID", skip_serializing_if = "String::is_empty")]
    pub provider_id: String,
    /// Keeps pods away.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// `kubectl cordon`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unschedulable: bool,
}

/// `v1.Taint`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    /// Name of the taint.
    pub key: String,
    /// Its value, often empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// NoSchedule, PreferNoSchedule or NoExecute.
    pub effect: String,
}

/// `v1.NodeStatus`, the parts an agent reports.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// Total resources.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: BTreeMap<String, String>,
    /// The part of the capacity that pods may use.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub allocatable: BTreeMap<String, String>,
    /// One per type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<NodeCondition>,
    /// How to reach the machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<NodeAddress>,
    /// Ports the agent serves.
    #[serde(skip_serializing_if = "NodeDaemonEndpoints::is_empty")]
    pub daemon_endpoints: NodeDaemonEndpoints,
    /// Names of features that not every node supports; servers before 1.35 drop the field.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub declared_features: Vec<String>,
    /// Facts about the machine.
    pub node_info: NodeSystemInfo,
    /// The configuration in use, for programs; `ConfigOK` is the same for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<NodeConfigStatus>,
}

/// `v1.NodeCondition`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeCondition {
    /// Ready, MemoryPressure, DiskPressure, PIDPressure, ConfigOK, ...
    #[serde(rename = "type")]
    pub condition_type: String,
    /// True, False or Unknown.
    pub status: String,
    /// When the node last checked it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Timestamp>,
    /// When it last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Timestamp>,
    /// The cause.
    pub reason: String,
    /// The effect.
    pub message: String,
}

/// `v1.NodeAddress`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAddress {
    /// InternalIP, Hostname, ...
    #[serde(rename = "type")]
    pub address_type: String,
    /// The address.
    pub address: String,
}

/// `v1.NodeDaemonEndpoints`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeDaemonEndpoints {
    /// Absent while the agent serves no port to the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubelet_endpoint: Option<DaemonEndpoint>,
}

impl NodeDaemonEndpoints {
    fn is_empty(&self) -> bool {
        self.kubelet_endpoint.is_none()
    }
}

/// `v1.DaemonEndpoint`; the capital P is upstream's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DaemonEndpoint {
    /// Port number.
    #[serde(rename = "Port")]
    pub port: i32,
}

/// `v1.NodeSystemInfo`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSystemInfo {
    /// `/etc/machine-id`.
    #[serde(rename = "machineID")]
    pub machine_id: String,
    /// The firmware's identity of the board.
    #[serde(rename = "systemUUID")]
    pub system_uuid: String,
    /// Changes with every boot.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// `uname -r`.
    pub kernel_version: String,
    /// PRETTY_NAME of os-release.
    pub os_image: String,
    /// Runtime and version, as in `containerd://1.7`.
    pub container_runtime_version: String,
    /// Version of the node agent.
    pub kubelet_version: String,
    /// Deprecated upstream, still required by its validation.
    pub kube_proxy_version: String,
    /// linux.
    pub operating_system: String,
    /// In Go's spelling: amd64, arm64, arm.
    pub architecture: String,
}

/// `v1.NodeConfigSource` in a status.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeConfigSource {
    /// The one form a status uses, whichever form the spec had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapNodeConfigSource>,
}

/// `v1.ConfigMapNodeConfigSource`, made concrete: UID and resourceVersion name one content.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigMapNodeConfigSource {
    /// Namespace of the ConfigMap.
    pub namespace: String,
    /// Name of the ConfigMap.
    pub name: String,
    /// UID of the ConfigMap.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Its version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// The key that holds the payload.
    pub kubelet_config_key: String,
}

/// `v1.NodeConfigStatus`. An absent source means the local config.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeConfigStatus {
    /// The configuration that the node will try to use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assigned: Option<NodeConfigSource>,
    /// The configuration that it uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<NodeConfigSource>,
    /// The configuration that it falls back to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_known_good: Option<NodeConfigSource>,
    /// Why assigned is not active; empty when all is well.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}
