//! Revoked credentials: the deny list, and its effect on an identity.
//!
//! Owns: the ConfigMap `kube-system/kedge-denied`, which is durable and backed up as every object, visible to
//! administrators, and out of the reach of nodes. Each key denies something: `node.NAME`, `user.NAME` (bytes
//! outside `-.a-zA-Z0-9` as `_xx`), `certificate.SHA256` (hexadecimal), or `node-sha256.SHA256` for a node
//! whose name is too long for a key. The value explains it to people. Always holds: a key counts whatever its
//! value is; only a value that parses as a readmission limits it to credentials that the node or its pods got
//! before; of several entries of one node the strictest counts. Administrators are denied by certificate
//! only, so that one of them cannot lock out all. The list cannot be wiped by accident: it can be deleted
//! only when it denies nothing, a change may remove denials only if its writer has read the current version,
//! and it may never remove several of them so that none is left; a new key that denies nothing is refused.
//! Left to others: checking each request, closing open connections (the server), explaining lifted denials
//! (`denials`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::identity::{Identity, NODE_NAME_FACT, micros};
use crate::decode;
use crate::value::{at, text};
use kedge_api::NODE_USER_PREFIX;
use kedge_api::names::{SUBDOMAIN_BYTES, is_subdomain};

/// The namespace of the deny list.
pub const DENY_LIST_NAMESPACE: &str = "kube-system";
/// The name of the deny list, a ConfigMap.
pub const DENY_LIST_NAME: &str = "kedge-denied";
/// The reason of a revocation is cut to this many characters: the list has room for thousands of nodes.
const REASON_CHARS: usize = 200;
/// Beginning of a certificate's credential id.
const CERTIFICATE_ID: &str = "X509SHA256=";
/// Denials that a refusal names one by one.
const NAMED: usize = 5;
/// The maps of a ConfigMap; no key is in both. An entry counts in either: the operator who wrote it meant it.
const MAPS: [&str; 2] = ["data", "binaryData"];

/// The credentials that a node's entry denies: all (`None`), or those issued before a readmission (Unix time
/// in microseconds).
type Readmitted = Option<i64>;

/// The deny list, parsed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DenyList {
    nodes: BTreeMap<String, Readmitted>,
    /// Nodes by the digest of their name.
    digests: BTreeMap<String, Readmitted>,
    users: BTreeSet<String>,
    certificates: BTreeSet<String>,
    /// Keys that deny nothing, for the log.
    pub unknown: Vec<String>,
}

