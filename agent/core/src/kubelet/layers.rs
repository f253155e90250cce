//! Layers and their merge: `defaults < base < drop-ins in byte order < flags`, RFC 7386 on the values that
//! each layer wrote.
//!
//! Always holds: objects merge by key, lists are replaced as a whole, null removes, the later layer wins;
//! defaults are not a layer but fill missing fields, once, at the end, when a zero has replaced the lower
//! layers' values. Each leaf remembers its layer. Merging is associative: drop-ins merged among themselves
//! and put on a base give what one after the other gives (a plain RFC 7386 patch cannot say "remove this
//! object, then set one key of it"; [`Node::Object`] can). Left to others: reading directories, and the
//! meaning of the fields.

use crate::kubelet::error::{ConfigError, ErrorKind, Problem};
use crate::kubelet::origin::Origin;
use core::fmt;
use std::collections::BTreeMap;
use std::path::PathBuf;

use kedge_api::excerpt;
use serde_json::{Map, Value};

use super::path;
use super::schema::{self, Finding};
use super::yaml::{self, Content, Position, Tree};

/// Most drop-ins that are read. A person or a package placed each of these files; more is a mistake, and
/// every start would read it all. 500 must be cheap (`make bench` starts with 500), so the limit is well
/// above that.
pub const MAX_DROP_INS: usize = 1000;

/// One layer as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerText {
    /// Its origin.
    pub origin: Origin,
    /// Its bytes, not checked yet.
    pub text: Vec<u8>,
}

/// This machine's own layers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LocalLayers {
    /// The `--config` file, if one was given.
    pub base: Option<LayerText>,
    /// The drop-ins in the order in which they apply, as [`select_drop_ins`] gives it.
    pub drop_ins: Vec<LayerText>,
    /// Flags that set a field: the flag's name without dashes, and a configuration with that field alone.
    pub flags: Vec<(&'static str, Value)>,
    /// The node's capacity, which bounds thresholds: not a part of a configuration's identity.
    pub capacity: Capacity,
}

/// A node's whole capacity; 0 if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    pub memory_bytes: u64,
    /// Of the file system below `--root-dir`.
    pub storage_bytes: u64,
    pub inodes: u64,
    pub pids: u64,
}

/// The files of a drop-in directory, sorted out by [`select_drop_ins`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropInNames {
    /// To be read, in this order.
    pub taken: Vec<PathBuf>,
    /// Other files of the directory, which are not drop-ins; they are logged once.
    pub skipped: Vec<PathBuf>,
}

/// The files of the drop-in directory, by their paths below it, that are drop-ins, in the order in which they
/// apply: those ending in `.conf`, by the bytes of their names, so `100-x.conf` comes before `20-y.conf`
/// (KEP-3983), and those of a sub-directory at the place of its own name in that order, as upstream walks it.
#[must_use]
pub fn select_drop_ins(paths: Vec<PathBuf>) -> DropInNames {
    let is_drop_in = |path: &PathBuf| path.as_os_str().as_encoded_bytes().ends_with(b".conf");
    let (mut taken, mut skipped): (Vec<_>, Vec<_>) = paths.into_iter().partition(is_drop_in);
    // paths are compared part by part, and parts by their bytes
    taken.sort_unstable();
    skipped.sort_unstable();
    DropInNames { taken, skipped }
}

/// The origin of a field: layer and position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub origin: Origin,
    /// The place in its text; [`Position::NOWHERE`] for flags and defaults.
    pub position: Position,
}

impl Source {
    const DEFAULT: Self = Self { origin: Origin::Default, position: Position::NOWHERE };
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::ConfigMap { namespace, name, .. } => write!(formatter, "ConfigMap {namespace}/{name}")?,
            origin => origin.fmt(formatter)?,
        }
        match self.position.line {
            0 => Ok(()),
            line => write!(formatter, ":{line}"),
        }
    }
}

/// Which layer set each field of an effective configuration: scalars and whole lists, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance {
    fields: BTreeMap<String, Source>,
}

