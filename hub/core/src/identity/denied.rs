//! Revoked credentials: the deny list, and what it says about an identity.
//!
//! Owns: the ConfigMap `kube-system/kedge-denied`, which is durable and backed up as every object, visible to administrators, and out of
//! the reach of nodes. Each key denies something, `node.NAME`, `user.NAME` (bytes outside `-.a-zA-Z0-9` as `_xx`) or
//! `certificate.SHA256` (hexadecimal); its value explains it to people. Always holds: a key counts whatever its value is; only a value
//! that reads as a readmission limits it to the credentials of before. Administrators are denied by certificate alone, so that one
//! cannot lock out all. Left to others: asking about each request, ending what stands (the server).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::identity::{Identity, micros};
use crate::value::text;
use kedge_api::NODE_USER_PREFIX;

/// The namespace of the deny list.
pub const DENY_LIST_NAMESPACE: &str = "kube-system";
/// The name of the deny list, a ConfigMap.
pub const DENY_LIST_NAME: &str = "kedge-denied";
/// Why a node was revoked is cut to this many characters: the list has room for thousands of nodes.
const REASON_CHARS: usize = 200;
/// Beginning of a certificate's credential id.
const CERTIFICATE_ID: &str = "X509SHA256=";

/// The deny list, read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DenyList {
    /// With the time of their readmission: credentials issued before it stay refused.
    nodes: BTreeMap<String, Option<i64>>,
    users: BTreeSet<String>,
    certificates: BTreeSet<String>,
    /// Keys that deny nothing, for the log.
    pub unknown: Vec<String>,
}

impl DenyList {
    /// Reads the ConfigMap.
    pub fn read(config_map: &Value) -> DenyList {
        let mut list = DenyList::default();
        for (key, value) in config_map["data"].as_object().into_iter().flatten() {
            let known = match key.split_once('.') {
                Some(("node", name)) => {
                    list.nodes.insert(name.to_owned(), readmitted(value));
                    true
                }
                Some(("user", name)) => decode(name).map(|name| list.users.insert(name)).is_some(),
                Some(("certificate", id)) => {
                    list.certificates.insert(id.to_ascii_lowercase());
                    true
                }
                _ => false,
            };
            if !known {
                list.unknown.push(key.clone());
            }
        }
        list
    }

    /// Why this identity is refused, if it is.
    pub fn refusal(&self, identity: &Identity) -> Option<String> {
        let certificate = identity.credential.strip_prefix(CERTIFICATE_ID);
        if certificate.is_some_and(|id| self.certificates.contains(id)) {
            return Some("the certificate was revoked".to_owned());
        }
        if identity.is_admin() {
            return None;
        }
        if self.users.contains(&identity.user) {
            return Some(format!("user {:?} was revoked", identity.user));
        }
        let node =
            identity.facts.get("authentication.kubernetes.io/node-name").and_then(|names| names.first());
        if let Some(node) = node.filter(|node| self.is_revoked(node)) {
            return Some(format!("it is a token of a pod on node {node:?}, which was revoked"));
        }
        self.node_refusal(&identity.user, identity.issued)
    }

    /// Why no certificate is signed for this user, if none is.
    pub fn signing_refusal(&self, user: &str) -> Option<String> {
        if self.users.contains(user) {
            return Some(format!("user {user:?} is revoked"));
        }
        let node = user.strip_prefix(NODE_USER_PREFIX)?;
        self.is_revoked(node)
            .then(|| format!("node {node:?} is revoked; `kedge-hub node readmit` takes that back"))
    }

    /// Whether a node was revoked and not readmitted.
    pub fn is_revoked(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(Option::is_none)
    }

    /// The nodes that have an entry.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    fn node_refusal(&self, user: &str, issued: Option<i64>) -> Option<String> {
        let node = user.strip_prefix(NODE_USER_PREFIX)?;
        match self.nodes.get(node)? {
            None => Some(format!("node {node:?} was revoked")),
            Some(readmitted) if issued.is_some_and(|issued| issued >= *readmitted) => None,
            Some(_) => Some(format!("the credential of node {node:?} is older than its readmission")),
        }
    }
}

