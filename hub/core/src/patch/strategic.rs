//! Strategic merge patch: a merge patch that knows which lists are maps (by `name`, `type`, ...) and which
//! are sets.
//!
//! Directives, as upstream: `$patch: replace|delete|merge` in an object or list item, `$retainKeys`,
//! `$setElementOrder/<list>`, `$deleteFromPrimitiveList/<list>`, null deletes. The schema table tells which
//! lists merge; for fields that are not in it (free maps, unknown fields) objects merge and lists are
//! replaced. Always holds: no directive ever reaches the result; a patch costs time and memory linear in
//! patch and object, besides [`MERGED_AGAIN`].

use std::collections::{BTreeMap, BTreeSet};

use kedge_api::excerpt;
use serde_json::{Map, Value};

use super::{PatchError, text_bytes};
use crate::field_error::shown;
use crate::kinds::schema::{self, ListMerge, Shape, Type};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ELEMENT_ORDER: &str = "$setElementOrder/";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";

/// Most text of list items into which one patch may merge more than once, by repeating their merge key, as
/// upstream allows. Each time costs a walk over the lists in the item: sixty kilobytes that repeat one key
/// would take a second. Ordinary patches name an item once; a patch with two ports of the same number stays
/// far below.
pub const MERGED_AGAIN: usize = 1024 * 1024;

type Fields = Map<String, Value>;

/// The work that one patch repeated.
#[derive(Default)]
struct Spent {
    again: usize,
}

impl Spent {
    /// Charges a change before it is merged into an item that an earlier change of the same list created.
    fn again(&mut self, item: &Value) -> Result<(), PatchError> {
        self.again = self.again.saturating_add(text_bytes(item));
        if self.again > MERGED_AGAIN {
            let why =
                format!("the patch merges more than {MERGED_AGAIN} bytes again, by repeated merge keys");
            return Err(PatchError::DoesNotApply(why));
        }
        Ok(())
    }
}

/// Applies the patch to an object of this type.
pub fn apply(of: &'static Type, target: &mut Value, patch: Value) -> Result<(), PatchError> {
    let (Value::Object(fields), Value::Object(patch)) = (&mut *target, patch) else {
        return Err(PatchError::Malformed("a strategic merge patch is a JSON object".to_owned()));
    };
    *target = Value::Object(merge(Some(of), std::mem::take(fields), patch, &mut Spent::default())?);
    Ok(())
}

fn malformed<T>(why: String) -> Result<T, PatchError> {
    Err(PatchError::Malformed(why))
}

fn merge(
    of: Option<&'static Type>,
    mut original: Fields,
    mut patch: Fields,
    spent: &mut Spent,
) -> Result<Fields, PatchError> {
    match patch.remove(PATCH) {
        None => {}
        Some(Value::String(directive)) => match directive.as_str() {
            "merge" => {}
            "replace" => return Ok(without_directives(patch)),
            "delete" => return Ok(Fields::new()),
            other => return malformed(format!("invalid value for $patch: {:?}", excerpt(other))),
        },
        Some(other) => return malformed(format!("invalid value for $patch: {}", shown(&other))),
    }
    retain_keys(&mut original, &mut patch)?;
    merge_ordered_lists(of, &mut original, &mut patch, spent)?;
    for (key, value) in patch {
        let (key, deletes) = match key.strip_prefix(DELETE_PRIMITIVES) {
            Some(list) => (list.to_owned(), true),
            None => (key, false),
        };
        if deletes {
            delete_primitives(&mut original, &key, value)?;
            continue;
        }
        if value.is_null() {
            original.remove(&key);
            continue;
        }
        let field = of.and_then(|of| of.field(&key));
        let merged = match (original.remove(&key), value) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                Value::Object(merge(field.and_then(message_of), old, new, spent)?)
            }
            (Some(Value::Array(old)), Value::Array(new)) => {
                let rule = field.and_then(|field| field.merge);
                Value::Array(merge_list(field.and_then(message_of), rule, old, new, spent)?)
            }
            // the old value is absent or of another type
            (_, new) => match value_alone(new) {
                Some(new) => new,
                None => continue,
            },
        };
        original.insert(key, merged);
    }
    Ok(original)
}

