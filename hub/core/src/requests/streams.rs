//! Requests about a pod that only its node can serve: its logs, streams into its containers, and requests to
//! its programs.
//!
//! Owns: the choice of the node that serves such a request, the syntax of a name for `pods/proxy`, and
//! upstream's refusals: unknown container, ended pod, pod without a node or an address. Always holds: people
//! see that cause, never "not found". Left to others: reaching the node (`kedge-hub`).

use std::net::IpAddr;

use serde_json::Value;

use crate::api_error::ApiError;
use crate::value::{at, text};

/// The default port if no container names one: upstream leaves it to HTTP.
const PLAIN_PORT: u16 = 80;
const SECURE_PORT: u16 = 443;

/// The meaning of `[SCHEME:]NAME[:PORT]` in place of a pod's name.
#[derive(Debug, PartialEq, Eq)]
pub struct ProxyTarget<'a> {
    pub pod: &'a str,
    /// The program speaks HTTPS.
    pub is_secure: bool,
    /// The port as the request names it; empty for the first port of the pod.
    port: &'a str,
}

/// The address of a program in a pod.
#[derive(Debug, PartialEq, Eq)]
pub struct ProgramAddress<'a> {
    pub node: &'a str,
    pub uid: &'a str,
    pub address: IpAddr,
    pub port: u16,
}

impl<'a> ProxyTarget<'a> {
    /// # Errors
    /// 400: too many parts, no name, or a scheme that is neither `http` nor `https`.
    pub fn parse(name: &'a str) -> Result<Self, ApiError> {
        let parts: Vec<&str> = name.split(':').collect();
        let (scheme, pod, port) = match parts.as_slice() {
            [pod] => ("", *pod, ""),
            [pod, port] => ("", *pod, *port),
            [scheme, pod, port] => (*scheme, *pod, *port),
            _ => ("", "", ""),
        };
        if pod.is_empty() || !matches!(scheme, "" | "http" | "https") {
            return Err(ApiError::bad_request(format!("invalid pod request {name:?}")));
        }
        Ok(Self { pod, is_secure: scheme == "https", port })
    }

    /// The address of `pod`, and the given port or its first one.
    ///
    /// # Errors
    /// 400 if it has no node or no address yet, or the port cannot be parsed.
    pub fn find<'b>(&self, pod: &'b Value) -> Result<ProgramAddress<'b>, ApiError> {
        let node = bound_node(pod)?;
        let port = match self.port {
            "" => first_port(pod).unwrap_or(if self.is_secure { SECURE_PORT } else { PLAIN_PORT }),
            named => named.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
                ApiError::bad_request(format!(
                    "invalid pod request: port {named:?}, expected a number from 1 to 65535"
                ))
            })?,
        };
        let known = text(pod, &["status", "podIP"]);
        let address = known.parse().map_err(|_| {
            // upstream's words for every address that does not belong to a pod
            ApiError::bad_request(format!("address not allowed: pod {} has {known:?}", self.pod))
        })?;
        Ok(ProgramAddress { node, uid: text(pod, &["metadata", "uid"]), address, port })
    }
}

/// The first port that a container of the pod names.
fn first_port(pod: &Value) -> Option<u16> {
    let containers = at(pod, &["spec", "containers"])?.as_array()?;
    let first = containers.iter().find_map(|container| container["ports"].as_array()?.first())?;
    first["containerPort"].as_u64()?.try_into().ok()
}

/// The node that serves `subresource` (`log`, `exec`, `attach`, `portforward`) of `pod`, for the container
/// `named` (empty: the only one). `None`: the log is empty, because the pod has no node yet.
pub fn serving_node<'a>(pod: &'a Value, subresource: &str, named: &str) -> Result<Option<&'a str>, ApiError> {
    match subresource {
        "log" => {
            check_container(pod, named)?;
            return Ok(Some(text(pod, &["spec", "nodeName"])).filter(|node| !node.is_empty()));
        }
        "portforward" => {}
        _ => {
            check_running(pod, subresource)?;
            check_container(pod, named)?;
        }
    }
    bound_node(pod).map(Some)
}

fn bound_node(pod: &Value) -> Result<&str, ApiError> {
    match text(pod, &["spec", "nodeName"]) {
        "" => {
            let name = text(pod, &["metadata", "name"]);
            Err(ApiError::bad_request(format!("pod {name} does not have a host assigned")))
        }
        node => Ok(node),
    }
}

/// The container that such a request means: the given one, or else the only one.
pub fn serving_container<'a>(pod: &'a Value, named: &'a str) -> &'a str {
    match at(pod, &["spec", "containers"]).and_then(Value::as_array).map(Vec::as_slice) {
        Some([only]) if named.is_empty() => text(only, &["name"]),
        _ => named,
    }
}

fn check_running(pod: &Value, subresource: &str) -> Result<(), ApiError> {
    match text(pod, &["status", "phase"]) {
        phase @ ("Succeeded" | "Failed") => {
            // kubectl's own words for pods that it finds ended by itself
            let tried = if subresource == "attach" { "attach" } else { "exec into" };
            let message = format!("cannot {tried} a container in a completed pod; current phase is {phase}");
            Err(ApiError::bad_request(message))
        }
        _ => Ok(()),
    }
}

