//! Random applies: whatever three managers applied before, the object equals a new one made by applying only
//! their current configurations.
//!
//! The test has no list of structs with defaults inside: it applies each struct of the schema and looks for
//! fields that were added. The objects break rules of their kind, because defaulting and field management do
//! not depend on validation.

use kedge_rig::Random;
use serde_json::{Map, Value, json};

use super::typed::{fields_of, merge};
use super::{Apply, Manager, take_claim};
use crate::kinds::schema::{self, Field, Shape, Type};
use crate::kinds::{DAEMON_SET, Kind};

const KIND: &Kind = &DAEMON_SET;
const NOW: &str = "2026-11-21T12:00:00Z";
const MANAGERS: [&str; 3] = ["a", "b", "c"];

/// A step to a struct: its field, or the field of a list that the struct is the one item of.
type Path = Vec<&'static Field>;

/// A struct of the schema, and a struct beside it.
struct Site {
    with: Value,
    sibling: Option<Value>,
    name: String,
}

fn type_of(shape: &'static Shape) -> Option<&'static Type> {
    match shape {
        Shape::Message(name) => schema::find(name).filter(|of| !of.atomic),
        Shape::List(item) => type_of(item),
        _ => None,
    }
}

fn has_message(shape: &Shape) -> bool {
    match shape {
        Shape::List(item) | Shape::Map(item) => has_message(item),
        shape => matches!(shape, Shape::Message(_)),
    }
}

fn is_struct(field: &Field) -> bool {
    // managers of an object own neither its status nor, here, its name
    !field.atomic && matches!(field.shape, Shape::Message(_)) && !["metadata", "status"].contains(&field.name)
}

/// A value of a field, always the same: managers do not conflict about it.
fn value_of(shape: &'static Shape, values: &[&'static str]) -> Value {
    match shape {
        Shape::String => values.last().copied().unwrap_or("x").into(),
        Shape::Bool => true.into(),
        Shape::Int32 | Shape::Int64 | Shape::Double | Shape::IntOrString => 7.into(),
        Shape::Bytes => "YQ==".into(),
        Shape::Time => NOW.into(),
        Shape::MicroTime => "2026-11-21T12:00:00.000000Z".into(),
        Shape::Quantity => "1".into(),
        Shape::Raw => json!({"x": 1}),
        Shape::Message(of) => content(schema::find(of).expect("the table has it"), None),
        Shape::List(item) => json!([value_of(item, &[])]),
        Shape::Map(item) => json!({"x": value_of(item, &[])}),
    }
}

/// A value of the type with its required fields and one other.
fn content(of: &'static Type, other: Option<&'static Field>) -> Value {
    let keys = of.fields.iter().filter(|field| field.required).chain(other);
    Value::Object(keys.map(|field| (field.name.to_owned(), value_of(&field.shape, &field.values))).collect())
}

/// A whole object that has only this struct.
fn at(path: &[&'static Field], struct_of: &'static Type, other: Option<&'static Field>) -> Value {
    let inner = path.iter().rev().fold(None, |inner: Option<Value>, field| {
        let mut value = match (&field.shape, type_of(&field.shape)) {
            _ if inner.is_none() => content(struct_of, other),
            (Shape::List(_), Some(of)) => content(of, None),
            _ => json!({}),
        };
        if let (Some(inner), Some(fields)) = (inner, value.as_object_mut()) {
            fields.extend(inner.as_object().cloned().unwrap_or_default());
        }
        let value = if matches!(field.shape, Shape::List(_)) { json!([value]) } else { value };
        Some(json!({field.name: value}))
    });
    inner.unwrap_or_default()
}

/// The value at the place of [`at`].
fn found<'a>(object: &'a Value, path: &[&'static Field]) -> &'a Value {
    path.iter().fold(object, |value, field| {
        let value = &value[field.name];
        if matches!(field.shape, Shape::List(_)) { &value[0] } else { value }
    })
}

fn walk(of: &'static Type, path: &Path, visit: &mut dyn FnMut(&Path, &'static Type)) {
    for field in of.fields.iter().filter(|field| !field.atomic && field.name != "metadata") {
        let is_divided = field.list_keys.is_some_and(|keys| keys != "set");
        let Some(inner) = type_of(&field.shape).filter(|_| is_struct(field) || is_divided) else { continue };
        let mut path = path.clone();
        path.push(field);
        if is_struct(field) {
            visit(&path, of);
        }
        walk(inner, &path, visit);
    }
}

/// Every struct below the spec to which defaults add something. Structs that stay empty are not applied: an
/// empty one is removed with the last field that another manager had in it, as upstream does.
fn sites() -> Vec<Site> {
    let mut sites = Vec::new();
    let root = KIND.schema();
    walk(root, &Vec::new(), &mut |path, parent| {
        let Some((last, parents)) = path.split_last() else { return };
        let Some(of) = type_of(&last.shape).filter(|_| path[0].name == "spec") else { return };
        let scalars = of.fields.iter().filter(|field| {
            // of two fields with the same meaning (`serviceAccount`, `serviceAccountName`) one would keep the
            // other; a default inside a value that is owned as a whole is a conflict upstream as well
            !field.required && !has_message(&field.shape) && !field.name.starts_with("serviceAccount")
        });
        let siblings = parent.fields.iter().filter(|field| is_struct(field) && field.name != last.name);
        let mut siblings =
            siblings.filter_map(|field| Some((field, type_of(&field.shape)?))).cycle().skip(path.len());
        for other in std::iter::once(None).chain(scalars.map(Some)) {
            let with = at(path, of, other);
            let defaulted = stored(with.clone(), None);
            let added = found(&defaulted, path) != found(&with, path);
            let is_hollow =
                of.fields.iter().any(|field| field.required && is_struct(field) && with_empty(field));
            let sibling = siblings.next().map(|(field, of)| {
                let path = [parents, &[field]].concat();
                let empty = at(&path, of, None);
                let stays_so = found(&stored(empty.clone(), None), &path) == &json!({});
                let scalar = of.fields.iter().find(|field| !has_message(&field.shape));
                if stays_so { at(&path, of, scalar) } else { empty }
            });
            let name = path.iter().map(|field| field.name).collect::<Vec<_>>().join(".");
            if added && !is_hollow {
                sites.push(Site { with, sibling, name });
            }
        }
    });
    sites
}

fn with_empty(field: &'static Field) -> bool {
    value_of(&field.shape, &field.values) == json!({})
}

/// With defaults, as a write stores it; its managers stay.
fn stored(mut value: Value, old: Option<&Value>) -> Value {
    let claim = take_claim(&mut value);
    value["metadata"]["name"] = "x".into();
    schema::conform(KIND.schema(), &mut value);
    KIND.complete(&mut value);
    (KIND.prepare)(&mut value, old);
    schema::conform(KIND.schema(), &mut value);
    if let Some(claim) = claim {
        value["metadata"]["managedFields"] = claim;
    }
    value
}

fn union<'a>(parts: impl Iterator<Item = &'a Value>) -> Value {
    // an object without a manager would get one for what is in it
    let named = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "x", "labels": {"a": "1"}}});
    parts.fold(named, |sum, part| merge(KIND.schema(), sum, part))
}

