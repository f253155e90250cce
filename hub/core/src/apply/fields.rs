//! Sets of fields, as `managedFields` names them: `f:` a field, `k:` a list item by its keys, `v:` one by its
//! value, `i:` by index.
//!
//! Always holds: a set has no empty branches, and equal sets have equal texts. The form is upstream's
//! FieldsV1: a branch that is itself in the set, and not only fields in it, carries `.`. It knows no types;
//! `typed` computes the set of a value.

use std::collections::BTreeMap;

use kedge_api::excerpt_of;
use serde_json::{Map, Value};

use crate::decode;

/// Deepest path that is read; the deepest path of the served types has about 15 steps.
const MAX_DEPTH: usize = 40;

/// Most characters of a path that a conflict shows: clients choose the keys in it.
const SHOWN_CHARS: usize = 256;

/// One step of a path. Keys and values are kept as JSON text with sorted keys, so that equal ones are equal
/// texts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// A field, or a key of a map.
    Field(String),
    /// An item of a list that is a map, by its key fields.
    Key(String),
    /// An item of a list that is a set.
    Item(String),
    /// An item of any other list.
    Index(u64),
}

impl Step {
    fn text(&self) -> String {
        match self {
            Step::Field(name) => format!("f:{name}"),
            Step::Key(keys) => format!("k:{keys}"),
            Step::Item(value) => format!("v:{value}"),
            Step::Index(index) => format!("i:{index}"),
        }
    }

    fn parse(text: &str) -> Option<Step> {
        let (sort, rest) = text.split_once(':')?;
        let json = || decode::value(rest.as_bytes());
        match sort {
            "f" => Some(Step::Field(rest.to_owned())),
            "k" => json().filter(Value::is_object).map(|keys| Step::Key(keys.to_string())),
            "v" => json().map(|value| Step::Item(value.to_string())),
            "i" => rest.parse().ok().map(Step::Index),
            _ => None,
        }
    }

    /// As conflicts name it: `.name`, `[name="x"]`, `[="x"]`, `[0]`.
    fn shown(&self) -> String {
        match self {
            Step::Field(name) => format!(".{name}"),
            Step::Key(keys) => {
                let keys = decode::value(keys.as_bytes()).unwrap_or_default();
                let keys = keys.as_object().into_iter().flatten();
                let shown: Vec<String> = keys.map(|(key, value)| format!("{key}={value}")).collect();
                format!("[{}]", shown.join(","))
            }
            Step::Item(value) => format!("[={value}]"),
            Step::Index(index) => format!("[{index}]"),
        }
    }
}

/// A path in a set: whether the path itself is in the set, and the steps below it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Branch {
    /// The path itself is in the set.
    pub member: bool,
    /// The steps below it.
    pub below: FieldSet,
}

impl Branch {
    /// A path without anything below.
    pub fn leaf() -> Branch {
        Branch { member: true, below: FieldSet::default() }
    }

