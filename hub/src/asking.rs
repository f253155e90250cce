//! Sends requests to the running hub of a data directory, as its administrator: for the commands `node`,
//! `token` and `rollout`.
//!
//! Always holds: over TLS, trusting that directory's authority alone; every wait has a limit, every answer a
//! size. Without a running hub the error says so. Left to others: the requests themselves (`node_command`,
//! `token_command`, `rollout_command`).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::own;
use crate::pki;

/// A hub on this machine answers within milliseconds, unless it waits for its disk.
const LIMIT: Duration = Duration::from_secs(90);
/// Most bytes of an answer: a fleet of 100,000 nodes is 30 MB.
const ANSWER_BYTES: u64 = 128 * 1024 * 1024;

/// The answer to a request.
///
/// # Errors
/// No hub runs, or it refuses; the text names the request that failed.
pub(crate) async fn ask(data_dir: &Path, method: &str, path: &str, body: &Value) -> Result<Value, String> {
    let (url, tls) = pki::admin_access(data_dir)
        .map_err(|error| format!("cannot ask the hub of {}: {error}", data_dir.display()))?;
    match tokio::time::timeout(LIMIT, exchange(&url, tls, method, path, body)).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("{method} {url}{path}: no answer in {LIMIT:?}")),
    }
}

async fn exchange(
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
        200 | 201 => Ok(value),
        _ => Err(failed(&format!("{code} {}", value["message"].as_str().unwrap_or_default()))),
    }
}

/// Status and body of an answer.
fn parse(answer: &[u8]) -> Option<(u16, Value)> {
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let code = std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()?;
    Some((code, own::read(&answer[end + 4..]).ok()?))
}

/// Rows below a header, with three spaces between the columns. The cells include texts that nodes and
/// registries chose, so a control character (a line break, an escape sequence for the terminal) becomes a
/// space.
pub(crate) fn table<const COLUMNS: usize>(
    header: [&str; COLUMNS],
    rows: impl Iterator<Item = [String; COLUMNS]>,
) -> String {
    let plain = |row: [String; COLUMNS]| row.map(|cell| cell.replace(char::is_control, " "));
    let rows: Vec<[String; COLUMNS]> =
        std::iter::once(header.map(str::to_owned)).chain(rows.map(plain)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
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
    use serde_json::json;

    #[test]
    fn table_sends_no_orders_to_a_terminal() {
        let row = ["edge-1".to_owned(), "a\u{1b}[2Jb\nc\u{9b}d".to_owned()];
        assert_eq!(table(["NODE", "WHY"], [row].into_iter()), "NODE     WHY\nedge-1   a [2Jb c d\n");
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
