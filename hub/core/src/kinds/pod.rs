//! Pod: bound to a node by its creator, by a binding or by the scheduler, run and reported by that node.
//!
//! Deletion is graceful, as upstream: a bound pod gets a deletion time and stays until the node confirms (a
//! delete with a grace period of zero); an unbound, ended or mirror pod is deleted at once. After creation
//! only images, deadlines and added tolerations may change.

use std::collections::BTreeSet;

use kedge_api::pod_numbers::DEADLINE_SECS;
use kedge_api::{NODE_USER_PREFIX, NOT_READY_TAINT, UNREACHABLE_TAINT};
use serde_json::{Map, Value, json};

use super::kind::{Kind, Selectable};
use super::pod_spec::resources::amount;
use super::pod_spec::{self, Of, annotations, warnings};
use super::pod_status;
use super::priority_class::{self, PREEMPTION};
use super::rules;
use super::table::{Column, age, since};
use crate::field_error::{FieldError, FieldErrors};
use crate::identity;
use crate::quantity::Quantity;
use crate::value::{at, seconds, text};

/// Default seconds that a pod tolerates an unready or unreachable node; upstream's.
const TOLERATED_SECS: i64 = 300;

/// core/v1 Pod.
pub static POD: Kind = Kind {
    kind: "Pod",
    plural: "pods",
    singular: "pod",
    short_names: &["po"],
    categories: &["all"],
    status: true,
    generation: true,
    shows_deleted: true,
    type_name: "core/v1/Pod",
    selectable: &[
        Selectable { label: "spec.nodeName", value: |pod| text(pod, &["spec", "nodeName"]).to_owned() },
        Selectable {
            label: "spec.restartPolicy",
            value: |pod| text(pod, &["spec", "restartPolicy"]).to_owned(),
        },
        Selectable {
            label: "spec.schedulerName",
            value: |pod| text(pod, &["spec", "schedulerName"]).to_owned(),
        },
        Selectable {
            label: "spec.serviceAccountName",
            value: |pod| text(pod, &["spec", "serviceAccountName"]).to_owned(),
        },
        Selectable { label: "status.phase", value: |pod| text(pod, &["status", "phase"]).to_owned() },
        Selectable { label: "status.podIP", value: |pod| text(pod, &["status", "podIP"]).to_owned() },
        Selectable {
            label: "status.nominatedNodeName",
            value: |pod| text(pod, &["status", "nominatedNodeName"]).to_owned(),
        },
    ],
    indexed: &[NODE_NAME_FIELD, PHASE_FIELD],
    holder,
    refers: identity::references_of_pod,
    columns: &[
        Column::NAME,
        Column::text("Ready"),
        Column::text("Status"),
        Column::text("Restarts"),
        Column::AGE,
        Column::text("IP").wide(),
        Column::text("Node").wide(),
        Column::text("Nominated Node").wide(),
        Column::text("Readiness Gates").wide(),
    ],
    cells,
    prepare,
    convert,
    admitted: &[
        &["spec", "serviceAccountName"],
        &["spec", "serviceAccount"],
        &["spec", "priority"],
        &["spec", "priorityClassName"],
        &["spec", "preemptionPolicy"],
        &["spec", "tolerations"],
        &["spec", "overhead"],
    ],
    validate,
    warnings,
    ..Kind::USUAL
};

/// Address and addresses mean the same, as in upstream's conversions: if they differ, the single address
/// counts. So do both names of the account.
fn convert(pod: &mut Value) {
    if let Some(spec) = pod.get_mut("spec") {
        pod_spec::convert(spec);
    }
    let of_item = |one: &Value| text(one, &["ip"]).to_owned();
    super::mirror_first(pod, "status", "podIP", "podIPs", |ip| json!({"ip": ip}), of_item);
}

/// Position of `spec.nodeName` among the selectable fields, which relates pods to nodes.
pub const NODE_NAME_FIELD: usize = 0;
/// Position of `spec.schedulerName`.
pub const SCHEDULER_FIELD: usize = 2;
/// Position of `status.phase`.
pub const PHASE_FIELD: usize = 4;

/// A mirror pod is charged to the node that made it.
fn holder(pod: &Value) -> Option<String> {
    is_mirror(pod).then(|| format!("{NODE_USER_PREFIX}{}", text(pod, &["spec", "nodeName"])))
}

