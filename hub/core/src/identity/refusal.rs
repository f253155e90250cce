//! Refusals, in upstream's words, because people search for them.

use super::attributes::Attributes;
use super::identity::Identity;
use serde_json::Value;

/// A refusal, ready for a Status object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// 401 for an anonymous caller and an expired one, else 403.
    pub status: u16,
    /// Status.message, as upstream words it.
    pub message: String,
    /// The reason alone, for access reviews; empty if no authorizer gave one.
    pub reason: String,
}

impl Denied {
    /// The refusal of a caller without a valid credential.
    pub fn unauthorized() -> Denied {
        Denied { status: 401, message: "Unauthorized".to_owned(), reason: String::new() }
    }
}

/// The error of a refused object.
pub(super) fn forbidden_object(attributes: &Attributes, object: &Value, reason: String) -> Denied {
    let name = match attributes.name {
        "" => object["metadata"]["name"].as_str().unwrap_or_default(),
        name => name,
    };
    let message = forbidden(attributes.group, attributes.resource, name, &reason);
    Denied { status: 403, message, reason }
}

/// The error of a refused request, in upstream's words.
pub(super) fn forbidden_request(identity: &Identity, attributes: &Attributes, reason: &str) -> Denied {
    let Attributes { verb, group, resource, subresource, namespace, path, .. } = attributes;
    let user = &identity.user;
    let mut text = if resource.is_empty() {
        format!("User \"{user}\" cannot {verb} path \"{path}\"")
    } else {
        let slash = if subresource.is_empty() { "" } else { "/" };
        let scope = match *namespace {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace \"{namespace}\""),
        };
        format!(
            "User \"{user}\" cannot {verb} resource \"{resource}{slash}{subresource}\" in API group \"{group}\" {scope}"
        )
    };
    if !reason.is_empty() {
        text.push_str(": ");
        text.push_str(reason);
    }
    let message = forbidden(group, resource, attributes.requested_name(), &text);
    Denied { status: 403, message, reason: reason.to_owned() }
}

fn forbidden(group: &str, resource: &str, name: &str, text: &str) -> String {
    let dot = if group.is_empty() { "" } else { "." };
    match (resource, name) {
        ("", _) => format!("forbidden: {text}"),
        (_, "") => format!("{resource}{dot}{group} is forbidden: {text}"),
        _ => format!("{resource}{dot}{group} \"{name}\" is forbidden: {text}"),
    }
}
