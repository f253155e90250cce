//! The rules of a pod's status, which its node reports.
//!
//! Always holds: only changed fields are judged, so a value that an older hub accepted does not keep a node
//! from reporting. Leaves to others: the columns that show these fields (in `pod`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::Value;

use super::names::NameRule;
use super::rules::{self, Errors, list};
use crate::field_error::FieldError;
use crate::value::{at, text};

/// Conditions whose names need not look like labels' keys; upstream's list.
const SYSTEM_CONDITIONS: [&str; 3] = ["PodScheduled", "Ready", "Initialized"];
const NOT_NEGATIVE: &str = "must be a non-negative integer";

/// Validates the status of `new`, a pod that exists.
pub(super) fn validate(new: &Value, old: &Value, errors: &mut Errors) {
    let (is, was) = (&new["status"], &old["status"]);
    if is == was {
        return;
    }
    for (index, condition) in list(is, "conditions").iter().enumerate() {
        let path = format!("status.conditions[{index}]");
        validate_observed(condition, &path, errors);
        let sort = text(condition, &["type"]);
        if !SYSTEM_CONDITIONS.contains(&sort) {
            rules::label_key(sort, &format!("{path}.Type"), errors);
        }
    }
    validate_observed(is, "status", errors);
    validate_nomination(new, old, errors);
    if was.get("qosClass").is_some() && is.get("qosClass") != was.get("qosClass") {
        let shown = is["qosClass"].clone();
        errors.push(FieldError::invalid("status.qosClass", shown, "field is immutable"));
    }
    for field in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        validate_restarts(new, old, field, errors);
    }
    if is.get("podIP") != was.get("podIP") || is.get("podIPs") != was.get("podIPs") {
        validate_addresses(is, "podIP", errors);
    }
    if is.get("hostIP") != was.get("hostIP") || is.get("hostIPs") != was.get("hostIPs") {
        let first = at(is, &["hostIPs"]).map(|_| text(&list(is, "hostIPs")[0], &["ip"]));
        if let Some(first) = first.filter(|first| *first != text(is, &["hostIP"])) {
            let why = "must be equal to `hostIP`";
            errors.push(FieldError::invalid("status.hostIPs[0].ip", first, why));
        }
        validate_addresses(is, "hostIP", errors);
    }
}

fn validate_observed(value: &Value, path: &str, errors: &mut Errors) {
    if let Some(number) = value["observedGeneration"].as_i64().filter(|number| *number < 0) {
        errors.push(FieldError::invalid(format!("{path}.observedGeneration"), number, NOT_NEGATIVE));
    }
}

fn validate_nomination(new: &Value, old: &Value, errors: &mut Errors) {
    let path = "status.nominatedNodeName";
    let name = text(new, &["status", "nominatedNodeName"]);
    if name == text(old, &["status", "nominatedNodeName"]) {
        return;
    }
    rules::name(name, NameRule::Subdomain, path, errors);
    if !name.is_empty() && !text(old, &["spec", "nodeName"]).is_empty() {
        let why = "may not be set on pods that are already bound to a node";
        errors.push(FieldError::forbidden(path, why));
    }
}

/// The list of addresses, or the single address in place of a list of one.
fn validate_addresses(status: &Value, single: &str, errors: &mut Errors) {
    let field = format!("{single}s");
    let path = format!("status.{field}");
    let listed = list(status, &field);
    let texts: Vec<&str> = match listed {
        [] => Some(text(status, &[single])).filter(|address| !address.is_empty()).into_iter().collect(),
        all => all.iter().map(|address| text(address, &["ip"])).collect(),
    };
    let read = |(index, address): (usize, &&str)| rules::ip(address, &format!("{path}[{index}]"), errors);
    let addresses: Vec<IpAddr> = texts.iter().enumerate().filter_map(read).collect();
    if texts.len() > 2 || !rules::is_one_per_family(&addresses) {
        let why = "may specify no more than one IP for each IP family";
        errors.push(FieldError::invalid(path, listed.to_vec(), why));
    }
}

