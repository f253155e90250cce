//! Upstream's warnings about a pod or template that is accepted: what is deprecated, has no effect, or has
//! another effect than it seems to.
//!
//! Always holds: only what a change brings is warned about. Leaves to others: what is particular to this hub
//! (`requests::advice`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::names::{self, NameRule};
use super::super::rules::{entries, list};
use super::annotations::{APP_ARMOR, SECCOMP, SECCOMP_POD, containers};
use crate::quantity::Quantity;
use crate::value::{at, text};

const NO_POD: &str = "a null labelSelector results in matching no pod";
const SECCOMP_FIELD: &str = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
const SYSCTLS: &str = "non-functional in v1.11+; use the \"sysctls\" field instead";

/// Labels of nodes that have another name by now.
const LABELS: [(&str, &str); 5] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
];
/// Annotations that do nothing any more.
const ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", SYSCTLS),
    ("security.alpha.kubernetes.io/unsafe-sysctls", SYSCTLS),
];
/// Sources of volumes that are to go, or are gone: the field, upstream's name of it, and since when.
const VOLUMES: [(&str, &str, &str); 9] = [
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "gitRepo", "deprecated in v1.11"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// About the pod or template at this path (empty for a pod), if its spec or its annotations change.
pub(in crate::kinds) fn of_change(new: &Value, old: Option<&Value>, path: &str) -> Vec<String> {
    let same = |old: &Value| {
        old["spec"] == new["spec"] && old["metadata"]["annotations"] == new["metadata"]["annotations"]
    };
    if old.is_some_and(same) {
        return Vec::new();
    }
    let known = old.map(|old| of(old, path)).unwrap_or_default();
    of(new, path).into_iter().filter(|warning| !known.contains(warning)).collect()
}

/// About the name of a new pod, which its hostname is made of.
pub(in crate::kinds) fn of_name(name: &str) -> Option<String> {
    let why = NameRule::Label.complaint(name)?;
    Some(format!(
        "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [{why}]"
    ))
}

fn of(pod: &Value, path: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    let (meta, spec) = (format!("{path}metadata.annotations"), format!("{path}spec"));
    of_placement(&pod["spec"], &spec, &mut warnings);
    for (key, why) in ANNOTATIONS.iter().filter(|(key, _)| has_annotation(pod, key)) {
        warnings.push(format!("{meta}[{key}]: {why}"));
    }
    for (index, volume) in list(&pod["spec"], "volumes").iter().enumerate() {
        for (_, called, why) in VOLUMES.iter().filter(|(source, _, _)| volume.get(*source).is_some()) {
            warnings.push(format!("{spec}.volumes[{index}].{called}: {why}"));
        }
        of_paths(volume, &mut warnings);
    }
    of_lists(&pod["spec"], &spec, &mut warnings);
    fractional(&pod["spec"]["overhead"], &format!("{spec}.overhead"), &mut warnings);
    if has_annotation(pod, SECCOMP_POD) && at(pod, &["spec", "securityContext", "seccompProfile"]).is_none() {
        warnings.push(format!("{meta}[{SECCOMP_POD}]: {SECCOMP_FIELD}"));
    }
    for (field, index, container) in containers(&pod["spec"]) {
        let path_of = format!("{spec}.{field}[{index}]");
        let name = text(container, &["name"]);
        let profile = |field: &str| at(container, &["securityContext", field]).is_some();
        let key = format!("{SECCOMP}{name}");
        if has_annotation(pod, &key) && !profile("seccompProfile") {
            warnings.push(format!("{meta}[{key}]: {SECCOMP_FIELD}"));
        }
        let key = format!("{APP_ARMOR}{name}");
        let of_pod = at(pod, &["spec", "securityContext", "appArmorProfile"]).is_some();
        // only in a template, as upstream
        if !path.is_empty() && has_annotation(pod, &key) && !of_pod && !profile("appArmorProfile") {
            let why = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
            warnings.push(format!("{meta}[{key}]: {why}"));
        }
        for part in ["limits", "requests"] {
            let path = format!("{path_of}.resources.{part}");
            fractional(&container["resources"][part], &path, &mut warnings);
        }
        hidden(container, &path_of, &mut warnings);
    }
    of_ports(&pod["spec"], &spec, &mut warnings);
    if pod["spec"]["terminationGracePeriodSeconds"].as_i64().is_some_and(|secs| secs < 0) {
        warnings.push(format!(
            "{spec}.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
        ));
    }
    of_affinity(&pod["spec"], &spec, &mut warnings);
    warnings
}

fn has_annotation(pod: &Value, key: &str) -> bool {
    at(pod, &["metadata", "annotations", key]).is_some()
}

fn deprecated(label: &str) -> Option<&'static str> {
    LABELS.iter().find(|(known, _)| *known == label).map(|(_, why)| *why)
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Labels of nodes, by which a pod finds its own.
fn of_placement(spec: &Value, path: &str, warnings: &mut Vec<String>) {
    for (key, _) in entries(spec, "nodeSelector") {
        warnings.extend(deprecated(key).map(|why| format!("{path}.nodeSelector[{key}]: {why}")));
    }
    let node = &spec["affinity"]["nodeAffinity"];
    let path_of = format!("{path}.affinity.nodeAffinity");
    for (index, term) in list(&node[REQUIRED], "nodeSelectorTerms").iter().enumerate() {
        of_term(term, false, &format!("{path_of}.{REQUIRED}.nodeSelectorTerms[{index}]"), warnings);
    }
    for (index, term) in list(node, PREFERRED).iter().enumerate() {
        of_term(&term["preference"], true, &format!("{path_of}.{PREFERRED}[{index}].preference"), warnings);
    }
    for (index, spread) in list(spec, "topologySpreadConstraints").iter().enumerate() {
        let path = format!("{path}.topologySpreadConstraints[{index}]");
        let key = text(spread, &["topologyKey"]);
        warnings.extend(deprecated(key).map(|why| format!("{path}.topologyKey: {key} is {why}")));
        if spread.get("labelSelector").is_none() {
            warnings.push(format!("{path}.labelSelector: {NO_POD}"));
        }
    }
}

/// `values`: validation leaves them free here.
fn of_term(term: &Value, values: bool, path: &str, warnings: &mut Vec<String>) {
    for (index, rule) in list(term, "matchExpressions").iter().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        let key = text(rule, &["key"]);
        warnings.extend(deprecated(key).map(|why| format!("{path}.key: {key} is {why}")));
        for (index, value) in list(rule, "values").iter().filter_map(Value::as_str).enumerate() {
            if let Some(why) = names::label_value_complaint(value).filter(|_| values) {
                warnings.push(format!("{path}.values[{index}]: {value} is invalid, {why}"));
            }
        }
    }
}

