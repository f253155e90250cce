//! `kedge-hub rollout NAME` or `cro/NAME`: the progress of a DaemonSet's update or a ConfigRollout, node by
//! node, from the running hub's view.
//!
//! Always holds: nothing is decided here. With `--watch` it prints the table at each change, and ends when
//! the update is complete (its pods stayed), or with an error when it stopped or another template replaced
//! it: kubectl's `rollout status` would keep waiting, or report the other template's success. If the hub is
//! away for a moment, the command retries. Left to others: the hub's side
//! (`view` of `kedge_hub_core::controllers::{daemon_sets, config_rollouts}`).

use std::time::Duration;

use serde_json::Value;

use crate::asking::{self, ask};
use crate::flags::RolloutCommand;

/// Time between two requests of `--watch`.
const PAUSE: Duration = Duration::from_secs(2);
/// Requests in a row that may fail after the first success: a minute, in which a hub restarts.
const FAILURES: usize = 30;

/// Runs the command; `print` receives each table.
///
/// # Errors
/// No hub runs, or it knows no such set, or the update that is watched fails.
pub async fn run(
    command: &RolloutCommand,
    mut print: impl FnMut(&str) -> Result<(), String>,
) -> Result<(), String> {
    let path = match &command.namespace {
        Some(namespace) => format!("/kedge/rollouts/{namespace}/{}", command.name),
        None => format!("/kedge/rollouts/{}", command.name),
    };
    let (mut known, mut failures) = (Value::Null, 0);
    loop {
        match ask(&command.data_dir, "GET", &path, &Value::Null).await {
            Ok(answer) => {
                failures = 0;
                if answer != known {
                    print(&if command.json { format!("{answer:#}\n") } else { shown(&answer) })?;
                }
                if !command.watch {
                    return Ok(());
                }
                if let Some(end) = ends(&known, &answer) {
                    return end;
                }
                known = answer;
            }
            Err(_) if !known.is_null() && failures < FAILURES => failures += 1,
            Err(error) => return Err(error),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The result of a watched update, if it has ended.
fn ends(before: &Value, now: &Value) -> Option<Result<(), String>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (old, new) = (text(&before["revision"]), text(&now["revision"]));
    // a template that was just written has no revision yet
    if !old.is_empty() && old != new {
        return Some(Err(format!("revision {old} was not completed: the template is that of {new} now")));
    }
    match now["state"].as_str() {
        Some("complete") => Some(Ok(())),
        Some("stopped") => Some(Err(text(&now["message"]))),
        _ => None,
    }
}

fn shown(answer: &Value) -> String {
    let text = |value: &Value| match value {
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    };
    let failed = answer["failed"].as_u64().filter(|count| *count > 0);
    let mut out = format!(
        "{}/{}: revision {} is {}; {} of {} nodes updated, {} available{}\n",
        text(&answer["namespace"]),
        text(&answer["name"]),
        text(&answer["revision"]),
        text(&answer["state"]),
        text(&answer["updated"]),
        text(&answer["desired"]),
        text(&answer["available"]),
        failed.map_or(String::new(), |count| format!(", {count} failed"))
    );
    if let Some(message) = answer["message"].as_str().filter(|message| !message.is_empty()) {
        out.push_str(&format!("{message}\n"));
    }
    let nodes = answer["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    let row = |node: &Value| ["node", "revision", "state", "why"].map(|field| text(&node[field]));
    out.push_str(&asking::table(["NODE", "REVISION", "STATE", "WHY"], nodes.iter().map(row)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn table_has_a_line_for_each_node_below_the_state() {
        let answer = json!({"namespace": "n", "name": "d", "revision": "d-x", "state": "stopped", "message": "because",
            "updated": 1, "desired": 2, "available": 1, "failed": 1, "nodes": [
            {"node": "edge-1", "revision": 2, "state": "failed", "why": "crash loop"},
            {"node": "e", "revision": null, "state": "waits", "why": ""}]});
        let expect = "n/d: revision d-x is stopped; 1 of 2 nodes updated, 1 available, 1 failed\nbecause\n\
                      NODE     REVISION   STATE    WHY\n\
                      edge-1   2          failed   crash loop\n\
                      e        -          waits    -\n";
        assert_eq!(shown(&answer), expect);
    }

    #[test]
    fn watch_ends_when_the_update_does() {
        let at =
            |revision: &str, state: &str| json!({"revision": revision, "state": state, "message": "why"});
        let check = |before: &Value, now: &Value, expect: Option<Result<(), &str>>| {
            let expect = expect.map(|end| end.map_err(str::to_owned));
            assert_eq!(ends(before, now), expect, "{before} {now}");
        };
        check(&Value::Null, &at("a", "under way"), None);
        check(&at("a", "under way"), &at("a", "soaking"), None);
        check(&at("a", "soaking"), &at("a", "complete"), Some(Ok(())));
        check(&at("a", "under way"), &at("a", "stopped"), Some(Err("why")));
        let other = "revision a was not completed: the template is that of b now";
        check(&at("a", "under way"), &at("b", "complete"), Some(Err(other)));
        check(&at("", "under way"), &at("b", "under way"), None);
    }
}
