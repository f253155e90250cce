//! Revoked credentials: the deny list, and its effect on an identity.
//!
//! Owns: the ConfigMap `kube-system/kedge-denied`, which is durable and backed up as every object, visible to
//! administrators, and out of the reach of nodes. Each key denies something: `node.NAME`, `user.NAME` (bytes
//! outside `-.a-zA-Z0-9` as `_xx`), `certificate.SHA256` (hexadecimal), or `node-sha256.SHA256` for a node
//! whose name is too long for a key. The value explains it to people. Always holds: a key counts whatever its
//! value is. Only a value that parses as a readmission limits it to earlier credentials of the user, or of the
//! node or its pods, by their issue numbers. Of several entries of one node or user the strictest counts. Administrators are
//! denied by certificate only, so that one of them cannot lock out all. An edit may add denials and never
//! ends one: that takes a command of the hub (`node readmit`, `denied lift`). So the list is deleted only
//! when it denies nothing; a new key that denies nothing is refused. The directory's marker has all entries,
//! too, and a start puts back what a replaced store lacks. Left to others: checking each request, closing
//! open connections (the server), explaining lifted denials (`denials`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::identity::{Identity, NODE_NAME_FACT, micros};
use crate::decode;
use crate::value::{at, text};
use kedge_api::names::{SUBDOMAIN_BYTES, is_subdomain};
use kedge_api::{BOOTSTRAP_USER_PREFIX, NODE_USER_PREFIX};

/// The namespace of the deny list.
pub const DENY_LIST_NAMESPACE: &str = "kube-system";
/// The name of the deny list, a ConfigMap.
pub const DENY_LIST_NAME: &str = "kedge-denied";
/// The reason of a revocation is cut to this many characters: the list has room for thousands of nodes.
const REASON_CHARS: usize = 200;
/// Beginning of a user's key.
const USER: &str = "user.";
/// Beginning of a certificate's key.
const CERTIFICATE: &str = "certificate.";
/// Beginning of a certificate's credential id.
const CERTIFICATE_ID: &str = "X509SHA256=";
/// Field of an entry: credentials with a greater issue number are let in.
const AFTER: &str = "after";
/// Field of an entry without exceptions: the issue number that the revocation took.
const ACT: &str = "issue";
/// Denials that a refusal names one by one.
const NAMED: usize = 5;
/// The maps of a ConfigMap; no key is in both. An entry counts in either: the operator who wrote it meant it.
const MAPS: [&str; 2] = ["data", "binaryData"];

/// The credentials that the entry of a node or user denies: all (`None`), or those from before a readmission.
type Readmitted = Option<Since>;

/// The credentials that a readmission lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Since {
    /// Those with a greater issue number.
    after: u64,
    /// In the entry of an older hub, which knew no numbers: credentials without a number are let in, too, if
    /// they carry this time or a later one. In Unix microseconds; the maximum lets none in. Both times were
    /// recorded; no clock is read.
    numberless: i64,
}

impl Since {
    /// Whether a credential with this number and time is new enough.
    fn admits(self, issue: u64, issued: Option<i64>) -> bool {
        let admits_time = |time| self.numberless < i64::MAX && time >= self.numberless;
        issue > self.after || (issue == 0 && issued.is_some_and(admits_time))
    }
}

