//! The output of a container, from the files of this node: `kedge logs`, without any server, and
//! `/containerLogs` of the kubelet's API.
//!
//! Owns the selection of pod, container and run (`runs`), and of their lines (`lines`). Always holds: it
//! works while no agent runs; an unreadable file is an error that names it; a closed pipe ends it without a
//! complaint. It queries a running agent for two facts only: where logs are, and whether a followed container
//! still runs. Blocks: it is a command.

pub(crate) mod lines;
mod runs;

use crate::options::{AgentOptions, LogsOptions};
use crate::output::CommandError;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use kedge_api::Timestamp;
use kedge_core::kubelet;
use serde_json::Value;

use crate::local::client;
use crate::local_config;
pub(crate) use lines::Stream;
use lines::Wanted;
use runs::{Log, Run};

/// How often a followed log is read again: a person waits, and reading nothing costs one system call.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often to query the agent whether the container still runs.
const ASK_EVERY: Duration = Duration::from_secs(1);

fn failed(error: impl std::fmt::Display) -> CommandError {
    CommandError::new(error)
}

/// `kedge logs`.
///
/// # Errors
/// The pod, container or run does not exist, or its files cannot be read.
pub fn run(options: &LogsOptions) -> Result<(), CommandError> {
    let found = find(options)?;
    found.write(options, &mut BufWriter::new(io::stdout().lock()))
}

/// An existing log.
pub(crate) struct Found(Run);

/// Finds the log of these options.
///
/// # Errors
/// The pod, container or run does not exist, or its files cannot be read.
pub(crate) fn find(options: &LogsOptions) -> Result<Found, CommandError> {
    let run = Run::find(&logs_dir(&options.agent)?, options, &known(options));
    let run = run.map_err(|why| match waiting(options) {
        Some(waits) => format!("{why}: {waits}"),
        None => why,
    });
    // once an answer has begun, an error could only break it off
    run.and_then(|run| run.check().map(|()| Found(run))).map_err(failed)
}

/// Why a pod has written nothing yet, if a running agent knows.
fn waiting(options: &LogsOptions) -> Option<String> {
    let pods = of_name(options);
    let containers = pods.iter().filter_map(|pod| pod["containers"].as_array()).flatten();
    let mut waiting = containers.filter(|container| container["state"] == "Waiting");
    let first = waiting.next()?;
    let reason = first["reason"].as_str().unwrap_or("it is being started");
    Some(format!("container {} waits: {reason}", first["name"].as_str().unwrap_or_default()))
}

/// The UIDs of the pods of that name that a running agent knows: a directory with another UID is not their
/// log, however new.
fn known(options: &LogsOptions) -> Vec<String> {
    of_name(options).iter().filter_map(|pod| pod["uid"].as_str().map(str::to_owned)).collect()
}

/// The pods of that name that a running agent knows.
fn of_name(options: &LogsOptions) -> Vec<Value> {
    let Ok(answer) = client::get(&options.agent.places.socket(), "/pods") else { return Vec::new() };
    let Ok(mut body) = serde_json::from_slice::<Value>(&answer.body) else { return Vec::new() };
    let (namespace, name) = options.pod.split_once('/').unwrap_or(("default", &options.pod));
    let pods = body["pods"].as_array_mut().map(std::mem::take).unwrap_or_default();
    pods.into_iter().filter(|pod| pod["namespace"] == namespace && pod["name"] == name).collect()
}

impl Found {
    /// Writes the wanted lines, and flushes before each wait for more. A reader who has left is not an error.
    ///
    /// # Errors
    /// Its files cannot be read, or nothing can be written.
    pub(crate) fn write(&self, options: &LogsOptions, out: &mut impl Write) -> Result<(), CommandError> {
        write(&self.0, options, out)
    }
}

