//! The stored objects, as a decision reads them. Apart from the decisions, so that `controllers` and
//! `pod_security` may use it without them.

use std::sync::Arc;

use crate::kinds::{Kind, POD};
use crate::object::Object;
use crate::selector::Selection;
use crate::state::{Everything, Index, Query, Sink};

/// Access to the stored objects.
pub trait Objects {
    /// One object; `namespace` is empty for cluster-scoped kinds.
    fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Arc<Object>>;
    /// All pods of a namespace.
    fn pods_of(&self, namespace: &str) -> Vec<Arc<Object>>;
    /// All objects of a kind that has few: PriorityClasses, ClusterRoleBindings.
    fn all_of(&self, _: &'static Kind) -> Vec<Arc<Object>> {
        Vec::new()
    }
}

/// All objects of a kind in a namespace; a page without a limit cannot fail.
fn all<S: Sink>(index: &Index<S>, kind: &'static Kind, namespace: &str) -> Vec<Arc<Object>> {
    let page = index.list(kind, &Selection::all(namespace), &Query::default());
    page.map(|page| page.objects).unwrap_or_default()
}

impl<S: Sink> Objects for Index<S> {
    fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        Index::get(self, kind, namespace, name)
    }

    fn pods_of(&self, namespace: &str) -> Vec<Arc<Object>> {
        all(self, &POD, namespace)
    }

    fn all_of(&self, kind: &'static Kind) -> Vec<Arc<Object>> {
        all(self, kind, "")
    }
}

impl<S: Sink> Objects for Everything<'_, S> {
    fn get(&self, kind: &'static Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.of(kind).get(kind, namespace, name)
    }

    fn pods_of(&self, namespace: &str) -> Vec<Arc<Object>> {
        self.of(&POD).pods_of(namespace)
    }

    fn all_of(&self, kind: &'static Kind) -> Vec<Arc<Object>> {
        self.of(kind).all_of(kind)
    }
}
