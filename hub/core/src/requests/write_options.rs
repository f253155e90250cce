//! The options of a write, and its admission.

use serde_json::Value;

use crate::api_error::ApiError;
use crate::apply::Owner;
use crate::state::Require;

/// Admission: refuses an object in its stored form, before it is stored.
pub type Admit<'a> = dyn Fn(Option<&Value>, &Value) -> Result<(), ApiError> + Send + Sync + 'a;

pub struct WriteOptions<'a> {
    /// A dry run: everything but the write.
    pub dry_run: bool,
    /// Admission for the caller. Every decision calls it, also one after a lost race, because the objects
    /// that it judges by may have changed.
    pub admit: &'a Admit<'a>,
    /// Judges the whole request, before fields that it may not change are restored.
    pub asked: &'a Admit<'a>,
    /// The manager of the fields that this write sets.
    pub owner: Owner<'a>,
    /// Whether the caller is limited in what it may store ([`super::ALLOWANCES`]).
    pub limited: bool,
    /// Conditions on other objects, besides those that every write of the kind has.
    pub requires: &'a [Require],
    /// The node that makes the write, authenticated by its own credential.
    pub author: Option<&'a str>,
    /// Whether the write may end denials: for the hub's own commands.
    pub lifts_denials: bool,
}

impl WriteOptions<'static> {
    /// For the hub's own controllers: no admission, no field manager.
    pub fn internal() -> WriteOptions<'static> {
        WriteOptions {
            dry_run: false,
            admit: &|_, _| Ok(()),
            asked: &|_, _| Ok(()),
            owner: Owner::Nobody,
            limited: false,
            requires: &[],
            author: None,
            lifts_denials: false,
        }
    }
}