/// The type of a field's values, or of its items.
fn message_of(field: &'static schema::Field) -> Option<&'static Type> {
    fn inner(shape: &Shape) -> &Shape {
        match shape {
            Shape::List(item) | Shape::Map(item) => inner(item),
            other => other,
        }
    }
    match inner(&field.shape) {
        Shape::Message(name) => schema::find(name),
        _ => None,
    }
}

/// Fields of a patch that have no counterpart in the object. As upstream: a value with a `$patch` of its own
/// is left out with its content; two items with the same key (two ports of the same number, for example) both
/// stay.
fn alone(fields: Fields) -> Fields {
    let kept = fields.into_iter().filter(|(key, value)| !is_directive(key) && !value.is_null());
    kept.filter_map(|(key, value)| Some((key, value_alone(value)?))).collect()
}

fn value_alone(value: Value) -> Option<Value> {
    match value {
        Value::Object(fields) => match fields.get(PATCH) {
            Some(directive) if directive != "merge" => None,
            _ => Some(Value::Object(alone(fields))),
        },
        Value::Array(items) => Some(Value::Array(items.into_iter().filter_map(value_alone).collect())),
        scalar => Some(scalar),
    }
}

fn without_directives(fields: Fields) -> Fields {
    let kept = fields.into_iter().filter(|(key, value)| !is_directive(key) && !value.is_null());
    kept.map(|(key, value)| (key, value_without_directives(value))).collect()
}

fn value_without_directives(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(without_directives(fields)),
        Value::Array(items) => Value::Array(items.into_iter().map(value_without_directives).collect()),
        scalar => scalar,
    }
}

fn is_directive(key: &str) -> bool {
    key == PATCH || key == RETAIN_KEYS || key.starts_with(ELEMENT_ORDER) || key.starts_with(DELETE_PRIMITIVES)
}

fn retain_keys(original: &mut Fields, patch: &mut Fields) -> Result<(), PatchError> {
    let Some(retained) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(retained) = retained else {
        return malformed("expected $retainKeys to be a list of field names".to_owned());
    };
    let retained: BTreeSet<&str> = retained.iter().filter_map(Value::as_str).collect();
    let kept = |key: &str| retained.contains(key);
    if let Some(stray) = patch.keys().find(|key| !is_directive(key) && !patch[*key].is_null() && !kept(key)) {
        let stray = excerpt(stray);
        return malformed(format!("the {stray:?} field is not in the list of $retainKeys"));
    }
    original.retain(|key, _| kept(key));
    Ok(())
}

fn delete_primitives(original: &mut Fields, key: &str, deleted: Value) -> Result<(), PatchError> {
    let Value::Array(deleted) = deleted else {
        return malformed(format!("expected {DELETE_PRIMITIVES}{} to be a list", excerpt(key)));
    };
    if let Some(Value::Array(items)) = original.get_mut(key) {
        let deleted: BTreeSet<String> = deleted.iter().map(Value::to_string).collect();
        items.retain(|item| !deleted.contains(&item.to_string()));
    }
    Ok(())
}

/// Lists with a `$setElementOrder` beside them (which may come without a list of changes).
fn merge_ordered_lists(
    of: Option<&'static Type>,
    original: &mut Fields,
    patch: &mut Fields,
    spent: &mut Spent,
) -> Result<(), PatchError> {
    // taken out of the patch first, so that the ordinary merge afterwards does not see these lists
    let ordered: Vec<String> =
        patch.keys().filter_map(|key| key.strip_prefix(ELEMENT_ORDER)).map(str::to_owned).collect();
    for key in ordered {
        let Some(Value::Array(order)) = patch.remove(&format!("{ELEMENT_ORDER}{key}")) else {
            return malformed(format!("expected {ELEMENT_ORDER}{} to be a list", excerpt(&key)));
        };
        if is_directive(&key) {
            let key = excerpt(&key);
            return malformed(format!("{ELEMENT_ORDER}{key} orders no list but another directive"));
        }
        let field = of.and_then(|of| of.field(&key));
        let by_value = field.and_then(|field| field.merge).unwrap_or(ListMerge::Set);
        let changes = match patch.remove(&key) {
            None => None,
            Some(Value::Array(changes)) => Some(changes),
            Some(Value::Null) => {
                original.remove(&key);
                continue;
            }
            Some(_) => return malformed(format!("expected {} to be a list", excerpt(&key))),
        };
        check_order(&key, by_value, &order, changes.as_deref().unwrap_or_default())?;
        let before = match original.remove(&key) {
            Some(Value::Array(items)) => Some(items),
            _ => None,
        };
        let server = identities(by_value, before.as_deref().unwrap_or_default());
        let merged = match (before, changes) {
            (None, None) => continue,
            (Some(before), None) => before,
            (None, Some(changes)) => changes.into_iter().filter_map(value_alone).collect(),
            (Some(before), Some(changes)) => {
                let rule = field.and_then(|field| field.merge);
                merge_list(field.and_then(message_of), rule, before, changes, spent)?
            }
        };
        let items = in_order(by_value, merged, &identities(by_value, &order), &server);
        original.insert(key, Value::Array(items));
    }
    Ok(())
}

