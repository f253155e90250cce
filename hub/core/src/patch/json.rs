//! JSON patch (RFC 6902): add, remove, replace, move, copy, test. All operations apply, or none.
//!
//! Written here and not taken from a crate because the bounds are the point: upstream's limits on operations
//! and on what `copy` may add, without which forty short operations make a document of terabytes, and ours on
//! depth, memory and work. Always holds: the document is never deeper than `cost::MAX_DEPTH` between two
//! operations, and a patch costs time and memory linear in patch and document.

use kedge_api::excerpt;
use serde_json::Value;

use super::{PatchError, text_bytes};
use crate::cost::{Budget, Excess};

/// Operations in one patch; upstream's limit.
pub const OPERATIONS: usize = 10_000;
/// Bytes that `copy` operations of one patch may add; upstream's limit.
pub const COPIED_BYTES: usize = 3 * 1024 * 1024;
/// List items that inserts and removals of one patch may shift: some milliseconds of work, where ten thousand
/// inserts at the head of a list of a million would be minutes. Ten thousand operations on a list of a
/// hundred stay below.
pub const SHIFTED_ITEMS: usize = 1_000_000;

/// The remaining budget of one patch.
#[derive(Default)]
struct Spent {
    copied: usize,
    shifted: usize,
    /// For copied values, and for values that are walked because they move to a deeper place.
    budget: Budget,
}

impl Spent {
    fn shift(&mut self, items: usize) -> Result<(), &'static str> {
        self.shifted += items;
        if self.shifted > SHIFTED_ITEMS { Err("the patch moves too many list items") } else { Ok(()) }
    }

    /// Charges a copy of a value before it is placed inside `within` lists and objects.
    fn copy(&mut self, value: &Value, within: usize) -> Result<(), PatchError> {
        self.budget.value(value, within).map_err(exceeds)?;
        self.copied += text_bytes(value);
        if self.copied > COPIED_BYTES {
            return Err(does_not_apply(&format!("copy operations add more than {COPIED_BYTES} bytes")));
        }
        Ok(())
    }
}

fn exceeds(excess: Excess) -> PatchError {
    does_not_apply(&format!("the patched object is too large: {excess}"))
}