impl Provenance {
    /// The origin of the field at `path`; `None` for objects and for fields that are not set.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&Source> {
        self.fields.get(path)
    }

    /// All fields that are set, by path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Source)> {
        self.fields.iter().map(|(path, source)| (path.as_str(), source))
    }

    /// Whether a layer, rather than the default, set the field.
    #[must_use]
    pub fn is_set(&self, path: &str) -> bool {
        self.get(path).is_some_and(|source| source.origin != Origin::Default)
    }

    /// The first field below `path` that one of this machine's own layers set.
    pub(super) fn local_below(&self, path: &str) -> Option<(&str, &Source)> {
        let is_below = |field: &str| field.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
        self.iter().find(|(field, source)| is_below(field) && !source.origin.is_pushed())
    }

    /// The source of the field at `path`, or of the innermost list or object around it that has one.
    pub(super) fn nearest(&self, path: &str) -> Source {
        let mut path = path;
        loop {
            if let Some(source) = self.get(path) {
                return source.clone();
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = &path[..end],
                None => return Source::DEFAULT,
            }
        }
    }
}

/// The origin of a leaf: the layer's number, and the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    layer: usize,
    position: Position,
}

/// The value that one or several layers wrote at one path.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    /// Null removes the value of lower layers.
    Removed,
    /// A scalar or a whole list.
    Leaf(Value, Place),
    /// An object. `replaces`: it follows a null, so the fields of lower layers are removed.
    Object { fields: BTreeMap<String, Node>, replaces: bool },
}

impl Node {
    fn empty() -> Self {
        Self::Object { fields: BTreeMap::new(), replaces: false }
    }

    fn of(tree: &Tree, layer: usize) -> Self {
        match &tree.content {
            Content::Null => Self::Removed,
            Content::Object(entries) => {
                let mut fields = BTreeMap::new();
                for entry in entries {
                    fields.insert(entry.key.clone(), Self::of(&entry.value, layer));
                }
                Self::Object { fields, replaces: false }
            }
            _ => Self::Leaf(tree.to_json(), Place { layer, position: tree.position }),
        }
    }

    /// Puts `patch` on top.
    fn merge(&mut self, patch: Self) {
        match (&mut *self, patch) {
            (Self::Object { fields, .. }, Self::Object { fields: patch, replaces: false }) => {
                for (key, node) in patch {
                    match fields.get_mut(&key) {
                        Some(below) => below.merge(node),
                        None => drop(fields.insert(key, node)),
                    }
                }
            }
            (Self::Removed | Self::Leaf(..), Self::Object { fields, .. }) => {
                *self = Self::Object { fields, replaces: true };
            }
            (_, patch) => *self = patch,
        }
    }

    /// The value without removed fields; calls `found` for each leaf with its path.
    fn resolve(self, path: &mut String, found: &mut dyn FnMut(&str, Place)) -> Option<Value> {
        match self {
            Self::Removed => None,
            Self::Leaf(value, place) => {
                found(path, place);
                Some(value)
            }
            Self::Object { fields, .. } => {
                let mut object = Map::new();
                for (key, node) in fields {
                    let length = path::enter(path, &key);
                    if let Some(value) = node.resolve(path, found) {
                        object.insert(key, value);
                    }
                    path.truncate(length);
                }
                Some(Value::Object(object))
            }
        }
    }

    /// JSON with sorted keys that differs whenever the effect on some base may differ. An object that
    /// replaces is written as a list of itself: the schema allows no list in place of an object.
    fn canonical(&self, nothing_below: bool, text: &mut Vec<u8>) {
        match self {
            Self::Removed => text.extend_from_slice(b"null"),
            Self::Leaf(value, _) => write_canonical(value, text),
            Self::Object { fields, replaces } => {
                let wrapped = *replaces && !nothing_below;
                let nothing_below = *replaces || nothing_below;
                let seen = |node: &&Node| !(nothing_below && **node == Node::Removed);
                text.extend_from_slice(if wrapped { b"[{" } else { b"{" });
                let kept = fields.iter().filter(|(_, node)| seen(node));
                for (index, (key, node)) in kept.enumerate() {
                    write_key(index, key, text);
                    node.canonical(nothing_below, text);
                }
                text.extend_from_slice(if wrapped { b"}]" } else { b"}" });
            }
        }
    }
}

fn write_key(index: usize, key: &str, text: &mut Vec<u8>) {
    if index > 0 {
        text.push(b',');
    }
    text.extend_from_slice(Value::from(key).to_string().as_bytes());
    text.push(b':');
}

