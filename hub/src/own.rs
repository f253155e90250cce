//! JSON that this hub wrote itself: rows of its store and its backups, its marker, lines of its audit log.
//!
//! Always holds: no other file of this crate reads JSON without a budget (`clippy.toml`); what others wrote
//! goes through `kedge_hub_core::decode`.

use serde_json::Value;

#[expect(clippy::disallowed_methods, reason = "what is stored or logged was within the budget of bodies")]
pub(crate) fn read(json: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(json)
}
