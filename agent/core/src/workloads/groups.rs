//! Control groups of pods: the kubelet's layout and its arithmetic.
//!
//! Always holds: a container's group is in its pod's, a pod's in its class's, below one root:
//! `/ROOT/burstable/podUID/NAME-ATTEMPT`; guaranteed pods are directly below the root. Values are v1's, which
//! runtimes translate for v2. Leaves to others: the sums of a pod's requests (`pods`), writing the values.

use crate::pods::{ContainerKey, PodUid, QosClass, Resources};

/// The least share of the processors, for containers that request nothing.
const MIN_SHARES: u64 = 2;
/// The most that the kernel accepts.
const MAX_SHARES: u64 = 262_144;
/// A quota is per this many microseconds.
pub const PERIOD: u64 = 100_000;
/// The least quota that the kernel accepts.
const MIN_QUOTA: u64 = 1000;

/// The limits of a group; `None` without a limit of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    pub cpu_shares: Option<u64>,
    /// Microseconds per [`PERIOD`].
    pub cpu_quota: Option<u64>,
    pub memory_bytes: Option<u64>,
}

/// `/ROOT`, `/ROOT/burstable`, `/ROOT/besteffort`.
#[must_use]
pub fn class_group(root: &str, qos: QosClass) -> String {
    match qos {
        QosClass::Guaranteed => root.to_owned(),
        QosClass::Burstable => format!("{root}/burstable"),
        QosClass::BestEffort => format!("{root}/besteffort"),
    }
}

/// The group of a pod.
#[must_use]
pub fn pod_group(root: &str, qos: QosClass, pod: &PodUid) -> String {
    format!("{}/pod{pod}", class_group(root, qos))
}

/// The group of one run of a container.
#[must_use]
pub fn container_group(root: &str, qos: QosClass, key: &ContainerKey) -> String {
    format!("{}/{}-{}", pod_group(root, qos, &key.pod), key.container, key.attempt)
}

/// Thousandths of a processor as shares: 1024 for one.
#[must_use]
pub fn shares(milli: u64) -> u64 {
    (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

fn quota(milli: u64) -> Option<u64> {
    (milli > 0).then(|| (milli.saturating_mul(PERIOD) / 1000).max(MIN_QUOTA))
}

/// A container's limits: a limit without a request counts as the request, too.
#[must_use]
pub fn container_limits(resources: &Resources) -> Limits {
    let request = resources.cpu_request_milli.filter(|milli| *milli > 0).or(resources.cpu_limit_milli);
    Limits {
        cpu_shares: Some(shares(request.unwrap_or(0))),
        cpu_quota: resources.cpu_limit_milli.and_then(quota),
        memory_bytes: resources.memory_limit_bytes.filter(|bytes| *bytes > 0),
    }
}

/// A pod's limits, from the sums over its containers; a sum of limits exists only if each container has one.
#[must_use]
pub fn pod_limits(qos: QosClass, sums: &Resources) -> Limits {
    match qos {
        QosClass::BestEffort => Limits { cpu_shares: Some(MIN_SHARES), ..Limits::default() },
        QosClass::Guaranteed | QosClass::Burstable => container_limits(sums),
    }
}

/// The limits of the group of a class itself: pods without requests get the share that the others leave.
#[must_use]
pub fn class_limits(qos: QosClass) -> Limits {
    let cpu_shares = (qos == QosClass::BestEffort).then_some(MIN_SHARES);
    Limits { cpu_shares, ..Limits::default() }
}

/// The order in which the kernel kills when memory is used up: 1000 first, -1000 never.
#[must_use]
pub fn oom_score(qos: QosClass, memory_request_bytes: u64, machine_bytes: u64) -> i32 {
    const GUARANTEED: i32 = -997;
    match qos {
        QosClass::Guaranteed => GUARANTEED,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let share = u128::from(memory_request_bytes)
                .saturating_mul(1000)
                .checked_div(machine_bytes.max(1).into())
                .unwrap_or(0);
            // between pods with guaranteed memory and those without requests
            1000_i32
                .saturating_sub(i32::try_from(share).unwrap_or(1000).clamp(1, GUARANTEED.saturating_neg()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> ContainerKey {
        ContainerKey { pod: PodUid::new("u-1").unwrap(), container: "web".into(), attempt: 2 }
    }

    #[test]
    fn groups_follow_the_class() {
        let check = |qos, expect: &str| assert_eq!(container_group("/kedgepods", qos, &key()), expect);
        check(QosClass::Guaranteed, "/kedgepods/podu-1/web-2");
        check(QosClass::Burstable, "/kedgepods/burstable/podu-1/web-2");
        check(QosClass::BestEffort, "/kedgepods/besteffort/podu-1/web-2");
    }

    #[test]
    fn requests_and_limits_become_kubelet_values() {
        let check = |request, limit, memory, expect: (u64, Option<u64>, Option<u64>)| {
            let resources = Resources {
                cpu_request_milli: request,
                cpu_limit_milli: limit,
                memory_limit_bytes: memory,
                memory_request_bytes: None,
            };
            let limits = container_limits(&resources);
            assert_eq!((limits.cpu_shares.unwrap(), limits.cpu_quota, limits.memory_bytes), expect);
        };
        check(None, None, None, (2, None, None));
        check(Some(100), None, Some(0), (102, None, None));
        check(Some(0), Some(500), Some(1), (512, Some(50_000), Some(1)));
        check(None, Some(1), None, (2, Some(1000), None));
        check(Some(1000), Some(2000), None, (1024, Some(200_000), None));
        check(Some(u64::MAX), Some(0), None, (262_144, None, None));
        let sums = Resources { cpu_request_milli: Some(100), ..Resources::default() };
        assert_eq!(pod_limits(QosClass::BestEffort, &sums).cpu_shares, Some(2));
        assert_eq!(pod_limits(QosClass::Burstable, &sums).cpu_shares, Some(102));
    }

    #[test]
    fn oom_score_is_between_guaranteed_and_best_effort() {
        let check = |request, machine, expect| {
            assert_eq!(oom_score(QosClass::Burstable, request, machine), expect, "{request}/{machine}");
        };
        check(0, 1000, 999);
        check(1, 1_000_000, 999);
        check(500, 1000, 500);
        check(999, 1000, 3);
        check(5000, 1000, 3);
        check(u64::MAX, 0, 3);
        assert_eq!(oom_score(QosClass::Guaranteed, 1, 2), -997);
        assert_eq!(oom_score(QosClass::BestEffort, 1, 2), 1000);
    }
}
