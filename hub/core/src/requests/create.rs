//! New objects: uid, name and defaults, the namespaces that accept them, and the managers of their fields.

use kedge_api::excerpt;
use serde_json::{Map, Value};

use super::advice;
use super::allowance::{check_size, quota};
use super::delete::check_unchanged;
use super::objects::Objects;
use super::priority;
use super::runtime;
use super::service_account;
use super::types::{Answer, Decision, Fresh, Pending, Place};
use super::write_options::WriteOptions;
use crate::api_error::ApiError;
use crate::apply;
use crate::cost;
use crate::field_error::FieldErrors;
use crate::kinds::{Kind, NAMESPACE, NODE, meta, schema, service};
use crate::pod_security::{self, Remarks};
use crate::state::{Expect, Require, Write};
use crate::value::{at, text};

/// Longest base of a generated name.
const NAME_BASE_BYTES: usize = 58;
const NAME_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Random bytes of a UID; the rest of [`Fresh::random`] makes names.
const UID_BYTES: usize = 16;

/// A version 4 UUID.
pub fn uid(random: &[u8]) -> String {
    let mut bytes = [0_u8; UID_BYTES];
    bytes.copy_from_slice(&random[..UID_BYTES]);
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex = |range: std::ops::Range<usize>| {
        bytes[range].iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    [hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16)].join("-")
}

pub(super) fn generated_name(base: &str, random: &[u8]) -> String {
    let cut = base.char_indices().nth(NAME_BASE_BYTES).map_or(base, |(index, _)| &base[..index]);
    let letter = |byte: &u8| char::from(NAME_ALPHABET[usize::from(*byte) % NAME_ALPHABET.len()]);
    cut.chars().chain(random[UID_BYTES..].iter().map(letter)).collect()
}

pub(super) fn metadata(value: &mut Value) -> &mut Map<String, Value> {
    if !value["metadata"].is_object() {
        value["metadata"] = Value::Object(Map::new());
    }
    value["metadata"].as_object_mut().expect("it was made an object in the line before")
}

/// Sets the server's fields of a new object: uid, creation time, generation, defaults; then validates it.
pub fn new_object(kind: &'static Kind, mut value: Value, fresh: &Fresh) -> Result<Value, ApiError> {
    value["apiVersion"] = kind.api_version().into();
    value["kind"] = kind.kind.into();
    let meta = metadata(&mut value);
    for field in ["managedFields", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        meta.remove(field);
    }
    meta.remove("resourceVersion");
    meta.insert("uid".to_owned(), uid(&fresh.random).into());
    meta.insert("creationTimestamp".to_owned(), fresh.stamp().into());
    if kind.generation {
        meta.insert("generation".to_owned(), 1.into());
    }
    if kind.status
        && !kind.status_on_create
        && let Some(fields) = value.as_object_mut()
    {
        fields.remove("status");
    }
    kind.complete(&mut value);
    // a template that an older hub stored may have zeros that stand for a default
    schema::conform(kind.schema(), &mut value);
    (kind.prepare)(&mut value, None);
    let mut errors = FieldErrors::default();
    meta::validate(kind, &value, &mut errors);
    meta::validate_new(kind, &value, &mut errors);
    (kind.validate)(&value, None, &mut errors);
    if errors.is_empty() {
        return Ok(value);
    }
    Err(ApiError::invalid_fields(kind, text(&value, &["metadata", "name"]), &errors))
}

/// Whether the name is generated: then a taken name is worth another try.
pub fn wants_generated_name(value: &Value) -> bool {
    text(value, &["metadata", "name"]).is_empty() && !text(value, &["metadata", "generateName"]).is_empty()
}

/// Creates an object. `value` passed [`schema::conform`](crate::kinds::schema::conform); its namespace is the
/// request's.
pub fn create(
    objects: &dyn Objects,
    kind: &'static Kind,
    namespace: &str,
    value: Value,
    options: &WriteOptions<'_>,
    fresh: &Fresh,
) -> Result<Decision, ApiError> {
    let (value, remarks) = compose(objects, kind, namespace, value, options, fresh)?;
    let name = text(&value, &["metadata", "name"]);
    if let Some(existing) = objects.get(kind, namespace, name) {
        return Err(ApiError::already_exists(kind, name, existing.terminating));
    }
    check_unchanged(objects, &Place { kind, namespace, name }, options.requires)?;
    Ok(created(kind, value, remarks, options))
}

