//! A store of given objects, for the tests of the authorizers.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::attributes::ClusterView;
use crate::kinds::{NODE, POD};
use crate::object::Reference;

/// A store of the objects given.
#[derive(Default)]
pub(crate) struct Objects(BTreeMap<String, Arc<Value>>);

impl Objects {
    pub(crate) fn with(mut self, resource: &str, namespace: &str, name: &str, mut object: Value) -> Objects {
        if !namespace.is_empty() {
            object["metadata"]["namespace"] = namespace.into();
        }
        self.0.insert(format!("{resource}/{namespace}/{name}"), Arc::new(object));
        self
    }
}

impl ClusterView for Objects {
    fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.0.get(&format!("{resource}/{namespace}/{name}")).cloned()
    }

    fn node_refers_to(&self, node: &str, object: &Reference) -> bool {
        let own = self.object("nodes", "", node).into_iter().map(|value| (&NODE, value));
        let pods = self.0.iter().filter(|(key, _)| key.starts_with("pods/"));
        let bound = pods.filter(|(_, pod)| pod["spec"]["nodeName"].as_str() == Some(node));
        own.chain(bound.map(|(_, pod)| (&POD, Arc::clone(pod))))
            .any(|(kind, value)| (kind.refers)(&value).contains(object))
    }
}