fn write(run: &Run, options: &LogsOptions, out: &mut impl Write) -> Result<(), CommandError> {
    let since = options.since.and_then(|since| std::time::SystemTime::now().checked_sub(since));
    let since = since.and_then(|since| since.duration_since(std::time::UNIX_EPOCH).ok());
    let since = since.and_then(|since| i64::try_from(since.as_micros()).ok()).map(Timestamp::from_micros);
    let mut wanted = Wanted::new(
        since.into_iter().chain(options.since_time).max(),
        options.stream,
        options.timestamps,
        options.limit_bytes,
    );
    let mut log = Log::open(run, options.tail).map_err(failed)?;
    let mut asked = Instant::now();
    let mut is_over = false;
    loop {
        let written = copy(&mut log, &mut wanted, out).and_then(|()| out.flush());
        match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(failed(format_args!("{}: {error}", run.shown()))),
            Ok(()) if !options.follow || wanted.is_enough() => return Ok(()),
            Ok(()) => {}
        }
        if log.advance().map_err(failed)? {
            continue;
        }
        if is_over {
            return Ok(());
        }
        thread::sleep(LOOK_EVERY);
        if asked.elapsed() >= ASK_EVERY {
            asked = Instant::now();
            // the last output is read once more
            is_over = run.is_superseded() || has_ended(options, run);
        }
    }
}

fn copy(log: &mut Log, wanted: &mut Wanted, out: &mut impl Write) -> io::Result<()> {
    while let Some(line) = log.line()? {
        wanted.write(line, out)?;
        if wanted.is_enough() {
            break;
        }
    }
    Ok(())
}

/// The directory of logs: the running agent's, or else the local configuration's.
pub(crate) fn logs_dir(agent: &AgentOptions) -> Result<PathBuf, CommandError> {
    if let Ok(answer) = client::get(&agent.places.socket(), "/configz")
        && let Ok(body) = serde_json::from_slice::<Value>(&answer.body)
        && let Some(directory) = body.pointer("/kubeletconfig/podLogsDir").and_then(Value::as_str)
    {
        return Ok(PathBuf::from(directory));
    }
    let layers = local_config::read(&agent.local).map_err(failed)?;
    let effective = kubelet::effective(&layers, None).map_err(failed)?;
    Ok(PathBuf::from(&effective.config.pod_logs_dir))
}

/// Whether a running agent shows that the container does not run. Without one it may still run.
fn has_ended(options: &LogsOptions, run: &Run) -> bool {
    let Ok(answer) = client::get(&options.agent.places.socket(), "/pods") else { return false };
    let Ok(body) = serde_json::from_slice::<Value>(&answer.body) else { return false };
    shows_the_end(&body, run.uid(), run.container())
}

/// A container may run although an agent that has just started does not list it, or does not know its state.
fn shows_the_end(found: &Value, uid: &str, container: &str) -> bool {
    let Some(pods) = found["pods"].as_array().filter(|_| found["isComplete"] != false) else { return false };
    let of_pod = pods.iter().find(|pod| pod["uid"] == uid);
    let containers = of_pod.and_then(|pod| pod["containers"].as_array());
    let container = containers.into_iter().flatten().find(|one| one["name"] == container);
    container.is_none_or(|container| !matches!(container["state"].as_str(), Some("Running" | "Unknown")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn log_that_is_followed_ends_with_what_is_known_to_have_ended() {
        let shown = |state: &str| {
            let containers = match state {
                "" => json!([]),
                state => json!([{"name": "side", "state": "Exited"}, {"name": "main", "state": state}]),
            };
            json!({"isComplete": true, "pods": [{"uid": "other"}, {"uid": "u", "containers": containers}]})
        };
        let ends = |found: &Value| shows_the_end(found, "u", "main");
        for (state, expect) in [
            ("Running", false),
            ("Unknown", false),
            ("Exited", true),
            ("Lost", true),
            ("Waiting", true),
            ("", true),
        ] {
            let mut found = shown(state);
            assert_eq!(ends(&found), expect, "{state}");
            // an agent that has just started
            found["isComplete"] = json!(false);
            assert!(!ends(&found), "{state}");
        }
        assert!(ends(&json!({"isComplete": true, "pods": []})), "the pod is gone");
        assert!(ends(&json!({"pods": []})), "of an earlier release");
        assert!(!ends(&json!({"isComplete": false, "pods": []})) && !ends(&Value::Null));
    }
}
