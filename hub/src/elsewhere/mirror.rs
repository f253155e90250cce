//! The objects of another API server, as far as the controllers here read them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kedge_hub_core::controllers::World;
use kedge_hub_core::kinds::{Kind, POD};
use kedge_hub_core::object::{Event, Object};
use kedge_hub_core::requests::Objects;
use kedge_hub_core::selector::Selection;
use serde_json::Value;

/// Namespace and name.
type Place = (String, String);

/// See the module. Always holds: an object is the newest version that was received.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    kinds: BTreeMap<&'static str, BTreeMap<Place, Arc<Object>>>,
}

/// The object in a value of an API server; `None` if the value is not an object.
fn read(kind: &'static Kind, value: &Value) -> Option<Arc<Object>> {
    let revision = value["metadata"]["resourceVersion"].as_str()?.parse().ok()?;
    Object::new(kind, value, revision).map(Arc::new)
}

impl Mirror {
    /// Replaces all objects of a kind, in one namespace or, if that is empty, in all.
    pub(super) fn replace(&mut self, kind: &'static Kind, namespace: &str, items: &[Value]) {
        let objects = items.iter().filter_map(|item| read(kind, item));
        let all = objects.map(|object| ((object.namespace.to_string(), object.name.to_string()), object));
        let known = self.kinds.entry(kind.plural).or_default();
        known.retain(|(of, _), _| !namespace.is_empty() && of != namespace);
        known.extend(all);
    }

    /// Notes a change; returns it as an event, unless a newer version is known.
    pub(super) fn change(&mut self, kind: &'static Kind, value: &Value, is_gone: bool) -> Option<Event> {
        let object = read(kind, value)?;
        let objects = self.kinds.entry(kind.plural).or_default();
        let place = (object.namespace.to_string(), object.name.to_string());
        let old = objects.get(&place).cloned();
        if old
            .as_ref()
            .is_some_and(|old| old.revision > object.revision || !is_gone && old.revision == object.revision)
        {
            return None;
        }
        let (revision, last) = (object.revision, None);
        if is_gone {
            objects.remove(&place);
            return Some(Event { revision, old: old.or(Some(object)), new: None, last });
        }
        objects.insert(place, Arc::clone(&object));
        Some(Event { revision, old, new: Some(object), last })
    }
}

impl Objects for Mirror {
    fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.kinds.get(kind.plural)?.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    fn pods_of(&self, namespace: &str) -> Vec<Arc<Object>> {
        self.list(&POD, namespace)
    }
}

impl World for Mirror {
    fn list(&self, kind: &'static Kind, namespace: &str) -> Vec<Arc<Object>> {
        let all = self.kinds.get(kind.plural).into_iter().flatten();
        let within = all.filter(|((of, _), _)| namespace.is_empty() || of == namespace);
        within.map(|(_, object)| Arc::clone(object)).collect()
    }

    fn select(&self, kind: &'static Kind, selection: &Selection) -> Vec<Arc<Object>> {
        self.list(kind, "").into_iter().filter(|object| selection.selects(object)).collect()
    }

    // the rest is for controllers that only the hub itself runs

    fn dependents(&self, _: &str) -> Vec<(&'static Kind, Arc<Object>)> {
        Vec::new()
    }

    fn charged(&self, _: &str, _: &'static Kind) -> Vec<Arc<Object>> {
        Vec::new()
    }

    fn lost_owners(&self) -> Vec<String> {
        Vec::new()
    }

    fn terminating(&self) -> Vec<(&'static Kind, Arc<Object>)> {
        Vec::new()
    }

    fn in_namespace(&self, _: &str) -> Vec<(&'static Kind, Arc<Object>)> {
        Vec::new()
    }

    fn namespaces_in_use(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    fn values(&self, _: &'static Kind, _: usize) -> Vec<String> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_hub_core::kinds::CONFIG_MAP;
    use serde_json::json;

    #[test]
    fn list_of_one_namespace_leaves_the_others() {
        let mut mirror = Mirror::default();
        let map = |namespace: &str, name: &str| json!({"metadata": {"namespace": namespace, "name": name, "uid": name, "resourceVersion": "7"}});
        mirror.replace(&CONFIG_MAP, "a", &[map("a", "1"), map("a", "2")]);
        mirror.replace(&CONFIG_MAP, "b", &[map("b", "3")]);
        mirror.replace(&CONFIG_MAP, "a", &[map("a", "2")]);
        let names = |mirror: &Mirror| -> Vec<String> {
            mirror.list(&CONFIG_MAP, "").iter().map(|found| found.name.to_string()).collect()
        };
        assert_eq!(names(&mirror), ["2", "3"]);
        mirror.replace(&CONFIG_MAP, "", &[map("c", "4")]);
        assert_eq!(names(&mirror), ["4"]);
    }
}