fn items<'a>(pod: &'a Value, path: &[&str]) -> &'a [Value] {
    at(pod, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn cells(pod: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    let sidecars = items(pod, &["spec", "initContainers"]);
    let sidecars = sidecars.iter().filter(|container| container["restartPolicy"] == "Always").count();
    let wanted = items(pod, &["spec", "containers"]).len() + sidecars;
    let ready = ready_count(pod);
    let or_none = |value: &str| if value.is_empty() { "<none>".to_owned() } else { value.to_owned() };
    vec![
        text(pod, &["metadata", "name"]).into(),
        format!("{ready}/{wanted}").into(),
        status_shown(pod).into(),
        restarts_shown(pod, now).into(),
        age(pod, now),
        or_none(text(pod, &["status", "podIP"])).into(),
        or_none(text(pod, &["spec", "nodeName"])).into(),
        or_none(text(pod, &["status", "nominatedNodeName"])).into(),
        gates_shown(pod).into(),
    ]
}

/// Ready containers: sidecars as they start, the others once the pod is initialized.
fn ready_count(pod: &Value) -> usize {
    let ready = |status: &&Value| status["ready"] == true;
    let names = sidecars(pod);
    let started = |status: &&Value| status["started"] == true && names.contains(text(status, &["name"]));
    let sidecars =
        items(pod, &["status", "initContainerStatuses"]).iter().filter(started).filter(ready).count();
    if init_shown(pod).is_some() {
        return sidecars;
    }
    let running = |status: &&Value| status["state"].get("running").is_some();
    sidecars + items(pod, &["status", "containerStatuses"]).iter().filter(ready).filter(running).count()
}

/// Restarts of running containers: of init containers until all are done, then of sidecars and the others.
fn restarts_shown(pod: &Value, now: time::OffsetDateTime) -> String {
    let init = items(pod, &["status", "initContainerStatuses"]);
    let (others, only_sidecars) = match init_shown(pod) {
        Some(_) => (&[][..], false),
        None => (items(pod, &["status", "containerStatuses"]), true),
    };
    let sidecars = sidecars(pod);
    let counts = |status: &&Value| !only_sidecars || sidecars.contains(text(status, &["name"]));
    let all = || init.iter().filter(counts).chain(others);
    let count: i64 = all().filter_map(|status| status["restartCount"].as_i64()).sum();
    let last =
        all().map(|status| text(status, &["lastState", "terminated", "finishedAt"])).max().unwrap_or("");
    if count == 0 || last.is_empty() {
        count.to_string()
    } else {
        format!("{count} ({} ago)", since(last, now))
    }
}

fn gates_shown(pod: &Value) -> String {
    let gates = items(pod, &["spec", "readinessGates"]);
    let conditions = items(pod, &["status", "conditions"]).iter();
    let met: BTreeSet<&str> = conditions
        .filter(|condition| condition["status"] == "True")
        .map(|condition| text(condition, &["type"]))
        .collect();
    match gates.len() {
        0 => "<none>".to_owned(),
        all => {
            let met = gates.iter().filter(|gate| met.contains(text(gate, &["conditionType"])));
            format!("{}/{all}", met.count())
        }
    }
}

/// The status column of `kubectl get pods`, computed as upstream does.
fn status_shown(pod: &Value) -> String {
    let mut shown = match text(pod, &["status", "reason"]) {
        "" => text(pod, &["status", "phase"]).to_owned(),
        reason => reason.to_owned(),
    };
    let gated =
        |condition: &Value| condition["type"] == "PodScheduled" && condition["reason"] == "SchedulingGated";
    if items(pod, &["status", "conditions"]).iter().any(gated) {
        "SchedulingGated".clone_into(&mut shown);
    }
    let initializing = init_shown(pod);
    if let Some(word) = &initializing {
        shown.clone_from(word);
    } else {
        let mut running = false;
        // in reverse, so that the first container with something to show wins
        for status in items(pod, &["status", "containerStatuses"]).iter().rev() {
            let state = &status["state"];
            let waiting = text(state, &["waiting", "reason"]);
            if !waiting.is_empty() {
                waiting.clone_into(&mut shown);
            } else if let Some(ended) = state.get("terminated") {
                shown = ended_shown(ended);
            } else if status["ready"] == true && state.get("running").is_some() {
                running = true;
            }
        }
        if shown == "Completed" && running {
            let ready = items(pod, &["status", "conditions"])
                .iter()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
            shown = if ready { "Running" } else { "NotReady" }.to_owned();
        }
    }
    let ended = matches!(text(pod, &["status", "phase"]), "Succeeded" | "Failed");
    if text(pod, &["metadata", "deletionTimestamp"]).is_empty() {
        return shown;
    }
    match text(pod, &["status", "reason"]) {
        "NodeLost" => "Unknown".to_owned(),
        _ if ended => shown,
        _ => "Terminating".to_owned(),
    }
}

fn ended_shown(ended: &Value) -> String {
    match (text(ended, &["reason"]), ended["signal"].as_i64().unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", ended["exitCode"].as_i64().unwrap_or(0)),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// The status while init containers run.
fn init_shown(pod: &Value) -> Option<String> {
    let statuses = items(pod, &["status", "initContainerStatuses"]);
    let containers = items(pod, &["spec", "initContainers"]);
    let all = containers.len();
    let sidecars = sidecars(pod);
    for (index, status) in statuses.iter().enumerate() {
        let state = &status["state"];
        match state.get("terminated") {
            Some(ended) if ended["exitCode"] == 0 => continue,
            Some(ended) => return Some(format!("Init:{}", ended_shown(ended))),
            None if status["started"] == true && sidecars.contains(text(status, &["name"])) => continue,
            None => {}
        }
        return Some(match text(state, &["waiting", "reason"]) {
            "" | "PodInitializing" => format!("Init:{index}/{all}"),
            reason => format!("Init:{reason}"),
        });
    }
    None
}

/// The names of init containers that keep running.
fn sidecars(pod: &Value) -> BTreeSet<&str> {
    let containers = items(pod, &["spec", "initContainers"]).iter();
    let is_sidecar = |container: &&Value| container["restartPolicy"] == "Always";
    containers.filter(is_sidecar).map(|container| text(container, &["name"])).collect()
}

fn prepare(new: &mut Value, old: Option<&Value>) {
    if let Some(spec) = new.get_mut("spec") {
        pod_spec::set_defaults(spec, Of::Pod);
    }
    let mirror = is_mirror(new);
    if let Some(Value::Object(spec)) = new.get_mut("spec") {
        if old.is_none() {
            set_at_creation(spec, mirror);
        }
        tolerate_lost_node(spec);
    }
    if old.is_none() {
        let class = quality_of_service(&new["spec"]);
        new["status"] = json!({"phase": "Pending", "qosClass": class});
    }
}

/// The annotation of a mirror pod, which represents one of a node's own manifests.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Whether a pod is a mirror pod.
pub fn is_mirror(pod: &Value) -> bool {
    at(pod, &["metadata", "annotations", MIRROR_ANNOTATION]).is_some()
}

/// Sets the fields that upstream's admission sets: service account name (a mirror pod has none), priority,
/// tolerations of a lost node.
fn set_at_creation(spec: &mut Map<String, Value>, mirror: bool) {
    for field in ["serviceAccountName", "serviceAccount"].into_iter().filter(|_| !mirror) {
        let entry = spec.entry(field).or_insert("".into());
        if entry == "" {
            *entry = "default".into();
        }
    }
    // those of a class are there: `requests::priority` set them
    let class = spec.get("priorityClassName").and_then(Value::as_str).unwrap_or("");
    let priority = priority_class::of_system(class).unwrap_or(0);
    spec.entry("priority").or_insert(priority.into());
    spec.entry("preemptionPolicy").or_insert(PREEMPTION.into());
}

/// Tolerations of a lost node, which upstream's admission adds to new and to changed pods: a patch that sets
/// other ones keeps them.
fn tolerate_lost_node(spec: &mut Map<String, Value>) {
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    for key in [NOT_READY_TAINT, UNREACHABLE_TAINT] {
        let Some(list) = tolerations.as_array_mut() else { continue };
        let covers = |toleration: &Value| {
            matches!(text(toleration, &["key"]), found if found.is_empty() || found == key)
                && matches!(text(toleration, &["effect"]), "" | "NoExecute")
        };
        if !list.iter().any(covers) {
            list.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATED_SECS}));
        }
    }
}

