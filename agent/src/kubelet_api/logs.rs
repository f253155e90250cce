//! `/containerLogs/NAMESPACE/POD/CONTAINER`: the output of a container.
//!
//! Always holds: a caller that reads slowly makes the reading of files wait, not memory grow; when the caller
//! leaves, the reading ends, also while the container writes nothing. Left to others: which files and lines
//! (`crate::logs`).

use crate::kubelet_api::node::Node;
use crate::options::LogsOptions;
use crate::output;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::sync::Arc;
use std::time::Duration;

use kedge_api::Timestamp;
use serde_json::Value;
use tokio::sync::mpsc;

use super::{Exchange, Request};
use crate::local::client;
use crate::logs::{self, Stream};

/// Bytes sent at once.
const PIECE_BYTES: usize = 8 * 1024;
/// Pieces that wait for the caller.
const PIECES: usize = 2;

/// Answers with a log.
pub(super) async fn serve(
    request: &Request,
    exchange: Exchange,
    node: Arc<Node>,
    [namespace, pod, container]: [&str; 3],
) -> io::Result<()> {
    let options = match options(request, &node, namespace, pod, container) {
        Ok(options) => options,
        Err(why) => return exchange.refuse(400, &why).await,
    };
    let (options, found) = tokio::task::spawn_blocking(move || {
        let found =
            logs::find(&options).map_err(|error| not_begun(&options).unwrap_or_else(|| error.to_string()));
        (options, found)
    })
    .await?;
    let found = match found {
        Ok(found) => found,
        // the kubelet's status for all of these
        Err(why) => return exchange.refuse(400, &why).await,
    };
    let mut answer = exchange.stream("text/plain").await?;
    let (pieces, mut read) = mpsc::channel(PIECES);
    let reading = tokio::task::spawn_blocking(move || {
        let mut out = BufWriter::with_capacity(PIECE_BYTES, Pieces(pieces));
        found.write(&options, &mut out).and_then(|()| out.flush().map_err(output::CommandError::new))
    });
    loop {
        let piece: Option<Vec<u8>> = tokio::select! {
            piece = read.recv() => piece,
            // the reader notices that its channel is closed
            () = answer.gone() => return Ok(()),
        };
        match piece {
            Some(piece) => answer.write(&piece).await?,
            None => break,
        }
    }
    match reading.await? {
        Ok(()) => answer.end().await,
        // the answer breaks off
        Err(error) => Err(io::Error::other(error.to_string())),
    }
}

fn options(
    request: &Request,
    node: &Node,
    namespace: &str,
    pod: &str,
    container: &str,
) -> Result<LogsOptions, String> {
    let number = |name: &str, least: u64| match request.param(name).filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => match text.parse::<u64>() {
            Ok(number) if number >= least => Ok(Some(number)),
            _ => Err(format!("{name} is {text:?}, expected a whole number from {least} on")),
        },
    };
    let since_time =
        match request.param("sinceTime").filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => Some(Timestamp::parse(text).map_err(|_| {
                format!("sinceTime is {text:?}, expected a time such as 2026-11-23T04:00:00Z")
            })?),
        };
    let stream = match request.param("stream").unwrap_or_default() {
        "" | "All" => None,
        "Stdout" => Some(Stream::Stdout),
        "Stderr" => Some(Stream::Stderr),
        other => return Err(format!("stream is {other:?}, expected All, Stdout or Stderr")),
    };
    let tail = number("tailLines", 0)?;
    if stream.is_some() && tail.is_some() {
        return Err("`tailLines` and specific `stream` are mutually exclusive for now".into());
    }
    // each becomes a part of a path: none may lead out of the directory of logs, or into another pod's
    if [namespace, pod, container]
        .iter()
        .any(|name| name.is_empty() || name.contains(['/', '_']) || name.starts_with('.'))
    {
        return Err(format!("{namespace:?}, {pod:?} and {container:?} are no names of a container"));
    }
    Ok(LogsOptions {
        agent: node.agent.clone(),
        pod: format!("{namespace}/{pod}"),
        container: Some(container.to_owned()),
        tail,
        since: number("sinceSeconds", 1)?.map(Duration::from_secs),
        since_time,
        limit_bytes: number("limitBytes", 1)?,
        stream,
        timestamps: request.flag("timestamps"),
        previous: request.flag("previous"),
        follow: request.flag("follow"),
    })
}

/// The kubelet's words for a container without a log because it has not started.
fn not_begun(options: &LogsOptions) -> Option<String> {
    let answer = client::get(&options.agent.places.socket(), "/pods").ok().filter(|_| !options.previous)?;
    let found: Value = serde_json::from_slice(&answer.body).ok()?;
    waiting(&found, &options.pod, options.container.as_deref()?)
}

fn waiting(found: &Value, pod: &str, container: &str) -> Option<String> {
    let (namespace, name) = pod.split_once('/')?;
    // an agent that has just started does not know yet whether the container runs
    let mut pods = found["pods"].as_array().filter(|_| found["isComplete"] != false)?.iter();
    let of_name = pods.find(|one| one["namespace"] == namespace && one["name"] == name)?;
    let found = of_name["containers"].as_array()?.iter().find(|one| one["name"] == container)?;
    if !matches!(found["state"].as_str(), Some("Waiting" | "Created")) {
        return None;
    }
    let reason = found["reason"].as_str().unwrap_or("ContainerCreating");
    Some(format!("container {container:?} in pod {name:?} is waiting to start: {reason}"))
}

/// Takes the bytes of the log.
struct Pieces(mpsc::Sender<Vec<u8>>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.blocking_send(bytes.to_vec()).map_err(|_| io::Error::from(ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        // a followed log is flushed at each look, which notices a caller that has left
        if self.0.is_closed() { Err(ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn container_that_has_not_begun_is_told_from_others() {
        let one =
            |name: &str, state: &str, reason: Value| json!({"name": name, "state": state, "reason": reason});
        let containers = [
            one("a", "Waiting", json!("ImagePullBackOff")),
            one("b", "Waiting", Value::Null),
            one("c", "Running", Value::Null),
        ];
        let mut found =
            json!({"isComplete": true, "pods": [{"namespace": "n", "name": "p", "containers": containers}]});
        let check = |pod: &str, container: &str, expect: Option<&str>| {
            let why = waiting(&found, pod, container);
            assert_eq!(why.as_deref().map(|why| why.rsplit(": ").next().unwrap()), expect, "{why:?}");
        };
        check("n/p", "a", Some("ImagePullBackOff"));
        check("n/p", "b", Some("ContainerCreating"));
        check("n/p", "c", None);
        check("n/p", "d", None);
        check("m/p", "a", None);
        found["isComplete"] = json!(false);
        assert_eq!(waiting(&found, "n/p", "a"), None, "of an agent that has just begun: it may run");
    }
}
