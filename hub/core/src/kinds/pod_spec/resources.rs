//! Resources of containers and pods: valid names and amounts.
//!
//! Always holds: amounts are compared exactly. Leaves to others: the capacity of a node.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::names;
use super::super::rules::{self, Errors, entries};
use crate::field_error::FieldError;
use crate::quantity::Quantity;
use crate::value::text;

const HUGE_PAGES: &str = "hugepages-";
/// The resources without a domain that a container may request, besides huge pages.
const OF_CONTAINERS: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// The resources that a whole pod may request, besides huge pages.
const OF_PODS: [&str; 2] = ["cpu", "memory"];
/// Every name without a domain that some object may use.
const STANDARD: [&str; 20] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];
/// Entries of [`STANDARD`] that are counted in whole numbers.
const WHOLE: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// Whether Kubernetes itself defines the resource.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether the resource is one of a device plugin or the like.
fn is_extended(name: &str) -> bool {
    // a quota uses the name in this form
    let quota = || names::qualified_name_complaint(&format!("requests.{name}")).is_none();
    !is_native(name) && !name.starts_with("requests.") && quota()
}

fn quantity(value: &Value) -> Option<Quantity> {
    value.as_str().and_then(Quantity::parse)
}

/// The amount of a container's or pod's resource.
pub(in crate::kinds) fn amount(holder: &Value, part: &str, name: &str) -> Option<Quantity> {
    quantity(holder.get("resources")?.get(part)?.get(name)?)
}

/// An amount of a resource: not negative, and a whole number for counted ones.
pub(in crate::kinds) fn validate_amount(name: &str, value: &Value, path: &str, errors: &mut Errors) {
    let Some(amount) = quantity(value) else { return };
    if amount < Quantity::ZERO {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(path, value.clone(), why));
    }
    if (WHOLE.contains(&name) || is_extended(name)) && !amount.is_whole() {
        errors.push(FieldError::invalid(path, value.clone(), "must be an integer"));
    }
}

/// The name of a resource, in any field.
fn validate_name(name: &str, path: &str, errors: &mut Errors) -> bool {
    let before = errors.len();
    rules::label_key(name, path, errors);
    let known =
        STANDARD.contains(&name) || name.strip_prefix("requests.").unwrap_or(name).starts_with(HUGE_PAGES);
    if errors.len() == before && !name.contains('/') && !known {
        errors.push(FieldError::invalid(path, name, "must be a standard resource type or fully qualified"));
    }
    errors.len() == before
}

