//! The list of pods of the API server.

use crate::pods::event::PodEvent;
use serde_json::Value;
use std::collections::BTreeMap;

/// Events of the API server from before the desired set on disk was read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Early {
    pub(crate) node_uid: Option<String>,
    /// By UID.
    pub(crate) pods: BTreeMap<String, Value>,
}

impl Early {
    pub(crate) fn take(&mut self, news: PodEvent) {
        let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        match news {
            PodEvent::PodsListed { node_uid, pods } => {
                self.node_uid = Some(node_uid);
                self.pods = pods.into_iter().map(|object| (uid(&object), object)).collect();
            }
            PodEvent::PodSeen(object) => {
                self.pods.insert(uid(&object), object);
            }
            PodEvent::PodGone(object) => {
                self.pods.remove(&uid(&object));
            }
            _ => {}
        }
    }
}