/// The object as it would be created, after all checks except whether its name is taken.
pub(super) fn compose(
    objects: &dyn Objects,
    kind: &'static Kind,
    namespace: &str,
    mut value: Value,
    options: &WriteOptions<'_>,
    fresh: &Fresh,
) -> Result<(Value, Remarks), ApiError> {
    cost::check_change(None, &value)?;
    (options.asked)(None, &value)?;
    set_namespace(kind, namespace, &mut value)?;
    if !text(&value, &["metadata", "resourceVersion"]).is_empty() {
        return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    if wants_generated_name(&value) {
        let name = generated_name(text(&value, &["metadata", "generateName"]), &fresh.random);
        metadata(&mut value).insert("name".to_owned(), name.into());
    }
    if service::is_own(kind, namespace, text(&value, &["metadata", "name"])) {
        return Err(ApiError::forbidden_object(kind, service::NAME, service::OWN));
    }
    let claim = apply::take_claim(&mut value);
    let given: Vec<bool> = kind.admitted.iter().map(|path| at(&value, path).is_some()).collect();
    priority::admit(objects, kind, &mut value)?;
    runtime::admit(objects, kind, &mut value)?;
    let mut value = new_object(kind, value, fresh)?;
    let before = set_by_nobody(kind, &value, &given);
    apply::track(kind, &before, &mut value, claim, options.owner, (false, &fresh.stamp()));
    check_namespace(objects, kind, namespace, text(&value, &["metadata", "name"]))?;
    priority::check_default(objects, kind, &value)?;
    service_account::admit(objects, kind, namespace, &mut value, fresh)?;
    let remarks = pod_security::judge(objects, kind, namespace, None, &value)?;
    (options.admit)(None, &value)?;
    if options.limited {
        check_size(kind, None, &value)?;
        check_owners(objects, kind, &value)?;
    }
    Ok((value, remarks))
}

/// Conditions for creating the object, besides its absence.
fn requires(kind: &'static Kind, value: &Value, options: &WriteOptions<'_>) -> Vec<Require> {
    let mut requires = options.requires.to_vec();
    if kind.namespaced {
        requires.push(Require::OpenNamespace);
    }
    if options.limited {
        requires.extend(quota(kind, value).map(Require::Quota));
        requires.extend(owning_nodes(value).map(|(name, uid)| Require::Alive {
            kind: &NODE,
            name: name.to_owned(),
            uid: uid.to_owned(),
        }));
    }
    requires
}

/// Name and UID of the Nodes that own the object: a node's Lease and mirror pods belong to its Node.
fn owning_nodes(value: &Value) -> impl Iterator<Item = (&str, &str)> {
    let owners = at(value, &["metadata", "ownerReferences"]).and_then(Value::as_array);
    let nodes = owners.into_iter().flatten().filter(|owner| owner["kind"] == NODE.kind);
    nodes.map(|owner| (text(owner, &["name"]), text(owner, &["uid"])))
}

/// Refuses a limited caller's object for a deleted Node: it would remain until the next sweep.
fn check_owners(objects: &dyn Objects, kind: &'static Kind, value: &Value) -> Result<(), ApiError> {
    for (name, uid) in owning_nodes(value) {
        let found = objects.get(&NODE, "", name);
        if found.as_ref().is_none_or(|found| *found.uid != *uid) {
            let why = match found {
                Some(found) => format!(
                    "its owner, Node {name:?} with uid {uid:?}, is gone: the Node has uid {:?}",
                    found.uid
                ),
                None => format!("its owner, Node {name:?} with uid {uid:?}, does not exist"),
            };
            return Err(ApiError::forbidden_object(kind, text(value, &["metadata", "name"]), &why));
        }
    }
    Ok(())
}

pub(super) fn created(
    kind: &'static Kind,
    value: Value,
    remarks: Remarks,
    options: &WriteOptions<'_>,
) -> Decision {
    let warnings = advice::warnings(kind, &value, None, options, remarks.warnings);
    let violation = remarks.audit;
    if options.dry_run {
        return Decision::Answer(Answer { created: true, warnings, violation, ..Answer::dry(value) });
    }
    let write = Write {
        kind,
        namespace: text(&value, &["metadata", "namespace"]).to_owned(),
        name: text(&value, &["metadata", "name"]).to_owned(),
        expect: Expect::Absent,
        requires: requires(kind, &value, options),
        new: Some(value),
        volatile: false,
        author: options.author.map(Box::from),
    };
    Decision::Write(write, Pending { created: true, deleted: false, warnings, violation })
}

/// Checks that name and namespace of the body match the request. An object without a name is refused. Texts
/// and order are upstream's.
pub fn check_place(of: &str, given: &str, asked: &str) -> Result<(), ApiError> {
    if given == asked {
        return Ok(());
    }
    let given = &*excerpt(given);
    Err(ApiError::bad_request(match (of, given) {
        ("namespace", _) => format!(
            "the namespace of the provided object does not match the namespace sent on the request ({given:?}, {asked:?})"
        ),
        (_, "") => {
            format!("the name of the object ({asked} based on URL) was undeterminable: name must be provided")
        }
        _ => format!("the name of the object ({given}) does not match the name on the URL ({asked})"),
    }))
}

/// Fields of a new object that the server sets, not the creator: those that every object has, a status that
/// the creator may not set, and those of admission, except the ones in `given`, which the creator had set.
fn set_by_nobody(kind: &Kind, new: &Value, given: &[bool]) -> Value {
    let mut before = Value::Object(Map::new());
    kind.complete(&mut before);
    if kind.status && !kind.status_on_create {
        before["status"] = new["status"].clone();
    }
    for (path, _) in kind.admitted.iter().zip(given).filter(|(_, given)| !**given) {
        if let (Some(value), [part, field]) = (at(new, path), path) {
            before[part][field] = value.clone();
        }
    }
    before
}

/// The namespace of the body must be that of the path, or absent. An object of the whole cluster loses it, as
/// upstream: many manifests from the internet give their ClusterRoles one.
pub(super) fn set_namespace(kind: &Kind, namespace: &str, value: &mut Value) -> Result<(), ApiError> {
    let meta = metadata(value);
    let given = meta.get("namespace").and_then(Value::as_str).unwrap_or("").to_owned();
    if !kind.namespaced {
        meta.remove("namespace");
        return Ok(());
    }
    if !given.is_empty() {
        check_place("namespace", &given, namespace)?;
    }
    meta.insert("namespace".to_owned(), namespace.into());
    Ok(())
}

/// Refuses to create an object in a missing or terminating namespace.
fn check_namespace(objects: &dyn Objects, kind: &Kind, namespace: &str, name: &str) -> Result<(), ApiError> {
    if !kind.namespaced {
        return Ok(());
    }
    match objects.get(&NAMESPACE, "", namespace) {
        None => Err(ApiError::not_found(&NAMESPACE, namespace)),
        Some(found) if found.terminating => {
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            Err(ApiError::forbidden_object(kind, name, &why))
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NoSink, stored};
    use super::*;
    use crate::decode::{self, FieldValidation};
    use crate::kinds::{CONFIG_MAP, LEASE, NODE, POD, SERVICE_ACCOUNT, pod};
    use crate::state::Index;
    use serde_json::json;

    const FRESH: Fresh = Fresh { now: time::macros::datetime!(2026-11-21 12:00:00 UTC), random: [7; 21] };

    #[test]
    fn new_object_gets_server_fields_and_no_claimed_ones() {
        let made = new_object(
            &NODE,
            json!({"metadata": {"name": "n", "uid": "mine", "generation": 7, "selfLink": "x",
                "managedFields": [{}], "creationTimestamp": "1970-01-01T00:00:00Z"}, "status": {"phase": "x"}}),
            &FRESH,
        )
        .unwrap();
        assert_eq!(made["kind"], "Node");
        assert_eq!(made["metadata"]["uid"], "07070707-0707-4707-8707-070707070707");
        assert_eq!(made["metadata"]["creationTimestamp"], "2026-11-21T12:00:00Z");
        assert_eq!(made["status"]["phase"], "x");
        for field in ["selfLink", "managedFields"] {
            assert!(made["metadata"].get(field).is_none(), "{field}");
        }
        // for a kind without a counted generation it is the writer's
        assert_eq!(made["metadata"]["generation"], 7);
        for (kind, generation) in [(&NODE, -1), (&CONFIG_MAP, -1)] {
            let wanted = json!({"metadata": {"name": "n", "namespace": "d", "generation": generation}});
            assert_eq!(new_object(kind, wanted, &FRESH).unwrap_err().code, 422);
        }
        let refused = new_object(&CONFIG_MAP, json!({"metadata": {"name": "A", "namespace": "d"}}), &FRESH)
            .unwrap_err();
        assert_eq!(refused.code, 422);
    }

    /// Explicit zeros as templates of charts write them.
    #[test]
    fn zero_of_json_is_stored_as_the_default() {
        let made = |spec: Value, container: Value| {
            let mut pod = json!({"metadata": {"name": "p"}, "spec": spec});
            pod["spec"]["serviceAccountName"] = "runs".into();
            pod["spec"]["containers"] = json!([container]);
            (pod["spec"]["containers"][0]["name"], pod["spec"]["containers"][0]["image"]) =
                ("c".into(), "i:1".into());
            let sort = "application/json";
            let read =
                decode::object(&POD, sort, pod.to_string().as_bytes(), FieldValidation::Strict).unwrap();
            let options = WriteOptions::internal();
            match create(&objects(), &POD, "default", read.value, &options, &FRESH) {
                Ok(Decision::Write(write, _)) => write.new.unwrap(),
                other => panic!("{other:?}"),
            }
        };
        let probe = |fields: Value| json!({"httpGet": fields, "initialDelaySeconds": 0, "periodSeconds": 0});
        let zeros = made(
            json!({"schedulerName": "", "restartPolicy": "", "dnsPolicy": "", "hostNetwork": false, "nodeName": "",
                "terminationGracePeriodSeconds": -1, "nodeSelector": {}, "securityContext": null}),
            json!({"imagePullPolicy": "", "terminationMessagePath": "", "terminationMessagePolicy": "", "stdin": false,
                "env": [{"name": "E", "value": ""}], "ports": [{"containerPort": 1, "hostPort": 0, "protocol": ""}],
                "livenessProbe": probe(json!({"path": "", "scheme": "", "host": "", "port": 1}))}),
        );
        let absent = made(
            json!({"terminationGracePeriodSeconds": 1}),
            json!({"env": [{"name": "E"}], "ports": [{"containerPort": 1}],
                "livenessProbe": {"httpGet": {"port": 1}}}),
        );
        assert_eq!(zeros, absent);
        let container = &absent["spec"]["containers"][0];
        assert_eq!(
            (&absent["spec"]["schedulerName"], &container["imagePullPolicy"]),
            (&json!("default-scheduler"), &json!("IfNotPresent"))
        );
    }

    /// The namespaces `default` and `ending`, the account `default/runs`, and the Node `a` with the uid `u`.
    fn objects() -> Index<NoSink> {
        stored(&[
            (&NAMESPACE, json!({"metadata": {"name": "default"}})),
            (
                &NAMESPACE,
                json!({"metadata": {"name": "ending", "deletionTimestamp": "2026-11-21T12:00:00Z"}}),
            ),
            (&SERVICE_ACCOUNT, json!({"metadata": {"namespace": "default", "name": "runs"}})),
            (&NODE, json!({"metadata": {"name": "a", "uid": "u"}})),
        ])
    }

    /// The error of a creation, empty if it is made.
    #[track_caller]
    fn check(kind: &'static Kind, namespace: &str, value: Value, limited: bool, expect: &str) {
        let options = WriteOptions { limited, ..WriteOptions::internal() };
        let made = create(&objects(), kind, namespace, value, &options, &FRESH);
        assert_eq!(made.map_or_else(|error| error.message, |_| String::new()), expect);
    }

    #[test]
    fn object_needs_an_open_namespace_of_its_own() {
        let map = |namespace: &str| json!({"metadata": {"name": "m", "namespace": namespace}});
        check(&CONFIG_MAP, "default", map("default"), false, "");
        check(&CONFIG_MAP, "default", map(""), false, "");
        check(&CONFIG_MAP, "missing", map(""), false, "namespaces \"missing\" not found");
        let ending = "configmaps \"m\" is forbidden: unable to create new content in namespace ending because it is being terminated";
        check(&CONFIG_MAP, "ending", map(""), false, ending);
        let other = "the namespace of the provided object does not match the namespace sent on the request (\"ending\", \"default\")";
        check(&CONFIG_MAP, "default", map("ending"), false, other);
        check(&NAMESPACE, "", json!({"metadata": {"name": "new"}}), false, "");
    }

    #[test]
    fn pod_needs_its_account_unless_it_is_a_mirror() {
        let pod = |account: &str, annotations: Value| {
            json!({"metadata": {"name": "p", "annotations": annotations},
                "spec": {"serviceAccountName": account, "containers": [{"name": "c", "image": "i"}]}})
        };
        check(&POD, "default", pod("runs", json!({})), false, "");
        let missing = "pods \"p\" is forbidden: error looking up service account default/x: serviceaccount \"x\" not found";
        check(&POD, "default", pod("x", json!({})), false, missing);
        let mut mirror = pod("", json!({pod::MIRROR_ANNOTATION: "x"}));
        mirror["spec"]["nodeName"] = "a".into();
        check(&POD, "default", mirror, false, "");
    }

    #[test]
    fn limited_caller_makes_nothing_for_a_node_that_is_gone() {
        let lease = |kind: &str, name: &str, uid: &str| {
            let owner = json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid});
            json!({"metadata": {"name": "l", "ownerReferences": [owner]}, "spec": {"holderIdentity": "a"}})
        };
        check(&LEASE, "default", lease("Node", "a", "u"), true, "");
        let forbidden = "leases.coordination.k8s.io \"l\" is forbidden: its owner, Node";
        let gone = format!("{forbidden} \"a\" with uid \"v\", is gone: the Node has uid \"u\"");
        check(&LEASE, "default", lease("Node", "a", "v"), true, &gone);
        let missing = format!("{forbidden} \"b\" with uid \"u\", does not exist");
        check(&LEASE, "default", lease("Node", "b", "u"), true, &missing);
        check(&LEASE, "default", lease("Pod", "b", "u"), true, "");
        check(&LEASE, "default", lease("Node", "b", "u"), false, "");
        let written = created(
            &LEASE,
            lease("Node", "a", "u"),
            Remarks::default(),
            &WriteOptions { limited: true, ..WriteOptions::internal() },
        );
        let Decision::Write(write, _) = written else { panic!("it is written") };
        let [Require::OpenNamespace, Require::Quota(_), Require::Alive { name, uid, .. }] =
            &write.requires[..]
        else {
            panic!("{:?}", write.requires)
        };
        assert_eq!((name.as_str(), uid.as_str()), ("a", "u"));
    }

    #[test]
    fn name_of_the_body_is_that_of_the_url() {
        let check = |given: &str, expect: &str| {
            let found = check_place("name", given, "n");
            assert_eq!(found.map_or_else(|error| error.message, |()| String::new()), expect);
        };
        check("n", "");
        check("m", "the name of the object (m) does not match the name on the URL (n)");
        check("", "the name of the object (n based on URL) was undeterminable: name must be provided");
    }

    #[test]
    fn name_is_generated_where_only_its_beginning_is_given() {
        for (name, base, expect) in [("", "x-", true), ("n", "x-", false), ("n", "", false), ("", "", false)]
        {
            let value = json!({"metadata": {"name": name, "generateName": base}});
            assert_eq!(wants_generated_name(&value), expect, "{value}");
        }
    }

    #[test]
    fn status_of_a_new_pod_is_nobodys_and_of_a_new_node_its_makers() {
        let new = json!({"status": {"phase": "x"}});
        assert_eq!(set_by_nobody(&POD, &new, &[])["status"], new["status"]);
        assert_ne!(set_by_nobody(&NODE, &new, &[])["status"], new["status"]);
        assert!(set_by_nobody(&CONFIG_MAP, &new, &[]).get("status").is_none());
    }

    #[test]
    fn field_that_its_maker_had_set_is_not_admissions() {
        let mut new = json!({});
        POD.admitted.iter().for_each(|path| new[path[0]][path[1]] = 7.into());
        for given in [true, false] {
            let before = set_by_nobody(&POD, &new, &vec![given; POD.admitted.len()]);
            for path in POD.admitted {
                assert_eq!(at(&before, path).is_some(), !given, "{path:?}");
            }
        }
    }

    #[test]
    fn generated_name_keeps_base_and_ends_in_random_letters() {
        let name = generated_name(&"a".repeat(100), &FRESH.random);
        assert_eq!(name.len(), 63);
        assert!(name.starts_with(&"a".repeat(58)));
        assert_ne!(generated_name("x-", &FRESH.random), generated_name("x-", &[8; 21]));
    }
}
