//! Requests and limits: a container's, a pod's, and the class of service that follows from them.
//!
//! Always holds: upstream's computations (`ComputePodQOS`, pod requests with sidecars and init containers)
//! are reproduced here to the milli-CPU and byte. Leaves to others: cgroup values (the runtime), capacity
//! (`admission`).

use crate::node::facts::DEVICE;
use crate::pods::event::{NodeFacts, QosClass, Resources};
use crate::pods::spec::{Container, PodSpec, quantity};
use crate::sorted::{SortedMap, SortedSet};
use serde_json::Value;
use std::collections::BTreeMap;

/// The devices that a container requests, and how many of each; a request for 0 is left out.
pub(crate) fn devices_of(container: &Container) -> SortedMap<&str, u64> {
    let asked = container.resources.limits.iter().filter_map(|(resource, amount)| {
        Some((resource.strip_prefix(DEVICE)?, quantity(amount)?.units().unsigned_abs()))
    });
    asked.filter(|(_, amount)| *amount > 0).collect()
}

/// The names of all devices that a pod requests.
pub(crate) fn device_names(spec: &PodSpec) -> SortedSet<&str> {
    spec.all_containers().flat_map(|container| devices_of(container).into_keys()).collect()
}

/// How many of a device a pod uses, computed as for other resources.
pub(crate) fn device_count(spec: &PodSpec, name: &str) -> u64 {
    total(spec, |container| devices_of(container).get(name).copied()).unwrap_or(0)
}

/// As upstream for extended resources: the amount has to be a whole number, and the request equal to the
/// limit.
fn device_complaint(container: &Container) -> Option<String> {
    let resources = &container.resources;
    let named = resources.requests.keys().chain(resources.limits.keys());
    named.filter(|resource| resource.starts_with(DEVICE)).find_map(|resource| {
        let milli = |list: &BTreeMap<String, Value>| Some(quantity(list.get(resource)?)?.milli_units());
        let (request, limit) = (milli(&resources.requests), milli(&resources.limits));
        let is_fine = limit.is_some_and(|limit| limit % 1000 == 0 && request.is_none_or(|request| request == limit));
        let (name, resource) = (&container.name, kedge_api::excerpt(resource));
        (!is_fine).then(|| {
            format!("container {name}: {resource} is asked for, expected a whole number in limits, and the same or nothing in requests")
        })
    })
}

/// The first invalid quantity of a spec, with its path.
pub(crate) fn complaint(spec: &PodSpec) -> Option<String> {
    spec.all_containers().find_map(|container| {
        let both = [("requests", &container.resources.requests), ("limits", &container.resources.limits)];
        let wrong = both.into_iter().find_map(|(which, list)| {
            let (resource, value) = list.iter().find(|(_, value)| quantity(value).is_none())?;
            let name = &container.name;
            Some(format!(
                "container {name}: {which}.{resource} is {value}, expected a quantity such as 100m or 64Mi"
            ))
        });
        wrong.or_else(|| device_complaint(container))
    })
}

/// A resource whose usage eviction compares with requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    Memory,
    /// `ephemeral-storage`.
    Storage,
}

impl Resource {
    pub(crate) fn requested_by(self, container: &Container) -> Option<u64> {
        match self {
            Self::Memory => of_container(container).memory_request_bytes,
            Self::Storage => storage(&container.resources.requests).or_else(|| storage_limit(container)),
        }
    }
}

/// The amount of it that a pod requests.
pub(crate) fn requested(spec: &PodSpec, resource: Resource) -> Option<u64> {
    total(spec, |container| resource.requested_by(container))
}

/// Limit for the disk usage of all containers of a pod together; `None` if at least one has no limit.
pub(crate) fn storage_limit_of_pod(spec: &PodSpec) -> Option<u64> {
    total(spec, storage_limit)
}

/// `limits.ephemeral-storage`.
pub(crate) fn storage_limit(container: &Container) -> Option<u64> {
    storage(&container.resources.limits).filter(|limit| *limit > 0)
}

fn storage(list: &BTreeMap<String, Value>) -> Option<u64> {
    Some(quantity(list.get("ephemeral-storage")?)?.units().unsigned_abs())
}

