//! A store of given objects, for the tests of the authorizers.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::attributes::ClusterView;

/// A store of the objects given.
#[derive(Default)]
pub(crate) struct Objects(BTreeMap<String, Arc<Value>>);

impl Objects {
    pub(crate) fn with(mut self, resource: &str, namespace: &str, name: &str, object: Value) -> Objects {
        self.0.insert(format!("{resource}/{namespace}/{name}"), Arc::new(object));
        self
    }
}

impl ClusterView for Objects {
    fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.0.get(&format!("{resource}/{namespace}/{name}")).cloned()
    }

    fn any_pod_on(&self, node: &str, namespace: &str, _: &str, is_meant: &dyn Fn(&Value) -> bool) -> bool {
        let prefix = format!("pods/{namespace}");
        let bound = |pod: &Value| pod["spec"]["nodeName"].as_str() == Some(node);
        self.0.iter().any(|(key, pod)| key.starts_with(&prefix) && bound(pod) && is_meant(pod))
    }
}
