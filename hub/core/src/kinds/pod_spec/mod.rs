//! Upstream's defaults and rules of `PodSpec`, for pods and pod templates.
//!
//! Always holds: defaults only fill absent fields, so applying them twice changes nothing. The rules are those that a node must
//! be able to rely on (names, references inside the pod, ports, resources); other fields of the schema are stored unchecked, and
//! a node refuses unsupported ones itself, with an event.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::names;
use crate::field_error::FieldError;
use crate::value::{at, text};

/// Most containers, volumes, variables and the like of one pod; every rule visits each of them.
const LIST_ITEMS: usize = 1000;

fn each<'a>(value: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    let list = value.get_mut(field).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter(|item| item.is_object())
}

/// The object at a path, if there is one.
fn object<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut Map<String, Value>> {
    path.iter().try_fold(value, |value, field| value.get_mut(*field))?.as_object_mut()
}

fn fill(value: &mut Value, path: &[&str], defaults: &[(&str, Value)]) {
    let Some(fields) = object(value, path) else { return };
    for (field, value) in defaults {
        if fields.get(*field).is_none_or(Value::is_null) {
            fields.insert((*field).to_owned(), value.clone());
        }
    }
}

/// Sets upstream's defaults in the spec of a pod or template. An absent spec stays absent and is refused later.
pub fn set_defaults(spec: &mut Value) {
    fill(
        spec,
        &[],
        &[
            ("restartPolicy", "Always".into()),
            ("dnsPolicy", "ClusterFirst".into()),
            ("terminationGracePeriodSeconds", 30.into()),
            ("schedulerName", "default-scheduler".into()),
            ("securityContext", json!({})),
        ],
    );
    // two names of one field, kept equal as upstream does
    for (from, to) in [("serviceAccountName", "serviceAccount"), ("serviceAccount", "serviceAccountName")] {
        if let Some(name) = spec.get(from).cloned() {
            fill(spec, &[], &[(to, name)]);
        }
    }
    let host_network = spec["hostNetwork"] == true;
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in each(spec, list) {
            container_defaults(container, host_network, list != "ephemeralContainers");
        }
    }
    for volume in each(spec, "volumes") {
        volume_defaults(volume);
    }
}

fn container_defaults(container: &mut Value, host_network: bool, has_resources: bool) {
    let policy = if is_latest(text(container, &["image"])) { "Always" } else { "IfNotPresent" };
    let mut defaults = vec![
        ("terminationMessagePath", "/dev/termination-log".into()),
        ("terminationMessagePolicy", "File".into()),
        ("imagePullPolicy", policy.into()),
    ];
    if has_resources {
        defaults.push(("resources", json!({})));
    }
    fill(container, &[], &defaults);
    let limits = at(container, &["resources", "limits"]).and_then(Value::as_object).cloned();
    for (name, limit) in limits.unwrap_or_default() {
        fill(container, &["resources"], &[("requests", json!({}))]);
        fill(container, &["resources", "requests"], &[(&name, limit)]);
    }
    for port in each(container, "ports") {
        fill(port, &[], &[("protocol", "TCP".into())]);
        if host_network && let Some(number) = port.get("containerPort").cloned() {
            fill(port, &[], &[("hostPort", number)]);
        }
    }
    for variable in each(container, "env") {
        fill(variable, &["valueFrom", "fieldRef"], &[("apiVersion", "v1".into())]);
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        probe_defaults(container, probe);
    }
    for hook in ["postStart", "preStop"] {
        fill(container, &["lifecycle", hook, "httpGet"], &http_defaults());
    }
}

fn http_defaults() -> [(&'static str, Value); 2] {
    [("path", "/".into()), ("scheme", "HTTP".into())]
}

fn probe_defaults(container: &mut Value, probe: &str) {
    let numbers =
        [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)];
    if let Some(fields) = object(container, &[probe]) {
        for (field, value) in numbers {
            // Go cannot tell an explicit zero from an absent one here
            if fields.get(field).is_none_or(|value| value.is_null() || value == 0) {
                fields.insert(field.to_owned(), value.into());
            }
        }
    }
    fill(container, &[probe, "httpGet"], &http_defaults());
    fill(container, &[probe, "grpc"], &[("service", "".into())]);
}

