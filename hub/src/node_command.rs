//! `kedge-hub node list|revoke|readmit|accept|rotate|decommission`: an administrator's command, carried out
//! by the running hub.
//!
//! Always holds: nothing is decided or written here; the command asks the hub of its data directory, and
//! without a running hub it fails and changes nothing. Left to others: the request (`asking`), the hub's side
//! (`server::node_access`).

use serde_json::{Value, json};

use crate::asking::{self, ask};
use crate::flags::{NodeAct, NodeCommand};

/// The columns of the table, and their fields.
const COLUMNS: [(&str, &str); 5] = [
    ("NAME", "/name"),
    ("STATE", "/state"),
    ("CERTIFICATE EXPIRES", "/certificateExpires"),
    ("LAST CONTACT", "/lastContact"),
    ("WAITS FOR YOU", "/waiting/reason"),
];

/// Refused devices in the table: the latest.
const REFUSED: usize = 20;

/// Runs the command; returns what to print.
///
/// # Errors
/// No hub runs, or it refuses; the text names the request that failed.
pub async fn run(command: &NodeCommand) -> Result<String, String> {
    let (method, path, body) = match &command.act {
        NodeAct::List => ("GET", "/kedge/nodes".to_owned(), Value::Null),
        NodeAct::Revoke { name, reason, force } => {
            ("POST", format!("/kedge/nodes/{name}/revoke"), json!({"reason": reason, "force": force}))
        }
        NodeAct::Readmit { name, same_credentials } => {
            ("POST", format!("/kedge/nodes/{name}/readmit"), json!({"sameCredentials": same_credentials}))
        }
        NodeAct::Accept { name: Some(name) } => ("POST", format!("/kedge/nodes/{name}/accept"), Value::Null),
        NodeAct::Accept { name: None } => return accept_all(command).await,
        NodeAct::Rotate { name } => ("POST", format!("/kedge/nodes/{name}/rotate"), Value::Null),
        NodeAct::Decommission { name, wipe } => {
            ("POST", format!("/kedge/nodes/{name}/decommission"), json!({"wipe": wipe}))
        }
    };
    let answer = ask(&command.data_dir, method, &path, &body).await?;
    match (&command.act, command.json) {
        (_, true) => Ok(format!("{answer:#}\n")),
        (NodeAct::List, false) => Ok(table(&answer)),
        (_, false) => Ok(format!("{}\n", answer["message"].as_str().unwrap_or_default())),
    }
}

/// Accepts the restored assignment of every node that waits for a decision.
async fn accept_all(command: &NodeCommand) -> Result<String, String> {
    let all = ask(&command.data_dir, "GET", "/kedge/nodes", &Value::Null).await?;
    let nodes = all["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    let waiting = nodes.iter().filter(|node| node["state"] == "AwaitingDecision");
    let (mut out, mut accepted) = (String::new(), Vec::new());
    for name in waiting.filter_map(|node| node["name"].as_str()) {
        let path = format!("/kedge/nodes/{name}/accept");
        let answer = ask(&command.data_dir, "POST", &path, &Value::Null).await?;
        out.push_str(&format!("{}\n", answer["message"].as_str().unwrap_or_default()));
        accepted.push(name);
    }
    Ok(match command.json {
        true => format!("{:#}\n", json!({"accepted": accepted})),
        false if accepted.is_empty() => "no node waits for a decision\n".to_owned(),
        false => out,
    })
}

fn table(answer: &Value) -> String {
    let nodes = answer["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    let rows = nodes.iter().map(|node| {
        COLUMNS.map(|(_, field)| node.pointer(field).and_then(Value::as_str).unwrap_or("-").to_owned())
    });
    let mut table = asking::table(COLUMNS.map(|(title, _)| title), rows);
    for node in nodes.iter().filter(|node| node["waiting"].is_object()) {
        let word = |field: &str| node.pointer(field).and_then(Value::as_str).unwrap_or_default();
        let (name, request, why) = (word("/name"), word("/waiting/request"), word("/waiting/message"));
        table.push_str(&format!("{name}: {why}\n  kubectl certificate approve {request}    # or deny\n"));
    }
    let refused = answer["refused"].as_array().map_or(&[][..], Vec::as_slice);
    for knock in refused.iter().take(REFUSED) {
        // an administrator may have written the reason
        let word = |field: &str| knock[field].as_str().unwrap_or_default().replace(char::is_control, " ");
        table.push_str(&format!("{}: refused, last at {}: {}\n", word("name"), word("at"), word("why")));
    }
    match refused.len().saturating_sub(REFUSED) {
        0 => {}
        more => table.push_str(&format!("and {more} more are refused (--output json)\n")),
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_a_line_for_each_node() {
        let answer = json!({"nodes": [
            {"name": "edge-1", "state": "Ready", "certificateExpires": "2051-11-16T00:00:00Z", "lastContact": "2026-11-22T10:00:00Z"},
            {"name": "e", "state": "NotRegistered", "certificateExpires": null,
                "waiting": {"request": "node-csr-1", "reason": "NameTaken", "message": "the node has credentials"}}],
            "refused": [{"name": "edge-9", "at": "2026-11-22T11:00:00Z", "why": "the node\u{1b}is revoked"}]});
        let expect = "NAME     STATE           CERTIFICATE EXPIRES    LAST CONTACT           WAITS FOR YOU\n\
                      edge-1   Ready           2051-11-16T00:00:00Z   2026-11-22T10:00:00Z   -\n\
                      e        NotRegistered   -                      -                      NameTaken\n\
                      e: the node has credentials\n  kubectl certificate approve node-csr-1    # or deny\n\
                      edge-9: refused, last at 2026-11-22T11:00:00Z: the node is revoked\n";
        assert_eq!(table(&answer), expect);
        assert_eq!(table(&json!({"nodes": []})).lines().count(), 1);
    }
}
