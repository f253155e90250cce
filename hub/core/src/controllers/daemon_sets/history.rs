//! The history of a DaemonSet: one ControllerRevision for each template that it had.
//!
//! Upstream's rules (its history package and `constructHistory`), but templates are compared by meaning: a
//! server that writes out another default, or leaves out a null, makes no revision. Always holds: the current
//! template has exactly one revision, with the highest number; a revision that a pod was made from is kept.
//! Leaves to others: writing revisions.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::rolling::recorded::Record;
use super::words::{COMPLETE, HASH, RECORD};
use crate::kinds::{DAEMON_SET, schema};
use crate::value::text;

/// Longest part of a DaemonSet's name in that of a revision, which has 253 characters at most.
const NAME_BYTES: usize = 240;
/// Highest number that counts. A larger one was forged, and behind the largest of all every later revision
/// would have the same number, among which an undo could not choose.
const HIGHEST_NUMBER: i64 = 1 << 62;
/// kubectl's annotation with the object as last applied; upstream copies it into each revision, with the
/// change cause.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Upstream's alphabet of such names: no vowels, and no characters that are mistaken for one another.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// A revision as it is stored.
#[derive(Debug, Clone)]
pub(super) struct Revision {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) number: i64,
    pub(super) hash: String,
    /// Its number when its rollout was last seen complete.
    pub(super) complete: Option<i64>,
    pub(super) record: Record,
    /// The template.
    pub(super) data: Value,
}

impl Revision {
    pub(super) fn read(value: &Value) -> Revision {
        let labelled = text(value, &["metadata", "labels", HASH]);
        let name = text(value, &["metadata", "name"]);
        Revision {
            name: name.to_owned(),
            uid: text(value, &["metadata", "uid"]).to_owned(),
            number: value["revision"].as_i64().filter(|number| *number <= HIGHEST_NUMBER).unwrap_or(0),
            // upstream names one without the label after itself
            hash: if labelled.is_empty() { name } else { labelled }.to_owned(),
            complete: text(value, &["metadata", "annotations", COMPLETE]).parse().ok(),
            record: Record::read(text(value, &["metadata", "annotations", RECORD])),
            data: meaning(&value["data"]["spec"]["template"]),
        }
    }

    /// Why its rollout is stopped, in this generation of the template.
    pub(super) fn stopped_in(&self, generation: &str) -> Option<&str> {
        self.record.stopped_in(generation)
    }

    /// Whether the revision's rollout is complete, and no other template came since.
    pub(super) fn is_done(&self) -> bool {
        self.complete == Some(self.number)
    }

    /// Whether the revision carries no record of a stop or a roll back.
    pub(super) fn is_plain(&self) -> bool {
        self.record.is_plain()
    }

    /// Nodes that are not canaries do not get it yet.
    pub(super) fn waits_for_canaries(&self) -> bool {
        self.complete.is_none() && !self.record.has_soaked()
    }

    pub(super) fn is_of(&self, template: &Value) -> bool {
        self.data == meaning(template)
    }
}

/// The next step to bring the history of a set in order.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Create a revision of the current template, under this number. Surplus revisions are removed in any
    /// case: a template that changes with every look must not fill the store.
    Make { number: i64, surplus: Vec<String> },
    /// The listed revisions are to be changed or removed; the others are already as they should be.
    Keep { current: Current, renumber: Option<i64>, doubles: Vec<String>, surplus: Vec<String> },
}

/// The revision of the current template.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Current {
    pub(super) name: String,
    pub(super) hash: String,
}

impl From<&Revision> for Current {
    fn from(revision: &Revision) -> Current {
        Current { name: revision.name.clone(), hash: revision.hash.clone() }
    }
}