/// The first resource that this node neither limits nor reserves.
pub(crate) fn refusal(spec: &PodSpec) -> Option<String> {
    let served = |resource: &str| {
        matches!(resource, "cpu" | "memory" | "ephemeral-storage") || resource.starts_with(DEVICE)
    };
    let is_zero = |value: &Value| quantity(value).is_some_and(|quantity| quantity.milli_units() == 0);
    spec.all_containers().find_map(|container| {
        let both = [("requests", &container.resources.requests), ("limits", &container.resources.limits)];
        both.into_iter().find_map(|(which, list)| {
            let (resource, _) = list.iter().find(|(resource, value)| !served(resource) && !is_zero(value))?;
            let resource = kedge_api::excerpt(resource);
            Some(format!("container {}: {which}.{resource} is not served", container.name))
        })
    })
}

/// The resources of a container; its requests default to its limits.
pub(crate) fn of_container(container: &Container) -> Resources {
    let cpu = |list: &BTreeMap<String, Value>| Some(quantity(list.get("cpu")?)?.milli_units().unsigned_abs());
    let memory = |list: &BTreeMap<String, Value>| Some(quantity(list.get("memory")?)?.units().unsigned_abs());
    let (requests, limits) = (&container.resources.requests, &container.resources.limits);
    Resources {
        cpu_request_milli: cpu(requests).or(cpu(limits)),
        cpu_limit_milli: cpu(limits),
        memory_request_bytes: memory(requests).or(memory(limits)),
        memory_limit_bytes: memory(limits),
    }
}

/// The controllers that limits of a pod need and the kernel lacks.
pub(crate) fn missed_controllers(spec: &PodSpec, node: &NodeFacts) -> Vec<&'static str> {
    let is_limited = |controller: &&&str| {
        spec.all_containers().map(of_container).any(|own| match **controller {
            "memory" => own.memory_limit_bytes > Some(0),
            "cpu" => own.cpu_limit_milli > Some(0),
            _ => node.limits_pids,
        })
    };
    node.lacking_controllers.iter().filter(is_limited).copied().collect()
}

/// The resources of a pod: the sum over the containers that run together, or the largest stage of its start.
/// A limit holds for the pod only if each of its containers has one.
pub(crate) fn of_pod(spec: &PodSpec) -> Resources {
    let value = |pick: fn(&Resources) -> Option<u64>| total(spec, |container| pick(&of_container(container)));
    let limit = |pick: fn(&Resources) -> Option<u64>| {
        let all = spec
            .all_containers()
            .all(|container| pick(&of_container(container)).is_some_and(|limit| limit > 0));
        if all { value(pick) } else { None }
    };
    Resources {
        cpu_request_milli: value(|resources| resources.cpu_request_milli),
        cpu_limit_milli: limit(|resources| resources.cpu_limit_milli),
        memory_request_bytes: value(|resources| resources.memory_request_bytes),
        memory_limit_bytes: limit(|resources| resources.memory_limit_bytes),
    }
}

fn total(spec: &PodSpec, pick: impl Fn(&Container) -> Option<u64>) -> Option<u64> {
    let is_given = spec.all_containers().any(|container| pick(container).is_some());
    let sum = |containers: &mut dyn Iterator<Item = &Container>| {
        containers.fold(0u64, |sum, container| sum.saturating_add(pick(container).unwrap_or(0)))
    };
    let (mut sidecars, mut largest_stage) = (0u64, 0u64);
    for container in &spec.init_containers {
        let own = pick(container).unwrap_or(0);
        largest_stage = largest_stage.max(sidecars.saturating_add(own));
        if container.is_sidecar() {
            sidecars = sidecars.saturating_add(own);
        }
    }
    let running = sidecars.saturating_add(sum(&mut spec.containers.iter()));
    is_given.then(|| running.max(largest_stage))
}

/// The amounts that a pod uses of the node.
pub(crate) struct Total {
    pub(crate) cpu_milli: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) storage_bytes: u64,
}

impl Total {
    pub(crate) fn of(spec: &PodSpec) -> Self {
        let own = of_pod(spec);
        Self {
            cpu_milli: own.cpu_request_milli.unwrap_or(0),
            memory_bytes: own.memory_request_bytes.unwrap_or(0),
            storage_bytes: requested(spec, Resource::Storage).unwrap_or(0),
        }
    }
}