/// The time of a readmission. Any other value denies without an exception.
fn readmitted(value: &Value) -> Option<i64> {
    let value: Value = serde_json::from_str(value.as_str()?).ok()?;
    OffsetDateTime::parse(text(&value, &["readmitted"]), &Rfc3339).ok().map(micros)
}

/// A change of the deny list: who makes it, when, and why.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    pub by: &'a str,
    /// RFC 3339, as exact as the clock is: credentials of the same second are told apart by it.
    pub time: &'a str,
    /// May be empty.
    pub reason: &'a str,
}

impl Change<'_> {
    /// The entry's value.
    fn value(&self, field: &str) -> Value {
        let reason = kedge_api::excerpt_of(self.reason, REASON_CHARS);
        json!({field: self.time, "by": self.by, "reason": reason}).to_string().into()
    }

    /// Refuses all credentials of a node from now on.
    pub fn revoke(&self, config_map: &mut Value, node: &str) {
        entries(config_map).insert(format!("node.{node}"), self.value("revoked"));
    }

    /// Lets a node return with credentials issued from now on.
    pub fn readmit(&self, config_map: &mut Value, node: &str) {
        entries(config_map).insert(format!("node.{node}"), self.value("readmitted"));
    }

    /// Forgets that a node was revoked: all its credentials are good again.
    pub fn forget(&self, config_map: &mut Value, node: &str) {
        entries(config_map).remove(&format!("node.{node}"));
    }
}

/// The explanation of a node's entry: an object with `revoked` or `readmitted`, `by` and `reason`; null without an entry.
pub fn explanation(config_map: &Value, node: &str) -> Value {
    let entry = config_map["data"][format!("node.{node}")].as_str();
    entry.map_or(Value::Null, |entry| {
        serde_json::from_str(entry).ok().filter(Value::is_object).unwrap_or_else(|| json!({"reason": entry}))
    })
}

fn entries(config_map: &mut Value) -> &mut Map<String, Value> {
    if !config_map["data"].is_object() {
        config_map["data"] = json!({});
    }
    config_map["data"].as_object_mut().expect("it was made an object in the line before")
}

/// The key of a user; keys of a ConfigMap have few characters.
pub fn user_key(user: &str) -> String {
    user.bytes().fold("user.".to_owned(), |mut key, byte| {
        match byte {
            b'-' | b'.' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => key.push(char::from(byte)),
            byte => {
                let _ = write!(key, "_{byte:02x}");
            }
        }
        key
    })
}

