//! The input of an authorizer: the attributes of a request, and the stored objects that it may look up.

use std::sync::Arc;

use serde_json::Value;

use crate::object::Reference;
use crate::selector::Selection;
use crate::state::Rights;

/// The attributes of a request; empty where the request does not name one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attributes<'a> {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for a path, the
    /// HTTP method in lower case.
    pub verb: &'a str,
    /// API group, empty for core.
    pub group: &'a str,
    /// Plural resource; empty for a request to a path.
    pub resource: &'a str,
    /// For example `status`.
    pub subresource: &'a str,
    /// Empty for cluster-scoped resources and for requests over all namespaces.
    pub namespace: &'a str,
    /// Empty for collections and for creation.
    pub name: &'a str,
    /// For a collection: the selection that the answer will be limited to; absent if its selectors are
    /// invalid.
    pub selection: Option<&'a Selection>,
    /// For requests that name no resource: `/version`, `/apis`.
    pub path: &'a str,
}

impl<'a> Attributes<'a> {
    /// The name of the single object that a request is for: from the path, or, for list and watch, from the
    /// field selector.
    pub fn requested_name(&self) -> &'a str {
        match (self.name, self.selection) {
            ("", Some(selection)) if matches!(self.verb, "list" | "watch") => {
                selection.name.as_deref().unwrap_or_default()
            }
            (name, _) => name,
        }
    }

    /// The value that the field selector requires of one of the kind's selectable fields. Further
    /// requirements only narrow the answer.
    pub(super) fn required(&self, field: usize) -> Option<&'a str> {
        self.selection.and_then(|selection| selection.required(field))
    }
}

/// The stored objects that the authorizer may look up.
pub trait ClusterView {
    /// The stored object, if there is one. `namespace` is empty for cluster-scoped resources.
    fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>>;
    /// Whether the Node of this name, or a pod bound to it, refers to an object
    /// ([`Kind::refers`](crate::kinds::Kind::refers)).
    fn node_refers_to(&self, node: &str, object: &Reference) -> bool;
    /// Calls `look` with the rights that roles and bindings give at this moment. `look` must not ask the
    /// view.
    fn rights(&self, look: &mut dyn FnMut(&Rights));
}
