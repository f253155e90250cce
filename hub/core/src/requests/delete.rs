//! Deletion: at once, or marked until finalizers, grace period and the objects of a namespace are gone.

use std::collections::BTreeSet;

use kedge_api::excerpt;
use serde_json::Value;
use time::OffsetDateTime;

use super::administrators;
use super::create::metadata;
use super::delete_options::{DeleteOptions, Propagation};
use super::objects::Objects;
use super::types::{Answer, Decision, Pending, Place};
use super::write_options::WriteOptions;
use crate::api_error::ApiError;
use crate::field_error::{FieldError, FieldErrors};
use crate::identity::denied::{self, is_deny_list};
use crate::kinds::{self, CONFIG_MAP, Kind, NAMESPACE, POD, PRIORITY_CLASS, pod, priority_class, service};
use crate::object::Object;
use crate::state::{Expect, Require, Write};
use crate::value::{at, rfc3339, text};

/// Finalizer of a deletion that waits for its dependents.
pub const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of a deletion that waits until its dependents no longer name the object as owner.
pub const ORPHAN: &str = "orphan";

/// Deletes an object, or marks it for deletion if finalizers or a grace period require that.
pub fn delete(
    objects: &dyn Objects,
    place: &Place<'_>,
    asked: &DeleteOptions,
    options: &WriteOptions<'_>,
    now: OffsetDateTime,
) -> Result<Decision, ApiError> {
    let Place { kind, namespace, name } = *place;
    if service::is_own(kind, namespace, name) {
        return Err(ApiError::forbidden_object(kind, name, service::OWN));
    }
    if kind.kind == PRIORITY_CLASS.kind && priority_class::of_system(name).is_some() {
        let why = "this is a system priority class and cannot be deleted";
        return Err(ApiError::forbidden_object(kind, name, why));
    }
    if kind.kind == NAMESPACE.kind && kinds::namespace::PROTECTED.contains(&name) {
        return Err(ApiError::forbidden_object(kind, name, "this namespace may not be deleted"));
    }
    let Some(current) = place.find(objects) else {
        return Err(ApiError::not_found(kind, name));
    };
    check_preconditions(kind, &current, asked)?;
    check_unchanged(objects, place, options.requires)?;
    let old = current.value();
    if kind.kind == CONFIG_MAP.kind
        && is_deny_list(&current.namespace, name)
        && let Some(why) = denied::deletion_complaint(&old)
    {
        return Err(ApiError::forbidden_object(kind, name, &why));
    }
    (options.admit)(Some(&old), &old)?;
    let mut marked = marked_for_deletion(kind, &old, asked.propagation, &rfc3339(now));
    if kind.kind == POD.kind {
        marked = pod::with_grace(&old, marked, asked.grace_secs, now);
    }
    let deleted = is_released(&marked);
    if !deleted && old == marked {
        return Ok(Decision::Answer(Answer::of(current)));
    }
    if options.dry_run {
        return Ok(Decision::Answer(Answer { deleted, ..Answer::dry(marked) }));
    }
    let warning = deleted.then(|| administrators::warning(objects, kind, name, &old, None)).flatten();
    Ok(match write(kind, &current, (!deleted).then_some(marked), options) {
        Decision::Write(write, mut pending) => {
            pending.warnings.extend(warning);
            Decision::Write(write, pending)
        }
        answer => answer,
    })
}

/// Releases the empty terminating namespace of this UID, which deletes it unless another finalizer holds it:
/// upstream's controller does the same through the finalize subresource.
pub fn finalize_namespace(objects: &dyn Objects, name: &str, uid: &str) -> Result<Decision, ApiError> {
    let Some(current) = objects.get(&NAMESPACE, "", name) else {
        return Err(ApiError::not_found(&NAMESPACE, name));
    };
    let meant = DeleteOptions { uid: Some(uid.to_owned()), ..DeleteOptions::default() };
    check_preconditions(&NAMESPACE, &current, &meant)?;
    if !current.terminating {
        return Ok(Decision::Answer(Answer::of(current)));
    }
    let mut value = current.value();
    if let Some(finalizers) = value["spec"]["finalizers"].as_array_mut() {
        finalizers.retain(|finalizer| finalizer != kinds::namespace::FINALIZER);
    }
    let new = if is_released(&value) { None } else { Some(value) };
    if new.as_ref().is_some_and(|new| *new == current.value()) {
        return Ok(Decision::Answer(Answer::of(current)));
    }
    Ok(write(&NAMESPACE, &current, new, &WriteOptions::internal()))
}

fn write(kind: &'static Kind, current: &Object, new: Option<Value>, options: &WriteOptions<'_>) -> Decision {
    let pending = Pending { deleted: new.is_none(), ..Pending::default() };
    let write = Write {
        kind,
        namespace: current.namespace.to_string(),
        name: current.name.to_string(),
        expect: Expect::Revision(current.revision),
        requires: options.requires.to_vec(),
        new,
        volatile: false,
        author: options.author.map(Box::from),
    };
    Decision::Write(write, pending)
}

