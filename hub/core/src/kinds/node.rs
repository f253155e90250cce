//! Node, with both forms of `spec.configSource`.
//!
//! Inside `configSource.configMap` upstream's old rules hold (422). `{}`, `configMapRef` and both forms
//! together are stored with a warning: the node validates them. The `status.config` that a node reports
//! follows upstream's rules, too. A status write may not change spec.

use kedge_api::NOT_READY_TAINT;
use serde_json::{Value, json};

use super::kind::{Kind, Selectable};
use super::names;
use super::pod_spec::resources::validate_amount;
use super::pod_spec::scheduling::validate_taints;
use super::rules;
use super::table::{Column, age};
use crate::field_error::{FieldError, FieldErrors};
use crate::identity;
use crate::value::{at, text};

/// Longest `configSource` text.
const REFERENCE_BYTES: usize = 253;

/// core/v1 Node.
pub static NODE: Kind = Kind {
    kind: "Node",
    plural: "nodes",
    singular: "node",
    short_names: &["no"],
    namespaced: false,
    status: true,
    status_on_create: true,
    type_name: "core/v1/Node",
    selectable: &[Selectable {
        label: "spec.unschedulable",
        value: |node| node["spec"]["unschedulable"].as_bool().unwrap_or(false).to_string(),
    }],
    refers: identity::references_of_node,
    columns: &[
        Column::NAME,
        Column::text("Status"),
        Column::text("Roles"),
        Column::AGE,
        Column::text("Version"),
        Column::text("Internal-IP").wide(),
        Column::text("External-IP").wide(),
        Column::text("OS-Image").wide(),
        Column::text("Kernel-Version").wide(),
        Column::text("Container-Runtime").wide(),
    ],
    cells,
    prepare,
    convert,
    admitted: &[&["spec", "taints"]],
    validate,
    warnings,
    ..Kind::USUAL
};

fn cells(node: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    let info = |field: &str| match text(node, &["status", "nodeInfo", field]) {
        "" => "<unknown>".to_owned(),
        value => value.to_owned(),
    };
    let mut kernel = info("kernelVersion");
    let architecture = text(node, &["status", "nodeInfo", "architecture"]);
    if !architecture.is_empty() {
        kernel = format!("{kernel} ({architecture})");
    }
    vec![
        text(node, &["metadata", "name"]).into(),
        status(node).into(),
        roles(node).into(),
        age(node, now),
        text(node, &["status", "nodeInfo", "kubeletVersion"]).into(),
        address(node, "InternalIP").into(),
        address(node, "ExternalIP").into(),
        info("osImage").into(),
        kernel.into(),
        info("containerRuntimeVersion").into(),
    ]
}

fn items<'a>(node: &'a Value, path: &[&str]) -> impl Iterator<Item = &'a Value> {
    at(node, path).and_then(Value::as_array).into_iter().flatten()
}

fn ready(node: &Value) -> Option<&Value> {
    items(node, &["status", "conditions"]).find(|condition| condition["type"] == "Ready")
}

/// Address ranges and resources that mean the same, as in upstream's conversions and defaults.
fn convert(node: &mut Value) {
    let same = |range: &Value| range.as_str().unwrap_or("").to_owned();
    super::mirror_first(node, "spec", "podCIDR", "podCIDRs", |range| range.into(), same);
    let capacity = at(node, &["status", "capacity"]).cloned();
    if let Some(capacity) = capacity
        && let Some(status) = node.get_mut("status").and_then(Value::as_object_mut)
    {
        status.entry("allocatable").or_insert(capacity);
    }
}

