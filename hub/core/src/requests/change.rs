//! Changes of objects: the fields that a subresource may change, the fields that the server keeps, and the
//! kind's rules.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::administrators;
use super::advice;
use super::allowance::{check_size, quota};
use super::create::{check_place, compose, create, created, metadata, set_namespace};
use super::delete::{check_finalizers, is_released};
use super::objects::Objects;
use super::priority;
use super::types::{Answer, Decision, Fresh, Part, Pending, Place};
use super::write_options::WriteOptions;
use crate::api_error::ApiError;
use crate::apply::{self, Apply, Owner};
use crate::cost;
use crate::field_error::{FieldError, FieldErrors};
use crate::identity::denied::{self, is_deny_list};
use crate::kinds::{CERTIFICATE_REQUEST, CONFIG_MAP, Kind, certificate_request, meta, schema, service};
use crate::object::Object;
use crate::pod_security::{self, Remarks};
use crate::state::{Expect, Require, Write};
use crate::value::text;

/// Replaces an object by the body of a PUT.
pub fn update(
    objects: &dyn Objects,
    place: &Place<'_>,
    part: Part,
    mut value: Value,
    options: &WriteOptions<'_>,
    fresh: &Fresh,
) -> Result<Decision, ApiError> {
    let Place { kind, namespace, name } = *place;
    set_namespace(kind, namespace, &mut value)?;
    check_place("name", text(&value, &["metadata", "name"]), name)?;
    let current = place.find(objects);
    if current.is_none() && kind.create_on_update && part == Part::Main {
        metadata(&mut value).remove("resourceVersion");
        return create(objects, kind, namespace, value, options, fresh);
    }
    let unversioned = matches!(text(&value, &["metadata", "resourceVersion"]), "" | "0");
    if unversioned && !kind.unconditional_update {
        let error = FieldError::invalid("metadata.resourceVersion", 0, "must be specified for an update");
        return Err(ApiError::invalid(kind, name, &[error]));
    }
    let current = current.ok_or_else(|| ApiError::not_found(kind, name))?;
    edit_found(objects, current, place, part, options, fresh, |_, _| Ok(value))
}

/// Decides on the creation of an object by an apply, and adds the parts that a creation adds.
pub type MayCreate<'a> = dyn Fn(&mut Value) -> Result<(), ApiError> + Send + Sync + 'a;

/// Applies a part of an object, or creates it if it does not exist (after `may_create`).
pub fn apply(
    objects: &dyn Objects,
    place: &Place<'_>,
    part: Part,
    applied: &Apply,
    options: &WriteOptions<'_>,
    may_create: &MayCreate<'_>,
    fresh: &Fresh,
) -> Result<Decision, ApiError> {
    if matches!(options.owner, Owner::Nobody) {
        // in another manager's name it could give up fields that it may not change
        let why = "a node is no field manager and cannot apply, use another patch";
        return Err(ApiError::forbidden_object(place.kind, place.name, why));
    }
    let options = WriteOptions { owner: Owner::Applied, ..*options };
    // one look-up decides, because the object may be deleted between two
    match place.find(objects) {
        Some(current) => {
            let to = |_: &Object, live: Value| applied.to(live, &fresh.stamp());
            edit_found(objects, current, place, part, &options, fresh, to)
        }
        None if part == Part::Main => {
            let mut value = applied.created(&fresh.stamp());
            may_create(&mut value)?;
            create_applied(objects, place, value, &options, fresh)
        }
        None => Err(ApiError::not_found(place.kind, place.name)),
    }
}

/// Creates an applied object that does not exist. As upstream (apiserver's `patcher.applyPatch`) a UID in the
/// body is a conflict, and a resourceVersion is accepted: it means "no newer object of this name"
/// (kubernetes/kubernetes#106745).
fn create_applied(
    objects: &dyn Objects,
    place: &Place<'_>,
    mut value: Value,
    options: &WriteOptions<'_>,
    fresh: &Fresh,
) -> Result<Decision, ApiError> {
    let Place { kind, namespace, name } = *place;
    match text(&value, &["metadata", "uid"]) {
        "" => {}
        uid => {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(ApiError::conflict_because(kind, name, &why));
        }
    }
    check_place("name", text(&value, &["metadata", "name"]), name)?;
    metadata(&mut value).remove("resourceVersion");
    // if it was created in the meantime, the next try applies to it
    let (value, remarks) = compose(objects, kind, namespace, value, options, fresh)?;
    Ok(created(kind, value, remarks, options))
}

/// Changes the existing object to the result of `compute`.
pub fn edit(
    objects: &dyn Objects,
    place: &Place<'_>,
    part: Part,
    options: &WriteOptions<'_>,
    fresh: &Fresh,
    compute: impl FnOnce(&Object, Value) -> Result<Value, ApiError>,
) -> Result<Decision, ApiError> {
    let current = place.find(objects).ok_or_else(|| ApiError::not_found(place.kind, place.name))?;
    edit_found(objects, current, place, part, options, fresh, compute)
}

