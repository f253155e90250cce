//! Service: the ports that a chart declares. Nothing gives a Service an address.
//!
//! Always holds: `default/kubernetes`, by which clients find the API server, is the hub's own. The hub makes
//! it in memory at each start, with its own address and port, and refuses all writes of it. Every other
//! Service has the cluster IP `None`, or as an ExternalName no field for one, so no client waits for an
//! address. The hub answers each write with a warning. Defaults, validation and texts are upstream's, as far
//! as they apply to a Service without an address. Left to others: refusing writes of the hub's own
//! (`requests`).

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::daemon_set::labels_shown;
use super::kind::Kind;
use super::names::NameRule;
use super::rules::{self, Errors, list};
use super::table::{Column, age};
use crate::field_error::FieldError;
use crate::value::{at, text};

/// The namespace of the hub's own Service.
pub const NAMESPACE: &str = "default";
/// The name of the hub's own Service.
pub const NAME: &str = "kubernetes";
/// Why its writes are refused.
pub const OWN: &str = "the hub makes this Service at each start, it cannot be changed or deleted";

const TYPES: [&str; 4] = [CLUSTER_IP, EXTERNAL_NAME, LOAD_BALANCER, NODE_PORT];
const CLUSTER_IP: &str = "ClusterIP";
const EXTERNAL_NAME: &str = "ExternalName";
const LOAD_BALANCER: &str = "LoadBalancer";
const NODE_PORT: &str = "NodePort";
/// The cluster IP of a Service without an address.
const NONE: &str = "None";
/// Upstream's time for which clients stay with a pod, in seconds, and the longest one.
const AFFINITY_SECS: i64 = 3 * 60 * 60;
const LONGEST_AFFINITY_SECS: i64 = 24 * 60 * 60;

/// core/v1 Service.
pub static SERVICE: Kind = Kind {
    kind: "Service",
    plural: "services",
    singular: "service",
    short_names: &["svc"],
    categories: &["all"],
    status: true,
    shows_deleted: true,
    type_name: "core/v1/Service",
    name_rule: NameRule::Label,
    columns: &[
        Column::NAME,
        Column::text("Type"),
        Column::text("Cluster-IP"),
        Column::text("External-IP"),
        Column::text("Port(s)"),
        Column::AGE,
        Column::text("Selector").wide(),
    ],
    cells,
    convert: |service| {
        let Some(service) = service.as_object_mut() else { return };
        let status = service.entry("status").or_insert_with(|| json!({}));
        if let Some(status) = status.as_object_mut() {
            status.entry("loadBalancer").or_insert_with(|| json!({}));
        }
    },
    prepare,
    // upstream's allocator of addresses sets these
    admitted: &[
        &["spec", "clusterIP"],
        &["spec", "clusterIPs"],
        &["spec", "ipFamilies"],
        &["spec", "ipFamilyPolicy"],
    ],
    validate,
    warnings: |service, _| {
        match text(service, &["spec", "type"]) {
        EXTERNAL_NAME => vec!["nothing resolves the name of a Service here".to_owned()],
        _ => vec![
            "nothing gives this Service an address: reach a pod by a hostPort of its node, or by kubectl port-forward"
                .to_owned(),
        ],
    }
    },
    ..Kind::USUAL
};

/// Whether it is the hub's own Service.
pub fn is_own(kind: &Kind, namespace: &str, name: &str) -> bool {
    kind.kind == SERVICE.kind && kind.group == SERVICE.group && (namespace, name) == (NAMESPACE, NAME)
}

fn cells(service: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    let spec = &service["spec"];
    let or_none = |text: String| Value::from(if text.is_empty() { "<none>".to_owned() } else { text });
    let ports = list(spec, "ports").iter().map(|port| {
        let node_port = port["nodePort"].as_i64().filter(|port| *port > 0);
        let node_port = node_port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("{}{node_port}/{}", port["port"], text(port, &["protocol"]))
    });
    let ports = ports.collect::<Vec<_>>().join(",");
    let listed = |value: &Value, field: &str| {
        let all = list(value, field).iter().filter_map(Value::as_str);
        all.collect::<Vec<_>>().join(",")
    };
    let external = match text(spec, &["type"]) {
        EXTERNAL_NAME => text(spec, &["externalName"]).into(),
        LOAD_BALANCER => match listed(spec, "externalIPs") {
            none if none.is_empty() => "<pending>".into(),
            addresses => addresses.into(),
        },
        _ => or_none(listed(spec, "externalIPs")),
    };
    vec![
        text(service, &["metadata", "name"]).into(),
        text(spec, &["type"]).into(),
        or_none(text(spec, &["clusterIP"]).to_owned()),
        external,
        or_none(ports),
        age(service, now),
        labels_shown(&spec["selector"]).into(),
    ]
}

