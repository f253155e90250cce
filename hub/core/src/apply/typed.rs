//! Field sets of typed objects: the fields a value has, the difference of two objects, merging one into the
//! other, by the schema.
//!
//! The rules are upstream's structured merge: structs, free maps and lists with keys are owned field by
//! field, everything else (scalars, atomic types, lists without keys) as a whole. Null is an empty container,
//! as upstream's typed values have it: a list of which all items were removed is null, and not absent. Always
//! holds: no value causes a panic; a value of an unexpected shape is owned as a whole. Left to others:
//! managers (`managers`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::fields::{Branch, FieldSet, Step};
use crate::kinds::schema::{self, Field, Shape, Type};
use crate::path::Path;

/// How a value is owned.
#[derive(Debug, Clone, Copy)]
enum Form {
    Whole,
    Struct(&'static Type),
    Map(&'static Shape),
    KeyedList(&'static str, &'static Shape),
    SetList,
}

fn form_of_shape(shape: &'static Shape) -> Form {
    match shape {
        Shape::Message(name) => match schema::find(name) {
            Some(of) if !of.atomic => Form::Struct(of),
            _ => Form::Whole,
        },
        Shape::Map(item) => Form::Map(item),
        _ => Form::Whole,
    }
}

fn form_of_field(field: &'static Field) -> Form {
    match (&field.shape, field.list_keys) {
        (_, _) if field.atomic => Form::Whole,
        (Shape::List(_), Some("set")) => Form::SetList,
        (Shape::List(item), Some(keys)) => Form::KeyedList(keys, item),
        (shape, _) => form_of_shape(shape),
    }
}

/// The form of a member of a struct or map.
fn member(of: Form, name: &str) -> Form {
    match of {
        Form::Struct(of) => of.field(name).map_or(Form::Whole, form_of_field),
        Form::Map(item) => form_of_shape(item),
        _ => Form::Whole,
    }
}

/// Whether a member always exists in its struct, though it may be empty.
fn is_always_there(of: Form, name: &str) -> bool {
    let Form::Struct(of) = of else { return false };
    of.field(name)
        .is_some_and(|field| field.always || (field.required && matches!(field.shape, Shape::List(_))))
}

/// Whether a set contains a step, by naming it or by naming something below it: that makes a field of a
/// struct a part of the set, but not an item of a list or a key of a map. A set need not name a struct
/// itself, and the sets of older hubs never do.
fn is_in(of: Form, step: &Step, branch: &Branch) -> bool {
    let is_named = matches!((of, step), (Form::Struct(of), Step::Field(name)) if of.field(name).is_some());
    branch.member || (is_named && !branch.below.is_empty())
}

/// The value of an omitted key field; upstream's only defaults of keys.
fn default_key(item: &Shape, name: &str) -> Option<Value> {
    match (item, name) {
        (_, "protocol") => Some("TCP".into()),
        (Shape::Message("core/v1/LocalObjectReference"), "name") => Some("".into()),
        _ => None,
    }
}

/// The step of an item of a list with these keys; the error names the missing key.
fn keyed_step(keys: &'static str, shape: &Shape, item: &Value) -> Result<Step, &'static str> {
    let mut found = Map::new();
    for key in keys.split('+') {
        let value = item.get(key).filter(|value| !value.is_null()).cloned();
        let value = value.or_else(|| default_key(shape, key)).ok_or(key)?;
        found.insert(key.to_owned(), value);
    }
    Ok(Step::Key(Value::Object(found).to_string()))
}

/// The steps of a list's items; `None` for a list that is owned as a whole. An item without its keys, which
/// upstream cannot identify either, is identified by its index.
fn steps(of: Form, items: &[Value]) -> Option<Vec<Step>> {
    let step = |(index, item): (usize, &Value)| match of {
        Form::KeyedList(keys, shape) => keyed_step(keys, shape, item).unwrap_or(Step::Index(index as u64)),
        _ => Step::Item(item.to_string()),
    };
    matches!(of, Form::KeyedList(..) | Form::SetList).then(|| items.iter().enumerate().map(step).collect())
}

fn item_form(of: Form) -> Form {
    match of {
        Form::KeyedList(_, item) => form_of_shape(item),
        _ => Form::Whole,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// Rejects lists of an applied object with items that lack a key, and with duplicate items.
pub(super) fn check_lists(of: &'static Type, value: &Value) -> Result<(), String> {
    check_lists_below(Form::Struct(of), value, &Path::Root)
}

fn check_lists_below(of: Form, value: &Value, path: &Path<'_>) -> Result<(), String> {
    match (of, value) {
        (Form::Struct(_) | Form::Map(_), Value::Object(fields)) => {
            fields.iter().try_for_each(|(name, value)| {
                check_lists_below(member(of, name), value, &Path::Field(path, name))
            })
        }
        (Form::KeyedList(..) | Form::SetList, Value::Array(items)) => {
            let mut seen = BTreeSet::new();
            for (index, item) in items.iter().enumerate() {
                let step = match of {
                    Form::KeyedList(keys, shape) => keyed_step(keys, shape, item).map_err(|key| {
                        format!(
                            ".{}: element {index}: associative list with keys has an element that omits key field {key:?}",
                            path.text()
                        )
                    })?,
                    _ => Step::Item(item.to_string()),
                };
                let below = Path::Item(path, index);
                if !seen.insert(step) {
                    return Err(format!(".{}: duplicate entries for a key of the list", below.text()));
                }
                check_lists_below(item_form(of), item, &below)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The fields that an object of the type sets.
pub(super) fn fields_of(of: &'static Type, value: &Value) -> FieldSet {
    fields_below(Form::Struct(of), value).below
}

fn fields_below(of: Form, value: &Value) -> Branch {
    match (of, value) {
        (Form::Struct(_) | Form::Map(_), Value::Object(fields)) => {
            let mut set = FieldSet::default();
            for (name, value) in fields {
                let mut branch = fields_below(member(of, name), value);
                // an empty map and null are values of their own; so is a key of a free map
                branch.member |= is_empty(value) && !value.is_array() || matches!(of, Form::Map(_));
                set.add(Step::Field(name.clone()), branch);
            }
            Branch { member: false, below: set }
        }
        (Form::KeyedList(..) | Form::SetList, Value::Array(items)) => {
            let mut set = FieldSet::default();
            for (step, item) in steps(of, items).into_iter().flatten().zip(items) {
                let below = fields_below(item_form(of), item).below;
                set.add(step, Branch { member: true, below });
            }
            Branch { member: false, below: set }
        }
        _ => Branch::leaf(),
    }
}

/// The fields that a change affected.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Fields that are new or have another value.
    pub(super) set: FieldSet,
    /// Fields that were removed.
    pub(super) removed: FieldSet,
}

/// Compares two objects of a type.
pub(super) fn compare(of: &'static Type, old: &Value, new: &Value) -> Comparison {
    let (set, removed) = compare_below(Form::Struct(of), Some(old), Some(new));
    Comparison { set: set.below, removed: removed.below }
}

fn compare_below(of: Form, old: Option<&Value>, new: Option<&Value>) -> (Branch, Branch) {
    let mut outcome = (Branch::default(), Branch::default());
    let both_empty = old.is_none_or(is_empty) && new.is_none_or(is_empty);
    if old == new || (both_empty && old.is_some() && new.is_some()) {
        return outcome;
    }
    let objects = matches!(of, Form::Struct(_) | Form::Map(_));
    let is_container = |value: Option<&Value>| {
        value
            .is_none_or(|value| value.is_null() || if objects { value.is_object() } else { value.is_array() })
    };
    let divided = !matches!(of, Form::Whole) && !both_empty && is_container(old) && is_container(new);
    outcome.0.member = new.is_some() && (old.is_none() || !divided);
    outcome.1.member = new.is_none();
    match divided {
        false => {}
        true if objects => compare_members(of, old, new, &mut outcome),
        true => compare_items(of, old, new, &mut outcome),
    }
    outcome
}

fn compare_members(of: Form, old: Option<&Value>, new: Option<&Value>, outcome: &mut (Branch, Branch)) {
    /// The member `name`; `None` if it is absent, but an empty value for a member that always exists.
    fn value<'a>(within: Option<&'a Value>, name: &str, always: bool) -> Option<&'a Value> {
        let found = within?.get(name);
        found.or(always.then_some(&Value::Null))
    }
    let fields = [old, new].into_iter().flatten().filter_map(Value::as_object);
    let names: BTreeSet<&String> = fields.flat_map(Map::keys).collect();
    for name in names {
        let always = is_always_there(of, name);
        let (old, new) = (value(old, name, always), value(new, name, always));
        let (set, removed) = compare_below(member(of, name), old, new);
        outcome.0.below.add(Step::Field(name.clone()), set);
        outcome.1.below.add(Step::Field(name.clone()), removed);
    }
}

fn compare_items(of: Form, old: Option<&Value>, new: Option<&Value>, outcome: &mut (Branch, Branch)) {
    fn by_step(of: Form, list: Option<&Value>) -> BTreeMap<Step, &Value> {
        let items = list.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        steps(of, items).into_iter().flatten().zip(items).collect()
    }
    let (old, new) = (by_step(of, old), by_step(of, new));
    let all: BTreeSet<&Step> = old.keys().chain(new.keys()).collect();
    for step in all {
        let (before, after) = (old.get(step).copied(), new.get(step).copied());
        let (set, removed) = compare_below(item_form(of), before, after);
        outcome.0.below.add(step.clone(), set);
        outcome.1.below.add(step.clone(), removed);
    }
}

/// The live object with the applied fields set.
pub(super) fn merge(of: &'static Type, live: Value, applied: &Value) -> Value {
    merge_below(Form::Struct(of), live, applied)
}

fn merge_below(of: Form, live: Value, applied: &Value) -> Value {
    match (of, live, applied) {
        (Form::Struct(_) | Form::Map(_), Value::Object(mut fields), Value::Object(applied)) => {
            for (name, value) in applied {
                let merged = match fields.remove(name) {
                    Some(live) => merge_below(member(of, name), live, value),
                    None => value.clone(),
                };
                fields.insert(name.clone(), merged);
            }
            Value::Object(fields)
        }
        (Form::KeyedList(..) | Form::SetList, Value::Array(live), Value::Array(applied)) => {
            Value::Array(merge_lists(of, live, applied))
        }
        // null takes nothing away from what is owned field by field
        (Form::Struct(_) | Form::Map(_) | Form::KeyedList(..) | Form::SetList, live, Value::Null)
            if !is_empty(&live) =>
        {
            live
        }
        _ => applied.clone(),
    }
}

/// The items of both lists. If the applied order differs from that of the live list, shared items move into
/// the applied order, and the others stay in place, as upstream does.
fn merge_lists(of: Form, live: Vec<Value>, applied: &[Value]) -> Vec<Value> {
    let (live_steps, steps) = (steps(of, &live).unwrap_or_default(), steps(of, applied).unwrap_or_default());
    let wanted: BTreeSet<&Step> = steps.iter().collect();
    // an item that occurs twice is not merged, because it is unclear into which
    let mut places: BTreeMap<&Step, Option<usize>> = BTreeMap::new();
    for (place, step) in live_steps.iter().enumerate() {
        places.entry(step).and_modify(|place| *place = None).or_insert(Some(place));
    }
    let mut live: Vec<Option<Value>> = live.into_iter().map(Some).collect();
    let mut shared = steps.iter().filter(|step| places.contains_key(*step));
    let mut next_shared = shared.next();
    let mut merged = Vec::with_capacity(live.len() + applied.len());
    let mut done: BTreeSet<&Step> = BTreeSet::new();
    let (mut left, mut right) = (0, 0);
    while left < live.len() || right < applied.len() {
        let (step, next) = (live_steps.get(left), steps.get(right));
        let meet = step.is_some() && step == next;
        if let (Some(step), Some(_), false) = (step, next, meet) {
            // both lists have this item, but another shared item is next in the applied order
            if wanted.contains(step) && next_shared.is_some_and(|shared| shared != step) {
                left += 1;
                continue;
            }
        }
        if let Some(step) = step.filter(|step| !wanted.contains(step)) {
            debug_assert!(!meet, "{step:?} is not wanted, but met");
            merged.extend(live[left].take());
            left += 1;
            continue;
        }
        left += usize::from(meet || step.is_some_and(|step| done.contains(step)));
        let Some(next) = next else { continue };
        let known = places.get(next).copied().flatten().and_then(|place| live[place].take());
        merged.push(match known {
            Some(known) => merge_below(item_form(of), known, &applied[right]),
            None => applied[right].clone(),
        });
        done.insert(next);
        right += 1;
        if meet || next_shared == Some(next) {
            next_shared = shared.next();
        }
    }
    merged
}

/// Removes what is in `gone` and not in `kept`. A path is removed as a whole, including fields below it
/// without an owner, such as defaults; a container that remains with nothing in it becomes null.
pub(super) fn remove(of: &'static Type, value: Value, gone: &FieldSet, kept: &FieldSet) -> Value {
    remove_below(Form::Struct(of), value, gone, Some(kept))
}

fn remove_below(of: Form, value: Value, gone: &FieldSet, kept: Option<&FieldSet>) -> Value {
    match value {
        Value::Object(fields) if matches!(of, Form::Struct(_) | Form::Map(_)) => {
            let left = fields.into_iter().filter_map(|(name, value)| {
                let step = Step::Field(name);
                let left = remove_at(of, &step, value, gone, kept)?;
                let Step::Field(name) = step else { return None };
                Some((name, left))
            });
            Value::Object(left.collect())
        }
        Value::Array(items) if matches!(of, Form::KeyedList(..) | Form::SetList) => {
            let steps = steps(of, &items).unwrap_or_default();
            let left = steps.iter().zip(items).filter_map(|(step, item)| {
                let named = keys_of(of, &item);
                let mut left = remove_at(of, step, item, gone, kept)?;
                // an item that stays keeps its key fields
                if !named.is_empty() {
                    match &mut left {
                        Value::Object(fields) => fields.extend(named),
                        other => *other = Value::Object(named),
                    }
                }
                Some(left)
            });
            Value::Array(left.collect())
        }
        other => other,
    }
}

fn keys_of(of: Form, item: &Value) -> Map<String, Value> {
    let Form::KeyedList(keys, _) = of else { return Map::new() };
    let value = |key: &str| item.get(key).map(|value| (key.to_owned(), value.clone()));
    keys.split('+').filter_map(value).collect()
}

/// The value left at a step of a container.
fn remove_at(
    within: Form,
    step: &Step,
    value: Value,
    gone: &FieldSet,
    kept: Option<&FieldSet>,
) -> Option<Value> {
    let Some(going) = gone.get(step) else { return Some(value) };
    let keeping = kept.and_then(|kept| kept.get(step)).filter(|branch| is_in(within, step, branch));
    if is_in(within, step, going) && keeping.is_none() {
        return None;
    }
    let of = match step {
        Step::Field(name) => member(within, name),
        _ => item_form(within),
    };
    let was_empty = is_empty(&value);
    let left = remove_below(of, value, &going.below, keeping.map(|branch| &branch.below));
    Some(if is_empty(&left) && !was_empty { Value::Null } else { left })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(name: &str) -> &'static Type {
        schema::find(name).unwrap()
    }

    const SET: &str = "apps/v1/DaemonSet";

    fn daemon_set() -> Value {
        json!({"metadata": {"labels": {"a": "1"}, "finalizers": ["x/y"]},
            "spec": {"selector": {"matchLabels": {"app": "a"}},
                "template": {"spec": {"nodeSelector": {"k": "v"}, "containers": [
                    {"name": "main", "image": "i", "args": ["1", "2"], "ports": [{"containerPort": 80}],
                        "resources": {}, "env": [{"name": "E", "value": "1"}]}]}}}})
    }

    #[test]
    fn applied_fields_have_upstreams_names() {
        assert_eq!(
            fields_of(of(SET), &daemon_set()).to_value(),
            json!({"f:metadata": {"f:labels": {"f:a": {}}, "f:finalizers": {"v:\"x/y\"": {}}},
                "f:spec": {"f:selector": {}, "f:template": {"f:spec": {"f:nodeSelector": {}, "f:containers": {
                    "k:{\"name\":\"main\"}": {".": {}, "f:name": {}, "f:image": {}, "f:args": {}, "f:resources": {},
                        "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}},
                        "f:env": {"k:{\"name\":\"E\"}": {".": {}, "f:name": {}, "f:value": {}}}}}}}}})
        );
    }

    #[test]
    fn item_without_a_key_has_upstreams_default_of_it() {
        let port = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}]}],
            "imagePullSecrets": [{}]}}}});
        check_lists(of(SET), &port).unwrap();
        let owned = fields_of(of(SET), &port).to_value();
        let spec = &owned["f:spec"]["f:template"]["f:spec"];
        assert_eq!(spec["f:imagePullSecrets"], json!({"k:{\"name\":\"\"}": {}}));
        let nameless = json!({"spec": {"template": {"spec": {"containers": [{}]}}}});
        let why = check_lists(of(SET), &nameless).unwrap_err();
        assert!(why.ends_with("has an element that omits key field \"name\""), "{why}");
    }

    #[test]
    fn created_object_sets_all_its_fields() {
        let made = compare(
            of("core/v1/ConfigMap"),
            &json!({}),
            &json!({"data": {"a": "1"}, "metadata": {"labels": {"l": ""}}}),
        );
        assert_eq!(
            made.set.to_value(),
            json!({"f:data": {".": {}, "f:a": {}}, "f:metadata": {"f:labels": {".": {}, "f:l": {}}}})
        );
        assert!(made.removed.is_empty());
    }

    #[test]
    fn comparison_lists_set_and_removed_fields() {
        let mut new = daemon_set();
        let container = &mut new["spec"]["template"]["spec"]["containers"][0];
        container["image"] = "j".into();
        container["args"] = json!(["1"]);
        container["env"] = json!([{"name": "F", "value": "1"}]);
        new["metadata"]["labels"] = json!({"b": "1"});
        let changed = compare(of(SET), &daemon_set(), &new);
        assert_eq!(
            changed.set.paths(99),
            [
                ".metadata.labels.b",
                ".spec.template.spec.containers[name=\"main\"].args",
                ".spec.template.spec.containers[name=\"main\"].image",
                ".spec.template.spec.containers[name=\"main\"].env[name=\"F\"]",
                ".spec.template.spec.containers[name=\"main\"].env[name=\"F\"].name",
                ".spec.template.spec.containers[name=\"main\"].env[name=\"F\"].value",
            ]
        );
        assert_eq!(
            changed.removed.paths(99),
            [
                ".metadata.labels.a",
                ".spec.template.spec.containers[name=\"main\"].env[name=\"E\"]",
                ".spec.template.spec.containers[name=\"main\"].env[name=\"E\"].name",
                ".spec.template.spec.containers[name=\"main\"].env[name=\"E\"].value",
            ]
        );
    }

    /// Results of upstream's structured merge.
    #[test]
    fn keyed_lists_merge_by_item_in_applied_order() {
        let list = |names: &str| -> Value { names.split_whitespace().collect::<Vec<_>>().into() };
        let check = |live: &str, applied: &str, expect: &str| {
            let object = |names: &str| json!({"finalizers": list(names)});
            let merged = merge(of("meta/v1/ObjectMeta"), object(live), &object(applied));
            assert_eq!(merged, object(expect), "{live} + {applied}");
            let items = |names: &str| -> Value {
                list(names).as_array().unwrap().iter().map(|name| json!({"name": name})).collect()
            };
            let object = |names: &str| json!({"containers": items(names)});
            let merged = merge(of("core/v1/PodSpec"), object(live), &object(applied));
            assert_eq!(merged, object(expect), "{live} + {applied}");
        };
        for (live, applied, expect) in [
            ("a b c", "d b", "a d b c"),
            ("", "x y", "x y"),
            ("a", "", "a"),
            ("x a y", "a b", "x a y b"),
            ("a b", "b a", "b a"),
            ("a b c", "c a", "b c a"),
            ("a b c", "d e", "a b c d e"),
            ("a b c d", "d e f a", "b c d e f a"),
            ("d b a c", "d c b a", "d c b a"),
            ("k m n o", "a m o", "k a m n o"),
            ("a b c g f", "c d e f", "a b c g d e f"),
            ("a b c x y z", "d e x y z", "a b c d e x y z"),
            ("c d e f g h i j", "2 h 3 e 4 k l", "c d f g 2 h i j 3 e 4 k l"),
            ("a b c d e f g h i j", "1 b 2 h 3 e 4 k l", "a 1 b c d f g 2 h i j 3 e 4 k l"),
            ("a b b", "c", "a b b c"),
            ("a b b", "b", "a b"),
            ("a b b", "a", "a b b"),
        ] {
            check(live, applied, expect);
        }
        let live = json!({"containers": [{"name": "a", "image": "1", "args": ["x", "y"]}, {"name": "b", "image": "2"}]});
        let applied = json!({"containers": [{"name": "a", "args": ["z"]}]});
        assert_eq!(
            merge(of("core/v1/PodSpec"), live, &applied),
            json!({"containers": [{"name": "a", "image": "1", "args": ["z"]}, {"name": "b", "image": "2"}]})
        );
    }

    #[test]
    fn null_and_empty_values_take_owned_fields_from_nobody() {
        let live = json!({"containers": [{"name": "a"}], "securityContext": {"runAsUser": 1}, "hostNetwork": true,
            "nodeSelector": {"k": "v"}});
        for empty in [json!(null), json!([]), json!({})] {
            let applied = json!({"containers": empty, "securityContext": empty});
            let merged = merge(of("core/v1/PodSpec"), live.clone(), &applied);
            let kept = if empty.is_array() { "containers" } else { "securityContext" };
            assert_eq!(merged[kept], live[kept], "{empty}");
        }
        // an applied value that is owned as a whole is set as it is
        let applied = json!({"hostNetwork": false, "nodeSelector": {}, "hostname": null});
        let merged = merge(of("core/v1/PodSpec"), live, &applied);
        assert_eq!((&merged["hostNetwork"], &merged["nodeSelector"]), (&json!(false), &json!({})));
        assert_eq!(
            fields_of(of("core/v1/PodSpec"), &applied).to_value(),
            json!({"f:hostNetwork": {}, "f:nodeSelector": {}, "f:hostname": {}})
        );
    }

    #[test]
    fn removed_struct_takes_unowned_fields_with_it() {
        let pod = of("core/v1/PodSpec");
        let value = json!({"containers": [{"name": "a", "image": "1", "tty": true}, {"name": "b", "image": "2"}],
            "securityContext": {"runAsUser": 1, "fsGroup": 2}, "nodeSelector": {"k": "v"}});
        let last = json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}],
            "securityContext": {"runAsUser": 1}, "nodeSelector": {"k": "v"}});
        let last = fields_of(pod, &last);
        let check = |kept: Value, expect: Value| {
            let kept = FieldSet::from_value(&kept).unwrap();
            assert_eq!(remove(pod, value.clone(), &last, &kept), expect, "{}", kept.to_value());
        };
        check(json!({}), json!({}));
        check(
            json!({"f:containers": {"k:{\"name\":\"b\"}": {".": {}, "f:image": {}}}}),
            json!({"containers": [{"name": "b", "image": "2"}]}),
        );
        // an item that no manager owns is removed with its fields
        check(json!({"f:containers": {"k:{\"name\":\"b\"}": {"f:image": {}}}}), json!({"containers": null}));
        // its unowned field stays with an item
        check(
            json!({"f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}}}}),
            json!({"containers": [{"name": "a", "tty": true}]}),
        );
        // a struct is removed whether a manager owns a field in it or the struct itself
        for owned in [json!({"f:fsGroup": {}}), json!({"f:supplementalGroups": {}}), json!({})] {
            check(
                json!({"f:securityContext": owned, "f:nodeSelector": {}}),
                json!({"securityContext": {"fsGroup": 2}, "nodeSelector": {"k": "v"}}),
            );
        }
    }

    #[test]
    fn emptied_struct_is_no_removed_one() {
        let pod = of("core/v1/PodSpec");
        let changed =
            compare(pod, &json!({"securityContext": {"runAsUser": 1}}), &json!({"securityContext": null}));
        assert!(changed.set.is_empty(), "{:?}", changed.set);
        assert_eq!(changed.removed.to_value(), json!({"f:securityContext": {"f:runAsUser": {}}}));
    }

    /// The expected fields are those that Kubernetes writes for `kubectl create`.
    #[test]
    fn added_struct_is_a_field_itself_unless_it_is_always_there() {
        let probe = json!({"httpGet": {"path": "/", "port": 80}, "periodSeconds": 10});
        let container = json!({"name": "main", "resources": {"limits": {"cpu": "1"}}, "livenessProbe": probe,
            "securityContext": {}});
        let set = json!({"metadata": {"labels": {"a": "1"}}, "spec": {
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0}},
            "template": {"metadata": {"labels": {"a": "1"}}, "spec": {"containers": [container]}}}});
        let changed = compare(of(SET), &json!({"spec": {}}), &set);
        let probe =
            json!({".": {}, "f:httpGet": {".": {}, "f:path": {}, "f:port": {}}, "f:periodSeconds": {}});
        let container = json!({".": {}, "f:name": {}, "f:resources": {".": {}, "f:limits": {".": {}, "f:cpu": {}}},
            "f:livenessProbe": probe, "f:securityContext": {}});
        let labels = json!({"f:labels": {".": {}, "f:a": {}}});
        assert_eq!(
            changed.set.to_value(),
            json!({"f:metadata": labels, "f:spec": {
                "f:updateStrategy": {"f:type": {}, "f:rollingUpdate": {".": {}, "f:maxSurge": {}}},
                "f:template": {"f:metadata": labels,
                    "f:spec": {"f:containers": {"k:{\"name\":\"main\"}": container}}}}})
        );
        let removed = compare(of(SET), &set, &json!({"spec": {}})).removed;
        assert_eq!(removed, changed.set);
    }

    #[test]
    fn lists_with_duplicate_or_unnamed_items_are_refused() {
        let check = |value: Value, why: &str| {
            let error = check_lists(of("core/v1/PodSpec"), &value).unwrap_err();
            assert!(error.contains(why), "{error}");
        };
        check(json!({"containers": [{"image": "x"}]}), "omits key field \"name\"");
        check(json!({"containers": [{"name": "x"}, {"name": "x"}]}), ".containers[1]: duplicate entries");
        let ports = json!({"containers": [{"name": "x", "ports": [{"containerPort": 1}, {"containerPort": 1, "protocol": "UDP"}]}]});
        assert_eq!(check_lists(of("core/v1/PodSpec"), &ports), Ok(()));
    }
}