/// Taints a new Node until it reports that it is ready, in its first visible version, as upstream's admission
/// plugin TaintNodesAtCreation does. Our difference: a Node created ready gets no taint, which saves the
/// write that would remove it (`controllers::nodes`).
fn prepare(node: &mut Value, old: Option<&Value>) {
    let is_it = |taint: &Value| taint["key"] == NOT_READY_TAINT && taint["effect"] == "NoSchedule";
    if old.is_some()
        || ready(node).is_some_and(|ready| ready["status"] == "True")
        || items(node, &["spec", "taints"]).any(is_it)
    {
        return;
    }
    let spec = node.as_object_mut().map(|node| node.entry("spec").or_insert_with(|| json!({})));
    let taints = spec
        .and_then(Value::as_object_mut)
        .and_then(|spec| spec.entry("taints").or_insert_with(|| json!([])).as_array_mut());
    // the schema refused any other type
    if let Some(taints) = taints {
        taints.push(json!({"key": NOT_READY_TAINT, "effect": "NoSchedule"}));
    }
}

fn status(node: &Value) -> String {
    let ready = ready(node);
    let mut shown = match ready.map(|condition| text(condition, &["status"])) {
        None => "Unknown".to_owned(),
        Some("True") => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
    };
    if node["spec"]["unschedulable"] == true {
        shown.push_str(",SchedulingDisabled");
    }
    shown
}

fn roles(node: &Value) -> String {
    let labels = at(node, &["metadata", "labels"]).and_then(Value::as_object);
    let mut roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role).filter(|role| !role.is_empty()),
            None => value.as_str().filter(|role| key == "kubernetes.io/role" && !role.is_empty()),
        })
        .collect();
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}

fn address(node: &Value, of: &str) -> String {
    items(node, &["status", "addresses"])
        .find(|address| address["type"] == of)
        .map_or("<none>", |address| text(address, &["address"]))
        .to_owned()
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
    validate_taints(rules::list(&new["spec"], "taints"), errors);
    if let Some(source) = at(new, &["spec", "configSource"]) {
        validate_source(source, errors);
    }
    // only changed fields: a node with a value that an older hub accepted must be able to report
    let changes = |part: &str, field: &str| old.is_none_or(|old| old[part][field] != new[part][field]);
    let (config, before) = (&new["status"]["config"], old.map(|old| &old["status"]["config"]));
    for part in ["assigned", "active", "lastKnownGood"] {
        if let Some(reported) = at(config, &[part]).filter(|reported| !reported.is_null())
            && before.is_none_or(|before| before[part] != *reported)
        {
            validate_reported(reported, &format!("status.config.{part}"), errors);
        }
    }
    for field in ["capacity", "allocatable"].into_iter().filter(|field| changes("status", field)) {
        for (name, amount) in rules::entries(&new["status"], field) {
            validate_amount(name, amount, &format!("status.{field}.{name}"), errors);
        }
    }
    if old.is_some() && changes("status", "addresses") {
        validate_addresses(&new["status"], errors);
    }
    if changes("spec", "podCIDRs") {
        validate_networks(&new["spec"], errors);
    }
    if let Some(old) = old {
        if text(old, &["spec", "externalID"]) != text(new, &["spec", "externalID"]) {
            errors.push(FieldError::forbidden("spec.externalID", "may not be updated"));
        }
        for (field, called) in [("podCIDR", "podCIDR"), ("podCIDRs", "podCIDR"), ("providerID", "providerID")]
        {
            let (was, is) = (&old["spec"][field], &new["spec"][field]);
            if !was.is_null() && was != is {
                let why = format!("node updates may not change {called} except from \"\" to valid");
                errors.push(FieldError::forbidden(format!("spec.{field}"), &why));
            }
        }
    }
}

/// A node may have several addresses of a type, but none twice.
fn validate_addresses(status: &Value, errors: &mut FieldErrors) {
    let mut seen = std::collections::BTreeSet::new();
    for (index, address) in rules::list(status, "addresses").iter().enumerate() {
        if !seen.insert((text(address, &["type"]), text(address, &["address"]))) {
            errors.push(FieldError::duplicate(format!("status.addresses[{index}]"), address.clone()));
        }
    }
}

