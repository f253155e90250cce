//! Where a pod may run: tolerations, affinities, spread over topologies, gates.
//!
//! This module only validates these fields: the hub's scheduler or another one places pods by them, and the
//! DaemonSet controller follows them.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::names::{self, NameRule};
use super::super::rules::{self, Errors, list, one_of, optional_one_of};
use crate::field_error::FieldError;
use crate::value::{at, text};

/// Effects of taints, and of the tolerations of them.
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
/// How much a preference counts.
const WEIGHTS: std::ops::RangeInclusive<i64> = 1..=100;
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Tolerations of taints.
pub(in crate::kinds) fn validate_tolerations(spec: &Value, path: &str, errors: &mut Errors) {
    for (index, toleration) in list(spec, "tolerations").iter().enumerate() {
        let path = format!("{path}.tolerations[{index}]");
        let (key, operator) = (text(toleration, &["key"]), text(toleration, &["operator"]));
        let (value, effect) = (text(toleration, &["value"]), text(toleration, &["effect"]));
        if !key.is_empty() {
            rules::label_key(key, &format!("{path}.key"), errors);
        } else if operator != "Exists" {
            let why =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(FieldError::invalid(format!("{path}.operator"), operator, why));
        }
        if toleration.get("tolerationSeconds").is_some() && effect != "NoExecute" {
            let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(format!("{path}.effect"), effect, why));
        }
        let path_of_operator = format!("{path}.operator");
        match operator {
            "" | "Equal" => rules::label_value(value, &path_of_operator, errors),
            "Exists" if !value.is_empty() => {
                let why = "value must be empty when `operator` is 'Exists'";
                errors.push(FieldError::invalid(path_of_operator, value, why));
            }
            "Exists" => {}
            other => {
                errors.push(FieldError::unsupported(path_of_operator, other, &["Equal", "Exists"]));
            }
        }
        optional_one_of(toleration, "effect", &EFFECTS, &path, errors);
    }
}

/// Taints of a node; upstream's errors place them into its metadata.
pub(in crate::kinds) fn validate_taints(taints: &[Value], errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, taint) in taints.iter().enumerate() {
        let path = format!("metadata.taints[{index}]");
        let (key, effect) = (text(taint, &["key"]), text(taint, &["effect"]));
        rules::label_key(key, &format!("{path}.key"), errors);
        rules::label_value(text(taint, &["value"]), &format!("{path}.value"), errors);
        one_of(taint, "effect", &EFFECTS, &path, errors);
        if !seen.insert((key, effect)) {
            let why = "taints must be unique by key and effect pair";
            errors.push(FieldError::duplicate_because(path, taint.clone(), why));
        }
    }
}

/// All rules of this file for a pod's spec.
pub(super) fn validate(spec: &Value, path: &str, errors: &mut Errors) {
    validate_tolerations(spec, path, errors);
    let affinity = format!("{path}.affinity");
    if let Some(node) = at(spec, &["affinity", "nodeAffinity"]) {
        validate_node_affinity(node, &format!("{affinity}.nodeAffinity"), errors);
    }
    for sort in ["podAffinity", "podAntiAffinity"] {
        if let Some(pods) = at(spec, &["affinity", sort]) {
            validate_pod_affinity(pods, &format!("{affinity}.{sort}"), errors);
        }
    }
    validate_spread(spec, &format!("{path}.topologySpreadConstraints"), errors);
    for (index, gate) in list(spec, "readinessGates").iter().enumerate() {
        let path = format!("{path}.readinessGates[{index}].conditionType");
        rules::label_key(text(gate, &["conditionType"]), &path, errors);
    }
    let mut seen = BTreeSet::new();
    for (index, gate) in list(spec, "schedulingGates").iter().enumerate() {
        let path = format!("{path}.schedulingGates[{index}]");
        let name = text(gate, &["name"]);
        rules::label_key(name, &path, errors);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(path, name));
        }
    }
}

fn validate_weight(preference: &Value, path: &str, errors: &mut Errors) {
    let weight = preference["weight"].as_i64().unwrap_or(0);
    if !WEIGHTS.contains(&weight) {
        let why = "must be in the range 1-100";
        errors.push(FieldError::invalid(format!("{path}.weight"), weight, why));
    }
}

fn validate_node_affinity(affinity: &Value, path: &str, errors: &mut Errors) {
    if let Some(required) = affinity.get(REQUIRED) {
        let path = format!("{path}.{REQUIRED}.nodeSelectorTerms");
        let terms = list(required, "nodeSelectorTerms");
        if terms.is_empty() {
            let why = "must have at least one node selector term";
            errors.push(FieldError::required(path.as_str(), why));
        }
        for (index, term) in terms.iter().enumerate() {
            validate_node_term(term, true, &format!("{path}[{index}]"), errors);
        }
    }
    for (index, preferred) in list(affinity, PREFERRED).iter().enumerate() {
        let path = format!("{path}.{PREFERRED}[{index}]");
        validate_weight(preferred, &path, errors);
        validate_node_term(&preferred["preference"], false, &format!("{path}.preference"), errors);
    }
}

/// `with_values`: also checks the syntax of values, which upstream does not check in preferences.
fn validate_node_term(term: &Value, with_values: bool, path: &str, errors: &mut Errors) {
    for (index, rule) in list(term, "matchExpressions").iter().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        let operator = text(rule, &["operator"]);
        if !rules::selector_operator(rule, &path, errors) {
            match operator {
                "Gt" | "Lt" if list(rule, "values").len() == 1 => {}
                "Gt" | "Lt" => {
                    let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                    errors.push(FieldError::required(format!("{path}.values"), why));
                }
                _ => {
                    let why = "not a valid selector operator";
                    errors.push(FieldError::invalid(format!("{path}.operator"), operator, why));
                }
            }
        }
        rules::label_key(text(rule, &["key"]), &format!("{path}.key"), errors);
        if with_values {
            rules::selector_values(rule, &path, errors);
        }
    }
    for (index, rule) in list(term, "matchFields").iter().enumerate() {
        validate_node_field(rule, &format!("{path}.matchFields[{index}]"), errors);
    }
}

