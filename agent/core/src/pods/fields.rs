//! Values about the pod itself: `fieldRef` and `resourceFieldRef`, as variables and as files.
//!
//! Always holds: paths, formats and rounding are upstream's; for a missing limit of a container the value is
//! the node's allocatable amount. Leaves to others: the use of the values (`environment`, `volumes`).

use crate::pods::event::NodeFacts;
use crate::pods::spec::{Container, Pod, ResourceFieldRef, quantity};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A field as a variable's value; `pod_ips` are those of the status.
pub(crate) fn of_variable(
    path: &str,
    pod: &Pod,
    node: &NodeFacts,
    pod_ips: &[String],
) -> Result<String, String> {
    let first = |addresses: &[String]| addresses.first().cloned().unwrap_or_default();
    Ok(match path {
        "spec.nodeName" => node.name.clone(),
        "spec.serviceAccountName" => pod.spec.service_account_name.clone(),
        // only the first, as in the status
        "status.hostIP" | "status.hostIPs" => first(&node.addresses),
        "status.podIP" => first(pod_ips),
        "status.podIPs" => pod_ips.join(","),
        _ => return of_both(path, pod),
    })
}

/// A field as a file's content.
pub(crate) fn of_file(path: &str, pod: &Pod) -> Result<String, String> {
    match path {
        "metadata.labels" => Ok(lines_of(&pod.labels)),
        "metadata.annotations" => Ok(lines_of(&pod.annotations)),
        _ => of_both(path, pod),
    }
}

fn of_both(path: &str, pod: &Pod) -> Result<String, String> {
    let keyed = |prefix: &str| path.strip_prefix(prefix)?.strip_prefix("['")?.strip_suffix("']");
    let of = |map: &BTreeMap<String, String>, key: &str| map.get(key).cloned().unwrap_or_default();
    match path {
        "metadata.name" => return Ok(pod.name.clone()),
        "metadata.namespace" => return Ok(pod.namespace.clone()),
        "metadata.uid" => return Ok(pod.uid.as_str().to_owned()),
        _ => {}
    }
    match (keyed("metadata.labels"), keyed("metadata.annotations")) {
        (Some(key), _) => Ok(of(&pod.labels, key)),
        (None, Some(key)) => Ok(of(&pod.annotations, key)),
        (None, None) => Err(format!("unsupported fieldPath: {}", kedge_api::excerpt(path))),
    }
}

/// `key="value"`, one a line, sorted; the last line has no line break.
fn lines_of(map: &BTreeMap<String, String>) -> String {
    let lines: Vec<String> = map.iter().map(|(key, value)| format!("{key}={}", quoted(value))).collect();
    lines.join("\n")
}

/// Quotes a text as Go's `%q` does.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len().saturating_add(2));
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            ' ' => quoted.push(' '),
            other if other < ' ' || other == '\u{7f}' => _ = write!(quoted, "\\x{:02x}", u32::from(other)),
            other if other.is_control() || other.is_whitespace() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(other));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// A container's request or limit in units of the divisor, rounded up.