/// Upstream's rule: Guaranteed if the limits of CPU and memory equal the requests in each container,
/// BestEffort if no container has either.
pub(crate) fn qos_class(spec: &PodSpec) -> QosClass {
    let each = || spec.all_containers().map(of_container);
    let is_set = |value: Option<u64>| value.is_some_and(|value| value > 0);
    let none = each().all(|resources| {
        let Resources { cpu_request_milli, cpu_limit_milli, memory_request_bytes, memory_limit_bytes } =
            resources;
        ![cpu_request_milli, cpu_limit_milli, memory_request_bytes, memory_limit_bytes]
            .into_iter()
            .any(is_set)
    });
    if none {
        return QosClass::BestEffort;
    }
    let guaranteed = each().all(|resources| {
        is_set(resources.cpu_limit_milli)
            && is_set(resources.memory_limit_bytes)
            && resources.cpu_request_milli == resources.cpu_limit_milli
            && resources.memory_request_bytes == resources.memory_limit_bytes
    });
    if guaranteed { QosClass::Guaranteed } else { QosClass::Burstable }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    fn spec(value: Value) -> PodSpec {
        PodSpec::deserialize(value).unwrap()
    }

    fn container(requests: Value, limits: Value) -> Value {
        json!({"name": "a", "resources": {"requests": requests, "limits": limits}})
    }

    #[test]
    fn quality_class_follows_upstream() {
        let class = |containers: Value| qos_class(&spec(json!({"containers": containers})));
        let both = json!({"cpu": "100m", "memory": "64Mi"});
        assert_eq!(class(json!([container(json!({}), json!({}))])), QosClass::BestEffort);
        assert_eq!(class(json!([container(json!({"cpu": 0}), json!({}))])), QosClass::BestEffort);
        assert_eq!(class(json!([container(json!({}), both.clone())])), QosClass::Guaranteed);
        assert_eq!(class(json!([container(both.clone(), both.clone())])), QosClass::Guaranteed);
        assert_eq!(class(json!([container(both.clone(), json!({}))])), QosClass::Burstable);
        assert_eq!(
            class(json!([container(json!({}), both), container(json!({}), json!({}))])),
            QosClass::Burstable
        );
    }

    #[test]
    fn pod_requests_count_sidecars_and_the_largest_stage() {
        let cpu = |amount: &str| json!({"cpu": amount});
        let with = |init: Value| {
            of_pod(&spec(json!({"initContainers": init,
                "containers": [container(cpu("100m"), json!({})), container(cpu("200m"), json!({}))]})))
            .cpu_request_milli
        };
        let sidecar = |amount: &str| json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": cpu(amount)}});
        assert_eq!(with(json!([])), Some(300));
        assert_eq!(with(json!([container(cpu("1"), json!({}))])), Some(1000));
        assert_eq!(with(json!([sidecar("50m"), container(cpu("1"), json!({}))])), Some(1050));
        assert_eq!(with(json!([container(cpu("1"), json!({})), sidecar("50m")])), Some(1000));
        assert_eq!(with(json!([sidecar("50m")])), Some(350));
    }

    #[test]
    fn pod_is_limited_only_if_each_container_is() {
        let memory = |amount: &str| json!({"memory": amount});
        let limited = spec(
            json!({"containers": [container(json!({}), memory("1Mi")), container(json!({}), memory("2Mi"))]}),
        );
        assert_eq!(of_pod(&limited).memory_limit_bytes, Some(3 << 20));
        let open = spec(
            json!({"containers": [container(json!({}), memory("1Mi")), container(json!({}), json!({}))]}),
        );
        assert_eq!(of_pod(&open).memory_limit_bytes, None);
    }

    #[test]
    fn quantity_that_is_none_is_named() {
        let wrong = spec(json!({"containers": [container(json!({"cpu": "lots"}), json!({}))]}));
        assert!(complaint(&wrong).unwrap().contains("requests.cpu is \"lots\""));
        let negative = spec(json!({"containers": [container(json!({"cpu": -1}), json!({}))]}));
        assert!(complaint(&negative).is_some());
    }
}