/// Upstream's defaults, and `None` in place of an allocated address.
fn prepare(new: &mut Value, old: Option<&Value>) {
    let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let sort = spec.entry("type").or_insert_with(|| CLUSTER_IP.into()).as_str().unwrap_or("").to_owned();
    spec.entry("sessionAffinity").or_insert_with(|| NONE.into());
    if spec["sessionAffinity"] == "ClientIP" {
        let config = spec.entry("sessionAffinityConfig").or_insert_with(|| json!({}));
        if at(config, &["clientIP", "timeoutSeconds"]).is_none()
            && let Some(config) = config.as_object_mut()
        {
            config.insert("clientIP".to_owned(), json!({"timeoutSeconds": AFFINITY_SECS}));
        }
    }
    if let Some(old) = old.and_then(|old| old["spec"].as_object()) {
        forget_of_other_types(spec, old, &sort);
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let number = port["port"].clone();
        let Some(port) = port.as_object_mut() else { continue };
        port.entry("protocol").or_insert_with(|| "TCP".into());
        let target = port.entry("targetPort").or_insert_with(|| number.clone());
        if *target == 0 || *target == "" {
            *target = number;
        }
    }
    if matches!(sort.as_str(), NODE_PORT | LOAD_BALANCER) {
        spec.entry("externalTrafficPolicy").or_insert_with(|| "Cluster".into());
    }
    if sort == LOAD_BALANCER {
        spec.entry("allocateLoadBalancerNodePorts").or_insert(true.into());
    }
    if sort != EXTERNAL_NAME {
        spec.entry("internalTrafficPolicy").or_insert_with(|| "Cluster".into());
        let address = spec.entry("clusterIP").or_insert_with(|| NONE.into()).clone();
        spec.entry("clusterIPs").or_insert_with(|| json!([address]));
        spec.entry("ipFamilies").or_insert_with(|| json!(["IPv4"]));
        spec.entry("ipFamilyPolicy").or_insert_with(|| "SingleStack".into());
    }
}

/// Removes the fields that the new type does not have and that the writer left as they were, as upstream
/// does when a type changes.
fn forget_of_other_types(spec: &mut Map<String, Value>, old: &Map<String, Value>, sort: &str) {
    let external: &[&str] = &[NODE_PORT, LOAD_BALANCER];
    let inner: &[&str] = &[CLUSTER_IP, NODE_PORT, LOAD_BALANCER];
    let fields: [(&str, &[&str]); 10] = [
        ("clusterIP", inner),
        ("clusterIPs", inner),
        ("ipFamilies", inner),
        ("ipFamilyPolicy", inner),
        ("internalTrafficPolicy", inner),
        ("externalTrafficPolicy", external),
        ("externalName", &[EXTERNAL_NAME]),
        ("allocateLoadBalancerNodePorts", &[LOAD_BALANCER]),
        ("loadBalancerClass", &[LOAD_BALANCER]),
        ("healthCheckNodePort", &[LOAD_BALANCER]),
    ];
    for (field, of) in fields {
        if !of.contains(&sort) && spec.get(field) == old.get(field) {
            spec.remove(field);
        }
    }
    let before = old.get("ports").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten();
    for port in ports.filter(|_| !external.contains(&sort)) {
        let kept = before.iter().any(|old| old["nodePort"] == port["nodePort"]);
        if let Some(port) = port.as_object_mut().filter(|_| kept) {
            port.remove("nodePort");
        }
    }
}

