//! Numbers that must not make a reader fail, for tests that put them where files, objects and records have
//! numbers.

use serde_json::{Value, json};

/// Numbers that fit no field, or only just.
pub(crate) fn extremes() -> [Value; 10] {
    [
        json!(0),
        json!(1),
        json!(-1),
        json!(i32::MAX),
        json!(u32::MAX),
        json!(i64::MIN),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(u64::MAX / 1000),
        json!(1.5e300),
    ]
}

/// Each tree that differs from this one in one number.
pub(crate) fn with_other_numbers(tree: &Value) -> Vec<(String, Value)> {
    let mut paths = vec![];
    numbers(tree, String::new(), &mut paths);
    let one = |path: &String| {
        let path = path.clone();
        extremes().into_iter().map(move |extreme| {
            let mut other = tree.clone();
            *other.pointer_mut(&path).expect("it was found there") = extreme.clone();
            (format!("{path}: {extreme}"), other)
        })
    };
    paths.iter().flat_map(one).collect()
}

fn numbers(tree: &Value, path: String, found: &mut Vec<String>) {
    match tree {
        Value::Number(_) => found.push(path),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| numbers(item, format!("{path}/{at}"), found));
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                numbers(value, format!("{path}/{}", name.replace('~', "~0").replace('/', "~1")), found);
            }
        }
        _ => {}
    }
}

/// A spec with one number in it, at a path of `pod_numbers`, and the other fields that a readable pod needs.
pub(crate) fn spec_with(path: &str, number: &Value) -> Value {
    let nest = |inner: Value, step: &str| match step.strip_suffix("[]") {
        Some(name) => json!({name: [inner]}),
        None => json!({step: inner}),
    };
    let mut spec = path.rsplit('.').fold(number.clone(), nest);
    if spec["containers"].is_null() {
        spec["containers"] = json!([{}]);
    }
    for list in ["containers", "initContainers"] {
        let Some(container) = spec.pointer_mut(&format!("/{list}/0")) else { continue };
        (container["name"], container["image"]) = (json!(format!("{}-a", list.to_lowercase())), json!("x:1"));
        if list == "initContainers" {
            container["restartPolicy"] = json!("Always");
        }
        for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
            let Some(probe) = container.get_mut(probe) else { continue };
            if ["httpGet", "tcpSocket", "grpc"].iter().all(|way| probe[*way].is_null()) {
                probe["exec"] = json!({"command": ["/bin/true"]});
            }
        }
    }
    if let Some(volume) = spec.pointer_mut("/volumes/0") {
        volume["name"] = json!("v");
    }
    spec
}
