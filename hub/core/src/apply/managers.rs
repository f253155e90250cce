//! The entries of `managedFields`: reading and writing them, taking fields from managers, and the text of a
//! conflict.
//!
//! Always holds: entries are in upstream's order, none is empty, and at most [`MAX_UPDATERS`] are of updates.
//! An entry that cannot be read makes all of them invalid: the object then counts as having none, as upstream
//! does.

use kedge_api::excerpt;
use serde_json::{Value, json};

use super::fields::FieldSet;
use crate::api_error::ApiError;
use crate::field_error::SHOWN_ERRORS;
use crate::kinds::{Kind, text};

/// Longest name of a manager, in bytes; upstream's limit.
pub const MAX_NAME_BYTES: usize = 128;
/// Entries of managers that update; the oldest become one. Upstream's limit.
const MAX_UPDATERS: usize = 10;
/// Entries of managers that apply. Upstream has no limit but the object's size; each costs every write a pass
/// over its fields.
const MAX_APPLIERS: usize = 100;
/// The manager of the merged oldest updates.
const ANCIENT: &str = "ancient-changes";

/// The manager that writes.
#[derive(Debug, Clone)]
pub struct Manager {
    /// The client's `fieldManager`, or the product name of its `User-Agent`.
    pub name: String,
    /// The subresource; empty for the object itself.
    pub subresource: String,
}

/// The operation by which a manager got its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Apply,
    Update,
}

/// One manager's fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) manager: String,
    pub(super) operation: Operation,
    pub(super) api_version: String,
    pub(super) subresource: String,
    pub(super) time: String,
    pub(super) fields: FieldSet,
}

impl Entry {
    /// A manager without fields.
    pub(super) fn of(kind: &Kind, manager: &Manager, operation: Operation) -> Entry {
        Entry {
            manager: manager.name.clone(),
            operation,
            api_version: kind.api_version(),
            subresource: manager.subresource.clone(),
            time: String::new(),
            fields: FieldSet::default(),
        }
    }