/// Whether an image names no fixed version: no digest, and no tag or the tag `latest`.
fn is_latest(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let last = image.rsplit('/').next().unwrap_or(image);
    last.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

fn volume_defaults(volume: &mut Value) {
    if volume.as_object().is_some_and(|fields| fields.keys().all(|field| field == "name")) {
        volume["emptyDir"] = json!({});
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        fill(volume, &[source], &[("defaultMode", 0o644.into())]);
    }
    fill(volume, &["hostPath"], &[("type", "".into())]);
    let file = |item: &mut Value| fill(item, &["fieldRef"], &[("apiVersion", "v1".into())]);
    if let Some(source) = volume.get_mut("downwardAPI") {
        each(source, "items").for_each(file);
    }
    if let Some(projected) = volume.get_mut("projected") {
        for source in each(projected, "sources") {
            fill(source, &["serviceAccountToken"], &[("expirationSeconds", 3600.into())]);
            if let Some(source) = source.get_mut("downwardAPI") {
                each(source, "items").for_each(file);
            }
        }
    }
}

fn list<'a>(spec: &'a Value, field: &str) -> &'a [Value] {
    spec.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Validates the spec at `path`.
pub fn validate(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let at_path = |field: &str| format!("{path}.{field}");
    let volumes = validate_volumes(spec, path, errors);
    if list(spec, "containers").is_empty() {
        errors.push(FieldError::required(at_path("containers"), ""));
    }
    let mut names = BTreeSet::new();
    for field in ["containers", "initContainers"] {
        if list(spec, field).len() > LIST_ITEMS {
            errors.push(FieldError::forbidden(at_path(field), "too many containers"));
            continue;
        }
        for (index, container) in list(spec, field).iter().enumerate() {
            let path = format!("{path}.{field}[{index}]");
            let name = text(container, &["name"]);
            if !name.is_empty() && !names.insert(name) {
                errors.push(FieldError::duplicate(format!("{path}.name"), name));
            }
            validate_container(container, &path, &volumes, errors);
        }
    }
    if !list(spec, "ephemeralContainers").is_empty() {
        errors.push(FieldError::forbidden(at_path("ephemeralContainers"), "cannot be set on create"));
    }
    one_of(spec, "restartPolicy", &["Always", "Never", "OnFailure"], path, errors);
    one_of(spec, "dnsPolicy", &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"], path, errors);
    not_negative(spec, "terminationGracePeriodSeconds", path, errors);
    if let Some(seconds) = spec["activeDeadlineSeconds"].as_i64().filter(|seconds| *seconds < 1) {
        let explained = "must be between 1 and 2147483647, inclusive";
        errors.push(FieldError::invalid(at_path("activeDeadlineSeconds"), seconds, explained));
    }
    for field in ["nodeName", "serviceAccountName"] {
        let name = text(spec, &[field]);
        if let Some(why) = names::NameRule::Subdomain.complaint(name).filter(|_| !name.is_empty()) {
            errors.push(FieldError::invalid(at_path(field), name, &why));
        }
    }
    for field in ["hostname", "subdomain"] {
        let name = text(spec, &[field]);
        if let Some(why) = names::NameRule::Label.complaint(name).filter(|_| !name.is_empty()) {
            errors.push(FieldError::invalid(at_path(field), name, &why));
        }
    }
    validate_tolerations(spec, path, errors);
    for (key, value) in spec["nodeSelector"].as_object().into_iter().flatten() {
        if let Some(why) = names::qualified_name_complaint(key) {
            errors.push(FieldError::invalid(at_path("nodeSelector"), key.as_str(), &why));
        }
        if let Some(why) = names::label_value_complaint(value.as_str().unwrap_or("")) {
            errors.push(FieldError::invalid(at_path("nodeSelector"), value.clone(), &why));
        }
    }
}

fn one_of(value: &Value, field: &str, allowed: &[&str], path: &str, errors: &mut Vec<FieldError>) {
    let found = text(value, &[field]);
    if found.is_empty() {
        errors.push(FieldError::required(format!("{path}.{field}"), ""));
    } else if !allowed.contains(&found) {
        errors.push(FieldError::unsupported(format!("{path}.{field}"), found, allowed));
    }
}

fn not_negative(value: &Value, field: &str, path: &str, errors: &mut Vec<FieldError>) {
    if let Some(number) = value[field].as_i64().filter(|number| *number < 0) {
        let explained = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(format!("{path}.{field}"), number, explained));
    }
}

fn validate_name(name: &str, path: &str, errors: &mut Vec<FieldError>) {
    if name.is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    } else if let Some(why) = names::NameRule::Label.complaint(name) {
        errors.push(FieldError::invalid(format!("{path}.name"), name, &why));
    }
}

