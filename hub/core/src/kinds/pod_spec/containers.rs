//! Containers: their names, images, ports, variables, mounts, probes and hooks.
//!
//! Always holds: the volumes and claims that a container uses exist in the pod. Leaves to others: its
//! resources and its security context, volumes, and whether an image or a referred-to object exists.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::names::{self, NameRule};
use super::super::rules::{self, Errors, list, one_of, optional_one_of, required};
use super::{resources, security};
use crate::field_error::FieldError;
use crate::quantity::Quantity;
use crate::value::{at, text};

/// Most restart rules of a container.
const RESTART_RULES: usize = 20;
/// Most exit codes of a restart rule: there are only 255.
const EXIT_CODES: usize = 255;
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];
const ONE_SOURCE: &str = "may not have more than one field specified at a time";

/// The fields of its pod that an environment variable may show.
const VARIABLE_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// The fields of its pod that a file may show.
pub(super) const FILE_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
/// The fields that upstream's conversion knows.
const CONVERTED_FIELDS: [&str; 15] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.host",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.phase",
    "status.podIP",
    "status.podIPs",
];
/// The resources of a container that a variable or file may show, besides huge pages.
const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const DIVISORS: [&str; 13] =
    ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// The parts of a pod that the rules of its containers depend on.
pub(super) struct Pod<'a> {
    pub(super) volumes: BTreeMap<&'a str, &'a Value>,
    pub(super) claims: BTreeSet<&'a str>,
    pub(super) grace_secs: Option<i64>,
    pub(super) never_restarts: bool,
    pub(super) has_host_users: bool,
    pub(super) os: &'a str,
    /// A pod itself, not the template of one.
    pub(super) is_pod: bool,
}

/// The list that a container is in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Regular,
    Init,
}

/// One container.
pub(super) fn validate(container: &Value, sort: Sort, pod: &Pod<'_>, path: &str, errors: &mut Errors) {
    let name_path = format!("{path}.name");
    required(container, "name", path, errors);
    rules::name(text(container, &["name"]), NameRule::Label, &name_path, errors);
    required(container, "image", path, errors);
    if pod.is_pod {
        validate_image(text(container, &["image"]), path, errors);
    }
    one_of(container, "terminationMessagePolicy", &["File", "FallbackToLogsOnError"], path, errors);
    validate_ports(container, path, errors);
    validate_environment(container, pod, path, errors);
    validate_mounts(container, pod, path, errors);
    validate_devices(container, pod, path, errors);
    one_of(container, "imagePullPolicy", &PULL_POLICIES, path, errors);
    resources::validate_container(&container["resources"], &pod.claims, &format!("{path}.resources"), errors);
    validate_resizing(container, sort, pod, path, errors);
    let context = &container["securityContext"];
    security::validate_container(context, pod.has_host_users, &format!("{path}.securityContext"), errors);
    validate_restarts(container, path, errors);
    validate_hooks(container, sort, pod, path, errors);
}

/// No spaces around the name of an image.
pub(in crate::kinds) fn validate_image(image: &str, path: &str, errors: &mut Errors) {
    if image.trim() != image {
        let why = "must not have leading or trailing whitespace";
        errors.push(FieldError::invalid(format!("{path}.image"), image, why));
    }
}

fn validate_ports(container: &Value, path: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, port) in list(container, "ports").iter().enumerate() {
        let path = format!("{path}.ports[{index}]");
        let name = text(port, &["name"]);
        let name_path = format!("{path}.name");
        if !name.is_empty() && rules::port_name(name, &name_path, errors) && !seen.insert(name) {
            errors.push(FieldError::duplicate(name_path, name));
        }
        match port["containerPort"].as_i64() {
            None | Some(0) => errors.push(FieldError::required(format!("{path}.containerPort"), "")),
            Some(number) => rules::port_number(number, &format!("{path}.containerPort"), errors),
        }
        if let Some(number) = port["hostPort"].as_i64().filter(|number| *number != 0) {
            rules::port_number(number, &format!("{path}.hostPort"), errors);
        }
        one_of(port, "protocol", &["SCTP", "TCP", "UDP"], &path, errors);
    }
}