fn validate(new: &Value, old: Option<&Value>, errors: &mut Errors) {
    let spec = &new["spec"];
    let sort = text(spec, &["type"]);
    rules::one_of(spec, "type", &TYPES, "spec", errors);
    rules::one_of(spec, "sessionAffinity", &["ClientIP", NONE], "spec", errors);
    rules::labels(spec, "selector", "spec", errors);
    validate_affinity(spec, errors);
    validate_addresses(new, sort, errors);
    validate_ports(spec, sort, errors);
    if sort == EXTERNAL_NAME {
        rules::required(spec, "externalName", "spec", errors);
        let name = text(spec, &["externalName"]).trim_end_matches('.');
        rules::name(name, NameRule::Subdomain, "spec.externalName", errors);
    }
    let only = |field: &str, of: &str, errors: &mut Errors| {
        if spec.get(field).is_some() && sort != of {
            let why = format!("may only be used when `type` is '{of}'");
            errors.push(FieldError::forbidden(format!("spec.{field}"), &why));
        }
    };
    for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass", "loadBalancerSourceRanges"] {
        only(field, LOAD_BALANCER, errors);
    }
    rules::label_key_if_given(text(spec, &["loadBalancerClass"]), "spec.loadBalancerClass", errors);
    for (index, range) in list(spec, "loadBalancerSourceRanges").iter().enumerate() {
        let path = format!("spec.loadBalancerSourceRanges[{index}]");
        rules::network(range.as_str().unwrap_or("").trim(), &path, errors);
    }
    let is_external = matches!(sort, NODE_PORT | LOAD_BALANCER) || !list(spec, "externalIPs").is_empty();
    let policy = text(spec, &["externalTrafficPolicy"]);
    if !policy.is_empty() && !is_external {
        let why = "may only be set for externally-accessible services";
        errors.push(FieldError::invalid("spec.externalTrafficPolicy", policy, why));
    }
    let local = ["Cluster", "Local"];
    rules::optional_one_of(spec, "externalTrafficPolicy", &local, "spec", errors);
    rules::optional_one_of(spec, "internalTrafficPolicy", &local, "spec", errors);
    let spread = ["PreferClose", "PreferSameNode", "PreferSameZone"];
    rules::optional_one_of(spec, "trafficDistribution", &spread, "spec", errors);
    if let Some(old) = old
        && sort == LOAD_BALANCER
        && text(&old["spec"], &["type"]) == LOAD_BALANCER
    {
        let class = text(spec, &["loadBalancerClass"]);
        if class != text(&old["spec"], &["loadBalancerClass"]) {
            let why = "may not change once set";
            errors.push(FieldError::invalid("spec.loadBalancerClass", class, why));
        }
    }
}

fn validate_affinity(spec: &Value, errors: &mut Errors) {
    let config = at(spec, &["sessionAffinityConfig"]);
    let path = "spec.sessionAffinityConfig";
    match text(spec, &["sessionAffinity"]) {
        NONE if config.is_some() => {
            let why = format!("must not be set when session affinity is {NONE}");
            errors.push(FieldError::forbidden(path, &why));
        }
        "ClientIP" => {
            let seconds = config.and_then(|config| at(config, &["clientIP", "timeoutSeconds"])?.as_i64());
            if let Some(seconds) = seconds.filter(|found| !(1..=LONGEST_AFFINITY_SECS).contains(found)) {
                let why = format!("must be greater than 0 and less than {LONGEST_AFFINITY_SECS}");
                errors.push(FieldError::invalid(format!("{path}.clientIP.timeoutSeconds"), seconds, &why));
            }
        }
        _ => {}
    }
}

/// Cluster IPs and the fields beside them: the hub has no addresses to give, so it refuses requests for one.
fn validate_addresses(new: &Value, sort: &str, errors: &mut Errors) {
    let spec = &new["spec"];
    let (one, all) = (text(spec, &["clusterIP"]), list(spec, "clusterIPs"));
    let is_own = is_own(&SERVICE, text(new, &["metadata", "namespace"]), text(new, &["metadata", "name"]));
    if sort == EXTERNAL_NAME {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if spec.get(field).is_some() {
                let why = "may not be set for ExternalName services";
                errors.push(FieldError::forbidden(format!("spec.{field}"), why));
            }
        }
    } else if !is_own && (one != NONE || all.len() != 1 || all[0] != NONE) {
        let why = "nothing here gives a Service an address: leave out clusterIP and clusterIPs, or set clusterIP to None";
        let found = if one != NONE { one } else { all.first().and_then(Value::as_str).unwrap_or("") };
        errors.push(FieldError::invalid("spec.clusterIPs", found, why));
    }
    for (index, family) in list(spec, "ipFamilies").iter().enumerate() {
        if !matches!(family.as_str(), Some("IPv4" | "IPv6")) {
            let path = format!("spec.ipFamilies[{index}]");
            errors.push(FieldError::unsupported(path, family.clone(), &["IPv4", "IPv6"]));
        }
    }
    let policies = ["SingleStack", "PreferDualStack", "RequireDualStack"];
    rules::optional_one_of(spec, "ipFamilyPolicy", &policies, "spec", errors);
    for (index, address) in list(spec, "externalIPs").iter().enumerate() {
        rules::ip(address.as_str().unwrap_or(""), &format!("spec.externalIPs[{index}]"), errors);
    }
}