fn of_affinity(spec: &Value, path: &str, warnings: &mut Vec<String>) {
    for sort in ["podAffinity", "podAntiAffinity"] {
        let path = format!("{path}.affinity.{sort}");
        let affinity = &spec["affinity"][sort];
        for (index, term) in list(affinity, REQUIRED).iter().enumerate() {
            if term.get("labelSelector").is_none() {
                warnings.push(format!("{path}.{REQUIRED}[{index}].labelSelector: {NO_POD}"));
            }
        }
        for (index, term) in list(affinity, PREFERRED).iter().enumerate() {
            if at(term, &["podAffinityTerm", "labelSelector"]).is_none() {
                warnings.push(format!("{path}.{PREFERRED}[{index}].podAffinityTerm.labelSelector: {NO_POD}"));
            }
        }
    }
}

/// Files of a volume of which one hides another, or cannot be there beside it.
fn of_paths(volume: &Value, warnings: &mut Vec<String>) {
    let name = text(volume, &["name"]);
    let named = |sort: &str, name: &str| format!("{sort} {name:?}");
    for (source, sort) in [
        ("configMap", named("ConfigMap", text(volume, &["configMap", "name"]))),
        ("secret", named("Secret", text(volume, &["secret", "secretName"]))),
        ("downwardAPI", "DownwardAPI".to_owned()),
    ] {
        let items = list(&volume[source], "items").iter();
        let paths = items.map(|item| (text(item, &["path"]), String::new()));
        overlaps(paths.collect(), &format!("volume {name:?} ({sort}): overlapping paths"), warnings);
    }
    let mut paths = Vec::new();
    for source in list(&volume["projected"], "sources") {
        if source.as_object().is_none_or(serde_json::Map::is_empty) {
            warnings.push(format!("volume {name:?} (Projected) has no sources provided"));
        }
        for (field, sort) in
            [("configMap", "ConfigMap"), ("secret", "Secret"), ("downwardAPI", "DownwardAPI")]
        {
            let called = match field {
                "downwardAPI" => sort.to_owned(),
                _ => named(sort, text(source, &[field, "name"])),
            };
            let items = list(&source[field], "items").iter();
            paths.extend(items.map(|item| (text(item, &["path"]), called.clone())));
        }
        if let Some(token) = source.get("serviceAccountToken") {
            paths.push((text(token, &["path"]), "ServiceAccountToken".to_owned()));
        }
        if let Some(bundle) = source.get("clusterTrustBundle") {
            let of = ["name", "signerName"].map(|field| text(bundle, &[field])).into_iter();
            let of = of.clone().find(|of| !of.is_empty()).unwrap_or_default();
            paths.push((text(bundle, &["path"]), named("ClusterTrustBundle", of)));
        }
        for (field, of) in [
            ("certificateChainPath", "chain"),
            ("keyPath", "key"),
            ("credentialBundlePath", "credential bundle"),
        ] {
            let path = text(source, &["podCertificate", field]);
            paths.push((path, format!("PodCertificate {of}")));
        }
    }
    overlaps(paths, &format!("volume {name:?} (Projected): overlapping paths"), warnings);
}