    /// Whether both are the same manager. An applier is the same manager in every API version, as upstream
    /// does it.
    pub(super) fn is_of(&self, other: &Entry) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    fn read(value: &Value) -> Option<Entry> {
        let operation = match text(value, &["operation"]) {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        let manager = text(value, &["manager"]);
        if text(value, &["fieldsType"]) != "FieldsV1" || manager.len() > MAX_NAME_BYTES {
            return None;
        }
        Some(Entry {
            manager: manager.to_owned(),
            operation,
            api_version: text(value, &["apiVersion"]).to_owned(),
            subresource: text(value, &["subresource"]).to_owned(),
            time: text(value, &["time"]).to_owned(),
            fields: FieldSet::from_value(value.get("fieldsV1")?)?,
        })
    }

    fn write(self) -> Value {
        let mut value = json!({
            "manager": self.manager,
            "operation": if self.operation == Operation::Apply { "Apply" } else { "Update" },
            "apiVersion": self.api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.fields.to_value(),
        });
        for (name, text) in [("time", self.time), ("subresource", self.subresource)] {
            if !text.is_empty() {
                value[name] = text.into();
            }
        }
        value
    }
}

/// From `managedFields`; `None` if an entry cannot be read, or there are too many.
pub(super) fn decode(value: &Value) -> Option<Vec<Entry>> {
    let entries = value.as_array()?;
    if entries.len() > MAX_UPDATERS + MAX_APPLIERS {
        return None;
    }
    entries.iter().map(Entry::read).collect()
}

/// The entries as `managedFields` has them; `None` if no manager owns a field.
pub(super) fn encode(mut entries: Vec<Entry>) -> Option<Value> {
    entries.retain(|entry| !entry.fields.is_empty());
    entries.sort_by(order);
    merge_oldest(&mut entries);
    let appliers = entries.iter().filter(|entry| entry.operation == Operation::Apply).count();
    // the oldest appliers come first
    entries.drain(..appliers.saturating_sub(MAX_APPLIERS));
    (!entries.is_empty()).then(|| entries.into_iter().map(Entry::write).collect())
}

/// Whether two lists of managers are the same but for the times in them.
pub(super) fn same_but_for_times(left: &Value, right: &Value) -> bool {
    let without_times = |list: &Value| {
        let mut entries = decode(list)?;
        entries.iter_mut().for_each(|entry| entry.time.clear());
        entries.sort_by(order);
        Some(entries)
    };
    without_times(left).is_some_and(|entries| Some(entries) == without_times(right))
}

fn order(left: &Entry, right: &Entry) -> std::cmp::Ordering {
    fn key(entry: &Entry) -> (Operation, &str, &str, &str, &str) {
        // times are in one zone and of one length: texts sort as times do
        (entry.operation, &entry.time, &entry.manager, &entry.api_version, &entry.subresource)
    }
    key(left).cmp(&key(right))
}

/// Entries are sorted; the oldest updates of a version become one.
fn merge_oldest(entries: &mut Vec<Entry>) {
    let updaters = entries.iter().filter(|entry| entry.operation == Operation::Update).count();
    if updaters <= MAX_UPDATERS {
        return;
    }
    let first = entries.len() - updaters;
    let oldest: Vec<Entry> = entries.drain(first..=first + (updaters - MAX_UPDATERS)).collect();
    let Some(last) = oldest.last().cloned() else { return };
    let mut fields = FieldSet::default();
    oldest.iter().for_each(|entry| fields.include(&entry.fields));
    let merged = Entry { manager: ANCIENT.to_owned(), subresource: String::new(), fields, ..last };
    entries.insert(first, merged);
}

/// Applies a change to the managers: all lose the fields that were set or removed, the writer gets those that
/// were set. `now` becomes the time of the writer's entry, unless this is a renewal and the entry already
/// owns all of them.
pub(super) fn update(
    entries: &mut Vec<Entry>,
    writer: Option<Entry>,
    set: &FieldSet,
    removed: &FieldSet,
    renewal: bool,
    now: &str,
) {
    let own = writer.as_ref().and_then(|writer| entries.iter().position(|entry| entry.is_of(writer)));
    for (index, entry) in entries.iter_mut().enumerate() {
        entry.fields = entry.fields.difference(removed);
        if Some(index) != own {
            entry.fields = entry.fields.difference(set);
        }
    }
    let Some(mut writer) = writer.filter(|_| !set.is_empty()) else { return };
    match own.and_then(|own| entries.get_mut(own)) {
        Some(own) => {
            let owned = set.difference(&own.fields).is_empty();
            own.fields = own.fields.union(set);
            if !(renewal && owned) {
                own.time = now.to_owned();
            }
        }
        None => {
            writer.fields = set.clone();
            writer.time = now.to_owned();
            entries.push(writer);
        }
    }
}

fn shown(entry: &Entry) -> String {
    let mut text = format!("{:?}", entry.manager);
    if !entry.subresource.is_empty() {
        text.push_str(&format!(" with subresource {:?}", excerpt(&entry.subresource)));
    }
    if entry.operation == Operation::Update {
        text.push_str(&format!(" using {}", excerpt(&entry.api_version)));
    }
    text
}

/// The error of a refused apply, in upstream's words; beyond [`SHOWN_ERRORS`] conflicts are only counted.
pub(super) fn conflict(conflicts: &[(&Entry, FieldSet)]) -> ApiError {
    let count: usize = conflicts.iter().map(|(_, fields)| fields.len()).sum();
    let mut causes = Vec::new();
    let mut lines = Vec::new();
    for (entry, fields) in conflicts {
        let paths = fields.paths(SHOWN_ERRORS - causes.len());
        if paths.is_empty() {
            break;
        }
        let manager = shown(entry);
        lines.push(format!("conflicts with {manager}:"));
        for path in paths {
            lines.push(format!("- {path}"));
            causes.push(json!({
                "reason": "FieldManagerConflict",
                "message": format!("conflict with {manager}"),
                "field": path,
            }));
        }
    }
    if count > causes.len() {
        lines.push(format!("and {} more", count - causes.len()));
    }
    let message = match (conflicts, &causes[..]) {
        ([(entry, fields)], [_]) => {
            let path = fields.paths(1).concat();
            format!("Apply failed with 1 conflict: conflict with {}: {path}", shown(entry))
        }
        _ => format!("Apply failed with {count} conflicts: {}", lines.join("\n")),
    };
    ApiError::apply_conflict(message, causes)
}