/// Upstream's quality of service class, from cpu and memory of all containers.
fn quality_of_service(spec: &Value) -> &'static str {
    let containers =
        || ["containers", "initContainers"].into_iter().flat_map(|list| items(spec, &[list]).iter());
    let named = |container: &Value, part: &str, name: &str| {
        amount(container, part, name).filter(|amount| *amount > Quantity::ZERO)
    };
    let resources = ["cpu", "memory"];
    let asks = |container: &Value| {
        resources.iter().any(|name| {
            named(container, "requests", name).is_some() || named(container, "limits", name).is_some()
        })
    };
    if !containers().any(asks) {
        return "BestEffort";
    }
    let guaranteed = |container: &Value| {
        resources.iter().all(|name| {
            let limit = named(container, "limits", name);
            limit.is_some() && named(container, "requests", name) == limit
        })
    };
    if containers().all(guaranteed) { "Guaranteed" } else { "Burstable" }
}

/// A mirror pod, which a node made of its own manifest, has no reader.
fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    if is_mirror(new) {
        return Vec::new();
    }
    let name = warnings::of_name(text(new, &["metadata", "name"])).filter(|_| old.is_none());
    name.into_iter().chain(warnings::of_change(new, old, "")).collect()
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
    let Some(old) = old else {
        let (meta, spec) = (&new["metadata"], &new["spec"]);
        annotations::validate(meta, spec, |_| true, ANNOTATIONS, errors);
        pod_spec::validate(spec, Of::Pod, "spec", errors);
        if !text(spec, &["nodeName"]).is_empty() && !items(spec, &["schedulingGates"]).is_empty() {
            let why = "cannot be set until all schedulingGates have been cleared";
            errors.push(FieldError::forbidden("spec.nodeName", why));
        }
        return annotations::validate_agreement(meta, spec, "spec", errors);
    };
    validate_annotations(new, old, errors);
    validate_changes(&old["spec"], &new["spec"], errors);
    pod_status::validate(new, old, errors);
}