/// The identity of a list item: its merge key, or its value.
fn identity(rule: ListMerge, item: &Value) -> String {
    match rule {
        ListMerge::ByKey(key) => item.get(key).map(Value::to_string).unwrap_or_default(),
        ListMerge::Set => item.to_string(),
    }
}

fn identities(rule: ListMerge, items: &[Value]) -> Vec<String> {
    items.iter().map(|item| identity(rule, item)).collect()
}

/// Changed items must be in the order of the directive, unless that is empty.
fn check_order(list: &str, rule: ListMerge, order: &[Value], changes: &[Value]) -> Result<(), PatchError> {
    if order.is_empty() {
        return Ok(());
    }
    // each item is searched for after the previous one
    let mut order = order.iter().map(|item| identity(rule, item));
    for change in changes.iter().filter(|change| change.get(PATCH).is_none()) {
        let wanted = identity(rule, change);
        if !order.any(|item| item == wanted) {
            let list = excerpt(list);
            return malformed(format!("the order in patch list {list} does not match {ELEMENT_ORDER}{list}"));
        }
    }
    Ok(())
}

/// Items that the patch names get its order; each other item stays before the named items that followed it in
/// the server's list, and after all others: a new item precedes it.
fn in_order(rule: ListMerge, items: Vec<Value>, wanted: &[String], server: &[String]) -> Vec<Value> {
    let places = |names: &[String]| {
        let mut places = BTreeMap::new();
        for (place, name) in names.iter().enumerate() {
            places.entry(name.clone()).or_insert(place);
        }
        places
    };
    let (wanted, server) = (places(wanted), places(server));
    // an item's identity may be as long as the body: it is looked up once
    let placed = items.into_iter().map(|item| {
        let identity = identity(rule, &item);
        (wanted.get(&identity).copied(), server.get(&identity).copied(), item)
    });
    let (mut named, mut others): (Vec<_>, Vec<_>) = placed.partition(|(wanted, ..)| wanted.is_some());
    named.sort_by_key(|(wanted, ..)| *wanted);
    others.sort_by_key(|(_, server, _)| *server);
    let mut ordered = Vec::with_capacity(named.len() + others.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    while let (Some((_, left, _)), Some((_, right, _))) = (others.peek(), named.peek()) {
        let left_first = matches!((left, right), (Some(left), Some(right)) if left < right);
        ordered.extend(if left_first { others.next() } else { named.next() });
    }
    ordered.into_iter().chain(named).chain(others).map(|(_, _, item)| item).collect()
}

/// Merges a list into an existing one. Without a `$setElementOrder` the patch's own items give the order.
fn merge_list(
    of: Option<&'static Type>,
    rule: Option<ListMerge>,
    original: Vec<Value>,
    patch: Vec<Value>,
    spent: &mut Spent,
) -> Result<Vec<Value>, PatchError> {
    match rule {
        None => Ok(patch.into_iter().map(value_without_directives).collect()),
        Some(_) if patch.is_empty() => Ok(original),
        Some(rule @ ListMerge::Set) => {
            let [server, wanted] = [&original, &patch].map(|items| identities(rule, items));
            Ok(in_order(rule, union(original, patch), &wanted, &server))
        }
        Some(ListMerge::ByKey(key)) => merge_by_key(of, key, original, patch, spent),
    }
}

fn union(mut original: Vec<Value>, patch: Vec<Value>) -> Vec<Value> {
    let mut seen: BTreeSet<String> = original.iter().map(Value::to_string).collect();
    let patch = patch.into_iter().map(value_without_directives);
    original.extend(patch.filter(|item| seen.insert(item.to_string())));
    original
}

/// The items of a patch list, by their directives.
#[derive(Default)]
struct Changes {
    merged: Vec<Fields>,
    deleted: BTreeSet<String>,
    /// The other items replace the whole list.
    replace: bool,
}

impl Changes {
    fn of(key: &'static str, patch: Vec<Value>) -> Result<Changes, PatchError> {
        let mut changes = Changes::default();
        for item in patch {
            let Value::Object(mut item) = item else {
                return malformed(format!("expected the items of a list merged by {key:?} to be objects"));
            };
            let named = item.get(key).map(Value::to_string);
            match (item.remove(PATCH), named) {
                (Some(directive), _) if directive == "replace" => changes.replace = true,
                (Some(directive), Some(name)) if directive == "delete" => drop(changes.deleted.insert(name)),
                (Some(directive), None) if directive == "delete" => {
                    return malformed(format!("delete patch type with no merge key {key:?} defined"));
                }
                (Some(directive), _) if directive != "merge" => {
                    return malformed(format!("invalid value for $patch: {}", shown(&directive)));
                }
                _ => changes.merged.push(item),
            }
        }
        Ok(changes)
    }
}

fn merge_by_key(
    of: Option<&'static Type>,
    key: &'static str,
    mut original: Vec<Value>,
    patch: Vec<Value>,
    spent: &mut Spent,
) -> Result<Vec<Value>, PatchError> {
    let changes = Changes::of(key, patch)?;
    if changes.replace {
        return Ok(changes.merged.into_iter().map(|item| Value::Object(without_directives(item))).collect());
    }
    let name_of = |item: &Value| item.get(key).map(Value::to_string);
    original.retain(|item| !name_of(item).is_some_and(|name| changes.deleted.contains(&name)));
    let server = identities(ListMerge::ByKey(key), &original);
    let mut wanted = Vec::with_capacity(changes.merged.len());
    // each place, and whether a change was merged there
    let mut places: BTreeMap<String, (usize, bool)> = BTreeMap::new();
    for (place, item) in original.iter().enumerate() {
        if let Some(name) = name_of(item) {
            places.entry(name).or_insert((place, false));
        }
    }
    for change in changes.merged {
        let Some(name) = change.get(key).map(Value::to_string) else {
            return malformed(format!("an item does not contain the declared merge key {key:?}"));
        };
        wanted.push(name.clone());
        let (place, changed) = places.entry(name).or_insert((original.len(), false));
        let repeats = std::mem::replace(changed, true);
        let Some(item) = original.get_mut(*place) else {
            original.push(Value::Object(alone(change)));
            continue;
        };
        if repeats {
            spent.again(item)?;
        }
        let fields = item.as_object_mut().map(std::mem::take).unwrap_or_default();
        *item = Value::Object(merge(of, fields, change, spent)?);
    }
    Ok(in_order(ListMerge::ByKey(key), original, &wanted, &server))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(of: &str, mut target: Value, patch: Value, expect: Value) {
        let shown = patch.to_string();
        apply(schema::find(of).unwrap(), &mut target, patch).unwrap();
        assert_eq!(target, expect, "{shown}");
    }

    fn check_refused(of: &str, mut target: Value, patch: Value, expect: &str) {
        match apply(schema::find(of).unwrap(), &mut target, patch) {
            Err(PatchError::Malformed(why)) => assert!(why.contains(expect), "{why}"),
            other => panic!("{other:?}"),
        }
    }

    const NODE: &str = "core/v1/Node";
    const POD: &str = "core/v1/Pod";

    #[test]
    fn objects_merge_null_deletes_and_scalars_replace() {
        let node = json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"unschedulable": true}});
        check(
            NODE,
            node.clone(),
            json!({"metadata": {"labels": {"a": null, "c": "3"}}, "spec": {"unschedulable": null}}),
            json!({"metadata": {"labels": {"b": "2", "c": "3"}}, "spec": {}}),
        );
        check(
            NODE,
            node,
            json!({"spec": {"podCIDR": "10.0.0.0/24"}}),
            json!({
            "metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"unschedulable": true, "podCIDR": "10.0.0.0/24"}}),
        );
        check(
            NODE,
            json!({}),
            json!({"metadata": {"labels": {"x": null, "y": "1"}}}),
            json!({"metadata": {"labels": {"y": "1"}}}),
        );
        check(
            NODE,
            json!({"spec": {"configSource": {"configMapRef": {"name": "a"}}}}),
            json!({"spec": {"configSource": {"configMapRef": null, "configMap": {"name": "b"}}}}),
            json!({"spec": {"configSource": {"configMap": {"name": "b"}}}}),
        );
    }

    #[test]
    fn conditions_merge_by_type_and_taints_are_replaced() {
        let conditions = |ready: &str| {
            json!({"status": {"conditions": [
                {"type": "Ready", "status": ready, "reason": "R"}, {"type": "DiskPressure", "status": "False"}]}})
        };
        check(
            NODE,
            conditions("True"),
            json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
            conditions("False"),
        );
        check(
            NODE,
            conditions("True"),
            json!({"status": {"conditions": [{"type": "ConfigOK", "status": "True"}]}}),
            json!({"status": {"conditions": [
                {"type": "ConfigOK", "status": "True"}, {"type": "Ready", "status": "True", "reason": "R"},
                {"type": "DiskPressure", "status": "False"}]}}),
        );
        check(
            NODE,
            conditions("True"),
            json!({"status": {"$setElementOrder/conditions": [{"type": "DiskPressure"}, {"type": "Ready"}],
                "conditions": [{"type": "Ready", "status": "False"}]}}),
            json!({"status": {"conditions": [
                {"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": "False", "reason": "R"}]}}),
        );
        check(
            NODE,
            json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
            json!({"spec": {"taints": [{"key": "b", "effect": "NoExecute"}]}}),
            json!({"spec": {"taints": [{"key": "b", "effect": "NoExecute"}]}}),
        );
    }

    #[test]
    fn items_are_deleted_replaced_and_merged_by_directive() {
        let pod = || json!({"spec": {"containers": [{"name": "a", "image": "1", "tty": true}, {"name": "b", "image": "1"}]}});
        check(
            POD,
            pod(),
            json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}),
            json!({"spec": {"containers": [{"name": "b", "image": "1"}]}}),
        );
        check(
            POD,
            pod(),
            json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "c"}]}}),
            json!({"spec": {"containers": [{"name": "c"}]}}),
        );
        check(
            POD,
            pod(),
            json!({"spec": {"containers": [{"name": "a", "$patch": "merge", "image": "2"}]}}),
            json!({"spec": {"containers": [{"name": "a", "image": "2", "tty": true}, {"name": "b", "image": "1"}]}}),
        );
        check(
            POD,
            pod(),
            json!({"spec": {"$patch": "replace", "nodeName": "n"}}),
            json!({"spec": {"nodeName": "n"}}),
        );
        check(POD, pod(), json!({"spec": {"$patch": "delete"}}), json!({"spec": {}}));
        check(POD, json!({}), json!({"spec": {"$patch": "delete"}}), json!({}));
        check(
            POD,
            json!({}),
            json!({"spec": {"containers": [{"name": "a", "image": "1", "env": [{"name": "x", "$patch": "delete"}]}]}}),
            json!({"spec": {"containers": [{"name": "a", "image": "1", "env": []}]}}),
        );
        check_refused(POD, pod(), json!({"spec": {"$patch": "explode"}}), "invalid value for $patch");
        check_refused(POD, pod(), json!({"spec": {"containers": [{"image": "1"}]}}), "merge key \"name\"");
        check_refused(POD, pod(), json!({"spec": {"containers": [1]}}), "to be objects");
        let explodes = json!({"spec": {"containers": [{"name": "a", "$patch": "explode"}]}});
        check_refused(POD, pod(), explodes, "invalid value for $patch");
        let order = json!({"metadata": {"$setElementOrder/$deleteFromPrimitiveList/finalizers": []}});
        check_refused(POD, json!({"metadata": {}}), order, "orders no list");
    }

    /// For lists with keys, and, where nothing is deleted, for lists of texts.
    #[test]
    fn lists_get_the_order_that_upstream_gives_them() {
        let mut cases = 0;
        for line in include_str!("list_orders.txt").lines().filter(|line| !line.starts_with('#')) {
            let columns: Vec<&str> = line.split('|').map(str::trim).collect();
            let [server, patch, order, result] = columns[..] else { panic!("{line}") };
            let names = |list: &str| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            let object = |path: [&str; 2], lists: &[(&str, &str)], item: fn(&str) -> Value| {
                let lists = lists.iter().filter(|(_, list)| *list != "-");
                let list = |list: &&str| names(list).iter().map(|name| item(name)).collect::<Value>();
                let lists = lists.map(|(prefix, names)| (format!("{prefix}{}", path[1]), list(names)));
                json!({path[0]: lists.collect::<Map<_, _>>()})
            };
            let keyed = |name: &str| match name.strip_prefix('-') {
                Some(deleted) => json!({"name": deleted, "$patch": "delete"}),
                None => json!({"name": name}),
            };
            type ItemOf = fn(&str) -> Value;
            let mut checks: Vec<([&str; 2], ItemOf)> = vec![(["spec", "containers"], keyed)];
            let once = names(server).into_iter().collect::<BTreeSet<_>>().len() == names(server).len();
            if once && !names(patch).iter().any(|name| name.len() > 1 && name.starts_with('-')) {
                checks.push((["metadata", "finalizers"], |name| name.into()));
            }
            for (path, item) in checks {
                check(
                    POD,
                    object(path, &[("", server)], item),
                    object(path, &[("", patch), (ELEMENT_ORDER, order)], item),
                    object(path, &[("", result)], item),
                );
                cases += 1;
            }
        }
        assert!(cases > 300, "{cases}");
    }

    #[test]
    fn value_merged_into_nothing_stays_as_it_is() {
        let two = json!([{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "UDP"}]);
        let pod = |containers: Value| json!({"spec": {"containers": containers}});
        let main = json!({"name": "main"});
        let patched = pod(json!([{"name": "main", "ports": two}]));
        check(POD, pod(json!([main])), patched.clone(), patched.clone());
        check(POD, json!({}), patched.clone(), patched.clone());
        check(
            POD,
            pod(json!([{"name": "x"}])),
            patched,
            pod(json!([{"name": "main", "ports": two}, {"name": "x"}])),
        );
        let security = |fields: Value| json!({"spec": {"securityContext": fields}});
        let replaced = json!({"$patch": "replace", "runAsUser": 1});
        check(
            POD,
            security(json!({"runAsGroup": 2})),
            security(replaced.clone()),
            security(json!({"runAsUser": 1})),
        );
        check(POD, json!({"spec": {}}), security(replaced), json!({"spec": {}}));
    }

    #[test]
    fn work_is_repeated_up_to_the_limit() {
        let mut spent = Spent { again: MERGED_AGAIN - 3 };
        // with its quotes
        assert!(spent.again(&json!("x")).is_ok());
        assert!(spent.again(&json!(1)).is_err());
    }

    #[test]
    fn element_order_is_the_patchs_and_other_items_stay() {
        let pod = |names: &[&str]| json!({"spec": {"containers": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()}});
        let order = |names: &[&str], changes: Value| {
            let order: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
            json!({"spec": {"$setElementOrder/containers": order, "containers": changes}})
        };
        check(POD, pod(&["a", "b", "c"]), order(&["c", "a"], json!([])), pod(&["b", "c", "a"]));
        check(POD, pod(&["x", "a", "b"]), order(&["b", "a"], json!([])), pod(&["x", "b", "a"]));
        check(POD, pod(&["a", "b"]), order(&["b", "n", "a"], json!([{"name": "n"}])), pod(&["b", "n", "a"]));
        let without_list = json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}});
        check(POD, pod(&["a", "b"]), without_list, pod(&["b", "a"]));
        check_refused(
            POD,
            pod(&["a", "b"]),
            order(&["b", "a"], json!([{"name": "a"}, {"name": "b"}])),
            "does not match $setElementOrder/containers",
        );
        check_refused(POD, pod(&["a"]), order(&["a"], json!([{"name": "z"}])), "does not match");
        // an item that is changed twice is listed twice, as upstream does
        let twice = json!([{"name": "a"}, {"name": "a"}]);
        check_refused(POD, pod(&["a"]), order(&["a"], twice.clone()), "does not match");
        check(POD, pod(&["a"]), order(&["a", "a"], twice), pod(&["a"]));
    }

    #[test]
    fn primitive_lists_are_sets() {
        let meta = |finalizers: &[&str]| json!({"metadata": {"finalizers": finalizers}});
        check(NODE, meta(&["a", "b"]), meta(&["b", "c"]), meta(&["a", "b", "c"]));
        let delete = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}});
        check(NODE, meta(&["a", "b"]), delete.clone(), meta(&["b"]));
        check(NODE, json!({"metadata": {}}), delete, json!({"metadata": {}}));
        let both = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"],
            "$setElementOrder/finalizers": ["c", "b"], "finalizers": ["c"]}});
        check(NODE, meta(&["a", "b"]), both, meta(&["c", "b"]));
    }

    #[test]
    fn retain_keys_removes_other_keys() {
        let volumes = |volume: Value| json!({"spec": {"volumes": [volume]}});
        check(
            POD,
            volumes(json!({"name": "v", "emptyDir": {}})),
            volumes(json!({"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}})),
            volumes(json!({"name": "v", "hostPath": {"path": "/x"}})),
        );
        check_refused(
            POD,
            volumes(json!({"name": "v", "emptyDir": {}})),
            volumes(json!({"name": "v", "$retainKeys": ["name"], "hostPath": {"path": "/x"}})),
            "not in the list of $retainKeys",
        );
    }

    #[test]
    fn changes_of_one_key_are_merged_one_after_the_other() {
        let containers = |items: Value| json!({"spec": {"containers": items}});
        check(
            POD,
            containers(json!([{"name": "a", "env": [{"name": "x"}]}])),
            containers(json!([
                {"name": "a", "env": [{"name": "y"}]}, {"name": "b"}, {"name": "a", "env": [{"name": "z"}]},
                {"name": "b", "tty": true}])),
            containers(json!([
                {"name": "a", "env": [{"name": "z"}, {"name": "y"}, {"name": "x"}]}, {"name": "b", "tty": true}])),
        );
    }

    /// In the item and in the patch, by every rule of the list inside.
    #[test]
    fn repeated_merge_key_may_not_repeat_the_work() {
        let env: Vec<Value> = (0..2_000).map(|number| json!({"name": format!("e{number}")})).collect();
        let first = json!({"name": "c", "env": env});
        for again in [
            json!({"name": "c", "env": []}),
            json!({"name": "c", "env": [{"name": "e1"}]}),
            json!({"name": "c", "$setElementOrder/env": []}),
            json!({"name": "c", "$deleteFromPrimitiveList/env": ["x"]}),
        ] {
            let mut changes = vec![again; 1_000];
            let stored = |item: &Value| json!({"spec": {"containers": [item]}});
            let patch = |changes: &[Value]| json!({"spec": {"containers": changes}});
            check_too_dear(stored(&first), patch(&changes));
            changes.insert(0, first.clone());
            check_too_dear(stored(&json!({"name": "x"})), patch(&changes));
        }
        let few = vec![json!({"name": "c", "env": [{"name": "e1"}]}); 20];
        let object = json!({"spec": {"containers": [first]}});
        check(POD, object.clone(), json!({"spec": {"containers": few}}), object);
    }

    fn check_too_dear(mut target: Value, patch: Value) {
        match apply(schema::find(POD).unwrap(), &mut target, patch) {
            Err(PatchError::DoesNotApply(why)) => assert!(why.contains("repeated merge keys"), "{why}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn no_directive_reaches_the_result() {
        let nested = json!({"spec": {"containers": [{"name": "n", "$setElementOrder/env": [{"name": "e"}],
            "env": [{"name": "e", "value": "1"}], "$retainKeys": ["name", "env"]}]}});
        let mut target = json!({});
        apply(schema::find(POD).unwrap(), &mut target, nested).unwrap();
        assert!(!target.to_string().contains('$'), "{target}");
        // values without a counterpart in the object are taken over
        let context = json!({"$retainKeys": ["x"], "$patch": "merge", "runAsUser": 1, "runAsGroup": null});
        let replaced = json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "n", "securityContext": context}]}});
        let expect = json!({"spec": {"containers": [{"name": "n", "securityContext": {"runAsUser": 1}}]}});
        check(POD, json!({"spec": {"containers": [{"name": "a"}]}}), replaced, expect);
    }
}