fn edit_found(
    objects: &dyn Objects,
    current: Arc<Object>,
    place: &Place<'_>,
    part: Part,
    options: &WriteOptions<'_>,
    fresh: &Fresh,
    compute: impl FnOnce(&Object, Value) -> Result<Value, ApiError>,
) -> Result<Decision, ApiError> {
    let Place { kind, namespace, name } = *place;
    if service::is_own(kind, namespace, name) {
        return Err(ApiError::forbidden_object(kind, name, service::OWN));
    }
    let now = fresh.stamp();
    let mut old = current.value();
    // an object stored by an older hub may lack fields that upstream always writes, and have zeros that it
    // never does
    kind.complete(&mut old);
    schema::conform(kind.schema(), &mut old);
    let mut wanted = compute(&current, old.clone())?;
    cost::check_change(Some(&old), &wanted)?;
    (options.asked)(Some(&old), &wanted)?;
    check_version(kind, &current, &wanted)?;
    let claim = apply::take_claim(&mut wanted);
    let mut new = merged_with_old(kind, part, &old, wanted, &now)?;
    // only if there are managers: most writes are renewals by nodes, which have none
    let renewal = matches!(options.owner, Owner::Updates(_)) && is_renewal(kind, &old, &new);
    apply::track(kind, &old, &mut new, claim, options.owner, (renewal, &now));
    let remarks = match part {
        Part::Main | Part::All => pod_security::judge(objects, kind, namespace, Some(&old), &new)?,
        _ => Remarks::default(),
    };
    priority::check_default(objects, kind, &new)?;
    (options.admit)(Some(&old), &new)?;
    if options.limited {
        check_size(kind, Some(&old), &new)?;
    }
    if old == new {
        return Ok(Decision::Answer(Answer::of(current).warned(kind, &new, &old, remarks, options)));
    }
    let deleted = is_released(&new);
    if kind.kind == CONFIG_MAP.kind && is_deny_list(namespace, name) {
        check_deny_list(kind, &old, &new, options.lifts_denials, deleted)?;
    }
    if options.dry_run {
        metadata(&mut new).insert("resourceVersion".to_owned(), current.revision.to_string().into());
        let answer = Answer::dry(new.clone()).warned(kind, &new, &old, remarks, options);
        return Ok(Decision::Answer(Answer { deleted, ..answer }));
    }
    let mut warnings = advice::warnings(kind, &new, Some(&old), options, remarks.warnings);
    let left = (!deleted).then_some(&new);
    warnings.extend(administrators::warning(objects, kind, name, &old, left));
    let pending = Pending { created: false, deleted, warnings, violation: remarks.audit };
    let quota = options.limited.then(|| quota(kind, &new)).flatten().map(Require::Quota);
    let requires = quota.into_iter().chain(options.requires.iter().cloned()).collect();
    let write = Write {
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        expect: Expect::Revision(current.revision),
        requires,
        volatile: !deleted && is_volatile(kind, &old, &new),
        new: (!deleted).then_some(new),
        author: options.author.map(Box::from),
    };
    Ok(Decision::Write(write, pending))
}

/// Refuses a change of the deny list that ends denials, unless a command of the hub makes it.
fn check_deny_list(
    kind: &Kind,
    old: &Value,
    new: &Value,
    lifts: bool,
    deleted: bool,
) -> Result<(), ApiError> {
    let ends = || deleted.then(|| denied::deletion_complaint(new)).flatten();
    let changes = || denied::change_complaint(old, new).filter(|_| !lifts);
    match changes().or_else(ends) {
        Some(why) => Err(ApiError::forbidden_object(kind, text(old, &["metadata", "name"]), &why)),
        None => Ok(()),
    }
}

/// Refuses an outdated version, and the UID of another object. For a patched object the version is the one
/// that was patched, unless the patch itself names one.
fn check_version(kind: &Kind, current: &Object, wanted: &Value) -> Result<(), ApiError> {
    let uid = text(wanted, &["metadata", "uid"]);
    if !uid.is_empty() && uid != &*current.uid {
        let why =
            format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {}", current.uid);
        return Err(ApiError::conflict_because(kind, &current.name, &why));
    }
    match text(wanted, &["metadata", "resourceVersion"]) {
        "" | "0" => Ok(()),
        version => match version.parse::<u64>() {
            Ok(version) if version == current.revision => Ok(()),
            Ok(_) => Err(ApiError::conflict(kind, &current.name)),
            Err(_) => {
                let error =
                    FieldError::invalid("metadata.resourceVersion", version, "must be a whole number");
                Err(ApiError::invalid(kind, &current.name, &[error]))
            }
        },
    }
}

