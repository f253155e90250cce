//! Reads one object of a store, for a command that works with or without a running hub.
//!
//! Always holds: nothing is changed, and a store that cannot be read is an error, never an absent object.

use std::path::Path;

use crate::own;
use kedge_hub_core::kinds::Kind;
use rusqlite::{OptionalExtension, params};
use serde_json::Value;

use super::OpenError;
use super::backup::{engine, source, wrong};

/// The object in the store of a data directory; `None` if it does not exist, or there is no store yet.
///
/// # Errors
/// The store cannot be read.
pub(crate) fn object(
    data_dir: &Path,
    kind: &Kind,
    namespace: &str,
    name: &str,
) -> Result<Option<Value>, OpenError> {
    let path = data_dir.join("state.db");
    if !path.try_exists().map_err(|error| wrong(&path, error))? {
        return Ok(None);
    }
    let store = source(&path)?;
    let query = "SELECT json FROM objects WHERE resource = ?1 AND namespace = ?2 AND name = ?3";
    let found = store
        .query_row(query, params![kind.resource_name(), namespace, name], |row| row.get::<_, Vec<u8>>(0))
        .optional()
        .map_err(engine("read", &path))?;
    let read = |json: Vec<u8>| own::read(&json).map_err(|error| wrong(&path, error));
    found.map(read).transpose()
}
