//! `/fleet/rollouts/...`: one rollout of a DaemonSet or of a configuration.

use serde_json::Value;

use super::frame::{Frame, and_more, heading, message, number, same_by_kubectl};
use super::html::{Html, Link};
use crate::controllers::daemon_sets;
use crate::value::{at, condition, text};

/// Nodes on the page of a rollout.
const NODES: usize = 100;

/// A rollout, as its object records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollout {
    /// Empty for the rollout of a configuration.
    pub namespace: String,
    pub name: String,
    pub phase: String,
    pub updated: usize,
    pub of: usize,
    /// Of a DaemonSet: nodes without an available pod.
    pub failed: usize,
    pub message: String,
}

impl Rollout {
    pub fn of_daemon_set(set: &Value) -> Rollout {
        let count = |field: &str| usize_at(set, &["status", field]);
        let (phase, message) = daemon_sets::phase(set);
        Rollout {
            namespace: text(set, &["metadata", "namespace"]).to_owned(),
            name: text(set, &["metadata", "name"]).to_owned(),
            phase: phase.to_owned(),
            updated: count("updatedNumberScheduled"),
            of: count("desiredNumberScheduled"),
            failed: count("numberUnavailable"),
            message,
        }
    }

    pub fn of_config_rollout(rollout: &Value) -> Rollout {
        let count = |field: &str| usize_at(rollout, &["status", "nodes", field]);
        let phase = match text(rollout, &["status", "phase"]) {
            "" => "Progressing",
            phase => phase,
        };
        let stopped = condition(&rollout["status"], "Stopped").filter(|found| found["status"] == "True");
        let batch = usize_at(rollout, &["status", "batch"]);
        let message = match stopped {
            Some(stopped) => text(stopped, &["message"]).to_owned(),
            None if batch > 0 && phase != "Complete" => format!("batch {batch}"),
            None => String::new(),
        };
        Rollout {
            namespace: String::new(),
            name: text(rollout, &["metadata", "name"]).to_owned(),
            phase: phase.to_owned(),
            updated: count("updated"),
            of: count("selected"),
            failed: count("failed"),
            message,
        }
    }

    pub fn is_complete(&self) -> bool {
        self.phase == "Complete"
    }

    /// The order on the page: stopped and paused rollouts first, then those under way.
    pub fn rank(&self) -> (u8, String, String) {
        let rank = match self.phase.as_str() {
            "Stopped" => 0,
            "Paused" => 1,
            "Complete" => 3,
            _ => 2,
        };
        (rank, self.namespace.clone(), self.name.clone())
    }

    pub(super) fn title(&self) -> String {
        match self.namespace.as_str() {
            "" => format!("configuration {}", self.name),
            namespace => format!("{namespace}/{}", self.name),
        }
    }

    pub(super) fn link(&self, frame: &Frame<'_>) -> Link {
        let all = ["fleet", "rollouts", &self.namespace, &self.name];
        let segments: Vec<&str> = all.into_iter().filter(|segment| !segment.is_empty()).collect();
        frame.link(&segments, &[])
    }

    pub(super) fn row(&self, page: &mut Html, frame: &Frame<'_>) {
        page.raw("<tr><td>").link(&self.link(frame), self.title());
        page.raw(if self.phase == "Stopped" { "<td class=x>" } else { "<td>" }).within(&self.phase);
        page.raw("<td>").show(number(self.updated)).raw(" of ").show(number(self.of));
        // a pod of a DaemonSet that is unavailable may still be starting
        page.raw(match (self.failed, self.namespace.is_empty()) {
            (0, _) => "<td>",
            (_, true) => "<td class=x>",
            (_, false) => "<td class=u>",
        });
        page.show(number(self.failed));
        page.raw(if self.namespace.is_empty() { " failed<td>" } else { " unavailable<td>" });
        message(page, &self.message);
        page.raw("</tr>\n");
    }