/// Host ports that two of these containers both use; init containers are checked one by one, because they run
/// one after the other.
pub(super) fn validate_host_ports<'a>(
    containers: impl Iterator<Item = (usize, &'a Value)>,
    path: &str,
    errors: &mut Errors,
) {
    let mut seen = BTreeSet::new();
    for (index, container) in containers {
        for (port_index, port) in list(container, "ports").iter().enumerate() {
            let Some(number) = port["hostPort"].as_i64().filter(|number| *number != 0) else { continue };
            let place = format!("{}/{}/{number}", text(port, &["protocol"]), text(port, &["hostIP"]));
            if !seen.insert(place.clone()) {
                let path = format!("{path}[{index}].ports[{port_index}].hostPort");
                errors.push(FieldError::duplicate(path, place));
            }
        }
    }
}

/// The name of an environment variable, or the beginning of one.
fn validate_variable_name(name: &str, path: &str, errors: &mut Errors) {
    if name.contains('=') || name.chars().any(|letter| !matches!(letter, ' '..='~')) {
        let why = "a valid environment variable name must consist only of printable ASCII characters other than '='";
        errors.push(FieldError::invalid(path, name, why));
    }
}

fn validate_environment(container: &Value, pod: &Pod<'_>, path: &str, errors: &mut Errors) {
    for (index, variable) in list(container, "env").iter().enumerate() {
        let path = format!("{path}.env[{index}]");
        required(variable, "name", &path, errors);
        validate_variable_name(text(variable, &["name"]), &format!("{path}.name"), errors);
        if variable.get("valueFrom").is_some() {
            validate_source(variable, pod, &format!("{path}.valueFrom"), errors);
        }
    }
    let all = format!("{path}.envFrom");
    for (index, source) in list(container, "envFrom").iter().enumerate() {
        let path = format!("{all}[{index}]");
        validate_variable_name(text(source, &["prefix"]), &format!("{path}.prefix"), errors);
        let mut sources = 0;
        for field in ["configMapRef", "secretRef"] {
            let Some(reference) = source.get(field) else { continue };
            sources += 1;
            let path = format!("{path}.{field}");
            required(reference, "name", &path, errors);
            rules::name(text(reference, &["name"]), NameRule::Subdomain, &format!("{path}.name"), errors);
        }
        match sources {
            0 => {
                let why = "must specify one of: `configMapRef` or `secretRef`";
                errors.push(FieldError::invalid(all.as_str(), "", why));
            }
            1 => {}
            _ => errors.push(FieldError::invalid(all.as_str(), "", ONE_SOURCE)),
        }
    }
}

/// `valueFrom` of a variable.
fn validate_source(variable: &Value, pod: &Pod<'_>, path: &str, errors: &mut Errors) {
    let source = &variable["valueFrom"];
    let sources = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
    for (field, reference) in sources.iter().filter_map(|field| Some((*field, source.get(*field)?))) {
        let path = format!("{path}.{field}");
        match field {
            "fieldRef" => validate_field(reference, &VARIABLE_FIELDS, &path, errors),
            "resourceFieldRef" => validate_resource_field(reference, false, &path, errors),
            "fileKeyRef" => validate_file_key(reference, pod, &path, errors),
            _ => validate_key(reference, &path, errors),
        }
    }
    let given = sources.iter().filter(|field| source.get(**field).is_some()).count();
    let why = match given {
        0 => {
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        }
        _ if !text(variable, &["value"]).is_empty() => "may not be specified when `value` is not empty",
        1 => return,
        _ => ONE_SOURCE,
    };
    errors.push(FieldError::invalid(path, "", why));
}