/// A container that ended for good stays ended: one with a policy that never restarts it.
fn validate_restarts(new: &Value, old: &Value, field: &str, errors: &mut Errors) {
    let spec = &old["spec"];
    let of_spec = match field {
        "containerStatuses" => "containers",
        "initContainerStatuses" => "initContainers",
        _ => return,
    };
    let name_of = |value| text(value, &["name"]);
    let containers: BTreeMap<&str, &Value> =
        list(spec, of_spec).iter().rev().map(|container| (name_of(container), container)).collect();
    let statuses = list(&new["status"], field).iter();
    let going_on: BTreeSet<&str> =
        statuses.filter(|is| at(is, &["state", "terminated"]).is_none()).map(name_of).collect();
    for (index, was) in list(&old["status"], field).iter().enumerate() {
        let Some(ended) = at(was, &["state", "terminated"]) else { continue };
        let container = containers.get(name_of(was)).copied();
        let own = container.map_or("", |container| text(container, &["restartPolicy"]));
        let has_rules = container.is_some_and(|container| !list(container, "restartPolicyRules").is_empty());
        let policy = if own.is_empty() { text(spec, &["restartPolicy"]) } else { own };
        let is_final = match policy {
            "Never" => true,
            "OnFailure" => ended["exitCode"] == 0,
            _ => false,
        };
        // an init container runs again whenever the pod gets a new sandbox
        if !is_final || has_rules || of_spec == "initContainers" {
            continue;
        }
        if going_on.contains(name_of(was)) {
            let path = format!("status.{field}[{index}].state");
            errors.push(FieldError::forbidden(path, "may not be transitioned to non-terminated state"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(was: Value, is: Value, expect: &[&str]) {
        let pod = |status: Value| json!({"spec": {"nodeName": "n", "restartPolicy": "Never", "containers": [{"name": "c"}]}, "status": status});
        let mut errors = Errors::default();
        validate(&pod(is), &pod(was), &mut errors);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn addresses_of_a_pod_are_addresses() {
        let why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        let v4 = json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fe80::1"}]});
        check(json!({}), v4.clone(), &[]);
        check(
            json!({}),
            json!({"podIP": "nope"}),
            &[&format!("status.podIPs[0]: Invalid value: \"nope\": {why}")],
        );
        check(json!({"podIP": "nope"}), json!({"podIP": "nope", "phase": "Running"}), &[]);
        check(
            json!({}),
            json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]}),
            &[
                "status.podIPs: Invalid value: [{\"ip\":\"10.0.0.1\"},{\"ip\":\"10.0.0.2\"}]: may specify no more than one IP for each IP family",
            ],
        );
        check(
            json!({}),
            json!({"hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.2"}]}),
            &["status.hostIPs[0].ip: Invalid value: \"10.0.0.2\": must be equal to `hostIP`"],
        );
    }

    #[test]
    fn class_and_ended_containers_do_not_change() {
        check(
            json!({"qosClass": "BestEffort"}),
            json!({"qosClass": "Guaranteed"}),
            &["status.qosClass: Invalid value: \"Guaranteed\": field is immutable"],
        );
        let state = |state: Value| json!({"containerStatuses": [{"name": "c", "state": state}]});
        check(state(json!({"running": {}})), state(json!({"terminated": {"exitCode": 1}})), &[]);
        check(
            state(json!({"terminated": {"exitCode": 1}})),
            state(json!({"running": {}})),
            &[
                "status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state",
            ],
        );
        check(
            json!({}),
            json!({"conditions": [{"type": "Ready"}], "observedGeneration": -1, "nominatedNodeName": "m"}),
            &[
                "status.observedGeneration: Invalid value: -1: must be a non-negative integer",
                "status.nominatedNodeName: Forbidden: may not be set on pods that are already bound to a node",
            ],
        );
    }
}
