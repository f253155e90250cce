//! Requests whose cost once grew faster than their size, and every list and map of every kind: the cost
//! oracle in an ordinary test run.
//!
//! There is only one test, because allocations are counted for the whole process.

use kedge_fuzz::mutation::Dice;
use kedge_fuzz::{cost, pack, request_cost, target};
use kedge_hub_core::cost::MAX_TREE_BYTES;
use kedge_hub_core::kinds::schema::{self, Field, Shape, Type};
use kedge_hub_core::kinds::{CONTROLLER_REVISION, KINDS, Kind};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// Items of the smaller list; the larger has four times as many.
const ITEMS: usize = 24;

/// The way to a list or map: fields from the root, lists with one item and maps with one entry between them.
type Way = Vec<&'static Field>;

/// Each list and map in the types of a kind's objects, once.
fn lists(of: &'static Type, way: &mut Way, seen: &mut BTreeSet<&'static str>, found: &mut Vec<Way>) {
    if !seen.insert(of.name) {
        return;
    }
    for field in &of.fields {
        way.push(field);
        if matches!(field.shape, Shape::List(_) | Shape::Map(_)) {
            found.push(way.clone());
        }
        if let Shape::Message(name) = innermost(&field.shape) {
            lists(schema::find(name).expect("the table has it"), way, seen, found);
        }
        way.pop();
    }
}

fn innermost(shape: &'static Shape) -> &'static Shape {
    match shape {
        Shape::List(item) | Shape::Map(item) => innermost(item),
        other => other,
    }
}

/// An object with so many items at the end of the way, numbered from `first`.
fn with_items(way: &[&'static Field], items: usize, first: usize) -> Value {
    let Some((field, rest)) = way.split_first() else { return json!({}) };
    let inner = match (&field.shape, rest) {
        (Shape::List(item), []) => (first..first + items).map(|number| one(item, number)).collect(),
        (Shape::Map(item), []) => {
            let entry = |number: usize| (format!("k{number}"), one(item, number));
            Value::Object((first..first + items).map(entry).collect())
        }
        (Shape::List(_), _) => json!([with_names(with_items(rest, items, first))]),
        (Shape::Map(_), _) => json!({ "k": with_items(rest, items, first) }),
        _ => with_items(rest, items, first),
    };
    json!({ field.name: inner })
}

fn with_names(mut item: Value) -> Value {
    item["name"] = "x".into();
    item
}

/// A value that differs from those of other numbers, with every scalar of its type.
fn one(shape: &'static Shape, number: usize) -> Value {
    match shape {
        Shape::String => format!("v{number}").into(),
        Shape::Bool => true.into(),
        Shape::Int32 | Shape::Int64 | Shape::IntOrString | Shape::Raw => (number + 1).into(),
        Shape::Double => (number as f64).into(),
        Shape::Bytes => "AA==".into(),
        Shape::Time => "2026-01-01T00:00:00Z".into(),
        Shape::MicroTime => "2026-01-01T00:00:00.000000Z".into(),
        Shape::Quantity => format!("{}", number + 1).into(),
        Shape::List(item) => json!([one(item, number)]),
        Shape::Map(item) => json!({ "k": one(item, number) }),
        Shape::Message(name) => {
            let of = schema::find(name).expect("the table has it");
            let plain = |field: &&'static Field| !matches!(innermost(&field.shape), Shape::Message(_));
            let fields = of.fields.iter().filter(plain);
            Value::Object(fields.map(|field| (field.name.to_owned(), one(&field.shape, number))).collect())
        }
    }
}

/// An object that the kind may accept, with these fields besides.
fn named(kind: &Kind, fields: Value) -> Value {
    let mut object = fields;
    for (part, value) in [("name", "x"), ("namespace", "d")] {
        if part == "name" || kind.namespaced {
            object["metadata"][part] = value.into();
        }
    }
    object["apiVersion"] = kind.api_version().into();
    object["kind"] = kind.kind.into();
    if object.get("spec").is_some_and(|spec| spec.get("containers").is_none()) && kind.kind == "Pod" {
        object["spec"]["containers"] = json!([{"name": "c", "image": "i"}]);
    }
    object
}

/// Bytes that the request allocates for lists of so many items; the object already has half of them.
fn cost_of(kind: &'static Kind, way: &Way, request: u8, items: usize) -> usize {
    let object = named(kind, with_items(way, items, 0));
    let body = named(kind, with_items(way, items, items / 2));
    request_cost(kind, request, object.to_string().as_bytes(), body.to_string().as_bytes())
}

fn lists_of_every_kind() {
    let mut checked = 0;
    let mut seen = BTreeSet::new();
    for kind in KINDS.iter().copied() {
        let mut ways = Vec::new();
        lists(kind.schema(), &mut Vec::new(), &mut seen, &mut ways);
        for way in ways {
            for request in *b"uas" {
                let (few, many) =
                    (cost_of(kind, &way, request, ITEMS), cost_of(kind, &way, request, 4 * ITEMS));
                let names: Vec<&str> = way.iter().map(|field| field.name).collect();
                // four times the items: four times the bytes, and some for lists that double
                assert!(
                    many <= 5 * few + 64 * 1024,
                    "{} {} {}: {few} bytes for {ITEMS} items, {many} for {}",
                    char::from(request),
                    kind.kind,
                    names.join("."),
                    4 * ITEMS
                );
                checked += 1;
            }
        }
    }
    assert!(checked > 300, "only {checked} requests: the table was not walked");
}

/// The seeds are the shapes that were once quadratic, or expensive; the corpus and mutations of both follow.
fn known_bad_shapes() {
    let target = target("hub_cost").expect("it is a target");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/hub_cost.pack");
    let kept = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut inputs = (target.seeds)();
    inputs.extend(pack::unpack(&kept).unwrap_or_else(|why| panic!("{}: {why}", path.display())));
    let mut dice = Dice::new(3983);
    let mutations = (0..target.mutations).map(|_| dice.mutation(&inputs, target.words, target.longest_bytes));
    for input in mutations.collect::<Vec<_>>().iter().chain(&inputs) {
        eprintln!("b\"{}\"", input.escape_ascii());
        (target.run)(input);
    }
}

/// Three megabytes of the smallest values are refused before they take more than a body may, three times a
/// list's doubling.
fn tiny_values_stop_at_the_budget() {
    for tiny in ["{\"\":0},", "[0],", "\"\",", "{},"] {
        let body = format!(
            r#"{{"metadata":{{"name":"x","namespace":"d"}},"data":[{}0]}}"#,
            tiny.repeat(3_000_000 / tiny.len())
        );
        let bytes = request_cost(&CONTROLLER_REVISION, b'c', b"", body.as_bytes());
        assert!(bytes <= 3 * MAX_TREE_BYTES, "{tiny} allocates {bytes}");
    }
}

#[test]
fn cost_of_a_request_grows_with_its_bytes() {
    cost::judge_from_now_on();
    tiny_values_stop_at_the_budget();
    known_bad_shapes();
    lists_of_every_kind();
}