fn validate_container_name(name: &str, path: &str, errors: &mut Errors) {
    validate_name(name, path, errors);
    if !name.contains('/') {
        if !OF_CONTAINERS.contains(&name) && !name.starts_with(HUGE_PAGES) {
            errors.push(FieldError::invalid(path, name, "must be a standard resource for containers"));
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.push(FieldError::invalid(path, name, "doesn't follow extended resource name standard"));
    }
}

fn validate_pod_name(name: &str, path: &str, errors: &mut Errors) {
    let good = validate_name(name, path, errors);
    if good && !OF_PODS.contains(&name) && !name.starts_with(HUGE_PAGES) {
        errors.push(FieldError::unsupported(path, name, &OF_PODS));
    }
}

fn validate_huge_pages(name: &str, value: &Value, path: &str, errors: &mut Errors) {
    let Some(page) = name.strip_prefix(HUGE_PAGES).map(Quantity::parse) else { return };
    let divides =
        |amount: Quantity| page.is_some_and(|page| amount > Quantity::ZERO && amount.is_multiple_of(page));
    if quantity(value).is_some_and(|amount| amount != Quantity::ZERO && !divides(amount)) {
        let shown = value.as_str().unwrap_or("");
        let why = format!("{shown} is not positive integer multiple of {name}");
        errors.push(FieldError::invalid(path, value.clone(), &why));
    }
}

/// The resources of a container; `claims` are the names of the pod's.
pub(super) fn validate_container(
    resources: &Value,
    claims: &BTreeSet<&str>,
    path: &str,
    errors: &mut Errors,
) {
    validate(resources, validate_container_name, path, errors);
    for (index, claim) in rules::list(resources, "claims").iter().enumerate() {
        let path = format!("{path}.claims[{index}]");
        match text(claim, &["name"]) {
            "" => errors.push(FieldError::required(path, "")),
            name if !claims.contains(name) => errors.push(FieldError::not_found(path, name)),
            _ => {}
        }
    }
}

fn validate(resources: &Value, validate_name: fn(&str, &str, &mut Errors), path: &str, errors: &mut Errors) {
    for part in ["limits", "requests"] {
        for (name, value) in entries(resources, part) {
            let path = format!("{path}.{part}[{name}]");
            validate_name(name, &path, errors);
            validate_amount(name, value, &path, errors);
            validate_huge_pages(name, value, &path, errors);
        }
    }
    for (name, requested) in entries(resources, "requests") {
        let overcommitted = is_native(name) && !name.starts_with(HUGE_PAGES);
        let limit = &resources["limits"][name];
        let (Some(asked), Some(most)) = (quantity(requested), quantity(limit)) else {
            if limit.is_null() && !overcommitted {
                let why = "Limit must be set for non overcommitable resources";
                errors.push(FieldError::required(format!("{path}.limits"), why));
            }
            continue;
        };
        let shown = limit.as_str().unwrap_or("");
        let why = match overcommitted {
            false if asked != most => format!("must be equal to {name} limit of {shown}"),
            true if asked > most => format!("must be less than or equal to {name} limit of {shown}"),
            _ => continue,
        };
        errors.push(FieldError::invalid(format!("{path}.requests"), requested.clone(), &why));
    }
    let has = |wanted: fn(&str) -> bool| {
        ["limits", "requests"].iter().any(|part| entries(resources, part).any(|(name, _)| wanted(name)))
    };
    if has(|name| name.starts_with(HUGE_PAGES)) && !has(|name| OF_PODS.contains(&name)) {
        errors.push(FieldError::forbidden(path, "HugePages require cpu or memory"));
    }
}

/// What the pods of a runtime class take beside their containers.
pub(in crate::kinds) fn validate_overhead(resources: &Value, path: &str, errors: &mut Errors) {
    validate(resources, validate_container_name, path, errors);
}

/// The resources of a whole pod, and that its containers stay within them.
pub(super) fn validate_pod(spec: &Value, path: &str, errors: &mut Errors) {
    let Some(resources) = spec.get("resources") else { return };
    let path = format!("{path}.resources");
    if resources.get("claims").is_some() {
        let why = "claims may not be set for Resources at pod-level";
        errors.push(FieldError::forbidden(format!("{path}.claims"), why));
    }
    validate(resources, validate_pod_name, &path, errors);
    let containers = rules::list(spec, "containers");
    for (name, whole) in entries(resources, "requests") {
        let asked = containers.iter().filter_map(|container| amount(container, "requests", name));
        let asked = asked.fold(Quantity::ZERO, Quantity::plus);
        if quantity(whole).is_some_and(|whole| asked > whole) {
            let why = format!("must be greater than or equal to aggregate container requests of {asked}");
            errors.push(FieldError::invalid(format!("{path}.requests[{name}]"), whole.clone(), &why));
        }
    }
    for (index, container) in containers.iter().enumerate() {
        for (name, most) in entries(resources, "limits") {
            let limit = amount(container, "limits", name);
            if quantity(most).is_some_and(|most| limit.is_some_and(|limit| limit > most)) {
                let shown = most.as_str().unwrap_or("");
                let why = format!("must be less than or equal to pod limits of {shown}");
                let path = format!("{path}.containers[{index}][{name}].limits");
                let limit = container["resources"]["limits"][name].clone();
                errors.push(FieldError::invalid(path, limit, &why));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(resources: Value, expect: &[&str]) {
        let mut errors = Errors::default();
        validate_container(&resources, &BTreeSet::from(["c"]), "r", &mut errors);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn names_are_standard_or_have_a_domain() {
        check(json!({"limits": {"cpu": "1", "hugepages-2Mi": "4Mi", "example.com/gpu": "2"}}), &[]);
        check(
            json!({"limits": {"foo": "1"}}),
            &[
                "r.limits[foo]: Invalid value: \"foo\": must be a standard resource type or fully qualified",
                "r.limits[foo]: Invalid value: \"foo\": must be a standard resource for containers",
            ],
        );
        check(
            json!({"limits": {"pods": "1"}}),
            &["r.limits[pods]: Invalid value: \"pods\": must be a standard resource for containers"],
        );
        check(
            json!({"limits": {"requests.example.com/gpu": "1"}}),
            &[
                "r.limits[requests.example.com/gpu]: Invalid value: \"requests.example.com/gpu\": doesn't follow extended resource name standard",
            ],
        );
    }

    #[test]
    fn amounts_are_whole_where_they_are_counted() {
        check(json!({"limits": {"cpu": "1500m"}}), &[]);
        check(
            json!({"limits": {"example.com/gpu": "1500m"}}),
            &["r.limits[example.com/gpu]: Invalid value: \"1500m\": must be an integer"],
        );
        check(
            json!({"requests": {"memory": "-1"}}),
            &["r.requests[memory]: Invalid value: \"-1\": must be greater than or equal to 0"],
        );
        check(
            json!({"limits": {"cpu": "1", "hugepages-2Mi": "3Mi"}}),
            &[
                "r.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi",
            ],
        );
    }

    #[test]
    fn requests_stay_within_limits() {
        check(
            json!({"limits": {"memory": "9007199254740992"}, "requests": {"memory": "9007199254740993"}}),
            &[
                "r.requests: Invalid value: \"9007199254740993\": must be less than or equal to memory limit of 9007199254740992",
            ],
        );
        check(
            json!({"limits": {"example.com/gpu": "2"}, "requests": {"example.com/gpu": "1"}}),
            &["r.requests: Invalid value: \"1\": must be equal to example.com/gpu limit of 2"],
        );
        check(
            json!({"requests": {"example.com/gpu": "1"}}),
            &["r.limits: Required value: Limit must be set for non overcommitable resources"],
        );
        check(
            json!({"limits": {"hugepages-2Mi": "2Mi"}}),
            &["r: Forbidden: HugePages require cpu or memory"],
        );
        check(json!({"claims": [{"name": "c"}, {"name": "d"}]}), &["r.claims[1]: Not found: \"d\""]);
    }

    #[test]
    fn containers_stay_within_their_pod() {
        let spec = json!({"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "pods": "1"}}, "containers": [
            {"resources": {"requests": {"cpu": "600m"}}}, {"resources": {"requests": {"cpu": "600m"}, "limits": {"cpu": "3"}}}]});
        let mut errors = Errors::default();
        validate_pod(&spec, "s", &mut errors);
        assert_eq!(
            errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [
                "s.resources.limits[pods]: Unsupported value: \"pods\": supported values: \"cpu\", \"memory\"",
                "s.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to aggregate container requests of 1200m",
                "s.resources.containers[1][cpu].limits: Invalid value: \"3\": must be less than or equal to pod limits of 2",
            ]
        );
    }
}
