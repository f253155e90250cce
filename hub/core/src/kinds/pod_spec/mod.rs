//! Upstream's defaults and rules of `PodSpec`, for pods and pod templates.
//!
//! Owns: the defaults, and the rules that span a whole spec; containers, volumes, resources, security
//! contexts and scheduling have a file each. Always holds: defaults only fill absent fields, so applying them
//! twice changes nothing. Leaves to others: whether a node can run it. Options of Windows and of volumes that
//! need a cloud are not checked; a node refuses options that it does not support, with an event.

pub(super) mod annotations;
mod containers;
pub(super) mod resources;
pub(super) mod scheduling;
mod security;
mod volumes;
pub(super) mod warnings;

use std::collections::BTreeSet;

use kedge_api::pod_numbers::DEADLINE_SECS;
use serde_json::{Map, Value, json};

use self::containers::Sort;
use super::names::NameRule;
use super::rules::{self, Errors, list, one_of};
use crate::field_error::FieldError;
use crate::value::{at, text};

pub(super) use self::containers::validate_image;

/// Most containers and volumes of one pod; every rule visits each of them.
const LIST_ITEMS: usize = 1000;
/// The limits of the C library for a resolver configuration.
const DNS_SERVERS: usize = 3;
const DNS_SEARCHES: usize = 32;
const DNS_SEARCH_CHARS: usize = 2048;
/// Longest host name that Linux accepts.
const HOST_NAME_BYTES: usize = 64;

/// The owner of a spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// A pod.
    Pod,
    /// A template that pods are made from.
    Template,
}

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

/// Makes both names of the account equal, as upstream's conversions do: the newer one counts, unless it is
/// empty.
pub fn convert(spec: &mut Value) {
    let Some(fields) = spec.as_object_mut() else { return };
    let names = ["serviceAccountName", "serviceAccount"];
    let given = names.iter().filter_map(|name| fields.get(*name)).find(|name| !name.is_null() && *name != "");
    if let Some(given) = given.cloned() {
        names.into_iter().for_each(|name| drop(fields.insert(name.to_owned(), given.clone())));
    }
}

/// Sets upstream's defaults in the spec of a pod or template. An absent spec stays absent and is refused
/// later.
pub fn set_defaults(spec: &mut Value, of: Of) {
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
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in each(spec, list) {
            container_defaults(container, list != "ephemeralContainers");
        }
    }
    if of == Of::Pod {
        set_defaults_of_pod(spec);
    }
    for volume in each(spec, "volumes") {
        volume_defaults(volume);
    }
}

/// Defaults that a template leaves to its pods: requests equal the limits, and ports on the host's network
/// are the host's.
fn set_defaults_of_pod(spec: &mut Value) {
    let host_network = spec["hostNetwork"] == true;
    for list in ["containers", "initContainers"] {
        for container in each(spec, list) {
            let limits = at(container, &["resources", "limits"]).and_then(Value::as_object).cloned();
            for (name, limit) in limits.unwrap_or_default() {
                fill(container, &["resources"], &[("requests", json!({}))]);
                fill(container, &["resources", "requests"], &[(&name, limit)]);
            }
            for port in each(container, "ports").filter(|_| host_network) {
                if let Some(number) = port.get("containerPort").cloned() {
                    fill(port, &[], &[("hostPort", number)]);
                }
            }
        }
    }
    fill(spec, &[], &[("enableServiceLinks", true.into())]);
    // as upstream does, because such pods were accepted once
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|secs| secs < 0) {
        spec["terminationGracePeriodSeconds"] = 1.into();
    }
}

