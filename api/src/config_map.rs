//! The ConfigMap: it holds a configuration that is pushed to nodes.

use crate::ObjectMeta;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `v1.ConfigMap`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigMap {
    /// Name, namespace, UID, resourceVersion.
    pub metadata: ObjectMeta,
    /// Texts by key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, String>,
}