impl DenyList {
    /// Reads the ConfigMap.
    pub fn read(config_map: &Value) -> DenyList {
        let mut list = DenyList::default();
        for (key, value) in MAPS.iter().filter_map(|map| config_map[*map].as_object()).flatten() {
            let known = match key.split_once('.') {
                Some(("node", name)) => {
                    deny(&mut list.nodes, name, readmitted(value));
                    true
                }
                Some(("node-sha256", digest)) => {
                    list.deny_digest(&digest.to_ascii_lowercase(), value);
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

    /// Denies the node with this digest, and also its name if the entry contains it.
    fn deny_digest(&mut self, entry: &str, value: &Value) {
        deny(&mut self.digests, entry, readmitted(value));
        let name = explained(value)["node"].as_str().map(str::to_owned);
        if let Some(name) = name.filter(|name| digest(name) == entry) {
            deny(&mut self.nodes, &name, readmitted(value));
        }
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
        let node = identity.facts.get(NODE_NAME_FACT).and_then(|names| names.first());
        let of_pod = node.and_then(|node| match self.readmission(node)? {
            None => Some(format!("it is a token of a pod on node {node:?}, which was revoked")),
            Some(readmitted) if is_since(identity.issued, readmitted) => None,
            Some(_) => Some(format!("the token of a pod on node {node:?} is older than its readmission")),
        });
        if of_pod.is_some() {
            return of_pod;
        }
        self.node_refusal(&identity.user, identity.issued)
    }

    /// The reason why no certificate is signed for this user, if there is one. `requested`: the time of the
    /// request, RFC 3339; a request from before the readmission may be the thief's.
    pub fn signing_refusal(&self, user: &str, requested: &str) -> Option<String> {
        if self.users.contains(user) {
            return Some(format!("user {user:?} is revoked"));
        }
        let node = user.strip_prefix(NODE_USER_PREFIX)?;
        match self.readmission(node)? {
            None => Some(format!("node {node:?} is revoked; `kedge-hub node readmit` takes that back")),
            // in whole seconds: a request from the same second as the readmission may be older than it
            Some(readmitted) => (!is_since(parsed(requested), readmitted)).then(|| {
                format!("the request is older than the readmission of node {node:?}; make a new one")
            }),
        }
    }

    /// Whether the list denies nothing.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
            && self.digests.is_empty()
            && self.users.is_empty()
            && self.certificates.is_empty()
    }

    /// Whether a node was revoked and not readmitted.
    pub fn is_revoked(&self, node: &str) -> bool {
        self.readmission(node).is_some_and(|readmitted| readmitted.is_none())
    }

    /// The entry of a node, if it has one; the strictest of several.
    fn readmission(&self, node: &str) -> Option<Readmitted> {
        let named = self.nodes.get(node).copied();
        // few lists have any: for the others no digest is computed
        let digests = Some(&self.digests).filter(|digests| !digests.is_empty());
        match (named, digests.and_then(|digests| digests.get(&digest(node)).copied())) {
            (Some(one), Some(other)) => Some(strictest(one, other)),
            (named, by_digest) => named.or(by_digest),
        }
    }

    /// The nodes that have an entry with their name.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    fn node_refusal(&self, user: &str, issued: Option<i64>) -> Option<String> {
        let node = user.strip_prefix(NODE_USER_PREFIX)?;
        match self.readmission(node)? {
            None => Some(format!("node {node:?} was revoked")),
            Some(readmitted) if is_since(issued, readmitted) => None,
            Some(_) => Some(format!("the credential of node {node:?} is older than its readmission")),
        }
    }
}

/// A user, node or certificate that the list denies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denial {
    Node(String),
    /// A node by the digest of its name, if the entry does not contain the name.
    Digest(String),
    User(String),
    Certificate(String),
}

impl fmt::Display for Denial {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Denial::Node(name) => write!(out, "node {name:?}"),
            Denial::Digest(digest) => write!(out, "the node whose name has the digest {digest}"),
            Denial::User(name) => write!(out, "user {name:?}"),
            Denial::Certificate(id) => write!(out, "certificate {id}"),
        }
    }
}

/// A denial that a newer list no longer has, or has in a weaker form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lifted {
    pub denial: Denial,
    /// The whole denial is gone. Otherwise credentials issued after a readmission count now.
    pub is_gone: bool,
}

/// The denials of `old` that `new` no longer has; both are ConfigMaps (null: no list).
pub fn lifted(old: &Value, new: &Value) -> Vec<Lifted> {
    let (old, new) = (DenyList::read(old), DenyList::read(new));
    let mut all = Vec::new();
    let mut compare =
        |denial: Denial, before: Option<Readmitted>, after: Option<Readmitted>| match (before, after) {
            (Some(_), None) => all.push(Lifted { denial, is_gone: true }),
            (Some(before), Some(after)) if strictest(before, after) != after => {
                all.push(Lifted { denial, is_gone: false });
            }
            _ => {}
        };
    for name in old.nodes.keys() {
        compare(Denial::Node(name.clone()), old.readmission(name), new.readmission(name));
    }
    let named = |list: &DenyList| list.nodes.keys().map(|name| digest(name)).collect::<BTreeSet<_>>();
    // few lists have any: for the others no digest of a name is computed
    let names = if old.digests.is_empty() { BTreeSet::new() } else { named(&old) };
    for (entry, before) in old.digests.iter().filter(|(entry, _)| !names.contains(*entry)) {
        let after = new.nodes.keys().find(|name| digest(name) == **entry).map(|name| new.readmission(name));
        compare(
            Denial::Digest(entry.clone()),
            Some(*before),
            after.unwrap_or(new.digests.get(entry).copied()),
        );
    }
    for name in old.users.difference(&new.users) {
        compare(Denial::User(name.clone()), Some(None), None);
    }
    for id in old.certificates.difference(&new.certificates) {
        compare(Denial::Certificate(id.clone()), Some(None), None);
    }
    all
}