/// Compares the template with the revisions. `live`: the hashes that pods have.
pub(super) fn step(template: &Value, revisions: &[Revision], limit: i64, live: &BTreeSet<String>) -> Step {
    let (mut same, mut old): (Vec<&Revision>, Vec<&Revision>) =
        revisions.iter().partition(|revision| revision.is_of(template));
    let highest = old.iter().map(|revision| revision.number).max().unwrap_or(0);
    same.sort_by_key(|revision| std::cmp::Reverse((revision.number, &revision.name)));
    old.sort_by_key(|revision| revision.number);
    let limit = usize::try_from(limit).unwrap_or(0);
    let spare = old.len().saturating_sub(limit);
    let removable = old.iter().filter(|revision| !live.contains(&revision.hash));
    let surplus = removable.take(spare).map(|revision| revision.name.clone()).collect();
    let Some((current, doubles)) = same.split_first() else {
        return Step::Make { number: highest.saturating_add(1), surplus };
    };
    Step::Keep {
        current: (*current).into(),
        renumber: (current.number <= highest).then(|| highest.saturating_add(1)),
        doubles: doubles.iter().map(|double| double.name.clone()).collect(),
        surplus,
    }
}

/// A revision of this set's template, with its name.
pub(super) fn make(set: &Value, number: i64) -> (String, Value) {
    let template = &set["spec"]["template"];
    let hash = hash(template, set["status"]["collisionCount"].as_i64());
    let of = text(set, &["metadata", "name"]);
    let of = of[..of.floor_char_boundary(NAME_BYTES)].trim_end_matches(['.', '-']);
    let name = format!("{of}-{hash}");
    let mut labels = template["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    labels.insert(HASH.to_owned(), hash.into());
    let mut annotations = set["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    // the annotation is as large as the whole set, and would be stored with every revision
    annotations.remove(LAST_APPLIED);
    // these annotations belong to the set, or only the hub may write them to a revision
    annotations.retain(|key, _| !key.starts_with("kedge.dev/"));
    let mut data = template.clone();
    data["$patch"] = "replace".into();
    let value = json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision",
        "metadata": {
            "name": name, "namespace": set["metadata"]["namespace"], "labels": labels,
            "annotations": annotations, "ownerReferences": [owner(set)],
        },
        "data": {"spec": {"template": data}},
        "revision": number,
    });
    (name, value)
}

