//! The integers of a pod's spec, and the range of each: one table for the hub, which judges objects, and for
//! a node, which reads pods from files that no API server has judged.
//!
//! Always holds: each integer field of upstream's PodSpec that a node serves, or refuses by its own name, has
//! a row; an absent field, or null, is in range; values that are not numbers are left to the reader of the
//! type. Leaves to others: rules between fields.

use serde_json::{Number, Value};
use std::ops::RangeInclusive;

/// User and group ids.
pub const IDS: RangeInclusive<i64> = 0..=i32::MAX as i64;
/// Numbers of ports.
pub const PORTS: RangeInclusive<i64> = 1..=65535;
/// Modes of files.
pub const FILE_MODES: RangeInclusive<i64> = 0..=0o777;
/// `activeDeadlineSeconds`.
pub const DEADLINE_SECS: RangeInclusive<i64> = 1..=i32::MAX as i64;
/// The life in seconds that a projected token may ask for.
pub const TOKEN_SECS: RangeInclusive<i64> = 600..=1 << 32;
/// Weights of preferences.
const WEIGHTS: RangeInclusive<i64> = 1..=100;
const INT32: RangeInclusive<i64> = i32::MIN as i64..=i32::MAX as i64;
/// Counts and seconds of int32 fields; 0 is absent.
const COUNTS: RangeInclusive<i64> = 0..=i32::MAX as i64;
const POSITIVE: RangeInclusive<i64> = 1..=i32::MAX as i64;
const INT64: RangeInclusive<i64> = i64::MIN..=i64::MAX;
const POSITIVE_INT64: RangeInclusive<i64> = 1..=i64::MAX;
const NOT_NEGATIVE_INT64: RangeInclusive<i64> = 0..=i64::MAX;

/// Path in the spec and range. `initContainers[]` and `ephemeralContainers[]` have the rows of
/// `containers[]`, and each probe and hook those of `PROBE` and `HOOK`.
pub const POD_SPEC: &[(&str, RangeInclusive<i64>)] = &[
    ("activeDeadlineSeconds", DEADLINE_SECS),
    ("affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].weight", WEIGHTS),
    ("affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[].weight", WEIGHTS),
    ("affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[].weight", WEIGHTS),
    ("priority", INT32),
    ("securityContext.fsGroup", IDS),
    ("securityContext.runAsGroup", IDS),
    ("securityContext.runAsUser", IDS),
    ("securityContext.supplementalGroups[]", IDS),
    ("terminationGracePeriodSeconds", INT64),
    ("tolerations[].tolerationSeconds", INT64),
    ("topologySpreadConstraints[].maxSkew", POSITIVE),
    ("topologySpreadConstraints[].minDomains", POSITIVE),
    ("volumes[].configMap.defaultMode", FILE_MODES),
    ("volumes[].configMap.items[].mode", FILE_MODES),
    ("volumes[].downwardAPI.defaultMode", FILE_MODES),
    ("volumes[].downwardAPI.items[].mode", FILE_MODES),
    ("volumes[].projected.defaultMode", FILE_MODES),
    ("volumes[].projected.sources[].configMap.items[].mode", FILE_MODES),
    ("volumes[].projected.sources[].downwardAPI.items[].mode", FILE_MODES),
    ("volumes[].projected.sources[].secret.items[].mode", FILE_MODES),
    ("volumes[].projected.sources[].serviceAccountToken.expirationSeconds", TOKEN_SECS),
    ("volumes[].secret.defaultMode", FILE_MODES),
    ("volumes[].secret.items[].mode", FILE_MODES),
];

/// The same of a container.
pub const CONTAINER: &[(&str, RangeInclusive<i64>)] = &[
    ("ports[].containerPort", PORTS),
    ("ports[].hostPort", 0..=65535),
    ("securityContext.runAsGroup", IDS),
    ("securityContext.runAsUser", IDS),
];

/// The same of a probe. A port may also be a name.
pub const PROBE: &[(&str, RangeInclusive<i64>)] = &[
    ("failureThreshold", COUNTS),
    ("grpc.port", PORTS),
    ("httpGet.port", PORTS),
    ("initialDelaySeconds", COUNTS),
    ("periodSeconds", COUNTS),
    ("successThreshold", COUNTS),
    ("tcpSocket.port", PORTS),
    ("terminationGracePeriodSeconds", POSITIVE_INT64),
    ("timeoutSeconds", COUNTS),
];