/// A key of a ConfigMap or Secret.
fn validate_key(reference: &Value, path: &str, errors: &mut Errors) {
    let name = text(reference, &["name"]);
    if let Some(why) = NameRule::Subdomain.complaint(name) {
        errors.push(FieldError::invalid(format!("{path}.name"), name, &why));
    }
    let key = text(reference, &["key"]);
    required(reference, "key", path, errors);
    if let Some(why) = names::config_key_complaint(key).filter(|_| !key.is_empty()) {
        errors.push(FieldError::invalid(format!("{path}.key"), key, &why));
    }
}

/// A variable from a file, which must be in a volume that only this pod has.
fn validate_file_key(reference: &Value, pod: &Pod<'_>, path: &str, errors: &mut Errors) {
    for field in ["key", "volumeName", "path"] {
        required(reference, field, path, errors);
    }
    validate_variable_name(text(reference, &["key"]), &format!("{path}.key"), errors);
    rules::no_backsteps(text(reference, &["path"]), &format!("{path}.path"), errors);
    let name = text(reference, &["volumeName"]);
    let name_path = format!("{path}.volumeName");
    match pod.volumes.get(name) {
        None => errors.push(FieldError::not_found(name_path, name)),
        Some(volume) if volume.get("emptyDir").is_none() => {
            let why = "referenced volume must be of type emptyDir";
            errors.push(FieldError::invalid(name_path, name, why));
        }
        Some(_) => {}
    }
}