/// The configuration that one manager applies: for each site nothing, the struct, or its sibling.
fn configuration(random: &mut Random, sites: &[&Site], sibling: &[bool]) -> Value {
    let mut parts = Vec::new();
    for (site, sibling) in sites.iter().zip(sibling) {
        match (random.index(2), sibling, &site.sibling) {
            (0, ..) => {}
            (_, true, Some(sibling)) => parts.push(sibling),
            _ => parts.push(&site.with),
        }
    }
    union(parts.into_iter())
}

fn applied(live: Option<Value>, manager: &str, body: &Value) -> Value {
    let manager = Manager { name: manager.to_owned(), subresource: String::new() };
    let apply = Apply::new(KIND, body.clone(), manager, false).unwrap();
    match live {
        None => stored(apply.created(NOW), None),
        Some(live) => stored(apply.to(live.clone(), NOW).unwrap(), Some(&live)),
    }
}

#[test]
fn object_is_what_its_managers_apply_now() {
    let all = sites();
    let names: std::collections::BTreeSet<&str> = all.iter().map(|site| &*site.name).collect();
    for known in [
        "spec.updateStrategy",
        "spec.template.spec.containers.livenessProbe",
        "spec.template.spec.containers.livenessProbe.httpGet",
        "spec.template.spec.initContainers.lifecycle.preStop.httpGet",
        "spec.template.spec.volumes.hostPath",
        "spec.template.spec.volumes.projected",
    ] {
        assert!(names.contains(known), "{known} has no default, of {names:?}");
    }
    for (seed, first) in all.iter().enumerate() {
        let mut random = Random::new(seed as u64 + 1);
        let mut chosen = vec![first];
        chosen.extend((0..3).map(|_| &all[random.index(all.len())]));
        let mut live = None;
        for _ in 0..6 {
            let siblings: Vec<bool> = chosen.iter().map(|_| random.index(2) == 0).collect();
            let body = configuration(&mut random, &chosen, &siblings);
            live = Some(applied(live, MANAGERS[random.index(3)], &body));
        }
        // of a struct and its sibling only one is applied where the object may have only one of them
        let siblings: Vec<bool> = chosen.iter().map(|_| random.index(2) == 0).collect();
        let bodies = MANAGERS.map(|_| configuration(&mut random, &chosen, &siblings));
        let start = random.index(3);
        for turn in 0..3 {
            let index = (start + turn) % 3;
            live = Some(applied(live, MANAGERS[index], &bodies[index]));
        }
        let live = live.unwrap();
        let fresh = stored(union(bodies.iter()), None);
        let what = || chosen.iter().map(|site| &*site.name).collect::<Vec<_>>();
        assert_eq!(live["spec"], fresh["spec"], "seed {seed}: {:?}", what());
        check_managers(&live, &bodies, seed);
    }
}

/// Each owns what it applied, and nothing else has an owner.
fn check_managers(live: &Value, bodies: &[Value; 3], seed: usize) {
    let entries = live["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let owned: Map<String, Value> = entries
        .iter()
        .map(|entry| (entry["manager"].as_str().unwrap().to_owned(), entry["fieldsV1"].clone()))
        .collect();
    let sets = MANAGERS.iter().zip(bodies).map(|(manager, body)| {
        ((*manager).to_owned(), fields_of(KIND.schema(), body).without_identity().to_value())
    });
    assert_eq!(owned, sets.collect(), "seed {seed}");
}