    /// Neither the path nor anything below.
    pub fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }

    fn combined(&self, other: &Branch, member: bool, below: fn(&FieldSet, &FieldSet) -> FieldSet) -> Branch {
        Branch { member, below: below(&self.below, &other.below) }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet(BTreeMap<Step, Branch>);

impl FieldSet {
    /// Nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The branch at a step.
    pub fn get(&self, step: &Step) -> Option<&Branch> {
        self.0.get(step)
    }

    /// The branch of a field.
    pub fn field(&self, name: &str) -> Option<&Branch> {
        // a lookup by borrowed text would need a second order of steps; sets are small
        self.0.get(&Step::Field(name.to_owned()))
    }

    /// Adds a branch; an empty one changes nothing.
    pub fn add(&mut self, step: Step, branch: Branch) {
        if branch.is_empty() {
            return;
        }
        match self.0.get_mut(&step) {
            None => drop(self.0.insert(step, branch)),
            Some(known) => {
                known.member |= branch.member;
                for (step, below) in branch.below.0 {
                    known.below.add(step, below);
                }
            }
        }
    }

    pub fn union(&self, other: &FieldSet) -> FieldSet {
        let mut sum = self.clone();
        sum.include(other);
        sum
    }

    /// Adds all paths of the other.
    pub fn include(&mut self, other: &FieldSet) {
        for (step, branch) in &other.0 {
            self.add(step.clone(), branch.clone());
        }
    }

    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        let mut both = FieldSet::default();
        for (step, mine) in &self.0 {
            if let Some(theirs) = other.0.get(step) {
                let member = mine.member && theirs.member;
                both.add(step.clone(), mine.combined(theirs, member, FieldSet::intersection));
            }
        }
        both
    }

    /// The paths of this set that are not in the other; removing a path keeps the paths below it.
    pub fn difference(&self, other: &FieldSet) -> FieldSet {
        let mut rest = FieldSet::default();
        for (step, mine) in &self.0 {
            let left = match other.0.get(step) {
                None => mine.clone(),
                Some(theirs) => mine.combined(theirs, mine.member && !theirs.member, FieldSet::difference),
            };
            rest.add(step.clone(), left);
        }
        rest
    }

    /// Without a field and every path below it.
    pub fn without_field(mut self, name: &str) -> FieldSet {
        self.0.remove(&Step::Field(name.to_owned()));
        self
    }

    /// Without the paths that no manager owns: type, name and namespace, and fields that only the server
    /// writes.
    pub fn without_identity(mut self) -> FieldSet {
        const OF_METADATA: [&str; 8] = [
            "name",
            "namespace",
            "creationTimestamp",
            "selfLink",
            "uid",
            "generation",
            "managedFields",
            "resourceVersion",
        ];
        self = self.without_field("apiVersion").without_field("kind");
        if let Some(mut metadata) = self.0.remove(&Step::Field("metadata".to_owned())) {
            metadata.member = false;
            for name in OF_METADATA {
                metadata.below = metadata.below.without_field(name);
            }
            self.add(Step::Field("metadata".to_owned()), metadata);
        }
        self
    }

    /// How many paths there are.
    pub fn len(&self) -> usize {
        self.0.values().map(|branch| usize::from(branch.member) + branch.below.len()).sum()
    }

    /// Paths in the set, as conflicts name them; shorter ones first, at most so many, and long ones cut.
    pub fn paths(&self, most: usize) -> Vec<String> {
        let mut found = Vec::new();
        self.collect_paths("", most, &mut found);
        found
    }

    fn collect_paths(&self, prefix: &str, most: usize, found: &mut Vec<String>) {
        let path = |step: &Step| excerpt_of(&format!("{prefix}{}", step.shown()), SHOWN_CHARS);
        let members = self.0.iter().filter(|(_, branch)| branch.member);
        found.extend(members.take(most.saturating_sub(found.len())).map(|(step, _)| path(step)));
        for (step, branch) in self.0.iter().filter(|(_, branch)| !branch.below.is_empty()) {
            if found.len() >= most {
                return;
            }
            branch.below.collect_paths(&path(step), most, found);
        }
    }

    /// The set as FieldsV1.
    pub fn to_value(&self) -> Value {
        let branch = |branch: &Branch| {
            let mut value = branch.below.to_value();
            if branch.member && !branch.below.is_empty() {
                value["."] = Value::Object(Map::new());
            }
            value
        };
        Value::Object(self.0.iter().map(|(step, below)| (step.text(), branch(below))).collect())
    }

    /// From FieldsV1; `None` if the value is invalid.
    pub fn from_value(value: &Value) -> Option<FieldSet> {
        FieldSet::read(value, 0).map(|branch| branch.below)
    }

    fn read(value: &Value, depth: usize) -> Option<Branch> {
        let fields = value.as_object().filter(|_| depth <= MAX_DEPTH)?;
        let mut branch = Branch { member: depth > 0 && fields.is_empty(), below: FieldSet::default() };
        for (name, below) in fields {
            match &**name {
                "." => branch.member = depth > 0,
                name => branch.below.add(Step::parse(name)?, FieldSet::read(below, depth + 1)?),
            }
        }
        Some(branch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(value: Value) -> FieldSet {
        FieldSet::from_value(&value).unwrap()
    }

    #[test]
    fn set_round_trips_through_fields_v1() {
        let value = json!({"f:metadata": {"f:labels": {".": {}, "f:a.b/c": {}}, "f:finalizers": {"v:\"x\"": {}}},
            "f:spec": {"f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}}, "i:3": {}}}});
        assert_eq!(set(value.clone()).to_value(), value);
        assert_eq!(
            set(value.clone()).paths(6),
            [
                ".metadata.labels",
                ".metadata.finalizers[=\"x\"]",
                ".metadata.labels.a.b/c",
                ".spec.ports[containerPort=80,protocol=\"TCP\"]",
                ".spec.ports[3]",
                ".spec.ports[containerPort=80,protocol=\"TCP\"].name"
            ]
        );
        assert_eq!((set(value.clone()).len(), set(value).paths(2).len()), (6, 2));
        for wrong in [json!([]), json!({"x": {}}), json!({"f:a": 1}), json!({"k:x": {}}), json!({"i:-1": {}})]
        {
            assert_eq!(FieldSet::from_value(&wrong), None, "{wrong}");
        }
        let deep = (0..60).fold(json!({}), |below, _| json!({"f:a": below}));
        assert_eq!(FieldSet::from_value(&deep), None);
    }

    #[test]
    fn sets_are_added_and_removed_path_by_path() {
        let left = set(json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}}));
        let right = set(json!({"f:a": {"f:b": {}, "f:d": {}}}));
        assert_eq!(left.union(&right), set(json!({"f:a": {".": {}, "f:b": {}, "f:d": {}}, "f:c": {}})));
        assert_eq!(left.intersection(&right), set(json!({"f:a": {"f:b": {}}})));
        assert_eq!(left.difference(&right), set(json!({"f:a": {}, "f:c": {}})));
        assert_eq!(right.difference(&left), set(json!({"f:a": {"f:d": {}}})));
        assert!(left.difference(&left).is_empty());
    }

    #[test]
    fn identifying_fields_have_no_manager() {
        let all =
            set(json!({"f:apiVersion": {}, "f:kind": {}, "f:metadata": {".": {}, "f:name": {}, "f:uid": {},
            "f:labels": {"f:a": {}}}, "f:data": {"f:k": {}}}));
        assert_eq!(
            all.without_identity(),
            set(json!({"f:metadata": {"f:labels": {"f:a": {}}}, "f:data": {"f:k": {}}}))
        );
    }
}