/// How to lift a denial, for the texts of refusals.
const THE_WAY: &str = "remove entries one by one, as by `kubectl -n kube-system edit configmap kedge-denied`, or use `kedge-hub node readmit NAME`";

/// Why the list may not be deleted.
pub fn deletion_complaint(list: &Value) -> Option<String> {
    let denied = lifted(list, &Value::Null);
    (!denied.is_empty()).then(|| format!("it would let in again {}; {THE_WAY}", shown(&denied)))
}

/// The reason why a change is refused, if there is one. `version`: whether the writer names the version that
/// it replaces.
pub fn change_complaint(old: &Value, new: &Value, version: bool) -> Option<String> {
    let lifted = lifted(old, new);
    if lifted.is_empty() {
        return None;
    }
    if !version {
        let shown = shown(&lifted);
        return Some(format!(
            "it would let in again {shown}, and names no resourceVersion: it may replace a list that its writer never saw; {THE_WAY}"
        ));
    }
    let gone = lifted.iter().filter(|lifted| lifted.is_gone).count();
    let sweeps = gone > 1 && DenyList::read(new).is_empty();
    sweeps.then(|| format!("it would let in again, all at once, {}; {THE_WAY}", shown(&lifted)))
}

fn shown(lifted: &[Lifted]) -> String {
    let mut names: Vec<String> = lifted.iter().take(NAMED).map(|lifted| lifted.denial.to_string()).collect();
    if lifted.len() > NAMED {
        names.push(format!("{} others", lifted.len() - NAMED));
    }
    names.join(", ")
}

/// Adds to a list the denials that it lacks and another list has; returns them.
pub fn unite(list: &mut Value, other: &Value) -> Vec<Denial> {
    let kept: Vec<Denial> = lifted(other, list).into_iter().map(|lifted| lifted.denial).collect();
    if kept.is_empty() {
        return kept;
    }
    let entries = MAPS
        .iter()
        .flat_map(|map| other[*map].as_object().into_iter().flatten().map(move |entry| (map, entry)));
    for (map, (key, value)) in entries.filter(|(_, (key, _))| !denies_nothing(key)) {
        let place = MAPS.iter().find(|map| at(list, &[*map, key]).is_some()).unwrap_or(map);
        let before = at(list, &[place, key]).map(readmitted);
        let is_stricter = before.is_none_or(|before| strictest(before, readmitted(value)) != before);
        if is_stricter {
            if !list[*place].is_object() {
                list[*place] = json!({});
            }
            // one map has text and the other bytes, so a value of the other map is not valid here: the key
            // suffices
            list[*place][key] = if place == map { value.clone() } else { "".into() };
        }
    }
    kept
}

/// The maps of a list, without its metadata.
pub fn maps(list: &Value) -> Value {
    let maps = MAPS.iter().filter(|map| list[**map].is_object());
    maps.map(|map| ((*map).to_owned(), list[*map].clone())).collect::<serde_json::Map<_, _>>().into()
}

/// Adds to a list those entries of another one that deny something which this list does not deny in any form.
pub fn unite_gone(list: &mut Value, other: &Value) {
    let gone: Vec<Denial> =
        lifted(other, list).into_iter().filter(|lifted| lifted.is_gone).map(|lifted| lifted.denial).collect();
    for (map, key) in entries_of(other, &gone) {
        if !list[map].is_object() {
            list[map] = json!({});
        }
        list[map][key] = other[map][key].clone();
    }
}

