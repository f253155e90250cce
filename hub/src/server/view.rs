//! The hub's objects for the authorizers.
//!
//! Always holds: each question reads the object anew and is charged to the caller ([`View`]): large objects
//! that a node stores about itself make only its own requests more expensive. A node's right to read an
//! object is looked up in the table by which the node learns of changes (`state::Desired`): it may read the
//! objects that it follows, and no pod is parsed for that. Left to others: the decisions
//! (`kedge_hub_core::identity`).

use std::sync::Arc;

use kedge_hub_core::identity::ClusterView;
use kedge_hub_core::kinds;
use kedge_hub_core::object::Reference;
use kedge_hub_core::state::Rights;
use serde_json::Value;

use super::limits::Work;
use crate::Hub;

/// The objects for one caller; see the module.
pub(super) struct View<'a> {
    pub(super) hub: &'a Hub,
    /// Called with the work of each lookup.
    pub(super) charge: &'a (dyn Fn(Work) + Sync),
}

impl ClusterView for View<'_> {
    fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let object = self.hub.get(kinds::by_resource(resource)?, namespace, name)?;
        (self.charge)(Work::Parsed(object.json.len()));
        Some(Arc::new(object.value()))
    }

    fn node_refers_to(&self, node: &str, object: &Reference) -> bool {
        self.hub.node_refers_to(node, object)
    }

    fn rights(&self, look: &mut dyn FnMut(&Rights)) {
        self.hub.rights(look);
    }
}

/// Without a charge: for questions that a caller cannot make expensive or frequent.
impl ClusterView for Hub {
    fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        View { hub: self, charge: &|_| () }.object(resource, namespace, name)
    }

    fn node_refers_to(&self, node: &str, object: &Reference) -> bool {
        self.memory().node_refers_to(node, object)
    }

    fn rights(&self, look: &mut dyn FnMut(&Rights)) {
        self.memory().with_rights(look);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use kedge_hub_core::kinds::{NODE, POD, SECRET};
    use kedge_hub_core::object::{Event, Object};
    use kedge_hub_core::state::Changed;

    #[test]
    fn secret_of_a_node_is_found_without_its_pods() {
        let scratch = kedge_rig::Scratch::new("hub-view").unwrap();
        let hub = Hub::open(scratch.path()).unwrap();
        let publish = |kind, value: &Value| {
            let revision = hub.revision(kind) + 1;
            let new = Arc::new(Object::new(kind, value, revision).unwrap());
            let event = Event { revision, old: None, new: Some(new), last: None };
            hub.memory().publish(vec![Changed { kind, event: Arc::new(event), author: None }]);
        };
        let pod = |name: &str, secret: &str| {
            json!({"metadata": {"name": name, "namespace": "default"},
                "spec": {"nodeName": "n", "volumes": [{"secret": {"secretName": secret}}]},
                "status": {"message": "x".repeat(50_000)}})
        };
        publish(&NODE, &json!({"metadata": {"name": "n"}, "spec": {}}));
        publish(&POD, &pod("1", "a"));
        let mut mirror = pod("2", "mirrored");
        mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        publish(&POD, &mirror);
        let charge = |work| panic!("an object was read: {work:?}");
        let view = View { hub: &hub, charge: &charge };
        let refers =
            |node, namespace, name| view.node_refers_to(node, &Reference::new(&SECRET, namespace, name));
        assert!(refers("n", "default", "a"));
        for (node, namespace, name) in
            [("n", "default", "b"), ("n", "other", "a"), ("m", "default", "a"), ("n", "default", "mirrored")]
        {
            assert!(!refers(node, namespace, name), "{node} {namespace} {name}");
        }
        hub.close();
    }
}
