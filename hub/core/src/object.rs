//! A stored object: its JSON text, and beside it the few fields that are needed often.
//!
//! The text is authoritative and holds its own resourceVersion; it is parsed when a request needs more. So
//! 5,000 nodes cost what their JSON costs, a plain list is a concatenation, and one event is written once for
//! all its watchers. Always holds: the text can be parsed, because it was, or because it was written from a
//! value that is not too deep.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use crate::cost;
use crate::kinds::{Kind, index_of, text};
use crate::loans::Loans;

/// The key of an object: `namespace/name`, and `/name` for cluster-scoped kinds.
pub fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// One object at one revision. Never changes, except for the list of its readers.
#[derive(Debug)]
pub struct Object {
    /// The revision at which it was written: `metadata.resourceVersion`.
    pub revision: u64,
    /// The object as JSON text, including apiVersion and kind.
    pub json: Bytes,
    facts: Arc<Facts>,
    pub(crate) loans: Loans,
}

/// Another object that an object names. It need not exist.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// The position of its kind in the table.
    pub kind: usize,
    /// Its [`key`].
    pub key: Box<str>,
}

impl Reference {
    /// `namespace` is empty for cluster-scoped kinds.
    pub fn new(kind: &Kind, namespace: &str, name: &str) -> Reference {
        Reference { kind: index_of(kind), key: key(namespace, name).into() }
    }
}

/// The fields of an object that are needed often. Versions that do not differ in them share them.
#[derive(Debug)]
pub struct Facts {
    /// Empty for cluster-scoped kinds.
    pub namespace: Box<str>,
    /// `metadata.name`.
    pub name: Box<str>,
    /// `metadata.uid`.
    pub uid: Box<str>,
    labels: Box<[(Box<str>, Box<str>)]>,
    fields: Box<[Box<str>]>,
    /// UIDs of the objects that own it.
    pub owners: Box<[Box<str>]>,
    /// The user to whom it is charged ([`Kind::holder`]).
    pub holder: Option<Box<str>>,
    /// The objects that its node reads because of it ([`Kind::refers`]), in order, each once.
    pub refers: Box<[Reference]>,
    /// `metadata.deletionTimestamp` is set.
    pub terminating: bool,
}

impl Deref for Object {
    type Target = Facts;

    fn deref(&self) -> &Facts {
        &self.facts
    }
}

impl Object {
    /// From a value whose `metadata.resourceVersion` is `revision`; `None` if it has no name, or is too deep
    /// to be read back.
    pub fn new(kind: &Kind, value: &Value, revision: u64) -> Option<Object> {
        cost::check_depth(value).ok()?;
        let json = serde_json::to_vec(value).ok()?;
        Object::with_json(kind, value, revision, Bytes::from(json))
    }

    /// From stored text.
    #[expect(clippy::disallowed_methods, reason = "what is stored was within the budget of bodies")]
    pub fn from_json(kind: &Kind, json: Vec<u8>, revision: u64) -> Option<Object> {
        let value: Value = serde_json::from_slice(&json).ok()?;
        Object::with_json(kind, &value, revision, Bytes::from(json))
    }

    fn with_json(kind: &Kind, value: &Value, revision: u64, json: Bytes) -> Option<Object> {
        let meta = value.get("metadata")?;
        let name = text(meta, &["name"]);
        if name.is_empty() {
            return None;
        }
        let labels = meta.get("labels").and_then(Value::as_object).into_iter().flatten();
        let owners = meta.get("ownerReferences").and_then(Value::as_array).into_iter().flatten();
        let facts = Facts {
            namespace: text(meta, &["namespace"]).into(),
            name: name.into(),
            uid: text(meta, &["uid"]).into(),
            labels: labels
                .map(|(key, value)| (key.as_str().into(), value.as_str().unwrap_or("").into()))
                .collect(),
            fields: kind.selectable.iter().map(|selectable| (selectable.value)(value).into()).collect(),
            owners: owners.map(|owner| text(owner, &["uid"]).into()).collect(),
            holder: (kind.holder)(value).map(String::into_boxed_str),
            refers: (kind.refers)(value).into(),
            terminating: !text(meta, &["deletionTimestamp"]).is_empty(),
        };
        Some(Object { revision, json, facts: Arc::new(facts), loans: Loans::default() })
    }

    /// A later version with another text but the same facts.
    pub(crate) fn with_text(&self, json: Vec<u8>, revision: u64) -> Object {
        Object { revision, json: Bytes::from(json), facts: Arc::clone(&self.facts), loans: Loans::default() }
    }

    /// Whether both share their facts, so none of them differs.
    pub(crate) fn shares_facts(&self, other: &Object) -> bool {
        Arc::ptr_eq(&self.facts, &other.facts)
    }

    /// The object as a value, parsed anew at each call.
    #[expect(clippy::disallowed_methods, reason = "what is stored was within the budget of bodies")]
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.json)
            .expect("the text was parsed, or written from a value of bounded depth")
    }

    /// A label's value.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(name, _)| &**name == key).map(|(_, value)| &**value)
    }

    /// The kind's selectable field of this index.
    pub fn field(&self, index: usize) -> &str {
        self.fields.get(index).map_or("", |value| value)
    }
}

/// One change of one object.
#[derive(Debug)]
pub struct Event {
    /// The revision that the change made; unique over all kinds, and rising.
    pub revision: u64,
    /// Before; absent when created.
    pub old: Option<Arc<Object>>,
    /// After; absent when deleted.
    pub new: Option<Arc<Object>>,
    /// The deleted object with the revision of its deletion, as watches send it.
    pub last: Option<Arc<Object>>,
}

impl Event {
    /// The object as this change left it, or as it was when deleted.
    pub fn object(&self) -> &Arc<Object> {
        let known = self.new.as_ref().or(self.last.as_ref()).or(self.old.as_ref());
        known.expect("a change has an object before it or after it")
    }

    /// An estimate of its bytes, for the limit of the event ring.
    pub fn weight(&self) -> usize {
        128 + [&self.old, &self.new, &self.last]
            .into_iter()
            .flatten()
            .map(|object| object.json.len())
            .sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::CONTROLLER_REVISION;

    #[test]
    fn value_that_cannot_be_read_back_is_no_object() {
        let revision = |levels: usize| {
            let data = (0..levels).fold(json!({}), |inner, _| json!({ "a": inner }));
            json!({"metadata": {"name": "r", "namespace": "d"}, "data": data})
        };
        let deepest = revision(cost::MAX_DEPTH - 2);
        let object = Object::new(&CONTROLLER_REVISION, &deepest, 1).unwrap();
        assert_eq!(object.value(), deepest);
        assert!(Object::from_json(&CONTROLLER_REVISION, object.json.to_vec(), 1).is_some());
        assert!(Object::new(&CONTROLLER_REVISION, &revision(cost::MAX_DEPTH - 1), 1).is_none());
    }
}