fn decode(name: &str) -> Option<String> {
    let mut parts = name.split('_');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, issued: Option<i64>) -> Identity {
        let user = format!("system:node:{name}");
        Identity { issued, credential: "X509SHA256=0a".into(), ..Identity::new(&user, &["system:nodes"]) }
    }

    fn list(data: &Value) -> DenyList {
        DenyList::read(&json!({"data": data}))
    }

    const CHANGE: Change = Change { by: "admin", time: "2026-11-22T10:00:00.000007Z", reason: "stolen" };

    #[test]
    fn entries_deny_nodes_users_and_certificates() {
        let check = |data: Value, identity: &Identity, expect: &str| {
            assert_eq!(list(&data).refusal(identity).unwrap_or_default(), expect, "{data}");
        };
        let (edge, jane) = (node("edge-1", None), Identity::new("jane", &["people"]));
        check(json!({}), &edge, "");
        for value in ["", "x", "{}", r#"{"readmitted": 7}"#, r#"{"revoked": "2026-11-22T10:00:00Z"}"#] {
            check(json!({"node.edge-1": value}), &edge, "node \"edge-1\" was revoked");
        }
        check(json!({"node.edge-2": "", "user.edge-1": "", "certificate.0b": ""}), &edge, "");
        check(json!({"user.jane": ""}), &jane, "user \"jane\" was revoked");
        check(json!({"node.jane": ""}), &jane, "");
        check(json!({"user.system_3anode_3aedge-1": ""}), &edge, "user \"system:node:edge-1\" was revoked");
        check(json!({"certificate.0A": ""}), &edge, "the certificate was revoked");
        let facts = [("authentication.kubernetes.io/node-name".to_owned(), vec!["edge-1".to_owned()])].into();
        let pods = Identity { facts, ..Identity::new("system:serviceaccount:default:runs", &[]) };
        check(json!({"node.edge-2": ""}), &pods, "");
        check(
            json!({"node.edge-1": ""}),
            &pods,
            "it is a token of a pod on node \"edge-1\", which was revoked",
        );
        // by its name alone, whatever its groups
        let groupless = Identity { groups: Vec::new(), ..edge.clone() };
        check(json!({"node.edge-1": ""}), &groupless, "node \"edge-1\" was revoked");
    }

    #[test]
    fn administrators_are_denied_by_certificate_alone() {
        let admin =
            Identity { credential: "X509SHA256=0a".into(), ..Identity::new("admin", &["system:masters"]) };
        assert_eq!(list(&json!({"user.admin": "", "node.admin": ""})).refusal(&admin), None);
        assert!(list(&json!({"certificate.0a": ""})).refusal(&admin).is_some());
        assert!(list(&json!({"user.admin": ""})).refusal(&Identity::new("admin", &[])).is_some());
    }

    #[test]
    fn readmitted_node_needs_newer_credentials() {
        let mut map = Value::Null;
        CHANGE.revoke(&mut map, "edge-1");
        assert!(DenyList::read(&map).is_revoked("edge-1"));
        assert_eq!(
            explanation(&map, "edge-1"),
            json!({"revoked": CHANGE.time, "by": "admin", "reason": "stolen"})
        );
        assert!(DenyList::read(&map).signing_refusal("system:node:edge-1").is_some());
        CHANGE.readmit(&mut map, "edge-1");
        let list = DenyList::read(&map);
        let time = micros(OffsetDateTime::parse(CHANGE.time, &Rfc3339).unwrap());
        for (issued, refused) in
            [(None, true), (Some(time - 1), true), (Some(time), false), (Some(time + 9), false)]
        {
            assert_eq!(list.refusal(&node("edge-1", issued)).is_some(), refused, "{issued:?}");
        }
        assert!(!list.is_revoked("edge-1"));
        assert_eq!(list.signing_refusal("system:node:edge-1"), None);
        CHANGE.forget(&mut map, "edge-1");
        assert_eq!(DenyList::read(&map), DenyList::default());
        assert_eq!(explanation(&map, "edge-1"), Value::Null);
    }

    #[test]
    fn no_certificate_is_signed_for_what_is_denied() {
        let list = list(&json!({"node.edge-1": "", "user.jane": ""}));
        for (user, refused) in
            [("system:node:edge-1", true), ("jane", true), ("system:node:edge-2", false), ("edge-1", false)]
        {
            assert_eq!(list.signing_refusal(user).is_some(), refused, "{user}");
        }
    }

    #[test]
    fn keys_are_readable_and_unknown_ones_are_reported() {
        for user in ["jane", "Jane Doe", "system:x_y", "k\u{e4}fer", ""] {
            let key = user_key(user);
            assert!(key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)), "{key}");
            assert_eq!(decode(&key[5..]).as_deref(), Some(user));
        }
        let found = list(&json!({"nodes.x": "", "user.a_": "", "user.a_zz": "", "node": "", "node.a": ""}));
        assert_eq!(found.unknown, ["node", "nodes.x", "user.a_", "user.a_zz"]);
        assert_eq!(found.nodes().collect::<Vec<_>>(), ["a"]);
    }
}
