//! Requests about a pod that only its node can serve: its logs, and streams into its containers.
//!
//! Owns: which node serves such a request, and upstream's refusals: no such container, an ended pod, a pod without a node. Always holds:
//! people see that cause, never "not found". Left to others: reaching the node (`kedge-hub`).

use serde_json::Value;

use crate::api_error::ApiError;
use crate::value::{at, text};

/// The node that serves `subresource` (`log`, `exec`, `attach`, `portforward`) of `pod`, for the container `named` (empty: the only
/// one). `None`: a log of which nothing was written, because the pod has no node yet.
pub fn serving_node<'a>(pod: &'a Value, subresource: &str, named: &str) -> Result<Option<&'a str>, ApiError> {
    match subresource {
        "log" => {
            check_container(pod, named)?;
            return Ok(Some(text(pod, &["spec", "nodeName"])).filter(|node| !node.is_empty()));
        }
        "portforward" => {}
        _ => {
            check_running(pod)?;
            check_container(pod, named)?;
        }
    }
    match text(pod, &["spec", "nodeName"]) {
        "" => {
            let name = text(pod, &["metadata", "name"]);
            Err(ApiError::bad_request(format!("pod {name} does not have a host assigned")))
        }
        node => Ok(Some(node)),
    }
}

/// The container that such a request means: the one that is named, else the only one.
pub fn serving_container<'a>(pod: &'a Value, named: &'a str) -> &'a str {
    match at(pod, &["spec", "containers"]).and_then(Value::as_array).map(Vec::as_slice) {
        Some([only]) if named.is_empty() => text(only, &["name"]),
        _ => named,
    }
}

fn check_running(pod: &Value) -> Result<(), ApiError> {
    match text(pod, &["status", "phase"]) {
        phase @ ("Succeeded" | "Failed") => Err(ApiError::bad_request(format!(
            "cannot exec into a container in a completed pod; current phase is {phase}"
        ))),
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