/// The object as it would be stored: fields that this subresource may not change and the server's own fields
/// are taken from the old one, and the kind's rules are checked.
pub fn merged_with_old(
    kind: &'static Kind,
    part: Part,
    old: &Value,
    wanted: Value,
    now: &str,
) -> Result<Value, ApiError> {
    let Value::Object(mut fields) = wanted else {
        return Err(ApiError::bad_request("the object is no JSON object"));
    };
    let mut errors = FieldErrors::default();
    meta::validate_change(kind, old, fields.get("metadata").unwrap_or(&Value::Null), &mut errors);
    let mut base = old.as_object().cloned().unwrap_or_default();
    match part {
        Part::All | Part::Binding => {}
        Part::Finalize => {
            let (spec, meta) = (fields.remove("spec"), fields.remove("metadata"));
            base.extend(spec.map(|spec| ("spec".to_owned(), spec)));
            base.extend(meta.map(|meta| ("metadata".to_owned(), meta)));
            fields = base;
        }
        Part::Main => keep(&mut fields, &base, "status"),
        Part::Approval => {
            fields = match certificate_request::approved(old, &Value::Object(fields), now) {
                Value::Object(fields) => fields,
                _ => base,
            };
        }
        Part::Status => {
            let status = fields.remove("status");
            let meta = fields.remove("metadata");
            match status {
                Some(status) => base.insert("status".to_owned(), status),
                None => base.remove("status"),
            };
            base.extend(meta.map(|meta| ("metadata".to_owned(), meta)));
            fields = base;
            if kind.kind == CERTIFICATE_REQUEST.kind
                && let Value::Object(kept) =
                    certificate_request::reported(old, &Value::Object(fields.clone()), now)
            {
                fields = kept;
            }
        }
    }
    let mut new = Value::Object(fields);
    keep_server_fields(kind, old, &mut new);
    kind.complete(&mut new);
    if !matches!(part, Part::Status | Part::Approval | Part::Finalize) {
        (kind.prepare)(&mut new, Some(old));
    }
    if part != Part::Binding {
        count_generation(kind, old, &mut new);
    }
    let findings = schema::conform(kind.schema(), &mut new);
    if let Some(wrong) = findings.wrong {
        return Err(ApiError::bad_request(format!(
            "{} cannot be handled as a {}: {wrong}",
            kind.kind, kind.kind
        )));
    }
    meta::validate(kind, &new, &mut errors);
    // a binding sets fields that other changes may not
    if part != Part::Binding {
        (kind.validate)(&new, Some(old), &mut errors);
    }
    check_finalizers(old, &new, &mut errors);
    if errors.is_empty() {
        return Ok(new);
    }
    Err(ApiError::invalid_fields(kind, text(old, &["metadata", "name"]), &errors))
}

fn keep(fields: &mut Map<String, Value>, old: &Map<String, Value>, field: &str) {
    match old.get(field) {
        Some(value) => fields.insert(field.to_owned(), value.clone()),
        None => fields.remove(field),
    };
}

fn keep_server_fields(kind: &Kind, old: &Value, new: &mut Value) {
    new["apiVersion"] = kind.api_version().into();
    new["kind"] = kind.kind.into();
    let empty = Map::new();
    let old = old["metadata"].as_object().unwrap_or(&empty);
    let meta = metadata(new);
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
        "resourceVersion",
    ] {
        keep(meta, old, field);
    }
    meta.remove("managedFields");
    meta.remove("selfLink");
}

fn count_generation(kind: &Kind, old: &Value, new: &mut Value) {
    if !kind.generation {
        return;
    }
    let spec_of = |value: &Value| {
        let mut fields = value.as_object().cloned().unwrap_or_default();
        fields.remove("metadata");
        fields.remove("status");
        fields
    };
    if spec_of(old) != spec_of(new) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0).saturating_add(1);
        metadata(new).insert("generation".to_owned(), generation.into());
    }
}

/// Whether only the kind's volatile fields differ, whoever manages them. `new` has no managers yet.
fn is_renewal(kind: &Kind, old: &Value, new: &Value) -> bool {
    if kind.volatile.is_empty() || old["metadata"].get("managedFields").is_none() {
        return is_volatile(kind, old, new);
    }
    let mut old = old.clone();
    apply::take_claim(&mut old);
    is_volatile(kind, &old, new)
}

/// Whether only the kind's volatile fields differ.
fn is_volatile(kind: &Kind, old: &Value, new: &Value) -> bool {
    if kind.volatile.is_empty() {
        return false;
    }
    let without = |value: &Value| {
        let mut value = value.clone();
        for path in kind.volatile {
            let Some((last, parents)) = path.split_last() else { continue };
            let parent = parents.iter().try_fold(&mut value, |value, field| value.get_mut(*field));
            if let Some(fields) = parent.and_then(Value::as_object_mut) {
                fields.remove(*last);
            }
        }
        value
    };
    without(old) == without(new)
}

#[cfg(test)]
mod tests {
    use super::super::create::new_object;
    use super::super::delete::marked_for_deletion;
    use super::super::delete_options::Propagation;
    use super::super::fixture::{NoSink, stored};
    use super::*;
    use crate::apply::Manager;
    use crate::decode::{self, FieldValidation};
    use crate::kinds::{CONFIG_MAP, DAEMON_SET, KINDS, LEASE, NAMESPACE, NODE, POD};
    use crate::state::Index;
    use serde_json::json;

    const NOW: &str = "2026-11-21T12:00:00Z";
    const FRESH: Fresh = Fresh { now: time::macros::datetime!(2026-11-21 12:00:00 UTC), random: [7; 21] };