const ANNOTATIONS: &str = "metadata.annotations";

/// A mirror pod stays one, and another pod cannot become one: the annotation decides to whom the pod is
/// charged. Nor does the profile of a container change, which it gets when it starts. Other annotations are
/// judged only where they change: an older hub accepted them as they are.
fn validate_annotations(new: &Value, old: &Value, errors: &mut FieldErrors) {
    let value = |pod: &Value, key: &str| at(pod, &["metadata", "annotations", key]).cloned();
    let fixed = |key: &str| match key {
        MIRROR_ANNOTATION => Some("mirror pod annotation"),
        _ => key.starts_with(annotations::APP_ARMOR).then_some("AppArmor annotations"),
    };
    for (part, act) in [(old, "remove or update"), (new, "add")] {
        for (key, _) in rules::entries(&part["metadata"], "annotations") {
            let (was, is) = (value(old, key), value(new, key));
            let happened = if act == "add" { was.is_none() } else { was != is };
            if let Some(called) = fixed(key).filter(|_| happened) {
                let why = format!("may not {act} {called}");
                errors.push(FieldError::forbidden(format!("{ANNOTATIONS}[{key}]"), &why));
            }
        }
    }
    let changes = |key: &str| value(old, key) != value(new, key);
    annotations::validate(&new["metadata"], &new["spec"], changes, ANNOTATIONS, errors);
}

/// Upstream's short error for cases where the long one below would hide the mistake.
const SAME_CONTAINERS: &str = "pod updates may not add or remove containers";
const MAY_CHANGE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

fn validate_changes(old: &Value, new: &Value, errors: &mut FieldErrors) {
    for list in ["containers", "initContainers"] {
        if items(old, &[list]).len() != items(new, &[list]).len() {
            return errors.push(FieldError::forbidden(format!("spec.{list}"), SAME_CONTAINERS));
        }
    }
    for list in ["containers", "initContainers"] {
        for (index, container) in items(new, &[list]).iter().enumerate() {
            let path = format!("spec.{list}[{index}]");
            rules::required(container, "image", &path, errors);
            pod_spec::validate_image(text(container, &["image"]), &path, errors);
        }
    }
    validate_deadline(old, new, errors);
    if items(old, &["tolerations"]) != items(new, &["tolerations"]) {
        pod_spec::scheduling::validate_tolerations(new, "spec", errors);
    }
    validate_gates(old, new, errors);
    // additions only: without one of its tolerations the pod could be evicted
    let all_but_seconds = |spec| {
        let tolerations = items(spec, &["tolerations"]).iter();
        let of = |one| ["key", "operator", "value", "effect"].map(|field| text(one, &[field]));
        tolerations.map(of).collect::<BTreeSet<_>>()
    };
    if !all_but_seconds(old).is_subset(&all_but_seconds(new)) {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden("spec.tolerations", why));
    }
    if fixed_part(old) != fixed_part(new) {
        errors.push(FieldError::forbidden("spec", MAY_CHANGE));
    }
}