fn validate_volumes<'a>(spec: &'a Value, path: &str, errors: &mut Vec<FieldError>) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for (index, volume) in list(spec, "volumes").iter().enumerate().take(LIST_ITEMS) {
        let path = format!("{path}.volumes[{index}]");
        let name = text(volume, &["name"]);
        validate_name(name, &path, errors);
        if !name.is_empty() && !names.insert(name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), name));
        }
        if volume.as_object().is_some_and(|fields| fields.len() > 2) {
            errors.push(FieldError::forbidden(path.as_str(), "may not specify more than 1 volume type"));
        }
        if let Some(host) = volume.get("hostPath") {
            match text(host, &["path"]) {
                "" => errors.push(FieldError::required(format!("{path}.hostPath.path"), "")),
                found if found.split('/').any(|part| part == "..") => {
                    errors.push(FieldError::invalid(
                        format!("{path}.hostPath.path"),
                        found,
                        "must not contain '..'",
                    ));
                }
                _ => {}
            }
        }
        for (source, field) in [("secret", "secretName"), ("configMap", "name")] {
            if volume.get(source).is_some_and(|source| text(source, &[field]).is_empty()) {
                errors.push(FieldError::required(format!("{path}.{source}.{field}"), ""));
            }
        }
    }
    if list(spec, "volumes").len() > LIST_ITEMS {
        errors.push(FieldError::forbidden(format!("{path}.volumes"), "too many volumes"));
    }
    names
}

fn validate_container(container: &Value, path: &str, volumes: &BTreeSet<&str>, errors: &mut Vec<FieldError>) {
    validate_name(text(container, &["name"]), path, errors);
    let image = text(container, &["image"]);
    if image.is_empty() {
        errors.push(FieldError::required(format!("{path}.image"), ""));
    } else if image.trim() != image {
        let explained = "must not have leading or trailing whitespace";
        errors.push(FieldError::invalid(format!("{path}.image"), image, explained));
    }
    one_of(container, "imagePullPolicy", &["Always", "IfNotPresent", "Never"], path, errors);
    one_of(container, "terminationMessagePolicy", &["FallbackToLogsOnError", "File"], path, errors);
    let mut port_names = BTreeSet::new();
    for (index, port) in list(container, "ports").iter().enumerate() {
        let path = format!("{path}.ports[{index}]");
        validate_port(port, &path, errors);
        let name = text(port, &["name"]);
        if !name.is_empty() && !port_names.insert(name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), name));
        }
    }
    for (index, variable) in list(container, "env").iter().enumerate() {
        let path = format!("{path}.env[{index}]");
        let name = text(variable, &["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else if name.contains('=') || name.chars().any(char::is_control) {
            let explained = "a valid environment variable name must consist only of printable ASCII characters other than '='";
            errors.push(FieldError::invalid(format!("{path}.name"), name, explained));
        }
        if variable.get("valueFrom").is_some() && !text(variable, &["value"]).is_empty() {
            let explained = "may not be specified when `value` is not empty";
            errors.push(FieldError::invalid(format!("{path}.valueFrom"), "", explained));
        }
    }
    let mut places = BTreeSet::new();
    for (index, mount) in list(container, "volumeMounts").iter().enumerate() {
        let path = format!("{path}.volumeMounts[{index}]");
        let (name, place) = (text(mount, &["name"]), text(mount, &["mountPath"]));
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else if !volumes.contains(name) {
            errors.push(FieldError::not_found(format!("{path}.name"), name));
        }
        if place.is_empty() {
            errors.push(FieldError::required(format!("{path}.mountPath"), ""));
        } else if !places.insert(place) {
            errors.push(FieldError::invalid(format!("{path}.mountPath"), place, "must be unique"));
        }
    }
    validate_resources(&container["resources"], &format!("{path}.resources"), errors);
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(found) = container.get(probe) {
            validate_probe(found, probe, &format!("{path}.{probe}"), errors);
        }
    }
}

fn validate_port(port: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let explained = "must be between 1 and 65535, inclusive";
    match port["containerPort"].as_i64() {
        None | Some(0) => errors.push(FieldError::required(format!("{path}.containerPort"), "")),
        Some(1..=65535) => {}
        Some(number) => {
            errors.push(FieldError::invalid(format!("{path}.containerPort"), number, explained));
        }
    }
    if let Some(number) = port["hostPort"].as_i64().filter(|number| !(0..=65535).contains(number)) {
        errors.push(FieldError::invalid(format!("{path}.hostPort"), number, explained));
    }
    one_of(port, "protocol", &["SCTP", "TCP", "UDP"], path, errors);
    let name = text(port, &["name"]);
    if name.len() > 15 {
        errors.push(FieldError::invalid(format!("{path}.name"), name, "must be no more than 15 characters"));
    }
}