/// A path such as `metadata.labels['key']`, and its key.
fn subscripted(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['")
}

/// A field of the pod, for a variable or a file.
pub(super) fn validate_field(reference: &Value, allowed: &[&str], path: &str, errors: &mut Errors) {
    let field = text(reference, &["fieldPath"]);
    let version = text(reference, &["apiVersion"]);
    for (value, name) in [(version, "apiVersion"), (field, "fieldPath")] {
        if value.is_empty() {
            return errors.push(FieldError::required(format!("{path}.{name}"), ""));
        }
    }
    let mut refuse = |why: String| {
        let why = format!("error converting fieldPath: {why}");
        errors.push(FieldError::invalid(format!("{path}.fieldPath"), field, &why));
    };
    if version != "v1" {
        return refuse(format!("unsupported pod version: {version}"));
    }
    match subscripted(field) {
        Some(("metadata.annotations", key)) => rules::label_key(&key.to_lowercase(), path, errors),
        Some(("metadata.labels", key)) => rules::label_key(key, path, errors),
        Some(_) => refuse(format!("field label does not support subscript: {field}")),
        None if !CONVERTED_FIELDS.contains(&field) => refuse(format!("field label not supported: {field}")),
        None => {
            let field = if field == "spec.host" { "spec.nodeName" } else { field };
            if !allowed.contains(&field) {
                errors.push(FieldError::unsupported(format!("{path}.fieldPath"), field, allowed));
            }
        }
    }
}

/// A resource of a container, for a variable or a file.
pub(super) fn validate_resource_field(reference: &Value, of_file: bool, path: &str, errors: &mut Errors) {
    let name = text(reference, &["resource"]);
    let is_huge = name.starts_with("limits.hugepages-") || name.starts_with("requests.hugepages-");
    if of_file && text(reference, &["containerName"]).is_empty() {
        errors.push(FieldError::required(format!("{path}.containerName"), ""));
    } else if name.is_empty() {
        errors.push(FieldError::required(format!("{path}.resource"), ""));
    } else if !RESOURCE_FIELDS.contains(&name) && !is_huge {
        errors.push(FieldError::unsupported(format!("{path}.resource"), name, &RESOURCE_FIELDS));
    }
    let divisor = text(reference, &["divisor"]);
    if Quantity::parse(divisor).is_none_or(|divisor| divisor == Quantity::ZERO) {
        return;
    }
    let (allowed, called) = match name.split_once('.').map_or("", |(_, name)| name) {
        "cpu" => (&["1m", "1"][..], "cpu"),
        "memory" => (&DIVISORS[..], "memory"),
        "ephemeral-storage" => (&DIVISORS[..], "local ephemeral storage"),
        _ if is_huge => (&DIVISORS[..], "hugepages"),
        _ => return,
    };
    if !allowed.contains(&divisor) {
        let listed = if called == "cpu" { "1m and 1".to_owned() } else { allowed.join(", ") };
        let why = format!("only divisor's values {listed} are supported with the {called} resource");
        errors.push(FieldError::invalid(format!("{path}.divisor"), name, &why));
    }
}

fn validate_mounts(container: &Value, pod: &Pod<'_>, path: &str, errors: &mut Errors) {
    let all = format!("{path}.volumeMounts");
    let privileged = at(container, &["securityContext", "privileged"]).is_some_and(|is| *is == true);
    let mut places = BTreeSet::new();
    for (index, mount) in list(container, "volumeMounts").iter().enumerate() {
        let path = format!("{all}[{index}]");
        let (name, place) = (text(mount, &["name"]), text(mount, &["mountPath"]));
        required(mount, "name", &path, errors);
        if !pod.volumes.contains_key(name) {
            errors.push(FieldError::not_found(format!("{path}.name"), name));
        }
        required(mount, "mountPath", &path, errors);
        if !places.insert(place) {
            errors.push(FieldError::invalid(format!("{path}.mountPath"), place, "must be unique"));
        }
        // upstream's errors name the list here
        let (sub, expression) = (text(mount, &["subPath"]), text(mount, &["subPathExpr"]));
        rules::descending_path(sub, &format!("{all}.subPath"), errors);
        if !sub.is_empty() && !expression.is_empty() {
            let why = "subPathExpr and subPath are mutually exclusive";
            errors.push(FieldError::invalid(format!("{path}.subPathExpr"), expression, why));
        }
        rules::descending_path(expression, &format!("{all}.subPathExpr"), errors);
        validate_propagation(mount, privileged, &all, errors);
    }
}

fn validate_propagation(mount: &Value, privileged: bool, path: &str, errors: &mut Errors) {
    let allowed = ["Bidirectional", "HostToContainer", "None"];
    optional_one_of(mount, "mountPropagation", &allowed, path, errors);
    let propagation = text(mount, &["mountPropagation"]);
    if propagation == "Bidirectional" && !privileged {
        let why = "Bidirectional mount propagation is available only to privileged containers";
        errors.push(FieldError::forbidden(format!("{path}.mountPropagation"), why));
    }
    optional_one_of(mount, "recursiveReadOnly", &["Disabled", "Enabled", "IfPossible"], path, errors);
    if matches!(text(mount, &["recursiveReadOnly"]), "Enabled" | "IfPossible") {
        let mut forbid =
            |why: &str| errors.push(FieldError::forbidden(format!("{path}.recursiveReadOnly"), why));
        if mount["readOnly"] != true {
            forbid("may only be specified when readOnly is true");
        }
        if !matches!(propagation, "" | "None") {
            forbid("may only be specified when mountPropagation is None or not specified");
        }
    }
}

fn validate_devices(container: &Value, pod: &Pod<'_>, path: &str, errors: &mut Errors) {
    let mounts = list(container, "volumeMounts");
    // a volume is either mounted as files or given as a device, and a path has only one of them
    let mounted: BTreeSet<(&str, &str)> = mounts
        .iter()
        .flat_map(|mount| ["name", "mountPath"].map(|field| (field, text(mount, &[field]))))
        .collect();
    let mut seen = BTreeSet::new();
    for (index, device) in list(container, "volumeDevices").iter().enumerate() {
        let path = format!("{path}.volumeDevices[{index}]");
        let (name, place) = (text(device, &["name"]), text(device, &["devicePath"]));
        for (field, value, of_mount) in [("name", name, "name"), ("devicePath", place, "mountPath")] {
            required(device, field, &path, errors);
            let mut refuse = |why: &str| {
                errors.push(FieldError::invalid(format!("{path}.{field}"), value, why));
            };
            if !value.is_empty() && !seen.insert((field, value)) {
                refuse("must be unique");
            }
            if mounted.contains(&(of_mount, value)) {
                let as_path = if field == "name" { "" } else { " as a path" };
                refuse(&format!("must not already exist{as_path} in volumeMounts"));
            }
        }
        if place.split('/').any(|part| part == "..") {
            let why = "can not contain backsteps ('..')";
            errors.push(FieldError::invalid(format!("{path}.devicePath"), place, why));
        }
        match pod.volumes.get(name) {
            None => errors.push(FieldError::not_found(format!("{path}.name"), name)),
            Some(volume)
                if volume.get("persistentVolumeClaim").is_none() && volume.get("ephemeral").is_none() =>
            {
                let why =
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.push(FieldError::invalid(format!("{path}.name"), name, why));
            }
            Some(_) => {}
        }
    }
}

fn validate_resizing(container: &Value, sort: Sort, pod: &Pod<'_>, path: &str, errors: &mut Errors) {
    let all = format!("{path}.resizePolicy");
    let is_sidecar = sort == Sort::Init && container["restartPolicy"] == "Always";
    let mut seen = BTreeSet::new();
    for (index, policy) in list(container, "resizePolicy").iter().enumerate() {
        let (name, restart) = (text(policy, &["resourceName"]), text(policy, &["restartPolicy"]));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("{all}[{index}]"), name));
        }
        for (value, allowed) in [(name, ["cpu", "memory"]), (restart, ["NotRequired", "RestartContainer"])] {
            match value {
                "" => errors.push(FieldError::required(all.as_str(), "")),
                value if !allowed.contains(&value) => {
                    errors.push(FieldError::unsupported(all.as_str(), value, &allowed));
                }
                _ => {}
            }
        }
        if pod.never_restarts && restart != "NotRequired" {
            let why = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.push(FieldError::invalid(all.as_str(), restart, why));
        }
        if sort == Sort::Init && !is_sidecar && restart == "RestartContainer" {
            let why = "must not be set to 'RestartContainer' for non-sidecar initContainers";
            errors.push(FieldError::invalid(format!("{all}[{index}].restartPolicy"), restart, why));
        }
    }
}