/// Applies the patch; on an error `target` is in an unspecified state and must be thrown away.
///
/// # Errors
/// As upstream's: a patch that is not a list of objects is malformed; any other fault, including too much
/// work, is one that does not apply.
pub fn apply(target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let operations = patch.as_array().ok_or_else(|| malformed("a JSON patch is a list of operations"))?;
    if operations.len() > OPERATIONS {
        return Err(malformed(&format!(
            "the allowed maximum operations in a JSON patch is {OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut spent = Spent::default();
    for operation in operations {
        apply_one(target, operation, &mut spent)?;
    }
    Ok(())
}

fn malformed(why: &str) -> PatchError {
    PatchError::Malformed(why.to_owned())
}

fn does_not_apply(why: &str) -> PatchError {
    PatchError::DoesNotApply(why.to_owned())
}

fn fails(operation: &str, path: &str, why: &str) -> PatchError {
    let path = excerpt(path);
    PatchError::DoesNotApply(format!(
        "{operation} operation does not apply: doc is missing path {path:?}: {why}"
    ))
}

fn apply_one(target: &mut Value, operation: &Value, spent: &mut Spent) -> Result<(), PatchError> {
    let word = |field: &str| operation.get(field).and_then(Value::as_str);
    if !operation.is_object() {
        return Err(malformed("each operation of a JSON patch must be an object"));
    }
    let name = word("op").ok_or_else(|| does_not_apply("an operation needs \"op\""))?;
    let path = word("path").ok_or_else(|| does_not_apply("an operation needs \"path\""))?;
    let tokens = parse_pointer(path)?;
    let given = || {
        let needs = || does_not_apply(&format!("{} needs \"value\"", excerpt(name)));
        operation.get("value").ok_or_else(needs)
    };
    // the body is within the limits, but not necessarily at its new place
    let value = || {
        let value = given()?;
        Budget::default().value(value, tokens.len()).map_err(exceeds)?;
        Ok(value.clone())
    };
    let from = || {
        let from = word("from").ok_or_else(|| does_not_apply(&format!("{name} needs \"from\"")))?;
        parse_pointer(from).map(|tokens| (from, tokens))
    };
    match name {
        "add" => add(target, &tokens, value()?, spent).map_err(|why| fails(name, path, why)),
        "remove" => remove(target, &tokens, spent).map(drop).map_err(|why| fails(name, path, why)),
        "replace" => {
            // replacing a missing member sets it, as upstream does against the RFC: people cordon nodes in
            // this way
            replace(target, &tokens, value()?).map_err(|why| fails(name, path, why))
        }
        "move" => {
            let (from, from_tokens) = from()?;
            if tokens.len() > from_tokens.len() && tokens.starts_with(&from_tokens) {
                return Err(does_not_apply("a value cannot be moved into itself"));
            }
            let moved = remove(target, &from_tokens, spent).map_err(|why| fails(name, from, why))?;
            if tokens.len() > from_tokens.len() {
                spent.budget.value(&moved, tokens.len()).map_err(exceeds)?;
            }
            add(target, &tokens, moved, spent).map_err(|why| fails(name, path, why))
        }
        "copy" => {
            let (from, from_tokens) = from()?;
            let value = find(target, &from_tokens).ok_or_else(|| fails(name, from, "no such place"))?;
            spent.copy(value, tokens.len())?;
            let value = value.clone();
            add(target, &tokens, value, spent).map_err(|why| fails(name, path, why))
        }
        "test" => match find(target, &tokens) {
            // upstream: a test for null succeeds on a missing value
            found if found.as_deref().unwrap_or(&Value::Null) == given()? => Ok(()),
            _ => Err(does_not_apply(&format!("testing path {} failed", excerpt(path)))),
        },
        other => Err(does_not_apply(&format!("unexpected operation {:?}", excerpt(other)))),
    }
}

fn parse_pointer(path: &str) -> Result<Vec<String>, PatchError> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let rest = path
        .strip_prefix('/')
        .ok_or_else(|| does_not_apply(&format!("path {:?} must start with '/'", excerpt(path))))?;
    Ok(rest.split('/').map(|token| token.replace("~1", "/").replace("~0", "~")).collect())
}

fn index(token: &str, limit: usize) -> Option<usize> {
    let canonical =
        token == "0" || (!token.starts_with('0') && token.bytes().all(|byte| byte.is_ascii_digit()));
    token.parse().ok().filter(|index| canonical && *index < limit)
}

fn find<'a>(target: &'a mut Value, tokens: &[String]) -> Option<&'a mut Value> {
    tokens.iter().try_fold(target, |value, token| match value {
        Value::Object(fields) => fields.get_mut(token),
        Value::Array(items) => index(token, items.len()).and_then(|index| items.get_mut(index)),
        _ => None,
    })
}

fn add(target: &mut Value, tokens: &[String], value: Value, spent: &mut Spent) -> Result<(), &'static str> {
    let Some((last, parents)) = tokens.split_last() else {
        *target = value;
        return Ok(());
    };
    match find(target, parents).ok_or("no such parent")? {
        Value::Object(fields) => drop(fields.insert(last.clone(), value)),
        Value::Array(items) if last == "-" => items.push(value),
        Value::Array(items) => {
            let index = index(last, items.len() + 1).ok_or("no such index")?;
            spent.shift(items.len() - index)?;
            items.insert(index, value);
        }
        _ => return Err("the parent is neither an object nor a list"),
    }
    Ok(())
}

fn replace(target: &mut Value, tokens: &[String], value: Value) -> Result<(), &'static str> {
    let Some((last, parents)) = tokens.split_last() else {
        *target = value;
        return Ok(());
    };
    match find(target, parents).ok_or("no such parent")? {
        Value::Object(fields) => drop(fields.insert(last.clone(), value)),
        Value::Array(items) => {
            let index = index(last, items.len()).ok_or("no such index")?;
            items[index] = value;
        }
        _ => return Err("the parent is neither an object nor a list"),
    }
    Ok(())
}