/// The deny list, parsed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DenyList {
    nodes: BTreeMap<String, Readmitted>,
    /// Nodes by the digest of their name.
    digests: BTreeMap<String, Readmitted>,
    users: BTreeMap<String, Readmitted>,
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
                Some(("user", name)) => {
                    decode(name).map(|name| deny(&mut list.users, &name, readmitted(value))).is_some()
                }
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
        match self.users.get(&identity.user) {
            Some(None) => return Some(format!("user {:?} was revoked", identity.user)),
            // a caller without a credential of its own, or with a bootstrap token, has no number
            Some(Some(since))
                if !identity.credential.is_empty() && !since.admits(identity.issue, identity.issued) =>
            {
                return Some(format!(
                    "the credential of user {:?} is older than its readmission",
                    identity.user
                ));
            }
            _ => {}
        }
        let node = identity.facts.get(NODE_NAME_FACT).and_then(|names| names.first());
        let of_pod = node.and_then(|node| match self.readmission(node)? {
            None => Some(format!("it is a token of a pod on node {node:?}, which was revoked")),
            Some(since) if since.admits(identity.issue, identity.issued) => None,
            Some(_) => Some(format!("the token of a pod on node {node:?} is older than its readmission")),
        });
        if of_pod.is_some() {
            return of_pod;
        }
        self.node_refusal(identity)
    }

    /// The reason why no certificate is signed for this user, if there is one.
    pub fn signing_refusal(&self, user: &str) -> Option<String> {
        if self.users.get(user).is_some_and(Option::is_none) {
            return Some(format!("user {user:?} is revoked"));
        }
        let node = user.strip_prefix(NODE_USER_PREFIX)?;
        let refuse = || format!("node {node:?} is revoked; `kedge-hub node readmit` takes that back");
        self.readmission(node)?.is_none().then(refuse)
    }

    /// The reason why nothing is signed by request of this user, if there is one. `issue`: of the credential
    /// that the request was made with. A request that waited over a readmission may be the thief's.
    /// `requested` (RFC 3339) stands for the time of a credential without a number.
    pub fn requester_refusal(&self, user: &str, issue: u64, requested: &str) -> Option<String> {
        let is_old = |since: Since| !since.admits(issue, parsed(requested));
        self.signing_refusal(user).or_else(|| {
            // a bootstrap token has no number
            let of_user = self.users.get(user).copied().flatten();
            if of_user.is_some_and(|since| is_old(since) && !user.starts_with(BOOTSTRAP_USER_PREFIX)) {
                return Some(format!(
                    "user {user:?} asked with a credential that is older than its readmission; make a new request"
                ));
            }
            let node = user.strip_prefix(NODE_USER_PREFIX)?;
            let since = self.readmission(node)??;
            is_old(since).then(|| {
                format!("node {node:?} asked with a credential that is older than its readmission; make a new request")
            })
        })
    }

    /// The highest issue number that an entry names: it was handed out.
    pub fn highest_issue(&self) -> u64 {
        let all = self.nodes.values().chain(self.digests.values()).chain(self.users.values());
        all.flatten().map(|since| since.after).max().unwrap_or(0)
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

    fn node_refusal(&self, identity: &Identity) -> Option<String> {
        let node = identity.user.strip_prefix(NODE_USER_PREFIX)?;
        match self.readmission(node)? {
            None => Some(format!("node {node:?} was revoked")),
            Some(since) if since.admits(identity.issue, identity.issued) => None,
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
    for (name, before) in &old.users {
        compare(Denial::User(name.clone()), Some(*before), new.users.get(name).copied());
    }
    for id in old.certificates.difference(&new.certificates) {
        compare(Denial::Certificate(id.clone()), Some(None), None);
    }
    all
}

/// How to lift a denial, for the texts of refusals.
const THE_WAY: &str = "use `kedge-hub node readmit NAME`, or `kedge-hub denied lift ENTRY` for any entry";

/// Why the list may not be deleted.
pub fn deletion_complaint(list: &Value) -> Option<String> {
    let denied = lifted(list, &Value::Null);
    (!denied.is_empty()).then(|| format!("it would let in again {}; {THE_WAY}", shown_lifted(&denied)))
}

/// The reason why a writer may not make a change, if there is one: no edit by a client ends a denial.
pub fn change_complaint(old: &Value, new: &Value) -> Option<String> {
    let lifted = lifted(old, new);
    (!lifted.is_empty()).then(|| format!("it would let in again {}; {THE_WAY}", shown_lifted(&lifted)))
}

/// Whether an entry denies the holder of a name, who may have several credentials. A lift of it readmits the
/// holder, with new credentials alone.
pub fn is_of_holder(key: &str) -> bool {
    complaint(key).is_none() && !key.starts_with(CERTIFICATE)
}

/// The node that an entry denies, if the list knows its name.
pub fn node_of(config_map: &Value, key: &str) -> Option<String> {
    let (map, own) = keys(config_map).find(|(_, own)| *own == key)?;
    match own.split_once('.')? {
        ("node", name) => Some(name.to_owned()),
        ("node-sha256", entry) => {
            let name = explained(&config_map[map][own])["node"].as_str()?.to_owned();
            (digest(&name) == entry.to_ascii_lowercase()).then_some(name)
        }
        _ => None,
    }
}

/// Ends a denial by the key of its entry; returns the entry's value, or `None` if the list denies nothing
/// whole by that name. A certificate's entry goes. A user's or node's becomes a readmission: the credentials
/// from before it stay refused.
pub fn lift(config_map: &mut Value, key: &str, change: &Change<'_>) -> Option<Value> {
    let exact = keys(config_map).find(|(_, own)| *own == key);
    // the case of a user's name counts
    let other = || keys(config_map).find(|(_, own)| !own.starts_with(USER) && own.eq_ignore_ascii_case(key));
    let (map, own) = exact.or_else(other)?;
    let own = own.to_owned();
    if !is_of_holder(&own) {
        return config_map[map].as_object_mut()?.remove(&own);
    }
    let before = config_map[map][&own].clone();
    match node_of(config_map, &own) {
        // all entries of the node: the strictest counts
        Some(node) => {
            DenyList::read(config_map).is_revoked(&node).then(|| change.readmit(config_map, &node))?;
        }
        None if readmitted(&before).is_some() => return None,
        None => {
            config_map[map].as_object_mut()?.remove(&own);
            let entry = change.explained(json!({"readmitted": change.time, AFTER: change.issue}));
            config_map["data"][own] = entry.to_string().into();
        }
    }
    Some(before)
}

/// The first of some denials by name, and the number of the others.
pub fn shown<'a>(denials: impl ExactSizeIterator<Item = &'a Denial>) -> String {
    let others = denials.len().saturating_sub(NAMED);
    let mut names: Vec<String> = denials.take(NAMED).map(ToString::to_string).collect();
    if others > 0 {
        names.push(format!("{others} others"));
    }
    names.join(", ")
}

fn shown_lifted(lifted: &[Lifted]) -> String {
    shown(lifted.iter().map(|lifted| &lifted.denial))
}

/// A deny list without entries.
pub fn empty_list() -> Value {
    json!({"metadata": {"name": DENY_LIST_NAME, "namespace": DENY_LIST_NAMESPACE}})
}

/// Unites a list with another one: it gets the denials that it lacks. If both have an entry, the later act
/// counts, or the stricter entry if their order is unknown. Returns the denials that were added or made
/// stricter.
pub fn unite(list: &mut Value, other: &Value) -> Vec<Denial> {
    let before = maps(list);
    let entries = MAPS
        .iter()
        .flat_map(|map| other[*map].as_object().into_iter().flatten().map(move |entry| (map, entry)));
    for (map, (key, value)) in entries.filter(|(_, (key, _))| !denies_nothing(key)) {
        let place = MAPS.iter().find(|map| at(list, &[*map, key]).is_some()).unwrap_or(map);
        if at(list, &[place, key]).is_none_or(|own| supersedes(value, own)) {
            if !list[*place].is_object() {
                list[*place] = json!({});
            }
            // one map has text and the other bytes, so a value of the other map is not valid here: the key
            // suffices
            list[*place][key] = if place == map { value.clone() } else { "".into() };
        }
    }
    lifted(list, &before).into_iter().map(|lifted| lifted.denial).collect()
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

/// The issue number that the change took which wrote an entry; `None` if a person or an older hub wrote it.
fn act(value: &Value) -> Option<u64> {
    let entry = explained(value);
    entry[AFTER].as_u64().or_else(|| entry[ACT].as_u64())
}

/// Whether `other` replaces an entry of the same key: the later act does, by the numbers that both took;
/// without them the stricter entry does.
fn supersedes(other: &Value, own: &Value) -> bool {
    match (act(other), act(own)) {
        (Some(other), Some(own)) => other > own,
        _ => {
            let own = readmitted(own);
            strictest(own, readmitted(other)) != own
        }
    }
}

fn strictest(one: Readmitted, other: Readmitted) -> Readmitted {
    let (one, other) = (one?, other?);
    Some(Since { after: one.after.max(other.after), numberless: one.numberless.max(other.numberless) })
}

fn parsed(time: &str) -> Option<i64> {
    OffsetDateTime::parse(time, &Rfc3339).ok().map(micros)
}

/// The readmission in an entry. Any other value denies without an exception.
fn readmitted(value: &Value) -> Readmitted {
    let entry = explained(value);
    match &entry[AFTER] {
        Value::Null => parsed(text(&entry, &["readmitted"])).map(|numberless| Since { after: 0, numberless }),
        after => after.as_u64().map(|after| Since { after, numberless: i64::MAX }),
    }
}

/// An entry's value as the hub writes it, else null.
pub fn explained(value: &Value) -> Value {
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
    /// RFC 3339; for people.
    pub time: &'a str,
    /// The issue number that this change took: later changes and credentials have greater ones.
    pub issue: u64,
    /// May be empty.
    pub reason: &'a str,
}

impl Change<'_> {
    /// Refuses all credentials of a node from now on.
    pub fn revoke(&self, config_map: &mut Value, node: &str) {
        self.enter(config_map, node, json!({"revoked": self.time, ACT: self.issue}));
    }

    /// Lets a node return with credentials that are issued after this change.
    pub fn readmit(&self, config_map: &mut Value, node: &str) {
        self.enter(config_map, node, json!({"readmitted": self.time, AFTER: self.issue}));
    }

    /// Refuses the credentials that a decommissioned node had. The name may be used again, with credentials
    /// that are issued after this change.
    pub fn decommission(&self, config_map: &mut Value, node: &str) {
        self.enter(config_map, node, json!({"decommissioned": self.time, AFTER: self.issue}));
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

    /// An entry's value, with the author and the reason.
    fn explained(&self, mut value: Value) -> Value {
        value["by"] = self.by.into();
        value["reason"] = kedge_api::excerpt_of(self.reason, REASON_CHARS).into();
        value
    }

    /// Replaces all entries of a node by one.
    fn enter(&self, config_map: &mut Value, node: &str, mut value: Value) {
        self.forget(config_map, node);
        let [by_name, by_digest] = node_keys(node);
        value = self.explained(value);
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
    user.bytes().fold(USER.to_owned(), |mut key, byte| {
        match byte {
            b'-' | b'.' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => key.push(char::from(byte)),
            byte => {
                let _ = write!(key, "_{byte:02x}");
            }
        }
        key
    })
}

/// The user of a key, if it denies one.
pub fn user_of(key: &str) -> Option<String> {
    key.strip_prefix(USER).and_then(decode)
}

/// The entry that denies a user, and its explanation.
pub fn revocation_of_user(name: &str, by: &str, time: &str, reason: &str) -> (String, String) {
    let reason: String = reason.chars().take(REASON_CHARS).collect();
    (user_key(name), json!({"revoked": time, "by": by, "reason": reason}).to_string())
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

    const CHANGE: Change =
        Change { by: "admin", time: "2026-11-22T10:00:00.000007Z", issue: 7, reason: "stolen" };

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
            json!({"revoked": CHANGE.time, "issue": 7, "by": "admin", "reason": "stolen"})
        );
        assert!(DenyList::read(&map).signing_refusal("system:node:edge-1").is_some());
        CHANGE.readmit(&mut map, "edge-1");
        let list = DenyList::read(&map);
        assert_eq!((list.is_revoked("edge-1"), list.highest_issue()), (false, 7));
        // whatever a clock said about a credential without a number, and about one with a number
        for (issue, refused) in [(0, true), (6, true), (7, true), (8, false), (u64::MAX, false)] {
            for issued in [None, Some(0), Some(i64::MAX)] {
                let identity = Identity { issue, ..node("edge-1", issued) };
                assert_eq!(list.refusal(&identity).is_some(), refused, "{issue}");
                let facts = [(NODE_NAME_FACT.to_owned(), vec!["edge-1".to_owned()])].into();
                let token = Identity::new("system:serviceaccount:default:runs", &[]);
                let token = Identity { facts, issue, issued, ..token };
                assert_eq!(list.refusal(&token).is_some(), refused, "{issue}");
            }
            let asked = list.requester_refusal("system:node:edge-1", issue, "2099-01-01T00:00:00Z");
            assert_eq!(asked.is_some(), refused, "{issue}");
        }
        assert_eq!(list.signing_refusal("system:node:edge-1"), None, "an administrator may ask for it");
        CHANGE.forget(&mut map, "edge-1");
        assert_eq!(DenyList::read(&map), DenyList::default());
        assert_eq!(explanation(&map, "edge-1"), Value::Null);
    }

    /// The stolen certificate stays refused when its user returns.
    #[test]
    fn readmitted_user_needs_newer_credentials() {
        let (key, entry) = revocation_of_user("jane", "admin", CHANGE.time, "stolen");
        let mut map = json!({"data": {key.clone(): entry, "user.Jane": ""}});
        let denied = map.clone();
        let jane =
            |issue: u64| Identity { issue, credential: "X509SHA256=0a".into(), ..Identity::new("jane", &[]) };
        assert!(DenyList::read(&map).refusal(&jane(u64::MAX)).is_some());
        assert!(lift(&mut map, &key, &CHANGE).is_some());
        let list = DenyList::read(&map);
        for (issue, refused) in [(0, true), (7, true), (8, false)] {
            assert_eq!(list.refusal(&jane(issue)).is_some(), refused, "{issue}");
            let asked = list.requester_refusal("jane", issue, "2099-01-01T00:00:00Z");
            assert_eq!(asked.is_some(), refused, "{issue}");
        }
        assert_eq!((list.refusal(&Identity::new("jane", &[])), list.signing_refusal("jane")), (None, None));
        assert!(list.refusal(&Identity::new("Jane", &[])).is_some(), "another user");
        assert_eq!(list.highest_issue(), 7);
        let changed = lifted(&denied, &map);
        assert_eq!(changed, [Lifted { denial: Denial::User("jane".to_owned()), is_gone: false }]);
        assert!(change_complaint(&denied, &map).is_some() && change_complaint(&map, &denied).is_none());
        assert_eq!(lift(&mut map, &key, &CHANGE), None, "only once");
        let mut mistyped = json!({"data": {"User.jane": "", "user.a_": ""}});
        assert!(
            lift(&mut mistyped, "User.jane", &CHANGE).is_some()
                && lift(&mut mistyped, "user.a_", &CHANGE).is_some()
        );
        assert_eq!(mistyped["data"], json!({}), "they denied nothing");
        // in bytes, and of a token without a number
        let mut map = json!({"binaryData": {"user.system_3abootstrap_3aabcdef": "eA=="}});
        assert!(lift(&mut map, "user.system_3abootstrap_3aabcdef", &CHANGE).is_some());
        let (list, user) = (DenyList::read(&map), "system:bootstrap:abcdef");
        assert_eq!(
            (list.refusal(&Identity::new(user, &[])), list.requester_refusal(user, 0, "")),
            (None, None)
        );
        assert_eq!(map["binaryData"], json!({}));
    }

    /// Whatever entry a person lifts, the stolen credentials stay refused.
    #[test]
    fn lifted_node_needs_newer_credentials() {
        let by_digest = format!("node-sha256.{}", digest("edge-1"));
        let upper = by_digest.to_ascii_uppercase().replace("NODE-SHA", "node-sha");
        let named = json!({"node": "edge-1"}).to_string();
        let other = json!({"node": "edge-2"}).to_string();
        let check = |mut map: Value, key: &str| {
            let before = map.clone();
            assert!(DenyList::read(&map).is_revoked("edge-1"), "{map}");
            assert!(lift(&mut map, key, &CHANGE).is_some(), "{map}");
            let list = DenyList::read(&map);
            for (issue, refused) in [(0, true), (7, true), (8, false)] {
                let identity = Identity { issue, ..node("edge-1", Some(i64::MAX)) };
                assert_eq!(list.refusal(&identity).is_some(), refused, "{issue} {map}");
            }
            assert!(!list.is_revoked("edge-1") && list.signing_refusal("system:node:edge-1").is_none());
            let changed = lifted(&before, &map);
            assert!(matches!(&changed[..], [Lifted { is_gone: false, .. }]), "{changed:?}");
            assert_eq!(lift(&mut map, key, &CHANGE), None, "a readmission stays");
            assert!(DenyList::read(&map).is_revoked("edge-9"));
        };
        let whole = |data: Value| {
            let mut map = json!({"data": data});
            map["data"]["node.edge-9"] = "".into();
            map
        };
        check(whole(json!({"node.edge-1": ""})), "node.edge-1");
        check(whole(json!({"node.edge-1": ""})), "Node.Edge-1");
        check(whole(json!({"node.edge-1": "", by_digest.clone(): ""})), "node.edge-1");
        check(whole(json!({"node.edge-1": "", by_digest.clone(): named})), &by_digest);
        check(whole(json!({by_digest.clone(): ""})), &by_digest);
        check(whole(json!({by_digest.clone(): other})), &by_digest);
        check(whole(json!({upper.clone(): named})), &by_digest);
        check(json!({"binaryData": {"node.edge-1": "eA==", "node.edge-9": ""}}), "node.edge-1");
        // a readmission that a stricter entry outweighs
        let readmitted = json!({"readmitted": CHANGE.time, "after": 3}).to_string();
        check(whole(json!({"node.edge-1": readmitted, by_digest: ""})), "node.edge-1");
        // the mistyped name of an older hub: its end touches nobody else's entry
        let mut map = whole(json!({"node.edge-1": "", "node.Edge-1": ""}));
        assert!(lift(&mut map, "node.Edge-1", &CHANGE).is_some());
        assert_eq!(map, whole(json!({"node.edge-1": ""})));
    }

    /// Of a hub that knew no issue numbers.
    #[test]
    fn older_readmission_admits_by_its_own_time() {
        let time = parsed(CHANGE.time).unwrap();
        let list = list(&json!({"node.edge-1": json!({"readmitted": CHANGE.time}).to_string()}));
        for (issue, issued, refused) in [
            (0, None, true),
            (0, Some(time - 1), true),
            (0, Some(time), false),
            // issued after the upgrade, by whatever clock
            (1, Some(0), false),
        ] {
            let identity = Identity { issue, ..node("edge-1", issued) };
            assert_eq!(list.refusal(&identity).is_some(), refused, "{issue} {issued:?}");
        }
        for after in [json!(-1), json!("x"), json!(1.5)] {
            let entry = json!({"readmitted": CHANGE.time, "after": after}).to_string();
            assert!(self::list(&json!({"node.edge-1": entry})).is_revoked("edge-1"), "{after}");
        }
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
            assert_eq!(list.signing_refusal(user).is_some(), refused, "{user}");
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
        let since = |time: &str| Some(Since { after: 0, numberless: parsed(time).unwrap() });
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
            let numbered = Since { after: CHANGE.issue, numberless: i64::MAX };
            assert_eq!(list(&map["data"]).readmission("edge-1"), Some(Some(numbered)));
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
        let check = |new: &Value, expect: &str| {
            let found = change_complaint(&whole, new).unwrap_or_default();
            assert!(found.contains(expect) && found.is_empty() == expect.is_empty(), "{new}: {found:?}");
        };
        check(&whole, "");
        check(&json!({"data": {"node.a": "", "user.jane": "", "certificate.0B": "", "node.b": ""}}), "");
        let mut one = json!({"data": {"node.a": ""}});
        check(&one, "user \"jane\", certificate 0b; use `kedge-hub node readmit NAME`");
        for swept in [Value::Null, json!({}), json!({"data": {}}), json!({"data": {"Node.a": "", "a": ""}})] {
            check(&swept, "node \"a\", user \"jane\", certificate 0b");
            assert!(change_complaint(&one, &swept).is_some(), "its only entry: {swept}");
        }
        assert_eq!(
            (lift(&mut one.clone(), "Node.A", &CHANGE), lift(&mut one, "node.b", &CHANGE)),
            (Some("".into()), None)
        );
        let mut certificate = json!({"binaryData": {"certificate.0B": "eA=="}});
        assert!(lift(&mut certificate, "certificate.0b", &CHANGE).is_some());
        assert_eq!(certificate, json!({"binaryData": {}}), "it has no other credentials");
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
        assert!(change_complaint(&one, &readmitted).is_some());
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
        let since = Since { after: 0, numberless: parsed(late).unwrap() };
        assert_eq!(DenyList::read(&gone).readmission("back"), Some(Some(since)));
        forget(&mut gone, &[Denial::User("jane".to_owned()), Denial::Certificate("0b".to_owned())]);
        assert_eq!(DenyList::read(&gone).nodes().collect::<Vec<_>>(), ["back", "early"]);
    }

    #[test]
    fn later_act_counts_in_united_lists() {
        let entry = |issue: u64, act: fn(&Change<'_>, &mut Value, &str)| {
            let mut map = Value::Null;
            act(&Change { issue, ..CHANGE }, &mut map, "a");
            map
        };
        let check = |one: &Value, other: &Value, expect: Option<u64>| {
            for (list, other) in [(one, other), (other, one)] {
                let mut list = list.clone();
                unite(&mut list, other);
                let found = DenyList::read(&list).readmission("a").unwrap();
                assert_eq!(found.map(|since| since.after), expect, "{list}");
            }
        };
        type Act = fn(&Change<'_>, &mut Value, &str);
        let revoke: Act = |change, map, node| change.revoke(map, node);
        let readmit: Act = |change, map, node| change.readmit(map, node);
        check(&entry(1, revoke), &entry(2, readmit), Some(2));
        check(&entry(3, revoke), &entry(2, readmit), None);
        check(&entry(1, readmit), &entry(2, |change, map, node| change.decommission(map, node)), Some(2));
        // written by hand: nobody knows when
        check(&entry(9, readmit), &json!({"data": {"node.a": ""}}), None);
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