/// Removes the entries of these denials from a list.
pub fn forget(list: &mut Value, denials: &[Denial]) {
    let entries: Vec<_> =
        entries_of(list, denials).into_iter().map(|(map, key)| (map, key.to_owned())).collect();
    for (map, key) in entries {
        if let Some(entries) = list[map].as_object_mut() {
            entries.remove(&key);
        }
    }
}

/// The entries by which a list has these denials.
fn entries_of<'a>(list: &'a Value, denials: &[Denial]) -> Vec<(&'static str, &'a str)> {
    if denials.is_empty() {
        return Vec::new();
    }
    let is_one = |map: &str, key: &str| {
        let alone = lifted(&json!({"data": {key: list[map][key]}}), &Value::Null);
        alone.iter().any(|one| denials.contains(&one.denial))
    };
    keys(list).filter(|(map, key)| is_one(map, key)).collect()
}

fn denies_nothing(key: &str) -> bool {
    DenyList::read(&json!({"data": {key: ""}})).is_empty()
}

/// The reason why a key denies nothing that exists.
pub fn complaint(key: &str) -> Option<String> {
    let is_digest = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_good = match key.split_once('.') {
        Some(("node", name)) => is_subdomain(name),
        Some(("node-sha256" | "certificate", digest)) => is_digest(digest),
        Some(("user", name)) => decode(name).is_some_and(|name| !name.is_empty()),
        _ => false,
    };
    (!is_good).then(|| {
        "denies nothing, expected node.NAME with the name of a node, user.NAME, certificate.SHA256 or node-sha256.SHA256"
            .to_owned()
    })
}

/// The keys of a list, in both maps.
pub fn keys(list: &Value) -> impl Iterator<Item = (&'static str, &str)> {
    MAPS.iter().flat_map(|map| {
        list[*map].as_object().into_iter().flat_map(|entries| entries.keys().map(|key| (*map, key.as_str())))
    })
}

fn deny(nodes: &mut BTreeMap<String, Readmitted>, name: &str, readmitted: Readmitted) {
    let known = nodes.get(name).copied();
    nodes.insert(name.to_owned(), known.map_or(readmitted, |known| strictest(known, readmitted)));
}

fn strictest(one: Readmitted, other: Readmitted) -> Readmitted {
    Some(one?.max(other?))
}

/// Whether a credential is at least as new as a readmission; a credential without a time is not.
fn is_since(time: Option<i64>, readmitted: i64) -> bool {
    time.is_some_and(|time| time >= readmitted)
}

fn parsed(time: &str) -> Option<i64> {
    OffsetDateTime::parse(time, &Rfc3339).ok().map(micros)
}

/// The time of a readmission. Any other value denies without an exception.
fn readmitted(value: &Value) -> Readmitted {
    parsed(text(&explained(value), &["readmitted"]))
}

/// An entry's value as the hub writes it, else null.
fn explained(value: &Value) -> Value {
    value.as_str().and_then(|text| decode::value(text.as_bytes())).unwrap_or_default()
}

fn digest(name: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The keys of a node: by its name, and by the digest of its name.
fn node_keys(node: &str) -> [String; 2] {
    [format!("node.{node}"), format!("node-sha256.{}", digest(node))]
}

/// Whether a change of this object is a change of the deny list.
pub fn is_deny_list(namespace: &str, name: &str) -> bool {
    namespace == DENY_LIST_NAMESPACE && name == DENY_LIST_NAME
}

/// The author, time and reason of a change of the deny list.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    pub by: &'a str,
    /// RFC 3339, with the full precision of the clock: it separates credentials issued in the same second.
    pub time: &'a str,
    /// May be empty.
    pub reason: &'a str,
}