fn container_defaults(container: &mut Value, has_resources: bool) {
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
    for port in each(container, "ports") {
        fill(port, &[], &[("protocol", "TCP".into())]);
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
    fill(container, &[probe], &numbers.map(|(field, value)| (field, value.into())));
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
    let policy = if is_latest(text(volume, &["image", "reference"])) { "Always" } else { "IfNotPresent" };
    fill(volume, &["image"], &[("pullPolicy", policy.into())]);
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

/// Validates the spec at `path`, of a pod itself or of a template.
pub fn validate(spec: &Value, of: Of, path: &str, errors: &mut Errors) {
    let at_path = |field: &str| format!("{path}.{field}");
    for field in ["volumes", "containers", "initContainers"] {
        if list(spec, field).len() > LIST_ITEMS {
            let why = format!("must have at most {LIST_ITEMS} items");
            return errors.push(FieldError::forbidden(at_path(field), &why));
        }
    }
    // from here on the order is upstream's, because clients see the errors in it
    let volumes = volumes::validate(spec, of == Of::Pod, path, errors);
    validate_claims(spec, path, errors);
    let pod = containers::Pod {
        volumes,
        claims: list(spec, "resourceClaims").iter().map(|claim| text(claim, &["name"])).collect(),
        grace_secs: spec["terminationGracePeriodSeconds"].as_i64(),
        never_restarts: spec["restartPolicy"] == "Never",
        has_host_users: spec["hostUsers"] != false,
        os: text(spec, &["os", "name"]),
        is_pod: of == Of::Pod,
    };
    validate_containers(spec, &pod, path, errors);
    if !list(spec, "ephemeralContainers").is_empty() {
        errors.push(FieldError::forbidden(at_path("ephemeralContainers"), "cannot be set on create"));
    }
    resources::validate_pod(spec, path, errors);
    one_of(spec, "restartPolicy", &["Always", "OnFailure", "Never"], path, errors);
    one_of(spec, "dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"], path, errors);
    validate_host_network(spec, of, path, errors);
    rules::labels(spec, "nodeSelector", path, errors);
    security::validate_pod(spec, path, errors);
    validate_dns(spec, &at_path("dnsConfig"), errors);
    validate_host_users(spec, path, errors);
    validate_host_name(spec, path, errors);
    for (field, rule) in [
        ("serviceAccountName", NameRule::Subdomain),
        ("nodeName", NameRule::Subdomain),
        ("hostname", NameRule::Label),
        ("subdomain", NameRule::Label),
        ("priorityClassName", NameRule::Subdomain),
        ("runtimeClassName", NameRule::Subdomain),
    ] {
        rules::name(text(spec, &[field]), rule, &at_path(field), errors);
    }
    rules::between(&spec["activeDeadlineSeconds"], DEADLINE_SECS, &at_path("activeDeadlineSeconds"), errors);
    scheduling::validate(spec, path, errors);
    for (index, alias) in list(spec, "hostAliases").iter().enumerate() {
        let path = at_path(&format!("hostAliases[{index}]"));
        rules::ip(text(alias, &["ip"]), &format!("{path}.ip"), errors);
        for (index, host) in list(alias, "hostnames").iter().enumerate() {
            let host = host.as_str().unwrap_or("");
            rules::name(host, NameRule::Subdomain, &format!("{path}.hostnames[{index}]"), errors);
        }
    }
    rules::optional_one_of(spec, "preemptionPolicy", &["PreemptLowerPriority", "Never"], path, errors);
    if spec.get("os").is_some() {
        one_of(&spec["os"], "name", &["linux", "windows"], &at_path("os"), errors);
    }
}

fn validate_containers(spec: &Value, pod: &containers::Pod<'_>, path: &str, errors: &mut Errors) {
    if list(spec, "containers").is_empty() {
        errors.push(FieldError::required(format!("{path}.containers"), ""));
    }
    let mut names = BTreeSet::new();
    for (field, sort) in [("containers", Sort::Regular), ("initContainers", Sort::Init)] {
        let all = format!("{path}.{field}");
        for (index, container) in list(spec, field).iter().enumerate() {
            let path = format!("{all}[{index}]");
            containers::validate(container, sort, pod, &path, errors);
            let name = text(container, &["name"]);
            if !name.is_empty() && !names.insert(name) {
                errors.push(FieldError::duplicate(format!("{path}.name"), name));
            }
            if sort == Sort::Init {
                containers::validate_host_ports(std::iter::once((index, container)), &all, errors);
            }
        }
        if sort == Sort::Regular {
            containers::validate_host_ports(list(spec, field).iter().enumerate(), &all, errors);
        }
    }
}

/// Claims of devices, by the names under which containers use them.
fn validate_claims(spec: &Value, path: &str, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for (index, claim) in list(spec, "resourceClaims").iter().enumerate() {
        let path = format!("{path}.resourceClaims[{index}]");
        let name = text(claim, &["name"]);
        rules::required(claim, "name", &path, errors);
        rules::name(name, NameRule::Label, &format!("{path}.name"), errors);
        if !name.is_empty() && !names.insert(name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), name));
        }
        let given = ["resourceClaimName", "resourceClaimTemplateName"];
        let why = match given.iter().filter(|field| claim.get(**field).is_some()).count() {
            0 => "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            1 => continue,
            _ => "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
        };
        errors.push(FieldError::invalid(path, claim.clone(), why));
    }
}

