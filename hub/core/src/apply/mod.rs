//! Server-side apply: the field managers of an object, and how applying a part of it changes object and
//! managers.
//!
//! Every write maintains `metadata.managedFields`. An update makes its manager the only owner of the fields
//! it changed. An apply sets fields, removes those that its manager applied before and no other manager owns,
//! structs with the defaults in them, and is refused where it would change fields of others, unless forced.
//! Rules and texts are upstream's.
//!
//! Our own decision: writes by nodes and by the hub itself record no manager. They renew and report all the
//! time, and a fleet's status would double in size for names that nobody looks up; they still take the
//! changed fields from other managers. Renewals by other clients (leader elections) keep a manager's time
//! while it renews fields that it already owns.

mod fields;
mod managers;
#[cfg(test)]
mod properties;
mod reset;
mod typed;

use serde_json::{Map, Value};

use crate::api_error::ApiError;
use crate::decode;
use crate::kinds::{Kind, at, schema, text};
use managers::{Entry, Operation};
use reset::is_reset;
pub use reset::mark_reset;

pub use fields::FieldSet;
pub use managers::{MAX_NAME_BYTES, Manager};

/// The annotation in which client-side apply stores the last applied object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Upstream's manager name for fields that were set before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// The manager that takes over the fields of client-side apply.
const KUBECTL: &str = "kubectl";

/// How a write changes the managers.
#[derive(Debug, Clone, Copy)]
pub enum Owner<'a> {
    /// The writer is not recorded as a manager: nobody owns the fields that it changes.
    Nobody,
    /// The writer owns the fields it changes.
    Updates(&'a Manager),
    /// The object was [`apply`]ed, its `managedFields` are those of the result.
    Applied,
}

/// Takes the `managedFields` that a client sent out of an object.
pub fn take_claim(value: &mut Value) -> Option<Value> {
    value.get_mut("metadata")?.as_object_mut()?.remove("managedFields").filter(|claim| !claim.is_null())
}

fn put(value: &mut Value, entries: Vec<Entry>) {
    if let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut)
        && let Some(entries) = managers::encode(entries)
    {
        meta.insert("managedFields".to_owned(), entries);
    }
}

/// Whether both are the same object, apart from the managers of the old one.
fn is_same(old: &Value, new: &Value) -> bool {
    let mut old = old.clone();
    take_claim(&mut old);
    old == *new
}

/// Writes `managedFields` of `new`, which has none yet, from three sources: the old object's managers, the
/// ones that the client sent, and this change. For a new object, `old` holds the fields that admission set.
/// `renewal`: nothing but the kind's volatile fields changes. `now` is the time of the change.
pub fn track(
    kind: &'static Kind,
    old: &Value,
    new: &mut Value,
    claim: Option<Value>,
    owner: Owner<'_>,
    (renewal, now): (bool, &str),
) {
    let known = at(old, &["metadata", "managedFields"]);
    let manager = match owner {
        Owner::Applied => {
            // an apply that changed nothing leaves the times as well
            let claim = match (claim, known) {
                (Some(claim), Some(known))
                    if managers::same_but_for_times(&claim, known) && is_same(old, new) =>
                {
                    Some(known.clone())
                }
                (claim, _) => claim,
            };
            if let (Some(claim), Some(meta)) = (claim, new.get_mut("metadata").and_then(Value::as_object_mut))
            {
                meta.insert("managedFields".to_owned(), claim);
            }
            return;
        }
        Owner::Updates(manager) => Some(manager),
        Owner::Nobody if known.is_none() => return,
        Owner::Nobody => None,
    };
    // only managers may send managedFields, and not through a subresource
    let claim = claim.filter(|_| manager.is_some_and(|manager| manager.subresource.is_empty()));
    let mut entries = match claim {
        Some(claim) if is_reset(&claim) => Vec::new(),
        claim => {
            let claimed = claim.as_ref().and_then(managers::decode).filter(|entries| !entries.is_empty());
            claimed.or_else(|| known.and_then(managers::decode)).unwrap_or_default()
        }
    };
    let changed = typed::compare(kind.schema(), old, new);
    let set = changed.set.without_identity();
    let writer = manager.map(|manager| Entry::of(kind, manager, Operation::Update));
    managers::update(&mut entries, writer, &set, &changed.removed, renewal, now);
    put(new, entries);
}

/// A validated body to apply; it is applied again if another write came first.
#[derive(Debug)]
pub struct Apply {
    kind: &'static Kind,
    /// As it was written: zeros, nulls and empty values are applied as well.
    applied: Value,
    /// The fields that its manager owns.
    fields: FieldSet,
    manager: Manager,
    force: bool,
}

impl Apply {
    /// From a body that passed [`schema::conform_applied`], with its name. Only fields of the subresource are
    /// applied.
    ///
    /// # Errors
    /// Lists that name an item twice or not at all, and `managedFields` in the body (400).
    pub fn new(
        kind: &'static Kind,
        mut applied: Value,
        manager: Manager,
        force: bool,
    ) -> Result<Apply, ApiError> {
        if take_claim(&mut applied).is_some() {
            return Err(ApiError::bad_request("metadata.managedFields must be nil"));
        }
        if let Some(fields) = applied.as_object_mut() {
            match &*manager.subresource {
                "" if kind.status => drop(fields.remove("status")),
                "" => {}
                part => fields
                    .retain(|name, _| name == part || matches!(&**name, "apiVersion" | "kind" | "metadata")),
            }
        }
        typed::check_lists(kind.schema(), &applied).map_err(|why| {
            let place = (text(&applied, &["metadata", "namespace"]), text(&applied, &["metadata", "name"]));
            ApiError::untyped(kind, place, &why)
        })?;
        let fields = typed::fields_of(kind.schema(), &applied).without_identity();
        Ok(Apply { kind, applied, fields, manager, force })
    }

