//! The conditions of a write on other objects than its own, judged where the order of writes is decided.
//!
//! Always holds: the judgement sees every earlier write, including those of the same batch, so two writes can
//! never each rely on something that the other removes: nothing is created in a namespace after its deletion
//! began, nor above a user's quota, however many try at once. Left to others: choosing the conditions
//! (`requests`), and the answer to the caller, which comes from a second decision on the new state.

use std::collections::BTreeMap;

use super::index::{Index, Sink};
use super::order::{Batch, WriteError};
use super::relations::Usage;
use crate::kinds::{Kind, NAMESPACE, index_of};
use crate::object::Object;

/// A precondition besides the version of the written object.
#[derive(Debug, Clone)]
pub enum Require {
    /// The object's namespace exists and is not being deleted.
    OpenNamespace,
    /// A cluster-scoped object of this name and UID exists.
    Alive { kind: &'static Kind, name: String, uid: String },
    /// Another object is still at this revision, or still missing.
    Unchanged { kind: &'static Kind, namespace: String, name: String, revision: Option<u64> },
    /// The usage charged to the holder of the object stays within these limits, or shrinks.
    Quota(Quota),
}

/// Most objects and bytes that may be charged to one user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Objects of the written kind.
    pub objects: usize,
    /// JSON text of all kinds together.
    pub bytes: usize,
}

/// The effect of a batch's staged writes on the charged usage.
#[derive(Debug, Default)]
pub(super) struct Charges(BTreeMap<(Box<str>, usize), (isize, isize)>);

impl Charges {
    pub(super) fn add(&mut self, kind: &Kind, old: Option<&Object>, new: Option<&Object>) {
        for (object, sign) in [(old, -1), (new, 1)] {
            let Some((object, holder)) = object.and_then(|object| Some((object, object.holder.clone()?)))
            else {
                continue;
            };
            let (objects, bytes) = self.0.entry((holder, index_of(kind))).or_default();
            *objects += sign;
            *bytes += sign * isize::try_from(object.json.len()).unwrap_or(isize::MAX);
        }
    }