/// The container's own restart policy, and its rules.
fn validate_restarts(container: &Value, path: &str, errors: &mut Errors) {
    let rules = list(container, "restartPolicyRules");
    if container.get("restartPolicy").is_none() && !rules.is_empty() {
        let why = "must specify restartPolicy when restart rules are used";
        errors.push(FieldError::required(format!("{path}.restartPolicy"), why));
    }
    optional_one_of(container, "restartPolicy", &["Always", "Never", "OnFailure"], path, errors);
    let path = format!("{path}.restartPolicyRules");
    if rules.len() > RESTART_RULES {
        errors.push(FieldError::too_many(path.as_str(), rules.len(), RESTART_RULES));
    }
    for (index, rule) in rules.iter().enumerate() {
        let path = format!("{path}[{index}]");
        one_of(rule, "action", &["Restart", "RestartAllContainers"], &path, errors);
        let path = format!("{path}.exitCodes");
        let Some(codes) = rule.get("exitCodes") else {
            errors.push(FieldError::required(path, "must be specified"));
            continue;
        };
        one_of(codes, "operator", &["In", "NotIn"], &path, errors);
        let values = list(codes, "values").len();
        if values > EXIT_CODES {
            errors.push(FieldError::too_many(format!("{path}.values"), values, EXIT_CODES));
        }
    }
}