fn validate_ports(spec: &Value, sort: &str, errors: &mut Errors) {
    let ports = list(spec, "ports");
    let (mut names, mut places, mut of_nodes) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (index, port) in ports.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        let name = text(port, &["name"]);
        if ports.len() > 1 {
            rules::required(port, "name", &path, errors);
        }
        rules::name(name, NameRule::Label, &format!("{path}.name"), errors);
        if !name.is_empty() && !names.insert(name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), name));
        }
        let number = port["port"].as_i64().unwrap_or(0);
        rules::port_number(number, &format!("{path}.port"), errors);
        rules::one_of(port, "protocol", &["SCTP", "TCP", "UDP"], &path, errors);
        rules::port(&port["targetPort"], &format!("{path}.targetPort"), errors);
        rules::label_key_if_given(text(port, &["appProtocol"]), &format!("{path}.appProtocol"), errors);
        let protocol = text(port, &["protocol"]);
        if !places.insert((protocol, number)) {
            let place = json!({"port": number, "protocol": protocol});
            errors.push(FieldError::duplicate(path.clone(), place));
        }
        let Some(node_port) = port["nodePort"].as_i64().filter(|port| *port != 0) else { continue };
        let path = format!("{path}.nodePort");
        match sort {
            CLUSTER_IP | EXTERNAL_NAME => {
                let why = format!("may not be used when `type` is '{sort}'");
                errors.push(FieldError::forbidden(path, &why));
            }
            _ => {
                rules::port_number(node_port, &path, errors);
                if !of_nodes.insert((protocol, node_port)) {
                    errors.push(FieldError::duplicate(path, node_port));
                }
            }
        }
    }
}

