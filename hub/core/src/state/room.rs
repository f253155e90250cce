//! The room in the store that a change needs or frees.
//!
//! Owns: which change frees room, and how much objects may grow while they are being deleted ([`Growth`]).
//! Always holds: a revocation is treated as a change that frees room, and its growth is not counted; one node
//! cannot use up the growth of other nodes, nor of other users; changes that were not made do not count. Left
//! to others: when room is short (`condition`).

use std::collections::BTreeMap;

use kedge_api::NODE_USER_PREFIX;
use serde_json::Value;

use super::order::Write;
use crate::identity::denied::is_deny_list;
use crate::kinds::CONFIG_MAP;
use crate::object::Object;
use crate::value::text;

/// How much an object that is being deleted may grow in one change on a full disk: by its deletion time,
/// finalizers, the last status of a pod. The list of revoked credentials may grow as much, by the entries of
/// several nodes.
pub(super) const GROWTH_BYTES: usize = 4 * 1024;
/// How much all objects that are being deleted may grow together while the store is full: an eighth of the
/// pages that the file keeps for deletions. All nodes together have as much again.
pub(super) const ALL_GROWTH_BYTES: usize = 256 * 1024;
/// Most growth charged to one node, by its own changes or by others' changes of objects charged to it: a
/// whole last status each for some pods.
pub(super) const NODE_GROWTH_BYTES: usize = 32 * 1024;

/// The effect of a change on the room in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// It needs room, for an object of so many bytes.
    Takes(usize),
    /// It leads to more room: a deletion, or a change that hardly enlarges an object which is being deleted.
    /// A revocation counts as one: a full disk must not leave a thief's credential valid.
    Ends(Ending),
}

/// A step towards the end of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ending {
    /// Bytes of text by which the object grows, or shrinks.
    pub(super) grows: usize,
    pub(super) frees: usize,
    /// The user to whom it is charged: the node that makes the change, even if the object belongs to another,
    /// else the holder of the object.
    pub(super) payer: Option<Box<str>>,
    /// Whether [`Growth`] has counted it.
    pub(super) counted: bool,
}

impl Effect {
    pub fn of(write: &Write, current: Option<&Object>) -> Effect {
        let before = current.map_or(0, |object| object.json.len());
        let author = write.author.as_ref().map(|node| format!("{NODE_USER_PREFIX}{node}").into());
        let payer = author.or_else(|| current.and_then(|object| object.holder.clone()));
        let ending = |grows, frees| Effect::Ends(Ending { grows, frees, payer, counted: false });
        let Some(new) = &write.new else { return ending(0, before) };
        let (after, revokes) = (bytes(new), is_revocation(write));
        let ends = current.is_some() && !text(new, &["metadata", "deletionTimestamp"]).is_empty();
        if !(ends || revokes) || after > before + GROWTH_BYTES {
            return Effect::Takes(after);
        }
        if revokes {
            // not counted: growth that others caused must not keep a thief's credential valid, and the list
            // has a limit of its own
            return Effect::Ends(Ending::default());
        }
        ending(after.saturating_sub(before), before.saturating_sub(after))
    }
}

/// Bytes by which objects that are being deleted grew while the store was full. Room that deletions free is
/// subtracted, so a namespace of any size can be deleted; changes that were not made do not count. Neither
/// one node nor all of them can use up the share of others.
#[derive(Debug, Default)]
pub(super) struct Growth {
    pub(super) others: usize,
    pub(super) charged: usize,
    pub(super) payers: BTreeMap<Box<str>, usize>,
}

impl Growth {
    /// Whether the object may grow; if so, counts it.
    pub(super) fn take(&mut self, ending: &Ending) -> bool {
        let Some(payer) = ending.payer.as_ref().filter(|_| ending.grows > 0) else {
            return add(&mut self.others, ending.grows, ALL_GROWTH_BYTES);
        };
        let own = self.payers.get(payer).copied().unwrap_or(0);
        let fits =
            own + ending.grows <= NODE_GROWTH_BYTES && add(&mut self.charged, ending.grows, ALL_GROWTH_BYTES);
        if fits {
            self.payers.insert(payer.clone(), own + ending.grows);
        }
        fits
    }