    /// The state of one node in a view of `daemon_sets::view`.
    fn nodes(view: &Value) -> Vec<[&str; 3]> {
        let nodes = view["nodes"].as_array().map_or(&[][..], Vec::as_slice);
        let row = |node| ["node", "state", "why"].map(|field| text(node, &[field]));
        let mut rows: Vec<[&str; 3]> = nodes.iter().map(row).collect();
        // failed nodes first, then those under way
        let rank = |state: &str| match state {
            "failed" => 0,
            "runs" => 3,
            "left out" => 2,
            _ => 1,
        };
        rows.sort_by_key(|row| rank(row[1]));
        rows
    }
}

/// Writes the page. `object` is the DaemonSet or ConfigRollout; `view`: the nodes of a DaemonSet.
pub fn rollout(frame: &Frame<'_>, rollout: &Rollout, object: &Value, view: Option<&Value>) -> String {
    let all = ["fleet", "rollouts", &rollout.namespace, &rollout.name];
    let here: Vec<&str> = all.into_iter().filter(|segment| !segment.is_empty()).collect();
    let title = format!("Rollout of {}", rollout.title());
    frame.page(&title, (&here, &[]), |page| {
        page.raw("<table class=w><thead><tr><th>Rollout<th>Phase<th>Updated<th>Not well<th>Why</tr></thead><tbody>\n");
        rollout.row(page, frame);
        page.raw("</tbody></table>\n");
        conditions(page, frame, object);
        match rollout.namespace.as_str() {
            "" => {
                counts(page, object);
                same_by_kubectl(page, &format!("kubectl get configrollout {} -o yaml", rollout.name));
            }
            namespace => {
                let name = &rollout.name;
                same_by_kubectl(page, &format!("kubectl -n {namespace} rollout status daemonset/{name}"));
            }
        }
        if let Some(view) = view {
            nodes(page, frame, view);
        }
    })
}

/// The counts of a ConfigRollout.
fn counts(page: &mut Html, object: &Value) {
    let counts = at(object, &["status", "nodes"]).and_then(Value::as_object);
    page.raw("<dl>");
    for (name, count) in counts.into_iter().flatten().take(NODES) {
        page.raw("<dt>").text(name).raw("<dd>").show(count.as_u64().unwrap_or(0));
    }
    for field in ["currentRevision", "updateRevision"] {
        page.raw("<dt>").raw(if field == "currentRevision" { "current" } else { "update" });
        page.raw("<dd>").text(text(object, &["status", field]));
    }
    page.raw("</dl>\n");
}

pub(super) fn conditions(page: &mut Html, frame: &Frame<'_>, object: &Value) {
    let all = at(object, &["status", "conditions"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if all.is_empty() {
        return;
    }
    heading(page, "Conditions");
    page.raw("<table class=w><thead><tr><th>Condition<th>Status<th>Since<th>Reason<th>Message</tr></thead><tbody>\n");
    for condition in all.iter().take(NODES) {
        let field = |name: &str| text(condition, &[name]);
        page.raw("<tr><td>").within(field("type")).raw("<td>").within(field("status")).raw("<td class=m>");
        frame.since_text(page, field("lastTransitionTime"));
        page.raw("<td>").within(field("reason")).raw("<td>");
        message(page, field("message"));
        page.raw("</tr>\n");
    }
    page.raw("</tbody></table>\n");
    and_more(page, all.len().saturating_sub(NODES), "conditions");
}

fn nodes(page: &mut Html, frame: &Frame<'_>, view: &Value) {
    heading(page, "Nodes");
    let rows = Rollout::nodes(view);
    page.raw("<p>").text(text(view, &["state"])).raw(": ");
    message(page, text(view, &["message"]));
    page.raw("</p>\n<table class=w><thead><tr><th>Node<th>State<th>Why</tr></thead><tbody>\n");
    for [node, state, why] in rows.iter().take(NODES) {
        page.raw("<tr><td>").link(&frame.node(node), node);
        page.raw(if *state == "failed" { "<td class=x>" } else { "<td>" }).within(state).raw("<td>");
        message(page, why);
        page.raw("</tr>\n");
    }
    page.raw("</tbody></table>\n");
    and_more(page, rows.len().saturating_sub(NODES), "nodes");
}

fn usize_at(value: &Value, path: &[&str]) -> usize {
    at(value, path).and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
}