/// The same of a hook.
pub const HOOK: &[(&str, RangeInclusive<i64>)] =
    &[("httpGet.port", PORTS), ("sleep.seconds", NOT_NEGATIVE_INT64), ("tcpSocket.port", PORTS)];

/// Lists of containers, and where a container has probes and hooks.
const LISTS: [&str; 3] = ["containers[]", "ephemeralContainers[]", "initContainers[]"];
const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];
const HOOKS: [&str; 2] = ["lifecycle.postStart", "lifecycle.preStop"];

/// All rows, with whole paths.
pub fn rows() -> impl Iterator<Item = (String, RangeInclusive<i64>)> {
    let below = |at: String, rows: &'static [(&'static str, RangeInclusive<i64>)]| {
        rows.iter().map(move |(path, range)| (format!("{at}.{path}"), range.clone()))
    };
    let of_list = move |list: &'static str| {
        let probes = PROBES.into_iter().flat_map(move |probe| below(format!("{list}.{probe}"), PROBE));
        let hooks = HOOKS.into_iter().flat_map(move |hook| below(format!("{list}.{hook}"), HOOK));
        below(list.to_owned(), CONTAINER).chain(probes).chain(hooks)
    };
    let own = POD_SPEC.iter().map(|(path, range)| ((*path).to_owned(), range.clone()));
    own.chain(LISTS.into_iter().flat_map(of_list))
}

/// The first number of a spec that is out of its range, in upstream's words: path, value, and what it must
/// be.
#[must_use]
pub fn complaint(spec: &Value) -> Option<String> {
    rows().find_map(|(path, range)| below(spec, &path, "spec", &range))
}

/// Looks below one value, along a path whose lists are marked by `[]`.
fn below(value: &Value, path: &str, at: &str, range: &RangeInclusive<i64>) -> Option<String> {
    let (step, rest) = path.split_once('.').map_or((path, None), |(step, rest)| (step, Some(rest)));
    let name = step.strip_suffix("[]");
    let found = value.get(name.unwrap_or(step))?;
    let at = format!("{at}.{}", name.unwrap_or(step));
    let one = |value: &Value, at: &str| match (rest, value) {
        (Some(rest), value) => below(value, rest, at, range),
        (None, Value::Number(number)) => out_of_range(number, range).map(|why| format!("{at}: {why}")),
        (None, _) => None,
    };
    match name {
        None => one(found, &at),
        Some(_) => {
            let mut items = found.as_array().into_iter().flatten().enumerate();
            items.find_map(|(index, item)| one(item, &format!("{at}[{index}]")))
        }
    }
}

fn out_of_range(number: &Number, range: &RangeInclusive<i64>) -> Option<String> {
    let is_fine = number.as_i64().is_some_and(|number| range.contains(&number));
    let (least, most) = (range.start(), range.end());
    (!is_fine).then(|| format!("Invalid value: {number}: must be between {least} and {most}, inclusive"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn number_out_of_range_is_named_by_its_path() {
        let check = |spec: Value, expect: Option<&str>| assert_eq!(complaint(&spec).as_deref(), expect);
        check(json!({}), None);
        check(json!({"activeDeadlineSeconds": 1, "priority": -5, "terminationGracePeriodSeconds": -1}), None);
        let words = "spec.activeDeadlineSeconds: Invalid value: 18446744073709551615: must be between 1 and 2147483647, inclusive";
        check(json!({"activeDeadlineSeconds": u64::MAX}), Some(words));
        let port =
            |port: Value| json!({"initContainers": [{}, {"livenessProbe": {"httpGet": {"port": port}}}]});
        check(port(json!("web")), None);
        let words = "spec.initContainers[1].livenessProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive";
        check(port(json!(0)), Some(words));
        let words = "spec.securityContext.supplementalGroups[1]: Invalid value: 1.5: must be between 0 and 2147483647, inclusive";
        check(json!({"securityContext": {"supplementalGroups": [1, 1.5]}}), Some(words));
    }
}
