//! The cost of a JSON value: how deep it is nested, and the memory that it takes as a tree.
//!
//! Three bytes of text (`[0]`) can become a tree of two hundred bytes, and trees are walked recursively: so
//! every value that a client builds, whatever the format and by however many patches, must stay within
//! [`MAX_DEPTH`] and [`MAX_TREE_BYTES`]. A reader stops at the first value beyond a limit. Always holds: a
//! value that passes [`check_depth`] can be written as text and read back. Left to others: the bytes of the
//! text itself (bodies in `hub`, stored objects in `state`).

use std::fmt;

use serde_json::Value;

use crate::api_error::ApiError;

/// Most lists and objects inside each other. One level more, and serde_json, which reads stored objects,
/// refuses.
pub const MAX_DEPTH: usize = 127;
/// Most memory of one body, or one object, as a tree. Ordinary objects take three to six times their text,
/// which may have 1.5 MiB.
pub const MAX_TREE_BYTES: usize = 16 * 1024 * 1024;
/// Longest key of an object. Upstream's longest valid one has 317 bytes (the key of a label with its prefix).
pub const MAX_KEY_BYTES: usize = 64 * 1024;

/// A value in a list that doubles as it grows.
const ITEM: usize = 2 * size_of::<Value>();
/// The smallest allocation of a list that is not empty: room for four.
const LIST: usize = 4 * size_of::<Value>();
/// A node of the B-tree that an object is: eleven keys and values.
const NODE: usize = 16 + 11 * (size_of::<String>() + size_of::<Value>());
/// An entry of an object, in nodes that are at least half full, and its share of the nodes above.
const ENTRY: usize = NODE / 5;

/// The limit that a value exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Excess {
    /// [`MAX_DEPTH`].
    Depth,
    /// [`MAX_TREE_BYTES`].
    Memory,
    /// [`MAX_KEY_BYTES`].
    Key,
}

impl fmt::Display for Excess {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Excess::Depth => write!(out, "lists and objects are nested more than {MAX_DEPTH} levels deep"),
            Excess::Memory => write!(out, "the values take more than {MAX_TREE_BYTES} bytes of memory"),
            Excess::Key => write!(out, "a key has more than {MAX_KEY_BYTES} bytes"),
        }
    }
}

impl std::error::Error for Excess {}

impl Excess {
    /// The answer about `what`: 413 for memory, else 400.
    pub fn refusal(self, what: &str) -> ApiError {
        match self {
            Excess::Memory => ApiError::too_large(format!("{what} is too large: {self}")),
            Excess::Depth | Excess::Key => ApiError::bad_request(format!("{what} cannot be read: {self}")),
        }
    }
}

/// Memory that is left for a tree while it is built.
#[derive(Debug)]
pub struct Budget {
    left: usize,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { left: MAX_TREE_BYTES }
    }
}

impl Budget {
    fn charge(&mut self, bytes: usize) -> Result<(), Excess> {
        self.left = self.left.checked_sub(bytes).ok_or(Excess::Memory)?;
        Ok(())
    }

    /// A text that becomes a value.
    pub fn text(&mut self, text: &str) -> Result<(), Excess> {
        self.charge(text.len())
    }

    /// The next item of a list that has `before` items.
    pub fn item(&mut self, before: usize) -> Result<(), Excess> {
        self.charge(if before == 0 { LIST + ITEM } else { ITEM })
    }

    /// The next entry of an object that has `before` entries.
    pub fn entry(&mut self, before: usize, key: &str) -> Result<(), Excess> {
        if key.len() > MAX_KEY_BYTES {
            return Err(Excess::Key);
        }
        self.charge(key.len() + if before == 0 { NODE } else { ENTRY })
    }