pub(crate) fn of_resource(
    selector: &ResourceFieldRef,
    container: &Container,
    node: &NodeFacts,
) -> Result<String, String> {
    let text = kedge_api::excerpt(&selector.resource);
    let unsupported = || format!("unsupported container resource : {text}");
    let (list, resource) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let resources = &container.resources;
    let milli = |list: &BTreeMap<String, Value>| {
        list.get(resource).and_then(quantity).map(|quantity| i128::from(quantity.milli_units()))
    };
    let whole = |value: u64| i128::from(value).saturating_mul(1000);
    let own = match (list, resource) {
        // the API server fills in requests from limits
        ("requests", "cpu" | "memory" | "ephemeral-storage") => {
            milli(&resources.requests).or(milli(&resources.limits)).unwrap_or(0)
        }
        ("limits", "cpu") => milli(&resources.limits).unwrap_or(i128::from(node.cpu_milli)),
        ("limits", "memory") => milli(&resources.limits).unwrap_or(whole(node.memory_bytes)),
        ("limits", "ephemeral-storage") => {
            let of_node = || node.storage_bytes.map(whole);
            let none = || "the node's ephemeral storage is not known".to_owned();
            milli(&resources.limits).or_else(of_node).ok_or_else(none)?
        }
        _ => return Err(unsupported()),
    };
    let divisor = match &selector.divisor {
        Value::Null => 1000,
        given => match quantity(given).map(|quantity| i128::from(quantity.milli_units())) {
            // as upstream: counts as unset
            Some(0) => 1000,
            Some(divisor) => divisor,
            None => return Err(format!("divisor {given} is not a quantity")),
        },
    };
    Ok(own.saturating_add(divisor.saturating_sub(1)).div_euclid(divisor).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        Pod::read(&json!({
            "metadata": {"name": "p", "namespace": "d", "uid": "u", "labels": {"app": "x", "a/b": "y"},
                "annotations": {"note": "say \"hi\"\n\ttwice\\ ä\u{1}\u{85}"}},
            "spec": {"serviceAccountName": "runs", "containers": [{"name": "a", "resources": {
                "limits": {"cpu": "1500m"}, "requests": {"memory": "100Mi", "ephemeral-storage": "1Gi"}}}]}
        }))
        .unwrap()
    }

    fn node() -> NodeFacts {
        NodeFacts {
            name: "edge".into(),
            addresses: vec!["10.0.0.1".into(), "fd00::1".into()],
            cpu_milli: 3900,
            memory_bytes: 1 << 30,
            storage_bytes: Some(3 << 30),
            ..NodeFacts::default()
        }
    }

    #[test]
    fn fields_have_upstream_values() {
        let ips = ["10.0.0.2".to_owned(), "fd00::2".to_owned()];
        for (path, variable, file) in [
            ("metadata.name", Some("p"), Some("p")),
            ("metadata.namespace", Some("d"), Some("d")),
            ("metadata.uid", Some("u"), Some("u")),
            ("metadata.labels['app']", Some("x"), Some("x")),
            ("metadata.labels['absent']", Some(""), Some("")),
            (
                "metadata.annotations['note']",
                Some("say \"hi\"\n\ttwice\\ ä\u{1}\u{85}"),
                Some("say \"hi\"\n\ttwice\\ ä\u{1}\u{85}"),
            ),
            ("metadata.labels", None, Some("a/b=\"y\"\napp=\"x\"")),
            ("metadata.annotations", None, Some(r#"note="say \"hi\"\n\ttwice\\ ä\x01\u0085""#)),
            ("spec.nodeName", Some("edge"), None),
            ("spec.serviceAccountName", Some("runs"), None),
            ("status.hostIP", Some("10.0.0.1"), None),
            ("status.hostIPs", Some("10.0.0.1"), None),
            ("status.podIP", Some("10.0.0.2"), None),
            ("status.podIPs", Some("10.0.0.2,fd00::2"), None),
            ("status.phase", None, None),
            ("metadata.labels[app]", None, None),
        ] {
            assert_eq!(of_variable(path, &pod(), &node(), &ips).ok().as_deref(), variable, "{path}");
            assert_eq!(of_file(path, &pod()).ok().as_deref(), file, "{path}");
        }
    }

    #[test]
    fn resources_are_rounded_up_to_the_divisor() {
        let pod = pod();
        let check = |resource: &str, divisor: Value, expect: Option<&str>| {
            let selector =
                ResourceFieldRef { resource: resource.into(), divisor, ..ResourceFieldRef::default() };
            let found = of_resource(&selector, &pod.spec.containers[0], &node());
            assert_eq!(found.ok().as_deref(), expect, "{resource}");
        };
        check("limits.cpu", Value::Null, Some("2"));
        check("limits.cpu", json!("0"), Some("2"));
        check("limits.cpu", json!("1m"), Some("1500"));
        check("requests.cpu", json!("1m"), Some("1500"));
        check("limits.memory", json!("1Mi"), Some("1024"));
        check("requests.memory", json!("1M"), Some("105"));
        check("requests.memory", Value::Null, Some("104857600"));
        check("requests.ephemeral-storage", json!("1Gi"), Some("1"));
        check("limits.ephemeral-storage", json!("1Gi"), Some("3"));
        check("limits.cpu", json!("x"), None);
        check("cpu", Value::Null, None);
    }
}