/// Each path is compared with those before it; a path has a word about where it is from, or none.
fn overlaps(paths: Vec<(&str, String)>, about: &str, warnings: &mut Vec<String>) {
    let shown = |(path, from): &(&str, String)| match from.as_str() {
        "" => format!("{path:?}"),
        from => format!("{path:?} ({from})"),
    };
    let is_within = |one: &str, other: &str| {
        one.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let mut before: Vec<(&str, String)> = Vec::new();
    for (path, from) in paths {
        let one = (path.trim_end_matches('/'), from);
        if one.0.is_empty() {
            continue;
        }
        for other in before.iter().filter(|other| is_within(one.0, other.0) || is_within(other.0, one.0)) {
            // a thousand files at one path make half a million pairs
            if warnings.len() >= MOST {
                return;
            }
            warnings.push(format!("{about}: {} with {}", shown(&one), shown(other)));
        }
        before.push(one);
    }
}

/// More are not sent.
const MOST: usize = 64;

fn of_lists(spec: &Value, path: &str, warnings: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (index, alias) in list(spec, "hostAliases").iter().enumerate() {
        let ip = text(alias, &["ip"]);
        if !seen.insert(ip) {
            warnings.push(format!("{path}.hostAliases[{index}].ip: duplicate ip {ip:?}"));
        }
    }
    let mut seen = BTreeSet::new();
    for (index, secret) in list(spec, "imagePullSecrets").iter().enumerate() {
        let name = text(secret, &["name"]);
        let path = format!("{path}.imagePullSecrets[{index}].name");
        if !seen.insert(name) {
            warnings.push(format!("{path}: duplicate name {name:?}"));
        }
        if name.is_empty() {
            warnings.push(format!("{path}: invalid empty name {name:?}"));
        }
    }
}

/// Parts of bytes, which there are none of.
fn fractional(amounts: &Value, path: &str, warnings: &mut Vec<String>) {
    for name in ["memory", "ephemeral-storage"] {
        let Some(amount) = amounts[name].as_str().and_then(Quantity::parse) else { continue };
        if !amount.is_whole() {
            let why = format!("fractional byte value \"{amount}\" is invalid, must be an integer");
            warnings.push(format!("{path}[{name}]: {why}"));
        }
    }
}

/// A variable that is set twice, unless the second time adds to the first.
fn hidden(container: &Value, path: &str, warnings: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (index, variable) in list(container, "env").iter().enumerate() {
        let (name, value) = (text(variable, &["name"]), text(variable, &["value"]));
        let before = format!("$({name})");
        let adds = variable.get("valueFrom").is_none() && value != before && value.contains(&before);
        if !seen.insert(name) && !adds {
            warnings.push(format!(
                "{path}.env[{index}]: hides previous definition of {name:?}, which may be dropped when using apply"
            ));
        }
    }
}

fn of_ports(spec: &Value, path: &str, warnings: &mut Vec<String>) {
    // path, address and port of the host, by what they lead to
    type OnHost<'a> = (String, &'a str, i64);
    let mut ports: BTreeMap<(i64, &str), Vec<OnHost<'_>>> = BTreeMap::new();
    let mut names: BTreeMap<&str, String> = BTreeMap::new();
    let mut of_names = Vec::new();
    for (field, index, container) in containers(spec) {
        for (number, port) in list(container, "ports").iter().enumerate() {
            let path = format!("{path}.{field}[{index}].ports[{number}]");
            let (address, host) = (text(port, &["hostIP"]), port["hostPort"].as_i64().unwrap_or(0));
            let inner = port["containerPort"].as_i64().unwrap_or(0);
            let (name, protocol) = (text(port, &["name"]), text(port, &["protocol"]));
            if !address.is_empty() && host == 0 {
                warnings.push(format!(
                    "{path}: hostIP set without hostPort: {{Name:{name} HostPort:{host} ContainerPort:{inner} Protocol:{protocol} HostIP:{address}}}"
                ));
            }
            let others = ports.entry((inner, protocol)).or_default();
            for (other, other_address, other_host) in others.iter().take(MOST) {
                let same = host == *other_host;
                let what = if same && address == *other_address {
                    "duplicate"
                } else if host == 0 || *other_host == 0 {
                    "overlapping"
                } else if same && address.is_empty() != other_address.is_empty() {
                    "dangerously ambiguous"
                } else {
                    continue;
                };
                warnings.push(format!("{path}: {what} port definition with {other}"));
            }
            others.push((path.clone(), address, host));
            match names.get(name) {
                Some(other) => of_names.push(format!(
                    "{path}: duplicate port name {name:?} with {other}, services and probes that select ports by name will use {other}"
                )),
                None if !name.is_empty() => drop(names.insert(name, path)),
                None => {}
            }
        }
    }
    warnings.append(&mut of_names);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(spec: Value, expect: &[&str]) {
        assert_eq!(of_change(&json!({"spec": spec}), None, ""), expect, "{spec}");
    }

    fn container(container: Value) -> Value {
        json!({"containers": [container]})
    }

    #[test]
    fn warnings_are_upstreams() {
        check(json!({"containers": [{"name": "c", "resources": {"limits": {"memory": "1Gi"}}}]}), &[]);
        check(
            json!({"nodeSelector": {"beta.kubernetes.io/os": "linux"},
                "topologySpreadConstraints": [{"topologyKey": "failure-domain.beta.kubernetes.io/zone"}]}),
            &[
                "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
                "spec.topologySpreadConstraints[0].topologyKey: failure-domain.beta.kubernetes.io/zone is deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
                "spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
            ],
        );
        let rule = json!({"key": "beta.kubernetes.io/arch", "operator": "In", "values": ["a b"]});
        let node = "spec.affinity.nodeAffinity";
        let (required, preferred) =
            (format!("{node}.{REQUIRED}"), format!("{node}.{PREFERRED}[0].preference"));
        let why = "beta.kubernetes.io/arch is deprecated since v1.14; use \"kubernetes.io/arch\" instead";
        let form = names::label_value_complaint("a b").unwrap();
        check(
            json!({"affinity": {"nodeAffinity": {
                REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [rule]}]},
                PREFERRED: [{"weight": 1, "preference": {"matchExpressions": [rule]}}]}}}),
            &[
                &format!("{required}.nodeSelectorTerms[0].matchExpressions[0].key: {why}"),
                &format!("{preferred}.matchExpressions[0].key: {why}"),
                &format!("{preferred}.matchExpressions[0].values[0]: a b is invalid, {form}"),
            ],
        );
        let pods = "a null labelSelector results in matching no pod";
        check(
            json!({"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": "h"}]},
                "podAntiAffinity": {PREFERRED: [{"podAffinityTerm": {"topologyKey": "h"}}]}}}),
            &[
                &format!("spec.affinity.podAffinity.{REQUIRED}[0].labelSelector: {pods}"),
                &format!(
                    "spec.affinity.podAntiAffinity.{PREFERRED}[0].podAffinityTerm.labelSelector: {pods}"
                ),
            ],
        );
        check(
            json!({"volumes": [{"name": "v", "gitRepo": {"repository": "r"}}, {"name": "w", "storageos": {}}]}),
            &[
                "spec.volumes[0].gitRepo: deprecated in v1.11",
                "spec.volumes[1].storageOS: deprecated in v1.22, non-functional in v1.25+",
            ],
        );
        check(
            json!({"hostAliases": [{"ip": "1.1.1.1"}, {"ip": "1.1.1.1"}], "imagePullSecrets": [{"name": "a"}, {"name": "a"}, {}]}),
            &[
                "spec.hostAliases[1].ip: duplicate ip \"1.1.1.1\"",
                "spec.imagePullSecrets[1].name: duplicate name \"a\"",
                "spec.imagePullSecrets[2].name: invalid empty name \"\"",
            ],
        );
        check(
            container(
                json!({"resources": {"limits": {"memory": "1500m", "cpu": "500m"}, "requests": {"ephemeral-storage": "100m"}}}),
            ),
            &[
                "spec.containers[0].resources.limits[memory]: fractional byte value \"1500m\" is invalid, must be an integer",
                "spec.containers[0].resources.requests[ephemeral-storage]: fractional byte value \"100m\" is invalid, must be an integer",
            ],
        );
        check(
            container(
                json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}, {"name": "A", "value": "3"}]}),
            ),
            &[
                "spec.containers[0].env[2]: hides previous definition of \"A\", which may be dropped when using apply",
            ],
        );
        check(
            json!({"terminationGracePeriodSeconds": -1}),
            &[
                "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
            ],
        );
    }

    #[test]
    fn ports_are_compared_across_containers() {
        let port = |fields: Value| {
            let mut port = json!({"containerPort": 80, "protocol": "TCP"});
            port.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            json!({"ports": [port]})
        };
        check(
            container(port(json!({"hostIP": "127.0.0.1", "name": "web"}))),
            &[
                "spec.containers[0].ports[0]: hostIP set without hostPort: {Name:web HostPort:0 ContainerPort:80 Protocol:TCP HostIP:127.0.0.1}",
            ],
        );
        let with = "spec.containers[1].ports[0]";
        let first = "spec.containers[0].ports[0]";
        for (one, other, what) in [
            (json!({}), json!({}), "duplicate port definition"),
            (json!({"hostPort": 1}), json!({}), "overlapping port definition"),
            (
                json!({"hostPort": 1}),
                json!({"hostPort": 1, "hostIP": "1.1.1.1"}),
                "dangerously ambiguous port definition",
            ),
        ] {
            let spec = json!({"containers": [port(one), port(other)]});
            check(spec, &[&format!("{with}: {what} with {first}")]);
        }
        check(json!({"containers": [port(json!({"hostPort": 1})), port(json!({"hostPort": 2}))]}), &[]);
        let named = json!({"containers": [port(json!({"name": "web"})), port(json!({"name": "web", "containerPort": 81}))]});
        check(
            named,
            &[&format!(
                "{with}: duplicate port name \"web\" with {first}, services and probes that select ports by name will use {first}"
            )],
        );
    }

    #[test]
    fn overlapping_files_of_a_volume_are_found() {
        let items =
            |paths: &[&str]| -> Vec<Value> { paths.iter().map(|path| json!({"path": path})).collect() };
        let volume = |source: Value| {
            let mut volume = json!({"name": "v"});
            volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
            json!({"volumes": [volume]})
        };
        check(volume(json!({"configMap": {"name": "c", "items": items(&["a", "ab", "b/c", "b/d"])}})), &[]);
        check(
            volume(json!({"configMap": {"name": "c", "items": items(&["a", "a/b", "a/"])}})),
            &[
                "volume \"v\" (ConfigMap \"c\"): overlapping paths: \"a/b\" with \"a\"",
                "volume \"v\" (ConfigMap \"c\"): overlapping paths: \"a\" with \"a\"",
                "volume \"v\" (ConfigMap \"c\"): overlapping paths: \"a\" with \"a/b\"",
            ],
        );
        check(
            volume(json!({"secret": {"secretName": "s", "items": items(&["a", "a"])}})),
            &["volume \"v\" (Secret \"s\"): overlapping paths: \"a\" with \"a\""],
        );
        check(
            volume(json!({"downwardAPI": {"items": items(&["a", "a"])}})),
            &["volume \"v\" (DownwardAPI): overlapping paths: \"a\" with \"a\""],
        );
        check(
            volume(json!({"projected": {"sources": [
                {"serviceAccountToken": {"path": "t"}},
                {"configMap": {"name": "c", "items": items(&["t"])}},
                {"secret": {"name": "s", "items": items(&["u"])}},
                {"downwardAPI": {"items": items(&["u/v"])}},
                {"clusterTrustBundle": {"signerName": "x", "path": "t"}},
                {}]}})),
            &[
                "volume \"v\" (Projected) has no sources provided",
                "volume \"v\" (Projected): overlapping paths: \"t\" (ConfigMap \"c\") with \"t\" (ServiceAccountToken)",
                "volume \"v\" (Projected): overlapping paths: \"u/v\" (DownwardAPI) with \"u\" (Secret \"s\")",
                "volume \"v\" (Projected): overlapping paths: \"t\" (ClusterTrustBundle \"x\") with \"t\" (ServiceAccountToken)",
                "volume \"v\" (Projected): overlapping paths: \"t\" (ClusterTrustBundle \"x\") with \"t\" (ConfigMap \"c\")",
            ],
        );
        let many = vec!["a"; 1000];
        let pod = json!({"spec": volume(json!({"configMap": {"name": "c", "items": items(&many)}}))});
        assert_eq!(of_change(&pod, None, "").len(), MOST);
    }

    #[test]
    fn annotations_that_do_nothing_are_remarked_upon() {
        let seccomp = "seccomp.security.alpha.kubernetes.io/pod";
        let armor = "container.apparmor.security.beta.kubernetes.io/c";
        let of_container = "container.seccomp.security.alpha.kubernetes.io/c";
        let annotations =
            json!({seccomp: "x", armor: "x", of_container: "x", "security.alpha.kubernetes.io/sysctls": "x"});
        let pod = json!({"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "c"}]}});
        let of = |path: &str| {
            let path = format!("{path}metadata.annotations");
            vec![
                format!("{path}[security.alpha.kubernetes.io/sysctls]: {SYSCTLS}"),
                format!("{path}[{seccomp}]: {SECCOMP_FIELD}"),
                format!("{path}[{of_container}]: {SECCOMP_FIELD}"),
            ]
        };
        assert_eq!(of_change(&pod, None, ""), of(""));
        let mut template = of("spec.template.");
        template.push(format!(
            "spec.template.metadata.annotations[{armor}]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
        ));
        assert_eq!(of_change(&pod, None, "spec.template."), template);
        let mut said = pod.clone();
        let profile = json!({"type": "Unconfined"});
        said["spec"]["securityContext"] = json!({"seccompProfile": profile, "appArmorProfile": profile});
        said["spec"]["containers"][0]["securityContext"] = json!({"seccompProfile": profile});
        assert_eq!(of_change(&said, None, "spec.template."), template[..1]);
    }

    #[test]
    fn only_what_a_change_brings_is_remarked_upon() {
        let pod = |label: &str, aliases: &[&str]| {
            let aliases: Vec<Value> = aliases.iter().map(|ip| json!({"ip": ip})).collect();
            json!({"metadata": {"labels": {"l": label}}, "spec": {"hostAliases": aliases}})
        };
        let old = pod("a", &["1", "1"]);
        assert_eq!(of_change(&old, None, "").len(), 1);
        assert_eq!(of_change(&pod("b", &["1", "1"]), Some(&old), ""), [""; 0]);
        let second = ["spec.hostAliases[2].ip: duplicate ip \"1\""];
        assert_eq!(of_change(&pod("a", &["1", "1", "1"]), Some(&old), ""), second);
    }

    #[test]
    fn name_that_is_no_label_is_remarked_upon() {
        assert_eq!(of_name("a-b"), None);
        let long = "a".repeat(64);
        for name in ["a.b", &long] {
            let found = of_name(name).unwrap();
            assert!(found.starts_with("metadata.name: this is used in the Pod's hostname, "), "{found}");
            assert!(found.ends_with(']'), "{found}");
        }
    }
}