/// Refuses to add finalizers to an object that is marked for deletion.
pub(super) fn check_finalizers(old: &Value, new: &Value, errors: &mut FieldErrors) {
    if text(old, &["metadata", "deletionTimestamp"]).is_empty() {
        return;
    }
    fn list(value: &Value) -> BTreeSet<&str> {
        let all = at(value, &["metadata", "finalizers"]).and_then(Value::as_array).into_iter().flatten();
        all.filter_map(Value::as_str).collect()
    }
    for added in list(new).difference(&list(old)) {
        let added = format!("{:?}", excerpt(added));
        let why = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{added}}}"
        );
        errors.push(FieldError::forbidden("metadata.finalizers", &why));
    }
}

/// Whether it is marked for deletion and nothing holds it any more.
pub(super) fn is_released(value: &Value) -> bool {
    let list_is_empty = |path: &[&str]| at(value, path).and_then(Value::as_array).is_none_or(Vec::is_empty);
    // a pod stays for its grace period, until its node reports that it has ended
    let grace = at(value, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64);
    !text(value, &["metadata", "deletionTimestamp"]).is_empty()
        && grace.unwrap_or(0) <= 0
        && list_is_empty(&["metadata", "finalizers"])
        && (value["kind"] != NAMESPACE.kind || list_is_empty(&["spec", "finalizers"]))
}

fn check_preconditions(kind: &Kind, current: &Object, asked: &DeleteOptions) -> Result<(), ApiError> {
    let differs = |what: &str, wanted: &str, found: &str| {
        let why =
            format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}");
        ApiError::conflict_because(kind, &current.name, &why)
    };
    if let Some(uid) = asked.uid.as_deref().filter(|uid| *uid != &*current.uid) {
        return Err(differs("UID", uid, &current.uid));
    }
    let version = current.revision.to_string();
    match asked.resource_version.as_deref() {
        Some(wanted) if wanted != version => Err(differs("ResourceVersion", wanted, &version)),
        _ => Ok(()),
    }
}

/// Refuses if another object is not as required; the order of writes judges that again.
pub(super) fn check_unchanged(
    objects: &dyn Objects,
    place: &Place<'_>,
    requires: &[Require],
) -> Result<(), ApiError> {
    for require in requires {
        let Require::Unchanged { kind, namespace, name, revision } = require else { continue };
        if objects.get(kind, namespace, name).map(|found| found.revision) != *revision {
            let why = format!("{} {name} changed meanwhile", kind.kind);
            return Err(ApiError::conflict_because(place.kind, place.name, &why));
        }
    }
    Ok(())
}

/// The object with its deletion time and the finalizers of the propagation policy; without finalizers it can
/// be deleted.
pub(super) fn marked_for_deletion(kind: &Kind, old: &Value, propagation: Propagation, now: &str) -> Value {
    let mut value = old.clone();
    let again = !text(old, &["metadata", "deletionTimestamp"]).is_empty();
    let meta = metadata(&mut value);
    let mut finalizers = meta.get("finalizers").and_then(Value::as_array).cloned().unwrap_or_default();
    if propagation != Propagation::Unset {
        finalizers.retain(|finalizer| finalizer != FOREGROUND && finalizer != ORPHAN);
    }
    match propagation {
        Propagation::Unset | Propagation::Background => {}
        Propagation::Foreground => finalizers.push(FOREGROUND.into()),
        Propagation::Orphan => finalizers.push(ORPHAN.into()),
    }
    match finalizers.is_empty() {
        true => drop(meta.remove("finalizers")),
        false => drop(meta.insert("finalizers".to_owned(), finalizers.into())),
    }
    if !again {
        meta.insert("deletionTimestamp".to_owned(), now.into());
        meta.insert("deletionGracePeriodSeconds".to_owned(), 0.into());
        if let Some(generation) = meta.get("generation").and_then(Value::as_i64) {
            meta.insert("generation".to_owned(), generation.saturating_add(1).into());
        }
    }
    if kind.kind == NAMESPACE.kind {
        value["status"]["phase"] = "Terminating".into();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: &str = "2026-11-21T12:00:00Z";

    #[test]
    fn deletion_waits_for_finalizers() {
        let free = json!({"kind": "ConfigMap", "metadata": {"name": "c"}});
        assert!(is_released(&marked_for_deletion(&CONFIG_MAP, &free, Propagation::Background, NOW)));
        assert!(!is_released(&marked_for_deletion(&CONFIG_MAP, &free, Propagation::Foreground, NOW)));
        let held = json!({"kind": "ConfigMap", "metadata": {"name": "c", "generation": 1, "finalizers": ["example.com/x"]}});
        let marked = marked_for_deletion(&CONFIG_MAP, &held, Propagation::Background, NOW);
        assert!(!is_released(&marked));
        assert_eq!(marked["metadata"]["generation"], 2);
        assert_eq!(marked_for_deletion(&CONFIG_MAP, &marked, Propagation::Background, NOW), marked);
        let mut errors = FieldErrors::default();
        let mut more = marked.clone();
        more["metadata"]["finalizers"] = json!(["example.com/x", "example.com/y"]);
        check_finalizers(&marked, &more, &mut errors);
        assert_eq!(errors.len(), 1);
    }
}