fn remove(target: &mut Value, tokens: &[String], spent: &mut Spent) -> Result<Value, &'static str> {
    let (last, parents) = tokens.split_last().ok_or("the whole document cannot be removed")?;
    match find(target, parents).ok_or("no such parent")? {
        Value::Object(fields) => fields.remove(last).ok_or("no such field"),
        Value::Array(items) => {
            let index = index(last, items.len()).ok_or("no such index")?;
            spent.shift(items.len() - index)?;
            Ok(items.remove(index))
        }
        _ => Err("the parent is neither an object nor a list"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(mut target: Value, patch: Value, expect: Option<Value>) {
        let shown = patch.to_string();
        match (apply(&mut target, &patch), expect) {
            (Ok(()), Some(expect)) => assert_eq!(target, expect, "{shown}"),
            (Err(PatchError::DoesNotApply(_)), None) => {}
            (outcome, expect) => panic!("{shown}: {outcome:?}, expected {expect:?}"),
        }
    }

    #[test]
    fn operations_follow_the_rfc() {
        let doc = || json!({"a": {"b": [1, 2]}, "k/s": "x", "t~": 1});
        let one = |operation: Value| json!([operation]);
        check(
            doc(),
            one(json!({"op": "add", "path": "/a/c", "value": 3})),
            Some(json!({"a": {"b": [1, 2], "c": 3}, "k/s": "x", "t~": 1})),
        );
        check(
            json!({"a": [1, 3]}),
            one(json!({"op": "add", "path": "/a/1", "value": 2})),
            Some(json!({"a": [1, 2, 3]})),
        );
        check(
            json!({"a": [1]}),
            one(json!({"op": "add", "path": "/a/-", "value": 2})),
            Some(json!({"a": [1, 2]})),
        );
        check(
            json!({"a": [1]}),
            one(json!({"op": "add", "path": "/a/1", "value": 2})),
            Some(json!({"a": [1, 2]})),
        );
        check(
            json!({"k/s": 1, "t~": 2}),
            json!([{"op": "remove", "path": "/k~1s"}, {"op": "remove", "path": "/t~0"}]),
            Some(json!({})),
        );
        check(
            json!({"a": 1}),
            one(json!({"op": "replace", "path": "/a", "value": null})),
            Some(json!({"a": null})),
        );
        check(json!({"a": 1}), one(json!({"op": "replace", "path": "", "value": 2})), Some(json!(2)));
        check(json!({}), one(json!({"op": "replace", "path": "/a", "value": 2})), Some(json!({"a": 2})));
        check(json!([1]), one(json!({"op": "replace", "path": "/1", "value": 2})), None);
        check(json!({"a": 1}), one(json!({"op": "move", "from": "/a", "path": "/b"})), Some(json!({"b": 1})));
        check(
            json!({"a": 1}),
            one(json!({"op": "copy", "from": "/a", "path": "/b"})),
            Some(json!({"a": 1, "b": 1})),
        );
        check(json!({"a": 1}), one(json!({"op": "test", "path": "/a", "value": 1})), Some(json!({"a": 1})));
        check(json!({}), one(json!({"op": "test", "path": "/a", "value": null})), Some(json!({})));
        check(json!({}), json!([]), Some(json!({})));
    }

    #[test]
    fn operations_that_do_not_apply_are_refused() {
        let doc = || json!({"a": {"b": [1, 2]}, "s": "x"});
        for operation in [
            json!({"op": "add", "path": "/a/b/3", "value": 1}),
            json!({"op": "add", "path": "/a/b/01", "value": 1}),
            json!({"op": "add", "path": "/x/y", "value": 1}),
            json!({"op": "add", "path": "/s/y", "value": 1}),
            json!({"op": "add", "path": "/a"}),
            json!({"op": "remove", "path": "/a/b/2"}),
            json!({"op": "remove", "path": "/x"}),
            json!({"op": "remove", "path": ""}),
            json!({"op": "replace", "path": "/x/y", "value": 1}),
            json!({"op": "move", "from": "/a", "path": "/a/b"}),
            json!({"op": "move", "path": "/a"}),
            json!({"op": "test", "path": "/s", "value": "y"}),
            json!({"op": "nonsense", "path": "/s"}),
            json!({"op": "add", "path": "a", "value": 1}),
            json!({"path": "/a"}),
        ] {
            check(doc(), json!([operation]), None);
        }
        for no_patch in [json!({}), json!("x"), json!([1]), json!([[]])] {
            let refused = apply(&mut doc(), &no_patch);
            assert!(matches!(refused, Err(PatchError::Malformed(_))), "{no_patch}: {refused:?}");
        }
    }

    #[test]
    fn patch_cannot_grow_a_document_without_bound() {
        let copy = json!({"op": "copy", "from": "/a", "path": "/a/-"});
        check(json!({"a": ["0123456789"]}), Value::Array(vec![copy; 60]), None);
        let insert = json!({"op": "add", "path": "/a/0", "value": 1});
        check(json!({"a": vec![0; 5000]}), Value::Array(vec![insert; 5000]), None);
        let test = json!({"op": "test", "path": "/a", "value": 1});
        let grown = json!({"op": "copy", "from": "/a", "path": "/b/-"});
        check(json!({"a": vec![json!([0]); 20_000], "b": []}), Value::Array(vec![grown; 5]), None);
        let many = apply(&mut json!({"a": 1}), &Value::Array(vec![test; OPERATIONS + 1]));
        assert!(matches!(many, Err(PatchError::Malformed(_))), "{many:?}");
    }

    #[test]
    fn limits_are_used_to_the_last() {
        let mut spent = Spent::default();
        assert!(spent.shift(SHIFTED_ITEMS).is_ok());
        assert!(spent.shift(1).is_err());
        // with its quotes
        let text = Value::from("x".repeat(COPIED_BYTES - 2));
        assert!(spent.copy(&text, 0).is_ok());
        assert!(spent.copy(&json!(1), 0).is_err());
        let test = json!({"op": "test", "path": "/a", "value": 1});
        check(json!({"a": 1}), Value::Array(vec![test; OPERATIONS]), Some(json!({"a": 1})));
        // at either end of a list hardly any item is shifted
        let ends =
            [json!({"op": "add", "path": "/a/999", "value": 0}), json!({"op": "remove", "path": "/a/999"})];
        check(
            json!({"a": vec![0; 1000]}),
            Value::Array(vec![ends; 600].concat()),
            Some(json!({"a": vec![0; 1000]})),
        );
        // a value that moves to a place of the same depth is not walked
        let large = json!("x".repeat(4 << 20));
        let there = [
            json!({"op": "move", "from": "/a", "path": "/b"}),
            json!({"op": "move", "from": "/b", "path": "/a"}),
        ];
        check(json!({"a": large}), Value::Array(vec![there; 3].concat()), Some(json!({"a": large})));
        check(json!({"a": 1}), json!([{"op": "move", "from": "/a", "path": "/a"}]), Some(json!({"a": 1})));
    }

    #[test]
    fn patch_cannot_nest_a_document_without_bound() {
        let levels = |of: usize| (0..of).fold(json!({}), |inner, _| json!({ "a": inner }));
        let pointer = "/a".repeat(100);
        // copying the document into its own deepest value doubles the depth
        check(levels(100), json!([{"op": "copy", "from": "", "path": &pointer}]), None);
        check(levels(100), json!([{"op": "add", "path": &pointer, "value": levels(30)}]), None);
        check(levels(100), json!([{"op": "replace", "path": &pointer, "value": levels(30)}]), None);
        let beside = json!({"a": levels(100), "b": levels(30)});
        let path = format!("/a{pointer}");
        check(beside.clone(), json!([{"op": "move", "from": "/b", "path": &path}]), None);
        check(beside, json!([{"op": "move", "from": "/b", "path": "/a/b"}]), {
            let mut moved = levels(101);
            moved["a"]["b"] = levels(30);
            Some(moved)
        });
    }
}
