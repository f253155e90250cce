//! The revisions of a rollout: each content that its source had.
//!
//! A revision is an immutable ConfigMap with the payload alone, under the key `kubelet`, named after the
//! rollout and the payload. Its number and the state of its rollout are in the status of the ConfigRollout.
//! Always holds: content that comes back has the same name, and a new number, the highest; a revision that a
//! node is assigned, or may fall back to, is kept. The ConfigMaps have no owner: when the rollout is deleted,
//! nodes keep what they have. Leaves to others: writing (`mod`).

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::daemon_sets::unique;
use super::super::rolling::recorded::Record;
use crate::kinds::config_rollout::NAMESPACE;
use crate::kinds::rules::list;
use crate::value::text;

/// The key of the payload in a revision.
pub(super) const KEY: &str = "kubelet";
/// Label of a revision: the name of its rollout.
pub(super) const OF: &str = "fleet.kedge.dev/rollout";
/// Letters of the digest in a name: 27^12 of them.
const DIGEST: usize = 12;
/// Highest number that counts: a larger one was forged.
const HIGHEST_NUMBER: i64 = 1 << 62;

/// A revision, as the status has it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Revision {
    pub(super) name: String,
    pub(super) number: i64,
    pub(super) is_complete: bool,
    /// It was complete before another one came, and is not on all nodes again.
    pub(super) comes_back: bool,
    /// Batches that it has passed.
    pub(super) batch: usize,
    pub(super) record: Record,
}

impl Revision {
    fn read(value: &Value) -> Revision {
        Revision {
            name: text(value, &["name"]).to_owned(),
            number: value["number"].as_i64().filter(|number| *number <= HIGHEST_NUMBER).unwrap_or(0),
            is_complete: value["complete"] == true,
            comes_back: value["comesBack"] == true,
            batch: value["batch"].as_u64().and_then(|batch| usize::try_from(batch).ok()).unwrap_or(0),
            record: Record::read(text(value, &["record"])),
        }
    }

    /// In its stored form.
    fn write(&self) -> Value {
        let mut value = json!({"name": self.name, "number": self.number, "batch": self.batch});
        if self.is_complete {
            value["complete"] = true.into();
        }
        if self.comes_back {
            value["comesBack"] = true.into();
        }
        if let Some(record) = self.record.write() {
            value["record"] = record.into();
        }
        value
    }

    /// The text by which a record names its subject.
    pub(super) fn generation(&self) -> String {
        self.number.to_string()
    }
}

/// The revisions of a status, the oldest first.
pub(super) fn read(status: &Value) -> Vec<Revision> {
    let mut all: Vec<Revision> = list(status, "revisions").iter().map(Revision::read).collect();
    all.sort_by_key(|revision| revision.number);
    all
}

pub(super) fn write(revisions: &[Revision]) -> Value {
    revisions.iter().map(Revision::write).collect()
}

/// The name of a revision with this payload.
pub(super) fn name(rollout: &str, payload: &str) -> String {
    let digest = unique(payload);
    format!("{rollout}-{}", &digest[..DIGEST])
}

/// The ConfigMap of a revision.
pub(super) fn make(rollout: &str, payload: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "immutable": true,
        "metadata": {"namespace": NAMESPACE, "name": name(rollout, payload), "labels": {OF: rollout}},
        "data": {KEY: payload},
    })
}

/// Makes the revision of this name the newest; it may be the one that is.
pub(super) fn renew(revisions: &mut Vec<Revision>, name: &str) {
    let highest = revisions.last().map_or(0, |revision| revision.number);
    match revisions.iter().position(|revision| revision.name == name) {
        Some(at) if at + 1 == revisions.len() => {}
        Some(at) => {
            let mut revision = revisions.remove(at);
            (revision.number, revision.batch) = (highest.saturating_add(1), 0);
            revision.comes_back = revision.is_complete;
            revisions.push(revision);
        }
        None => revisions.push(Revision {
            name: name.to_owned(),
            number: highest.saturating_add(1),
            is_complete: false,
            comes_back: false,
            batch: 0,
            record: Record::default(),
        }),
    }
}

/// The revision to which an annotation for an undo goes: by its number, or `0` for the one before.
pub(super) fn undone<'a>(revisions: &'a [Revision], asked: &str) -> Option<&'a Revision> {
    match asked.parse::<i64>().ok()? {
        0 => revisions.iter().rev().nth(1),
        number => revisions.iter().find(|revision| revision.number == number),
    }
}

/// The oldest revisions beyond the limit, but never `current`, `complete` or one in use.
pub(super) fn surplus<'a>(
    revisions: &'a [Revision],
    limit: usize,
    complete: Option<&str>,
    in_use: &BTreeSet<&str>,
) -> Vec<&'a str> {
    let Some((_, old)) = revisions.split_last() else { return Vec::new() };
    let spare = old.len().saturating_sub(limit);
    let names = old.iter().map(|revision| revision.name.as_str());
    names.filter(|name| Some(*name) != complete && !in_use.contains(name)).take(spare).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revisions(names: &[&str]) -> Vec<Revision> {
        let mut all = Vec::new();
        names.iter().for_each(|name| renew(&mut all, name));
        all
    }

    fn shown(all: &[Revision]) -> Vec<String> {
        all.iter().map(|revision| format!("{}{}", revision.name, revision.number)).collect()
    }

    #[test]
    fn content_that_comes_back_is_numbered_anew() {
        assert_eq!(shown(&revisions(&["a", "b", "b", "a", "c"])), ["b2", "a3", "c4"]);
        let all = revisions(&["a", "b", "c"]);
        assert_eq!(undone(&all, "0").map(|found| &*found.name), Some("b"));
        assert_eq!(undone(&all, "1").map(|found| &*found.name), Some("a"));
        assert_eq!((undone(&all, "9"), undone(&all, "x"), undone(&all[..1], "0")), (None, None, None));
        assert_eq!(read(&json!({"revisions": write(&all)})), all);
    }

    #[test]
    fn revision_in_use_is_kept() {
        let all = revisions(&["a", "b", "c", "d", "e"]);
        let check = |limit: usize, complete: Option<&str>, in_use: &[&str], expect: &[&str]| {
            assert_eq!(surplus(&all, limit, complete, &in_use.iter().copied().collect()), expect);
        };
        check(2, None, &[], &["a", "b"]);
        check(0, Some("a"), &["c"], &["b", "d"]);
        check(9, None, &[], &[]);
    }
}
