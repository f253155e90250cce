//! A warning about the change that removes the last binding that makes a person an administrator by name.
//!
//! Always holds: this module refuses nothing; the group `system:masters` is the way back, and needs no
//! binding.

use serde_json::Value;

use super::objects::Objects;
use crate::kinds::rules::list;
use crate::kinds::{CLUSTER_ROLE_BINDING, Kind};
use crate::value::text;
use kedge_api::ADMIN_GROUP;

const WARNING: &str = "no binding of cluster-admin is left but that of the group system:masters: only admin.kubeconfig \
     administrates this hub now";

/// The warning about a change of a binding to `new` (`None`: it is deleted), if there is one.
pub(super) fn warning(
    objects: &dyn Objects,
    kind: &Kind,
    name: &str,
    old: &Value,
    new: Option<&Value>,
) -> Option<String> {
    if kind.kind != CLUSTER_ROLE_BINDING.kind || !makes_administrators(old) {
        return None;
    }
    let all = || objects.all_of(&CLUSTER_ROLE_BINDING);
    let is_left = new.is_some_and(makes_administrators)
        || all().iter().any(|other| &*other.name != name && makes_administrators(&other.value()));
    (!is_left).then(|| WARNING.to_owned())
}

/// Whether a binding makes an administrator of a subject that is not one without it.
fn makes_administrators(binding: &Value) -> bool {
    let is_masters =
        |subject: &Value| text(subject, &["kind"]) == "Group" && text(subject, &["name"]) == ADMIN_GROUP;
    text(binding, &["roleRef", "name"]) == "cluster-admin"
        && list(binding, "subjects").iter().any(|subject| !is_masters(subject))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::kinds::ROLE_BINDING;
    use crate::object::Object;

    struct Bindings(Vec<Value>);

    impl Objects for Bindings {
        fn get(&self, _: &'static Kind, _: &str, _: &str) -> Option<Arc<Object>> {
            None
        }

        fn pods_of(&self, _: &str) -> Vec<Arc<Object>> {
            Vec::new()
        }

        fn all_of(&self, kind: &'static Kind) -> Vec<Arc<Object>> {
            self.0.iter().filter_map(|binding| Object::new(kind, binding, 1)).map(Arc::new).collect()
        }
    }

    #[test]
    fn last_administrator_by_name_is_missed() {
        let binding = |name: &str, role: &str, group: bool, who: &str| {
            let kind = if group { "Group" } else { "User" };
            json!({"metadata": {"name": name, "uid": name}, "roleRef": {"name": role},
                "subjects": [{"kind": kind, "name": who}]})
        };
        let masters = binding("cluster-admin", "cluster-admin", true, ADMIN_GROUP);
        let jane = binding("jane", "cluster-admin", false, "jane");
        let empty = json!({"metadata": {"name": "jane"}, "roleRef": {"name": "cluster-admin"}});
        let others = |all: &[&Value]| Bindings(all.iter().map(|one| (*one).clone()).collect());
        let check = |all: &[&Value], old: &Value, new: Option<&Value>, expect: bool| {
            let name = text(old, &["metadata", "name"]);
            let found = warning(&others(all), &CLUSTER_ROLE_BINDING, name, old, new);
            assert_eq!(found.is_some(), expect, "{old} {new:?}");
        };
        check(&[&masters, &jane], &jane, None, true);
        check(&[&masters, &jane], &jane, Some(&empty), true);
        check(&[&masters, &jane], &jane, Some(&jane), false);
        let joe = binding("joe", "cluster-admin", false, "joe");
        check(&[&masters, &jane, &joe], &jane, None, false);
        let viewer = binding("viewer", "view", false, "jo");
        check(&[&masters, &viewer], &viewer, None, false);
        check(&[&masters], &masters, None, false);
        assert_eq!(warning(&others(&[&jane]), &ROLE_BINDING, "jane", &jane, None), None);
        assert!(WARNING.len() <= 256);
    }
}
