//! A store of given objects, for the tests of the authorizers.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::attributes::ClusterView;
use crate::kinds::{CLUSTER_ROLE, CLUSTER_ROLE_BINDING, Kind, NODE, POD, ROLE_BINDING};
use crate::object::{Object, Reference};
use crate::state::Rights;

/// A store of the objects given.
#[derive(Default)]
pub(crate) struct Objects(BTreeMap<String, Arc<Value>>, Rights);

impl Objects {
    pub(crate) fn with(mut self, resource: &str, namespace: &str, name: &str, mut object: Value) -> Objects {
        if !namespace.is_empty() {
            object["metadata"]["namespace"] = namespace.into();
        }
        self.0.insert(format!("{resource}/{namespace}/{name}"), Arc::new(object));
        self
    }

    /// Adds a role or a binding, with the metadata `NAMESPACE/NAME`.
    pub(crate) fn with_right(mut self, kind: &Kind, place: &str, mut object: Value) -> Objects {
        let (namespace, name) = place.split_once('/').unwrap();
        object["metadata"]["namespace"] = namespace.into();
        object["metadata"]["name"] = name.into();
        self.1.change(kind, &Object::new(kind, &object, 1).unwrap(), true);
        self
    }

    /// Adds a ClusterRole of this name with these rules, bound to a user in a namespace (empty: everywhere).
    pub(crate) fn allow(self, user: &str, namespace: &str, name: &str, rules: Value) -> Objects {
        let binding = json!({
            "roleRef": {"kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "User", "name": user}],
        });
        let kind = if namespace.is_empty() { &CLUSTER_ROLE_BINDING } else { &ROLE_BINDING };
        self.with_right(&CLUSTER_ROLE, &format!("/{name}"), json!({ "rules": rules })).with_right(
            kind,
            &format!("{namespace}/{user}-{name}"),
            binding,
        )
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

    fn rights(&self, look: &mut dyn FnMut(&Rights)) {
        look(&self.1);
    }
}
