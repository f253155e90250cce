//! Field sets of typed objects: the fields a value has, the difference of two objects, merging one into the other, by the schema.
//!
//! The rules are upstream's structured merge: structs, free maps and lists with keys are owned field by field, everything else
//! (scalars, atomic types, lists without keys) as a whole. Always holds: no value causes a panic; a value of an
//! unexpected shape is owned as a whole. Left to others: managers (`managers`).

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

/// The form of a member of a struct or map, and whether absent and empty are the same there (upstream writes it always).
fn member(of: Form, name: &str) -> (Form, bool) {
    match of {
        Form::Struct(of) => match of.field(name) {
            Some(field) => {
                (form_of_field(field), field.required || matches!(form_of_field(field), Form::Struct(_)))
            }
            None => (Form::Whole, false),
        },
        Form::Map(item) => (form_of_shape(item), false),
        _ => (Form::Whole, false),
    }
}

/// The value of an omitted key field; upstream's only default of a key.
fn default_key(name: &str) -> Option<Value> {
    (name == "protocol").then(|| Value::from("TCP"))
}

/// The step of an item of a list with these keys; the error names the missing key.
fn keyed_step(keys: &'static str, item: &Value) -> Result<Step, &'static str> {
    let mut found = Map::new();
    for key in keys.split('+') {
        let value = item.get(key).cloned().or_else(|| default_key(key)).ok_or(key)?;
        found.insert(key.to_owned(), value);
    }
    Ok(Step::Key(Value::Object(found).to_string()))
}

/// The steps of a list's items; `None` for a list that is owned as a whole. An item without its keys, which upstream cannot
/// name either, goes by its index.
fn steps(of: Form, items: &[Value]) -> Option<Vec<Step>> {
    let step = |(index, item): (usize, &Value)| match of {
        Form::KeyedList(keys, _) => keyed_step(keys, item).unwrap_or(Step::Index(index as u64)),
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
                check_lists_below(member(of, name).0, value, &Path::Field(path, name))
            })
        }
        (Form::KeyedList(..) | Form::SetList, Value::Array(items)) => {
            let mut seen = BTreeSet::new();
            for (index, item) in items.iter().enumerate() {
                let step = match of {
                    Form::KeyedList(keys, _) => keyed_step(keys, item).map_err(|key| {
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
                let mut branch = fields_below(member(of, name).0, value);
                // an empty map is a value of its own; so is a key of a free map
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
    let (set, removed) = compare_below(Form::Struct(of), Some(old), Some(new), true);
    Comparison { set: set.below, removed: removed.below }
}

fn compare_below(of: Form, old: Option<&Value>, new: Option<&Value>, always: bool) -> (Branch, Branch) {
    let mut outcome = (Branch::default(), Branch::default());
    if old == new {
        return outcome;
    }
    let both_empty = old.is_none_or(is_empty) && new.is_none_or(is_empty);
    let is_container = |value: Option<&Value>, object: bool| match value {
        None => true,
        Some(value) => {
            if object {
                value.is_object()
            } else {
                value.is_array()
            }
        }
    };
    let objects = matches!(of, Form::Struct(_) | Form::Map(_));
    let divided =
        !matches!(of, Form::Whole) && !both_empty && is_container(old, objects) && is_container(new, objects);
    if !divided {
        outcome.0.member = new.is_some();
        outcome.1.member = new.is_none();
        return outcome;
    }
    // an added or removed map or list is a field itself; a struct that upstream always writes is not
    outcome.0.member = old.is_none() && !always;
    outcome.1.member = new.is_none();
    if objects {
        compare_members(of, old, new, &mut outcome);
    } else {
        compare_items(of, old, new, &mut outcome);
    }
    outcome
}

fn compare_members(of: Form, old: Option<&Value>, new: Option<&Value>, outcome: &mut (Branch, Branch)) {
    let none = Map::new();
    let old = old.and_then(Value::as_object).unwrap_or(&none);
    let new = new.and_then(Value::as_object).unwrap_or(&none);
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for name in names {
        let (form, always) = member(of, name);
        let (set, removed) = compare_below(form, old.get(name), new.get(name), always);
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
        let (mut set, mut removed) = compare_below(item_form(of), before, after, true);
        set.member |= before.is_none();
        removed.member |= after.is_none();
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
                    Some(live) => merge_below(member(of, name).0, live, value),
                    None => value.clone(),
                };
                fields.insert(name.clone(), merged);
            }
            Value::Object(fields)
        }
        (Form::KeyedList(..) | Form::SetList, Value::Array(live), Value::Array(applied)) => {
            Value::Array(merge_lists(of, live, applied))
        }
        _ => applied.clone(),
    }
}

/// Applied items in the order applied; each other item stays before the item it preceded.
fn merge_lists(of: Form, live: Vec<Value>, applied: &[Value]) -> Vec<Value> {
    let applied_steps = steps(of, applied).unwrap_or_default();
    let wanted: BTreeSet<&Step> = applied_steps.iter().collect();
    let live_steps = steps(of, &live).unwrap_or_default();
    let mut known: BTreeMap<&Step, Value> = BTreeMap::new();
    for (step, item) in live_steps.iter().zip(&live) {
        known.entry(step).or_insert_with(|| item.clone());
    }
    let mut merged = Vec::with_capacity(live.len() + applied.len());
    let mut done: BTreeSet<&Step> = BTreeSet::new();
    let mut next = applied_steps.iter().zip(applied);
    let mut emit = |step, item: &Value, merged: &mut Vec<Value>| {
        merged.push(match known.remove(step) {
            Some(live) => merge_below(item_form(of), live, item),
            None => item.clone(),
        });
    };
    for (step, item) in live_steps.iter().zip(&live) {
        if !wanted.contains(step) {
            merged.push(item.clone());
            continue;
        }
        // up to this one, in the applied order
        while !done.contains(step) {
            let Some((ahead, item)) = next.next() else { break };
            emit(ahead, item, &mut merged);
            done.insert(ahead);
        }
    }
    next.for_each(|(step, item)| emit(step, item, &mut merged));
    merged
}

/// Removes the paths of `gone` that are not in `kept`, and structs, maps and lists that become empty by that.
pub(super) fn remove(of: &'static Type, value: Value, gone: &FieldSet, kept: &FieldSet) -> Value {
    remove_below(Form::Struct(of), value, gone, Some(kept))
}

fn remove_below(of: Form, value: Value, gone: &FieldSet, kept: Option<&FieldSet>) -> Value {
    match value {
        Value::Object(fields) if matches!(of, Form::Struct(_) | Form::Map(_)) => {
            let left = fields.into_iter().filter_map(|(name, value)| {
                let required =
                    matches!(of, Form::Struct(of) if of.field(&name).is_some_and(|field| field.required));
                let empty =
                    if value.is_array() { Value::Array(Vec::new()) } else { Value::Object(Map::new()) };
                let form = member(of, &name).0;
                let left = remove_at(of, form, &Step::Field(name.clone()), value, gone, kept);
                let left = left.or((required && !matches!(form, Form::Whole)).then_some(empty));
                left.map(|left| (name, left))
            });
            Value::Object(left.collect())
        }
        Value::Array(items) if matches!(of, Form::KeyedList(..) | Form::SetList) => {
            let steps = steps(of, &items).unwrap_or_default();
            let left = steps.iter().zip(items).filter_map(|(step, item)| {
                let named = keys_of(of, &item);
                let mut left = remove_at(of, item_form(of), step, item, gone, kept)?;
                // an item that stays keeps its key fields
                if let Some(fields) = left.as_object_mut() {
                    fields.extend(named);
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

/// The value left at a step: none if the step is removed and no manager keeps it, or if everything below it was removed.
fn remove_at(
    within: Form,
    of: Form,
    step: &Step,
    value: Value,
    gone: &FieldSet,
    kept: Option<&FieldSet>,
) -> Option<Value> {
    let Some(going) = gone.get(step) else { return Some(value) };
    let keeping = kept.and_then(|kept| kept.get(step));
    // a struct's field stays while something below it does; an item or a map's key stays only if a manager owns it
    let is_kept = keeping.is_some_and(|branch| branch.member || matches!(within, Form::Struct(_)));
    if going.member && !is_kept {
        return None;
    }
    let was_empty = is_empty(&value);
    let left = remove_below(of, value, &going.below, keeping.map(|branch| &branch.below));
    (was_empty || is_kept || !is_empty(&left)).then_some(left)
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

    #[test]
    fn keyed_lists_merge_by_item_in_applied_order() {
        let list = |names: &str| -> Value {
            let items = names.split(' ').filter(|name| !name.is_empty());
            json!({"finalizers": items.collect::<Vec<_>>()})
        };
        let check = |live: &str, applied: &str, expect: &str| {
            let merged = merge(of("meta/v1/ObjectMeta"), list(live), &list(applied));
            assert_eq!(merged, list(expect), "{live} + {applied}");
        };
        check("a b c", "c a", "c a b");
        check("a b c", "d b", "a d b c");
        check("", "x y", "x y");
        check("a", "", "a");
        check("x a y", "a b", "x a y b");
        let live = json!({"containers": [{"name": "a", "image": "1", "args": ["x", "y"]}, {"name": "b", "image": "2"}]});
        let applied = json!({"containers": [{"name": "a", "args": ["z"]}]});
        assert_eq!(
            merge(of("core/v1/PodSpec"), live, &applied),
            json!({"containers": [{"name": "a", "image": "1", "args": ["z"]}, {"name": "b", "image": "2"}]})
        );
    }

    #[test]
    fn unowned_fields_and_emptied_parents_are_removed() {
        let pod = of("core/v1/PodSpec");
        let value = json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}],
            "securityContext": {"runAsUser": 1}, "nodeSelector": {"k": "v"}});
        let last = fields_of(pod, &value);
        let keep = |kept: Value| remove(pod, value.clone(), &last, &FieldSet::from_value(&kept).unwrap());
        assert_eq!(keep(json!({})), json!({"containers": []}));
        assert_eq!(
            keep(json!({"f:containers": {"k:{\"name\":\"b\"}": {".": {}, "f:image": {}}}})),
            json!({"containers": [{"name": "b", "image": "2"}]})
        );
        // an item that no manager owns is removed with its fields
        assert_eq!(
            keep(json!({"f:containers": {"k:{\"name\":\"b\"}": {"f:image": {}}}})),
            json!({"containers": []})
        );
        assert_eq!(
            keep(json!({"f:securityContext": {}, "f:nodeSelector": {}})),
            json!({"containers": [], "securityContext": {}, "nodeSelector": {"k": "v"}})
        );
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