    #[test]
    fn write_changes_only_its_subresource() {
        let old = new_object(
            &NODE,
            json!({"metadata": {"name": "n"}, "spec": {"unschedulable": true}, "status": {"phase": "a"}}),
            &FRESH,
        )
        .unwrap();
        let wanted =
            json!({"metadata": {"name": "n", "labels": {"l": "1"}}, "spec": {}, "status": {"phase": "b"}});
        let check = |part, spec: Value, phase: &str| {
            let new = merged_with_old(&NODE, part, &old, wanted.clone(), NOW).unwrap();
            assert_eq!((&new["spec"], &new["status"]["phase"]), (&spec, &json!(phase)));
            assert_eq!(new["metadata"]["labels"]["l"], "1");
            assert_eq!(new["metadata"]["uid"], old["metadata"]["uid"]);
        };
        check(Part::Main, json!({}), "a");
        assert_eq!(old["spec"]["unschedulable"], true);
        check(Part::Status, old["spec"].clone(), "b");
        check(Part::All, json!({}), "b");
    }

    /// A pod without a default that `prepare` will add at its next change.
    fn pod() -> Value {
        let spec = json!({"containers": [{"name": "c", "image": "i"}]});
        let mut pod =
            new_object(&POD, json!({"metadata": {"name": "p", "namespace": "d"}, "spec": spec}), &FRESH)
                .unwrap();
        pod["spec"].as_object_mut().unwrap().remove("tolerations");
        pod
    }

    #[test]
    fn status_write_prepares_nothing() {
        for (part, expect) in [(Part::Main, 2), (Part::Status, 0)] {
            let new = merged_with_old(&POD, part, &pod(), pod(), NOW).unwrap();
            let tolerations = new["spec"]["tolerations"].as_array().map_or(0, Vec::len);
            assert_eq!(tolerations, expect, "{part:?}");
        }
    }

    /// An older hub stored a pod with zeros; clients in Go leave them out.
    #[test]
    fn stored_zero_is_no_change_when_it_is_left_out() {
        let mut old = pod();
        (old["spec"]["hostNetwork"], old["spec"]["nodeName"]) = (false.into(), "".into());
        old["spec"]["terminationGracePeriodSeconds"] = (-1).into();
        let write = written(&POD, old, Owner::Nobody, |pod| {
            pod["metadata"]["labels"] = json!({"a": "1"});
            for field in ["hostNetwork", "nodeName"] {
                pod["spec"].as_object_mut().unwrap().remove(field);
            }
        });
        let new = write.new.unwrap();
        assert_eq!(new["metadata"]["labels"]["a"], "1");
        assert_eq!((new["spec"].get("hostNetwork"), new["spec"].get("nodeName")), (None, None));
        assert_eq!(new["spec"]["terminationGracePeriodSeconds"], 1);
    }

    #[test]
    fn binding_alone_sets_the_node_and_counts_no_generation() {
        let mut wanted = pod();
        wanted["spec"]["nodeName"] = json!("n");
        let bound = merged_with_old(&POD, Part::Binding, &pod(), wanted.clone(), NOW).unwrap();
        assert_eq!((&bound["spec"]["nodeName"], &bound["metadata"]["generation"]), (&json!("n"), &json!(1)));
        let refused = merged_with_old(&POD, Part::Main, &pod(), wanted, NOW).unwrap_err();
        assert_eq!(refused.code, 422);
        let mut wanted = pod();
        wanted["spec"]["containers"][0]["image"] = json!("j");
        let changed = merged_with_old(&POD, Part::Main, &pod(), wanted, NOW).unwrap();
        assert_eq!(changed["metadata"]["generation"], 2);
    }

    #[test]
    fn certificate_request_is_approved_and_reported_apart() {
        let condition = |sort: &str| json!({"type": sort, "status": "True", "reason": "x", "message": "y"});
        let request =
            |conditions: Value| json!({"metadata": {"name": "r"}, "status": {"conditions": conditions}});
        let both = request(json!([condition("Approved"), condition("Failed")]));
        let listed = |new: &Value| -> Vec<String> {
            let types = new["status"]["conditions"].as_array().unwrap().iter();
            types.map(|condition| text(condition, &["type"]).to_owned()).collect()
        };
        for (part, old, expect) in [
            (Part::Approval, request(json!([])), vec!["Approved", "Failed"]),
            (Part::Status, request(json!([])), vec!["Failed"]),
            (Part::Status, request(json!([condition("Denied")])), vec!["Denied", "Failed"]),
        ] {
            let new = merged_with_old(&CERTIFICATE_REQUEST, part, &old, both.clone(), NOW);
            let new = new.unwrap_or_else(|error| panic!("{part:?}: {error:?}"));
            assert_eq!(listed(&new), expect, "{part:?}");
        }
    }

    #[test]
    fn finalizing_changes_finalizers_and_metadata_only() {
        let of = |finalizer: &str, label: &str, phase: &str| json!({"metadata": {"name": "n", "labels": {"l": label}}, "spec": {"finalizers": [finalizer]}, "status": {"phase": phase}});
        let (old, wanted) = (of("kubernetes", "1", "Active"), of("x.dev/y", "2", "Terminating"));
        let new = merged_with_old(&NAMESPACE, Part::Finalize, &old, wanted, NOW).unwrap();
        assert_eq!(new["spec"]["finalizers"], json!(["x.dev/y"]));
        assert_eq!(
            (&new["metadata"]["labels"]["l"], &new["status"]["phase"]),
            (&json!("2"), &json!("Active"))
        );
    }

