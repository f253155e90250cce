//! `kedge-hub node list|revoke|readmit`: an administrator's command, carried out by the running hub.
//!
//! Always holds: nothing is decided or written here; the command asks the hub of its data directory over TLS, as the administrator, and
//! without a running hub it says so and does nothing. Left to others: the hub's side (`server::node_access`).

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::flags::{NodeAct, NodeCommand};
use crate::pki;

/// A hub on this machine answers within milliseconds, or waits for its disk.
const LIMIT: Duration = Duration::from_secs(90);
/// Most bytes of an answer: a fleet of 100,000 nodes is 30 MB.
const ANSWER_BYTES: u64 = 128 * 1024 * 1024;
/// The columns of the table, and their fields.
const COLUMNS: [(&str, &str); 4] = [
    ("NAME", "/name"),
    ("STATE", "/state"),
    ("CERTIFICATE EXPIRES", "/certificateExpires"),
    ("LAST CONTACT", "/lastContact"),
];

/// Runs the command; returns what to print.
///
/// # Errors
/// No hub runs, or it refuses; each text says what was tried.
pub async fn run(command: &NodeCommand) -> Result<String, String> {
    let (url, tls) = pki::admin_access(&command.data_dir)
        .map_err(|error| format!("cannot ask the hub of {}: {error}", command.data_dir.display()))?;
    let (method, path, body) = match &command.act {
        NodeAct::List => ("GET", "/kedge/nodes".to_owned(), Value::Null),
        NodeAct::Revoke { name, reason } => {
            ("POST", format!("/kedge/nodes/{name}/revoke"), json!({"reason": reason}))
        }
        NodeAct::Readmit { name, same_credentials } => {
            ("POST", format!("/kedge/nodes/{name}/readmit"), json!({"sameCredentials": same_credentials}))
        }
    };
    let asking = ask(&url, tls, method, &path, &body);
    let answer = match tokio::time::timeout(LIMIT, asking).await {
        Ok(answer) => answer?,
        Err(_) => return Err(format!("{method} {url}{path}: no answer in {LIMIT:?}")),
    };
    match (&command.act, command.json) {
        (_, true) => Ok(format!("{answer:#}\n")),
        (NodeAct::List, false) => Ok(table(&answer)),
        (_, false) => Ok(format!("{}\n", answer["message"].as_str().unwrap_or_default())),
    }
}

async fn ask(
    url: &str,
    tls: Arc<rustls::ClientConfig>,
    method: &str,
    path: &str,
    body: &Value,
) -> Result<Value, String> {
    let address = url.strip_prefix("https://").unwrap_or(url);
    let failed = |why: &dyn std::fmt::Display| format!("{method} {url}{path}: {why}");
    let stream = TcpStream::connect(address).await.map_err(|error| {
        format!("no hub answers at {url} ({error}): start it with `kedge-hub serve`, then try again")
    })?;
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(&error))?;
    let mut stream = TlsConnector::from(tls).connect(name, stream).await.map_err(|error| failed(&error))?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    // HTTP/1.0: the answer ends with the connection
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.map_err(|error| failed(&error))?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES).read_to_end(&mut answer).await.map_err(|error| failed(&error))?;
    let (code, value) = parse(&answer).ok_or_else(|| failed(&"the answer is not a hub's"))?;
    match code {
        200 => Ok(value),
        _ => Err(failed(&format!("{code} {}", value["message"].as_str().unwrap_or_default()))),
    }
}

/// Status and body of an answer.
fn parse(answer: &[u8]) -> Option<(u16, Value)> {
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let code = std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()?;
    Some((code, serde_json::from_slice(&answer[end + 4..]).ok()?))
}

fn table(answer: &Value) -> String {
    let header = COLUMNS.map(|(title, _)| title.to_owned());
    let nodes = answer["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    let rows = nodes.iter().map(|node| {
        COLUMNS.map(|(_, field)| node.pointer(field).and_then(Value::as_str).unwrap_or("-").to_owned())
    });
    let rows: Vec<[String; 4]> = std::iter::once(header).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2), width(3)];
    rows.iter()
        .map(|row| {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}   "));
            format!("{}\n", cells.collect::<String>().trim_end())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_a_line_for_each_node() {
        let answer = json!({"nodes": [
            {"name": "edge-1", "state": "Ready", "certificateExpires": "2051-11-16T00:00:00Z", "lastContact": "2026-11-22T10:00:00Z"},
            {"name": "e", "state": "NotRegistered", "certificateExpires": null}]});
        let expect = "NAME     STATE           CERTIFICATE EXPIRES    LAST CONTACT\n\
                      edge-1   Ready           2051-11-16T00:00:00Z   2026-11-22T10:00:00Z\n\
                      e        NotRegistered   -                      -\n";
        assert_eq!(table(&answer), expect);
        assert_eq!(table(&json!({"nodes": []})).lines().count(), 1);
    }

    #[test]
    fn answer_is_status_and_body() {
        let check = |answer: &[u8], expect: Option<(u16, Value)>| assert_eq!(parse(answer), expect);
        check(b"HTTP/1.0 200 OK\r\na: b\r\n\r\n{\"a\":1}", Some((200, json!({"a": 1}))));
        check(b"HTTP/1.1 404 Not Found\r\n\r\n{}", Some((404, json!({}))));
        check(b"SSH-2.0\r\n", None);
        check(b"", None);
    }
}