    /// The usage with these changes.
    fn on(&self, usage: Usage, holder: &str, kind: usize) -> Usage {
        let of_holder = (Box::from(holder), 0)..=(Box::from(holder), usize::MAX);
        let bytes: isize = self.0.range(of_holder).map(|(_, (_, bytes))| bytes).sum();
        let objects = self.0.get(&(Box::from(holder), kind)).map_or(0, |(objects, _)| *objects);
        Usage {
            bytes: usage.bytes.saturating_add_signed(bytes),
            objects: usage.objects.saturating_add_signed(objects),
        }
    }
}

/// Judges all requirements of one write, which turns `old` into `new`.
pub(super) fn judge<S: Sink>(
    requires: &[Require],
    index: &Index<S>,
    batch: &Batch,
    kind: &Kind,
    (old, new): (Option<&Object>, Option<&Object>),
) -> Result<(), WriteError> {
    for require in requires {
        match require {
            Require::OpenNamespace => {
                let namespace = new.or(old).map_or("", |object| &object.namespace);
                if batch.get(index, &NAMESPACE, "", namespace).is_none_or(|found| found.terminating) {
                    return Err(WriteError::Mismatch);
                }
            }
            Require::Alive { kind, name, uid } => {
                if batch.get(index, kind, "", name).is_none_or(|found| *found.uid != **uid) {
                    return Err(WriteError::Mismatch);
                }
            }
            // Leases have another lock: see `Unchanged` in the writer
            Require::Unchanged { kind, .. } if kind.is_renewed() => {}
            Require::Unchanged { kind, namespace, name, revision } => {
                if batch.get(index, kind, namespace, name).map(|found| found.revision) != *revision {
                    return Err(WriteError::Mismatch);
                }
            }
            Require::Quota(quota) => within(*quota, index, batch, kind, (old, new))?,
        }
    }
    Ok(())
}

fn within<S: Sink>(
    quota: Quota,
    index: &Index<S>,
    batch: &Batch,
    kind: &Kind,
    (old, new): (Option<&Object>, Option<&Object>),
) -> Result<(), WriteError> {
    let Some((new, holder)) = new.and_then(|new| Some((new, new.holder.as_deref()?))) else { return Ok(()) };
    let of_kind = index_of(kind);
    let used = batch.charges.on(index.usage(holder, kind), holder, of_kind);
    let old = old.filter(|old| old.holder.as_deref() == Some(holder));
    let (replaced, was) = old.map_or((0, 0), |old| (old.json.len(), 1));
    let bytes = used.bytes.saturating_sub(replaced) + new.json.len();
    if used.objects + 1 - was > quota.objects && old.is_none() {
        return Err(WriteError::OverQuota(format!(
            "exceeded quota: {holder}, requested: {plural}=1, used: {plural}={}, limited: {plural}={}",
            used.objects,
            quota.objects,
            plural = kind.plural,
        )));
    }
    if bytes > quota.bytes && new.json.len() > replaced {
        return Err(WriteError::OverQuota(format!(
            "exceeded quota: {holder}, requested: bytes={}, used: bytes={}, limited: bytes={}",
            new.json.len() - replaced,
            used.bytes,
            quota.bytes,
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::super::index::Seen;
    use super::*;
    use crate::kinds::{CONFIG_MAP, EVENT, LEASE, NODE};
    use crate::object::Event;
    use crate::state::{Expect, Leases, Order, Restored, Spaces, Write, restore};

    struct NoSink;

    impl Sink for NoSink {
        fn queue(&self, _: &Arc<Event>, _: Seen) -> bool {
            true
        }
    }

    struct State {
        index: Index<NoSink>,
        leases: Leases<NoSink>,
        order: Order,
        batch: Batch,
    }

    impl State {
        fn new() -> State {
            let Restored { index, leases, order, .. } = restore(Spaces::default(), Vec::new()).unwrap();
            State { index, leases, order, batch: Batch::default() }
        }

        /// Stages a write, which is not visible before [`State::publish`].
        fn put(&mut self, kind: &'static Kind, new: Value, requires: &[Require]) -> Result<(), String> {
            let text = |field: &str| crate::value::text(&new, &["metadata", field]).to_owned();
            let (namespace, name) = (text("namespace"), text("name"));
            let found = self.batch.get(&self.index, kind, &namespace, &name);
            let expect = found.map_or(Expect::Absent, |found| Expect::Revision(found.revision));
            let (new, requires) = (Some(new), requires.to_vec());
            let write = Write { kind, namespace, name, expect, requires, new, volatile: false, author: None };
            let staged = self.order.stage(&self.index, &mut self.batch, write);
            staged.map(|_| ()).map_err(|error| format!("{error:?}"))
        }

        fn publish(&mut self) {
            let batch = std::mem::take(&mut self.batch);
            let commit = self.order.commit(&self.leases, batch, 0).unwrap();
            self.index.publish(self.order.committed(&mut self.leases, commit));
        }
    }

    fn namespace(terminating: bool) -> Value {
        let mut value = json!({"metadata": {"name": "n", "uid": "u"}});
        if terminating {
            value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        value
    }

    /// Each case with the earlier writes in the same batch, and with them visible.
    #[test]
    fn namespace_must_be_open() {
        let map = || json!({"metadata": {"namespace": "n", "name": "c"}});
        let check = |namespaces: Vec<Value>, expect: Result<(), &str>| {
            for visible in [false, true] {
                let mut state = State::new();
                for namespace in namespaces.clone() {
                    state.put(&NAMESPACE, namespace, &[]).unwrap();
                }
                if visible && !state.batch.is_empty() {
                    state.publish();
                }
                let made = state.put(&CONFIG_MAP, map(), &[Require::OpenNamespace]);
                assert_eq!(made, expect.map_err(str::to_owned), "{namespaces:?}");
            }
        };
        check(vec![], Err("Mismatch"));
        check(vec![namespace(false)], Ok(()));
        check(vec![namespace(false), namespace(true)], Err("Mismatch"));
    }

    #[test]
    fn owner_must_be_alive_under_its_uid() {
        let mut state = State::new();
        state.put(&NODE, json!({"metadata": {"name": "a", "uid": "u"}}), &[]).unwrap();
        let alive = |uid: &str| [Require::Alive { kind: &NODE, name: "a".to_owned(), uid: uid.to_owned() }];
        let map = |name: &str| json!({"metadata": {"namespace": "n", "name": name}});
        state.put(&CONFIG_MAP, map("b"), &alive("other")).unwrap_err();
        state.put(&CONFIG_MAP, map("b"), &alive("u")).unwrap();
    }

    #[test]
    fn other_object_must_be_unchanged() {
        let mut state = State::new();
        state.put(&NODE, json!({"metadata": {"name": "a"}}), &[]).unwrap();
        let revision = state.batch.get(&state.index, &NODE, "", "a").unwrap().revision;
        let mut check = |kind: &'static Kind, name: &str, revision: Option<u64>, expect: bool| {
            let (namespace, name) = (String::new(), name.to_owned());
            let require = [Require::Unchanged { kind, namespace, name: name.clone(), revision }];
            let made = state.put(&CONFIG_MAP, json!({"metadata": {"namespace": "n", "name": "c"}}), &require);
            assert_eq!(made.is_ok(), expect, "{name} {revision:?}");
        };
        check(&NODE, "a", Some(revision), true);
        check(&NODE, "a", Some(revision + 1), false);
        check(&NODE, "a", None, false);
        check(&NODE, "b", None, true);
        check(&NODE, "b", Some(revision), false);
        // Leases are not in this index: the writer judges them
        check(&LEASE, "l", Some(7), true);
    }

    fn event(node: &str, name: &str, text: usize) -> Value {
        let about = json!({"kind": "Node", "name": node});
        json!({"metadata": {"namespace": "default", "name": name}, "involvedObject": about, "message": "x".repeat(text)})
    }

    #[test]
    fn quota_counts_the_holders_objects_only() {
        for visible in [false, true] {
            let mut state = State::new();
            let quota = [Require::Quota(Quota { objects: 2, bytes: 1000 })];
            for name in ["1", "2"] {
                state.put(&EVENT, event("a", name, 10), &quota).unwrap();
                if visible {
                    state.publish();
                }
            }
            let refused = state.put(&EVENT, event("a", "3", 10), &quota).unwrap_err();
            let expect =
                "exceeded quota: system:node:a, requested: events=1, used: events=2, limited: events=2";
            assert!(refused.contains(expect), "{refused}");
            state.put(&EVENT, event("b", "3", 10), &quota).unwrap();
            state.put(&EVENT, event("a", "2", 20), &quota).unwrap();
            let refused = state.put(&EVENT, event("a", "2", 1000), &quota).unwrap_err();
            assert!(refused.contains("limited: bytes=1000"), "{refused}");
        }
    }

    /// A user above its quota, by an older hub or an administrator, can still make its objects smaller.
    #[test]
    fn shrinking_is_possible_above_the_quota() {
        let mut state = State::new();
        state.put(&EVENT, event("a", "1", 1000), &[]).unwrap();
        let quota = [Require::Quota(Quota { objects: 1, bytes: 100 })];
        state.put(&EVENT, event("a", "1", 900), &quota).unwrap();
        state.put(&EVENT, event("a", "1", 901), &quota).unwrap_err();
        state.put(&EVENT, event("a", "1", 900), &quota).unwrap();
    }

    #[test]
    fn quota_is_used_to_the_last_byte() {
        let mut state = State::new();
        state.put(&EVENT, event("a", "1", 10), &[]).unwrap();
        let bytes = state.batch.get(&state.index, &EVENT, "default", "1").unwrap().json.len();
        let quota = [Require::Quota(Quota { objects: 1, bytes: bytes + 1 })];
        state.put(&EVENT, event("a", "1", 12), &quota).unwrap_err();
        state.put(&EVENT, event("a", "1", 11), &quota).unwrap();
    }
}