/// JSON without spaces and with sorted keys, whatever order the `Map` of this build has.
fn write_canonical(value: &Value, text: &mut Vec<u8>) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&str> = map.keys().map(String::as_str).collect();
            keys.sort_unstable();
            text.push(b'{');
            for (index, key) in keys.into_iter().enumerate() {
                write_key(index, key, text);
                write_canonical(&map[key], text);
            }
            text.push(b'}');
        }
        Value::Array(items) => {
            text.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(b',');
                }
                write_canonical(item, text);
            }
            text.push(b']');
        }
        scalar => text.extend_from_slice(scalar.to_string().as_bytes()),
    }
}

/// A sum of layers, each read and type-checked on its own.
pub(super) struct Stack {
    origins: Vec<Origin>,
    sum: Node,
    pub(super) problems: Problems,
}

impl Stack {
    pub(super) fn new() -> Self {
        Self { origins: Vec::new(), sum: Node::empty(), problems: Problems::default() }
    }

    /// Adds all layers above the base.
    pub(super) fn add_overrides(&mut self, layers: &LocalLayers) {
        if let Some(beyond) = layers.drop_ins.get(MAX_DROP_INS) {
            let message = format!("is drop-in number {}, expected at most {MAX_DROP_INS}", MAX_DROP_INS + 1);
            self.problems.push(Problem::new(beyond.origin.clone(), Position::NOWHERE, "", message));
        }
        for layer in layers.drop_ins.iter().take(MAX_DROP_INS) {
            self.add_text(layer);
        }
        for (name, fragment) in &layers.flags {
            self.add_fields(Origin::Flag(name), &Tree::from_json(fragment));
        }
    }

    /// Adds a file or payload: a whole object with `apiVersion` and `kind`.
    pub(super) fn add_text(&mut self, layer: &LayerText) {
        match yaml::parse(&layer.text) {
            Ok(tree) => {
                if self.has_header(&layer.origin, &tree) {
                    self.add_fields(layer.origin.clone(), &tree);
                }
            }
            Err(error) => self.problem(&layer.origin, error.position, "", error.message),
        }
    }

    fn add_fields(&mut self, origin: Origin, tree: &Tree) {
        let problems = &mut self.problems;
        schema::check_types(tree, &mut |Finding { field, position, message }| {
            problems.push(Problem::new(origin.clone(), position, &field, message));
        });
        self.origins.push(origin);
        let mut node = Node::of(tree, self.origins.len().saturating_sub(1));
        if let Node::Object { fields, .. } = &mut node {
            fields.remove("apiVersion");
            fields.remove("kind");
        }
        self.sum.merge(node);
    }

    /// Whether kind and apiVersion are the ones read here; reports the fault. Fields of another kind of
    /// object are not checked: all of them would be unknown.
    fn has_header(&mut self, origin: &Origin, tree: &Tree) -> bool {
        match &tree.content {
            Content::Object(_) => {}
            Content::Null => {
                self.problem(origin, Position::NOWHERE, "", format!("is empty, expected a {}", schema::KIND));
                return false;
            }
            _ => {
                let message = format!("is {}, expected a {}", schema::shown(tree), schema::KIND);
                self.problem(origin, tree.position, "", message);
                return false;
            }
        }
        let version = self.has_name(origin, tree, "apiVersion", schema::API_VERSION);
        let kind = self.has_name(origin, tree, "kind", schema::KIND);
        version && kind
    }

    fn has_name(&mut self, origin: &Origin, tree: &Tree, field: &str, expect: &str) -> bool {
        let (position, found) = match tree.get(field) {
            None => (Position::NOWHERE, "missing".to_owned()),
            Some(name) if name.text() == Some(expect) => return true,
            Some(name) => (name.position, schema::shown(name)),
        };
        self.problem(origin, position, field, format!("{field} is {found}, expected {expect}"));
        false
    }

    fn problem(&mut self, origin: &Origin, position: Position, field: &str, message: String) {
        self.problems.push(Problem::new(origin.clone(), position, field, message));
    }

    /// The sum as canonical JSON.
    pub(super) fn canonical(self) -> Result<Vec<u8>, ConfigError> {
        self.problems.into_result(ErrorKind::Parse)?;
        let mut text = Vec::new();
        self.sum.canonical(false, &mut text);
        Ok(text)
    }