fn validate_probe(probe: &Value, sort: &str, path: &str, errors: &mut Vec<FieldError>) {
    let ways = ["exec", "httpGet", "tcpSocket", "grpc"];
    match ways.iter().filter(|way| probe.get(**way).is_some()).count() {
        0 => errors.push(FieldError::required(path, "must specify a handler type")),
        1 => {}
        _ => errors.push(FieldError::forbidden(path, "may not specify more than 1 handler type")),
    }
    for field in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "failureThreshold"] {
        not_negative(probe, field, path, errors);
    }
    let successes = probe["successThreshold"].as_i64().unwrap_or(1);
    if sort != "readinessProbe" && successes != 1 {
        errors.push(FieldError::invalid(format!("{path}.successThreshold"), successes, "must be 1"));
    }
}

fn validate_resources(resources: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for part in ["limits", "requests"] {
        for (name, quantity) in resources[part].as_object().into_iter().flatten() {
            if quantity.as_str().and_then(amount).is_some_and(|amount| amount < 0.0) {
                let explained = "must be greater than or equal to 0";
                errors.push(FieldError::invalid(
                    format!("{path}.{part}[{name}]"),
                    quantity.clone(),
                    explained,
                ));
            }
        }
    }
    for (name, requested) in resources["requests"].as_object().into_iter().flatten() {
        let read = |value: &Value| value.as_str().and_then(amount);
        let Some(limit) = resources["limits"].get(name) else { continue };
        if let (Some(asked), Some(most)) = (read(requested), read(limit))
            && asked > most
        {
            let limit = limit.as_str().unwrap_or("");
            let explained = format!("must be less than or equal to {name} limit of {limit}");
            errors.push(FieldError::invalid(format!("{path}.requests"), requested.clone(), &explained));
        }
    }
}

/// A quantity as a number, precise enough to compare two of them.
pub fn amount(quantity: &str) -> Option<f64> {
    let number_len = quantity.find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | '+' | '-'));
    let (number, suffix) = quantity.split_at(number_len.unwrap_or(quantity.len()));
    let number: f64 = number.parse().ok()?;
    let factor = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024_f64.powi(2),
        "Gi" => 1024_f64.powi(3),
        "Ti" => 1024_f64.powi(4),
        "Pi" => 1024_f64.powi(5),
        "Ei" => 1024_f64.powi(6),
        exponent => 10_f64.powi(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    Some(number * factor)
}