    /// The change was not made.
    pub(super) fn undo(&mut self, ending: &Ending) {
        match &ending.payer {
            Some(payer) => drop(self.lower(payer, ending.grows)),
            None => self.others = self.others.saturating_sub(ending.grows),
        }
    }

    /// The change has freed room. It is subtracted from the payer's growth first and then from that of
    /// others, because a node that confirms an object's end usually did not write its deletion mark.
    pub(super) fn give_back(&mut self, ending: &Ending) {
        let own = ending.payer.as_ref().map_or(0, |payer| self.lower(payer, ending.frees));
        self.others = self.others.saturating_sub(ending.frees - own);
    }

    /// Lowers the count of one user. Returns by how much.
    fn lower(&mut self, payer: &str, bytes: usize) -> usize {
        let Some(own) = self.payers.get_mut(payer) else { return 0 };
        let less = bytes.min(*own);
        *own -= less;
        self.charged -= less;
        if *own == 0 {
            self.payers.remove(payer);
        }
        less
    }
}

/// Adds to a sum, if it stays within the limit.
fn add(sum: &mut usize, more: usize, limit: usize) -> bool {
    let fits = more == 0 || *sum + more <= limit;
    if fits {
        *sum += more;
    }
    fits
}

/// Whether a change may turn out to free room, from itself alone.
pub fn may_free_room(write: &Write) -> bool {
    let is_marked = |new: &Value| new["metadata"]["deletionTimestamp"].is_string();
    write.new.as_ref().is_none_or(is_marked) || is_revocation(write)
}

fn is_revocation(write: &Write) -> bool {
    write.kind.kind == CONFIG_MAP.kind && is_deny_list(&write.namespace, &write.name)
}

fn bytes(value: &Value) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |text| text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Expect;
    use serde_json::json;

    #[test]
    fn room_that_is_freed_pays_the_node_first() {
        let ending = |grows: usize, frees: usize| Ending {
            grows,
            frees,
            payer: Some("system:node:a".into()),
            counted: true,
        };
        let mut growth = Growth { others: 100, ..Growth::default() };
        assert!(growth.take(&ending(0, 0)));
        assert!(growth.payers.is_empty(), "what does not grow has no entry");
        assert!(growth.take(&ending(10, 0)));
        growth.give_back(&ending(0, 30));
        assert_eq!((growth.others, growth.charged, growth.payers.len()), (80, 0, 0));
    }

    #[test]
    fn only_ends_of_objects_free_room() {
        let old = json!({"metadata": {"namespace": "a", "name": "b", "finalizers": ["x/y"]}, "data": {}});
        let current = Object::new(&CONFIG_MAP, &old, 3).unwrap();
        let size = current.json.len();
        let check = |new: Option<Value>, current: Option<&Object>, expect: Option<(usize, usize)>| {
            let write = Write {
                kind: &CONFIG_MAP,
                namespace: "a".to_owned(),
                name: "b".to_owned(),
                expect: Expect::Revision(3),
                requires: Vec::new(),
                new,
                volatile: false,
                author: None,
            };
            let found = match Effect::of(&write, current) {
                Effect::Takes(_) => None,
                Effect::Ends(ending) => Some((ending.grows, ending.frees)),
            };
            assert_eq!(found, expect, "{write:?}");
        };
        let mut marked = old.clone();
        marked["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        let grown = marked.to_string().len() - size;
        check(None, Some(&current), Some((0, size)));
        check(None, None, Some((0, 0)));
        check(Some(old), Some(&current), None);
        check(Some(marked.clone()), Some(&current), Some((grown, 0)));
        check(Some(marked.clone()), None, None);
        let mut smaller = marked.clone();
        smaller["metadata"]["finalizers"] = json!([]);
        let marked_now = Object::new(&CONFIG_MAP, &marked, 3).unwrap();
        check(Some(smaller), Some(&marked_now), Some((0, r#""x/y""#.len())));
        marked["data"]["grown"] = "x".repeat(GROWTH_BYTES + 100).into();
        check(Some(marked), Some(&current), None);
    }
}