impl Change<'_> {
    /// Refuses all credentials of a node from now on.
    pub fn revoke(&self, config_map: &mut Value, node: &str) {
        self.enter(config_map, node, "revoked");
    }

    /// Lets a node return with credentials issued from now on.
    pub fn readmit(&self, config_map: &mut Value, node: &str) {
        self.enter(config_map, node, "readmitted");
    }

    /// Forgets that a node was revoked: all its credentials are good again.
    pub fn forget(&self, config_map: &mut Value, node: &str) {
        let keys = node_keys(node);
        for map in MAPS {
            if let Some(entries) = config_map.get_mut(map).and_then(Value::as_object_mut) {
                entries.retain(|key, _| !keys.iter().any(|own| own.eq_ignore_ascii_case(key)));
            }
        }
    }

    /// Replaces all entries of a node by one.
    fn enter(&self, config_map: &mut Value, node: &str, field: &str) {
        self.forget(config_map, node);
        let [by_name, by_digest] = node_keys(node);
        let reason = kedge_api::excerpt_of(self.reason, REASON_CHARS);
        let mut value = json!({field: self.time, "by": self.by, "reason": reason});
        let fits = by_name.len() <= SUBDOMAIN_BYTES;
        if !fits {
            value["node"] = node.into();
        }
        if !config_map["data"].is_object() {
            config_map["data"] = json!({});
        }
        config_map["data"][if fits { by_name } else { by_digest }] = value.to_string().into();
    }
}

/// The time from which credentials of a readmitted node are valid: later than the node's entry and than all
/// its known credentials, whatever the clock shows. `newest_issue`: of the credentials that were used in the
/// node's name, Unix time in microseconds.
///
/// # Errors
/// The clock is behind the time of the node's entry, which is returned: credentials issued now would be
/// refused, or stolen ones accepted.
pub fn readmission_time(
    config_map: &Value,
    node: &str,
    now: OffsetDateTime,
    newest_issue: Option<i64>,
) -> Result<OffsetDateTime, OffsetDateTime> {
    let entry = explanation(config_map, node);
    let told = ["revoked", "readmitted"].iter().filter_map(|field| parsed(text(&entry, &[*field]))).max();
    let at =
        |micros: i64| OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000).unwrap_or(now);
    if let Some(told) = told.filter(|told| micros(now) < *told) {
        return Err(at(told));
    }
    // a credential issued at that very moment counts as old
    let after = newest_issue.max(told).map_or(now, |known| now.max(at(known)));
    Ok(after + time::Duration::MICROSECOND)
}