fn validate_tolerations(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (index, toleration) in list(spec, "tolerations").iter().enumerate() {
        let path = format!("{path}.tolerations[{index}]");
        let (key, operator) = (text(toleration, &["key"]), text(toleration, &["operator"]));
        if let Some(why) = names::qualified_name_complaint(key).filter(|_| !key.is_empty()) {
            errors.push(FieldError::invalid(format!("{path}.key"), key, &why));
        }
        if key.is_empty() && operator != "Exists" {
            let explained =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(FieldError::invalid(format!("{path}.operator"), operator, explained));
        }
        match operator {
            "" | "Equal" | "Lt" | "Gt" => {}
            "Exists" if text(toleration, &["value"]).is_empty() => {}
            "Exists" => {
                let explained = "value must be empty when `operator` is 'Exists'";
                errors.push(FieldError::invalid(format!("{path}.operator"), toleration.clone(), explained));
            }
            other => {
                errors.push(FieldError::unsupported(format!("{path}.operator"), other, &["Equal", "Exists"]));
            }
        }
        let effect = text(toleration, &["effect"]);
        if !matches!(effect, "" | "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            let allowed = ["NoExecute", "NoSchedule", "PreferNoSchedule"];
            errors.push(FieldError::unsupported(format!("{path}.effect"), effect, &allowed));
        }
        if toleration.get("tolerationSeconds").is_some() && effect != "NoExecute" {
            let explained = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(format!("{path}.effect"), effect, explained));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mut spec: Value, expect: &[&str]) {
        set_defaults(&mut spec);
        let mut errors = Vec::new();
        validate(&spec, "spec", &mut errors);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expect);
    }

    fn with(container: Value) -> Value {
        let mut full = json!({"name": "c", "image": "i:1"});
        for (key, value) in container.as_object().unwrap() {
            full[key] = value.clone();
        }
        json!({"containers": [full]})
    }

    #[test]
    fn absent_fields_get_upstreams_defaults_once() {
        let mut spec = json!({"hostNetwork": true, "serviceAccount": "s",
            "containers": [{"name": "c", "image": "reg:5000/a", "ports": [{"containerPort": 80}],
                "resources": {"limits": {"cpu": "1"}},
                "livenessProbe": {"httpGet": {"port": 80}, "periodSeconds": 0}}],
            "volumes": [{"name": "v"}, {"name": "s", "secret": {"secretName": "x"}}]});
        set_defaults(&mut spec);
        let container = &spec["containers"][0];
        assert_eq!(container["imagePullPolicy"], "Always");
        assert_eq!(container["ports"][0], json!({"containerPort": 80, "hostPort": 80, "protocol": "TCP"}));
        assert_eq!(container["resources"]["requests"]["cpu"], "1");
        assert_eq!(container["livenessProbe"]["httpGet"], json!({"port": 80, "path": "/", "scheme": "HTTP"}));
        assert_eq!(container["livenessProbe"]["periodSeconds"], 10);
        assert_eq!(spec["volumes"][0], json!({"name": "v", "emptyDir": {}}));
        assert_eq!(spec["volumes"][1]["secret"]["defaultMode"], 420);
        assert_eq!((&spec["serviceAccountName"], &spec["restartPolicy"]), (&json!("s"), &json!("Always")));
        let once = spec.clone();
        set_defaults(&mut spec);
        assert_eq!(spec, once);
    }

    #[test]
    fn image_without_a_fixed_version_is_always_pulled() {
        for (image, latest) in [
            ("a", true),
            ("a:latest", true),
            ("reg:5000/a", true),
            ("a:1", false),
            ("reg:5000/a:1", false),
            ("a@sha256:00", false),
        ] {
            assert_eq!(is_latest(image), latest, "{image}");
        }
    }

    #[test]
    fn containers_are_judged() {
        check(with(json!({})), &[]);
        check(json!({}), &["spec.containers: Required value"]);
        check(
            json!({"containers": [{"name": "a", "image": "i"}, {"name": "a"}]}),
            &["spec.containers[1].name: Duplicate value: \"a\"", "spec.containers[1].image: Required value"],
        );
        check(
            with(json!({"imagePullPolicy": "Sometimes"})),
            &[
                "spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
            ],
        );
        check(
            with(json!({"ports": [{"containerPort": 70000}, {}]})),
            &[
                "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
                "spec.containers[0].ports[1].containerPort: Required value",
            ],
        );
        check(
            with(json!({"volumeMounts": [{"name": "v", "mountPath": "/a"}]})),
            &["spec.containers[0].volumeMounts[0].name: Not found: \"v\""],
        );
        check(
            with(json!({"resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}}})),
            &[
                "spec.containers[0].resources.requests: Invalid value: \"2Gi\": must be less than or equal to memory limit of 1Gi",
            ],
        );
        check(
            with(json!({"livenessProbe": {"successThreshold": 2}})),
            &[
                "spec.containers[0].livenessProbe: Required value: must specify a handler type",
                "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
            ],
        );
        check(with(json!({"env": [{"value": "x"}]})), &["spec.containers[0].env[0].name: Required value"]);
    }

    #[test]
    fn volumes_policies_and_tolerations_are_validated() {
        let spec = |field: &str, value: Value| {
            let mut spec = with(json!({}));
            spec[field] = value;
            spec
        };
        check(
            spec("restartPolicy", json!("x")),
            &[
                "spec.restartPolicy: Unsupported value: \"x\": supported values: \"Always\", \"Never\", \"OnFailure\"",
            ],
        );
        check(
            spec("volumes", json!([{"name": "a"}, {"name": "a"}])),
            &["spec.volumes[1].name: Duplicate value: \"a\""],
        );
        check(
            spec("volumes", json!([{"name": "a", "emptyDir": {}, "hostPath": {"path": "/x/../y"}}])),
            &[
                "spec.volumes[0]: Forbidden: may not specify more than 1 volume type",
                "spec.volumes[0].hostPath.path: Invalid value: \"/x/../y\": must not contain '..'",
            ],
        );
        check(spec("tolerations", json!([{"operator": "Exists"}])), &[]);
        check(
            spec("tolerations", json!([{"key": "a", "operator": "x"}])),
            &[
                "spec.tolerations[0].operator: Unsupported value: \"x\": supported values: \"Equal\", \"Exists\"",
            ],
        );
    }

    #[test]
    fn quantities_compare() {
        for (less, more) in [("100m", "1"), ("1k", "1Ki"), ("1e3", "1001"), ("900Mi", "1Gi")] {
            assert!(amount(less) < amount(more), "{less} {more}");
        }
    }
}
