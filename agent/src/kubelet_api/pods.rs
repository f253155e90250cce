//! `/pods`: the pods of this node, as a list of Pods.
//!
//! The agent's knowledge of them, without queries to others: names, and the state of their containers. Not
//! their whole specs.

use crate::kubelet_api::node::Node;
use std::io;
use std::sync::Arc;

use serde_json::{Value, json};

use super::Exchange;
use crate::local::client;

pub(super) async fn serve(exchange: Exchange, node: Arc<Node>) -> io::Result<()> {
    let asked =
        tokio::task::spawn_blocking(move || client::get(&node.agent.places.socket(), "/pods")).await?;
    match asked {
        Ok(answer) if answer.status == 200 => match serde_json::from_slice(&answer.body) {
            Ok(found) => match list(&found) {
                Some(list) => exchange.answer(200, "application/json", list.to_string().as_bytes()).await,
                None => exchange.refuse(503, UNKNOWN).await,
            },
            Err(error) => exchange.refuse(500, &format!("the agent's pods are no JSON: {error}")).await,
        },
        Ok(answer) => exchange.answer(answer.status, "text/plain; charset=utf-8", &answer.body).await,
        Err(error) => exchange.refuse(503, &error.to_string()).await,
    }
}

/// The caller takes an unlisted pod for a deleted one.
const UNKNOWN: &str = "the agent does not know yet which pods it has: it has just begun, or cannot read its disk or the runtime's state";

/// `None` if the agent does not know all of them.
fn list(found: &Value) -> Option<Value> {
    let pods = found["pods"].as_array().filter(|_| found["isComplete"] != false)?;
    let items: Vec<Value> = pods.iter().map(pod).collect();
    Some(json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

fn pod(found: &Value) -> Value {
    let containers = found["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names: Vec<Value> = containers.iter().map(|one| json!({"name": one["name"]})).collect();
    let statuses: Vec<Value> = containers.iter().map(status).collect();
    json!({
        "metadata": {"name": found["name"], "namespace": found["namespace"], "uid": found["uid"]},
        "spec": {"containers": names},
        "status": {"containerStatuses": statuses},
    })
}

fn status(container: &Value) -> Value {
    let state = match container["state"].as_str() {
        Some("Running") => json!({"running": {}}),
        Some("Exited" | "Lost") => json!({"terminated": {}}),
        _ => json!({"waiting": {"reason": container["reason"]}}),
    };
    json!({"name": container["name"], "restartCount": container["restarts"], "state": state})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_of_the_agent_is_a_list_of_pods() {
        let container =
            |name: &str, state: &str| json!({"name": name, "state": state, "restarts": 2, "reason": "x"});
        let containers = [container("a", "Running"), container("b", "Waiting"), container("c", "Lost")];
        let mut found = json!({"isComplete": true,
            "pods": [{"name": "p", "namespace": "n", "uid": "u", "containers": containers}]});
        let shown = list(&found).unwrap();
        let states = ["/running", "/waiting/reason", "/terminated"];
        for (number, state) in states.iter().enumerate() {
            let path = format!("/items/0/status/containerStatuses/{number}/state{state}");
            assert!(shown.pointer(&path).is_some(), "{path} in {shown}");
        }
        assert_eq!(shown["items"][0]["metadata"], json!({"name": "p", "namespace": "n", "uid": "u"}));
        found["isComplete"] = json!(false);
        assert_eq!(list(&found), None, "an agent that has just begun");
    }
}