/// A node selected by name.
fn validate_node_field(rule: &Value, path: &str, errors: &mut Errors) {
    let (key, operator) = (text(rule, &["key"]), text(rule, &["operator"]));
    let values = list(rule, "values");
    match operator {
        "In" | "NotIn" if values.len() == 1 => {}
        "In" | "NotIn" => {
            let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.push(FieldError::required(format!("{path}.values"), why));
        }
        _ => {
            let why = "not a valid selector operator";
            errors.push(FieldError::invalid(format!("{path}.operator"), operator, why));
        }
    }
    if key != "metadata.name" {
        let why = "not a valid field selector key";
        return errors.push(FieldError::invalid(format!("{path}.key"), key, why));
    }
    for (index, value) in values.iter().enumerate() {
        let value = value.as_str().unwrap_or("");
        if let Some(why) = NameRule::Subdomain.complaint(value) {
            errors.push(FieldError::invalid(format!("{path}.values[{index}]"), value, &why));
        }
    }
}

fn validate_pod_affinity(affinity: &Value, path: &str, errors: &mut Errors) {
    for (index, term) in list(affinity, REQUIRED).iter().enumerate() {
        validate_pod_term(term, &format!("{path}.{REQUIRED}[{index}]"), errors);
    }
    for (index, preferred) in list(affinity, PREFERRED).iter().enumerate() {
        let path = format!("{path}.{PREFERRED}[{index}]");
        validate_weight(preferred, &path, errors);
        validate_pod_term(&preferred["podAffinityTerm"], &format!("{path}.podAffinityTerm"), errors);
    }
}

fn validate_pod_term(term: &Value, path: &str, errors: &mut Errors) {
    for selector in ["labelSelector", "namespaceSelector"] {
        rules::label_selector(&term[selector], &format!("{path}.{selector}"), errors);
    }
    for name in list(term, "namespaces").iter().filter_map(Value::as_str) {
        if let Some(why) = NameRule::Label.complaint(name) {
            errors.push(FieldError::invalid(format!("{path}.namespace"), name, &why));
        }
    }
    validate_label_keys(term, "matchLabelKeys", path, errors);
    validate_label_keys(term, "mismatchLabelKeys", path, errors);
    let mismatched: BTreeSet<&str> =
        list(term, "mismatchLabelKeys").iter().filter_map(Value::as_str).collect();
    for (index, key) in list(term, "matchLabelKeys").iter().filter_map(Value::as_str).enumerate() {
        if mismatched.contains(key) {
            let why = "exists in both matchLabelKeys and mismatchLabelKeys";
            errors.push(FieldError::invalid(format!("{path}.matchLabelKeys[{index}]"), key, why));
        }
    }
    validate_topology(term, path, errors);
    let topology = text(term, &["topologyKey"]);
    if let Some(why) = names::qualified_name_complaint(topology) {
        errors.push(FieldError::invalid(format!("{path}.topologyKey"), topology, &why));
    }
}

fn validate_topology(term: &Value, path: &str, errors: &mut Errors) {
    if text(term, &["topologyKey"]).is_empty() {
        errors.push(FieldError::required(format!("{path}.topologyKey"), "can not be empty"));
    }
}

/// Keys of labels; a scheduler adds the pod's values of them to the selector beside them.
fn validate_label_keys(term: &Value, field: &str, path: &str, errors: &mut Errors) {
    let path = format!("{path}.{field}");
    let keys = list(term, field);
    if !keys.is_empty() && term.get("labelSelector").is_none() {
        return errors
            .push(FieldError::forbidden(path, "must not be specified when labelSelector is not set"));
    }
    for (index, key) in keys.iter().enumerate() {
        rules::label_key(key.as_str().unwrap_or(""), &format!("{path}[{index}]"), errors);
    }
}

fn validate_spread(spec: &Value, path: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, constraint) in list(spec, "topologySpreadConstraints").iter().enumerate() {
        let path = format!("{path}[{index}]");
        let skew = constraint["maxSkew"].as_i64().unwrap_or(0);
        if skew < 1 {
            errors.push(FieldError::invalid(format!("{path}.maxSkew"), skew, "must be greater than zero"));
        }
        validate_topology(constraint, &path, errors);
        let actions = ["DoNotSchedule", "ScheduleAnyway"];
        let (topology, action) =
            (text(constraint, &["topologyKey"]), text(constraint, &["whenUnsatisfiable"]));
        if !actions.contains(&action) {
            errors.push(FieldError::unsupported(format!("{path}.whenUnsatisfiable"), action, &actions));
        }
        if !seen.insert((topology, action)) {
            let shown = format!("{{{topology}, {action}}}");
            errors.push(FieldError::duplicate(format!("{path}.{{topologyKey, whenUnsatisfiable}}"), shown));
        }
        rules::positive(constraint, "minDomains", &path, errors);
        if let Some(domains) = constraint["minDomains"].as_i64().filter(|_| action != "DoNotSchedule") {
            let why = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
            errors.push(FieldError::invalid(format!("{path}.minDomains"), domains, &why));
        }
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            optional_one_of(constraint, field, &["Honor", "Ignore"], &path, errors);
        }
        validate_label_keys(constraint, "matchLabelKeys", &path, errors);
        rules::label_selector(&constraint["labelSelector"], &format!("{path}.labelSelector"), errors);
    }
}