fn validate_networks(spec: &Value, errors: &mut FieldErrors) {
    let path = "spec.podCIDRs";
    let listed = rules::list(spec, "podCIDRs");
    let read = |(index, network): (usize, &Value)| {
        rules::network(network.as_str().unwrap_or(""), &format!("{path}[{index}]"), errors)
    };
    let addresses: Vec<std::net::IpAddr> = listed.iter().enumerate().filter_map(read).collect();
    if listed.len() > 2 || !rules::is_one_per_family(&addresses) {
        let why = "may specify no more than one CIDR for each IP family";
        errors.push(FieldError::invalid(path, listed.to_vec(), why));
    }
}

fn validate_source(source: &Value, errors: &mut FieldErrors) {
    if let Some(reference) = source.get("configMapRef") {
        for (field, value) in reference.as_object().into_iter().flatten() {
            if value.as_str().is_some_and(|value| value.len() > REFERENCE_BYTES) {
                let path = format!("spec.configSource.configMapRef.{field}");
                errors.push(FieldError::too_long(path, REFERENCE_BYTES));
            }
        }
    }
    let Some(map) = source.get("configMap") else { return };
    let path = "spec.configSource.configMap";
    for field in ["uid", "resourceVersion"].into_iter().filter(|field| !text(map, &[field]).is_empty()) {
        let why = format!("{field} must not be set in spec");
        errors.push(FieldError::forbidden(format!("{path}.{field}"), &why));
    }
    validate_config_map(map, path, errors);
}

/// An assigned, active or last-known-good configuration that a node reports: its object and version.
fn validate_reported(reported: &Value, path: &str, errors: &mut FieldErrors) {
    let Some(map) = reported.get("configMap") else {
        let why = "exactly one reference subfield must be non-nil";
        return errors.push(FieldError::invalid(path, reported.clone(), why));
    };
    let path = format!("{path}.configMap");
    for field in ["uid", "resourceVersion"].into_iter().filter(|field| text(map, &[field]).is_empty()) {
        let why = format!("{field} must be set in status");
        errors.push(FieldError::required(format!("{path}.{field}"), &why));
    }
    validate_config_map(map, &path, errors);
}

