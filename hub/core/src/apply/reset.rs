//! An empty list of `managedFields`, by which a client takes all claims away.

use serde_json::{Map, Value};

/// Keeps a client's empty list, which asks to drop all managers, through the schema, which removes empty
/// lists: it becomes one empty entry, which upstream treats the same.
pub fn mark_reset(value: &mut Value) {
    if let Some(claim) = value.get_mut("metadata").and_then(|meta| meta.get_mut("managedFields"))
        && claim.as_array().is_some_and(Vec::is_empty)
    {
        *claim = Value::Array(vec![Value::Object(Map::new())]);
    }
}

pub(super) fn is_reset(claim: &Value) -> bool {
    matches!(claim.as_array().map(Vec::as_slice), Some([Value::Object(entry)]) if entry.is_empty())
}