/// A deadline may be set, and be made shorter.
fn validate_deadline(old: &Value, new: &Value, errors: &mut FieldErrors) {
    let field = "activeDeadlineSeconds";
    let path = format!("spec.{field}");
    match (old[field].as_i64(), new[field].as_i64()) {
        (was, is) if was == is => {}
        (_, None) => {
            let why = "must not update from a positive integer to nil value";
            errors.push(FieldError::invalid(path, Value::Null, why));
        }
        (was, Some(is)) => {
            // as that of any pod, and as a change
            let range = 0..=i32::MAX.into();
            for range in [DEADLINE_SECS, range.clone()] {
                rules::between(&new[field], range, &path, errors);
            }
            if range.contains(&is) && was.is_some_and(|was| was < is) {
                errors.push(FieldError::invalid(path, is, "must be less than or equal to previous value"));
            }
        }
    }
}

/// Gates keep a pod from being scheduled until all are removed; none can be added later.
fn validate_gates(old: &Value, new: &Value, errors: &mut FieldErrors) {
    let known = items(old, &["schedulingGates"]).iter();
    let known: BTreeSet<&str> = known.map(|gate| text(gate, &["name"])).collect();
    for (index, gate) in items(new, &["schedulingGates"]).iter().enumerate() {
        let name = text(gate, &["name"]);
        if !known.contains(name) {
            let why = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            errors.push(FieldError::forbidden(format!("spec.schedulingGates[{index}].name"), &why));
        }
    }
}

/// The spec without its mutable fields.
fn fixed_part(spec: &Value) -> Value {
    let mut spec = spec.clone();
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
            container.remove("image");
        }
    }
    if let Some(fields) = spec.as_object_mut() {
        for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
            fields.remove(field);
        }
        // a negative one, which an older hub stored, means 1
        if let Some(grace) = fields.get_mut("terminationGracePeriodSeconds")
            && grace.as_i64().is_some_and(|secs| secs < 0)
        {
            *grace = 1.into();
        }
    }
    spec
}