/// The explanation of a node's entry: an object with `revoked` or `readmitted`, `by` and `reason`; null
/// without an entry.
pub fn explanation(config_map: &Value, node: &str) -> Value {
    let keys = node_keys(node);
    let mut entries = MAPS.iter().filter_map(|map| config_map[*map].as_object()).flatten();
    let Some((_, entry)) = entries.find(|(key, _)| keys.iter().any(|own| own.eq_ignore_ascii_case(key)))
    else {
        return Value::Null;
    };
    Some(explained(entry)).filter(Value::is_object).unwrap_or_else(|| json!({"reason": entry}))
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
        let facts = [(NODE_NAME_FACT.to_owned(), vec!["edge-1".to_owned()])].into();
        let pods = Identity { facts, ..Identity::new("system:serviceaccount:default:runs", &[]) };
        check(json!({"node.edge-2": ""}), &pods, "");
        check(
            json!({"node.edge-1": ""}),
            &pods,
            "it is a token of a pod on node \"edge-1\", which was revoked",
        );
        // denied by its name alone, whatever its groups
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
        assert!(DenyList::read(&map).signing_refusal("system:node:edge-1", "").is_some());
        CHANGE.readmit(&mut map, "edge-1");
        let list = DenyList::read(&map);
        let time = micros(OffsetDateTime::parse(CHANGE.time, &Rfc3339).unwrap());
        for (issued, refused) in
            [(None, true), (Some(time - 1), true), (Some(time), false), (Some(time + 9), false)]
        {
            assert_eq!(list.refusal(&node("edge-1", issued)).is_some(), refused, "{issued:?}");
        }
        assert!(!list.is_revoked("edge-1"));
        for (requested, refused) in [
            ("", true),
            ("2026-11-22T09:59:59Z", true),
            ("2026-11-22T10:00:00Z", true),
            ("2026-11-22T10:00:01Z", false),
        ] {
            let found = list.signing_refusal("system:node:edge-1", requested);
            assert_eq!(found.is_some(), refused, "{requested}");
        }
        // tokens contain their time in seconds
        let facts = [(NODE_NAME_FACT.to_owned(), vec!["edge-1".to_owned()])].into();
        let token = Identity { facts, ..Identity::new("system:serviceaccount:default:runs", &[]) };
        for (issued, refused) in [(None, true), (Some(time - 7), true), (Some(time + 999_993), false)] {
            let token = Identity { issued, ..token.clone() };
            assert_eq!(list.refusal(&token).is_some(), refused, "{issued:?}");
        }
        CHANGE.forget(&mut map, "edge-1");
        assert_eq!(DenyList::read(&map), DenyList::default());
        assert_eq!(explanation(&map, "edge-1"), Value::Null);
    }

    #[test]
    fn deny_list_is_one_config_map() {
        for (namespace, name, expect) in [
            ("kube-system", "kedge-denied", true),
            ("default", "kedge-denied", false),
            ("kube-system", "other", false),
        ] {
            assert_eq!(is_deny_list(namespace, name), expect, "{namespace}/{name}");
        }
    }

    #[test]
    fn revocation_keeps_the_other_entries() {
        let mut map =
            json!({"data": {"user.jane": "", "node.edge-2": ""}, "binaryData": {"certificate.0b": ""}});
        CHANGE.revoke(&mut map, "edge-1");
        CHANGE.readmit(&mut map, "edge-2");
        let list = DenyList::read(&map);
        assert!(list.is_revoked("edge-1") && !list.is_revoked("edge-2"));
        assert_eq!((list.users.len(), list.certificates.len(), list.nodes.len()), (1, 1, 2));
    }

    #[test]
    fn no_certificate_is_signed_for_what_is_denied() {
        let list = list(&json!({"node.edge-1": "", "user.jane": ""}));
        for (user, refused) in
            [("system:node:edge-1", true), ("jane", true), ("system:node:edge-2", false), ("edge-1", false)]
        {
            assert_eq!(list.signing_refusal(user, "").is_some(), refused, "{user}");
        }
    }

    #[test]
    fn node_with_the_longest_name_is_revoked_and_readmitted() {
        for length in [1, 248, 249, 253] {
            let (name, mut map) = ("n".repeat(length), Value::Null);
            CHANGE.revoke(&mut map, &name);
            let key = map["data"].as_object().and_then(|data| data.keys().next()).unwrap();
            assert_eq!(DenyList::read(&map).nodes().collect::<Vec<_>>(), [&*name], "it is listed");
            assert_eq!(key.starts_with("node."), length <= 248, "by its name if that fits: {key}");
            assert_eq!(crate::kinds::names::config_key_complaint(key), None, "{length}");
            assert_eq!(explanation(&map, &name)["reason"], "stolen");
            let list = DenyList::read(&map);
            assert!(list.is_revoked(&name) && !list.is_revoked("edge-1") && list.unknown.is_empty());
            assert!(list.refusal(&node(&name, Some(i64::MAX))).is_some());
            CHANGE.readmit(&mut map, &name);
            let list = DenyList::read(&map);
            assert!(!list.is_revoked(&name) && list.refusal(&node(&name, Some(0))).is_some());
            CHANGE.forget(&mut map, &name);
            assert_eq!(DenyList::read(&map), DenyList::default());
        }
    }

    #[test]
    fn entry_in_bytes_denies_and_is_taken_back() {
        let mut map = json!({"binaryData": {"node.edge-1": "eA==", "certificate.0B": ""}});
        assert!(DenyList::read(&map).is_revoked("edge-1"));
        assert_eq!(explanation(&map, "edge-1"), json!({"reason": "eA=="}));
        CHANGE.readmit(&mut map, "edge-1");
        assert!(!DenyList::read(&map).is_revoked("edge-1"));
        assert_eq!(map["binaryData"], json!({"certificate.0B": ""}), "no key is in both");
    }

    #[test]
    fn strictest_of_several_entries_counts() {
        let readmitted = |time: &str| json!({"readmitted": time}).to_string();
        let (early, late) = ("2026-11-22T10:00:00Z", "2026-11-22T11:00:00Z");
        let by_digest = format!("node-sha256.{}", digest("edge-1"));
        let since = |time: &str| parsed(time);
        for (named, digested, expect) in [
            (readmitted(early), readmitted(late), since(late)),
            (readmitted(late), readmitted(early), since(late)),
            (readmitted(late), String::new(), None),
            (String::new(), readmitted(late), None),
        ] {
            let data = json!({"node.edge-1": named, by_digest.clone(): digested});
            assert_eq!(list(&data).readmission("edge-1"), Some(expect), "{data}");
            let upper = json!({by_digest.clone(): named, by_digest.replace(&digest("edge-1"), &digest("edge-1").to_ascii_uppercase()): digested});
            assert_eq!(list(&upper).readmission("edge-1"), Some(expect), "{upper}");
            // the change removes all of them
            let mut map = json!({"data": data, "binaryData": upper});
            CHANGE.readmit(&mut map, "edge-1");
            assert_eq!(list(&map["data"]).readmission("edge-1"), Some(since(CHANGE.time)));
            CHANGE.forget(&mut map, "edge-1");
            assert_eq!(map, json!({"data": {}, "binaryData": {}}));
        }
    }

    #[test]
    fn digest_entry_denies_the_node_of_its_digest_only() {
        let key = format!("node-sha256.{}", digest("edge-1"));
        let named = |node: &str| list(&json!({key.clone(): json!({"node": node}).to_string()}));
        for node in ["edge-1", "edge-2", ""] {
            assert!(named(node).is_revoked("edge-1") && !named(node).is_revoked("edge-2"), "{node}");
        }
        assert_eq!((named("edge-1").nodes().count(), named("edge-2").nodes().count()), (1, 0));
    }

    #[test]
    fn list_is_not_swept_away() {
        let whole = json!({"data": {"node.a": "", "user.jane": ""}, "binaryData": {"certificate.0b": ""}});
        let check = |new: &Value, version: bool, expect: &str| {
            let found = change_complaint(&whole, new, version).unwrap_or_default();
            assert!(found.contains(expect) && found.is_empty() == expect.is_empty(), "{new}: {found:?}");
        };
        check(&whole, false, "");
        check(
            &json!({"data": {"node.a": "", "user.jane": "", "certificate.0B": "", "node.b": ""}}),
            false,
            "",
        );
        let one = json!({"data": {"node.a": ""}});
        check(&one, true, "");
        check(&one, false, "names no resourceVersion");
        for swept in [Value::Null, json!({}), json!({"data": {}}), json!({"data": {"Node.a": "", "a": ""}})] {
            check(&swept, true, "node \"a\", user \"jane\", certificate 0b");
            assert_eq!(change_complaint(&one, &swept, true), None, "its only entry: {swept}");
        }
        assert!(deletion_complaint(&one).unwrap().contains("kedge-hub node readmit"));
        assert_eq!(deletion_complaint(&json!({"data": {"Node.a": ""}})), None);
        // a readmission also removes denials
        let mut readmitted = one.clone();
        CHANGE.readmit(&mut readmitted, "a");
        assert_eq!(
            lifted(&one, &readmitted),
            [Lifted { denial: Denial::Node("a".to_owned()), is_gone: false }]
        );
        assert_eq!(lifted(&readmitted, &one), []);
        assert!(change_complaint(&one, &readmitted, false).is_some());
        let digest = json!({"data": {format!("node-sha256.{}", digest("a")): ""}});
        assert_eq!((lifted(&digest, &one), lifted(&digest, &json!({})).len()), (vec![], 1));
    }

    #[test]
    fn united_list_denies_what_either_does() {
        let readmitted = |time: &str| json!({"readmitted": time}).to_string();
        let (early, late) = ("2026-11-22T10:00:00Z", "2026-11-22T11:00:00Z");
        let old = json!({"metadata": {"uid": "u"}, "data": {
            "node.kept": "", "node.back": readmitted(late), "node.early": readmitted(early)}});
        let new = json!({"data": {"node.back": "", "node.early": readmitted(late), "user.jane": "left", "x": ""},
            "binaryData": {"certificate.0b": "eA=="}});
        let mut list = old.clone();
        let kept: Vec<String> = unite(&mut list, &new).iter().map(ToString::to_string).collect();
        assert_eq!(kept, ["node \"back\"", "node \"early\"", "user \"jane\"", "certificate 0b"]);
        assert_eq!((lifted(&old, &list), lifted(&new, &list)), (vec![], vec![]));
        assert_eq!((&list["metadata"]["uid"], list["data"].get("x")), (&json!("u"), None));
        assert_eq!(unite(&mut list, &new), []);
        let mut none = Value::Null;
        unite(&mut none, &list);
        assert_eq!(lifted(&list, &none), []);
        // entries that the new list has in no form
        let mut gone = json!({"data": {"node.back": readmitted(late)}});
        unite_gone(&mut gone, &new);
        assert_eq!(DenyList::read(&gone).readmission("back"), Some(parsed(late)));
        forget(&mut gone, &[Denial::User("jane".to_owned()), Denial::Certificate("0b".to_owned())]);
        assert_eq!(DenyList::read(&gone).nodes().collect::<Vec<_>>(), ["back", "early"]);
    }

    #[test]
    fn readmission_is_after_all_that_is_known() {
        let time = |text: &str| OffsetDateTime::parse(text, &Rfc3339).unwrap();
        let micro = time::Duration::MICROSECOND;
        let (now, before) = (time("2026-11-22T11:00:00Z"), time("2026-11-22T09:00:00Z"));
        let mut map = Value::Null;
        CHANGE.revoke(&mut map, "a");
        let revoked = time(CHANGE.time);
        assert_eq!(readmission_time(&map, "a", now, None), Ok(now + micro));
        assert_eq!(readmission_time(&map, "a", revoked, None), Ok(revoked + micro));
        assert_eq!(readmission_time(&map, "a", before, None), Err(revoked));
        let issued = time("2026-11-25T00:00:00Z");
        assert_eq!(readmission_time(&map, "a", now, Some(micros(issued))), Ok(issued + micro));
        // readmitted again by a hub after its clock fell back
        CHANGE.readmit(&mut map, "a");
        assert_eq!(readmission_time(&map, "a", before, None), Err(revoked));
        // written by hand, without a time
        assert_eq!(readmission_time(&json!({"data": {"node.a": ""}}), "a", before, None), Ok(before + micro));
    }

    #[test]
    fn mistyped_key_is_named() {
        let digest = digest("a");
        for good in [
            "node.a",
            "node.a.b",
            "user.jane",
            "user.a_5f",
            &format!("certificate.{digest}"),
            &format!("node-sha256.{digest}"),
        ] {
            assert_eq!(complaint(good), None, "{good}");
        }
        for bad in [
            "a",
            "Node.a",
            "nodes.a",
            "node.A",
            "node.",
            "user.",
            "user.a_",
            "certificate.0b",
            "node-sha256.x",
        ] {
            assert!(complaint(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn keys_are_readable_and_unknown_ones_are_reported() {
        for user in ["jane", "Jane Doe", "system:x_y", "k\u{e4}fer", ""] {
            let key = user_key(user);
            assert!(key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)), "{key}");
            assert_eq!(decode(&key[5..]).as_deref(), Some(user));
        }
        assert_eq!(user_key("a.Z-9_:"), "user.a.Z-9_5f_3a");
        let found = list(&json!({"nodes.x": "", "user.a_": "", "user.a_zz": "", "node": "", "node.a": ""}));
        assert_eq!(found.unknown, ["node", "nodes.x", "user.a_", "user.a_zz"]);
        assert_eq!(found.nodes().collect::<Vec<_>>(), ["a"]);
    }
}