/// On the host's network the port of a container is the same on the host.
fn validate_host_network(spec: &Value, of: Of, path: &str, errors: &mut Errors) {
    if spec["hostNetwork"] != true {
        return;
    }
    for (index, container) in list(spec, "containers").iter().enumerate() {
        for (port_index, port) in list(container, "ports").iter().enumerate() {
            let host = port["hostPort"].as_i64().unwrap_or(0);
            // in a template, 0 is filled in when a pod is made from it
            let given = of == Of::Pod || host != 0;
            if given && host != port["containerPort"].as_i64().unwrap_or(0) {
                let path = format!("{path}.containers[{index}].ports[{port_index}].hostPort");
                let why = "must match `containerPort` when `hostNetwork` is true";
                errors.push(FieldError::invalid(path, host, why));
            }
        }
    }
}

fn validate_dns(spec: &Value, path: &str, errors: &mut Errors) {
    let config = &spec["dnsConfig"];
    let servers = list(config, "nameservers");
    if spec["dnsPolicy"] == "None" && config.is_null() {
        let why = "must provide `dnsConfig` when `dnsPolicy` is None";
        return errors.push(FieldError::required(path, why));
    }
    if spec["dnsPolicy"] == "None" && servers.is_empty() {
        let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        return errors.push(FieldError::required(format!("{path}.nameservers"), why));
    }
    let mut refuse = |field: &str, why: String| {
        errors.push(FieldError::invalid(format!("{path}.{field}"), config[field].clone(), &why));
    };
    let searches = list(config, "searches");
    if servers.len() > DNS_SERVERS {
        refuse("nameservers", format!("must not have more than {DNS_SERVERS} nameservers"));
    }
    if searches.len() > DNS_SEARCHES {
        refuse("searches", format!("must not have more than {DNS_SEARCHES} search paths"));
    }
    let joined = searches.iter().map(|search| search.as_str().map_or(0, str::len) + 1).sum::<usize>();
    if joined.saturating_sub(1) > DNS_SEARCH_CHARS {
        let why = format!(
            "must not have more than {DNS_SEARCH_CHARS} characters (including spaces) in the search list"
        );
        refuse("searches", why);
    }
    for (index, server) in servers.iter().enumerate() {
        rules::ip(server.as_str().unwrap_or(""), &format!("{path}.nameservers[{index}]"), errors);
    }
    for (index, search) in searches.iter().filter_map(Value::as_str).enumerate() {
        let search = search.strip_suffix('.').unwrap_or(search);
        // a label of a search path may begin with an underscore
        let plain = search.split('.').map(|label| label.strip_prefix('_').unwrap_or(label));
        let plain = plain.collect::<Vec<_>>().join(".").replace('_', "-");
        rules::name(&plain, NameRule::Subdomain, &format!("{path}.searches[{index}]"), errors);
    }
    for (index, option) in list(config, "options").iter().enumerate() {
        if text(option, &["name"]).is_empty() {
            errors.push(FieldError::required(format!("{path}.options[{index}]"), "must not be empty"));
        }
    }
}

