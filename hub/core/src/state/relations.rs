//! The relations of stored objects of all kinds: owners and their dependents, pending deletions, the users to
//! whom objects are charged.
//!
//! Always holds: it is a function of the stored objects alone, so it is the same after a restart; updating it
//! costs as much as the change itself. Left to others: the objects (`index`), the consequences of a relation
//! (`controllers::garbage`, `requires`).

use std::collections::{BTreeMap, BTreeSet};

use crate::object::Object;

/// The position of a kind in the table, and the key of an object.
pub(super) type At = (usize, String);

#[derive(Debug, Default)]
pub(super) struct Relations {
    /// The UIDs of all objects.
    uids: BTreeSet<Box<str>>,
    /// Objects by the UID of an owner that they name.
    owned: BTreeMap<Box<str>, BTreeSet<At>>,
    /// Objects that are marked for deletion.
    terminating: BTreeSet<At>,
    /// Objects by the user to whom they are charged.
    charged: BTreeMap<Box<str>, Charged>,
}

#[derive(Debug, Default)]
struct Charged {
    bytes: usize,
    objects: BTreeSet<At>,
}

/// The stored objects that are charged to one user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// JSON text of all kinds.
    pub bytes: usize,
    /// Objects of the requested kind.
    pub objects: usize,
}

impl Relations {
    pub(super) fn change(&mut self, at: &At, old: Option<&Object>, new: Option<&Object>) {
        let uid = |object: &Object| object.uid.clone();
        if old.map(uid) != new.map(uid) {
            if let Some(old) = old {
                self.uids.remove(&old.uid);
            }
            self.uids.extend(new.map(uid));
        }
        let owners =
            |object: Option<&Object>| object.map_or_else(Box::default, |object| object.owners.clone());
        let (before, after) = (owners(old), owners(new));
        for gone in before.iter().filter(|owner| !after.contains(owner)) {
            remove(&mut self.owned, gone, at);
        }
        for owner in after.iter().filter(|owner| !before.contains(owner)) {
            self.owned.entry(owner.clone()).or_default().insert(at.clone());
        }
        match new.is_some_and(|new| new.terminating) {
            true => self.terminating.insert(at.clone()),
            false => self.terminating.remove(at),
        };
        self.charge(at, old, new);
    }

    fn charge(&mut self, at: &At, old: Option<&Object>, new: Option<&Object>) {
        if let Some(old) = old
            && let Some(holder) = &old.holder
            && let Some(charged) = self.charged.get_mut(holder)
        {
            charged.bytes -= old.json.len();
            charged.objects.remove(at);
            if charged.objects.is_empty() {
                self.charged.remove(holder);
            }
        }
        if let Some(new) = new
            && let Some(holder) = &new.holder
        {
            let charged = self.charged.entry(holder.clone()).or_default();
            charged.bytes += new.json.len();
            charged.objects.insert(at.clone());
        }
    }

    pub(super) fn dependents(&self, uid: &str) -> impl Iterator<Item = &At> {
        self.owned.get(uid).into_iter().flatten()
    }

    pub(super) fn terminating(&self) -> impl Iterator<Item = &At> {
        self.terminating.iter()
    }

    pub(super) fn exists(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }

    /// Owners that objects name and that do not exist.
    pub(super) fn lost_owners(&self) -> Vec<String> {
        self.owned.keys().filter(|owner| !self.uids.contains(*owner)).map(ToString::to_string).collect()
    }

    pub(super) fn usage(&self, holder: &str, kind: usize) -> Usage {
        let Some(charged) = self.charged.get(holder) else { return Usage::default() };
        let objects = charged.objects.range((kind, String::new())..(kind + 1, String::new())).count();
        Usage { bytes: charged.bytes, objects }
    }

    pub(super) fn charged(&self, holder: &str, kind: usize) -> impl Iterator<Item = &At> {
        let of = self.charged.get(holder).into_iter();
        of.flat_map(move |charged| charged.objects.range((kind, String::new())..(kind + 1, String::new())))
    }
}

fn remove(map: &mut BTreeMap<Box<str>, BTreeSet<At>>, key: &str, at: &At) {
    if let Some(set) = map.get_mut(key) {
        set.remove(at);
        if set.is_empty() {
            map.remove(key);
        }
    }
}