/// Hooks and probes; an init container may have them only if it keeps running.
fn validate_hooks(container: &Value, sort: Sort, pod: &Pod<'_>, path: &str, errors: &mut Errors) {
    if sort == Sort::Init && container["restartPolicy"] != "Always" {
        for field in ["lifecycle", PROBES[0], PROBES[1], PROBES[2]] {
            if container.get(field).is_some() {
                let why = "may not be set for init containers without restartPolicy=Always";
                errors.push(FieldError::forbidden(format!("{path}.{field}"), why));
            }
        }
        return;
    }
    for hook in ["postStart", "preStop"] {
        if let Some(found) = at(container, &["lifecycle", hook]) {
            validate_handler(found, pod, &format!("{path}.lifecycle.{hook}"), errors);
        }
    }
    if at(container, &["lifecycle", "stopSignal"]).is_some() && pod.os.is_empty() {
        let why = "may not be set for containers with empty `spec.os.name`";
        errors.push(FieldError::forbidden(format!("{path}.lifecycle.stopSignal"), why));
    }
    for sort in PROBES {
        if let Some(probe) = container.get(sort) {
            validate_probe(probe, sort, pod, &format!("{path}.{sort}"), errors);
        }
    }
}

fn validate_probe(probe: &Value, sort: &str, pod: &Pod<'_>, path: &str, errors: &mut Errors) {
    validate_handler(probe, pod, path, errors);
    for field in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        rules::not_negative(probe, field, path, errors);
    }
    let grace = probe["terminationGracePeriodSeconds"].as_i64();
    let grace_path = format!("{path}.terminationGracePeriodSeconds");
    if let Some(seconds) = grace.filter(|seconds| *seconds <= 0) {
        errors.push(FieldError::invalid(grace_path.as_str(), seconds, "must be greater than 0"));
    }
    let successes = probe["successThreshold"].as_i64().unwrap_or(1);
    match (sort, grace) {
        ("readinessProbe", Some(seconds)) => {
            errors.push(FieldError::invalid(grace_path, seconds, "must not be set for readinessProbes"));
        }
        ("readinessProbe", None) => {}
        _ if successes != 1 => {
            errors.push(FieldError::invalid(format!("{path}.successThreshold"), successes, "must be 1"));
        }
        _ => {}
    }
}

/// The action of a probe or hook: exactly one.
fn validate_handler(handler: &Value, pod: &Pod<'_>, path: &str, errors: &mut Errors) {
    let ways = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];
    let mut given = ways.iter().filter_map(|way| Some((*way, handler.get(*way)?)));
    let Some((way, action)) = given.next() else {
        return errors.push(FieldError::required(path, "must specify a handler type"));
    };
    for (other, _) in given {
        let why = "may not specify more than 1 handler type";
        errors.push(FieldError::forbidden(format!("{path}.{other}"), why));
    }
    let path = format!("{path}.{way}");
    match way {
        "exec" if list(action, "command").is_empty() => {
            errors.push(FieldError::required(format!("{path}.command"), ""));
        }
        "exec" => {}
        "sleep" => validate_sleep(action, pod, &path, errors),
        _ => rules::port(&action["port"], &format!("{path}.port"), errors),
    }
    if way == "httpGet" {
        required(action, "path", &path, errors);
        one_of(action, "scheme", &["HTTP", "HTTPS"], &path, errors);
        for header in list(action, "httpHeaders") {
            let name = text(header, &["name"]);
            if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
                let why = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
                errors.push(FieldError::invalid(format!("{path}.httpHeaders"), name, why));
            }
        }
    }
}

fn validate_sleep(sleep: &Value, pod: &Pod<'_>, path: &str, errors: &mut Errors) {
    let seconds = sleep["seconds"].as_i64().unwrap_or(0);
    if let Some(most) = pod.grace_secs.filter(|most| !(0..=*most).contains(&seconds)) {
        let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({most})");
        errors.push(FieldError::invalid(path, seconds, &why));
    }
}