    /// The merged object and the origin of each leaf, without defaults.
    pub(super) fn resolve(self) -> Result<(Map<String, Value>, Provenance), ConfigError> {
        self.problems.into_result(ErrorKind::Parse)?;
        let mut provenance = Provenance::default();
        let origins = self.origins;
        let sum = self.sum.resolve(&mut String::new(), &mut |path, place| {
            let source = Source { origin: origins[place.layer].clone(), position: place.position };
            provenance.fields.insert(path.to_owned(), source);
        });
        match sum {
            Some(Value::Object(object)) => Ok((object, provenance)),
            // flags come from our own parser: anything but an object is a bug, and an empty configuration is
            // safe
            _ => Ok((Map::new(), provenance)),
        }
    }
}

impl Provenance {
    pub(super) fn set_default(&mut self, path: &str) {
        self.fields.insert(path.to_owned(), Source::DEFAULT);
    }
}

/// Most problems that one error keeps; it counts the rest.
pub const MAX_PROBLEMS: usize = 20;

/// Problems found so far.
#[derive(Default)]
pub(super) struct Problems {
    kept: Vec<Problem>,
    omitted: usize,
}

impl Problems {
    pub(super) fn push(&mut self, problem: Problem) {
        if self.kept.len() < MAX_PROBLEMS {
            self.kept.push(problem);
        } else {
            self.omitted = self.omitted.saturating_add(1);
        }
    }

    pub(super) fn into_result(self, kind: ErrorKind) -> Result<(), ConfigError> {
        if self.kept.is_empty() {
            return Ok(());
        }
        Err(ConfigError { kind, problems: self.kept, omitted: self.omitted })
    }
}