    /// The object to create if it does not exist.
    pub fn created(&self, now: &str) -> Value {
        let mut value = self.applied.clone();
        schema::conform(self.kind.schema(), &mut value);
        let mut entry = Entry::of(self.kind, &self.manager, Operation::Apply);
        entry.time = now.to_owned();
        entry.fields = self.fields.clone();
        put(&mut value, vec![entry]);
        value
    }

    /// The live object with the applied fields and its new managers.
    ///
    /// # Errors
    /// 409 with a cause for every field that another manager owns and that would change.
    pub fn to(&self, mut live: Value, now: &str) -> Result<Value, ApiError> {
        let of = self.kind.schema();
        let known = take_claim(&mut live);
        let mut entries = known.as_ref().and_then(managers::decode).unwrap_or_default();
        if entries.is_empty() {
            entries.push(self.before_first_apply(&live, now));
        }
        let mut own = Entry::of(self.kind, &self.manager, Operation::Apply);
        let index = entries.iter().position(|entry| entry.is_of(&own));
        let last = index.map(|index| entries.remove(index));
        own.fields = self.fields.clone();

        let merged = typed::merge(of, live.clone(), &self.applied);
        let mut new = match &last {
            None => merged,
            Some(last) => {
                // with the fields that have no owner: an apply never removes name and type
                let mut kept = typed::fields_of(of, &self.applied);
                entries.iter().for_each(|entry| kept.include(&entry.fields));
                typed::remove(of, merged, &last.fields, &kept)
            }
        };
        let changed = typed::compare(of, &live, &new);
        let set = changed.set.without_identity();
        if !self.force {
            self.check_conflicts(&entries, &set, &live)?;
        }
        let same = set.is_empty() && changed.removed.is_empty();
        own.time = match last {
            Some(last) if same && last.fields == own.fields => last.time,
            _ => now.to_owned(),
        };
        managers::update(&mut entries, None, &set, &changed.removed, false, now);
        if !own.fields.is_empty() {
            entries.push(own);
        }
        schema::conform(of, &mut new);
        self.remember_for_client_side_apply(&live, &mut new);
        put(&mut new, entries);
        Ok(new)
    }

    /// A manager for the fields of an object that has none, so that the first apply conflicts instead of
    /// taking them silently. Fields of a subresource belong to it only if that subresource is applied.
    fn before_first_apply(&self, live: &Value, now: &str) -> Entry {
        let manager = Manager { name: BEFORE_FIRST_APPLY.to_owned(), subresource: String::new() };
        let mut entry = Entry::of(self.kind, &manager, Operation::Update);
        entry.time = now.to_owned();
        let mut nothing = Value::Object(Map::new());
        self.kind.complete(&mut nothing);
        entry.fields = typed::compare(self.kind.schema(), &nothing, live).set.without_identity();
        let other_part = if self.manager.subresource.is_empty() { "status" } else { "spec" };
        if self.kind.status {
            entry.fields = entry.fields.without_field(other_part);
        }
        entry
    }

    fn check_conflicts(&self, entries: &[Entry], set: &FieldSet, live: &Value) -> Result<(), ApiError> {
        let mut conflicts: Vec<(&Entry, FieldSet)> =
            entries.iter().map(|entry| (entry, entry.fields.intersection(set))).collect();
        conflicts.retain(|(_, fields)| !fields.is_empty());
        if self.manager.name == KUBECTL && !conflicts.is_empty() {
            let own = self.applied_on_the_client(live);
            for (_, fields) in &mut conflicts {
                *fields = fields.difference(&own);
            }
            conflicts.retain(|(_, fields)| !fields.is_empty());
        }
        if conflicts.is_empty() { Ok(()) } else { Err(managers::conflict(&conflicts)) }
    }

    /// kubectl owns the fields that client-side apply last applied, as long as they still have that value: a
    /// field with another value was set by another manager, which must not lose it silently (upstream's
    /// `lastAppliedManager`).
    fn applied_on_the_client(&self, live: &Value) -> FieldSet {
        let of = self.kind.schema();
        let Some(applied) = last_applied(live).filter(|applied| {
            applied.get("apiVersion").and_then(Value::as_str) == Some(&*self.kind.api_version())
        }) else {
            return FieldSet::default();
        };
        let since = typed::compare(of, &applied, live);
        typed::fields_of(of, &applied).difference(&since.set).difference(&since.removed)
    }

    /// Updates the annotation of client-side apply, if there is one, so that kubectl's users can go back to
    /// it.
    fn remember_for_client_side_apply(&self, live: &Value, new: &mut Value) {
        if self.manager.name != KUBECTL || last_applied(live).is_none() {
            return;
        }
        let mut applied = self.applied.clone();
        let annotations = applied.get_mut("metadata").and_then(|meta| meta.get_mut("annotations"));
        if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
            annotations.remove(LAST_APPLIED);
        }
        if let Some(Value::String(text)) =
            new.get_mut("metadata").and_then(|meta| meta.get_mut("annotations")?.get_mut(LAST_APPLIED))
        {
            *text = format!("{applied}\n");
        }
    }
}

fn last_applied(live: &Value) -> Option<Value> {
    let remembered = text(live, &["metadata", "annotations", LAST_APPLIED]);
    decode::value(remembered.as_bytes()).filter(Value::is_object)
}