    /// The write for a change of a stored object.
    fn written(kind: &'static Kind, mut old: Value, owner: Owner<'_>, change: fn(&mut Value)) -> Write {
        (old["apiVersion"], old["kind"]) = (kind.api_version().into(), kind.kind.into());
        let name = text(&old, &["metadata", "name"]).to_owned();
        let namespace = text(&old, &["metadata", "namespace"]).to_owned();
        let (objects, place) = (stored(&[(kind, old)]), Place { kind, namespace: &namespace, name: &name });
        let options = WriteOptions { owner, ..WriteOptions::internal() };
        let compute = |_: &Object, mut value: Value| {
            change(&mut value);
            Ok(value)
        };
        match edit(&objects, &place, Part::Main, &options, &FRESH, compute) {
            Ok(Decision::Write(write, _)) => write,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn manager_is_noted_unless_it_renews() {
        let manager = Manager { name: "t".to_owned(), subresource: String::new() };
        let lease = |entry: Value| {
            json!({"metadata": {"namespace": "d", "name": "l", "managedFields": [entry]},
                "spec": {"holderIdentity": "a", "renewTime": "2026-11-21T00:00:00.000000Z"}})
        };
        let entry = json!({"manager": "t", "operation": "Update", "apiVersion": "coordination.k8s.io/v1",
            "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:holderIdentity": {}, "f:renewTime": {}}}});
        let time_after = |change: fn(&mut Value)| {
            let write = written(&LEASE, lease(entry.clone()), Owner::Updates(&manager), change);
            let entries = write.new.unwrap()["metadata"]["managedFields"].take();
            assert_eq!(entries[0]["manager"], "t", "{entries}");
            entries[0]["time"].as_str().unwrap().to_owned()
        };
        let renewed = time_after(|lease| lease["spec"]["renewTime"] = json!("2026-11-21T00:00:01.000000Z"));
        assert_eq!(renewed, "2026-01-01T00:00:00Z");
        assert_eq!(time_after(|lease| lease["spec"]["holderIdentity"] = json!("b")), NOW);
    }

    #[test]
    fn renewal_is_durable_if_it_ends_the_object() {
        let lease = || json!({"metadata": {"namespace": "d", "name": "l"}, "spec": {"renewTime": "2026-11-21T00:00:00.000000Z"}});
        let renew: fn(&mut Value) = |lease| lease["spec"]["renewTime"] = json!("2026-11-21T00:00:01.000000Z");
        assert!(written(&LEASE, lease(), Owner::Nobody, renew).volatile);
        assert!(
            !written(&LEASE, lease(), Owner::Nobody, |lease| lease["spec"]["holderIdentity"] = json!("b"))
                .volatile
        );
        // marked for deletion, and nothing holds it any more
        let mut ending = lease();
        ending["metadata"]["deletionTimestamp"] = json!(NOW);
        let write = written(&LEASE, ending, Owner::Nobody, renew);
        assert_eq!((write.new, write.volatile), (None, false));
    }

    /// The code of a refusal; 201 of a creation, 200 of a change.
    fn code(decision: Result<Decision, ApiError>) -> u16 {
        match decision {
            Ok(Decision::Write(_, pending)) if pending.created => 201,
            Ok(_) => 200,
            Err(error) => error.code,
        }
    }

    fn objects() -> Index<NoSink> {
        stored(&[
            (&NAMESPACE, json!({"metadata": {"name": "default"}})),
            (
                &CONFIG_MAP,
                json!({"metadata": {"namespace": "default", "name": "m", "uid": "u"}, "data": {"a": "1"}}),
            ),
        ])
    }