/// Binds a pod to a node (`POST .../binding`), with the annotations and labels of the binding. The error is
/// upstream's text, for a conflict.
pub fn bind(pod: &mut Value, binding: &Value, now: &str) -> Result<(), String> {
    let node = text(binding, &["target", "name"]);
    let name = text(pod, &["metadata", "name"]).to_owned();
    if !text(pod, &["metadata", "deletionTimestamp"]).is_empty() {
        return Err(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    match text(pod, &["spec", "nodeName"]) {
        "" => {}
        taken => return Err(format!("pod {name} is already assigned to node {taken:?}")),
    }
    if !items(pod, &["spec", "schedulingGates"]).is_empty() {
        return Err(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    pod["spec"]["nodeName"] = node.into();
    for part in ["annotations", "labels"] {
        let given = at(binding, &["metadata", part]).and_then(Value::as_object);
        for (key, value) in given.into_iter().flatten() {
            pod["metadata"][part][key] = value.clone();
        }
    }
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now});
    match pod["status"]["conditions"].as_array_mut() {
        Some(conditions) => {
            conditions.retain(|known| known["type"] != "PodScheduled");
            conditions.push(condition);
        }
        None => pod["status"]["conditions"] = json!([condition]),
    }
    Ok(())
}

/// The grace period of a deletion that asked for `asked` seconds, by upstream's rules, except that a pod
/// whose own period is zero gets a second: a node takes that long anyhow, and until it confirms the end no
/// other pod may replace this one, such as the next one of a DaemonSet. A client that wants it removed from
/// the API at once asks for zero. A mirror pod has none: deleting it ends no containers, and a namespace must
/// not wait for a node to confirm the end.
fn grace_secs(pod: &Value, asked: Option<i64>) -> i64 {
    let ended = matches!(text(pod, &["status", "phase"]), "Succeeded" | "Failed");
    if ended || is_mirror(pod) || text(pod, &["spec", "nodeName"]).is_empty() {
        return 0;
    }
    let own = pod["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(0).max(1);
    match asked.unwrap_or(own) {
        secs if secs < 0 => 1,
        secs => secs,
    }
}

/// Sets the grace period of a pod that was just marked for deletion (`marked`). It can only become shorter.
pub fn with_grace(old: &Value, marked: Value, asked: Option<i64>, now: time::OffsetDateTime) -> Value {
    let mut marked = marked;
    let mut secs = grace_secs(old, asked);
    let mut base = now;
    let was_marked = super::schema::parse_time(text(old, &["metadata", "deletionTimestamp"]));
    if let Some(until) = was_marked {
        let given = old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        // a further deletion without a grace period keeps the current one
        secs = if asked.is_none() && secs != 0 { given } else { secs.min(given) };
        base = until.saturating_sub(seconds(given));
    }
    let until = base.saturating_add(seconds(secs));
    let until = until.replace_nanosecond(0).unwrap_or(until);
    if let Ok(stamp) = until.format(&time::format_description::well_known::Rfc3339) {
        marked["metadata"]["deletionTimestamp"] = stamp.into();
    }
    marked["metadata"]["deletionGracePeriodSeconds"] = secs.into();
    marked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Value {
        let mut pod =
            json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
        prepare(&mut pod, None);
        change(&mut pod);
        pod
    }

    fn check(new: &Value, old: Option<&Value>, expect: &[&str]) {
        let mut errors = FieldErrors::default();
        validate(new, old, &mut errors);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn new_pod_is_pending_and_has_admissions_fields() {
        let made = pod(|_| {});
        assert_eq!(made["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
        assert_eq!(made["spec"]["serviceAccountName"], "default");
        assert_eq!(made["spec"]["tolerations"].as_array().map(Vec::len), Some(2));
        check(&made, None, &[]);
        let quality = |resources: Value| {
            quality_of_service(&json!({"containers": [{"name": "c", "resources": resources}]}))
        };
        let both = json!({"cpu": "1", "memory": "1Gi"});
        assert_eq!(
            quality(json!({"limits": both, "requests": {"cpu": "1000m", "memory": "1Gi"}})),
            "Guaranteed"
        );
        assert_eq!(quality(json!({"requests": both})), "Burstable");
        assert_eq!(quality(json!({"limits": {"nvidia.com/gpu": "1"}})), "BestEffort");
    }

    #[test]
    fn only_images_deadlines_and_more_tolerations_may_change() {
        let old = pod(|_| {});
        let case = |change: fn(&mut Value), expect: &[&str]| check(&pod(change), Some(&old), expect);
        case(|_| {}, &[]);
        case(|pod| pod["spec"]["containers"][0]["image"] = "i:2".into(), &[]);
        case(|pod| pod["spec"]["activeDeadlineSeconds"] = 5.into(), &[]);
        case(
            |pod| pod["spec"]["tolerations"].as_array_mut().unwrap().push(json!({"operator": "Exists"})),
            &[],
        );
        case(
            |pod| pod["spec"]["tolerations"] = json!([]),
            &[
                "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds",
            ],
        );
        let fixed = format!("spec: Forbidden: {MAY_CHANGE}");
        case(|pod| pod["spec"]["containers"][0]["command"] = json!(["x"]), &[&fixed]);
        case(|pod| pod["spec"]["hostNetwork"] = true.into(), &[&fixed]);
        let bound = pod(|pod| pod["spec"]["nodeName"] = "a".into());
        check(&pod(|pod| pod["spec"]["nodeName"] = "b".into()), Some(&bound), &[&fixed]);
    }

    #[test]
    fn deadline_may_be_set_and_become_shorter() {
        let path = "spec.activeDeadlineSeconds: Invalid value:";
        let of = |secs: Option<i64>| {
            pod(|pod| {
                if let Some(secs) = secs {
                    pod["spec"]["activeDeadlineSeconds"] = secs.into();
                }
            })
        };
        let positive = "must be between 1 and 2147483647, inclusive";
        let not_negative = "must be between 0 and 2147483647, inclusive";
        for (was, is, expect) in [
            (None, Some(5), vec![]),
            (Some(5), Some(4), vec![]),
            (Some(5), Some(5), vec![]),
            // of an older hub
            (Some(0), Some(0), vec![]),
            (Some(5), Some(6), vec![format!("{path} 6: must be less than or equal to previous value")]),
            (
                Some(5),
                None,
                vec![format!("{path} null: must not update from a positive integer to nil value")],
            ),
            (Some(5), Some(0), vec![format!("{path} 0: {positive}")]),
            (None, Some(-1), vec![format!("{path} -1: {positive}"), format!("{path} -1: {not_negative}")]),
            (
                Some(5),
                Some(i64::MAX),
                vec![
                    format!("{path} {}: {positive}", i64::MAX),
                    format!("{path} {}: {not_negative}", i64::MAX),
                ],
            ),
        ] {
            let expect: Vec<&str> = expect.iter().map(String::as_str).collect();
            check(&of(is), Some(&of(was)), &expect);
        }
    }

    #[test]
    fn annotations_of_pods_are_judged_where_they_change() {
        let armor = "container.apparmor.security.beta.kubernetes.io/c";
        let with = |key: &str, value: &str| pod(|pod| pod["metadata"]["annotations"][key] = value.into());
        let plain = pod(|_| {});
        let mirror = "metadata.annotations[kubernetes.io/config.mirror]";
        let unbound =
            format!("{mirror}: Invalid value: \"x\": must set spec.nodeName if mirror pod annotation is set");
        check(&with(MIRROR_ANNOTATION, "x"), None, &[&unbound]);
        let added = format!("{mirror}: Forbidden: may not add mirror pod annotation");
        check(&with(MIRROR_ANNOTATION, "x"), Some(&plain), &[&added, &unbound]);
        let removed = format!("{mirror}: Forbidden: may not remove or update mirror pod annotation");
        check(&plain, Some(&with(MIRROR_ANNOTATION, "x")), &[&removed]);
        let is = |act: &str| {
            format!("metadata.annotations[{armor}]: Forbidden: may not {act} AppArmor annotations")
        };
        check(&with(armor, "unconfined"), Some(&plain), &[&is("add")]);
        check(&with(armor, "unconfined"), Some(&with(armor, "runtime/default")), &[&is("remove or update")]);
        check(&plain, Some(&with(armor, "unconfined")), &[&is("remove or update")]);
        // an older hub took it
        check(&with(armor, "odd"), Some(&with(armor, "odd")), &[]);
        let seccomp = "seccomp.security.alpha.kubernetes.io/pod";
        let why = format!(
            "metadata.annotations.{seccomp}: Invalid value: \"odd\": must be a valid seccomp profile"
        );
        check(&with(seccomp, "odd"), None, &[&why]);
        check(&with(seccomp, "odd"), Some(&plain), &[&why]);
        check(&with(seccomp, "odd"), Some(&with(seccomp, "odd")), &[]);
    }

    #[test]
    fn gated_pod_has_no_node() {
        let gated = pod(|pod| {
            pod["spec"]["schedulingGates"] = json!([{"name": "example.com/g"}]);
            pod["spec"]["nodeName"] = "n".into();
        });
        let why = "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared";
        check(&gated, None, &[why]);
    }

    #[test]
    fn a_pod_is_bound_once() {
        let to = |node: &str| json!({"metadata": {"name": "p"}, "target": {"name": node}});
        let mut bound = pod(|_| {});
        bind(&mut bound, &to("n"), "2026-01-01T00:00:00Z").unwrap();
        assert_eq!(bound["spec"]["nodeName"], "n");
        assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
        assert_eq!(
            bind(&mut bound, &to("m"), "2026-01-01T00:00:00Z").unwrap_err(),
            "pod p is already assigned to node \"n\""
        );
    }

    #[test]
    fn grace_period_defaults_to_the_pods_and_only_shrinks() {
        let now = super::super::schema::parse_time("2026-01-01T00:00:00Z").unwrap();
        let bound = pod(|pod| pod["spec"]["nodeName"] = "n".into());
        let check = |old: &Value, asked: Option<i64>, secs: i64, until: &str| {
            let marked = with_grace(old, old.clone(), asked, now);
            assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], secs);
            assert_eq!(marked["metadata"]["deletionTimestamp"], until);
            marked
        };
        check(&pod(|_| {}), None, 0, "2026-01-01T00:00:00Z");
        check(&bound, Some(0), 0, "2026-01-01T00:00:00Z");
        check(&bound, Some(-3), 1, "2026-01-01T00:00:01Z");
        // its node confirms its end
        let hasty = pod(|pod| {
            (pod["spec"]["nodeName"], pod["spec"]["terminationGracePeriodSeconds"]) = ("n".into(), 0.into());
        });
        check(&hasty, None, 1, "2026-01-01T00:00:01Z");
        check(&hasty, Some(0), 0, "2026-01-01T00:00:00Z");
        let marked = check(&bound, None, 30, "2026-01-01T00:00:30Z");
        check(&marked, None, 30, "2026-01-01T00:00:30Z");
        check(&marked, Some(60), 30, "2026-01-01T00:00:30Z");
        check(&marked, Some(5), 5, "2026-01-01T00:00:05Z");
        check(&marked, Some(0), 0, "2026-01-01T00:00:00Z");
        let ended = pod(|pod| {
            pod["spec"]["nodeName"] = "n".into();
            pod["status"]["phase"] = "Failed".into();
        });
        check(&ended, None, 0, "2026-01-01T00:00:00Z");
        let mirror = pod(|pod| {
            pod["spec"]["nodeName"] = "n".into();
            pod["metadata"]["annotations"][MIRROR_ANNOTATION] = "x".into();
        });
        check(&mirror, Some(60), 0, "2026-01-01T00:00:00Z");
    }

    #[test]
    fn sidecar_counts_as_a_container() {
        let pod = json!({
            "spec": {"containers": [{"name": "a"}, {"name": "b"}],
                "initContainers": [{"name": "s", "restartPolicy": "Always"}, {"name": "i"}]},
            "status": {"phase": "Running",
                "initContainerStatuses": [
                    {"name": "s", "started": true, "ready": true, "restartCount": 2, "state": {"running": {}}},
                    {"name": "i", "restartCount": 5, "state": {"terminated": {"exitCode": 0}}}],
                "containerStatuses": [
                    {"name": "a", "ready": true, "restartCount": 1, "state": {"running": {}}},
                    {"name": "b", "ready": false, "state": {"running": {}}}]}});
        assert_eq!(
            cells(&pod, time::OffsetDateTime::UNIX_EPOCH)[1..4],
            ["2/3", "Running", "3"].map(Value::from)
        );
        let mut starting = pod.clone();
        starting["status"]["initContainerStatuses"][1]["state"] = json!({"running": {}});
        assert_eq!(
            cells(&starting, time::OffsetDateTime::UNIX_EPOCH)[1..4],
            ["1/3", "Init:1/2", "7"].map(Value::from)
        );
        assert_eq!(cells(&json!({}), time::OffsetDateTime::UNIX_EPOCH)[1], "0/0");
    }

    #[test]
    fn status_column_reads_like_upstreams() {
        let check = |status: Value, deleted: bool, expect: &str| {
            let mut pod = json!({"metadata": {"name": "p"}, "status": status, "spec": {"initContainers": [{"name": "i"}, {"name": "j"}]}});
            if deleted {
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
            assert_eq!(status_shown(&pod), expect);
        };
        let container = |state: Value| json!({"phase": "Running", "containerStatuses": [{"state": state, "ready": true}]});
        check(json!({"phase": "Pending"}), false, "Pending");
        check(json!({"phase": "Failed", "reason": "Evicted"}), false, "Evicted");
        check(container(json!({"running": {}})), false, "Running");
        check(container(json!({"running": {}})), true, "Terminating");
        check(container(json!({"waiting": {"reason": "CrashLoopBackOff"}})), false, "CrashLoopBackOff");
        check(container(json!({"terminated": {"exitCode": 3}})), false, "ExitCode:3");
        check(container(json!({"terminated": {"signal": 9}})), false, "Signal:9");
        check(container(json!({"terminated": {"reason": "Completed"}})), false, "Completed");
        check(
            json!({"phase": "Pending", "initContainerStatuses": [{"state": {"running": {}}}]}),
            false,
            "Init:0/2",
        );
        check(
            json!({"phase": "Pending", "initContainerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]}),
            false,
            "Init:ErrImagePull",
        );
    }

    /// A pod with 2^63 seconds once could never be deleted, and caused a panic at each try.
    #[test]
    fn every_grace_period_ends_at_a_date() {
        let numbers = [i64::MIN, -1, 0, 1, i64::from(i32::MAX), i64::MAX];
        let now = time::macros::datetime!(2026-11-21 12:00:00 UTC);
        for (own, first) in numbers.iter().flat_map(|own| numbers.map(|first| (*own, first))) {
            let mut pod = pod(|pod| {
                pod["spec"]["nodeName"] = "a".into();
                pod["spec"]["terminationGracePeriodSeconds"] = own.into();
            });
            for asked in [None, Some(first), None, Some(30), Some(0)] {
                pod = with_grace(&pod, pod.clone(), asked, now);
                let until = text(&pod, &["metadata", "deletionTimestamp"]);
                assert!(super::super::schema::parse_time(until).is_some(), "{own}, {first}: {until:?}");
            }
            assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 0, "{own}, {first}");
        }
    }
}