impl Problem {
    pub(super) fn new(origin: Origin, position: Position, field: &str, message: String) -> Self {
        Self { origin, field: excerpt(field), line: position.line, column: position.column, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(value: &Value) -> Node {
        Node::of(&Tree::from_json(value), 0)
    }

    fn merged(patches: &[Value]) -> Node {
        let mut sum = Node::empty();
        for patch in patches {
            sum.merge(node(patch));
        }
        sum
    }

    fn resolved(node: Node) -> Value {
        node.resolve(&mut String::new(), &mut |_, _| {}).unwrap_or(Value::Null)
    }

    fn canonical(node: &Node) -> String {
        let mut text = Vec::new();
        node.canonical(false, &mut text);
        String::from_utf8(text).unwrap()
    }

    #[track_caller]
    fn check(base: Value, patch: Value, expect: Value) {
        assert_eq!(resolved(merged(&[base.clone(), patch.clone()])), expect, "{base} and {patch}");
    }

    #[test]
    fn rfc_7386_examples_merge_as_printed() {
        check(json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"}));
        check(json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"}));
        check(json!({"a":"b"}), json!({"a":null}), json!({}));
        check(json!({"a":"b","b":"c"}), json!({"a":null}), json!({"b":"c"}));
        check(json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"}));
        check(json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]}));
        check(json!({"a":{"b":"c"}}), json!({"a":{"b":"d","c":null}}), json!({"a":{"b":"d"}}));
        check(json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]}));
        check(json!({"e":null}), json!({"a":1}), json!({"a":1}));
        check(json!({}), json!({"a":{"bb":{"ccc":null}}}), json!({"a":{"bb":{}}}));
    }

    #[test]
    fn rewritten_object_keeps_nothing_it_had() {
        let base = json!({"x": {"z": 2}});
        let patches = [json!({"x": null}), json!({"x": {"y": 1}})];
        let together = merged(&patches);
        assert_eq!(canonical(&together), r#"{"x":[{"y":1}]}"#);
        let mut sum = merged(&[base]);
        sum.merge(together);
        assert_eq!(resolved(sum), json!({"x": {"y": 1}}));
    }

    #[test]
    fn canonical_text_has_sorted_keys_and_only_effects() {
        let check = |patches: &[Value], expect: &str| assert_eq!(canonical(&merged(patches)), expect);
        check(
            &[json!({"b": [1, [2, {"y": 1, "x": "\"", "z": {}}], []], "a": null, "c": {}})],
            r#"{"a":null,"b":[1,[2,{"x":"\"","y":1,"z":{}}],[]],"c":{}}"#,
        );
        // below an object that replaces there is nothing to remove, and no further replacing
        let replaced = [json!({"x": null}), json!({"x": {"y": null, "z": {"w": null, "v": 1}}})];
        check(&replaced, r#"{"x":[{"z":{"v":1}}]}"#);
        check(
            &[json!({"x": null}), json!({"x": {"z": null}}), json!({"x": {"z": {"a": 1}}})],
            r#"{"x":[{"z":{"a":1}}]}"#,
        );
    }

    /// A small generator: it suffices that the cases are many and the same every time.
    struct Dice(u64);

    impl Dice {
        fn roll(&mut self, sides: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % sides
        }

        /// An object that the schema would allow: each path always has the same kind.
        fn object(&mut self, depth: u64) -> Value {
            let mut map = Map::new();
            for name in ["p", "q", "r", "s"] {
                let value = match (name, self.roll(4)) {
                    (_, 0) => Value::Null,
                    (_, 1) => continue,
                    ("p" | "q", _) if depth > 0 => self.object(depth - 1),
                    ("p" | "q", _) => continue,
                    ("r", _) => json!([self.roll(3)]),
                    _ => json!(self.roll(3)),
                };
                map.insert(name.to_owned(), value);
            }
            Value::Object(map)
        }
    }

    #[test]
    fn merging_is_associative_and_follows_rfc_7386() {
        let mut dice = Dice(7);
        for _ in 0..5_000 {
            let layers: Vec<Value> = (0..4).map(|_| dice.object(3)).collect();
            let in_turn = merged(&layers);
            let mut grouped = merged(&layers[..1]);
            grouped.merge(merged(&layers[1..]));
            let mut pairs = merged(&layers[..2]);
            pairs.merge(merged(&layers[2..]));
            let expect = layers.iter().fold(json!({}), rfc_7386);
            for node in [in_turn, grouped, pairs] {
                assert_eq!(resolved(node), expect, "{layers:?}");
            }
        }
    }

    /// The pseudocode of RFC 7386, section 2.
    fn rfc_7386(target: Value, patch: &Value) -> Value {
        let Value::Object(patch) = patch else { return patch.clone() };
        let mut result = target.as_object().cloned().unwrap_or_default();
        for (key, value) in patch {
            let below = result.remove(key).unwrap_or(Value::Null);
            if !value.is_null() {
                result.insert(key.clone(), rfc_7386(below, value));
            }
        }
        Value::Object(result)
    }

    #[test]
    fn equal_canonical_overrides_have_equal_effects() {
        let mut dice = Dice(11);
        let mut seen: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        let bases: Vec<Value> = (0..8).map(|_| dice.object(2)).collect();
        for _ in 0..3_000 {
            let overrides = merged(&[dice.object(1), dice.object(1)]);
            let effects = bases.iter().map(|base| {
                let mut sum = merged(std::slice::from_ref(base));
                sum.merge(overrides.clone());
                resolved(sum)
            });
            let effects: Vec<Value> = effects.collect();
            let known = seen.entry(canonical(&overrides)).or_insert_with(|| effects.clone());
            assert_eq!(*known, effects);
        }
    }

    #[test]
    fn drop_ins_are_conf_files_in_byte_order() {
        let names = [
            "20-b.conf",
            "README",
            "100-a.conf",
            "a.conf~",
            "B.conf",
            "a.conf",
            "\u{e9}.conf",
            ".conf",
            "x.CONF",
        ];
        let found = select_drop_ins(names.map(PathBuf::from).to_vec());
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let expect = [".conf", "100-a.conf", "20-b.conf", "B.conf", "a.conf", "\u{e9}.conf"];
        assert_eq!(found.taken, paths(&expect));
        assert_eq!(found.skipped, paths(&["README", "a.conf~", "x.CONF"]));
        let below = ["b/1.conf", "a.conf", "a/z.conf", "a/b/9.conf", "a-b/0.conf", "a/README"];
        let found = select_drop_ins(below.map(PathBuf::from).to_vec());
        // "a" < "a-b" < "a.conf" < "b"
        assert_eq!(found.taken, paths(&["a/b/9.conf", "a/z.conf", "a-b/0.conf", "a.conf", "b/1.conf"]));
        assert_eq!(found.skipped, paths(&["a/README"]));
    }
}
