//! The objects as the authorizers see them.
//!
//! Always holds: an object is read anew for each question, at the cost of the caller who asks ([`View`]): what a node stores about itself
//! makes its own requests dearer, and nobody else's. Left to others: the decisions (`kedge_hub_core::identity`).

use std::sync::Arc;

use kedge_hub_core::identity::ClusterView;
use kedge_hub_core::kinds::pod::NODE_NAME_FIELD;
use kedge_hub_core::kinds::{self, POD};
use kedge_hub_core::selector::Selection;
use kedge_hub_core::state::Query;
use serde_json::Value;

use super::limits::Work;
use crate::Hub;

/// See the module.
pub(super) struct View<'a> {
    pub(super) hub: &'a Hub,
    /// Called with the work of each look.
    pub(super) charge: &'a (dyn Fn(Work) + Sync),
}

impl ClusterView for View<'_> {
    fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let object = self.hub.get(kinds::by_resource(resource)?, namespace, name)?;
        (self.charge)(Work::Parsed(object.json.len()));
        Some(Arc::new(object.value()))
    }

    fn any_pod_on(
        &self,
        node: &str,
        namespace: &str,
        naming: &str,
        is_meant: &dyn Fn(&Value) -> bool,
    ) -> bool {
        let bound = Selection::by_field(&POD, namespace, NODE_NAME_FIELD, node);
        let pods = self.hub.memory().list(&POD, &bound, &Query::default());
        let pods = pods.map_or_else(|_| Vec::new(), |page| page.objects);
        // a mirror pod, which a node makes itself, gives access to nothing
        pods.iter().filter(|pod| pod.holder.is_none()).any(|pod| {
            (self.charge)(Work::Searched(pod.json.len()));
            pod.names(naming) && {
                (self.charge)(Work::Parsed(pod.json.len()));
                is_meant(&pod.declared())
            }
        })
    }
}

/// At nobody's cost: for what a caller cannot make large, or often.
impl ClusterView for Hub {
    fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        View { hub: self, charge: &|_| () }.object(resource, namespace, name)
    }

    fn any_pod_on(
        &self,
        node: &str,
        namespace: &str,
        naming: &str,
        is_meant: &dyn Fn(&Value) -> bool,
    ) -> bool {
        View { hub: self, charge: &|_| () }.any_pod_on(node, namespace, naming, is_meant)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::json;

    use super::*;
    use kedge_hub_core::kinds::NAMESPACE;
    use kedge_hub_core::object::{Event, Object};
    use kedge_hub_core::state::Changed;

    #[test]
    fn only_pods_that_name_the_object_are_read() {
        let scratch = kedge_rig::Scratch::new("hub-view").unwrap();
        let hub = Hub::open(scratch.path()).unwrap();
        assert!(hub.get(&NAMESPACE, "", "default").is_some());
        let mut sizes = Vec::new();
        for (number, (secret, mirror)) in
            [("a", false), ("b", false), ("a", true), ("none", false)].into_iter().enumerate()
        {
            let mut pod = json!({"metadata": {"name": number.to_string(), "namespace": "default"},
                "spec": {"nodeName": "n", "volumes": [{"secret": {"secretName": secret}}]},
                "status": {"message": "x".repeat(50_000)}});
            if mirror {
                pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
            }
            let revision = hub.revision(&POD) + 1;
            let new = Arc::new(Object::new(&POD, &pod, revision).unwrap());
            sizes.push(new.json.len());
            let event = Event { revision, old: None, new: Some(new), last: None };
            hub.memory().publish(vec![Changed { kind: &POD, event: Arc::new(event), author: None }]);
        }
        let (read, seen) = (Mutex::new((0, 0)), Mutex::new(Vec::new()));
        let charge = |work| match work {
            Work::Searched(bytes) => read.lock().unwrap().0 += bytes,
            Work::Parsed(bytes) => read.lock().unwrap().1 += bytes,
            Work::Copied(_) | Work::Ran(_) => panic!("nothing else is done"),
        };
        let view = View { hub: &hub, charge: &charge };
        let refers = |name: &str| {
            view.any_pod_on("n", "default", name, &|pod| {
                assert!(pod.get("status").is_none());
                seen.lock().unwrap().push(pod["metadata"]["name"].clone());
                pod["spec"]["volumes"][0]["secret"]["secretName"] == name
            })
        };
        assert!(refers("b") && !refers("c") && !refers("mirror"));
        assert_eq!(*seen.lock().unwrap(), ["1"]);
        let searched = 3 * (sizes[0] + sizes[1]) + 2 * sizes[3];
        assert_eq!(*read.lock().unwrap(), (searched, sizes[1]), "without the mirror pod");
        hub.close();
    }
}