/// The reference to an object and key, in the spec or a reported status.
fn validate_config_map(map: &Value, path: &str, errors: &mut FieldErrors) {
    let path = |field: &str| format!("{path}.{field}");
    type Rule = (&'static str, fn(&str) -> Option<String>);
    let rules: [Rule; 3] = [
        ("namespace", |value| names::NameRule::Label.complaint(value)),
        ("name", |value| names::NameRule::Subdomain.complaint(value)),
        ("kubeletConfigKey", names::config_key_complaint),
    ];
    for (field, complaint) in rules {
        match text(map, &[field]) {
            "" => errors.push(FieldError::required(path(field), &format!("{field} must be set"))),
            value => {
                if let Some(complaint) = complaint(value) {
                    errors.push(FieldError::invalid(path(field), value, &complaint));
                }
            }
        }
    }
}

fn warnings(node: &Value, old: Option<&Value>) -> Vec<String> {
    let path = ["spec", "configSource"];
    let Some(source) = at(node, &path) else { return Vec::new() };
    if old.and_then(|old| at(old, &path)) == Some(source) {
        return Vec::new();
    }
    let problem = match (source.get("configMapRef"), source.get("configMap")) {
        (None, None) => {
            "exactly one reference subfield must be non-nil, but all were nil; the node will report it"
        }
        (Some(_), Some(_)) => {
            "configMapRef and configMap are both set; the node will refuse it and report why"
        }
        (Some(reference), None) => {
            let missing =
                ["namespace", "name", "uid"].iter().any(|field| text(reference, &[field]).is_empty());
            if !missing {
                return Vec::new();
            }
            "configMapRef needs namespace, name and uid; the node will refuse it and report why"
        }
        (None, Some(_)) => return Vec::new(),
    };
    vec![format!("spec.configSource: {problem}")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check_source(source: Value, errors_expected: &[&str], warned: bool) {
        let node = json!({"spec": {"configSource": source}});
        let mut errors = FieldErrors::default();
        validate(&node, None, &mut errors);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), errors_expected);
        assert_eq!(!warnings(&node, None).is_empty(), warned, "{node}");
        assert!(warnings(&node, Some(&node)).is_empty(), "only a change is warned about");
    }

    #[test]
    fn config_source_is_refused_warned_about_or_accepted() {
        let map = json!({"namespace": "default", "name": "a", "kubeletConfigKey": "kubelet"});
        let reference = json!({"namespace": "default", "name": "a", "uid": "7f3c"});
        check_source(json!({"configMap": map}), &[], false);
        check_source(json!({"configMapRef": reference}), &[], false);
        check_source(json!({}), &[], true);
        check_source(json!({"configMap": map, "configMapRef": reference}), &[], true);
        check_source(json!({"configMapRef": {"name": "a"}}), &[], true);
        check_source(
            json!({"configMap": {"namespace": "default", "uid": "u", "resourceVersion": "1", "name": "../baz"}}),
            &[
                "spec.configSource.configMap.uid: Forbidden: uid must not be set in spec",
                "spec.configSource.configMap.resourceVersion: Forbidden: resourceVersion must not be set in spec",
                &format!(
                    "spec.configSource.configMap.name: Invalid value: \"../baz\": {}",
                    names::NameRule::Subdomain.complaint("../baz").unwrap()
                ),
                "spec.configSource.configMap.kubeletConfigKey: Required value: kubeletConfigKey must be set",
            ],
            false,
        );
    }

    #[test]
    fn reported_config_names_one_version_of_an_object() {
        let map = json!({"namespace": "default", "name": "a", "kubeletConfigKey": "kubelet"});
        let whole = json!({
            "namespace": "default", "name": "a", "kubeletConfigKey": "kubelet", "uid": "u", "resourceVersion": "1",
        });
        let check = |part: &str, reported: Value, old: Option<Value>, expect: &[&str]| {
            let node = |reported: Value| json!({"status": {"config": {part: reported}}});
            let mut errors = FieldErrors::default();
            validate(&node(reported), old.map(node).as_ref(), &mut errors);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
        };
        for part in ["assigned", "active", "lastKnownGood"] {
            check(part, json!({"configMap": whole}), None, &[]);
            let path = format!("status.config.{part}");
            let missing = [
                format!("{path}.configMap.uid: Required value: uid must be set in status"),
                format!(
                    "{path}.configMap.resourceVersion: Required value: resourceVersion must be set in status"
                ),
            ];
            let missing = missing.each_ref().map(String::as_str);
            check(part, json!({"configMap": map}), None, &missing);
            check(part, json!({"configMap": map}), Some(json!({})), &missing);
            // an older hub accepted it: the node must be able to report the rest
            check(part, json!({"configMap": map}), Some(json!({"configMap": map})), &[]);
            let why = format!("{path}: Invalid value: {{}}: exactly one reference subfield must be non-nil");
            check(part, json!({}), None, &[&why]);
        }
    }

    #[test]
    fn amounts_addresses_and_networks_are_validated() {
        let check = |new: Value, old: Option<Value>, expect: &[&str]| {
            let mut errors = FieldErrors::default();
            validate(&new, old.as_ref(), &mut errors);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
        };
        let status = |status: Value| json!({"status": status});
        check(status(json!({"capacity": {"cpu": "1500m", "example.com/a": "2"}})), None, &[]);
        check(
            status(
                json!({"capacity": {"cpu": "-1"}, "allocatable": {"example.com/a": "500m", "pods": "1500m"}}),
            ),
            None,
            &[
                "status.capacity.cpu: Invalid value: \"-1\": must be greater than or equal to 0",
                "status.allocatable.example.com/a: Invalid value: \"500m\": must be an integer",
                "status.allocatable.pods: Invalid value: \"1500m\": must be an integer",
            ],
        );
        let address = json!({"type": "InternalIP", "address": "10.0.0.1"});
        check(
            status(json!({"addresses": [address, address]})),
            Some(json!({})),
            &["status.addresses[1]: Duplicate value: {\"address\":\"10.0.0.1\",\"type\":\"InternalIP\"}"],
        );
        let twice = status(json!({"addresses": [address, address]}));
        check(twice.clone(), Some(twice), &[]);
        let networks = |networks: &[&str]| json!({"spec": {"podCIDRs": networks}});
        check(networks(&["10.0.0.0/24", "fd00::/64"]), None, &[]);
        check(
            networks(&["10.0.0.0/24", "10.0.1.0/24"]),
            None,
            &[
                "spec.podCIDRs: Invalid value: [\"10.0.0.0/24\",\"10.0.1.0/24\"]: may specify no more than one CIDR for each IP family",
            ],
        );
        check(
            networks(&["nonsense"]),
            None,
            &[
                "spec.podCIDRs[0]: Invalid value: \"nonsense\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
            ],
        );
        check(
            networks(&["10.0.0.0/24"]),
            Some(networks(&["10.0.1.0/24"])),
            &["spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid"],
        );
    }

    #[test]
    fn external_id_stays() {
        let node =
            |id: Option<&str>| id.map_or(json!({"spec": {}}), |id| json!({"spec": {"externalID": id}}));
        let why = "spec.externalID: Forbidden: may not be updated";
        for (was, is, expect) in [
            (Some("a"), Some("a"), &[][..]),
            (None, Some(""), &[]),
            (None, Some("a"), &[why]),
            (Some("a"), None, &[why]),
            (Some("a"), Some("b"), &[why]),
        ] {
            let mut errors = FieldErrors::default();
            validate(&node(is), Some(&node(was)), &mut errors);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
        }
    }

    #[test]
    fn kernel_is_shown_with_its_architecture() {
        let kernel = |info: Value| {
            let node = json!({"status": {"nodeInfo": info}});
            cells(&node, time::OffsetDateTime::UNIX_EPOCH)[8].clone()
        };
        assert_eq!(kernel(json!({"kernelVersion": "6.12", "architecture": "amd64"})), "6.12 (amd64)");
        assert_eq!(kernel(json!({"kernelVersion": "6.12"})), "6.12");
        assert_eq!(kernel(json!({})), "<unknown>");
    }

    #[test]
    fn new_node_is_tainted_until_it_reports_ready() {
        let check = |mut node: Value, expect: &[&str]| {
            prepare(&mut node, None);
            let keys: Vec<&str> =
                items(&node, &["spec", "taints"]).map(|taint| text(taint, &["key"])).collect();
            assert_eq!(keys, expect, "{node}");
            let once = node.clone();
            prepare(&mut node, None);
            assert_eq!(node, once);
        };
        let ready = |status: &str| json!({"conditions": [{"type": "Ready", "status": status}]});
        check(json!({}), &[NOT_READY_TAINT]);
        check(json!({"status": ready("False")}), &[NOT_READY_TAINT]);
        check(json!({"status": ready("True")}), &[]);
        let own = json!({"taints": [{"key": "k", "effect": "NoSchedule"}]});
        check(json!({"spec": own}), &["k", NOT_READY_TAINT]);
        let mut changed = json!({"spec": own});
        prepare(&mut changed, Some(&json!({})));
        assert_eq!(changed["spec"], own, "only at its creation");
    }

    #[test]
    fn status_and_roles_read_like_upstreams() {
        let node = |ready: &str, unschedulable: bool| json!({"spec": {"unschedulable": unschedulable}, "status": {"conditions": [{"type": "Ready", "status": ready}]}});
        assert_eq!(status(&node("True", false)), "Ready");
        assert_eq!(status(&node("Unknown", true)), "NotReady,SchedulingDisabled");
        assert_eq!(status(&json!({})), "Unknown");
        let labels = json!({"metadata": {"labels": {
            "node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge", "other": "x"}}});
        assert_eq!(roles(&labels), "edge,worker");
        assert_eq!(roles(&json!({})), "<none>");
    }
}
