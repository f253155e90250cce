//! Service: only `default/kubernetes`, by which clients find the API server.
//!
//! Always holds: clients can only read it; the hub creates it at each start and never stores it. The hub has
//! no service network: the cluster IP and port are the hub's own, so that a client that connects to them
//! reaches the hub.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::kind::Kind;
use super::table::{Column, age};
use crate::value::{at, text};

/// The name of the one Service, in the namespace `default`.
pub const NAME: &str = "kubernetes";

/// core/v1 Service.
pub static SERVICE: Kind = Kind {
    kind: "Service",
    plural: "services",
    singular: "service",
    short_names: &["svc"],
    categories: &["all"],
    verbs: &["get", "list", "watch"],
    shows_deleted: true,
    type_name: "core/v1/Service",
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
    ..Kind::USUAL
};

fn cells(service: &Value, now: time::OffsetDateTime) -> Vec<Value> {
    let ports = at(service, &["spec", "ports"]).and_then(Value::as_array).into_iter().flatten();
    let ports: Vec<String> =
        ports.map(|port| format!("{}/{}", port["port"], text(port, &["protocol"]))).collect();
    vec![
        text(service, &["metadata", "name"]).into(),
        text(service, &["spec", "type"]).into(),
        text(service, &["spec", "clusterIP"]).into(),
        "<none>".into(),
        ports.join(",").into(),
        age(service, now),
        "<none>".into(),
    ]
}

/// The Service of a hub that clients reach at this address and port, and that listens on `target_port`.
pub fn kubernetes(address: IpAddr, port: u16, target_port: u16) -> Value {
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let address = address.to_string();
    json!({
        "metadata": {"name": NAME, "namespace": "default",
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

    #[test]
    fn service_is_whole_and_shown_like_upstreams() {
        let mut service = kubernetes(IpAddr::from([10, 0, 0, 1]), 443, 6443);
        let findings = schema::conform(SERVICE.schema(), &mut service);
        assert!(findings.wrong.is_none() && findings.complaints().is_empty());
        let shown = cells(&service, time::OffsetDateTime::UNIX_EPOCH);
        assert_eq!(shown[..5], ["kubernetes", "ClusterIP", "10.0.0.1", "<none>", "443/TCP"].map(Value::from));
    }
}
