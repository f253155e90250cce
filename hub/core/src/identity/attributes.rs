//! What an authorizer is asked, and what it may look up to answer.

use std::sync::Arc;

use serde_json::Value;

/// The attributes of a request; empty where the request does not name one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attributes<'a> {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for a path, the HTTP method in
    /// lower case.
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
    /// The `fieldSelector` parameter as sent.
    pub field_selector: &'a str,
    /// For requests that name no resource: `/version`, `/apis`.
    pub path: &'a str,
}

/// The stored objects that the authorizer may look up.
pub trait ClusterView {
    /// The stored object, if there is one. `namespace` is empty for cluster-scoped resources.
    fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>>;
    /// The pods bound to a node, in one namespace or (empty) in all.
    fn pods_on(&self, node: &str, namespace: &str) -> Vec<Arc<Value>>;
}

/// The name of the one object that a request is for: from the path, or, for list and watch, from the field selector.
pub(super) fn requested_name<'a>(attributes: &Attributes<'a>) -> &'a str {
    match attributes.name {
        "" if matches!(attributes.verb, "list" | "watch") => {
            required_field(attributes.field_selector, "metadata.name").unwrap_or_default()
        }
        name => name,
    }
}

/// The value that a field selector requires of `field`. Further requirements only narrow the answer. A selector with escapes
/// counts as requiring nothing: names need none, and two parsers could read an escaped comma differently.
pub(super) fn required_field<'a>(selector: &'a str, field: &str) -> Option<&'a str> {
    if selector.contains('\\') {
        return None;
    }
    selector.split(',').find_map(|term| {
        let (key, value) = term.split_once('=')?;
        (key.trim() == field).then(|| value.strip_prefix('=').unwrap_or(value).trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_selector_requires_a_value_only_by_equality() {
        let check = |selector: &str, expect: Option<&str>| {
            assert_eq!(required_field(selector, "metadata.name"), expect, "{selector}");
        };
        check("metadata.name=a", Some("a"));
        check("metadata.name==a", Some("a"));
        check("spec.unschedulable=false, metadata.name = a", Some("a"));
        check("metadata.name!=a", None);
        check("xmetadata.name=a", None);
        check("spec.unschedulable!=1\\,metadata.name=a", None);
        check("", None);
    }
}