/// The reference by which a set controls an object.
pub(super) fn owner(set: &Value) -> Value {
    json!({"apiVersion": DAEMON_SET.api_version(), "kind": DAEMON_SET.kind, "name": set["metadata"]["name"],
        "uid": set["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true})
}

/// A short name of a template; it also depends on how often such a name was already taken.
fn hash(template: &Value, collisions: Option<i64>) -> String {
    let mut text = meaning(template).to_string();
    if let Some(count) = collisions.filter(|count| *count > 0) {
        text.push_str(&count.to_string());
    }
    short(&text)
}

/// FNV-1a of 32 bits in letters that make no words.
pub(in crate::controllers) fn short(text: &str) -> String {
    let hash =
        text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.to_string().bytes().map(letter).collect()
}

/// A name of 16 letters, out of 2^76, so that nobody can find another text with the same name, not even by
/// searching for one.
pub(in crate::controllers) fn unique(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref()[..16].iter().copied().map(letter).collect()
}

fn letter(of: u8) -> char {
    char::from(ALPHABET[usize::from(of) % ALPHABET.len()])
}

/// The template as it is stored today, without parts that have no meaning: the mark of a patch, nulls, and
/// zeros, which an older hub kept. (An empty object may mean something: a selector selects all.)
fn meaning(template: &Value) -> Value {
    let mut template = template.clone();
    if let Some(of) = schema::find("core/v1/PodTemplateSpec") {
        schema::conform(of, &mut template);
    }
    template
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(image: &str) -> Value {
        json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": image}]}})
    }

    fn revision(image: &str, name: &str, number: i64) -> Revision {
        let set = json!({"metadata": {"name": "d", "namespace": "n", "uid": "u"}, "spec": {"template": template(image)}});
        let (_, mut value) = make(&set, number);
        value["metadata"]["name"] = name.into();
        value["metadata"]["labels"][HASH] = name.into();
        Revision::read(&value)
    }

    fn live(hashes: &[&str]) -> BTreeSet<String> {
        hashes.iter().map(|hash| (*hash).to_owned()).collect()
    }

    fn kept(step: Step) -> (String, Option<i64>, Vec<String>, Vec<String>) {
        match step {
            Step::Keep { current, renumber, doubles, surplus } => (current.name, renumber, doubles, surplus),
            Step::Make { number, .. } => panic!("make {number}"),
        }
    }

    #[test]
    fn new_template_gets_the_next_number() {
        let revisions = [revision("i:1", "x", 1), revision("i:2", "y", 4)];
        let made = |number, surplus: &[&str]| Step::Make {
            number,
            surplus: surplus.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert_eq!(step(&template("i:3"), &revisions, 10, &live(&[])), made(5, &[]));
        assert_eq!(step(&template("i:1"), &[], 10, &live(&[])), made(1, &[]));
        // surplus is also removed while the template changes with every look
        assert_eq!(step(&template("i:3"), &revisions, 1, &live(&[])), made(5, &["x"]));
        assert_eq!(step(&template("i:3"), &revisions, 1, &live(&["x"])), made(5, &["y"]));
    }

    #[test]
    fn template_of_before_is_renumbered_not_made() {
        let revisions = [revision("i:1", "x", 1), revision("i:2", "y", 2)];
        let found = kept(step(&template("i:1"), &revisions, 10, &live(&[])));
        assert_eq!(found, ("x".into(), Some(3), vec![], vec![]));
        let found = kept(step(&template("i:2"), &revisions, 10, &live(&[])));
        assert_eq!(found, ("y".into(), None, vec![], vec![]));
    }

    #[test]
    fn doubles_of_the_current_one_go() {
        let revisions = [revision("i:1", "x", 1), revision("i:1", "y", 3), revision("i:2", "z", 2)];
        let found = kept(step(&template("i:1"), &revisions, 10, &live(&[])));
        assert_eq!(found, ("y".into(), None, vec!["x".into()], vec![]));
    }

    #[test]
    fn oldest_go_beyond_the_limit_unless_a_pod_has_them() {
        let revisions: Vec<Revision> =
            (1..=5).map(|number| revision(&format!("i:{number}"), &format!("r{number}"), number)).collect();
        let surplus =
            |limit, hashes: &[&str]| kept(step(&template("i:5"), &revisions, limit, &live(hashes))).3;
        assert_eq!(surplus(10, &[]), [""; 0]);
        assert_eq!(surplus(2, &[]), ["r1", "r2"]);
        assert_eq!(surplus(2, &["r1"]), ["r2", "r3"]);
        assert_eq!(surplus(0, &["r4", "r5"]), ["r1", "r2", "r3"]);
    }

    #[test]
    fn templates_are_compared_by_meaning() {
        let written = revision("i:1", "x", 1);
        let mut same = template("i:1");
        same["metadata"]["creationTimestamp"] = Value::Null;
        same["$patch"] = json!("replace");
        same["spec"]["hostNetwork"] = false.into();
        same["spec"]["containers"][0]["args"] = json!([]);
        assert!(written.is_of(&same));
        same["spec"]["containers"][0]["env"] = json!([{"name": "A"}]);
        assert!(!written.is_of(&same));
    }

    #[test]
    fn names_are_valid_and_collisions_change_them() {
        let mut set = json!({"metadata": {"name": "d".repeat(253), "namespace": "n"}, "spec": {"template": template("i:1")}});
        let (first, value) = make(&set, 1);
        assert!(first.len() <= 253, "{first}");
        assert_eq!(value["metadata"]["labels"]["app"], "a");
        assert_eq!(value["data"]["spec"]["template"]["$patch"], "replace");
        set["status"] = json!({"collisionCount": 1});
        assert_ne!(make(&set, 1).0, first);
    }
}