    #[test]
    fn replaced_object_is_the_one_that_was_meant() {
        let check = |kind: &'static Kind, name: &str, part: Part, meta: Value, expect: u16| {
            let place = Place { kind, namespace: "default", name };
            let (value, options) = (json!({"metadata": meta, "data": {"a": "2"}}), WriteOptions::internal());
            let found = code(update(&objects(), &place, part, value, &options, &FRESH));
            assert_eq!(found, expect, "{} {name} {meta}", kind.kind);
        };
        check(&CONFIG_MAP, "m", Part::Main, json!({"name": "m"}), 200);
        check(&CONFIG_MAP, "m", Part::Main, json!({"name": "n"}), 400);
        check(&CONFIG_MAP, "n", Part::Main, json!({"name": "n"}), 404);
        for (version, expect) in [("", 200), ("0", 200), ("1", 200), ("2", 409), ("x", 422)] {
            check(&CONFIG_MAP, "m", Part::Main, json!({"name": "m", "resourceVersion": version}), expect);
        }
        for (uid, expect) in [("", 200), ("u", 200), ("v", 409)] {
            check(&CONFIG_MAP, "m", Part::Main, json!({"name": "m", "uid": uid}), expect);
        }
        // a PUT creates a Lease, whatever version it names, but a PUT to a subresource does not
        check(&LEASE, "l", Part::Main, json!({"name": "l", "resourceVersion": "7"}), 201);
        check(&LEASE, "l", Part::Status, json!({"name": "l", "resourceVersion": "7"}), 404);
    }

    #[test]
    fn apply_creates_a_whole_object_for_a_manager_only() {
        let manager = Manager { name: "t".to_owned(), subresource: String::new() };
        let check = |name: &str, part: Part, uid: &str, owner: Owner<'_>, expect: u16| {
            let value = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"namespace": "default", "name": name, "uid": uid}, "data": {"a": "2"}});
            let applied = Apply::new(&CONFIG_MAP, value, manager.clone(), true).unwrap();
            let place = Place { kind: &CONFIG_MAP, namespace: "default", name };
            let options = WriteOptions { owner, ..WriteOptions::internal() };
            let found = code(apply(&objects(), &place, part, &applied, &options, &|_| Ok(()), &FRESH));
            assert_eq!(found, expect, "{name} {uid}");
        };
        check("m", Part::Main, "", Owner::Updates(&manager), 200);
        check("n", Part::Main, "", Owner::Updates(&manager), 201);
        check("n", Part::Main, "v", Owner::Updates(&manager), 409);
        check("n", Part::Status, "", Owner::Updates(&manager), 404);
        check("m", Part::Main, "", Owner::Nobody, 403);
        check("n", Part::Main, "", Owner::Nobody, 403);
    }

    /// A set of one container and one volume, with these fields.
    fn daemon_set(container: Value, volume: Value, strategy: Value) -> Value {
        let mut set = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"namespace": "default", "name": "s"},
            "spec": {"selector": {"matchLabels": {"a": "1"}}, "template": {"metadata": {"labels": {"a": "1"}},
                "spec": {"containers": [container]}}}});
        let spec = &mut set["spec"]["template"]["spec"];
        (spec["containers"][0]["name"], spec["containers"][0]["image"]) = ("c".into(), "i:1".into());
        for (part, name, value) in [("volumes", "v", volume), ("updateStrategy", "", strategy)] {
            match (value, name) {
                (Value::Null, _) => {}
                (value, "") => set["spec"][part] = value,
                (mut value, name) => {
                    value["name"] = name.into();
                    set["spec"]["template"]["spec"][part] = json!([value]);
                }
            }
        }
        set
    }

    /// The stored object after a manager applied to it.
    #[track_caller]
    fn applied_to(
        stored_set: Option<&Value>,
        manager: &str,
        force: bool,
        body: &Value,
    ) -> Result<Value, ApiError> {
        let mut objects = vec![(&NAMESPACE, json!({"metadata": {"name": "default"}}))];
        objects.extend(stored_set.map(|set| (&DAEMON_SET, set.clone())));
        let manager = Manager { name: manager.to_owned(), subresource: String::new() };
        let read = decode::applied(
            &DAEMON_SET,
            ("default", "s"),
            body.to_string().as_bytes(),
            FieldValidation::Strict,
        )?;
        let body = Apply::new(&DAEMON_SET, read.value, manager.clone(), force)?;
        let options = WriteOptions { owner: Owner::Updates(&manager), ..WriteOptions::internal() };
        let place = Place { kind: &DAEMON_SET, namespace: "default", name: "s" };
        match apply(&stored(&objects), &place, Part::Main, &body, &options, &|_| Ok(()), &FRESH)? {
            Decision::Write(write, _) => Ok(write.new.unwrap()),
            Decision::Answer(_) => Ok(stored_set.unwrap().clone()),
        }
    }

    #[test]
    fn manager_may_take_back_a_struct_with_defaults() {
        let probe = |handler: Value| json!({"livenessProbe": handler});
        let http = || probe(json!({"httpGet": {"port": 80}}));
        let none = Value::Null;
        let volume = |volume: Value| daemon_set(json!({}), volume, Value::Null);
        let strategy = |strategy: Value| daemon_set(json!({}), Value::Null, strategy);
        let container = |container: Value| daemon_set(container, Value::Null, Value::Null);
        for (first, then) in [
            (container(http()), container(json!({}))),
            (container(http()), container(probe(json!({"tcpSocket": {"port": 1}})))),
            (container(http()), container(probe(json!({"grpc": {"port": 1}})))),
            (volume(json!({"hostPath": {"path": "/x"}})), volume(json!({"emptyDir": {}}))),
            (volume(json!({"configMap": {"name": "c"}})), volume(json!({"secret": {"secretName": "c"}}))),
            (volume(json!({"configMap": {"name": "c"}})), volume(none)),
            (
                strategy(json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}})),
                strategy(json!({"type": "OnDelete"})),
            ),
        ] {
            let set = applied_to(None, "m", false, &first).unwrap();
            let set =
                applied_to(Some(&set), "m", false, &then).unwrap_or_else(|error| panic!("{then}: {error:?}"));
            let fresh = applied_to(None, "m", false, &then).unwrap();
            assert_eq!(set["spec"], fresh["spec"], "{then}");
            assert_eq!(set["metadata"]["managedFields"], fresh["metadata"]["managedFields"], "{then}");
        }
    }

    /// An older hub did not list a struct itself in the fields of a manager that updates.
    #[test]
    fn fields_of_others_are_kept_as_an_older_hub_noted_them() {
        let body = |container: Value| daemon_set(container, Value::Null, Value::Null);
        let mut set =
            applied_to(None, "m", false, &body(json!({"livenessProbe": {"httpGet": {"port": 80}}}))).unwrap();
        set["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpGet"]["host"] = "h".into();
        let fields = json!({"f:spec": {"f:template": {"f:spec": {"f:containers": {
            "k:{\"name\":\"c\"}": {"f:livenessProbe": {"f:httpGet": {"f:host": {}, "f:port": {}}}}}}}}});
        set["metadata"]["managedFields"]
            .as_array_mut()
            .unwrap()
            .push(json!({"manager": "edit", "operation": "Update",
            "apiVersion": "apps/v1", "time": NOW, "fieldsType": "FieldsV1", "fieldsV1": fields}));
        let left = applied_to(Some(&set), "m", false, &body(json!({}))).unwrap();
        let container = &left["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(
            container["livenessProbe"]["httpGet"],
            json!({"host": "h", "port": 80, "path": "/", "scheme": "HTTP"})
        );
        let mut nobody = set.clone();
        nobody["metadata"]["managedFields"].as_array_mut().unwrap().pop();
        let left = applied_to(Some(&nobody), "m", false, &body(json!({}))).unwrap();
        assert_eq!(left["spec"]["template"]["spec"]["containers"][0].get("livenessProbe"), None);
    }

    #[test]
    fn applied_zero_is_owned_and_takes_the_value_away() {
        let body = |host_network: bool| {
            let mut set = daemon_set(json!({}), Value::Null, Value::Null);
            set["spec"]["template"]["spec"]["hostNetwork"] = host_network.into();
            set
        };
        let set = applied_to(None, "m", false, &body(true)).unwrap();
        assert_eq!(applied_to(Some(&set), "n", false, &body(false)).unwrap_err().code, 409);
        let left = applied_to(Some(&set), "n", true, &body(false)).unwrap();
        assert_eq!(left["spec"]["template"]["spec"].get("hostNetwork"), None);
        let owners = left["metadata"]["managedFields"].to_string();
        assert_eq!(owners.matches("f:hostNetwork").count(), 1, "{owners}");
        assert_eq!(applied_to(Some(&left), "m", false, &body(true)).unwrap_err().code, 409);
    }

    /// Upstream, too, reports a conflict with other managers, and no change for the field's own manager.
    #[test]
    fn quantity_in_another_form_is_another_applied_value() {
        let body =
            |cpu: &str| daemon_set(json!({"resources": {"limits": {"cpu": cpu}}}), Value::Null, Value::Null);
        let set = applied_to(None, "m", false, &body("500m")).unwrap();
        let conflict = applied_to(Some(&set), "n", false, &body("0.5")).unwrap_err();
        assert!(conflict.message.contains("resources.limits.cpu"), "{}", conflict.message);
        let mut later = set.clone();
        later["metadata"]["managedFields"][0]["time"] = "2026-11-20T12:00:00Z".into();
        assert_eq!(applied_to(Some(&later), "m", false, &body("0.5")).unwrap(), later);
    }

    #[test]
    fn generation_counts_changes_of_what_is_wanted() {
        let old = json!({"metadata": {"generation": 3}, "spec": {"a": 1}, "status": {"b": 1}});
        let check = |kind: &'static Kind, path: &str, expect: u64| {
            let mut new = old.clone();
            *new.pointer_mut(path).unwrap() = 7.into();
            count_generation(kind, &old, &mut new);
            assert_eq!(new["metadata"]["generation"].as_u64(), Some(expect), "{path}");
        };
        check(&DAEMON_SET, "/spec/a", 4);
        check(&DAEMON_SET, "/status/b", 3);
        check(&CONFIG_MAP, "/spec/a", 3);
    }

    #[test]
    fn renewal_of_a_managed_object_leaves_its_managers() {
        let lease = |meta: Value, renewed: &str, holder: &str| json!({"metadata": meta, "spec": {"renewTime": renewed, "holderIdentity": holder}});
        for managed in [json!({}), json!({"managedFields": [{"manager": "x"}]})] {
            let old = lease(managed, "1", "a");
            assert!(is_renewal(&LEASE, &old, &lease(json!({}), "2", "a")), "{old}");
            assert!(!is_renewal(&LEASE, &old, &lease(json!({}), "2", "b")), "{old}");
        }
        assert!(!is_renewal(&NODE, &lease(json!({}), "1", "a"), &lease(json!({}), "2", "a")));
    }

    #[test]
    fn only_a_pure_renewal_is_volatile() {
        let lease = |renewed: &str, holder: &str| json!({"metadata": {"name": "n"}, "spec": {"renewTime": renewed, "holderIdentity": holder}});
        assert!(is_volatile(&LEASE, &lease("1", "a"), &lease("2", "a")));
        assert!(is_volatile(&LEASE, &json!({"spec": {}}), &json!({"spec": {"renewTime": "1"}})));
        assert!(!is_volatile(&LEASE, &lease("1", "a"), &lease("2", "b")));
        assert!(!is_volatile(&NODE, &json!({"spec": {"renewTime": 1}}), &json!({"spec": {"renewTime": 2}})));
    }

    /// Random values from words that mean something to patches and kinds; the seed is in the panic's message.
    struct Chaos(kedge_rig::Random);

    impl Chaos {
        fn next(&mut self, below: usize) -> usize {
            self.0.index(below)
        }

        fn word(&mut self) -> &'static str {
            const WORDS: &[&str] = &[
                "metadata",
                "name",
                "labels",
                "annotations",
                "finalizers",
                "ownerReferences",
                "uid",
                "spec",
                "status",
                "conditions",
                "type",
                "taints",
                "key",
                "effect",
                "configSource",
                "configMap",
                "configMapRef",
                "data",
                "binaryData",
                "immutable",
                "$patch",
                "$retainKeys",
                "$setElementOrder/conditions",
                "$setElementOrder/finalizers",
                "delete",
                "$deleteFromPrimitiveList/finalizers",
                "replace",
                "merge",
                "Ready",
                "addresses",
                "resourceVersion",
                "a",
                "leaseDurationSeconds",
                "renewTime",
                "creationTimestamp",
                "deletionTimestamp",
                "unschedulable",
                "",
                "2026-01-01T00:00:00Z",
            ];
            WORDS[self.next(WORDS.len())]
        }

        fn value(&mut self, depth: usize) -> Value {
            match self.next(if depth == 0 { 5 } else { 10 }) {
                0 => Value::Null,
                1 => (self.next(2) == 0).into(),
                2 => self.next(100).into(),
                3 | 4 => self.word().into(),
                5 | 6 => (0..self.next(4)).map(|_| self.value(depth - 1)).collect(),
                _ => Value::Object(
                    (0..self.next(5)).map(|_| (self.word().to_owned(), self.value(depth - 1))).collect(),
                ),
            }
        }

        fn pointer(&mut self) -> String {
            (0..self.next(4)).map(|_| format!("/{}", self.word().replace('/', "~1"))).collect()
        }

        fn json_patch(&mut self) -> Value {
            let operations = ["add", "remove", "replace", "move", "copy", "test", ""];
            (0..self.next(5))
                .map(|_| {
                    let operation = operations[self.next(operations.len())];
                    json!({"op": operation, "path": self.pointer(), "from": self.pointer(), "value": self.value(3)})
                })
                .collect()
        }
    }

    /// No patch panics or produces an object that breaks the rules of its kind.
    #[test]
    fn random_patches_keep_the_rules_of_the_kind() {
        use crate::patch;
        let mut accepted = 0;
        for seed in 1..4000_u64 {
            let mut chaos = Chaos(kedge_rig::Random::new(seed));
            let kind = KINDS[chaos.next(KINDS.len())];
            let namespace = if kind.namespaced { json!("default") } else { Value::Null };
            let mut first = json!({"metadata": {"name": "x", "namespace": namespace}});
            for part in ["spec", "status", "data"] {
                first[part] = chaos.value(5);
            }
            schema::conform(kind.schema(), &mut first);
            // the result may still break the schema; then it cannot be a stored object
            if schema::conform(kind.schema(), &mut first).wrong.is_some() {
                continue;
            }
            let Ok(old) = new_object(kind, first, &FRESH) else { continue };
            let mut wanted = old.clone();
            let applied = match chaos.next(3) {
                0 => patch::json::apply(&mut wanted, &chaos.json_patch()).is_ok(),
                1 => {
                    patch::merge::apply(&mut wanted, chaos.value(6));
                    true
                }
                _ => patch::strategic::apply(kind.schema(), &mut wanted, chaos.value(6)).is_ok(),
            };
            if !applied || schema::conform(kind.schema(), &mut wanted).wrong.is_some() {
                continue;
            }
            let part = [Part::Main, Part::Status, Part::All][chaos.next(3)];
            let Ok(new) = merged_with_old(kind, part, &old, wanted, NOW) else { continue };
            accepted += 1;
            assert_eq!(new["metadata"]["uid"], old["metadata"]["uid"], "seed {seed}");
            assert_eq!(new["metadata"]["name"], "x", "seed {seed}");
            let mut again = new.clone();
            let findings = schema::conform(kind.schema(), &mut again);
            assert!(findings.wrong.is_none() && findings.unknown.is_empty(), "seed {seed}: {findings:?}");
            assert_eq!(again, new, "seed {seed}");
            assert_eq!((kind.cells)(&new, time::OffsetDateTime::UNIX_EPOCH).len(), kind.columns.len());
            (kind.warnings)(&new, Some(&old));
            assert!(Object::new(kind, &new, 1).is_some(), "seed {seed}");
            marked_for_deletion(kind, &new, Propagation::Foreground, NOW);
        }
        assert!(accepted > 200, "only {accepted} patches were accepted: the test proves little");
    }
}