/// The Service of a hub that clients reach at this address and port, and that listens on `target_port`.
pub fn kubernetes(address: IpAddr, port: u16, target_port: u16) -> Value {
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let address = address.to_string();
    json!({
        "metadata": {"name": NAME, "namespace": NAMESPACE,
            "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "clusterIP": address, "clusterIPs": [address], "internalTrafficPolicy": "Cluster",
            "ipFamilies": [family], "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None", "type": "ClusterIP",
            "ports": [{"name": "https", "port": port, "protocol": "TCP", "targetPort": target_port}],
        },
        "status": {"loadBalancer": {}},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::schema;

    /// Prepares and validates a Service of this spec; returns it and its faults.
    fn made(spec: Value, old: Option<&Value>) -> (Value, Vec<String>) {
        let mut service = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec});
        prepare(&mut service, old);
        let mut errors = Errors::default();
        validate(&service, old, &mut errors);
        (service, errors.iter().map(ToString::to_string).collect())
    }

    #[track_caller]
    fn check(spec: Value, expect: &[&str]) {
        assert_eq!(made(spec.clone(), None).1, expect, "{spec}");
    }

    #[test]
    fn service_is_whole_and_shown_like_upstreams() {
        let mut service = kubernetes(IpAddr::from([10, 0, 0, 1]), 443, 6443);
        let findings = schema::conform(SERVICE.schema(), &mut service);
        assert!(findings.wrong.is_none() && findings.complaints().is_empty());
        let shown = cells(&service, time::OffsetDateTime::UNIX_EPOCH);
        assert_eq!(shown[..5], ["kubernetes", "ClusterIP", "10.0.0.1", "<none>", "443/TCP"].map(Value::from));
        let mut errors = Errors::default();
        let before = service.clone();
        prepare(&mut service, None);
        validate(&service, None, &mut errors);
        assert!(errors.is_empty() && service == before);
    }

    #[test]
    fn service_gets_upstreams_defaults_and_no_address() {
        let port = |more: Value| {
            let mut port = json!({"port": 80});
            port.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            port
        };
        let (service, faults) = made(json!({"selector": {"app": "web"}, "ports": [port(json!({}))]}), None);
        assert_eq!(faults, Vec::<String>::new());
        let expect = json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None", "selector": {"app": "web"},
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]});
        assert_eq!(service["spec"], expect);
        let shown = |spec: Value| cells(&made(spec, None).0, time::OffsetDateTime::UNIX_EPOCH)[1..5].to_vec();
        let words = |cells: [&str; 4]| cells.map(Value::from).to_vec();
        let node_port = json!({"type": "NodePort", "ports": [port(json!({"nodePort": 30080}))]});
        assert_eq!(shown(node_port), words(["NodePort", "None", "<none>", "80:30080/TCP"]));
        let balanced = json!({"type": "LoadBalancer", "ports": [port(json!({}))]});
        assert_eq!(shown(balanced), words(["LoadBalancer", "None", "<pending>", "80/TCP"]));
        let named = json!({"type": "ExternalName", "externalName": "db.example"});
        assert_eq!(shown(named), words(["ExternalName", "<none>", "db.example", "<none>"]));
        let sticky = made(json!({"sessionAffinity": "ClientIP", "ports": [port(json!({}))]}), None).0;
        assert_eq!(sticky["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"], 10800);
    }

    #[test]
    fn faults_of_a_service_have_upstreams_words() {
        let ports = |ports: Value| json!({"ports": ports});
        check(
            ports(json!([{"port": 0}])),
            &[
                "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
                "spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive",
            ],
        );
        check(ports(json!([{"port": 1}, {"port": 2, "name": "b"}])), &["spec.ports[0].name: Required value"]);
        check(
            ports(json!([{"port": 1, "name": "a"}, {"port": 1, "name": "a"}])),
            &[
                "spec.ports[1].name: Duplicate value: \"a\"",
                "spec.ports[1]: Duplicate value: {\"port\":1,\"protocol\":\"TCP\"}",
            ],
        );
        check(
            ports(json!([{"port": 1, "protocol": "HTTP"}])),
            &[
                "spec.ports[0].protocol: Unsupported value: \"HTTP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
            ],
        );
        check(
            ports(json!([{"port": 1, "nodePort": 30000}])),
            &["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"],
        );
        check(
            json!({"type": "Virtual"}),
            &[
                "spec.type: Unsupported value: \"Virtual\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"",
            ],
        );
        check(json!({"type": "ExternalName"}), &["spec.externalName: Required value"]);
        check(
            json!({"type": "ExternalName", "externalName": "a", "clusterIP": "None"}),
            &["spec.clusterIP: Forbidden: may not be set for ExternalName services"],
        );
        check(
            json!({"clusterIP": "10.96.0.10"}),
            &[
                "spec.clusterIPs: Invalid value: \"10.96.0.10\": nothing here gives a Service an address: leave out clusterIP and clusterIPs, or set clusterIP to None",
            ],
        );
        check(
            json!({"externalTrafficPolicy": "Local"}),
            &[
                "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services",
            ],
        );
        check(
            json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}}}),
            &[
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 0: must be greater than 0 and less than 86400",
            ],
        );
    }

    #[test]
    fn changed_type_loses_the_fields_of_the_old_one() {
        let mut spec = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]});
        let (old, _) = made(spec.clone(), None);
        let mut new = old["spec"].clone();
        new["type"] = "ClusterIP".into();
        let (service, faults) = made(new, Some(&old));
        assert_eq!(faults, Vec::<String>::new());
        assert_eq!(service["spec"]["ports"][0].get("nodePort"), None);
        assert_eq!(service["spec"].get("externalTrafficPolicy"), None);
        let mut named = service["spec"].clone();
        named["type"] = "ExternalName".into();
        named["externalName"] = "a.example".into();
        let (named, faults) = made(named, Some(&service));
        assert_eq!((faults, named["spec"].get("clusterIP")), (Vec::new(), None));
        // and back
        spec["externalName"] = "a.example".into();
        let (back, faults) = made(spec, Some(&named));
        assert_eq!((faults, &back["spec"]["clusterIP"]), (Vec::new(), &json!("None")));
        assert_eq!(back["spec"].get("externalName"), None);
    }
}