    /// A whole value, placed inside `within` lists and objects.
    pub fn value(&mut self, value: &Value, within: usize) -> Result<(), Excess> {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
            Value::String(text) => self.text(text),
            Value::Array(_) | Value::Object(_) if within >= MAX_DEPTH => Err(Excess::Depth),
            Value::Array(items) => items.iter().enumerate().try_for_each(|(before, item)| {
                self.item(before)?;
                self.value(item, within + 1)
            }),
            Value::Object(fields) => fields.iter().enumerate().try_for_each(|(before, (key, value))| {
                self.entry(before, key)?;
                self.value(value, within + 1)
            }),
        }
    }
}

/// Checks a whole value against all limits.
pub fn check(value: &Value) -> Result<(), Excess> {
    Budget::default().value(value, 0)
}

/// Checks that a value can be read back once it is written.
pub fn check_depth(value: &Value) -> Result<(), Excess> {
    check_depth_within(value, 0)
}

fn check_depth_within(value: &Value, within: usize) -> Result<(), Excess> {
    match value {
        Value::Array(_) | Value::Object(_) if within >= MAX_DEPTH => Err(Excess::Depth),
        Value::Array(items) => items.iter().try_for_each(|item| check_depth_within(item, within + 1)),
        Value::Object(fields) => fields.values().try_for_each(|value| check_depth_within(value, within + 1)),
        _ => Ok(()),
    }
}

/// Refuses a change that makes an object exceed a limit. An object that exceeds one already, from a store of
/// an older version, may be changed further: otherwise it could not even be deleted.
pub fn check_change(old: Option<&Value>, new: &Value) -> Result<(), ApiError> {
    match check(new) {
        Err(excess) if old.is_none_or(|old| check(old).is_ok()) => Err(excess.refusal("the object")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn nested(levels: usize) -> Value {
        (1..levels).fold(
            json!([]),
            |inner, level| {
                if level % 2 == 0 { json!([inner]) } else { json!({"a": inner}) }
            },
        )
    }

    #[test]
    fn deepest_accepted_value_can_be_read_back() {
        assert_eq!(check(&nested(MAX_DEPTH)), Ok(()));
        assert_eq!(check_depth(&nested(MAX_DEPTH)), Ok(()));
        for check in [check, check_depth] {
            assert_eq!(check(&nested(MAX_DEPTH + 1)), Err(Excess::Depth));
        }
        let read = |levels| serde_json::from_str::<Value>(&nested(levels).to_string());
        assert_eq!(read(MAX_DEPTH).unwrap(), nested(MAX_DEPTH));
        assert!(read(MAX_DEPTH + 1).is_err());
    }

    #[test]
    fn each_value_has_its_price() {
        let check = |value: Value, price: usize| {
            assert_eq!(Budget { left: price }.value(&value, 0), Ok(()), "{value}");
            assert_eq!(Budget { left: price - 1 }.value(&value, 0), Err(Excess::Memory), "{value}");
        };
        check(json!("text"), 4);
        check(json!([1]), LIST + ITEM);
        check(json!([1, 2, 3]), LIST + 3 * ITEM);
        check(json!({"ab": 1}), NODE + 2);
        check(json!({"ab": 1, "c": "de"}), NODE + ENTRY + 3 + 2);
        let long = |bytes: usize| Budget::default().entry(0, &"x".repeat(bytes));
        assert_eq!((long(MAX_KEY_BYTES), long(MAX_KEY_BYTES + 1)), (Ok(()), Err(Excess::Key)));
    }

    #[test]
    fn tree_of_many_small_values_is_refused() {
        let tiny = |count| Value::Array(vec![json!({"": 0}); count]);
        assert_eq!(check(&tiny(375_000)), Err(Excess::Memory));
        assert_eq!(check_change(Some(&json!({})), &tiny(375_000)).unwrap_err().code, 413);
        assert!(check_change(Some(&tiny(375_001)), &tiny(375_000)).is_ok());
        assert_eq!(check(&Value::Array(vec![json!({"name": "a", "value": "b"}); 10_000])), Ok(()));
        assert_eq!(check(&json!("x".repeat(MAX_TREE_BYTES))), Ok(()));
        assert_eq!(check(&json!({"x".repeat(MAX_KEY_BYTES + 1): 0})), Err(Excess::Key));
    }
}