/// A user namespace of the pod's own excludes other namespaces of the host.
fn validate_host_users(spec: &Value, path: &str, errors: &mut Errors) {
    if spec["hostUsers"] != false {
        return;
    }
    let why = "when `hostUsers` is false";
    // upstream's spelling of the last two
    for (field, named) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if spec[field] == true {
            errors.push(FieldError::forbidden(format!("{path}.{named}"), why));
        }
    }
    for field in ["containers", "initContainers"] {
        for (index, container) in list(spec, field).iter().enumerate() {
            if !list(container, "volumeDevices").is_empty() {
                errors.push(FieldError::forbidden(format!("{path}.{field}[{index}].volumeDevices"), why));
            }
        }
    }
}

fn validate_host_name(spec: &Value, path: &str, errors: &mut Errors) {
    let Some(name) = spec["hostnameOverride"].as_str() else { return };
    let path = format!("{path}.hostnameOverride");
    for field in ["setHostnameAsFQDN", "hostNetwork"] {
        if spec[field] == true {
            let why = format!("may not be specified when {field} is true");
            errors.push(FieldError::forbidden(path.as_str(), &why));
        }
    }
    if name.len() > HOST_NAME_BYTES {
        errors.push(FieldError::too_long(path.as_str(), HOST_NAME_BYTES));
    }
    if let Some(why) = NameRule::Subdomain.complaint(name) {
        errors.push(FieldError::invalid(path, name, &why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::schema;

    fn check(mut spec: Value, expect: &[&str]) {
        set_defaults(&mut spec, Of::Pod);
        let mut errors = Errors::default();
        validate(&spec, Of::Pod, "spec", &mut errors);
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
    fn service_account_has_one_name() {
        for (spec, expect) in [
            (json!({"serviceAccountName": "a"}), "a"),
            (json!({"serviceAccount": "a"}), "a"),
            (json!({"serviceAccountName": "a", "serviceAccount": "b"}), "a"),
            (json!({"serviceAccountName": "a", "serviceAccount": ""}), "a"),
            (json!({"serviceAccountName": "", "serviceAccount": "b"}), "b"),
            (json!({"serviceAccountName": null, "serviceAccount": "b"}), "b"),
        ] {
            let mut spec = spec;
            convert(&mut spec);
            assert_eq!(
                (&spec["serviceAccountName"], &spec["serviceAccount"]),
                (&json!(expect), &json!(expect))
            );
        }
        for spec in [json!({}), json!({"serviceAccountName": ""}), json!(null)] {
            let mut same = spec.clone();
            convert(&mut same);
            assert_eq!(same, spec);
        }
    }

    #[test]
    fn absent_fields_get_upstreams_defaults_once() {
        let mut spec = json!({"hostNetwork": true,
            "containers": [{"name": "c", "image": "reg:5000/a", "ports": [{"containerPort": 80}],
                "resources": {"limits": {"cpu": "1"}},
                "livenessProbe": {"httpGet": {"port": 80}}}],
            "volumes": [{"name": "v"}, {"name": "s", "secret": {"secretName": "x"}}]});
        let mut template = spec.clone();
        set_defaults(&mut template, Of::Template);
        assert_eq!(template["containers"][0]["ports"][0], json!({"containerPort": 80, "protocol": "TCP"}));
        assert_eq!(template["containers"][0]["resources"], json!({"limits": {"cpu": "1"}}));
        assert!(template.get("enableServiceLinks").is_none());
        set_defaults(&mut spec, Of::Pod);
        let container = &spec["containers"][0];
        assert_eq!(container["imagePullPolicy"], "Always");
        assert_eq!(container["ports"][0], json!({"containerPort": 80, "hostPort": 80, "protocol": "TCP"}));
        assert_eq!(container["resources"]["requests"]["cpu"], "1");
        assert_eq!(container["livenessProbe"]["httpGet"], json!({"port": 80, "path": "/", "scheme": "HTTP"}));
        assert_eq!(container["livenessProbe"]["periodSeconds"], 10);
        assert_eq!(spec["volumes"][0], json!({"name": "v", "emptyDir": {}}));
        assert_eq!(spec["volumes"][1]["secret"]["defaultMode"], 420);
        assert_eq!(spec["restartPolicy"], "Always");
        let once = spec.clone();
        set_defaults(&mut spec, Of::Pod);
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

    /// A spec with one number in it, at a path whose lists are marked by `[]`.
    fn with_number(path: &str, number: i64) -> Value {
        let step = |inner: Value, step: &str| match step.strip_suffix("[]") {
            Some(name) => json!({name: [inner]}),
            None => json!({step: inner}),
        };
        let mut steps = path.rsplit('.');
        let last = steps.next().unwrap();
        let innermost = match last.strip_suffix("[]") {
            Some(name) => json!({name: [number]}),
            None => json!({last: number}),
        };
        steps.fold(innermost, step)
    }

    /// The complaints of type and rules about the number, at its own path.
    fn complaints_about(path: &str, number: i64) -> Vec<String> {
        let mut spec = with_number(path, number);
        let own = path.replace("[]", "[0]");
        let findings = schema::conform(schema::find("core/v1/PodSpec").unwrap(), &mut spec);
        let mut errors = Errors::default();
        if let Some(container) = spec.pointer_mut("/initContainers/0") {
            container["restartPolicy"] = json!("Always");
        }
        if let Some(constraint) = spec.pointer_mut("/topologySpreadConstraints/0") {
            constraint["whenUnsatisfiable"] = json!("DoNotSchedule");
        }
        set_defaults(&mut spec, Of::Pod);
        validate(&spec, Of::Pod, "spec", &mut errors);
        let at = |text: &String| {
            text.starts_with(&format!("{own}: ")) || text.starts_with(&format!("spec.{own}: "))
        };
        let found = findings.wrong.into_iter().chain(errors.iter().map(ToString::to_string));
        let sleep = own.strip_suffix(".seconds").map(|sleep| format!("spec.{sleep}: "));
        // upstream's error names the volume of such a file, not the item
        let file = own.contains("downwardAPI.items[0].mode").then(|| own.replace(".items[0]", ""));
        let also = [sleep, file.map(|file| format!("spec.{file}: "))];
        found.filter(|text| at(text) || also.iter().flatten().any(|at| text.starts_with(at))).collect()
    }

    #[test]
    fn ranges_that_nodes_share_are_the_rules_here() {
        // no pod is created with ephemeral containers
        let judged = |path: &String| !path.starts_with("ephemeralContainers");
        for (path, range) in kedge_api::pod_numbers::rows().filter(|(path, _)| judged(path)) {
            for inside in [*range.start(), *range.end()] {
                // a sleep is also bounded by the grace period, and these two numbers of a probe by its kind
                let is_bounded =
                    ["sleep.seconds", "successThreshold", "readinessProbe.terminationGracePeriodSeconds"];
                if !is_bounded.iter().any(|end| path.ends_with(end)) {
                    assert_eq!(complaints_about(&path, inside), [""; 0], "{path} {inside}");
                }
            }
            let outside = [range.start().checked_sub(1), range.end().checked_add(1)];
            for outside in outside.into_iter().flatten() {
                assert_ne!(complaints_about(&path, outside), [""; 0], "{path} {outside}");
            }
        }
    }

    /// All numbers below a type, lists marked by `[]`.
    fn numbers(of: &schema::Shape, path: &str, found: &mut Vec<String>) {
        use schema::Shape::{Int32, Int64, IntOrString, List, Message};
        match of {
            Int32 | Int64 | IntOrString => found.push(path.to_owned()),
            List(item) => numbers(item, &format!("{path}[]"), found),
            Message(name) => {
                for field in schema::find(name).into_iter().flat_map(|of| &of.fields) {
                    let dot = if path.is_empty() { "" } else { "." };
                    numbers(&field.shape, &format!("{path}{dot}{}", field.name), found);
                }
            }
            _ => {}
        }
    }

    #[test]
    fn every_number_of_a_pod_has_a_range() {
        let mut all = vec![];
        numbers(&schema::Shape::Message("core/v1/PodSpec"), "", &mut all);
        // nodes refuse other volumes and these rules, whatever numbers they have
        let served =
            ["configMap", "downwardAPI", "projected", "secret"].map(|sort| format!("volumes[].{sort}."));
        all.retain(|path| {
            !path.starts_with("volumes[].") || served.iter().any(|sort| path.starts_with(sort))
        });
        all.retain(|path| !path.contains("restartPolicyRules[]") && !path.contains("podCertificate"));
        let ranges: BTreeSet<String> = kedge_api::pod_numbers::rows().map(|(path, _)| path).collect();
        let without: Vec<&String> = all.iter().filter(|path| !ranges.contains(*path)).collect();
        assert_eq!(without, [""; 0]);
        let unknown: Vec<&String> = ranges.iter().filter(|path| !all.contains(path)).collect();
        assert_eq!(unknown, [""; 0]);
    }

    #[test]
    fn containers_are_judged() {
        check(with(json!({})), &[]);
        check(json!({}), &["spec.containers: Required value"]);
        check(
            json!({"containers": [{"name": "a", "image": "i"}, {"name": "a"}]}),
            &["spec.containers[1].image: Required value", "spec.containers[1].name: Duplicate value: \"a\""],
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
                "spec.restartPolicy: Unsupported value: \"x\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            ],
        );
        check(
            spec("volumes", json!([{"name": "a"}, {"name": "a"}])),
            &["spec.volumes[1].name: Duplicate value: \"a\""],
        );
        check(
            spec("volumes", json!([{"name": "a", "emptyDir": {}, "hostPath": {"path": "/x/../y"}}])),
            &["spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"],
        );
        check(spec("tolerations", json!([{"operator": "Exists"}])), &[]);
        check(
            spec("tolerations", json!([{"key": "a", "operator": "x"}])),
            &[
                "spec.tolerations[0].operator: Unsupported value: \"x\": supported values: \"Equal\", \"Exists\"",
            ],
        );
    }

    /// One field of a good container is replaced; the errors are those of a Kubernetes 1.36 API server.
    #[test]
    fn invalid_containers_get_the_errors_of_kubernetes() {
        let of = |field: &str, value: Value, expect: &[&str]| {
            let mut spec = with(json!({}));
            spec["volumes"] = json!([{"name": "v"}]);
            spec["containers"][0][field] = value;
            let expect: Vec<String> =
                expect.iter().map(|text| format!("spec.containers[0].{field}{text}")).collect();
            check(spec, &expect.iter().map(String::as_str).collect::<Vec<_>>());
        };
        let port = "must be between 1 and 65535, inclusive";
        of(
            "livenessProbe",
            json!({"httpGet": {"port": 0}}),
            &[&format!(".httpGet.port: Invalid value: 0: {port}")],
        );
        of("livenessProbe", json!({"exec": {"command": []}}), &[".exec.command: Required value"]);
        of(
            "readinessProbe",
            json!({"tcpSocket": {"port": "http"}, "grpc": {"port": 1}, "terminationGracePeriodSeconds": 1}),
            &[
                ".grpc: Forbidden: may not specify more than 1 handler type",
                ".terminationGracePeriodSeconds: Invalid value: 1: must not be set for readinessProbes",
            ],
        );
        of(
            "lifecycle",
            json!({"preStop": {"sleep": {"seconds": 31}}}),
            &[
                ".preStop.sleep: Invalid value: 31: must be non-negative and less than terminationGracePeriodSeconds (30)",
            ],
        );
        of(
            "env",
            json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "nosuch"}}}]),
            &[
                "[0].valueFrom.fieldRef.fieldPath: Invalid value: \"nosuch\": error converting fieldPath: field label not supported: nosuch",
            ],
        );
        of(
            "env",
            json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}}]),
            &[],
        );
        of(
            "env",
            json!([{"name": "A=", "value": "x", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a/b"}}}]),
            &[
                "[0].name: Invalid value: \"A=\": a valid environment variable name must consist only of printable ASCII characters other than '='",
                &format!(
                    "[0].valueFrom.secretKeyRef.key: Invalid value: \"a/b\": {}",
                    super::super::names::config_key_complaint("a/b").unwrap()
                ),
                "[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
            ],
        );
        of(
            "envFrom",
            json!([{}]),
            &[": Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`"],
        );
        of(
            "volumeMounts",
            json!([{"name": "v", "mountPath": "/a", "subPath": "../x"},
                {"name": "v", "mountPath": "/a", "mountPropagation": "Bidirectional"}]),
            &[
                ".subPath: Invalid value: \"../x\": must not contain '..'",
                "[1].mountPath: Invalid value: \"/a\": must be unique",
                ".mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers",
            ],
        );
        of(
            "volumeDevices",
            json!([{"name": "v", "devicePath": "/dev/../x"}]),
            &[
                "[0].devicePath: Invalid value: \"/dev/../x\": can not contain backsteps ('..')",
                "[0].name: Invalid value: \"v\": can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
            ],
        );
        of(
            "ports",
            json!([{"containerPort": 80, "hostPort": 1}, {"containerPort": 81, "hostPort": 1, "name": "80"}]),
            &[
                "[1].name: Invalid value: \"80\": must contain at least one letter (a-z)",
                "[1].hostPort: Duplicate value: \"TCP//1\"",
            ],
        );
        of(
            "resizePolicy",
            json!([{"resourceName": "disk", "restartPolicy": "NotRequired"}]),
            &[": Unsupported value: \"disk\": supported values: \"cpu\", \"memory\""],
        );
    }

    #[test]
    fn init_container_has_probes_only_as_a_sidecar() {
        let spec = |policy: Value| {
            let mut spec = with(json!({}));
            spec["initContainers"] = json!([{"name": "i", "image": "i:1", "restartPolicy": policy,
                "startupProbe": {"exec": {"command": ["x"]}}}]);
            spec
        };
        check(spec(json!("Always")), &[]);
        check(
            spec(Value::Null),
            &[
                "spec.initContainers[0].startupProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
            ],
        );
    }

    #[test]
    fn bad_volumes_are_refused_as_upstream() {
        let of = |volume: Value, expect: &[&str]| {
            let mut spec = with(json!({}));
            spec["volumes"] = json!([volume]);
            spec["volumes"][0]["name"] = "v".into();
            let expect: Vec<String> = expect.iter().map(|text| format!("spec.volumes[0]{text}")).collect();
            check(spec, &expect.iter().map(String::as_str).collect::<Vec<_>>());
        };
        of(json!({"hostPath": {"path": "/x", "type": "Directory"}}), &[]);
        of(
            json!({"hostPath": {"path": "/x", "type": "Nope"}}),
            &[
                ".hostPath.type: Unsupported value: \"Nope\": supported values: \"\", \"BlockDevice\", \"CharDevice\", \"Directory\", \"DirectoryOrCreate\", \"File\", \"FileOrCreate\", \"Socket\"",
            ],
        );
        of(json!({"persistentVolumeClaim": {}}), &[".persistentVolumeClaim.claimName: Required value"]);
        of(
            json!({"secret": {"secretName": "s", "defaultMode": 512, "items": [{"key": "k", "path": "..x"}]}}),
            &[
                ".secret.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
                ".secret.items[0].path: Invalid value: \"..x\": must not start with '..'",
            ],
        );
        of(
            json!({"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "spec.nodeName"}}, {"path": "b"}]}}),
            &[
                ".downwardAPI.fieldRef.fieldPath: Unsupported value: \"spec.nodeName\": supported values: \"metadata.annotations\", \"metadata.labels\", \"metadata.name\", \"metadata.namespace\", \"metadata.uid\"",
                ".downwardAPI: Required value: one of fieldRef and resourceFieldRef is required",
            ],
        );
        of(
            json!({"projected": {"sources": [
                {"secret": {"name": "s", "items": [{"key": "k", "path": "a"}]}},
                {"configMap": {"name": "m", "items": [{"key": "k", "path": "a"}]}},
                {"serviceAccountToken": {"path": "t", "expirationSeconds": 599}}]}}),
            &[
                ".projected: Invalid value: \"m\": conflicting duplicate paths",
                ".projected.sources[2].serviceAccountToken.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes",
            ],
        );
        let claim = |spec: Value| json!({"ephemeral": {"volumeClaimTemplate": {"spec": spec}}});
        of(json!({"ephemeral": {}}), &[".ephemeral.volumeClaimTemplate: Required value"]);
        let claimed = ".ephemeral.volumeClaimTemplate.spec";
        let modes = format!("{claimed}.accessModes: Required value: at least 1 access mode is required");
        let size = format!("{claimed}.resources[storage]");
        of(claim(json!({})), &[&modes, &format!("{size}: Required value")]);
        let with = |modes: Value, size: &str| json!({"accessModes": modes, "resources": {"requests": {"storage": size}}});
        of(claim(with(json!(["ReadWriteOnce"]), "1Gi")), &[]);
        of(
            claim(with(json!(["ReadWriteOncePod", "ReadOnlyMany"]), "0")),
            &[
                &format!(
                    "{claimed}.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes"
                ),
                &format!("{size}: Invalid value: \"0\": must be greater than zero"),
            ],
        );
        of(
            claim(with(json!(["Any"]), "-1")),
            &[
                &format!(
                    "{claimed}.accessModes: Unsupported value: \"Any\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\""
                ),
                &format!("{size}: Invalid value: \"-1\": must be greater than or equal to 0"),
            ],
        );
        of(
            json!({"csi": {"driver": "a b"}}),
            &[&format!(
                ".csi.driver: Invalid value: \"a b\": {}",
                NameRule::Subdomain.complaint("a b").unwrap()
            )],
        );
    }

    #[test]
    fn bad_fields_of_a_spec_are_refused_as_upstream() {
        let of = |change: Value, expect: &[&str]| {
            let mut spec = with(json!({}));
            for (field, value) in change.as_object().unwrap() {
                spec[field] = value.clone();
            }
            check(spec, expect);
        };
        let ip = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        of(
            json!({"hostAliases": [{"ip": "x"}]}),
            &[&format!("spec.hostAliases[0].ip: Invalid value: \"x\": {ip}")],
        );
        of(
            json!({"dnsPolicy": "None"}),
            &["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"],
        );
        of(
            json!({"dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["a.", "_b.c", "."], "options": [{}]}}),
            &["spec.dnsConfig.options[0]: Required value: must not be empty"],
        );
        of(
            json!({"hostUsers": false, "hostPID": true}),
            &["spec.HostPID: Forbidden: when `hostUsers` is false"],
        );
        of(
            json!({"activeDeadlineSeconds": 0}),
            &["spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"],
        );
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let node = |rule: Value| json!({"affinity": {"nodeAffinity": {required: {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}}}});
        let path = format!("spec.affinity.nodeAffinity.{required}.nodeSelectorTerms[0].matchExpressions[0]");
        of(node(json!({"key": "a", "operator": "Gt", "values": ["1"]})), &[]);
        of(
            node(json!({"key": "a", "operator": "In"})),
            &[&format!(
                "{path}.values: Required value: must be specified when `operator` is 'In' or 'NotIn'"
            )],
        );
        of(
            node(json!({"key": "bad key", "operator": "Exists"})),
            &[&format!(
                "{path}.key: Invalid value: \"bad key\": {}",
                super::super::names::qualified_name_complaint("bad key").unwrap()
            )],
        );
        let pods = json!({"affinity": {"podAntiAffinity": {required: [{"topologyKey": "h"}]}}});
        of(pods, &[]);
        of(
            json!({"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "h", "whenUnsatisfiable": "DoNotSchedule"}]}),
            &["spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero"],
        );
        of(
            json!({"resourceClaims": [{"name": "c"}]}),
            &[
                "spec.resourceClaims[0]: Invalid value: {\"name\":\"c\"}: must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            ],
        );
        of(
            json!({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}),
            &[
                "spec.tolerations[0].operator: Invalid value: \"b\": value must be empty when `operator` is 'Exists'",
            ],
        );
    }
}