/// The requested container must be one of the pod's; the name may be omitted if there is only one.
fn check_container(pod: &Value, named: &str) -> Result<(), ApiError> {
    let names: Vec<&str> = ["initContainers", "containers"]
        .into_iter()
        .filter_map(|list| at(pod, &["spec", list])?.as_array())
        .flatten()
        .map(|container| text(container, &["name"]))
        .collect();
    let name = text(pod, &["metadata", "name"]);
    let choice = at(pod, &["spec", "containers"]).and_then(Value::as_array).map_or(0, Vec::len);
    if named.is_empty() && choice != 1 {
        let names = names.join(" ");
        return Err(ApiError::bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{names}]"
        )));
    }
    if !named.is_empty() && !names.contains(&named) {
        return Err(ApiError::bad_request(format!("container {named} is not valid for pod {name}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(containers: &[&str], node: &str, phase: &str) -> Value {
        let containers: Vec<Value> = containers.iter().map(|name| json!({"name": name})).collect();
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": node, "containers": containers}, "status": {"phase": phase}})
    }

    #[track_caller]
    fn refused(pod: &Value, subresource: &str, named: &str, expected: &str) {
        let error = serving_node(pod, subresource, named).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (400, expected));
    }

    #[test]
    fn bound_pod_is_served_by_its_node() {
        let pod = pod(&["a"], "n1", "Running");
        for subresource in ["log", "exec", "attach", "portforward"] {
            assert_eq!(serving_node(&pod, subresource, "").unwrap(), Some("n1"), "{subresource}");
        }
        assert_eq!((serving_container(&pod, ""), serving_container(&pod, "b")), ("a", "b"));
    }

    #[test]
    fn pod_without_a_node_has_an_empty_log_only() {
        let pod = pod(&["a"], "", "Pending");
        assert_eq!(serving_node(&pod, "log", "a").unwrap(), None);
        for subresource in ["exec", "attach", "portforward"] {
            refused(&pod, subresource, "", "pod p does not have a host assigned");
        }
    }

    #[test]
    fn ended_pod_has_a_log_and_takes_no_command() {
        let pod = pod(&["a"], "n1", "Failed");
        assert_eq!(serving_node(&pod, "log", "a").unwrap(), Some("n1"));
        refused(
            &pod,
            "exec",
            "a",
            "cannot exec into a container in a completed pod; current phase is Failed",
        );
        refused(&pod, "attach", "a", "cannot attach a container in a completed pod; current phase is Failed");
    }

    #[test]
    fn name_of_a_proxied_pod_has_scheme_and_port() {
        let check = |name: &str, expect: Option<(&str, bool, &str)>| {
            let found = ProxyTarget::parse(name).ok();
            let found = found.as_ref().map(|found| (found.pod, found.is_secure, found.port));
            assert_eq!(found, expect, "{name}");
        };
        check("web", Some(("web", false, "")));
        check("web:8080", Some(("web", false, "8080")));
        check("http:web:8080", Some(("web", false, "8080")));
        check("https:web:", Some(("web", true, "")));
        for wrong in ["", ":80", "ftp:web:80", "http::80", "a:b:c:d", "https:web:80:x"] {
            check(wrong, None);
        }
    }

    #[test]
    fn port_of_a_proxied_pod_is_named_or_its_first() {
        let mut pod = pod(&["a", "b"], "n1", "Running");
        let check = |pod: &Value, name: &str, expect: Result<u16, &str>| {
            let target = ProxyTarget::parse(name).unwrap();
            let found = target.find(pod).map(|found| (found.node.to_owned(), found.address, found.port));
            match (found, expect) {
                (Ok(found), Ok(port)) => {
                    assert_eq!(found, ("n1".to_owned(), IpAddr::from([10, 0, 0, 2]), port), "{name}");
                }
                (Err(error), Err(expect)) => {
                    assert_eq!(error.code, 400);
                    assert!(error.message.contains(expect), "{name}: {error}");
                }
                (found, _) => panic!("{name}: {found:?}"),
            }
        };
        check(&pod, "p", Err("address not allowed"));
        pod["status"]["podIP"] = "10.0.0.2".into();
        check(&pod, "p", Ok(80));
        check(&pod, "https:p:", Ok(443));
        pod["spec"]["containers"][0]["ports"] = json!([]);
        pod["spec"]["containers"][1]["ports"] = json!([{"containerPort": 8080}, {"containerPort": 1}]);
        check(&pod, "p", Ok(8080));
        check(&pod, "https:p:9443", Ok(9443));
        for wrong in ["p:0", "p:65536", "p:web", "p:-1"] {
            check(&pod, wrong, Err("expected a number from 1 to 65535"));
        }
        pod["spec"]["nodeName"] = "".into();
        check(&pod, "p", Err("does not have a host assigned"));
    }

    #[test]
    fn container_is_named_where_there_are_several() {
        let pod = pod(&["a", "b"], "n1", "Running");
        let choose = "a container name must be specified for pod p, choose one of: [a b]";
        refused(&pod, "log", "", choose);
        refused(&pod, "attach", "", choose);
        refused(&pod, "exec", "c", "container c is not valid for pod p");
        assert_eq!(serving_node(&pod, "exec", "b").unwrap(), Some("n1"));
    }
}
